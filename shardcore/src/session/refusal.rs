//! Coded refusals of the broker (client-protocol 8). Scope: values.
//! Invariants: a refusal says truly whether anything was written; only `unacknowledged` and its like leave it open.

use std::borrow::Cow;
use std::sync::Arc;

use felix_wire::client::{Error, Message, RefusalReason};
use felix_wire::error_code::{ErrorCode, ErrorDetail, RetryClass};
use felix_wire::id::Offset;

use crate::lease::LeaseRefused;
use crate::projection::group::GroupRefused;
use crate::route::RouteError;
use crate::shard::ask::AskRefused;
use crate::shard::mail::{Doubt, NotWritten, NumberRefusal};
use crate::snapshot::Routes;

/// What a client is told when it does not get what it asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub code: ErrorCode,
    pub retry: RetryClass,
    pub message: Cow<'static, str>,
    pub reason: Option<&'static str>,
    pub retry_after_ms: Option<u64>,
    /// Answers a numbered publish with `publish_refused` instead.
    pub number: Option<Box<RefusalReason<'static>>>,
}

impl Refusal {
    /// A refusal with the code's own retry class.
    pub fn new(code: ErrorCode, message: &'static str) -> Refusal {
        let retry = code.default_retry();
        Refusal {
            code,
            retry,
            message: Cow::Borrowed(message),
            reason: None,
            retry_after_ms: None,
            number: None,
        }
    }

    /// One message for every token that is not good.
    pub fn unauthenticated() -> Refusal {
        Refusal::new(ErrorCode::Unauthenticated, "authentication failed")
    }

    /// The token cannot be checked now.
    pub fn no_keys() -> Refusal {
        let retry = RetryClass::Retry;
        Refusal {
            retry,
            ..Refusal::new(ErrorCode::Internal, "the keys to check the token are not available")
        }
    }

    /// The right is missing.
    pub fn forbidden() -> Refusal {
        Refusal::new(ErrorCode::Forbidden, "permission denied")
    }

    /// No such stream, as far as this node's catalog goes.
    pub fn unknown_stream() -> Refusal {
        let mut refusal = Refusal::new(ErrorCode::NotFound, "unknown stream");
        refusal.retry_after_ms = Some(200);
        refusal
    }

    /// The stream is not there; before the catalog has been read, it may be soon.
    pub fn no_stream(routes: &Routes) -> Refusal {
        if routes.is_known() { Refusal::unknown_stream() } else { Refusal::unavailable("not_ready") }
    }

    /// No such cache, as far as this node's catalog goes.
    pub fn unknown_cache() -> Refusal {
        Refusal { message: Cow::Borrowed("unknown cache"), ..Refusal::unknown_stream() }
    }

    /// The cache is not there; before the catalog has been read, it may be soon.
    pub fn no_cache(routes: &Routes) -> Refusal {
        if routes.is_known() { Refusal::unknown_cache() } else { Refusal::unavailable("not_ready") }
    }

    /// Something of ours went wrong; nothing is known to have happened.
    pub fn internal() -> Refusal {
        Refusal::new(ErrorCode::Internal, "the request could not be answered")
    }

    /// More requests are unanswered than may be; nothing of this one happened.
    pub fn too_many_asks() -> Refusal {
        let refusal = Refusal::new(ErrorCode::Overloaded, "too many requests are unanswered");
        Refusal { retry_after_ms: Some(100), ..refusal }
    }

    /// Answers that are not read take too much memory; this one was a read.
    pub fn unread_answers() -> Refusal {
        let refusal = Refusal::new(ErrorCode::Overloaded, "too many answers have not been read");
        Refusal { retry_after_ms: Some(100), ..refusal }
    }

    /// The answer of a shard that refuses a request.
    pub fn of_ask(why: &AskRefused) -> Refusal {
        let said = |code, text: &Arc<str>| Refusal {
            message: Cow::Owned(text.as_ref().to_owned()),
            ..Refusal::new(code, "")
        };
        match why {
            AskRefused::Invalid(text) => said(ErrorCode::InvalidRequest, text),
            AskRefused::Limit(text) => said(ErrorCode::LimitExceeded, text),
            AskRefused::Overloaded => Refusal { reason: None, ..Refusal::overloaded(500) },
            AskRefused::NotWritten(why) => Refusal::not_written(*why),
            AskRefused::Unknown(why) => Refusal::outcome_unknown(*why),
            AskRefused::Unreadable => Refusal::unreadable(),
            AskRefused::Damaged { from, next } => Refusal::damaged(*from, *next),
            AskRefused::Broken(why) => Refusal::no_log(why),
            AskRefused::Group(why) => Refusal::of_group(*why),
            AskRefused::Lease(why) => Refusal::of_lease(*why),
        }
    }

    /// A member that has to join again, or not, is told by the reason.
    fn of_lease(why: LeaseRefused) -> Refusal {
        let (code, reason) = match why {
            LeaseRefused::MemberName
            | LeaseRefused::Term
            | LeaseRefused::NoSuchShard
            | LeaseRefused::NeverHeld => (ErrorCode::InvalidRequest, None),
            LeaseRefused::UnknownMember => (ErrorCode::StaleClaim, Some("unknown_member")),
            LeaseRefused::MemberReplaced => (ErrorCode::StaleClaim, Some("member_replaced")),
            LeaseRefused::TooManyMembers | LeaseRefused::TooManyGroups | LeaseRefused::TooMuchMemory => {
                (ErrorCode::LimitExceeded, None)
            }
        };
        Refusal { message: Cow::Owned(why.to_string()), reason, ..Refusal::new(code, "") }
    }

    fn of_group(why: GroupRefused) -> Refusal {
        let code = match why {
            GroupRefused::GroupName
            | GroupRefused::MemberName
            | GroupRefused::NoRecords
            | GroupRefused::AckCount
            | GroupRefused::NeverHandedOut
            | GroupRefused::InFuture { .. }
            | GroupRefused::TooOld { .. } => ErrorCode::InvalidRequest,
            GroupRefused::StaleClaim | GroupRefused::StaleLease => ErrorCode::StaleClaim,
            GroupRefused::NotListed => ErrorCode::NotFound,
            GroupRefused::TooManyPolls => ErrorCode::Overloaded,
            GroupRefused::TooManyGroups
            | GroupRefused::TooManyDeadLetters
            | GroupRefused::TooManyUnfinished => ErrorCode::LimitExceeded,
        };
        let reason = (why == GroupRefused::StaleLease).then_some("stale_lease");
        Refusal { message: Cow::Owned(why.to_string()), reason, ..Refusal::new(code, "") }
    }

    /// The request does not make sense.
    pub fn invalid(message: &'static str) -> Refusal {
        Refusal::new(ErrorCode::InvalidRequest, message)
    }

    /// A request of the protocol that this broker does not serve yet.
    pub fn not_served(request: &str) -> Refusal {
        let message = Cow::Owned(format!("{request} is not served by this broker"));
        Refusal { message, ..Refusal::invalid("") }
    }

    /// A configured limit was reached.
    pub fn limit(message: &'static str) -> Refusal {
        Refusal::new(ErrorCode::LimitExceeded, message)
    }

    /// Waited for room for too long; nothing was claimed.
    pub fn overloaded(retry_after_ms: u64) -> Refusal {
        let mut refusal = Refusal::new(ErrorCode::Overloaded, "the shard is not keeping up");
        refusal.reason = Some("publish_queue_full");
        refusal.retry_after_ms = Some(retry_after_ms);
        refusal
    }

    /// The log of the shard takes no publish of this kind; nothing was written.
    pub fn not_written(why: NotWritten) -> Refusal {
        let (code, message) = match why {
            NotWritten::NoSpace => (ErrorCode::Storage, "the volume of the log is nearly full"),
            NotWritten::VolumeGone => {
                (ErrorCode::Storage, "the storage folder of the log is gone from its place")
            }
            NotWritten::NoFile => (ErrorCode::Storage, "no further file of the log can be made"),
            NotWritten::Stopped => {
                (ErrorCode::Storage, "the log of the shard has failed and takes no writes")
            }
            NotWritten::Unreadable => (ErrorCode::Storage, "what the log says of producers cannot be read"),
            NotWritten::Damaged { next } => return Refusal::damaged_numbers(next),
            NotWritten::Number(why) => {
                let mut refusal = Refusal::invalid("the number does not fit what is known of the producer");
                refusal.number = Some(Box::new(match why {
                    NumberRefusal::Gap { expected } => RefusalReason::SequenceGap { expected },
                    NumberRefusal::Expired => RefusalReason::SequenceExpired,
                    NumberRefusal::Reused => RefusalReason::SequenceReused,
                    NumberRefusal::Unknown => RefusalReason::UnknownProducer,
                }));
                return refusal;
            }
            NotWritten::Deleted => return Refusal::deleted(),
            NotWritten::TooLarge => return Refusal::limit("the batch is larger than a log can hold at once"),
        };
        let mut refusal = Refusal::new(code, message);
        (refusal.retry, refusal.retry_after_ms) = (RetryClass::RetryAfter, Some(1_000));
        refusal
    }

    /// The publish was on its way to the disk when something happened to the log of the shard.
    pub fn outcome_unknown(why: Doubt) -> Refusal {
        let (code, message) = match why {
            Doubt::LogFailed => {
                (ErrorCode::Storage, "the log of the shard failed: whether it was written is not known")
            }
            Doubt::Unconfirmed => {
                let message = "the disk does not answer: whether it was written is not known";
                let refusal = Refusal::new(ErrorCode::Unacknowledged, message);
                return Refusal { reason: Some("disk_unanswered"), ..refusal };
            }
            Doubt::Moved => {
                (ErrorCode::LeadershipLost, "the shard moved: whether it was written is not known")
            }
        };
        Refusal::new(code, message)
    }

    /// The stream was deleted while the publish was on its way. Nobody has seen it, and nobody will.
    fn deleted() -> Refusal {
        Refusal { message: Cow::Borrowed("the stream was deleted"), ..Refusal::unknown_stream() }
    }

    /// What was asked for cannot be read from the log: bytes there are damaged, and will be so the next time.
    pub fn unreadable() -> Refusal {
        let retry = RetryClass::Fatal;
        Refusal { retry, ..Refusal::new(ErrorCode::Storage, "the log cannot be read there") }
    }

    /// The broker has no log for the shard: `why` is for whoever runs it, and trying again does not help.
    pub fn no_log(why: &str) -> Refusal {
        let message = format!("the shard is not served, because its broker cannot use its log: {why}");
        let retry = RetryClass::Fatal;
        Refusal { retry, message: Cow::Owned(message), ..Refusal::new(ErrorCode::Storage, "") }
    }

    /// As [`Refusal::unreadable`], with the range that is damaged and how to go on.
    pub fn damaged(from: Offset, next: Offset) -> Refusal {
        let message = format!(
            "the records from offset {from} up to {next} are damaged and cannot be read; those from offset {next} on can"
        );
        Refusal { message: Cow::Owned(message), ..Refusal::unreadable() }
    }

    /// Whether a batch was stored before cannot be told, since the log is damaged where it may be; it was not written now.
    fn damaged_numbers(next: Offset) -> Refusal {
        let message = format!(
            "batches of this producer may be among the damaged ones below offset {next} of the shard; a new producer can publish"
        );
        Refusal { message: Cow::Owned(message), ..Refusal::unreadable() }
    }

    /// The memory for unfinished frames is needed for others.
    pub fn no_room() -> Refusal {
        let refusal = Refusal::new(ErrorCode::Overloaded, "no room for the frame");
        Refusal { retry_after_ms: Some(1_000), ..refusal }
    }

    /// The broker is shutting down.
    pub fn draining() -> Refusal {
        Refusal::new(ErrorCode::Draining, "the broker is shutting down")
    }

    /// Nobody serves the shard here now; nothing was written.
    pub fn unavailable(reason: &'static str) -> Refusal {
        let mut refusal = Refusal::new(ErrorCode::ShardUnavailable, "the shard is not available");
        refusal.reason = Some(reason);
        refusal
    }

    /// Another node serves the shard; nothing was written.
    pub fn other_node() -> Refusal {
        Refusal::new(ErrorCode::NotLeader, "another node serves the shard")
    }

    /// The answer of a numbered publish that cannot be routed; these are not passed on to another node.
    pub fn of_numbered(error: &RouteError<'_>) -> Refusal {
        let mut refusal = Refusal::from_route(error);
        if let RouteError::OtherNode { node, addr, .. } = error {
            let (node_id, addr) = (Cow::Owned((*node).to_owned()), addr.map(|a| Cow::Owned(a.to_owned())));
            refusal.number = Some(Box::new(RefusalReason::NotLeader { node_id, addr }));
        }
        refusal
    }

    /// The answer of a request that cannot be routed.
    pub fn from_route(error: &RouteError<'_>) -> Refusal {
        match error {
            RouteError::NoSuchShard { .. } => Refusal::invalid("the stream has no such shard"),
            RouteError::StaleWidth => {
                Refusal::new(ErrorCode::StaleWidth, "routed by a width the stream does not have")
            }
            RouteError::OtherNode { .. } => Refusal::other_node(),
            RouteError::Unavailable { reason } => Refusal::unavailable(reason),
            RouteError::NoLog { why } => Refusal::no_log(why),
        }
    }

    /// The message that says so, with codes for clients that read them.
    pub fn to_message(&self, codes: bool) -> Message<'_> {
        Message::Error(Error {
            message: self.message.as_ref().into(),
            code: codes.then(|| self.code.clone()),
            retry: codes.then_some(self.retry),
            detail: if codes { self.detail() } else { None },
        })
    }

    /// What it is told with as `publish_refused`: a client that does not know `sequence_reused` gets an error instead.
    pub fn told_number(&self, reads_reused: bool) -> Option<&RefusalReason<'static>> {
        self.number.as_deref().filter(|reason| reads_reused || **reason != RefusalReason::SequenceReused)
    }

    /// The structured part, when there is one.
    pub fn detail(&self) -> Option<ErrorDetail> {
        (self.reason.is_some() || self.retry_after_ms.is_some()).then(|| ErrorDetail {
            reason: self.reason.map(Cow::Borrowed),
            retry_after_ms: self.retry_after_ms,
        })
    }
}
