//! Damage at rest is seen, or changes nothing; it never makes a log shorter in silence, and where it is told by a read, it
//! takes the batches that it hit and no others.

mod support;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

use felix_logstore::engine::{Event, ReadError};
use felix_logstore::id::{Fsync, ShardKey};
use felix_runtime::sim::{DiskImage, Fault, OpKind, SimRng};
use felix_wire::id::Offset;
use support::*;

type Contents = BTreeMap<ShardKey, Records>;

/// Batches of the smallest size used here that one damaged sector can touch.
const HIT_MAX: u64 = 3;

/// What the logs of a volume hold, and up to where that is durable.
struct Held {
    contents: Contents,
    durable: BTreeMap<ShardKey, u64>,
}

impl Held {
    fn of(world: &mut World) -> Held {
        let mut held = Held { contents: Contents::new(), durable: BTreeMap::new() };
        for key in keys() {
            let log = world.engine.find(key).expect("there");
            held.contents.insert(key, world.read_log(log).expect("readable"));
            held.durable.insert(key, world.engine.log(log).expect("there").durable_end().0);
        }
        held
    }

    /// After an orderly stop everything is.
    fn all_durable(mut self) -> Held {
        for (key, records) in &self.contents {
            let end = records.last_key_value().map_or(0, |(offset, _)| offset + 1);
            self.durable.insert(*key, end);
        }
        self
    }
}

fn keys() -> Vec<ShardKey> {
    (1..=4).map(|name| key(name, 1)).collect()
}

/// A volume with rolled segments, every way of writing and every policy, a moved start, segments used again, a deleted log,
/// and everything settled.
fn written(seed: u64) -> World {
    let mut world = World::empty(seed);
    let mut rng = SimRng::new(seed);
    let policies = [Fsync::OnCommit, Fsync::OnCommit, Fsync::Periodic, Fsync::None];
    let gone = world.create(key(9, 1), Fsync::OnCommit);
    for (key, policy) in keys().into_iter().zip(policies) {
        let log = world.create(key, policy);
        for round in 0..40 {
            let len = [200, 2_500, 70_000][round % 3];
            let payload = payload(&mut rng, len);
            world.publish(log, &[payload]);
            if round == 20 {
                world.settle(log);
                let start = Offset(world.engine.log(log).expect("there").durable_end().0.min(12));
                world.engine.move_start(log, start);
                world.publish(gone, &[vec![1; 300]]);
            }
        }
        world.settle(log);
    }
    world.engine.delete(gone);
    world.run_until(|world| world.events.iter().any(|event| matches!(event, Event::Deleted { .. })));
    world
}

/// Of what a log held below `end` nothing is missing but what was told, and that is not more than one damaged place takes.
fn assert_only_holes_are_missing(
    whole: &Records,
    end: u64,
    found: &Records,
    holes: &[(u64, u64)],
    what: &str,
) {
    let missing = |offset: &u64| holes.iter().any(|(from, next)| (from..next).contains(&offset));
    let hit: u64 = holes.iter().map(|(from, next)| next - from).sum();
    assert!(hit <= HIT_MAX && holes.len() <= 1, "{what}: {holes:?} cannot be read");
    let due = whole.range(..end).filter(|(offset, _)| !missing(offset));
    assert!(due.eq(found.iter()), "{what}: {} of {} records, {holes:?}", found.len(), whole.len());
}

/// What a damaged image gives: true when the damage was told.
fn is_told(image: DiskImage, seed: u64, held: &Held, what: &str) -> bool {
    let mut disk = from_image(seed, image);
    let Some(result) = recover_some(&mut disk, 1, None) else { panic!("{what}: recovery did not end") };
    if result.is_err() {
        return true;
    }
    disk.sim().kill();
    let mut world = World::start(disk, 1);
    let mut told = false;
    assert!(world.engine.find(key(9, 1)).is_none(), "{what}: a deleted log is back");
    for key in keys() {
        if world.recovered.refused.iter().any(|refused| refused.key == key) {
            told = true;
            continue;
        }
        let log = world.engine.find(key).unwrap_or_else(|| panic!("{what}: log {key} is gone"));
        let (records, holes) = world.read_around(log);
        told |= !holes.is_empty();
        let whole = &held.contents[&key];
        let end = world.engine.log(log).expect("there").settled_end().0;
        assert!(end >= held.durable[&key], "{what}: log {key} ends at {end}");
        assert_only_holes_are_missing(whole, end, &records, &holes, &format!("{what}: log {key}"));
    }
    told
}

/// One damaged place in a copy of `stopped`, and what it is called. None when the file drawn has no bytes.
fn damaged(stopped: &DiskImage, number: u64, rng: &mut SimRng) -> Option<(DiskImage, String)> {
    let files = stopped.files();
    let (path, len) = &files[rng.below(files.len() as u64) as usize];
    if *len == 0 {
        return None;
    }
    let mut image = stopped.clone();
    if number.is_multiple_of(3) {
        let sector = rng.below(len.div_ceil(512));
        image.zero_sector(path, sector).expect("the file is there");
        return Some((image, format!("sector {sector} of {path} zeroed")));
    }
    // Half of them in the first blocks, where the heads are.
    let within = if number.is_multiple_of(2) { (*len).min(16_384) } else { *len };
    let bit = rng.below(within * 8);
    image.flip_bit(path, bit).expect("the file is there");
    Some((image, format!("bit {bit} of {path} turned")))
}

/// So many damaged images of `stopped`; how many of them were told.
fn flips(stopped: &DiskImage, held: &Held, seed: u64, count: u64) -> u64 {
    let mut rng = SimRng::new(seed);
    let mut told = 0;
    let mut number = 0;
    while number < count {
        let Some((image, what)) = damaged(stopped, number, &mut rng) else { continue };
        number += 1;
        told += u64::from(is_told(image, number, held, &format!("seed {seed}: {what}")));
    }
    told
}

fn flips_after_a_clean_stop(seed: u64) {
    let count = std::env::var("FELIX_FLIPS").ok().and_then(|count| count.parse().ok()).unwrap_or(500) / 2;
    let mut world = written(seed);
    let held = Held::of(&mut world).all_durable();
    let mut disk = world.close();
    let stopped = disk.sim().image();
    let told = flips(&stopped, &held, seed, count);
    println!("seed {seed}: {told} of {count} told, the others changed nothing");
    assert!(told > count / 20, "{told} of {count} told: most of the bytes are records");
}

#[test]
fn any_damage_after_a_clean_stop_is_told_or_changes_nothing() {
    flips_after_a_clean_stop(11);
}

#[test]
fn any_damage_after_another_clean_stop_is_told_or_changes_nothing() {
    flips_after_a_clean_stop(21);
}

#[test]
fn any_damage_after_an_idle_round_and_a_kill_is_told_or_changes_nothing() {
    let mut world = written(12);
    world.pass(std::time::Duration::from_millis(600));
    let held = Held::of(&mut world);
    world.disk.sim().kill();
    let killed = world.disk.sim().image();
    flips(&killed, &held, 31, 100);
}

#[test]
fn damage_in_the_middle_of_a_log_leaves_the_rest_readable_and_writable() {
    let mut world = written(13);
    let held = Held::of(&mut world);
    let mut disk = world.close();
    let mut image = disk.sim().image();
    let key = keys()[0];
    // A batch above the start of the log.
    let hit = 20_u64;
    for (path, _) in image.files().into_iter().filter(|(path, _)| path.as_str().contains(&key.to_string())) {
        let bytes = image.read(&path).expect("there");
        let begins =
            |at: &usize| bytes[*at..].starts_with(b"FLXB") && bytes[at + 24..at + 32] == hit.to_le_bytes();
        for at in (4_096..bytes.len() - 128).step_by(8).filter(begins) {
            image.flip_bit(&path, 8 * (at as u64 + 120)).expect("there");
        }
    }
    let mut world = World::start(from_image(1, image), 1);
    let log = world.engine.find(key).expect("sealed segments are not scanned at open");
    let (records, holes) = world.read_around(log);
    assert_eq!(holes, [(hit, hit + 1)]);
    assert_only_holes_are_missing(&held.contents[&key], u64::MAX, &records, &holes, "a bit of batch 20");
    let last = *held.contents[&key].keys().next_back().expect("records");
    let tail = world.read(log, Offset(last), 1 << 20).expect("other offsets go on");
    assert_eq!(tail[0].records().next().map(|record| record.payload.to_vec()), held.contents[&key][&last]);
    world.publish(log, &[vec![1]]);
    world.settle(log);
}

/// What a kill leaves, with what every log had settled and up to where its bytes or rounds prove that.
struct Killed {
    image: DiskImage,
    settled: Contents,
    /// The largest durable end that a batch of the log names, or a round.
    proven: BTreeMap<ShardKey, u64>,
}

/// Writes groups of batches, each when the one before is settled, and kills the process right after the last: no idle round.
fn killed(seed: u64) -> Killed {
    let mut world = World::empty(seed);
    let mut rng = SimRng::new(seed);
    let logs: Vec<_> = keys().into_iter().map(|key| (key, world.create(key, Fsync::OnCommit))).collect();
    let mut proven = BTreeMap::new();
    for _ in 0..6 + rng.below(6) {
        for (key, log) in &logs {
            for _ in 0..rng.below(5) {
                // What is durable now is named by the batch.
                proven.insert(*key, world.engine.log(*log).expect("there").durable_end().0);
                let len = [200, 3_000, 80_000][rng.below(3) as usize];
                world.publish(*log, &[payload(&mut rng, len)]);
            }
        }
        for (_, log) in &logs {
            world.settle(*log);
        }
    }
    let settled: Contents =
        logs.iter().map(|(key, log)| (*key, world.read_log(*log).expect("readable"))).collect();
    world.disk.sim().kill();
    Killed { image: world.disk.sim().image(), settled, proven }
}

/// Without an idle round nothing names what settled last: the window is what a log had in flight when its newest batch was
/// appended, and it is no larger. Everything below is there byte by byte, or its loss is told.
#[test]
fn the_window_after_a_kill_is_what_was_in_flight_last_and_no_more() {
    let (mut lost, mut told) = (0, 0);
    for seed in 40..50 {
        let killed = killed(seed);
        let mut rng = SimRng::new(seed);
        for number in 0..25 {
            let Some((image, what)) = damaged(&killed.image, number, &mut rng) else { continue };
            let disk = from_image(seed, image);
            let mut world = World::start(disk, 1);
            for key in keys() {
                let Some(log) = world.engine.find(key) else {
                    let named = world.recovered.refused.iter().any(|refused| refused.key == key);
                    assert!(named, "seed {seed}: {what}: log {key} is gone without a word");
                    told += 1;
                    continue;
                };
                let (records, holes) = world.read_around(log);
                told += u64::from(!holes.is_empty());
                let before = &killed.settled[&key];
                let proven = killed.proven.get(&key).copied().unwrap_or(0);
                let end = world.engine.log(log).expect("there").settled_end().0;
                let what = format!("seed {seed}: {what}: log {key}");
                assert!(end >= proven, "{what} ends at {end}, but {proven} was proven durable");
                assert_only_holes_are_missing(before, end, &records, &holes, &what);
                lost += u64::from(end < before.len() as u64);
            }
        }
    }
    println!("{lost} logs lost a part of the window, {told} told their damage");
    assert!(told > 0 && lost > 0, "both happen: {told} told, {lost} within the window");
}

/// A segment of small batches, many to a block, one of which quotes an earlier batch byte by byte, and where each begins.
fn small_batches() -> (DiskImage, Records, Vec<u64>) {
    let mut world = World::empty(17);
    let log = world.create(keys()[0], Fsync::OnCommit);
    for number in 0..120_u8 {
        let quoted = world.read(log, Offset(u64::from(number) / 2), 1).unwrap_or_default();
        let quoted = quoted.first().map(|batch| batch.bytes().to_vec());
        // The head of the batch and of the record before it: what is quoted begins where a batch could.
        let payload = match quoted.filter(|_| number == 60) {
            Some(quoted) => [vec![0; 4], quoted].concat(),
            None => vec![number; 60 + usize::from(number) % 50],
        };
        world.publish(log, &[payload]);
        world.settle(log);
    }
    let records = world.read_log(log).expect("readable");
    let mut disk = world.close();
    let image = disk.sim().image();
    let (path, bytes) = only_segment(&image);
    // The first place of each offset: behind batch 30 the quotation has its base too.
    let mut starts: BTreeMap<u64, u64> = BTreeMap::new();
    for at in (4_096..bytes.len() - 32).step_by(8).filter(|at| bytes[*at..].starts_with(b"FLXB")) {
        let base = u64::from_le_bytes(bytes[at + 24..at + 32].try_into().expect("8 bytes"));
        starts.entry(base).or_insert(at as u64);
    }
    assert!(starts.keys().copied().eq(0..120), "{path}: {starts:?}");
    let starts = starts.into_values().collect();
    (image, records, starts)
}

fn only_segment(image: &DiskImage) -> (felix_runtime::file::DiskPath, Vec<u8>) {
    let name = keys()[0].to_string();
    let mut files = image.files().into_iter().filter(|(path, len)| *len > 0 && path.as_str().contains(&name));
    let (path, _) = files.next().expect("a segment");
    assert!(files.next().is_none(), "one segment");
    let bytes = image.read(&path).expect("there");
    (path, bytes)
}

/// Whichever part of a batch is damaged: that batch cannot be read, each other one can, from any offset, in pages of any size,
/// with an index and without.
#[test]
fn a_damaged_batch_takes_no_other_with_it_wherever_reading_begins() {
    let (image, records, starts) = small_batches();
    let (path, _) = only_segment(&image);
    // Magic, version, kind, lengths, count, checksum, base, epoch; the head of the record, its payload.
    for field in [0, 4, 5, 8, 12, 16, 20, 24, 80, 96, 130] {
        for hit in [0_u64, 60, 61, 119] {
            let mut damaged = image.clone();
            damaged.flip_bit(&path, (starts[hit as usize] + field) * 8 + 1).expect("there");
            let mut world = World::start(from_image(3, damaged), 1);
            let log = world.engine.find(keys()[0]).expect("what was durable at a stop is not read");
            let what = format!("byte {field} of batch {hit}");
            for from in (0..120).rev().chain(0..120) {
                match world.read(log, Offset(from), 1 + from as usize % 3 * 400) {
                    Ok(batches) => {
                        assert_ne!(from, hit, "{what}");
                        let base = batches[0].head().base.0;
                        let payload = batches[0].records().next().map(|record| record.payload.to_vec());
                        assert_eq!((base, &payload), (from, &records[&from]), "{what}");
                        assert!(batches.iter().all(|batch| batch.head().base.0 != hit), "{what}");
                    }
                    Err(ReadError::Damaged { from: first, next, .. }) => {
                        assert_eq!((from, first.0, next.0), (hit, hit, hit + 1), "{what}");
                    }
                    Err(error) => panic!("{what}: {error}"),
                }
            }
        }
    }
}

/// The disk has the bytes right and brings one of them wrong, in one read of a page: what is read is what was written.
#[test]
fn a_wrong_bit_that_one_read_brings_is_no_damage() {
    let (image, records, _) = small_batches();
    let flipped = Rc::new(Cell::new(0));
    for seed in 0..300 {
        let mut world = World::start(from_image(seed, image.clone()), 1);
        let log = world.engine.find(keys()[0]).expect("what was durable at a stop is not read");
        let counted = flipped.clone();
        world.disk.sim().choose_faults(move |asked| {
            let hit = asked.kind == OpKind::Read && counted.get() == seed;
            hit.then(|| {
                counted.set(seed + 1);
                Fault::FlippedBit
            })
        });
        let from = seed % 120;
        let batches = world.read(log, Offset(from), 1_200).unwrap_or_else(|error| panic!("{seed}: {error}"));
        assert_eq!(batches[0].head().base.0, from, "{seed}");
        for record in batches.iter().flat_map(|batch| batch.records()) {
            assert_eq!(Some(record.payload.to_vec()), records[&record.offset.0], "{seed}");
        }
    }
    assert_eq!(flipped.get(), 300, "each read had one");
}

/// A log whose newest segment has a damaged batch can be cut behind it, and not at it.
#[test]
fn a_log_can_be_cut_behind_a_damaged_batch() {
    let (mut image, records, starts) = small_batches();
    let (path, _) = only_segment(&image);
    image.flip_bit(&path, (starts[50] + 100) * 8).expect("there");
    let mut world = World::start(from_image(4, image), 1);
    let log = world.engine.find(keys()[0]).expect("served");
    world.engine.cut(log, Offset(51));
    world.run_until(|world| world.events.iter().any(|event| matches!(event, Event::CutFailed { .. })));
    world.engine.cut(log, Offset(90));
    world.run_until(|world| world.events.iter().any(|event| matches!(event, Event::Cut { .. })));
    world.publish(log, &[vec![9; 20]]);
    world.settle(log);
    let (found, holes) = world.read_around(log);
    assert_eq!(holes, [(50, 51)]);
    assert_eq!(found[&90], Some(vec![9; 20]));
    assert!(found.range(..90).all(|(offset, record)| records[offset] == *record) && found.len() == 90);
}

#[test]
fn a_log_that_was_refused_after_a_power_loss_does_not_give_its_offsets_again_later() {
    let mut world = World::empty(8);
    let mut rng = SimRng::new(8);
    let key = key(1, 1);
    let log = world.create(key, Fsync::None);
    for _ in 0..20 {
        world.publish(log, &[payload(&mut rng, 3_000)]);
    }
    world.settle(log);
    let mut image = world.disk.sim().image_after_power_loss(&mut rng);
    // The head of its segment cannot be read at the next start, and can at the one after.
    let names = image.files().into_iter().map(|(path, _)| path);
    let segment = names.filter(|path| path.as_str().ends_with(".seg")).min().expect("it has a segment");
    image.flip_bit(&segment, 100).expect("it is there");
    let mut world = World::start(from_image(8, image), 2);
    assert_eq!(world.recovered.refused.len(), 1, "{:?}", world.recovered.refused);
    world.disk.sim().kill();
    let mut image = world.disk.sim().image();
    image.flip_bit(&segment, 100).expect("it is there");
    let mut world = World::start(from_image(9, image), 2);
    assert!(world.recovered.refused.is_empty(), "{:?}", world.recovered.refused);
    let log = world.engine.find(key).expect("it is there");
    let next = world.publish(log, &[vec![1]]);
    assert!(next >= Offset(20), "offset {next} was given before the power was lost");
}
