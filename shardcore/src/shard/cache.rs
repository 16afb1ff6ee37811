//! One shard of a cache and of the counters beside it, with its logs or in memory. Sans-io.
//! Scope: one per shard and generation, on the core that owns it. Owns: both machines, their logs, the values being read.
//! Invariants: a write is answered only from what its log has settled, in memory when it is made; nothing is served before
//! the logs were read to their ends, and nothing at all when they say what cannot be.
//! Not here: what a write does (`projection`), which core asks (`turn`).

mod compact;
mod replay;
pub mod watch;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use felix_logstore::record::Batch;
use felix_wire::id::{Generation, Offset, ProducerId, Sequence};
use slab::Slab;

use super::ShardCx;
use super::ask::{Ask, AskRefused, Asker, Parked, Reply};
use super::journal::{Journal, NoClaim};
use super::mail::{Doubt, Ending, FromShard, NotWritten, NumberRefusal, PageLoss, ShardOutput};
use crate::projection::cache::expiry::Expiry;
use crate::projection::cache::{CacheCore, Condition, Delete, Found, Keeping, Newest, Put, WriteRefused};
use crate::projection::counter::{self, AddRefused, CounterCore, NumberedAdd};
use crate::projection::producer::Verdict;
use crate::snapshot::{LogRole, ShardId};
use crate::store::{LogAt, PageFor, PageReader, Store};
use replay::Replay;
use watch::Watchers;

/// A value is looked for again so often when the log lets go of it meanwhile.
const LOOKS_MAX: u8 = 4;
/// Part of the memory of a shard without logs that its counters may have.
const COUNTERS_SHARE: usize = 4;

/// A request that waits for a value to be read.
#[derive(Debug)]
struct Reading {
    asker: Asker,
    ask: Ask,
    at: Offset,
    version: Offset,
    looks: u8,
}

/// See the module.
#[derive(Debug)]
pub struct CacheShard {
    id: ShardId,
    generation: Generation,
    life: u64,
    cache: CacheCore,
    counters: CounterCore,
    /// Of the cache and of the counters.
    logs: Option<(Journal, Journal)>,
    reads: Slab<Reading>,
    watchers: Watchers,
    replay: Replay,
    broken: Option<Arc<str>>,
    scratch: Vec<u8>,
}

impl CacheShard {
    /// A shard in memory, of `bytes_max` at most. Its offsets begin at `start`: above those of earlier lives, so that a watch
    /// that goes on, or a condition on a version, does not take this life for one of them.
    pub fn in_memory(id: ShardId, generation: Generation, bytes_max: usize, start: Offset) -> CacheShard {
        let counters = counter::Keeping::Memory { bytes_max: bytes_max / COUNTERS_SHARE };
        let cache = Keeping::Memory { bytes_max: bytes_max - bytes_max / COUNTERS_SHARE };
        let (cache, counters) = (CacheCore::new(cache, start), CounterCore::new(counters, Offset(0)));
        CacheShard::new((id, generation, 0), cache, counters, None)
    }

    /// A shard over its two logs; none while something of them is in flight. `life` is another one each time. Afterwards
    /// `read_on`.
    pub fn over_logs(
        (id, generation, life): (ShardId, Generation, u64),
        store: &Store,
        (cache_log, counter_log): (LogAt, LogAt),
        hot_bytes_max: usize,
    ) -> Option<CacheShard> {
        let (cache_log, cache_start) =
            Journal::open((id, generation, life), LogRole::Cache, store, cache_log)?;
        let (counter_log, counter_start) =
            Journal::open((id, generation, life), LogRole::Counters, store, counter_log)?;
        let cache = CacheCore::new(Keeping::Logged { hot_bytes_max }, cache_start);
        let counters = CounterCore::new(counter::Keeping::Logged, counter_start);
        Some(CacheShard::new((id, generation, life), cache, counters, Some((cache_log, counter_log))))
    }

    fn new(
        (id, generation, life): (ShardId, Generation, u64),
        cache: CacheCore,
        counters: CounterCore,
        logs: Option<(Journal, Journal)>,
    ) -> CacheShard {
        let (reads, watchers, scratch) = (Slab::new(), Watchers::default(), Vec::new());
        let (replay, broken) = (Replay::default(), None);
        CacheShard { id, generation, life, cache, counters, logs, reads, watchers, replay, broken, scratch }
    }

    /// The generation it serves.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// What tells it from earlier ones over the same logs.
    pub fn life(&self) -> u64 {
        self.life
    }

    /// Its logs, if it has any.
    pub fn logs(&self) -> impl Iterator<Item = LogAt> {
        self.logs.iter().flat_map(|(cache, counters)| [cache.at(), counters.at()])
    }

    /// What its values in memory may take from now on, without logs its keys too.
    pub fn set_memory(&mut self, bytes_max: usize) {
        let counters = if self.logs.is_some() { 0 } else { bytes_max / COUNTERS_SHARE };
        self.cache.set_bytes_max(bytes_max - counters);
        self.counters.set_bytes_max(counters);
    }

    /// Keys with a value, and bytes in memory of all of it.
    pub fn size(&self) -> (usize, usize) {
        (self.cache.len(), self.cache.memory_bytes() + self.counters.memory_bytes())
    }

    /// Whether nothing waits.
    #[cfg(any(test, feature = "sim"))]
    pub fn is_idle(&self) -> bool {
        let logs = self.logs.as_ref().is_none_or(|(cache, counters)| cache.is_idle() && counters.is_idle());
        logs && self.reads.is_empty() && self.watchers.reads() == 0
    }

    /// Has the first pages of its logs read.
    pub fn read_on(&self, cx: &mut ShardCx<'_>) {
        if let Some((cache, counters)) = &self.logs {
            cache.read_on(cx);
            counters.read_on(cx);
        }
    }

    /// A request.
    pub fn ask(&mut self, asker: Asker, ask: Ask, cx: &mut ShardCx<'_>) {
        if let Some(why) = &self.broken {
            let reply = Reply::Refused(AskRefused::Broken(Arc::clone(why)));
            return self.answer(asker, reply, cx);
        }
        if self.is_replaying() {
            return self.give_back(asker, ask, cx);
        }
        match ask {
            Ask::CacheGet { .. } => self.get(asker, ask, 0, cx),
            Ask::CounterGet { key } => {
                let reply = Reply::Sum(self.counters.get(&key));
                self.answer(asker, reply, cx);
            }
            Ask::Group(_) | Ask::Lease(_) | Ask::Stream(_) => self.give_back(asker, ask, cx),
            write => {
                let log = self.journal(role_of(&write));
                match log.filter(|log| log.is_backed_up()) {
                    Some(log) => log.park(asker, write, cx),
                    None => {
                        if let Err(write) = self.write(asker, write, None, cx)
                            && let Some(log) = self.journal(role_of(&write))
                        {
                            log.park(asker, write, cx);
                        }
                    }
                }
            }
        }
    }

    /// Whether it is not served because of a log that cannot be read.
    pub fn is_unread(&self) -> bool {
        let unread = |(cache, counters): &(Journal, Journal)| cache.is_unread() || counters.is_unread();
        self.broken.is_some() || self.logs.as_ref().is_some_and(unread)
    }

    fn journal(&mut self, role: LogRole) -> Option<&mut Journal> {
        let (cache, counters) = self.logs.as_mut()?;
        match role {
            LogRole::Cache => Some(cache),
            LogRole::Counters => Some(counters),
            LogRole::Records | LogRole::Groups => None,
        }
    }

    fn get(&mut self, asker: Asker, ask: Ask, looks: u8, cx: &mut ShardCx<'_>) {
        let Ask::CacheGet { key } = &ask else { return };
        let reply = match self.cache.get(key, cx.unix_ms) {
            Found::Absent => Reply::Value { value: None, version: None },
            Found::Claimed(Newest { version, value, after, .. }) => {
                let value = value.filter(|_| version.is_some());
                return self.owe(LogRole::Cache, after, asker, Reply::Value { value, version }, cx);
            }
            Found::Here { value, version, .. } => {
                Reply::Value { value: Some(value.clone()), version: Some(version) }
            }
            Found::InLog { at, version, .. } => {
                return self.read_value(Reading { asker, ask, at, version, looks }, cx);
            }
        };
        self.answer(asker, reply, cx);
    }

    /// Makes a write. The request comes back when the log has no room for it.
    fn write(
        &mut self,
        asker: Asker,
        ask: Ask,
        known: Option<(Offset, Bytes)>,
        cx: &mut ShardCx<'_>,
    ) -> Result<(), Ask> {
        let made = match ask {
            Ask::CachePut { key, value, ttl_ms, condition } => {
                self.put(asker, (key, value), (ttl_ms, condition), cx)
            }
            Ask::CacheDelete { ref key, condition } => match self.delete(asker, key, condition, known, cx) {
                Ok(None) => Ok(()),
                Ok(Some((at, version))) => {
                    self.read_value(Reading { asker, ask, at, version, looks: 0 }, cx);
                    return Ok(());
                }
                Err(why) => Err((why, ask)),
            },
            Ask::CounterAdd { ref key, delta, number } => {
                self.add(asker, (key, delta), number, cx).map_err(|why| (why, ask))
            }
            Ask::CacheGet { .. }
            | Ask::CounterGet { .. }
            | Ask::Group(_)
            | Ask::Lease(_)
            | Ask::Stream(_) => Ok(()),
        };
        match made {
            Ok(()) => Ok(()),
            Err((NotMade::Full, ask)) => Err(ask),
            Err((NotMade::Gone, ask)) => {
                self.give_back(asker, ask, cx);
                Ok(())
            }
            Err((NotMade::Refused(why), _)) => {
                self.answer(asker, Reply::Refused(why), cx);
                Ok(())
            }
        }
    }

    /// Puts a value. What was not made comes back with the reason, unless it was answered.
    fn put(
        &mut self,
        asker: Asker,
        (key, value): (Bytes, Bytes),
        (ttl_ms, condition): (Option<u64>, Condition),
        cx: &mut ShardCx<'_>,
    ) -> Result<(), (NotMade, Ask)> {
        let decided = Expiry::after(cx.unix_ms, ttl_ms)
            .map_err(|why| AskRefused::Invalid(why.to_string().into()))
            .and_then(|expiry| {
                self.cache.put(key, value, expiry, condition, cx.unix_ms).map_err(AskRefused::from)
            });
        let draft = match decided {
            Ok(Put::Append(draft)) => draft,
            Ok(Put::Unmet(unmet)) => {
                let reply = Reply::Condition { applied: false, version: unmet.version };
                self.owe(LogRole::Cache, unmet.after, asker, reply, cx);
                return Ok(());
            }
            Err(why) => {
                self.answer(asker, Reply::Refused(why), cx);
                return Ok(());
            }
        };
        let at = match &mut self.logs {
            Some((log, _)) => {
                self.scratch.clear();
                draft.encode(&mut self.scratch);
                match log.append(None, &self.scratch, cx) {
                    Ok(at) => {
                        self.cache.claimed(draft, at);
                        at
                    }
                    Err(why) => {
                        let (key, value) = draft.into_parts();
                        let (key, value) = (key.into(), value.unwrap_or_default());
                        return Err((why.into(), Ask::CachePut { key, value, ttl_ms, condition }));
                    }
                }
            }
            None => self.cache.apply(draft, cx.unix_ms),
        };
        let reply = match condition {
            Condition::Always => Reply::Written,
            Condition::Absent | Condition::Version(_) => {
                Reply::Condition { applied: true, version: Some(at) }
            }
        };
        self.owe(LogRole::Cache, Offset(at.0 + 1), asker, reply, cx);
        Ok(())
    }

    /// Deletes a key, or says which record must be read first.
    fn delete(
        &mut self,
        asker: Asker,
        key: &Bytes,
        condition: Condition,
        known: Option<(Offset, Bytes)>,
        cx: &mut ShardCx<'_>,
    ) -> Result<Option<(Offset, Offset)>, NotMade> {
        let wanted = condition == Condition::Always;
        let (draft, removed) = match self.cache.delete(key, condition, (wanted, known), cx.unix_ms)? {
            Delete::Append { draft, removed } => (draft, removed),
            Delete::Read { at, version } => return Ok(Some((at, version))),
            Delete::Absent { after } => {
                let reply = match wanted {
                    true => Reply::Value { value: None, version: None },
                    false => Reply::Condition { applied: false, version: None },
                };
                self.owe(LogRole::Cache, after, asker, reply, cx);
                return Ok(None);
            }
            Delete::Unmet(unmet) => {
                let reply = Reply::Condition { applied: false, version: unmet.version };
                self.owe(LogRole::Cache, unmet.after, asker, reply, cx);
                return Ok(None);
            }
        };
        self.scratch.clear();
        draft.encode(&mut self.scratch);
        let at = match &mut self.logs {
            Some((log, _)) => {
                let at = log.append(None, &self.scratch, cx)?;
                self.cache.claimed(draft, at);
                at
            }
            None => self.cache.apply(draft, cx.unix_ms),
        };
        let reply = match wanted {
            true => Reply::Value { value: removed, version: None },
            false => Reply::Condition { applied: true, version: None },
        };
        self.owe(LogRole::Cache, Offset(at.0 + 1), asker, reply, cx);
        Ok(None)
    }

    /// Adds to a counter; one that counts already is answered as the first time.
    fn add(
        &mut self,
        asker: Asker,
        (key, delta): (&Bytes, i64),
        number: Option<(ProducerId, Sequence)>,
        cx: &mut ShardCx<'_>,
    ) -> Result<(), NotMade> {
        let decided = match number {
            None => self.counters.add(key, delta).map(NumberedAdd::Append),
            Some(number) => self.counters.add_numbered(number, key, delta),
        };
        let draft = match decided {
            Ok(NumberedAdd::Append(draft)) => draft,
            Ok(NumberedAdd::Again { sum: None, .. }) => return Err(NotMade::number(NumberRefusal::Expired)),
            Ok(NumberedAdd::Again { sum, after }) => {
                self.owe(LogRole::Counters, after, asker, Reply::Sum(sum), cx);
                return Ok(());
            }
            Err(AddRefused::Overflow { after, .. }) => {
                let why = "the sum does not fit 64 bits; nothing was added".into();
                let reply = Reply::Refused(AskRefused::Invalid(why));
                self.owe(LogRole::Counters, after, asker, reply, cx);
                return Ok(());
            }
            Err(AddRefused::Number(why)) => return Err(NotMade::number(number_refusal(why))),
            Err(AddRefused::KeyTooLong) => {
                return Err(NotMade::Refused(AskRefused::Invalid("the key is too long".into())));
            }
            Err(why) => return Err(NotMade::Refused(AskRefused::Limit(why.to_string().into()))),
        };
        let sum = draft.sum();
        self.scratch.clear();
        draft.encode(&mut self.scratch);
        let after = match &mut self.logs {
            Some((_, log)) => {
                let at = log.append(draft.producer(), &self.scratch, cx)?;
                self.counters.claimed(draft, at);
                Offset(at.0 + 1)
            }
            None => {
                self.counters.apply(draft);
                Offset(0)
            }
        };
        self.owe(LogRole::Counters, after, asker, Reply::Sum(Some(sum)), cx);
        Ok(())
    }

    /// Answers when the log has settled everything below `after`; in memory at once.
    fn owe(&mut self, role: LogRole, after: Offset, asker: Asker, reply: Reply, cx: &mut ShardCx<'_>) {
        let settled = match role {
            LogRole::Counters => self.counters.settled_end(),
            LogRole::Cache | LogRole::Records | LogRole::Groups => self.cache.settled_end(),
        };
        match self.journal(role) {
            Some(log) => log.owe((after, settled), asker, reply, cx),
            None => self.answer(asker, reply, cx),
        }
    }

    fn read_value(&mut self, reading: Reading, cx: &mut ShardCx<'_>) {
        let at = reading.at;
        let Some(((cache, _), store)) = self.logs.as_ref().zip(cx.store.as_deref_mut()) else {
            return self.give_back(reading.asker, reading.ask, cx);
        };
        let log = cache.at();
        let slot = self.reads.insert(reading);
        let page = PageFor { shard: self.id, reader: PageReader::Value { slot }, from: at, life: self.life };
        store.read(log, page, Offset(at.0 + 1), 1);
    }

    /// The page of a value was read; none when the log does not have it any more, or cannot give it.
    pub fn value_page(&mut self, slot: usize, read: Result<&[Batch], &PageLoss>, cx: &mut ShardCx<'_>) {
        let Some(Reading { asker, ask, at, version, looks }) = self.reads.try_remove(slot) else { return };
        let found = match read {
            Ok(batches) => batches.iter().flat_map(Batch::records).find(|record| record.offset == at),
            Err(PageLoss::TooOld(_)) => None,
            Err(PageLoss::Damaged { .. } | PageLoss::Unreadable) => {
                return self.answer(asker, Reply::Refused(AskRefused::Unreadable), cx);
            }
        };
        let Some(record) = found else {
            // Compaction has moved it: its key says where to.
            if looks >= LOOKS_MAX {
                return self.answer(asker, Reply::Refused(AskRefused::Overloaded), cx);
            }
            return match &ask {
                Ask::CacheGet { .. } => self.get(asker, ask, looks + 1, cx),
                _ => self.write_or_park(asker, ask, None, cx),
            };
        };
        let (Ask::CacheGet { key } | Ask::CacheDelete { key, .. }) = &ask else { return };
        let value = match self.cache.read_back(key, at, &record.payload) {
            Ok(value) => value,
            Err(error) => {
                tracing::error!(%error, "a value of a cache cannot be read back");
                return self.answer(asker, Reply::Refused(AskRefused::Unreadable), cx);
            }
        };
        match ask {
            Ask::CacheGet { .. } => {
                let reply = Reply::Value { value: Some(value), version: Some(version) };
                self.answer(asker, reply, cx);
            }
            delete => self.write_or_park(asker, delete, Some((version, value)), cx),
        }
    }

    fn write_or_park(
        &mut self,
        asker: Asker,
        ask: Ask,
        known: Option<(Offset, Bytes)>,
        cx: &mut ShardCx<'_>,
    ) {
        if let Err(ask) = self.write(asker, ask, known, cx)
            && let Some(log) = self.journal(role_of(&ask))
        {
            log.park(asker, ask, cx);
        }
    }

    /// One of its logs has settled everything below `end`.
    pub fn settled(&mut self, role: LogRole, end: Offset, cx: &mut ShardCx<'_>) {
        if self.is_role_replaying(role) {
            // It was settled before this shard began, which is reading that far: what is told is not taken yet.
            return;
        }
        match role {
            LogRole::Counters => self.counters.settle(end),
            LogRole::Cache | LogRole::Records | LogRole::Groups => self.cache.settle(end, cx.unix_ms),
        }
        if let Some(log) = self.journal(role) {
            log.settled(end, cx);
        }
    }

    /// One of its logs has room again: what waits for it goes on.
    pub fn log_has_room(&mut self, role: LogRole, cx: &mut ShardCx<'_>) {
        if let Some(log) = self.journal(role) {
            log.has_room();
        }
        while let Some(Parked { asker, ask, since }) = self.journal(role).and_then(Journal::unpark) {
            if let Err(ask) = self.write(asker, ask, None, cx)
                && let Some(log) = self.journal(role)
            {
                log.park_first(Parked { asker, ask, since });
            }
        }
    }

    /// One of its logs takes no more.
    pub fn log_stopped(&mut self, role: LogRole, cx: &mut ShardCx<'_>) {
        match role {
            LogRole::Counters => self.counters.stop(),
            LogRole::Cache | LogRole::Records | LogRole::Groups => self.cache.stop(),
        };
        if let Some(log) = self.journal(role) {
            log.stop(cx);
        }
    }

    /// What has waited too long: for room `room`, for the disk `confirm`. And values that have expired.
    pub fn handle_timeout(&mut self, (room, confirm): (Duration, Duration), cx: &mut ShardCx<'_>) {
        if let Some((cache, counters)) = &mut self.logs {
            for log in [cache, counters] {
                log.retry_read(cx);
                log.expire_parked(room, cx);
                log.give_up_late(confirm, cx);
            }
        }
        if self.cache.next_sweep_ms().is_some_and(|at| at <= cx.unix_ms) {
            self.cache.sweep(cx.unix_ms);
        }
    }

    /// Answers everything; it is dropped afterwards.
    pub fn close(&mut self, why: Ending, cx: &mut ShardCx<'_>) {
        self.end_watches(why, cx);
        let answer = match why {
            Ending::Deleted => AskRefused::NotWritten(NotWritten::Deleted),
            Ending::Moved => AskRefused::Unknown(Doubt::Moved),
        };
        let mut parked = Vec::new();
        if let Some((cache, counters)) = &mut self.logs {
            for log in [cache, counters] {
                log.end(&answer, cx);
                parked.extend(log.take_parked().into_iter().map(|parked| (parked.asker, parked.ask)));
            }
        }
        parked.extend(self.reads.drain().map(|reading| (reading.asker, reading.ask)));
        for (asker, ask) in parked {
            self.give_back(asker, ask, cx);
        }
    }

    fn give_back(&self, asker: Asker, ask: Ask, cx: &mut ShardCx<'_>) {
        self.send(asker, ShardOutput::AskBack { token: asker.token, ask }, cx);
    }

    fn answer(&self, asker: Asker, reply: Reply, cx: &mut ShardCx<'_>) {
        self.send(asker, ShardOutput::Answered { token: asker.token, reply }, cx);
    }

    fn send(&self, asker: Asker, what: ShardOutput, cx: &mut ShardCx<'_>) {
        cx.out.push((asker.core, FromShard { shard: self.id, generation: self.generation, what }));
    }
}

/// Why a write was not made.
enum NotMade {
    Full,
    Gone,
    Refused(AskRefused),
}

impl From<NoClaim> for NotMade {
    fn from(why: NoClaim) -> NotMade {
        match why {
            NoClaim::Full => NotMade::Full,
            NoClaim::Gone => NotMade::Gone,
            NoClaim::Refused(why) => NotMade::Refused(AskRefused::NotWritten(why)),
        }
    }
}

impl From<WriteRefused> for AskRefused {
    fn from(why: WriteRefused) -> AskRefused {
        let text = why.to_string().into();
        match why {
            WriteRefused::KeyTooLong => AskRefused::Invalid(text),
            WriteRefused::ValueTooLarge { .. } | WriteRefused::TooManyKeys => AskRefused::Limit(text),
        }
    }
}

impl From<WriteRefused> for NotMade {
    fn from(why: WriteRefused) -> NotMade {
        NotMade::Refused(why.into())
    }
}

impl NotMade {
    fn number(why: NumberRefusal) -> NotMade {
        NotMade::Refused(AskRefused::NotWritten(NotWritten::Number(why)))
    }
}

fn number_refusal(why: Verdict) -> NumberRefusal {
    match why {
        Verdict::Gap { expected } => NumberRefusal::Gap { expected },
        Verdict::Expired => NumberRefusal::Expired,
        Verdict::Reused => NumberRefusal::Reused,
        // The first two are no refusals.
        Verdict::Append | Verdict::Duplicate { .. } | Verdict::Unknown => NumberRefusal::Unknown,
    }
}

/// The log that a request writes to.
fn role_of(ask: &Ask) -> LogRole {
    match ask {
        Ask::CacheGet { .. } | Ask::CachePut { .. } | Ask::CacheDelete { .. } => LogRole::Cache,
        // Nobody keeps leases in a log.
        Ask::Group(_) | Ask::Lease(_) => LogRole::Groups,
        Ask::Stream(_) => LogRole::Records,
        Ask::CounterAdd { .. } | Ask::CounterGet { .. } => LogRole::Counters,
    }
}
