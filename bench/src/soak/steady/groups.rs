//! A queue: publishers, consumers that finish, give back and fail records, and the dead letters. Scope: one stream and one
//! group for one phase.
//! Owns: what is known of each record of the phase.
//! Invariants: a record is settled once: finished, or a dead letter that is discarded, or one that is redriven and finished;
//! what is finished never comes again.
//! Not here: consumers that do not finish anything (`slow`).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use felix_sdk::{Bytes, Client, Delivery, Group, Offset, Poll, PublishError, SeekTo};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::PATIENCE;
use super::streams::record;
use crate::soak::SoakError;
use crate::soak::site::{self, Site};
use crate::soak::tally::{Ledger, Part, Tally};

const GROUP: &str = "workers";
const PACE: Duration = Duration::from_millis(20);
const BATCH: u64 = 4;
const RECORD_BYTES: usize = 512;
/// Longer than any pause of a machine that is busy with other things.
const VISIBILITY: Duration = Duration::from_secs(120);
const POLL: Poll = Poll { max_records: 32, wait: Duration::from_millis(250), reclaim: false };
/// Of so many records one is given back once, and one always until it is a dead letter.
const GIVEN_BACK: u64 = 20;
const NEVER_DONE: u64 = 50;

/// What is known of a record.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Known {
    /// Its number, which says what its consumers do with it.
    number: u64,
    deliveries: u32,
    /// Finished, or discarded.
    settled: bool,
    redriven: bool,
}

/// Where a record is.
type Place = (u32, u64);

/// The records of a phase.
#[derive(Debug, Default)]
struct Records {
    known: BTreeMap<Place, Known>,
    ledger: Ledger,
}

/// What a consumer does with a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Settle {
    Finish,
    GiveBack,
}

impl Records {
    /// A record is handed out.
    fn delivered(&mut self, place: Place, number: u64) -> Settle {
        let known = self.known.entry(place).or_insert(Known { number, ..Known::default() });
        known.deliveries += 1;
        let (settled, redriven, first) = (known.settled, known.redriven, known.deliveries == 1);
        if settled {
            self.ledger.part(Part::Group).repeated += 1;
            self.ledger.say(Part::Group, || format!("{place:?} comes again though it is settled"));
        }
        if (number % NEVER_DONE == 1 && !redriven) || (number % GIVEN_BACK == 2 && first) {
            Settle::GiveBack
        } else {
            Settle::Finish
        }
    }

    fn settled(&mut self, place: Place) {
        if let Some(known) = self.known.get_mut(&place)
            && !std::mem::replace(&mut known.settled, true)
        {
            self.ledger.part(Part::Group).told += 1;
        }
    }
}

type Shared = Arc<Mutex<Records>>;

fn lock(records: &Shared) -> std::sync::MutexGuard<'_, Records> {
    records.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Publishes and consumes until `until`, then until everything is settled.
///
/// # Errors
/// A client could not be made, or the stream is not there.
pub async fn run(site: &Site, cycle: u32, until: Instant) -> Result<Ledger, SoakError> {
    let (client, consuming) = (site.client().await?, site.client().await?);
    let group = consuming.group(site::JOBS, GROUP)?.visibility(VISIBILITY);
    // One that was there stays where it is, which is the end.
    group.create(SeekTo::Latest).await?;
    let records = Shared::default();
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let mut consumers = JoinSet::new();
    for shard in 0..site::SHARDS {
        consumers.spawn(consume(group.clone(), shard, records.clone(), stopped.clone()));
    }
    let published = publish(&client, cycle, until, &records).await?;
    let settled = settle_all(&group, &records).await;
    stop.send_replace(true);
    while consumers.join_next().await.is_some() {}
    client.close().await;
    consuming.close().await;
    let mut held = lock(&records);
    let mut whole = std::mem::take(&mut held.ledger);
    let tally = whole.part(Part::Group);
    (tally.asked, tally.done) = (published.asked, published.done);
    (tally.refused, tally.unknown) = (published.refused, published.unknown);
    tally.missing += held.known.values().filter(|known| !known.settled).count() as u64;
    tally.missing += published.done.saturating_sub(held.known.len() as u64);
    whole.appended += published.done;
    whole.maybe_appended += published.unknown;
    if let Err(words) = settled {
        whole.wrong(Part::Group, || words);
    }
    Ok(whole)
}

async fn publish(client: &Client, cycle: u32, until: Instant, records: &Shared) -> Result<Tally, SoakError> {
    let publisher = client.publisher(site::JOBS).open().await?;
    let mut tally = Tally::default();
    let mut ticks = tokio::time::interval(PACE);
    let mut next = 0;
    while Instant::now() < until {
        ticks.tick().await;
        let batch: Vec<Bytes> =
            (next..next + BATCH).map(|number| record(cycle, 0, number, RECORD_BYTES)).collect();
        let key = Bytes::from(format!("job-{}", next % 64));
        tally.asked += BATCH;
        let outcome: Result<_, PublishError> = match publisher.send_batch(batch, key).await {
            Ok(receipt) => receipt.await,
            Err(error) => Err(error),
        };
        match outcome {
            Ok(published) => {
                tally.done += BATCH;
                let first = published.offset.map_or(0, Offset::get);
                let mut held = lock(records);
                for number in next..next + BATCH {
                    // A consumer may have been faster.
                    let known = Known { number, ..Known::default() };
                    held.known.entry((published.shard, first + number - next)).or_insert(known);
                }
            }
            Err(error) if error.is_outcome_unknown() => tally.unknown += BATCH,
            Err(_) => tally.refused += BATCH,
        }
        next += BATCH;
    }
    publisher.close().await?;
    Ok(tally)
}

async fn consume(group: Group, shard: u32, records: Shared, stopped: tokio::sync::watch::Receiver<bool>) {
    while !*stopped.borrow() {
        let deliveries = match group.poll(shard, POLL).await {
            Ok(deliveries) => deliveries,
            Err(error) => {
                lock(&records).ledger.say(Part::Group, || format!("a poll: {error}"));
                tokio::time::sleep(PACE).await;
                continue;
            }
        };
        for delivery in deliveries {
            settle(&group, &delivery, &records).await;
        }
    }
}

async fn settle(group: &Group, delivery: &Delivery, records: &Shared) {
    let place = (delivery.claim.shard, delivery.claim.offset.get());
    let number =
        delivery.payload.get(8..16).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_be_bytes);
    let what = lock(records).delivered(place, number);
    let outcome = match what {
        Settle::Finish => group.ack(delivery.claim).await,
        Settle::GiveBack => group.nack(delivery.claim, None).await,
    };
    match outcome {
        Ok(()) if what == Settle::Finish => lock(records).settled(place),
        Ok(()) => {}
        Err(error) => lock(records).ledger.say(Part::Group, || format!("{what:?} of {place:?}: {error}")),
    }
}

/// Settles the dead letters and waits until nothing of the group is left to do.
///
/// # Errors
/// What is left, after a deadline.
async fn settle_all(group: &Group, records: &Shared) -> Result<(), String> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let mut left = Vec::new();
        for shard in 0..site::SHARDS {
            let info = group.describe(shard).await.map_err(|error| format!("describe: {error}"))?;
            if info.committed != Some(info.tail) || info.in_flight + info.owed + info.dead_letters > 0 {
                left.push(format!("{info:?}"));
            }
            if info.dead_letters > 0 {
                settle_dead(group, shard, records).await?;
            }
        }
        let open = lock(records).known.values().filter(|known| !known.settled).count();
        if left.is_empty() && open == 0 {
            return Ok(());
        }
        if Instant::now() >= deadline {
            return Err(format!("{open} records are not settled; {}", left.join(", ")));
        }
        tokio::time::sleep(PACE).await;
    }
}

/// Half of the dead letters are discarded, the others go out again.
async fn settle_dead(group: &Group, shard: u32, records: &Shared) -> Result<(), String> {
    let letters = group.dead_letters(shard).await.map_err(|error| format!("dead letters: {error}"))?;
    for offset in letters {
        let place = (shard, offset.get());
        let known = lock(records).known.get(&place).copied().unwrap_or_default();
        if known.number % NEVER_DONE != 1 || known.deliveries != site::ATTEMPTS_MAX {
            lock(records).ledger.wrong(Part::Group, || format!("{place:?} is a dead letter: {known:?}"));
        }
        if (known.number / NEVER_DONE).is_multiple_of(2) {
            let outcome = group.discard(shard, offset).await;
            if outcome.is_ok() {
                lock(records).settled(place);
            }
        } else {
            // Before it is handed out again.
            if let Some(known) = lock(records).known.get_mut(&place) {
                known.redriven = true;
            }
            group.redrive(shard, offset).await.map_err(|error| format!("redrive: {error}"))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_that_comes_again_after_its_end_is_told() {
        let mut records = Records::default();
        assert_eq!(records.delivered((0, 7), 5), Settle::Finish);
        records.settled((0, 7));
        records.settled((0, 7));
        assert_eq!(
            (records.ledger.part(Part::Group).told, records.ledger.part(Part::Group).repeated),
            (1, 0)
        );
        records.delivered((0, 7), 5);
        assert_eq!(records.ledger.part(Part::Group).repeated, 1);
    }

    #[test]
    fn some_records_are_given_back_once_and_some_until_they_are_redriven() {
        let mut records = Records::default();
        assert_eq!(records.delivered((1, 0), 2), Settle::GiveBack);
        assert_eq!(records.delivered((1, 0), 2), Settle::Finish);
        for _ in 0..site::ATTEMPTS_MAX {
            assert_eq!(records.delivered((1, 1), 51), Settle::GiveBack);
        }
        records.known.get_mut(&(1, 1)).unwrap().redriven = true;
        assert_eq!(records.delivered((1, 1), 51), Settle::Finish);
    }
}
