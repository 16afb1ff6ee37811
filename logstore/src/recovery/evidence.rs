//! What all slots together say of each log. Scope: one per recovery.
//! Invariants: a higher lineage overrules a lower one; within one lineage ends only rise; a log is deleted for ever once a
//! mark says so, because keys are never used again.
//! Not here: what segments say (`shard`).
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::collections::{BTreeMap, BTreeSet};

use felix_runtime::planted::{self, Defect};
use felix_wire::id::{CoreId, Offset};

use super::slots::{RoundRead, SlotRead};
use crate::commit::slot::RECOVERY_CORE;
use crate::commit::{Mark, MarkKind, PieceHead};
use crate::id::{Lineage, Run, ShardKey};

/// What is known of one log from slots.
#[derive(Debug, Clone, Default)]
pub(crate) struct Known {
    /// Of the highest lineage, with the furthest end.
    pub mark: Option<Mark>,
    /// The largest start of any mark.
    pub start: Offset,
    pub deleted: bool,
    /// The newest use of the volume has it.
    pub listed: bool,
    /// Its last process stopped in order.
    pub clean: bool,
    /// Ends that were durable, by lineage.
    pub durable: BTreeMap<Lineage, Offset>,
    /// Whole pieces of rounds that are still needed: head, slot, byte of the slot.
    pub pieces: Vec<(PieceHead, usize, u64)>,
    /// A round that may have held bytes of it cannot be read.
    pub suspect: bool,
    /// The earliest segment that marks of readable rounds name.
    pub first_segment: Option<u64>,
    /// The lineages that rounds name, each with the boot id of the process that wrote it.
    boots: BTreeSet<(Lineage, [u8; 16])>,
}

/// What is known of all.
#[derive(Debug, Default)]
pub(crate) struct Evidence {
    pub logs: BTreeMap<ShardKey, Known>,
    /// The highest run of any slot.
    pub run: Run0,
    /// The boot id of the newest use; none when there never was one.
    pub boot: Option<[u8; 16]>,
}

/// A run that may be none: 0.
pub(crate) type Run0 = u64;

impl Evidence {
    pub fn gather(slots: &[SlotRead]) -> Evidence {
        let mut evidence = Evidence::default();
        let mut groups: BTreeMap<(Run, CoreId), Vec<(usize, &SlotRead)>> = BTreeMap::new();
        for (index, slot) in slots.iter().enumerate() {
            if let Some(head) = &slot.head {
                groups.entry((head.run, head.core)).or_default().push((index, slot));
                if head.run.0 >= evidence.run {
                    evidence.run = head.run.0;
                    evidence.boot = Some(head.boot);
                }
            }
        }
        let newest = Run(evidence.run);
        let damaged = slots.iter().any(|slot| slot.damaged);
        for ((run, core), group) in groups {
            evidence.add_group(&group, run == newest, damaged && core != RECOVERY_CORE);
        }
        evidence
    }

    /// Logs that should have a directory, when those of `keys` have one.
    pub fn without_directory(&self, keys: &[ShardKey]) -> impl Iterator<Item = ShardKey> {
        let due =
            self.logs.iter().filter(|(key, known)| known.listed && !known.deleted && !keys.contains(key));
        due.map(|(key, _)| *key)
    }

    fn add_group(&mut self, group: &[(usize, &SlotRead)], newest: bool, damaged: bool) {
        let mut rounds: Vec<(usize, &RoundRead)> =
            group.iter().flat_map(|(index, slot)| slot.rounds.iter().map(|round| (*index, round))).collect();
        rounds.sort_by_key(|(_, round)| round.round.number);
        let live_from = rounds.iter().map(|(_, round)| round.round.live_from).max();
        let live: Vec<(usize, &RoundRead)> =
            rounds.into_iter().filter(|(_, round)| Some(round.round.number) >= live_from).collect();
        let dropped = usize::from(planted::is(Defect::LastRoundDropped));
        for (slot, round) in live.iter().take(live.len().saturating_sub(dropped)) {
            let head = group.iter().find(|(index, _)| index == slot).and_then(|(_, read)| read.head);
            self.add_round(*slot, head.map_or([0; 16], |head| head.boot), round);
        }
        if newest {
            self.add_listed(group);
        }
        let first = live.first().map_or(0, |(_, round)| round.round.number.0);
        let due = live_from.map_or(first, |from| from.0.min(first));
        let complete = live
            .iter()
            .enumerate()
            .all(|(index, (_, round))| round.round.number.0 == due.saturating_add(index as u64));
        // A last round may be torn by a crash; one that another followed may not.
        let torn = live.iter().rev().skip(1).any(|(_, round)| round.torn);
        if !complete || torn || damaged {
            let keys: BTreeSet<ShardKey> = live.iter().flat_map(|(_, round)| keys_of(round)).collect();
            for key in keys {
                self.logs.entry(key).or_default().suspect = true;
            }
        }
        let last = live.last().filter(|(_, round)| round.round.clean && newest);
        for mark in last.iter().flat_map(|(_, round)| &round.round.marks) {
            self.logs.entry(mark.key).or_default().clean |= mark.kind == MarkKind::State;
        }
    }

    fn add_round(&mut self, slot: usize, boot: [u8; 16], round: &RoundRead) {
        for mark in &round.round.marks {
            let known = self.logs.entry(mark.key).or_default();
            known.add_mark(mark);
            known.boots.insert((mark.lineage, boot));
        }
        for prior in &round.round.prior {
            let known = self.logs.entry(prior.key).or_default();
            known.add_durable(prior.lineage, prior.end);
            known.boots.insert((prior.lineage, boot));
        }
        for (piece, byte) in &round.pieces {
            let known = self.logs.entry(piece.key).or_default();
            known.pieces.push((*piece, slot, *byte));
            known.boots.insert((piece.lineage, boot));
        }
    }

    /// The newest slot of a core that has a round lists every log of the core, and so does the slot recovery left.
    fn add_listed(&mut self, group: &[(usize, &SlotRead)]) {
        let used = group.iter().filter(|(_, slot)| !slot.rounds.is_empty());
        let Some((_, slot)) = used.max_by_key(|(_, slot)| slot.head.map(|head| head.number)) else { return };
        let mut last: BTreeMap<ShardKey, MarkKind> = BTreeMap::new();
        for mark in slot.rounds.iter().flat_map(|round| &round.round.marks) {
            last.insert(mark.key, mark.kind);
        }
        for (key, kind) in last {
            let gone = matches!(kind, MarkKind::Deleted | MarkKind::Released);
            self.logs.entry(key).or_default().listed |= !gone;
        }
    }
}

fn keys_of(round: &RoundRead) -> impl Iterator<Item = ShardKey> + '_ {
    let marks = round.round.marks.iter().map(|mark| mark.key);
    let prior = round.round.prior.iter().map(|prior| prior.key);
    marks.chain(prior).chain(round.round.pieces.iter().map(|piece| piece.key))
}

impl Known {
    /// Whether the kernel was started again since the log was last written, as far as rounds say. The newest use of the
    /// volume may be later: a recovery that refused the log has looked at nothing of it.
    pub fn is_from_before(&self, boot: [u8; 16]) -> bool {
        let newest = self.boots.last().map(|(lineage, _)| *lineage);
        self.boots.iter().any(|(lineage, written)| Some(*lineage) == newest && *written != boot)
    }

    fn add_mark(&mut self, mark: &Mark) {
        self.start = self.start.max(mark.start);
        self.deleted |= mark.kind == MarkKind::Deleted;
        self.add_durable(mark.lineage, mark.end);
        let segment = mark.place.segment.0;
        self.first_segment = Some(self.first_segment.map_or(segment, |first| first.min(segment)));
        let merged = match self.mark {
            Some(known) if known.lineage > mark.lineage => known,
            Some(known) if known.lineage == mark.lineage => {
                let ceiling = known.ceiling.max(mark.ceiling);
                // Of two marks with one end the later place is the one in the newer segment.
                let later = (mark.end, mark.place) >= (known.end, known.place);
                let chosen = if later { *mark } else { known };
                Mark { ceiling, ..chosen }
            }
            _ => *mark,
        };
        self.mark = Some(merged);
    }

    fn add_durable(&mut self, lineage: Lineage, end: Offset) {
        let known = self.durable.entry(lineage).or_default();
        *known = (*known).max(end);
    }

    /// What was durable of `lineage`, as far as slots say.
    pub fn durable_of(&self, lineage: Lineage) -> Offset {
        self.durable.get(&lineage).copied().unwrap_or_default()
    }
}
