//! One file that fails once or does not answer for half a minute: the logs that are not in it go on.

mod support;

use std::cell::Cell;
use std::num::NonZeroU32;
use std::rc::Rc;
use std::time::Duration;

use felix_logstore::engine::{Event, LogId};
use felix_logstore::id::Fsync;
use felix_logstore::log::AppendMeta;
use felix_logstore::record::BatchKind;
use felix_runtime::file::DiskError;
use felix_runtime::sim::{Fault, OpKind, SimRng};
use felix_wire::id::Generation;
use support::*;

const STALL: Duration = Duration::from_secs(30);
/// What another log may wait for at most, on a disk that answers within 50 ms.
const PATIENCE: Duration = Duration::from_secs(1);

/// One batch, if there is room at once.
fn try_publish(world: &mut World, log: LogId, bytes: &[u8]) -> bool {
    let Ok(claim) = world.engine.claim(log, BatchKind::Data, NonZeroU32::MIN, bytes.len()) else {
        return false;
    };
    let meta = AppendMeta { generation: Generation(1), timestamp_ms: 1, producer: None };
    world.engine.append(log, claim, meta, std::iter::once((1, bytes))).expect("there");
    world.turn();
    true
}

/// What of the bad log is slow.
#[derive(Debug, Clone, Copy)]
struct Slow {
    kind: OpKind,
    /// Length of its batches.
    len: usize,
    policy: Fsync,
}

/// Publishes to the bad log as often as it takes a batch, and to three others one batch at a time; gives the longest time
/// that one of the others waited from its publish to the settling of it, and how long the bad log really stood.
fn stand(slow: Slow) -> (Duration, Duration) {
    let mut world = World::empty(7);
    let bad = world.create(key(1, 1), slow.policy);
    let policies = [Fsync::OnCommit, slow.policy, Fsync::OnCommit];
    let others: Vec<LogId> =
        (2..5).zip(policies).map(|(name, policy)| world.create(key(name, 1), policy)).collect();
    for log in std::iter::once(bad).chain(others.clone()) {
        world.publish(log, &[vec![1; 100]]);
        world.settle(log);
    }
    let hits = Rc::new(Cell::new(0));
    let counted = hits.clone();
    world.disk.sim().choose_faults(move |asked| {
        let of_bad = |path: &felix_runtime::file::DiskPath| path.as_str().contains("01-0000000000000001/");
        let hit = asked.kind == slow.kind && asked.path.is_some_and(of_bad) && counted.get() == 0;
        counted.set(counted.get() + u32::from(hit));
        hit.then_some(Fault::Stall(STALL))
    });
    let mut rng = SimRng::new(3);
    let (mut longest, mut stood) = (Duration::ZERO, Duration::ZERO);
    let mut hit_at = None;
    let mut turn = 0;
    while stood < STALL + Duration::from_secs(2) {
        let bytes = payload(&mut rng, slow.len);
        try_publish(&mut world, bad, &bytes);
        // The others use every way: the commit file, together and alone, and their own segments.
        let len = [3_000, 3_000, 20_000, 90_000][turn % 4];
        let bytes = vec![turn as u8; len];
        let before = world.now();
        for log in &others {
            while !try_publish(&mut world, *log, &bytes) {
                world.step();
                assert!(world.now().saturating_since(before) < PATIENCE, "{slow:?}: {log:?} finds no room");
            }
        }
        for log in &others {
            while !world.engine.log(*log).expect("there").is_settled() {
                world.step();
                assert!(world.now().saturating_since(before) < PATIENCE, "{slow:?}: {log:?} waits");
            }
        }
        longest = longest.max(world.now().saturating_since(before));
        if hits.get() > 0 {
            let now = world.now();
            stood = now.saturating_since(*hit_at.get_or_insert(now));
        }
        turn += 1;
        let next = world.now() + Duration::from_millis(12);
        world.disk.sim().advance_to(next);
        world.turn();
        world.events.retain(|event| matches!(event, Event::Stopped { .. } | Event::DiskTrouble { .. }));
        assert!(world.events.is_empty(), "{slow:?}: {:?}", world.events);
        assert!(hits.get() > 0 || turn < 20_000, "{slow:?}: nothing of the kind was asked");
    }
    // It goes on by itself.
    world.publish(bad, &[vec![9; 100]]);
    world.settle(bad);
    world.read_log(bad).expect("readable");
    (longest, stood)
}

fn the_others_go_on(slow: Slow) {
    let (longest, stood) = stand(slow);
    println!("{slow:?}: the others waited {longest:?} at most while one file stood for {stood:?}");
}

#[test]
fn a_write_behind_the_commit_file_that_stands_for_30_s_holds_up_only_its_log() {
    the_others_go_on(Slow { kind: OpKind::Write, len: 400, policy: Fsync::OnCommit });
}

#[test]
fn a_direct_write_that_stands_for_30_s_holds_up_only_its_log() {
    the_others_go_on(Slow { kind: OpKind::Write, len: 100_000, policy: Fsync::OnCommit });
}

#[test]
fn a_sync_of_a_segment_that_stands_for_30_s_holds_up_only_its_log() {
    the_others_go_on(Slow { kind: OpKind::Sync, len: 400, policy: Fsync::OnCommit });
}

#[test]
fn a_flush_that_stands_for_30_s_holds_up_only_its_log() {
    the_others_go_on(Slow { kind: OpKind::Sync, len: 100_000, policy: Fsync::Periodic });
}

#[test]
fn a_segment_that_takes_30_s_to_make_holds_up_only_its_log() {
    the_others_go_on(Slow { kind: OpKind::Open, len: 30_000, policy: Fsync::OnCommit });
}

/// The `nth` operation of `kind` of a run fails; gives the path and what stopped, and whether there was an `nth`.
fn one_failed_sync(kind: OpKind, nth: u64) -> bool {
    let mut world = World::empty(5);
    let policies = [Fsync::OnCommit, Fsync::Periodic, Fsync::OnCommit, Fsync::None];
    let logs: Vec<LogId> =
        (1..).zip(policies).map(|(name, policy)| world.create(key(name, 1), policy)).collect();
    let count = Rc::new(Cell::new(0));
    let failed = Rc::new(Cell::new(None));
    let (counted, told) = (count.clone(), failed.clone());
    world.disk.sim().choose_faults(move |asked| {
        if asked.kind != kind {
            return None;
        }
        counted.set(counted.get() + 1);
        let hit = counted.get() == nth;
        if hit {
            told.set(asked.path.cloned());
        }
        hit.then_some(Fault::Error(DiskError::Io { errno: 5 }))
    });
    let mut rng = SimRng::new(nth);
    for turn in 0..400 {
        for log in &logs {
            let len = [300, 3_000, 70_000][(turn + log.0 as usize) % 3];
            let bytes = payload(&mut rng, len);
            try_publish(&mut world, *log, &bytes);
        }
        world.step();
        if turn % 40 == 0 {
            world.pass(Duration::from_millis(300));
        }
    }
    world.pass(Duration::from_millis(600));
    let hit = failed.take();
    let stopped: Vec<LogId> = world
        .events
        .iter()
        .filter_map(|event| match event {
            Event::Stopped { log, .. } => Some(*log),
            _ => None,
        })
        .collect();
    let Some(path) = hit else {
        assert!(stopped.is_empty());
        return false;
    };
    // What could not be made is tried again when the volume is asked for its space.
    world.pass(Duration::from_secs(3));
    for (log, policy) in logs.iter().zip(policies) {
        let own = path.as_str().contains(&key(u128::from(log.0), 1).to_string());
        let in_slot = path.as_str().starts_with("slots/") && policy != Fsync::OnCommit;
        let stops = stopped.contains(log);
        assert!(!stops || own || in_slot, "sync {nth} of {path} stopped {log:?} with {policy:?}");
        if !stops {
            world.publish(*log, &[vec![7; 100]]);
            world.settle(*log);
        }
    }
    let ends: Vec<u64> =
        logs.iter().map(|log| world.engine.log(*log).expect("there").durable_end().0).collect();
    world.disk.sim().choose_faults(|_| None);
    world.disk.sim().crash(&mut SimRng::new(nth));
    let mut world = World::start(world.disk, 2);
    assert!(world.recovered.refused.is_empty(), "sync {nth} of {path}: {:?}", world.recovered.refused);
    for (name, end) in (1..).zip(ends) {
        let log = world.engine.find(key(name, 1)).expect("there");
        let found = world.engine.log(log).expect("there").settled_end().0;
        assert!(found >= end, "sync {nth} of {path}: log {name} ends at {found}, durable to {end}");
        world.read_log(log).expect("readable");
    }
    true
}

/// Runs with each operation of `kind` failing in turn; gives the first number that no operation had.
fn fail_each(kind: OpKind) -> u64 {
    let nth = (1..).find(|nth| !one_failed_sync(kind, *nth)).expect("a run ends");
    println!("{} of {kind:?} failed, one in each run", nth - 1);
    nth
}

#[test]
fn a_sync_that_fails_once_stops_only_what_it_was_to_cover() {
    let nth = fail_each(OpKind::Sync);
    assert!(nth > 20, "{nth}: there are more syncs in a run");
}

#[test]
fn a_directory_sync_that_fails_once_takes_no_name_that_is_relied_on() {
    let nth = fail_each(OpKind::SyncDir);
    assert!(nth > 10, "{nth}: there are more in a run");
}

/// It was due at a moment that had passed, and its core looked after it without a pause until the volume answered.
#[test]
fn an_engine_is_not_due_while_the_volume_does_not_say_how_much_space_it_has() {
    let mut world = World::empty(9);
    world.disk.sim().choose_faults(|asked| (asked.kind == OpKind::Space).then_some(Fault::Stall(STALL)));
    let until = world.now() + Duration::from_secs(5);
    while world.now() < until {
        world.step();
        let now = world.now();
        let due = world.engine.next_timeout();
        assert!(due.is_none_or(|due| due > now), "due at {due:?}, it is {now}");
    }
}

/// Nobody was told of an operation that was never answered.
#[test]
fn operations_without_an_answer_are_told_after_5_s_and_every_30_s_and_counted() {
    let mut world = World::empty(11);
    let log = world.create(key(1, 1), Fsync::OnCommit);
    world.publish(log, &[vec![1; 100]]);
    world.settle(log);
    world.pass(Duration::from_secs(2));
    let (stall, counted) = (Duration::from_secs(70), Rc::new(Cell::new(0)));
    let writes = counted.clone();
    world.disk.sim().choose_faults(move |asked| {
        let hit = asked.kind == OpKind::Write;
        writes.set(writes.get() + u64::from(hit));
        hit.then_some(Fault::Stall(stall))
    });
    let began = world.now();
    world.publish(log, &[vec![2; 100]]);
    let mut told = Vec::new();
    while world.now().saturating_since(began) < Duration::from_secs(69) {
        world.step();
        let after = world.now().saturating_since(began).as_secs();
        for event in world.events.drain(..) {
            if let Event::Unanswered { kind, count, oldest } = event {
                assert_eq!((kind, count, oldest.as_secs()), ("write", 1, after));
                told.push(after);
            }
        }
        assert_eq!(world.engine.gauges().unanswered, usize::from(after >= 5));
    }
    assert_eq!(told, [5, 35, 65]);
    assert_eq!((counted.get(), world.engine.counts().unanswered), (1, 1));
    world.disk.sim().choose_faults(|_| None);
    world.settle(log);
    world.pass(Duration::from_secs(60));
    assert_eq!(world.engine.gauges().unanswered, 0);
    assert!(world.events.iter().all(|event| !matches!(event, Event::Unanswered { .. })));
}
