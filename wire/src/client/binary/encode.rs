//! From a message to its head. Scope: functions of `binary`.
//! Invariants: what has no place in the schema makes the message one without this form; nothing is left out silently.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::borrow::Cow;

use flatbuffers::{FlatBufferBuilder, UnionWIPOffset, WIPOffset};

use super::{Tail, fb};
use crate::client::Message;
use crate::client::cache::CacheCondition;
use crate::client::group::{GroupOffset, GroupRecord, GroupRecords, GroupRequest};
use crate::client::publish::{PublishRefused, RefusalReason};
use crate::client::reply::{Error, NotLeader};
use crate::client::subscribe::StartPosition;
use crate::error_code::{ErrorCode, RetryClass};
use crate::id::{LeaseId, Offset, ProducerId, RequestId, Sequence, ShardIndex};

type Fbb<'f> = FlatBufferBuilder<'f>;
type Text<'m> = Cow<'m, str>;

/// A body under way: which it is, where it is, and the number of its request.
type Body = (fb::Body, WIPOffset<UnionWIPOffset>, RequestId);

/// Builds and finishes the head. `None` when the message has no such form; the builder is of no use then.
pub(super) fn head<'m>(message: &'m Message<'_>, b: &mut Fbb<'_>) -> Option<Tail<'m>> {
    let body = match message {
        Message::GroupRecords(page) => records(page, b)?,
        Message::PublishRefused(refused) => number_refused(refused, b),
        Message::NotLeader(leader) => not_leader(leader, b),
        Message::Error(error) => refusal(error, b)?,
        other => cache_request(other, b).or_else(|| group_request(other, b)).or_else(|| answer(other, b))?,
    };
    finish(body, b);
    Some(match message {
        Message::CachePut(m) => Tail::Value(&m.value),
        Message::CachePutIf(m) => Tail::Value(&m.value),
        Message::CacheValue(m) => m.value.as_ref().map_or(Tail::Nothing, Tail::Value),
        Message::GroupRecords(m) => Tail::Payloads(&m.records),
        _ => Tail::Nothing,
    })
}

fn finish((body_type, body, request_id): Body, b: &mut Fbb<'_>) {
    let args = fb::HeadArgs { request_id: request_id.0, body_type, body: Some(body) };
    let head = fb::Head::create(b, &args);
    fb::finish_head_buffer(b, head);
}

/// Puts the table `$table` with the members that follow.
macro_rules! body {
    ($b:ident, $id:expr, $table:ident, $args:ident { $($members:tt)* }) => {{
        let args = fb::$args { $($members)* };
        (fb::Body::$table, fb::$table::create($b, &args).as_union_value(), $id)
    }};
}

fn key<'f>(
    b: &mut Fbb<'f>,
    [tenant, namespace, cache, key]: [&Text<'_>; 4],
) -> Option<WIPOffset<fb::Key<'f>>> {
    let args = fb::KeyArgs {
        tenant: Some(b.create_string(tenant)),
        namespace: Some(b.create_string(namespace)),
        cache: Some(b.create_string(cache)),
        key: Some(b.create_string(key)),
    };
    Some(fb::Key::create(b, &args))
}

fn cache_request(message: &Message<'_>, b: &mut Fbb<'_>) -> Option<Body> {
    /// The names of a message.
    macro_rules! key_of {
        ($m:ident) => {
            key(b, [&$m.tenant_id, &$m.namespace, &$m.cache, &$m.key])
        };
    }
    Some(match message {
        Message::CachePut(m) => {
            body!(b, m.request_id?, CachePut, CachePutArgs { key: key_of!(m), ttl_ms: m.ttl_ms })
        }
        Message::CacheGet(m) => body!(b, m.request_id?, CacheGet, CacheGetArgs { key: key_of!(m) }),
        Message::CacheDelete(m) => body!(b, m.request_id?, CacheDelete, CacheDeleteArgs { key: key_of!(m) }),
        Message::CachePutIf(m) => {
            let version = match m.condition {
                CacheCondition::Absent => None,
                CacheCondition::Version(version) => Some(version),
            };
            let key = key_of!(m);
            body!(b, m.request_id, CachePutIf, CachePutIfArgs { key, ttl_ms: m.ttl_ms, version })
        }
        Message::CacheDeleteIf(m) => {
            let key = key_of!(m);
            body!(b, m.request_id, CacheDeleteIf, CacheDeleteIfArgs { key, version: m.version })
        }
        Message::CounterAdd(m) => {
            let key = key_of!(m);
            let producer_id = m.producer_id.map(ProducerId::get);
            let sequence = m.sequence.map(Sequence::get);
            let delta = m.delta;
            body!(b, m.request_id, CounterAdd, CounterAddArgs { key, delta, producer_id, sequence })
        }
        Message::CounterGet(m) => body!(b, m.request_id, CounterGet, CounterGetArgs { key: key_of!(m) }),
        _ => return None,
    })
}

fn group<'f>(
    b: &mut Fbb<'f>,
    [tenant, namespace, stream, group]: [&Text<'_>; 4],
    shard: ShardIndex,
) -> Option<WIPOffset<fb::Group<'f>>> {
    let args = fb::GroupArgs {
        tenant: Some(b.create_string(tenant)),
        namespace: Some(b.create_string(namespace)),
        stream: Some(b.create_string(stream)),
        group: Some(b.create_string(group)),
        shard: shard.0,
    };
    Some(fb::Group::create(b, &args))
}

fn group_request(message: &Message<'_>, b: &mut Fbb<'_>) -> Option<Body> {
    /// The names of a message.
    macro_rules! group_of {
        ($m:ident) => {
            group(b, [&$m.tenant_id, &$m.namespace, &$m.stream, &$m.group], $m.shard)
        };
    }
    Some(match message {
        Message::GroupPoll(m) => {
            let group = group_of!(m);
            let consumer = m.consumer.as_deref().map(|name| b.create_string(name));
            let args = fb::GroupPollArgs {
                group,
                max_records: m.max_records,
                wait_ms: m.wait_ms,
                consumer,
                reclaim: m.reclaim,
                visibility_ms: m.visibility_ms,
                lease: m.lease.map(LeaseId::get),
            };
            (fb::Body::GroupPoll, fb::GroupPoll::create(b, &args).as_union_value(), m.request_id)
        }
        Message::GroupAck(m) => settle(b, m, fb::Settle::Ack),
        Message::GroupDeadLetter(m) => settle(b, m, fb::Settle::DeadLetter),
        Message::GroupDiscard(m) => settle(b, m, fb::Settle::Discard),
        Message::GroupRedrive(m) => settle(b, m, fb::Settle::Redrive),
        Message::GroupNack(m) => {
            let group = group_of!(m);
            let (offset, delay_ms, attempts) = (m.offset.0, m.delay_ms, m.attempts);
            let lease = m.lease.map(LeaseId::get);
            body!(b, m.request_id, GroupNack, GroupNackArgs { group, offset, delay_ms, attempts, lease })
        }
        Message::GroupExtend(m) => {
            let group = group_of!(m);
            let (offset, attempts, extend_ms) = (m.offset.0, m.attempts, m.extend_ms);
            let lease = m.lease.map(LeaseId::get);
            body!(b, m.request_id, GroupExtend, GroupExtendArgs { group, offset, attempts, extend_ms, lease })
        }
        Message::GroupDeadLetters(m) => inquiry(b, m, fb::Inquiry::DeadLetters),
        Message::GroupDescribe(m) => inquiry(b, m, fb::Inquiry::Describe),
        Message::GroupDelete(m) => inquiry(b, m, fb::Inquiry::Delete),
        Message::GroupSeek(m) => {
            let group = group_of!(m);
            let (start, offset) = match m.start {
                StartPosition::Latest => (fb::Start::Latest, 0),
                StartPosition::Earliest => (fb::Start::Earliest, 0),
                StartPosition::Offset(offset) => (fb::Start::Offset, offset.0),
            };
            let if_new = m.if_new;
            body!(b, m.request_id, GroupSeek, GroupSeekArgs { group, start, offset, if_new })
        }
        _ => return None,
    })
}

fn settle(b: &mut Fbb<'_>, m: &GroupOffset<'_>, what: fb::Settle) -> Body {
    let group = group(b, [&m.tenant_id, &m.namespace, &m.stream, &m.group], m.shard);
    let (offset, lease, count) = (m.offset.0, m.lease.map(LeaseId::get), m.count);
    body!(b, m.request_id, GroupSettle, GroupSettleArgs { group, what, offset, lease, count })
}

fn inquiry(b: &mut Fbb<'_>, m: &GroupRequest<'_>, what: fb::Inquiry) -> Body {
    let group = group(b, [&m.tenant_id, &m.namespace, &m.stream, &m.group], m.shard);
    body!(b, m.request_id, GroupInquiry, GroupInquiryArgs { group, what })
}

fn answer(message: &Message<'_>, b: &mut Fbb<'_>) -> Option<Body> {
    Some(match message {
        Message::CacheValue(m) => {
            let (found, version) = (m.value.is_some(), m.version);
            body!(b, m.request_id?, CacheValue, CacheValueArgs { found, version })
        }
        Message::CacheOk(m) => body!(b, m.request_id, Done, DoneArgs {}),
        Message::CacheConditionResult(m) => {
            let (applied, version) = (m.applied, m.version);
            body!(b, m.request_id, CacheCondition, CacheConditionArgs { applied, version })
        }
        Message::CounterValue(m) => body!(b, m.request_id, CounterValue, CounterValueArgs { value: m.value }),
        Message::GroupExtended(m) => {
            body!(b, m.request_id, GroupExtended, GroupExtendedArgs { visible_ms: m.visible_ms })
        }
        Message::GroupDeadLetterList(m) => {
            let offsets = Some(b.create_vector_from_iter(m.offsets.iter().map(|offset| offset.0)));
            body!(b, m.request_id, GroupDeadLetters, GroupDeadLettersArgs { offsets })
        }
        Message::GroupPosition(m) => {
            let (offset, moved) = (m.offset.0, m.moved);
            body!(b, m.request_id, GroupPosition, GroupPositionArgs { offset, moved })
        }
        Message::GroupInfo(m) => {
            let args = fb::GroupInfoArgs {
                committed: m.committed.map(Offset::get),
                tail: m.tail.0,
                in_flight: m.in_flight,
                owed: m.owed,
                dead_letters: m.dead_letters,
            };
            (fb::Body::GroupInfo, fb::GroupInfo::create(b, &args).as_union_value(), m.request_id)
        }
        Message::GroupDeleted(m) => {
            body!(b, m.request_id, GroupDeleted, GroupDeletedArgs { existed: m.existed })
        }
        _ => return None,
    })
}

fn records(page: &GroupRecords<'_>, b: &mut Fbb<'_>) -> Option<Body> {
    let timestamps = page.records.first().is_some_and(|record| record.timestamp_micros.is_some());
    let odd = |record: &GroupRecord<'_>| {
        record.publisher.is_some()
            || record.timestamp_micros.is_some() != timestamps
            || record.payload.len() > u32::MAX as usize
    };
    if page.records.iter().any(odd) {
        return None;
    }
    let entry = |record: &GroupRecord<'_>| {
        let GroupRecord { offset, payload, attempts, skipped_before, timestamp_micros, .. } = record;
        let (skipped, micros) = (skipped_before.unwrap_or(0), timestamp_micros.unwrap_or(0));
        fb::Record::new(offset.0, skipped, micros, payload.len() as u32, *attempts)
    };
    Some(page_body((page.request_id, timestamps), page.records.iter().map(entry), b))
}

fn page_body(
    (request_id, timestamps): (RequestId, bool),
    records: impl ExactSizeIterator<Item = fb::Record> + DoubleEndedIterator,
    b: &mut Fbb<'_>,
) -> Body {
    let records = Some(b.create_vector_from_iter(records));
    body!(b, request_id, GroupRecords, GroupRecordsArgs { records, timestamps })
}

/// Builds and finishes the head of a page.
pub(super) fn page_head(
    of: (RequestId, bool),
    records: impl ExactSizeIterator<Item = fb::Record> + DoubleEndedIterator,
    b: &mut Fbb<'_>,
) {
    let body = page_body(of, records, b);
    finish(body, b);
}

fn number_refused(refused: &PublishRefused<'_>, b: &mut Fbb<'_>) -> Body {
    let message = Some(b.create_string(&refused.message));
    let mut args = fb::NumberRefusedArgs { message, ..Default::default() };
    args.reason = match &refused.reason {
        RefusalReason::SequenceGap { expected } => {
            args.number = expected.0;
            fb::Reason::SequenceGap
        }
        RefusalReason::UnknownProducer => fb::Reason::UnknownProducer,
        RefusalReason::SequenceExpired => fb::Reason::SequenceExpired,
        RefusalReason::SequenceReused => fb::Reason::SequenceReused,
        RefusalReason::OffsetMismatch { tail } => {
            args.number = tail.0;
            fb::Reason::OffsetMismatch
        }
        RefusalReason::NotLeader { node_id, addr } => {
            args.node_id = Some(b.create_string(node_id));
            args.addr = addr.as_deref().map(|addr| b.create_string(addr));
            fb::Reason::NotLeader
        }
    };
    let body = fb::NumberRefused::create(b, &args).as_union_value();
    (fb::Body::NumberRefused, body, refused.request_id)
}

fn not_leader(leader: &NotLeader<'_>, b: &mut Fbb<'_>) -> Body {
    let node_id = Some(b.create_string(&leader.node_id));
    let addr = leader.addr.as_deref().map(|addr| b.create_string(addr));
    let generation = leader.generation.0;
    body!(b, RequestId(0), NotLeader, NotLeaderArgs { node_id, addr, generation })
}

fn refusal(error: &Error<'_>, b: &mut Fbb<'_>) -> Option<Body> {
    if matches!(error.code, Some(ErrorCode::UnknownName(_))) {
        return None;
    }
    let reason = error.detail.as_ref().and_then(|detail| detail.reason.as_deref());
    let args = fb::ErrorArgs {
        message: Some(b.create_string(&error.message)),
        code: error.code.as_ref().map(ErrorCode::number),
        retry: error.retry.map(RetryClass::number),
        has_detail: error.detail.is_some(),
        reason: reason.map(|reason| b.create_string(reason)),
        retry_after_ms: error.detail.as_ref().and_then(|detail| detail.retry_after_ms),
    };
    Some((fb::Body::Error, fb::Error::create(b, &args).as_union_value(), RequestId(0)))
}
