//! Consumer groups and workers of the library against a scripted broker.

mod fake;

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use fake::requests::RequestTrick;
use fake::{DEADLINE, FakeBroker};
use felix_sdk::{
    Bytes, Claim, Client, Deliveries, Delivery, Error, ErrorCode, Group, GroupInfo, GroupPosition, Offset,
    Poll, RequestError, SeekTo, Settle, WorkerReport,
};
use felix_wire::features::Features;
use tokio::sync::oneshot;

fn put(broker: &FakeBroker, shard: usize, numbers: Range<u32>) {
    broker.state.change(|s| s.records[shard].extend(numbers.map(|n| Bytes::from(n.to_string()))));
}

async fn group(broker: &FakeBroker) -> (Client, Group) {
    let client = broker.connect().await;
    let group = client.group("s", "g").unwrap();
    (client, group)
}

fn at_once(max_records: u32) -> Poll {
    Poll { max_records, wait: Duration::ZERO, reclaim: false }
}

fn claim(offset: u64, attempts: u32) -> Claim {
    Claim { shard: 0, offset: Offset(offset), attempts, lease: None }
}

async fn poll(group: &Group, max_records: u32) -> Vec<Claim> {
    let records = group.poll(0, at_once(max_records)).await.unwrap();
    records.into_iter().map(|delivery| delivery.claim).collect()
}

#[tokio::test]
async fn records_are_claimed_acked_given_back_and_handed_out_again() {
    let broker = FakeBroker::start(1).await;
    put(&broker, 0, 0..5);
    let (_client, group) = group(&broker).await;
    let records = group.poll(0, at_once(2)).await.unwrap();
    let first = Delivery {
        claim: claim(0, 1),
        payload: Bytes::from_static(b"0"),
        skipped: 0,
        appended_at: SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(1)),
    };
    assert_eq!((records.len(), &records[0]), (2, &first));
    group.ack(claim(0, 1)).await.unwrap();
    group.ack(claim(0, 1)).await.unwrap();
    group.nack(claim(1, 1), None).await.unwrap();
    assert_eq!(poll(&group, 10).await, [claim(1, 2), claim(2, 1), claim(3, 1), claim(4, 1)]);
    let stale = group.nack(claim(1, 1), None).await.unwrap_err();
    assert_eq!((stale.code(), stale.is_outcome_unknown()), (Some(&ErrorCode::StaleClaim), false));
    let never = group.ack(claim(5, 1)).await.unwrap_err();
    assert_eq!(never.code(), Some(&ErrorCode::InvalidRequest));
    group.nack(claim(1, 2), Duration::from_secs(3_600)).await.unwrap();
    assert_eq!(poll(&group, 10).await, []);
    let info = group.describe(0).await.unwrap();
    let expected = GroupInfo {
        shard: 0,
        committed: Some(Offset(1)),
        tail: Offset(5),
        in_flight: 3,
        owed: 1,
        dead_letters: 0,
    };
    assert_eq!(info, expected);
}

#[tokio::test]
async fn claims_hold_as_long_as_their_poll_and_their_extension_say() {
    let broker = FakeBroker::start(1).await;
    put(&broker, 0, 0..1);
    let (_client, group) = group(&broker).await;
    let short = group.clone().visibility(Duration::from_millis(30));
    assert_eq!(poll(&short, 1).await, [claim(0, 1)]);
    let wait = Poll { max_records: 1, wait: DEADLINE, reclaim: false };
    assert_eq!(short.poll(0, wait).await.unwrap()[0].claim, claim(0, 2), "it has lapsed");
    let held = group.extend(claim(0, 2), Duration::from_secs(1_000_000)).await;
    assert_eq!(held, Ok(Duration::from_secs(12 * 3_600)), "the broker has a bound");
    let stale = group.extend(claim(0, 1), Duration::from_secs(1)).await.unwrap_err();
    assert_eq!(stale.code(), Some(&ErrorCode::StaleClaim));
}

#[tokio::test]
async fn dead_letters_are_listed_redriven_discarded_and_added() {
    let broker = FakeBroker::start(1).await;
    put(&broker, 0, 0..3);
    let (_client, group) = group(&broker).await;
    for attempts in 1..=3 {
        assert_eq!(poll(&group, 1).await, [claim(0, attempts)]);
        group.nack(claim(0, attempts), None).await.unwrap();
    }
    assert_eq!(group.dead_letters(0).await, Ok(vec![Offset(0)]));
    group.redrive(0, Offset(0)).await.unwrap();
    assert_eq!(poll(&group, 1).await, [claim(0, 1)], "attempts are counted anew");
    group.dead_letter(0, Offset(0)).await.unwrap();
    group.discard(0, Offset(0)).await.unwrap();
    assert_eq!(group.dead_letters(0).await, Ok(Vec::new()));
    assert!(group.discard(0, Offset(0)).await.unwrap_err().is_not_found());
}

#[tokio::test]
async fn groups_are_created_moved_and_deleted_on_their_shards() {
    let broker = FakeBroker::start(2).await;
    put(&broker, 0, 0..4);
    let (_client, group) = group(&broker).await;
    assert_eq!(group.delete().await, Ok(false));
    assert_eq!(group.describe(1).await.unwrap().committed, None);
    let position = |shard, offset, moved| GroupPosition { shard, offset: Offset(offset), moved };
    broker.state.change(|s| s.groups.shards.clear());
    assert_eq!(group.create(SeekTo::Latest).await, Ok(vec![position(0, 4, true), position(1, 0, true)]));
    assert_eq!(group.create(SeekTo::Earliest).await, Ok(vec![position(0, 4, false), position(1, 0, false)]));
    assert_eq!(group.seek(0, SeekTo::Offset(Offset(2))).await, Ok(position(0, 2, true)));
    assert_eq!(poll(&group, 1).await, [claim(2, 1)]);
    assert_eq!(group.delete().await, Ok(true));
    assert_eq!(poll(&group, 1).await, [claim(0, 1)], "as if it had never been");
}

#[tokio::test]
async fn what_cannot_be_asked_is_refused_before_anything_is_sent() {
    let broker = FakeBroker::start(2).await;
    let (client, group) = group(&broker).await;
    for name in ["", "a\nb", &"g".repeat(256)] {
        assert!(matches!(client.group("s", name), Err(Error::Config { .. })), "{name:?}");
    }
    assert!(client.group("s", "größe/1 ✓").is_ok());
    let invalid = |outcome: Result<(), RequestError>| {
        let error = outcome.unwrap_err();
        assert!(matches!(error, RequestError::Invalid { .. }), "{error:?}");
    };
    invalid(group.poll(0, at_once(0)).await.map(drop));
    invalid(group.poll(0, at_once(1_001)).await.map(drop));
    invalid(group.poll(2, at_once(1)).await.map(drop));
    invalid(group.poll(0, Poll { reclaim: true, ..at_once(1) }).await.map(drop));
    invalid(group.clone().member("").map(drop));
    invalid(group.clone().member(&"m".repeat(129)).map(drop));
    invalid(group.deliveries().shards(vec![]).open().await.map(drop));
    invalid(group.deliveries().shards(vec![2]).open().await.map(drop));
    assert!(broker.state.lock().requests.seen.is_empty());
}

#[tokio::test]
async fn an_ack_is_repeated_and_a_poll_or_a_nack_without_an_answer_is_not() {
    let broker = FakeBroker::start(1).await;
    put(&broker, 0, 0..3);
    let (_client, group) = group(&broker).await;
    assert_eq!(poll(&group, 2).await.len(), 2);
    let trick = |trick| broker.state.change(|s| s.requests.tricks.push_back(trick));
    trick(RequestTrick::ApplyAndCut);
    group.ack(claim(0, 1)).await.unwrap();
    assert_eq!(broker.state.lock().groups.acked, [(0, 0), (0, 0)]);
    trick(RequestTrick::ApplyAndCut);
    assert!(group.nack(claim(1, 1), None).await.unwrap_err().is_outcome_unknown());
    trick(RequestTrick::Cut);
    assert!(group.poll(0, at_once(1)).await.unwrap_err().is_outcome_unknown());
    assert_eq!(poll(&group, 9).await, [claim(1, 2), claim(2, 1)]);
}

#[tokio::test]
async fn many_records_are_acked_with_one_request_for_each_run_and_each_by_itself_where_one_is_refused() {
    let broker = FakeBroker::start(1).await;
    broker.state.change(|s| s.features = s.features.union(Features::GROUP_RANGES));
    put(&broker, 0, 0..10);
    let (_client, group) = group(&broker).await;
    assert_eq!(poll(&group, 10).await.len(), 10);
    let claims = [5, 0, 2, 1, 8, 10, 9].map(|offset| claim(offset, 1));
    let results = group.ack_all(&claims).await;
    let refused: Vec<usize> = (0..claims.len()).filter(|place| results[*place].is_err()).collect();
    assert_eq!(refused, [5], "{results:?}");
    assert_eq!(results[5].as_ref().unwrap_err().code(), Some(&ErrorCode::InvalidRequest), "never handed out");
    let (ranges, mut acked) = broker.state.change(|s| (s.groups.ranges.clone(), s.groups.acked.clone()));
    acked.sort_unstable();
    assert_eq!(ranges, [(0, 0, 3)]);
    assert_eq!(acked, [0, 1, 2, 5, 8, 9, 10].map(|offset| (0, offset)), "10 was asked for, and refused");
    assert!(group.ack_all(&[]).await.is_empty());
}

#[tokio::test]
async fn many_records_are_acked_each_by_itself_by_a_broker_that_does_not_take_them_together() {
    let broker = FakeBroker::start(1).await;
    put(&broker, 0, 0..3);
    let (_client, group) = group(&broker).await;
    let claims = poll(&group, 3).await;
    assert!(group.ack_all(&claims).await.iter().all(Result::is_ok));
    let (ranges, acked) = broker.state.change(|s| (s.groups.ranges.clone(), s.groups.acked.len()));
    assert_eq!((ranges, acked), (vec![], 3));
    let trick = |trick| broker.state.change(|s| s.requests.tricks.push_back(trick));
    trick(RequestTrick::ApplyAndCut);
    assert!(group.ack_all(&claims).await.iter().all(Result::is_ok), "what is finished is finished");
}

#[tokio::test]
async fn without_claim_control_a_nack_names_no_delivery_and_what_needs_it_is_not_served() {
    let broker = FakeBroker::start(1).await;
    broker.state.change(|s| s.features = s.features.without(Features::GROUP_CLAIM_CONTROL));
    put(&broker, 0, 0..1);
    let (_client, group) = group(&broker).await;
    assert_eq!(poll(&group, 1).await, [claim(0, 1)]);
    let not_served = |what| Err(RequestError::Unavailable(Error::NotServed { what }));
    assert_eq!(group.nack(claim(0, 1), Duration::from_secs(1)).await, not_served("group_nack"));
    let short = group.clone().visibility(Duration::from_secs(1));
    assert_eq!(short.poll(0, at_once(1)).await.map(drop), not_served("group_poll"));
    // An old attempt count would be refused if it were named.
    group.nack(claim(0, 9), None).await.unwrap();
}

async fn next(deliveries: &mut Deliveries) -> Delivery {
    let next = tokio::time::timeout(DEADLINE, deliveries.next()).await;
    next.expect("a record in time").expect("it goes on").expect("no error")
}

#[tokio::test]
async fn deliveries_come_from_all_shards_within_their_share_and_go_on_through_a_restart() {
    let mut broker = FakeBroker::start(3).await;
    for shard in 0..2 {
        put(&broker, shard, 0..40);
    }
    let (_client, group) = group(&broker).await;
    // What the lost answer of a poll has claimed comes again after that time.
    let group = group.visibility(Duration::from_millis(500));
    let mut deliveries = group.deliveries().prefetch(12).open().await.unwrap();
    let mut seen = BTreeSet::new();
    while seen.len() < 60 {
        let claim = next(&mut deliveries).await.claim;
        group.ack(claim).await.unwrap();
        seen.insert((claim.shard, claim.offset));
    }
    assert!(broker.state.lock().groups.polls.iter().all(|records| *records <= 4), "the share of each shard");
    assert!(broker.state.lock().groups.held_most <= 12 + 1);
    broker.stop().await;
    put(&broker, 2, 0..10);
    broker.restart().await;
    while seen.len() < 90 {
        let claim = next(&mut deliveries).await.claim;
        group.ack(claim).await.unwrap();
        seen.insert((claim.shard, claim.offset));
    }
    let of = |shard| seen.iter().filter(|(of, _)| *of == shard).count();
    assert_eq!([of(0), of(1), of(2)], [40, 40, 10]);
}

#[tokio::test]
async fn stopping_gives_back_what_was_claimed_and_not_handed_out() {
    let broker = FakeBroker::start(1).await;
    put(&broker, 0, 0..10);
    let (_client, group) = group(&broker).await;
    let builder = group.deliveries().prefetch(8).wait(Duration::from_millis(50));
    let mut deliveries = builder.open().await.unwrap();
    let first = next(&mut deliveries).await;
    assert_eq!(first.claim, claim(0, 1));
    tokio::time::timeout(DEADLINE, deliveries.stop()).await.expect("stops in time");
    let info = group.describe(0).await.unwrap();
    assert_eq!((info.in_flight, info.committed), (1, Some(Offset(0))), "the one that was handed out");
    group.ack(first.claim).await.unwrap();
    let again = poll(&group, 20).await;
    assert_eq!(again.iter().map(|claim| claim.offset.get()).collect::<BTreeSet<_>>(), (1..10).collect());
}

#[tokio::test]
async fn a_member_reclaims_once_for_each_shard_what_its_predecessor_held() {
    let broker = FakeBroker::start(2).await;
    put(&broker, 0, 0..3);
    let (_client, group) = group(&broker).await;
    let member = group.member("m").unwrap();
    assert_eq!(poll(&member, 3).await.len(), 3);
    let builder = member.deliveries().wait(Duration::from_millis(20));
    let mut deliveries = builder.open().await.unwrap();
    for offset in 0..3 {
        assert_eq!(next(&mut deliveries).await.claim, claim(offset, 2));
    }
    broker.state.when("more polls", |s| (s.groups.polls.len() > 8).then_some(())).await;
    let mut reclaims = broker.state.lock().groups.reclaims.clone();
    reclaims.sort_unstable();
    assert_eq!(reclaims, [(0, "m".to_owned()), (1, "m".to_owned())]);
}

#[tokio::test]
async fn a_shard_that_cannot_be_polled_ends_with_its_reason() {
    let broker = FakeBroker::start(1).await;
    let (_client, group) = group(&broker).await;
    let refuse = RequestTrick::Refuse(ErrorCode::Forbidden, None);
    broker.state.change(|s| s.requests.tricks.push_back(refuse));
    let mut deliveries = group.deliveries().open().await.unwrap();
    let error = tokio::time::timeout(DEADLINE, deliveries.next()).await.unwrap().unwrap().unwrap_err();
    assert_eq!((error.shard, error.error.code()), (0, Some(&ErrorCode::Forbidden)));
    assert_eq!(tokio::time::timeout(DEADLINE, deliveries.next()).await.unwrap(), None);
}

#[tokio::test]
async fn a_consumer_of_a_stream_that_is_deleted_ends_after_a_while_and_one_that_comes_back_goes_on() {
    let broker = FakeBroker::start(1).await;
    put(&broker, 0, 0..1);
    let (_client, group) = group(&broker).await;
    let mut deliveries = group.deliveries().wait(Duration::from_millis(20)).open().await.unwrap();
    group.ack(next(&mut deliveries).await.claim).await.unwrap();
    let known = |known| broker.state.change(|s| s.stream_known = known);
    let polls = |s: &fake::State| s.requests.seen.iter().filter(|name| *name == "group_poll").count();
    known(false);
    let asked = polls(&broker.state.lock());
    broker.state.when("polls that fail", |s| (polls(s) > asked + 2).then_some(())).await;
    known(true);
    put(&broker, 0, 1..2);
    assert_eq!(next(&mut deliveries).await.claim, claim(1, 1));
    known(false);
    let error = tokio::time::timeout(DEADLINE, deliveries.next()).await.unwrap().unwrap().unwrap_err();
    assert!(error.error.is_not_found(), "{error}");
    assert_eq!(tokio::time::timeout(DEADLINE, deliveries.next()).await.unwrap(), None);
}

/// Runs a worker until `done` of the state.
async fn work<H, F>(
    broker: &FakeBroker,
    group: &Group,
    concurrency: usize,
    handler: H,
    done: impl Fn(&fake::State) -> bool,
) -> WorkerReport
where
    H: Fn(Delivery) -> F + Send + Sync + 'static,
    F: Future<Output = Settle> + Send + 'static,
{
    let (stop, stopped) = oneshot::channel::<()>();
    let builder = group.worker().concurrency(concurrency).wait(Duration::from_millis(100));
    let worker = tokio::spawn(builder.run(handler, async move { drop(stopped.await) }));
    broker.state.when("the work is done", |s| done(s).then_some(())).await;
    drop(stop);
    tokio::time::timeout(DEADLINE, worker).await.expect("it stops").unwrap().unwrap()
}

fn finished(s: &fake::State) -> usize {
    s.groups.shards.values().map(|shard| shard.finished.len()).sum()
}

#[tokio::test]
async fn a_worker_runs_so_many_handlers_and_settles_as_they_say() {
    let broker = FakeBroker::start(2).await;
    put(&broker, 0, 0..50);
    put(&broker, 1, 50..100);
    let (_client, group) = group(&broker).await;
    let running = Arc::new(AtomicUsize::new(0));
    let most = Arc::new(AtomicUsize::new(0));
    let (counting, peak) = (running.clone(), most.clone());
    let handler = move |delivery: Delivery| {
        let (counting, peak) = (counting.clone(), peak.clone());
        async move {
            peak.fetch_max(counting.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(2)).await;
            counting.fetch_sub(1, Ordering::SeqCst);
            let number: u32 = std::str::from_utf8(&delivery.payload).unwrap().parse().unwrap();
            match number {
                7 => Settle::DeadLetter,
                n if n % 10 == 3 && delivery.claim.attempts == 1 => Settle::Nack { delay: None },
                _ => Settle::Ack,
            }
        }
    };
    let report = work(&broker, &group, 8, handler, |s| finished(s) == 100).await;
    assert_eq!((report.acked, report.nacked, report.dead_lettered), (99, 10, 1));
    assert_eq!((report.lost, report.unsettled, report.panicked), (0, 0, 0));
    assert_eq!(most.load(Ordering::SeqCst), 8);
    assert!(broker.state.lock().groups.held_most <= 8);
    assert_eq!(group.dead_letters(0).await, Ok(vec![Offset(7)]));
}

#[tokio::test]
async fn a_worker_holds_the_claim_of_a_slow_handler() {
    let broker = FakeBroker::start(1).await;
    put(&broker, 0, 0..3);
    let (_client, group) = group(&broker).await;
    let group = group.visibility(Duration::from_millis(120));
    let handler = |_| async {
        tokio::time::sleep(Duration::from_millis(600)).await;
        Settle::Ack
    };
    // One at a time: the others wait with claims that are held too.
    let report = work(&broker, &group, 1, handler, |s| finished(s) == 3).await;
    assert_eq!((report.acked, report.lost), (3, 0));
    let state = broker.state.lock();
    assert!(state.groups.extensions >= 3 * 4, "{}", state.groups.extensions);
    assert_eq!(state.groups.acked.len(), 3, "each was handed out once");
}

#[tokio::test]
async fn a_claim_that_was_lost_is_not_settled() {
    let broker = FakeBroker::start(1).await;
    put(&broker, 0, 0..1);
    let (_client, group) = group(&broker).await;
    let group = group.visibility(Duration::from_millis(200));
    let state = broker.state.clone();
    let handler = move |delivery: Delivery| {
        let state = state.clone();
        async move {
            if delivery.claim.attempts == 1 {
                // Somebody moved the group.
                state.change(|s| {
                    s.groups.shards.values_mut().for_each(|shard| {
                        shard.held.clear();
                        shard.owed.insert(0, (1, std::time::Instant::now()));
                    })
                });
                tokio::time::sleep(Duration::from_millis(300)).await;
            }
            Settle::Ack
        }
    };
    let report = work(&broker, &group, 2, handler, |s| finished(s) == 1).await;
    assert_eq!((report.acked, report.lost), (1, 1));
}

#[tokio::test]
async fn a_handler_that_panics_gives_its_record_back_and_the_worker_goes_on() {
    let broker = FakeBroker::start(1).await;
    put(&broker, 0, 0..5);
    let (_client, group) = group(&broker).await;
    let handler = |delivery: Delivery| async move {
        assert!(delivery.payload != "2" || delivery.claim.attempts > 1, "a bug in the handler");
        Settle::Ack
    };
    let report = work(&broker, &group, 2, handler, |s| finished(s) == 5).await;
    assert_eq!((report.acked, report.nacked, report.panicked), (5, 1, 1));
}

#[tokio::test]
async fn a_stopped_worker_gives_back_what_waits_and_ends_what_takes_too_long() {
    let broker = FakeBroker::start(1).await;
    put(&broker, 0, 0..10);
    let (_client, group) = group(&broker).await;
    let started = Arc::new(Mutex::new(Vec::new()));
    let starting = started.clone();
    let handler = move |delivery: Delivery| {
        starting.lock().unwrap().push(delivery.claim.offset.get());
        async move {
            match delivery.claim.offset.get() {
                0 => std::future::pending().await,
                _ => tokio::time::sleep(Duration::from_millis(50)).await,
            }
            Settle::Ack
        }
    };
    let (stop, stopped) = oneshot::channel::<()>();
    let builder = group.worker().concurrency(2).wait(Duration::from_millis(50));
    let builder = builder.stop_patience(Duration::from_millis(300));
    let worker = tokio::spawn(builder.run(handler, async move { drop(stopped.await) }));
    broker.state.when("some work", |s| (finished(s) >= 2).then_some(())).await;
    drop(stop);
    let report = tokio::time::timeout(DEADLINE, worker).await.expect("it stops").unwrap().unwrap();
    let state = broker.state.lock();
    let shard = &state.groups.shards[&("g".to_owned(), 0)];
    assert!(shard.held.is_empty(), "nothing stays claimed: {shard:?}");
    assert!(shard.owed.contains_key(&0));
    assert_eq!(report.acked as usize, shard.finished.len());
    assert!(report.nacked >= 1 && started.lock().unwrap().len() < 10);
}

#[tokio::test]
async fn a_worker_that_is_stopped_while_the_broker_is_away_ends_and_says_what_is_not_settled() {
    let mut broker = FakeBroker::start(1).await;
    put(&broker, 0, 0..2);
    let (_client, group) = group(&broker).await;
    let (begun, mut beginning) = tokio::sync::mpsc::channel(2);
    let handler = move |_| {
        let begun = begun.clone();
        async move {
            begun.send(()).await.unwrap();
            tokio::time::sleep(Duration::from_millis(100)).await;
            Settle::Ack
        }
    };
    let (stop, stopped) = oneshot::channel::<()>();
    let builder = group.worker().concurrency(2).stop_patience(Duration::from_millis(50));
    let worker = tokio::spawn(builder.run(handler, async move { drop(stopped.await) }));
    for _ in 0..2 {
        tokio::time::timeout(DEADLINE, beginning.recv()).await.expect("in time").expect("it runs");
    }
    broker.stop().await;
    drop(stop);
    let report = tokio::time::timeout(DEADLINE, worker).await.expect("it stops").unwrap().unwrap();
    assert_eq!((report.acked, report.unsettled), (0, 2), "{report:?}");
}

#[tokio::test]
async fn a_worker_whose_shards_cannot_be_polled_ends_with_the_reason() {
    let broker = FakeBroker::start(1).await;
    let (_client, group) = group(&broker).await;
    let refuse = RequestTrick::Refuse(ErrorCode::Forbidden, None);
    broker.state.change(|s| s.requests.tricks.push_back(refuse));
    let run = group.worker().run(|_| async { Settle::Ack }, std::future::pending());
    let error = tokio::time::timeout(DEADLINE, run).await.expect("it ends").unwrap_err();
    assert_eq!(error.code(), Some(&ErrorCode::Forbidden));
}
