//! A stream deleted and made again under the same name, with other logs writing: nothing of an earlier life ever shows.

mod support;

use std::num::NonZeroU32;

use felix_logstore::engine::{Event, LogId};
use felix_logstore::id::Fsync;
use felix_logstore::log::AppendMeta;
use felix_logstore::record::BatchKind;
use felix_runtime::sim::SimRng;
use felix_wire::id::{Generation, Offset};
use support::*;

const LIVES: u64 = 100;
/// Every so many lives the power fails somewhere in them.
const CRASH_EVERY: u64 = 7;

/// Logs that are written all the time, and what was settled of them.
struct Others {
    logs: Vec<(u128, LogId)>,
    written: Vec<Vec<Vec<u8>>>,
    settled: Vec<u64>,
}

impl Others {
    fn new(world: &mut World) -> Others {
        let logs: Vec<_> = (10..13).map(|name| (name, world.create(key(name, 1), Fsync::OnCommit))).collect();
        let count = logs.len();
        Others { logs, written: vec![Vec::new(); count], settled: vec![0; count] }
    }

    /// One batch for one of them, without waiting.
    fn write(&mut self, world: &mut World, rng: &mut SimRng) {
        let pick = rng.below(self.logs.len() as u64) as usize;
        let len = [300, 4_000, 90_000][rng.below(3) as usize];
        let bytes = payload(rng, len);
        if try_publish(world, self.logs[pick].1, std::slice::from_ref(&bytes)) {
            self.written[pick].push(bytes);
        }
    }

    /// Segments that nobody needs any more are used again, by the next life too.
    fn retire(&mut self, world: &mut World) {
        for (_, log) in &self.logs {
            let end = world.engine.log(*log).expect("there").settled_end();
            world.engine.move_start(*log, Offset(end.0.saturating_sub(10)));
        }
    }

    fn note(&mut self, world: &World) {
        for (at, (_, log)) in self.logs.iter().enumerate() {
            self.settled[at] = world.engine.log(*log).expect("there").settled_end().0;
        }
    }

    /// After a restart: everything settled is there, byte by byte; the logs have new names.
    fn check(&mut self, world: &mut World) {
        for (at, (name, log)) in self.logs.iter_mut().enumerate() {
            *log = world.engine.find(key(*name, 1)).expect("there");
            let end = world.engine.log(*log).expect("there").settled_end().0;
            assert!(end >= self.settled[at], "log {name} ends at {end}, {} were settled", self.settled[at]);
            let records = world.read_log(*log).expect("readable");
            for (offset, record) in &records {
                assert!(record.as_ref() == self.written[at].get(*offset as usize), "log {name} at {offset}");
            }
            self.written[at].truncate(end as usize);
        }
    }
}

fn try_publish(world: &mut World, log: LogId, payloads: &[Vec<u8>]) -> bool {
    let count = NonZeroU32::new(payloads.len() as u32).expect("records");
    let bytes = payloads.iter().map(Vec::len).sum();
    let Ok(claim) = world.engine.claim(log, BatchKind::Data, count, bytes) else {
        world.step();
        return false;
    };
    let meta = AppendMeta { generation: Generation(1), timestamp_ms: 1, producer: None };
    let records = payloads.iter().map(|payload| (1, payload.as_slice()));
    world.engine.append(log, claim, meta, records).expect("the log is there");
    world.turn();
    true
}

/// Records of one life begin with its number and its own count.
fn of_life(life: u64, number: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![life as u8; len.max(16)];
    bytes[..8].copy_from_slice(&life.to_le_bytes());
    bytes[8..16].copy_from_slice(&number.to_le_bytes());
    bytes
}

/// Everything that can be read of the log now is of `life` and in its order.
fn only_this_life(world: &mut World, log: LogId, life: u64) -> u64 {
    let records = world.read_log(log).expect("readable");
    for (offset, record) in &records {
        // Offsets that may have been seen and were lost with the power have no record.
        let Some(record) = record else { continue };
        assert_eq!(record[..8], life.to_le_bytes(), "a record of another life at {offset} of life {life}");
        assert_eq!(record[8..16], offset.to_le_bytes(), "life {life}");
    }
    records.len() as u64
}

fn policy_of(life: u64) -> Fsync {
    [Fsync::OnCommit, Fsync::OnCommit, Fsync::Periodic][(life % 3) as usize]
}

fn is_deleted(world: &World, log: LogId) -> bool {
    world.events.iter().any(|event| matches!(event, Event::Deleted { log: gone, .. } if *gone == log))
}

/// Writes one life, reading in between; gives how many of its records were settled.
fn live(world: &mut World, others: &mut Others, rng: &mut SimRng, life: u64) -> (LogId, u64) {
    let log = world.create(key(1, life), policy_of(life));
    assert_eq!(world.engine.log(log).expect("there").claimed_end(), Offset(0), "life {life} begins anew");
    let mut number = 0;
    for _ in 0..5 + rng.below(20) {
        let len = [20, 2_000, 70_000][rng.below(3) as usize];
        if try_publish(world, log, &[of_life(life, number, len)]) {
            number += 1;
        }
        others.write(world, rng);
        if rng.below(4) == 0 {
            world.step();
        }
        if rng.below(10) == 0 {
            only_this_life(world, log, life);
        }
    }
    if life.is_multiple_of(2) {
        world.settle(log);
        assert_eq!(only_this_life(world, log, life), number);
    }
    let settled = world.engine.log(log).expect("there").settled_end().0;
    (log, settled)
}

/// The power fails somewhere between the last write and the end of the deletion.
fn crash(mut world: World, others: &mut Others, rng: &mut SimRng, life: u64, settled: u64) -> World {
    let log = world.engine.find(key(1, life));
    let asked = rng.below(3) > 0;
    if let (true, Some(log)) = (asked, log) {
        world.engine.delete(log);
    }
    for _ in 0..rng.below(60) {
        world.step();
    }
    let deleted = log.is_some_and(|log| is_deleted(&world, log));
    others.note(&world);
    world.disk.sim().crash(rng);
    let mut world = World::start(world.disk, life as u8 + 1);
    assert!(world.recovered.refused.is_empty(), "life {life}: {:?}", world.recovered.refused);
    for gone in 1..life {
        assert!(world.engine.find(key(1, gone)).is_none(), "life {gone} is back in life {life}");
    }
    others.check(&mut world);
    match world.engine.find(key(1, life)) {
        Some(log) => {
            assert!(!deleted, "life {life} was deleted and is back");
            let records = only_this_life(&mut world, log, life);
            let kept = records >= settled || policy_of(life) != Fsync::OnCommit;
            assert!(kept, "life {life}: {records} of {settled} settled");
            world.engine.delete(log);
            world.run_until(|world| is_deleted(world, log));
        }
        None => assert!(asked, "life {life} is gone and nobody asked for that"),
    }
    world
}

#[test]
fn a_hundred_lives_of_a_stream_under_load_never_show_a_record_of_another() {
    for seed in 0..3 {
        let mut world = World::empty(seed);
        let mut rng = SimRng::new(seed ^ 0x11fe);
        let mut others = Others::new(&mut world);
        let (mut crashes, mut recycled) = (0, 0);
        let mut leaving = None;
        for life in 1..=LIVES {
            let (log, settled) = live(&mut world, &mut others, &mut rng, life);
            if let Some(before) = leaving.take() {
                world.run_until(|world| is_deleted(world, before));
            }
            recycled += world.engine.gauges().pooled;
            if life % 4 == 0 {
                others.retire(&mut world);
            }
            if life % CRASH_EVERY == 0 {
                world = crash(world, &mut others, &mut rng, life, settled);
                crashes += 1;
                continue;
            }
            world.events.clear();
            world.engine.delete(log);
            if life % 5 == 0 {
                // The next life begins while this one is still being taken away.
                leaving = Some(log);
                continue;
            }
            world.run_until(|world| is_deleted(world, log));
            assert!(world.engine.find(key(1, life)).is_none());
        }
        assert_eq!(crashes, LIVES / CRASH_EVERY);
        assert!(recycled > 0, "segments were used again");
        println!("seed {seed}: {LIVES} lives, {crashes} crashes");
    }
}
