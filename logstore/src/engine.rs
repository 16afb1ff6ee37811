//! Writes the logs of one core to one volume. Scope: one per (core, volume), on the core that owns it.
//! Owns: the logs, the commit file, the pool of segment files, the memory bound, what is poisoned.
//! Invariants: at most one round is in flight; a log has pieces in flight on one of the two ways only, so they settle in
//! order; an operation that failed is never tried again on the same file; nothing here waits.
//! Not here: carrying out operations: the caller takes them from [`Engine::poll_op`] and gives answers to
//! [`Engine::complete`]; recovery, which ends before an engine begins.

mod changes;
mod commit;
mod config;
mod counts;
mod directs;
mod event;
mod flush;
mod latency;
mod page;
mod pool;
mod reads;
mod reserve;
mod scripts;
mod seek;
mod slots;
mod space;
mod spill;
mod stop;
mod tend;
mod waits;
mod write;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::num::NonZeroU32;

use felix_runtime::clock::Tick;
use felix_runtime::file::{BufPool, DiskError, Done, Op, Token};
use felix_wire::id::Offset;

use crate::checksum::Epoch;
use crate::commit::{Mark, MarkKind};
use crate::id::ShardKey;
use crate::limits::{BATCH_BYTES_MAX, BATCH_RECORDS_MAX};
use crate::log::{AppendMeta, Claim, ClaimError, CutPoint, Log, LogConfig, StopReason};
use crate::names;
use crate::record::{Batch, BatchKind, encoded_len};
use crate::script::{Desk, Scripts};

pub use config::EngineConfig;
pub use counts::{Counts, Gauges};
use directs::Directs;
pub use event::{Event, LogId, ReadError, ReadId};
pub use latency::{BUCKETS, Histogram, Latencies};
pub use reserve::Reservations;
use scripts::Ended;
use slots::{Slots, Ways};

/// One log may hold this part of the memory: one whose segment does not answer leaves the rest to the others.
const LOG_MEMORY_SHARE: usize = 2;

/// A log with what the engine does for it.
struct Shard {
    log: Log,
    /// Its directory is durable.
    made: bool,
    /// A segment is being made.
    making_segment: bool,
    /// The last attempt to make one failed for lack of space; another is made when there is space.
    starved: bool,
    /// The next one may be made of what is kept free: what is written to it lets others go.
    frees: bool,
    /// Bytes of a batch that found no room in a segment.
    need_bytes: usize,
    /// Bytes of a batch that found none in memory.
    memory_need: usize,
    /// Somebody waits for `Event::Room`.
    wants_room: bool,
    /// In the queue of logs with batches to submit.
    queued: bool,
    /// Its last piece gathered several batches and went straight to the segment: the next is given time to do so too.
    gathers: bool,
    /// A ceiling is on its way.
    ceiling_asked: bool,
    flushing: bool,
    /// A change that waits until nothing of the log is in flight.
    change: Option<changes::Change>,
    told_stopped: bool,
    /// A segment it gave up, for its next one.
    kept: pool::Kept,
    /// The recovery slot or another core's slots may name it, so its end must be remembered.
    known_elsewhere: bool,
}

/// A mark to be written with the next round, and what follows when it is durable.
struct Note {
    mark: Mark,
    then: NoteThen,
}

enum NoteThen {
    Nothing,
    Ceiling { log: LogId, ceiling: Offset },
    Start { log: LogId, start: Offset },
    Cut { log: LogId, point: CutPoint },
    Deleted { log: LogId },
    Released { log: LogId },
}

/// The engine. See the module.
pub struct Engine {
    config: EngineConfig,
    desk: Desk,
    scripts: Scripts<Ended>,
    logs: BTreeMap<LogId, Shard>,
    by_key: BTreeMap<ShardKey, LogId>,
    next_log: u64,
    next_epoch: u64,
    slots: Slots,
    round: Option<commit::RoundInFlight>,
    next_round: u64,
    /// Logs of the round before, for the next one's list.
    prior: Vec<LogId>,
    notes: VecDeque<Note>,
    /// Logs whose durable end no round names yet.
    unmarked: BTreeSet<LogId>,
    /// Logs to be looked at in the next turn.
    due: BTreeSet<LogId>,
    /// Logs to be looked at when the round in flight is over.
    due_after_round: BTreeSet<LogId>,
    /// Logs with batches to submit, in the order in which they came.
    ready: VecDeque<LogId>,
    /// Marks of logs that are gone, as long as an older slot may name them.
    tombstones: Vec<changes::Tombstone>,
    spills: spill::Spills,
    reads: reads::Reads,
    memory_bytes: usize,
    /// A claim waits for memory that the open slot may hold.
    memory_wanted: bool,
    /// Pieces on their way straight to segments.
    directs: Directs,
    pool: pool::Pool,
    space_ok: bool,
    space: space::Space,
    next_space: Tick,
    next_flush: Tick,
    flushes: flush::Flushes,
    /// Logs with `Fsync::Periodic` that have settled more than is durable, as far as is known.
    behind: BTreeSet<LogId>,
    /// Logs of which somebody waits for room.
    room_waits: BTreeSet<LogId>,
    last_settle: Tick,
    /// When it was last called with a time.
    now: Tick,
    waits: waits::Waits,
    closing: stop::Closing,
    counts: Counts,
    latencies: Latencies,
    events: VecDeque<Event>,
}

impl Engine {
    /// An engine without logs. Its slots are made by its first operations.
    ///
    /// # Errors
    /// Says which bound does not fit the others.
    pub fn new(config: EngineConfig, pool: BufPool, now: Tick) -> Result<Engine, &'static str> {
        config.check()?;
        let desk = Desk::new(config.first_token, pool, config.reservations.clone());
        let mut engine = Engine {
            scripts: Scripts::new(desk.clone()),
            desk,
            logs: BTreeMap::new(),
            by_key: BTreeMap::new(),
            next_log: 1,
            next_epoch: config.entropy,
            slots: Slots::default(),
            round: None,
            next_round: 1,
            prior: Vec::new(),
            notes: VecDeque::new(),
            unmarked: BTreeSet::new(),
            due: BTreeSet::new(),
            due_after_round: BTreeSet::new(),
            ready: VecDeque::new(),
            tombstones: Vec::new(),
            spills: spill::Spills::default(),
            reads: reads::Reads::default(),
            memory_bytes: 0,
            memory_wanted: false,
            directs: Directs::default(),
            pool: pool::Pool::default(),
            space_ok: true,
            space: space::Space::new(config.reservations.clone()),
            next_space: now,
            next_flush: now + config.flush_every,
            flushes: flush::Flushes::default(),
            behind: BTreeSet::new(),
            room_waits: BTreeSet::new(),
            last_settle: now,
            now,
            waits: waits::Waits::default(),
            closing: stop::Closing::No,
            counts: Counts::default(),
            latencies: Latencies::default(),
            events: VecDeque::new(),
            config,
        };
        for _ in 0..engine.config.slots {
            engine.space.take(engine.config.slot_bytes);
            engine.make_slot();
        }
        Ok(engine)
    }

    /// Makes a log that never was. `Created` or `CreateFailed` follows; claims are refused until then.
    /// None when the key is there already, or the engine has as many logs as its slots can name.
    pub fn create(&mut self, key: ShardKey, config: LogConfig) -> Option<LogId> {
        let log = self.insert(Log::new(key, config), false)?;
        let (desk, dir) = (self.desk.clone(), names::shard(self.config.volume, key));
        if let Some(shard) = self.logs.get_mut(&log) {
            // No segment is made before the directory is there.
            shard.making_segment = true;
        }
        self.scripts.start(async move {
            let result = scripts::make_log(&desk, dir).await;
            Ended::LogMade { log, result }
        });
        Some(log)
    }

    /// Takes over a log that recovery found or another core released. Its segments are opened when they are needed.
    /// None as for [`Engine::create`].
    pub fn adopt(&mut self, log: Log) -> Option<LogId> {
        let id = self.insert(log, true)?;
        let mark = self.logs.get(&id)?.log.mark(MarkKind::State);
        self.notes.push_back(Note { mark, then: NoteThen::Nothing });
        self.due.insert(id);
        Some(id)
    }

    fn insert(&mut self, log: Log, known_elsewhere: bool) -> Option<LogId> {
        let full = self.logs.len() + self.tombstones.len() >= self.config.logs_max();
        if full || self.by_key.contains_key(&log.key()) || self.closing != stop::Closing::No {
            return None;
        }
        let id = LogId(self.next_log);
        self.next_log += 1;
        self.by_key.insert(log.key(), id);
        self.memory_bytes += log.memory_bytes();
        let shard = Shard {
            log,
            made: known_elsewhere,
            making_segment: false,
            starved: false,
            frees: false,
            need_bytes: 0,
            memory_need: 0,
            wants_room: false,
            queued: false,
            gathers: false,
            ceiling_asked: false,
            flushing: false,
            change: None,
            told_stopped: false,
            kept: pool::Kept::None,
            known_elsewhere,
        };
        self.logs.insert(id, shard);
        Some(id)
    }

    /// The log with that key.
    #[must_use]
    pub fn find(&self, key: ShardKey) -> Option<LogId> {
        self.by_key.get(&key).copied()
    }

    /// A log as it stands.
    #[must_use]
    pub fn log(&self, log: LogId) -> Option<&Log> {
        self.logs.get(&log).map(|shard| &shard.log)
    }

    /// Whether a log is on its way out of this engine: it was released or deleted, and `Released` or `Deleted` follows. It is found
    /// until then, and nothing may begin that relies on it. A log that stopped is not released.
    #[must_use]
    pub fn is_leaving(&self, log: LogId) -> bool {
        self.logs.get(&log).is_some_and(changes::is_leaving)
    }

    /// Changes rolling and retention of a log; its fsync policy stays.
    pub fn configure(&mut self, log: LogId, config: LogConfig) {
        if let Some(shard) = self.logs.get_mut(&log) {
            shard.log.set_config(config);
            self.due.insert(log);
        }
    }

    /// Takes the next `count` offsets of `log` for a batch with `payload_bytes` in all.
    ///
    /// # Errors
    /// Nothing was taken. After `NoRoom` an `Event::Room` says when to try again.
    pub fn claim(
        &mut self,
        log: LogId,
        kind: BatchKind,
        count: NonZeroU32,
        payload_bytes: usize,
    ) -> Result<Claim, ClaimError> {
        self.claim_if(self.has_space(), log, kind, (count, payload_bytes))
    }

    /// The same for data that lets older segments go once it is durable. It is not refused for want of space: then it may
    /// have a segment of half of what is kept free. What is claimed so must not be more than what goes.
    ///
    /// # Errors
    /// As [`Engine::claim`].
    pub fn claim_freeing(
        &mut self,
        log: LogId,
        count: NonZeroU32,
        payload_bytes: usize,
    ) -> Result<Claim, ClaimError> {
        let short = !self.space_ok;
        let no_slots = self.slots.ways() == Ways::Nowhere;
        let shard = self.logs.get_mut(&log).ok_or(ClaimError::Unknown)?;
        if no_slots || (shard.starved && !short) {
            return Err(ClaimError::NoSpace);
        }
        shard.starved = false;
        let claim = self.claim_if(true, log, BatchKind::Data, (count, payload_bytes));
        if let Some(shard) = self.logs.get_mut(&log) {
            shard.frees = short && matches!(claim, Err(ClaimError::NoRoom));
        }
        claim
    }

    fn claim_if(
        &mut self,
        space: bool,
        log: LogId,
        kind: BatchKind,
        (count, payload_bytes): (NonZeroU32, usize),
    ) -> Result<Claim, ClaimError> {
        let refused = self.closing != stop::Closing::No;
        let coming = self.slots.ways() == Ways::Coming;
        let stalled = self.is_stalled(log) || coming;
        let shard = self.logs.get_mut(&log).ok_or(ClaimError::Unknown)?;
        if shard.change.is_some() || refused {
            return Err(ClaimError::Stopped(StopReason::Closing));
        }
        if shard.log.stopped().is_none() && !space {
            return Err(ClaimError::NoSpace);
        }
        if shard.starved {
            return Err(ClaimError::NoSpace);
        }
        let need = encoded_len(count.get() as usize, payload_bytes.min(u32::MAX as usize));
        if need > BATCH_BYTES_MAX as usize || (kind != BatchKind::Skip && count.get() > BATCH_RECORDS_MAX) {
            return Err(ClaimError::TooLarge);
        }
        let over = |held: usize, max: usize| held > 0 && held.saturating_add(need) > max;
        let max = self.config.memory_bytes_max;
        if stalled || over(self.memory_bytes, max) || over(shard.log.memory_bytes(), max / LOG_MEMORY_SHARE) {
            shard.wants_room = true;
            shard.memory_need = need;
            if coming {
                // Its segment is made meanwhile.
                shard.need_bytes = need;
            }
            self.room_waits.insert(log);
            // What waits in the open slot would wait for ever if nothing more came.
            self.memory_wanted |= !stalled;
            self.due.insert(log);
            return Err(ClaimError::NoRoom);
        }
        let claim = shard.log.claim(kind, count, payload_bytes);
        if matches!(claim, Err(ClaimError::NoRoom)) {
            shard.wants_room = true;
            shard.need_bytes = need;
            self.room_waits.insert(log);
        }
        self.due.insert(log);
        claim
    }

    /// Appends the batch of a claim; it is on its way after the next [`Engine::poll`]. Gives the batch, whose bytes are those
    /// on disk. None when the log is gone: then nothing of it will ever be there.
    pub fn append<'a>(
        &mut self,
        log: LogId,
        claim: Claim,
        meta: AppendMeta,
        records: impl Iterator<Item = (u64, &'a [u8])>,
    ) -> Option<Batch> {
        let batch = self.with(log, |log| log.append(claim, meta, records))?;
        self.due.insert(log);
        Some(batch)
    }

    /// Has the next claim of `log` begin a new segment, so that the one that serves can be let go of some day.
    pub fn roll(&mut self, log: LogId) {
        self.with(log, Log::roll);
        self.due.insert(log);
    }

    /// Makes durable what `log` has settled, whatever its policy: its durable end tells when. Nothing more happens while that
    /// is under way.
    pub fn make_durable(&mut self, log: LogId) {
        let Some(shard) = self.logs.get(&log) else { return };
        let behind = shard.log.durable_end() < shard.log.settled_end();
        if behind && !shard.flushing && shard.log.stopped().is_none() {
            self.flush(vec![log]);
        }
    }

    /// Runs `change` on a log and keeps the count of memory.
    fn with<T>(&mut self, log: LogId, change: impl FnOnce(&mut Log) -> T) -> Option<T> {
        let shard = self.logs.get_mut(&log)?;
        let before = shard.log.memory_bytes();
        let out = change(&mut shard.log);
        self.memory_bytes = self.memory_bytes + shard.log.memory_bytes() - before;
        Some(out)
    }

    /// Does everything that can be done now. To be called after claims, appends and answers, and at [`Engine::next_timeout`].
    pub fn poll(&mut self, now: Tick) {
        self.now = now;
        self.scripts.retry_starved();
        self.take_ended(now);
        self.tend_timers(now);
        loop {
            while let Some(log) = self.due.pop_first() {
                self.tend(log, now);
            }
            self.submit(now);
            self.free_memory();
            self.spill();
            self.take_ended(now);
            if self.due.is_empty() {
                break;
            }
        }
        self.tend_stalls();
        self.tend_fill(now);
        self.tend_waits(now);
        self.tend_closing();
        self.tell_room();
    }

    /// A claim waits for memory: the open slot is closed, so that what it holds goes to its segments and leaves memory. When
    /// nothing more was written it would stay there.
    fn free_memory(&mut self) {
        if !self.memory_wanted || self.round.is_some() {
            return;
        }
        let holds = self.slots.open().is_some_and(|open| !self.slots.all[open].logs.is_empty());
        if holds && self.slots.find(slots::SlotState::Standing).is_none() {
            return;
        }
        self.memory_wanted = false;
        if holds {
            self.close_slot();
            self.open_standing();
        }
    }

    /// The next operation to carry out.
    pub fn poll_op(&mut self) -> Option<(Token, Op)> {
        let (token, op) = self.desk.poll_op()?;
        self.waits.asked(self.now, token, &op);
        Some((token, op))
    }

    /// The next thing to tell.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Takes an answer. [`Engine::poll`] is due afterwards. False when the token is not of this engine.
    pub fn complete(&mut self, now: Tick, done: Done) -> bool {
        self.now = now;
        self.waits.answered(done.token);
        let ours = self.scripts.answer(done);
        self.take_ended(now);
        ours
    }

    /// When [`Engine::poll`] is due even if nothing happens.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Tick> {
        let can_write = self.round.is_none() && self.slots.open().is_some();
        let idle =
            (can_write && !self.unmarked.is_empty()).then(|| self.last_settle + self.config.idle_after);
        let extra = self.extra_slot_due().filter(|due| *due > self.now);
        let flush = (self.flushes.is_free() && !self.behind.is_empty()).then_some(self.next_flush);
        // While the volume has not answered there is nothing to do about its space.
        let space = (!self.space.is_asking()).then_some(self.next_space);
        let of_parts = [self.pool.next_timeout(), self.directs.next_timeout(), self.waits.next_timeout()];
        [space, idle, flush, extra].into_iter().chain(of_parts).flatten().min()
    }

    /// Bytes of all logs in memory on their way to segments.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.memory_bytes
    }

    /// What it has done so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// How long its writes took, and how much went together.
    #[must_use]
    pub fn latencies(&self) -> &Latencies {
        &self.latencies
    }

    /// Where it stands.
    #[must_use]
    pub fn gauges(&self) -> Gauges {
        let slots = self.slots.gauges();
        let kept = || self.logs.values().filter_map(|shard| shard.kept.bytes());
        Gauges {
            logs: self.logs.len(),
            memory_bytes: self.memory_bytes,
            pooled: self.pool.len() + kept().count(),
            pool_bytes: self.pool.bytes() + kept().sum::<u64>(),
            reads: self.reads.under_way(),
            unanswered: self.waits.count(self.now),
            commit_bytes: slots.slots as u64 * self.config.slot_bytes,
            ..slots
        }
    }

    /// Whether the volume has space for writes, as far as is known, and a slot they can go to.
    #[must_use]
    pub fn has_space(&self) -> bool {
        self.space_ok && self.slots.ways() != Ways::Nowhere
    }

    /// Logs that have failed and take no writes until the process has started again. Looks at every log.
    #[must_use]
    pub fn stopped_logs(&self) -> usize {
        self.logs
            .values()
            .filter(|shard| shard.log.stopped().is_some_and(|why| why != StopReason::Closing))
            .count()
    }

    /// Segments of all logs and the bytes of their files. Looks at every log.
    #[must_use]
    pub fn disk_use(&self) -> (u64, u64) {
        let of_log =
            |shard: &Shard| (shard.log.sealed().count() + shard.log.open().count(), shard.log.disk_bytes());
        let logs = self.logs.values().map(of_log);
        logs.fold((0, 0), |(segments, bytes), (more, disk)| (segments + more as u64, bytes + disk))
    }

    fn trouble(&mut self, what: &'static str, error: DiskError) {
        self.counts.troubles += 1;
        self.events.push_back(Event::DiskTrouble { what, error });
    }

    /// Whether anything is under way.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.scripts.is_empty() && self.ready.is_empty() && self.notes.is_empty() && self.due.is_empty()
    }

    /// A number for the next use of a file. Splitmix over the entropy of the start: two uses have different ones.
    fn take_epoch(&mut self) -> Epoch {
        self.next_epoch = self.next_epoch.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.next_epoch;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Epoch(word ^ (word >> 31))
    }

    fn take_ended(&mut self, now: Tick) {
        while let Some(ended) = self.scripts.poll_ended() {
            self.handle(ended, now);
        }
    }

    fn handle(&mut self, ended: Ended, now: Tick) {
        match ended {
            Ended::SlotMade { index, files } => self.slot_made(index, files),
            Ended::SlotOpened { index, result } => self.slot_opened(index, result),
            Ended::RoundWritten { result } => self.round_written(result, now),
            Ended::PieceWritten { log, written, result } => self.piece_written(log, written, result, now),
            Ended::LogMade { log, result } => self.log_made(log, result),
            Ended::SegmentMade { log, made } => self.segment_made(log, made),
            Ended::HeadWritten { log, head, result } => self.head_written(log, &head, result),
            Ended::RunSpilled { slot, log, run, result } => self.run_spilled(slot, log, run, result),
            Ended::SegmentSynced { slot, log, result } => self.segment_synced(slot, log, result),
            Ended::SlotsSynced { logs, results, asked } => {
                self.latencies.synced(now.saturating_since(asked));
                self.slots_synced(logs, results);
            }
            Ended::Flushed { log, point, result, asked } => {
                self.latencies.synced(now.saturating_since(asked));
                self.segments_flushed(log, point, result);
            }
            Ended::Page { read, log, page } => self.page_read(read, log, *page),
            Ended::CutFound { log, point } => self.cut_found(log, point),
            Ended::Space { free_bytes, made } => self.space_told(free_bytes, made),
            Ended::PoolEmptied => self.pool_emptied(),
            Ended::FillBegun { result } => self.fill_begun(result, now),
            Ended::FillWritten { result } => self.fill_written(result, now),
            Ended::Filled { path, size_bytes, result } => self.filled(path, size_bytes, result),
            Ended::Pooled { path, size_bytes, result } => self.pooled(path, size_bytes, result),
            Ended::Kept { log, path, size_bytes } => self.kept(log, path, size_bytes),
            Ended::Removed { key, result } => self.log_removed(key, result),
            Ended::LogClosed { log, machine } => self.events.push_back(Event::Released { log, machine }),
            Ended::Tidied => {}
            Ended::AllClosed => self.all_closed(),
        }
    }

    /// A log failed: its claims are refused, what it had in flight is in doubt.
    fn stop_log(&mut self, log: LogId, reason: StopReason) {
        if reason == StopReason::SegmentFailed {
            self.slots.pin(log);
        }
        self.with(log, |log| log.stop(reason));
        if let Some(shard) = self.logs.get_mut(&log)
            && !shard.told_stopped
        {
            shard.told_stopped = true;
            let unknown_from = shard.log.settled_end();
            self.events.push_back(Event::Stopped { log, reason, unknown_from });
        }
    }

    /// Tells those who wait that there is room, when there is, or that they would be refused now.
    fn tell_room(&mut self) {
        let max = self.config.memory_bytes_max;
        let refused = !self.has_space();
        let coming = self.slots.ways() == Ways::Coming;
        if self.memory_bytes * 8 > max * 7 && !refused {
            return;
        }
        let waiting: Vec<LogId> = self.room_waits.iter().copied().collect();
        for log in waiting {
            let stalled = coming || self.is_stalled(log);
            let Some(shard) = self.logs.get_mut(&log) else {
                self.room_waits.remove(&log);
                continue;
            };
            let under = |held: usize, max: usize| held == 0 || held.saturating_add(shard.memory_need) <= max;
            let fits =
                under(self.memory_bytes, max) && under(shard.log.memory_bytes(), max / LOG_MEMORY_SHARE);
            let room = fits && shard.log.has_room(shard.need_bytes) && !stalled;
            if room || refused || shard.starved {
                shard.wants_room = false;
                shard.need_bytes = 0;
                shard.memory_need = 0;
                self.room_waits.remove(&log);
                self.events.push_back(Event::Room { log });
            }
        }
    }
}
