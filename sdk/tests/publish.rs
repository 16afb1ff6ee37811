//! Publishing against a scripted broker.

mod fake;

use std::collections::HashMap;
use std::time::Duration;

use fake::{Answers, DEADLINE, FakeBroker};
use felix_sdk::{
    AckMode, BatchLimits, Bytes, Deadlines, Error, ErrorCode, KeyMapping, Offset, PublishError, Receipt,
    RetryClass, TryPublishError, shard_for,
};
use felix_wire::features::Features;

fn key(text: &str) -> Option<Bytes> {
    Some(Bytes::copy_from_slice(text.as_bytes()))
}

async fn all_ok(receipts: Vec<Receipt>) -> Vec<felix_sdk::Published> {
    let mut published = Vec::new();
    for receipt in receipts {
        published.push(tokio::time::timeout(DEADLINE, receipt).await.expect("answered").expect("stored"));
    }
    published
}

/// For every key, the numbers its records carry, in the order of the log.
fn by_key(broker: &FakeBroker) -> HashMap<String, Vec<u32>> {
    let state = broker.state.lock();
    let mut found: HashMap<String, Vec<u32>> = HashMap::new();
    for record in state.records.iter().flatten() {
        let text = std::str::from_utf8(record).expect("text");
        let (key, number) = text.split_once(':').expect("key:number");
        found.entry(key.to_owned()).or_default().push(number.parse().expect("a number"));
    }
    found
}

#[tokio::test]
async fn records_reach_the_shard_of_their_key_in_order_with_their_offsets() {
    let broker = FakeBroker::start(4).await;
    let client = broker.connect().await;
    let publisher = client.publisher("s").open().await.unwrap();
    let mut receipts = Vec::new();
    for number in 0..200 {
        let name = format!("k{}", number % 10);
        receipts.push(publisher.send(format!("{name}:{number}"), key(&name)).await.unwrap());
    }
    for (number, published) in all_ok(receipts).await.into_iter().enumerate() {
        let name = format!("k{}", number % 10);
        let shard = shard_for(Some(name.as_bytes()), 4, KeyMapping::JumpHash).get();
        assert_eq!(published.shard, shard);
        let state = broker.state.lock();
        let stored = &state.records[shard as usize][published.offset.unwrap().get() as usize];
        assert_eq!(stored, format!("{name}:{number}").as_bytes());
    }
    assert!(by_key(&broker).values().all(|numbers| numbers.is_sorted() && numbers.len() == 20));
    assert!(broker.state.lock().publishes.iter().all(|p| p.acked && p.declared_width == Some(4)));
}

#[tokio::test]
async fn a_batch_is_one_frame_and_its_receipt_names_the_first_offset() {
    let broker = FakeBroker::start(1).await;
    let client = broker.connect().await;
    let publisher = client.publisher("ns/s").batch(BatchLimits::one_send_per_frame()).open().await.unwrap();
    let batch = |n: usize| (0..n).map(|i| Bytes::from(format!("r{i}"))).collect::<Vec<_>>();
    let first = publisher.send_batch(batch(3), None).await.unwrap().await.unwrap();
    let second = publisher.send_batch(batch(5), None).await.unwrap().await.unwrap();
    assert_eq!((first.offset, second.offset), (Some(Offset(0)), Some(Offset(3))));
    let sizes: Vec<_> = broker.state.lock().publishes.iter().map(|p| p.records).collect();
    assert_eq!(sizes, [3, 5]);
}

#[tokio::test]
async fn answers_out_of_order_reach_their_receipts_when_no_pipeline_was_granted() {
    let broker = FakeBroker::start(1).await;
    broker.state.change(|s| {
        s.features = s.features.without(Features::PUBLISH_PIPELINE);
        s.answers = Answers::ReversedInGroups(5);
    });
    let client = broker.connect().await;
    let publisher = client.publisher("s").batch(BatchLimits::one_send_per_frame()).open().await.unwrap();
    let mut receipts = Vec::new();
    for number in 0..20 {
        receipts.push(publisher.send(format!("{number}"), None).await.unwrap());
    }
    let offsets: Vec<_> = all_ok(receipts).await.into_iter().map(|p| p.offset.unwrap().get()).collect();
    assert_eq!(offsets, (0..20).collect::<Vec<_>>());
}

#[tokio::test]
async fn an_answer_out_of_order_under_a_granted_pipeline_ends_the_stream_as_unknown() {
    let broker = FakeBroker::start(1).await;
    broker.state.change(|s| s.answers = Answers::ReversedInGroups(2));
    let client = broker.connect().await;
    let publisher = client.publisher("s").batch(BatchLimits::one_send_per_frame()).open().await.unwrap();
    let first = publisher.send("a", None).await.unwrap();
    let second = publisher.send("b", None).await.unwrap();
    assert!(first.await.unwrap_err().is_outcome_unknown());
    assert!(second.await.unwrap_err().is_outcome_unknown());
}

#[tokio::test]
async fn no_more_than_the_granted_window_is_unanswered() {
    let broker = FakeBroker::start(1).await;
    broker.state.change(|s| {
        s.window = 3;
        s.answers = Answers::Held;
    });
    let client = broker.connect().await;
    let publisher = client.publisher("s").batch(BatchLimits::one_send_per_frame()).open().await.unwrap();
    let mut receipts = Vec::new();
    for number in 0..30 {
        receipts.push(publisher.send(format!("{number}"), None).await.unwrap());
    }
    broker.state.when("a full window", |s| (s.unanswered == 3).then_some(())).await;
    broker.state.change(|s| s.answers = Answers::Prompt);
    assert_eq!(all_ok(receipts).await.len(), 30);
    assert_eq!(broker.state.lock().unanswered_most, 3);
}

#[tokio::test]
async fn a_full_budget_is_an_answer_to_try_and_a_wait_to_send() {
    let broker = FakeBroker::start(1).await;
    broker.state.change(|s| s.answers = Answers::Held);
    let client = broker.connect().await;
    let publisher = client.publisher("s").budget_bytes(10_000).open().await.unwrap();
    let record = Bytes::from(vec![7; 4_000]);
    let first = publisher.try_publish(record.clone(), None).unwrap();
    let second = publisher.try_publish(record.clone(), None).unwrap();
    assert_eq!(publisher.try_publish(record.clone(), None).unwrap_err(), TryPublishError::Full);
    let waiting = tokio::spawn({
        let publisher = publisher.clone();
        // Larger than the whole budget: it goes when it is alone.
        async move { publisher.send(vec![8; 50_000], None).await.unwrap().await }
    });
    broker.state.when("both taken", |s| (s.record_count() == 2).then_some(())).await;
    broker.state.change(|s| s.answers = Answers::Prompt);
    all_ok(vec![first, second]).await;
    assert_eq!(waiting.await.unwrap().unwrap().offset, Some(Offset(2)));
}

#[tokio::test]
async fn what_can_never_be_sent_is_refused_here() {
    let broker = FakeBroker::start(1).await;
    let client = broker.connect().await;
    let publisher = client.publisher("s").open().await.unwrap();
    let huge = publisher.send(vec![0; 16 << 20], None).await.unwrap_err();
    assert!(matches!(huge, PublishError::TooLarge { .. }), "{huge:?}");
    let parts = vec![Bytes::from(vec![0; 6 << 20]); 3];
    assert!(matches!(publisher.send_batch(parts, None).await, Err(PublishError::TooLarge { .. })));
    let none = publisher.send_batch(Vec::new(), None).await.unwrap_err();
    assert!(matches!(none, PublishError::RecordCount { records: 0, .. }));
    let key = Bytes::from(vec![0; 65_536]);
    assert!(matches!(publisher.try_publish("r", Some(key)), Err(TryPublishError::Publish(_))));
    // The largest record that can be delivered does go.
    let largest = vec![1; felix_wire::limits::RECORD_LEN_MAX - 200];
    assert_eq!(publisher.send(largest, None).await.unwrap().await.unwrap().offset, Some(Offset(0)));
}

#[tokio::test]
async fn a_wider_stream_is_noticed_and_nothing_is_lost_doubled_or_reordered() {
    let broker = FakeBroker::start(2).await;
    let client = broker.connect().await;
    let publisher = client.publisher("s").open().await.unwrap();
    let mut receipts = Vec::new();
    for number in 0..300 {
        if number == 100 {
            broker.state.change(|s| {
                s.shards = 5;
                s.records.resize(5, Vec::new());
            });
        }
        let name = format!("k{}", number % 7);
        receipts.push(publisher.send(format!("{name}:{number}"), key(&name)).await.unwrap());
    }
    all_ok(receipts).await;
    assert_eq!(publisher.shard_count(), 5);
    assert_eq!(broker.state.lock().record_count(), 300);
    // A key that moved has its older records in its old shard: count all, order within each shard.
    let total: usize = by_key(&broker).values().map(Vec::len).sum();
    assert_eq!(total, 300);
    for log in &broker.state.lock().records {
        let mut last: HashMap<&str, u32> = HashMap::new();
        for record in log {
            let (name, number) = std::str::from_utf8(record).unwrap().split_once(':').unwrap();
            let number: u32 = number.parse().unwrap();
            assert!(last.insert(name, number).is_none_or(|before| before < number), "{name} out of order");
        }
    }
}

#[tokio::test]
async fn a_width_refused_once_is_declared_again_for_the_same_shards() {
    let broker = FakeBroker::start(2).await;
    let client = broker.connect().await;
    let publisher = client.publisher("s").open().await.unwrap();
    broker.state.change(|s| s.refuse_next.push_back(ErrorCode::StaleWidth));
    let published = publisher.send("k:1", key("k")).await.unwrap().await.unwrap();
    assert_eq!(published.offset, Some(Offset(0)));
    assert_eq!(broker.state.lock().record_count(), 1);
}

#[tokio::test]
async fn refusals_with_nothing_written_are_sent_again_and_final_ones_are_told() {
    let broker = FakeBroker::start(1).await;
    let client = broker.connect().await;
    let publisher = client.publisher("s").open().await.unwrap();
    for code in
        [ErrorCode::Overloaded, ErrorCode::ShardUnavailable, ErrorCode::NotLeader, ErrorCode::Unauthenticated]
    {
        broker.state.change(|s| s.refuse_next.push_back(code.clone()));
        publisher.send("again", None).await.unwrap().await.unwrap_or_else(|e| panic!("{code}: {e}"));
    }
    broker.state.change(|s| s.refuse_next.push_back(ErrorCode::Forbidden));
    let refused = publisher.send("no", None).await.unwrap().await.unwrap_err();
    assert_eq!((refused.code(), refused.is_outcome_unknown()), (Some(&ErrorCode::Forbidden), false));
    broker.state.change(|s| s.refuse_next.push_back(ErrorCode::QuorumTimeout));
    assert!(publisher.send("maybe", None).await.unwrap().await.unwrap_err().is_outcome_unknown());
    assert_eq!(broker.state.lock().record_count(), 4);
}

#[tokio::test]
async fn without_retries_an_overloaded_broker_is_told_at_once() {
    let broker = FakeBroker::start(1).await;
    let client = broker.connect().await;
    let publisher = client.publisher("s").retry_refused(Duration::ZERO).open().await.unwrap();
    broker.state.change(|s| s.refuse_next.push_back(ErrorCode::Overloaded));
    let refused = publisher.send("r", None).await.unwrap().await.unwrap_err();
    assert_eq!(refused.code(), Some(&ErrorCode::Overloaded));
}

#[tokio::test]
async fn a_lost_connection_leaves_publishes_in_flight_unknown_and_later_ones_go_on() {
    let mut broker = FakeBroker::start(1).await;
    broker.state.change(|s| s.answers = Answers::Held);
    let client = broker.connect().await;
    let publisher = client.publisher("s").batch(BatchLimits::one_send_per_frame()).open().await.unwrap();
    let mut flying = Vec::new();
    for number in 0..5 {
        flying.push(publisher.send(format!("{number}"), None).await.unwrap());
    }
    broker.state.when("all five", |s| (s.record_count() == 5).then_some(())).await;
    broker.restart().await;
    for receipt in flying {
        let lost = tokio::time::timeout(DEADLINE, receipt).await.unwrap().unwrap_err();
        assert!(lost.is_outcome_unknown(), "{lost:?}");
    }
    broker.state.change(|s| s.answers = Answers::Prompt);
    let next = publisher.send("5", None).await.unwrap().await.unwrap();
    assert_eq!(next.offset, Some(Offset(5)));
}

#[tokio::test]
async fn an_unreachable_broker_is_told_with_nothing_written() {
    let mut broker = FakeBroker::start(1).await;
    let deadlines = Deadlines { connect: Duration::from_millis(300), ..Deadlines::default() };
    let client = broker.client().deadlines(deadlines).connect().await.unwrap();
    let publisher = client.publisher("s").retry_refused(Duration::from_millis(200)).open().await.unwrap();
    publisher.send("a", None).await.unwrap().await.unwrap();
    broker.stop().await;
    let receipt = publisher.send("b", None).await.unwrap();
    let error = tokio::time::timeout(DEADLINE, receipt).await.unwrap().unwrap_err();
    assert!(matches!(error, PublishError::Unavailable(_)), "{error:?}");
    assert!(!error.is_outcome_unknown());
}

#[tokio::test]
async fn a_partial_batch_lingers_and_a_full_one_does_not() {
    let broker = FakeBroker::start(1).await;
    let client = broker.connect().await;
    let hour = BatchLimits { max_records: 10, max_bytes: 1 << 20, linger: Duration::from_secs(3_600) };
    let publisher = client.publisher("s").batch(hour).open().await.unwrap();
    let mut receipts = Vec::new();
    for number in 0..25 {
        receipts.push(publisher.send(format!("{number}"), None).await.unwrap());
    }
    broker.state.when("two full frames", |s| (s.record_count() == 20).then_some(())).await;
    publisher.flush().await.unwrap();
    all_ok(receipts).await;
    let sizes: Vec<_> = broker.state.lock().publishes.iter().map(|p| p.records).collect();
    assert_eq!(sizes, [10, 10, 5]);
}

#[tokio::test]
async fn a_frame_that_cannot_become_full_does_not_linger() {
    let broker = FakeBroker::start(1).await;
    let client = broker.connect().await;
    let limits = BatchLimits { max_records: 1_000, max_bytes: 1 << 20, linger: Duration::from_secs(3_600) };
    let publisher = client.publisher("s").batch(limits).budget_bytes(1_000).open().await.unwrap();
    let mut receipts = Vec::new();
    let sending = async {
        for number in 0..100 {
            receipts.push(publisher.send(format!("{number}"), None).await.unwrap());
        }
    };
    tokio::time::timeout(DEADLINE, sending).await.expect("the budget comes back");
    publisher.flush().await.unwrap();
    all_ok(std::mem::take(&mut receipts)).await;
    // The same for those who do not wait for room.
    let sending = async {
        for number in 0..100 {
            loop {
                match publisher.try_publish(format!("{number}"), None) {
                    Ok(receipt) => break receipts.push(receipt),
                    Err(TryPublishError::Full) => drop(receipts.remove(0).await.unwrap()),
                    Err(error) => panic!("{error}"),
                }
            }
        }
    };
    tokio::time::timeout(DEADLINE, sending).await.expect("the receipts come");
    publisher.flush().await.unwrap();
    assert_eq!(broker.state.lock().record_count(), 200);
    assert!(broker.state.lock().publishes.iter().any(|p| p.records > 1), "frames are merged still");
}

#[tokio::test]
async fn limits_above_those_of_the_protocol_are_taken_as_these() {
    let broker = FakeBroker::start(1).await;
    let client = broker.connect().await;
    let most =
        BatchLimits { max_records: usize::MAX, max_bytes: usize::MAX, linger: Duration::from_secs(3_600) };
    let publisher = client.publisher("s").batch(most).budget_bytes(64 << 20).open().await.unwrap();
    let mut receipts = Vec::new();
    for _ in 0..70_000 {
        receipts.push(publisher.send("", None).await.unwrap());
    }
    broker.state.when("a full frame", |s| (s.record_count() == 65_536).then_some(())).await;
    publisher.flush().await.unwrap();
    all_ok(receipts).await;
}

/// A record for every shard.
async fn one_for_each_shard(publisher: &felix_sdk::Publisher, shards: u32) -> Vec<Receipt> {
    let mut left: Vec<u32> = (0..shards).collect();
    let mut receipts = Vec::new();
    for number in 0_u64.. {
        let name = number.to_string();
        let shard = shard_for(Some(name.as_bytes()), shards, KeyMapping::JumpHash).get();
        if let Ok(at) = left.binary_search(&shard) {
            left.remove(at);
            receipts.push(publisher.send(name.clone(), key(&name)).await.unwrap());
        }
        if left.is_empty() {
            break;
        }
    }
    receipts
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_shards_than_a_connection_has_streams_get_another_connection() {
    let broker = FakeBroker::start(1_600).await;
    let client = broker.connect().await;
    let publisher = client.publisher("s").open().await.unwrap();
    let receipts = one_for_each_shard(&publisher, 1_600).await;
    assert_eq!(all_ok(receipts).await.len(), 1_600);
    // 768 each.
    assert_eq!(client.connection_count(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_allows_few_streams_gets_more_connections() {
    let broker = FakeBroker::start_with_streams(20, 8).await;
    let deadlines = Deadlines { request: Duration::from_millis(500), ..Deadlines::default() };
    let client = broker.client().deadlines(deadlines).connect().await.unwrap();
    let publisher = client.publisher("s").retry_refused(DEADLINE).open().await.unwrap();
    let receipts = one_for_each_shard(&publisher, 20).await;
    assert_eq!(all_ok(receipts).await.len(), 20);
    assert!(client.connection_count() >= 3, "{}", client.connection_count());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_no_more_connections_may_be_made_the_error_says_what_was_waited_for() {
    let broker = FakeBroker::start_with_streams(12, 1).await;
    let deadlines = Deadlines { request: Duration::from_millis(200), ..Deadlines::default() };
    let client = broker.client().deadlines(deadlines).connect().await.unwrap();
    let publisher = client.publisher("s").retry_refused(Duration::from_secs(2)).open().await.unwrap();
    let receipts = one_for_each_shard(&publisher, 12).await;
    let mut errors = Vec::new();
    for receipt in receipts {
        errors.extend(tokio::time::timeout(DEADLINE, receipt).await.expect("answered").err());
    }
    assert!(!errors.is_empty(), "there are only 8 connections");
    for error in errors {
        assert!(matches!(error, PublishError::Unavailable(Error::NoStream { .. })), "{error:?}");
        assert_eq!(error.retry_class(), RetryClass::Retry);
        assert!(error.to_string().contains("no stream to the broker is free"), "{error}");
    }
}

#[tokio::test]
async fn unacknowledged_records_have_all_arrived_when_a_flush_returns() {
    let broker = FakeBroker::start(3).await;
    let client = broker.connect().await;
    let publisher = client.publisher("s").ack(AckMode::None).open().await.unwrap();
    for round in 1..=3usize {
        for number in 0..1_000 {
            let name = format!("k{}", number % 9);
            let receipt =
                publisher.send(format!("{name}:{}", round * 1_000 + number), key(&name)).await.unwrap();
            assert_eq!(receipt.await.unwrap().offset, None);
        }
        publisher.flush().await.unwrap();
        assert_eq!(broker.state.lock().record_count(), round * 1_000);
    }
    assert!(by_key(&broker).values().all(|numbers| numbers.is_sorted()));
    assert!(broker.state.lock().publishes.iter().all(|publish| !publish.acked));
}

#[tokio::test]
async fn unacknowledged_records_on_a_lost_connection_are_told_by_the_flush() {
    let mut broker = FakeBroker::start(1).await;
    let client = broker.connect().await;
    let publisher = client.publisher("s").ack(AckMode::None).open().await.unwrap();
    let _accepted = publisher.send("a", None).await.unwrap();
    broker.state.when("arrived", |s| (s.record_count() == 1).then_some(())).await;
    broker.restart().await;
    // Nobody confirmed the first record to the publisher, so it cannot claim it.
    let lost = tokio::time::timeout(DEADLINE, publisher.flush()).await.unwrap().unwrap_err();
    assert!(matches!(lost, PublishError::MayBeLost { frames: 1 }), "{lost:?}");
    let _accepted = publisher.send("b", None).await.unwrap();
    publisher.flush().await.unwrap();
    assert_eq!(broker.state.lock().record_count(), 2);
}

#[tokio::test]
async fn what_was_accepted_is_sent_when_the_publisher_is_dropped_and_close_waits_for_it() {
    let broker = FakeBroker::start(1).await;
    let client = broker.connect().await;
    let linger = BatchLimits { linger: Duration::from_secs(3_600), ..BatchLimits::default() };
    let publisher = client.publisher("s").batch(linger).open().await.unwrap();
    let receipt = publisher.send("dropped", None).await.unwrap();
    drop(publisher);
    tokio::time::timeout(DEADLINE, receipt).await.unwrap().unwrap();
    let publisher = client.publisher("s").ack(AckMode::None).batch(linger).open().await.unwrap();
    let other = publisher.clone();
    let _accepted = publisher.send("closed", None).await.unwrap();
    publisher.close().await.unwrap();
    assert_eq!(broker.state.lock().record_count(), 2);
    assert_eq!(other.send("late", None).await.unwrap_err(), PublishError::Closed);
}

#[tokio::test]
async fn an_unknown_stream_cannot_be_opened() {
    let broker = FakeBroker::start(1).await;
    broker.state.change(|s| s.stream_known = false);
    let client = broker.connect().await;
    let error = client.publisher("nobody").open().await.err().unwrap();
    assert_eq!(error.code(), Some(&ErrorCode::NotFound));
}

#[tokio::test]
async fn a_stream_that_is_created_a_moment_later_is_found() {
    let broker = FakeBroker::start(1).await;
    broker.state.change(|s| s.stream_known = false);
    let patient = Deadlines::default();
    let client = broker.client().deadlines(patient).connect().await.unwrap();
    let opening = tokio::spawn(async move { client.publisher("s").open().await.map(|p| p.shard_count()) });
    broker.state.when("asked", |s| (s.auths.len() >= 2).then_some(())).await;
    broker.state.change(|s| s.stream_known = true);
    assert_eq!(opening.await.unwrap().unwrap(), 1);
}

#[tokio::test]
async fn shards_are_published_over_a_connection_to_their_core() {
    let broker = FakeBroker::start(4).await;
    broker.state.change(|s| s.cores = Some(4));
    let client = broker.connect().await;
    let publisher = client.publisher("s").open().await.unwrap();
    let mut receipts = Vec::new();
    for number in 0..40 {
        receipts.push(publisher.send("r", key(&format!("k{number}"))).await.unwrap());
    }
    all_ok(receipts).await;
    let mut aims = broker.state.lock().aims.clone();
    let first = aims.remove(0);
    aims.sort_unstable();
    let expected: Vec<u8> = (0..4).filter(|core| *core != first % 4).collect();
    assert_eq!(aims, expected, "one connection per core, the first one included");
    assert_eq!(client.connection_count(), 4);
}

#[tokio::test]
async fn a_way_that_does_not_keep_the_choice_of_core_is_not_aimed_at_again() {
    let broker = FakeBroker::start(4).await;
    broker.state.change(|s| {
        s.cores = Some(4);
        s.ignore_aim = true;
    });
    let client = broker.connect().await;
    let publisher = client.publisher("s").open().await.unwrap();
    let mut receipts = Vec::new();
    for number in 0..40 {
        receipts.push(publisher.send("r", key(&format!("k{number}"))).await.unwrap());
    }
    all_ok(receipts).await;
    assert_eq!(client.connection_count(), 1);
}

#[tokio::test]
async fn an_owner_on_another_broker_is_published_to_directly_and_around_when_it_is_away() {
    let entry = FakeBroker::start(1).await;
    let mut owner = entry.sibling(1);
    let address = owner.addr.to_string();
    entry.state.change(|s| s.owner = Some(("node-b".to_owned(), address)));
    let deadlines = Deadlines { connect: Duration::from_millis(500), ..Deadlines::default() };
    let client = entry.client().deadlines(deadlines).connect().await.unwrap();
    let publisher = client.publisher("s").open().await.unwrap();
    publisher.send("direct", None).await.unwrap().await.unwrap();
    assert_eq!((entry.state.lock().record_count(), owner.state.lock().record_count()), (0, 1));
    owner.stop().await;
    let around = tokio::time::timeout(DEADLINE, publisher.send("around", None).await.unwrap()).await.unwrap();
    // Depending on when the loss is noticed the frame was or was not with the lost connection.
    if let Err(error) = around {
        assert!(error.is_outcome_unknown(), "{error:?}");
        publisher.send("around", None).await.unwrap().await.unwrap();
    }
    assert_eq!(entry.state.lock().record_count(), 1);
}
