//! One round of the commit file. Scope: values.
//! Owns: head, the list of the round before, marks, piece heads; the bytes of the pieces follow them.
//! Invariants: the checksum covers everything before the bytes of the pieces; those are batches, which carry their own
//! checksums seeded by the segment they belong to.
//! Not here: which pieces go into a round.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use felix_wire::id::{Incarnation, Offset};

use super::mark::{MARK_BYTES, Mark};
use crate::checksum::{Epoch, extend};
use crate::field::{Fields, Writer, patch_u32};
use crate::id::{Lineage, Place, RoundNumber, SegmentSeq, ShardKey};
use crate::limits::BLOCK;

/// First bytes of a round.
pub const ROUND_MAGIC: [u8; 4] = *b"FLXR";
/// Bytes of a round before its lists.
pub const ROUND_HEAD_BYTES: usize = 64;
/// Bytes of an entry of the list of the round before.
pub const PRIOR_BYTES: usize = 40;
/// Bytes of a piece's head.
pub const PIECE_HEAD_BYTES: usize = 80;

const CHECKSUM_AT: usize = 16;
const CLEAN: u8 = 1;

/// Up to where a shard of the round before was durable when this one was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prior {
    pub key: ShardKey,
    pub lineage: Lineage,
    pub end: Offset,
}

/// Batches of one shard with the place they belong to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PieceHead {
    pub key: ShardKey,
    pub lineage: Lineage,
    pub place: Place,
    /// The use of the segment that `place` is in.
    pub epoch: Epoch,
    pub base: Offset,
    pub end: Offset,
    pub len: u32,
}

/// A round without the bytes of its pieces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Round {
    pub number: RoundNumber,
    /// Rounds below it are not needed any more: what they hold is durable in segments.
    pub live_from: RoundNumber,
    /// The last one of a process that stopped in order.
    pub clean: bool,
    pub prior: Vec<Prior>,
    pub marks: Vec<Mark>,
    pub pieces: Vec<PieceHead>,
}

/// Why bytes are not a round of this use of the slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RoundFault {
    #[error("no round begins here")]
    NotARound,
    /// It may be one, but it goes on behind the bytes given.
    #[error("{need} bytes needed")]
    Short { need: usize },
    #[error("checksum of the round does not fit")]
    Checksum,
    #[error("malformed round")]
    Malformed,
}

/// A round found in bytes, with where the bytes of its pieces are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundRound {
    pub round: Round,
    /// Bytes before those of the first piece.
    pub meta_len: usize,
    /// Bytes it takes in all, whole blocks.
    pub total_len: usize,
}

impl Round {
    /// Bytes before those of the first piece.
    #[must_use]
    pub fn meta_len(&self) -> usize {
        meta_len(self.prior.len(), self.marks.len(), self.pieces.len())
    }

    /// Bytes it takes in all, whole blocks.
    #[must_use]
    pub fn total_len(&self) -> usize {
        let pieces: usize = self.pieces.iter().map(|piece| piece.len as usize).sum();
        (self.meta_len() + pieces).next_multiple_of(BLOCK as usize)
    }

    /// Everything before the bytes of the pieces, for a slot in its use `epoch`.
    #[must_use]
    pub fn encode_meta(&self, epoch: Epoch) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.meta_len());
        Writer::new(&mut out)
            .bytes(&ROUND_MAGIC)
            .u8(1)
            .u8(if self.clean { CLEAN } else { 0 })
            .zeros(2)
            .u32(self.total_len() as u32)
            .u32(self.meta_len() as u32)
            .u32(0)
            .u32(0)
            .u64(self.number.0)
            .u64(self.live_from.0)
            .u64(epoch.0)
            .u32(self.prior.len() as u32)
            .u32(self.marks.len() as u32)
            .u32(self.pieces.len() as u32)
            .u32(0);
        for prior in &self.prior {
            Writer::new(&mut out)
                .u128(prior.key.name)
                .u64(prior.key.incarnation.0)
                .u64(prior.lineage.0)
                .u64(prior.end.0);
        }
        for mark in &self.marks {
            mark.encode(&mut out);
        }
        for piece in &self.pieces {
            encode_piece(piece, &mut out);
        }
        let crc = extend(epoch.seed(), &out);
        patch_u32(&mut out, CHECKSUM_AT, crc);
        out
    }
}

fn encode_piece(piece: &PieceHead, out: &mut Vec<u8>) {
    Writer::new(out)
        .u128(piece.key.name)
        .u64(piece.key.incarnation.0)
        .u64(piece.lineage.0)
        .u64(piece.place.segment.0)
        .u64(piece.place.byte)
        .u64(piece.epoch.0)
        .u64(piece.base.0)
        .u64(piece.end.0)
        .u32(piece.len)
        .u32(0);
}

fn meta_len(prior: usize, marks: usize, pieces: usize) -> usize {
    let lists = [(prior, PRIOR_BYTES), (marks, MARK_BYTES), (pieces, PIECE_HEAD_BYTES)];
    lists
        .iter()
        .fold(ROUND_HEAD_BYTES, |sum, (count, bytes)| sum.saturating_add(count.saturating_mul(*bytes)))
}

/// Reads the round at the start of `bytes`, which may go on behind it. The bytes of its pieces are not looked at, but they
/// are there.
///
/// # Errors
/// `NotARound` for other bytes and for rounds of an earlier use of the slot; `Short` when more bytes could make it one.
pub fn decode(bytes: &[u8], epoch: Epoch) -> Result<FoundRound, RoundFault> {
    let found = decode_lists(bytes, epoch)?;
    if bytes.len() < found.total_len {
        return Err(RoundFault::Short { need: found.total_len });
    }
    Ok(found)
}

/// The same for a reader that brings the pieces later: `bytes` need not reach further than the lists.
///
/// # Errors
/// As [`decode`]; `Short` names what the lists need.
pub fn decode_lists(bytes: &[u8], epoch: Epoch) -> Result<FoundRound, RoundFault> {
    let mut fields =
        Fields::new(bytes.get(..ROUND_HEAD_BYTES).ok_or(RoundFault::Short { need: ROUND_HEAD_BYTES })?);
    let head = raw_head(&mut fields).ok_or(RoundFault::NotARound)?;
    if head.epoch != epoch {
        return Err(RoundFault::NotARound);
    }
    if meta_len(head.prior, head.marks, head.pieces) != head.meta || head.meta > head.total {
        return Err(RoundFault::Malformed);
    }
    let meta = bytes.get(..head.meta).ok_or(RoundFault::Short { need: head.meta })?;
    let mut own = meta.to_vec();
    patch_u32(&mut own, CHECKSUM_AT, 0);
    if extend(epoch.seed(), &own) != head.checksum {
        return Err(RoundFault::Checksum);
    }
    let round = lists(meta, &head).ok_or(RoundFault::Malformed)?;
    if round.total_len() != head.total {
        return Err(RoundFault::Malformed);
    }
    Ok(FoundRound { round, meta_len: head.meta, total_len: head.total })
}

struct RawHead {
    clean: bool,
    total: usize,
    meta: usize,
    checksum: u32,
    number: u64,
    live_from: u64,
    epoch: Epoch,
    prior: usize,
    marks: usize,
    pieces: usize,
}

fn raw_head(fields: &mut Fields<'_>) -> Option<RawHead> {
    if fields.bytes(4)? != ROUND_MAGIC || fields.u8()? != 1 {
        return None;
    }
    let clean = fields.u8()? == CLEAN;
    fields.bytes(2)?;
    let total = fields.u32()? as usize;
    let meta = fields.u32()? as usize;
    let checksum = fields.u32()?;
    fields.u32()?;
    Some(RawHead {
        clean,
        total,
        meta,
        checksum,
        number: fields.u64()?,
        live_from: fields.u64()?,
        epoch: Epoch(fields.u64()?),
        prior: fields.u32()? as usize,
        marks: fields.u32()? as usize,
        pieces: fields.u32()? as usize,
    })
}

fn lists(meta: &[u8], head: &RawHead) -> Option<Round> {
    let mut fields = Fields::new(meta);
    fields.bytes(ROUND_HEAD_BYTES)?;
    let mut prior = Vec::with_capacity(head.prior);
    for _ in 0..head.prior {
        let key = ShardKey { name: fields.u128()?, incarnation: Incarnation(fields.u64()?) };
        prior.push(Prior { key, lineage: Lineage(fields.u64()?), end: Offset(fields.u64()?) });
    }
    let mut marks = Vec::with_capacity(head.marks);
    for _ in 0..head.marks {
        marks.push(Mark::decode(fields.bytes(MARK_BYTES)?)?);
    }
    let mut pieces = Vec::with_capacity(head.pieces);
    for _ in 0..head.pieces {
        let key = ShardKey { name: fields.u128()?, incarnation: Incarnation(fields.u64()?) };
        let lineage = Lineage(fields.u64()?);
        let place = Place { segment: SegmentSeq(fields.u64()?), byte: fields.u64()? };
        let epoch = Epoch(fields.u64()?);
        let (base, end) = (Offset(fields.u64()?), Offset(fields.u64()?));
        let len = fields.u32()?;
        fields.u32()?;
        pieces.push(PieceHead { key, lineage, place, epoch, base, end, len });
    }
    Some(Round {
        number: RoundNumber(head.number),
        live_from: RoundNumber(head.live_from),
        clean: head.clean,
        prior,
        marks,
        pieces,
    })
}
