//! The sink: a server that takes publishes like a broker and keeps nothing. What a broker costs beyond it is the
//! broker's own work. Scope: one per process, one core.
//! Owns: its certificate, its socket, its core's thread.
//! Invariants: the same runtime driver, frames, windows, MTU, allocator and acks as the broker; the payload is copied
//! exactly once, into a buffer that is used again and again.
//! Not here: checking anything a broker must check: any token, any stream name is accepted.

pub(crate) mod connection;
mod relay;
pub(crate) mod serve;
pub(crate) mod split;

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use felix_runtime::executor::{CoreJoin, CoreSpec, ExecutorError, spawn_core};
use felix_runtime::quic::{KEY_BYTES, Quic, QuicError, QuicSettings, server_tls};
use felix_runtime::udp::{BindError, BufferSizes, DEFAULT_PINNED_BYTES, ReusePortGroup};
use felix_runtime::waker::CoreWaker;
use felix_runtime::{Clock, Tick};
use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose};
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

use crate::target::{Pids, Ready};

pub use serve::SinkCounts;

/// The broker's: silence that ends a connection, and silence of ours that is broken.
pub(crate) const IDLE_TIMEOUT: Duration = Duration::from_secs(6);
pub(crate) const KEEP_ALIVE: Duration = Duration::from_secs(2);
/// Names the certificate is good for.
const NAMES: [&str; 3] = ["localhost", "127.0.0.1", "::1"];

/// How publish frames are taken off their streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Framing {
    /// As bytes arrive, straight into the reused buffer: one copy and nothing else. The least any server can do.
    #[default]
    Stream,
    /// Whole frames put together by the protocol's frame reader and validated as a broker does, then copied into the
    /// reused buffer: two copies.
    Whole,
}

/// How the sink is run.
#[derive(Debug, Clone)]
pub struct SinkOptions {
    /// The processor to stay on; `None` leaves it to the kernel.
    pub cpu: Option<usize>,
    pub address: SocketAddr,
    /// Largest datagram that path discovery tries, bytes.
    pub mtu: u16,
    /// How long to look for work before parking.
    pub spin: Duration,
    pub framing: Framing,
    /// Publishes are handed on to whoever subscribed.
    pub relay: bool,
    /// Requests in the binary form are answered with a value of so many bytes, for 0 with none; otherwise they are not served.
    pub value_bytes: Option<u32>,
}

impl Default for SinkOptions {
    /// Unpinned, on a free loopback port, without spinning.
    fn default() -> SinkOptions {
        SinkOptions {
            cpu: None,
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
            mtu: 8_900,
            spin: Duration::ZERO,
            framing: Framing::default(),
            relay: false,
            value_bytes: None,
        }
    }
}

/// Why there is no sink.
#[derive(Debug, thiserror::Error)]
pub enum SinkError {
    #[error("a certificate cannot be made: {0}")]
    Certificate(#[from] rcgen::Error),
    #[error("the certificate cannot be used: {0}")]
    Tls(String),
    #[error(transparent)]
    Bind(#[from] BindError),
    #[error(transparent)]
    Quic(#[from] QuicError),
    #[error(transparent)]
    Core(#[from] ExecutorError),
    #[error("{path}: {error}")]
    Write { path: PathBuf, error: io::Error },
}

/// A running sink. Ends when dropped.
#[derive(Debug)]
pub struct Sink {
    address: SocketAddr,
    certificate_pem: String,
    ending: Arc<AtomicBool>,
    waker: CoreWaker,
    core: Option<CoreJoin<SinkCounts>>,
}

impl Sink {
    /// Serves from here on, on a thread of its own.
    ///
    /// # Errors
    /// No socket, no thread, or no certificate to be had.
    pub fn start(options: &SinkOptions) -> Result<Sink, SinkError> {
        let (certificate_pem, tls) = certificate()?;
        let group = ReusePortGroup::bind(options.address, 1, BufferSizes::default())?;
        let address = group.local_addr;
        let clock = Clock::start();
        let waker = CoreWaker::new();
        let quic = Quic::new(settings(options.mtu), Some(tls), clock.instant(Tick::ZERO))?;
        let spec = core_spec("felix-sink", options.cpu, options.spin, (clock, waker.clone()));
        let ending = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&ending);
        let (framing, relays) = (options.framing, options.relay);
        let answer = options.value_bytes.map(connection::Answer::new);
        let socket = group.sockets.into_iter().next().ok_or(BindError::NoCores)?;
        let core = spawn_core(spec, socket, move |io| async move {
            if relays {
                serve::run(io, relay::Relay::new(quic), seen).await
            } else {
                serve::serve(io, quic, (framing, answer), seen).await
            }
        })?;
        Ok(Sink { address, certificate_pem, ending, waker, core: Some(core) })
    }

    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Writes certificate and token into `folder` and describes the sink as a ready file does.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn describe(&self, folder: &Path) -> Result<Ready, SinkError> {
        describe(self.address, &self.certificate_pem, folder)
    }

    /// Ends the sink and says what it took.
    ///
    /// # Errors
    /// Its core panicked.
    pub fn stop(mut self) -> Result<SinkCounts, SinkError> {
        self.tell_to_end();
        match self.core.take() {
            Some(core) => Ok(core.join()?),
            None => Ok(SinkCounts::default()),
        }
    }

    /// Serves until the process is ended from outside.
    ///
    /// # Errors
    /// Its core panicked.
    pub fn run(mut self) -> Result<(), SinkError> {
        match self.core.take() {
            Some(core) => core.join().map(|_| ()).map_err(SinkError::from),
            None => Ok(()),
        }
    }

    fn tell_to_end(&self) {
        self.ending.store(true, Ordering::Release);
        self.waker.wake();
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        self.tell_to_end();
        if let Some(core) = self.core.take() {
            // Whoever wants to know how it ended calls `stop`.
            let _ = core.join();
        }
    }
}

/// The broker's transport settings for datagrams of up to `mtu` bytes.
pub(crate) fn settings(mtu: u16) -> QuicSettings {
    QuicSettings {
        mtu_upper_bound: mtu,
        stream_window: serve::STREAM_WINDOW,
        conn_window_before_auth: serve::CONN_WINDOW_BEFORE_AUTH,
        send_window: serve::SEND_WINDOW,
        idle_timeout: IDLE_TIMEOUT,
        keep_alive: Some(KEEP_ALIVE),
        // Nobody is told that an earlier server is gone, and the port is on loopback.
        ..QuicSettings::new([0; KEY_BYTES], [0; KEY_BYTES])
    }
}

/// The one core of a server that does no disk work.
pub(crate) fn core_spec(
    name: &str,
    cpu: Option<usize>,
    spin: Duration,
    (clock, waker): (Clock, CoreWaker),
) -> CoreSpec {
    CoreSpec { index: 0, cpu, spin, name: name.to_owned(), pinned_bytes: DEFAULT_PINNED_BYTES, clock, waker }
}

/// Writes certificate and token into `folder` and describes a server of this process as a ready file does.
pub(crate) fn describe(
    address: SocketAddr,
    certificate_pem: &str,
    folder: &Path,
) -> Result<Ready, SinkError> {
    let write = |name: &str, text: &str| {
        let path = folder.join(name);
        match std::fs::write(&path, text) {
            Ok(()) => Ok(path),
            Err(error) => Err(SinkError::Write { path, error }),
        }
    };
    Ok(Ready {
        broker_addr: address,
        ca_file: write("sink-ca.pem", certificate_pem)?,
        token_file: write("sink-token", "any")?,
        tenant: "bench".to_owned(),
        namespace: "default".to_owned(),
        pids: Pids { broker: std::process::id(), ctrl: None },
        metrics_url: None,
        controlplane_url: None,
        controlplane_token_file: None,
    })
}

/// A self-signed leaf that cannot sign others, as PEM, and a server configuration with it.
pub(crate) fn certificate() -> Result<(String, Arc<rustls::ServerConfig>), SinkError> {
    let mut params = CertificateParams::new(NAMES.map(str::to_owned).to_vec())?;
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages.push(KeyUsagePurpose::DigitalSignature);
    params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
    let key = KeyPair::generate()?;
    let certificate = params.self_signed(&key)?;
    let key_der = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let tls = server_tls(vec![certificate.der().clone()], key_der)
        .map_err(|error| SinkError::Tls(error.to_string()))?;
    Ok((certificate.pem(), Arc::new(tls)))
}
