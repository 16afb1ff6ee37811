//! Bytes that can be read and need not be durable. Scope: functions of one recovery.
//! Invariants: what a failed write or sync of an earlier process left can be read until the power is lost, and no later sync
//! stores it; so a recovery that relies on such bytes writes them again, each where it is, before it syncs. Only what nothing
//! proves to have been durable is written again. These blocks hold no other acknowledged bytes: what is written straight to a
//! segment begins at a block, and pieces are still in a slot.
//! Not here: which bytes are in doubt (`shard`).
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use bytes::Bytes;
use felix_runtime::file::{DiskError, FileId};
use felix_wire::id::Offset;

use super::look::{read, read_agreed};
use crate::limits::BLOCK;
use crate::script::Desk;
use crate::segment::walk::{Step, Walk};

/// Bytes of one read and write.
const CHUNK_BYTES: u64 = 1 << 20;
/// A batch of a usual size is in the first window.
const WINDOW_BYTES: usize = 128 << 10;

/// The byte of the first batch from `walk` on that ends above `durable`. Where there is none, the place where the walk ends.
pub(super) async fn first_above(
    desk: &Desk,
    file: FileId,
    mut walk: Walk,
    durable: Offset,
) -> Result<u64, DiskError> {
    let mut window = Bytes::new();
    let mut window_at = 0;
    loop {
        match walk.step(&window, window_at) {
            Step::Batch { batch, byte } if batch.head().end() > durable => return Ok(byte),
            Step::Batch { .. } => {}
            Step::End { byte, .. } => return Ok(byte),
            Step::Need(need) => {
                let from = walk.byte - walk.byte % BLOCK;
                let want =
                    ((walk.byte - from) as usize + need.max(WINDOW_BYTES)).next_multiple_of(BLOCK as usize);
                let read = read(desk, file, from, want).await?;
                if from == window_at && read.len() <= window.len() {
                    return Ok(walk.byte);
                }
                window = Bytes::from(read);
                window_at = from;
            }
        }
    }
}

/// Writes the blocks with the bytes `from` to `to` again, as they are. Nothing is synced.
pub(super) async fn write_again(desk: &Desk, file: FileId, from: u64, to: u64) -> Result<(), DiskError> {
    let mut at = from - from % BLOCK;
    while at < to {
        let want = (to - at).min(CHUNK_BYTES).next_multiple_of(BLOCK);
        let bytes = read_agreed(desk, file, at, want as usize).await?;
        if bytes.is_empty() {
            return Ok(());
        }
        desk.write_bytes(file, at, &bytes).await?;
        at += want;
    }
    Ok(())
}
