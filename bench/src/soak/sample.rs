//! What a broker holds at a moment: memory, file descriptors, threads, gauges. Scope: one look, or a thread that looks at
//! memory alone.
//! Owns: the reading of `/proc` and of the metrics page, and which gauges must come back.
//! Invariants: nothing is asked of the broker but its metrics page.
//! Not here: what follows from two looks (`judge`).

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

use serde::Serialize;

use crate::proc;
use crate::scrape::Page;

/// Gauges of what clients do and of what waits: 0 when nobody is there.
pub const ZERO_AT_REST: &[&str] = &[
    "connections",
    "sub_active",
    "cache_watches",
    "group_polls_waiting",
    "requests_unanswered",
    "broker_ingress_queue_depth",
    "mailbox_depth",
    "log_disk_unanswered",
    "log_commit_slots_aside",
];
/// Gauges of what is kept: as before the cycle, since each cycle leaves the same.
pub const SAME_AT_REST: &[&str] = &["shards", "cache_shards", "cache_keys", "groups", "log_open"];
/// Between two looks at memory.
const EVERY: Duration = Duration::from_millis(50);

/// One look.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Held {
    pub resident_bytes: u64,
    pub threads: u64,
    /// Memory locked by the process, and pinned by the kernel for its rings.
    pub locked_bytes: u64,
    pub pinned_bytes: u64,
    pub open: OpenFiles,
    pub gauges: BTreeMap<String, f64>,
}

/// What the file descriptors are.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct OpenFiles {
    /// All but files below the folder of data, by what they are: `socket`, `anon_inode:[io_uring]`, a path.
    pub by_kind: BTreeMap<String, u64>,
    /// Files below the folder of data, each once.
    pub data_files: u64,
    /// Descriptors of a file that has one already.
    pub data_again: u64,
    /// Descriptors of files that are not there any more.
    pub data_deleted: u64,
}

impl Held {
    /// Looks at the broker with id `pid`, whose metrics are at `metrics` and whose files are below `data`.
    ///
    /// # Errors
    /// It is not there, or does not serve its metrics.
    pub fn look(pid: u32, metrics: SocketAddr, data: &Path) -> io::Result<Held> {
        let page = Page::read(metrics)?;
        if page.total("ready_state") < 1.0 {
            return Err(io::Error::other("the broker's metrics do not say that it is ready"));
        }
        let status = std::fs::read_to_string(proc::folder(pid).join("status"))?;
        let number = |name: &str| {
            status_number(&status, name).ok_or_else(|| io::Error::other(format!("no {name} of the broker")))
        };
        let names = ZERO_AT_REST.iter().chain(SAME_AT_REST);
        Ok(Held {
            resident_bytes: number("VmRSS")? << 10,
            threads: number("Threads")?,
            locked_bytes: number("VmLck")? << 10,
            pinned_bytes: number("VmPin")? << 10,
            open: OpenFiles::of(pid, data)?,
            // One that is not served is not there, and not 0.
            gauges: names.filter_map(|name| Some(((*name).to_owned(), *page.totals.get(*name)?))).collect(),
        })
    }

    /// Everything but memory is as in another look.
    #[must_use]
    pub fn is_as(&self, other: &Held) -> bool {
        (self.threads, &self.open, &self.gauges) == (other.threads, &other.open, &other.gauges)
    }

    /// The gauges that must be 0 and are not, each with its value.
    #[must_use]
    pub fn busy(&self) -> Vec<(String, f64)> {
        let of = |name: &&str| self.gauges.get(*name).copied().unwrap_or(f64::NAN);
        ZERO_AT_REST
            .iter()
            .map(|name| ((*name).to_owned(), of(name)))
            .filter(|(_, value)| *value != 0.0)
            .collect()
    }
}

impl OpenFiles {
    fn of(pid: u32, data: &Path) -> io::Result<OpenFiles> {
        let entries = std::fs::read_dir(proc::folder(pid).join("fd"))?;
        // One that was closed meanwhile is not open.
        let links = entries.flatten().filter_map(|entry| std::fs::read_link(entry.path()).ok());
        Ok(OpenFiles::sorted(links.map(|link| link.to_string_lossy().into_owned()), data))
    }

    fn sorted(links: impl Iterator<Item = String>, data: &Path) -> OpenFiles {
        let mut found = OpenFiles::default();
        let mut seen = BTreeSet::new();
        for link in links {
            if !Path::new(&link).starts_with(data) {
                // `socket:[1234]`: the number is another one each time.
                let kind =
                    link.split_once(":[").filter(|(kind, _)| *kind != "anon_inode").map(|(kind, _)| kind);
                *found.by_kind.entry(kind.unwrap_or(&link).to_owned()).or_default() += 1;
            } else if link.ends_with(" (deleted)") {
                found.data_deleted += 1;
            } else if !seen.insert(link) {
                found.data_again += 1;
            }
        }
        found.data_files = seen.len() as u64;
        found
    }
}

/// A number of `/proc/<pid>/status`, as it stands there.
fn status_number(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.split_whitespace().next()?.parse().ok()
}

/// A thread that looks at the memory of a broker. Dropped, it ends.
#[derive(Debug)]
pub struct Peak {
    seen: Arc<AtomicU64>,
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Peak {
    /// Looks from now on.
    #[must_use]
    pub fn start(pid: u32) -> Peak {
        let (seen, ended) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (largest, stopped) = (Arc::clone(&seen), Arc::clone(&ended));
        let thread = std::thread::spawn(move || {
            while !stopped.load(Relaxed) {
                largest.fetch_max(proc::resident_bytes(pid).unwrap_or(0), Relaxed);
                std::thread::sleep(EVERY);
            }
        });
        Peak { seen, ended, thread: Some(thread) }
    }

    /// The most since the last time this was asked, bytes.
    #[must_use]
    pub fn take(&self) -> u64 {
        self.seen.swap(0, Relaxed)
    }
}

impl Drop for Peak {
    fn drop(&mut self) {
        self.ended.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_told_by_what_they_are() {
        let links = [
            "socket:[17]",
            "socket:[18]",
            "anon_inode:[io_uring]",
            "/d/data/log/a",
            "/d/data/log/a",
            "/d/data/log/b",
            "/d/data/log/c (deleted)",
            "/dev/null",
        ];
        let found = OpenFiles::sorted(links.into_iter().map(str::to_owned), Path::new("/d/data"));
        assert_eq!((found.data_files, found.data_again, found.data_deleted), (2, 1, 1));
        let kinds: Vec<(&str, u64)> =
            found.by_kind.iter().map(|(kind, count)| (kind.as_str(), *count)).collect();
        assert_eq!(kinds, [("/dev/null", 1), ("anon_inode:[io_uring]", 1), ("socket", 2)]);
    }

    #[test]
    fn a_status_is_read_by_whole_names() {
        let status = "VmLck:\t      12 kB\nThreads:\t7\nVmPin:\t 0 kB\n";
        assert_eq!((status_number(status, "VmLck"), status_number(status, "Threads")), (Some(12), Some(7)));
        assert_eq!((status_number(status, "Vm"), status_number(status, "VmRSS")), (None, None));
    }

    #[test]
    fn what_is_not_at_rest_is_named() {
        let gauges = ZERO_AT_REST.iter().map(|name| ((*name).to_owned(), 0.0)).collect();
        let mut held = Held { gauges, ..Held::default() };
        assert_eq!(held.busy(), []);
        held.gauges.insert("cache_watches".to_owned(), 2.0);
        assert_eq!(held.busy(), [("cache_watches".to_owned(), 2.0)]);
        held.gauges.remove("connections");
        assert_eq!(held.busy().len(), 2, "a gauge that is not there is not 0");
    }

    #[test]
    fn the_memory_of_this_process_has_a_peak() {
        let peak = Peak::start(std::process::id());
        while peak.take() == 0 {
            std::thread::yield_now();
        }
    }
}
