//! Requests about counters, with numbers or without. Scope: one per stream. Owns: its producer, the next number of each
//! shard, the add that has no outcome yet.
//! Invariants: one numbered add is open at a time, and is sent again with its number until its outcome is known; to the
//! history it is one operation however often it is sent.
//! Not here: the stream (`super`), whether answers can be true (`history::register`).

use std::collections::BTreeMap;

use bytes::BytesMut;
use felix_wire::client::{CounterAdd, CounterGet, Message, ProducerInit};
use felix_wire::error_code::ErrorCode;
use felix_wire::id::{ProducerId, RequestId, Sequence};

use super::{Refused, Ticket};
use crate::sim::ask_plan::{CounterPlan, shard_of};
use crate::sim::broker::cache_name;
use crate::sim::client::Surroundings;
use crate::sim::credentials::{NAMESPACE, TENANT};
use crate::sim::history::register::{Outcome, SumAsk, SumTold};

/// A numbered add without an outcome.
#[derive(Clone, Copy, Debug)]
struct Open {
    key: u32,
    op: usize,
    delta: i64,
    sequence: u64,
    /// It was sent and is not answered.
    sent: bool,
}

impl Open {
    /// Whether it is the operation with that number on that key.
    fn is(&self, key: u32, op: usize) -> bool {
        (self.key, self.op) == (key, op)
    }
}

/// See the module.
#[derive(Debug)]
pub struct CounterErrand {
    plan: CounterPlan,
    producer: Option<ProducerId>,
    asked_producer: bool,
    next: BTreeMap<u32, u64>,
    open: Option<Open>,
    /// For one that reads every counter.
    next_key: u32,
    again: Vec<u32>,
}

impl CounterErrand {
    /// One that has added nothing.
    pub fn new(plan: CounterPlan) -> CounterErrand {
        CounterErrand {
            plan,
            producer: None,
            asked_producer: false,
            next: BTreeMap::new(),
            open: None,
            next_key: 0,
            again: Vec::new(),
        }
    }

    /// Whether an add has no outcome yet and is sent again.
    pub fn owes(&self) -> bool {
        self.open.is_some()
    }

    /// Whether it has something to ask now; `new`: it may begin something.
    pub fn may_ask(&self, new: bool) -> bool {
        match self.open {
            Some(open) => !open.sent,
            None => new && !self.asked_producer,
        }
    }

    /// The next request.
    pub fn request(
        &mut self,
        request_id: RequestId,
        around: &mut Surroundings<'_>,
        out: &mut BytesMut,
    ) -> Ticket {
        if let Some(open) = &mut self.open {
            open.sent = true;
            let open = *open;
            let number = self.producer.map(|producer| (producer, Sequence(open.sequence)));
            self.add(open.key, open.delta, (number, request_id), out);
            return Ticket::Sum(open.key, open.op);
        }
        if self.plan.numbered && self.producer.is_none() {
            self.asked_producer = true;
            Message::ProducerInit(ProducerInit { request_id }).encode_frame(out);
            return Ticket::Producer;
        }
        let rng = &mut *around.rng;
        let key = match self.plan.reads_all {
            true => self.again.pop().unwrap_or_else(|| {
                self.next_key += 1;
                self.next_key - 1
            }),
            false => rng.below(u64::from(self.plan.keys)) as u32,
        };
        if self.plan.reads_all || rng.chance(200_000) {
            let op = around.histories.ask_sum((self.plan.cache, key), around.now, SumAsk::Get);
            let (tenant_id, namespace) = (TENANT.into(), NAMESPACE.into());
            let (cache, name) = (cache_name(self.plan.cache).into(), format!("k{key}").into());
            Message::CounterGet(CounterGet { tenant_id, namespace, cache, key: name, request_id })
                .encode_frame(out);
            return Ticket::Sum(key, op);
        }
        let delta = draw_delta(rng);
        let op = around.histories.ask_sum((self.plan.cache, key), around.now, SumAsk::Add(delta));
        let mut number = None;
        if let Some(producer) = self.producer {
            let sequence = self.next.get(&self.shard_of(key)).copied().unwrap_or(0);
            self.open = Some(Open { key, op, delta, sequence, sent: true });
            number = Some((producer, Sequence(sequence)));
        }
        self.add(key, delta, (number, request_id), out);
        Ticket::Sum(key, op)
    }

    fn shard_of(&self, key: u32) -> u32 {
        shard_of(key, self.plan.shards)
    }

    fn add(
        &self,
        key: u32,
        delta: i64,
        (number, request_id): (Option<(ProducerId, Sequence)>, RequestId),
        out: &mut BytesMut,
    ) {
        let add = CounterAdd {
            tenant_id: TENANT.into(),
            namespace: NAMESPACE.into(),
            cache: cache_name(self.plan.cache).into(),
            key: format!("k{key}").into(),
            delta,
            request_id,
            producer_id: number.map(|(producer, _)| producer),
            sequence: number.map(|(_, sequence)| sequence),
        };
        Message::CounterAdd(add).encode_frame(out);
    }

    /// An answer.
    ///
    /// # Errors
    /// It is none that this request can have.
    pub fn answer(
        &mut self,
        ticket: Ticket,
        message: &Message<'_>,
        around: &mut Surroundings<'_>,
    ) -> Result<(), String> {
        match (ticket, message) {
            (Ticket::Producer, Message::ProducerInitOk(ok)) => {
                (self.producer, self.asked_producer) = (Some(ok.producer_id), false);
            }
            (Ticket::Sum(key, op), Message::CounterValue(value)) => {
                self.settled(key, op);
                let told = Outcome::Told(around.now, SumTold::Sum(value.value));
                around.histories.sum_done((self.plan.cache, key), op, told);
            }
            // Its producers are not those of the life before.
            (Ticket::Sum(key, op), Message::PublishRefused(_)) if around.caches_deleted[self.plan.cache] => {
                self.forget(key, op);
            }
            (Ticket::Sum(..), Message::PublishRefused(refused)) => {
                return Err(format!("{:?}: the number is refused: {:?}", self.open, refused.reason));
            }
            (ticket, other) => return Err(format!("{} is no answer to {ticket:?}", other.type_name())),
        }
        Ok(())
    }

    /// A numbered add has its outcome.
    fn settled(&mut self, key: u32, op: usize) {
        if let Some(open) = self.open.take_if(|open| open.is(key, op)) {
            let shard = self.shard_of(open.key);
            self.next.insert(shard, open.sequence + 1);
        }
    }

    /// Its cache was deleted: whether an add without an outcome counted nobody knows, and its number means nothing more.
    fn forget(&mut self, key: u32, op: usize) {
        if self.open.take_if(|open| open.is(key, op)).is_some() {
            (self.producer, self.next) = (None, BTreeMap::new());
        }
    }

    /// A request was refused, or its answer is lost.
    pub fn refused(&mut self, ticket: Ticket, refused: &Refused, around: &mut Surroundings<'_>) {
        let (key, op) = match ticket {
            Ticket::Sum(key, op) => (key, op),
            Ticket::Producer => return self.asked_producer = false,
            _ => return,
        };
        let history = (self.plan.cache, key);
        if refused.code == ErrorCode::NotFound && self.open.is_some_and(|open| open.is(key, op)) {
            return self.forget(key, op);
        }
        if refused.code == ErrorCode::InvalidRequest {
            // Nothing was added, and its number is free again.
            self.open.take_if(|open| open.is(key, op));
            let told = Outcome::Told(around.now, SumTold::Overflow);
            return around.histories.sum_done(history, op, told);
        }
        match self.open.as_mut().filter(|open| open.is(key, op)) {
            Some(open) => open.sent = false,
            None => around.histories.sum_done(history, op, refused.outcome()),
        }
        if self.plan.reads_all {
            self.again.push(key);
        }
    }
}

/// Mostly small, and now and then one that brings the sum near its bound.
fn draw_delta(rng: &mut felix_runtime::sim::SimRng) -> i64 {
    match rng.below(50) {
        0 => i64::MAX,
        1 => i64::MIN,
        small => small as i64 - 10,
    }
}
