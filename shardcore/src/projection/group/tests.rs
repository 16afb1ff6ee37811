use felix_runtime::sim::SimRng;

use super::*;
use crate::projection::cache::compact::LogShape;
use crate::projection::record::RecordFault;
use crate::projection::test_log::TestLog;

mod model;

const SECOND: Duration = Duration::from_secs(1);

/// The groups of a shard with their log, and a shard whose records are all there.
struct Shard {
    core: GroupsCore,
    log: TestLog,
    now: Tick,
    polls: u64,
    out: Vec<GroupOutput>,
}

impl Shard {
    fn new(records: u64, settings: GroupSettings) -> Shard {
        let mut core = GroupsCore::new(settings, Offset(0), Offset(0));
        let mut out = Vec::new();
        core.shard_ends(Offset(records), Tick::ZERO, &mut out);
        Shard { core, log: TestLog::default(), now: Tick::ZERO, polls: 0, out }
    }

    fn ask(&mut self, max: u32) -> Poll {
        self.polls += 1;
        Poll {
            id: PollId(self.polls),
            connection: ConnectionId(1),
            max_records: max,
            visibility: Duration::ZERO,
            wait_until: None,
            member: None,
            reclaim: false,
            lease: None,
        }
    }

    /// Sends a poll and reads for it. None while it waits.
    fn poll_with(&mut self, poll: Poll) -> Option<Vec<(u64, u32)>> {
        let id = poll.id;
        self.core.poll("g", poll, self.now, &mut self.out).unwrap();
        self.serve().into_iter().find(|(answered, _)| *answered == id).map(|(_, records)| records)
    }

    fn poll(&mut self, max: u32) -> Vec<(u64, u32)> {
        let poll = self.ask(max);
        self.poll_with(poll).expect("it does not wait")
    }

    /// Reads for every poll that wants it; gives what was answered.
    fn serve(&mut self) -> Vec<(PollId, Vec<(u64, u32)>)> {
        let mut answers = Vec::new();
        while !self.out.is_empty() {
            for output in std::mem::take(&mut self.out) {
                match output {
                    GroupOutput::Empty(poll) => answers.push((poll, Vec::new())),
                    GroupOutput::Fetch(Fetch { poll, offsets }) => {
                        let handed = self.core.fetched(poll, (&offsets, &[]), self.now, &mut self.out);
                        let handed = handed.expect("it is wanted");
                        answers.push((poll, handed.iter().map(|h| (h.offset.0, h.attempts)).collect()));
                    }
                }
            }
        }
        self.append();
        answers
    }

    /// Appends what has changed.
    fn append(&mut self) {
        let drafts = self.core.take_drafts();
        self.claim(drafts);
    }

    fn claim(&mut self, drafts: Vec<Draft>) {
        let payloads: Vec<Vec<u8>> = drafts
            .iter()
            .map(|draft| {
                let mut payload = Vec::new();
                draft.encode(&mut payload);
                payload
            })
            .collect();
        if !payloads.is_empty() {
            self.log.append(&payloads, 0);
            self.core.claimed(self.log.end);
        }
    }

    fn ack(&mut self, at: u64) -> Result<(), GroupRefused> {
        self.ack_run(at, 1)
    }

    fn ack_run(&mut self, from: u64, count: u32) -> Result<(), GroupRefused> {
        let done = self.core.ack("g", (Offset(from), count), self.now, &mut self.out);
        self.append();
        done
    }

    fn nack(&mut self, at: u64, attempts: u32, delay: Duration) -> Result<(), GroupRefused> {
        let done = self.core.nack("g", (Offset(at), attempts), delay, self.now, &mut self.out);
        self.append();
        done
    }

    fn pass(&mut self, by: Duration) -> Vec<(PollId, Vec<(u64, u32)>)> {
        self.now += by;
        while self.core.next_deadline().is_some_and(|at| at <= self.now) {
            self.core.tick(self.now, &mut self.out);
        }
        self.serve()
    }

    fn info(&self) -> GroupInfo {
        self.core.describe("g").unwrap()
    }

    fn dead(&self) -> Vec<u64> {
        self.core.dead_letters("g", 1_000).unwrap().iter().map(|at| at.0).collect()
    }

    fn restarted(&self) -> Shard {
        let extent = self.core.extent;
        let mut core = GroupsCore::new(self.core.settings, Offset(extent.start), Offset(extent.end));
        self.log.batches.iter().for_each(|batch| core.replay(batch).unwrap());
        core.replayed();
        Shard { core, log: self.log.clone(), now: self.now, polls: self.polls, out: Vec::new() }
    }
}

fn offsets(records: &[(u64, u32)]) -> Vec<u64> {
    records.iter().map(|(at, _)| *at).collect()
}

#[test]
fn records_are_handed_out_in_order_and_the_position_passes_what_is_finished() {
    let mut shard = Shard::new(5, GroupSettings::default());
    assert_eq!(shard.info().committed, None, "no position before anything is finished");
    assert_eq!(shard.poll(3), [(0, 1), (1, 1), (2, 1)]);
    assert_eq!(shard.poll(10), [(3, 1), (4, 1)]);
    assert_eq!(shard.poll(10), []);
    for at in [1, 0, 3] {
        shard.ack(at).unwrap();
    }
    assert_eq!((shard.ack(1), shard.ack(0)), (Ok(()), Ok(())), "what is finished is finished");
    let info =
        GroupInfo { committed: Some(Offset(2)), tail: Offset(5), in_flight: 2, owed: 0, dead_letters: 0 };
    assert_eq!(shard.info(), info);
    let mut again = shard.restarted();
    assert_eq!(again.poll(10), [(2, 1), (4, 1)], "what was acked is never handed out again");
}

#[test]
fn an_ack_of_many_finishes_all_of_them_or_none() {
    let mut shard = Shard::new(12, GroupSettings::default());
    shard.poll(10);
    shard.ack(3).unwrap();
    shard.core.dead_letter("g", Offset(5), shard.now, &mut shard.out).unwrap();
    shard.nack(8, 0, Duration::ZERO).unwrap();
    let before = shard.info();
    assert_eq!(shard.ack_run(2, 7), Err(GroupRefused::StaleClaim), "8 was given back");
    assert_eq!(shard.ack_run(9, 2), Err(GroupRefused::NeverHandedOut));
    assert_eq!(shard.ack_run(u64::MAX, 1_000), Err(GroupRefused::NeverHandedOut));
    for count in [0, GROUP_POLL_RECORDS_MAX + 1, u32::MAX] {
        assert_eq!(shard.ack_run(2, count), Err(GroupRefused::AckCount));
    }
    assert_eq!(shard.info(), before, "nothing has changed");
    shard.ack_run(2, 6).unwrap();
    assert_eq!(shard.dead(), [5], "a dead letter stays one");
    shard.ack_run(2, 6).unwrap();
    shard.ack_run(0, 2).unwrap();
    let info = GroupInfo { committed: Some(Offset(8)), in_flight: 1, owed: 1, dead_letters: 1, ..before };
    assert_eq!(shard.info(), info);
    let mut again = shard.restarted();
    assert_eq!(again.poll(10), [(8, 2), (9, 1), (10, 1), (11, 1)]);
    again.ack_run(8, 4).unwrap();
    assert_eq!(again.log.batches.last().unwrap().records().count(), 1, "one record says it");
    assert_eq!(again.info().committed, Some(Offset(12)));
}

#[test]
fn an_ack_without_its_claim_says_why() {
    let mut shard = Shard::new(5, GroupSettings::default());
    assert_eq!(shard.ack(0), Err(GroupRefused::NeverHandedOut), "of a group nobody polled");
    shard.poll(2);
    assert_eq!(shard.ack(2), Err(GroupRefused::NeverHandedOut));
    assert_eq!(shard.ack(u64::MAX), Err(GroupRefused::NeverHandedOut));
    shard.nack(0, 0, Duration::ZERO).unwrap();
    assert_eq!(shard.ack(0), Err(GroupRefused::StaleClaim), "given back");
    shard.pass(30 * SECOND);
    assert_eq!(shard.ack(1), Err(GroupRefused::StaleClaim), "lapsed");
    let mut again = shard.restarted();
    assert_eq!(again.ack(4), Err(GroupRefused::StaleClaim), "may have been handed out before the restart");
    assert_eq!(again.ack(5), Err(GroupRefused::NeverHandedOut));
    assert_eq!(
        again.core.ack("other", (Offset(4), 1), Tick::ZERO, &mut Vec::new()),
        Err(GroupRefused::StaleClaim)
    );
}

#[test]
fn what_lapses_or_is_given_back_goes_out_before_what_is_new_with_one_attempt_more() {
    let mut shard = Shard::new(10, GroupSettings::default());
    shard.poll(2);
    shard.now += SECOND;
    shard.poll(2);
    shard.nack(3, 1, Duration::ZERO).unwrap();
    assert_eq!(shard.core.next_deadline(), Some(Tick::ZERO + 30 * SECOND));
    shard.pass(29 * SECOND);
    assert_eq!(shard.poll(10), [(0, 2), (1, 2), (3, 2), (4, 1), (5, 1), (6, 1), (7, 1), (8, 1), (9, 1)]);
    assert_eq!(shard.nack(3, 1, Duration::ZERO), Err(GroupRefused::StaleClaim), "an old attempt");
    assert_eq!(shard.nack(3, 2, 5 * SECOND), Ok(()));
    assert_eq!((shard.info().owed, shard.poll(10)), (1, vec![]));
    assert_eq!(shard.pass(4 * SECOND), []);
    assert_eq!(shard.poll(1), [(2, 2)]);
    shard.pass(SECOND);
    assert_eq!(shard.poll(1), [(3, 3)]);
    assert_eq!(shard.restarted().poll(4), [(0, 2), (1, 2), (2, 2), (3, 3)], "attempts are kept");
}

#[test]
fn a_claim_holds_as_long_as_its_poll_or_its_extension_says() {
    let mut shard = Shard::new(3, GroupSettings::default());
    let poll = Poll { visibility: 2 * SECOND, ..shard.ask(3) };
    shard.poll_with(poll);
    let extend = |shard: &mut Shard, at: u64, attempts, by| {
        shard.core.extend("g", (Offset(at), attempts), by, shard.now, &mut shard.out)
    };
    assert_eq!(extend(&mut shard, 0, 1, 10 * SECOND), Ok(10 * SECOND));
    assert_eq!(extend(&mut shard, 1, 1, 1_000_000 * SECOND), Ok(12 * 3_600 * SECOND), "12 hours at most");
    assert_eq!(extend(&mut shard, 2, 2, SECOND), Err(GroupRefused::StaleClaim));
    assert_eq!(extend(&mut shard, 2, 0, SECOND), Err(GroupRefused::StaleClaim));
    assert_eq!(extend(&mut shard, 3, 1, SECOND), Err(GroupRefused::NeverHandedOut));
    shard.pass(2 * SECOND);
    assert_eq!(shard.poll(9), [(2, 2)]);
    shard.pass(8 * SECOND);
    assert_eq!(shard.poll(9), [(0, 2)]);
    shard.pass(12 * 3_600 * SECOND);
    assert_eq!(offsets(&shard.poll(9)), [0, 1, 2]);
}

#[test]
fn the_last_attempt_makes_a_dead_letter_and_the_position_passes_it() {
    let settings = GroupSettings { attempts_max: 2, ..GroupSettings::default() };
    let mut shard = Shard::new(3, settings);
    shard.poll(1);
    shard.nack(0, 1, Duration::ZERO).unwrap();
    assert_eq!(shard.poll(1), [(0, 2)]);
    shard.pass(30 * SECOND);
    assert_eq!((shard.dead(), shard.info().committed), (vec![0], Some(Offset(1))));
    assert_eq!(shard.poll(9), [(1, 1), (2, 1)]);
    shard.nack(1, 1, Duration::ZERO).unwrap();
    let mut again = shard.restarted();
    assert_eq!((again.dead(), again.poll(1)), (vec![0], vec![(1, 2)]));
    assert_eq!(again.nack(1, 2, 60 * SECOND), Ok(()), "the delay is of no use");
    assert_eq!(again.dead(), [0, 1]);
}

#[test]
fn dead_letters_are_discarded_redriven_and_added_by_hand() {
    let mut shard = Shard::new(5, GroupSettings::default());
    let (now, g) = (Tick::ZERO, "g");
    let dead_letter = |shard: &mut Shard, at| shard.core.dead_letter(g, Offset(at), now, &mut shard.out);
    assert_eq!(dead_letter(&mut shard, 0), Err(GroupRefused::NeverHandedOut));
    shard.poll(4);
    shard.ack(3).unwrap();
    for at in [0, 1, 2] {
        assert_eq!(dead_letter(&mut shard, at), Ok(()));
    }
    assert_eq!(dead_letter(&mut shard, 1), Ok(()), "it is one");
    assert_eq!(dead_letter(&mut shard, 3), Err(GroupRefused::StaleClaim), "it is finished");
    assert_eq!((shard.dead(), shard.info().committed), (vec![0, 1, 2], Some(Offset(4))));
    assert_eq!(shard.core.discard(g, Offset(0), now, &mut shard.out), Ok(()));
    assert_eq!(shard.core.discard(g, Offset(0), now, &mut shard.out), Err(GroupRefused::NotListed));
    assert_eq!(shard.core.redrive(g, Offset(2), now, &mut shard.out), Ok(()));
    assert_eq!(shard.core.redrive(g, Offset(4), now, &mut shard.out), Err(GroupRefused::NotListed));
    shard.append();
    assert_eq!((shard.dead(), shard.info().committed), (vec![1], Some(Offset(4))), "the position stays");
    for mut shard in [shard.restarted(), shard] {
        assert_eq!(shard.poll(9), [(2, 1), (4, 1)], "as if for the first time");
        shard.ack(2).unwrap();
        shard.ack(4).unwrap();
        assert_eq!((shard.restarted().poll(9), shard.info().committed), (vec![], Some(Offset(5))));
    }
}

#[test]
fn a_full_list_of_dead_letters_keeps_records_unfinished_until_there_is_room() {
    let settings = GroupSettings { attempts_max: 1, in_flight_max: 200_000, ..GroupSettings::default() };
    let records = 2 * DEAD_RANGES_MAX as u64 + 3;
    let mut shard = Shard::new(records, settings);
    while let Some((first, _)) = shard.poll(1_000).first().copied() {
        for at in (first..(first + 1_000).min(records)).filter(|at| at % 2 == 1) {
            shard.core.ack("g", (Offset(at), 1), shard.now, &mut shard.out).unwrap();
        }
        shard.append();
    }
    shard.pass(30 * SECOND);
    assert_eq!(shard.info().dead_letters, DEAD_RANGES_MAX as u64);
    assert_eq!((shard.info().owed, shard.poll(9)), (2, vec![]), "no more attempts than there are");
    assert_eq!(shard.info().committed, Some(Offset(records - 3)));
    shard.core.discard("g", Offset(0), shard.now, &mut shard.out).unwrap();
    shard.append();
    assert_eq!((shard.info().owed, shard.info().committed), (1, Some(Offset(records - 1))));
    assert_eq!(shard.restarted().poll(9), [], "nor after a restart");
}

#[test]
fn a_waiting_poll_is_woken_by_a_record_a_lapse_a_delay_and_room_in_flight() {
    let settings = GroupSettings { in_flight_max: 2, ..GroupSettings::default() };
    let mut shard = Shard::new(0, settings);
    let wait = |shard: &mut Shard, max| {
        let poll = Poll { wait_until: Some(shard.now + 60 * SECOND), ..shard.ask(max) };
        (poll.id, shard.poll_with(poll))
    };
    let (first, none) = wait(&mut shard, 1);
    assert_eq!(none, None);
    let (second, _) = wait(&mut shard, 1);
    assert_eq!(shard.core.next_deadline(), Some(Tick::ZERO + 60 * SECOND));
    shard.core.shard_ends(Offset(2), shard.now, &mut shard.out);
    assert_eq!(shard.serve(), [(first, vec![(0, 1)]), (second, vec![(1, 1)])], "in the order they came");
    shard.core.shard_ends(Offset(5), shard.now, &mut shard.out);
    let (third, _) = wait(&mut shard, 9);
    assert_eq!(shard.serve(), [], "as many are out as may be");
    shard.ack(0).unwrap();
    assert_eq!(shard.serve(), [(third, vec![(2, 1)])], "an ack makes room");
    let (fourth, _) = wait(&mut shard, 9);
    assert_eq!(shard.pass(30 * SECOND), [(fourth, vec![(1, 2), (2, 2)])], "a lapse makes room");
    shard.nack(1, 2, 5 * SECOND).unwrap();
    shard.ack(2).unwrap();
    shard.poll(9);
    shard.nack(3, 1, 50 * SECOND).unwrap();
    let (fifth, _) = wait(&mut shard, 9);
    assert_eq!(shard.pass(5 * SECOND), [(fifth, vec![(1, 3)])], "a delay has ended");
    let (sixth, _) = wait(&mut shard, 9);
    shard.pass(20 * SECOND);
    shard.ack(1).unwrap();
    shard.out.clear();
    let late = Poll { wait_until: Some(shard.now), ..shard.ask(1) };
    assert!(shard.poll_with(late).is_some(), "a wait that is over");
    let (seventh, _) = wait(&mut shard, 9);
    shard.core.cancel(seventh, shard.now, &mut shard.out);
    let answered: Vec<PollId> = shard.pass(600 * SECOND).into_iter().map(|(poll, _)| poll).collect();
    assert!(!answered.contains(&seventh) && !answered.contains(&first), "{answered:?} {sixth:?}");
}

#[test]
fn what_was_read_decides_what_is_handed_out_and_the_rest_is_owed() {
    let mut shard = Shard::new(6, GroupSettings::default());
    let poll = shard.ask(6);
    let id = poll.id;
    shard.core.poll("g", poll, shard.now, &mut shard.out).unwrap();
    assert!(matches!(&shard.out[..], [GroupOutput::Fetch(fetch)] if fetch.offsets.len() == 6));
    shard.out.clear();
    assert_eq!(shard.poll(9), [], "they are being read for another");
    let (taken, gone) = ([Offset(3)], [Offset(0), Offset(1), Offset(2)]);
    let handed = shard.core.fetched(id, (&taken, &gone), shard.now, &mut shard.out).unwrap();
    assert_eq!(handed, [Handed { offset: Offset(3), attempts: 1, skipped_before: 3 }]);
    assert_eq!(shard.core.fetched(id, (&taken, &gone), shard.now, &mut shard.out), None, "once");
    assert_eq!(shard.info().committed, Some(Offset(3)), "what will never be read is finished");
    assert_eq!(shard.poll(9), [(4, 1), (5, 1)], "not handed out is no attempt");
    let waiting = Poll { wait_until: Some(shard.now + SECOND), ..shard.ask(1) };
    let id = waiting.id;
    shard.core.shard_ends(Offset(8), shard.now, &mut shard.out);
    shard.core.poll("g", waiting, shard.now, &mut shard.out).unwrap();
    shard.out.clear();
    assert_eq!(
        shard.core.fetched(id, (&[], &[Offset(6)]), shard.now, &mut shard.out),
        None,
        "it goes on waiting"
    );
    assert_eq!(shard.serve(), [(id, vec![(7, 1)])]);
    let poll = shard.ask(1);
    shard.pass(40 * SECOND);
    shard.core.poll("g", poll.clone(), shard.now, &mut shard.out).unwrap();
    shard.core.cancel(poll.id, shard.now, &mut shard.out);
    shard.out.clear();
    assert_eq!(shard.core.fetched(poll.id, (&[Offset(3)], &[]), shard.now, &mut shard.out), None);
    assert_eq!(shard.poll(1), [(3, 2)], "given back at once");
}

#[test]
fn a_member_reclaims_what_it_holds_from_other_connections_once() {
    let mut shard = Shard::new(9, GroupSettings::default());
    let member = |shard: &mut Shard, connection, name: &[u8], max, reclaim| {
        let ask = shard.ask(max);
        let poll = Poll { connection: ConnectionId(connection), member: Some(name.into()), reclaim, ..ask };
        shard.poll_with(poll).expect("it does not wait")
    };
    assert_eq!(offsets(&member(&mut shard, 1, b"a", 2, true)), [0, 1]);
    assert_eq!(offsets(&member(&mut shard, 1, b"b", 1, false)), [2]);
    shard.nack(2, 1, Duration::ZERO).unwrap();
    shard.poll(1);
    shard.nack(2, 2, Duration::ZERO).unwrap();
    assert_eq!(member(&mut shard, 2, b"a", 3, true), [(0, 2), (1, 2), (2, 3)], "before all else");
    assert_eq!(member(&mut shard, 2, b"a", 1, true), [(3, 1)], "not what it holds itself");
    assert_eq!(member(&mut shard, 3, b"a", 1, false), [(4, 1)]);
    assert_eq!(member(&mut shard, 2, b"a", 1, true), [(5, 1)], "once for a connection");
    shard.core.connection_gone(ConnectionId(2), shard.now, &mut shard.out);
    assert_eq!(offsets(&member(&mut shard, 2, b"a", 9, true)), [4, 6, 7, 8], "another connection");
    assert_eq!(shard.info().in_flight, 9, "what it held goes on being held");
}

#[test]
fn a_consumer_that_dies_with_all_claims_gives_them_back_in_bounded_steps() {
    let mut shard = Shard::new(20_000, GroupSettings::default());
    let mut claimed = 0;
    loop {
        let ask = shard.ask(5_000);
        let found = shard.poll_with(Poll { member: Some((*b"dies").into()), ..ask }).unwrap();
        assert!(found.len() <= 1_000, "a poll has a bound");
        if found.is_empty() {
            break;
        }
        claimed += found.len();
    }
    assert_eq!((claimed, shard.info().in_flight), (10_000, 10_000), "no more than may be in flight");
    shard.core.connection_gone(ConnectionId(1), shard.now, &mut shard.out);
    shard.now += 30 * SECOND;
    let mut steps = 0;
    while shard.core.next_deadline().is_some_and(|at| at <= shard.now) {
        shard.core.tick(shard.now, &mut shard.out);
        steps += 1;
        shard.append();
    }
    assert_eq!((steps, shard.info().owed), (10_000_usize.div_ceil(LAPSES_MAX), 10_000));
    let ask = shard.ask(1_000);
    let heir = Poll { connection: ConnectionId(2), member: Some((*b"dies").into()), reclaim: true, ..ask };
    assert_eq!(shard.poll_with(heir).unwrap()[0], (0, 2));
}

#[test]
fn delays_without_end_do_not_grow_what_a_group_holds() {
    let settings = GroupSettings { in_flight_max: 100, attempts_max: 1_000, ..GroupSettings::default() };
    let mut shard = Shard::new(1_000, settings);
    loop {
        let found = shard.poll(10);
        if found.is_empty() {
            break;
        }
        for (at, attempts) in found {
            shard.nack(at, attempts, 3_600 * SECOND).unwrap();
        }
    }
    assert_eq!((shard.info().owed, shard.info().in_flight), (100, 0));
    shard.pass(3_600 * SECOND);
    assert_eq!(shard.poll(1), [(0, 2)]);
}

#[test]
fn a_seek_moves_the_group_and_voids_its_claims() {
    let mut shard = Shard::new(10, GroupSettings::default());
    let seek = |shard: &mut Shard, to, if_new| {
        let found = shard.core.seek("g", (to, if_new), shard.now, &mut shard.out);
        shard.append();
        found.map(|(at, moved)| (at.0, moved))
    };
    assert_eq!(seek(&mut shard, Seek::Latest, true), Ok((10, true)), "it makes the group");
    assert_eq!(seek(&mut shard, Seek::Earliest, true), Ok((10, false)));
    assert_eq!(shard.poll(9), []);
    assert_eq!(seek(&mut shard, Seek::Offset(Offset(4)), false), Ok((4, true)));
    assert_eq!(offsets(&shard.poll(3)), [4, 5, 6]);
    shard.core.dead_letter("g", Offset(5), shard.now, &mut shard.out).unwrap();
    assert_eq!(seek(&mut shard, Seek::Earliest, false), Ok((0, true)));
    assert_eq!(shard.ack(4), Err(GroupRefused::NeverHandedOut).or(Err(GroupRefused::StaleClaim)));
    assert_eq!(offsets(&shard.poll(20)), [0, 1, 2, 3, 4, 6, 7, 8, 9], "a dead letter stays one");
    assert_eq!(
        seek(&mut shard, Seek::Offset(Offset(11)), false),
        Err(GroupRefused::InFuture { tail: Offset(10) })
    );
    shard.core.shard_starts(Offset(3), shard.now, &mut shard.out);
    assert_eq!(
        seek(&mut shard, Seek::Offset(Offset(2)), false),
        Err(GroupRefused::TooOld { start: Offset(3) })
    );
    assert_eq!(shard.restarted().info().committed, Some(Offset(3)));
}

#[test]
fn a_deleted_group_is_as_if_it_had_never_been() {
    let mut shard = Shard::new(3, GroupSettings::default());
    let delete = |shard: &mut Shard| {
        let existed = shard.core.delete("g", shard.now, &mut shard.out);
        shard.append();
        existed
    };
    assert_eq!(delete(&mut shard), Ok(false));
    shard.poll(9);
    shard.ack(0).unwrap();
    let waiting = Poll { wait_until: Some(shard.now + 60 * SECOND), ..shard.ask(1) };
    let id = waiting.id;
    assert_eq!(shard.poll_with(waiting), None);
    assert_eq!(delete(&mut shard), Ok(true));
    assert_eq!(shard.serve(), [(id, vec![])]);
    assert_eq!(shard.info().committed, None);
    assert!(shard.restarted().core.is_empty() && shard.core.is_empty());
    assert_eq!(shard.poll(9), [(0, 1), (1, 1), (2, 1)]);
    for number in 0..2 * GROUPS_MAX {
        let name = format!("made and deleted {number}");
        shard.core.seek(&name, (Seek::Latest, false), shard.now, &mut shard.out).unwrap();
        assert_eq!(shard.core.delete(&name, shard.now, &mut shard.out), Ok(true));
        shard.append();
    }
}

#[test]
fn retention_takes_what_it_takes_from_groups_too() {
    let mut shard = Shard::new(10, GroupSettings { attempts_max: 1, ..GroupSettings::default() });
    shard.poll(6);
    shard.nack(1, 1, Duration::ZERO).unwrap();
    shard.nack(4, 1, Duration::ZERO).unwrap();
    assert_eq!((shard.dead(), shard.info().committed), (vec![1, 4], Some(Offset(0))));
    shard.core.shard_starts(Offset(3), shard.now, &mut shard.out);
    shard.append();
    assert_eq!((shard.dead(), shard.info().committed), (vec![4], Some(Offset(3))));
    assert_eq!((shard.ack(2), shard.ack(3)), (Ok(()), Ok(())), "what is gone is finished");
    assert_eq!(shard.info().committed, Some(Offset(5)));
    assert_eq!(shard.restarted().core.durable("g"), shard.core.durable("g"));
}

impl Shard {
    /// Polls under a lease; none when it waits.
    fn poll_under(
        &mut self,
        lease: u64,
        wait: Option<Tick>,
    ) -> Result<Option<Vec<(u64, u32)>>, GroupRefused> {
        let poll = Poll { lease: Some(LeaseId(lease)), wait_until: wait, ..self.ask(2) };
        self.core.check_lease("g", poll.lease)?;
        Ok(self.poll_with(poll))
    }
}

#[test]
fn a_later_lease_gets_what_is_claimed_under_those_before_it_which_poll_and_settle_no_more() {
    let mut shard = Shard::new(6, GroupSettings::default());
    assert_eq!(shard.poll(1), [(0, 1)], "of somebody without leases");
    assert_eq!(shard.poll_under(10, None), Ok(Some(vec![(1, 1), (2, 1)])));
    shard.ack(1).unwrap();
    assert_eq!(shard.poll_under(10, None), Ok(Some(vec![(3, 1), (4, 1)])), "the same one goes on");
    assert_eq!(shard.poll_under(11, None), Ok(Some(vec![(2, 2), (3, 2)])), "before what is new");
    assert_eq!(shard.poll_under(11, None), Ok(Some(vec![(4, 2), (5, 1)])));
    assert_eq!(shard.poll_under(10, None), Err(GroupRefused::StaleLease));
    let old = |shard: &Shard, lease| shard.core.check_lease("g", lease);
    assert_eq!(old(&shard, Some(LeaseId(10))), Err(GroupRefused::StaleLease), "before it settles anything");
    assert_eq!(
        (old(&shard, Some(LeaseId(11))), old(&shard, Some(LeaseId(12))), old(&shard, None)),
        (Ok(()), Ok(()), Ok(()))
    );
    // What has no lease is not touched.
    shard.ack(0).unwrap();
    let again = Poll { lease: Some(LeaseId(9)), ..shard.ask(1) };
    let refused = shard.core.poll("g", again, shard.now, &mut shard.out);
    assert_eq!(refused, Err(GroupRefused::StaleLease), "the machine holds it by itself");
}

#[test]
fn polls_of_an_earlier_lease_that_wait_or_are_read_for_get_nothing() {
    let mut shard = Shard::new(0, GroupSettings::default());
    let until = Some(shard.now + 60 * SECOND);
    let waits = Poll { lease: Some(LeaseId(10)), wait_until: until, ..shard.ask(2) };
    let waiting = waits.id;
    assert_eq!(shard.poll_with(waits), None);
    let other = Poll { wait_until: until, ..shard.ask(2) };
    let without = other.id;
    assert_eq!(shard.poll_with(other), None);
    let newer = Poll { lease: Some(LeaseId(11)), wait_until: until, ..shard.ask(2) };
    shard.core.poll("g", newer, shard.now, &mut shard.out).unwrap();
    assert_eq!(shard.serve(), [(waiting, vec![])]);
    // The record goes to who waited longest, then one is read for the lease that is about to end.
    shard.core.shard_ends(Offset(2), shard.now, &mut shard.out);
    assert_eq!(shard.serve(), [(without, vec![(0, 1), (1, 1)])]);
    shard.core.shard_ends(Offset(4), shard.now, &mut shard.out);
    let Some(GroupOutput::Fetch(fetch)) = shard.out.pop() else { panic!("it is read for") };
    assert_eq!(shard.poll_under(12, None), Ok(Some(vec![(2, 1), (3, 1)])));
    let handed = shard.core.fetched(fetch.poll, (&fetch.offsets, &[]), shard.now, &mut shard.out);
    assert_eq!(handed, Some(Vec::new()));
}

#[test]
fn a_group_that_rests_remembers_its_lease_and_one_that_starts_again_does_not() {
    let mut shard = Shard::new(3, GroupSettings::default());
    shard.poll_under(10, None).unwrap();
    shard.ack(0).unwrap();
    shard.ack(1).unwrap();
    shard.now += IDLE * 2;
    shard.core.rest(shard.now);
    assert_eq!(shard.poll_under(9, None), Err(GroupRefused::StaleLease));
    let mut again = shard.restarted();
    assert_eq!(
        again.poll_under(9, None),
        Ok(Some(vec![(2, 1)])),
        "claims are forgotten, and leases with them"
    );
    assert_eq!(again.poll_under(10, None), Ok(Some(vec![(2, 2)])), "and a later one takes over again");
}

#[test]
fn bad_requests_are_refused_with_their_reason() {
    let mut shard = Shard::new(3, GroupSettings::default());
    let none = shard.ask(0);
    assert_eq!(shard.core.poll("g", none, shard.now, &mut shard.out), Err(GroupRefused::NoRecords));
    for name in ["", "a\nb", "\u{7f}", &"x".repeat(256)] {
        let poll = shard.ask(1);
        assert_eq!(shard.core.poll(name, poll, shard.now, &mut shard.out), Err(GroupRefused::GroupName));
        assert_eq!(
            shard.core.ack(name, (Offset(0), 1), shard.now, &mut shard.out),
            Err(GroupRefused::GroupName)
        );
        assert_eq!(shard.core.describe(name), Err(GroupRefused::GroupName));
    }
    for name in ["é/ö \u{1f600}", "..", &"x".repeat(255)] {
        assert_eq!(check_group_name(name), Ok(()));
    }
    assert_eq!(check_member_name(""), Err(GroupRefused::MemberName));
    assert_eq!(check_member_name(&"m".repeat(129)), Err(GroupRefused::MemberName));
    assert_eq!(check_member_name(&"m".repeat(128)), Ok(()));
    for number in 0..GROUPS_MAX {
        let poll = shard.ask(1);
        shard.core.poll(&number.to_string(), poll, shard.now, &mut shard.out).unwrap();
    }
    let poll = shard.ask(1);
    assert_eq!(shard.core.poll("more", poll, shard.now, &mut shard.out), Err(GroupRefused::TooManyGroups));
    let mut shard = Shard::new(0, GroupSettings::default());
    let mut refused = 0;
    for _ in 0..POLLS_MAX + 2 {
        let poll = Poll { wait_until: Some(shard.now + SECOND), ..shard.ask(1) };
        refused += usize::from(shard.core.poll("g", poll, shard.now, &mut shard.out).is_err());
    }
    assert_eq!((refused, shard.pass(SECOND).len()), (2, POLLS_MAX));
    assert!(shard.core.polls.is_empty());
}

#[test]
fn groups_that_nobody_uses_keep_what_their_log_says() {
    let mut shard = Shard::new(9, GroupSettings::default());
    for (at, _) in shard.poll(3) {
        shard.nack(at, 1, Duration::ZERO).unwrap();
    }
    let poll = shard.ask(1);
    shard.core.poll("only polled", poll, shard.now, &mut shard.out).unwrap();
    shard.out.clear();
    shard.core.cancel(PollId(shard.polls), shard.now, &mut shard.out);
    shard.now += 599 * SECOND;
    shard.core.rest(shard.now);
    assert_eq!((shard.info().owed, shard.core.len()), (3, 2));
    shard.now += SECOND;
    shard.core.rest(shard.now);
    shard.core.rest(shard.now);
    assert_eq!((shard.info().owed, shard.core.len()), (0, 1));
    assert_eq!(shard.ack(2), Err(GroupRefused::StaleClaim), "it was handed out once");
    assert_eq!(shard.poll(4), [(0, 2), (1, 2), (2, 2), (3, 1)]);
}

fn compact(shard: &mut Shard, segment: u64) {
    for step in 0..1_000 {
        let sealed = Offset(shard.log.end.0 / segment * segment);
        let shape = LogShape {
            start: shard.log.start,
            sealed_end: (sealed > shard.log.start).then_some(sealed),
            bytes: shard.log.bytes(),
            durable_end: shard.log.end,
        };
        match shard.core.compact(shape, 3_000) {
            GroupStep::Idle => return,
            GroupStep::WaitDurable(end) => assert!(end <= shard.log.end),
            GroupStep::Append(_) if step % 4 == 3 => shard.core.compaction_put_off(),
            GroupStep::Append(drafts) => shard.claim(drafts),
            GroupStep::Trim { start } => {
                shard.log.trim(start);
                shard.core.log_starts(start);
            }
        }
    }
    panic!("compaction does not end");
}

#[test]
fn records_are_read_as_they_were_written_and_other_bytes_are_refused() {
    let changes = [
        Change::Forget,
        Change::Position { at: u64::MAX },
        Change::Done { base: 1, count: 2 },
        Change::Attempts { at: 3, attempts: u32::MAX },
        Change::Dead { base: 0, count: u64::MAX },
        Change::Discard { base: 5, count: 1 },
        Change::Redrive { at: 6 },
        Change::Start { at: 7 },
    ];
    let mut bytes = Vec::new();
    record::encode("gruppe ö", &changes, &mut bytes);
    assert_eq!(record::decode(&bytes), Ok(("gruppe ö", changes.to_vec())));
    for cut in 0..bytes.len() {
        assert_ne!(record::decode(&bytes[..cut]), Ok(("gruppe ö", changes.to_vec())), "{cut}");
    }
    assert_eq!(record::decode(&[2, 1]), Err(RecordFault::Version(2)));
    assert_eq!(record::decode(&[1, 2, 0]), Err(RecordFault::Kind(2)));
    assert_eq!(record::decode(&[1, 1, 1, 0xff]), Err(RecordFault::Malformed("the name of a group")));
    let empty_range = [&[1_u8, 1, 0, 3][..], &[0; 16]].concat();
    assert_eq!(record::decode(&empty_range), Err(RecordFault::Malformed("a range of offsets")));
    let mut rng = SimRng::new(7);
    for _ in 0..100_000 {
        let count = rng.below(4) as usize;
        let mut bytes = vec![0; 4 + 17 * count];
        rng.fill(&mut bytes);
        bytes[..4].copy_from_slice(&[1, 1, 1, b'g']);
        for change in bytes[4..].chunks_mut(17) {
            change[0] %= 10;
            change[2..9].iter_mut().filter(|_| rng.below(3) > 0).for_each(|byte| *byte = 0);
            change[10..].iter_mut().filter(|_| rng.below(3) > 0).for_each(|byte| *byte = 0);
        }
        if let Ok((name, changes)) = record::decode(&bytes) {
            let mut again = Vec::new();
            record::encode(name, &changes, &mut again);
            assert_eq!(again, bytes, "one encoding");
        }
        // Whatever a log says, groups come of it that can be used.
        let mut log = TestLog::default();
        log.append(&[bytes], 0);
        let mut core = GroupsCore::new(GroupSettings::default(), Offset(0), Offset(100));
        match core.replay(&log.batches[0]) {
            Ok(()) => {
                core.replayed();
                let poll = Shard::new(0, GroupSettings::default()).ask(10);
                core.poll("g", poll, Tick::ZERO, &mut Vec::new()).unwrap();
                core.shard_starts(Offset(50), Tick::ZERO, &mut Vec::new());
            }
            Err(bad) => assert_eq!(bad.offset, Offset(0)),
        }
    }
}
