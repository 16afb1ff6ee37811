//! The state projection: what atomic commits have put (semantics 2.6, client-protocol 15). Sans-io.
//! Scope: one [`StateCore`] per shard of a durable stream that has commits, on the core that owns it.
//! Owns: for each key the commit that put its value, values held in memory, commits in flight.
//! Invariants: a commit changes all of its keys or none, at its offset, which is the version of each; what the log does not
//! hold any more is not there; what is settled is the same whether it was claimed here or replayed (`tests.rs`).
//! Not here: the event (a record like others, see [`record::event_of`]), expected offsets, numbers of producers (both
//! `shard`: the digest of a commit is that of its record).

pub mod record;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use bytes::Bytes;
use felix_logstore::record::{Batch, BatchKind};
use felix_runtime::planted::{self, Defect};
use felix_wire::id::Offset;

use crate::projection::cache::values::{VALUE_OVERHEAD_BYTES, ValueId, Values};
use crate::projection::keys::{KEY_OVERHEAD_BYTES, KEYS_MAX, KeyTable, Slot};
use crate::projection::record::{BadRecord, RecordFault};
use record::CommitRecord;

/// What a key costs in memory beside its bytes.
pub const ENTRY_BYTES: usize = KEY_OVERHEAD_BYTES + size_of::<Entry>();
/// Slots looked at with each commit for keys that retention has taken.
const SWEEP_PER_COMMIT: u32 = 8;

/// Where the value of a key is.
#[derive(Debug, Clone, Copy)]
struct Entry {
    at: Offset,
    held: ValueId,
}

/// What a get finds. `as_of`: the last commit that the answer reflects.
#[derive(Debug, PartialEq, Eq)]
pub enum Found<'a> {
    Absent {
        as_of: Option<Offset>,
    },
    Here {
        value: &'a Bytes,
        version: Offset,
        as_of: Option<Offset>,
    },
    /// Read the record at `version` and give it to [`StateCore::read_back`]. When the log does not have it any more, the key
    /// has no value.
    InLog {
        version: Offset,
        as_of: Option<Offset>,
    },
}

/// See the module.
///
/// Memory: a key costs its bytes and [`ENTRY_BYTES`]; values in memory are bounded by `hot_bytes_max`; commits in flight
/// are bounded by the log.
#[derive(Debug)]
pub struct StateCore {
    hot_bytes_max: usize,
    table: KeyTable<Entry>,
    values: Values,
    claimed: VecDeque<(Offset, Bytes)>,
    settled_end: Offset,
    log_start: Offset,
    newest: Option<Offset>,
    sweep_at: u32,
}

impl StateCore {
    /// Without state, for a log that begins at `start`.
    pub fn new(hot_bytes_max: usize, start: Offset) -> StateCore {
        StateCore {
            hot_bytes_max,
            table: KeyTable::new(),
            values: Values::default(),
            claimed: VecDeque::new(),
            settled_end: start,
            log_start: start,
            newest: None,
            sweep_at: 0,
        }
    }

    /// Keys there are, those included that retention has taken and nobody has met yet.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Bytes of memory that keys and values take.
    pub fn memory_bytes(&self) -> usize {
        self.table.len() * ENTRY_BYTES + self.table.key_bytes() + self.values.bytes()
    }

    /// Whether a commit with so many changes may be claimed.
    pub fn has_room(&self, changes: usize) -> bool {
        self.table.len().saturating_add(changes) < KEYS_MAX
    }

    /// A commit that was encoded as `payload` has the offset `at`. It is read when it is settled.
    ///
    /// # Panics
    /// When offsets do not rise.
    pub fn claimed(&mut self, payload: Bytes, at: Offset) {
        let end = self.claimed.back().map_or(self.settled_end, |(last, _)| Offset(last.0 + 1));
        assert!(at >= end, "commits are claimed in offset order");
        self.claimed.push_back((at, payload));
    }

    /// Everything below `end` is settled.
    ///
    /// # Errors
    /// A claimed payload that is no commit: the caller's mistake, of which nothing was taken.
    pub fn settle(&mut self, end: Offset) -> Result<(), BadRecord> {
        while let Some((at, payload)) = self.claimed.pop_front_if(|(at, _)| *at < end) {
            self.apply(&payload, at)?;
        }
        self.settled_end = self.settled_end.max(end);
        Ok(())
    }

    /// The log has failed, or leaves: what is claimed and not settled is not known to be there. Gives how many commits.
    pub fn stop(&mut self) -> usize {
        std::mem::take(&mut self.claimed).len()
    }

    /// Takes what a batch of the log says, in offset order. Nothing may be claimed meanwhile.
    ///
    /// # Errors
    /// The first record that cannot be read; what is before it was taken.
    pub fn replay(&mut self, batch: &Batch) -> Result<(), BadRecord> {
        if batch.head().kind == BatchKind::Commit {
            let known_end = self.settled_end;
            for record in batch.records().filter(|record| record.offset >= known_end) {
                self.apply(&record.payload, record.offset)?;
            }
        }
        self.settled_end = self.settled_end.max(batch.head().end());
        Ok(())
    }

    fn apply(&mut self, payload: &[u8], at: Offset) -> Result<(), BadRecord> {
        let commit = CommitRecord::decode(payload).map_err(|fault| BadRecord { offset: at, fault })?;
        let taken = if planted::is(Defect::CommitHalf) { 1 } else { usize::MAX };
        for change in commit.changes.iter().take(taken) {
            let known = self.table.find(change.key());
            match (change.value(), known) {
                (None, Some(slot)) => self.forget(slot),
                (None, None) => {}
                (Some(value), known) => {
                    known.into_iter().for_each(|slot| self.forget(slot));
                    let slot = self.table.insert(change.key().into(), Entry { at, held: ValueId::NONE });
                    self.hold(slot, value);
                }
            }
        }
        self.newest = Some(at);
        self.sweep(SWEEP_PER_COMMIT);
        Ok(())
    }

    /// What is settled of a key. Allocates nothing.
    pub fn get(&mut self, key: &[u8]) -> Found<'_> {
        let as_of = self.newest;
        let Some(slot) = self.table.find(key) else { return Found::Absent { as_of } };
        let Entry { at, held } = *self.table.value(slot);
        if at < self.log_start {
            self.forget(slot);
            return Found::Absent { as_of };
        }
        match self.values.read(held) {
            Some(value) => Found::Here { value, version: at, as_of },
            None => Found::InLog { version: at, as_of },
        }
    }

    /// The record that [`Found::InLog`] named was read. Gives the value of the key, and keeps it in memory when the key still
    /// has it.
    ///
    /// # Errors
    /// When it is no commit that puts the key.
    pub fn read_back(&mut self, key: &[u8], at: Offset, payload: &Bytes) -> Result<Bytes, BadRecord> {
        let bad = |fault| BadRecord { offset: at, fault };
        let commit = CommitRecord::decode(payload).map_err(bad)?;
        // The last change of a key is the one that counts.
        let change = commit.changes.iter().rev().find(|change| change.key() == key);
        let value = change.and_then(|change| change.value());
        let value = value.ok_or(bad(RecordFault::Malformed("a commit without the key")))?;
        if let Some(slot) = self.table.find(key).filter(|slot| self.table.value(*slot).at == at) {
            self.hold(slot, value);
        }
        Ok(payload.slice_ref(value))
    }

    /// The log begins at `start` now: values that were put below are gone.
    pub fn log_starts(&mut self, start: Offset) {
        self.log_start = self.log_start.max(start);
    }

    /// Looks at `slots` keys and forgets those whose commit the log does not hold any more.
    pub fn sweep(&mut self, slots: u32) {
        for _ in 0..slots.min(self.table.slots()) {
            if self.sweep_at >= self.table.slots() {
                self.sweep_at = 0;
            }
            let gone = self.table.at(self.sweep_at).is_some_and(|(_, entry)| entry.at < self.log_start);
            if let Some(slot) = self.table.slot_at(self.sweep_at).filter(|_| gone) {
                self.forget(slot);
            }
            self.sweep_at += 1;
        }
    }

    fn forget(&mut self, slot: Slot) {
        let (_, entry) = self.table.remove(slot);
        self.values.remove(entry.held);
    }

    fn hold(&mut self, slot: Slot, value: &[u8]) {
        let cost = value.len() + VALUE_OVERHEAD_BYTES;
        let held = self.values.peek(self.table.value(slot).held).is_some();
        if held || cost > self.hot_bytes_max {
            return;
        }
        while self.values.bytes() + cost > self.hot_bytes_max {
            let Some(out) = self.values.evict() else { break };
            self.table.value_mut(out).held = ValueId::NONE;
        }
        self.table.value_mut(slot).held = self.values.insert(slot, Bytes::copy_from_slice(value));
    }
}
