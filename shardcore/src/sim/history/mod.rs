//! What clients asked of caches, counters and groups, with the times of calls and answers, and whether it can be true.
//! Scope: one per simulation. Owns: the history of every key, counter, group and watch.
//! Invariants: an operation is noted before its bytes leave, and has at most one outcome.
//! Not here: the requests (`asks`), records of streams (`check`).

pub mod commit;
pub mod linear;
pub mod queue;
pub mod register;
pub mod watch;

use std::collections::BTreeMap;

use felix_runtime::clock::Tick;

use self::commit::CommitHistory;
use self::queue::{QueueHistory, Rules};
use self::register::{Entry, KeyAsk, KeyHistory, KeyTold, Outcome, SumAsk, SumHistory, SumTold};
use self::watch::{Change, WatchHistory};
use super::ask_plan::shard_of;
use super::check::{Model, Reader, ShardKey};

/// A key of a cache, or the counter of that name beside it.
pub type KeyOf = (usize, u32);
/// A group of a shard.
pub type GroupOf = (ShardKey, u32);

/// See the module.
#[derive(Debug, Default)]
pub struct Histories {
    keys: BTreeMap<KeyOf, KeyHistory>,
    sums: BTreeMap<KeyOf, SumHistory>,
    queues: BTreeMap<GroupOf, QueueHistory>,
    pub watches: WatchHistory,
    pub commits: CommitHistory,
    pub rules: Rules,
    /// Width of each cache, and how many keys it has.
    caches: Vec<u32>,
    keys_max: u32,
    /// Deletions of caches that not every core knows of.
    wiping: Vec<(usize, Tick)>,
    wiped: BTreeMap<usize, u64>,
}

impl Histories {
    /// Before anything was asked of caches of these widths, with so many keys.
    pub fn new(caches: &[u32], keys_max: u32) -> Histories {
        Histories { caches: caches.to_vec(), keys_max, ..Histories::default() }
    }

    /// A cache is being deleted: all of its keys and counters are gone when every core knows.
    pub fn cache_deleted(&mut self, cache: usize, now: Tick) {
        self.wiping.push((cache, now));
        *self.wiped.entry(cache).or_default() += 1;
    }

    /// Every core knows what there is.
    pub fn agreed(&mut self, now: Tick) {
        for (cache, call) in std::mem::take(&mut self.wiping) {
            for key in (0..self.keys_max).map(|key| (cache, key)) {
                let op = self.ask_key(key, call, KeyAsk::Wipe);
                self.key_done(key, op, Outcome::Told(now, KeyTold::Written));
                let op = self.ask_sum(key, call, SumAsk::Wipe);
                self.sum_done(key, op, Outcome::Told(now, SumTold::Sum(None)));
            }
        }
    }

    /// Something is asked of a key; its number.
    pub fn ask_key(&mut self, key: KeyOf, call: Tick, what: KeyAsk) -> usize {
        let history = self.keys.entry(key).or_default();
        history.push(Entry { call, what, outcome: Outcome::Open });
        history.len() - 1
    }

    /// What came of it.
    pub fn key_done(&mut self, key: KeyOf, op: usize, outcome: Outcome<KeyTold>) {
        if let Some(entry) = self.keys.get_mut(&key).and_then(|history| history.get_mut(op)) {
            entry.outcome = outcome;
        }
    }

    /// Something is asked of a counter; its number.
    pub fn ask_sum(&mut self, key: KeyOf, call: Tick, what: SumAsk) -> usize {
        let history = self.sums.entry(key).or_default();
        history.push(Entry { call, what, outcome: Outcome::Open });
        history.len() - 1
    }

    /// What came of it.
    pub fn sum_done(&mut self, key: KeyOf, op: usize, outcome: Outcome<SumTold>) {
        if let Some(entry) = self.sums.get_mut(&key).and_then(|history| history.get_mut(op)) {
            entry.outcome = outcome;
        }
    }

    /// A group, and what holds for all of them.
    pub fn queue(&mut self, group: GroupOf) -> (&mut QueueHistory, &Rules) {
        (self.queues.entry(group).or_default(), &self.rules)
    }

    /// Nobody holds anything any more of what was claimed up to now.
    pub fn void_claims(&mut self, now: Tick) {
        self.rules.void_until = now;
    }

    /// Looks at every history, when the logs of the streams have been read.
    ///
    /// # Errors
    /// The first one that cannot be true.
    pub fn check(&mut self, model: &Model) -> Result<(), String> {
        self.check_watches()?;
        let kept = |shard: ShardKey| {
            let of = |reader: &&Reader| reader.shard == shard && reader.kept.is_some();
            model.readers().map(|(_, reader)| reader).find(of).and_then(|reader| reader.kept.as_ref())
        };
        self.commits.check(|shard| kept(shard).map(|kept| &kept.records))?;
        for (key, history) in &self.keys {
            register::check_key(history).map_err(|why| format!("key {key:?}: {why}"))?;
        }
        for (key, history) in &self.sums {
            register::check_sums(history).map_err(|why| format!("counter {key:?}: {why}"))?;
        }
        for (group, queue) in &self.queues {
            let kept = kept(group.0).ok_or_else(|| format!("the log of {group:?} was not read"))?;
            queue.check(&kept.records, &self.rules).map_err(|why| format!("group {group:?}: {why}"))?;
        }
        Ok(())
    }

    /// What clients were told of versions is known of changes too, of a cache that has had one life.
    fn check_watches(&mut self) -> Result<(), String> {
        for ((cache, key), history) in
            self.keys.iter().filter(|((cache, _), _)| !self.wiped.contains_key(cache))
        {
            let of = (*cache, 1, shard_of(*key, self.caches[*cache]));
            for (at, entry) in history.iter().enumerate() {
                let (put, version) = match entry.outcome {
                    Outcome::Told(_, KeyTold::Value(Some(put), Some(version))) => (put, version),
                    Outcome::Told(_, KeyTold::Condition { applied: true, version: Some(version) }) => {
                        (at, version)
                    }
                    _ => continue,
                };
                self.watches.learn(of, version, Change { key: *key, put: Some(put) })?;
            }
        }
        let ends = |key: KeyOf, put: usize| {
            let entry = self.keys.get(&key).and_then(|history| history.get(put));
            entry.is_some_and(|entry| entry.what.ends())
        };
        self.watches.check(ends).map_err(|why| format!("watches: {why}"))
    }

    /// What there was, by name.
    pub fn met(&self) -> Vec<(&'static str, u64)> {
        let told = |history: &KeyHistory| {
            history.iter().filter(|entry| matches!(entry.outcome, Outcome::Told(..))).count() as u64
        };
        let open = |history: &KeyHistory| {
            history.iter().filter(|entry| entry.outcome == Outcome::Open && entry.what != KeyAsk::Get).count()
        };
        let conditions = |applied: bool| {
            let of = |entry: &Entry<KeyAsk, KeyTold>| match entry.outcome {
                Outcome::Told(_, KeyTold::Condition { applied: was, .. }) => was == applied,
                _ => false,
            };
            self.keys.values().flatten().filter(|entry| of(entry)).count() as u64
        };
        let sums = |pick: fn(&Entry<SumAsk, SumTold>) -> bool| {
            self.sums.values().flatten().filter(|entry| pick(entry)).count() as u64
        };
        let queues = self.queues.values().map(QueueHistory::counts);
        let (handed, acked) = queues.fold((0, 0), |sum, of| (sum.0 + of.0, sum.1 + of.1));
        let dead = |queue: &QueueHistory| queue.dead.as_ref().map_or(0, |dead| dead.len() as u64);
        let (watches, changes, values) = self.watches.counts();
        let (commits, states, state_values) = self.commits.counts();
        let moves = self.queues.values().map(QueueHistory::moves);
        let (moved, reclaimed) = moves.fold((0, 0), |sum, of| (sum.0 + of.0, sum.1 + of.1));
        vec![
            ("histories of keys", self.keys.len() as u64),
            ("histories of counters", self.sums.len() as u64),
            ("histories of groups", self.queues.len() as u64),
            ("answers about keys", self.keys.values().map(told).sum()),
            ("unknown writes of keys", self.keys.values().map(|history| open(history) as u64).sum()),
            ("conditions that held", conditions(true)),
            ("conditions that did not", conditions(false)),
            ("adds", sums(|entry| matches!(entry.outcome, Outcome::Told(_, SumTold::Sum(Some(_)))))),
            ("unknown adds", sums(|entry| entry.outcome == Outcome::Open && entry.what != SumAsk::Get)),
            ("sums that do not fit", sums(|e| matches!(e.outcome, Outcome::Told(_, SumTold::Overflow)))),
            ("records handed out", handed),
            ("records acknowledged", acked),
            ("dead letters", self.queues.values().map(dead).sum()),
            ("commits", commits),
            ("answers about state", states),
            ("values of state", state_values),
            ("groups moved", moved),
            ("members that took back", reclaimed),
            ("watches", watches),
            ("changes told", changes),
            ("current values told", values),
            ("watches went on", self.watches.went_on),
            ("watches lagged", self.watches.lagged),
            ("deleted caches", self.wiped.values().sum()),
        ]
    }
}
