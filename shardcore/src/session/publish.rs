//! Publishes: from a decoded request to a granted place (client-protocol 10).
//! Scope: functions of a session. Invariants: an acked publish is answered exactly once, an unacked one never; what is
//! refused here was not written.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::{Buf, Bytes};
use felix_runtime::quic::{Dir, StreamId};
use felix_wire::client::{
    AckRequest, BinaryPublish, Form, PublishAgain, PublishWidth, Records, encode_names,
};
use felix_wire::control::{Action as Right, NAME_BYTES_MAX};
use felix_wire::frame::{Frame, HEADER_LEN, whole_frame};
use felix_wire::id::{ProducerId, RequestId, Sequence, ShardIndex};
use felix_wire::limits::BATCH_RECORDS_MAX;

use super::acks::{AckForm, Outcome};
use super::refusal::Refusal;
use super::stream::{Declared, Memo, Phase, Stream};
use super::{Action, Cx, Publish, Session, take_whole, write_error};
use crate::access::{Granted, Principal};
use crate::route::{Place, Placing, RouteError, place};
use crate::turn::counters::Counter;
use crate::turn::tenants::{TenantCount, TenantSlot};

/// Frames with larger payloads are not copied out of the piece they arrived in.
const AGAIN_BYTES_MAX: usize = 2 << 10;

/// A publish in either encoding.
pub(super) struct Incoming<'a> {
    pub name: (&'a str, &'a str, &'a str),
    pub key: Option<Cow<'a, [u8]>>,
    pub shard: Option<ShardIndex>,
    pub records: Records,
    pub ack: Option<(RequestId, AckForm)>,
    /// An idempotent producer and the number of this batch.
    pub producer: Option<(ProducerId, Sequence)>,
}

impl Session {
    pub(super) fn binary_publish(&mut self, id: StreamId, identity: usize, frame: &Frame, cx: &mut Cx<'_>) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.publishes = true;
        }
        let decoded = match BinaryPublish::decode(frame.flags, &frame.payload) {
            Ok(decoded) => decoded,
            Err(error) => return self.broken_publish(id, error, cx),
        };
        let BinaryPublish { tenant, namespace, stream, key, acked, producer, records } = decoded;
        let incoming = Incoming {
            name: (tenant, namespace, stream),
            key: key.map(Cow::Borrowed),
            shard: None,
            records,
            ack: acked.map(|(request_id, _)| (request_id, AckForm::Binary)),
            producer,
        };
        self.publish(id, identity, incoming, cx);
    }

    /// The common part of `publish` and `publish_batch`.
    pub(super) fn json_publish(
        &mut self,
        id: StreamId,
        identity: usize,
        mut incoming: Incoming<'_>,
        (ack, request_id): (Option<AckRequest>, Option<RequestId>),
        cx: &mut Cx<'_>,
    ) {
        let wants = matches!(ack, Some(AckRequest::PerMessage | AckRequest::PerBatch));
        if let Some(stream) = self.streams.get_mut(&id) {
            if wants && request_id.is_none() {
                return write_error(stream, &Refusal::invalid("an acked publish without request_id"));
            }
            stream.publishes = true;
        }
        incoming.ack = request_id.filter(|_| wants).map(|r| (r, AckForm::Json));
        self.publish(id, identity, incoming, cx);
    }

    /// Decides a publish: handed on, or refused with nothing written.
    pub(super) fn publish(&mut self, id: StreamId, identity: usize, incoming: Incoming<'_>, cx: &mut Cx<'_>) {
        cx.counters.add(Counter::PublishRequests, 1);
        cx.counters.add(Counter::PublishRecords, u64::from(incoming.records.count()));
        cx.counters.add(Counter::PublishBytes, incoming.records.payload_bytes() as u64);
        let decided = self.decide(id, identity, &incoming, cx);
        let tenant = self.tenant_slot(identity);
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let ack = incoming.ack.filter(|_| id.dir() == Dir::Bi);
        let slot = ack.map(|(request_id, form)| stream.acks.open(request_id, form));
        match decided {
            Ok(place) => {
                stream.unsettled += 1;
                stream.unsettled_bytes += incoming.records.encoded_len();
                let Incoming { records, producer, .. } = incoming;
                let publish = Publish { stream: id, tenant, place, records, producer, ack: slot };
                cx.actions.push(Action::Publish(publish));
            }
            Err(refusal) => {
                cx.counters.add(Counter::PublishesRefused, 1);
                cx.tenants.add(tenant, TenantCount::Refused, 1);
                match slot {
                    Some(slot) => stream.acks.settle(slot, Outcome::Refused(Box::new(refusal))),
                    None => cx.counters.add(Counter::PublishesDropped, 1),
                }
            }
        }
    }

    /// Takes the publishes that lie whole in the next piece of the stream and go to the stream that was published to last,
    /// with the same right: in place, without looking anything up. False when there is none, or when what comes next has to
    /// be decided in the general way, which would decide these the same.
    pub(super) fn publish_again(&mut self, id: StreamId, cx: &mut Cx<'_>) -> bool {
        let Some(stream) = self.streams.get_mut(&id) else { return false };
        let Phase::Open { identity } = stream.phase else { return false };
        let Some(identity) = self.identities.get(identity).filter(|identity| !identity.expired) else {
            return false;
        };
        let holds = |m: &mut Memo| {
            m.routes_version == cx.routes.version && Arc::ptr_eq(&m.principal, &identity.principal)
        };
        let Some(memo) = stream.memo.take_if(holds) else { return false };
        let (limits, tenant) = (cx.limits, identity.tenant);
        let take = |stream: &mut Stream, piece: &mut Bytes| take_again(stream, &memo, tenant, piece, cx);
        let taken = take_whole(stream, &mut self.partial_bytes, limits, take);
        stream.memo = Some(memo);
        if taken == 0 {
            return false;
        }
        stream.publishes = true;
        stream.frame_since = None;
        stream.asked.form = Form::Json;
        if self.partial_owner == Some(id) {
            self.partial_owner = None;
        }
        cx.counters.add(Counter::FramesIn, taken as u64);
        cx.counters.add(Counter::PublishRequests, taken as u64);
        true
    }

    /// The declaration of the width that keyed batches are routed by (client-protocol 10.6). Never answered.
    pub(super) fn declare_width(&mut self, id: StreamId, width: &PublishWidth<'_>) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        stream.publishes = true;
        // Nothing has a longer name, so there is nothing to check, and nothing to remember.
        if width.namespace.len().max(width.stream.len()) > NAME_BYTES_MAX {
            stream.declared = None;
            return;
        }
        stream.declared = Some(Declared {
            namespace: width.namespace.as_ref().into(),
            stream: width.stream.as_ref().into(),
            width: (width.shards, width.routing),
        });
    }

    fn decide(
        &mut self,
        id: StreamId,
        identity: usize,
        incoming: &Incoming<'_>,
        cx: &mut Cx<'_>,
    ) -> Result<Granted<Place>, Refusal> {
        let identity = self.identities.get(identity).filter(|identity| !identity.expired);
        let Some((identity, stream)) = identity.zip(self.streams.get_mut(&id)) else {
            return Err(Refusal::unauthenticated());
        };
        if incoming.records.is_empty() {
            return Err(Refusal::invalid("an empty batch"));
        }
        if incoming.records.count() > BATCH_RECORDS_MAX {
            return Err(Refusal::limit("too many records in a batch"));
        }
        publish_route(&mut stream.memo, &identity.principal, incoming.name, cx)?;
        let Some(memo) = &stream.memo else { return Err(Refusal::unauthenticated()) };
        let by = match incoming.shard {
            Some(index) => Placing::Shard(index),
            None => Placing::Key { key: incoming.key.as_deref(), declared: stream.declared_width(memo) },
        };
        let refuse = |error: RouteError<'_>| match incoming.producer {
            Some(_) => Refusal::of_numbered(&error),
            None => Refusal::from_route(&error),
        };
        memo.granted.try_map(|route| place(route, by)).map_err(refuse)
    }
}

/// Takes one publish that lies whole at the beginning of `piece` and goes to the stream of the memo. False when there is none.
fn take_again(
    stream: &mut Stream,
    memo: &Memo,
    tenant: TenantSlot,
    piece: &mut Bytes,
    cx: &mut Cx<'_>,
) -> bool {
    let max = stream.reader.max_payload().min(AGAIN_BYTES_MAX);
    let Some((flags, payload)) = whole_frame(piece, max) else { return false };
    let Some(again) = PublishAgain::decode(flags, payload, &memo.names) else { return false };
    let PublishAgain { key, request_id, count, run } = again;
    // What a log takes is copied there; a ring keeps the records, and not the piece they came in.
    let records = match memo.granted.get().log.is_some() {
        true => Records::taken(count, piece.slice_ref(run)),
        false => Records::copied(count, run),
    };
    let Ok(records) = records else { return false };
    if count > BATCH_RECORDS_MAX {
        return false;
    }
    let placed = match (key, memo.unkeyed) {
        (None, Some(place)) => place,
        _ => {
            let by = Placing::Key { key, declared: stream.declared_width(memo) };
            let Ok(place) = memo.granted.try_map(|route| place(route, by)) else { return false };
            place
        }
    };
    let used = HEADER_LEN + payload.len();
    piece.advance(used);
    let request_id = request_id.filter(|_| stream.id.dir() == Dir::Bi);
    let ack = request_id.map(|request_id| stream.acks.open(request_id, AckForm::Binary));
    stream.unsettled += 1;
    stream.unsettled_bytes += records.encoded_len();
    cx.counters.add(Counter::PublishRecords, u64::from(records.count()));
    cx.counters.add(Counter::PublishBytes, records.payload_bytes() as u64);
    let publish = Publish { stream: stream.id, tenant, place: placed, records, producer: None, ack };
    cx.actions.push(Action::Publish(publish));
    true
}

/// Finds the stream, if the identity may publish to it; the memo holds it afterwards, and is left as it is when nothing has
/// changed since.
fn publish_route(
    memo: &mut Option<Memo>,
    principal: &Arc<Principal>,
    name: (&str, &str, &str),
    cx: &mut Cx<'_>,
) -> Result<(), Refusal> {
    let version = cx.routes.version;
    let holds = |memo: &Memo| {
        let route = memo.granted.get();
        let same = (&*route.name.tenant, &*route.name.namespace, &*route.name.stream) == name;
        same && memo.routes_version == version && Arc::ptr_eq(&memo.principal, principal)
    };
    if memo.as_ref().is_some_and(holds) {
        return Ok(());
    }
    let right = principal.stream(Right::StreamPublish, name, ()).map_err(|_| Refusal::forbidden())?;
    let route = cx.routes.stream(name, cx.scratch).ok_or_else(|| Refusal::no_stream(cx.routes))?;
    let granted = right.map(|()| Arc::clone(route));
    // Nothing that is served has a name too long for a frame.
    let names = encode_names(name).unwrap_or_default();
    let unkeyed = granted.try_map(|route| place(route, Placing::Key { key: None, declared: None })).ok();
    *memo = Some(Memo { routes_version: version, principal: Arc::clone(principal), granted, names, unkeyed });
    Ok(())
}
