//! Publishes: from a decoded request to a granted place (client-protocol 10).
//! Scope: functions of a session. Invariants: an acked publish is answered exactly once, an unacked one never; what is
//! refused here was not written.

use std::borrow::Cow;
use std::sync::Arc;

use felix_runtime::quic::{Dir, StreamId};
use felix_wire::client::{AckRequest, BinaryPublish, PublishWidth, Records};
use felix_wire::control::{Action as Right, NAME_BYTES_MAX};
use felix_wire::frame::Frame;
use felix_wire::id::{ProducerId, RequestId, Sequence, ShardIndex};
use felix_wire::limits::BATCH_RECORDS_MAX;

use super::acks::{AckForm, Outcome};
use super::refusal::Refusal;
use super::stream::{Declared, Memo, Stream};
use super::{Action, Cx, GrantedRoute, Session, write_error};
use crate::access::{Granted, Principal};
use crate::route::{Place, Placing, RouteError, place};
use crate::turn::counters::Counter;
use crate::turn::tenants::TenantCount;

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
                cx.actions.push(Action::Publish { stream: id, tenant, place, records, producer, ack: slot });
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
        let Stream { memo, declared, .. } = stream;
        let granted = publish_route(memo, &identity.principal, incoming.name, cx)?;
        let declared = declared.as_ref();
        let declared = declared.filter(|d| *d.namespace == *incoming.name.1 && *d.stream == *incoming.name.2);
        let by = match incoming.shard {
            Some(index) => Placing::Shard(index),
            None => Placing::Key { key: incoming.key.as_deref(), declared: declared.map(|d| d.width) },
        };
        let refuse = |error: RouteError<'_>| match incoming.producer {
            Some(_) => Refusal::of_numbered(&error),
            None => Refusal::from_route(&error),
        };
        granted.try_map(|route| place(route, by)).map_err(refuse)
    }
}

/// The stream, if the identity may publish to it; from the memo when nothing has changed since.
fn publish_route<'m>(
    memo: &'m mut Option<Memo>,
    principal: &Arc<Principal>,
    name: (&str, &str, &str),
    cx: &mut Cx<'_>,
) -> Result<&'m GrantedRoute, Refusal> {
    let version = cx.routes.version;
    let holds = |memo: &Memo| {
        let route = memo.granted.get();
        let same = (&*route.name.tenant, &*route.name.namespace, &*route.name.stream) == name;
        same && memo.routes_version == version && Arc::ptr_eq(&memo.principal, principal)
    };
    if !memo.as_ref().is_some_and(holds) {
        let right = principal.stream(Right::StreamPublish, name, ()).map_err(|_| Refusal::forbidden())?;
        let route = cx.routes.stream(name, cx.scratch).ok_or_else(|| Refusal::no_stream(cx.routes))?;
        let granted = right.map(|()| Arc::clone(route));
        *memo = Some(Memo { routes_version: version, principal: Arc::clone(principal), granted });
    }
    memo.as_ref().map(|memo| &memo.granted).ok_or_else(Refusal::unauthenticated)
}
