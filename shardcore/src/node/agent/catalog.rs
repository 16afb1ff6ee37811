//! What the control plane said, and what to ask it next. Sans-io. Scope: per process, on the admin thread.
//! Owns: the five feeds, the nodes' addresses, and when each is asked again.
//! Invariants: each thing is asked at most once at a time; a failed or empty answer removes nothing (see `feed`); the
//! first snapshots come in the order tenants, namespaces, caches, streams, assignments.
//! Not here: HTTP (`api`), what a core is told (`routes`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use felix_runtime::Tick;
use felix_wire::control::{
    Assignment, AssignmentKey, Cache, Changes, Namespace, NodeView, ResourceKind, Snapshot, Stream,
    StreamKey, Tenant,
};

use super::backoff::Backoff;
use super::feed::{Feed, FeedItem, Taken};
use crate::snapshot::Resource;

/// How long a question for assignment changes may wait for one.
pub const LONG_POLL: Duration = Duration::from_secs(20);
/// Least time between two questions for assignments when the first answer came back empty at once.
const EMPTY_POLL_GAP: Duration = Duration::from_millis(250);

/// What can be asked. The order is the order of the first questions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Tenants,
    Namespaces,
    Caches,
    Streams,
    Assignments,
    Nodes,
}

const KINDS: [Kind; 6] =
    [Kind::Tenants, Kind::Namespaces, Kind::Caches, Kind::Streams, Kind::Assignments, Kind::Nodes];

/// One question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fetch {
    Snapshot(Kind),
    /// Changes from `since` on; the server may wait `wait` for the first.
    Changes {
        kind: Kind,
        since: u64,
        wait: Duration,
    },
    /// All nodes.
    Nodes,
}

impl Fetch {
    /// What it asks about.
    pub fn kind(&self) -> Kind {
        match self {
            Fetch::Snapshot(kind) | Fetch::Changes { kind, .. } => *kind,
            Fetch::Nodes => Kind::Nodes,
        }
    }
}

/// An answer about one feed.
pub enum FeedAnswer<T: FeedItem> {
    Snapshot(Snapshot<T>),
    /// `since` is the one of the question.
    Changes {
        since: u64,
        changes: Changes<T::Change>,
    },
}

/// One answer.
pub enum Answer {
    Tenants(FeedAnswer<Tenant>),
    Namespaces(FeedAnswer<Namespace>),
    Caches(FeedAnswer<Cache>),
    Streams(FeedAnswer<Stream>),
    Assignments(FeedAnswer<Assignment>),
    Nodes(Vec<NodeView>),
    /// No answer, or one that is not understood.
    Failed(Kind),
}

/// When one kind is asked next.
#[derive(Clone, Copy, Default)]
struct Pace {
    in_flight: bool,
    /// Something happened while the question was in flight: its answer may be too old.
    again: bool,
    due: Tick,
    backoff: Backoff,
}

/// Everything the control plane told this node.
pub struct Catalog {
    sync_interval: Duration,
    tenants: Feed<Tenant>,
    namespaces: Feed<Namespace>,
    caches: Feed<Cache>,
    streams: Feed<Stream>,
    assignments: Feed<Assignment>,
    /// Client address of each node that has one.
    addresses: BTreeMap<String, Arc<str>>,
    paces: [Pace; KINDS.len()],
    changed: bool,
    /// Assignments changed, and these have not been read since.
    streams_may_be_older: bool,
    caches_may_be_older: bool,
}

impl Catalog {
    /// Knows nothing yet. `sync_interval` is the time between two readings of the catalog.
    pub fn new(sync_interval: Duration) -> Catalog {
        Catalog {
            sync_interval,
            tenants: Feed::default(),
            namespaces: Feed::default(),
            caches: Feed::default(),
            streams: Feed::default(),
            assignments: Feed::default(),
            addresses: BTreeMap::new(),
            paces: [Pace::default(); KINDS.len()],
            changed: false,
            streams_may_be_older: false,
            caches_may_be_older: false,
        }
    }

    /// The next question that is due, if any. It counts as asked until `answered`.
    pub fn next_fetch(&mut self, now: Tick) -> Option<Fetch> {
        for kind in KINDS {
            let fetch = self.fetch_of(kind);
            let pace = &mut self.paces[kind as usize];
            if !pace.in_flight && pace.due <= now {
                pace.in_flight = true;
                return Some(fetch);
            }
            if !self.has_snapshot(kind) {
                // The later kinds refer to this one: first things first.
                return None;
            }
        }
        None
    }

    /// When `next_fetch` may have something, if no answer comes before.
    pub fn next_due(&self) -> Option<Tick> {
        let asked_first = KINDS.iter().position(|kind| !self.has_snapshot(*kind)).unwrap_or(KINDS.len() - 1);
        self.paces.iter().take(asked_first + 1).filter(|pace| !pace.in_flight).map(|pace| pace.due).min()
    }

    /// Takes the answer to a question of `next_fetch`.
    pub fn answered(&mut self, answer: Answer, now: Tick) {
        let (kind, taken) = match answer {
            Answer::Tenants(answer) => (Kind::Tenants, take(&mut self.tenants, answer)),
            Answer::Namespaces(answer) => (Kind::Namespaces, take(&mut self.namespaces, answer)),
            Answer::Caches(answer) => (Kind::Caches, take(&mut self.caches, answer)),
            Answer::Streams(answer) => (Kind::Streams, take(&mut self.streams, answer)),
            Answer::Assignments(answer) => {
                let first = !self.assignments.is_synced();
                let is_about = |wanted| match &answer {
                    FeedAnswer::Snapshot(_) => true,
                    FeedAnswer::Changes { changes, .. } => {
                        changes.items.iter().any(|change| change.key.kind == wanted)
                    }
                };
                let (streams, caches) = (is_about(ResourceKind::Stream), is_about(ResourceKind::Cache));
                let taken = take(&mut self.assignments, answer);
                if taken.changed && !first {
                    self.hurry_catalog(now);
                    self.streams_may_be_older |= streams;
                    self.caches_may_be_older |= caches;
                }
                (Kind::Assignments, taken)
            }
            Answer::Nodes(nodes) => (Kind::Nodes, self.take_nodes(nodes)),
            Answer::Failed(kind) => {
                let pace = &mut self.paces[kind as usize];
                pace.in_flight = false;
                pace.due = now + pace.backoff.failed();
                self.streams_may_be_older &= kind != Kind::Streams;
                self.caches_may_be_older &= kind != Kind::Caches;
                return;
            }
        };
        self.changed |= taken.changed;
        // Only the ends of streams and caches matter to anybody.
        drop((self.tenants.take_ended(), self.namespaces.take_ended()));
        drop(self.assignments.take_ended());
        let gap = match kind {
            _ if taken.more => Duration::ZERO,
            Kind::Assignments => EMPTY_POLL_GAP,
            _ => self.sync_interval,
        };
        let pace = &mut self.paces[kind as usize];
        pace.in_flight = false;
        pace.backoff.succeeded();
        let again = std::mem::take(&mut pace.again);
        pace.due = if again { now } else { now + gap };
        if !again && !taken.more {
            self.streams_may_be_older &= kind != Kind::Streams;
            self.caches_may_be_older &= kind != Kind::Caches;
        }
    }

    /// Whether every feed has been read once: from then on the node may serve.
    pub fn is_synced(&self) -> bool {
        KINDS.iter().all(|kind| self.has_snapshot(*kind))
    }

    /// Whether anything changed since the last call. Changed assignments count once streams and caches were read after them,
    /// or could not be: the assignments of a deleted one go with it, and without its end they look like a move.
    pub fn take_changed(&mut self) -> bool {
        let older = self.streams_may_be_older || self.caches_may_be_older;
        !older && std::mem::take(&mut self.changed)
    }

    /// Tenants in the order of their ids.
    pub fn tenants(&self) -> impl Iterator<Item = &Tenant> {
        self.tenants.items()
    }

    /// Whether the tenant is there.
    pub fn has_tenant(&self, tenant: &str) -> bool {
        self.tenants.get(&tenant.to_owned()).is_some()
    }

    /// Streams in the order of their names.
    pub fn streams(&self) -> impl Iterator<Item = &Stream> {
        self.streams.items()
    }

    /// Streams that were deleted, or live on under a later incarnation, since the last call.
    pub fn take_ended_streams(&mut self) -> Vec<Stream> {
        self.streams.take_ended()
    }

    /// Caches in the order of their names.
    pub fn caches(&self) -> impl Iterator<Item = &Cache> {
        self.caches.items()
    }

    /// Caches that were deleted, or live on under a later incarnation, since the last call.
    pub fn take_ended_caches(&mut self) -> Vec<Cache> {
        self.caches.take_ended()
    }

    /// The assignment of one shard of a stream or cache.
    pub fn assignment(&self, resource: Resource, key: &StreamKey, shard: u32) -> Option<&Assignment> {
        self.assignments.get(&AssignmentKey {
            tenant_id: key.tenant_id.clone(),
            namespace: key.namespace.clone(),
            kind: match resource {
                Resource::Stream => ResourceKind::Stream,
                Resource::Cache => ResourceKind::Cache,
            },
            stream: key.stream.clone(),
            shard,
        })
    }

    /// Where clients reach a node.
    pub fn address(&self, node: &str) -> Option<&Arc<str>> {
        self.addresses.get(node)
    }

    /// Nodes with a client address.
    pub fn node_count(&self) -> usize {
        self.addresses.len()
    }

    fn fetch_of(&self, kind: Kind) -> Fetch {
        let (since, wait) = match kind {
            Kind::Tenants => (self.tenants.since(), Duration::ZERO),
            Kind::Namespaces => (self.namespaces.since(), Duration::ZERO),
            Kind::Caches => (self.caches.since(), Duration::ZERO),
            Kind::Streams => (self.streams.since(), Duration::ZERO),
            Kind::Assignments => (self.assignments.since(), LONG_POLL),
            Kind::Nodes => return Fetch::Nodes,
        };
        match since {
            Some(since) => Fetch::Changes { kind, since, wait },
            None => Fetch::Snapshot(kind),
        }
    }

    fn has_snapshot(&self, kind: Kind) -> bool {
        match kind {
            Kind::Tenants => self.tenants.is_synced(),
            Kind::Namespaces => self.namespaces.is_synced(),
            Kind::Caches => self.caches.is_synced(),
            Kind::Streams => self.streams.is_synced(),
            Kind::Assignments => self.assignments.is_synced(),
            // Addresses only help clients along; nothing waits for them.
            Kind::Nodes => true,
        }
    }

    /// A new assignment usually belongs to a stream or cache that was just created, and a restarted node has other ports.
    fn hurry_catalog(&mut self, now: Tick) {
        for kind in [Kind::Tenants, Kind::Namespaces, Kind::Caches, Kind::Streams, Kind::Nodes] {
            let pace = &mut self.paces[kind as usize];
            pace.due = pace.due.min(now);
            pace.again = pace.in_flight;
        }
    }

    /// A node that is not named keeps its last address: it is only a hint for clients.
    fn take_nodes(&mut self, nodes: Vec<NodeView>) -> Taken {
        let mut changed = false;
        for view in nodes {
            let Some(addr) = view.node.spec.client_addr else { continue };
            if self.addresses.get(&view.node.node_id).map(AsRef::as_ref) != Some(addr.as_str()) {
                self.addresses.insert(view.node.node_id, addr.into());
                changed = true;
            }
        }
        Taken { changed, more: false }
    }
}

fn take<T: FeedItem>(feed: &mut Feed<T>, answer: FeedAnswer<T>) -> Taken {
    match answer {
        FeedAnswer::Snapshot(snapshot) => feed.take_snapshot(snapshot),
        FeedAnswer::Changes { since, changes } => feed.take_changes(since, changes),
    }
}
