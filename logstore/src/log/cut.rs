//! Cutting a log at its end. Scope: part of [`Log`].
//! Invariants: a cut is between batches, never below the start; it seals what is below it, so nothing is ever written behind
//! the place where it was made; the lineage above is a new one.
//! Not here: making the cut durable before it is answered (`engine`).

use felix_wire::id::Offset;

use super::{Log, OpenSegment, Point, Sealed};
use crate::commit::{Mark, MarkKind};
use crate::id::{Lineage, Place, SegmentSeq};
use crate::limits::BLOCK;
use crate::segment::format::SegmentEnd;

/// Why a log cannot be cut there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CutError {
    #[error("the log begins at {start} and ends at {end}")]
    OutOfRange { start: Offset, end: Offset },
    #[error("offset {at} is inside the batch that begins at {base}")]
    InsideBatch { at: Offset, base: Offset },
    #[error("the segment cannot be read there")]
    Unreadable,
}

/// Where a log is cut: the end of what stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CutPoint {
    pub at: Offset,
    pub end: SegmentEnd,
}

/// What fell off.
#[derive(Debug)]
pub struct CutOff {
    pub sealed: Vec<Sealed>,
    pub open: Vec<OpenSegment>,
}

impl Log {
    /// The point for a cut at `at` if that can be told without reading: at a border of segments, or from memory.
    #[must_use]
    pub fn cut_point(&self, at: Offset) -> Option<Result<CutPoint, CutError>> {
        if at == self.settled.end {
            let Point { end, place, newest_ms, checksum } = self.settled;
            let end =
                SegmentEnd { segment: place.segment, offset: end, byte: place.byte, newest_ms, checksum };
            return Some(Ok(CutPoint { at, end }));
        }
        if let Some(sealed) = self.sealed.iter().find(|sealed| sealed.end.offset == at) {
            return Some(Ok(CutPoint { at, end: sealed.end }));
        }
        let run = self.runs().iter().find(|run| run.base < at && at <= run.end)?;
        let mut byte = run.byte;
        for batch in &run.batches {
            let head = batch.head();
            byte += batch.bytes().len() as u64;
            if head.end() == at {
                // The newest time of the whole segment: it may keep records longer, never shorter.
                let newest_ms = self.newest_in(run.segment);
                let end = SegmentEnd {
                    segment: run.segment,
                    offset: at,
                    byte,
                    newest_ms,
                    checksum: batch.checksum(),
                };
                return Some(Ok(CutPoint { at, end }));
            }
            if head.end() > at {
                return Some(Err(CutError::InsideBatch { at, base: head.base }));
            }
        }
        None
    }

    /// The newest record time of a segment.
    #[must_use]
    pub fn newest_in(&self, segment: SegmentSeq) -> u64 {
        let open = self.open.iter().find(|open| open.seq == segment).map(|open| open.newest_ms);
        let sealed =
            || self.sealed.iter().find(|sealed| sealed.seq == segment).map(|sealed| sealed.end.newest_ms);
        open.or_else(sealed).unwrap_or(0)
    }

    /// What the commit file says of a cut at `point`: it holds once it is durable, whatever else does.
    #[must_use]
    pub fn mark_of_cut(&self, point: &CutPoint) -> Mark {
        Mark {
            lineage: Lineage(self.lineage.0 + 1),
            lineage_base: point.at,
            end: point.at,
            place: Place { segment: point.end.segment, byte: point.end.byte },
            newest_ms: point.end.newest_ms,
            checksum: point.end.checksum,
            next: point.at,
            ..self.mark(MarkKind::Truncated)
        }
    }

    /// Cuts the log at `point`, which was found in it. The new lineage is one higher. Gives the segments above; of the one
    /// that holds the cut, open or sealed, the part below stays as the last sealed one.
    pub fn cut(&mut self, point: &CutPoint) -> CutOff {
        let seq = point.end.segment;
        let mut off = CutOff { sealed: Vec::new(), open: Vec::new() };
        while self.sealed.back().is_some_and(|last| last.seq > seq) {
            off.sealed.extend(self.sealed.pop_back());
        }
        if let Some(last) = self.sealed.back_mut().filter(|last| last.seq == seq) {
            last.end = point.end;
            last.index.cut(point.at);
        }
        for open in self.open.drain(..) {
            if open.seq == seq {
                self.sealed.push_back(sealed_at(open, point.end));
            } else {
                off.open.push(open);
            }
        }
        let last = self.sealed.back().map_or(SegmentSeq(0), |last| last.seq);
        assert_eq!(last, seq, "the segment of a cut stays until it is made");
        self.cut_runs(point.at);
        self.pending.clear();
        self.in_flight.clear();
        self.stamps.clear();
        self.unstamped = 0;
        self.memory_bytes = self.runs().iter().map(|run| run.len as usize).sum();
        let SegmentEnd { segment, offset, byte, newest_ms, checksum } = point.end;
        let end = Point { end: offset, place: Place { segment, byte }, newest_ms, checksum };
        self.skip_to = None;
        self.skip_floor = point.at;
        self.found = self.found.min(point.at);
        self.claimed = point.at;
        self.appended = point.at;
        self.submitted = point.at;
        self.settled = end;
        self.durable = end;
        self.lineage = Lineage(self.lineage.0 + 1);
        self.lineage_base = point.at;
        off
    }

    fn cut_runs(&mut self, at: Offset) {
        self.runs_mut().retain(|run| run.base < at);
        if let Some(run) = self.runs_mut().back_mut() {
            run.open = false;
            let kept = run.batches.partition_point(|batch| batch.head().end() <= at);
            run.batches.truncate(kept);
            run.len = run.batches.iter().map(|batch| batch.bytes().len() as u64).sum();
            run.end = run.end.min(at);
        }
    }
}

fn sealed_at(open: OpenSegment, end: SegmentEnd) -> Sealed {
    let mut index = open.index;
    index.cut(end.offset);
    debug_assert!(end.byte >= BLOCK && end.segment > SegmentSeq(0));
    Sealed {
        seq: open.seq,
        epoch: open.epoch,
        base: open.base,
        end,
        size_bytes: open.size_bytes,
        index,
        files: Some(open.files),
    }
}
