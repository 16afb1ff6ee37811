//! Subscriptions: request, answers, and the last frame of an event stream (client-protocol 11).
//! Not here: the binary event frames (`events`).

use std::borrow::Cow;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::json;
use super::records::Records;
use crate::id::{Generation, Offset, ShardIndex, SubscriptionId};

/// Where reading begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StartPosition {
    /// After the newest record. Also what an absent `start` means.
    Latest,
    /// At the oldest record held; never fails on a known stream.
    Earliest,
    /// At this record; the tail is valid and waits.
    Offset(Offset),
}

/// `subscribe`: one shard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subscribe<'a> {
    /// Tenant.
    #[serde(borrow)]
    pub tenant_id: Cow<'a, str>,
    /// Namespace.
    #[serde(borrow)]
    pub namespace: Cow<'a, str>,
    /// Stream.
    #[serde(borrow)]
    pub stream: Cow<'a, str>,
    /// Never sent by known clients; the broker assigns ids.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subscription_id: Option<SubscriptionId>,
    /// Where to begin; absent is `Latest`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<StartPosition>,
    /// Which shard; absent is 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shard: Option<ShardIndex>,
    /// Wanted length of the broker's queue, with `SUBSCRIBE_QUEUE`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_capacity: Option<u32>,
}

/// `subscribed`. Both offsets on every durable stream (11.2), neither without a log, unless positions are on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subscribed {
    /// Names the subscription; the hello of its event stream repeats it.
    pub subscription_id: SubscriptionId,
    /// Nothing below it will be delivered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_offset: Option<Offset>,
    /// The tail when the subscription was registered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub live_offset: Option<Offset>,
    /// Length of the broker's queue, when it was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_capacity: Option<u32>,
    /// Private, `POSITIONS`: which life of an in-memory shard the offsets belong to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot: Option<u64>,
}

/// Why a position is not held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CursorErrorReason {
    /// Below the oldest record.
    TooOld,
    /// Past the tail.
    InFuture,
}

/// `subscribe_cursor_error`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubscribeCursorError {
    /// Which side.
    pub reason: CursorErrorReason,
    /// What was asked for.
    pub requested: Offset,
    /// The oldest offset held, or the tail.
    pub available: Offset,
}

/// `event_stream_hello`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventStreamHello {
    /// The subscription or watch this stream serves.
    pub subscription_id: SubscriptionId,
}

/// `shard_moved`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardMoved<'a> {
    /// The subscription or watch.
    pub subscription_id: SubscriptionId,
    /// Where to resume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume_from: Option<Offset>,
    /// Who has the shard now.
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
    /// Generation of that ownership.
    pub generation: Generation,
}

/// `stream_deleted`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamDeleted {
    /// The subscription.
    pub subscription_id: SubscriptionId,
}

/// `subscription_lagged`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubscriptionLagged {
    /// The subscription.
    pub subscription_id: SubscriptionId,
    /// The first offset that was not delivered.
    pub resume_from: Offset,
}

/// `event`: legal on an event stream, never sent by a broker of ours.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventJson<'a> {
    /// Tenant.
    #[serde(borrow)]
    pub tenant_id: Cow<'a, str>,
    /// Namespace.
    #[serde(borrow)]
    pub namespace: Cow<'a, str>,
    /// Stream.
    #[serde(borrow)]
    pub stream: Cow<'a, str>,
    /// The record.
    #[serde(with = "json::base64_bytes")]
    pub payload: Bytes,
    /// Its offset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offset: Option<Offset>,
}

/// `event_batch`: legal on an event stream, never sent by a broker of ours.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventBatchJson<'a> {
    /// Tenant.
    #[serde(borrow)]
    pub tenant_id: Cow<'a, str>,
    /// Namespace.
    #[serde(borrow)]
    pub namespace: Cow<'a, str>,
    /// Stream.
    #[serde(borrow)]
    pub stream: Cow<'a, str>,
    /// The records.
    #[serde(with = "json::base64_records")]
    pub payloads: Records,
    /// Offset of the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base_offset: Option<Offset>,
}
