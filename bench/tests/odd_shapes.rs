//! Unusual and allowed: empty records, long names, thousands of shards, streams and connections.

mod support;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bytes::Bytes;
use felix_wire::routing::{KeyMapping, shard_for};
use serde_json::json;
use support::good::Good;
use support::raw::{Event, Raw, publish};
use support::world::{NAMESPACE, TENANT, World};
use support::{until, within};

const NOT_FOUND: u16 = 3;

/// Width and mapping of a stream as the broker tells them.
async fn shape(client: &Raw, token: &str, stream: &str) -> (u32, KeyMapping) {
    let mut line = client.authed(TENANT, token).await;
    line.send(
        &json!({"type": "stream_shards", "tenant_id": TENANT, "namespace": NAMESPACE, "stream": stream,
        "request_id": 9}),
    )
    .await;
    let view = line.json().await;
    assert_eq!(view["request_id"], 9, "{view}");
    let mapping = if view["routing"] == "jump_hash" { KeyMapping::JumpHash } else { KeyMapping::Modulo };
    (u32::try_from(view["shards"].as_u64().unwrap()).unwrap(), mapping)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn empty_records_and_keys_arrive_as_they_are_and_where_they_belong() {
    let world = World::start(&[]);
    let client = world.client_of("s").await;
    let who = (TENANT, world.token.as_str());
    let (width, mapping) = shape(&client, &world.token, "s").await;
    let mut readers = Vec::new();
    for shard in 0..width {
        readers.push(client.subscribe(who, (NAMESPACE, "s"), shard, json!("latest")).await.1.unwrap());
    }
    let name = (TENANT, NAMESPACE, "s");
    let mut line = client.authed(TENANT, &world.token).await;
    let mut expected: BTreeMap<u32, Vec<Bytes>> = BTreeMap::new();
    let keys: [Option<&[u8]>; 5] = [None, Some(b""), Some(b"k0"), Some(&[0; 300]), Some(b"\xff")];
    for (i, key) in keys.into_iter().enumerate() {
        let records: [&[u8]; 3] = [b"", &[u8::try_from(i).unwrap()], b""];
        line.write(&publish(name, key, Some(i as u64 + 1), &records)).await;
        assert_eq!(line.ack().await.code, None, "{key:?}");
        let shard = shard_for(key, width, mapping).0;
        expected.entry(shard).or_default().extend(records.map(Bytes::copy_from_slice));
    }
    // In JSON an empty key is a key, and an absent one is none.
    for (key, id) in [(Some(""), 10), (None, 11)] {
        let mut ask = json!({"type": "publish", "tenant_id": TENANT, "namespace": NAMESPACE, "stream": "s", "payload": "",
            "request_id": id, "ack": "per_message"});
        if let Some(key) = key {
            ask["key"] = json!(key);
        }
        line.send(&ask).await;
        let answer = line.json().await;
        assert_eq!(
            (answer["type"].as_str(), answer["request_id"].as_u64()),
            (Some("publish_ok"), Some(id)),
            "{answer}"
        );
        let shard = shard_for(key.map(str::as_bytes), width, mapping).0;
        expected.entry(shard).or_default().push(Bytes::new());
    }
    for (shard, records) in expected {
        let got = readers[shard as usize].records(0, records.len()).await;
        assert_eq!(got, records, "shard {shard}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_may_be_128_bytes_long_and_no_longer() {
    let world = World::start(&[]);
    let (longest, too_long) = ("n".repeat(128), "n".repeat(129));
    world.stream(&longest, 1);
    let (status, body) = world.plane.try_stream(TENANT, NAMESPACE, &too_long, 1);
    assert_eq!(status, 400, "{body}");
    let client = world.client_of(&longest).await;
    let (_, events) =
        client.subscribe((TENANT, &world.token), (NAMESPACE, &longest), 0, json!("earliest")).await;
    let mut line = client.authed(TENANT, &world.token).await;
    assert_eq!(line.publish((TENANT, NAMESPACE, &longest), 1, &[b"x"]).await.code, None);
    assert_eq!(&events.unwrap().records(0, 1).await[0][..], b"x");
    for stream in [too_long.as_str(), "", "no/slash", &"n".repeat(60_000)] {
        let ack = line.publish((TENANT, NAMESPACE, stream), 2, &[b"x"]).await;
        // A name that no permission can match is as good as a missing one.
        assert!(matches!(ack.code, Some(NOT_FOUND | 2)), "{} bytes: {ack:?}", stream.len());
    }
    assert_eq!(line.publish((TENANT, NAMESPACE, &longest), 3, &[b"y"]).await.code, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_of_4096_shards_takes_and_gives_records_on_all_of_them() {
    let world = World::start(&[]);
    world.stream("wide", 4_096);
    let client = world.client_of("wide").await;
    let who = (TENANT, world.token.as_str());
    let (width, mapping) = shape(&client, &world.token, "wide").await;
    assert_eq!(width, 4_096);
    let name = (TENANT, NAMESPACE, "wide");
    let mut line = client.authed(TENANT, &world.token).await;
    let mut by_shard: BTreeMap<u32, Vec<Bytes>> = BTreeMap::new();
    for i in 0..2_000_u64 {
        let key = format!("key-{i}");
        line.write(&publish(name, Some(key.as_bytes()), Some(i + 1), &[key.as_bytes()])).await;
        let shard = shard_for(Some(key.as_bytes()), width, mapping).0;
        by_shard.entry(shard).or_default().push(Bytes::from(key));
        if i % 100 == 99 {
            for _ in 0..100 {
                assert_eq!(line.ack().await.code, None);
            }
        }
    }
    // Every record of a few hundred shards, the first and the last one among them.
    let last = json!({"type": "publish_batch", "tenant_id": TENANT, "namespace": NAMESPACE, "stream": "wide", "shard": 4_095,
        "payloads": ["bGFzdA=="], "request_id": 5_000, "ack": "per_batch"});
    line.send(&last).await;
    assert_eq!(line.json().await["type"], "publish_ok");
    by_shard.entry(4_095).or_default().push(Bytes::from_static(b"last"));
    let last = by_shard.pop_last().unwrap();
    for (shard, records) in std::iter::once(last).chain(by_shard.into_iter().take(200)) {
        let (_, events) = client.subscribe(who, (NAMESPACE, "wide"), shard, json!("earliest")).await;
        assert_eq!(events.unwrap().records(0, records.len()).await, records, "shard {shard}");
    }
    let (answer, _) = client.subscribe(who, (NAMESPACE, "wide"), 4_096, json!("latest")).await;
    assert_eq!(answer["code"], "invalid_request", "{answer}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_streams_are_served_by_one_connection() {
    let world = World::start(&[]);
    let names: Vec<String> = (0..1_000).map(|i| format!("many-{i}")).collect();
    for name in &names {
        world.stream(name, 1);
    }
    let client = world.client_of(names.last().unwrap()).await;
    let mut line = client.authed(TENANT, &world.token).await;
    for (i, name) in names.iter().enumerate() {
        // The catalog comes in several readings; later streams may be known a moment later.
        let mut id = (i as u64 + 1) * 1_000;
        let line = &mut line;
        until("published", async || {
            id += 1;
            let ack = line.publish((TENANT, NAMESPACE, name), id, &[name.as_bytes()]).await;
            ack.code.is_none().then_some(())
        })
        .await;
    }
    let who = (TENANT, world.token.as_str());
    let mut readers = Vec::new();
    for name in &names {
        let (_, events) = client.subscribe(who, (NAMESPACE, name), 0, json!("earliest")).await;
        let mut events = events.unwrap();
        assert_eq!(&events.records(0, 1).await[0][..], name.as_bytes());
        readers.push(events);
    }
    // All of them are live at once.
    for (i, (name, events)) in names.iter().zip(&mut readers).enumerate().step_by(37) {
        assert_eq!(
            line.publish((TENANT, NAMESPACE, name), 2_000_000 + i as u64, &[b"more"]).await.code,
            None
        );
        assert_eq!(&events.records(1, 1).await[0][..], b"more");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_connections_at_once_are_all_served() {
    let world = World::start(&[]);
    let good = Good::start(&world, "good").await;
    let certificate = world.broker.certificate();
    let mut tasks = Vec::new();
    let gate = std::sync::Arc::new(tokio::sync::Semaphore::new(64));
    for i in 0..1_000_u64 {
        let (addr, certificate, token) = (world.broker.addr, certificate.clone(), world.token.clone());
        let gate = std::sync::Arc::clone(&gate);
        tasks.push(tokio::spawn(async move {
            let turn = gate.acquire().await.unwrap();
            let client = Raw::connect(addr, &certificate).await.expect("a connection");
            let mut line = client.authed(TENANT, &token).await;
            drop(turn);
            let ack = line.publish((TENANT, NAMESPACE, "s"), i, &[&i.to_be_bytes()]).await;
            assert_eq!((ack.code, ack.request_id), (None, i));
            (client, line)
        }));
    }
    let mut held = Vec::new();
    for task in tasks {
        held.push(within("a client", task).await.unwrap());
    }
    until("a thousand connections", async || {
        (world.broker.metric("felix_connections")? >= 1_000).then_some(())
    })
    .await;
    // All still work while all are there.
    for (i, (_, line)) in held.iter_mut().enumerate() {
        assert_eq!(line.publish((TENANT, NAMESPACE, "s"), 10_000 + i as u64, &[b"x"]).await.code, None);
    }
    let went = good.stop().await;
    assert!(went.p99 < Duration::from_secs(1), "{went:?}");
    let reader = world.client().await;
    let (_, events) = reader.subscribe((TENANT, &world.token), (NAMESPACE, "s"), 0, json!("earliest")).await;
    let mut events = events.unwrap();
    let began = Instant::now();
    let mut seen = 0;
    while seen < 1_000 {
        match within("what the ring holds", events.next()).await {
            Event::Batch(base, records) => {
                assert!(base >= 976, "the ring holds the newest 1,024 of 2,000: {base}");
                seen += records.len();
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(began.elapsed() < Duration::from_secs(20));
    held.clear();
    until("connections gone", async || (world.broker.metric("felix_connections")? <= 1).then_some(())).await;
}
