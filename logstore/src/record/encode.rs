//! Writing a batch. Scope: one [`Encoder`] per batch, of so many records as its head says or of ever more.
//! Invariants: each payload byte is read once for its checksum and copied once, right after, while it is in the cache.
//! Not here: reading it back (`decode`).

use bytes::Bytes;

use super::{
    BATCH_HEAD_BYTES, BATCH_MAGIC, BATCH_VERSION, Batch, BatchHead, CHECKSUM_AT, RECORD_HEAD_BYTES,
    encoded_len, flag,
};
use crate::checksum::{Epoch, extend};
use crate::field::{Writer, patch_u32};
use crate::limits::{BATCH_ALIGN, BATCH_BYTES_MAX, BATCH_RECORDS_MAX};
use crate::record::BatchKind;

/// Bytes that are summed and copied together: they are in the nearest cache for the copy.
const PASS_BYTES: usize = 16 << 10;

/// A batch that is being written.
#[derive(Debug)]
pub struct Encoder {
    head: BatchHead,
    epoch: Epoch,
    seed: u32,
    out: Vec<u8>,
    pushed: u32,
    /// Of the record checksums so far, to be continued from the head's.
    record_checksums: Vec<u8>,
}

impl Encoder {
    /// Begins the batch that `head` describes, in the use `epoch` of a segment. `payload_bytes` is what the records will
    /// have in all.
    ///
    /// # Panics
    /// When count or size are over the limits: they are checked where a batch is claimed.
    #[must_use]
    pub fn new(head: BatchHead, epoch: Epoch, payload_bytes: usize) -> Encoder {
        assert!(head.count > 0 && (head.count <= BATCH_RECORDS_MAX || head.kind == BatchKind::Skip));
        assert!(head.durable_end <= head.base, "what is durable was appended before");
        let records = if head.kind == BatchKind::Skip { 0 } else { head.count as usize };
        let len = encoded_len(records, payload_bytes);
        assert!(len <= BATCH_BYTES_MAX as usize, "a batch of {len} bytes");
        let mut out = Vec::with_capacity(len);
        out.resize(BATCH_HEAD_BYTES, 0);
        Encoder {
            head,
            epoch,
            seed: epoch.seed(),
            out,
            pushed: 0,
            record_checksums: Vec::with_capacity(records * 4),
        }
    }

    /// Begins a batch with one record, to which [`Encoder::grow`] adds more.
    ///
    /// # Panics
    /// As [`Encoder::new`] and [`Encoder::finish`].
    #[must_use]
    pub fn growing(head: BatchHead, epoch: Epoch, (timestamp_ms, payload): (u64, &[u8])) -> Encoder {
        let mut encoder = Encoder::new(BatchHead { count: 1, ..head }, epoch, payload.len());
        encoder.push(timestamp_ms, payload);
        encoder
    }

    /// Adds a record behind those its head speaks of, on the next offset. It must be known that there is room for it.
    pub fn grow(&mut self, timestamp_ms: u64, payload: &[u8]) {
        self.head.count += 1;
        self.push(timestamp_ms, payload);
    }

    /// What it says of itself so far.
    #[must_use]
    pub fn head(&self) -> &BatchHead {
        &self.head
    }

    /// Bytes of the batch as it stands.
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        self.out.len().next_multiple_of(BATCH_ALIGN)
    }

    /// Bytes of the batch with one more record of `payload_bytes`.
    #[must_use]
    pub fn grown_len(&self, payload_bytes: usize) -> usize {
        (self.out.len() + RECORD_HEAD_BYTES + payload_bytes).next_multiple_of(BATCH_ALIGN)
    }

    /// Adds a record. Its time is kept as a difference of at most 24 days to the batch's.
    pub fn push(&mut self, timestamp_ms: u64, payload: &[u8]) {
        let delta = i128::from(timestamp_ms) - i128::from(self.head.timestamp_ms);
        let delta = delta.clamp(i128::from(i32::MIN), i128::from(i32::MAX)) as i32;
        let (len, delta) = ((payload.len() as u32).to_le_bytes(), delta.to_le_bytes());
        let begin = self.out.len();
        Writer::new(&mut self.out).bytes(&len).u32(0).bytes(&delta);
        let mut crc = extend(self.seed, [len, delta].as_flattened());
        for part in payload.chunks(PASS_BYTES) {
            crc = extend(crc, part);
            self.out.extend_from_slice(part);
        }
        patch_u32(&mut self.out, begin + 4, crc);
        self.record_checksums.extend_from_slice(&crc.to_le_bytes());
        self.pushed += 1;
    }

    /// Completes it.
    ///
    /// # Panics
    /// When not as many records were pushed as the head says.
    #[must_use]
    pub fn finish(mut self) -> Batch {
        let records = if self.head.kind == BatchKind::Skip { 0 } else { self.head.count };
        assert_eq!(self.pushed, records, "a batch has the records it claimed");
        let stored = self.out.len() - BATCH_HEAD_BYTES;
        self.out.resize(self.out.len().next_multiple_of(BATCH_ALIGN), 0);
        let head = head_bytes(&self.head, self.epoch, self.out.len(), stored);
        let checksum = extend(extend(self.seed, &head), &self.record_checksums);
        self.out[..BATCH_HEAD_BYTES].copy_from_slice(&head);
        patch_u32(&mut self.out, CHECKSUM_AT, checksum);
        // One that grew has more room than it needs, and memory is counted by bytes.
        self.out.shrink_to_fit();
        Batch { head: self.head, bytes: Bytes::from(self.out), checksum }
    }
}

/// The head with its checksum left zero.
fn head_bytes(head: &BatchHead, epoch: Epoch, total: usize, stored: usize) -> Vec<u8> {
    let flags = if head.producer.is_some() { flag::PRODUCER } else { 0 };
    let (producer, sequence) = head.producer.map_or((0, 0), |(producer, sequence)| (producer.0, sequence.0));
    let mut out = Vec::with_capacity(BATCH_HEAD_BYTES);
    Writer::new(&mut out)
        .bytes(&BATCH_MAGIC)
        .u8(BATCH_VERSION)
        .u8(head.kind.code())
        .u16(flags)
        .u32(total as u32)
        .u32(stored as u32)
        .u32(head.count)
        .u32(0)
        .u64(head.base.0)
        .u64(head.generation.0)
        .u64(head.lineage.0)
        .u64(head.durable_end.0)
        .u64(head.timestamp_ms)
        .u64(producer)
        .u64(sequence)
        .u64(epoch.0)
        .u32(stored as u32)
        .u32(0);
    debug_assert_eq!(out.len(), BATCH_HEAD_BYTES);
    out
}
