//! What was read for one poll and holds records of the polls after it. Scope: one per shard's groups.
//! Owns: the batches that were read last, which fetch reads the next, who waits for that.
//! Invariants: at most [`KEPT_BYTES_MAX`] are kept, and not while nobody polls; one read ahead is under way at a time, and
//! whoever waits for it goes on when it has ended, however it ended.
//! Not here: which records a poll gets (`projection::group`), what is taken of a page (`fetch`).

use felix_logstore::record::Batch;
use felix_wire::id::Offset;

/// Bytes read at once, unless the records that are wanted take more.
const READ_BYTES: usize = 512 << 10;
/// Bytes read at once at most.
const READ_BYTES_MAX: usize = 4 << 20;
/// Batches with more bytes are not kept.
const KEPT_BYTES_MAX: usize = 1 << 20;
/// A poll for so many neighbours is one that others follow.
const NEIGHBOURS: u64 = 8;
/// A record that is not further from where the read under way began is waited for.
const REACH: u64 = 8_192;

/// How a fetch is to go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Plan {
    /// When the read under way has ended.
    Wait,
    /// With a read to the end of what is there, whose page is kept.
    Ahead { bytes: usize },
    /// With a read for itself.
    Apart { bytes: usize },
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    /// Without a gap.
    batches: Vec<Batch>,
    /// The fetch whose page is to be kept, and where it begins.
    reading: Option<(usize, Offset)>,
    waiting: Vec<usize>,
    /// Bytes of a record, about, in the page before.
    record_bytes: usize,
    used: bool,
}

impl Ahead {
    /// The batches from the one on that holds `from`.
    pub fn batches(&mut self, from: Offset) -> Option<&[Batch]> {
        let place = self.batches.partition_point(|batch| batch.head().end() <= from);
        let batches = self.batches.get(place..)?;
        batches.first().filter(|batch| batch.head().base <= from)?;
        self.used = true;
        Some(batches)
    }

    /// How the fetch in `slot`, which wants the records `from..until` next, is to go on. `alone`: by a read that ends there.
    pub fn plan(&mut self, (from, until): (Offset, Offset), alone: bool, slot: usize) -> Plan {
        let records = until.0.saturating_sub(from.0);
        let wanted = self.record_bytes.saturating_mul(usize::try_from(records).unwrap_or(usize::MAX));
        let bytes = wanted.clamp(READ_BYTES, READ_BYTES_MAX);
        if alone {
            return Plan::Apart { bytes };
        }
        if let Some((_, begun)) = self.reading {
            if (begun.0..begun.0.saturating_add(REACH)).contains(&from.0) {
                self.waiting.push(slot);
                return Plan::Wait;
            }
            return Plan::Apart { bytes };
        }
        let goes_on = self.batches.last().is_none_or(|batch| batch.head().end() == from);
        if goes_on || records >= NEIGHBOURS {
            self.reading = Some((slot, from));
            return Plan::Ahead { bytes };
        }
        Plan::Apart { bytes }
    }

    /// The read of a fetch has ended, with these batches or in vain. Gives who waited for it.
    pub fn read(&mut self, slot: usize, batches: &[Batch]) -> Vec<usize> {
        if self.reading.is_none_or(|(reads, _)| reads != slot) {
            return Vec::new();
        }
        self.reading = None;
        self.batches.clear();
        let bytes: usize = batches.iter().map(|batch| batch.bytes().len()).sum();
        let records: u64 = batches.iter().map(|batch| batch.head().end().0 - batch.head().base.0).sum();
        if records > 0 {
            self.record_bytes = bytes / usize::try_from(records).unwrap_or(usize::MAX);
        }
        if bytes <= KEPT_BYTES_MAX {
            self.batches.extend_from_slice(batches);
            self.used = true;
        }
        std::mem::take(&mut self.waiting)
    }

    /// To be called from time to time: what was not used since the last call is not kept.
    pub fn rest(&mut self) {
        if !std::mem::take(&mut self.used) {
            self.batches = Vec::new();
        }
    }
}
