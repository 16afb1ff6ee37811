//! Error codes and retry classes of coded refusals (client-protocol 8).
//! Owns: number and name of each code, its default retry class, and how unknown ones are kept.
//! Not here: the messages that carry them (`client::reply`, `client::publish_ack`).

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// What a client may do after a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RetryClass {
    /// Nothing applied, send again.
    Retry,
    /// Nothing applied, wait first (`ErrorDetail::retry_after_ms`).
    RetryAfter,
    /// Nothing applied, ask another broker.
    Redirect,
    /// May have been applied.
    OutcomeUnknown,
    /// Will fail again. Also what an unknown class reads as.
    Fatal,
}

impl RetryClass {
    /// Every class.
    pub const ALL: [Self; 5] =
        [Self::Retry, Self::RetryAfter, Self::Redirect, Self::OutcomeUnknown, Self::Fatal];

    /// The byte of binary acks.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::Retry => 1,
            Self::RetryAfter => 2,
            Self::Redirect => 3,
            Self::OutcomeUnknown => 4,
            Self::Fatal => 5,
        }
    }

    /// The name in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Retry => "retry",
            Self::RetryAfter => "retry_after",
            Self::Redirect => "redirect",
            Self::OutcomeUnknown => "outcome_unknown",
            Self::Fatal => "fatal",
        }
    }

    /// The class of a byte; an unknown one is `Fatal`.
    #[must_use]
    pub fn from_number(number: u8) -> Self {
        Self::ALL.into_iter().find(|class| class.number() == number).unwrap_or(Self::Fatal)
    }

    /// The class of a name; an unknown one is `Fatal`.
    #[must_use]
    pub fn from_name(name: &str) -> Self {
        Self::ALL.into_iter().find(|class| class.name() == name).unwrap_or(Self::Fatal)
    }
}

impl fmt::Display for RetryClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Serialize for RetryClass {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for RetryClass {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self::from_name(&Cow::<str>::deserialize(deserializer)?))
    }
}

/// Why a request was refused.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ErrorCode {
    /// No `auth` yet, or the token was refused.
    Unauthenticated,
    /// A permission is missing, or the tenant is not the token's.
    Forbidden,
    /// Unknown tenant, namespace, stream or cache.
    NotFound,
    /// Malformed, unknown flags, missing request id, second auth, bad shard or filter.
    InvalidRequest,
    /// Nobody serves the shard now.
    ShardUnavailable,
    /// Another broker leads; only where the `not_leader` message cannot be sent.
    NotLeader,
    /// Written here, not confirmed.
    QuorumTimeout,
    /// Leadership moved after the write.
    LeadershipLost,
    /// Stopped waiting.
    Unacknowledged,
    /// Refused for load.
    Overloaded,
    /// Over a configured limit.
    LimitExceeded,
    /// Shutting down.
    Draining,
    /// A failure of ours; pass `RetryClass::Retry` for reads and before any write.
    Internal,
    /// The disk failed; pass `RetryClass::Retry` for reads.
    Storage,
    /// The group claim is not known any more.
    StaleClaim,
    /// The credential was revoked; also ends open event streams.
    Revoked,
    /// A keyed publish was routed by an outdated width.
    StaleWidth,
    /// A number this build does not know, from a binary ack.
    UnknownNumber(u16),
    /// A name this build does not know, from JSON.
    UnknownName(Arc<str>),
}

impl ErrorCode {
    /// Every code of the table, in the order of its numbers 1 to 17.
    pub const ALL: [Self; 17] = [
        Self::Unauthenticated,
        Self::Forbidden,
        Self::NotFound,
        Self::InvalidRequest,
        Self::ShardUnavailable,
        Self::NotLeader,
        Self::QuorumTimeout,
        Self::LeadershipLost,
        Self::Unacknowledged,
        Self::Overloaded,
        Self::LimitExceeded,
        Self::Draining,
        Self::Internal,
        Self::Storage,
        Self::StaleClaim,
        Self::Revoked,
        Self::StaleWidth,
    ];

    /// The number of binary acks, 1 to 17. An unknown name has none and goes out as the largest number, which
    /// no reader knows either, so its retry class is what counts.
    #[must_use]
    pub fn number(&self) -> u16 {
        match self {
            Self::Unauthenticated => 1,
            Self::Forbidden => 2,
            Self::NotFound => 3,
            Self::InvalidRequest => 4,
            Self::ShardUnavailable => 5,
            Self::NotLeader => 6,
            Self::QuorumTimeout => 7,
            Self::LeadershipLost => 8,
            Self::Unacknowledged => 9,
            Self::Overloaded => 10,
            Self::LimitExceeded => 11,
            Self::Draining => 12,
            Self::Internal => 13,
            Self::Storage => 14,
            Self::StaleClaim => 15,
            Self::Revoked => 16,
            Self::StaleWidth => 17,
            Self::UnknownNumber(number) => *number,
            Self::UnknownName(_) => u16::MAX,
        }
    }

    /// The name in JSON. A code known only by number is written `code_<number>`.
    #[must_use]
    pub fn name(&self) -> Cow<'_, str> {
        Cow::Borrowed(match self {
            Self::Unauthenticated => "unauthenticated",
            Self::Forbidden => "forbidden",
            Self::NotFound => "not_found",
            Self::InvalidRequest => "invalid_request",
            Self::ShardUnavailable => "shard_unavailable",
            Self::NotLeader => "not_leader",
            Self::QuorumTimeout => "quorum_timeout",
            Self::LeadershipLost => "leadership_lost",
            Self::Unacknowledged => "unacknowledged",
            Self::Overloaded => "overloaded",
            Self::LimitExceeded => "limit_exceeded",
            Self::Draining => "draining",
            Self::Internal => "internal",
            Self::Storage => "storage",
            Self::StaleClaim => "stale_claim",
            Self::Revoked => "revoked",
            Self::StaleWidth => "stale_width",
            Self::UnknownNumber(number) => return Cow::Owned(format!("code_{number}")),
            Self::UnknownName(name) => name,
        })
    }

    /// The class that goes with this code unless the sender knows better; unknown codes are `Fatal`.
    #[must_use]
    pub fn default_retry(&self) -> RetryClass {
        match self {
            Self::ShardUnavailable | Self::Draining | Self::StaleClaim | Self::StaleWidth => {
                RetryClass::Retry
            }
            Self::NotFound | Self::Overloaded => RetryClass::RetryAfter,
            Self::NotLeader => RetryClass::Redirect,
            Self::QuorumTimeout
            | Self::LeadershipLost
            | Self::Unacknowledged
            | Self::Internal
            | Self::Storage => RetryClass::OutcomeUnknown,
            Self::Unauthenticated
            | Self::Forbidden
            | Self::InvalidRequest
            | Self::LimitExceeded
            | Self::Revoked
            | Self::UnknownNumber(_)
            | Self::UnknownName(_) => RetryClass::Fatal,
        }
    }

    /// The code of a number; an unknown one is kept.
    #[must_use]
    pub fn from_number(number: u16) -> Self {
        Self::ALL.into_iter().find(|code| code.number() == number).unwrap_or(Self::UnknownNumber(number))
    }

    /// The code of a name; an unknown one is kept.
    #[must_use]
    pub fn from_name(name: &str) -> Self {
        let known = Self::ALL.into_iter().find(|code| code.name() == name);
        known.unwrap_or_else(|| Self::UnknownName(Arc::from(name)))
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}

impl Serialize for ErrorCode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.name())
    }
}

impl<'de> Deserialize<'de> for ErrorCode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self::from_name(&Cow::<str>::deserialize(deserializer)?))
    }
}

/// More about a coded refusal. Both parts optional; an empty detail is legal.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorDetail {
    /// A word a program can compare, such as `moving` or `publish_queue_full`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Cow<'static, str>>,
    /// How long to wait before the next try, milliseconds. Binary acks cannot tell 0 from absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
}
