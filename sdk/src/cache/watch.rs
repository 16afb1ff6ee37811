//! Following keys of a cache. Scope: per watch.
//! Owns: the queue between the shards' readers and the application.
//! Invariants: changes of one shard come in order and none twice; an application that is busy makes the readers stop, so
//! nothing is dropped here; where changes may be missing, an item says so and the current values follow.
//! Not here: what a shard's reader does when it loses its broker (`reader`, `cursor`).

mod cursor;
mod reader;

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use felix_wire::id::Offset;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinSet;

use crate::error::{CursorReason, Error};
use crate::limits::{OPENING_MAX, SUBSCRIPTION_BUFFER_BYTES, SUBSCRIPTION_BUFFER_FRAMES};
use crate::request::{Place, RequestError};
use cursor::Cursor;
use reader::{Outlet, Reader};

/// Which keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Watched {
    Key(String),
    Prefix(String),
}

/// Where to begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WatchStart {
    /// With what changes from now on.
    #[default]
    Live,
    /// With the current values, then what changes.
    Current,
    /// With the change at this offset, in every shard that is watched.
    Offset(Offset),
}

/// A key has another value, or none any more. That a value has expired is not told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The shard of the key.
    pub shard: u32,
    /// The key.
    pub key: String,
    /// Its value; `None` when it was deleted.
    pub value: Option<Bytes>,
    /// The offset of the write in its shard's log, also the value's version.
    pub offset: Offset,
    /// When the value ends, if it does.
    pub expires_at: Option<SystemTime>,
    /// It is no change but the value as it was when the watch began, or began anew.
    pub current: bool,
}

/// Why a watch, or one shard of it, is not what it should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WatchError {
    /// The history after the last change that was handed on is gone. The current values follow, then what changes; deletes
    /// in between are not told. The shard goes on.
    #[error("shard {shard}: the watch begins anew, with the current values")]
    BeginsAnew {
        /// The shard.
        shard: u32,
    },
    /// The requested offset is not there. The shard ends.
    #[error("shard {shard}: offset {requested} is {reason} {available}")]
    Cursor {
        /// The shard.
        shard: u32,
        /// Which way it is out of range.
        reason: CursorReason,
        /// The offset asked for.
        requested: u64,
        /// The oldest offset held, or the tail.
        available: u64,
    },
    /// The broker does not know the cache.
    #[error("unknown cache")]
    UnknownCache,
    /// The cache has no such shard.
    #[error("the cache has {shards} shards, there is no shard {shard}")]
    UnknownShard {
        /// The shard asked for.
        shard: u32,
        /// How many there are.
        shards: u32,
    },
    /// The broker refused or ended it. The shard ends.
    #[error("shard {shard}: {error}")]
    Failed {
        /// The shard.
        shard: u32,
        /// What happened.
        error: Error,
    },
    /// It could not be opened.
    #[error(transparent)]
    Open(#[from] RequestError),
}

impl WatchError {
    /// After this item the shard it names delivers nothing more.
    pub fn ends_shard(&self) -> bool {
        !matches!(self, Self::BeginsAnew { .. })
    }
}

/// What happens to a watch besides changes.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum WatchNotice {
    /// So many current values of the shard come before its changes. Zero is told too.
    Current {
        /// The shard.
        shard: u32,
        /// How many.
        values: u64,
    },
    /// The broker is away; it is looked for.
    Away {
        /// The shard.
        shard: u32,
        /// What happened.
        error: Error,
    },
    /// A broker serves the shard again.
    Back {
        /// The shard.
        shard: u32,
        /// How long none did.
        away: Duration,
    },
    /// This watch was too slow for the broker and goes on from this offset.
    Lagged {
        /// The shard.
        shard: u32,
        /// The first change that was not delivered.
        from: Offset,
    },
    /// The shard is served elsewhere now.
    Moved {
        /// The shard.
        shard: u32,
    },
}

/// Anything that comes out of a watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WatchItem {
    /// A change or a current value.
    Change(Change),
    /// Something to know.
    Notice(WatchNotice),
    /// Something is missing, or a shard ends.
    Error(WatchError),
}

/// Options of a watch.
#[must_use = "a builder does nothing until `open`"]
pub struct WatchBuilder {
    place: Arc<Place>,
    watched: Watched,
    start: WatchStart,
    shard: Option<u32>,
    buffer_bytes: u32,
}

impl WatchBuilder {
    pub(crate) fn new(place: Arc<Place>, watched: Watched) -> Self {
        let start = WatchStart::default();
        Self { place, watched, start, shard: None, buffer_bytes: SUBSCRIPTION_BUFFER_BYTES }
    }

    /// Where to begin; [`WatchStart::Live`] by default.
    pub fn from(mut self, start: WatchStart) -> Self {
        self.start = start;
        self
    }

    /// Only this shard; for a prefix, whose keys are on all of them. All are watched and merged by default.
    pub fn shard(mut self, shard: u32) -> Self {
        self.shard = Some(shard);
        self
    }

    /// Bytes held for a busy application, 4 MiB by default, at least 1; beyond it the streams are not read.
    pub fn buffer_bytes(mut self, bytes: u32) -> Self {
        self.buffer_bytes = bytes.max(1);
        self
    }

    /// Registers with every shard; the watch exists only if all of them accept.
    ///
    /// # Errors
    /// [`WatchError::UnknownCache`], [`WatchError::UnknownShard`], [`WatchError::Cursor`] for an offset that is not
    /// there, [`RequestError::Invalid`] for a key watch that names a shard, else what the brokers said.
    pub async fn open(self) -> Result<Watch, WatchError> {
        let unknown = |error: RequestError| match error.is_not_found() {
            true => WatchError::UnknownCache,
            false => WatchError::Open(error),
        };
        let width = self.place.shard_count().await.map_err(unknown)?;
        let shards = match (&self.watched, self.shard) {
            (Watched::Key(_), Some(_)) => {
                return Err(RequestError::invalid("the shard of a key is not chosen").into());
            }
            (Watched::Key(key), None) => {
                crate::cache::check_key(key)?;
                let shard = self.place.shard_of(key.as_bytes()).await?;
                shard..shard + 1
            }
            (Watched::Prefix(_), None) => 0..width,
            (Watched::Prefix(_), Some(shard)) if shard < width => shard..shard + 1,
            (Watched::Prefix(_), Some(shard)) => {
                return Err(WatchError::UnknownShard { shard, shards: width });
            }
        };
        let (queue, rx) = mpsc::channel(SUBSCRIPTION_BUFFER_FRAMES);
        let budget = Arc::new(Semaphore::new(self.buffer_bytes as usize));
        let gate = Arc::new(Semaphore::new(OPENING_MAX));
        let mut opening = JoinSet::new();
        for shard in shards {
            let (queue, budget) = (queue.clone(), budget.clone());
            let outlet = Outlet { queue, budget, budget_bytes: self.buffer_bytes };
            let cursor = Cursor::new(self.start);
            let reader = Reader::new(self.place.clone(), self.watched.clone(), shard, cursor, outlet);
            let gate = gate.clone();
            opening.spawn(async move {
                let _turn = gate.acquire().await;
                reader.open().await
            });
        }
        drop(queue);
        let mut opened = Vec::new();
        while let Some(joined) = opening.join_next().await {
            let lost = |error| WatchError::Open(Error::lost(error).into());
            opened.push(joined.map_err(lost)??);
        }
        let mut readers = JoinSet::new();
        for (reader, source) in opened {
            readers.spawn(reader.run(source));
        }
        Ok(Watch { rx, readers })
    }
}

/// What a reader hands to the application.
struct Parcel {
    item: WatchItem,
    /// Given back when it was handed on.
    _budget: Option<OwnedSemaphorePermit>,
}

/// Changes as they come. Ends when every shard has ended; an error item names its shard and says whether that shard goes
/// on. Dropping it ends the watch at once.
pub struct Watch {
    rx: mpsc::Receiver<Parcel>,
    /// Ended with the watch.
    readers: JoinSet<()>,
}

impl Watch {
    /// The next change or error; `None` when every shard has ended. Can be cancelled without losing an item.
    pub async fn next(&mut self) -> Option<Result<Change, WatchError>> {
        poll_fn(|cx| self.poll_result(cx)).await
    }

    /// The same with everything else that happens to the watch.
    pub async fn next_item(&mut self) -> Option<WatchItem> {
        poll_fn(|cx| self.poll_item(cx)).await
    }

    /// Shards that have not ended.
    pub fn live_shards(&self) -> usize {
        self.readers.len()
    }

    fn poll_item(&mut self, cx: &mut Context<'_>) -> Poll<Option<WatchItem>> {
        while let Poll::Ready(Some(_)) = self.readers.poll_join_next(cx) {}
        Poll::Ready(ready!(self.rx.poll_recv(cx)).map(|parcel| parcel.item))
    }

    fn poll_result(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Change, WatchError>>> {
        loop {
            return Poll::Ready(match ready!(self.poll_item(cx)) {
                Some(WatchItem::Change(change)) => Some(Ok(change)),
                Some(WatchItem::Error(error)) => Some(Err(error)),
                Some(WatchItem::Notice(_)) => continue,
                None => None,
            });
        }
    }
}

impl futures_core::Stream for Watch {
    type Item = Result<Change, WatchError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_result(cx)
    }
}
