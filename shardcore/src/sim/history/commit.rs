//! What was committed to the shards of streams, and what state was told of (reliability I10, I17). Scope: one per simulation.
//! Checked when the logs have been read: an answer about a key tells what the last commit up to the one that it names made of
//! it, all changes of a commit or none; what was answered before an answer was asked for is in it.
//! Not here: where the events of commits lie (`crate::sim::log_check`), the requests (`crate::sim::asks::commit`).

use std::collections::BTreeMap;

use felix_runtime::clock::Tick;

use crate::sim::check::{RecordId, ShardKey};

/// What a commit does to the keys that it names: whether it puts a value.
pub type Changes = Vec<(u32, bool)>;

#[derive(Debug)]
struct Made {
    changes: Changes,
    /// When it was answered, and where it lies.
    done: Option<(Tick, u64)>,
}

/// What was told of a key.
#[derive(Clone, Copy, Debug)]
pub struct Told {
    pub shard: ShardKey,
    pub key: u32,
    pub call: Tick,
    /// The commit that put its value, and the offset that was told of that.
    pub value: Option<(RecordId, u64)>,
    /// The last commit that the answer reflects.
    pub as_of: Option<u64>,
}

/// See the module.
#[derive(Debug, Default)]
pub struct CommitHistory {
    made: BTreeMap<(ShardKey, RecordId), Made>,
    told: Vec<Told>,
}

impl CommitHistory {
    /// A commit is about to be sent; its event is that record.
    pub fn commit(&mut self, shard: ShardKey, record: RecordId, changes: Changes) {
        self.made.insert((shard, record), Made { changes, done: None });
    }

    /// It was answered that it lies at `offset`.
    pub fn committed(&mut self, shard: ShardKey, record: RecordId, offset: u64, now: Tick) {
        if let Some(made) = self.made.get_mut(&(shard, record)) {
            made.done = Some((now, offset));
        }
    }

    /// An answer about a key.
    pub fn told(&mut self, told: Told) {
        self.told.push(told);
    }

    /// Commits that were answered, answers about keys, and those with a value.
    pub fn counts(&self) -> (u64, u64, u64) {
        let done = self.made.values().filter(|made| made.done.is_some()).count();
        let values = self.told.iter().filter(|told| told.value.is_some()).count();
        (done as u64, self.told.len() as u64, values as u64)
    }

    /// Looks at every answer; `records` gives what the log of a shard has.
    ///
    /// # Errors
    /// The first that is not so.
    pub fn check<'a>(
        &self,
        records: impl Fn(ShardKey) -> Option<&'a BTreeMap<u64, RecordId>>,
    ) -> Result<(), String> {
        for told in &self.told {
            let log =
                records(told.shard).ok_or_else(|| format!("the log of {:?} was not read", told.shard))?;
            self.check_one(told, log)?;
        }
        Ok(())
    }

    fn check_one(&self, told: &Told, log: &BTreeMap<u64, RecordId>) -> Result<(), String> {
        let commits = || {
            log.iter().filter_map(|(offset, record)| {
                Some((*offset, *record, self.made.get(&(told.shard, *record))?))
            })
        };
        if let Some(as_of) = told.as_of.filter(|as_of| commits().all(|(offset, ..)| offset != *as_of)) {
            return Err(format!("{told:?}: there is no commit at {as_of}"));
        }
        let reflected = |offset: u64| told.as_of.is_some_and(|as_of| offset <= as_of);
        let answered = |made: &Made| made.done.is_some_and(|(at, _)| at < told.call);
        if let Some(missed) = commits().find(|(offset, _, made)| answered(made) && !reflected(*offset)) {
            return Err(format!("{told:?} does not reflect {missed:?}, which was answered before"));
        }
        let of_key =
            |made: &Made| made.changes.iter().find(|(key, _)| *key == told.key).map(|(_, puts)| *puts);
        let last = commits()
            .filter(|(offset, ..)| reflected(*offset))
            .filter_map(|(offset, record, made)| Some((offset, record, of_key(made)?)))
            .next_back();
        let due = last.and_then(|(offset, record, puts)| puts.then_some((record, offset)));
        if told.value == due { Ok(()) } else { Err(format!("{told:?}: it is {due:?}, by {last:?}")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARD: ShardKey = (0, 0);

    fn record(seq: u64) -> RecordId {
        RecordId { lane: 1, seq }
    }

    /// The verdict on an answer at 100 about key 1 after commits of these offsets and changes, answered at 10 times those.
    fn check(commits: &[(u64, Changes)], value: Option<u64>, as_of: Option<u64>) -> Result<(), String> {
        let mut history = CommitHistory::default();
        let mut log = BTreeMap::from([(0, RecordId { lane: 9, seq: 0 })]);
        for (offset, changes) in commits {
            history.commit(SHARD, record(*offset), changes.clone());
            history.committed(SHARD, record(*offset), *offset, Tick(offset * 10));
            log.insert(*offset, record(*offset));
        }
        let value = value.map(|offset| (record(offset), offset));
        history.told(Told { shard: SHARD, key: 1, call: Tick(100), value, as_of });
        history.check(|_| Some(&log))
    }

    #[test]
    fn an_answer_is_what_the_commits_up_to_the_one_it_names_have_made() {
        let commits = [(3, vec![(1, true), (2, true)]), (5, vec![(2, false)]), (12, vec![(1, false)])];
        assert_eq!(check(&commits, Some(3), Some(5)), Ok(()));
        assert_eq!(check(&commits, None, Some(12)), Ok(()), "one that was not answered yet may be in it");
        assert!(check(&commits, None, Some(5)).is_err(), "half of a commit");
        assert!(check(&commits, Some(5), Some(5)).is_err(), "of another one");
        assert!(check(&commits, Some(3), Some(3)).is_err(), "5 was answered before");
        assert!(check(&commits, Some(3), Some(12)).is_err(), "it was deleted");
        assert!(check(&commits, Some(3), Some(0)).is_err(), "no commit");
        assert_eq!(check(&[], None, None), Ok(()));
    }
}
