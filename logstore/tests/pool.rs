//! Files that are filled ahead of time, so that direct writes go over blocks that were written before.

mod support;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use felix_logstore::engine::LogId;
use felix_logstore::id::Fsync;
use felix_logstore::log::LogConfig;
use felix_logstore::retention::Retention;
use felix_runtime::sim::{Fault, OpKind, SimRng};
use felix_wire::id::Offset;
use support::*;

const FILE_BYTES: u64 = 4 << 20;

fn world() -> World {
    World::start_with(fresh_disk(1), 1, |config| config.pool_fill_bytes = FILE_BYTES)
}

fn large() -> LogConfig {
    LogConfig { segment_bytes_max: FILE_BYTES, ..log_config(Fsync::OnCommit) }
}

fn create(world: &mut World, name: u128) -> LogId {
    let log = world.create(key(name, 1), Fsync::OnCommit);
    world.engine.configure(log, large());
    log
}

/// Writes until the log has a segment of at least `bytes`.
fn grow(world: &mut World, log: LogId, bytes: u64) {
    while world.engine.log(log).expect("there").open().all(|open| open.size_bytes < bytes) {
        world.publish(log, &[vec![1; 60_000]]);
        world.settle(log);
    }
}

#[test]
fn nothing_is_filled_for_small_logs_and_two_files_once_a_log_is_large() {
    let mut world = world();
    let log = create(&mut world, 1);
    world.publish(log, &[vec![1; 60_000]]);
    world.settle(log);
    world.pass(Duration::from_secs(3));
    assert_eq!(world.engine.gauges().pooled, 0, "a small log needs none");
    grow(&mut world, log, 1 << 20);
    world.pass(Duration::from_secs(3));
    assert_eq!(world.engine.gauges().pooled, 2);
    // The next large segment is one of them, written before to its end, and another is filled in its place.
    let taken = Rc::new(RefCell::new(Vec::new()));
    let seen = taken.clone();
    world.disk.sim().choose_faults(move |asked| {
        if asked.kind == OpKind::Rename {
            seen.borrow_mut().extend(asked.path.cloned());
        }
        None
    });
    let paths: Vec<_> = world
        .disk
        .sim()
        .image()
        .files()
        .into_iter()
        .filter(|(path, _)| path.as_str().starts_with("pool/"))
        .collect();
    assert!(paths.len() == 2 && paths.iter().all(|(_, len)| *len == FILE_BYTES), "{paths:?}");
    grow(&mut world, log, FILE_BYTES);
    assert!(taken.borrow().iter().any(|path| path.as_str().starts_with("pool/")), "{:?}", taken.borrow());
    world.pass(Duration::from_secs(3));
    assert_eq!(world.engine.gauges().pooled, 2);
    let disk = world.close();
    let world = World::start(disk, 1);
    assert!(world.recovered.refused.is_empty());
}

#[test]
fn a_fill_leaves_the_disk_to_others_but_for_a_small_share() {
    let mut world = world();
    let log = create(&mut world, 1);
    let other = create(&mut world, 2);
    let writes = Rc::new(Cell::new(0));
    let stall = Rc::new(Cell::new(false));
    let (counted, stalled) = (writes.clone(), stall.clone());
    world.disk.sim().choose_faults(move |asked| {
        let within = |part: &str| asked.path.is_some_and(|path| path.as_str().starts_with(part));
        if asked.kind != OpKind::Write {
            return None;
        }
        counted.set(counted.get() + u32::from(within("pool/")));
        (stalled.get() && within("shards/")).then_some(Fault::Stall(Duration::from_millis(100)))
    });
    grow(&mut world, log, 1 << 20);
    grow(&mut world, other, 1 << 20);
    world.pass(Duration::from_millis(1));
    assert!(world.engine.gauges().pooled < 2, "it is still being filled");
    // A direct write is in flight for 100 ms: a write of the fill in 10 ms at most.
    stall.set(true);
    world.publish(other, &[vec![2; 70_000]]);
    let (before, from) = (writes.get(), world.now());
    world.settle(other);
    let (busy, took) = (writes.get() - before, world.now().saturating_since(from));
    assert!(took >= Duration::from_millis(100), "{took:?}");
    assert!(busy >= 1 && u128::from(busy) <= took.as_millis() / 10 + 2, "{busy} writes in {took:?}");
    // With nothing else to do it goes on as fast as the disk answers.
    stall.set(false);
    let before = writes.get();
    world.pass(Duration::from_millis(100));
    let idle = writes.get() - before;
    assert!(idle > 2 * busy || world.engine.gauges().pooled == 2, "{idle} and {busy}");
}

#[test]
fn nothing_is_filled_when_the_volume_has_little_space() {
    let mut world = world();
    world.disk.sim().set_volume_bytes(VOLUME, 4 * (1 << 20) + 2 * FILE_BYTES + (4 << 20));
    world.pass(Duration::from_secs(2));
    let log = create(&mut world, 1);
    grow(&mut world, log, 1 << 20);
    world.pass(Duration::from_secs(5));
    assert_eq!(world.engine.gauges().pooled, 0);
    world.disk.sim().set_volume_bytes(VOLUME, VOLUME_BYTES);
    world.pass(Duration::from_secs(5));
    assert_eq!(world.engine.gauges().pooled, 2, "and by itself when there is more");
}

#[test]
fn what_a_growing_log_leaves_behind_does_not_keep_its_large_files_out_of_the_pool() {
    let mut world = World::start_with(fresh_disk(1), 1, |config| {
        (config.pool_fill, config.pool_files_max) = (0, 3);
    });
    let log = world.create(key(1, 1), Fsync::OnCommit);
    let retention = Retention { bytes: Some(2 * FILE_BYTES), ..Retention::default() };
    world.engine.configure(log, LogConfig { retention, ..large() });
    // It outgrows its small segments, which are more than the pool holds.
    grow(&mut world, log, FILE_BYTES);
    let publish = |world: &mut World, bytes: u64| {
        for _ in 0..bytes / 60_000 {
            world.publish(log, &[vec![1; 60_000]]);
            world.settle(log);
            world.engine.retain(log, 0, Offset(u64::MAX));
            world.pass(Duration::from_millis(1));
        }
    };
    publish(&mut world, 6 * FILE_BYTES);
    let new = Rc::new(Cell::new(0));
    let counted = new.clone();
    world.disk.sim().choose_faults(move |asked| {
        counted.set(counted.get() + u32::from(matches!(asked.kind, OpKind::Presize | OpKind::Unlink)));
        None
    });
    let retired = world.engine.counts().retired;
    publish(&mut world, 6 * FILE_BYTES);
    assert!(world.engine.counts().retired >= retired + 4, "it rolls and retires");
    assert_eq!(new.get(), 0, "every segment was one before");
}

#[test]
fn a_log_of_full_size_writes_into_what_it_gave_up_with_one_change_of_name() {
    let mut world = World::start_with(fresh_disk(1), 1, |config| config.pool_fill = 0);
    let name = key(1, 1);
    let log = world.create(name, Fsync::OnCommit);
    let retention = Retention { bytes: Some(2 * FILE_BYTES), ..Retention::default() };
    world.engine.configure(log, LogConfig { retention, ..large() });
    let publish = |world: &mut World, log: LogId| {
        for _ in 0..6 * FILE_BYTES / 60_000 {
            world.publish(log, &[vec![1; 60_000]]);
            world.settle(log);
            world.engine.retain(log, 0, Offset(u64::MAX));
            world.pass(Duration::from_millis(1));
        }
    };
    grow(&mut world, log, FILE_BYTES);
    publish(&mut world, log);
    let (names, syncs) = (Rc::new(RefCell::new(Vec::new())), Rc::new(Cell::new(0)));
    let (seen, counted) = (names.clone(), syncs.clone());
    world.disk.sim().choose_faults(move |asked| {
        match asked.kind {
            OpKind::Rename => seen.borrow_mut().extend(asked.path.map(ToString::to_string)),
            OpKind::SyncDir => counted.set(counted.get() + 1),
            _ => {}
        }
        None
    });
    let before = world.engine.counts().retired;
    publish(&mut world, log);
    let retired = (world.engine.counts().retired - before) as usize;
    let renamed = names.borrow().clone();
    assert!(retired >= 4 && renamed.len().abs_diff(retired) <= 1, "{retired} and {renamed:?}");
    assert!(renamed.iter().all(|path| path.contains("shards/")), "{renamed:?}");
    assert!(syncs.get() <= retired + 1, "{} syncs of directories for {retired} segments", syncs.get());
    // What is kept is below the start for the next life too, and goes with the log.
    let start = world.engine.log(log).expect("there").start();
    let records = world.read_log(log).expect("readable").len();
    world.disk.sim().crash(&mut SimRng::new(4));
    let mut world = World::start(world.disk, 1);
    let log = world.engine.find(name).expect("there");
    assert_eq!(world.engine.log(log).expect("there").start(), start);
    assert_eq!(world.read_log(log).expect("readable").len(), records);
    world.pass(Duration::from_secs(1));
    world.engine.delete(log);
    world.pass(Duration::from_secs(1));
    let files = world.disk.sim().image().files();
    assert!(files.iter().all(|(path, _)| !path.as_str().starts_with("shards/")), "{files:?}");
}
