//! One server as a child process: start it, wait until it is ready, end it. Scope: per server.
//! Owns: the process and its log file.
//! Invariants: the server ends with `felix dev`, however that ends; signals of the terminal do not reach it, so the
//! order of the end is ours; an end that is asked for is over within its budget.

use std::ffi::OsString;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde::de::DeserializeOwned;
use tokio::process::{Child, Command};
use tokio::time::Instant;

use crate::cli::failure::{Failure, Outcome};
use crate::cli::tied;

/// From the start of a server to its ready file.
const READY_TIMEOUT: Duration = Duration::from_secs(30);
/// Between two looks for the ready file.
const LOOK_PAUSE: Duration = Duration::from_millis(10);
/// End of the log that is shown when a server does not start.
const LOG_TAIL_BYTES: u64 = 4_096;
const LOG_TAIL_LINES: usize = 6;
/// Folder of the server programs, when they are not beside this one.
const BIN_DIR_ENV: &str = "FELIX_BIN_DIR";
/// Variables that reach the servers; the other ones of ours are for commands, and would change a development server.
const PASSED_ON: [&str; 2] = ["FELIX_LOG_LEVEL", "FELIX_LOG_FORMAT"];

/// How a server is started.
#[derive(Clone, Debug)]
pub struct Launch {
    /// For people and file names: `ctrl`, `broker`.
    pub name: &'static str,
    pub program: PathBuf,
    pub arguments: Vec<OsString>,
    pub environment: Vec<(&'static str, String)>,
    pub ready_file: PathBuf,
    pub log_file: PathBuf,
}

/// A server that was started and not yet seen to end.
pub struct Server {
    name: &'static str,
    child: Child,
    pid: u32,
    started: Instant,
    ready_file: PathBuf,
    log_file: PathBuf,
}

/// Finds a server program beside this one, or in `FELIX_BIN_DIR`.
///
/// # Errors
/// `Other` that says where it was looked for.
pub fn find_program(name: &str) -> Outcome<PathBuf> {
    let folder = match std::env::var_os(BIN_DIR_ENV).filter(|folder| !folder.is_empty()) {
        Some(folder) => PathBuf::from(folder),
        None => {
            let own = std::env::current_exe().map_err(|error| Failure::other(error.to_string()))?;
            own.parent().map(Path::to_owned).unwrap_or_default()
        }
    };
    let program = folder.join(name);
    if program.is_file() {
        Ok(program)
    } else {
        Err(Failure::other(format!(
            "there is no {name} in {}: build it, or set {BIN_DIR_ENV}",
            folder.display()
        )))
    }
}

impl Launch {
    /// Starts the server. Call it on the thread that lives as long as the process: the server ends with that.
    ///
    /// # Errors
    /// `Other`: no process, or no log file.
    pub fn start(&self) -> Outcome<Server> {
        let failed =
            |what: &Path, error: std::io::Error| Failure::other(format!("{}: {error}", what.display()));
        // What an earlier process left says nothing about this one.
        match std::fs::remove_file(&self.ready_file) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(failed(&self.ready_file, error));
            }
            _ => {}
        }
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(&self.log_file)
            .map_err(|error| failed(&self.log_file, error))?;
        let own = std::env::current_exe().map_err(|error| Failure::other(error.to_string()))?;
        let mut command = Command::new(own);
        command
            .arg(tied::COMMAND)
            .arg(std::process::id().to_string())
            .arg(&self.program)
            // What follows is the server's, also where a flag of ours has the same name.
            .arg("--")
            .args(&self.arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .process_group(0)
            .kill_on_drop(true);
        for (name, _) in std::env::vars_os() {
            let ours = name.to_string_lossy().starts_with("FELIX_");
            if ours && !PASSED_ON.iter().any(|passed| name == *passed) {
                command.env_remove(name);
            }
        }
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        let child = command.spawn().map_err(|error| failed(&self.program, error))?;
        let pid = child.id().ok_or_else(|| Failure::other("the process has no id"))?;
        Ok(Server {
            name: self.name,
            child,
            pid,
            started: Instant::now(),
            ready_file: self.ready_file.clone(),
            log_file: self.log_file.clone(),
        })
    }
}

impl Server {
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Whether it is there and has not ended.
    pub fn runs(server: &mut Option<Server>) -> bool {
        server.as_mut().is_some_and(|server| matches!(server.child.try_wait(), Ok(None)))
    }

    /// Returns when it has ended; at once when there is none. Can be cancelled.
    pub async fn wait(server: &mut Option<Server>) {
        if let Some(server) = server {
            server.ended().await;
        }
    }

    /// How it ended and how long it ran. One that was never there ended at once.
    pub async fn last_words(server: Option<Server>) -> (String, Duration) {
        match server {
            Some(mut server) => (server.ended().await, server.started.elapsed()),
            None => ("it did not start".to_owned(), Duration::ZERO),
        }
    }

    /// Waits for the ready file, and gives what is in it.
    ///
    /// # Errors
    /// `Other` with the end of its log: it ended, or took too long.
    pub async fn ready<T: DeserializeOwned>(&mut self) -> Outcome<T> {
        let deadline = Instant::now() + READY_TIMEOUT;
        loop {
            if let Ok(text) = std::fs::read(&self.ready_file) {
                return serde_json::from_slice(&text)
                    .map_err(|error| Failure::other(format!("{}: {error}", self.ready_file.display())));
            }
            tokio::select! {
                status = self.ended() => return Err(self.explain(&format!("ended ({status})"))),
                () = tokio::time::sleep(LOOK_PAUSE) => {}
            }
            if Instant::now() >= deadline {
                return Err(self.explain(&format!("was not ready within {} s", READY_TIMEOUT.as_secs())));
            }
        }
    }

    /// Waits for its end and says how it ended. Can be cancelled.
    async fn ended(&mut self) -> String {
        match self.child.wait().await {
            Ok(status) => describe(status),
            Err(error) => error.to_string(),
        }
    }

    /// Ends it with SIGKILL, and waits until it is dead.
    pub async fn kill(&mut self) {
        // Killing fails only for a process that is gone.
        let _ = self.child.kill().await;
    }

    /// Asks it to end and waits; when the budget is over it is killed. True when it ended in order.
    pub async fn stop(mut self, budget: Duration) -> bool {
        // An error means that it ended already.
        if let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::TERM);
        }
        match tokio::time::timeout(budget, self.child.wait()).await {
            Ok(status) => status.is_ok_and(|status| status.success()),
            Err(_) => {
                self.kill().await;
                false
            }
        }
    }

    fn explain(&self, what: &str) -> Failure {
        let tail = tail(&self.log_file);
        let program = if self.name == "ctrl" { "felix-ctrl" } else { "felix-broker" };
        Failure::other(format!("{program} {what}; the end of {}:\n{tail}", self.log_file.display()))
    }
}

fn describe(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("status {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "for no known reason".to_owned(),
    }
}

/// The last lines of a log.
fn tail(path: &Path) -> String {
    let read = || {
        let mut file = std::fs::File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(LOG_TAIL_BYTES)))?;
        let mut bytes = Vec::new();
        file.take(LOG_TAIL_BYTES).read_to_end(&mut bytes)?;
        Ok::<_, std::io::Error>(String::from_utf8_lossy(&bytes).into_owned())
    };
    let text = read().unwrap_or_default();
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let shown = &lines[lines.len().saturating_sub(LOG_TAIL_LINES)..];
    shown.iter().map(|line| format!("  {line}")).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_log_is_a_few_whole_lines() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let text: String = (0..2_000).map(|line| format!("line {line}\n")).collect();
        std::fs::write(&path, text).unwrap();
        let shown = tail(&path);
        assert_eq!(shown.lines().count(), LOG_TAIL_LINES);
        assert!(shown.ends_with("line 1999"));
        assert_eq!(tail(&folder.path().join("missing")), "");
    }

    #[test]
    fn a_program_that_is_not_there_is_named_with_its_folder() {
        let message = find_program("felix-nothing").unwrap_err().message;
        assert!(message.contains("felix-nothing") && message.contains(BIN_DIR_ENV), "{message}");
    }
}
