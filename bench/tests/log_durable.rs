//! The log of a durable stream as the SDK reads and writes it without subscribing: pages, times, conditional publishes, commits
//! and their state, with a real broker that is killed.

mod durable;
mod support;

use std::time::{Duration, SystemTime};

use durable::{SMALL_FILES, Stage};
use felix_sdk::{
    Bytes, Client, ConditionError, CursorReason, LogRecord, Offset, PageLimits, ReadError, Target,
};

const STREAM: &str = "s";

fn record(number: u64) -> Bytes {
    format!("record {number:06}").into()
}

/// All records of a shard from `from` on, page by page.
async fn pages(client: &Client, from: u64, limits: PageLimits) -> Vec<LogRecord> {
    let log = client.log(STREAM).unwrap();
    let mut at = Offset(from);
    let mut records = Vec::new();
    loop {
        let page = log.read(0, at, limits).await.unwrap();
        if page.records.is_empty() {
            return records;
        }
        assert!(page.records.iter().all(|record| record.offset >= at && record.offset < page.next));
        records.extend(page.records);
        at = page.next;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_and_times_are_those_of_what_was_appended_also_after_a_kill() {
    let mut stage = Stage::set(&SMALL_FILES);
    let mut broker = stage.start_well();
    stage.stream(STREAM, 1);
    let client = stage.client().await;
    let log = client.log(STREAM).unwrap();
    assert_eq!(pages(&client, 0, PageLimits::default()).await, []);
    assert_eq!(log.offset_for_time(0, SystemTime::UNIX_EPOCH).await, Ok(None));
    let publisher = client.publisher(STREAM).open().await.unwrap();
    let padding = "x".repeat(2_000);
    let mut times = Vec::new();
    for round in 0..10_u64 {
        times.push(SystemTime::now());
        for number in round * 300..(round + 1) * 300 {
            publisher.send(format!("record {number:06} {padding}"), None).await.unwrap().await.unwrap();
        }
        // Records have whole milliseconds.
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
    for life in ["before", "after"] {
        let whole = pages(&client, 0, PageLimits::default()).await;
        assert_eq!(whole.len(), 3_000, "{life} the kill");
        for (number, found) in whole.iter().enumerate() {
            assert_eq!(found.offset, Offset(number as u64));
            assert!(found.payload.starts_with(&record(number as u64)), "{found:?}");
        }
        assert!(whole.is_sorted_by_key(|found| found.appended_at));
        let few = PageLimits { max_records: Some(7), end: Some(Offset(2_999)), ..PageLimits::default() };
        assert_eq!(pages(&client, 1_000, few).await, whole[1_000..2_999]);
        let small = PageLimits { max_bytes: Some(1), ..PageLimits::default() };
        assert_eq!(pages(&client, 2_990, small).await, whole[2_990..], "one record at least");
        for (round, time) in times.iter().enumerate() {
            let floor = time.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis() as u64;
            let due = whole.iter().find(|found| found.appended_at.unwrap() >= *time).unwrap();
            let got = log.offset_for_time(0, *time).await.unwrap();
            assert_eq!(got, Some(due.offset), "{life} the kill, round {round}, {floor}");
        }
        let later = SystemTime::now() + Duration::from_secs(60);
        assert_eq!(log.offset_for_time(0, later).await, Ok(None));
        let beyond = log.read(0, Offset(1_000_000), PageLimits::default()).await;
        assert!(
            matches!(
                beyond,
                Err(ReadError::Cursor { reason: CursorReason::InFuture, available: 3_000.., .. })
            ),
            "{beyond:?}"
        );
        if life == "before" {
            broker.kill();
            broker = stage.start_well();
        }
    }
    stage.keep_bytes(STREAM, 2 << 20);
    let end = std::time::Instant::now() + durable::DEADLINE;
    let oldest = loop {
        match log.read(0, Offset(0), PageLimits::default()).await {
            Err(ReadError::Cursor { reason: CursorReason::TooOld, available, .. }) => break available,
            other => assert!(std::time::Instant::now() < end, "{other:?}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert_eq!(pages(&client, oldest, PageLimits::default()).await[0].offset, Offset(oldest));
    drop(broker);
    stage.assert_no_complaint();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_conditional_publishes_at_one_offset_one_is_written() {
    let mut stage = Stage::set(&SMALL_FILES);
    let mut broker = stage.start_well();
    stage.stream(STREAM, 1);
    let client = stage.client().await;
    let writer = |client: Client, name: u64| async move {
        let log = client.log(STREAM).unwrap();
        let (mut next, mut written) = (Offset(0), Vec::new());
        while written.len() < 100 {
            let payload = format!("{name} {}", written.len());
            match log.publish_if(Target::Shard(0), &[payload.clone().into()], next).await {
                Ok(published) => {
                    assert_eq!(published.offset, Some(next));
                    written.push((next, payload));
                    next = Offset(next.0 + 1);
                }
                Err(ConditionError::OffsetMismatch { tail }) => {
                    assert_ne!(tail, next);
                    next = tail;
                }
                Err(other) => panic!("{other:?}"),
            }
        }
        written
    };
    let (first, second) = (stage.client().await, stage.client().await);
    let written = tokio::join!(tokio::spawn(writer(first, 1)), tokio::spawn(writer(second, 2)));
    let mut all = written.0.unwrap();
    all.extend(written.1.unwrap());
    all.sort();
    assert_eq!(all.len(), 200);
    let read = |client: Client| async move {
        let text = |found: LogRecord| (found.offset, String::from_utf8(found.payload.to_vec()).unwrap());
        pages(&client, 0, PageLimits::default()).await.into_iter().map(text).collect::<Vec<_>>()
    };
    assert_eq!(read(client.clone()).await, all, "each offset was written once, nothing else is there");
    broker.kill();
    broker = stage.start_well();
    assert_eq!(read(client.clone()).await, all);
    let log = client.log(STREAM).unwrap();
    let mismatch = log.publish_if(Target::Shard(0), &["late".into()], Offset(199)).await;
    let Err(ConditionError::OffsetMismatch { tail }) = mismatch else { panic!("{mismatch:?}") };
    assert_eq!(log.publish_if(Target::Shard(0), &["late".into()], tail).await.unwrap().offset, Some(tail));
    drop(broker);
    stage.assert_no_complaint();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn numbered_commits_are_made_once_through_kills_and_their_state_is_that_of_the_log() {
    const KILLS: usize = 5;
    let mut stage = Stage::set(&SMALL_FILES);
    let mut broker = stage.start_well();
    stage.stream(STREAM, 1);
    let client = stage.client().await;
    let (tell, mut told) = tokio::sync::watch::channel(0_usize);
    let committing = client.clone();
    let committer = tokio::spawn(async move {
        let state = committing.state(STREAM).unwrap();
        let (mut made, mut failed) = (Vec::new(), 0);
        for number in 0.. {
            let value = format!("commit {number}");
            let commit = state.commit("e", value.clone()).put("newest", value.clone());
            match commit.put(format!("key {}", number % 50), value.clone()).send().await {
                Ok(committed) => made.push((committed.offset, value)),
                // Its time ran out, or it was certainly not made.
                Err(error) => {
                    eprintln!("{error:?}");
                    failed += 1;
                }
            }
            if tell.is_closed() || tell.send(made.len()).is_err() {
                break;
            }
        }
        (made, failed)
    });
    for _ in 0..KILLS {
        let due = *told.borrow() + 30;
        tokio::time::timeout(durable::DEADLINE, told.wait_for(|made| *made >= due)).await.unwrap().unwrap();
        broker.kill();
        broker = stage.start_well();
    }
    drop(told);
    let (made, failed) = tokio::time::timeout(durable::DEADLINE, committer).await.unwrap().unwrap();
    broker.kill();
    broker = stage.start_well();
    let there = pages(&client, 0, PageLimits::default()).await;
    let text = |found: &LogRecord| (found.offset, String::from_utf8(found.payload.to_vec()).unwrap());
    let there: Vec<(Offset, String)> = there.iter().map(text).collect();
    assert!(
        made.iter().all(|commit| there.contains(commit)),
        "what was answered is there, where it was said"
    );
    let values: std::collections::BTreeSet<&String> = there.iter().map(|(_, value)| value).collect();
    assert_eq!(values.len(), there.len(), "none is there twice");
    assert!(there.len() <= made.len() + failed, "{} of {} and {failed}", there.len(), made.len());
    let state = client.state(STREAM).unwrap();
    let (newest, value) = there.last().unwrap();
    let found = state.get("e", "newest").await.unwrap();
    assert_eq!((found.version, found.as_of), (Some(*newest), Some(*newest)));
    assert_eq!(found.value.as_deref(), Some(value.as_bytes()));
    for key in 0..50 {
        let of_key = |(_, value): &&(Offset, String)| value[7..].parse::<u64>().unwrap() % 50 == key;
        let (version, value) = there.iter().rev().find(of_key).unwrap();
        let found = state.get("e", &format!("key {key}")).await.unwrap();
        assert_eq!((found.version, found.value.as_deref()), (Some(*version), Some(value.as_bytes())));
    }
    drop(broker);
    stage.assert_no_complaint();
}
