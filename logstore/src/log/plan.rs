//! Where to read an offset from. Scope: part of [`Log`].
//! Invariants: a file is read only up to the first byte that may still be on its way; everything from there on is in memory.
//! Not here: reading.

use felix_runtime::file::FileId;
use felix_wire::id::Offset;

use super::{HeadState, Log};
use crate::checksum::Epoch;
use crate::id::SegmentSeq;
use crate::record::Batch;

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
    /// Base of the segment, where to begin if the hint is wrong.
    pub base: Offset,
    /// Neither bytes nor offsets from here on are looked at.
    pub limit_byte: u64,
    pub limit: Offset,
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
        let run = self.runs().get(next_run);
        let within =
            |segment: SegmentSeq, end: Offset, byte: u64| match run.filter(|run| run.segment == segment) {
                Some(run) => (run.base, run.byte),
                None => (end, byte),
            };
        let at = self.sealed.partition_point(|sealed| sealed.end.offset <= from);
        if let Some(sealed) = self.sealed.get(at).filter(|sealed| sealed.base <= from) {
            let (limit, limit_byte) = within(sealed.seq, sealed.end.offset, sealed.end.byte);
            return Some(FilePlan {
                segment: sealed.seq,
                epoch: sealed.epoch,
                hint: sealed.index.locate(from, sealed.base),
                base: sealed.base,
                limit_byte,
                limit: limit.min(until),
                wanted: from,
                file: None,
            });
        }
        let open = self.open.front().filter(|open| open.state == HeadState::Durable && open.base <= from)?;
        let (limit, limit_byte) = within(open.seq, self.submitted, open.last_byte);
        Some(FilePlan {
            segment: open.seq,
            epoch: open.epoch,
            hint: open.index.locate(from, open.base),
            base: open.base,
            limit_byte,
            limit: limit.min(until),
            wanted: from,
            file: Some(open.files.plain),
        })
    }
}
