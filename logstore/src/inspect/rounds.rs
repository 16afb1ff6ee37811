//! What is wrong with the rounds of all slots, core by core. Scope: functions of one inspection.
//! Invariants: a round that is still needed and was synced is damage when it cannot be read. The last one may be torn; rounds
//! with nothing but appends that count before they are durable are not synced, so a power loss may take any of them.
//! Not here: what rounds say of shards (`recovery::evidence`).
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::collections::{BTreeMap, BTreeSet};

use super::finding::{Finding, Sink, What};
use crate::commit::slot::{RECOVERY_CORE, ROUNDS_AT};
use crate::commit::{Round, RoundFault};
use crate::id::{Fsync, ShardKey};
use crate::recovery::slots::{RoundRead, SlotRead};

/// A slot as it was read.
pub(super) struct Slot {
    pub read: SlotRead,
    pub bytes: u64,
    /// Of each round that was read.
    pub places: Vec<Place>,
    /// Where something stands that was meant to be a round, by byte.
    pub bad: Vec<Bad>,
}

/// Where a round is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub end: u64,
    /// Where its first piece begins that is not whole, and which it is.
    pub torn_at: Option<(u64, usize)>,
}

/// A round that cannot be read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bad {
    pub byte: u64,
    pub fault: RoundFault,
}

/// A round with its place.
#[derive(Clone, Copy)]
struct At<'a> {
    slot: usize,
    place: Place,
    read: &'a RoundRead,
}

impl At<'_> {
    fn number(&self) -> u64 {
        self.read.round.number.0
    }
}

/// What is known of the logs of one core: which rounds are synced before the next one is written.
struct Policies {
    known: BTreeMap<ShardKey, Fsync>,
    /// Whatever is in them.
    always: bool,
}

impl Policies {
    fn of(rounds: &[At<'_>], core: u16) -> Policies {
        let marks = rounds.iter().flat_map(|at| &at.read.round.marks);
        Policies {
            known: marks.map(|mark| (mark.key, mark.policy)).collect(),
            always: core == RECOVERY_CORE.0,
        }
    }

    fn is_on_commit(&self, key: ShardKey) -> bool {
        self.known.get(&key) == Some(&Fsync::OnCommit)
    }

    fn is_synced(&self, round: &Round) -> bool {
        let pieces = round.pieces.iter().any(|piece| self.is_on_commit(piece.key));
        self.always || !round.marks.is_empty() || pieces
    }

    /// Whether one of the rounds from `from` to `after` was, as far as others say. `first` of a slot has the marks of all.
    fn was_synced(&self, from: u64, first: bool, after: &Round) -> bool {
        let named = after.prior.iter().any(|prior| self.is_on_commit(prior.key));
        // The very first round has no marks when there are no logs yet.
        let only_first = from == 1 && after.number.0 == 2;
        let all = self.known.values().all(|policy| *policy == Fsync::OnCommit);
        self.always || named || (!only_first && (first || all))
    }
}

/// Says what is wrong; gives how many rounds of each slot are still needed.
pub(super) fn judge(slots: &[Slot], sink: &mut Sink<'_>) -> Vec<u64> {
    let mut groups: BTreeMap<(u64, u16), Vec<usize>> = BTreeMap::new();
    for (index, slot) in slots.iter().enumerate() {
        if let Some(head) = &slot.read.head {
            groups.entry((head.run.0, head.core.0)).or_default().push(index);
        }
    }
    let mut live = vec![0; slots.len()];
    for ((_, core), group) in &groups {
        judge_group(slots, (*core, group), &mut live, sink);
    }
    live
}

/// The slots of one core in one run.
fn judge_group(slots: &[Slot], (core, group): (u16, &[usize]), live: &mut [u64], sink: &mut Sink<'_>) {
    let mut rounds: Vec<At<'_>> = Vec::new();
    for index in group {
        let Some(slot) = slots.get(*index) else { continue };
        let read = slot.read.rounds.iter().zip(&slot.places);
        rounds.extend(read.map(|(read, place)| At { slot: *index, place: *place, read }));
    }
    rounds.sort_by_key(At::number);
    let policies = Policies::of(&rounds, core);
    let live_from = rounds.iter().map(|at| at.read.round.live_from.0).max().unwrap_or(0);
    let last = rounds.last().map_or(0, At::number);
    let mut due =
        rounds.iter().map(At::number).find(|number| *number >= live_from).unwrap_or(0).min(live_from);
    let mut before: Option<At<'_>> = None;
    let mut told = BTreeSet::new();
    for at in &rounds {
        if at.number() >= live_from {
            if let Some(count) = live.get_mut(at.slot) {
                *count += 1;
            }
            if at.number() > due {
                told.extend(tell_gap(slots, (before, *at), due, &policies, sink));
            }
            let may_be_torn = at.number() == last || !policies.is_synced(&at.read.round);
            tell_torn(slots, at, may_be_torn, sink);
            due = at.number().saturating_add(1);
        }
        before = Some(*at);
    }
    // Behind the last round only: what else cannot be read is not needed, or was told as a gap.
    let Some(newest) = before else { return tell_only(slots, group, sink) };
    let Some(slot) = slots.get(newest.slot) else { return };
    let behind = slot.bad.iter().find(|bad| bad.byte == newest.place.end);
    if let Some(bad) = behind.filter(|bad| !told.contains(&(newest.slot, bad.byte))) {
        let what = What::TornRound { fault: bad.fault };
        sink.note(Finding::of_slot(&slot.read.path, bad.byte, what));
    }
    tell_first(slots, group, newest, &told, sink);
}

/// A core without any readable round.
fn tell_only(slots: &[Slot], group: &[usize], sink: &mut Sink<'_>) {
    for slot in group.iter().filter_map(|index| slots.get(*index)) {
        if let Some(bad) = slot.bad.iter().find(|bad| bad.byte == ROUNDS_AT) {
            let what = What::TornRound { fault: bad.fault };
            sink.note(Finding::of_slot(&slot.read.path, bad.byte, what));
        }
    }
}

/// The first round of a slot newer than that of the last readable round.
fn tell_first(
    slots: &[Slot],
    group: &[usize],
    newest: At<'_>,
    told: &BTreeSet<(usize, u64)>,
    sink: &mut Sink<'_>,
) {
    let number = |index: usize| slots.get(index).and_then(|slot| slot.read.head).map(|head| head.number);
    for index in group.iter().filter(|index| number(**index) > number(newest.slot)) {
        let Some(slot) = slots.get(*index) else { continue };
        let bad = slot.bad.iter().find(|bad| bad.byte == ROUNDS_AT && slot.read.rounds.is_empty());
        if let Some(bad) = bad.filter(|bad| !told.contains(&(*index, bad.byte))) {
            let what = What::TornRound { fault: bad.fault };
            sink.note(Finding::of_slot(&slot.read.path, bad.byte, what));
        }
    }
}

/// Rounds from `from` on are missing between two that are there. Gives the place that was named.
fn tell_gap(
    slots: &[Slot],
    (before, after): (Option<At<'_>>, At<'_>),
    from: u64,
    policies: &Policies,
    sink: &mut Sink<'_>,
) -> Option<(usize, u64)> {
    // It began where the one before ends, or first in the slot of the one behind it.
    let follows = before
        .filter(|before| before.slot == after.slot || bad_at(slots, before.slot, before.place.end).is_some());
    let (slot, byte) = follows.map_or((after.slot, ROUNDS_AT), |before| (before.slot, before.place.end));
    let (path, to) = (&slots.get(slot)?.read.path, after.number());
    if policies.was_synced(from, byte == ROUNDS_AT, &after.read.round) {
        let what = match bad_at(slots, slot, byte) {
            Some(fault) => What::RoundDamaged { from, to, fault },
            None => What::RoundsMissing { from, to },
        };
        sink.damage(Finding::of_slot(path, byte, what));
    } else {
        sink.note(Finding::of_slot(path, byte, What::RoundsUnsynced { from, to }));
    }
    Some((slot, byte))
}

fn bad_at(slots: &[Slot], slot: usize, byte: u64) -> Option<RoundFault> {
    slots.get(slot)?.bad.iter().find(|bad| bad.byte == byte).map(|bad| bad.fault)
}

fn tell_torn(slots: &[Slot], at: &At<'_>, may_be: bool, sink: &mut Sink<'_>) {
    let (Some((byte, index)), Some(slot)) = (at.place.torn_at, slots.get(at.slot)) else { return };
    let Some(piece) = at.read.round.pieces.get(index) else { return };
    let (round, key) = (at.number(), piece.key);
    if may_be {
        sink.note(Finding::of_slot(&slot.read.path, byte, What::TornPiece { round, key }));
    } else {
        sink.damage(Finding::of_slot(&slot.read.path, byte, What::PieceDamaged { round, key }));
    }
}
