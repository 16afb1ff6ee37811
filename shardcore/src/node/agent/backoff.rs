//! How long to wait after failures in a row. Scope: one per thing that is retried.
//! Invariants: doubles from the first to the longest wait; a success starts over.
//! Not here: clocks.

use std::time::Duration;

/// Wait after the first failure.
const FIRST: Duration = Duration::from_millis(100);
/// Longest wait.
const LONGEST: Duration = Duration::from_secs(5);

/// Failures in a row, and what they cost.
#[derive(Clone, Copy, Debug, Default)]
pub struct Backoff {
    failures: u32,
}

impl Backoff {
    /// One more failure; the time to wait before the next try.
    pub fn failed(&mut self) -> Duration {
        let wait = FIRST.saturating_mul(1 << self.failures.min(16)).min(LONGEST);
        self.failures = self.failures.saturating_add(1);
        wait
    }

    /// It worked.
    pub fn succeeded(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_longest_and_start_over_after_a_success() {
        let mut backoff = Backoff::default();
        let waits: Vec<u128> = (0..8).map(|_| backoff.failed().as_millis()).collect();
        assert_eq!(waits, [100, 200, 400, 800, 1_600, 3_200, 5_000, 5_000]);
        backoff.succeeded();
        assert_eq!(backoff.failed(), FIRST);
    }
}
