//! The task that reads one shard, wherever it is. Scope: per subscribed shard.
//! Owns: the event stream and the search for the broker that serves the shard.
//! Invariants: nothing is read beyond what the application's queue has room for; whatever ends the stream, the
//! cursor decides from where it goes on; only what cannot get better ends the shard.
//! Not here: offsets (`cursor`), merging (`subscribe`).

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use felix_wire::client::{
    CursorErrorReason, EventBatch, Message, NotLeader, Records, ShardKind, StartPosition, Subscribe,
    SubscribeCursorError, Subscribed,
};
use felix_wire::error_code::ErrorCode;
use felix_wire::flags::Flags;
use felix_wire::frame::Frame;
use felix_wire::id::{Offset, ShardIndex, SubscriptionId};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{Instant, timeout};

use crate::backoff::{Backoff, jitter_seed};
use crate::client::Shared;
use crate::connection::{FrameRecv, Link, Seat, Use, decode, refusal_of, unexpected};
use crate::error::{CursorReason, Error, SubscribeError};
use crate::limits::{IDENTITY_PATIENCE, KNOWN_BEFORE_FACTOR, REDIRECT_HOPS_MAX};
use crate::name::StreamName;
use crate::request::owner_of;
use crate::subscribe::cursor::{Cursor, Joined, Missed, Take};
use crate::subscribe::{Batch, Content, Gap, Notice, Parcel, Position};
use crate::topology::{ShardOwner, fetch_route};

/// The way to the application.
pub(crate) struct Outlet {
    pub(crate) queue: mpsc::Sender<Parcel>,
    pub(crate) budget: Arc<Semaphore>,
    pub(crate) budget_bytes: u32,
}

/// The application has dropped the subscription.
struct Gone;

/// A registered subscription and its event stream.
pub(crate) struct Source {
    id: SubscriptionId,
    recv: FrameRecv,
    start: Option<Offset>,
    live: Option<Offset>,
    /// The connection lives as long as its stream is read.
    _link: Arc<Link>,
    _seat: Seat,
}

impl Source {
    /// Start and end of the shard, as the broker's answer has them.
    pub(crate) fn offsets(&self) -> (Option<Offset>, Option<Offset>) {
        (self.start, self.live)
    }
}

/// What a broker says to `subscribe`.
enum Reply {
    Subscribed(Subscribed, Source),
    Cursor(SubscribeCursorError),
    Elsewhere(ShardOwner),
}

/// Why a source is left.
enum End {
    Gone,
    /// Subscribe again at once: the shard moved, this reader was too slow, or events are missing.
    Again(Option<Box<ShardOwner>>),
    /// Subscribe again after a while.
    Lost(Error),
    /// The shard ends.
    Over(SubscribeError),
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
    shared: Arc<Shared>,
    name: StreamName,
    shard: u32,
    cursor: Cursor,
    outlet: Outlet,
    backoff: Backoff,
}

impl Reader {
    pub(crate) fn new(
        shared: Arc<Shared>,
        name: StreamName,
        shard: u32,
        cursor: Cursor,
        outlet: Outlet,
    ) -> Self {
        Self { shared, name, shard, cursor, outlet, backoff: Backoff::default() }
    }

    pub(crate) fn shard(&self) -> u32 {
        self.shard
    }

    pub(crate) fn position(&self) -> Option<Position> {
        self.cursor.position()
    }

    /// Registers for the first time.
    ///
    /// # Errors
    /// A cursor out of range, and what did not pass within the request deadline.
    pub(crate) async fn open(mut self, owner: Option<ShardOwner>) -> Result<(Self, Source), SubscribeError> {
        let deadlines = self.shared.identity.deadlines;
        let patience = Patience {
            any: Some(deadlines.request),
            identity: Duration::ZERO,
            not_found: deadlines.not_found,
        };
        let source = self.join(owner, patience).await?;
        Ok((self, source))
    }

    /// Reads until the shard ends or the application drops the subscription.
    pub(crate) async fn run(mut self, mut source: Source) {
        let known = self.shared.identity.deadlines.not_found * KNOWN_BEFORE_FACTOR;
        let patience = Patience { any: None, identity: IDENTITY_PATIENCE, not_found: known };
        loop {
            let (owner, away) = match self.read(&mut source).await {
                End::Gone => return,
                End::Over(error) => return drop(self.tell(error).await),
                End::Again(owner) => (owner.map(|owner| *owner), None),
                End::Lost(error) => (None, Some((Instant::now(), error))),
            };
            drop(source);
            self.cursor.lost();
            let mut since = None;
            if let Some((at, error)) = away {
                self.notify(Notice::Away { shard: self.shard, error }).await;
                since = Some(at);
                tokio::time::sleep(self.backoff.next_delay(jitter_seed())).await;
            }
            let owner = match owner.filter(|owner| owner.dialable().is_some()) {
                Some(named) => Some(named),
                None => self.find_owner().await,
            };
            source = match self.join(owner, patience).await {
                Ok(source) => source,
                Err(error) => return drop(self.tell(error).await),
            };
            if let Some(since) = since {
                let next = self.cursor.position().map(|position| position.next);
                let (shard, live) = (self.shard, source.live);
                self.notify(Notice::Back { shard, next, live, away: since.elapsed() }).await;
            }
        }
    }

    /// Subscribes, wherever the shard is, until a broker takes it.
    async fn join(
        &mut self,
        mut owner: Option<ShardOwner>,
        patience: Patience,
    ) -> Result<Source, SubscribeError> {
        let started = Instant::now();
        loop {
            let asked = self.cursor.request();
            let error = match self.ask(owner.take(), asked).await {
                Ok(Reply::Subscribed(answer, source)) => match self.cursor.subscribed(&answer) {
                    Joined::Read { gap } => {
                        self.tell_gap(gap).await;
                        return Ok(source);
                    }
                    Joined::Again { gap } => {
                        self.tell_gap(Some(gap)).await;
                        continue;
                    }
                },
                Ok(Reply::Cursor(error)) => match self.cursor.missed(&error) {
                    Missed::Fail => return Err(self.cursor_error(&error)),
                    Missed::Again => {
                        let gap = self.cursor.missed_gap(asked);
                        self.tell_gap(Some(gap)).await;
                        continue;
                    }
                },
                // Three hops are over: whoever leads now will say so later.
                Ok(Reply::Elsewhere(_)) => Error::lost("the shard's owner could not be found"),
                Err(error) => error,
            };
            if !patience.covers(&error, started.elapsed()) {
                return Err(self.failed(error));
            }
            let wait = error.refusal().and_then(|refusal| refusal.retry_after).unwrap_or_default();
            tokio::time::sleep(self.backoff.next_delay(jitter_seed()).max(wait)).await;
            owner = self.find_owner().await;
        }
    }

    /// One round over the brokers: the owner as far as it is known, then wherever `not_leader` points
    /// (client-protocol 17.3).
    async fn ask(&self, mut owner: Option<ShardOwner>, start: StartPosition) -> Result<Reply, Error> {
        let mut seen: Vec<String> = Vec::new();
        for _hop in 0..=REDIRECT_HOPS_MAX {
            let (link, seat) = self.shared.link_to(owner.as_ref(), Use::Events).await?;
            let reply =
                self.subscribe((&link, seat), start).await.inspect_err(|e| self.shared.note(e, &link))?;
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

    /// Who serves the shard, as the entry broker sees it; failing that, the entry broker itself is asked.
    async fn find_owner(&self) -> Option<ShardOwner> {
        let link = self.shared.entry().await.ok()?;
        let route =
            fetch_route(&link, &self.shared.identity.tenant, &self.name, ShardKind::Stream).await.ok()?;
        route.owner(self.shard).cloned()
    }

    async fn subscribe(
        &self,
        (link, seat): (&Arc<Link>, Seat),
        start: StartPosition,
    ) -> Result<Reply, Error> {
        if start != StartPosition::Latest && !link.granted().flags.contains(Flags::EVENT_OFFSETS) {
            return Err(Error::NotServed { what: "subscribing from an offset" });
        }
        let mut stream = link.open().await?;
        let request = Subscribe {
            tenant_id: Cow::Borrowed(&self.shared.identity.tenant),
            namespace: Cow::Borrowed(self.name.namespace()),
            stream: Cow::Borrowed(self.name.stream()),
            subscription_id: None,
            start: (start != StartPosition::Latest).then_some(start),
            shard: (self.shard != 0).then_some(ShardIndex(self.shard)),
            queue_capacity: None,
        };
        let waited = self.shared.identity.deadlines.request;
        let exchange = async {
            stream.write(&Message::Subscribe(request)).await?;
            // The subscription lives as long as its event stream (client-protocol 7).
            drop(stream.send.finish());
            stream.recv.next().await
        };
        let answer = timeout(waited, exchange).await;
        let answer = answer.map_err(|_| Error::TimedOut { what: "subscribe", waited })??;
        let Some(frame) = answer else { return Err(Error::lost("the broker ended the stream")) };
        match decode(&frame)? {
            Message::Subscribed(answer) => {
                let id = answer.subscription_id;
                let recv = link.router().claim(id).await?;
                let (start, live) = (answer.start_offset, answer.live_offset);
                let source = Source { id, recv, start, live, _link: link.clone(), _seat: seat };
                Ok(Reply::Subscribed(answer, source))
            }
            Message::SubscribeCursorError(error) => Ok(Reply::Cursor(error)),
            Message::NotLeader(leader) => Ok(Reply::Elsewhere(owner_of(self.shard, leader))),
            Message::Error(error) => Err(Error::Refused(refusal_of(&error))),
            other => Err(unexpected("subscribe", &other)),
        }
    }

    async fn read(&mut self, source: &mut Source) -> End {
        loop {
            let frame = match source.recv.next().await {
                Ok(Some(frame)) => frame,
                // Nothing but an end, or a lost connection: the shard is somewhere.
                Ok(None) => return End::Lost(Error::lost("the broker ended the subscription")),
                Err(error) => return End::Lost(error),
            };
            let batch = match self.events(&frame, source.id).await {
                Ok(batch) => batch,
                Err(end) => return end,
            };
            let before = self.cursor.position();
            match self.cursor.batch(batch.base_offset, batch.skipped_before, batch.count()) {
                Take::ReadAgain => return End::Again(None),
                Take::Deliver { duplicates, gap } => {
                    self.backoff.reset();
                    self.tell_gap(gap).await;
                    // One without events may say that the offsets before it are empty.
                    let news = duplicates < batch.count() || self.cursor.position() != before;
                    if news && self.deliver(batch, duplicates, &frame).await.is_err() {
                        return End::Gone;
                    }
                }
            }
        }
    }

    /// The events of a frame; any other frame ends the source.
    async fn events(&mut self, frame: &Frame, id: SubscriptionId) -> Result<EventBatch, End> {
        if frame.flags != 0 {
            // Bytes nobody can read are no better the second time, but the next broker may be a different one.
            let batch = EventBatch::decode(frame.flags, &frame.payload).map_err(unreadable)?;
            let ours = batch.subscription_id.is_none_or(|named| named == id);
            return if ours { Ok(batch) } else { Err(unreadable("events of another subscription")) };
        }
        match decode(frame).map_err(End::Lost)? {
            Message::Event(event) => Ok(json_batch(&[event.payload], event.offset)),
            Message::EventBatch(batch) => {
                let mut events = EventBatch::new(batch.payloads);
                events.base_offset = batch.base_offset;
                Ok(events)
            }
            Message::ShardMoved(moved) => {
                self.cursor.resume_from(moved.resume_from);
                self.notify(Notice::Moved { shard: self.shard }).await;
                let owner = moved.node_id.map(|node_id| {
                    let leader = NotLeader { node_id, addr: moved.addr, generation: moved.generation };
                    owner_of(self.shard, leader)
                });
                Err(End::Again(owner.map(Box::new)))
            }
            Message::SubscriptionLagged(lagged) => {
                self.cursor.resume_from(Some(lagged.resume_from));
                self.notify(Notice::Lagged { shard: self.shard, from: lagged.resume_from }).await;
                Err(End::Again(None))
            }
            Message::StreamDeleted(_) => Err(End::Over(SubscribeError::StreamDeleted { shard: self.shard })),
            Message::Error(error) => {
                let error = Error::Refused(refusal_of(&error));
                if error.is_worth_another_read() {
                    Err(End::Lost(error))
                } else {
                    Err(End::Over(self.failed(error)))
                }
            }
            other => Err(End::Lost(unexpected("subscribe", &other))),
        }
    }

    /// Waits for room, then hands the batch on.
    async fn deliver(&self, events: EventBatch, duplicates: u32, frame: &Frame) -> Result<(), Gone> {
        let bytes = u32::try_from(frame.payload.len()).unwrap_or(u32::MAX).clamp(1, self.outlet.budget_bytes);
        let budget = self.outlet.budget.clone().acquire_many_owned(bytes).await.map_err(|_| Gone)?;
        let batch = Batch { events, duplicates, after: self.cursor.position(), budget };
        self.hand_on(Content::Batch(batch)).await
    }

    async fn tell_gap(&self, gap: Option<Gap>) {
        if let Some(gap) = gap {
            drop(self.tell(SubscribeError::Gap(gap)).await);
        }
    }

    async fn tell(&self, error: SubscribeError) -> Result<(), Gone> {
        self.hand_on(Content::Error(error)).await
    }

    /// A subscription that is gone is noticed with the next frame.
    async fn notify(&self, notice: Notice) {
        drop(self.hand_on(Content::Notice(notice)).await);
    }

    async fn hand_on(&self, content: Content) -> Result<(), Gone> {
        self.outlet.queue.send(Parcel { shard: self.shard, content }).await.map_err(|_| Gone)
    }

    fn failed(&self, error: Error) -> SubscribeError {
        if error.is_code(&ErrorCode::NotFound) {
            return SubscribeError::UnknownStream;
        }
        SubscribeError::Failed { shard: self.shard, error }
    }

    fn cursor_error(&self, error: &SubscribeCursorError) -> SubscribeError {
        SubscribeError::Cursor {
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

fn unreadable(what: impl ToString) -> End {
    End::Lost(Error::protocol(what.to_string()))
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

fn json_batch(payloads: &[Bytes], base: Option<Offset>) -> EventBatch {
    let mut events = EventBatch::new(Records::from_payloads(payloads.iter().map(|payload| &**payload)));
    events.base_offset = base;
    events
}
