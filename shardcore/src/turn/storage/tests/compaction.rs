//! Logs of caches, counters and groups that become shorter while they are written, through kills and losses of power.

use super::caches::{CACHE, answers, ask, delete, get, key, put, send, serve};
use super::*;
use crate::projection::cache::Condition;
use crate::projection::group::Seek;
use crate::shard::ask::{Ask, AskRefused, GroupWhat, Reply};
use crate::turn::counters::Counter;

const KEYS: usize = 100;
const KIB: u64 = 1 << 10;

/// Everything that was asked of a cache, in the order of its log, and how much of it was answered.
#[derive(Default)]
struct History {
    /// Key, and the number in its value; none for a delete.
    writes: Vec<(usize, Option<usize>)>,
    adds: Vec<usize>,
    answered: [usize; 2],
    /// What had been answered when, for logs that answer before they sync.
    marks: VecDeque<(Tick, [usize; 2])>,
}

fn value_of(number: usize) -> Vec<u8> {
    let mut value = vec![b'.'; 700];
    value[..8].copy_from_slice(&(number as u64).to_le_bytes());
    value
}

impl History {
    fn write(&mut self, world: &mut World, rng: &mut SimRng) {
        let number = self.writes.len();
        let of = rng.below(KEYS as u64) as usize;
        // A delete of nothing is answered at once: it is not in the log.
        let there =
            self.writes.iter().rev().find(|(key, _)| *key == of).is_some_and(|(_, put)| put.is_some());
        let deletes = there && rng.below(10) == 0;
        let ask = if deletes { delete(of) } else { put(of, &value_of(number)) };
        send(world, 2 * number as u64, ask);
        self.writes.push((of, (!deletes).then_some(number)));
        let add = self.adds.len();
        let counter = rng.below(KEYS as u64) as usize;
        let ask = Ask::CounterAdd { key: key(counter), delta: 1, number: None };
        send(world, 2 * add as u64 + 1, ask);
        self.adds.push(counter);
    }

    /// Answers come in the order of the log.
    fn take_answers(&mut self, world: &mut World) {
        for (token, reply) in answers(world) {
            let of = (token % 2) as usize;
            let fine = matches!(reply, Some(Reply::Written | Reply::Value { .. } | Reply::Sum(Some(_))));
            assert!(fine, "{token}: {reply:?}");
            assert_eq!((token / 2) as usize, self.answered[of], "in order");
            self.answered[of] += 1;
        }
        self.marks.push_back((world.now, self.answered));
    }

    /// What must be there after a loss of power.
    fn durable(&self, policy: Fsync, now: Tick) -> [usize; 2] {
        let old = |(at, _): &&(Tick, [usize; 2])| *at + Duration::from_secs(1) < now;
        match policy {
            Fsync::OnCommit => self.answered,
            Fsync::Periodic => self.marks.iter().rev().find(old).map_or([0; 2], |(_, answered)| *answered),
            Fsync::None => [0; 2],
        }
    }

    /// The values and sums there are are those of one moment, which is not before `least`. What is behind it never was.
    fn check(&mut self, world: &mut World, least: [usize; 2]) {
        let mut found = (vec![None; KEYS], vec![0; KEYS]);
        for number in 0..KEYS {
            send(world, 2 * number as u64, get(number));
            send(world, 2 * number as u64 + 1, Ask::CounterGet { key: key(number) });
        }
        world.run(Duration::from_millis(200));
        let told = answers(world);
        assert_eq!(told.len(), 2 * KEYS);
        for (token, reply) in told {
            let number = (token / 2) as usize;
            match reply {
                Some(Reply::Value { value, .. }) => {
                    found.0[number] = value.map(|value| {
                        let number = u64::from_le_bytes(value[..8].try_into().expect("8 bytes")) as usize;
                        assert_eq!(value, value_of(number));
                        number
                    });
                }
                Some(Reply::Sum(sum)) => found.1[number] = sum.unwrap_or(0),
                other => panic!("{other:?}"),
            }
        }
        let mut state = vec![None; KEYS];
        let moments = (0..=self.writes.len()).filter(|end| {
            if let Some((of, number)) = end.checked_sub(1).map(|last| self.writes[last]) {
                state[of] = number;
            }
            *end >= least[0] && state == found.0
        });
        let writes = moments.last().unwrap_or_else(|| panic!("no moment after {} has these", least[0]));
        let mut sums = vec![0; KEYS];
        let moments = (0..=self.adds.len()).filter(|end| {
            if let Some(last) = end.checked_sub(1) {
                sums[self.adds[last]] += 1;
            }
            *end >= least[1] && sums == found.1
        });
        let adds = moments.last().unwrap_or_else(|| panic!("no moment after {} has these sums", least[1]));
        self.writes.truncate(writes);
        self.adds.truncate(adds);
        (self.answered, self.marks) = ([writes, adds], VecDeque::new());
    }
}

/// Files of the logs of the first core, and where they begin.
fn disk_use(world: &World) -> (u64, [u64; 2]) {
    let store = world.cores[0].store.as_ref().expect("there is a disk");
    let bytes = store.engines().map(|engine| engine.disk_use().1).sum();
    let starts = world.cores[0].caches[&CACHE].logs().map(|at| store.log(at).expect("open").start().0);
    (bytes, starts.collect::<Vec<_>>().try_into().expect("two logs"))
}

/// The process dies, or power is lost; then it is the `boot`th start of the machine.
fn after_end(world: World, policy: Fsync, (power, boot): (bool, u8)) -> World {
    let World { mut disk, .. } = world;
    if power {
        disk.crash(&mut SimRng::new(disk.counts().answered));
    } else {
        disk.kill();
    }
    let (mut world, logs) = World::over(disk, policy, boot);
    serve(&mut world, logs);
    world.run(Duration::from_millis(50));
    world
}

#[test]
fn what_was_settled_is_there_after_an_end_at_any_moment_of_compaction_and_nothing_else() {
    let mut trimmed = 0;
    for (seed, policy) in (0..9).zip([Fsync::OnCommit, Fsync::Periodic, Fsync::None].into_iter().cycle()) {
        println!("seed {seed} {policy:?}");
        let mut rng = SimRng::new(seed);
        let mut world = World::new(policy);
        serve(&mut world, Vec::new());
        world.run(Duration::from_millis(20));
        let (mut history, mut boot) = (History::default(), 1);
        for _ in 0..6 {
            let end = world.now + Duration::from_millis(800 + rng.below(1_500));
            while world.now < end {
                (0..rng.below(40)).for_each(|_| history.write(&mut world, &mut rng));
                world.run(Duration::from_micros(1 + rng.below(12_000)));
                history.take_answers(&mut world);
            }
            trimmed += disk_use(&world).1.iter().filter(|start| **start > 0).count();
            let power = rng.below(2) == 0;
            let least = if power { history.durable(policy, world.now) } else { history.answered };
            boot += u8::from(power);
            world = after_end(world, policy, (power, boot));
            history.check(&mut world, least);
        }
    }
    assert!(trimmed > 45, "logs began behind their first record {trimmed} times");
}

#[test]
fn a_log_that_is_rewritten_for_long_stays_short_in_every_policy() {
    for policy in [Fsync::OnCommit, Fsync::Periodic, Fsync::None] {
        let mut rng = SimRng::new(5);
        let mut world = World::new(policy);
        serve(&mut world, Vec::new());
        world.run(Duration::from_millis(20));
        let mut history = History::default();
        let mut most = 0;
        for _ in 0..3_000 {
            (0..10).for_each(|_| history.write(&mut world, &mut rng));
            world.run(Duration::from_millis(5));
            history.take_answers(&mut world);
            most = most.max(disk_use(&world).0);
        }
        assert_eq!(history.answered, [30_000; 2]);
        // 24 MB of values and 3 MB of adds were written; some 70 KB live.
        assert!(most < 7 * MIB, "{most} bytes of files at most");
        world.run(Duration::from_secs(3));
        let (bytes, starts) = disk_use(&world);
        assert!(bytes < 5 * MIB && starts.iter().all(|start| *start > 10_000), "{bytes} from {starts:?}");
        let counted = |counter| world.cores[0].counters.get(counter);
        assert!(counted(Counter::LogCompactedSegments) > 10);
        let copied = counted(Counter::LogCompactedBytes);
        assert!((20 * KIB..8 * MIB).contains(&copied), "{copied} bytes copied");
        assert_eq!(counted(Counter::LogsCompacting), 0, "it comes to rest");
        history.check(&mut world, [30_000; 2]);
        let mut world = after_end(world, policy, (false, 1));
        history.check(&mut world, [30_000; 2]);
    }
}

/// A core alone on a disk of so many bytes.
fn small_disk(bytes: u64) -> World {
    let disk = SimDisk::new(1, &[bytes], DiskFaults::none(Duration::from_micros(100)));
    let (mut world, _) = World::over(disk, Fsync::OnCommit, 1);
    serve(&mut world, Vec::new());
    world.run(Duration::from_millis(20));
    world
}

#[test]
fn a_full_volume_is_made_emptier_by_compaction_and_writes_go_on_by_themselves() {
    let mut world = small_disk(64 * MIB);
    let full = |reply: &Option<Reply>| {
        matches!(reply, Some(Reply::Refused(AskRefused::NotWritten(NotWritten::NoSpace))))
    };
    // Of all segments a part lives, so none goes before something of it is written once more.
    let big = |number: usize| vec![number as u8; 100 << 10];
    let (mut number, mut lives) = (0, Vec::new());
    let refused = loop {
        let of = if number % 4 == 0 { 1_000 + number } else { number % 4 };
        send(&mut world, number as u64, put(of, &big(number)));
        if number % 4 == 0 {
            lives.push(number);
        }
        world.run(Duration::from_micros(700));
        number += 1;
        let told = answers(&mut world);
        if told.iter().any(|(_, reply)| full(reply)) {
            break number;
        }
        assert!(number < 2_000 && world.now < Tick::ZERO + Duration::from_secs(60));
    };
    assert!(refused > 200, "{refused}");
    world.run(Duration::from_secs(10));
    answers(&mut world);
    assert_eq!(ask(&mut world, put(1, b"again")), Reply::Written, "there is space");
    let mut world = after_end(world, Fsync::OnCommit, (true, 2));
    // The newest may be those that were refused.
    for number in lives.iter().take(lives.len() - 4) {
        let Reply::Value { value, .. } = ask(&mut world, get(1_000 + number)) else { panic!() };
        assert_eq!(value.map(|value| value.to_vec()), Some(big(*number)), "{number}");
    }
}

#[test]
fn what_expired_or_was_deleted_does_not_come_back_when_its_log_is_compacted() {
    let mut world = small_disk(256 * MIB);
    let lives = |number: usize, ttl_ms| Ask::CachePut {
        key: key(number),
        value: value_of(number).into(),
        ttl_ms,
        condition: Condition::Always,
    };
    for number in 0..300 {
        let ttl = (number % 3 == 0).then_some(1_000);
        send(&mut world, number as u64, lives(number, ttl));
    }
    world.run(Duration::from_millis(50));
    for number in (1..300).step_by(3) {
        send(&mut world, number as u64, delete(number));
    }
    world.run(Duration::from_millis(50));
    assert_eq!(answers(&mut world).len(), 400);
    world.unix_ms += 2_000;
    for round in 0..40 {
        for number in 1_000..1_100 {
            send(&mut world, number as u64, put(number, &value_of(round)));
        }
        world.run(Duration::from_millis(50));
    }
    world.run(Duration::from_secs(2));
    assert_eq!(answers(&mut world).len(), 4_000);
    assert!(disk_use(&world).1[0] > 1_000, "all of the first records are gone");
    let mut world = after_end(world, Fsync::OnCommit, (false, 1));
    // The clock was set back meanwhile.
    world.unix_ms = 1_000;
    for number in 0..300 {
        let Reply::Value { value, .. } = ask(&mut world, get(number)) else { panic!() };
        assert_eq!(value.is_some(), number % 3 == 2, "{number}");
    }
}

#[test]
fn damage_that_compaction_meets_stops_it_and_nothing_goes() {
    let mut world = small_disk(256 * MIB);
    for round in 0..8 {
        for number in 0..100 {
            send(&mut world, number as u64, put(number, &value_of(round)));
        }
        world.run(Duration::from_millis(20));
    }
    world.disk.choose_faults(|asked| {
        let segment = asked.path.is_some_and(|path| path.as_str().contains("shards/"));
        (segment && asked.kind == OpKind::Read).then_some(Fault::Error(DiskError::Io { errno: 5 }))
    });
    for round in 8..40 {
        for number in 0..100 {
            send(&mut world, number as u64, put(number, &value_of(round)));
        }
        world.run(Duration::from_millis(20));
    }
    world.run(Duration::from_secs(2));
    assert_eq!(disk_use(&world).1[0], 0, "what cannot be read may be all there is");
    assert_eq!(answers(&mut world).len(), 4_000, "writes go on");
    world.disk.choose_faults(|_| None);
    let mut world = after_end(world, Fsync::OnCommit, (false, 1));
    world.run(Duration::from_secs(2));
    assert!(disk_use(&world).1[0] > 0, "the next start tries again");
    for number in 0..100 {
        let Reply::Value { value, .. } = ask(&mut world, get(number)) else { panic!() };
        assert_eq!(value.map(|value| value.to_vec()), Some(value_of(39)));
    }
}

#[test]
fn a_log_of_groups_stays_short_and_what_was_acked_does_not_come_again() {
    const RECORDS: u64 = 1_000;
    for policy in [Fsync::OnCommit, Fsync::Periodic, Fsync::None] {
        let mut rng = SimRng::new(8);
        let mut world = groups::world(policy, RECORDS);
        let mut trimmed = 0;
        for round in 0..40 {
            let moved = groups::ask(&mut world, GroupWhat::Seek { to: Seek::Earliest, if_new: false });
            assert!(matches!(moved, Reply::Position { .. }), "{moved:?}");
            let mut handed = groups::polled(&mut world, RECORDS as u32);
            assert_eq!(handed.len() as u64, RECORDS);
            let mut acked = Vec::new();
            while handed.len() > 100 {
                for _ in 0..50 {
                    let (offset, ..) = handed.swap_remove(rng.below(handed.len() as u64) as usize);
                    groups::send(&mut world, offset, GroupWhat::Ack { offset: Offset(offset), count: 1 });
                }
                world.run(Duration::from_millis(5));
                for (offset, reply) in groups::answers(&mut world) {
                    assert_eq!(reply, Reply::Written);
                    acked.push(offset);
                }
            }
            trimmed += usize::from(groups_log(&world).1 > 0);
            if round % 5 == 4 {
                world = groups::restart(world, policy);
                let again = groups::polled(&mut world, RECORDS as u32);
                assert!(again.iter().all(|(offset, ..)| !acked.contains(offset)), "one comes again");
                assert!(again.len() >= handed.len(), "{} of {}", again.len(), handed.len());
            }
        }
        assert!(trimmed > 10, "{trimmed}");
        world.run(Duration::from_secs(3));
        let (bytes, start) = groups_log(&world);
        // 36,000 acks took 4 MB.
        assert!(bytes < 2 * MIB && start > 20_000, "{bytes} from {start}");
    }
}

/// Bytes of the files of the log of groups, and where it begins.
fn groups_log(world: &World) -> (u64, u64) {
    let store = world.cores[0].store.as_ref().expect("there is a disk");
    let at = world.cores[0].groups.values().next().expect("they were asked for").log();
    let log = store.log(at).expect("it is open");
    (log.disk_bytes(), log.start().0)
}
