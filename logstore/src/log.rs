//! One append-only log: what is claimed, appended, submitted, settled, durable, and where each part of it is.
//! Scope: one per shard, on the core that owns it; plain data, so it may move to another core.
//! Owns: the offsets, the segments in order, the bytes that are not in a segment yet.
//! Invariants: `start <= durable <= settled <= submitted <= appended <= claimed`; batches are submitted, settled and rolled in
//! offset order; a place is given to a batch when it is submitted and never changes; a claim finds its space reserved.
//! Not here: files and rounds (`engine`), what may be seen by whom.

mod claim;
mod cut;
mod pieces;
mod plan;
mod segments;

use std::collections::VecDeque;
use std::time::Duration;

use felix_runtime::planted::{self, Defect};
use felix_wire::id::Offset;

use crate::commit::{Mark, MarkKind};
use crate::id::{Fsync, Lineage, Place, SegmentSeq, ShardKey};
use crate::limits::{BLOCK, CEILING_STEP, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN};
use crate::record::Batch;
use crate::retention::Retention;
use crate::segment::format::SegmentEnd;

pub use claim::{AppendMeta, Claim, ClaimError};
pub use cut::{CutError, CutPoint};
pub use pieces::{Piece, PieceId, RunBytes, RunId};
pub use plan::{FilePlan, ReadPlan};
pub use segments::{HeadState, OpenSegment, Sealed};

/// What a log is to be like. Kept by whoever opens it, not on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogConfig {
    /// When an append counts as settled.
    pub policy: Fsync,
    /// Size of the first segment in bytes; the following ones double.
    pub segment_bytes_first: u64,
    /// Size of the largest segment in bytes, unless a batch needs more.
    pub segment_bytes_max: u64,
    /// A segment is rolled when its first record has been in it for that long.
    pub roll_after: Option<Duration>,
    pub retention: Retention,
}

impl Default for LogConfig {
    fn default() -> LogConfig {
        LogConfig {
            policy: Fsync::OnCommit,
            segment_bytes_first: SEGMENT_BYTES_MIN,
            segment_bytes_max: SEGMENT_BYTES_MAX,
            roll_after: None,
            retention: Retention::default(),
        }
    }
}

/// Why a log takes no more writes until the process has started again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StopReason {
    /// A write or sync of its segment failed.
    #[error("a write to the segment failed")]
    SegmentFailed,
    /// The round that held its bytes failed.
    #[error("a write to the commit file failed")]
    RoundFailed,
    /// It is being moved, deleted or cut.
    #[error("closing")]
    Closing,
}

/// A point of a log that a mark can name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Point {
    pub end: Offset,
    /// Segment 0 for a log without one.
    pub place: Place,
    pub newest_ms: u64,
    pub checksum: u32,
}

/// A shard's log.
#[derive(Debug)]
pub struct Log {
    key: ShardKey,
    config: LogConfig,
    lineage: Lineage,
    lineage_base: Offset,
    start: Offset,
    /// What is below was there when this process found the log.
    found: Offset,
    claimed: Offset,
    appended: Offset,
    submitted: Offset,
    settled: Point,
    durable: Point,
    /// Durable promise that no offset from here on was used; only for logs that settle before they are durable.
    ceiling: Offset,
    sealed: VecDeque<Sealed>,
    open: VecDeque<OpenSegment>,
    next_seq: SegmentSeq,
    pending: VecDeque<pieces::Pending>,
    in_flight: VecDeque<pieces::InFlight>,
    stamps: VecDeque<pieces::Stamp>,
    /// Batches appended since the last stamp.
    unstamped: u32,
    runs: VecDeque<RunBytes>,
    next_id: u64,
    memory_bytes: usize,
    /// The next offset while those before it, from the end on, still have to be skipped by a batch.
    skip_to: Option<Offset>,
    /// What had to be skipped up to; until that is durable, marks say so.
    skip_floor: Offset,
    stop: Option<StopReason>,
}

/// A log as it stands after recovery: no segment is open.
#[derive(Debug)]
pub struct LogState {
    pub key: ShardKey,
    /// The lineage for what is appended next; higher than any before.
    pub lineage: Lineage,
    pub start: Offset,
    pub end: Offset,
    /// The next offset; above `end` when those between may have been seen.
    pub next: Offset,
    pub ceiling: Offset,
    pub policy: Fsync,
    /// In order, without gaps.
    pub segments: Vec<SealedState>,
    /// Higher than the number of any segment there ever was.
    pub next_seq: SegmentSeq,
}

/// A segment that nothing is appended to any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SealedState {
    pub epoch: crate::checksum::Epoch,
    pub base: Offset,
    pub end: SegmentEnd,
    /// Length of the file.
    pub size_bytes: u64,
}

impl Log {
    /// An empty log of a shard that never was.
    #[must_use]
    pub fn new(key: ShardKey, config: LogConfig) -> Log {
        let policy = config.policy;
        Log::from_state(
            LogState {
                key,
                lineage: Lineage(1),
                start: Offset(0),
                end: Offset(0),
                next: Offset(0),
                ceiling: Offset(0),
                policy,
                segments: Vec::new(),
                next_seq: SegmentSeq(1),
            },
            config,
        )
    }

    /// The log that recovery found. Offsets from `end` to `next` are the caller's to skip.
    #[must_use]
    pub fn from_state(state: LogState, config: LogConfig) -> Log {
        let sealed: VecDeque<Sealed> = state.segments.iter().map(Sealed::from_state).collect();
        let point = match sealed.back() {
            Some(last) => last.end_point(),
            None => Point {
                end: state.end,
                place: Place { segment: SegmentSeq(0), byte: 0 },
                newest_ms: 0,
                checksum: 0,
            },
        };
        assert_eq!(point.end, state.end, "the last segment ends where the log does");
        Log {
            key: state.key,
            config,
            lineage: state.lineage,
            lineage_base: state.end,
            start: state.start,
            found: state.end,
            claimed: state.end,
            appended: state.end,
            submitted: state.end,
            settled: point,
            durable: point,
            ceiling: state.ceiling.max(state.next),
            sealed,
            open: VecDeque::new(),
            next_seq: state.next_seq,
            pending: VecDeque::new(),
            in_flight: VecDeque::new(),
            stamps: VecDeque::new(),
            unstamped: 0,
            runs: VecDeque::new(),
            next_id: 1,
            memory_bytes: 0,
            skip_to: (state.next > state.end && !planted::is(Defect::CeilingIgnored)).then_some(state.next),
            skip_floor: state.next,
            stop: None,
        }
    }

    #[must_use]
    pub fn key(&self) -> ShardKey {
        self.key
    }

    #[must_use]
    pub fn config(&self) -> &LogConfig {
        &self.config
    }

    /// Changes what can change while it is open: rolling and retention.
    pub fn set_config(&mut self, config: LogConfig) {
        let policy = self.config.policy;
        self.config = LogConfig { policy, ..config };
    }

    #[must_use]
    pub fn lineage(&self) -> Lineage {
        self.lineage
    }

    /// The first offset that can be read.
    #[must_use]
    pub fn start(&self) -> Offset {
        self.start
    }

    /// End of what earlier processes wrote; 0 in a log of this one. It stays when the log moves to another core.
    #[must_use]
    pub fn found_end(&self) -> Offset {
        self.found
    }

    /// One past the last offset claimed: the next claim's base.
    #[must_use]
    pub fn claimed_end(&self) -> Offset {
        self.claimed
    }

    /// One past the last offset that is settled under the log's policy.
    #[must_use]
    pub fn settled_end(&self) -> Offset {
        self.settled.end
    }

    /// One past the last offset that a power loss cannot take.
    #[must_use]
    pub fn durable_end(&self) -> Offset {
        self.durable.end
    }

    /// The last settled point; for logs that settle before they are durable it is what a flush makes durable.
    #[must_use]
    pub fn settled_point(&self) -> Point {
        self.settled
    }

    /// Bytes in memory: pending, in flight, or only in the commit file.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.memory_bytes
    }

    /// Why it takes no writes.
    #[must_use]
    pub fn stopped(&self) -> Option<StopReason> {
        self.stop
    }

    /// Takes no more writes. What was submitted may still settle; what was not is dropped.
    pub fn stop(&mut self, reason: StopReason) {
        self.stop.get_or_insert(reason);
        let dropped: usize = self.pending.iter().map(|pending| pending.batch.len()).sum();
        self.pending.clear();
        self.memory_bytes -= dropped;
        for segment in &mut self.open {
            segment.forget_pending();
        }
    }

    /// Bytes its segments hold on disk, whole files.
    #[must_use]
    pub fn disk_bytes(&self) -> u64 {
        let sealed: u64 = self.sealed.iter().map(|sealed| sealed.size_bytes).sum();
        sealed + self.open.iter().map(|open| open.size_bytes).sum::<u64>()
    }

    /// Offsets that were not used, as far as is known, and must not be: what [`Log::append_skip`] takes first of all.
    #[must_use]
    pub fn skips_to(&self) -> Option<Offset> {
        self.skip_to
    }

    /// What the commit file says of it now.
    #[must_use]
    pub fn mark(&self, kind: MarkKind) -> Mark {
        Mark {
            kind,
            next: self.skip_floor,
            key: self.key,
            lineage: self.lineage,
            lineage_base: self.lineage_base,
            start: self.start,
            end: self.durable.end,
            ceiling: self.ceiling,
            place: self.durable.place,
            newest_ms: self.durable.newest_ms,
            checksum: self.durable.checksum,
            policy: self.config.policy,
        }
    }

    /// Everything submitted up to `point` is durable now.
    pub fn flushed(&mut self, point: Point) {
        if point.end > self.durable.end {
            self.durable = point;
        }
    }

    /// The ceiling a log needs before it can go on for long; none while it has one that will do.
    #[must_use]
    pub fn ceiling_wanted(&self) -> Option<Offset> {
        let needs = self.config.policy != Fsync::OnCommit && self.stop.is_none();
        let near = self.claimed.0 + CEILING_STEP / 2 > self.ceiling.0;
        (needs && near).then(|| Offset(self.claimed.0 + 2 * CEILING_STEP))
    }

    /// The ceiling is durable.
    pub fn ceiling_raised(&mut self, ceiling: Offset) {
        self.ceiling = self.ceiling.max(ceiling);
    }

    /// The start offset is durable: nothing below it is read again.
    pub fn start_moved(&mut self, start: Offset) {
        self.start = self.start.max(start);
    }

    /// Everything appended is settled, and no head is being written.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.pending.is_empty() && self.in_flight.is_empty() && self.claimed == self.settled.end
    }

    /// A place at the beginning of a segment's batches.
    fn first_place(segment: SegmentSeq) -> Place {
        Place { segment, byte: BLOCK }
    }

    fn checksum_of(batch: &Batch) -> u32 {
        batch.checksum()
    }
}
