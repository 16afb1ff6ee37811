//! Each rule by itself, and random histories against the log they follow.

use std::collections::BTreeMap;

use felix_wire::id::SubscriptionId;

use super::*;

fn answer(live: u64, count: Option<u64>, resnapshot: bool) -> CacheWatchStarted {
    let (subscription_id, resume_offset) = (SubscriptionId(1), Offset(live));
    CacheWatchStarted { subscription_id, resume_offset, resnapshot, retained_count: count }
}

fn wants(cursor: &Cursor, from: Option<u64>, current: bool) {
    assert_eq!(cursor.wanted(), Wanted { from: from.map(Offset), current });
}

const CHANGE: Take = Take::Deliver { current: false };
const CURRENT: Take = Take::Deliver { current: true };

#[test]
fn a_live_watch_goes_on_after_its_last_change_and_repeats_none() {
    let mut cursor = Cursor::new(WatchStart::Live);
    wants(&cursor, None, false);
    assert_eq!(cursor.started(&answer(10, None, false)), Begun { anew: false, values: None });
    // Lost before anything changed: nothing since the registration is missed.
    wants(&cursor, Some(10), false);
    assert_eq!(
        [cursor.event(Offset(12)), cursor.event(Offset(12)), cursor.event(Offset(9))],
        [CHANGE, Take::Drop, Take::Drop]
    );
    cursor.resume_from(Offset(20));
    wants(&cursor, Some(20), false);
    assert_eq!(cursor.started(&answer(30, None, false)), Begun { anew: false, values: None });
    assert_eq!((cursor.event(Offset(19)), cursor.event(Offset(21))), (Take::Drop, CHANGE));
}

#[test]
fn current_values_are_counted_and_asked_for_again_until_all_are_there() {
    let mut cursor = Cursor::new(WatchStart::Current);
    wants(&cursor, None, true);
    assert_eq!(cursor.started(&answer(10, Some(2), false)), Begun { anew: false, values: Some(2) });
    assert_eq!(cursor.event(Offset(7)), CURRENT);
    cursor.resume_from(Offset(11));
    wants(&cursor, None, true);
    assert_eq!(cursor.started(&answer(14, Some(2), false)), Begun { anew: true, values: Some(2) });
    assert_eq!((cursor.event(Offset(7)), cursor.event(Offset(3))), (CURRENT, CURRENT));
    wants(&cursor, Some(14), false);
    assert_eq!((cursor.event(Offset(13)), cursor.event(Offset(14))), (Take::Drop, CHANGE));
    let mut empty = Cursor::new(WatchStart::Current);
    assert_eq!(empty.started(&answer(5, Some(0), false)), Begun { anew: false, values: Some(0) });
    wants(&empty, Some(5), false);
}

#[test]
fn compacted_history_is_told_and_its_values_come_before_the_changes() {
    let mut cursor = Cursor::new(WatchStart::Offset(Offset(3)));
    wants(&cursor, Some(3), false);
    assert_eq!(cursor.started(&answer(50, None, true)), Begun { anew: true, values: None });
    assert_eq!((cursor.event(Offset(40)), cursor.event(Offset(31))), (CURRENT, CURRENT));
    // Lost in the middle of the values: all of them are asked for again.
    wants(&cursor, None, true);
    assert_eq!(cursor.started(&answer(60, Some(1), false)), Begun { anew: true, values: Some(1) });
    assert_eq!((cursor.event(Offset(40)), cursor.event(Offset(60))), (CURRENT, CHANGE));
    wants(&cursor, Some(61), false);
    assert_eq!(cursor.started(&answer(70, None, true)), Begun { anew: true, values: None });
    assert_eq!((cursor.event(Offset(65)), cursor.event(Offset(70))), (CURRENT, CHANGE));
    wants(&cursor, Some(71), false);
}

#[test]
fn another_life_of_a_cache_in_memory_begins_anew_and_a_wrong_offset_fails() {
    let mut cursor = Cursor::new(WatchStart::Offset(Offset(3)));
    assert_eq!(cursor.missed(CursorErrorReason::InFuture), Missed::Fail);
    cursor.started(&answer(50, None, false));
    cursor.event(Offset(50));
    assert_eq!(cursor.missed(CursorErrorReason::TooOld), Missed::Fail);
    assert_eq!(cursor.missed(CursorErrorReason::InFuture), Missed::Again);
    wants(&cursor, None, true);
    assert_eq!(cursor.started(&answer(2, Some(1), false)), Begun { anew: true, values: Some(1) });
}

/// A small log of one shard: keys 0 to 4, `None` deletes.
#[derive(Default)]
struct Log {
    writes: Vec<(u8, Option<u64>)>,
    compacted: usize,
}

impl Log {
    /// Value and offset of every key that has one.
    fn current(&self) -> BTreeMap<u8, (u64, usize)> {
        let mut values = BTreeMap::new();
        for (offset, (key, value)) in self.writes.iter().enumerate() {
            match value {
                Some(value) => values.insert(*key, (*value, offset)),
                None => values.remove(key),
            };
        }
        values
    }

    /// What a broker answers, and everything it will send by now: offset, key, value.
    #[allow(clippy::type_complexity, reason = "said once")]
    fn watch(&self, wanted: Wanted) -> (CacheWatchStarted, Vec<(u64, u8, Option<u64>)>) {
        let live = self.writes.len();
        let from = wanted.from.map(|offset| usize::try_from(offset.get()).expect("small"));
        let resnapshot = from.is_some_and(|from| from < self.compacted);
        let snapshot = resnapshot || wanted.current;
        let mut events = Vec::new();
        if snapshot {
            let current = self.current();
            events.extend(current.iter().map(|(key, (value, offset))| (*offset as u64, *key, Some(*value))));
        }
        let count = wanted.current.then_some(events.len() as u64);
        let first = if snapshot { live } else { from.unwrap_or(live) };
        events.extend(self.writes.iter().enumerate().skip(first).map(|(o, (k, v))| (o as u64, *k, *v)));
        (answer(live as u64, count, resnapshot), events)
    }
}

/// What an application knows that takes every item as it comes.
#[derive(Default)]
struct View {
    values: BTreeMap<u8, u64>,
    last_change: Option<u64>,
}

impl View {
    fn take(&mut self, current: bool, (offset, key, value): (u64, u8, Option<u64>)) {
        if !current {
            assert!(self.last_change.is_none_or(|last| last < offset), "repeated or out of order: {offset}");
            self.last_change = Some(offset);
        }
        match value {
            Some(value) => self.values.insert(key, value),
            None => self.values.remove(&key),
        };
    }
}

#[test]
fn random_histories_with_cuts_and_compaction_end_with_the_values_of_the_log() {
    for seed in 1..=2_000_u64 {
        let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut pick = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % below
        };
        let mut log = Log::default();
        let mut cursor = Cursor::new(WatchStart::Current);
        let mut view = View::default();
        for round in 0..12 {
            let (started, _) = log.watch(cursor.wanted());
            let wanted = cursor.wanted();
            let begun = cursor.started(&started);
            if begun.anew {
                view.values.clear();
            }
            // Writes come while the watch stands; what it gets is what a broker sends from where it began.
            let mut late = Log { writes: log.writes.clone(), compacted: log.compacted };
            for number in 0..pick(6) {
                let value = (pick(3) > 0).then_some(round * 100 + number);
                late.writes.push((u8::try_from(pick(5)).expect("small"), value));
            }
            let (_, mut events) = log.watch(wanted);
            events.extend(
                late.writes.iter().enumerate().skip(log.writes.len()).map(|(o, (k, v))| (o as u64, *k, *v)),
            );
            let last_round = round == 11;
            let cut = if last_round {
                events.len()
            } else {
                usize::try_from(pick(events.len() as u64 + 1)).expect("small")
            };
            for event in &events[..cut] {
                if let Take::Deliver { current } = cursor.event(Offset(event.0)) {
                    view.take(current, *event);
                }
            }
            log = late;
            if last_round {
                let held: BTreeMap<u8, u64> =
                    log.current().iter().map(|(key, (value, _))| (*key, *value)).collect();
                assert_eq!(view.values, held, "SEED={seed}");
            } else if pick(3) == 0 {
                log.compacted = usize::try_from(pick(log.writes.len() as u64 + 1)).expect("small");
            }
        }
    }
}
