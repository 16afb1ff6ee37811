//! The first record that was appended at a time or later (semantics 4.3). Sans-io. Scope: one per request.
//! Invariants: the record that is told was appended then or later, and the one before it was not; that is the first one when
//! the clock of the broker never went back. A search reads one batch for each halving of one segment.
//! Not here: how segments are found, which each know the newest time in them.

use felix_logstore::log::Log;
use felix_logstore::record::{Batch, BatchKind};
use felix_wire::id::Offset;

use super::Step;
use crate::shard::ask::{AskRefused, Reply};
use crate::shard::mail::PageLoss;

/// See the module.
#[derive(Debug)]
pub(super) struct TimeRead {
    at_ms: u64,
    /// What is before was appended earlier.
    low: Offset,
    /// The record here was not, if one was found yet; else where the search ends.
    high: Offset,
    found: Option<Offset>,
    /// Where the batch in the middle is looked for, and is looked for from on when there is no record.
    middle: Offset,
    probe: Offset,
}

impl TimeRead {
    /// Of what `log` has settled below `end`.
    pub(super) fn new(at_ms: u64, log: &Log, end: Offset) -> TimeRead {
        let held = |at: Offset| at.max(log.start());
        let mut low = log.start();
        let mut high = end;
        for sealed in log.sealed() {
            if sealed.end.newest_ms >= at_ms && sealed.end.offset > log.start() {
                (low, high) = (held(sealed.base), sealed.end.offset.min(end));
                break;
            }
            low = held(sealed.end.offset);
        }
        let mut time = TimeRead { at_ms, low: low.min(end), high, found: None, middle: low, probe: low };
        time.halve();
        time
    }

    fn halve(&mut self) {
        self.middle = Offset(self.low.0 + self.high.0.saturating_sub(self.low.0) / 2);
        self.probe = self.middle;
    }

    pub(super) fn step(&self) -> Step {
        if self.low >= self.high {
            return Step::Done(Reply::TimeOf(self.found));
        }
        Step::Read { from: self.probe, until: self.high, bytes_max: 1 }
    }

    /// Takes what was read; `end` is where what is settled ends now.
    pub(super) fn take(&mut self, read: Result<&[Batch], PageLoss>, end: Offset) -> Step {
        match read {
            Ok(batches) => self.look(batches),
            Err(PageLoss::TooOld(start)) => {
                self.low = self.low.max(start);
                self.high = self.high.max(self.low);
                self.found = self.found.filter(|found| *found >= start);
                self.halve();
            }
            Err(PageLoss::Damaged { from, next }) => {
                return Step::Done(Reply::Refused(AskRefused::Damaged { from, next }));
            }
            Err(PageLoss::Unreadable) => return Step::Done(Reply::Refused(AskRefused::Unreadable)),
        }
        if self.low >= self.high && self.found.is_none() && self.high < end {
            // Not in that segment after all.
            (self.low, self.high) = (self.high, end);
            self.halve();
        }
        self.step()
    }

    fn look(&mut self, batches: &[Batch]) {
        let Some(batch) = batches.first() else {
            // No record from the probe on.
            self.high = self.middle;
            return self.halve();
        };
        let head = batch.head();
        if !matches!(head.kind, BatchKind::Data | BatchKind::Commit) {
            self.probe = head.end().max(Offset(self.probe.0 + 1));
            if self.probe >= self.high {
                self.high = self.middle;
                self.halve();
            }
            return;
        }
        let first = head.base.max(self.low);
        let late = |record: &felix_logstore::record::Record| record.timestamp_ms >= self.at_ms;
        match batch.records().filter(|record| record.offset >= first).find(late) {
            Some(record) => {
                self.found = Some(record.offset);
                self.high = first.min(self.middle).max(self.low);
                if record.offset > first {
                    self.low = self.high;
                }
            }
            None => self.low = head.end(),
        }
        self.halve();
    }
}
