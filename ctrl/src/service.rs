//! The process: listeners, loops, ready file, ordered end. Scope: per process.
//! Owns: sockets and tasks. Invariants: each listener holds a bounded number of connections, and a connection that is
//! slow to send a request head is closed; after a signal the process ends within its budgets, whatever clients do; a
//! second signal ends it at once.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use serde::Serialize;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;

use crate::api;
use crate::config::Config;
use crate::limits::{CONNECTIONS_MAX, HEAD_TIMEOUT};
use crate::plane::Plane;
use crate::reconcile;
use crate::store::{MemoryStore, SledStore, Store, StoreError};

/// Pause after a failed accept (no file descriptor left), so that the loop does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Why the process ended, or did not start.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    #[error("cannot listen on {addr}: {error}")]
    Bind { addr: SocketAddr, error: io::Error },
    #[error("cannot write the ready file: {0}")]
    ReadyFile(io::Error),
    #[error("cannot handle signals: {0}")]
    Signals(io::Error),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What the ready file says: the real addresses, also for port 0.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Ready {
    pub controlplane_url: String,
    pub metrics_url: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bootstrap_url: Option<String>,
    pub pid: u32,
}

/// Opens the store and serves until a signal. Returns once everything is closed.
pub async fn run(config: &Config) -> Result<(), ServiceError> {
    let mut signals = Signals::listen()?;
    let store: Arc<dyn Store> = match config.store_folder() {
        Some(folder) => Arc::new(SledStore::open(&folder)?),
        None => Arc::new(MemoryStore::default()),
    };
    let plane = Plane::open(store, config.settings())?;
    let running = start(config, Arc::clone(&plane)).await?;
    if let Some(path) = &config.ready_file {
        write_atomically(path, &running.ready).map_err(ServiceError::ReadyFile)?;
    }
    tracing::info!(url = running.ready.controlplane_url, "serving");
    signals.next().await;
    tracing::info!("draining");
    tokio::select! {
        () = end(config, plane, running) => {}
        () = signals.next() => tracing::warn!("a second signal: ending at once"),
    }
    if let Some(path) = &config.ready_file {
        // The addresses in it are nobody's any more; a file that is gone already is as good.
        let _ = std::fs::remove_file(path);
    }
    Ok(())
}

/// Listeners and loops that run.
pub struct Running {
    pub ready: Ready,
    public: Listening,
    bootstrap: Option<Listening>,
    operations: Listening,
    loops: Vec<JoinHandle<()>>,
}

/// Binds every listener, then starts serving and the loops.
pub async fn start(config: &Config, plane: Arc<Plane>) -> Result<Running, ServiceError> {
    let public = bind(config.bind).await?;
    let operations = bind(config.metrics_bind).await?;
    let bootstrap = match config.bootstrap_listener() {
        Some(addr) => Some(bind(addr).await?),
        None => None,
    };
    for (name, (addr, _)) in [("API", &public), ("metrics", &operations)] {
        if !addr.ip().is_loopback() {
            tracing::warn!(%addr, "the {name} listener speaks plain HTTP on a reachable address");
        }
    }
    let url = |addr: SocketAddr| format!("http://{addr}");
    let ready = Ready {
        controlplane_url: url(public.0),
        metrics_url: url(operations.0),
        bootstrap_url: bootstrap.as_ref().map(|(addr, _)| url(*addr)),
        pid: std::process::id(),
    };
    let loops = vec![
        tokio::spawn(reconcile::place_shards(Arc::clone(&plane))),
        tokio::spawn(reconcile::sweep_leases(Arc::clone(&plane))),
    ];
    let serve = |(_, listener), router| Listening::begin(listener, router);
    Ok(Running {
        ready,
        public: serve(public, api::public(Arc::clone(&plane))),
        bootstrap: bootstrap.map(|bound| serve(bound, api::bootstrap(Arc::clone(&plane)))),
        operations: serve(operations, api::operations(plane)),
        loops,
    })
}

/// The order of ending: not ready, a pause, no new requests, the running ones, the loops, probes and metrics last.
pub async fn end(config: &Config, plane: Arc<Plane>, running: Running) {
    plane.begin_drain();
    tokio::time::sleep(config.predrain()).await;
    let requests = async {
        running.public.close().await;
        if let Some(bootstrap) = running.bootstrap {
            bootstrap.close().await;
        }
        for task in running.loops {
            // A loop that panicked has said so.
            let _ = task.await;
        }
    };
    if tokio::time::timeout(config.drain_timeout(), requests).await.is_err() {
        tracing::warn!("requests were still running at the end of the drain budget");
    }
    running.operations.stop();
}

async fn bind(addr: SocketAddr) -> Result<(SocketAddr, TcpListener), ServiceError> {
    let failed = |error| ServiceError::Bind { addr, error };
    let listener = TcpListener::bind(addr).await.map_err(failed)?;
    Ok((listener.local_addr().map_err(failed)?, listener))
}

/// One listener and its connections.
struct Listening {
    closing: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Listening {
    fn begin(listener: TcpListener, router: Router) -> Listening {
        let closing = watch::Sender::new(false);
        let task = tokio::spawn(serve(listener, router, closing.subscribe()));
        Listening { closing, task }
    }

    /// Takes no new connection or request, and waits for the running ones.
    async fn close(self) {
        self.closing.send_replace(true);
        let _ = self.task.await;
    }

    /// Ends it without waiting.
    fn stop(self) {
        self.task.abort();
    }
}

async fn serve(listener: TcpListener, router: Router, mut closing: watch::Receiver<bool>) {
    let slots = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let connections = GracefulShutdown::new();
    loop {
        let accepted = async {
            let slot = Arc::clone(&slots).acquire_owned().await.expect("the semaphore is never closed");
            (slot, listener.accept().await)
        };
        let (slot, accepted) = tokio::select! {
            accepted = accepted => accepted,
            _ = closing.changed() => break,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "a connection was not accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIMEOUT)
            .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router.clone()));
        let connection = connections.watch(connection);
        tokio::spawn(async move {
            // A connection that breaks is the client's business.
            let _ = connection.await;
            drop(slot);
        });
    }
    drop(listener);
    connections.shutdown().await;
}

/// SIGTERM and SIGINT.
struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

impl Signals {
    fn listen() -> Result<Signals, ServiceError> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Signals {
            terminate: signal(SignalKind::terminate()).map_err(ServiceError::Signals)?,
            interrupt: signal(SignalKind::interrupt()).map_err(ServiceError::Signals)?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Writes a JSON file that is complete or absent, readable by its owner only.
fn write_atomically(path: &Path, value: &impl Serialize) -> io::Result<()> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let mut name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_os_string();
    name.push(format!(".{}.tmp", std::process::id()));
    let temporary = path.with_file_name(name);
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
    file.write_all(&serde_json::to_vec_pretty(value)?)?;
    file.sync_all()?;
    std::fs::rename(&temporary, path)
}
