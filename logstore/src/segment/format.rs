//! The head of a segment: its first block. Scope: values.
//! Invariants: a head that is accepted names this log, this number and this use of the file; it is durable before the
//! first byte behind it is submitted.
//! Not here: batches (`record`).
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use felix_wire::id::{Incarnation, Offset};

use crate::checksum::{Epoch, extend};
use crate::field::{Fields, Writer, patch_u32};
use crate::id::{Fsync, Lineage, SegmentSeq, ShardKey};

/// First bytes of a segment.
pub const SEGMENT_MAGIC: [u8; 8] = *b"FLXSEG\0\0";
/// Version of the segment layout that is written.
pub const SEGMENT_VERSION: u32 = 1;
/// Bytes of the head that mean something; the rest of its block is zero.
pub const SEGMENT_HEAD_BYTES: usize = 240;

const CHECKSUM_AT: usize = 12;
const RESERVED_BYTES: usize = 64;

/// Where a segment ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentEnd {
    pub segment: SegmentSeq,
    /// One past its last offset.
    pub offset: Offset,
    /// One past its last batch.
    pub byte: u64,
    /// Newest record time in it, milliseconds since 1970; 0 when it is empty.
    pub newest_ms: u64,
    /// Checksum of the head of its last batch; 0 when it is empty.
    pub checksum: u32,
}

/// What the head says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentHead {
    pub key: ShardKey,
    pub seq: SegmentSeq,
    pub epoch: Epoch,
    /// Offset of its first batch.
    pub base: Offset,
    pub lineage: Lineage,
    /// End of the log when this lineage began.
    pub lineage_base: Offset,
    /// Length of the file.
    pub size_bytes: u64,
    /// Offsets below it may have been used (logs that acknowledge before they sync); 0 otherwise.
    pub ceiling: Offset,
    pub policy: Fsync,
    /// The segment before it; none for the first of a log.
    pub before: Option<SegmentEnd>,
}

/// Why a block is not the head of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SegmentFault {
    #[error("no segment begins here")]
    NotASegment,
    #[error("segment version {0} is not known")]
    Version(u32),
    #[error("checksum of the segment's head does not fit")]
    Checksum,
    #[error("malformed segment head")]
    Malformed,
}

impl SegmentHead {
    /// The head as bytes, to be padded to a block with zeros.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(SEGMENT_HEAD_BYTES);
        let before = self.before.unwrap_or(SegmentEnd {
            segment: SegmentSeq(0),
            offset: Offset(0),
            byte: 0,
            newest_ms: 0,
            checksum: 0,
        });
        Writer::new(&mut out)
            .bytes(&SEGMENT_MAGIC)
            .u32(SEGMENT_VERSION)
            .u32(0)
            .u64(self.epoch.0)
            .u128(self.key.name)
            .u64(self.key.incarnation.0)
            .u64(self.seq.0)
            .u64(self.base.0)
            .u64(self.lineage.0)
            .u64(self.lineage_base.0)
            .u64(self.size_bytes)
            .u64(self.ceiling.0)
            .u8(self.policy.code())
            .zeros(7)
            .u64(before.segment.0)
            .u64(before.offset.0)
            .u64(before.byte)
            .u64(before.newest_ms)
            .u32(before.checksum)
            .zeros(36)
            .zeros(RESERVED_BYTES);
        debug_assert_eq!(out.len(), SEGMENT_HEAD_BYTES);
        let crc = extend(self.epoch.seed(), &out);
        patch_u32(&mut out, CHECKSUM_AT, crc);
        out
    }

    /// Reads the head at the start of a segment's first block.
    ///
    /// # Errors
    /// `NotASegment` for zeros and foreign bytes, `Version` for a later layout, the rest for damage.
    pub fn decode(block: &[u8]) -> Result<SegmentHead, SegmentFault> {
        let mut fields = Fields::new(block);
        if fields.bytes(8) != Some(&SEGMENT_MAGIC[..]) {
            return Err(SegmentFault::NotASegment);
        }
        match fields.u32().ok_or(SegmentFault::NotASegment)? {
            SEGMENT_VERSION => {}
            later => return Err(SegmentFault::Version(later)),
        }
        let mut own = block.get(..SEGMENT_HEAD_BYTES).ok_or(SegmentFault::Malformed)?.to_vec();
        patch_u32(&mut own, CHECKSUM_AT, 0);
        let checksum = fields.u32();
        let epoch = Epoch(fields.u64().ok_or(SegmentFault::Malformed)?);
        if checksum != Some(extend(epoch.seed(), &own)) {
            return Err(SegmentFault::Checksum);
        }
        SegmentHead::fields(&mut fields, epoch).ok_or(SegmentFault::Malformed)
    }

    fn fields(fields: &mut Fields<'_>, epoch: Epoch) -> Option<SegmentHead> {
        let key = ShardKey { name: fields.u128()?, incarnation: Incarnation(fields.u64()?) };
        let seq = SegmentSeq(fields.u64()?);
        let base = Offset(fields.u64()?);
        let lineage = Lineage(fields.u64()?);
        let lineage_base = Offset(fields.u64()?);
        let size_bytes = fields.u64()?;
        let ceiling = Offset(fields.u64()?);
        let policy = Fsync::from_code(fields.u8()?)?;
        fields.bytes(7)?;
        let before = SegmentEnd {
            segment: SegmentSeq(fields.u64()?),
            offset: Offset(fields.u64()?),
            byte: fields.u64()?,
            newest_ms: fields.u64()?,
            checksum: fields.u32()?,
        };
        let before = (before.segment.0 != 0).then_some(before);
        if before.is_some_and(|before| before.segment >= seq || before.offset != base) {
            return None;
        }
        Some(SegmentHead {
            key,
            seq,
            epoch,
            base,
            lineage,
            lineage_base,
            size_bytes,
            ceiling,
            policy,
            before,
        })
    }
}

#[cfg(test)]
mod tests;
