//! What comes back to a lane and goes again, and what is given up. Scope: functions of a lane.
//! Invariants: what comes back keeps its order and its number; a frame whose number was used up without being written
//! leaves it to the one behind it; one that may have been written takes the producer with it.
//! Not here: the flights themselves (`lane`).

use std::collections::VecDeque;

use felix_wire::error_code::{ErrorCode, RetryClass};
use felix_wire::id::{RequestId, Sequence};
use tokio::time::Instant;

use super::{Lane, NOT_DURABLE};
use crate::error::{ProducerEnd, PublishError, Refusal};
use crate::limits::REROUTES_MAX;
use crate::publish::numbers::{Batch, Numbering, Numbers};

impl Lane {
    /// The broker refused a frame's number. That may only follow from an earlier frame which was not taken.
    pub(super) fn producer_ended(&mut self, request: RequestId, batch: Batch, reason: ProducerEnd) {
        let oldest = self.oldest_number();
        // A shard that has seen nothing of the producer expects its first frame.
        let expected = match reason {
            ProducerEnd::SequenceGap { expected } => Some(Sequence(expected)),
            ProducerEnd::UnknownProducer => Some(Sequence(0)),
            ProducerEnd::SequenceExpired | ProducerEnd::SequenceReused => None,
        };
        let numbering = self.numbers.numbering().zip(expected);
        let follows =
            numbering.is_some_and(|(numbering, expected)| numbering.follows_from_ours(expected, oldest));
        // A producer that is left anyway is not asked.
        if (follows || self.numbers_after.is_some()) && self.ended.is_none() {
            return self.returned.push((request, batch));
        }
        let reason = *self.ended.get_or_insert(reason);
        settle_ended(batch, reason);
        while let Some(again) = self.numbers.numbering_mut().and_then(Numbering::take_again) {
            settle_ended(again, reason);
        }
        self.fail_waiting(&PublishError::ProducerEnded { reason, outcome_unknown: false }, |_| true);
    }

    /// The lowest number on its way or back from it.
    fn oldest_number(&self) -> Option<Sequence> {
        let flying = self.flights.iter().filter_map(|flight| flight.batch.as_ref());
        let returned = self.returned.iter().map(|(_, batch)| batch);
        flying.chain(returned).filter_map(|batch| batch.number).min()
    }

    pub(super) fn refused(
        &mut self,
        request: RequestId,
        mut batch: Batch,
        refusal: Refusal,
        now: Instant,
        random: fn() -> u64,
    ) {
        let unknown = refusal.retry == RetryClass::OutcomeUnknown;
        if unknown && batch.number.is_none() {
            let cause = refusal.to_string();
            let error = PublishError::OutcomeUnknown { cause, refusal: Some(refusal) };
            return batch.items.settle_failed(&error);
        }
        batch.maybe_written |= unknown;
        let returns = batch.items.as_slice().first().map_or(0, |item| item.returns);
        if !self.comes_back(&batch, &refusal, now) {
            return self.give_up(batch, PublishError::Refused(refusal));
        }
        // The first look at an outdated route costs no wait; a broker that learns it later than others does.
        let identity = is_about_session(&refusal);
        let at_once = identity || (refusal.is(&ErrorCode::StaleWidth) && returns == 0) || self.fell_back;
        if !at_once {
            let accepted = batch.items.accepted().unwrap_or(now);
            let left = (accepted + self.retry_for()).saturating_duration_since(now);
            let wait = refusal.retry_after.unwrap_or_default().min(left);
            let delay = self.backoff.next_delay(random()).max(wait);
            self.resume_at = Some(self.resume_at.map_or(now + delay, |at| at.max(now + delay)));
        }
        self.returned.push((request, batch));
    }

    /// A refused frame is sent again. Decides too what must be looked at before.
    fn comes_back(&mut self, batch: &Batch, refusal: &Refusal, now: Instant) -> bool {
        let first = batch.items.as_slice().first();
        let retry_for = self.retry_for();
        let numbered = batch.number.is_some();
        let young = first.is_some_and(|item| now < item.accepted + retry_for);
        let returns = first.map_or(0, |item| item.returns);
        let elsewhere = [ErrorCode::NotLeader, ErrorCode::ShardUnavailable, ErrorCode::Draining];
        if numbered && self.rules.may_fall_back && refusal.reason.as_deref() == Some(NOT_DURABLE) {
            self.fell_back = true;
            self.numbers_after = Some(Numbers::Plain);
            return true;
        }
        if refusal.is(&ErrorCode::StaleWidth) {
            self.relook = true;
            return returns < REROUTES_MAX;
        }
        if is_about_session(refusal) {
            self.relook = true;
            return returns == 0;
        }
        if refusal.is(&ErrorCode::NotFound) {
            if !numbered {
                return false;
            }
            self.relook = true;
            let since = *self.unknown_since.get_or_insert(now);
            return young && now < since + self.rules.unknown_for;
        }
        self.relook |= elsewhere.iter().any(|code| refusal.is(code));
        let unknown = numbered && refusal.retry == RetryClass::OutcomeUnknown;
        (unknown || refusal.is_retryable()) && young
    }

    /// A frame that will not be sent again. What is behind it can go on only under other numbers.
    fn give_up(&mut self, batch: Batch, error: PublishError) {
        let Some(number) = batch.number else { return batch.items.settle_failed(&error) };
        if let Some(reason) = self.ended {
            return settle_ended(batch, reason);
        }
        if batch.maybe_written {
            self.numbers_after = Some(Numbers::Wanted);
        } else if let Some(numbering) = self.numbers.numbering_mut() {
            numbering.give_up(number);
        }
        settle_given_up(batch, &error);
    }

    /// Of what waits to be sent again, gives up what is `doomed`. Nothing may be in flight.
    pub(super) fn give_up_again(&mut self, error: &PublishError, doomed: impl Fn(&Batch) -> bool) {
        let Some(numbering) = self.numbers.numbering_mut() else { return };
        let unknown = numbering.find_again(|batch| batch.maybe_written && doomed(batch)).is_some();
        if unknown {
            // Whether the shard has the doomed frame is not known, so neither is the number it expects next.
            return self.forsake(Numbers::Wanted, &error.to_string());
        }
        // Never written, so nothing behind it was either: those wait again, and fail or not by themselves.
        if let Some(number) = numbering.find_again(doomed).and_then(|batch| batch.number) {
            numbering.give_up(number);
            self.close_hole();
        }
    }

    /// What is behind a number that was given up waits again, to be numbered anew.
    pub(super) fn close_hole(&mut self) {
        let Some(numbering) = self.numbers.numbering_mut() else { return };
        let behind = numbering.close_hole();
        self.wait_again(behind);
    }

    /// Leaves the producer: frames that may have been written have an unknown outcome, the rest waits again. Nothing
    /// may be in flight.
    pub(super) fn forsake(&mut self, next: Numbers, cause: &str) {
        self.numbers_after = None;
        let old = std::mem::replace(&mut self.numbers, next);
        let Numbers::Of(numbering) = old else { return };
        let unknown = PublishError::unknown(cause);
        let mut rest = VecDeque::new();
        for batch in numbering.into_again() {
            if batch.maybe_written {
                batch.items.settle_failed(&unknown);
            } else {
                rest.push_back(batch);
            }
        }
        self.wait_again(rest);
    }

    /// Puts the items of `batches` before all that waits, in order.
    pub(super) fn wait_again(&mut self, batches: VecDeque<Batch>) {
        for batch in batches.into_iter().rev() {
            for item in batch.items.into_vec().into_iter().rev() {
                self.count_in(&item);
                self.waiting.push_front(item);
            }
        }
    }

    /// Once every flight has ended, what came back goes to the front, in its old order.
    pub(super) fn requeue_if_landed(&mut self) {
        if !self.flights.is_empty() {
            return;
        }
        let mut returned = std::mem::take(&mut self.returned);
        returned.sort_by_key(|(request, _)| *request);
        let mut batches: Vec<Batch> = returned.into_iter().map(|(_, batch)| batch).collect();
        for item in batches.iter_mut().flat_map(|batch| batch.items.as_mut_slice()) {
            item.returns += u32::from(self.relook);
        }
        if let Some(reason) = self.ended {
            batches.into_iter().for_each(|batch| settle_ended(batch, reason));
            return;
        }
        match self.numbers.numbering_mut() {
            Some(numbering) => numbering.bring_back(batches),
            None => self.wait_again(batches.into()),
        }
        self.close_hole();
        if let Some(next) = self.numbers_after.take() {
            self.forsake(next, "an earlier record has an unknown outcome");
        }
    }
}

/// The broker wants to see a newer token.
fn is_about_session(refusal: &Refusal) -> bool {
    refusal.is(&ErrorCode::Unauthenticated) || refusal.is(&ErrorCode::Revoked)
}

/// A numbered frame of a producer that was ended.
fn settle_ended(batch: Batch, reason: ProducerEnd) {
    let outcome_unknown = batch.maybe_written;
    batch.items.settle_failed(&PublishError::ProducerEnded { reason, outcome_unknown });
}

/// A frame that is not tried any more because of `error`.
fn settle_given_up(batch: Batch, error: &PublishError) {
    if batch.maybe_written {
        let refusal = error.refusal().cloned();
        batch.items.settle_failed(&PublishError::OutcomeUnknown { cause: error.to_string(), refusal });
    } else {
        batch.items.settle_failed(error);
    }
}
