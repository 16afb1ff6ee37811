//! Bringing pieces from closed slots to their segments. Scope: part of [`Engine`].
//! Invariants: oldest slot first; a bounded number of writes and of syncs at once; memory of a run is let go when its write is
//! answered, its slot when the segments are synced.
//! Not here: which slot is used next (`slots`).

use std::collections::VecDeque;

use felix_runtime::file::DiskError;

use super::scripts::{self, Ended};
use super::slots::SlotState;
use super::{Engine, LogId};
use crate::id::SegmentSeq;
use crate::log::{RunId, StopReason};

/// Writes behind the commit file at once.
const WRITES_MAX: usize = 4;
/// Syncs of segments at once.
const SYNCS_MAX: usize = 4;

/// What is to be brought to segments.
#[derive(Debug, Default)]
pub(super) struct Spills {
    runs: VecDeque<(usize, LogId, RunId)>,
    syncs: VecDeque<(usize, LogId, SegmentSeq)>,
    writing: usize,
    syncing: usize,
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
            let Some((slot, log, run)) = self.spills.runs.pop_front() else { break };
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
            let desk = self.desk.clone();
            self.scripts.start(async move {
                let result = scripts::spill(&desk, file, byte, bytes).await;
                Ended::RunSpilled { slot, log, run, result }
            });
        }
        while self.spills.syncing < SYNCS_MAX {
            let Some((slot, log, segment)) = self.spills.syncs.pop_front() else { break };
            let Some(file) = self.logs.get(&log).and_then(|shard| shard.log.files_of(segment)) else {
                self.sync_done(slot);
                continue;
            };
            self.spills.syncing += 1;
            let desk = self.desk.clone();
            self.scripts.start(async move {
                let result = desk.sync(file.plain).await;
                Ended::SegmentSynced { slot, log, result }
            });
        }
    }

    pub(super) fn run_spilled(&mut self, slot: usize, log: LogId, run: RunId, result: Result<(), DiskError>) {
        self.spills.writing -= 1;
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

    /// The segment is poisoned, and with it its log; the slot keeps what could not be brought over.
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
}
