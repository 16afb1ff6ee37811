//! When each connection wants to be woken. Scope: one per core.
//! Owns: at most one wanted deadline per slot, in a heap with lazy deletion.
//! Invariants: a wanted deadline is never reported late; it may be reported early (a slot that moved its deadline
//! back keeps the earlier entry, so moving it costs nothing), and the owner then arms it again; the heap holds at
//! most `4 * armed + SLACK` entries.
//! Not here: what a deadline means (machine).

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::clock::Tick;

/// Stale entries allowed beside those in proportion to the armed slots.
const SLACK: usize = 64;

#[derive(Default)]
pub(super) struct Timers {
    heap: BinaryHeap<Reverse<(Tick, u32)>>,
    /// The earliest entry of the heap that counts, by slot.
    armed: Vec<Option<Tick>>,
    armed_count: usize,
}

impl Timers {
    /// `slot` wants to be woken at `at` or before.
    pub(super) fn arm(&mut self, slot: u32, at: Tick) {
        let index = slot as usize;
        if index >= self.armed.len() {
            self.armed.resize(index + 1, None);
        }
        match self.armed[index] {
            Some(earlier) if earlier <= at => return,
            Some(_) => {}
            None => self.armed_count += 1,
        }
        self.armed[index] = Some(at);
        self.heap.push(Reverse((at, slot)));
        if self.heap.len() > 4 * self.armed_count + SLACK {
            self.rebuild();
        }
    }

    /// `slot` wants nothing any more.
    pub(super) fn disarm(&mut self, slot: u32) {
        if let Some(armed) = self.armed.get_mut(slot as usize)
            && armed.take().is_some()
        {
            self.armed_count -= 1;
        }
    }

    /// The next moment at which `pop_due` gives something.
    pub(super) fn next(&mut self) -> Option<Tick> {
        loop {
            let Reverse((at, slot)) = *self.heap.peek()?;
            if self.armed[slot as usize] == Some(at) {
                return Some(at);
            }
            self.heap.pop();
        }
    }

    /// Takes one slot whose entry is due; it is disarmed.
    pub(super) fn pop_due(&mut self, now: Tick) -> Option<u32> {
        if self.next()? > now {
            return None;
        }
        let Reverse((_, slot)) = self.heap.pop()?;
        self.disarm(slot);
        Some(slot)
    }

    fn rebuild(&mut self) {
        self.heap.clear();
        let live = self.armed.iter().enumerate();
        self.heap.extend(live.filter_map(|(slot, at)| at.map(|at| Reverse((at, slot as u32)))));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_come_in_order_and_only_when_due() {
        let mut timers = Timers::default();
        timers.arm(2, Tick(20));
        timers.arm(1, Tick(10));
        assert_eq!(timers.next(), Some(Tick(10)));
        assert_eq!(timers.pop_due(Tick(9)), None);
        assert_eq!(timers.pop_due(Tick(10)), Some(1));
        assert_eq!(timers.pop_due(Tick(10)), None);
        assert_eq!(timers.pop_due(Tick(25)), Some(2));
        assert_eq!(timers.next(), None);
    }

    #[test]
    fn an_earlier_deadline_replaces_a_later_one() {
        let mut timers = Timers::default();
        timers.arm(1, Tick(30));
        timers.arm(1, Tick(10));
        assert_eq!(timers.pop_due(Tick(40)), Some(1));
        assert_eq!(timers.pop_due(Tick(40)), None, "the replaced entry is dead");
    }

    #[test]
    fn a_disarmed_slot_is_never_due() {
        let mut timers = Timers::default();
        timers.arm(1, Tick(10));
        timers.disarm(1);
        assert_eq!(timers.next(), None);
        assert_eq!(timers.pop_due(Tick(100)), None);
    }

    #[test]
    fn a_slot_that_moves_its_deadline_for_ever_does_not_grow_the_heap() {
        let mut timers = Timers::default();
        for round in 0..10_000u64 {
            timers.arm(0, Tick(1_000_000 + round));
            timers.arm(0, Tick(round));
            assert_eq!(timers.pop_due(Tick(round)), Some(0));
        }
        assert!(timers.heap.len() <= 4 + SLACK, "{} entries", timers.heap.len());
    }
}
