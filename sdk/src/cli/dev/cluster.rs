//! The two servers of a development cluster together. Scope: per `felix dev`.
//! Owns: both processes, their addresses, the token files, and what is told to others.
//! Invariants: a server that is started again gets the addresses it had; others are told only of servers that are
//! ready; the broker ends before the control plane.
//! Not here: one process (`server`), when to start again (`restarts`).

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::Deserialize;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::certificates::Certificates;
use super::folder::Folder;
use super::plan::Plan;
use super::restarts::Restarts;
use super::server::{Launch, Server, find_program};
use super::tokens::Tokens;
use super::{FIRST_STREAMS, NAMESPACE, NODE_ID, STREAM, TENANT, seed};
use crate::cli::api::Api;
use crate::cli::dev_file::{DevFile, Pids};
use crate::cli::failure::{Failure, Outcome};
use crate::cli::output::remark;
use crate::cli::private_file;
use crate::cli::settings::Secret;
use crate::client::Client;

/// What the broker needs to end beside its drain budget.
const BROKER_STOP_SLACK: Duration = Duration::from_secs(8);
/// Drain budget of the control plane, which answers waiting requests at once.
const CTRL_DRAIN_MS: u64 = 2_000;
/// From asking the control plane to end to killing it.
const CTRL_STOP: Duration = Duration::from_secs(6);
/// From a ready broker to one that serves the first streams.
const SERVED_TIMEOUT: Duration = Duration::from_secs(15);
const SERVED_PAUSE: Duration = Duration::from_millis(20);

/// Ready file of `felix-ctrl`.
#[derive(Clone, Debug, Deserialize)]
struct CtrlReady {
    controlplane_url: String,
    metrics_url: String,
    bootstrap_url: String,
}

/// Ready file of `felix-broker`.
#[derive(Clone, Debug, Deserialize)]
struct BrokerReady {
    broker_addr: String,
    metrics_url: String,
}

/// Ports to ask for: what was planned, later what was given.
#[derive(Clone, Copy, Debug)]
struct Ports {
    controlplane: u16,
    controlplane_metrics: u16,
    bootstrap: u16,
    broker: u16,
    broker_metrics: u16,
}

/// Ends the broker of a cluster from elsewhere.
#[derive(Clone, Debug)]
pub struct BrokerKiller(mpsc::Sender<oneshot::Sender<()>>);

impl BrokerKiller {
    /// Ends it with SIGKILL and waits until it is dead. A cluster that is kept starts it again at once.
    ///
    /// # Errors
    /// `Other`: nobody keeps the cluster any more.
    pub async fn kill(&self) -> Outcome {
        let gone = || Failure::other("the cluster is not kept any more");
        let (done, dead) = oneshot::channel();
        self.0.send(done).await.map_err(|_| gone())?;
        dead.await.map_err(|_| gone())
    }
}

/// See the module.
pub struct Cluster {
    plan: Plan,
    folder: Folder,
    certificates: Certificates,
    leaf_due: SystemTime,
    tokens: Tokens,
    ports: Ports,
    ctrl: Option<Server>,
    broker: Option<Server>,
    ctrl_restarts: Restarts,
    broker_restarts: Restarts,
    /// Answers of the servers that run.
    ctrl_ready: Option<CtrlReady>,
    broker_ready: Option<BrokerReady>,
    /// Files that tell others, in the order they are written.
    told: Vec<PathBuf>,
    /// The context, which another cluster may take over.
    context: Option<PathBuf>,
    killer: BrokerKiller,
    /// Those who wait for the death of the broker.
    kills: mpsc::Receiver<oneshot::Sender<()>>,
}

impl Cluster {
    /// Prepares the folder; nothing runs yet.
    ///
    /// # Errors
    /// `Other`: a folder in use, a port that is taken, a disk that cannot be written.
    pub fn prepare(plan: Plan) -> Outcome<Cluster> {
        let folder = Folder::open(&plan.data_dir)?;
        plan.check_ports()?;
        let certificates = Certificates::prepare(&folder)?;
        let secret: String = rand::random::<[u8; 32]>().iter().map(|byte| format!("{byte:02x}")).collect();
        private_file::write(&folder.bootstrap_secret(), secret.as_bytes())
            .map_err(|error| Failure::other(format!("{}: {error}", folder.bootstrap_secret().display())))?;
        if let Some(path) = &plan.ready_file {
            // What a killed one left: nothing is ready now. There may be none.
            let _ = std::fs::remove_file(path);
        }
        for server in ["ctrl", "broker"] {
            // A log is of one `felix dev`; there may be none yet.
            let _ = std::fs::remove_file(folder.log_file(server));
        }
        let (killer, kills) = mpsc::channel(1);
        Ok(Cluster {
            tokens: Tokens::new(&folder, plan.token_ttl),
            ports: Ports {
                controlplane: plan.port,
                controlplane_metrics: 0,
                bootstrap: 0,
                broker: plan.port,
                broker_metrics: plan.metrics_port(),
            },
            plan,
            folder,
            certificates,
            leaf_due: SystemTime::now() + Certificates::renew_after(),
            ctrl: None,
            broker: None,
            ctrl_restarts: Restarts::default(),
            broker_restarts: Restarts::default(),
            ctrl_ready: None,
            broker_ready: None,
            told: Vec::new(),
            context: None,
            killer: BrokerKiller(killer),
            kills,
        })
    }

    /// What ends the broker while `keep` runs.
    pub fn broker_killer(&self) -> BrokerKiller {
        self.killer.clone()
    }

    /// Starts both servers and waits until a stream can be used. `told` are the files to tell others through, and `context`
    /// one more, which is taken from whoever has it.
    ///
    /// # Errors
    /// `Other` with the end of the log of the server that did not start.
    pub async fn start(&mut self, told: Vec<PathBuf>, context: Option<PathBuf>) -> Outcome {
        self.told = told;
        self.context = context;
        self.start_ctrl().await?;
        let bootstrap = self.bootstrap()?;
        Self::blocking(move || seed::tenant(&bootstrap)).await?;
        self.renew_tokens().await?;
        let api = self.api()?;
        Self::blocking(move || seed::catalog(&api, &FIRST_STREAMS)).await?;
        self.start_broker().await?;
        // The context first: whoever waits for the ready file may use either.
        if let Some(path) = &self.context {
            write(&self.dev_file()?, path)?;
        }
        self.tell()
    }

    /// Keeps everything running. Can be cancelled.
    ///
    /// # Errors
    /// A server that could not be brought back. Never returns otherwise.
    pub async fn keep(&mut self) -> Failure {
        loop {
            let outcome = if !Server::runs(&mut self.ctrl) {
                self.recover_ctrl().await
            } else if !Server::runs(&mut self.broker) {
                self.recover_broker().await
            } else {
                self.watch().await
            };
            if let Err(failure) = outcome {
                return failure;
            }
        }
    }

    /// Waits until a server ended or something is due, and renews what is due.
    async fn watch(&mut self) -> Outcome {
        let pause = self.tokens.pause();
        tokio::select! {
            () = Server::wait(&mut self.ctrl) => return Ok(()),
            () = Server::wait(&mut self.broker) => return Ok(()),
            Some(dead) = self.kills.recv() => {
                if let Some(broker) = &mut self.broker {
                    broker.kill().await;
                }
                // Whoever asked may be gone.
                let _ = dead.send(());
                return Ok(());
            }
            () = tokio::time::sleep(pause) => {}
        }
        if self.tokens.is_due()
            && let Err(failure) = self.renew_tokens().await
        {
            remark(&format!("tokens were not renewed, trying again: {failure}"));
        }
        if self.leaf_due <= SystemTime::now() {
            self.certificates.renew_leaf()?;
            self.leaf_due = SystemTime::now() + Certificates::renew_after();
        }
        Ok(())
    }

    async fn recover_ctrl(&mut self) -> Outcome {
        let (how, age) = Server::last_words(self.ctrl.take()).await;
        let Some(pause) = self.ctrl_restarts.ended(age) else {
            return Err(Failure::other(format!("felix-ctrl keeps ending ({how})")));
        };
        remark(&format!("felix-ctrl ended ({how}), starting it again"));
        tokio::time::sleep(pause).await;
        let again = async {
            self.start_ctrl().await?;
            self.tell()
        };
        report(again.await);
        Ok(())
    }

    async fn recover_broker(&mut self) -> Outcome {
        let (how, age) = Server::last_words(self.broker.take()).await;
        let Some(pause) = self.broker_restarts.ended(age) else {
            return Err(Failure::other(format!("felix-broker keeps ending ({how})")));
        };
        remark(&format!("felix-broker ended ({how}), starting it again"));
        tokio::time::sleep(pause).await;
        let again = async {
            self.start_broker().await?;
            self.tell()
        };
        report(again.await);
        Ok(())
    }

    async fn start_ctrl(&mut self) -> Outcome {
        let launch = self.ctrl_launch()?;
        let server = self.ctrl.insert(launch.start()?);
        let ready: CtrlReady = match server.ready().await {
            Ok(ready) => ready,
            Err(failure) => {
                self.ctrl = None;
                return Err(failure);
            }
        };
        self.ports.controlplane = port_of(&ready.controlplane_url)?;
        self.ports.controlplane_metrics = port_of(&ready.metrics_url)?;
        self.ports.bootstrap = port_of(&ready.bootstrap_url)?;
        self.ctrl_ready = Some(ready);
        Ok(())
    }

    async fn start_broker(&mut self) -> Outcome {
        let launch = self.broker_launch()?;
        let server = self.broker.insert(launch.start()?);
        let ready: BrokerReady = match server.ready().await {
            Ok(ready) => ready,
            Err(failure) => {
                self.broker = None;
                return Err(failure);
            }
        };
        self.ports.broker = port_of(&ready.broker_addr)?;
        self.ports.broker_metrics = port_of(&ready.metrics_url)?;
        self.broker_ready = Some(ready);
        self.served().await
    }

    /// Waits until the broker knows the first streams.
    async fn served(&self) -> Outcome {
        let file = self.dev_file()?;
        let deadline = Instant::now() + SERVED_TIMEOUT;
        loop {
            let asked = async {
                let client = connect(&file).await?;
                let mut unknown = None;
                for stream in FIRST_STREAMS {
                    let shards = client.stream_shards(stream.name).await?.shards;
                    unknown = unknown.or((shards == 0).then_some(stream.name));
                }
                client.close().await;
                Ok::<_, Failure>(unknown)
            };
            let seen = match asked.await {
                Ok(Some(name)) => Failure::other(format!("the broker does not know the stream `{name}`")),
                Ok(None) => return Ok(()),
                Err(failure) => failure,
            };
            if Instant::now() >= deadline {
                return Err(seen.while_doing("the broker started and does not serve"));
            }
            tokio::time::sleep(SERVED_PAUSE).await;
        }
    }

    fn ctrl_launch(&self) -> Outcome<Launch> {
        let secret = Secret::File(self.folder.bootstrap_secret()).read()?;
        let ready_file = self.folder.ready_file("ctrl");
        let mut arguments: Vec<OsString> =
            ["--dev", "--bootstrap-enabled", "--bootstrap-dev-tokens"].map(OsString::from).to_vec();
        let mut flag = |name: &str, value: OsString| arguments.extend([OsString::from(name), value]);
        flag("--data-dir", self.folder.data_folder("ctrl").into());
        flag("--ready-file", ready_file.clone().into());
        flag("--bind", loopback(self.ports.controlplane));
        flag("--metrics-bind", loopback(self.ports.controlplane_metrics));
        flag("--bootstrap-bind", loopback(self.ports.bootstrap));
        Ok(Launch {
            name: "ctrl",
            program: find_program("felix-ctrl")?,
            arguments,
            environment: vec![
                ("FELIX_BOOTSTRAP_TOKEN", secret),
                ("FELIX_SHUTDOWN_DRAIN_TIMEOUT_MS", CTRL_DRAIN_MS.to_string()),
            ],
            ready_file,
            log_file: self.folder.log_file("ctrl"),
        })
    }

    fn broker_launch(&self) -> Outcome<Launch> {
        let ready_file = self.folder.ready_file("broker");
        let ctrl = self.ctrl_ready()?;
        let mut settings: BTreeMap<String, OsString> =
            self.plan.broker_settings.iter().map(|(key, value)| (key.clone(), value.into())).collect();
        let mut set = |key: &str, value: OsString| settings.insert(key.to_owned(), value);
        set("quic_bind", loopback(self.ports.broker));
        set("metrics_bind", loopback(self.ports.broker_metrics));
        set("cores", self.plan.cores.clone().into());
        if self.plan.has_logs {
            set("data_dir", self.folder.data_folder("broker").into());
        }
        set("ready_file", ready_file.clone().into());
        set("tls_cert", self.certificates.leaf_file.clone().into());
        set("tls_key", self.certificates.leaf_key_file.clone().into());
        set("controlplane_url", ctrl.controlplane_url.clone().into());
        set("node_id", NODE_ID.into());
        set("node_token_file", self.tokens.node_file.clone().into());
        let arguments = settings.into_iter().map(|(key, value)| {
            let mut argument = OsString::from(format!("--{}=", key.replace('_', "-")));
            argument.push(value);
            argument
        });
        Ok(Launch {
            name: "broker",
            program: find_program("felix-broker")?,
            arguments: arguments.collect(),
            environment: Vec::new(),
            ready_file,
            log_file: self.folder.log_file("broker"),
        })
    }

    async fn renew_tokens(&mut self) -> Outcome {
        let bootstrap = self.bootstrap()?;
        let mut tokens = self.tokens.clone();
        let (tokens, outcome) = tokio::task::spawn_blocking(move || {
            let outcome = tokens.renew(&bootstrap);
            (tokens, outcome)
        })
        .await
        .map_err(|error| Failure::other(error.to_string()))?;
        self.tokens = tokens;
        outcome
    }

    /// Runs a request away from the thread that watches signals and servers.
    async fn blocking(request: impl FnOnce() -> Outcome + Send + 'static) -> Outcome {
        tokio::task::spawn_blocking(request).await.map_err(|error| Failure::other(error.to_string()))?
    }

    fn bootstrap(&self) -> Outcome<Api> {
        Api::bootstrap(&self.ctrl_ready()?.bootstrap_url, Secret::File(self.folder.bootstrap_secret()))
    }

    fn api(&self) -> Outcome<Api> {
        Api::bearer(&self.ctrl_ready()?.controlplane_url, Secret::File(self.tokens.controlplane_file.clone()))
    }

    fn ctrl_ready(&self) -> Outcome<&CtrlReady> {
        self.ctrl_ready.as_ref().ok_or_else(|| Failure::other("the control plane never was ready"))
    }

    /// What others need to know.
    ///
    /// # Errors
    /// `Other` before both servers were ready once.
    pub fn dev_file(&self) -> Outcome<DevFile> {
        let ctrl = self.ctrl_ready()?;
        let broker =
            self.broker_ready.as_ref().ok_or_else(|| Failure::other("the broker never was ready"))?;
        let pid = |server: &Option<Server>| server.as_ref().map_or(0, Server::pid);
        Ok(DevFile {
            broker_addr: broker.broker_addr.clone(),
            controlplane_url: ctrl.controlplane_url.clone(),
            metrics_url: broker.metrics_url.clone(),
            ca_file: self.certificates.ca_file.clone(),
            token_file: self.tokens.broker_file.clone(),
            controlplane_token_file: self.tokens.controlplane_file.clone(),
            tenant: TENANT.to_owned(),
            namespace: NAMESPACE.to_owned(),
            stream: STREAM.to_owned(),
            bootstrap_url: ctrl.bootstrap_url.clone(),
            bootstrap_token_file: self.folder.bootstrap_secret(),
            data_dir: self.folder.root().to_owned(),
            pids: Pids { ctrl: pid(&self.ctrl), broker: pid(&self.broker) },
        })
    }

    /// Writes the files, whole; the context as long as it is of this cluster.
    fn tell(&self) -> Outcome {
        let file = self.dev_file()?;
        let context = self.context.iter().filter(|path| self.is_own(path));
        self.told.iter().chain(context).try_for_each(|path| write(&file, path))
    }

    /// The folder says whose a file is: no two clusters share one.
    fn is_own(&self, path: &Path) -> bool {
        DevFile::read(path).is_ok_and(|held| held.data_dir == self.folder.root())
    }

    /// Ends both servers in order. True when each ended by itself within its budget.
    pub async fn stop(mut self) -> bool {
        // Nothing is ready any more. A file that is gone already is as good; a context that another cluster has saved since
        // stays.
        for path in self.told.iter().chain(&self.context) {
            if self.plan.ready_file.as_ref() == Some(path) || self.is_own(path) {
                let _ = std::fs::remove_file(path);
            }
        }
        let broker = match self.broker.take() {
            Some(server) => server.stop(self.plan.drain + BROKER_STOP_SLACK).await,
            None => true,
        };
        let ctrl = match self.ctrl.take() {
            Some(server) => server.stop(CTRL_STOP).await,
            None => true,
        };
        broker && ctrl
    }
}

fn write(file: &DevFile, path: &Path) -> Outcome {
    file.write(path).map_err(|error| Failure::other(format!("{}: {error}", path.display())))
}

/// A failed attempt to start a server again: told, and followed by the next attempt.
fn report(outcome: Outcome) {
    match outcome {
        Ok(()) => remark("ready again"),
        Err(failure) => remark(&format!("not ready again: {failure}")),
    }
}

/// A client of what a `felix dev` runs.
///
/// # Errors
/// What the client said.
pub async fn connect(file: &DevFile) -> Outcome<Client> {
    let builder = Client::builder()
        .broker(&file.broker_addr)
        .ca_file(&file.ca_file)
        .tenant(&file.tenant)
        .namespace(&file.namespace)
        .token_file(&file.token_file);
    Ok(builder.connect().await?)
}

fn loopback(port: u16) -> OsString {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port)).to_string().into()
}

/// The port of `ip:port` or `http://ip:port`.
fn port_of(text: &str) -> Outcome<u16> {
    let address = text.strip_prefix("http://").unwrap_or(text).trim_end_matches('/');
    let parsed: Result<SocketAddr, _> = address.parse();
    parsed.map(|address| address.port()).map_err(|_| Failure::other(format!("`{text}` is no address")))
}
