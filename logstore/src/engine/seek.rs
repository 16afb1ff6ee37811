//! The batch before an offset in a stretch of a segment that nothing is known of. Scope: functions of one read.
//! Invariants: what is found is a hint, checked by the walk from it like one of the index; every probe halves the stretch, so
//! an offset deep in a large segment costs a few small reads instead of a walk over all before it.
//! Not here: the walk (`scripts`), keeping what was found (`reads`).

use bytes::Bytes;
use felix_runtime::file::{DiskError, FileId};
use felix_wire::id::Offset;

use crate::limits::{BATCH_ALIGN, BLOCK};
use crate::log::FilePlan;
use crate::record::{BATCH_HEAD_BYTES, BATCH_MAGIC, BatchFault, decode};
use crate::script::Desk;

/// A stretch of at most so many bytes is walked.
const WALK_BYTES: u64 = 512 << 10;
/// Bytes of a probe; where no batch begins in them it goes on with
const PROBE_BYTES: u64 = 32 << 10;
/// as many at once.
const PROBE_ON_BYTES: u64 = 256 << 10;

/// Batches between the plan's hint and the offset, each nearer to it: base and byte. None when the hint is near enough.
pub(super) async fn seek(
    desk: &Desk,
    plan: &FilePlan,
    file: FileId,
) -> Result<Vec<(Offset, u64)>, DiskError> {
    let (mut low, mut high) = (plan.hint, plan.behind);
    let mut found = Vec::new();
    if expected_bytes(plan) <= WALK_BYTES {
        return Ok(found);
    }
    while high.saturating_sub(low.1) > WALK_BYTES {
        let middle = low.1 + (high - low.1) / 2;
        let middle = middle - middle % BLOCK;
        match first_batch(desk, plan, file, (middle, high)).await? {
            Some((base, byte)) if base > low.0 && base <= plan.wanted => {
                low = (base, byte);
                found.push(low);
            }
            // What is below the lower end is not part of the order: the walk decides.
            Some((base, _)) if base <= low.0 => break,
            _ => high = middle,
        }
    }
    Ok(found)
}

/// How far behind the hint the offset is, if all offsets up to the end of the stretch took the same.
fn expected_bytes(plan: &FilePlan) -> u64 {
    let offsets = u128::from(plan.wanted.0.saturating_sub(plan.hint.0.0));
    let all = u128::from(plan.end.0.saturating_sub(plan.hint.0.0)).max(1);
    let bytes = u128::from(plan.limit_byte.saturating_sub(plan.hint.1)) * offsets / all;
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

/// The first batch that begins in `from..to` (`from` is the beginning of a block), as far as its bytes are one.
async fn first_batch(
    desk: &Desk,
    plan: &FilePlan,
    file: FileId,
    (from, to): (u64, u64),
) -> Result<Option<(Offset, u64)>, DiskError> {
    let mut at = from;
    let mut probe = PROBE_BYTES;
    while at < to {
        // A head may begin right before the end of a window: windows overlap by a block.
        let want = (probe + BLOCK).min((plan.limit_byte - at).next_multiple_of(BLOCK)) as usize;
        let window = Bytes::from(desk.read_all(file, at, want).await?);
        let within = (to - at).min(probe).min(window.len() as u64) as usize;
        for begin in (0..within).step_by(BATCH_ALIGN) {
            if window.get(begin..begin + BATCH_MAGIC.len()) != Some(&BATCH_MAGIC[..]) {
                continue;
            }
            let byte = at + begin as u64;
            if let Some(base) = batch_at(desk, plan, file, (&window.slice(begin..), byte)).await? {
                return Ok(Some((base, byte)));
            }
        }
        if window.len() < want {
            return Ok(None);
        }
        at += probe;
        probe = PROBE_ON_BYTES;
    }
    Ok(None)
}

/// Base of the batch at `byte`, if there is one. `bytes` are those from there on that were read already.
async fn batch_at(
    desk: &Desk,
    plan: &FilePlan,
    file: FileId,
    (bytes, byte): (&[u8], u64),
) -> Result<Option<Offset>, DiskError> {
    match decode(bytes, plan.epoch) {
        Ok(found) => Ok(Some(found.head.base)),
        Err(BatchFault::Short { need })
            if need > BATCH_HEAD_BYTES && byte + need as u64 <= plan.limit_byte =>
        {
            let from = byte - byte % BLOCK;
            let skip = (byte - from) as usize;
            let whole = desk.read_all(file, from, (skip + need).next_multiple_of(BLOCK as usize)).await?;
            let found = decode(whole.get(skip..).unwrap_or_default(), plan.epoch);
            Ok(found.ok().map(|found| found.head.base))
        }
        Err(_) => Ok(None),
    }
}
