//! Virtual time. Scope: one per simulation.
//! Invariants: never steps back; moves only when told.
//! Not here: deciding how far to move (the simulation's loop takes the earliest deadline of all parts).

use std::time::Duration;

use crate::clock::Tick;

/// A clock that stands still until it is moved.
#[derive(Debug, Clone)]
pub struct SimClock {
    now: Tick,
    unix_micros_at_zero: u64,
}

impl SimClock {
    /// Starts at `Tick::ZERO`, which is `unix_micros_at_zero` by the wall.
    pub fn new(unix_micros_at_zero: u64) -> SimClock {
        SimClock { now: Tick::ZERO, unix_micros_at_zero }
    }

    pub fn now(&self) -> Tick {
        self.now
    }

    /// Microseconds since 1970 in the simulated world.
    pub fn unix_micros(&self) -> u64 {
        self.unix_micros_at_zero.saturating_add(self.now.as_micros())
    }

    /// Moves to `at`; a moment that is past leaves the clock where it is.
    pub fn advance_to(&mut self, at: Tick) {
        self.now = self.now.max(at);
    }

    pub fn advance(&mut self, by: Duration) {
        self.now += by;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_moves_only_forward_and_only_when_told() {
        let mut clock = SimClock::new(1_000);
        assert_eq!(clock.now(), Tick::ZERO);
        clock.advance_to(Tick(5_000));
        clock.advance_to(Tick(3_000));
        assert_eq!(clock.now(), Tick(5_000));
        clock.advance(Duration::from_micros(1));
        assert_eq!((clock.now(), clock.unix_micros()), (Tick(6_000), 1_006));
    }
}
