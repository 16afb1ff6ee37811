//! Long random histories of one group against a model that keeps a state for every record. `SEED` replays one.

use std::collections::{BTreeMap, BTreeSet};

use super::*;

const RECORDS: u64 = 400;
const SETTINGS: GroupSettings = GroupSettings {
    visibility: Duration::from_secs(30),
    visibility_max: Duration::from_secs(100),
    attempts_max: 3,
    in_flight_max: 40,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Is {
    New,
    Ready,
    Claimed(Tick),
    Delayed(Tick),
    Done,
    Dead,
}

#[derive(Debug, Clone, Copy)]
struct Record {
    is: Is,
    attempts: u32,
    /// What the log says of its attempts.
    recorded: u32,
}

const NEW: Record = Record { is: Is::New, attempts: 0, recorded: 0 };

struct History {
    rng: SimRng,
    shard: Shard,
    records: Vec<Record>,
    tail: u64,
    start: u64,
    position: u64,
    /// What was durable when the log of groups ended there.
    past: Vec<(Offset, Option<Durable>)>,
    met: BTreeMap<&'static str, u32>,
}

impl History {
    fn new(seed: u64) -> History {
        let mut shard = Shard::new(0, SETTINGS);
        shard.core.seek("g", (Seek::Earliest, false), Tick::ZERO, &mut shard.out).unwrap();
        shard.append();
        let records = vec![NEW; RECORDS as usize];
        let rng = SimRng::new(seed);
        History {
            rng,
            shard,
            records,
            tail: 0,
            start: 0,
            position: 0,
            past: Vec::new(),
            met: BTreeMap::new(),
        }
    }

    fn meet(&mut self, what: &'static str) {
        *self.met.entry(what).or_default() += 1;
    }

    fn at(&mut self, at: u64) -> &mut Record {
        &mut self.records[at as usize]
    }

    /// The claims and delays whose time has come end.
    fn lapse(&mut self) {
        let now = self.shard.now;
        for record in &mut self.records {
            match record.is {
                Is::Claimed(until) if until <= now => {
                    record.fail(Is::Ready);
                    *self.met.entry("lapsed").or_default() += 1;
                }
                Is::Delayed(until) if until <= now => record.is = Is::Ready,
                _ => {}
            }
        }
    }

    fn count(&self, is: impl Fn(Is) -> bool) -> usize {
        self.records[..self.tail as usize].iter().filter(|record| is(record.is)).count()
    }

    fn poll(&mut self) {
        let max = 1 + self.rng.below(30) as u32;
        let visibility = self.rng.duration(Duration::from_secs(130));
        let holds =
            if visibility.is_zero() { SETTINGS.visibility } else { visibility.min(SETTINGS.visibility_max) };
        let poll = Poll { visibility, ..self.shard.ask(max) };
        let in_flight = self.count(|is| matches!(is, Is::Claimed(_)));
        let unfinished = in_flight + self.count(|is| matches!(is, Is::Ready | Is::Delayed(_)));
        let room = (SETTINGS.in_flight_max - in_flight).min(max as usize);
        let (records, all) = (&self.records, self.start..self.tail);
        let of = |wanted: Is| all.clone().filter(move |at| records[*at as usize].is == wanted);
        let mut wanted: Vec<u64> = of(Is::Ready).take(room).collect();
        let fresh = (SETTINGS.in_flight_max.saturating_sub(unfinished)).min(room - wanted.len());
        wanted.extend(of(Is::New).take(fresh));
        let found = self.shard.poll_with(poll).expect("it does not wait");
        let other = offsets(&found).into_iter().find(|at| !wanted.contains(at));
        assert_eq!(offsets(&found), wanted, "{other:?} is {:?}", other.map(|at| self.records[at as usize]));
        let until = self.shard.now + holds;
        for (at, attempts) in found {
            let record = self.at(at);
            record.attempts += 1;
            record.is = Is::Claimed(until);
            assert_eq!(attempts, record.attempts);
            assert!(attempts <= SETTINGS.attempts_max);
        }
    }

    fn some_record(&mut self) -> u64 {
        // Mostly one that is held.
        let held: Vec<u64> =
            (0..self.tail).filter(|at| matches!(self.records[*at as usize].is, Is::Claimed(_))).collect();
        match held.len() as u64 {
            len if len > 0 && self.rng.below(8) > 0 => held[self.rng.below(len) as usize],
            _ => self.rng.below(self.tail + 2),
        }
    }

    /// One record, or several.
    fn ack(&mut self) {
        let (from, count) = (self.some_record(), [1, 1, 1, 2, 5][self.rng.below(5) as usize]);
        let end = from + u64::from(count);
        let acked = self.shard.ack_run(from, count);
        let can = |at: u64| {
            at < self.tail && matches!(self.records[at as usize].is, Is::Claimed(_) | Is::Done | Is::Dead)
        };
        if from >= self.tail {
            return assert_eq!(acked, Err(GroupRefused::NeverHandedOut));
        }
        assert_eq!(acked.is_ok(), (from..end).all(can), "{from} {count}");
        if acked.is_ok() {
            let claimed = |at: &u64| matches!(self.records[*at as usize].is, Is::Claimed(_));
            let finished: Vec<u64> = (from..end).filter(claimed).collect();
            self.meet(["ack", "ack of many"][usize::from(finished.len() > 1)]);
            finished.into_iter().for_each(|at| self.at(at).finish());
        }
    }

    fn nack(&mut self) {
        let at = self.some_record();
        let delay = Duration::from_secs([0, 0, 10, 1_000][self.rng.below(4) as usize]);
        let known = if at < self.tail { *self.at(at) } else { NEW };
        let attempts = [0, known.attempts, known.attempts + 1][self.rng.below(3) as usize];
        let nacked = self.shard.nack(at, attempts, delay);
        let right = attempts == 0 || attempts == known.attempts;
        assert_eq!(nacked.is_ok(), matches!(known.is, Is::Claimed(_)) && right, "{at} {known:?} {nacked:?}");
        if nacked.is_ok() {
            let until = self.shard.now + delay.min(SETTINGS.visibility_max);
            self.at(at).fail(if delay.is_zero() { Is::Ready } else { Is::Delayed(until) });
            self.meet("nack");
        }
    }

    fn dead(&mut self) {
        let listed: Vec<u64> =
            (0..self.tail).filter(|at| self.records[*at as usize].is == Is::Dead).collect();
        assert_eq!(self.shard.dead(), listed);
        let Some(at) = listed.get(self.rng.below(listed.len() as u64 + 1) as usize).copied() else { return };
        let (now, out) = (self.shard.now, &mut self.shard.out);
        if self.rng.below(2) == 0 {
            self.shard.core.discard("g", Offset(at), now, out).unwrap();
            self.at(at).is = Is::Done;
            self.meet("discarded");
        } else {
            self.shard.core.redrive("g", Offset(at), now, out).unwrap();
            *self.at(at) = Record { is: Is::Ready, ..NEW };
            self.meet("redriven");
        }
        self.shard.append();
    }

    fn seek(&mut self) {
        let to = self.start + self.rng.below(self.tail - self.start + 1);
        self.shard
            .core
            .seek("g", (Seek::Offset(Offset(to)), false), self.shard.now, &mut self.shard.out)
            .unwrap();
        self.shard.append();
        for (at, record) in self.records.iter_mut().enumerate().filter(|(_, record)| record.is != Is::Dead) {
            *record = if (at as u64) < to { Record { is: Is::Done, ..NEW } } else { NEW };
        }
        self.position = to;
        self.meet("seek");
    }

    fn retain(&mut self) {
        self.start += self.rng.below((self.tail - self.start).min(20) + 1);
        self.shard.core.shard_starts(Offset(self.start), self.shard.now, &mut self.shard.out);
        self.shard.append();
        self.records[..self.start as usize].fill(Record { is: Is::Done, ..NEW });
        self.position = self.position.max(self.start);
    }

    fn restart(&mut self) {
        let redriven: BTreeSet<u64> =
            self.shard.core.durable("g").map(|durable| durable.redriven().clone()).unwrap_or_default();
        self.shard = self.shard.restarted();
        for at in 0..self.tail {
            let record = self.at(at);
            if !matches!(record.is, Is::Done | Is::Dead) {
                record.is = if redriven.contains(&at) { Is::Ready } else { Is::New };
                record.attempts = record.recorded;
            }
        }
        self.meet("restarted");
    }

    fn rest(&mut self) {
        self.pass(1_000);
        let out = self.count(|is| matches!(is, Is::Claimed(_) | Is::Delayed(_)));
        assert_eq!(out, 0, "everything lapses");
        self.shard.now += 700 * SECOND;
        self.shard.core.rest(self.shard.now);
        self.shard.core.rest(self.shard.now);
        let position = self.position;
        for (at, record) in self.records.iter_mut().enumerate().filter(|(_, record)| record.is == Is::Ready) {
            record.is = if (at as u64) < position { Is::Ready } else { Is::New };
        }
    }

    fn pass(&mut self, seconds: u64) {
        let by = Duration::from_millis(self.rng.below(seconds * 1_000));
        let by = if seconds == 1_000 { 200 * SECOND } else { by };
        self.shard.pass(by);
        self.lapse();
    }

    fn check(&mut self) {
        while self.position < self.tail && matches!(self.at(self.position).is, Is::Done | Is::Dead) {
            self.position += 1;
        }
        let info = GroupInfo {
            committed: Some(Offset(self.position)),
            tail: Offset(self.tail),
            in_flight: self.count(|is| matches!(is, Is::Claimed(_))) as u64,
            owed: self.count(|is| matches!(is, Is::Ready | Is::Delayed(_))) as u64,
            dead_letters: self.count(|is| is == Is::Dead) as u64,
        };
        assert_eq!(self.shard.info(), info);
        self.past.push((self.shard.log.end, self.shard.core.durable("g").cloned()));
    }

    fn rebuild(&mut self) {
        let (end, durable) = self.past[self.rng.below(self.past.len() as u64) as usize].clone();
        if end <= self.shard.log.start {
            return;
        }
        let mut core = GroupsCore::new(SETTINGS, Offset(0), Offset(0));
        self.shard.log.prefix(end).batches.iter().for_each(|batch| core.replay(batch).unwrap());
        core.replayed();
        assert_eq!(core.durable("g").cloned(), durable);
        self.meet("rebuilt");
    }

    fn compact(&mut self) {
        let start = self.shard.log.start;
        let before = self.shard.core.durable("g").cloned();
        compact(&mut self.shard, 32);
        assert_eq!(self.shard.restarted().core.durable("g").cloned(), before);
        if self.shard.log.start > start {
            // What was written before is not whole any more.
            self.past.clear();
            self.meet("compacted");
        }
    }

    fn step(&mut self) {
        match self.rng.below(100) {
            0..25 => self.poll(),
            25..50 => self.ack(),
            50..65 => self.nack(),
            65..75 => {
                self.tail = (self.tail + self.rng.below(20)).min(RECORDS);
                self.shard.core.shard_ends(Offset(self.tail), self.shard.now, &mut self.shard.out);
            }
            75..83 => self.pass(40),
            83..91 => self.dead(),
            91 => self.seek(),
            92 => self.retain(),
            93 => self.restart(),
            94 => self.rest(),
            95 => self.compact(),
            _ if !self.past.is_empty() => self.rebuild(),
            _ => {}
        }
        self.check();
    }
}

impl Record {
    fn finish(&mut self) {
        *self = Record { is: Is::Done, ..NEW };
    }

    fn fail(&mut self, then: Is) {
        if self.attempts >= SETTINGS.attempts_max {
            *self = Record { is: Is::Dead, ..NEW };
        } else {
            self.recorded = self.attempts;
            self.is = then;
        }
    }
}

#[test]
fn random_histories_hand_out_what_the_model_says_and_their_log_says_it_again() {
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
    let wanted = [
        "ack",
        "ack of many",
        "compacted",
        "discarded",
        "lapsed",
        "nack",
        "rebuilt",
        "redriven",
        "restarted",
        "seek",
    ];
    if only.is_none() {
        let missing: Vec<_> = wanted.iter().filter(|what| !met.contains_key(*what)).collect();
        assert!(missing.is_empty(), "never met: {missing:?} of {met:?}");
    }
}
