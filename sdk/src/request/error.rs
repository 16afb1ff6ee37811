//! What can go wrong with a request to a cache, counter, group or log. Every variant says whether something was applied.

use felix_wire::error_code::{ErrorCode, RetryClass};
use felix_wire::id::Offset;

use crate::error::{CursorReason, Error, Refusal};

/// One request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// Nothing was sent: an argument cannot be.
    #[error("{message}")]
    Invalid {
        /// What is wrong with it.
        message: String,
    },
    /// Nothing was sent: the request does not fit in one frame.
    #[error("a request of {bytes} bytes does not fit in one frame of {limit}")]
    TooLarge {
        /// Bytes of the encoded request.
        bytes: usize,
        /// The largest frame.
        limit: usize,
    },
    /// Nothing was applied: the broker refused, and asking again did not help within the retry time.
    #[error("refused: {0}")]
    Refused(Refusal),
    /// Nothing was applied: no broker could be asked, or, for a request that only reads, none answered.
    #[error("{0}")]
    Unavailable(Error),
    /// It may have been applied: the answer is missing or says so.
    #[error("outcome unknown: {cause}")]
    OutcomeUnknown {
        /// Why nobody knows.
        cause: String,
        /// The broker's answer, when it was one.
        refusal: Option<Refusal>,
    },
}

impl RequestError {
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::Invalid { message: message.into() }
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
            Self::Invalid { .. } | Self::TooLarge { .. } => RetryClass::Fatal,
            Self::Refused(refusal) => refusal.retry,
            Self::Unavailable(error) if error.is_worth_another_read() => RetryClass::Retry,
            Self::Unavailable(_) => RetryClass::Fatal,
            Self::OutcomeUnknown { .. } => RetryClass::OutcomeUnknown,
        }
    }

    /// It may have been applied.
    pub fn is_outcome_unknown(&self) -> bool {
        matches!(self, Self::OutcomeUnknown { .. })
    }

    /// The cache, stream or record that was named is not there.
    pub fn is_not_found(&self) -> bool {
        self.code() == Some(&ErrorCode::NotFound)
    }
}

impl From<Error> for RequestError {
    fn from(error: Error) -> Self {
        match error {
            Error::Refused(refusal) => Self::Refused(refusal),
            other => Self::Unavailable(other),
        }
    }
}

/// A write that must land at an offset, or a commit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConditionError {
    /// Nothing was written: the shard's next offset is another one.
    #[error("the shard's next offset is {tail}")]
    OffsetMismatch {
        /// The shard's next offset.
        tail: Offset,
    },
    /// It failed as any request may.
    #[error(transparent)]
    Request(#[from] RequestError),
}

impl ConditionError {
    /// It may have been written.
    pub fn is_outcome_unknown(&self) -> bool {
        matches!(self, Self::Request(error) if error.is_outcome_unknown())
    }
}

/// Reading a page of a log.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The offset is not there.
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
    /// It failed as any request may.
    #[error(transparent)]
    Request(#[from] RequestError),
}
