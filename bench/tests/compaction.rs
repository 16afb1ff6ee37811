//! Logs of a cache, its counters and a group that a real broker rewrites for long: they stay short, and a broker that is
//! killed keeps what was answered.

mod dev;

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use dev::{DEADLINE, Dev};
use felix_bench::cluster::binary;
use felix_sdk::{AckMode, Bytes, Client, Group, Poll, SeekTo};
use tokio::task::JoinSet;

const KEYS: usize = 1_000;
const WRITES: usize = 200_000;
const WRITERS: usize = 64;
/// What a writer waits between two writes: segments have what is written in half a second, so a fast machine would have larger ones.
const PACE: Duration = Duration::from_millis(8);
/// Of so many writes one is followed by an add.
const ADDS_EVERY: usize = 4;
/// 200 MB of values alone are written. Segments count whole, those made ahead too: they are [`SEGMENT`] at most.
const FILES_BYTES_MAX: u64 = 96 << 20;
const SEGMENT: &str = "segment_bytes=4MiB";
const RECORDS: usize = 500;
/// Rounds in which a group acks every record: 20,000 acks, over 2 MB.
const ROUNDS: usize = 40;

/// A number and what says whose it is, in 1,000 bytes.
fn value(key: usize, number: usize) -> Bytes {
    let mut value = format!("{key} {number} ").into_bytes();
    value.resize(1_000, b'.');
    value.into()
}

fn key(number: usize) -> String {
    format!("key-{number}")
}

fn felix(dev: &Dev, args: &[&str]) {
    let mut command = Command::new(binary("felix").unwrap());
    let output = command.args(args).arg("--dev").arg(dev.broker.ready_file()).output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Bytes of the files below a folder. What goes meanwhile has none.
fn bytes_below(folder: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(folder) else { return 0 };
    let of = |entry: std::fs::DirEntry| match entry.file_type() {
        Ok(kind) if kind.is_dir() => bytes_below(&entry.path()),
        _ => entry.metadata().map_or(0, |found| found.len()),
    };
    entries.flatten().map(of).sum()
}

/// What a writer was answered about its keys: the newest number of each, and adds of each counted and of unknown outcome.
#[derive(Default)]
struct Wrote {
    newest: Vec<(usize, usize)>,
    adds: Vec<(usize, i64, i64)>,
}

/// Writes its share, each until it is answered: putting a value twice changes nothing.
async fn write(client: Client, writer: usize, done: Arc<AtomicUsize>) -> Wrote {
    let (cache, counters) = (client.cache("c").unwrap(), client.counters("c").unwrap());
    let own: Vec<usize> = (writer..KEYS).step_by(WRITERS).collect();
    let mut wrote =
        Wrote { newest: vec![(0, 0); own.len()], adds: own.iter().map(|key| (*key, 0, 0)).collect() };
    for number in 0..WRITES / WRITERS {
        let at = number % own.len();
        let since = Instant::now();
        while let Err(error) = cache.put(&key(own[at]), value(own[at], number), None).await {
            assert!(since.elapsed() < DEADLINE, "{error}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        wrote.newest[at] = (own[at], number);
        if number % ADDS_EVERY == 0 {
            let (key_of, counted, unknown) = &mut wrote.adds[at];
            match counters.add(&key(*key_of), 1).await {
                Ok(_) => *counted += 1,
                Err(_) => *unknown += 1,
            }
        }
        done.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(PACE).await;
    }
    wrote
}

/// Writes everything, kills the broker in the middle, and sees to the length of the logs meanwhile.
async fn write_all(dev: &mut Dev, files: &Path) -> Vec<Wrote> {
    let done = Arc::new(AtomicUsize::new(0));
    let mut writers = JoinSet::new();
    let client = dev.client().await;
    for writer in 0..WRITERS {
        writers.spawn(write(client.clone(), writer, Arc::clone(&done)));
    }
    let (mut killed, mut wrote, mut most) = (false, Vec::new(), 0);
    while wrote.len() < WRITERS {
        if let Ok(ended) = tokio::time::timeout(Duration::from_millis(100), writers.join_next()).await {
            wrote.push(ended.expect("some still write").unwrap());
        }
        let bytes = bytes_below(files);
        most = most.max(bytes);
        assert!(bytes < FILES_BYTES_MAX, "{bytes} bytes after {} writes", done.load(Ordering::Relaxed));
        if !killed && done.load(Ordering::Relaxed) > WRITES / 2 {
            killed = true;
            dev.restart_broker();
        }
    }
    client.close().await;
    println!("{most} bytes of files at most");
    wrote
}

async fn poll(group: &Group, most: usize) -> Vec<felix_sdk::Delivery> {
    let mut got = Vec::new();
    while got.len() < most {
        let wait = Duration::from_millis(200);
        let some = group.poll(0, Poll { max_records: RECORDS as u32, wait, reclaim: false }).await.unwrap();
        if some.is_empty() {
            return got;
        }
        got.extend(some);
    }
    got
}

/// Acks everything many times over, and a half at last. Gives what is acked then.
async fn ack_all(dev: &Dev) -> Vec<Bytes> {
    let client = dev.client().await;
    let publisher = client.publisher("d").ack(AckMode::PerBatch).open().await.unwrap();
    for number in 0..RECORDS {
        drop(publisher.send(format!("record {number}"), Bytes::new()).await.unwrap());
    }
    publisher.close().await.unwrap();
    let group = Arc::new(client.group("d", "g").unwrap());
    let mut acked = Vec::new();
    for round in 0..=ROUNDS {
        group.seek(0, SeekTo::Earliest).await.unwrap();
        let handed = poll(&group, RECORDS).await;
        assert_eq!(handed.len(), RECORDS, "round {round}");
        let mut acks = JoinSet::new();
        for delivery in handed.into_iter().step_by(if round == ROUNDS { 2 } else { 1 }) {
            let group = Arc::clone(&group);
            acks.spawn(async move { group.ack(delivery.claim).await.map(|()| delivery.payload) });
        }
        acked = acks.join_all().await.into_iter().collect::<Result<Vec<_>, _>>().unwrap();
    }
    client.close().await;
    acked
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn logs_that_are_rewritten_stay_short_and_survive_kills() {
    let mut dev =
        Dev::start(1, &["--set", "commit_slot_bytes=1MiB", "--set", "disk_low=64MiB", "--set", SEGMENT]);
    felix(&dev, &["cache", "create", "c", "--shards", "2"]);
    dev.broker.create_durable_stream("d", 1).unwrap();
    let files = dev.broker.ready_file().with_file_name("data").join("broker/log/shards");
    let since = Instant::now();
    while std::fs::read_dir(&files).map_or(0, Iterator::count) == 0 {
        assert!(since.elapsed() < DEADLINE, "{} is where logs are", files.display());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let wrote = write_all(&mut dev, &files).await;
    let acked = ack_all(&dev).await;
    assert_eq!(acked.len(), RECORDS / 2);
    let metrics = dev.metrics();
    let let_go = |(name, _): &(&String, &f64)| name.starts_with("felix_log_compacted_segments_total");
    let segments: f64 = metrics.iter().filter(let_go).map(|(_, count)| count).sum();
    assert!(segments > 10.0, "{segments} segments were let go of");
    let bytes = bytes_below(&files);
    println!("{bytes} bytes of files, {segments} segments let go of since the broker was killed");
    dev.restart_broker();
    let client = dev.client().await;
    let (cache, counters) = (client.cache("c").unwrap(), client.counters("c").unwrap());
    for (key_of, number) in wrote.iter().flat_map(|wrote| &wrote.newest) {
        let found = cache.get(&key(*key_of)).await.unwrap().map(|entry| entry.value);
        assert_eq!(found, Some(value(*key_of, *number)), "{}", key(*key_of));
    }
    for (key_of, counted, unknown) in wrote.iter().flat_map(|wrote| &wrote.adds) {
        let sum = counters.get(&key(*key_of)).await.unwrap().unwrap_or(0);
        assert!((*counted..=counted + unknown).contains(&sum), "{}: {sum}", key(*key_of));
    }
    let again = poll(&client.group("d", "g").unwrap(), RECORDS).await;
    assert_eq!(again.len(), RECORDS / 2);
    assert!(again.iter().all(|delivery| !acked.contains(&delivery.payload)), "one comes again");
    client.close().await;
}
