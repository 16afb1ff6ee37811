//! Runs a handler for every record of a group. Scope: per worker.
//! Owns: the handlers that run, the records that wait for one, and the requests that hold and settle their claims.
//! Invariants: at most so many handlers run as was asked for; a claim is held as long as its record waits or its handler
//! runs; every handler's outcome is settled, unless the claim was lost; a handler that panics gives its record back.
//! Not here: polling (`deliveries`), when to extend (`roster`).

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use felix_wire::error_code::ErrorCode;
use felix_wire::features::Features;
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::Instant;

use crate::group::deliveries::{Deliveries, PollError};
use crate::group::poller::Held;
use crate::group::roster::Roster;
use crate::group::{Claim, Delivery, Group};
use crate::limits::{
    GROUP_POLL_WAIT, WORKER_CONCURRENCY, WORKER_GIVE_BACK, WORKER_STOP_PATIENCE, WORKER_VISIBILITY,
};
use crate::request::RequestError;

/// Requests that finish records which are unanswered at once; what is finished meanwhile goes with the next of them.
const ACKS_AT_ONCE: usize = 4;

/// What becomes of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settle {
    /// It is finished.
    Ack,
    /// It is handed out again, after the delay if there is one.
    Nack {
        /// How long it waits.
        delay: Option<Duration>,
    },
    /// It goes on the dead letter list.
    DeadLetter,
}

/// What a worker has done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerReport {
    /// Records that were acknowledged.
    pub acked: u64,
    /// Records that were given back, also because their handler panicked or the worker was stopped.
    pub nacked: u64,
    /// Records that became dead letters.
    pub dead_lettered: u64,
    /// Records whose claim was lost before their handler ended: somebody else gets them.
    pub lost: u64,
    /// Records whose settlement failed: they may be handed out again.
    pub unsettled: u64,
    /// Handlers that panicked.
    pub panicked: u64,
}

/// Options of a worker.
#[must_use = "a builder does nothing until `run`"]
pub struct WorkerBuilder {
    group: Group,
    concurrency: usize,
    wait: Duration,
    stop_patience: Duration,
    shards: Option<Vec<u32>>,
    leased: bool,
    term: Option<Duration>,
}

impl WorkerBuilder {
    pub(crate) fn new(group: Group) -> Self {
        Self {
            group,
            concurrency: WORKER_CONCURRENCY,
            wait: GROUP_POLL_WAIT,
            stop_patience: WORKER_STOP_PATIENCE,
            shards: None,
            leased: true,
            term: None,
        }
    }

    /// Handlers that run at the same time, at least 1; 16 by default. About as many records are claimed, and at least one
    /// of each shard.
    pub fn concurrency(mut self, handlers: usize) -> Self {
        self.concurrency = handlers.max(1);
        self
    }

    /// How long one poll waits at the broker, 2 s by default. A stop waits for it.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// How long a stop waits for handlers, 30 s by default; those that run longer are ended, and their records are given
    /// back, for which 10 s more are waited.
    pub fn stop_patience(mut self, patience: Duration) -> Self {
        self.stop_patience = patience;
        self
    }

    /// Whether the broker deals the shards among the workers of the group; see [`DeliveriesBuilder::leased`](crate::DeliveriesBuilder::leased).
    pub fn leased(mut self, leased: bool) -> Self {
        self.leased = leased;
        self
    }

    /// How long the shards of this worker stay its own when it is not heard of any more; see [`DeliveriesBuilder::term`](crate::DeliveriesBuilder::term).
    pub fn term(mut self, term: Duration) -> Self {
        self.term = Some(term);
        self
    }

    /// Only these shards, without leases; by default all, or those that it is dealt.
    pub fn shards(mut self, shards: Vec<u32>) -> Self {
        self.shards = Some(shards);
        self
    }

    /// Runs `handler` for every record until `stop` is ready, or no shard can be polled any more. Then no more records are
    /// claimed, those that wait are given back, and running handlers are waited for.
    ///
    /// # Errors
    /// When the stream is not known or cannot be asked for, and what ended the last shard.
    pub async fn run<H, F>(
        self,
        handler: H,
        stop: impl Future<Output = ()>,
    ) -> Result<WorkerReport, RequestError>
    where
        H: Fn(Delivery) -> F + Send + Sync + 'static,
        F: Future<Output = Settle> + Send + 'static,
    {
        let controlled = self.group.place.features().await?.contains(Features::GROUP_CLAIM_CONTROL);
        let visibility = self.group.visibility.unwrap_or(WORKER_VISIBILITY);
        let group = match controlled {
            true => self.group.visibility(visibility),
            false => self.group,
        };
        let mut builder = group.deliveries().prefetch(self.concurrency).wait(self.wait).leased(self.leased);
        if let Some(term) = self.term {
            builder = builder.term(term);
        }
        if let Some(shards) = self.shards {
            builder = builder.shards(shards);
        }
        let running = Running {
            deliveries: builder.open().await?,
            roster: Roster::new(visibility, !controlled),
            visibility,
            group,
            handler: Arc::new(handler),
            concurrency: self.concurrency,
            waiting: VecDeque::new(),
            stopping: false,
            handlers: JoinSet::new(),
            claims: HashMap::new(),
            requests: JoinSet::new(),
            finished: Vec::new(),
            acking: 0,
            report: WorkerReport::default(),
        };
        running.run(stop, self.stop_patience).await
    }
}

/// A request about a claim that was answered, or not.
enum Done {
    Extended { claim: Claim, asked: Instant, outcome: Result<Duration, RequestError> },
    Acked { outcomes: Vec<Result<(), RequestError>> },
    Settled { settle: Settle, outcome: Result<(), RequestError> },
}

struct Running<H> {
    group: Group,
    handler: Arc<H>,
    concurrency: usize,
    visibility: Duration,
    deliveries: Deliveries,
    roster: Roster,
    waiting: VecDeque<Held>,
    /// No handler begins any more.
    stopping: bool,
    handlers: JoinSet<Settle>,
    /// What each handler is about, and its place among those that are claimed.
    claims: HashMap<Id, (Claim, OwnedSemaphorePermit)>,
    requests: JoinSet<Done>,
    /// To be acked, each with its place, and how many requests that do so are unanswered.
    finished: Vec<(Claim, OwnedSemaphorePermit)>,
    acking: usize,
    report: WorkerReport,
}

impl<H, F> Running<H>
where
    H: Fn(Delivery) -> F + Send + Sync + 'static,
    F: Future<Output = Settle> + Send + 'static,
{
    async fn run(
        mut self,
        stop: impl Future<Output = ()>,
        patience: Duration,
    ) -> Result<WorkerReport, RequestError> {
        let mut stop = std::pin::pin!(stop);
        let mut failed = None;
        let mut polling = true;
        // Once it is set, nothing begins any more.
        let mut deadline: Option<Instant> = None;
        let mut forced = false;
        while polling || !self.waiting.is_empty() || !self.handlers.is_empty() || !self.requests.is_empty() {
            let now = Instant::now();
            if self.stopping && !polling {
                // No poll is left that could claim them again: that would cost an attempt.
                self.give_back_waiting();
            }
            self.extend(now);
            self.ack_finished();
            let due = self.roster.next_timeout();
            let wake = due.into_iter().chain(deadline).min();
            tokio::select! {
                item = self.deliveries.next_held(), if polling => match item {
                    Some(Ok(held)) => self.claimed(held),
                    Some(Err(PollError { error, .. })) => failed = Some(*error),
                    None => polling = false,
                },
                Some(ended) = self.handlers.join_next_with_id() => self.ended(ended),
                Some(done) = self.requests.join_next() => self.done(done),
                () = &mut stop, if deadline.is_none() => {
                    deadline = Some(now + patience);
                    self.stopping = true;
                    self.deliveries.request_stop();
                }
                () = sleep_until(wake), if wake.is_some() => {
                    if deadline.is_none_or(|deadline| deadline > Instant::now()) {
                        continue;
                    }
                    if std::mem::replace(&mut forced, true) {
                        // Nobody answers: what is not settled is handed out again when its claim lapses.
                        break;
                    }
                    // They come back as ended, and their records are given back.
                    self.handlers.abort_all();
                    deadline = Some(Instant::now() + WORKER_GIVE_BACK);
                }
            }
        }
        self.deliveries.leave().await;
        let unanswered = self.requests.len() + self.claims.len() + self.finished.len();
        self.report.unsettled += unanswered as u64;
        match failed {
            Some(error) if deadline.is_none() => Err(error),
            _ => Ok(self.report),
        }
    }

    fn claimed(&mut self, held: Held) {
        self.roster.claimed(held.delivery.claim, Instant::now());
        self.waiting.push_back(held);
        self.start();
    }

    fn start(&mut self) {
        while !self.stopping
            && self.handlers.len() < self.concurrency
            && let Some(Held { delivery, place, .. }) = self.waiting.pop_front()
        {
            let (handler, claim) = (self.handler.clone(), delivery.claim);
            let task = self.handlers.spawn(async move { handler(delivery).await });
            self.claims.insert(task.id(), (claim, place));
        }
    }

    fn ended(&mut self, ended: Result<(Id, Settle), JoinError>) {
        let (id, settle) = match ended {
            Ok(ended) => ended,
            Err(error) => {
                self.report.panicked += u64::from(error.is_panic());
                (error.id(), Settle::Nack { delay: None })
            }
        };
        if let Some((claim, place)) = self.claims.remove(&id) {
            self.settle(claim, settle, place);
        }
        self.start();
    }

    /// Records that no handler will get.
    fn give_back_waiting(&mut self) {
        for Held { delivery, place, .. } in std::mem::take(&mut self.waiting) {
            self.settle(delivery.claim, Settle::Nack { delay: None }, place);
        }
    }

    fn settle(&mut self, claim: Claim, settle: Settle, place: OwnedSemaphorePermit) {
        if !self.roster.take(claim) {
            self.report.lost += 1;
            return;
        }
        let group = self.group.clone();
        match settle {
            Settle::Ack => self.finished.push((claim, place)),
            Settle::Nack { delay } => {
                self.ask(settle, place, async move { group.nack(claim, delay).await });
            }
            Settle::DeadLetter => self.ask(settle, place, async move { group.bury(claim).await }),
        }
    }

    fn ask(
        &mut self,
        settle: Settle,
        place: OwnedSemaphorePermit,
        request: impl Future<Output = Result<(), RequestError>> + Send + 'static,
    ) {
        self.requests.spawn(async move {
            // Held until the broker knows, so that not more is claimed than was asked for.
            let _place = place;
            Done::Settled { settle, outcome: request.await }
        });
    }

    /// Acks what handlers have finished, together what came while earlier acks were under way.
    fn ack_finished(&mut self) {
        if self.finished.is_empty() || self.acking >= ACKS_AT_ONCE {
            return;
        }
        self.acking += 1;
        let (group, finished) = (self.group.clone(), std::mem::take(&mut self.finished));
        self.requests.spawn(async move {
            // Places are held as in `ask`.
            let (claims, _places): (Vec<Claim>, Vec<OwnedSemaphorePermit>) = finished.into_iter().unzip();
            Done::Acked { outcomes: group.ack_all(&claims).await }
        });
    }

    fn extend(&mut self, now: Instant) {
        for claim in self.roster.due(now) {
            let (group, by) = (self.group.clone(), self.visibility);
            self.requests.spawn(async move {
                let asked = Instant::now();
                Done::Extended { claim, asked, outcome: group.extend(claim, by).await }
            });
        }
    }

    fn done(&mut self, done: Result<Done, JoinError>) {
        // Requests do not panic; one that was ended has settled nothing.
        let Ok(done) = done else { return };
        match done {
            Done::Extended { claim, asked, outcome: Ok(visible) } => {
                self.roster.extended(claim, visible, asked);
            }
            Done::Extended { claim, outcome: Err(error), .. } => match error.code() {
                Some(ErrorCode::StaleClaim) => self.roster.lost(claim),
                _ => self.roster.not_extended(claim, Instant::now()),
            },
            Done::Acked { outcomes } => {
                self.acking -= 1;
                outcomes.into_iter().for_each(|outcome| self.settled(Settle::Ack, outcome));
            }
            Done::Settled { settle, outcome } => self.settled(settle, outcome),
        }
    }

    fn settled(&mut self, settle: Settle, outcome: Result<(), RequestError>) {
        match (outcome, settle) {
            (Ok(()), Settle::Ack) => self.report.acked += 1,
            (Ok(()), Settle::Nack { .. }) => self.report.nacked += 1,
            (Ok(()), Settle::DeadLetter) => self.report.dead_lettered += 1,
            (Err(error), _) => match error.code() {
                Some(ErrorCode::StaleClaim) => self.report.lost += 1,
                _ => self.report.unsettled += 1,
            },
        }
    }
}

async fn sleep_until(wake: Option<Instant>) {
    match wake {
        Some(wake) => tokio::time::sleep_until(wake).await,
        None => std::future::pending().await,
    }
}
