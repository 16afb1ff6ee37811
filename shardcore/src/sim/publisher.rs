//! One publishing stream of a simulated client. Scope: one per stream of the plan, over its reconnections.
//! Invariants: every publish is told to the model before its bytes leave; every answer must be the one that is due next
//! (client-protocol 10.4, 10.5).

use std::collections::VecDeque;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use felix_runtime::clock::Tick;
use felix_runtime::quic::{ConnKey, StreamId};
use felix_wire::client::{
    AckMode, AckOutcome, AckRequest, Message, ProducerInit, PublishAck, PublishBatch, PublishHead,
    PublishIdempotent, Records, RefusalReason, encode_publish,
};
use felix_wire::error_code::{ErrorCode, RetryClass};
use felix_wire::flags::Flags;
use felix_wire::frame::Frame;
use felix_wire::id::{ProducerId, RequestId, Sequence, ShardIndex};
use felix_wire::routing::{KeyMapping, shard_for};

use super::broker::stream_name;
use super::check::{Fate, Model, RecordId, ShardKey};
use super::client::Surroundings;
use super::credentials::{NAMESPACE, TENANT};
use super::numbered::{Batch, Numbered};
use super::plan::PublisherPlan;

/// After a refusal that says to, it tries again this much later.
const RETRY: Duration = Duration::from_millis(100);
/// Bytes of a record that say which one it is.
pub const RECORD_HEAD: usize = 20;

#[derive(Clone, Copy, Debug)]
struct Unanswered {
    request_id: u64,
    shard: ShardKey,
    first: RecordId,
    count: u64,
    json: bool,
    sequence: Option<Sequence>,
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
    numbered: Option<Numbered>,
    /// The request for a producer that is not answered yet.
    init: Option<u64>,
    /// It was told that it cannot go on with its numbers here, before anything was taken of it again.
    stuck: bool,
}

impl Publisher {
    /// A publisher that has no stream yet.
    pub fn new(plan: PublisherPlan) -> Publisher {
        Publisher {
            left: plan.publishes,
            numbered: plan.numbered.then(Numbered::default),
            init: None,
            stuck: false,
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

    /// Whether its numbers are refused for what the broker has read of the log, which only another process reads again.
    pub fn is_stuck(&self) -> bool {
        self.stuck && self.wire.is_some()
    }

    /// Another process begins, which has told it nothing yet.
    pub fn unstick(&mut self) {
        self.stuck = false;
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
        let busy = !self.is_done() && !self.over;
        let pace = Some(self.next_at).filter(|at| busy && *at > now);
        let retry = Some(self.retry_at).filter(|at| busy && self.wire.is_none() && *at > now);
        deaf.into_iter().chain(pace).chain(retry).min()
    }

    /// Whether it wants a stream.
    pub fn wants_stream(&self, now: Tick) -> bool {
        self.wire.is_none() && !self.is_done() && !self.over && now >= self.retry_at
    }

    /// Nothing is to be published, now or again.
    fn is_done(&self) -> bool {
        self.left == 0 && self.numbered.as_ref().is_none_or(Numbered::is_settled)
    }

    /// Its stream authenticated.
    pub fn ready(&mut self, window: usize, model: &mut Model) {
        self.is_ready = true;
        if self.numbered.as_ref().is_none_or(|numbered| numbered.producer.is_none()) {
            self.lane = model.lane();
        }
        self.window = window;
        self.next_request = 0;
    }

    /// Its stream may be asked to end: nothing is to come and nothing owed.
    pub fn wants_end(&self, around: &Surroundings<'_>) -> Option<(ConnKey, StreamId)> {
        let settled = self.numbered.as_ref().is_none_or(Numbered::is_settled) && self.init.is_none();
        let done = (self.left == 0 || around.now >= around.heal_at) && self.unanswered.is_empty() && settled;
        self.wire.filter(|_| self.is_ready && done)
    }

    /// The stream to publish on, if it wants to publish now.
    pub fn wants_publish(&mut self, around: &Surroundings<'_>) -> Option<(ConnKey, StreamId)> {
        if around.now >= around.heal_at {
            self.left = 0;
        }
        let room = self.unanswered.len() < self.plan.depth.min(self.window);
        let due = around.now >= self.next_at && self.init.is_none();
        let wants = match &self.numbered {
            None => self.left > 0,
            Some(Numbered { producer: None, .. }) => self.left > 0,
            Some(numbered) => numbered.has_unsent() || (self.left > 0 && numbered.has_room()),
        };
        self.wire.filter(|_| self.is_ready && room && due && wants)
    }

    /// The next request: a publish, a publish again, or one for a producer.
    pub fn request(&mut self, shards: u32, around: &mut Surroundings<'_>) -> BytesMut {
        let Some(numbered) = &mut self.numbered else { return self.publish(shards, around) };
        let Some(producer) = numbered.producer else {
            self.next_request += 1;
            self.init = Some(self.next_request);
            let mut out = BytesMut::new();
            let init = ProducerInit { request_id: RequestId(self.next_request) };
            Message::ProducerInit(init).encode_frame(&mut out);
            return out;
        };
        let again = numbered.has_unsent().then(|| numbered.resend(around.model)).flatten();
        match again {
            Some(batch) => {
                around.trace.note(
                    around.now,
                    "publish again",
                    [u64::from(batch.first.lane), u64::from(batch.shard.1), batch.sequence.0],
                );
                self.send_numbered(producer, &batch, shards)
            }
            None => self.publish(shards, around),
        }
    }

    fn send_numbered(&mut self, producer: ProducerId, batch: &Batch, shards: u32) -> BytesMut {
        let Batch { shard, sequence, first, json, .. } = *batch;
        self.next_request += 1;
        let request_id = self.next_request;
        let count = batch.lens.len() as u64;
        let sequence = Some(sequence);
        self.unanswered.push_back(Unanswered { request_id, shard, first, count, json, sequence });
        let id = |at: usize| RecordId { lane: first.lane, seq: first.seq + at as u64 };
        let payloads = batch.lens.iter().enumerate().map(|(at, len)| record(id(at), shard, *len));
        let payloads: Vec<_> = payloads.collect();
        let number = Some((producer, batch.sequence));
        encode(shard, shards, &payloads, (Some(RequestId(request_id)), number), json)
    }

    fn publish(&mut self, shards: u32, around: &mut Surroundings<'_>) -> BytesMut {
        let rng = &mut *around.rng;
        let percent = |rng: &mut felix_runtime::sim::SimRng, of: u32| rng.chance(of * 10_000);
        let (acked, json) = (percent(rng, self.plan.acked), percent(rng, self.plan.json));
        let index = self.plan.only.unwrap_or_else(|| rng.below(u64::from(shards)) as u32);
        let count = 1 + rng.below(u64::from(self.plan.batch_max));
        let shard = (self.plan.stream, index);
        self.left -= 1;
        self.next_at = around.now + rng.duration(self.plan.pace * 2);
        let mut first = None;
        let mut lens = Vec::new();
        for _ in 0..count {
            let seq = around.model.send(around.now, shard, self.lane, acked);
            first.get_or_insert(seq);
            lens.push(RECORD_HEAD + around.rng.below(self.plan.payload_max as u64) as usize);
        }
        let first = RecordId { lane: self.lane, seq: first.unwrap_or(0) };
        around.trace.note(around.now, "publish", [u64::from(self.lane), u64::from(index), first.seq]);
        if let Some(numbered) = &mut self.numbered
            && let Some(producer) = numbered.producer
        {
            let batch = numbered.push(shard, first, lens, json);
            return self.send_numbered(producer, &batch, shards);
        }
        let id = |at: usize| RecordId { lane: first.lane, seq: first.seq + at as u64 };
        let payloads: Vec<_> = lens.iter().enumerate().map(|(at, len)| record(id(at), shard, *len)).collect();
        self.next_request += u64::from(acked);
        let request_id = self.next_request;
        if acked {
            self.unanswered.push_back(Unanswered { request_id, shard, first, count, json, sequence: None });
        }
        let request = acked.then_some(RequestId(request_id));
        encode(shard, shards, &payloads, (request, None), json)
    }

    /// An answer.
    ///
    /// # Errors
    /// It is not the one that is due, or not one that this publish can have.
    pub fn answer(&mut self, frame: &Frame, around: &mut Surroundings<'_>) -> Result<(), String> {
        if let Some(asked) = self.init {
            return self.take_producer(asked, frame);
        }
        let (request_id, outcome, json) = read_answer(frame)?;
        let Some(due) = self.unanswered.pop_front() else {
            return Err(format!("lane {} got answer {request_id} to nothing", self.lane));
        };
        let refused_number = matches!(outcome, Outcome::Number(_));
        if due.request_id != request_id || (due.json != json && !refused_number) {
            return Err(format!("lane {} got answer {request_id} where {due:?} is due", self.lane));
        }
        let ok = matches!(outcome, Outcome::Ok(_));
        around.trace.note(around.now, "answer", [u64::from(self.lane), request_id, u64::from(ok)]);
        let (fate, offset) = match outcome {
            Outcome::Ok(None) if around.excuses.durable => {
                return Err(format!("lane {}: {due:?} is in a log and has no offset", self.lane));
            }
            Outcome::Ok(offset) => {
                self.stuck = false;
                (Fate::Acked, offset)
            }
            Outcome::Refused(code, retry) => (self.excused(&due, &code, retry, around)?, None),
            Outcome::Number(reason) => (self.number_refused(&due, &reason, around)?, None),
        };
        let fate = self.take_fate(&due, fate);
        around.model.settle(around.now, (due.shard, due.first, due.count), fate, offset);
        if self.unanswered.is_empty() && self.numbered.as_mut().is_some_and(Numbered::answered) {
            self.next_at = around.now + RETRY;
            if self.numbered.as_ref().is_some_and(|numbered| numbered.producer.is_none()) {
                self.lane = around.model.lane();
            }
        }
        Ok(())
    }

    fn take_producer(&mut self, asked: u64, frame: &Frame) -> Result<(), String> {
        match Message::decode(&frame.payload).map_err(|error| error.to_string())? {
            Message::ProducerInitOk(ok) if ok.request_id.0 == asked => {
                self.init = None;
                if let Some(numbered) = &mut self.numbered {
                    numbered.producer = Some(ok.producer_id);
                }
                Ok(())
            }
            Message::Error(error) if error.code == Some(ErrorCode::Unauthenticated) => {
                self.init = None;
                self.token_is_over();
                if let Some(numbered) = &mut self.numbered {
                    numbered.forget();
                }
                Ok(())
            }
            other => Err(format!("not an answer to producer_init: {other:?}")),
        }
    }

    /// What an answer makes of a batch when it is numbered: another copy may be there, or come to be.
    fn take_fate(&mut self, due: &Unanswered, fate: Fate) -> Fate {
        let Some((numbered, sequence)) = self.numbered.as_mut().zip(due.sequence) else { return fate };
        match fate {
            Fate::Acked => {
                numbered.acked(due.shard, sequence);
                Fate::Acked
            }
            Fate::Refused => numbered.refused(due.shard, sequence),
            Fate::Unknown | Fate::Unacked => {
                numbered.unknown(due.shard, sequence);
                Fate::Unknown
            }
        }
    }

    /// Nothing that it sends is taken any more.
    fn token_is_over(&mut self) {
        self.over = true;
        self.left = 0;
        if let Some(numbered) = &mut self.numbered {
            numbered.give_up();
        }
    }

    /// What becomes of a publish that was refused.
    ///
    /// # Errors
    /// There is no reason to.
    fn excused(
        &mut self,
        due: &Unanswered,
        code: &ErrorCode,
        retry: RetryClass,
        around: &Surroundings<'_>,
    ) -> Result<Fate, String> {
        let excuses = around.excuses;
        let unknown = retry == RetryClass::OutcomeUnknown;
        let excused = match code {
            ErrorCode::Overloaded | ErrorCode::ShardUnavailable => !unknown,
            ErrorCode::Storage | ErrorCode::LeadershipLost if unknown => excuses.unsettled,
            ErrorCode::Storage => excuses.refused,
            ErrorCode::NotFound => around.deleted[due.shard.0] && !unknown,
            ErrorCode::Unauthenticated => {
                self.token_is_over();
                !unknown
            }
            _ => false,
        };
        if !excused {
            return Err(format!("lane {}: {due:?} was refused with {code} ({retry:?})", self.lane));
        }
        self.stuck = self.numbered.is_some() && *code == ErrorCode::Storage && retry == RetryClass::Fatal;
        if *code == ErrorCode::NotFound && !excuses.durable {
            self.left = 0;
        }
        if *code == ErrorCode::NotFound
            && let Some(numbered) = &mut self.numbered
        {
            numbered.give_up();
        }
        if excuses.durable {
            self.next_at = self.next_at.max(around.now + RETRY);
        }
        Ok(if unknown { Fate::Unknown } else { Fate::Refused })
    }

    /// What becomes of a batch whose number does not fit.
    ///
    /// # Errors
    /// There is no reason to.
    fn number_refused(
        &mut self,
        due: &Unanswered,
        reason: &RefusalReason<'_>,
        around: &Surroundings<'_>,
    ) -> Result<Fate, String> {
        let excuses = around.excuses;
        let Some((numbered, _)) = self.numbered.as_mut().zip(due.sequence) else {
            return Err(format!("lane {}: {due:?} has no number and {reason:?} is its answer", self.lane));
        };
        let lost = excuses.lossy || around.deleted[due.shard.0];
        let excused = match reason {
            RefusalReason::SequenceGap { expected } if numbered.is_open(due.shard, *expected) => {
                return Ok(Fate::Refused);
            }
            // Its first batch was refused before this one.
            RefusalReason::UnknownProducer if numbered.is_open(due.shard, Sequence(0)) => {
                return Ok(Fate::Refused);
            }
            RefusalReason::SequenceGap { .. } => lost,
            RefusalReason::UnknownProducer => lost || excuses.retention,
            RefusalReason::SequenceExpired => excuses.retention,
            _ => false,
        };
        if !excused {
            return Err(format!("lane {}: {due:?} was refused with {reason:?}", self.lane));
        }
        numbered.give_up();
        Ok(Fate::Refused)
    }

    /// Its stream is gone with the connection: what was not answered stays unknown, and nothing is sent again.
    pub fn lost(&mut self, model: &mut Model) {
        if self.is_ready {
            model.abandon(self.lane);
        }
        if let Some(numbered) = &mut self.numbered {
            numbered.lost();
            if self.over {
                numbered.forget();
            }
        }
        self.wire = None;
        self.is_ready = false;
        self.init = None;
        self.stuck = false;
        self.unanswered.clear();
    }

    /// Its `auth` was refused; for good when there will be no better token.
    pub fn refused(&mut self, at: Option<Tick>, model: &mut Model) {
        self.lost(model);
        match at {
            Some(at) => self.retry_at = at,
            None => {
                self.over = true;
                if let Some(numbered) = &mut self.numbered {
                    numbered.forget();
                }
            }
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

/// The bytes of a record, at least [`RECORD_HEAD`].
pub fn record(id: RecordId, shard: ShardKey, len: usize) -> Vec<u8> {
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

fn encode(
    shard: ShardKey,
    shards: u32,
    payloads: &[Vec<u8>],
    (id, number): (Option<RequestId>, Option<(ProducerId, Sequence)>),
    json: bool,
) -> BytesMut {
    let mut out = BytesMut::new();
    let stream = stream_name(shard.0);
    let key = key_of(shard.1, shards);
    if let (true, Some(request_id), Some((producer_id, sequence))) = (json, id, number) {
        let message = PublishIdempotent {
            tenant_id: TENANT.into(),
            namespace: NAMESPACE.into(),
            stream: stream.into(),
            payloads: Records::from_payloads(payloads),
            key: Some(Bytes::from(key)),
            shard: None,
            request_id,
            producer_id,
            sequence,
        };
        Message::PublishIdempotent(message).encode_frame(&mut out);
        return out;
    }
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
        producer: number,
    };
    encode_publish(&head, payloads.iter().map(Vec::as_slice), &mut out).expect("names and keys are short");
    out
}

/// What an answer says.
enum Outcome {
    Ok(Option<u64>),
    Refused(ErrorCode, RetryClass),
    Number(RefusalReason<'static>),
}

fn read_answer(frame: &Frame) -> Result<(u64, Outcome, bool), String> {
    if Flags(frame.flags).contains(Flags::PUBLISH_ACK) {
        let ack = PublishAck::decode(frame.flags, &frame.payload).map_err(|error| error.to_string())?;
        let outcome = match ack.outcome {
            AckOutcome::Ok { offset } => Outcome::Ok(offset.map(|o| o.0)),
            AckOutcome::Error { code: Some(code), .. } => Outcome::Refused(code.code, code.retry),
            AckOutcome::Error { code: None, .. } => return Err("a refusal without a code".to_owned()),
        };
        return Ok((ack.request_id.0, outcome, false));
    }
    match Message::decode(&frame.payload).map_err(|error| error.to_string())? {
        Message::PublishOk(m) => Ok((m.request_id.0, Outcome::Ok(m.offset.map(|o| o.0)), true)),
        Message::PublishError(m) => match (m.code, m.retry) {
            (Some(code), Some(retry)) => Ok((m.request_id.0, Outcome::Refused(code, retry), true)),
            _ => Err("a refusal without a code".to_owned()),
        },
        Message::PublishRefused(m) => {
            let reason = match m.reason {
                RefusalReason::SequenceGap { expected } => RefusalReason::SequenceGap { expected },
                RefusalReason::UnknownProducer => RefusalReason::UnknownProducer,
                RefusalReason::SequenceExpired => RefusalReason::SequenceExpired,
                RefusalReason::SequenceReused => RefusalReason::SequenceReused,
                other => return Err(format!("a publish was refused with {other:?}")),
            };
            Ok((m.request_id.0, Outcome::Number(reason), true))
        }
        other => Err(format!("not an answer to a publish: {}", other.type_name())),
    }
}
