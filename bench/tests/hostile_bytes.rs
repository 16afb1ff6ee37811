//! Hostile bytes over real QUIC, while a good client works beside them (reliability 7).

mod support;

use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, RngCore, SeedableRng};
use serde_json::{Value, json};
use support::good::Good;
use support::raw::{application_close, auth, frame, publish};
use support::world::{NAMESPACE, TENANT, World};
use support::{until, within};

const NAME: (&str, &str, &str) = (TENANT, NAMESPACE, "s");
/// Loose: the machine is shared and the binaries are test builds.
const P99_MAX: Duration = Duration::from_millis(500);
/// Close code for too many violations.
const CLOSE_PROTOCOL: u64 = 2;

fn code(answer: &Value) -> &str {
    answer["code"].as_str().unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broken_envelope_costs_its_stream_and_not_the_connection() {
    let world = World::start(&[]);
    let good = Good::start(&world, "good").await;
    let client = world.client().await;
    let bad_magic = {
        let mut f = frame(0, b"{}");
        f[0] = b'X';
        f
    };
    let bad_version = {
        let mut f = frame(0, b"{}");
        f[5] = 2;
        f
    };
    let huge = {
        let mut f = frame(0, b"");
        f[8..12].copy_from_slice(&u32::MAX.to_be_bytes());
        f
    };
    for (bytes, expected) in
        [(&bad_magic, "invalid_request"), (&bad_version, "invalid_request"), (&huge, "limit_exceeded")]
    {
        let mut line = client.authed(TENANT, &world.token).await;
        line.write(bytes).await;
        let answer = line.json().await;
        assert_eq!((answer["type"].as_str(), code(&answer)), (Some("error"), expected), "{answer}");
        line.ends().await;
    }
    // The header alone is enough before authentication too, and there 64 KiB is the limit.
    let mut line = client.open().await;
    let header = felix_wire::frame::FrameHeader { flags: 0, length: 65_537 }.encode();
    line.write(&header).await;
    line.ends_after_error().await;
    let mut still = client.authed(TENANT, &world.token).await;
    assert_eq!(still.publish(NAME, 1, &[b"x"]).await.code, None, "the connection lives");
    let went = good.stop().await;
    assert!(went.p99 < P99_MAX, "{went:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_flags_cost_the_frame_and_are_silent_on_a_publish_stream() {
    let world = World::start(&[]);
    let client = world.client_of("s").await;
    let mut control = client.authed(TENANT, &world.token).await;
    control.write(&frame(0x8000, &[7; 5_000])).await;
    let answer = control.json().await;
    assert_eq!(code(&answer), "invalid_request");
    control.send(&json!({"type": "topology"})).await;
    assert_eq!(control.json().await["type"], "topology_view", "the stream goes on behind the body");
    let mut lane = client.authed(TENANT, &world.token).await;
    assert_eq!(lane.publish(NAME, 1, &[b"a"]).await.request_id, 1);
    lane.write(&frame(0x8000, &[7; 300])).await;
    assert_eq!(lane.publish(NAME, 2, &[b"b"]).await.request_id, 2, "the next answer is the next publish's");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frame_in_the_wrong_state_is_answered_with_its_code() {
    let world = World::start(&[]);
    let client = world.client_of("s").await;
    let mut early = client.open().await;
    early.write(&publish(NAME, None, Some(1), &[b"x"])).await;
    let answer = early.json().await;
    assert_eq!(answer["type"], "error");
    early.ends().await;
    let mut request = client.open().await;
    request.send(&json!({"type": "topology"})).await;
    let answer = request.json().await;
    assert_eq!(answer["type"], "error");
    request.ends().await;
    let mut twice = client.authed(TENANT, &world.token).await;
    twice.send(&auth(TENANT, &world.token)).await;
    assert_eq!(code(&twice.json().await), "invalid_request");
    let mut events = client.authed(TENANT, &world.token).await;
    events.write(&frame(0x0004, &[0, 0, 0, 0])).await;
    assert_eq!(code(&events.json().await), "invalid_request", "an event frame from a client");
    events.send(&json!({"type": "topology"})).await;
    assert_eq!(events.json().await["type"], "topology_view");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn json_that_breaks_a_rule_is_refused_and_never_echoed() {
    let world = World::start(&[]);
    let deep = format!("{{\"type\":\"topology\",\"x\":{}1{}}}", "[".repeat(20_000), "]".repeat(20_000));
    let mut bad: Vec<Vec<u8>> = vec![
        deep.into_bytes(),
        br#"{"type":"topology","type":"topology"}"#.to_vec(),
        br#"{"type":"stream_shards","tenant_id":"marker-77","tenant_id":"b","namespace":"n","stream":"s","request_id":1}"#.to_vec(),
        b"{\"type\":\"topology\"} marker-77".to_vec(),
        b"\xff\xfe marker-77".to_vec(),
    ];
    bad.push(br#"{"type":"stream_shards","tenant_id":"\ud800 marker-77","namespace":"n","stream":"s","request_id":1}"#.to_vec());
    bad.push(
        br#"{"type":"stream_shards","tenant_id":"t","namespace":"n","stream":"s","request_id":-1}"#.to_vec(),
    );
    let client = world.client().await;
    let mut line = client.authed(TENANT, &world.token).await;
    for payload in bad {
        line.write(&frame(0, &payload)).await;
        let answer = line.json().await;
        assert_eq!((answer["type"].as_str(), code(&answer)), (Some("error"), "invalid_request"), "{answer}");
        assert!(!answer.to_string().contains("marker"), "{answer}");
    }
    line.send(&json!({"type": "topology"})).await;
    assert_eq!(line.json().await["type"], "topology_view", "seven violations leave the connection");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_violations_close_the_connection_and_no_other() {
    let world = World::start(&[]);
    let good = Good::start(&world, "good").await;
    let client = world.client().await;
    let mut line = client.authed(TENANT, &world.token).await;
    for _ in 0..8 {
        line.write(&frame(0x8000, b"")).await;
    }
    let closed = client.closed().await;
    let (number, reason) = application_close(&closed).unwrap_or_else(|| panic!("{closed:?}"));
    assert_eq!((number, reason.as_str()), (CLOSE_PROTOCOL, "too many protocol violations"));
    good.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cut_off_frames_and_abandoned_halves_leave_nothing_behind() {
    let world = World::start(&[]);
    let good = Good::start(&world, "good").await;
    let before = world.broker.memory_mib();
    for round in 0..40_u32 {
        let client = world.client().await;
        for way in 0..6_u32 {
            let mut line = client.authed(TENANT, &world.token).await;
            let whole = publish(NAME, None, Some(1), &[&[7; 20_000]]);
            match (way + round) % 6 {
                0 => {
                    line.write(&whole[..whole.len() - 1]).await;
                    line.finish();
                    line.ends().await;
                }
                1 => {
                    line.write(&whole[..5_000]).await;
                    line.send.reset(9_u32.into()).unwrap();
                }
                2 => {
                    line.write(&whole).await;
                    line.frames.recv.stop(9_u32.into()).unwrap();
                    line.finish();
                }
                3 => {
                    line.frames.recv.stop(9_u32.into()).unwrap();
                    line.write(&whole).await;
                    line.send.reset(9_u32.into()).unwrap();
                }
                4 => {
                    // Subscribes, and stops the event stream at once.
                    let (_, events) = client
                        .subscribe((TENANT, &world.token), (NAMESPACE, "s"), 1, json!("earliest"))
                        .await;
                    events.unwrap().frames.recv.stop(9_u32.into()).unwrap();
                }
                _ => {
                    // A stream that carries nothing, and one with a hello and nothing after it.
                    let _silent = client.open().await;
                }
            }
        }
        drop(client);
    }
    until("connections gone", async || (world.broker.metric("felix_connections")? <= 2).then_some(())).await;
    let subscriptions = world.broker.metric("felix_sub_active");
    assert_eq!(subscriptions, Some(1), "only the good client's");
    let went = good.stop().await;
    assert!(went.p99 < P99_MAX, "{went:?}");
    let after = world.broker.memory_mib();
    assert!(after < before + 64, "memory {before} -> {after} MiB");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_thousand_random_frames_disturb_nobody() {
    let seed = std::env::var("SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(20_260_711_u64);
    eprintln!("SEED={seed}");
    let mut world = World::start(&[]);
    let good = Good::start(&world, "good").await;
    let before = world.broker.memory_mib();
    let mut rng = StdRng::seed_from_u64(seed);
    let read = || world.broker.metric("felix_broker_frames_total").unwrap();
    let began = Instant::now();
    let mut connections = 0_u32;
    while read() < 100_000 {
        assert!(began.elapsed() < Duration::from_secs(60), "{} frames read, SEED={seed}", read());
        let client = world.client().await;
        connections += 1;
        // Each connection lives until the broker has had enough of it, or a while.
        for _ in 0..20 {
            let Ok((mut send, recv)) = client.conn.open_bi().await else { break };
            let mut bytes = Vec::new();
            if rng.random_range(0..20) != 0 {
                bytes.extend(frame(0, &serde_json::to_vec(&auth(TENANT, &world.token)).unwrap()));
            }
            for _ in 0..rng.random_range(50..400) {
                bytes.extend(random_frame(&mut rng, &world.token));
            }
            if within("a write", send.write_all(&bytes)).await.is_ok() && rng.random() {
                let _ = send.finish();
            }
            if rng.random() {
                drop(recv);
            }
        }
    }
    let read = read();
    world.broker.assert_well();
    let went = good.stop().await;
    assert!(went.p99 < P99_MAX, "{went:?}");
    until("connections gone", async || (world.broker.metric("felix_connections")? == 0).then_some(())).await;
    let after = world.broker.memory_mib();
    eprintln!("{connections} connections, {read} frames read, {went:?}, memory {before} -> {after} MiB");
    assert!(after < before + 96, "memory {before} -> {after} MiB");
}

/// Something between a valid frame and noise.
fn random_frame(rng: &mut StdRng, token: &str) -> Vec<u8> {
    let mut bytes = match rng.random_range(0..100) {
        0..60 => publish(NAME, None, rng.random::<bool>().then(|| rng.random()), &[&[1; 30]]).to_vec(),
        60..70 => frame(0x0041, &publish(NAME, Some(b"k"), None, &[b"1", b""])[12..]),
        70..72 => {
            let mut payload = vec![0; rng.random_range(0..200)];
            rng.fill_bytes(&mut payload);
            frame(rng.random(), &payload)
        }
        72..75 => frame(0, &serde_json::to_vec(&random_message(rng, token)).unwrap()),
        75..85 => frame(
            0,
            &serde_json::to_vec(
                &json!({"type": "stream_shards", "tenant_id": TENANT, "namespace": NAMESPACE,
            "stream": "s", "request_id": rng.random::<u64>()}),
            )
            .unwrap(),
        ),
        85..93 => frame(
            0,
            &serde_json::to_vec(
                &json!({"type": "publish_batch", "tenant_id": TENANT, "namespace": NAMESPACE,
            "stream": "s", "payloads": ["AA==", ""], "ack": "per_batch", "request_id": 7}),
            )
            .unwrap(),
        ),
        _ => frame(0, br#"{"type":"topology"}"#),
    };
    // Few get a bit flipped, so that most connections live for a while.
    if rng.random_range(0..200) == 0 && !bytes.is_empty() {
        let at = rng.random_range(0..bytes.len());
        bytes[at] ^= 1 << rng.random_range(0..8);
    }
    bytes
}

fn random_message(rng: &mut StdRng, token: &str) -> Value {
    let scope = json!({"tenant_id": TENANT, "namespace": NAMESPACE, "stream": "s", "cache": "c", "name": "s",
        "kind": "stream", "shard": rng.random_range(0..6), "group": "g", "request_id": rng.random::<u64>(),
        "key": "a2V5", "payload": "", "payloads": [], "token": token, "shards": rng.random_range(0..9),
        "start": {"offset": rng.random_range(0..2000)}, "offset": 1, "max_records": 9, "entity_key": "", "event": ""});
    let kinds = [
        "auth",
        "publish",
        "publish_width",
        "subscribe",
        "cache_get",
        "group_poll",
        "commit",
        "shard_owners",
        "producer_init",
        "extension",
        "event",
        "ok",
        "nonsense",
        "group_info",
        "stream_read",
        "subscriptions_list",
    ];
    let mut message = scope;
    message["type"] = json!(kinds[rng.random_range(0..kinds.len())]);
    if let Value::Object(members) = &mut message {
        let names: Vec<String> = members.keys().filter(|k| *k != "type").cloned().collect();
        for name in names {
            match rng.random_range(0..12) {
                0 => drop(members.remove(&name)),
                1 => drop(members.insert(name, Value::Null)),
                2 => drop(members.insert(name, json!(-1))),
                _ => {}
            }
        }
    }
    message
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frame_that_trickles_in_ends_its_stream() {
    let world = World::start(&[]);
    let client = world.client().await;
    let mut slow = client.authed(TENANT, &world.token).await;
    let whole = publish(NAME, None, Some(1), &[&[1; 30_000]]);
    slow.write(&whole[..100]).await;
    // Kept alive by another stream; a byte now and then does not help the slow one.
    let mut busy = client.authed(TENANT, &world.token).await;
    let mut sent = 100;
    let ended = async {
        let mut frames = slow.frames;
        frames.next().await
    };
    tokio::pin!(ended);
    let began = Instant::now();
    let answer = loop {
        tokio::select! {
            answer = &mut ended => break answer,
            () = tokio::time::sleep(Duration::from_millis(500)) => {
                let _ = slow.send.write_all(&whole[sent..=sent]).await;
                sent += 1;
                busy.send(&json!({"type": "topology"})).await;
                busy.json().await;
            }
        }
        assert!(began.elapsed() < Duration::from_secs(20), "the stream was never closed");
    };
    assert!(began.elapsed() >= Duration::from_secs(9), "not before its grace: {:?}", began.elapsed());
    let answer: Value = serde_json::from_slice(&answer.expect("an error").payload).unwrap();
    assert_eq!(answer["type"], "error", "{answer}");
    busy.send(&json!({"type": "topology"})).await;
    assert_eq!(busy.json().await["type"], "topology_view", "the connection lives");
}
