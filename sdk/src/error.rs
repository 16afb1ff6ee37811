//! What can go wrong, one enum per kind of operation. Every one says whether something was written.
//! Owns: the error types of the crate.
//! Invariants: a variant whose outcome is unknown answers `true` to `is_outcome_unknown`; all others are
//! certain that nothing was applied.
//! Not here: the codes and classes themselves (felix-wire `error_code`).

use std::time::Duration;

use felix_wire::error_code::{ErrorCode, RetryClass};

use crate::subscribe::Gap;

/// A broker's coded answer "no" (client-protocol 8).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}{}", reason.as_deref().map(|r| format!(" ({r})")).unwrap_or_default())]
pub struct Refusal {
    /// The code; `None` when the broker gave only a text.
    pub code: Option<ErrorCode>,
    /// What may be done next.
    pub retry: RetryClass,
    /// For people.
    pub message: String,
    /// `detail.reason`, for example `publish_queue_full` or `not_ready`.
    pub reason: Option<String>,
    /// How long to wait before trying again, when the broker said so.
    pub retry_after: Option<Duration>,
}

impl Refusal {
    pub(crate) fn is(&self, code: &ErrorCode) -> bool {
        self.code.as_ref() == Some(code)
    }

    /// The token or its rights were refused.
    pub(crate) fn is_about_identity(&self) -> bool {
        [ErrorCode::Unauthenticated, ErrorCode::Forbidden].iter().any(|code| self.is(code))
    }

    /// Nothing was applied and another attempt may succeed.
    pub(crate) fn is_retryable(&self) -> bool {
        matches!(self.retry, RetryClass::Retry | RetryClass::RetryAfter | RetryClass::Redirect)
    }
}

/// Connecting, authenticating, and every request that is neither a publish nor a subscription.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The builder was given something that cannot work.
    #[error("configuration: {message}")]
    Config {
        /// What is wrong with it.
        message: String,
    },
    /// No token could be had.
    #[error("token: {message}")]
    Token {
        /// What the provider or the file said.
        message: String,
    },
    /// No broker answered.
    #[error("cannot reach {broker}: {message}")]
    Unreachable {
        /// The address as it was configured or learned.
        broker: String,
        /// What the last attempt said.
        message: String,
    },
    /// The broker refused our identity on a stream.
    #[error("authentication refused: {0}")]
    Auth(Refusal),
    /// The broker refused the request.
    #[error("refused: {0}")]
    Refused(Refusal),
    /// The connection or the stream ended before the answer: a request that writes may have been applied.
    #[error("connection lost: {message}")]
    Lost {
        /// What the transport said.
        message: String,
    },
    /// No answer in time: a request that writes may have been applied.
    #[error("no answer to {what} within {waited:?}")]
    TimedOut {
        /// What was asked.
        what: &'static str,
        /// How long it was waited for.
        waited: Duration,
    },
    /// The broker allows no more streams at once, over all connections that this client may have to it. Nothing was sent.
    #[error("no stream to the broker is free: {message}")]
    NoStream {
        /// What was waited for, or what the bound is.
        message: String,
    },
    /// The broker said something the protocol does not allow here.
    #[error("protocol violation: {message}")]
    Protocol {
        /// What was seen.
        message: String,
    },
    /// The broker did not announce this request.
    #[error("the broker does not serve {what}")]
    NotServed {
        /// The request.
        what: &'static str,
    },
    /// The client was closed.
    #[error("the client is closed")]
    Closed,
}

impl Error {
    pub(crate) fn config(message: impl Into<String>) -> Self {
        Self::Config { message: message.into() }
    }

    pub(crate) fn lost(message: impl ToString) -> Self {
        Self::Lost { message: message.to_string() }
    }

    pub(crate) fn protocol(message: impl Into<String>) -> Self {
        Self::Protocol { message: message.into() }
    }

    /// The broker's answer, when there was one.
    pub fn refusal(&self) -> Option<&Refusal> {
        match self {
            Self::Auth(refusal) | Self::Refused(refusal) => Some(refusal),
            _ => None,
        }
    }

    /// The code of the broker's answer.
    pub fn code(&self) -> Option<&ErrorCode> {
        self.refusal().and_then(|refusal| refusal.code.as_ref())
    }

    /// What may be done next.
    pub fn retry_class(&self) -> RetryClass {
        match self {
            Self::Config { .. } | Self::Token { .. } | Self::NotServed { .. } | Self::Closed => {
                RetryClass::Fatal
            }
            Self::Unreachable { .. } | Self::NoStream { .. } => RetryClass::Retry,
            Self::Auth(refusal) | Self::Refused(refusal) => refusal.retry,
            Self::Lost { .. } | Self::TimedOut { .. } | Self::Protocol { .. } => RetryClass::OutcomeUnknown,
        }
    }

    /// A request that writes may have been applied.
    pub fn is_outcome_unknown(&self) -> bool {
        self.retry_class() == RetryClass::OutcomeUnknown
    }

    /// For requests that write nothing: another attempt may succeed.
    pub(crate) fn is_worth_another_read(&self) -> bool {
        match self {
            Self::Config { .. } | Self::Token { .. } | Self::NotServed { .. } | Self::Closed => false,
            Self::Unreachable { .. } | Self::NoStream { .. } => true,
            Self::Lost { .. } | Self::TimedOut { .. } | Self::Protocol { .. } => true,
            Self::Auth(refusal) | Self::Refused(refusal) => {
                refusal.is_retryable() || refusal.retry == RetryClass::OutcomeUnknown
            }
        }
    }

    pub(crate) fn is_code(&self, code: &ErrorCode) -> bool {
        self.code() == Some(code)
    }
}

/// One publish (a record or a batch that is accepted or refused whole).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PublishError {
    /// Nothing was sent: the batch does not fit in one frame.
    #[error("{bytes} bytes do not fit in one frame of {limit}")]
    TooLarge {
        /// Bytes of the whole batch with its framing.
        bytes: usize,
        /// The largest frame.
        limit: usize,
    },
    /// Nothing was sent: a batch holds 1 to `limit` records.
    #[error("a batch holds 1 to {limit} records, not {records}")]
    RecordCount {
        /// Records given.
        records: usize,
        /// Most records of one batch.
        limit: usize,
    },
    /// Nothing was sent: a routing key has at most 65,535 bytes.
    #[error("a key of {bytes} bytes is longer than 65,535")]
    KeyTooLong {
        /// Bytes given.
        bytes: usize,
    },
    /// Nothing was written: the broker refused, and sending again did not help within the retry time.
    #[error("refused: {0}")]
    Refused(Refusal),
    /// Nothing was written: no broker could take it within the retry time.
    #[error("not sent: {0}")]
    Unavailable(Error),
    /// The records may have been written: the answer is missing or says so.
    #[error("outcome unknown: {cause}")]
    OutcomeUnknown {
        /// Why nobody knows.
        cause: String,
        /// The broker's answer, when it was one.
        refusal: Option<Refusal>,
    },
    /// Fire-and-forget records were handed to a connection that was lost: some may not have arrived.
    #[error("{frames} unacknowledged frames may not have arrived")]
    MayBeLost {
        /// Frames written and not known to have arrived.
        frames: u64,
    },
    /// The broker ended the idempotent producer on the send's shard. Everything of this publisher for that shard fails
    /// this way from then on; a new publisher begins with a new producer.
    #[error("{}: the producer was ended: {reason}", if *.outcome_unknown { "outcome unknown" } else { "not written" })]
    ProducerEnded {
        /// What the broker said.
        reason: ProducerEnd,
        /// An earlier copy of this send, whose answer is missing, may have been written. Otherwise nothing of it was.
        outcome_unknown: bool,
    },
    /// Nothing was sent: the publisher is closed.
    #[error("the publisher is closed")]
    Closed,
}

/// Why a broker ended an idempotent producer on one shard (client-protocol 10.8).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProducerEnd {
    /// The shard's next batch of this producer would be one that was acknowledged before: it has lost records, or serves
    /// an older state.
    #[error("the shard expects batch {expected}, which is behind what it acknowledged")]
    SequenceGap {
        /// The number it expects.
        expected: u64,
    },
    /// The batch is older than what the shard remembers of the producer. It was taken once, nobody knows where.
    #[error("the batch is older than what the shard remembers")]
    SequenceExpired,
    /// The shard does not know the producer any more: it had too many others, or retention removed all its records.
    #[error("the shard does not know the producer")]
    UnknownProducer,
    /// The shard holds other records under the batch's number.
    #[error("the shard holds other records under the batch's number")]
    SequenceReused,
}

impl PublishError {
    pub(crate) fn unknown(cause: impl Into<String>) -> Self {
        Self::OutcomeUnknown { cause: cause.into(), refusal: None }
    }

    /// The broker's answer, when there was one.
    pub fn refusal(&self) -> Option<&Refusal> {
        match self {
            Self::Refused(refusal) | Self::OutcomeUnknown { refusal: Some(refusal), .. } => Some(refusal),
            Self::Unavailable(error) => error.refusal(),
            _ => None,
        }
    }

    /// The code of the broker's answer.
    pub fn code(&self) -> Option<&ErrorCode> {
        self.refusal().and_then(|refusal| refusal.code.as_ref())
    }

    /// What may be done next.
    pub fn retry_class(&self) -> RetryClass {
        match self {
            Self::TooLarge { .. } | Self::RecordCount { .. } | Self::KeyTooLong { .. } | Self::Closed => {
                RetryClass::Fatal
            }
            Self::Refused(refusal) => refusal.retry,
            Self::Unavailable(error) if error.is_worth_another_read() => RetryClass::Retry,
            Self::Unavailable(_) => RetryClass::Fatal,
            Self::ProducerEnded { outcome_unknown: false, .. } => RetryClass::Fatal,
            Self::OutcomeUnknown { .. } | Self::MayBeLost { .. } | Self::ProducerEnded { .. } => {
                RetryClass::OutcomeUnknown
            }
        }
    }

    /// The records may exist.
    pub fn is_outcome_unknown(&self) -> bool {
        self.retry_class() == RetryClass::OutcomeUnknown
    }
}

/// Why a publish was not taken at once.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TryPublishError {
    /// The byte budget is used up: wait for a receipt, then try again. Nothing was sent.
    #[error("the publisher's window is full")]
    Full,
    /// It could not be taken at all. Nothing was sent.
    #[error(transparent)]
    Publish(#[from] PublishError),
}

/// Which way a cursor is out of range (client-protocol 11.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CursorReason {
    /// The record is not held any more.
    #[error("no longer held; the oldest held is")]
    TooOld,
    /// The offset is past the tail.
    #[error("in the future; the next record gets")]
    InFuture,
}

/// A subscription, or one shard of it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SubscribeError {
    /// The requested offset is not there. The shard ends.
    #[error("shard {shard}: offset {requested} is {reason} {available}")]
    Cursor {
        /// The shard.
        shard: u32,
        /// Which way it is out of range.
        reason: CursorReason,
        /// The offset asked for.
        requested: u64,
        /// The oldest offset held, or the tail.
        available: u64,
    },
    /// Records are missing from what this subscription delivers. The shard goes on.
    #[error("shard {}: records are missing", .0.shard)]
    Gap(Gap),
    /// The stream was deleted. The shard ends.
    #[error("shard {shard}: the stream was deleted")]
    StreamDeleted {
        /// The shard.
        shard: u32,
    },
    /// The stream is not known to the broker.
    #[error("unknown stream")]
    UnknownStream,
    /// The stream has no such shard.
    #[error("the stream has {shards} shards, there is no shard {shard}")]
    UnknownShard {
        /// The shard asked for.
        shard: u32,
        /// How many there are.
        shards: u32,
    },
    /// The broker refused or ended it, or could not be asked. The shard ends.
    #[error("shard {shard}: {error}")]
    Failed {
        /// The shard.
        shard: u32,
        /// What happened.
        error: Error,
    },
    /// The subscription could not be opened.
    #[error(transparent)]
    Open(#[from] Error),
}

impl SubscribeError {
    /// After this item the shard it names delivers nothing more.
    pub fn ends_shard(&self) -> bool {
        !matches!(self, Self::Gap(_))
    }

    /// The code of the broker's answer.
    pub fn code(&self) -> Option<&ErrorCode> {
        match self {
            Self::Failed { error, .. } | Self::Open(error) => error.code(),
            _ => None,
        }
    }

    /// What may be done next.
    pub fn retry_class(&self) -> RetryClass {
        match self {
            Self::Failed { error, .. } | Self::Open(error) if error.is_worth_another_read() => {
                RetryClass::Retry
            }
            Self::UnknownStream => RetryClass::RetryAfter,
            _ => RetryClass::Fatal,
        }
    }

    /// Always `false`: reading writes nothing.
    pub fn is_outcome_unknown(&self) -> bool {
        false
    }
}
