//! What was read for one poll and holds records of the polls after it, and what is read before they come. Scope: one per
//! shard's groups.
//! Owns: the batches that were read last, which read brings the next, who waits for that.
//! Invariants: at most [`KEPT_BYTES_MAX`] are kept, and not while nobody polls; one such read is under way at a time, and
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
    bytes: usize,
    /// Where half of the newest page is used up.
    half: Offset,
    /// Somebody has come that far.
    wants_next: bool,
    /// The read whose page is to be kept, of a fetch or of nobody, and where it begins.
    reading: Option<(Option<usize>, Offset)>,
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
        self.wants_next |= from >= self.half;
        Some(batches)
    }

    /// The read that is to be made for the polls that come, of the records below `end`: where it begins, and its bytes.
    pub fn next(&mut self, end: Offset) -> Option<(Offset, usize)> {
        let from = self.batches.last()?.head().end();
        if !self.wants_next || self.reading.is_some() || from >= end {
            return None;
        }
        self.reading = Some((None, from));
        Some((from, READ_BYTES))
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
            self.reading = Some((Some(slot), from));
            return Plan::Ahead { bytes };
        }
        Plan::Apart { bytes }
    }

    /// A read has ended, of a fetch or of nobody, with these batches or in vain. Gives who waited for it.
    pub fn read(&mut self, of: Option<usize>, batches: &[Batch]) -> Vec<usize> {
        if self.reading.is_none_or(|(reads, _)| reads != of) {
            return Vec::new();
        }
        self.reading = None;
        let bytes: usize = batches.iter().map(|batch| batch.bytes().len()).sum();
        let records: u64 = batches.iter().map(|batch| batch.head().end().0 - batch.head().base.0).sum();
        if records > 0 {
            self.record_bytes = bytes / usize::try_from(records).unwrap_or(usize::MAX);
        }
        self.keep(batches, bytes);
        std::mem::take(&mut self.waiting)
    }

    fn keep(&mut self, batches: &[Batch], bytes: usize) {
        self.wants_next = false;
        if batches.is_empty() {
            return;
        }
        let ends = |batch: &Batch| batch.head().end();
        let goes_on = self.batches.last().map(ends) == batches.first().map(|batch| batch.head().base);
        if !goes_on {
            self.forget();
        }
        if bytes > KEPT_BYTES_MAX {
            return self.forget();
        }
        let mut gone = 0;
        while self.bytes + bytes > KEPT_BYTES_MAX
            && let Some(batch) = self.batches.get(gone)
        {
            self.bytes -= batch.bytes().len();
            gone += 1;
        }
        self.batches.drain(..gone);
        self.batches.extend_from_slice(batches);
        self.bytes += bytes;
        let mut before_half = 0;
        let half = batches.iter().find(|batch| {
            before_half += batch.bytes().len();
            2 * before_half >= bytes
        });
        self.half = half.map_or(Offset(0), |batch| batch.head().base);
        self.used = true;
    }

    fn forget(&mut self) {
        (self.batches, self.bytes) = (Vec::new(), 0);
    }

    /// To be called from time to time: what was not used since the last call is not kept.
    pub fn rest(&mut self) {
        if !std::mem::take(&mut self.used) {
            self.forget();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::projection::test_log::TestLog;

    /// Batches of four records of 25,000 bytes.
    fn log(batches: usize) -> TestLog {
        let mut log = TestLog::default();
        for _ in 0..batches {
            log.append(&vec![vec![1; 25_000]; 4], 0);
        }
        log
    }

    fn begun(log: &TestLog) -> Ahead {
        let mut ahead = Ahead::default();
        let plan = ahead.plan((Offset(0), Offset(20)), false, 7);
        assert_eq!(plan, Plan::Ahead { bytes: READ_BYTES });
        assert!(ahead.read(Some(7), &log.batches[..5]).is_empty());
        ahead
    }

    #[test]
    fn the_next_page_is_read_when_half_of_the_last_is_used_up_and_who_needs_it_waits() {
        let log = log(30);
        let mut ahead = begun(&log);
        assert_eq!(ahead.batches(Offset(6)).map(<[Batch]>::len), Some(4));
        assert_eq!(ahead.next(log.end), None, "the first half");
        assert!(ahead.batches(Offset(8)).is_some());
        assert_eq!(ahead.next(Offset(20)), None, "there is no more");
        assert_eq!(ahead.next(log.end), Some((Offset(20), READ_BYTES)));
        assert_eq!(ahead.next(log.end), None, "it is under way");
        assert!(ahead.batches(Offset(20)).is_none());
        assert_eq!(ahead.plan((Offset(20), Offset(24)), false, 8), Plan::Wait);
        assert!(ahead.read(Some(9), &[]).is_empty(), "another's");
        assert_eq!(ahead.read(None, &log.batches[5..10]), [8]);
        assert_eq!(ahead.batches(Offset(3)).map(<[Batch]>::len), Some(10), "both pages are there");
        assert_eq!(ahead.next(log.end), None, "the first half");
        assert!(ahead.batches(Offset(39)).is_some());
        assert_eq!(ahead.next(log.end), Some((Offset(40), READ_BYTES)));
        ahead.read(None, &log.batches[10..15]);
        assert!(ahead.bytes <= KEPT_BYTES_MAX && ahead.batches(Offset(19)).is_none(), "the oldest went");
        assert_eq!(ahead.batches(Offset(20)).map(<[Batch]>::len), Some(10));
        assert_eq!(ahead.bytes, ahead.batches.iter().map(|batch| batch.bytes().len()).sum::<usize>());
    }

    #[test]
    fn who_waited_for_a_read_in_vain_goes_on_and_a_gap_begins_anew() {
        let log = log(30);
        let mut ahead = begun(&log);
        assert!(ahead.batches(Offset(19)).is_some());
        assert!(ahead.next(log.end).is_some());
        assert_eq!(ahead.plan((Offset(20), Offset(24)), false, 8), Plan::Wait);
        assert_eq!(ahead.read(None, &[]), [8]);
        let own = ahead.plan((Offset(20), Offset(24)), false, 8);
        assert!(matches!(own, Plan::Ahead { .. }), "it reads for itself: {own:?}");
        ahead.read(Some(8), &log.batches[6..8]);
        assert!(ahead.batches(Offset(19)).is_none() && ahead.batches(Offset(24)).is_some());
        ahead.rest();
        ahead.rest();
        assert!(ahead.batches(Offset(24)).is_none(), "nobody came");
    }
}
