//! Who becomes a connection and how one ends. Scope: one core's machine.
//! Owns: the counts behind the limits, the reasons for refusals, the wall clock that validation tokens carry.
//! Invariants: `held` counts slots, `handshaking` and `open` the phases of those; an accepted connection is heard
//! of only when it is `Connected`; each one that was heard of is `Closed` exactly once.
//! Not here: TLS (tls, alpn), what a session does with a connection.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use aws_lc_rs::{hkdf, hmac};
use bytes::Bytes;
use foldhash::fast::RandomState;
use quinn_proto::crypto::rustls::{NoInitialCipherSuite, QuicClientConfig};
use quinn_proto::{
    ClientConfig, ConnectionId, Endpoint, EndpointConfig, Incoming, NoneTokenStore, ServerConfig, Side,
    TimeSource, VarInt,
};
use rustls::pki_types::CertificateDer;
use thiserror::Error;

use super::alpn::OptionalAlpn;
use super::cid::CidSource;
use super::event::{CloseReason, ConnKey, PathReport, QuicEvent, RefusedCounts};
use super::machine::{Conn, Phase, Quic};
use super::settings::{QuicSettings, SettingsError};
use crate::clock::Tick;

/// Why a machine could not be made or given new TLS settings.
#[derive(Debug, Error)]
pub enum QuicError {
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The TLS provider lacks AES-128-GCM, with which every QUIC connection starts.
    #[error("the TLS configuration lacks TLS13_AES_128_GCM_SHA256")]
    NoInitialSuite,
    /// The operating system gave no random bytes.
    #[error("no random bytes from the operating system")]
    NoRandomness,
}

impl From<NoInitialCipherSuite> for QuicError {
    fn from(_: NoInitialCipherSuite) -> QuicError {
        QuicError::NoInitialSuite
    }
}

/// Why a connection could not be started. Nothing was sent.
#[derive(Debug, Error)]
pub enum ConnectError {
    /// `max_connections` are held.
    #[error("too many connections")]
    Full,
    /// The core's number does not fit the one byte that names it.
    #[error("core {0} cannot be named in a connection id")]
    NoSuchCore(u16),
    #[error("the TLS configuration lacks TLS13_AES_128_GCM_SHA256")]
    NoInitialSuite,
    /// The address or the server name is not usable.
    #[error(transparent)]
    Refused(#[from] quinn_proto::ConnectError),
}

/// Unix time for validation tokens, moved by the ticks the machine is given.
#[derive(Debug)]
pub(super) struct Wall {
    unix_micros_at_zero: u64,
    /// Atomic only because the transport wants a shared object; one core reads and writes it.
    micros: AtomicU64,
}

impl Wall {
    pub(super) fn set(&self, now: Tick) {
        self.micros.store(now.as_micros(), Ordering::Relaxed);
    }
}

impl TimeSource for Wall {
    fn now(&self) -> SystemTime {
        let micros = self.unix_micros_at_zero.saturating_add(self.micros.load(Ordering::Relaxed));
        UNIX_EPOCH + Duration::from_micros(micros)
    }
}

/// Counts of one machine.
#[derive(Default)]
pub(super) struct Admission {
    refusing: bool,
    held: usize,
    handshaking: usize,
    open: usize,
    per_ip: HashMap<IpAddr, usize, RandomState>,
    pub(super) refused: RefusedCounts,
}

impl Admission {
    pub(super) fn held(&mut self, ip: IpAddr) {
        self.held += 1;
        self.handshaking += 1;
        *self.per_ip.entry(ip).or_default() += 1;
    }

    pub(super) fn freed(&mut self, ip: IpAddr) {
        self.held -= 1;
        if let Some(count) = self.per_ip.get_mut(&ip) {
            *count -= 1;
            if *count == 0 {
                self.per_ip.remove(&ip);
            }
        }
    }

    pub(super) fn connected(&mut self, conn: &mut Conn, events: &mut VecDeque<(ConnKey, QuicEvent)>) {
        if conn.phase == Phase::Handshake {
            conn.phase = Phase::Open;
            self.handshaking -= 1;
            self.open += 1;
            events.push_back((conn.key, QuicEvent::Connected));
        }
    }

    /// The connection ended for `reason`; said once, and only of a connection that somebody heard of.
    pub(super) fn closed(
        &mut self,
        conn: &mut Conn,
        reason: CloseReason,
        events: &mut VecDeque<(ConnKey, QuicEvent)>,
    ) {
        match conn.phase {
            Phase::Handshake => self.handshaking -= 1,
            Phase::Open => self.open -= 1,
            Phase::Closing | Phase::Gone => return,
        }
        if conn.phase == Phase::Handshake && conn.inner.side() == Side::Server {
            self.refused.failed += 1;
            conn.phase = Phase::Gone;
            return;
        }
        conn.phase = Phase::Closing;
        events.push_back((conn.key, QuicEvent::Closed { reason }));
    }
}

impl Quic {
    /// A machine that accepts connections with `tls` (`None`: it only connects). `zero` is what `Tick::ZERO` means;
    /// only differences to it matter.
    pub fn new(
        settings: QuicSettings,
        tls: Option<Arc<rustls::ServerConfig>>,
        zero: Instant,
    ) -> Result<Quic, QuicError> {
        settings.check()?;
        let transport = Arc::new(settings.transport());
        Quic::with_transport(settings, transport, tls, zero)
    }

    /// As `new`, for settings already checked and transport settings derived from them.
    pub(super) fn with_transport(
        settings: QuicSettings,
        transport: Arc<quinn_proto::TransportConfig>,
        tls: Option<Arc<rustls::ServerConfig>>,
        zero: Instant,
    ) -> Result<Quic, QuicError> {
        let secret = match settings.seed {
            Some(seed) => seed,
            None => {
                let mut bytes = [0; 32];
                aws_lc_rs::rand::fill(&mut bytes).map_err(|_| QuicError::NoRandomness)?;
                bytes
            }
        };
        let ids = CidSource::new(&secret, 0, settings.core, settings.cores);
        let first_cids = CidSource::new(&secret, 1, settings.core, settings.cores);
        let reset_key = hmac::Key::new(hmac::HMAC_SHA256, &settings.reset_key);
        let mut config = EndpointConfig::new(Arc::new(reset_key));
        config.cid_generator(move || Box::new(ids.clone()));
        config.rng_seed(settings.seed);
        if config.max_udp_payload_size(settings.max_udp_payload).is_err() {
            unreachable!("checked to be within what QUIC allows");
        }
        let wall =
            Arc::new(Wall { unix_micros_at_zero: settings.unix_micros_at_zero, micros: AtomicU64::new(0) });
        let endpoint = Endpoint::new(Arc::new(config), None, true, None);
        let mut quic = Quic::assemble(settings, transport, endpoint, wall, first_cids, zero);
        if let Some(tls) = tls {
            quic.set_server_tls(&tls)?;
        }
        Ok(quic)
    }

    /// Accepts from here on with `tls`, whose `alpn_protocols` a client that offers ALPN must match; a client that
    /// offers none is accepted without. Connections that exist, also those in their handshake, are not touched.
    pub fn set_server_tls(&mut self, tls: &Arc<rustls::ServerConfig>) -> Result<(), QuicError> {
        let crypto = Arc::new(OptionalAlpn::new(tls)?);
        let token_key = hkdf::Salt::new(hkdf::HKDF_SHA256, &[]).extract(&self.settings.token_key);
        let mut server = ServerConfig::new(crypto, Arc::new(token_key));
        server.transport_config(Arc::clone(&self.transport));
        server.time_source(self.wall.clone());
        self.endpoint.set_server_config(Some(Arc::new(server)));
        Ok(())
    }

    /// Refuses (true) or accepts newcomers. Existing connections, also those in their handshake, are not touched.
    pub fn refuse_new(&mut self, refuse: bool) {
        self.admission.refusing = refuse;
    }

    /// Connections that are `Connected` and not `Closed`.
    pub fn connection_count(&self) -> usize {
        self.admission.open
    }

    /// Decides on a newcomer at once.
    pub(super) fn admit(&mut self, at: Instant, incoming: Incoming) {
        let counts = &self.admission;
        let ip = incoming.remote_address().ip();
        let of_ip = counts.per_ip.get(&ip).copied().unwrap_or(0);
        let over_ip = self.settings.max_connections_per_ip.is_some_and(|max| of_ip >= max);
        let refused = &mut self.admission.refused;
        let reason = if self.admission.refusing {
            Some(&mut refused.closing)
        } else if self.admission.held >= self.settings.max_connections {
            Some(&mut refused.full)
        } else if over_ip {
            Some(&mut refused.per_ip)
        } else {
            None
        };
        if let Some(count) = reason {
            *count += 1;
            let meta = self.endpoint.refuse(incoming, &mut self.scratch);
            self.queue_answer(meta);
            return;
        }
        let crowded = self.admission.handshaking >= self.settings.retry_above_handshakes;
        if crowded && !incoming.remote_address_validated() && incoming.may_retry() {
            match self.endpoint.retry(incoming, &mut self.scratch) {
                Ok(meta) => {
                    self.admission.refused.retried += 1;
                    self.queue_answer(meta);
                }
                Err(error) => self.endpoint.ignore(error.into_incoming()),
            }
            return;
        }
        match self.endpoint.accept(incoming, at, &mut self.scratch, None) {
            Ok((handle, inner)) => {
                self.insert(handle, inner);
            }
            Err(error) => {
                self.admission.refused.failed += 1;
                if let Some(meta) = error.response {
                    self.queue_answer(meta);
                }
            }
        }
    }

    /// Starts a connection to `remote`, whose certificate must be valid for `server_name` (a DNS name or an IP
    /// address). `core` asks for a core of a server that shares its port between cores; `None` leaves it to chance.
    ///
    /// `Connected` or `Closed` follows.
    pub fn connect(
        &mut self,
        now: Tick,
        tls: Arc<rustls::ClientConfig>,
        remote: SocketAddr,
        server_name: &str,
        core: Option<u16>,
    ) -> Result<ConnKey, ConnectError> {
        if self.admission.held >= self.settings.max_connections {
            return Err(ConnectError::Full);
        }
        let core = match core.map(|core| (core, u8::try_from(core))) {
            None => None,
            Some((_, Ok(byte))) => Some(byte),
            Some((core, Err(_))) => return Err(ConnectError::NoSuchCore(core)),
        };
        let first: ConnectionId = self.first_cids.first_destination(core);
        let crypto = QuicClientConfig::try_from(tls).map_err(|_| ConnectError::NoInitialSuite)?;
        let mut config = ClientConfig::new(Arc::new(crypto));
        config.transport_config(Arc::clone(&self.transport));
        config.token_store(Arc::new(NoneTokenStore));
        config.initial_dst_cid_provider(Arc::new(move || first));
        let at = self.instant(now);
        let (handle, inner) = self.endpoint.connect(at, config, remote, server_name)?;
        Ok(self.insert(handle, inner))
    }

    /// Ends a connection: `Closed` (reason `Local`) follows, the peer is told `code` and `reason` (cut to fit one
    /// packet). What was written and not acknowledged may be lost.
    pub fn close(&mut self, now: Tick, key: ConnKey, code: VarInt, reason: Bytes) {
        let at = self.instant(now);
        if let Some(conn) = self.open_conn_mut(key) {
            conn.inner.close(at, code, reason);
            self.touch(key.slot);
            self.close_locally(key);
        }
    }

    /// Ends every connection as `close` does, those in their handshake included. For the end of a machine: it looks
    /// at every connection.
    pub fn close_all(&mut self, now: Tick, code: VarInt, reason: &Bytes) {
        let keys: Vec<ConnKey> = self.slots.iter().flatten().map(|conn| conn.key).collect();
        for key in keys {
            self.close(now, key, code, reason.clone());
        }
    }

    /// Connections that still hold a slot: open ones, those in their handshake, and those that are over and wait
    /// a few round trips for late datagrams.
    pub fn held_count(&self) -> usize {
        self.admission.held
    }

    /// Where the peer is now; clients may move.
    pub fn remote_address(&self, key: ConnKey) -> Option<SocketAddr> {
        Some(self.conn(key)?.inner.remote_address())
    }

    /// The certificates the peer showed, leaf first; `None` when it showed none.
    pub fn peer_certificates(&self, key: ConnKey) -> Option<Vec<CertificateDer<'static>>> {
        let identity = self.conn(key)?.inner.crypto_session().peer_identity()?;
        identity.downcast().ok().map(|certificates| *certificates)
    }

    /// How the path of a connection does.
    pub fn stats(&self, key: ConnKey) -> Option<PathReport> {
        let stats = self.conn(key)?.inner.stats();
        Some(PathReport {
            rtt: stats.path.rtt,
            mtu: stats.path.current_mtu,
            congestion_window: stats.path.cwnd,
            sent_packets: stats.path.sent_packets,
            lost_packets: stats.path.lost_packets,
            received_datagrams: stats.udp_rx.datagrams,
        })
    }
}
