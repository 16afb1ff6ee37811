//! Who is in one consumer group, and who holds which shard of its stream. Sans-io.
//! Scope: one per group. Owns: the members, to whom each shard is dealt, the lease that stands on it, heartbeats that wait.
//! Invariants: a shard has one lease at most, and a next one only when its holder released it, left, was replaced or let its
//! time run out; shards are dealt so that no two members have counts more than one apart, and a shard keeps its member as
//! long as that allows; a lease that is asked back is not renewed.
//! Not here: which groups there are (`super`), what a lease keeps others from (`projection::group`).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use felix_runtime::clock::Tick;
use felix_wire::client::ShardLease;
use felix_wire::id::{LeaseId, MembershipId, ShardIndex};

use super::{
    Heartbeat, Join, LeaseRefused, LeaseView, LeasesView, MEMBERS_MAX, MemberName, MemberView, Numbers,
};
use crate::shard::ask::Asker;

/// What a member takes in memory beside its name.
const MEMBER_BYTES: usize = 320;
/// What a group takes beside its name and members, and what each shard adds.
const ROSTER_BYTES: usize = 320;
const SHARD_BYTES: usize = 56;

/// A heartbeat that waits for a change.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    asker: Asker,
    until: Tick,
    seen: u64,
}

#[derive(Debug)]
struct Member {
    name: MemberName,
    instance: u64,
    term: Duration,
    /// It is gone then, unless it says something.
    ends: Tick,
    version: u64,
    waiting: Option<Waiting>,
}

#[derive(Clone, Copy, Debug)]
struct Lease {
    id: LeaseId,
    holder: MembershipId,
    ends: Tick,
    asked_back: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Shard {
    dealt_to: Option<MembershipId>,
    lease: Option<Lease>,
}

/// An answer to somebody who waited or asked.
pub type Told = (Asker, Result<LeasesView, LeaseRefused>);

/// See the module.
#[derive(Debug)]
pub struct Roster {
    shards: Vec<Shard>,
    members: BTreeMap<MembershipId, Member>,
    names: BTreeMap<MemberName, MembershipId>,
    /// Members or leases have changed since shards were dealt.
    undealt: bool,
}

impl Roster {
    /// A group of nobody, over so many shards.
    pub fn new(shards: u32) -> Roster {
        let shards = vec![Shard::default(); shards as usize];
        Roster { shards, members: BTreeMap::new(), names: BTreeMap::new(), undealt: false }
    }

    /// Whether nobody is in it.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Members there are.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Memory it takes, about.
    pub fn bytes(&self) -> usize {
        let names: usize = self.names.keys().map(|name| MEMBER_BYTES + 2 * name.bytes()).sum();
        ROSTER_BYTES + self.shards.len() * SHARD_BYTES + names
    }

    /// What one member more would take.
    pub fn bytes_of_member(name: &MemberName) -> usize {
        MEMBER_BYTES + 2 * name.bytes()
    }

    /// Whether somebody of this name is in it.
    pub fn has(&self, name: &MemberName) -> bool {
        self.names.contains_key(name)
    }

    /// The stream has so many shards; it never has fewer than before.
    pub fn widen(&mut self, shards: u32) {
        let shards = (shards as usize).max(self.shards.len());
        self.undealt |= shards > self.shards.len();
        self.shards.resize(shards, Shard::default());
    }

    /// When `advance` wants to be called.
    pub fn next_deadline(&self) -> Option<Tick> {
        let members = self.members.values().map(|member| member.ends);
        let waits = self.members.values().filter_map(|member| member.waiting.map(|waiting| waiting.until));
        let asked = self.shards.iter().filter_map(|shard| shard.lease.filter(|lease| lease.asked_back));
        members.chain(waits).chain(asked.map(|lease| lease.ends)).min()
    }

    /// Makes a member, or finds the one that this instance is. Another instance of its name is replaced: its leases end
    /// now, and its shards are the new one's. The answer is in `out`.
    ///
    /// # Errors
    /// `TooManyMembers`; nothing changed then.
    pub fn join(
        &mut self,
        (asker, join): (Asker, Join),
        now: Tick,
        numbers: &mut Numbers,
        out: &mut Vec<Told>,
    ) -> Result<(), LeaseRefused> {
        let Join { name, instance, term } = join;
        self.advance(now, numbers, out);
        let before = self.names.get(&name).copied();
        let same = before.filter(|at| self.members.get(at).is_some_and(|member| member.instance == instance));
        let session = match (same, before) {
            (Some(session), _) => session,
            (None, None) if self.members.len() >= MEMBERS_MAX => return Err(LeaseRefused::TooManyMembers),
            (None, before) => {
                let session = MembershipId(numbers.take(now));
                let ends = now + term;
                let member = Member { name: name.clone(), instance, term, ends, version: 0, waiting: None };
                self.members.insert(session, member);
                self.names.insert(name, session);
                self.undealt = true;
                if let Some(before) = before {
                    self.replace(before, session, out);
                }
                session
            }
        };
        if let Some(member) = self.members.get_mut(&session) {
            member.term = term;
            Self::renew(&mut self.shards, member, session, now);
        }
        self.deal(numbers, now);
        out.extend(self.view(session, now).map(|view| (asker, Ok(view))));
        self.wake(now, out);
        Ok(())
    }

    fn replace(&mut self, before: MembershipId, by: MembershipId, out: &mut Vec<Told>) {
        if let Some(waiting) = self.members.remove(&before).and_then(|member| member.waiting) {
            out.push((waiting.asker, Err(LeaseRefused::MemberReplaced)));
        }
        for shard in &mut self.shards {
            shard.lease = shard.lease.filter(|lease| lease.holder != before);
            if shard.dealt_to == Some(before) {
                shard.dealt_to = Some(by);
            }
        }
    }

    fn renew(shards: &mut [Shard], member: &mut Member, session: MembershipId, now: Tick) {
        member.ends = now + member.term;
        for lease in shards.iter_mut().filter_map(|shard| shard.lease.as_mut()) {
            if lease.holder == session && !lease.asked_back {
                lease.ends = member.ends;
            }
        }
    }

    /// Keeps a member and its leases for another term, and ends those it releases. It is answered when its version is not
    /// the one it has seen, or when it has waited long enough.
    ///
    /// # Errors
    /// `UnknownMember`, `MemberReplaced`, `NoSuchShard`, `NeverHeld`; nothing changed then.
    pub fn heartbeat(
        &mut self,
        (asker, heartbeat): (Asker, &Heartbeat),
        now: Tick,
        numbers: &mut Numbers,
        out: &mut Vec<Told>,
    ) -> Result<(), LeaseRefused> {
        let Heartbeat { name, session, released, seen, wait } = heartbeat;
        self.advance(now, numbers, out);
        self.check(name, *session)?;
        if released.iter().any(|of| of.shard.0 as usize >= self.shards.len()) {
            return Err(LeaseRefused::NoSuchShard);
        }
        if released.iter().any(|of| of.lease.0 > numbers.newest()) {
            return Err(LeaseRefused::NeverHeld);
        }
        released.iter().for_each(|of| self.release(*session, *of));
        let Some(member) = self.members.get_mut(session) else { return Err(LeaseRefused::UnknownMember) };
        Self::renew(&mut self.shards, member, *session, now);
        let earlier = member.waiting.take();
        self.deal(numbers, now);
        if let Some(earlier) = earlier {
            out.extend(self.view(*session, now).map(|view| (earlier.asker, Ok(view))));
        }
        match self.members.get_mut(session) {
            Some(member) if *seen == Some(member.version) && !wait.is_zero() => {
                let until = now + (*wait).min(member.term / 3);
                member.waiting = Some(Waiting { asker, until, seen: member.version });
            }
            _ => out.extend(self.view(*session, now).map(|view| (asker, Ok(view)))),
        }
        self.wake(now, out);
        Ok(())
    }

    fn check(&self, name: &MemberName, session: MembershipId) -> Result<(), LeaseRefused> {
        match self.names.get(name) {
            Some(at) if *at == session => Ok(()),
            Some(at) if *at > session => Err(LeaseRefused::MemberReplaced),
            _ => Err(LeaseRefused::UnknownMember),
        }
    }

    /// A lease that ended meanwhile is none to release.
    fn release(&mut self, session: MembershipId, of: ShardLease) {
        let Some(shard) = self.shards.get_mut(of.shard.0 as usize) else { return };
        if shard.lease.is_some_and(|lease| lease.holder == session && lease.id == of.lease) {
            shard.lease = None;
            self.undealt = true;
            self.change(session);
        }
    }

    /// Ends a membership with its leases; one that is not there has ended.
    pub fn leave(
        &mut self,
        (name, session): (&MemberName, MembershipId),
        now: Tick,
        numbers: &mut Numbers,
        out: &mut Vec<Told>,
    ) {
        self.advance(now, numbers, out);
        if self.check(name, session).is_ok() {
            if let Some(waiting) = self.members.get_mut(&session).and_then(|member| member.waiting.take()) {
                out.push((waiting.asker, Err(LeaseRefused::UnknownMember)));
            }
            self.remove(session);
        }
        self.deal(numbers, now);
        self.wake(now, out);
    }

    /// Ends what has run out, deals what is free, and answers whoever has waited long enough.
    pub fn advance(&mut self, now: Tick, numbers: &mut Numbers, out: &mut Vec<Told>) {
        self.expire(now, out);
        self.deal(numbers, now);
        let late = |member: &Member| member.waiting.is_some_and(|waiting| waiting.until <= now);
        let late: Vec<MembershipId> =
            self.members.iter().filter(|(_, member)| late(member)).map(|(at, _)| *at).collect();
        late.into_iter().for_each(|session| self.answer(session, now, out));
        self.wake(now, out);
    }

    /// Whoever waits is answered now, as of the member that waits with this request or of all.
    pub fn answer_waiting(&mut self, of: Option<MembershipId>, now: Tick, out: &mut Vec<Told>) {
        let all: Vec<MembershipId> =
            self.members.keys().copied().filter(|at| of.is_none_or(|of| of == *at)).collect();
        all.into_iter().for_each(|session| self.answer(session, now, out));
    }

    /// Nobody is a member any more; those who wait are told.
    pub fn close(&mut self, out: &mut Vec<Told>) {
        let waiting = self.members.values().filter_map(|member| member.waiting);
        out.extend(waiting.map(|waiting| (waiting.asker, Err(LeaseRefused::UnknownMember))));
        *self = Roster::new(0);
    }

    /// The member that waits with this request.
    pub fn waits(&self, asker: Asker) -> Option<MembershipId> {
        let is = |member: &Member| member.waiting.is_some_and(|waiting| waiting.asker == asker);
        self.members.iter().find(|(_, member)| is(member)).map(|(at, _)| *at)
    }

    fn answer(&mut self, session: MembershipId, now: Tick, out: &mut Vec<Told>) {
        let Some(waiting) = self.members.get_mut(&session).and_then(|member| member.waiting.take()) else {
            return;
        };
        out.extend(self.view(session, now).map(|view| (waiting.asker, Ok(view))));
    }

    /// Members whose time is over are gone, with what they hold.
    fn expire(&mut self, now: Tick, out: &mut Vec<Told>) {
        let over: Vec<MembershipId> =
            self.members.iter().filter(|(_, member)| member.ends <= now).map(|(at, _)| *at).collect();
        for session in over {
            let waiting = self.remove(session);
            out.extend(waiting.map(|waiting| (waiting.asker, Err(LeaseRefused::UnknownMember))));
        }
        for at in 0..self.shards.len() {
            let Some(lease) = self.shards[at].lease.filter(|lease| lease.ends <= now) else { continue };
            self.shards[at].lease = None;
            self.undealt = true;
            self.change(lease.holder);
        }
    }

    fn remove(&mut self, session: MembershipId) -> Option<Waiting> {
        let member = self.members.remove(&session)?;
        self.undealt = true;
        self.names.remove(&member.name);
        for shard in &mut self.shards {
            shard.lease = shard.lease.filter(|lease| lease.holder != session);
            shard.dealt_to = shard.dealt_to.filter(|to| *to != session);
        }
        member.waiting
    }

    fn change(&mut self, session: MembershipId) {
        if let Some(member) = self.members.get_mut(&session) {
            member.version += 1;
        }
    }

    /// Deals the shards anew, moving as few as that takes; free ones are leased, others are asked back.
    fn deal(&mut self, numbers: &mut Numbers, now: Tick) {
        if !std::mem::take(&mut self.undealt) {
            return;
        }
        self.take_from_the_rich();
        self.give_to_the_poor();
        for at in 0..self.shards.len() {
            let Shard { dealt_to, lease } = self.shards[at];
            let Some(to) = dealt_to else { continue };
            match lease {
                None => {
                    let Some(member) = self.members.get(&to) else { continue };
                    let id = LeaseId(numbers.take(now));
                    let lease = Lease { id, holder: to, ends: member.ends, asked_back: false };
                    self.shards[at].lease = Some(lease);
                    self.change(to);
                }
                Some(held) if held.asked_back != (held.holder != to) => {
                    let asked_back = held.holder != to;
                    // One that is not asked for any more holds as if it never had been: its holder counts from a
                    // heartbeat that may have been read meanwhile.
                    let whole = self.members.get(&held.holder).map_or(held.ends, |member| member.ends);
                    let ends = if asked_back { held.ends } else { whole };
                    self.shards[at].lease = Some(Lease { asked_back, ends, ..held });
                    self.change(held.holder);
                }
                Some(_) => {}
            }
        }
    }

    /// How many shards each member may have: those that have most now may have one more when they do not divide evenly.
    fn quotas(&self) -> BTreeMap<MembershipId, (usize, usize)> {
        let mut counts: BTreeMap<MembershipId, usize> = self.members.keys().map(|at| (*at, 0)).collect();
        for to in self.shards.iter().filter_map(|shard| shard.dealt_to) {
            if let Some(count) = counts.get_mut(&to) {
                *count += 1;
            }
        }
        let Some(even) = self.shards.len().checked_div(counts.len()) else { return BTreeMap::new() };
        let odd = self.shards.len() % counts.len();
        let mut order: Vec<(MembershipId, usize)> = counts.into_iter().collect();
        order.sort_by_key(|(session, count)| (std::cmp::Reverse(*count), *session));
        let quota = |(at, (session, count)): (usize, (MembershipId, usize))| {
            (session, (count, even + usize::from(at < odd)))
        };
        order.into_iter().enumerate().map(quota).collect()
    }

    /// What a member has over its quota is nobody's: first what it has not begun to hold.
    fn take_from_the_rich(&mut self) {
        for (session, (count, quota)) in self.quotas() {
            let mut surplus = count.saturating_sub(quota);
            let holds = |shard: &Shard| shard.lease.is_some_and(|lease| lease.holder == session);
            for held in [false, true] {
                let theirs = self.shards.iter_mut().rev().filter(|shard| shard.dealt_to == Some(session));
                let theirs: Vec<&mut Shard> =
                    theirs.filter(|shard| holds(shard) == held).take(surplus).collect();
                surplus -= theirs.len();
                theirs.into_iter().for_each(|shard| shard.dealt_to = None);
            }
        }
    }

    /// What is nobody's goes to whoever holds it and has room, else to those with the fewest.
    fn give_to_the_poor(&mut self) {
        let quotas = self.quotas();
        let mut room: BTreeSet<(usize, MembershipId)> = BTreeSet::new();
        let mut counts: BTreeMap<MembershipId, usize> = BTreeMap::new();
        for (session, (count, quota)) in &quotas {
            counts.insert(*session, *count);
            if count < quota {
                room.insert((*count, *session));
            }
        }
        for holders in [true, false] {
            for shard in self.shards.iter_mut().filter(|shard| shard.dealt_to.is_none()) {
                let holder = shard.lease.map(|lease| lease.holder);
                let place = match holders {
                    true => {
                        holder.and_then(|at| Some((*counts.get(&at)?, at))).filter(|at| room.contains(at))
                    }
                    false => room.first().copied(),
                };
                let Some((count, session)) = place else { continue };
                shard.dealt_to = Some(session);
                room.remove(&(count, session));
                counts.insert(session, count + 1);
                if quotas.get(&session).is_some_and(|(_, quota)| count + 1 < *quota) {
                    room.insert((count + 1, session));
                }
            }
        }
    }

    /// Answers whoever waits and has been dealt something else meanwhile.
    fn wake(&mut self, now: Tick, out: &mut Vec<Told>) {
        let changed = |member: &Member| member.waiting.is_some_and(|waiting| waiting.seen != member.version);
        let woken: Vec<MembershipId> =
            self.members.iter().filter(|(_, member)| changed(member)).map(|(at, _)| *at).collect();
        woken.into_iter().for_each(|session| self.answer(session, now, out));
    }

    fn leases_of(&self, session: MembershipId, now: Tick) -> Vec<LeaseView> {
        let held = (0..).zip(&self.shards).filter_map(|(at, shard)| Some((at, shard.lease?)));
        let view = |(at, lease): (u32, Lease)| LeaseView {
            shard: ShardIndex(at),
            lease: lease.id,
            left: lease.ends.saturating_since(now),
            give_back: lease.asked_back,
        };
        held.filter(|(_, lease)| lease.holder == session).map(view).collect()
    }

    fn view(&self, session: MembershipId, now: Tick) -> Option<LeasesView> {
        let member = self.members.get(&session)?;
        Some(LeasesView {
            session,
            version: member.version,
            term: member.term,
            members: u32::try_from(self.members.len()).unwrap_or(u32::MAX),
            leases: self.leases_of(session, now),
        })
    }

    /// The members, by name.
    pub fn members(&self, now: Tick) -> Vec<MemberView> {
        let member = |(name, session): (&MemberName, &MembershipId)| {
            let member = self.members.get(session)?;
            Some(MemberView {
                name: name.clone(),
                session: *session,
                left: member.ends.saturating_since(now),
                leases: self.leases_of(*session, now),
            })
        };
        self.names.iter().filter_map(member).collect()
    }
}
