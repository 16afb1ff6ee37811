use felix_wire::id::CoreId;

use super::*;
use crate::shard::ask::AskToken;

mod model;

const SECOND: Duration = Duration::from_secs(1);
const TERM: Duration = Duration::from_secs(9);
const STREAM: StreamUid = StreamUid(1);

/// The groups of a core, and what was answered.
struct World {
    leases: Leases,
    now: Tick,
    shards: u32,
    next: u64,
    answers: BTreeMap<u64, Reply>,
}

impl World {
    fn new(shards: u32) -> World {
        let mut leases = Leases::default();
        leases.begin(Tick::ZERO, 1_800_000_000_000);
        World { leases, now: Tick(1), shards, next: 0, answers: BTreeMap::new() }
    }

    fn send(&mut self, what: LeaseWhat) -> u64 {
        self.send_to("g", what)
    }

    fn send_to(&mut self, group: &str, what: LeaseWhat) -> u64 {
        self.next += 1;
        let ask = LeaseAsk { group: group.into(), shards: self.shards, what };
        let mut out = Vec::new();
        self.leases.ask(asker(self.next), (STREAM, ask), self.now, &mut out);
        self.take(out);
        self.next
    }

    fn take(&mut self, out: Vec<LeaseAnswer>) {
        for LeaseAnswer { asker, reply, .. } in out {
            assert_eq!(self.answers.insert(asker.token.0, reply), None, "answered once");
        }
    }

    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(due) = self.leases.next_deadline().filter(|due| *due <= end) {
            assert!(due >= self.now || self.now == end, "nothing is left behind");
            self.now = self.now.max(due);
            let mut out = Vec::new();
            self.leases.tick(self.now, &mut out);
            self.take(out);
        }
        self.now = end;
    }

    fn answer(&mut self, token: u64) -> Result<LeasesView, LeaseRefused> {
        match self.answers.remove(&token).expect("it is answered") {
            Reply::Leases(view) => Ok(*view),
            Reply::Refused(AskRefused::Lease(why)) => Err(why),
            other => panic!("{other:?}"),
        }
    }

    fn join(&mut self, member: &str, instance: u64) -> Result<LeasesView, LeaseRefused> {
        let token = self.send(join(member, instance));
        self.answer(token)
    }

    fn beat(&mut self, member: &str, view: &LeasesView) -> LeasesView {
        let token = self.send(beat(member, view.session, Vec::new()));
        self.answer(token).unwrap()
    }

    fn release(&mut self, member: &str, view: &LeasesView) -> LeasesView {
        let back = view.leases.iter().filter(|lease| lease.give_back).map(named).collect();
        let token = self.send(beat(member, view.session, back));
        self.answer(token).unwrap()
    }
}

fn asker(token: u64) -> Asker {
    Asker { core: CoreId(0), token: AskToken(token) }
}

fn name(member: &str) -> MemberName {
    MemberName { name: member.into(), principal: "p".into() }
}

fn join(member: &str, instance: u64) -> LeaseWhat {
    LeaseWhat::Join(Join { name: name(member), instance, term: TERM })
}

fn beat(member: &str, session: MembershipId, released: Vec<ShardLease>) -> LeaseWhat {
    let wait = Duration::ZERO;
    LeaseWhat::Heartbeat(Heartbeat { name: name(member), session, released, seen: None, wait })
}

fn named(lease: &LeaseView) -> ShardLease {
    ShardLease { shard: lease.shard, lease: lease.lease }
}

/// Shards that a member holds, and those of them that are asked back.
fn held(view: &LeasesView) -> (Vec<u32>, Vec<u32>) {
    let back = view.leases.iter().filter(|lease| lease.give_back).map(|lease| lease.shard.0);
    (view.leases.iter().map(|lease| lease.shard.0).collect(), back.collect())
}

#[test]
fn shards_are_dealt_evenly_and_only_those_that_must_move_do() {
    let mut world = World::new(8);
    let a = world.join("a", 1).unwrap();
    assert_eq!(held(&a), ((0..8).collect(), vec![]));
    let b = world.join("b", 1).unwrap();
    assert_eq!((held(&b), b.members), ((vec![], vec![]), 2), "nothing is taken from a member that holds it");
    let a = world.beat("a", &a);
    assert_eq!(held(&a), ((0..8).collect(), vec![4, 5, 6, 7]));
    let a = world.release("a", &a);
    let b = world.beat("b", &b);
    assert_eq!((held(&a), held(&b)), (((0..4).collect(), vec![]), ((4..8).collect(), vec![])));
    let c = world.join("c", 1).unwrap();
    let (a, b) = (world.beat("a", &a), world.beat("b", &b));
    assert_eq!((held(&a).1, held(&b).1), (vec![3], vec![7]), "3, 3 and 2");
    let (a, b) = (world.release("a", &a), world.release("b", &b));
    let c = world.beat("c", &c);
    assert_eq!((held(&a).0, held(&b).0, held(&c).0), (vec![0, 1, 2], vec![4, 5, 6], vec![3, 7]));
    let token = world.send(LeaseWhat::Leave { name: name("b"), session: b.session });
    assert_eq!(world.answers.remove(&token), Some(Reply::Written));
    let (a, c) = (world.beat("a", &a), world.beat("c", &c));
    assert_eq!((held(&a), held(&c)), ((vec![0, 1, 2, 5], vec![]), (vec![3, 4, 6, 7], vec![])));
}

#[test]
fn a_member_that_is_not_heard_of_loses_its_shards_after_its_term_and_one_that_keeps_them_after_it_was_asked()
{
    let mut world = World::new(4);
    let a = world.join("a", 1).unwrap();
    let b = world.join("b", 1).unwrap();
    // It goes on, and does not release what it is asked for.
    for _ in 0..8 {
        world.pass(SECOND);
        world.beat("a", &a);
        assert!(world.beat("b", &b).leases.is_empty());
    }
    world.pass(SECOND);
    let (a, b) = (world.beat("a", &a), world.beat("b", &b));
    assert_eq!((held(&a).0, held(&b).0), (vec![0, 1], vec![2, 3]));
    world.pass(TERM - SECOND);
    let b = world.beat("b", &b);
    assert_eq!(held(&b).0, [2, 3]);
    world.pass(SECOND);
    assert_eq!(held(&world.beat("b", &b)).0, [0, 1, 2, 3]);
    let token = world.send(beat("a", a.session, vec![]));
    assert_eq!(world.answer(token), Err(LeaseRefused::UnknownMember));
    world.pass(TERM);
    assert_eq!((world.leases.counts(), world.leases.bytes()), ((0, 0), 0), "nothing is left of nobody");
}

#[test]
fn what_is_not_asked_back_any_more_holds_as_long_as_its_member_believes() {
    let mut world = World::new(2);
    let a = world.join("a", 1).unwrap();
    let b = world.join("b", 1).unwrap();
    let asked = world.beat("a", &a);
    world.pass(6 * SECOND);
    let (session, seen) = (a.session, Some(asked.version));
    let wait = 3 * SECOND;
    let heartbeat = Heartbeat { name: name("a"), session, released: vec![], seen, wait };
    let waiting = world.send(LeaseWhat::Heartbeat(heartbeat));
    world.pass(SECOND);
    world.send(LeaseWhat::Leave { name: name("b"), session: b.session });
    let told = world.answer(waiting).unwrap();
    assert_eq!(held(&told), (vec![0, 1], vec![]));
    assert!(told.leases.iter().all(|lease| lease.left == TERM - SECOND), "counted from the heartbeat");
    // Somebody else does not get it before that.
    let b = world.join("b", 2).unwrap();
    world.pass(TERM - 2 * SECOND);
    assert_eq!(world.beat("b", &b).leases, []);
    world.pass(SECOND);
    assert_eq!(held(&world.beat("b", &b)).0, [0, 1]);
}

#[test]
fn a_heartbeat_waits_for_a_change_and_is_answered_once() {
    let mut world = World::new(2);
    let a = world.join("a", 1).unwrap();
    let waiting = |view: &LeasesView, wait: Duration| {
        let (session, seen) = (view.session, Some(view.version));
        LeaseWhat::Heartbeat(Heartbeat { name: name("a"), session, released: vec![], seen, wait })
    };
    let first = world.send(waiting(&a, 2 * SECOND));
    world.pass(SECOND);
    assert_eq!(world.answers.len(), 0);
    let second = world.send(waiting(&a, 60 * SECOND));
    assert_eq!(world.answer(first).unwrap().version, a.version, "another took its place");
    world.pass(TERM / 3 - SECOND);
    assert_eq!(world.answers.len(), 0);
    world.pass(SECOND);
    assert_eq!(held(&world.answer(second).unwrap()), (vec![0, 1], vec![]));
    let third = world.send(waiting(&a, 2 * SECOND));
    let b = world.join("b", 1).unwrap();
    let asked = world.answer(third).unwrap();
    assert_eq!(held(&asked), (vec![0, 1], vec![1]));
    let fourth = world.send(waiting(&asked, 2 * SECOND));
    // What is asked back is not, when whom it was for leaves.
    world.send(LeaseWhat::Leave { name: name("b"), session: b.session });
    let a = world.answer(fourth).unwrap();
    assert_eq!(held(&a), (vec![0, 1], vec![]));
    let fifth = world.send(waiting(&a, 2 * SECOND));
    let mut out = Vec::new();
    world.leases.cancel(asker(fifth), STREAM, world.now, &mut out);
    world.leases.cancel(asker(fifth), STREAM, world.now, &mut out);
    assert_eq!(out.len(), 1);
    let sixth = world.send(waiting(&a, 2 * SECOND));
    let mut out = Vec::new();
    world.leases.close(STREAM, &mut out);
    world.take(out);
    assert_eq!(world.answer(sixth), Err(LeaseRefused::UnknownMember));
    assert_eq!((world.leases.counts(), world.leases.next_deadline()), ((0, 0), None));
}

#[test]
fn a_newer_instance_takes_the_place_of_a_member_and_joining_twice_is_once() {
    let mut world = World::new(3);
    let old = world.join("a", 1).unwrap();
    assert_eq!(world.join("a", 1).unwrap(), old);
    let b = world.join("b", 1).unwrap();
    let (session, seen) = (old.session, None);
    let back = vec![ShardLease { shard: ShardIndex(2), lease: old.leases[2].lease }];
    let wait = Duration::ZERO;
    world.send(LeaseWhat::Heartbeat(Heartbeat { name: name("a"), session, released: back, seen, wait }));
    let new = world.join("a", 2).unwrap();
    assert_eq!((held(&new), new.members), ((vec![0, 1], vec![]), 2));
    for (before, after) in old.leases.iter().zip(&new.leases) {
        assert!(after.lease > before.lease, "what was claimed before is fenced");
    }
    let token = world.send(beat("a", old.session, vec![]));
    assert_eq!(world.answer(token), Err(LeaseRefused::MemberReplaced));
    world.send(LeaseWhat::Leave { name: name("a"), session: old.session });
    assert_eq!(held(&world.beat("a", &new)).0, [0, 1], "an old one that leaves takes nothing along");
    assert_eq!(held(&world.beat("b", &b)).0, [2]);
    // The same name of somebody else is another member.
    let other = MemberName { name: "a".into(), principal: "q".into() };
    let token = world.send(LeaseWhat::Join(Join { name: other, instance: 1, term: TERM }));
    assert_eq!(world.answer(token).unwrap().members, 3);
}

#[test]
fn a_release_that_comes_late_or_twice_ends_no_other_lease_and_one_that_cannot_be_is_refused() {
    let mut world = World::new(2);
    let a = world.join("a", 1).unwrap();
    let first = named(&a.leases[0]);
    let token = world.send(beat("a", a.session, vec![first]));
    let again = world.answer(token).unwrap();
    assert_eq!(held(&again).0, [0, 1], "nobody else is there for it");
    assert!(again.leases[0].lease > first.lease);
    let token = world.send(beat("a", a.session, vec![first]));
    assert_eq!(world.answer(token).unwrap().leases, again.leases);
    let never = ShardLease { shard: ShardIndex(0), lease: LeaseId(u64::MAX) };
    let nowhere = ShardLease { shard: ShardIndex(2), ..first };
    for (bad, why) in [(never, LeaseRefused::NeverHeld), (nowhere, LeaseRefused::NoSuchShard)] {
        let token = world.send(beat("a", a.session, vec![named(&again.leases[0]), bad]));
        assert_eq!(world.answer(token), Err(why));
    }
    assert_eq!(world.beat("a", &a).leases, again.leases, "nothing of a refused request happened");
    let b = world.join("b", 1).unwrap();
    let token = world.send(beat("b", b.session, vec![named(&again.leases[0])]));
    assert_eq!(world.answer(token).unwrap().leases, [], "not somebody else's");
    assert_eq!(held(&world.beat("a", &a)), (vec![0, 1], vec![1]));
}

#[test]
fn groups_members_and_memory_are_bounded_and_bad_requests_are_refused() {
    let mut world = World::new(1);
    for member in 0..MEMBERS_MAX {
        world.join(&format!("m{member}"), 1).unwrap();
    }
    assert_eq!(world.join("one more", 1), Err(LeaseRefused::TooManyMembers));
    assert!(world.join("m0", 2).is_ok(), "that is no member more");
    for group in 1..ROSTERS_MAX {
        let token = world.send_to(&format!("g{group}"), join("m", 1));
        world.answer(token).unwrap();
    }
    let token = world.send_to("one more", join("m", 1));
    assert_eq!(world.answer(token), Err(LeaseRefused::TooManyGroups));
    let mut wide = World::new(16_384);
    let refused = (0..ROSTERS_MAX).find_map(|group| {
        let token = wide.send_to(&format!("g{group}"), join("m", 1));
        wide.answer(token).err()
    });
    assert_eq!(refused, Some(LeaseRefused::TooMuchMemory));
    assert!(wide.leases.bytes() <= BYTES_MAX);
    wide.pass(2 * TERM);
    assert_eq!(wide.leases.bytes(), 0);
    for bad in ["", "a\nb", &"m".repeat(129)] {
        assert_eq!(check_member(bad), Err(LeaseRefused::MemberName));
    }
    assert_eq!(check_member(&"ü".repeat(64)), Ok(()));
    for bad in [0, 999, 600_001, u64::MAX] {
        assert_eq!(check_term(Some(bad)), Err(LeaseRefused::Term));
    }
    assert_eq!((check_term(None), check_term(Some(1_000))), (Ok(10 * SECOND), Ok(SECOND)));
}

#[test]
fn numbers_grow_whatever_the_clock_does_and_over_a_restart() {
    let mut world = World::new(2);
    let a = world.join("a", 1).unwrap();
    let mut numbers: Vec<u64> = vec![a.session.0];
    numbers.extend(a.leases.iter().map(|lease| lease.lease.0));
    assert!(numbers.is_sorted() && numbers[0] >= 1_800_000_000_000_000);
    // Said again later, when the clock was set back.
    world.leases.begin(world.now, 5);
    let b = world.join("b", 1).unwrap();
    assert!(b.session.0 > numbers[2]);
    let mut next = Leases::default();
    next.begin(Tick::ZERO, 1_800_000_001_000);
    assert!(next.numbers.take(Tick(1)) > b.session.0);
}
