//! The sink once more, on tokio and quinn: what our driver is measured against. Scope: one per process, one thread.
//! Owns: its certificate, its socket, its thread with a runtime of one thread.
//! Invariants: the crypto, socket buffers, windows, MTU and allocator of the sink; the same frames are taken and answered
//! by the same code; the payload is copied once into one buffer that is used again.
//! Not here: finding the ends of frames and answering them (`sink`).

#[cfg(test)]
mod tests;

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use bytes::BytesMut;
use felix_runtime::udp::{BindError, BufferSizes, ReusePortGroup};
use quinn::crypto::rustls::QuicServerConfig;
use quinn::{
    Connection, Endpoint, EndpointConfig, IdleTimeout, MtuDiscoveryConfig, RecvStream, SendStream,
    ServerConfig, TokioRuntime, TransportConfig, VarInt,
};
use tokio::sync::Notify;

use crate::machine::pin_thread;
use crate::sink::connection::{FEATURES, handle};
use crate::sink::serve::{CONN_WINDOW, CONN_WINDOW_BEFORE_AUTH, READ_BYTES, SEND_WINDOW, STREAM_WINDOW};
use crate::sink::split::{Discard, Splitter};
use crate::sink::{self, SinkCounts, SinkError, SinkOptions};
use crate::target::Ready;

/// Streams a client may have open; the broker's.
const STREAMS_MAX: u32 = 1_024;
/// The code of a stream that was given up.
const GIVEN_UP: VarInt = VarInt::from_u32(1);

/// Why there is no such sink.
#[derive(Debug, thiserror::Error)]
pub enum QuinnSinkError {
    #[error(transparent)]
    Server(#[from] SinkError),
    #[error(transparent)]
    Bind(#[from] BindError),
    #[error("the certificate cannot be used: {0}")]
    Tls(String),
    #[error("{what}: {error}")]
    Io { what: &'static str, error: io::Error },
    #[error("the thread of the sink panicked")]
    Thread,
}

/// What all streams share.
#[derive(Default)]
struct Shared {
    discard: Discard,
    counts: SinkCounts,
}

/// A running sink. Ends when dropped.
#[derive(Debug)]
pub struct QuinnSink {
    address: SocketAddr,
    certificate_pem: String,
    ending: Arc<Notify>,
    thread: Option<JoinHandle<Result<SinkCounts, QuinnSinkError>>>,
}

impl QuinnSink {
    /// Serves from here on, on a thread of its own. Spinning and the way of framing of the options are not used: tokio
    /// parks, and frames are taken as they come.
    ///
    /// # Errors
    /// No socket, no runtime, or no certificate to be had.
    pub fn start(options: &SinkOptions) -> Result<QuinnSink, QuinnSinkError> {
        let (certificate_pem, tls) = sink::certificate()?;
        let config = server_config(tls, options.mtu)?;
        let group = ReusePortGroup::bind(options.address, 1, BufferSizes::default())?;
        let address = group.local_addr;
        let socket = group.sockets.into_iter().next().ok_or(BindError::NoCores)?;
        let failed = |what| move |error| QuinnSinkError::Io { what, error };
        let socket = UdpSocket::from(socket.as_fd().try_clone_to_owned().map_err(failed("the socket"))?);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(failed("a runtime"))?;
        let ending = Arc::new(Notify::new());
        let seen = Arc::clone(&ending);
        let (cpu, mtu) = (options.cpu, options.mtu);
        let work = move || {
            if let Some(cpu) = cpu {
                pin_thread(cpu);
            }
            runtime.block_on(serve(socket, config, mtu, seen))
        };
        let thread = std::thread::Builder::new()
            .name("quinn-sink".to_owned())
            .spawn(work)
            .map_err(failed("a thread"))?;
        Ok(QuinnSink { address, certificate_pem, ending, thread: Some(thread) })
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
        sink::describe(self.address, &self.certificate_pem, folder)
    }

    /// Ends the sink and says what it took.
    ///
    /// # Errors
    /// Its thread panicked or could not serve.
    pub fn stop(mut self) -> Result<SinkCounts, QuinnSinkError> {
        self.ending.notify_one();
        self.join()
    }

    /// Serves until the process is ended from outside.
    ///
    /// # Errors
    /// Its thread panicked or could not serve.
    pub fn run(mut self) -> Result<(), QuinnSinkError> {
        self.join().map(|_| ())
    }

    fn join(&mut self) -> Result<SinkCounts, QuinnSinkError> {
        match self.thread.take() {
            Some(thread) => thread.join().map_err(|_| QuinnSinkError::Thread)?,
            None => Ok(SinkCounts::default()),
        }
    }
}

impl Drop for QuinnSink {
    fn drop(&mut self) {
        self.ending.notify_one();
        // Whoever wants to know how it ended calls `stop`.
        let _ = self.join();
    }
}

/// The settings of our driver in the words of quinn.
fn server_config(tls: Arc<rustls::ServerConfig>, mtu: u16) -> Result<ServerConfig, QuinnSinkError> {
    let crypto = QuicServerConfig::try_from(tls).map_err(|error| QuinnSinkError::Tls(error.to_string()))?;
    let window = |bytes| VarInt::from_u64(bytes).unwrap_or(VarInt::MAX);
    let mut discovery = MtuDiscoveryConfig::default();
    discovery.upper_bound(mtu);
    let mut transport = TransportConfig::default();
    transport
        .mtu_discovery_config(Some(discovery))
        .stream_receive_window(window(STREAM_WINDOW))
        .receive_window(window(CONN_WINDOW_BEFORE_AUTH))
        .send_window(SEND_WINDOW)
        .max_concurrent_bidi_streams(STREAMS_MAX.into())
        .max_idle_timeout(IdleTimeout::try_from(sink::IDLE_TIMEOUT).ok())
        .keep_alive_interval(Some(sink::KEEP_ALIVE))
        .datagram_receive_buffer_size(None)
        .datagram_send_buffer_size(0);
    let mut config = ServerConfig::with_crypto(Arc::new(crypto));
    config.transport_config(Arc::new(transport));
    Ok(config)
}

async fn serve(
    socket: UdpSocket,
    config: ServerConfig,
    mtu: u16,
    ending: Arc<Notify>,
) -> Result<SinkCounts, QuinnSinkError> {
    let failed = |error| QuinnSinkError::Io { what: "the endpoint", error };
    let mut endpoint_config = EndpointConfig::default();
    // What quinn sizes its receive buffer by: more than a datagram can have costs it half as much again.
    endpoint_config.max_udp_payload_size(mtu).map_err(|error| failed(io::Error::other(error.to_string())))?;
    let endpoint =
        Endpoint::new(endpoint_config, Some(config), socket, Arc::new(TokioRuntime)).map_err(failed)?;
    let shared = Arc::new(Mutex::new(Shared::default()));
    loop {
        tokio::select! {
            incoming = endpoint.accept() => {
                let Some(incoming) = incoming else { break };
                let shared = Arc::clone(&shared);
                tokio::spawn(async move {
                    if let Ok(connection) = incoming.await {
                        lock(&shared).counts.connections += 1;
                        accept_streams(&connection, &shared).await;
                    }
                });
            }
            () = ending.notified() => break,
        }
    }
    endpoint.close(VarInt::from_u32(0), &[]);
    let mut shared = lock(&shared);
    shared.counts.bytes = shared.discard.bytes;
    Ok(shared.counts)
}

/// Until the connection ends.
async fn accept_streams(connection: &Connection, shared: &Arc<Mutex<Shared>>) {
    while let Ok((send, recv)) = connection.accept_bi().await {
        let (connection, shared) = (connection.clone(), Arc::clone(shared));
        tokio::spawn(async move { take_stream(&connection, send, recv, &shared).await });
    }
}

/// Takes frames and answers them until the stream ends.
async fn take_stream(
    connection: &Connection,
    mut send: SendStream,
    mut recv: RecvStream,
    shared: &Mutex<Shared>,
) {
    let (mut splitter, mut authenticated, mut out) = (Splitter::default(), false, BytesMut::new());
    while let Ok(Some(chunk)) = recv.read_chunk(READ_BYTES, true).await {
        let before = authenticated;
        let taken = {
            let Shared { discard, counts } = &mut *lock(shared);
            let mut outcome = Ok(());
            let split = splitter.push(&chunk.bytes, discard, |ended| {
                if outcome.is_ok() {
                    outcome = handle(ended, &mut authenticated, &mut out, (counts, FEATURES));
                }
            });
            let taken = split.and(outcome);
            counts.broken_streams += u64::from(taken.is_err());
            taken
        };
        if taken.is_err() {
            // It is gone already when that is refused.
            let _ = recv.stop(GIVEN_UP);
            let _ = send.reset(GIVEN_UP);
            return;
        }
        if authenticated && !before {
            connection.set_receive_window(VarInt::from_u64(CONN_WINDOW).unwrap_or(VarInt::MAX));
        }
        if !out.is_empty() && send.write_chunk(out.split().freeze()).await.is_err() {
            return;
        }
    }
    // A client that has gone needs no end of the stream.
    let _ = send.finish();
}

/// Nothing panics while it holds this; what it guards is counts and a buffer of discarded bytes.
fn lock(shared: &Mutex<Shared>) -> std::sync::MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
