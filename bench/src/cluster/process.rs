//! One child process with its output in a file. Scope: one per child.
//! Invariants: dropped means ended and waited for; a process is signalled by its id only while it is known to be ours.
//! Not here: what its ready file means (`target`).

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::ClusterError;
use crate::target::Ready;

/// Between two looks at a condition.
const LOOK: Duration = Duration::from_millis(5);
/// How much of a log an error shows.
const LOG_TAIL_BYTES: usize = 4_096;

/// See the module.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
    ended: Option<Option<i32>>,
}

impl Process {
    /// Starts `command` with its output, both kinds, in the file `log`.
    ///
    /// # Errors
    /// The file cannot be made or the program not be started.
    pub fn start(name: &str, mut command: Command, log: &Path) -> Result<Process, ClusterError> {
        let failed = |error| ClusterError::Io { what: name.to_owned(), error };
        let output = File::create(log).map_err(failed)?;
        let errors = output.try_clone().map_err(failed)?;
        let child = command.stdin(Stdio::null()).stdout(output).stderr(errors).spawn().map_err(failed)?;
        Ok(Process { name: name.to_owned(), child, log: log.to_owned(), ended: None })
    }

    /// Waits until `file` is there and whole.
    ///
    /// # Errors
    /// The process ended first, or `deadline` passed. What it said is part of the error.
    pub fn wait_ready(&mut self, file: &Path, deadline: Duration) -> Result<Ready, ClusterError> {
        let missing = format!("no usable {}", file.display());
        self.wait_for(&missing, deadline, || Ready::read(file).ok())
    }

    /// Waits until `look` finds something; `missing` says in an error what it did not find.
    ///
    /// # Errors
    /// The process ended first, or `deadline` passed. What it said is part of the error.
    pub fn wait_for<T>(
        &mut self,
        missing: &str,
        deadline: Duration,
        mut look: impl FnMut() -> Option<T>,
    ) -> Result<T, ClusterError> {
        let begun = Instant::now();
        loop {
            if let Some(found) = look() {
                return Ok(found);
            }
            let why = match self.child.try_wait() {
                Ok(Some(status)) => format!("it ended, {status}"),
                Ok(None) if begun.elapsed() < deadline => {
                    std::thread::sleep(LOOK);
                    continue;
                }
                Ok(None) => format!("{missing} after {} s", deadline.as_secs()),
                Err(error) => error.to_string(),
            };
            return Err(ClusterError::NotReady { what: self.name.clone(), why, log: self.tail() });
        }
    }

    /// Everything it has said so far.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read(&self.log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }

    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Asks it to end, and kills it when it has not within `deadline`. Its status, or `None` when it was killed by a
    /// signal. Again: the same answer.
    pub fn end(&mut self, deadline: Duration) -> Option<i32> {
        if let Some(status) = self.ended {
            return status;
        }
        let begun = Instant::now();
        signal(self.child.id(), Signal::TERM);
        let status = loop {
            match self.child.try_wait() {
                Ok(Some(status)) => break status.code(),
                Ok(None) if begun.elapsed() < deadline => std::thread::sleep(LOOK),
                Ok(None) | Err(_) => {
                    let _ = self.child.kill();
                    break self.child.wait().ok().and_then(|status| status.code());
                }
            }
        };
        self.ended = Some(status);
        status
    }

    fn tail(&self) -> String {
        let log = self.log();
        let mut start = log.len().saturating_sub(LOG_TAIL_BYTES);
        while !log.is_char_boundary(start) {
            start += 1;
        }
        log[start..].to_owned()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.end(Duration::from_secs(5));
    }
}

/// Kills a process that is not our child, if its command line still names `program`: ids are used again.
pub fn end_by_id(pid: u32, program: &str) {
    let command = fs::read(crate::proc::folder(pid).join("cmdline")).unwrap_or_default();
    if String::from_utf8_lossy(&command).contains(program) {
        signal(pid, Signal::KILL);
    }
}

fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        // One that has ended meanwhile is fine.
        let _ = kill_process(pid, signal);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, folder: &Path) -> Process {
        let mut command = Command::new("sh");
        command.arg("-c").arg(script).current_dir(folder);
        Process::start("a script", command, &folder.join("log")).unwrap()
    }

    #[test]
    fn a_process_that_ends_early_is_an_error_with_its_words() {
        let folder = tempfile::tempdir().unwrap();
        let mut process = shell("echo nothing works; exit 3", folder.path());
        let error = process.wait_ready(&folder.path().join("ready"), Duration::from_secs(20)).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("nothing works") && text.contains("exit status: 3"), "{text}");
    }

    #[test]
    fn a_process_that_will_not_end_is_killed() {
        let folder = tempfile::tempdir().unwrap();
        let mut process = shell("trap '' TERM; echo up; while :; do read x </dev/zero; done", folder.path());
        let begun = Instant::now();
        while process.log().is_empty() {
            assert!(begun.elapsed() < Duration::from_secs(20), "it did not start");
            std::thread::sleep(LOOK);
        }
        assert_eq!(process.end(Duration::from_millis(50)), None);
        assert_eq!(process.end(Duration::from_millis(50)), None, "the same answer again");
    }

    #[test]
    fn a_half_written_ready_file_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let whole = r#"{"broker_addr":"127.0.0.1:1","ca_file":"a","token_file":"b","tenant":"t","namespace":"n","pids":{"broker":2}}"#;
        std::fs::write(folder.path().join("ready"), "{").unwrap();
        let script = format!("printf '%s' '{whole}' > ready; exec sleep 60");
        let mut process = shell(&script, folder.path());
        let ready = process.wait_ready(&folder.path().join("ready"), Duration::from_secs(20)).unwrap();
        assert_eq!(ready.pids.broker, 2);
        assert_eq!(process.end(Duration::from_secs(20)), None, "sleep ends by the signal");
    }
}
