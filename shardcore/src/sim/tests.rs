//! Seeds that every run of the tests takes.

use std::ops::Range;
use std::time::{Duration, Instant};

use felix_runtime::clock::Tick;
use felix_runtime::planted::{Defect, plant};
use felix_runtime::sim::Faults;

use super::plan::{ClientPlan, PublisherPlan, SubscriberPlan};
use super::*;
use crate::snapshot::{CoreLimits, SlowSubscriber};

/// Durable seeds that every run of the tests takes.
const DURABLE_SEEDS: u64 = 300;

/// Seeds of requests that every run of the tests takes.
const ASK_SEEDS: u64 = 200;

/// The number an environment variable holds.
fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

/// Seeds from `FELIX_SIM_SEEDS`, else what fits a minute of two slow cores.
fn seeds() -> u64 {
    number("FELIX_SIM_SEEDS").unwrap_or(500)
}

/// The same for durable plans, which take longer.
fn durable_seeds() -> u64 {
    number("FELIX_SIM_DURABLE_SEEDS").unwrap_or(DURABLE_SEEDS)
}

fn fail(failure: &Failure, kind: &str) -> ! {
    for line in &failure.last {
        eprintln!("{line}");
    }
    panic!("{failure}; replay it with felix-sim --replay {}{kind}", failure.seed);
}

/// How felix-sim is told of a kind.
fn argument(kind: Kind) -> &'static str {
    match kind {
        Kind::Memory => "",
        Kind::Durable => " --durable",
        Kind::Asks => " --asks",
    }
}

/// Runs seeds, and sees that each kind of thing happens in some when there are `enough`.
fn run_seeds(seeds: u64, kind: Kind, enough: u64) {
    let started = Instant::now();
    let mut met = std::collections::BTreeMap::new();
    for seed in 0..seeds {
        match check(seed, kind) {
            Ok(report) => {
                for (what, count) in report.met {
                    *met.entry(what).or_insert(0) += count;
                }
            }
            Err(failure) => fail(&failure, argument(kind)),
        }
    }
    println!("{seeds} seeds in {:?}: {met:?}", started.elapsed());
    if seeds >= enough {
        met.retain(|what, _| kind != Kind::Asks || !NOT_ASKED.contains(what));
        for (what, count) in met {
            assert!(count > 0, "no seed met: {what}");
        }
    }
}

/// What plans of requests do not bring about: their streams are neither removed nor short of room, their tokens are good.
const NOT_ASKED: [&str; 4] = ["auth refused", "offsets without records", "retention", "stream came back"];

#[test]
fn every_seed_keeps_what_was_acked_in_order_and_comes_to_rest() {
    run_seeds(seeds(), Kind::Memory, 100);
}

#[test]
fn every_durable_seed_keeps_what_was_acked_through_restarts_and_failing_disks() {
    run_seeds(durable_seeds(), Kind::Durable, DURABLE_SEEDS);
}

#[test]
fn every_answer_about_keys_counters_and_groups_can_be_true_through_restarts_and_failing_disks() {
    run_seeds(number("FELIX_SIM_ASK_SEEDS").unwrap_or(ASK_SEEDS), Kind::Asks, ASK_SEEDS);
}

#[test]
fn seeds_that_failed_once_do_not_fail_again() {
    for kind in [Kind::Memory, Kind::Durable, Kind::Asks] {
        for seed in regressions(kind) {
            if let Err(failure) = run(seed, kind) {
                fail(&failure, argument(kind));
            }
        }
    }
    // Reads that go wrong were not drawn when the first of these were found.
    for seed in regressions(Kind::Durable) {
        if let Err(failure) = run_with_sound_reads(seed) {
            fail(&failure, " --durable --sound-reads");
        }
    }
}

/// One of these seeds finds each planted defect. A range that begins later than 0 saves time: the first that finds a failed
/// write that is ignored is 264.
const FOUND_BY: [(Defect, Kind, Range<u64>); 20] = [
    (Defect::AckBeforeSync, Kind::Durable, 0..10),
    (Defect::SpillNotSynced, Kind::Durable, 0..10),
    (Defect::FailedWriteIgnored, Kind::Durable, 260..270),
    (Defect::LastRoundDropped, Kind::Durable, 10..20),
    (Defect::CeilingIgnored, Kind::Durable, 0..10),
    (Defect::ProducersForgotten, Kind::Durable, 0..10),
    (Defect::UnsettledServed, Kind::Durable, 0..20),
    (Defect::NamesakeLog, Kind::Durable, 0..20),
    (Defect::GapUntold, Kind::Durable, 0..10),
    (Defect::AnswerBeforeSettled, Kind::Asks, 0..20),
    (Defect::DeleteForgotten, Kind::Asks, 0..10),
    (Defect::LifeForgotten, Kind::Asks, 0..20),
    (Defect::AddCountedTwice, Kind::Asks, 10..20),
    (Defect::AckForgotten, Kind::Asks, 0..10),
    (Defect::ClaimNotHeld, Kind::Asks, 0..10),
    (Defect::NamesakeLog, Kind::Asks, 30..40),
    (Defect::WatchGap, Kind::Asks, 130..140),
    (Defect::ValueNotListed, Kind::Asks, 0..40),
    (Defect::SeekForgotten, Kind::Asks, 0..40),
    (Defect::CommitHalf, Kind::Asks, 0..40),
];

#[test]
fn every_planted_defect_is_found_within_its_seeds() {
    assert!(Defect::ALL.iter().all(|defect| FOUND_BY.iter().any(|(planted, ..)| planted == defect)));
    for (defect, kind, seeds) in FOUND_BY {
        plant(Some(defect));
        // A defect may also break what the broker itself asserts.
        let fails = |seed| !matches!(std::panic::catch_unwind(|| run(seed, kind)), Ok(Ok(_)));
        let found = seeds.clone().find(|seed| fails(*seed));
        plant(None);
        println!("{defect:?} is found by seed {found:?}");
        assert!(found.is_some(), "{defect:?} is not found by any of {seeds:?}");
    }
}

const MS: Duration = Duration::from_millis(1);

/// Two shards on two cores with tiny rings, a subscriber of shard 0 that never reads before `heal_at`, and `publishers`
/// on one connection.
fn stalled_shard(publishers: Vec<PublisherPlan>) -> Plan {
    let subscriber = |shard, stalled| SubscriberPlan {
        stream: 0,
        shard,
        begins: Tick::ZERO,
        earliest: false,
        stalled,
        keeps: false,
    };
    let heal_at = Tick::ZERO + MS * 6_000;
    let never = (Tick::MAX, Tick::MAX);
    let client = |publishers, subscribers| ClientPlan {
        ours: false,
        publishers,
        subscribers,
        askers: Vec::new(),
        watchers: Vec::new(),
        token_life_s: 1_000,
        renews: false,
    };
    let limits = CoreLimits {
        slow_subscriber: SlowSubscriber::Block,
        ring_bytes_max: 4_000,
        subscriber_queue_frames: 4,
        stream_window: 16 << 10,
        ..CoreLimits::default()
    };
    Plan {
        seed: 1,
        cores: 2,
        limits,
        send_window: 16 << 10,
        faults: Faults::none(MS * 5),
        stray_ppm: 0,
        mail_delay: MS,
        mail_slots: 64,
        keys_delay: Duration::ZERO,
        shards: vec![2],
        clients: vec![
            client(publishers, Vec::new()),
            client(Vec::new(), vec![subscriber(0, (Tick::ZERO, heal_at)), subscriber(1, never)]),
        ],
        happenings: Vec::new(),
        heal_at,
        storage: None,
        asks: None,
    }
}

fn publisher(only: Option<u32>, acked: u32, publishes: u32) -> PublisherPlan {
    PublisherPlan {
        stream: 0,
        only,
        publishes,
        batch_max: 1,
        payload_max: 400,
        acked,
        json: 0,
        depth: 16,
        pace: Duration::from_micros(100),
        reads_from: Tick::ZERO,
        numbered: false,
    }
}

#[test]
fn one_stalled_shard_does_not_hold_up_the_other_streams_of_its_connection() {
    for acked in [100, 0] {
        let plan = stalled_shard(vec![publisher(Some(0), acked, 4_000), publisher(Some(1), 100, 400)]);
        let mut world = World::new(plan);
        world.until(Tick::ZERO + MS * 5_000).unwrap();
        let client = &world.clients()[0];
        assert_ne!(client.publishers[0].open().0, 0, "the shard that nobody reads is not stalled");
        assert_eq!(client.publishers[1].open(), (0, 0), "acked {acked}: the other shard's stream waits");
        if let Err(failure) = world.run() {
            fail(&failure, "");
        }
    }
}

#[test]
fn a_stream_whose_publishes_are_parked_is_read_on_for_other_shards() {
    // Not acked, so that nothing is refused in time: what is parked stays within the stream's window.
    let mut mixed = publisher(None, 0, 200);
    mixed.depth = 200;
    let mut world = World::new(stalled_shard(vec![mixed]));
    world.until(Tick::ZERO + MS * 5_000).unwrap();
    let records = |shard| {
        let (_, reader) = world.model().readers().find(|(_, r)| r.shard == (0, shard)).unwrap();
        reader.records
    };
    assert!(records(1) > 80 && records(0) == 0, "{} and {}", records(1), records(0));
    if let Err(failure) = world.run() {
        fail(&failure, "");
    }
}

/// Six held streams with as much unread as a stream may have would fill the connection's window one and a half times.
#[test]
fn many_stalled_streams_leave_the_connection_credit_for_the_others() {
    let mut publishers: Vec<_> = (0..6).map(|_| publisher(Some(0), 0, 4_000)).collect();
    publishers.push(PublisherPlan { pace: MS * 5, ..publisher(Some(1), 0, 400) });
    let mut plan = stalled_shard(publishers);
    plan.limits.conn_window_before_auth = 32 << 10;
    plan.limits.conn_window = 64 << 10;
    plan.limits.parked_bytes_per_stream = 8 << 10;
    let mut world = World::new(plan);
    world.until(Tick::ZERO + MS * 5_000).unwrap();
    let client = &world.clients()[0];
    for stalled in &client.publishers[..6] {
        assert_ne!(stalled.open().0, 0, "the shard that nobody reads is not stalled");
    }
    assert_eq!(client.publishers[6].open(), (0, 0), "the other shard's stream waits");
    if let Err(failure) = world.run() {
        fail(&failure, "");
    }
}
