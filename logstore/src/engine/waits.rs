//! Operations that the disk does not answer. Scope: one per engine.
//! Owns: when each operation was handed out, and what was told of those that take too long.
//! Invariants: of each kind of operation it is told once when the oldest has waited for 5 s, and again every 30 s while it
//! waits, however many there are; time is an argument.
//! Not here: what waits for them (`commit`, `spill`), answering whoever publishes (`shardcore`).

use std::collections::BTreeMap;
use std::ops::Bound;
use std::time::Duration;

use felix_runtime::clock::Tick;
use felix_runtime::file::{Op, Token};

use super::{Engine, Event};

/// A disk that answers at all answers sooner.
pub const UNANSWERED_AFTER: Duration = Duration::from_secs(5);
/// From one word about the same kind to the next.
const TOLD_EVERY: Duration = Duration::from_secs(30);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Waits {
    /// In the order of asking: tokens rise with time.
    asked: BTreeMap<Token, (Tick, &'static str)>,
    /// The last that was counted as taking too long.
    counted: Option<Token>,
    /// When the next word is due, by kind.
    told: BTreeMap<&'static str, Tick>,
}

/// Operations of one kind that take too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Overdue {
    pub kind: &'static str,
    pub count: usize,
    pub oldest: Duration,
}

impl Waits {
    /// An operation is handed out.
    pub fn asked(&mut self, now: Tick, token: Token, op: &Op) {
        self.asked.insert(token, (now, op.what()));
    }

    /// It was answered.
    pub fn answered(&mut self, token: Token) {
        self.asked.remove(&token);
    }

    /// Operations that have waited too long.
    fn overdue(&self, now: Tick) -> impl Iterator<Item = (Token, Tick, &'static str)> {
        let all = self.asked.iter().map(|(token, (since, kind))| (*token, *since, *kind));
        all.take_while(move |(_, since, _)| *since + UNANSWERED_AFTER <= now)
    }

    /// How many there are.
    pub fn count(&self, now: Tick) -> usize {
        self.overdue(now).count()
    }

    /// When there may be something to tell.
    pub fn next_timeout(&self) -> Option<Tick> {
        let from = self.counted.map_or(Bound::Unbounded, Bound::Excluded);
        let next = self.asked.range((from, Bound::Unbounded)).next();
        let due = next.map(|(_, (since, _))| *since + UNANSWERED_AFTER);
        due.into_iter().chain(self.told.values().copied()).min()
    }

    /// What is to be told now, and how many take too long that did not before.
    pub fn look(&mut self, now: Tick) -> (Vec<Overdue>, u64) {
        if self.next_timeout().is_none_or(|due| due > now) {
            return (Vec::new(), 0);
        }
        let (mut kinds, mut more) = (BTreeMap::<&'static str, Overdue>::new(), 0);
        let mut last = self.counted;
        for (token, since, kind) in self.overdue(now) {
            let first = Overdue { kind, count: 0, oldest: now.saturating_since(since) };
            kinds.entry(kind).or_insert(first).count += 1;
            if self.counted.is_none_or(|counted| token > counted) {
                more += 1;
                last = Some(token);
            }
        }
        self.counted = last;
        self.told.retain(|kind, _| kinds.contains_key(kind));
        let due: Vec<Overdue> = kinds
            .into_values()
            .filter(|overdue| self.told.get(overdue.kind).is_none_or(|at| *at <= now))
            .collect();
        self.told.extend(due.iter().map(|overdue| (overdue.kind, now + TOLD_EVERY)));
        (due, more)
    }
}

impl Engine {
    /// Tells what the disk does not answer.
    pub(super) fn tend_waits(&mut self, now: Tick) {
        let (due, more) = self.waits.look(now);
        self.counts.unanswered += more;
        for Overdue { kind, count, oldest } in due {
            self.events.push_back(Event::Unanswered { kind, count, oldest });
        }
    }
}
