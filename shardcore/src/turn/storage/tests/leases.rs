//! Members of the groups of a stream whose shard 0 a core leads, as another core sees them, and what leases do to polls.

use felix_wire::id::LeaseId;

use super::groups::{answers, poll, world};
use super::*;
use crate::lease::{Heartbeat, Join, LeaseAsk, LeaseRefused, LeaseWhat, LeasesView, MemberName};
use crate::projection::group::GroupRefused;
use crate::shard::ask::{Ask, AskRefused, AskToken, GroupAsk, GroupWhat, Reply};

const MS: Duration = Duration::from_millis(1);
const TERM: Duration = Duration::from_secs(2);

fn name(member: &str) -> MemberName {
    MemberName { name: member.into(), principal: "p".into() }
}

fn send(world: &mut World, token: u64, what: LeaseWhat) {
    let ask = Ask::Lease(Box::new(LeaseAsk { group: "g".into(), shards: 1, what }));
    world.ask(0, ShardInput::Ask { token: AskToken(token), ask });
    world.run(MS * 5);
}

fn join(world: &mut World, token: u64, member: &str, term: Duration) -> LeasesView {
    send(world, token, LeaseWhat::Join(Join { name: name(member), instance: 1, term }));
    let told = answers(world);
    let [(_, Reply::Leases(view))] = &told[..] else { panic!("{told:?}") };
    (**view).clone()
}

fn waiting(member: &str, view: &LeasesView) -> LeaseWhat {
    let (session, seen) = (view.session, Some(view.version));
    LeaseWhat::Heartbeat(Heartbeat { name: name(member), session, released: Vec::new(), seen, wait: TERM })
}

fn under(world: &mut World, token: u64, lease: LeaseId, what: GroupWhat) -> Vec<(u64, Reply)> {
    let ask = Ask::Group(Box::new(GroupAsk { group: "g".into(), lease: Some(lease), what }));
    world.ask(0, ShardInput::Ask { token: AskToken(token), ask });
    world.run(MS * 30);
    answers(world)
}

fn offsets(told: &[(u64, Reply)]) -> Vec<(u64, u32)> {
    let [(_, Reply::Polled(records))] = told else { panic!("{told:?}") };
    records.iter().map(|record| (record.handed.offset.0, record.handed.attempts)).collect()
}

#[test]
fn a_member_that_dies_is_kept_from_its_shard_by_the_lease_of_the_next_one() {
    let mut world = world(Fsync::OnCommit, 4);
    let a = join(&mut world, 1, "a", MS * 700);
    let first = a.leases[0].lease;
    // The log of the groups is made for the first one that asks.
    world.ask(
        0,
        ShardInput::Ask {
            token: AskToken(2),
            ask: Ask::Group(Box::new(GroupAsk { group: "g".into(), lease: None, what: GroupWhat::Describe })),
        },
    );
    world.run(MS * 200);
    world.answers.clear();
    assert_eq!(offsets(&under(&mut world, 3, first, poll(2, Duration::ZERO))), [(0, 1), (1, 1)]);
    let acked = under(&mut world, 4, first, GroupWhat::Ack { offset: Offset(0), count: 1 });
    assert_eq!(acked, [(4, Reply::Written)]);
    let b = join(&mut world, 5, "b", TERM);
    assert_eq!(b.leases, []);
    send(&mut world, 6, waiting("b", &b));
    assert_eq!(answers(&mut world), [], "it waits");
    world.run(MS * 600);
    let told = answers(&mut world);
    let [(6, Reply::Leases(view))] = &told[..] else { panic!("{told:?}") };
    let second = view.leases[0].lease;
    assert!(second > first);
    assert_eq!(offsets(&under(&mut world, 8, second, poll(9, Duration::ZERO))), [(1, 2), (2, 1), (3, 1)]);
    let stale = Reply::Refused(AskRefused::Group(GroupRefused::StaleLease));
    for what in [
        GroupWhat::Ack { offset: Offset(1), count: 1 },
        GroupWhat::Nack { offset: Offset(1), attempts: 0, delay: Duration::ZERO },
        GroupWhat::Extend { offset: Offset(1), attempts: 2, by: MS * 100 },
        GroupWhat::DeadLetter { offset: Offset(1) },
        poll(1, Duration::ZERO),
    ] {
        assert_eq!(under(&mut world, 9, first, what), [(9, stale.clone())]);
    }
    let acked = under(&mut world, 10, second, GroupWhat::Ack { offset: Offset(1), count: 1 });
    assert_eq!(acked, [(10, Reply::Written)]);
}

#[test]
fn a_heartbeat_that_nobody_waits_for_is_answered_and_memberships_end_with_the_leadership() {
    let mut world = world(Fsync::OnCommit, 1);
    let a = join(&mut world, 1, "a", TERM);
    send(&mut world, 2, waiting("a", &a));
    assert_eq!(answers(&mut world), []);
    world.ask(0, ShardInput::Cancel { token: AskToken(2) });
    world.run(MS * 5);
    assert!(matches!(answers(&mut world)[..], [(2, Reply::Leases(_))]));
    send(&mut world, 3, waiting("a", &a));
    world.cores[0].handle_admin(world.now, ToCore::Drain);
    world.run(MS * 5);
    assert!(matches!(answers(&mut world)[..], [(3, Reply::Leases(_))]), "a drain waits for nobody");
    send(&mut world, 4, waiting("a", &a));
    let routes = Routes::new(9, [world.route(Owner::Nobody { reason: "moving" })], [Arc::from("t")]);
    world.cores[0].handle_admin(world.now, ToCore::Routes(Arc::new(routes)));
    world.run(MS * 5);
    let unknown = Reply::Refused(AskRefused::Lease(LeaseRefused::UnknownMember));
    assert_eq!(answers(&mut world), [(4, unknown)]);
    send(&mut world, 5, LeaseWhat::Members);
    let back = std::mem::take(&mut world.answers);
    assert!(matches!(back[..], [ShardOutput::AskBack { token: AskToken(5), .. }]), "{back:?}");
}
