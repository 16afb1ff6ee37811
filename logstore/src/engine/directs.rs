//! Writes straight to segments that are on their way. Scope: one per engine.
//! Invariants: a write that the disk does not answer for long counts no more when it is asked whether there are enough, so
//! one slow file holds nobody else up.
//! Not here: writing (`commit`).

use std::collections::VecDeque;
use std::time::Duration;

use felix_runtime::clock::Tick;

/// Small writes wait while so many others are on their way: more do not make a disk faster, and what comes meanwhile
/// gathers to fewer and larger ones.
const ENOUGH: usize = 8;
/// A write that takes longer is not waited for.
const SLOW_AFTER: Duration = Duration::from_millis(10);

/// So long the first batches of a log whose writes gather wait for the next ones, which its writers are sending: in the
/// commit file they would be written twice.
const GATHER: Duration = Duration::from_micros(300);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Directs {
    /// When each was asked for, in that order.
    asked: VecDeque<Tick>,
    /// A write waits for others to end.
    waits: bool,
    /// When the first of the logs that gather has waited long enough.
    gathered: Option<Tick>,
}

impl Directs {
    pub fn begin(&mut self, now: Tick) {
        self.asked.push_back(now);
    }

    /// One that was asked for at `asked` is answered.
    pub fn end(&mut self, asked: Tick) {
        if let Some(at) = self.asked.iter().position(|tick| *tick == asked) {
            self.asked.remove(at);
        }
    }

    pub fn is_empty(&self) -> bool {
        self.asked.is_empty()
    }

    /// Whether a small write has to wait; then it is due again when one of those on their way ends or is slow.
    pub fn are_enough(&mut self, now: Tick) -> bool {
        let fresh = self.asked.iter().rev().take_while(|asked| now.saturating_since(**asked) < SLOW_AFTER);
        let enough = fresh.count() >= ENOUGH;
        self.waits |= enough;
        enough
    }

    /// Whether a log that gathers goes on waiting, with the oldest batch from `oldest`; then it is due again when it has
    /// waited long enough.
    pub fn gathers(&mut self, oldest: Tick, now: Tick) -> bool {
        let until = oldest + GATHER;
        if now >= until {
            return false;
        }
        self.gathered = Some(self.gathered.map_or(until, |at| at.min(until)));
        true
    }

    /// Nobody waits, until `are_enough` or `gathers` says so again.
    pub fn look_again(&mut self) {
        self.waits = false;
        self.gathered = None;
    }

    /// When those that wait are to be looked at if no write ends before.
    pub fn next_timeout(&self) -> Option<Tick> {
        let nth = self.asked.len().checked_sub(ENOUGH).filter(|_| self.waits);
        let slow = nth.and_then(|nth| self.asked.get(nth)).map(|asked| *asked + SLOW_AFTER);
        slow.into_iter().chain(self.gathered).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_that_gathers_is_looked_at_when_its_oldest_batch_has_waited_long_enough() {
        let at = |us: u64| Tick::ZERO + Duration::from_micros(us);
        let mut directs = Directs::default();
        assert!(directs.gathers(at(100), at(150)) && directs.gathers(at(50), at(150)));
        assert_eq!(directs.next_timeout(), Some(at(350)));
        directs.look_again();
        assert_eq!(directs.next_timeout(), None);
        assert!(!directs.gathers(at(50), at(350)));
        assert_eq!(directs.next_timeout(), None, "it does not wait");
    }

    #[test]
    fn small_writes_wait_for_enough_others_but_not_for_slow_ones() {
        let at = |ms: u64| Tick::ZERO + Duration::from_millis(ms);
        let mut directs = Directs::default();
        for ms in 0..8 {
            assert!(!directs.are_enough(at(ms)));
            directs.begin(at(ms));
        }
        assert_eq!(directs.next_timeout(), None, "nobody waits");
        assert!(directs.are_enough(at(8)));
        assert_eq!(directs.next_timeout(), Some(at(10)));
        assert!(directs.are_enough(at(9)));
        assert!(!directs.are_enough(at(10)), "the first is slow");
        directs.look_again();
        directs.begin(at(10));
        assert!(directs.are_enough(at(10)));
        assert_eq!(directs.next_timeout(), Some(at(11)), "there is a second to wait for");
        directs.end(at(3));
        assert!(!directs.are_enough(at(10)));
        for ms in [0, 1, 2, 4, 5, 6, 7, 10] {
            directs.end(at(ms));
        }
        assert!(directs.is_empty() && directs.next_timeout().is_none());
    }
}
