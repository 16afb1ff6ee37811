//! Producers that number single writes. Scope: per handle of the application.
//! Owns: the producers that are not in use, each with its next number on every shard.
//! Invariants: a producer has at most one write on its way, so its numbers have no gap; one whose write has an unknown
//! outcome is never used again; the one that was used last is used first, so a shard has to remember few.
//! Not here: what is written (`counter`, `state`).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use felix_wire::client::{Message, RefusalReason};
use felix_wire::features::Features;
use felix_wire::id::{ProducerId, RequestId, Sequence};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

use crate::backoff::jitter_seed;
use crate::connection::Deadlines;
use crate::error::Error;
use crate::limits::{NEW_PRODUCERS_MAX, NUMBERED_WRITES_MAX, RETRY_IDEMPOTENT};
use crate::request::error::RequestError;
use crate::request::exchange::{Read, Said};
use crate::request::pipe::NoAnswer;
use crate::request::place::{Ask, Outcome, Place};
use crate::request::plan::{Next, Plan, Repeat};
use crate::topology::fetch_producer;

/// One producer.
#[derive(Debug)]
struct Producer {
    id: ProducerId,
    next: HashMap<u32, u64>,
}

impl Producer {
    fn number(&self, shard: u32) -> (ProducerId, Sequence) {
        (self.id, Sequence(self.next.get(&shard).copied().unwrap_or(0)))
    }
}

/// What a broker made of a numbered write.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Written<T> {
    Answer(T),
    /// Nothing was written: the shard's next offset is another one.
    OffsetMismatch(felix_wire::id::Offset),
}

/// See the module.
pub(crate) struct Numbers {
    idle: Mutex<Vec<Producer>>,
    gate: Arc<Semaphore>,
}

impl Default for Numbers {
    fn default() -> Self {
        Self { idle: Mutex::default(), gate: Arc::new(Semaphore::new(NUMBERED_WRITES_MAX)) }
    }
}

impl Numbers {
    /// Makes a write under a number, when the broker takes such, else without. `message` makes it for both.
    ///
    /// # Errors
    /// As [`RequestError`] says.
    pub(crate) async fn write<'m, T: Send + 'static>(
        &self,
        place: &Place,
        ask: Ask,
        message: impl Fn(RequestId, Option<(ProducerId, Sequence)>) -> Message<'m> + Sync,
        read: Read<T>,
    ) -> Result<Written<T>, RequestError> {
        let served = Features::NUMBERED_WRITES.union(Features::IDEMPOTENT_PRODUCER);
        if !place.features().await?.contains(served) {
            let ask = Ask { repeat: Repeat::Twice, ..ask };
            let outcome = place.ask(ask, |id| message(id, None), read).await?;
            return settled(outcome, ask.what);
        }
        let waited = RETRY_IDEMPOTENT;
        let late = RequestError::Unavailable(Error::TimedOut { what: ask.what, waited });
        let _turn = timeout(waited, self.gate.acquire()).await.map_err(|_| late)?;
        let ask = Ask { needs: ask.needs.union(served), repeat: Repeat::Same, ..ask };
        for _producer in 0..NEW_PRODUCERS_MAX {
            let mut producer = self.take(place).await?;
            let number = producer.number(ask.shard);
            // Dropped with its number when the caller goes away meanwhile.
            let outcome = match place.ask(ask, |id| message(id, Some(number)), read).await {
                Ok(outcome) => outcome,
                Err(error) => {
                    if !error.is_outcome_unknown() {
                        self.put_back(producer);
                    }
                    return Err(error);
                }
            };
            match &outcome.said {
                Said::Answer(_) => {
                    producer.next.insert(ask.shard, number.1.get() + 1);
                    self.put_back(producer);
                }
                Said::Number(RefusalReason::OffsetMismatch { .. }) => self.put_back(producer),
                // Nothing of this write was taken, and the shard does not know the producer as it is: it had too many
                // others, or it serves an older state.
                Said::Number(_) if !outcome.maybe_applied => continue,
                _ => {}
            }
            return settled(outcome, ask.what);
        }
        Err(RequestError::Refused(crate::connection::refusal(
            None,
            felix_wire::error_code::RetryClass::Fatal,
            "the shard takes the number of no producer",
            None,
        )))
    }

    async fn take(&self, place: &Place) -> Result<Producer, RequestError> {
        if let Some(producer) = self.lock().pop() {
            return Ok(producer);
        }
        let deadlines: Deadlines = place.shared().identity.deadlines;
        let mut plan = Plan::new(Repeat::Read, Instant::now(), &deadlines);
        loop {
            let asked = async {
                let link = place.shared().entry().await?;
                fetch_producer(&link).await
            };
            let error = match asked.await {
                Ok(id) => return Ok(Producer { id, next: HashMap::new() }),
                Err(error) => error,
            };
            match plan.unanswered(NoAnswer { error, sent: false }, Instant::now(), jitter_seed()) {
                Next::Again { after, .. } => tokio::time::sleep(after).await,
                Next::Fail(error) => return Err(error),
                Next::Ask(_) => {}
            }
        }
    }

    fn put_back(&self, producer: Producer) {
        self.lock().push(producer);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Producer>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn settled<T>(outcome: Outcome<T>, what: &str) -> Result<Written<T>, RequestError> {
    match outcome.said {
        Said::Answer(answer) => Ok(Written::Answer(answer)),
        Said::Number(RefusalReason::OffsetMismatch { tail }) if !outcome.maybe_applied => {
            Ok(Written::OffsetMismatch(tail))
        }
        Said::Number(reason) => Err(RequestError::OutcomeUnknown {
            cause: format!("an earlier {what} has no answer, and a copy of it was refused: {reason:?}"),
            refusal: None,
        }),
        Said::Elsewhere(_) | Said::Refused(_) => Err(RequestError::OutcomeUnknown {
            cause: format!("{what} was not followed to its end"),
            refusal: None,
        }),
    }
}
