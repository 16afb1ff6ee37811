//! What the admin thread tells every core, and what a core tells it. Scope: values, made once and never changed.
//! Owns: nothing; a snapshot is immutable, shared by `Arc`, and sent to each core by mailbox.
//! Invariants: a core serves a shard only at the generation its newest `Routes` names for it.
//! Not here: how the snapshots are made (`node::agent`), what a core does with them (`turn`).

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use felix_logstore::id::{Run, ShardKey};
use felix_logstore::log::LogState;
use felix_logstore::recovery::Recovered;
use felix_logstore::retention::Retention;
use felix_runtime::clock::Tick;
use felix_runtime::planted::{self, Defect};
use felix_wire::id::{CoreId, Generation, Incarnation, NodeId, ShardIndex};
use felix_wire::routing::KeyMapping;
use jsonwebtoken::DecodingKey;

use crate::hash::HashState;
use crate::projection::group::GroupSettings;
use crate::store::{LogSource, VolumeStart};
use crate::turn::tenants::TenantReport;

/// What a route is of. A stream and a cache may have the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Resource {
    Stream,
    Cache,
}

/// What a log of a shard is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LogRole {
    /// The records of a stream.
    Records,
    /// The changes of a cache.
    Cache,
    /// The adds of the counters beside a cache.
    Counters,
    /// The changes of the consumer groups of a stream's shard.
    Groups,
}

impl LogRole {
    /// The logs of one durable shard.
    pub fn of(resource: Resource) -> &'static [LogRole] {
        match resource {
            Resource::Stream => &[LogRole::Records, LogRole::Groups],
            Resource::Cache => &[LogRole::Cache, LogRole::Counters],
        }
    }

    fn word(self) -> &'static str {
        match self {
            LogRole::Records => "stream",
            LogRole::Cache => "cache",
            LogRole::Counters => "counters",
            LogRole::Groups => "groups",
        }
    }

    /// Whether the shard is not served without it.
    pub fn is_vital(self) -> bool {
        self != LogRole::Groups
    }
}

/// Tenant, namespace and name of a stream or cache.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamName {
    pub tenant: Arc<str>,
    pub namespace: Arc<str>,
    pub stream: Arc<str>,
}

impl StreamName {
    fn key(&self) -> String {
        format!("{}\0{}\0{}", self.tenant, self.namespace, self.stream)
    }
}

/// One life of one stream or cache on this node: unique for the process, never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamUid(pub u64);

/// One shard of one life of a stream or cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ShardId {
    pub stream: StreamUid,
    pub shard: ShardIndex,
}

/// Who serves a shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owner {
    /// A core of this node, at exactly this generation.
    Here { core: CoreId, generation: Generation },
    /// Another node. `addr` is its client listener, where known.
    Node { node: NodeId, addr: Option<Arc<str>>, generation: Generation },
    /// Nobody. The reason is one of client-protocol 8 (`not_assigned`, `owner_unavailable`, ...).
    Nobody { reason: &'static str },
    /// Nobody, until somebody has done something about what is wrong with its log here.
    NoLog { why: Arc<str> },
}

/// A stream or cache as the catalog and the assignments describe it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamRoute {
    pub resource: Resource,
    pub uid: StreamUid,
    pub name: StreamName,
    pub incarnation: Incarnation,
    pub mapping: KeyMapping,
    /// It is durable: each shard has logs; that of a stream with this retention, those of a cache with none.
    pub log: Option<Retention>,
    /// One entry per shard, in shard order; never empty.
    pub owners: Vec<Owner>,
}

impl StreamRoute {
    /// Whether the stream is durable.
    pub fn is_durable(&self) -> bool {
        self.log.is_some()
    }

    /// The name of a log of a shard.
    pub fn log_key(&self, role: LogRole, shard: ShardIndex) -> ShardKey {
        log_key(role, &self.name, self.incarnation, shard)
    }

    /// The names of all logs of a shard; none when it has none.
    pub fn log_keys(&self, shard: ShardIndex) -> impl Iterator<Item = ShardKey> {
        let roles = if self.is_durable() { LogRole::of(self.resource) } else { &[] };
        roles.iter().map(move |role| self.log_key(*role, shard))
    }

    /// Width of the stream.
    pub fn shards(&self) -> u32 {
        u32::try_from(self.owners.len()).unwrap_or(u32::MAX)
    }
}

/// The name of a shard's log: a hash, the same on every node and at every start.
pub fn log_key(role: LogRole, name: &StreamName, incarnation: Incarnation, shard: ShardIndex) -> ShardKey {
    let StreamName { tenant, namespace, stream } = name;
    let text = format!("{}\0{tenant}\0{namespace}\0{stream}\0{}", role.word(), shard.0);
    let hash = digest(&SHA256, text.as_bytes());
    let name = hash.as_ref().iter().take(16).fold(0, |name, byte| (name << 8) | u128::from(*byte));
    if planted::is(Defect::NamesakeLog) {
        return ShardKey { name, incarnation: Incarnation(1) };
    }
    ShardKey { name, incarnation }
}

/// All streams and caches this node knows. Replaced whole.
#[derive(Debug, Default)]
pub struct Routes {
    /// Rises with every snapshot; a core ignores an older one.
    pub version: u64,
    /// By `tenant NUL namespace NUL stream`: catalog names hold no NUL, so no other triple has the same key.
    streams: HashMap<Box<str>, Arc<StreamRoute>, HashState>,
    caches: HashMap<Box<str>, Arc<StreamRoute>, HashState>,
    by_uid: HashMap<StreamUid, Arc<StreamRoute>, HashState>,
    tenants: HashMap<Arc<str>, (), foldhash::fast::RandomState>,
}

impl Routes {
    /// A snapshot of `routes`; `tenants` are those of the synced catalog (a tenant may have no stream).
    pub fn new(
        version: u64,
        routes: impl IntoIterator<Item = Arc<StreamRoute>>,
        tenants: impl IntoIterator<Item = Arc<str>>,
    ) -> Routes {
        let mut all =
            Routes { version, tenants: tenants.into_iter().map(|t| (t, ())).collect(), ..Routes::default() };
        for route in routes {
            all.by_uid.insert(route.uid, Arc::clone(&route));
            let names = match route.resource {
                Resource::Stream => &mut all.streams,
                Resource::Cache => &mut all.caches,
            };
            names.insert(route.name.key().into_boxed_str(), route);
        }
        all
    }

    /// The stream of that name. `scratch` is overwritten; keeping it saves an allocation per call.
    pub fn stream(&self, name: (&str, &str, &str), scratch: &mut String) -> Option<&Arc<StreamRoute>> {
        write_key(name, scratch);
        self.streams.get(scratch.as_str())
    }

    /// The cache of that name; `scratch` as with `stream`.
    pub fn cache(&self, name: (&str, &str, &str), scratch: &mut String) -> Option<&Arc<StreamRoute>> {
        write_key(name, scratch);
        self.caches.get(scratch.as_str())
    }

    /// Whether the catalog has been read: before that nobody can say what there is.
    pub fn is_known(&self) -> bool {
        self.version > 0
    }

    /// A life of a stream; nothing when it is over.
    pub fn route(&self, stream: StreamUid) -> Option<&Arc<StreamRoute>> {
        self.by_uid.get(&stream)
    }

    /// Who serves a shard; nothing when its stream is gone.
    pub fn owner(&self, shard: ShardId) -> Option<&Owner> {
        self.by_uid.get(&shard.stream)?.owners.get(shard.shard.0 as usize)
    }

    /// Whether the catalog holds the tenant.
    pub fn has_tenant(&self, tenant: &str) -> bool {
        self.tenants.contains_key(tenant)
    }

    /// Every stream and cache, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<StreamRoute>> {
        self.streams.values().chain(self.caches.values())
    }
}

fn write_key(name: (&str, &str, &str), scratch: &mut String) {
    scratch.clear();
    scratch.reserve(name.0.len() + name.1.len() + name.2.len() + 2);
    for (i, part) in [name.0, name.1, name.2].into_iter().enumerate() {
        if i > 0 {
            scratch.push('\0');
        }
        scratch.push_str(part);
    }
}

/// An outcome of asking for a key set stands for this long: nobody is asked about a tenant again before.
pub const KEYS_STAND_FOR: Duration = Duration::from_secs(5);

/// Verification keys of every tenant whose key set was fetched.
#[derive(Default)]
pub struct Keys {
    /// Rises with every snapshot.
    pub version: u64,
    pub tenants: HashMap<Arc<str>, TenantKeys, foldhash::fast::RandomState>,
}

impl Keys {
    /// Whether a key of `tenant` that was missed at `since` and is not here does not exist. Otherwise a newer snapshot may
    /// have it: this one was made for somebody else's question, or before this one was asked.
    pub fn answers(&self, tenant: &str, since: Tick) -> bool {
        let fetched = self.tenants.get(tenant).and_then(|keys| keys.fetched_at);
        fetched.is_some_and(|at| at + KEYS_STAND_FOR >= since)
    }
}

/// The keys of one tenant. A tenant with an empty list was asked for and has none (or the fetch failed).
#[derive(Clone, Default)]
pub struct TenantKeys {
    /// (key id, key), current and verify-only ones.
    pub keys: Vec<(Arc<str>, DecodingKey)>,
    /// When that was known to be all; never when no question about the tenant has ended well.
    pub fetched_at: Option<Tick>,
}

/// What a subscriber that does not keep up gets (semantics 4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SlowSubscriber {
    /// Claims of the shard stop until it has caught up.
    Block,
    /// New records are skipped for it until its queue has room.
    DropNew,
    /// Its oldest queued records are skipped.
    DropOld,
}

/// Bounds and settings of one core. All byte counts are per core unless they say otherwise.
#[derive(Clone, Debug)]
pub struct CoreLimits {
    /// Largest frame payload accepted, at most 16 MiB.
    pub frame_bytes_max: u32,
    /// Largest frame payload on a stream that has not authenticated.
    pub preauth_frame_bytes_max: u32,
    /// Streams of a connection on which nothing has authenticated.
    pub preauth_streams_max: u32,
    /// Streams an authenticated connection may have open.
    pub streams_max: u32,
    /// From the handshake to the first successful `auth` of a connection.
    pub auth_timeout: Duration,
    /// Connections of this core, and from one address.
    pub connections_max: u32,
    pub connections_per_ip_max: u32,
    /// Unfinished frames of one connection together.
    pub partial_frame_bytes_max: usize,
    /// Parked publishes of one stream.
    pub parked_bytes_per_stream: usize,
    /// Acked publishes a stream may have unanswered (PUBLISH_PIPELINE).
    pub publish_window: u32,
    /// How long an acked publish may stay parked before it is refused `overloaded`.
    pub publish_queue_wait: Duration,
    /// How long a publish may be on its way to the disk before it is answered "not known".
    pub publish_confirm_wait: Duration,
    /// Records and bytes of a live event frame (at least one record).
    pub live_frame_records: u32,
    pub live_frame_bytes: usize,
    /// Records and bytes of a history frame.
    pub history_frame_records: u32,
    pub history_frame_bytes: usize,
    /// Queue of a subscriber: frames by default and at most on request, and bytes whatever the count.
    pub subscriber_queue_frames: u32,
    pub subscriber_queue_frames_max: u32,
    pub subscriber_queue_bytes: usize,
    /// The queues of all subscribers of the core together; over it each shard's get an equal share.
    pub subscriber_queues_bytes_max: usize,
    pub slow_subscriber: SlowSubscriber,
    pub subscriptions_per_connection: u32,
    pub subscriptions_max: u32,
    /// Replay ring of a shard.
    pub ring_records_max: u32,
    pub ring_bytes_max: usize,
    /// All rings of the core together.
    pub rings_bytes_max: usize,
    /// Requests and bytes one core may have unanswered at one other core.
    pub pair_credit_items: u32,
    pub pair_credit_bytes: usize,
    /// Receive windows (architecture 7).
    pub stream_window: u32,
    pub conn_window_before_auth: u32,
    pub conn_window: u32,
    /// All receive windows of the core's authenticated connections together; unfinished frames may hold as much again,
    /// and at least two of them.
    pub windows_bytes_max: usize,
    /// Shed unacked publishes of a full shard instead of waiting (the original's behaviour).
    pub shed: bool,
    /// Half of the drain budget is a grace for open connections.
    pub drain_timeout: Duration,
    /// How long to wait after the last answer for the peer's acknowledgement before CONNECTION_CLOSE.
    pub close_wait: Duration,
    /// Token checks: clock leeway.
    pub token_leeway: Duration,
    /// Tenants with numbers of their own; the others share one row.
    pub tenant_labels_max: u32,
    /// Requests about caches, counters and the like that a stream may have unanswered; then it is not read on.
    pub asks_per_stream: u32,
    /// Those of all connections of the core, and the bytes of their keys and values; more are refused.
    pub asks_max: u32,
    pub asks_bytes_max: usize,
    /// What the shards of caches of the core may hold of values in memory, all together; those without a log hold their
    /// keys in it too.
    pub cache_bytes_max: usize,
    /// How consumer groups behave, and how long a poll may wait.
    pub groups: GroupSettings,
    pub group_wait_max: Duration,
    /// There are folders for logs, so consumer groups are served.
    pub has_logs: bool,
}

impl Default for CoreLimits {
    fn default() -> CoreLimits {
        const MIB: usize = 1 << 20;
        CoreLimits {
            frame_bytes_max: 16 << 20,
            preauth_frame_bytes_max: 64 << 10,
            preauth_streams_max: 16,
            streams_max: 1_024,
            auth_timeout: Duration::from_secs(10),
            connections_max: 8_192,
            connections_per_ip_max: 512,
            partial_frame_bytes_max: 16 * MIB,
            parked_bytes_per_stream: 4 * MIB,
            publish_window: 256,
            publish_queue_wait: Duration::from_millis(2_000),
            publish_confirm_wait: Duration::from_secs(60),
            live_frame_records: 64,
            live_frame_bytes: 256 << 10,
            history_frame_records: 256,
            history_frame_bytes: MIB,
            subscriber_queue_frames: 512,
            subscriber_queue_frames_max: 4_096,
            subscriber_queue_bytes: 16 * MIB,
            subscriber_queues_bytes_max: 1_024 * MIB,
            slow_subscriber: SlowSubscriber::DropNew,
            subscriptions_per_connection: 4_096,
            subscriptions_max: 16_384,
            ring_records_max: 1_024,
            ring_bytes_max: 64 * MIB,
            rings_bytes_max: 1_024 * MIB,
            pair_credit_items: 1_024,
            pair_credit_bytes: 64 * MIB,
            stream_window: 4 << 20,
            conn_window_before_auth: 256 << 10,
            conn_window: 16 << 20,
            windows_bytes_max: 4_096 * MIB,
            shed: false,
            drain_timeout: Duration::from_secs(25),
            close_wait: Duration::from_secs(1),
            token_leeway: Duration::from_secs(5),
            tenant_labels_max: 100,
            asks_per_stream: 256,
            asks_max: 16_384,
            asks_bytes_max: 256 * MIB,
            cache_bytes_max: 512 * MIB,
            groups: GroupSettings::default(),
            group_wait_max: Duration::from_secs(30),
            has_logs: true,
        }
    }
}

/// What is to become of a log. Given to the one core that is to have it, in order.
#[derive(Debug)]
pub enum LogOrder {
    /// It may be opened as soon as the routes give its shard to the core.
    Open { key: ShardKey, volume: u16, source: LogSource },
    /// It is to be given away; `LogReleased` follows.
    Release { key: ShardKey },
    /// Its stream was deleted, by name and incarnation; `LogDeleted` follows when that is durable. `source` as far as it is
    /// not open.
    Delete { key: ShardKey, volume: u16, source: LogSource },
}

/// What recovery found on one volume.
#[derive(Debug)]
pub struct RecoveredVolume {
    pub run: Run,
    pub logs: Vec<LogState>,
    /// Logs that cannot be served, and why.
    pub refused: Vec<(ShardKey, String)>,
    /// Logs whose last bytes, which nobody was promised, were cut off.
    pub torn: usize,
}

impl From<Recovered> for RecoveredVolume {
    fn from(found: Recovered) -> RecoveredVolume {
        let refused = found.refused.iter().map(|refused| (refused.key, refused.to_string())).collect();
        RecoveredVolume { run: found.run, logs: found.logs, refused, torn: found.torn.len() }
    }
}

/// From the admin thread to a core.
pub enum ToCore {
    Routes(Arc<Routes>),
    Keys(Arc<Keys>),
    /// New connections use this configuration; live ones stay.
    Tls(Arc<rustls::ServerConfig>),
    /// Recovery has ended: engines can be opened. Comes once, before any order.
    Volumes(Vec<VolumeStart>),
    Log(LogOrder),
    /// Refuse new connections, settle, answer what runs, close; then `FromCore::Drained`.
    Drain,
    /// Close everything at once and end the loop.
    Stop,
}

/// From a core to the admin thread.
pub enum FromCore {
    /// The core's socket is served.
    Ready { core: CoreId, addr: SocketAddr },
    /// The volumes can be written, or the reason why not. From the first core only, once.
    Recovered(Result<Vec<RecoveredVolume>, String>),
    /// A core cannot use its volumes.
    StoreFailed { core: CoreId, why: String },
    /// A log is open on this core no more, and where it comes from for the next one.
    LogReleased { key: ShardKey, volume: u16, source: LogSource },
    /// The files of a log are gone.
    LogDeleted { key: ShardKey },
    /// A core refuses writes to a volume for want of space, or takes them again.
    Space { core: CoreId, volume: u16, writes: bool },
    /// A token names a key that the newest `Keys` does not hold. Answered by a newer `Keys`, also when it was not found.
    NeedKeys { tenant: Arc<str>, kid: Arc<str> },
    /// What was counted for each tenant; at most once per second.
    Tenants(TenantReport),
    /// All connections are closed.
    Drained { core: CoreId },
}
