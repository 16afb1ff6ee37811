//! Reading what a recovery relies on. Scope: functions of one recovery.
//! Invariants: one read that fails, or brings a wrong bit, changes nothing: what a checksum proves is looked at a second time
//! where it does not fit, and what none proves is read until two reads agree.
//! Not here: what is read (`slots`, `shard`, `replay`, `doubt`).
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use felix_runtime::file::{DiskError, FileId};

use crate::script::Desk;

/// Reads of the same bytes, one after the other, of which two must agree.
const READS_MAX: usize = 6;

/// As [`Desk::read_all`]; a read that fails is tried once more.
pub(super) async fn read(desk: &Desk, file: FileId, at: u64, bytes: usize) -> Result<Vec<u8>, DiskError> {
    match desk.read_all(file, at, bytes).await {
        Err(_) => desk.read_all(file, at, bytes).await,
        read => read,
    }
}

/// The same; bytes that are not `sound` are read once more, and given as they are then.
pub(super) async fn read_checked(
    desk: &Desk,
    file: FileId,
    (at, bytes): (u64, usize),
    sound: impl Fn(&[u8]) -> bool,
) -> Result<Vec<u8>, DiskError> {
    let first = read(desk, file, at, bytes).await?;
    if sound(&first) { Ok(first) } else { read(desk, file, at, bytes).await }
}

/// The same for bytes that are written again and prove nothing themselves: as two reads in a row have them.
pub(super) async fn read_agreed(
    desk: &Desk,
    file: FileId,
    at: u64,
    bytes: usize,
) -> Result<Vec<u8>, DiskError> {
    let mut before = read(desk, file, at, bytes).await?;
    for _ in 1..READS_MAX {
        let again = read(desk, file, at, bytes).await?;
        if again == before {
            return Ok(again);
        }
        before = again;
    }
    Err(DiskError::Io { errno: 0 })
}
