//! JSON publishes, their answers, and the declaration of a width (client-protocol 10).
//! Payloads of a batch are decoded straight into one record run.
//! Not here: the binary forms (`publish_frame`, `publish_ack`).

use std::borrow::Cow;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::json;
use super::publish_frame::AckMode;
use super::records::Records;
use crate::error_code::{ErrorCode, ErrorDetail, RetryClass};
use crate::id::{Offset, ProducerId, RequestId, Sequence, ShardIndex};
use crate::routing::KeyMapping;

/// The member `ack`. Absent and `None` both mean that no answer is owed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AckRequest {
    /// No answer.
    None,
    /// An answer for the message.
    PerMessage,
    /// An answer for the batch.
    PerBatch,
}

impl AckRequest {
    /// The mode, when an answer is wanted.
    #[must_use]
    pub const fn mode(self) -> Option<AckMode> {
        match self {
            Self::None => None,
            Self::PerMessage => Some(AckMode::PerMessage),
            Self::PerBatch => Some(AckMode::PerBatch),
        }
    }
}

/// `publish`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Publish<'a> {
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
    /// Routing key; the empty key is a key.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "json::base64_opt")]
    pub key: Option<Bytes>,
    /// Explicit shard instead of a key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shard: Option<ShardIndex>,
    /// The request, needed when an answer is wanted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<RequestId>,
    /// Whether an answer is wanted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ack: Option<AckRequest>,
}

/// `publish_batch`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublishBatch<'a> {
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
    /// Routing key of the whole batch; the empty key is a key.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "json::base64_opt")]
    pub key: Option<Bytes>,
    /// Explicit shard instead of a key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shard: Option<ShardIndex>,
    /// The request, needed when an answer is wanted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<RequestId>,
    /// Whether an answer is wanted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ack: Option<AckRequest>,
}

/// `publish_ok`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublishOk {
    /// The request, echoed by its answer.
    pub request_id: RequestId,
    /// Offset of the first record; only to a client with `Flags::ACK_OFFSET`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offset: Option<Offset>,
}

/// `publish_error`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublishError<'a> {
    /// The request, echoed by its answer.
    pub request_id: RequestId,
    /// For people.
    #[serde(borrow)]
    pub message: Cow<'a, str>,
    /// Only to a client that offered `ERROR_CODES`, as the two after it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<ErrorCode>,
    /// What the client may do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<RetryClass>,
    /// More for programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<ErrorDetail>,
}

/// `publish_width`: keyed batches to this stream that follow were routed by this width and mapping. No answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublishWidth<'a> {
    /// Tenant.
    #[serde(borrow)]
    pub tenant_id: Cow<'a, str>,
    /// Namespace.
    #[serde(borrow)]
    pub namespace: Cow<'a, str>,
    /// Stream.
    #[serde(borrow)]
    pub stream: Cow<'a, str>,
    /// Width the client knows.
    pub shards: u32,
    /// Mapping the client knows; left out for `Modulo`.
    #[serde(default, deserialize_with = "json::or_default", skip_serializing_if = "KeyMapping::is_modulo")]
    pub routing: KeyMapping,
}

/// `producer_init`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProducerInit {
    /// The request, echoed by its answer.
    pub request_id: RequestId,
}

/// `producer_init_ok`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProducerInitOk {
    /// The request, echoed by its answer.
    pub request_id: RequestId,
    /// A random id.
    pub producer_id: ProducerId,
}

/// `publish_idempotent`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublishIdempotent<'a> {
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
    /// Routing key of the whole batch.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "json::base64_opt")]
    pub key: Option<Bytes>,
    /// Explicit shard instead of a key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shard: Option<ShardIndex>,
    /// The request, echoed by its answer.
    pub request_id: RequestId,
    /// Who numbers.
    pub producer_id: ProducerId,
    /// Number of this batch on its shard, from 0.
    pub sequence: Sequence,
}

/// `publish_if`: taken only when the shard's tail is at `expected_offset`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublishIf<'a> {
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
    /// Routing key of the whole batch.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "json::base64_opt")]
    pub key: Option<Bytes>,
    /// Explicit shard instead of a key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shard: Option<ShardIndex>,
    /// Where the batch must begin.
    pub expected_offset: Offset,
    /// The request, echoed by its answer.
    pub request_id: RequestId,
}

/// `publish_refused`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublishRefused<'a> {
    /// The request, echoed by its answer.
    pub request_id: RequestId,
    /// Why.
    #[serde(borrow)]
    pub reason: RefusalReason<'a>,
    /// For people.
    #[serde(borrow)]
    pub message: Cow<'a, str>,
}

/// Why a numbered or conditional publish was refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalReason<'a> {
    /// A batch is missing in between.
    SequenceGap {
        /// The next sequence the shard expects.
        expected: Sequence,
    },
    /// A non-zero sequence from a producer the shard does not know.
    UnknownProducer,
    /// Older than what is remembered.
    SequenceExpired,
    /// Remembered with other payloads.
    SequenceReused,
    /// The tail is elsewhere.
    OffsetMismatch {
        /// Where it is.
        tail: Offset,
    },
    /// Another broker leads.
    NotLeader {
        /// Who.
        #[serde(borrow)]
        node_id: Cow<'a, str>,
        /// Its client address `host:port`, when published.
        #[serde(
            default,
            skip_serializing_if = "Option::is_none",
            deserialize_with = "json::opt_text::deserialize"
        )]
        #[serde(borrow)]
        addr: Option<Cow<'a, str>>,
    },
}
