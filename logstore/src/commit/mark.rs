//! What a core says of one shard in a round: how far it is durable, or a change that is not in its bytes. Scope: values.
//! Invariants: everything below `end` was durable when the round was written; a mark of a higher lineage overrules every
//! lower one; among marks of one lineage the later round holds.
//! Not here: pieces.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use felix_wire::id::{Incarnation, Offset};

use crate::field::{Fields, Writer};
use crate::id::{Fsync, Lineage, Place, SegmentSeq, ShardKey};

/// Bytes of a mark.
pub const MARK_BYTES: usize = 104;

/// Why the mark was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MarkKind {
    /// The state of the shard; nothing happened.
    State,
    /// The log was cut at `end`; bytes of lower lineages from there on are void.
    Truncated,
    /// The start offset moved.
    Start,
    /// The shard is gone; its files may be removed.
    Deleted,
    /// The shard left this core with all its bytes in its segments.
    Released,
}

impl MarkKind {
    fn code(self) -> u8 {
        match self {
            MarkKind::State => 0,
            MarkKind::Truncated => 1,
            MarkKind::Start => 2,
            MarkKind::Deleted => 3,
            MarkKind::Released => 4,
        }
    }

    fn from_code(code: u8) -> Option<MarkKind> {
        Some(match code {
            0 => MarkKind::State,
            1 => MarkKind::Truncated,
            2 => MarkKind::Start,
            3 => MarkKind::Deleted,
            4 => MarkKind::Released,
            _ => return None,
        })
    }
}

/// One mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    pub kind: MarkKind,
    pub key: ShardKey,
    pub lineage: Lineage,
    /// End of the log when the lineage began.
    pub lineage_base: Offset,
    /// The first offset that can be read.
    pub start: Offset,
    /// One past the last durable offset.
    pub end: Offset,
    /// Offsets below it may have been used; 0 for logs that sync before they acknowledge.
    pub ceiling: Offset,
    /// One past the last durable batch, in the newest segment; segment 0 for a log without one.
    pub place: Place,
    /// Newest record time below `place` in its segment.
    pub newest_ms: u64,
    /// Checksum of the head of the batch that ends at `place`; 0 when its segment is empty.
    pub checksum: u32,
    pub policy: Fsync,
    /// Offsets from `end` to this one may have been seen and were lost: they are never used. At most `end` otherwise.
    pub next: Offset,
}

impl Mark {
    /// Appends its bytes to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let before = out.len();
        Writer::new(out)
            .u128(self.key.name)
            .u64(self.key.incarnation.0)
            .u64(self.lineage.0)
            .u64(self.lineage_base.0)
            .u64(self.start.0)
            .u64(self.end.0)
            .u64(self.ceiling.0)
            .u64(self.place.segment.0)
            .u64(self.place.byte)
            .u64(self.newest_ms)
            .u32(self.checksum)
            .u8(self.kind.code())
            .u8(self.policy.code())
            .zeros(2)
            .u64(self.next.0);
        debug_assert_eq!(out.len() - before, MARK_BYTES);
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Mark> {
        let mut fields = Fields::new(bytes);
        let key = ShardKey { name: fields.u128()?, incarnation: Incarnation(fields.u64()?) };
        let lineage = Lineage(fields.u64()?);
        let lineage_base = Offset(fields.u64()?);
        let start = Offset(fields.u64()?);
        let end = Offset(fields.u64()?);
        let ceiling = Offset(fields.u64()?);
        let place = Place { segment: SegmentSeq(fields.u64()?), byte: fields.u64()? };
        let newest_ms = fields.u64()?;
        let checksum = fields.u32()?;
        let kind = MarkKind::from_code(fields.u8()?)?;
        let policy = Fsync::from_code(fields.u8()?)?;
        fields.bytes(2)?;
        let next = Offset(fields.u64()?);
        Some(Mark {
            kind,
            key,
            lineage,
            lineage_base,
            start,
            end,
            ceiling,
            place,
            newest_ms,
            checksum,
            policy,
            next,
        })
    }
}
