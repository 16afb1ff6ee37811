//! The durable path of a broker beside the raw disk below it, in one run. Scope: one comparison.
//! Owns: the order of rounds, the brokers and files of the run, the report.
//! Invariants: rounds of what is compared alternate, so a machine that drifts drifts for both; broker and raw disk are
//! driven from the same CPU and use the same folder; the load runs on the other CPU; a folder in memory is refused.
//! Not here: the raw disk (`raw_disk`), one load run (`load`), when a figure is good enough (`verdict`).

pub(crate) mod brokers;
mod history;
mod report;
mod shards;
mod syncs;
mod verdict;
pub(crate) mod write;

use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;

use crate::cluster::ClusterError;
use crate::load::LoadError;
use crate::machine::{Machine, load_average};
use crate::raw_disk::RawError;
use crate::shape::{Acks, Shape, ShapeError};
use crate::target::TargetError;
use crate::volume::FileSystem;

pub use history::HistoryCase;
pub use report::{Busy, Series};
pub use shards::ShardsCase;
pub use syncs::Syncs;
pub use verdict::{Bounds, Verdict};
pub use write::WriteCase;

/// Shards that small batches are spread over.
const SHARDS: u32 = 48;
/// What is written before writes are counted, so that the log uses blocks again: so many times what it may keep.
const LAPS_BEFORE: u64 = 2;
/// A shard of the case with many keeps this part of what the others keep, so that all of them fit a disk.
const KEPT_PART: u64 = 16;

/// Which cases run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cases {
    pub write: bool,
    pub shards: bool,
    pub history: bool,
}

/// What is compared, and where.
#[derive(Debug, Clone)]
pub struct DiskComparison {
    pub cases: Cases,
    /// Runs of each.
    pub rounds: u32,
    /// Seconds that are counted of each run.
    pub seconds: f64,
    /// Where the broker's volume and the raw files are made; they are removed at the end.
    pub dir: PathBuf,
    pub server_cpu: usize,
    pub client_cpu: usize,
    /// Unanswered batches of each publishing stream, and operations in flight at the raw disk.
    pub depth: u32,
    /// Bytes of a history, and of the file that is read beside it.
    pub history_bytes: u64,
    /// Bytes the logs of the write cases keep of each shard, and of the file that is written beside them.
    pub kept_bytes: u64,
    /// Batches per second of the live publisher.
    pub live_rate: f64,
    /// Largest datagram that path discovery tries, bytes of UDP payload.
    pub mtu: u16,
    pub bounds: Bounds,
}

/// Why nothing was compared.
#[derive(Debug, thiserror::Error)]
pub enum DiskCompareError {
    #[error("{dir} lies on {kind}, which keeps its bytes in memory: name a folder on a disk with --dir")]
    InMemory { dir: PathBuf, kind: String },
    #[error("{dir}: {error}")]
    Folder { dir: PathBuf, error: std::io::Error },
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    #[error(transparent)]
    Target(#[from] TargetError),
    #[error(transparent)]
    Shape(#[from] ShapeError),
    #[error("raw disk: {0}")]
    Raw(#[from] RawError),
    #[error("{what}: {error}")]
    Load { what: &'static str, error: LoadError },
    #[error("{0} panicked")]
    Thread(&'static str),
    #[error("publishing {wanted_bytes} bytes took longer than {waited_s} s")]
    Preload { wanted_bytes: u64, waited_s: u64 },
}

/// How everything was set.
#[derive(Debug, Clone, Serialize)]
pub struct DiskSettings {
    pub rounds: u32,
    pub seconds: f64,
    pub depth: u32,
    pub server_cpu: usize,
    pub client_cpu: usize,
    pub mtu: u16,
    pub history_bytes: u64,
    pub kept_bytes: u64,
    pub dir: PathBuf,
    /// Settings of the brokers beside their defaults.
    pub write_broker: Vec<String>,
    pub shards_broker: Vec<String>,
    pub history_broker: Vec<String>,
}

/// The outcome.
#[derive(Debug, Clone, Serialize)]
pub struct DiskReport {
    pub kind: &'static str,
    pub machine: Machine,
    pub file_system: FileSystem,
    pub settings: DiskSettings,
    pub bounds: Bounds,
    /// Load averages over one minute when the run began and ended.
    pub load_average: (f64, f64),
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write: Option<WriteCase>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shards: Option<ShardsCase>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub history: Option<HistoryCase>,
}

impl DiskReport {
    fn verdicts(&self) -> impl Iterator<Item = &Verdict> {
        let write = self.write.iter().map(|case| &case.verdict);
        let shards = self.shards.iter().map(|case| &case.verdict);
        write.chain(shards).chain(self.history.iter().map(|case| &case.verdict))
    }

    /// Every case that ran kept its bounds.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.verdicts().all(|verdict| verdict.passed)
    }

    /// Nothing was refused, lost or left unanswered in any run.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        let write = self.write.iter().map(|case| case.clean);
        let shards = self.shards.iter().map(|case| case.clean);
        write.chain(shards).chain(self.history.iter().map(|case| case.clean)).all(|clean| clean)
    }
}

/// Says what file system the run would use.
///
/// # Errors
/// The folder cannot be looked at, or lies in memory.
pub fn preflight(comparison: &DiskComparison) -> Result<FileSystem, DiskCompareError> {
    let dir = comparison.dir.clone();
    let system =
        FileSystem::of(&dir).map_err(|error| DiskCompareError::Folder { dir: dir.clone(), error })?;
    if system.is_in_memory() {
        return Err(DiskCompareError::InMemory { dir, kind: system.kind });
    }
    Ok(system)
}

/// Compares.
///
/// # Errors
/// The folder is no good, a broker could not be started, or a run failed. Everything started is ended.
pub fn run(comparison: &DiskComparison) -> Result<DiskReport, DiskCompareError> {
    let file_system = preflight(comparison)?;
    let began = load_average();
    let dir = comparison.dir.clone();
    let folder = tempfile::Builder::new()
        .prefix("felix-bench-disk-")
        .tempdir_in(&dir)
        .map_err(|error| DiskCompareError::Folder { dir, error })?;
    let place = Place { comparison, folder: folder.path() };
    let Cases { write, shards, history } = comparison.cases;
    let write = write.then(|| write::run(&place)).transpose()?;
    let shards = shards.then(|| shards::run(&place)).transpose()?;
    let history = history.then(|| history::run(&place)).transpose()?;
    Ok(DiskReport {
        kind: "compare-disk",
        machine: Machine::look(),
        file_system,
        settings: comparison.settings(),
        bounds: comparison.bounds,
        load_average: (began, load_average()),
        write,
        shards,
        history,
    })
}

/// A comparison under way.
pub(crate) struct Place<'c> {
    comparison: &'c DiskComparison,
    /// On the volume; removed with everything in it at the end.
    folder: &'c std::path::Path,
}

impl DiskComparison {
    fn duration(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }

    /// Bulk batches: the canonical shape at the depth of this run.
    fn bulk(&self) -> Shape {
        Shape {
            name: "4 KiB x 64".to_owned(),
            inflight: self.depth,
            warmup_s: self.seconds.min(1.0),
            duration_s: self.seconds,
            mtu: self.mtu,
            ..Shape::canonical()
        }
    }

    /// Small batches on as many streams as there are shards, whether they write to all of them or to one.
    fn small(&self, shards: u32) -> Shape {
        Shape {
            name: format!("256 B x 64 over {shards}"),
            record_bytes: 256,
            acks: Acks::Batch,
            streams: SHARDS,
            shards,
            ..self.bulk()
        }
    }

    /// What each shard keeps where there are many.
    fn shard_kept_bytes(&self) -> u64 {
        self.kept_bytes / KEPT_PART
    }

    fn settings(&self) -> DiskSettings {
        DiskSettings {
            rounds: self.rounds,
            seconds: self.seconds,
            depth: self.depth,
            server_cpu: self.server_cpu,
            client_cpu: self.client_cpu,
            mtu: self.mtu,
            history_bytes: self.history_bytes,
            kept_bytes: self.kept_bytes,
            dir: self.dir.clone(),
            write_broker: brokers::settings(self.mtu, Some(self.kept_bytes)),
            shards_broker: brokers::settings(self.mtu, Some(self.shard_kept_bytes())),
            history_broker: brokers::settings(self.mtu, None),
        }
    }
}
