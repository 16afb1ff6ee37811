//! Long random histories against a model that keeps the whole log and works everything out from it.
//! `SEED` replays one history.

use std::collections::{BTreeMap, BTreeSet};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::*;

const STEPS: usize = 10_000;

/// A log with numbered batches, and what follows from it by the words of the specification.
struct Model {
    /// The retained batches in offset order.
    log: Vec<(Numbered, u64)>,
    start: u64,
    settled: u64,
    end: u64,
}

fn end_of((batch, base): &(Numbered, u64)) -> u64 {
    base + u64::from(batch.count.get())
}

impl Model {
    fn new() -> Model {
        Model { log: Vec::new(), start: 0, settled: 0, end: 0 }
    }

    /// Batches of the producer that the shard remembers, oldest first. Walks the log.
    fn remembered(&self, producer: ProducerId) -> Vec<(Numbered, u64)> {
        let mut life: Vec<(usize, (Numbered, u64))> = Vec::new();
        for (at, entry) in self.log.iter().enumerate().filter(|(_, entry)| entry.0.producer == producer) {
            if life.last().is_some_and(|(before, _)| self.evicted_between(*before + 1, at)) {
                life.clear();
            }
            life.push((at, *entry));
        }
        if life.last().is_some_and(|(before, _)| self.evicted_between(before + 1, self.log.len())) {
            life.clear();
        }
        let oldest = life.len().saturating_sub(BATCHES_PER_PRODUCER_MAX);
        life.split_off(oldest).into_iter().map(|(_, entry)| entry).collect()
    }

    /// Whether so many others appended in this part of the log that one who did not was evicted.
    fn evicted_between(&self, from: usize, to: usize) -> bool {
        to - from >= PRODUCERS_MAX && {
            let others: BTreeSet<u64> = self.log[from..to].iter().map(|entry| entry.0.producer.0).collect();
            others.len() >= PRODUCERS_MAX
        }
    }

    fn check(&self, sent: &Numbered) -> Verdict {
        let remembered = self.remembered(sent.producer);
        let Some((last, _)) = remembered.last() else {
            return if sent.sequence.0 == 0 { Verdict::Append } else { Verdict::Unknown };
        };
        let expected = Sequence(last.sequence.0 + 1);
        match remembered.iter().find(|entry| entry.0.sequence == sent.sequence) {
            Some((first, _)) if first != sent => Verdict::Reused,
            Some(first) => duplicate(first.1, sent.count.get(), end_of(first) <= self.settled),
            None if sent.sequence == expected => Verdict::Append,
            None if sent.sequence > expected => Verdict::Gap { expected },
            None => Verdict::Expired,
        }
    }

    /// A machine that read the log from its start.
    fn rebuilt(&self) -> ProducerCore {
        let mut core = ProducerCore::new();
        self.replay_into(&mut core, self.start);
        core
    }

    fn replay_into(&self, core: &mut ProducerCore, from: u64) {
        for entry in self.log.iter().filter(|entry| end_of(entry) > from) {
            core.replay(&entry.0, Offset(entry.1));
        }
    }

    fn forget_below(&mut self, start: u64) {
        self.start = start;
        self.log.retain(|entry| end_of(entry) > start);
    }

    fn cut(&mut self, end: u64) {
        self.end = end;
        self.log.retain(|entry| end_of(entry) <= end);
    }
}

/// What the histories of a test met, so that it does not pass for having tried nothing.
type Met = BTreeMap<&'static str, u32>;

struct History {
    model: Model,
    core: ProducerCore,
    /// Encodings that are still good for the log, each with its offset.
    snapshots: Vec<(Vec<u8>, u64)>,
    rng: StdRng,
    producers: u64,
    met: Met,
}

impl History {
    /// A history of `producers` producers, of which each sends a batch first when `crowded`.
    fn new(seed: u64, producers: u64, crowded: bool) -> History {
        let rng = StdRng::seed_from_u64(seed);
        let (model, core) = (Model::new(), ProducerCore::new());
        let mut history = History { model, core, snapshots: Vec::new(), rng, producers, met: Met::new() };
        for producer in 0..if crowded { producers } else { 0 } {
            history.offer(sent(producer, 0, 1));
        }
        history
    }

    fn meet(&mut self, what: &'static str) {
        *self.met.entry(what).or_default() += 1;
    }

    fn one_of_the_log(&mut self) -> Option<(Numbered, u64)> {
        let len = self.model.log.len();
        // Half of the time a recent one.
        let newest = if self.rng.random() { len } else { len.min(100) };
        (len > 0).then(|| self.model.log[len - 1 - self.rng.random_range(0..newest)])
    }

    /// Sends a batch; it is appended when both say so.
    fn offer(&mut self, batch: Numbered) {
        let verdict = self.core.check(&batch, Offset(self.model.settled));
        assert_eq!(verdict, self.model.check(&batch), "{batch:?}");
        self.meet(match verdict {
            Verdict::Append => "append",
            Verdict::Duplicate { settled: true, .. } => "duplicate",
            Verdict::Duplicate { settled: false, .. } => "duplicate in flight",
            Verdict::Gap { .. } => "gap",
            Verdict::Expired => "expired",
            Verdict::Reused => "reused",
            Verdict::Unknown => "unknown",
        });
        if verdict == Verdict::Append {
            let base = self.model.end + self.rng.random_range(0..3);
            self.core.claimed(&batch, Offset(base));
            self.model.log.push((batch, base));
            self.model.end = base + u64::from(batch.count.get());
        }
    }

    fn step(&mut self) {
        let producer = self.rng.random_range(0..self.producers);
        let count = self.rng.random_range(1..5);
        match self.rng.random_range(0..100) {
            0..45 => {
                let last =
                    self.model.remembered(ProducerId(producer)).last().map(|(last, _)| last.sequence.0);
                self.offer(sent(producer, last.map_or(0, |last| last + 1), count));
            }
            45..65 => {
                if let Some((batch, _)) = self.one_of_the_log() {
                    self.offer(batch);
                }
            }
            65..70 => {
                if let Some((batch, _)) = self.one_of_the_log() {
                    self.offer(other(batch));
                }
            }
            70..78 => {
                let sequence = self.rng.random_range(0..200);
                self.offer(sent(producer, sequence, count));
            }
            78..88 => self.model.settled = self.rng.random_range(self.model.settled..=self.model.end),
            88..91 => self.retain(),
            91..93 => self.cut(),
            93..95 => assert_eq!(self.core, self.model.rebuilt()),
            95..97 => self.save(),
            _ => self.load(),
        }
    }

    fn retain(&mut self) {
        let reach = (self.model.settled - self.model.start).min(60);
        let start = self.model.start + self.rng.random_range(0..=reach);
        self.model.forget_below(start);
        self.core.forget_below(Offset(start));
        self.meet("retention");
    }

    fn cut(&mut self) {
        let reach = (self.model.end - self.model.settled).min(60);
        let end = self.model.end - self.rng.random_range(0..=reach);
        self.model.cut(end);
        self.snapshots.retain(|(_, at)| *at <= end);
        match self.core.cut(Offset(end)) {
            Cut::Exact => self.meet("exact cut"),
            Cut::Rebuild => {
                self.core = self.model.rebuilt();
                self.meet("cut with rebuild");
            }
        }
        assert_eq!(self.core, self.model.rebuilt());
    }

    fn save(&mut self) {
        let mut bytes = Vec::new();
        self.core.encode(Offset(self.model.end), &mut bytes);
        let (back, at) = ProducerCore::decode(&bytes).unwrap();
        assert_eq!((&back, at), (&self.core, Offset(self.model.end)));
        if self.snapshots.len() == 8 {
            self.snapshots.remove(0);
        }
        self.snapshots.push((bytes, at.0));
    }

    /// A snapshot and the log behind it give what the log alone does, wherever at or below it the replay begins, and
    /// whether retention comes first or last.
    fn load(&mut self) {
        if self.snapshots.is_empty() {
            return;
        }
        let (bytes, saved_at) = &self.snapshots[self.rng.random_range(0..self.snapshots.len())];
        let (mut core, at) = ProducerCore::decode(bytes).unwrap();
        assert_eq!(at.0, *saved_at);
        let from = if self.rng.random() { at.0 } else { self.rng.random_range(0..=at.0) };
        let start = Offset(self.model.start);
        if self.rng.random() {
            core.forget_below(start);
            self.model.replay_into(&mut core, from);
        } else {
            self.model.replay_into(&mut core, from);
            core.forget_below(start);
        }
        assert_eq!(core, self.core, "from {from} with the snapshot of {at}");
        assert_eq!(core, self.model.rebuilt());
        // Goes on with it, as after a restart.
        self.core = core;
        self.meet("restart with a snapshot");
    }
}

/// Runs a history per seed; together they must meet all of `what`, unless one is replayed.
fn run(producers: u64, crowded: bool, seeds: std::ops::Range<u64>, what: &[&'static str]) {
    let only: Option<u64> = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok());
    let mut met = Met::new();
    for seed in only.map_or(seeds, |seed| seed..seed + 1) {
        println!("SEED={seed}");
        let mut history = History::new(seed, producers, crowded);
        for _ in 0..STEPS {
            history.step();
        }
        assert_eq!(history.core, history.model.rebuilt());
        history.met.into_iter().for_each(|(what, times)| *met.entry(what).or_default() += times);
    }
    println!("{met:?}");
    let missed: Vec<_> = what.iter().filter(|what| !met.contains_key(**what)).collect();
    assert!(only.is_some() || missed.is_empty(), "{missed:?} never happened: {met:?}");
}

const EVERYTHING: &[&str] = &[
    "append",
    "duplicate",
    "duplicate in flight",
    "gap",
    "expired",
    "reused",
    "unknown",
    "retention",
    "exact cut",
    "cut with rebuild",
    "restart with a snapshot",
];

#[test]
fn a_few_producers_with_long_lives_are_remembered_as_the_log_says() {
    run(3, false, 0..6, EVERYTHING);
}

#[test]
fn many_producers_are_remembered_as_the_log_says() {
    run(120, false, 0..6, EVERYTHING);
}

#[test]
fn more_producers_than_fit_are_remembered_as_the_log_says() {
    run(PRODUCERS_MAX as u64 + 40, true, 0..2, EVERYTHING);
}
