//! Publishers of one stream and a subscriber that checks every record. Scope: one stream for one phase.
//! Owns: the writers, the reader.
//! Invariants: a record says who wrote it and its number, and all its bytes follow from these.
//! Not here: readers that do not read (`slow`).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use felix_sdk::{Bytes, Client, Event, PublishError, Start, SubscribeError, Subscription};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::PATIENCE;
use crate::soak::SoakError;
use crate::soak::site::Site;
use crate::soak::tally::{Ledger, Part, Sequence};

/// Publishers, each with a key of its own.
const WRITERS: u32 = 4;
/// From one publish of a writer to the next, records of each, and bytes of a record.
const PACE: Duration = Duration::from_millis(20);
const BATCH: u64 = 4;
const RECORD_BYTES: usize = 512;
/// Cycle, writer, number.
const HEAD_BYTES: usize = 4 + 4 + 8;

/// The record `number` of a writer, `len` bytes and at least its head.
#[must_use]
pub fn record(cycle: u32, writer: u32, number: u64, len: usize) -> Bytes {
    let mut bytes = Vec::with_capacity(len.max(HEAD_BYTES));
    bytes.extend_from_slice(&cycle.to_be_bytes());
    bytes.extend_from_slice(&writer.to_be_bytes());
    bytes.extend_from_slice(&number.to_be_bytes());
    bytes.resize(len.max(HEAD_BYTES), fill(number));
    Bytes::from(bytes)
}

fn fill(number: u64) -> u8 {
    number.to_le_bytes()[0] ^ 0x5a
}

/// Cycle, writer and number; `None` for bytes that nobody wrote so.
fn read(record: &[u8]) -> Option<(u32, u32, u64)> {
    let (cycle, rest) = record.split_first_chunk()?;
    let (writer, rest) = rest.split_first_chunk()?;
    let (number, rest) = rest.split_first_chunk()?;
    let number = u64::from_be_bytes(*number);
    let whole = rest.iter().all(|byte| *byte == fill(number));
    whole.then(|| (u32::from_be_bytes(*cycle), u32::from_be_bytes(*writer), number))
}

/// What a writer did.
#[derive(Debug, Default)]
struct Written {
    writer: u32,
    ledger: Ledger,
    end: u64,
    /// Of those the ones that were not answered "done".
    excused: BTreeSet<u64>,
}

/// What a reader is told of one cycle, by writer.
#[derive(Debug)]
pub struct Checked {
    part: Part,
    cycle: u32,
    writers: BTreeMap<u32, Sequence>,
    pub ledger: Ledger,
}

impl Checked {
    /// Nothing yet.
    #[must_use]
    pub fn new(part: Part, cycle: u32) -> Checked {
        Checked { part, cycle, writers: BTreeMap::new(), ledger: Ledger::default() }
    }

    /// The reader is handed something. Records of earlier cycles are none of this one's.
    pub fn told(&mut self, item: Result<Event, SubscribeError>) {
        let event = match item {
            Ok(event) => event,
            Err(error) => return self.ledger.say(self.part, || error.to_string()),
        };
        match read(&event.payload) {
            Some((cycle, writer, number)) if cycle == self.cycle => {
                self.writers.entry(writer).or_default().told(number);
            }
            Some((cycle, ..)) if cycle < self.cycle => {}
            _ => self
                .ledger
                .wrong(self.part, || format!("a record of {} bytes of nobody", event.payload.len())),
        }
    }

    /// Records told so far, each once.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.writers.values().map(Sequence::count).sum()
    }

    /// How many of the first `end` records of `writer` were not told.
    #[must_use]
    pub fn missing(&self, writer: u32, end: u64, excused: &BTreeSet<u64>) -> u64 {
        self.writers.get(&writer).map_or_else(
            || Sequence::default().missing(end, excused),
            |sequence| sequence.missing(end, excused),
        )
    }

    /// Counts what was told and what came again.
    fn close(mut self, missing: u64) -> Ledger {
        let (told, repeated) = (self.count(), self.writers.values().map(|one| one.repeated).sum::<u64>());
        let tally = self.ledger.part(self.part);
        tally.told += told;
        tally.missing += missing;
        tally.repeated += repeated;
        self.ledger
    }

    /// Reads until none of `expected` (writer, end, excused) is missing, or the deadline has passed, and counts.
    pub async fn finish(mut self, from: &mut Subscription, expected: &[(u32, u64, BTreeSet<u64>)]) -> Ledger {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let missing: u64 =
                expected.iter().map(|(writer, end, excused)| self.missing(*writer, *end, excused)).sum();
            if missing == 0 {
                return self.close(0);
            }
            match tokio::time::timeout_at(deadline, from.next()).await {
                Ok(Some(item)) => self.told(item),
                Ok(None) => {
                    self.ledger.say(self.part, || "the subscription ended".to_owned());
                    return self.close(missing);
                }
                Err(_) => return self.close(missing),
            }
        }
    }
}

/// Publishes to `stream` until `until` and reads all of it.
///
/// # Errors
/// A client could not be made, or the stream is not there.
pub async fn run(
    site: &Site,
    stream: &'static str,
    part: Part,
    cycle: u32,
    until: Instant,
) -> Result<Ledger, SoakError> {
    let (reader, client) = (site.client().await?, site.client().await?);
    let mut events = reader.subscribe(stream).from(Start::Latest).open().await?;
    let mut writers = JoinSet::new();
    for writer in 0..WRITERS {
        writers.spawn(write(client.clone(), stream, part, (cycle, writer), until));
    }
    let mut checked = Checked::new(part, cycle);
    let mut whole = Ledger::default();
    let mut expected = Vec::new();
    while expected.len() < WRITERS as usize {
        tokio::select! {
            Some(item) = events.next() => checked.told(item),
            Some(written) = writers.join_next() => {
                let written = written.map_err(SoakError::Task)??;
                expected.push((written.writer, written.end, written.excused));
                whole.add(written.ledger);
            }
        }
    }
    whole.add(checked.finish(&mut events, &expected).await);
    drop(events);
    client.close().await;
    reader.close().await;
    Ok(whole)
}

async fn write(
    client: Client,
    stream: &str,
    part: Part,
    (cycle, writer): (u32, u32),
    until: Instant,
) -> Result<Written, SoakError> {
    let publisher = client.publisher(stream).open().await?;
    let key = Bytes::from(format!("writer-{writer}"));
    let mut written = Written { writer, ..Written::default() };
    let mut ticks = tokio::time::interval(PACE);
    while Instant::now() < until {
        ticks.tick().await;
        let numbers = written.end..written.end + BATCH;
        let records = numbers.clone().map(|number| record(cycle, writer, number, RECORD_BYTES)).collect();
        written.end = numbers.end;
        let outcome = match publisher.send_batch(records, key.clone()).await {
            Ok(receipt) => receipt.await.map(drop),
            Err(error) => Err(error),
        };
        if !published(&mut written.ledger, part, BATCH, &outcome) {
            written.excused.extend(numbers);
        }
    }
    publisher.close().await?;
    Ok(written)
}

/// Counts a publish of `records`. True when it was done.
pub fn published(ledger: &mut Ledger, part: Part, records: u64, outcome: &Result<(), PublishError>) -> bool {
    let tally = ledger.part(part);
    tally.asked += records;
    match outcome {
        Ok(()) => {
            tally.done += records;
            ledger.appended += records;
        }
        Err(error) if error.is_outcome_unknown() => {
            tally.unknown += records;
            ledger.maybe_appended += records;
            ledger.say(part, || error.to_string());
        }
        Err(error) => {
            tally.refused += records;
            ledger.say(part, || error.to_string());
        }
    }
    outcome.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(payload: Bytes) -> Result<Event, SubscribeError> {
        Ok(Event { shard: 0, offset: None, payload, skipped: 0 })
    }

    #[test]
    fn a_record_is_told_by_its_bytes() {
        assert_eq!(read(&record(3, 1, 700, 512)), Some((3, 1, 700)));
        assert_eq!(read(&record(3, 1, 700, 0)), Some((3, 1, 700)));
        let mut spoiled = record(3, 1, 700, 64).to_vec();
        spoiled[63] ^= 1;
        assert_eq!((read(&spoiled), read(&[0; HEAD_BYTES - 1])), (None, None));
    }

    #[test]
    fn a_record_of_another_cycle_or_of_nobody_is_not_counted() {
        let mut checked = Checked::new(Part::Durable, 2);
        for (cycle, number) in [(2, 0), (1, 9), (2, 1), (3, 2)] {
            checked.told(event(record(cycle, 0, number, 100)));
        }
        checked.told(event(Bytes::from_static(b"else")));
        assert_eq!((checked.count(), checked.missing(0, 3, &BTreeSet::new())), (2, 1));
        assert_eq!(checked.missing(7, 3, &BTreeSet::from([1])), 2, "a writer that was never told of");
        let mut ledger = checked.close(1);
        let tally = ledger.part(Part::Durable);
        assert_eq!((tally.told, tally.missing, tally.wrong), (2, 1, 2));
    }
}
