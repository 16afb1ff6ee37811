//! What a record costs the broker's machines, counted without a clock: allocations of everything that runs in a core (QUIC,
//! session, shard, log) with the simulated network and disks around it, over a run in which nothing goes wrong.
//! Scope: tests. Owns: the counting allocator of the test program.
//! Invariants: only what happens within `counted` is counted; clients are not; a run is counted in a process of its own, so
//! that no other test allocates beside it; the first part of a run, with its handshake and its growing tables, is not counted.
//! Not here: instructions (`instructions`), time (the bench).

mod instructions;

use std::alloc::System;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use felix_logstore::id::Fsync;
use felix_logstore::retention::Retention;
use felix_runtime::clock::Tick;
use felix_runtime::sim::{DiskFaults, Faults};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

use super::plan::{ClientPlan, Plan, PublisherPlan};
use super::storage_plan::StoragePlan;
use super::world::World;
use crate::snapshot::CoreLimits;
use crate::turn::counters::Counter;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Allocations, first and grown, and their bytes, within `counted`.
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
static BYTES: AtomicU64 = AtomicU64::new(0);

/// Set in the process that counts.
const ALONE: &str = "FELIX_COST_ALONE";
/// Bytes of a record at most; they are drawn evenly, above their head.
const PAYLOAD_MAX: usize = 460;
const MS: Duration = Duration::from_millis(1);
/// Handshake, recovery, the first segment, and tables that grow.
const WARMUP_PUBLISHES: u64 = 4_000;

/// Does `work` and counts what it costs.
pub(super) fn counted<T>(work: impl FnOnce() -> T) -> T {
    let before = ALLOCATOR.stats();
    let done = instructions::collected(work);
    let change = ALLOCATOR.stats() - before;
    let grown = u64::try_from(change.bytes_reallocated).unwrap_or(0);
    ALLOCATIONS.fetch_add((change.allocations + change.reallocations) as u64, Ordering::Relaxed);
    BYTES.fetch_add(change.bytes_allocated as u64 + grown, Ordering::Relaxed);
    done
}

fn so_far() -> (u64, u64) {
    (ALLOCATIONS.load(Ordering::Relaxed), BYTES.load(Ordering::Relaxed))
}

/// One core, one stream of one shard, one publisher that never waits for anything but its window.
fn plan(batch_max: u32, durable: bool) -> Plan {
    let publisher = PublisherPlan {
        stream: 0,
        only: Some(0),
        publishes: u32::MAX,
        batch_max,
        payload_max: PAYLOAD_MAX,
        acked: 100,
        json: 0,
        depth: 64,
        pace: Duration::ZERO,
        reads_from: Tick::ZERO,
        numbered: false,
    };
    let client = ClientPlan {
        ours: true,
        publishers: vec![publisher],
        subscribers: Vec::new(),
        askers: Vec::new(),
        watchers: Vec::new(),
        token_life_s: 1_000,
        renews: false,
    };
    let mut plan = Plan {
        seed: 1,
        cores: 1,
        limits: CoreLimits::default(),
        send_window: 1 << 20,
        faults: Faults::none(Duration::from_micros(200)),
        stray_ppm: 0,
        mail_delay: Duration::from_micros(5),
        mail_slots: 2_048,
        keys_delay: Duration::ZERO,
        shards: vec![1],
        clients: vec![client],
        happenings: Vec::new(),
        heal_at: Tick::ZERO + MS * 600_000,
        storage: None,
        asks: None,
    };
    if durable {
        let sound = DiskFaults::none(Duration::from_micros(100));
        plan.storage = Some(StoragePlan {
            policy: Fsync::OnCommit,
            segment_bytes_first: 64 << 20,
            segment_bytes_max: 64 << 20,
            volumes: 1,
            volume_bytes: 4 << 30,
            retention: Retention::default(),
            sound,
            numbered: vec![vec![false]],
            happenings: Vec::new(),
            last: None,
            ..StoragePlan::draw(&plan)
        });
    }
    plan
}

/// What the machines allocated for each record and each publish.
#[derive(Debug)]
struct Cost {
    records: u64,
    publishes: u64,
    per_record: f64,
    per_publish: f64,
    bytes_per_record: f64,
}

/// A world in which `publishes` were written, and when that was.
fn warm(batch_max: u32, durable: bool, publishes: u64) -> (World, Tick) {
    let mut world = World::new(plan(batch_max, durable));
    let mut at = Tick::ZERO;
    while world.broker.count(Counter::PublishesWritten) < publishes {
        at += MS * 10;
        assert!(
            at < Tick::ZERO + MS * 20_000,
            "it does not come to publishing: {:?}",
            world.shared.trace.last()
        );
        world.until(at).unwrap();
    }
    (world, at)
}

/// Goes on to `end`. Gives the publishes and records that were written meanwhile. Callgrind finds it by its name.
#[inline(never)]
fn measured(world: &mut World, end: Tick) -> (u64, u64) {
    let count = |world: &World| {
        (world.broker.count(Counter::PublishesWritten), world.broker.count(Counter::PublishRecords))
    };
    let (publishes, records) = count(world);
    world.until(end).unwrap();
    let (publishes_after, records_after) = count(world);
    (publishes_after - publishes, records_after - records)
}

/// Of `time` of a run, after the first part of it.
fn cost(batch_max: u32, durable: bool, time: Duration) -> Cost {
    let (mut world, at) = warm(batch_max, durable, WARMUP_PUBLISHES);
    let before = so_far();
    let (publishes, records) = measured(&mut world, at + time);
    let after = so_far();
    let allocations = (after.0 - before.0) as f64;
    Cost {
        records,
        publishes,
        per_record: allocations / records as f64,
        per_publish: allocations / publishes as f64,
        bytes_per_record: (after.1 - before.1) as f64 / records as f64,
    }
}

/// Batch, durable, allocations for a publish at most, bytes allocated for a record at most (the simulated disk's pages
/// are most of them with a log). Less than one allocation above what was counted: one more for a publish is one too many.
const CEILINGS: [(u32, bool, f64, f64); 4] = [
    // 1.15 and 301.
    (1, false, 1.4, 350.0),
    // 5.85 and 493.
    (128, false, 6.5, 560.0),
    // 6.17 and 9,358.
    (1, true, 6.9, 10_300.0),
    // 17.37 and 1,429.
    (128, true, 18.2, 1_600.0),
];

#[test]
fn a_publish_allocates_no_more_than_its_ceiling() {
    if std::env::var_os(ALONE).is_none() {
        let name = "sim::cost::a_publish_allocates_no_more_than_its_ceiling";
        let alone = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture", "--test-threads", "1"])
            .env(ALONE, "1")
            .output()
            .unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        println!("{}", text(&alone.stdout));
        assert!(alone.status.success(), "{}", text(&alone.stderr));
        // The name is that of this test, or nothing was counted.
        assert!(text(&alone.stdout).contains("1 passed"));
        return;
    }
    for (batch_max, durable, publish_max, bytes_max) in CEILINGS {
        let cost = cost(batch_max, durable, MS * 300);
        let Cost { records, publishes, per_record, per_publish, bytes_per_record } = cost;
        println!(
            "batches of up to {batch_max}, durable {durable}: {publishes} publishes with {records} records; allocations \
             {per_publish:.2} for a publish, {per_record:.3} for a record, {bytes_per_record:.0} B for a record"
        );
        assert!(cost.publishes > 1_000, "{cost:?}");
        assert!(cost.per_publish <= publish_max, "{publish_max}: {cost:?}");
        assert!(cost.bytes_per_record <= bytes_max, "{bytes_max}: {cost:?}");
    }
}
