//! Requests about caches and counters (client-protocol 12), and what they are answered. Scope: functions of a session.
//! Invariants: a key's right is checked before anything is looked up; every request that is handed on has a place in the
//! stream's order of answers; a cache request is never answered with the message `not_leader`.
//! Not here: the caches (`shard::cache`), where a request goes (`turn::asking`).

use std::borrow::Cow;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use felix_wire::client::{
    CacheCondition, CacheConditionResult, CacheOk, CacheShards, CacheShardsView, CacheValue, CounterValue,
    Form, Message, PublishRefused,
};
use felix_wire::control::Action as Right;
use felix_wire::features::Features;
use felix_wire::id::{Offset, RequestId};

use super::group::{RecordTold, group_answer, write_polled};
use super::lease::lease_answer;
use super::log::{LogAnswer, write_log_answer, write_log_refusal};
use super::refusal::Refusal;
use super::stream::Stream;
use super::{Action, AskAction, Cx, write_error};
use crate::access::Principal;
use crate::projection::cache::Condition;
use crate::route::{Placing, place};
use crate::shard::ask::{Ask, Reply};
use crate::snapshot::StreamName;

/// Values below this are copied out of the frame they came in: it may be a slice of a 64 KiB receive buffer.
const COPY_BELOW_BYTES: usize = 32 << 10;

/// How the answer of a request is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answering {
    /// With the names of the request again, where the form of the answer has them; `version`: the client reads it.
    Value {
        names: Option<Arc<(StreamName, Box<str>)>>,
        request_id: Option<RequestId>,
        version: bool,
    },
    Ok {
        request_id: RequestId,
    },
    Condition {
        request_id: RequestId,
    },
    /// `reads_reused`: the client reads that reason of a refused number.
    Sum {
        request_id: RequestId,
        reads_reused: bool,
    },
    Polled {
        request_id: RequestId,
        told: RecordTold,
    },
    /// Of another request about a group.
    Group {
        request_id: RequestId,
    },
    /// Of a request about the members of a group.
    Lease {
        request_id: RequestId,
    },
    Log(LogAnswer),
}

impl Answering {
    /// Whether the request may wait for long.
    pub fn is_poll(&self) -> bool {
        matches!(self, Answering::Polled { .. } | Answering::Lease { .. })
    }
}

/// A request as it was read.
struct Wanted<'m> {
    right: Right,
    /// Tenant, namespace, cache and key.
    name: (&'m str, &'m str, &'m str),
    key: &'m str,
}

/// How the client reads an answer.
#[derive(Clone, Copy, Debug)]
pub struct Wording {
    /// Errors with their codes.
    pub codes: bool,
    pub form: Form,
}

/// What the client reads of answers.
#[derive(Clone, Copy)]
struct Reads {
    form: Form,
    versions: bool,
    reused: bool,
}

/// Hands a request about a cache or counter on, or refuses it. Gives back what is none.
pub(super) fn cache_request<'m>(
    stream: &mut Stream,
    principal: &Principal,
    message: &Message<'m>,
    cx: &mut Cx<'_>,
) -> bool {
    let (right, name, key) = match message {
        Message::CacheGet(m) => (Right::CacheRead, (&m.tenant_id, &m.namespace, &m.cache), &m.key),
        Message::CachePut(m) => (Right::CacheWrite, (&m.tenant_id, &m.namespace, &m.cache), &m.key),
        Message::CacheDelete(m) => (Right::CacheWrite, (&m.tenant_id, &m.namespace, &m.cache), &m.key),
        Message::CachePutIf(m) => (Right::CacheWrite, (&m.tenant_id, &m.namespace, &m.cache), &m.key),
        Message::CacheDeleteIf(m) => (Right::CacheWrite, (&m.tenant_id, &m.namespace, &m.cache), &m.key),
        Message::CounterAdd(m) => (Right::CacheWrite, (&m.tenant_id, &m.namespace, &m.cache), &m.key),
        Message::CounterGet(m) => (Right::CacheRead, (&m.tenant_id, &m.namespace, &m.cache), &m.key),
        _ => return false,
    };
    if stream.can_answer() {
        let wanted = Wanted { right, name: (name.0, name.1, name.2), key };
        if let Err(refusal) = hand_on(stream, principal, message, &wanted, cx) {
            write_error(stream, &refusal);
        }
    }
    true
}

fn hand_on(
    stream: &mut Stream,
    principal: &Principal,
    message: &Message<'_>,
    wanted: &Wanted<'_>,
    cx: &mut Cx<'_>,
) -> Result<(), Refusal> {
    let Wanted { right, name, key } = *wanted;
    let granted = principal.cache_key(right, name, key.as_bytes(), ()).map_err(|_| Refusal::forbidden())?;
    let route = cx.routes.cache(name, cx.scratch).ok_or_else(|| Refusal::no_cache(cx.routes))?;
    let placed = place(route, Placing::Key { key: Some(key.as_bytes()), declared: None })
        .map_err(|error| Refusal::from_route(&error))?;
    let reads = Reads {
        form: stream.asked.form,
        versions: stream.features.contains(Features::CACHE_CONDITIONAL),
        reused: stream.features.contains(Features::SEQUENCE_REUSED),
    };
    let names = || (reads.form == Form::Json).then(|| Arc::new((route.name.clone(), Box::from(key))));
    let (ask, answering) = understood(message, Bytes::copy_from_slice(key.as_bytes()), names, reads)?;
    let slot = stream.asked.open();
    let place = granted.map(|()| placed);
    cx.actions.push(Action::Ask(Box::new(AskAction { stream: stream.id, place, slot, ask, answering })));
    Ok(())
}

/// What is asked of the shard, and how it is answered.
fn understood(
    message: &Message<'_>,
    key: Bytes,
    names: impl Fn() -> Option<Arc<(StreamName, Box<str>)>>,
    reads: Reads,
) -> Result<(Ask, Answering), Refusal> {
    Ok(match message {
        Message::CacheGet(m) => {
            let answering =
                Answering::Value { names: names(), request_id: m.request_id, version: reads.versions };
            (Ask::CacheGet { key }, answering)
        }
        Message::CachePut(m) => {
            let request_id = m.request_id.ok_or_else(|| Refusal::invalid("the request id is missing"))?;
            let (value, ttl_ms, condition) = (kept(&m.value, reads.form), m.ttl_ms, Condition::Always);
            (Ask::CachePut { key, value, ttl_ms, condition }, Answering::Ok { request_id })
        }
        Message::CacheDelete(m) => {
            let answering = Answering::Value { names: names(), request_id: m.request_id, version: false };
            (Ask::CacheDelete { key, condition: Condition::Always }, answering)
        }
        Message::CachePutIf(m) => {
            let condition = match m.condition {
                CacheCondition::Absent => Condition::Absent,
                CacheCondition::Version(version) => Condition::Version(Offset(version)),
            };
            let value = kept(&m.value, reads.form);
            let ask = Ask::CachePut { key, value, ttl_ms: m.ttl_ms, condition };
            (ask, Answering::Condition { request_id: m.request_id })
        }
        Message::CacheDeleteIf(m) => {
            let condition = Condition::Version(Offset(m.version));
            (Ask::CacheDelete { key, condition }, Answering::Condition { request_id: m.request_id })
        }
        Message::CounterAdd(m) => {
            let number = match (m.producer_id, m.sequence) {
                (Some(producer), Some(sequence)) => Some((producer, sequence)),
                (None, None) => None,
                _ => return Err(Refusal::invalid("a number is a producer and a sequence")),
            };
            let answering = Answering::Sum { request_id: m.request_id, reads_reused: reads.reused };
            (Ask::CounterAdd { key, delta: m.delta, number }, answering)
        }
        Message::CounterGet(m) => {
            let answering = Answering::Sum { request_id: m.request_id, reads_reused: false };
            (Ask::CounterGet { key }, answering)
        }
        _ => return Err(Refusal::invalid("not a request about a cache")),
    })
}

/// A value as it may be held: one that is a slice of a large receive buffer would hold all of it.
fn kept(value: &Bytes, form: Form) -> Bytes {
    match form {
        Form::Binary if value.len() < COPY_BELOW_BYTES => Bytes::copy_from_slice(value),
        // Decoded into a buffer of its own.
        Form::Binary | Form::Json => value.clone(),
    }
}

/// Writes the refusal of a request.
fn write_refusal(answering: &Answering, refusal: &Refusal, wording: Wording, out: &mut BytesMut) {
    if let Answering::Sum { request_id, reads_reused } = answering
        && let Some(reason) = refusal.told_number(*reads_reused)
    {
        let (request_id, message) = (*request_id, refusal.message.as_ref().into());
        let refused = PublishRefused { request_id, reason: reason.clone(), message };
        Message::PublishRefused(refused).encode_frame_as(wording.form, out);
        return;
    }
    if let Answering::Log(told) = answering {
        return write_log_refusal(*told, refusal, wording.codes, out);
    }
    refusal.to_message(wording.codes).encode_frame_as(wording.form, out);
}

/// Writes the answer of a request.
pub fn write_answer(answering: &Answering, reply: &Reply, wording: Wording, out: &mut BytesMut) {
    let message = match (answering, reply) {
        (_, Reply::Refused(why)) => return write_refusal(answering, &Refusal::of_ask(why), wording, out),
        (Answering::Value { names, request_id, version: told }, Reply::Value { value, version }) => {
            let [tenant_id, namespace, cache, key] = match names.as_deref() {
                Some((name, key)) => [&*name.tenant, &*name.namespace, &*name.stream, &**key],
                None => [""; 4],
            };
            Message::CacheValue(CacheValue {
                tenant_id: Cow::Borrowed(tenant_id),
                namespace: Cow::Borrowed(namespace),
                cache: Cow::Borrowed(cache),
                key: Cow::Borrowed(key),
                value: value.clone(),
                request_id: *request_id,
                version: version.filter(|_| *told).map(|version| version.0),
            })
        }
        (Answering::Ok { request_id }, Reply::Written) => {
            Message::CacheOk(CacheOk { request_id: *request_id })
        }
        (Answering::Condition { request_id }, Reply::Condition { applied, version }) => {
            let (applied, version) = (*applied, version.map(|version| version.0));
            Message::CacheConditionResult(CacheConditionResult { applied, version, request_id: *request_id })
        }
        (Answering::Sum { request_id, .. }, Reply::Sum(value)) => {
            Message::CounterValue(CounterValue { value: *value, request_id: *request_id })
        }
        (Answering::Polled { request_id, told }, Reply::Polled(records)) => {
            return write_polled(records, (*request_id, *told), wording.form, out);
        }
        (Answering::Log(told), reply) if write_log_answer(*told, reply, out) => return,
        (Answering::Lease { request_id }, Reply::Leases(_) | Reply::Members(_)) => {
            let Some(message) = lease_answer(reply, *request_id) else { return };
            message
        }
        (Answering::Group { request_id }, reply) if group_answer(reply, *request_id).is_some() => {
            let Some(message) = group_answer(reply, *request_id) else { return };
            message
        }
        (_, _) => {
            debug_assert!(false, "the answer of another request: {reply:?}");
            Refusal::internal().to_message(wording.codes).encode_frame_as(wording.form, out);
            return;
        }
    };
    message.encode_frame_as(wording.form, out);
}

/// The width of a cache; 0 when there is none.
pub(super) fn cache_shards(stream: &mut Stream, principal: &Principal, m: &CacheShards<'_>, cx: &mut Cx<'_>) {
    let name = (&*m.tenant_id, &*m.namespace, &*m.cache);
    if principal.sees_cache(name, ()).is_err() {
        return write_error(stream, &Refusal::forbidden());
    }
    if !cx.routes.is_known() {
        return write_error(stream, &Refusal::no_cache(cx.routes));
    }
    let shards = cx.routes.cache(name, cx.scratch).map_or(0, |route| route.shards());
    Message::CacheShardsView(CacheShardsView { shards, request_id: m.request_id })
        .encode_frame(stream.answers());
}
