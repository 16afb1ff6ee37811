//! Making durable what was settled without a sync: slots first, then the segments of each log. Scope: part of [`Engine`].
//! Owns: which logs wait for slots to be synced, which for their segments.
//! Invariants: a log is durable up to a point when every file that may hold bytes below it was synced after they were
//! written; a failed sync stops the logs with bytes in that file and no others; a file that is slow to sync holds up no
//! log but its own.
//! Not here: when a log needs it (`tend`, `changes`, `stop`).

use std::collections::{BTreeSet, VecDeque};

use felix_runtime::clock::Tick;
use felix_runtime::file::{DiskError, FileId};

use super::scripts::{self, Ended};
use super::slots::SlotState;
use super::{Engine, LogId};
use crate::id::Fsync;
use crate::log::{Point, StopReason};

/// Logs whose segments are synced at once.
const LOGS_AT_ONCE: usize = 16;

/// Flushes under way.
#[derive(Debug, Default)]
pub(super) struct Flushes {
    /// The slots of a flush are being synced.
    slots: bool,
    /// Logs that need a flush after that: what it would find clean may be in it.
    waits: BTreeSet<LogId>,
    /// Logs whose slots are synced, and what is left to sync of them.
    queue: VecDeque<(LogId, Point, Vec<FileId>)>,
    syncing: usize,
}

impl Flushes {
    /// Whether a flush may begin at once.
    pub fn is_free(&self) -> bool {
        !self.slots
    }
}

impl Engine {
    pub(super) fn tend_flush_timer(&mut self, now: Tick) {
        if now < self.next_flush || !self.flushes.is_free() {
            return;
        }
        self.next_flush = now + self.config.flush_every;
        let logs: Vec<LogId> = std::mem::take(&mut self.behind).into_iter().collect();
        let live = |log: &LogId| self.log(*log).is_some_and(|log| log.stopped().is_none());
        let logs = logs.into_iter().filter(live).collect();
        self.flush(logs);
    }

    /// Makes durable what `logs` have settled: syncs the slots and segments that were written without.
    pub(super) fn flush(&mut self, logs: Vec<LogId>) {
        if self.flushes.slots {
            self.flushes.waits.extend(logs);
            return;
        }
        let mut points: Vec<(LogId, Point)> = Vec::new();
        for log in logs {
            let Some(shard) = self.logs.get_mut(&log) else { continue };
            if shard.flushing {
                // It may have settled more since: the next one takes it.
                self.behind.insert(log);
                continue;
            }
            shard.flushing = true;
            points.push((log, shard.log.settled_point()));
        }
        if points.is_empty() {
            return;
        }
        self.counts.flushes += 1;
        let dirty = self.slots.take_dirty();
        if dirty.is_empty() {
            self.flush_segments(points);
            return;
        }
        self.flushes.slots = true;
        let (desk, asked) = (self.desk.clone(), self.now);
        self.scripts.start(async move {
            let mut results = Vec::with_capacity(dirty.len());
            for (index, file) in dirty {
                results.push((index, desk.sync(file).await));
            }
            Ended::SlotsSynced { logs: points, results, asked }
        });
    }

    pub(super) fn slots_synced(
        &mut self,
        logs: Vec<(LogId, Point)>,
        results: Vec<(usize, Result<(), DiskError>)>,
    ) {
        self.flushes.slots = false;
        let waits = std::mem::take(&mut self.flushes.waits);
        self.due.extend(waits);
        for (index, result) in results {
            if let Err(error) = result {
                self.slot_sync_failed(index, error);
            }
        }
        self.flush_segments(logs);
    }

    /// A failed sync is never tried again: the slot is sealed for ever, and the logs stop that may have bytes in it which
    /// were to become durable by it.
    fn slot_sync_failed(&mut self, index: usize, error: DiskError) {
        self.trouble("a flush of the commit file", error);
        let behind = |log: &LogId| {
            self.log(*log).is_some_and(|log| {
                log.config().policy != Fsync::OnCommit && log.durable_end() < log.settled_end()
            })
        };
        let lost: Vec<LogId> = self.slots.all[index].logs.iter().copied().filter(behind).collect();
        for log in lost {
            self.stop_log(log, StopReason::RoundFailed);
        }
        self.slots.all[index].failed = true;
        if self.slots.all[index].state == SlotState::Open && self.round.is_none() {
            self.close_slot();
            self.open_standing();
        }
    }

    /// What `logs` have in slots is durable up to their points; now their segments.
    fn flush_segments(&mut self, logs: Vec<(LogId, Point)>) {
        for (log, point) in logs {
            let Some(shard) = self.logs.get_mut(&log) else { continue };
            if shard.log.stopped().is_some() {
                shard.flushing = false;
                self.due.insert(log);
                continue;
            }
            let files = shard.log.take_dirty();
            if files.is_empty() {
                self.flushed(log, point, Ok(()));
            } else {
                self.flushes.queue.push_back((log, point, files));
            }
        }
        self.start_flushes();
    }

    fn start_flushes(&mut self) {
        while self.flushes.syncing < LOGS_AT_ONCE {
            let Some((log, point, files)) = self.flushes.queue.pop_front() else { return };
            self.flushes.syncing += 1;
            let (desk, asked) = (self.desk.clone(), self.now);
            self.scripts.start(async move {
                let result = scripts::sync_all(&desk, files).await;
                Ended::Flushed { log, point, result, asked }
            });
        }
    }

    pub(super) fn segments_flushed(&mut self, log: LogId, point: Point, result: Result<(), DiskError>) {
        self.flushes.syncing -= 1;
        self.flushed(log, point, result);
        self.start_flushes();
    }

    fn flushed(&mut self, log: LogId, point: Point, result: Result<(), DiskError>) {
        let Some(shard) = self.logs.get_mut(&log) else { return };
        shard.flushing = false;
        self.due.insert(log);
        match result {
            Ok(()) => {
                shard.log.flushed(point);
                self.unmarked.insert(log);
                self.last_settle = self.now;
            }
            Err(error) => {
                self.trouble("a flush of a segment", error);
                self.stop_log(log, StopReason::SegmentFailed);
            }
        }
    }
}
