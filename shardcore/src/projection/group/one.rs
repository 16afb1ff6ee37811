//! One consumer group on one shard (semantics 5, client-protocol 14). Sans-io.
//! Scope: one per group. Owns: what is durable of it, its claims, the polls that wait or are being read for, the changes
//! that are not in a record yet.
//! Invariants: a record that is not finished is held by one consumer at most; no claim outlives its time; what was owed
//! goes out before what is new; the position passes a record only when it is finished.
//! Not here: the records' bytes, the log of groups (`super`).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use felix_runtime::clock::Tick;
use felix_runtime::planted::{self, Defect};
use felix_wire::id::{LeaseId, Offset};

use super::claims::{Claims, ConnectionId, PollId, Run, Slot, State};
use super::durable::Durable;
use super::record::Change;
use super::{
    DEAD_RANGES_MAX, Fetch, GroupInfo, GroupRefused, GroupSettings, Handed, POLLS_MAX, Poll, RECLAIMS_MAX,
};

/// A poll that waits, or is being read for.
#[derive(Debug, Clone)]
struct Asked {
    poll: Poll,
    visibility: Duration,
    /// When it is answered though there is nothing.
    until: Tick,
    /// What is being read for it: each run with its end.
    wanted: Vec<(u64, u64)>,
}

/// The shard's records that can be read.
#[derive(Debug, Clone, Copy)]
pub struct Extent {
    pub start: u64,
    pub end: u64,
}

/// What becomes of polls.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    Fetch(Fetch),
    Empty(PollId),
}

/// See the module.
#[derive(Debug, Default)]
pub struct Group {
    pub durable: Durable,
    claims: Claims,
    /// The first record that was not handed out yet since the group was read from the log.
    next: u64,
    /// What lies at or above was never handed out, by this process or one before.
    handed_end: u64,
    /// In the order in which they are served.
    waiting: BTreeMap<i64, Asked>,
    /// Ends of the waits.
    waits: BTreeSet<(Tick, i64)>,
    places: BTreeMap<PollId, i64>,
    reading: BTreeMap<PollId, Asked>,
    /// Who has given back what their predecessors held.
    reclaims: BTreeSet<(ConnectionId, Box<[u8]>)>,
    changes: Vec<Change>,
    used: Tick,
    /// The largest lease that has polled, and polls under smaller ones that are to be answered.
    lease: Option<LeaseId>,
    fenced: Vec<PollId>,
}

impl Group {
    /// A group as its log says, or one nobody has polled. `found_end`: what lies below was in the shard before this process
    /// began.
    pub fn new(durable: Durable, extent: Extent, found_end: u64) -> Group {
        let next = durable.position().unwrap_or(extent.start);
        let mut group = Group { durable, next, handed_end: found_end, ..Group::default() };
        let redriven: Vec<u64> = group.durable.redriven().iter().copied().collect();
        for at in redriven {
            let attempts = group.durable.attempts(at);
            group.claims.set(at, Slot { attempts, state: State::Ready { reclaimed: false } });
        }
        group
    }

    /// Whether it holds nothing that the log does not say, and since when it was not used.
    pub fn idle_since(&self) -> Option<Tick> {
        let busy = self.claims.counts().in_flight > 0
            || self.claims.next_timer().is_some()
            || !self.waiting.is_empty()
            || !self.reading.is_empty()
            || !self.changes.is_empty();
        (!busy).then_some(self.used)
    }

    /// Drops what is only in memory.
    pub fn rest(&mut self, extent: Extent) {
        let durable = std::mem::take(&mut self.durable);
        *self = Group {
            used: self.used,
            lease: self.lease,
            ..Group::new(durable, extent, self.handed_end.max(self.next))
        };
    }

    /// When it wants to be told the time.
    pub fn next_deadline(&self) -> Option<Tick> {
        let wait = self.waits.first().map(|(at, _)| *at);
        self.claims.next_timer().into_iter().chain(wait).min()
    }

    /// Polls that wait.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// What has changed since this was asked last.
    pub fn take_changes(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.changes)
    }

    /// Whether something has changed that is in no record.
    pub fn has_changes(&self) -> bool {
        !self.changes.is_empty()
    }

    /// Takes a poll. What becomes of it is told by [`Self::pump`], which the caller calls next.
    ///
    /// # Errors
    /// `TooManyPolls`, `StaleLease`.
    pub fn poll(
        &mut self,
        poll: Poll,
        (now, extent): (Tick, Extent),
        settings: &GroupSettings,
    ) -> Result<(), GroupRefused> {
        if self.waiting.len() + self.reading.len() >= POLLS_MAX {
            return Err(GroupRefused::TooManyPolls);
        }
        self.check_lease(poll.lease)?;
        self.used = now;
        if let Some(lease) = poll.lease.filter(|lease| self.lease.is_none_or(|known| known < *lease)) {
            self.fence(lease, now, extent, settings);
        }
        if let Some(member) = poll.member.as_deref().filter(|_| poll.reclaim) {
            self.reclaim(member, poll.connection, extent, settings);
        }
        let asked = if poll.visibility.is_zero() { settings.visibility } else { poll.visibility };
        let visibility = asked.min(settings.visibility_max);
        let until = poll.wait_until.unwrap_or(now);
        let place = self.waiting.last_key_value().map_or(0, |(last, _)| last + 1);
        self.wait(place, Asked { poll, visibility, until, wanted: Vec::new() });
        Ok(())
    }

    /// # Errors
    /// `StaleLease` for one that is smaller than the largest that has polled.
    pub fn check_lease(&self, lease: Option<LeaseId>) -> Result<(), GroupRefused> {
        match lease.is_some() && lease < self.lease {
            true => Err(GroupRefused::StaleLease),
            false => Ok(()),
        }
    }

    /// A later lease begins: what is claimed under those before it is owed at once, and their polls get nothing.
    fn fence(&mut self, lease: LeaseId, now: Tick, extent: Extent, settings: &GroupSettings) {
        self.lease = Some(lease);
        for run in self.claims.under_other_leases(lease) {
            self.fail(run, State::Ready { reclaimed: true }, settings, extent);
        }
        let leased = |asked: &Asked| asked.poll.lease.is_some();
        let waiting = self.waiting.iter().filter(|(_, asked)| leased(asked)).map(|(place, _)| *place);
        for place in waiting.collect::<Vec<_>>() {
            let asked = self.stop_waiting(place);
            self.fenced.extend(asked.map(|asked| asked.poll.id));
        }
        let reading = self.reading.iter_mut().filter(|(_, asked)| leased(asked));
        let mut reserved = Vec::new();
        for (id, asked) in reading {
            asked.until = now;
            reserved.push((*id, std::mem::take(&mut asked.wanted)));
        }
        for (id, wanted) in reserved {
            self.give_back(id, &wanted);
        }
    }

    fn wait(&mut self, place: i64, asked: Asked) {
        self.waits.insert((asked.until, place));
        self.places.insert(asked.poll.id, place);
        self.waiting.insert(place, asked);
    }

    fn stop_waiting(&mut self, place: i64) -> Option<Asked> {
        let asked = self.waiting.remove(&place)?;
        self.waits.remove(&(asked.until, place));
        self.places.remove(&asked.poll.id);
        Some(asked)
    }

    /// Gives waiting polls what there is, in the order in which they came, and ends the waits that are over.
    pub fn pump(&mut self, now: Tick, extent: Extent, settings: &GroupSettings, out: &mut Vec<Outcome>) {
        out.extend(self.fenced.drain(..).map(Outcome::Empty));
        while let Some((place, first)) = self.waiting.first_key_value() {
            let (place, id, most) = (*place, first.poll.id, first.poll.max_records as usize);
            let wanted = self.gather(id, most as u64, extent, settings);
            if wanted.is_empty() {
                break;
            }
            let Some(mut asked) = self.stop_waiting(place) else { break };
            let offsets = wanted.iter().flat_map(|(start, end)| *start..*end).map(Offset).collect();
            out.push(Outcome::Fetch(Fetch { poll: id, offsets }));
            asked.wanted = wanted;
            self.reading.insert(id, asked);
        }
        while let Some((_, place)) = self.waits.first().copied().filter(|(until, _)| *until <= now) {
            if let Some(asked) = self.stop_waiting(place) {
                out.push(Outcome::Empty(asked.poll.id));
            }
        }
    }

    /// Reserves records for a poll: those owed first, then new ones. Gives the runs.
    fn gather(
        &mut self,
        poll: PollId,
        most: u64,
        extent: Extent,
        settings: &GroupSettings,
    ) -> Vec<(u64, u64)> {
        let in_flight_max = settings.in_flight_max;
        let mut room = (in_flight_max.saturating_sub(self.claims.counts().in_flight) as u64).min(most);
        let mut wanted = Vec::new();
        while room > 0 {
            let ready = self.claims.first_ready().and_then(|run| run.within(0, extent.end));
            let Some(run) = ready.and_then(|run| run.within(0, run.start.saturating_add(room))) else {
                break;
            };
            self.reserve(run.start, run.end, run.slot.attempts, poll);
            wanted.push((run.start, run.end));
            room -= run.records();
        }
        // A seek to a dead letter leaves the position behind it.
        self.next = self.next.max(extent.start).max(self.durable.position().unwrap_or(0));
        while room > 0 && self.claims.len() < in_flight_max {
            self.next = self.durable.unfinished_from(self.next);
            if self.next >= extent.end {
                break;
            }
            if let Some(run) = self.claims.run_of(self.next) {
                self.next = run.end;
                continue;
            }
            let (at, attempts) = (self.next, self.durable.attempts(self.next));
            if attempts >= settings.attempts_max {
                self.next += 1;
                self.bury(at, attempts, extent);
                continue;
            }
            let most = room.min((in_flight_max - self.claims.len()) as u64);
            let end = self.durable.alike_until(at, extent.end.min(at.saturating_add(most)));
            let end = self.claims.run_above(at).map_or(end, |run| end.min(run.start));
            self.next = end;
            self.reserve(at, end, attempts, poll);
            wanted.push((at, end));
            room -= end - at;
        }
        self.handed_end = self.handed_end.max(self.next);
        wanted
    }

    fn reserve(&mut self, start: u64, end: u64, attempts: u32, poll: PollId) {
        self.claims.set_run(Run { start, end, slot: Slot { attempts, state: State::Reserved { poll } } });
    }

    /// What was read for a poll: `taken` are handed out now, `gone` have no record and never will; what is neither is owed.
    /// None when there is nothing to answer: the poll waits again, or is not wanted any more.
    pub fn fetched(
        &mut self,
        id: PollId,
        (taken, gone): (&[Offset], &[Offset]),
        now: Tick,
        extent: Extent,
    ) -> Option<Vec<Handed>> {
        let mut asked = self.reading.remove(&id)?;
        self.used = now;
        for at in gone.iter().map(|at| at.0) {
            if self.reserved(at, at + 1, id).is_some() {
                self.claims.remove(at);
                self.finish(at, 1, extent);
            }
        }
        let member = asked.poll.member.as_deref().map(|name| self.claims.member(name));
        let until = if planted::is(Defect::ClaimNotHeld) { now } else { now + asked.visibility };
        let mut handed = Vec::with_capacity(taken.len());
        let mut left = taken;
        while let Some(at) = left.first().map(|at| at.0) {
            let neighbours = left.iter().zip(at..).take_while(|(next, due)| next.0 == *due).count();
            let run = self.reserved(at, at.saturating_add(neighbours as u64), id);
            let Some(run) = run.filter(|run| run.start == at) else {
                left = left.get(1..).unwrap_or_default();
                continue;
            };
            let attempts = run.slot.attempts.saturating_add(1);
            let Poll { connection, lease, .. } = asked.poll;
            let state = State::Claimed { until, member, connection, lease };
            self.claims.set_run(Run { slot: Slot { attempts, state }, ..run });
            handed.extend((run.start..run.end).map(|at| {
                let skipped = (1..=at).take_while(|back| gone.binary_search(&Offset(at - back)).is_ok());
                Handed { offset: Offset(at), attempts, skipped_before: skipped.count() as u64 }
            }));
            left = left.get(run.records() as usize..).unwrap_or_default();
        }
        if let Some(member) = member {
            self.claims.release(member);
        }
        self.give_back(id, &std::mem::take(&mut asked.wanted));
        if handed.is_empty() && asked.until > now {
            let place = self.waiting.first_key_value().map_or(0, |(first, _)| first - 1);
            self.wait(place, asked);
            return None;
        }
        Some(handed)
    }

    /// A poll is not wanted any more; what was being read for it is owed.
    pub fn cancel(&mut self, id: PollId) {
        if let Some(place) = self.places.get(&id).copied() {
            self.stop_waiting(place);
        }
        if let Some(asked) = self.reading.remove(&id) {
            self.give_back(id, &asked.wanted);
        }
    }

    /// A connection is gone: its polls are not wanted any more; gives them. What it holds is held until its time.
    pub fn connection_gone(&mut self, connection: ConnectionId) -> Vec<PollId> {
        let of = |asked: &Asked| asked.poll.connection == connection;
        let waiting = self.waiting.values().filter(|asked| of(asked)).map(|asked| asked.poll.id);
        let reading = self.reading.values().filter(|asked| of(asked)).map(|asked| asked.poll.id);
        let polls: Vec<PollId> = waiting.chain(reading).collect();
        polls.iter().for_each(|id| self.cancel(*id));
        let theirs =
            (connection, Box::default())..(ConnectionId(connection.0.saturating_add(1)), Box::default());
        let names: Vec<_> = self.reclaims.range(theirs).cloned().collect();
        names.iter().for_each(|name| {
            self.reclaims.remove(name);
        });
        polls
    }

    /// The first of the runs in `start..end` that are reserved for a poll.
    fn reserved(&self, start: u64, end: u64, id: PollId) -> Option<Run> {
        let theirs = |run: &Run| matches!(run.slot.state, State::Reserved { poll } if poll == id);
        self.claims.within(start, end).find(theirs)
    }

    /// What of these runs is still reserved for a poll was not handed out.
    fn give_back(&mut self, id: PollId, wanted: &[(u64, u64)]) {
        for (start, end) in wanted {
            while let Some(run) = self.reserved(*start, *end, id) {
                self.owe(run, false);
            }
        }
    }

    fn owe(&mut self, run: Run, reclaimed: bool) {
        let slot = Slot { attempts: run.slot.attempts, state: State::Ready { reclaimed } };
        self.claims.set_run(Run { slot, ..run });
    }

    /// Ends claims and delays whose time has come, `budget` records at most. Gives of how many.
    pub fn lapse(&mut self, now: Tick, settings: &GroupSettings, extent: Extent, budget: usize) -> usize {
        let mut spent = 0;
        while spent < budget {
            let due = self.claims.due(now);
            let Some(run) = due.and_then(|run| run.within(0, run.start + (budget - spent) as u64)) else {
                return spent;
            };
            match run.slot.state {
                State::Delayed { .. } => self.owe(run, false),
                _ => self.fail(run, State::Ready { reclaimed: false }, settings, extent),
            }
            spent += run.records() as usize;
        }
        spent
    }

    /// Records were handed out in vain.
    fn fail(&mut self, run: Run, then: State, settings: &GroupSettings, extent: Extent) {
        let attempts = run.slot.attempts;
        if attempts >= settings.attempts_max {
            return (run.start..run.end).for_each(|at| self.bury(at, attempts, extent));
        }
        self.claims.set_run(Run { slot: Slot { attempts, state: then }, ..run });
        (run.start..run.end).for_each(|at| self.change(Change::Attempts { at, attempts }, extent));
    }

    /// Makes a record a dead letter, or lets it wait until there is room for one.
    fn bury(&mut self, at: u64, attempts: u32, extent: Extent) {
        let dead = self.durable.dead();
        if dead.ranges() >= DEAD_RANGES_MAX && dead.needs_range(at) {
            self.claims.set(at, Slot { attempts, state: State::Exhausted });
            return self.change(Change::Attempts { at, attempts }, extent);
        }
        self.claims.remove(at);
        self.change(Change::Dead { base: at, count: 1 }, extent);
    }

    fn bury_exhausted(&mut self, extent: Extent) {
        while let Some(at) = self.claims.first_exhausted() {
            let dead = self.durable.dead();
            if dead.ranges() >= DEAD_RANGES_MAX && dead.needs_range(at) {
                return;
            }
            self.claims.remove(at);
            self.change(Change::Dead { base: at, count: 1 }, extent);
        }
    }

    fn finish(&mut self, from: u64, records: u64, extent: Extent) {
        match self.changes.last_mut() {
            Some(Change::Done { base, count }) if base.saturating_add(*count) == from => {
                *count += records;
                self.durable.apply(Change::Done { base: from, count: records });
            }
            _ => self.change(Change::Done { base: from, count: records }, extent),
        }
    }

    fn change(&mut self, change: Change, extent: Extent) {
        let first = matches!(change, Change::Position { .. } | Change::Forget);
        if self.durable.position().is_none() && !first {
            let at = Change::Position { at: extent.start };
            self.durable.apply(at);
            self.changes.push(at);
        }
        self.durable.apply(change);
        self.changes.push(change);
    }

    /// Finishes `count` records that are held, or finished already: all of them, or none.
    ///
    /// # Errors
    /// `NeverHandedOut`, `StaleClaim`: of the first that is neither.
    pub fn ack(&mut self, from: u64, count: u32, now: Tick, extent: Extent) -> Result<(), GroupRefused> {
        self.used = now;
        let Some(end) = from.checked_add(u64::from(count)) else { return Err(GroupRefused::NeverHandedOut) };
        let mut at = from;
        while at < end {
            at = match self.claims.run_of(at) {
                Some(Run { end, slot: Slot { state: State::Claimed { .. }, .. }, .. }) => end,
                Some(_) => return Err(GroupRefused::StaleClaim),
                None => match self.durable.finished_until(at) {
                    Some(end) => end,
                    None => return self.held(at, 0, extent).map(drop),
                },
            };
        }
        while let Some(run) = self.claims.first_within(from, end) {
            self.claims.remove_run(run.start, run.end);
            self.finish(run.start, run.records(), extent);
        }
        Ok(())
    }

    /// The slot of a record that is held; with `attempts` other than 0 only by that claim.
    fn held(&self, at: u64, attempts: u32, extent: Extent) -> Result<Slot, GroupRefused> {
        match self.claims.get(at) {
            Some(slot @ Slot { state: State::Claimed { .. }, .. })
                if attempts == 0 || attempts == slot.attempts =>
            {
                Ok(slot)
            }
            None if at >= extent.end || at >= self.handed_end => Err(GroupRefused::NeverHandedOut),
            _ => Err(GroupRefused::StaleClaim),
        }
    }

    /// Gives a record back that is held, to be handed out again after `delay`.
    ///
    /// # Errors
    /// `NeverHandedOut`, `StaleClaim`.
    pub fn nack(
        &mut self,
        (at, attempts): (u64, u32),
        delay: Duration,
        (now, extent): (Tick, Extent),
        settings: &GroupSettings,
    ) -> Result<(), GroupRefused> {
        self.used = now;
        let slot = self.held(at, attempts, extent)?;
        let then = match delay.min(settings.visibility_max) {
            Duration::ZERO => State::Ready { reclaimed: false },
            delay => State::Delayed { until: now + delay },
        };
        self.fail(Run { start: at, end: at + 1, slot }, then, settings, extent);
        Ok(())
    }

    /// Lets a claim hold until `by` from now. Gives how long that is.
    ///
    /// # Errors
    /// `NeverHandedOut`, `StaleClaim`.
    pub fn extend(
        &mut self,
        (at, attempts): (u64, u32),
        by: Duration,
        (now, extent): (Tick, Extent),
        settings: &GroupSettings,
    ) -> Result<Duration, GroupRefused> {
        self.used = now;
        if attempts == 0 {
            return Err(GroupRefused::StaleClaim);
        }
        self.held(at, attempts, extent)?;
        let by = by.min(settings.visibility_max);
        self.claims.extend(at, now + by);
        Ok(by)
    }

    /// Makes a record a dead letter by hand, wherever it is.
    ///
    /// # Errors
    /// `NeverHandedOut`, `StaleClaim` when it is finished, `TooManyDeadLetters`.
    pub fn dead_letter(&mut self, at: u64, now: Tick, extent: Extent) -> Result<(), GroupRefused> {
        self.used = now;
        let dead = self.durable.dead();
        if dead.contains(at) {
            return Ok(());
        }
        if self.claims.get(at).is_none() {
            self.held(at, 0, extent)?;
        }
        if dead.ranges() >= DEAD_RANGES_MAX && dead.needs_range(at) {
            return Err(GroupRefused::TooManyDeadLetters);
        }
        self.claims.remove(at);
        self.change(Change::Dead { base: at, count: 1 }, extent);
        Ok(())
    }

    /// Takes a dead letter off the list.
    ///
    /// # Errors
    /// `NotListed`.
    pub fn discard(&mut self, at: u64, now: Tick, extent: Extent) -> Result<(), GroupRefused> {
        self.used = now;
        if !self.durable.dead().contains(at) {
            return Err(GroupRefused::NotListed);
        }
        self.change(Change::Discard { base: at, count: 1 }, extent);
        self.bury_exhausted(extent);
        Ok(())
    }

    /// Takes a dead letter off the list, to be handed out again as if for the first time.
    ///
    /// # Errors
    /// `NotListed`; `TooManyUnfinished` when as many records as twice those in flight are unfinished.
    pub fn redrive(
        &mut self,
        at: u64,
        (now, extent): (Tick, Extent),
        settings: &GroupSettings,
    ) -> Result<(), GroupRefused> {
        self.used = now;
        if !self.durable.dead().contains(at) {
            return Err(GroupRefused::NotListed);
        }
        if self.claims.len() >= settings.in_flight_max.saturating_mul(2) {
            return Err(GroupRefused::TooManyUnfinished);
        }
        self.change(Change::Redrive { at }, extent);
        self.claims.set(at, Slot { attempts: 0, state: State::Ready { reclaimed: false } });
        self.bury_exhausted(extent);
        Ok(())
    }

    /// Gives back what a member holds from other connections; once for each of its connections.
    fn reclaim(&mut self, member: &[u8], connection: ConnectionId, extent: Extent, settings: &GroupSettings) {
        if self.reclaims.len() >= RECLAIMS_MAX || !self.reclaims.insert((connection, member.into())) {
            return;
        }
        for run in self.claims.held_elsewhere(member, connection) {
            self.fail(run, State::Ready { reclaimed: true }, settings, extent);
        }
    }

    /// Moves the position; claims are void, dead letters stay. Gives where it is, and whether it was moved.
    pub fn seek(&mut self, to: u64, if_new: bool, (now, extent): (Tick, Extent)) -> (u64, bool) {
        self.used = now;
        if let Some(position) = self.durable.position().filter(|_| if_new) {
            return (position, false);
        }
        self.void_claims();
        self.change(Change::Position { at: to }, extent);
        self.next = to;
        (to, true)
    }

    fn void_claims(&mut self) {
        self.claims = Claims::default();
        for asked in self.reading.values_mut() {
            asked.wanted.clear();
        }
    }

    /// The group is as if it had never been; its polls are answered empty. Whether it was there.
    pub fn delete(&mut self, extent: Extent, out: &mut Vec<Outcome>) -> bool {
        let existed = self.durable.position().is_some() || !self.claims.is_empty();
        self.void_claims();
        if self.durable != Durable::default() {
            self.change(Change::Forget, extent);
        }
        (self.waits, self.places) = Default::default();
        out.extend(
            std::mem::take(&mut self.waiting).into_values().map(|asked| Outcome::Empty(asked.poll.id)),
        );
        self.next = extent.start;
        existed
    }

    /// The shard begins at `extent.start`: what is below can be neither handed out nor listed.
    pub fn shard_starts(&mut self, extent: Extent) {
        let start = extent.start;
        let below = self.durable.position().is_some_and(|position| position < start)
            || self.durable.dead().within(0, start).next().is_some()
            || self.durable.redriven().range(..start).next().is_some();
        self.claims.remove_below(start);
        self.next = self.next.max(start);
        if below {
            self.change(Change::Start { at: start }, extent);
        }
        self.bury_exhausted(extent);
    }

    /// Looks at the group.
    pub fn info(&self, extent: Extent) -> GroupInfo {
        let counts = self.claims.counts();
        GroupInfo {
            committed: self.durable.position().map(Offset),
            tail: Offset(extent.end),
            in_flight: counts.in_flight as u64,
            owed: counts.owed as u64,
            dead_letters: self.durable.dead().len(),
        }
    }
}
