//! One broker process: configuration, certificate, control-plane client, metrics, ordered end. Scope: per process, on the
//! admin thread (a single-threaded tokio runtime); cores run beside it and are spoken to by lanes only.
//! Owns: the start and the end of everything.
//! Invariants: nothing listens before the configuration was checked; cores are ended before the metrics listener.
//! Not here: what a core does (`turn`).

mod admin;
mod agent;
mod args;
pub mod config;
mod http;
mod identity;
mod inspect;
mod links;
mod log_names;
mod logs;
mod memory;
mod metrics;
mod ready_file;
mod shutdown;
mod start;
mod status;
pub(crate) mod storage;
mod tenants;
mod tls;
mod transport;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use felix_runtime::Clock;
use felix_runtime::udp::BindError;
use felix_wire::id::NodeId;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use self::admin::{Admin, Certificate, EndSignals};
use self::agent::{Agent, AgentSettings, ApiError, ControlPlane, Credential};
pub use self::args::{ArgsError, Invocation, parse};
use self::config::{Config, ConfigError, Settings};
pub use self::inspect::{InspectLog, Shown};
use self::log_names::LogNames;
use self::logs::LogError;
use self::metrics::Metrics;
use self::ready_file::{Ready, ReadyFile};
use self::shutdown::Shutdown;
use self::start::{Cores, Machine, StartedCores};
use self::status::NodeStatus;
use self::storage::{KnownRoots, LogBook};
use self::tenants::SharedTenants;
use self::tls::{CertificateFiles, FileWatch, TlsError};
use self::transport::TransportKeys;
use crate::turn::CoreStart;

/// How long the metrics listener may take to answer what is open when everything else has ended.
const HTTP_END: Duration = Duration::from_secs(1);
/// How long threads of cores that were told to stop are waited for.
const JOIN_BUDGET: Duration = Duration::from_secs(2);

/// Why the broker did not start, or ended by itself.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Log(#[from] LogError),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error("control plane: {0}")]
    ControlPlane(#[from] ApiError),
    /// What the machine lacks; one line each, with what to do about it.
    #[error("this machine cannot run the broker:\n  {}", .0.join("\n  "))]
    Machine(Vec<String>),
    #[error("quic_bind: {0}")]
    Bind(#[from] BindError),
    #[error(transparent)]
    Core(#[from] CoreStart),
    #[error("a core ended by itself")]
    CoreEnded,
    /// The logs cannot be used.
    #[error("durable storage: {0}")]
    Storage(String),
    #[error("{what}: {error}")]
    Io { what: String, error: std::io::Error },
}

impl NodeError {
    /// Whether `Node::run` has logged it; the others came before logging, or are for the one who typed the command.
    pub fn is_logged(&self) -> bool {
        !matches!(self, NodeError::Config(_) | NodeError::Log(_))
    }

    /// Whether it would be well with more space on a drive.
    fn is_no_space(&self) -> bool {
        matches!(self, NodeError::Io { error, .. } if error.kind() == std::io::ErrorKind::StorageFull)
    }

    fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> NodeError {
        |error| NodeError::Io { what: what.into(), error }
    }
}

/// The broker.
pub struct Node;

impl Node {
    /// Serves until SIGTERM or SIGINT, then drains; a second signal ends at once. Uses the calling thread as admin thread.
    ///
    /// # Errors
    /// What is wrong with the configuration or the machine, before anything is served; or a core that ended by itself.
    pub fn run(config: Config) -> Result<(), NodeError> {
        config.settings.check()?;
        let _logs = logs::install(config.settings.log_format, &config.settings.log_level)?;
        for warning in config.warnings.iter().chain(&config.settings.doubts()) {
            tracing::warn!("{warning}");
        }
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(NodeError::io("admin thread"))?;
        let ended = runtime.block_on(serve(&config.settings));
        // A call that still runs (name resolution) must not hold the end up.
        runtime.shutdown_background();
        match &ended {
            Ok(()) => tracing::info!("ended"),
            Err(error) if error.is_logged() => tracing::error!(%error, "ended"),
            Err(_) => {}
        }
        ended
    }
}

async fn serve(settings: &Settings) -> Result<(), NodeError> {
    let clock = Clock::start();
    let signals = EndSignals::install().map_err(NodeError::io("signals"))?;
    let node_id = settings.node_id.as_deref().unwrap_or_default();
    let node = NodeId::new(node_id)
        .map_err(|error| NodeError::Config(ConfigError::Refused(vec![format!("node_id: {error}")])))?;
    let machine = Machine::look(settings)?;
    let cores = machine.cores();
    let (certificate, tls) = certificate(settings)?;
    let api = control_plane(settings)?;
    let group = machine.bind(settings)?;
    let listener = TcpListener::bind(settings.metrics_bind)
        .await
        .map_err(NodeError::io(format!("metrics_bind {}", settings.metrics_bind)))?;
    let metrics_addr = listener.local_addr().map_err(NodeError::io("metrics_bind"))?;
    let broker_addr = group.local_addr;
    let data_dir = settings.data_dir.as_deref();
    let keys = TransportKeys::load(data_dir.map(Path::new))
        .map_err(NodeError::io(format!("data_dir {}: transport keys", data_dir.unwrap_or_default())))?;
    let status = Arc::new(NodeStatus::new(cores));
    let registration = identity::registration(settings, node_id, broker_addr);
    tracing::info!(%broker_addr, metrics = %metrics_addr, cores, node = node_id, "starting");
    let roots = storage::make_roots(&settings.storage_dirs())
        .map_err(|(dir, error)| NodeError::Storage(format!("storage_dir {}: {error}", dir.display())))?;
    let known_roots = KnownRoots::new(data_dir.map(Path::new));
    known_roots.check(&roots).map_err(NodeError::Storage)?;
    let kernel_boot = storage::boot_id().map_err(NodeError::io("the kernel's boot id"))?;
    let logs = LogBook::new(roots.clone(), kernel_boot);
    let started = Cores { settings, machine: &machine, keys: &keys, tls, clock, roots: &roots, kernel_boot };
    let started = started.start(group)?;
    let StartedCores { links, from_cores, counters, joins } = started;
    let tenants = SharedTenants::new(cores, u32::try_from(settings.tenant_metrics_max).unwrap_or(u32::MAX));
    let (end_http, http_ended) = oneshot::channel();
    let http = tokio::spawn(http::serve(
        listener,
        Metrics::new(counters, Arc::clone(&status), tenants.clone()),
        Arc::clone(&status),
        http_ended,
    ));
    let agent_settings = AgentSettings {
        node,
        cores,
        shards_per_core: u32::try_from(settings.shards_per_core).unwrap_or(u32::MAX),
        sync_interval: Duration::from_millis(settings.controlplane_sync_interval_ms),
        registration,
    };
    let mut agent = Agent::new(agent_settings, api, clock, Arc::clone(&status));
    agent.name_logs(LogNames::new(roots.clone()));
    let predrain = Duration::from_millis(settings.shutdown_predrain_ms);
    let mut admin = Admin {
        clock,
        status,
        agent,
        links,
        logs,
        known_roots,
        from_cores,
        tenants,
        certificate,
        signals,
        shutdown: Shutdown::new(cores, predrain, settings.drain_timeout()),
        when_ready: || write_ready_file(settings, node_id, broker_addr, metrics_addr),
    };
    let outcome = admin.run().await;
    // Also when the loop ended by itself.
    admin.links.stop();
    start::join(joins, JOIN_BUDGET).await;
    let _ = end_http.send(());
    let _ = tokio::time::timeout(HTTP_END, http).await;
    outcome
}

/// The certificate to start with, and what to watch for its replacement.
fn certificate(settings: &Settings) -> Result<(Option<Certificate>, Arc<rustls::ServerConfig>), NodeError> {
    if let (Some(cert), Some(key)) = (&settings.tls_cert, &settings.tls_key) {
        let (files, tls) = CertificateFiles::load(Path::new(cert), Path::new(key))?;
        let watch = FileWatch::start(&files.folders());
        return Ok((Some(Certificate { files, watch }), tls));
    }
    let generated = tls::generate()?;
    tracing::warn!("no tls_cert: serving with a certificate generated for development, on loopback only");
    if let Some(path) = &settings.tls_cert_export {
        ready_file::write_private(Path::new(path), generated.pem.as_bytes())
            .map_err(NodeError::io(format!("tls_cert_export {path}")))?;
    }
    Ok((None, generated.config))
}

fn control_plane(settings: &Settings) -> Result<ControlPlane, NodeError> {
    let ca = match &settings.controlplane_ca {
        Some(path) => Some(std::fs::read(path).map_err(NodeError::io(format!("controlplane_ca {path}")))?),
        None => None,
    };
    let credential = match (&settings.node_token, &settings.node_token_file) {
        (Some(token), _) => Credential::Fixed(token.clone()),
        (None, file) => Credential::File(file.clone().unwrap_or_default().into()),
    };
    let url = settings.controlplane_url.as_deref().unwrap_or_default();
    Ok(ControlPlane::new(url, ca.as_deref(), credential)?)
}

fn write_ready_file(
    settings: &Settings,
    node_id: &str,
    broker: SocketAddr,
    metrics: SocketAddr,
) -> Result<Option<ReadyFile>, NodeError> {
    let Some(path) = &settings.ready_file else { return Ok(None) };
    let ready = Ready {
        broker_addr: identity::local_address(broker).to_string(),
        metrics_url: format!("http://{}", identity::local_address(metrics)),
        node_id,
        pid: std::process::id(),
    };
    let written = ReadyFile::write(Path::new(path), &ready);
    written.map(Some).map_err(NodeError::io(format!("ready_file {path}")))
}
