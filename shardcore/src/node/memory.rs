//! How much memory the broker may plan with. Scope: per process, read once at start.
//! Owns: the reading of `/proc` and of the cgroup; nothing is reserved here.
//! Not here: how it is dealt to cores (`config`).

/// What is assumed when nothing can be read, in bytes.
const UNKNOWN_BYTES: u64 = 1 << 30;

/// The smaller of the machine's memory and the limit of the process's cgroup (either version), in bytes.
pub fn available_bytes() -> u64 {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let machine = machine_bytes(&read("/proc/meminfo"));
    let group = cgroup_path(&read("/proc/self/cgroup")).to_owned();
    let limits = [
        format!("/sys/fs/cgroup{group}/memory.max"),
        "/sys/fs/cgroup/memory.max".to_owned(),
        format!("/sys/fs/cgroup/memory{group}/memory.limit_in_bytes"),
        "/sys/fs/cgroup/memory/memory.limit_in_bytes".to_owned(),
    ];
    let limit = limits.iter().filter_map(|path| limit_bytes(&read(path))).min();
    [machine, limit].into_iter().flatten().min().unwrap_or(UNKNOWN_BYTES)
}

/// `MemTotal` of `/proc/meminfo`, in bytes.
fn machine_bytes(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1_024)
}

/// Path of the group in `/proc/self/cgroup`: the unified one, else that of the memory controller.
fn cgroup_path(cgroups: &str) -> &str {
    let of = |wanted: fn(&str) -> bool| {
        cgroups.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            let (controllers, path) = (parts.next()?, parts.next()?);
            wanted(controllers).then_some(path)
        })
    };
    of(str::is_empty)
        .or_else(|| of(|c| c.split(',').any(|c| c == "memory")))
        .unwrap_or("")
        .trim_end_matches('/')
}

/// A limit file; `max` and the older form's huge number mean none.
fn limit_bytes(text: &str) -> Option<u64> {
    text.trim().parse::<u64>().ok().filter(|bytes| *bytes < 1 << 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_and_its_groups_are_read_as_the_kernel_writes_them() {
        assert_eq!(machine_bytes("MemTotal:       24689396 kB\nMemFree: 1 kB\n"), Some(24_689_396 * 1_024));
        assert_eq!(machine_bytes("nothing"), None);
        assert_eq!(cgroup_path("0::/system.slice/felix.service\n"), "/system.slice/felix.service");
        assert_eq!(cgroup_path("4:memory:/docker/a\n2:cpu,cpuacct:/b\n"), "/docker/a");
        assert_eq!(cgroup_path(""), "");
        assert_eq!(limit_bytes("max\n"), None);
        assert_eq!(limit_bytes("9223372036854771712\n"), None);
        assert_eq!(limit_bytes("536870912\n"), Some(512 << 20));
    }

    #[test]
    fn this_machine_has_some() {
        assert!(available_bytes() > 16 << 20);
    }
}
