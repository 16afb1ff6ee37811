//! Reading a log without a subscription (client-protocol 16).

use std::borrow::Cow;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::json;
use crate::id::{Offset, RequestId, ShardIndex};

/// `offset_for_time`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OffsetForTime<'a> {
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
    /// Microseconds since 1970.
    pub at_micros: u64,
    /// The request, echoed by its answer.
    pub request_id: RequestId,
}

/// `offset_value`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct OffsetValue {
    /// First record appended at or after; absent when there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offset: Option<Offset>,
    /// The request, echoed by its answer.
    pub request_id: RequestId,
}

/// `stream_read`: committed records only, no waiting.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamRead<'a> {
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
    /// First offset wanted.
    pub from: Offset,
    /// Up to but without this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<Offset>,
    /// At most so many records; 0 is the broker's limit.
    #[serde(default, deserialize_with = "json::or_default", skip_serializing_if = "json::is_default")]
    pub max_records: u32,
    /// At most so many payload bytes; 0 is the broker's limit.
    #[serde(default, deserialize_with = "json::or_default", skip_serializing_if = "json::is_default")]
    pub max_bytes: u64,
    /// The request, echoed by its answer.
    pub request_id: RequestId,
}

/// `stream_records`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamRecords<'a> {
    /// The page.
    #[serde(borrow)]
    pub records: Vec<StreamRecord<'a>>,
    /// Where the next page begins.
    pub next_offset: Offset,
    /// The request, echoed by its answer.
    pub request_id: RequestId,
}

/// One record of a page.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamRecord<'a> {
    /// Its offset.
    pub offset: Offset,
    /// Its bytes.
    #[serde(with = "json::base64_bytes")]
    pub payload: Bytes,
    /// Who published it.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "json::opt_text::deserialize"
    )]
    #[serde(borrow)]
    pub publisher: Option<Cow<'a, str>>,
    /// Append time, microseconds since 1970.
    pub timestamp_micros: u64,
}
