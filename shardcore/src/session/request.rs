//! Every other JSON request (client-protocol 11, 16, 17). Scope: functions of a session.
//! Invariants: a request that is not served gets a coded refusal and the stream goes on.

use std::borrow::Cow;
use std::sync::Arc;

use felix_runtime::quic::StreamId;
use felix_wire::client::{
    AckRequest, Message, ProducerInitOk, Records, ShardKind, ShardOwner, ShardOwners, ShardOwnersView,
    StartPosition, StreamShards, StreamShardsView, Subscribe, TopologyView, Unsupported,
};
use felix_wire::control::Action as Right;
use felix_wire::features::Features;
use felix_wire::flags::Flags;
use felix_wire::id::{Generation, ShardIndex};
use felix_wire::routing::KeyMapping;

use super::cache::{cache_request, cache_shards};
use super::group::group_request;
use super::inspect::{shard_inspect, subscriptions_list};
use super::lease::lease_request;
use super::log::log_request;
use super::publish::Incoming;
use super::refusal::Refusal;
use super::stream::Stream;
use super::watch::watch_request;
use super::{Action, Cx, Session, SubscribeAction, not_leader, write_error};
use crate::access::Principal;
use crate::route::{Placing, RouteError, place};
use crate::shard::mail::Start;
use crate::snapshot::Owner;
use crate::turn::counters::Counter;

impl Session {
    pub(super) fn request(&mut self, id: StreamId, identity: usize, message: Message<'_>, cx: &mut Cx<'_>) {
        match message {
            Message::Publish(m) => {
                cx.counters.add(Counter::JsonPublishes, 1);
                let incoming = Incoming {
                    name: (&m.tenant_id, &m.namespace, &m.stream),
                    key: m.key.as_deref().map(Cow::Borrowed),
                    shard: m.shard,
                    records: Records::from_payloads([&m.payload]),
                    ack: None,
                    producer: None,
                };
                self.json_publish(id, identity, incoming, (m.ack, m.request_id), cx);
            }
            Message::PublishBatch(m) => {
                cx.counters.add(Counter::JsonPublishes, 1);
                let incoming = Incoming {
                    name: (&m.tenant_id, &m.namespace, &m.stream),
                    key: m.key.as_deref().map(Cow::Borrowed),
                    shard: m.shard,
                    records: m.payloads.clone(),
                    ack: None,
                    producer: None,
                };
                self.json_publish(id, identity, incoming, (m.ack, m.request_id), cx);
            }
            Message::PublishIdempotent(m) => {
                cx.counters.add(Counter::JsonPublishes, 1);
                let incoming = Incoming {
                    name: (&m.tenant_id, &m.namespace, &m.stream),
                    key: m.key.as_deref().map(Cow::Borrowed),
                    shard: m.shard,
                    records: m.payloads.clone(),
                    ack: None,
                    producer: Some((m.producer_id, m.sequence)),
                };
                let ack = (Some(AckRequest::PerBatch), Some(m.request_id));
                self.json_publish(id, identity, incoming, ack, cx);
            }
            Message::PublishWidth(m) => self.declare_width(id, &m),
            other => {
                let written = self.streams.get(&id).map_or(0, Stream::written);
                self.answered_request(id, identity, other, cx);
                if let Some(stream) = self.streams.get_mut(&id) {
                    stream.keep_order(written);
                }
            }
        }
    }

    fn answered_request(&mut self, id: StreamId, identity: usize, message: Message<'_>, cx: &mut Cx<'_>) {
        let expired = self.is_expired(identity);
        let Some(principal) = self.identities.get(identity).map(|i| Arc::clone(&i.principal)) else { return };
        let number = self.number;
        let Some(stream) = self.streams.get_mut(&id) else { return };
        if expired {
            return write_error(stream, &Refusal::unauthenticated());
        }
        match message {
            // Nobody reads the answer, so there is none to make.
            Message::Topology
            | Message::StreamShards(_)
            | Message::ShardOwners(_)
            | Message::CacheShards(_)
            | Message::ShardInspect(_)
            | Message::SubscriptionsList(_)
            | Message::ProducerInit(_)
                if !stream.can_answer() => {}
            Message::ProducerInit(m) => {
                let answer = ProducerInitOk { request_id: m.request_id, producer_id: cx.producer_ids.take() };
                Message::ProducerInitOk(answer).encode_frame(stream.answers());
            }
            Message::Topology => {
                let view = TopologyView { brokers: Vec::new() };
                Message::TopologyView(view).encode_frame(stream.answers());
            }
            Message::StreamShards(m) => stream_shards(stream, &principal, &m, cx),
            Message::CacheShards(m) => cache_shards(stream, &principal, &m, cx),
            Message::ShardOwners(m) => shard_owners(stream, &principal, &m, cx),
            Message::Subscribe(m) => subscribe(stream, (&principal, identity), &m, cx),
            Message::CacheWatch(m) => watch_request(stream, (&principal, identity), &m, cx),
            Message::Auth(_) => write_error(stream, &Refusal::invalid("the stream is authenticated already")),
            Message::Unknown(unknown) => unsupported(stream, &unknown.type_name, None, unknown.request_id),
            Message::Extension(m) => unsupported(stream, "extension", Some(&m.name), m.request_id),
            other if cache_request(stream, &principal, &other, cx) => {}
            other if group_request(stream, (&principal, number), &other, cx) => {}
            other if lease_request(stream, &principal, &other, cx) => {}
            Message::ShardInspect(m) => shard_inspect(stream, &principal, &m, cx),
            Message::SubscriptionsList(m) => subscriptions_list(stream, &principal, &m, cx),
            other if log_request(stream, &principal, &other, cx) => {}
            other => write_error(stream, &Refusal::not_served(other.type_name())),
        }
    }
}

fn unsupported(
    stream: &mut Stream,
    request_type: &str,
    extension: Option<&str>,
    request_id: Option<felix_wire::id::RequestId>,
) {
    if !stream.features.contains(Features::UNSUPPORTED) {
        return write_error(stream, &Refusal::invalid("unknown request"));
    }
    let answer = Unsupported {
        request_type: request_type.into(),
        extension: extension.map(Cow::Borrowed),
        request_id,
    };
    Message::Unsupported(answer).encode_frame(stream.answers());
}

fn stream_shards(stream: &mut Stream, principal: &Principal, m: &StreamShards<'_>, cx: &mut Cx<'_>) {
    let name = (&*m.tenant_id, &*m.namespace, &*m.stream);
    if principal.sees_stream(name, ()).is_err() {
        return write_error(stream, &Refusal::forbidden());
    }
    if !cx.routes.is_known() {
        return write_error(stream, &Refusal::no_stream(cx.routes));
    }
    let route = cx.routes.stream(name, cx.scratch);
    let private = stream.features.contains(Features::POSITIONS);
    let view = StreamShardsView {
        shards: route.map_or(0, |r| r.shards()),
        request_id: m.request_id,
        routing: route.map_or(KeyMapping::Modulo, |r| r.mapping),
        durable: private.then(|| route.is_some_and(|r| r.is_durable())),
    };
    Message::StreamShardsView(view).encode_frame(stream.answers());
}

fn shard_owners(stream: &mut Stream, principal: &Principal, m: &ShardOwners<'_>, cx: &mut Cx<'_>) {
    let name = (&*m.tenant_id, &*m.namespace, &*m.name);
    let caches = m.kind == ShardKind::Cache;
    let seen = if caches { principal.sees_cache(name, ()) } else { principal.sees_stream(name, ()) };
    if seen.is_err() {
        return write_error(stream, &Refusal::forbidden());
    }
    if !cx.routes.is_known() {
        return write_error(stream, &Refusal::no_stream(cx.routes));
    }
    let hints = stream.features.contains(Features::CORE_HINTS);
    let route = match m.kind {
        ShardKind::Cache => cx.routes.cache(name, cx.scratch),
        ShardKind::Stream => cx.routes.stream(name, cx.scratch),
    };
    let owners = route.map_or_else(Vec::new, |r| {
        r.owners.iter().enumerate().map(|(i, owner)| owner_entry(i, owner, hints)).collect()
    });
    let view = ShardOwnersView { owners, request_id: m.request_id };
    Message::ShardOwnersView(view).encode_frame(stream.answers());
}

/// One node: no address, so that clients stay on their connection (client-protocol 17.2).
fn owner_entry(index: usize, owner: &Owner, hints: bool) -> ShardOwner<'_> {
    let mut entry = ShardOwner {
        shard: ShardIndex(u32::try_from(index).unwrap_or(u32::MAX)),
        node_id: None,
        addr: None,
        generation: Generation(0),
        unavailable: None,
        core: None,
    };
    match owner {
        Owner::Here { core, .. } => entry.core = hints.then_some(*core),
        Owner::Node { node, addr, generation } => {
            entry.node_id = Some(node.as_str().into());
            entry.addr = addr.as_deref().map(Cow::Borrowed);
            entry.generation = *generation;
        }
        Owner::Nobody { reason } => entry.unavailable = Some(Cow::Borrowed(*reason)),
        Owner::NoLog { .. } => entry.unavailable = Some(Cow::Borrowed("storage")),
    }
    entry
}

fn subscribe(stream: &mut Stream, who: (&Principal, usize), m: &Subscribe<'_>, cx: &mut Cx<'_>) {
    let name = (&*m.tenant_id, &*m.namespace, &*m.stream);
    let (principal, identity) = who;
    let Ok(right) = principal.stream(Right::StreamSubscribe, name, ()) else {
        return write_error(stream, &Refusal::forbidden());
    };
    let Some(route) = cx.routes.stream(name, cx.scratch).map(Arc::clone) else {
        return write_error(stream, &Refusal::no_stream(cx.routes));
    };
    let placed = place(&route, Placing::Shard(m.shard.unwrap_or(ShardIndex(0))));
    let place = match placed {
        Ok(place) => right.map(|()| place),
        Err(RouteError::OtherNode { node, addr, generation })
            if stream.features.contains(Features::REDIRECT) =>
        {
            not_leader(node, addr, generation).encode_frame(stream.answers());
            return;
        }
        Err(error) => return write_error(stream, &Refusal::from_route(&error)),
    };
    let start = match m.start.unwrap_or(StartPosition::Latest) {
        StartPosition::Latest => Start::Latest,
        StartPosition::Earliest => Start::Earliest,
        StartPosition::Offset(offset) => Start::At(offset),
    };
    stream.awaiting += 1;
    let slot = stream.asked.open();
    let flags = stream.dialect.flags;
    let offsets = match route.is_durable() {
        true => flags.contains(Flags::EVENT_OFFSETS),
        // In memory they are for clients that know what they are worth.
        false => stream.features.contains(Features::POSITIONS),
    };
    cx.actions.push(Action::Subscribe(Box::new(SubscribeAction {
        stream: stream.id,
        slot,
        place,
        start,
        offsets,
        skips: flags.contains(Flags::EVENT_SKIPPED),
        queue_frames: m.queue_capacity,
        identity,
        reads_moved: stream.features.contains(Features::SHARD_MOVED),
        reads_deleted: stream.features.contains(Features::STREAM_DELETED),
        reads_lagged: stream.features.contains(Features::SUBSCRIPTION_LAGGED),
        reads_codes: stream.features.contains(Features::ERROR_CODES),
    })));
}
