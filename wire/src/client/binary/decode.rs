//! From a verified head and its tail to a message, but for requests about keys (`key_request`). Scope: functions of `binary`.
//! Invariants: texts borrow from the head, values and payloads are slices of the tail; every byte of the tail belongs to one.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::borrow::Cow;

use bytes::Bytes;

use super::fb;
use crate::client::Message;
use crate::client::cache::{CacheConditionResult, CacheOk, CacheValue};
use crate::client::counter::CounterValue;
use crate::client::group::{
    GroupDeadLetterList, GroupDeleted, GroupExtend, GroupExtended, GroupInfo, GroupNack, GroupOffset,
    GroupPoll, GroupPosition, GroupRecord, GroupRecords, GroupRequest, GroupSeek,
};
use crate::client::publish::{PublishRefused, RefusalReason};
use crate::client::reply::{Error, NotLeader};
use crate::client::subscribe::StartPosition;
use crate::error_code::{ErrorCode, ErrorDetail, RetryClass};
use crate::frame::DecodeError;
use crate::id::{Generation, LeaseId, Offset, RequestId, Sequence, ShardIndex};

type Decoded<'a> = Result<Message<'a>, DecodeError>;

const UNKNOWN_BODY: DecodeError = DecodeError::Malformed("the head is of an unknown kind");
const UNKNOWN_CHOICE: DecodeError = DecodeError::Malformed("the head holds an unknown choice");
pub(super) const STRAY_TAIL: DecodeError =
    DecodeError::Malformed("bytes behind a head that says nothing of them");

/// The message of a head and its tail.
///
/// # Errors
/// `Malformed`, see [`Message::decode_binary`].
pub(super) fn message<'a>(head: &fb::Head<'a>, tail: Bytes) -> Decoded<'a> {
    use fb::Body;
    let has_tail = matches!(head.body_type(), Body::CacheValue | Body::GroupRecords);
    if !has_tail && !tail.is_empty() {
        return Err(STRAY_TAIL);
    }
    match head.body_type() {
        Body::GroupPoll
        | Body::GroupSettle
        | Body::GroupNack
        | Body::GroupExtend
        | Body::GroupInquiry
        | Body::GroupSeek => group_request(head),
        Body::CacheValue | Body::Done | Body::CacheCondition | Body::CounterValue => cache_answer(head, tail),
        Body::GroupRecords => records(head, &tail),
        Body::GroupExtended
        | Body::GroupDeadLetters
        | Body::GroupPosition
        | Body::GroupInfo
        | Body::GroupDeleted => group_answer(head),
        Body::NumberRefused => number_refused(head),
        Body::NotLeader | Body::Error => refusal(head),
        _ => Err(UNKNOWN_BODY),
    }
}

/// A message whose members are those of `$body` with the names of a group.
macro_rules! grouped {
    ($body:ident => $message:ident { $($members:tt)* }) => {{
        let group = $body.group();
        $message {
            tenant_id: Cow::Borrowed(group.tenant()),
            namespace: Cow::Borrowed(group.namespace()),
            stream: Cow::Borrowed(group.stream()),
            group: Cow::Borrowed(group.group()),
            shard: ShardIndex(group.shard()),
            $($members)*
        }
    }};
}

fn group_request<'a>(head: &fb::Head<'a>) -> Decoded<'a> {
    let request_id = RequestId(head.request_id());
    if let Some(m) = head.body_as_group_poll() {
        return Ok(Message::GroupPoll(grouped!(m => GroupPoll {
            max_records: m.max_records(),
            wait_ms: m.wait_ms(),
            request_id,
            consumer: m.consumer().map(Cow::Borrowed),
            reclaim: m.reclaim(),
            visibility_ms: m.visibility_ms(),
            lease: m.lease().map(LeaseId),
        })));
    }
    if let Some(m) = head.body_as_group_settle() {
        let (offset, lease) = (Offset(m.offset()), m.lease().map(LeaseId));
        let of = grouped!(m => GroupOffset { offset, request_id, lease, count: m.count() });
        return Ok(match m.what() {
            fb::Settle::Ack => Message::GroupAck(of),
            fb::Settle::DeadLetter => Message::GroupDeadLetter(of),
            fb::Settle::Discard => Message::GroupDiscard(of),
            fb::Settle::Redrive => Message::GroupRedrive(of),
            _ => return Err(UNKNOWN_CHOICE),
        });
    }
    if let Some(m) = head.body_as_group_nack() {
        let (offset, delay_ms, attempts) = (Offset(m.offset()), m.delay_ms(), m.attempts());
        let lease = m.lease().map(LeaseId);
        let nack = grouped!(m => GroupNack {
            offset, request_id, delay_ms, attempts, lease
        });
        return Ok(Message::GroupNack(nack));
    }
    if let Some(m) = head.body_as_group_extend() {
        let (offset, attempts, extend_ms) = (Offset(m.offset()), m.attempts(), m.extend_ms());
        let lease = m.lease().map(LeaseId);
        let extend = grouped!(m => GroupExtend {
            offset, attempts, extend_ms, request_id, lease
        });
        return Ok(Message::GroupExtend(extend));
    }
    if let Some(m) = head.body_as_group_inquiry() {
        let of = grouped!(m => GroupRequest { request_id });
        return Ok(match m.what() {
            fb::Inquiry::DeadLetters => Message::GroupDeadLetters(of),
            fb::Inquiry::Describe => Message::GroupDescribe(of),
            fb::Inquiry::Delete => Message::GroupDelete(of),
            _ => return Err(UNKNOWN_CHOICE),
        });
    }
    let m = head.body_as_group_seek().ok_or(UNKNOWN_BODY)?;
    let start = match m.start() {
        fb::Start::Latest => StartPosition::Latest,
        fb::Start::Earliest => StartPosition::Earliest,
        fb::Start::Offset => StartPosition::Offset(Offset(m.offset())),
        _ => return Err(UNKNOWN_CHOICE),
    };
    let if_new = m.if_new();
    Ok(Message::GroupSeek(grouped!(m => GroupSeek { start, if_new, request_id })))
}

fn cache_answer<'a>(head: &fb::Head<'a>, value: Bytes) -> Decoded<'a> {
    let request_id = RequestId(head.request_id());
    if let Some(m) = head.body_as_cache_value() {
        if !m.found() && !value.is_empty() {
            return Err(STRAY_TAIL);
        }
        return Ok(Message::CacheValue(CacheValue {
            tenant_id: Cow::Borrowed(""),
            namespace: Cow::Borrowed(""),
            cache: Cow::Borrowed(""),
            key: Cow::Borrowed(""),
            value: m.found().then_some(value),
            request_id: Some(request_id),
            version: m.version(),
        }));
    }
    if head.body_as_done().is_some() {
        return Ok(Message::CacheOk(CacheOk { request_id }));
    }
    if let Some(m) = head.body_as_cache_condition() {
        let (applied, version) = (m.applied(), m.version());
        return Ok(Message::CacheConditionResult(CacheConditionResult { applied, version, request_id }));
    }
    let m = head.body_as_counter_value().ok_or(UNKNOWN_BODY)?;
    Ok(Message::CounterValue(CounterValue { value: m.value(), request_id }))
}

fn records<'a>(head: &fb::Head<'a>, tail: &Bytes) -> Decoded<'a> {
    let m = head.body_as_group_records().ok_or(UNKNOWN_BODY)?;
    let (entries, timestamps) = (m.records(), m.timestamps());
    let mut records = Vec::with_capacity(entries.len());
    let mut at = 0;
    for entry in entries {
        let end = at + entry.payload_bytes() as usize;
        if end > tail.len() {
            return Err(DecodeError::Malformed("the records are longer than the frame"));
        }
        records.push(GroupRecord {
            offset: Offset(entry.offset()),
            payload: tail.slice(at..end),
            attempts: entry.attempts(),
            skipped_before: Some(entry.skipped_before()).filter(|skipped| *skipped > 0),
            publisher: None,
            timestamp_micros: timestamps.then(|| entry.timestamp_micros()),
        });
        at = end;
    }
    if at != tail.len() {
        return Err(STRAY_TAIL);
    }
    Ok(Message::GroupRecords(GroupRecords { records, request_id: RequestId(head.request_id()) }))
}

fn group_answer<'a>(head: &fb::Head<'a>) -> Decoded<'a> {
    let request_id = RequestId(head.request_id());
    if let Some(m) = head.body_as_group_extended() {
        return Ok(Message::GroupExtended(GroupExtended { visible_ms: m.visible_ms(), request_id }));
    }
    if let Some(m) = head.body_as_group_dead_letters() {
        let offsets = m.offsets().iter().map(Offset).collect();
        return Ok(Message::GroupDeadLetterList(GroupDeadLetterList { offsets, request_id }));
    }
    if let Some(m) = head.body_as_group_position() {
        let (offset, moved) = (Offset(m.offset()), m.moved());
        return Ok(Message::GroupPosition(GroupPosition { offset, moved, request_id }));
    }
    if let Some(m) = head.body_as_group_info() {
        return Ok(Message::GroupInfo(GroupInfo {
            committed: m.committed().map(Offset),
            tail: Offset(m.tail()),
            in_flight: m.in_flight(),
            owed: m.owed(),
            dead_letters: m.dead_letters(),
            request_id,
        }));
    }
    let m = head.body_as_group_deleted().ok_or(UNKNOWN_BODY)?;
    Ok(Message::GroupDeleted(GroupDeleted { existed: m.existed(), request_id }))
}

fn number_refused<'a>(head: &fb::Head<'a>) -> Decoded<'a> {
    let m = head.body_as_number_refused().ok_or(UNKNOWN_BODY)?;
    let reason = match m.reason() {
        fb::Reason::SequenceGap => RefusalReason::SequenceGap { expected: Sequence(m.number()) },
        fb::Reason::UnknownProducer => RefusalReason::UnknownProducer,
        fb::Reason::SequenceExpired => RefusalReason::SequenceExpired,
        fb::Reason::SequenceReused => RefusalReason::SequenceReused,
        fb::Reason::OffsetMismatch => RefusalReason::OffsetMismatch { tail: Offset(m.number()) },
        fb::Reason::NotLeader => RefusalReason::NotLeader {
            node_id: m
                .node_id()
                .map(Cow::Borrowed)
                .ok_or(DecodeError::Malformed("a leader without a name"))?,
            addr: m.addr().map(Cow::Borrowed),
        },
        _ => return Err(UNKNOWN_CHOICE),
    };
    let (request_id, message) = (RequestId(head.request_id()), Cow::Borrowed(m.message()));
    Ok(Message::PublishRefused(PublishRefused { request_id, reason, message }))
}

fn refusal<'a>(head: &fb::Head<'a>) -> Decoded<'a> {
    if let Some(m) = head.body_as_not_leader() {
        return Ok(Message::NotLeader(NotLeader {
            node_id: Cow::Borrowed(m.node_id()),
            addr: m.addr().map(Cow::Borrowed),
            generation: Generation(m.generation()),
        }));
    }
    let m = head.body_as_error().ok_or(UNKNOWN_BODY)?;
    let detail = m.has_detail().then(|| ErrorDetail {
        reason: m.reason().map(|reason| Cow::Owned(reason.to_owned())),
        retry_after_ms: m.retry_after_ms(),
    });
    Ok(Message::Error(Error {
        message: Cow::Borrowed(m.message()),
        code: m.code().map(ErrorCode::from_number),
        retry: m.retry().map(RetryClass::from_number),
        detail,
    }))
}
