//! `felix group`, `felix commit` and `felix state` against a scripted broker.
#![cfg(feature = "cli")]

mod cli;
mod fake;
mod rig;

use std::io::{BufReader, Read};

use cli::Ended;
use fake::requests::RequestTrick;
use felix_sdk::ErrorCode;
use felix_wire::features::Features;
use rig::{Rig, ended, line, lines};

/// Finished, held, owed and dead records of shard 0 of group `g`.
fn counts(rig: &Rig) -> (usize, usize, usize, usize) {
    let state = rig.broker.state.lock();
    let shard = &state.groups.shards[&("g".to_owned(), 0)];
    (shard.finished.len(), shard.held.len(), shard.owed.len(), shard.dead.len())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_are_polled_acked_given_back_and_extended_by_what_poll_shows() {
    let rig = Rig::start(1).await;
    rig.put(0..4);
    let poll = ["group", "poll", "s", "g", "--max", "3", "--wait", "1ms"];
    assert_eq!(rig.run(&poll).await.ok(), "0/0/1\t0\n0/1/1\t1\n0/2/1\t2\n");
    rig.run(&["group", "ack", "s", "g", "0/0", "0/1/1"]).await.ok();
    rig.run(&["group", "nack", "s", "g", "0/2/1"]).await.ok();
    assert_eq!(counts(&rig), (2, 0, 1, 0));
    let json = rig.run(&[&poll[..], &["--output", "json"]].concat()).await.ok();
    let records: Vec<serde_json::Value> =
        json.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(records[0], serde_json::json!({ "shard": 0, "offset": 2, "attempts": 2, "value": "2" }));
    let held = rig.run(&["group", "extend", "s", "g", "0/2/2", "--by", "5m"]).await;
    assert!(held.stderr.contains("held for 300000 ms") && held.status == 0, "{held:?}");
    rig.run(&["group", "extend", "s", "g", "0/2", "--by", "5m"]).await.fails(2, "attempts");
    rig.run(&["group", "nack", "s", "g", "0/2/1"]).await.fails(4, "0/2: refused: stale_claim");
    rig.run(&["group", "ack", "s", "g", "0/9"]).await.fails(4, "0/9: refused");
    rig.run(&["group", "nack", "s", "g", "0/2/2", "--delay", "1h"]).await.ok();
    assert_eq!(rig.run(&poll).await.ok(), "", "nothing is ready");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn poll_with_ack_is_a_consumer_that_finishes_what_it_has_printed() {
    let mut rig = Rig::start(2).await;
    rig.put(0..50);
    // What the lost answer of a poll has claimed comes again after the time that claims hold.
    let consume = ["group", "poll", "s", "g", "--ack", "--wait", "100ms", "--visibility", "500ms"];
    let some = rig.run(&[&consume[..], &["--count", "10"]].concat()).await.ok();
    assert_eq!(some, lines(0..10));
    let (finished, held, owed, dead) = counts(&rig);
    assert_eq!((finished, held, dead), (10, 0, 0));
    assert!(owed > 0, "what was claimed and not printed is given back");
    let mut child = Ended(rig.felix(&[&consume[..], &["--count", "60"]].concat()));
    let mut out = BufReader::new(child.0.stdout.take().unwrap());
    let all = tokio::task::spawn_blocking(move || {
        let mut all = String::new();
        out.read_to_string(&mut all).unwrap();
        all
    });
    rig.broker.state.when("all that is there", |s| (s.groups.acked.len() >= 50).then_some(())).await;
    rig.broker.stop().await;
    rig.put(50..70);
    rig.broker.restart().await;
    let all = tokio::time::timeout(cli::DEADLINE, all).await.unwrap().unwrap();
    assert_eq!(child.status(), 0);
    let mut numbers: Vec<u32> = all.lines().map(|line| line.parse().unwrap()).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (10..70).collect::<Vec<_>>());
    let empty = rig.run(&[&consume[..], &["--until-empty"]].concat()).await;
    assert_eq!(empty.ok(), "");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_that_is_stopped_leaves_nothing_claimed() {
    let rig = Rig::start(1).await;
    let mut child = Ended(rig.felix(&["group", "poll", "s", "g", "--ack", "--wait", "50ms"]));
    let told = BufReader::new(child.0.stderr.take().unwrap());
    let (_told, begun) = line(told).await;
    assert_eq!(begun, "consuming `s` as `g`\n");
    rig.put(0..3);
    rig.broker.state.when("three acks", |s| (s.groups.acked.len() == 3).then_some(())).await;
    child.signal("INT");
    assert_eq!(child.status(), 0);
    assert_eq!(counts(&rig), (3, 0, 0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_whose_claims_were_lost_goes_on_and_says_that_records_come_again() {
    let rig = Rig::start(1).await;
    rig.put(0..3);
    rig.broker.state.change(|s| s.groups.stale_acks = 2);
    let done = rig.run(&["group", "poll", "s", "g", "--ack", "--wait", "50ms", "--count", "5"]).await;
    assert!(done.stderr.contains("2 record(s) were printed too late"), "{done:?}");
    let text = done.ok();
    let mut printed: Vec<&str> = text.lines().collect();
    printed.sort_unstable();
    assert_eq!((printed.len(), counts(&rig)), (5, (3, 0, 0, 0)));
    printed.dedup();
    assert_eq!(printed, ["0", "1", "2"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn groups_are_created_moved_shown_and_deleted() {
    let rig = Rig::start(2).await;
    rig.put(0..5);
    let made = rig.run(&["group", "create", "s", "g", "--at", "latest", "--output", "json"]).await.json();
    let expected = serde_json::json!([{ "shard": 0, "offset": 5, "moved": true },
                                      { "shard": 1, "offset": 0, "moved": true }]);
    assert_eq!(made, expected);
    rig.run(&["group", "seek", "s", "g", "--to", "3"]).await.fails(2, "name one with --shard");
    let moved = rig.run(&["group", "seek", "s", "g", "--to", "3", "--shard", "0"]).await.ok();
    assert_eq!(moved.lines().nth(1).unwrap().split_whitespace().collect::<Vec<_>>(), ["0", "3", "true"]);
    rig.run(&["group", "seek", "s", "g", "--to", "earliest", "--shard", "2"]).await.fails(2, "no shard 2");
    let info = rig.run(&["group", "describe", "s", "g", "--output", "json"]).await.json();
    assert_eq!((info[0]["committed"].as_u64(), info[0]["lag"].as_u64()), (Some(3), Some(2)));
    rig.run(&["group", "delete", "s", "g"]).await.fails(2, "--yes");
    let deleted = rig.run(&["group", "delete", "s", "g", "--yes"]).await;
    assert!(deleted.stderr.contains("deleted") && deleted.status == 0, "{deleted:?}");
    assert!(rig.broker.state.lock().groups.shards.is_empty());
    rig.run(&["group", "poll", "s", ""]).await.fails(2, "1 to 255 bytes");
    rig.broker.state.change(|s| s.features = s.features.without(Features::GROUP_ADMIN));
    rig.run(&["group", "describe", "s", "g"]).await.fails(4, "does not serve group_describe");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_letters_are_added_listed_redriven_and_discarded() {
    let rig = Rig::start(1).await;
    rig.put(0..4);
    rig.run(&["group", "create", "s", "g"]).await.ok();
    rig.run(&["group", "dead", "add", "s", "g", "0/0", "0/1", "0/2"]).await.ok();
    let listed = rig.run(&["group", "dead", "ls", "s", "g", "--output", "json"]).await.json();
    assert_eq!(listed.as_array().unwrap().len(), 3);
    rig.run(&["group", "dead", "discard", "s", "g", "0/1"]).await.ok();
    rig.run(&["group", "dead", "discard", "s", "g", "0/1"]).await.fails(5, "0/1: refused: not_found");
    let redriven = rig.run(&["group", "dead", "redrive", "s", "g", "--all"]).await;
    assert!(redriven.stderr.contains("2 to be handed out again"), "{redriven:?}");
    assert_eq!(counts(&rig).3, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commits_are_made_once_and_their_state_is_read() {
    let rig = Rig::start(1).await;
    rig.broker.state.change(|s| s.features = s.features | Features::NUMBERED_WRITES);
    rig.run(&["state", "get", "s", "e", "k"]).await.fails(5, "`k` has no value");
    rig.broker.state.change(|s| s.requests.tricks.push_back(RequestTrick::ApplyAndCut));
    let file = rig.file("value", b"\xffv");
    let put = format!("k=@{file}");
    let commit = ["commit", "s", "e", "event", "--put", &put, "--put", "l=a=b", "--output", "json"];
    assert_eq!(rig.run(&commit).await.json(), serde_json::json!({ "shard": 0, "offset": 0 }));
    let piped = rig
        .run_with_input(&["commit", "s", "e", "--delete", "l", "--expect-offset", "1"], b"from a pipe")
        .await;
    assert_eq!(piped.ok(), "0/1\n");
    assert_eq!(rig.log(), ["event", "from a pipe"]);
    let value = rig.run(&["state", "get", "s", "e", "k", "--output", "json"]).await.json();
    let expected = serde_json::json!({ "key": "k", "value_base64": "/3Y=", "version": 0, "as_of": 1 });
    assert_eq!(value, expected);
    rig.run(&["state", "get", "s", "e", "l"]).await.fails(5, "`l` has no value");
    rig.run(&["commit", "s", "e", "event", "--expect-offset", "1"]).await.fails(4, "next offset is 2");
    rig.run(&["commit", "s", "e", "event", "--put", "novalue"]).await.fails(2, "KEY=VALUE");
    rig.run(&["commit", "s", "e", "event", "--put", "k=1", "--delete", "k"]).await.fails(2, "named twice");
    rig.run(&["commit", "s", "e", "--put", "k=-"]).await.fails(2, "read once");
    rig.broker.state.change(|s| {
        s.features = s.features.without(Features::NUMBERED_WRITES);
        s.requests.tricks.push_back(RequestTrick::ApplyAndCut);
    });
    rig.run(&["commit", "s", "e", "event"]).await.fails(6, "outcome unknown");
    rig.broker.state.change(|s| {
        s.requests.tricks.push_back(RequestTrick::Refuse(ErrorCode::Forbidden, None));
    });
    rig.run(&["commit", "s", "e", "event"]).await.fails(4, "refused");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_whose_reader_is_gone_gives_back_what_nobody_read() {
    let rig = Rig::start(1).await;
    let mut child = rig.felix(&["group", "poll", "s", "g", "--ack", "--wait", "50ms"]);
    let told = BufReader::new(child.stderr.take().unwrap());
    let (_told, begun) = line(told).await;
    assert!(begun.starts_with("consuming"), "{begun}");
    drop(child.stdout.take());
    rig.put(0..3);
    let done = ended(child).await;
    assert_eq!(done.status, 0, "{done:?}");
    let (finished, held, owed, dead) = counts(&rig);
    assert_eq!((finished, held, dead), (0, 0, 0), "nothing is finished or stays claimed");
    let state = rig.broker.state.lock();
    let shard = &state.groups.shards[&("g".to_owned(), 0)];
    assert!(owed > 0 && shard.owed.values().all(|(attempts, _)| *attempts == 1), "{shard:?}");
}
