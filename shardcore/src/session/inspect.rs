//! What operators ask about shards and subscriptions (client-protocol 16, 21). Scope: functions of a session.
//! Invariants: a shard is shown to whoever manages its stream or cache or may see the cluster; so is a subscription.
//! Not here: gathering the subscriptions of all cores (`turn::listing`).

use std::borrow::Cow;
use std::sync::Arc;

use felix_runtime::quic::StreamId;
use felix_wire::client::inspect::{AssignmentView, ShardView, SubscriptionFilter};
use felix_wire::client::{Message, ShardInspect, ShardInspectInfo, ShardKind, SubscriptionsList};
use felix_wire::id::{Generation, Offset, RequestId, ShardIndex};

use super::answers::AnswerSlot;
use super::cache::Answering;
use super::log::LogAnswer;
use super::refusal::Refusal;
use super::stream::Stream;
use super::{Action, AskAction, Cx, ListAction, Session, write_error};
use crate::access::Principal;
use crate::route::{Placing, place};
use crate::shard::ask::{Ask, StreamAsk};
use crate::snapshot::Owner;
use crate::turn::listing::{ListPlace, ListQuery};

/// Subscriptions of an answer.
const ROWS_MAX: u32 = 1_000;
/// Bytes of each text of a filter or cursor: nothing has a longer one.
const TEXT_BYTES_MAX: usize = 1_024;

/// Answers `shard_inspect`, or hands it on when the shard has to say where its log ends.
pub(super) fn shard_inspect(
    stream: &mut Stream,
    principal: &Principal,
    m: &ShardInspect<'_>,
    cx: &mut Cx<'_>,
) {
    let name = (&*m.tenant_id, &*m.namespace, &*m.name);
    let is_cache = m.kind == ShardKind::Cache;
    let Ok(granted) = principal.inspects(name, is_cache, ()) else {
        return write_error(stream, &Refusal::forbidden());
    };
    let route = match m.kind {
        ShardKind::Cache => cx.routes.cache(name, cx.scratch),
        ShardKind::Stream => cx.routes.stream(name, cx.scratch),
    };
    let Some(route) = route else {
        let none = if is_cache { Refusal::no_cache(cx.routes) } else { Refusal::no_stream(cx.routes) };
        return write_error(stream, &none);
    };
    let Some(owner) = route.owners.get(m.shard.0 as usize) else {
        return write_error(stream, &Refusal::invalid("there is no such shard"));
    };
    let shards = route.shards();
    if let (false, Ok(placed)) = (is_cache, place(route, Placing::Shard(m.shard))) {
        let answering = Answering::Log(LogAnswer::inspect(m.request_id, shards, placed.generation));
        let slot = stream.asked.open();
        let (place, ask) = (granted.map(|()| placed), Ask::Stream(Box::new(StreamAsk::Ends)));
        cx.actions.push(Action::Ask(Box::new(AskAction { stream: stream.id, place, slot, ask, answering })));
        return;
    }
    let view = owner_view(owner, shards);
    Message::ShardInspectInfo(Box::new(ShardInspectInfo { view, request_id: m.request_id }))
        .encode_frame(stream.answers());
}

/// What the routes say of a shard.
fn owner_view(owner: &Owner, shards: u32) -> ShardView<'_> {
    let view = bare_view(shards);
    let assigned = |generation: &Generation, leader| AssignmentView {
        generation: *generation,
        leader,
        replicas: Vec::new(),
        draining: None,
        successor: None,
    };
    match owner {
        Owner::Here { generation, .. } => leader_view(shards, *generation),
        Owner::Node { node, generation, .. } => ShardView {
            phase: "elsewhere".into(),
            generation: Some(*generation),
            assignment: Some(assigned(generation, Cow::Borrowed(node.as_str()))),
            ..view
        },
        Owner::Nobody { reason } => ShardView { reason: Some(Cow::Borrowed(*reason)), ..view },
        Owner::NoLog { why } => {
            ShardView { reason: Some("storage".into()), detail: Some(Cow::Borrowed(why)), ..view }
        }
    }
}

fn bare_view<'v>(shards: u32) -> ShardView<'v> {
    ShardView {
        node_id: Cow::Borrowed(""),
        shards,
        role: "none".into(),
        phase: "unserved".into(),
        serving: false,
        reason: None,
        detail: None,
        generation: None,
        assignment: None,
        fence: None,
        lease: None,
        tail: None,
        committed: None,
        accepted_generation: None,
        replicas: None,
    }
}

fn leader_view<'v>(shards: u32, generation: Generation) -> ShardView<'v> {
    ShardView {
        role: "leader".into(),
        phase: "serving".into(),
        serving: true,
        generation: Some(generation),
        ..bare_view(shards)
    }
}

/// The answer of a shard that is served here, whose records end at `tail`.
pub(super) fn inspected(
    request_id: RequestId,
    (shards, generation): (u32, Generation),
    tail: Offset,
) -> Message<'static> {
    // What can be read is what is settled, so the one end is the other.
    let view = ShardView { tail: Some(tail), committed: Some(tail), ..leader_view(shards, generation) };
    Message::ShardInspectInfo(Box::new(ShardInspectInfo { view, request_id }))
}

/// Has the subscriptions of all cores gathered.
pub(super) fn subscriptions_list(
    stream: &mut Stream,
    principal: &Arc<Principal>,
    m: &SubscriptionsList<'_>,
    cx: &mut Cx<'_>,
) {
    let SubscriptionFilter { tenant_id, namespace, stream: name, shard, principal: who, dropping } =
        &m.filter;
    let texts = [tenant_id, namespace, name, who];
    let long = texts.into_iter().flatten().any(|text| text.len() > TEXT_BYTES_MAX);
    if long || m.cursor.as_ref().is_some_and(|at| at.stream.len().max(at.namespace.len()) > TEXT_BYTES_MAX) {
        return write_error(stream, &Refusal::invalid("a name is too long"));
    }
    let owned = |text: &Option<Cow<'_, str>>| text.as_deref().map(Box::from);
    let query = ListQuery {
        principal: Arc::clone(principal),
        tenant: owned(tenant_id),
        namespace: owned(namespace),
        stream: owned(name),
        shard: *shard,
        subject: owned(who),
        dropping: *dropping,
        rows_max: m.limit.unwrap_or(ROWS_MAX).clamp(1, ROWS_MAX) as usize,
        after: m.cursor.as_ref().map(|at| ListPlace {
            tenant: (&*at.tenant_id).into(),
            namespace: (&*at.namespace).into(),
            stream: (&*at.stream).into(),
            shard: ShardIndex(at.shard.0),
            subscriber: at.subscriber_id,
        }),
    };
    let slot = stream.asked.open();
    let request_id = m.request_id;
    cx.actions.push(Action::List(Box::new(ListAction { stream: stream.id, slot, request_id, query })));
}

impl Session {
    /// The answer to a question about subscriptions. Afterwards the stream is to be flushed.
    pub fn answer_list(
        &mut self,
        (id, slot): (StreamId, AnswerSlot),
        answer: Result<&Message<'_>, &Refusal>,
    ) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let codes = stream.dialect.codes;
        stream.answer(slot, |out| {
            match answer {
                Ok(message) => message.encode_frame(out),
                Err(refusal) => refusal.to_message(codes).encode_frame(out),
            };
        });
    }

    /// Its number, and who an identity of it is, for whoever lists subscriptions.
    pub fn names(&self, identity: usize) -> (u64, Arc<str>) {
        let subject = self.identities.get(identity).map(|identity| Arc::clone(&identity.principal.subject));
        (self.number.0, subject.unwrap_or_default())
    }
}
