//! Which lane a record goes to, and what happens when the stream's shards change. Scope: per publisher.
//! Owns: the current route and the change from one route to the next.
//! Invariants: records of one key keep their order across a change: the new lanes send nothing before every old
//! lane has ended its flights and handed over what it still had.
//! Not here: handing items over (`inbox`), what a lane does with them (`driver`).

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use bytes::Bytes;
use felix_wire::client::ShardKind;
use felix_wire::id::ProducerId;
use felix_wire::routing::shard_for;

use crate::client::Shared;
use crate::connection::{Link, Seat, Use};
use crate::error::{Error, PublishError};
use crate::name::StreamName;
use crate::publish::Options;
use crate::publish::driver::Driver;
use crate::publish::inbox::{Inbox, Look, Mode, Pushed};
use crate::publish::item::Item;
use crate::topology::{
    Route, ShardOwner, StreamShards, fetch_producer, fetch_route, known_route, unknown_name,
};

/// The publisher is closed.
#[derive(Debug)]
pub(crate) struct Rejected;

/// What a publisher's handles and lanes share.
pub(crate) struct Core {
    shared: Arc<Shared>,
    name: StreamName,
    options: Options,
    table: RwLock<Arc<Table>>,
    looking: tokio::sync::Mutex<()>,
    closed: AtomicBool,
    lost_frames: AtomicU64,
    /// The producer that new lanes begin with.
    producer: tokio::sync::Mutex<Option<ProducerId>>,
    numbered: AtomicBool,
    /// Those who wait for something that is accepted to be settled.
    hurrying: AtomicUsize,
    /// Somebody found the byte budget used up and does not wait.
    full: AtomicBool,
}

/// While it lives, nothing lingers.
pub(crate) struct Hurry(Arc<Core>);

impl Drop for Hurry {
    fn drop(&mut self) {
        self.0.hurrying.fetch_sub(1, Ordering::AcqRel);
    }
}

/// One route and its lanes.
struct Table {
    version: u64,
    shards: StreamShards,
    place: Mutex<Place>,
    lanes: Vec<Arc<Inbox>>,
}

/// What a look at the route may change without changing the lanes.
struct Place {
    owners: Vec<ShardOwner>,
    durable: Option<bool>,
}

impl Core {
    /// Looks the stream up, asking again for a while when it is not known.
    pub(crate) async fn open(
        shared: Arc<Shared>,
        name: StreamName,
        options: Options,
    ) -> Result<Arc<Self>, PublishError> {
        let route = known_route(&shared, &name, ShardKind::Stream).await?;
        let table = RwLock::new(Arc::new(Table::new(0, route, Mode::Open)));
        Ok(Arc::new(Self {
            shared,
            name,
            options,
            table,
            looking: tokio::sync::Mutex::default(),
            closed: AtomicBool::new(false),
            lost_frames: AtomicU64::new(0),
            producer: tokio::sync::Mutex::default(),
            numbered: AtomicBool::new(false),
            hurrying: AtomicUsize::new(0),
            full: AtomicBool::new(false),
        }))
    }

    pub(crate) fn options(&self) -> &Options {
        &self.options
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(crate) fn name(&self) -> &StreamName {
        &self.name
    }

    pub(crate) fn tenant(&self) -> &str {
        &self.shared.identity.tenant
    }

    /// Bytes of the names in every frame.
    pub(crate) fn names_len(&self) -> usize {
        self.tenant().len() + self.name.namespace().len() + self.name.stream().len()
    }

    pub(crate) fn shard_count(&self) -> u32 {
        self.table().shards.shards
    }

    /// Hands an item to the lane of its key, starting the lane if it is its first.
    pub(crate) fn push(self: &Arc<Self>, item: Item) -> Result<(), Rejected> {
        let mut item = item;
        loop {
            if self.closed.load(Ordering::Acquire) {
                return Err(Rejected);
            }
            let table = self.table();
            let shard = table.shard_of(item.key.as_ref());
            let Some(inbox) = table.lanes.get(shard as usize) else { return Err(Rejected) };
            match inbox.push(item) {
                Pushed::Taken { start } => {
                    if start {
                        self.start_lane(shard, inbox.clone(), &table);
                    }
                    return Ok(());
                }
                Pushed::Closed => return Err(Rejected),
                // The table has been replaced already: the next round finds the new one.
                Pushed::Retired(back) => item = back,
            }
        }
    }

    /// Waits until every lane has settled what it was given before.
    pub(crate) async fn flush(&self) -> Result<(), PublishError> {
        loop {
            let table = self.table();
            let waits: Vec<_> = table.lanes.iter().filter_map(|inbox| inbox.request_flush()).collect();
            for wait in waits {
                // A lane that ends instead of answering has handed its items on or settled them.
                drop(wait.await);
            }
            if Arc::ptr_eq(&table, &self.table()) {
                break;
            }
        }
        match self.lost_frames.swap(0, Ordering::AcqRel) {
            0 => Ok(()),
            frames => Err(PublishError::MayBeLost { frames }),
        }
    }

    /// Unacknowledged frames that may not have arrived; the next flush tells.
    pub(crate) fn count_lost(&self, frames: u64) {
        self.lost_frames.fetch_add(frames, Ordering::AcqRel);
    }

    /// No new items; lanes end when they have settled what they have.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        for inbox in &self.table().lanes {
            inbox.close();
        }
    }

    /// Nothing lingers while the guard lives: whoever has it waits for what is accepted, so no more will come to fill
    /// frames. `None` when nothing lingers anyway.
    pub(crate) fn hurry(self: &Arc<Self>) -> Option<Hurry> {
        if self.options.batch.linger.is_zero() {
            return None;
        }
        self.hurrying.fetch_add(1, Ordering::AcqRel);
        self.ring_all();
        Some(Hurry(self.clone()))
    }

    /// Nothing lingers until this is taken back: there was no room in the byte budget for the next send.
    pub(crate) fn set_full(&self, full: bool) {
        if !self.options.batch.linger.is_zero() && self.full.swap(full, Ordering::AcqRel) != full && full {
            self.ring_all();
        }
    }

    /// Whether frames that are not full go at once.
    pub(crate) fn is_hurried(&self) -> bool {
        self.hurrying.load(Ordering::Acquire) > 0 || self.full.load(Ordering::Acquire)
    }

    fn ring_all(&self) {
        self.table().lanes.iter().for_each(|inbox| inbox.bell.notify_one());
    }

    /// A connection with room for one more publish stream to `leader`, else to whoever owns `shard`.
    pub(crate) async fn link_to(
        &self,
        shard: u32,
        leader: Option<ShardOwner>,
    ) -> Result<(Arc<Link>, Seat), Error> {
        let owner = leader.or_else(|| self.table().owner(shard));
        self.shared.link_to(owner.as_ref(), Use::Lane).await
    }

    /// The stream is on disk, as far as a broker told.
    pub(crate) fn durable(&self) -> Option<bool> {
        self.table().lock().durable
    }

    /// A producer for a lane whose last one was `spent`; one for all lanes that have not spent it.
    ///
    /// # Errors
    /// What the request said.
    pub(crate) async fn producer(&self, link: &Link, spent: Option<ProducerId>) -> Result<ProducerId, Error> {
        let mut current = self.producer.lock().await;
        if let Some(producer) = current.filter(|producer| Some(*producer) != spent) {
            return Ok(producer);
        }
        let producer = fetch_producer(link).await?;
        *current = Some(producer);
        self.numbered.store(true, Ordering::Release);
        Ok(producer)
    }

    /// A producer was had.
    pub(crate) fn is_numbered(&self) -> bool {
        self.numbered.load(Ordering::Acquire)
    }

    /// Asks for the route again, for a lane of the table `seen`. Lanes learn the outcome by their inbox: another
    /// number of shards retires them all, anything else is a [`Look`].
    pub(crate) async fn look_again(self: Arc<Self>, seen: u64) {
        let _one_at_a_time = self.looking.lock().await;
        let old = self.table();
        if old.version != seen {
            return;
        }
        let link = match self.shared.entry().await {
            Ok(link) => link,
            Err(error) => return old.tell(&Look::Failed(error)),
        };
        let route = match fetch_route(&link, self.tenant(), &self.name, ShardKind::Stream).await {
            Ok(route) => route,
            Err(error) => {
                self.shared.note(&error, &link);
                return old.tell(&Look::Failed(error));
            }
        };
        if route.shards.shards == 0 {
            return old.tell(&Look::Gone(PublishError::Refused(unknown_name(ShardKind::Stream))));
        }
        if route.shards == old.shards {
            *old.lock() = Place { owners: route.owners, durable: route.durable };
            return old.tell(&Look::SameShards);
        }
        self.change_table(&old, route).await;
    }

    async fn change_table(self: &Arc<Self>, old: &Arc<Table>, route: Route) {
        // Another stream under the name, so its shards have not seen the producer; but nobody should depend on that.
        *self.producer.lock().await = None;
        let next = Arc::new(Table::new(old.version + 1, route, Mode::Held));
        *self.table.write().unwrap_or_else(PoisonError::into_inner) = next.clone();
        // All at once: each ends its flights, then gives back the rest.
        let leaving: Vec<_> = old.lanes.iter().map(|inbox| inbox.retire()).collect();
        let mut moved: Vec<VecDeque<Item>> = next.lanes.iter().map(|_| VecDeque::new()).collect();
        for wait in leaving {
            for item in wait.await.unwrap_or_default() {
                let shard = next.shard_of(item.key.as_ref()) as usize;
                if let Some(queue) = moved.get_mut(shard) {
                    queue.push_back(item);
                }
            }
        }
        for ((inbox, items), shard) in next.lanes.iter().zip(moved).zip(0..) {
            if inbox.release(items) {
                self.start_lane(shard, inbox.clone(), &next);
            }
        }
        if self.closed.load(Ordering::Acquire) {
            self.close();
        }
    }

    fn start_lane(self: &Arc<Self>, shard: u32, inbox: Arc<Inbox>, table: &Table) {
        let driver = Driver::new(self.clone(), shard, inbox, table.version, table.shards);
        tokio::spawn(driver.run());
    }

    fn table(&self) -> Arc<Table> {
        self.table.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Table {
    fn new(version: u64, route: Route, mode: Mode) -> Self {
        let lanes = (0..route.shards.shards).map(|_| Arc::new(Inbox::new(mode))).collect();
        let place = Mutex::new(Place { owners: route.owners, durable: route.durable });
        Self { version, shards: route.shards, place, lanes }
    }

    fn shard_of(&self, key: Option<&Bytes>) -> u32 {
        shard_for(key.map(|key| &**key), self.shards.shards, self.shards.mapping).get()
    }

    fn owner(&self, shard: u32) -> Option<ShardOwner> {
        self.lock().owners.get(shard as usize).cloned()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Place> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, look: &Look) {
        for inbox in &self.lanes {
            inbox.set_look(look.clone());
        }
    }
}
