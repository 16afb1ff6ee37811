//! What is accepted, on the wire and returned for one shard, without any I/O. Scope: per publisher and shard.
//! Owns: the queue of accepted items, the frames in flight, and the rule of what an answer means for them.
//! Invariants: items reach the wire in acceptance order; with ordered answers each answers the oldest flight;
//! an item is sent again only when it is certain that nothing of it was written, and then before every later
//! item that is still here; after a return nothing is sent until every flight has ended.
//! Not here: streams, timers, encoding (`driver`), and which shard an item belongs to (`table`).

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use felix_wire::error_code::{ErrorCode, RetryClass};
use felix_wire::id::{Offset, RequestId};
use tokio::time::Instant;

use crate::backoff::Backoff;
use crate::error::{Error, PublishError, Refusal};
use crate::limits::REROUTES_MAX;
use crate::publish::BatchLimits;
use crate::publish::item::{Item, Items};

/// How a lane works, fixed for its life.
#[derive(Debug, Clone)]
pub(crate) struct LaneRules {
    pub(crate) shard: u32,
    /// Frames ask for an answer.
    pub(crate) acked: bool,
    pub(crate) batch: BatchLimits,
    pub(crate) ack_timeout: Duration,
    /// Refused with nothing written: sent again until this long after acceptance.
    pub(crate) retry_for: Duration,
}

/// What the current stream allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StreamGrant {
    /// Frames that may be unanswered.
    pub(crate) window: usize,
    /// Answers come in the order of the publishes.
    pub(crate) ordered: bool,
    /// Different keys of one shard may share a frame: a wrong width is refused, not misrouted.
    pub(crate) merge_keys: bool,
}

/// What the broker said to one frame.
#[derive(Debug)]
pub(crate) enum Answer {
    Stored { offset: Option<Offset> },
    Refused(Refusal),
}

/// The broker broke the rules of client-protocol 10.4.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct UnexpectedAnswer(pub(crate) RequestId);

/// A frame to encode now.
#[derive(Debug)]
pub(crate) struct NewFrame<'a> {
    pub(crate) request: RequestId,
    pub(crate) items: &'a [Item],
}

#[derive(Debug)]
struct Flight {
    request: RequestId,
    /// `None` once answered out of order.
    items: Option<Items>,
    /// Position in the stream after the frame's last byte; `u64::MAX` until encoded.
    end: u64,
    answer_due: Instant,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Lane {
    rules: LaneRules,
    grant: StreamGrant,
    waiting: VecDeque<Item>,
    waiting_bytes: usize,
    waiting_records: usize,
    flights: VecDeque<Flight>,
    unanswered: usize,
    /// Frames that came back with nothing written.
    returned: Vec<(RequestId, Items)>,
    next_request: u64,
    /// Position in the stream after the last encoded byte, and after the last one the transport took.
    encoded: u64,
    written: u64,
    /// The route or the identity must be looked at before anything more is sent.
    relook: bool,
    resume_at: Option<Instant>,
    backoff: Backoff,
    /// Send without lingering.
    hurried: bool,
    /// Unacknowledged frames handed to the current stream since the last confirmation.
    unconfirmed: u64,
    /// Unacknowledged frames that may not have arrived, since somebody asked.
    lost: u64,
}

impl Lane {
    pub(crate) fn new(rules: LaneRules) -> Self {
        Self {
            rules,
            grant: StreamGrant { window: 0, ordered: true, merge_keys: false },
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            waiting_records: 0,
            flights: VecDeque::new(),
            unanswered: 0,
            returned: Vec::new(),
            next_request: 1,
            encoded: 0,
            written: 0,
            relook: false,
            resume_at: None,
            backoff: Backoff::default(),
            hurried: false,
            unconfirmed: 0,
            lost: 0,
        }
    }

    /// Takes accepted items, in order.
    pub(crate) fn accept(&mut self, items: impl IntoIterator<Item = Item>) {
        for item in items {
            self.count_in(&item);
            self.waiting.push_back(item);
        }
    }

    /// A new stream is ready. Nothing may be in flight.
    pub(crate) fn stream_opened(&mut self, grant: StreamGrant) {
        assert!(self.flights.is_empty(), "a stream is opened after the flights of the last one have ended");
        self.grant = grant;
        self.next_request = 1;
        self.encoded = 0;
        self.written = 0;
        self.relook = false;
    }

    /// While set, nothing lingers.
    pub(crate) fn hurry(&mut self, hurried: bool) {
        self.hurried = hurried;
    }

    /// The next frame, if one may be sent now. The caller encodes it and calls [`Lane::frame_encoded`] before
    /// anything else.
    pub(crate) fn start_frame(&mut self, now: Instant) -> Option<NewFrame<'_>> {
        if !self.may_send(now) {
            return None;
        }
        let items = self.take_batch()?;
        let request = RequestId(self.next_request);
        self.next_request += 1;
        if self.rules.acked {
            self.unanswered += 1;
        }
        let answer_due = now + self.rules.ack_timeout;
        self.flights.push_back(Flight { request, items: Some(items), end: u64::MAX, answer_due });
        let items = self.flights.back().and_then(|flight| flight.items.as_ref()).map(Items::as_slice)?;
        Some(NewFrame { request, items })
    }

    /// The frame started last has `bytes` bytes. What else is written to the stream counts too, with no frame.
    pub(crate) fn frame_encoded(&mut self, bytes: usize) {
        self.encoded += bytes as u64;
        if let Some(flight) = self.flights.back_mut().filter(|flight| flight.end == u64::MAX) {
            flight.end = self.encoded;
        }
    }

    /// The transport took `bytes` more.
    pub(crate) fn bytes_written(&mut self, bytes: usize) {
        self.written += bytes as u64;
        if self.rules.acked {
            return;
        }
        while self.flights.front().is_some_and(|flight| flight.end <= self.written) {
            // Dropping the items returns their budget: for these, being with the transport is all there is.
            self.flights.pop_front();
            self.unconfirmed += 1;
        }
    }

    /// The broker answered.
    ///
    /// # Errors
    /// When no such answer is owed, or not yet: the stream must be given up.
    pub(crate) fn answered(
        &mut self,
        request: RequestId,
        answer: Answer,
        now: Instant,
        random: fn() -> u64,
    ) -> Result<(), UnexpectedAnswer> {
        let position = if self.grant.ordered {
            self.flights.front().filter(|flight| flight.request == request).map(|_| 0)
        } else {
            self.flights.binary_search_by_key(&request, |flight| flight.request).ok()
        };
        let items = position
            .and_then(|position| self.flights.get_mut(position))
            .filter(|flight| flight.end <= self.written)
            .and_then(|flight| flight.items.take())
            .ok_or(UnexpectedAnswer(request))?;
        self.unanswered -= 1;
        while self.flights.front().is_some_and(|flight| flight.items.is_none()) {
            self.flights.pop_front();
        }
        match answer {
            Answer::Stored { offset } => {
                self.backoff.reset();
                items.settle_stored(self.rules.shard, offset);
            }
            Answer::Refused(refusal) => self.refused(request, items, refusal, now, random),
        }
        self.requeue_if_landed();
        Ok(())
    }

    /// The stream or its connection is gone, or the broker broke the protocol. What the transport had taken whole
    /// has an unknown outcome, the rest waits again.
    pub(crate) fn stream_lost(&mut self, cause: &str) {
        self.lost += std::mem::take(&mut self.unconfirmed);
        let unknown = PublishError::unknown(cause);
        for flight in std::mem::take(&mut self.flights) {
            let Some(items) = flight.items else { continue };
            if flight.end <= self.written {
                items.settle_failed(&unknown);
            } else {
                self.returned.push((flight.request, items));
            }
        }
        self.unanswered = 0;
        self.requeue_if_landed();
    }

    /// The transport confirmed everything written to the stream, which is finished now.
    pub(crate) fn confirmed(&mut self) {
        self.unconfirmed = 0;
    }

    /// No stream could be had, or one was lost. Items that have waited long enough fail, all of them when waiting
    /// cannot help; the rest waits a while longer each time.
    pub(crate) fn cannot_send_or_wait(&mut self, now: Instant, error: &Error, random: u64) {
        let hopeless = !error.is_worth_another_read();
        let failure = PublishError::Unavailable(error.clone());
        let retry_for = self.rules.retry_for;
        self.fail_waiting(&failure, |item| hopeless || now >= item.accepted + retry_for);
        self.resume_at = Some(now + self.backoff.next_delay(random));
    }

    /// Nothing here can be sent any more.
    pub(crate) fn fail_all(&mut self, error: &PublishError) {
        self.fail_waiting(error, |_| true);
    }

    /// Asks for a look at the route once the flights have ended.
    pub(crate) fn request_relook(&mut self) {
        self.relook = true;
    }

    /// A look at the route is due, and nothing is in flight any more.
    pub(crate) fn needs_relook(&self) -> bool {
        self.relook && self.flights.is_empty()
    }

    pub(crate) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    pub(crate) fn has_flights(&self) -> bool {
        !self.flights.is_empty()
    }

    /// Frames handed to the stream that nobody has confirmed.
    pub(crate) fn has_unconfirmed(&self) -> bool {
        self.unconfirmed > 0
    }

    /// Frames that may not have arrived since the last call.
    pub(crate) fn take_lost(&mut self) -> u64 {
        std::mem::take(&mut self.lost)
    }

    /// Everything that waits, in order; for a lane that ends because the stream has other shards now.
    pub(crate) fn take_waiting(&mut self) -> VecDeque<Item> {
        assert!(self.flights.is_empty(), "a lane ends after its flights");
        self.waiting_bytes = 0;
        self.waiting_records = 0;
        std::mem::take(&mut self.waiting)
    }

    /// The earliest time at which something is due without any input.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        let answer =
            if self.rules.acked { self.flights.front().map(|flight| flight.answer_due) } else { None };
        let send = self.waiting.front().filter(|_| self.is_lingering()).map(|item| self.linger_end(item));
        let resume = self.resume_at.filter(|_| !self.waiting.is_empty());
        [answer, resume.or(send)].into_iter().flatten().min()
    }

    /// True when the oldest answer is overdue: the stream must be given up.
    pub(crate) fn is_overdue(&self, now: Instant) -> bool {
        self.rules.acked && self.flights.front().is_some_and(|flight| flight.answer_due <= now)
    }

    fn may_send(&mut self, now: Instant) -> bool {
        let Some(oldest) = self.waiting.front() else { return false };
        if self.relook || !self.returned.is_empty() {
            return false;
        }
        if self.resume_at.is_some_and(|at| at > now) {
            return false;
        }
        if self.is_lingering() && self.linger_end(oldest) > now {
            return false;
        }
        self.resume_at = None;
        !self.rules.acked || self.unanswered < self.grant.window
    }

    fn is_lingering(&self) -> bool {
        let batch = &self.rules.batch;
        !self.hurried
            && !batch.linger.is_zero()
            && self.waiting_bytes < batch.max_bytes
            && self.waiting_records < batch.max_records
    }

    fn linger_end(&self, oldest: &Item) -> Instant {
        oldest.accepted + self.rules.batch.linger
    }

    fn take_batch(&mut self) -> Option<Items> {
        let first = self.pop_waiting()?;
        let mut records = first.records();
        let mut bytes = first.run_len;
        if !self.next_joins(first.key.as_ref(), records, bytes) {
            return Some(Items::One(first));
        }
        let key = first.key.clone();
        let mut batch = vec![first];
        while self.next_joins(key.as_ref(), records, bytes) {
            let Some(next) = self.pop_waiting() else { break };
            records += next.records();
            bytes += next.run_len;
            batch.push(next);
        }
        Some(Items::Many(batch))
    }

    /// The next waiting item may share the frame of `records` records and `bytes` bytes that was begun for `key`.
    fn next_joins(&self, key: Option<&Bytes>, records: usize, bytes: usize) -> bool {
        let Some(next) = self.waiting.front() else { return false };
        let batch = &self.rules.batch;
        let fits = records + next.records() <= batch.max_records && bytes + next.run_len <= batch.max_bytes;
        let same = next.key.as_ref() == key;
        fits && (same || (self.grant.merge_keys && next.key.is_some() && key.is_some()))
    }

    fn refused(
        &mut self,
        request: RequestId,
        items: Items,
        refusal: Refusal,
        now: Instant,
        random: fn() -> u64,
    ) {
        if refusal.retry == RetryClass::OutcomeUnknown {
            let cause = refusal.to_string();
            items.settle_failed(&PublishError::OutcomeUnknown { cause, refusal: Some(refusal) });
            return;
        }
        let first = items.as_slice().first();
        let young = first.is_some_and(|item| now < item.accepted + self.rules.retry_for);
        let returns = first.map_or(0, |item| item.returns);
        let identity = refusal.is(&ErrorCode::Unauthenticated) || refusal.is(&ErrorCode::Revoked);
        let elsewhere = [ErrorCode::NotLeader, ErrorCode::ShardUnavailable, ErrorCode::Draining];
        let again = if refusal.is(&ErrorCode::StaleWidth) {
            self.relook = true;
            returns < REROUTES_MAX
        } else if identity {
            self.relook = true;
            returns == 0
        } else if refusal.is(&ErrorCode::NotFound) {
            false
        } else {
            self.relook |= elsewhere.iter().any(|code| refusal.is(code));
            refusal.is_retryable() && young
        };
        if !again {
            items.settle_failed(&PublishError::Refused(refusal));
            return;
        }
        // The first look at an outdated route costs no wait; a broker that learns it later than others does.
        let at_once = identity || (refusal.is(&ErrorCode::StaleWidth) && returns == 0);
        if !at_once {
            let delay = self.backoff.next_delay(random()).max(refusal.retry_after.unwrap_or_default());
            self.resume_at = Some(self.resume_at.map_or(now + delay, |at| at.max(now + delay)));
        }
        self.returned.push((request, items));
    }

    /// Once every flight has ended, what came back goes to the front, in its old order.
    fn requeue_if_landed(&mut self) {
        if !self.flights.is_empty() || self.returned.is_empty() {
            return;
        }
        let mut returned = std::mem::take(&mut self.returned);
        returned.sort_by_key(|(request, _)| *request);
        for (_, items) in returned.into_iter().rev() {
            for mut item in items.into_vec().into_iter().rev() {
                item.returns += u32::from(self.relook);
                self.count_in(&item);
                self.waiting.push_front(item);
            }
        }
    }

    fn fail_waiting(&mut self, error: &PublishError, doomed: impl Fn(&Item) -> bool) {
        for item in std::mem::take(&mut self.waiting) {
            if doomed(&item) {
                self.count_out(&item);
                self.lost += u64::from(!self.rules.acked);
                item.settle(Err(error.clone()));
            } else {
                self.waiting.push_back(item);
            }
        }
    }

    fn pop_waiting(&mut self) -> Option<Item> {
        let item = self.waiting.pop_front()?;
        self.count_out(&item);
        Some(item)
    }

    fn count_in(&mut self, item: &Item) {
        self.waiting_bytes += item.run_len;
        self.waiting_records += item.records();
    }

    fn count_out(&mut self, item: &Item) {
        self.waiting_bytes -= item.run_len;
        self.waiting_records -= item.records();
    }
}

#[cfg(test)]
mod tests;
