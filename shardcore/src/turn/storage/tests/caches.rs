//! Shards of caches over logs, as another core sees them.

use bytes::Bytes;
use felix_wire::id::{ProducerId, Sequence};

use super::*;
use crate::projection::cache::Condition;
use crate::shard::ask::{Ask, AskRefused, AskToken, Reply};
use crate::shard::mail::NumberRefusal;
use crate::turn::counters::Counter;

pub(super) const CACHE: ShardId = ShardId { stream: StreamUid(77), shard: ShardIndex(0) };

pub(super) fn cache_route() -> Arc<StreamRoute> {
    let owner = Owner::Here { core: CoreId(0), generation: Generation(1) };
    Arc::new(StreamRoute {
        resource: Resource::Cache,
        uid: CACHE.stream,
        name: StreamName { tenant: "t".into(), namespace: "n".into(), stream: "c".into() },
        incarnation: Incarnation(1),
        mapping: KeyMapping::Modulo,
        log: Some(Retention::default()),
        owners: vec![owner],
    })
}

/// The first core leads the cache, whose logs were found or are new.
pub(super) fn serve(world: &mut World, mut found: Vec<LogState>) {
    let route = cache_route();
    for key in route.log_keys(ShardIndex(0)) {
        let source = match found.iter().position(|log| log.key == key) {
            Some(at) => LogSource::Recovered(Box::new(found.swap_remove(at))),
            None => LogSource::New,
        };
        world.cores[0].handle_admin(world.now, ToCore::Log(LogOrder::Open { key, volume: 0, source }));
    }
    let routes = Arc::new(Routes::new(1, [route], [Arc::from("t")]));
    for core in &mut world.cores {
        core.handle_admin(world.now, ToCore::Routes(Arc::clone(&routes)));
    }
}

pub(super) fn open(policy: Fsync) -> World {
    let mut world = World::new(policy);
    serve(&mut world, Vec::new());
    world.run(Duration::from_millis(20));
    world
}

/// The process dies, and another one serves the cache.
pub(super) fn restart(mut world: World, policy: Fsync) -> World {
    world.disk.kill();
    let (mut world, logs) = World::over(world.disk, policy, 1);
    serve(&mut world, logs);
    world.run(Duration::from_millis(50));
    world
}

pub(super) fn send(world: &mut World, token: u64, ask: Ask) {
    let what = ShardInput::Ask { token: AskToken(token), ask };
    let to = ToShard { shard: CACHE, generation: Generation(1), what };
    world.cores[0].set_time(world.unix_ms);
    world.cores[0].handle_mail(world.now, ELSEWHERE, Mail::ToShard(to));
}

/// What was answered since the last call, by token.
pub(super) fn answers(world: &mut World) -> Vec<(u64, Option<Reply>)> {
    let told = std::mem::take(&mut world.answers).into_iter().map(|answer| match answer {
        ShardOutput::Answered { token, reply } => (token.0, Some(reply)),
        ShardOutput::AskBack { token, .. } => (token.0, None),
        other => panic!("another answer: {other:?}"),
    });
    told.collect()
}

pub(super) fn ask(world: &mut World, ask: Ask) -> Reply {
    send(world, 1, ask);
    world.run(Duration::from_millis(20));
    let answers = answers(world);
    let [(1, Some(reply))] = &answers[..] else { panic!("not one answer: {answers:?}") };
    reply.clone()
}

pub(super) fn key(number: usize) -> Bytes {
    format!("k{number}").into()
}

pub(super) fn put(number: usize, value: &[u8]) -> Ask {
    let (value, condition) = (Bytes::copy_from_slice(value), Condition::Always);
    Ask::CachePut { key: key(number), value, ttl_ms: None, condition }
}

pub(super) fn get(number: usize) -> Ask {
    Ask::CacheGet { key: key(number) }
}

pub(super) fn delete(number: usize) -> Ask {
    Ask::CacheDelete { key: key(number), condition: Condition::Always }
}

fn value(world: &mut World, number: usize) -> Option<Vec<u8>> {
    match ask(world, get(number)) {
        Reply::Value { value, .. } => value.map(|value| value.to_vec()),
        other => panic!("not a value: {other:?}"),
    }
}

#[test]
fn a_put_is_answered_when_its_bytes_are_durable_and_read_only_then() {
    let mut world = open(Fsync::OnCommit);
    send(&mut world, 1, put(1, b"one"));
    send(&mut world, 2, get(1));
    for _ in 0..10 {
        world.turn();
    }
    let nothing = Reply::Value { value: None, version: None };
    assert_eq!(answers(&mut world), [(2, Some(nothing))], "the disk has not answered");
    world.run(Duration::from_millis(20));
    assert_eq!(answers(&mut world), [(1, Some(Reply::Written))]);
    let one = Reply::Value { value: Some(Bytes::from_static(b"one")), version: Some(Offset(0)) };
    assert_eq!(ask(&mut world, get(1)), one);
}

#[test]
fn values_counters_and_versions_are_there_after_a_kill() {
    for policy in [Fsync::OnCommit, Fsync::Periodic, Fsync::None] {
        let mut world = open(policy);
        for number in 0..300 {
            send(&mut world, 1, put(number % 100, format!("v{number}").as_bytes()));
            send(&mut world, 2, Ask::CounterAdd { key: key(number % 3), delta: number as i64, number: None });
            world.run(Duration::from_millis(1));
        }
        world.run(Duration::from_millis(20));
        assert_eq!(answers(&mut world).len(), 600);
        assert_eq!(
            ask(&mut world, delete(7)),
            Reply::Value { value: Some(Bytes::from_static(b"v207")), version: None }
        );
        let mut world = restart(world, policy);
        for number in 0..100 {
            let wanted = (number != 7).then(|| format!("v{}", 200 + number).into_bytes());
            assert_eq!(value(&mut world, number), wanted);
        }
        for counter in 0..3 {
            let sum = (0..300).filter(|number| number % 3 == counter).sum::<usize>() as i64;
            assert_eq!(ask(&mut world, Ask::CounterGet { key: key(counter) }), Reply::Sum(Some(sum)));
        }
        assert_eq!(ask(&mut world, Ask::CounterGet { key: key(9) }), Reply::Sum(None));
        // A version outlives the process, and so do conditions on it.
        let Reply::Value { version: Some(version), .. } = ask(&mut world, get(8)) else { panic!() };
        let at = |condition| Ask::CachePut {
            key: key(8),
            value: Bytes::from_static(b"new"),
            ttl_ms: None,
            condition,
        };
        let unmet = Reply::Condition { applied: false, version: Some(version) };
        assert_eq!(ask(&mut world, at(Condition::Absent)), unmet);
        assert_eq!(ask(&mut world, at(Condition::Version(Offset(version.0 + 1)))), unmet);
        let Reply::Condition { applied: true, version: Some(newer) } =
            ask(&mut world, at(Condition::Version(version)))
        else {
            panic!("the version is the right one")
        };
        assert!(newer > version);
    }
}

#[test]
fn nothing_is_answered_before_the_logs_were_read_and_what_is_asked_comes_back() {
    let mut world = open(Fsync::OnCommit);
    for number in 0..50 {
        send(&mut world, 1, put(number, &[7; 2_000]));
    }
    world.run(Duration::from_millis(50));
    assert_eq!(answers(&mut world).len(), 50);
    world.disk.kill();
    let (mut world, logs) = World::over(world.disk, Fsync::OnCommit, 1);
    serve(&mut world, logs);
    world.turn_once();
    send(&mut world, 5, get(1));
    send(&mut world, 6, put(1, b"x"));
    world.turn_once();
    assert_eq!(answers(&mut world), [(5, None), (6, None)], "they changed nothing");
    world.run(Duration::from_millis(50));
    assert_eq!(value(&mut world, 1), Some(vec![7; 2_000]));
}

/// The next `count` reads of segments fail.
fn fail_reads(world: &mut World, count: u32) -> std::rc::Rc<std::cell::Cell<u32>> {
    let left = std::rc::Rc::new(std::cell::Cell::new(count));
    let own = std::rc::Rc::clone(&left);
    world.disk.choose_faults(move |asked| {
        let segment = asked.path.is_some_and(|path| path.as_str().contains("shards/"));
        let fails = segment && asked.kind == OpKind::Read && own.get() > 0;
        fails.then(|| own.set(own.get() - 1)).map(|()| Fault::Error(DiskError::Io { errno: 5 }))
    });
    left
}

#[test]
fn logs_that_cannot_be_read_when_a_cache_is_opened_are_read_again_after_a_pause() {
    let unread = |world: &World| world.cores[0].counters.get(Counter::ShardsUnread);
    for fails in [1, 2, 5] {
        let mut world = open(Fsync::OnCommit);
        assert_eq!(ask(&mut world, put(1, b"one")), Reply::Written);
        let add = Ask::CounterAdd { key: key(1), delta: 7, number: None };
        assert_eq!(ask(&mut world, add), Reply::Sum(Some(7)));
        world.disk.kill();
        let (mut world, logs) = World::over(world.disk, Fsync::OnCommit, 1);
        let left = fail_reads(&mut world, fails);
        serve(&mut world, logs);
        world.run(Duration::from_millis(100));
        assert_eq!((left.get(), unread(&world)), (fails.saturating_sub(2), 1), "one read of each log");
        send(&mut world, 3, get(1));
        world.run(Duration::from_millis(20));
        assert_eq!(answers(&mut world), [(3, None)], "it is to be asked again");
        world.run(Duration::from_secs(2));
        assert_eq!((left.get(), unread(&world)), (0, 0));
        assert_eq!(value(&mut world, 1), Some(b"one".to_vec()));
        assert_eq!(ask(&mut world, Ask::CounterGet { key: key(1) }), Reply::Sum(Some(7)));
    }
}

#[test]
fn a_disk_that_never_reads_is_asked_for_logs_less_and_less_often() {
    let mut world = open(Fsync::OnCommit);
    assert_eq!(ask(&mut world, put(1, b"one")), Reply::Written);
    world.disk.kill();
    let (mut world, logs) = World::over(world.disk, Fsync::OnCommit, 1);
    let left = fail_reads(&mut world, u32::MAX);
    serve(&mut world, logs);
    let tries = |world: &mut World, time| {
        let before = left.get();
        world.run(time);
        before - left.get()
    };
    assert_eq!(tries(&mut world, Duration::from_millis(200)), 1);
    assert!((3..8).contains(&tries(&mut world, Duration::from_secs(10))));
    tries(&mut world, Duration::from_secs(60));
    assert!((9..=10).contains(&tries(&mut world, Duration::from_secs(100))), "every 10 s");
}

#[test]
fn values_that_are_only_in_the_log_are_read_from_there() {
    let mut world = open(Fsync::OnCommit);
    let big = |number: usize| vec![number as u8; 40_000];
    for number in 0..60 {
        assert_eq!(ask(&mut world, put(number, &big(number))), Reply::Written);
    }
    world.cores[0].caches.get_mut(&CACHE).expect("it is served").set_memory(100_000);
    for number in (0..60).rev() {
        assert_eq!(value(&mut world, number), Some(big(number)), "{number}");
    }
    for number in 0..60 {
        send(&mut world, number as u64, delete(number));
    }
    world.run(Duration::from_millis(100));
    let mut removed = answers(&mut world);
    removed.sort_by_key(|(token, _)| *token);
    for (number, (_, reply)) in removed.iter().enumerate() {
        let wanted = Reply::Value { value: Some(big(number).into()), version: None };
        assert_eq!(reply.as_ref(), Some(&wanted));
    }
    assert_eq!((removed.len(), value(&mut world, 3)), (60, None));
}

#[test]
fn what_expires_stays_away_after_a_restart_and_bad_requests_say_why() {
    let mut world = open(Fsync::OnCommit);
    let lives = |ttl_ms| Ask::CachePut {
        key: key(1),
        value: Bytes::from_static(b"v"),
        ttl_ms: Some(ttl_ms),
        condition: Condition::Always,
    };
    assert_eq!(ask(&mut world, lives(0)), Reply::Written);
    assert_eq!(value(&mut world, 1), None, "it was over at once");
    let Reply::Refused(AskRefused::Invalid(why)) = ask(&mut world, lives(u64::MAX)) else { panic!() };
    assert!(why.contains("later than can be told"), "{why}");
    assert_eq!(ask(&mut world, lives(1_000_000)), Reply::Written);
    assert_eq!(value(&mut world, 1), Some(b"v".to_vec()));
    let add = |delta| Ask::CounterAdd { key: key(1), delta, number: None };
    assert_eq!(ask(&mut world, add(i64::MAX)), Reply::Sum(Some(i64::MAX)));
    let Reply::Refused(AskRefused::Invalid(why)) = ask(&mut world, add(1)) else { panic!() };
    assert!(why.contains("64 bits"), "{why}");
    assert_eq!(ask(&mut world, add(i64::MIN)), Reply::Sum(Some(-1)));
    let huge = vec![0; crate::projection::cache::VALUE_BYTES_MAX + 1];
    assert!(matches!(ask(&mut world, put(2, &huge)), Reply::Refused(AskRefused::Limit(_))));
    let mut world = restart(world, Fsync::OnCommit);
    assert_eq!(value(&mut world, 1), Some(b"v".to_vec()));
}

/// A request of another core comes before the first turn after a long sleep.
#[test]
fn a_life_begins_when_its_put_arrives_also_on_a_core_that_had_nothing_to_do() {
    let mut world = open(Fsync::OnCommit);
    world.turn();
    world.unix_ms += 60_000;
    let value = Bytes::from_static(b"one");
    send(
        &mut world,
        1,
        Ask::CachePut {
            key: key(1),
            value: value.clone(),
            ttl_ms: Some(10_000),
            condition: Condition::Always,
        },
    );
    world.run(Duration::from_millis(20));
    assert_eq!(answers(&mut world), [(1, Some(Reply::Written))]);
    world.unix_ms += 9_000;
    let there = Reply::Value { value: Some(value), version: Some(Offset(0)) };
    assert_eq!(ask(&mut world, get(1)), there);
    world.unix_ms += 2_000;
    assert_eq!(ask(&mut world, get(1)), Reply::Value { value: None, version: None });
}

#[test]
fn a_failed_write_leaves_the_outcome_unknown_and_reads_go_on() {
    let mut world = open(Fsync::OnCommit);
    assert_eq!(ask(&mut world, put(1, b"one")), Reply::Written);
    let add = |delta| Ask::CounterAdd { key: key(1), delta, number: None };
    assert_eq!(ask(&mut world, add(1)), Reply::Sum(Some(1)));
    world.disk.choose_faults(|asked| {
        let slot = asked.path.is_some_and(|path| path.as_str().contains("slots/"));
        (slot && asked.kind == OpKind::Write).then_some(Fault::Error(DiskError::Io { errno: 5 }))
    });
    let unknown = Reply::Refused(AskRefused::Unknown(Doubt::LogFailed));
    send(&mut world, 1, put(1, b"two"));
    send(&mut world, 2, add(5));
    world.run(Duration::from_millis(20));
    assert_eq!(answers(&mut world), [(1, Some(unknown.clone())), (2, Some(unknown.clone()))]);
    let stopped = Reply::Refused(AskRefused::NotWritten(NotWritten::Stopped));
    assert_eq!(ask(&mut world, put(1, b"three")), stopped);
    assert_eq!(value(&mut world, 1), Some(b"one".to_vec()), "what was answered stays readable");
    assert_eq!(ask(&mut world, add(i64::MAX)), unknown, "a refusal that hangs on what is not known");
    world.disk.choose_faults(|_| None);
    let mut world = restart(world, Fsync::OnCommit);
    let found = value(&mut world, 1).expect("it is there");
    assert!(found == b"one" || found == b"two", "{found:?}");
    assert_eq!(ask(&mut world, put(1, b"four")), Reply::Written);
}

#[test]
fn a_disk_that_does_not_answer_is_told_and_writes_that_find_no_room_are_refused_in_time() {
    let mut world = open(Fsync::OnCommit);
    assert_eq!(ask(&mut world, put(0, b"x")), Reply::Written);
    world.disk.choose_faults(|asked| {
        (asked.kind == OpKind::Write).then_some(Fault::Stall(Duration::from_secs(200)))
    });
    // More than may be on its way to the disk.
    for number in 0..400 {
        send(&mut world, number, put(number as usize, &[1; 200_000]));
    }
    world.run(Duration::from_secs(1));
    let refused_at_once = answers(&mut world).len();
    world.run(Duration::from_secs(3));
    let waited = answers(&mut world);
    let overloaded = Some(Reply::Refused(AskRefused::Overloaded));
    assert!(!waited.is_empty() && waited.iter().all(|(_, reply)| *reply == overloaded), "{}", waited.len());
    let claimed = 400 - waited.len() - refused_at_once;
    assert!(claimed > 0);
    world.run(Duration::from_secs(60));
    let late = answers(&mut world);
    let unknown = Some(Reply::Refused(AskRefused::Unknown(Doubt::Unconfirmed)));
    assert!(late.iter().all(|(_, reply)| *reply == unknown), "{late:?}");
    assert_eq!(late.len(), claimed);
    world.disk.choose_faults(|_| None);
    world.run(Duration::from_secs(300));
    assert_eq!(answers(&mut world), [], "each was answered once");
    assert!(world.cores[0].caches[&CACHE].is_idle());
}

#[test]
fn a_deleted_cache_takes_its_logs_along_and_answers_what_it_owes() {
    let mut world = open(Fsync::OnCommit);
    assert_eq!(ask(&mut world, put(1, b"one")), Reply::Written);
    send(&mut world, 9, put(2, b"two"));
    let routes = Arc::new(Routes::new(2, [], [Arc::from("t")]));
    world.cores[0].handle_admin(world.now, ToCore::Routes(routes));
    for key in cache_route().log_keys(ShardIndex(0)) {
        let order = LogOrder::Delete { key, volume: 0, source: LogSource::New };
        world.cores[0].handle_admin(world.now, ToCore::Log(order));
    }
    world.run(Duration::from_millis(50));
    let gone = Reply::Refused(AskRefused::NotWritten(NotWritten::Deleted));
    assert_eq!(answers(&mut world), [(9, Some(gone))]);
    let deleted = world.told.iter().filter(|told| matches!(told, FromCore::LogDeleted { .. })).count();
    assert_eq!(deleted, 2);
    send(&mut world, 10, get(1));
    world.run(Duration::from_millis(10));
    assert_eq!(answers(&mut world), [(10, None)]);
}

fn numbered(producer: u64, sequence: u64, delta: i64) -> Ask {
    let number = Some((ProducerId(producer), Sequence(sequence)));
    Ask::CounterAdd { key: key(1), delta, number }
}

#[test]
fn a_numbered_add_counts_once_however_often_it_comes_also_after_a_kill() {
    let mut world = open(Fsync::OnCommit);
    // The copy comes while the first one is on its way: both are answered when that is durable.
    send(&mut world, 1, numbered(7, 0, 5));
    send(&mut world, 2, numbered(7, 0, 5));
    world.turn_once();
    assert_eq!(answers(&mut world), [], "nothing is durable yet");
    world.run(Duration::from_millis(20));
    let five = || Some(Reply::Sum(Some(5)));
    assert_eq!(answers(&mut world), [(1, five()), (2, five())]);
    assert_eq!(ask(&mut world, numbered(7, 1, 10)), Reply::Sum(Some(15)));
    let refused = |why| Reply::Refused(AskRefused::NotWritten(NotWritten::Number(why)));
    assert_eq!(ask(&mut world, numbered(7, 5, 1)), refused(NumberRefusal::Gap { expected: Sequence(2) }));
    assert_eq!(ask(&mut world, numbered(7, 0, 6)), refused(NumberRefusal::Reused));
    assert_eq!(ask(&mut world, numbered(9, 3, 1)), refused(NumberRefusal::Unknown));
    let mut world = restart(world, Fsync::OnCommit);
    assert_eq!(ask(&mut world, numbered(7, 0, 5)), Reply::Sum(Some(5)), "as the first time");
    assert_eq!(ask(&mut world, numbered(7, 2, -5)), Reply::Sum(Some(10)));
    // Answers that memory has let go are read from the log, as long as it has them.
    world.keeps_logs();
    for first in (0..17_000).step_by(1_000) {
        (first..first + 1_000).for_each(|sequence| send(&mut world, sequence, numbered(8, sequence, 1)));
        world.run(Duration::from_millis(50));
        assert_eq!(answers(&mut world).len(), 1_000);
    }
    assert_eq!(ask(&mut world, numbered(7, 1, 10)), Reply::Sum(Some(15)));
    assert_eq!(ask(&mut world, numbered(8, 0, 1)), refused(NumberRefusal::Expired));
    assert_eq!(ask(&mut world, Ask::CounterGet { key: key(1) }), Reply::Sum(Some(17_010)));
}

/// The disk answers the last writes, and before the core has taken that in, the routes name another generation of the shard.
#[test]
fn a_shard_that_begins_while_the_last_writes_settle_reads_all_of_its_logs() {
    let mut world = open(Fsync::OnCommit);
    let add = |delta| Ask::CounterAdd { key: key(1), delta, number: None };
    assert_eq!(ask(&mut world, add(5)), Reply::Sum(Some(5)));
    assert_eq!(ask(&mut world, put(1, b"one")), Reply::Written);
    send(&mut world, 1, add(2));
    send(&mut world, 2, put(2, b"two"));
    world.turn();
    world.now += Duration::from_millis(5);
    world.disk.advance_to(world.now);
    while let Some(done) = world.disk.poll_done() {
        let (core, token) = world.asked.remove(&done.token).expect("somebody asked");
        world.cores[core].complete_disk(world.now, Done { token, result: done.result });
    }
    let mut route = StreamRoute::clone(&cache_route());
    route.owners = vec![Owner::Here { core: CoreId(0), generation: Generation(2) }];
    let routes = Arc::new(Routes::new(2, [Arc::new(route)], [Arc::from("t")]));
    for core in &mut world.cores {
        core.handle_admin(world.now, ToCore::Routes(Arc::clone(&routes)));
    }
    world.run(Duration::from_millis(50));
    world.answers.clear();
    for (token, ask) in [(3, get(1)), (4, get(2)), (5, add(1))] {
        let what = ShardInput::Ask { token: AskToken(token), ask };
        let to = ToShard { shard: CACHE, generation: Generation(2), what };
        world.cores[0].handle_mail(world.now, ELSEWHERE, Mail::ToShard(to));
        world.run(Duration::from_millis(20));
    }
    let value = |at, value: &'static [u8]| Reply::Value {
        value: Some(Bytes::from_static(value)),
        version: Some(Offset(at)),
    };
    let told = answers(&mut world);
    let due = [(3, value(0, b"one")), (4, value(1, b"two")), (5, Reply::Sum(Some(8)))];
    assert_eq!(told, due.map(|(token, reply)| (token, Some(reply))));
}
