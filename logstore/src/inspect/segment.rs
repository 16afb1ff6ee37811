//! Reading the batches of one segment, also behind a place that cannot be read. Scope: one per segment.
//! Owns: the window of the segment that is in memory.
//! Invariants: a batch counts only where recovery or a reader of the log would find it, or behind a gap that is told; one
//! window is in memory, as long as a batch at most.
//! Not here: what the segment is to its log (`shard`).
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::io;

use bytes::Bytes;
use felix_wire::id::Offset;

use super::files::Overlay;
use super::finding::{Finding, Sink, What};
use super::{BatchRow, SegmentRow};
use crate::limits::{BLOCK, EVIDENCE_SEARCH_BYTES};
use crate::record::{Batch, BatchFault, BatchKind};
use crate::recovery::Refusal;
use crate::recovery::picture::{Picture, Scanned};
use crate::segment::format::{SegmentEnd, SegmentHead};
use crate::segment::walk::{Resync, Search, Step, Walk};

/// Bytes read at once.
const WINDOW_BYTES: usize = 512 << 10;

/// A segment that is being read.
pub(super) struct Segment<'a> {
    overlay: Overlay<'a>,
    picture: &'a Picture<'a>,
    head: SegmentHead,
    window: Bytes,
    window_at: u64,
    /// Checksum of the head of the last batch.
    checksum: u32,
    /// Filled while reading.
    pub row: SegmentRow,
}

/// Where the next batch is looked for, and which offset it has.
#[derive(Debug, Clone, Copy)]
pub(super) struct From {
    pub byte: u64,
    pub due: Offset,
}

/// What a tail came to.
pub(super) struct Tail {
    pub refused: bool,
    pub torn: bool,
}

/// Where batches stop following each other.
struct Stop {
    /// Where the last one ends.
    end: u64,
    /// Where the next one was looked for last, and what stands there.
    byte: u64,
    fault: BatchFault,
}

/// A whole batch somewhere behind a gap.
struct Whole {
    byte: u64,
    base: Offset,
    durable_end: Offset,
    len: u64,
}

impl<'a> Segment<'a> {
    pub fn new(
        overlay: Overlay<'a>,
        picture: &'a Picture<'a>,
        head: SegmentHead,
        row: SegmentRow,
    ) -> Segment<'a> {
        Segment { overlay, picture, head, window: Bytes::new(), window_at: 0, checksum: 0, row }
    }

    fn finding(&self, byte: u64, what: What) -> Finding {
        let path = self.picture.path(self.head.seq);
        Finding::of_segment(self.picture.key, self.head.seq, &path, byte, what)
    }

    fn damage(&mut self, byte: u64, what: What, sink: &mut Sink<'_>) {
        self.row.damage += 1;
        sink.damage(self.finding(byte, what));
    }

    fn walk(&self, from: From, limit: u64) -> Walk {
        Walk { epoch: self.head.epoch, byte: from.byte, due: from.due, limit }
    }

    /// Reads the batches up to an end that is known. True when all offsets up to it are there.
    pub fn read_to(&mut self, from: From, end: SegmentEnd, sink: &mut Sink<'_>) -> io::Result<bool> {
        let mut walk = self.walk(from, end.byte);
        let mut whole = true;
        loop {
            let Stop { end: read_to, byte, fault } = self.read_on(&mut walk, sink)?;
            if walk.due >= end.offset {
                break;
            }
            let next = self.find_whole(read_to, end.byte, (walk.due, end.offset))?;
            let to = next.as_ref().map_or(end.offset, |next| next.base);
            if to > self.picture.known.start {
                self.damage(byte, What::Unreadable { fault, from: walk.due, to }, sink);
            } else {
                sink.note(self.finding(byte, What::BelowStart { fault, from: walk.due, to }));
            }
            whole = false;
            match next {
                Some(next) => walk = self.walk(From { byte: next.byte, due: next.base }, end.byte),
                None => return Ok(false),
            }
        }
        self.check_end(end, sink);
        Ok(whole)
    }

    /// What was read ends where it should, with the batch that it should.
    fn check_end(&mut self, end: SegmentEnd, sink: &mut Sink<'_>) {
        let (found, found_byte) = (self.row.end, self.row.end_byte);
        if (found, found_byte) != (end.offset, end.byte) {
            let what = What::EndMismatch { found, found_byte, due: end.offset, due_byte: end.byte };
            self.damage(found_byte, what, sink);
        } else if self.row.batches > 0 && self.checksum != end.checksum {
            self.damage(found_byte, What::EndChecksum, sink);
        }
    }

    /// Reads the batches up to the end that shows by reading, and judges it as recovery does.
    pub fn read_tail(&mut self, from: From, sink: &mut Sink<'_>) -> io::Result<Tail> {
        let limit = self.overlay.len();
        let mut walk = self.walk(from, limit);
        let mut scanned = Scanned::begin(SegmentEnd {
            segment: self.head.seq,
            offset: from.due,
            byte: from.byte,
            newest_ms: 0,
            checksum: 0,
        });
        let (byte, fault) = loop {
            match self.next(&mut walk)? {
                (Ok(batch), byte) => {
                    scanned.passed(&batch, walk.byte);
                    self.take(&batch, byte, sink);
                }
                (Err(fault), byte) => break (byte, fault),
            }
        };
        scanned.ended(byte, fault);
        let whole_behind = self.look_behind(&mut scanned)?;
        let found = scanned.end.offset;
        let Err(refused) = self.picture.judge(&self.head, &scanned) else {
            let torn = scanned.torn || whole_behind > 0;
            if torn {
                sink.note(self.finding(byte, What::TornTail { fault, from: found, whole_behind }));
            }
            return Ok(Tail { refused: false, torn });
        };
        let what = match refused.why {
            Refusal::Damaged { found, durable } => What::DurableLost { fault, found, durable },
            Refusal::Version(version) => What::Version(version),
            _ => What::HeadDamaged,
        };
        self.damage(refused.byte, what, sink);
        self.read_behind(scanned.end.byte, limit, walk.due, sink)?;
        Ok(Tail { refused: true, torn: false })
    }

    /// Reads what there is, when the segment behind it is lost and with it where this one ends.
    pub fn read_unended(&mut self, from: From, sink: &mut Sink<'_>) -> io::Result<()> {
        let limit = self.overlay.len();
        let mut walk = self.walk(from, limit);
        let Stop { end, byte, fault } = self.read_on(&mut walk, sink)?;
        if let Some(next) = self.find_whole(end, limit, (walk.due, Offset(u64::MAX)))? {
            self.damage(byte, What::Unreadable { fault, from: walk.due, to: next.base }, sink);
            self.read_behind(next.byte, limit, next.base, sink)?;
        }
        Ok(())
    }

    /// Batches behind a place that is told already; more such places are told.
    fn read_behind(&mut self, byte: u64, limit: u64, due: Offset, sink: &mut Sink<'_>) -> io::Result<()> {
        let (mut byte, mut due, mut gap) = (byte, due, None);
        while let Some(next) = self.find_whole(byte, limit, (due, Offset(u64::MAX)))? {
            if let Some((at, fault)) = gap.take() {
                self.damage(at, What::Unreadable { fault, from: due, to: next.base }, sink);
            }
            let mut walk = self.walk(From { byte: next.byte, due: next.base }, limit);
            let stop = self.read_on(&mut walk, sink)?;
            gap = Some((stop.byte, stop.fault));
            (byte, due) = (stop.end, walk.due);
        }
        Ok(())
    }

    /// Looks for proof that more was durable than was read, as far as recovery does. Gives how many whole batches there are.
    fn look_behind(&mut self, scanned: &mut Scanned) -> io::Result<u64> {
        let len = self.overlay.len();
        if scanned.stopped_at >= len {
            return Ok(0);
        }
        let (mut at, mut count) = (scanned.end.byte - scanned.end.byte % BLOCK, 0);
        let until = len.min(at.saturating_add(EVIDENCE_SEARCH_BYTES));
        while let Some(found) = self.find_whole(at, until, (Offset(0), Offset(u64::MAX)))? {
            scanned.durable = scanned.durable.max(found.durable_end);
            count += u64::from(found.byte >= scanned.end.byte && found.base >= scanned.end.offset);
            at = found.byte + found.len;
        }
        Ok(count)
    }

    /// Takes batches as long as they follow each other; says what stands where the next one should.
    fn read_on(&mut self, walk: &mut Walk, sink: &mut Sink<'_>) -> io::Result<Stop> {
        let mut end = walk.byte;
        loop {
            match self.next(walk)? {
                (Ok(batch), byte) => {
                    end = walk.byte;
                    self.take(&batch, byte, sink);
                }
                (Err(fault), byte) => return Ok(Stop { end, byte, fault }),
            }
        }
    }

    fn take(&mut self, batch: &Batch, byte: u64, sink: &mut Sink<'_>) {
        let head = batch.head();
        let bytes = batch.bytes().len() as u64;
        let newest = batch.records().map(|record| record.timestamp_ms).max().unwrap_or(0);
        self.checksum = batch.checksum();
        self.row.batches += 1;
        self.row.records += if head.kind == BatchKind::Skip { 0 } else { u64::from(head.count) };
        self.row.end = head.end();
        self.row.end_byte = byte + bytes;
        self.row.newest_ms = self.row.newest_ms.max(newest).max(head.timestamp_ms);
        sink.batch(BatchRow {
            key: self.picture.key,
            segment: self.head.seq,
            byte,
            bytes,
            kind: head.kind,
            base: head.base,
            count: head.count,
            generation: head.generation,
            lineage: head.lineage,
            durable_end: head.durable_end,
            timestamp_ms: head.timestamp_ms,
            producer: head.producer,
        });
    }

    /// The batch that is due and where it begins, or what stands in its place.
    fn next(&mut self, walk: &mut Walk) -> io::Result<(Result<Batch, BatchFault>, u64)> {
        loop {
            match walk.step(&self.window, self.window_at) {
                Step::Batch { batch, byte } => return Ok((Ok(batch), byte)),
                Step::End { byte, fault } => return Ok((Err(fault), byte)),
                Step::Need(need) => {
                    if !self.fill(walk.byte, need)? {
                        return Ok((Err(BatchFault::NotABatch), walk.byte));
                    }
                }
            }
        }
    }

    /// Reads a window that begins with the block of byte `at` and has `need` bytes from `at` on, unless the file ends. False
    /// when that brings no more than is there.
    fn fill(&mut self, at: u64, need: usize) -> io::Result<bool> {
        let before = (self.window_at, self.window.len());
        let from = at - at % BLOCK;
        let want = ((at - from) as usize + need.max(WINDOW_BYTES)).next_multiple_of(BLOCK as usize);
        // Two windows are never in memory at once.
        self.window = Bytes::new();
        self.window = Bytes::from(self.overlay.read(from, want)?);
        self.window_at = from;
        Ok(from != before.0 || self.window.len() > before.1)
    }

    /// The first whole batch from `byte` on that lies in these offsets.
    fn find_whole(
        &mut self,
        byte: u64,
        limit: u64,
        (due, end): (Offset, Offset),
    ) -> io::Result<Option<Whole>> {
        let mut search = Resync { epoch: self.head.epoch, byte, due, end, limit };
        loop {
            match search.step(&self.window, self.window_at) {
                Search::Batch(found) => {
                    let (base, durable_end) = (found.head.base, found.head.durable_end);
                    let len = found.len as u64;
                    return Ok(Some(Whole { byte: search.byte, base, durable_end, len }));
                }
                Search::Nothing => return Ok(None),
                Search::Need(need) => {
                    if !self.fill(search.byte, need)? {
                        return Ok(None);
                    }
                }
            }
        }
    }
}
