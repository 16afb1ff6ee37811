//! The table: what the data path must reach, as data. Scope: plain values.
//! Owns: every row with its bounds and the two arms it is the ratio of.
//! Invariants: names are unique; a row of the table that cannot be measured is in the list with its reason; shapes of both
//! arms of a row have the same depth and ack traffic.
//! Not here: measuring (`run`), judging (`verdict`).

use super::arm::{Arm, Figure, Server};
use super::verdict::{Asked, Bound};
use crate::peers::compare_echo::EchoMode;
use crate::peers::system::System;
use crate::shape::{Acks, Keys, Landing, Shape, Storage};

/// Rounds of a row, and of the row of keys.
const ROUNDS: usize = 3;
const ROUNDS_OF_KEYS: usize = 7;
/// Rounds that spread further are not judged: of costs, rates and medians, and of tails. Percent.
const SPREAD_PERCENT: f64 = 10.0;
const TAIL_SPREAD_PERCENT: f64 = 25.0;
/// The same of a difference, which is small beside what it is the difference of.
const DIFFERENCE_SPREAD_PERCENT: f64 = 50.0;
/// Shards that loads are spread over.
const SHARDS: u32 = 48;
/// Publishing streams of the row of keys: nine of ten is a whole number of them.
const KEY_STREAMS: u32 = 50;
/// Bulk batches per second of the rows with a fixed load: a small part of a core.
const FIXED_RATE: f64 = 1_500.0;
/// Bulk batches per second that reach every subscription of the row of readers, all together.
const DELIVERIES_PER_S: f64 = 4_000.0;
const READERS: u32 = 10;
const IDLE_CONNECTIONS: u32 = 1_000;
/// Memory for an idle connection that is aimed at, bytes.
const IDLE_BYTES: f64 = 65_536.0;

/// A row that is measured.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    pub name: &'static str,
    /// The workload, in words.
    pub about: &'static str,
    pub asked: Asked,
    pub of: Arm,
    /// Absent: the figure itself is judged.
    pub against: Option<Arm>,
    /// Also part of a quick run.
    pub quick: bool,
}

/// A row of the table.
#[derive(Debug, Clone, PartialEq)]
pub enum Entry {
    Measured(Box<Row>),
    /// It cannot be measured: its bounds in words, and why.
    NotRun {
        name: &'static str,
        about: &'static str,
        must: &'static str,
        aim: &'static str,
        why: &'static str,
    },
}

impl Entry {
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Entry::Measured(row) => row.name,
            Entry::NotRun { name, .. } => name,
        }
    }
}

impl Row {
    fn new(name: &'static str, about: &'static str, figure: Figure, of: Arm, against: Arm) -> Row {
        let spread_max_percent = match figure {
            Figure::P99 | Figure::P999 => TAIL_SPREAD_PERCENT,
            _ => SPREAD_PERCENT,
        };
        let asked = Asked {
            figure,
            difference: false,
            must: None,
            aim: None,
            or_busy_s_per_gb: None,
            rounds: ROUNDS,
            spread_max_percent,
        };
        Row { name, about, asked, of, against: Some(against), quick: true }
    }

    fn must(mut self, bound: Bound) -> Row {
        self.asked.must = Some(bound);
        self
    }

    fn aim(mut self, bound: Bound) -> Row {
        self.asked.aim = Some(bound);
        self
    }

    fn most(self, must: f64, aim: f64) -> Row {
        self.must(Bound::AtMost(must)).aim(Bound::AtMost(aim))
    }

    fn least(self, must: f64, aim: f64) -> Row {
        self.must(Bound::AtLeast(must)).aim(Bound::AtLeast(aim))
    }

    fn or_busy(mut self, s_per_gb: f64) -> Row {
        self.asked.or_busy_s_per_gb = Some(s_per_gb);
        self
    }

    fn difference(mut self, spread_max_percent: f64) -> Row {
        (self.asked.difference, self.asked.spread_max_percent) = (true, spread_max_percent);
        self
    }

    fn not_quick(mut self) -> Row {
        self.quick = false;
        self
    }
}

/// 64 records of 4 KiB.
pub(super) fn bulk(inflight: u32) -> Shape {
    Shape { name: "4 KiB x 64".to_owned(), inflight, ..Shape::canonical() }
}

/// 64 records of 256 B.
fn small_batched(inflight: u32) -> Shape {
    Shape { name: "256 B x 64".to_owned(), record_bytes: 256, ..bulk(inflight) }
}

/// One record of 256 B.
pub(super) fn small(inflight: u32) -> Shape {
    Shape { name: "256 B x 1".to_owned(), record_bytes: 256, batch_records: 1, ..bulk(inflight) }
}

fn unacked(shape: Shape) -> Shape {
    Shape { acks: Acks::None, ..shape }
}

fn durable(shape: Shape) -> Shape {
    Shape { storage: Storage::FsyncOnCommit, ..shape }
}

fn broker(shape: &Shape) -> Arm {
    Arm::Load { server: Server::Memory, shape: shape.clone() }
}

fn sink(shape: &Shape) -> Arm {
    Arm::Load { server: Server::Sink, shape: shape.clone() }
}

fn over(connections: u32, shape: Shape) -> Shape {
    Shape { connections, ..shape }
}

/// Every row, in the order of the table.
#[must_use]
pub fn table() -> Vec<Entry> {
    let mut rows = memory();
    rows.extend(memory_over_many([
        ["bulk-c16", "unacked-c16", "unacked-c16-sink", "small-batched-c16", "small-c16", "small-c16-rate"],
        ["bulk-c64", "unacked-c64", "unacked-c64-sink", "small-batched-c64", "small-c64", "small-c64-rate"],
    ]));
    rows.extend(sinks());
    rows.extend(latencies());
    rows.extend(on_commit());
    rows.extend(shards());
    rows.extend(readers());
    rows.extend([keys(), cores(), landing()]);
    rows.extend(idle());
    rows.push(beside());
    let mut entries: Vec<Entry> = rows.into_iter().map(|row| Entry::Measured(Box::new(row))).collect();
    entries.push(Entry::NotRun {
        name: "drift",
        about: "last of 20 equal one-minute windows against the third, rate and memory",
        must: "1 +- 0.03",
        aim: "-",
        why: "a command of its own: felix-bench drift",
    });
    entries
}

fn memory() -> Vec<Row> {
    use Figure::{CostPerByte, CostPerRecord, RecordsPerSecond};
    let row = |name, about, figure, shape: &Shape| Row::new(name, about, figure, broker(shape), sink(shape));
    let plain = unacked(bulk(8));
    vec![
        row("bulk", "4 KiB x 64, acked, 8 in flight, against S", CostPerByte, &bulk(8)).most(1.20, 1.08),
        row("bulk-64", "4 KiB x 64, acked, 64 in flight, against S", CostPerByte, &bulk(64))
            .most(1.20, 1.08)
            .not_quick(),
        Row::new(
            "unacked",
            "4 KiB x 64, fire-and-forget, against acked",
            CostPerByte,
            broker(&plain),
            broker(&bulk(8)),
        )
        .must(Bound::AtMost(1.03)),
        row("unacked-sink", "4 KiB x 64, fire-and-forget, against S", CostPerByte, &plain)
            .aim(Bound::AtMost(1.05)),
        row("small-batched", "256 B x 64, acked, 64 in flight, against S", CostPerRecord, &small_batched(64))
            .most(1.6, 1.25),
        row("small", "256 B x 1, 64 in flight, against S", CostPerRecord, &small(64)).most(1.5, 1.25),
        row("small-rate", "256 B x 1, 64 in flight, against S", RecordsPerSecond, &small(64))
            .least(0.85, 0.95),
    ]
}

/// The same shapes over 16 and 64 connections: each of them has the depth.
fn memory_over_many(names: [[&'static str; 6]; 2]) -> Vec<Row> {
    let rows = names.into_iter().zip([16, 64]).flat_map(|(names, connections)| {
        let shape = |shape| over(connections, shape);
        let acked = shape(bulk(8));
        let plain = unacked(acked.clone());
        let row = |at: usize, figure, shape: &Shape| {
            let about = if connections == 16 { "over 16 connections" } else { "over 64 connections" };
            Row::new(names[at], about, figure, broker(shape), sink(shape)).not_quick()
        };
        let beside_acked = Row { against: Some(broker(&acked)), ..row(1, Figure::CostPerByte, &plain) };
        [
            row(0, Figure::CostPerByte, &acked).most(1.20, 1.08),
            beside_acked.must(Bound::AtMost(1.03)),
            row(2, Figure::CostPerByte, &plain).aim(Bound::AtMost(1.05)),
            row(3, Figure::CostPerRecord, &shape(small_batched(64))).most(1.6, 1.25),
            row(4, Figure::CostPerRecord, &shape(small(64))).most(1.5, 1.25),
            row(5, Figure::RecordsPerSecond, &shape(small(64))).least(0.85, 0.95),
        ]
    });
    rows.collect()
}

/// The sink itself.
fn sinks() -> Vec<Row> {
    let row = |name, about, shape: &Shape, most| {
        let quinn = Arm::Load { server: Server::QuinnSink, shape: shape.clone() };
        Row::new(name, about, Figure::CostPerByte, sink(shape), quinn).must(Bound::AtMost(most))
    };
    vec![
        row("sink", "S against a sink on tokio and quinn, 4 KiB x 64, one connection", &bulk(8), 1.05),
        row(
            "sink-c16",
            "S against a sink on tokio and quinn, 4 KiB x 64, 16 connections",
            &over(16, bulk(8)),
            0.80,
        ),
    ]
}

fn latencies() -> Vec<Row> {
    let row = |name, about, figure, server, mode| {
        let of = Arm::Load { server, shape: small(1) };
        Row::new(name, about, figure, of, Arm::Echo(mode))
    };
    let (spinning, parked) = (Server::MemorySpinning, Server::Memory);
    let about = "one in flight, 256 B, in memory, against echo, both spinning";
    let about_parked = "one in flight, 256 B, in memory, against echo, both parked";
    vec![
        row("latency-spinning", about, Figure::P50, spinning, EchoMode::Spinning).most(1.3, 1.15),
        row("latency-spinning-p99", about, Figure::P99, spinning, EchoMode::Spinning).most(1.5, 1.15),
        row("latency-parked", about_parked, Figure::P50, parked, EchoMode::Parked).most(1.3, 1.15),
        row("latency-parked-p99", about_parked, Figure::P99, parked, EchoMode::Parked).most(1.5, 1.15),
    ]
}

fn on_commit() -> Vec<Row> {
    let commit = |shape: Shape| Arm::Load { server: Server::OnCommit, shape: durable(shape) };
    let latency =
        |name, about| Row::new(name, about, Figure::P50, commit(small(1)), Arm::Echo(EchoMode::OnCommit));
    let peer = |name, about, system| {
        let against = Arm::Peer { system, shape: small(64) };
        Row::new(name, about, Figure::RecordsPerSecond, commit(small(64)), against)
    };
    let disk = |name, about, shape: Shape| {
        Row::new(name, about, Figure::BytesPerSecond, commit(shape.clone()), Arm::Raw(shape)).least(0.90, 1.0)
    };
    vec![
        latency(
            "commit-latency",
            "one in flight, 256 B, on_commit, against a parked echo with one O_DSYNC block write",
        )
        .must(Bound::AtMost(1.3)),
        latency("commit-latency-more", "the same: microseconds that the broker takes longer")
            .difference(DIFFERENCE_SPREAD_PERCENT)
            .aim(Bound::AtMost(10.0)),
        peer(
            "commit-redis",
            "256 B x 1, 64 in flight, on_commit, against redis-benchmark, appendfsync always",
            System::RedisBenchmarkSetAlways,
        )
        .least(1.5, 2.0),
        peer(
            "commit-nats",
            "256 B x 1, 64 in flight, on_commit, against NATS file, sync always",
            System::NatsAlways,
        )
        .must(Bound::AtLeast(10.0)),
        disk("commit-bulk", "4 KiB x 64, 8 in flight, on_commit, against the raw disk", bulk(8))
            .or_busy(0.40),
        disk("commit-bulk-64", "4 KiB x 64, 64 in flight, on_commit, against the raw disk", bulk(64))
            .or_busy(0.40)
            .not_quick(),
        disk(
            "commit-small-batched",
            "256 B x 64, 8 in flight, on_commit, against the raw disk",
            small_batched(8),
        )
        .or_busy(0.9),
        disk(
            "commit-small-batched-64",
            "256 B x 64, 64 in flight, on_commit, against the raw disk",
            small_batched(64),
        )
        .or_busy(0.9)
        .not_quick(),
    ]
}

/// 48 shards against one on the same core, the same streams publishing.
fn shards() -> Vec<Row> {
    let row = |name, about, shape: Shape| {
        let arm = |shards| Arm::Load {
            server: Server::OnCommitShards,
            shape: Shape { streams: SHARDS, shards, ..durable(shape.clone()) },
        };
        Row::new(name, about, Figure::RecordsPerSecond, arm(SHARDS), arm(1)).least(0.90, 1.0)
    };
    vec![
        row("shards-small", "256 B x 1, on_commit, 48 streams: 48 shards against one", small(8)),
        row(
            "shards-small-batched",
            "256 B x 64, on_commit, 48 streams: 48 shards against one",
            small_batched(8),
        ),
        row("shards-bulk", "4 KiB x 64, on_commit, 48 streams: 48 shards against one", bulk(8)),
    ]
}

/// Ten connections with ever more subscriptions, the same bytes delivered a second. Raw send on the driver is a server that
/// takes the same publishes and hands them on, and does nothing else.
fn readers() -> Vec<Row> {
    let arm = |server, subscriptions: u32| {
        let rate = Some(DELIVERIES_PER_S / f64::from(READERS * subscriptions));
        Arm::Load { server, shape: Shape { subscribers: READERS, subscriptions, rate, ..bulk(8) } }
    };
    let ours = |subscriptions| arm(Server::Memory, subscriptions);
    let row = |name, about, of, to| Row::new(name, about, Figure::CostPerDeliveredByte, of, to);
    let more = |name, about, of, to| row(name, about, ours(of), ours(to));
    let send = |name, about, count| {
        row(name, about, ours(count), arm(Server::Relay, count)).must(Bound::AtMost(1.2))
    };
    vec![
        more("readers-10", "4 KiB x 64 to 10 connections: 10 subscriptions each against 1", 10, 1),
        more("readers-100", "4 KiB x 64 to 10 connections: 100 subscriptions each against 10", 100, 10)
            .must(Bound::Within(0.15)),
        send("readers-1-send", "4 KiB x 64 to 10 connections, 1 subscription each, against raw send", 1),
        send("readers-10-send", "4 KiB x 64 to 10 connections, 10 subscriptions each, against raw send", 10),
        send(
            "readers-100-send",
            "4 KiB x 64 to 10 connections, 100 subscriptions each, against raw send",
            100,
        ),
    ]
}

fn keys() -> Row {
    let arm = |keys| broker(&Shape { streams: KEY_STREAMS, shards: SHARDS, keys, ..small_batched(8) });
    let about = "256 B x 64, 50 streams: 90 % to one of 48 shards against all evenly";
    let mut row = Row::new("keys", about, Figure::CostPerRecord, arm(Keys::Hot), arm(Keys::Spread))
        .must(Bound::Within(0.10));
    row.asked.rounds = ROUNDS_OF_KEYS;
    row.not_quick()
}

/// Two connections to two shards at a fixed rate.
fn cores() -> Row {
    let shape = Shape { shards: 2, rate: Some(FIXED_RATE), ..over(2, bulk(8)) };
    let two = Arm::Load { server: Server::TwoCores, shape: shape.clone() };
    let about = "4 KiB x 64 at 1,500 batches/s over 2 connections: two broker cores against one";
    Row::new("two-cores", about, Figure::CostPerByte, two, broker(&shape)).most(1.10, 1.0)
}

fn landing() -> Row {
    let arm = |landing| Arm::Load {
        server: Server::TwoCores,
        shape: Shape { shards: 2, rate: Some(FIXED_RATE), landing, ..bulk(8) },
    };
    let about = "4 KiB x 64 at 1,500 batches/s, one connection: on the wrong core against the right one";
    Row::new("wrong-core", about, Figure::CostPerByte, arm(Landing::Wrong), arm(Landing::Right))
        .most(1.5, 1.25)
}

fn idle() -> Vec<Row> {
    let loaded =
        Arm::Load { server: Server::FreshMemory, shape: Shape { idle: IDLE_CONNECTIONS, ..bulk(8) } };
    let about = "4 KiB x 64 beside 1,000 idle connections, against without them";
    let cost = Row::new("idle", about, Figure::CostPerByte, loaded.clone(), broker(&bulk(8)))
        .must(Bound::AtMost(1.05));
    let memory = Row {
        name: "idle-memory",
        about: "resident memory of the broker for an idle connection, bytes",
        against: None,
        ..Row::new("", "", Figure::IdleConnectionBytes, loaded.clone(), loaded)
    };
    vec![cost, memory.aim(Bound::AtMost(IDLE_BYTES))]
}

/// The sink answers as an echo does and, unlike an echo, takes the bulk load as it is.
fn beside() -> Row {
    let arm = Arm::Beside;
    Row::new(
        "latency-beside",
        "one in flight, 256 B, beside 4 KiB x 64 to another shard at half the core, against S under the same loads",
        Figure::P999,
        arm(Server::Memory),
        arm(Server::Sink),
    )
    .most(2.0, 1.3)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::campaign::{Campaign, System};

    #[test]
    fn every_row_has_a_name_of_its_own_and_can_run() {
        let table = table();
        let names: BTreeSet<&str> = table.iter().map(Entry::name).collect();
        assert_eq!(names.len(), table.len());
        for entry in &table {
            let Entry::Measured(row) = entry else { continue };
            assert!(row.asked.must.is_some() || row.asked.aim.is_some() || row.name == "readers-10");
            for arm in std::iter::once(&row.of).chain(&row.against) {
                let (Arm::Load { shape, .. } | Arm::Raw(shape) | Arm::Peer { shape, .. }) = arm else {
                    continue;
                };
                shape.check().unwrap_or_else(|error| panic!("{}: {error}", row.name));
                assert_eq!(shape.mtu, 3_872, "{}", row.name);
            }
        }
    }

    /// The campaign of this machine has every load of the table, and ends within half an hour.
    #[test]
    fn the_campaign_reruns_every_load_of_the_table() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("campaigns/this-machine.toml");
        let campaign = Campaign::read(&path).unwrap();
        let plain = |shape: &Shape| Shape { name: String::new(), warmup_s: 0.0, ..shape.clone() };
        let same = |a: &Shape, b: &Shape| plain(a) == Shape { duration_s: a.duration_s, ..plain(b) };
        for entry in table() {
            let Entry::Measured(row) = entry else { continue };
            for arm in std::iter::once(&row.of).chain(&row.against) {
                let Arm::Load { server, shape } = arm else { continue };
                let system = match server {
                    Server::QuinnSink | Server::Relay => continue,
                    Server::Sink => System::Sink,
                    _ => System::Broker,
                };
                let found =
                    campaign.cells.iter().any(|cell| cell.system == system && same(&cell.shape, shape));
                assert!(found, "{}: no cell has {}", row.name, arm.name());
            }
        }
        let trials = f64::from(campaign.trials) * campaign.cells.len() as f64;
        // Starting a server and looking at the disk.
        let seconds = campaign.load_seconds() + 2.5 * trials;
        assert!(seconds < 1_800.0, "{seconds:.0} s for {} cells", campaign.cells.len());
    }

    #[test]
    fn a_row_against_the_sink_has_its_shape() {
        for entry in table() {
            let Entry::Measured(row) = entry else { continue };
            if let (Arm::Load { shape: of, .. }, Some(Arm::Load { server: Server::Sink, shape })) =
                (&row.of, &row.against)
            {
                assert_eq!(of, shape, "{}", row.name);
            }
        }
    }

    #[test]
    fn no_row_of_the_table_is_left_out() {
        let names: Vec<&str> = table().iter().map(Entry::name).collect();
        for row in [
            "bulk",
            "unacked",
            "small-batched",
            "small",
            "small-rate",
            "bulk-c16",
            "small-c64",
            "latency-parked",
            "latency-spinning-p99",
            "commit-latency",
            "commit-latency-more",
            "commit-redis",
            "commit-nats",
            "commit-bulk",
            "commit-small-batched",
            "shards-small",
            "shards-small-batched",
            "shards-bulk",
            "readers-100",
            "readers-1-send",
            "readers-10-send",
            "readers-100-send",
            "keys",
            "two-cores",
            "wrong-core",
            "idle",
            "idle-memory",
            "latency-beside",
            "sink",
            "sink-c16",
            "drift",
        ] {
            assert!(names.contains(&row), "{row}");
        }
    }
}
