//! Real processes on loopback, for the bench and for whole-system tests. Scope: the processes one caller started.
//! Owns: those processes; they are ended by their ids when the owner is dropped.
//! Invariants: a process that was started is never left running by us, also when it did not become ready or we are
//! killed; what it says goes to a file beside its data, and the end of that file is part of the error when it fails.
//! Not here: what the processes are asked to do (`load`, tests).

mod process;

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::target::{Ready, TargetError};
pub use process::{Process, end_by_id};

/// Where the binaries are, when they are not beside the running program.
pub const BIN_DIR_ENV: &str = "FELIX_BIN_DIR";
/// A load reads its token once, and may last for hours.
const TOKEN_TTL: [&str; 2] = ["--token-ttl", "24h"];
/// From start to ready file: certificates, a catalog, a first stream.
const READY_DEADLINE: Duration = Duration::from_secs(60);
/// From SIGTERM to the end of an orderly stop; then SIGKILL.
const END_DEADLINE: Duration = Duration::from_secs(30);

/// Why there is no cluster.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    #[error("no program `{name}` in {}; build it, or name its folder in {BIN_DIR_ENV}", .looked.iter().map(|p| p.display().to_string()).collect::<Vec<_>>().join(" or "))]
    NoBinary { name: String, looked: Vec<PathBuf> },
    #[error("{what}: {error}")]
    Io { what: String, error: io::Error },
    /// It ended, or did not write its ready file in time.
    #[error("{what} did not become ready: {why}\n{log}")]
    NotReady { what: String, why: String, log: String },
    #[error("`{command}` failed: {log}")]
    Command { command: String, log: String },
    #[error(transparent)]
    Ready(#[from] TargetError),
}

/// The path of one of our programs: in the folder of `FELIX_BIN_DIR`, beside the running program, or one folder up (where
/// tests find what was built with them).
///
/// # Errors
/// It is in none of them.
pub fn binary(name: &str) -> Result<PathBuf, ClusterError> {
    let mut looked: Vec<PathBuf> = std::env::var_os(BIN_DIR_ENV).map(PathBuf::from).into_iter().collect();
    if let Some(folder) = std::env::current_exe().ok().as_deref().and_then(Path::parent) {
        looked.push(folder.to_owned());
        looked.extend(folder.parent().map(Path::to_owned));
    }
    match looked.iter().map(|folder| folder.join(name)).find(|path| path.is_file()) {
        Some(path) => Ok(path),
        None => Err(ClusterError::NoBinary { name: name.to_owned(), looked }),
    }
}

/// A control plane and a broker under `felix dev`. Ended in order when dropped.
#[derive(Debug)]
pub struct DevBroker {
    process: Process,
    ready_file: PathBuf,
    ready: Ready,
}

impl DevBroker {
    /// Starts `felix dev` on free ports and waits until it is ready. `dir` takes its data, its ready file and its log and
    /// is kept; `cores` is as its `--cores` takes them, `extra_args` follow (`--set key=value` for the broker). Its tokens hold
    /// for a day unless `extra_args` say `--token-ttl`. Call it on a thread that lives as long as the broker is wanted: the kernel ends the broker with that thread.
    ///
    /// # Errors
    /// There is no such program, or it did not become ready within a minute; nothing is left running then.
    pub fn start(dir: &Path, cores: &str, extra_args: &[&str]) -> Result<DevBroker, ClusterError> {
        let program = binary("felix")?;
        let ready_file = dir.join("ready.json");
        let mut command = Command::new(&program);
        command
            // It ends with us, however we end; its servers end with it.
            .args(["tied-exec", &std::process::id().to_string()])
            .arg(&program)
            .args(["--", "dev"])
            .arg("--data-dir")
            .arg(dir.join("data"))
            .args(["--cores", cores, "--port", "0", "--ready-file"])
            .arg(&ready_file)
            .args(if extra_args.contains(&TOKEN_TTL[0]) { &[][..] } else { &TOKEN_TTL })
            .args(extra_args)
            // What is started for a run must not become what a person's commands talk to.
            .env("FELIX_CONTEXT_DIR", dir.join("context"));
        let mut process = Process::start("felix dev", command, &dir.join("felix-dev.log"))?;
        let ready = process.wait_ready(&ready_file, READY_DEADLINE)?;
        Ok(DevBroker { process, ready_file, ready })
    }

    /// What the ready file said when it was last read.
    #[must_use]
    pub fn ready(&self) -> &Ready {
        &self.ready
    }

    /// The file itself, for `--dev`.
    #[must_use]
    pub fn ready_file(&self) -> &Path {
        &self.ready_file
    }

    /// Reads the ready file again: a broker that died is started anew with another id.
    ///
    /// # Errors
    /// The file is not there at this moment.
    pub fn reread(&mut self) -> Result<&Ready, ClusterError> {
        self.ready = Ready::read(&self.ready_file)?;
        Ok(&self.ready)
    }

    /// What `felix dev` and its children have said so far.
    #[must_use]
    pub fn log(&self) -> String {
        self.process.log()
    }

    /// Makes a stream of `shards` shards in memory, by the command line as a person would.
    ///
    /// # Errors
    /// The command refuses; its words are in the error.
    pub fn create_stream(&self, name: &str, shards: u32) -> Result<(), ClusterError> {
        self.create(name, shards, &[])
    }

    /// The same for a durable stream.
    ///
    /// # Errors
    /// As `create_stream`.
    pub fn create_durable_stream(&self, name: &str, shards: u32) -> Result<(), ClusterError> {
        self.create(name, shards, &["--durable"])
    }

    /// Makes a cache of `shards` shards. It has logs.
    ///
    /// # Errors
    /// As `create_stream`.
    pub fn create_cache(&self, name: &str, shards: u32) -> Result<(), ClusterError> {
        let shards = shards.to_string();
        noun_command("cache", &self.ready_file, &["create", name, "--shards", &shards])
    }

    fn create(&self, name: &str, shards: u32, extra: &[&str]) -> Result<(), ClusterError> {
        let shards = shards.to_string();
        stream_command(&self.ready_file, &[&["create", name, "--shards", &shards], extra].concat())
    }

    /// Ends it in order and says with which status `felix dev` left; `None` when it had to be killed.
    #[must_use]
    pub fn stop(mut self) -> Option<i32> {
        self.end()
    }

    fn end(&mut self) -> Option<i32> {
        // A restart may have changed the ids.
        if let Ok(ready) = Ready::read(&self.ready_file) {
            self.ready = ready;
        }
        let status = self.process.end(END_DEADLINE);
        if status.is_none() {
            // It could not end its children.
            for pid in std::iter::once(self.ready.pids.broker).chain(self.ready.pids.ctrl) {
                end_by_id(pid, "felix-");
            }
        }
        status
    }
}

/// `felix stream ARGS` against what wrote `ready_file`, as a person would.
///
/// # Errors
/// The command refuses; its words are in the error.
pub fn stream_command(ready_file: &Path, args: &[&str]) -> Result<(), ClusterError> {
    noun_command("stream", ready_file, args)
}

/// `felix NOUN ARGS`, the same way.
///
/// # Errors
/// As `stream_command`.
pub fn noun_command(noun: &str, ready_file: &Path, args: &[&str]) -> Result<(), ClusterError> {
    let output = Command::new(binary("felix")?)
        .arg(noun)
        .args(args)
        .arg("--dev")
        .arg(ready_file)
        .output()
        .map_err(|error| ClusterError::Io { what: format!("felix {noun}"), error })?;
    if output.status.success() {
        return Ok(());
    }
    Err(ClusterError::Command {
        command: format!("felix {noun} {}", args.join(" ")),
        log: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}

impl Drop for DevBroker {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

/// A process of ours that serves and keeps nothing: a sink, an echo. Ended when dropped.
#[derive(Debug)]
pub struct SinkProcess {
    process: Process,
    ready: Ready,
}

impl SinkProcess {
    /// Starts `program` (a `felix-bench`) as a sink with `args` and waits until it serves. `dir` takes its files.
    ///
    /// # Errors
    /// It cannot be started or did not become ready; nothing is left running then.
    pub fn start(program: &Path, dir: &Path, args: &[String]) -> Result<SinkProcess, ClusterError> {
        SinkProcess::start_as("sink", program, dir, args)
    }

    /// The same for another server of the program, such as `echo`.
    ///
    /// # Errors
    /// As `start`.
    pub fn start_as(
        server: &str,
        program: &Path,
        dir: &Path,
        args: &[String],
    ) -> Result<SinkProcess, ClusterError> {
        let ready_file = dir.join(format!("{server}.json"));
        // One that ended before it in the same folder has left its own.
        if let Err(error) = std::fs::remove_file(&ready_file)
            && error.kind() != io::ErrorKind::NotFound
        {
            return Err(ClusterError::Io { what: ready_file.display().to_string(), error });
        }
        let mut command = Command::new(program);
        command.arg(server).arg("--ready-file").arg(&ready_file).args(args);
        let name = format!("felix-bench {server}");
        let mut process = Process::start(&name, command, &dir.join(format!("felix-{server}.log")))?;
        let ready = process.wait_ready(&ready_file, READY_DEADLINE)?;
        Ok(SinkProcess { process, ready })
    }

    #[must_use]
    pub fn ready(&self) -> &Ready {
        &self.ready
    }
}

impl Drop for SinkProcess {
    fn drop(&mut self) {
        let _ = self.process.end(END_DEADLINE);
    }
}
