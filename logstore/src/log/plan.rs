//! Where to read an offset from. Scope: part of [`Log`].
//! Invariants: a file is read only where its bytes are: up to the first byte that may still be on its way, and from behind
//! the last one before the offset; what is on its way is in memory.
//! Not here: reading.

use felix_runtime::file::FileId;
use felix_wire::id::Offset;

use super::{HeadState, Log};
use crate::checksum::Epoch;
use crate::id::SegmentSeq;
use crate::limits::BLOCK;
use crate::record::Batch;
use crate::segment::index::Index;

/// What to do to read from an offset.
#[derive(Debug)]
pub enum ReadPlan {
    /// These batches, from the one that holds the offset on.
    Memory(Vec<Batch>),
    /// A walk through a segment.
    File(FilePlan),
    /// Nothing is there yet.
    AtEnd,
    /// Retention has removed it.
    TooOld { start: Offset },
    /// It is behind the end that was named.
    InFuture { end: Offset },
}

/// A walk through one segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FilePlan {
    pub segment: SegmentSeq,
    pub epoch: Epoch,
    /// A batch that begins at or before the offset, and its byte.
    pub hint: (Offset, u64),
    /// Where to begin if the hint is wrong: the first batch of the stretch of the segment that can be read.
    pub base: Offset,
    pub base_byte: u64,
    /// The batch that holds the offset begins below this byte.
    pub behind: u64,
    /// Neither bytes nor offsets from here on are looked at.
    pub limit_byte: u64,
    pub limit: Offset,
    /// Where the stretch of the segment ends that `limit_byte` is the end of. At or behind `limit`.
    pub end: Offset,
    pub wanted: Offset,
    /// The handle, if one is open.
    pub file: Option<FileId>,
}

impl Log {
    /// How to read from `from`, of what is below `until`, in at most `bytes_max` bytes (one batch at least).
    #[must_use]
    pub fn plan_read(&self, from: Offset, until: Offset, bytes_max: usize) -> ReadPlan {
        let until = until.min(self.settled.end);
        if from < self.start {
            return ReadPlan::TooOld { start: self.start };
        }
        if from >= until {
            return if from == until { ReadPlan::AtEnd } else { ReadPlan::InFuture { end: until } };
        }
        let at = self.runs().partition_point(|run| run.end <= from);
        if self.runs().get(at).is_some_and(|run| run.base <= from) {
            return ReadPlan::Memory(self.memory_plan(at, from, until, bytes_max));
        }
        self.file_plan(from, until, at).map_or(ReadPlan::AtEnd, ReadPlan::File)
    }

    fn memory_plan(&self, first_run: usize, from: Offset, until: Offset, bytes_max: usize) -> Vec<Batch> {
        let mut batches: Vec<Batch> = Vec::new();
        let mut bytes = 0;
        let mut due = from;
        for run in self.runs().iter().skip(first_run) {
            if run.base > due {
                break;
            }
            let begin = run.batches.partition_point(|batch| batch.head().end() <= due);
            for batch in run.batches.iter().skip(begin) {
                bytes += batch.bytes().len();
                if batch.head().base >= until || (!batches.is_empty() && bytes > bytes_max) {
                    return batches;
                }
                due = batch.head().end();
                batches.push(batch.clone());
            }
        }
        batches
    }

    fn file_plan(&self, from: Offset, until: Offset, next_run: usize) -> Option<FilePlan> {
        let at = self.sealed.partition_point(|sealed| sealed.end.offset <= from);
        if let Some(sealed) = self.sealed.get(at).filter(|sealed| sealed.base <= from) {
            let whole = Stretch {
                base: (sealed.base, BLOCK),
                limit: (sealed.end.offset, sealed.end.byte),
                segment: sealed.seq,
            };
            let stretch = self.between_runs(whole, next_run);
            return Some(stretch.plan(sealed.epoch, &sealed.index, (from, until), None));
        }
        let open = self.open.front().filter(|open| open.state == HeadState::Durable && open.base <= from)?;
        let whole =
            Stretch { base: (open.base, BLOCK), limit: (self.submitted, open.last_byte), segment: open.seq };
        let stretch = self.between_runs(whole, next_run);
        Some(stretch.plan(open.epoch, &open.index, (from, until), Some(open.files.plain)))
    }

    /// The part of a segment between the run before `next_run` and that one: runs are not in their segment yet.
    fn between_runs(&self, mut stretch: Stretch, next_run: usize) -> Stretch {
        let run = |at: usize| self.runs().get(at).filter(|run| run.segment == stretch.segment);
        let (before, next) = (next_run.checked_sub(1).and_then(run), run(next_run));
        if let Some(next) = next {
            stretch.limit = (next.base, next.byte);
        }
        if let Some(before) = before {
            // What follows a run begins on a block of its own.
            stretch.base = (before.end, (before.byte + before.len).next_multiple_of(BLOCK));
        }
        stretch
    }
}

/// A part of a segment whose bytes are all in the file.
struct Stretch {
    segment: SegmentSeq,
    base: (Offset, u64),
    limit: (Offset, u64),
}

impl Stretch {
    fn plan(
        &self,
        epoch: Epoch,
        index: &Index,
        (wanted, until): (Offset, Offset),
        file: Option<FileId>,
    ) -> FilePlan {
        let hint = index.locate(wanted, self.base.0);
        FilePlan {
            segment: self.segment,
            epoch,
            hint: if hint.1 < self.base.1 { self.base } else { hint },
            base: self.base.0,
            base_byte: self.base.1,
            behind: index.behind(wanted).map_or(self.limit.1, |byte| byte.min(self.limit.1)),
            limit_byte: self.limit.1,
            limit: self.limit.0.min(until),
            end: self.limit.0,
            wanted,
            file,
        }
    }
}
