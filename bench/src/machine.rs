//! The machine a result is from, and getting a fair share of it. Scope: per process.
//! Invariants: nothing here fails a run: what is not to be had is left out or said on standard error.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};

/// What a result says about where it was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    pub cpu: String,
    pub cpus: usize,
    pub kernel: String,
    /// Of the folder the program lies in; `-dirty` with uncommitted changes.
    pub commit: String,
    /// `debug` builds are not worth measuring; the result says so.
    pub build: String,
}

impl Machine {
    /// Looks around.
    #[must_use]
    pub fn look() -> Machine {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = cpuinfo.lines().find(|line| line.starts_with("model name"));
        let model = model.and_then(|line| line.split_once(':')).map(|(_, name)| name.trim());
        Machine {
            cpu: model.unwrap_or("unknown").to_owned(),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            commit: program_folder().as_deref().and_then(commit_of).unwrap_or_else(|| "unknown".to_owned()),
            build: if cfg!(debug_assertions) { "with assertions" } else { "release" }.to_owned(),
        }
    }
}

fn program_folder() -> Option<PathBuf> {
    std::env::current_exe().ok()?.parent().map(Path::to_owned)
}

/// What git calls the state of `folder`; `None` outside of a repository.
#[must_use]
pub fn commit_of(folder: &Path) -> Option<String> {
    let output = Command::new("git")
        .arg("-C")
        .arg(folder)
        .args(["describe", "--always", "--dirty", "--abbrev=12"])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let text = text.trim();
    (output.status.success() && !text.is_empty()).then(|| text.to_owned())
}

/// Processes that ran or wanted to, averaged over the last minute; 0 where the kernel does not tell.
#[must_use]
pub fn load_average() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|first| first.parse().ok()).unwrap_or(0.0)
}

/// CPUs that a thread can be kept on: what the kernel's sets of C programs hold.
pub const CPUS_MAX: usize = 1_024;

/// Keeps the calling thread on `cpu`; false when that is refused, or there is no such CPU.
#[must_use]
pub fn try_pin(cpu: usize) -> bool {
    cpu < CPUS_MAX && core_affinity::set_for_current(core_affinity::CoreId { id: cpu })
}

/// Keeps the calling thread on `cpu`. Says so and goes on when that is refused.
pub fn pin_thread(cpu: usize) {
    if !try_pin(cpu) {
        eprintln!("felix-bench: cannot stay on CPU {cpu}; figures will be noisier");
    }
}

/// Makes this process and those it starts a scheduling group of their own with the greatest weight, so that other
/// sessions of the machine do not take its CPUs. Needs privileges and a process that leads no process group; without
/// them it says so and goes on.
pub fn raise_priority() {
    let leads = leads_session(&fs::read_to_string("/proc/self/stat").unwrap_or_default());
    if !leads && rustix::process::setsid().is_err() {
        eprintln!(
            "felix-bench: not in a session of its own; start it with `setsid` for a fair share of the CPUs"
        );
        return;
    }
    // A session of its own has no terminal to be interrupted from: end when whoever started us ends.
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM));
    if let Err(error) = fs::write("/proc/self/autogroup", "-20") {
        eprintln!("felix-bench: the scheduling group keeps its weight: {error}");
    }
}

/// Whether the process that this `/proc/<pid>/stat` is of leads its session. Read there and not asked with `getsid`:
/// the session of a process may be led from outside its PID namespace, and then its number is 0.
fn leads_session(stat: &str) -> bool {
    let Some((pid, rest)) = stat.split_once(' ') else { return false };
    // The name of the program is in parentheses and may hold any character, these included.
    let fields = rest.rsplit_once(')').map_or("", |(_, fields)| fields);
    // state, parent, process group, session
    fields.split_whitespace().nth(3) == Some(pid)
}

#[cfg(test)]
mod tests {
    use super::leads_session;

    #[test]
    fn a_session_may_be_led_by_oneself_by_another_or_from_outside_the_namespace() {
        assert!(leads_session("71 (felix-bench) R 70 71 71 0 -1 4194304"));
        assert!(leads_session("71 (a) 9 9 (b) R 70 71 71 0 -1 4194304"));
        assert!(!leads_session("71 (felix-bench) R 70 71 12 0 -1 4194304"));
        assert!(!leads_session("71 (felix-bench) R 0 0 0 0 -1 4194304"));
        assert!(!leads_session(""));
    }
}
