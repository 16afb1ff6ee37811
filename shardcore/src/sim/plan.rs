//! What one seed does: the shape of the broker, its limits, the clients, the faults and when. Scope: one per simulation.
//! Invariants: everything is drawn from the seed; each seed leaves out about half of the features, so that the rest is met
//! alone as well as together. After `heal_at` nothing is made worse any more.

use std::time::Duration;

use felix_runtime::clock::Tick;
use felix_runtime::sim::{Faults, SimRng};

use super::ask_plan::{self, AskPlan, AskerPlan, WatchPlan};
use super::storage_plan::StoragePlan;
use crate::snapshot::{CoreLimits, SlowSubscriber};

const MS: Duration = Duration::from_millis(1);

/// Something that happens at its time, whatever the clients do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Happening {
    /// The shard goes to the core at the next generation.
    Move {
        stream: usize,
        shard: u32,
        core: u16,
    },
    Delete {
        stream: usize,
    },
    /// The core does nothing for that long.
    Pause {
        core: u16,
        time: Duration,
    },
    /// The client is gone from one moment to the next, with or without closing.
    Kill {
        client: usize,
        silent: bool,
    },
    Drain,
    /// The shard of a cache goes to the core at the next generation.
    MoveCache {
        cache: usize,
        shard: u32,
        core: u16,
    },
    DeleteCache {
        cache: usize,
    },
    /// One that was deleted gets its name again, as another life.
    CreateCache {
        cache: usize,
    },
}

/// What is simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Streams in memory.
    Memory,
    /// Durable streams over simulated disks.
    Durable,
    /// The same with caches, counters and consumer groups.
    Asks,
}

/// One publishing stream.
#[derive(Clone, Debug)]
pub struct PublisherPlan {
    pub stream: usize,
    /// Only to this shard.
    pub only: Option<u32>,
    /// Publishes to make before `heal_at`, as fast as the window lets it.
    pub publishes: u32,
    pub batch_max: u32,
    pub payload_max: usize,
    /// Percent of publishes that want an answer, and that are JSON.
    pub acked: u32,
    pub json: u32,
    /// Unanswered publishes of its own choice.
    pub depth: usize,
    /// Between two publishes.
    pub pace: Duration,
    /// Answers are not read before this.
    pub reads_from: Tick,
    /// It numbers its batches, and sends again what was not answered.
    pub numbered: bool,
}

/// One subscription.
#[derive(Clone, Copy, Debug)]
pub struct SubscriberPlan {
    pub stream: usize,
    pub shard: u32,
    pub begins: Tick,
    pub earliest: bool,
    /// Events are not read in this time.
    pub stalled: (Tick, Tick),
    /// It looks at the whole log.
    pub keeps: bool,
}

/// One client process.
#[derive(Clone, Debug)]
pub struct ClientPlan {
    /// Like our SDK: positions, and a connection to each core. Else like the Python client: one connection.
    pub ours: bool,
    pub publishers: Vec<PublisherPlan>,
    pub subscribers: Vec<SubscriberPlan>,
    /// Streams of requests about caches, counters and groups.
    pub askers: Vec<AskerPlan>,
    /// Watches of caches.
    pub watchers: Vec<WatchPlan>,
    /// Life of its tokens, and whether it fetches new ones in time.
    pub token_life_s: u64,
    pub renews: bool,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    pub cores: u16,
    pub limits: CoreLimits,
    pub send_window: u64,
    pub faults: Faults,
    /// Datagrams that reach a core that does not own them.
    pub stray_ppm: u32,
    /// Longest way of a message between cores, and room for messages under way per pair.
    pub mail_delay: Duration,
    pub mail_slots: usize,
    /// Key sets come this late when they are asked for; zero: they are there from the beginning.
    pub keys_delay: Duration,
    pub shards: Vec<u32>,
    pub clients: Vec<ClientPlan>,
    pub happenings: Vec<(Tick, Happening)>,
    pub heal_at: Tick,
    /// The streams are durable, and this happens to their logs.
    pub storage: Option<StoragePlan>,
    /// There are caches, counters and groups, and this is asked of them.
    pub asks: Option<AskPlan>,
}

impl Plan {
    /// The plan of a seed with streams in memory.
    pub fn draw(seed: u64) -> Plan {
        let mut rng = SimRng::new(seed ^ 0x9a4_fe11);
        let rng = &mut rng;
        let heal_at = Tick::ZERO + MS * (2_000 + rng.below(4_000) as u32);
        let cores = 1 + rng.below(4) as u16;
        let shards: Vec<u32> = (0..1 + rng.below(2)).map(|_| 1 + rng.below(8) as u32).collect();
        let tiny = on(rng);
        let mut plan = Plan {
            seed,
            cores,
            limits: limits(rng, tiny),
            send_window: if tiny { 16 << 10 } else { 1 << 20 },
            faults: weather(rng),
            stray_ppm: if on(rng) { 100_000 } else { 0 },
            mail_delay: if on(rng) { MS * rng.below(4) as u32 } else { Duration::from_micros(5) },
            mail_slots: if on(rng) { 2 + rng.below(8) as usize } else { 2_048 },
            keys_delay: if on(rng) { MS * rng.below(600) as u32 } else { Duration::ZERO },
            shards,
            clients: Vec::new(),
            happenings: Vec::new(),
            heal_at,
            storage: None,
            asks: None,
        };
        let (stalls, deaf, expiry) = (on(rng), on(rng), chance(rng, 25));
        if expiry {
            plan.limits.token_leeway = Duration::from_secs(2);
        }
        for _ in 0..2 + rng.below(4) {
            let client = client(rng, &plan, (stalls, deaf, expiry));
            plan.clients.push(client);
        }
        plan.happenings = happenings(rng, &plan);
        plan
    }

    /// The plan of a seed.
    pub fn of(seed: u64, kind: Kind) -> Plan {
        match kind {
            Kind::Memory => Plan::draw(seed),
            Kind::Durable => Plan::draw_durable(seed),
            Kind::Asks => {
                let mut plan = Plan::draw_durable(seed);
                ask_plan::add(&mut plan);
                plan
            }
        }
    }

    /// The plan of a seed with durable streams.
    fn draw_durable(seed: u64) -> Plan {
        let mut plan = Plan::draw(seed);
        // A process ends in other ways here.
        plan.happenings.retain(|(_, what)| *what != Happening::Drain);
        let storage = StoragePlan::draw(&plan);
        for (client, numbered) in plan.clients.iter_mut().zip(&storage.numbered) {
            for (publisher, numbered) in client.publishers.iter_mut().zip(numbered) {
                publisher.numbered = *numbered;
                publisher.acked = if *numbered { 100 } else { publisher.acked };
            }
        }
        plan.storage = Some(storage);
        plan
    }

    /// The same without reads that go wrong.
    #[must_use]
    pub fn with_sound_reads(mut self) -> Plan {
        if let Some(storage) = &mut self.storage {
            storage.drop_read_faults();
        }
        self
    }

    /// Every shard of every stream.
    pub fn all_shards(&self) -> impl Iterator<Item = (usize, u32)> + '_ {
        self.shards
            .iter()
            .enumerate()
            .flat_map(|(stream, shards)| (0..*shards).map(move |shard| (stream, shard)))
    }

    /// Whether something of that kind is planned.
    pub fn has(&self, pick: impl Fn(&Happening) -> bool) -> bool {
        self.happenings.iter().any(|(_, what)| pick(what))
    }
}

fn on(rng: &mut SimRng) -> bool {
    rng.chance(500_000)
}

fn chance(rng: &mut SimRng, percent: u32) -> bool {
    rng.chance(percent * 10_000)
}

fn before(rng: &mut SimRng, at: Tick) -> Tick {
    Tick(rng.below(at.as_nanos()))
}

fn limits(rng: &mut SimRng, tiny: bool) -> CoreLimits {
    let policies =
        [SlowSubscriber::Block, SlowSubscriber::Block, SlowSubscriber::DropNew, SlowSubscriber::DropOld];
    let mut limits = CoreLimits {
        slow_subscriber: policies[rng.below(4) as usize],
        drain_timeout: Duration::from_secs(6),
        subscriptions_max: 64,
        ..CoreLimits::default()
    };
    if on(rng) {
        limits.ring_bytes_max = 2_000 << rng.below(6);
        limits.ring_records_max = 8 << rng.below(6);
    }
    if chance(rng, 30) {
        limits.rings_bytes_max = 8_000 << rng.below(4);
    }
    if on(rng) {
        limits.publish_window = 1 + rng.below(16) as u32;
        limits.parked_bytes_per_stream = 1_000 << rng.below(6);
    }
    if on(rng) {
        limits.pair_credit_items = 1 + rng.below(6) as u32;
        limits.pair_credit_bytes = 500 << rng.below(6);
    }
    if on(rng) {
        limits.subscriber_queue_frames = 1 + rng.below(8) as u32;
        limits.subscriber_queue_bytes = 1_000 << rng.below(6);
    }
    if on(rng) {
        limits.live_frame_records = 1 + rng.below(8) as u32;
        limits.live_frame_bytes = 200 << rng.below(6);
        limits.history_frame_records = 1 + rng.below(8) as u32;
        limits.history_frame_bytes = 500 << rng.below(6);
    }
    if tiny {
        limits.stream_window = 8 << 10;
        limits.conn_window_before_auth = 16 << 10;
        limits.conn_window = 64 << 10;
        limits.partial_frame_bytes_max = 2_000 << rng.below(5);
    }
    limits
}

fn weather(rng: &mut SimRng) -> Faults {
    let delay = Duration::from_micros(100 + rng.below(20_000));
    let mut faults = Faults::none(delay);
    if on(rng) {
        faults.loss_ppm = rng.below(60_000) as u32;
    }
    if on(rng) {
        faults.duplicate_ppm = rng.below(100_000) as u32;
    }
    if on(rng) {
        faults.reorder_ppm = rng.below(200_000) as u32;
        faults.jitter = delay;
    }
    if on(rng) {
        faults.tail_ppm = 10_000;
        faults.tail = delay;
    }
    faults
}

fn client(rng: &mut SimRng, plan: &Plan, (stalls, deaf, expiry): (bool, bool, bool)) -> ClientPlan {
    let publishers = (0..rng.below(4))
        .map(|_| PublisherPlan {
            stream: rng.below(plan.shards.len() as u64) as usize,
            only: None,
            publishes: 20 << rng.below(5),
            batch_max: if on(rng) { 1 } else { 1 + rng.below(20) as u32 },
            payload_max: [60, 60, 60, 2_000, 20_000][rng.below(5) as usize],
            acked: [100, 100, 0, 50][rng.below(4) as usize],
            json: if on(rng) { 0 } else { 20 },
            depth: 1 + rng.below(32) as usize,
            pace: if on(rng) { Duration::ZERO } else { Duration::from_micros(rng.below(20_000)) },
            reads_from: if deaf && on(rng) { plan.heal_at } else { Tick::ZERO },
            numbered: false,
        })
        .collect();
    let subscribers = (0..1 + rng.below(4))
        .map(|_| {
            let (stream, shard) = shard(rng, plan);
            let from = before(rng, plan.heal_at);
            SubscriberPlan {
                stream,
                shard,
                begins: if on(rng) { Tick::ZERO } else { before(rng, plan.heal_at) },
                earliest: on(rng),
                stalled: if stalls && on(rng) { (from, plan.heal_at) } else { (Tick::MAX, Tick::MAX) },
                keeps: false,
            }
        })
        .collect();
    ClientPlan {
        ours: on(rng),
        publishers,
        subscribers,
        askers: Vec::new(),
        watchers: Vec::new(),
        token_life_s: if expiry { 2 + rng.below(3) } else { 1_000 },
        renews: on(rng),
    }
}

fn shard(rng: &mut SimRng, plan: &Plan) -> (usize, u32) {
    let stream = rng.below(plan.shards.len() as u64) as usize;
    (stream, rng.below(u64::from(plan.shards[stream])) as u32)
}

fn happenings(rng: &mut SimRng, plan: &Plan) -> Vec<(Tick, Happening)> {
    let mut all = Vec::new();
    if chance(rng, 40) {
        for _ in 0..1 + rng.below(4) {
            let (stream, shard) = shard(rng, plan);
            let core = rng.below(u64::from(plan.cores)) as u16;
            all.push((before(rng, plan.heal_at), Happening::Move { stream, shard, core }));
        }
    }
    if chance(rng, 20) {
        let stream = rng.below(plan.shards.len() as u64) as usize;
        all.push((before(rng, plan.heal_at), Happening::Delete { stream }));
    }
    if chance(rng, 40) {
        for _ in 0..1 + rng.below(3) {
            let time = MS * (1 + rng.below(300) as u32);
            let core = rng.below(u64::from(plan.cores)) as u16;
            all.push((before(rng, plan.heal_at), Happening::Pause { core, time }));
        }
    }
    if chance(rng, 30) {
        let client = rng.below(plan.clients.len() as u64) as usize;
        all.push((before(rng, plan.heal_at), Happening::Kill { client, silent: on(rng) }));
    }
    if chance(rng, 15) {
        all.push((before(rng, plan.heal_at), Happening::Drain));
    }
    all.sort_by_key(|(at, _)| *at);
    all
}
