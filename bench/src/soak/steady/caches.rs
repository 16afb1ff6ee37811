//! Puts, gets, deletes and expiring values of a cache, and a watch of all its changes. Scope: one cache for one phase.
//! Owns: what is known of each key, from phase to phase.
//! Invariants: a key has one writer, which waits for each answer, so every answer follows from those before it.
//! Not here: watches that are not read (`slow`).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use felix_sdk::{Bytes, Cache, Watch, WatchError, WatchItem};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::{PATIENCE, count};
use crate::soak::SoakError;
use crate::soak::site::{self, Site};
use crate::soak::tally::{Ledger, Part, Sequence};

const WRITERS: usize = 4;
const KEYS: usize = 32;
const PACE: Duration = Duration::from_millis(5);
const VALUE_BYTES: usize = 256;
/// Life of a value that expires, and after which it is certainly over.
const LIFE: Duration = Duration::from_millis(200);
const OVER: Duration = Duration::from_millis(260);
/// What the watched keys begin with; those whose values expire do not.
const PREFIX: &str = "k/";

/// The keys of all writers.
#[derive(Debug, Default)]
pub struct Keys(Vec<Writer>);

/// The keys of one writer.
#[derive(Debug, Clone, Default)]
struct Writer {
    number: usize,
    keys: BTreeMap<usize, Key>,
    /// Changes whose outcome is not known, of this phase.
    excused: BTreeMap<String, BTreeSet<u64>>,
    step: usize,
    /// A value that expires: its key, and when it is over.
    expiring: Option<(String, Instant)>,
}

/// What is known of a key.
#[derive(Debug, Clone, Default)]
struct Key {
    /// Changes so far, of the phases before this one too.
    changes: u64,
    /// What it may have, by the number of the change; one of these.
    may_have: Vec<Option<u64>>,
}

impl Key {
    /// A change is done.
    fn is(&mut self, value: Option<u64>) {
        self.may_have = vec![value];
    }

    /// A change may be done.
    fn may_be(&mut self, value: Option<u64>) {
        if self.may_have.is_empty() {
            self.may_have.push(None);
        }
        self.may_have.push(value);
    }

    /// Whether a value that was read is one that the key may have; from now on it is that one.
    fn agrees(&mut self, value: Option<u64>) -> bool {
        let agrees = if self.may_have.is_empty() { value.is_none() } else { self.may_have.contains(&value) };
        self.is(value);
        agrees
    }

    fn has_value(&self) -> bool {
        matches!(self.may_have[..], [Some(_)])
    }
}

fn name(writer: usize, key: usize) -> String {
    format!("{PREFIX}{writer}/{key}")
}

fn value(number: u64) -> Bytes {
    let mut bytes = number.to_be_bytes().to_vec();
    bytes.resize(VALUE_BYTES, number.to_le_bytes()[0]);
    Bytes::from(bytes)
}

/// The number of the change that a value is of; `u64::MAX` for bytes that nobody wrote.
fn number(value: &[u8]) -> u64 {
    let found = value.first_chunk().map(|head| u64::from_be_bytes(*head));
    found.filter(|number| *self::value(*number) == *value).unwrap_or(u64::MAX)
}

/// Reads, writes and watches until `until`. Every key has a value afterwards.
///
/// # Errors
/// A client could not be made, or the cache is not there.
pub async fn run(site: &Site, until: Instant, keys: &mut Keys) -> Result<Ledger, SoakError> {
    let (watching, client) = (site.client().await?, site.client().await?);
    let mut watch = watching.cache(site::CACHE)?.watch_prefix(PREFIX).open().await?;
    keys.0.resize_with(WRITERS, Writer::default);
    let mut told = Told::default();
    let mut working = JoinSet::new();
    for (number, mut writer) in std::mem::take(&mut keys.0).into_iter().enumerate() {
        writer.number = number;
        writer.excused.clear();
        told.begins(&writer);
        let cache = client.cache(site::CACHE)?;
        working.spawn(async move {
            let ledger = writer.work(&cache, until).await;
            (writer, ledger)
        });
    }
    let mut whole = Ledger::default();
    while keys.0.len() < WRITERS {
        tokio::select! {
            Some(item) = watch.next_item() => told.told(item),
            Some(worked) = working.join_next() => {
                let (writer, ledger) = worked.map_err(SoakError::Task)?;
                whole.add(ledger);
                keys.0.push(writer);
            }
        }
    }
    keys.0.sort_by_key(|writer| writer.number);
    whole.add(told.finish(&mut watch, &keys.0).await);
    drop(watch);
    client.close().await;
    watching.close().await;
    Ok(whole)
}

impl Writer {
    async fn work(&mut self, cache: &Cache, until: Instant) -> Ledger {
        let mut ledger = Ledger::default();
        let mut ticks = tokio::time::interval(PACE);
        while Instant::now() < until {
            ticks.tick().await;
            let key = self.step * 7 % KEYS;
            match self.step % 8 {
                0..4 => self.put(cache, key, &mut ledger).await,
                4 | 5 => self.get(cache, key, &mut ledger).await,
                6 => self.delete(cache, key, &mut ledger).await,
                _ => self.expire(cache, &mut ledger).await,
            }
            self.step += 1;
        }
        for key in 0..KEYS {
            self.get(cache, key, &mut ledger).await;
            if !self.keys.entry(key).or_default().has_value() {
                self.put(cache, key, &mut ledger).await;
            }
        }
        if let Some((_, over)) = &self.expiring {
            tokio::time::sleep_until(*over).await;
            self.expire(cache, &mut ledger).await;
        }
        ledger
    }

    async fn put(&mut self, cache: &Cache, at: usize, ledger: &mut Ledger) {
        let key = self.keys.entry(at).or_default();
        let change = key.changes;
        let outcome = cache.put(&name(self.number, at), value(change), None).await;
        if count(ledger.part(Part::Cache), &outcome) {
            key.is(Some(change));
            key.changes += 1;
            ledger.part(Part::Watch).asked += 1;
            ledger.part(Part::Watch).done += 1;
        } else if outcome.is_err_and(|error| error.is_outcome_unknown()) {
            key.may_be(Some(change));
            key.changes += 1;
            self.excused.entry(name(self.number, at)).or_default().insert(change);
        }
    }

    async fn get(&mut self, cache: &Cache, at: usize, ledger: &mut Ledger) {
        let key = self.keys.entry(at).or_default();
        let outcome = cache.get(&name(self.number, at)).await;
        count(ledger.part(Part::Cache), &outcome);
        let Ok(entry) = outcome else { return };
        let found = entry.map(|entry| number(&entry.value));
        let known = key.may_have.clone();
        if !key.agrees(found) {
            let name = name(self.number, at);
            ledger.wrong(Part::Cache, || format!("{name} has {found:?}, it must be one of {known:?}"));
        }
    }

    async fn delete(&mut self, cache: &Cache, at: usize, ledger: &mut Ledger) {
        let key = self.keys.entry(at).or_default();
        if !key.has_value() {
            // Deleting nothing is no change.
            return self.put(cache, at, ledger).await;
        }
        let change = key.changes;
        let outcome = cache.delete(&name(self.number, at)).await;
        count(ledger.part(Part::Cache), &outcome);
        match outcome {
            Ok(found) => {
                let found = found.map(|value| number(&value));
                if !key.agrees(found) {
                    let name = name(self.number, at);
                    ledger.wrong(Part::Cache, || format!("{name} was deleted with {found:?}"));
                }
                key.is(None);
                key.changes += 1;
                ledger.part(Part::Watch).asked += 1;
                ledger.part(Part::Watch).done += 1;
            }
            Err(error) if error.is_outcome_unknown() => {
                key.may_be(None);
                key.changes += 1;
                self.excused.entry(name(self.number, at)).or_default().insert(change);
            }
            Err(_) => {}
        }
    }

    /// Looks whether the value that was to expire is over, and puts another one.
    async fn expire(&mut self, cache: &Cache, ledger: &mut Ledger) {
        if let Some((key, over)) = self.expiring.take() {
            if Instant::now() < over {
                self.expiring = Some((key, over));
                return;
            }
            let outcome = cache.get(&key).await;
            count(ledger.part(Part::Cache), &outcome);
            if matches!(outcome, Ok(Some(_))) {
                ledger.wrong(Part::Cache, || format!("{key} has a value after its life"));
            }
        }
        let key = format!("t/{}/{}", self.number, self.step % KEYS);
        let outcome = cache.put(&key, value(0), LIFE).await;
        count(ledger.part(Part::Cache), &outcome);
        self.expiring = Some((key, Instant::now() + OVER));
    }
}

/// What the watch was told, by key.
#[derive(Debug, Default)]
struct Told {
    keys: BTreeMap<String, Sequence>,
    /// Changes of each key before the watch began.
    before: BTreeMap<String, u64>,
    /// It was told that it begins anew, so what lies between was not told.
    anew: bool,
    ledger: Ledger,
}

impl Told {
    fn begins(&mut self, writer: &Writer) {
        for (key, known) in &writer.keys {
            self.before.insert(name(writer.number, *key), known.changes);
        }
    }

    fn told(&mut self, item: WatchItem) {
        let change = match item {
            WatchItem::Change(change) => change,
            WatchItem::Notice(notice) => return self.ledger.say(Part::Watch, || format!("{notice:?}")),
            WatchItem::Error(error) => {
                self.anew |= matches!(error, WatchError::BeginsAnew { .. });
                return self.ledger.say(Part::Watch, || error.to_string());
            }
        };
        if change.current {
            return;
        }
        let before = self.before.get(&change.key).copied().unwrap_or(0);
        let sequence = self.keys.entry(change.key).or_default();
        // A delete does not say which change it is: the next one.
        let number = change.value.map_or(Some(sequence.next()), |value| number(&value).checked_sub(before));
        match number {
            Some(number) if number < u64::MAX - before => sequence.told(number),
            _ => self.ledger.wrong(Part::Watch, || "a change that nobody made".to_owned()),
        }
    }

    fn missing(&self, writers: &[Writer]) -> u64 {
        if self.anew {
            return 0;
        }
        let keys = writers.iter().flat_map(|writer| {
            writer
                .keys
                .iter()
                .map(move |(key, known)| (name(writer.number, *key), known.changes, &writer.excused))
        });
        keys.map(|(name, changes, excused)| {
            let before = self.before.get(&name).copied().unwrap_or(0);
            let excused = excused.get(&name).into_iter().flatten().map(|number| number - before).collect();
            let sequence = self.keys.get(&name).cloned().unwrap_or_default();
            sequence.missing(changes - before, &excused)
        })
        .sum()
    }

    async fn finish(mut self, watch: &mut Watch, writers: &[Writer]) -> Ledger {
        let deadline = Instant::now() + PATIENCE;
        let mut missing = self.missing(writers);
        while missing > 0 {
            match tokio::time::timeout_at(deadline, watch.next_item()).await {
                Ok(Some(item)) => self.told(item),
                Ok(None) | Err(_) => break,
            }
            missing = self.missing(writers);
        }
        let tally = self.ledger.part(Part::Watch);
        tally.missing += missing;
        tally.told += self.keys.values().map(Sequence::count).sum::<u64>();
        tally.repeated += self.keys.values().map(|sequence| sequence.repeated).sum::<u64>();
        self.ledger
    }
}

#[cfg(test)]
mod tests {
    use felix_sdk::{Change, Offset};

    use super::*;

    #[test]
    fn a_value_says_which_change_it_is_of() {
        assert_eq!(number(&value(0)), 0);
        assert_eq!(number(&value(77_000)), 77_000);
        assert_eq!(number(b"short"), u64::MAX);
        let mut spoiled = value(5).to_vec();
        spoiled[100] ^= 1;
        assert_eq!(number(&spoiled), u64::MAX);
    }

    #[test]
    fn a_key_has_one_of_what_is_known_of_it() {
        let mut key = Key::default();
        assert!(key.agrees(None) && !key.agrees(Some(3)));
        key.is(Some(4));
        key.may_be(Some(5));
        assert!(!key.has_value() && key.agrees(Some(5)) && key.has_value());
        assert!(!key.agrees(Some(4)), "what was seen to be done is done");
    }

    #[test]
    fn a_watch_must_be_told_each_change_of_the_phase_once() {
        let writer = |changes| Writer {
            keys: [(0, Key { changes, may_have: vec![Some(changes - 1)] })].into(),
            ..Writer::default()
        };
        let change = |value: Option<Bytes>| {
            WatchItem::Change(Change {
                shard: 0,
                key: name(0, 0),
                value,
                offset: Offset(1),
                expires_at: None,
                current: false,
            })
        };
        let mut told = Told::default();
        told.begins(&writer(10));
        told.told(change(Some(value(10))));
        told.told(change(None));
        told.told(change(Some(value(12))));
        assert_eq!(told.missing(&[writer(13)]), 0);
        assert_eq!(told.missing(&[writer(15)]), 2);
        told.told(change(Some(value(14))));
        assert_eq!(told.missing(&[writer(15)]), 1);
        told.told(change(Some(value(9))));
        assert_eq!(told.ledger.part(Part::Watch).wrong, 1, "a change of before the watch");
    }
}
