//! Requests about caches and counters (client-protocol 12), and what they are answered. Scope: functions of a session.
//! Invariants: a key's right is checked before anything is looked up; every request that is handed on has a place in the
//! stream's order of answers; a cache request is never answered with the message `not_leader`.
//! Not here: the caches (`shard::cache`), where a request goes (`turn::asking`).

use std::borrow::Cow;
use std::sync::Arc;

use bytes::{Buf, Bytes, BytesMut};
use felix_runtime::quic::StreamId;
use felix_wire::client::{
    CacheCondition, CacheConditionResult, CacheOk, CacheShards, CacheShardsView, CacheValue, CounterValue,
    Form, KeyRequest, KeyWhat, Message, PublishRefused, encode_value,
};
use felix_wire::control::Action as Right;
use felix_wire::features::Features;
use felix_wire::flags::Flags;
use felix_wire::frame::{HEADER_LEN, whole_frame};
use felix_wire::id::{Offset, RequestId};

use super::group::{RecordTold, group_answer, write_polled};
use super::lease::lease_answer;
use super::log::{LogAnswer, write_log_answer, write_log_refusal};
use super::refusal::Refusal;
use super::stream::{CacheMemo, Phase, Stream};
use super::{Action, AskAction, Cx, Session, take_whole, write_error};
use crate::access::{Granted, Principal};
use crate::projection::cache::Condition;
use crate::route::{Place, Placing, RouteError, place};
use crate::shard::ask::{Ask, Reply};
use crate::snapshot::{StreamName, StreamRoute};
use crate::turn::counters::Counter;

/// Frames with larger payloads are not taken in place.
const AGAIN_BYTES_MAX: usize = 32 << 10;

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
pub(super) fn cache_request(
    stream: &mut Stream,
    principal: &Arc<Principal>,
    message: &Message<'_>,
    cx: &mut Cx<'_>,
) -> bool {
    let Some((request, value)) = KeyRequest::of(message) else { return false };
    if stream.can_answer() {
        let value = value.map_or_else(Bytes::new, |value| kept(value, stream.asked.form));
        if let Err(refusal) = hand_on(stream, principal, (&request, value), cx) {
            write_error(stream, &refusal);
        }
    }
    true
}

impl Session {
    /// Takes the requests in our form that lie whole in the next piece of the stream and are about the cache that was asked
    /// about last, with the same rights: in place, without looking anything up. False when there is none, or when what comes
    /// next has to be decided in the general way, which would decide these the same.
    pub(super) fn ask_again(&mut self, id: StreamId, cx: &mut Cx<'_>) -> bool {
        let Some(stream) = self.streams.get_mut(&id) else { return false };
        let Phase::Open { identity } = stream.phase else { return false };
        let Some(identity) = self.identities.get(identity).filter(|identity| !identity.expired) else {
            return false;
        };
        let able = stream.can_answer() && stream.reader.knows(Flags::BINARY_MESSAGE);
        let holds = |memo: &mut CacheMemo| able && memo.holds(&identity.principal, cx.routes.version);
        let Some(memo) = stream.cache_memo.take_if(holds) else { return false };
        stream.asked.form = Form::Binary;
        let limits = cx.limits;
        let take = |stream: &mut Stream, piece: &mut Bytes| take_again(stream, &memo, piece, cx);
        let taken = take_whole(stream, &mut self.partial_bytes, limits, take);
        stream.cache_memo = Some(memo);
        if taken == 0 {
            return false;
        }
        stream.frame_since = None;
        if self.partial_owner == Some(id) {
            self.partial_owner = None;
        }
        cx.counters.add(Counter::FramesIn, taken as u64);
        true
    }
}

/// Takes one request that lies whole at the beginning of `piece` and is about the cache of the memo. False when there is none.
fn take_again(stream: &mut Stream, memo: &CacheMemo, piece: &mut Bytes, cx: &mut Cx<'_>) -> bool {
    let max = stream.reader.max_payload().min(AGAIN_BYTES_MAX);
    let Some((flags, payload)) = whole_frame(piece, max) else { return false };
    if Flags(flags) != Flags::BINARY_MESSAGE {
        return false;
    }
    let Some(Ok(request)) = KeyRequest::read(payload) else { return false };
    let granted = memo.granted(&request).filter(|_| memo.is_named(&request));
    let Some(Ok(place)) = granted.map(|granted| placed(granted, &memo.route, &request)) else { return false };
    let value = Bytes::copy_from_slice(request.value);
    if ask(stream, (&request, value), (place, &memo.route), cx).is_err() {
        return false;
    }
    piece.advance(HEADER_LEN + payload.len());
    true
}

fn hand_on(
    stream: &mut Stream,
    principal: &Arc<Principal>,
    (request, value): (&KeyRequest<'_>, Bytes),
    cx: &mut Cx<'_>,
) -> Result<(), Refusal> {
    let name = (request.tenant, request.namespace, request.cache);
    let right = if request.what.is_read() { Right::CacheRead } else { Right::CacheWrite };
    let key = request.key.as_bytes();
    let granted = principal.cache_key(right, name, key, ()).map_err(|_| Refusal::forbidden())?;
    let route = cx.routes.cache(name, cx.scratch).ok_or_else(|| Refusal::no_cache(cx.routes))?;
    let is_known = |memo: &CacheMemo| memo.holds(principal, cx.routes.version) && memo.is_named(request);
    if !stream.cache_memo.as_ref().is_some_and(is_known) {
        let every_key = |right| principal.cache_prefix(right, name, b"", ()).ok();
        stream.cache_memo = Some(CacheMemo {
            routes_version: cx.routes.version,
            principal: Arc::clone(principal),
            route: Arc::clone(route),
            reads: every_key(Right::CacheRead),
            writes: every_key(Right::CacheWrite),
        });
    }
    let place = placed(granted, route, request).map_err(|error| Refusal::from_route(&error))?;
    ask(stream, (request, value), (place, route), cx)
}

/// Where a granted request goes.
fn placed<'r>(
    granted: Granted<()>,
    route: &'r StreamRoute,
    request: &KeyRequest<'_>,
) -> Result<Granted<Place>, RouteError<'r>> {
    let by = Placing::Key { key: Some(request.key.as_bytes()), declared: None };
    place(route, by).map(|place| granted.map(|()| place))
}

/// Asks the shard.
fn ask(
    stream: &mut Stream,
    (request, value): (&KeyRequest<'_>, Bytes),
    (place, route): (Granted<Place>, &StreamRoute),
    cx: &mut Cx<'_>,
) -> Result<(), Refusal> {
    let reads = Reads {
        form: stream.asked.form,
        versions: stream.features.contains(Features::CACHE_CONDITIONAL),
        reused: stream.features.contains(Features::SEQUENCE_REUSED),
    };
    let (ask, answering) = understood(request, value, route, reads)?;
    let slot = stream.asked.open();
    cx.actions.push(Action::Ask(Box::new(AskAction { stream: stream.id, place, slot, ask, answering })));
    Ok(())
}

/// What is asked of the shard, and how it is answered.
fn understood(
    request: &KeyRequest<'_>,
    value: Bytes,
    route: &StreamRoute,
    reads: Reads,
) -> Result<(Ask, Answering), Refusal> {
    let key = Bytes::copy_from_slice(request.key.as_bytes());
    let names = || (reads.form == Form::Json).then(|| Arc::new((route.name.clone(), Box::from(request.key))));
    let named = || request.request_id.ok_or_else(|| Refusal::invalid("the request id is missing"));
    let told = |version| Answering::Value { names: names(), request_id: request.request_id, version };
    Ok(match request.what {
        KeyWhat::Get => (Ask::CacheGet { key }, told(reads.versions)),
        KeyWhat::Put { ttl_ms } => {
            let condition = Condition::Always;
            (Ask::CachePut { key, value, ttl_ms, condition }, Answering::Ok { request_id: named()? })
        }
        KeyWhat::Delete => (Ask::CacheDelete { key, condition: Condition::Always }, told(false)),
        KeyWhat::PutIf { ttl_ms, condition } => {
            let condition = match condition {
                CacheCondition::Absent => Condition::Absent,
                CacheCondition::Version(version) => Condition::Version(Offset(version)),
            };
            (Ask::CachePut { key, value, ttl_ms, condition }, Answering::Condition { request_id: named()? })
        }
        KeyWhat::DeleteIf { version } => {
            let condition = Condition::Version(Offset(version));
            (Ask::CacheDelete { key, condition }, Answering::Condition { request_id: named()? })
        }
        KeyWhat::Add { delta, producer_id, sequence } => {
            let number = match (producer_id, sequence) {
                (Some(producer), Some(sequence)) => Some((producer, sequence)),
                (None, None) => None,
                _ => return Err(Refusal::invalid("a number is a producer and a sequence")),
            };
            let answering = Answering::Sum { request_id: named()?, reads_reused: reads.reused };
            (Ask::CounterAdd { key, delta, number }, answering)
        }
        KeyWhat::CounterGet => {
            (Ask::CounterGet { key }, Answering::Sum { request_id: named()?, reads_reused: false })
        }
    })
}

/// A value as it may be held: one that is a slice of a receive buffer would hold all of it.
fn kept(value: &Bytes, form: Form) -> Bytes {
    match form {
        Form::Binary => Bytes::copy_from_slice(value),
        // Decoded into a buffer of its own.
        Form::Json => value.clone(),
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
        (
            Answering::Value { names: None, request_id: Some(request_id), version: told },
            Reply::Value { value, version },
        ) if wording.form == Form::Binary => {
            let version = version.filter(|_| *told).map(|version| version.0);
            return encode_value((*request_id, version), value.as_deref(), out);
        }
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
