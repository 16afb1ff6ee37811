//! The logs of a core: which shards they serve, what they settled, what they have to be asked. Scope: functions of a core.
//! Invariants: a durable shard is served only over its log and only when the admin thread said where that log comes from;
//! an answer to a publish is made from what the log settled; a log is deleted only on the admin thread's word.
//! Not here: the engines (`felix_logstore`), carrying out operations (`run`).

#[cfg(test)]
mod tests;

use std::time::Duration;

use felix_logstore::engine::{Event, Latencies, LogId, ReadError, ReadId};
use felix_logstore::id::ShardKey;
use felix_logstore::record::Batch;
use felix_logstore::retention::Retention;
use felix_runtime::clock::Tick;
use felix_runtime::file::{BufPool, DiskError, Done, Op, Token};
use felix_runtime::planted::{self, Defect};
use felix_wire::id::{Generation, Offset};

use super::core::Core;
use super::counters::Counter;
use crate::projection::producer::OwnIds;
use crate::shard::logged::page_of;
use crate::shard::mail::{Ending, FromShard, PageLoss, Reader, ShardOutput};
use crate::shard::{Shard, ShardCx};
use crate::snapshot::{FromCore, LogOrder, LogRole, ShardId};
use crate::store::{LogAt, LogSource, PageReader, Store, StoreSettings, VolumeStart};

type Quantile = fn(&Latencies) -> u64;

/// Parts of what engines have measured since they began.
const LOG_QUANTILES: [(Counter, Quantile); 7] = [
    (Counter::LogSettleP50, |l| l.settle_us.quantile(0.5)),
    (Counter::LogSettleP99, |l| l.settle_us.quantile(0.99)),
    (Counter::LogSyncP50, |l| l.sync_us.quantile(0.5)),
    (Counter::LogSyncP99, |l| l.sync_us.quantile(0.99)),
    (Counter::LogWriteBatchesP50, |l| l.write_batches.quantile(0.5)),
    (Counter::LogWriteBatchesP99, |l| l.write_batches.quantile(0.99)),
    (Counter::LogWriteBytesP50, |l| l.write_bytes.quantile(0.5)),
];

/// How often the figures of logs are added up: that looks at every log.
const FIGURES_EVERY: Duration = Duration::from_millis(250);

/// What engines count, in the order in which it is added up.
const LOG_FIGURES: [Counter; 24] = [
    Counter::LogRounds,
    Counter::LogRoundBytes,
    Counter::LogRoundPieces,
    Counter::LogRoundMicros,
    Counter::LogDirect,
    Counter::LogDirectBytes,
    Counter::LogDirectMicros,
    Counter::LogSpilledBytes,
    Counter::LogFlushes,
    Counter::LogRetired,
    Counter::LogRetiredBytes,
    Counter::LogTroubles,
    Counter::LogUnansweredEver,
    Counter::LogUnanswered,
    Counter::LogMemoryBytes,
    Counter::LogCommitBytes,
    Counter::LogCommitUsedBytes,
    Counter::LogSlotsReady,
    Counter::LogSlotsAside,
    Counter::LogPooled,
    Counter::LogPoolBytes,
    Counter::LogSegments,
    Counter::LogDiskBytes,
    Counter::LogsOpen,
];

/// A durable shard of this core as the routes name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    pub generation: Generation,
    pub key: ShardKey,
    pub retention: Retention,
}

impl Core {
    /// Gives the core its log engines. To be called once, before the first order about a log.
    ///
    /// # Errors
    /// Says which setting does not fit the others.
    pub fn open_store(
        &mut self,
        settings: StoreSettings,
        volumes: &[VolumeStart],
        pool: &BufPool,
        now: Tick,
    ) -> Result<(), &'static str> {
        self.next_retain = now + settings.retain_every;
        self.store = Some(Store::open(settings, self.id, volumes, pool, now)?);
        Ok(())
    }

    /// The next disk operation to carry out.
    pub fn poll_disk(&mut self) -> Option<(Token, Op)> {
        self.store.as_mut()?.poll_op()
    }

    /// An answer of the disk. `turn` is due afterwards.
    pub fn complete_disk(&mut self, now: Tick, done: Done) {
        if let Some(store) = &mut self.store {
            store.complete(now, done);
        }
    }

    /// Writes down what has to be and closes all logs. Nothing is served afterwards; `turn` goes on until
    /// `is_store_closed`.
    pub fn close_store(&mut self) {
        self.compacting.end();
        if let Some(store) = &mut self.store {
            store.close();
        }
    }

    /// Whether no log is open any more.
    pub fn is_store_closed(&self) -> bool {
        self.store.as_ref().is_none_or(Store::is_closed)
    }

    /// What the admin thread says about a log.
    pub(super) fn handle_log_order(&mut self, now: Tick, order: LogOrder) {
        match order {
            LogOrder::Open { key, volume, source } => {
                self.granted.insert(key, (volume, source));
                self.open_wanted(now);
            }
            LogOrder::Release { key } => {
                let granted = self.granted.remove(&key);
                if let Some(at) = self.stop_serving(now, key, Ending::Moved)
                    && let Some(engine) = self.store.as_mut().and_then(|store| store.engine(at))
                {
                    return engine.release(at.log);
                }
                // It was never opened here.
                if let Some((volume, source)) = granted {
                    self.tell_admin(FromCore::LogReleased { key, volume, source });
                }
            }
            LogOrder::Delete { key, volume, source } => {
                let granted = self.granted.remove(&key);
                self.stop_serving(now, key, Ending::Deleted);
                let Some(store) = &mut self.store else { return };
                let source = granted.map_or(source, |(_, source)| source);
                let config = store.log_config(Retention::default());
                let open = store.find(key);
                let source = (!matches!(source, LogSource::New)).then_some(source);
                if open.is_none() && source.is_none() {
                    // It was never made.
                    return self.tell_admin(FromCore::LogDeleted { key });
                }
                let at = open.or_else(|| store.bring(volume, key, source?, config));
                if let Some(at) = at
                    && let Some(engine) = store.engine(at)
                {
                    engine.delete(at.log);
                }
            }
        }
    }

    /// The shard over a log ends. Gives the log, if it is open here.
    fn stop_serving(&mut self, now: Tick, key: ShardKey, why: Ending) -> Option<LogAt> {
        let at = self.store.as_ref()?.find(key)?;
        self.close_logged(now, at, why);
        self.wanted.retain(|(_, wanted)| wanted.key != key);
        self.caches_wanted.retain(|(_, wanted)| !wanted.keys.contains(&key));
        Some(at)
    }

    /// The durable shards that the routes give to this core; those that are served already stay.
    pub(super) fn want_logged(&mut self, now: Tick, wanted: Vec<(ShardId, Wanted)>) {
        for (id, wanted) in &wanted {
            let Some(at) = self.shards.get(id).and_then(Shard::log) else { continue };
            let Some(store) = &mut self.store else { continue };
            let config = store.log_config(wanted.retention);
            if store.log(at).is_some_and(|log| log.config().retention != config.retention)
                && let Some(engine) = store.engine(at)
            {
                engine.configure(at.log, config);
            }
        }
        self.unmade.clear();
        self.wanted = wanted.into_iter().filter(|(id, _)| !self.shards.contains_key(id)).collect();
        self.open_wanted(now);
    }

    /// Serves the wanted shards whose log is there, stays, and has nothing in flight.
    pub(super) fn open_wanted(&mut self, now: Tick) {
        if self.wanted.is_empty() {
            return;
        }
        let ring = self.ring_limits();
        let own_ids = OwnIds::new(self.boot, self.cores);
        let Some(store) = &mut self.store else { return };
        let (granted, shards) = (&mut self.granted, &mut self.shards);
        let mut opened = false;
        self.wanted.retain(|(id, wanted)| {
            let config = store.log_config(wanted.retention);
            let at = store.find(wanted.key).or_else(|| {
                let (volume, source) = granted.remove(&wanted.key)?;
                store.bring(volume, wanted.key, source, config)
            });
            let Some(at) = at else { return true };
            let Some(shard) = Shard::open_logged(*id, wanted.generation, ring, (store, at), own_ids) else {
                return true;
            };
            store.serve(at, *id, LogRole::Records);
            shards.insert(*id, shard);
            opened = true;
            false
        });
        if opened {
            self.reroute_lanes(now);
        }
    }

    /// How many bytes to receive before the next turn. Of large batches for a log about one: the disk can have it while
    /// the next arrives. Small ones gather.
    pub fn receive_bytes(&self) -> usize {
        match &self.store {
            None => 1 << 20,
            Some(store) if store.takes_large_batches() => 256 << 10,
            Some(_) => 512 << 10,
        }
    }

    /// Lets the logs do what they can and takes what they tell.
    pub(super) fn run_store(&mut self, now: Tick) {
        let Some(store) = &mut self.store else { return };
        store.poll(now);
        while let Some((volume, event)) = self.store.as_mut().and_then(Store::poll_event) {
            self.take_log_event(now, volume, event);
        }
        if !self.shard_out.is_empty() {
            self.route_outputs(now);
        }
        self.open_wanted(now);
        self.open_caches(now);
    }

    fn take_log_event(&mut self, now: Tick, volume: u16, event: Event) {
        let at = |log: LogId| LogAt { volume, log };
        match event {
            Event::Settled { log, end } => self.log_settled(now, at(log), end),
            Event::Room { log } => match self.served_beside(at(log)) {
                Some((id, LogRole::Groups)) => self.groups_log_has_room(now, id),
                Some(served) => self.cache_log_has_room(now, served),
                None => self.with_logged(now, at(log), |shard, cx| shard.log_has_room(cx)),
            },
            Event::Stopped { log, reason, unknown_from } => {
                tracing::error!(%reason, %unknown_from, key = %self.key_of(at(log)), "a log stopped: its stream takes no writes until the broker is started again");
                match self.served_beside(at(log)) {
                    Some((id, LogRole::Groups)) => self.groups_log_stopped(now, id),
                    Some(served) => self.cache_log_stopped(now, served),
                    None => self.with_logged(now, at(log), |shard, cx| shard.log_stopped(cx.out)),
                }
            }
            Event::Page { log, read, batches } => self.page_read(now, at(log), read, &batches),
            Event::StartMoved { log, start } => {
                self.with_logged(now, at(log), |shard, _| shard.log_start_moved(start));
                self.tell_groups_of(now, at(log), Some(start));
                self.log_beside_starts(now, at(log), start);
            }
            Event::ReadFailed { log, read, error } => self.read_failed(now, at(log), read, &error),
            Event::CreateFailed { log, error } => {
                tracing::error!(%error, "a log could not be made; it is tried again");
                self.create_failed(now, at(log));
            }
            Event::Deleted { log, key } => {
                self.close_logged(now, at(log), Ending::Deleted);
                self.tell_admin(FromCore::LogDeleted { key });
            }
            Event::Released { log, machine } => {
                self.close_logged(now, at(log), Ending::Moved);
                let (key, source) = (machine.key(), LogSource::Moved(machine));
                self.tell_admin(FromCore::LogReleased { key, volume, source });
            }
            Event::Space { writes } => {
                let core = self.id;
                self.tell_admin(FromCore::Space { core, volume, writes });
            }
            Event::Unanswered { kind, count, oldest } => {
                let oldest_s = oldest.as_secs();
                tracing::error!(volume, kind, count, oldest_s, "the disk does not answer");
            }
            Event::DiskTrouble { what, error } => self.disk_trouble(volume, what, error),
            Event::Created { .. } | Event::Closed => {}
            Event::Cut { .. } | Event::CutFailed { .. } => {}
        }
    }

    /// A page that somebody wanted was read.
    fn page_read(&mut self, now: Tick, at: LogAt, read: ReadId, batches: &[Batch]) {
        let Some(page_for) = self.store.as_mut().and_then(|store| store.take_read(read)) else { return };
        match page_for.reader {
            PageReader::Subscription { to, token } => {
                let page = page_of(batches, page_for.from);
                let what = ShardOutput::Page { reader: Reader::CatchUp(token), page };
                self.answer_reader(page_for.shard, to, what);
            }
            PageReader::Numbers => self.with_logged(now, at, |shard, cx| shard.numbers_page(batches, cx)),
            PageReader::Asked { .. } | PageReader::State => {
                self.stream_page(now, at, page_for, Ok(batches));
            }
            PageReader::Replay(LogRole::Groups) | PageReader::Poll { .. } => {
                self.groups_page(now, page_for, Ok(batches));
            }
            PageReader::Compact => self.compaction_page(now, page_for, Ok(batches)),
            PageReader::Replay(_) | PageReader::Value { .. } | PageReader::Watch { .. } => {
                self.cache_page(now, page_for, Ok(batches));
            }
        }
    }

    fn disk_trouble(&mut self, volume: u16, what: &str, error: DiskError) {
        let hint = match error {
            DiskError::Missing => "; was the volume's folder moved away, or its drive unmounted?",
            _ => "",
        };
        tracing::error!(volume, %error, "disk trouble: {what}{hint}");
        if let Some(store) = &mut self.store {
            store.note_trouble(volume, error);
        }
    }

    /// A log could not be made, and nothing of it is there: its shard waits until it is tried again.
    fn create_failed(&mut self, now: Tick, at: LogAt) {
        match self.served_beside(at) {
            Some((id, LogRole::Groups)) => {
                let key = self.routes.route(id.stream).map(|route| route.log_key(LogRole::Groups, id.shard));
                // They are opened again when somebody asks for them.
                self.granted.extend(key.map(|key| (key, (at.volume, LogSource::New))));
                self.close_groups(now, id, Ending::Moved);
                return self.route_outputs(now);
            }
            Some(served) => return self.cache_create_failed(now, served, at.volume),
            None => {}
        }
        let id = self.store.as_ref().and_then(|store| store.served_by(at)).map(|(id, _)| id);
        let generation = id.and_then(|id| self.shards.get(&id)).map(Shard::generation);
        self.close_logged(now, at, Ending::Moved);
        let Some((id, generation)) = id.zip(generation) else { return };
        let Some((route, retention)) =
            self.routes.route(id.stream).and_then(|route| Some((route, route.log?)))
        else {
            return;
        };
        let key = route.log_key(LogRole::Records, id.shard);
        self.granted.insert(key, (at.volume, LogSource::New));
        self.unmade.push((id, Wanted { generation, key, retention }));
    }

    fn key_of(&self, at: LogAt) -> String {
        let log = self.store.as_ref().and_then(|store| store.log(at));
        log.map_or_else(String::new, |log| log.key().to_string())
    }

    /// What a log serves that does not hold the records of a stream.
    fn served_beside(&self, at: LogAt) -> Option<(ShardId, LogRole)> {
        let served = self.store.as_ref().and_then(|store| store.served_by(at));
        served.filter(|(_, role)| *role != LogRole::Records)
    }

    /// Runs `change` on the shard whose records a log holds.
    pub(super) fn with_logged(
        &mut self,
        now: Tick,
        at: LogAt,
        change: impl FnOnce(&mut Shard, &mut ShardCx<'_>),
    ) {
        let served = self.store.as_ref().and_then(|store| store.served_by(at));
        if let Some((id, LogRole::Records)) = served {
            self.with_shard(now, id, change);
        }
    }

    /// Runs `change` on a shard of this core.
    pub(super) fn with_shard(
        &mut self,
        now: Tick,
        id: ShardId,
        change: impl FnOnce(&mut Shard, &mut ShardCx<'_>),
    ) {
        let Some(shard) = self.shards.get_mut(&id) else { return };
        let before = shard.ring_bytes();
        let mut cx = ShardCx {
            free_bytes: self.limits.rings_bytes_max.saturating_sub(self.rings_bytes),
            store: self.store.as_mut(),
            unix_ms: self.unix_ms,
            now,
            out: &mut self.shard_out,
        };
        change(shard, &mut cx);
        self.rings_bytes = self.rings_bytes + shard.ring_bytes() - before;
        if self.dirty.last() != Some(&id) {
            self.dirty.push(id);
        }
    }

    fn log_settled(&mut self, now: Tick, at: LogAt, mut end: Offset) {
        if planted::is(Defect::UnsettledServed) {
            end = self.store.as_ref().and_then(|store| store.log(at)).map_or(end, |log| log.claimed_end());
        }
        match self.served_beside(at) {
            Some((id, LogRole::Groups)) => self.groups_settled(now, id, end),
            Some(served) => self.cache_settled(now, served, end),
            None => {
                self.with_logged(now, at, |shard, cx| shard.settled(end, cx));
                self.tell_groups_of(now, at, None);
            }
        }
    }

    /// The records in a log end elsewhere now, or begin there.
    fn tell_groups_of(&mut self, now: Tick, at: LogAt, start: Option<Offset>) {
        let served = self.store.as_ref().and_then(|store| store.served_by(at));
        if let Some((id, LogRole::Records)) = served {
            self.tell_groups(now, id, start);
        }
    }

    fn answer_reader(&mut self, id: ShardId, to: felix_wire::id::CoreId, what: ShardOutput) {
        // A shard that is gone has ended its subscriptions.
        let Some(shard) = self.shards.get(&id) else { return };
        self.shard_out.push((to, FromShard { shard: id, generation: shard.generation(), what }));
    }

    fn read_failed(&mut self, now: Tick, at: LogAt, read: ReadId, error: &ReadError) {
        let Some(page_for) = self.store.as_mut().and_then(|store| store.take_read(read)) else { return };
        let why = match error {
            ReadError::TooOld { start } => PageLoss::TooOld(*start),
            error => {
                self.counters.add(Counter::LogReadErrors, 1);
                tracing::error!(%error, "a range of a log cannot be read");
                match error {
                    ReadError::Damaged { from, next, .. } => PageLoss::Damaged { from: *from, next: *next },
                    _ => PageLoss::Unreadable,
                }
            }
        };
        match page_for.reader {
            PageReader::Subscription { to, token } => {
                self.answer_reader(page_for.shard, to, ShardOutput::PageLost { token, why });
            }
            PageReader::Numbers => self.with_logged(now, at, |shard, cx| shard.numbers_lost(why, cx)),
            PageReader::Asked { .. } | PageReader::State => self.stream_page(now, at, page_for, Err(why)),
            PageReader::Replay(LogRole::Groups) | PageReader::Poll { .. } => {
                self.groups_page(now, page_for, Err(&why));
            }
            PageReader::Compact => self.compaction_page(now, page_for, Err(&why)),
            PageReader::Replay(_) | PageReader::Value { .. } | PageReader::Watch { .. } => {
                self.cache_page(now, page_for, Err(&why));
            }
        }
    }

    /// Ends the shard that a log serves, if it does.
    fn close_logged(&mut self, now: Tick, at: LogAt, why: Ending) {
        let Some(store) = &mut self.store else { return };
        let Some((id, role)) = store.served_by(at) else { return };
        store.unserve(at);
        match role {
            LogRole::Records => self.close_shard(now, id, why),
            LogRole::Cache | LogRole::Counters => self.close_cache(now, id, why),
            LogRole::Groups => {
                self.close_groups(now, id, why);
                self.route_outputs(now);
            }
        }
    }

    /// Ends a shard: what it owes is answered and its subscriptions are told.
    pub(super) fn close_shard(&mut self, now: Tick, id: ShardId, why: Ending) {
        self.close_groups(now, id, why);
        self.close_leases(id);
        if let Some(mut shard) = self.shards.remove(&id) {
            if let Some((at, store)) = shard.log().zip(self.store.as_mut()) {
                store.unserve(at);
            }
            shard.close(why, &mut self.shard_out);
            self.rings_bytes -= shard.ring_bytes();
            self.rings_moved = true;
        }
        self.route_outputs(now);
    }

    /// Retention, when it is due, shards that wait for their log, and what the logs have counted.
    pub(super) fn sweep_store(&mut self, now: Tick) {
        self.open_wanted(now);
        self.give_up_late(now);
        let Some(store) = &mut self.store else { return };
        if now >= self.next_retain {
            self.next_retain = now + store.settings().retain_every;
            store.retain(self.unix_ms);
        }
        if now >= self.next_log_figures {
            self.next_log_figures = now + FIGURES_EVERY;
            self.wanted.append(&mut self.unmade);
            self.caches_wanted.append(&mut self.caches_unmade);
            self.set_log_figures();
        }
    }

    /// Answers the publishes that the disk has not confirmed in time, and requests that have waited for too long.
    fn give_up_late(&mut self, now: Tick) {
        let (room, wait) = (self.limits.publish_queue_wait, self.limits.publish_confirm_wait);
        for shard in self.shards.values_mut().filter(|shard| shard.log().is_some()) {
            shard.give_up_late(now, wait, &mut self.shard_out);
            shard.expire_asked(now, room, &mut self.shard_out);
        }
        if !self.shard_out.is_empty() {
            self.route_outputs(now);
        }
    }

    /// What the engines have counted, as numbers of the core.
    fn set_log_figures(&self) {
        let Some(store) = &self.store else { return };
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let (mut free, mut writable) = (u64::MAX, true);
        let mut sums = [0u64; LOG_FIGURES.len()];
        let mut worst = [0u64; LOG_QUANTILES.len()];
        for engine in store.engines() {
            let (counts, gauges) = (engine.counts(), engine.gauges());
            let (segments, disk_bytes) = engine.disk_use();
            free = free.min(counts.free_bytes);
            writable &= engine.has_space();
            let figures = [
                counts.rounds,
                counts.round_bytes,
                counts.round_pieces,
                micros(counts.round_time),
                counts.direct,
                counts.direct_bytes,
                micros(counts.direct_time),
                counts.spilled_bytes,
                counts.flushes,
                counts.retired,
                counts.retired_bytes,
                counts.troubles,
                counts.unanswered,
                gauges.unanswered as u64,
                gauges.memory_bytes as u64,
                gauges.commit_bytes,
                gauges.commit_used_bytes,
                gauges.slots_ready as u64,
                gauges.slots_aside as u64,
                gauges.pooled as u64,
                gauges.pool_bytes,
                segments,
                disk_bytes,
                gauges.logs as u64,
            ];
            for (worst, (_, quantile)) in worst.iter_mut().zip(LOG_QUANTILES) {
                *worst = (*worst).max(quantile(engine.latencies()));
            }
            for (sum, figure) in sums.iter_mut().zip(figures) {
                *sum += figure;
            }
        }
        for (counter, sum) in LOG_FIGURES.iter().zip(sums) {
            self.counters.set(*counter, sum);
        }
        for ((counter, _), worst) in LOG_QUANTILES.iter().zip(worst) {
            self.counters.set(*counter, worst);
        }
        self.counters.set(Counter::LogFreeBytes, free);
        self.counters.set(Counter::LogWritable, u64::from(writable));
    }
}
