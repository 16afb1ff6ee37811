//! Questions about brokers, widths and owners (client-protocol 17).

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::json;
use crate::id::{CoreId, Generation, RequestId, ShardIndex};
use crate::routing::KeyMapping;

/// `topology_view`: the client keeps its seeds, so an empty list is fine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopologyView<'a> {
    /// Brokers by their client address.
    #[serde(borrow)]
    pub brokers: Vec<Broker<'a>>,
}

/// One broker of a `topology_view`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Broker<'a> {
    /// Node id.
    #[serde(borrow)]
    pub node_id: Cow<'a, str>,
    /// Client address `host:port`.
    #[serde(borrow)]
    pub addr: Cow<'a, str>,
}

/// `stream_shards`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamShards<'a> {
    /// Tenant.
    #[serde(borrow)]
    pub tenant_id: Cow<'a, str>,
    /// Namespace.
    #[serde(borrow)]
    pub namespace: Cow<'a, str>,
    /// Stream.
    #[serde(borrow)]
    pub stream: Cow<'a, str>,
    /// The request, echoed by its answer.
    pub request_id: RequestId,
}

/// `stream_shards_view`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamShardsView {
    /// Width of the stream; 0 for an unknown one, which is an answer.
    pub shards: u32,
    /// The request, echoed by its answer.
    pub request_id: RequestId,
    /// How keys map to shards; left out for `Modulo`.
    #[serde(default, deserialize_with = "json::or_default", skip_serializing_if = "KeyMapping::is_modulo")]
    pub routing: KeyMapping,
    /// Private, `POSITIONS`: whether the stream is on disk. Left out when the stream is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub durable: Option<bool>,
}

/// `cache_shards`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheShards<'a> {
    /// Tenant.
    #[serde(borrow)]
    pub tenant_id: Cow<'a, str>,
    /// Namespace.
    #[serde(borrow)]
    pub namespace: Cow<'a, str>,
    /// Cache.
    #[serde(borrow)]
    pub cache: Cow<'a, str>,
    /// The request, echoed by its answer.
    pub request_id: RequestId,
}

/// `cache_shards_view`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheShardsView {
    /// Width of the cache; 0 for an unknown one.
    pub shards: u32,
    /// The request, echoed by its answer.
    pub request_id: RequestId,
}

/// What a name names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ShardKind {
    /// A stream.
    Stream,
    /// A cache with its counters.
    Cache,
}

/// `shard_owners`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardOwners<'a> {
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
    /// The request, echoed by its answer.
    pub request_id: RequestId,
}

/// `shard_owners_view`: one entry per shard in shard order, none for an unknown name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardOwnersView<'a> {
    /// The entries.
    #[serde(borrow)]
    pub owners: Vec<ShardOwner<'a>>,
    /// The request, echoed by its answer.
    pub request_id: RequestId,
}

/// One entry of a `shard_owners_view`. Without node and address the client stays on its connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardOwner<'a> {
    /// Which shard.
    pub shard: ShardIndex,
    /// Who owns it.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "json::opt_text::deserialize"
    )]
    #[serde(borrow)]
    pub node_id: Option<Cow<'a, str>>,
    /// Its client address `host:port`.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "json::opt_text::deserialize"
    )]
    #[serde(borrow)]
    pub addr: Option<Cow<'a, str>>,
    /// Generation of that ownership, 0 outside a cluster.
    pub generation: Generation,
    /// Why nobody serves it.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "json::opt_text::deserialize"
    )]
    #[serde(borrow)]
    pub unavailable: Option<Cow<'a, str>>,
    /// Private, `CORE_HINTS`: the owner's core that has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub core: Option<CoreId>,
}
