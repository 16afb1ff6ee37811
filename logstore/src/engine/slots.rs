//! The slots of the commit file: making, opening, closing, freeing, setting aside. Scope: part of [`Engine`].
//! Invariants: a slot is used again only when every piece in it is durable in its segment, by a sync before which none of that
//! segment failed, and a later slot has a durable round, which repeats the mark of every log; a slot that failed is never
//! written to again; while rounds have nowhere to go claims are refused.
//! Not here: rounds (`commit`), moving pieces to segments (`spill`).

use std::collections::{BTreeSet, VecDeque};

use felix_runtime::file::{DiskError, FileId};

use super::scripts::{self, Ended};
use super::{Engine, Gauges, LogId};
use crate::checksum::Epoch;
use crate::commit::SlotHead;
use crate::commit::slot::ROUNDS_AT;
use crate::id::{RoundNumber, SegmentSeq};
use crate::names;
use crate::script::Handles;

/// How far a slot is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SlotState {
    /// Its file is being made.
    Making,
    /// Nothing in it is needed.
    Free,
    /// Its head is being written.
    Opening,
    /// Its head is durable; it takes rounds when the open one is full.
    Standing,
    /// It takes rounds.
    Open,
    /// Full; its pieces go to segments.
    Closed,
    /// All in segments; waits for a round of a later slot.
    Spilled,
    /// Never to be used again.
    Aside,
}

#[derive(Debug)]
pub(super) struct Slot {
    pub index: u32,
    pub state: SlotState,
    pub files: Option<Handles>,
    pub epoch: Epoch,
    /// Number of this use.
    pub number: u64,
    /// Where the next round goes.
    pub at: u64,
    pub first_round: u64,
    /// Logs with bytes in it.
    pub logs: BTreeSet<LogId>,
    /// Rounds were written without a sync.
    pub dirty: bool,
    /// Runs not spilled, and segments not synced.
    pub runs_left: usize,
    pub syncs: BTreeSet<(LogId, SegmentSeq)>,
    pub syncs_left: usize,
    /// A piece of it could not be brought to its segment, or that segment failed before it was known to be durable there.
    pub pinned: bool,
    /// A write to it failed.
    pub failed: bool,
    /// A round of this use is durable; the first repeats the mark of every log.
    pub marked: bool,
    /// Its file could not be made before.
    pub unmade: bool,
}

/// Where rounds can go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ways {
    /// To a slot that is there, now or when its pieces are in segments.
    Ready,
    /// To none before a file is made, which is under way.
    Coming,
    /// To none: there is no slot, and none could be made.
    Nowhere,
}

impl Slot {
    /// Whether its rounds are still needed.
    fn is_needed(&self) -> bool {
        !matches!(self.state, SlotState::Making | SlotState::Free | SlotState::Opening | SlotState::Standing)
    }

    /// Whether a segment of `log` still has to be synced before the slot is free.
    pub fn holds(&self, log: LogId) -> bool {
        self.syncs.iter().any(|(of, _)| *of == log)
    }
}

#[derive(Debug, Default)]
pub(super) struct Slots {
    pub all: Vec<Slot>,
    pub next_index: u32,
    pub next_number: u64,
    /// The first round of the open slot is due even without pieces.
    pub owes_marks: bool,
    /// Uses that were closed, oldest first.
    pub closed: VecDeque<usize>,
    /// Slots that could not be made; tried again when there is space.
    pub missing: Vec<usize>,
}

impl Slots {
    pub fn open(&self) -> Option<usize> {
        self.all.iter().position(|slot| slot.state == SlotState::Open)
    }

    pub fn find(&self, state: SlotState) -> Option<usize> {
        self.all.iter().position(|slot| slot.state == state)
    }

    /// Where the next rounds can go.
    pub fn ways(&self) -> Ways {
        let ready = |slot: &Slot| match slot.state {
            SlotState::Free | SlotState::Opening | SlotState::Standing | SlotState::Open => true,
            SlotState::Closed | SlotState::Spilled => {
                !slot.pinned && !slot.failed && self.is_followed(slot.number)
            }
            SlotState::Making | SlotState::Aside => false,
        };
        let coming = |slot: &Slot| slot.state == SlotState::Making && !slot.unmade;
        match () {
            () if self.all.iter().any(ready) => Ways::Ready,
            () if self.all.iter().any(coming) => Ways::Coming,
            () => Ways::Nowhere,
        }
    }

    /// Whether a later use has a durable round, so that what the use `number` says of logs is not needed any more.
    fn is_followed(&self, number: u64) -> bool {
        self.all.iter().any(|slot| slot.marked && slot.number > number)
    }

    /// Whether the open slot has a durable round.
    pub fn is_open_marked(&self) -> bool {
        self.open().is_some_and(|open| self.all[open].marked)
    }

    /// There is none to follow the open one.
    pub fn is_short(&self) -> bool {
        let ready = |slot: &Slot| {
            matches!(
                slot.state,
                SlotState::Making | SlotState::Free | SlotState::Opening | SlotState::Standing
            )
        };
        !self.all.iter().any(ready)
    }

    /// A segment of `log` failed. What was written to it before and not synced may be gone, and a later sync that goes well
    /// does not tell: every slot with bytes of the log that are not known to be durable in their segment keeps them.
    pub fn pin(&mut self, log: LogId) {
        let unsynced = |slot: &&mut Slot| matches!(slot.state, SlotState::Open | SlotState::Closed);
        for slot in self.all.iter_mut().filter(unsynced).filter(|slot| slot.logs.contains(&log)) {
            slot.pinned = true;
        }
    }

    /// Slots that are neither free nor about to be.
    pub fn behind(&self) -> bool {
        let waiting = |slot: &&Slot| matches!(slot.state, SlotState::Closed | SlotState::Spilled);
        let ready =
            |slot: &&Slot| matches!(slot.state, SlotState::Free | SlotState::Standing | SlotState::Opening);
        self.all.iter().filter(waiting).count() > self.all.iter().filter(ready).count()
    }

    pub fn gauges(&self) -> Gauges {
        let count =
            |wanted: &[SlotState]| self.all.iter().filter(|slot| wanted.contains(&slot.state)).count();
        Gauges {
            slots: self.all.len(),
            slots_ready: count(&[SlotState::Free, SlotState::Opening, SlotState::Standing]),
            slots_aside: count(&[SlotState::Aside]),
            commit_used_bytes: self.all.iter().filter(|slot| slot.is_needed()).map(|slot| slot.at).sum(),
            slot_used_bytes: self.open().map_or(0, |open| self.all[open].at),
            ..Gauges::default()
        }
    }

    /// The slots with rounds that were written without a sync; they count as clean from here on.
    pub fn take_dirty(&mut self) -> Vec<(usize, FileId)> {
        let dirty = self.all.iter_mut().enumerate().filter(|(_, slot)| slot.dirty);
        let files = dirty.filter_map(|(index, slot)| {
            slot.dirty = false;
            Some((index, slot.files?.plain))
        });
        files.collect()
    }
}

impl Engine {
    /// Begins to make one more slot, whose bytes are taken.
    pub(super) fn make_slot(&mut self) {
        let index = self.slots.next_index;
        self.slots.next_index += 1;
        let at = self.slots.all.len();
        self.slots.all.push(Slot {
            index,
            state: SlotState::Making,
            files: None,
            epoch: Epoch(0),
            number: 0,
            at: 0,
            first_round: 0,
            logs: BTreeSet::new(),
            dirty: false,
            runs_left: 0,
            syncs: BTreeSet::new(),
            syncs_left: 0,
            pinned: false,
            failed: false,
            marked: false,
            unmade: false,
        });
        self.start_slot(at);
    }

    fn start_slot(&mut self, at: usize) {
        let name = self.slots.all[at].index;
        let path = names::slot(self.config.volume, self.config.run, self.config.core, name);
        let (desk, bytes) = (self.desk.clone(), self.config.slot_bytes);
        self.slots.all[at].state = SlotState::Making;
        self.scripts.start(async move {
            let files = scripts::make_slot(&desk, path, bytes).await;
            Ended::SlotMade { index: at, files }
        });
    }

    pub(super) fn slot_made(&mut self, index: usize, files: Result<Handles, DiskError>) {
        self.space.settle(self.config.slot_bytes);
        let slot = &mut self.slots.all[index];
        match files {
            Ok(files) => {
                slot.files = Some(files);
                slot.state = SlotState::Free;
                slot.unmade = false;
            }
            Err(error) => {
                slot.state = SlotState::Aside;
                slot.unmade = true;
                self.slots.missing.push(index);
                self.trouble("making a commit slot", error);
            }
        }
        self.stand_slot();
    }

    /// Tries again to make what is missing. Without any slot nothing can be deleted, so the first one is made also on a
    /// volume that is nearly full.
    pub(super) fn slots_retry(&mut self) {
        let bytes = self.config.slot_bytes;
        while let Some(index) = self.slots.missing.last().copied() {
            let some = self.slots.ways() == Ways::Ready || self.slots.find(SlotState::Making).is_some();
            let kept = if some { self.config.space_low_bytes } else { 0 };
            if (kept > 0 && !self.space_ok) || !self.space.try_take(bytes, kept) {
                return;
            }
            self.slots.missing.pop();
            self.start_slot(index);
        }
    }

    /// Keeps one slot ready behind the open one.
    pub(super) fn stand_slot(&mut self) {
        let ahead = |slot: &Slot| matches!(slot.state, SlotState::Opening | SlotState::Standing);
        if self.slots.all.iter().any(ahead) {
            return;
        }
        let Some(index) = self.slots.find(SlotState::Free) else { return };
        let epoch = self.take_epoch();
        let (desk, config) = (self.desk.clone(), &self.config);
        let number = self.slots.next_number;
        self.slots.next_number += 1;
        let slot = &mut self.slots.all[index];
        let Some(files) = slot.files else { return };
        slot.state = SlotState::Opening;
        slot.epoch = epoch;
        slot.number = number;
        slot.marked = false;
        let head = SlotHead {
            epoch,
            run: config.run,
            boot: config.boot,
            core: config.core,
            number,
            size_bytes: config.slot_bytes,
            first_round: 0,
        };
        self.scripts.start(async move {
            let result = desk.write_bytes(files.dsync, 0, &head.encode()).await;
            Ended::SlotOpened { index, result }
        });
    }

    pub(super) fn slot_opened(&mut self, index: usize, result: Result<(), DiskError>) {
        match result {
            Ok(()) => {
                self.slots.all[index].state = SlotState::Standing;
                if self.slots.open().is_none() {
                    self.open_standing();
                }
            }
            Err(error) => {
                self.trouble("a slot's head", error);
                self.set_aside(index);
            }
        }
    }

    /// Lets the standing slot take rounds. False when there is none.
    pub(super) fn open_standing(&mut self) -> bool {
        let Some(index) = self.slots.find(SlotState::Standing) else { return false };
        let slot = &mut self.slots.all[index];
        slot.state = SlotState::Open;
        slot.at = ROUNDS_AT;
        slot.first_round = self.next_round;
        slot.logs.clear();
        slot.syncs.clear();
        slot.dirty = false;
        self.slots.owes_marks = true;
        self.drop_tombstones();
        self.stand_slot();
        true
    }

    /// The open slot takes no more rounds: its pieces go to segments, and the next pieces begin on blocks of their own.
    pub(super) fn close_slot(&mut self) {
        let Some(index) = self.slots.open() else { return };
        let number = self.slots.all[index].number;
        self.slots.all[index].state = SlotState::Closed;
        let logs: Vec<LogId> = self.slots.all[index].logs.iter().copied().collect();
        for log in logs {
            self.with(log, |log| log.close_runs(number));
        }
        self.slots.closed.push_back(index);
        self.queue_spills(index);
    }

    /// A slot that failed, or holds what cannot be spilled: it keeps its bytes under another name and gets a successor.
    pub(super) fn set_aside(&mut self, index: usize) {
        let slot = &mut self.slots.all[index];
        if slot.state == SlotState::Aside {
            return;
        }
        slot.state = SlotState::Aside;
        let (volume, run, core, name) = (self.config.volume, self.config.run, self.config.core, slot.index);
        let (from, to) = (names::slot(volume, run, core, name), names::slot_aside(volume, run, core, name));
        let desk = self.desk.clone();
        self.scripts.start(async move {
            // The name is for people: recovery reads every slot, whatever it is called.
            let _ = desk.rename(from.clone(), to).await;
            let _ = desk.sync_dir(from.parent()).await;
            Ended::Tidied
        });
        self.slots.closed.retain(|closed| *closed != index);
        self.space.take(self.config.slot_bytes);
        self.make_slot();
    }

    /// Frees slots whose bytes are all in segments, once a later slot has said where every log stands.
    pub(super) fn free_slots(&mut self) {
        for index in 0..self.slots.all.len() {
            let slot = &self.slots.all[index];
            if slot.state == SlotState::Spilled && self.slots.is_followed(slot.number) {
                self.slots.all[index].state = SlotState::Free;
                self.slots.closed.retain(|closed| *closed != index);
            }
        }
        self.stand_slot();
    }

    /// The first round that is still needed.
    pub(super) fn live_from(&self) -> RoundNumber {
        let used =
            |slot: &&Slot| matches!(slot.state, SlotState::Open | SlotState::Closed | SlotState::Spilled);
        let first =
            self.slots.all.iter().filter(|slot| used(slot) || slot.pinned).map(|slot| slot.first_round).min();
        RoundNumber(first.unwrap_or(self.next_round))
    }
}
