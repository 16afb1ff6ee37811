//! Looks at the volume of a stopped broker: what is there, and what is wrong where. Scope: one call per volume.
//! Owns: the report and the meaning of a finding.
//! Invariants: nothing is ever written; a volume in use is refused; what recovery would cut off or repair is no damage, and
//! what it would refuse is; payloads are neither kept nor shown. In memory are one batch (16 MiB) at a time, the heads of the
//! rounds of all slots as recovery keeps them, a row per shard and segment, and bounded numbers of batch rows and findings.
//! Not here: repairing (`recovery`), printing. Reads block: this is a tool for a stopped broker, never called on a core.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod files;
mod finding;
mod rounds;
mod segment;
mod shard;
mod slots;

use std::io;
use std::path::{Path, PathBuf};

use felix_runtime::file::{DiskPath, EntryKind};
use felix_wire::id::{CoreId, Generation, Offset, ProducerId, Sequence};

use crate::checksum::Epoch;
use crate::commit::slot::RECOVERY_CORE;
use crate::id::{Fsync, Lineage, Run, SegmentSeq, ShardKey};
use crate::names;
use crate::record::BatchKind;
use crate::recovery::evidence::Evidence;
use crate::recovery::slots::SlotRead;

pub use finding::{Finding, Severity, What};

use files::{Tree, VOLUME};
use finding::Sink;

/// Findings that are kept; all are counted. Each is a line that somebody reads.
pub const FINDINGS_MAX: usize = 1_000;
/// Batch rows one call gives at most, so that a report stays below some 20 MiB.
pub const BATCH_ROWS_MAX: usize = 100_000;

/// What to look at. The default is everything but the rows of batches.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Only shards whose directory name begins so; everything when empty.
    pub shard_prefix: String,
    pub batches: Option<BatchRange>,
}

/// Which batches get a row each.
#[derive(Debug, Clone, Copy)]
pub struct BatchRange {
    /// The batch that holds it is the first.
    pub from: Offset,
    /// Rows over all shards, at most [`BATCH_ROWS_MAX`].
    pub limit: usize,
}

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum InspectError {
    #[error("a broker is using this directory ({path} is locked)")]
    InUse { path: PathBuf },
    #[error("{path} is no log directory: it has neither `slots` nor `shards`")]
    NotALog { path: PathBuf },
    #[error("no shard begins with `{prefix}`")]
    NoSuchShard { prefix: String },
    #[error("{path}: slot version {version} is not known")]
    Version { path: PathBuf, version: u32 },
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: io::Error },
}

/// What a volume holds.
#[derive(Debug)]
pub struct Report {
    /// The highest run that has a slot; 0 when there is none.
    pub run: u64,
    pub slots: Vec<SlotRow>,
    /// By key.
    pub shards: Vec<ShardRow>,
    pub batches: Vec<BatchRow>,
    /// Files that wait for their next use, and their bytes.
    pub pool_files: u64,
    pub pool_bytes: u64,
    /// The first [`FINDINGS_MAX`], in the order in which they were met: slots first, then shard by shard.
    pub findings: Vec<Finding>,
    /// All findings that are damage, also those not kept.
    pub damage: u64,
    /// All others.
    pub notes: u64,
}

impl Report {
    /// Nothing that was durable is missing or unreadable.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.damage == 0
    }
}

/// A slot of the commit file.
#[derive(Debug, Clone)]
pub struct SlotRow {
    /// Its path below the directory.
    pub file: String,
    pub bytes: u64,
    /// None when it was never used or its head is gone.
    pub head: Option<SlotUse>,
    /// Rounds that can be read.
    pub rounds: u64,
    pub first_round: u64,
    pub last_round: u64,
    /// Of these, rounds that are still needed.
    pub live_rounds: u64,
    pub marks: u64,
    pub pieces: u64,
    /// The last readable round is the last of an orderly stop.
    pub clean: bool,
}

/// Whose use of a slot it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotUse {
    pub run: Run,
    /// None for the slot that recovery leaves.
    pub core: Option<CoreId>,
    pub number: u64,
    pub epoch: Epoch,
}

/// How a shard would come up at the next start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShardState {
    /// Whole.
    Sound,
    /// Whole; bytes that never were durable will be cut off its end.
    Torn,
    /// Served, but a part of it cannot be read.
    Damaged,
    /// Not served: a start refuses it.
    Refused,
    /// Deleted; its files are removed at the next start.
    Deleted,
}

/// A shard.
#[derive(Debug, Clone)]
pub struct ShardRow {
    pub key: ShardKey,
    pub state: ShardState,
    pub policy: Fsync,
    pub lineage: Lineage,
    /// The first offset that can be read.
    pub start: Offset,
    /// One past the last.
    pub end: Offset,
    /// Batches and records of the segments that are the log, pieces that are only in slots included.
    pub batches: u64,
    pub records: u64,
    /// Bytes of all its files.
    pub bytes: u64,
    /// Every segment file, by number.
    pub segments: Vec<SegmentRow>,
}

impl ShardRow {
    /// Segments that are the log.
    #[must_use]
    pub fn segment_count(&self) -> usize {
        self.segments
            .iter()
            .filter(|segment| matches!(segment.role, SegmentRole::Sealed | SegmentRole::Newest))
            .count()
    }
}

/// What a segment file is to its log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SegmentRole {
    /// A part whose end is known.
    Sealed,
    /// The last part; its end is found by reading.
    Newest,
    /// All of it is below the start offset.
    Retired,
    /// Cut off the log, or of a use that never began.
    LeftOver,
    /// Its head is damaged.
    Headless,
}

/// A segment file.
#[derive(Debug, Clone, Copy)]
pub struct SegmentRow {
    pub seq: SegmentSeq,
    pub role: SegmentRole,
    /// Length of the file.
    pub bytes: u64,
    /// Offset of the first batch, and one past the last that can be read; both 0 without a head.
    pub base: Offset,
    pub end: Offset,
    /// One past the last batch that can be read.
    pub end_byte: u64,
    pub lineage: Lineage,
    pub batches: u64,
    pub records: u64,
    /// Milliseconds since 1970; 0 when nothing was read.
    pub newest_ms: u64,
    /// Places in it that cannot be read.
    pub damage: u64,
}

/// A batch.
#[derive(Debug, Clone, Copy)]
pub struct BatchRow {
    pub key: ShardKey,
    pub segment: SegmentSeq,
    /// Where it begins in the segment.
    pub byte: u64,
    pub bytes: u64,
    pub kind: BatchKind,
    pub base: Offset,
    pub count: u32,
    pub generation: Generation,
    pub lineage: Lineage,
    pub durable_end: Offset,
    pub timestamp_ms: u64,
    pub producer: Option<(ProducerId, Sequence)>,
}

/// Looks at the volume in `root`, whose broker must have stopped. Reads every batch of the shards chosen.
///
/// # Errors
/// The directory is none of ours, is in use, or cannot be read. Damage is in the report.
pub fn inspect(root: &Path, options: &Options) -> Result<Report, InspectError> {
    let tree = Tree::open(root)?;
    let mut sink = Sink::new(options);
    name_strangers(&tree, &mut sink)?;
    let (reads, slots) = slots::read_all(&tree, &mut sink)?;
    let mut evidence = Evidence::gather(&reads);
    let keys = find_shards(&tree, &mut sink)?;
    let chosen = |key: &ShardKey| key.to_string().starts_with(&options.shard_prefix);
    let mut missing = 0;
    for key in evidence.without_directory(&keys).filter(&chosen) {
        missing += 1;
        let path = names::shard(VOLUME, key);
        sink.damage(Finding::of_shard(key, &path, What::DirectoryMissing));
    }
    let wanted: Vec<ShardKey> = keys.into_iter().filter(|key| chosen(key)).collect();
    if wanted.is_empty() && missing == 0 && !options.shard_prefix.is_empty() {
        return Err(InspectError::NoSuchShard { prefix: options.shard_prefix.clone() });
    }
    let paths: Vec<DiskPath> = reads.into_iter().map(|read: SlotRead| read.path).collect();
    let mut shards = Vec::with_capacity(wanted.len());
    for key in wanted {
        let known = evidence.logs.entry(key).or_default();
        shards.push(shard::inspect(&tree, &paths, key, known, &mut sink)?);
    }
    let (pool_files, pool_bytes) = pool(&tree)?;
    let Sink { findings, damage, notes, batches, .. } = sink;
    Ok(Report { run: evidence.run, slots, shards, batches, pool_files, pool_bytes, findings, damage, notes })
}

/// Names what is not of ours at the top and among the slots.
fn name_strangers(tree: &Tree, sink: &mut Sink<'_>) -> Result<(), InspectError> {
    let ours = [names::LOCK, names::SLOTS, names::POOL, names::SHARDS];
    for entry in tree.list(&DiskPath::root(VOLUME))? {
        if !ours.contains(&entry.name.as_str()) {
            sink.note(Finding::of_file(entry.name, What::ForeignFile));
        }
    }
    if !tree.is_locked() {
        sink.note(Finding::of_file(names::LOCK.to_owned(), What::NoLock));
    }
    Ok(())
}

/// The shards that have a directory, by key.
fn find_shards(tree: &Tree, sink: &mut Sink<'_>) -> Result<Vec<ShardKey>, InspectError> {
    let mut keys = Vec::new();
    for entry in tree.list(&names::top(VOLUME, names::SHARDS))? {
        let key = names::shard_of(&entry.name).filter(|_| entry.kind == EntryKind::Directory);
        match key.filter(|key| key.to_string() == entry.name) {
            Some(key) => keys.push(key),
            None => {
                sink.note(Finding::of_file(format!("{}/{}", names::SHARDS, entry.name), What::ForeignFile))
            }
        }
    }
    keys.sort();
    Ok(keys)
}

/// Files of the pool and their bytes. What is in them is of no use any more.
fn pool(tree: &Tree) -> Result<(u64, u64), InspectError> {
    let dir = names::top(VOLUME, names::POOL);
    let (mut files, mut bytes) = (0, 0);
    for entry in tree.list(&dir)? {
        if let (EntryKind::File, Ok(path)) = (entry.kind, dir.join(&entry.name)) {
            files += 1;
            bytes += tree.file(&path)?.1;
        }
    }
    Ok((files, bytes))
}

/// The core of a slot; none for the slot that recovery leaves.
fn core_of(core: CoreId) -> Option<CoreId> {
    (core != RECOVERY_CORE).then_some(core)
}
