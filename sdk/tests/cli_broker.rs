//! `felix pub` and `felix sub` against a scripted broker that goes away, comes back, loses answers and lies.
#![cfg(feature = "cli")]

mod cli;
mod fake;
mod rig;

use std::io::{BufReader, Read, Write};

use cli::Ended;
use fake::{Answers, Trick};
use felix_sdk::{Bytes, ErrorCode};
use rig::{Rig, ended, line, lines};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pub_goes_on_through_a_restart_and_stores_every_line_once_in_order() {
    let mut rig = Rig::start(1).await;
    let cuts = [Trick::StoreAndCut, Trick::Cut, Trick::StoreAndCut];
    rig.broker.state.change(|s| s.tricks.extend(cuts));
    let mut child = rig.felix(&["pub", "s", "--batch", "1", "--output", "json"]);
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(lines(0..50).as_bytes()).unwrap();
    rig.broker.state.when("the first lines", |s| (s.record_count() == 50).then_some(())).await;
    // Those that come now are taken and not answered.
    rig.broker.state.change(|s| s.answers = Answers::Held);
    stdin.write_all(lines(50..60).as_bytes()).unwrap();
    rig.broker.state.when("lines in flight", |s| (s.record_count() == 60).then_some(())).await;
    rig.broker.stop().await;
    stdin.write_all(lines(60..80).as_bytes()).unwrap();
    drop(stdin);
    rig.broker.state.change(|s| s.answers = Answers::Prompt);
    rig.broker.restart().await;
    let summary = ended(child).await.json();
    assert_eq!((summary["sent"].as_u64(), summary["acknowledged"].as_u64()), (Some(80), Some(80)));
    assert_eq!((summary["unknown"].as_u64(), summary["failed"].as_u64()), (Some(0), Some(0)));
    assert_eq!(summary["idempotent"], true);
    assert_eq!(rig.log().join("\n") + "\n", lines(0..80));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pub_does_not_linger_for_more_than_it_can_have_in_flight() {
    let rig = Rig::start(3).await;
    // No shard ever has a frame of that many records, since only so many may be unanswered over all shards.
    let flags = ["--batch", "65536", "--linger", "1h", "--key-column", "1"];
    let mut child = rig.felix(&[&["pub", "s"], &flags[..]].concat());
    let mut stdin = child.stdin.take().unwrap();
    let writing = tokio::task::spawn_blocking(move || {
        stdin.write_all(lines(0..20_000).as_bytes()).unwrap();
        stdin
    });
    // It still reads its input, so it does not send the rest because of the end.
    let stdin = tokio::time::timeout(cli::DEADLINE, writing).await.expect("taken in time").unwrap();
    rig.broker.state.when("most of them", |s| (s.record_count() > 10_000).then_some(())).await;
    drop(stdin);
    assert!(ended(child).await.ok().is_empty());
    assert_eq!(rig.broker.state.lock().record_count(), 20_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pub_says_how_many_records_are_unknown_and_how_many_were_not_written() {
    let rig = Rig::start(1).await;
    rig.broker.state.change(|s| s.tricks.push_back(Trick::StoreAndCut));
    let done = rig.publish(&["--no-idempotent"], "a\n").await;
    assert_eq!(done.status, 6, "{done:?}");
    assert!(done.stderr.contains("0 of 1 records (1 may or may not have been written)"), "{done:?}");
    assert!(rig.broker.state.lock().publishes.iter().all(|publish| publish.number.is_none()));
    rig.broker.state.change(|s| s.tricks.push_back(Trick::Refuse(ErrorCode::Forbidden)));
    let done = rig.publish(&[], "b\n").await;
    assert_eq!(done.status, 4, "{done:?}");
    assert!(done.stderr.contains("0 of 1 records (1 not written)"), "{done:?}");
    assert_eq!(rig.log(), ["a"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pub_gives_up_a_broker_that_stays_away_when_its_time_is_over() {
    let mut rig = Rig::start(1).await;
    rig.broker.state.change(|s| s.answers = Answers::Held);
    let mut child = rig.felix(&["pub", "s", "--retry-for", "500ms"]);
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"a\n").unwrap();
    rig.broker.state.when("taken", |s| (s.record_count() == 1).then_some(())).await;
    rig.broker.stop().await;
    drop(stdin);
    let done = ended(child).await;
    assert_eq!(done.status, 6, "{done:?}");
    assert!(done.stderr.contains("0 of 1 records (1 may or may not have been written)"), "{done:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sub_tells_when_its_broker_goes_and_comes_back_and_repeats_and_loses_nothing() {
    let mut rig = Rig::start(1).await;
    rig.put(0..30);
    let mut child = rig.felix(&["sub", "s", "--from", "earliest", "--count", "60"]);
    let out = BufReader::new(child.stdout.take().unwrap());
    let told = BufReader::new(child.stderr.take().unwrap());
    let mut child = Ended(child);
    let all = tokio::task::spawn_blocking(move || {
        let mut text = String::new();
        let mut out = out;
        out.read_to_string(&mut text).unwrap();
        text
    });
    let (told, reading) = line(told).await;
    assert!(reading.starts_with("reading `s`"), "{reading}");
    rig.broker.stop().await;
    let (told, away) = line(told).await;
    assert!(away.starts_with("the broker is away"), "{away}");
    rig.put(30..45);
    rig.broker.restart().await;
    let (mut told, back) = line(told).await;
    assert!(back.starts_with("the broker is back after"), "{back}");
    assert!(back.trim_end().ends_with("every shard goes on where it was"), "{back}");
    rig.put(45..60);
    assert_eq!(tokio::time::timeout(cli::DEADLINE, all).await.unwrap().unwrap(), lines(0..60));
    assert_eq!(child.status(), 0);
    let mut rest = String::new();
    told.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sub_ends_with_the_last_record_that_was_there_and_shows_offsets() {
    let rig = Rig::start(2).await;
    let until_end = ["sub", "s", "--from", "earliest", "--until-end", "--show-offsets"];
    let empty = ended(rig.felix(&until_end)).await;
    assert_eq!(empty.ok(), "", "nothing was there");
    rig.put(0..40);
    rig.broker.state.change(|s| s.records[1].push(Bytes::from_static(b"other")));
    let read = ended(rig.felix(&until_end)).await.ok();
    let mut of_shard: Vec<Vec<&str>> = vec![Vec::new(); 2];
    for line in read.lines() {
        of_shard[usize::from(line.starts_with("1/"))].push(line);
    }
    let expected: Vec<String> = (0..40).map(|number| format!("0/{number}\t{number}")).collect();
    assert_eq!(of_shard[0], expected);
    assert_eq!(of_shard[1], ["1/0\tother"]);
    let from = ended(rig.felix(&["sub", "s", "--from", "38", "--shard", "0", "--until-end"])).await;
    assert_eq!(from.ok(), "38\n39\n");
    rig.broker.state.change(|s| s.numbered = false);
    ended(rig.felix(&until_end)).await.fails(4, "does not tell where this stream ends");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sub_from_a_place_that_is_gone_or_not_there_yet_says_what_is_there() {
    let rig = Rig::start(1).await;
    rig.put(0..10);
    rig.broker.state.change(|s| s.held_from = 4);
    ended(rig.felix(&["sub", "s", "--from", "3"])).await.fails(4, "the oldest held is 4");
    ended(rig.felix(&["sub", "s", "--from", "11"])).await.fails(4, "the next record gets 10");
}
