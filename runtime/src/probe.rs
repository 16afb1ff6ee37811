//! Start-up checks: does this machine give a core what it needs, and if not, what is to be done about it.
//! Scope: called once per process, before anything else. Owns nothing.
//! Invariants: judging is a pure function of [`Facts`] and [`Needs`]; every finding is one line that says what is wrong
//! and one that says how to mend it.
//! Not here: reading the machine (`facts`), limits of the protocol.

mod facts;
#[cfg(test)]
mod tests;

use std::fmt;

use crate::udp::BufferSizes;
pub use facts::Facts;
use facts::list_cpus;

/// What an executor registers: its rings, and a little memory.
pub const MEMLOCK_PER_EXECUTOR_BYTES: u64 = 512 * 1024;
/// Descriptors an executor opens for itself.
const FILES_PER_EXECUTOR: u64 = 16;

/// What the process is going to ask of the machine.
#[derive(Debug, Clone)]
pub struct Needs {
    /// How many executors will run.
    pub cores: u16,
    /// The processors they are to be pinned to; empty when they are not.
    pub cpus: Vec<usize>,
    /// Descriptors for files, sockets and HTTP beside the executors' own.
    pub open_files: u64,
    pub udp_buffers: BufferSizes,
    /// Whether IPv6 clients are to be served.
    pub ipv6: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// It works, with less than could be had.
    Note,
    /// It works, but badly or not for everybody.
    Warning,
    /// It will not start.
    Fatal,
}

/// One thing that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub severity: Severity,
    /// What is wrong, with the numbers.
    pub what: String,
    /// What to do about it.
    pub mend: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.what, self.mend)
    }
}

/// Reads the machine and judges it; the worst findings first. Empty when all is well.
pub fn probe(needs: &Needs) -> Vec<Finding> {
    evaluate(&Facts::read(needs.udp_buffers), needs)
}

/// Judges what was read; the worst findings first.
pub fn evaluate(facts: &Facts, needs: &Needs) -> Vec<Finding> {
    let checks = [io_uring, memlock, open_files, udp_receive, udp_send, cpus, cpu_quota, ipv6];
    let mut findings: Vec<Finding> = checks.iter().filter_map(|check| check(facts, needs)).collect();
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    findings
}

fn finding(severity: Severity, what: String, mend: impl Into<String>) -> Option<Finding> {
    Some(Finding { severity, what, mend: mend.into() })
}

fn io_uring(facts: &Facts, _needs: &Needs) -> Option<Finding> {
    let errno = facts.io_uring.err()?;
    let mend = match errno {
        libc::ENOSYS => "run on Linux 5.11 or later with io_uring built in",
        libc::EPERM | libc::EACCES => {
            "allow it: `sysctl kernel.io_uring_disabled=0`, and in a container a seccomp profile that permits io_uring"
        }
        libc::ENOMEM => {
            "raise the memlock limit (`ulimit -l unlimited`, or LimitMEMLOCK=infinity in the unit)"
        }
        _ => "see io_uring_setup(2) for this error",
    };
    let error = std::io::Error::from_raw_os_error(errno);
    finding(Severity::Fatal, format!("io_uring is not available: {error}"), mend)
}

fn memlock(facts: &Facts, _needs: &Needs) -> Option<Finding> {
    let limit = facts.memlock_bytes?;
    if limit >= MEMLOCK_PER_EXECUTOR_BYTES {
        return None;
    }
    // The executor looks at the limit even where the kernel would not.
    finding(
        Severity::Fatal,
        format!(
            "the memlock limit is {limit} bytes, an executor refuses less than {MEMLOCK_PER_EXECUTOR_BYTES}"
        ),
        "set `ulimit -l unlimited`, or LimitMEMLOCK=infinity in the unit",
    )
}

fn open_files(facts: &Facts, needs: &Needs) -> Option<Finding> {
    let (soft, hard) = (facts.open_files_soft?, facts.open_files_hard);
    let wanted = needs.open_files + u64::from(needs.cores) * FILES_PER_EXECUTOR;
    if soft >= wanted {
        return None;
    }
    let severity =
        if soft < u64::from(needs.cores) * FILES_PER_EXECUTOR { Severity::Fatal } else { Severity::Warning };
    let mend = match hard {
        Some(hard) if hard < wanted => {
            format!("raise the hard limit too: LimitNOFILE={wanted} in the unit (hard is {hard})")
        }
        Some(_) | None => format!("set `ulimit -n {wanted}`, or LimitNOFILE={wanted} in the unit"),
    };
    finding(severity, format!("the open files limit is {soft}, {wanted} may be needed"), mend)
}

fn udp_receive(facts: &Facts, needs: &Needs) -> Option<Finding> {
    let granted = facts.udp_granted.ok()?.recv_bytes;
    let wanted = needs.udp_buffers.recv_bytes;
    (granted < wanted).then(|| short_buffer("receive", "net.core.rmem_max", granted, wanted))
}

fn udp_send(facts: &Facts, needs: &Needs) -> Option<Finding> {
    match facts.udp_granted {
        Ok(BufferSizes { send_bytes: granted, .. }) => {
            let wanted = needs.udp_buffers.send_bytes;
            (granted < wanted).then(|| short_buffer("send", "net.core.wmem_max", granted, wanted))
        }
        Err(errno) => finding(
            Severity::Fatal,
            format!("no UDP socket can be made: {}", std::io::Error::from_raw_os_error(errno)),
            "see socket(2) for this error",
        ),
    }
}

fn short_buffer(which: &str, sysctl: &str, granted: usize, wanted: usize) -> Finding {
    // A quarter of what was asked for starts to lose datagrams in bursts.
    let severity = if granted < wanted / 4 { Severity::Warning } else { Severity::Note };
    Finding {
        severity,
        what: format!("a UDP {which} buffer of {wanted} bytes was asked for, {granted} granted"),
        mend: format!("`sysctl {sysctl}={wanted}`, or give CAP_NET_ADMIN"),
    }
}

fn cpus(facts: &Facts, needs: &Needs) -> Option<Finding> {
    let missing: Vec<usize> =
        needs.cpus.iter().copied().filter(|cpu| !facts.cpus_allowed.contains(cpu)).collect();
    if !missing.is_empty() && !facts.cpus_allowed.is_empty() {
        return finding(
            Severity::Fatal,
            format!("cores are to run on processors {}, which this process may not use", list_cpus(&missing)),
            format!("choose from {}, or widen the cpuset", list_cpus(&facts.cpus_allowed)),
        );
    }
    let allowed = facts.cpus_allowed.len();
    if allowed > 0 && usize::from(needs.cores) > allowed {
        return finding(
            Severity::Warning,
            format!("{} cores share {allowed} processors", needs.cores),
            "run at most one core per processor",
        );
    }
    None
}

fn cpu_quota(facts: &Facts, needs: &Needs) -> Option<Finding> {
    let quota = facts.cpu_quota?;
    if quota >= f64::from(needs.cores) {
        return None;
    }
    finding(
        Severity::Warning,
        format!(
            "the cgroup grants {quota:.2} processors to {} cores: they will be stopped for milliseconds",
            needs.cores
        ),
        "raise cpu.max, or run fewer cores",
    )
}

fn ipv6(facts: &Facts, needs: &Needs) -> Option<Finding> {
    if facts.ipv6 || !needs.ipv6 {
        return None;
    }
    finding(
        Severity::Note,
        "this host has no IPv6: only IPv4 clients are served".to_owned(),
        "enable IPv6 if clients need it",
    )
}
