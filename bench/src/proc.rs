//! What the kernel tells about a process, by its id. Scope: functions.
//! Invariants: the id is one of our PID namespace, also where `/proc` is that of a namespace around ours.
//! Not here: what is read there.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The folder of process `pid`. One that is not there when there is no such process.
#[must_use]
pub fn folder(pid: u32) -> PathBuf {
    let named = Path::new("/proc").join(pid.to_string());
    let own = std::process::id();
    if pid == own {
        return PathBuf::from("/proc/self");
    }
    if fs::read_link("/proc/self").is_ok_and(|link| link == Path::new(&own.to_string())) {
        return named;
    }
    // Somebody else's `/proc`: there its processes have their own numbers, and those of ours beside them.
    let namespace = |folder: &Path| fs::read_link(folder.join("ns/pid")).ok();
    let ours = namespace(Path::new("/proc/self"));
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten().map(|entry| entry.path());
    let mut same = entries.filter(|folder| {
        let status = fs::read_to_string(folder.join("status")).unwrap_or_default();
        innermost_id(&status) == Some(pid) && ours.is_some() && namespace(folder) == ours
    });
    same.next().unwrap_or_else(|| PathBuf::from("/proc/none"))
}

/// Resident memory of process `pid`, bytes.
///
/// # Errors
/// There is no such process, or the kernel does not tell.
pub fn resident_bytes(pid: u32) -> io::Result<u64> {
    let status = fs::read_to_string(folder(pid).join("status"))?;
    resident(&status).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "no VmRSS in it"))
}

fn resident(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1_024)
}

/// The id that the process of a `status` has in its own namespace.
fn innermost_id(status: &str) -> Option<u32> {
    let ids = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    ids.split_ascii_whitespace().next_back()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_process_is_found_by_the_id_it_has_here() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        // What comes back comes from the program, and not from a process that is about to become it.
        child.stdin.as_mut().unwrap().write_all(b".").unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        let command = fs::read(folder(child.id()).join("cmdline")).unwrap();
        drop(child.stdin.take());
        child.wait().unwrap();
        assert_eq!(command, b"cat\0");
        assert!(!folder(child.id()).join("stat").exists());
        assert!(folder(std::process::id()).join("stat").exists());
    }

    #[test]
    fn resident_memory_is_told_in_bytes() {
        assert_eq!(resident("Name:\tx\nVmRSS:\t    1532 kB\nRssAnon:\t 1 kB\n"), Some(1_568_768));
        assert_eq!((resident("VmRSS: many kB"), resident("Name:\tx\n")), (None, None));
        assert!(resident_bytes(std::process::id()).unwrap() > 1 << 20);
    }

    #[test]
    fn the_last_number_is_that_of_the_innermost_namespace() {
        assert_eq!(innermost_id("Name:\tcat\nNSpid:\t9120\t12\nThreads:\t1\n"), Some(12));
        assert_eq!(innermost_id("NSpid:\t7\n"), Some(7));
        assert_eq!(innermost_id("Name:\tcat\n"), None);
    }
}
