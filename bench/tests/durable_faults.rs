//! Durable streams of a real broker when files are damaged, streams are deleted and made again, or the volume is full.

mod durable;
mod support;

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use durable::{DEADLINE, SMALL_FILES, Stage};
use felix_sdk::{
    BatchLimits, Bytes, Client, ErrorCode, Idempotence, Offset, PublishError, Publisher, RetryClass, Start,
    SubscribeError,
};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// Between two looks at a condition.
const LOOK: Duration = Duration::from_millis(5);

/// Publishes each send once and tells the first answer.
async fn plain(client: &Client, stream: &str) -> Publisher {
    client
        .publisher(stream)
        .idempotent(Idempotence::Off)
        .retry_refused(Duration::ZERO)
        .batch(BatchLimits::one_send_per_frame())
        .open()
        .await
        .unwrap()
}

async fn publish(client: &Client, stream: &str, records: impl Iterator<Item = Bytes>) -> Vec<Bytes> {
    publish_in(client, stream, BatchLimits::default(), records).await
}

async fn publish_in(
    client: &Client,
    stream: &str,
    limits: BatchLimits,
    records: impl Iterator<Item = Bytes>,
) -> Vec<Bytes> {
    let publisher = client.publisher(stream).batch(limits).open().await.unwrap();
    let mut sent = Vec::new();
    for record in records {
        let receipt = publisher.send(record.clone(), None).await.unwrap();
        sent.push((record, receipt));
    }
    let mut records = Vec::new();
    for (at, (record, receipt)) in sent.into_iter().enumerate() {
        let published = receipt.await.unwrap();
        assert_eq!(published.offset.unwrap().get(), at as u64);
        records.push(record);
    }
    records
}

/// The first `count` records of a stream of one shard.
async fn read(client: &Client, stream: &str, count: usize) -> Result<Vec<Bytes>, SubscribeError> {
    let mut events = client.subscribe(stream).from(Start::Earliest).open().await?;
    let mut records = Vec::new();
    let reading = async {
        while records.len() < count {
            let event = events.next().await.expect("it goes on")?;
            assert_eq!(event.offset.unwrap().get(), records.len() as u64);
            records.push(event.payload);
        }
        Ok::<(), SubscribeError>(())
    };
    tokio::time::timeout(DEADLINE, reading).await.expect("they come in time")?;
    Ok(records)
}

/// The records of a stream of one shard from `from` on, up to the end of `whole` or the damaged range that an error names.
/// Each must be the one of `whole`.
async fn read_until_damage(
    client: &Client,
    stream: &str,
    from: usize,
    whole: &[Bytes],
) -> Option<Range<usize>> {
    let start = Start::Offset(Offset(from as u64));
    let mut events = client.subscribe(stream).from(start).open().await.unwrap();
    for (at, due) in whole.iter().enumerate().skip(from) {
        match tokio::time::timeout(DEADLINE, events.next()).await.expect("in time").expect("it goes on") {
            Ok(event) => {
                assert_eq!(event.offset.unwrap().get(), at as u64);
                assert_eq!(event.payload, *due, "offset {at}");
            }
            Err(error) => {
                assert_eq!(error.code(), Some(&ErrorCode::Storage), "{error}");
                assert_eq!(error.retry_class(), RetryClass::Fatal, "{error}");
                let damaged = range_in(&error.to_string());
                assert_eq!(damaged.start, at, "{error}");
                return Some(damaged);
            }
        }
    }
    None
}

/// The range that the refusal of a reader names.
fn range_in(text: &str) -> Range<usize> {
    let numbers: Vec<usize> = text.split(' ').filter_map(|word| word.parse().ok()).collect();
    assert!(numbers.len() == 3 && numbers[1] == numbers[2] && numbers[0] < numbers[1], "{text}");
    numbers[0]..numbers[1]
}

fn records(mark: &str, count: usize) -> impl Iterator<Item = Bytes> {
    (0..count).map(move |number| format!("{mark} {number} {}", "x".repeat(number % 900)).into())
}

fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, found);
        } else if fs::metadata(&path).unwrap().len() > 0 {
            found.push(path);
        }
    }
}

fn copy(from: &Path, to: &Path) {
    let _ = fs::remove_dir_all(to);
    assert!(Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap().success());
}

/// The shard is not served, and everybody is told so in the same words: what is wrong and where to look, and that trying
/// again does not help.
async fn assert_refused(client: &Client, stream: &str, why: &str) {
    let publisher = plain(client, stream).await;
    let error = publisher.send("more", None).await.unwrap().await.unwrap_err();
    let told = |text: &str| text.contains("volume 0:/") && text.contains("felix-broker inspect log");
    assert_eq!(error.code(), Some(&ErrorCode::Storage), "{why}: {error}");
    assert_eq!(error.retry_class(), RetryClass::Fatal, "{why}: {error}");
    assert!(told(&error.to_string()), "{why}: {error}");
    let error = read(client, stream, 1).await.unwrap_err();
    assert_eq!(error.code(), Some(&ErrorCode::Storage), "{why}: {error}");
    assert_eq!(error.retry_class(), RetryClass::Fatal, "{why}: {error}");
    assert!(told(&error.to_string()), "{why}: {error}");
}

/// A stopped broker's `hurt` stream is damaged in one place; `well` is another stream of it.
struct Damage {
    stage: Stage,
    hurt: Vec<Bytes>,
    well: Vec<Bytes>,
}

impl Damage {
    fn log(&self) -> PathBuf {
        self.stage.path("data/log")
    }

    /// Starts over what was damaged. Says whether the damage was told: the stream refused in every way, or the reading
    /// ended; else nothing is missing.
    async fn look(&mut self, why: &str) -> bool {
        let before = self.stage.log().len();
        let mut broker = self.stage.start_well();
        let client = self.stage.client().await;
        assert_eq!(read(&client, "well", self.well.len()).await.unwrap(), self.well, "{why}");
        let refused = broker.metric("felix_log_refused");
        if refused > 0.0 {
            assert_eq!(refused, 1.0, "{why}");
            assert_refused(&client, "hurt", why).await;
            let log = self.stage.log();
            assert!(log[before..].contains("its shard is not served"), "{why}: {log}");
        }
        // What was durable at the stop is not looked at before it is read.
        let mut told = refused > 0.0;
        if !told && let Some(damaged) = read_until_damage(&client, "hurt", 0, &self.hurt).await {
            told = true;
            let next = damaged.end;
            assert_eq!(
                read_until_damage(&client, "hurt", next, &self.hurt).await,
                None,
                "{why}: {damaged:?}"
            );
        }
        client.close().await;
        broker.stop();
        told
    }
}

#[tokio::test]
async fn a_flipped_bit_in_a_stopped_brokers_files_is_refused_or_harmless() {
    let seed = std::env::var("SEED").ok().and_then(|text| text.parse().ok()).unwrap_or_else(rand::random);
    eprintln!("SEED={seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let mut damage = Damage { stage: Stage::set(&SMALL_FILES), hurt: Vec::new(), well: Vec::new() };
    let mut broker = damage.stage.start_well();
    damage.stage.stream("hurt", 1);
    let client = damage.stage.client().await;
    damage.hurt = publish(&client, "hurt", records("hurt", 4_000)).await;
    let folder = damage.stage.log_folders().pop().unwrap();
    damage.stage.stream("well", 1);
    damage.well = publish(&client, "well", records("well", 500)).await;
    client.close().await;
    broker.stop();
    let good = damage.stage.path("good");
    copy(&damage.log(), &good);
    let mut own = Vec::new();
    files(&damage.log().join("shards").join(&folder), &mut own);
    own.sort();
    // A record of the newest segment, which recovery reads; then anywhere.
    // The last of them may wait for its first batch.
    let in_use = |path: &&PathBuf| fs::read(path).unwrap()[4_096..].starts_with(b"FLXB");
    let newest = own.iter().rfind(in_use).unwrap().clone();
    let mut all = own;
    files(&damage.log().join("slots"), &mut all);
    let mut refusals = 0;
    for number in 0..10 {
        let path = if number == 0 { newest.clone() } else { all[rng.random_range(0..all.len())].clone() };
        let len = fs::metadata(&path).unwrap().len();
        let at = if number == 0 { 4_096 + 96 + 30 } else { rng.random_range(0..len) };
        let mut bytes = fs::read(&path).unwrap();
        bytes[usize::try_from(at).unwrap()] ^= 1 << rng.random_range(0..8);
        fs::write(&path, bytes).unwrap();
        let why = format!("SEED={seed}, a bit of byte {at} of {}", path.display());
        refusals += u32::from(damage.look(&why).await);
        assert!(number > 0 || refusals == 1, "{why}");
        copy(&good, &damage.log());
    }
    assert!(!damage.look("what was copied is whole").await);
}

/// A batch somewhere in the middle of the log is damaged: readers of its range are told it and how to go on, what is before
/// and behind it is there, and publishing goes on, with numbers too.
#[tokio::test]
async fn a_damaged_batch_of_a_broker_takes_no_other_with_it_and_publishing_goes_on() {
    let mut stage = Stage::set(&SMALL_FILES);
    let mut broker = stage.start_well();
    stage.stream("hurt", 1);
    let client = stage.client().await;
    let small = BatchLimits::one_send_per_frame();
    let mut whole = publish_in(&client, "hurt", small, records("hurt", 4_000)).await;
    client.close().await;
    broker.stop();
    let mut own = Vec::new();
    files(&stage.path("data/log/shards"), &mut own);
    own.sort();
    let oldest = &own[0];
    let mut bytes = fs::read(oldest).unwrap();
    let begins = (4_096..bytes.len() - 4).step_by(8).filter(|at| bytes[*at..].starts_with(b"FLXB"));
    let at = begins.take(100).last().unwrap();
    let base = usize::try_from(u64::from_le_bytes(bytes[at + 24..at + 32].try_into().unwrap())).unwrap();
    bytes[at + 110] ^= 4;
    fs::write(oldest, bytes).unwrap();

    broker = stage.start_well();
    let client = stage.client().await;
    let damaged = read_until_damage(&client, "hurt", 0, &whole).await.expect("it is told");
    assert_eq!(damaged, base..base + 1, "exactly the batch that is damaged");
    assert!(base > 50, "{base}: there is much before it");
    assert_eq!(read_until_damage(&client, "hurt", damaged.end, &whole).await, None);
    let inside = Start::Offset(Offset(damaged.end as u64 - 1));
    let mut events = client.subscribe("hurt").from(inside).open().await.unwrap();
    let error = events.next().await.expect("an end").unwrap_err();
    assert_eq!(range_in(&error.to_string()), damaged);
    let publisher = client.publisher("hurt").open().await.unwrap();
    for record in records("more", 50) {
        let published = publisher.send(record.clone(), None).await.unwrap().await.unwrap();
        assert_eq!(published.offset.unwrap().get(), whole.len() as u64);
        whole.push(record);
    }
    assert_eq!(read_until_damage(&client, "hurt", damaged.end, &whole).await, None);
    assert!(broker.metric("felix_log_read_errors_total") >= 2.0);
    client.close().await;
    broker.stop();
}

#[tokio::test]
async fn a_stream_made_a_hundred_times_under_load_never_shows_an_earlier_life() {
    const LIVES: u32 = 100;
    let mut stage = Stage::set(&[&SMALL_FILES[..], &["--controlplane-sync-interval-ms=50"]].concat());
    let mut broker = stage.start_well();
    let client = stage.client().await;
    stage.stream("steady", 2);
    let steady = tokio::spawn(load(client.clone(), "steady"));
    let mut folders_before = Vec::new();
    for life in 0..LIVES {
        stage.stream("again", 2);
        let mark = format!("life-{life}");
        // A client that knows nothing of earlier lives.
        let fresh = stage.client().await;
        let publisher = fresh.publisher("again").open().await.unwrap();
        let mut receipts = Vec::new();
        for record in records(&mark, 60) {
            let key = format!("key-{}", record.len() % 16);
            receipts.push(publisher.send(record, Bytes::from(key)).await.unwrap());
        }
        let mut ends: BTreeMap<u32, u64> = BTreeMap::new();
        for receipt in receipts {
            let published = receipt.await.unwrap();
            let end = ends.entry(published.shard).or_default();
            *end = (*end).max(published.offset.unwrap().get() + 1);
        }
        assert_eq!(ends.values().sum::<u64>(), 60, "life {life} begins at offset 0: {ends:?}");
        read_life(&fresh, &mark, &ends).await;
        let mut folders = stage.log_folders();
        assert_eq!(folders.len(), 4, "life {life}: {folders:?}");
        folders.retain(|folder| !folders_before.contains(folder));
        folders_before = stage.log_folders();
        assert!(life == 0 || folders.len() == 2, "life {life} has folders of its own: {folders:?}");
        let loading = tokio::spawn(load(fresh.clone(), "again"));
        stage.delete("again");
        let end = Instant::now() + DEADLINE;
        while stage.log_folders().len() > 2 {
            assert!(Instant::now() < end, "life {life}: {:?} are left", stage.log_folders());
            tokio::time::sleep(LOOK).await;
        }
        loading.abort();
        fresh.close().await;
    }
    steady.abort();
    client.close().await;
    broker.stop();
    stage.assert_no_complaint();
}

/// Publishes until it is aborted or the stream is gone.
async fn load(client: Client, stream: &'static str) {
    let publisher = client.publisher(stream).open().await.unwrap();
    for number in 0_u64.. {
        let receipt = publisher.send(format!("load {number}"), Bytes::from(format!("{number}"))).await;
        let Ok(receipt) = receipt else { return };
        if number % 32 == 0 && receipt.await.is_err() {
            return;
        }
        tokio::time::sleep(Duration::from_micros(500)).await;
    }
}

/// Every record up to the ends is of this life.
async fn read_life(client: &Client, mark: &str, ends: &BTreeMap<u32, u64>) {
    let mut events = client.subscribe("again").from(Start::Earliest).open().await.unwrap();
    let mut next: BTreeMap<u32, u64> = BTreeMap::new();
    while next != *ends {
        let event = tokio::time::timeout(DEADLINE, events.next()).await.expect("in time").unwrap().unwrap();
        let expected = next.entry(event.shard).or_default();
        assert_eq!(event.offset.unwrap().get(), *expected);
        *expected += 1;
        let text = std::str::from_utf8(&event.payload).unwrap();
        assert!(text.starts_with(&format!("{mark} ")), "{text} in {mark}");
    }
}

/// A file system of its own. Unmounted when dropped.
struct Volume {
    root: PathBuf,
}

impl Volume {
    /// 64 MiB of ext4 on a loop device; nothing where that is not allowed.
    fn mount(folder: &Path) -> Option<Volume> {
        let (image, root) = (folder.join("image"), folder.join("volume"));
        fs::create_dir_all(&root).unwrap();
        fs::File::create(&image).unwrap().set_len(64 << 20).unwrap();
        let made = |command: &mut Command| command.output().is_ok_and(|output| output.status.success());
        let ok = made(Command::new("mkfs.ext4").args(["-q", "-F", "-m", "0"]).arg(&image))
            && made(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&root));
        ok.then_some(Volume { root })
    }

    /// A tmpfs of 64 MiB; nothing where that is not allowed.
    fn tmpfs(root: PathBuf) -> Option<Volume> {
        fs::create_dir_all(&root).unwrap();
        let mount =
            Command::new("mount").args(["-t", "tmpfs", "-o", "size=64m", "felix-test"]).arg(&root).output();
        mount.is_ok_and(|output| output.status.success()).then_some(Volume { root })
    }

    fn free_bytes(&self) -> u64 {
        let said = Command::new("stat").args(["-f", "-c", "%a %S"]).arg(&self.root).output().unwrap();
        let text = String::from_utf8(said.stdout).unwrap();
        text.split_whitespace().map(|number| number.parse::<u64>().unwrap()).product()
    }

    /// Takes every byte that is free.
    fn take_all(&self) {
        let mut filler =
            fs::File::options().create(true).append(true).open(self.root.join("filler")).unwrap();
        for len in [1 << 20, 4 << 10, 1] {
            let bytes = vec![1; len];
            while filler.write_all(&bytes).is_ok() {}
        }
        let error = fs::write(self.root.join("more"), [1]).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::StorageFull, "{error}");
        fs::remove_file(self.root.join("more")).unwrap();
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        // Lazily: when a test fails, the broker may live a moment longer.
        let _ = Command::new("umount").arg("-l").arg(&self.root).status();
    }
}

/// Publishes records of 8 KiB one after the other until one is refused; what was acknowledged, and the refusal.
async fn fill(client: &Client, stream: &str, acked: &mut Vec<Bytes>) -> PublishError {
    let publisher = plain(client, stream).await;
    loop {
        let mut record = format!("{stream} {} ", acked.len()).into_bytes();
        record.resize(8 << 10, b'.');
        let record = Bytes::from(record);
        match publisher.send(record.clone(), None).await.unwrap().await {
            Ok(published) => assert_eq!(published.offset.unwrap().get(), acked.len() as u64),
            Err(error) => return error,
        }
        acked.push(record);
        assert!(acked.len() < 8_192, "64 MiB do not hold all this");
    }
}

/// Publishes until a record is taken again.
async fn writes_go_on(client: &Client, stream: &str, acked: &mut Vec<Bytes>) {
    let publisher = plain(client, stream).await;
    let end = Instant::now() + DEADLINE;
    loop {
        let record = Bytes::from(format!("{stream} again {}", acked.len()));
        match publisher.send(record.clone(), None).await.unwrap().await {
            Ok(published) => {
                assert_eq!(published.offset.unwrap().get(), acked.len() as u64);
                return acked.push(record);
            }
            Err(error) => {
                assert_eq!(error.code(), Some(&ErrorCode::Storage), "{error}");
                assert!(Instant::now() < end, "{error}");
            }
        }
        tokio::time::sleep(LOOK).await;
    }
}

#[tokio::test]
async fn a_full_volume_refuses_writes_and_nothing_else_until_there_is_room() {
    let folder = tempfile::tempdir().unwrap();
    let Some(volume) = Volume::mount(folder.path()) else {
        eprintln!("not run: mounting a loop device is not allowed here");
        return;
    };
    let storage = format!("--storage-dir={}", volume.root.join("log").display());
    let mut stage = Stage::set(&[
        "--fsync=on_commit",
        "--segment-bytes=1MiB",
        "--commit-slot-bytes=1MiB",
        "--disk-low=8MiB",
        "--log-memory=32MiB",
        "--retention-check-ms=200",
        &storage,
    ]);
    let mut broker = stage.start_well();
    let client = stage.client().await;
    stage.stream("kept", 1);
    stage.stream("ballast", 1);
    let mut ballast = publish(&client, "ballast", big_records("ballast", 2_000)).await;
    let mut kept = publish(&client, "kept", big_records("kept", 400)).await;
    let refusal = fill(&client, "kept", &mut kept).await;
    assert_eq!(refusal.code(), Some(&ErrorCode::Storage), "{refusal}");
    assert!(refusal.to_string().contains("nearly full"), "{refusal}");
    // The other stream is refused too, and both are read.
    let refusal = fill(&client, "ballast", &mut ballast).await;
    assert_eq!(refusal.code(), Some(&ErrorCode::Storage), "{refusal}");
    assert_eq!(read(&client, "kept", kept.len()).await.unwrap(), kept);
    assert_eq!(read(&client, "ballast", ballast.len()).await.unwrap(), ballast);
    // Both cores together have left what is to stay free, and it is said once.
    let free = volume.free_bytes();
    assert!(free >= 8 << 20, "{free} bytes are free");
    assert_eq!(stage.log().matches("nearly full").count(), 1, "{}", stage.log());
    // A restart does not help, and does no harm.
    client.close().await;
    broker.kill();
    broker = stage.start_well();
    let client = stage.client().await;
    let refusal = fill(&client, "kept", &mut kept).await;
    assert_eq!(refusal.code(), Some(&ErrorCode::Storage), "{refusal}");
    assert_eq!(read(&client, "kept", kept.len()).await.unwrap(), kept);
    stage.delete("ballast");
    writes_go_on(&client, "kept", &mut kept).await;
    let refusal = fill(&client, "kept", &mut kept).await;
    assert_eq!(refusal.code(), Some(&ErrorCode::Storage), "{refusal}");
    // Retention works on a full volume.
    stage.keep_bytes("kept", 16 << 20);
    writes_go_on(&client, "kept", &mut kept).await;
    assert_newest(&client, "kept", &kept).await;
    client.close().await;
    broker.stop();
    drop(broker);
    broker = stage.start_well();
    let client = stage.client().await;
    assert_newest(&client, "kept", &kept).await;
    client.close().await;
    broker.stop();
}

/// The whole data folder is on a drive without a free byte: the broker starts, reads and removes, and refuses writes until
/// there is space.
#[tokio::test]
async fn a_broker_starts_without_a_free_byte_and_writes_go_on_when_there_is_space() {
    let mut stage = Stage::set(&[
        "--fsync=on_commit",
        "--segment-bytes=1MiB",
        "--commit-slot-bytes=1MiB",
        "--disk-low=4MiB",
        "--log-memory=32MiB",
        "--retention-check-ms=200",
    ]);
    let Some(volume) = Volume::tmpfs(stage.path("data")) else {
        eprintln!("not run: mounting a tmpfs is not allowed here");
        return;
    };
    let mut broker = stage.start_well();
    let client = stage.client().await;
    stage.stream("kept", 1);
    stage.stream("ballast", 1);
    let mut ballast = publish(&client, "ballast", big_records("ballast", 1_600)).await;
    let mut kept = publish(&client, "kept", big_records("kept", 1_600)).await;
    client.close().await;
    for orderly in [false, true, false] {
        volume.take_all();
        if orderly {
            broker.stop();
        } else {
            broker.kill();
        }
        drop(broker);
        volume.take_all();
        broker = stage.start_well();
        // The slots of the run before make room for its own; whoever else takes that room leaves it nowhere to write down
        // that something is deleted.
        let began = Instant::now();
        while broker.metric("felix_log_commit_slots_ready") < 2.0 {
            assert!(began.elapsed() < DEADLINE, "both cores make their slots");
            tokio::time::sleep(LOOK).await;
        }
        let client = stage.client().await;
        volume.take_all();
        let refusal = fill(&client, "kept", &mut kept).await;
        assert_eq!(refusal.code(), Some(&ErrorCode::Storage), "{refusal}");
        assert!(refusal.to_string().contains("nearly full"), "{refusal}");
        let refusal = fill(&client, "ballast", &mut ballast).await;
        assert_eq!(refusal.code(), Some(&ErrorCode::Storage), "{refusal}");
        assert_eq!(read(&client, "kept", kept.len()).await.unwrap(), kept);
        assert_eq!(read(&client, "ballast", ballast.len()).await.unwrap(), ballast);
        client.close().await;
    }
    // Deletion makes space, and so does retention.
    let client = stage.client().await;
    stage.delete("ballast");
    writes_go_on(&client, "kept", &mut kept).await;
    volume.take_all();
    let refusal = fill(&client, "kept", &mut kept).await;
    assert_eq!(refusal.code(), Some(&ErrorCode::Storage), "{refusal}");
    stage.keep_bytes("kept", 4 << 20);
    writes_go_on(&client, "kept", &mut kept).await;
    client.close().await;
    broker.stop();
}

fn big_records(mark: &str, count: usize) -> impl Iterator<Item = Bytes> {
    (0..count).map(move |number| {
        let mut record = format!("{mark} {number} ").into_bytes();
        record.resize(8 << 10, b'.');
        record.into()
    })
}

/// What is left of a stream of one shard is the end of what was acknowledged, the newest 8 MiB at least.
async fn assert_newest(client: &Client, stream: &str, acked: &[Bytes]) {
    let mut events = client.subscribe(stream).from(Start::Earliest).open().await.unwrap();
    let mut next = None;
    let mut bytes = 0;
    while next != Some(acked.len()) {
        let event = tokio::time::timeout(DEADLINE, events.next()).await.expect("in time").unwrap().unwrap();
        let offset = usize::try_from(event.offset.unwrap().get()).unwrap();
        assert!(next.is_none_or(|next| next == offset), "{offset} after {next:?}");
        assert_eq!(event.payload, acked[offset], "offset {offset}");
        bytes += event.payload.len();
        next = Some(offset + 1);
    }
    assert!(bytes >= 8 << 20, "only {bytes} bytes were kept");
}
