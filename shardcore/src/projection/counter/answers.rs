//! What numbered adds were answered. Sans-io. Scope: one [`Answers`] per counter shard.
//! Invariants: an add that its producer is remembered for has its answer here, and no other has, so there are as many as
//! [`ProducerCore`] has batches.
//! Not here: which adds are remembered (`producer`), writing answers when the log becomes shorter (`checkpoint`).

use std::collections::BTreeMap;

use felix_wire::id::Offset;

use super::record::{AnswerBytes, answer_bytes, answer_of};
use crate::projection::producer::{Numbered, ProducerCore};

/// See the module.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Answers {
    /// By the offset of the add.
    sums: BTreeMap<Offset, i64>,
}

impl Answers {
    /// How many.
    pub fn len(&self) -> usize {
        self.sums.len()
    }

    /// The sum that the add at `base` was answered with. None when its log does not say it: its producers were written by a
    /// version that did not write answers.
    pub fn get(&self, base: Offset) -> Option<i64> {
        self.sums.get(&base).copied()
    }

    /// An add was claimed at `at`, which gave `sum`.
    pub fn claimed(&mut self, producers: &mut ProducerCore, number: &Numbered, (at, sum): (Offset, i64)) {
        let sums = &mut self.sums;
        producers.claimed_for(number, at, |base| {
            sums.remove(&base);
        });
        sums.insert(at, sum);
    }

    /// The log has an add at `at`, which gave `sum`.
    pub fn replay(&mut self, producers: &mut ProducerCore, number: &Numbered, (at, sum): (Offset, i64)) {
        let sums = &mut self.sums;
        let new = producers.replay_for(number, at, |base| {
            sums.remove(&base);
        });
        if new {
            sums.insert(at, sum);
        }
    }

    /// The log names what is remembered of producers: `producers` from here on.
    pub fn replay_producers(&mut self, producers: &ProducerCore) {
        let mut before = std::mem::take(&mut self.sums);
        self.sums = producers.bases().filter_map(|base| Some((base, before.remove(&base)?))).collect();
    }

    /// The log has answers of adds that may be gone from it.
    pub fn replay_answers(&mut self, answers: &[AnswerBytes]) {
        self.sums.extend(answers.iter().map(answer_of));
    }

    /// The answers of adds from `from` on and below `end`, `count_max` at most, for a record; and where the next are.
    pub fn page(&self, from: Offset, end: Offset, count_max: usize) -> (Vec<AnswerBytes>, Offset) {
        let page: Vec<AnswerBytes> = self
            .sums
            .range(from..end.max(from))
            .take(count_max)
            .map(|(at, sum)| answer_bytes(*at, *sum))
            .collect();
        let next = page.last().map_or(end.max(from), |last| Offset(answer_of(last).0.0 + 1));
        (page, next)
    }
}
