//! What a server says and uses while a load runs, once a second. Scope: one trial; one thread that mostly sleeps.
//! Owns: the thread, the samples, what is derived from those of the steady window.
//! Invariants: only whole intervals within the window count; a rate is the median of its intervals, so one stall or one
//! burst does not make it; counters and CPU time of an interval are between the same two looks.
//! Not here: when the window is (`load`), reading one page (`scrape`).

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::measure::{CpuSample, CpuUse, median};
use crate::proc;
use crate::scrape::Page;

/// Publishes appended: the counter that throughput is taken from.
pub const APPENDED: &str = "publish_written_total";
/// Samples kept: hours of seconds.
const SAMPLES_MAX: usize = 100_000;

/// Whom to watch.
#[derive(Debug, Clone)]
pub struct Watched {
    /// Where its metrics are; without, only CPU time is known.
    pub metrics: Option<SocketAddr>,
    /// Its process on this machine.
    pub pid: Option<u32>,
    /// From one look to the next.
    pub every: Duration,
}

#[derive(Debug, Clone)]
struct Sample {
    at: Instant,
    unix_s: f64,
    page: Option<Page>,
    cpu: Option<CpuSample>,
    resident_bytes: Option<u64>,
}

/// What changed between two looks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// When it ended, seconds since 1970.
    pub ended_unix_s: f64,
    pub seconds: f64,
    /// What counters grew by; gauges as they were at the end. Without those that were 0.
    pub counters: BTreeMap<String, f64>,
    /// Publishes appended by each core.
    pub appended_by_core: BTreeMap<u32, f64>,
    /// Memory of the process at the end.
    #[serde(default)]
    pub resident_bytes: Option<u64>,
    pub cpu: Option<CpuUse>,
}

/// A watch under way. Dropped, it ends.
#[derive(Debug)]
pub struct Watch {
    stop: Sender<()>,
    thread: Option<JoinHandle<Vec<Sample>>>,
}

impl Watch {
    /// Looks from now on.
    #[must_use]
    pub fn start(watched: Watched) -> Watch {
        let (stop, stopped) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let begun = Instant::now();
            let mut samples = vec![look(&watched)];
            for number in 1.. {
                let due = begun + watched.every * number;
                let wait = due.saturating_duration_since(Instant::now());
                let ended = !matches!(stopped.recv_timeout(wait), Err(RecvTimeoutError::Timeout));
                if samples.len() < SAMPLES_MAX {
                    samples.push(look(&watched));
                }
                if ended {
                    break;
                }
            }
            samples
        });
        Watch { stop, thread: Some(thread) }
    }

    /// Ends it with a last look.
    #[must_use]
    pub fn stop(mut self) -> Seen {
        // The thread may have ended by itself.
        let _ = self.stop.send(());
        let samples = self.thread.take().and_then(|thread| thread.join().ok()).unwrap_or_default();
        Seen { samples }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.stop.send(());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn look(watched: &Watched) -> Sample {
    let page = watched.metrics.and_then(|address| Page::read(address).ok());
    let cpu = watched.pid.and_then(|pid| CpuSample::of(pid).ok());
    let unix_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    let resident_bytes = watched.pid.and_then(|pid| proc::resident_bytes(pid).ok());
    Sample { at: Instant::now(), unix_s, page, cpu, resident_bytes }
}

/// Everything that was seen.
#[derive(Debug, Clone, Default)]
pub struct Seen {
    samples: Vec<Sample>,
}

impl Seen {
    /// What changed from each look to the next.
    #[must_use]
    pub fn intervals(&self) -> Vec<Interval> {
        self.samples.windows(2).map(|pair| between(&pair[0], &pair[1])).collect()
    }

    /// The part between the first and the last look within `window` (seconds since 1970).
    #[must_use]
    pub fn within(&self, window: (f64, f64)) -> Steady {
        let inside: Vec<&Sample> = self
            .samples
            .iter()
            .filter(|sample| sample.unix_s >= window.0 && sample.unix_s <= window.1)
            .collect();
        let intervals: Vec<Interval> = inside.windows(2).map(|pair| between(pair[0], pair[1])).collect();
        let whole = match inside[..] {
            [first, .., last] => Some(between(first, last)),
            _ => None,
        };
        Steady { intervals, whole }
    }
}

fn between(first: &Sample, last: &Sample) -> Interval {
    let length = last.at.saturating_duration_since(first.at);
    let mut counters = BTreeMap::new();
    let mut appended_by_core = BTreeMap::new();
    if let (Some(before), Some(after)) = (&first.page, &last.page) {
        for (name, value) in &after.totals {
            let value = if name.ends_with("_total") { value - before.total(name) } else { *value };
            if value != 0.0 {
                counters.insert(name.clone(), value);
            }
        }
        let none = BTreeMap::new();
        let earlier = before.by_core.get(APPENDED).unwrap_or(&none);
        for (core, value) in after.by_core.get(APPENDED).unwrap_or(&none) {
            appended_by_core.insert(*core, value - earlier.get(core).copied().unwrap_or(0.0));
        }
    }
    let cpu = last.cpu.as_ref().zip(first.cpu.as_ref());
    Interval {
        ended_unix_s: last.unix_s,
        seconds: length.as_secs_f64(),
        counters,
        appended_by_core,
        resident_bytes: last.resident_bytes,
        cpu: cpu.map(|(last, first)| last.since(first, length)),
    }
}

/// The steady window, as far as whole intervals cover it.
#[derive(Debug, Clone, Default)]
pub struct Steady {
    pub intervals: Vec<Interval>,
    /// From the first look within the window to the last.
    pub whole: Option<Interval>,
}

impl Steady {
    /// The median rate of a counter, per second; `None` when no interval has it.
    #[must_use]
    pub fn rate(&self, counter: &str) -> Option<f64> {
        let grown = |interval: &Interval| interval.counters.get(counter).copied();
        if !self.intervals.iter().any(|interval| grown(interval).is_some()) {
            return None;
        }
        // A counter that stood still is left out of its interval.
        let rate =
            |interval: &Interval| grown(interval).unwrap_or(0.0) / interval.seconds.max(f64::MIN_POSITIVE);
        Some(median(&self.intervals.iter().map(rate).collect::<Vec<_>>()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(begun: Instant, second: u64, appended: f64) -> Sample {
        let page =
            format!("felix_publish_written_total{{core=\"0\"}} {appended}\nfelix_shards{{core=\"0\"}} 3\n");
        Sample {
            at: begun + Duration::from_secs(second),
            unix_s: 1_000.0 + second as f64,
            page: Some(Page::parse(&page)),
            cpu: None,
            resident_bytes: Some(second),
        }
    }

    #[test]
    fn a_rate_is_the_median_of_the_whole_seconds_within_the_window() {
        let begun = Instant::now();
        let counts = [0.0, 1.0, 101.0, 201.0, 5_201.0, 5_311.0, 5_312.0];
        let samples =
            counts.into_iter().zip(0..).map(|(count, second)| sample(begun, second, count)).collect();
        let seen = Seen { samples };
        assert_eq!(seen.intervals().len(), 6);
        // The first second and the last are outside; the burst of 5,000 is one of four.
        let steady = seen.within((1_000.5, 1_005.5));
        assert_eq!(steady.intervals.len(), 4);
        assert_eq!(steady.rate(APPENDED), Some(105.0));
        assert_eq!(steady.rate("absent_total"), None);
        let whole = steady.whole.unwrap();
        assert_eq!((whole.seconds, whole.counters[APPENDED]), (4.0, 5_310.0));
        assert_eq!(whole.resident_bytes, Some(5));
        assert_eq!((whole.counters["shards"], whole.appended_by_core[&0]), (3.0, 5_310.0));
    }

    #[test]
    fn seconds_in_which_nothing_moved_count_as_such() {
        let begun = Instant::now();
        let counts = [0.0, 100.0, 100.0, 100.0, 100.0];
        let samples =
            counts.into_iter().zip(0..).map(|(count, second)| sample(begun, second, count)).collect();
        assert_eq!(Seen { samples }.within((0.0, 2_000.0)).rate(APPENDED), Some(0.0));
    }

    #[test]
    fn a_window_without_two_looks_has_no_rate() {
        let seen = Seen { samples: vec![sample(Instant::now(), 0, 1.0)] };
        assert_eq!(seen.within((0.0, 2_000.0)).rate(APPENDED), None);
        assert!(Seen::default().within((0.0, 2_000.0)).whole.is_none());
    }

    #[test]
    fn a_watch_of_nobody_ends_and_has_nothing() {
        let watch = Watch::start(Watched {
            metrics: None,
            pid: Some(std::process::id()),
            every: Duration::from_secs(60),
        });
        let seen = watch.stop();
        let intervals = seen.intervals();
        assert_eq!(intervals.len(), 1, "the first look and the last");
        assert!(intervals[0].counters.is_empty() && intervals[0].cpu.is_some());
    }
}
