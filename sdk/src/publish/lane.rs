//! What is accepted, on the wire and returned for one shard, without any I/O. Scope: per publisher and shard.
//! Owns: the queue of accepted items, the frames in flight, and the rule of what an answer means for them.
//! Invariants: items reach the wire in acceptance order; with ordered answers each answers the oldest flight;
//! an item is sent again only when it is certain that nothing of it was written or when its frame has a number, and then
//! before every later item that is still here; after a return nothing is sent until every flight has ended.
//! Not here: streams, timers, encoding (`driver`), numbers (`numbers`), and which shard an item belongs to (`table`).

mod returns;

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use felix_wire::id::{Offset, ProducerId, RequestId, Sequence};
use tokio::time::Instant;

use crate::backoff::Backoff;
use crate::error::{Error, ProducerEnd, PublishError, Refusal};
use crate::limits::ATTEMPT_MIN;
use crate::publish::BatchLimits;
use crate::publish::item::{Item, Items};
use crate::publish::numbers::{Batch, Numbering, Numbers};

/// The reason of a refusal that says the stream keeps no producers.
const NOT_DURABLE: &str = "not_durable";

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
    /// Numbered frames are sent again, whatever happened to them, until this long after acceptance.
    pub(crate) retry_numbered_for: Duration,
    /// How long a stream that was there may be unknown.
    pub(crate) unknown_for: Duration,
    /// Frames go without numbers when the stream turns out to keep no producers.
    pub(crate) may_fall_back: bool,
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
    Stored {
        offset: Option<Offset>,
    },
    Refused(Refusal),
    /// The frame's number was refused.
    Ended(ProducerEnd),
}

/// The broker broke the rules of client-protocol 10.4 or 10.8.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum UnexpectedAnswer {
    #[error("an answer to request {0} is not owed")]
    NotOwed(RequestId),
    #[error("the answer to request {0} contradicts an earlier one, or itself")]
    Contradiction(RequestId),
}

/// A frame to encode now.
#[derive(Debug)]
pub(crate) struct NewFrame<'a> {
    pub(crate) request: RequestId,
    pub(crate) producer: Option<(ProducerId, Sequence)>,
    pub(crate) items: &'a [Item],
}

#[derive(Debug)]
struct Flight {
    request: RequestId,
    /// `None` once answered out of order.
    batch: Option<Batch>,
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
    returned: Vec<(RequestId, Batch)>,
    numbers: Numbers,
    /// The numbers are of no use any more; these come instead once every flight has ended.
    numbers_after: Option<Numbers>,
    /// Frames never get numbers again.
    fell_back: bool,
    /// The broker ended the producer: nothing more is sent.
    ended: Option<ProducerEnd>,
    /// Since when the stream is not known any more.
    unknown_since: Option<Instant>,
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
            numbers: Numbers::Plain,
            numbers_after: None,
            fell_back: false,
            ended: None,
            unknown_since: None,
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
            if let Some(reason) = self.ended {
                item.settle(Err(PublishError::ProducerEnded { reason, outcome_unknown: false }));
                continue;
            }
            self.count_in(&item);
            self.waiting.push_back(item);
        }
    }

    /// Frames are numbered from now on, or not any more. What cannot keep its number and may have been written fails.
    /// Nothing may be in flight. A producer that is needed is given by [`Lane::start_producer`] next.
    pub(crate) fn set_numbered(&mut self, numbered: bool) {
        let numbered = numbered && !self.fell_back;
        match (&self.numbers, numbered) {
            (Numbers::Plain, true) => self.numbers = Numbers::Wanted,
            (Numbers::Plain, false) | (Numbers::Wanted | Numbers::Of(_), true) => {}
            (Numbers::Wanted | Numbers::Of(_), false) => {
                self.forsake(Numbers::Plain, "the broker does not serve producers any more");
            }
        }
    }

    /// A producer must be had before anything is sent.
    pub(crate) fn wants_producer(&self) -> bool {
        matches!(self.numbers, Numbers::Wanted)
    }

    /// Numbers frames from 0 with a producer that this shard has never seen.
    pub(crate) fn start_producer(&mut self, producer: ProducerId) {
        assert!(self.wants_producer(), "a producer keeps its numbers");
        self.numbers = Numbers::Of(Numbering::new(producer));
    }

    /// Until when what is held is tried, when there is a total bound on that.
    pub(crate) fn try_until(&self) -> Option<Instant> {
        let again = self.numbers.numbering().and_then(Numbering::first_again);
        let oldest = again.and_then(|batch| batch.items.accepted());
        let oldest = oldest.or_else(|| self.waiting.front().map(|item| item.accepted))?;
        (!matches!(self.numbers, Numbers::Plain)).then(|| oldest + self.rules.retry_numbered_for)
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
        let batch = self.next_batch()?;
        let request = RequestId(self.next_request);
        self.next_request += 1;
        if self.rules.acked {
            self.unanswered += 1;
        }
        let mut answer_due = now + self.rules.ack_timeout;
        if batch.number.is_some() {
            let last = batch.items.accepted().unwrap_or(now) + self.rules.retry_numbered_for;
            answer_due = answer_due.min(last.max(now + ATTEMPT_MIN));
        }
        let producer = self.numbers.numbering().map(Numbering::producer).zip(batch.number);
        self.flights.push_back(Flight { request, batch: Some(batch), end: u64::MAX, answer_due });
        let batch = self.flights.back().and_then(|flight| flight.batch.as_ref())?;
        Some(NewFrame { request, producer, items: batch.items.as_slice() })
    }

    /// A frame that must be sent again, else a new one.
    fn next_batch(&mut self) -> Option<Batch> {
        if let Some(again) = self.numbers.numbering_mut().and_then(Numbering::take_again) {
            return Some(again);
        }
        let items = self.take_batch()?;
        Some(Batch::new(items, self.numbers.numbering_mut().map(Numbering::take_number)))
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
        let flight = position
            .and_then(|position| self.flights.get(position))
            .filter(|flight| flight.end <= self.written && flight.batch.is_some())
            .ok_or(UnexpectedAnswer::NotOwed(request))?;
        if flight.batch.as_ref().is_some_and(|batch| self.contradicts(batch, &answer)) {
            return Err(UnexpectedAnswer::Contradiction(request));
        }
        let Some(batch) = self.take_flight(request) else { return Err(UnexpectedAnswer::NotOwed(request)) };
        match answer {
            Answer::Stored { offset } => self.stored(batch, offset),
            Answer::Refused(refusal) => self.refused(request, batch, refusal, now, random),
            Answer::Ended(reason) => self.producer_ended(request, batch, reason),
        }
        self.requeue_if_landed();
        Ok(())
    }

    /// Nobody could say this truthfully.
    fn contradicts(&self, batch: &Batch, answer: &Answer) -> bool {
        let Some((numbering, number)) = self.numbers.numbering().zip(batch.number) else {
            return matches!(answer, Answer::Ended(_));
        };
        match answer {
            Answer::Stored { offset: Some(base) } => {
                numbering.is_out_of_order(number, *base, batch.items.records())
            }
            Answer::Ended(ProducerEnd::SequenceGap { expected }) => *expected >= number.get(),
            Answer::Stored { offset: None } | Answer::Ended(_) | Answer::Refused(_) => false,
        }
    }

    /// The batch of a flight that is answered now.
    fn take_flight(&mut self, request: RequestId) -> Option<Batch> {
        let position = self.flights.binary_search_by_key(&request, |flight| flight.request).ok()?;
        let batch = self.flights.get_mut(position)?.batch.take()?;
        self.unanswered -= 1;
        while self.flights.front().is_some_and(|flight| flight.batch.is_none()) {
            self.flights.pop_front();
        }
        Some(batch)
    }

    fn stored(&mut self, batch: Batch, offset: Option<Offset>) {
        self.backoff.reset();
        self.unknown_since = None;
        if let Some(((numbering, number), base)) = self.numbers.numbering_mut().zip(batch.number).zip(offset)
        {
            numbering.stored(number, base, batch.items.records());
        }
        batch.items.settle_stored(self.rules.shard, offset);
    }

    /// The stream or its connection is gone, or the broker broke the protocol. What the transport had taken whole
    /// has an unknown outcome, the rest waits again.
    pub(crate) fn stream_lost(&mut self, cause: &str) {
        self.lost += std::mem::take(&mut self.unconfirmed);
        let unknown = PublishError::unknown(cause);
        for flight in std::mem::take(&mut self.flights) {
            let Some(mut batch) = flight.batch else { continue };
            let whole = flight.end <= self.written;
            if whole && batch.number.is_none() {
                batch.items.settle_failed(&unknown);
            } else {
                batch.maybe_written |= whole;
                self.returned.push((flight.request, batch));
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
        let retry_for = self.retry_for();
        self.give_up_again(&failure, |batch| {
            hopeless || batch.items.accepted().is_none_or(|accepted| now >= accepted + retry_for)
        });
        self.fail_waiting(&failure, |item| hopeless || now >= item.accepted + retry_for);
        self.resume_at = Some(now + self.backoff.next_delay(random));
    }

    /// The broker says the stream is not there: believed at once without numbers, else after a while.
    pub(crate) fn stream_gone(&mut self, now: Instant, error: &PublishError, random: u64) {
        let since = *self.unknown_since.get_or_insert(now);
        let believed = matches!(self.numbers, Numbers::Plain) || now >= since + self.rules.unknown_for;
        let retry_for = self.retry_for();
        self.give_up_again(error, |batch| {
            believed || batch.items.accepted().is_none_or(|accepted| now >= accepted + retry_for)
        });
        self.fail_waiting(error, |item| believed || now >= item.accepted + retry_for);
        self.resume_at = Some(now + self.backoff.next_delay(random)).filter(|_| self.has_waiting());
    }

    fn retry_for(&self) -> Duration {
        match self.numbers {
            Numbers::Plain => self.rules.retry_for,
            Numbers::Wanted | Numbers::Of(_) => self.rules.retry_numbered_for,
        }
    }

    /// Asks for a look at the route once the flights have ended.
    pub(crate) fn request_relook(&mut self) {
        self.relook = true;
    }

    /// A look at the route, or another producer, is due, and nothing is in flight any more.
    pub(crate) fn needs_relook(&self) -> bool {
        (self.relook || (self.wants_producer() && self.has_waiting())) && self.flights.is_empty()
    }

    pub(crate) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty() || self.numbers.has_again()
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
        self.forsake(Numbers::Plain, "the stream has other shards now, so it cannot be sent again");
        self.waiting_bytes = 0;
        self.waiting_records = 0;
        std::mem::take(&mut self.waiting)
    }

    /// The earliest time at which something is due without any input.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        let answer =
            if self.rules.acked { self.flights.front().map(|flight| flight.answer_due) } else { None };
        let send = self.waiting.front().filter(|_| self.is_lingering()).map(|item| self.linger_end(item));
        let resume = self.resume_at.filter(|_| self.has_waiting());
        [answer, resume.or(send)].into_iter().flatten().min()
    }

    /// True when the oldest answer is overdue: the stream must be given up.
    pub(crate) fn is_overdue(&self, now: Instant) -> bool {
        self.rules.acked && self.flights.front().is_some_and(|flight| flight.answer_due <= now)
    }

    fn may_send(&mut self, now: Instant) -> bool {
        if self.relook || !self.returned.is_empty() || self.numbers_after.is_some() || self.ended.is_some() {
            return false;
        }
        if self.resume_at.is_some_and(|at| at > now) || !self.has_number() {
            return false;
        }
        if !self.numbers.has_again() {
            let Some(oldest) = self.waiting.front() else { return false };
            if self.is_lingering() && self.linger_end(oldest) > now {
                return false;
            }
        }
        self.resume_at = None;
        !self.rules.acked || self.unanswered < self.grant.window
    }

    /// The next frame can have its number, if it needs one.
    fn has_number(&self) -> bool {
        match &self.numbers {
            Numbers::Plain => true,
            Numbers::Wanted => false,
            Numbers::Of(numbering) => {
                let oldest = self.flights.front().and_then(|flight| flight.batch.as_ref());
                numbering.has_room(oldest.and_then(|batch| batch.number))
            }
        }
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
