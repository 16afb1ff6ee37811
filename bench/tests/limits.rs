//! Limits of the running broker: each is refused with its code, and nobody else notices.

mod support;

use std::time::{Duration, Instant};

use felix_wire::frame::FrameHeader;
use serde_json::json;
use support::raw::{Event, Raw, application_close, frame, publish};
use support::world::{NAMESPACE, TENANT, World};
use support::{until, within};

const NAME: (&str, &str, &str) = (TENANT, NAMESPACE, "s");
const INVALID_REQUEST: u16 = 4;
const LIMIT_EXCEEDED: u16 = 11;
const FRAME_MAX: usize = 16 << 20;

/// Bytes of a publish frame's payload before its only record.
fn head_bytes() -> usize {
    publish(NAME, None, Some(1), &[b""]).len() - felix_wire::frame::HEADER_LEN
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frame_of_sixteen_mebibytes_is_delivered_and_one_byte_more_is_refused_by_its_header() {
    let world = World::start(&[]);
    let client = world.client_of("s").await;
    let who = (TENANT, world.token.as_str());
    let (_, events) = client.subscribe(who, (NAMESPACE, "s"), 0, json!("latest")).await;
    let mut events = events.unwrap();
    let mut line = client.authed(TENANT, &world.token).await;
    let big: Vec<u8> = (0..FRAME_MAX - head_bytes()).map(|i| (i / 7) as u8).collect();
    assert_eq!(line.publish(NAME, 1, &[&big]).await.code, None);
    let got = events.records(0, 1).await;
    assert!(got[0] == big, "every byte");
    // The same size again in many records.
    let part = vec![9; 100_000];
    let count = (FRAME_MAX - head_bytes()) / (part.len() + 4);
    let parts: Vec<&[u8]> = std::iter::repeat_n(&part[..], count).collect();
    assert_eq!(line.publish(NAME, 2, &parts).await.code, None);
    let got = events.records(1, count).await;
    assert!(got.iter().all(|record| record[..] == part[..]));
    let mut other = client.authed(TENANT, &world.token).await;
    let header = FrameHeader { flags: 0x0009, length: u32::try_from(FRAME_MAX).unwrap() + 1 }.encode();
    other.write(&header).await;
    let answer = other.json().await;
    assert_eq!(answer["code"], "limit_exceeded", "{answer}");
    other.ends().await;
    assert_eq!(line.publish(NAME, 3, &[b"x"]).await.code, None, "the connection lives");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_and_keys_have_their_bounds() {
    let world = World::start(&[]);
    let client = world.client_of("s").await;
    let mut line = client.authed(TENANT, &world.token).await;
    let most: Vec<&[u8]> = vec![b""; 65_536];
    assert_eq!(line.publish(NAME, 1, &most).await.code, None);
    let over: Vec<&[u8]> = vec![b""; 65_537];
    assert_eq!(line.publish(NAME, 2, &over).await.code, Some(LIMIT_EXCEEDED));
    assert_eq!(line.publish(NAME, 3, &[]).await.code, Some(INVALID_REQUEST), "an empty batch");
    line.write(&publish(NAME, Some(&[7; 65_535]), Some(4), &[b"x"])).await;
    assert_eq!(line.ack().await.code, None, "the longest key");
    // A record count that the bytes cannot hold is refused before anything is reserved for it.
    let mut lie = publish(NAME, None, Some(5), &[b"x"]);
    let at = lie.len() - 4 - 1 - 4;
    lie[at..at + 4].copy_from_slice(&u32::MAX.to_be_bytes());
    line.write(&lie).await;
    let ack = line.ack().await;
    assert_eq!((ack.request_id, ack.code), (5, Some(INVALID_REQUEST)));
    assert_eq!(line.publish(NAME, 6, &[b"x"]).await.code, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_gets_so_many_connections_and_room_comes_back() {
    let world = World::start(&["--cores=0", "--max-connections-per-ip=10"]);
    let mut held = Vec::new();
    for _ in 0..10 {
        held.push(world.client().await);
    }
    for _ in 0..5 {
        let certificate = world.broker.certificate();
        let refused = Raw::connect(world.broker.addr, &certificate).await.err();
        assert!(matches!(refused, Some(quinn::ConnectionError::ConnectionClosed(_))), "{refused:?}");
    }
    until("refusals counted", async || {
        (world.broker.metric("felix_quic_connections_refused_total")? >= 5).then_some(())
    })
    .await;
    for client in held.drain(..5) {
        client.conn.close(0_u32.into(), b"");
    }
    let certificate = world.broker.certificate();
    until("room again", async || Raw::connect(world.broker.addr, &certificate).await.ok().map(drop)).await;
    for client in &held {
        client.authed(TENANT, &world.token).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_broker_holds_so_many_connections() {
    let world = World::start(&["--cores=0", "--max-client-connections=4"]);
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(world.client().await);
    }
    let refused = Raw::connect(world.broker.addr, &world.broker.certificate()).await.err();
    assert!(matches!(refused, Some(quinn::ConnectionError::ConnectionClosed(_))), "{refused:?}");
    held[3].authed(TENANT, &world.token).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_never_authenticate_are_closed_in_time() {
    let world = World::start(&["--auth-timeout-ms=1000"]);
    let began = Instant::now();
    // One says nothing at all, one opens streams and leaves them empty, one sends half a header, one a bad token.
    let (silent, empty, half, bad) =
        (world.client().await, world.client().await, world.client().await, world.client().await);
    let authed = world.client().await;
    authed.authed(TENANT, &world.token).await;
    let mut lines = Vec::new();
    for _ in 0..5 {
        let mut line = empty.open().await;
        line.write(b"F").await;
        lines.push(line);
    }
    let mut line = half.open().await;
    line.write(b"FLX1\0\x01").await;
    let mut wrong = bad.open().await;
    wrong.send(&support::raw::auth(TENANT, "nonsense")).await;
    wrong.ends_after_error().await;
    for client in [&silent, &empty, &half, &bad] {
        let error = client.closed().await;
        assert_eq!(application_close(&error), Some((1, "authentication timeout".to_owned())), "{error:?}");
    }
    assert!(began.elapsed() >= Duration::from_millis(900), "{:?}", began.elapsed());
    assert!(authed.conn.close_reason().is_none(), "the one that authenticated stays");
    authed.authed(TENANT, &world.token).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_before_authentication_are_few_and_after_it_many() {
    let world = World::start(&["--preauth-max-streams-per-conn=4"]);
    let client = world.client().await;
    let mut lines = Vec::new();
    for _ in 0..6 {
        let mut line = client.open().await;
        line.write(b"FLX1").await;
        lines.push(line);
    }
    for line in &mut lines[4..] {
        line.ends().await;
        let stopped = within("a stop", line.send.stopped()).await.unwrap();
        assert_eq!(stopped, Some(1_u32.into()));
    }
    // The first four are still good.
    let hello = frame(0, &serde_json::to_vec(&support::raw::auth(TENANT, &world.token)).unwrap());
    lines[0].write(&hello[4..]).await;
    assert_eq!(lines[0].json().await["type"], "auth_ok");
    let mut many = Vec::new();
    for _ in 0..200 {
        many.push(client.authed(TENANT, &world.token).await);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_gets_so_many_subscriptions_and_an_ended_one_makes_room() {
    let world = World::start(&["--max-subscriptions-per-conn=3"]);
    let client = world.client_of("s").await;
    let who = (TENANT, world.token.as_str());
    let mut held = Vec::new();
    for shard in 0..3 {
        let (answer, events) = client.subscribe(who, (NAMESPACE, "s"), shard, json!("latest")).await;
        assert_eq!(answer["type"], "subscribed");
        held.push(events.unwrap());
    }
    let (answer, _) = client.subscribe(who, (NAMESPACE, "s"), 3, json!("latest")).await;
    assert_eq!(answer["code"], "limit_exceeded", "{answer}");
    held.pop().unwrap().frames.recv.stop(0_u32.into()).unwrap();
    until("room", async || {
        let (answer, _) = client.subscribe(who, (NAMESPACE, "s"), 3, json!("latest")).await;
        (answer["type"] == "subscribed").then_some(())
    })
    .await;
    let (answer, _) = client.subscribe(who, (NAMESPACE, "s"), 99, json!("latest")).await;
    assert!(answer["type"] == "error", "no such shard, or no room: {answer}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_outside_the_ring_is_refused_with_the_valid_end() {
    let world = World::start(&["--replay-ring-max-records=100"]);
    let client = world.client_of("good").await;
    let who = (TENANT, world.token.as_str());
    let mut line = client.authed(TENANT, &world.token).await;
    for id in 1..=300 {
        line.publish((TENANT, NAMESPACE, "good"), id, &[b"x"]).await;
    }
    let (answer, _) = client.subscribe(who, (NAMESPACE, "good"), 0, json!({"offset": 1})).await;
    assert_eq!(
        (answer["reason"].as_str(), answer["available"].as_u64()),
        (Some("too_old"), Some(200)),
        "{answer}"
    );
    let (answer, _) = client.subscribe(who, (NAMESPACE, "good"), 0, json!({"offset": 301})).await;
    assert_eq!(
        (answer["reason"].as_str(), answer["available"].as_u64()),
        (Some("in_future"), Some(300)),
        "{answer}"
    );
    let (answer, events) = client.subscribe(who, (NAMESPACE, "good"), 0, json!("earliest")).await;
    assert_eq!(answer["start_offset"], 200);
    let mut events = events.unwrap();
    assert_eq!(events.records(200, 100).await.len(), 100);
    assert_eq!(line.publish((TENANT, NAMESPACE, "good"), 301, &[b"next"]).await.code, None);
    match within("the next record", events.next()).await {
        Event::Batch(300, records) => assert_eq!(&records[0][..], b"next"),
        other => panic!("{other:?}"),
    }
}
