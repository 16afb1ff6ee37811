//! Time. Scope: one `Clock` per process, copied to every core.
//! Owns: the only reads of a clock in the data path. Every state machine gets a `Tick` as an argument.
//! Invariants: all copies of one `Clock` share one zero, so a `Tick` may travel between cores; `now` never steps back.
//! Not here: timers (each machine names its own next deadline), simulated time (`sim::SimClock`).

use std::fmt;
use std::ops::{Add, AddAssign};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A moment, in nanoseconds since the process started (or since the simulation did).
///
/// 64 bits of nanoseconds are 584 years, so arithmetic saturates instead of failing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Tick(pub u64);

impl Tick {
    /// The start of the process.
    pub const ZERO: Tick = Tick(0);
    /// Later than everything: "never" where an `Option` would be in the way.
    pub const MAX: Tick = Tick(u64::MAX);

    /// Nanoseconds since `ZERO`.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Whole microseconds since `ZERO`.
    pub const fn as_micros(self) -> u64 {
        self.0 / 1_000
    }

    /// How long after `earlier` this is; zero when it is not after it.
    pub const fn saturating_since(self, earlier: Tick) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Tick {
    type Output = Tick;

    /// Saturates at `Tick::MAX`.
    fn add(self, by: Duration) -> Tick {
        Tick(self.0.saturating_add(saturating_nanos(by)))
    }
}

impl AddAssign<Duration> for Tick {
    fn add_assign(&mut self, by: Duration) {
        *self = *self + by;
    }
}

impl fmt::Display for Tick {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:06} ms", self.0 / 1_000_000, self.0 % 1_000_000)
    }
}

fn saturating_nanos(by: Duration) -> u64 {
    u64::try_from(by.as_nanos()).unwrap_or(u64::MAX)
}

/// Reads the monotonic clock of the machine, counted from one fixed moment.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    zero: Instant,
}

impl Clock {
    /// A clock whose `Tick::ZERO` is this moment. Make one per process and copy it.
    pub fn start() -> Clock {
        Clock { zero: Instant::now() }
    }

    /// Now. Never earlier than an answer given before, on any core.
    pub fn now(&self) -> Tick {
        Tick(saturating_nanos(self.zero.elapsed()))
    }

    /// The `Instant` that stands for `at`, for libraries that want one.
    pub fn instant(&self, at: Tick) -> Instant {
        self.zero + Duration::from_nanos(at.0)
    }

    /// The `Instant` that stands for `Tick::ZERO`.
    pub fn zero(&self) -> Instant {
        self.zero
    }

    /// Microseconds since 1970 by the wall clock. May step in both directions: for timestamps shown to
    /// people and for expiry times that another process made, never for deadlines.
    pub fn unix_micros(&self) -> u64 {
        match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(since) => u64::try_from(since.as_micros()).unwrap_or(u64::MAX),
            Err(_) => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adding_to_a_tick_saturates() {
        assert_eq!(Tick(5) + Duration::from_nanos(7), Tick(12));
        assert_eq!(Tick::MAX + Duration::from_secs(1), Tick::MAX);
        assert_eq!(Tick(1) + Duration::MAX, Tick::MAX);
    }

    #[test]
    fn a_difference_is_never_negative() {
        assert_eq!(Tick(12).saturating_since(Tick(5)), Duration::from_nanos(7));
        assert_eq!(Tick(5).saturating_since(Tick(12)), Duration::ZERO);
    }

    #[test]
    fn copies_of_a_clock_share_their_zero() {
        let clock = Clock::start();
        let copy = clock;
        let first = clock.now();
        let second = copy.now();
        assert!(second >= first, "{second} is before {first}");
        assert_eq!(clock.instant(Tick(1_000)).duration_since(copy.zero()), Duration::from_micros(1));
    }

    #[test]
    fn the_wall_clock_counts_microseconds_since_1970() {
        let micros = Clock::start().unix_micros();
        assert!(micros > 1_700_000_000_000_000, "2023 or later, got {micros}");
    }
}
