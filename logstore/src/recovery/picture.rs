//! What slots and the heads of its segments say of one log, before any batch is looked at. Scope: one per log and recovery or
//! inspection.
//! Owns: which segments are the log, in which order, where each must end, which pieces belong into them, and the judgement
//! on the last one.
//! Invariants: no I/O, so that an inspection judges as a recovery does; a segment that must be there and is not is told.
//! Not here: reading heads and batches (`shard`, `crate::inspect`), what slots say (`evidence`).
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::collections::BTreeMap;

use felix_runtime::file::{DiskPath, VolumeId};
use felix_wire::id::Offset;

use super::evidence::Known;
use super::{Refusal, Refused};
use crate::commit::{Mark, PieceHead};
use crate::id::{Lineage, SegmentSeq, ShardKey};
use crate::names;
use crate::record::BatchFault;
use crate::segment::format::{SegmentEnd, SegmentFault, SegmentHead};

/// One log as far as slots and heads tell.
pub(crate) struct Picture<'a> {
    pub volume: VolumeId,
    pub key: ShardKey,
    pub known: &'a Known,
    /// Heads that belong to this log, by number.
    pub heads: BTreeMap<SegmentSeq, SegmentHead>,
    /// Files whose head is damaged.
    pub damaged: Vec<(SegmentSeq, SegmentFault)>,
    /// Files with the head of another log or number: made ready for a use that never began.
    pub foreign: BTreeMap<SegmentSeq, SegmentHead>,
    pub all: Vec<SegmentSeq>,
}

/// One segment of the log with its end, which only the last may not know.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Link {
    pub head: SegmentHead,
    pub end: Option<SegmentEnd>,
}

/// What a walk over a segment came to.
pub(crate) struct Scanned {
    pub end: SegmentEnd,
    /// The largest durable end that batches name, those behind the end included.
    pub durable: Offset,
    /// Where the next batch was looked for, and what stands there.
    pub stopped_at: u64,
    pub fault: BatchFault,
    /// Something that was meant to be a batch stands there.
    pub torn: bool,
    /// Where batches begin, with their offsets, at most one in [`PLACE_EVERY_BYTES`].
    places: Vec<(Offset, u64)>,
}

/// The largest segment has a few thousand places.
const PLACE_EVERY_BYTES: u64 = 64 << 10;

impl Scanned {
    /// Nothing is read yet; `end` is where the walk begins.
    pub fn begin(end: SegmentEnd) -> Scanned {
        let stopped_at = end.byte;
        Scanned {
            end,
            durable: Offset(0),
            stopped_at,
            fault: BatchFault::NotABatch,
            torn: false,
            places: Vec::new(),
        }
    }

    /// The walk passed `batch`, and is at `byte` now.
    pub fn passed(&mut self, batch: &crate::record::Batch, byte: u64) {
        let head = batch.head();
        let begin = byte.saturating_sub(batch.bytes().len() as u64);
        if self.places.last().is_none_or(|(_, last)| begin >= last + PLACE_EVERY_BYTES) {
            self.places.push((head.base, begin));
        }
        let newest = batch.records().map(|record| record.timestamp_ms).max().unwrap_or(0);
        self.end.offset = head.end();
        self.end.byte = byte;
        self.end.newest_ms = self.end.newest_ms.max(newest).max(head.timestamp_ms);
        self.end.checksum = batch.checksum();
        self.durable = self.durable.max(head.durable_end);
    }

    /// The last place noted at which a batch begins at or below `offset`.
    pub fn place_before(&self, offset: Offset) -> Option<(Offset, u64)> {
        let above = self.places.partition_point(|(base, _)| *base <= offset);
        above.checked_sub(1).and_then(|at| self.places.get(at)).copied()
    }

    /// The walk ended at `byte`.
    pub fn ended(&mut self, byte: u64, fault: BatchFault) {
        self.stopped_at = byte;
        self.fault = fault;
        self.torn = fault != BatchFault::NotABatch;
    }
}

impl<'a> Picture<'a> {
    pub fn new(volume: VolumeId, key: ShardKey, known: &'a Known) -> Picture<'a> {
        Picture {
            volume,
            key,
            known,
            heads: BTreeMap::new(),
            damaged: Vec::new(),
            foreign: BTreeMap::new(),
            all: Vec::new(),
        }
    }

    /// Takes the first block of the file that is called segment `seq`.
    pub fn add(&mut self, seq: SegmentSeq, block: &[u8]) {
        self.all.push(seq);
        match SegmentHead::decode(block) {
            Ok(head) if head.key == self.key && head.seq == seq => _ = self.heads.insert(seq, head),
            Ok(head) => _ = self.foreign.insert(seq, head),
            // One that is no segment yet.
            Err(SegmentFault::NotASegment) => {}
            Err(fault) => self.damaged.push((seq, fault)),
        }
    }

    pub fn path(&self, seq: SegmentSeq) -> DiskPath {
        names::segment(self.volume, self.key, seq)
    }

    pub fn refuse(&self, seq: SegmentSeq, byte: u64, why: Refusal) -> Refused {
        Refused { key: self.key, path: self.path(seq), byte, why }
    }

    /// The mark that holds for this log now, if no newer lineage has a segment.
    pub fn mark_in_force(&self) -> Option<&Mark> {
        let newest = self.heads.values().map(|head| head.lineage).max();
        self.known.mark.as_ref().filter(|mark| newest.is_none_or(|newest| mark.lineage >= newest))
    }

    pub fn newest(&self) -> Option<&SegmentHead> {
        self.heads.last_key_value().map(|(_, head)| head)
    }

    /// The segments of the log, oldest first. What is missing among them goes to `lost`, the newest first; a recovery goes
    /// on only when that is nothing.
    pub fn chain(&self, lost: &mut Vec<Refused>) -> Vec<Link> {
        let ended = self
            .mark_in_force()
            .filter(|mark| self.newest().is_none_or(|newest| mark.lineage > newest.lineage));
        let (mut seq, mut end) = match (ended, self.newest()) {
            // The lineage was raised and nothing was written since: the log ends where the mark says.
            (Some(mark), _) => (mark.place.segment, Some(end_of(mark))),
            (None, Some(newest)) => (newest.seq, None),
            (None, None) => (SegmentSeq(0), None),
        };
        self.check_lost(seq, ended.is_some(), lost);
        let mut chain = Vec::new();
        while seq.0 != 0 {
            let Some(head) = self.heads.get(&seq) else {
                lost.push(self.lost(seq));
                let Some((before, _)) = self.heads.range(..seq).next_back() else { break };
                (seq, end) = (*before, None);
                continue;
            };
            chain.push(Link { head: *head, end });
            match head.before {
                Some(before) if before.offset > self.known.start => {
                    (seq, end) = (before.segment, Some(before))
                }
                _ => break,
            }
        }
        chain.reverse();
        chain
    }

    /// A segment that must be there and is not: missing, or its head is.
    fn lost(&self, seq: SegmentSeq) -> Refused {
        match self.damaged.iter().find(|(damaged, _)| *damaged == seq) {
            Some((_, SegmentFault::Version(version))) => self.refuse(seq, 0, Refusal::Version(*version)),
            Some(_) => self.refuse(seq, 0, Refusal::HeadDamaged),
            None if self.all.contains(&seq) => self.refuse(seq, 0, Refusal::HeadDamaged),
            None => self.refuse(seq, 0, Refusal::SegmentMissing),
        }
    }

    /// Whether slots or damaged heads speak of segments behind `last`, the newest that can be read.
    fn check_lost(&self, last: SegmentSeq, ended: bool, lost: &mut Vec<Refused>) {
        let newest = self.newest().map_or(Lineage(0), |newest| newest.lineage);
        let raised = self.mark_in_force().filter(|_| ended).map_or(newest, |mark| mark.lineage);
        let marked = self.mark_in_force().map(|mark| mark.place.segment);
        let pieces = self.known.pieces.iter().map(|(piece, _, _)| piece);
        let pieced = pieces.filter(|piece| piece.lineage >= raised).map(|piece| piece.place.segment);
        let damaged = self.damaged.iter().map(|(seq, _)| *seq);
        if let Some(first) = pieced.chain(marked).chain(damaged).filter(|seq| *seq > last).min() {
            lost.push(self.lost(first));
        }
    }

    /// The pieces that belong into a segment, by their byte in it: head, slot, byte of the slot.
    pub fn pieces_of(&self, link: &Link) -> Vec<(PieceHead, usize, u64)> {
        let limit = link.end.map_or(u64::MAX, |end| end.byte);
        let mut pieces: Vec<(PieceHead, usize, u64)> = Vec::new();
        for (piece, slot, slot_byte) in &self.known.pieces {
            let here = piece.place.segment == link.head.seq && piece.epoch == link.head.epoch;
            // A cut may go through a piece: what is behind it is never parsed.
            if here && piece.place.byte < limit {
                pieces.push((*piece, *slot, *slot_byte));
            }
        }
        pieces.sort_by_key(|(piece, _, _)| piece.place.byte);
        pieces.dedup_by_key(|(piece, _, _)| piece.place.byte);
        pieces
    }

    /// The mark of a place in the last segment up to which it is known to be durable and need not be read.
    pub fn mark_in(&self, last: &SegmentHead) -> Option<&Mark> {
        self.mark_in_force().filter(|mark| {
            mark.lineage == last.lineage && mark.place.segment == last.seq && !self.known.suspect
        })
    }

    /// Up to here the last segment is known to have been durable.
    pub fn durable(&self, head: &SegmentHead, scanned: &Scanned) -> Offset {
        self.known.durable_of(head.lineage).max(scanned.durable).max(head.base)
    }

    /// Whether the last segment has everything that is known to have been durable.
    ///
    /// # Errors
    /// Where it stops and what is missing.
    pub fn judge(&self, head: &SegmentHead, scanned: &Scanned) -> Result<(), Refused> {
        let durable = self.durable(head, scanned);
        if let BatchFault::Version(version) = scanned.fault {
            return Err(self.refuse(head.seq, scanned.stopped_at, Refusal::Version(u32::from(version))));
        }
        if scanned.end.offset < durable {
            let why = Refusal::Damaged { found: scanned.end.offset, durable };
            return Err(self.refuse(head.seq, scanned.stopped_at, why));
        }
        Ok(())
    }
}

/// Where a mark says that its log ends.
pub(crate) fn end_of(mark: &Mark) -> SegmentEnd {
    SegmentEnd {
        segment: mark.place.segment,
        offset: mark.end,
        byte: mark.place.byte,
        newest_ms: mark.newest_ms,
        checksum: mark.checksum,
    }
}
