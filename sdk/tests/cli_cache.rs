//! `felix cache` and `felix counter` against a scripted broker.
#![cfg(feature = "cli")]

mod cli;
mod fake;
mod rig;

use std::io::{BufReader, Read};

use cli::Ended;
use fake::requests::RequestTrick;
use felix_sdk::ErrorCode;
use felix_wire::features::Features;
use rig::{Rig, line};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn values_come_and_go_as_text_files_and_standard_input_byte_for_byte() {
    let rig = Rig::start(2).await;
    rig.run(&["cache", "put", "c", "text", "a value"]).await.ok();
    assert_eq!(rig.run(&["cache", "get", "c", "text"]).await.ok(), "a value");
    let file = rig.file("value", b"\x00\xff\n");
    rig.run(&["cache", "put", "c", "file", &format!("@{file}")]).await.ok();
    assert_eq!(rig.broker.state.lock().caches.values["file"].0, &b"\x00\xff\n"[..]);
    rig.run_with_input(&["cache", "put", "c", "input"], b"from a pipe\n").await.ok();
    assert_eq!(rig.run(&["cache", "get", "c", "input"]).await.ok(), "from a pipe\n");
    rig.run_with_input(&["cache", "put", "c", "dash", "-"], b"").await.ok();
    rig.run(&["cache", "put", "c", "at", "@@home", "--ttl", "90s"]).await.ok();
    let key = rig.file("key", b"a key\n");
    rig.run(&["cache", "put", "c", &format!("@{key}"), "-5"]).await.ok();
    let state = rig.broker.state.lock();
    assert_eq!(state.caches.values["dash"].0, "");
    assert_eq!(
        (&state.caches.values["at"].0[..], state.caches.values["at"].2),
        (&b"@home"[..], Some(90_000))
    );
    assert_eq!(state.caches.values["a key"].0, "-5");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cache_commands_have_the_statuses_that_scripts_expect() {
    let rig = Rig::start(1).await;
    rig.run(&["cache", "get", "c", "k"]).await.fails(5, "`k` has no value");
    rig.run(&["cache", "delete", "c", "k"]).await.fails(5, "`k` has no value");
    rig.run(&["cache", "put", "c", "k", "v", "--if-version", "3"]).await.fails(4, "the key has no value");
    let put = rig.run(&["cache", "put", "c", "k", "v", "--if-absent", "--output", "json"]).await.json();
    assert_eq!((put["key"].as_str(), put["version"].as_u64()), (Some("k"), Some(0)));
    rig.run(&["cache", "put", "c", "k", "w", "--if-absent"]).await.fails(4, "the version is 0");
    let got = rig.run(&["cache", "get", "c", "k", "--output", "json"]).await.json();
    assert_eq!(got, serde_json::json!({ "key": "k", "value": "v", "version": 0 }));
    rig.run(&["cache", "delete", "c", "k", "--if-version", "7"]).await.fails(4, "the version is 0");
    let gone = rig.run(&["cache", "delete", "c", "k", "--output", "json"]).await.json();
    assert_eq!(gone, serde_json::json!({ "key": "k", "value": "v" }));
    rig.broker.state.change(|s| s.requests.tricks.push_back(RequestTrick::ApplyAndCut));
    rig.run(&["cache", "put", "c", "k", "v"]).await.fails(6, "outcome unknown");
    rig.broker.state.change(|s| {
        s.requests.tricks.push_back(RequestTrick::Refuse(ErrorCode::Forbidden, None));
    });
    let refused = rig.run(&["cache", "put", "c", "k", "v", "--output", "json"]).await;
    assert_eq!((refused.status, refused.stdout.as_str()), (4, ""));
    let error: serde_json::Value = serde_json::from_str(&refused.stderr).unwrap();
    assert_eq!(error["error"]["kind"], "refused");
    rig.broker.state.change(|s| s.features = s.features.without(Features::CACHE_DELETE));
    rig.run(&["cache", "delete", "c", "k"]).await.fails(4, "does not serve cache_delete");
    rig.broker.state.change(|s| s.caches.known = false);
    rig.run(&["cache", "get", "c", "k"]).await.fails(5, "unknown cache");
    let long = rig.file("long", &vec![b'k'; 65_536]);
    rig.broker.state.change(|s| s.caches.known = true);
    rig.run(&["cache", "get", "c", &format!("@{long}")]).await.fails(2, "longer than 65535");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counters_are_added_to_and_read() {
    let rig = Rig::start(1).await;
    rig.broker.state.change(|s| s.features = s.features | Features::NUMBERED_WRITES);
    rig.run(&["counter", "get", "c", "n"]).await.fails(5, "nothing was ever added");
    assert_eq!(rig.run(&["counter", "add", "c", "n"]).await.ok(), "1\n");
    rig.broker.state.change(|s| s.requests.tricks.push_back(RequestTrick::ApplyAndCut));
    assert_eq!(rig.run(&["counter", "add", "c", "n", "-41"]).await.ok(), "-40\n");
    let sum = rig.run(&["counter", "get", "c", "n", "--output", "json"]).await.json();
    assert_eq!(sum, serde_json::json!({ "key": "n", "value": -40 }));
    let least = i64::MIN.to_string();
    rig.run(&["counter", "add", "c", "n", &least]).await.fails(4, "overflow");
    rig.run(&["counter", "add", "c", "n", "9223372036854775808"]).await.fails(2, "too large");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watch_prints_current_values_then_changes_and_goes_on_through_a_restart() {
    let mut rig = Rig::start(1).await;
    rig.broker.state.change(|s| s.caches.put("k1", "one"));
    let arguments = ["cache", "watch", "c", "--prefix", "k", "--from", "current", "--count", "4"];
    let mut child = Ended(rig.felix(&arguments));
    let out = BufReader::new(child.0.stdout.take().unwrap());
    let told = BufReader::new(child.0.stderr.take().unwrap());
    let (told, first) = line(told).await;
    assert_eq!(first, "watching `c`, 1 shard(s)\n");
    let (told, second) = line(told).await;
    assert_eq!(second, "shard 0: 1 current value(s) first\n");
    let (out, put) = line(out).await;
    assert_eq!(put, "put\tk1\tone\n");
    rig.broker.state.change(|s| s.caches.delete("k1"));
    let (mut out, deleted) = line(out).await;
    assert_eq!(deleted, "delete\tk1\n");
    rig.broker.stop().await;
    let (told, away) = line(told).await;
    assert!(away.starts_with("shard 0: the broker is away"), "{away}");
    rig.broker
        .state
        .change(|s| (s.caches.put("k2", "two"), s.caches.put("other", ""), s.caches.put("k3", "")));
    rig.broker.restart().await;
    let (_told, back) = line(told).await;
    assert!(back.starts_with("shard 0: the broker is back"), "{back}");
    let rest = tokio::task::spawn_blocking(move || {
        let mut rest = String::new();
        out.read_to_string(&mut rest).unwrap();
        rest
    });
    assert_eq!(rest.await.unwrap(), "put\tk2\ttwo\nput\tk3\t\n");
    assert_eq!(child.status(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watch_as_json_has_an_object_a_line() {
    let rig = Rig::start(1).await;
    rig.broker.state.change(|s| {
        s.caches.put("mortal", "v");
        s.caches.put("bytes", &b"\xff"[..]);
        s.caches.delete("bytes");
    });
    let arguments =
        ["cache", "watch", "c", "--prefix", "", "--from", "0", "--count", "3", "--output", "json"];
    let text = rig.run(&arguments).await.ok();
    let lines: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let put = serde_json::json!({ "shard": 0, "offset": 0, "key": "mortal", "value": "v", "deleted": false,
                                  "current": false, "expires_at_ms": 86_400_000 });
    let bytes = serde_json::json!({ "shard": 0, "offset": 1, "key": "bytes", "value_base64": "/w==",
                                    "deleted": false, "current": false });
    let deleted =
        serde_json::json!({ "shard": 0, "offset": 2, "key": "bytes", "deleted": true, "current": false });
    assert_eq!(lines, [put, bytes, deleted]);
    rig.run(&["cache", "watch", "c", "k", "--from", "9"]).await.fails(4, "in the future");
    rig.run(&["cache", "watch", "c", "--prefix", "", "--shard", "1"]).await.fails(5, "no shard 1");
}
