//! A process that starts on a volume without a free byte: what can be done without space is done, the rest follows by itself.

mod support;

use std::num::NonZeroU32;
use std::time::Duration;

use felix_logstore::engine::Event;
use felix_logstore::id::Fsync;
use felix_logstore::log::ClaimError;
use felix_logstore::record::BatchKind;
use felix_runtime::sim::SimRng;
use felix_wire::id::Offset;
use support::*;

/// Bytes of all files.
fn used(world: &mut World) -> u64 {
    world.disk.sim().image().files().iter().map(|(_, len)| *len).sum()
}

/// A killed process's volume: three logs of several segments, one deleted, files in the pool, rounds in slots.
fn left_behind(seed: u64) -> (World, Vec<Records>) {
    let mut world = World::empty(seed);
    let mut rng = SimRng::new(seed);
    let logs: Vec<_> = (1..=3).map(|name| world.create(key(name, 1), Fsync::OnCommit)).collect();
    let gone = world.create(key(9, 1), Fsync::OnCommit);
    for round in 0..40 + rng.below(40) {
        for log in logs.iter().chain([&gone]) {
            let len = [200, 3_000, 60_000][round as usize % 3];
            world.publish(*log, &[payload(&mut rng, len)]);
        }
    }
    for log in &logs {
        world.settle(*log);
    }
    world.engine.delete(gone);
    if rng.below(2) == 0 {
        world.pass(Duration::from_millis(rng.below(300)));
    }
    let records = logs.iter().map(|log| world.read_log(*log).expect("readable")).collect();
    world.disk.sim().kill();
    (world, records)
}

#[test]
fn a_volume_without_a_free_byte_is_read_deleted_from_and_written_again_when_there_is_space() {
    for seed in 0..20 {
        let (mut world, records) = left_behind(seed);
        let bytes = used(&mut world);
        world.disk.sim().set_volume_bytes(VOLUME, bytes);
        let mut world = World::start_with(world.disk, 1, |config| {
            config.space_low_bytes = 8 << 20;
            config.space_high_bytes = 16 << 20;
            config.space_every = Duration::from_millis(50);
        });
        assert!(world.recovered.refused.is_empty(), "seed {seed}: {:?}", world.recovered.refused);
        world.run_until(|world| world.events.iter().any(|event| matches!(event, Event::Space { .. })));
        let logs: Vec<_> = (1..=3).map(|name| world.engine.find(key(name, 1)).expect("there")).collect();
        for (log, records) in logs.iter().zip(&records) {
            assert_eq!(world.read_log(*log).expect("readable"), *records, "seed {seed}");
            let claim = world.engine.claim(*log, BatchKind::Data, NonZeroU32::MIN, 10);
            assert_eq!(claim.err(), Some(ClaimError::NoSpace), "seed {seed}");
        }
        assert!(!world.engine.has_space());
        let start = Offset(records[1].len() as u64 / 2);
        world.engine.move_start(logs[1], start);
        let moved =
            |world: &World| world.events.iter().any(|event| matches!(event, Event::StartMoved { .. }));
        world.run_until(moved);
        world.engine.delete(logs[2]);
        let deleted = |world: &World| world.events.iter().any(|event| matches!(event, Event::Deleted { .. }));
        world.run_until(deleted);
        world.disk.sim().set_volume_bytes(VOLUME, 64 << 20);
        world.run_until(|world| world.engine.has_space());
        for (log, records) in logs.iter().zip(&records).take(2) {
            assert_eq!(world.publish(*log, &[vec![7; 100]]), Offset(records.len() as u64), "seed {seed}");
            world.settle(*log);
        }
        // And so it is after the next kill.
        world.disk.sim().kill();
        let mut world = World::start(world.disk, 1);
        let log = world.engine.find(key(2, 1)).expect("there");
        let mut due: Records =
            records[1].range(start.0..).map(|(at, record)| (*at, record.clone())).collect();
        due.insert(records[1].len() as u64, Some(vec![7; 100]));
        assert_eq!(world.engine.log(log).expect("there").start(), start, "seed {seed}");
        assert_eq!(world.read_log(log).expect("readable"), due, "seed {seed}");
        assert!(world.engine.find(key(3, 1)).is_none() && world.engine.find(key(9, 1)).is_none());
    }
}
