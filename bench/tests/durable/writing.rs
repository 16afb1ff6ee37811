//! A writer with known contents and many batches in flight. Scope: one per stream.
//! Owns: the publisher and the receipts that have not been looked at.
//! Invariants: every send ends in the ledger, whatever became of it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use felix_sdk::{BatchLimits, Client, Idempotence, Publisher, Receipt};
use rand::Rng;
use rand::rngs::StdRng;

use super::DEADLINE;
use super::ledger::{KEYS, Ledger, Send, key_bytes, shard_of};

/// Bytes written at full speed; after them there is one send in a while, so that a log also meets an idle core.
const BURST_BYTES: usize = 4 << 20;
/// Between two sends after the burst.
const PAUSE: Duration = Duration::from_millis(10);
/// Sends without an answer.
const IN_FLIGHT: usize = 400;

/// See the module.
pub struct Writer {
    pub ledger: Arc<Mutex<Ledger>>,
    publisher: Publisher,
    open: std::collections::VecDeque<(Send, Receipt)>,
}

impl Writer {
    /// Publishes to a stream; `numbered` with a producer, whose sends survive the broker.
    pub async fn open(client: &Client, stream: &str, numbered: bool, ledger: Ledger) -> Writer {
        let builder = client.publisher(stream);
        let builder = if numbered {
            builder.idempotent(Idempotence::On)
        } else {
            builder.idempotent(Idempotence::Off).retry_refused(Duration::ZERO)
        };
        let limits = BatchLimits { max_records: 64, ..BatchLimits::default() };
        let publisher = builder.batch(limits).open().await.unwrap();
        Writer { ledger: Arc::new(Mutex::new(ledger)), publisher, open: std::collections::VecDeque::new() }
    }

    /// Sends until `stop` is over.
    ///
    /// # Errors
    /// An answer that cannot be.
    pub async fn write_until(
        &mut self,
        rng: &mut StdRng,
        stop: impl Future<Output = ()>,
    ) -> Result<(), String> {
        tokio::pin!(stop);
        let mut bytes = 0;
        loop {
            tokio::select! {
                biased;
                () = &mut stop => return Ok(()),
                sent = self.send(rng, bytes < BURST_BYTES) => bytes += sent?,
            }
        }
    }

    async fn send(&mut self, rng: &mut StdRng, fast: bool) -> Result<usize, String> {
        if !fast {
            tokio::time::sleep(PAUSE).await;
        }
        while self.open.len() >= IN_FLIGHT {
            // Looked at in place: a cancelled wait loses nothing.
            let Some((send, receipt)) = self.open.front_mut() else { break };
            let (send, outcome) = (*send, receipt.await);
            self.open.pop_front();
            self.ledger.lock().unwrap().settle(send, &outcome)?;
        }
        let count = if rng.random_ratio(1, 20) { rng.random_range(50..200) } else { rng.random_range(1..12) };
        self.publish(rng.random_range(0..KEYS), count).await
    }

    /// A send that is cancelled before it was accepted has an unknown outcome, which is never that it was written.
    async fn publish(&mut self, key: u32, count: u32) -> Result<usize, String> {
        let (send, records) = self.ledger.lock().unwrap().make(key, count);
        let bytes = records.iter().map(|record| record.len()).sum();
        let refused = Refused { ledger: self.ledger.clone(), send: Some(send) };
        let receipt = self.publisher.send_batch(records, key_bytes(key)).await;
        refused.accepted();
        let receipt = receipt.map_err(|error| format!("not accepted: {error}"))?;
        self.open.push_back((send, receipt));
        Ok(bytes)
    }

    /// Waits for every answer.
    ///
    /// # Errors
    /// An answer that cannot be, or none in time.
    pub async fn settle(&mut self) -> Result<(), String> {
        while let Some((send, receipt)) = self.open.pop_front() {
            let outcome = tokio::time::timeout(2 * DEADLINE, receipt).await;
            let outcome = outcome.map_err(|_| format!("{send:?} was never answered"))?;
            self.ledger.lock().unwrap().settle(send, &outcome)?;
        }
        Ok(())
    }

    /// Appends one more record to each shard; where they are.
    ///
    /// # Errors
    /// One is not taken.
    pub async fn append_to_each(&mut self) -> Result<BTreeMap<u32, u64>, String> {
        let shards = self.ledger.lock().unwrap().shards;
        let mut ends = BTreeMap::new();
        for shard in 0..shards {
            let key = (0..KEYS).find(|key| shard_of(*key, shards) == shard).expect("keys fall on all shards");
            let end = tokio::time::Instant::now() + DEADLINE;
            loop {
                let (send, records) = self.ledger.lock().unwrap().make(key, 1);
                let receipt = self.publisher.send_batch(records, key_bytes(key)).await;
                let outcome = receipt.map_err(|error| error.to_string())?.await;
                self.ledger.lock().unwrap().settle(send, &outcome)?;
                match outcome {
                    Ok(published) => {
                        let offset = published.offset.ok_or("no offset")?.get();
                        ends.insert(shard, offset);
                        break;
                    }
                    // Without a producer nothing is sent twice: the next one may be taken.
                    Err(error) if tokio::time::Instant::now() > end => {
                        return Err(format!("the next append to shard {shard}: {error}"));
                    }
                    Err(_) => tokio::time::sleep(super::LOOK).await,
                }
            }
        }
        Ok(ends)
    }
}

/// Settles a send that was never accepted, when its future is dropped while it waits for room.
struct Refused {
    ledger: Arc<Mutex<Ledger>>,
    send: Option<Send>,
}

impl Refused {
    fn accepted(mut self) {
        self.send = None;
    }
}

impl Drop for Refused {
    fn drop(&mut self) {
        if let Some(send) = self.send {
            let never = Err(felix_sdk::PublishError::Closed);
            let _ = self.ledger.lock().unwrap().settle(send, &never);
        }
    }
}
