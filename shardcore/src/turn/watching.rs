//! Watches of the connections on this core, and those of its own shards. Scope: functions of a core, and what it holds for
//! them.
//! Invariants: the answer to `cache_watch` is written before any event; a uni stream is opened with its hello; a watch ends
//! with its connection, its stream, its identity or its shard; what watches hold is bounded for each of them, and by the
//! core's budget for queues for all of them together.
//! Not here: which events there are (`projection::cache::watch`), who may watch (`session::watch`).

use bytes::Bytes;
use felix_runtime::clock::Tick;
use felix_runtime::quic::{ConnKey, StreamId, VarInt, WriteState};
use felix_wire::client::{
    CacheWatchLagged, CacheWatchStarted, CursorErrorReason, EventStreamHello, Message, ShardMoved,
    SubscribeCursorError,
};
use felix_wire::id::{CoreId, Generation, Offset, SubscriptionId};
use slab::Slab;

use super::core::Core;
use super::counters::Counter;
use super::subscribing::{WRITE_QUANTUM_BYTES, encode};
use crate::projection::cache::delivery::{Delivery, PULL_BYTES};
use crate::projection::cache::watch::{Started, WatchFrom, WatchRefused};
use crate::session::answers::AnswerSlot;
use crate::session::refusal::Refusal;
use crate::session::{Cx, Session, WatchAction};
use crate::shard::cache::watch::{WatchAsk, WatchEnd, WatchNo, WatchTold};
use crate::shard::mail::{Ending, FromShard, PageLoss, ShardInput, ShardOutput, SubToken, ToShard};
use crate::snapshot::{Owner, ShardId};

/// Bytes of keys and prefixes that the watches of a connection, and all of the core, may have.
const WATCHED_BYTES_PER_CONNECTION: usize = 4 << 20;
const WATCHED_BYTES_MAX: usize = 64 << 20;
/// Every watch may hold this much, whatever the others hold, and be asked for so much at once.
const QUEUE_BYTES_MIN: usize = 8 << 10;
const PULL_BYTES_MIN: usize = 4 << 10;
/// And those of every shard together.
const SHARD_BYTES_MIN: usize = 4 << 20;
/// Part of the core's memory for the queues of subscribers that its shards may have for watches, and its streams too.
const QUEUES_PART: usize = 4;
/// Code of a reset of an event stream that did not keep up, when its last frame cannot say so.
const RESET_LAGGED: u32 = 3;

/// Tells the token of a watch from that of a subscription.
const WATCH_BIT: u64 = 1 << 63;

impl SubToken {
    /// Whether it names a watch.
    pub(super) fn is_watch(self) -> bool {
        self.0 & WATCH_BIT != 0
    }
}

/// What a core holds for watches.
#[derive(Debug, Default)]
pub(super) struct Watching {
    all: Slab<Watcher>,
    /// Bytes of their keys and prefixes.
    watched_bytes: usize,
    /// Those that came back because their shard was not served.
    back: Vec<(SubToken, WatchAsk)>,
    /// Shards of this core that collect current values for watches, wherever those are.
    collecting: Vec<ShardId>,
}

impl Watching {
    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// Bytes on their way to streams.
    pub(super) fn held_bytes(&self) -> usize {
        let lives = self.all.iter().filter_map(|(_, watcher)| watcher.live.as_ref());
        lives.map(|live| live.delivery.held_bytes()).sum()
    }

    /// Whether a shard of the core collects current values.
    pub(super) fn is_collecting(&self) -> bool {
        !self.collecting.is_empty()
    }

    /// Those of a connection.
    pub(super) fn of(&self, conn: ConnKey) -> Vec<SubToken> {
        let of_conn = self.all.iter().filter(|(_, watcher)| watcher.conn == conn);
        of_conn.map(|(_, watcher)| watcher.token).collect()
    }

    fn get_mut(&mut self, token: SubToken) -> Option<&mut Watcher> {
        self.all.get_mut((token.0 & 0xf_ffff) as usize).filter(|watcher| watcher.token == token)
    }
}

/// A watch and where its bytes go.
#[derive(Debug)]
struct Watcher {
    token: SubToken,
    conn: ConnKey,
    shard: ShardId,
    /// Where it was asked for.
    owner: (CoreId, Generation),
    identity: usize,
    /// Of its key or prefix.
    watched_bytes: usize,
    /// The offset it was asked for from.
    requested: Offset,
    reads_moved: bool,
    reads_codes: bool,
    answer_on: (StreamId, AnswerSlot),
    /// While its shard is not served it is asked for again until then.
    deadline: Tick,
    /// Set once the owner has confirmed it.
    live: Option<LiveWatch>,
}

#[derive(Debug)]
struct LiveWatch {
    id: SubscriptionId,
    stream: StreamId,
    delivery: Delivery,
}

impl Core {
    /// Hands a granted watch to its shard.
    pub(super) fn watch(&mut self, now: Tick, conn: ConnKey, action: WatchAction) {
        let WatchAction { stream, slot, place, interest, from, identity, reads_moved, reads_codes } = action;
        let (place, limits) = (*place.get(), &self.limits);
        let Some(session) = self.sessions.get_mut(&conn) else { return };
        let watched_bytes = interest.bytes().len();
        let over = self.subs.len() + self.watches.len() >= limits.subscriptions_max as usize
            || session.subscriptions >= limits.subscriptions_per_connection
            || session.watched_bytes + watched_bytes > WATCHED_BYTES_PER_CONNECTION
            || self.watches.watched_bytes + watched_bytes > WATCHED_BYTES_MAX;
        if over {
            let refusal = Refusal::limit("too many watches");
            self.with_session(now, conn, |s, cx| s.answer_refusal((stream, slot), &refusal, cx));
            return;
        }
        session.subscriptions += 1;
        session.watched_bytes += watched_bytes;
        self.watches.watched_bytes += watched_bytes;
        let entry = self.watches.all.vacant_entry();
        self.next_sub += 1;
        let token = SubToken(WATCH_BIT | (self.next_sub << 20) | (entry.key() as u64 & 0xf_ffff));
        entry.insert(Watcher {
            token,
            conn,
            shard: place.shard,
            owner: (place.core, place.generation),
            identity,
            watched_bytes,
            requested: if let WatchFrom::Offset(offset) = from { offset } else { Offset(0) },
            reads_moved,
            reads_codes,
            answer_on: (stream, slot),
            deadline: now + limits.publish_queue_wait,
            live: None,
        });
        self.ask_watched(now, token, WatchAsk::Begin { interest, from });
    }

    fn ask_watched(&mut self, now: Tick, token: SubToken, ask: WatchAsk) {
        let Some(watcher) = self.watches.get_mut(token) else { return };
        let (shard, (owner, generation)) = (watcher.shard, watcher.owner);
        let what = ShardInput::Watch { token, ask };
        self.ask_shard(now, owner, ToShard { shard, generation, what });
    }

    /// Something about a watch of a shard of this core.
    pub(super) fn handle_watch(
        &mut self,
        now: Tick,
        (from, token): (CoreId, SubToken),
        (id, generation): (ShardId, Generation),
        ask: WatchAsk,
    ) {
        let served = self.caches.get(&id).is_some_and(|cache| cache.generation() == generation);
        if !served {
            if matches!(ask, WatchAsk::Begin { .. }) {
                let what = ShardOutput::Watch { token, told: WatchTold::Back(ask) };
                self.shard_out.push((from, FromShard { shard: id, generation, what }));
            }
            return;
        }
        self.with_cache(now, id, |cache, cx| cache.watch((from, token), ask, cx));
        let collecting = self.caches.get(&id).is_some_and(|cache| cache.is_collecting());
        if collecting && !self.watches.collecting.contains(&id) {
            self.watches.collecting.push(id);
        }
    }

    /// Goes on collecting current values, a bounded number of keys of each shard.
    pub(super) fn collect_for_watches(&mut self, now: Tick) {
        if self.watches.collecting.is_empty() {
            return;
        }
        for id in std::mem::take(&mut self.watches.collecting) {
            self.with_cache(now, id, |cache, _| cache.collect());
            if self.caches.get(&id).is_some_and(|cache| cache.is_collecting()) {
                self.watches.collecting.push(id);
            }
        }
        self.route_outputs(now);
    }

    /// What a shard said about a watch.
    pub(super) fn watch_told(&mut self, now: Tick, token: SubToken, told: WatchTold) {
        if self.watches.get_mut(token).is_none() {
            return;
        }
        match told {
            WatchTold::Back(ask) => self.watches.back.push((token, ask)),
            WatchTold::Started(started) => self.watch_started(now, token, started),
            WatchTold::Refused(no) => self.watch_refused(now, token, &no),
            WatchTold::Events(events) => {
                if let Some(live) = self.watches.get_mut(token).and_then(|watcher| watcher.live.as_mut()) {
                    live.delivery.take(events);
                    self.active.push_back(token);
                }
            }
            WatchTold::Ended(end) => self.watch_ended(now, token, &end),
        }
    }

    fn watch_started(&mut self, now: Tick, token: SubToken, started: Started) {
        let Some(watcher) = self.watches.get_mut(token) else { return };
        let (conn, answer_on) = (watcher.conn, watcher.answer_on);
        let Some(stream) = self.quic.open_uni(conn) else {
            let refusal = Refusal::limit("the client allows no more event streams");
            return self.refuse_watch(now, token, |s, cx, on| s.answer_refusal(on, &refusal, cx));
        };
        let id = SubscriptionId((u64::from(self.id.0) << 40) | ((token.0 & !WATCH_BIT) >> 20));
        let answer = CacheWatchStarted {
            subscription_id: id,
            resume_offset: started.resume,
            resnapshot: started.resnapshot,
            retained_count: started.counted.then_some(started.values),
        };
        self.with_session(now, conn, |s, cx| s.answer(answer_on, &Message::CacheWatchStarted(answer), cx));
        let hello = encode(&Message::EventStreamHello(EventStreamHello { subscription_id: id }));
        if let Some(watcher) = self.watches.get_mut(token) {
            watcher.live = Some(LiveWatch { id, stream, delivery: Delivery::new(hello, started) });
        }
        self.event_streams.insert((conn, stream), token);
        self.active.push_back(token);
    }

    fn watch_refused(&mut self, now: Tick, token: SubToken, no: &WatchNo) {
        let Some(requested) = self.watches.get_mut(token).map(|watcher| watcher.requested) else { return };
        let refusal = match no {
            WatchNo::Refused(WatchRefused::InFuture { tail }) => {
                let (reason, available) = (CursorErrorReason::InFuture, *tail);
                let answer = SubscribeCursorError { reason, requested, available };
                return self.refuse_watch(now, token, |s, cx, on| {
                    s.answer(on, &Message::SubscribeCursorError(answer), cx);
                });
            }
            WatchNo::Refused(WatchRefused::TooMany) => Refusal::limit("the shard has too many watches"),
            WatchNo::Refused(WatchRefused::TooMuch) => {
                Refusal::limit("the current values are more than a watch may hold")
            }
            WatchNo::Broken(why) => Refusal::no_log(why),
        };
        self.refuse_watch(now, token, |s, cx, on| s.answer_refusal(on, &refusal, cx));
    }

    fn refuse_watch(
        &mut self,
        now: Tick,
        token: SubToken,
        answer: impl FnOnce(&mut Session, &mut Cx<'_>, (StreamId, AnswerSlot)),
    ) {
        let Some(watcher) = self.watches.get_mut(token) else { return };
        let (conn, on) = (watcher.conn, watcher.answer_on);
        self.with_session(now, conn, |s, cx| answer(s, cx, on));
        self.end_watch(now, token);
    }

    /// Its shard sends nothing more: the client is told why, and from where it can go on.
    fn watch_ended(&mut self, now: Tick, token: SubToken, end: &WatchEnd) {
        let next = self.watches.get_mut(token).and_then(|watcher| match self.routes.owner(watcher.shard) {
            Some(Owner::Here { generation, .. } | Owner::Node { generation, .. }) => Some(*generation),
            Some(Owner::Nobody { .. } | Owner::NoLog { .. }) | None => None,
        });
        let Some(watcher) = self.watches.get_mut(token) else { return };
        let (codes, generation) = (watcher.reads_codes, next.unwrap_or(watcher.owner.1));
        if watcher.live.is_none() {
            let refusal = match end {
                WatchEnd::Shard(Ending::Deleted) => Refusal::unknown_cache(),
                _ => Refusal::unavailable("moving"),
            };
            return self.refuse_watch(now, token, |s, cx, on| s.answer_refusal(on, &refusal, cx));
        }
        let last = match end {
            WatchEnd::Lagged { resume_from } => {
                self.counters.add(Counter::WatchesLagged, 1);
                encode(&Message::CacheWatchLagged(CacheWatchLagged { resume_from: *resume_from }))
            }
            WatchEnd::Lost(PageLoss::Damaged { from, next }) => {
                encode(&Refusal::damaged(*from, *next).to_message(codes))
            }
            WatchEnd::Lost(_) => encode(&Refusal::unreadable().to_message(codes)),
            WatchEnd::Unreadable(error) => {
                tracing::error!(%error, "a record of the log of a cache cannot be told to a watch");
                encode(&Refusal::unreadable().to_message(codes))
            }
            WatchEnd::Shard(Ending::Deleted) => encode(&Refusal::unknown_cache().to_message(codes)),
            WatchEnd::Shard(Ending::Moved) => watcher.moved_frame(generation, true),
        };
        if let Some(live) = &mut watcher.live {
            live.delivery.end(last, true);
            self.active.push_back(token);
        }
    }

    /// Ends a watch without a word: its stream or connection is gone.
    pub(super) fn end_watch(&mut self, now: Tick, token: SubToken) {
        self.ask_watched(now, token, WatchAsk::End);
        if self.watches.get_mut(token).is_none() {
            return;
        }
        let watcher = self.watches.all.remove((token.0 & 0xf_ffff) as usize);
        self.watches.watched_bytes -= watcher.watched_bytes;
        if let Some(session) = self.sessions.get_mut(&watcher.conn) {
            session.subscriptions = session.subscriptions.saturating_sub(1);
            session.watched_bytes = session.watched_bytes.saturating_sub(watcher.watched_bytes);
        }
        if let Some(live) = &watcher.live {
            self.event_streams.remove(&(watcher.conn, live.stream));
        }
    }

    /// The identity's tokens have run out: its watches end where the client can go on with a new one.
    pub(super) fn expire_watches(&mut self, now: Tick, conn: ConnKey, identity: usize) {
        for token in self.watches.of(conn) {
            let Some(watcher) = self.watches.get_mut(token) else { continue };
            if watcher.identity != identity {
                continue;
            }
            let last = watcher.moved_frame(watcher.owner.1, false);
            match &mut watcher.live {
                Some(live) => {
                    live.delivery.end(last, false);
                    self.active.push_back(token);
                    self.ask_watched(now, token, WatchAsk::End);
                }
                None => {
                    let refusal = Refusal::unauthenticated();
                    self.refuse_watch(now, token, |s, cx, on| s.answer_refusal(on, &refusal, cx));
                }
            }
        }
    }

    /// Writes what the stream of a watch takes, and asks for more when there is room.
    pub(super) fn pump_watch(&mut self, now: Tick, token: SubToken) {
        let mut written = 0;
        let done = loop {
            let Some(watcher) = self.watches.get_mut(token) else { return };
            let conn = watcher.conn;
            let Some(live) = watcher.live.as_mut() else { return };
            if written >= WRITE_QUANTUM_BYTES {
                self.active.push_back(token);
                break false;
            }
            let Some(chunk) = live.delivery.chunk() else { break live.delivery.is_done() };
            let outcome = self.quic.write(conn, live.stream, chunk);
            written += outcome.written;
            match outcome.state {
                WriteState::All => {}
                WriteState::Blocked => break false,
                WriteState::Stopped(_) | WriteState::Gone => return self.end_watch(now, token),
            }
        };
        self.counters.add(Counter::EventBytes, written as u64);
        let bytes_max =
            (self.watch_bytes_max() / self.watches.len().max(1)).clamp(PULL_BYTES_MIN, PULL_BYTES);
        let Some(watcher) = self.watches.get_mut(token) else { return };
        let conn = watcher.conn;
        let Some(live) = watcher.live.as_mut() else { return };
        self.counters.add(Counter::EventFrames, live.delivery.take_frames());
        if done {
            let stream = live.stream;
            self.quic.finish(conn, stream);
            return self.end_watch(now, token);
        }
        if live.delivery.wants_pull(bytes_max) {
            self.ask_watched(now, token, WatchAsk::Pull { bytes_max });
        }
    }

    /// Asks again for the watches that came back, or refuses them when their shard has not been served in time.
    pub(super) fn watch_again(&mut self, now: Tick) {
        for (token, ask) in std::mem::take(&mut self.watches.back) {
            let Some(watcher) = self.watches.get_mut(token) else { continue };
            let refusal = match self.routes.owner(watcher.shard) {
                Some(Owner::Here { core, generation }) if watcher.deadline > now => {
                    watcher.owner = (*core, *generation);
                    self.ask_watched(now, token, ask);
                    continue;
                }
                Some(Owner::Here { .. }) => Refusal::unavailable("not_ready"),
                Some(Owner::Node { .. }) => Refusal::other_node(),
                Some(Owner::Nobody { reason }) => Refusal::unavailable(reason),
                Some(Owner::NoLog { why }) => Refusal::no_log(why),
                None => Refusal::unknown_cache(),
            };
            self.refuse_watch(now, token, |s, cx, on| s.answer_refusal(on, &refusal, cx));
        }
    }

    /// What all watches of the core, and those of the shards of the core, may each hold together.
    fn watch_bytes_max(&self) -> usize {
        self.limits.subscriber_queues_bytes_max / QUEUES_PART
    }

    /// Watches that wait for their shard, and what all of them hold.
    pub(super) fn sweep_watches(&mut self, now: Tick) {
        self.watch_again(now);
        self.share_watch_memory(now);
        self.relieve_streams(now);
    }

    /// Over the bound each queue of a shard of the core gets the same share. A single event may be larger than any: when
    /// such ones take more than twice the bound, the shards read nothing until they have gone.
    fn share_watch_memory(&mut self, now: Tick) {
        let sizes = self.caches.values().map(|cache| cache.watches()).filter(|(watches, _)| *watches > 0);
        let (shards, watches, held) =
            sizes.fold((0, 0, 0), |sum, of| (sum.0 + 1, sum.1 + of.0, sum.2 + of.1));
        if shards == 0 {
            return;
        }
        let max = self.watch_bytes_max();
        let share = if held > max { max / watches } else { usize::MAX };
        let (share, all) = (share.max(QUEUE_BYTES_MIN), (2 * max / shards).max(SHARD_BYTES_MIN));
        let ids: Vec<ShardId> =
            self.caches.iter().filter(|(_, cache)| cache.watches().0 > 0).map(|(id, _)| *id).collect();
        for id in ids {
            self.with_cache(now, id, |cache, cx| {
                cache.set_watch_bytes_max(share, all);
                cache.relieve_watches(cx);
            });
        }
        self.route_outputs(now);
    }

    /// What is on its way to streams that are not read: over the bound the watches that hold most end, and can go on from
    /// where they are told.
    fn relieve_streams(&mut self, now: Tick) {
        let mut held = self.watches.held_bytes();
        let max = self.watch_bytes_max();
        if held <= max {
            return;
        }
        let lives =
            self.watches.all.iter().filter_map(|(_, watcher)| Some((watcher, watcher.live.as_ref()?)));
        let lives = lives.filter(|(_, live)| live.delivery.can_give_up());
        let mut all: Vec<_> =
            lives.map(|(watcher, live)| (live.delivery.held_bytes(), watcher.token)).collect();
        all.sort_unstable_by_key(|(bytes, _)| *bytes);
        while let Some((bytes, token)) = all.pop()
            && held > max
        {
            held -= bytes;
            self.give_up_watch(now, token);
        }
    }

    /// Ends a watch whose stream is not read, with where another one goes on or, within a frame, with a reset.
    fn give_up_watch(&mut self, now: Tick, token: SubToken) {
        let Some(watcher) = self.watches.get_mut(token) else { return };
        let conn = watcher.conn;
        let Some(live) = &mut watcher.live else { return };
        self.counters.add(Counter::WatchesLagged, 1);
        let last = |resume_from| encode(&Message::CacheWatchLagged(CacheWatchLagged { resume_from }));
        if live.delivery.give_up(last) {
            self.active.push_back(token);
            self.ask_watched(now, token, WatchAsk::End);
        } else {
            let stream = live.stream;
            self.quic.reset(conn, stream, VarInt::from_u32(RESET_LAGGED));
            self.end_watch(now, token);
        }
    }
}

impl Watcher {
    /// The last frame of a watch whose client may go on elsewhere or with another token, behind what is queued or what is
    /// on its way. Empty when the client does not read it, or no offset says where: it sees the end of the stream then.
    fn moved_frame(&self, generation: Generation, after_queue: bool) -> Bytes {
        let Some(live) = self.live.as_ref().filter(|_| self.reads_moved) else { return Bytes::new() };
        let Some(resume_from) = live.delivery.resume_from(after_queue) else { return Bytes::new() };
        encode(&Message::ShardMoved(ShardMoved {
            subscription_id: live.id,
            resume_from: Some(resume_from),
            node_id: None,
            addr: None,
            generation,
        }))
    }
}
