//! An orderly stop. Scope: part of [`Engine`].
//! Invariants: the last round is written when everything is settled, durable and in segments; it says so, so that the next
//! start neither skips offsets nor takes damage for a torn tail.
//! Not here: what stops claims earlier (`shardcore`).

use super::scripts::Ended;
use super::slots::{SlotState, Ways};
use super::{Engine, Event, LogId};
use crate::script::Handles;

/// How far a stop is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Closing {
    No,
    /// Until everything is settled and durable.
    Settling,
    /// Until it is in segments.
    Spilling,
    /// Until the last round is durable.
    LastRound,
    /// Until the files are closed.
    Files,
    Done,
}

impl Engine {
    /// Takes no more claims; writes everything down and closes all files. `Closed` follows.
    pub fn close(&mut self) {
        if self.closing == Closing::No {
            self.closing = Closing::Settling;
            self.due.extend(self.logs.keys().copied());
        }
    }

    pub(super) fn is_last_round(&self) -> bool {
        let whole = self.logs.values().all(|shard| shard.log.stopped().is_none());
        self.closing == Closing::LastRound && whole
    }

    pub(super) fn tend_closing(&mut self) {
        match self.closing {
            Closing::No | Closing::Done => {}
            Closing::Settling => self.close_settling(),
            Closing::Spilling => {
                let busy =
                    |state| matches!(state, SlotState::Closed | SlotState::Opening | SlotState::Making);
                if !self.slots.all.iter().any(|slot| busy(slot.state)) && !self.is_filling() {
                    self.closing = Closing::LastRound;
                    self.slots.owes_marks = true;
                    if let Some(open) = self.slots.open() {
                        self.slots.all[open].marked = false;
                    }
                    self.due.extend(self.logs.keys().copied().take(1));
                    if self.slots.open().is_none() && !self.open_standing() {
                        self.close_files();
                    } else {
                        self.submit(self.last_settle);
                    }
                }
            }
            Closing::LastRound => {
                let lost = self.slots.open().is_none() && self.slots.find(SlotState::Standing).is_none();
                if self.round.is_none() && (self.slots.is_open_marked() || lost) {
                    self.close_files();
                }
            }
            Closing::Files => {}
        }
    }

    fn close_settling(&mut self) {
        let live = |shard: &&super::Shard| shard.log.stopped().is_none();
        let settled = self.logs.values().filter(live).all(|shard| shard.log.is_settled());
        // Without a slot no note will ever be written, and none was answered.
        let noting = !self.notes.is_empty() && self.slots.ways() != Ways::Nowhere;
        if self.round.is_some() || !settled || noting || self.reads.under_way() > 0 {
            return;
        }
        let behind: Vec<LogId> = self
            .logs
            .iter()
            .filter(|(_, shard)| {
                shard.log.stopped().is_none() && shard.log.durable_end() < shard.log.settled_end()
            })
            .map(|(log, _)| *log)
            .collect();
        if behind.iter().any(|log| self.logs.get(log).is_some_and(|shard| shard.flushing)) {
            return;
        }
        if !behind.is_empty() {
            self.flush(behind);
            return;
        }
        self.close_slot();
        self.closing = Closing::Spilling;
        self.open_standing();
        self.spill();
        self.tend_closing();
    }

    fn close_files(&mut self) {
        self.closing = Closing::Files;
        let mut handles: Vec<Handles> = self.logs.values().flat_map(|shard| shard.log.handles()).collect();
        handles.extend(self.slots.all.iter_mut().filter_map(|slot| slot.files.take()));
        let files = self.reads.take_all();
        let desk = self.desk.clone();
        self.scripts.start(async move {
            for file in files {
                desk.close(file).await;
            }
            for handles in handles {
                desk.close_both(handles).await;
            }
            Ended::AllClosed
        });
    }

    pub(super) fn all_closed(&mut self) {
        self.closing = Closing::Done;
        self.logs.clear();
        self.by_key.clear();
        self.due.clear();
        self.events.push_back(Event::Closed);
    }
}
