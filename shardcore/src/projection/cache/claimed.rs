//! Writes of one cache shard that have an offset and are not settled. Scope: one per cache shard.
//! Owns: the writes in offset order, and which of them is the newest of its key.
//! Invariants: offsets rise; copies made by compaction are in order too, but are no writes.
//! Not here: deciding writes, and what a settled one does (`super`).

use std::collections::VecDeque;
use std::hash::BuildHasher;

use bytes::Bytes;
use felix_wire::id::Offset;
use hashbrown::HashTable;

use super::{Change, Condition, Draft, Unmet};
use crate::hash::HashState;

/// A write with its offset.
#[derive(Debug)]
pub struct Pending {
    pub at: Offset,
    pub draft: Draft,
}

/// The newest state of a key.
#[derive(Debug, PartialEq, Eq)]
pub struct Newest {
    /// None when there is no value.
    pub version: Option<Offset>,
    /// When it is in memory.
    pub value: Option<Bytes>,
    /// The record that holds the value.
    pub at: Offset,
    /// Settled when the settled end has reached it.
    pub after: Offset,
}

impl Newest {
    /// There is no value.
    pub fn absent(after: Offset) -> Newest {
        Newest { version: None, value: None, at: Offset(0), after }
    }

    /// Whether it contradicts a condition.
    pub fn unmet(&self, condition: Condition) -> Option<Unmet> {
        let met = match condition {
            Condition::Always => true,
            Condition::Absent => self.version.is_none(),
            Condition::Version(version) => self.version == Some(version),
        };
        (!met).then_some(Unmet { version: self.version, after: self.after })
    }
}

/// See the module.
#[derive(Debug)]
pub struct Claimed {
    queue: VecDeque<Pending>,
    /// Writes that have left the queue: the number of its first.
    first: u64,
    /// The number of the newest write of each key in the queue.
    newest: HashTable<u64>,
    hasher: HashState,
    /// One past the last offset claimed.
    end: Offset,
}

impl Claimed {
    /// Nothing is claimed at or above `end`.
    pub fn new(end: Offset) -> Claimed {
        Claimed {
            queue: VecDeque::new(),
            first: 0,
            newest: HashTable::new(),
            hasher: HashState::default(),
            end,
        }
    }

    /// One past the last offset claimed.
    pub fn end(&self) -> Offset {
        self.end
    }

    /// How many writes.
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Everything below `end` was claimed, by whomever.
    pub fn reach(&mut self, end: Offset) {
        self.end = self.end.max(end);
    }

    /// Adds a write.
    ///
    /// # Panics
    /// When `at` is below the end.
    pub fn push(&mut self, draft: Draft, at: Offset) {
        assert!(at >= self.end, "writes are claimed in offset order");
        self.end = Offset(at.0 + 1);
        let number = self.first + self.queue.len() as u64;
        let hash = self.hasher.hash_one(&*draft.key);
        let moves_only = matches!(draft.change, Change::Copy { .. });
        self.queue.push_back(Pending { at, draft });
        if moves_only {
            return;
        }
        let Claimed { queue, first, newest, hasher, .. } = self;
        let key_of = |number: &u64| &*queue[(number - *first) as usize].draft.key;
        match newest.find_mut(hash, |known| key_of(known) == key_of(&number)) {
            Some(newest) => *newest = number,
            None => {
                newest.insert_unique(hash, number, |number| hasher.hash_one(key_of(number)));
            }
        }
    }

    /// Takes the oldest write out, when it lies below `end`.
    pub fn pop_below(&mut self, end: Offset) -> Option<Pending> {
        let oldest = self.queue.front().filter(|pending| pending.at < end)?;
        let hash = self.hasher.hash_one(&*oldest.draft.key);
        if let Ok(entry) = self.newest.find_entry(hash, |number| *number == self.first) {
            entry.remove();
        }
        self.first += 1;
        self.queue.pop_front()
    }

    /// The newest write of a key that is in flight.
    pub fn newest(&self, key: &[u8], now_ms: u64) -> Option<Newest> {
        let pending = self.find(key)?;
        let after = Offset(pending.at.0 + 1);
        Some(match &pending.draft.change {
            Change::Put { value, expiry } if !expiry.is_past(now_ms) => {
                Newest { version: Some(pending.at), value: Some(value.clone()), at: pending.at, after }
            }
            _ => Newest::absent(after),
        })
    }

    /// Whether a write of the key is in flight.
    pub fn has(&self, key: &[u8]) -> bool {
        self.find(key).is_some()
    }

    /// Forgets all. Gives how many writes.
    pub fn clear(&mut self) -> usize {
        let count = self.queue.len();
        self.first += count as u64;
        self.queue.clear();
        self.newest.clear();
        count
    }

    fn find(&self, key: &[u8]) -> Option<&Pending> {
        let hash = self.hasher.hash_one(key);
        let of = |number: &u64| &self.queue[(number - self.first) as usize];
        self.newest.find(hash, |number| &*of(number).draft.key == key).map(of)
    }
}
