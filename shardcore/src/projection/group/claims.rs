//! Who holds which records of one group. Scope: one per group; nothing of it is durable.
//! Owns: a slot for every record that was handed out, or is to be handed out again, and is not finished, kept once for each
//! run of neighbours that stand alike; the times at which claims and delays end.
//! Invariants: runs are not empty and do not overlap, so a record has one slot at most; each run that waits for a time is in
//! `timers` once, each that is ready in `ready` once, each held by a named member in `held_by` once; an operation costs the
//! logarithm of the runs for each run that it changes.
//! Not here: what is finished (`durable`), polls that wait (`polls`).

use std::collections::{BTreeMap, BTreeSet};

use felix_runtime::clock::Tick;
use felix_wire::id::LeaseId;

/// Names a poll; chosen by whoever asks, never twice while it is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PollId(pub u64);

/// Names the connection of a poll.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

/// Names a member of a group while it holds something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct MemberId(u64);

/// Where an unfinished record stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Being read for a poll.
    Reserved { poll: PollId },
    /// Handed out.
    Claimed { until: Tick, member: Option<MemberId>, connection: ConnectionId, lease: Option<LeaseId> },
    /// To be handed out, those of a predecessor first.
    Ready { reclaimed: bool },
    /// To be handed out then.
    Delayed { until: Tick },
    /// Out of attempts, and the list of dead letters is full.
    Exhausted,
}

/// An unfinished record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot {
    /// Times it was handed out.
    pub attempts: u32,
    pub state: State,
}

/// Neighbouring records that stand alike: `start..end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    pub start: u64,
    /// One past the last.
    pub end: u64,
    pub slot: Slot,
}

impl Run {
    /// How many records.
    pub fn records(&self) -> u64 {
        self.end - self.start
    }

    /// What of it lies in `start..end`; none when nothing does.
    pub fn within(mut self, start: u64, end: u64) -> Option<Run> {
        self.start = self.start.max(start);
        self.end = self.end.min(end);
        (self.start < self.end).then_some(self)
    }
}

/// How many records stand where.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Reserved or claimed.
    pub in_flight: usize,
    /// To be handed out again, now or later.
    pub owed: usize,
}

#[derive(Debug, Default)]
struct Member {
    id: u64,
    held: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Claims {
    /// By the first record of each run; with its end.
    runs: BTreeMap<u64, (u64, Slot)>,
    records: u64,
    in_flight: u64,
    /// Reclaimed ones first, then by offset.
    ready: BTreeSet<(bool, u64)>,
    timers: BTreeSet<(Tick, u64)>,
    exhausted: BTreeSet<u64>,
    members: BTreeMap<Box<[u8]>, Member>,
    names: BTreeMap<u64, Box<[u8]>>,
    next_member: u64,
    held_by: BTreeSet<(MemberId, u64)>,
}

impl Claims {
    /// How many records have a slot.
    pub fn len(&self) -> usize {
        usize::try_from(self.records).unwrap_or(usize::MAX)
    }

    /// Whether none has.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// How many stand where.
    pub fn counts(&self) -> Counts {
        let count = |records: u64| usize::try_from(records).unwrap_or(usize::MAX);
        Counts { in_flight: count(self.in_flight), owed: count(self.records - self.in_flight) }
    }

    /// The slot of a record.
    pub fn get(&self, at: u64) -> Option<Slot> {
        self.run_of(at).map(|run| run.slot)
    }

    /// The run that a record is in.
    pub fn run_of(&self, at: u64) -> Option<Run> {
        let run = self.runs.range(..=at).next_back().map(run)?;
        (at < run.end).then_some(run)
    }

    /// The first run that begins above a record.
    pub fn run_above(&self, at: u64) -> Option<Run> {
        self.runs.range(at.checked_add(1)?..).next().map(run)
    }

    /// What of runs lies in `start..end`, lowest first.
    pub fn within(&self, start: u64, end: u64) -> impl Iterator<Item = Run> + '_ {
        let first = self.run_of(start).map_or(start, |run| run.start);
        self.runs.range(first..end.max(first)).filter_map(move |at| run(at).within(start, end))
    }

    /// The first of them.
    pub fn first_within(&self, start: u64, end: u64) -> Option<Run> {
        self.within(start, end).next()
    }

    /// When the next claim or delay ends.
    pub fn next_timer(&self) -> Option<Tick> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Records whose claim or delay has ended by `now`.
    pub fn due(&self, now: Tick) -> Option<Run> {
        self.timers.first().filter(|(at, _)| *at <= now).and_then(|(_, at)| self.run_of(*at))
    }

    /// The records to hand out next, of those that were handed out before.
    pub fn first_ready(&self) -> Option<Run> {
        self.ready.first().and_then(|(_, at)| self.run_of(*at))
    }

    /// The lowest record that waits for room in the list of dead letters.
    pub fn first_exhausted(&self) -> Option<u64> {
        self.exhausted.first().copied()
    }

    /// Puts a record into a state, with so many attempts.
    pub fn set(&mut self, at: u64, slot: Slot) {
        self.set_run(Run { start: at, end: at + 1, slot });
    }

    /// The same for all records of a run that is not empty.
    pub fn set_run(&mut self, run: Run) {
        // Its member is not forgotten between two of its claims.
        let member = member_of(&run.slot);
        self.count_held(member, 1, true);
        self.remove_run(run.start, run.end);
        self.link(run);
        self.count_held(member, 1, false);
    }

    /// Removes the slot of a record.
    pub fn remove(&mut self, at: u64) {
        self.remove_run(at, at + 1);
    }

    /// Removes every slot in `start..end`.
    pub fn remove_run(&mut self, start: u64, end: u64) {
        while let Some(within) = self.first_within(start, end) {
            let Some(whole) = self.run_of(within.start) else { return };
            self.unlink(whole);
            for left in [whole.within(0, start), whole.within(end, u64::MAX)].into_iter().flatten() {
                self.link(left);
            }
            if let Some(member) = member_of(&whole.slot) {
                self.release(member);
            }
        }
    }

    fn link(&mut self, run: Run) {
        let Run { start, end, slot } = run;
        self.records += run.records();
        match slot.state {
            State::Reserved { .. } => self.in_flight += run.records(),
            State::Claimed { until, member, .. } => {
                self.in_flight += run.records();
                self.timers.insert((until, start));
                if let Some(member) = member {
                    self.held_by.insert((member, start));
                    self.count_held(Some(member), run.records(), true);
                }
            }
            State::Ready { reclaimed } => {
                self.ready.insert((!reclaimed, start));
            }
            State::Delayed { until } => {
                self.timers.insert((until, start));
            }
            State::Exhausted => {
                self.exhausted.insert(start);
            }
        }
        self.runs.insert(start, (end, slot));
    }

    fn unlink(&mut self, run: Run) {
        let Run { start, slot, .. } = run;
        self.records -= run.records();
        match slot.state {
            State::Reserved { .. } => self.in_flight -= run.records(),
            State::Claimed { until, member, .. } => {
                self.in_flight -= run.records();
                self.timers.remove(&(until, start));
                if let Some(member) = member {
                    self.held_by.remove(&(member, start));
                    self.count_held(Some(member), run.records(), false);
                }
            }
            State::Ready { reclaimed } => {
                self.ready.remove(&(!reclaimed, start));
            }
            State::Delayed { until } => {
                self.timers.remove(&(until, start));
            }
            State::Exhausted => {
                self.exhausted.remove(&start);
            }
        }
        self.runs.remove(&start);
    }

    /// Lets a claim hold until another time.
    pub fn extend(&mut self, at: u64, until: Tick) {
        if let Some(mut slot @ Slot { state: State::Claimed { .. }, .. }) = self.get(at) {
            if let State::Claimed { until: held, .. } = &mut slot.state {
                *held = until;
            }
            self.set(at, slot);
        }
    }

    /// What is claimed under another lease than this one, lowest first.
    pub fn under_other_leases(&self, than: LeaseId) -> Vec<Run> {
        let other =
            |run: &Run| matches!(run.slot.state, State::Claimed { lease: Some(lease), .. } if lease != than);
        self.runs.iter().map(run).filter(other).collect()
    }

    /// Removes every slot below `at`.
    pub fn remove_below(&mut self, at: u64) {
        self.remove_run(0, at);
    }

    /// The member with this name; it is known while it holds something.
    pub fn member(&mut self, name: &[u8]) -> MemberId {
        if let Some(member) = self.members.get(name) {
            return MemberId(member.id);
        }
        let id = self.next_member;
        self.next_member += 1;
        self.members.insert(name.into(), Member { id, held: 0 });
        self.names.insert(id, name.into());
        MemberId(id)
    }

    /// Forgets a member that holds nothing.
    pub fn release(&mut self, member: MemberId) {
        let Some(name) = self.names.get(&member.0) else { return };
        if self.members.get(name).is_some_and(|known| known.held == 0) {
            self.members.remove(name);
            self.names.remove(&member.0);
        }
    }

    /// What a member holds from other connections, lowest first.
    pub fn held_elsewhere(&self, name: &[u8], connection: ConnectionId) -> Vec<Run> {
        let Some(member) = self.members.get(name) else { return Vec::new() };
        let member = MemberId(member.id);
        let held = self.held_by.range((member, 0)..=(member, u64::MAX));
        let elsewhere = |run: &Run| match run.slot.state {
            State::Claimed { connection: other, .. } => other != connection,
            _ => false,
        };
        held.filter_map(|(_, at)| self.run_of(*at)).filter(elsewhere).collect()
    }

    fn count_held(&mut self, member: Option<MemberId>, records: u64, more: bool) {
        let known = member.and_then(|member| self.names.get(&member.0));
        let Some(known) = known.and_then(|name| self.members.get_mut(name)) else { return };
        match more {
            true => known.held += records,
            false => known.held -= records,
        }
    }
}

fn run((start, (end, slot)): (&u64, &(u64, Slot))) -> Run {
    Run { start: *start, end: *end, slot: *slot }
}

fn member_of(slot: &Slot) -> Option<MemberId> {
    match slot.state {
        State::Claimed { member, .. } => member,
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use felix_runtime::sim::SimRng;

    use super::*;

    fn some_state(rng: &mut SimRng, claims: &mut Claims) -> State {
        let at = Tick::ZERO + Duration::from_millis(rng.below(5));
        match rng.below(5) {
            0 => State::Reserved { poll: PollId(rng.below(2)) },
            1 | 2 => {
                let name = [b"a", b"b"][rng.below(2) as usize];
                let member = rng.chance(500_000).then(|| claims.member(name));
                let lease = rng.chance(300_000).then(|| LeaseId(rng.below(2)));
                State::Claimed { until: at, member, connection: ConnectionId(rng.below(2)), lease }
            }
            3 => State::Ready { reclaimed: rng.chance(500_000) },
            _ => State::Delayed { until: at },
        }
    }

    fn each(runs: impl IntoIterator<Item = Run>) -> BTreeMap<u64, Slot> {
        runs.into_iter().flat_map(|run| (run.start..run.end).map(move |at| (at, run.slot))).collect()
    }

    fn check(claims: &Claims, model: &BTreeMap<u64, Slot>) {
        assert_eq!(each(claims.within(0, u64::MAX)), *model);
        let count = |what: fn(&State) -> bool| model.values().filter(|slot| what(&slot.state)).count();
        let in_flight = count(|state| matches!(state, State::Reserved { .. } | State::Claimed { .. }));
        assert_eq!(claims.counts(), Counts { in_flight, owed: model.len() - in_flight });
        let timed = model.iter().filter_map(|(at, slot)| match slot.state {
            State::Claimed { until, .. } | State::Delayed { until } => Some((until, *at)),
            _ => None,
        });
        let first = timed.min();
        assert_eq!(claims.next_timer(), first.map(|(until, _)| until));
        assert_eq!(claims.due(Tick::MAX).map(|run| run.start), first.map(|(_, at)| at));
        let ready = model.iter().filter_map(|(at, slot)| match slot.state {
            State::Ready { reclaimed } => Some((!reclaimed, *at)),
            _ => None,
        });
        assert_eq!(claims.first_ready().map(|run| run.start), ready.min().map(|(_, at)| at));
        let members: BTreeSet<MemberId> = model.values().filter_map(member_of).collect();
        assert_eq!(claims.members.len(), members.len(), "a member is known while it holds something");
        for member in members {
            let held = model.values().filter(|slot| member_of(slot) == Some(member)).count();
            let name = &claims.names[&member.0];
            assert_eq!(claims.members[name].held, held as u64);
            let elsewhere = each(claims.held_elsewhere(name, ConnectionId(0)));
            let wanted = model.iter().filter(|(_, slot)| {
                member_of(slot) == Some(member)
                    && matches!(slot.state, State::Claimed { connection: ConnectionId(1), .. })
            });
            assert!(elsewhere.keys().eq(wanted.map(|(at, _)| at)));
        }
    }

    #[test]
    fn runs_hold_what_a_slot_for_each_record_holds() {
        let mut rng = SimRng::new(7);
        let (mut claims, mut model) = (Claims::default(), BTreeMap::new());
        for _ in 0..20_000 {
            let (start, len) = (rng.below(40), 1 + rng.below(8));
            let end = start + len;
            match rng.below(8) {
                0..4 => {
                    let slot =
                        Slot { attempts: rng.below(3) as u32, state: some_state(&mut rng, &mut claims) };
                    claims.set_run(Run { start, end, slot });
                    model.extend((start..end).map(|at| (at, slot)));
                }
                4 | 5 => {
                    claims.remove_run(start, end);
                    model.retain(|at, _| !(start..end).contains(at));
                }
                6 => {
                    let later = Tick::ZERO + Duration::from_millis(rng.below(9));
                    claims.extend(start, later);
                    if let Some(State::Claimed { until, .. }) =
                        model.get_mut(&start).map(|slot| &mut slot.state)
                    {
                        *until = later;
                    }
                }
                _ => {
                    claims.remove_below(start / 4);
                    model.retain(|at, _| *at >= start / 4);
                }
            }
            check(&claims, &model);
        }
    }
}
