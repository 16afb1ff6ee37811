//! Lanes against owners that accept, bounce and move in every order, over FIFO channels of any delay.

use std::collections::VecDeque;

use felix_runtime::clock::Tick;
use felix_wire::client::Records;
use felix_wire::id::{CoreId, Generation};
use proptest::prelude::*;

use super::*;

fn job(number: u64) -> Job {
    Job { token: JobToken(number), records: Records::from_payloads([&b"x"[..]]), producer: None }
}

fn lane() -> Lane {
    Lane::new(CoreId(0), Generation(1))
}

/// What an owner says.
enum Said {
    Published,
    Bounced(Job, Bounce),
    Room,
}

/// One core as it behaves towards the lane; a shard that it opens knows nothing of earlier ones.
#[derive(Default)]
struct Owner {
    to: VecDeque<(Generation, LanePos, Job)>,
    back: VecDeque<Said>,
    next: Option<LanePos>,
    starved: bool,
}

impl Owner {
    fn take(&mut self, mode: Mode, accepted: &mut Vec<u64>) {
        let Some((generation, at, job)) = self.to.pop_front() else { return };
        let Mode::Serves { full, generation: served } = mode else {
            return self.back.push_back(Said::Bounced(job, Bounce::Moved));
        };
        if served != generation {
            self.back.push_back(Said::Bounced(job, Bounce::Moved));
        } else if full || (at.seq > 0 && self.next != Some(at)) {
            self.next = None;
            self.starved = true;
            self.back.push_back(Said::Bounced(job, Bounce::Full));
        } else {
            self.next = Some(LanePos { seq: at.seq + 1, ..at });
            accepted.push(job.token.0);
            self.back.push_back(Said::Published);
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Serves { full: bool, generation: Generation },
    Gone,
}

/// A lane, the owners it may be routed to, and what a model needs to check it.
struct World {
    lane: Lane,
    owners: Vec<Owner>,
    /// The owner that the newest routes name, and the one that serves the shard: it may not have heard yet.
    routed: usize,
    generation: u64,
    serving: Option<usize>,
    full: bool,
    now: Tick,
    submitted: u64,
    accepted: Vec<u64>,
    expired: Vec<u64>,
}

impl World {
    fn new() -> World {
        let owners = std::iter::repeat_with(Owner::default).take(3).collect();
        World {
            lane: lane(),
            owners,
            routed: 0,
            generation: 1,
            serving: Some(0),
            full: false,
            now: Tick(0),
            submitted: 0,
            accepted: Vec::new(),
            expired: Vec::new(),
        }
    }

    fn send(&mut self) {
        while let Some((at, job)) = self.lane.send() {
            self.owners[usize::from(self.lane.owner.0)].to.push_back((self.lane.generation, at, job));
        }
    }

    fn at_owner(&mut self, which: usize) {
        let serves = self.serving == Some(which);
        let generation = Generation(self.generation);
        let mode = if serves { Mode::Serves { full: self.full, generation } } else { Mode::Gone };
        self.owners[which].take(mode, &mut self.accepted);
    }

    fn at_lane(&mut self, which: usize) {
        match self.owners[which].back.pop_front() {
            Some(Said::Published) => self.lane.published(self.now),
            Some(Said::Bounced(job, why)) => self.lane.bounced(job, why, self.now),
            Some(Said::Room) => self.lane.room(),
            None => {}
        }
    }

    fn call_for_more(&mut self, which: usize) {
        let owner = &mut self.owners[which];
        if self.serving == Some(which) && !self.full && std::mem::take(&mut owner.starved) {
            owner.back.push_back(Said::Room);
        }
    }

    fn step(&mut self, what: u8, pick: usize) {
        let which = pick % self.owners.len();
        match what {
            0 | 1 => {
                self.lane.submit(job(self.submitted));
                self.submitted += 1;
            }
            2 | 3 => self.at_owner(which),
            4 | 5 => self.at_lane(which),
            6 => self.full = !self.full,
            7 => self.call_for_more(which),
            8 => {
                // The shard goes elsewhere; nothing it said before is taken back.
                self.routed = which;
                self.generation += 1;
                self.serving = None;
            }
            9 => self.reroute(),
            12 => self.open(),
            10 => {
                self.now += MOVED_RETRY;
                self.lane.handle_timeout(self.now);
            }
            11 => {
                let gone = self.lane.expire(|token| token.0 % 3 == pick as u64 % 3);
                self.expired.extend(gone.iter().map(|job| job.token.0));
            }
            _ => unreachable!("no such step"),
        }
        self.send();
    }

    /// The sender hears of the newest routes.
    fn reroute(&mut self) {
        self.lane.reroute(CoreId(self.routed as u16), Generation(self.generation));
    }

    /// The owner hears of them.
    fn open(&mut self) {
        if self.serving.is_none() {
            self.serving = Some(self.routed);
            self.owners[self.routed].starved = false;
            self.owners[self.routed].next = None;
        }
    }

    /// Everything heals; afterwards nothing may be held back.
    fn heal(&mut self) {
        self.full = false;
        for _ in 0..10 {
            self.reroute();
            self.open();
            self.now += MOVED_RETRY;
            self.lane.handle_timeout(self.now);
            for which in 0..self.owners.len() {
                self.send();
                while !self.owners[which].to.is_empty() {
                    self.at_owner(which);
                }
                self.call_for_more(which);
                while !self.owners[which].back.is_empty() {
                    self.at_lane(which);
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn every_job_is_appended_once_and_in_submit_order_whatever_bounces(
        steps in proptest::collection::vec((0u8..13, 0usize..6), 0..150),
    ) {
        let mut world = World::new();
        for (what, pick) in steps {
            world.step(what, pick);
        }
        world.heal();
        prop_assert!(world.lane.is_idle(), "{:?}", world.lane);
        prop_assert!(world.accepted.windows(2).all(|w| w[0] < w[1]), "{:?}", world.accepted);
        let mut all = [world.accepted.clone(), world.expired.clone()].concat();
        all.sort_unstable();
        prop_assert_eq!(all, (0..world.submitted).collect::<Vec<_>>());
    }
}

#[test]
fn a_lane_that_waited_for_room_at_an_owner_that_lost_the_shard_goes_on_at_the_new_one() {
    let mut lane = lane();
    lane.submit(job(0));
    lane.submit(job(1));
    let (_, first) = lane.send().unwrap();
    let (_, second) = lane.send().unwrap();
    lane.bounced(first, Bounce::Full, Tick(0));
    lane.reroute(CoreId(2), Generation(2));
    lane.bounced(second, Bounce::Full, Tick(0));
    let next = lane.send().map(|(_, job)| job.token);
    assert_eq!(next, Some(JobToken(0)), "no call for more will ever come from the old owner");
}

#[test]
fn what_came_back_goes_before_what_was_submitted_meanwhile() {
    let mut lane = lane();
    lane.submit(job(0));
    let (at, sent) = lane.send().unwrap();
    lane.submit(job(1));
    lane.bounced(sent, Bounce::Full, Tick(0));
    assert!(lane.send().is_none() && !lane.is_open(), "closed until the owner calls for more");
    lane.room();
    let order: Vec<_> =
        std::iter::from_fn(|| lane.send()).map(|(at, j)| (at.epoch, at.seq, j.token.0)).collect();
    assert_eq!(order, [(at.epoch + 1, 0, 0), (at.epoch + 1, 1, 1)]);
}

#[test]
fn a_lane_told_moved_tries_again_by_itself() {
    let mut lane = lane();
    lane.submit(job(0));
    let (_, sent) = lane.send().unwrap();
    lane.bounced(sent, Bounce::Moved, Tick(1_000));
    let at = lane.next_timeout().unwrap();
    assert_eq!(at, Tick(1_000) + MOVED_RETRY);
    lane.handle_timeout(Tick(1_000));
    assert!(lane.send().is_none(), "not before it is due");
    lane.handle_timeout(at);
    assert!(lane.send().is_some());
}
