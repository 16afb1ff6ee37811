//! One feed of the control plane: a snapshot, then changes. Scope: one per kind, inside `Catalog`.
//! Owns: the items of the kind and the place in the feed.
//! Invariants: nothing is removed because an answer was empty, late or an error: only a deletion in the feed, or a
//! complete snapshot at a higher sequence than ever held, removes. An item never goes back to an older version.
//! Not here: when to ask (`catalog`), HTTP (`api`).

use std::collections::BTreeMap;

use felix_wire::control::{
    Assignment, AssignmentChange, AssignmentKey, AssignmentOp, Cache, CacheChange, CacheKey, CatalogOp,
    Changes, Namespace, NamespaceChange, NamespaceKey, Snapshot, Stream, StreamChange, StreamKey, Tenant,
    TenantChange,
};

/// An item that comes through a feed.
pub trait FeedItem: Clone + PartialEq {
    type Key: Ord + Clone;
    type Change;

    fn key(&self) -> Self::Key;

    /// What the change does to its key.
    fn edit(change: Self::Change) -> Edit<Self>;

    /// How new the item is among items of its key; an older one never replaces a newer one.
    fn version(&self) -> u64;

    /// Whether an item of the same version still replaces (`false` where every write has a version of its own).
    const EQUAL_REPLACES: bool;
}

/// One entry of a change feed.
pub struct Edit<T: FeedItem> {
    pub seq: u64,
    pub key: T::Key,
    /// The version the change is about; 0 where the control plane does not say.
    pub version: u64,
    pub what: Written<T>,
}

/// What was done to an item.
pub enum Written<T> {
    Put(T),
    Removed,
    /// Neither: the entry contradicts itself.
    Nonsense,
}

impl<T> Written<T> {
    fn of(removed: bool, item: Option<T>) -> Written<T> {
        match (removed, item) {
            (true, _) => Written::Removed,
            (false, Some(item)) => Written::Put(item),
            (false, None) => Written::Nonsense,
        }
    }
}

/// What an answer did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// Some item was added, replaced or removed.
    pub changed: bool,
    /// More changes are there now.
    pub more: bool,
}

/// The items of one kind, as far as the feed told.
pub struct Feed<T: FeedItem> {
    items: BTreeMap<T::Key, T>,
    /// Where to go on; `None`: a snapshot is needed.
    since: Option<u64>,
    /// The highest sequence ever held: what a snapshot must exceed to remove.
    highest: u64,
    /// Items whose end the feed told, by a deletion or a later life; not those that a snapshot left out.
    ended: Vec<T>,
    /// A snapshot from below `highest` was merged: some items may be gone there.
    unconfirmed: bool,
    synced: bool,
}

impl<T: FeedItem> Default for Feed<T> {
    fn default() -> Feed<T> {
        Feed {
            items: BTreeMap::new(),
            since: None,
            highest: 0,
            ended: Vec::new(),
            unconfirmed: false,
            synced: false,
        }
    }
}

impl<T: FeedItem> Feed<T> {
    /// The sequence to ask changes from, or `None` when a snapshot has to come first.
    pub fn since(&self) -> Option<u64> {
        self.since
    }

    /// Whether a snapshot was ever taken.
    pub fn is_synced(&self) -> bool {
        self.synced
    }

    /// The item of that key.
    pub fn get(&self, key: &T::Key) -> Option<&T> {
        self.items.get(key)
    }

    /// All items in key order.
    pub fn items(&self) -> impl Iterator<Item = &T> {
        self.items.values()
    }

    /// The items whose end was told since the last call.
    pub fn take_ended(&mut self) -> Vec<T> {
        std::mem::take(&mut self.ended)
    }

    /// Takes a snapshot. Below or at the highest sequence ever held it only adds: the control plane was reset, or an
    /// old instance answered, and what it does not name may still be ours.
    pub fn take_snapshot(&mut self, snapshot: Snapshot<T>) -> Taken {
        let mut changed = false;
        let complete = !self.synced || snapshot.next_seq > self.highest;
        if complete {
            let named: std::collections::BTreeSet<T::Key> =
                snapshot.items.iter().map(FeedItem::key).collect();
            let before = self.items.len();
            self.items.retain(|key, _| named.contains(key));
            changed |= self.items.len() != before;
        }
        for item in snapshot.items {
            changed |= self.put(item);
        }
        self.unconfirmed = !complete;
        self.synced = true;
        self.since = Some(snapshot.next_seq);
        self.highest = self.highest.max(snapshot.next_seq);
        Taken { changed, more: false }
    }

    /// Takes the answer to "changes from `since` on". An answer to an older question is ignored; one that shows that
    /// changes are missing (control-plane-api 5) changes nothing and asks for a snapshot.
    pub fn take_changes(&mut self, since: u64, changes: Changes<T::Change>) -> Taken {
        if self.since != Some(since) {
            return Taken::default();
        }
        let edits: Vec<Edit<T>> = changes.items.into_iter().map(T::edit).collect();
        let evicted = match edits.first() {
            Some(first) => first.seq > since,
            None => changes.next_seq > since,
        };
        let ascending = edits.windows(2).all(|pair| matches!(pair, [a, b] if a.seq < b.seq));
        let bounded = edits.last().is_none_or(|last| last.seq < changes.next_seq);
        let sound = ascending && bounded && !edits.iter().any(|edit| matches!(edit.what, Written::Nonsense));
        if evicted || changes.next_seq < since || !sound {
            self.since = None;
            return Taken { changed: false, more: true };
        }
        let more = !edits.is_empty();
        let mut changed = false;
        for edit in edits.into_iter().filter(|edit| edit.seq >= since) {
            changed |= self.apply(edit);
        }
        self.since = Some(changes.next_seq);
        if self.unconfirmed && changes.next_seq > self.highest {
            // Now a snapshot can tell which of the merged items are really gone.
            self.since = None;
        }
        self.highest = self.highest.max(if self.unconfirmed { 0 } else { changes.next_seq });
        Taken { changed, more: more || self.since.is_none() }
    }

    fn apply(&mut self, edit: Edit<T>) -> bool {
        match edit.what {
            Written::Put(item) => self.put(item),
            Written::Nonsense => false,
            Written::Removed => {
                let newer_held = self
                    .items
                    .get(&edit.key)
                    .is_some_and(|held| edit.version != 0 && held.version() > edit.version);
                let gone = if newer_held { None } else { self.items.remove(&edit.key) };
                let removed = gone.is_some();
                self.ended.extend(gone);
                removed
            }
        }
    }

    fn put(&mut self, item: T) -> bool {
        let key = item.key();
        match self.items.get(&key) {
            Some(held) if item.version() < held.version() => false,
            Some(held) if item.version() == held.version() && (!T::EQUAL_REPLACES || *held == item) => false,
            _ => {
                let version = item.version();
                let before = self.items.insert(key, item);
                self.ended.extend(before.filter(|before| before.version() < version));
                true
            }
        }
    }
}

impl FeedItem for Tenant {
    type Key = String;
    type Change = TenantChange;
    const EQUAL_REPLACES: bool = true;

    fn key(&self) -> String {
        self.tenant_id.clone()
    }

    fn edit(change: TenantChange) -> Edit<Tenant> {
        let what = Written::of(change.op == CatalogOp::Deleted, change.tenant);
        Edit { seq: change.seq, key: change.tenant_id, version: 0, what }
    }

    fn version(&self) -> u64 {
        0
    }
}

impl FeedItem for Namespace {
    type Key = NamespaceKey;
    type Change = NamespaceChange;
    const EQUAL_REPLACES: bool = true;

    fn key(&self) -> NamespaceKey {
        NamespaceKey { tenant_id: self.tenant_id.clone(), namespace: self.namespace.clone() }
    }

    fn edit(change: NamespaceChange) -> Edit<Namespace> {
        let what = Written::of(change.op == CatalogOp::Deleted, change.namespace);
        Edit { seq: change.seq, key: change.key, version: 0, what }
    }

    fn version(&self) -> u64 {
        0
    }
}

impl FeedItem for Cache {
    type Key = CacheKey;
    type Change = CacheChange;
    const EQUAL_REPLACES: bool = true;

    fn key(&self) -> CacheKey {
        CacheKey {
            tenant_id: self.tenant_id.clone(),
            namespace: self.namespace.clone(),
            cache: self.cache.clone(),
        }
    }

    fn edit(change: CacheChange) -> Edit<Cache> {
        let what = Written::of(change.op == CatalogOp::Deleted, change.cache);
        Edit { seq: change.seq, key: change.key, version: change.incarnation, what }
    }

    fn version(&self) -> u64 {
        self.incarnation
    }
}

impl FeedItem for Stream {
    type Key = StreamKey;
    type Change = StreamChange;
    const EQUAL_REPLACES: bool = true;

    fn key(&self) -> StreamKey {
        StreamKey {
            tenant_id: self.tenant_id.clone(),
            namespace: self.namespace.clone(),
            stream: self.stream.clone(),
        }
    }

    fn edit(change: StreamChange) -> Edit<Stream> {
        let what = Written::of(change.op == CatalogOp::Deleted, change.stream);
        Edit { seq: change.seq, key: change.key, version: change.incarnation, what }
    }

    fn version(&self) -> u64 {
        self.incarnation
    }
}

impl FeedItem for Assignment {
    type Key = AssignmentKey;
    type Change = AssignmentChange;
    /// The store raises the generation with every write, so one at or below the held one is old news.
    const EQUAL_REPLACES: bool = false;

    fn key(&self) -> AssignmentKey {
        self.key.clone()
    }

    fn edit(change: AssignmentChange) -> Edit<Assignment> {
        let what = Written::of(change.op == AssignmentOp::Unassigned, change.assignment);
        Edit { seq: change.seq, key: change.key, version: change.generation, what }
    }

    fn version(&self) -> u64 {
        self.generation
    }
}
