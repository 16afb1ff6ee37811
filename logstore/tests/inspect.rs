//! What an inspection says of directories that the engine wrote: whole ones, damaged ones, arbitrary ones. Its judgement is
//! compared with that of recovery on the same bytes.

mod support;
#[path = "inspect/written.rs"]
mod written;

use std::collections::BTreeSet;
use std::os::unix::fs::FileExt;
use std::path::Path;

use felix_logstore::checksum::Epoch;
use felix_logstore::commit::slot::{RECOVERY_CORE, ROUNDS_AT};
use felix_logstore::commit::{Mark, MarkKind, PieceHead, Prior, Round, SlotHead};
use felix_logstore::id::{Fsync, Lineage, Place, RoundNumber, Run, SegmentSeq, ShardKey};
use felix_logstore::inspect::{
    BatchRange, Finding, InspectError, Options, Report, SegmentRole, Severity, ShardState, What, inspect,
};
use felix_logstore::names;
use felix_logstore::recovery::RecoveryError;
use felix_logstore::segment::format::{SegmentEnd, SegmentHead};
use felix_runtime::file::DiskPath;
use felix_runtime::sim::{DiskImage, SimRng};
use felix_wire::id::{CoreId, Offset};
use support::*;
use written::{Dir, Publishing, publish};

fn look(dir: &Dir) -> Report {
    inspect(&dir.0, &Options::default()).expect("a readable directory")
}

fn damage(report: &Report) -> Vec<&Finding> {
    report.findings.iter().filter(|finding| finding.severity == Severity::Damage).collect()
}

fn codes(report: &Report) -> Vec<&'static str> {
    report.findings.iter().map(|finding| finding.what.code()).collect()
}

/// Batches of one record: small, middle, straight to the segment.
fn batches(count: usize) -> Vec<(u32, usize)> {
    (0..count).map(|number| (1 + number as u32 % 3, [200, 2_500, 30_000][number % 3])).collect()
}

/// One log that the real engine wrote, with several segments.
fn real(name: u128) -> Dir {
    let dir = Dir::new();
    publish(&dir.0, vec![Publishing { key: key(name, 1), batches: batches(40) }]);
    dir
}

fn segments(report: &Report, role: SegmentRole) -> Vec<SegmentSeq> {
    let all = report.shards[0].segments.iter();
    all.filter(|segment| segment.role == role).map(|segment| segment.seq).collect()
}

fn path_of(dir: &Dir, path: &DiskPath) -> std::path::PathBuf {
    dir.0.join(path.as_str())
}

fn segment_path(dir: &Dir, key: ShardKey, seq: SegmentSeq) -> std::path::PathBuf {
    path_of(dir, &names::segment(VOLUME, key, seq))
}

/// Changes the bytes of a file from `at` on.
fn change(path: &Path, at: u64, change: impl Fn(&mut Vec<u8>), len: usize) {
    let file = std::fs::File::options().read(true).write(true).open(path).expect("a file");
    let mut bytes = vec![0; len];
    file.read_exact_at(&mut bytes, at).expect("bytes");
    change(&mut bytes);
    file.write_all_at(&bytes, at).expect("a write");
}

fn flip(path: &Path, at: u64) {
    change(path, at, |bytes| bytes[0] ^= 4, 1);
}

#[test]
fn a_sound_log_is_sound_and_counted_right() {
    let dir = Dir::new();
    let logs = |round: usize| {
        let more = |name| Publishing { key: key(name, 1), batches: batches(30 + round) };
        vec![more(1), more(2)]
    };
    publish(&dir.0, logs(0));
    publish(&dir.0, logs(1));
    let before = dir.contents();
    let report = look(&dir);
    assert_eq!(report.damage, 0, "{:?}", damage(&report));
    assert_eq!(report.shards.len(), 2);
    let counted = |count: usize| batches(count).iter().map(|(records, _)| u64::from(*records)).sum::<u64>();
    for shard in &report.shards {
        assert_eq!(shard.state, ShardState::Sound);
        assert_eq!((shard.batches, shard.records), (61, counted(30) + counted(31)));
        assert_eq!((shard.start, shard.end), (Offset(0), Offset(shard.records)));
        assert!(shard.segment_count() > 3, "{shard:?}");
        assert!(shard.segments.iter().all(|segment| segment.damage == 0));
        let ends: u64 = shard.segments.iter().map(|segment| segment.batches).sum();
        assert_eq!(ends, shard.batches);
    }
    assert_eq!(report.run, 2);
    assert!(report.slots.iter().any(|slot| slot.clean), "{:?}", report.slots);
    assert!(dir.contents() == before, "an inspection changes nothing");
}

#[test]
fn batches_are_listed_from_an_offset_on_and_of_the_shard_that_was_named() {
    let dir = Dir::new();
    let of = |name| Publishing { key: key(name, 1), batches: vec![(5, 100); 20] };
    publish(&dir.0, vec![of(1), of(2)]);
    let options = Options {
        shard_prefix: key(2, 1).to_string(),
        batches: Some(BatchRange { from: Offset(52), limit: 4 }),
    };
    let report = inspect(&dir.0, &options).expect("readable");
    assert_eq!(report.shards.len(), 1);
    let rows: Vec<(u64, u32)> = report.batches.iter().map(|row| (row.base.0, row.count)).collect();
    assert_eq!(rows, [(50, 5), (55, 5), (60, 5), (65, 5)]);
    assert!(report.batches.iter().all(|row| row.key == key(2, 1)));
    let none = Options { shard_prefix: "ff".to_owned(), ..Options::default() };
    assert!(matches!(inspect(&dir.0, &none), Err(InspectError::NoSuchShard { .. })));
}

#[test]
fn a_flipped_bit_in_a_sealed_segment_is_named_at_its_batch() {
    let dir = real(3);
    let options =
        Options { batches: Some(BatchRange { from: Offset(0), limit: 1_000 }), ..Options::default() };
    let sound = inspect(&dir.0, &options).expect("readable");
    let second = segments(&sound, SegmentRole::Sealed)[1];
    let hit = sound.batches.iter().filter(|row| row.segment == second).nth(1).expect("two batches");
    flip(&segment_path(&dir, key(3, 1), second), hit.byte + 100);
    let report = look(&dir);
    let [found] = damage(&report)[..] else { panic!("{:?}", report.findings) };
    assert_eq!((found.shard, found.segment, found.byte), (Some(key(3, 1)), Some(second), hit.byte));
    let lost = Some((hit.base, Offset(hit.base.0 + u64::from(hit.count))));
    assert_eq!((found.what.code(), found.what.offsets()), ("unreadable", lost));
    assert_eq!(report.shards[0].state, ShardState::Damaged, "recovery does not read sealed segments");
    assert_eq!(report.shards[0].batches, 39, "what is behind it is counted");
}

#[test]
fn a_zeroed_sector_in_the_newest_segment_below_the_durable_end_is_damage() {
    let dir = real(4);
    let sound = look(&dir);
    let newest = *sound.shards[0].segments.iter().rfind(|segment| segment.batches > 0).expect("batches");
    let path = segment_path(&dir, key(4, 1), newest.seq);
    let sector = (newest.end_byte - 1) / 512 * 512;
    change(&path, sector, |bytes| bytes.fill(0), 512);
    let report = look(&dir);
    let [found] = damage(&report)[..] else { panic!("{:?}", report.findings) };
    assert_eq!((found.segment, found.what.code()), (Some(newest.seq), "unreadable"));
    assert_eq!(found.what.offsets().map(|(_, to)| to), Some(newest.end));
}

#[test]
fn missing_cut_and_foreign_segments_are_named() {
    let dir = real(5);
    let sound = look(&dir);
    let sealed = segments(&sound, SegmentRole::Sealed);
    let row = |seq| *sound.shards[0].segments.iter().find(|segment| segment.seq == seq).expect("a row");
    let path = segment_path(&dir, key(5, 1), sealed[1]);
    let whole = std::fs::read(&path).expect("a file");

    std::fs::remove_file(&path).expect("it is there");
    let report = look(&dir);
    let lost = damage(&report);
    assert_eq!(lost[0].what, What::SegmentMissing);
    assert_eq!(lost[0].segment, Some(sealed[1]));
    assert_eq!(lost[1].what, What::OffsetsMissing { from: row(sealed[1]).base, to: row(sealed[1]).end });
    assert_eq!(report.shards[0].state, ShardState::Refused);

    let cut = row(sealed[1]).end_byte / 2;
    std::fs::write(&path, &whole[..cut as usize]).expect("a write");
    let report = look(&dir);
    assert_eq!(damage(&report)[0].what.code(), "unreadable");
    assert_eq!(damage(&report)[1].what, What::Cut { len: cut, due: whole.len() as u64 });
    assert_eq!((damage(&report)[1].segment, damage(&report)[1].byte), (Some(sealed[1]), cut));

    let mut foreign = whole.clone();
    let other = std::fs::read(segment_path(&dir, key(5, 1), sealed[0])).expect("a file");
    foreign[..4_096].copy_from_slice(&other[..4_096]);
    std::fs::write(&path, &foreign).expect("a write");
    let report = look(&dir);
    assert_eq!(damage(&report)[0].what, What::HeadForeign { key: key(5, 1), seq: sealed[0] });
    assert_eq!((damage(&report)[0].segment, damage(&report)[0].byte), (Some(sealed[1]), 0));

    let mut headless = whole.clone();
    headless[60] ^= 1;
    std::fs::write(&path, &headless).expect("a write");
    assert_eq!(damage(&look(&dir))[0].what, What::HeadDamaged);

    std::fs::write(&path, &whole).expect("a write");
    assert!(look(&dir).is_sound());
    std::fs::remove_dir_all(path.parent().expect("a parent")).expect("it is there");
    let named = Options { shard_prefix: key(5, 1).to_string(), ..Options::default() };
    let report = inspect(&dir.0, &named).expect("readable");
    assert_eq!(damage(&report)[0].what, What::DirectoryMissing);
}

#[test]
fn damaged_slots_are_named_and_the_last_round_may_be_torn() {
    let dir = real(6);
    let sound = look(&dir);
    let slot = sound.slots.iter().find(|slot| slot.clean).expect("the last slot");
    assert_eq!(
        (slot.rounds, slot.live_rounds),
        (2, 2),
        "the marks of all logs, and the last round: {slot:?}"
    );
    let path = dir.0.join(&slot.file);
    let whole = std::fs::read(&path).expect("a file");
    let rounds: Vec<u64> = (2..whole.len() as u64 / 4_096)
        .map(|block| block * 4_096)
        .filter(|at| whole[*at as usize..].starts_with(b"FLXR"))
        .collect();
    let after = |at: u64| {
        flip(&path, at);
        let report = look(&dir);
        std::fs::write(&path, &whole).expect("a write");
        report
    };
    let report = after(rounds[0] + 40);
    let [found] = damage(&report)[..] else { panic!("{:?}", report.findings) };
    assert_eq!(
        (found.file.as_str(), found.byte, found.what.code()),
        (slot.file.as_str(), rounds[0], "rounds_missing")
    );
    let report = after(rounds[0] + 70);
    let [found] = damage(&report)[..] else { panic!("{:?}", report.findings) };
    assert_eq!((found.byte, found.what.code()), (rounds[0], "round_damaged"));
    let report = after(rounds[rounds.len() - 1] + 70);
    assert!(report.is_sound(), "nothing behind it: {:?}", report.findings);
    assert!(codes(&report).contains(&"torn_round"), "{:?}", report.findings);
    let report = after(40);
    assert_eq!(damage(&report)[0].what, What::SlotHeadCopyDamaged { copy: 1 });
    let report = after(4_096 + 40);
    assert_eq!((damage(&report)[0].byte, damage(&report)[0].what.code()), (4_096, "slot_head_copy_damaged"));
    change(&path, 0, |bytes| bytes[40] ^= 4, 4_096);
    flip(&path, 4_096 + 40);
    let report = look(&dir);
    assert_eq!(damage(&report)[0].what, What::SlotHeadDamaged);
}

#[test]
fn strangers_and_files_that_are_no_part_of_the_log_are_named_and_harmless() {
    let dir = real(7);
    let shard = path_of(&dir, &names::shard(VOLUME, key(7, 1)));
    std::fs::write(dir.0.join("README"), "x").expect("a write");
    std::fs::write(dir.0.join("slots/old"), "x").expect("a write");
    std::fs::write(shard.join("notes.txt"), "x").expect("a write");
    std::fs::create_dir(dir.0.join("shards/x")).expect("a directory");
    std::fs::write(shard.join("00000000000000ff.seg"), [0; 8_192]).expect("a write");
    let report = look(&dir);
    assert!(report.is_sound(), "{:?}", report.findings);
    let named: BTreeSet<String> = report
        .findings
        .iter()
        .filter(|finding| finding.what == What::ForeignFile)
        .map(|finding| finding.file.clone())
        .collect();
    let stranger = format!("shards/{}/notes.txt", key(7, 1));
    assert_eq!(named, ["README", "shards/x", "slots/old", &stranger].map(str::to_owned).into());
    assert!(codes(&report).contains(&"never_used"), "{:?}", report.findings);
}

#[test]
fn a_directory_in_use_is_refused_and_so_is_one_that_is_none() {
    let dir = real(8);
    let lock = std::fs::File::open(dir.0.join(names::LOCK)).expect("the lock");
    lock.lock().expect("nobody has it");
    let error = inspect(&dir.0, &Options::default()).expect_err("in use");
    assert!(matches!(error, InspectError::InUse { .. }), "{error}");
    assert!(error.to_string().contains("a broker is using this directory"), "{error}");
    lock.unlock().expect("it is ours");
    lock.lock_shared().expect("nobody has it");
    assert!(look(&dir).is_sound(), "another inspection is no broker");
    let empty = Dir::new();
    assert!(matches!(inspect(&empty.0, &Options::default()), Err(InspectError::NotALog { .. })));
    assert!(matches!(inspect(&empty.0.join("x"), &Options::default()), Err(InspectError::Io { .. })));
}

type Contents = std::collections::BTreeMap<ShardKey, std::collections::BTreeMap<u64, Option<Vec<u8>>>>;

/// A small simulated volume with everything in it, killed or stopped in order.
fn simulated(seed: u64, clean: bool) -> (DiskImage, Contents) {
    let mut world = World::empty(seed);
    let mut rng = SimRng::new(seed);
    let keys = [(key(1, 1), Fsync::OnCommit), (key(2, 1), Fsync::Periodic), (key(3, 1), Fsync::None)];
    let mut contents = Contents::new();
    for (key, policy) in keys {
        let log = world.create(key, policy);
        for round in 0..24 {
            let payload = payload(&mut rng, [200, 2_500, 70_000][round % 3]);
            world.publish(log, &[payload]);
        }
        world.settle(log);
        contents.insert(key, world.read_log(log).expect("readable"));
    }
    let mut disk = if clean { world.close() } else { world.disk };
    disk.sim().kill();
    (disk.sim().image(), contents)
}

/// Holds an inspection against recovery on the same image: the same logs are refused; what an inspection calls sound is
/// served byte for byte. None when both refuse a later version.
fn compare(image: &DiskImage, contents: Option<&Contents>, what: &str) -> Option<Report> {
    let dir = Dir::of(image);
    let mut disk = from_image(1, image.clone());
    let recovered = recover_some(&mut disk, 1, None).expect("recovery ends");
    for log in recovered.iter().flat_map(|recovered| &recovered.logs) {
        // An image does not list directories without files.
        let shard = path_of(&dir, &names::shard(VOLUME, log.key));
        std::fs::create_dir_all(shard).expect("a directory");
    }
    let report = match (inspect(&dir.0, &Options::default()), &recovered) {
        (Err(InspectError::Version { .. }), Err(RecoveryError::Version { .. })) => return None,
        (Ok(report), Ok(_)) => report,
        (report, recovered) => panic!("{what}: inspection {report:?}, recovery {recovered:?}"),
    };
    let recovered = recovered.expect("checked");
    let refused: BTreeSet<ShardKey> = recovered.refused.iter().map(|refused| refused.key).collect();
    let told: BTreeSet<ShardKey> = report
        .findings
        .iter()
        .filter(|finding| finding.what == What::DirectoryMissing)
        .filter_map(|finding| finding.shard)
        .chain(report.shards.iter().filter(|shard| shard.state == ShardState::Refused).map(|shard| shard.key))
        .collect();
    assert_eq!(told, refused, "{what}: {:?} against {:?}", report.findings, recovered.refused);
    for log in &recovered.logs {
        let row = report.shards.iter().find(|shard| shard.key == log.key).expect("a row");
        assert_eq!((row.start, row.end), (log.start, log.end), "{what}: {:?}", report.findings);
        let torn = recovered.torn.iter().any(|(key, _)| *key == log.key);
        let may_be_torn = row.state != ShardState::Sound;
        assert!(!torn || may_be_torn, "{what}: {} is torn: {:?}", log.key, report.findings);
    }
    disk.sim().kill();
    let mut world = World::start(disk, 1);
    for row in &report.shards {
        let Some(log) = world.engine.find(row.key) else { continue };
        let read = world.read_log(log);
        let sound = matches!(row.state, ShardState::Sound | ShardState::Torn);
        assert!(read.is_ok() || !sound, "{what}: {} is {:?} and cannot be read", row.key, row.state);
        if let (Some(contents), Ok(read), ShardState::Sound) = (contents, read, row.state) {
            assert!(read == contents[&row.key], "{what}: {} is sound and has other records", row.key);
        }
    }
    Some(report)
}

#[test]
fn damage_is_judged_as_recovery_judges_it() {
    let (mut sound, mut damaged) = (0, 0);
    for clean in [true, false] {
        let (image, contents) = simulated(21, clean);
        let report = compare(&image, clean.then_some(&contents), "whole").expect("versions are known");
        assert!(report.is_sound(), "{:?}", damage(&report));
        let mut rng = SimRng::new(5);
        let files = image.files();
        for number in 0..100 {
            let (path, len) = &files[rng.below(files.len() as u64) as usize];
            if *len == 0 {
                continue;
            }
            let mut image = image.clone();
            let what = if number % 3 == 0 {
                let sector = rng.below(len.div_ceil(512));
                image.zero_sector(path, sector).expect("the file is there");
                format!("clean {clean}, sector {sector} of {path} zeroed")
            } else {
                // Many bits near the beginning, where heads are.
                let bytes = if number % 2 == 0 { *len } else { (*len).min(16_384) };
                let bit = rng.below(bytes * 8);
                image.flip_bit(path, bit).expect("the file is there");
                format!("clean {clean}, bit {bit} of {path} turned")
            };
            // What was cut off after a kill is gone in silence only from the end of a log.
            let contents = clean.then_some(&contents);
            let is_sound = compare(&image, contents, &what).is_some_and(|report| report.is_sound());
            *if is_sound { &mut sound } else { &mut damaged } += 1;
        }
    }
    assert!(sound > 20 && damaged > 20, "{sound} sound, {damaged} damaged");
}

#[test]
fn what_a_power_loss_leaves_is_no_damage() {
    let mut torn = 0;
    for seed in 0..6 {
        let start = DiskImage::empty(&[VOLUME_BYTES]);
        let mut world = World::start(traced(seed, start), 1);
        let mut rng = SimRng::new(seed);
        let policies = [Fsync::OnCommit, Fsync::OnCommit, Fsync::Periodic, Fsync::None];
        let logs: Vec<_> = policies
            .iter()
            .enumerate()
            .map(|(name, policy)| (key(name as u128, 1), world.create(key(name as u128, 1), *policy)))
            .collect();
        for act in 0..240 {
            let (_, log) = logs[rng.below(4) as usize];
            let len = [100, 900, 5_000, 80_000][rng.below(4) as usize];
            let payload = payload(&mut rng, len);
            world.publish(log, &[payload]);
            match act % 40 {
                13 => world.settle(log),
                27 => {
                    let settled = world.engine.log(log).expect("there").settled_end();
                    world.engine.move_start(log, Offset(settled.0 / 2));
                }
                39 => world.pass(std::time::Duration::from_millis(200)),
                _ => {}
            }
        }
        world.engine.delete(logs[3].1);
        world.pass(std::time::Duration::from_millis(50));
        let AnyDisk::Traced(disk) = world.disk else { panic!("it is traced") };
        let (_, trace) = disk.into_parts();
        for number in 0..12 {
            let position = rng.below(trace.events() as u64) as usize;
            let image = trace.image(position, &mut rng);
            let what = format!("seed {seed}, image {number} at {position}");
            let report = compare(&image, None, &what).expect("versions are known");
            assert!(report.is_sound(), "{what}: {:?}", damage(&report));
            torn += u64::from(codes(&report).iter().any(|code| code.starts_with("torn")));
        }
    }
    assert!(torn > 5, "{torn} images had a torn tail");
}

/// One change of a file's bytes, or of its length.
fn mutate(rng: &mut SimRng, bytes: &mut Vec<u8>) {
    let at = rng.below(bytes.len().max(1) as u64) as usize;
    // Heads are a small part of the bytes and most of the decisions.
    let at = if rng.below(2) == 0 { at.min(rng.below(12_288) as usize) } else { at };
    let len = (1 + rng.below(64) as usize).min(bytes.len() - at.min(bytes.len()));
    match rng.below(5) {
        0 => bytes.truncate(at),
        1 => rng.fill(&mut bytes[at..at + len]),
        2 => bytes[at..at + len].fill(0xff),
        3 => {
            let from = rng.below((bytes.len() - len + 1) as u64) as usize;
            bytes.copy_within(from..from + len, at);
        }
        _ => {
            let mut tail = vec![0; rng.below(9_000) as usize];
            rng.fill(&mut tail);
            bytes.extend(tail);
        }
    }
}

#[test]
fn arbitrary_bytes_never_panic() {
    let mut world = World::empty(31);
    let mut rng = SimRng::new(31);
    let log = world.create(key(1, 1), Fsync::OnCommit);
    for len in [10, 3_000, 70_000, 300, 60_000, 20] {
        let payload = payload(&mut rng, len);
        world.publish(log, &[payload]);
        world.settle(log);
    }
    world.disk.sim().kill();
    let dir = Dir::of(&world.disk.sim().image());
    let files: Vec<_> = dir.contents().into_iter().filter_map(|(path, bytes)| Some((path, bytes?))).collect();
    let files: Vec<_> = files.into_iter().filter(|(_, bytes)| !bytes.is_empty()).collect();
    let (mut sound, mut damaged, mut refused) = (0, 0, 0);
    for _ in 0..2_000 {
        let (path, whole) = &files[rng.below(files.len() as u64) as usize];
        let mut bytes = whole.clone();
        for _ in 0..=rng.below(3) {
            if !bytes.is_empty() {
                mutate(&mut rng, &mut bytes);
            }
        }
        std::fs::write(path, &bytes).expect("a write");
        match inspect(&dir.0, &Options::default()) {
            Ok(report) if report.is_sound() => sound += 1,
            Ok(_) => damaged += 1,
            Err(_) => refused += 1,
        }
        std::fs::write(path, whole).expect("a write");
    }
    assert!(sound > 100 && damaged > 100, "{sound} sound, {damaged} damaged, {refused} refused");
    assert!(look(&dir).is_sound());
}

/// Numbers at the ends of what they can be, and small ones.
fn number(rng: &mut SimRng) -> u64 {
    match rng.below(6) {
        0 => u64::MAX - rng.below(3),
        1 => (1 << 63) + rng.below(2),
        2 => rng.below(1 << 20),
        _ => rng.below(9),
    }
}

/// Up to three segments of a log with arbitrary heads.
fn some_segments(dir: &Dir, key: ShardKey, epoch: Epoch, rng: &mut SimRng) {
    for _ in 0..rng.below(4) {
        let (seq, base) = (SegmentSeq(number(rng)), Offset(number(rng)));
        let before = SegmentEnd {
            segment: SegmentSeq(number(rng)),
            offset: base,
            byte: number(rng),
            newest_ms: number(rng),
            checksum: 0,
        };
        let (lineage, size_bytes) = (Lineage(number(rng)), number(rng));
        let before = (rng.below(3) > 0).then_some(before);
        let (lineage_base, ceiling, policy) = (Offset(number(rng)), Offset(number(rng)), Fsync::OnCommit);
        let head =
            SegmentHead { key, seq, epoch, base, lineage, lineage_base, size_bytes, ceiling, policy, before };
        let mut bytes = head.encode();
        bytes.resize(4_096 + rng.below(9_000) as usize, 0);
        std::fs::write(segment_path(dir, key, seq), bytes).expect("a write");
    }
}

/// A volume whose heads, rounds and marks have sound checksums and arbitrary numbers.
fn well_formed(rng: &mut SimRng) -> Dir {
    let dir = Dir::new();
    let (key, epoch) = (key(1, 1), Epoch(7));
    let shard = path_of(&dir, &names::shard(VOLUME, key));
    std::fs::create_dir_all(&shard).expect("a directory");
    std::fs::create_dir_all(dir.0.join("slots")).expect("a directory");
    some_segments(&dir, key, epoch, rng);
    let head = SlotHead {
        epoch,
        run: Run(number(rng)),
        boot: [0; 16],
        core: [CoreId(0), RECOVERY_CORE][rng.below(2) as usize],
        number: number(rng),
        size_bytes: number(rng),
        first_round: number(rng),
    };
    let mut bytes = head.encode();
    bytes.resize(ROUNDS_AT as usize, 0);
    for _ in 0..rng.below(4) {
        let place = |rng: &mut SimRng| Place { segment: SegmentSeq(number(rng)), byte: number(rng) };
        let mark = Mark {
            kind: [MarkKind::State, MarkKind::Truncated, MarkKind::Start][rng.below(3) as usize],
            key,
            lineage: Lineage(number(rng)),
            lineage_base: Offset(number(rng)),
            start: Offset(number(rng)),
            end: Offset(number(rng)),
            ceiling: Offset(number(rng)),
            place: place(rng),
            newest_ms: number(rng),
            checksum: 0,
            policy: Fsync::Periodic,
            next: Offset(number(rng)),
        };
        let (base, lineage) = (Offset(number(rng)), Lineage(number(rng)));
        // A piece without bytes is whole.
        let piece = PieceHead { key, lineage, place: place(rng), epoch, base, end: base, len: 0 };
        let round = Round {
            number: RoundNumber(number(rng)),
            live_from: RoundNumber(number(rng)),
            clean: rng.below(2) == 0,
            prior: vec![Prior { key, lineage: Lineage(number(rng)), end: Offset(number(rng)) }],
            marks: vec![mark; rng.below(2) as usize],
            pieces: vec![piece; rng.below(2) as usize],
        };
        bytes.extend(round.encode_meta(epoch));
        bytes.resize(bytes.len().next_multiple_of(4_096), 0);
    }
    std::fs::write(dir.0.join("slots/r0000000000000001-c0000-00000000.slot"), bytes).expect("a write");
    dir
}

#[test]
fn well_formed_nonsense_never_panics() {
    let mut rng = SimRng::new(41);
    let mut damaged = 0;
    for _ in 0..1_000 {
        let dir = well_formed(&mut rng);
        let report = look(&dir);
        damaged += u64::from(!report.is_sound());
        for finding in &report.findings {
            assert!(!finding.to_string().is_empty());
        }
    }
    assert!(damaged > 300, "{damaged} of 1,000");
}
