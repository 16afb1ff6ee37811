//! What the disk below a folder takes: sequential writes that are synced, small and large, at several depths, over fresh
//! blocks and over blocks that were written before. Scope: a folder of its own, removed at the end.
//! Invariants: nothing goes through the page cache; each row is durable when it is counted.
//! Not here: asking one file (`raw_disk`), comparing with a broker (`compare_disk`).

use std::fmt;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::PreflightError;
use crate::measure::LatencySummary;
use crate::raw_disk::{RawFile, RawKind, RawPlan};
use crate::volume::FileSystem;

/// A small commit, and a bulk batch.
const SIZES: [usize; 2] = [4 << 10, 256 << 10];
/// Writes in flight, each synced.
const DEPTHS: [usize; 3] = [1, 4, 16];
/// Writes of one group with one sync.
const GROUP: usize = 8;
/// Of a file; a fresh one ends a row when it is full.
const FILE_BYTES: u64 = 256 << 20;
const QUICK_FILE_BYTES: u64 = 32 << 20;

/// One way to write.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DiskRow {
    pub op_bytes: usize,
    pub depth: usize,
    pub kind: RawKind,
    /// Over blocks that were written before.
    pub recycled: bool,
    pub mb_per_s: f64,
    pub ops_per_s: f64,
    pub latency: LatencySummary,
}

/// The table of a disk.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Qualification {
    pub file_system: FileSystem,
    pub rows: Vec<DiskRow>,
}

impl Qualification {
    /// Megabytes per second of the fastest synced row of large writes.
    #[must_use]
    pub fn best_mb_per_s(&self) -> f64 {
        self.rows.iter().map(|row| row.mb_per_s).fold(0.0, f64::max)
    }

    /// The row of one small synced write at a time over used blocks: what a lone durable answer waits for.
    #[must_use]
    pub fn lone_commit(&self) -> Option<&DiskRow> {
        self.rows.iter().find(|row| row.recycled && row.depth == 1 && row.op_bytes == SIZES[0])
    }
}

/// The whole table, each row measured for `row`, asked from `cpu`.
///
/// # Errors
/// The folder is not there, lies in memory, or the disk failed.
pub fn qualify(dir: &Path, cpu: Option<usize>, row: Duration) -> Result<Qualification, PreflightError> {
    let ways = SIZES.into_iter().flat_map(|op_bytes| {
        let each = DEPTHS.into_iter().map(move |depth| (op_bytes, depth, RawKind::EachSynced));
        each.chain([(op_bytes, GROUP, RawKind::GroupSynced)])
    });
    let ways = ways.flat_map(|way| [false, true].map(|recycled| (way, recycled))).collect::<Vec<_>>();
    table(dir, cpu, row, FILE_BYTES, &ways)
}

/// Two rows that show whether the disk is still what it was: a lone small write, and a group of large ones.
///
/// # Errors
/// As `qualify`.
pub fn requalify(dir: &Path, cpu: Option<usize>, row: Duration) -> Result<Qualification, PreflightError> {
    let ways = [((SIZES[0], 1, RawKind::EachSynced), true), ((SIZES[1], GROUP, RawKind::GroupSynced), true)];
    table(dir, cpu, row, QUICK_FILE_BYTES, &ways)
}

type Way = ((usize, usize, RawKind), bool);

fn table(
    dir: &Path,
    cpu: Option<usize>,
    duration: Duration,
    file_bytes: u64,
    ways: &[Way],
) -> Result<Qualification, PreflightError> {
    let failed = |error| PreflightError::Folder { dir: dir.to_owned(), error };
    let file_system = FileSystem::of(dir).map_err(failed)?;
    if file_system.is_in_memory() {
        return Err(PreflightError::InMemory { dir: dir.to_owned(), kind: file_system.kind });
    }
    let folder = tempfile::Builder::new().prefix("felix-disk-").tempdir_in(dir).map_err(failed)?;
    let cpu = cpu.unwrap_or(0);
    let used = RawFile::make(folder.path(), "recycled", file_bytes, cpu)?;
    let mut rows = Vec::new();
    for ((op_bytes, depth, kind), recycled) in ways.iter().copied() {
        let plan = RawPlan { kind, depth, op_bytes, duration };
        let rate = if recycled {
            used.run(&plan)?
        } else {
            let rate = RawFile::fresh(folder.path(), "fresh", file_bytes, cpu)?.run(&plan)?;
            std::fs::remove_file(folder.path().join("fresh")).map_err(failed)?;
            rate
        };
        rows.push(DiskRow {
            op_bytes,
            depth,
            kind,
            recycled,
            mb_per_s: rate.mb_per_s(),
            ops_per_s: rate.operations as f64 / rate.seconds,
            latency: rate.latency,
        });
    }
    Ok(Qualification { file_system, rows })
}

impl fmt::Display for DiskRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            RawKind::GroupSynced => "one sync a group",
            RawKind::EachSynced => "each synced",
            RawKind::Read => "read",
        };
        let blocks = if self.recycled { "used" } else { "fresh" };
        write!(
            f,
            "{:>3} KiB x {:<2} {kind:<16} {blocks:<5} blocks: {:>6.0} MB/s, {:>6.0} a second, p50 {:.0} us, p99 {:.0} us",
            self.op_bytes >> 10,
            self.depth,
            self.mb_per_s,
            self.ops_per_s,
            self.latency.p50_us,
            self.latency.p99_us
        )
    }
}

impl fmt::Display for Qualification {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "disk       {} on {}", self.file_system.kind, self.file_system.source)?;
        self.rows.iter().try_for_each(|row| writeln!(f, "           {row}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_has_its_row_and_nothing_is_left() {
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let found = qualify(folder.path(), Some(0), Duration::from_millis(5)).unwrap();
        assert_eq!(found.rows.len(), SIZES.len() * (DEPTHS.len() + 1) * 2);
        assert!(found.rows.iter().all(|row| row.mb_per_s > 0.0 && row.latency.count > 0), "{found}");
        assert!(found.lone_commit().is_some() && found.best_mb_per_s() > 0.0);
        assert_eq!(requalify(folder.path(), Some(0), Duration::from_millis(5)).unwrap().rows.len(), 2);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
