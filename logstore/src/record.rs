//! A batch: the unit that is there whole or not at all. Scope: values.
//! Owns: the layout of a batch and of the records in it (`docs/log-format.md`).
//! Invariants: what [`decode`] accepts was written as one batch into this use of this segment, byte for byte; a batch takes
//! a whole number of [`BATCH_ALIGN`] bytes; bytes from disk never panic.
//! Not here: where a batch is, whether it may be seen.

mod decode;
mod encode;

use bytes::Bytes;
use felix_wire::id::{Generation, Offset, ProducerId, Sequence};

use crate::checksum::Epoch;
use crate::id::Lineage;
use crate::limits::BATCH_ALIGN;

pub use decode::{BatchFault, Found, RecordRefs, Records, decode};
pub use encode::Encoder;

/// First bytes of a batch.
pub const BATCH_MAGIC: [u8; 4] = *b"FLXB";
/// Version of the batch layout that is written.
pub const BATCH_VERSION: u8 = 1;
/// Bytes before the first record.
pub const BATCH_HEAD_BYTES: usize = 96;
/// Bytes before each record's payload: length, checksum, time after the batch's.
pub const RECORD_HEAD_BYTES: usize = 12;

/// Where the head has its checksum.
const CHECKSUM_AT: usize = 20;

/// What the offsets of a batch stand for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BatchKind {
    /// Records of clients.
    Data,
    /// Offsets that no record will ever have. Its count is theirs; it has no records.
    Skip,
    /// The first entry of a new leader's generation.
    GenerationStart,
    /// Records of clients that each hold an event and changes of the shard's state, all or nothing.
    Commit,
}

impl BatchKind {
    fn code(self) -> u8 {
        match self {
            BatchKind::Data => 0,
            BatchKind::Skip => 1,
            BatchKind::GenerationStart => 2,
            BatchKind::Commit => 3,
        }
    }

    fn from_code(code: u8) -> Option<BatchKind> {
        match code {
            0 => Some(BatchKind::Data),
            1 => Some(BatchKind::Skip),
            2 => Some(BatchKind::GenerationStart),
            3 => Some(BatchKind::Commit),
            _ => None,
        }
    }
}

/// Bits of the flag field. Bits 8 to 11 are the codec; 0 is "not compressed", others are refused.
mod flag {
    /// A producer and its sequence are in the head.
    pub const PRODUCER: u16 = 1 << 2;
    /// Bits this version understands. Bit 0 is for a key per record, bit 1 for headers per record.
    pub const KNOWN: u16 = PRODUCER;
}

/// What the head of a batch says, apart from lengths and checksums.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchHead {
    pub kind: BatchKind,
    pub base: Offset,
    /// Offsets it takes.
    pub count: u32,
    pub generation: Generation,
    pub lineage: Lineage,
    /// End of what was durable when it was appended. At or below `base`.
    pub durable_end: Offset,
    /// Milliseconds since 1970; records give the difference.
    pub timestamp_ms: u64,
    pub producer: Option<(ProducerId, Sequence)>,
}

impl BatchHead {
    /// One past its last offset.
    #[must_use]
    pub fn end(&self) -> Offset {
        Offset(self.base.0.saturating_add(u64::from(self.count)))
    }
}

/// A batch in memory: checked or made by us. Clones share the bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    head: BatchHead,
    bytes: Bytes,
    checksum: u32,
}

impl Batch {
    /// What its head says.
    #[must_use]
    pub fn head(&self) -> &BatchHead {
        &self.head
    }

    /// All of it as on disk.
    #[must_use]
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// The checksum of its head, which covers the rest.
    #[must_use]
    pub fn checksum(&self) -> u32 {
        self.checksum
    }

    /// Its records in order.
    #[must_use]
    pub fn records(&self) -> Records<'_> {
        Records::new(self)
    }

    /// The same without a share of its memory for each.
    #[must_use]
    pub fn record_refs(&self) -> RecordRefs<'_> {
        RecordRefs::new(self)
    }

    /// Checks `bytes`, which may go on behind the batch, and takes the batch out of them.
    ///
    /// # Errors
    /// As [`decode`].
    pub fn from_bytes(bytes: &Bytes, epoch: Epoch) -> Result<Batch, BatchFault> {
        let found = decode(bytes, epoch)?;
        Ok(Batch { head: found.head, checksum: found.checksum, bytes: bytes.slice(..found.len) })
    }
}

/// One record of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    pub offset: Offset,
    /// Milliseconds since 1970.
    pub timestamp_ms: u64,
    /// Shares the memory of the batch.
    pub payload: Bytes,
}

/// One record as it stands in its batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordRef<'a> {
    pub offset: Offset,
    /// Milliseconds since 1970.
    pub timestamp_ms: u64,
    pub payload: &'a [u8],
}

/// Bytes of a batch of `records` records with `payload_bytes` in all.
#[must_use]
pub fn encoded_len(records: usize, payload_bytes: usize) -> usize {
    (BATCH_HEAD_BYTES + records * RECORD_HEAD_BYTES + payload_bytes).next_multiple_of(BATCH_ALIGN)
}

#[cfg(test)]
mod tests;
