//! Which way pieces go, and the rounds of the commit file. Scope: part of [`Engine`].
//! Invariants: one round in flight; rounds are numbered without gaps and each names up to where the logs of the one before
//! were durable; an answer that is an error settles nothing and stops exactly the logs that had bytes in it.
//! Not here: slots (`slots`).

use felix_runtime::clock::Tick;
use felix_runtime::file::DiskError;
use felix_runtime::planted::{self, Defect};

use super::scripts::{Ended, Written};
use super::slots::SlotState;
use super::{Engine, Event, LogId, Note, NoteThen};
use crate::commit::mark::MARK_BYTES;
use crate::commit::round::{PIECE_HEAD_BYTES, PRIOR_BYTES, ROUND_HEAD_BYTES};
use crate::commit::{Mark, MarkKind, PieceHead, Prior, Round};
use crate::id::{Fsync, RoundNumber};
use crate::limits::{BLOCK, DEEP_BYTES, DIRECT_BYTES, DIRECT_BYTES_BEHIND, MARKS_SHARE, PIECE_BYTES_MAX};
use crate::log::{Piece, PieceId, StopReason};

/// Bytes of one round, so that it does not wait for a buffer that is larger than others need.
const ROUND_BYTES_MAX: u64 = 4 << 20;

/// Small writes to one segment in flight at once: what comes meanwhile gathers to larger ones.
const SMALL_DEPTH: usize = 2;

/// What a round says beside its pieces.
struct Lists {
    prior: Vec<Prior>,
    /// With the log each is of; none for one that is gone.
    marks: Vec<(Option<LogId>, Mark)>,
    /// So many of the notes that wait.
    notes: usize,
}

/// The round that is being written.
pub(super) struct RoundInFlight {
    slot: usize,
    bytes: usize,
    batches: usize,
    asked: Tick,
    dsync: bool,
    pieces: Vec<(LogId, PieceId)>,
    notes: Vec<NoteThen>,
    marked: Vec<LogId>,
}

/// The answer of a write: as it is, but for the defect that ignores it.
fn planted_result(result: Result<(), DiskError>) -> Result<(), DiskError> {
    if planted::is(Defect::FailedWriteIgnored) { Ok(()) } else { result }
}

impl Engine {
    /// Submits what can be submitted.
    pub(super) fn submit(&mut self, now: Tick) {
        let able = self.take_ready();
        self.directs.look_again();
        let alone = able.len() == 1;
        let threshold = if self.slots.behind() { DIRECT_BYTES_BEHIND } else { DIRECT_BYTES };
        let mut packed = Vec::new();
        for log in able {
            let Some(shard) = self.logs.get(&log) else { continue };
            let bytes = shard.log.submittable();
            let (direct, in_round) = shard.log.in_flight();
            let goes_direct = bytes >= threshold || (alone && bytes as u64 >= BLOCK);
            if goes_direct {
                let depth = if bytes >= DEEP_BYTES { self.config.direct_depth } else { SMALL_DEPTH };
                let allowed = in_round == 0 && direct < depth.min(self.config.direct_depth);
                let waits = allowed && bytes < DEEP_BYTES && self.directs.are_enough(now);
                if allowed && !waits && self.write_direct(log, now) {
                    self.due.insert(log);
                } else {
                    self.requeue(log, false);
                }
            } else if direct == 0 && in_round == 0 && !self.is_stalled(log) && !self.gathers(log, now) {
                packed.push(log);
            } else {
                self.requeue(log, false);
            }
        }
        if self.round.is_none() {
            packed = self.write_round(packed, now);
        }
        // Those that found no place in this round are the first of the next.
        for log in packed.into_iter().rev() {
            self.requeue(log, true);
        }
    }

    /// Whether a log with few batches waits for more instead of going into a round.
    fn gathers(&mut self, log: LogId, now: Tick) -> bool {
        let Some(shard) = self.logs.get_mut(&log).filter(|shard| shard.gathers) else { return false };
        let oldest = shard.log.oldest_at();
        shard.gathers = oldest.is_some_and(|oldest| self.directs.gathers(oldest, now));
        shard.gathers
    }

    /// The logs that can submit, in their order; none of them is queued any more.
    fn take_ready(&mut self) -> Vec<LogId> {
        let mut able = Vec::with_capacity(self.ready.len());
        while let Some(log) = self.ready.pop_front() {
            if let Some(shard) = self.logs.get_mut(&log) {
                shard.queued = false;
                if shard.log.submittable() > 0 {
                    able.push(log);
                }
            }
        }
        able
    }

    fn requeue(&mut self, log: LogId, first: bool) {
        let Some(shard) = self.logs.get_mut(&log).filter(|shard| !shard.queued) else { return };
        shard.queued = true;
        if first { self.ready.push_front(log) } else { self.ready.push_back(log) }
    }

    /// Writes the next piece of a log straight to its segment. False when there is no buffer for it now.
    fn write_direct(&mut self, log: LogId, now: Tick) -> bool {
        let Some(shard) = self.logs.get_mut(&log) else { return false };
        let Ok(mut buffer) = self.desk.pool().take(shard.log.next_piece_len(PIECE_BYTES_MAX)) else {
            return false;
        };
        let dsync = shard.log.config().policy == Fsync::OnCommit;
        let Some(piece) = shard.log.take_piece(None, PIECE_BYTES_MAX, now) else { return false };
        let Some(files) = shard.log.files_of(piece.place.segment) else { return false };
        for batch in &piece.batches {
            buffer.push(batch.bytes());
        }
        shard.gathers = piece.batches.len() > 1;
        let file = if dsync { files.dsync } else { files.plain };
        let (desk, at) = (self.desk.clone(), piece.place.byte);
        self.directs.begin(now);
        let written = Written {
            piece: piece.id,
            run: piece.run,
            bytes: piece.len,
            batches: piece.batches.len(),
            asked: now,
        };
        self.scripts.start(async move {
            let result = desk.write(file, at, buffer.freeze()).await;
            Ended::PieceWritten { log, written, result }
        });
        true
    }

    pub(super) fn piece_written(
        &mut self,
        log: LogId,
        written: Written,
        result: Result<(), DiskError>,
        now: Tick,
    ) {
        let Written { piece, run, bytes, batches, asked } = written;
        self.directs.end(asked);
        self.due.insert(log);
        self.with(log, |log| log.run_written(run));
        match planted_result(result) {
            Ok(()) => {
                self.counts.direct(bytes, asked, now);
                self.latencies.written(batches, bytes);
                if self.is_on_commit(log) {
                    self.latencies.synced(now.saturating_since(asked));
                }
                self.with(log, |log| log.set_front_dirty());
                self.settle(log, piece, now);
            }
            Err(error) => {
                self.trouble("a write to a segment", error);
                self.with(log, |log| log.piece_failed(piece, StopReason::SegmentFailed));
                self.stop_log(log, StopReason::SegmentFailed);
            }
        }
    }

    fn settle(&mut self, log: LogId, piece: PieceId, now: Tick) {
        let settled = self.with(log, |log| log.piece_written(piece)).flatten();
        if let Some(end) = settled {
            if let Some(shard) = self.logs.get_mut(&log) {
                let latencies = &mut self.latencies;
                shard.log.take_settled(|at, batches| {
                    latencies.settled(now.saturating_since(at), u64::from(batches));
                });
            }
            self.last_settle = now;
            self.unmarked.insert(log);
            if self.log(log).is_some_and(|log| log.config().policy == Fsync::Periodic) {
                self.behind.insert(log);
            }
            self.events.push_back(Event::Settled { log, end });
        }
    }

    /// Writes a round with pieces of `logs`, the notes that wait and the marks that are due. Gives back the logs that
    /// found no place.
    fn write_round(&mut self, logs: Vec<LogId>, now: Tick) -> Vec<LogId> {
        let idle =
            !self.unmarked.is_empty() && now.saturating_since(self.last_settle) >= self.config.idle_after;
        let wanted = !logs.is_empty() || !self.notes.is_empty() || idle || self.slots.owes_marks;
        if !wanted || (self.slots.open().is_none() && !self.open_standing()) {
            return logs;
        }
        if self.is_slot_full(&logs) {
            self.close_slot();
            if !self.open_standing() {
                return logs;
            }
        }
        let Some(index) = self.slots.open() else { return logs };
        let left = self.config.slot_bytes - self.slots.all[index].at;
        let marks = self.due_marks(idle);
        let notes = self.notes.len().min(64);
        let prior = self.prior_list();
        let fixed = ROUND_HEAD_BYTES + prior.len() * PRIOR_BYTES + (marks.len() + notes) * MARK_BYTES;
        let room = (left.min(ROUND_BYTES_MAX.max(fixed as u64 + BLOCK)) as usize).saturating_sub(fixed);
        let (taken, rest) = self.choose(logs, room);
        let bytes: usize = taken.iter().map(|(_, bytes)| bytes + PIECE_HEAD_BYTES).sum();
        let total = (fixed + bytes).next_multiple_of(BLOCK as usize);
        let Ok(buffer) = self.desk.pool().take(total) else {
            return taken.into_iter().map(|(log, _)| log).chain(rest).collect();
        };
        if total as u64 > left {
            // Only notes and marks can be that large; they wait for the next slot.
            self.close_slot();
            self.open_standing();
            return taken.into_iter().map(|(log, _)| log).chain(rest).collect();
        }
        let logs: Vec<LogId> = taken.into_iter().map(|(log, _)| log).collect();
        self.start_round(index, Lists { prior, marks, notes }, logs, buffer, now);
        rest
    }

    /// Whether the open slot should be closed before the next round: the piece of the first log does not fit, or the slot
    /// holds its share of memory.
    fn is_slot_full(&self, logs: &[LogId]) -> bool {
        let Some(index) = self.slots.open() else { return false };
        let slot = &self.slots.all[index];
        let first = logs.first().and_then(|log| self.log(*log)).map_or(0, |log| log.submittable() as u64);
        let need = first + (1 + logs.len().min(16) as u64) * BLOCK;
        let share = (self.config.memory_bytes_max / 4) as u64;
        slot.failed || slot.at + need > self.config.slot_bytes || slot.at > share.max(2 * BLOCK)
    }

    /// As many logs as fit `room` bytes, with the bytes of their pieces; the others.
    fn choose(&self, logs: Vec<LogId>, room: usize) -> (Vec<(LogId, usize)>, Vec<LogId>) {
        let (mut taken, mut rest) = (Vec::new(), Vec::new());
        let mut used = 0;
        for log in logs {
            let bytes = self.log(log).map_or(0, |log| log.next_piece_len(PIECE_BYTES_MAX));
            if bytes > 0 && used + bytes + PIECE_HEAD_BYTES <= room {
                used += bytes + PIECE_HEAD_BYTES;
                taken.push((log, bytes));
            } else if bytes > 0 {
                rest.push(log);
            }
        }
        (taken, rest)
    }

    /// The marks the next round has to carry: of every log in the first of a slot, of those that moved when idle.
    fn due_marks(&self, idle: bool) -> Vec<(Option<LogId>, Mark)> {
        if self.slots.owes_marks {
            let made = self.logs.iter().filter(|(_, shard)| shard.made);
            let states = made.map(|(id, shard)| (Some(*id), shard.log.mark(MarkKind::State)));
            let gone = self.tombstones.iter().map(|tombstone| (None, tombstone.mark));
            return states.chain(gone).collect();
        }
        if !idle {
            return Vec::new();
        }
        let most = (self.config.slot_bytes / MARKS_SHARE) as usize / MARK_BYTES;
        let moved =
            self.unmarked.iter().filter_map(|id| Some((Some(*id), self.log(*id)?.mark(MarkKind::State))));
        moved.take(most).collect()
    }

    fn prior_list(&self) -> Vec<Prior> {
        let logs = self.prior.iter().filter_map(|log| self.log(*log));
        logs.map(|log| Prior { key: log.key(), lineage: log.lineage(), end: log.durable_end() }).collect()
    }

    fn start_round(
        &mut self,
        index: usize,
        Lists { prior, marks, notes }: Lists,
        logs: Vec<LogId>,
        mut buffer: felix_runtime::file::AlignedBuf,
        now: Tick,
    ) {
        let notes: Vec<Note> = self.notes.drain(..notes).collect();
        let number = self.slots.all[index].number;
        let dsync = !notes.is_empty() || !marks.is_empty() || logs.iter().any(|log| self.is_on_commit(*log));
        let mut pieces: Vec<(LogId, Piece)> = Vec::with_capacity(logs.len());
        for log in logs {
            if let Some(piece) =
                self.with(log, |log| log.take_piece(Some(number), PIECE_BYTES_MAX, now)).flatten()
            {
                pieces.push((log, piece));
            }
        }
        let mut round = Round {
            number: RoundNumber(self.next_round),
            live_from: self.live_from(),
            clean: false,
            prior,
            marks: marks.iter().map(|(_, mark)| *mark).collect(),
            pieces: pieces.iter().map(|(log, piece)| self.piece_head(*log, piece)).collect(),
        };
        round.marks.extend(notes.iter().map(|note| note.mark));
        round.clean = self.is_last_round();
        let slot = &mut self.slots.all[index];
        buffer.push(&round.encode_meta(slot.epoch));
        for batch in pieces.iter().flat_map(|(_, piece)| &piece.batches) {
            buffer.push(batch.bytes());
        }
        let at = slot.at;
        slot.at += round.total_len() as u64;
        slot.logs.extend(pieces.iter().map(|(log, _)| *log));
        let Some(files) = slot.files else { return };
        self.next_round += 1;
        self.slots.owes_marks = false;
        self.prior = pieces.iter().map(|(log, _)| *log).collect();
        let marked: Vec<LogId> = marks.iter().filter_map(|(log, _)| *log).collect();
        for log in &marked {
            self.unmarked.remove(log);
        }
        self.round = Some(RoundInFlight {
            slot: index,
            bytes: round.total_len(),
            batches: pieces.iter().map(|(_, piece)| piece.batches.len()).sum(),
            asked: now,
            dsync,
            pieces: pieces.iter().map(|(log, piece)| (*log, piece.id)).collect(),
            notes: notes.into_iter().map(|note| note.then).collect(),
            marked,
        });
        let synced = dsync && !planted::is(Defect::AckBeforeSync);
        let (desk, file) = (self.desk.clone(), if synced { files.dsync } else { files.plain });
        self.scripts.start(async move {
            let result = desk.write(file, at, buffer.freeze()).await;
            Ended::RoundWritten { result }
        });
    }

    fn is_on_commit(&self, log: LogId) -> bool {
        self.log(log).is_some_and(|log| log.config().policy == Fsync::OnCommit)
    }

    fn piece_head(&self, log: LogId, piece: &Piece) -> PieceHead {
        PieceHead {
            key: self.logs[&log].log.key(),
            lineage: piece.lineage,
            place: piece.place,
            epoch: piece.epoch,
            base: piece.base,
            end: piece.end,
            len: piece.len as u32,
        }
    }

    pub(super) fn round_written(&mut self, result: Result<(), DiskError>, now: Tick) {
        let Some(round) = self.round.take() else { return };
        self.due.extend(round.pieces.iter().map(|(log, _)| *log));
        let waiting = std::mem::take(&mut self.due_after_round);
        self.due.extend(waiting);
        if let Err(error) = planted_result(result) {
            self.round_failed(round, error);
            return;
        }
        self.counts.round(round.bytes, round.pieces.len(), round.asked, now);
        self.latencies.written(round.batches, round.bytes);
        if round.dsync {
            self.latencies.synced(now.saturating_since(round.asked));
        }
        self.slots.all[round.slot].dirty |= !round.dsync;
        self.slots.all[round.slot].marked = true;
        for (log, piece) in round.pieces {
            self.settle(log, piece, now);
        }
        for note in round.notes {
            self.note_durable(note);
        }
        self.free_slots();
    }

    /// The slot is sealed for ever; the logs that had bytes in the round stop; the others go on in the next slot.
    fn round_failed(&mut self, round: RoundInFlight, error: DiskError) {
        self.trouble("a commit round", error);
        for (log, piece) in round.pieces {
            self.with(log, |log| log.piece_failed(piece, StopReason::RoundFailed));
            self.stop_log(log, StopReason::RoundFailed);
        }
        self.unmarked.extend(round.marked);
        for note in round.notes {
            self.note_failed(note);
        }
        self.slots.all[round.slot].failed = true;
        if self.slots.all[round.slot].state == SlotState::Open {
            self.close_slot();
            self.open_standing();
        }
    }
}
