//! How long to wait before trying again. Scope: one per thing that is tried.
//! Owns: the number of failures since the last success.
//! Invariants: a delay lies between half of the doubled step and the whole of it, and never above the bound.
//! Not here: waiting, and the source of random numbers (the caller gives one).

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

use crate::limits::{BACKOFF_FIRST, BACKOFF_MAX};

/// Doubling delay with jitter.
#[derive(Debug, Clone, Default)]
pub(crate) struct Backoff {
    failures: u32,
}

impl Backoff {
    /// The delay after one more failure. `random` is any number; it chooses within the upper half of the step.
    pub(crate) fn next_delay(&mut self, random: u64) -> Duration {
        let step = BACKOFF_FIRST.saturating_mul(1 << self.failures.min(16)).min(BACKOFF_MAX);
        self.failures = self.failures.saturating_add(1);
        let half = step / 2;
        let nanos = u64::try_from(half.as_nanos()).unwrap_or(u64::MAX);
        half + Duration::from_nanos(random % (nanos + 1))
    }

    /// A success: the next failure waits the first step again.
    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }
}

/// A number nobody can guess well enough to align clients; not for secrets.
pub(crate) fn jitter_seed() -> u64 {
    RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_within_their_bounds_and_start_over_after_a_success() {
        let mut backoff = Backoff::default();
        let mut step = BACKOFF_FIRST;
        for round in 0..40u64 {
            let low = backoff.clone().next_delay(0);
            let delay = backoff.next_delay(round.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            assert!(delay >= step / 2 && delay <= step, "round {round}: {delay:?} for step {step:?}");
            assert_eq!(low, step / 2);
            step = (step * 2).min(BACKOFF_MAX);
        }
        backoff.reset();
        assert!(backoff.next_delay(u64::MAX) <= BACKOFF_FIRST);
    }
}
