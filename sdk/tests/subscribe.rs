//! Subscribing against a scripted broker.

mod fake;

use std::time::Duration;

use fake::{DEADLINE, Ending, FakeBroker, Shared};
use felix_sdk::{
    Bytes, CursorReason, Deadlines, Error, ErrorCode, Event, Gap, Item, Notice, Offset, ShardProgress,
    Shards, Start, SubscribeError, Subscription,
};

fn put(state: &Shared, shard: usize, records: std::ops::Range<u32>) {
    state.change(|s| s.records[shard].extend(records.map(|n| Bytes::from(n.to_string()))));
}

async fn item(subscription: &mut Subscription) -> Result<Event, SubscribeError> {
    let next = tokio::time::timeout(DEADLINE, subscription.next()).await;
    next.expect("an item in time").expect("the subscription goes on")
}

async fn take(subscription: &mut Subscription, count: usize) -> Vec<u32> {
    let mut numbers = Vec::new();
    for _ in 0..count {
        let event = item(subscription).await.expect("an event");
        numbers.push(std::str::from_utf8(&event.payload).unwrap().parse().unwrap());
    }
    numbers
}

fn range(range: std::ops::Range<u32>) -> Vec<u32> {
    range.collect()
}

/// Ends the event streams opened until now.
fn end(state: &Shared, ending: Ending) {
    state.change(|s| s.ending = Some((s.next_id + 1, ending)));
}

#[tokio::test]
async fn history_and_live_records_come_in_order_from_every_shard() {
    let broker = FakeBroker::start(3).await;
    for shard in 0..3u32 {
        put(&broker.state, shard as usize, shard * 100..shard * 100 + 40);
    }
    let client = broker.connect().await;
    let mut events = client.subscribe("s").from(Start::Earliest).open().await.unwrap();
    let mut seen = vec![Vec::new(); 3];
    for count in 0..180 {
        if count == 50 {
            for shard in 0..3u32 {
                put(&broker.state, shard as usize, shard * 100 + 40..shard * 100 + 60);
            }
        }
        let event = item(&mut events).await.unwrap();
        assert_eq!(event.offset, Some(Offset(seen[event.shard as usize].len() as u64)));
        let number: u32 = std::str::from_utf8(&event.payload).unwrap().parse().unwrap();
        seen[event.shard as usize].push(number);
    }
    for (shard, numbers) in seen.iter().enumerate() {
        let first = shard as u32 * 100;
        assert_eq!(*numbers, range(first..first + 60));
    }
    let positions = events.positions();
    assert!((0..3).all(|shard| positions.0[&shard].next == Offset(60)));
}

#[tokio::test]
async fn latest_begins_after_what_is_there_and_an_offset_with_that_record() {
    let broker = FakeBroker::start(1).await;
    put(&broker.state, 0, 0..10);
    let client = broker.connect().await;
    let mut latest = client.subscribe("s").open().await.unwrap();
    let mut from = client.subscribe("s").from(Start::Offset(Offset(7))).open().await.unwrap();
    assert_eq!(latest.positions().0[&0].next, Offset(10));
    put(&broker.state, 0, 10..12);
    assert_eq!(take(&mut latest, 2).await, [10, 11]);
    assert_eq!(take(&mut from, 5).await, [7, 8, 9, 10, 11]);
}

#[tokio::test]
async fn the_hello_may_come_before_or_after_the_answer() {
    for late in [false, true] {
        let broker = FakeBroker::start(2).await;
        broker.state.change(|s| s.hello_after_answer = late);
        put(&broker.state, 1, 0..3);
        let client = broker.connect().await;
        let mut events = client.subscribe("s").from(Start::Earliest).open().await.unwrap();
        assert_eq!(take(&mut events, 3).await, [0, 1, 2], "late: {late}");
    }
}

#[tokio::test]
async fn one_shard_is_read_alone_and_one_that_is_not_there_is_refused() {
    let broker = FakeBroker::start(3).await;
    put(&broker.state, 1, 5..8);
    put(&broker.state, 2, 90..95);
    let client = broker.connect().await;
    let mut events = client.subscribe("s").shards(Shards::One(1)).from(Start::Earliest).open().await.unwrap();
    assert_eq!(take(&mut events, 3).await, [5, 6, 7]);
    assert_eq!(events.live_shards(), 1);
    let missing = client.subscribe("s").shards(Shards::One(3)).open().await.err().unwrap();
    assert_eq!(missing, SubscribeError::UnknownShard { shard: 3, shards: 3 });
}

#[tokio::test]
async fn offsets_that_are_not_there_are_typed_errors() {
    let broker = FakeBroker::start(1).await;
    put(&broker.state, 0, 0..10);
    broker.state.change(|s| s.held_from = 4);
    let client = broker.connect().await;
    for (offset, reason, available) in [(3, CursorReason::TooOld, 4), (11, CursorReason::InFuture, 10)] {
        let error = client.subscribe("s").from(Start::Offset(Offset(offset))).open().await.err().unwrap();
        assert_eq!(error, SubscribeError::Cursor { shard: 0, reason, requested: offset, available });
    }
}

#[tokio::test]
async fn an_unknown_stream_is_a_typed_error() {
    let broker = FakeBroker::start(1).await;
    broker.state.change(|s| s.stream_known = false);
    let client = broker.connect().await;
    assert_eq!(client.subscribe("s").open().await.err(), Some(SubscribeError::UnknownStream));
}

#[tokio::test]
async fn a_lost_connection_is_resumed_without_loss_or_repetition() {
    let mut broker = FakeBroker::start(2).await;
    put(&broker.state, 0, 0..5);
    let client = broker.connect().await;
    let mut events = client.subscribe("s").from(Start::Earliest).open().await.unwrap();
    assert_eq!(take(&mut events, 5).await, range(0..5));
    for round in 1..=3 {
        broker.stop().await;
        // Written while nobody is connected.
        put(&broker.state, 0, round * 5..round * 5 + 5);
        broker.restart().await;
        assert_eq!(take(&mut events, 5).await, range(round * 5..round * 5 + 5));
    }
    assert!(broker.state.lock().subscribes.contains(&(0, Some(15))));
}

#[tokio::test]
async fn every_way_a_broker_ends_a_live_shard_is_followed_from_the_next_record() {
    for ending in [Ending::Moved, Ending::Lagged, Ending::Fin, Ending::Error(ErrorCode::Draining)] {
        let broker = FakeBroker::start(1).await;
        put(&broker.state, 0, 0..20);
        let client = broker.connect().await;
        let mut events = client.subscribe("s").from(Start::Earliest).open().await.unwrap();
        assert_eq!(take(&mut events, 20).await, range(0..20));
        end(&broker.state, ending.clone());
        put(&broker.state, 0, 20..30);
        assert_eq!(take(&mut events, 10).await, range(20..30), "{ending:?}");
    }
}

#[tokio::test]
async fn a_moved_shard_is_followed_to_the_broker_that_is_named() {
    let old = FakeBroker::start(1).await;
    let new = old.sibling(1);
    put(&old.state, 0, 0..3);
    put(&new.state, 0, 0..6);
    let client = old.connect().await;
    let mut events = client.subscribe("s").from(Start::Earliest).open().await.unwrap();
    assert_eq!(take(&mut events, 3).await, range(0..3));
    end(&old.state, Ending::MovedTo { node_id: "b".into(), addr: new.addr.to_string() });
    assert_eq!(take(&mut events, 3).await, range(3..6));
    assert_eq!(new.state.lock().subscribes, [(0, Some(3))]);
}

#[tokio::test]
async fn a_broker_that_does_not_lead_points_to_the_one_that_does() {
    let entry = FakeBroker::start(1).await;
    let leader = entry.sibling(1);
    put(&leader.state, 0, 0..3);
    let address = leader.addr.to_string();
    entry.state.change(|s| s.leader = Some(("b".to_owned(), address)));
    let client = entry.connect().await;
    let mut events = client.subscribe("s").from(Start::Earliest).open().await.unwrap();
    assert_eq!(take(&mut events, 3).await, range(0..3));
}

#[tokio::test]
async fn a_deleted_stream_and_a_revoked_credential_end_the_subscription() {
    let broker = FakeBroker::start(1).await;
    let client = broker.connect().await;
    let mut events = client.subscribe("s").open().await.unwrap();
    end(&broker.state, Ending::Deleted);
    assert_eq!(item(&mut events).await, Err(SubscribeError::StreamDeleted { shard: 0 }));
    assert_eq!(tokio::time::timeout(DEADLINE, events.next()).await.unwrap(), None);
    let mut events = client.subscribe("s").open().await.unwrap();
    end(&broker.state, Ending::Error(ErrorCode::Revoked));
    let error = item(&mut events).await.unwrap_err();
    assert_eq!(error.code(), Some(&ErrorCode::Revoked));
    assert!(error.ends_shard());
    assert_eq!(tokio::time::timeout(DEADLINE, events.next()).await.unwrap(), None);
}

#[tokio::test]
async fn a_restarted_stream_in_memory_is_a_gap_and_then_everything_it_has() {
    let mut broker = FakeBroker::start(1).await;
    broker.state.change(|s| s.boot = Some(1));
    put(&broker.state, 0, 0..8);
    let client = broker.connect().await;
    let mut events = client.subscribe("s").from(Start::Earliest).open().await.unwrap();
    assert_eq!(take(&mut events, 8).await, range(0..8));
    // The same life: nothing is missing.
    broker.restart().await;
    put(&broker.state, 0, 8..9);
    assert_eq!(take(&mut events, 1).await, [8]);
    // Another life, in which offset 9 is another record.
    broker.stop().await;
    broker.state.change(|s| {
        s.boot = Some(2);
        s.records = vec![Vec::new()];
    });
    put(&broker.state, 0, 100..115);
    broker.restart().await;
    assert_eq!(item(&mut events).await, Err(SubscribeError::Gap(Gap { shard: 0, from: None, to: None })));
    assert_eq!(take(&mut events, 15).await, range(100..115));
    assert_eq!(events.positions().0[&0].boot, Some(2));
}

#[tokio::test]
async fn a_shorter_stream_in_memory_after_a_restart_is_a_gap_too() {
    let mut broker = FakeBroker::start(1).await;
    broker.state.change(|s| s.boot = Some(1));
    put(&broker.state, 0, 0..8);
    let client = broker.connect().await;
    let mut events = client.subscribe("s").from(Start::Earliest).open().await.unwrap();
    take(&mut events, 8).await;
    broker.stop().await;
    broker.state.change(|s| {
        s.boot = Some(2);
        s.records = vec![Vec::new()];
    });
    put(&broker.state, 0, 100..103);
    broker.restart().await;
    let gap = item(&mut events).await.unwrap_err();
    assert_eq!(gap, SubscribeError::Gap(Gap { shard: 0, from: Some(Offset(8)), to: None }));
    assert_eq!(take(&mut events, 3).await, range(100..103));
}

#[tokio::test]
async fn without_offsets_a_lost_connection_is_an_unknown_gap() {
    let mut broker = FakeBroker::start(1).await;
    broker.state.change(|s| s.numbered = false);
    let client = broker.connect().await;
    let mut events = client.subscribe("s").open().await.unwrap();
    put(&broker.state, 0, 0..2);
    assert_eq!(take(&mut events, 2).await, [0, 1]);
    broker.restart().await;
    assert_eq!(item(&mut events).await, Err(SubscribeError::Gap(Gap { shard: 0, from: None, to: None })));
    put(&broker.state, 0, 2..3);
    let event = item(&mut events).await.unwrap();
    assert_eq!((event.offset, &event.payload[..]), (None, &b"2"[..]));
}

#[tokio::test]
async fn positions_go_on_where_an_earlier_subscription_was() {
    let broker = FakeBroker::start(2).await;
    put(&broker.state, 0, 0..6);
    put(&broker.state, 1, 50..54);
    let client = broker.connect().await;
    let mut events = client.subscribe("s").from(Start::Earliest).open().await.unwrap();
    let mut seen = take(&mut events, 5).await;
    let positions = events.positions();
    drop(events);
    let mut again = client.subscribe("s").from(Start::Positions(positions)).open().await.unwrap();
    seen.extend(take(&mut again, 5).await);
    seen.sort_unstable();
    assert_eq!(seen, [range(0..6), range(50..54)].concat());
}

#[tokio::test]
async fn a_busy_reader_stops_the_broker_and_not_the_connection_and_loses_nothing() {
    let broker = FakeBroker::start(2).await;
    let record = Bytes::from(vec![b'x'; 64 << 10]);
    broker.state.change(|s| {
        s.event_frame_records = 1;
        s.records[0] = vec![record; 600];
    });
    let client = broker.connect().await;
    let builder = client.subscribe("s").shards(Shards::One(0)).buffer_bytes(1 << 20);
    let mut slow = builder.from(Start::Earliest).open().await.unwrap();
    // One megabyte here, a stream window and a send window in between: far from all of the 38 MB.
    let bound = 30 << 20;
    let full = broker.state.when("a standstill", |s| (s.event_bytes_written > 2 << 20).then_some(()));
    full.await;
    let mut other = client.subscribe("s").shards(Shards::One(1)).from(Start::Earliest).open().await.unwrap();
    put(&broker.state, 1, 0..1_000);
    assert_eq!(take(&mut other, 1_000).await, range(0..1_000));
    assert!(broker.state.lock().event_bytes_written < bound, "the slow reader is not waited for");
    for offset in 0..600 {
        let event = item(&mut slow).await.unwrap();
        assert_eq!((event.offset, event.payload.len()), (Some(Offset(offset)), 64 << 10));
    }
}

#[tokio::test]
async fn dropping_a_subscription_unsubscribes() {
    let broker = FakeBroker::start(1).await;
    put(&broker.state, 0, 0..1);
    let client = broker.connect().await;
    let mut events = client.subscribe("s").from(Start::Earliest).open().await.unwrap();
    take(&mut events, 1).await;
    assert_eq!(broker.state.lock().event_streams, 1);
    drop(events);
    broker.state.when("the stream is stopped", |s| (s.event_streams == 0).then_some(())).await;
}

#[tokio::test]
async fn a_refused_shard_fails_the_whole_subscription() {
    let broker = FakeBroker::start(3).await;
    broker.state.change(|s| s.leader = Some(("nowhere".to_owned(), "127.0.0.1:1".to_owned())));
    let deadlines = Deadlines {
        connect: Duration::from_millis(100),
        request: Duration::from_millis(300),
        ..Deadlines::default()
    };
    let client = broker.client().deadlines(deadlines).connect().await.unwrap();
    let error = client.subscribe("s").open().await.err().unwrap();
    assert!(matches!(error, SubscribeError::Failed { error: Error::Lost { .. }, .. }), "{error:?}");
}

/// The next item of any kind.
async fn any_item(subscription: &mut Subscription) -> Item {
    let next = tokio::time::timeout(DEADLINE, subscription.next_item()).await;
    next.expect("an item in time").expect("the subscription goes on")
}

async fn notice(subscription: &mut Subscription) -> Notice {
    match any_item(subscription).await {
        Item::Notice(notice) => notice,
        other => panic!("{other:?}"),
    }
}

fn only(subscription: &Subscription) -> ShardProgress {
    *subscription.progress().next().expect("a shard")
}

#[tokio::test]
async fn a_broker_that_goes_and_comes_back_is_told_around_the_records_and_none_is_missing() {
    let mut broker = FakeBroker::start(1).await;
    put(&broker.state, 0, 0..5);
    let client = broker.connect().await;
    let mut events = client.subscribe("s").from(Start::Earliest).open().await.unwrap();
    assert_eq!(take(&mut events, 5).await, range(0..5));
    broker.stop().await;
    assert!(matches!(notice(&mut events).await, Notice::Away { shard: 0, .. }));
    put(&broker.state, 0, 5..8);
    // A broker that has just been started does not know the stream for a while, longer than a new stream may take.
    broker.state.change(|s| s.stream_known = false);
    let asked = broker.state.lock().auths.len();
    broker.restart().await;
    broker.state.when("a client that asks", |s| (s.auths.len() > asked + 4).then_some(())).await;
    broker.state.change(|s| s.stream_known = true);
    let Notice::Back { shard: 0, next, live, away } = notice(&mut events).await else { panic!("back") };
    assert_eq!((next, live), (Some(Offset(5)), Some(Offset(8))));
    assert!(away > Duration::ZERO);
    assert_eq!(take(&mut events, 3).await, range(5..8));
    let progress = only(&events);
    assert_eq!((progress.resumed, progress.missing, progress.lagged), (1, 0, 0));
    assert_eq!((progress.start_offset, progress.live_offset), (Some(Offset(0)), Some(Offset(5))));
}

#[tokio::test]
async fn a_slow_reader_and_a_move_are_told_and_lose_nothing() {
    let broker = FakeBroker::start(1).await;
    put(&broker.state, 0, 0..3);
    let client = broker.connect().await;
    let mut events = client.subscribe("s").from(Start::Earliest).open().await.unwrap();
    assert_eq!(take(&mut events, 3).await, range(0..3));
    end(&broker.state, Ending::Lagged);
    assert_eq!(notice(&mut events).await, Notice::Lagged { shard: 0, from: Offset(3) });
    put(&broker.state, 0, 3..5);
    assert_eq!(take(&mut events, 2).await, range(3..5));
    end(&broker.state, Ending::Moved);
    assert_eq!(notice(&mut events).await, Notice::Moved { shard: 0 });
    put(&broker.state, 0, 5..6);
    assert_eq!(take(&mut events, 1).await, [5]);
    assert_eq!((only(&events).lagged, only(&events).missing), (1, 0));
}

#[tokio::test]
async fn a_subscription_knows_when_it_has_everything_that_was_there() {
    let broker = FakeBroker::start(2).await;
    put(&broker.state, 0, 0..7);
    let client = broker.connect().await;
    let mut events = client.subscribe("s").from(Start::Earliest).open().await.unwrap();
    put(&broker.state, 0, 7..9);
    let caught_up = |events: &Subscription| {
        events.progress().map(|shard| shard.is_caught_up().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(caught_up(&events), [false, true], "an empty shard has nothing to catch up with");
    take(&mut events, 6).await;
    assert_eq!(caught_up(&events), [false, true]);
    take(&mut events, 1).await;
    assert_eq!(caught_up(&events), [true, true]);
    broker.state.change(|s| s.numbered = false);
    let unnumbered = client.subscribe("s").open().await.unwrap();
    assert!(unnumbered.progress().all(|shard| shard.is_caught_up().is_none()));
}

#[tokio::test]
async fn offsets_without_records_at_the_end_are_passed_and_counted() {
    let broker = FakeBroker::start(1).await;
    put(&broker.state, 0, 0..10);
    broker.state.change(|s| s.empty_from = Some(6));
    let client = broker.connect().await;
    let mut events = client.subscribe("s").from(Start::Earliest).open().await.unwrap();
    assert_eq!(take(&mut events, 6).await, range(0..6));
    broker.state.change(|s| s.empty_from = None);
    put(&broker.state, 0, 10..11);
    assert_eq!(take(&mut events, 1).await, [10]);
    let progress = only(&events);
    assert_eq!((progress.skipped, progress.missing), (4, 0));
    assert_eq!(progress.next.unwrap().next, Offset(11));
}

#[tokio::test]
async fn records_that_went_while_the_broker_was_away_are_a_typed_end() {
    let mut broker = FakeBroker::start(1).await;
    put(&broker.state, 0, 0..5);
    let client = broker.connect().await;
    for (held_from, kept, reason, available) in
        [(8, 12, CursorReason::TooOld, 8), (0, 3, CursorReason::InFuture, 3)]
    {
        let mut events = client.subscribe("s").from(Start::Earliest).open().await.unwrap();
        take(&mut events, 5).await;
        broker.stop().await;
        broker.state.change(|s| {
            s.held_from = held_from;
            s.records[0].resize(kept, Bytes::from_static(b"0"));
        });
        broker.restart().await;
        let error = item(&mut events).await.unwrap_err();
        assert_eq!(error, SubscribeError::Cursor { shard: 0, reason, requested: 5, available });
        assert!(error.ends_shard());
        broker.state.change(|s| (s.held_from, s.records[0]) = (0, vec![Bytes::from_static(b"0"); 5]));
    }
}
