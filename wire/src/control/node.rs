//! Brokers as the control plane sees them (control-plane-api 6).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lifecycle {
    /// Registered and heard of.
    Live,
    /// Serves on, and is to be emptied.
    Draining,
    /// Silent for longer than its lease and the regrant margin.
    Down,
    /// Deregistered.
    Left,
}

impl Lifecycle {
    /// The spelling in JSON and in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Lifecycle::Live => "live",
            Lifecycle::Draining => "draining",
            Lifecycle::Down => "down",
            Lifecycle::Left => "left",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capacity {
    /// Hard cap on leaderships and copies; None is no cap.
    #[serde(default)]
    pub max_shards: Option<u32>,
    /// Recorded; placement does not use it.
    #[serde(default = "one")]
    pub weight: u32,
}

impl Default for Capacity {
    fn default() -> Capacity {
        Capacity { max_shards: None, weight: one() }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeSpec {
    /// `ip:port` of the broker-internal listener; unique, port not 0.
    pub advertise_addr: String,
    /// Client listener, `host:port`; what clients are told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_addr: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kafka_addr: Option<String>,
    #[serde(default = "local_region")]
    pub region: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    #[serde(default)]
    pub capacity: Capacity,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStatus {
    pub lifecycle: Lifecycle,
    /// The control plane's wall clock.
    pub last_heartbeat_at_millis: u64,
    pub registered_at_millis: u64,
    /// One more with every registration.
    pub incarnation: u64,
    #[serde(default)]
    pub features: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    pub node_id: String,
    pub spec: NodeSpec,
    pub status: NodeStatus,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodePlacement {
    /// New shards may go there.
    pub eligible: bool,
    /// Live or draining, and inside the heartbeat window.
    pub routable: bool,
    /// Why it is not eligible.
    #[serde(default)]
    pub reasons: Vec<String>,
    pub heartbeat_age_ms: u64,
}

/// Answer of the GET routes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeView {
    pub node: Node,
    pub placement: NodePlacement,
}

/// Body of `POST /v1/nodes`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegisterNode {
    pub node_id: String,
    #[serde(flatten)]
    pub spec: NodeSpec,
    #[serde(default)]
    pub features: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegisterAnswer {
    pub node: Node,
    pub heartbeat_interval_ms: u64,
    /// Lease length: the broker stops serving well before it, counted from when it sent the heartbeat.
    pub expiry_timeout_ms: u64,
    #[serde(default)]
    pub fleet_features: Vec<String>,
}

/// Body of `POST /v1/nodes/{id}/heartbeat`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heartbeat {
    /// From the registration's answer; an older one is refused.
    pub incarnation: u64,
    /// Nodes this broker cannot reach.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub suspects: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeartbeatAnswer {
    pub node_id: String,
    /// `down` and `left` mean: register again.
    pub lifecycle: Lifecycle,
    pub heartbeat_interval_ms: u64,
    pub expiry_timeout_ms: u64,
    #[serde(default)]
    pub fleet_features: Vec<String>,
}

fn one() -> u32 {
    1
}

fn local_region() -> String {
    "local".to_owned()
}
