//! One stream of requests about a cache, its counters, a consumer group or commits of a simulated client. Scope: one per
//! stream of the plan, over its reconnections.
//! Invariants: every request is told to the histories before its bytes leave; answers come in the order of requests
//! (client-protocol 12, 14); a refusal is one that something explains.
//! Not here: what is asked and what an answer means (`cache`, `counter`, `group`, `commit`), whether it can be true
//! (`history`).

pub mod cache;
pub mod commit;
pub mod counter;
pub mod group;

use std::collections::VecDeque;
use std::time::Duration;

use bytes::BytesMut;
use felix_runtime::clock::Tick;
use felix_runtime::quic::{ConnKey, StreamId};
use felix_wire::client::Message;
use felix_wire::error_code::{ErrorCode, RetryClass};
use felix_wire::frame::Frame;
use felix_wire::id::RequestId;

use self::cache::CacheErrand;
use self::commit::CommitErrand;
use self::counter::CounterErrand;
use self::group::GroupErrand;
use super::ask_plan::{AskerPlan, ErrandPlan};
use super::check::RecordId;
use super::client::Surroundings;
use super::history::register::Outcome;

/// After a refusal, or when there is nothing to do, it tries again this much later.
const RETRY: Duration = Duration::from_millis(100);

/// What an answer is the answer to.
#[derive(Clone, Copy, Debug)]
pub enum Ticket {
    /// The operation with that number on that key.
    Key(u32, usize),
    Sum(u32, usize),
    Producer,
    Poll {
        call: Tick,
        holds: Duration,
        /// What its member held before may be given back: the number of that.
        reclaim: Option<usize>,
    },
    Ack {
        offset: u64,
        count: u32,
    },
    Nack,
    Commit(RecordId),
    State {
        key: u32,
        call: Tick,
    },
    /// The seek with that number.
    Seek(usize),
    DeadLetters,
    Describe,
}

/// A request that is not answered.
#[derive(Clone, Copy, Debug)]
struct Due {
    request_id: RequestId,
    ticket: Ticket,
}

/// What a refusal leaves of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    pub code: ErrorCode,
    /// Whether it happened is not known; else it did not.
    pub unknown: bool,
}

impl Refused {
    /// What that makes of an operation.
    pub fn outcome<T>(&self) -> Outcome<T> {
        if self.unknown { Outcome::Open } else { Outcome::Refused }
    }
}

#[derive(Debug)]
enum Errand {
    Cache(CacheErrand),
    Counter(CounterErrand),
    Group(GroupErrand),
    Commit(CommitErrand),
}

/// See the module.
#[derive(Debug)]
pub struct Asker {
    pub plan: AskerPlan,
    pub wire: Option<(ConnKey, StreamId)>,
    is_ready: bool,
    left: u32,
    next_request: u64,
    due: VecDeque<Due>,
    next_at: Tick,
    retry_at: Tick,
    errand: Errand,
    /// It was told why what it asks about is not served here, and nothing else since.
    stuck: Option<String>,
}

impl Asker {
    /// One that has no stream yet.
    pub fn new(plan: AskerPlan) -> Asker {
        let errand = match plan.errand {
            ErrandPlan::Cache(plan) => Errand::Cache(CacheErrand::new(plan)),
            ErrandPlan::Counter(plan) => Errand::Counter(CounterErrand::new(plan)),
            ErrandPlan::Group(plan) => Errand::Group(GroupErrand::new(plan)),
            ErrandPlan::Commit(plan) => Errand::Commit(CommitErrand::new(plan)),
        };
        Asker {
            left: plan.requests,
            retry_at: plan.begins,
            plan,
            wire: None,
            is_ready: false,
            next_request: 0,
            due: VecDeque::new(),
            next_at: Tick::ZERO,
            errand,
            stuck: None,
        }
    }

    /// Whether only another process of the broker can serve it.
    pub fn is_stuck(&self) -> bool {
        self.stuck.is_some() && self.wire.is_some() && self.is_busy()
    }

    /// Another process begins, which has told it nothing yet.
    pub fn unstick(&mut self) {
        self.stuck = None;
    }

    /// Whether it still wants something, now or later.
    pub fn is_busy(&self) -> bool {
        self.left > 0 || !self.due.is_empty() || self.owes()
    }

    /// Whether a request of it has no outcome yet and will be made again.
    fn owes(&self) -> bool {
        match &self.errand {
            Errand::Counter(counter) => counter.owes(),
            Errand::Cache(_) | Errand::Group(_) | Errand::Commit(_) => false,
        }
    }

    /// The next moment at which it does something by itself.
    pub fn next(&self, now: Tick) -> Option<Tick> {
        let wants = self.left > 0 || self.owes();
        let pace = Some(self.next_at).filter(|at| wants && *at > now);
        let retry = Some(self.retry_at).filter(|at| wants && self.wire.is_none() && *at > now);
        pace.into_iter().chain(retry).min()
    }

    /// Whether it wants a stream.
    pub fn wants_stream(&self, now: Tick) -> bool {
        self.wire.is_none() && (self.left > 0 || self.owes()) && now >= self.retry_at
    }

    /// Its stream authenticated.
    pub fn ready(&mut self) {
        (self.is_ready, self.next_request) = (true, 0);
        if let Errand::Group(group) = &mut self.errand {
            group.opened();
        }
    }

    /// Its stream may be asked to end: nothing is to come and nothing owed.
    pub fn wants_end(&mut self, around: &Surroundings<'_>) -> Option<(ConnKey, StreamId)> {
        if around.now >= around.heal_at {
            self.left = 0;
        }
        self.wire.filter(|_| self.is_ready && !self.is_busy())
    }

    /// The stream to ask on, if it wants to ask now.
    pub fn wants_request(&self, now: Tick) -> Option<(ConnKey, StreamId)> {
        let room = self.due.len() < self.plan.depth && now >= self.next_at;
        let wants = match &self.errand {
            Errand::Counter(counter) => counter.may_ask(self.left > 0),
            Errand::Cache(_) | Errand::Group(_) | Errand::Commit(_) => self.left > 0,
        };
        self.wire.filter(|_| self.is_ready && room && wants)
    }

    /// The next request.
    pub fn request(&mut self, around: &mut Surroundings<'_>) -> BytesMut {
        self.next_request += 1;
        let request_id = RequestId(self.next_request);
        let mut out = BytesMut::new();
        let before = self.owes();
        let ticket = match &mut self.errand {
            Errand::Cache(cache) => cache.request(request_id, around, &mut out),
            Errand::Counter(counter) => counter.request(request_id, around, &mut out),
            Errand::Group(group) => group.request(request_id, around, &mut out),
            Errand::Commit(commit) => commit.request(request_id, around, &mut out),
        };
        if !before && !matches!(ticket, Ticket::Producer) {
            self.left = self.left.saturating_sub(1);
        }
        self.due.push_back(Due { request_id, ticket });
        self.next_at = around.now + around.rng.duration(self.plan.pace * 2);
        around.trace.note(around.now, "ask", [request_id.0, out.len() as u64, kind_of(ticket)]);
        out
    }

    /// An answer.
    ///
    /// # Errors
    /// It is not the one that is due, or not one that this request can have.
    pub fn answer(&mut self, frame: &Frame, around: &mut Surroundings<'_>) -> Result<(), String> {
        let message = Message::decode(&frame.payload).map_err(|error| error.to_string())?;
        let Some(due) = self.due.pop_front() else {
            return Err(format!("an answer to nothing: {}", message.type_name()));
        };
        around.trace.note(
            around.now,
            "told",
            [due.request_id.0, frame.payload.len() as u64, kind_of(due.ticket)],
        );
        if let Message::Error(error) = &message {
            let code = error.code.clone().ok_or("a refusal without a code")?;
            let retry = error.retry.unwrap_or(RetryClass::Fatal);
            let told = format!("{due:?} was refused with {code} ({retry:?}): {}", error.message);
            let fatal = code == ErrorCode::Storage && retry == RetryClass::Fatal;
            self.stuck = fatal.then(|| error.message.clone().into_owned());
            return self.refused(due, (code, retry), around).map_err(|why| format!("{told}; {why}"));
        }
        self.stuck = None;
        let named = request_of(&message);
        if named != Some(due.request_id) {
            return Err(format!("{} {named:?} where {due:?} is due", message.type_name()));
        }
        match &mut self.errand {
            Errand::Cache(cache) => cache.answer(due.ticket, &message, around),
            Errand::Counter(counter) => counter.answer(due.ticket, &message, around),
            Errand::Commit(commit) => commit.answer(due.ticket, &message, around),
            Errand::Group(group) => {
                let goes_on = group.answer(due.ticket, &message, around)?;
                if !goes_on {
                    self.left = 0;
                }
                Ok(())
            }
        }
    }

    fn refused(
        &mut self,
        due: Due,
        (code, retry): (ErrorCode, RetryClass),
        around: &mut Surroundings<'_>,
    ) -> Result<(), String> {
        let excuses = around.excuses;
        let gone =
            self.cache().is_some_and(|cache| around.caches_gone[cache] && around.now >= around.heal_at);
        let gone = gone && code == ErrorCode::NotFound;
        let unknown = retry == RetryClass::OutcomeUnknown;
        let of_group = matches!(self.errand, Errand::Group(_));
        let adds = matches!(due.ticket, Ticket::Sum(..));
        let explained = match code {
            ErrorCode::Overloaded | ErrorCode::ShardUnavailable => !unknown,
            // Of a change that found no room and is written when there is some.
            ErrorCode::Unacknowledged if unknown => excuses.unsettled || excuses.refused,
            ErrorCode::Storage | ErrorCode::LeadershipLost if unknown => excuses.unsettled,
            ErrorCode::Storage => excuses.refused || excuses.unreadable,
            ErrorCode::StaleClaim => of_group && !unknown,
            ErrorCode::NotFound => !unknown && self.cache().is_some_and(|cache| around.caches_deleted[cache]),
            ErrorCode::InvalidRequest => adds && !unknown,
            _ => false,
        };
        if !explained {
            return Err("nothing explains that".to_owned());
        }
        self.next_at = self.next_at.max(around.now + RETRY);
        let refused = Refused { code, unknown };
        match &mut self.errand {
            Errand::Cache(cache) => cache.refused(due.ticket, &refused, around),
            Errand::Counter(counter) => counter.refused(due.ticket, &refused, around),
            Errand::Group(group) => group.refused(due.ticket, &refused, around),
            Errand::Commit(commit) => commit.refused(due.ticket, &refused, around),
        }
        if self.plan.last && !matches!(self.errand, Errand::Group(_)) {
            // Everything is asked until it is told.
            self.left += 1;
        }
        if gone {
            self.left = 0;
        }
        Ok(())
    }

    /// The cache that it asks about.
    fn cache(&self) -> Option<usize> {
        match self.plan.errand {
            ErrandPlan::Cache(plan) => Some(plan.cache),
            ErrandPlan::Counter(plan) => Some(plan.cache),
            ErrandPlan::Group(_) | ErrandPlan::Commit(_) => None,
        }
    }

    /// Its stream or connection is gone: of what was not answered nobody knows anything.
    pub fn lost(&mut self, around: &mut Surroundings<'_>) {
        for due in std::mem::take(&mut self.due) {
            let refused = Refused { code: ErrorCode::Unacknowledged, unknown: true };
            match &mut self.errand {
                Errand::Cache(cache) => cache.refused(due.ticket, &refused, around),
                Errand::Counter(counter) => counter.refused(due.ticket, &refused, around),
                Errand::Group(group) => group.refused(due.ticket, &refused, around),
                Errand::Commit(commit) => commit.refused(due.ticket, &refused, around),
            }
            if self.plan.last && !matches!(self.errand, Errand::Group(_)) {
                self.left += 1;
            }
        }
        (self.wire, self.is_ready, self.stuck) = (None, false, None);
        self.retry_at = around.now + RETRY;
    }

    /// The broker ended its half of the stream.
    ///
    /// # Errors
    /// Nobody had asked it to.
    pub fn finished(&mut self, asked: bool) -> Result<(), String> {
        (self.wire, self.is_ready) = (None, false);
        if !asked || !self.due.is_empty() {
            return Err(format!("a stream of requests was ended with {:?} unanswered", self.due));
        }
        Ok(())
    }
}

fn kind_of(ticket: Ticket) -> u64 {
    match ticket {
        Ticket::Key(key, _) => 100 + u64::from(key),
        Ticket::Sum(key, _) => 200 + u64::from(key),
        Ticket::Producer => 300,
        Ticket::Poll { .. } => 301,
        Ticket::Ack { .. } => 302,
        Ticket::Nack => 303,
        Ticket::DeadLetters => 304,
        Ticket::Describe => 305,
        Ticket::Commit(_) => 307,
        Ticket::State { .. } => 308,
        Ticket::Seek(_) => 306,
    }
}

/// The request that an answer names.
fn request_of(message: &Message<'_>) -> Option<RequestId> {
    Some(match message {
        Message::CacheValue(m) => m.request_id?,
        Message::CacheOk(m) => m.request_id,
        Message::CommitOk(m) => m.request_id,
        Message::StateValue(m) => m.request_id,
        Message::CacheConditionResult(m) => m.request_id,
        Message::CounterValue(m) => m.request_id,
        Message::PublishRefused(m) => m.request_id,
        Message::ProducerInitOk(m) => m.request_id,
        Message::GroupRecords(m) => m.request_id,
        Message::GroupDeadLetterList(m) => m.request_id,
        Message::GroupInfo(m) => m.request_id,
        Message::GroupPosition(m) => m.request_id,
        _ => return None,
    })
}
