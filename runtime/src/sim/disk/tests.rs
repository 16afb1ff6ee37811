use std::collections::BTreeSet;
use std::time::Duration;

use super::*;
use crate::file::{BufPool, OpenFlags, OpenMode, SharedBuf};

const US: Duration = Duration::from_micros(1);
const VOLUME: VolumeId = VolumeId(0);
const BLOCK: u64 = BLOCK_BYTES as u64;

fn disk(faults: DiskFaults) -> SimDisk {
    SimDisk::new(1, &[1 << 30], faults)
}

fn perfect() -> SimDisk {
    disk(DiskFaults::none(US))
}

fn path(name: &str) -> DiskPath {
    DiskPath::new(VOLUME, name).expect("a path")
}

fn root() -> DiskPath {
    DiskPath::root(VOLUME)
}

fn blocks(fill: u8, count: usize) -> SharedBuf {
    let mut buf = BufPool::new(usize::MAX).take(count * BLOCK_BYTES).expect("no bound");
    buf.push_zeros(count * BLOCK_BYTES).fill(fill);
    buf.freeze()
}

/// Starts an operation whose answer is taken later.
fn start(disk: &mut impl Disk, token: u64, op: Op) {
    disk.submit(Token(token), op).expect("room");
}

/// The next answer, with time moved to it.
fn next(disk: &mut SimDisk) -> Done {
    loop {
        if let Some(done) = disk.poll_done() {
            return done;
        }
        let due = disk.next_due().expect("something is in flight");
        disk.advance_to(due);
    }
}

fn run(disk: &mut SimDisk, op: Op) -> Result<Outcome, DiskError> {
    start(disk, u64::MAX, op);
    let done = next(disk);
    assert_eq!(done.token, Token(u64::MAX));
    done.result
}

fn ok(disk: &mut SimDisk, op: Op) -> Outcome {
    run(disk, op).expect("the operation works")
}

fn open(disk: &mut SimDisk, name: &str, flags: OpenFlags) -> FileId {
    match ok(disk, Op::Open { path: path(name), flags }) {
        Outcome::Opened { file, .. } => file,
        other => panic!("{other:?}"),
    }
}

fn create(disk: &mut SimDisk, name: &str) -> FileId {
    open(disk, name, OpenFlags::plain(OpenMode::Create))
}

fn read(disk: &mut SimDisk, file: FileId, at: u64, max: usize) -> Result<Vec<u8>, DiskError> {
    let room = BufPool::new(usize::MAX).read_room(max).expect("no bound");
    run(disk, Op::Read { file, at, room }).map(|outcome| match outcome {
        Outcome::Read(bytes) => bytes.to_vec(),
        other => panic!("{other:?}"),
    })
}

fn names(image: &DiskImage) -> BTreeSet<String> {
    image.files().into_iter().map(|(path, _)| path.as_str().to_owned()).collect()
}

/// A file of `count` synced blocks of `fill`, its name synced too.
fn synced_file(disk: &mut SimDisk, name: &str, fill: u8, count: usize) -> FileId {
    let file = create(disk, name);
    ok(disk, Op::Write { file, at: 0, data: blocks(fill, count) });
    ok(disk, Op::Sync { file });
    ok(disk, Op::SyncDir { dir: path(name).parent() });
    file
}

/// What the sectors of a file can look like after power losses: one byte stands for a sector of it.
fn after_losses(disk: &SimDisk, name: &str) -> BTreeSet<Vec<u8>> {
    let mut rng = SimRng::new(9);
    let mut seen = BTreeSet::new();
    for _ in 0..400 {
        let bytes = disk.image_after_power_loss(&mut rng).read(&path(name)).expect("its name is durable");
        for sector in bytes.chunks(SECTOR_BYTES) {
            assert!(sector.iter().all(|byte| *byte == sector[0]), "a sector is torn");
        }
        seen.insert(bytes.chunks(SECTOR_BYTES).map(|sector| sector[0]).collect());
    }
    seen
}

#[test]
fn what_was_synced_survives_every_power_loss() {
    let mut disk = perfect();
    synced_file(&mut disk, "a", 1, 2);
    assert!(disk.is_durable());
    assert_eq!(after_losses(&disk, "a"), BTreeSet::from([vec![1; 16]]));
}

#[test]
fn of_an_unsynced_write_any_sectors_may_survive() {
    let mut disk = perfect();
    let file = synced_file(&mut disk, "a", 1, 1);
    ok(&mut disk, Op::Write { file, at: 0, data: blocks(2, 1) });
    assert_eq!(read(&mut disk, file, 0, BLOCK_BYTES).expect("readable"), vec![2; BLOCK_BYTES]);
    let seen = after_losses(&disk, "a");
    assert!(seen.contains(&vec![1; 8]) && seen.contains(&vec![2; 8]));
    assert!(seen.len() > 60, "only {} of 256 mixtures in 400 losses", seen.len());
    ok(&mut disk, Op::Sync { file });
    assert_eq!(after_losses(&disk, "a"), BTreeSet::from([vec![2; 8]]));
}

#[test]
fn a_write_in_flight_may_survive_or_not() {
    let mut disk = perfect();
    let file = synced_file(&mut disk, "a", 1, 1);
    start(&mut disk, 1, Op::Write { file, at: 0, data: blocks(2, 1) });
    let seen = after_losses(&disk, "a");
    assert!(seen.contains(&vec![1; 8]) && seen.contains(&vec![2; 8]));
}

#[test]
fn each_of_two_unsynced_versions_may_survive_and_also_the_durable_one() {
    let mut disk = perfect();
    let file = synced_file(&mut disk, "a", 1, 1);
    ok(&mut disk, Op::Write { file, at: 0, data: blocks(2, 1) });
    ok(&mut disk, Op::Write { file, at: 0, data: blocks(3, 1) });
    let firsts: BTreeSet<u8> = after_losses(&disk, "a").into_iter().map(|sectors| sectors[0]).collect();
    assert_eq!(firsts, BTreeSet::from([1, 2, 3]));
}

#[test]
fn a_sync_covers_only_what_was_answered_before_it_was_asked() {
    let mut disk = perfect();
    let file = synced_file(&mut disk, "a", 1, 2);
    ok(&mut disk, Op::Write { file, at: 0, data: blocks(2, 1) });
    start(&mut disk, 1, Op::Write { file, at: BLOCK, data: blocks(3, 1) });
    start(&mut disk, 2, Op::Sync { file });
    next(&mut disk);
    next(&mut disk);
    let seen = after_losses(&disk, "a");
    assert!(seen.iter().all(|sectors| sectors[..8] == [2; 8]), "the first write is durable");
    assert!(seen.iter().any(|sectors| sectors[8..] == [1; 8]), "the second may be lost");
}

#[test]
fn a_dsync_write_is_durable_and_takes_no_others_with_it() {
    let mut disk = perfect();
    let plain = synced_file(&mut disk, "a", 1, 3);
    let dsync = open(&mut disk, "a", OpenFlags::dsync(OpenMode::Write));
    ok(&mut disk, Op::Write { file: plain, at: 0, data: blocks(2, 2) });
    ok(&mut disk, Op::Write { file: dsync, at: BLOCK, data: blocks(3, 1) });
    let seen = after_losses(&disk, "a");
    assert!(
        seen.iter().all(|sectors| sectors[8..16] == [3; 8]),
        "an older unsynced write came over a durable one"
    );
    assert!(seen.iter().any(|sectors| sectors[..8] == [1; 8]));
}

#[test]
fn an_appended_tail_may_be_missing_short_or_full_of_zeros() {
    let mut disk = perfect();
    let file = synced_file(&mut disk, "a", 1, 1);
    ok(&mut disk, Op::Write { file, at: BLOCK, data: blocks(2, 1) });
    let seen = after_losses(&disk, "a");
    assert!(seen.iter().all(|sectors| sectors[..8] == [1; 8]));
    assert!(seen.contains(&vec![1; 8]), "the length may be lost");
    let tails: BTreeSet<u8> = seen.iter().flat_map(|sectors| sectors[8..].to_vec()).collect();
    assert_eq!(tails, BTreeSet::from([0, 2]), "a lost sector within the length is zeros");
}

#[test]
fn a_cut_is_durable_with_the_sync_and_not_before() {
    let mut disk = perfect();
    let file = synced_file(&mut disk, "a", 1, 2);
    ok(&mut disk, Op::SetLen { file, len: BLOCK });
    let lens: BTreeSet<usize> = after_losses(&disk, "a").into_iter().map(|sectors| sectors.len()).collect();
    assert_eq!(lens, BTreeSet::from([8, 16]));
    ok(&mut disk, Op::Sync { file });
    assert_eq!(after_losses(&disk, "a"), BTreeSet::from([vec![1; 8]]));
    ok(&mut disk, Op::Presize { file, len: 2 * BLOCK });
    assert_eq!(read(&mut disk, file, BLOCK, BLOCK_BYTES).expect("readable"), vec![0; BLOCK_BYTES]);
}

#[test]
fn what_a_failed_sync_was_to_cover_is_in_doubt_for_ever() {
    let mut disk = perfect();
    let file = synced_file(&mut disk, "a", 1, 1);
    ok(&mut disk, Op::Write { file, at: 0, data: blocks(2, 1) });
    let mut failed = false;
    disk.choose_faults(move |asked| {
        let fail = asked.kind == OpKind::Sync && !std::mem::replace(&mut failed, true);
        fail.then_some(Fault::Error(DiskError::Io { errno: libc::EIO }))
    });
    assert_eq!(run(&mut disk, Op::Sync { file }).expect_err("chosen"), DiskError::Io { errno: libc::EIO });
    ok(&mut disk, Op::Sync { file });
    assert!(after_losses(&disk, "a").contains(&vec![1; 8]), "a later sync made up for the failed one");
    assert!(!disk.is_durable());
}

#[test]
fn a_failed_write_leaves_any_of_its_sectors() {
    let mut disk = perfect();
    let file = synced_file(&mut disk, "a", 1, 4);
    disk.choose_faults(|asked| (asked.kind == OpKind::Write).then_some(Fault::Error(DiskError::NoSpace)));
    let write = Op::Write { file, at: 0, data: blocks(2, 4) };
    assert_eq!(run(&mut disk, write).expect_err("chosen"), DiskError::NoSpace);
    let bytes = read(&mut disk, file, 0, 4 * BLOCK_BYTES).expect("readable");
    let kept = bytes.chunks(SECTOR_BYTES).filter(|sector| sector[0] == 2).count();
    assert!((1..32).contains(&kept), "{kept} of 32 sectors");
}

#[test]
fn a_name_whose_directory_was_not_synced_may_be_missing() {
    let mut disk = perfect();
    let file = create(&mut disk, "a");
    ok(&mut disk, Op::Write { file, at: 0, data: blocks(1, 1) });
    ok(&mut disk, Op::Sync { file });
    let mut rng = SimRng::new(2);
    let seen: BTreeSet<_> = (0..100).map(|_| names(&disk.image_after_power_loss(&mut rng))).collect();
    assert_eq!(seen.len(), 2, "there or not: {seen:?}");
    ok(&mut disk, Op::SyncDir { dir: root() });
    ok(&mut disk, Op::Unlink { path: path("a") });
    let seen: BTreeSet<_> = (0..100).map(|_| names(&disk.image_after_power_loss(&mut rng))).collect();
    assert_eq!(seen.len(), 2, "an unlink needs a sync as well: {seen:?}");
    ok(&mut disk, Op::SyncDir { dir: root() });
    assert!((0..100).all(|_| names(&disk.image_after_power_loss(&mut rng)).is_empty()));
}

#[test]
fn a_file_in_a_directory_that_is_lost_is_lost() {
    let mut disk = perfect();
    ok(&mut disk, Op::MakeDir { path: path("d") });
    synced_file(&mut disk, "d/a", 1, 1);
    let mut rng = SimRng::new(2);
    let seen: BTreeSet<_> = (0..100).map(|_| names(&disk.image_after_power_loss(&mut rng))).collect();
    assert_eq!(seen, BTreeSet::from([BTreeSet::new(), BTreeSet::from(["d/a".to_owned()])]));
}

/// All sets of names that power losses can leave of a rename, with what the names lead to.
fn after_rename(from: &str, to: &str, synced: &[&str]) -> BTreeSet<Vec<(String, u8)>> {
    let mut disk = perfect();
    for dir in ["d", "e"] {
        ok(&mut disk, Op::MakeDir { path: path(dir) });
    }
    ok(&mut disk, Op::SyncDir { dir: root() });
    synced_file(&mut disk, from, 1, 1);
    synced_file(&mut disk, to, 2, 1);
    ok(&mut disk, Op::Rename { from: path(from), to: path(to) });
    for dir in synced {
        ok(&mut disk, Op::SyncDir { dir: path(dir) });
    }
    let mut rng = SimRng::new(3);
    (0..200)
        .map(|_| {
            let image = disk.image_after_power_loss(&mut rng);
            let first = |path: &DiskPath| image.read(path).expect("listed")[0];
            image.files().iter().map(|(path, _)| (path.as_str().to_owned(), first(path))).collect()
        })
        .collect()
}

#[test]
fn a_rename_within_a_directory_is_whole_or_did_not_happen() {
    let before = vec![("d/a".to_owned(), 1), ("d/b".to_owned(), 2)];
    let after = vec![("d/b".to_owned(), 1)];
    assert_eq!(after_rename("d/a", "d/b", &[]), BTreeSet::from([before, after.clone()]));
    assert_eq!(after_rename("d/a", "d/b", &["d"]), BTreeSet::from([after]));
}

#[test]
fn a_rename_between_directories_may_leave_both_names_but_never_none() {
    let before = vec![("d/a".to_owned(), 1), ("e/b".to_owned(), 2)];
    let half = vec![("d/a".to_owned(), 1), ("e/b".to_owned(), 1)];
    let after = vec![("e/b".to_owned(), 1)];
    assert_eq!(after_rename("d/a", "e/b", &[]), BTreeSet::from([before, half.clone(), after.clone()]));
    assert_eq!(after_rename("d/a", "e/b", &["e"]), BTreeSet::from([half, after.clone()]));
    assert_eq!(after_rename("d/a", "e/b", &["e", "d"]), BTreeSet::from([after.clone()]));
    assert_eq!(after_rename("d/a", "e/b", &["d"]), BTreeSet::from([after]));
}

#[test]
fn a_full_volume_refuses_what_it_has_no_room_for() {
    let mut disk = SimDisk::new(1, &[4 * BLOCK], DiskFaults::none(US));
    let file = create(&mut disk, "a");
    ok(&mut disk, Op::Presize { file, len: 3 * BLOCK });
    ok(&mut disk, Op::Write { file, at: 0, data: blocks(1, 3) });
    let space = |disk: &mut SimDisk| match ok(disk, Op::Space { volume: VOLUME }) {
        Outcome::Space(space) => space.free_bytes,
        other => panic!("{other:?}"),
    };
    assert_eq!(space(&mut disk), BLOCK);
    let too_much = Op::Write { file, at: 2 * BLOCK, data: blocks(1, 3) };
    assert_eq!(run(&mut disk, too_much).expect_err("full"), DiskError::NoSpace);
    ok(&mut disk, Op::Unlink { path: path("a") });
    assert_eq!(space(&mut disk), BLOCK, "an open file keeps its space");
    ok(&mut disk, Op::Close { file });
    assert_eq!(space(&mut disk), 4 * BLOCK);
}

#[test]
fn errors_name_what_is_wrong() {
    let mut disk = perfect();
    let plain = OpenFlags::plain;
    let file = create(&mut disk, "a");
    let reader = open(&mut disk, "a", plain(OpenMode::Read));
    ok(&mut disk, Op::MakeDir { path: path("d") });
    create(&mut disk, "d/x");
    ok(&mut disk, Op::MakeDir { path: path("e") });
    let other_volume = DiskPath::new(VolumeId(7), "a").expect("a path");
    let wrong = [
        (Op::Open { path: path("a"), flags: plain(OpenMode::CreateNew) }, DiskError::Exists),
        (Op::Open { path: path("b"), flags: plain(OpenMode::Write) }, DiskError::Missing),
        (Op::Open { path: path("no/b"), flags: plain(OpenMode::Create) }, DiskError::Missing),
        (Op::Open { path: other_volume, flags: plain(OpenMode::Create) }, DiskError::NoVolume),
        (Op::MakeDir { path: path("d") }, DiskError::Exists),
        (Op::RemoveDir { path: path("d") }, DiskError::NotEmpty),
        (Op::Unlink { path: path("b") }, DiskError::Missing),
        (Op::Rename { from: path("b"), to: path("c") }, DiskError::Missing),
        (Op::Rename { from: path("e"), to: path("d") }, DiskError::NotEmpty),
        (Op::Rename { from: path("d"), to: path("d/d") }, DiskError::Io { errno: libc::EINVAL }),
        (Op::Write { file: reader, at: 0, data: blocks(1, 1) }, DiskError::WrongMode),
        (Op::Write { file, at: 1, data: blocks(1, 1) }, DiskError::Misaligned),
        (Op::Sync { file: FileId(999) }, DiskError::StaleFile),
    ];
    for (op, error) in wrong {
        let text = format!("{op:?}");
        assert_eq!(run(&mut disk, op).expect_err(&text), error, "{text}");
    }
    ok(&mut disk, Op::Close { file });
    assert_eq!(run(&mut disk, Op::Len { file }).expect_err("closed"), DiskError::StaleFile);
}

#[test]
fn a_directory_takes_the_place_of_an_empty_one_whatever_a_power_loss_does() {
    for seed in 0..32 {
        let mut disk = perfect();
        ok(&mut disk, Op::MakeDir { path: path("d") });
        ok(&mut disk, Op::SyncDir { dir: DiskPath::root(VOLUME) });
        ok(&mut disk, Op::MakeDir { path: path("e") });
        ok(&mut disk, Op::Rename { from: path("e"), to: path("d") });
        disk.crash(&mut SimRng::new(seed));
        assert_eq!(run(&mut disk, Op::MakeDir { path: path("d") }).expect_err("there"), DiskError::Exists);
    }
}

#[test]
fn operations_beyond_the_bound_are_given_back() {
    let mut disk = perfect();
    disk.set_ops_max(2);
    start(&mut disk, 1, Op::Space { volume: VOLUME });
    start(&mut disk, 2, Op::Space { volume: VOLUME });
    let Full { token, op } =
        disk.submit(Token(3), Op::SyncDir { dir: root() }).expect_err("two are in flight");
    assert!(token == Token(3) && matches!(op, Op::SyncDir { .. }));
    assert_eq!((next(&mut disk).token, next(&mut disk).token), (Token(1), Token(2)));
    start(&mut disk, 3, op);
    assert_eq!(disk.in_flight(), 1);
}

#[test]
fn a_close_waits_for_what_is_in_flight_and_lets_nothing_follow() {
    let mut disk = perfect();
    let file = create(&mut disk, "a");
    start(&mut disk, 1, Op::Write { file, at: 0, data: blocks(1, 1) });
    start(&mut disk, 2, Op::Close { file });
    start(&mut disk, 3, Op::Len { file });
    assert_eq!(next(&mut disk).token, Token(1));
    let answers = [next(&mut disk), next(&mut disk)];
    for Done { token, result } in answers {
        assert_eq!(result.err(), (token == Token(3)).then_some(DiskError::StaleFile));
    }
    assert_eq!(disk.in_flight(), 0);
}

#[test]
fn a_lock_excludes_others_until_it_is_given_up_or_the_wait_is_over() {
    let mut disk = perfect();
    let writer = create(&mut disk, "a");
    let second = open(&mut disk, "a", OpenFlags::dsync(OpenMode::Write));
    let lock = |file, kind, millis| Op::Lock { file, kind, wait: Duration::from_millis(millis) };
    ok(&mut disk, lock(writer, LockKind::Exclusive, 0));
    assert_eq!(run(&mut disk, lock(second, LockKind::Shared, 0)).expect_err("held"), DiskError::Locked);
    ok(&mut disk, lock(writer, LockKind::Shared, 0));
    ok(&mut disk, lock(second, LockKind::Shared, 0));
    let third = open(&mut disk, "a", OpenFlags::plain(OpenMode::Read));
    let before = disk.now();
    assert_eq!(run(&mut disk, lock(third, LockKind::Exclusive, 5)).expect_err("held"), DiskError::Locked);
    assert_eq!(disk.now().saturating_since(before), Duration::from_millis(5));
    start(&mut disk, 1, lock(third, LockKind::Exclusive, 5_000));
    ok(&mut disk, Op::Close { file: writer });
    ok(&mut disk, Op::Close { file: second });
    assert_eq!(next(&mut disk).token, Token(1));
    assert!(disk.now().saturating_since(before) < Duration::from_secs(1), "the lock came when it was free");
}

#[test]
fn the_writes_of_a_killed_process_outlive_it_and_keep_its_locks() {
    let mut disk = disk(DiskFaults::none(Duration::from_millis(3)));
    let file = synced_file(&mut disk, "a", 1, 1);
    let wait = Duration::from_secs(5);
    ok(&mut disk, Op::Lock { file, kind: LockKind::Exclusive, wait });
    start(&mut disk, 1, Op::Write { file, at: 0, data: blocks(2, 1) });
    disk.kill();
    assert_eq!((disk.in_flight(), disk.poll_done().is_none()), (0, true));
    let killed = disk.now();
    disk.set_faults(DiskFaults::none(US));
    let next = create(&mut disk, "a");
    assert_ne!(next, file);
    ok(&mut disk, Op::Lock { file: next, kind: LockKind::Exclusive, wait });
    assert_eq!(disk.now().saturating_since(killed), Duration::from_millis(3));
    assert_eq!(read(&mut disk, next, 0, BLOCK_BYTES).expect("readable"), vec![2; BLOCK_BYTES]);
    assert_eq!(run(&mut disk, Op::Len { file }).expect_err("of the dead process"), DiskError::StaleFile);
}

#[test]
fn a_crash_answers_nothing_and_closes_everything() {
    let mut disk = perfect();
    let file = synced_file(&mut disk, "a", 1, 1);
    start(&mut disk, 1, Op::Write { file, at: 0, data: blocks(2, 1) });
    disk.crash(&mut SimRng::new(1));
    assert_eq!((disk.in_flight(), disk.poll_done().is_none(), disk.is_durable()), (0, true, true));
    assert_eq!(run(&mut disk, Op::Len { file }).expect_err("not open"), DiskError::StaleFile);
    create(&mut disk, "a");
}

#[test]
#[should_panic(expected = "in flight at once")]
fn two_writes_of_the_same_bytes_in_flight_are_a_mistake() {
    let mut disk = perfect();
    let file = create(&mut disk, "a");
    start(&mut disk, 1, Op::Write { file, at: 0, data: blocks(1, 2) });
    start(&mut disk, 2, Op::Write { file, at: BLOCK, data: blocks(2, 1) });
}

#[test]
fn reads_may_be_short_or_wrong_and_the_disk_stays_right() {
    let mut disk = perfect();
    let file = synced_file(&mut disk, "a", 1, 4);
    disk.set_faults(DiskFaults { short_read_ppm: 1_000_000, ..DiskFaults::none(US) });
    let lens: BTreeSet<usize> =
        (0..200).map(|_| read(&mut disk, file, 0, 4 * BLOCK_BYTES).expect("readable").len()).collect();
    assert!(lens.iter().all(|len| *len > 0 && *len < 4 * BLOCK_BYTES && len % SECTOR_BYTES == 0), "{lens:?}");
    assert!(lens.len() > 20);
    disk.set_faults(DiskFaults { flip_ppm: 1_000_000, ..DiskFaults::none(US) });
    let bytes = read(&mut disk, file, 0, 4 * BLOCK_BYTES).expect("readable");
    let wrong: u32 = bytes.iter().map(|byte| (byte ^ 1).count_ones()).sum();
    assert_eq!(wrong, 1);
    disk.set_faults(DiskFaults { read_error_ppm: 1_000_000, ..DiskFaults::none(US) });
    assert_eq!(read(&mut disk, file, 0, 1).expect_err("chosen"), DiskError::Io { errno: libc::EIO });
    disk.set_faults(DiskFaults::none(US));
    assert_eq!(read(&mut disk, file, 0, 8 * BLOCK_BYTES).expect("readable"), vec![1; 4 * BLOCK_BYTES]);
    assert!(read(&mut disk, file, 4 * BLOCK, 1).expect("readable").is_empty(), "nothing is at the end");
}

#[test]
fn a_stalled_operation_is_answered_late_and_others_pass_it() {
    let mut disk = perfect();
    let file = create(&mut disk, "a");
    disk.choose_faults(|asked| {
        (asked.kind == OpKind::Write).then_some(Fault::Stall(Duration::from_secs(30)))
    });
    start(&mut disk, 1, Op::Write { file, at: 0, data: blocks(1, 1) });
    start(&mut disk, 2, Op::Space { volume: VOLUME });
    assert_eq!(next(&mut disk).token, Token(2));
    let before = disk.now();
    assert_eq!(next(&mut disk).token, Token(1));
    assert!(disk.now().saturating_since(before) > Duration::from_secs(29));
}

#[test]
fn damage_at_rest_changes_exactly_what_it_names() {
    let mut disk = perfect();
    synced_file(&mut disk, "a", 1, 1);
    let clean = disk.image();
    let mut image = clean.clone();
    image.flip_bit(&path("a"), 8 * 700 + 3).expect("there");
    let bytes = image.read(&path("a")).expect("there");
    assert_eq!((bytes[700], bytes.iter().filter(|byte| **byte != 1).count()), (1 ^ 8, 1));
    image.zero_sector(&path("a"), 1).expect("there");
    image.zero_sector(&path("a"), 100).expect("behind the end");
    image.flip_bit(&path("a"), u64::MAX).expect("behind the end");
    let bytes = image.read(&path("a")).expect("there");
    assert_eq!(bytes.len(), BLOCK_BYTES);
    assert!(bytes.iter().enumerate().all(|(at, byte)| (*byte == 0) == (512..1024).contains(&at)));
    assert_ne!(image.fingerprint(), clean.fingerprint());
    assert_eq!(image.flip_bit(&path("b"), 0), Err(DiskError::Missing));
}

/// A run of random operations, the same for the same seed; returns its last image's fingerprint and its answers.
fn random_run(seed: u64) -> (u64, Vec<String>, Tick) {
    let mut rng = SimRng::new(seed);
    let faults = DiskFaults { write_error_ppm: 50_000, sync_error_ppm: 50_000, ..DiskFaults::slow(US * 50) };
    let mut disk = SimDisk::new(seed, &[1 << 24], faults);
    let files: Vec<FileId> = (0..4).map(|at| create(&mut disk, &format!("f{at}"))).collect();
    let mut log = Vec::new();
    for token in 0..500 {
        let file = files[rng.below(4) as usize];
        let op = match rng.below(5) {
            0 => Op::Sync { file },
            1 => Op::SyncDir { dir: root() },
            2 => Op::Rename {
                from: path(&format!("f{}", rng.below(6))),
                to: path(&format!("f{}", rng.below(6))),
            },
            _ => Op::Write { file, at: token * BLOCK, data: blocks(token as u8, 1) },
        };
        start(&mut disk, token, op);
        if disk.in_flight() > 8 {
            log.push(format!("{:?}", next(&mut disk)));
        }
    }
    disk.crash(&mut rng);
    (disk.image().fingerprint(), log, disk.now())
}

#[test]
fn one_seed_is_one_history() {
    assert_eq!(random_run(5), random_run(5));
    assert_ne!(random_run(5).0, random_run(6).0);
}

/// One value per file, each replaced by writing a new file and renaming it over: the shape every small state file has.
/// With `sync` the new bytes are synced before the rename.
fn replace_by_rename(sync: bool) -> (Trace, Vec<(usize, u8)>) {
    let start_image = DiskImage::empty(&[1 << 24]);
    let inner = SimDisk::from_image(3, start_image.clone(), DiskFaults::none(US));
    let mut disk = TraceDisk::new(inner, start_image);
    let mut acked = vec![(0, 0)];
    let ask = |disk: &mut TraceDisk<SimDisk>, op| {
        start(disk, 1, op);
        loop {
            if let Some(done) = disk.poll_done() {
                return done.result.expect("the operation works");
            }
            let due = disk.inner().next_due().expect("in flight");
            disk.inner().advance_to(due);
        }
    };
    for value in 1..6 {
        let flags = OpenFlags::plain(OpenMode::Create);
        let Outcome::Opened { file, .. } = ask(&mut disk, Op::Open { path: path("new"), flags }) else {
            panic!()
        };
        ask(&mut disk, Op::Write { file, at: 0, data: blocks(value, 2) });
        if sync {
            ask(&mut disk, Op::Sync { file });
        }
        ask(&mut disk, Op::Close { file });
        ask(&mut disk, Op::Rename { from: path("new"), to: path("state") });
        ask(&mut disk, Op::SyncDir { dir: root() });
        acked.push((disk.position(), value));
    }
    (disk.into_parts().1, acked)
}

/// The images of a trace in which the state is older than acknowledged, or no whole value.
fn bad_images(trace: &Trace, acked: &[(usize, u8)]) -> usize {
    let mut rng = SimRng::new(4);
    let mut replay = trace.replay();
    let mut bad = 0;
    for position in 0..=trace.events() {
        replay.advance_to(position);
        for _ in 0..20 {
            let bytes = replay.image_after_power_loss(&mut rng).read(&path("state")).unwrap_or_default();
            let least = acked.iter().rfind(|(at, _)| *at <= position).map_or(0, |(_, value)| *value);
            let value = bytes.first().copied().unwrap_or_default();
            let whole = value == 0 && bytes.is_empty() || bytes == vec![value; 2 * BLOCK_BYTES];
            bad += usize::from(!whole || value < least);
        }
    }
    bad
}

#[test]
fn images_of_a_trace_keep_what_was_acknowledged_and_find_a_missing_sync() {
    let (trace, acked) = replace_by_rename(true);
    assert_eq!(bad_images(&trace, &acked), 0);
    let (trace, acked) = replace_by_rename(false);
    let bad = bad_images(&trace, &acked);
    assert!(bad > 50, "a rename without a sync went unnoticed in all but {bad} images");
}

#[test]
fn an_image_follows_from_trace_position_and_seed() {
    let (trace, _) = replace_by_rename(true);
    let middle = trace.events() / 2;
    let one = trace.image(middle, &mut SimRng::new(8)).fingerprint();
    assert_eq!(one, trace.image(middle, &mut SimRng::new(8)).fingerprint());
    let mut replay = trace.replay();
    replay.advance_to(3);
    replay.advance_to(middle);
    assert_eq!(
        (replay.position(), replay.image_after_power_loss(&mut SimRng::new(8)).fingerprint()),
        (middle, one)
    );
    replay.advance_to(usize::MAX);
    assert_eq!(replay.image_after_kill().read(&path("state")), Ok(vec![5; 2 * BLOCK_BYTES]));
}

#[test]
fn an_image_can_be_crashed_again_while_it_is_repaired() {
    let (trace, _) = replace_by_rename(true);
    let mut rng = SimRng::new(10);
    let image = trace.image(trace.events(), &mut rng);
    let inner = SimDisk::from_image(1, image.clone(), DiskFaults::none(US));
    let mut disk = TraceDisk::new(inner, image.clone());
    start(&mut disk, 1, Op::Unlink { path: path("state") });
    let due = disk.inner().next_due().expect("in flight");
    disk.inner().advance_to(due);
    assert!(disk.poll_done().is_some());
    let (_, second) = disk.into_parts();
    assert_eq!(second.image(0, &mut rng).fingerprint(), image.fingerprint());
    let seen: BTreeSet<_> = (0..50).map(|_| names(&second.image(2, &mut rng)).len()).collect();
    assert_eq!(seen, BTreeSet::from([0, 1]));
}
