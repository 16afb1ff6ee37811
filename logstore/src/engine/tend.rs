//! What each log needs in a turn: segments, heads, seals, ceilings, flushes. Scope: part of [`Engine`].
//! Invariants: a segment's head is written when everything before it is durable, and the log waits for it.
//! Not here: pieces (`commit`).

use felix_runtime::clock::Tick;
use felix_runtime::file::{DiskError, Op, Outcome};

use super::scripts::{self, Ended};
use super::{Engine, Event, LogId, Note, NoteThen};
use crate::commit::MarkKind;
use crate::id::SegmentSeq;
use crate::log::{Point, StopReason};
use crate::names;
use crate::script::Handles;
use crate::segment::format::SegmentHead;

impl Engine {
    pub(super) fn tend(&mut self, log: LogId, now: Tick) {
        let Some(shard) = self.logs.get_mut(&log).filter(|shard| shard.made) else { return };
        if let Some(after) = shard.log.config().roll_after
            && shard.log.is_old(now, after)
        {
            shard.log.roll();
        }
        while shard.log.seal_front() {}
        if shard.log.roll_needs_flush() && !shard.flushing {
            self.flush(vec![log]);
        }
        self.write_head(log);
        self.make_segments(log);
        self.with(log, crate::log::Log::append_skip);
        self.ask_ceiling(log);
        self.tend_change(log);
        self.close_idle_files(log);
        if let Some(shard) = self.logs.get_mut(&log)
            && shard.log.submittable() > 0
            && !std::mem::replace(&mut shard.queued, true)
        {
            self.ready.push_back(log);
        }
    }

    fn write_head(&mut self, log: LogId) {
        let Some(shard) = self.logs.get_mut(&log) else { return };
        let Some((head, files)) = shard.log.take_head() else { return };
        let desk = self.desk.clone();
        self.scripts.start(async move {
            let result = desk.write_bytes(files.dsync, 0, &head.encode()).await;
            Ended::HeadWritten { log, head, result }
        });
    }

    pub(super) fn head_written(&mut self, log: LogId, head: &SegmentHead, result: Result<(), DiskError>) {
        self.due.insert(log);
        match result {
            Ok(()) => {
                if let Some(shard) = self.logs.get_mut(&log) {
                    shard.log.head_written(head);
                    self.unmarked.insert(log);
                }
            }
            Err(error) => {
                self.trouble("a segment's head", error);
                self.stop_log(log, StopReason::SegmentFailed);
            }
        }
    }

    fn make_segments(&mut self, log: LogId) {
        let Some(shard) = self.logs.get_mut(&log) else { return };
        if shard.making_segment || shard.starved || shard.change.is_some() {
            return;
        }
        // A log that nobody writes to needs no segment ahead.
        let asked = shard.wants_room || shard.log.skips_to().is_some() || shard.log.wants_successor();
        let idle = shard.log.open().next().is_none() && !asked;
        if idle {
            return;
        }
        let need = shard.need_bytes;
        if let Some(spare) = shard.log.drop_spare(need) {
            let path = names::segment(self.config.volume, shard.log.key(), spare.seq);
            let desk = self.desk.clone();
            self.scripts.start(async move {
                desk.close_both(spare.files).await;
                let _ = desk.unlink(path).await;
                Ended::Tidied
            });
        }
        let Some(size_bytes) = shard.log.wants_segment(need) else { return };
        shard.making_segment = true;
        let most = shard.log.config().segment_bytes_max;
        let seq = shard.log.take_seq();
        let path = names::segment(self.config.volume, shard.log.key(), seq);
        let pooled = self.pool.take(size_bytes, most);
        let (size_bytes, pooled) = pooled.map_or((size_bytes, None), |(size, path)| (size, Some(path)));
        let desk = self.desk.clone();
        self.scripts.start(async move {
            let files = scripts::make_segment(&desk, pooled, path, size_bytes).await;
            Ended::SegmentMade { log, seq, size_bytes, files }
        });
    }

    pub(super) fn segment_made(
        &mut self,
        log: LogId,
        seq: SegmentSeq,
        size_bytes: u64,
        files: Result<Handles, DiskError>,
    ) {
        self.due.insert(log);
        let epoch = self.take_epoch();
        let Some(shard) = self.logs.get_mut(&log) else {
            if let Ok(files) = files {
                let desk = self.desk.clone();
                self.scripts.start(async move {
                    desk.close_both(files).await;
                    Ended::Tidied
                });
            }
            return;
        };
        shard.making_segment = false;
        match files {
            Ok(files) => shard.log.add_segment(seq, epoch, size_bytes, files),
            Err(error) => {
                // Nothing was promised: the next try has another number, when space is asked about again.
                shard.starved = true;
                self.trouble("making a segment", error);
            }
        }
    }

    pub(super) fn log_made(&mut self, log: LogId, result: Result<(), DiskError>) {
        let Some(shard) = self.logs.get_mut(&log) else { return };
        shard.making_segment = false;
        match result {
            Ok(()) => {
                shard.made = true;
                self.due.insert(log);
                self.unmarked.insert(log);
                self.events.push_back(Event::Created { log });
            }
            Err(error) => {
                if let Some(shard) = self.logs.remove(&log) {
                    self.by_key.remove(&shard.log.key());
                }
                self.events.push_back(Event::CreateFailed { log, error });
            }
        }
    }

    fn ask_ceiling(&mut self, log: LogId) {
        let Some(shard) = self.logs.get_mut(&log) else { return };
        if shard.ceiling_asked {
            return;
        }
        if let Some(ceiling) = shard.log.ceiling_wanted() {
            shard.ceiling_asked = true;
            let mut mark = shard.log.mark(MarkKind::State);
            mark.ceiling = ceiling;
            self.notes.push_back(Note { mark, then: NoteThen::Ceiling { log, ceiling } });
        }
    }

    pub(super) fn tend_timers(&mut self, now: Tick) {
        if now >= self.next_flush && !self.flushing {
            self.next_flush = now + self.config.flush_every;
            let logs: Vec<LogId> = std::mem::take(&mut self.behind).into_iter().collect();
            let live = |log: &LogId| self.log(*log).is_some_and(|log| log.stopped().is_none());
            let logs = logs.into_iter().filter(live).collect();
            self.flush(logs);
        }
        if now >= self.next_space && !self.asking_space {
            self.next_space = now + self.config.space_every;
            self.asking_space = true;
            let (desk, volume) = (self.desk.clone(), self.config.volume);
            self.scripts.start(async move {
                let free_bytes = match desk.ask(Op::Space { volume }).await {
                    Ok(Outcome::Space(space)) => Ok(space.free_bytes),
                    Ok(_) => Err(DiskError::Io { errno: 0 }),
                    Err(error) => Err(error),
                };
                Ended::Space { free_bytes }
            });
            let old: Vec<LogId> = self.logs.keys().copied().collect();
            self.due.extend(old);
        }
    }

    pub(super) fn space_told(&mut self, free_bytes: Result<u64, DiskError>) {
        self.asking_space = false;
        let Ok(free) = free_bytes else { return };
        self.counts.free_bytes = free;
        let before = self.space_ok;
        if free < self.config.space_low_bytes {
            self.space_ok = false;
        } else if free >= self.config.space_high_bytes {
            self.space_ok = true;
        }
        if before != self.space_ok {
            self.events.push_back(Event::Space { writes: self.space_ok });
        }
        if self.space_ok {
            self.slots_retry();
            for (log, shard) in &mut self.logs {
                if std::mem::take(&mut shard.starved) {
                    self.due.insert(*log);
                }
            }
            self.fill_pool();
        }
    }

    /// Makes durable what `logs` have settled: syncs the slots and segments that were written without.
    pub(super) fn flush(&mut self, logs: Vec<LogId>) {
        if self.flushing {
            // What it would find clean may be in the sync that is under way.
            self.flush_waits.extend(logs);
            return;
        }
        let mut points: Vec<(LogId, Point)> = Vec::new();
        let mut files = Vec::new();
        for log in logs {
            let Some(shard) = self.logs.get_mut(&log) else { continue };
            shard.flushing = true;
            points.push((log, shard.log.settled_point()));
            files.extend(shard.log.take_dirty());
        }
        if points.is_empty() {
            return;
        }
        self.counts.flushes += 1;
        self.flushing = true;
        files.extend(self.slots.take_dirty());
        let desk = self.desk.clone();
        self.scripts.start(async move {
            let result = scripts::sync_all(&desk, files).await;
            Ended::Flushed { logs: points, result }
        });
    }

    pub(super) fn flushed(&mut self, logs: Vec<(LogId, Point)>, result: Result<(), DiskError>, now: Tick) {
        self.flushing = false;
        let waiting = std::mem::take(&mut self.flush_waits);
        self.due.extend(waiting);
        if let Err(error) = result {
            self.trouble("a flush", error);
            self.flush_failed(&logs);
            return;
        }
        for (log, point) in logs {
            self.due.insert(log);
            if let Some(shard) = self.logs.get_mut(&log) {
                shard.flushing = false;
                shard.log.flushed(point);
                self.unmarked.insert(log);
                self.last_settle = now;
            }
        }
    }

    /// A failed sync is never tried again: every log stops that has something settled and not durable, since it may have
    /// been in a file of the flush.
    fn flush_failed(&mut self, logs: &[(LogId, Point)]) {
        for (log, _) in logs {
            self.due.insert(*log);
            if let Some(shard) = self.logs.get_mut(log) {
                shard.flushing = false;
            }
        }
        let behind = |log: &crate::log::Log| log.durable_end() < log.settled_end();
        let lost: Vec<LogId> =
            self.logs.iter().filter(|(_, shard)| behind(&shard.log)).map(|(log, _)| *log).collect();
        for log in lost {
            self.stop_log(log, StopReason::SegmentFailed);
        }
    }
}
