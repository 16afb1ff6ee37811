//! Taking offsets and putting batches on them. Scope: part of [`Log`].
//! Invariants: a claim is given only when its bytes fit the segment it names, with all padding that may come between; claims
//! are appended in the order in which they were given.
//! Not here: submitting.

use std::num::NonZeroU32;

use felix_wire::id::{Generation, Offset, ProducerId, Sequence};

use super::pieces::{Pending, Waiting};
use super::{Log, StopReason};
use crate::checksum::Epoch;
use crate::id::SegmentSeq;
use crate::limits::{BATCH_BYTES_MAX, BATCH_RECORDS_MAX, GROWN_BYTES_MAX};
use crate::record::{Batch, BatchHead, BatchKind, Encoder, encoded_len};

/// Offsets taken from the log and not yet appended. Not Clone: one claim, one append.
#[derive(Debug)]
#[must_use = "a dropped claim is a hole in the log"]
pub struct Claim {
    base: Offset,
    count: NonZeroU32,
    payload_bytes: usize,
    len: usize,
    segment: SegmentSeq,
    epoch: Epoch,
    kind: BatchKind,
}

impl Claim {
    /// The first offset.
    #[must_use]
    pub fn base(&self) -> Offset {
        self.base
    }

    /// How many offsets.
    #[must_use]
    pub fn count(&self) -> NonZeroU32 {
        self.count
    }
}

/// Why nothing was claimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ClaimError {
    /// No such log on this engine.
    #[error("no such log here")]
    Unknown,
    #[error("the log takes no writes: {0}")]
    Stopped(StopReason),
    /// More records or bytes than a batch may have.
    #[error("a batch has at most {BATCH_RECORDS_MAX} records and {BATCH_BYTES_MAX} bytes")]
    TooLarge,
    /// A segment is being made ready, or memory is full of bytes on their way to the disk. `Event::Room` follows.
    #[error("no room for the moment")]
    NoRoom,
    /// The volume is nearly full. Writes go on by themselves when there is space again.
    #[error("the volume is nearly full")]
    NoSpace,
}

/// What a batch says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AppendMeta {
    pub generation: Generation,
    /// Milliseconds since 1970.
    pub timestamp_ms: u64,
    pub producer: Option<(ProducerId, Sequence)>,
}

impl Log {
    /// Takes the next `count` offsets for a batch of `count` records with `payload_bytes` in all.
    ///
    /// # Errors
    /// Nothing was taken. `NoRoom` when a segment must be opened first: see [`Log::wants_segment`].
    pub fn claim(
        &mut self,
        kind: BatchKind,
        count: NonZeroU32,
        payload_bytes: usize,
    ) -> Result<Claim, ClaimError> {
        if let Some(reason) = self.stop {
            return Err(ClaimError::Stopped(reason));
        }
        if self.skip_to.is_some() {
            return Err(ClaimError::NoRoom);
        }
        let records = if kind == BatchKind::Skip { 0 } else { count.get() };
        let len = payload_bytes
            .checked_add(records as usize * crate::record::RECORD_HEAD_BYTES)
            .filter(|bytes| *bytes < BATCH_BYTES_MAX as usize)
            .map(|_| encoded_len(records as usize, payload_bytes));
        let Some(len) = len.filter(|len| *len <= BATCH_BYTES_MAX as usize && records <= BATCH_RECORDS_MAX)
        else {
            return Err(ClaimError::TooLarge);
        };
        let Some(segment) = self.reserve(len) else { return Err(ClaimError::NoRoom) };
        let (seq, epoch) = (segment.seq, segment.epoch);
        let base = self.claimed;
        let end = base.0.checked_add(u64::from(count.get())).ok_or(ClaimError::TooLarge)?;
        self.claimed = Offset(end);
        Ok(Claim { base, count, payload_bytes, len, segment: seq, epoch, kind })
    }

    /// Appends the batch that skips the offsets recovery asked to skip, when there is a segment for it. False when it has to
    /// wait.
    pub fn append_skip(&mut self) -> bool {
        let Some(next) = self.skip_to.take() else { return true };
        let count = u32::try_from(next.0 - self.claimed.0).ok().and_then(NonZeroU32::new);
        let Some(count) = count else { return true };
        let Ok(claim) = self.claim(BatchKind::Skip, count, 0) else {
            self.skip_to = Some(next);
            return false;
        };
        let meta = AppendMeta { generation: Generation(0), timestamp_ms: 0, producer: None };
        self.append(claim, meta, std::iter::empty());
        true
    }

    /// Makes the batch of a claim from `records` (time and payload of each) and queues it. The copy of the payloads into the
    /// batch is the only one before the disk buffer.
    ///
    /// # Panics
    /// When claims are not appended in their order, or the records are not those that were claimed.
    pub fn append<'a>(
        &mut self,
        claim: Claim,
        meta: AppendMeta,
        records: impl Iterator<Item = (u64, &'a [u8])>,
    ) -> Batch {
        assert_eq!(claim.base, self.appended, "claims are appended in order");
        let head = self.head_of(&claim, meta);
        let mut encoder = Encoder::new(head, claim.epoch, claim.payload_bytes);
        let mut newest_ms = meta.timestamp_ms;
        for (timestamp_ms, payload) in records {
            newest_ms = newest_ms.max(timestamp_ms);
            encoder.push(timestamp_ms, payload);
        }
        let batch = encoder.finish();
        assert_eq!(batch.bytes().len(), claim.len, "a batch has the bytes it claimed");
        self.appended = head.end();
        if self.stop.is_some() {
            // Claimed before the log stopped: it will never settle.
            return batch;
        }
        self.queue(&claim, Waiting::Whole(batch.clone()), newest_ms);
        batch
    }

    /// Makes the batch of a claim from one record, to which [`Log::grow`] adds more until it is submitted.
    ///
    /// # Panics
    /// When claims are not appended in their order, or the record is not the one that was claimed.
    pub fn append_growing(&mut self, claim: Claim, meta: AppendMeta, payload: &[u8]) {
        assert_eq!(claim.base, self.appended, "claims are appended in order");
        let head = self.head_of(&claim, meta);
        let encoder = Encoder::growing(head, claim.epoch, (meta.timestamp_ms, payload));
        assert_eq!((claim.count.get(), encoder.encoded_len()), (1, claim.len), "a batch has what it claimed");
        self.appended = head.end();
        if self.stop.is_none() {
            self.queue(&claim, Waiting::Grows(encoder), meta.timestamp_ms);
        }
    }

    /// Puts a record at the end of the batch that was appended last, when that grows still, is of the same generation and has
    /// room for it. Gives its offset; none when it needs a claim of its own.
    pub fn grow(&mut self, meta: AppendMeta, payload: &[u8]) -> Option<Offset> {
        let growth = self.growth(meta, payload.len())?;
        let segment = self.open.iter_mut().find(|open| !open.full)?;
        let last = self.pending.back_mut()?;
        let Waiting::Grows(encoder) = &mut last.batch else { return None };
        encoder.grow(meta.timestamp_ms, payload);
        last.newest_ms = last.newest_ms.max(meta.timestamp_ms);
        segment.pending_bytes += growth as u64;
        self.memory_bytes += growth;
        let at = self.claimed;
        self.claimed = encoder.head().end();
        self.appended = self.claimed;
        Some(at)
    }

    /// Bytes that the batch appended last gets longer by with a record of `payload_bytes`; none when it cannot have it.
    #[must_use]
    pub fn growth(&self, meta: AppendMeta, payload_bytes: usize) -> Option<usize> {
        let last = self.pending.back().filter(|_| self.claimed == self.appended)?;
        let Waiting::Grows(encoder) = &last.batch else { return None };
        let head = encoder.head();
        let (len, grown) = (encoder.encoded_len(), encoder.grown_len(payload_bytes));
        let fits = grown <= GROWN_BYTES_MAX && head.count < BATCH_RECORDS_MAX && self.claimed.0 < u64::MAX;
        let segment = self.open.iter().find(|open| !open.full)?;
        let same = segment.seq == last.segment
            && head.generation == meta.generation
            && head.producer.or(meta.producer).is_none();
        (fits && same && segment.fits(grown - len)).then_some(grown - len)
    }

    fn head_of(&self, claim: &Claim, meta: AppendMeta) -> BatchHead {
        BatchHead {
            kind: claim.kind,
            base: claim.base,
            count: claim.count.get(),
            generation: meta.generation,
            lineage: self.lineage,
            durable_end: self.durable.end,
            timestamp_ms: meta.timestamp_ms,
            producer: meta.producer,
        }
    }

    fn queue(&mut self, claim: &Claim, batch: Waiting, newest_ms: u64) {
        self.unstamped += 1;
        self.memory_bytes += claim.len;
        self.pending.push_back(Pending { batch, segment: claim.segment, newest_ms });
    }
}
