//! More publishes than the broker takes, and publishes to a stream that takes none. Scope: one phase of each cycle.
//! Owns: the publishers, what is taken in a second, how late refusals are.
//! Invariants: what is offered does not wait for answers; what finds no room in a publisher is not sent and not counted; every
//! publish that was sent has an outcome at the end of the phase.
//! Not here: what follows from it (`judge`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use felix_sdk::{Bytes, Client, Idempotence, PublishError, Publisher, Receipt, Start, TryPublishError};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::SoakError;
use super::judge::Overload;
use super::site::{self, Site};
use super::steady::{published, record};
use super::tally::{Ledger, Part};

/// Times the capacity that is offered, one after the other.
const FACTORS: [u32; 2] = [2, 5];
/// Clients of the closed loop, each with a publisher of either kind of stream; of the open ones so many times more.
const CLIENTS: u32 = 2;
const BATCH: u64 = 64;
const RECORD_BYTES: usize = 1_024;
/// Batches of a publisher of the closed loop that wait for an answer.
const INFLIGHT: usize = 4;
/// What a publisher may have unanswered.
const BUDGET_BYTES: u32 = 1 << 20;
/// From one look at what is due to the next.
const PACE: Duration = Duration::from_millis(10);
/// After a change of load nothing is counted for so long.
const SETTLE: f64 = 0.2;

/// How publishes are made.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Offer {
    /// The next when one is answered.
    Closed,
    /// So many records in a second, whatever is answered.
    PerSecond(f64),
}

/// Runs until `until`.
///
/// # Errors
/// A client could not be made, or what was made at the start is not there.
pub async fn run(site: &Site, until: Instant) -> Result<(Ledger, Overload), SoakError> {
    let each = until.saturating_duration_since(Instant::now()) / (FACTORS.len() as u32 + 1);
    let mut ledger = Ledger::default();
    let capacity = flood(site, CLIENTS, Offer::Closed, each, &mut ledger).await?;
    let mut overload = Overload { capacity, ..Overload::default() };
    let (blocking, floods) = (blocked(site, until), async {
        let mut offered = Vec::new();
        for factor in FACTORS {
            let offer = Offer::PerSecond(capacity * f64::from(factor));
            let taken = flood(site, CLIENTS * factor, offer, each, &mut ledger).await?;
            offered.push((factor, taken));
        }
        Ok::<_, SoakError>(offered)
    });
    let (refused, offered) = tokio::join!(blocking, floods);
    overload.offered = offered?;
    let (refusals, latest, of_blocked) = refused?;
    (overload.refusals, overload.latest_ms) = (refusals, latest.as_millis() as u64);
    ledger.add(of_blocked);
    Ok((ledger, overload))
}

/// Publishes with so many clients for `each`, and answers the records taken in a second.
async fn flood(
    site: &Site,
    clients: u32,
    offer: Offer,
    each: Duration,
    whole: &mut Ledger,
) -> Result<f64, SoakError> {
    let taken = Arc::new(AtomicU64::new(0));
    let mut open = Vec::new();
    let mut flooding = JoinSet::new();
    let until = Instant::now() + each;
    for _ in 0..clients {
        let client = site.client().await?;
        for stream in [site::FLOOD_MEMORY, site::FLOOD_DURABLE] {
            let publisher = publisher(&client, stream, offer).await?;
            let share = match offer {
                Offer::Closed => Offer::Closed,
                Offer::PerSecond(all) => Offer::PerSecond(all / f64::from(2 * clients)),
            };
            flooding.spawn(publish(publisher, open.len() as u64, share, until, taken.clone()));
        }
        open.push(client);
    }
    let settle = each.mul_f64(SETTLE);
    tokio::time::sleep_until((Instant::now() + settle).min(until)).await;
    let (begun, before) = (Instant::now(), taken.load(Relaxed));
    tokio::time::sleep_until(until).await;
    let (seconds, records) = (begun.elapsed().as_secs_f64(), taken.load(Relaxed) - before);
    while let Some(flooded) = flooding.join_next().await {
        whole.add(flooded.map_err(SoakError::Task)?);
    }
    for client in open {
        client.close().await;
    }
    Ok(records as f64 / seconds.max(f64::MIN_POSITIVE))
}

async fn publisher(client: &Client, stream: &str, offer: Offer) -> Result<Publisher, SoakError> {
    let inflight = if offer == Offer::Closed { INFLIGHT } else { usize::MAX };
    let builder = client.publisher(stream).idempotent(Idempotence::Off).retry_refused(Duration::ZERO);
    let builder = builder.batch(felix_sdk::BatchLimits::one_send_per_frame());
    Ok(builder.max_in_flight(inflight.min(1_024)).budget_bytes(BUDGET_BYTES).open().await?)
}

async fn publish(
    publisher: Publisher,
    number: u64,
    offer: Offer,
    until: Instant,
    taken: Arc<AtomicU64>,
) -> Ledger {
    // As many as are in flight in the closed loop; more than the budget lets through otherwise.
    let depth = if offer == Offer::Closed { INFLIGHT } else { 1_024 };
    let (sent, mut unanswered) = mpsc::channel::<Receipt>(depth);
    let counting = tokio::spawn(async move {
        let mut ledger = Ledger::default();
        while let Some(receipt) = unanswered.recv().await {
            let outcome = receipt.await.map(drop);
            flooded(&mut ledger, &outcome);
            if outcome.is_ok() {
                taken.fetch_add(BATCH, Relaxed);
            }
        }
        ledger
    });
    let batch: Vec<Bytes> = (0..BATCH).map(|at| record(0, 0, at, RECORD_BYTES)).collect();
    let key = Bytes::from(format!("flood-{number}"));
    let mut held = Ledger::default();
    match offer {
        Offer::Closed => {
            while Instant::now() < until {
                match publisher.send_batch(batch.clone(), key.clone()).await {
                    Ok(receipt) => drop(sent.send(receipt).await),
                    Err(error) => flooded(&mut held, &Err(error)),
                }
            }
        }
        Offer::PerSecond(rate) => {
            let begun = Instant::now();
            let mut ticks = tokio::time::interval(PACE);
            let mut offered = 0.0;
            while Instant::now() < until {
                ticks.tick().await;
                let due = begun.elapsed().as_secs_f64() * rate / BATCH as f64;
                while offered < due {
                    offered += 1.0;
                    match publisher.try_publish_batch(batch.clone(), key.clone()) {
                        Ok(receipt) => drop(sent.send(receipt).await),
                        // The broker lets no more come: the rest of what is due is not sent.
                        Err(TryPublishError::Full) => offered = due,
                        Err(TryPublishError::Publish(error)) => flooded(&mut held, &Err(error)),
                    }
                }
            }
        }
    }
    drop(sent);
    let mut ledger = counting.await.unwrap_or_default();
    ledger.add(held);
    if let Err(error) = publisher.close().await {
        ledger.wrong(Part::Flood, || format!("the end of a publisher: {error}"));
    }
    ledger
}

/// A refusal of load is what this phase is about; anything else is not.
fn flooded(ledger: &mut Ledger, outcome: &Result<(), PublishError>) {
    if outcome.as_ref().is_err_and(is_overloaded) {
        let tally = ledger.part(Part::Flood);
        (tally.asked, tally.refused) = (tally.asked + BATCH, tally.refused + BATCH);
    } else if !published(ledger, Part::Flood, BATCH, outcome) {
        ledger.part(Part::Flood).wrong += 1;
    }
}

fn is_overloaded(error: &PublishError) -> bool {
    error.code() == Some(&felix_sdk::ErrorCode::Overloaded)
}

/// A stream in memory whose only subscriber does not read takes no more when what lies between is full; from then on every
/// publish is refused when it has waited. Answers how many were, and how late the last was beyond that wait.
async fn blocked(site: &Site, until: Instant) -> Result<(u64, Duration, Ledger), SoakError> {
    let (reader, client) = (site.client().await?, site.client().await?);
    let reading = reader.subscribe(site::BLOCKED).from(Start::Latest).buffer_bytes(1).open().await?;
    let builder = client.publisher(site::BLOCKED).retry_refused(Duration::ZERO);
    let publisher = builder.open().await?;
    let mut ledger = Ledger::default();
    let (mut refusals, mut latest) = (0, Duration::ZERO);
    while Instant::now() < until {
        let begun = Instant::now();
        let batch = (0..BATCH).map(|at| record(0, 0, at, RECORD_BYTES)).collect();
        let outcome = match publisher.send_batch(batch, None).await {
            Ok(receipt) => receipt.await.map(drop),
            Err(error) => Err(error),
        };
        if outcome.as_ref().is_err_and(is_overloaded) {
            refusals += 1;
            latest = latest.max(begun.elapsed().saturating_sub(site::QUEUE_WAIT));
        }
        flooded(&mut ledger, &outcome);
    }
    drop(reading);
    publisher.close().await?;
    client.close().await;
    reader.close().await;
    Ok((refusals, latest, ledger))
}
