//! What an inspection found, where, and how much it matters. Scope: values.
//! Invariants: each kind has one code that never changes; a finding has no byte of a payload.
//! Not here: finding it.

use std::fmt;

use felix_runtime::file::DiskPath;
use felix_wire::id::Offset;

use super::{BATCH_ROWS_MAX, BatchRow, FINDINGS_MAX, Options};
use crate::commit::RoundFault;
use crate::id::{SegmentSeq, ShardKey};
use crate::record::BatchFault;

/// Whether something was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// Bytes that were durable are missing or wrong.
    Damage,
    /// Harmless: what a start cuts off, repairs, removes or leaves alone.
    Note,
}

/// One thing that is not as it should be, or is worth naming.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub severity: Severity,
    pub shard: Option<ShardKey>,
    pub segment: Option<SegmentSeq>,
    /// The path below the directory.
    pub file: String,
    pub byte: u64,
    pub what: What,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.shard, self.segment) {
            (Some(key), Some(seq)) => {
                write!(f, "shard {key} segment {:016x} byte {}: {}", seq.0, self.byte, self.what)
            }
            (Some(key), None) => write!(f, "shard {key}: {}", self.what),
            (None, _) if self.what.is_about_bytes() => {
                write!(f, "{} byte {}: {}", self.file, self.byte, self.what)
            }
            (None, _) => write!(f, "{}: {}", self.file, self.what),
        }
    }
}

impl Finding {
    pub(super) fn of_file(file: String, what: What) -> Finding {
        Finding { severity: Severity::Note, shard: None, segment: None, file, byte: 0, what }
    }

    pub(super) fn of_slot(path: &DiskPath, byte: u64, what: What) -> Finding {
        Finding { byte, ..Finding::of_file(path.as_str().to_owned(), what) }
    }

    pub(super) fn of_shard(key: ShardKey, path: &DiskPath, what: What) -> Finding {
        Finding { shard: Some(key), ..Finding::of_file(path.as_str().to_owned(), what) }
    }

    pub(super) fn of_segment(
        key: ShardKey,
        seq: SegmentSeq,
        path: &DiskPath,
        byte: u64,
        what: What,
    ) -> Finding {
        Finding { segment: Some(seq), byte, ..Finding::of_shard(key, path, what) }
    }
}

/// What it is. Ends of offsets and rounds are exclusive.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum What {
    #[error("both copies of the slot's head are damaged")]
    SlotHeadDamaged,
    #[error("copy {copy} of the slot's head is damaged; the other one is used")]
    SlotHeadCopyDamaged { copy: u8 },
    #[error("the file has {len} bytes, its head says {due}")]
    Cut { len: u64, due: u64 },
    #[error("{fault}: rounds {from} to {last} are lost, though later ones are there", last = .to - 1)]
    RoundDamaged { from: u64, to: u64, fault: RoundFault },
    #[error("rounds {from} to {last} are lost, though later ones are there", last = .to - 1)]
    RoundsMissing { from: u64, to: u64 },
    #[error("a piece of shard {key} in round {round} is not whole, though later rounds are there")]
    PieceDamaged { round: u64, key: ShardKey },
    #[error("the last round is not whole ({fault}): a start leaves it out")]
    TornRound { fault: RoundFault },
    #[error(
        "a piece of shard {key} in round {round} is not whole and was never synced: a start leaves it out"
    )]
    TornPiece { round: u64, key: ShardKey },
    #[error("rounds {from} to {last} are not there; as far as is known they were never synced", last = .to - 1)]
    RoundsUnsynced { from: u64, to: u64 },
    #[error("the slot was being made and was never used")]
    SlotUnfinished,
    #[error("the directory of the shard is missing")]
    DirectoryMissing,
    #[error("the segment is missing")]
    SegmentMissing,
    #[error("the head of the segment is damaged")]
    HeadDamaged,
    #[error("the head is of shard {key} segment {:016x}", seq.0)]
    HeadForeign { key: ShardKey, seq: SegmentSeq },
    #[error("version {0} is not known")]
    Version(u32),
    #[error("{fault}: offsets {from} to {last} cannot be read", from = from.0, last = to.0.saturating_sub(1))]
    Unreadable { fault: BatchFault, from: Offset, to: Offset },
    #[error("{fault}: offsets up to {durable} were durable, those from {found} on cannot be read", found = found.0, durable = durable.0.saturating_sub(1))]
    DurableLost { fault: BatchFault, found: Offset, durable: Offset },
    #[error("offsets {from} to {last} are in no segment", from = from.0, last = to.0.saturating_sub(1))]
    OffsetsMissing { from: Offset, to: Offset },
    #[error("ends with offset {found} at byte {found_byte}, but what follows says {due} at byte {due_byte}", found = found.0, due = due.0)]
    EndMismatch { found: Offset, found_byte: u64, due: Offset, due_byte: u64 },
    #[error("the last batch is not the one that what follows names")]
    EndChecksum,
    #[error("cannot be read: {0}")]
    Io(String),
    #[error("{fault}: offsets {from} to {last} cannot be read, all below the start offset", from = from.0, last = to.0.saturating_sub(1))]
    BelowStart { fault: BatchFault, from: Offset, to: Offset },
    #[error("torn tail from offset {from} on ({fault}; {whole_behind} whole batches behind it): never durable, a start cuts it off", from = from.0)]
    TornTail { fault: BatchFault, from: Offset, whole_behind: u64 },
    #[error("retired: below the start offset, a start removes it")]
    Retired,
    #[error("left over: cut off the log, a start removes it")]
    LeftOver,
    #[error("made ready for use and never used, a start removes it")]
    NeverUsed,
    #[error("foreign: no file of a log")]
    ForeignFile,
    #[error("the shard is deleted, a start removes its files")]
    Deleted,
    #[error("missing: a start of a broker meanwhile could not be kept away")]
    NoLock,
}

impl What {
    /// A name for programs; never changes.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            What::SlotHeadDamaged => "slot_head_damaged",
            What::SlotHeadCopyDamaged { .. } => "slot_head_copy_damaged",
            What::Cut { .. } => "cut",
            What::RoundDamaged { .. } => "round_damaged",
            What::RoundsMissing { .. } => "rounds_missing",
            What::PieceDamaged { .. } => "piece_damaged",
            What::TornRound { .. } => "torn_round",
            What::TornPiece { .. } => "torn_piece",
            What::RoundsUnsynced { .. } => "rounds_unsynced",
            What::SlotUnfinished => "slot_unfinished",
            What::DirectoryMissing => "directory_missing",
            What::SegmentMissing => "segment_missing",
            What::HeadDamaged => "head_damaged",
            What::HeadForeign { .. } => "head_foreign",
            What::Version(_) => "version",
            What::Unreadable { .. } => "unreadable",
            What::DurableLost { .. } => "durable_lost",
            What::OffsetsMissing { .. } => "offsets_missing",
            What::EndMismatch { .. } => "end_mismatch",
            What::EndChecksum => "end_checksum",
            What::Io(_) => "io",
            What::BelowStart { .. } => "below_start",
            What::TornTail { .. } => "torn_tail",
            What::Retired => "retired",
            What::LeftOver => "left_over",
            What::NeverUsed => "never_used",
            What::ForeignFile => "foreign_file",
            What::Deleted => "deleted",
            What::NoLock => "no_lock",
        }
    }

    /// Offsets that cannot be read because of it, where it says: the first, and one past the last.
    #[must_use]
    pub fn offsets(&self) -> Option<(Offset, Offset)> {
        match self {
            What::Unreadable { from, to, .. }
            | What::BelowStart { from, to, .. }
            | What::OffsetsMissing { from, to } => Some((*from, *to)),
            What::DurableLost { found, durable, .. } => Some((*found, *durable)),
            _ => None,
        }
    }

    fn is_about_bytes(&self) -> bool {
        !matches!(self, What::ForeignFile | What::NoLock | What::SlotUnfinished)
    }
}

/// Where findings and batch rows go. Scope: one inspection.
pub(super) struct Sink<'a> {
    options: &'a Options,
    pub findings: Vec<Finding>,
    pub damage: u64,
    pub notes: u64,
    pub batches: Vec<BatchRow>,
}

impl<'a> Sink<'a> {
    pub fn new(options: &'a Options) -> Sink<'a> {
        Sink { options, findings: Vec::new(), damage: 0, notes: 0, batches: Vec::new() }
    }

    pub fn damage(&mut self, finding: Finding) {
        self.damage += 1;
        self.keep(Finding { severity: Severity::Damage, ..finding });
    }

    pub fn note(&mut self, finding: Finding) {
        self.notes += 1;
        self.keep(Finding { severity: Severity::Note, ..finding });
    }

    fn keep(&mut self, finding: Finding) {
        if self.findings.len() < FINDINGS_MAX {
            self.findings.push(finding);
        }
    }

    /// Takes the row of a batch if it was asked for.
    pub fn batch(&mut self, row: BatchRow) {
        let Some(range) = self.options.batches else { return };
        let end = row.base.0.saturating_add(u64::from(row.count));
        if end > range.from.0 && self.batches.len() < range.limit.min(BATCH_ROWS_MAX) {
            self.batches.push(row);
        }
    }
}
