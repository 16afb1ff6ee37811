//! Publishes on their way from a session to a shard and back. Scope: functions of a core.
//! Invariants: a lane keeps submit order; what goes to another core holds credit of the pair until it is answered; an
//! acked publish that waits too long is refused with nothing claimed; nothing unacked is shed unless shedding is on.

use std::vec::Drain;

use felix_runtime::clock::Tick;
use felix_runtime::quic::{ConnKey, StreamId};
use felix_wire::id::CoreId;

use super::core::Core;
use super::counters::Counter;
use super::lane::Lane;
use super::tenants::{TenantCount, TenantSlot};
use crate::session::acks::{AckSlot, Outcome};
use crate::session::refusal::Refusal;
use crate::session::{Action, Publish};
use crate::shard::ask::{Ask, Asker};
use crate::shard::mail::{self, Bounce, FromShard, JobToken, ShardInput, ShardOutput, ToShard};
use crate::shard::ring::SLOT_OVERHEAD_BYTES;
use crate::shard::{Shard, ShardCx};
use crate::snapshot::{Owner, ShardId};

/// What came of trying to send the next publish of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sent {
    One,
    /// Nothing is there to be sent, or the lane is closed for now.
    Nothing,
    /// The pair of cores has no credit left; the lane is queued for it.
    NoCredit,
}

/// Where a publish came from.
#[derive(Clone, Copy, Debug)]
pub struct Origin {
    pub conn: ConnKey,
    pub stream: StreamId,
    pub tenant: TenantSlot,
}

/// Publishes of a stream that were appended at once.
#[derive(Debug, Default)]
struct Settled {
    publishes: u32,
    /// As the stream counts them.
    bytes: usize,
    records: u64,
    payload_bytes: u64,
}

impl Settled {
    fn count(&mut self, bytes: usize, (records, payload_bytes): (u32, usize)) {
        self.publishes += 1;
        self.bytes += bytes;
        self.records += u64::from(records);
        self.payload_bytes += payload_bytes as u64;
    }
}

/// A publish that is not settled.
#[derive(Debug)]
pub struct Job {
    origin: Origin,
    ack: Option<AckSlot>,
    bytes: usize,
    /// Its records, and the bytes of their payloads.
    payload: (u32, usize),
    /// When an acked one, or one whose connection is gone, is given up while it waits.
    deadline: Tick,
    /// The other core whose credit it holds.
    credit_of: Option<CoreId>,
}

impl Core {
    /// Takes a granted publish, and of those behind it the ones that go the same way.
    pub(super) fn publish(
        &mut self,
        now: Tick,
        origin: Origin,
        first: Publish,
        behind: &mut Drain<'_, Action>,
    ) {
        let publish = match first.place.get().core == self.id && first.producer.is_none() {
            true => match self.append_here(origin, first, behind) {
                None => return,
                Some(publish) => publish,
            },
            false => first,
        };
        self.submit(now, origin, publish);
    }

    /// Hands a publish to its lane.
    fn submit(&mut self, now: Tick, origin: Origin, publish: Publish) {
        let Publish { place, records, producer, ack, .. } = publish;
        let place = *place.get();
        let bytes = records.encoded_len();
        let deadline = now + self.limits.publish_queue_wait;
        let payload = (records.count(), records.payload_bytes());
        let job = Job { origin, ack, bytes, payload, deadline, credit_of: None };
        let token = JobToken(self.jobs.insert(job) as u64);
        let lane = self.lanes.entry(place.shard).or_insert_with(|| Lane::new(place.core, place.generation));
        lane.reroute(place.core, place.generation);
        if self.limits.shed && ack.is_none() && !lane.is_open() {
            self.counters.add(Counter::PublishesShed, 1);
            self.tenants.add(origin.tenant, TenantCount::Shed, 1);
            return self.settle(token, None);
        }
        lane.submit(mail::Job { token, records, producer });
        self.run_lane(now, place.shard);
    }

    /// Appends a publish to a shard of this core that is in memory and has room, when nothing is held back that was sent
    /// before it: it is settled here and now, without a job. So are those right behind it on the same stream to the same
    /// shard. The first one for which that is not so comes back and goes the long way.
    fn append_here(
        &mut self,
        origin: Origin,
        first: Publish,
        behind: &mut Drain<'_, Action>,
    ) -> Option<Publish> {
        let place = *first.place.get();
        let Some(shard) = self.shards.get_mut(&place.shard).filter(|s| s.generation() == place.generation)
        else {
            return Some(first);
        };
        let lane = self.lanes.entry(place.shard).or_insert_with(|| Lane::new(place.core, place.generation));
        lane.reroute(place.core, place.generation);
        let at = lane.at_once().filter(|at| shard.takes_at_once(self.id, *at));
        let Some(at) = at else { return Some(first) };
        let others = self.rings_bytes - shard.ring_bytes();
        let mut done = Settled::default();
        let mut next = Some(first);
        while let Some(publish) = next.take() {
            let free_bytes = self.limits.rings_bytes_max.saturating_sub(others + shard.ring_bytes());
            let (bytes, payload) =
                (publish.records.encoded_len(), (publish.records.count(), publish.records.payload_bytes()));
            match shard.append_records(publish.records, free_bytes) {
                Ok(base) => {
                    done.count(bytes, payload);
                    self.answers.extend(publish.ack.map(|slot| (slot, base)));
                }
                Err(records) => {
                    next = Some(Publish { records, ..publish });
                    break;
                }
            }
            // Looked at where it lies: moving it to look costs as much as appending it.
            if behind.as_slice().first().is_some_and(|action| action.goes_with(origin.stream, &place)) {
                next = behind.next().and_then(Action::into_publish);
            }
        }
        self.rings_bytes = others + shard.ring_bytes();
        if done.publishes > 0 {
            lane.passed(done.publishes);
            shard.appended_at_once(self.id, at.behind(done.publishes));
            if self.dirty.last() != Some(&place.shard) {
                self.dirty.push(place.shard);
            }
            self.settle_here(origin, done);
        }
        next
    }

    /// Tells the session how the publishes of a stream that were appended at once have ended.
    fn settle_here(&mut self, origin: Origin, done: Settled) {
        let Origin { conn, stream, tenant } = origin;
        self.counters.add(Counter::PublishesWritten, u64::from(done.publishes));
        self.tenants.add(tenant, TenantCount::PublishedRecords, done.records);
        self.tenants.add(tenant, TenantCount::PublishedBytes, done.payload_bytes);
        let answers = !self.answers.is_empty();
        let written = self.answers.drain(..);
        let Some(session) = self.sessions.get_mut(&conn) else { return };
        let written = written.map(|(slot, base)| (slot, Outcome::Written { base, logged: false }));
        let held = session.settle(stream, (done.publishes as usize, done.bytes), written);
        self.touch(origin, answers || held);
    }

    fn touch(&mut self, origin: Origin, needed: bool) {
        let at = (origin.conn, origin.stream);
        if needed && self.touched.last() != Some(&at) {
            self.touched.push(at);
        }
    }

    /// Sends what the lane and the credit allow. A lane that waits for credit waits for its turn.
    pub(super) fn run_lane(&mut self, now: Tick, shard: ShardId) {
        if self.lanes.get(&shard).is_some_and(|l| !l.queued_for_credit) {
            while self.send_one(now, shard) == Sent::One {}
        }
        self.note_blocked(shard);
    }

    /// Gives credit that came back to the lanes that wait for it, one publish each in turn.
    pub(super) fn serve_credit(&mut self, now: Tick) {
        for owner in 0..self.credit_queues.len() {
            while let Some(shard) = self.credit_queues[owner].pop_front() {
                let Some(lane) = self.lanes.get_mut(&shard) else { continue };
                lane.queued_for_credit = false;
                match self.send_one(now, shard) {
                    Sent::One => self.wait_for_credit(shard),
                    Sent::Nothing => {}
                    Sent::NoCredit => {
                        // It queued itself again; if for the same owner, it keeps its place.
                        let queue = &mut self.credit_queues[owner];
                        if queue.back() == Some(&shard) {
                            queue.rotate_right(1);
                            break;
                        }
                    }
                }
            }
        }
    }

    /// Sends the next publish of a lane, if it has one that may be sent.
    fn send_one(&mut self, now: Tick, shard: ShardId) -> Sent {
        let Some(lane) = self.lanes.get_mut(&shard) else { return Sent::Nothing };
        let (owner, generation) = (lane.owner, lane.generation);
        let Some(bytes) = lane.next_bytes() else { return Sent::Nothing };
        let remote = owner != self.id;
        if remote && !self.credits[usize::from(owner.0)].take(bytes as u64) {
            self.wait_for_credit(shard);
            return Sent::NoCredit;
        }
        let Some((at, job)) = lane.send() else { return Sent::Nothing };
        if remote {
            self.counters.add(Counter::CrossCorePublishes, 1);
            if let Some(held) = self.jobs.get_mut(job.token.0 as usize) {
                held.credit_of = Some(owner);
            }
        }
        let to = ToShard { shard, generation, what: ShardInput::Publish { at, job } };
        if remote {
            self.ask_shard(now, owner, to);
        } else {
            // The answer is taken here and not by `route_outputs`, which would come back to this lane once per publish.
            self.handle_ask(now, owner, to);
            if let Some((_, answer)) = self.shard_out.pop() {
                self.publish_answer(now, answer);
            }
        }
        Sent::One
    }

    fn wait_for_credit(&mut self, shard: ShardId) {
        let Some(lane) = self.lanes.get_mut(&shard) else { return };
        if lane.next_bytes().is_some() && !std::mem::replace(&mut lane.queued_for_credit, true) {
            self.credit_queues[usize::from(lane.owner.0)].push_back(shard);
        }
    }

    /// A request for a shard of this core.
    pub(super) fn handle_ask(&mut self, now: Tick, from: CoreId, to: ToShard) {
        let ToShard { shard: id, generation, what } = to;
        let what = match what {
            ShardInput::Ask { token, ask: Ask::Group(ask) } => {
                let asker = Asker { core: from, token };
                return self.handle_group_ask(now, asker, (id, generation), *ask);
            }
            ShardInput::Ask { token, ask: Ask::Lease(ask) } => {
                let asker = Asker { core: from, token };
                return self.handle_lease_ask(now, asker, (id, generation), *ask);
            }
            ShardInput::Ask { token, ask: Ask::Stream(ask) } => {
                let asker = Asker { core: from, token };
                return self.handle_stream_ask(now, asker, (id, generation), ask);
            }
            ShardInput::Ask { token, ask } => {
                return self.handle_cache_ask(now, (from, token), (id, generation), ask);
            }
            ShardInput::Watch { token, ask } => {
                return self.handle_watch(now, (from, token), (id, generation), ask);
            }
            ShardInput::Cancel { token } => {
                let asker = Asker { core: from, token };
                self.cancel_heartbeat(now, asker, id);
                return self.cancel_poll(now, asker, id);
            }
            other => other,
        };
        let shard = self.shards.get_mut(&id).filter(|s| s.generation() == generation);
        let Some(shard) = shard else {
            let what = match what {
                ShardInput::Publish { job, .. } => ShardOutput::Bounced { job, why: Bounce::Moved },
                ShardInput::Subscribe { token, .. } => ShardOutput::SubscribeMoved { token },
                ShardInput::Ask { token, ask } => ShardOutput::AskBack { token, ask },
                ShardInput::Pull { .. }
                | ShardInput::Release { .. }
                | ShardInput::Unlink
                | ShardInput::Watch { .. }
                | ShardInput::Cancel { .. } => return,
            };
            self.shard_out.push((from, FromShard { shard: id, generation, what }));
            return;
        };
        let before = shard.ring_bytes();
        let mut cx = ShardCx {
            free_bytes: self.limits.rings_bytes_max.saturating_sub(self.rings_bytes),
            store: self.store.as_mut(),
            unix_ms: self.unix_ms,
            now,
            out: &mut self.shard_out,
        };
        match what {
            ShardInput::Publish { at, job } => {
                shard.publish(from, at, job, &mut cx);
                self.rings_bytes = self.rings_bytes + shard.ring_bytes() - before;
                if shard.starved_bytes().is_some() && !self.starved.contains(&id) {
                    self.starved.push(id);
                    self.rings_moved = true;
                }
            }
            other => {
                shard.handle(from, other, &mut cx);
                self.rings_moved = true;
            }
        }
        if self.dirty.last() != Some(&id) {
            self.dirty.push(id);
        }
    }

    /// What a shard said to this core.
    pub(super) fn handle_answer(&mut self, now: Tick, answer: FromShard) {
        let shard = answer.shard;
        match answer.what {
            ShardOutput::Published { .. }
            | ShardOutput::Bounced { .. }
            | ShardOutput::Refused { .. }
            | ShardOutput::Unknown { .. } => self.publish_answer(now, answer),
            ShardOutput::Answered { token, reply } => return self.ask_answered(token, &reply),
            ShardOutput::AskBack { token, ask } => return self.ask_came_back(token, ask),
            ShardOutput::Room => {
                if let Some(lane) = self.lanes.get_mut(&shard) {
                    lane.room();
                }
            }
            other => return self.handle_reader_answer(now, shard, answer.generation, other),
        }
        if self.lanes.get(&shard).is_some_and(|l| l.queued() > 0) {
            self.run_lane(now, shard);
        }
    }

    /// How a publish ended, or that it came back.
    fn publish_answer(&mut self, now: Tick, answer: FromShard) {
        match answer.what {
            ShardOutput::Published { token, base, logged } => {
                if let Some(lane) = self.lanes.get_mut(&answer.shard) {
                    lane.published(now);
                }
                self.counters.add(Counter::PublishesWritten, 1);
                self.settle(token, Some(Outcome::Written { base, logged }));
            }
            ShardOutput::Refused { token, why } => {
                if let Some(lane) = self.lanes.get_mut(&answer.shard) {
                    lane.published(now);
                }
                self.refuse_job(token, Refusal::not_written(why));
            }
            ShardOutput::Unknown { token, why } => {
                if let Some(lane) = self.lanes.get_mut(&answer.shard) {
                    lane.published(now);
                }
                self.counters.add(Counter::PublishesUnknown, 1);
                self.settle(token, Some(Outcome::Refused(Box::new(Refusal::outcome_unknown(why)))));
            }
            ShardOutput::Bounced { job, why } => {
                self.counters.add(Counter::PublishesBounced, 1);
                self.return_credit(job.token);
                match self.lanes.get_mut(&answer.shard) {
                    Some(lane) => lane.bounced(job, why, now),
                    None => self.refuse_job(job.token, Refusal::unavailable("moving")),
                }
            }
            _ => debug_assert!(false, "not an answer to a publish"),
        }
    }

    /// Publishes whose shard this node serves no more, or elsewhere, go on or are refused.
    pub(super) fn reroute_lanes(&mut self, now: Tick) {
        let ids: Vec<ShardId> = self.lanes.keys().copied().collect();
        for id in ids {
            self.reroute_lane(now, id);
        }
    }

    /// Deadlines and retries of the lanes that hold something back.
    pub(super) fn sweep_lanes(&mut self, now: Tick) {
        let mut parked = 0;
        for id in std::mem::take(&mut self.blocked) {
            let Some(lane) = self.lanes.get_mut(&id) else { continue };
            lane.listed = false;
            let due = lane.next_timeout().is_some_and(|at| at <= now);
            self.expire_lane(now, id);
            if due {
                self.reroute_lane(now, id);
            } else {
                self.run_lane(now, id);
            }
            parked += self.lanes.get(&id).map_or(0, Lane::queued);
        }
        self.counters.set(Counter::PublishesParked, parked as u64);
        self.lanes.retain(|_, lane| !lane.is_idle());
    }

    fn note_blocked(&mut self, shard: ShardId) {
        if let Some(lane) = self.lanes.get_mut(&shard)
            && lane.queued() > 0
            && !std::mem::replace(&mut lane.listed, true)
        {
            self.blocked.push(shard);
        }
    }

    /// Brings a lane up to the newest routes: to the shard's owner now, or its publishes are refused.
    fn reroute_lane(&mut self, now: Tick, id: ShardId) {
        match self.routes.owner(id) {
            Some(Owner::Here { core, generation }) => {
                let (core, generation) = (*core, *generation);
                if let Some(lane) = self.lanes.get_mut(&id) {
                    lane.reroute(core, generation);
                    lane.handle_timeout(now);
                }
                self.run_lane(now, id);
            }
            Some(Owner::Node { .. }) => self.refuse_lane(id, &Refusal::unavailable("stale")),
            Some(Owner::Nobody { reason }) => self.refuse_lane(id, &Refusal::unavailable(reason)),
            Some(Owner::NoLog { why }) => {
                let refusal = Refusal::no_log(why);
                self.refuse_lane(id, &refusal);
            }
            None => self.refuse_lane(id, &Refusal::unknown_stream()),
        }
    }

    /// Refuses what the lane holds; nothing of it was claimed. What is outstanding comes back and is refused then.
    fn refuse_lane(&mut self, id: ShardId, refusal: &Refusal) {
        let Some(lane) = self.lanes.get_mut(&id) else { return };
        for job in lane.expire(|_| true) {
            self.refuse_job(job.token, refusal.clone());
        }
    }

    fn expire_lane(&mut self, now: Tick, id: ShardId) {
        let Some(lane) = self.lanes.get_mut(&id) else { return };
        let jobs = &self.jobs;
        let sessions = &self.sessions;
        let expired = lane.expire(|token| {
            let Some(job) = jobs.get(token.0 as usize) else { return true };
            job.deadline <= now && (job.ack.is_some() || !sessions.contains_key(&job.origin.conn))
        });
        let wait_ms = u64::try_from(self.limits.publish_queue_wait.as_millis()).unwrap_or(u64::MAX);
        for job in expired {
            self.counters.add(Counter::PublishesExpired, 1);
            if let Some(held) = self.jobs.get(job.token.0 as usize) {
                self.tenants.add(held.origin.tenant, TenantCount::Expired, 1);
            }
            self.refuse_job(job.token, Refusal::overloaded(wait_ms / 4));
        }
    }

    fn refuse_job(&mut self, token: JobToken, refusal: Refusal) {
        let job = self.jobs.get(token.0 as usize);
        let acked = job.is_some_and(|j| j.ack.is_some());
        if let Some(job) = job {
            self.tenants.add(job.origin.tenant, TenantCount::Refused, 1);
        }
        self.counters.add(if acked { Counter::PublishesRefused } else { Counter::PublishesDropped }, 1);
        self.settle(token, Some(Outcome::Refused(Box::new(refusal))));
    }

    /// Ends a publish at its session.
    fn settle(&mut self, token: JobToken, outcome: Option<Outcome>) {
        self.return_credit(token);
        let Some(job) = self.jobs.try_remove(token.0 as usize) else { return };
        let Origin { conn, stream, tenant } = job.origin;
        if matches!(outcome, Some(Outcome::Written { .. })) {
            self.tenants.add(tenant, TenantCount::PublishedRecords, u64::from(job.payload.0));
            self.tenants.add(tenant, TenantCount::PublishedBytes, job.payload.1 as u64);
        }
        let Some(session) = self.sessions.get_mut(&conn) else { return };
        let ack = job.ack.zip(outcome);
        let answers = ack.is_some();
        let held = session.settle(stream, (1, job.bytes), ack);
        self.touch(job.origin, answers || held);
    }

    fn return_credit(&mut self, token: JobToken) {
        let Some(job) = self.jobs.get_mut(token.0 as usize) else { return };
        if let Some(core) = job.credit_of.take() {
            self.credits[usize::from(core.0)].give(job.bytes as u64);
        }
    }

    /// After rings gave up bytes or pins: makes room for the senders that were turned away, who are told by the next
    /// flush of their shards.
    pub(super) fn retry_starved(&mut self) {
        if !std::mem::take(&mut self.rings_moved) || self.starved.is_empty() {
            return;
        }
        let mut needed = 0;
        let shards = &self.shards;
        self.starved.retain(|id| {
            let bytes = shards.get(id).and_then(Shard::starved_bytes);
            needed = needed.max(bytes.unwrap_or(0));
            bytes.is_some()
        });
        self.shrink_rings(needed);
        self.dirty.extend(&self.starved);
    }

    /// Frees `needed` bytes of the core's ring budget, and some more: the largest rings give first, and what is pinned
    /// in one is looked for in the next.
    fn shrink_rings(&mut self, needed: usize) {
        let max = self.limits.rings_bytes_max;
        let target = max.saturating_sub((max / 64).max(needed + SLOT_OVERHEAD_BYTES));
        if self.rings_bytes <= target {
            return;
        }
        let mut by_size: Vec<(usize, ShardId)> =
            self.shards.iter().map(|(id, s)| (s.ring_bytes(), *id)).collect();
        by_size.sort_unstable_by(|a, b| b.cmp(a));
        for (_, id) in by_size {
            let Some(shard) = self.shards.get_mut(&id) else { continue };
            while self.rings_bytes > target {
                match shard.shrink() {
                    0 => break,
                    bytes => self.rings_bytes -= bytes,
                }
            }
        }
    }
}
