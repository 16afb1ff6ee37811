//! Bringing pieces from closed slots to their segments. Scope: part of [`Engine`].
//! Invariants: oldest slot first; a bounded number of writes and of syncs at once, one of each log, so that a file that is slow
//! to answer takes no more than its own share; memory of a run is let go when its write is answered, its slot when the
//! segments are synced.
//! Not here: which slot is used next (`slots`).

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use felix_runtime::clock::Tick;
use felix_runtime::file::DiskError;
use felix_runtime::planted::{self, Defect};

use super::scripts::{self, Ended};
use super::slots::SlotState;
use super::{Engine, LogId};
use crate::id::SegmentSeq;
use crate::log::{RunId, StopReason};

/// Writes behind the commit file at once.
const WRITES_MAX: usize = 4;
/// Syncs of segments at once.
const SYNCS_MAX: usize = 4;
/// A log whose segment does not answer for this long takes no claims and gets no piece into a slot until it does.
const STALL_AFTER: Duration = Duration::from_secs(1);
/// The same while no slot is ready, and
const STALL_AFTER_SHORT: Duration = Duration::from_millis(20);
/// when one more slot is made in place of one that such a log keeps.
const EXTRA_SLOT_AFTER: Duration = Duration::from_millis(100);

/// What is to be brought to segments.
#[derive(Debug, Default)]
pub(super) struct Spills {
    runs: VecDeque<(usize, LogId, RunId)>,
    syncs: VecDeque<(usize, LogId, SegmentSeq)>,
    writing: usize,
    syncing: usize,
    /// Logs with a write or sync under way, and since when.
    busy: BTreeMap<LogId, Tick>,
}

impl Spills {
    /// The first of `queue` whose log has nothing under way.
    fn next<T>(
        busy: &BTreeMap<LogId, Tick>,
        queue: &mut VecDeque<(usize, LogId, T)>,
    ) -> Option<(usize, LogId, T)> {
        let at = queue.iter().position(|(_, log, _)| !busy.contains_key(log))?;
        queue.remove(at)
    }
}

impl Engine {
    /// Queues everything a slot that was just closed holds.
    pub(super) fn queue_spills(&mut self, index: usize) {
        let slot = &mut self.slots.all[index];
        let mut runs = Vec::new();
        for log in &slot.logs {
            if let Some(shard) = self.logs.get(log) {
                for run in shard.log.runs_in(slot.number) {
                    slot.syncs.insert((*log, run.segment));
                    runs.push((index, *log, run.id));
                }
            }
        }
        slot.runs_left = runs.len();
        self.spills.runs.extend(runs);
        self.maybe_sync(index);
    }

    /// Starts as many writes and syncs as may be under way.
    pub(super) fn spill(&mut self) {
        while self.spills.writing < WRITES_MAX {
            let Some((slot, log, run)) = Spills::next(&self.spills.busy, &mut self.spills.runs) else {
                break;
            };
            let number = self.slots.all[slot].number;
            let found = self.logs.get(&log).and_then(|shard| {
                let bytes = shard.log.runs_in(number).find(|found| found.id == run)?;
                let file = shard.log.files_of(bytes.segment)?.plain;
                Some((file, bytes.byte, bytes.bytes()))
            });
            let Some((file, byte, bytes)) = found else {
                // The log is gone or was cut: nobody needs the run any more.
                self.run_done(slot);
                continue;
            };
            self.spills.writing += 1;
            self.spills.busy.insert(log, self.now);
            let desk = self.desk.clone();
            self.scripts.start(async move {
                let result = scripts::spill(&desk, file, byte, bytes).await;
                Ended::RunSpilled { slot, log, run, result }
            });
        }
        while self.spills.syncing < SYNCS_MAX {
            let Some((slot, log, segment)) = Spills::next(&self.spills.busy, &mut self.spills.syncs) else {
                break;
            };
            let Some(file) = self.logs.get(&log).and_then(|shard| shard.log.files_of(segment)) else {
                self.sync_done(slot);
                continue;
            };
            self.spills.syncing += 1;
            self.spills.busy.insert(log, self.now);
            let desk = self.desk.clone();
            self.scripts.start(async move {
                let result = match planted::is(Defect::SpillNotSynced) {
                    true => Ok(()),
                    false => desk.sync(file.plain).await,
                };
                Ended::SegmentSynced { slot, log, result }
            });
        }
    }

    pub(super) fn run_spilled(&mut self, slot: usize, log: LogId, run: RunId, result: Result<(), DiskError>) {
        self.spills.writing -= 1;
        self.spills.busy.remove(&log);
        match result {
            Ok(()) => {
                let before = self.memory_bytes;
                self.with(log, |log| log.run_written(run));
                self.counts.spilled_bytes += (before - self.memory_bytes) as u64;
            }
            // A log that is gone has its files closed under the writes.
            Err(_) if !self.logs.contains_key(&log) => {}
            Err(error) => self.spill_failed(slot, log, error),
        }
        self.due.insert(log);
        self.run_done(slot);
    }

    fn run_done(&mut self, slot: usize) {
        self.slots.all[slot].runs_left -= 1;
        self.maybe_sync(slot);
    }

    fn maybe_sync(&mut self, index: usize) {
        let slot = &mut self.slots.all[index];
        if slot.runs_left > 0 || slot.state != SlotState::Closed {
            return;
        }
        let syncs: Vec<(LogId, SegmentSeq)> = slot.syncs.iter().copied().collect();
        slot.syncs_left = syncs.len();
        if syncs.is_empty() {
            self.slot_spilled(index);
        }
        self.spills.syncs.extend(syncs.into_iter().map(|(log, segment)| (index, log, segment)));
    }

    pub(super) fn segment_synced(&mut self, slot: usize, log: LogId, result: Result<(), DiskError>) {
        self.spills.syncing -= 1;
        if let Some(since) = self.spills.busy.remove(&log) {
            self.latencies.synced(self.now.saturating_since(since));
        }
        if let Err(error) = result
            && self.logs.contains_key(&log)
        {
            self.spill_failed(slot, log, error);
        }
        self.due.insert(log);
        self.sync_done(slot);
    }

    fn sync_done(&mut self, slot: usize) {
        self.slots.all[slot].syncs_left -= 1;
        if self.slots.all[slot].syncs_left == 0 {
            self.slot_spilled(slot);
        }
    }

    /// The segment is poisoned, and with it its log; the slot keeps what could not be brought over. Those of other slots that were
    /// brought to it and not synced are pinned as the log stops.
    fn spill_failed(&mut self, slot: usize, log: LogId, error: DiskError) {
        self.trouble("bringing pieces to a segment", error);
        self.slots.all[slot].pinned = true;
        self.stop_log(log, StopReason::SegmentFailed);
    }

    fn slot_spilled(&mut self, index: usize) {
        let slot = &mut self.slots.all[index];
        slot.syncs.clear();
        let logs: Vec<LogId> = slot.logs.iter().copied().collect();
        if slot.pinned || slot.failed {
            self.set_aside(index);
        } else {
            slot.state = SlotState::Spilled;
        }
        self.due.extend(logs);
        self.free_slots();
    }

    /// Whether a slot still needs the handles of a segment.
    pub(super) fn spill_uses(&self, log: LogId, segment: SegmentSeq) -> bool {
        self.slots.all.iter().any(|slot| slot.syncs.contains(&(log, segment)))
    }

    /// Whether the segment of a log has not answered for so long that what the log writes would only pile up.
    pub(super) fn is_stalled(&self, log: LogId) -> bool {
        let Some(since) = self.spills.busy.get(&log) else { return false };
        let after = if self.slots.is_short() { STALL_AFTER_SHORT } else { STALL_AFTER };
        self.now.saturating_since(*since) >= after
    }

    /// When one more slot is due, in place of one that a log keeps whose segment does not answer.
    pub(super) fn extra_slot_due(&self) -> Option<Tick> {
        let most = 2 * self.config.slots;
        let live = self.slots.all.iter().filter(|slot| slot.state != SlotState::Aside).count();
        if live >= most || !self.slots.is_short() {
            return None;
        }
        self.spills.busy.values().min().map(|since| *since + EXTRA_SLOT_AFTER)
    }

    pub(super) fn tend_stalls(&mut self) {
        let due = self.extra_slot_due().is_some_and(|due| self.now >= due);
        if due && self.space.try_take(self.config.slot_bytes, self.config.space_low_bytes) {
            self.make_slot();
        }
    }
}
