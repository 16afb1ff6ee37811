//! What was asked, answered and told, counted. Scope: one phase of one cycle; added up over the run.
//! Owns: the counts, the check of what a reader is told, the first contradictions in words.
//! Invariants: an answer is counted under exactly one outcome; a contradiction is counted even when its words are not kept.
//! Not here: what follows from the counts (`judge`).

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

/// Contradictions that are kept in words.
const WORDS_MAX: usize = 8;

/// The four semantics with what is told of them, and what clients do to each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// A stream on disk: records published, and delivered.
    Durable,
    /// A stream in memory: the same.
    Memory,
    /// Requests to a cache.
    Cache,
    /// Changes of a cache, and what a watch was told of them.
    Watch,
    /// Adds and gets.
    Counter,
    /// Records of a queue, and those that were settled.
    Group,
    /// Connections that come and go: whether each got what it should.
    Churn,
    /// What was written while readers did not read, and what they were told when they read on.
    Slow,
    /// Records published to a broker that is given more than it takes.
    Flood,
}

impl Part {
    /// For tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Part::Durable => "durable stream",
            Part::Memory => "stream in memory",
            Part::Cache => "cache",
            Part::Watch => "watch",
            Part::Counter => "counter",
            Part::Group => "group",
            Part::Churn => "connections",
            Part::Slow => "slow readers",
            Part::Flood => "overload",
        }
    }
}

/// Counts of one part.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Tally {
    /// Requests and records that were given to the broker.
    pub asked: u64,
    /// Answered: done.
    pub done: u64,
    /// Answered: not done.
    pub refused: u64,
    /// Nobody knows.
    pub unknown: u64,
    /// Of what is to be told (records to readers, changes to watches, records settled by groups): that it was.
    pub told: u64,
    /// Done, and never told though it had to be.
    pub missing: u64,
    /// Told again though it must not be, or out of its order.
    pub repeated: u64,
    /// Answers that contradict what was answered before.
    pub wrong: u64,
}

impl Tally {
    /// Adds `other`.
    pub fn add(&mut self, other: &Tally) {
        self.asked += other.asked;
        self.done += other.done;
        self.refused += other.refused;
        self.unknown += other.unknown;
        self.told += other.told;
        self.missing += other.missing;
        self.repeated += other.repeated;
        self.wrong += other.wrong;
    }

    /// Each request has one outcome.
    #[must_use]
    pub fn balances(&self) -> bool {
        self.asked == self.done + self.refused + self.unknown
    }
}

/// Counts of all parts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Ledger {
    pub parts: BTreeMap<Part, Tally>,
    /// Records that publishes to streams were answered with, and those with an unknown outcome, also of phases without a
    /// reader: what the broker must have appended.
    pub appended: u64,
    pub maybe_appended: u64,
    /// The first contradictions.
    pub words: Vec<String>,
}

impl Ledger {
    /// The counts of one part.
    pub fn part(&mut self, part: Part) -> &mut Tally {
        self.parts.entry(part).or_default()
    }

    /// A contradiction in one part.
    pub fn wrong(&mut self, part: Part, words: impl FnOnce() -> String) {
        self.part(part).wrong += 1;
        self.say(part, words);
    }

    /// Keeps words.
    pub fn say(&mut self, part: Part, words: impl FnOnce() -> String) {
        if self.words.len() < WORDS_MAX {
            self.words.push(format!("{}: {}", part.name(), words()));
        }
    }

    /// Adds `other`.
    pub fn add(&mut self, other: Ledger) {
        for (part, tally) in other.parts {
            self.part(part).add(&tally);
        }
        self.appended += other.appended;
        self.maybe_appended += other.maybe_appended;
        let room = WORDS_MAX - self.words.len().min(WORDS_MAX);
        self.words.extend(other.words.into_iter().take(room));
    }
}

/// What a writer has numbered from 0 and a reader is told in that order. One per writer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sequence {
    next: u64,
    absent: BTreeSet<u64>,
    /// Told more than once, or behind a later one.
    pub repeated: u64,
}

impl Sequence {
    /// The reader is told `number`. Many numbers at once that are not told cost a place each.
    pub fn told(&mut self, number: u64) {
        if number < self.next {
            self.repeated += 1;
            self.absent.remove(&number);
            return;
        }
        self.absent.extend(self.next..number);
        self.next = number + 1;
    }

    /// How many numbers the reader has been told, each once.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.next - self.absent.len() as u64
    }

    /// What comes next when nothing is missing.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Of the numbers below `end` those that were not told, without those in `excused`, whose outcome was not "done".
    #[must_use]
    pub fn missing(&self, end: u64, excused: &BTreeSet<u64>) -> u64 {
        let skipped = self.absent.iter().filter(|number| **number < end && !excused.contains(number));
        let behind = (self.next.min(end)..end).filter(|number| !excused.contains(number));
        (skipped.count() + behind.count()) as u64
    }
}

/// Between which sums a counter must be: known adds, and those with an unknown outcome.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sum {
    low: i64,
    high: i64,
}

impl Sum {
    /// An add was answered with `sum`. False when it contradicts what was answered before.
    pub fn added(&mut self, delta: i64, sum: i64) -> bool {
        let fits = (self.low + delta..=self.high + delta).contains(&sum);
        *self = Sum { low: sum, high: sum };
        fits
    }

    /// An add that may have counted.
    pub fn may_have_added(&mut self, delta: i64) {
        self.low += delta.min(0);
        self.high += delta.max(0);
    }

    /// The counter was read. False when it contradicts what was answered before.
    pub fn read(&mut self, sum: i64) -> bool {
        self.added(0, sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_skipped_is_missing_unless_it_was_never_done() {
        let mut sequence = Sequence::default();
        for number in [0, 1, 4, 5] {
            sequence.told(number);
        }
        assert_eq!((sequence.count(), sequence.next(), sequence.repeated), (4, 6, 0));
        assert_eq!(sequence.missing(6, &BTreeSet::new()), 2);
        assert_eq!(sequence.missing(6, &BTreeSet::from([2])), 1);
        assert_eq!(sequence.missing(8, &BTreeSet::from([2, 3, 6])), 1, "the last one was not told");
        assert_eq!(sequence.missing(2, &BTreeSet::new()), 0);
    }

    #[test]
    fn what_is_told_twice_or_late_is_repeated() {
        let mut sequence = Sequence::default();
        [0, 1, 1].into_iter().for_each(|number| sequence.told(number));
        assert_eq!((sequence.repeated, sequence.count()), (1, 2));
        [3, 2].into_iter().for_each(|number| sequence.told(number));
        assert_eq!((sequence.repeated, sequence.count(), sequence.missing(4, &BTreeSet::new())), (2, 4, 0));
    }

    #[test]
    fn a_sum_is_exact_until_an_outcome_is_unknown() {
        let mut sum = Sum::default();
        assert!(sum.added(5, 5) && sum.added(-2, 3) && sum.read(3));
        assert!(!sum.added(1, 5), "another add counted");
        assert!(sum.added(1, 6), "after a contradiction it goes on from what was answered");
        sum.may_have_added(10);
        assert!(sum.read(16) && !sum.read(6), "what was seen to count has counted");
        sum.may_have_added(-4);
        assert!(!sum.read(7));
    }

    #[test]
    fn ledgers_add_up_and_keep_few_words() {
        let mut whole = Ledger::default();
        for number in 0..20 {
            let mut one = Ledger { appended: 2, ..Ledger::default() };
            one.part(Part::Cache).asked += 1;
            one.wrong(Part::Cache, || format!("number {number}"));
            whole.add(one);
        }
        let cache = *whole.part(Part::Cache);
        assert_eq!((cache.asked, cache.wrong, whole.appended, whole.words.len()), (20, 20, 40, WORDS_MAX));
        assert!(!cache.balances());
        assert!(Tally { asked: 3, done: 1, refused: 1, unknown: 1, ..Tally::default() }.balances());
    }
}
