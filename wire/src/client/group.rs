//! Consumer groups (client-protocol 14). One shard of one stream per request.

use std::borrow::Cow;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::json;
use super::subscribe::StartPosition;
use crate::id::{LeaseId, Offset, RequestId, ShardIndex};

/// `group_poll`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupPoll<'a> {
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
    /// Group.
    #[serde(borrow)]
    pub group: Cow<'a, str>,
    /// At most so many records.
    pub max_records: u32,
    /// How long to wait for the first, milliseconds.
    #[serde(default, deserialize_with = "json::or_default")]
    pub wait_ms: u64,
    /// The request, echoed by its answer.
    pub request_id: RequestId,
    /// Name of the member, 1 to 128 bytes.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "json::opt_text::deserialize"
    )]
    #[serde(borrow)]
    pub consumer: Option<Cow<'a, str>>,
    /// Give back what this member holds from other connections.
    #[serde(default, deserialize_with = "json::or_default", skip_serializing_if = "json::is_default")]
    pub reclaim: bool,
    /// How long claims hold, milliseconds; 0 is the group's own.
    #[serde(default, deserialize_with = "json::or_default", skip_serializing_if = "json::is_default")]
    pub visibility_ms: u64,
    /// Private, `GROUP_LEASES`: under which lease of the shard.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<LeaseId>,
}

/// `group_records`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupRecords<'a> {
    /// Claimed records, possibly none.
    #[serde(borrow)]
    pub records: Vec<GroupRecord<'a>>,
    /// The request, echoed by its answer.
    pub request_id: RequestId,
}

/// One claimed record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupRecord<'a> {
    /// Its offset.
    pub offset: Offset,
    /// Its bytes.
    #[serde(with = "json::base64_bytes")]
    pub payload: Bytes,
    /// Which delivery this is, from 1.
    #[serde(default, deserialize_with = "json::or_default")]
    pub attempts: u32,
    /// Offsets right before it without a record; to a client that offered `GROUP_SKIPPED`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skipped_before: Option<u64>,
    /// Who published it; to a client that offered `GROUP_PUBLISHER`.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "json::opt_text::deserialize"
    )]
    #[serde(borrow)]
    pub publisher: Option<Cow<'a, str>>,
    /// Append time, microseconds since 1970; to a client that offered `RECORD_TIMESTAMPS`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timestamp_micros: Option<u64>,
}

/// `group_ack`, `group_dead_letter`, `group_discard`, `group_redrive`: something about one record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupOffset<'a> {
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
    /// Group.
    #[serde(borrow)]
    pub group: Cow<'a, str>,
    /// Which record.
    pub offset: Offset,
    /// The request, echoed by its answer.
    pub request_id: RequestId,
    /// Private, `GROUP_LEASES`: under which lease of the shard.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<LeaseId>,
    /// Private, `GROUP_RANGES`, of `group_ack` alone: so many records from this one on, 1 to 1,000, all of them or none. One
    /// without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u32>,
}

/// `group_dead_letters`, `group_describe`, `group_delete`: something about the group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupRequest<'a> {
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
    /// Group.
    #[serde(borrow)]
    pub group: Cow<'a, str>,
    /// The request, echoed by its answer.
    pub request_id: RequestId,
}

/// `group_nack`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupNack<'a> {
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
    /// Group.
    #[serde(borrow)]
    pub group: Cow<'a, str>,
    /// Which record.
    pub offset: Offset,
    /// The request, echoed by its answer.
    pub request_id: RequestId,
    /// Owed again after so long, milliseconds.
    #[serde(default, deserialize_with = "json::or_default", skip_serializing_if = "json::is_default")]
    pub delay_ms: u64,
    /// Only the claim of this delivery; 0 is whatever claim stands.
    #[serde(default, deserialize_with = "json::or_default", skip_serializing_if = "json::is_default")]
    pub attempts: u32,
    /// Private, `GROUP_LEASES`: under which lease of the shard.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<LeaseId>,
}

/// `group_extend`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupExtend<'a> {
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
    /// Group.
    #[serde(borrow)]
    pub group: Cow<'a, str>,
    /// Which record.
    pub offset: Offset,
    /// Only the claim of this delivery.
    pub attempts: u32,
    /// How much longer, milliseconds from now.
    pub extend_ms: u64,
    /// The request, echoed by its answer.
    pub request_id: RequestId,
    /// Private, `GROUP_LEASES`: under which lease of the shard.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<LeaseId>,
}

/// `group_extended`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupExtended {
    /// How long the claim holds from now, milliseconds.
    pub visible_ms: u64,
    /// The request, echoed by its answer.
    pub request_id: RequestId,
}

/// `group_dead_letter_list`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupDeadLetterList {
    /// Offsets, lowest first.
    pub offsets: Vec<Offset>,
    /// The request, echoed by its answer.
    pub request_id: RequestId,
}

/// `group_seek`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupSeek<'a> {
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
    /// Group.
    #[serde(borrow)]
    pub group: Cow<'a, str>,
    /// Where to.
    pub start: StartPosition,
    /// Only when the group has no position yet.
    #[serde(default, deserialize_with = "json::or_default", skip_serializing_if = "json::is_default")]
    pub if_new: bool,
    /// The request, echoed by its answer.
    pub request_id: RequestId,
}

/// `group_position`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupPosition {
    /// The position now.
    pub offset: Offset,
    /// Whether the request moved it.
    pub moved: bool,
    /// The request, echoed by its answer.
    pub request_id: RequestId,
}

/// `group_info`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupInfo {
    /// Everything below is finished; absent for a group without a position.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub committed: Option<Offset>,
    /// The shard's tail.
    pub tail: Offset,
    /// Records claimed now.
    pub in_flight: u64,
    /// Records owed again.
    pub owed: u64,
    /// Records on the dead letter list.
    pub dead_letters: u64,
    /// The request, echoed by its answer.
    pub request_id: RequestId,
}

/// `group_deleted`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupDeleted {
    /// Whether there was one.
    pub existed: bool,
    /// The request, echoed by its answer.
    pub request_id: RequestId,
}
