use std::collections::BTreeMap;

use felix_runtime::sim::SimRng;

use super::record::{CommitRefused, StateChange, event_of};
use super::*;
use crate::projection::record::KEY_BYTES_MAX;
use crate::projection::test_log::TestLog;

const MAX: usize = 1 << 20;

fn put<'a>(key: &'a [u8], value: &'a [u8]) -> StateChange<'a> {
    StateChange::Put { key, value }
}

struct Logged {
    core: StateCore,
    log: TestLog,
}

impl Logged {
    fn new(hot_bytes_max: usize) -> Logged {
        Logged { core: StateCore::new(hot_bytes_max, Offset(0)), log: TestLog::default() }
    }

    fn claim(&mut self, event: &[u8], changes: &[StateChange<'_>]) -> Offset {
        let payload = CommitRecord { event, changes: changes.to_vec() }.encode(MAX).unwrap();
        let at = self.log.append_as(BatchKind::Commit, &[payload.to_vec()], 5, None);
        self.core.claimed(payload, at);
        at
    }

    fn commit(&mut self, event: &[u8], changes: &[StateChange<'_>]) -> Offset {
        let at = self.claim(event, changes);
        self.core.settle(self.log.end).unwrap();
        at
    }

    fn get(&mut self, key: &[u8]) -> Option<(Bytes, Offset)> {
        let version = match self.core.get(key) {
            Found::Absent { .. } => return None,
            Found::Here { value, version, .. } => return Some((value.clone(), version)),
            Found::InLog { version, .. } => version,
        };
        let payload = self.log.record(version).expect("the log holds it");
        Some((self.core.read_back(key, version, &payload).unwrap(), version))
    }

    fn rebuilt(&self, log: TestLog) -> Logged {
        let mut rebuilt = Logged::new(1 << 20);
        rebuilt.core.log_starts(log.start);
        log.batches.iter().for_each(|batch| rebuilt.core.replay(batch).unwrap());
        Logged { log, ..rebuilt }
    }
}

#[test]
fn a_commit_changes_all_of_its_keys_at_its_offset_or_none() {
    let mut state = Logged::new(1 << 20);
    state.log.append(&[b"a record like others".to_vec()], 0);
    let at = state.claim(b"event", &[put(b"a", b"1"), put(b"b", b"2"), put(b"a", b"3")]);
    assert_eq!(state.get(b"a"), None, "not settled yet");
    state.core.settle(state.log.end).unwrap();
    assert_eq!(state.get(b"a"), Some((Bytes::from_static(b"3"), at)), "changes apply in order");
    assert_eq!(state.get(b"b"), Some((Bytes::from_static(b"2"), at)));
    let next = state.commit(b"", &[StateChange::Delete { key: b"a" }, put(b"", b"")]);
    assert_eq!((state.get(b"a"), state.get(b"")), (None, Some((Bytes::new(), next))));
    assert_eq!(state.core.get(b"none"), Found::Absent { as_of: Some(next) });
    let only_event = state.commit(b"event", &[]);
    assert_eq!(state.core.get(b"none"), Found::Absent { as_of: Some(only_event) });
    state.claim(b"", &[put(b"b", b"lost")]);
    assert_eq!(state.core.stop(), 1);
    assert_eq!(state.get(b"b"), Some((Bytes::from_static(b"2"), at)));
}

#[test]
fn the_event_is_what_subscribers_see_of_a_commit() {
    let commit = CommitRecord { event: b"event", changes: vec![put(b"k", b"v")] };
    let payload = commit.encode(MAX).unwrap();
    assert_eq!(event_of(&payload).as_deref(), Ok(b"event".as_slice()));
    assert_eq!(event_of(&payload.slice(..12)), Err(RecordFault::Short));
    let none = CommitRecord { event: b"", changes: Vec::new() }.encode(MAX).unwrap();
    assert_eq!(event_of(&none).as_deref(), Ok(b"".as_slice()));
}

#[test]
fn limits_are_told_before_anything_is_claimed() {
    let long = vec![0; KEY_BYTES_MAX + 1];
    let commit = |key, value, bytes_max| {
        CommitRecord { event: b"", changes: vec![put(key, value)] }.encode(bytes_max).map(|_| ())
    };
    assert_eq!(commit(&long, b"", MAX), Err(CommitRefused::KeyTooLong));
    assert_eq!(commit(&long[1..], b"", MAX), Ok(()));
    assert_eq!(commit(b"k", &[0; 100], 100), Err(CommitRefused::TooLarge { bytes_max: 100 }));
    assert_eq!(commit(b"k", &[0; 100], 118), Ok(()));
}

#[test]
fn state_goes_with_the_records_that_retention_takes() {
    let mut state = Logged::new(1 << 20);
    state.commit(b"", &[put(b"old", b"1"), put(b"both", b"1")]);
    let kept = state.commit(b"", &[put(b"both", b"2")]);
    state.core.log_starts(kept);
    state.log.trim(kept);
    assert_eq!((state.get(b"old"), state.get(b"both")), (None, Some((Bytes::from_static(b"2"), kept))));
    for number in 0..1_000_u64 {
        state.core.log_starts(Offset(number));
        state.commit(b"", &[put(&number.to_le_bytes(), b"v")]);
    }
    assert!(state.core.len() < 200, "{} keys of which two live", state.core.len());
}

#[test]
fn values_in_memory_are_bounded_and_the_log_has_the_others() {
    let mut state = Logged::new(1_000);
    for number in 0..50_u8 {
        state.commit(b"", &[put(&[number], &[number; 100])]);
    }
    for number in 0..50_u8 {
        assert_eq!(state.get(&[number]).unwrap().0, vec![number; 100]);
        assert!(state.core.values.bytes() <= 1_000);
    }
    let other = state.core.read_back(b"other", Offset(0), &state.log.record(Offset(0)).unwrap());
    assert_eq!(other.map_err(|bad| bad.offset), Err(Offset(0)));
}

#[test]
fn records_are_read_as_they_were_written_and_other_bytes_are_refused() {
    let changes = vec![put(b"k", b"value"), StateChange::Delete { key: b"gone" }, put(b"", b"")];
    let commit = CommitRecord { event: b"event", changes };
    let bytes = commit.encode(MAX).unwrap();
    assert_eq!(bytes.len(), commit.encoded_len());
    assert_eq!(CommitRecord::decode(&bytes), Ok(commit));
    for cut in 0..bytes.len() {
        assert_eq!(CommitRecord::decode(&bytes[..cut]), Err(RecordFault::Short), "{cut}");
    }
    let longer = [&bytes[..], b"x"].concat();
    assert_eq!(CommitRecord::decode(&longer), Err(RecordFault::Malformed("bytes behind the record")));
    let huge = [1, 1, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff];
    assert_eq!(CommitRecord::decode(&huge), Err(RecordFault::Short), "a count costs nothing");
    let mut rng = SimRng::new(6);
    for _ in 0..100_000 {
        let mut bytes = vec![0; rng.below(60) as usize];
        rng.fill(&mut bytes);
        bytes.iter_mut().filter(|_| rng.below(2) == 0).for_each(|byte| *byte %= 4);
        if let Some(head) = bytes.get_mut(..10) {
            head.copy_from_slice(&[1, 1, rng.below(9) as u8, 0, 0, 0, rng.below(4) as u8, 0, 0, 0]);
        }
        if let Ok(commit) = CommitRecord::decode(&bytes) {
            assert_eq!(commit.encode(MAX).as_deref(), Ok(bytes.as_slice()), "one encoding");
        }
        let mut log = TestLog::default();
        log.append_as(BatchKind::Commit, &[bytes], 0, None);
        if let Err(bad) = StateCore::new(0, Offset(0)).replay(&log.batches[0]) {
            assert_eq!(bad.offset, Offset(0));
        }
    }
}

#[test]
fn random_histories_have_the_state_of_the_model_at_every_prefix_of_the_log() {
    let only = std::env::var("SEED").ok().map(|seed| seed.parse().expect("SEED is a number"));
    for seed in only.map_or(0..60, |seed: u64| seed..seed + 1) {
        println!("SEED={seed}");
        let mut rng = SimRng::new(seed);
        let mut state = Logged::new([0, 300, 1 << 20][rng.below(3) as usize]);
        // By offset: what the keys that a commit names have behind it.
        type Value = Option<Vec<u8>>;
        let mut model: Vec<(u64, BTreeMap<Vec<u8>, Value>)> = Vec::new();
        let value_at = |model: &[(u64, BTreeMap<Vec<u8>, Value>)], key: &[u8], start: u64, end: u64| {
            let newest =
                model.iter().rev().filter(|(at, _)| *at < end).find(|(_, keys)| keys.contains_key(key))?;
            let value = newest.1.get(key).cloned().flatten()?;
            (newest.0 >= start).then_some((Bytes::from(value), Offset(newest.0)))
        };
        for _ in 0..600 {
            match rng.below(10) {
                0..5 => {
                    let keys: Vec<Vec<u8>> =
                        (0..rng.below(4)).map(|_| vec![b'a' + rng.below(8) as u8]).collect();
                    let values: Vec<Value> = keys
                        .iter()
                        .map(|_| (rng.below(3) > 0).then(|| vec![rng.below(256) as u8; 20]))
                        .collect();
                    let changes = keys.iter().zip(&values).map(|(key, value)| match value {
                        Some(value) => put(key, value),
                        None => StateChange::Delete { key },
                    });
                    let at = state.claim(b"event", &changes.collect::<Vec<_>>());
                    model.push((at.0, keys.iter().cloned().zip(values.iter().cloned()).collect()));
                }
                5 => {
                    state.log.append(&[vec![1, 2, 3]], 0);
                }
                6 => {
                    let settled = state.core.settled_end.0;
                    state.core.settle(Offset(settled + rng.below(state.log.end.0 - settled + 1))).unwrap();
                }
                7 => {
                    let key = [b'a' + rng.below(8) as u8];
                    let (start, end) = (state.log.start.0, state.core.settled_end.0);
                    assert_eq!(state.get(&key), value_at(&model, &key, start, end));
                }
                8 if rng.below(10) == 0 => {
                    state.core.settle(state.log.end).unwrap();
                    let start = Offset(state.log.end.0 - rng.below(state.log.end.0.min(20) + 1));
                    state.log.trim(start);
                    state.core.log_starts(state.log.start);
                }
                _ => {
                    let start = state.log.start.0;
                    let end = start + rng.below(state.log.end.0 - start + 1);
                    let mut part = state.rebuilt(state.log.prefix(Offset(end)));
                    for key in b'a'..=b'h' {
                        assert_eq!(part.get(&[key]), value_at(&model, &[key], start, end));
                    }
                }
            }
        }
    }
}
