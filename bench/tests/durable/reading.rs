//! Readers of one stream. Scope: one subscription each.
//! Invariants: each event is recognized as it comes, in offset order without a gap; what was seen once stays seen, and a
//! record that a broker's death took back would show as another one at its offset.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use felix_sdk::{Client, Start, Subscription};
use tokio::task::JoinHandle;

use super::DEADLINE;
use super::ledger::{Content, Ledger};

/// The stream's records from the oldest one up to and with the offset `ends` names of each shard.
///
/// # Errors
/// Something that is no record of the ledger, a gap, or no end in time.
pub async fn read(
    client: &Client,
    stream: &str,
    ledger: &Mutex<Ledger>,
    ends: &BTreeMap<u32, u64>,
) -> Result<Content, String> {
    let opened = client.subscribe(stream).from(Start::Earliest).open().await;
    let mut events = opened.map_err(|error| format!("subscribe: {error}"))?;
    let mut content = Content::new();
    let reading = async {
        while !reaches(&content, ends) {
            take(&mut events, ledger, |shard, offset, name| {
                content.entry(shard).or_default().insert(offset, name);
            })
            .await?;
        }
        Ok(())
    };
    let ended = tokio::time::timeout(DEADLINE, reading).await;
    ended.unwrap_or_else(|_| Err("no end in time".to_owned())).map_err(|why: String| {
        let got: BTreeMap<_, _> = content.iter().map(|(shard, held)| (shard, held.len())).collect();
        format!("{why}; {got:?} of {ends:?}")
    })?;
    Ok(content)
}

fn reaches(content: &Content, ends: &BTreeMap<u32, u64>) -> bool {
    let held = |shard| content.get(shard).and_then(|held| held.last_key_value()).map(|(offset, _)| *offset);
    ends.iter().all(|(shard, end)| held(shard) >= Some(*end))
}

async fn take(
    events: &mut Subscription,
    ledger: &Mutex<Ledger>,
    mut keep: impl FnMut(u32, u64, super::ledger::Name),
) -> Result<(), String> {
    let event = events.next().await.ok_or("the subscription ended")?.map_err(|error| error.to_string())?;
    let offset = event.offset.ok_or("an event without an offset")?.get();
    if event.skipped > 0 {
        return Err(format!("shard {}: {} offsets skipped before {offset}", event.shard, event.skipped));
    }
    let name = ledger.lock().unwrap().recognize(event.shard, offset, &event.payload)?;
    keep(event.shard, offset, name);
    Ok(())
}

/// A subscription that goes on through deaths of the broker.
pub struct Live {
    seen: Arc<Mutex<Content>>,
    task: JoinHandle<String>,
}

impl Live {
    /// Subscribes to what is published from now on, which is everything when nothing has been published.
    pub async fn open(client: &Client, stream: &str, ledger: Arc<Mutex<Ledger>>) -> Live {
        let mut events = client.subscribe(stream).open().await.unwrap();
        let seen = Arc::new(Mutex::new(Content::new()));
        let seeing = seen.clone();
        let task = tokio::spawn(async move {
            loop {
                let next = |seen: &Content, shard| {
                    let held = seen.get(&shard).and_then(|held| held.last_key_value());
                    held.map_or(0, |(last, _)| last + 1)
                };
                let mut wrong = None;
                let taken = take(&mut events, &ledger, |shard, offset, name| {
                    let mut seen = seeing.lock().unwrap();
                    let expected = next(&seen, shard);
                    if offset != expected {
                        wrong = Some(format!("shard {shard}: offset {offset} came, {expected} was next"));
                    }
                    seen.entry(shard).or_default().insert(offset, name);
                })
                .await;
                if let Some(why) = wrong.or(taken.err()) {
                    return why;
                }
            }
        });
        Live { seen, task }
    }

    /// Waits until it has seen the offset `ends` names of each shard; what it has seen.
    ///
    /// # Errors
    /// It ended, or does not get there.
    pub async fn reached(&mut self, ends: &BTreeMap<u32, u64>) -> Result<Content, String> {
        let end = Instant::now() + DEADLINE;
        loop {
            if reaches(&self.seen.lock().unwrap(), ends) {
                return Ok(self.seen.lock().unwrap().clone());
            }
            if self.task.is_finished() {
                return Err((&mut self.task).await.unwrap_or_else(|error| error.to_string()));
            }
            if Instant::now() > end {
                let seen = self.seen.lock().unwrap();
                let got: BTreeMap<_, _> = seen.iter().map(|(shard, held)| (shard, held.len())).collect();
                return Err(format!("the live reader is at {got:?} of {ends:?}"));
            }
            tokio::time::sleep(super::LOOK).await;
        }
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.task.abort();
    }
}
