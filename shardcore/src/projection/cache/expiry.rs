//! When a value ends. Scope: values.
//! Invariants: an expiry is absolute, so it survives a restart; a value that was seen expired is never seen again, because
//! the time of a machine does not step back ([`Clock`]).
//! Not here: what happens to an expired value (`super`).

/// Milliseconds since 1970 at which a value ends; 0 is never.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, PartialOrd, Ord)]
pub struct Expiry(u64);

/// A life that no expiry can be made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TtlError {
    /// It would end before it began.
    #[error("a time to live of {ttl_ms} ms is negative")]
    Negative { ttl_ms: i64 },
    /// Now and the life together do not fit 64 bits of milliseconds.
    #[error("a time to live of {ttl_ms} ms ends later than can be told")]
    TooLong { ttl_ms: u64 },
}

impl Expiry {
    /// It never ends.
    pub const NEVER: Expiry = Expiry(0);

    /// The expiry with these milliseconds since 1970; 0 is never.
    pub fn from_millis(millis: u64) -> Expiry {
        Expiry(millis)
    }

    /// Milliseconds since 1970; 0 is never.
    pub fn millis(self) -> u64 {
        self.0
    }

    /// Of a value written at `now_ms` that lives `ttl_ms`; none never ends, 0 has ended at once.
    ///
    /// # Errors
    /// `TooLong`.
    pub fn after(now_ms: u64, ttl_ms: Option<u64>) -> Result<Expiry, TtlError> {
        let Some(ttl_ms) = ttl_ms else { return Ok(Expiry::NEVER) };
        let end = now_ms.checked_add(ttl_ms).ok_or(TtlError::TooLong { ttl_ms })?;
        // 0 would be never.
        Ok(Expiry(end.max(1)))
    }

    /// The same for callers whose number may be negative.
    ///
    /// # Errors
    /// `Negative`, `TooLong`.
    pub fn after_signed(now_ms: u64, ttl_ms: Option<i64>) -> Result<Expiry, TtlError> {
        let unsigned = ttl_ms.map(|ttl_ms| u64::try_from(ttl_ms).map_err(|_| TtlError::Negative { ttl_ms }));
        Expiry::after(now_ms, unsigned.transpose()?)
    }

    /// Whether it has come.
    pub fn is_past(self, now_ms: u64) -> bool {
        self.0 != 0 && self.0 <= now_ms.max(1)
    }
}

/// The time of one cache: what it was told last, or the log's newest record, whichever is later. So a wall clock that is
/// set back brings nothing back to life.
#[derive(Debug, Clone, Copy, Default)]
pub struct Clock(u64);

impl Clock {
    /// Milliseconds since 1970; not before what it said last.
    pub fn at(&mut self, now_ms: u64) -> u64 {
        self.0 = self.0.max(now_ms);
        self.0
    }

    /// What it said last.
    pub fn last(self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_life_of_zero_is_over_at_once_and_none_never_is() {
        for now in [0, 1, 1_700_000_000_000, u64::MAX] {
            assert!(Expiry::after(now, Some(0)).unwrap().is_past(now), "{now}");
            assert!(!Expiry::after(now, None).unwrap().is_past(u64::MAX));
        }
        let expiry = Expiry::after(1_000, Some(5)).unwrap();
        assert!(!expiry.is_past(1_004) && expiry.is_past(1_005) && expiry.is_past(u64::MAX));
    }

    #[test]
    fn lives_that_cannot_be_are_refused_with_their_reason() {
        assert_eq!(
            Expiry::after(1, Some(u64::MAX)),
            Err(TtlError::TooLong { ttl_ms: u64::MAX }),
            "it does not wrap around to one that is over"
        );
        assert_eq!(Expiry::after(0, Some(u64::MAX)), Ok(Expiry(u64::MAX)));
        assert_eq!(Expiry::after_signed(9, Some(-1)), Err(TtlError::Negative { ttl_ms: -1 }));
        assert_eq!(Expiry::after_signed(9, Some(i64::MAX)), Ok(Expiry(9 + i64::MAX as u64)));
        assert_eq!(Expiry::after_signed(9, None), Ok(Expiry::NEVER));
    }

    #[test]
    fn a_clock_that_is_set_back_brings_nothing_back() {
        let mut clock = Clock::default();
        let expiry = Expiry::after(100, Some(50)).unwrap();
        assert!(expiry.is_past(clock.at(150)));
        assert!(expiry.is_past(clock.at(120)));
    }
}
