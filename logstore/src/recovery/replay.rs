//! Writing pieces into their segments. Scope: functions of one recovery.
//! Invariants: a piece goes exactly where it says, and only when it is whole; bytes beside it in its first and last block
//! stay; doing it again changes nothing.
//! Not here: which pieces (`shard`).
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use felix_runtime::file::{DiskError, FileId};

use super::look::{read_agreed, read_checked};
use super::slots::is_whole;
use crate::commit::PieceHead;
use crate::limits::BLOCK;
use crate::script::Desk;

/// Bytes of one write.
const EXTENT_BYTES_MAX: u64 = 1 << 20;

/// A piece to be written: where it is in a slot and where it belongs in the segment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Move {
    pub slot: FileId,
    pub slot_byte: u64,
    pub piece: PieceHead,
}

impl Move {
    fn byte(&self) -> u64 {
        self.piece.place.byte
    }
}

/// Writes `moves`, ordered by their byte in the segment `to`. Nothing is synced.
pub(super) async fn write_pieces(desk: &Desk, to: FileId, moves: &[Move]) -> Result<(), DiskError> {
    let mut at = 0;
    while let Some(first) = moves.get(at) {
        let mut extent = read_piece(desk, first).await?;
        at += 1;
        while let Some(next) = moves.get(at) {
            let end = first.byte() + extent.len() as u64;
            if next.byte() != end || extent.len() as u64 + u64::from(next.piece.len) > EXTENT_BYTES_MAX {
                break;
            }
            extent.extend_from_slice(&read_piece(desk, next).await?);
            at += 1;
        }
        write_extent(desk, to, first.byte(), &extent).await?;
    }
    Ok(())
}

/// The bytes of a piece, which was whole when its slot was read.
async fn read_piece(desk: &Desk, Move { slot, slot_byte, piece }: &Move) -> Result<Vec<u8>, DiskError> {
    let from = slot_byte - slot_byte % BLOCK;
    let (skip, len) = ((slot_byte - from) as usize, piece.len as usize);
    let of =
        |bytes: &[u8]| bytes.get(skip..skip + len).filter(|bytes| is_whole(piece, bytes)).map(<[u8]>::to_vec);
    let whole = (skip + len).next_multiple_of(BLOCK as usize);
    let bytes = read_checked(desk, *slot, (from, whole), |bytes| of(bytes).is_some()).await?;
    of(&bytes).ok_or(DiskError::Io { errno: 0 })
}

async fn write_extent(desk: &Desk, to: FileId, byte: u64, bytes: &[u8]) -> Result<(), DiskError> {
    let from = byte - byte % BLOCK;
    let end = byte + bytes.len() as u64;
    let before = (byte - from) as usize;
    let mut whole = Vec::with_capacity(before + bytes.len() + BLOCK as usize);
    if before > 0 {
        whole = read_agreed(desk, to, from, BLOCK as usize).await?;
        whole.resize(before, 0);
    }
    whole.extend_from_slice(bytes);
    let over = (end % BLOCK) as usize;
    if over > 0 {
        let last = read_agreed(desk, to, end - over as u64, BLOCK as usize).await?;
        whole.extend_from_slice(last.get(over..).unwrap_or_default());
    }
    let mut at = from;
    for chunk in whole.chunks(EXTENT_BYTES_MAX as usize) {
        desk.write_bytes(to, at, chunk).await?;
        at += chunk.len() as u64;
    }
    Ok(())
}
