//! Damage at rest is seen, or changes nothing; it never makes a log shorter in silence.

mod support;

use std::collections::BTreeMap;

use felix_logstore::id::{Fsync, ShardKey};
use felix_runtime::sim::{DiskImage, SimRng};
use support::*;

type Contents = BTreeMap<ShardKey, BTreeMap<u64, Option<Vec<u8>>>>;

fn keys() -> Vec<ShardKey> {
    (1..=4).map(|name| key(name, 1)).collect()
}

/// A volume with rolled segments, both ways of writing, and everything settled.
fn written(seed: u64) -> (World, Contents) {
    let mut world = World::empty(seed);
    let mut rng = SimRng::new(seed);
    for key in keys() {
        let log = world.create(key, Fsync::OnCommit);
        for round in 0..40 {
            let len = [200, 2_500, 70_000][round % 3];
            let payload = payload(&mut rng, len);
            world.publish(log, &[payload]);
        }
        world.settle(log);
    }
    let mut contents = Contents::new();
    for key in keys() {
        let log = world.engine.find(key).expect("there");
        contents.insert(key, world.read_log(log).expect("readable"));
    }
    (world, contents)
}

/// What a damaged image gives: true when the damage was told.
fn is_told(image: DiskImage, seed: u64, contents: &Contents, what: &str) -> bool {
    let mut disk = from_image(seed, image);
    let Some(result) = recover_some(&mut disk, 1, None) else { panic!("{what}: recovery did not end") };
    if result.is_err() {
        return true;
    }
    disk.sim().kill();
    let mut world = World::start(disk, 1);
    let mut told = false;
    for key in keys() {
        if world.recovered.refused.iter().any(|refused| refused.key == key) {
            told = true;
            continue;
        }
        let log = world.engine.find(key).unwrap_or_else(|| panic!("{what}: log {key} is gone"));
        match world.read_log(log) {
            Err(_) => told = true,
            Ok(records) => {
                let same = records.len() == contents[&key].len() && records == contents[&key];
                assert!(same, "{what}: log {key} has {} of {} records", records.len(), contents[&key].len());
            }
        }
    }
    told
}

fn flips(stopped: &DiskImage, contents: &Contents, count: u64) -> u64 {
    let mut rng = SimRng::new(31);
    let files = stopped.files();
    let mut told = 0;
    for number in 0..count {
        let (path, len) = &files[rng.below(files.len() as u64) as usize];
        if *len == 0 {
            continue;
        }
        let mut image = stopped.clone();
        let what = if number % 3 == 0 {
            let sector = rng.below(len.div_ceil(512));
            image.zero_sector(path, sector).expect("the file is there");
            format!("sector {sector} of {path} zeroed")
        } else {
            let bit = rng.below(len * 8);
            image.flip_bit(path, bit).expect("the file is there");
            format!("bit {bit} of {path} turned")
        };
        told += u64::from(is_told(image, number, contents, &what));
    }
    told
}

#[test]
fn any_damage_after_a_clean_stop_is_told_or_changes_nothing() {
    let count = std::env::var("FELIX_FLIPS").ok().and_then(|count| count.parse().ok()).unwrap_or(150);
    let (world, contents) = written(11);
    let mut disk = world.close();
    let stopped = disk.sim().image();
    let told = flips(&stopped, &contents, count);
    assert!(told > count / 20, "{told} of {count} told: most of the bytes are records");
}

#[test]
fn any_damage_after_an_idle_round_and_a_kill_is_told_or_changes_nothing() {
    let (mut world, contents) = written(12);
    world.pass(std::time::Duration::from_millis(300));
    world.disk.sim().kill();
    let killed = world.disk.sim().image();
    flips(&killed, &contents, 100);
}

#[test]
fn damage_in_the_middle_of_a_log_leaves_the_rest_readable_and_writable() {
    let (world, contents) = written(13);
    let mut disk = world.close();
    let mut image = disk.sim().image();
    let key = keys()[0];
    let path = felix_logstore::names::segment(VOLUME, key, felix_logstore::id::SegmentSeq(1));
    image.flip_bit(&path, 8 * 5_000).expect("there");
    let mut world = World::start(from_image(1, image), 1);
    let log = world.engine.find(key).expect("sealed segments are not scanned at open");
    assert!(world.read_log(log).is_err());
    let last = *contents[&key].keys().next_back().expect("records");
    let tail = world.read(log, felix_wire::id::Offset(last), 1 << 20).expect("other offsets go on");
    assert_eq!(tail[0].records().next().map(|record| record.payload.to_vec()), contents[&key][&last]);
    world.publish(log, &[vec![1]]);
    world.settle(log);
}

#[test]
fn the_window_after_a_kill_is_the_last_batches_of_a_log_and_no_more() {
    // Directly after a settle nothing names the newest batch yet: a damaged newest batch looks like a torn tail. The batch
    // before it is named by the newest one, so damage there is told.
    let mut world = World::empty(14);
    let log = world.create(key(1, 1), Fsync::OnCommit);
    for _ in 0..3 {
        world.publish(log, &[vec![5; 100_000]]);
        world.settle(log);
    }
    let segment = world.engine.log(log).expect("there").open().next().expect("open").seq;
    world.disk.sim().kill();
    let image = world.disk.sim().image();
    let path = felix_logstore::names::segment(VOLUME, key(1, 1), segment);
    let len = world_len(&image, &path);
    let mut outcomes = Vec::new();
    for byte in (4_096..len).step_by(50_000) {
        let mut damaged = image.clone();
        damaged.flip_bit(&path, byte * 8).expect("there");
        let mut disk = from_image(1, damaged);
        let recovered = recover(&mut disk, 1);
        let end = recovered.logs.first().map(|log| log.end.0);
        outcomes.push(end);
    }
    assert!(
        outcomes.iter().all(|end| end.is_none_or(|end| end >= 2)),
        "at most the newest batch: {outcomes:?}"
    );
    assert!(outcomes.contains(&None), "damage before it is told: {outcomes:?}");
}

fn world_len(image: &DiskImage, path: &felix_runtime::file::DiskPath) -> u64 {
    image.files().into_iter().find(|(name, _)| name == path).map_or(0, |(_, len)| len)
}
