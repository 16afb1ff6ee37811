//! Submitting and settling. Scope: part of [`Log`].
//! Owns: batches not yet submitted, pieces in flight, bytes that are not in their segment yet.
//! Invariants: pieces settle in the order of their offsets, whichever way they were written and answered; a run begins on a
//! block, and no block belongs to two runs, so a block is rewritten only while its run's slot lives.
//! Not here: choosing the way of a piece.

use std::collections::VecDeque;

use bytes::Bytes;
use felix_runtime::clock::Tick;
use felix_wire::id::Offset;

use super::{HeadState, Log, Point, StopReason};
use crate::checksum::Epoch;
use crate::id::{Fsync, Lineage, Place, SegmentSeq};
use crate::limits::BLOCK;
use crate::record::{Batch, Encoder};

/// A batch that waits to be submitted.
#[derive(Debug)]
pub(super) struct Pending {
    pub batch: Waiting,
    pub segment: SegmentSeq,
    pub newest_ms: u64,
}

/// The bytes of a batch that waits.
#[derive(Debug)]
pub(super) enum Waiting {
    Whole(Batch),
    /// More records may come until it is submitted.
    Grows(Encoder),
}

impl Waiting {
    /// Its bytes as it stands.
    pub fn len(&self) -> usize {
        match self {
            Waiting::Whole(batch) => batch.bytes().len(),
            Waiting::Grows(encoder) => encoder.encoded_len(),
        }
    }

    /// One past its last offset as it stands.
    fn end(&self) -> Offset {
        match self {
            Waiting::Whole(batch) => batch.head().end(),
            Waiting::Grows(encoder) => encoder.head().end(),
        }
    }

    fn finish(self) -> Batch {
        match self {
            Waiting::Whole(batch) => batch,
            Waiting::Grows(encoder) => encoder.finish(),
        }
    }
}

/// Names a piece of one log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PieceId(pub u64);

/// Names a run of one log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunId(pub u64);

/// A piece that was submitted and is not settled.
#[derive(Debug)]
pub(super) struct InFlight {
    id: PieceId,
    point: Point,
    direct: bool,
    done: bool,
}

/// When the batches below an offset were appended that were not when the one before was made.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stamp {
    end: Offset,
    at: Tick,
    batches: u32,
}

/// Batches to be written together, with their place.
#[derive(Debug)]
pub struct Piece {
    pub id: PieceId,
    /// The run it is part of.
    pub run: RunId,
    pub place: Place,
    pub epoch: Epoch,
    pub lineage: Lineage,
    pub base: Offset,
    pub end: Offset,
    pub batches: Vec<Batch>,
    /// Bytes of all batches.
    pub len: usize,
}

/// Contiguous bytes of one segment that are not in it yet, from a block's beginning on.
#[derive(Debug)]
pub struct RunBytes {
    pub id: RunId,
    pub segment: SegmentSeq,
    pub byte: u64,
    /// The use of a slot that holds them; none when they are on their way to the segment.
    pub slot: Option<u64>,
    /// More pieces may follow without padding.
    pub open: bool,
    pub len: u64,
    pub base: Offset,
    pub end: Offset,
    pub(super) batches: VecDeque<Batch>,
}

impl RunBytes {
    /// Its bytes, batch by batch.
    #[must_use]
    pub fn bytes(&self) -> Vec<Bytes> {
        self.batches.iter().map(|batch| batch.bytes().clone()).collect()
    }
}

impl Log {
    /// Bytes that could be submitted now, and whether any could: those that belong to the segment that serves, below the
    /// ceiling.
    #[must_use]
    pub fn submittable(&self) -> usize {
        let Some(front) = self.open.front().filter(|front| front.state == HeadState::Durable) else {
            return 0;
        };
        let blocked = self.config.policy != Fsync::OnCommit
            && self.pending.front().is_some_and(|first| first.batch.end() > self.ceiling);
        if self.stop.is_some() || blocked { 0 } else { front.pending_bytes as usize }
    }

    /// Pieces written straight to a segment and not answered, and pieces in a round.
    #[must_use]
    pub fn in_flight(&self) -> (usize, usize) {
        let direct = self.in_flight.iter().filter(|piece| piece.direct).count();
        (direct, self.in_flight.len() - direct)
    }

    /// Bytes of the next piece of at most `max` bytes, or of one batch if that is larger.
    #[must_use]
    pub fn next_piece_len(&self, max: usize) -> usize {
        self.piece_shape(max).0
    }

    /// Bytes and batches of the next piece.
    fn piece_shape(&self, max: usize) -> (usize, usize) {
        let Some(front) = self.open.front() else { return (0, 0) };
        let ceiling = (self.config.policy != Fsync::OnCommit).then_some(self.ceiling);
        let (mut len, mut count) = (0, 0);
        for pending in self.pending.iter().take_while(|pending| pending.segment == front.seq) {
            let bytes = pending.batch.len();
            let over = ceiling.is_some_and(|ceiling| pending.batch.end() > ceiling);
            if over || (count > 0 && len + bytes > max) {
                break;
            }
            len += bytes;
            count += 1;
        }
        (len, count)
    }

    /// Takes the next piece and fixes its place. `slot` is the use of the slot whose round will hold it, none for a direct
    /// write. Nothing when nothing is [`Log::submittable`].
    pub fn take_piece(&mut self, slot: Option<u64>, max: usize, now: Tick) -> Option<Piece> {
        if self.submittable() == 0 {
            return None;
        }
        let (len, count) = self.piece_shape(max);
        if count == 0 {
            return None;
        }
        let place = self.place_for(slot)?;
        let front = self.open.front_mut()?;
        front.first_append.get_or_insert(now);
        let mut batches = Vec::with_capacity(count);
        let mut byte = place.byte;
        for pending in self.pending.drain(..count) {
            let batch = pending.batch.finish();
            front.index.note(batch.head().base, byte);
            byte += batch.bytes().len() as u64;
            front.newest_ms = front.newest_ms.max(pending.newest_ms);
            batches.push(batch);
        }
        front.pending_bytes -= len as u64;
        front.pending_batches -= count as u64;
        front.last_byte = byte;
        front.at = if slot.is_none() { byte.next_multiple_of(BLOCK) } else { byte };
        assert!(front.at <= front.size_bytes, "a claim found its space reserved");
        front.checksum = batches.last().map_or(front.checksum, Log::checksum_of);
        let point = Point {
            end: batches.last().map_or(self.submitted, |batch| batch.head().end()),
            place: Place { segment: front.seq, byte },
            newest_ms: front.newest_ms,
            checksum: front.checksum,
        };
        let epoch = front.epoch;
        let base = self.submitted;
        self.submitted = point.end;
        let run = self.extend_run(place, slot, &batches, len as u64);
        let id = PieceId(self.take_id());
        self.in_flight.push_back(InFlight { id, point, direct: slot.is_none(), done: false });
        Some(Piece { id, run, place, epoch, lineage: self.lineage, base, end: point.end, batches, len })
    }

    fn take_id(&mut self) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        id
    }

    /// Right behind the open run of the same slot, otherwise on the next block.
    fn place_for(&mut self, slot: Option<u64>) -> Option<Place> {
        let front = self.open.front()?;
        let (segment, at) = (front.seq, front.at);
        let goes_on = self.runs.back().is_some_and(|run| {
            run.open
                && slot.is_some()
                && run.slot == slot
                && run.segment == segment
                && run.byte + run.len == at
        });
        if !goes_on && let Some(last) = self.runs.back_mut() {
            last.open = false;
        }
        Some(Place { segment, byte: if goes_on { at } else { at.next_multiple_of(BLOCK) } })
    }

    fn extend_run(&mut self, place: Place, slot: Option<u64>, batches: &[Batch], len: u64) -> RunId {
        if let Some(run) = self.runs.back_mut().filter(|run| run.open) {
            run.batches.extend(batches.iter().cloned());
            run.len += len;
            run.end = self.submitted;
            return run.id;
        }
        let id = RunId(self.take_id());
        let base = batches.first().map_or(self.submitted, |batch| batch.head().base);
        self.runs.push_back(RunBytes {
            id,
            segment: place.segment,
            byte: place.byte,
            slot,
            open: slot.is_some(),
            len,
            base,
            end: self.submitted,
            batches: batches.iter().cloned().collect(),
        });
        id
    }

    /// What was appended since the last call was appended now, for the time until it settles.
    pub fn stamp(&mut self, now: Tick) {
        if self.unstamped > 0 {
            let batches = std::mem::take(&mut self.unstamped);
            self.stamps.push_back(Stamp { end: self.appended, at: now, batches });
        }
    }

    /// When the oldest batch was appended that is not settled, as far as it is stamped.
    #[must_use]
    pub fn oldest_at(&self) -> Option<Tick> {
        self.stamps.front().map(|stamp| stamp.at)
    }

    /// Gives the stamps of what is settled, with so many batches each.
    pub fn take_settled(&mut self, mut each: impl FnMut(Tick, u32)) {
        while let Some(stamp) = self.stamps.front().filter(|stamp| stamp.end <= self.settled.end) {
            each(stamp.at, stamp.batches);
            self.stamps.pop_front();
        }
    }

    /// The write that held a piece was answered well. Gives the new settled end, if it moved.
    pub fn piece_written(&mut self, id: PieceId) -> Option<Offset> {
        if let Some(piece) = self.in_flight.iter_mut().find(|piece| piece.id == id) {
            piece.done = true;
        }
        let before = self.settled.end;
        while let Some(front) = self.in_flight.front().filter(|front| front.done) {
            self.settled = front.point;
            self.in_flight.pop_front();
        }
        if self.config.policy == Fsync::OnCommit {
            self.durable = self.settled;
        }
        (self.settled.end > before).then_some(self.settled.end)
    }

    /// The write that held a piece failed: whether it is there is unknown, and nothing behind it settles.
    pub fn piece_failed(&mut self, id: PieceId, reason: StopReason) {
        if let Some(at) = self.in_flight.iter().position(|piece| piece.id == id) {
            self.in_flight.truncate(at);
        }
        self.stop(reason);
    }

    /// The next piece in the slot `slot` begins on a block of its own.
    pub fn close_runs(&mut self, slot: u64) {
        for run in self.runs.iter_mut().filter(|run| run.slot == Some(slot)) {
            run.open = false;
        }
    }

    pub(super) fn close_runs_of(&mut self, segment: SegmentSeq) {
        for run in self.runs.iter_mut().filter(|run| run.segment == segment) {
            run.open = false;
        }
    }

    /// Nobody will read the bytes of a segment again.
    pub(super) fn drop_runs_of(&mut self, segment: SegmentSeq) {
        let dropped: u64 = self.runs.iter().filter(|run| run.segment == segment).map(|run| run.len).sum();
        self.runs.retain(|run| run.segment != segment);
        self.memory_bytes -= dropped as usize;
    }

    /// Runs that the slot `slot` holds and the segments do not.
    pub fn runs_in(&self, slot: u64) -> impl Iterator<Item = &RunBytes> {
        self.runs.iter().filter(move |run| run.slot == Some(slot))
    }

    /// Whether bytes of a segment are still only in memory and in a slot.
    #[must_use]
    pub fn has_runs_of(&self, segment: SegmentSeq) -> bool {
        self.runs.iter().any(|run| run.segment == segment)
    }

    /// Whether any bytes are still only in memory and in a slot.
    #[must_use]
    pub fn has_runs(&self) -> bool {
        !self.runs.is_empty()
    }

    /// The bytes of a run are in its segment; memory lets go of them.
    pub fn run_written(&mut self, id: RunId) {
        if let Some(at) = self.runs.iter().position(|run| run.id == id)
            && let Some(run) = self.runs.remove(at)
        {
            self.memory_bytes -= run.len as usize;
        }
    }

    pub(super) fn runs(&self) -> &VecDeque<RunBytes> {
        &self.runs
    }

    pub(super) fn runs_mut(&mut self) -> &mut VecDeque<RunBytes> {
        &mut self.runs
    }
}
