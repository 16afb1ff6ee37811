//! One watch of a cache of a simulated client, over its resumptions. Scope: one per watch of the plan.
//! Invariants: it goes on exactly where it was told to, or behind what it was told last; where nobody can say where that is
//! it begins anew, and is owed nothing from before.
//! Not here: whether what it is told can be true (`history::watch`).

use std::time::Duration;

use bytes::BytesMut;
use felix_runtime::clock::Tick;
use felix_runtime::quic::{ConnKey, StreamId};
use felix_wire::client::{CacheEvent, CacheWatch, CacheWatchStarted, Message};
use felix_wire::error_code::ErrorCode;
use felix_wire::frame::Frame;
use felix_wire::id::{Offset, ShardIndex};

use super::ask_plan::WatchPlan;
use super::asks::cache::put_of;
use super::broker::cache_name;
use super::client::Surroundings;
use super::credentials::{NAMESPACE, TENANT};
use super::history::watch::{Change, Values};

const RETRY: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Idle {
        until: Tick,
    },
    /// On its way on this stream, until the answer; the life of the cache when it asked, none when that is not sure.
    Asking {
        on: (ConnKey, StreamId),
        life: Option<u64>,
    },
    Live {
        id: u64,
        conn: ConnKey,
    },
    Over,
}

/// See the module.
#[derive(Debug)]
pub struct Watcher {
    plan: WatchPlan,
    state: State,
    /// Where it goes on; else it begins as planned.
    from: Option<u64>,
    run: Option<usize>,
    /// Of the cache, when it is known.
    life: Option<u64>,
}

impl Watcher {
    /// One that is not asked for yet.
    pub fn new(plan: WatchPlan) -> Watcher {
        Watcher { state: State::Idle { until: plan.begins }, plan, from: None, run: None, life: None }
    }

    /// The number the broker gave it.
    pub fn id(&self) -> Option<u64> {
        if let State::Live { id, .. } = self.state { Some(id) } else { None }
    }

    /// Whether it is the one with that number.
    pub fn is_called(&self, id: u64) -> bool {
        self.id() == Some(id)
    }

    /// Whether it waits for an answer on that stream.
    pub fn is_asking(&self, key: (ConnKey, StreamId)) -> bool {
        matches!(self.state, State::Asking { on, .. } if on == key)
    }

    /// Whether it depends on that connection.
    pub fn is_of(&self, key: ConnKey) -> bool {
        match self.state {
            State::Asking { on, .. } => on.0 == key,
            State::Live { conn, .. } => conn == key,
            State::Idle { .. } | State::Over => false,
        }
    }

    /// Whether it is neither live nor over.
    pub fn is_pending(&self) -> bool {
        !matches!(self.state, State::Live { .. } | State::Over)
    }

    /// Whether it reads its events.
    pub fn reads(&self, now: Tick) -> bool {
        let (from, to) = self.plan.stalled;
        !(from..to).contains(&now)
    }

    /// The next moment at which it does something by itself.
    pub fn next(&self, now: Tick) -> Option<Tick> {
        let begins = if let State::Idle { until } = self.state { Some(until) } else { None };
        let stalled = Some(self.plan.stalled.1).filter(|at| *at < Tick::MAX);
        begins.into_iter().chain(stalled).filter(|at| *at > now).min()
    }

    /// Whether it wants a stream to ask on.
    pub fn wants_stream(&self, now: Tick) -> bool {
        matches!(self.state, State::Idle { until } if until <= now)
    }

    /// It has one.
    pub fn asking(&mut self, on: (ConnKey, StreamId)) {
        self.state = State::Asking { on, life: None };
    }

    /// The life of its cache, when every core knows of it.
    fn life(&self, around: &Surroundings<'_>) -> Option<u64> {
        (!around.moving && !around.caches_gone[self.plan.cache]).then(|| around.cache_lives[self.plan.cache])
    }

    /// The stream authenticated: the request.
    pub fn ask(&mut self, out: &mut BytesMut, around: &Surroundings<'_>) {
        if let State::Asking { on, .. } = self.state {
            self.state = State::Asking { on, life: self.life(around) };
        }
        let WatchPlan { cache, shard, key, retained, history, .. } = self.plan;
        let from = self.from.or((history && !retained).then_some(0));
        let message = CacheWatch {
            tenant_id: TENANT.into(),
            namespace: NAMESPACE.into(),
            cache: cache_name(cache).into(),
            key: key.map(|key| format!("k{key}").into()),
            prefix: key.is_none().then(|| "k".into()),
            shard: key.is_none().then_some(ShardIndex(shard)),
            from_offset: from.map(Offset),
            retained: retained && from.is_none(),
            subscription_id: None,
        };
        Message::CacheWatch(message).encode_frame(out);
    }

    /// The answer to the request.
    ///
    /// # Errors
    /// It is none, or none that this request can have.
    pub fn answer(&mut self, frame: &Frame, around: &mut Surroundings<'_>) -> Result<(), String> {
        let State::Asking { on, life } = self.state else {
            return Err("a second answer to a watch".to_owned());
        };
        let message = Message::decode(&frame.payload).map_err(|error| error.to_string())?;
        match message {
            Message::CacheWatchStarted(started) => {
                let known = self.life(around).filter(|now| Some(*now) == life);
                self.begin(&started, known, around)?;
                self.state = State::Live { id: started.subscription_id.0, conn: on.0 };
            }
            // In another life of the cache there is not so much.
            Message::SubscribeCursorError(_)
                if self.from.is_some() && around.caches_deleted[self.plan.cache] =>
            {
                self.begin_anew(around.now);
            }
            Message::Error(error) => {
                let code = error.code.ok_or("a refusal without a code")?;
                let excuses = around.excuses;
                let deleted = around.caches_deleted[self.plan.cache];
                match code {
                    ErrorCode::ShardUnavailable => self.state = State::Idle { until: around.now + RETRY },
                    ErrorCode::Storage if excuses.unreadable || excuses.refused => {
                        self.state = State::Idle { until: around.now + RETRY };
                    }
                    ErrorCode::NotFound if deleted => self.cache_gone(around),
                    other => return Err(format!("a watch was refused with {other}: {}", error.message)),
                }
            }
            other => return Err(format!("not an answer to a watch: {}", other.type_name())),
        }
        Ok(())
    }

    fn begin(
        &mut self,
        started: &CacheWatchStarted,
        known: Option<u64>,
        around: &mut Surroundings<'_>,
    ) -> Result<(), String> {
        let watches = &mut around.histories.watches;
        let resume = started.resume_offset.0;
        around.trace.note(around.now, "watching", [started.subscription_id.0, resume, 0]);
        let asked = self.from.or((self.plan.history && !self.plan.retained).then_some(0));
        let values = match (started.retained_count, started.resnapshot) {
            (Some(count), false) => Values::Counted(count),
            (None, true) => Values::Instead,
            (None, false) => Values::None,
            (Some(_), true) => return Err(format!("values that were asked for, and were not: {started:?}")),
        };
        if matches!(values, Values::Counted(_)) != (asked.is_none() && self.plan.retained) {
            return Err(format!("{started:?} to {:?}", self.plan));
        }
        if values == Values::None && asked.is_some_and(|asked| asked != resume) {
            return Err(format!("{started:?} to one that begins at {asked:?}"));
        }
        watches.lagged += u64::from(values == Values::Instead);
        let same = known.is_some() && known == self.life;
        match self.run.filter(|_| same && self.from.is_some() && values == Values::None) {
            Some(run) => watches.goes_on(run),
            None => {
                let of = known.map(|life| (self.plan.cache, life, self.plan.shard));
                self.run = Some(watches.begin(of, self.plan.key, resume, values));
            }
        }
        (self.life, self.from) = (known, None);
        Ok(())
    }

    /// A frame of its event stream.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn event(&mut self, frame: &Frame, around: &mut Surroundings<'_>) -> Result<(), String> {
        let Some(run) = self.run else { return Err("an event without a watch".to_owned()) };
        let message = Message::decode(&frame.payload).map_err(|error| error.to_string())?;
        let ends_at = match message {
            Message::CacheEvent(event) => return self.change(run, &event, around),
            Message::ShardMoved(moved) => moved.resume_from.ok_or("a move without an offset")?,
            Message::CacheWatchLagged(lagged) => {
                around.histories.watches.lagged += 1;
                lagged.resume_from
            }
            Message::Error(error) => {
                let deleted = around.caches_deleted[self.plan.cache];
                match error.code {
                    Some(ErrorCode::NotFound) if deleted => self.cache_gone(around),
                    Some(ErrorCode::Storage) if around.excuses.unreadable => {
                        self.lost(around.now + RETRY, around);
                    }
                    other => return Err(format!("a watch ended with {other:?}: {}", error.message)),
                }
                return Ok(());
            }
            other => return Err(format!("{} on the stream of a watch", other.type_name())),
        };
        around.trace.note(around.now, "watch ends", [self.id().unwrap_or(0), ends_at.0, 0]);
        if !around.histories.watches.ended_at(run, ends_at.0)? {
            self.run = None;
        }
        self.from = Some(ends_at.0);
        self.state = State::Idle { until: around.now + Duration::from_millis(1) };
        Ok(())
    }

    fn change(
        &mut self,
        run: usize,
        event: &CacheEvent<'_>,
        around: &mut Surroundings<'_>,
    ) -> Result<(), String> {
        let key = event.key.strip_prefix('k').and_then(|number| number.parse().ok());
        let key = key.ok_or_else(|| format!("an event of the key {}", event.key))?;
        let put = event.value.as_ref().map(|value| put_of(key, value)).transpose()?;
        around.trace.note(around.now, "change", [run as u64, u64::from(key), event.offset.0]);
        around.histories.watches.event(run, event.offset.0, Change { key, put })
    }

    /// Its event stream ended without a last frame.
    ///
    /// # Errors
    /// It should have been told where to go on.
    pub fn finished(&mut self, around: &mut Surroundings<'_>) -> Result<(), String> {
        if self.run.is_some_and(|run| around.histories.watches.has_all_values(run)) {
            return Err(format!("{self:?} ended without a last frame"));
        }
        self.lost(around.now + RETRY, around);
        Ok(())
    }

    /// Its stream or connection is gone: it asks again then, behind what it was told.
    pub fn lost(&mut self, at: Tick, around: &mut Surroundings<'_>) {
        if matches!(self.state, State::Live { .. }) {
            self.from = self.run.and_then(|run| around.histories.watches.lost(run));
        }
        self.state = State::Idle { until: at };
    }

    /// Its client is gone.
    pub fn end(&mut self, around: &mut Surroundings<'_>) {
        self.lost(Tick::MAX, around);
        self.state = State::Over;
    }

    fn cache_gone(&mut self, around: &mut Surroundings<'_>) {
        self.lost(around.now, around);
        self.begin_anew(around.now + RETRY);
        if around.caches_gone[self.plan.cache] && around.now >= around.heal_at {
            self.state = State::Over;
        }
    }

    /// As if it had never been told anything.
    fn begin_anew(&mut self, at: Tick) {
        (self.run, self.from, self.life) = (None, None, None);
        self.state = State::Idle { until: at };
    }
}
