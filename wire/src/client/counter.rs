//! Counter requests and their answer (client-protocol 12).

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::id::{ProducerId, RequestId, Sequence};

/// `counter_add`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CounterAdd<'a> {
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
    /// What to add.
    pub delta: i64,
    /// The request, echoed by its answer.
    pub request_id: RequestId,
    /// Private, `NUMBERED_WRITES`: who numbers. With it comes `sequence`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub producer_id: Option<ProducerId>,
    /// Private, `NUMBERED_WRITES`: number of this add of the producer on its shard, from 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sequence: Option<Sequence>,
}

/// `counter_get`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CounterGet<'a> {
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
    pub request_id: RequestId,
}

/// `counter_value`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CounterValue {
    /// The sum; absent when never written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<i64>,
    /// The request, echoed by its answer.
    pub request_id: RequestId,
}
