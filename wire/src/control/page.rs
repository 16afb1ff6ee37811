//! Envelopes of answers: pages, feeds, errors, and the system documents (control-plane-api 1.2, 1.3, 5, 11).

use serde::{Deserialize, Serialize};

/// One page of a listing. No `next_cursor` means it is the last one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Page<T> {
    pub items: Vec<T>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// Everything of one kind at one point; `next_seq` is that point.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot<T> {
    pub items: Vec<T>,
    pub next_seq: u64,
}

/// Changes with a sequence at or after the one asked for, ascending; go on with `next_seq`.
///
/// A consumer at `since` must take a new snapshot when the first `seq` is greater than `since`, when the page is empty
/// and `next_seq` is greater than `since`, or when `next_seq` is smaller than `since` (control-plane-api 5).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changes<T> {
    pub items: Vec<T>,
    pub next_seq: u64,
}

/// Body of every answer that is not a success.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// One of control-plane-api 1.2; for programs.
    pub code: String,
    /// For people.
    pub message: String,
    #[serde(default)]
    pub request_id: Option<String>,
}

/// Answer of `GET /v1/system/info`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SystemInfo {
    pub region_id: String,
    pub api_version: String,
    pub features: SystemFeatures,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SystemFeatures {
    pub durable_storage: bool,
    pub tiered_storage: bool,
    pub bridges: bool,
}

/// Answer of the health, live and ready routes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SystemHealth {
    pub status: String,
}
