//! Changes of a log that are not appends: start offset, cut, deletion, release.
//! Scope: part of [`Engine`].
//! Invariants: the mark that says so is durable before the change is answered, and before any file goes; a segment is retired
//! only when nobody writes to it any more; one with readers is unlinked, not used again.
//! Not here: which segments are too old (`retention`).

use felix_runtime::file::{DiskError, DiskPath};
use felix_wire::id::Offset;

use super::scripts::{self, Ended};
use super::{Engine, Event, LogId, Note, NoteThen, Shard};
use crate::commit::{Mark, MarkKind};
use crate::id::ShardKey;
use crate::log::{CutError, CutPoint, ReadPlan, Sealed, StopReason};
use crate::names;
use crate::retention;
use crate::script::Handles;
use crate::segment::format::SegmentEnd;

/// A change under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    /// Waits until everything appended is settled.
    Cut { at: Offset },
    /// The place of the cut is being looked for, or its mark written.
    Cutting,
    /// Waits until nothing is in flight.
    Delete,
    /// Waits until everything is in segments.
    Release,
    /// The mark is being written.
    Leaving,
}

/// Whether a log will be gone.
pub(super) fn is_leaving(shard: &Shard) -> bool {
    matches!(shard.change, Some(Change::Leaving | Change::Delete | Change::Release))
}

/// A log that is gone, as the commit file has to remember it.
#[derive(Debug)]
pub(super) struct Tombstone {
    pub mark: Mark,
    /// Slots of others may name it, for as long as the process lives.
    keep: bool,
    /// Its files are gone, durably.
    removed: bool,
}

impl Engine {
    /// Makes `start` the first offset that can be read. `StartMoved` follows when that is durable; whole segments below it go.
    /// It never moves back, and never behind the durable end: what is asked beyond that is cut down to it.
    pub fn move_start(&mut self, log: LogId, start: Offset) {
        let Some(shard) = self.logs.get(&log) else { return };
        let start = start.min(shard.log.durable_end());
        if start <= shard.log.start() || shard.log.stopped().is_some() {
            let start = shard.log.start();
            self.events.push_back(Event::StartMoved { log, start });
            return;
        }
        let mark = Mark { start, ..shard.log.mark(MarkKind::Start) };
        self.notes.push_back(Note { mark, then: NoteThen::Start { log, start } });
    }

    /// Moves the start of `log` as its retention says, at `now_ms` since 1970, removing nothing at or above `below`.
    /// True when something goes.
    pub fn retain(&mut self, log: LogId, now_ms: u64, below: Offset) -> bool {
        let Some(shard) = self.logs.get(&log) else { return false };
        let ends: Vec<SegmentEnd> = shard.log.sealed().map(|sealed| sealed.end).collect();
        let active = shard.log.open_bytes();
        let found = retention::new_start(&ends, active, shard.log.config().retention, now_ms, below);
        let Some(start) = found.filter(|start| *start > shard.log.start()) else { return false };
        self.move_start(log, start);
        true
    }

    /// Cuts `log` so that it ends at `at`, a border of batches. Takes no claims until `Cut` or `CutFailed`; what was settled
    /// above is gone then.
    pub fn cut(&mut self, log: LogId, at: Offset) {
        self.begin_change(log, Change::Cut { at });
    }

    /// Deletes `log` with all its files. `Deleted` follows when that is durable; what is in flight is dropped.
    pub fn delete(&mut self, log: LogId) {
        self.begin_change(log, Change::Delete);
    }

    /// Brings all bytes of `log` to its segments and gives it away in `Released`, with its lineage raised. Reads under way
    /// should have ended.
    pub fn release(&mut self, log: LogId) {
        self.begin_change(log, Change::Release);
    }

    fn begin_change(&mut self, log: LogId, change: Change) {
        let Some(shard) = self.logs.get_mut(&log) else { return };
        if !is_leaving(shard) {
            shard.change = Some(change);
        }
        if change == Change::Delete {
            self.with(log, |log| log.stop(StopReason::Closing));
        }
        self.due.insert(log);
    }

    pub(super) fn tend_change(&mut self, log: LogId) {
        let Some(shard) = self.logs.get(&log) else { return };
        let Some(change) = shard.change else { return };
        let quiet = shard.log.in_flight() == (0, 0) && !shard.making_segment && !shard.flushing;
        let stopped = shard.log.stopped().is_some();
        let settled = quiet && (shard.log.is_settled() || stopped);
        let durable = shard.log.durable_end() == shard.log.settled_end();
        match change {
            Change::Delete if quiet && !shard.log.is_heading() => self.leave(log, MarkKind::Deleted),
            Change::Cut { at } if settled && (stopped || durable) => self.begin_cut(log, at),
            // What stopped stays until the process has started again.
            Change::Release if stopped => {
                if let Some(shard) = self.logs.get_mut(&log) {
                    shard.change = None;
                }
            }
            Change::Cut { .. } | Change::Release if settled && !durable => self.flush(vec![log]),
            Change::Release if settled && !shard.log.is_heading() => {
                if shard.log.has_runs() || self.slots.all.iter().any(|slot| slot.holds(log)) {
                    self.spill_log(log);
                } else {
                    self.leave(log, MarkKind::Released);
                }
            }
            _ => {}
        }
    }

    /// The open slot holds bytes of a log that has to leave: it is closed early.
    fn spill_log(&mut self, log: LogId) {
        let in_open = self.slots.open().is_some_and(|open| self.slots.all[open].logs.contains(&log));
        if in_open && self.round.is_none() {
            self.close_slot();
            self.open_standing();
        } else if in_open {
            self.due_after_round.insert(log);
        }
    }

    fn leave(&mut self, log: LogId, kind: MarkKind) {
        let Some(shard) = self.logs.get_mut(&log) else { return };
        shard.change = Some(Change::Leaving);
        let mark = shard.log.mark(kind);
        let then = match kind {
            MarkKind::Deleted => NoteThen::Deleted { log },
            _ => NoteThen::Released { log },
        };
        self.notes.push_back(Note { mark, then });
    }

    fn begin_cut(&mut self, log: LogId, at: Offset) {
        let Some(shard) = self.logs.get_mut(&log) else { return };
        let (start, end) = (shard.log.start(), shard.log.settled_end());
        shard.change = Some(Change::Cutting);
        if at < start || at > end || shard.log.stopped().is_some() {
            self.cut_found(log, Err(CutError::OutOfRange { start, end }));
            return;
        }
        if let Some(found) = shard.log.cut_point(at) {
            self.cut_found(log, found);
            return;
        }
        let key = shard.log.key();
        // The batch that ends at the cut holds the offset before it.
        match shard.log.plan_read(Offset(at.0.saturating_sub(1)), end, usize::MAX) {
            ReadPlan::File(plan) => {
                let desk = self.desk.clone();
                let path = names::segment(self.config.volume, key, plan.segment);
                // The newest time of the whole segment: it may keep records longer, never shorter.
                let newest_ms = shard.log.newest_in(plan.segment);
                self.scripts.start(async move {
                    let point = super::page::find_cut(&desk, plan, path, at, newest_ms).await;
                    Ended::CutFound { log, point }
                });
            }
            _ => self.cut_found(log, Err(CutError::Unreadable)),
        }
    }

    pub(super) fn cut_found(&mut self, log: LogId, point: Result<CutPoint, CutError>) {
        let Some(shard) = self.logs.get_mut(&log) else { return };
        match point {
            Ok(point) => {
                let mark = shard.log.mark_of_cut(&point);
                self.notes.push_back(Note { mark, then: NoteThen::Cut { log, point } });
            }
            Err(error) => {
                shard.change = None;
                self.due.insert(log);
                self.events.push_back(Event::CutFailed { log, error });
            }
        }
    }

    /// The round with a note is durable.
    pub(super) fn note_durable(&mut self, note: NoteThen) {
        match note {
            NoteThen::Nothing => {}
            NoteThen::Ceiling { log, ceiling } => {
                if let Some(shard) = self.logs.get_mut(&log) {
                    shard.ceiling_asked = false;
                    shard.log.ceiling_raised(ceiling);
                    self.due.insert(log);
                }
            }
            NoteThen::Start { log, start } => {
                if let Some(shard) = self.logs.get_mut(&log) {
                    shard.log.start_moved(start);
                    self.due.insert(log);
                    self.events.push_back(Event::StartMoved { log, start });
                }
            }
            NoteThen::Cut { log, point } => self.cut_durable(log, &point),
            NoteThen::Deleted { log } => self.deleted(log),
            NoteThen::Released { log } => self.released(log),
        }
    }

    /// The round with a note failed: whether it is there is unknown, so the note is written again. It says the same.
    pub(super) fn note_failed(&mut self, then: NoteThen) {
        let log = match &then {
            NoteThen::Nothing => return,
            NoteThen::Ceiling { log, .. }
            | NoteThen::Start { log, .. }
            | NoteThen::Cut { log, .. }
            | NoteThen::Deleted { log }
            | NoteThen::Released { log } => *log,
        };
        let Some(shard) = self.logs.get(&log) else { return };
        let mark = match &then {
            NoteThen::Ceiling { ceiling, .. } => {
                Mark { ceiling: *ceiling, ..shard.log.mark(MarkKind::State) }
            }
            NoteThen::Start { start, .. } => Mark { start: *start, ..shard.log.mark(MarkKind::Start) },
            NoteThen::Cut { point, .. } => shard.log.mark_of_cut(point),
            NoteThen::Deleted { .. } => shard.log.mark(MarkKind::Deleted),
            NoteThen::Released { .. } | NoteThen::Nothing => shard.log.mark(MarkKind::Released),
        };
        self.notes.push_back(Note { mark, then });
    }

    fn cut_durable(&mut self, log: LogId, point: &CutPoint) {
        let Some(off) = self.with(log, |log| log.cut(point)) else { return };
        let mut files = Vec::new();
        let mut paths = Vec::new();
        if let Some(shard) = self.logs.get_mut(&log) {
            shard.change = None;
            let key = shard.log.key();
            for seq in off.sealed.iter().map(|sealed| sealed.seq).chain(off.open.iter().map(|open| open.seq))
            {
                paths.push(names::segment(self.config.volume, key, seq));
                self.reads.forget(log, seq, &mut files);
            }
        }
        let handles: Vec<Handles> = off
            .sealed
            .iter()
            .filter_map(|sealed| sealed.files)
            .chain(off.open.iter().map(|open| open.files))
            .collect();
        self.due.insert(log);
        self.unmarked.insert(log);
        self.events.push_back(Event::Cut { log, end: point.at });
        let desk = self.desk.clone();
        self.scripts.start(async move {
            for file in files {
                desk.close(file).await;
            }
            for handles in handles {
                desk.close_both(handles).await;
            }
            for path in paths {
                let _ = desk.unlink(path).await;
            }
            Ended::Tidied
        });
    }

    fn deleted(&mut self, log: LogId) {
        let Some(shard) = self.logs.remove(&log) else { return };
        let key = shard.log.key();
        self.forget_log(log, key, &shard.log);
        let mark = shard.log.mark(MarkKind::Deleted);
        self.tombstones.push(Tombstone { mark, keep: shard.known_elsewhere, removed: false });
        self.events.push_back(Event::Deleted { log, key });
        let handles = shard.log.handles();
        let mut files = Vec::new();
        self.reads.forget_log(log, &mut files);
        let (desk, dir) = (self.desk.clone(), names::shard(self.config.volume, key));
        self.scripts.start(async move {
            for file in files {
                desk.close(file).await;
            }
            let result = scripts::remove_log(&desk, dir, handles).await;
            Ended::Removed { key, result }
        });
    }

    fn forget_log(&mut self, log: LogId, key: ShardKey, machine: &crate::log::Log) {
        self.by_key.remove(&key);
        self.memory_bytes -= machine.memory_bytes();
        self.unmarked.remove(&log);
        self.due.remove(&log);
        self.ready.retain(|ready| *ready != log);
        self.prior.retain(|prior| *prior != log);
    }

    pub(super) fn log_removed(&mut self, key: ShardKey, result: Result<(), DiskError>) {
        if result.is_ok() {
            for tombstone in self.tombstones.iter_mut().filter(|tombstone| tombstone.mark.key == key) {
                tombstone.removed = true;
            }
        }
    }

    /// A new slot begins, and with it a list of what there is: what nobody can ask about any more is left out.
    pub(super) fn drop_tombstones(&mut self) {
        self.tombstones.retain(|tombstone| tombstone.keep || !tombstone.removed);
    }

    fn released(&mut self, log: LogId) {
        let Some(mut shard) = self.logs.remove(&log) else { return };
        let key = shard.log.key();
        self.forget_log(log, key, &shard.log);
        let handles = shard.log.handles();
        let bare = shard.log.seal_for_move();
        let bare = bare.iter().map(|open| names::segment(self.config.volume, key, open.seq));
        let paths: Vec<DiskPath> = bare.chain(shard.kept.take().map(|(_, path)| path)).collect();
        let mut files = Vec::new();
        self.reads.forget_log(log, &mut files);
        let desk = self.desk.clone();
        self.scripts.start(async move {
            for file in files {
                desk.close(file).await;
            }
            for handles in handles {
                desk.close_both(handles).await;
            }
            for path in paths {
                let _ = desk.unlink(path).await;
            }
            Ended::LogClosed { machine: Box::new(shard.log), log }
        });
    }

    /// Closes handles of sealed segments that hold all their bytes, and retires segments below the start.
    pub(super) fn close_idle_files(&mut self, log: LogId) {
        let Some(shard) = self.logs.get(&log) else { return };
        // A read may be under way through the handle it was written through.
        let read = |sealed: &Sealed| sealed.files.is_some() && self.reads.is_read(log, sealed.seq);
        let idle = |sealed: &&Sealed| {
            !shard.log.has_runs_of(sealed.seq) && !self.spill_uses(log, sealed.seq) && !read(sealed)
        };
        // Only from the oldest on, so that those with handles stay the newest.
        let with_files: Vec<&Sealed> = shard.log.sealed_with_files().collect();
        let closable: Vec<_> =
            with_files.into_iter().rev().take_while(idle).map(|sealed| sealed.seq).collect();
        // A cut under way may end in a segment that would be retired.
        let kept = shard.change.is_some();
        // What a slot holds of a retired segment is not needed any more; only writes under way are waited for.
        let free = |sealed: &&Sealed| !self.spill_uses(log, sealed.seq) && !read(sealed);
        let retired = if kept { 0 } else { shard.log.retired().take_while(free).count() };
        for seq in closable {
            let files = self.logs.get_mut(&log).and_then(|shard| shard.log.sealed_mut(seq)?.files.take());
            if let Some(files) = files {
                let desk = self.desk.clone();
                self.scripts.start(async move {
                    desk.close_both(files).await;
                    Ended::Tidied
                });
            }
        }
        for _ in 0..retired {
            let Some(sealed) = self.with(log, crate::log::Log::take_retired).flatten() else {
                return;
            };
            self.retire(log, &sealed);
        }
    }
}
