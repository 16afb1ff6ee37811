//! CPU time of a process and its threads from /proc. Scope: one process on this machine.
//! Owns: reading `stat` files and taking differences.
//! Invariants: time of threads that ended within the window counts for the process, not for a thread; resolution is
//! one clock tick of the kernel (10 ms on most machines), so windows of less than a second say little.
//! Not here: what the time is divided by (`report`).

use std::collections::HashMap;
use std::fs;
use std::io;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// CPU time of a process so far.
#[derive(Debug, Clone, Default)]
pub struct CpuSample {
    process_ticks: u64,
    /// By thread id.
    threads: HashMap<u32, ThreadSample>,
}

/// A thread so far.
#[derive(Debug, Clone, Default)]
struct ThreadSample {
    name: String,
    ticks: u64,
    /// Time it was ready to run and no CPU ran it; 0 where the kernel does not count it.
    waited_nanos: u64,
}

/// CPU time a process used in a window.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CpuUse {
    /// User and system seconds of all threads.
    pub seconds: f64,
    /// The busiest thread's share of the window, percent: for a pinned core, how busy that core was.
    pub core_busy_percent: f64,
    /// How long that thread was ready to run while others had its CPU, percent of the window: figures of a run in which it
    /// waited are those of the machine, not of the server.
    pub core_waited_percent: f64,
    /// Threads that used any, the busiest first.
    pub threads: Vec<ThreadUse>,
}

/// CPU time a thread used in a window.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ThreadUse {
    pub name: String,
    pub seconds: f64,
}

impl CpuSample {
    /// CPU time of process `pid` until now.
    ///
    /// # Errors
    /// There is no such process, or its `stat` is not one. A thread that ends meanwhile is left out.
    pub fn of(pid: u32) -> io::Result<CpuSample> {
        let folder = crate::proc::folder(pid);
        let (_, process_ticks) = parse_stat(&fs::read_to_string(folder.join("stat"))?)?;
        let mut threads = HashMap::new();
        for entry in fs::read_dir(folder.join("task"))? {
            let entry = entry?;
            let Some(thread) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            if let Ok(text) = fs::read_to_string(entry.path().join("stat")) {
                let (name, ticks) = parse_stat(&text)?;
                let schedstat = fs::read_to_string(entry.path().join("schedstat")).unwrap_or_default();
                let waited_nanos = parse_schedstat(&schedstat).unwrap_or(0);
                threads.insert(thread, ThreadSample { name, ticks, waited_nanos });
            }
        }
        Ok(CpuSample { process_ticks, threads })
    }

    /// What was used since `earlier`, a sample of the same process `window` ago.
    #[must_use]
    pub fn since(&self, earlier: &CpuSample, window: Duration) -> CpuUse {
        let seconds = |ticks: u64| ticks as f64 / rustix::param::clock_ticks_per_second() as f64;
        let none = ThreadSample::default();
        let mut threads: Vec<(ThreadUse, u64)> = self
            .threads
            .iter()
            .map(|(thread, now)| {
                let before = earlier.threads.get(thread).unwrap_or(&none);
                let used = seconds(now.ticks.saturating_sub(before.ticks));
                let waited = now.waited_nanos.saturating_sub(before.waited_nanos);
                (ThreadUse { name: now.name.clone(), seconds: used }, waited)
            })
            .filter(|(thread, _)| thread.seconds > 0.0)
            .collect();
        threads.sort_by(|(a, _), (b, _)| b.seconds.total_cmp(&a.seconds));
        let (busy, waited) =
            threads.first().map_or((0.0, 0.0), |(thread, waited)| (thread.seconds, *waited as f64 / 1e9));
        let percent = |seconds: f64| 100.0 * seconds / window.as_secs_f64().max(f64::MIN_POSITIVE);
        CpuUse {
            seconds: seconds(self.process_ticks.saturating_sub(earlier.process_ticks)),
            core_busy_percent: percent(busy),
            core_waited_percent: percent(waited),
            threads: threads.into_iter().map(|(thread, _)| thread).collect(),
        }
    }
}

/// Name and user plus system ticks of a `stat` line. The name is in brackets and may hold brackets and spaces itself.
fn parse_stat(line: &str) -> io::Result<(String, u64)> {
    let broken = || io::Error::new(io::ErrorKind::InvalidData, "not a stat line");
    let (before, after) = line.rsplit_once(')').ok_or_else(broken)?;
    let (_, name) = before.split_once('(').ok_or_else(broken)?;
    // Behind the name: state, then ten fields, then utime and stime.
    let mut fields = after.split_ascii_whitespace().skip(11);
    let mut ticks = || fields.next().and_then(|field| field.parse::<u64>().ok()).ok_or_else(broken);
    Ok((name.to_owned(), ticks()? + ticks()?))
}

/// Nanoseconds of waiting of a `schedstat` line: time on a CPU, time waiting for one, times it ran.
fn parse_schedstat(line: &str) -> Option<u64> {
    line.split_ascii_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_brackets_and_spaces_does_not_shift_the_fields() {
        let line = "42 (a (b) c) S 1 42 42 0 -1 4194304 107 0 0 0 250 31 0 0 20 0 1 0 7 9 8";
        assert_eq!(parse_stat(line).unwrap(), ("a (b) c".to_owned(), 281));
        assert!(parse_stat("42 nothing").is_err());
        assert!(parse_stat("42 (x) S 1 2").is_err());
        assert_eq!((parse_schedstat("500 77 3\n"), parse_schedstat("")), (Some(77), None));
    }

    #[test]
    fn a_difference_counts_new_threads_whole_and_sorts_by_use() {
        let thread =
            |name: &str, ticks, waited_nanos| ThreadSample { name: name.to_owned(), ticks, waited_nanos };
        let earlier = CpuSample {
            process_ticks: 100,
            threads: HashMap::from([(1, thread("core", 90, 1_000_000_000))]),
        };
        let later = CpuSample {
            process_ticks: 350,
            threads: HashMap::from([
                (1, thread("core", 290, 2_000_000_000)),
                (2, thread("admin", 50, 9_000_000_000)),
            ]),
        };
        let used = later.since(&earlier, Duration::from_secs(4));
        let per_tick = 1.0 / rustix::param::clock_ticks_per_second() as f64;
        assert!((used.seconds - 250.0 * per_tick).abs() < 1e-9);
        assert_eq!(used.threads.iter().map(|t| t.name.as_str()).collect::<Vec<_>>(), ["core", "admin"]);
        assert!((used.core_busy_percent - 200.0 * per_tick / 4.0 * 100.0).abs() < 1e-9);
        assert!((used.core_waited_percent - 25.0).abs() < 1e-9, "one of four seconds");
    }

    #[test]
    fn this_process_has_used_something_once_it_has_worked() {
        let pid = std::process::id();
        let before = CpuSample::of(pid).unwrap();
        let begun = std::time::Instant::now();
        // The condition is the kernel's own count, which moves in ticks.
        while CpuSample::of(pid).unwrap().since(&before, begun.elapsed()).seconds == 0.0 {
            assert!(begun.elapsed() < Duration::from_secs(20), "no CPU time was counted");
        }
    }
}
