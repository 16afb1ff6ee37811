//! How long a durable cache of many keys takes until it is served again, and what a key costs. Scope: one run.
//! Owns: a broker and its files, which are removed at the end.
//! Invariants: "ready" counts from the start of the program (or the kill) to the answer of a get; values that are read
//! afterwards have their length.
//! Not here: one load (`super`), recovery itself (the broker).

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use felix_wire::client::Form;
use serde::Serialize;

use super::{RequestKind, RequestPlan, usual_shape};
use crate::cluster::{DevBroker, end_by_id, noun_command};
use crate::machine::{Machine, load_average};
use crate::measure::LoadReport;
use crate::peers::{PeerError, on_cpu};
use crate::proc::resident_bytes;
use crate::shape::Shape;
use crate::target::Target;

const CACHE: &str = "bench-keys";
/// Seconds from the start to the first answer, at most: after an orderly stop, and after a kill.
pub const AFTER_STOP_S_MAX: f64 = 10.0;
pub const AFTER_KILL_S_MAX: f64 = 30.0;
/// A broker that serves nothing by then never will.
const DEADLINE: Duration = Duration::from_secs(300);

/// What is measured, and where.
#[derive(Debug, Clone)]
pub struct RestartPlan {
    pub keys: u32,
    pub value_bytes: u32,
    /// Where the broker keeps its files.
    pub dir: PathBuf,
    pub mtu: u16,
    pub server_cpu: usize,
    pub client_cpu: usize,
}

/// The outcome.
#[derive(Debug, Clone, Serialize)]
pub struct RestartReport {
    pub kind: &'static str,
    pub machine: Machine,
    pub keys: u32,
    pub value_bytes: u32,
    /// Of the last minute, before and after.
    pub load_average: (f64, f64),
    /// Seconds of writing all keys.
    pub load_s: f64,
    /// Resident memory of the broker without a key, and when it has read its logs after the stop and after the kill.
    pub resident_empty: u64,
    pub resident_after_stop: u64,
    pub resident_after_kill: u64,
    /// Bytes of the files of the broker.
    pub file_bytes: u64,
    pub after_stop_s: f64,
    pub after_kill_s: f64,
    /// Gets of values after each start that were answered, and whether all of them were right.
    pub gets_per_s: (f64, f64),
    pub clean: bool,
}

impl RestartReport {
    /// Bytes of memory that a key takes: of what the broker has more than without keys after it was stopped, values that it
    /// has read meanwhile included.
    #[must_use]
    pub fn bytes_per_key(&self) -> f64 {
        self.resident_after_stop.saturating_sub(self.resident_empty) as f64 / f64::from(self.keys.max(1))
    }

    #[must_use]
    pub fn passed(&self) -> bool {
        self.after_stop_s <= AFTER_STOP_S_MAX && self.after_kill_s <= AFTER_KILL_S_MAX
    }
}

/// Measures.
///
/// # Errors
/// The broker could not be started, or not within five minutes again, or a load could not be run. Everything started is
/// ended.
pub fn run(plan: &RestartPlan) -> Result<RestartReport, PeerError> {
    let before = load_average();
    let folder = tempfile::Builder::new()
        .prefix("felix-restart-")
        .tempdir_in(&plan.dir)
        .map_err(|error| PeerError::Folder { dir: plan.dir.clone(), error })?;
    let broker = start(plan, folder.path())?;
    broker.create_cache(CACHE, 1)?;
    noun_command("cache", broker.ready_file(), &["put", CACHE, "first", "v"])?;
    let resident_empty = resident(&broker);
    let began = Instant::now();
    let loaded = gets(plan, &broker, Fill::All)?;
    let load_s = (began.elapsed().as_secs_f64() - loaded.seconds).max(0.0);
    eprintln!("{} keys in {load_s:.1} s", plan.keys);
    stop(broker)?;
    let file_bytes = bytes_below(folder.path());
    let began = Instant::now();
    let mut broker = start(plan, folder.path())?;
    let after_stop_s = answers(&broker, plan.keys, began)?;
    let resident_after_stop = resident(&broker);
    eprintln!("ready {after_stop_s:.2} s after the start that followed a stop");
    let stopped = gets(plan, &broker, Fill::Nothing)?;
    let began = Instant::now();
    end_by_id(broker.ready().pids.broker, "felix-");
    let after_kill_s = answers(&broker, plan.keys, began)?;
    broker.reread()?;
    let resident_after_kill = resident(&broker);
    eprintln!("ready {after_kill_s:.2} s after a kill");
    let killed = gets(plan, &broker, Fill::Nothing)?;
    stop(broker)?;
    Ok(RestartReport {
        kind: "restart",
        machine: Machine::look(),
        keys: plan.keys,
        value_bytes: plan.value_bytes,
        load_average: (before, load_average()),
        load_s,
        resident_empty,
        resident_after_stop,
        resident_after_kill,
        file_bytes,
        after_stop_s,
        after_kill_s,
        gets_per_s: (stopped.batches_per_s(), killed.batches_per_s()),
        clean: [loaded, stopped, killed].iter().all(LoadReport::is_clean),
    })
}

fn start(plan: &RestartPlan, folder: &Path) -> Result<DevBroker, PeerError> {
    let mtu = format!("mtu_upper_bound={}", plan.mtu);
    let args = ["--set", "spin_us=0", "--set", &mtu];
    Ok(DevBroker::start(folder, &plan.server_cpu.to_string(), &args)?)
}

fn stop(broker: DevBroker) -> Result<(), PeerError> {
    match broker.stop() {
        Some(0) => Ok(()),
        status => {
            Err(PeerError::Program { name: "felix dev".to_owned(), why: format!("it left with {status:?}") })
        }
    }
}

fn resident(broker: &DevBroker) -> u64 {
    resident_bytes(broker.ready().pids.broker).unwrap_or(0)
}

/// Whether the keys have to be written first.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fill {
    All,
    Nothing,
}

/// Reads values for some seconds.
fn gets(plan: &RestartPlan, broker: &DevBroker, fill: Fill) -> Result<LoadReport, PeerError> {
    let name = format!("gets of {} keys", plan.keys);
    let shape = Shape { record_bytes: plan.value_bytes, mtu: plan.mtu, name, ..usual_shape() };
    let requests = RequestPlan {
        name: "broker".to_owned(),
        target: Target::from_ready(broker.ready(), CACHE)?,
        kind: RequestKind::CacheGet,
        keys: plan.keys as usize,
        form: Form::Binary,
        shape,
    };
    on_cpu(plan.client_cpu, "gets", move || match fill {
        Fill::All => super::run(&requests),
        Fill::Nothing => super::run_unprepared(&requests),
    })
}

/// Waits until the last key is answered, as a person would ask for it. Gives the seconds since `began`.
fn answers(broker: &DevBroker, keys: u32, began: Instant) -> Result<f64, PeerError> {
    let key = super::keyed::key_of(keys.saturating_sub(1) as usize);
    loop {
        let asked = noun_command("cache", broker.ready_file(), &["get", CACHE, &key]);
        match asked {
            Ok(()) => return Ok(began.elapsed().as_secs_f64()),
            Err(error) if began.elapsed() > DEADLINE => return Err(error.into()),
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// Bytes of the files below a folder. What goes meanwhile has none.
fn bytes_below(folder: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(folder) else { return 0 };
    let of = |entry: std::fs::DirEntry| match entry.file_type() {
        Ok(kind) if kind.is_dir() => bytes_below(&entry.path()),
        _ => entry.metadata().map_or(0, |found| found.len()),
    };
    entries.flatten().map(of).sum()
}

impl fmt::Display for RestartReport {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let verdict = |holds: bool| if holds { "kept" } else { "NOT REACHED" };
        writeln!(
            out,
            "{} keys with values of {} B, written in {:.1} s; {:.0} MiB of files",
            self.keys,
            self.value_bytes,
            self.load_s,
            mib(self.file_bytes)
        )?;
        writeln!(
            out,
            "ready after a stop in {:.2} s (at most {AFTER_STOP_S_MAX} s: {}), after kill -9 in {:.2} s (at most \
             {AFTER_KILL_S_MAX} s: {})",
            self.after_stop_s,
            verdict(self.after_stop_s <= AFTER_STOP_S_MAX),
            self.after_kill_s,
            verdict(self.after_kill_s <= AFTER_KILL_S_MAX),
        )?;
        writeln!(
            out,
            "{:.0} B of memory for a key ({:.0} MiB without keys, {:.0} MiB after the stop, {:.0} MiB after the kill)",
            self.bytes_per_key(),
            mib(self.resident_empty),
            mib(self.resident_after_stop),
            mib(self.resident_after_kill)
        )?;
        writeln!(
            out,
            "gets of {} and {} keys in turn per second afterwards: {:.0} and {:.0}{}",
            self.keys,
            self.keys,
            self.gets_per_s.0,
            self.gets_per_s.1,
            if self.clean { "" } else { " (NOT CLEAN)" }
        )
    }
}
