//! Requests in their binary form at a broker that reads it, and as JSON at one that does not: the same calls, the same
//! outcomes.

mod fake;

use std::time::Duration;

use fake::FakeBroker;
use fake::requests::RequestTrick;
use felix_sdk::{
    Bytes, Client, Condition, Conditional, Entry, ErrorCode, Offset, Poll, RequestError, RetryClass, SeekTo,
};
use felix_wire::features::Features;

/// A broker that numbers adds, with or without the bit.
async fn broker(binary: bool) -> FakeBroker {
    let broker = FakeBroker::start(1).await;
    broker.state.change(|s| {
        let numbers = Features::NUMBERED_WRITES | Features::IDEMPOTENT_PRODUCER | Features::ORDERED_ANSWERS;
        s.features = s.features.without(Features::BINARY_MESSAGES) | numbers;
        if binary {
            s.features = s.features | Features::BINARY_MESSAGES;
        }
        s.records[0].extend((0..5).map(|n: u32| Bytes::from(n.to_string())));
    });
    broker
}

/// How many requests were read, and how many of them in the binary form.
fn seen(broker: &FakeBroker) -> (usize, usize) {
    let state = broker.state.lock();
    (state.requests.seen.len(), state.requests.binary)
}

fn trick(broker: &FakeBroker, trick: RequestTrick) {
    broker.state.change(|s| s.requests.tricks.push_back(trick));
}

async fn caches_and_counters(client: &Client) {
    let cache = client.cache("c").unwrap();
    let large: Vec<u8> = (0..300_000).map(|n: u32| n as u8).collect();
    assert_eq!(cache.get("k").await, Ok(None));
    cache.put("k", "", Duration::from_secs(60)).await.unwrap();
    assert_eq!(cache.get("k").await, Ok(Some(Entry { value: Bytes::new(), version: Some(0) })));
    cache.put("k", large.clone(), None).await.unwrap();
    assert_eq!(cache.get("k").await, Ok(Some(Entry { value: large.clone().into(), version: Some(1) })));
    let put = cache.put_if("k", large.clone(), None, Condition::Version(1)).await;
    assert_eq!(put, Ok(Conditional { applied: true, version: Some(2) }));
    assert_eq!(cache.delete_if("k", 1).await, Ok(Conditional { applied: false, version: Some(2) }));
    assert_eq!(cache.delete("k").await, Ok(Some(large.into())));
    let counters = client.counters("c").unwrap();
    assert_eq!(counters.get("n").await, Ok(None));
    assert_eq!((counters.add("n", 7).await, counters.add("n", -9).await), (Ok(7), Ok(-2)));
    assert_eq!(counters.get("n").await, Ok(Some(-2)));
}

async fn groups(client: &Client) {
    let group = client.group("s", "g").unwrap();
    let at_once = |max_records| Poll { max_records, wait: Duration::ZERO, reclaim: false };
    let position = group.seek(0, SeekTo::Offset(Offset(1))).await.unwrap();
    assert_eq!((position.offset, position.moved), (Offset(1), true));
    let records = group.poll(0, at_once(10)).await.unwrap();
    let payloads: Vec<_> = records.iter().map(|delivery| delivery.payload.clone()).collect();
    assert_eq!(payloads, ["1", "2", "3", "4"]);
    let claims: Vec<_> = records.iter().map(|delivery| delivery.claim).collect();
    group.ack(claims[0]).await.unwrap();
    group.nack(claims[1], None).await.unwrap();
    assert!(group.extend(claims[2], Duration::from_secs(5)).await.unwrap() > Duration::ZERO);
    group.dead_letter(0, claims[3].offset).await.unwrap();
    assert_eq!(group.dead_letters(0).await, Ok(vec![Offset(4)]));
    group.redrive(0, Offset(4)).await.unwrap();
    let missing = group.discard(0, Offset(4)).await.unwrap_err();
    assert!(missing.is_not_found(), "{missing:?}");
    let info = group.describe(0).await.unwrap();
    assert_eq!((info.committed, info.tail, info.owed), (Some(Offset(2)), Offset(5), 2));
    assert_eq!(group.delete().await, Ok(true));
}

#[tokio::test]
async fn every_request_is_binary_at_a_broker_that_reads_it_and_json_at_one_that_does_not() {
    for binary in [true, false] {
        let broker = broker(binary).await;
        let client = broker.connect().await;
        caches_and_counters(&client).await;
        groups(&client).await;
        let (all, of_them) = seen(&broker);
        assert!(all >= 20, "{all}");
        assert_eq!(of_them, if binary { all } else { 0 });
    }
}

#[tokio::test]
async fn refusals_in_either_form_say_the_same() {
    let mut told = Vec::new();
    for binary in [true, false] {
        let broker = broker(binary).await;
        let client = broker.connect().await;
        let cache = client.cache("c").unwrap();
        trick(&broker, RequestTrick::Refuse(ErrorCode::Forbidden, Some(7)));
        let refused = cache.get("k").await.unwrap_err();
        let refusal = refused.refusal().expect("a refusal").clone();
        assert_eq!(
            (refused.code(), refused.retry_class(), refusal.retry_after),
            (Some(&ErrorCode::Forbidden), RetryClass::Fatal, Some(Duration::from_millis(7)))
        );
        trick(&broker, RequestTrick::WrongId);
        let wrong = cache.put("k", "v", None).await.unwrap_err();
        assert!(wrong.is_outcome_unknown(), "{wrong:?}");
        // The shard has forgotten the producer: the number is refused and the add is made under another.
        let counters = client.counters("c").unwrap();
        assert_eq!(counters.add("n", 1).await, Ok(1));
        broker.state.change(|s| s.producers = Default::default());
        assert_eq!(counters.add("n", 1).await, Ok(2));
        let huge = cache.put("k", vec![0; 17 << 20], None).await.unwrap_err();
        assert!(matches!(huge, RequestError::TooLarge { .. }), "{huge:?}");
        let (all, of_them) = seen(&broker);
        assert_eq!(of_them, if binary { all } else { 0 });
        told.push((refusal, all));
    }
    assert_eq!(told[0], told[1]);
}

#[tokio::test]
async fn a_leader_named_in_the_binary_form_is_followed() {
    let broker = broker(true).await;
    let leader = broker.sibling(1);
    leader.state.change(|s| s.records[0].push(Bytes::from_static(b"there")));
    let named = ("n2".to_owned(), leader.addr.to_string());
    broker.state.change(|s| s.requests.leader = Some(named));
    let client = broker.connect().await;
    let group = client.group("s", "g").unwrap();
    let poll = Poll { max_records: 1, wait: Duration::ZERO, reclaim: false };
    let records = group.poll(0, poll).await.unwrap();
    assert_eq!(records[0].payload, "there");
    assert_eq!((seen(&broker), seen(&leader)), ((1, 1), (1, 1)));
}
