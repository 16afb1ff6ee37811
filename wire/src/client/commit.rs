//! Atomic commits and keyed state (client-protocol 15).

use std::borrow::Cow;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::json;
use crate::id::{Offset, ProducerId, RequestId, Sequence, ShardIndex};

/// `commit`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Commit<'a> {
    /// Tenant.
    #[serde(borrow)]
    pub tenant_id: Cow<'a, str>,
    /// Namespace.
    #[serde(borrow)]
    pub namespace: Cow<'a, str>,
    /// Stream.
    #[serde(borrow)]
    pub stream: Cow<'a, str>,
    /// Routes like a publish key.
    #[serde(with = "json::base64_bytes")]
    pub entity_key: Bytes,
    /// The record.
    #[serde(with = "json::base64_bytes")]
    pub event: Bytes,
    /// State changes, applied in order.
    #[serde(default, deserialize_with = "json::or_default", borrow)]
    pub changes: Vec<Change<'a>>,
    /// The request, echoed by its answer.
    pub request_id: RequestId,
    /// Where the commit must land.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_offset: Option<Offset>,
    /// Explicit shard instead of `entity_key`'s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shard: Option<ShardIndex>,
    /// Private, `NUMBERED_WRITES`: who numbers. With it comes `sequence`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub producer_id: Option<ProducerId>,
    /// Private, `NUMBERED_WRITES`: number of this commit of the producer on its shard, from 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sequence: Option<Sequence>,
}

/// One change of keyed state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Change<'a> {
    /// Sets a key.
    Put {
        /// Key.
        #[serde(borrow)]
        key: Cow<'a, str>,
        /// Value.
        #[serde(with = "json::base64_bytes")]
        value: Bytes,
    },
    /// Removes a key.
    Delete {
        /// Key.
        #[serde(borrow)]
        key: Cow<'a, str>,
    },
}

/// `commit_ok`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommitOk {
    /// The request, echoed by its answer.
    pub request_id: RequestId,
    /// The commit's offset, also the version of what it wrote.
    pub offset: Offset,
}

/// `state_get`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateGet<'a> {
    /// Tenant.
    #[serde(borrow)]
    pub tenant_id: Cow<'a, str>,
    /// Namespace.
    #[serde(borrow)]
    pub namespace: Cow<'a, str>,
    /// Stream.
    #[serde(borrow)]
    pub stream: Cow<'a, str>,
    /// Routes like a publish key.
    #[serde(with = "json::base64_bytes")]
    pub entity_key: Bytes,
    /// Key.
    #[serde(borrow)]
    pub key: Cow<'a, str>,
    /// The request, echoed by its answer.
    pub request_id: RequestId,
    /// Explicit shard instead of `entity_key`'s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shard: Option<ShardIndex>,
}

/// `state_value`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateValue {
    /// The value; none is written as null and must be present.
    #[serde(with = "json::base64_opt")]
    pub value: Option<Bytes>,
    /// Offset of the commit that wrote it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u64>,
    /// Offset of the last commit the answer reflects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub as_of: Option<u64>,
    /// The request, echoed by its answer.
    pub request_id: RequestId,
}
