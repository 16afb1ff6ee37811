//! A control plane, a broker and what clients need to reach it. Scope: one per test.
//! Invariants: when the world ends, the broker must still have been well, unless the test ended it itself.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Instant;

use felix_bench::cluster::binary;
use tempfile::TempDir;

use super::DEADLINE;
use super::plane::{Plane, wait_for_json};
use super::raw::Raw;

pub const NODE: &str = "b";
pub const TENANT: &str = "demo";
pub const NAMESPACE: &str = "default";

/// See the module.
pub struct World {
    pub plane: Plane,
    pub broker: Broker,
    /// May publish to and subscribe to every stream of `TENANT`.
    pub token: String,
    pub folder: TempDir,
}

impl World {
    /// A broker with `args` beside the usual ones, the tenant, a stream `s` of four shards and a stream `good` of one.
    pub fn start(args: &[&str]) -> World {
        let folder = tempfile::tempdir().unwrap();
        let plane = Plane::start(folder.path());
        let token = plane.tenant(TENANT, NAMESPACE);
        let broker = Broker::start(&folder, &plane.url, &plane.node_token(NODE), args);
        let world = World { plane, broker, token, folder };
        world.stream("s", 4);
        world.stream("good", 1);
        world
    }

    /// Makes a stream of the tenant.
    pub fn stream(&self, name: &str, shards: u32) {
        let (status, body) = self.plane.try_stream(TENANT, NAMESPACE, name, shards);
        assert!(status < 300, "{status} {body}");
    }

    /// A client with one connection.
    pub async fn client(&self) -> Raw {
        Raw::connect(self.broker.addr, &self.broker.certificate()).await.expect("a connection")
    }

    /// A client that has waited until the stream is served.
    pub async fn client_of(&self, stream: &str) -> Raw {
        let client = self.client().await;
        client.until_served(TENANT, &self.token, NAMESPACE, stream).await;
        client
    }
}

/// The broker's process.
pub struct Broker {
    child: Child,
    pub addr: SocketAddr,
    pub metrics_url: String,
    log: PathBuf,
    certificate: PathBuf,
    /// The test ended it, or expects it to end.
    pub may_end: bool,
}

impl Broker {
    /// Starts it and waits until it serves.
    pub fn start(folder: &TempDir, plane_url: &str, node_token: &str, args: &[&str]) -> Broker {
        let ready = folder.path().join("broker.json");
        let _ = std::fs::remove_file(&ready);
        let mut command = broker_command(folder, plane_url, node_token, args);
        let log = folder.path().join("broker.log");
        let file = std::fs::File::options().create(true).append(true).open(&log).unwrap();
        let child = command.stderr(file).spawn().unwrap();
        let mut broker = Broker {
            child,
            addr: SocketAddr::from(([0, 0, 0, 0], 0)),
            metrics_url: String::new(),
            log,
            certificate: folder.path().join("broker.pem"),
            may_end: false,
        };
        let said = wait_for_json(&ready, || broker.log());
        broker.addr = said["broker_addr"].as_str().unwrap().parse().unwrap();
        broker.metrics_url = said["metrics_url"].as_str().unwrap().to_owned();
        broker
    }

    /// What clients trust.
    pub fn certificate(&self) -> String {
        std::fs::read_to_string(&self.certificate).unwrap()
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Memory it uses now, in MiB.
    pub fn memory_mib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.id())).unwrap();
        let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).unwrap();
        line.split_whitespace().next().unwrap().parse::<u64>().unwrap() / 1_024
    }

    /// The sum over all cores of a metric, by its name without labels; nothing when it is not there.
    pub fn metric(&self, name: &str) -> Option<u64> {
        let (status, text) = super::plane::call("GET", &format!("{}/metrics", self.metrics_url), None, None);
        assert_eq!(status, 200);
        let text = text.as_str().unwrap_or_default().to_owned();
        let values: Vec<u64> = text
            .lines()
            .filter(|l| l.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{'])))
            .filter_map(|l| l.rsplit(' ').next()?.parse::<f64>().ok())
            .map(|v| v as u64)
            .collect();
        (!values.is_empty()).then(|| values.iter().sum())
    }

    pub fn signal(&mut self, name: &str) {
        self.may_end = true;
        assert!(Command::new("kill").args([name, &self.id().to_string()]).status().unwrap().success());
    }

    /// Waits for its end.
    pub fn ended(&mut self) -> ExitStatus {
        self.may_end = true;
        let end = Instant::now() + DEADLINE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < end, "the broker did not end");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// It runs, and nothing in it has panicked.
    pub fn assert_well(&mut self) {
        let ended = self.child.try_wait().unwrap();
        let log = self.log();
        assert!(ended.is_none() && !log.contains("panicked"), "{ended:?}: {log}");
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let well = self.may_end || matches!(self.child.try_wait(), Ok(None));
        let _ = self.child.kill();
        let _ = self.child.wait();
        let log = self.log();
        if !std::thread::panicking() {
            assert!(well && !log.contains("panicked"), "the broker died: {log}");
        } else if !well || log.contains("panicked") {
            eprintln!("the broker's log: {log}");
        }
    }
}

/// The program with everything a test's broker needs; its standard error is the caller's to set.
pub fn broker_command(folder: &TempDir, plane_url: &str, node_token: &str, args: &[&str]) -> Command {
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("node.token"), node_token).unwrap();
    let mut command = Command::new(binary("felix-broker").unwrap());
    command.env_clear().stdin(Stdio::null()).stdout(Stdio::null());
    let defaults = [
        "--cores=0,1",
        "--pin=false",
        "--spin-us=0",
        "--quic-bind=127.0.0.1:0",
        "--metrics-bind=127.0.0.1:0",
        "--controlplane-sync-interval-ms=100",
        "--max-connections-per-ip=100000",
    ];
    let flag_of = |flag: &str| flag.split('=').next().unwrap().to_owned();
    let given: Vec<String> = args.iter().map(|a| flag_of(a)).collect();
    command.args(defaults.iter().filter(|d| !given.contains(&flag_of(d))));
    let has = |flag: &str| given.iter().any(|g| g == flag);
    if !has("--tls-cert") {
        command.arg("--tls-cert-export").arg(path("broker.pem"));
    }
    if !has("--data-dir") {
        command.arg("--data-dir").arg(path("data"));
    }
    command.arg("--node-id").arg(NODE).arg("--controlplane-url").arg(plane_url);
    command.arg("--node-token-file").arg(path("node.token")).arg("--ready-file").arg(path("broker.json"));
    command.args(args);
    command
}
