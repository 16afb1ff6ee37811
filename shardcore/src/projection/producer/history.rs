//! The last batches of one producer. Scope: one per producer and shard.
//! Invariants: never empty; sequences are consecutive and end with `last`; offsets rise.
//! Not here: which producers are remembered (`super`).

use std::collections::VecDeque;
use std::num::NonZeroU32;

use felix_wire::id::{Offset, Sequence};

use super::{BATCHES_PER_PRODUCER_MAX, Digest};

/// One batch of a producer; its sequence follows from where it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remembered {
    pub base: Offset,
    pub digest: Digest,
    pub count: NonZeroU32,
}

const _: () = assert!(size_of::<Remembered>() <= 40, "a batch is cheap to remember");

impl Remembered {
    /// One past its last offset.
    pub fn end(&self) -> Offset {
        // Whoever makes one has checked that this does not saturate.
        Offset(self.base.0.saturating_add(u64::from(self.count.get())))
    }
}

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct History {
    last: Sequence,
    newest: Remembered,
    /// Before `newest`, oldest first.
    older: VecDeque<Remembered>,
}

impl History {
    /// Begins with `sequence`.
    pub fn new(sequence: Sequence, batch: Remembered) -> History {
        History { last: sequence, newest: batch, older: VecDeque::new() }
    }

    /// Batches it holds, oldest first; the last one has the sequence `last`. None when there is no batch, or sequences
    /// would have to begin below 0.
    pub fn from_batches(last: Sequence, mut batches: VecDeque<Remembered>) -> Option<History> {
        let newest = batches.pop_back()?;
        (last.0 >= batches.len() as u64).then_some(History { last, newest, older: batches })
    }

    /// Sequence of the newest batch.
    pub fn last(&self) -> Sequence {
        self.last
    }

    /// The batch with the sequence `last`.
    pub fn newest(&self) -> Remembered {
        self.newest
    }

    /// How many batches.
    pub fn len(&self) -> usize {
        self.older.len() + 1
    }

    /// All batches, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &Remembered> {
        self.older.iter().chain(std::iter::once(&self.newest))
    }

    /// Whether `sequence` follows the newest batch.
    pub fn is_next(&self, sequence: Sequence) -> bool {
        self.last.0.checked_add(1) == Some(sequence.0)
    }

    /// The batch with this sequence.
    pub fn find(&self, sequence: Sequence) -> Option<Remembered> {
        let back = usize::try_from(self.last.0.checked_sub(sequence.0)?).ok()?;
        match back {
            0 => Some(self.newest),
            _ => self.older.get(self.older.len().checked_sub(back)?).copied(),
        }
    }

    /// Adds a batch; one that does not follow the newest begins anew. True when something older was forgotten for it, whose
    /// first offsets `forgets` is told.
    pub fn push(&mut self, sequence: Sequence, batch: Remembered, mut forgets: impl FnMut(Offset)) -> bool {
        if !self.is_next(sequence) {
            self.iter().for_each(|old| forgets(old.base));
            *self = History::new(sequence, batch);
            return true;
        }
        let full = self.len() >= BATCHES_PER_PRODUCER_MAX;
        if full && let Some(oldest) = self.older.pop_front() {
            forgets(oldest.base);
        }
        self.older.push_back(self.newest);
        self.newest = batch;
        self.last = sequence;
        full
    }

    /// Forgets batches that lie wholly below `start`, except the newest.
    pub fn forget_below(&mut self, start: Offset) {
        while self.older.front().is_some_and(|oldest| oldest.end() <= start) {
            self.older.pop_front();
        }
    }

    /// Forgets batches that reach above `end`. False when no other is left; it must be dropped then.
    pub fn cut(&mut self, end: Offset) -> bool {
        while self.newest.end() > end {
            let Some(before) = self.older.pop_back() else { return false };
            self.newest = before;
            // An older batch has a lower sequence.
            self.last = Sequence(self.last.0 - 1);
        }
        true
    }
}
