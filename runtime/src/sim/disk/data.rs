//! One simulated file: what is durable, what is visible, and the changes between. Scope: one file (inode).
//! Invariants: visible is durable plus every change that began; after a power loss a change that is not durable may be
//! there whole, in part (sectors of [`SECTOR_BYTES`]) or not at all, each change and sector by itself; what a failed sync
//! was to cover never becomes durable by a later one.
//! Not here: names, time.

use std::collections::VecDeque;
use std::sync::Arc;

use super::content::Content;
use crate::sim::SimRng;

/// What a disk writes whole or not at all.
pub const SECTOR_BYTES: usize = 512;

#[derive(Debug, Clone)]
pub(super) enum Change {
    Write {
        at: u64,
        bytes: Arc<[u8]>,
    },
    /// Cut, or lengthened with zeros.
    SetLen(u64),
    /// At least this long.
    Grow(u64),
}

/// How far a change has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    InFlight,
    /// Answered, as the `nth` of all answers.
    Stored {
        nth: u64,
    },
    Durable,
    /// Its answer, or that of the sync that was to cover it, was an error.
    Doubtful,
}

#[derive(Debug, Clone)]
struct Pending {
    number: u64,
    change: Change,
    state: State,
}

#[derive(Debug, Clone, Default)]
pub(super) struct FileData {
    durable: Content,
    visible: Content,
    pending: VecDeque<Pending>,
    /// Bytes of the volume it holds.
    space_bytes: u64,
}

/// What a power loss does to the changes of one kind that are not durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Keep {
    Nothing,
    Everything,
    /// The first changes in order, the one after them perhaps in part.
    First(usize),
    /// Each one by itself; parts of a million are kept.
    Any {
        ppm: u32,
    },
}

impl Keep {
    pub(super) fn draw(rng: &mut SimRng, changes: usize) -> Keep {
        match rng.below(8) {
            0 => Keep::Nothing,
            1 => Keep::Everything,
            2 | 3 => Keep::First(rng.below(changes as u64 + 1) as usize),
            4 => Keep::Any { ppm: 100_000 },
            5 => Keep::Any { ppm: 900_000 },
            _ => Keep::Any { ppm: 500_000 },
        }
    }
}

impl FileData {
    pub(super) fn visible(&self) -> &Content {
        &self.visible
    }

    pub(super) fn space_bytes(&self) -> u64 {
        self.space_bytes
    }

    /// Bytes of the volume it would hold after `change`.
    pub(super) fn space_after(&self, change: &Change) -> u64 {
        let up = |bytes: u64| bytes.next_multiple_of(super::content::PAGE_BYTES as u64);
        match change {
            Change::Write { at, bytes } => self.space_bytes.max(up(at + bytes.len() as u64)),
            Change::SetLen(len) => self.space_bytes.min(up(*len)),
            Change::Grow(len) => self.space_bytes.max(up(*len)),
        }
    }

    /// Begins a change: visible at once, stored when answered.
    ///
    /// # Panics
    /// When it meets another change in flight over the same bytes: their order would be chance on a real disk.
    pub(super) fn begin(&mut self, number: u64, change: Change) {
        for other in self.pending.iter().filter(|other| other.state == State::InFlight) {
            assert!(!clash(&other.change, &change), "two changes of the same bytes are in flight at once");
        }
        self.space_bytes = self.space_after(&change);
        change.apply(&mut self.visible);
        self.pending.push_back(Pending { number, change, state: State::InFlight });
    }

    /// A change was answered.
    pub(super) fn set_state(&mut self, number: u64, state: State) {
        if let Some(pending) = self.pending.iter_mut().find(|pending| pending.number == number) {
            pending.state = state;
        }
        self.settle();
    }

    /// A sync was answered that began after the `upto`th answer.
    pub(super) fn synced(&mut self, upto: u64, state: State) {
        for pending in &mut self.pending {
            if matches!(pending.state, State::Stored { nth } if nth <= upto) {
                pending.state = state;
            }
        }
        self.settle();
    }

    fn settle(&mut self) {
        while self.pending.front().is_some_and(|first| first.state == State::Durable) {
            if let Some(first) = self.pending.pop_front() {
                first.change.apply(&mut self.durable);
            }
        }
    }

    /// Changes bytes in every version of the file, as a bad medium does.
    pub(super) fn damage(&mut self, at: u64, bytes: &[u8]) {
        for content in [&mut self.durable, &mut self.visible] {
            let len = content.len();
            content.write(at, bytes);
            content.set_len(len);
        }
    }

    /// Whether a power loss now could take anything away.
    pub(super) fn is_durable(&self) -> bool {
        self.pending.iter().all(|pending| pending.state == State::Durable)
    }

    /// What there is after a power loss.
    pub(super) fn after_power_loss(&self, rng: &mut SimRng) -> FileData {
        let keep = Keep::draw(rng, self.pending.len());
        let mut content = self.durable.clone();
        for (index, pending) in self.pending.iter().enumerate() {
            match keep {
                _ if pending.state == State::Durable => pending.change.apply(&mut content),
                Keep::Everything => pending.change.apply(&mut content),
                Keep::First(count) if index < count => pending.change.apply(&mut content),
                Keep::First(count) if index == count => {
                    pending.change.apply_part(&mut content, 500_000, rng);
                }
                Keep::Any { ppm } => pending.change.apply_part(&mut content, ppm, rng),
                Keep::Nothing | Keep::First(_) => {}
            }
        }
        FileData::of(content)
    }

    /// The same, with everything visible durable.
    pub(super) fn at_rest(&self) -> FileData {
        FileData::of(self.visible.clone())
    }

    fn of(content: Content) -> FileData {
        let space_bytes = content.len().next_multiple_of(super::content::PAGE_BYTES as u64);
        FileData { durable: content.clone(), visible: content, pending: VecDeque::new(), space_bytes }
    }
}

fn clash(one: &Change, other: &Change) -> bool {
    match (one, other) {
        (Change::Write { at, bytes }, Change::Write { at: other_at, bytes: other_bytes }) => {
            *at < other_at + other_bytes.len() as u64 && *other_at < at + bytes.len() as u64
        }
        (Change::SetLen(len), Change::Write { at, bytes })
        | (Change::Write { at, bytes }, Change::SetLen(len)) => at + bytes.len() as u64 > *len,
        (Change::Grow(_), Change::Write { .. } | Change::Grow(_))
        | (Change::Write { .. }, Change::Grow(_)) => false,
        (Change::SetLen(_), _) | (_, Change::SetLen(_)) => true,
    }
}

impl Change {
    fn apply(&self, content: &mut Content) {
        match self {
            Change::Write { at, bytes } => content.write(*at, bytes),
            Change::SetLen(len) => content.set_len(*len),
            Change::Grow(len) => content.set_len(content.len().max(*len)),
        }
    }

    /// Lets each sector, and each length, happen in `ppm` of a million cases.
    fn apply_part(&self, content: &mut Content, ppm: u32, rng: &mut SimRng) {
        let Change::Write { at, bytes } = self else {
            if rng.chance(ppm) {
                self.apply(content);
            }
            return;
        };
        let end = at + bytes.len() as u64;
        // The length is one decision: sectors behind it are not seen, sectors missing before it are zeros.
        if end > content.len() && rng.chance(ppm) {
            content.set_len(end);
        }
        let mut from = *at;
        for sector in bytes.chunks(SECTOR_BYTES) {
            if from + sector.len() as u64 <= content.len() && rng.chance(ppm) {
                content.write(from, sector);
            }
            from += sector.len() as u64;
        }
    }
}
