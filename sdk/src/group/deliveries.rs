//! Records of a group as they come, from all shards. Scope: per consumer.
//! Owns: one poller per shard, and how many records may be claimed and not handed out.
//! Invariants: each shard has its own share, so a quiet one holds up no other; a poller goes on through everything that may
//! pass; records that nobody will be handed are given back when the stream is stopped.
//! Not here: settling (the application, or `worker`).

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll as Polled};
use std::time::Duration;

use felix_wire::error_code::{ErrorCode, RetryClass};
use felix_wire::limits::GROUP_POLL_RECORDS_MAX;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::backoff::{Backoff, jitter_seed};
use crate::connection::Deadlines;
use crate::error::Error;
use crate::group::{Delivery, Group, Poll};
use crate::limits::{GROUP_POLL_WAIT, GROUP_PREFETCH, IDENTITY_PATIENCE, KNOWN_BEFORE_FACTOR};
use crate::request::RequestError;

/// Polling a shard failed for good: it delivers nothing more.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("shard {shard}: {error}")]
pub struct PollError {
    /// The shard.
    pub shard: u32,
    /// What happened.
    pub error: Box<RequestError>,
}

/// Options of a consumer.
#[must_use = "a builder does nothing until `open`"]
pub struct DeliveriesBuilder {
    group: Group,
    prefetch: usize,
    wait: Duration,
    reclaim: bool,
    shards: Option<Vec<u32>>,
}

impl DeliveriesBuilder {
    pub(crate) fn new(group: Group) -> Self {
        let reclaim = group.member.is_some();
        Self { group, prefetch: GROUP_PREFETCH, wait: GROUP_POLL_WAIT, reclaim, shards: None }
    }

    /// Records that are claimed and not handed out, over all shards, at least one for each; 32 by default. Their claims
    /// run while they wait.
    pub fn prefetch(mut self, records: usize) -> Self {
        self.prefetch = records.max(1);
        self
    }

    /// How long one poll waits at the broker, 2 s by default. A stop waits for it.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// Whether the first poll of each shard takes over what a member of the same name holds from other connections. By
    /// default it does, when the group has a member's name.
    pub fn reclaim(mut self, reclaim: bool) -> Self {
        self.reclaim = reclaim;
        self
    }

    /// Only these shards; all by default.
    pub fn shards(mut self, shards: Vec<u32>) -> Self {
        self.shards = Some(shards);
        self
    }

    /// Begins to poll.
    ///
    /// # Errors
    /// When the stream is not known or cannot be asked for; [`RequestError::Invalid`] for no shard, or one that is not
    /// there.
    pub async fn open(self) -> Result<Deliveries, RequestError> {
        let count = self.group.shard_count().await?;
        let shards = self.shards.unwrap_or_else(|| (0..count).collect());
        if shards.is_empty() || shards.iter().any(|shard| *shard >= count) {
            return Err(RequestError::invalid(format!(
                "the shards are 0 to {}, and one is needed",
                count - 1
            )));
        }
        let share = (self.prefetch / shards.len()).clamp(1, GROUP_POLL_RECORDS_MAX as usize);
        let (queue, rx) = mpsc::channel(share * shards.len() + shards.len());
        let (stopping, stopped) = watch::channel(false);
        let mut pollers = JoinSet::new();
        for shard in shards {
            let poller = Poller {
                group: self.group.clone(),
                shard,
                wait: self.wait,
                reclaim: self.reclaim && self.group.member.is_some(),
                room: Arc::new(Semaphore::new(share)),
                queue: queue.clone(),
                stopped: stopped.clone(),
            };
            pollers.spawn(poller.run());
        }
        Ok(Deliveries { group: self.group, rx, pollers, stopping })
    }
}

/// A record and its place among those that are claimed.
pub(crate) struct Held {
    pub(crate) delivery: Delivery,
    pub(crate) place: OwnedSemaphorePermit,
}

/// Records as they come. Ends when every shard has ended or it was stopped. When it is dropped, what it has claimed and
/// not handed out is owed again after the visibility timeout; [`Deliveries::stop`] gives it back at once.
pub struct Deliveries {
    group: Group,
    rx: mpsc::Receiver<Result<Held, PollError>>,
    /// Ended with the stream.
    pollers: JoinSet<()>,
    stopping: watch::Sender<bool>,
}

impl Deliveries {
    /// The next record; `None` when every shard has ended. Can be cancelled without losing an item.
    pub async fn next(&mut self) -> Option<Result<Delivery, PollError>> {
        self.next_held().await.map(|item| item.map(|held| held.delivery))
    }

    /// The same; the record counts as claimed and not handed out until its place is dropped.
    pub(crate) async fn next_held(&mut self) -> Option<Result<Held, PollError>> {
        poll_fn(|cx| self.poll_held(cx)).await
    }

    /// Ends polling, waits for polls that are on their way, and gives back what was not handed out; what cannot be given
    /// back is owed again after the visibility timeout.
    pub async fn stop(mut self) {
        self.request_stop();
        // Given back only when no poll is left that could claim it again: that would cost an attempt.
        let mut held = Vec::new();
        while let Some(item) = self.next_held().await {
            held.extend(item);
        }
        for Held { delivery, place } in held {
            drop(self.group.nack(delivery.claim, None).await);
            drop(place);
        }
    }

    /// No poll begins any more; what comes of those on their way still comes.
    pub(crate) fn request_stop(&self) {
        self.stopping.send_replace(true);
    }

    fn poll_held(&mut self, cx: &mut Context<'_>) -> Polled<Option<Result<Held, PollError>>> {
        while let Polled::Ready(Some(_)) = self.pollers.poll_join_next(cx) {}
        self.rx.poll_recv(cx)
    }
}

impl futures_core::Stream for Deliveries {
    type Item = Result<Delivery, PollError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Polled<Option<Self::Item>> {
        self.poll_held(cx).map(|item| item.map(|item| item.map(|held| held.delivery)))
    }
}

/// How long a shard that fails so is polled all the same; `None`: for ever.
fn patience(error: &RequestError, deadlines: &Deadlines) -> Option<Duration> {
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

/// The task that polls one shard.
struct Poller {
    group: Group,
    shard: u32,
    wait: Duration,
    /// Once, with the first poll that is answered.
    reclaim: bool,
    room: Arc<Semaphore>,
    queue: mpsc::Sender<Result<Held, PollError>>,
    stopped: watch::Receiver<bool>,
}

impl Poller {
    async fn run(mut self) {
        let mut backoff = Backoff::default();
        let mut failing: Option<Instant> = None;
        let mut stopped = self.stopped.clone();
        loop {
            let room = tokio::select! {
                room = self.room.clone().acquire_owned() => room,
                // As good as a stop when the sender is gone.
                _ = stopped.wait_for(|stopped| *stopped) => return,
            };
            let Ok(mut places) = room else { return };
            while let Ok(more) = self.room.clone().try_acquire_owned() {
                places.merge(more);
            }
            let max_records = u32::try_from(places.num_permits()).unwrap_or(1);
            let poll = Poll { max_records, wait: self.wait, reclaim: self.reclaim };
            let error = match self.group.poll(self.shard, poll).await {
                Ok(records) => {
                    self.reclaim = false;
                    failing = None;
                    backoff.reset();
                    if self.hand_on(records, &mut places).await.is_err() {
                        return;
                    }
                    continue;
                }
                Err(error) => error,
            };
            drop(places);
            let since = *failing.get_or_insert_with(Instant::now);
            let patience = patience(&error, &self.group.place.shared().identity.deadlines);
            if patience.is_some_and(|patience| since.elapsed() >= patience) {
                let shard = self.shard;
                let error = Box::new(error);
                return drop(self.queue.send(Err(PollError { shard, error })).await);
            }
            let wait = error.refusal().and_then(|refusal| refusal.retry_after).unwrap_or_default();
            tokio::select! {
                () = tokio::time::sleep(backoff.next_delay(jitter_seed()).max(wait)) => {}
                _ = stopped.wait_for(|stopped| *stopped) => return,
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
            self.queue.send(Ok(Held { delivery, place })).await.map_err(drop)?;
        }
        Ok(())
    }
}
