//! What this machine says about itself.
//! Scope: read once at start. Owns nothing afterwards.
//! Invariants: whatever cannot be read is unknown (`None` or empty), never a guess.
//! Not here: whether it is enough (`probe`).

use std::fs;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::path::Path;

use crate::udp::{BufferSizes, grantable, host_has_ipv6};

const CAP_IPC_LOCK_BIT: u32 = 14;

/// What was found. An `Err` holds an errno.
#[derive(Debug, Clone)]
pub struct Facts {
    pub io_uring: Result<(), i32>,
    /// Soft limit of locked memory; `None` is unlimited or unknown.
    pub memlock_bytes: Option<u64>,
    /// With this capability the kernel ignores the limit.
    pub cap_ipc_lock: bool,
    /// `None` is unlimited or unknown.
    pub open_files_soft: Option<u64>,
    pub open_files_hard: Option<u64>,
    /// What a socket that asked for the wanted sizes was granted.
    pub udp_granted: Result<BufferSizes, i32>,
    /// Ascending; empty when unknown.
    pub cpus_allowed: Vec<usize>,
    /// Processors' worth of time the control group grants, when it is bounded.
    pub cpu_quota: Option<f64>,
    pub ipv6: bool,
}

impl Facts {
    /// Asks the kernel. `udp_buffers` are the sizes tried on a throw-away socket.
    pub fn read(udp_buffers: BufferSizes) -> Facts {
        let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let (open_files_soft, open_files_hard) = limit(&limits, "Max open files");
        Facts {
            io_uring: try_io_uring(),
            memlock_bytes: limit(&limits, "Max locked memory").0,
            cap_ipc_lock: has_capability(&status, CAP_IPC_LOCK_BIT),
            open_files_soft,
            open_files_hard,
            udp_granted: grantable(udp_buffers).map_err(|error| error.raw_os_error().unwrap_or(libc::EIO)),
            cpus_allowed: field(&status, "Cpus_allowed_list:").map(parse_cpus).unwrap_or_default(),
            cpu_quota: cgroup_quota(),
            ipv6: host_has_ipv6(),
        }
    }
}

/// Soft and hard value of one line of `/proc/self/limits`.
pub(super) fn limit(limits: &str, name: &str) -> (Option<u64>, Option<u64>) {
    let line = limits.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    let mut values = line.split_whitespace().map(|word| word.parse().ok());
    (values.next().flatten(), values.next().flatten())
}

pub(super) fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

pub(super) fn has_capability(status: &str, bit: u32) -> bool {
    field(status, "CapEff:")
        .and_then(|hex| u64::from_str_radix(hex, 16).ok())
        .is_some_and(|set| set >> bit & 1 == 1)
}

/// `0-3,8` as numbers; parts that are not understood are left out.
pub(super) fn parse_cpus(list: &str) -> Vec<usize> {
    let range = |part: &str| -> Option<std::ops::RangeInclusive<usize>> {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.trim().parse().ok()?..=last.trim().parse().ok()?)
    };
    list.split(',').filter_map(range).flatten().collect()
}

/// The inverse of [`parse_cpus`], without joining runs.
pub(super) fn list_cpus(cpus: &[usize]) -> String {
    cpus.iter().map(usize::to_string).collect::<Vec<_>>().join(",")
}

/// `cpu.max` of cgroup v2: quota and period in microseconds, or `max`.
pub(super) fn parse_cpu_max(text: &str) -> Option<f64> {
    let mut words = text.split_whitespace();
    let quota: f64 = words.next()?.parse().ok()?;
    let period: f64 = words.next()?.parse().ok()?;
    (period > 0.0).then_some(quota / period)
}

/// The tightest quota from our group up to the root (v2), or the v1 quota.
fn cgroup_quota() -> Option<f64> {
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let v2 = groups.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
    let root = Path::new("/sys/fs/cgroup");
    let above = root.join(v2);
    let v2_quota = above
        .ancestors()
        .take_while(|dir| dir.starts_with(root))
        .filter_map(|dir| parse_cpu_max(&fs::read_to_string(dir.join("cpu.max")).ok()?))
        .reduce(f64::min);
    v2_quota.or_else(|| {
        let quota = fs::read_to_string(root.join("cpu/cpu.cfs_quota_us")).ok()?;
        let period = fs::read_to_string(root.join("cpu/cpu.cfs_period_us")).ok()?;
        parse_cpu_max(&format!("{quota} {period}")).filter(|quota| *quota > 0.0)
    })
}

/// Makes a small ring and closes it again.
fn try_io_uring() -> Result<(), i32> {
    const ENTRIES: libc::c_long = 4;
    // struct io_uring_params: 120 bytes, all zero for a plain ring.
    let mut params = [0u64; 15];
    // SAFETY: the pointer is to 120 writable bytes, the size of io_uring_params; the kernel writes no more.
    let fd = unsafe { libc::syscall(libc::SYS_io_uring_setup, ENTRIES, params.as_mut_ptr()) };
    match RawFd::try_from(fd) {
        Ok(fd) if fd >= 0 => {
            // SAFETY: the kernel just gave us this descriptor; nobody else has it.
            drop(unsafe { OwnedFd::from_raw_fd(fd) });
            Ok(())
        }
        Ok(_) | Err(_) => Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)),
    }
}
