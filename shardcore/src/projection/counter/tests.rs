use std::collections::BTreeMap;

use felix_runtime::sim::SimRng;

use super::record::{answer_bytes, answer_of};
use super::*;
use crate::projection::cache::compact::LogShape;
use crate::projection::producer::ProducerIds;
use crate::projection::test_log::TestLog;

mod model;

/// Length up to which a log is left alone.
const LEFT_ALONE: u64 = 4_000;

struct Logged {
    core: CounterCore,
    log: TestLog,
}

impl Logged {
    fn new() -> Logged {
        Logged { core: CounterCore::new(Keeping::Logged, Offset(0)), log: TestLog::default() }
    }

    fn claim(&mut self, draft: Draft) -> Offset {
        let mut payload = Vec::new();
        draft.encode(&mut payload);
        let at = self.log.append_as(BatchKind::Data, &[payload], 5, draft.producer());
        self.core.claimed(draft, at);
        at
    }

    fn settle(&mut self) {
        self.core.settle(self.log.end);
    }

    fn add(&mut self, key: &[u8], delta: i64) -> Result<i64, AddRefused> {
        let draft = self.core.add(key, delta)?;
        let sum = draft.sum();
        self.claim(draft);
        self.settle();
        Ok(sum)
    }

    /// The answer, and whether it was counted.
    fn add_numbered(
        &mut self,
        number: (u64, u64),
        key: &[u8],
        delta: i64,
    ) -> Result<(i64, bool), AddRefused> {
        let number = (ProducerId(number.0), Sequence(number.1));
        match self.core.add_numbered(number, key, delta)? {
            NumberedAdd::Append(draft) => {
                let sum = draft.sum();
                self.claim(draft);
                self.settle();
                Ok((sum, true))
            }
            NumberedAdd::Again { sum, .. } => Ok((sum.expect("its answer is known"), false)),
        }
    }

    fn rebuilt(&self) -> Logged {
        let mut rebuilt =
            Logged { core: CounterCore::new(Keeping::Logged, Offset(0)), log: self.log.clone() };
        self.log.batches.iter().for_each(|batch| rebuilt.core.replay(batch).unwrap());
        rebuilt
    }

    fn sums(&self) -> BTreeMap<Vec<u8>, i64> {
        let all = (0..self.core.table.slots()).filter_map(|number| self.core.table.at(number));
        all.filter_map(|(key, sum)| sum.settled.map(|sum| (key.to_vec(), sum))).collect()
    }

    fn compact(&mut self, segment: u64) {
        for step in 0..10_000 {
            let sealed = Offset(self.log.end.0 / segment * segment);
            let shape = LogShape {
                start: self.log.start,
                sealed_end: (sealed > self.log.start).then_some(sealed),
                bytes: self.log.bytes(),
                durable_end: self.core.settled_end(),
            };
            match self.core.checkpoint(shape, LEFT_ALONE) {
                CounterStep::Idle => return,
                CounterStep::Again => {}
                CounterStep::WaitDurable(_) => self.settle(),
                CounterStep::Append(_) if step % 5 == 4 => self.core.checkpoints_put_off(),
                CounterStep::Append(drafts) => drafts.into_iter().for_each(|draft| {
                    self.claim(draft);
                }),
                CounterStep::Trim { start } => {
                    self.log.trim(start);
                    self.core.log_starts(start);
                }
            }
        }
        panic!("compaction does not end");
    }
}

#[test]
fn an_add_answers_the_sum_and_a_get_tells_zero_from_never_written() {
    let mut counters = Logged::new();
    assert_eq!(counters.core.get(b"k"), None);
    assert_eq!(counters.add(b"k", 5), Ok(5));
    assert_eq!(counters.add(b"k", -5), Ok(0));
    assert_eq!((counters.core.get(b"k"), counters.core.get(b"j")), (Some(0), None));
    let draft = counters.core.add(b"k", 7).unwrap();
    counters.claim(draft);
    assert_eq!(counters.core.get(b"k"), Some(0), "not settled yet");
    assert_eq!(counters.core.add(b"k", 1).unwrap().sum(), 8, "further adds see it");
    counters.settle();
    assert_eq!(counters.core.get(b"k"), Some(7));
    let fresh = counters.core.add(b"fresh", 1).unwrap();
    counters.claim(fresh);
    assert_eq!((counters.core.stop(), counters.core.get(b"fresh")), (1, None));
}

#[test]
fn a_sum_that_does_not_fit_is_refused_and_changes_nothing() {
    let mut counters = Logged::new();
    assert_eq!(counters.add(b"k", i64::MAX), Ok(i64::MAX));
    let overflow = AddRefused::Overflow { sum: i64::MAX, delta: 1, after: Offset(1) };
    assert_eq!(counters.add(b"k", 1), Err(overflow));
    assert_eq!(counters.core.get(b"k"), Some(i64::MAX));
    assert_eq!(counters.add(b"k", i64::MIN), Ok(-1));
    assert_eq!(counters.add(b"k", i64::MIN + 1), Ok(i64::MIN));
    let under = AddRefused::Overflow { sum: i64::MIN, delta: i64::MIN, after: Offset(3) };
    assert_eq!(counters.add(b"k", i64::MIN), Err(under));
    let long = vec![b'k'; KEY_BYTES_MAX + 1];
    assert_eq!(counters.add(&long, 1), Err(AddRefused::KeyTooLong));
    assert_eq!(counters.add(&long[1..], 1), Ok(1));
    assert_eq!(counters.add(b"", 2), Ok(2));
}

#[test]
fn a_numbered_add_counts_once_and_is_answered_as_the_first_time_also_after_compaction() {
    let mut counters = Logged::new();
    assert_eq!(counters.add_numbered((1, 0), b"k", 5), Ok((5, true)));
    counters.add(b"k", 100).unwrap();
    assert_eq!(counters.add_numbered((1, 0), b"k", 5), Ok((5, false)), "not the sum of now");
    let reused = AddRefused::Number(Verdict::Reused);
    assert_eq!(counters.add_numbered((1, 0), b"k", 6), Err(reused));
    let gap = AddRefused::Number(Verdict::Gap { expected: Sequence(1) });
    assert_eq!(counters.add_numbered((1, 2), b"k", 6), Err(gap));
    assert_eq!(counters.add_numbered((2, 1), b"k", 6), Err(AddRefused::Number(Verdict::Unknown)));
    for _ in 0..1_000 {
        counters.add(b"other", 1).unwrap();
    }
    counters.compact(32);
    assert!(counters.log.start > Offset(500), "the add itself is gone from the log");
    for counters in [&mut counters.rebuilt(), &mut counters] {
        assert_eq!(counters.add_numbered((1, 0), b"k", 5), Ok((5, false)), "as the first time");
        assert_eq!(counters.add_numbered((1, 1), b"k", 1), Ok((106, true)));
        assert_eq!(counters.sums(), BTreeMap::from([(b"k".to_vec(), 106), (b"other".to_vec(), 1_000)]));
    }
}

#[test]
fn an_add_in_flight_that_is_sent_again_waits_for_the_first() {
    let mut counters = Logged::new();
    let number = (ProducerId(9), Sequence(0));
    let Ok(NumberedAdd::Append(draft)) = counters.core.add_numbered(number, b"k", 5) else {
        panic!("the first")
    };
    let at = counters.claim(draft);
    let again = NumberedAdd::Again { sum: Some(5), after: Offset(at.0 + 1) };
    assert_eq!(counters.core.add_numbered(number, b"k", 5), Ok(again));
}

#[test]
fn every_add_that_is_remembered_keeps_its_answer_through_compaction_and_restarts() {
    const PRODUCERS: u64 = 4_096;
    let mut counters = Logged::new();
    let mut ids = ProducerIds::new(1, felix_wire::id::CoreId(0));
    let others: Vec<u64> = (0..PRODUCERS + 10).map(|_| ids.take().0).collect();
    let mut sums = BTreeMap::new();
    for sequence in 0..6 {
        for other in &others[..PRODUCERS as usize] {
            let (sum, counted) = counters.add_numbered((*other, sequence), b"k", 1).unwrap();
            assert!(counted && sums.insert((*other, sequence), sum).is_none());
        }
    }
    // One that has sent more than is remembered of it, and ten that make room for themselves.
    for sequence in 6..70 {
        sums.insert((others[0], sequence), counters.add_numbered((others[0], sequence), b"k", 1).unwrap().0);
    }
    for new in &others[PRODUCERS as usize..] {
        sums.insert((*new, 0), counters.add_numbered((*new, 0), b"k", 1).unwrap().0);
    }
    let forgotten = |(producer, sequence): (u64, u64)| {
        (producer == others[0] && sequence < 6) || others[1..11].contains(&producer)
    };
    sums.retain(|number, _| !forgotten(*number));
    assert_eq!(counters.core.answers.len(), sums.len(), "as many as are remembered");
    for _ in 0..2 {
        // What is known of so many producers is long; the log is left alone until it is twice as long.
        for _ in 0..200_000 {
            counters.add(b"other", 1).unwrap();
        }
        let before = counters.log.start;
        counters.compact(512);
        assert!(counters.log.start > before.max(Offset(24_600)), "all of the adds are gone from the log");
        counters = counters.rebuilt();
        assert_eq!(counters.core.answers.len(), sums.len());
        for ((producer, sequence), sum) in &sums {
            assert_eq!(counters.add_numbered((*producer, *sequence), b"k", 1), Ok((*sum, false)));
        }
    }
}

#[test]
fn an_add_whose_answer_an_older_version_let_go_is_not_counted_again() {
    let mut counters = Logged::new();
    counters.add_numbered((1, 0), b"k", 5).unwrap();
    let mut snapshot = Vec::new();
    counters.core.producers.encode(Offset(1), &mut snapshot);
    let mut log = TestLog::default();
    for record in
        [CounterRecord::Checkpoint { key: b"k", sum: 5 }, CounterRecord::Producers { snapshot: &snapshot }]
    {
        let mut payload = Vec::new();
        record.encode(&mut payload);
        log.append(&[payload], 0);
    }
    let counters = Logged { core: CounterCore::new(Keeping::Logged, Offset(0)), log }.rebuilt();
    let again = counters.core.add_numbered((ProducerId(1), Sequence(0)), b"k", 5);
    assert_eq!(again, Ok(NumberedAdd::Again { sum: None, after: Offset(1) }));
}

#[test]
fn counters_in_memory_are_bounded_and_refuse_instead_of_forgetting() {
    let mut core = CounterCore::new(Keeping::Memory { bytes_max: 10_000 }, Offset(0));
    let add =
        |core: &mut CounterCore, key: u64| core.add(&key.to_le_bytes(), 1).map(|draft| core.apply(draft));
    let taken = (0..1_000).take_while(|key| add(&mut core, *key).is_ok()).count() as u64;
    assert!(taken > 100 && core.memory_bytes() <= 10_000, "{taken}");
    assert_eq!(add(&mut core, taken), Err(AddRefused::NoRoom { bytes_max: 10_000 }));
    assert_eq!(add(&mut core, 0), Ok(2), "those that are there go on");
}

#[test]
fn records_are_read_as_they_were_written_and_other_bytes_are_refused() {
    let records = [
        CounterRecord::Add { key: b"", delta: i64::MIN, sum: i64::MAX },
        CounterRecord::Add { key: b"key", delta: -1, sum: 41 },
        CounterRecord::Checkpoint { key: b"key", sum: i64::MIN },
        CounterRecord::Producers { snapshot: b"snapshot" },
        CounterRecord::Answers {
            answers: &[answer_bytes(Offset(7), -1), answer_bytes(Offset(u64::MAX), i64::MIN)],
        },
    ];
    assert_eq!(answer_of(&answer_bytes(Offset(7), -1)), (Offset(7), -1));
    assert_eq!(answer_of(&answer_bytes(Offset(u64::MAX), i64::MIN)), (Offset(u64::MAX), i64::MIN));
    for record in records {
        let mut bytes = Vec::new();
        record.encode(&mut bytes);
        assert_eq!(CounterRecord::decode(&bytes), Ok(record));
        for cut in 0..bytes.len() {
            assert_ne!(CounterRecord::decode(&bytes[..cut]), Ok(record));
        }
    }
    assert_eq!(CounterRecord::decode(&[3]), Err(RecordFault::Version(3)));
    assert_eq!(CounterRecord::decode(&[1, 5]), Err(RecordFault::Kind(5)));
    assert_eq!(CounterRecord::decode(&[1, 4, 0]), Err(RecordFault::Short));
    let mut rng = SimRng::new(4);
    for _ in 0..100_000 {
        let mut bytes = vec![0; rng.below(40) as usize];
        rng.fill(&mut bytes);
        if let [version, kind, low, high, ..] = bytes.as_mut_slice() {
            (*version, *kind, *low, *high) = (1, rng.below(6) as u8, rng.below(20) as u8, 0);
        }
        if let Ok(record) = CounterRecord::decode(&bytes) {
            let mut again = Vec::new();
            record.encode(&mut again);
            assert_eq!(again, bytes, "one encoding");
        }
        // A log of any bytes is refused or taken, never more.
        let mut log = TestLog::default();
        log.append(&[bytes], 0);
        let mut core = CounterCore::new(Keeping::Logged, Offset(0));
        if let Err(bad) = core.replay(&log.batches[0]) {
            assert_eq!(bad.offset, Offset(0));
        }
    }
}

#[test]
fn a_sum_that_contradicts_the_log_is_refused() {
    let mut log = TestLog::default();
    let add = |delta, sum| {
        let mut payload = Vec::new();
        CounterRecord::Add { key: b"k", delta, sum }.encode(&mut payload);
        payload
    };
    log.append(&[add(5, 50), add(5, 55), add(5, 61)], 0);
    let mut core = CounterCore::new(Keeping::Logged, Offset(0));
    let bad = core.replay(&log.batches[0]).unwrap_err();
    assert_eq!(bad.offset, Offset(2));
    assert_eq!(core.table.find(b"k").map(|slot| core.table.value(slot).claimed), Some(55));
}
