//! Requests about the records of a stream that are no plain publish (client-protocol 15, 16), and what they are answered.
//! Scope: functions of a session.
//! Invariants: a stream's right is checked before anything is looked up: to publish for what writes, to subscribe for what
//! reads; a write is never handed on to another node.
//! Not here: what a request does (`shard::asked`), where it goes (`turn::asking`).

use bytes::{Bytes, BytesMut};
use felix_wire::client::{
    Change, Commit, CommitOk, CursorErrorReason, Message, OffsetValue, PublishIf, PublishOk, PublishRefused,
    RefusalReason, StateValue, StreamRecord, StreamRecords, SubscribeCursorError,
};
use felix_wire::control::Action as Right;
use felix_wire::features::Features;
use felix_wire::id::{Generation, RequestId};
use felix_wire::limits::BATCH_RECORDS_MAX;

use super::cache::Answering;
use super::inspect::inspected;
use super::refusal::Refusal;
use super::stream::Stream;
use super::{Action, AskAction, Cx, not_leader, write_error};
use crate::access::Principal;
use crate::projection::commit::record::{CommitRecord, CommitRefused, StateChange};
use crate::route::{Placing, RouteError, place};
use crate::shard::ask::{Ask, Reply, StreamAsk};

/// An encoded commit: its event and its values must fit the frames that bring them to clients, as base64.
const COMMIT_BYTES_MAX: usize = 11 << 20;

/// How the answer of a request about a log is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogAnswer {
    request_id: RequestId,
    of: Answered,
    /// The client reads the reason `sequence_reused`.
    reads_reused: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answered {
    Commit,
    Publish,
    State,
    Records,
    Time,
    /// The width and generation of the shard.
    Inspect(u32, Generation),
}

impl LogAnswer {
    /// Of `shard_inspect`.
    pub(super) fn inspect(request_id: RequestId, shards: u32, generation: Generation) -> LogAnswer {
        LogAnswer { request_id, of: Answered::Inspect(shards, generation), reads_reused: false }
    }
}

/// A request as it was read.
struct Wanted<'m> {
    right: Right,
    name: (&'m str, &'m str, &'m str),
    by: Placing<'m>,
    request_id: RequestId,
    of: Answered,
}

/// Hands a request about a log on, or refuses it. False when it is about something else.
pub(super) fn log_request(
    stream: &mut Stream,
    principal: &Principal,
    message: &Message<'_>,
    cx: &mut Cx<'_>,
) -> bool {
    let Some(wanted) = wanted(message) else { return false };
    if stream.can_answer()
        && let Err(refusal) = hand_on(stream, principal, (&wanted, message), cx)
    {
        write_error(stream, &refusal);
    }
    true
}

fn wanted<'m>(message: &'m Message<'_>) -> Option<Wanted<'m>> {
    macro_rules! of {
        ($m:ident, $right:ident, $of:ident, $by:expr) => {
            Some(Wanted {
                right: Right::$right,
                name: (&$m.tenant_id, &$m.namespace, &$m.stream),
                by: $by,
                request_id: $m.request_id,
                of: Answered::$of,
            })
        };
    }
    let keyed = |shard: Option<_>, key| match shard {
        Some(shard) => Placing::Shard(shard),
        None => Placing::Key { key, declared: None },
    };
    match message {
        Message::Commit(m) => of!(m, StreamPublish, Commit, keyed(m.shard, Some(&m.entity_key[..]))),
        Message::PublishIf(m) => of!(m, StreamPublish, Publish, keyed(m.shard, m.key.as_deref())),
        Message::StateGet(m) => of!(m, StreamSubscribe, State, keyed(m.shard, Some(&m.entity_key[..]))),
        Message::StreamRead(m) => of!(m, StreamSubscribe, Records, Placing::Shard(m.shard)),
        Message::OffsetForTime(m) => of!(m, StreamSubscribe, Time, Placing::Shard(m.shard)),
        _ => None,
    }
}

fn hand_on(
    stream: &mut Stream,
    principal: &Principal,
    (wanted, message): (&Wanted<'_>, &Message<'_>),
    cx: &mut Cx<'_>,
) -> Result<(), Refusal> {
    let Wanted { right, name, by, request_id, of } = *wanted;
    let granted = principal.stream(right, name, ()).map_err(|_| Refusal::forbidden())?;
    let route = cx.routes.stream(name, cx.scratch).ok_or_else(|| Refusal::no_stream(cx.routes))?;
    if !route.is_durable() {
        return Err(Refusal::invalid("that needs a durable stream"));
    }
    // A declared width counts for every publish that is routed by its key (client-protocol 10.6).
    let declared = stream.declared.as_ref().filter(|d| *d.namespace == *name.1 && *d.stream == *name.2);
    let by = match by {
        Placing::Key { key, .. } if of == Answered::Publish => {
            Placing::Key { key, declared: declared.map(|declared| declared.width) }
        }
        by => by,
    };
    let placed = match place(route, by) {
        Ok(placed) => placed,
        Err(RouteError::OtherNode { node, addr, generation })
            if stream.features.contains(Features::REDIRECT) =>
        {
            not_leader(node, addr, generation).encode_frame(stream.answers());
            return Ok(());
        }
        Err(error) => return Err(Refusal::from_route(&error)),
    };
    let ask = Ask::Stream(Box::new(understood(message)?));
    let reads_reused = stream.features.contains(Features::SEQUENCE_REUSED);
    let answering = Answering::Log(LogAnswer { request_id, of, reads_reused });
    let slot = stream.asked.open();
    let place = granted.map(|()| placed);
    cx.actions.push(Action::Ask(Box::new(AskAction { stream: stream.id, place, slot, ask, answering })));
    Ok(())
}

fn understood(message: &Message<'_>) -> Result<StreamAsk, Refusal> {
    Ok(match message {
        Message::Commit(m) => commit(m)?,
        Message::PublishIf(m) => publish_if(m)?,
        Message::StateGet(m) => StreamAsk::State { key: Bytes::copy_from_slice(m.key.as_bytes()) },
        Message::StreamRead(m) => StreamAsk::Read {
            from: m.from,
            end: m.end,
            records_max: usize::try_from(m.max_records).unwrap_or(usize::MAX),
            bytes_max: usize::try_from(m.max_bytes).unwrap_or(usize::MAX),
        },
        // A record has whole milliseconds.
        Message::OffsetForTime(m) => StreamAsk::TimeOf { at_ms: m.at_micros.div_ceil(1_000) },
        _ => return Err(Refusal::invalid("not a request about a log")),
    })
}

fn commit(m: &Commit<'_>) -> Result<StreamAsk, Refusal> {
    let number = match (m.producer_id, m.sequence) {
        (Some(producer), Some(sequence)) => Some((producer, sequence)),
        (None, None) => None,
        _ => return Err(Refusal::invalid("a number is a producer and a sequence")),
    };
    let changes = m.changes.iter().map(change).collect();
    let record = CommitRecord { event: &m.event, changes }.encode(COMMIT_BYTES_MAX);
    let record = record.map_err(|why| match why {
        CommitRefused::KeyTooLong => Refusal::invalid("a key has at most 65535 bytes"),
        CommitRefused::TooLarge { .. } => Refusal::limit("a commit has at most 11 MiB"),
    })?;
    Ok(StreamAsk::Commit { record, expected: m.expected_offset, number })
}

fn change<'c>(change: &'c Change<'_>) -> StateChange<'c> {
    match change {
        Change::Put { key, value } => StateChange::Put { key: key.as_bytes(), value },
        Change::Delete { key } => StateChange::Delete { key: key.as_bytes() },
    }
}

fn publish_if(m: &PublishIf<'_>) -> Result<StreamAsk, Refusal> {
    if m.payloads.is_empty() {
        return Err(Refusal::invalid("an empty batch"));
    }
    if m.payloads.count() > BATCH_RECORDS_MAX {
        return Err(Refusal::limit("too many records in a batch"));
    }
    Ok(StreamAsk::PublishIf { records: m.payloads.clone(), expected: m.expected_offset })
}

/// Writes the refusal of a request, as the one of a number when it is that.
pub(super) fn write_log_refusal(told: LogAnswer, refusal: &Refusal, codes: bool, out: &mut BytesMut) {
    match refusal.told_number(told.reads_reused) {
        Some(reason) => {
            write_refused(told.request_id, reason.clone(), refusal.message.as_ref(), out);
        }
        None => {
            refusal.to_message(codes).encode_frame(out);
        }
    }
}

fn write_refused(request_id: RequestId, reason: RefusalReason<'_>, message: &str, out: &mut BytesMut) {
    let refused = PublishRefused { request_id, reason, message: message.into() };
    Message::PublishRefused(refused).encode_frame(out);
}

/// Writes the answer of a request about a log. False when it is the answer of another one.
pub(super) fn write_log_answer(told: LogAnswer, reply: &Reply, out: &mut BytesMut) -> bool {
    let request_id = told.request_id;
    let message = match (told.of, reply) {
        (Answered::Commit, Reply::Placed(offset)) => {
            Message::CommitOk(CommitOk { request_id, offset: *offset })
        }
        (Answered::Publish, Reply::Placed(offset)) => {
            Message::PublishOk(PublishOk { request_id, offset: Some(*offset) })
        }
        (Answered::Commit | Answered::Publish, Reply::OffsetMismatch { tail }) => {
            let reason = RefusalReason::OffsetMismatch { tail: *tail };
            write_refused(request_id, reason, "the next offset of the shard is another one", out);
            return true;
        }
        (Answered::State, Reply::State { value, version, as_of }) => Message::StateValue(StateValue {
            value: value.clone(),
            version: version.map(|version| version.0),
            as_of: as_of.map(|as_of| as_of.0),
            request_id,
        }),
        (Answered::Records, Reply::Records { records, next }) => {
            let record = |record: &crate::shard::ask::ReadRecord| StreamRecord {
                offset: record.offset,
                payload: record.payload.clone(),
                publisher: None,
                timestamp_micros: record.timestamp_ms.saturating_mul(1_000),
            };
            let records = records.iter().map(record).collect();
            Message::StreamRecords(StreamRecords { records, next_offset: *next, request_id })
        }
        (Answered::Records, Reply::Cursor { too_old, requested, available }) => {
            let reason = if *too_old { CursorErrorReason::TooOld } else { CursorErrorReason::InFuture };
            let (requested, available) = (*requested, *available);
            Message::SubscribeCursorError(SubscribeCursorError { reason, requested, available })
        }
        (Answered::Time, Reply::TimeOf(offset)) => {
            Message::OffsetValue(OffsetValue { offset: *offset, request_id })
        }
        (Answered::Inspect(shards, generation), Reply::Ends { end, .. }) => {
            inspected(request_id, (shards, generation), *end)
        }
        _ => return false,
    };
    message.encode_frame(out);
    true
}
