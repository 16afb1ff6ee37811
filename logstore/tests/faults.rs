//! What a failing disk stops, and what it does not.

mod support;

use std::cell::Cell;
use std::num::NonZeroU32;
use std::rc::Rc;
use std::time::Duration;

use felix_logstore::engine::Event;
use felix_logstore::id::Fsync;
use felix_logstore::log::{ClaimError, StopReason};
use felix_logstore::record::BatchKind;
use felix_runtime::file::DiskError;
use felix_runtime::sim::{DiskFaults, Fault, OpKind, SimRng};
use felix_wire::id::Offset;
use support::*;

const EIO: Fault = Fault::Error(DiskError::Io { errno: 5 });

/// Lets operations of one kind on paths with `part` in them fail while the switch is on.
fn fail_when(world: &mut World, kind: OpKind, part: &'static str) -> Rc<Cell<bool>> {
    let on = Rc::new(Cell::new(false));
    let switch = on.clone();
    world.disk.sim().choose_faults(move |asked| {
        let hit = asked.kind == kind && asked.path.is_some_and(|path| path.as_str().contains(part));
        (hit && switch.get()).then_some(EIO)
    });
    on
}

fn stopped(world: &World) -> Vec<(felix_logstore::engine::LogId, StopReason)> {
    let stops = world.events.iter().filter_map(|event| match event {
        Event::Stopped { log, reason, .. } => Some((*log, *reason)),
        _ => None,
    });
    stops.collect()
}

/// One batch, if there is room at once.
fn try_publish(world: &mut World, log: felix_logstore::engine::LogId, bytes: &[u8]) -> bool {
    let Ok(claim) = world.engine.claim(log, BatchKind::Data, NonZeroU32::MIN, bytes.len()) else {
        return false;
    };
    let meta = felix_logstore::log::AppendMeta {
        generation: felix_wire::id::Generation(1),
        timestamp_ms: 1,
        producer: None,
    };
    world.engine.append(log, claim, meta, std::iter::once((1, bytes))).expect("there");
    world.turn();
    true
}

fn restart(mut world: World) -> World {
    world.disk.sim().choose_faults(|_| None);
    world.disk.sim().crash(&mut SimRng::new(9));
    World::start(world.disk, 1)
}

#[test]
fn a_failed_write_to_a_segment_stops_its_log_and_no_other() {
    let mut world = World::empty(1);
    let (bad, good) = (world.create(key(1, 1), Fsync::OnCommit), world.create(key(2, 1), Fsync::OnCommit));
    for log in [bad, good] {
        world.publish(log, &[vec![1; 100_000]]);
        world.settle(log);
    }
    let on = fail_when(&mut world, OpKind::Write, "0000000000000001-0000000000000001/");
    on.set(true);
    world.publish(bad, &[vec![2; 100_000]]);
    world.publish(good, &[vec![2; 100_000]]);
    world.settle(good);
    world.run_until(|world| !stopped(world).is_empty());
    assert_eq!(stopped(&world), [(bad, StopReason::SegmentFailed)]);
    on.set(false);
    let refused = world.engine.claim(bad, BatchKind::Data, NonZeroU32::MIN, 1);
    assert_eq!(
        refused.err(),
        Some(ClaimError::Stopped(StopReason::SegmentFailed)),
        "also when the disk is well again"
    );
    world.publish(good, &[vec![3; 10]]);
    world.settle(good);

    let mut world = restart(world);
    let bad = world.engine.find(key(1, 1)).expect("there");
    assert_eq!(world.read_log(bad).expect("readable").get(&0), Some(&Some(vec![1; 100_000])));
    world.publish(bad, &[vec![4]]);
    world.settle(bad);
}

#[test]
fn a_failed_round_stops_exactly_the_logs_in_it_and_the_core_goes_on_in_another_slot() {
    let mut world = World::empty(2);
    let logs: Vec<_> = (0..4).map(|name| world.create(key(name, 1), Fsync::OnCommit)).collect();
    for log in &logs {
        world.publish(*log, &[vec![1; 300]]);
    }
    for log in &logs {
        world.settle(*log);
    }
    world.pass(Duration::from_millis(300));
    let on = fail_when(&mut world, OpKind::Write, "slots/");
    on.set(true);
    world.publish(logs[0], &[vec![2; 300]]);
    world.publish(logs[1], &[vec![2; 300]]);
    world.run_until(|world| !stopped(world).is_empty());
    on.set(false);
    world.pass(Duration::from_millis(100));
    let stops = stopped(&world);
    assert!(
        stops.iter().all(|(log, reason)| *reason == StopReason::RoundFailed && logs[..2].contains(log)),
        "{stops:?}"
    );
    for log in &logs[2..] {
        for _ in 0..20 {
            world.publish(*log, &[vec![3; 300]]);
        }
        world.settle(*log);
        assert_eq!(world.engine.log(*log).expect("there").settled_end(), Offset(21));
    }
    let mut world = restart(world);
    assert!(world.recovered.refused.is_empty(), "{:?}", world.recovered.refused);
    for (name, least) in [(0, 1), (1, 1), (2, 21), (3, 21)] {
        let log = world.engine.find(key(name, 1)).expect("there");
        let records = world.read_log(log).expect("readable");
        assert!(records.len() >= least, "log {name}: {}", records.len());
        assert_eq!(records.get(&0), Some(&Some(vec![1; 300])));
    }
}

#[test]
fn pieces_that_cannot_be_spilled_pin_their_slot_and_the_others_go_on() {
    let mut world = World::empty(3);
    let (bad, good) = (world.create(key(1, 1), Fsync::OnCommit), world.create(key(2, 1), Fsync::OnCommit));
    let on = fail_when(&mut world, OpKind::Sync, "0000000000000001-0000000000000001/");
    on.set(true);
    let mut written = 0;
    let mut rng = SimRng::new(1);
    while stopped(&world).is_empty() {
        // It stops while it waits for room, some time.
        while stopped(&world).is_empty() && !try_publish(&mut world, bad, &payload(&mut rng, 3_000)) {
            world.step();
        }
        world.publish(good, &[payload(&mut rng, 3_000)]);
        written += 1;
        if written % 8 == 0 {
            world.step();
        }
        assert!(written < 10_000, "a slot is closed some time");
    }
    assert_eq!(stopped(&world), [(bad, StopReason::SegmentFailed)]);
    let settled = world.engine.log(bad).expect("there").settled_end();
    for _ in 0..2_000 {
        world.publish(good, &[payload(&mut rng, 3_000)]);
    }
    world.settle(good);
    let end = world.engine.log(good).expect("there").settled_end();
    let mut world = restart(world);
    for (name, end) in [(1, settled), (2, end)] {
        let log = world.engine.find(key(name, 1)).expect("there");
        assert!(world.engine.log(log).expect("there").settled_end() >= end);
        world.read_log(log).expect("readable");
    }
}

/// Two slots hold records of one log for one segment, and both were written to it. The sync for the second slot fails; the one
/// for the first, which has to wait for another log that is slow, does not: but it says nothing of what the first had covered.
#[test]
fn a_slot_stays_when_a_sync_of_a_segment_failed_though_a_later_one_did_not() {
    let mut rng = SimRng::new(12);
    let mut world = World::empty(12);
    let [bad, slow, good] = [1, 2, 3].map(|name| world.create(key(name, 1), Fsync::OnCommit));
    for log in [bad, slow, good] {
        world.publish(log, &[vec![0; 100]]);
        world.settle(log);
    }
    let fails = Rc::new(Cell::new(1));
    let (left, slows) = (fails.clone(), Rc::new(Cell::new(true)));
    let slow_now = slows.clone();
    world.disk.sim().choose_faults(move |asked| {
        let of = |part| asked.path.is_some_and(|path| path.as_str().contains(part));
        if asked.kind == OpKind::Write && of("0000000000000002-0000000000000001/") && slow_now.get() {
            return Some(Fault::Stall(Duration::from_secs(5)));
        }
        let fails = asked.kind == OpKind::Sync && of("0000000000000001-0000000000000001/") && left.get() > 0;
        fails.then(|| left.set(left.get() - 1)).map(|()| EIO)
    });
    for slot in 0..2 {
        // Both logs in one round; the slow one only in the first slot.
        for _ in 0..10 {
            world.publish(bad, &[payload(&mut rng, 300)]);
            if slot == 0 {
                world.publish(slow, &[payload(&mut rng, 300)]);
            }
            world.publish(good, &[payload(&mut rng, 300)]);
            world.settle(bad);
        }
        for _ in 0..400 {
            world.publish(good, &[payload(&mut rng, 3_000)]);
            world.settle(good);
        }
    }
    world.run_until(|world| !stopped(world).is_empty());
    assert_eq!((stopped(&world), fails.get()), (vec![(bad, StopReason::SegmentFailed)], 0));
    let settled = world.engine.log(bad).expect("there").settled_end();
    assert_eq!(settled, Offset(21), "all of it was acknowledged");
    slows.set(false);
    world.pass(Duration::from_secs(6));
    // Every slot that may be used again is.
    for _ in 0..4_000 {
        world.publish(good, &[payload(&mut rng, 3_000)]);
        world.settle(good);
    }
    let mut world = restart(world);
    assert!(world.recovered.refused.is_empty(), "{:?}", world.recovered.refused);
    let bad = world.engine.find(key(1, 1)).expect("there");
    assert!(world.engine.log(bad).expect("there").settled_end() >= settled);
    assert_eq!(world.read_log(bad).expect("readable").len(), 21);
}

#[test]
fn a_nearly_full_volume_refuses_writes_and_takes_them_again_by_itself() {
    let mut world = World::empty(4);
    let log = world.create(key(1, 1), Fsync::OnCommit);
    world.publish(log, &[vec![1; 100]]);
    world.settle(log);
    world.disk.sim().set_volume_bytes(VOLUME, 4 << 20);
    world.run_until(|world| world.events.iter().any(|event| matches!(event, Event::Space { writes: false })));
    let refused = world.engine.claim(log, BatchKind::Data, NonZeroU32::MIN, 1);
    assert_eq!(refused.err(), Some(ClaimError::NoSpace));
    assert_eq!(world.read_log(log).expect("reads go on").len(), 1);
    world.engine.move_start(log, Offset(1));
    world.run_until(|world| world.events.iter().any(|event| matches!(event, Event::StartMoved { .. })));
    world.disk.sim().set_volume_bytes(VOLUME, VOLUME_BYTES);
    world.run_until(|world| world.events.iter().any(|event| matches!(event, Event::Space { writes: true })));
    world.publish(log, &[vec![2; 100]]);
    world.settle(log);
    assert!(stopped(&world).is_empty());
}

#[test]
fn a_volume_that_is_full_at_once_loses_nothing_that_was_claimed() {
    let mut world = World::empty(5);
    let log = world.create(key(1, 1), Fsync::OnCommit);
    let mut taken = 0;
    let mut rng = SimRng::new(5);
    world.disk.sim().set_volume_bytes(VOLUME, 6 << 20);
    for _ in 0..20_000 {
        match world.engine.claim(log, BatchKind::Data, NonZeroU32::MIN, 5_000) {
            Ok(claim) => {
                let bytes = payload(&mut rng, 5_000);
                let meta = felix_logstore::log::AppendMeta {
                    generation: felix_wire::id::Generation(1),
                    timestamp_ms: 1,
                    producer: None,
                };
                world.engine.append(log, claim, meta, std::iter::once((1, bytes.as_slice()))).expect("there");
                taken += 1;
                world.turn();
            }
            Err(ClaimError::NoRoom) => world.step(),
            Err(ClaimError::NoSpace) => break,
            Err(error) => panic!("{error}"),
        }
    }
    assert!(taken > 10, "{taken}");
    world.settle(log);
    assert!(stopped(&world).is_empty(), "disk full never meets acknowledged bytes");
    assert_eq!(world.engine.log(log).expect("there").settled_end(), Offset(taken));
    let mut world = restart(world);
    let log = world.engine.find(key(1, 1)).expect("there");
    assert_eq!(world.read_log(log).expect("readable").len() as u64, taken);
}

#[test]
fn claims_wait_while_memory_is_full_and_go_on_when_it_is_not() {
    let mut world = World::start_with(fresh_disk(6), 1, |config| config.memory_bytes_max = 32 << 20);
    let log = world.create(key(1, 1), Fsync::OnCommit);
    let stall = Rc::new(Cell::new(true));
    let switch = stall.clone();
    world.disk.sim().choose_faults(move |asked| {
        let hit =
            asked.kind == OpKind::Write && asked.path.is_some_and(|path| path.as_str().contains("shards/"));
        (hit && switch.get()).then_some(Fault::Stall(Duration::from_secs(30)))
    });
    let mut refused = 0;
    for _ in 0..400 {
        match world.engine.claim(log, BatchKind::Data, NonZeroU32::MIN, 200_000) {
            Ok(claim) => {
                let bytes = vec![1; 200_000];
                let meta = felix_logstore::log::AppendMeta {
                    generation: felix_wire::id::Generation(1),
                    timestamp_ms: 1,
                    producer: None,
                };
                world.engine.append(log, claim, meta, std::iter::once((1, bytes.as_slice()))).expect("there");
                world.turn();
            }
            Err(error) => {
                assert_eq!(error, ClaimError::NoRoom);
                refused += 1;
                world.turn();
            }
        }
        assert!(world.engine.memory_bytes() <= 32 << 20);
    }
    assert!(refused > 0);
    stall.set(false);
    world.events.clear();
    world.run_until(|world| world.events.iter().any(|event| matches!(event, Event::Room { .. })));
    world.publish(log, &[vec![2; 200_000]]);
    world.settle(log);
}

/// Random errors of every kind while three logs are written, then a power loss: what was settled is there.
#[test]
fn no_error_of_the_disk_loses_what_was_settled() {
    for seed in 0..40 {
        let mut world = World::empty(seed);
        let keys = [key(1, 1), key(2, 1), key(3, 1)];
        let logs: Vec<_> = keys.iter().map(|key| world.create(*key, Fsync::OnCommit)).collect();
        let ppm = 3_000;
        let errors =
            DiskFaults { write_error_ppm: ppm, sync_error_ppm: ppm, other_error_ppm: ppm, ..faults() };
        world.disk.sim().set_faults(errors);
        let mut rng = SimRng::new(seed);
        let mut bytes = vec![Vec::new(); 3];
        for _ in 0..600 {
            let pick = rng.below(3) as usize;
            let len = [50, 2_000, 90_000][rng.below(3) as usize];
            if let Ok(claim) = world.engine.claim(logs[pick], BatchKind::Data, NonZeroU32::MIN, len) {
                let payload = payload(&mut rng, len);
                let meta = felix_logstore::log::AppendMeta {
                    generation: felix_wire::id::Generation(1),
                    timestamp_ms: 1,
                    producer: None,
                };
                let records = std::iter::once((1, payload.as_slice()));
                world.engine.append(logs[pick], claim, meta, records).expect("there");
                bytes[pick].push(payload.clone());
            }
            world.step();
        }
        let settled: Vec<u64> =
            logs.iter().map(|log| world.engine.log(*log).expect("there").settled_end().0).collect();
        world.disk.sim().set_faults(faults());
        let mut world = restart(world);
        assert!(world.recovered.refused.is_empty(), "seed {seed}: {:?}", world.recovered.refused);
        for (at, key) in keys.iter().enumerate() {
            let log = world.engine.find(*key).expect("there");
            let records = world.read_log(log).expect("readable");
            assert!(records.len() as u64 >= settled[at], "seed {seed}: {} of {}", records.len(), settled[at]);
            for (offset, record) in records {
                assert!(record.as_ref() == Some(&bytes[at][offset as usize]), "seed {seed} offset {offset}");
            }
        }
    }
}

/// Kills the process on `world`'s machine and starts one that adopts what it finds; then the machine loses its power, and
/// another process starts.
fn restart_and_lose_power(mut world: World, seed: u64) -> World {
    world.disk.sim().choose_faults(|_| None);
    world.disk.sim().kill();
    let mut world = World::start(world.disk, 1);
    assert!(world.recovered.refused.is_empty(), "seed {seed}: {:?}", world.recovered.refused);
    world.pass(Duration::from_millis(10));
    world.disk.sim().crash(&mut SimRng::new(seed));
    World::start(world.disk, 2)
}

/// The failed write of a head leaves it in what can be read, in about every second seed, and on the disk in fewer.
#[test]
fn a_head_whose_write_failed_is_made_durable_before_it_is_relied_on() {
    for seed in 0..32 {
        let mut world = World::empty(seed);
        let log = world.create(key(1, 1), Fsync::OnCommit);
        world.publish(log, &[vec![1; 100]]);
        world.settle(log);
        let on = fail_when(&mut world, OpKind::Write, "0000000000000002.seg");
        on.set(true);
        for _ in 0..3_000 {
            if !stopped(&world).is_empty() {
                break;
            }
            if !try_publish(&mut world, log, &[2; 3_000]) {
                world.step();
            }
        }
        assert_eq!(stopped(&world), [(log, StopReason::SegmentFailed)], "seed {seed}");
        let settled = world.engine.log(log).expect("there").settled_end();
        let mut world = restart_and_lose_power(world, seed);
        assert!(world.recovered.refused.is_empty(), "seed {seed}: {:?}", world.recovered.refused);
        let log = world.engine.find(key(1, 1)).expect("there");
        assert!(world.read_log(log).expect("readable").len() as u64 >= settled.0, "seed {seed}");
    }
}

/// What a recovery finds is there after the next one, also if the sync that had to store it failed.
#[test]
fn bytes_whose_sync_failed_are_made_durable_before_they_are_relied_on() {
    let mut found_some = 0;
    for seed in 0..32 {
        let mut world = World::empty(seed);
        let log = world.create(key(1, 1), Fsync::Periodic);
        world.publish(log, &[vec![1; 90_000]]);
        world.settle(log);
        world.pass(Duration::from_secs(2));
        let on = fail_when(&mut world, OpKind::Sync, "0000000000000001-0000000000000001/");
        on.set(true);
        while stopped(&world).is_empty() {
            try_publish(&mut world, log, &[2; 90_000]);
            world.step();
        }
        world.disk.sim().choose_faults(|_| None);
        world.disk.sim().kill();
        let world = World::start(world.disk, 1);
        let log = world.engine.find(key(1, 1)).expect("there");
        let end = world.engine.log(log).expect("there").settled_end();
        found_some += u64::from(end > Offset(1));
        let mut world = restart_and_lose_power(world, seed);
        assert!(world.recovered.refused.is_empty(), "seed {seed}: {:?}", world.recovered.refused);
        let log = world.engine.find(key(1, 1)).expect("there");
        assert_eq!(world.engine.log(log).expect("there").settled_end(), end, "seed {seed}");
        assert_eq!(world.read_log(log).expect("readable").len() as u64, end.0, "seed {seed}");
    }
    assert!(found_some > 0, "a recovery finds what was not durable");
}

/// A directory whose sync failed, and which could not be removed then either.
#[test]
fn the_directory_of_a_log_is_durable_before_it_is_relied_on_also_after_a_failed_sync() {
    for seed in 0..32 {
        for killed in [false, true] {
            let mut world = World::empty(seed);
            let on = Rc::new(Cell::new(true));
            let switch = on.clone();
            let failed = Cell::new(false);
            world.disk.sim().choose_faults(move |asked| {
                let here = switch.get() && asked.path.is_some_and(|path| path.as_str().starts_with("shards"));
                failed.set(failed.get() || (here && asked.kind == OpKind::SyncDir));
                let fails = matches!(asked.kind, OpKind::SyncDir | OpKind::RemoveDir);
                (here && fails && failed.get()).then_some(EIO)
            });
            let made =
                |world: &World| world.events.iter().any(|event| matches!(event, Event::CreateFailed { .. }));
            world.engine.create(key(1, 1), log_config(Fsync::OnCommit)).expect("a new key");
            world.run_until(made);
            on.set(false);
            // Names of slots fell with the same sync; they are made again.
            world.pass(Duration::from_secs(3));
            if killed {
                world.disk.sim().kill();
                world = World::start(world.disk, 1);
            }
            let log = match world.engine.find(key(1, 1)) {
                Some(log) => log,
                None => world.create(key(1, 1), Fsync::OnCommit),
            };
            world.publish(log, &[vec![1; 100]]);
            world.settle(log);
            world.disk.sim().crash(&mut SimRng::new(seed));
            let mut world = World::start(world.disk, 2);
            assert!(world.recovered.refused.is_empty(), "seed {seed}: {:?}", world.recovered.refused);
            let log = world.engine.find(key(1, 1)).expect("there");
            assert_eq!(world.read_log(log).expect("readable").len(), 1, "seed {seed}");
        }
    }
}
