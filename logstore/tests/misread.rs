//! Reads of a start that fail or bring a wrong bit, once each: nothing changes.

mod support;

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use felix_logstore::id::Fsync;
use felix_runtime::file::DiskError;
use felix_runtime::sim::{DiskImage, Fault, OpKind, SimRng};
use support::*;

const NAMES: u128 = 4;

/// A volume as a power loss left it, with records in slots and in segments, and those that were acknowledged by log.
fn volume(seed: u64) -> (DiskImage, Vec<Records>) {
    let mut rng = SimRng::new(seed);
    let mut world = World::empty(seed);
    let policy = |name| if name == 0 { Fsync::Periodic } else { Fsync::OnCommit };
    let logs: Vec<_> = (0..NAMES).map(|name| world.create(key(name, 1), policy(name))).collect();
    let mut expected = vec![Records::new(); logs.len()];
    for _ in 0..60 + rng.below(100) {
        let pick = rng.below(NAMES as u64) as usize;
        let len = [40, 600, 3_000, 40_000][rng.below(4) as usize];
        let bytes = payload(&mut rng, len);
        let at = world.publish(logs[pick], std::slice::from_ref(&bytes));
        expected[pick].insert(at.0, Some(bytes));
        if rng.below(2) == 0 {
            world.settle(logs[pick]);
        }
    }
    for log in &logs {
        world.settle(*log);
    }
    if seed.is_multiple_of(2) {
        world.pass(Duration::from_secs(2));
    } else {
        // What was not synced may be gone, or not.
        world.pass(Duration::from_millis(1));
    }
    (world.disk.sim().image_after_power_loss(&mut rng), expected)
}

/// Starts over a copy of `image` where read number `nth` meets `fault`. Gives what the logs hold then, and how many reads there
/// were.
fn start(image: &DiskImage, seed: u64, nth: u64, fault: Fault) -> (Vec<Records>, u64) {
    let mut disk = from_image(seed, image.clone());
    let reads = Rc::new(Cell::new(0));
    let counted = reads.clone();
    disk.sim().choose_faults(move |asked| {
        if asked.kind != OpKind::Read {
            return None;
        }
        counted.set(counted.get() + 1);
        (counted.get() == nth).then_some(fault)
    });
    let mut world = World::start(disk, 2);
    let reads = reads.get();
    world.disk.sim().choose_faults(|_| None);
    assert!(world.recovered.refused.is_empty(), "read {nth}: {:?}", world.recovered.refused);
    let read = (0..NAMES).map(|name| {
        let log = world.engine.find(key(name, 1)).expect("there");
        world.read_log(log).expect("readable")
    });
    (read.collect(), reads)
}

fn every_read_of_a_start(fault: Fault, starts: u64) {
    for seed in 0..starts {
        let (image, acknowledged) = volume(seed);
        let (sound, reads) = start(&image, seed, 0, fault);
        for (log, expected) in acknowledged.iter().enumerate().skip(1) {
            assert_eq!(sound[log].len(), expected.len(), "seed {seed}");
            assert!(sound[log] == *expected, "seed {seed}: log {log}");
        }
        assert!(reads > 8, "{reads}");
        for nth in 1..=reads {
            let (found, _) = start(&image, seed * 1_000 + nth, nth, fault);
            for (log, expected) in sound.iter().enumerate() {
                assert_eq!(found[log].len(), expected.len(), "seed {seed}, read {nth} of {reads}: log {log}");
                assert!(found[log] == *expected, "seed {seed}, read {nth} of {reads}: log {log}");
            }
        }
    }
}

#[test]
fn one_wrong_bit_in_any_read_of_a_start_changes_nothing() {
    every_read_of_a_start(Fault::FlippedBit, 6);
}

#[test]
fn one_read_that_fails_in_a_start_changes_nothing() {
    every_read_of_a_start(Fault::Error(DiskError::Io { errno: 5 }), 2);
}
