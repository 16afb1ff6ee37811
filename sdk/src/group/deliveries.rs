//! Records of a group as they come, from all shards, or from those that the broker leases to this consumer. Scope: per
//! consumer.
//! Owns: one poller per shard, and how many records may be claimed and not handed out.
//! Invariants: each shard has its own share, so a quiet one holds up no other; records that nobody will be handed are given
//! back when the stream is stopped; one whose lease has ended is not handed out.
//! Not here: one poller (`poller`), taking part in the group (`keeper`), settling (the application, or `worker`).

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll as Polled};
use std::time::Duration;

use felix_wire::features::Features;
use felix_wire::limits::{GROUP_POLL_RECORDS_MAX, GROUP_TERM_MS_MAX, GROUP_TERM_MS_MIN};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinSet;

use crate::group::keeper::Keeper;
use crate::group::poller::{Held, Poller};
use crate::group::{Delivery, Group};
use crate::limits::{GROUP_LEAVE_PATIENCE, GROUP_POLL_WAIT, GROUP_PREFETCH};
use crate::request::RequestError;

/// Polling a shard failed for good: it delivers nothing more. Of a consumer with leases it may also be that it cannot be a
/// member of the group any more, which ends all shards and is told of shard 0.
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
    leased: bool,
    term: Option<Duration>,
}

impl DeliveriesBuilder {
    pub(crate) fn new(group: Group) -> Self {
        let reclaim = group.member.is_some();
        let (prefetch, wait) = (GROUP_PREFETCH, GROUP_POLL_WAIT);
        Self { group, prefetch, wait, reclaim, shards: None, leased: true, term: None }
    }

    /// Records that are claimed and not handed out, over all shards, at least one for each; 32 by default. Their claims
    /// run while they wait.
    pub fn prefetch(mut self, records: usize) -> Self {
        self.prefetch = records.max(1);
        self
    }

    /// How long one poll waits at the broker, 2 s by default; with leases a quarter of their term at most. A stop waits for
    /// it.
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

    /// Whether the broker deals the shards of the stream among the consumers of the group, so that each is polled by one; by
    /// default it does where it can and there is more than one shard. A consumer without a member's name gets a random one.
    /// Otherwise every consumer polls all shards.
    pub fn leased(mut self, leased: bool) -> Self {
        self.leased = leased;
        self
    }

    /// How long the shards of this consumer stay its own when it is not heard of any more, 1 s to 10 minutes; 10 s by
    /// default. After that others get them.
    pub fn term(mut self, term: Duration) -> Self {
        self.term = Some(term);
        self
    }

    /// Only these shards, without leases; by default all, or those that it is dealt.
    pub fn shards(mut self, shards: Vec<u32>) -> Self {
        self.shards = Some(shards);
        self
    }

    /// Begins to poll.
    ///
    /// # Errors
    /// When the stream is not known or cannot be asked for; [`RequestError::Invalid`] for no shard, or one that is not
    /// there, and for a term out of its range.
    pub async fn open(self) -> Result<Deliveries, RequestError> {
        let terms = Duration::from_millis(GROUP_TERM_MS_MIN)..=Duration::from_millis(GROUP_TERM_MS_MAX);
        if self.term.is_some_and(|term| !terms.contains(&term)) {
            return Err(RequestError::invalid(format!(
                "a term has {GROUP_TERM_MS_MIN} to {GROUP_TERM_MS_MAX} milliseconds"
            )));
        }
        let count = self.group.shard_count().await?;
        if self.leased && self.shards.is_none() && count > 1 {
            let features = self.group.place.features().await?;
            if features.contains(Features::GROUP_LEASES) {
                return Ok(self.open_leased(count));
            }
        }
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
                under: None,
                wait: self.wait,
                reclaim: self.reclaim && self.group.member.is_some(),
                room: Arc::new(Semaphore::new(share)),
                queue: queue.clone(),
                stopped: stopped.clone(),
            };
            pollers.spawn(async move {
                poller.run().await;
            });
        }
        Ok(Deliveries { group: self.group, rx, pollers, stopping, leaving: None })
    }

    fn open_leased(self, shards: u32) -> Deliveries {
        // The share of each shard that is held, and what fails of each.
        let (queue, rx) = mpsc::channel(self.prefetch.max(shards as usize) + shards as usize);
        let (stopping, stopped) = watch::channel(false);
        let (leaving, left) = watch::channel(false);
        let keeper =
            Keeper::new(self.group.clone(), (self.prefetch, self.wait, self.term), queue, (stopped, left));
        let mut pollers = JoinSet::new();
        pollers.spawn(keeper.run());
        Deliveries { group: self.group, rx, pollers, stopping, leaving: Some(leaving) }
    }
}

/// Records as they come. Ends when every shard has ended or it was stopped. When it is dropped, what it has claimed and
/// not handed out is owed again after the visibility timeout; [`Deliveries::stop`] gives it back at once.
pub struct Deliveries {
    group: Group,
    rx: mpsc::Receiver<Result<Held, PollError>>,
    /// Ended with the stream.
    pollers: JoinSet<()>,
    stopping: watch::Sender<bool>,
    /// Of one with leases.
    leaving: Option<watch::Sender<bool>>,
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
    /// back is owed again after the visibility timeout. One with leases gives up its shards then, so records that were handed
    /// out are best settled before.
    pub async fn stop(mut self) {
        self.request_stop();
        // Given back only when no poll is left that could claim it again: that would cost an attempt.
        let mut held = Vec::new();
        while let Some(item) = self.next_held().await {
            held.extend(item);
        }
        for Held { delivery, place, .. } in held {
            drop(self.group.nack(delivery.claim, None).await);
            drop(place);
        }
        self.leave().await;
    }

    /// Gives up the shards that are leased to this consumer. When the broker does not hear of it, they are free after the
    /// term.
    pub(crate) async fn leave(&mut self) {
        let Some(leaving) = &self.leaving else { return };
        leaving.send_replace(true);
        let gone = async { while self.pollers.join_next().await.is_some() {} };
        drop(tokio::time::timeout(GROUP_LEAVE_PATIENCE, gone).await);
    }

    /// No poll begins any more; what comes of those on their way still comes.
    pub(crate) fn request_stop(&self) {
        self.stopping.send_replace(true);
    }

    fn poll_held(&mut self, cx: &mut Context<'_>) -> Polled<Option<Result<Held, PollError>>> {
        while let Polled::Ready(Some(_)) = self.pollers.poll_join_next(cx) {}
        loop {
            match self.rx.poll_recv(cx) {
                Polled::Ready(Some(Ok(held))) if held.is_lost() => drop(held),
                item => return item,
            }
        }
    }
}

impl futures_core::Stream for Deliveries {
    type Item = Result<Delivery, PollError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Polled<Option<Self::Item>> {
        self.poll_held(cx).map(|item| item.map(|item| item.map(|held| held.delivery)))
    }
}
