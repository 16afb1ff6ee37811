//! The task that polls one shard. Scope: per shard of a consumer, and per lease when it has leases.
//! Owns: one poll at a time.
//! Invariants: a poll asks for no more than there is room for; it goes on through everything that may pass.
//! Not here: which shards are polled (`deliveries`, `keeper`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use felix_wire::error_code::{ErrorCode, RetryClass};
use felix_wire::id::LeaseId;
use felix_wire::limits::GROUP_POLL_RECORDS_MAX;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::Instant;

use crate::backoff::{Backoff, jitter_seed};
use crate::connection::Deadlines;
use crate::error::Error;
use crate::group::deliveries::PollError;
use crate::group::{Delivery, Group, Poll};
use crate::limits::{IDENTITY_PATIENCE, KNOWN_BEFORE_FACTOR};
use crate::request::RequestError;

/// A record and its place among those that are claimed.
pub(crate) struct Held {
    pub(crate) delivery: Delivery,
    pub(crate) place: OwnedSemaphorePermit,
    under: Option<Under>,
}

impl Held {
    /// Whether the lease under which it was claimed has ended: somebody else gets it.
    pub(crate) fn is_lost(&self) -> bool {
        self.under.as_ref().is_some_and(Under::has_ended)
    }
}

/// The lease under which a shard is polled.
#[derive(Debug, Clone)]
pub(crate) struct Under {
    pub(crate) lease: LeaseId,
    ended: Arc<AtomicBool>,
}

impl Under {
    pub(crate) fn new(lease: LeaseId) -> Self {
        Self { lease, ended: Arc::default() }
    }

    /// What was claimed under it and not handed out is nobody's here.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Release);
    }

    fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }
}

/// Why a poller polls no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// It was told to, or nobody takes records any more.
    Stopped,
    /// The shard has seen a later lease.
    Stale,
    /// For good; what happened was handed on.
    Failed,
}

/// See the module.
pub(crate) struct Poller {
    pub(crate) group: Group,
    pub(crate) shard: u32,
    pub(crate) under: Option<Under>,
    pub(crate) wait: Duration,
    /// Once, with the first poll that is answered.
    pub(crate) reclaim: bool,
    pub(crate) room: Arc<Semaphore>,
    pub(crate) queue: mpsc::Sender<Result<Held, PollError>>,
    pub(crate) stopped: watch::Receiver<bool>,
}

/// How long what fails so is asked all the same; `None`: for ever.
pub(crate) fn patience(error: &RequestError, deadlines: &Deadlines) -> Option<Duration> {
    let no_token = matches!(error, RequestError::Unavailable(Error::Token { .. }));
    if no_token || error.code() == Some(&ErrorCode::Unauthenticated) {
        // Tokens are renewed; the new one may be late.
        return Some(IDENTITY_PATIENCE);
    }
    if error.is_not_found() {
        // A broker that has just been started reads the catalog first.
        return Some(deadlines.not_found * KNOWN_BEFORE_FACTOR);
    }
    (error.retry_class() == RetryClass::Fatal).then_some(Duration::ZERO)
}

impl Poller {
    pub(crate) async fn run(mut self) -> Ended {
        let mut backoff = Backoff::default();
        let mut failing: Option<Instant> = None;
        let mut stopped = self.stopped.clone();
        loop {
            let room = tokio::select! {
                biased;
                // As good as a stop when the sender is gone.
                _ = stopped.wait_for(|stopped| *stopped) => return Ended::Stopped,
                room = self.room.clone().acquire_owned() => room,
            };
            let Ok(mut places) = room else { return Ended::Stopped };
            while places.num_permits() < GROUP_POLL_RECORDS_MAX as usize
                && let Ok(more) = self.room.clone().try_acquire_owned()
            {
                places.merge(more);
            }
            let max_records = u32::try_from(places.num_permits()).unwrap_or(1);
            let poll = Poll { max_records, wait: self.wait, reclaim: self.reclaim };
            let lease = self.under.as_ref().map(|under| under.lease);
            let error = match self.group.poll_under(lease, self.shard, poll).await {
                Ok(records) => {
                    self.reclaim = false;
                    failing = None;
                    backoff.reset();
                    if self.hand_on(records, &mut places).await.is_err() {
                        return Ended::Stopped;
                    }
                    continue;
                }
                Err(error) => error,
            };
            drop(places);
            if lease.is_some() && error.code() == Some(&ErrorCode::StaleClaim) {
                return Ended::Stale;
            }
            let since = *failing.get_or_insert_with(Instant::now);
            let patience = patience(&error, &self.group.place.shared().identity.deadlines);
            if patience.is_some_and(|patience| since.elapsed() >= patience) {
                let shard = self.shard;
                let error = Box::new(error);
                drop(self.queue.send(Err(PollError { shard, error })).await);
                return Ended::Failed;
            }
            let wait = error.refusal().and_then(|refusal| refusal.retry_after).unwrap_or_default();
            tokio::select! {
                () = tokio::time::sleep(backoff.next_delay(jitter_seed()).max(wait)) => {}
                _ = stopped.wait_for(|stopped| *stopped) => return Ended::Stopped,
            }
        }
    }

    /// # Errors
    /// When nobody takes records any more.
    async fn hand_on(&self, records: Vec<Delivery>, places: &mut OwnedSemaphorePermit) -> Result<(), ()> {
        for delivery in records {
            // A broker that answers more than was asked for gets no more room by it.
            let place = match places.split(1) {
                Some(place) => place,
                None => self.room.clone().acquire_owned().await.map_err(drop)?,
            };
            let held = Held { delivery, place, under: self.under.clone() };
            self.queue.send(Ok(held)).await.map_err(drop)?;
        }
        Ok(())
    }
}
