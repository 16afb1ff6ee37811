//! The shards of caches of a core: opening them over their logs, what their logs tell, their share of the memory.
//! Scope: functions of a core.
//! Invariants: a durable shard of a cache is served only over both of its logs, and only when the admin thread said where
//! they come from; the memory for values is shared evenly among the shards there are.
//! Not here: what a request does (`shard::cache`), who asks (`turn::asking`).

use std::collections::BTreeMap;

use felix_logstore::id::ShardKey;
use felix_logstore::record::Batch;
use felix_runtime::clock::Tick;
use felix_wire::id::{CoreId, Generation, Offset};

use super::core::Core;
use super::counters::Counter;
use crate::shard::ShardCx;
use crate::shard::ask::{Ask, AskToken, Asker};
use crate::shard::cache::CacheShard;
use crate::shard::mail::{Ending, FromShard, PageLoss, ShardOutput};
use crate::snapshot::{LogRole, ShardId};
use crate::store::{LogAt, LogSource, PageFor, PageReader};

/// Offsets of a shard in memory begin at so many for each millisecond since 1970: more than it writes in one, and few enough
/// that a double holds them until 2039.
const OFFSETS_PER_MS: u64 = 1 << 12;
/// Least memory of a shard of a cache, however many there are.
const SHARD_BYTES_MIN: usize = 64 << 10;

/// A durable shard of a cache as the routes name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CacheWanted {
    pub generation: Generation,
    /// Of the log of the cache and of that of its counters.
    pub keys: [ShardKey; 2],
}

/// The shards of caches that the routes give to this core.
#[derive(Debug, Default)]
pub(super) struct CachesLed {
    pub in_memory: Vec<(ShardId, Generation)>,
    pub logged: Vec<(ShardId, CacheWanted)>,
}

impl Core {
    /// A request for a shard of this core.
    pub(super) fn handle_cache_ask(
        &mut self,
        now: Tick,
        (from, token): (CoreId, AskToken),
        (id, generation): (ShardId, Generation),
        ask: Ask,
    ) {
        let mut ask = Some(ask);
        let asker = Asker { core: from, token };
        self.with_cache(now, id, |cache, cx| {
            if cache.generation() == generation
                && let Some(ask) = ask.take()
            {
                cache.ask(asker, ask, cx);
            }
        });
        // It is not served here, or not any more.
        if let Some(ask) = ask {
            let what = ShardOutput::AskBack { token, ask };
            self.shard_out.push((from, FromShard { shard: id, generation, what }));
        }
    }

    /// The shards of caches of new routes: others end, these are opened as soon as they can be.
    pub(super) fn lead_caches(&mut self, now: Tick, led: CachesLed, is_there: impl Fn(ShardId) -> bool) {
        let CachesLed { in_memory, logged } = led;
        let of_logged = logged.iter().map(|(id, wanted)| (*id, wanted.generation));
        let named: BTreeMap<ShardId, Generation> = in_memory.iter().copied().chain(of_logged).collect();
        let gone: Vec<ShardId> = self
            .caches
            .iter()
            .filter(|(id, cache)| named.get(id) != Some(&cache.generation()))
            .map(|(id, _)| *id)
            .collect();
        for id in gone {
            self.close_cache(now, id, if is_there(id) { Ending::Moved } else { Ending::Deleted });
        }
        let start = Offset(self.unix_ms.saturating_mul(OFFSETS_PER_MS));
        for (id, generation) in in_memory {
            let open = || CacheShard::in_memory(id, generation, SHARD_BYTES_MIN, start);
            self.caches.entry(id).or_insert_with(open);
        }
        self.caches_unmade.clear();
        self.caches_wanted = logged.into_iter().filter(|(id, _)| !self.caches.contains_key(id)).collect();
        self.open_caches(now);
        self.share_cache_memory();
    }

    /// Opens the wanted shards whose logs are there and have nothing in flight.
    pub(super) fn open_caches(&mut self, now: Tick) {
        if self.caches_wanted.is_empty() {
            return;
        }
        let Some(store) = &mut self.store else { return };
        let (granted, caches, lives) = (&mut self.granted, &mut self.caches, &mut self.lives);
        let mut opened = Vec::new();
        self.caches_wanted.retain(|(id, wanted)| {
            let at = wanted.keys.map(|key| {
                store.find(key).or_else(|| {
                    let (volume, source) = granted.remove(&key)?;
                    let config = store.whole_config();
                    store.bring(volume, key, source, config)
                })
            });
            let [Some(cache_log), Some(counter_log)] = at else { return true };
            *lives += 1;
            let life = (*id, wanted.generation, *lives);
            let Some(cache) = CacheShard::over_logs(life, store, (cache_log, counter_log), SHARD_BYTES_MIN)
            else {
                return true;
            };
            store.serve(cache_log, *id, LogRole::Cache);
            store.serve(counter_log, *id, LogRole::Counters);
            caches.insert(*id, cache);
            opened.push(*id);
            false
        });
        if opened.is_empty() {
            return;
        }
        self.share_cache_memory();
        for id in opened {
            self.with_cache(now, id, |cache, cx| cache.read_on(cx));
        }
    }

    fn share_cache_memory(&mut self) {
        let share = self.limits.cache_bytes_max / self.caches.len().max(1);
        for cache in self.caches.values_mut() {
            cache.set_memory(share.max(SHARD_BYTES_MIN));
        }
    }

    /// Runs `change` on a shard of a cache, if it is there; what it and its watches say is sent with what the shards say.
    pub(super) fn with_cache<T>(
        &mut self,
        now: Tick,
        id: ShardId,
        change: impl FnOnce(&mut CacheShard, &mut ShardCx<'_>) -> T,
    ) -> Option<T> {
        let cache = self.caches.get_mut(&id)?;
        let mut cx = ShardCx {
            free_bytes: 0,
            store: self.store.as_mut(),
            unix_ms: self.unix_ms,
            now,
            out: &mut self.shard_out,
        };
        let done = change(cache, &mut cx);
        if cache.is_watch_ready() {
            cache.tell_watches(&mut cx);
        }
        Some(done)
    }

    /// The log of a shard of a cache has settled everything below `end`.
    pub(super) fn cache_settled(&mut self, now: Tick, (id, role): (ShardId, LogRole), end: Offset) {
        self.with_cache(now, id, |cache, cx| cache.settled(role, end, cx));
    }

    /// It has room again.
    pub(super) fn cache_log_has_room(&mut self, now: Tick, (id, role): (ShardId, LogRole)) {
        self.with_cache(now, id, |cache, cx| cache.log_has_room(role, cx));
    }

    /// It takes no more.
    pub(super) fn cache_log_stopped(&mut self, now: Tick, (id, role): (ShardId, LogRole)) {
        self.with_cache(now, id, |cache, cx| cache.log_stopped(role, cx));
    }

    /// A page that a shard of a cache wanted was read, or cannot be.
    pub(super) fn cache_page(&mut self, now: Tick, page: PageFor, read: Result<&[Batch], &PageLoss>) {
        let its_own = self.caches.get(&page.shard).is_some_and(|cache| cache.life() == page.life);
        if !its_own {
            return;
        }
        self.with_cache(now, page.shard, |cache, cx| match page.reader {
            PageReader::Replay(role) => cache.replay_page(role, read, cx),
            PageReader::Value { slot } => cache.value_page(slot, read, cx),
            PageReader::Watch { watch, until } => cache.watch_page((watch, until), read, cx),
            PageReader::Subscription { .. }
            | PageReader::Numbers
            | PageReader::Poll { .. }
            | PageReader::Asked { .. }
            | PageReader::State
            | PageReader::Compact => {}
        });
        self.note_replaying(page.shard);
    }

    /// Goes on taking what was read of their logs, a bounded part of each shard's.
    pub(super) fn replay_caches(&mut self, now: Tick) {
        for id in std::mem::take(&mut self.caches_replaying) {
            self.with_cache(now, id, |cache, cx| cache.replay_on(cx));
            self.note_replaying(id);
        }
    }

    fn note_replaying(&mut self, id: ShardId) {
        let replays = self.caches.get(&id).is_some_and(CacheShard::has_pages);
        if replays && !self.caches_replaying.contains(&id) {
            self.caches_replaying.push(id);
        }
    }

    /// A log of a shard could not be made, and nothing of it is there: the shard waits until it is tried again.
    pub(super) fn cache_create_failed(&mut self, now: Tick, (id, role): (ShardId, LogRole), volume: u16) {
        let Some(generation) = self.caches.get(&id).map(CacheShard::generation) else { return };
        self.close_cache(now, id, Ending::Moved);
        let Some(route) = self.routes.route(id.stream) else { return };
        self.granted.insert(route.log_key(role, id.shard), (volume, LogSource::New));
        let keys = [LogRole::Cache, LogRole::Counters].map(|role| route.log_key(role, id.shard));
        self.caches_unmade.push((id, CacheWanted { generation, keys }));
    }

    /// Ends a shard of a cache: everything is answered.
    pub(super) fn close_cache(&mut self, now: Tick, id: ShardId, why: Ending) {
        let Some(mut cache) = self.caches.remove(&id) else { return };
        if let Some(store) = &mut self.store {
            cache.logs().collect::<Vec<LogAt>>().into_iter().for_each(|at| store.unserve(at));
        }
        let mut cx = ShardCx {
            free_bytes: 0,
            store: self.store.as_mut(),
            unix_ms: self.unix_ms,
            now,
            out: &mut self.shard_out,
        };
        cache.close(why, &mut cx);
        self.route_outputs(now);
    }

    /// What has waited too long, and values that have expired.
    pub(super) fn sweep_caches(&mut self, now: Tick) {
        self.open_caches(now);
        let waits = (self.limits.publish_queue_wait, self.limits.publish_confirm_wait);
        let mut cx = ShardCx {
            free_bytes: 0,
            store: self.store.as_mut(),
            unix_ms: self.unix_ms,
            now,
            out: &mut self.shard_out,
        };
        let (mut keys, mut bytes) = (0, 0);
        for cache in self.caches.values_mut() {
            cache.handle_timeout(waits, &mut cx);
            let size = cache.size();
            (keys, bytes) = (keys + size.0, bytes + size.1);
        }
        self.counters.set(Counter::CacheShards, self.caches.len() as u64);
        self.counters.set(Counter::CacheKeys, keys as u64);
        self.counters.set(Counter::CacheBytes, bytes as u64);
        if !self.shard_out.is_empty() {
            self.route_outputs(now);
        }
    }
}
