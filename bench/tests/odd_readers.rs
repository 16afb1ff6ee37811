//! Readers and writers that do not keep up: they hold back themselves and nobody else (reliability I11, I23, I24).

mod support;

use std::time::{Duration, Instant};

use quinn::VarInt;
use serde_json::json;
use support::good::Good;
use support::raw::{Event, Events, Raw, client_config, publish, usual_transport};
use support::world::{NAMESPACE, TENANT, World};
use support::{until, within};

const OVERLOADED: u16 = 10;

fn name(stream: &str) -> (&str, &str, &str) {
    (TENANT, NAMESPACE, stream)
}

/// A client with small receive windows.
async fn narrow(world: &World, bytes: u32) -> Raw {
    let mut transport = usual_transport();
    transport.stream_receive_window(VarInt::from_u32(bytes)).receive_window(VarInt::from_u32(4 * bytes));
    Raw::connect_with(world.broker.addr, client_config(&world.broker.certificate(), transport)).await.unwrap()
}

async fn reader_of(world: &World, client: &Raw, stream: &str) -> Events {
    client.subscribe((TENANT, &world.token), (NAMESPACE, stream), 0, json!("latest")).await.1.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subscriber_that_never_reads_disturbs_no_other() {
    let world = World::start(&[]);
    let fast_client = world.client_of("s").await;
    let mut fast = reader_of(&world, &fast_client, "s").await;
    let dead_client = narrow(&world, 4_096).await;
    let _dead = reader_of(&world, &dead_client, "s").await;
    let mut line = fast_client.authed(TENANT, &world.token).await;
    let record = vec![3; 16 << 10];
    let began = Instant::now();
    for id in 0..2_000 {
        assert_eq!(line.publish(name("s"), id + 1, &[&record]).await.code, None);
        fast.records(id, 1).await;
    }
    let took = began.elapsed();
    assert!(took < Duration::from_secs(20), "{took:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_publisher_that_never_reads_its_acks_stops_its_own_stream_only() {
    let world = World::start(&[]);
    let client = narrow(&world, 2_048).await;
    client.until_served(TENANT, &world.token, NAMESPACE, "s").await;
    let mut mute = client.authed(TENANT, &world.token).await;
    let writing = tokio::spawn(async move {
        for id in 0.. {
            if mute.send.write_all(&publish(name("s"), None, Some(id), &[&[1; 900]])).await.is_err() {
                break;
            }
        }
    });
    // It stops once the broker holds as many answers as it may.
    let written = || world.broker.metric("felix_publish_written_total").unwrap();
    let mut last = 0;
    let mut since = Instant::now();
    until("it stops", async || {
        let now = written();
        if now != last {
            (last, since) = (now, Instant::now());
        }
        (now > 1_000 && since.elapsed() > Duration::from_secs(1)).then_some(())
    })
    .await;
    assert!(!writing.is_finished());
    let mut line = client.authed(TENANT, &world.token).await;
    for id in 1..=200 {
        let began = Instant::now();
        assert_eq!(line.publish(name("good"), id, &[b"x"]).await.code, None);
        assert!(began.elapsed() < Duration::from_secs(2));
    }
    writing.abort();
}

/// Starts a world in which the subscriber of stream `s` blocks its shard, and stalls it. What was acked, and the client
/// and events of the subscriber.
async fn stalled(world: &World, publisher: &Raw) -> (Raw, Events, u64) {
    let slow = narrow(world, 8_192).await;
    slow.until_served(TENANT, &world.token, NAMESPACE, "s").await;
    let events = reader_of(world, &slow, "s").await;
    let mut line = publisher.authed(TENANT, &world.token).await;
    let record = vec![7; 32 << 10];
    let mut acked = 0_u64;
    loop {
        let began = Instant::now();
        let mut numbered = record.clone();
        numbered[..8].copy_from_slice(&acked.to_be_bytes());
        let ack = line.publish(name("s"), acked + 1, &[&numbered]).await;
        match ack.code {
            None => acked += 1,
            Some(OVERLOADED) => {
                assert!(
                    began.elapsed() >= Duration::from_millis(900),
                    "it waited first: {:?}",
                    began.elapsed()
                );
                break;
            }
            Some(_) => panic!("{ack:?}"),
        }
        assert!(acked < 5_000, "a subscriber with policy block does not block");
    }
    (slow, events, acked)
}

const BLOCK: [&str; 5] = [
    "--sub-queue-policy=block",
    "--replay-ring-max-bytes=2MiB",
    "--replay-ring-max-records=64",
    "--publish-queue-wait-ms=1000",
    "--subscriber-queue-capacity=16",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_stalled_behind_a_blocking_subscriber_holds_back_no_other() {
    let world = World::start(&BLOCK);
    let publisher = world.client().await;
    let (_slow, mut events, acked) = stalled(&world, &publisher).await;
    // Unacked records wait; they are not dropped.
    let mut waiting = publisher.authed(TENANT, &world.token).await;
    for i in 0..10_u64 {
        waiting.write(&publish(name("s"), None, None, &[&(1_000_000 + i).to_be_bytes()])).await;
    }
    // Other streams of the same connection move, on both cores.
    let mut line = publisher.authed(TENANT, &world.token).await;
    for id in 1..=100 {
        let began = Instant::now();
        assert_eq!(line.publish(name("good"), id, &[b"x"]).await.code, None);
        assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    }
    // Another shard of the stalled stream, too.
    let other = json!({"type": "publish", "tenant_id": TENANT, "namespace": NAMESPACE, "stream": "s", "shard": 1,
        "payload": "", "request_id": 500, "ack": "per_message"});
    line.send(&other).await;
    assert_eq!(line.json().await["type"], "publish_ok");
    // When it reads again, everything that was acked is there, in order, then what waited.
    let got = events.records(0, usize::try_from(acked).unwrap() + 10).await;
    let number = |bytes: &[u8]| u64::from_be_bytes(bytes[..8].try_into().unwrap());
    let expected = (0..acked).chain(1_000_000..1_000_010);
    assert!(got.iter().map(|r| number(r)).eq(expected), "acked {acked}, then the ten that waited");
    assert_eq!(line.publish(name("s"), 900, &[b"x"]).await.code, None, "the shard takes more");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shedding_drops_unacked_records_of_a_full_shard_and_counts_them() {
    let mut flags = BLOCK.to_vec();
    flags.push("--shed");
    let world = World::start(&flags);
    let publisher = world.client().await;
    let (_slow, mut events, acked) = stalled(&world, &publisher).await;
    let mut waiting = publisher.authed(TENANT, &world.token).await;
    // The first ones wait at the head; behind them everything is shed.
    let shed = || world.broker.metric("felix_publish_shed_total").unwrap_or(0);
    let waiting = &mut waiting;
    until("shed", async || {
        waiting.write(&publish(name("s"), None, None, &[&[9; 32 << 10]])).await;
        (shed() >= 15).then_some(())
    })
    .await;
    let got = events.records(0, usize::try_from(acked).unwrap()).await;
    assert_eq!(got.len() as u64, acked, "nothing acked was shed");
}

/// Publishes while nobody reads, then reads all there is; the offsets that came, what was published, what was counted.
async fn dropping(policy: &str) -> (Vec<u64>, u64, u64) {
    let world = World::start(&[&format!("--sub-queue-policy={policy}"), "--subscriber-queue-capacity=8"]);
    let publisher = world.client().await;
    let slow = narrow(&world, 8_192).await;
    slow.until_served(TENANT, &world.token, NAMESPACE, "s").await;
    let mut events = reader_of(&world, &slow, "s").await;
    let mut line = publisher.authed(TENANT, &world.token).await;
    let published = 400;
    for id in 0..published {
        assert_eq!(line.publish(name("s"), id + 1, &[&[1; 20_000]]).await.code, None);
    }
    // The counter tells while the subscription still lives.
    let counted = || world.broker.metric("felix_subscribe_dropped_total").unwrap_or(0);
    until("drops counted", async || (counted() > 0).then_some(())).await;
    let mut offsets = Vec::new();
    while let Ok(event) = tokio::time::timeout(Duration::from_secs(2), events.next()).await {
        match event {
            Event::Batch(base, records) => offsets.extend((base..).take(records.len())),
            other => panic!("{other:?}"),
        }
    }
    // It catches up and is live again.
    assert_eq!(line.publish(name("s"), published + 1, &[b"again"]).await.code, None);
    match within("a record after the drops", events.next()).await {
        Event::Batch(base, records) => assert_eq!((base, &records[0][..]), (published, &b"again"[..])),
        other => panic!("{other:?}"),
    }
    (offsets, published, counted())
}

fn assert_in_order(offsets: &[u64]) {
    assert!(offsets.windows(2).all(|pair| pair[0] < pair[1]), "in order, once: {offsets:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drop_new_keeps_what_was_queued_and_counts_every_record_it_skips() {
    let (offsets, published, counted) = dropping("drop_new").await;
    assert_in_order(&offsets);
    assert_eq!(offsets.len() as u64 + counted, published, "{} came", offsets.len());
    assert!(offsets.iter().copied().take(5).eq(0..5), "the oldest were kept: {offsets:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drop_old_keeps_the_newest_and_counts_every_record_it_skips() {
    let (offsets, published, counted) = dropping("drop_old").await;
    assert_in_order(&offsets);
    assert_eq!(offsets.len() as u64 + counted, published, "{} came", offsets.len());
    assert_eq!(offsets.last(), Some(&(published - 1)), "the newest were kept: {offsets:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_subscribers_of_different_speed_each_get_their_own() {
    let world = World::start(&["--subscriber-queue-capacity=2000", "--subscriber-queue-max=4096"]);
    let publisher = world.client_of("s").await;
    let mut fast = reader_of(&world, &publisher, "s").await;
    let slow_client = narrow(&world, 64 << 10).await;
    let mut slow = reader_of(&world, &slow_client, "s").await;
    let mut line = publisher.authed(TENANT, &world.token).await;
    let slow_task = tokio::spawn(async move {
        let _client = slow_client;
        for i in 0..1_000 {
            slow.records(i, 1).await;
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    let began = Instant::now();
    for id in 0..1_000 {
        assert_eq!(line.publish(name("s"), id + 1, &[&[2; 2_000]]).await.code, None);
        fast.records(id, 1).await;
    }
    let fast_took = began.elapsed();
    within("the slow one", slow_task).await.expect("the slow one gets every record");
    assert!(fast_took <= began.elapsed());
    assert_eq!(world.broker.metric("felix_subscribe_dropped_total").unwrap_or(0), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_that_floods_leaves_the_other_its_share() {
    let world = World::start(&[]);
    let flooder = world.plane.tenant("flood", "default");
    let (status, body) = world.plane.try_stream("flood", "default", "f", 2);
    assert!(status < 300, "{body}");
    let good = Good::start(&world, "good").await;
    let mut floods = Vec::new();
    for i in 0..4 {
        let client = world.client().await;
        client.until_served("flood", &flooder, "default", "f").await;
        let token = flooder.clone();
        floods.push(tokio::spawn(async move {
            let mut line = client.authed("flood", &token).await;
            let key = [i];
            let frame = publish(("flood", "default", "f"), Some(&key), None, &[&[1_u8; 4_096][..]; 16]);
            loop {
                if line.send.write_all(&frame).await.is_err() {
                    break;
                }
            }
        }));
    }
    let written = || world.broker.metric("felix_publish_written_total").unwrap();
    until("a flood", async || (written() > 5_000).then_some(())).await;
    let went = good.stop().await;
    for flood in floods {
        flood.abort();
    }
    eprintln!("{went:?}");
    assert!(went.p99 < Duration::from_secs(1), "{went:?}");
}
