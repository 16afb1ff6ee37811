//! Who holds which records of one group. Scope: one per group; nothing of it is durable.
//! Owns: a slot for every record that was handed out, or is to be handed out again, and is not finished; the times at which
//! claims and delays end.
//! Invariants: a record has one slot at most; each slot that waits for a time is in `timers` once, each that is ready in
//! `ready` once, each held by a named member in `held_by` once; every operation costs the logarithm of the slots.
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

/// How many slots stand where.
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
    held: usize,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Claims {
    slots: BTreeMap<u64, Slot>,
    /// Reclaimed ones first, then by offset.
    ready: BTreeSet<(bool, u64)>,
    timers: BTreeSet<(Tick, u64)>,
    exhausted: BTreeSet<u64>,
    in_flight: usize,
    members: BTreeMap<Box<[u8]>, Member>,
    names: BTreeMap<u64, Box<[u8]>>,
    next_member: u64,
    held_by: BTreeSet<(MemberId, u64)>,
}

impl Claims {
    /// How many slots there are.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// How many stand where.
    pub fn counts(&self) -> Counts {
        Counts { in_flight: self.in_flight, owed: self.slots.len() - self.in_flight }
    }

    /// The slot of a record.
    pub fn get(&self, at: u64) -> Option<Slot> {
        self.slots.get(&at).copied()
    }

    /// When the next claim or delay ends.
    pub fn next_timer(&self) -> Option<Tick> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// A record whose claim or delay has ended by `now`.
    pub fn due(&self, now: Tick) -> Option<u64> {
        self.timers.first().filter(|(at, _)| *at <= now).map(|(_, at)| *at)
    }

    /// The record to hand out next, of those that were handed out before.
    pub fn first_ready(&self) -> Option<u64> {
        self.ready.first().map(|(_, at)| *at)
    }

    /// The lowest record that waits for room in the list of dead letters.
    pub fn first_exhausted(&self) -> Option<u64> {
        self.exhausted.first().copied()
    }

    /// Puts a record into a state, with so many attempts.
    pub fn set(&mut self, at: u64, slot: Slot) {
        self.remove(at);
        match slot.state {
            State::Reserved { .. } => self.in_flight += 1,
            State::Claimed { until, member, .. } => {
                self.in_flight += 1;
                self.timers.insert((until, at));
                if let Some(member) = member {
                    self.held_by.insert((member, at));
                    self.count_held(member, true);
                }
            }
            State::Ready { reclaimed } => {
                self.ready.insert((!reclaimed, at));
            }
            State::Delayed { until } => {
                self.timers.insert((until, at));
            }
            State::Exhausted => {
                self.exhausted.insert(at);
            }
        }
        self.slots.insert(at, slot);
    }

    /// Removes the slot of a record.
    pub fn remove(&mut self, at: u64) -> Option<Slot> {
        let slot = self.slots.remove(&at)?;
        match slot.state {
            State::Reserved { .. } => self.in_flight -= 1,
            State::Claimed { until, member, .. } => {
                self.in_flight -= 1;
                self.timers.remove(&(until, at));
                if let Some(member) = member {
                    self.held_by.remove(&(member, at));
                    self.count_held(member, false);
                }
            }
            State::Ready { reclaimed } => {
                self.ready.remove(&(!reclaimed, at));
            }
            State::Delayed { until } => {
                self.timers.remove(&(until, at));
            }
            State::Exhausted => {
                self.exhausted.remove(&at);
            }
        }
        Some(slot)
    }

    /// Lets a claim hold until another time.
    pub fn extend(&mut self, at: u64, until: Tick) {
        if let Some(Slot { state: State::Claimed { until: held, .. }, .. }) = self.slots.get_mut(&at) {
            self.timers.remove(&(*held, at));
            self.timers.insert((until, at));
            *held = until;
        }
    }

    /// What is claimed under another lease than this one, lowest first.
    pub fn under_other_leases(&self, than: LeaseId) -> Vec<u64> {
        let other =
            |slot: &Slot| matches!(slot.state, State::Claimed { lease: Some(lease), .. } if lease != than);
        self.slots.iter().filter(|(_, slot)| other(slot)).map(|(at, _)| *at).collect()
    }

    /// Removes every slot below `at`.
    pub fn remove_below(&mut self, at: u64) {
        while let Some(lowest) = self.slots.keys().next().copied().filter(|lowest| *lowest < at) {
            self.remove(lowest);
        }
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
    pub fn held_elsewhere(&self, name: &[u8], connection: ConnectionId) -> Vec<u64> {
        let Some(member) = self.members.get(name) else { return Vec::new() };
        let member = MemberId(member.id);
        let held = self.held_by.range((member, 0)..=(member, u64::MAX)).map(|(_, at)| *at);
        let elsewhere = |at: &u64| match self.slots.get(at).map(|slot| slot.state) {
            Some(State::Claimed { connection: other, .. }) => other != connection,
            _ => false,
        };
        held.filter(elsewhere).collect()
    }

    fn count_held(&mut self, member: MemberId, more: bool) {
        let Some(known) = self.names.get(&member.0).and_then(|name| self.members.get_mut(name)) else {
            return;
        };
        if more {
            known.held += 1;
        } else {
            known.held -= 1;
            if known.held == 0 {
                self.release(member);
            }
        }
    }
}
