//! What one seed does with caches, counters and consumer groups: on top of the durable plan of the same seed, made smaller.
//! Scope: one per simulation of requests. Invariants: everything is drawn from the seed by generators of its own; what a
//! history could not judge is left out: streams are not deleted, nothing is removed by retention, and power is lost only where
//! answers wait for the sync.
//! Not here: the rest of the plan (`plan`, `storage_plan`).

use std::time::Duration;

use felix_logstore::id::Fsync;
use felix_logstore::retention::Retention;
use felix_runtime::clock::Tick;
use felix_runtime::sim::SimRng;
use felix_wire::routing::{KeyMapping, shard_for};

use super::plan::{Happening, Plan};
use super::storage_plan::{End, StorageHappening, StoragePlan};

const MS: Duration = Duration::from_millis(1);
/// Clients of a plan, and publishing streams of each.
const CLIENTS_MAX: usize = 3;
const PUBLISHERS_MAX: usize = 2;
/// Publishes of one stream.
const PUBLISHES_MAX: u32 = 40;
/// Shards of a stream.
const SHARDS_MAX: u32 = 2;

/// What a stream of requests is about.
#[derive(Clone, Copy, Debug)]
pub enum ErrandPlan {
    Cache(CachePlan),
    Counter(CounterPlan),
    Group(GroupPlan),
    Commit(CommitPlan),
}

/// Requests about the keys of a cache.
#[derive(Clone, Copy, Debug)]
pub struct CachePlan {
    pub cache: usize,
    pub keys: u32,
    pub value_max: usize,
    /// Puts that give a life.
    pub ttl_ppm: u32,
    /// It reads every key once.
    pub reads_all: bool,
}

/// Requests about counters.
#[derive(Clone, Copy, Debug)]
pub struct CounterPlan {
    pub cache: usize,
    /// Width of the cache.
    pub shards: u32,
    pub keys: u32,
    pub numbered: bool,
    /// It reads every counter once.
    pub reads_all: bool,
}

/// Commits to a shard of a stream, and questions about its state.
#[derive(Clone, Copy, Debug)]
pub struct CommitPlan {
    pub stream: usize,
    pub shard: u32,
    pub keys: u32,
    /// It reads every key once.
    pub reads_all: bool,
}

/// A consumer of a group.
#[derive(Clone, Copy, Debug)]
pub struct GroupPlan {
    pub stream: usize,
    pub shard: u32,
    pub group: u32,
    pub records_max: u32,
    pub wait_ms: u64,
    pub visibility_ms: u64,
    /// It acknowledges everything until nothing is left.
    pub drains: bool,
    /// The name that it gives itself; others may have it too. With it it takes back what is held under that name, once for each
    /// stream that it opens.
    pub member: Option<u32>,
    /// Requests that move the group.
    pub seek_ppm: u32,
}

/// One watch of a cache.
#[derive(Clone, Copy, Debug)]
pub struct WatchPlan {
    pub cache: usize,
    /// That of its key, when it watches one key; else it watches all of the shard.
    pub shard: u32,
    pub key: Option<u32>,
    /// It begins with the current values.
    pub retained: bool,
    /// It begins with everything that was ever written, as far as the log has it.
    pub history: bool,
    pub begins: Tick,
    /// Events are not read in this time.
    pub stalled: (Tick, Tick),
}

/// One stream of requests.
#[derive(Clone, Copy, Debug)]
pub struct AskerPlan {
    pub errand: ErrandPlan,
    pub begins: Tick,
    /// Requests to make before `heal_at`.
    pub requests: u32,
    /// Unanswered ones.
    pub depth: usize,
    /// Between two requests.
    pub pace: Duration,
    /// It looks at everything when all is over.
    pub last: bool,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct AskPlan {
    /// Width of each cache.
    pub caches: Vec<u32>,
    /// Keys of each, which are its counters too.
    pub keys: u32,
    /// Groups that are asked for.
    pub groups: Vec<GroupPlan>,
}

/// Makes a durable plan one of requests.
pub fn add(plan: &mut Plan) {
    let mut rng = SimRng::new(plan.seed ^ 0xa5c5_fe11);
    let rng = &mut rng;
    shrink(plan);
    if let Some(storage) = &mut plan.storage {
        calm(rng, storage);
    }
    limit(rng, plan);
    let asks = AskPlan {
        caches: (0..1 + rng.below(2)).map(|_| 1 + rng.below(3) as u32).collect(),
        keys: 1 + rng.below(3) as u32,
        groups: groups(rng, plan),
    };
    for at in 0..plan.clients.len() {
        plan.clients[at].askers = askers(rng, plan, &asks);
    }
    for _ in 0..if on(rng) { 0 } else { 1 + rng.below(3) } {
        let cache = rng.below(asks.caches.len() as u64) as usize;
        let shard = rng.below(u64::from(asks.caches[cache])) as u32;
        let core = rng.below(u64::from(plan.cores)) as u16;
        let at = Tick(rng.below(plan.heal_at.as_nanos()));
        plan.happenings.push((at, Happening::MoveCache { cache, shard, core }));
    }
    name_members(plan);
    commit(plan, &asks);
    watch(plan, &asks);
    delete_caches(plan, &asks);
    plan.happenings.sort_by_key(|(at, _)| *at);
    plan.asks = Some(asks);
}

/// Consumers with names, and some that move their group. By a generator of their own, as all that follows: the rest of a seed
/// is drawn as it was without them.
fn name_members(plan: &mut Plan) {
    let mut rng = SimRng::new(plan.seed ^ 0x4e4e_fe11);
    let rng = &mut rng;
    let (named, seeks) = (on(rng), rng.chance(300_000));
    for asker in plan.clients.iter_mut().flat_map(|client| &mut client.askers) {
        if let ErrandPlan::Group(group) = &mut asker.errand {
            group.member = (named && rng.chance(700_000)).then(|| rng.below(2) as u32);
            group.seek_ppm = if seeks && on(rng) { 60_000 } else { 0 };
        }
    }
}

/// Clients that commit.
fn commit(plan: &mut Plan, asks: &AskPlan) {
    let mut rng = SimRng::new(plan.seed ^ 0xc033_fe11);
    let rng = &mut rng;
    if on(rng) {
        return;
    }
    let (shards, heal_at) = (plan.shards.clone(), plan.heal_at);
    for client in plan.clients.iter_mut() {
        if on(rng) {
            let stream = rng.below(shards.len() as u64) as usize;
            let shard = rng.below(u64::from(shards[stream])) as u32;
            client.askers.push(AskerPlan {
                errand: ErrandPlan::Commit(CommitPlan { stream, shard, keys: asks.keys, reads_all: false }),
                begins: Tick(rng.below(heal_at.as_nanos() / 2)),
                requests: 20 + rng.below(40) as u32,
                depth: 1 + rng.below(4) as usize,
                pace: MS * rng.below(60) as u32,
                last: false,
            });
        }
    }
}

/// Watches.
fn watch(plan: &mut Plan, asks: &AskPlan) {
    let mut rng = SimRng::new(plan.seed ^ 0x3a7c_fe11);
    let rng = &mut rng;
    let heal_at = plan.heal_at;
    if on(rng) {
        // Queues are full soon, also those that are not stalled.
        plan.limits.subscriber_queues_bytes_max = 16 << 10;
    }
    for client in &mut plan.clients {
        for _ in 0..rng.below(4) {
            let cache = rng.below(asks.caches.len() as u64) as usize;
            let shards = asks.caches[cache];
            let key = on(rng).then(|| rng.below(u64::from(asks.keys)) as u32);
            let shard = key.map_or(rng.below(u64::from(shards)) as u32, |key| shard_of(key, shards));
            let from = Tick(rng.below(heal_at.as_nanos()));
            client.watchers.push(WatchPlan {
                cache,
                shard,
                key,
                retained: on(rng),
                history: on(rng),
                begins: if on(rng) { Tick::ZERO } else { Tick(rng.below(heal_at.as_nanos())) },
                stalled: if on(rng) { (from, heal_at) } else { (Tick::MAX, Tick::MAX) },
            });
        }
    }
}

/// Caches that are deleted, most of which come back.
fn delete_caches(plan: &mut Plan, asks: &AskPlan) {
    let mut rng = SimRng::new(plan.seed ^ 0xde1e_fe11);
    let rng = &mut rng;
    if !rng.chance(300_000) {
        return;
    }
    for _ in 0..1 + rng.below(3) {
        let cache = rng.below(asks.caches.len() as u64) as usize;
        let at = Tick(rng.below(plan.heal_at.as_nanos()));
        plan.happenings.push((at, Happening::DeleteCache { cache }));
        if rng.chance(800_000) {
            let later = if on(rng) { rng.duration(MS * 20) } else { rng.duration(MS * 1_000) };
            plan.happenings.push(((at + later).min(plan.heal_at), Happening::CreateCache { cache }));
        }
    }
}

/// The shard of a key of a cache.
pub fn shard_of(key: u32, shards: u32) -> u32 {
    shard_for(Some(format!("k{key}").as_bytes()), shards, KeyMapping::JumpHash).0
}

fn on(rng: &mut SimRng) -> bool {
    rng.chance(500_000)
}

/// Fewer clients, shards and records, and none of what ends a stream or a token.
fn shrink(plan: &mut Plan) {
    plan.shards.iter_mut().for_each(|shards| *shards = (*shards).min(SHARDS_MAX));
    let shards = plan.shards.clone();
    plan.clients.truncate(CLIENTS_MAX);
    for client in &mut plan.clients {
        (client.token_life_s, client.renews) = (1_000, true);
        client.publishers.truncate(PUBLISHERS_MAX);
        client.subscribers.truncate(1);
        for publisher in &mut client.publishers {
            publisher.publishes = publisher.publishes.min(PUBLISHES_MAX);
            publisher.payload_max = publisher.payload_max.min(300);
            publisher.batch_max = publisher.batch_max.min(4);
        }
        for subscriber in &mut client.subscribers {
            subscriber.shard %= shards[subscriber.stream];
        }
    }
    let clients = plan.clients.len();
    plan.happenings.retain(|(_, what)| match what {
        Happening::Delete { .. } | Happening::Drain => false,
        Happening::Kill { client, .. } => *client < clients,
        _ => true,
    });
    for (_, what) in &mut plan.happenings {
        if let Happening::Move { stream, shard, .. } = what {
            *shard %= shards[*stream];
        }
    }
}

/// What a history cannot judge does not happen.
fn calm(rng: &mut SimRng, storage: &mut StoragePlan) {
    storage.retention = Retention::default();
    storage.happenings.retain(|(_, what)| {
        !matches!(what, StorageHappening::Delete { .. } | StorageHappening::Create { .. })
    });
    if rng.chance(750_000) {
        storage.policy = Fsync::OnCommit;
    }
    if storage.policy == Fsync::OnCommit {
        return;
    }
    let spare = |how: &mut End| *how = if *how == End::Power { End::Kill } else { *how };
    storage.last.iter_mut().for_each(spare);
    for (_, what) in &mut storage.happenings {
        if let StorageHappening::Restart { how, .. } = what {
            spare(how);
        }
    }
}

fn limit(rng: &mut SimRng, plan: &mut Plan) {
    let limits = &mut plan.limits;
    limits.has_logs = true;
    limits.groups.attempts_max = 2 + rng.below(4) as u32;
    if on(rng) {
        limits.groups.in_flight_max = 2 + rng.below(20) as usize;
    }
    if on(rng) {
        limits.asks_per_stream = 1 + rng.below(4) as u32;
    }
    // Then values are read from the log.
    limits.cache_bytes_max = if on(rng) { 1 } else { 64 << 20 };
}

fn groups(rng: &mut SimRng, plan: &Plan) -> Vec<GroupPlan> {
    let group = |rng: &mut SimRng, group: u32| {
        let stream = rng.below(plan.shards.len() as u64) as usize;
        GroupPlan {
            stream,
            shard: rng.below(u64::from(plan.shards[stream])) as u32,
            group,
            records_max: [1, 4, 32][rng.below(3) as usize],
            wait_ms: [0, 50, 400][rng.below(3) as usize],
            visibility_ms: 100 + rng.below(1_500),
            drains: false,
            member: None,
            seek_ppm: 0,
        }
    };
    (0..1 + rng.below(2)).map(|number| group(rng, number as u32)).collect()
}

fn askers(rng: &mut SimRng, plan: &Plan, asks: &AskPlan) -> Vec<AskerPlan> {
    let mut errands = Vec::new();
    for _ in 0..1 + rng.below(2) {
        let cache = rng.below(asks.caches.len() as u64) as usize;
        let value_max = [20, 400, 30_000][rng.below(3) as usize];
        let ttl_ppm = if on(rng) { 0 } else { 300_000 };
        let keys = asks.keys;
        errands.push(ErrandPlan::Cache(CachePlan { cache, keys, value_max, ttl_ppm, reads_all: false }));
    }
    let cache = rng.below(asks.caches.len() as u64) as usize;
    let (shards, keys, numbered) = (asks.caches[cache], asks.keys, on(rng));
    errands.push(ErrandPlan::Counter(CounterPlan { cache, shards, keys, numbered, reads_all: false }));
    for _ in 0..1 + rng.below(2) {
        errands.push(ErrandPlan::Group(asks.groups[rng.below(asks.groups.len() as u64) as usize]));
    }
    let asker = |errand| AskerPlan {
        errand,
        begins: Tick(rng.below(plan.heal_at.as_nanos() / 2)),
        requests: 20 + rng.below(40) as u32,
        depth: 1 + rng.below(4) as usize,
        pace: MS * rng.below(60) as u32,
        last: false,
    };
    errands.into_iter().map(asker).collect()
}

/// Streams that look at everything when all is over: at the caches that are not `gone`, the state of all shards, and all
/// groups.
pub fn last_askers(asks: &AskPlan, gone: &[bool], shards: &[(usize, u32)], now: Tick) -> Vec<AskerPlan> {
    let asker = |errand, requests| {
        let (begins, depth, pace, last) = (now, 1, MS * 10, true);
        AskerPlan { errand, begins, requests, depth, pace, last }
    };
    let (keys, reads_all) = (asks.keys, true);
    let mut all = Vec::new();
    for (cache, shards) in asks.caches.iter().copied().enumerate().filter(|(cache, _)| !gone[*cache]) {
        let reads = CachePlan { cache, keys, value_max: 1, ttl_ppm: 0, reads_all };
        all.push(asker(ErrandPlan::Cache(reads), keys));
        let sums = CounterPlan { cache, shards, keys, numbered: false, reads_all };
        all.push(asker(ErrandPlan::Counter(sums), keys));
    }
    for (stream, shard) in shards.iter().copied() {
        all.push(asker(ErrandPlan::Commit(CommitPlan { stream, shard, keys, reads_all }), keys));
    }
    for group in &asks.groups {
        let drains = GroupPlan { drains: true, records_max: 32, wait_ms: 200, ..*group };
        all.push(asker(ErrandPlan::Group(drains), u32::MAX));
    }
    all
}
