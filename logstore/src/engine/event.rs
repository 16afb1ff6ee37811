//! What an engine tells, and what it can be asked. Scope: values.
//! Not here: claims (`log`).

use std::time::Duration;

use felix_runtime::file::DiskError;
use felix_wire::id::Offset;

use crate::id::{SegmentSeq, ShardKey};
use crate::log::{CutError, Log, StopReason};
use crate::record::{Batch, BatchFault};

/// One log of an engine. Never given twice by one engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogId(pub u64);

/// The caller's name for a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReadId(pub u64);

/// What happened.
#[derive(Debug)]
pub enum Event {
    /// The log exists durably. Only after `Engine::create`.
    Created {
        log: LogId,
    },
    /// It could not be made; nothing of it stays.
    CreateFailed {
        log: LogId,
        error: DiskError,
    },
    /// Everything below `end` is settled under the log's policy.
    Settled {
        log: LogId,
        end: Offset,
    },
    /// A claim that was refused with `NoRoom` is to be tried again: there is room, or another answer.
    Room {
        log: LogId,
    },
    /// The log takes no writes until the process has started again. Whether batches from `unknown_from` on are there is
    /// unknown.
    Stopped {
        log: LogId,
        reason: StopReason,
        unknown_from: Offset,
    },
    /// Batches from the one that holds the offset on, at least one, or none at the end.
    Page {
        read: ReadId,
        log: LogId,
        batches: Vec<Batch>,
    },
    ReadFailed {
        read: ReadId,
        log: LogId,
        error: ReadError,
    },
    /// The new start is durable.
    StartMoved {
        log: LogId,
        start: Offset,
    },
    /// The cut is durable.
    Cut {
        log: LogId,
        end: Offset,
    },
    CutFailed {
        log: LogId,
        error: CutError,
    },
    /// The log is gone, durably; its files go next.
    Deleted {
        log: LogId,
        key: ShardKey,
    },
    /// The log left this engine with all its bytes in its segments.
    Released {
        log: LogId,
        machine: Box<Log>,
    },
    /// Writes are refused for lack of space, or go on.
    Space {
        writes: bool,
    },
    /// A write or sync of the commit file or behind it failed; logged once, here.
    DiskTrouble {
        what: &'static str,
        error: DiskError,
    },
    /// The disk has not answered `count` operations of this kind for at least 5 s, one of them for `oldest`. Told again every
    /// 30 s while that is so; they may still end well.
    Unanswered {
        kind: &'static str,
        count: usize,
        oldest: Duration,
    },
    /// Everything is written and closed.
    Closed,
}

/// Why a read gave nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    #[error("no such log here")]
    Unknown,
    /// As many reads as allowed are under way.
    #[error("too many reads at once")]
    Busy,
    #[error("the log begins at {start}")]
    TooOld { start: Offset },
    #[error("the log ends at {end}")]
    InFuture { end: Offset },
    /// Bytes that were durable are not what was written: offsets `from..next` cannot be read. Reads over them fail, others
    /// go on, from `next` too.
    #[error("offsets {from}..{next} cannot be read: segment {segment:?} is damaged at byte {byte}: {fault}")]
    Damaged { from: Offset, next: Offset, segment: SegmentSeq, byte: u64, fault: BatchFault },
    #[error("segment {segment:?} cannot be read: {error}")]
    Disk { segment: SegmentSeq, error: DiskError },
}
