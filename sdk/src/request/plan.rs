//! Whether a request is sent again, without any I/O. Scope: per request.
//! Owns: how often and how long it was tried, and whether an earlier copy may have been applied.
//! Invariants: a write whose outcome is unknown is sent again only when its repetition changes nothing; once a copy may
//! have been applied, every failure of such a write is an unknown outcome; waits have a bound.
//! Not here: sending (`exchange`), and what can be repeated (the families).

use std::time::Duration;

use felix_wire::error_code::{ErrorCode, RetryClass};
use tokio::time::Instant;

use crate::backoff::Backoff;
use crate::connection::Deadlines;
use crate::error::{Error, Refusal};
use crate::limits::{REDIRECT_HOPS_MAX, RETRY_IDEMPOTENT, RETRY_REFUSED};
use crate::request::error::RequestError;
use crate::request::pipe::NoAnswer;
use crate::topology::ShardOwner;

/// What a second copy of a request does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Repeat {
    /// Nothing: it writes nothing.
    Read,
    /// Nothing more than the first: it is numbered, or says how things are to be.
    Same,
    /// Something: it is sent again only when nothing was applied.
    Twice,
}

/// What to do after an attempt without success.
#[derive(Debug, PartialEq)]
pub(crate) enum Next {
    /// Ask this broker, at once.
    Ask(ShardOwner),
    /// Ask again after this time.
    Again {
        after: Duration,
        /// Look for the shard's owner first, who may be another one now.
        look: bool,
    },
    /// It has failed.
    Fail(RequestError),
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Plan {
    repeat: Repeat,
    started: Instant,
    /// For failures of any kind that may pass.
    patience: Duration,
    not_found: Duration,
    backoff: Backoff,
    /// The node ids of this round of redirects.
    seen: Vec<String>,
    maybe_applied: bool,
    identity_refused: bool,
}

impl Plan {
    pub(crate) fn new(repeat: Repeat, now: Instant, deadlines: &Deadlines) -> Self {
        let patience = match repeat {
            Repeat::Read => deadlines.request,
            Repeat::Same => RETRY_IDEMPOTENT,
            Repeat::Twice => RETRY_REFUSED,
        };
        Self {
            repeat,
            started: now,
            patience,
            not_found: deadlines.not_found,
            backoff: Backoff::default(),
            seen: Vec::new(),
            maybe_applied: false,
            identity_refused: false,
        }
    }

    /// An earlier copy, whose answer is missing, may have been applied.
    pub(crate) fn maybe_applied(&self) -> bool {
        self.maybe_applied
    }

    /// The broker named the one that leads.
    pub(crate) fn elsewhere(&mut self, owner: ShardOwner, now: Instant, random: u64) -> Next {
        let node = owner.node_id.clone().unwrap_or_default();
        let follow =
            owner.dialable().is_some() && self.seen.len() < REDIRECT_HOPS_MAX && !self.seen.contains(&node);
        if follow {
            self.seen.push(node);
            return Next::Ask(owner);
        }
        let refusal = Refusal {
            code: Some(ErrorCode::NotLeader),
            retry: RetryClass::Redirect,
            message: "the shard's leader could not be found".to_owned(),
            reason: None,
            retry_after: None,
        };
        self.refused(refusal, now, random)
    }

    /// The broker refused.
    pub(crate) fn refused(&mut self, refusal: Refusal, now: Instant, random: u64) -> Next {
        let patience = match &refusal.code {
            // A stream cannot be extended; another one may have a newer token.
            Some(ErrorCode::Unauthenticated) if !self.identity_refused => {
                self.identity_refused = true;
                return Next::Again { after: Duration::ZERO, look: false };
            }
            // The claim is over, whoever is asked.
            Some(ErrorCode::StaleClaim) => Duration::ZERO,
            Some(ErrorCode::NotFound) => self.not_found,
            _ if refusal.retry == RetryClass::OutcomeUnknown => {
                self.maybe_applied |= self.repeat != Repeat::Read;
                if self.repeat == Repeat::Twice { Duration::ZERO } else { self.patience }
            }
            _ if refusal.is_retryable() => self.patience,
            _ => Duration::ZERO,
        };
        let wait = refusal.retry_after.unwrap_or_default();
        // Whoever is too busy, or does not know yet, is still the one to ask.
        let look = !matches!(refusal.code, Some(ErrorCode::Overloaded | ErrorCode::NotFound));
        match self.again(patience, (wait, look), (now, random)) {
            Some(next) => next,
            None if self.maybe_applied => Next::Fail(RequestError::OutcomeUnknown {
                cause: refusal.to_string(),
                refusal: Some(refusal),
            }),
            None => Next::Fail(RequestError::Refused(refusal)),
        }
    }

    /// There was no answer.
    pub(crate) fn unanswered(&mut self, none: NoAnswer, now: Instant, random: u64) -> Next {
        let NoAnswer { error, sent } = none;
        if !sent && let Some(refusal) = error.refusal() {
            return match error {
                Error::Auth(_) => self.failed(error),
                _ => self.refused(refusal.clone(), now, random),
            };
        }
        self.maybe_applied |= sent && self.repeat != Repeat::Read;
        let passes = match error {
            Error::Config { .. } | Error::Token { .. } | Error::NotServed { .. } | Error::Closed => false,
            _ => !sent || self.repeat != Repeat::Twice,
        };
        let patience = if passes { self.patience } else { Duration::ZERO };
        self.again(patience, (Duration::ZERO, true), (now, random)).unwrap_or_else(|| self.failed(error))
    }

    fn failed(&self, error: Error) -> Next {
        Next::Fail(match self.maybe_applied {
            true => {
                RequestError::OutcomeUnknown { cause: error.to_string(), refusal: error.refusal().cloned() }
            }
            false => RequestError::Unavailable(error),
        })
    }

    fn again(
        &mut self,
        patience: Duration,
        (wait, look): (Duration, bool),
        (now, random): (Instant, u64),
    ) -> Option<Next> {
        let left = patience.checked_sub(now - self.started).filter(|left| !left.is_zero())?;
        let after = self.backoff.next_delay(random).max(wait);
        if after > left {
            return None;
        }
        self.seen.clear();
        Some(Next::Again { after, look })
    }
}

#[cfg(test)]
mod tests;
