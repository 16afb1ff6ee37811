//! Long random histories against a model that keeps every write for ever. `SEED` replays one.

use super::*;

struct Write {
    at: u64,
    key: Vec<u8>,
    value: Option<(Vec<u8>, Expiry)>,
}

struct Watching {
    id: WatchId,
    interest: Interest,
    /// Where it should go on; told current values below it come first.
    next: Option<u64>,
    values_left: u64,
}

struct History {
    rng: SimRng,
    cache: Logged,
    writes: Vec<Write>,
    settled: u64,
    /// What the log says is whole where it ends here or later.
    whole_from: u64,
    watches: Vec<Watching>,
    met: BTreeMap<&'static str, u32>,
}

impl History {
    fn new(seed: u64) -> History {
        let mut rng = SimRng::new(seed);
        let cache = Logged::new([0, 500, 1 << 20][rng.below(3) as usize]);
        let (writes, watches, met) = (Vec::new(), Vec::new(), BTreeMap::new());
        History { rng, cache, writes, settled: 0, whole_from: 0, watches, met }
    }

    fn key(&mut self) -> Vec<u8> {
        let mut key = vec![b'k'; self.rng.below(3) as usize];
        key.push(b'a' + self.rng.below(6) as u8);
        key
    }

    fn meet(&mut self, what: &'static str) {
        *self.met.entry(what).or_default() += 1;
    }

    /// The value of a key by what is written below `end`.
    fn value(&self, key: &[u8], end: u64) -> Option<(&[u8], u64)> {
        let newest = self.writes.iter().rev().find(|write| write.key == key && write.at < end)?;
        let (value, expiry) = newest.value.as_ref()?;
        (!expiry.is_past(self.cache.now_ms)).then_some((value.as_slice(), newest.at))
    }

    fn put(&mut self) {
        let key = self.key();
        let mut value = vec![0; self.rng.below(30) as usize];
        self.rng.fill(&mut value);
        let ttl = [None, None, Some(0), Some(self.rng.below(300))][self.rng.below(4) as usize];
        let known = self.value(&key, u64::MAX).map(|(_, version)| version);
        let condition = match self.rng.below(4) {
            0 => Condition::Absent,
            1 => Condition::Version(Offset(known.unwrap_or(3))),
            _ => Condition::Always,
        };
        let met = match condition {
            Condition::Always => true,
            Condition::Absent => known.is_none(),
            Condition::Version(_) => known.is_some(),
        };
        match self.cache.put_if(&key, &value, ttl, condition) {
            Ok(at) => {
                assert!(met);
                let expiry = Expiry::after(self.cache.now_ms, ttl).unwrap();
                self.writes.push(Write { at: at.0, key, value: Some((value, expiry)) });
            }
            Err(unmet) => {
                assert!(!met);
                assert_eq!(unmet.version.map(|version| version.0), known);
                self.meet("unmet");
            }
        }
    }

    fn delete(&mut self) {
        let key = self.key();
        let known = self.value(&key, u64::MAX).map(|(value, _)| value.to_vec());
        let mut read = None;
        loop {
            let asked = self
                .cache
                .core
                .delete(&key, Condition::Always, (true, read.take()), self.cache.now_ms)
                .unwrap();
            match asked {
                Delete::Append { draft, removed } => {
                    assert_eq!(removed.as_deref(), known.as_deref());
                    let at = self.cache.claim(draft).0;
                    self.writes.push(Write { at, key, value: None });
                    return self.meet("delete");
                }
                Delete::Absent { .. } => return assert_eq!(known, None),
                Delete::Read { at, version } => {
                    let payload = self.cache.log.record(at).expect("the log holds it");
                    read = Some((version, self.cache.core.read_back(&key, at, &payload).unwrap()));
                    self.meet("read for a delete");
                }
                Delete::Unmet(_) => unreachable!("there is no condition"),
            }
        }
    }

    fn settle(&mut self) {
        let behind = self.cache.log.end.0 - self.settled;
        self.settled += self.rng.below(behind + 1);
        self.cache.core.settle(Offset(self.settled), self.cache.now_ms);
    }

    fn settle_all(&mut self) {
        self.settled = self.cache.log.end.0;
        self.cache.settle();
    }

    fn check_key(&mut self) {
        let key = self.key();
        let found = self.cache.get(&key);
        let wanted = self.value(&key, self.settled);
        assert_eq!(found.as_ref().map(|(value, version)| (value.as_ref(), version.0)), wanted);
    }

    fn compact(&mut self) {
        self.settle_all();
        let start = self.cache.log.start;
        compact(&mut self.cache, 2_000, 16);
        self.settled = self.cache.log.end.0;
        if self.cache.log.start > start {
            self.whole_from = self.settled;
            self.meet("compacted");
        }
    }

    /// What the log says at every place where it can end is what was settled there.
    fn rebuild(&mut self) {
        let all = self.rebuilt_at(self.cache.log.end);
        self.compare(all, u64::MAX);
        if self.cache.log.batches.is_empty() {
            return;
        }
        // At ends before the last compaction, what it took away is missing.
        let end = self.whole_from + self.rng.below(self.cache.log.end.0 - self.whole_from + 1);
        let part = self.rebuilt_at(Offset(end));
        self.compare(part, end);
        self.meet("rebuilt");
    }

    fn rebuilt_at(&self, end: Offset) -> Logged {
        let mut part = Logged::new(1 << 20);
        (part.log, part.now_ms) = (self.cache.log.prefix(end), self.cache.now_ms);
        part.core.log_starts(part.log.start);
        part.log.batches.iter().for_each(|batch| part.core.replay(batch).unwrap());
        part
    }

    fn compare(&self, mut rebuilt: Logged, end: u64) {
        for first in 0..3 {
            for letter in b'a'..=b'f' {
                let mut key = vec![b'k'; first];
                key.push(letter);
                let found = rebuilt.get(&key);
                let wanted = self.value(&key, end);
                assert_eq!(found.as_ref().map(|(value, version)| (value.as_ref(), version.0)), wanted);
            }
        }
    }

    fn watch(&mut self) {
        if self.watches.len() >= 6 {
            let gone = self.watches.swap_remove(self.rng.below(6) as usize);
            self.cache.core.unwatch(gone.id);
        }
        let key: Box<[u8]> = self.key().into();
        let interest = match self.rng.below(3) {
            0 => Interest::Key(key),
            1 => Interest::Prefix(key[..key.len() - 1].into()),
            _ => Interest::Prefix(Box::default()),
        };
        let from = match self.rng.below(3) {
            0 => WatchFrom::Now,
            1 => WatchFrom::Retained,
            _ => WatchFrom::Offset(Offset(self.rng.below(self.settled + 1))),
        };
        let id = self.cache.core.watch(interest.clone(), from, LIMITS).unwrap();
        self.watches.push(Watching { id, interest, next: None, values_left: 0 });
    }

    fn check_sizes(&self) {
        let watches = &self.cache.core.watches;
        assert_eq!(watches.queued_bytes(), watches.sizes().map(|(_, bytes)| bytes).sum::<usize>());
    }

    /// Takes some events of a watch and checks that each is the next that should come.
    fn follow(&mut self) {
        if self.watches.is_empty() {
            return;
        }
        let at = self.rng.below(self.watches.len() as u64) as usize;
        let id = self.watches[at].id;
        match self.cache.core.take_started(id) {
            Some(started) => {
                let started = started.unwrap();
                self.watches[at].next = Some(started.resume.0);
                self.watches[at].values_left = started.values;
                self.meet(if started.resnapshot { "resnapshot" } else { "started" });
            }
            None if self.watches[at].next.is_none() => return self.cache.core.collect(3),
            None => {}
        }
        self.check_sizes();
        for _ in 0..self.rng.below(12) {
            match self.cache.core.next_event(id) {
                Next::Event(event) => self.check_event(at, &event),
                Next::Lagged { resume_from } => {
                    self.check_lag(at, resume_from);
                    self.cache.core.unwatch(id);
                    self.watches.swap_remove(at);
                    return self.meet("lagged");
                }
                Next::Unreadable(bad) => panic!("{bad}"),
                Next::Nothing => {
                    let Some(from) = self.cache.core.wants_page(id) else { break };
                    let until = Offset(self.settled);
                    match self.cache.log.prefix(until).page(from, 2) {
                        Some((batches, end)) => self.cache.core.take_page(id, &batches, end.min(until)),
                        None => self.cache.core.no_page(id, self.cache.log.start),
                    }
                    self.meet("page");
                }
            }
        }
    }

    fn check_event(&mut self, at: usize, event: &super::super::event::KeyEvent) {
        let watch = &mut self.watches[at];
        let next = watch.next.expect("it has started");
        let write = self.writes.iter().find(|write| write.at == event.at.0).expect("it was written");
        assert_eq!(write.key, *event.key);
        assert_eq!(write.value.as_ref().map(|(value, _)| value.as_slice()), event.value.as_deref());
        assert_eq!(write.value.as_ref().map_or(Expiry::NEVER, |(_, expiry)| *expiry), event.expiry);
        if write.at < next {
            assert!(watch.values_left > 0, "current values come first, as many as were told");
            watch.values_left -= 1;
            return self.meet("value");
        }
        assert_eq!(watch.values_left, 0, "as many as were told");
        let due = self.writes.iter().find(|write| write.at >= next && watch.interest.covers(&write.key));
        assert_eq!(due.map(|write| write.at), Some(event.at.0), "no gap, no repeat");
        watch.next = Some(event.at.0 + 1);
        self.meet("change");
    }

    fn check_lag(&self, at: usize, resume_from: Offset) {
        let watch = &self.watches[at];
        assert!(resume_from < self.cache.log.start, "only what is gone from the log ends a watch");
        let next = watch.next.expect("it has started");
        let missed = self.writes.iter().filter(|write| (next..resume_from.0).contains(&write.at));
        assert_eq!(missed.filter(|write| watch.interest.covers(&write.key)).count(), 0);
    }

    fn step(&mut self) {
        match self.rng.below(100) {
            0..40 => self.put(),
            40..50 => self.delete(),
            50..62 => self.settle(),
            62..75 => self.check_key(),
            75..94 => self.follow(),
            94..96 => self.watch(),
            96 => self.compact(),
            97 => self.rebuild(),
            98 => self.cache.core.sweep(self.cache.now_ms),
            _ => {
                self.cache.now_ms += self.rng.below(100);
                self.settle_all();
            }
        }
    }
}

#[test]
fn random_histories_are_what_the_model_says_at_every_prefix_of_the_log() {
    let only = std::env::var("SEED").ok().map(|seed| seed.parse().expect("SEED is a number"));
    let mut met = BTreeMap::new();
    for seed in only.map_or(0..60, |seed: u64| seed..seed + 1) {
        println!("SEED={seed}");
        let mut history = History::new(seed);
        (0..2_000).for_each(|_| history.step());
        for (what, count) in history.met {
            *met.entry(what).or_insert(0) += count;
        }
    }
    let wanted = [
        "change",
        "compacted",
        "delete",
        "lagged",
        "page",
        "read for a delete",
        "rebuilt",
        "resnapshot",
        "started",
        "unmet",
        "value",
    ];
    if only.is_none() {
        let missing: Vec<_> = wanted.iter().filter(|what| !met.contains_key(*what)).collect();
        assert!(missing.is_empty(), "never met: {missing:?} of {met:?}");
    }
}
