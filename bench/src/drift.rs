//! Whether a broker stays as it is over many minutes. Scope: one run against a broker of its own.
//! Owns: the windows, the judgement.
//! Invariants: one load runs through all windows, so nothing is warmed up again; rate and memory are read at the same moments,
//! at the broker; the first two windows are for filling what a broker keeps, the last is compared with the third.
//! Not here: the load (`load`), reading the broker (`watch`).

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;

use crate::cluster::{ClusterError, DevBroker};
use crate::compare;
use crate::compare_disk::brokers;
use crate::load::{self, LoadError, LoadPlan};
use crate::machine::{Machine, load_average, pin_thread};
use crate::scrape;
use crate::shape::{Shape, ShapeError};
use crate::target::{Target, TargetError};
use crate::volume::FileSystem;
use crate::watch::{APPENDED, Interval, Watch, Watched};

const STREAM: &str = "drift";
/// How far the last window may be from the third.
pub const WITHIN: f64 = 0.03;
/// The window that the last one is compared with, from 1, and the fewest windows that have one after it.
const REFERENCE: usize = 3;
pub const WINDOWS_MIN: u32 = REFERENCE as u32 + 1;
/// The load runs so much longer than the windows, before and after them.
const LEAD: Duration = Duration::from_millis(700);
/// What a durable stream keeps, so that its log uses its blocks again within the first two windows.
const KEPT_BYTES: u64 = 512 << 20;

/// What is run, and where.
#[derive(Debug, Clone)]
pub struct DriftPlan {
    /// Its own windows are not looked at.
    pub shape: Shape,
    pub windows: u32,
    /// Seconds of each window.
    pub seconds: f64,
    /// Where the broker keeps its files; on a disk when the stream is durable.
    pub dir: PathBuf,
    pub server_cpu: usize,
    pub client_cpu: usize,
}

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub enum DriftError {
    #[error(transparent)]
    Shape(#[from] ShapeError),
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    #[error(transparent)]
    Target(#[from] TargetError),
    #[error("the load: {0}")]
    Load(#[from] LoadError),
    #[error("the load thread panicked")]
    LoadThread,
    #[error("{dir}: {error}")]
    Folder { dir: PathBuf, error: std::io::Error },
    #[error("{dir} lies on {kind}, which keeps its bytes in memory: name a folder on a disk with --dir")]
    InMemory { dir: PathBuf, kind: String },
    #[error("{found} windows, {WINDOWS_MIN} are needed: the last is compared with the third")]
    Windows { found: usize },
    #[error("window {0}: the broker's counters or its memory could not be read")]
    Unread(usize),
}

/// One window.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Window {
    pub seconds: f64,
    /// Publishes that the broker appended.
    pub batches_per_s: f64,
    /// Resident memory of the broker at its end.
    pub resident_bytes: u64,
    pub core_busy_percent: f64,
}

/// The judgement.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Drift {
    /// The last window over the third.
    pub rate_ratio: f64,
    pub memory_ratio: f64,
    pub holds: bool,
}

/// Compares the last window with the third.
///
/// # Errors
/// There are too few windows.
pub fn judge(windows: &[Window]) -> Result<Drift, DriftError> {
    let (Some(third), Some(last)) =
        (windows.get(REFERENCE - 1), windows.get(REFERENCE..).and_then(<[_]>::last))
    else {
        return Err(DriftError::Windows { found: windows.len() });
    };
    let ratio = |last: f64, third: f64| if third > 0.0 { last / third } else { 0.0 };
    let rate_ratio = ratio(last.batches_per_s, third.batches_per_s);
    let memory_ratio = ratio(last.resident_bytes as f64, third.resident_bytes as f64);
    let within = |ratio: f64| (ratio - 1.0).abs() <= WITHIN;
    Ok(Drift { rate_ratio, memory_ratio, holds: within(rate_ratio) && within(memory_ratio) })
}

/// The outcome.
#[derive(Debug, Clone, Serialize)]
pub struct DriftReport {
    pub kind: &'static str,
    pub shape: Shape,
    pub machine: Machine,
    pub server_cpu: usize,
    pub client_cpu: usize,
    /// Of the last minute, before and after.
    pub load_average: (f64, f64),
    pub windows: Vec<Window>,
    #[serde(flatten)]
    pub drift: Drift,
    /// Nothing was refused, lost or left unanswered.
    pub clean: bool,
}

/// Runs the load through all windows.
///
/// # Errors
/// The broker could not be started or the load not be run, or the broker cannot be read. Everything started is ended.
pub fn run(plan: &DriftPlan) -> Result<DriftReport, DriftError> {
    if plan.windows < WINDOWS_MIN {
        return Err(DriftError::Windows { found: plan.windows as usize });
    }
    let all = Duration::from_secs_f64(plan.seconds) * plan.windows + 2 * LEAD;
    let shape = Shape { warmup_s: 0.0, duration_s: all.as_secs_f64(), ..plan.shape.clone() };
    shape.check()?;
    if shape.storage.is_durable() {
        on_a_disk(plan)?;
    }
    let before = load_average();
    let folder = tempfile::Builder::new()
        .prefix("felix-drift-")
        .tempdir_in(&plan.dir)
        .map_err(|error| DriftError::Folder { dir: plan.dir.clone(), error })?;
    let broker = start(plan, folder.path())?;
    compare::create_stream(&broker, STREAM, &shape)?;
    let target = Target::from_ready(broker.ready(), STREAM)?;
    let (cpu, load) = (plan.client_cpu, LoadPlan { name: "broker".to_owned(), target, shape });
    let thread = std::thread::spawn(move || {
        pin_thread(cpu);
        load::run(&load)
    });
    std::thread::sleep(LEAD);
    let every = Duration::from_secs_f64(plan.seconds);
    let watch = Watch::start(Watched {
        metrics: scrape::address(broker.ready()).ok(),
        pid: Some(broker.ready().pids.broker),
        every,
    });
    let report = thread.join().map_err(|_| DriftError::LoadThread)??;
    let intervals = watch.stop().intervals();
    let windows = windows(&intervals, plan.windows as usize)?;
    Ok(DriftReport {
        kind: "drift",
        shape: plan.shape.clone(),
        machine: Machine::look(),
        server_cpu: plan.server_cpu,
        client_cpu: plan.client_cpu,
        load_average: (before, load_average()),
        drift: judge(&windows)?,
        windows,
        clean: report.is_clean(),
    })
}

fn on_a_disk(plan: &DriftPlan) -> Result<(), DriftError> {
    let dir = plan.dir.clone();
    let system = FileSystem::of(&dir).map_err(|error| DriftError::Folder { dir: dir.clone(), error })?;
    if system.is_in_memory() { Err(DriftError::InMemory { dir, kind: system.kind }) } else { Ok(()) }
}

fn start(plan: &DriftPlan, folder: &std::path::Path) -> Result<DevBroker, DriftError> {
    let kept = plan.shape.storage.is_durable().then_some(KEPT_BYTES);
    let mut settings = brokers::settings(plan.shape.mtu, kept);
    settings.retain(|setting| !setting.starts_with("fsync="));
    settings.extend(plan.shape.storage.fsync().map(|mode| format!("fsync={mode}")));
    let args: Vec<&str> = settings.iter().flat_map(|setting| ["--set", setting]).collect();
    Ok(DevBroker::start(folder, &plan.server_cpu.to_string(), &args)?)
}

/// The first `wanted` looks; what comes after them is the end of the load.
fn windows(intervals: &[Interval], wanted: usize) -> Result<Vec<Window>, DriftError> {
    if intervals.len() < wanted {
        return Err(DriftError::Windows { found: intervals.len() });
    }
    let window = |(number, interval): (usize, &Interval)| {
        let appended = interval.counters.get(APPENDED).copied();
        let (Some(appended), Some(resident_bytes)) = (appended, interval.resident_bytes) else {
            return Err(DriftError::Unread(number + 1));
        };
        Ok(Window {
            seconds: interval.seconds,
            batches_per_s: appended / interval.seconds.max(f64::MIN_POSITIVE),
            resident_bytes,
            core_busy_percent: interval.cpu.as_ref().map_or(0.0, |used| used.core_busy_percent),
        })
    };
    intervals[..wanted].iter().enumerate().map(window).collect()
}

impl fmt::Display for DriftReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "drift: {}, {} windows", self.shape.name, self.windows.len())?;
        for (number, window) in (1..).zip(&self.windows) {
            writeln!(
                f,
                "{number:>4}  {:>10.0} batches/s  {:>8.1} MiB  core {:.0} % busy, {:.1} s",
                window.batches_per_s,
                window.resident_bytes as f64 / f64::from(1 << 20),
                window.core_busy_percent,
                window.seconds
            )?;
        }
        let word = if self.drift.holds { "holds" } else { "FALLS SHORT" };
        writeln!(
            f,
            "{word}: the last window has {:.3} times the rate of window {REFERENCE} and {:.3} times its memory ({:.0} % \
             asked){}",
            self.drift.rate_ratio,
            self.drift.memory_ratio,
            100.0 * WITHIN,
            if self.clean { "" } else { "; NOT CLEAN" }
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(batches_per_s: f64, resident_bytes: u64) -> Window {
        Window { seconds: 60.0, batches_per_s, resident_bytes, core_busy_percent: 99.0 }
    }

    fn of(third: (f64, u64), last: (f64, u64)) -> Drift {
        let first = window(1.0, 1);
        judge(&[first, first, window(third.0, third.1), first, window(last.0, last.1)]).unwrap()
    }

    #[test]
    fn the_last_window_is_compared_with_the_third() {
        let same = of((1_000.0, 10_000), (1_029.0, 9_710));
        assert!(same.holds && (same.rate_ratio - 1.029).abs() < 1e-9 && same.memory_ratio < 1.0);
        assert!(!of((1_000.0, 10_000), (969.0, 10_000)).holds, "slower");
        assert!(!of((1_000.0, 10_000), (1_000.0, 10_310)).holds, "it grows");
        assert!(!of((0.0, 0), (0.0, 0)).holds, "nothing over nothing");
        let few = [window(1.0, 1); REFERENCE];
        assert!(matches!(judge(&few), Err(DriftError::Windows { found: 3 })));
    }

    #[test]
    fn windows_are_the_first_intervals_and_each_must_be_whole() {
        let interval = |appended: f64, resident_bytes| Interval {
            ended_unix_s: 0.0,
            seconds: 2.0,
            counters: [(APPENDED.to_owned(), appended)].into(),
            appended_by_core: std::collections::BTreeMap::new(),
            resident_bytes,
            cpu: None,
        };
        let whole = interval(100.0, Some(7));
        let found = windows(&[whole.clone(), whole.clone(), interval(3.0, None)], 2).unwrap();
        assert_eq!((found.len(), found[1].batches_per_s, found[1].resident_bytes), (2, 50.0, 7));
        assert!(matches!(windows(&[whole.clone(), interval(3.0, None)], 2), Err(DriftError::Unread(2))));
        assert!(matches!(windows(&[whole], 2), Err(DriftError::Windows { found: 1 })));
    }
}
