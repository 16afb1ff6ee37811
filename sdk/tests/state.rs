//! Commits, keyed state and logs of the library against a scripted broker.

mod fake;

use std::time::{Duration, SystemTime};

use fake::FakeBroker;
use fake::requests::RequestTrick;
use felix_sdk::{
    Bytes, Committed, ConditionError, CursorReason, Error, ErrorCode, LogRecord, Offset, PageLimits,
    Published, ReadError, RequestError, Start, StateEntry, Target,
};
use felix_wire::features::Features;

fn trick(broker: &FakeBroker, trick: RequestTrick) {
    broker.state.change(|s| s.requests.tricks.push_back(trick));
}

async fn numbering(shards: u32) -> FakeBroker {
    let broker = FakeBroker::start(shards).await;
    broker
        .state
        .change(|s| s.features = s.features | Features::NUMBERED_WRITES | Features::IDEMPOTENT_PRODUCER);
    broker
}

fn committed(offset: u64) -> Committed {
    Committed { shard: 0, offset: Offset(offset) }
}

#[tokio::test]
async fn a_commit_is_an_event_and_its_changes_at_one_offset() {
    let broker = numbering(1).await;
    let client = broker.connect().await;
    let state = client.state("s").unwrap();
    let entry = |value: Option<&'static str>, version: Option<u64>, as_of: Option<u64>| StateEntry {
        value: value.map(|value| Bytes::from_static(value.as_bytes())),
        version: version.map(Offset),
        as_of: as_of.map(Offset),
    };
    assert_eq!(state.get("e", "k").await, Ok(entry(None, None, None)));
    assert_eq!(state.commit("e", "first").put("k", "1").put("l", "2").send().await, Ok(committed(0)));
    assert_eq!(state.commit("e", "second").delete("l").put("k", "3").send().await, Ok(committed(1)));
    assert_eq!(state.get("e", "k").await, Ok(entry(Some("3"), Some(1), Some(1))));
    assert_eq!(state.get("e", "l").await, Ok(entry(None, None, Some(1))));
    assert_eq!(state.commit("e", "third").send().await, Ok(committed(2)), "without changes");
    let mut events = client.subscribe("s").from(Start::Earliest).open().await.unwrap();
    for event in ["first", "second", "third"] {
        assert_eq!(events.next().await.unwrap().unwrap().payload, event);
    }
}

#[tokio::test]
async fn a_commit_at_an_expected_offset_is_made_there_or_not_at_all() {
    let broker = numbering(1).await;
    let state = broker.connect().await.state("s").unwrap();
    assert_eq!(state.commit("e", "a").expect_offset(Offset(0)).send().await, Ok(committed(0)));
    let mismatch = Err(ConditionError::OffsetMismatch { tail: Offset(1) });
    assert_eq!(state.commit("e", "b").expect_offset(Offset(0)).send().await, mismatch);
    assert_eq!(
        state.commit("e", "b").expect_offset(Offset(1)).send().await,
        Ok(committed(1)),
        "the number is used"
    );
    assert_eq!(broker.state.lock().producer_inits, 1);
}

#[tokio::test]
async fn a_numbered_commit_is_made_once_through_lost_answers_and_another_is_unknown() {
    let broker = numbering(1).await;
    let state = broker.connect().await.state("s").unwrap();
    for (made, lost) in
        [RequestTrick::ApplyAndCut, RequestTrick::Cut, RequestTrick::ApplyAndDoubt].iter().enumerate()
    {
        trick(&broker, lost.clone());
        let outcome = state.commit("e", "event").put("k", "v").send().await;
        assert_eq!(outcome, Ok(committed(made as u64)), "{lost:?}");
    }
    assert_eq!(broker.state.lock().record_count(), 3);
    broker.state.change(|s| s.features = s.features.without(Features::NUMBERED_WRITES));
    let other = broker.connect().await.state("s").unwrap();
    trick(&broker, RequestTrick::ApplyAndCut);
    assert!(other.commit("e", "event").send().await.unwrap_err().is_outcome_unknown());
    assert_eq!(broker.state.lock().record_count(), 4);
}

#[tokio::test]
async fn commits_go_to_the_shard_of_their_entity_or_the_one_that_is_named() {
    let broker = numbering(4).await;
    let state = broker.connect().await.state("s").unwrap();
    let mut shards = std::collections::BTreeSet::new();
    for entity in 0..20 {
        let entity = format!("entity-{entity}");
        let made = state.commit(entity.clone(), "event").put(entity.clone(), "v").send().await.unwrap();
        shards.insert(made.shard);
        assert_eq!(state.get(entity.clone(), &entity).await.unwrap().value.unwrap(), "v");
    }
    assert!(shards.len() > 1);
    assert_eq!(state.commit("e", "event").shard(3).send().await.unwrap().shard, 3);
    let error = state.commit("e", "event").shard(4).send().await.unwrap_err();
    assert!(matches!(error, ConditionError::Request(RequestError::Invalid { .. })), "{error:?}");
    let error = state.commit("e".repeat(65_536), "event").send().await.unwrap_err();
    assert!(matches!(error, ConditionError::Request(RequestError::Invalid { .. })), "{error:?}");
}

#[tokio::test]
async fn what_keeps_no_state_says_so() {
    let broker = FakeBroker::start(1).await;
    let client = broker.connect().await;
    broker.state.change(|s| s.durable = Some(false));
    let ConditionError::Request(error) =
        client.state("s").unwrap().commit("e", "v").send().await.unwrap_err()
    else {
        panic!("a refusal")
    };
    assert_eq!(error.code(), Some(&ErrorCode::InvalidRequest));
    assert_eq!(error.refusal().unwrap().reason.as_deref(), Some("not_durable"));
    let old = FakeBroker::start(1).await;
    old.state
        .change(|s| s.features = s.features.without(Features::ATOMIC_COMMIT).without(Features::STREAM_READ));
    let client = old.connect().await;
    let not_served = |what| RequestError::Unavailable(Error::NotServed { what });
    assert_eq!(client.state("s").unwrap().get("e", "k").await, Err(not_served("state_get")));
    let read = client.log("s").unwrap().read(0, Offset(0), PageLimits::default()).await;
    assert_eq!(read, Err(ReadError::Request(not_served("stream_read"))));
}

#[tokio::test]
async fn a_log_is_read_page_by_page_and_by_time() {
    let broker = FakeBroker::start(2).await;
    broker.state.change(|s| {
        s.held_from = 2;
        s.records[1].extend((0..10).map(|n| Bytes::from(n.to_string())));
    });
    let log = broker.connect().await.log("s").unwrap();
    let (mut next, mut read) = (Offset(2), Vec::new());
    loop {
        let page = log.read(1, next, PageLimits::default()).await.unwrap();
        if page.records.is_empty() {
            break;
        }
        next = page.next;
        read.extend(page.records);
    }
    assert_eq!((next, read.len()), (Offset(10), 8));
    let at = |micros| SystemTime::UNIX_EPOCH.checked_add(Duration::from_micros(micros));
    let first =
        LogRecord { offset: Offset(2), payload: Bytes::from_static(b"2"), appended_at: at(1_002_000) };
    assert_eq!(read[0], first);
    let limits = PageLimits { end: Some(Offset(4)), max_records: Some(3), max_bytes: None };
    assert_eq!(log.read(1, Offset(2), limits).await.unwrap().records.len(), 2);
    for (requested, reason, available) in [(1, CursorReason::TooOld, 2), (11, CursorReason::InFuture, 10)] {
        let error = log.read(1, Offset(requested), PageLimits::default()).await.unwrap_err();
        assert_eq!(error, ReadError::Cursor { shard: 1, reason, requested, available });
    }
    let time = |micros| at(micros).unwrap();
    assert_eq!(log.offset_for_time(1, time(1_003_000)).await, Ok(Some(Offset(3))));
    assert_eq!(log.offset_for_time(1, time(1_003_001)).await, Ok(Some(Offset(4))));
    assert_eq!(log.offset_for_time(1, time(9_000_000)).await, Ok(None));
    assert_eq!(
        log.offset_for_time(1, SystemTime::UNIX_EPOCH - Duration::from_secs(1)).await,
        Ok(Some(Offset(0)))
    );
}

#[tokio::test]
async fn a_conditional_publish_is_written_at_its_offset_or_not_at_all() {
    let broker = FakeBroker::start(2).await;
    let log = broker.connect().await.log("s").unwrap();
    let records = [Bytes::from_static(b"a"), Bytes::from_static(b"b")];
    let put = |offset| log.publish_if(Target::Shard(1), &records, Offset(offset));
    assert_eq!(put(0).await, Ok(Published { shard: 1, offset: Some(Offset(0)) }));
    assert_eq!(put(0).await, Err(ConditionError::OffsetMismatch { tail: Offset(2) }));
    trick(&broker, RequestTrick::Refuse(ErrorCode::Overloaded, None));
    assert_eq!(put(2).await, Ok(Published { shard: 1, offset: Some(Offset(2)) }));
    trick(&broker, RequestTrick::ApplyAndCut);
    assert!(put(4).await.unwrap_err().is_outcome_unknown());
    let keyed = log.publish_if(Target::Key(Bytes::from_static(b"k")), &records[..1], Offset(0)).await;
    assert!(keyed.is_ok() || keyed == Err(ConditionError::OffsetMismatch { tail: Offset(6) }), "{keyed:?}");
    let none = log.publish_if(Target::Shard(0), &[], Offset(0)).await.unwrap_err();
    assert!(matches!(none, ConditionError::Request(RequestError::Invalid { .. })), "{none:?}");
}
