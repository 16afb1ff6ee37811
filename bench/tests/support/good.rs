//! A client that behaves, while others do not. Scope: one publisher and one subscriber on connections of their own.
//! Invariants: every record carries its number; the subscriber sees each number once and in order.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::task::JoinHandle;

use super::raw::Event;
use super::world::{NAMESPACE, TENANT, World};
use super::{until, within};

/// Between two publishes.
const PACE: Duration = Duration::from_millis(2);
/// Records it takes for a percentile to mean something.
const RECORDS_MIN: u64 = 200;

/// See the module.
pub struct Good {
    stop: Arc<AtomicBool>,
    acked: Arc<AtomicU64>,
    publisher: JoinHandle<Vec<Duration>>,
    subscriber: JoinHandle<u64>,
}

/// How it went.
#[derive(Debug)]
pub struct Undisturbed {
    pub records: u64,
    pub p99: Duration,
    pub worst: Duration,
}

impl Good {
    /// Begins to publish one acked record after the other to shard 0 of `stream`, and to read them.
    pub async fn start(world: &World, stream: &str) -> Good {
        let who = (TENANT, world.token.as_str());
        let reader = world.client_of(stream).await;
        let (_, events) = reader.subscribe(who, (NAMESPACE, stream), 0, json!("latest")).await;
        let mut events = events.expect("a subscription");
        let writer = world.client().await;
        let mut line = writer.authed(TENANT, &world.token).await;
        let stop = Arc::new(AtomicBool::new(false));
        let acked = Arc::new(AtomicU64::new(0));
        let (name, stopped, count) = (stream.to_owned(), Arc::clone(&stop), Arc::clone(&acked));
        let publisher = tokio::spawn(async move {
            let mut took = Vec::new();
            while !stopped.load(Ordering::Relaxed) {
                let began = Instant::now();
                let number = took.len() as u64;
                let ack =
                    line.publish((TENANT, NAMESPACE, &name), number + 1, &[&number.to_be_bytes()]).await;
                assert_eq!((ack.code, ack.request_id), (None, number + 1), "{ack:?}");
                took.push(began.elapsed());
                count.store(number, Ordering::Relaxed);
                tokio::time::sleep(PACE).await;
            }
            let last = line.publish((TENANT, NAMESPACE, &name), took.len() as u64 + 1, &[b"last"]).await;
            assert_eq!(last.code, None);
            drop(writer);
            took
        });
        let subscriber = tokio::spawn(async move {
            let _connection = reader;
            let mut next = 0_u64;
            loop {
                match within("an event for the good client", events.next()).await {
                    Event::Batch(_, records) => {
                        for record in records {
                            if &record[..] == b"last" {
                                return next;
                            }
                            assert_eq!(&record[..], &next.to_be_bytes(), "once and in order");
                            next += 1;
                        }
                    }
                    other => panic!("the good client's subscription: {other:?}"),
                }
            }
        });
        Good { stop, acked, publisher, subscriber }
    }

    /// Ends it, once there is enough to judge by. Everything that was acked must have arrived.
    pub async fn stop(self) -> Undisturbed {
        let enough = || self.acked.load(Ordering::Relaxed) >= RECORDS_MIN || self.publisher.is_finished();
        until("enough records", async || enough().then_some(())).await;
        self.stop.store(true, Ordering::Relaxed);
        let mut took = within("the good publisher", self.publisher).await.expect("the good publisher");
        let records = within("the good subscriber", self.subscriber).await.expect("the good subscriber");
        assert_eq!(records, took.len() as u64, "every acked record arrived");
        took.sort();
        let at = |per_cent: usize| {
            took.get(took.len() * per_cent / 100).or(took.last()).copied().unwrap_or_default()
        };
        Undisturbed { records, p99: at(99), worst: at(100) }
    }
}
