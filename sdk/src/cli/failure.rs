//! How a command ends: the exit statuses and what each error of the inner modules becomes (control-plane-api 13.2).
//! Invariants: everything a command can fail with has one status; "outcome unknown" is never folded into "refused".
//! Not here: printing results (`output`).

use std::io;
use std::process::ExitCode;

use felix_wire::error_code::ErrorCode;

use crate::cache::watch::WatchError;
use crate::error::{Error, PublishError, SubscribeError};
use crate::request::{ConditionError, ReadError, RequestError};

/// Why a command failed, as scripts see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Nobody reads our output any more: no failure, and nothing to say.
    ReaderGone,
    /// None of the others.
    Other,
    /// Wrong arguments, or settings that cannot be read.
    Usage,
    /// Nothing answered.
    Unreachable,
    /// A broker or the control plane said no.
    Refused,
    /// What was named does not exist.
    NotFound,
    /// It may or may not have happened.
    OutcomeUnknown,
}

impl Kind {
    /// The exit status.
    pub fn status(self) -> u8 {
        match self {
            Kind::ReaderGone => 0,
            Kind::Other => 1,
            Kind::Usage => 2,
            Kind::Unreachable => 3,
            Kind::Refused => 4,
            Kind::NotFound => 5,
            Kind::OutcomeUnknown => 6,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Kind::ReaderGone => "reader_gone",
            Kind::Other => "other",
            Kind::Usage => "usage",
            Kind::Unreachable => "unreachable",
            Kind::Refused => "refused",
            Kind::NotFound => "not_found",
            Kind::OutcomeUnknown => "outcome_unknown",
        }
    }
}

/// A command that did not succeed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// Decides the exit status.
    pub kind: Kind,
    /// One line for people.
    pub message: String,
}

/// What commands answer.
pub type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    pub fn new(kind: Kind, message: impl Into<String>) -> Failure {
        Failure { kind, message: message.into() }
    }

    pub fn usage(message: impl Into<String>) -> Failure {
        Failure::new(Kind::Usage, message)
    }

    pub fn other(message: impl Into<String>) -> Failure {
        Failure::new(Kind::Other, message)
    }

    /// The same failure with what was being done in front.
    #[must_use]
    pub fn while_doing(mut self, what: &str) -> Failure {
        self.message = format!("{what}: {}", self.message);
        self
    }

    /// Says it on standard error, as one JSON object when `json`, and gives the exit status.
    pub fn report(&self, json: bool) -> ExitCode {
        let status = self.kind.status();
        if status != 0 && json {
            let error = serde_json::json!({
                "error": { "kind": self.kind.name(), "message": self.message, "status": status }
            });
            eprintln!("{error}");
        } else if status != 0 {
            eprintln!("felix: {}", self.message);
        }
        ExitCode::from(status)
    }
}

/// Writing results: a reader that went away is no failure.
pub fn output_failed(error: &io::Error) -> Failure {
    let kind = if error.kind() == io::ErrorKind::BrokenPipe { Kind::ReaderGone } else { Kind::Other };
    Failure::new(kind, format!("standard output: {error}"))
}

fn kind_of_code(code: Option<&ErrorCode>) -> Kind {
    match code {
        Some(ErrorCode::NotFound) => Kind::NotFound,
        _ => Kind::Refused,
    }
}

/// For requests that write nothing.
fn kind_of(error: &Error) -> Kind {
    match error {
        Error::Config { .. } | Error::Token { .. } => Kind::Usage,
        Error::Unreachable { .. } | Error::NoStream { .. } | Error::Lost { .. } | Error::TimedOut { .. } => {
            Kind::Unreachable
        }
        Error::Auth(_) | Error::Refused(_) => kind_of_code(error.code()),
        Error::NotServed { .. } => Kind::Refused,
        Error::Protocol { .. } | Error::Closed => Kind::Other,
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::new(kind_of(&error), error.to_string())
    }
}

impl From<PublishError> for Failure {
    fn from(error: PublishError) -> Failure {
        let kind = match &error {
            PublishError::Refused(_) => kind_of_code(error.code()),
            PublishError::Unavailable(inner) => kind_of(inner),
            PublishError::OutcomeUnknown { .. } | PublishError::MayBeLost { .. } => Kind::OutcomeUnknown,
            PublishError::ProducerEnded { outcome_unknown: true, .. } => Kind::OutcomeUnknown,
            PublishError::ProducerEnded { .. } => Kind::Refused,
            PublishError::TooLarge { .. }
            | PublishError::RecordCount { .. }
            | PublishError::KeyTooLong { .. }
            | PublishError::Closed => Kind::Other,
        };
        Failure::new(kind, error.to_string())
    }
}

impl From<SubscribeError> for Failure {
    fn from(error: SubscribeError) -> Failure {
        let kind = match &error {
            SubscribeError::Cursor { .. } => Kind::Refused,
            SubscribeError::StreamDeleted { .. }
            | SubscribeError::UnknownStream
            | SubscribeError::UnknownShard { .. } => Kind::NotFound,
            SubscribeError::Failed { error, .. } | SubscribeError::Open(error) => kind_of(error),
            SubscribeError::Gap(_) => Kind::Other,
        };
        Failure::new(kind, error.to_string())
    }
}

fn kind_of_request(error: &RequestError) -> Kind {
    match error {
        RequestError::Invalid { .. } | RequestError::TooLarge { .. } => Kind::Usage,
        RequestError::Refused(_) => kind_of_code(error.code()),
        RequestError::Unavailable(inner) => kind_of(inner),
        RequestError::OutcomeUnknown { .. } => Kind::OutcomeUnknown,
    }
}

impl From<RequestError> for Failure {
    fn from(error: RequestError) -> Failure {
        Failure::new(kind_of_request(&error), error.to_string())
    }
}

impl From<ConditionError> for Failure {
    fn from(error: ConditionError) -> Failure {
        let kind = match &error {
            ConditionError::OffsetMismatch { .. } => Kind::Refused,
            ConditionError::Request(inner) => kind_of_request(inner),
        };
        Failure::new(kind, error.to_string())
    }
}

impl From<ReadError> for Failure {
    fn from(error: ReadError) -> Failure {
        let kind = match &error {
            ReadError::Cursor { .. } => Kind::Refused,
            ReadError::Request(inner) => kind_of_request(inner),
        };
        Failure::new(kind, error.to_string())
    }
}

impl From<WatchError> for Failure {
    fn from(error: WatchError) -> Failure {
        let kind = match &error {
            WatchError::Cursor { .. } => Kind::Refused,
            WatchError::UnknownCache | WatchError::UnknownShard { .. } => Kind::NotFound,
            WatchError::Failed { error, .. } => kind_of(error),
            WatchError::Open(error) => kind_of_request(error),
            WatchError::BeginsAnew { .. } => Kind::Other,
        };
        Failure::new(kind, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use felix_wire::error_code::RetryClass;

    use super::*;
    use crate::error::Refusal;

    fn refusal(code: ErrorCode) -> Refusal {
        Refusal {
            code: Some(code),
            retry: RetryClass::Fatal,
            message: "no".to_owned(),
            reason: None,
            retry_after: None,
        }
    }

    #[test]
    fn each_error_has_the_status_that_scripts_expect() {
        let status = |failure: Failure| failure.kind.status();
        let unreachable = Error::Unreachable { broker: "b:1".to_owned(), message: "silence".to_owned() };
        assert_eq!(status(Error::Config { message: String::new() }.into()), 2);
        assert_eq!(status(unreachable.clone().into()), 3);
        assert_eq!(status(PublishError::Unavailable(unreachable).into()), 3);
        assert_eq!(status(Error::Auth(refusal(ErrorCode::Unauthenticated)).into()), 4);
        assert_eq!(status(PublishError::Refused(refusal(ErrorCode::Forbidden)).into()), 4);
        assert_eq!(status(PublishError::Refused(refusal(ErrorCode::NotFound)).into()), 5);
        assert_eq!(status(SubscribeError::UnknownStream.into()), 5);
        assert_eq!(status(PublishError::MayBeLost { frames: 1 }.into()), 6);
        assert_eq!(status(PublishError::Closed.into()), 1);
        let ended = |outcome_unknown| {
            let reason = crate::error::ProducerEnd::UnknownProducer;
            status(PublishError::ProducerEnded { reason, outcome_unknown }.into())
        };
        assert_eq!((ended(false), ended(true)), (4, 6));
    }

    #[test]
    fn a_broken_pipe_ends_quietly_and_another_write_error_does_not() {
        assert_eq!(output_failed(&io::ErrorKind::BrokenPipe.into()).kind.status(), 0);
        assert_eq!(output_failed(&io::ErrorKind::StorageFull.into()).kind.status(), 1);
    }
}
