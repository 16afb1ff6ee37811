//! One request to one broker and what its answer says. Scope: per attempt.
//! Owns: the general answers every request may get.
//! Invariants: an answer with another request's number is none; a stream whose identity was refused is not used again.
//! Not here: whether to try again (`plan`), where (`place`).

use std::borrow::Cow;

use bytes::{Bytes, BytesMut};
use felix_wire::client::{Form, Message, NotLeader, RefusalReason};
use felix_wire::error_code::{ErrorCode, RetryClass};
use felix_wire::frame::{Frame, HEADER_LEN};
use felix_wire::id::RequestId;
use felix_wire::limits::FRAME_PAYLOAD_MAX;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use crate::connection::{Link, decode, refusal, refusal_of, unexpected};
use crate::error::{Error, Refusal};
use crate::limits::ZERO_COPY_BYTES;
use crate::request::lane::Request;
use crate::request::pipe::{Keep, NoAnswer};
use crate::request::pool::Pace;
use crate::topology::ShardOwner;

/// What a broker said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Said<T> {
    /// What was asked for.
    Answer(T),
    /// Nothing was applied: another broker leads the shard.
    Elsewhere(ShardOwner),
    /// It was refused with a code.
    Refused(Refusal),
    /// Nothing was applied: the number or the offset of the write is not the one that is expected.
    Number(RefusalReason<'static>),
}

/// Takes what was asked for out of an answer, with the number it names, if it names one; `None` for any other message.
pub(crate) type Read<T> = fn(&Message<'_>) -> Option<(Option<RequestId>, T)>;

/// What an attempt is made with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Terms {
    pub(crate) what: &'static str,
    pub(crate) shard: u32,
    pub(crate) pace: Pace,
    pub(crate) due: Instant,
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Failed {
    NoAnswer(NoAnswer),
    /// Nothing was sent: the request does not fit in one frame.
    TooLarge {
        bytes: usize,
    },
}

impl Failed {
    pub(crate) fn unsent(error: Error) -> Self {
        Self::NoAnswer(NoAnswer { error, sent: false })
    }
}

/// Asks over one of the connection's request streams.
///
/// # Errors
/// When there is no answer; it says whether something was sent.
pub(crate) async fn exchange<'m, T: Send + 'static>(
    link: &Link,
    terms: Terms,
    message: &(impl Fn(RequestId) -> Message<'m> + Sync),
    read: Read<T>,
) -> Result<Said<T>, Failed> {
    let Terms { what, shard, pace, due } = terms;
    let asked = Instant::now();
    let late = || Failed::unsent(Error::TimedOut { what, waited: due.saturating_duration_since(asked) });
    let room = timeout_at(due, link.pools().of(pace).room(link)).await;
    let (lane, room) = room.map_err(|_| late())?.map_err(Failed::unsent)?;
    let id = lane.next_id();
    let (frame, tail) = encode(&message(id), lane.form());
    let bytes = frame.len() + tail.len();
    if bytes > FRAME_PAYLOAD_MAX as usize + HEADER_LEN {
        return Err(Failed::TooLarge { bytes });
    }
    let (tell, told) = oneshot::channel();
    let tell = Box::new(move |answer: Result<&Frame, NoAnswer>| {
        let (said, outcome) = match answer.map(|frame| understand(frame, (what, shard), id, read)) {
            Ok(Ok((said, keep))) => (Ok(said), Ok(keep)),
            Ok(Err(error)) => (Err(NoAnswer { error: error.clone(), sent: true }), Err(error)),
            Err(none) => (Err(none), Ok(Keep::Yes)),
        };
        // A caller that has gone away is no error.
        drop(tell.send(said));
        outcome
    });
    lane.send(Request { what, frame: frame.freeze(), tail, due, tell, room });
    let gone = || NoAnswer { error: Error::lost("the client was shut down"), sent: true };
    told.await.unwrap_or_else(|_| Err(gone())).map_err(Failed::NoAnswer)
}

/// The frame of a request, up to an end that is better not copied.
fn encode(message: &Message<'_>, form: Form) -> (BytesMut, Bytes) {
    let mut frame = BytesMut::new();
    let tail = match form {
        Form::Binary => message.encode_binary(&mut frame),
        Form::Json => None,
    };
    match tail {
        Some(tail) if tail.len() >= ZERO_COPY_BYTES => (frame, tail),
        Some(tail) => {
            frame.extend_from_slice(&tail);
            (frame, Bytes::new())
        }
        None => {
            message.encode_frame(&mut frame);
            (frame, Bytes::new())
        }
    }
}

/// # Errors
/// For an answer that cannot be, after which the stream cannot be trusted.
fn understand<T>(
    frame: &Frame,
    (what, shard): (&'static str, u32),
    id: RequestId,
    read: Read<T>,
) -> Result<(Said<T>, Keep), Error> {
    let message = decode(frame)?;
    if let Some((named, answer)) = read(&message) {
        check_id(what, named, id)?;
        return Ok((Said::Answer(answer), Keep::Yes));
    }
    match message {
        Message::Error(error) => {
            let refusal = refusal_of(&error);
            let going = refusal.is(&ErrorCode::Unauthenticated)
                || refusal.is(&ErrorCode::Revoked)
                || refusal.is(&ErrorCode::Draining);
            let keep = if going { Keep::Retire } else { Keep::Yes };
            Ok((Said::Refused(refusal), keep))
        }
        Message::Unsupported(unsupported) => {
            check_id(what, unsupported.request_id, id)?;
            let message = format!("the broker does not know {what}");
            let code = Some(ErrorCode::InvalidRequest);
            Ok((Said::Refused(refusal(code, RetryClass::Fatal, &message, None)), Keep::Yes))
        }
        Message::NotLeader(leader) => Ok((Said::Elsewhere(owner_of(shard, leader)), Keep::Yes)),
        Message::PublishRefused(refused) => {
            check_id(what, Some(refused.request_id), id)?;
            Ok((number(refused.reason, shard), Keep::Yes))
        }
        other => Err(unexpected(what, &other)),
    }
}

fn check_id(what: &'static str, named: Option<RequestId>, id: RequestId) -> Result<(), Error> {
    match named {
        Some(named) if named != id => {
            Err(Error::protocol(format!("an answer to {what} names request {named} instead of {id}")))
        }
        _ => Ok(()),
    }
}

fn number<T>(reason: RefusalReason<'_>, shard: u32) -> Said<T> {
    match reason {
        RefusalReason::NotLeader { node_id, addr } => {
            let generation = felix_wire::id::Generation(0);
            Said::Elsewhere(owner_of(shard, NotLeader { node_id, addr, generation }))
        }
        RefusalReason::SequenceGap { expected } => Said::Number(RefusalReason::SequenceGap { expected }),
        RefusalReason::UnknownProducer => Said::Number(RefusalReason::UnknownProducer),
        RefusalReason::SequenceExpired => Said::Number(RefusalReason::SequenceExpired),
        RefusalReason::SequenceReused => Said::Number(RefusalReason::SequenceReused),
        RefusalReason::OffsetMismatch { tail } => Said::Number(RefusalReason::OffsetMismatch { tail }),
    }
}

pub(crate) fn owner_of(shard: u32, leader: NotLeader<'_>) -> ShardOwner {
    ShardOwner {
        shard,
        node_id: Some(leader.node_id.into_owned()),
        addr: leader.addr.map(Cow::into_owned),
        core: None,
        generation: leader.generation.get(),
        unavailable: None,
    }
}
