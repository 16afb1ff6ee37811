use std::collections::BTreeMap;

use felix_runtime::sim::SimRng;

use super::compact::{CompactStep, LogShape};
use super::interest::Interest;
use super::watch::{Next, Started, WatchFrom, WatchId, WatchLimits, WatchRefused};
use super::*;
use crate::projection::record::RecordFault;
use crate::projection::test_log::TestLog;

mod model;

const LOGGED: Keeping = Keeping::Logged { hot_bytes_max: 1 << 20 };
const LIMITS: WatchLimits = WatchLimits { events_max: 8, bytes_max: 10_240 };

/// A cache with its log; writes are settled at once unless a test says otherwise.
struct Logged {
    core: CacheCore,
    log: TestLog,
    now_ms: u64,
}

impl Logged {
    fn new(hot_bytes_max: usize) -> Logged {
        let core = CacheCore::new(Keeping::Logged { hot_bytes_max }, Offset(0));
        Logged { core, log: TestLog::default(), now_ms: 1_000 }
    }

    fn claim(&mut self, draft: Draft) -> Offset {
        let mut payload = Vec::new();
        draft.encode(&mut payload);
        assert_eq!(payload.len(), draft.encoded_len());
        let at = self.log.append(&[payload], self.now_ms);
        self.core.claimed(draft, at);
        at
    }

    /// Claims drafts in one batch.
    fn claim_all(&mut self, drafts: Vec<Draft>) {
        let encoded = drafts.iter().map(|draft| {
            let mut payload = Vec::new();
            draft.encode(&mut payload);
            payload
        });
        let payloads: Vec<Vec<u8>> = encoded.collect();
        if !payloads.is_empty() {
            let base = self.log.append(&payloads, self.now_ms);
            let drafts = drafts.into_iter().zip(base.0..);
            drafts.for_each(|(draft, at)| self.core.claimed(draft, Offset(at)));
        }
    }

    fn settle(&mut self) {
        self.core.settle(self.log.end, self.now_ms);
    }

    fn put_if(
        &mut self,
        key: &[u8],
        value: &[u8],
        ttl: Option<u64>,
        condition: Condition,
    ) -> Result<Offset, Unmet> {
        let expiry = Expiry::after(self.now_ms, ttl).unwrap();
        match self.core.put(key, Bytes::copy_from_slice(value), expiry, condition, self.now_ms).unwrap() {
            Put::Append(draft) => Ok(self.claim(draft)),
            Put::Unmet(unmet) => Err(unmet),
        }
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Offset {
        let at = self.put_if(key, value, None, Condition::Always).unwrap();
        self.settle();
        at
    }

    /// Deletes and gives the value that went.
    fn delete(&mut self, key: &[u8]) -> Option<Bytes> {
        let mut known = None;
        loop {
            match self.core.delete(key, Condition::Always, (true, known.take()), self.now_ms).unwrap() {
                Delete::Append { draft, removed } => {
                    self.claim(draft);
                    self.settle();
                    return removed;
                }
                Delete::Absent { .. } => return None,
                Delete::Unmet(_) => unreachable!("there is no condition"),
                Delete::Read { at, version } => {
                    let payload = self.log.record(at).expect("the log holds it");
                    known = Some((version, self.core.read_back(key, at, &payload).unwrap()));
                }
            }
        }
    }

    /// Value and version.
    fn get(&mut self, key: &[u8]) -> Option<(Bytes, Offset)> {
        let (at, version) = match self.core.get(key, self.now_ms) {
            Found::Absent => return None,
            // The answer waits; what is settled has expired.
            Found::Claimed(_) => return None,
            Found::Here { value, version, .. } => return Some((value.clone(), version)),
            Found::InLog { at, version, .. } => (at, version),
        };
        let payload = self.log.record(at).expect("the log holds what the index names");
        Some((self.core.read_back(key, at, &payload).unwrap(), version))
    }

    fn rebuilt(&self) -> Logged {
        let mut rebuilt = Logged::new(1 << 20);
        (rebuilt.log, rebuilt.now_ms) = (self.log.clone(), self.now_ms);
        rebuilt.core.log_starts(self.log.start);
        for batch in &self.log.batches {
            rebuilt.core.replay(batch).unwrap();
        }
        rebuilt
    }

    /// Serves the reads that a watch asks for, and takes what there is for it.
    fn drain(&mut self, id: WatchId) -> Vec<Next> {
        let mut found = Vec::new();
        loop {
            match self.core.next_event(id) {
                Next::Nothing => {}
                Next::Event(event) => {
                    found.push(Next::Event(event));
                    continue;
                }
                end => {
                    found.push(end);
                    return found;
                }
            }
            let Some(from) = self.core.wants_page(id) else { return found };
            match self.log.page(from, 3) {
                Some((batches, end)) => self.core.take_page(id, &batches, end),
                None => self.core.no_page(id, self.log.start),
            }
        }
    }
}

fn text(events: &[Next]) -> Vec<String> {
    let show = |next: &Next| match next {
        Next::Event(event) => {
            let key = String::from_utf8_lossy(&event.key).into_owned();
            match &event.value {
                Some(value) => format!("{key}={}@{}", String::from_utf8_lossy(value), event.at),
                None => format!("-{key}@{}", event.at),
            }
        }
        other => format!("{other:?}"),
    };
    events.iter().map(show).collect()
}

#[test]
fn a_put_is_read_when_it_is_settled_and_has_its_offset_as_version() {
    let mut cache = Logged::new(1 << 20);
    let at = cache.put_if(b"k", b"one", None, Condition::Always).unwrap();
    assert_eq!(cache.get(b"k"), None, "not settled yet");
    cache.settle();
    assert_eq!(cache.get(b"k"), Some((Bytes::from_static(b"one"), at)));
    let next = cache.put(b"k", b"two");
    assert_eq!(cache.get(b"k"), Some((Bytes::from_static(b"two"), next)));
    assert_eq!(cache.delete(b"k").as_deref(), Some(b"two".as_slice()));
    assert_eq!((cache.get(b"k"), cache.delete(b"k")), (None, None));
    assert_eq!((cache.core.len(), cache.core.live_bytes()), (0, 0));
    assert_eq!(cache.core.memory_bytes(), 0);
}

#[test]
fn conditions_see_what_is_claimed_and_tell_when_their_answer_is_sure() {
    let mut cache = Logged::new(1 << 20);
    let first = cache.put_if(b"k", b"one", None, Condition::Absent).unwrap();
    let unmet = Unmet { version: Some(first), after: Offset(first.0 + 1) };
    assert_eq!(cache.put_if(b"k", b"two", None, Condition::Absent), Err(unmet), "though it is not settled");
    let second = cache.put_if(b"k", b"two", None, Condition::Version(first)).unwrap();
    cache.settle();
    let unmet = Unmet { version: Some(second), after: Offset(0) };
    assert_eq!(cache.put_if(b"k", b"x", None, Condition::Version(first)), Err(unmet));
    let stale = cache.core.delete(b"k", Condition::Version(first), (false, None), 1_000);
    assert_eq!(stale, Ok(Delete::Unmet(unmet)));
    let Ok(Delete::Append { draft, removed: None }) =
        cache.core.delete(b"k", Condition::Version(second), (false, None), 1_000)
    else {
        panic!("the version is right, and the value was not asked for");
    };
    let at = cache.claim(draft);
    let again = cache.core.delete(b"k", Condition::Always, (true, None), 1_000);
    assert_eq!(
        again,
        Ok(Delete::Absent { after: Offset(at.0 + 1) }),
        "not before the first delete is settled"
    );
    assert!(cache.put_if(b"k", b"three", None, Condition::Absent).is_ok());
}

#[test]
fn a_value_that_expired_while_a_write_was_decided_by_it_is_not_seen_gone_before_that_write() {
    let mut cache = Logged::new(1 << 20);
    let first = cache.put_if(b"k", b"one", Some(40), Condition::Absent).unwrap();
    cache.settle();
    let second = cache.put_if(b"k", b"two", None, Condition::Version(first)).unwrap();
    cache.now_ms += 41;
    cache.core.sweep(cache.now_ms);
    let now_ms = cache.now_ms;
    let Found::Claimed(newest) = cache.core.get(b"k", now_ms) else { panic!("the write is in flight") };
    assert_eq!((newest.version, newest.after), (Some(second), Offset(second.0 + 1)));
    cache.settle();
    assert_eq!(cache.get(b"k"), Some((Bytes::from_static(b"two"), second)));
    let third = cache.put_if(b"k", b"three", Some(40), Condition::Version(second)).unwrap();
    cache.settle();
    cache.now_ms += 41;
    assert!(matches!(cache.core.get(b"k", cache.now_ms), Found::Absent), "{third:?} has no successor");
}

#[test]
fn a_value_that_only_the_log_holds_is_read_for_a_delete_that_tells_it() {
    let mut cache = Logged::new(0);
    cache.put(b"k", b"value");
    assert!(matches!(cache.core.get(b"k", 0), Found::InLog { at: Offset(0), .. }));
    assert_eq!(cache.delete(b"k").as_deref(), Some(b"value".as_slice()));
    let put = cache.put(b"k", b"other");
    let stale = Some((Offset(0), Bytes::from_static(b"value")));
    let asked = cache.core.delete(b"k", Condition::Always, (true, stale), 1_000);
    assert_eq!(asked, Ok(Delete::Read { at: put, version: put }), "what was read is not the value any more");
    let wrong = cache.core.read_back(b"j", put, &cache.log.record(put).unwrap());
    assert_eq!(wrong.map_err(|bad| bad.offset), Err(put));
}

#[test]
fn values_end_at_their_time_also_after_a_restart_and_when_the_clock_is_set_back() {
    let mut cache = Logged::new(1 << 20);
    cache.put_if(b"short", b"v", Some(50), Condition::Always).unwrap();
    cache.put_if(b"none", b"v", Some(0), Condition::Always).unwrap();
    cache.put_if(b"long", b"v", Some(5_000), Condition::Always).unwrap();
    cache.settle();
    assert_eq!(cache.get(b"none"), None);
    assert!(cache.get(b"short").is_some() && cache.get(b"long").is_some());
    cache.now_ms += 50;
    assert_eq!(cache.get(b"short"), None);
    assert_eq!(cache.delete(b"short"), None, "expired is absent to deletes too");
    assert!(cache.put_if(b"short", b"w", None, Condition::Absent).is_ok());
    cache.settle();
    cache.put(b"mark", b"at this time");
    cache.now_ms -= 45;
    let mut rebuilt = cache.rebuilt();
    assert_eq!(rebuilt.get(b"none"), None);
    assert_eq!(rebuilt.get(b"short").map(|(value, _)| value).as_deref(), Some(b"w".as_slice()));
    rebuilt.now_ms += 5_000;
    assert_eq!(rebuilt.get(b"long"), None);
    let mut again = Logged::new(1 << 20);
    again.put_if(b"k", b"v", Some(50), Condition::Always).unwrap();
    again.settle();
    again.now_ms += 50;
    again.put(b"mark", b"");
    let mut rebuilt = again.rebuilt();
    rebuilt.now_ms -= 50;
    assert_eq!(rebuilt.get(b"k"), None, "the log knows a later time");
}

#[test]
fn a_put_without_a_life_clears_the_one_before() {
    let mut cache = Logged::new(1 << 20);
    cache.put_if(b"k", b"v", Some(10), Condition::Always).unwrap();
    cache.put(b"k", b"w");
    cache.now_ms += 1_000;
    assert!(cache.get(b"k").is_some());
    assert_eq!(cache.core.next_sweep_ms(), None);
}

#[test]
fn expired_keys_leave_memory_without_being_asked_for() {
    let mut cache = Logged::new(1 << 20);
    for number in 0..10_000_u64 {
        cache.put_if(&number.to_le_bytes(), b"v", Some(100), Condition::Always).unwrap();
        cache.settle();
        cache.now_ms += 1;
    }
    assert!(cache.core.len() < 200, "{} keys of which 100 live", cache.core.len());
    cache.now_ms += 1_000;
    while let Some(at) = cache.core.next_sweep_ms() {
        cache.now_ms = cache.now_ms.max(at);
        cache.core.sweep(cache.now_ms);
    }
    assert_eq!((cache.core.len(), cache.core.live_bytes()), (0, 0));
}

#[test]
fn keys_are_any_bytes_of_any_length_and_limits_are_told() {
    let mut cache = Logged::new(1 << 20);
    let long = vec![0xfe; KEY_BYTES_MAX];
    for key in [b"".as_slice(), &[0xff, 0, 0xc0], &long] {
        cache.put(key, b"v");
        assert!(cache.get(key).is_some());
        assert!(cache.rebuilt().get(key).is_some());
    }
    let put = |core: &mut CacheCore, key: &[u8], value: usize| {
        core.put(key, Bytes::from(vec![0; value]), Expiry::NEVER, Condition::Always, 0).map(|_| ())
    };
    let too_long = vec![0; KEY_BYTES_MAX + 1];
    assert_eq!(put(&mut cache.core, &too_long, 1), Err(WriteRefused::KeyTooLong));
    let refused = Err(WriteRefused::ValueTooLarge { bytes_max: VALUE_BYTES_MAX });
    assert_eq!(put(&mut cache.core, b"k", VALUE_BYTES_MAX + 1), refused);
    assert_eq!(put(&mut cache.core, b"k", VALUE_BYTES_MAX), Ok(()));
    let mut memory = CacheCore::new(Keeping::Memory { bytes_max: 1_000 }, Offset(0));
    assert!(matches!(put(&mut memory, b"k", 1_000), Err(WriteRefused::ValueTooLarge { bytes_max: 500.. })));
}

#[test]
fn a_cache_in_memory_keeps_its_bound_and_lets_go_what_is_not_read() {
    let mut core = CacheCore::new(Keeping::Memory { bytes_max: 100_000 }, Offset(0));
    let value = Bytes::from(vec![7; 400]);
    for number in 0..1_000_u64 {
        let Ok(Put::Append(draft)) =
            core.put(number.to_le_bytes(), value.clone(), Expiry::NEVER, Condition::Always, 0)
        else {
            panic!("it fits");
        };
        assert_eq!(core.apply(draft, 0), Offset(number));
        assert!(core.memory_bytes() <= 100_000);
        assert!(matches!(core.get(&number.to_le_bytes(), 0), Found::Here { .. }), "the newest stays");
        assert!(number < 1 || matches!(core.get(&1_u64.to_le_bytes(), 0), Found::Here { .. }), "it is read");
    }
    assert!(core.evicted() > 700 && core.len() > 100, "{} {}", core.evicted(), core.len());
    assert!(matches!(core.get(&2_u64.to_le_bytes(), 0), Found::Absent));
}

#[test]
fn hot_values_of_a_logged_cache_are_bounded_and_nothing_is_lost() {
    let mut cache = Logged::new(2_000);
    for number in 0..100_u64 {
        cache.put(&number.to_le_bytes(), &[number as u8; 100]);
    }
    assert!(cache.core.values.bytes() <= 2_000);
    for number in 0..100_u64 {
        assert_eq!(cache.get(&number.to_le_bytes()).unwrap().0, vec![number as u8; 100]);
        assert!(cache.core.values.bytes() <= 2_000);
    }
    assert!(matches!(cache.core.get(&99_u64.to_le_bytes(), 0), Found::Here { .. }), "what was read last");
}

#[test]
fn a_stopped_log_leaves_what_was_settled() {
    let mut cache = Logged::new(1 << 20);
    let at = cache.put(b"k", b"one");
    cache.put_if(b"k", b"two", None, Condition::Always).unwrap();
    assert_eq!(cache.core.stop(), 1);
    assert_eq!(cache.get(b"k"), Some((Bytes::from_static(b"one"), at)));
}

#[test]
fn a_watch_is_told_every_change_of_its_keys_in_order() {
    let mut cache = Logged::new(1 << 20);
    cache.put(b"a1", b"before");
    let key = cache.core.watch(Interest::Key((*b"a1").into()), WatchFrom::Now, LIMITS).unwrap();
    let prefix = cache.core.watch(Interest::Prefix((*b"a").into()), WatchFrom::Now, LIMITS).unwrap();
    let started = Started { resume: Offset(1), resnapshot: false, values: 0, counted: false };
    assert_eq!(cache.core.take_started(key), Some(Ok(started)));
    assert_eq!(cache.core.take_started(key), None);
    cache.put(b"a1", b"one");
    cache.put(b"b", b"other");
    cache.put(b"a2", b"two");
    cache.delete(b"a1");
    assert_eq!(cache.core.take_ready().collect::<Vec<_>>(), [key, prefix]);
    assert_eq!(text(&cache.drain(key)), ["a1=one@1", "-a1@4"]);
    assert_eq!(text(&cache.drain(prefix)), ["a1=one@1", "a2=two@3", "-a1@4"]);
    cache.core.unwatch(key);
    cache.put(b"a1", b"three");
    assert_eq!((cache.drain(key), text(&cache.drain(prefix))), (vec![], vec!["a1=three@5".to_owned()]));
}

#[test]
fn a_watch_from_an_offset_joins_history_and_what_comes_without_gap_or_repeat() {
    let mut cache = Logged::new(1 << 20);
    for number in 0..40 {
        cache.put(if number % 2 == 0 { b"a" } else { b"b" }, number.to_string().as_bytes());
    }
    let all = Interest::Prefix(Box::default());
    let id = cache.core.watch(all.clone(), WatchFrom::Offset(Offset(5)), LIMITS).unwrap();
    cache.put(b"c", b"while it reads");
    let found = cache.drain(id);
    let offsets: Vec<u64> =
        found.iter().map(|next| if let Next::Event(event) = next { event.at.0 } else { u64::MAX }).collect();
    assert_eq!(offsets, (5..41).collect::<Vec<_>>());
    let refused = cache.core.watch(all.clone(), WatchFrom::Offset(Offset(42)), LIMITS);
    assert_eq!(refused, Err(WatchRefused::InFuture { tail: Offset(41) }));
    assert!(cache.core.watch(all, WatchFrom::Offset(Offset(41)), LIMITS).is_ok());
}

#[test]
fn a_watch_that_does_not_keep_up_reads_the_log_and_misses_nothing() {
    let mut cache = Logged::new(1 << 20);
    let id = cache.core.watch(Interest::Prefix(Box::default()), WatchFrom::Now, LIMITS).unwrap();
    for number in 0..100_u64 {
        cache.put(&number.to_be_bytes(), b"v");
    }
    assert!(cache.core.watches.queued_bytes() <= LIMITS.bytes_max + 200);
    let found = cache.drain(id);
    assert_eq!(found.len(), 100);
    cache.put(b"k", b"live");
    assert_eq!(text(&cache.drain(id)), ["k=live@100"]);
}

#[test]
fn a_retained_watch_gets_the_current_values_with_their_number_first() {
    let mut cache = Logged::new(0);
    for number in 0..10 {
        cache.put(format!("k{number}").as_bytes(), number.to_string().as_bytes());
    }
    cache.put_if(b"k-old", b"v", Some(1), Condition::Always).unwrap();
    cache.settle();
    cache.now_ms += 1;
    cache.delete(b"k3");
    let id = cache.core.watch(Interest::Prefix((*b"k").into()), WatchFrom::Retained, LIMITS).unwrap();
    assert_eq!(cache.core.take_started(id), None, "it has to be collected");
    cache.core.collect(4);
    cache.put(b"k9", b"changed meanwhile");
    cache.put(b"k0", b"changed behind");
    while cache.core.is_collecting() {
        cache.core.collect(2);
    }
    let started = cache.core.take_started(id).unwrap().unwrap();
    assert_eq!((started.resume, started.resnapshot), (Offset(12), false));
    let found = cache.drain(id);
    let changes = found.len() - started.values as usize;
    assert_eq!(changes, 2);
    let (values, changes) = found.split_at(found.len() - changes);
    assert_eq!(text(changes), ["k9=changed meanwhile@12", "k0=changed behind@13"]);
    assert!(text(values).contains(&"k7=7@7".to_owned()), "with the offset of its write");
    let nothing = cache.core.watch(Interest::Key((*b"none").into()), WatchFrom::Retained, LIMITS).unwrap();
    let started = cache.core.take_started(nothing).unwrap().unwrap();
    assert_eq!((started.values, started.counted), (0, true), "zero is an answer");
}

fn compact(cache: &mut Logged, log_bytes_min: u64, segment: u64) {
    for _ in 0..10_000 {
        let sealed = Offset((cache.log.start.0 / segment + 1) * segment);
        let shape = LogShape {
            start: cache.log.start,
            sealed_end: (sealed <= cache.log.end).then_some(sealed),
            bytes: cache.log.bytes(),
            durable_end: cache.log.end,
        };
        match cache.core.compact(shape, log_bytes_min) {
            CompactStep::Idle => return,
            CompactStep::Read { from, until, .. } => {
                let (batches, end) = cache.log.page(from, 4).unwrap();
                let copies = cache.core.compact_page(&batches, end.min(until), cache.now_ms).unwrap();
                let bytes = copies.iter().map(|copy| copy.encoded_len() as u64).sum();
                cache.claim_all(copies);
                cache.core.copies_claimed(bytes);
                cache.settle();
            }
            CompactStep::Trim { start } => {
                cache.log.trim(start);
                cache.core.log_starts(start);
            }
            other => panic!("{other:?}"),
        }
    }
    panic!("compaction does not end");
}

/// Length up to which a log is left alone.
const LEFT_ALONE: u64 = 10_000;

#[test]
fn compaction_keeps_every_value_and_version_and_brings_nothing_back() {
    let mut cache = Logged::new(0);
    for round in 0..200_u64 {
        for key in 0..10_u64 {
            cache.put(&key.to_le_bytes(), &round.to_le_bytes());
        }
        cache.put(&(1_000 + round).to_le_bytes(), b"goes");
        assert!(cache.delete(&(1_000 + round).to_le_bytes()).is_some());
    }
    let versions: Vec<_> = (0..10_u64).map(|key| cache.get(&key.to_le_bytes()).unwrap()).collect();
    let before = cache.log.bytes();
    compact(&mut cache, LEFT_ALONE, 64);
    assert!(cache.log.bytes() < before / 10, "{} of {before}", cache.log.bytes());
    for mut seen in [cache.rebuilt(), cache] {
        assert_eq!(seen.core.len(), 10);
        for (key, value) in versions.iter().enumerate() {
            assert_eq!(seen.get(&(key as u64).to_le_bytes()).as_ref(), Some(value));
        }
    }
}

#[test]
fn a_write_claimed_while_its_key_is_compacted_wins() {
    let mut cache = Logged::new(0);
    cache.put(b"deleted", b"v");
    cache.put(b"overwritten", b"v");
    cache.put(b"kept", b"v");
    let shape =
        LogShape { start: Offset(0), sealed_end: Some(Offset(3)), bytes: 1 << 20, durable_end: Offset(3) };
    let CompactStep::Read { .. } = cache.core.compact(shape, 0) else { panic!("it reads") };
    assert_eq!(cache.core.compact(shape, 0), CompactStep::Reading);
    let Ok(Delete::Append { draft, .. }) =
        cache.core.delete(b"deleted", Condition::Always, (false, None), 1_000)
    else {
        panic!("there is a value");
    };
    cache.claim(draft);
    let over = cache.put_if(b"overwritten", b"w", None, Condition::Always).unwrap();
    let (batches, end) = cache.log.page(Offset(0), 3).unwrap();
    let copies = cache.core.compact_page(&batches, end, 1_000).unwrap();
    assert_eq!(copies.len(), 1, "only what no claim ends");
    copies.into_iter().for_each(|copy| {
        cache.claim(copy);
    });
    cache.core.copies_claimed(100);
    assert_eq!(cache.core.compact(shape, 0), CompactStep::WaitDurable(Offset(6)));
    cache.settle();
    let durable = LogShape { durable_end: Offset(6), ..shape };
    assert_eq!(cache.core.compact(durable, 0), CompactStep::Trim { start: Offset(3) });
    cache.log.trim(Offset(3));
    for mut seen in [cache.rebuilt(), cache] {
        assert_eq!(seen.get(b"deleted"), None);
        assert_eq!(seen.get(b"overwritten"), Some((Bytes::from_static(b"w"), over)));
        assert_eq!(seen.get(b"kept"), Some((Bytes::from_static(b"v"), Offset(2))));
    }
}

#[test]
fn a_watch_below_the_compacted_log_begins_with_the_current_values_or_is_told_where_it_ended() {
    let mut cache = Logged::new(0);
    let slow = cache.core.watch(Interest::Prefix(Box::default()), WatchFrom::Now, LIMITS).unwrap();
    for number in 0..2_000_u64 {
        cache.put(&(number % 3).to_le_bytes(), &[0; 1_000]);
    }
    compact(&mut cache, LEFT_ALONE, 64);
    assert!(cache.log.start > Offset(100));
    let found = cache.drain(slow);
    assert!(found.len() >= 4);
    let Some(Next::Lagged { resume_from }) = found.last() else { panic!("{:?}", found.last()) };
    let Some(Next::Event(last)) = found.get(found.len() - 2) else { panic!("events come first") };
    assert_eq!(resume_from.0, last.at.0 + 1, "no gap between what was told and where to go on");
    cache.core.unwatch(slow);
    let again = Interest::Prefix(Box::default());
    let id = cache.core.watch(again, WatchFrom::Offset(*resume_from), LIMITS).unwrap();
    cache.core.collect(1_000);
    let started = cache.core.take_started(id).unwrap().unwrap();
    assert_eq!((started.resnapshot, started.counted), (true, false));
    assert_eq!(cache.drain(id).len(), 3);
}

#[test]
fn a_watch_of_a_cache_in_memory_is_told_when_it_lags() {
    let mut core = CacheCore::new(Keeping::Memory { bytes_max: 64 << 20 }, Offset(0));
    let id = core.watch(Interest::Prefix(Box::default()), WatchFrom::Now, LIMITS).unwrap();
    let value = Bytes::from(vec![0; 10_000]);
    let put = |core: &mut CacheCore, number: u64| {
        let put = core.put(number.to_be_bytes(), value.clone(), Expiry::NEVER, Condition::Always, 0);
        let Ok(Put::Append(draft)) = put else { panic!("{put:?}") };
        core.apply(draft, 0)
    };
    put(&mut core, 0);
    put(&mut core, 1);
    assert!(matches!(core.next_event(id), Next::Event(_)));
    assert!(matches!(core.next_event(id), Next::Event(_)), "what is kept of the newest fills the gap");
    for number in 2..1_000 {
        put(&mut core, number);
    }
    assert!(matches!(core.next_event(id), Next::Event(event) if event.at == Offset(2)));
    assert_eq!(core.next_event(id), Next::Lagged { resume_from: Offset(3) });
    core.unwatch(id);
    let id = core.watch(Interest::Prefix(Box::default()), WatchFrom::Offset(Offset(3)), LIMITS).unwrap();
    core.collect(u32::MAX);
    assert!(core.take_started(id).unwrap().unwrap().resnapshot);
    assert_eq!(
        std::iter::from_fn(|| matches!(core.next_event(id), Next::Event(_)).then_some(())).count(),
        1_000
    );
}

#[test]
fn records_are_read_as_they_were_written_and_other_bytes_are_refused() {
    let records = [
        CacheRecord::Put { key: b"", value: b"", expiry: Expiry::NEVER },
        CacheRecord::Put { key: b"key", value: b"value", expiry: Expiry::from_millis(u64::MAX) },
        CacheRecord::Delete { key: b"key" },
        CacheRecord::Copy {
            key: b"key",
            value: b"v",
            expiry: Expiry::from_millis(9),
            version: Offset(1 << 40),
        },
    ];
    for record in records {
        let mut bytes = Vec::new();
        record.encode(&mut bytes);
        assert_eq!(bytes.len(), record.encoded_len());
        assert_eq!(CacheRecord::decode(&bytes), Ok(record));
        for cut in 0..bytes.len() {
            let found = CacheRecord::decode(&bytes[..cut]);
            assert_ne!(found, Ok(record));
            assert!(cut > 3 || found == Err(RecordFault::Short));
        }
    }
    assert_eq!(CacheRecord::decode(&[2, 1, 0, 0]), Err(RecordFault::Version(2)));
    assert_eq!(CacheRecord::decode(&[1, 9, 0, 0]), Err(RecordFault::Kind(9)));
    assert_eq!(CacheRecord::decode(&[1, 1, 9, 0, 0]), Err(RecordFault::Short));
    assert_eq!(
        CacheRecord::decode(&[1, 2, 1, 0, 7, 7]),
        Err(RecordFault::Malformed("bytes behind the record"))
    );
    let mut rng = SimRng::new(3);
    for _ in 0..100_000 {
        let mut bytes = vec![0; rng.below(40) as usize];
        rng.fill(&mut bytes);
        if let Some(version) = bytes.first_mut().filter(|_| rng.below(4) > 0) {
            *version = 1;
        }
        if let Some(kind) = bytes.get_mut(1).filter(|_| rng.below(4) > 0) {
            *kind = rng.below(5) as u8;
        }
        if let Ok(record) = CacheRecord::decode(&bytes) {
            let mut again = Vec::new();
            record.encode(&mut again);
            assert_eq!(again, bytes, "one encoding");
        }
    }
}

#[test]
fn a_bad_record_of_a_log_is_named_and_what_was_before_it_counts() {
    let mut log = TestLog::default();
    let mut good = Vec::new();
    CacheRecord::Put { key: b"k", value: b"v", expiry: Expiry::NEVER }.encode(&mut good);
    log.append(&[good, b"\x07".to_vec()], 0);
    let mut core = CacheCore::new(LOGGED, Offset(0));
    let bad = BadRecord { offset: Offset(1), fault: RecordFault::Version(7) };
    assert_eq!(core.replay(&log.batches[0]), Err(bad));
    assert_eq!(bad.to_string(), "record 1: version 7 of the record is not known");
    assert!(matches!(core.get(b"k", 0), Found::Here { .. }));
}
