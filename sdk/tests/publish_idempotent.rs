//! Idempotent publishing against a scripted broker: every loss and every lie on the way of an answer.

mod fake;

use std::time::Duration;

use fake::{Answers, DEADLINE, FakeBroker, Trick};
use felix_sdk::{
    AckMode, BatchLimits, Bytes, Client, Deadlines, Error, ErrorCode, Idempotence, Offset, ProducerEnd,
    PublishError, Published, Publisher, PublisherBuilder, Receipt,
};
use felix_wire::client::RefusalReason;
use felix_wire::features::Features;
use felix_wire::flags::Flags;
use felix_wire::id::Sequence;

async fn durable(shards: u32) -> FakeBroker {
    let broker = FakeBroker::start(shards).await;
    broker.state.change(fake::State::serve_durable);
    broker
}

fn one_by_one(client: &Client) -> PublisherBuilder {
    client.publisher("s").batch(BatchLimits::one_send_per_frame())
}

async fn outcome(receipt: Receipt) -> Result<Published, PublishError> {
    tokio::time::timeout(DEADLINE, receipt).await.expect("settled in time")
}

async fn offset(receipt: Receipt) -> u64 {
    outcome(receipt).await.expect("stored").offset.expect("an offset").get()
}

async fn send(publisher: &Publisher, numbers: std::ops::Range<u32>) -> Vec<Receipt> {
    let mut receipts = Vec::new();
    for number in numbers {
        receipts.push(publisher.send(number.to_string(), None).await.unwrap());
    }
    receipts
}

/// The log of shard 0 is exactly these numbers in order.
fn assert_log(broker: &FakeBroker, numbers: std::ops::Range<u32>) {
    let expected: Vec<Bytes> = numbers.map(|number| Bytes::from(number.to_string())).collect();
    assert_eq!(broker.state.lock().records[0], expected);
}

#[tokio::test]
async fn only_durable_streams_of_brokers_that_serve_producers_get_numbers() {
    type Change = fn(&mut fake::State);
    let cases: [(&str, Change, bool); 5] = [
        ("durable", |_| {}, true),
        ("in memory", |s| s.durable = Some(false), false),
        ("no feature", |s| s.features = s.features.without(Features::IDEMPOTENT_PRODUCER), false),
        ("no flag", |s| s.flags = Flags(s.flags.bits() & !Flags::PUBLISH_IDEMPOTENT.bits()), false),
        ("not told", |s| s.durable = None, true),
    ];
    for (name, change, numbered) in cases {
        let broker = durable(1).await;
        broker.state.change(change);
        let client = broker.connect().await;
        let publisher = one_by_one(&client).open().await.unwrap();
        for receipt in send(&publisher, 0..3).await {
            outcome(receipt).await.unwrap();
        }
        assert_eq!(publisher.is_idempotent(), numbered, "{name}");
        let state = broker.state.lock();
        let numbers: Vec<_> = state.publishes.iter().map(|p| p.number.map(|(_, n)| n)).collect();
        let expected = if numbered { vec![Some(0), Some(1), Some(2)] } else { vec![None; 3] };
        assert_eq!(numbers, expected, "{name}");
    }
}

#[tokio::test]
async fn one_producer_serves_all_shards_and_each_shard_is_numbered_from_nought() {
    let broker = durable(4).await;
    let client = broker.connect().await;
    let publisher = one_by_one(&client).open().await.unwrap();
    let mut receipts = Vec::new();
    for number in 0..80u32 {
        let key = Bytes::from(format!("k{}", number % 10));
        receipts.push(publisher.send(number.to_string(), Some(key)).await.unwrap());
    }
    for receipt in receipts {
        outcome(receipt).await.unwrap();
    }
    let state = broker.state.lock();
    assert_eq!(state.producer_inits, 1);
    for shard in 0..4 {
        let seen = state.publishes.iter().filter(|publish| publish.shard == shard);
        let numbers: Vec<_> = seen.map(|publish| publish.number.unwrap().1).collect();
        assert!(numbers.iter().copied().eq(0..numbers.len() as u64), "shard {shard}: {numbers:?}");
    }
    let used: std::collections::HashSet<_> = state.publishes.iter().map(|publish| publish.shard).collect();
    assert!(used.len() > 1, "{used:?}");
}

#[tokio::test]
async fn who_does_not_want_numbers_gets_none_and_who_insists_is_told_why_not() {
    let broker = durable(1).await;
    let client = broker.connect().await;
    let off = one_by_one(&client).idempotent(Idempotence::Off).open().await.unwrap();
    outcome(off.send("a", None).await.unwrap()).await.unwrap();
    let unanswered = one_by_one(&client).ack(AckMode::None).open().await.unwrap();
    let _accepted = unanswered.send("b", None).await.unwrap();
    unanswered.flush().await.unwrap();
    assert!(broker.state.lock().publishes.iter().all(|publish| publish.number.is_none()));
    let insisting = || one_by_one(&client).idempotent(Idempotence::On);
    let error = insisting().ack(AckMode::None).open().await.err().unwrap();
    assert!(matches!(error, PublishError::Unavailable(Error::Config { .. })), "{error:?}");
    broker.state.change(|s| s.keeps_producers = false);
    let on = insisting().open().await.unwrap();
    let refused = outcome(on.send("c", None).await.unwrap()).await.unwrap_err();
    assert_eq!(refused.refusal().unwrap().reason.as_deref(), Some("not_durable"));
    broker.state.change(|s| s.features = s.features.without(Features::IDEMPOTENT_PRODUCER));
    let client = broker.connect().await;
    let on = one_by_one(&client).idempotent(Idempotence::On).open().await.unwrap();
    let refused = outcome(on.send("d", None).await.unwrap()).await.unwrap_err();
    assert!(matches!(refused, PublishError::Unavailable(Error::NotServed { .. })), "{refused:?}");
}

#[tokio::test]
async fn a_stream_that_keeps_no_producers_is_published_to_without_numbers() {
    let broker = durable(1).await;
    broker.state.change(|s| {
        s.durable = None;
        s.keeps_producers = false;
    });
    let client = broker.connect().await;
    let publisher = one_by_one(&client).open().await.unwrap();
    for (number, receipt) in send(&publisher, 0..20).await.into_iter().enumerate() {
        assert_eq!(offset(receipt).await, number as u64);
    }
    assert_log(&broker, 0..20);
}

#[tokio::test]
async fn answers_lost_with_the_connection_cost_nothing_twice_and_no_order() {
    for trick in [Trick::StoreAndCut, Trick::Cut] {
        let broker = durable(1).await;
        broker.state.change(|s| s.tricks = std::iter::repeat_n(trick.clone(), 5).collect());
        let client = broker.connect().await;
        let publisher = one_by_one(&client).open().await.unwrap();
        for (number, receipt) in send(&publisher, 0..40).await.into_iter().enumerate() {
            assert_eq!(offset(receipt).await, number as u64, "{trick:?}");
        }
        assert_log(&broker, 0..40);
        assert_eq!(broker.state.lock().producer_inits, 1, "{trick:?}");
    }
}

#[tokio::test]
async fn publishes_go_on_through_restarts_of_the_broker() {
    let mut broker = durable(1).await;
    let client = broker.connect().await;
    let publisher = one_by_one(&client).open().await.unwrap();
    let mut receipts = Vec::new();
    for round in 0..3u32 {
        broker.state.change(|s| s.answers = Answers::Held);
        receipts.extend(send(&publisher, round * 30..round * 30 + 20).await);
        let taken = round as usize * 30 + 20;
        broker.state.when("all taken", |s| (s.record_count() == taken).then_some(())).await;
        broker.stop().await;
        receipts.extend(send(&publisher, round * 30 + 20..round * 30 + 30).await);
        // A broker that has just been started does not know the stream yet.
        broker.state.change(|s| {
            s.answers = Answers::Prompt;
            s.stream_known = false;
        });
        let asked = broker.state.lock().auths.len();
        broker.restart().await;
        broker.state.when("a client that asks", |s| (s.auths.len() > asked + 2).then_some(())).await;
        broker.state.change(|s| s.stream_known = true);
        for (number, receipt) in receipts.drain(..).enumerate() {
            assert_eq!(offset(receipt).await, u64::from(round) * 30 + number as u64);
        }
    }
    assert_log(&broker, 0..90);
}

#[tokio::test]
async fn answers_that_nobody_asked_for_end_the_stream_and_lose_nothing() {
    for trick in [Trick::AnswerTwice, Trick::AnswerUnknown, Trick::AnswerAt(0)] {
        let broker = durable(1).await;
        let client = broker.connect().await;
        let publisher = one_by_one(&client).open().await.unwrap();
        outcome(publisher.send("0", None).await.unwrap()).await.unwrap();
        broker.state.change(|s| s.tricks.push_back(trick.clone()));
        for (number, receipt) in send(&publisher, 1..10).await.into_iter().enumerate() {
            assert_eq!(offset(receipt).await, 1 + number as u64, "{trick:?}");
        }
        assert_log(&broker, 0..10);
    }
}

#[tokio::test]
async fn an_answer_that_never_comes_is_asked_for_again() {
    let broker = durable(1).await;
    broker.state.change(|s| s.tricks.push_back(Trick::Swallow));
    let deadlines = Deadlines { ack: Duration::from_millis(200), ..Deadlines::default() };
    let client = broker.client().deadlines(deadlines).connect().await.unwrap();
    let publisher = one_by_one(&client).open().await.unwrap();
    let receipt = publisher.send("0", None).await.unwrap();
    assert_eq!(offset(receipt).await, 0);
    assert_log(&broker, 0..1);
}

#[tokio::test]
async fn refusals_for_now_and_unknown_outcomes_are_tried_again_in_order() {
    let broker = durable(1).await;
    let codes = [
        ErrorCode::Overloaded,
        ErrorCode::QuorumTimeout,
        ErrorCode::ShardUnavailable,
        ErrorCode::NotLeader,
        ErrorCode::Storage,
        ErrorCode::NotFound,
        ErrorCode::Unauthenticated,
    ];
    let client = broker.connect().await;
    let publisher = one_by_one(&client).open().await.unwrap();
    for (round, code) in (0u32..).zip(codes) {
        broker.state.change(|s| s.tricks.push_back(Trick::Refuse(code.clone())));
        let first = round * 10;
        for (number, receipt) in send(&publisher, first..first + 10).await.into_iter().enumerate() {
            assert_eq!(offset(receipt).await, u64::from(first) + number as u64, "{code}");
        }
    }
    assert_log(&broker, 0..70);
}

#[tokio::test]
async fn one_record_that_is_refused_for_good_does_not_stop_the_others() {
    let broker = durable(1).await;
    let client = broker.connect().await;
    let publisher = one_by_one(&client).open().await.unwrap();
    outcome(publisher.send("0", None).await.unwrap()).await.unwrap();
    broker.state.change(|s| s.tricks.push_back(Trick::Refuse(ErrorCode::LimitExceeded)));
    let too_much = publisher.send("too much", None).await.unwrap();
    let rest = send(&publisher, 1..20).await;
    assert_eq!(outcome(too_much).await.unwrap_err().code(), Some(&ErrorCode::LimitExceeded));
    for receipt in rest {
        outcome(receipt).await.unwrap();
    }
    assert_log(&broker, 0..20);
    assert_eq!(broker.state.lock().producer_inits, 1);
}

#[tokio::test]
async fn a_refused_number_ends_the_producer_and_a_new_publisher_begins_again() {
    let cases = [
        (RefusalReason::SequenceGap { expected: Sequence(0) }, ProducerEnd::SequenceGap { expected: 0 }),
        (RefusalReason::UnknownProducer, ProducerEnd::UnknownProducer),
        (RefusalReason::SequenceExpired, ProducerEnd::SequenceExpired),
        (RefusalReason::SequenceReused, ProducerEnd::SequenceReused),
    ];
    for (said, reason) in cases {
        let broker = durable(1).await;
        let client = broker.connect().await;
        let publisher = one_by_one(&client).open().await.unwrap();
        outcome(publisher.send("0", None).await.unwrap()).await.unwrap();
        broker.state.change(|s| s.tricks.push_back(Trick::RefuseNumber(said)));
        let refused = outcome(publisher.send("lost", None).await.unwrap()).await.unwrap_err();
        assert_eq!(refused, PublishError::ProducerEnded { reason, outcome_unknown: false });
        let later = outcome(publisher.send("lost", None).await.unwrap()).await.unwrap_err();
        assert_eq!(later, refused, "nothing is sent any more");
        let again = one_by_one(&client).open().await.unwrap();
        assert_eq!(offset(again.send("1", None).await.unwrap()).await, 1);
        assert_log(&broker, 0..2);
    }
}

#[tokio::test]
async fn a_producer_forgotten_while_an_answer_was_lost_leaves_that_record_unknown() {
    let mut broker = durable(1).await;
    let client = broker.connect().await;
    let publisher = one_by_one(&client).open().await.unwrap();
    outcome(publisher.send("0", None).await.unwrap()).await.unwrap();
    broker.state.change(|s| s.answers = Answers::Held);
    let receipt = publisher.send("1", None).await.unwrap();
    broker.state.when("taken", |s| (s.record_count() == 2).then_some(())).await;
    broker.stop().await;
    broker.state.change(|s| {
        s.producers.forget();
        s.answers = Answers::Prompt;
    });
    broker.restart().await;
    let reason = ProducerEnd::UnknownProducer;
    let error = outcome(receipt).await.unwrap_err();
    assert_eq!(error, PublishError::ProducerEnded { reason, outcome_unknown: true });
    assert!(error.is_outcome_unknown());
}

#[tokio::test]
async fn a_producer_that_is_refused_fails_the_sends_that_need_it() {
    let broker = durable(1).await;
    broker.state.change(|s| s.refuse_producer = Some(ErrorCode::Forbidden));
    let client = broker.connect().await;
    let publisher = one_by_one(&client).open().await.unwrap();
    let error = outcome(publisher.send("0", None).await.unwrap()).await.unwrap_err();
    assert_eq!((error.code(), error.is_outcome_unknown()), (Some(&ErrorCode::Forbidden), false));
    // For now only: it is asked for again.
    broker.state.change(|s| s.refuse_producer = Some(ErrorCode::Overloaded));
    let receipt = publisher.send("0", None).await.unwrap();
    let inits = broker.state.lock().producer_inits;
    broker.state.when("another request", |s| (s.producer_inits > inits + 1).then_some(())).await;
    broker.state.change(|s| s.refuse_producer = None);
    assert_eq!(offset(receipt).await, 0);
}

#[tokio::test]
async fn a_broker_that_stays_away_is_given_up_at_the_deadline() {
    let mut broker = durable(1).await;
    broker.state.change(|s| s.answers = Answers::Held);
    let client = broker.connect().await;
    let publisher = one_by_one(&client).retry_idempotent(Duration::from_millis(600)).open().await.unwrap();
    let started = tokio::time::Instant::now();
    let taken = publisher.send("0", None).await.unwrap();
    broker.state.when("taken", |s| (s.record_count() == 1).then_some(())).await;
    broker.stop().await;
    let never_sent = publisher.send("1", None).await.unwrap();
    assert!(outcome(taken).await.unwrap_err().is_outcome_unknown());
    assert!(!outcome(never_sent).await.unwrap_err().is_outcome_unknown());
    // The time to retry, the last attempt and the waits between attempts: far from a connection's own patience.
    assert!(started.elapsed() < Duration::from_secs(8), "{:?}", started.elapsed());
    // The publisher goes on, with a producer that has no doubtful past.
    broker.state.change(|s| s.answers = Answers::Prompt);
    broker.restart().await;
    let deadline = tokio::time::Instant::now() + DEADLINE;
    while outcome(publisher.send("2", None).await.unwrap()).await.is_err() {
        assert!(tokio::time::Instant::now() < deadline, "the broker is back");
    }
    let state = broker.state.lock();
    assert_eq!(state.records[0], ["0", "2"]);
    assert_eq!(state.publishes.last().unwrap().number.unwrap().1, 0);
    assert_eq!(state.producer_inits, 2);
}

#[tokio::test]
async fn a_shard_led_elsewhere_is_published_to_there_under_the_same_numbers() {
    let old = durable(1).await;
    let new = old.sibling(1);
    new.state.change(fake::State::serve_durable);
    let client = old.connect().await;
    let publisher = one_by_one(&client).open().await.unwrap();
    outcome(publisher.send("0", None).await.unwrap()).await.unwrap();
    // The log has moved with what it knows of producers.
    let producers = old.state.change(|s| std::mem::take(&mut s.producers));
    let records = old.state.change(|s| s.records.clone());
    new.state.change(|s| (s.producers, s.records) = (producers, records));
    let addr = Some(new.addr.to_string().into());
    let moved = RefusalReason::NotLeader { node_id: "new".into(), addr };
    old.state.change(|s| s.tricks.push_back(Trick::RefuseNumber(moved)));
    let receipt = publisher.send("1", None).await.unwrap();
    assert_eq!(outcome(receipt).await.unwrap().offset, Some(Offset(1)));
    assert_log(&new, 0..2);
    assert_eq!(new.state.lock().publishes[0].number.unwrap().1, 1);
}
