//! Requests about the records of a durable shard, as another core sends them.

use bytes::Bytes;

use super::*;
use crate::projection::commit::record::{CommitRecord, StateChange};
use crate::shard::ask::{Ask, AskRefused, AskToken, Reply, StreamAsk};

const MS: Duration = Duration::from_millis(1);

fn world(records: u64) -> World {
    let mut world = World::new(Fsync::OnCommit);
    world.serve(0, LogSource::New);
    for token in 0..records {
        assert_eq!(world.stored(token, None), token);
    }
    world
}

fn put<'a>(key: &'a str, value: &'a str) -> StateChange<'a> {
    StateChange::Put { key: key.as_bytes(), value: value.as_bytes() }
}

/// A commit whose event says `number`.
fn commit(number: u64, changes: &[StateChange<'_>]) -> StreamAsk {
    let event = number.to_be_bytes();
    let record = CommitRecord { event: &event, changes: changes.to_vec() }.encode(1 << 20).expect("it fits");
    StreamAsk::Commit { record, expected: None, number: None }
}

fn at(mut ask: StreamAsk, offset: u64) -> StreamAsk {
    if let StreamAsk::Commit { expected, .. } = &mut ask {
        *expected = Some(Offset(offset));
    }
    ask
}

fn numbered(mut ask: StreamAsk, sequence: u64) -> StreamAsk {
    if let StreamAsk::Commit { number, .. } = &mut ask {
        *number = Some((ProducerId(9), Sequence(sequence)));
    }
    ask
}

fn publish_if(number: u64, expected: u64) -> StreamAsk {
    let records = Records::from_payloads([number.to_be_bytes()]);
    StreamAsk::PublishIf { records, expected: Offset(expected) }
}

fn page(from: u64, end: Option<u64>, records_max: usize, bytes_max: usize) -> StreamAsk {
    StreamAsk::Read { from: Offset(from), end: end.map(Offset), records_max, bytes_max }
}

fn send(world: &mut World, token: u64, ask: StreamAsk) {
    let ask = Ask::Stream(Box::new(ask));
    world.ask(0, ShardInput::Ask { token: AskToken(token), ask });
}

fn answers(world: &mut World) -> Vec<(u64, Reply)> {
    let told = std::mem::take(&mut world.answers).into_iter().filter_map(|answer| match answer {
        ShardOutput::Answered { token, reply } => Some((token.0, reply)),
        ShardOutput::Published { .. } => None,
        other => panic!("another answer: {other:?}"),
    });
    told.collect()
}

/// Asks, as a core does: again when it comes back because the log is being read.
fn ask(world: &mut World, what: StreamAsk) -> Reply {
    send(world, 1, what.clone());
    world.run(MS * 30);
    if matches!(world.answers[..], [ShardOutput::AskBack { .. }]) {
        world.answers.clear();
        send(world, 1, what);
        world.run(MS * 30);
    }
    let answers = answers(world);
    let [(1, reply)] = &answers[..] else { panic!("not one answer: {answers:?}") };
    reply.clone()
}

fn state(world: &mut World, key: &str) -> (Option<String>, Option<u64>, Option<u64>) {
    match ask(world, StreamAsk::State { key: Bytes::copy_from_slice(key.as_bytes()) }) {
        Reply::State { value, version, as_of } => {
            let text = |value: Bytes| String::from_utf8(value.to_vec()).expect("text");
            (value.map(text), version.map(|at| at.0), as_of.map(|at| at.0))
        }
        other => panic!("no state: {other:?}"),
    }
}

fn is(value: &str, version: u64, as_of: u64) -> (Option<String>, Option<u64>, Option<u64>) {
    (Some(value.to_owned()), Some(version), Some(as_of))
}

/// Offsets and numbers of a page, and where the next begins.
fn read(world: &mut World, what: StreamAsk) -> (Vec<(u64, u64)>, u64) {
    match ask(world, what) {
        Reply::Records { records, next } => {
            (records.iter().map(|record| (record.offset.0, number(&record.payload))).collect(), next.0)
        }
        other => panic!("no page: {other:?}"),
    }
}

fn refused(why: AskRefused) -> Reply {
    Reply::Refused(why)
}

#[test]
fn a_commit_is_answered_when_it_is_durable_and_its_state_is_read_only_then() {
    let mut world = world(2);
    assert_eq!(state(&mut world, "a"), (None, None, None));
    send(&mut world, 7, commit(2, &[put("a", "1"), put("b", "2")]));
    send(&mut world, 8, StreamAsk::State { key: Bytes::from_static(b"a") });
    world.turn();
    let unsettled = Reply::State { value: None, version: None, as_of: None };
    assert_eq!(answers(&mut world), [(8, unsettled)], "the disk has not answered");
    world.run(MS * 30);
    assert_eq!(answers(&mut world), [(7, Reply::Placed(Offset(2)))]);
    assert_eq!(state(&mut world, "a"), is("1", 2, 2));
    assert_eq!(ask(&mut world, commit(3, &[StateChange::Delete { key: b"a" }])), Reply::Placed(Offset(3)));
    assert_eq!(world.stored(4, None), 4);
    assert_eq!(state(&mut world, "a"), (None, None, Some(3)));
    assert_eq!(state(&mut world, "b"), is("2", 2, 3));
    assert_eq!(world.read(0, 0), [0, 1, 2, 3, 4], "subscribers see the events");
}

#[test]
fn state_is_there_after_a_kill_and_goes_with_what_retention_takes() {
    for policy in [Fsync::OnCommit, Fsync::Periodic, Fsync::None] {
        let mut world = World::new(policy);
        world.serve(0, LogSource::New);
        for number in 0..300_u64 {
            let (key, value) = (format!("k{}", number % 100), "v".repeat(20_000));
            let value = format!("{number} {value}");
            assert_eq!(ask(&mut world, commit(number, &[put(&key, &value)])), Reply::Placed(Offset(number)));
        }
        let mut world = world.restart(policy);
        for number in [200_u64, 250, 299] {
            let (value, version, as_of) = state(&mut world, &format!("k{}", number % 100));
            let value = value.expect("a value");
            assert!(value.starts_with(&format!("{number} v")) && value.len() > 20_000, "{}", value.len());
            assert_eq!((version, as_of), (Some(number), Some(299)), "more than is held in memory");
        }
        let at = world.cores[0].shards[&SHARD].log().expect("a log");
        let store = world.cores[0].store.as_mut().expect("logs");
        store.engine(at).expect("there").move_start(at.log, Offset(250));
        world.run(MS * 20);
        assert_eq!(state(&mut world, "k49"), (None, None, Some(299)));
        assert_eq!(state(&mut world, "k50").1, Some(250));
        let mut world = world.restart(policy);
        assert_eq!(state(&mut world, "k50").1, Some(250));
        assert_eq!(state(&mut world, "k0").0, None);
    }
}

#[test]
fn a_condition_is_decided_against_everything_claimed_and_told_when_that_is_settled() {
    let mut world = world(1);
    send(&mut world, 1, publish_if(10, 1));
    send(&mut world, 2, publish_if(11, 1));
    send(&mut world, 3, at(commit(12, &[put("k", "v")]), 2));
    send(&mut world, 4, at(commit(13, &[put("k", "w")]), 2));
    send(&mut world, 5, publish_if(14, 9));
    world.turn();
    assert_eq!(answers(&mut world), [], "what the others met is not settled");
    world.run(MS * 30);
    let mut told = answers(&mut world);
    told.sort_by_key(|(token, _)| *token);
    let mismatch = |tail| Reply::OffsetMismatch { tail: Offset(tail) };
    let due = [
        (1, Reply::Placed(Offset(1))),
        (2, mismatch(2)),
        (3, Reply::Placed(Offset(2))),
        (4, mismatch(3)),
        (5, mismatch(3)),
    ];
    assert_eq!(told, due);
    assert_eq!(world.read(0, 0), [0, 10, 12], "what was refused is not there");
    assert_eq!(state(&mut world, "k"), is("v", 2, 2));
    assert_eq!(ask(&mut world, publish_if(15, 0)), mismatch(3));
    assert_eq!(ask(&mut world, publish_if(15, 3)), Reply::Placed(Offset(3)));
}

#[test]
fn the_next_offset_of_a_log_that_skips_is_the_one_behind() {
    let mut world = World::new(Fsync::Periodic);
    world.serve(0, LogSource::New);
    for token in 0..20 {
        assert_eq!(world.stored(token, None), token);
    }
    let mut world = world.lose_power(Fsync::Periodic);
    let Reply::Ends { end, .. } = ask(&mut world, StreamAsk::Ends) else { panic!("no ends") };
    let Reply::OffsetMismatch { tail } = ask(&mut world, publish_if(30, end.0)) else { panic!("at {end}") };
    assert!(tail > end, "{tail} {end}");
    assert_eq!(read(&mut world, page(end.0, None, 0, 0)), (Vec::new(), tail.0), "reading goes there too");
    assert_eq!(ask(&mut world, publish_if(30, tail.0)), Reply::Placed(tail));
    assert_eq!(read(&mut world, page(end.0, None, 0, 0)), (vec![(tail.0, 30)], tail.0 + 1));
}

#[test]
fn a_numbered_commit_is_made_once_however_often_it_comes_also_after_a_kill() {
    let mut world = world(3);
    let first = numbered(commit(3, &[put("k", "1")]), 0);
    send(&mut world, 1, first.clone());
    send(&mut world, 2, first.clone());
    world.run(MS * 60);
    // The log is read first, for what it says of the producer.
    assert_eq!(answers(&mut world), [(1, Reply::Placed(Offset(3))), (2, Reply::Placed(Offset(3)))]);
    let other = numbered(commit(3, &[put("k", "2")]), 0);
    let number = |why| refused(AskRefused::NotWritten(NotWritten::Number(why)));
    assert_eq!(ask(&mut world, other), number(NumberRefusal::Reused));
    let mut world = world.restart(Fsync::OnCommit);
    send(&mut world, 1, first.clone());
    world.run(MS * 60);
    assert_eq!(answers(&mut world), [(1, Reply::Placed(Offset(3)))]);
    let gap = NumberRefusal::Gap { expected: Sequence(1) };
    assert_eq!(ask(&mut world, numbered(commit(5, &[]), 2)), number(gap));
    // One that was made is answered as the first time, whatever the next offset is.
    assert_eq!(ask(&mut world, at(first, 3)), Reply::Placed(Offset(3)));
    let second = numbered(commit(4, &[put("k", "2")]), 1);
    assert!(matches!(ask(&mut world, second), Reply::Placed(offset) if offset >= Offset(4)));
    assert_eq!(state(&mut world, "k").0.as_deref(), Some("2"));
}

#[test]
fn pages_are_bounded_and_cursors_outside_are_told() {
    let mut world = world(10);
    assert_eq!(ask(&mut world, commit(10, &[put("k", "v")])), Reply::Placed(Offset(10)));
    let all: Vec<_> = (0..=10).map(|at| (at, at)).collect();
    assert_eq!(read(&mut world, page(0, None, 0, 0)), (all.clone(), 11));
    assert_eq!(read(&mut world, page(4, None, 2, 0)), (vec![(4, 4), (5, 5)], 6));
    assert_eq!(read(&mut world, page(4, None, 0, 17)), (vec![(4, 4), (5, 5)], 6));
    assert_eq!(read(&mut world, page(4, None, 0, 1)), (vec![(4, 4)], 5), "one at least");
    assert_eq!(read(&mut world, page(8, Some(10), 0, 0)), (vec![(8, 8), (9, 9)], 10));
    assert_eq!(read(&mut world, page(11, None, 0, 0)), (Vec::new(), 11), "nothing waits at the end");
    let cursor = |too_old, requested, available| {
        let (requested, available) = (Offset(requested), Offset(available));
        Reply::Cursor { too_old, requested, available }
    };
    assert_eq!(ask(&mut world, page(12, None, 0, 0)), cursor(false, 12, 11));
    let mut world = world.restart(Fsync::OnCommit);
    let next = read(&mut world, page(0, None, 0, 0));
    assert_eq!(next.0, all, "from the files");
    let at = world.cores[0].shards[&SHARD].log().expect("a log");
    world.cores[0].store.as_mut().expect("logs").engine(at).expect("there").move_start(at.log, Offset(5));
    world.run(MS * 20);
    assert_eq!(ask(&mut world, page(4, None, 0, 0)), cursor(true, 4, 5));
}

#[test]
fn a_page_of_many_records_in_one_batch_begins_and_ends_inside() {
    let mut world = world(0);
    let records = Records::from_payloads((0..20_000_u64).map(u64::to_be_bytes));
    world.send(0, Job { token: JobToken(1), records, producer: None });
    world.run(MS * 50);
    assert_eq!(world.settled(), [(1, Some(0))]);
    let mut at = 0;
    while at < 20_000 {
        let (found, next) = read(&mut world, page(at, None, 0, 0));
        let due: Vec<_> = (at..(at + 8_192).min(20_000)).map(|at| (at, at)).collect();
        assert_eq!((found.len(), next), (due.len(), at + due.len() as u64));
        assert_eq!(found, due);
        at = next;
    }
}

#[test]
fn a_time_is_found_in_any_segment_and_between_any_records() {
    let mut world = World::new(Fsync::OnCommit);
    world.serve(0, LogSource::New);
    let payload = vec![7; 10_000];
    for step in 0..250_u64 {
        world.unix_ms = 10_000 + 10 * (step / 2);
        world.turn();
        let records = Records::from_payloads([&payload, &payload]);
        world.send(0, Job { token: JobToken(step), records, producer: None });
        world.run(MS * 5);
    }
    assert_eq!(world.settled().len(), 250);
    for world in [&mut world.restart(Fsync::OnCommit)] {
        for (at_ms, due) in
            [(0, 0), (10_000, 0), (10_001, 4), (10_010, 4), (10_500, 200), (11_239, 496), (11_240, 496)]
        {
            assert_eq!(ask(world, StreamAsk::TimeOf { at_ms }), Reply::TimeOf(Some(Offset(due))), "{at_ms}");
        }
        assert_eq!(ask(world, StreamAsk::TimeOf { at_ms: 11_241 }), Reply::TimeOf(None));
        let at = world.cores[0].shards[&SHARD].log().expect("a log");
        assert!(world.cores[0].store.as_ref().expect("logs").log(at).expect("there").sealed().count() > 1);
    }
}

#[test]
fn an_empty_log_has_no_time_and_no_records() {
    let mut world = world(0);
    assert_eq!(ask(&mut world, StreamAsk::TimeOf { at_ms: 0 }), Reply::TimeOf(None));
    assert_eq!(read(&mut world, page(0, None, 0, 0)), (Vec::new(), 0));
    assert_eq!(state(&mut world, "k"), (None, None, None));
}

#[test]
fn a_log_that_fails_leaves_commits_unknown_and_the_state_that_was_settled() {
    let mut world = world(0);
    assert_eq!(ask(&mut world, commit(0, &[put("k", "1")])), Reply::Placed(Offset(0)));
    assert_eq!(state(&mut world, "k"), is("1", 0, 0));
    world.disk.choose_faults(|asked| {
        let slot = asked.path.is_some_and(|path| path.as_str().contains("slots/"));
        (slot && asked.kind == OpKind::Write).then_some(Fault::Error(DiskError::Io { errno: 5 }))
    });
    send(&mut world, 1, commit(1, &[put("k", "2")]));
    send(&mut world, 2, publish_if(9, 0));
    world.run(MS * 30);
    let told = answers(&mut world);
    let stopped = || refused(AskRefused::NotWritten(NotWritten::Stopped));
    assert!(told.contains(&(1, refused(AskRefused::Unknown(Doubt::LogFailed)))), "{told:?}");
    assert!(told.contains(&(2, stopped())), "it was not written, whatever became of the other: {told:?}");
    assert_eq!(ask(&mut world, commit(2, &[])), stopped());
    assert_eq!(ask(&mut world, publish_if(2, 0)), stopped());
    assert_eq!(state(&mut world, "k"), is("1", 0, 0));
}

#[test]
fn state_is_refused_where_damage_may_hide_a_newer_value() {
    let mut world = world(0);
    for (number, key) in [(0, "old"), (1, "hit"), (2, "new")] {
        let done = ask(&mut world, commit(number, &[put(key, "v")]));
        assert_eq!(done, Reply::Placed(Offset(number)));
    }
    let mut world = world.restart_damaged(Fsync::OnCommit, 1);
    let damaged = || refused(AskRefused::Damaged { from: Offset(1), next: Offset(2) });
    assert_eq!(state(&mut world, "new"), is("v", 2, 2), "it was put behind the damage");
    for key in [&b"old"[..], b"hit", b"never"] {
        let what = StreamAsk::State { key: Bytes::copy_from_slice(key) };
        assert_eq!(ask(&mut world, what), damaged(), "{key:?}");
    }
    assert_eq!(read(&mut world, page(0, None, 0, 0)), (vec![(0, 0)], 1));
    assert_eq!(ask(&mut world, page(1, None, 0, 0)), damaged());
    assert_eq!(read(&mut world, page(2, None, 0, 0)), (vec![(2, 2)], 3));
    assert_eq!(ask(&mut world, commit(3, &[put("old", "w")])), Reply::Placed(Offset(3)));
    assert_eq!(state(&mut world, "old"), is("w", 3, 3));
}

/// What a world with a write under way, one that waits for what that meets, and a read says when its log goes.
fn told_when_the_log_goes(order: impl Fn(ShardKey) -> LogOrder) -> Vec<(u64, Option<Reply>)> {
    let mut world = world(3).restart(Fsync::OnCommit);
    assert_eq!(ask(&mut world, commit(3, &[])), Reply::Placed(Offset(3)));
    send(&mut world, 1, commit(4, &[put("k", "v")]));
    send(&mut world, 2, publish_if(5, 0));
    send(&mut world, 3, page(0, None, 0, 0));
    world.turn();
    let key = world.route(Owner::Nobody { reason: "moving" }).log_key(LogRole::Records, ShardIndex(0));
    world.cores[0].handle_admin(world.now, ToCore::Log(order(key)));
    world.run(MS * 50);
    let mut told: Vec<_> = std::mem::take(&mut world.answers)
        .into_iter()
        .map(|answer| match answer {
            ShardOutput::Answered { token, reply } => (token.0, Some(reply)),
            ShardOutput::AskBack { token, ask: Ask::Stream(_) } => (token.0, None),
            other => panic!("another answer: {other:?}"),
        })
        .collect();
    told.sort_by_key(|(token, _)| *token);
    told
}

#[test]
fn what_was_asked_of_a_shard_that_moves_is_asked_again_and_of_a_deleted_one_refused() {
    let moved = told_when_the_log_goes(|key| LogOrder::Release { key });
    let unknown = refused(AskRefused::Unknown(Doubt::Moved));
    assert_eq!(moved, [(1, Some(unknown)), (2, None), (3, None)]);
    let deleted = told_when_the_log_goes(|key| LogOrder::Delete { key, volume: 0, source: LogSource::New });
    let gone = || Some(refused(AskRefused::NotWritten(NotWritten::Deleted)));
    assert_eq!(deleted, [(1, gone()), (2, gone()), (3, gone())]);
}

#[test]
fn a_write_that_finds_no_room_waits_and_is_refused_when_it_has_waited_too_long() {
    let mut world = world(1);
    world.disk.choose_faults(|asked| {
        (asked.kind == OpKind::Write).then_some(Fault::Stall(Duration::from_secs(20)))
    });
    let value = "v".repeat(1 << 19);
    for token in 0..100 {
        let changes = [put("k", &value)];
        send(&mut world, token, commit(token, &changes));
    }
    send(&mut world, 100, publish_if(7, 0));
    world.run(CoreLimits::default().publish_queue_wait + MS * 200);
    let told = answers(&mut world);
    let overloaded = told.iter().filter(|(_, reply)| *reply == refused(AskRefused::Overloaded)).count();
    assert!(overloaded > 0 && overloaded == told.len(), "{told:?}");
    world.disk.choose_faults(|_| None);
    world.run(Duration::from_secs(30));
    let placed = answers(&mut world);
    let all: Vec<u64> = placed.iter().map(|(token, _)| *token).collect();
    assert_eq!(placed.len() + overloaded, 101, "each is answered once");
    assert!(all.is_sorted() && placed.iter().all(|(_, reply)| matches!(reply, Reply::Placed(_))));
}
