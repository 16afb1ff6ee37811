//! The segments of a log: sealed ones in order, and the open ones at its end. Scope: part of [`Log`].
//! Invariants: claims go to the last open segment, pieces are taken for the first; the first is popped to the sealed ones
//! when all of its bytes are durable, and only then the head of the next may be written, which says where it ended.
//! Not here: making files.

use felix_wire::id::Offset;

use super::{Log, Point, SealedState};
use crate::checksum::Epoch;
use crate::id::{Fsync, Place, SegmentSeq};
use crate::limits::{BLOCK, CEILING_STEP, PIECE_BYTES_MAX};
use crate::script::Handles;
use crate::segment::format::{SegmentEnd, SegmentHead};
use crate::segment::index::Index;
use crate::segment::size_class;
use felix_runtime::clock::Tick;

/// How far the head of an open segment is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadState {
    /// The file is there; nothing was written.
    Bare,
    /// The head is being written.
    Writing,
    /// The segment serves.
    Durable,
}

/// A segment that may be appended to.
#[derive(Debug)]
pub struct OpenSegment {
    pub seq: SegmentSeq,
    pub epoch: Epoch,
    pub size_bytes: u64,
    pub files: Handles,
    pub state: HeadState,
    /// Base offset, once it is known: when it becomes the first open one.
    pub base: Offset,
    /// Where the next piece goes.
    pub(super) at: u64,
    pub(super) pending_bytes: u64,
    pub(super) pending_batches: u64,
    /// Claims go to the next one.
    pub(super) full: bool,
    pub(super) newest_ms: u64,
    pub(super) checksum: u32,
    pub(super) last_byte: u64,
    pub(super) first_append: Option<Tick>,
    pub index: Index,
    /// Plain writes since the last sync of the file.
    pub dirty: bool,
}

impl OpenSegment {
    /// Bytes that everything pending and one more batch of `len` may need, with the padding before each piece.
    pub(super) fn fits(&self, len: usize) -> bool {
        let bytes = self.pending_bytes + len as u64;
        let pieces = (2 * bytes / PIECE_BYTES_MAX as u64 + 1).min(self.pending_batches + 1);
        self.at + bytes + (pieces + 1) * BLOCK <= self.size_bytes
    }

    pub(super) fn forget_pending(&mut self) {
        self.pending_bytes = 0;
        self.pending_batches = 0;
    }

    fn end(&self, offset: Offset) -> SegmentEnd {
        let (newest_ms, checksum) = (self.newest_ms, self.checksum);
        SegmentEnd { segment: self.seq, offset, byte: self.last_byte, newest_ms, checksum }
    }
}

/// A segment that nothing is appended to any more.
#[derive(Debug)]
pub struct Sealed {
    pub seq: SegmentSeq,
    pub epoch: Epoch,
    pub base: Offset,
    pub end: SegmentEnd,
    pub size_bytes: u64,
    pub index: Index,
    /// The handles it was written through, until its bytes are all in it.
    pub files: Option<Handles>,
}

impl Sealed {
    pub(super) fn from_state(state: &SealedState) -> Sealed {
        Sealed {
            seq: state.end.segment,
            epoch: state.epoch,
            base: state.base,
            end: state.end,
            size_bytes: state.size_bytes,
            index: Index::default(),
            files: None,
        }
    }

    pub(super) fn end_point(&self) -> Point {
        Point {
            end: self.end.offset,
            place: Place { segment: self.seq, byte: self.end.byte },
            newest_ms: self.end.newest_ms,
            checksum: self.end.checksum,
        }
    }
}

impl Log {
    /// Sealed segments, oldest first.
    pub fn sealed(&self) -> impl DoubleEndedIterator<Item = &Sealed> {
        self.sealed.iter()
    }

    /// Whether a segment is part of the log.
    #[must_use]
    pub fn has_segment(&self, seq: SegmentSeq) -> bool {
        self.sealed_at(seq).is_some() || self.open.iter().any(|open| open.seq == seq)
    }

    fn sealed_at(&self, seq: SegmentSeq) -> Option<usize> {
        self.sealed.binary_search_by_key(&seq, |sealed| sealed.seq).ok()
    }

    pub(crate) fn sealed_mut(&mut self, seq: SegmentSeq) -> Option<&mut Sealed> {
        let at = self.sealed_at(seq)?;
        self.sealed.get_mut(at)
    }

    /// Open segments: the first serves or is about to, the others wait.
    pub fn open(&self) -> impl DoubleEndedIterator<Item = &OpenSegment> {
        self.open.iter()
    }

    /// The handles to write a segment through.
    #[must_use]
    pub fn files_of(&self, seq: SegmentSeq) -> Option<Handles> {
        let open = self.open.iter().find(|open| open.seq == seq).map(|open| open.files);
        open.or_else(|| self.sealed.get(self.sealed_at(seq)?)?.files)
    }

    /// Reserves `len` bytes in the last open segment, or begins to fill the one behind it.
    pub(super) fn reserve(&mut self, len: usize) -> Option<&OpenSegment> {
        let at = self.open.iter().position(|open| !open.full)?;
        let chosen = if self.open[at].fits(len) {
            at
        } else {
            self.open.get(at + 1).filter(|next| next.fits(len))?;
            self.open[at].full = true;
            at + 1
        };
        let segment = &mut self.open[chosen];
        segment.pending_bytes += len as u64;
        segment.pending_batches += 1;
        Some(segment)
    }

    /// Whether a further segment should be made ready, and how large, when a batch of `need` bytes is to come (0 if none is
    /// known). One is kept ahead of the one that takes claims once that is half full.
    #[must_use]
    pub fn wants_segment(&self, need: usize) -> Option<u64> {
        if self.stop.is_some() {
            return None;
        }
        let larger =
            self.open.back().map(|open| open.size_bytes).or(self.sealed.back().map(|last| last.size_bytes));
        let first = self.config.segment_bytes_first;
        let wanted = larger.filter(|_| !self.wants_successor()).map_or(first, |size| size * 2);
        let size = size_class(wanted, need as u64, self.config.segment_bytes_max);
        let taking = self.open.iter().filter(|open| !open.full);
        match (taking.clone().next(), taking.count()) {
            (None, _) => Some(size),
            (Some(only), 1) => {
                let half = only.at + only.pending_bytes > only.size_bytes / 2;
                (half || (need > 0 && !only.fits(need))).then_some(size)
            }
            // A spare that is too small for a large batch is replaced by `drop_spare`.
            _ => None,
        }
    }

    /// Everything has expired, and only a newer segment lets go of the last one.
    #[must_use]
    pub fn wants_successor(&self) -> bool {
        self.open.is_empty() && self.sealed.back().is_some_and(|last| last.end.offset <= self.start)
    }

    /// Takes the spare segment out if a batch of `need` bytes fits neither it nor the one before.
    pub fn drop_spare(&mut self, need: usize) -> Option<OpenSegment> {
        let taking = self.open.iter().filter(|open| !open.full).count();
        let last = self.open.back()?;
        let spare = taking > 1 && !last.fits(need) && last.state == HeadState::Bare;
        if spare { self.open.pop_back() } else { None }
    }

    /// The number for a segment about to be made. Numbers of failed attempts are not used again.
    pub fn take_seq(&mut self) -> SegmentSeq {
        let seq = self.next_seq;
        self.next_seq = SegmentSeq(seq.0 + 1);
        seq
    }

    /// A segment file is there, bare.
    pub fn add_segment(&mut self, seq: SegmentSeq, epoch: Epoch, size_bytes: u64, files: Handles) {
        debug_assert!(self.open.back().is_none_or(|last| last.seq < seq), "segments come in order");
        self.open.push_back(OpenSegment {
            seq,
            epoch,
            size_bytes,
            files,
            state: HeadState::Bare,
            base: self.claimed,
            at: BLOCK,
            pending_bytes: 0,
            pending_batches: 0,
            full: false,
            newest_ms: 0,
            checksum: 0,
            last_byte: BLOCK,
            first_append: None,
            index: Index::default(),
            dirty: false,
        });
    }

    /// Makes the segment that takes claims the last of its kind, so that the next claim goes to a new one. Nothing happens
    /// when it has no batch.
    pub fn roll(&mut self) {
        if let Some(open) = self.open.iter_mut().find(|open| !open.full)
            && (open.pending_batches > 0 || open.last_byte > BLOCK)
        {
            open.full = true;
        }
    }

    /// Whether the first open segment has been filled since before `now - after`.
    #[must_use]
    pub fn is_old(&self, now: Tick, after: std::time::Duration) -> bool {
        let front = self.open.iter().find(|open| !open.full);
        front.and_then(|open| open.first_append).is_some_and(|first| now.saturating_since(first) >= after)
    }

    /// Whether the first open segment is over, but not durable to its end: a flush is needed before it can be sealed.
    #[must_use]
    pub fn roll_needs_flush(&self) -> bool {
        self.front_is_over() && self.durable.end < self.settled.end
    }

    fn front_is_over(&self) -> bool {
        let over = self.open.front().is_some_and(|open| open.full && open.pending_batches == 0);
        over && self.in_flight.is_empty() && self.stop.is_none()
    }

    /// Seals the first open segment if it is over and durable. Its files stay open until its bytes are spilled.
    pub fn seal_front(&mut self) -> bool {
        let over = self.front_is_over()
            && self.durable.end == self.settled.end
            && self.settled.end == self.submitted;
        if !over {
            return false;
        }
        let Some(open) = self.open.pop_front() else { return false };
        self.close_runs_of(open.seq);
        let end = open.end(self.submitted);
        self.sealed.push_back(Sealed {
            seq: open.seq,
            epoch: open.epoch,
            base: open.base,
            end,
            size_bytes: open.size_bytes,
            index: open.index,
            files: Some(open.files),
        });
        true
    }

    /// The head of the first open segment, when it is time to write it: everything before it is sealed. Its state becomes
    /// `Writing`.
    pub fn take_head(&mut self) -> Option<(SegmentHead, Handles)> {
        if self.stop.is_some() {
            return None;
        }
        let before = self.sealed.back().map(|last| last.end);
        let ceiling = match self.config.policy {
            Fsync::OnCommit => Offset(0),
            _ => self.ceiling.max(Offset(self.submitted.0 + 2 * CEILING_STEP)),
        };
        let (submitted, lineage, lineage_base) = (self.submitted, self.lineage, self.lineage_base);
        let (key, policy) = (self.key, self.config.policy);
        let open = self.open.front_mut().filter(|open| open.state == HeadState::Bare)?;
        open.base = submitted;
        open.state = HeadState::Writing;
        let head = SegmentHead {
            key,
            seq: open.seq,
            epoch: open.epoch,
            base: submitted,
            lineage,
            lineage_base,
            size_bytes: open.size_bytes,
            ceiling,
            policy,
            before,
        };
        Some((head, open.files))
    }

    /// The head is durable: the segment serves.
    pub fn head_written(&mut self, head: &SegmentHead) {
        if let Some(open) = self.open.front_mut().filter(|open| open.seq == head.seq) {
            open.state = HeadState::Durable;
            let place = Log::first_place(open.seq);
            if self.in_flight.is_empty()
                && self.settled.end == self.submitted
                && self.durable.end == self.submitted
            {
                let point = Point { end: self.submitted, place, newest_ms: 0, checksum: 0 };
                self.settled = point;
                self.durable = point;
            }
            self.ceiling = self.ceiling.max(head.ceiling);
        }
    }

    /// A head is being written.
    #[must_use]
    pub fn is_heading(&self) -> bool {
        self.open.iter().any(|open| open.state == HeadState::Writing)
    }

    /// Whether a batch of `need` bytes would find room now.
    #[must_use]
    pub fn has_room(&self, need: usize) -> bool {
        let Some(at) = self.open.iter().position(|open| !open.full) else { return false };
        self.skip_to.is_none() && self.open.iter().skip(at).take(2).any(|open| open.fits(need))
    }

    /// Bytes used in open segments.
    #[must_use]
    pub fn open_bytes(&self) -> u64 {
        self.open.iter().map(|open| open.at).sum()
    }

    /// A write to the segment that serves was answered; without a sync, unless the log settles only what is durable.
    pub fn set_front_dirty(&mut self) {
        let plain = self.config.policy != Fsync::OnCommit;
        if let Some(open) = self.open.front_mut() {
            open.dirty |= plain;
        }
    }

    /// Handles of segments with plain writes since the last call; they count as clean from here on.
    pub fn take_dirty(&mut self) -> Vec<felix_runtime::file::FileId> {
        let dirty =
            self.open.iter_mut().filter_map(|open| std::mem::take(&mut open.dirty).then_some(open.files));
        dirty.map(|files| files.plain).collect()
    }

    /// Sealed segments that are wholly below the start, oldest first. The newest segment stays until a newer one serves: it
    /// alone knows the end of the log.
    pub fn retired(&self) -> impl Iterator<Item = &Sealed> {
        let serves = self.open.front().is_some_and(|open| open.state == HeadState::Durable);
        let kept = usize::from(!serves);
        let most = self.sealed.len().saturating_sub(kept);
        self.sealed.iter().take(most).take_while(|sealed| sealed.end.offset <= self.start)
    }

    /// Takes the first of the retired segments out of the log, with what is in memory of it.
    pub fn take_retired(&mut self) -> Option<Sealed> {
        let seq = self.retired().next()?.seq;
        self.drop_runs_of(seq);
        self.sealed.pop_front()
    }

    /// The index of a segment.
    pub fn index_mut(&mut self, seq: SegmentSeq) -> Option<&mut Index> {
        let open = self.open.iter_mut().find(|open| open.seq == seq).map(|open| &mut open.index);
        open.or_else(|| {
            self.sealed.iter_mut().find(|sealed| sealed.seq == seq).map(|sealed| &mut sealed.index)
        })
    }

    /// Sealed segments that are still open for writing: the newest ones, since bytes are spilled in order.
    pub fn sealed_with_files(&self) -> impl Iterator<Item = &Sealed> {
        self.sealed.iter().rev().take_while(|sealed| sealed.files.is_some())
    }

    /// All handles for writing.
    #[must_use]
    pub fn handles(&self) -> Vec<Handles> {
        let sealed = self.sealed.iter().filter_map(|sealed| sealed.files);
        sealed.chain(self.open.iter().map(|open| open.files)).collect()
    }

    /// Leaves no segment open: the one that serves is sealed where it is, the others are given back. What is appended next is
    /// of a new lineage, in a new segment.
    ///
    /// # Panics
    /// When something is pending, in flight or not in its segment.
    pub fn seal_for_move(&mut self) -> Vec<OpenSegment> {
        assert!(
            self.is_settled() && self.durable.end == self.settled.end && !self.has_runs(),
            "moved while busy"
        );
        let mut bare = Vec::new();
        for open in self.open.drain(..) {
            if open.state != HeadState::Durable {
                bare.push(open);
                continue;
            }
            let end = open.end(self.submitted);
            self.sealed.push_back(Sealed {
                seq: open.seq,
                epoch: open.epoch,
                base: open.base,
                end,
                size_bytes: open.size_bytes,
                index: open.index,
                files: None,
            });
        }
        for sealed in &mut self.sealed {
            sealed.files = None;
        }
        self.lineage = crate::id::Lineage(self.lineage.0 + 1);
        self.lineage_base = self.settled.end;
        bare
    }
}
