//! Slots that fail on a volume with no room for others: what cannot be written is refused, and goes on by itself.

mod support;

use std::cell::Cell;
use std::num::NonZeroU32;
use std::rc::Rc;
use std::time::Duration;

use felix_logstore::engine::{Event, LogId};
use felix_logstore::id::Fsync;
use felix_logstore::log::{AppendMeta, ClaimError};
use felix_logstore::record::BatchKind;
use felix_runtime::file::{DiskError, DiskPath};
use felix_runtime::sim::{Fault, OpKind, SimRng};
use felix_wire::id::{Generation, Offset};
use support::*;

/// What the disk does with slots.
#[derive(Clone, Default)]
struct Switches {
    /// Rounds of this slot fail, counted in the order in which their heads are written.
    failing: Rc<Cell<Option<usize>>>,
    /// No file of a slot can be made.
    full: Rc<Cell<bool>>,
    /// Segments do not answer a sync for 2 s.
    slow: Rc<Cell<bool>>,
}

impl Switches {
    fn of(disk: &mut AnyDisk) -> Switches {
        let switches = Switches::default();
        let own = switches.clone();
        let mut opened: Vec<DiskPath> = Vec::new();
        disk.sim().choose_faults(move |asked| {
            let path = asked.path?;
            let in_slots = path.as_str().starts_with("slots/") && !path.as_str().contains("recovered");
            if asked.kind == OpKind::Write && in_slots {
                // The first write to each is its head.
                let Some(at) = opened.iter().position(|slot| slot == path) else {
                    opened.push(path.clone());
                    return None;
                };
                return (own.failing.get() == Some(at)).then_some(Fault::Error(DiskError::Io { errno: 5 }));
            }
            if own.full.get() && in_slots && asked.kind == OpKind::Presize {
                return Some(Fault::Error(DiskError::NoSpace));
            }
            let stalls = own.slow.get() && !in_slots && asked.kind == OpKind::Sync;
            stalls.then_some(Fault::Stall(Duration::from_secs(2)))
        });
        switches
    }
}

/// Eight logs with a record each, and the switches of their disk.
fn world(seed: u64) -> (World, Vec<LogId>, Switches) {
    let mut disk = fresh_disk(seed);
    let switches = Switches::of(&mut disk);
    let mut world = World::start(disk, 1);
    let logs: Vec<LogId> = (1..=8).map(|name| world.create(key(name, 1), Fsync::OnCommit)).collect();
    for log in &logs {
        world.publish(*log, &[vec![1; 100]]);
        world.settle(*log);
    }
    (world, logs, switches)
}

fn troubles(world: &World, of: &str) -> usize {
    world
        .events
        .iter()
        .filter(|event| matches!(event, Event::DiskTrouble { what, .. } if *what == of))
        .count()
}

fn rounds_failed(world: &World) -> usize {
    troubles(world, "a commit round")
}

/// Small batches to two logs in turn, so that they go through slots, until `until`.
fn fill(world: &mut World, logs: [LogId; 2], mut until: impl FnMut(&World) -> bool) {
    let mut rng = SimRng::new(3);
    for turn in 0..20_000 {
        if until(world) {
            return;
        }
        let bytes = payload(&mut rng, 3_000);
        for log in logs {
            try_publish(world, log, &bytes);
        }
        if turn % 4 == 0 {
            world.step();
        }
    }
    panic!("it never came to that");
}

/// Lets the open slot, the one with that number, fail in a round that is not its first.
fn fail_open(world: &mut World, switches: &Switches, number: usize, log: LogId) {
    let before = rounds_failed(world);
    world.pass(Duration::from_millis(500));
    switches.failing.set(Some(number));
    world.publish(log, &[vec![1; 100]]);
    world.run_until(|world| rounds_failed(world) > before);
    switches.failing.set(None);
    world.pass(Duration::from_millis(500));
}

/// 600 batches to each of `logs`, which settle in good time.
fn write_on(world: &mut World, logs: &[LogId]) {
    let until = world.now() + Duration::from_secs(60);
    let mut left: Vec<LogId> = logs.iter().copied().cycle().take(600 * logs.len()).collect();
    while !left.is_empty() || logs.iter().any(|log| !world.engine.log(*log).expect("there").is_settled()) {
        let taken = left.pop().is_some_and(|log| {
            let taken = try_publish(world, log, &[2; 3_000]);
            left.extend((!taken).then_some(log));
            taken
        });
        if !taken {
            world.step();
        }
        world.events.retain(|event| matches!(event, Event::DiskTrouble { .. }));
        assert!(world.now() < until, "it stands");
    }
}

fn try_publish(world: &mut World, log: LogId, bytes: &[u8]) -> bool {
    let Ok(claim) = world.engine.claim(log, BatchKind::Data, NonZeroU32::MIN, bytes.len()) else {
        return false;
    };
    let meta = AppendMeta { generation: Generation(1), timestamp_ms: 1, producer: None };
    world.engine.append(log, claim, meta, std::iter::once((1, bytes))).expect("there");
    world.turn();
    true
}

fn settled_end(world: &World, log: LogId) -> Offset {
    world.engine.log(log).expect("there").settled_end()
}

/// Everything below `end` is there after a power loss.
fn check_after_power_loss(mut world: World, name: u128, end: Offset) {
    world.disk.sim().choose_faults(|_| None);
    world.disk.sim().crash(&mut SimRng::new(5));
    let mut world = World::start(world.disk, 2);
    assert!(world.recovered.refused.is_empty(), "{:?}", world.recovered.refused);
    let log = world.engine.find(key(name, 1)).expect("there");
    assert!(settled_end(&world, log) >= end);
    world.read_log(log).expect("readable");
    world.publish(log, &[vec![1; 100]]);
    world.settle(log);
}

#[test]
fn without_a_slot_and_without_room_for_one_claims_are_refused_until_one_can_be_made() {
    let (mut world, logs, switches) = world(1);
    switches.full.set(true);
    fail_open(&mut world, &switches, 0, logs[0]);
    fail_open(&mut world, &switches, 1, logs[1]);
    assert_eq!(world.engine.gauges().slots_ready, 1, "one is left behind the open one");
    // The last of them fails in its first round, so that the one before it stays the only one that says where logs stand.
    switches.failing.set(Some(3));
    fill(&mut world, [logs[2], logs[3]], |world| rounds_failed(world) == 3);
    switches.failing.set(None);
    world.pass(Duration::from_secs(3));

    let good = logs[7];
    let before = settled_end(&world, good);
    let refused = world.engine.claim(good, BatchKind::Data, NonZeroU32::MIN, 100);
    assert_eq!(refused.err(), Some(ClaimError::NoSpace));
    assert!(!world.engine.has_space());
    // At no moment of a try to make one either.
    for _ in 0..2_000 {
        world.step();
        let refused = world.engine.claim(good, BatchKind::Data, NonZeroU32::MIN, 100);
        assert_eq!(refused.err(), Some(ClaimError::NoSpace));
    }
    assert!(troubles(&world, "making a commit slot") > 6, "it is tried again and again");

    switches.full.set(false);
    world.run_until(|world| world.engine.has_space());
    write_on(&mut world, &logs[6..]);
    let end = settled_end(&world, good);
    assert_eq!(end.0, before.0 + 600);
    check_after_power_loss(world, 8, end);
}

#[test]
fn a_slot_that_another_has_followed_is_used_again_also_when_the_open_one_fails_at_once() {
    let (mut world, logs, switches) = world(2);
    switches.full.set(true);
    fail_open(&mut world, &switches, 0, logs[0]);
    // The next two are full and wait for their segments when the fourth fails in its first round.
    switches.slow.set(true);
    switches.failing.set(Some(3));
    fill(&mut world, [logs[2], logs[3]], |world| rounds_failed(world) == 2);
    switches.failing.set(None);
    switches.slow.set(false);
    let good = logs[7];
    assert!(world.engine.has_space(), "a slot comes back");
    write_on(&mut world, &logs[6..]);
    assert!(switches.full.get(), "no other slot was made");
    let end = settled_end(&world, good);
    check_after_power_loss(world, 8, end);
}

#[test]
fn a_claim_made_before_the_first_slot_is_there_is_told_when_there_is_room() {
    let mut disk = fresh_disk(3);
    disk.sim().choose_faults(|asked| {
        let slow = asked.kind == OpKind::Presize && asked.path?.as_str().starts_with("slots/");
        slow.then_some(Fault::Stall(Duration::from_secs(1)))
    });
    let mut world = World::start(disk, 1);
    let log = world.create(key(1, 1), Fsync::OnCommit);
    let refused = world.engine.claim(log, BatchKind::Data, NonZeroU32::MIN, 100);
    assert_eq!(refused.err(), Some(ClaimError::NoRoom));
    world.run_until(|world| {
        world.events.iter().any(|event| matches!(event, Event::Room { log: told } if *told == log))
    });
    assert!(try_publish(&mut world, log, &[1; 100]));
    world.settle(log);
}
