//! Watches of a shard of a cache over its log, as another core sees them.

use bytes::Bytes;

use super::caches::{CACHE, ask, delete, open, put, restart, send, serve};
use super::*;
use crate::projection::cache::interest::Interest;
use crate::projection::cache::watch::{Started, WatchFrom, WatchRefused};
use crate::shard::cache::watch::{QUEUE_LIMITS, WatchAsk, WatchEnd, WatchNo, WatchTold};
use crate::shard::mail::Ending;

const ALL: &[u8] = b"";

/// Offset, key and length of the value of an event; without a value it is a delete.
type Shown = (u64, String, Option<usize>);

fn to_watch(world: &mut World, token: u64, ask: WatchAsk) {
    let what = ShardInput::Watch { token: SubToken(token), ask };
    let to = ToShard { shard: CACHE, generation: Generation(1), what };
    world.cores[0].handle_mail(world.now, ELSEWHERE, Mail::ToShard(to));
}

fn begin(world: &mut World, token: u64, prefix: &[u8], from: WatchFrom) {
    to_watch(world, token, WatchAsk::Begin { interest: Interest::Prefix(prefix.into()), from });
}

fn pull(world: &mut World, token: u64) {
    to_watch(world, token, WatchAsk::Pull { bytes_max: 64 << 10 });
}

/// What was said about watches since the last call; answers of other requests are dropped.
fn told(world: &mut World) -> Vec<(u64, WatchTold)> {
    let told = std::mem::take(&mut world.answers).into_iter().filter_map(|answer| match answer {
        ShardOutput::Watch { token, told } => Some((token.0, told)),
        _ => None,
    });
    told.collect()
}

/// How a watch began.
fn started(world: &mut World, token: u64) -> Started {
    let mut told = told(world);
    let Some((of, WatchTold::Started(started))) = told.pop() else { panic!("it did not begin: {told:?}") };
    assert!(of == token && told.is_empty(), "{told:?}");
    started
}

/// One watch that begins now, and how.
fn watch(world: &mut World, token: u64, prefix: &[u8], from: WatchFrom) -> Started {
    begin(world, token, prefix, from);
    world.run(Duration::from_millis(5));
    started(world, token)
}

/// Pulls until nothing comes for a while: offsets, keys and values, and the end if there was one.
fn events(world: &mut World, token: u64) -> (Vec<Shown>, Option<WatchEnd>) {
    let (mut found, mut end) = (Vec::new(), None);
    pull(world, token);
    loop {
        world.run(Duration::from_millis(10));
        let said = told(world);
        if said.is_empty() {
            return (found, end);
        }
        for (of, what) in said {
            assert_eq!(of, token);
            match what {
                WatchTold::Events(events) => {
                    assert!(!events.is_empty() && end.is_none());
                    let show = |key: &[u8]| String::from_utf8_lossy(key).into_owned();
                    let shown =
                        events.iter().map(|e| (e.at.0, show(&e.key), e.value.as_ref().map(Bytes::len)));
                    found.extend(shown);
                    pull(world, token);
                }
                WatchTold::Ended(why) => end = Some(why),
                other => panic!("{other:?}"),
            }
        }
    }
}

fn offsets(world: &mut World, token: u64) -> Vec<u64> {
    let (events, end) = events(world, token);
    assert_eq!(end, None);
    events.into_iter().map(|(at, ..)| at).collect()
}

/// Writes to `keys` keys in turn, and waits for all answers.
fn fill(world: &mut World, count: usize, keys: usize, value: &[u8]) {
    let mut answered = 0;
    for number in 0..count {
        send(world, 9, put(number % keys, value));
        while answered + 200 < number || (number + 1 == count && answered < count) {
            world.run(Duration::from_millis(1));
            answered += std::mem::take(&mut world.answers).len();
        }
    }
}

fn held(world: &World) -> (usize, usize) {
    world.cores[0].caches[&CACHE].watches()
}

#[test]
fn a_watch_is_told_what_is_settled_and_nothing_before() {
    let mut world = open(Fsync::OnCommit);
    send(&mut world, 1, put(1, b"before"));
    let began = {
        begin(&mut world, 1, b"k1", WatchFrom::Now);
        world.turn();
        started(&mut world, 1)
    };
    assert_eq!(began, Started { resume: Offset(0), resnapshot: false, values: 0, counted: false });
    pull(&mut world, 1);
    world.turn();
    assert!(told(&mut world).is_empty(), "the disk has not answered: it is claimed and no more");
    world.run(Duration::from_millis(20));
    let said = told(&mut world);
    let [(1, WatchTold::Events(events))] = &said[..] else { panic!("{said:?}") };
    assert_eq!(
        (events.len(), events[0].at, events[0].value.as_deref()),
        (1, Offset(0), Some(&b"before"[..]))
    );
    ask(&mut world, put(2, b"another key"));
    ask(&mut world, put(11, b"one that begins so"));
    ask(&mut world, delete(1));
    let expected = [(2, "k11".to_owned(), Some(18)), (3, "k1".to_owned(), None)];
    assert_eq!(events_of(&mut world, 1), expected);
    to_watch(&mut world, 1, WatchAsk::End);
    ask(&mut world, put(1, b"x"));
    assert!(events_of(&mut world, 1).is_empty());
    assert_eq!(held(&world), (0, 0));
}

fn events_of(world: &mut World, token: u64) -> Vec<Shown> {
    let (events, end) = events(world, token);
    assert_eq!(end, None);
    events
}

#[test]
fn a_watch_from_an_offset_reads_the_log_and_joins_what_comes_also_after_a_kill() {
    let mut world = open(Fsync::OnCommit);
    fill(&mut world, 3_000, 70, &[1; 700]);
    let mut world = restart(world, Fsync::OnCommit);
    let began = watch(&mut world, 1, ALL, WatchFrom::Offset(Offset(37)));
    assert_eq!((began.resume, began.resnapshot, began.values), (Offset(37), false, 0));
    // What comes meanwhile is behind what is read.
    let mut found = Vec::new();
    pull(&mut world, 1);
    for number in 0..400 {
        send(&mut world, 9, put(number % 70, &[2; 700]));
        world.run(Duration::from_millis(1));
        for (_, what) in told(&mut world) {
            let WatchTold::Events(events) = what else { panic!("{what:?}") };
            found.extend(events.iter().map(|event| event.at.0));
            pull(&mut world, 1);
        }
    }
    found.extend(offsets(&mut world, 1));
    assert_eq!(found, (37..3_400).collect::<Vec<u64>>());
    begin(&mut world, 2, ALL, WatchFrom::Offset(Offset(3_401)));
    world.run(Duration::from_millis(5));
    let said = told(&mut world);
    let tail = WatchNo::Refused(WatchRefused::InFuture { tail: Offset(3_400) });
    assert!(matches!(&said[..], [(2, WatchTold::Refused(no))] if *no == tail), "{said:?}");
    assert_eq!(watch(&mut world, 3, ALL, WatchFrom::Offset(Offset(3_400))).resume, Offset(3_400));
}

#[test]
fn one_that_does_not_read_is_sent_nothing_holds_no_more_than_its_bound_and_misses_nothing() {
    let mut world = open(Fsync::OnCommit);
    world.keeps_logs();
    watch(&mut world, 1, ALL, WatchFrom::Now);
    watch(&mut world, 2, ALL, WatchFrom::Now);
    pull(&mut world, 1);
    let (mut quick, mut slow) = (Vec::new(), 0);
    for number in 0..5_000 {
        send(&mut world, 9, put(number % 10, &[3; 1_000]));
        if number % 10 == 0 {
            world.run(Duration::from_millis(1));
            for (token, what) in told(&mut world) {
                let WatchTold::Events(events) = what else { panic!("{what:?}") };
                assert_eq!(token, 1, "the other one has not asked");
                quick.extend(events.iter().map(|event| event.at.0));
                pull(&mut world, 1);
            }
            slow = slow.max(held(&world).1);
        }
    }
    quick.extend(offsets(&mut world, 1));
    assert_eq!(quick, (0..5_000).collect::<Vec<u64>>(), "one that reads does not wait for the other");
    assert!(slow <= 2 * QUEUE_LIMITS.bytes_max + 10_000, "{slow} bytes");
    assert_eq!(offsets(&mut world, 2), (0..5_000).collect::<Vec<u64>>());
    to_watch(&mut world, 2, WatchAsk::End);
    to_watch(&mut world, 1, WatchAsk::End);
    assert_eq!(held(&world), (0, 0));
}

#[test]
fn current_values_come_first_also_those_that_are_only_in_the_log() {
    let mut world = open(Fsync::OnCommit);
    fill(&mut world, 20_000, 10_000, &[4; 60]);
    ask(&mut world, delete(5));
    world.cores[0].caches.get_mut(&CACHE).expect("it is served").set_memory(64 << 10);
    ask(&mut world, put(6, b"last"));
    begin(&mut world, 1, ALL, WatchFrom::Retained);
    world.turn_once();
    // It is in the table already or will be told as a change.
    send(&mut world, 9, put(7, b"meanwhile"));
    world.run(Duration::from_millis(20));
    let began = started(&mut world, 1);
    assert_eq!(
        (began.resume, began.resnapshot, began.values, began.counted),
        (Offset(20_002), false, 9_999, true)
    );
    let (values, changes) = {
        let mut found = events_of(&mut world, 1);
        let changes = found.split_off(9_999);
        (found, changes)
    };
    assert_eq!(changes, [(20_002, "k7".to_owned(), Some(9))]);
    let mut keys: Vec<&str> = values.iter().map(|(_, key, _)| key.as_str()).collect();
    keys.sort_unstable();
    keys.dedup();
    assert!(keys.len() == 9_999 && !keys.contains(&"k5"), "each key once");
    assert!(values.contains(&(20_001, "k6".to_owned(), Some(4))));
    assert!(values.contains(&(10_007, "k7".to_owned(), Some(60))), "the value before the change");
}

#[test]
fn watches_are_told_how_their_shard_ends() {
    for (order, why) in [(true, Ending::Deleted), (false, Ending::Moved)] {
        let mut world = open(Fsync::OnCommit);
        watch(&mut world, 1, ALL, WatchFrom::Now);
        begin(&mut world, 2, ALL, WatchFrom::Now);
        if order {
            let routes = Arc::new(Routes::new(2, [], [Arc::from("t")]));
            world.cores[0].handle_admin(world.now, ToCore::Routes(routes));
        } else {
            let owner = Owner::Here { core: CoreId(1), generation: Generation(2) };
            let route = StreamRoute { owners: vec![owner], ..(*caches::cache_route()).clone() };
            let routes = Arc::new(Routes::new(2, [Arc::new(route)], [Arc::from("t")]));
            world.cores[0].handle_admin(world.now, ToCore::Routes(routes));
        }
        world.turn();
        let mut said: Vec<_> =
            told(&mut world).into_iter().map(|(token, what)| (token, format!("{what:?}"))).collect();
        said.retain(|(_, what)| !what.starts_with("Started"));
        said.sort();
        let ended = format!("{:?}", WatchTold::Ended(WatchEnd::Shard(why)));
        assert_eq!(said, [(1, ended.clone()), (2, ended)]);
        begin(&mut world, 3, ALL, WatchFrom::Now);
        world.turn();
        let said = told(&mut world);
        assert!(matches!(&said[..], [(3, WatchTold::Back(WatchAsk::Begin { .. }))]), "{said:?}");
    }
}

#[test]
fn a_log_that_fails_tells_nothing_that_is_not_settled_and_history_stays_readable() {
    let mut world = open(Fsync::OnCommit);
    ask(&mut world, put(1, b"one"));
    watch(&mut world, 1, ALL, WatchFrom::Now);
    pull(&mut world, 1);
    world.disk.choose_faults(|asked| {
        let slot = asked.path.is_some_and(|path| path.as_str().contains("slots/"));
        (slot && asked.kind == OpKind::Write).then_some(Fault::Error(DiskError::Io { errno: 5 }))
    });
    send(&mut world, 9, put(1, b"two"));
    world.run(Duration::from_millis(20));
    assert!(told(&mut world).is_empty());
    watch(&mut world, 2, ALL, WatchFrom::Offset(Offset(0)));
    assert_eq!(events_of(&mut world, 2), [(0, "k1".to_owned(), Some(3))]);
    // Whether the second write is there is known after the start; a watch that goes on sees it if it is.
    world.disk.choose_faults(|_| None);
    let mut world = restart(world, Fsync::OnCommit);
    let resumed = watch(&mut world, 1, ALL, WatchFrom::Offset(Offset(1)));
    assert_eq!(resumed.resume, Offset(1));
    let at = ask(&mut world, put(1, b"three"));
    let seen = events_of(&mut world, 1);
    assert_eq!(seen.last().map(|(_, _, len)| *len), Some(Some(5)), "{at:?} {seen:?}");
}

#[test]
fn a_page_that_cannot_be_read_ends_the_watch_that_wanted_it_and_no_other() {
    let mut world = open(Fsync::OnCommit);
    fill(&mut world, 2_000, 70, &[5; 700]);
    let mut world = restart(world, Fsync::OnCommit);
    watch(&mut world, 1, ALL, WatchFrom::Now);
    world.disk.choose_faults(|asked| {
        (asked.kind == OpKind::Read).then_some(Fault::Error(DiskError::Io { errno: 5 }))
    });
    watch(&mut world, 2, ALL, WatchFrom::Offset(Offset(3)));
    let (found, end) = events(&mut world, 2);
    assert!(found.is_empty(), "{found:?}");
    assert_eq!(end, Some(WatchEnd::Lost(PageLoss::Unreadable)));
    ask(&mut world, put(1, b"new"));
    assert_eq!(events_of(&mut world, 1), [(2_000, "k1".to_owned(), Some(3))]);
    assert_eq!(held(&world).0, 1);
}

/// Milliseconds until a value that only the log has is answered.
fn time_of_get(world: &mut World, number: usize) -> usize {
    send(world, 5, caches::get(number));
    let is_it = |answer: &ShardOutput| matches!(answer, ShardOutput::Answered { token, .. } if token.0 == 5);
    let answered = (0..5_000).find(|_| {
        world.run(Duration::from_millis(1));
        world.answers.drain(..).any(|answer| is_it(&answer))
    });
    answered.expect("it is answered in time")
}

#[test]
fn many_that_read_the_log_at_once_do_not_keep_a_get_waiting() {
    let mut world = open(Fsync::OnCommit);
    fill(&mut world, 3_000, 70, &[6; 700]);
    let mut world = restart(world, Fsync::OnCommit);
    world.cores[0].caches.get_mut(&CACHE).expect("it is served").set_memory(64 << 10);
    ask(&mut world, put(71, &[6; 60_000]));
    world.disk.choose_faults(|asked| {
        (asked.kind == OpKind::Read).then_some(Fault::Stall(Duration::from_millis(10)))
    });
    let alone = time_of_get(&mut world, 3);
    for token in 100..300 {
        begin(&mut world, token, ALL, WatchFrom::Offset(Offset(0)));
    }
    world.turn();
    let beside = time_of_get(&mut world, 4);
    assert!(
        alone > 0 && beside < 4 * alone,
        "it waits for a few of their pages: {beside} ms, alone {alone} ms"
    );
    for token in 100..300 {
        to_watch(&mut world, token, WatchAsk::End);
    }
    world.run(Duration::from_millis(200));
    assert_eq!(held(&world), (0, 0));
    assert!(world.cores[0].caches[&CACHE].is_idle());
}

#[test]
fn a_shard_that_is_being_read_gives_watches_back_and_a_broken_one_says_why() {
    let mut world = open(Fsync::OnCommit);
    for number in 0..50 {
        send(&mut world, 9, put(number, &[7; 2_000]));
    }
    world.run(Duration::from_millis(50));
    world.disk.kill();
    let (mut world, logs) = World::over(world.disk, Fsync::OnCommit, 1);
    serve(&mut world, logs);
    world.turn_once();
    begin(&mut world, 1, ALL, WatchFrom::Retained);
    world.turn_once();
    let said = told(&mut world);
    let [(1, WatchTold::Back(WatchAsk::Begin { from: WatchFrom::Retained, .. }))] = &said[..] else {
        panic!("{said:?}")
    };
    world.run(Duration::from_millis(50));
    assert_eq!(watch(&mut world, 1, ALL, WatchFrom::Retained).values, 50);
}

#[test]
fn a_watch_that_the_start_of_the_log_overtakes_is_told_and_one_from_below_begins_with_the_current_values() {
    let mut world = open(Fsync::OnCommit);
    fill(&mut world, 6_000, 70, &[8; 700]);
    watch(&mut world, 1, ALL, WatchFrom::Offset(Offset(10)));
    world.run(Duration::from_millis(20));
    let core = &mut world.cores[0];
    let at = core.caches[&CACHE].logs().next().expect("it has logs");
    let engine = core.store.as_mut().and_then(|store| store.engine(at)).expect("it is open");
    engine.move_start(at.log, Offset(5_000));
    world.run(Duration::from_millis(50));
    let start = world.cores[0].store.as_ref().and_then(|store| store.log(at)).expect("it is open").start();
    let (found, end) = events(&mut world, 1);
    let Some(WatchEnd::Lagged { resume_from }) = end else { panic!("{end:?}") };
    assert!(resume_from < start && start <= Offset(5_000), "{resume_from} {start}");
    let offsets: Vec<u64> = found.iter().map(|(at, ..)| *at).collect();
    assert_eq!(offsets, (10..resume_from.0).collect::<Vec<u64>>(), "no gap before where another one goes on");
    let mut world = restart(world, Fsync::OnCommit);
    let again = watch(&mut world, 1, ALL, WatchFrom::Offset(resume_from));
    assert_eq!((again.resume, again.resnapshot, again.values), (Offset(6_000), true, 70));
    assert_eq!(offsets_of(&mut world), (5_930..6_000).collect::<Vec<u64>>());
}

/// The offsets that watch 1 is told, sorted.
fn offsets_of(world: &mut World) -> Vec<u64> {
    let mut found = offsets(world, 1);
    found.sort_unstable();
    found
}

#[test]
fn large_values_that_nobody_reads_do_not_take_more_than_all_watches_may_hold() {
    let mut world = open(Fsync::OnCommit);
    fill(&mut world, 3, 3, &vec![9; 1 << 20]);
    let mut world = restart(world, Fsync::OnCommit);
    let limits = CoreLimits { subscriber_queues_bytes_max: 64 << 20, ..CoreLimits::default() };
    world.cores[0].limits = Arc::new(limits);
    watch(&mut world, 900, ALL, WatchFrom::Now);
    world.run(Duration::from_millis(100));
    for token in 0..200 {
        begin(&mut world, token, ALL, WatchFrom::Offset(Offset(0)));
    }
    let mut most = 0;
    for _ in 0..400 {
        world.run(Duration::from_millis(10));
        most = most.max(held(&world).1);
    }
    // Two times a quarter, and the pages that were under way.
    assert!(most > 16 << 20 && most < 48 << 20, "{most}");
    world.answers.clear();
    let (found, end) = events(&mut world, 7);
    let resume = found.len() as u64;
    assert!(end.is_none() || end == Some(WatchEnd::Lagged { resume_from: Offset(resume) }), "{end:?}");
    let again = watch(&mut world, 999, ALL, WatchFrom::Offset(Offset(resume)));
    assert_eq!(again.resume, Offset(resume));
}
