//! One publishing stream of a simulated client. Scope: one per stream of the plan, over its reconnections.
//! Invariants: every publish is told to the model before its bytes leave; every answer must be the one that is due next
//! (client-protocol 10.4, 10.5).

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use felix_runtime::clock::Tick;
use felix_runtime::quic::{ConnKey, StreamId};
use felix_wire::client::{
    AckMode, AckOutcome, AckRequest, Message, PublishAck, PublishBatch, PublishHead, Records, encode_publish,
};
use felix_wire::error_code::{ErrorCode, RetryClass};
use felix_wire::flags::Flags;
use felix_wire::frame::Frame;
use felix_wire::id::{RequestId, ShardIndex};
use felix_wire::routing::{KeyMapping, shard_for};

use super::broker::stream_name;
use super::check::{Fate, Model, RecordId, ShardKey};
use super::client::Surroundings;
use super::credentials::{NAMESPACE, TENANT};
use super::plan::PublisherPlan;

/// Bytes of a record that say which one it is.
pub const RECORD_HEAD: usize = 20;

#[derive(Clone, Copy, Debug)]
struct Unanswered {
    request_id: u64,
    shard: ShardKey,
    first: RecordId,
    count: u64,
    json: bool,
}

/// See the module.
#[derive(Debug)]
pub struct Publisher {
    pub plan: PublisherPlan,
    pub wire: Option<(ConnKey, StreamId)>,
    lane: u32,
    is_ready: bool,
    left: u32,
    window: usize,
    next_request: u64,
    unanswered: VecDeque<Unanswered>,
    next_at: Tick,
    retry_at: Tick,
    /// Its token has run out for good.
    over: bool,
}

impl Publisher {
    /// A publisher that has no stream yet.
    pub fn new(plan: PublisherPlan) -> Publisher {
        Publisher {
            left: plan.publishes,
            plan,
            wire: None,
            lane: 0,
            is_ready: false,
            window: 0,
            next_request: 0,
            unanswered: VecDeque::new(),
            next_at: Tick::ZERO,
            retry_at: Tick::ZERO,
            over: false,
        }
    }

    /// Publishes not made yet, and those not answered.
    #[cfg(test)]
    pub fn open(&self) -> (u32, usize) {
        (self.left, self.unanswered.len())
    }

    /// Whether it reads its answers.
    pub fn reads(&self, now: Tick) -> bool {
        now >= self.plan.reads_from
    }

    /// The next moment at which it does something by itself.
    pub fn next(&self, now: Tick) -> Option<Tick> {
        let deaf = Some(self.plan.reads_from).filter(|at| *at > now);
        let busy = self.left > 0 && !self.over;
        let pace = Some(self.next_at).filter(|at| busy && *at > now);
        let retry = Some(self.retry_at).filter(|at| busy && self.wire.is_none() && *at > now);
        deaf.into_iter().chain(pace).chain(retry).min()
    }

    /// Whether it wants a stream.
    pub fn wants_stream(&self, now: Tick) -> bool {
        self.wire.is_none() && self.left > 0 && !self.over && now >= self.retry_at
    }

    /// Its stream authenticated.
    pub fn ready(&mut self, window: usize, model: &mut Model) {
        self.is_ready = true;
        self.lane = model.lane();
        self.window = window;
        self.next_request = 0;
    }

    /// Its stream may be asked to end: nothing is to come and nothing owed.
    pub fn wants_end(&self, around: &Surroundings<'_>) -> Option<(ConnKey, StreamId)> {
        let done = (self.left == 0 || around.now >= around.heal_at) && self.unanswered.is_empty();
        self.wire.filter(|_| self.is_ready && done)
    }

    /// The stream to publish on, if it wants to publish now.
    pub fn wants_publish(&mut self, around: &Surroundings<'_>) -> Option<(ConnKey, StreamId)> {
        if around.now >= around.heal_at {
            self.left = 0;
        }
        let room = self.unanswered.len() < self.plan.depth.min(self.window);
        let wants = self.is_ready && self.left > 0 && room && around.now >= self.next_at;
        self.wire.filter(|_| wants)
    }

    /// The next publish, as a frame.
    pub fn publish(&mut self, shards: u32, around: &mut Surroundings<'_>) -> BytesMut {
        let rng = &mut *around.rng;
        let percent = |rng: &mut felix_runtime::sim::SimRng, of: u32| rng.chance(of * 10_000);
        let (acked, json) = (percent(rng, self.plan.acked), percent(rng, self.plan.json));
        let index = self.plan.only.unwrap_or_else(|| rng.below(u64::from(shards)) as u32);
        let count = 1 + rng.below(u64::from(self.plan.batch_max));
        let shard = (self.plan.stream, index);
        self.left -= 1;
        self.next_at = around.now + rng.duration(self.plan.pace * 2);
        let mut first = None;
        let mut payloads = Vec::new();
        for _ in 0..count {
            let seq = around.model.send(around.now, shard, self.lane, acked);
            first.get_or_insert(seq);
            let len = RECORD_HEAD + around.rng.below(self.plan.payload_max as u64) as usize;
            payloads.push(record(RecordId { lane: self.lane, seq }, shard, len));
        }
        let first = RecordId { lane: self.lane, seq: first.unwrap_or(0) };
        self.next_request += u64::from(acked);
        let request_id = self.next_request;
        if acked {
            self.unanswered.push_back(Unanswered { request_id, shard, first, count, json });
        }
        around.trace.note(around.now, "publish", [u64::from(self.lane), u64::from(index), first.seq]);
        let request = acked.then_some(RequestId(request_id));
        encode(shard, shards, &payloads, request, json)
    }

    /// An answer.
    ///
    /// # Errors
    /// It is not the one that is due, or not one that this publish can have.
    pub fn answer(&mut self, frame: &Frame, around: &mut Surroundings<'_>) -> Result<(), String> {
        let (request_id, outcome, json) = read_answer(frame)?;
        let Some(due) = self.unanswered.pop_front() else {
            return Err(format!("lane {} got answer {request_id} to nothing", self.lane));
        };
        if due.request_id != request_id || due.json != json {
            return Err(format!("lane {} got answer {request_id} where {due:?} is due", self.lane));
        }
        around.trace.note(
            around.now,
            "answer",
            [u64::from(self.lane), request_id, u64::from(outcome.is_ok())],
        );
        let (fate, offset) = match outcome {
            Ok(offset) => (Fate::Acked, offset),
            Err((code, retry)) => {
                let deleted = around.deleted[due.shard.0];
                let excused = match code {
                    ErrorCode::Overloaded | ErrorCode::ShardUnavailable => true,
                    ErrorCode::NotFound => deleted,
                    ErrorCode::Unauthenticated => {
                        self.over = true;
                        self.left = 0;
                        true
                    }
                    _ => false,
                };
                if !excused || retry == RetryClass::OutcomeUnknown {
                    return Err(format!("lane {}: {due:?} was refused with {code}", self.lane));
                }
                if code == ErrorCode::NotFound {
                    self.left = 0;
                }
                (Fate::Refused, None)
            }
        };
        around.model.settle(due.shard, due.first, due.count, fate, offset);
        Ok(())
    }

    /// Its stream is gone with the connection: what was not answered stays unknown, and nothing is sent again.
    pub fn lost(&mut self, model: &mut Model) {
        if self.is_ready {
            model.abandon(self.lane);
        }
        self.wire = None;
        self.is_ready = false;
        self.unanswered.clear();
    }

    /// Its `auth` was refused; for good when there will be no better token.
    pub fn refused(&mut self, at: Option<Tick>, model: &mut Model) {
        self.lost(model);
        match at {
            Some(at) => self.retry_at = at,
            None => self.over = true,
        }
    }

    /// The broker ended its half of the stream.
    ///
    /// # Errors
    /// Nobody had asked it to.
    pub fn finished(&mut self, asked: bool) -> Result<(), String> {
        self.wire = None;
        self.is_ready = false;
        if !asked || !self.unanswered.is_empty() {
            return Err(format!("lane {} was ended with {} unanswered", self.lane, self.unanswered.len()));
        }
        Ok(())
    }
}

/// A key of the shard: the first of a fixed list that routes there.
fn key_of(shard: u32, shards: u32) -> String {
    let routes = |key: &String| shard_for(Some(key.as_bytes()), shards, KeyMapping::JumpHash).0 == shard;
    (0..).map(|i| format!("k{i}")).find(routes).unwrap_or_default()
}

fn record(id: RecordId, shard: ShardKey, len: usize) -> Vec<u8> {
    let mut payload = Vec::with_capacity(len);
    payload.extend_from_slice(&id.lane.to_be_bytes());
    payload.extend_from_slice(&id.seq.to_be_bytes());
    payload.extend_from_slice(&(shard.0 as u32).to_be_bytes());
    payload.extend_from_slice(&shard.1.to_be_bytes());
    payload.resize(len.max(RECORD_HEAD), (id.seq % 251) as u8);
    payload
}

/// Which record a payload is.
///
/// # Errors
/// It is none of ours, or not for that shard, or its bytes changed on the way.
pub fn read_record(payload: &[u8], shard: ShardKey) -> Result<RecordId, String> {
    let number = |from: usize, len: usize| -> Option<u64> {
        let bytes = payload.get(from..from + len)?;
        Some(bytes.iter().fold(0, |n, byte| (n << 8) | u64::from(*byte)))
    };
    let read = || {
        let id = RecordId { lane: u32::try_from(number(0, 4)?).ok()?, seq: number(4, 8)? };
        let named = (number(12, 4)? as usize, number(16, 4)? as u32);
        let filled = payload[RECORD_HEAD..].iter().all(|b| u64::from(*b) == id.seq % 251);
        (named == shard && filled).then_some(id)
    };
    read().ok_or_else(|| format!("a record that was never published to {shard:?}: {} bytes", payload.len()))
}

fn encode(shard: ShardKey, shards: u32, payloads: &[Vec<u8>], id: Option<RequestId>, json: bool) -> BytesMut {
    let mut out = BytesMut::new();
    let stream = stream_name(shard.0);
    let key = key_of(shard.1, shards);
    if json {
        // One half names the shard, the other a key.
        let explicit = payloads.len().is_multiple_of(2);
        let message = PublishBatch {
            tenant_id: TENANT.into(),
            namespace: NAMESPACE.into(),
            stream: stream.into(),
            payloads: Records::from_payloads(payloads),
            key: (!explicit).then(|| Bytes::from(key)),
            shard: explicit.then_some(ShardIndex(shard.1)),
            request_id: id,
            ack: Some(if id.is_some() { AckRequest::PerBatch } else { AckRequest::None }),
        };
        Message::PublishBatch(message).encode_frame(&mut out);
        return out;
    }
    let head = PublishHead {
        tenant: TENANT,
        namespace: NAMESPACE,
        stream: &stream,
        key: Some(key.as_bytes()),
        acked: id.map(|id| (id, AckMode::PerBatch)),
        producer: None,
    };
    encode_publish(&head, payloads.iter().map(Vec::as_slice), &mut out).expect("names and keys are short");
    out
}

type Outcome = Result<Option<u64>, (ErrorCode, RetryClass)>;

fn read_answer(frame: &Frame) -> Result<(u64, Outcome, bool), String> {
    if Flags(frame.flags).contains(Flags::PUBLISH_ACK) {
        let ack = PublishAck::decode(frame.flags, &frame.payload).map_err(|error| error.to_string())?;
        let outcome = match ack.outcome {
            AckOutcome::Ok { offset } => Ok(offset.map(|o| o.0)),
            AckOutcome::Error { code: Some(code), .. } => Err((code.code, code.retry)),
            AckOutcome::Error { code: None, .. } => return Err("a refusal without a code".to_owned()),
        };
        return Ok((ack.request_id.0, outcome, false));
    }
    match Message::decode(&frame.payload).map_err(|error| error.to_string())? {
        Message::PublishOk(m) => Ok((m.request_id.0, Ok(m.offset.map(|o| o.0)), true)),
        Message::PublishError(m) => match (m.code, m.retry) {
            (Some(code), Some(retry)) => Ok((m.request_id.0, Err((code, retry)), true)),
            _ => Err("a refusal without a code".to_owned()),
        },
        other => Err(format!("not an answer to a publish: {}", other.type_name())),
    }
}
