//! Which shards a member holds, as far as it may believe so, without any I/O. Scope: per membership of a consumer.
//! Owns: the leases, when each ends by the member's own clock, and which it has ended.
//! Invariants: a lease ends here before it ends at the broker; one that ended never begins again; what was given back is
//! told until an answer to that came.
//! Not here: polling under a lease (`deliveries`), asking (`keeper`).

use std::collections::BTreeMap;
use std::time::Duration;

use felix_wire::client::{GroupLeases, LeaseView, ShardLease};
use felix_wire::id::{LeaseId, ShardIndex};
use tokio::time::Instant;

/// What is to be done about a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// It may be polled under this lease.
    Begin(ShardLease),
    /// It is to be polled no more; say [`Holdings::release`] when nothing of it is under way.
    GiveBack(ShardLease),
    /// It may be somebody else's.
    Lost(ShardLease),
}

#[derive(Debug)]
struct Held {
    lease: LeaseId,
    ends: Instant,
    giving_back: bool,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Holdings {
    shards: BTreeMap<u32, Held>,
    released: Vec<ShardLease>,
}

fn named(shard: u32, lease: LeaseId) -> ShardLease {
    ShardLease { shard: ShardIndex(shard), lease }
}

impl Holdings {
    /// Leases that the next heartbeat is to end.
    pub(crate) fn released(&self) -> &[ShardLease] {
        &self.released
    }

    /// What was answered to a request that was sent at `asked` or later and told `told` to be ended.
    pub(crate) fn answered(&mut self, view: &GroupLeases, told: &[ShardLease], asked: Instant) -> Vec<Step> {
        let mut steps = Vec::new();
        self.released.retain(|lease| !told.contains(lease));
        let stands = |shard: u32, lease: LeaseId| {
            view.leases.iter().any(|of| of.shard.get() == shard && of.lease == lease)
        };
        let gone: Vec<u32> = self
            .shards
            .iter()
            .filter(|(shard, held)| !stands(**shard, held.lease))
            .map(|(shard, _)| *shard)
            .collect();
        steps.extend(gone.into_iter().filter_map(|shard| self.lose(shard)));
        for lease in &view.leases {
            steps.extend(self.stands(lease, Duration::from_millis(view.term_ms), asked));
        }
        steps
    }

    fn stands(&mut self, view: &LeaseView, term: Duration, asked: Instant) -> Option<Step> {
        let (shard, of) = (view.shard.get(), ShardLease { shard: view.shard, lease: view.lease });
        if let Some(held) = self.shards.get_mut(&shard) {
            if !view.give_back {
                // The broker counts from when it read the request, which was not before that.
                held.ends = held.ends.max(asked + term);
                return None;
            }
            let begins = !std::mem::replace(&mut held.giving_back, true);
            return begins.then_some(Step::GiveBack(of));
        }
        if self.released.contains(&of) {
            return None;
        }
        if view.give_back {
            self.released.push(of);
            return None;
        }
        self.shards.insert(shard, Held { lease: view.lease, ends: asked + term, giving_back: false });
        Some(Step::Begin(of))
    }

    /// When the next lease ends.
    pub(crate) fn next_end(&self) -> Option<Instant> {
        self.shards.values().map(|held| held.ends).min()
    }

    /// Leases whose time is over.
    pub(crate) fn expire(&mut self, now: Instant) -> Vec<Step> {
        let over: Vec<u32> =
            self.shards.iter().filter(|(_, held)| held.ends <= now).map(|(shard, _)| *shard).collect();
        let lost = |shard: u32| {
            let lease = self.shards.get(&shard)?.lease;
            // Whether the broker still counts on it or not, it has ended here.
            self.released.push(named(shard, lease));
            self.lose(shard)
        };
        over.into_iter().filter_map(lost).collect()
    }

    /// The membership is over, and every lease with it.
    pub(crate) fn end(&mut self) -> Vec<Step> {
        self.released.clear();
        let all: Vec<u32> = self.shards.keys().copied().collect();
        all.into_iter().filter_map(|shard| self.lose(shard)).collect()
    }

    fn lose(&mut self, shard: u32) -> Option<Step> {
        self.shards.remove(&shard).map(|held| Step::Lost(named(shard, held.lease)))
    }

    /// Nothing is polled or unsettled under a lease any more: it is ended with the next heartbeat. False for one that is not
    /// held.
    pub(crate) fn release(&mut self, of: ShardLease) -> bool {
        let shard = of.shard.get();
        let held = self.shards.get(&shard).is_some_and(|held| held.lease == of.lease);
        if held {
            self.shards.remove(&shard);
            self.released.push(of);
        }
        held
    }

    /// Leases that are to be given back.
    pub(crate) fn giving_back(&self) -> impl Iterator<Item = ShardLease> {
        let held = self.shards.iter().filter(|(_, held)| held.giving_back);
        held.map(|(shard, held)| named(*shard, held.lease))
    }
}

#[cfg(test)]
mod tests {
    use felix_wire::id::{MembershipId, RequestId};

    use super::*;

    const TERM: Duration = Duration::from_secs(9);

    fn view(leases: &[(u32, u64, bool)]) -> GroupLeases {
        let lease = |(shard, lease, give_back): &(u32, u64, bool)| LeaseView {
            shard: ShardIndex(*shard),
            lease: LeaseId(*lease),
            left_ms: 9_000,
            give_back: *give_back,
        };
        GroupLeases {
            session: MembershipId(1),
            version: 1,
            term_ms: 9_000,
            members: 1,
            leases: leases.iter().map(lease).collect(),
            request_id: RequestId(1),
        }
    }

    fn of(shard: u32, lease: u64) -> ShardLease {
        named(shard, LeaseId(lease))
    }

    #[test]
    fn a_lease_holds_for_a_term_from_before_the_last_heartbeat_that_was_answered() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut holdings = Holdings::default();
        let both = view(&[(0, 5, false), (1, 6, false)]);
        assert_eq!(holdings.answered(&both, &[], at(0)), [Step::Begin(of(0, 5)), Step::Begin(of(1, 6))]);
        assert_eq!(holdings.next_end(), Some(at(0) + TERM));
        assert_eq!(holdings.answered(&both, &[], at(3)), []);
        assert_eq!((holdings.next_end(), holdings.expire(at(11))), (Some(at(12)), Vec::new()));
        assert_eq!(holdings.expire(at(12)), [Step::Lost(of(0, 5)), Step::Lost(of(1, 6))]);
        // The broker may still count on them: that begins nothing, and they are told to have ended.
        assert_eq!(holdings.answered(&both, &[], at(13)), []);
        assert_eq!(holdings.released(), [of(0, 5), of(1, 6)]);
        let next = view(&[(0, 7, false)]);
        let told = holdings.released().to_vec();
        assert_eq!(holdings.answered(&next, &told, at(14)), [Step::Begin(of(0, 7))]);
        assert_eq!(holdings.released(), []);
    }

    #[test]
    fn what_is_asked_back_is_not_renewed_and_is_told_until_it_is_heard() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut holdings = Holdings::default();
        holdings.answered(&view(&[(0, 5, false), (1, 6, false)]), &[], at(0));
        let asked = view(&[(0, 5, false), (1, 6, true)]);
        assert_eq!(holdings.answered(&asked, &[], at(3)), [Step::GiveBack(of(1, 6))]);
        assert_eq!(holdings.answered(&asked, &[], at(6)), [], "once");
        assert_eq!(holdings.next_end(), Some(at(0) + TERM));
        assert_eq!(holdings.giving_back().collect::<Vec<_>>(), [of(1, 6)]);
        assert!(holdings.release(of(1, 6)) && !holdings.release(of(1, 6)));
        // Answers to what was sent before, or that were lost.
        assert_eq!(holdings.answered(&asked, &[], at(7)), []);
        assert_eq!(holdings.released(), [of(1, 6)]);
        assert_eq!(holdings.answered(&view(&[(0, 5, false)]), &[of(1, 6)], at(8)), []);
        assert_eq!(holdings.released(), []);
    }

    #[test]
    fn a_lease_that_another_took_the_place_of_is_lost() {
        let start = Instant::now();
        let mut holdings = Holdings::default();
        holdings.answered(&view(&[(0, 5, false), (1, 6, false)]), &[], start);
        let other = view(&[(0, 8, false)]);
        let steps = holdings.answered(&other, &[], start);
        assert_eq!(steps, [Step::Lost(of(0, 5)), Step::Lost(of(1, 6)), Step::Begin(of(0, 8))]);
        assert_eq!(holdings.end(), [Step::Lost(of(0, 8))]);
        assert_eq!(holdings.next_end(), None);
    }
}
