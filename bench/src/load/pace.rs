//! The schedule of an open loop. Scope: one per run.
//! Invariants: batch `k` is due at `start + k / rate` whatever the server does, so a late answer delays no later batch
//! and its wait is counted.
//! Not here: which stream takes the batch (`run`).

use std::time::Duration;

use felix_runtime::Tick;

/// Moments at a fixed distance.
#[derive(Debug, Clone, Copy)]
pub struct Schedule {
    start: Tick,
    nanos_per_batch: f64,
    taken: u64,
}

impl Schedule {
    /// `rate` batches per second from `start` on; `rate` is above 0.
    #[must_use]
    pub fn new(start: Tick, rate: f64) -> Schedule {
        Schedule { start, nanos_per_batch: 1e9 / rate, taken: 0 }
    }

    /// When the next batch is due.
    #[must_use]
    pub fn next_due(&self) -> Tick {
        self.start + Duration::from_nanos((self.taken as f64 * self.nanos_per_batch) as u64)
    }

    /// Takes the next batch if it is due: its number and when it was due.
    pub fn take(&mut self, now: Tick) -> Option<(u64, Tick)> {
        let due = self.next_due();
        if due > now {
            return None;
        }
        self.taken += 1;
        Some((self.taken - 1, due))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_look_finds_every_batch_with_the_moment_it_was_due() {
        let mut schedule = Schedule::new(Tick(500), 1e6);
        assert_eq!(schedule.take(Tick(499)), None);
        assert_eq!(schedule.take(Tick(500)), Some((0, Tick(500))));
        assert_eq!(schedule.take(Tick(500)), None);
        assert_eq!(schedule.next_due(), Tick(1_500));
        let late: Vec<_> = std::iter::from_fn(|| schedule.take(Tick(3_600))).collect();
        assert_eq!(late, [(1, Tick(1_500)), (2, Tick(2_500)), (3, Tick(3_500))]);
    }

    #[test]
    fn rounding_does_not_add_up() {
        let mut schedule = Schedule::new(Tick::ZERO, 3e6);
        for _ in 0..3_000_000 {
            assert!(schedule.take(Tick(1_000_000_000)).is_some());
        }
        assert_eq!(schedule.next_due().as_nanos(), 1_000_000_000);
    }
}
