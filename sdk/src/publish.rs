//! Publishing to one stream. Scope: per publisher.
//! Owns: the publisher's options, its byte budget, and the receipts it hands out.
//! Invariants: a send is accepted only with its part of the budget; records of one shard keep their order; an
//! accepted send is settled exactly once, or its receipt reads as an unknown outcome.
//! Not here: what happens per shard (`lane`, `driver`) and which shards there are (`table`).

mod answer;
mod driver;
mod encode;
mod inbox;
mod item;
mod lane;
mod numbers;
mod table;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use felix_wire::id::Offset;
use felix_wire::limits::BATCH_RECORDS_MAX;
use tokio::sync::{Semaphore, TryAcquireError, oneshot};
use tokio::time::Instant;

use crate::client::Shared;
use crate::error::{Error, PublishError, TryPublishError};
use crate::limits;
use crate::name::StreamName;
use item::{Item, Payloads};
use table::{Core, Rejected};

/// Which publishes are answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AckMode {
    /// None: a receipt is ready at once and [`Publisher::flush`] tells whether all has arrived.
    None,
    /// Every frame, asked for per message.
    PerMessage,
    /// Every frame, asked for per batch.
    #[default]
    PerBatch,
}

/// How sends are merged into frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchLimits {
    /// Most records of one frame, at most 65,536. One send is never split.
    pub max_records: usize,
    /// Most bytes of one frame, counted with 4 bytes per record, at most what the protocol allows (16 MiB less names and
    /// key); a larger send goes alone.
    pub max_bytes: usize,
    /// How long a frame that is not full waits for company. Zero: only what is waiting anyway is merged. A full
    /// frame never waits, and neither does one that cannot become fuller because the byte budget is used up.
    pub linger: Duration,
}

impl Default for BatchLimits {
    fn default() -> Self {
        Self {
            max_records: limits::BATCH_RECORDS_MAX,
            max_bytes: limits::BATCH_BYTES_MAX,
            linger: Duration::ZERO,
        }
    }
}

impl BatchLimits {
    /// Every send is a frame of its own.
    pub fn one_send_per_frame() -> Self {
        Self { max_records: 1, max_bytes: 0, linger: Duration::ZERO }
    }
}

/// Whether records are published by a numbered producer, which a broker takes once however often they are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Idempotence {
    /// On streams that are on disk, when the broker serves producers and publishes are answered; else not.
    #[default]
    Auto,
    /// Always; a broker or stream that cannot is an error.
    On,
    /// Never.
    Off,
}

#[derive(Debug, Clone)]
struct Options {
    ack: AckMode,
    budget_bytes: u32,
    in_flight_max: usize,
    batch: BatchLimits,
    retry_for: Duration,
    idempotence: Idempotence,
    retry_numbered_for: Duration,
}

impl Options {
    fn acked(&self) -> bool {
        self.ack != AckMode::None
    }
}

/// Options of a publisher.
#[must_use = "a builder does nothing until `open`"]
pub struct PublisherBuilder {
    shared: Arc<Shared>,
    stream: StreamName,
    options: Options,
}

impl PublisherBuilder {
    pub(crate) fn new(shared: Arc<Shared>, stream: StreamName) -> Self {
        let options = Options {
            ack: AckMode::default(),
            budget_bytes: limits::PUBLISH_BUDGET_BYTES,
            in_flight_max: limits::PUBLISH_IN_FLIGHT_MAX,
            batch: BatchLimits::default(),
            retry_for: limits::RETRY_REFUSED,
            idempotence: Idempotence::default(),
            retry_numbered_for: limits::RETRY_IDEMPOTENT,
        };
        Self { shared, stream, options }
    }

    /// Which publishes are answered; [`AckMode::PerBatch`] by default.
    pub fn ack(mut self, ack: AckMode) -> Self {
        self.options.ack = ack;
        self
    }

    /// Bytes that may be accepted and not settled, 4 MiB by default, at least 1. A larger send waits until it is alone.
    pub fn budget_bytes(mut self, bytes: u32) -> Self {
        self.options.budget_bytes = bytes.max(1);
        self
    }

    /// Frames per shard that may be unanswered, at least 1; the broker's own window bounds them too.
    pub fn max_in_flight(mut self, frames: usize) -> Self {
        self.options.in_flight_max = frames.max(1);
        self
    }

    /// How sends are merged into frames. Limits above those of the protocol are taken as these.
    pub fn batch(mut self, batch: BatchLimits) -> Self {
        self.options.batch = BatchLimits {
            max_records: batch.max_records.min(BATCH_RECORDS_MAX as usize),
            max_bytes: batch.max_bytes.min(limits::FRAME_RUN_BYTES_MAX),
            linger: batch.linger,
        };
        self
    }

    /// How long after acceptance a send that was refused with nothing written is sent again, 5 s by default. While
    /// later sends of the same shard were taken in between, the order of the repeated one is lost. For publishes that are
    /// not idempotent.
    pub fn retry_refused(mut self, for_at_most: Duration) -> Self {
        self.options.retry_for = for_at_most;
        self
    }

    /// Whether publishes are idempotent; [`Idempotence::Auto`] by default. Such a send is sent again after anything but
    /// a final answer, also when an earlier copy may have been written: the shard stores it once, and its order is kept.
    pub fn idempotent(mut self, idempotence: Idempotence) -> Self {
        self.options.idempotence = idempotence;
        self
    }

    /// How long after acceptance an idempotent send is tried in all, 60 s by default; the last attempt may take a second
    /// longer. What may have been written by then has an unknown outcome, and what was sent after it to the same shard
    /// without an answer too; later sends go on with a new producer.
    pub fn retry_idempotent(mut self, for_at_most: Duration) -> Self {
        self.options.retry_numbered_for = for_at_most;
        self
    }

    /// Asks for the stream's shards and owners.
    ///
    /// # Errors
    /// [`PublishError::Unavailable`] when no broker can be asked, the stream is not known, or idempotent publishes are
    /// wanted without answers.
    pub async fn open(self) -> Result<Publisher, PublishError> {
        if self.options.idempotence == Idempotence::On && !self.options.acked() {
            return Err(Error::config("idempotent publishes are always answered").into());
        }
        let name = self.shared.resolve(self.stream).map_err(PublishError::Unavailable)?;
        let core = Core::open(self.shared, name, self.options).await?;
        let budget = Arc::new(Semaphore::new(core.options().budget_bytes as usize));
        let handle = Arc::new(CloseOnDrop(core.clone()));
        Ok(Publisher { core, budget, _handle: handle })
    }
}

/// Publishes to one stream. Clones share everything. When the last clone is dropped, what was accepted is still
/// sent while the runtime lives; `close` waits for it.
#[derive(Clone)]
pub struct Publisher {
    core: Arc<Core>,
    budget: Arc<Semaphore>,
    _handle: Arc<CloseOnDrop>,
}

impl Publisher {
    /// Sends one record to the shard of `key` (shard 0 without one). Waits for room in the byte budget.
    ///
    /// # Errors
    /// What can never be sent, and [`PublishError::Closed`]. Everything else is the receipt's.
    pub async fn send(
        &self,
        record: impl Into<Bytes>,
        key: impl Into<Option<Bytes>>,
    ) -> Result<Receipt, PublishError> {
        self.send_payloads(Payloads::One(record.into()), key.into()).await
    }

    /// Sends records as one batch that is taken or refused whole, to the shard of `key`. 1 to 65,536 records.
    ///
    /// # Errors
    /// As [`Publisher::send`].
    pub async fn send_batch(
        &self,
        records: Vec<Bytes>,
        key: impl Into<Option<Bytes>>,
    ) -> Result<Receipt, PublishError> {
        self.send_payloads(Payloads::Many(records), key.into()).await
    }

    /// Sends one record if there is room now.
    ///
    /// # Errors
    /// [`TryPublishError::Full`] when there is none, else as [`Publisher::send`].
    pub fn try_publish(
        &self,
        record: impl Into<Bytes>,
        key: impl Into<Option<Bytes>>,
    ) -> Result<Receipt, TryPublishError> {
        self.try_payloads(Payloads::One(record.into()), key.into())
    }

    /// Sends a batch if there is room now.
    ///
    /// # Errors
    /// As [`Publisher::try_publish`].
    pub fn try_publish_batch(
        &self,
        records: Vec<Bytes>,
        key: impl Into<Option<Bytes>>,
    ) -> Result<Receipt, TryPublishError> {
        self.try_payloads(Payloads::Many(records), key.into())
    }

    /// Waits until everything accepted before is settled: answered, or for [`AckMode::None`] confirmed by the
    /// transport and by the broker's end of each stream.
    ///
    /// # Errors
    /// [`PublishError::MayBeLost`] when unacknowledged frames may not have arrived since the last flush;
    /// [`PublishError::Closed`] when the runtime is going away. Refused sends are told by their receipts.
    pub async fn flush(&self) -> Result<(), PublishError> {
        self.core.flush().await
    }

    /// Flushes, then ends the streams. Sends of other clones fail with [`PublishError::Closed`] from now on.
    ///
    /// # Errors
    /// As [`Publisher::flush`].
    pub async fn close(self) -> Result<(), PublishError> {
        let outcome = self.core.flush().await;
        self.core.close();
        outcome
    }

    /// The number of shards the publisher routes by now.
    pub fn shard_count(&self) -> u32 {
        self.core.shard_count()
    }

    /// A producer numbers what is sent, on one shard at least. False until the first send was on its way.
    pub fn is_idempotent(&self) -> bool {
        self.core.is_numbered()
    }

    /// See [`Core::hurry`].
    #[cfg(feature = "cli")]
    pub(crate) fn hurry(&self) -> Option<table::Hurry> {
        self.core.hurry()
    }

    async fn send_payloads(&self, payloads: Payloads, key: Option<Bytes>) -> Result<Receipt, PublishError> {
        payloads.check(key.as_ref(), self.core.names_len())?;
        let charge = self.charge(&payloads);
        let permit = match self.budget.clone().try_acquire_many_owned(charge) {
            Ok(permit) => permit,
            Err(TryAcquireError::Closed) => return Err(PublishError::Closed),
            Err(TryAcquireError::NoPermits) => {
                // Frames are as full as they get: nothing can be added before something is settled.
                let _hurry = self.core.hurry();
                self.budget.clone().acquire_many_owned(charge).await.map_err(|_| PublishError::Closed)?
            }
        };
        self.core.set_full(false);
        self.accept(payloads, key, permit)
    }

    fn try_payloads(&self, payloads: Payloads, key: Option<Bytes>) -> Result<Receipt, TryPublishError> {
        payloads.check(key.as_ref(), self.core.names_len())?;
        match self.budget.clone().try_acquire_many_owned(self.charge(&payloads)) {
            Ok(permit) => {
                self.core.set_full(false);
                Ok(self.accept(payloads, key, permit)?)
            }
            Err(TryAcquireError::NoPermits) => {
                self.core.set_full(true);
                Err(TryPublishError::Full)
            }
            Err(TryAcquireError::Closed) => Err(PublishError::Closed.into()),
        }
    }

    /// A send larger than the whole budget takes all of it: it waits until it is alone.
    fn charge(&self, payloads: &Payloads) -> u32 {
        let bytes = payloads.run_len() + limits::PUBLISH_ITEM_OVERHEAD_BYTES;
        u32::try_from(bytes).unwrap_or(u32::MAX).min(self.core.options().budget_bytes)
    }

    fn accept(
        &self,
        payloads: Payloads,
        key: Option<Bytes>,
        permit: tokio::sync::OwnedSemaphorePermit,
    ) -> Result<Receipt, PublishError> {
        let answered = self.core.options().acked();
        let (item, receipt) = Item::new(key, payloads, answered, Instant::now(), Some(permit));
        match self.core.push(item) {
            Ok(()) => Ok(receipt),
            Err(Rejected) => Err(PublishError::Closed),
        }
    }
}

/// Ends the lanes when the last publisher handle is gone.
struct CloseOnDrop(Arc<Core>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Where a send ended up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Published {
    /// The shard.
    pub shard: u32,
    /// The offset of the send's first record, when it was written to a log before the answer.
    pub offset: Option<Offset>,
}

/// What became of one accepted send. Dropping it changes nothing about the send. With [`AckMode::None`] it is
/// ready at once, with shard 0 and no offset, and says only that the send was accepted.
#[must_use = "the outcome of the send is here"]
#[derive(Debug)]
pub struct Receipt {
    wait: Option<oneshot::Receiver<Result<Published, PublishError>>>,
}

impl Receipt {
    fn waiting(wait: oneshot::Receiver<Result<Published, PublishError>>) -> Self {
        Self { wait: Some(wait) }
    }

    fn accepted() -> Self {
        Self { wait: None }
    }
}

impl Future for Receipt {
    type Output = Result<Published, PublishError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(wait) = &mut self.wait else {
            return Poll::Ready(Ok(Published { shard: 0, offset: None }));
        };
        let outcome = ready!(Pin::new(wait).poll(cx));
        Poll::Ready(outcome.unwrap_or_else(|_| Err(PublishError::unknown("the client was shut down"))))
    }
}

impl From<Error> for PublishError {
    fn from(error: Error) -> Self {
        Self::Unavailable(error)
    }
}
