//! Reading slots. Scope: functions of one recovery.
//! Invariants: every round that can be read is found, also behind one that cannot, which was looked at twice; pieces are kept as places in the slot, not
//! as bytes, so memory stays bounded by one slot.
//! Not here: what rounds prove (`evidence`).
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::time::Duration;

use felix_runtime::file::{DiskError, DiskPath, FileId, LockKind, OpenFlags, OpenMode};
use felix_wire::id::Offset;

use super::{RecoveryError, look};
use crate::commit::round::{self, FoundRound};
use crate::commit::slot::ROUNDS_AT;
use crate::commit::{PieceHead, Round, SlotFault, SlotHead};
use crate::limits::BLOCK;
use crate::record;
use crate::script::Desk;

/// Bytes that are read a second time where a round should be: more than any has.
const LOOK_BYTES: usize = 16 << 20;

/// A slot that was read.
#[derive(Debug)]
pub(crate) struct SlotRead {
    pub path: DiskPath,
    /// None when it was never used or its head is gone.
    pub head: Option<SlotHead>,
    pub damaged: bool,
    pub rounds: Vec<RoundRead>,
}

/// A round that was read.
#[derive(Debug, Clone)]
pub(crate) struct RoundRead {
    pub round: Round,
    /// Pieces that are whole, with the byte of the slot where they begin.
    pub pieces: Vec<(PieceHead, u64)>,
    /// A piece was not whole.
    pub torn: bool,
}

/// Opens, locks and reads one slot, which stays open.
pub(super) async fn read_slot(
    desk: &Desk,
    path: DiskPath,
    wait: Duration,
) -> Result<(FileId, SlotRead), RecoveryError> {
    let disk = |error: DiskError| match error {
        DiskError::Locked => RecoveryError::Locked { path: path.clone() },
        error => RecoveryError::Disk { path: path.clone(), error },
    };
    let (file, len) = desk.open(path.clone(), OpenFlags::plain(OpenMode::Write)).await.map_err(disk)?;
    desk.lock(file, LockKind::Exclusive, wait).await.map_err(disk)?;
    let whole = usize::try_from(len - len % BLOCK).unwrap_or(usize::MAX);
    let mut bytes = look::read(desk, file, 0, whole).await.map_err(disk)?;
    if SlotHead::decode(&bytes).is_err() {
        read_again(desk, file, &mut bytes, 0, BLOCK as usize).await.map_err(disk)?;
    }
    let mut read = SlotRead { path: path.clone(), head: None, damaged: false, rounds: Vec::new() };
    match SlotHead::decode(&bytes) {
        Ok(head) => {
            read.head = Some(head);
            read.rounds = rounds(desk, file, bytes, &head).await.map_err(disk)?;
        }
        Err(SlotFault::NotASlot) => {}
        Err(SlotFault::Version(version)) => return Err(RecoveryError::Version { path, version }),
        Err(SlotFault::Damaged) => read.damaged = true,
    }
    Ok((file, read))
}

/// All rounds of a slot's present use. A round that is not whole, and what stands where the next one would begin, is read a
/// second time before it counts as that.
async fn rounds(
    desk: &Desk,
    file: FileId,
    mut bytes: Vec<u8>,
    head: &SlotHead,
) -> Result<Vec<RoundRead>, DiskError> {
    let mut found = Vec::new();
    let mut at = ROUNDS_AT as usize;
    let mut looks_again = false;
    while let Some(left) = bytes.get(at..).filter(|left| !left.is_empty()) {
        let round =
            round::decode(left, head.epoch).map(|round| (round.total_len, pieces_of(round, left, at as u64)));
        if !looks_again && !matches!(&round, Ok((_, round)) if !round.torn) {
            looks_again = true;
            read_again(desk, file, &mut bytes, at, LOOK_BYTES).await?;
            continue;
        }
        // A round is damaged as a whole when its lists are: what comes behind it is still looked for.
        let step = round.map_or(BLOCK as usize, |(total, round)| {
            looks_again = false;
            found.push(round);
            total
        });
        at += step.max(BLOCK as usize);
    }
    Ok(found)
}

/// Brings `count` of `bytes` from `at` on once more, as many as there are. `at` is the beginning of a block.
async fn read_again(
    desk: &Desk,
    file: FileId,
    bytes: &mut [u8],
    at: usize,
    count: usize,
) -> Result<(), DiskError> {
    let behind = bytes.get_mut(at..).unwrap_or_default();
    let count = behind.len().min(count);
    let read = look::read(desk, file, at as u64, count).await?;
    if let Some((into, from)) = behind.get_mut(..read.len()).zip(read.get(..)) {
        into.copy_from_slice(from);
    }
    Ok(())
}

fn pieces_of(found: FoundRound, bytes: &[u8], round_at: u64) -> RoundRead {
    let mut read = RoundRead { round: found.round, pieces: Vec::new(), torn: false };
    let mut at = found.meta_len;
    for piece in &read.round.pieces {
        let len = piece.len as usize;
        let whole = bytes.get(at..at + len).is_some_and(|bytes| is_whole(piece, bytes));
        if whole {
            read.pieces.push((*piece, round_at + at as u64));
        }
        read.torn |= !whole;
        at += len;
    }
    read
}

/// Whether `bytes` are exactly the batches a piece says it has.
pub(crate) fn is_whole(piece: &PieceHead, bytes: &[u8]) -> bool {
    let mut left = bytes;
    let mut due: Offset = piece.base;
    while !left.is_empty() {
        let Ok(found) = record::decode(left, piece.epoch) else { return false };
        if found.head.base != due || found.head.lineage != piece.lineage {
            return false;
        }
        due = found.head.end();
        left = left.get(found.len..).unwrap_or_default();
    }
    due == piece.end
}
