//! Crash images: the engine's operations up to some moment, with any part of what was not synced, opened by the real recovery.
//!
//! `FELIX_CRASH_IMAGES` says how many images in all parts together, `FELIX_CRASH_FIRST` the first seed; `SEED` replays the
//! run of one seed.

mod support;

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use felix_logstore::engine::{Event, LogId, ReadError};
use felix_logstore::id::{Fsync, ShardKey};
use felix_logstore::log::{LogConfig, StopReason};
use felix_logstore::retention::Retention;
use felix_runtime::sim::{DiskImage, SimRng};
use felix_wire::id::Offset;
use support::*;

/// Images of one recorded run.
const IMAGES_PER_RUN: u64 = 25;
/// Images without `FELIX_CRASH_IMAGES`, all parts together.
const IMAGES: u64 = 2_000;
/// Tests that share them, so that they run side by side.
const PARTS: u64 = 4;
/// Seeds whose runs found a defect once; they are run first, always.
const FOUND_ONCE: [u64; 0] = [];

/// What a run promised about one log, in the order in which it was promised.
#[derive(Debug, Clone)]
enum Fact {
    /// The log was asked for; from here on it may be there.
    Asked,
    Created,
    /// A batch was handed over: these offsets may be there with these bytes.
    Appended {
        base: u64,
        payloads: Vec<Bytes>,
    },
    Settled {
        end: u64,
    },
    StartAsked {
        start: u64,
    },
    StartMoved {
        start: u64,
    },
    CutAsked {
        at: u64,
    },
    Cut {
        at: u64,
    },
    DeleteAsked,
    Deleted,
}

/// Facts by position in the trace.
#[derive(Debug, Default)]
struct Promises {
    facts: Vec<(usize, ShardKey, Fact)>,
    policies: BTreeMap<ShardKey, Fsync>,
}

/// What must and may hold of a log at one moment.
#[derive(Debug, Clone, Default)]
struct Expected {
    created: bool,
    delete_asked: bool,
    deleted: bool,
    start: u64,
    start_asked: u64,
    settled: u64,
    /// A cut that was asked for and not answered.
    cut_asked: Option<u64>,
    /// By offset: what was last appended there, and what stood there before a cut that was not answered.
    bytes: BTreeMap<u64, Bytes>,
}

impl Promises {
    fn at(&self, position: usize) -> BTreeMap<ShardKey, Expected> {
        let mut logs: BTreeMap<ShardKey, Expected> = BTreeMap::new();
        for (_, key, fact) in self.facts.iter().take_while(|(at, _, _)| *at <= position) {
            logs.entry(*key).or_default().add(fact);
        }
        logs
    }

    /// What stands in one log, to the end of the run.
    fn of_log(&self, key: ShardKey) -> Expected {
        let mut log = Expected::default();
        for (_, _, fact) in self.facts.iter().filter(|(_, of, _)| *of == key) {
            log.add(fact);
        }
        log
    }
}

impl Expected {
    fn add(&mut self, fact: &Fact) {
        let log = self;
        match fact {
            Fact::Asked => {}
            Fact::Created => log.created = true,
            Fact::Appended { base, payloads } => {
                for (index, payload) in payloads.iter().enumerate() {
                    log.bytes.insert(base + index as u64, payload.clone());
                }
            }
            Fact::Settled { end } => log.settled = *end,
            Fact::StartAsked { start } => log.start_asked = log.start_asked.max(*start),
            Fact::StartMoved { start } => log.start = log.start.max(*start),
            Fact::CutAsked { at } => log.cut_asked = Some(*at),
            Fact::Cut { at } => {
                log.cut_asked = None;
                log.settled = *at;
                log.bytes.split_off(at);
            }
            Fact::DeleteAsked => log.delete_asked = true,
            Fact::Deleted => log.deleted = true,
        }
    }
}

/// A world that writes at random and notes what it was promised.
struct Run {
    world: World,
    rng: SimRng,
    promises: Promises,
    live: Vec<(ShardKey, LogId)>,
    incarnation: u64,
    busy: BTreeMap<LogId, bool>,
}

impl Run {
    fn new(seed: u64, image: DiskImage, first_incarnation: u64) -> Run {
        let boot = 1;
        let mut world = World::start_with(traced(seed, image), boot, |config| {
            config.pool_fill = usize::from(seed.is_multiple_of(3));
            config.pool_fill_bytes = 128 << 10;
        });
        assert!(world.recovered.refused.is_empty(), "seed {seed}: {:?}", world.recovered.refused);
        let live: Vec<(ShardKey, LogId)> = (0..8)
            .flat_map(|name| (1..200).map(move |incarnation| key(name, incarnation)))
            .filter_map(|key| Some((key, world.engine.find(key)?)))
            .collect();
        // A key is never used again, also when its log is gone.
        let incarnation = first_incarnation;
        let mut promises = Promises::default();
        let position = world.disk.position();
        for (key, log) in live.clone() {
            // What is there already is the ground this run stands on.
            let bytes = world.read_log(log).expect("what recovery accepts can be read");
            let machine = world.engine.log(log).expect("there");
            let (start, policy) = (machine.start().0, machine.config().policy);
            promises.policies.insert(key, policy);
            let mut note = |fact| promises.facts.push((position, key, fact));
            note(Fact::Created);
            note(Fact::StartMoved { start });
            let end = bytes.last_key_value().map_or(start, |(offset, _)| offset + 1);
            for (offset, payload) in bytes {
                note(Fact::Appended {
                    base: offset,
                    payloads: payload.into_iter().map(Bytes::from).collect(),
                });
            }
            note(Fact::Settled { end });
        }
        let mut run = Run {
            world,
            rng: SimRng::new(seed ^ 0xc0ffee),
            promises,
            live,
            incarnation,
            busy: BTreeMap::new(),
        };
        run.note_events();
        run
    }

    fn note(&mut self, key: ShardKey, fact: Fact) {
        let position = self.world.disk.position();
        self.promises.facts.push((position, key, fact));
    }

    fn key_of(&self, log: LogId) -> Option<ShardKey> {
        self.live.iter().find(|(_, id)| *id == log).map(|(key, _)| *key)
    }

    fn note_events(&mut self) {
        while let Some(event) = self.world.events.pop_front() {
            match event {
                Event::Created { log } => self.note_of(log, Fact::Created),
                Event::Settled { log, end } => self.note_of(log, Fact::Settled { end: end.0 }),
                Event::StartMoved { log, start } => self.note_of(log, Fact::StartMoved { start: start.0 }),
                Event::Cut { log, end } => {
                    self.busy.remove(&log);
                    self.note_of(log, Fact::Cut { at: end.0 });
                }
                Event::CutFailed { log, .. } => {
                    self.busy.remove(&log);
                }
                Event::Deleted { log, key } => {
                    self.note(key, Fact::Deleted);
                    self.live.retain(|(_, id)| *id != log);
                }
                Event::Released { log, machine } => {
                    // As if it came back from another core.
                    self.busy.remove(&log);
                    let new = self.world.engine.adopt(*machine).expect("its place is free");
                    for (_, id) in self.live.iter_mut().filter(|(_, id)| *id == log) {
                        *id = new;
                    }
                }
                Event::Stopped { reason: StopReason::Closing, .. }
                | Event::Room { .. }
                | Event::Page { .. }
                | Event::Space { .. } => {}
                other => panic!("a sound disk gives no {other:?}"),
            }
        }
    }

    fn note_of(&mut self, log: LogId, fact: Fact) {
        if let Some(key) = self.key_of(log) {
            self.note(key, fact);
        }
    }

    fn create(&mut self) {
        let name = u128::from(self.rng.below(8));
        let key = key(name, self.incarnation);
        self.incarnation += 1;
        let policy = [Fsync::OnCommit, Fsync::OnCommit, Fsync::OnCommit, Fsync::Periodic, Fsync::None]
            [self.rng.below(5) as usize];
        self.promises.policies.insert(key, policy);
        self.note(key, Fact::Asked);
        let log = self.world.engine.create(key, log_config(policy)).expect("a new key");
        self.live.push((key, log));
        self.world.turn();
    }

    fn publish(&mut self, key: ShardKey, log: LogId) {
        let len = match self.rng.below(20) {
            0 => 60_000 + self.rng.below(100_000),
            1..=5 => 1_000 + self.rng.below(8_000),
            _ => self.rng.below(600),
        };
        self.publish_of(key, log, len);
    }

    fn publish_of(&mut self, key: ShardKey, log: LogId, len: u64) {
        let count = 1 + self.rng.below(4);
        let payloads: Vec<Bytes> =
            (0..count).map(|_| Bytes::from(payload(&mut self.rng, len as usize))).collect();
        let bytes = payloads.iter().map(Bytes::len).sum();
        let count = std::num::NonZeroU32::new(payloads.len() as u32).expect("records");
        let kind = felix_logstore::record::BatchKind::Data;
        let Ok(claim) = self.world.engine.claim(log, kind, count, bytes) else {
            self.world.turn();
            return;
        };
        let base = claim.base().0;
        let meta = felix_logstore::log::AppendMeta {
            generation: felix_wire::id::Generation(1),
            timestamp_ms: base,
            producer: None,
        };
        self.note(key, Fact::Appended { base, payloads: payloads.clone() });
        let records = payloads.iter().map(|payload| (base, payload.as_ref()));
        self.world.engine.append(log, claim, meta, records).expect("the log is there");
    }

    /// One record, which may join the batch before it.
    fn write(&mut self, key: ShardKey, log: LogId) {
        let len = if self.rng.below(20) == 0 { self.rng.below(20_000) } else { self.rng.below(300) };
        let payload = Bytes::from(payload(&mut self.rng, len as usize));
        let position = self.world.disk.position();
        let next = self.world.engine.log(log).map_or(0, |log| log.claimed_end().0);
        let meta = felix_logstore::log::AppendMeta {
            generation: felix_wire::id::Generation(1),
            timestamp_ms: next,
            producer: None,
        };
        let Ok(base) = self.world.engine.write(log, meta, &payload) else {
            self.world.turn();
            return;
        };
        let base = base.0;
        assert_eq!(base, next, "records are put at the end");
        self.promises.facts.push((position, key, Fact::Appended { base, payloads: vec![payload] }));
    }

    fn act(&mut self) {
        let pick = self.rng.below(self.live.len().max(1) as u64) as usize;
        let Some((key, log)) = self.live.get(pick).copied() else { return self.create() };
        if self.busy.contains_key(&log) {
            self.world.step();
            return;
        }
        match self.rng.below(200) {
            0..=2 if self.live.len() < 7 => self.create(),
            3 if self.live.len() > 3 => {
                self.note(key, Fact::DeleteAsked);
                self.busy.insert(log, true);
                self.world.engine.delete(log);
            }
            4..=5 => {
                let settled = self.world.engine.log(log).map_or(0, |log| log.settled_end().0);
                let start = settled.saturating_sub(self.rng.below(100));
                self.note(key, Fact::StartAsked { start });
                self.world.engine.move_start(log, Offset(start));
            }
            6 => {
                let ends = self.world.engine.log(log).map(|log| (log.start().0, log.settled_end().0));
                let (start, end) = ends.unwrap_or((0, 0));
                let at = end.saturating_sub(self.rng.below(20)).max(start);
                self.note(key, Fact::CutAsked { at });
                self.busy.insert(log, true);
                self.world.engine.cut(log, Offset(at));
            }
            7 => self.world.pass(Duration::from_millis(150)),
            8 => self.retain(key, log),
            9 => {
                self.busy.insert(log, true);
                self.world.engine.release(log);
            }
            10..=12 => self.switch(key, log),
            13..=14 => self.look(key, log),
            15..=60 => self.world.step(),
            61..=100 => {
                for _ in 0..=self.rng.below(40) {
                    self.write(key, log);
                }
            }
            _ => {
                for _ in 0..=self.rng.below(3) {
                    self.publish(key, log);
                }
            }
        }
        if self.rng.below(3) == 0 {
            self.world.step();
        }
    }

    /// What is settled can be read at any time, whether it is in memory, in the segment, or in turns.
    fn look(&mut self, key: ShardKey, log: LogId) {
        let (world, rng) = (&mut self.world, &mut self.rng);
        let Some(machine) = world.engine.log(log) else { return };
        let (start, end) = (machine.start().0, machine.settled_end().0);
        let from = Offset(start + rng.below((end - start).max(1)));
        let expected = self.promises.of_log(key);
        match world.read(log, from, 1 + rng.below(200_000) as usize) {
            Ok(batches) => {
                // The first batch may begin below the start.
                let records = batches.iter().flat_map(|batch| batch.records());
                for record in records.filter(|record| record.offset.0 >= start) {
                    let known = expected.bytes.get(&record.offset.0);
                    assert!(known.is_some_and(|known| *known == record.payload), "{key} {}", record.offset);
                }
            }
            // Retention may be on its way.
            Err(ReadError::TooOld { .. }) => {}
            Err(error) => panic!("{key} {start}..{end} cannot be read from {from}: {error}"),
        }
    }

    /// Lets retention decide: what it may remove at most is everything that is settled.
    fn retain(&mut self, key: ShardKey, log: LogId) {
        let settled = self.world.engine.log(log).map_or(0, |log| log.settled_end().0);
        let policy = self.promises.policies[&key];
        let retention = Retention { bytes: Some(self.rng.below(400_000)), age_ms: None };
        self.world.engine.configure(log, LogConfig { retention, ..log_config(policy) });
        self.note(key, Fact::StartAsked { start: settled });
        self.world.engine.retain(log, 0, Offset(u64::MAX));
    }

    /// One log that goes to the commit file and straight to its segment in turn, with others beside it or alone.
    fn switch(&mut self, key: ShardKey, log: LogId) {
        for turn in 0..8 {
            let len = if turn % 2 == 0 { 30_000 + self.rng.below(60_000) } else { self.rng.below(900) };
            self.publish_of(key, log, len);
            if self.rng.below(2) == 0
                && let Some((beside, other)) = self.live.first().copied().filter(|(_, id)| *id != log)
                && !self.busy.contains_key(&other)
            {
                self.publish_of(beside, other, 200);
            }
            for _ in 0..self.rng.below(12) {
                self.world.step();
            }
            self.note_events();
            if self.live.iter().all(|(_, id)| *id != log) {
                return;
            }
        }
    }

    fn go(&mut self, acts: u64) {
        for _ in 0..acts {
            self.act();
            self.note_events();
        }
    }
}

/// Whether power was lost or only the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Loss {
    Power,
    Process,
}

/// Checks what a recovered world holds against what was promised.
fn check(
    world: &mut World,
    expected: &BTreeMap<ShardKey, Expected>,
    promises: &Promises,
    loss: Loss,
    what: &str,
) {
    assert!(world.recovered.refused.is_empty(), "{what}: refused {:?}", world.recovered.refused);
    for (key, promised) in expected {
        let found = world.engine.find(*key);
        assert!(!(promised.deleted && found.is_some()), "{what}: deleted {key} is back");
        let Some(log) = found else {
            let may_be_gone = !promised.created || promised.delete_asked;
            assert!(may_be_gone, "{what}: log {key} is gone: {promised:?}");
            continue;
        };
        let machine = world.engine.log(log).expect("there");
        let (start, end) = (machine.start().0, machine.settled_end().0);
        let next = machine.skips_to().map_or(machine.claimed_end().0, |next| next.0);
        assert!(start >= promised.start, "{what}: {key} start {start} went back behind {}", promised.start);
        assert!(
            start <= promised.start_asked.max(promised.start),
            "{what}: {key} start {start} was not asked for"
        );
        let policy = promises.policies[key];
        let floor = promised.cut_asked.map_or(promised.settled, |at| at.min(promised.settled));
        if policy == Fsync::OnCommit || loss == Loss::Process {
            assert!(end >= floor, "{what}: {key} ends at {end}, settled to {floor}");
        }
        assert!(next >= floor, "{what}: {key} would use offset {next} again, settled to {floor}");
        let records =
            world.read_log(log).unwrap_or_else(|error| panic!("{what}: {key} cannot be read: {error}"));
        for (offset, record) in records {
            let Some(record) = record else { continue };
            let known = promised.bytes.get(&offset);
            assert!(
                known.is_some_and(|known| *known == record),
                "{what}: {key} holds other bytes at {offset} of {start}..{end}"
            );
        }
    }
}

/// What two recoveries must agree on.
fn picture(world: &World) -> Vec<String> {
    let mut logs: Vec<String> = (0..8)
        .flat_map(|name| (1..400).map(move |incarnation| key(name, incarnation)))
        .filter_map(|key| {
            let machine = world.engine.log(world.engine.find(key)?)?;
            let next = machine.skips_to().unwrap_or(machine.claimed_end());
            Some(format!("{key} {}..{next}", machine.start()))
        })
        .collect();
    logs.sort();
    logs
}

/// Opens an image as the next process would, perhaps crashing again on the way.
fn open(image: DiskImage, rng: &mut SimRng, loss: Loss, what: &str) -> World {
    let seed = rng.next_u64();
    let boot = if loss == Loss::Power { 2 } else { 1 };
    let mut disk = from_image(seed, image);
    for again in 0..rng.below(3) {
        // A second crash, inside recovery.
        let steps = rng.below(150);
        if recover_some(&mut disk, boot, Some(steps)).is_some_and(|result| result.is_err()) {
            panic!("{what}: recovery {again} failed");
        }
        match loss {
            Loss::Power => disk.sim().crash(rng),
            Loss::Process => {
                disk.sim().kill();
            }
        }
    }
    World::start(disk, boot)
}

fn images_of_one_run(seed: u64, images: u64) {
    // A panic in the run itself does not name it.
    println!("seed {seed}");
    let mut rng = SimRng::new(seed);
    let empty = DiskImage::empty(&[VOLUME_BYTES]);
    let mut run = Run::new(seed, empty, 1);
    let acts = 150 + rng.below(500);
    run.go(acts);
    if seed.is_multiple_of(2) {
        // A second life on top of what a crash left of the first.
        let AnyDisk::Traced(disk) = &mut run.world.disk else { panic!("it is traced") };
        let image = disk.inner().image_after_power_loss(&mut rng);
        run = Run::new(seed, image, 150);
        run.go(acts / 2);
    }
    let Run { world, promises, .. } = run;
    let AnyDisk::Traced(disk) = world.disk else { panic!("it is traced") };
    let (_, trace) = disk.into_parts();
    let mut positions: Vec<usize> =
        (0..images).map(|_| rng.below(trace.events() as u64 + 1) as usize).collect();
    positions.sort_unstable();
    let mut replay = trace.replay();
    for position in positions {
        replay.advance_to(position);
        let loss = if rng.below(4) == 0 { Loss::Process } else { Loss::Power };
        let image = match loss {
            Loss::Power => replay.image_after_power_loss(&mut rng),
            Loss::Process => replay.image_after_kill(),
        };
        let what = format!("seed {seed} position {position} {loss:?}");
        let expected = promises.at(position);
        let mut world = open(image, &mut rng, loss, &what);
        check(&mut world, &expected, &promises, loss, &what);
        check_twice(world, &mut rng, loss, &what);
    }
}

/// A further recovery finds the same, and what is written after it is kept as well.
fn check_twice(mut world: World, rng: &mut SimRng, loss: Loss, what: &str) {
    let before = picture(&world);
    match loss {
        Loss::Power => world.disk.sim().crash(rng),
        Loss::Process => {
            world.disk.sim().kill();
        }
    }
    let boot = world.boot;
    // The same boot id: only what the first recovery decided is looked at.
    let mut world = World::start(world.disk, boot);
    assert_eq!(picture(&world), before, "{what}: recovery twice gives the same");
    let logs: Vec<LogId> = (0..8)
        .flat_map(|name| (1..400).map(move |incarnation| key(name, incarnation)))
        .filter_map(|key| world.engine.find(key))
        .collect();
    for log in logs {
        world.publish(log, &[vec![7; 100]]);
        world.settle(log);
        let records = world.read_log(log).expect("readable");
        assert_eq!(
            records.last_key_value().and_then(|(_, record)| record.clone()),
            Some(vec![7; 100]),
            "{what}"
        );
    }
}

/// A recovery saw its directory and wrote down that it is there; the name was not durable.
#[test]
fn a_log_whose_making_was_cut_short_is_there_or_not_and_never_refused() {
    for steps in 0..60 {
        let mut world = World::empty(steps);
        world.engine.create(key(1, 1), log_config(Fsync::OnCommit)).expect("a new key");
        for _ in 0..steps {
            world.step();
        }
        let mut disk = world.disk;
        disk.sim().kill();
        recover(&mut disk, 1);
        disk.sim().crash(&mut SimRng::new(steps));
        let found = recover(&mut disk, 2);
        assert!(found.refused.is_empty(), "{steps} steps: {:?}", found.refused);
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Every `PARTS`th seed, from the one of `part` on.
fn images_of_part(part: u64) {
    if let Some(seed) = number("SEED") {
        if part == 0 {
            images_of_one_run(seed, IMAGES_PER_RUN);
        }
        return;
    }
    for seed in FOUND_ONCE.iter().filter(|seed| *seed % PARTS == part) {
        images_of_one_run(*seed, IMAGES_PER_RUN);
    }
    let images = number("FELIX_CRASH_IMAGES").unwrap_or(IMAGES).div_ceil(PARTS);
    let mut done = 0;
    let mut seed = number("FELIX_CRASH_FIRST").unwrap_or(1) + part;
    while done < images {
        let some = IMAGES_PER_RUN.min(images - done);
        images_of_one_run(seed, some);
        done += some;
        if done % 2_500 == 0 {
            println!("part {part}: {done} images, up to seed {seed}");
        }
        seed += PARTS;
    }
}

#[test]
fn every_crash_image_holds_what_was_acknowledged_and_nothing_else() {
    images_of_part(0);
}

#[test]
fn every_crash_image_of_the_second_part_does_too() {
    images_of_part(1);
}

#[test]
fn every_crash_image_of_the_third_part_does_too() {
    images_of_part(2);
}

#[test]
fn every_crash_image_of_the_fourth_part_does_too() {
    images_of_part(3);
}
