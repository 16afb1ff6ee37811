//! ALPN that a client may leave out (client-protocol 1.2). Scope: one config per server TLS config, one session
//! per handshake.
//! Owns: the handshake bytes until the ClientHello is whole, then the choice between two TLS configs that differ
//! in ALPN only.
//! Invariants: a hello that offers ALPN gets our list required (alert 120 when nothing fits); a hello that offers
//! none is served without; the chosen TLS session sees every handshake byte exactly once.
//! Not here: reading the hello (hello), certificates (tls).

#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::any::Any;
use std::sync::Arc;

use quinn_proto::crypto::rustls::{NoInitialCipherSuite, QuicServerConfig};
use quinn_proto::crypto::{
    self, ExportKeyingMaterialError, HeaderKey, KeyPair, Keys, PacketKey, ServerConfig, Session,
    UnsupportedVersion,
};
use quinn_proto::transport_parameters::TransportParameters;
use quinn_proto::{ConnectionId, Side, TransportError, TransportErrorCode};

use super::hello::{self, Hello};

/// A server config that decides on ALPN when it has seen the ClientHello.
pub(super) struct OptionalAlpn {
    /// Requires one of the given protocols.
    offered: Arc<QuicServerConfig>,
    /// The same config with an empty protocol list.
    silent: Arc<QuicServerConfig>,
}

impl OptionalAlpn {
    /// `tls.alpn_protocols` is what a client that offers ALPN must pick from.
    ///
    /// Fails when the provider of `tls` lacks the suite QUIC starts with.
    pub(super) fn new(tls: &Arc<rustls::ServerConfig>) -> Result<OptionalAlpn, NoInitialCipherSuite> {
        let mut silent = rustls::ServerConfig::clone(tls);
        silent.alpn_protocols.clear();
        Ok(OptionalAlpn {
            offered: Arc::new(QuicServerConfig::try_from(Arc::clone(tls))?),
            silent: Arc::new(QuicServerConfig::try_from(silent)?),
        })
    }
}

impl ServerConfig for OptionalAlpn {
    fn initial_keys(&self, version: u32, dst_cid: &ConnectionId) -> Result<Keys, UnsupportedVersion> {
        self.offered.initial_keys(version, dst_cid)
    }

    fn retry_tag(&self, version: u32, orig_dst_cid: &ConnectionId, packet: &[u8]) -> [u8; 16] {
        self.offered.retry_tag(version, orig_dst_cid, packet)
    }

    fn start_session(self: Arc<Self>, version: u32, params: &TransportParameters) -> Box<dyn Session> {
        Box::new(LazySession {
            waiting: Some(Box::new(Waiting { config: self, version, params: *params, hello: Vec::new() })),
            chosen: None,
        })
    }
}

/// What is needed to start a session, and the hello so far.
struct Waiting {
    config: Arc<OptionalAlpn>,
    version: u32,
    params: TransportParameters,
    hello: Vec<u8>,
}

/// A session that exists before its TLS config is chosen. Exactly one of the two is set.
struct LazySession {
    waiting: Option<Box<Waiting>>,
    chosen: Option<Box<dyn Session>>,
}

impl LazySession {
    fn read_hello(&mut self, mut waiting: Box<Waiting>, bytes: &[u8]) -> Result<bool, TransportError> {
        waiting.hello.extend_from_slice(bytes);
        let config = match hello::inspect(&waiting.hello) {
            Hello::NeedMore => {
                self.waiting = Some(waiting);
                return Ok(false);
            }
            Hello::Whole { alpn: true } => Arc::clone(&waiting.config.offered),
            // A malformed hello goes to TLS, which knows the right alert for it.
            Hello::Whole { alpn: false } | Hello::Malformed => Arc::clone(&waiting.config.silent),
        };
        let mut session = config.start_session(waiting.version, &waiting.params);
        let read = session.read_handshake(&waiting.hello);
        self.chosen = Some(session);
        read
    }
}

impl Session for LazySession {
    fn initial_keys(&self, dst_cid: &ConnectionId, side: Side) -> Keys {
        match (&self.chosen, &self.waiting) {
            (Some(session), _) => session.initial_keys(dst_cid, side),
            (None, Some(waiting)) => match waiting.config.initial_keys(waiting.version, dst_cid) {
                Ok(keys) => keys,
                Err(UnsupportedVersion) => {
                    unreachable!("a session is started only for a version whose initial keys exist")
                }
            },
            (None, None) => unreachable!("a session waits or is chosen"),
        }
    }

    fn handshake_data(&self) -> Option<Box<dyn Any>> {
        self.chosen.as_ref()?.handshake_data()
    }

    fn peer_identity(&self) -> Option<Box<dyn Any>> {
        self.chosen.as_ref()?.peer_identity()
    }

    fn early_crypto(&self) -> Option<(Box<dyn HeaderKey>, Box<dyn PacketKey>)> {
        // 0-RTT is off (client-protocol 1.1).
        None
    }

    fn early_data_accepted(&self) -> Option<bool> {
        None
    }

    fn is_handshaking(&self) -> bool {
        self.chosen.as_ref().is_none_or(|session| session.is_handshaking())
    }

    fn read_handshake(&mut self, bytes: &[u8]) -> Result<bool, TransportError> {
        if let Some(session) = &mut self.chosen {
            return session.read_handshake(bytes);
        }
        match self.waiting.take() {
            Some(waiting) => self.read_hello(waiting, bytes),
            None => Err(TransportErrorCode::INTERNAL_ERROR.into()),
        }
    }

    fn transport_parameters(&self) -> Result<Option<TransportParameters>, TransportError> {
        match &self.chosen {
            Some(session) => session.transport_parameters(),
            None => Ok(None),
        }
    }

    fn write_handshake(&mut self, out: &mut Vec<u8>) -> Option<Keys> {
        self.chosen.as_mut()?.write_handshake(out)
    }

    fn next_1rtt_keys(&mut self) -> Option<KeyPair<Box<dyn PacketKey>>> {
        self.chosen.as_mut()?.next_1rtt_keys()
    }

    fn is_valid_retry(&self, orig_dst_cid: &ConnectionId, header: &[u8], payload: &[u8]) -> bool {
        self.chosen.as_ref().is_some_and(|session| session.is_valid_retry(orig_dst_cid, header, payload))
    }

    fn export_keying_material(
        &self,
        output: &mut [u8],
        label: &[u8],
        context: &[u8],
    ) -> Result<(), crypto::ExportKeyingMaterialError> {
        match &self.chosen {
            Some(session) => session.export_keying_material(output, label, context),
            None => Err(ExportKeyingMaterialError),
        }
    }
}
