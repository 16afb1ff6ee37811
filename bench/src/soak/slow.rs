//! Readers that do not read: subscribers, watches and consumers that stop for the phase, and then read on or are cut off.
//! Scope: one phase of each cycle.
//! Owns: what is written meanwhile; more than what lies between a writer and a reader holds.
//! Invariants: what was written is told when a reader reads on; one that is cut off holds nothing up.
//! Not here: more load than the broker takes (`overload`).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use felix_sdk::{Bytes, Client, Poll, SeekTo, Start, Subscription, Watch, WatchItem};
use tokio::time::Instant;

use super::SoakError;
use super::rude::{Rude, Until};
use super::site::{self, Site};
use super::steady::{Checked, PATIENCE, count, published, record};
use super::tally::{Ledger, Part};

/// Written to each stream and to the cache. The transport holds up to 4 MiB of a stream that is not read.
const BYTES: u64 = 10 << 20;
const RECORD_BYTES: u64 = 4 << 10;
const BATCH: u64 = 16;
/// What a reader that does not read holds itself.
const BUFFER_BYTES: u32 = 64 << 10;
const KEYS: u64 = 64;
const JOBS: u64 = 128;
/// How long the claims of a consumer hold that does not settle them.
const VISIBILITY: Duration = Duration::from_secs(1);
const GROUP: &str = "slow";
/// Readers of each kind that are cut off.
const CUT: usize = 2;

/// Runs at least until `until`.
///
/// # Errors
/// A client could not be made, or what was made at the start is not there.
pub async fn run(site: &Site, cycle: u32, until: Instant) -> Result<Ledger, SoakError> {
    let (durable, memory, cache, group, cut) = tokio::join!(
        stream(site, site::SLOW_DURABLE, cycle, until),
        stream(site, site::SLOW_MEMORY, cycle, until),
        cache(site, until),
        group(site, cycle, until),
        cut_off(site, until),
    );
    let mut whole = Ledger::default();
    for part in [durable?, memory?, cache?, group?, cut?] {
        whole.add(part);
    }
    Ok(whole)
}

async fn open(client: &Client, stream: &str) -> Result<Subscription, SoakError> {
    let reading = client.subscribe(stream).from(Start::Latest).buffer_bytes(BUFFER_BYTES);
    Ok(reading.open().await?)
}

/// A subscriber reads on when everything is written, or when the stream takes no more because of it.
async fn stream(site: &Site, stream: &'static str, cycle: u32, until: Instant) -> Result<Ledger, SoakError> {
    let (reader, client) = (site.client().await?, site.client().await?);
    let mut events = open(&reader, stream).await?;
    let publisher = client.publisher(stream).retry_refused(Duration::ZERO).open().await?;
    let mut ledger = Ledger::default();
    let (mut end, mut excused) = (0, BTreeSet::new());
    while end * RECORD_BYTES < BYTES {
        let numbers = end..end + BATCH;
        let records = numbers.clone().map(|number| record(cycle, 0, number, RECORD_BYTES as usize)).collect();
        let outcome = match publisher.send_batch(records, Bytes::from_static(b"slow")).await {
            Ok(receipt) => receipt.await.map(drop),
            Err(error) => Err(error),
        };
        end += BATCH;
        let refused = outcome.as_ref().is_err_and(|error| !error.is_outcome_unknown());
        if refused {
            // As it should be: a stream in memory keeps what its readers have not got, and takes no more.
            let tally = ledger.part(Part::Slow);
            (tally.asked, tally.refused) = (tally.asked + BATCH, tally.refused + BATCH);
        } else if published(&mut ledger, Part::Slow, BATCH, &outcome) {
            continue;
        }
        excused.extend(numbers);
        break;
    }
    tokio::time::sleep_until(until).await;
    ledger.add(Checked::new(Part::Slow, cycle).finish(&mut events, &[(0, end, excused)]).await);
    drop(events);
    publisher.close().await?;
    client.close().await;
    reader.close().await;
    Ok(ledger)
}

/// A watch reads on and learns what every key has.
async fn cache(site: &Site, until: Instant) -> Result<Ledger, SoakError> {
    let (watching, client) = (site.client().await?, site.client().await?);
    let watch = watching.cache(site::SLOW_CACHE)?.watch_prefix("").buffer_bytes(BUFFER_BYTES);
    let mut watch = watch.open().await?;
    let cache = client.cache(site::SLOW_CACHE)?;
    let mut ledger = Ledger::default();
    let mut newest = BTreeMap::new();
    for number in 0..BYTES / RECORD_BYTES {
        let key = format!("k{}", number % KEYS);
        let outcome = cache.put(&key, record(0, 0, number, RECORD_BYTES as usize), None).await;
        if count(ledger.part(Part::Slow), &outcome) {
            newest.insert(key, number);
        }
    }
    tokio::time::sleep_until(until).await;
    let told = catch_up(&mut watch, newest, &mut ledger).await;
    ledger.part(Part::Slow).told += told;
    drop(watch);
    client.close().await;
    watching.close().await;
    Ok(ledger)
}

/// Reads until every key has its newest value, and counts those that do not get it.
async fn catch_up(watch: &mut Watch, mut newest: BTreeMap<String, u64>, ledger: &mut Ledger) -> u64 {
    let deadline = Instant::now() + PATIENCE;
    let mut told = 0;
    while !newest.is_empty() {
        match tokio::time::timeout_at(deadline, watch.next_item()).await {
            Ok(Some(WatchItem::Change(change))) => {
                told += 1;
                let value = change.value.as_deref().and_then(|value| value.get(8..16)?.try_into().ok());
                if value.map(u64::from_be_bytes) == newest.get(&change.key).copied() {
                    newest.remove(&change.key);
                }
            }
            // Which way it was held up does not matter: what it is told in the end does.
            Ok(Some(WatchItem::Notice(_) | WatchItem::Error(_))) => {}
            Ok(None) | Err(_) => break,
        }
    }
    ledger.part(Part::Slow).missing += newest.len() as u64;
    told
}

/// A consumer claims records and settles none; another one gets them all.
async fn group(site: &Site, cycle: u32, until: Instant) -> Result<Ledger, SoakError> {
    let (stuck, client) = (site.client().await?, site.client().await?);
    let group = client.group(site::SLOW_JOBS, GROUP)?;
    group.create(SeekTo::Latest).await?;
    let mut ledger = Ledger::default();
    let publisher = client.publisher(site::SLOW_JOBS).open().await?;
    for number in 0..JOBS {
        let key = Bytes::from(format!("job-{number}"));
        let outcome = match publisher.send(record(cycle, 0, number, 256), key).await {
            Ok(receipt) => receipt.await.map(drop),
            Err(error) => Err(error),
        };
        published(&mut ledger, Part::Slow, 1, &outcome);
    }
    let held = stuck.group(site::SLOW_JOBS, GROUP)?.visibility(VISIBILITY);
    let poll = Poll { max_records: 100, wait: Duration::ZERO, reclaim: false };
    for shard in 0..site::SHARDS {
        let claimed = held.poll(shard, poll).await;
        if let Err(error) = claimed {
            ledger.wrong(Part::Slow, || format!("a poll: {error}"));
        }
    }
    drop((held, stuck));
    tokio::time::sleep_until(until).await;
    let deadline = Instant::now() + PATIENCE;
    let wait = Poll { max_records: 100, wait: Duration::from_millis(200), reclaim: false };
    for shard in 0..site::SHARDS {
        loop {
            for delivery in group.poll(shard, wait).await.unwrap_or_default() {
                if group.ack(delivery.claim).await.is_ok() {
                    ledger.part(Part::Slow).told += 1;
                }
            }
            let info = group.describe(shard).await;
            if info.as_ref().is_ok_and(|info| info.committed == Some(info.tail) && info.dead_letters == 0) {
                break;
            }
            if Instant::now() >= deadline {
                ledger.part(Part::Slow).missing += 1;
                ledger.say(Part::Slow, || format!("a group is left with {info:?}"));
                break;
            }
        }
    }
    publisher.close().await?;
    client.close().await;
    Ok(ledger)
}

/// Readers that never read and are gone at the end of the phase, some without a word.
async fn cut_off(site: &Site, until: Instant) -> Result<Ledger, SoakError> {
    let mut held = Vec::new();
    let mut silent = Vec::new();
    for _ in 0..CUT {
        let client = site.client().await?;
        let reading = open(&client, site::SLOW_DURABLE).await?;
        let watch = client.cache(site::SLOW_CACHE)?.watch_prefix("").buffer_bytes(BUFFER_BYTES);
        held.push((reading, watch.open().await?, client));
        let target = site.target(site::SLOW_DURABLE)?;
        silent.push(tokio::task::spawn_blocking(move || Rude::start(&target, Until::Subscribed)));
    }
    let mut ledger = Ledger::default();
    let mut gone = Vec::new();
    for one in silent {
        match one.await.map_err(SoakError::Task)? {
            Ok(rude) => gone.push(rude),
            Err(error) => ledger.wrong(Part::Slow, || error.to_string()),
        }
    }
    tokio::time::sleep_until(until).await;
    drop((held, gone));
    Ok(ledger)
}
