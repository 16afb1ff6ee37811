//! Who serves a shard (control-plane-api 7).

use serde::{Deserialize, Serialize};

use super::catalog::KeyRouting;

/// What a shard belongs to. Absent in JSON means stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResourceKind {
    Cache,
    #[default]
    Stream,
}

/// Names one shard. `stream` is the stream's or the cache's name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct AssignmentKey {
    pub tenant_id: String,
    pub namespace: String,
    #[serde(default)]
    pub kind: ResourceKind,
    pub stream: String,
    pub shard: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AssignmentState {
    Assigning,
    Active,
    Draining,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MoveReason {
    Drain,
    Balance,
    Operator,
    Replace,
}

/// The owner of one shard at one generation.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Assignment {
    #[serde(flatten)]
    pub key: AssignmentKey,
    pub leader: String,
    /// Followers; never the leader.
    #[serde(default)]
    pub replicas: Vec<String>,
    /// Rises with every write of this key, also across a deletion and a new creation of the same name.
    pub generation: u64,
    pub state: AssignmentState,
    /// Destination of a move in progress; one of `replicas`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub successor: Option<String>,
    /// Follower being copied in; one of `replicas`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub joining: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub move_started_at_millis: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub move_reason: Option<MoveReason>,
    /// Absent means modulo; never set for caches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub routing: Option<KeyRouting>,
    /// Life of the stream or cache; greater for every later one of the same name. 0 from a control plane without them.
    #[serde(default)]
    pub incarnation: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum AssignmentOp {
    Assigned,
    Updated,
    Unassigned,
}

/// One entry of the assignment feed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AssignmentChange {
    pub seq: u64,
    pub op: AssignmentOp,
    pub key: AssignmentKey,
    /// None exactly for `unassigned`.
    #[serde(default)]
    pub assignment: Option<Assignment>,
    /// Generation this change is about; for `unassigned` the one that ended.
    #[serde(default)]
    pub generation: u64,
    /// Incarnation this change is about; for `unassigned` the one that ended.
    #[serde(default)]
    pub incarnation: u64,
}
