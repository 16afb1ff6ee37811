//! Cache requests, answers and watches (client-protocol 12, 13).

use std::borrow::Cow;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::json;
use crate::id::{Offset, RequestId, ShardIndex, SubscriptionId};

/// `cache_put`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CachePut<'a> {
    /// Tenant.
    #[serde(borrow)]
    pub tenant_id: Cow<'a, str>,
    /// Namespace.
    #[serde(borrow)]
    pub namespace: Cow<'a, str>,
    /// Cache.
    #[serde(borrow)]
    pub cache: Cow<'a, str>,
    /// Key.
    #[serde(borrow)]
    pub key: Cow<'a, str>,
    /// Value.
    #[serde(with = "json::base64_bytes")]
    pub value: Bytes,
    /// The request, echoed by its answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<RequestId>,
    /// Life from now, milliseconds; none never ends. Always written.
    #[serde(default)]
    pub ttl_ms: Option<u64>,
}

/// `cache_get`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheGet<'a> {
    /// Tenant.
    #[serde(borrow)]
    pub tenant_id: Cow<'a, str>,
    /// Namespace.
    #[serde(borrow)]
    pub namespace: Cow<'a, str>,
    /// Cache.
    #[serde(borrow)]
    pub cache: Cow<'a, str>,
    /// Key.
    #[serde(borrow)]
    pub key: Cow<'a, str>,
    /// The request, echoed by its answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<RequestId>,
}

/// `cache_delete`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheDelete<'a> {
    /// Tenant.
    #[serde(borrow)]
    pub tenant_id: Cow<'a, str>,
    /// Namespace.
    #[serde(borrow)]
    pub namespace: Cow<'a, str>,
    /// Cache.
    #[serde(borrow)]
    pub cache: Cow<'a, str>,
    /// Key.
    #[serde(borrow)]
    pub key: Cow<'a, str>,
    /// The request, echoed by its answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<RequestId>,
}

/// `cache_value`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheValue<'a> {
    /// Tenant.
    #[serde(borrow)]
    pub tenant_id: Cow<'a, str>,
    /// Namespace.
    #[serde(borrow)]
    pub namespace: Cow<'a, str>,
    /// Cache.
    #[serde(borrow)]
    pub cache: Cow<'a, str>,
    /// Key.
    #[serde(borrow)]
    pub key: Cow<'a, str>,
    /// The value; none is written as null and must be present.
    #[serde(with = "json::base64_opt")]
    pub value: Option<Bytes>,
    /// The request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<RequestId>,
    /// Version of a get's hit, to a client that offered `CACHE_CONDITIONAL`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u64>,
}

/// `cache_ok`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheOk {
    /// The request, echoed by its answer.
    pub request_id: RequestId,
}

/// When a conditional put applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CacheCondition {
    /// The key has no value.
    Absent,
    /// The value has this version.
    Version(u64),
}

/// `cache_put_if`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CachePutIf<'a> {
    /// Tenant.
    #[serde(borrow)]
    pub tenant_id: Cow<'a, str>,
    /// Namespace.
    #[serde(borrow)]
    pub namespace: Cow<'a, str>,
    /// Cache.
    #[serde(borrow)]
    pub cache: Cow<'a, str>,
    /// Key.
    #[serde(borrow)]
    pub key: Cow<'a, str>,
    /// Value.
    #[serde(with = "json::base64_bytes")]
    pub value: Bytes,
    /// Life from now, milliseconds; none never ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
    /// When it applies.
    pub condition: CacheCondition,
    /// The request, echoed by its answer.
    pub request_id: RequestId,
}

/// `cache_delete_if`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheDeleteIf<'a> {
    /// Tenant.
    #[serde(borrow)]
    pub tenant_id: Cow<'a, str>,
    /// Namespace.
    #[serde(borrow)]
    pub namespace: Cow<'a, str>,
    /// Cache.
    #[serde(borrow)]
    pub cache: Cow<'a, str>,
    /// Key.
    #[serde(borrow)]
    pub key: Cow<'a, str>,
    /// The version the value must have.
    pub version: u64,
    /// The request, echoed by its answer.
    pub request_id: RequestId,
}

/// `cache_condition_result`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheConditionResult {
    /// Whether the condition held and the change was made.
    pub applied: bool,
    /// Version of the value now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u64>,
    /// The request, echoed by its answer.
    pub request_id: RequestId,
}

/// `cache_watch`: exactly one of `key` and `prefix` (the session checks it).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheWatch<'a> {
    /// Tenant.
    #[serde(borrow)]
    pub tenant_id: Cow<'a, str>,
    /// Namespace.
    #[serde(borrow)]
    pub namespace: Cow<'a, str>,
    /// Cache.
    #[serde(borrow)]
    pub cache: Cow<'a, str>,
    /// Follow this key.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "json::opt_text::deserialize"
    )]
    #[serde(borrow)]
    pub key: Option<Cow<'a, str>>,
    /// Follow keys that begin so; the empty prefix is every key of the shard.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "json::opt_text::deserialize"
    )]
    #[serde(borrow)]
    pub prefix: Option<Cow<'a, str>>,
    /// Shard of a prefix watch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shard: Option<ShardIndex>,
    /// Resume here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_offset: Option<Offset>,
    /// Send current values first.
    #[serde(default, deserialize_with = "json::or_default", skip_serializing_if = "json::is_default")]
    pub retained: bool,
    /// Never sent by known clients; the broker assigns ids.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subscription_id: Option<SubscriptionId>,
}

/// `cache_watch_started`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheWatchStarted {
    /// Names the watch; the hello of its event stream repeats it.
    pub subscription_id: SubscriptionId,
    /// Every change at or past it is delivered.
    pub resume_offset: Offset,
    /// The history asked for is compacted away; current values come first.
    #[serde(default, deserialize_with = "json::or_default")]
    pub resnapshot: bool,
    /// How many current values follow, exactly when `retained` was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retained_count: Option<u64>,
}

/// `cache_event`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheEvent<'a> {
    /// Key.
    #[serde(borrow)]
    pub key: Cow<'a, str>,
    /// Value; none is a delete.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "json::base64_opt")]
    pub value: Option<Bytes>,
    /// Offset of the write.
    pub offset: Offset,
    /// When it expires, milliseconds since 1970; 0 for never and for deletes.
    #[serde(default, deserialize_with = "json::or_default")]
    pub expires_at_millis: u64,
}

/// `cache_watch_lagged`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheWatchLagged {
    /// The first offset that was not delivered.
    pub resume_from: Offset,
}
