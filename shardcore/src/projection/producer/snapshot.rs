//! A machine as bytes, a shortcut for replaying the log before an offset. Scope: functions.
//! Owns: the layout, version 1, little-endian. Head of 28 bytes: `FLXP`, version (4), offset (8), producers (4), batches
//! of all (4), 0 (4). Then each producer by rising id: id (8), sequence of its newest batch (8), batches (4), and each
//! of those by rising offset: base (8), digest (8), count (4). Last the CRC-32C of everything before it (4).
//! Invariants: no input panics; memory stays in proportion to the input; a machine has one encoding for an offset, and
//! only encodings are accepted.
//! Not here: where snapshots are kept and when one is too new for its log.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::collections::VecDeque;
use std::num::NonZeroU32;

use felix_logstore::checksum::extend;
use felix_wire::id::{Offset, ProducerId, Sequence};

use super::history::{History, Remembered};
use super::{BATCHES_PER_PRODUCER_MAX, Digest, PRODUCERS_MAX, ProducerCore};

const MAGIC: [u8; 4] = *b"FLXP";
/// Version that is written and read; another digest is another version too.
const VERSION: u32 = 1;
const HEAD_BYTES: usize = 28;
const PRODUCER_BYTES: usize = 20;
const BATCH_BYTES: usize = 20;
const CHECKSUM_BYTES: usize = 4;
/// Bytes of a snapshot that one producer takes at most.
pub const PRODUCER_BYTES_MAX: u64 = (PRODUCER_BYTES + BATCHES_PER_PRODUCER_MAX * BATCH_BYTES) as u64;

/// Why bytes are not a snapshot. The log still has everything: replay it from its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotError {
    #[error("not a snapshot of producers")]
    NotASnapshot,
    #[error("version {0} of the snapshot is not known")]
    Version(u32),
    #[error("checksum of the snapshot does not fit")]
    Checksum,
    #[error("malformed snapshot: {0}")]
    Malformed(&'static str),
}

impl ProducerCore {
    /// Appends the snapshot to `out`: what is remembered of the batches below `at`, the end of the log when everything was
    /// claimed. At most 5.4 MB.
    ///
    /// It may be used for a log that has reached `at` and was never cut below it since: claims that were in flight are in
    /// it. One whose cut said `Rebuild` must not be saved.
    ///
    /// # Panics
    /// When `at` is below the end of a claimed batch.
    pub fn encode(&self, at: Offset, out: &mut Vec<u8>) {
        assert!(at >= self.end(), "a snapshot holds all that was claimed");
        let batches: usize = self.producers.values().map(History::len).sum();
        let body = self.producers.len() * PRODUCER_BYTES + batches * BATCH_BYTES;
        out.reserve(HEAD_BYTES + body + CHECKSUM_BYTES);
        let begin = out.len();
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&at.0.to_le_bytes());
        // Both are far below the limits of a u32.
        out.extend_from_slice(&(self.producers.len() as u32).to_le_bytes());
        out.extend_from_slice(&(batches as u32).to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        for (id, history) in &self.producers {
            out.extend_from_slice(&id.0.to_le_bytes());
            out.extend_from_slice(&history.last().0.to_le_bytes());
            out.extend_from_slice(&(history.len() as u32).to_le_bytes());
            for batch in history.iter() {
                out.extend_from_slice(&batch.base.0.to_le_bytes());
                out.extend_from_slice(&batch.digest.0.to_le_bytes());
                out.extend_from_slice(&batch.count.get().to_le_bytes());
            }
        }
        let checksum = extend(0, out.get(begin..).unwrap_or_default());
        out.extend_from_slice(&checksum.to_le_bytes());
    }

    /// Takes a machine out of the snapshot that `bytes` are, with the offset to go on replaying from. Equal to the one that
    /// was encoded; a cut below that offset says `Rebuild`. Allocates less than 8 times the input and 64 KiB.
    ///
    /// # Errors
    /// The first thing that is wrong. Replay the log from its start then.
    pub fn decode(bytes: &[u8]) -> Result<(ProducerCore, Offset), SnapshotError> {
        let mut fields = checked(bytes)?;
        let at = Offset(fields.u64()?);
        let (producers, batches) = (fields.u32()? as usize, fields.u32()? as usize);
        if fields.u32()? != 0 || producers > PRODUCERS_MAX {
            return Err(SnapshotError::Malformed("head"));
        }
        let body = producers * PRODUCER_BYTES + batches.saturating_mul(BATCH_BYTES);
        if fields.left.len() != body {
            return Err(SnapshotError::Malformed("length"));
        }
        let mut core = ProducerCore { displaced_by: at, ..ProducerCore::default() };
        for _ in 0..producers {
            let id = ProducerId(fields.u64()?);
            if core.producers.last_key_value().is_some_and(|(before, _)| *before >= id) {
                return Err(SnapshotError::Malformed("order of the producers"));
            }
            let history = history(&mut fields, at)?;
            if core.recency.insert(history.newest().base, id).is_some() {
                return Err(SnapshotError::Malformed("two batches at one offset"));
            }
            core.producers.insert(id, history);
        }
        if !fields.left.is_empty() {
            return Err(SnapshotError::Malformed("count of the batches"));
        }
        core.check_newest()?;
        Ok((core, at))
    }

    /// That no newest batch reaches into that of another producer.
    fn check_newest(&self) -> Result<(), SnapshotError> {
        let mut end = Offset(0);
        for newest in self.recency.values().filter_map(|id| self.producers.get(id)).map(History::newest) {
            if newest.base < end {
                return Err(SnapshotError::Malformed("newest batches overlap"));
            }
            end = newest.end();
        }
        Ok(())
    }
}

/// What follows the version, when the checksum fits.
fn checked(bytes: &[u8]) -> Result<Fields<'_>, SnapshotError> {
    let body = bytes.strip_prefix(&MAGIC).ok_or(SnapshotError::NotASnapshot)?;
    match (Fields { left: body }).u32()? {
        VERSION => {}
        other => return Err(SnapshotError::Version(other)),
    }
    let (covered, checksum) =
        bytes.split_last_chunk::<CHECKSUM_BYTES>().ok_or(SnapshotError::Malformed("too short"))?;
    if extend(0, covered) != u32::from_le_bytes(*checksum) {
        return Err(SnapshotError::Checksum);
    }
    let left = covered.get(MAGIC.len() + size_of::<u32>()..).ok_or(SnapshotError::Malformed("too short"))?;
    Ok(Fields { left })
}

fn history(fields: &mut Fields<'_>, at: Offset) -> Result<History, SnapshotError> {
    let last = Sequence(fields.u64()?);
    let count = fields.u32()? as usize;
    if count > BATCHES_PER_PRODUCER_MAX {
        return Err(SnapshotError::Malformed("batches of a producer"));
    }
    let mut batches = VecDeque::with_capacity(count);
    let mut end = Offset(0);
    for _ in 0..count {
        let (base, digest) = (Offset(fields.u64()?), Digest(fields.u64()?));
        let count =
            NonZeroU32::new(fields.u32()?).ok_or(SnapshotError::Malformed("a batch without records"))?;
        let batch = Remembered { base, digest, count };
        let fits = base.0.checked_add(u64::from(count.get())).is_some_and(|end| end <= at.0);
        if base < end || !fits {
            return Err(SnapshotError::Malformed("offsets of a batch"));
        }
        end = batch.end();
        batches.push_back(batch);
    }
    History::from_batches(last, batches).ok_or(SnapshotError::Malformed("sequences of a producer"))
}

/// Reads numbers one after the other.
struct Fields<'a> {
    left: &'a [u8],
}

impl Fields<'_> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], SnapshotError> {
        let (head, left) = self.left.split_first_chunk().ok_or(SnapshotError::Malformed("too short"))?;
        self.left = left;
        Ok(*head)
    }

    fn u32(&mut self) -> Result<u32, SnapshotError> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, SnapshotError> {
        self.array().map(u64::from_le_bytes)
    }
}
