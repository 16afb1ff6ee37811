//! The demonstration's second half: the file goes to a stream on disk, and the broker is killed with -9 in the middle.
//! Scope: per `felix dev --demo`.
//! Invariants: success means that every acknowledged record was read back at the offset it was acknowledged at, none
//! came twice, none is of somebody else, and the order within each shard is that of sending.

use std::fmt;
use std::pin::pin;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::task::JoinSet;

use super::{CHUNK_BYTES, Check, SHARDS, SILENCE, key_of, record_of};
use crate::cli::dev::cluster::BrokerKiller;
use crate::cli::failure::{Failure, Outcome};
use crate::client::Client;
use crate::error::PublishError;
use crate::publish::Published;
use crate::subscribe::Start;

/// Its stream. One that an earlier demonstration left is deleted first.
pub const STREAM: &str = "demo-durable";
/// Until the broker has noticed that a stream was deleted.
const GONE_TIMEOUT: Duration = Duration::from_secs(10);
const LOOK_PAUSE: Duration = Duration::from_millis(20);

/// What happened.
#[derive(Clone, Copy, Debug)]
pub struct Story {
    records: usize,
    acknowledged_at_kill: usize,
    unknown_at_kill: usize,
    published: Duration,
    read: usize,
}

/// Waits until the broker does not know the stream any more.
///
/// # Errors
/// It still does after a while.
pub async fn gone(client: &Client) -> Outcome {
    let deadline = Instant::now() + GONE_TIMEOUT;
    while client.stream_shards(STREAM).await?.shards > 0 {
        if Instant::now() >= deadline {
            return Err(Failure::other(format!("the broker still serves `{STREAM}`, which was deleted")));
        }
        tokio::time::sleep(LOOK_PAUSE).await;
    }
    Ok(())
}

/// Publishes, kills, goes on, reads back. The stream is there and empty.
///
/// # Errors
/// What was not as it must be.
pub async fn run(client: &Client, content: &Bytes, killer: &BrokerKiller) -> Outcome<Story> {
    let started = Instant::now();
    let mut sending = Sending::new(content.clone());
    let (acknowledged_at_kill, unknown_at_kill) = sending.run(client, killer).await?;
    let published = started.elapsed();
    let records = sending.places.len();
    let read = read_back(client, content, &sending.places).await?;
    Ok(Story { records, acknowledged_at_kill, unknown_at_kill, published, read })
}

type Settled = (usize, Result<Published, PublishError>);

/// The publishing side.
struct Sending {
    content: Bytes,
    /// The next record to send.
    next: usize,
    acknowledged: usize,
    waiting: JoinSet<Settled>,
    /// Where each record was acknowledged.
    places: Vec<Option<Published>>,
}

impl Sending {
    fn new(content: Bytes) -> Sending {
        let places = vec![None; content.len().div_ceil(CHUNK_BYTES)];
        Sending { content, next: 0, acknowledged: 0, waiting: JoinSet::new(), places }
    }

    /// Until everything is acknowledged. Gives how many records were acknowledged, and how many were sent and not
    /// answered, when the broker was dead.
    async fn run(&mut self, client: &Client, killer: &BrokerKiller) -> Outcome<(usize, usize)> {
        let publisher = client.publisher(STREAM).open().await?;
        let records = self.places.len();
        let half = (records / 2).max(1).min(records);
        let mut death = pin!(killer.kill());
        let mut at_death = None;
        while self.acknowledged < records || at_death.is_none() {
            // What is sent again after the kill is the publisher's business.
            let next = self.next;
            let content = &self.content;
            let send = async { publisher.send(record_of(content, next), key_of(next)).await };
            tokio::select! {
                died = &mut death, if at_death.is_none() && self.acknowledged >= half => {
                    died?;
                    at_death = Some((self.acknowledged, self.next - self.acknowledged));
                }
                Some(joined) = self.waiting.join_next() => {
                    let (number, outcome) = joined.map_err(|error| Failure::other(error.to_string()))?;
                    self.places[number] = Some(outcome?);
                    self.acknowledged += 1;
                }
                receipt = send, if next < records => {
                    let receipt = receipt?;
                    self.waiting.spawn(async move { (next, receipt.await) });
                    self.next += 1;
                }
            }
        }
        publisher.close().await?;
        Ok(at_death.unwrap_or_default())
    }
}

/// Reads everything that is there and compares it with what was acknowledged. Gives the number of records.
async fn read_back(client: &Client, content: &Bytes, places: &[Option<Published>]) -> Outcome<usize> {
    // A subscription to what comes next knows where that is.
    let ends = client.subscribe(STREAM).open().await?.positions();
    let mut subscription = client.subscribe(STREAM).from(Start::Earliest).open().await?;
    let mut check = Check::new(content.clone());
    let mut read = 0;
    while subscription.positions() != ends {
        let next = tokio::time::timeout(SILENCE, subscription.next()).await.map_err(|_| {
            Failure::other(format!("{} acknowledged records do not come back", check.missing))
        })?;
        let event = next.ok_or_else(|| Failure::other("the subscription ended early"))??;
        let number = check.record(event.shard, &event.payload)?;
        let here = Published { shard: event.shard, offset: event.offset };
        if places[number] != Some(here) {
            return Err(Failure::other(format!(
                "record {number} is at {here:?}, and was acknowledged at {:?}",
                places[number]
            )));
        }
        read += 1;
    }
    match check.missing {
        0 => Ok(read),
        missing => Err(Failure::other(format!("{missing} acknowledged records are missing"))),
    }
}

impl fmt::Display for Story {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = |f: &mut fmt::Formatter<'_>, what: &str, records: usize| {
            writeln!(f, "  {what:<60}{records:>9} records")
        };
        writeln!(
            f,
            "the same to `{STREAM}`, a stream on disk over {SHARDS} shards, whose broker is killed:"
        )?;
        line(f, "acknowledged when the broker was dead (kill -9)", self.acknowledged_at_kill)?;
        line(f, "sent and without an answer then: outcome unknown", self.unknown_at_kill)?;
        line(f, "acknowledged in the end, by the broker started again", self.records)?;
        line(f, "read back from the earliest", self.read)?;
        write!(
            f,
            "  nothing acknowledged is missing, nothing is there twice, each record is at its acknowledged offset and in \
             order\n  within its shard ({:.3} s with the broker's absence)",
            self.published.as_secs_f64()
        )
    }
}
