//! The SDK against a real broker on four cores: acknowledged or not, keyed over four shards, read from either end,
//! through the broker's death, the end of tokens, and a reader that does not keep up.

mod dev;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use dev::{DEADLINE, Dev, Read};
use felix_sdk::{AckMode, BatchLimits, Bytes, KeyMapping, Published, Start, TryPublishError, shard_for};

const SHARDS: u32 = 4;
/// Every key of a shard together stays below what a shard holds for replay.
const RECORDS: usize = 600;
const KEYS: usize = 40;
/// A reader that is behind holds up the publishers; nothing is skipped.
const BLOCK: [&str; 2] = ["--set", "sub_queue_policy=block"];

/// Little fits between a publisher and a reader that does not read.
const SMALL: [&str; 4] = ["--set", "replay_ring_max_bytes=1MiB", "--set", "subscriber_queue_capacity=16"];

fn key(number: usize) -> Bytes {
    format!("key-{}", number % KEYS).into()
}

fn record(round: &str, number: usize) -> Bytes {
    format!("{round} {number:06} {}", number % KEYS).into()
}

/// Sends `RECORDS` records of a round by key, and gives where each went.
async fn publish(dev: &Dev, round: &str, ack: AckMode) -> Vec<Published> {
    let client = dev.client().await;
    let publisher = client.publisher("s").ack(ack).open().await.unwrap();
    let mut receipts = Vec::new();
    for number in 0..RECORDS {
        receipts.push(publisher.send(record(round, number), key(number)).await.unwrap());
    }
    let mut published = Vec::new();
    for receipt in receipts {
        published.push(receipt.await.unwrap());
    }
    publisher.close().await.unwrap();
    client.close().await;
    published
}

/// Every record of the rounds once, each key's in the order they were sent, in the shard of the key.
fn assert_complete(read: &Read, rounds: &[&str]) {
    let mut by_key: BTreeMap<(&str, usize), Vec<usize>> = BTreeMap::new();
    for (shard, events) in &read.events {
        for event in events {
            let text = std::str::from_utf8(&event.payload).unwrap();
            let parts: Vec<&str> = text.split(' ').collect();
            let (number, of_key): (usize, usize) = (parts[1].parse().unwrap(), parts[2].parse().unwrap());
            assert_eq!(shard_for(Some(&key(of_key)), SHARDS, KeyMapping::JumpHash).0, *shard, "{text}");
            by_key.entry((parts[0], of_key)).or_default().push(number);
        }
    }
    for round in rounds {
        for of_key in 0..KEYS {
            let sent: Vec<usize> = (of_key..RECORDS).step_by(KEYS).collect();
            assert_eq!(by_key.get(&(*round, of_key)), Some(&sent), "{round}, key {of_key}");
        }
    }
}

#[tokio::test]
async fn every_way_to_publish_arrives_once_and_in_order_for_readers_from_either_end() {
    let dev = Dev::start(SHARDS, &BLOCK);
    let client = dev.client().await;
    let mut latest = client.subscribe("s").from(Start::Latest).open().await.unwrap();
    let batch = publish(&dev, "batch", AckMode::PerBatch).await;
    let message = publish(&dev, "message", AckMode::PerMessage).await;
    let mut rounds = ["batch", "message", "none"];
    publish(&dev, "none", AckMode::None).await;
    let all = rounds.len() * RECORDS;
    let mut first = Read::default();
    first.until(&mut latest, |read| read.count == all).await;
    let mut earliest = client.subscribe("s").from(Start::Earliest).open().await.unwrap();
    let mut second = Read::default();
    second.until(&mut earliest, |read| read.count == all).await;
    rounds.sort_unstable();
    for read in [&first, &second] {
        assert!(read.gaps.is_empty() && read.events.len() == SHARDS as usize, "{:?}", read.gaps);
        read.assert_dense();
        assert_complete(read, &rounds);
    }
    assert_eq!(first.events, second.events);
    for (round, published) in [("batch", batch), ("message", message)] {
        for (number, published) in published.iter().enumerate() {
            let at = published.offset.expect("told").get() as usize;
            assert_eq!(first.events[&published.shard][at].payload, record(round, number));
        }
    }
    let deadline = Instant::now() + DEADLINE;
    let told = |name: &str| format!("felix_tenant_{name}_total{{tenant=\"{}\"}}", dev.broker.ready().tenant);
    let bytes: usize = first.payloads().map(<[u8]>::len).sum();
    loop {
        let metrics = dev.metrics();
        let value = |name: &str| metrics.get(&told(name)).map_or(0, |value| *value as usize);
        let seen =
            ["published_messages", "published_bytes", "delivered_messages", "delivered_bytes"].map(value);
        if seen == [all, bytes, 2 * all, 2 * bytes] {
            break;
        }
        assert!(Instant::now() < deadline, "{seen:?}");
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousands_of_shards_are_published_to_and_read_by_one_client() {
    const WIDE: u32 = 4_096;
    const RECORDS: usize = 20_000;
    let dev = Dev::start(WIDE, &BLOCK);
    let client = dev.client().await;
    let mut events = client.subscribe("s").open().await.unwrap_or_else(|error| panic!("{error}"));
    let publisher = client.publisher("s").open().await.unwrap();
    let mut receipts = Vec::new();
    for number in 0..RECORDS {
        let text = Bytes::from(number.to_string());
        receipts.push(publisher.send(text.clone(), text).await.unwrap());
    }
    let mut shards = std::collections::BTreeSet::new();
    for receipt in receipts {
        shards.insert(receipt.await.unwrap().shard);
    }
    // More than a connection to each of the four cores has streams for.
    assert!(shards.len() > 4_000, "{}", shards.len());
    let mut read = Read::default();
    read.until(&mut events, |read| read.count == RECORDS).await;
    assert!(read.gaps.is_empty(), "{:?}", read.gaps);
    read.assert_dense();
}

#[tokio::test]
async fn a_broker_that_dies_is_a_gap_in_every_shard_and_then_the_subscription_goes_on() {
    let mut dev = Dev::start(SHARDS, &BLOCK);
    let client = dev.client().await;
    let mut events = client.subscribe("s").from(Start::Earliest).open().await.unwrap();
    let publisher = client.publisher("s").open().await.unwrap();
    let mut before = Read::default();
    for number in 0..RECORDS {
        drop(publisher.send(record("before", number), key(number)).await.unwrap());
    }
    before.until(&mut events, |read| read.count == RECORDS).await;
    assert!(before.gaps.is_empty());
    dev.restart_broker();
    // The same publisher and subscription go on. Until the client knows, it writes to a connection that is dead.
    let deadline = Instant::now() + DEADLINE;
    let mut acked = 0;
    for number in 0.. {
        match publisher.send(record("after", number), key(number)).await.unwrap().await {
            Ok(_) => acked += 1,
            Err(error) => assert!(error.is_outcome_unknown(), "record {number}: {error}"),
        }
        if acked == RECORDS {
            break;
        }
        assert!(Instant::now() < deadline, "{acked} of {number} were acknowledged");
    }
    let mut after = Read::default();
    // A record that nobody answered may be there too; it was sent before all that were answered.
    after.until(&mut events, |read| read.count >= RECORDS && read.gaps.len() >= SHARDS as usize).await;
    let mut shards: Vec<u32> = after.gaps.iter().map(|gap| gap.shard).collect();
    shards.sort_unstable();
    assert_eq!(shards, [0, 1, 2, 3], "{:?}", after.gaps);
    assert!(after.payloads().all(|payload| payload.starts_with(b"after ")));
    after.assert_dense();
}

#[tokio::test]
async fn publishing_and_reading_outlive_several_tokens() {
    let dev = Dev::start(SHARDS, &[&BLOCK[..], &["--token-ttl", "4s"]].concat());
    let client = dev.client().await;
    let mut events = client.subscribe("s").from(Start::Latest).open().await.unwrap();
    let publisher = client.publisher("s").open().await.unwrap();
    let first_token = std::fs::read(&dev.broker.ready().token_file).unwrap();
    let mut read = Read::default();
    let began = Instant::now();
    let mut sent = 0;
    // The first token and the broker's leeway for it are over twice by then.
    while began.elapsed() < Duration::from_secs(20) {
        publisher.send(record("r", sent), key(sent)).await.unwrap().await.unwrap();
        sent += 1;
        read.until(&mut events, |read| read.count >= sent).await;
    }
    assert_ne!(std::fs::read(&dev.broker.ready().token_file).unwrap(), first_token);
    assert!(read.gaps.is_empty() && read.count == sent, "{} of {sent}: {:?}", read.count, read.gaps);
    read.assert_dense();
}

#[tokio::test]
async fn a_full_window_is_said_at_once_and_takes_again_when_something_is_settled() {
    let dev = Dev::start(1, &[]);
    let client = dev.client().await;
    let publisher = client.publisher("s").budget_bytes(64 << 10).open().await.unwrap();
    let mut receipts = Vec::new();
    let refused = loop {
        // Nothing is settled as long as this task does not wait.
        match publisher.try_publish(vec![b'x'; 1_000], None) {
            Ok(receipt) => receipts.push(receipt),
            Err(error) => break error,
        }
    };
    assert_eq!(refused, TryPublishError::Full);
    assert!((50..=65).contains(&receipts.len()), "{} of 64 KiB", receipts.len());
    let taken = receipts.len();
    for receipt in receipts {
        receipt.await.unwrap();
    }
    let again = publisher.try_publish("again", None).unwrap().await.unwrap();
    assert_eq!(again.offset.map(|offset| offset.get()), Some(taken as u64), "what was full was not sent");
}

/// Publishes without acknowledgement until nothing has been taken for a while: everything between here and a reader that
/// does not read is full.
async fn fill(publisher: &felix_sdk::Publisher) -> usize {
    let mut sent = 0;
    let mut taken_at = Instant::now();
    while taken_at.elapsed() < Duration::from_secs(2) {
        match publisher.try_publish(sized_record(sent), None) {
            Ok(_) => {
                sent += 1;
                taken_at = Instant::now();
            }
            Err(TryPublishError::Full) => tokio::task::yield_now().await,
            Err(error) => panic!("{error}"),
        }
        assert!(sent < 100_000, "nothing holds the publisher back");
    }
    sent
}

fn sized_record(number: usize) -> Bytes {
    let mut record = vec![b'.'; 8 << 10];
    record[..8].copy_from_slice(&(number as u64).to_be_bytes());
    record.into()
}

#[tokio::test]
async fn a_reader_that_does_not_read_holds_the_publisher_and_then_gets_everything() {
    let dev = Dev::start(1, &[&BLOCK[..], &SMALL].concat());
    let client = dev.client().await;
    let mut events = client.subscribe("s").buffer_bytes(1).open().await.unwrap();
    let publisher = client
        .publisher("s")
        .ack(AckMode::None)
        .batch(BatchLimits::one_send_per_frame())
        .open()
        .await
        .unwrap();
    let sent = fill(&publisher).await;
    let mut read = Read::default();
    read.until(&mut events, |read| read.count == sent).await;
    publisher.flush().await.unwrap();
    let last = publisher.try_publish(sized_record(sent), None).unwrap();
    last.await.unwrap();
    read.until(&mut events, |read| read.count == sent + 1).await;
    assert!(read.gaps.is_empty(), "{:?}", read.gaps);
    assert!(read.events[&0].iter().enumerate().all(|(number, event)| event.payload == sized_record(number)));
}

#[tokio::test]
async fn a_reader_that_falls_behind_is_told_exactly_what_it_missed() {
    let dev = Dev::start(1, &[&SMALL[..], &["--set", "sub_queue_policy=drop_new"]].concat());
    let client = dev.client().await;
    let mut events = client.subscribe("s").buffer_bytes(1).open().await.unwrap();
    let publisher = client.publisher("s").batch(BatchLimits::one_send_per_frame()).open().await.unwrap();
    let total = 4_000;
    for number in 0..total {
        publisher.send(sized_record(number), None).await.unwrap().await.unwrap();
    }
    let end =
        |read: &Read| read.events.get(&0).and_then(|of| of.last()).map_or(0, |e| e.offset.unwrap().get() + 1);
    let mut read = Read::default();
    let mut sent = total;
    // What is at the end may be among what was skipped; something behind it is not.
    while end(&read) < total as u64 {
        publisher.send(sized_record(sent), None).await.unwrap().await.unwrap();
        sent += 1;
        let (count, gaps) = (read.count, read.gaps.len());
        read.until(&mut events, |read| read.count > count || read.gaps.len() > gaps).await;
    }
    let missed: u64 = read.gaps.iter().map(|gap| gap.to.unwrap().get() - gap.from.unwrap().get()).sum();
    assert!(missed > 0, "all {} arrived", read.count);
    assert_eq!(read.count as u64 + missed, end(&read), "{:?}", read.gaps);
    for event in &read.events[&0] {
        assert_eq!(event.payload, sized_record(event.offset.unwrap().get() as usize));
    }
    let rising = read.events[&0].windows(2).all(|pair| pair[0].offset < pair[1].offset);
    assert!(rising, "{:?}", read.gaps);
}
