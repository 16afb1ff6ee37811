//! What operators ask a broker about its shards and subscriptions (client-protocol 16, 21).

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::json;
use super::topology::ShardKind;
use crate::id::{Generation, Offset, RequestId, ShardIndex, SubscriptionId};

/// `shard_inspect`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardInspect<'a> {
    /// Tenant.
    #[serde(borrow)]
    pub tenant_id: Cow<'a, str>,
    /// Namespace.
    #[serde(borrow)]
    pub namespace: Cow<'a, str>,
    /// Stream or cache.
    #[serde(borrow)]
    pub name: Cow<'a, str>,
    /// Which kind of name.
    pub kind: ShardKind,
    /// Shard.
    pub shard: ShardIndex,
    /// The request, echoed by its answer.
    pub request_id: RequestId,
}

/// `shard_inspect_info`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardInspectInfo<'a> {
    /// How the shard is doing.
    #[serde(borrow)]
    pub view: ShardView<'a>,
    /// The request, echoed by its answer.
    pub request_id: RequestId,
}

/// How one broker sees one shard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardView<'a> {
    /// Who says so; empty outside a cluster.
    #[serde(borrow)]
    pub node_id: Cow<'a, str>,
    /// Width of the stream or cache.
    pub shards: u32,
    /// Leader, follower or none.
    #[serde(borrow)]
    pub role: Cow<'a, str>,
    /// Where the shard is in its life.
    #[serde(borrow)]
    pub phase: Cow<'a, str>,
    /// Whether it serves clients.
    pub serving: bool,
    /// Why not, as a word.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "json::opt_text::deserialize"
    )]
    #[serde(borrow)]
    pub reason: Option<Cow<'a, str>>,
    /// Why not, for people.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "json::opt_text::deserialize"
    )]
    #[serde(borrow)]
    pub detail: Option<Cow<'a, str>>,
    /// Generation it runs at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<Generation>,
    /// What the control plane assigned.
    #[serde(default, skip_serializing_if = "Option::is_none", borrow)]
    pub assignment: Option<AssignmentView<'a>>,
    /// A promotion under way.
    #[serde(default, skip_serializing_if = "Option::is_none", borrow)]
    pub fence: Option<FenceView<'a>>,
    /// The lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<LeaseView>,
    /// End of the log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tail: Option<Offset>,
    /// Quorum mark.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub committed: Option<Offset>,
    /// Newest generation accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accepted_generation: Option<Generation>,
    /// The replicas, as the leader sees them.
    #[serde(default, skip_serializing_if = "Option::is_none", borrow)]
    pub replicas: Option<Vec<ReplicaView<'a>>>,
}

/// An assignment in a `ShardView`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AssignmentView<'a> {
    /// Its generation.
    pub generation: Generation,
    /// Who leads.
    #[serde(borrow)]
    pub leader: Cow<'a, str>,
    /// Who follows.
    #[serde(borrow, deserialize_with = "json::texts::deserialize")]
    pub replicas: Vec<Cow<'a, str>>,
    /// Whether it is moving away.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub draining: Option<bool>,
    /// Where to.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "json::opt_text::deserialize"
    )]
    #[serde(borrow)]
    pub successor: Option<Cow<'a, str>>,
}

/// A promotion in a `ShardView`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FenceView<'a> {
    /// Replicas that took the fence.
    #[serde(borrow, deserialize_with = "json::texts::deserialize")]
    pub took: Vec<Cow<'a, str>>,
    /// Replicas that have not answered.
    #[serde(borrow, deserialize_with = "json::texts::deserialize")]
    pub pending: Vec<Cow<'a, str>>,
    /// Tries so far.
    pub attempts: u32,
    /// Until the next try, milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_in_ms: Option<u64>,
}

/// A lease in a `ShardView`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseView {
    /// Whether it is held.
    pub held: bool,
    /// For how long still, milliseconds.
    pub remaining_ms: u64,
}

/// A replica in a `ShardView`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaView<'a> {
    /// Which node.
    #[serde(borrow)]
    pub node_id: Cow<'a, str>,
    /// Leader or follower.
    #[serde(borrow)]
    pub role: Cow<'a, str>,
    /// End of its log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_offset: Option<Offset>,
    /// Records behind the leader.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lag: Option<u64>,
    /// Whether it took the fence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fence: Option<bool>,
    /// How it is doing.
    #[serde(borrow)]
    pub state: Cow<'a, str>,
    /// Why it stopped.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "json::opt_text::deserialize"
    )]
    #[serde(borrow)]
    pub halted: Option<Cow<'a, str>>,
}

/// `subscriptions_list`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubscriptionsList<'a> {
    /// Which ones.
    #[serde(default, deserialize_with = "json::or_default", borrow)]
    pub filter: SubscriptionFilter<'a>,
    /// At most so many.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// Continue after this one.
    #[serde(default, skip_serializing_if = "Option::is_none", borrow)]
    pub cursor: Option<SubscriptionCursor<'a>>,
    /// The request, echoed by its answer.
    pub request_id: RequestId,
}

/// Which subscriptions; every member that is there must match.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubscriptionFilter<'a> {
    /// Tenant.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "json::opt_text::deserialize"
    )]
    #[serde(borrow)]
    pub tenant_id: Option<Cow<'a, str>>,
    /// Namespace.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "json::opt_text::deserialize"
    )]
    #[serde(borrow)]
    pub namespace: Option<Cow<'a, str>>,
    /// Stream.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "json::opt_text::deserialize"
    )]
    #[serde(borrow)]
    pub stream: Option<Cow<'a, str>>,
    /// Shard.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shard: Option<ShardIndex>,
    /// Who reads.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "json::opt_text::deserialize"
    )]
    #[serde(borrow)]
    pub principal: Option<Cow<'a, str>>,
    /// Whether records were dropped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dropping: Option<bool>,
}

/// A place in the list of subscriptions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubscriptionCursor<'a> {
    /// Tenant.
    #[serde(borrow)]
    pub tenant_id: Cow<'a, str>,
    /// Namespace.
    #[serde(borrow)]
    pub namespace: Cow<'a, str>,
    /// Stream.
    #[serde(borrow)]
    pub stream: Cow<'a, str>,
    /// Shard.
    pub shard: ShardIndex,
    /// Number of the subscriber on its shard.
    pub subscriber_id: u64,
}

/// `subscriptions_list_info`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubscriptionsListInfo<'a> {
    /// Who says so; empty outside a cluster.
    #[serde(borrow)]
    pub node_id: Cow<'a, str>,
    /// The subscriptions.
    #[serde(borrow)]
    pub subscriptions: Vec<SubscriptionView<'a>>,
    /// Where the next page begins.
    #[serde(default, skip_serializing_if = "Option::is_none", borrow)]
    pub next_cursor: Option<SubscriptionCursor<'a>>,
    /// The request, echoed by its answer.
    pub request_id: RequestId,
}

/// One subscription.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubscriptionView<'a> {
    /// Tenant.
    #[serde(borrow)]
    pub tenant_id: Cow<'a, str>,
    /// Namespace.
    #[serde(borrow)]
    pub namespace: Cow<'a, str>,
    /// Stream.
    #[serde(borrow)]
    pub stream: Cow<'a, str>,
    /// Shard.
    pub shard: ShardIndex,
    /// Number of the subscriber on its shard.
    pub subscriber_id: u64,
    /// Id its client knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subscription_id: Option<SubscriptionId>,
    /// Number of its connection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connection: Option<u64>,
    /// Its address.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "json::opt_text::deserialize"
    )]
    #[serde(borrow)]
    pub peer: Option<Cow<'a, str>>,
    /// Who reads.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "json::opt_text::deserialize"
    )]
    #[serde(borrow)]
    pub principal: Option<Cow<'a, str>>,
    /// What happens when it is too slow.
    #[serde(borrow)]
    pub policy: Cow<'a, str>,
    /// Events queued.
    pub depth: u64,
    /// Events that can be queued.
    pub capacity: u64,
    /// Events dropped so far.
    pub dropped: u64,
    /// Next offset to deliver.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<Offset>,
    /// End of the shard's log.
    pub tail: Offset,
    /// How long it has been there, milliseconds.
    pub age_ms: u64,
}
