//! Answers that belong to no family: errors, redirects, unknown requests (client-protocol 8, 17.3).

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::json;
use crate::error_code::{ErrorCode, ErrorDetail, RetryClass};
use crate::id::{Generation, RequestId};

/// `error`: refuses a request on the stream it came on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Error<'a> {
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

impl<'a> Error<'a> {
    /// An error with its code and that code's own retry class.
    #[must_use]
    pub fn coded(code: ErrorCode, message: impl Into<Cow<'a, str>>) -> Self {
        let retry = code.default_retry();
        Self { message: message.into(), code: Some(code), retry: Some(retry), detail: None }
    }
}

/// `unsupported`: answers a request of unknown type, to a client that offered `UNSUPPORTED`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unsupported<'a> {
    /// The type that is not known.
    #[serde(borrow)]
    pub request_type: Cow<'a, str>,
    /// The extension's name, when the type is `extension`.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "json::opt_text::deserialize"
    )]
    #[serde(borrow)]
    pub extension: Option<Cow<'a, str>>,
    /// The request's id, when it had one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<RequestId>,
}

/// `extension`: a reserved area.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extension<'a> {
    /// Which extension.
    #[serde(borrow)]
    pub name: Cow<'a, str>,
    /// The request's id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<RequestId>,
    /// Whatever the extension says.
    #[serde(default, skip_serializing_if = "Option::is_none", borrow)]
    pub body: Option<RawJson<'a>>,
}

/// Any JSON value, kept as it was written.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RawJson<'a>(#[serde(borrow)] pub &'a RawValue);

impl PartialEq for RawJson<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.0.get() == other.0.get()
    }
}

impl Eq for RawJson<'_> {}

/// `not_leader`: another broker leads the shard; only to a client that offered `REDIRECT`, never to publishes,
/// caches or counters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotLeader<'a> {
    /// Who leads.
    #[serde(borrow)]
    pub node_id: Cow<'a, str>,
    /// Its client address `host:port`, when published.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "json::opt_text::deserialize"
    )]
    #[serde(borrow)]
    pub addr: Option<Cow<'a, str>>,
    /// Generation of that leadership.
    pub generation: Generation,
}
