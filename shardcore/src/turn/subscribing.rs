//! Subscriptions of the connections on this core. Scope: functions of a core.
//! Invariants: the answer to `subscribe` is written before any event; a uni stream is opened with its hello; a subscription
//! ends with its connection, its stream, its identity or its shard, and its feed with its last subscription.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use felix_runtime::clock::Tick;
use felix_runtime::quic::{ConnKey, StreamId, WriteState};
use felix_wire::client::{
    CursorErrorReason, EventStreamHello, Message, ShardMoved, StreamDeleted, SubscribeCursorError,
    Subscribed, SubscriptionLagged,
};
use felix_wire::id::{CoreId, Generation, Offset, SubscriptionId};

use super::core::Core;
use super::counters::Counter;
use super::tenants::{TenantCount, TenantSlot};
use crate::projection::stream::feed::{Feed, PULL_BYTES};
use crate::projection::stream::frame::{Frame, FrameLimits};
use crate::projection::stream::subscription::{PageLimits, QueueLimits, Subscription, SubscriptionKind};
use crate::session::answers::AnswerSlot;
use crate::session::refusal::Refusal;
use crate::session::{Cx, Session, SubscribeAction};
use crate::shard::mail::{Ending, PageLoss, Reader, ShardInput, ShardOutput, SubToken, ToShard};
use crate::shard::ring::Page;
use crate::snapshot::{Owner, ShardId, SlowSubscriber};

/// Bytes written to one subscriber before the next has its turn.
pub(super) const WRITE_QUANTUM_BYTES: usize = 1 << 20;
/// Every subscriber's queue may hold this much, whatever the others hold.
const QUEUE_BYTES_MIN: usize = 256 << 10;

/// One life of a shard as the readers of a core see it: a moved shard has two feeds until its old owner has ended.
pub type FeedKey = (ShardId, Generation);

/// A subscription and where its bytes go.
#[derive(Debug)]
pub struct Sub {
    pub token: SubToken,
    pub conn: ConnKey,
    pub(super) shard: ShardId,
    generation: Generation,
    pub(super) identity: usize,
    pub(super) since: Tick,
    tenant: TenantSlot,
    offsets: bool,
    skips: bool,
    reads_moved: bool,
    reads_deleted: bool,
    reads_lagged: bool,
    reads_codes: bool,
    pub(super) queue: QueueLimits,
    asked_frames: bool,
    answer_on: (StreamId, AnswerSlot),
    /// Set once the owner has confirmed it.
    pub(super) live: Option<LiveSub>,
}

#[derive(Debug)]
pub(super) struct LiveSub {
    pub(super) id: SubscriptionId,
    stream: StreamId,
    pub(super) cursor: Subscription,
}

impl Core {
    pub(super) fn subscribe(&mut self, now: Tick, conn: ConnKey, ask: SubscribeAction) {
        let place = *ask.place.get();
        let limits = &self.limits;
        let Some(session) = self.sessions.get_mut(&conn) else { return };
        let over = self.subs.len() + self.watches.len() >= limits.subscriptions_max as usize
            || session.subscriptions >= limits.subscriptions_per_connection;
        if over {
            let refusal = Refusal::limit("too many subscriptions");
            self.with_session(now, conn, |s, cx| s.answer_refusal((ask.stream, ask.slot), &refusal, cx));
            return;
        }
        let frames = ask.queue_frames.filter(|n| *n > 0).unwrap_or(limits.subscriber_queue_frames);
        let queue = QueueLimits {
            frames_max: frames.min(limits.subscriber_queue_frames_max) as usize,
            bytes_max: limits.subscriber_queue_bytes,
        };
        let entry = self.subs.vacant_entry();
        self.next_sub += 1;
        let token = SubToken((self.next_sub << 20) | (entry.key() as u64 & 0xf_ffff));
        entry.insert(Sub {
            token,
            conn,
            shard: place.shard,
            generation: place.generation,
            identity: ask.identity,
            since: now,
            tenant: session.tenant_slot(ask.identity),
            offsets: ask.offsets,
            skips: ask.skips,
            reads_moved: ask.reads_moved,
            reads_deleted: ask.reads_deleted,
            reads_lagged: ask.reads_lagged,
            reads_codes: ask.reads_codes,
            queue,
            asked_frames: ask.queue_frames.is_some(),
            answer_on: (ask.stream, ask.slot),
            live: None,
        });
        session.subscriptions += 1;
        let key = (place.shard, place.generation);
        let feed = self.feeds.entry(key).or_insert_with(|| Feed::new(place.core));
        feed.subscribers.push(token);
        let hold = self.limits.slow_subscriber == SlowSubscriber::Block;
        let what = ShardInput::Subscribe { token, start: ask.start, hold };
        self.ask_shard(now, place.core, ToShard { shard: place.shard, generation: place.generation, what });
    }

    /// Writes what the subscribers with something to write can write.
    pub(super) fn pump_subscriptions(&mut self, now: Tick) {
        for _ in 0..self.active.len() {
            let Some(token) = self.active.pop_front() else { return };
            self.pump_subscription(now, token);
        }
    }

    /// What a shard said that is not about a publish.
    pub(super) fn handle_reader_answer(
        &mut self,
        now: Tick,
        shard: ShardId,
        generation: Generation,
        what: ShardOutput,
    ) {
        match what {
            ShardOutput::Subscribed { token, start, end, live, logged } => {
                self.confirm(now, token, (start, end, live), logged);
            }
            ShardOutput::PageLost { token, why } => self.page_lost(now, token, why),
            ShardOutput::Watch { token, told } => self.watch_told(now, token, told),
            ShardOutput::SubscribeRefused { token, too_old, requested, available } => {
                let reason = if too_old { CursorErrorReason::TooOld } else { CursorErrorReason::InFuture };
                let answer = SubscribeCursorError { reason, requested, available };
                self.refuse_subscription(now, token, |s, cx, on| {
                    s.answer(on, &Message::SubscribeCursorError(answer), cx);
                });
            }
            ShardOutput::SubscribeMoved { token } => {
                let refusal = Refusal::unavailable("not_ready");
                self.refuse_subscription(now, token, |s, cx, on| s.answer_refusal(on, &refusal, cx));
            }
            ShardOutput::Page { reader: Reader::Live, page } => self.live_page(now, shard, generation, &page),
            ShardOutput::Page { reader: Reader::CatchUp(token), page } => {
                self.catch_up_page(now, token, &page)
            }
            ShardOutput::Ended { why, rest } => self.end_feed(now, shard, generation, (why, &rest)),
            ShardOutput::Published { .. }
            | ShardOutput::Bounced { .. }
            | ShardOutput::Answered { .. }
            | ShardOutput::AskBack { .. }
            | ShardOutput::Refused { .. }
            | ShardOutput::Unknown { .. }
            | ShardOutput::Room => {}
        }
    }

    /// Ends a subscription or a watch without a word: its stream or connection is gone.
    pub(super) fn end_subscription(&mut self, now: Tick, token: SubToken) {
        if token.is_watch() {
            return self.end_watch(now, token);
        }
        let Some(sub) = self.remove_sub(token) else { return };
        let key = (sub.shard, sub.generation);
        let Some(feed) = self.feeds.get_mut(&key) else { return };
        feed.subscribers.retain(|t| *t != token);
        let owner = feed.owner;
        if feed.subscribers.is_empty() {
            self.feeds.remove(&key);
            let to = ToShard { shard: sub.shard, generation: sub.generation, what: ShardInput::Unlink };
            self.ask_shard(now, owner, to);
        } else {
            self.release(now, owner, key, token);
            self.pull(now, key);
        }
    }

    /// A subscription that read below its feed does so no more: what was held for it may go.
    fn release(&mut self, now: Tick, owner: CoreId, (shard, generation): FeedKey, token: SubToken) {
        if self.limits.slow_subscriber == SlowSubscriber::Block {
            let what = ShardInput::Release { token };
            self.ask_shard(now, owner, ToShard { shard, generation, what });
        }
    }

    /// The identity's tokens have run out: its event streams end where the client can go on with a new one.
    pub(super) fn expire_subscriptions(&mut self, now: Tick, conn: ConnKey, identity: usize) {
        self.expire_watches(now, conn, identity);
        let of_identity = |s: &Sub| s.conn == conn && s.identity == identity;
        let tokens: Vec<SubToken> =
            self.subs.iter().filter(|(_, s)| of_identity(s)).map(|(_, s)| s.token).collect();
        for token in tokens {
            let Some(sub) = self.sub_mut(token) else { continue };
            let resume_from = sub.live.as_ref().map_or(Offset(0), |l| l.cursor.undelivered());
            let last = sub.moved_frame(resume_from, sub.generation);
            let key = (sub.shard, sub.generation);
            match &mut sub.live {
                Some(live) => {
                    live.cursor.end(last, false);
                    self.active.push_back(token);
                    if let Some(owner) = self.feeds.get(&key).map(|f| f.owner) {
                        self.release(now, owner, key, token);
                        self.pull(now, key);
                    }
                }
                None => {
                    let refusal = Refusal::unauthenticated();
                    self.refuse_subscription(now, token, |s, cx, on| s.answer_refusal(on, &refusal, cx));
                }
            }
        }
    }

    pub(super) fn sub_mut(&mut self, token: SubToken) -> Option<&mut Sub> {
        self.subs.get_mut((token.0 & 0xf_ffff) as usize).filter(|s| s.token == token)
    }

    /// How far the shard of a subscription has been read here.
    pub(super) fn feed_end(&self, sub: &Sub) -> Offset {
        self.feeds.get(&(sub.shard, sub.generation)).map_or(Offset(0), Feed::end)
    }

    fn frame_limits(&self) -> PageLimits {
        let l = &self.limits;
        PageLimits {
            live: FrameLimits { records_max: l.live_frame_records, bytes_max: l.live_frame_bytes },
            history: FrameLimits { records_max: l.history_frame_records, bytes_max: l.history_frame_bytes },
        }
    }

    fn remove_sub(&mut self, token: SubToken) -> Option<Sub> {
        self.count_delivered(token);
        self.sub_mut(token)?;
        let mut sub = self.subs.remove((token.0 & 0xf_ffff) as usize);
        self.counters.add(Counter::SubscriberDisconnects, 1);
        if let Some(session) = self.sessions.get_mut(&sub.conn) {
            session.subscriptions = session.subscriptions.saturating_sub(1);
        }
        if let Some(live) = &mut sub.live {
            self.event_streams.remove(&(sub.conn, live.stream));
            self.counters.add(Counter::SubscribeDropped, live.cursor.take_dropped());
        }
        Some(sub)
    }

    fn confirm(
        &mut self,
        now: Tick,
        token: SubToken,
        (start, end, live): (Offset, Offset, Offset),
        logged: bool,
    ) {
        let boot = self.boot;
        let policy = self.limits.slow_subscriber;
        let Some(sub) = self.sub_mut(token) else { return };
        let (conn, answer_on, shard, offsets) = (sub.conn, sub.answer_on, sub.shard, sub.offsets);
        let (queue, generation) = (sub.queue, sub.generation);
        let kind = SubscriptionKind { limits: queue, policy, logged, offsets, skips: sub.skips };
        let queue_capacity = sub.asked_frames.then(|| u32::try_from(queue.frames_max).unwrap_or(u32::MAX));
        let Some(stream) = self.quic.open_uni(conn) else {
            let refusal = Refusal::limit("the client allows no more event streams");
            return self.refuse_subscription(now, token, |s, cx, on| s.answer_refusal(on, &refusal, cx));
        };
        let id = SubscriptionId((u64::from(self.id.0) << 40) | (token.0 >> 20));
        let answer = Subscribed {
            subscription_id: id,
            start_offset: offsets.then_some(start),
            live_offset: offsets.then_some(live),
            queue_capacity,
            // Offsets of a log are good for ever.
            boot: (offsets && !logged).then_some(boot ^ (shard.stream.0 << 32) ^ generation.0),
        };
        self.with_session(now, conn, |s, cx| s.answer(answer_on, &Message::Subscribed(answer), cx));
        let mut hello = BytesMut::new();
        Message::EventStreamHello(EventStreamHello { subscription_id: id }).encode_frame(&mut hello);
        let cursor = Subscription::new(start, end, kind, hello.freeze());
        if let Some(sub) = self.sub_mut(token) {
            sub.live = Some(LiveSub { id, stream, cursor });
        }
        self.event_streams.insert((conn, stream), token);
        self.active.push_back(token);
        if let Some(feed) = self.feeds.get_mut(&(shard, generation)) {
            feed.confirmed(end);
        }
        self.pull(now, (shard, generation));
    }

    fn refuse_subscription(
        &mut self,
        now: Tick,
        token: SubToken,
        answer: impl FnOnce(&mut Session, &mut Cx<'_>, (StreamId, AnswerSlot)),
    ) {
        let Some(sub) = self.sub_mut(token) else { return };
        let (conn, on) = (sub.conn, sub.answer_on);
        self.with_session(now, conn, |s, cx| answer(s, cx, on));
        self.end_subscription(now, token);
    }

    fn live_page(&mut self, now: Tick, shard: ShardId, generation: Generation, page: &Page) {
        let limits = self.frame_limits().live;
        let key = (shard, generation);
        let Some(mut feed) = self.feeds.remove(&key) else { return };
        let subscribers = std::mem::take(&mut feed.subscribers);
        feed.take_page(page, limits, |frame| self.offer(&subscribers, &frame));
        feed.subscribers = subscribers;
        self.feeds.insert(key, feed);
        self.pull(now, key);
    }

    /// Gives a frame to every subscription of a feed.
    fn offer(&mut self, subscribers: &[SubToken], frame: &Arc<Frame>) {
        for token in subscribers {
            let Some(live) = self.sub_mut(*token).and_then(|s| s.live.as_mut()) else { continue };
            let idle = live.cursor.is_idle();
            if live.cursor.offer(frame) && idle {
                self.active.push_back(*token);
            }
        }
    }

    fn catch_up_page(&mut self, now: Tick, token: SubToken, page: &Page) {
        let limits = self.frame_limits();
        let Some(sub) = self.sub_mut(token) else { return };
        let key = (sub.shard, sub.generation);
        let Some(feed) = self.feeds.get(&key) else { return };
        let (feed_end, owner) = (feed.end(), feed.owner);
        let Some(live) = self.sub_mut(token).and_then(|s| s.live.as_mut()) else { return };
        if live.cursor.take_page(page, feed_end, limits) {
            self.release(now, owner, key, token);
        }
        self.active.push_back(token);
        self.pull(now, key);
    }

    /// What a subscription wanted to read is not there: it is told, and ends if it can be told how to go on.
    fn page_lost(&mut self, now: Tick, token: SubToken, why: PageLoss) {
        let Some(sub) = self.sub_mut(token) else { return };
        let lagged = sub.reads_lagged && sub.offsets;
        let codes = sub.reads_codes;
        let Some(live) = &mut sub.live else { return };
        let (subscription_id, resume_from) = (live.id, live.cursor.next());
        match why {
            PageLoss::TooOld(_) if lagged => {
                let last = SubscriptionLagged { subscription_id, resume_from };
                live.cursor.end(encode(&Message::SubscriptionLagged(last)), true);
            }
            PageLoss::TooOld(oldest) => live.cursor.lose_until(oldest),
            PageLoss::Damaged { from, next } => {
                live.cursor.end(encode(&Refusal::damaged(from, next).to_message(codes)), true);
            }
            PageLoss::Unreadable => {
                live.cursor.end(encode(&Refusal::unreadable().to_message(codes)), true);
            }
        }
        self.active.push_back(token);
        self.pump_subscription(now, token);
    }

    /// Sends the feed's pull when one is due.
    fn pull(&mut self, now: Tick, (shard, generation): FeedKey) {
        let Some(feed) = self.feeds.get_mut(&(shard, generation)) else { return };
        let subs = &self.subs;
        let blocks = |token: SubToken| {
            let sub = subs.get((token.0 & 0xf_ffff) as usize).filter(|s| s.token == token);
            sub.and_then(|s| s.live.as_ref()).is_some_and(|l| l.cursor.blocks())
        };
        let Some(from) = feed.wants_pull(blocks) else { return };
        let owner = feed.owner;
        let what = ShardInput::Pull { reader: Reader::Live, from, bytes_max: PULL_BYTES };
        self.ask_shard(now, owner, ToShard { shard, generation, what });
    }

    fn pump_subscription(&mut self, now: Tick, token: SubToken) {
        if token.is_watch() {
            return self.pump_watch(now, token);
        }
        let mut written = 0;
        loop {
            let Some(sub) = self.subs.get_mut((token.0 & 0xf_ffff) as usize).filter(|s| s.token == token)
            else {
                return;
            };
            let (conn, key) = (sub.conn, (sub.shard, sub.generation));
            let Some(live) = sub.live.as_mut() else { return };
            if written >= WRITE_QUANTUM_BYTES {
                self.active.push_back(token);
                return self.pull(now, key);
            }
            let Some(chunk) = live.cursor.chunk() else { break };
            let outcome = self.quic.write(conn, live.stream, chunk);
            written += outcome.written;
            match outcome.state {
                WriteState::All => {}
                WriteState::Blocked => break,
                WriteState::Stopped(_) | WriteState::Gone => return self.end_subscription(now, token),
            }
        }
        self.counters.add(Counter::EventBytes, written as u64);
        self.count_delivered(token);
        self.after_pump(now, token);
    }

    /// Shares the core's memory for queues out when they hold more than that. A shard counts as its longest queue, since
    /// its subscriptions hold the same frames.
    pub(super) fn bound_queues(&mut self) {
        let subs = &self.subs;
        let live = |token: &SubToken| subs.get((token.0 & 0xf_ffff) as usize).and_then(|s| s.live.as_ref());
        let queued = |token: &SubToken| live(token).map_or(0, |l| l.cursor.queue_bytes());
        let longest = self.feeds.values().map(|feed| feed.subscribers.iter().map(queued).max().unwrap_or(0));
        let (held, max) = (longest.sum::<usize>(), self.limits.subscriber_queues_bytes_max);
        let share = if held > max { max / self.feeds.len() } else { usize::MAX };
        let bytes_max = share.max(QUEUE_BYTES_MIN).min(self.limits.subscriber_queue_bytes);
        for live in self.subs.iter_mut().filter_map(|(_, s)| s.live.as_mut()) {
            live.cursor.set_queue_bytes_max(bytes_max);
        }
    }

    /// Counts what subscriptions have lost since the last time.
    pub(super) fn count_dropped(&mut self) {
        let lives = self.subs.iter_mut().filter_map(|(_, s)| s.live.as_mut());
        let dropped = lives.map(|l| l.cursor.take_dropped()).sum();
        self.counters.add(Counter::SubscribeDropped, dropped);
    }

    /// Counts what the subscriber's stream was given, and for its tenant.
    fn count_delivered(&mut self, token: SubToken) {
        let Some(sub) = self.sub_mut(token) else { return };
        let tenant = sub.tenant;
        let Some(delivered) = sub.live.as_mut().map(|l| l.cursor.take_delivered()) else { return };
        self.counters.add(Counter::EventFrames, delivered.frames);
        self.tenants.add(tenant, TenantCount::DeliveredRecords, delivered.records);
        self.tenants.add(tenant, TenantCount::DeliveredBytes, delivered.payload_bytes);
    }

    fn after_pump(&mut self, now: Tick, token: SubToken) {
        let Some(sub) = self.sub_mut(token) else { return };
        let (conn, shard, generation) = (sub.conn, sub.shard, sub.generation);
        let Some(live) = sub.live.as_mut() else { return };
        if live.cursor.is_done() {
            let stream = live.stream;
            self.quic.finish(conn, stream);
            return self.end_subscription(now, token);
        }
        if let Some((from, bytes_max)) = live.cursor.wants_page() {
            let owner = self.feeds.get(&(shard, generation)).map(|f| f.owner);
            let what = ShardInput::Pull { reader: Reader::CatchUp(token), from, bytes_max };
            if let Some(owner) = owner {
                self.ask_shard(now, owner, ToShard { shard, generation, what });
            }
        }
        self.pull(now, (shard, generation));
    }

    fn end_feed(&mut self, now: Tick, shard: ShardId, generation: Generation, (why, rest): (Ending, &Page)) {
        let Some(mut feed) = self.feeds.remove(&(shard, generation)) else { return };
        let subscribers = std::mem::take(&mut feed.subscribers);
        let limits = self.frame_limits();
        for token in &subscribers {
            if let Some(live) = self.sub_mut(*token).and_then(|s| s.live.as_mut()) {
                live.cursor.take_rest(rest, limits);
            }
        }
        feed.take_rest(rest, limits.live, |frame| self.offer(&subscribers, &frame));
        let next_generation = match self.routes.owner(shard) {
            Some(Owner::Here { generation, .. } | Owner::Node { generation, .. }) => *generation,
            Some(Owner::Nobody { .. } | Owner::NoLog { .. }) | None => generation,
        };
        for token in subscribers {
            let Some(sub) = self.sub_mut(token) else { continue };
            let last = match why {
                Ending::Moved => {
                    let next = sub.live.as_ref().filter(|l| l.cursor.is_logged()).map(|l| l.cursor.next());
                    // In memory a new generation counts from 0 again, and all of it is new to the client.
                    sub.moved_frame(next.unwrap_or(Offset(0)), next_generation)
                }
                Ending::Deleted => sub.deleted_frame(),
            };
            match sub.live.as_mut() {
                Some(live) => {
                    live.cursor.end(last, true);
                    self.active.push_back(token);
                }
                None => {
                    let refusal = Refusal::unavailable("moving");
                    self.refuse_subscription(now, token, |s, cx, on| s.answer_refusal(on, &refusal, cx));
                }
            }
        }
    }
}

impl Sub {
    /// The last frame of a subscription whose client may go on at `resume_from`, elsewhere or with another token.
    fn moved_frame(&self, resume_from: Offset, generation: Generation) -> Bytes {
        let Some(live) = self.live.as_ref().filter(|_| self.reads_moved) else { return Bytes::new() };
        let moved = ShardMoved {
            subscription_id: live.id,
            resume_from: Some(resume_from),
            node_id: None,
            addr: None,
            generation,
        };
        encode(&Message::ShardMoved(moved))
    }

    fn deleted_frame(&self) -> Bytes {
        let Some(live) = self.live.as_ref().filter(|_| self.reads_deleted) else { return Bytes::new() };
        encode(&Message::StreamDeleted(StreamDeleted { subscription_id: live.id }))
    }
}

pub(super) fn encode(message: &Message<'_>) -> Bytes {
    let mut out = BytesMut::new();
    message.encode_frame(&mut out);
    out.freeze()
}
