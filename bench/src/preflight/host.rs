//! Limits and settings of the machine as the kernel tells them. Scope: plain values.
//! Not here: whether they are enough (`felix_runtime::probe`, the parent).

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::Path;

use felix_runtime::probe::Facts;
use serde::{Deserialize, Serialize};

use crate::machine::load_average;

/// See the module.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Host {
    /// Why io_uring cannot be used; `None` when it can.
    pub io_uring_error: Option<String>,
    /// Bytes of memory that may be locked; `None` is without limit.
    pub memlock_bytes: Option<u64>,
    pub memlock_ignored: bool,
    pub open_files: Option<u64>,
    /// What a UDP socket was granted of what the broker asks for, bytes.
    pub udp_recv_bytes: Option<usize>,
    pub udp_send_bytes: Option<usize>,
    pub cpus_allowed: Vec<usize>,
    /// CPUs' worth of time that the control group grants.
    pub cpu_quota: Option<f64>,
    /// The frequency governors in use, each once; empty where the kernel governs nothing.
    pub governors: Vec<String>,
    pub clock_source: Option<String>,
    pub load_average: f64,
}

impl Host {
    /// Looks, beside what was found already.
    #[must_use]
    pub fn look(facts: &Facts) -> Host {
        let granted = facts.udp_granted.as_ref().ok();
        Host {
            io_uring_error: facts
                .io_uring
                .err()
                .map(|errno| std::io::Error::from_raw_os_error(errno).to_string()),
            memlock_bytes: facts.memlock_bytes,
            memlock_ignored: facts.cap_ipc_lock,
            open_files: facts.open_files_soft,
            udp_recv_bytes: granted.map(|sizes| sizes.recv_bytes),
            udp_send_bytes: granted.map(|sizes| sizes.send_bytes),
            cpus_allowed: facts.cpus_allowed.clone(),
            cpu_quota: facts.cpu_quota,
            governors: governors(Path::new("/sys/devices/system/cpu")),
            clock_source: word(Path::new("/sys/devices/system/clocksource/clocksource0/current_clocksource")),
            load_average: load_average(),
        }
    }
}

fn word(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

fn governors(cpus: &Path) -> Vec<String> {
    let folders = fs::read_dir(cpus).into_iter().flatten().flatten();
    let found: BTreeSet<String> =
        folders.filter_map(|folder| word(&folder.path().join("cpufreq/scaling_governor"))).collect();
    found.into_iter().collect()
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = |value: Option<u64>| value.map_or("no limit".to_owned(), |value| value.to_string());
        let size = |value: Option<usize>| value.map_or("unknown".to_owned(), |value| value.to_string());
        writeln!(f, "io_uring   {}", self.io_uring_error.as_deref().unwrap_or("works"))?;
        let ignored = if self.memlock_ignored { ", not applied to this process" } else { "" };
        writeln!(f, "memlock    {} bytes{ignored}", number(self.memlock_bytes))?;
        writeln!(f, "open files {}", number(self.open_files))?;
        writeln!(
            f,
            "UDP        {} bytes to receive and {} to send granted",
            size(self.udp_recv_bytes),
            size(self.udp_send_bytes)
        )?;
        let governors = if self.governors.is_empty() { "none".to_owned() } else { self.governors.join(", ") };
        writeln!(
            f,
            "CPUs       {} allowed, governor {governors}, clock {}, load average {:.1}",
            self.cpus_allowed.len(),
            self.clock_source.as_deref().unwrap_or("unknown"),
            self.load_average
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn governors_are_named_once() {
        let folder = tempfile::tempdir().unwrap();
        for (cpu, governor) in [("cpu0", "powersave\n"), ("cpu1", "powersave\n"), ("cpu2", "performance\n")] {
            fs::create_dir_all(folder.path().join(cpu).join("cpufreq")).unwrap();
            fs::write(folder.path().join(cpu).join("cpufreq/scaling_governor"), governor).unwrap();
        }
        assert_eq!(governors(folder.path()), ["performance", "powersave"]);
        assert!(governors(&folder.path().join("nothing")).is_empty());
    }
}
