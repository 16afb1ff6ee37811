//! Members of a consumer group and the shards that are leased to them: private messages behind `Features::GROUP_LEASES`. One
//! group of one stream per request, sent to whoever leads shard 0 of the stream.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::json;
use crate::id::{LeaseId, MembershipId, RequestId, ShardIndex};

/// `group_join`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupJoin<'a> {
    /// Tenant.
    #[serde(borrow)]
    pub tenant_id: Cow<'a, str>,
    /// Namespace.
    #[serde(borrow)]
    pub namespace: Cow<'a, str>,
    /// Stream.
    #[serde(borrow)]
    pub stream: Cow<'a, str>,
    /// Group.
    #[serde(borrow)]
    pub group: Cow<'a, str>,
    /// Name of the member, 1 to 128 bytes.
    #[serde(borrow)]
    pub member: Cow<'a, str>,
    /// Which run of the member it is; random. The same one that joins again is the same membership.
    pub instance: u64,
    /// How long leases hold without a heartbeat, milliseconds; the broker's own without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub term_ms: Option<u64>,
    /// The request, echoed by its answer.
    pub request_id: RequestId,
}

/// `group_heartbeat`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupHeartbeat<'a> {
    /// Tenant.
    #[serde(borrow)]
    pub tenant_id: Cow<'a, str>,
    /// Namespace.
    #[serde(borrow)]
    pub namespace: Cow<'a, str>,
    /// Stream.
    #[serde(borrow)]
    pub stream: Cow<'a, str>,
    /// Group.
    #[serde(borrow)]
    pub group: Cow<'a, str>,
    /// Name of the member, 1 to 128 bytes.
    #[serde(borrow)]
    pub member: Cow<'a, str>,
    /// The membership.
    pub session: MembershipId,
    /// Leases that the member ends: it polls their shards no more.
    #[serde(default, deserialize_with = "json::or_default", skip_serializing_if = "json::is_default")]
    pub released: Vec<ShardLease>,
    /// The version the member has; with the same one the answer waits for another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seen: Option<u64>,
    /// For so long at most, milliseconds; a third of the term at most.
    #[serde(default, deserialize_with = "json::or_default", skip_serializing_if = "json::is_default")]
    pub wait_ms: u64,
    /// The request, echoed by its answer.
    pub request_id: RequestId,
}

/// A lease of a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ShardLease {
    /// Shard.
    pub shard: ShardIndex,
    /// Which of its leases.
    pub lease: LeaseId,
}

/// `group_leave`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupLeave<'a> {
    /// Tenant.
    #[serde(borrow)]
    pub tenant_id: Cow<'a, str>,
    /// Namespace.
    #[serde(borrow)]
    pub namespace: Cow<'a, str>,
    /// Stream.
    #[serde(borrow)]
    pub stream: Cow<'a, str>,
    /// Group.
    #[serde(borrow)]
    pub group: Cow<'a, str>,
    /// Name of the member, 1 to 128 bytes.
    #[serde(borrow)]
    pub member: Cow<'a, str>,
    /// The membership.
    pub session: MembershipId,
    /// The request, echoed by its answer.
    pub request_id: RequestId,
}

/// `group_members`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupMembers<'a> {
    /// Tenant.
    #[serde(borrow)]
    pub tenant_id: Cow<'a, str>,
    /// Namespace.
    #[serde(borrow)]
    pub namespace: Cow<'a, str>,
    /// Stream.
    #[serde(borrow)]
    pub stream: Cow<'a, str>,
    /// Group.
    #[serde(borrow)]
    pub group: Cow<'a, str>,
    /// The request, echoed by its answer.
    pub request_id: RequestId,
}

/// `group_leases`: the answer to `group_join` and `group_heartbeat`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupLeases {
    /// The membership.
    pub session: MembershipId,
    /// Grows with every change of what follows but the time that is left.
    pub version: u64,
    /// How long leases hold from a heartbeat on, milliseconds.
    pub term_ms: u64,
    /// Members of the group.
    pub members: u32,
    /// What the member holds, by shard.
    pub leases: Vec<LeaseView>,
    /// The request, echoed by its answer.
    pub request_id: RequestId,
}

/// One lease that a member holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseView {
    /// Shard.
    pub shard: ShardIndex,
    /// Which of its leases.
    pub lease: LeaseId,
    /// How long it still holds, milliseconds.
    pub left_ms: u64,
    /// It is to be released; heartbeats do not renew it.
    #[serde(default, deserialize_with = "json::or_default", skip_serializing_if = "json::is_default")]
    pub give_back: bool,
}

/// `group_member_list`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupMemberList<'a> {
    /// The members, by name.
    #[serde(borrow)]
    pub members: Vec<MemberView<'a>>,
    /// The request, echoed by its answer.
    pub request_id: RequestId,
}

/// One member of a group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberView<'a> {
    /// Its name.
    #[serde(borrow)]
    pub member: Cow<'a, str>,
    /// Who it is.
    #[serde(borrow)]
    pub principal: Cow<'a, str>,
    /// The membership.
    pub session: MembershipId,
    /// How long it still counts as alive, milliseconds.
    pub left_ms: u64,
    /// What it holds, by shard.
    pub leases: Vec<LeaseView>,
}
