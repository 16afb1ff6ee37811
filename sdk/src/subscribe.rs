//! Subscribing to a stream, all shards of it or one. Scope: per subscription.
//! Owns: the queue between the shards' readers and the application, and the positions handed out.
//! Invariants: events of one shard come in order and none twice; a reader that is busy makes the readers stop, so
//! nothing is dropped here; what is missing is told by an item before what comes after it.
//! Not here: what a shard's reader does when it loses its broker (`reader`, `cursor`).

mod cursor;
mod progress;
mod reader;

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use felix_wire::client::{Event as WireEvent, EventBatch, ShardKind, StartPosition};
use felix_wire::error_code::ErrorCode;
use felix_wire::id::Offset;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinSet;

use crate::client::Shared;
use crate::error::{Error, SubscribeError};
use crate::limits::{OPENING_MAX, SUBSCRIPTION_BUFFER_BYTES, SUBSCRIPTION_BUFFER_FRAMES};
use crate::name::StreamName;
use crate::topology::known_route;
use cursor::Cursor;
pub use progress::{Item, Notice, ShardProgress};
use reader::{Outlet, Reader};

/// Where to begin.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Start {
    /// With what is published from now on.
    #[default]
    Latest,
    /// With the oldest record held.
    Earliest,
    /// With this offset, in every shard that is read.
    Offset(Offset),
    /// Where another subscription was; shards it does not name begin with the oldest record held.
    Positions(Positions),
}

/// Which shards to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Shards {
    /// All, merged.
    #[default]
    All,
    /// This one.
    One(u32),
}

/// The next record of one shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    /// Its offset.
    pub next: Offset,
    /// For a stream in memory: which life of it the offset belongs to.
    pub boot: Option<u64>,
}

/// The next record of every shard that has a known one. In-memory streams of brokers that do not number them have none.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Positions(pub BTreeMap<u32, Position>);

/// One record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The shard it belongs to.
    pub shard: u32,
    /// Its offset; `None` on an in-memory stream of a broker that does not number them.
    pub offset: Option<Offset>,
    /// Its bytes. They share memory with the other events of their frame.
    pub payload: Bytes,
    /// Offsets right before it that hold no record. They are no loss.
    pub skipped: u64,
}

/// Records of a shard that this subscription will not deliver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gap {
    /// The shard.
    pub shard: u32,
    /// The first missing offset, when known.
    pub from: Option<Offset>,
    /// The offset after the last missing one, when known. Without both ends nobody knows whether anything is missing.
    pub to: Option<Offset>,
}

/// Options of a subscription.
#[must_use = "a builder does nothing until `open`"]
pub struct SubscribeBuilder {
    shared: Arc<Shared>,
    stream: StreamName,
    start: Start,
    shards: Shards,
    buffer_bytes: u32,
}

impl SubscribeBuilder {
    pub(crate) fn new(shared: Arc<Shared>, stream: StreamName) -> Self {
        Self {
            shared,
            stream,
            start: Start::default(),
            shards: Shards::default(),
            buffer_bytes: SUBSCRIPTION_BUFFER_BYTES,
        }
    }

    /// Where to begin; [`Start::Latest`] by default.
    pub fn from(mut self, start: Start) -> Self {
        self.start = start;
        self
    }

    /// Which shards to read; all by default.
    pub fn shards(mut self, shards: Shards) -> Self {
        self.shards = shards;
        self
    }

    /// Event bytes held for a busy application, 4 MiB by default, at least 1; beyond it the streams are not read. One
    /// frame is always held, however large.
    pub fn buffer_bytes(mut self, bytes: u32) -> Self {
        self.buffer_bytes = bytes.max(1);
        self
    }

    /// Registers with every shard; the subscription exists only if all of them accept.
    ///
    /// # Errors
    /// [`SubscribeError::UnknownStream`], [`SubscribeError::UnknownShard`], [`SubscribeError::Cursor`] for an offset
    /// that is not there, else what the brokers said.
    pub async fn open(self) -> Result<Subscription, SubscribeError> {
        let name = self.shared.resolve(self.stream)?;
        let route = known_route(&self.shared, &name, ShardKind::Stream).await.map_err(|error| {
            if error.is_code(&ErrorCode::NotFound) {
                SubscribeError::UnknownStream
            } else {
                SubscribeError::Open(error)
            }
        })?;
        let width = route.shards.shards;
        let wanted = match self.shards {
            Shards::All => 0..width,
            Shards::One(shard) if shard < width => shard..shard + 1,
            Shards::One(shard) => return Err(SubscribeError::UnknownShard { shard, shards: width }),
        };
        let (queue, rx) = mpsc::channel(SUBSCRIPTION_BUFFER_FRAMES);
        let budget = Arc::new(Semaphore::new(self.buffer_bytes as usize));
        let mut opening = JoinSet::new();
        let gate = Arc::new(Semaphore::new(OPENING_MAX));
        for shard in wanted {
            let outlet =
                Outlet { queue: queue.clone(), budget: budget.clone(), budget_bytes: self.buffer_bytes };
            let cursor = cursor_for(shard, &self.start);
            let owner = route.owner(shard).cloned();
            let reader = Reader::new(self.shared.clone(), name.clone(), shard, cursor, outlet);
            let gate = gate.clone();
            opening.spawn(async move {
                let _turn = gate.acquire().await;
                reader.open(owner).await
            });
        }
        drop(queue);
        let mut progress = BTreeMap::new();
        let mut opened = Vec::new();
        while let Some(joined) = opening.join_next().await {
            let (reader, source) = joined.map_err(Error::lost)??;
            let (start, live) = source.offsets();
            progress
                .insert(reader.shard(), ShardProgress::new(reader.shard(), start, live, reader.position()));
            opened.push((reader, source));
        }
        let mut readers = JoinSet::new();
        for (reader, source) in opened {
            readers.spawn(reader.run(source));
        }
        Ok(Subscription { rx, readers, current: None, progress })
    }
}

fn cursor_for(shard: u32, start: &Start) -> Cursor {
    match start {
        Start::Latest => Cursor::new(shard, StartPosition::Latest),
        Start::Earliest => Cursor::new(shard, StartPosition::Earliest),
        Start::Offset(offset) => Cursor::new(shard, StartPosition::Offset(*offset)),
        Start::Positions(positions) => match positions.0.get(&shard) {
            Some(position) => Cursor::at(shard, *position),
            None => Cursor::new(shard, StartPosition::Earliest),
        },
    }
}

/// What a reader hands to the application.
struct Parcel {
    shard: u32,
    content: Content,
}

enum Content {
    Batch(Batch),
    Notice(Notice),
    Error(SubscribeError),
}

/// Events of one frame.
struct Batch {
    events: EventBatch,
    /// Events at its start that were handed on before.
    duplicates: u32,
    /// Where to go on after it.
    after: Option<Position>,
    /// Given back when all of them have been handed on.
    budget: OwnedSemaphorePermit,
}

/// The batch being handed on.
struct Current {
    shard: u32,
    events: std::vec::IntoIter<WireEvent>,
    skipped: u64,
    after: Option<Position>,
    _budget: OwnedSemaphorePermit,
}

/// Events of a stream as they come. Ends when every shard has ended; an error item names its shard and says whether
/// that shard goes on. Dropping it unsubscribes at once.
pub struct Subscription {
    rx: mpsc::Receiver<Parcel>,
    /// Ended with the subscription.
    readers: JoinSet<()>,
    current: Option<Current>,
    progress: BTreeMap<u32, ShardProgress>,
}

impl Subscription {
    /// The next event or error; `None` when every shard has ended. Can be cancelled without losing an item.
    pub async fn next(&mut self) -> Option<Result<Event, SubscribeError>> {
        poll_fn(|cx| self.poll_result(cx)).await
    }

    /// The same with everything else that happens to the subscription, such as a broker that goes away.
    pub async fn next_item(&mut self) -> Option<Item> {
        poll_fn(|cx| self.poll_item(cx)).await
    }

    /// Where to go on after the events handed out so far.
    pub fn positions(&self) -> Positions {
        let known = self.progress.iter().filter_map(|(shard, progress)| Some((*shard, progress.next?)));
        Positions(known.collect())
    }

    /// How far each shard that is read has come, in shard order, by the items handed out so far.
    pub fn progress(&self) -> impl Iterator<Item = &ShardProgress> {
        self.progress.values()
    }

    /// Shards that have not ended.
    pub fn live_shards(&self) -> usize {
        self.readers.len()
    }

    fn poll_result(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Event, SubscribeError>>> {
        loop {
            return Poll::Ready(match ready!(self.poll_item(cx)) {
                Some(Item::Event(event)) => Some(Ok(event)),
                Some(Item::Error(error)) => Some(Err(error)),
                Some(Item::Notice(_)) => continue,
                None => None,
            });
        }
    }

    fn poll_item(&mut self, cx: &mut Context<'_>) -> Poll<Option<Item>> {
        loop {
            if let Some(event) = self.next_of_current() {
                return Poll::Ready(Some(Item::Event(event)));
            }
            while let Poll::Ready(Some(_)) = self.readers.poll_join_next(cx) {}
            let Some(parcel) = ready!(self.rx.poll_recv(cx)) else { return Poll::Ready(None) };
            let progress = self.progress.get_mut(&parcel.shard);
            match parcel.content {
                Content::Batch(batch) => self.current = Some(Current::new(parcel.shard, batch)),
                Content::Notice(notice) => {
                    progress.into_iter().for_each(|progress| progress.note(&notice));
                    return Poll::Ready(Some(Item::Notice(notice)));
                }
                Content::Error(error) => {
                    progress.into_iter().for_each(|progress| progress.failed(&error));
                    return Poll::Ready(Some(Item::Error(error)));
                }
            }
        }
    }

    /// The next event of the batch at hand. With the last one, or when there is none, the shard is where the batch ends.
    fn next_of_current(&mut self) -> Option<Event> {
        let current = self.current.as_mut()?;
        let shard = current.shard;
        let skipped = std::mem::take(&mut current.skipped);
        let event = current.events.next();
        let progress = self.progress.get_mut(&shard);
        if let Some(progress) = progress {
            let boot = current.after.and_then(|after| after.boot);
            let offset = event.as_ref().and_then(|event| event.offset);
            let next = offset.map(|offset| Position { next: Offset(offset.get().saturating_add(1)), boot });
            progress.next = next.or(current.after).or(progress.next);
            progress.skipped += skipped;
        }
        let Some(event) = event else {
            self.current = None;
            return None;
        };
        if current.events.as_slice().is_empty() {
            self.current = None;
        }
        Some(Event { shard, offset: event.offset, payload: event.payload, skipped })
    }
}

impl Current {
    fn new(shard: u32, batch: Batch) -> Self {
        let duplicates = batch.duplicates as usize;
        let skipped = if duplicates == 0 { batch.events.skipped_before } else { 0 };
        let events: Vec<_> = batch.events.iter().skip(duplicates).collect();
        Self { shard, events: events.into_iter(), skipped, after: batch.after, _budget: batch.budget }
    }
}

impl futures_core::Stream for Subscription {
    type Item = Result<Event, SubscribeError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_result(cx)
    }
}
