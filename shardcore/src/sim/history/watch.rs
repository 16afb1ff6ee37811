//! What watches of caches were told (reliability I19). Scope: one per simulation. Owns: every watch, from where it began until
//! another one could not go on from where it ended, and all changes that anybody was told of.
//! Checked with each event: changes come in rising order, of the keys that are watched, from where the watch began; current
//! values come before them, each key once; nobody is told something else of an offset. Checked at the end: between where a
//! watch began and where it ended, or now while it lives, it was told every change that is known; its current values are
//! those of the offset where its changes begin.
//! Not here: asking for watches (`watcher`), the answers about keys (`register`).

use std::collections::{BTreeMap, BTreeSet};

/// A cache, its life, and one of its shards.
pub type CacheShardOf = (usize, u64, u32);

/// What was written to a key: a put by its number, or none, which is a delete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    pub key: u32,
    pub put: Option<usize>,
}

/// What comes before the changes of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values {
    None,
    /// So many current values, as was told.
    Counted(u64),
    /// The current values, because the changes asked for are gone.
    Instead,
}

/// One watch, over all that went on where it was told to.
#[derive(Debug)]
struct Run {
    /// None when it is not known which life of the cache it is of.
    of: Option<CacheShardOf>,
    /// None: all keys of the shard.
    key: Option<u32>,
    from: u64,
    /// The first offset of which it is not known that it was told if it is a change.
    next: u64,
    expects: Values,
    values: BTreeMap<u32, u64>,
    told: BTreeSet<u64>,
    live: bool,
}

impl Run {
    fn follows(&self, key: u32) -> bool {
        self.key.is_none_or(|only| only == key)
    }

    fn has_all_values(&self) -> bool {
        match self.expects {
            Values::None => true,
            Values::Counted(count) => self.values.len() as u64 == count,
            // What comes first behind them ends them.
            Values::Instead => !self.told.is_empty(),
        }
    }
}

/// See the module.
#[derive(Debug, Default)]
pub struct WatchHistory {
    runs: Vec<Run>,
    changes: BTreeMap<CacheShardOf, BTreeMap<u64, Change>>,
    /// Watches that went on where another had ended, and that began anew because changes were gone.
    pub went_on: u64,
    pub lagged: u64,
}

impl WatchHistory {
    /// A watch has begun whose changes begin at `from`. Gives its number.
    pub fn begin(&mut self, of: Option<CacheShardOf>, key: Option<u32>, from: u64, expects: Values) -> usize {
        let (values, told) = (BTreeMap::new(), BTreeSet::new());
        self.runs.push(Run { of, key, from, next: from, expects, values, told, live: true });
        self.runs.len() - 1
    }

    /// Somebody was told that `change` is at `offset`.
    ///
    /// # Errors
    /// Somebody else was told something else.
    pub fn learn(&mut self, of: CacheShardOf, offset: u64, change: Change) -> Result<(), String> {
        let known = *self.changes.entry(of).or_default().entry(offset).or_insert(change);
        if known == change { Ok(()) } else { Err(format!("{of:?} has {known:?} and {change:?} at {offset}")) }
    }

    /// A watch was told of a change, or of a current value.
    ///
    /// # Errors
    /// It cannot be told that now.
    pub fn event(&mut self, run: usize, offset: u64, change: Change) -> Result<(), String> {
        let Some(watch) = self.runs.get_mut(run) else { return Err("an event of no watch".to_owned()) };
        let is_value = offset < watch.from;
        let fits = match (is_value, watch.expects) {
            _ if !watch.follows(change.key) => false,
            (true, Values::None) => false,
            (true, Values::Counted(_) | Values::Instead) => {
                watch.told.is_empty()
                    && change.put.is_some()
                    && watch.values.insert(change.key, offset).is_none()
            }
            (false, Values::Instead) => offset >= watch.next,
            (false, _) => offset >= watch.next && watch.has_all_values(),
        };
        if !fits {
            return Err(format!("{change:?} at {offset} does not fit {watch:?}"));
        }
        if !is_value {
            watch.told.insert(offset);
            watch.next = offset + 1;
        }
        let of = watch.of;
        of.map_or(Ok(()), |of| self.learn(of, offset, change))
    }

    /// Its stream has ended, and another one is to begin at `next`, the first offset that was not told. False when that is to
    /// begin anew, because current values were not told yet.
    ///
    /// # Errors
    /// It was told.
    pub fn ended_at(&mut self, run: usize, next: u64) -> Result<bool, String> {
        let Some(watch) = self.runs.get_mut(run) else { return Ok(false) };
        watch.live = false;
        if next == 0 && watch.expects != Values::None && watch.told.is_empty() {
            return Ok(false);
        }
        let complete = watch.expects == Values::Instead || watch.has_all_values();
        if next < watch.next || !complete {
            return Err(format!("it is to go on at {next}: {watch:?}"));
        }
        watch.next = next;
        Ok(true)
    }

    /// Nobody knows what came behind what it was told. Gives where another one can go on; none when it has not got all of
    /// the current values.
    pub fn lost(&mut self, run: usize) -> Option<u64> {
        let watch = self.runs.get_mut(run)?;
        watch.live = false;
        watch.has_all_values().then_some(watch.next)
    }

    /// It goes on.
    pub fn goes_on(&mut self, run: usize) {
        if let Some(watch) = self.runs.get_mut(run) {
            watch.live = true;
            self.went_on += 1;
        }
    }

    /// Whether it has got all of the current values.
    pub fn has_all_values(&self, run: usize) -> bool {
        self.runs.get(run).is_some_and(Run::has_all_values)
    }

    /// Watches, and what they were told.
    pub fn counts(&self) -> (u64, u64, u64) {
        let told = self.runs.iter().map(|run| run.told.len()).sum::<usize>();
        let values = self.runs.iter().map(|run| run.values.len()).sum::<usize>();
        (self.runs.len() as u64, told as u64, values as u64)
    }

    /// Looks at all watches when nothing is on its way any more. `ends`: whether the value of that put of a key had a life.
    ///
    /// # Errors
    /// The first change that a watch was not told of.
    pub fn check(&self, ends: impl Fn((usize, u32), usize) -> bool) -> Result<(), String> {
        for run in &self.runs {
            let Some(of) = run.of else { continue };
            let Some(changes) = self.changes.get(&of) else { continue };
            let until = if run.live { u64::MAX } else { run.next };
            let due =
                changes.range(run.from..until.max(run.from)).filter(|(_, change)| run.follows(change.key));
            for (offset, change) in due {
                if !run.told.contains(offset) {
                    return Err(format!("{of:?}: {change:?} at {offset} was not told to {run:?}"));
                }
            }
            let has_values = run.has_all_values() || (run.live && run.expects == Values::Instead);
            if run.expects == Values::None || !has_values {
                continue;
            }
            let mut last: BTreeMap<u32, (u64, Option<usize>)> = BTreeMap::new();
            for (offset, change) in changes.range(..run.from).filter(|(_, change)| run.follows(change.key)) {
                last.insert(change.key, (*offset, change.put));
            }
            // One that is changed while values are gathered is told as a change only.
            let changed = |key| changes.range(run.from..).any(|(_, change)| change.key == key);
            // Nobody was told what happened at an offset in between: it may have been a deletion.
            let unknown = |offset: u64| {
                let between = offset + 1..run.from;
                changes.range(between.clone()).count() as u64 != between.end - between.start.min(between.end)
            };
            for (key, (offset, put)) in last {
                let right = match (run.values.get(&key), put) {
                    (Some(value), Some(_)) => *value == offset,
                    (Some(_), None) => false,
                    (None, Some(put)) => ends((of.0, key), put) || changed(key) || unknown(offset),
                    (None, None) => true,
                };
                if !right {
                    return Err(format!(
                        "{of:?}: key {key} stood at {offset} ({put:?}) and not as told to {run:?}"
                    ));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OF: CacheShardOf = (0, 1, 0);

    fn put(key: u32, put: usize) -> Change {
        Change { key, put: Some(put) }
    }

    fn history(key: Option<u32>, expects: Values) -> (WatchHistory, usize) {
        let mut history = WatchHistory::default();
        let run = history.begin(Some(OF), key, 10, expects);
        (history, run)
    }

    fn check(history: &WatchHistory) -> Result<(), String> {
        history.check(|_, put| put == 77)
    }

    #[test]
    fn a_change_that_one_was_told_of_is_owed_to_the_others() {
        let (mut history, run) = history(None, Values::None);
        assert_eq!(history.event(run, 10, put(1, 0)), Ok(()));
        let other = history.begin(Some(OF), Some(2), 5, Values::None);
        assert_eq!(check(&history), Ok(()), "not of its key");
        assert_eq!(history.event(other, 11, put(2, 0)), Ok(()));
        assert!(check(&history).is_err(), "the first one lives");
        assert_eq!(history.lost(run), Some(11));
        assert_eq!(check(&history), Ok(()), "nobody knows what came behind");
        history.goes_on(run);
        assert_eq!(history.event(run, 11, put(2, 0)), Ok(()));
        assert_eq!((check(&history), history.ended_at(run, 15)), (Ok(()), Ok(true)));
        history.learn(OF, 14, put(1, 3)).unwrap();
        assert!(check(&history).is_err(), "it was to be told up to 15");
    }

    #[test]
    fn events_are_in_order_of_their_keys_and_the_same_for_all() {
        let (mut history, run) = history(Some(1), Values::None);
        assert!(history.event(run, 9, put(1, 0)).is_err(), "before its start");
        assert!(history.event(run, 10, put(2, 0)).is_err(), "of another key");
        assert_eq!(history.event(run, 12, put(1, 0)), Ok(()));
        for offset in [11, 12] {
            assert!(history.event(run, offset, put(1, 1)).is_err(), "{offset}");
        }
        assert!(history.learn(OF, 12, put(1, 5)).is_err(), "something else");
        assert!(history.ended_at(run, 12).is_err(), "it was told");
    }

    #[test]
    fn current_values_come_first_and_are_those_of_where_changes_begin() {
        let with = |known: &[(u64, Change)], values: &[(u64, Change)]| {
            let (mut history, run) = history(None, Values::Counted(values.len() as u64));
            for (offset, change) in known {
                history.learn(OF, *offset, *change).unwrap();
            }
            assert_eq!(history.has_all_values(run), values.is_empty());
            for (offset, change) in values {
                history.event(run, *offset, *change).unwrap();
            }
            assert_eq!(history.lost(run), Some(10));
            check(&history)
        };
        let gone = Change { key: 1, put: None };
        assert_eq!(with(&[(3, put(1, 0))], &[(3, put(1, 0))]), Ok(()));
        assert!(with(&[(3, put(1, 0)), (5, put(1, 1))], &[(3, put(1, 0))]).is_err(), "an old one");
        assert!(with(&[(5, gone)], &[(3, put(1, 0))]).is_err(), "a deleted one");
        let mut whole = vec![(3, put(1, 0))];
        whole.extend((4..10).map(|offset| (offset, put(2, offset as usize))));
        assert!(with(&whole, &[(9, put(2, 9))]).is_err(), "none, and nobody deleted it");
        assert_eq!(with(&whole[..3], &[(5, put(2, 5))]), Ok(()), "nobody knows what happened at 6");
        assert_eq!((with(&[(3, put(1, 77))], &[]), with(&[(3, gone)], &[])), (Ok(()), Ok(())));
        let (mut history, run) = history(None, Values::Counted(2));
        assert_eq!(history.event(run, 3, put(1, 0)), Ok(()));
        assert!(history.event(run, 4, put(1, 1)).is_err(), "one of a key");
        assert!(history.event(run, 10, put(1, 1)).is_err(), "another value is to come");
        assert_eq!(history.lost(run), None, "it has to begin again");
        assert_eq!(history.ended_at(run, 0), Ok(false));
        assert!(history.ended_at(run, 20).is_err());
    }
}
