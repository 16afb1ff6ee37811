//! Caches, counters and watches of the library against a scripted broker.

mod fake;

use std::time::{Duration, SystemTime};

use fake::requests::RequestTrick;
use fake::{DEADLINE, Ending, FakeBroker};
use felix_sdk::{
    Bytes, Cache, Change, Client, Condition, Conditional, Counters, CursorReason, Deadlines, Entry, Error,
    ErrorCode, Offset, RequestError, RetryClass, Watch, WatchError, WatchItem, WatchNotice, WatchStart,
};
use felix_wire::features::Features;
use tokio::task::JoinSet;

fn cache(client: &Client) -> Cache {
    client.cache("c").unwrap()
}

fn entry(value: &'static str, version: u64) -> Option<Entry> {
    Some(Entry { value: Bytes::from_static(value.as_bytes()), version: Some(version) })
}

fn trick(broker: &FakeBroker, trick: RequestTrick) {
    broker.state.change(|s| s.requests.tricks.push_back(trick));
}

/// A broker that numbers adds.
async fn numbering() -> FakeBroker {
    let broker = FakeBroker::start(2).await;
    broker
        .state
        .change(|s| s.features = s.features | Features::NUMBERED_WRITES | Features::IDEMPOTENT_PRODUCER);
    broker
}

#[tokio::test]
async fn values_are_put_read_conditionally_changed_and_deleted() {
    let broker = FakeBroker::start(3).await;
    let cache = cache(&broker.connect().await);
    assert_eq!(cache.get("k").await, Ok(None));
    assert_eq!(cache.delete("k").await, Ok(None));
    cache.put("k", "one", None).await.unwrap();
    assert_eq!(cache.get("k").await, Ok(entry("one", 0)));
    let put = |value, condition| cache.put_if("k", value, None, condition);
    let no = Conditional { applied: false, version: Some(0) };
    assert_eq!(put("two", Condition::Absent).await, Ok(no));
    assert_eq!(put("two", Condition::Version(7)).await, Ok(no));
    assert_eq!(put("two", Condition::Version(0)).await, Ok(Conditional { applied: true, version: Some(1) }));
    assert_eq!(cache.delete_if("k", 0).await, Ok(Conditional { applied: false, version: Some(1) }));
    assert_eq!(cache.delete_if("k", 1).await, Ok(Conditional { applied: true, version: None }));
    assert!(put("", Condition::Absent).await.unwrap().applied);
    assert_eq!(cache.delete("k").await, Ok(Some(Bytes::new())), "an empty value is a value");
    cache.put("", "of the empty key", Duration::from_millis(1_500)).await.unwrap();
    assert_eq!(broker.state.lock().caches.values[""].2, Some(1_500));
    assert_eq!(cache.shard_count().await, Ok(3));
}

#[tokio::test]
async fn what_cannot_be_sent_is_refused_before_anything_is() {
    let broker = FakeBroker::start(1).await;
    let client = broker.connect().await;
    let cache = cache(&client);
    let long = "k".repeat(65_536);
    for outcome in [
        cache.get(&long).await.map(drop),
        cache.put(&long, "v", None).await,
        cache.put("k", "v", Duration::MAX).await,
        client.counters("c").unwrap().add(&long, 1).await.map(drop),
    ] {
        let error = outcome.unwrap_err();
        assert!(matches!(error, RequestError::Invalid { .. }), "{error:?}");
        assert_eq!(error.retry_class(), RetryClass::Fatal);
    }
    let huge = cache.put("k", vec![0; 17 << 20], None).await.unwrap_err();
    assert!(matches!(huge, RequestError::TooLarge { .. }), "{huge:?}");
    assert!(broker.state.lock().requests.seen.is_empty());
    cache.put("k", "after it", None).await.unwrap();
    assert!(matches!(
        broker.client_without_namespace().connect().await.unwrap().cache("c"),
        Err(Error::Config { .. })
    ));
}

#[tokio::test]
async fn many_requests_are_on_their_way_at_once_each_on_a_stream_of_its_own() {
    let broker = FakeBroker::start(2).await;
    let cache = cache(&broker.connect().await);
    cache.shard_count().await.unwrap();
    let before = broker.state.lock().auths.len();
    broker.state.change(|s| s.requests.held = true);
    let mut puts = JoinSet::new();
    for number in 0..200 {
        let cache = cache.clone();
        puts.spawn(async move { cache.put(&format!("k{number}"), number.to_string(), None).await });
    }
    broker.state.when("as many as there are streams", |s| (s.requests.waiting == 64).then_some(())).await;
    broker.state.change(|s| s.requests.held = false);
    while let Some(put) = puts.join_next().await {
        put.unwrap().unwrap();
    }
    let state = broker.state.lock();
    assert_eq!((state.requests.waiting_most_on_one, state.caches.values.len()), (1, 200));
    assert!(state.auths.len() - before <= 65, "streams are used again: {}", state.auths.len() - before);
    assert!(state.caches.values.iter().all(|(key, (value, ..))| key.as_bytes()[1..] == *value));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_one_after_the_other_share_one_stream() {
    let broker = FakeBroker::start(1).await;
    let cache = cache(&broker.connect().await);
    cache.shard_count().await.unwrap();
    let before = broker.state.lock().auths.len();
    for _ in 0..300 {
        assert_eq!(cache.get("k").await, Ok(None));
    }
    assert_eq!(broker.state.lock().auths.len() - before, 1);
}

#[tokio::test]
async fn a_broker_that_answers_in_order_gets_many_requests_on_one_stream() {
    let broker = FakeBroker::start(2).await;
    broker.state.change(|s| s.features = s.features | Features::ORDERED_ANSWERS);
    let cache = cache(&broker.connect().await);
    cache.shard_count().await.unwrap();
    let before = broker.state.lock().auths.len();
    broker.state.change(|s| s.requests.held = true);
    let mut puts = JoinSet::new();
    for number in 0..150 {
        let cache = cache.clone();
        puts.spawn(async move { cache.put(&format!("k{number}"), number.to_string(), None).await });
    }
    broker.state.when("all of them", |s| (s.requests.waiting == 150).then_some(())).await;
    assert_eq!(broker.state.lock().auths.len() - before, 3, "streams");
    // The codes of refusals name no request: they come in order too.
    for number in 0..150 {
        if number % 3 == 0 {
            trick(&broker, RequestTrick::Refuse(ErrorCode::Forbidden, None));
        } else {
            trick(&broker, RequestTrick::Refuse(ErrorCode::Overloaded, Some(1)));
        }
    }
    broker.state.change(|s| s.requests.held = false);
    let mut refused = 0;
    while let Some(put) = puts.join_next().await {
        match put.unwrap() {
            Ok(()) => {}
            Err(error) => {
                assert_eq!(error.code(), Some(&ErrorCode::Forbidden));
                refused += 1;
            }
        }
    }
    let state = broker.state.lock();
    assert_eq!((refused, state.caches.values.len()), (50, 100));
    assert_eq!(state.requests.waiting_most_on_one, 64);
}

#[tokio::test]
async fn a_write_is_repeated_only_when_it_was_certainly_not_applied() {
    let mut broker = FakeBroker::start(1).await;
    let cache = cache(&broker.connect().await);
    trick(&broker, RequestTrick::Refuse(ErrorCode::Overloaded, Some(10)));
    trick(&broker, RequestTrick::Refuse(ErrorCode::ShardUnavailable, None));
    cache.put("k", "one", None).await.unwrap();
    assert_eq!(broker.state.lock().requests.seen.len(), 3);
    for lost in [RequestTrick::ApplyAndCut, RequestTrick::Cut, RequestTrick::ApplyAndDoubt] {
        let before = broker.state.lock().requests.seen.len();
        trick(&broker, lost.clone());
        let error = cache.put("k", "two", None).await.unwrap_err();
        assert!(error.is_outcome_unknown(), "{lost:?}: {error:?}");
        assert_eq!(broker.state.lock().requests.seen.len(), before + 1, "{lost:?}");
        // Reading is repeated.
        trick(&broker, lost.clone());
        assert!(cache.get("k").await.unwrap().is_some(), "{lost:?}");
    }
    broker.stop().await;
    broker.restart().await;
    cache.put("k", "three", None).await.unwrap();
    assert_eq!(cache.get("k").await.unwrap().unwrap().value, "three");
}

#[tokio::test]
async fn an_answer_that_cannot_be_ends_its_stream_and_no_other() {
    let broker = FakeBroker::start(1).await;
    let cache = cache(&broker.connect().await);
    cache.put("k", "v", None).await.unwrap();
    for lie in [RequestTrick::WrongId, RequestTrick::Nonsense] {
        trick(&broker, lie.clone());
        let error = cache.put("k", "w", None).await.unwrap_err();
        assert!(error.is_outcome_unknown() && error.to_string().contains("protocol"), "{lie:?}: {error:?}");
        trick(&broker, lie);
        assert_eq!(cache.get("k").await, Ok(entry("v", 0)), "asked again on another stream");
    }
    assert_eq!(broker.state.lock().open_connections, 1);
}

#[tokio::test]
async fn an_answer_that_does_not_come_is_given_up_in_time() {
    let broker = FakeBroker::start(1).await;
    let deadlines = Deadlines { request: Duration::from_millis(300), ..Deadlines::default() };
    let cache = cache(&broker.client().deadlines(deadlines).connect().await.unwrap());
    cache.shard_count().await.unwrap();
    trick(&broker, RequestTrick::Swallow);
    let error = cache.put("k", "v", None).await.unwrap_err();
    assert!(error.is_outcome_unknown() && error.to_string().contains("no answer to cache_put"), "{error}");
    trick(&broker, RequestTrick::Swallow);
    let error = cache.get("k").await.unwrap_err();
    let timed_out = matches!(error, RequestError::Unavailable(Error::TimedOut { what: "cache_get", .. }));
    assert!(timed_out && !error.is_outcome_unknown(), "{error:?}");
    assert_eq!(cache.get("k").await, Ok(entry("v", 0)));
}

#[tokio::test]
async fn a_caller_that_goes_away_leaves_the_stream_to_others() {
    let broker = FakeBroker::start(1).await;
    let cache = cache(&broker.connect().await);
    cache.put("k", "v", None).await.unwrap();
    let streams = broker.state.lock().auths.len();
    broker.state.change(|s| s.requests.held = true);
    let asking = tokio::spawn({
        let cache = cache.clone();
        async move { cache.get("k").await }
    });
    broker.state.when("asked", |s| (s.requests.waiting == 1).then_some(())).await;
    asking.abort();
    assert!(asking.await.unwrap_err().is_cancelled());
    broker.state.change(|s| s.requests.held = false);
    broker.state.when("answered", |s| (s.requests.waiting == 0).then_some(())).await;
    for _ in 0..10 {
        assert_eq!(cache.get("k").await, Ok(entry("v", 0)));
    }
    assert!(broker.state.lock().auths.len() <= streams + 1);
}

#[tokio::test]
async fn requests_go_to_the_owner_of_their_shard_and_follow_the_one_that_leads() {
    let entry_broker = FakeBroker::start(1).await;
    let owner = entry_broker.sibling(1);
    let leader = entry_broker.sibling(1);
    let address = owner.addr.to_string();
    entry_broker.state.change(|s| s.owner = Some(("b".to_owned(), address)));
    let cache = cache(&entry_broker.connect().await);
    cache.put("k", "v", None).await.unwrap();
    assert_eq!(owner.state.lock().caches.values.len(), 1);
    assert!(entry_broker.state.lock().requests.seen.is_empty());
    let address = leader.addr.to_string();
    owner.state.change(|s| s.requests.leader = Some(("c".to_owned(), address)));
    cache.put("k", "w", None).await.unwrap();
    assert_eq!(leader.state.lock().caches.values.len(), 1);
    // Remembered: the old one is not asked again.
    let asked = owner.state.lock().requests.seen.len();
    assert_eq!(cache.get("k").await, Ok(entry("w", 0)));
    assert_eq!(owner.state.lock().requests.seen.len(), asked);
}

#[tokio::test]
async fn requests_go_over_a_connection_to_the_core_of_their_shard() {
    let broker = FakeBroker::start(2).await;
    broker.state.change(|s| s.cores = Some(2));
    let client = broker.connect().await;
    let cache = cache(&client);
    for number in 0..20 {
        cache.put(&format!("k{number}"), "v", None).await.unwrap();
    }
    assert_eq!(client.connection_count(), 2);
    let cores: std::collections::BTreeSet<u8> = broker.state.lock().aims.iter().map(|aim| aim % 2).collect();
    assert_eq!(cores.len(), 2);
}

#[tokio::test]
async fn what_the_broker_does_not_serve_or_know_is_told() {
    let broker = FakeBroker::start(1).await;
    broker.state.change(|s| {
        s.features = s
            .features
            .without(Features::CACHE_DELETE)
            .without(Features::CACHE_CONDITIONAL)
            .without(Features::CACHE_WATCH)
            .without(Features::COUNTERS);
    });
    let client = broker.connect().await;
    let cache = cache(&client);
    let not_served = |what| RequestError::Unavailable(Error::NotServed { what });
    assert_eq!(cache.delete("k").await, Err(not_served("cache_delete")));
    assert_eq!(cache.delete_if("k", 1).await, Err(not_served("cache_delete_if")));
    assert_eq!(cache.put_if("k", "v", None, Condition::Absent).await, Err(not_served("cache_put_if")));
    assert_eq!(client.counters("c").unwrap().get("k").await, Err(not_served("counter_get")));
    let error = cache.watch("k").open().await.err().unwrap();
    assert_eq!(error, WatchError::Failed { shard: 0, error: Error::NotServed { what: "cache_watch" } });
    broker.state.change(|s| s.caches.known = false);
    assert!(client.cache("other").unwrap().get("k").await.unwrap_err().is_not_found());
    let error = client.cache("other").unwrap().watch_prefix("").open().await.err();
    assert_eq!(error, Some(WatchError::UnknownCache));
}

async fn add(counters: &Counters, key: &str, delta: i64) -> i64 {
    tokio::time::timeout(DEADLINE, counters.add(key, delta)).await.expect("in time").unwrap()
}

#[tokio::test]
async fn counters_tell_zero_from_never_written_and_refuse_what_does_not_fit() {
    let broker = numbering().await;
    let counters = broker.connect().await.counters("c").unwrap();
    assert_eq!(counters.get("n").await, Ok(None));
    assert_eq!(add(&counters, "n", 5).await, 5);
    assert_eq!(add(&counters, "n", -5).await, 0);
    assert_eq!(counters.get("n").await, Ok(Some(0)));
    assert_eq!(add(&counters, "n", i64::MAX).await, i64::MAX);
    let error = counters.add("n", 1).await.unwrap_err();
    assert_eq!((error.code(), error.is_outcome_unknown()), (Some(&ErrorCode::InvalidRequest), false));
    assert_eq!(add(&counters, "n", -1).await, i64::MAX - 1, "the refused number is used for the next add");
    assert_eq!(broker.state.lock().producer_inits, 1);
}

#[tokio::test]
async fn numbered_adds_count_once_through_lost_answers_and_restarts() {
    let mut broker = numbering().await;
    let counters = broker.connect().await.counters("c").unwrap();
    for lost in
        [RequestTrick::ApplyAndCut, RequestTrick::Cut, RequestTrick::ApplyAndDoubt, RequestTrick::WrongId]
    {
        let before = counters.get("n").await.unwrap().unwrap_or(0);
        trick(&broker, lost.clone());
        assert_eq!(add(&counters, "n", 1).await, before + 1, "{lost:?}");
    }
    broker.state.change(|s| s.requests.held = true);
    let mut adds = JoinSet::new();
    for _ in 0..40 {
        let counters = counters.clone();
        adds.spawn(async move { counters.add("n", 1).await });
    }
    broker.state.when("all on their way", |s| (s.requests.waiting == 40).then_some(())).await;
    broker.stop().await;
    broker.state.change(|s| (s.requests.held, s.requests.waiting) = (false, 0));
    broker.restart().await;
    let mut sums = Vec::new();
    while let Some(sum) = adds.join_next().await {
        sums.push(sum.unwrap().unwrap());
    }
    sums.sort_unstable();
    assert_eq!(sums, (5..=44).collect::<Vec<i64>>(), "each counts once and answers its own sum");
    // One after the other they go on under one producer.
    let inits = broker.state.lock().producer_inits;
    for _ in 0..10 {
        add(&counters, "n", 1).await;
    }
    let state = broker.state.lock();
    assert_eq!(state.producer_inits, inits);
    let last: std::collections::HashSet<u64> =
        state.caches.adds.iter().rev().take(10).map(|(_, number)| number.unwrap().0).collect();
    assert_eq!(last.len(), 1);
}

#[tokio::test]
async fn a_producer_that_the_shard_has_forgotten_is_replaced() {
    let broker = numbering().await;
    let counters = broker.connect().await.counters("c").unwrap();
    assert_eq!(add(&counters, "n", 1).await, 1);
    broker.state.change(|s| s.caches.numbers.clear());
    assert_eq!(add(&counters, "n", 1).await, 2);
    // With a copy that may have been applied nobody knows.
    broker.state.change(|s| s.caches.numbers.clear());
    trick(&broker, RequestTrick::Cut);
    assert!(counters.add("n", 1).await.unwrap_err().is_outcome_unknown());
    assert_eq!(add(&counters, "n", 1).await, 3, "with another producer");
}

#[tokio::test]
async fn whatever_becomes_of_answers_and_producers_each_add_counts_as_it_says() {
    for seed in 1..=6_u64 {
        let broker = numbering().await;
        let counters = broker.connect().await.counters("c").unwrap();
        let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut pick = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % below
        };
        let tricks: Vec<RequestTrick> = (0..120)
            .map(|_| match pick(12) {
                0 => RequestTrick::ApplyAndCut,
                1 => RequestTrick::Cut,
                2 => RequestTrick::ApplyAndDoubt,
                3 => RequestTrick::WrongId,
                4 => RequestTrick::Refuse(ErrorCode::Overloaded, Some(1)),
                5 => RequestTrick::Refuse(ErrorCode::Forbidden, None),
                _ => RequestTrick::Usual,
            })
            .collect();
        broker.state.change(|s| s.requests.tricks.extend(tricks));
        let mut adds = JoinSet::new();
        for number in 0..80 {
            let counters = counters.clone();
            adds.spawn(
                async move { counters.add("n", 1 << (number % 8 * 4)).await.map_err(|e| (number, e)) },
            );
            if number % 10 == 0 {
                tokio::task::yield_now().await;
                broker.state.change(|s| s.caches.numbers.clear());
            }
        }
        let (mut sure, mut possible) = (0, 0);
        let mut settled = Vec::new();
        while let Some(add) = adds.join_next().await {
            settled.push(add.unwrap());
        }
        for number in 0..80_i64 {
            let delta = 1 << (number % 8 * 4);
            match settled.iter().filter_map(|add| add.as_ref().err()).find(|(of, _)| *of == number) {
                None => (sure, possible) = (sure + delta, possible + delta),
                Some((_, error)) if error.is_outcome_unknown() => possible += delta,
                Some(_) => {}
            }
        }
        let sum = counters.get("n").await.unwrap().unwrap_or(0);
        // Each kind of delta has a digit of its own, so that no error hides behind another.
        for digit in 0..8 {
            let of = |number: i64| (number >> (digit * 4)) & 15;
            assert!(
                of(sure) <= of(sum) && of(sum) <= of(possible),
                "SEED={seed}: {sure:x} {sum:x} {possible:x}"
            );
        }
    }
}

#[tokio::test]
async fn an_add_without_numbers_is_not_repeated() {
    let broker = FakeBroker::start(1).await;
    let counters = broker.connect().await.counters("c").unwrap();
    assert_eq!(add(&counters, "n", 1).await, 1);
    trick(&broker, RequestTrick::ApplyAndCut);
    assert!(counters.add("n", 1).await.unwrap_err().is_outcome_unknown());
    assert_eq!(counters.get("n").await, Ok(Some(2)));
    assert!(broker.state.lock().caches.adds.iter().all(|(_, number)| number.is_none()));
}

async fn item(watch: &mut Watch) -> WatchItem {
    tokio::time::timeout(DEADLINE, watch.next_item()).await.expect("an item in time").expect("it goes on")
}

async fn change(watch: &mut Watch) -> Change {
    match item(watch).await {
        WatchItem::Change(change) => change,
        other => panic!("{other:?}"),
    }
}

/// Key, value and offset of the next changes.
async fn changes(watch: &mut Watch, count: usize) -> Vec<(String, Option<Bytes>, u64, bool)> {
    let mut found = Vec::new();
    for _ in 0..count {
        let next = change(watch).await;
        found.push((next.key, next.value, next.offset.get(), next.current));
    }
    found
}

fn of(
    key: &str,
    value: impl Into<Option<&'static str>>,
    offset: u64,
    current: bool,
) -> (String, Option<Bytes>, u64, bool) {
    let value = value.into().map(|value| Bytes::from_static(value.as_bytes()));
    (key.to_owned(), value, offset, current)
}

#[tokio::test]
async fn a_watch_is_told_changes_of_its_keys_with_their_time() {
    let broker = FakeBroker::start(1).await;
    let cache = cache(&broker.connect().await);
    let mut one = cache.watch("mortal").open().await.unwrap();
    let mut all = cache.watch_prefix("").open().await.unwrap();
    broker.state.change(|s| {
        s.caches.put("a", "1");
        s.caches.put("mortal", "2");
        s.caches.delete("a");
    });
    let found = changes(&mut all, 3).await;
    assert_eq!(found, [of("a", "1", 0, false), of("mortal", "2", 1, false), of("a", None, 2, false)]);
    let change = change(&mut one).await;
    assert_eq!(change.expires_at, SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(86_400)));
    assert_eq!((change.offset, change.shard), (Offset(1), 0));
    drop((one, all));
    broker.state.when("the watches are stopped", |s| (s.event_streams == 0).then_some(())).await;
}

#[tokio::test]
async fn a_prefix_watch_follows_all_shards_with_the_current_values_first() {
    let broker = FakeBroker::start(3).await;
    let cache = cache(&broker.connect().await);
    for number in 0..30 {
        cache.put(&format!("k{number}"), "v", None).await.unwrap();
    }
    let mut watch = cache.watch_prefix("k").from(WatchStart::Current).open().await.unwrap();
    assert_eq!(watch.live_shards(), 3);
    let (mut told, mut current) = (0, 0);
    while current < 30 {
        match item(&mut watch).await {
            WatchItem::Notice(WatchNotice::Current { values, .. }) => told += values,
            WatchItem::Change(change) if change.current => current += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(told, 30);
    cache.put("k7", "w", None).await.unwrap();
    let next = change(&mut watch).await;
    assert_eq!((next.key.as_str(), next.current), ("k7", false));
    let error = cache.watch_prefix("").shard(3).open().await.err();
    assert_eq!(error, Some(WatchError::UnknownShard { shard: 3, shards: 3 }));
    let error = cache.watch("k").shard(0).open().await.err().unwrap();
    assert!(matches!(error, WatchError::Open(RequestError::Invalid { .. })), "{error:?}");
}

#[tokio::test]
async fn a_watch_goes_on_through_restarts_moves_and_lag_without_loss_or_repetition() {
    let mut broker = FakeBroker::start(1).await;
    let cache = cache(&broker.connect().await);
    broker.state.change(|s| s.caches.put("k", "0"));
    let mut watch = cache.watch("k").from(WatchStart::Offset(Offset(0))).open().await.unwrap();
    assert_eq!(changes(&mut watch, 1).await, [of("k", "0", 0, false)]);
    broker.stop().await;
    broker.state.change(|s| {
        s.caches.put("k", "1");
        s.caches.put("k", "2");
    });
    broker.restart().await;
    assert!(matches!(item(&mut watch).await, WatchItem::Notice(WatchNotice::Away { shard: 0, .. })));
    assert!(matches!(item(&mut watch).await, WatchItem::Notice(WatchNotice::Back { shard: 0, .. })));
    assert_eq!(changes(&mut watch, 2).await, [of("k", "1", 1, false), of("k", "2", 2, false)]);
    let end = |ending| {
        broker.state.change(|s| {
            s.next_id += 1;
            s.ending = Some((s.next_id, ending));
        });
    };
    end(Ending::Lagged);
    let lagged = WatchNotice::Lagged { shard: 0, from: Offset(3) };
    assert_eq!(item(&mut watch).await, WatchItem::Notice(lagged));
    broker.state.change(|s| s.caches.put("k", "3"));
    assert_eq!(changes(&mut watch, 1).await, [of("k", "3", 3, false)]);
    end(Ending::Moved);
    assert_eq!(item(&mut watch).await, WatchItem::Notice(WatchNotice::Moved { shard: 0 }));
    broker.state.change(|s| s.caches.put("k", "4"));
    assert_eq!(changes(&mut watch, 1).await, [of("k", "4", 4, false)]);
    end(Ending::Error(ErrorCode::Revoked));
    let WatchItem::Error(error) = item(&mut watch).await else { panic!("an error") };
    assert!(error.ends_shard());
    assert_eq!(tokio::time::timeout(DEADLINE, watch.next()).await.unwrap(), None);
}

#[tokio::test]
async fn history_that_is_gone_is_told_and_the_current_values_follow() {
    let mut broker = FakeBroker::start(1).await;
    let cache = cache(&broker.connect().await);
    broker.state.change(|s| (s.caches.put("a", "0"), s.caches.put("b", "1")));
    let mut watch = cache.watch_prefix("").from(WatchStart::Offset(Offset(0))).open().await.unwrap();
    assert_eq!(changes(&mut watch, 2).await.len(), 2);
    broker.stop().await;
    broker.state.change(|s| {
        s.caches.delete("a");
        s.caches.put("b", "3");
        s.caches.compacted = 4;
    });
    broker.restart().await;
    assert!(matches!(item(&mut watch).await, WatchItem::Notice(WatchNotice::Away { .. })));
    assert_eq!(item(&mut watch).await, WatchItem::Error(WatchError::BeginsAnew { shard: 0 }));
    assert!(matches!(item(&mut watch).await, WatchItem::Notice(WatchNotice::Back { .. })));
    assert_eq!(changes(&mut watch, 1).await, [of("b", "3", 3, true)]);
    broker.state.change(|s| s.caches.put("c", "4"));
    assert_eq!(changes(&mut watch, 1).await, [of("c", "4", 4, false)]);
}

#[tokio::test]
async fn current_values_that_were_cut_off_are_asked_for_again() {
    let broker = FakeBroker::start(1).await;
    let cache = cache(&broker.connect().await);
    broker.state.change(|s| {
        s.caches.put("a", "0");
        s.caches.put("b", "1");
        s.caches.cut_after = Some(1);
    });
    let mut watch = cache.watch_prefix("").from(WatchStart::Current).open().await.unwrap();
    let two = WatchItem::Notice(WatchNotice::Current { shard: 0, values: 2 });
    assert_eq!(item(&mut watch).await, two);
    assert_eq!(changes(&mut watch, 1).await, [of("a", "0", 0, true)]);
    assert!(matches!(item(&mut watch).await, WatchItem::Notice(WatchNotice::Away { .. })));
    assert_eq!(item(&mut watch).await, WatchItem::Error(WatchError::BeginsAnew { shard: 0 }));
    assert_eq!(item(&mut watch).await, two);
    assert!(matches!(item(&mut watch).await, WatchItem::Notice(WatchNotice::Back { .. })));
    assert_eq!(changes(&mut watch, 2).await, [of("a", "0", 0, true), of("b", "1", 1, true)]);
    assert_eq!(broker.state.lock().caches.watches, [(None, true), (None, true)]);
}

#[tokio::test]
async fn an_offset_in_the_future_is_a_typed_error() {
    let broker = FakeBroker::start(1).await;
    let cache = cache(&broker.connect().await);
    let error = cache.watch("k").from(WatchStart::Offset(Offset(1))).open().await.err();
    let (reason, requested, available) = (CursorReason::InFuture, 1, 0);
    assert_eq!(error, Some(WatchError::Cursor { shard: 0, reason, requested, available }));
}

#[tokio::test]
async fn a_busy_watcher_stops_the_broker_and_loses_nothing() {
    let broker = FakeBroker::start(1).await;
    let client = broker.connect().await;
    let cache = cache(&client);
    broker.state.change(|s| {
        for number in 0..400 {
            s.caches.put(&format!("k{number:03}"), vec![b'x'; 64 << 10]);
        }
    });
    let builder = cache.watch_prefix("k").from(WatchStart::Offset(Offset(0))).buffer_bytes(1 << 20);
    let mut watch = builder.open().await.unwrap();
    // Another one is not held up by it.
    cache.put("other", "v", None).await.unwrap();
    assert_eq!(cache.get("other").await.unwrap().unwrap().value, "v");
    for number in 0..400 {
        let change = change(&mut watch).await;
        assert_eq!((change.key, change.offset), (format!("k{number:03}"), Offset(number)));
    }
}
