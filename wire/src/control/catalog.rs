//! Tenants, namespaces, streams, caches and their changes (control-plane-api 4 and 5).

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Tenant {
    pub tenant_id: String,
    #[serde(default)]
    pub display_name: String,
}

/// Body of `POST /v1/tenants`.
pub type TenantCreate = Tenant;

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Namespace {
    pub tenant_id: String,
    pub namespace: String,
    #[serde(default)]
    pub display_name: String,
}

/// Body of `POST /v1/tenants/{t}/namespaces`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct NamespaceCreate {
    pub namespace: String,
    #[serde(default)]
    pub display_name: String,
}

/// Recorded, not enforced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum StreamKind {
    Stream,
    Queue,
    Cache,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Consistency {
    #[default]
    Leader,
    Quorum,
}

/// Recorded, not enforced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Delivery {
    AtMostOnce,
    AtLeastOnce,
}

/// How a key's hash becomes a shard. Left out of answers when modulo.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeyRouting {
    Modulo,
    JumpHash,
}

/// None means the broker's default; 0 is refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Retention {
    #[serde(default)]
    pub max_age_seconds: Option<u64>,
    #[serde(default)]
    pub max_size_bytes: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Stream {
    pub tenant_id: String,
    pub namespace: String,
    pub stream: String,
    pub kind: StreamKind,
    pub shards: u32,
    #[serde(default = "one")]
    pub replication_factor: u32,
    pub retention: Retention,
    pub consistency: Consistency,
    pub delivery: Delivery,
    pub durable: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
    /// Absent means modulo.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub routing: Option<KeyRouting>,
    /// Life of this name; greater for every later one. 0 from a control plane without incarnations.
    #[serde(default)]
    pub incarnation: u64,
}

/// Body of `POST .../streams`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct StreamCreate {
    pub stream: String,
    pub kind: StreamKind,
    pub shards: u32,
    #[serde(default = "one")]
    pub replication_factor: u32,
    pub retention: Retention,
    pub consistency: Consistency,
    pub delivery: Delivery,
    pub durable: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
    /// Absent: the control plane's default for new streams.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub routing: Option<KeyRouting>,
}

/// Body of `PATCH .../streams/{s}`; an absent member stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct StreamPatch {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention: Option<Retention>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consistency: Option<Consistency>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivery: Option<Delivery>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub durable: Option<bool>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Cache {
    pub tenant_id: String,
    pub namespace: String,
    pub cache: String,
    #[serde(default)]
    pub display_name: String,
    #[serde(default = "one")]
    pub shards: u32,
    #[serde(default = "one")]
    pub replication_factor: u32,
    #[serde(default)]
    pub consistency: Consistency,
    /// As for a stream.
    #[serde(default)]
    pub incarnation: u64,
}

/// Body of `POST .../caches`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CacheCreate {
    pub cache: String,
    #[serde(default)]
    pub display_name: String,
    #[serde(default = "one")]
    pub shards: u32,
    #[serde(default = "one")]
    pub replication_factor: u32,
    #[serde(default)]
    pub consistency: Consistency,
}

/// Body of `PATCH .../caches/{c}`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CachePatch {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub display_name: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum CatalogOp {
    Created,
    Updated,
    Deleted,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct NamespaceKey {
    pub tenant_id: String,
    pub namespace: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct StreamKey {
    pub tenant_id: String,
    pub namespace: String,
    pub stream: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct CacheKey {
    pub tenant_id: String,
    pub namespace: String,
    pub cache: String,
}

/// One entry of the tenant feed. `tenant` is None exactly for `deleted`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TenantChange {
    pub seq: u64,
    pub op: CatalogOp,
    pub tenant_id: String,
    #[serde(default)]
    pub tenant: Option<Tenant>,
}

/// One entry of the namespace feed. `namespace` is None exactly for `deleted`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamespaceChange {
    pub seq: u64,
    pub op: CatalogOp,
    pub key: NamespaceKey,
    #[serde(default)]
    pub namespace: Option<Namespace>,
}

/// One entry of the stream feed. `stream` is None exactly for `deleted`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamChange {
    pub seq: u64,
    pub op: CatalogOp,
    pub key: StreamKey,
    #[serde(default)]
    pub stream: Option<Stream>,
    /// Incarnation this change is about; for `deleted` the one that ended.
    #[serde(default)]
    pub incarnation: u64,
}

/// One entry of the cache feed. `cache` is None exactly for `deleted`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheChange {
    pub seq: u64,
    pub op: CatalogOp,
    pub key: CacheKey,
    #[serde(default)]
    pub cache: Option<Cache>,
    /// Incarnation this change is about; for `deleted` the one that ended.
    #[serde(default)]
    pub incarnation: u64,
}

fn one() -> u32 {
    1
}
