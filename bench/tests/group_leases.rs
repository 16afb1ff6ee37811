//! Whole-stream groups with a real broker: workers that share the shards of a stream, one that joins, one that dies, one that is
//! replaced, a broker that is killed.

mod dev;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dev::{DEADLINE, Dev};
use felix_sdk::{Bytes, Client, Delivery, ErrorCode, Group, Publisher, RequestError, Settle, WorkerReport};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

const SHARDS: usize = 8;
const STREAM: &str = "work";

/// Which member has handled which delivery of each record.
type Handled = Arc<Mutex<BTreeMap<(u32, u64), Vec<(&'static str, u32)>>>>;

struct Worker {
    task: JoinHandle<Result<WorkerReport, RequestError>>,
    stop: Option<oneshot::Sender<()>>,
    _client: Client,
}

impl Worker {
    /// A worker with a client of its own, which handles a record in some milliseconds.
    async fn start(dev: &Dev, name: &'static str, term: Duration, handled: &Handled) -> Worker {
        let client = dev.client().await;
        let group = client.group(STREAM, "g").unwrap().member(name).unwrap();
        let handled = Arc::clone(handled);
        let handler = move |delivery: Delivery| {
            let handled = Arc::clone(&handled);
            async move {
                tokio::time::sleep(Duration::from_millis(3)).await;
                let claim = delivery.claim;
                assert!(claim.lease.is_some(), "a worker of many shards has leases");
                let place = (claim.shard, claim.offset.get());
                handled.lock().unwrap().entry(place).or_default().push((name, claim.attempts));
                Settle::Ack
            }
        };
        let (stop, stopped) = oneshot::channel();
        let builder = group.worker().concurrency(32).wait(Duration::from_millis(500)).term(term);
        let task = tokio::spawn(builder.run(handler, async move { drop(stopped.await) }));
        Worker { task, stop: Some(stop), _client: client }
    }

    async fn stop(mut self) -> WorkerReport {
        drop(self.stop.take());
        tokio::time::timeout(DEADLINE, self.task).await.expect("it stops").unwrap().unwrap()
    }
}

fn start() -> Dev {
    let dev = Dev::start(1, &[]);
    dev.broker.create_durable_stream(STREAM, SHARDS as u32).unwrap();
    dev
}

async fn publish(publisher: &Publisher, numbers: std::ops::Range<usize>) {
    let mut receipts = Vec::new();
    for number in numbers {
        let key = format!("key {number}");
        receipts.push(publisher.send(number.to_string(), Bytes::from(key)).await.unwrap());
    }
    for receipt in receipts {
        receipt.await.unwrap();
    }
}

/// How many shards each member holds.
async fn holds(group: &Group) -> Vec<(String, usize)> {
    let members = group.members().await.unwrap();
    members.into_iter().map(|member| (member.name, member.leases.len())).collect()
}

async fn until_held(group: &Group, wanted: &[(&str, usize)]) {
    let end = Instant::now() + DEADLINE;
    loop {
        let held = holds(group).await;
        if held.iter().map(|(name, shards)| (name.as_str(), *shards)).eq(wanted.iter().copied()) {
            return;
        }
        assert!(Instant::now() < end, "{held:?} is not {wanted:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn until_handled(handled: &Handled, records: usize) {
    let end = Instant::now() + DEADLINE;
    while handled.lock().unwrap().len() < records {
        assert!(Instant::now() < end, "{} of {records}", handled.lock().unwrap().len());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_share_the_shards_and_each_record_is_settled_once_while_one_joins_and_one_leaves() {
    const TERM: Duration = Duration::from_secs(30);
    const RECORDS: usize = 6_000;
    let dev = start();
    let client = dev.client().await;
    let group = client.group(STREAM, "g").unwrap();
    let publisher = client.publisher(STREAM).open().await.unwrap();
    let handled = Handled::default();
    assert_eq!(holds(&group).await, []);
    let a = Worker::start(&dev, "a", TERM, &handled).await;
    until_held(&group, &[("a", 8)]).await;
    publish(&publisher, 0..RECORDS / 3).await;
    let b = Worker::start(&dev, "b", TERM, &handled).await;
    until_held(&group, &[("a", 4), ("b", 4)]).await;
    publish(&publisher, RECORDS / 3..RECORDS * 2 / 3).await;
    let c = Worker::start(&dev, "c", TERM, &handled).await;
    until_held(&group, &[("a", 3), ("b", 3), ("c", 2)]).await;
    publish(&publisher, RECORDS * 2 / 3..RECORDS - 100).await;
    // One that is stopped gives its shards up at once, long before its term.
    let left = Instant::now();
    let mut reports = vec![a.stop().await];
    until_held(&group, &[("b", 4), ("c", 4)]).await;
    assert!(left.elapsed() < TERM, "{:?}", left.elapsed());
    publish(&publisher, RECORDS - 100..RECORDS).await;
    until_handled(&handled, RECORDS).await;
    reports.extend([b.stop().await, c.stop().await]);
    assert_eq!(holds(&group).await, []);
    let handled = handled.lock().unwrap();
    // What somebody had fetched and not begun when it gave a shard back is delivered again.
    let twice: Vec<_> = handled.iter().filter(|(_, times)| times.len() > 1).collect();
    assert_eq!(twice, [], "every record is handled once");
    let acked: u64 = reports.iter().map(|report| report.acked).sum();
    let lost: u64 = reports.iter().map(|report| report.lost + report.unsettled).sum();
    assert_eq!((acked, lost), (RECORDS as u64, 0), "{reports:?}");
    let shards_of = |name: &str| {
        let of = handled.iter().filter(|(_, times)| times[0].0 == name).map(|((shard, _), _)| *shard);
        of.collect::<std::collections::BTreeSet<u32>>().len()
    };
    assert_eq!([shards_of("a"), shards_of("b")].map(|shards| shards >= 4), [true; 2]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_shards_and_claims_of_one_that_dies_come_to_the_others_within_its_term() {
    const TERM: Duration = Duration::from_secs(3);
    const RECORDS: usize = 400;
    let dev = start();
    let client = dev.client().await;
    let group = client.group(STREAM, "g").unwrap();
    publish(&client.publisher(STREAM).open().await.unwrap(), 0..RECORDS).await;
    let dying = dev.client().await.group(STREAM, "g").unwrap().member("dying").unwrap();
    let mut deliveries = dying.deliveries().prefetch(64).term(TERM).open().await.unwrap();
    let mut claims = Vec::new();
    while claims.len() < 40 {
        let delivery = tokio::time::timeout(DEADLINE, deliveries.next()).await.expect("in time");
        claims.push(delivery.expect("it goes on").unwrap().claim);
    }
    dying.ack(claims[0]).await.unwrap();
    let handled = Handled::default();
    let other = Worker::start(&dev, "other", TERM, &handled).await;
    // It keeps what has unsettled records until its time is over, and then it is not heard of any more.
    drop(deliveries);
    let died = Instant::now();
    until_held(&group, &[("other", 8)]).await;
    // Claims hold for 30 s: they would come later than this if they had to lapse.
    until_handled(&handled, RECORDS - 1).await;
    assert!(died.elapsed() < TERM + Duration::from_secs(15), "{:?}", died.elapsed());
    let refused = dying.ack(claims[1]).await.unwrap_err();
    assert_eq!(refused.code(), Some(&ErrorCode::StaleClaim));
    assert_eq!(refused.refusal().unwrap().reason.as_deref(), Some("stale_lease"));
    let report = other.stop().await;
    assert_eq!((report.acked, report.lost), (RECORDS as u64 - 1, 0), "{report:?}");
    let handled = handled.lock().unwrap();
    assert!(handled.values().all(|times| times.len() == 1), "{handled:?}");
    let again = |claim: &felix_sdk::Claim| handled[&(claim.shard, claim.offset.get())] == [("other", 2)];
    assert!(claims[1..].iter().all(again), "what it had claimed was handed out once more");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_starts_again_takes_its_place_at_once_and_the_old_one_is_told() {
    let dev = start();
    let client = dev.client().await;
    let group = client.group(STREAM, "g").unwrap();
    let member = group.clone().member("m").unwrap();
    let term = Duration::from_secs(60);
    let mut old = member.deliveries().term(term).open().await.unwrap();
    until_held(&group, &[("m", 8)]).await;
    let before = group.members().await.unwrap();
    let new = dev.client().await.group(STREAM, "g").unwrap().member("m").unwrap();
    let mut deliveries = new.deliveries().term(term).open().await.unwrap();
    let ended = tokio::time::timeout(DEADLINE, old.next()).await.expect("it is told").unwrap().unwrap_err();
    assert_eq!(ended.error.code(), Some(&ErrorCode::StaleClaim));
    assert_eq!(ended.error.refusal().unwrap().reason.as_deref(), Some("member_replaced"));
    assert_eq!(tokio::time::timeout(DEADLINE, old.next()).await.expect("and it ends"), None);
    let after = group.members().await.unwrap();
    assert!(after[0].leases.iter().zip(&before[0].leases).all(|(after, before)| after.lease > before.lease));
    publish(&client.publisher(STREAM).open().await.unwrap(), 0..100).await;
    for _ in 0..100 {
        let delivery = tokio::time::timeout(DEADLINE, deliveries.next()).await.expect("in time");
        new.ack(delivery.unwrap().unwrap().claim).await.unwrap();
    }
    let odd = new.deliveries().term(Duration::from_millis(999)).open().await.map(drop);
    assert!(matches!(odd, Err(RequestError::Invalid { .. })), "{odd:?}");
    deliveries.stop().await;
    assert_eq!(holds(&group).await, []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_join_again_when_the_broker_was_killed_and_nothing_is_missed() {
    const TERM: Duration = Duration::from_secs(5);
    const RECORDS: usize = 3_000;
    let mut dev = start();
    let client = dev.client().await;
    let group = client.group(STREAM, "g").unwrap();
    let publisher = client.publisher(STREAM).open().await.unwrap();
    let handled = Handled::default();
    let workers =
        [Worker::start(&dev, "a", TERM, &handled).await, Worker::start(&dev, "b", TERM, &handled).await];
    until_held(&group, &[("a", 4), ("b", 4)]).await;
    for round in 0..3 {
        let part = RECORDS / 3;
        publish(&publisher, round * part..(round + 1) * part).await;
        dev.restart_broker();
    }
    until_handled(&handled, RECORDS).await;
    until_held(&group, &[("a", 4), ("b", 4)]).await;
    for worker in workers {
        worker.stop().await;
    }
    let mut lag = 0;
    for shard in 0..SHARDS as u32 {
        let info = group.describe(shard).await.unwrap();
        lag += info.tail.get() - info.committed.map_or(0, |at| at.get());
    }
    assert_eq!(lag, 0, "everything is finished");
}
