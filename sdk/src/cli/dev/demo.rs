//! The demonstration: a real file goes through the broker, record by record, while a subscriber puts it together again;
//! then the broker is killed under a stream on disk (`demo/durable`). Scope: per `felix dev --demo`.
//! Invariants: success means that every byte came back, each record once, and in order within each shard.

mod durable;

use std::path::Path;
use std::time::{Duration, Instant};

use bytes::{BufMut, Bytes, BytesMut};

use super::cluster::{BrokerKiller, connect};
use super::print;
use super::seed::{self, Seed};
use crate::cli::api::Api;
use crate::cli::dev_file::DevFile;
use crate::cli::failure::{Failure, Outcome};
use crate::cli::settings::Secret;
use crate::client::Client;
use crate::subscribe::Subscription;

/// Stream of the demonstration.
const STREAM: &str = "demo-file";
const SHARDS: u32 = 4;
/// Keys the records are spread over.
const KEYS: usize = 64;
/// Bytes of the file in one record.
const CHUNK_BYTES: usize = 4_096;
/// In front of them: the number of the chunk, most significant byte first.
const NUMBER_BYTES: usize = 8;
/// Receipts looked at together.
const RECEIPTS: usize = 1_024;
/// Nothing arrives for this long: something is lost.
const SILENCE: Duration = Duration::from_secs(10);

/// Publishes the file, checks what comes back, and prints what happened; first in memory, then on disk. Runs on a runtime
/// of its own threads.
///
/// # Errors
/// What kept a byte from arriving.
pub fn run(path: &Path, file: &DevFile, killer: &BrokerKiller) -> Outcome {
    let content =
        std::fs::read(path).map_err(|error| Failure::usage(format!("{}: {error}", path.display())))?;
    let content = Bytes::from(content);
    let secret = Secret::File(file.controlplane_token_file.clone());
    let api = Api::bearer(&file.controlplane_url, secret)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.map_err(|error| Failure::other(error.to_string()))?;
    let client = runtime.block_on(connect(file))?;
    seed::stream(&api, Seed { name: STREAM, shards: SHARDS, durable: false })?;
    print(&runtime.block_on(in_memory(&client, path, &content))?);
    if seed::delete(&api, durable::STREAM)? {
        runtime.block_on(durable::gone(&client))?;
    }
    seed::stream(&api, Seed { name: durable::STREAM, shards: SHARDS, durable: true })?;
    print(&runtime.block_on(durable::run(&client, &content, killer))?.to_string());
    runtime.block_on(client.close());
    Ok(())
}

async fn in_memory(client: &Client, path: &Path, content: &Bytes) -> Outcome<String> {
    let subscription = client.subscribe(STREAM).open().await?;
    let started = Instant::now();
    let check = Check::new(content.clone());
    let reading = tokio::spawn(async move {
        let checked = read(subscription, check).await;
        checked.map(|()| started.elapsed())
    });
    publish(client, content).await?;
    let published = started.elapsed();
    let read = reading.await.map_err(|error| Failure::other(error.to_string()))??;
    Ok(report(path, content.len(), published, read))
}

/// A chunk of the file with its number. Empty behind the end.
fn record_of(content: &Bytes, number: usize) -> Bytes {
    let from = (number * CHUNK_BYTES).min(content.len());
    let chunk = &content[from..content.len().min(from + CHUNK_BYTES)];
    let mut record = BytesMut::with_capacity(NUMBER_BYTES + chunk.len());
    record.put_u64(number as u64);
    record.put_slice(chunk);
    record.freeze()
}

fn key_of(number: usize) -> Bytes {
    Bytes::from((number % KEYS).to_string())
}

async fn publish(client: &Client, content: &Bytes) -> Outcome {
    let publisher = client.publisher(STREAM).open().await?;
    let mut receipts = Vec::with_capacity(RECEIPTS);
    for number in 0..content.len().div_ceil(CHUNK_BYTES) {
        receipts.push(publisher.send(record_of(content, number), key_of(number)).await?);
        if receipts.len() == RECEIPTS {
            for receipt in receipts.drain(..) {
                receipt.await?;
            }
        }
    }
    for receipt in receipts {
        receipt.await?;
    }
    Ok(publisher.close().await?)
}

async fn read(mut subscription: Subscription, mut check: Check) -> Outcome {
    while check.missing > 0 {
        let next = tokio::time::timeout(SILENCE, subscription.next())
            .await
            .map_err(|_| Failure::other(format!("{} records did not arrive", check.missing)))?;
        let event = next.ok_or_else(|| Failure::other("the subscription ended early"))??;
        check.record(event.shard, &event.payload)?;
    }
    Ok(())
}

/// Compares what arrives with the file.
struct Check {
    content: Bytes,
    arrived: Vec<bool>,
    missing: usize,
    /// Number of the last chunk of each shard.
    last: [Option<u64>; SHARDS as usize],
}

impl Check {
    fn new(content: Bytes) -> Check {
        let chunks = content.len().div_ceil(CHUNK_BYTES);
        Check { content, arrived: vec![false; chunks], missing: chunks, last: [None; SHARDS as usize] }
    }

    /// A record that arrived. Gives its number.
    fn record(&mut self, shard: u32, payload: &[u8]) -> Outcome<usize> {
        let wrong = |what: &str| Err(Failure::other(format!("shard {shard}: {what}")));
        let Some((number, bytes)) = payload.split_first_chunk::<NUMBER_BYTES>() else {
            return wrong("a record has no number");
        };
        let number = u64::from_be_bytes(*number);
        let index = usize::try_from(number).unwrap_or(usize::MAX);
        let Some(arrived) = self.arrived.get_mut(index) else { return wrong("a record is of no chunk") };
        if std::mem::replace(arrived, true) {
            return wrong("a record came twice");
        }
        let from = index * CHUNK_BYTES;
        if self.content[from..self.content.len().min(from + CHUNK_BYTES)] != *bytes {
            return wrong("a record has other bytes than the file");
        }
        let Some(last) = self.last.get_mut(shard as usize) else { return wrong("there is no such shard") };
        if last.is_some_and(|last| last >= number) {
            return wrong("records came in another order");
        }
        *last = Some(number);
        self.missing -= 1;
        Ok(index)
    }
}

fn report(path: &Path, bytes: usize, published: Duration, read: Duration) -> String {
    let mib = bytes as f64 / f64::from(1 << 20);
    let records = bytes.div_ceil(CHUNK_BYTES);
    let rate = |time: Duration| {
        let seconds = time.as_secs_f64().max(1e-9);
        format!("{:8.1} MiB/s {:9.0} records/s  ({seconds:.3} s)", mib / seconds, records as f64 / seconds)
    };
    format!(
        "{}: {mib:.1} MiB in {records} records over {SHARDS} shards\n  published, every record acknowledged  {}\n  \
         read by a subscriber meanwhile        {}\n  every byte arrived once, in order within each shard",
        path.display(),
        rate(published),
        rate(read),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(number: u64, bytes: &[u8]) -> Vec<u8> {
        [&number.to_be_bytes()[..], bytes].concat()
    }

    #[test]
    fn lost_repeated_reordered_and_changed_records_are_noticed() {
        let content: Vec<u8> = (0..3 * CHUNK_BYTES + 5).map(|at| (at % 251) as u8).collect();
        let chunk = |number: usize| content.chunks(CHUNK_BYTES).nth(number).unwrap();
        let check = || Check::new(Bytes::from(content.clone()));
        let mut good = check();
        for (shard, number) in [(0, 0), (1, 3), (0, 1), (2, 2)] {
            good.record(shard, &record(number as u64, chunk(number))).unwrap();
        }
        assert_eq!(good.missing, 0);
        let mut repeated = check();
        repeated.record(0, &record(0, chunk(0))).unwrap();
        assert!(repeated.record(0, &record(0, chunk(0))).is_err());
        let mut reordered = check();
        reordered.record(0, &record(1, chunk(1))).unwrap();
        assert!(reordered.record(0, &record(0, chunk(0))).is_err());
        assert!(check().record(0, &record(0, chunk(1))).is_err());
        assert!(check().record(0, &record(4, b"")).is_err());
        assert!(check().record(0, &record(3, b"")).is_err());
        assert!(check().record(0, b"short").is_err());
        assert_eq!(check().missing, 4);
    }
}
