//! A broker with durable streams that is killed and started again over the same folder. Scope: one `Stage` per test.
//! Owns: the control plane, the folder, and the port and certificate that every start of the broker has.
//! Invariants: at most one broker runs; it ends with the stage. When the test fails, the folder is kept and named.
//! Not here: what is published (`ledger`), what is asserted.
#![allow(dead_code, reason = "each test program uses its part")]

pub mod ledger;
pub mod places;
pub mod reading;
pub mod writing;

use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use felix_sdk::Client;
use felix_wire::control::{Retention, StreamCreate};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::support::plane::{Plane, call, stream_row};
use crate::support::world::{NAMESPACE, NODE, TENANT, broker_command};

/// Whatever is waited for takes less than this on a busy machine.
pub const DEADLINE: Duration = Duration::from_secs(60);
/// Between two looks at a process.
const LOOK: Duration = Duration::from_millis(2);
/// Said by a broker that was started while the kernel, or another program, held the port of the last one.
const PORT_IN_USE: &str = "is in use by another process";
/// Said when an operation has taken 5 s.
const DISK_IS_SLOW: &str = "the disk does not answer";

/// Logs of small files, so that rolls, spills and recycling come often.
pub const SMALL_FILES: [&str; 7] = [
    "--fsync=on_commit",
    "--segment-bytes=1MiB",
    "--commit-slot-bytes=1MiB",
    "--sub-queue-policy=block",
    "--disk-low=64MiB",
    "--log-memory=32MiB",
    "--retention-check-ms=100",
];

/// See the module.
pub struct Stage {
    pub plane: Plane,
    folder: TempDir,
    args: Vec<String>,
    port: u16,
}

impl Stage {
    /// A control plane with the tenant; no broker yet. `args` are the broker's at every start.
    pub fn set(args: &[&str]) -> Stage {
        let folder = tempfile::tempdir().unwrap();
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        std::fs::write(folder.path().join("leaf.pem"), made.cert.pem()).unwrap();
        std::fs::write(folder.path().join("leaf.key"), made.signing_key.serialize_pem()).unwrap();
        let plane = Plane::start(folder.path());
        plane.tenant(TENANT, NAMESPACE);
        let mut args: Vec<String> = args.iter().map(|&arg| arg.to_owned()).collect();
        for (flag, name) in [("--tls-cert", "leaf.pem"), ("--tls-key", "leaf.key")] {
            args.push(format!("{flag}={}", folder.path().join(name).display()));
        }
        Stage { plane, folder, args, port: 0 }
    }

    /// Starts the broker and waits until it serves; `failpoint` is what ends it, as `FELIX_FAILPOINT` says. The kernel may
    /// hold the port of a killed process for some milliseconds; then it is started again.
    ///
    /// # Errors
    /// It ended before it served.
    pub fn start(&mut self, failpoint: Option<&str>) -> Result<Running, ExitStatus> {
        let end = Instant::now() + DEADLINE;
        loop {
            let said = self.log().len();
            let started = self.start_once(failpoint);
            let in_use = || self.log()[said..].contains(PORT_IN_USE);
            if started.is_ok() || Instant::now() > end || !in_use() {
                return started;
            }
        }
    }

    fn start_once(&mut self, failpoint: Option<&str>) -> Result<Running, ExitStatus> {
        let ready = self.path("broker.json");
        let _ = std::fs::remove_file(&ready);
        let bind = format!("--quic-bind=127.0.0.1:{}", self.port);
        let args: Vec<&str> = self.args.iter().map(String::as_str).chain([bind.as_str()]).collect();
        let mut command = broker_command(&self.folder, &self.plane.url, &self.plane.node_token(NODE), &args);
        if let Some(failpoint) = failpoint {
            command.env("FELIX_FAILPOINT", failpoint);
        }
        let log = File::options().create(true).append(true).open(self.path("broker.log")).unwrap();
        let mut running = Running { child: command.stderr(log).spawn().unwrap(), metrics_url: String::new() };
        let end = Instant::now() + DEADLINE;
        loop {
            if let Some(status) = running.child.try_wait().unwrap() {
                return Err(status);
            }
            if let Ok(text) = std::fs::read(&ready) {
                let said: serde_json::Value = serde_json::from_slice(&text).unwrap();
                let addr: std::net::SocketAddr = said["broker_addr"].as_str().unwrap().parse().unwrap();
                self.port = addr.port();
                running.metrics_url = said["metrics_url"].as_str().unwrap().to_owned();
                return Ok(running);
            }
            assert!(Instant::now() < end, "the broker never served\n{}", self.log());
            std::thread::sleep(LOOK);
        }
    }

    /// Starts it where nothing is to end it.
    pub fn start_well(&mut self) -> Running {
        let started = self.start(None);
        started.unwrap_or_else(|status| panic!("the broker ended with {status}\n{}", self.log()))
    }

    /// Makes a durable stream.
    pub fn stream(&self, name: &str, shards: u32) {
        let row = StreamCreate { durable: true, ..stream_row(name, shards) };
        let (status, body) = self.plane.try_stream_of(TENANT, NAMESPACE, &row);
        assert!(status < 300, "{status} {body}");
    }

    /// Makes a durable stream that keeps at most so many bytes of each shard.
    pub fn stream_of_bytes(&self, name: &str, shards: u32, bytes: u64) {
        let retention = Retention { max_size_bytes: Some(bytes), max_age_seconds: None };
        let row = StreamCreate { durable: true, retention, ..stream_row(name, shards) };
        let (status, body) = self.plane.try_stream_of(TENANT, NAMESPACE, &row);
        assert!(status < 300, "{status} {body}");
    }

    /// Deletes a stream.
    pub fn delete(&self, name: &str) {
        let (status, body) = self.plane.delete_stream(TENANT, NAMESPACE, name);
        assert!(status < 300, "{status} {body}");
    }

    /// Says how many bytes of each shard of a stream are kept from now on.
    pub fn keep_bytes(&self, name: &str, bytes: u64) {
        let retention = serde_json::json!({"retention": {"max_size_bytes": bytes}});
        let (status, body) = self.plane.patch_stream(TENANT, NAMESPACE, name, &retention);
        assert!(status < 300, "{status} {body}");
    }

    /// A client with a token for the next hour.
    pub async fn client(&self) -> Client {
        let all = format!("stream:{TENANT}/*/*");
        let rights = [format!("stream.publish:{all}"), format!("stream.subscribe:{all}")];
        let token = self.plane.token(TENANT, "app", &[&rights[0], &rights[1]], 3_600, "felix-broker");
        let end = Instant::now() + DEADLINE;
        loop {
            let connected = Client::builder()
                .broker(format!("127.0.0.1:{}", self.port))
                .ca_file(self.path("leaf.pem"))
                .token(token.clone())
                .tenant(TENANT)
                .namespace(NAMESPACE)
                .connect()
                .await;
            match connected {
                Ok(client) => return client,
                Err(error) => assert!(Instant::now() < end, "{error}\n{}", self.log()),
            }
        }
    }

    /// A file or folder of the stage.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Folders of logs on the disk, by name.
    pub fn log_folders(&self) -> Vec<String> {
        let of =
            |entry: std::io::Result<std::fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
        let mut names: Vec<String> = std::fs::read_dir(self.path("data/log/shards"))
            .map(|dir| dir.map(of).collect())
            .unwrap_or_default();
        names.sort();
        names
    }

    /// What every broker so far has said.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.path("broker.log")).unwrap_or_default()
    }

    /// No broker so far has panicked or found damage. One that was started too early may have said that its port is held, and
    /// one beside busy neighbours that its disk took long; an answer that never comes ends a test by its own deadline.
    pub fn assert_no_complaint(&self) {
        let log = self.log();
        let bad = |line: &&str| line.contains("panicked") || line.contains("ERROR");
        let harmless = |line: &&str| line.contains(PORT_IN_USE) || line.contains(DISK_IS_SLOW);
        let bad = log.lines().filter(|line| !harmless(line)).find(bad);
        assert!(bad.is_none(), "{}", bad.unwrap_or_default());
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.folder.disable_cleanup(true);
            eprintln!("the folder is kept: {}", self.folder.path().display());
        }
    }
}

/// A broker that serves. Killed when dropped.
pub struct Running {
    child: Child,
    pub metrics_url: String,
}

impl Running {
    /// Ends it at once and waits for that.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        self.child.wait().unwrap();
    }

    /// Asks it to end.
    pub fn terminate(&self) {
        let pid = Pid::from_raw(self.child.id().cast_signed()).unwrap();
        kill_process(pid, Signal::TERM).unwrap();
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    /// How it ended, if it does so in time.
    pub fn wait_for(&mut self, longest: Duration) -> Option<ExitStatus> {
        let end = Instant::now() + longest;
        loop {
            let status = self.ended();
            if status.is_some() || Instant::now() >= end {
                return status;
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Waits for its end.
    pub fn wait(&mut self) -> ExitStatus {
        let end = Instant::now() + DEADLINE;
        loop {
            if let Some(status) = self.ended() {
                return status;
            }
            assert!(Instant::now() < end, "the broker did not end");
            std::thread::sleep(LOOK);
        }
    }

    /// Asks it to end and waits until it has, in order.
    pub fn stop(&mut self) {
        self.terminate();
        let status = self.wait();
        assert!(status.success(), "{status}");
    }

    /// The sum over all cores of a metric, by its name without labels.
    pub fn metric(&self, name: &str) -> f64 {
        let (status, text) = call("GET", &format!("{}/metrics", self.metrics_url), None, None);
        assert_eq!(status, 200);
        let of = |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{']));
        let lines = text.as_str().unwrap_or_default().lines().filter(of);
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether SIGKILL ended it.
pub fn was_killed(status: ExitStatus) -> bool {
    status.signal() == Some(Signal::KILL.as_raw())
}
