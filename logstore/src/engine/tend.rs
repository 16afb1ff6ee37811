//! What each log needs in a turn: segments, heads, seals, ceilings. Scope: part of [`Engine`].
//! Invariants: a segment's head is written when everything before it is durable, and the log waits for it.
//! Not here: pieces (`commit`), flushes (`flush`), whether there is space for a segment (`space`).

use felix_runtime::clock::Tick;
use felix_runtime::file::DiskError;

use super::scripts::{self, Ended, Made};
use super::space::SegmentSpace;
use super::{Engine, Event, LogId, Note, NoteThen};
use crate::commit::MarkKind;
use crate::log::StopReason;
use crate::names;
use crate::segment::format::SegmentHead;

impl Engine {
    pub(super) fn tend(&mut self, log: LogId, now: Tick) {
        let Some(shard) = self.logs.get_mut(&log).filter(|shard| shard.made) else { return };
        if let Some(after) = shard.log.config().roll_after
            && shard.log.is_old(now, after)
        {
            shard.log.roll();
        }
        shard.log.stamp(now);
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
        let frees = std::mem::take(&mut shard.frees);
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
        let most = shard.log.config().segment_bytes_max;
        let kept = self.take_kept(log, size_bytes, most);
        let (size_bytes, pooled) = match kept.or_else(|| self.take_pooled(size_bytes, need, most)) {
            Some((size_bytes, path)) => (size_bytes, Some(path)),
            None => match self.space_for_segment(size_bytes, need, most, frees) {
                SegmentSpace::Taken(size_bytes) => (size_bytes, None),
                SegmentSpace::Wait => return,
                SegmentSpace::Nothing => {
                    self.starve(log);
                    return;
                }
            },
        };
        let Some(shard) = self.logs.get_mut(&log) else { return };
        shard.making_segment = true;
        let seq = shard.log.take_seq();
        let path = names::segment(self.config.volume, shard.log.key(), seq);
        let desk = self.desk.clone();
        let taken_bytes = if pooled.is_some() { 0 } else { size_bytes };
        self.scripts.start(async move {
            let files = scripts::make_segment(&desk, pooled, path, size_bytes).await;
            Ended::SegmentMade { log, made: Made { seq, size_bytes, taken_bytes, files } }
        });
    }

    pub(super) fn segment_made(&mut self, log: LogId, made: Made) {
        let Made { seq, size_bytes, taken_bytes, files } = made;
        self.space.settle(taken_bytes);
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
                self.starve(log);
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
}
