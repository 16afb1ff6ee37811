//! Publishes on their way from a session to a shard and back. Scope: functions of a core.
//! Invariants: a lane keeps submit order; what goes to another core holds credit of the pair until it is answered; an
//! acked publish that waits too long is refused with nothing claimed; nothing unacked is shed unless shedding is on.

use felix_runtime::clock::Tick;
use felix_runtime::quic::{ConnKey, StreamId};
use felix_wire::client::Records;
use felix_wire::id::CoreId;

use super::core::Core;
use super::counters::Counter;
use super::lane::Lane;
use crate::access::Granted;
use crate::route::Place;
use crate::session::acks::{AckSlot, Outcome};
use crate::session::refusal::Refusal;
use crate::shard::mail::{self, Bounce, FromShard, JobToken, ShardInput, ShardOutput, ToShard};
use crate::snapshot::{Owner, ShardId};

/// A publish that is not settled.
#[derive(Debug)]
pub struct Job {
    conn: ConnKey,
    stream: StreamId,
    ack: Option<AckSlot>,
    bytes: usize,
    /// When an acked one, or one whose connection is gone, is given up while it waits.
    deadline: Tick,
    /// The other core whose credit it holds.
    credit_of: Option<CoreId>,
}

impl Core {
    /// Hands a granted publish to its lane.
    pub(super) fn publish(
        &mut self,
        now: Tick,
        (conn, stream): (ConnKey, StreamId),
        place: &Granted<Place>,
        records: Records,
        ack: Option<AckSlot>,
    ) {
        let place = *place.get();
        let bytes = records.encoded_len();
        let deadline = now + self.limits.publish_queue_wait;
        let job = Job { conn, stream, ack, bytes, deadline, credit_of: None };
        let token = JobToken(self.jobs.insert(job) as u64);
        let lane = self.lanes.entry(place.shard).or_insert_with(|| Lane::new(place.core, place.generation));
        lane.reroute(place.core, place.generation);
        if self.limits.shed && ack.is_none() && !lane.is_open() {
            self.counters.add(Counter::PublishesShed, 1);
            return self.settle(token, None);
        }
        lane.submit(mail::Job { token, records });
        self.run_lane(now, place.shard);
    }

    /// Sends what the lane and the credit allow.
    pub(super) fn run_lane(&mut self, now: Tick, shard: ShardId) {
        loop {
            let Some(lane) = self.lanes.get_mut(&shard) else { return };
            let owner = lane.owner;
            let Some(bytes) = lane.next_bytes() else { break };
            let remote = owner != self.id;
            if remote && !self.credits[usize::from(owner.0)].take(bytes as u64) {
                break;
            }
            let generation = lane.generation;
            let Some((epoch, job)) = lane.send() else { break };
            if remote {
                self.counters.add(Counter::CrossCorePublishes, 1);
                if let Some(held) = self.jobs.get_mut(job.token.0 as usize) {
                    held.credit_of = Some(owner);
                }
            }
            self.to_shard(now, owner, ToShard { shard, generation, what: ShardInput::Publish { epoch, job } });
        }
        self.note_blocked(shard);
    }

    /// A request for a shard of this core.
    pub(super) fn to_own_shard(&mut self, from: CoreId, to: ToShard) {
        let ToShard { shard: id, generation, what } = to;
        let shard = self.shards.get_mut(&id).filter(|s| s.generation() == generation);
        let Some(shard) = shard else {
            let what = match what {
                ShardInput::Publish { epoch, job } => ShardOutput::Bounced { epoch, job, why: Bounce::Moved },
                ShardInput::Subscribe { token, .. } => ShardOutput::SubscribeMoved { token },
                ShardInput::Pull { .. } | ShardInput::Unlink => return,
            };
            self.shard_out.push((from, FromShard { shard: id, generation, what }));
            return;
        };
        let before = shard.ring_bytes();
        match what {
            ShardInput::Publish { epoch, job } => {
                let room = self.rings_bytes + job.records.encoded_len() <= self.limits.rings_bytes_max;
                shard.publish(from, epoch, job, room, &mut self.shard_out);
                self.rings_bytes = self.rings_bytes + shard.ring_bytes() - before;
                if !room {
                    self.shrink_rings();
                }
            }
            other => {
                shard.handle(from, other, &mut self.shard_out);
                self.rings_bytes = self.rings_bytes + shard.ring_bytes() - before;
            }
        }
        if self.dirty.last() != Some(&id) {
            self.dirty.push(id);
        }
    }

    /// What a shard said to this core.
    pub(super) fn from_shard(&mut self, now: Tick, answer: FromShard) {
        let FromShard { shard, generation, what } = answer;
        match what {
            ShardOutput::Published { token, base } => {
                if let Some(lane) = self.lanes.get_mut(&shard) {
                    lane.published(now);
                }
                self.counters.add(Counter::PublishesWritten, 1);
                self.settle(token, Some(Outcome::Written(base)));
                self.run_held_lane(now, shard);
            }
            ShardOutput::Bounced { job, why, .. } => {
                self.counters.add(Counter::PublishesBounced, 1);
                self.return_credit(job.token);
                if let Some(lane) = self.lanes.get_mut(&shard) {
                    lane.bounced(job, why, now);
                }
                self.run_held_lane(now, shard);
            }
            ShardOutput::Room => {
                if let Some(lane) = self.lanes.get_mut(&shard) {
                    lane.room();
                }
                self.run_held_lane(now, shard);
            }
            other => self.from_shard_to_readers(now, shard, generation, other),
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
            if let Some(lane) = self.lanes.get_mut(&id) {
                lane.handle_timeout(now);
            }
            self.expire_lane(now, id);
            self.run_lane(now, id);
            parked += self.lanes.get(&id).map_or(0, Lane::queued);
        }
        self.counters.set(Counter::PublishesParked, parked as u64);
        self.lanes.retain(|_, lane| !lane.is_idle());
    }

    fn run_held_lane(&mut self, now: Tick, shard: ShardId) {
        if self.lanes.get(&shard).is_some_and(|l| l.queued() > 0) {
            self.run_lane(now, shard);
        }
    }

    fn note_blocked(&mut self, shard: ShardId) {
        let held = self.lanes.get(&shard).is_some_and(|l| l.queued() > 0);
        if held && !self.blocked.contains(&shard) {
            self.blocked.push(shard);
        }
    }

    fn reroute_lane(&mut self, now: Tick, id: ShardId) {
        let place = self.routes.iter().find(|r| r.uid == id.stream).and_then(|r| r.owners.get(id.shard.0 as usize));
        match place {
            Some(Owner::Here { core, generation }) => {
                let (core, generation) = (*core, *generation);
                if let Some(lane) = self.lanes.get_mut(&id) {
                    lane.reroute(core, generation);
                }
                self.run_lane(now, id);
            }
            Some(Owner::Node { .. }) => self.refuse_lane(id, &Refusal::unavailable("stale")),
            Some(Owner::Nobody { reason }) => self.refuse_lane(id, &Refusal::unavailable(reason)),
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
            job.deadline <= now && (job.ack.is_some() || !sessions.contains_key(&job.conn))
        });
        let wait_ms = u64::try_from(self.limits.publish_queue_wait.as_millis()).unwrap_or(u64::MAX);
        for job in expired {
            self.counters.add(Counter::PublishesExpired, 1);
            self.refuse_job(job.token, Refusal::overloaded(wait_ms / 4));
        }
    }

    fn refuse_job(&mut self, token: JobToken, refusal: Refusal) {
        let acked = self.jobs.get(token.0 as usize).is_some_and(|j| j.ack.is_some());
        self.counters.add(if acked { Counter::PublishesRefused } else { Counter::PublishesDropped }, 1);
        self.settle(token, Some(Outcome::Refused(Box::new(refusal))));
    }

    /// Ends a publish at its session.
    fn settle(&mut self, token: JobToken, outcome: Option<Outcome>) {
        self.return_credit(token);
        let Some(job) = self.jobs.try_remove(token.0 as usize) else { return };
        let Some(session) = self.sessions.get_mut(&job.conn) else { return };
        let ack = job.ack.zip(outcome);
        let answers = ack.is_some();
        let held = session.settle(job.stream, job.bytes, ack);
        if (answers || held) && self.touched.last() != Some(&(job.conn, job.stream)) {
            self.touched.push((job.conn, job.stream));
        }
    }

    fn return_credit(&mut self, token: JobToken) {
        let Some(job) = self.jobs.get_mut(token.0 as usize) else { return };
        if let Some(core) = job.credit_of.take() {
            self.credits[usize::from(core.0)].give(job.bytes as u64);
        }
    }

    /// Brings the rings of the core back under their budget: the largest gives first.
    fn shrink_rings(&mut self) {
        let target = self.limits.rings_bytes_max - self.limits.rings_bytes_max / 64;
        while self.rings_bytes > target {
            let largest = self.shards.iter().max_by_key(|(_, s)| s.ring_bytes()).map(|(id, _)| *id);
            let Some(shard) = largest.and_then(|id| self.shards.get_mut(&id)) else { return };
            let mut freed = 0;
            while self.rings_bytes - freed > target {
                match shard.shrink() {
                    0 => break,
                    bytes => freed += bytes,
                }
            }
            if freed == 0 {
                return;
            }
            self.rings_bytes -= freed;
        }
    }
}
