//! What the log says of one group. Scope: one per group; a pure function of its changes.
//! Invariants: every record below the position is finished, apart from those that were redriven; `done` and `dead` share
//! no offset; attempts are of unfinished records only. The position falls only by `Position`.
//! Not here: who holds what (`claims`).

use std::collections::{BTreeMap, BTreeSet};

use super::ranges::Ranges;
use super::record::Change;

/// See the module.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Durable {
    /// None before the first change.
    position: Option<u64>,
    /// Finished, above the position.
    done: Ranges,
    /// Finished and listed.
    dead: Ranges,
    attempts: BTreeMap<u64, u32>,
    /// Not finished, below the position.
    redriven: BTreeSet<u64>,
}

impl Durable {
    /// Everything below is finished; none before the first change.
    pub fn position(&self) -> Option<u64> {
        self.position
    }

    /// The dead letters.
    pub fn dead(&self) -> &Ranges {
        &self.dead
    }

    /// Records below the position that are to be handed out again.
    pub fn redriven(&self) -> &BTreeSet<u64> {
        &self.redriven
    }

    /// How often a record was handed out in vain, as far as the log says.
    pub fn attempts(&self, at: u64) -> u32 {
        self.attempts.get(&at).copied().unwrap_or(0)
    }

    /// One past the last of the finished records that follow `at` without a gap, or of some of them; none when `at` itself is
    /// not finished.
    pub fn finished_until(&self, at: u64) -> Option<u64> {
        match self.position {
            Some(position) if at < position => {
                let redriven = self.redriven.range(at..position).next().copied();
                redriven.or(Some(position)).filter(|end| at < *end)
            }
            _ => self.done.end_of(at).or_else(|| self.dead.end_of(at)),
        }
    }

    /// Whether a record is finished.
    pub fn is_finished(&self, at: u64) -> bool {
        self.finished_until(at).is_some()
    }

    /// One past the last record, `end` at most, that is unfinished and was handed out in vain as often as `at`, which is
    /// unfinished and at or above the position.
    pub fn alike_until(&self, at: u64, end: u64) -> u64 {
        if self.attempts.contains_key(&at) {
            return end.min(at + 1);
        }
        let next = |ranges: &Ranges| ranges.within(at, end).next().map_or(end, |(start, _)| start);
        let counted = self.attempts.range(at..end.max(at)).next().map_or(end, |(at, _)| *at);
        counted.min(next(&self.done)).min(next(&self.dead))
    }

    /// The first unfinished record at or above `at`, which is at or above the position.
    pub fn unfinished_from(&self, mut at: u64) -> u64 {
        while let Some(end) = self.done.end_of(at).or_else(|| self.dead.end_of(at)) {
            at = end;
        }
        at
    }

    /// Bytes that [`Self::snapshot`] takes in the log, about.
    pub fn changes(&self) -> usize {
        2 + self.done.ranges() + self.dead.ranges() + self.attempts.len() + self.redriven.len()
    }

    /// Applies a change.
    pub fn apply(&mut self, change: Change) {
        match change {
            Change::Forget => *self = Durable::default(),
            Change::Position { at } => {
                let dead = std::mem::take(&mut self.dead);
                *self = Durable { position: Some(at), dead, ..Durable::default() };
            }
            Change::Done { base, count } => {
                let end = base.saturating_add(count);
                self.finish(base, end);
                let above = base.max(self.position.unwrap_or(0));
                self.dead.remove(base, end);
                self.done.insert(above, end);
            }
            Change::Attempts { at, attempts } => {
                if !self.is_finished(at) {
                    self.attempts.insert(at, attempts);
                }
            }
            Change::Dead { base, count } => {
                let end = base.saturating_add(count);
                self.finish(base, end);
                self.done.remove(base, end);
                self.dead.insert(base, end);
            }
            Change::Discard { base, count } => self.discard(base, base.saturating_add(count)),
            Change::Redrive { at } => {
                self.dead.remove(at, at.saturating_add(1));
                self.attempts.remove(&at);
                if self.position.is_some_and(|position| at < position) {
                    self.redriven.insert(at);
                }
            }
            Change::Start { at } => {
                self.finish(0, at);
                self.dead.remove(0, at);
                self.done.remove(0, at);
                self.position = self.position.map(|position| position.max(at));
            }
        }
        self.advance();
    }

    /// Dead letters that leave the list stay finished.
    fn discard(&mut self, base: u64, end: u64) {
        let above = base.max(self.position.unwrap_or(0));
        let listed: Vec<(u64, u64)> = self.dead.within(above, end).collect();
        self.dead.remove(base, end);
        listed.into_iter().for_each(|(start, stop)| self.done.insert(start, stop));
    }

    fn finish(&mut self, base: u64, end: u64) {
        while let Some((at, _)) = self.attempts.range(base..end.max(base)).next() {
            let at = *at;
            self.attempts.remove(&at);
        }
        while let Some(at) = self.redriven.range(base..end.max(base)).next() {
            let at = *at;
            self.redriven.remove(&at);
        }
    }

    fn advance(&mut self) {
        if let Some(position) = self.position {
            let position = self.unfinished_from(position);
            self.done.remove(0, position);
            self.position = Some(position);
        }
    }

    /// Changes that make it what it is.
    pub fn snapshot(&self) -> Vec<Change> {
        let mut changes = vec![Change::Forget];
        changes.extend(self.position.map(|at| Change::Position { at }));
        let done = self.done.iter().map(|(base, end)| Change::Done { base, count: end - base });
        let dead = self.dead.iter().map(|(base, end)| Change::Dead { base, count: end - base });
        changes.extend(done.chain(dead));
        changes.extend(self.redriven.iter().map(|at| Change::Redrive { at: *at }));
        changes.extend(
            self.attempts.iter().map(|(at, attempts)| Change::Attempts { at: *at, attempts: *attempts }),
        );
        changes
    }
}
