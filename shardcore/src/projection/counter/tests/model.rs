//! Long random histories against a model that keeps every sum that a counter ever had. `SEED` replays one.

use std::collections::BTreeSet;

use super::*;
use crate::projection::producer::BATCHES_PER_PRODUCER_MAX;

/// An add as it was sent and answered.
#[derive(Clone)]
struct Sent {
    sequence: u64,
    key: Vec<u8>,
    delta: i64,
    sum: i64,
}

struct History {
    rng: SimRng,
    counters: Logged,
    /// Key, offset and sum of every add, in order.
    sums: Vec<(Vec<u8>, u64, i64)>,
    /// Of each producer, oldest first.
    sent: BTreeMap<u64, Vec<Sent>>,
    met: BTreeMap<&'static str, u32>,
}

impl History {
    fn new(seed: u64) -> History {
        let (rng, counters) = (SimRng::new(seed), Logged::new());
        History { rng, counters, sums: Vec::new(), sent: BTreeMap::new(), met: BTreeMap::new() }
    }

    fn meet(&mut self, what: &'static str) {
        *self.met.entry(what).or_default() += 1;
    }

    /// The sum of a counter by what is below `end`.
    fn sum(&self, key: &[u8], end: u64) -> Option<i64> {
        self.sums.iter().rev().find(|(known, at, _)| known == key && *at < end).map(|(_, _, sum)| *sum)
    }

    fn key(&mut self) -> Vec<u8> {
        vec![b'a' + self.rng.below(8) as u8; 1 + self.rng.below(2) as usize]
    }

    fn delta(&mut self) -> i64 {
        match self.rng.below(6) {
            0 => i64::MAX - self.rng.below(3) as i64,
            1 => i64::MIN + self.rng.below(3) as i64,
            _ => self.rng.below(200) as i64 - 100,
        }
    }

    fn add(&mut self) {
        let (key, delta) = (self.key(), self.delta());
        let before = self.sum(&key, u64::MAX).unwrap_or(0);
        match self.counters.core.add(&key, delta) {
            Ok(draft) => {
                assert_eq!(Some(draft.sum()), before.checked_add(delta));
                let sum = draft.sum();
                self.sums.push((key, self.counters.claim(draft).0, sum));
            }
            Err(refused) => {
                assert!(matches!(refused, AddRefused::Overflow { .. }), "{refused}");
                assert_eq!(before.checked_add(delta), None);
                self.meet("overflow");
            }
        }
    }

    fn add_numbered(&mut self) {
        let producer = 1 + self.rng.below(3);
        let sent = self.sent.entry(producer).or_default();
        let back = self.rng.below(BATCHES_PER_PRODUCER_MAX as u64) as usize;
        let earlier = sent.iter().rev().nth(back.min(sent.len().saturating_sub(1))).cloned();
        let last = sent.last().cloned();
        if let Some(Sent { sequence, key, delta, sum }) = earlier.filter(|_| self.rng.below(2) == 0) {
            self.counters.settle();
            assert_eq!(self.counters.add_numbered((producer, sequence), &key, delta), Ok((sum, false)));
            return self.meet("again");
        }
        let sequence = last.map_or(0, |last| last.sequence + 1);
        let (key, delta) = (self.key(), self.delta());
        let number = (ProducerId(producer), Sequence(sequence));
        if let Ok(NumberedAdd::Append(draft)) = self.counters.core.add_numbered(number, &key, delta) {
            let sum = draft.sum();
            let sent = Sent { sequence, key: key.clone(), delta, sum };
            self.sent.entry(producer).or_default().push(sent);
            self.sums.push((key, self.counters.claim(draft).0, sum));
        }
    }

    fn settle_and_get(&mut self) {
        let settled = self.counters.core.settled_end().0;
        let end = settled + self.rng.below(self.counters.log.end.0 - settled + 1);
        self.counters.core.settle(Offset(end));
        let key = self.key();
        assert_eq!(self.counters.core.get(&key), self.sum(&key, end));
    }

    fn compact(&mut self) {
        self.counters.settle();
        let start = self.counters.log.start;
        self.counters.compact(16);
        self.counters.settle();
        if self.counters.log.start > start {
            self.meet("compacted");
        }
    }

    fn rebuild(&mut self) {
        let rebuilt = self.counters.rebuilt();
        assert_eq!(rebuilt.core.producers, self.counters.core.producers);
        assert_eq!(rebuilt.core.answers, self.counters.core.answers);
        for (key, _, _) in &self.sums {
            assert_eq!(rebuilt.core.get(key), self.sum(key, u64::MAX));
        }
        self.meet("rebuilt");
    }

    /// What the log says where it ends somewhere else. Counters whose checkpoint that cuts off are not in it.
    fn rebuild_part(&mut self) {
        let start = self.counters.log.start.0;
        let end = start + self.rng.below(self.counters.log.end.0 - start + 1);
        let log = self.counters.log.prefix(Offset(end));
        let part = Logged { core: CounterCore::new(Keeping::Logged, Offset(0)), log }.rebuilt().sums();
        for (key, sum) in &part {
            assert_eq!(Some(*sum), self.sum(key, end));
        }
        if start == 0 {
            let written = self.sums.iter().filter(|(_, at, _)| *at < end).map(|(key, _, _)| key);
            assert!(written.collect::<BTreeSet<_>>().into_iter().eq(part.keys()));
        }
    }

    fn step(&mut self) {
        match self.rng.below(20) {
            0..10 => self.add(),
            10..14 => self.add_numbered(),
            14..17 => self.settle_and_get(),
            17 => self.compact(),
            18 => self.rebuild(),
            _ => self.rebuild_part(),
        }
    }
}

#[test]
fn random_histories_have_the_sums_of_the_model_at_every_prefix_of_the_log() {
    let only = std::env::var("SEED").ok().map(|seed| seed.parse().expect("SEED is a number"));
    let mut met = BTreeMap::new();
    for seed in only.map_or(0..60, |seed: u64| seed..seed + 1) {
        println!("SEED={seed}");
        let mut history = History::new(seed);
        (0..1_500).for_each(|_| history.step());
        for (what, count) in history.met {
            *met.entry(what).or_insert(0) += count;
        }
    }
    if only.is_none() {
        for what in ["overflow", "again", "compacted", "rebuilt"] {
            assert!(met.contains_key(what), "never met: {what} of {met:?}");
        }
    }
}
