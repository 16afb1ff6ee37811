//! Finishing many records with few requests. Scope: functions of a group. Owns: which claims one request can finish.
//! Invariants: every claim has one result, in the order given; a request for several is taken whole or not at all, and where
//! it is refused each of them is asked for by itself.
//! Not here: one record at a time (`group`).

use felix_wire::client::{GroupOffset, Message};
use felix_wire::error_code::ErrorCode;
use felix_wire::features::Features;
use felix_wire::limits::GROUP_POLL_RECORDS_MAX;
use tokio::task::JoinSet;

use super::{Claim, Group, done};
use crate::request::{Repeat, RequestError};

/// Requests of one call that are unanswered at once.
const AT_ONCE: usize = 64;

/// Claims of neighbouring records of one shard under one lease, and where each stands among those given.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Run {
    first: Claim,
    places: Vec<usize>,
}

impl Run {
    fn claims(&self) -> impl Iterator<Item = (usize, Claim)> + '_ {
        // The places are those of claims that differ in their offsets by one.
        let claim = |step: u64| {
            let mut claim = self.first;
            claim.offset.0 += step;
            claim
        };
        self.places.iter().zip(0..).map(move |(place, step)| (*place, claim(step)))
    }
}

/// Runs of at most `most` claims.
fn runs(claims: &[Claim], most: usize) -> Vec<Run> {
    let mut sorted: Vec<(usize, Claim)> = claims.iter().copied().enumerate().collect();
    sorted.sort_by_key(|(_, claim)| (claim.shard, claim.lease, claim.offset));
    let mut runs: Vec<Run> = Vec::new();
    for (place, claim) in sorted {
        let follows = |run: &&mut Run| {
            let due = run.first.offset.0.checked_add(run.places.len() as u64);
            (run.first.shard, run.first.lease, due) == (claim.shard, claim.lease, Some(claim.offset.0))
                && run.places.len() < most
        };
        match runs.last_mut().filter(follows) {
            Some(run) => run.places.push(place),
            None => runs.push(Run { first: claim, places: vec![place] }),
        }
    }
    runs
}

impl Group {
    /// Finishes records, as [`Group::ack`] does each of them, with one request for up to 1,000 neighbours where the broker
    /// takes that. Gives a result for each claim, in the order given: that one is stale does not keep the others from being
    /// finished.
    pub async fn ack_all(&self, claims: &[Claim]) -> Vec<Result<(), RequestError>> {
        let mut results: Vec<Option<Result<(), RequestError>>> = vec![None; claims.len()];
        let features = match self.place.features().await {
            Ok(features) => features,
            Err(error) => return vec![Err(error); claims.len()],
        };
        let ranges = features.contains(Features::GROUP_RANGES);
        let most = if ranges { GROUP_POLL_RECORDS_MAX as usize } else { 1 };
        let mut left = runs(claims, most).into_iter();
        let mut asked = JoinSet::new();
        loop {
            while asked.len() < AT_ONCE
                && let Some(run) = left.next()
            {
                let group = self.clone();
                asked.spawn(async move { group.ack_run(&run).await });
            }
            match asked.join_next().await {
                Some(Ok(answered)) => {
                    for (place, result) in answered {
                        results[place] = Some(result);
                    }
                }
                // It says nothing of its claims below.
                Some(Err(_)) => {}
                None => break,
            }
        }
        let lost =
            || RequestError::OutcomeUnknown { cause: "the request was ended".to_owned(), refusal: None };
        results.into_iter().map(|result| result.unwrap_or_else(|| Err(lost()))).collect()
    }

    async fn ack_run(&self, run: &Run) -> Vec<(usize, Result<(), RequestError>)> {
        if let (first, 2..) = (run.first, run.places.len()) {
            let count = u32::try_from(run.places.len()).unwrap_or(u32::MAX);
            let answer = self.ack_range(first, count).await;
            let refused = answer.as_ref().err().and_then(RequestError::code);
            if !matches!(refused, Some(ErrorCode::StaleClaim | ErrorCode::InvalidRequest)) {
                run.claims().for_each(|(_, claim)| self.unsettled.settled(claim));
                return run.places.iter().map(|place| (*place, answer.clone())).collect();
            }
        }
        let mut results = Vec::with_capacity(run.places.len());
        for (place, claim) in run.claims() {
            results.push((place, self.ack(claim).await));
        }
        results
    }

    async fn ack_range(&self, first: Claim, count: u32) -> Result<(), RequestError> {
        let needs = Features::CONSUMER_GROUP.union(Features::GROUP_RANGES);
        let ask = self.ask("group_ack", needs, first.shard, Repeat::Same).await?;
        let message = |id| {
            let one = self.claimed(first, id);
            Message::GroupAck(GroupOffset { count: Some(count), ..one })
        };
        self.place.answer(ask, message, done).await
    }
}

#[cfg(test)]
mod tests {
    use felix_wire::id::{LeaseId, Offset};

    use super::*;

    fn claim(shard: u32, offset: u64, lease: Option<u64>) -> Claim {
        Claim { shard, offset: Offset(offset), attempts: 1, lease: lease.map(LeaseId) }
    }

    #[test]
    fn neighbours_of_one_shard_and_lease_are_one_run() {
        let claims = [
            claim(1, 6, None),
            claim(0, 5, None),
            claim(1, 5, None),
            claim(0, 7, None),
            claim(1, 7, Some(1)),
            claim(0, u64::MAX, None),
            claim(1, 5, None),
        ];
        let found: Vec<(Claim, Vec<usize>)> =
            runs(&claims, 9).into_iter().map(|run| (run.first, run.places)).collect();
        let wanted = [
            (claims[1], vec![1]),
            (claims[3], vec![3]),
            (claims[5], vec![5]),
            (claims[2], vec![2]),
            (claims[6], vec![6, 0]),
            (claims[4], vec![4]),
        ];
        assert_eq!(found, wanted);
        for run in runs(&claims, 9) {
            for (place, of) in run.claims() {
                assert_eq!((of.shard, of.offset), (claims[place].shard, claims[place].offset));
            }
        }
    }

    #[test]
    fn a_run_has_no_more_than_a_request_may_have() {
        let claims: Vec<Claim> = (0..7).map(|offset| claim(0, offset, None)).collect();
        let lengths: Vec<usize> = runs(&claims, 3).iter().map(|run| run.places.len()).collect();
        assert_eq!(lengths, [3, 3, 1]);
        assert_eq!(runs(&claims, 1).len(), 7);
        assert!(runs(&[], 3).is_empty());
    }
}
