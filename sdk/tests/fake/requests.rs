//! How the test broker treats requests about data: tricks, holding, and what it saw.

use std::collections::VecDeque;

use felix_sdk::ErrorCode;
use felix_wire::client::{CacheOk, Error, Message, NotLeader};
use felix_wire::error_code::{ErrorDetail, RetryClass};
use felix_wire::frame::Frame;
use felix_wire::id::{Generation, RequestId};
use quinn::SendStream;

use super::session::{No, Outcome, Session, write};
use super::{caches, commits, groups};

/// What is done with one request instead of the usual.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RequestTrick {
    /// None.
    Usual,
    /// Applied; the connection ends without the answer.
    ApplyAndCut,
    /// Not applied; the connection ends.
    Cut,
    /// Applied and never answered.
    Swallow,
    /// Not applied, with this code, its usual class, and a time to wait in milliseconds.
    Refuse(ErrorCode, Option<u64>),
    /// Applied, and answered that nobody knows.
    ApplyAndDoubt,
    /// Answered with another request's number.
    WrongId,
    /// Answered with a message that answers nothing.
    Nonsense,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Requests {
    /// For the requests that come next, in order.
    pub tricks: VecDeque<RequestTrick>,
    /// Requests are read and not answered.
    pub held: bool,
    /// Read and not answered now, and the most of them that were on one stream.
    pub waiting: usize,
    pub waiting_most_on_one: usize,
    /// Names of the requests that were read.
    pub seen: Vec<String>,
    /// How many of them came in their binary form.
    pub binary: usize,
    /// Every request is answered `not_leader`, pointing here.
    pub leader: Option<(String, String)>,
}

/// It is about data, not about the cluster.
pub fn is_data(message: &Message<'_>) -> bool {
    request_id(message).is_some()
}

pub fn request_id(message: &Message<'_>) -> Option<RequestId> {
    match message {
        Message::CacheGet(m) => m.request_id,
        Message::CachePut(m) => m.request_id,
        Message::CacheDelete(m) => m.request_id,
        Message::CachePutIf(m) => Some(m.request_id),
        Message::CacheDeleteIf(m) => Some(m.request_id),
        Message::CounterAdd(m) => Some(m.request_id),
        Message::CounterGet(m) => Some(m.request_id),
        Message::Commit(m) => Some(m.request_id),
        Message::StateGet(m) => Some(m.request_id),
        Message::PublishIf(m) => Some(m.request_id),
        Message::StreamRead(m) => Some(m.request_id),
        Message::OffsetForTime(m) => Some(m.request_id),
        Message::GroupPoll(m) => Some(m.request_id),
        Message::GroupAck(m)
        | Message::GroupDeadLetter(m)
        | Message::GroupDiscard(m)
        | Message::GroupRedrive(m) => Some(m.request_id),
        Message::GroupNack(m) => Some(m.request_id),
        Message::GroupExtend(m) => Some(m.request_id),
        Message::GroupSeek(m) => Some(m.request_id),
        Message::GroupDeadLetters(m) | Message::GroupDescribe(m) | Message::GroupDelete(m) => {
            Some(m.request_id)
        }
        _ => None,
    }
}

/// It is about the stream, not about a cache.
fn of_stream(message: &Message<'_>) -> bool {
    let name = message.type_name();
    !name.starts_with("cache") && !name.starts_with("counter")
}

impl Session {
    pub fn hold(&self) -> bool {
        self.state.lock().requests.held
    }

    pub fn holding(&self, on_this_stream: usize) {
        self.state.change(|s| {
            s.requests.waiting += 1;
            s.requests.waiting_most_on_one = s.requests.waiting_most_on_one.max(on_this_stream);
        });
    }

    /// Until requests are not held any more.
    pub async fn requests_released(&self) {
        let mut changes = self.state.changed();
        loop {
            changes.borrow_and_update();
            if !self.hold() {
                return;
            }
            if changes.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    pub async fn answer_held(&self, held: &mut VecDeque<Frame>, send: &mut SendStream) -> Outcome<()> {
        while let Some(frame) = held.pop_front() {
            self.state.change(|s| s.requests.waiting -= 1);
            self.data(&Message::decode_frame(&frame)?, send).await?;
        }
        Ok(())
    }

    pub async fn data(&self, message: &Message<'_>, send: &mut SendStream) -> Outcome<()> {
        let id = request_id(message).expect("a request about data");
        let (trick, leader) = self.state.change(|s| {
            s.requests.seen.push(message.type_name().to_owned());
            (s.requests.tricks.pop_front(), s.requests.leader.clone())
        });
        if let Some((node_id, addr)) = leader {
            let addr = Some(addr.into());
            let leader = NotLeader { node_id: node_id.into(), addr, generation: Generation(1) };
            return write(send, &Message::NotLeader(leader)).await;
        }
        match trick {
            Some(RequestTrick::Cut) => return self.cut(),
            Some(RequestTrick::Refuse(code, retry_after_ms)) => {
                return write(send, &coded(code, None, retry_after_ms)).await;
            }
            Some(RequestTrick::WrongId) => {
                let other = CacheOk { request_id: RequestId(id.get() + 1_000) };
                return write(send, &Message::CacheOk(other)).await;
            }
            Some(RequestTrick::Nonsense) => return write(send, &Message::Topology).await,
            _ => {}
        }
        if !self.state.lock().stream_known && of_stream(message) {
            return write(send, &coded(ErrorCode::NotFound, None, None)).await;
        }
        if let Message::GroupPoll(poll) = message {
            return self.poll(poll, send).await;
        }
        let answer = self.state.change(|s| {
            let durable = s.durable != Some(false);
            let commit = matches!(message, Message::Commit(_) | Message::StateGet(_));
            if commit && !durable {
                return Some(Err(commits::not_durable()));
            }
            let answer = groups::answer(s, message).or_else(|| commits::answer(s, message));
            answer.or_else(|| caches::answer(s, message))
        });
        let answer = answer.expect("a request that is served");
        match trick {
            Some(RequestTrick::ApplyAndCut) => return self.cut(),
            Some(RequestTrick::Swallow) => return Ok(()),
            Some(RequestTrick::ApplyAndDoubt) => {
                return write(send, &coded(ErrorCode::QuorumTimeout, None, None)).await;
            }
            _ => {}
        }
        let answer = match answer {
            Ok(answer) => answer,
            Err(No::Code(code, reason)) => coded(code, reason, None),
            Err(No::Number(reason)) => caches::refused(id, reason),
        };
        write(send, &answer).await
    }
}

fn coded(code: ErrorCode, reason: Option<&'static str>, retry_after_ms: Option<u64>) -> Message<'static> {
    let retry: RetryClass = code.default_retry();
    let message = code.to_string();
    let mut error = Error::coded(code, message);
    error.retry = Some(retry);
    error.detail = Some(ErrorDetail { reason: reason.map(Into::into), retry_after_ms });
    Message::Error(error)
}
