//! The claims that a worker holds, without any I/O. Scope: per worker.
//! Owns: when each claim must be extended.
//! Invariants: a claim is extended well before it lapses, and one at a time; one that is known to be lost is not settled.
//! Not here: asking the broker, and running handlers (`worker`).

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::group::Claim;

#[derive(Debug)]
struct Held {
    extend_at: Instant,
    lapses: Instant,
    extending: bool,
    lost: bool,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Roster {
    claims: HashMap<Claim, Held>,
    visibility: Duration,
    /// Nothing can be extended at this broker.
    fixed: bool,
}

impl Roster {
    pub(crate) fn new(visibility: Duration, fixed: bool) -> Self {
        Self { claims: HashMap::new(), visibility, fixed }
    }

    /// A record was handed to us by a poll that was answered just now.
    pub(crate) fn claimed(&mut self, claim: Claim, now: Instant) {
        let held = Held {
            extend_at: now + self.visibility / 2,
            lapses: now + self.visibility,
            extending: false,
            lost: false,
        };
        self.claims.insert(claim, held);
    }

    /// Claims to be extended now.
    pub(crate) fn due(&mut self, now: Instant) -> Vec<Claim> {
        if self.fixed {
            return Vec::new();
        }
        let mut due = Vec::new();
        for (claim, held) in &mut self.claims {
            if !held.extending && !held.lost && held.extend_at <= now {
                held.extending = true;
                due.push(*claim);
            }
        }
        due
    }

    /// When one is due next.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        if self.fixed {
            return None;
        }
        let waiting = self.claims.values().filter(|held| !held.extending && !held.lost);
        waiting.map(|held| held.extend_at).min()
    }

    /// The claim holds for `visible` from `asked` on, the moment before the broker was asked.
    pub(crate) fn extended(&mut self, claim: Claim, visible: Duration, asked: Instant) {
        if let Some(held) = self.claims.get_mut(&claim) {
            held.extending = false;
            held.extend_at = asked + visible / 2;
            held.lapses = asked + visible;
        }
    }

    /// The broker could not be asked: once more, unless it has lapsed meanwhile.
    pub(crate) fn not_extended(&mut self, claim: Claim, now: Instant) {
        if let Some(held) = self.claims.get_mut(&claim) {
            held.extending = false;
            held.lost |= now >= held.lapses;
            let left = held.lapses.saturating_duration_since(now);
            held.extend_at = now + left / 2;
        }
    }

    /// The broker does not know the claim any more.
    pub(crate) fn lost(&mut self, claim: Claim) {
        if let Some(held) = self.claims.get_mut(&claim) {
            held.extending = false;
            held.lost = true;
        }
    }

    /// Its handler has ended: true when the claim is to be settled, false when it was lost meanwhile.
    pub(crate) fn take(&mut self, claim: Claim) -> bool {
        self.claims.remove(&claim).is_some_and(|held| !held.lost)
    }
}

#[cfg(test)]
mod tests {
    use felix_wire::id::Offset;

    use super::*;

    const VISIBILITY: Duration = Duration::from_secs(30);

    fn claim(offset: u64) -> Claim {
        Claim { shard: 0, offset: Offset(offset), attempts: 1, lease: None }
    }

    #[test]
    fn a_claim_is_extended_at_half_of_its_life_and_once_at_a_time() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut roster = Roster::new(VISIBILITY, false);
        assert_eq!(roster.next_timeout(), None);
        roster.claimed(claim(1), at(0));
        roster.claimed(claim(2), at(5));
        assert_eq!(roster.next_timeout(), Some(at(15)));
        assert_eq!(roster.due(at(14)), []);
        assert_eq!(roster.due(at(15)), [claim(1)]);
        assert_eq!(roster.due(at(16)), [], "it is on its way");
        assert_eq!(roster.next_timeout(), Some(at(20)));
        roster.extended(claim(1), Duration::from_secs(10), at(15));
        assert_eq!(roster.next_timeout(), Some(at(20)), "by what the broker allowed");
        assert!(roster.take(claim(1)) && roster.take(claim(2)));
        assert!(!roster.take(claim(1)), "once");
        assert_eq!(roster.next_timeout(), None);
    }

    #[test]
    fn a_claim_that_is_lost_or_lapsed_is_not_settled() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut roster = Roster::new(VISIBILITY, false);
        roster.claimed(claim(1), at(0));
        roster.claimed(claim(2), at(0));
        assert_eq!(roster.due(at(15)).len(), 2);
        roster.lost(claim(1));
        roster.not_extended(claim(2), at(20));
        assert_eq!(roster.next_timeout(), Some(at(25)), "again, before it lapses");
        assert_eq!(roster.due(at(25)), [claim(2)]);
        roster.not_extended(claim(2), at(31));
        assert_eq!(roster.next_timeout(), None);
        assert_eq!((roster.take(claim(1)), roster.take(claim(2))), (false, false));
    }

    #[test]
    fn without_extensions_claims_are_settled_all_the_same() {
        let start = Instant::now();
        let mut roster = Roster::new(VISIBILITY, true);
        roster.claimed(claim(1), start);
        assert_eq!((roster.next_timeout(), roster.due(start + VISIBILITY)), (None, Vec::new()));
        assert!(roster.take(claim(1)));
    }
}
