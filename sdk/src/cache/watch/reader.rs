//! The task that follows one shard of a cache, wherever it is. Scope: per watched shard.
//! Owns: the event stream and the search for the broker that serves the shard.
//! Invariants: nothing is read beyond what the application's queue has room for; whatever ends the stream, the cursor
//! decides from where it goes on; only what cannot get better ends the shard.
//! Not here: offsets (`cursor`), merging (`watch`).

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use felix_wire::client::{
    CacheEvent, CacheWatch, CacheWatchStarted, CursorErrorReason, Message, NotLeader, SubscribeCursorError,
};
use felix_wire::error_code::ErrorCode;
use felix_wire::features::Features;
use felix_wire::frame::Frame;
use felix_wire::id::ShardIndex;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{Instant, timeout};

use super::cursor::{Cursor, Missed, Take, Wanted};
use super::{Change, Parcel, WatchError, WatchItem, WatchNotice, Watched};
use crate::backoff::{Backoff, jitter_seed};
use crate::connection::{FrameRecv, Link, Seat, Use, decode, refusal_of, unexpected};
use crate::error::{CursorReason, Error};
use crate::limits::{IDENTITY_PATIENCE, KNOWN_BEFORE_FACTOR, REDIRECT_HOPS_MAX};
use crate::request::{Place, owner_of};
use crate::topology::ShardOwner;

/// The way to the application.
pub(crate) struct Outlet {
    pub(crate) queue: mpsc::Sender<Parcel>,
    pub(crate) budget: Arc<Semaphore>,
    pub(crate) budget_bytes: u32,
}

/// The application has dropped the watch.
struct Gone;

/// A registered watch and its event stream.
pub(crate) struct Source {
    recv: FrameRecv,
    /// The connection lives as long as its stream is read.
    _link: Arc<Link>,
    _seat: Seat,
}

/// What a broker says to `cache_watch`.
enum Reply {
    Started(CacheWatchStarted, Source),
    Cursor(SubscribeCursorError),
    Elsewhere(ShardOwner),
}

/// Why a source is left.
enum End {
    Gone,
    /// Watch again at once: the shard moved, or this reader was too slow.
    Again(Option<Box<ShardOwner>>),
    /// Watch again after a while.
    Lost(Error),
    /// The shard ends.
    Over(WatchError),
}

/// How long failures are put up with.
#[derive(Clone, Copy)]
struct Patience {
    /// Any failure that may pass; `None`: for ever.
    any: Option<Duration>,
    identity: Duration,
    not_found: Duration,
}

/// See the module.
pub(crate) struct Reader {
    place: Arc<Place>,
    watched: Watched,
    shard: u32,
    cursor: Cursor,
    outlet: Outlet,
    backoff: Backoff,
}

impl Reader {
    pub(crate) fn new(
        place: Arc<Place>,
        watched: Watched,
        shard: u32,
        cursor: Cursor,
        outlet: Outlet,
    ) -> Self {
        Self { place, watched, shard, cursor, outlet, backoff: Backoff::default() }
    }

    /// Registers for the first time.
    ///
    /// # Errors
    /// A cursor out of range, and what did not pass within the request deadline.
    pub(crate) async fn open(mut self) -> Result<(Self, Source), WatchError> {
        let deadlines = self.place.shared().identity.deadlines;
        let patience = Patience {
            any: Some(deadlines.request),
            identity: Duration::ZERO,
            not_found: deadlines.not_found,
        };
        let source = self.join(None, patience).await?;
        Ok((self, source))
    }

    /// Reads until the shard ends or the application drops the watch.
    pub(crate) async fn run(mut self, mut source: Source) {
        let known = self.place.shared().identity.deadlines.not_found * KNOWN_BEFORE_FACTOR;
        let patience = Patience { any: None, identity: IDENTITY_PATIENCE, not_found: known };
        loop {
            let (owner, away) = match self.read(&mut source).await {
                End::Gone => return,
                End::Over(error) => return drop(self.tell(error).await),
                End::Again(owner) => (owner.map(|owner| *owner), None),
                End::Lost(error) => (None, Some((Instant::now(), error))),
            };
            drop(source);
            let mut since = None;
            if let Some((at, error)) = away {
                self.notify(WatchNotice::Away { shard: self.shard, error }).await;
                since = Some(at);
                tokio::time::sleep(self.backoff.next_delay(jitter_seed())).await;
                self.place.look_again(at).await;
            }
            source = match self.join(owner, patience).await {
                Ok(source) => source,
                Err(error) => return drop(self.tell(error).await),
            };
            if let Some(since) = since {
                self.notify(WatchNotice::Back { shard: self.shard, away: since.elapsed() }).await;
            }
        }
    }

    /// Registers, wherever the shard is, until a broker takes it.
    async fn join(
        &mut self,
        mut owner: Option<ShardOwner>,
        patience: Patience,
    ) -> Result<Source, WatchError> {
        let started = Instant::now();
        loop {
            let wanted = self.cursor.wanted();
            let asked = owner.take().or_else(|| self.place.owner(self.shard));
            let error = match self.ask(asked, wanted).await {
                Ok(Reply::Started(answer, source)) => {
                    let begun = self.cursor.started(&answer);
                    if begun.anew {
                        drop(self.tell(WatchError::BeginsAnew { shard: self.shard }).await);
                    }
                    if let Some(values) = begun.values {
                        self.notify(WatchNotice::Current { shard: self.shard, values }).await;
                    }
                    return Ok(source);
                }
                Ok(Reply::Cursor(error)) => match self.cursor.missed(error.reason) {
                    Missed::Fail => return Err(self.cursor_error(&error)),
                    Missed::Again => continue,
                },
                Ok(Reply::Elsewhere(_)) => Error::lost("the shard's owner could not be found"),
                Err(error) => error,
            };
            if !patience.covers(&error, started.elapsed()) {
                return Err(self.failed(error));
            }
            let wait = error.refusal().and_then(|refusal| refusal.retry_after).unwrap_or_default();
            let failed = Instant::now();
            tokio::time::sleep(self.backoff.next_delay(jitter_seed()).max(wait)).await;
            self.place.look_again(failed).await;
        }
    }

    /// One round over the brokers: the owner as far as it is known, then wherever `not_leader` points
    /// (client-protocol 17.3).
    async fn ask(&self, mut owner: Option<ShardOwner>, wanted: Wanted) -> Result<Reply, Error> {
        let shared = self.place.shared();
        let mut seen: Vec<String> = Vec::new();
        for _hop in 0..=REDIRECT_HOPS_MAX {
            let (link, seat) = shared.link_to(owner.as_ref(), Use::Events).await?;
            let reply = self.register((&link, seat), wanted).await.inspect_err(|e| shared.note(e, &link))?;
            let Reply::Elsewhere(next) = reply else { return Ok(reply) };
            let node = next.node_id.clone().unwrap_or_default();
            if next.dialable().is_none() || seen.contains(&node) {
                return Ok(Reply::Elsewhere(next));
            }
            seen.push(node);
            owner = Some(next);
        }
        Err(Error::lost("redirected too often"))
    }

    async fn register(&self, (link, seat): (&Arc<Link>, Seat), wanted: Wanted) -> Result<Reply, Error> {
        link.granted().require(Features::CACHE_WATCH, "cache_watch")?;
        if wanted.current {
            link.granted().require(Features::CACHE_WATCH_RETAINED, "current values of a watch")?;
        }
        let mut stream = link.open().await?;
        let waited = self.place.shared().identity.deadlines.request;
        let exchange = async {
            stream.write(&Message::CacheWatch(self.request(wanted).await?)).await?;
            // The watch lives as long as its event stream (client-protocol 7).
            drop(stream.send.finish());
            stream.recv.next().await
        };
        let answer = timeout(waited, exchange).await;
        let answer = answer.map_err(|_| Error::TimedOut { what: "cache_watch", waited })??;
        let Some(frame) = answer else { return Err(Error::lost("the broker ended the stream")) };
        match decode(&frame)? {
            Message::CacheWatchStarted(answer) => {
                if wanted.current && answer.retained_count.is_none() {
                    return Err(Error::protocol("a watch without the number of its current values"));
                }
                let recv = link.router().claim(answer.subscription_id).await?;
                Ok(Reply::Started(answer, Source { recv, _link: link.clone(), _seat: seat }))
            }
            Message::SubscribeCursorError(error) => Ok(Reply::Cursor(error)),
            Message::NotLeader(leader) => Ok(Reply::Elsewhere(owner_of(self.shard, leader))),
            Message::Error(error) => Err(Error::Refused(refusal_of(&error))),
            Message::Unsupported(_) => Err(Error::NotServed { what: "cache_watch" }),
            other => Err(unexpected("cache_watch", &other)),
        }
    }

    async fn request(&self, wanted: Wanted) -> Result<CacheWatch<'_>, Error> {
        let (key, prefix) = match &self.watched {
            Watched::Key(key) => (Some(Cow::Borrowed(key.as_str())), None),
            Watched::Prefix(prefix) => (None, Some(Cow::Borrowed(prefix.as_str()))),
        };
        // A broker of one shard need not know of shards.
        let shards = self.place.shard_count().await.unwrap_or(1);
        let named = prefix.is_some() && (shards > 1 || self.shard > 0);
        let name = self.place.name();
        Ok(CacheWatch {
            tenant_id: self.place.tenant().into(),
            namespace: name.namespace().into(),
            cache: name.stream().into(),
            key,
            prefix,
            shard: named.then_some(ShardIndex(self.shard)),
            from_offset: wanted.from,
            retained: wanted.current,
            subscription_id: None,
        })
    }

    async fn read(&mut self, source: &mut Source) -> End {
        loop {
            let frame = match source.recv.next().await {
                Ok(Some(frame)) => frame,
                // Nothing but an end, or a lost connection: the shard is somewhere.
                Ok(None) => return End::Lost(Error::lost("the broker ended the watch")),
                Err(error) => return End::Lost(error),
            };
            if let Err(end) = self.event(&frame).await {
                return end;
            }
        }
    }

    /// Hands a change on; any other frame ends the source.
    async fn event(&mut self, frame: &Frame) -> Result<(), End> {
        match decode(frame).map_err(End::Lost)? {
            Message::CacheEvent(event) => {
                self.backoff.reset();
                match self.cursor.event(event.offset) {
                    Take::Deliver { current } => {
                        let change = change(self.shard, &event, current);
                        self.deliver(change, frame.payload.len()).await.map_err(|Gone| End::Gone)
                    }
                    Take::Drop => Ok(()),
                }
            }
            Message::CacheWatchLagged(lagged) => {
                self.cursor.resume_from(lagged.resume_from);
                self.notify(WatchNotice::Lagged { shard: self.shard, from: lagged.resume_from }).await;
                Err(End::Again(None))
            }
            Message::ShardMoved(moved) => {
                if let Some(offset) = moved.resume_from {
                    self.cursor.resume_from(offset);
                }
                self.notify(WatchNotice::Moved { shard: self.shard }).await;
                let owner = moved.node_id.map(|node_id| {
                    let leader = NotLeader { node_id, addr: moved.addr, generation: moved.generation };
                    owner_of(self.shard, leader)
                });
                Err(End::Again(owner.filter(|owner| owner.dialable().is_some()).map(Box::new)))
            }
            Message::Error(error) => {
                let error = Error::Refused(refusal_of(&error));
                if error.is_worth_another_read() {
                    Err(End::Lost(error))
                } else {
                    Err(End::Over(self.failed(error)))
                }
            }
            other => Err(End::Lost(unexpected("cache_watch", &other))),
        }
    }

    /// Waits for room, then hands the change on.
    async fn deliver(&self, change: Change, bytes: usize) -> Result<(), Gone> {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX).clamp(1, self.outlet.budget_bytes);
        let budget = self.outlet.budget.clone().acquire_many_owned(bytes).await.map_err(|_| Gone)?;
        let parcel = Parcel { item: WatchItem::Change(change), _budget: Some(budget) };
        self.outlet.queue.send(parcel).await.map_err(|_| Gone)
    }

    async fn tell(&self, error: WatchError) -> Result<(), Gone> {
        let parcel = Parcel { item: WatchItem::Error(error), _budget: None };
        self.outlet.queue.send(parcel).await.map_err(|_| Gone)
    }

    /// A watch that is gone is noticed with the next frame.
    async fn notify(&self, notice: WatchNotice) {
        let parcel = Parcel { item: WatchItem::Notice(notice), _budget: None };
        drop(self.outlet.queue.send(parcel).await);
    }

    fn failed(&self, error: Error) -> WatchError {
        if error.is_code(&ErrorCode::NotFound) {
            return WatchError::UnknownCache;
        }
        WatchError::Failed { shard: self.shard, error }
    }

    fn cursor_error(&self, error: &SubscribeCursorError) -> WatchError {
        WatchError::Cursor {
            shard: self.shard,
            reason: match error.reason {
                CursorErrorReason::TooOld => CursorReason::TooOld,
                CursorErrorReason::InFuture => CursorReason::InFuture,
            },
            requested: error.requested.get(),
            available: error.available.get(),
        }
    }
}

fn change(shard: u32, event: &CacheEvent<'_>, current: bool) -> Change {
    let expires = event.expires_at_millis;
    // A time that the system cannot say is as good as none.
    let expires_at = (expires > 0).then(|| UNIX_EPOCH.checked_add(Duration::from_millis(expires))).flatten();
    let (key, value, offset) = (event.key.to_string(), event.value.clone(), event.offset);
    Change { shard, key, value, offset, expires_at, current }
}

impl Patience {
    fn covers(&self, error: &Error, elapsed: Duration) -> bool {
        match error {
            Error::Auth(_) | Error::Token { .. } => elapsed < self.identity,
            error if error.is_code(&ErrorCode::NotFound) => elapsed < self.not_found,
            error if error.is_worth_another_read() => self.any.is_none_or(|any| elapsed < any),
            _ => false,
        }
    }
}
