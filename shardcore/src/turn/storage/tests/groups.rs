//! Consumer groups of a durable shard, as another core sees them.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::projection::group::{ConnectionId, GroupInfo, GroupRefused, Seek};
use crate::shard::ask::{Ask, AskRefused, AskToken, GroupAsk, GroupWhat, Reply};

const MS: Duration = Duration::from_millis(1);

/// A core that leads the shard, with `records` in it that say their offset.
pub(super) fn world(policy: Fsync, records: u64) -> World {
    let mut world = World::new(policy);
    grant(&mut world, &mut Vec::new());
    world.serve(0, LogSource::New);
    for token in 0..records {
        world.publish(0, token, None);
    }
    world.run(MS * 30);
    assert_eq!(world.settled().len() as u64, records);
    world
}

/// The log of the groups may be opened.
fn grant(world: &mut World, found: &mut Vec<LogState>) {
    let key = world.route(Owner::Nobody { reason: "moving" }).log_key(LogRole::Groups, ShardIndex(0));
    let source = match found.iter().position(|log| log.key == key) {
        Some(at) => LogSource::Recovered(Box::new(found.swap_remove(at))),
        None => LogSource::New,
    };
    world.cores[0].handle_admin(world.now, ToCore::Log(LogOrder::Open { key, volume: 0, source }));
}

pub(super) fn restart(mut world: World, policy: Fsync) -> World {
    world.disk.kill();
    let (mut next, mut logs) = World::over(world.disk, policy, 1);
    grant(&mut next, &mut logs);
    let log = logs.into_iter().find(|log| log.end.0 > 0).expect("the log of the records");
    next.serve(0, LogSource::Recovered(Box::new(log)));
    next
}

pub(super) fn send(world: &mut World, token: u64, what: GroupWhat) {
    let ask = Ask::Group(Box::new(GroupAsk { group: "g".into(), lease: None, what }));
    world.ask(0, ShardInput::Ask { token: AskToken(token), ask });
}

pub(super) fn poll(most: u32, wait: Duration) -> GroupWhat {
    GroupWhat::Poll {
        connection: ConnectionId(1),
        max_records: most,
        wait,
        visibility: Duration::ZERO,
        member: None,
        reclaim: false,
    }
}

pub(super) fn answers(world: &mut World) -> Vec<(u64, Reply)> {
    let told = std::mem::take(&mut world.answers).into_iter().filter_map(|answer| match answer {
        ShardOutput::Answered { token, reply } => Some((token.0, reply)),
        ShardOutput::Published { .. } => None,
        other => panic!("another answer: {other:?}"),
    });
    told.collect()
}

/// Asks, as a core does: again when it comes back because the log of the groups is being read.
pub(super) fn ask(world: &mut World, what: GroupWhat) -> Reply {
    send(world, 1, what.clone());
    world.run(MS * 30);
    for _ in 0..20 {
        // The log of the groups may have to be made.
        if world.answers.is_empty() {
            world.run(MS * 30);
        }
    }
    if matches!(world.answers[..], [ShardOutput::AskBack { .. }]) {
        world.answers.clear();
        send(world, 1, what);
        world.run(MS * 30);
    }
    let answers = answers(world);
    let [(1, reply)] = &answers[..] else { panic!("not one answer: {answers:?}") };
    reply.clone()
}

/// Offset, what the record says, and which time it is handed out.
pub(super) fn records(reply: &Reply) -> Vec<(u64, u64, u32)> {
    let Reply::Polled(records) = reply else { panic!("not records: {reply:?}") };
    records.iter().map(|r| (r.handed.offset.0, number(&r.payload), r.handed.attempts)).collect()
}

pub(super) fn polled(world: &mut World, most: u32) -> Vec<(u64, u64, u32)> {
    records(&ask(world, poll(most, Duration::ZERO)))
}

fn ack(world: &mut World, offset: u64) {
    assert_eq!(ask(world, GroupWhat::Ack { offset: Offset(offset), count: 1 }), Reply::Written, "{offset}");
}

#[test]
fn records_are_handed_out_from_the_log_and_what_was_acked_does_not_come_again_after_a_kill() {
    for policy in [Fsync::OnCommit, Fsync::Periodic, Fsync::None] {
        let mut world = world(policy, 50);
        let first: Vec<_> = (0..20).map(|at| (at, at, 1)).collect();
        assert_eq!(polled(&mut world, 20), first);
        for offset in [0, 1, 2, 5] {
            ack(&mut world, offset);
        }
        let Reply::Group(info) = ask(&mut world, GroupWhat::Describe) else { panic!() };
        assert_eq!((info.committed, info.tail, info.in_flight), (Some(Offset(3)), Offset(50), 16));
        let mut world = restart(world, policy);
        let again: Vec<_> = [3, 4, 6, 7].into_iter().map(|at| (at, at, 1)).collect();
        assert_eq!(polled(&mut world, 4), again, "claims were lost, acks were not");
        let stale = Reply::Refused(AskRefused::Group(GroupRefused::StaleClaim));
        assert_eq!(ask(&mut world, GroupWhat::Ack { offset: Offset(30), count: 1 }), stale);
        let never = Reply::Refused(AskRefused::Group(GroupRefused::NeverHandedOut));
        assert_eq!(ask(&mut world, GroupWhat::Ack { offset: Offset(50_000), count: 1 }), never);
    }
}

#[test]
fn polls_at_once_share_what_was_read_ahead_and_each_record_is_handed_out_once() {
    let mut world = restart(world(Fsync::OnCommit, 600), Fsync::OnCommit);
    assert_eq!(polled(&mut world, 1), [(0, 0, 1)]);
    let reads = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&reads);
    world.disk.choose_faults(move |asked| {
        counted.fetch_add(usize::from(asked.kind == OpKind::Read), Ordering::Relaxed);
        None
    });
    // What was read for the first poll is not kept for ever.
    world.run(MS * 5_000);
    (0..8).for_each(|token| send(&mut world, token, poll(40, Duration::ZERO)));
    world.run(MS * 100);
    let mut got: Vec<_> = answers(&mut world).iter().flat_map(|(_, reply)| records(reply)).collect();
    got.sort_unstable();
    assert!(got.iter().copied().eq((1..321).map(|at| (at, at, 1))), "{got:?}");
    assert_eq!(reads.load(Ordering::Relaxed), 2, "one for these, and one ahead of those that come");
    for offset in [300, 5, 17] {
        let nack = GroupWhat::Nack { offset: Offset(offset), attempts: 1, delay: Duration::ZERO };
        assert_eq!(ask(&mut world, nack), Reply::Written);
    }
    let wanted = [(5, 5, 2), (17, 17, 2), (300, 300, 2), (321, 321, 1), (322, 322, 1)];
    assert_eq!(polled(&mut world, 5), wanted);
}

#[test]
fn a_log_of_groups_that_cannot_be_read_is_read_again_after_a_pause() {
    let mut world = world(Fsync::OnCommit, 3);
    assert_eq!(polled(&mut world, 2).len(), 2);
    ack(&mut world, 0);
    world.disk.kill();
    let (mut next, mut logs) = World::over(world.disk, Fsync::OnCommit, 1);
    grant(&mut next, &mut logs);
    let log = logs.into_iter().find(|log| log.end.0 > 0).expect("the log of the records");
    next.serve(0, LogSource::Recovered(Box::new(log)));
    let mut fails = 2;
    next.disk.choose_faults(move |asked| {
        let hit = fails > 0 && asked.kind == OpKind::Read;
        fails -= u32::from(hit);
        hit.then_some(Fault::Error(DiskError::Io { errno: 5 }))
    });
    send(&mut next, 1, GroupWhat::Describe);
    next.run(MS * 100);
    assert!(matches!(next.answers[..], [ShardOutput::AskBack { .. }]), "{:?}", next.answers);
    next.answers.clear();
    next.run(MS * 2_000);
    let again: Vec<_> = [1, 2].into_iter().map(|at| (at, at, 1)).collect();
    assert_eq!(polled(&mut next, 4), again, "the ack is not forgotten");
}

#[test]
fn an_ack_is_answered_when_it_is_durable_and_not_before() {
    let mut world = world(Fsync::OnCommit, 3);
    assert_eq!(polled(&mut world, 3).len(), 3);
    send(&mut world, 7, GroupWhat::Ack { offset: Offset(0), count: 1 });
    for _ in 0..10 {
        world.turn();
    }
    assert_eq!(answers(&mut world), [], "the disk has not answered");
    world.run(MS * 30);
    assert_eq!(answers(&mut world), [(7, Reply::Written)]);
}

#[test]
fn a_waiting_poll_is_woken_by_a_record_or_answered_empty_at_its_time_or_when_nobody_waits() {
    let mut world = world(Fsync::OnCommit, 1);
    assert_eq!(polled(&mut world, 9), [(0, 0, 1)]);
    send(&mut world, 5, poll(9, MS * 5_000));
    world.run(MS * 1_000);
    assert_eq!(answers(&mut world), []);
    world.publish(0, 1, None);
    world.run(MS * 30);
    let woken = answers(&mut world);
    assert_eq!((woken[0].0, records(&woken[0].1)), (5, vec![(1, 1, 1)]));
    send(&mut world, 6, poll(9, MS * 500));
    world.run(MS * 490);
    assert_eq!(answers(&mut world), []);
    world.run(MS * 40);
    assert_eq!(answers(&mut world), [(6, Reply::Polled(Vec::new()))]);
    send(&mut world, 7, poll(9, MS * 20_000));
    world.run(MS * 10);
    world.ask(0, ShardInput::Cancel { token: AskToken(7) });
    world.run(MS * 10);
    assert_eq!(answers(&mut world), [(7, Reply::Polled(Vec::new()))]);
    world.publish(0, 2, None);
    world.run(MS * 30);
    assert_eq!(answers(&mut world), [], "it takes no record along");
    assert_eq!(polled(&mut world, 9), [(2, 2, 1)]);
    assert!(world.cores[0].groups[&SHARD].is_idle());
}

#[test]
fn claims_lapse_attempts_run_out_and_dead_letters_are_listed_after_a_kill() {
    let mut world = world(Fsync::OnCommit, 2);
    for attempt in 1..=5 {
        assert_eq!(polled(&mut world, 9), [(0, 0, attempt), (1, 1, attempt)]);
        if attempt == 5 {
            ack(&mut world, 1);
        }
        world.run(MS * 31_000);
    }
    assert_eq!(polled(&mut world, 9), []);
    let mut world = restart(world, Fsync::OnCommit);
    assert_eq!(ask(&mut world, GroupWhat::DeadLetters), Reply::DeadLetters(vec![Offset(0)]));
    assert_eq!(ask(&mut world, GroupWhat::Redrive { offset: Offset(0) }), Reply::Written);
    assert_eq!(polled(&mut world, 9), [(0, 0, 1)]);
    let back = GroupWhat::Nack { offset: Offset(0), attempts: 1, delay: MS * 1_000 };
    assert_eq!(ask(&mut world, back.clone()), Reply::Written);
    let stale = Reply::Refused(AskRefused::Group(GroupRefused::StaleClaim));
    assert_eq!(ask(&mut world, back), stale);
    assert_eq!(polled(&mut world, 9), []);
    world.run(MS * 1_000);
    assert_eq!(polled(&mut world, 9), [(0, 0, 2)]);
    let extend = GroupWhat::Extend { offset: Offset(0), attempts: 2, by: MS * 60_000 };
    assert_eq!(ask(&mut world, extend), Reply::Extended(MS * 60_000));
    world.run(MS * 55_000);
    assert_eq!(polled(&mut world, 9), [], "it is held longer");
    assert_eq!(ask(&mut world, GroupWhat::DeadLetter { offset: Offset(0) }), Reply::Written);
    assert_eq!(ask(&mut world, GroupWhat::Discard { offset: Offset(0) }), Reply::Written);
    let unlisted = Reply::Refused(AskRefused::Group(GroupRefused::NotListed));
    assert_eq!(ask(&mut world, GroupWhat::Discard { offset: Offset(0) }), unlisted);
}

#[test]
fn groups_are_moved_described_and_deleted_and_that_survives_a_kill() {
    let mut world = world(Fsync::OnCommit, 10);
    let seek = |to, if_new| GroupWhat::Seek { to, if_new };
    let at = |offset, moved| Reply::Position { offset: Offset(offset), moved };
    assert_eq!(ask(&mut world, seek(Seek::Offset(Offset(7)), true)), at(7, true));
    assert_eq!(ask(&mut world, seek(Seek::Earliest, true)), at(7, false));
    let mut world = restart(world, Fsync::OnCommit);
    assert_eq!(polled(&mut world, 2), [(7, 7, 1), (8, 8, 1)]);
    let future = GroupRefused::InFuture { tail: Offset(10) };
    let refused = ask(&mut world, seek(Seek::Offset(Offset(11)), false));
    assert!(
        matches!(refused, Reply::Refused(AskRefused::Group(GroupRefused::InFuture { .. }))),
        "{future:?}"
    );
    assert_eq!(ask(&mut world, GroupWhat::Delete), Reply::Existed(true));
    assert_eq!(ask(&mut world, GroupWhat::Delete), Reply::Existed(false));
    let mut world = restart(world, Fsync::OnCommit);
    let Reply::Group(GroupInfo { committed: None, dead_letters: 0, .. }) =
        ask(&mut world, GroupWhat::Describe)
    else {
        panic!("it is as if it had never been")
    };
    assert_eq!(polled(&mut world, 1), [(0, 0, 1)]);
}

#[test]
fn a_damaged_record_becomes_a_dead_letter_and_those_around_it_are_handed_out() {
    let mut world = World::new(Fsync::OnCommit);
    world.serve(0, LogSource::New);
    for token in 0..30 {
        world.publish(0, token, None);
        world.run(MS * 2);
    }
    assert_eq!(world.settled().len(), 30);
    let mut world = world.restart_damaged(Fsync::OnCommit, 12);
    grant(&mut world, &mut Vec::new());
    let mut seen = Vec::new();
    for _ in 0..6 {
        seen.extend(polled(&mut world, 9).into_iter().map(|(offset, ..)| offset));
    }
    let Reply::DeadLetters(dead) = ask(&mut world, GroupWhat::DeadLetters) else { panic!() };
    assert!(dead.contains(&Offset(12)), "{dead:?}");
    let mut all: Vec<u64> = seen.iter().copied().chain(dead.iter().map(|offset| offset.0)).collect();
    all.sort_unstable();
    assert_eq!(all, (0..30).collect::<Vec<_>>(), "each is handed out or listed");
}

#[test]
fn a_log_of_groups_that_fails_is_told_and_the_stream_goes_on() {
    let mut world = world(Fsync::OnCommit, 3);
    assert_eq!(polled(&mut world, 1), [(0, 0, 1)]);
    send(&mut world, 9, poll(1, MS * 20_000));
    send(&mut world, 10, poll(9, MS * 20_000));
    send(&mut world, 11, poll(9, MS * 20_000));
    world.run(MS * 20);
    answers(&mut world);
    world.disk.choose_faults(|asked| {
        let slot = asked.path.is_some_and(|path| path.as_str().contains("slots/"));
        (slot && asked.kind == OpKind::Write).then_some(Fault::Error(DiskError::Io { errno: 5 }))
    });
    send(&mut world, 1, GroupWhat::Ack { offset: Offset(0), count: 1 });
    world.run(MS * 50);
    let told = answers(&mut world);
    let unknown = Reply::Refused(AskRefused::Unknown(Doubt::LogFailed));
    assert!(told.contains(&(1, unknown)), "{told:?}");
    assert!(told.iter().any(|(token, _)| *token == 11), "a poll does not wait for ever: {told:?}");
    assert!(matches!(ask(&mut world, GroupWhat::Describe), Reply::Refused(AskRefused::Broken(_))));
    assert_eq!(world.read(0, 0), [0, 1, 2]);
}
