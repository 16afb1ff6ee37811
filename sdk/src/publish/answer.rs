//! Answers to publishes, as a lane takes them. Scope: pure functions.
//! Not here: what they mean for what was sent (`lane`).

use std::borrow::Cow;

use felix_wire::client::{AckOutcome, Message, PublishAck, PublishRefused, RefusalReason};
use felix_wire::error_code::{ErrorCode, RetryClass};
use felix_wire::frame::Frame;
use felix_wire::id::RequestId;

use crate::connection::{decode, refusal, refusal_of, unexpected};
use crate::error::{Error, ProducerEnd};
use crate::publish::lane::Answer;
use crate::topology::ShardOwner;

/// An answer as it was read.
pub(crate) struct Answered {
    pub(crate) request: RequestId,
    pub(crate) answer: Answer,
    /// Another broker owns the shard and took it.
    pub(crate) forwarded: bool,
    /// Another broker leads the shard and nobody took it.
    pub(crate) leader: Option<ShardOwner>,
}

impl Answered {
    fn new(request: RequestId, answer: Answer) -> Self {
        Self { request, answer, forwarded: false, leader: None }
    }
}

/// Reads the answer to a publish to `shard`, in either encoding.
///
/// # Errors
/// [`Error::Protocol`] for anything else; [`Error::Refused`] for an error that names no request.
pub(crate) fn read_answer(frame: &Frame, shard: u32) -> Result<Answered, Error> {
    if frame.flags != 0 {
        return read_ack(frame);
    }
    match decode(frame)? {
        Message::PublishOk(ok) => Ok(Answered::new(ok.request_id, Answer::Stored { offset: ok.offset })),
        Message::PublishError(error) => {
            let coded = felix_wire::client::Error {
                message: Cow::Borrowed(&error.message),
                code: error.code,
                retry: error.retry,
                detail: error.detail,
            };
            Ok(Answered::new(error.request_id, Answer::Refused(refusal_of(&coded))))
        }
        Message::PublishRefused(refused) => read_refused(refused, shard),
        Message::Error(error) => Err(Error::Refused(refusal_of(&error))),
        other => Err(unexpected("publish", &other)),
    }
}

fn read_ack(frame: &Frame) -> Result<Answered, Error> {
    let ack = PublishAck::decode(frame.flags, &frame.payload).map_err(|e| Error::protocol(e.to_string()))?;
    let answer = match ack.outcome {
        AckOutcome::Ok { offset } => Answer::Stored { offset },
        AckOutcome::Error { message, code: Some(coded) } => {
            Answer::Refused(refusal(Some(coded.code), coded.retry, &message, coded.detail.as_ref()))
        }
        AckOutcome::Error { message, code: None } => {
            Answer::Refused(refusal(None, RetryClass::OutcomeUnknown, &message, None))
        }
    };
    Ok(Answered { forwarded: ack.owner.is_some(), ..Answered::new(ack.request_id, answer) })
}

fn read_refused(refused: PublishRefused<'_>, shard: u32) -> Result<Answered, Error> {
    let ended = |reason| Ok(Answered::new(refused.request_id, Answer::Ended(reason)));
    match refused.reason {
        RefusalReason::SequenceGap { expected } => {
            ended(ProducerEnd::SequenceGap { expected: expected.get() })
        }
        RefusalReason::UnknownProducer => ended(ProducerEnd::UnknownProducer),
        RefusalReason::SequenceExpired => ended(ProducerEnd::SequenceExpired),
        RefusalReason::SequenceReused => ended(ProducerEnd::SequenceReused),
        RefusalReason::NotLeader { node_id, addr } => {
            let code = Some(ErrorCode::NotLeader);
            let refusal = refusal(code, RetryClass::Redirect, &refused.message, None);
            let leader = ShardOwner {
                shard,
                node_id: Some(node_id.into_owned()),
                addr: addr.map(Cow::into_owned),
                core: None,
                generation: 0,
                unavailable: None,
            };
            let leader = Some(leader).filter(|leader| leader.dialable().is_some());
            Ok(Answered { leader, ..Answered::new(refused.request_id, Answer::Refused(refusal)) })
        }
        RefusalReason::OffsetMismatch { .. } => {
            Err(Error::protocol("an offset mismatch in answer to an unconditional publish"))
        }
    }
}
