//! Reading and writing typed rows. Scope: one per process.
//! Owns: the turn to write (one writer at a time), the counters that only rise, and who is woken by a change.
//! Invariants: a decision is made on rows that are still the same when its batch is applied; feed entries are written in
//! the batch of the rows they tell of; waiters are woken only after that batch is durable.
//! Not here: what a write means (`catalog`, `registry`, `assignment`), how rows are kept (`store`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::{Mutex, watch};

use crate::feed::{self, Feed};
use crate::row;
use crate::store::{Batch, CommitError, Expect, Key, Row, Store, StoreError, Want};

/// Longest wait for the turn to write; then nothing was written and the caller is told so.
pub const TURN_WAIT_MAX: Duration = Duration::from_secs(2);
/// Decisions made anew because another writer of the same store was faster, before giving up.
const ATTEMPTS_MAX: u32 = 5;

/// Counters that survive restarts and never fall.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counter {
    /// Incarnation of the next stream or cache.
    Incarnation,
    /// Highest generation of any assignment that was deleted.
    GenerationFloor,
    /// Held by the instance that runs placement; a plan made under an older one is refused.
    PlacementToken,
}

impl Counter {
    fn key(self) -> Key {
        row::counter(match self {
            Counter::Incarnation => "incarnation",
            Counter::GenerationFloor => "generation-floor",
            Counter::PlacementToken => "placement-token",
        })
    }
}

/// Why a write that was decided did not (knowingly) happen.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// Nothing was written; safe to try again.
    #[error("the write gave up waiting for its turn; nothing was written")]
    Busy,
    /// The write may or may not be there after a restart.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The store, and the order of writing to it.
pub struct Ledger {
    store: Arc<dyn Store>,
    turn: Arc<Mutex<()>>,
    /// Next sequence of each feed, in the order of [`Feed::ALL`].
    next_seqs: [watch::Sender<u64>; Feed::ALL.len()],
    /// Entries a feed keeps.
    retention_rows: u64,
}

impl Ledger {
    /// Takes over a store. A fresh one gets counters that begin at `birth` (a wall clock in microseconds), so that
    /// sequences and incarnations rise even over a store that was thrown away.
    pub fn open(store: Arc<dyn Store>, retention_rows: u64, birth: u64) -> Result<Ledger, StoreError> {
        let mut tx = Tx::new(&*store, retention_rows);
        let mut firsts = vec![(Counter::Incarnation.key(), birth)];
        firsts.extend(Feed::ALL.map(|feed| (feed::seq_key(feed), birth)));
        for (key, first) in firsts {
            if tx.get::<u64>(&key)?.is_none() {
                tx.put(key, &first);
            }
        }
        feed::trim_all(&mut tx)?;
        let (batch, _) = tx.finish();
        match store.commit(&batch) {
            Ok(()) => {}
            Err(CommitError::Conflict) => {
                return Err(StoreError::Open("another process writes to it".into()));
            }
            Err(CommitError::Store(e)) => return Err(e),
        }
        let seqs = store.read(&Feed::ALL.map(|feed| Want::one(feed::seq_key(feed))))?;
        let mut next_seqs = Feed::ALL.map(|_| watch::Sender::new(birth));
        for (sender, rows) in next_seqs.iter_mut().zip(seqs) {
            if let Some((_, row)) = rows.first() {
                sender.send_replace(parse(row)?);
            }
        }
        Ok(Ledger { store, turn: Arc::new(Mutex::new(())), next_seqs, retention_rows })
    }

    /// One row, as it is now.
    pub fn get<T: DeserializeOwned>(&self, key: Key) -> Result<Option<T>, StoreError> {
        self.read(&[Want::one(key)])?.into_iter().flatten().next().map(|(_, row)| parse(&row)).transpose()
    }

    /// Every row under a prefix.
    pub fn list<T: DeserializeOwned>(&self, prefix: &[u8]) -> Result<Vec<T>, StoreError> {
        let rows = self.read(&[Want::under(prefix, usize::MAX)])?.into_iter().flatten();
        rows.map(|(_, row)| parse(&row)).collect()
    }

    /// Ranges at one point between two writes.
    pub fn read(&self, wants: &[Want]) -> Result<Vec<Vec<(Key, Row)>>, StoreError> {
        self.store.read(wants)
    }

    /// Decides on the rows as they are and writes the outcome. `decide` runs on a blocking thread, again when another
    /// writer was faster; on Ok the write is durable, and on its own error nothing was written.
    pub async fn write<T, E>(
        self: &Arc<Self>,
        decide: impl Fn(&mut Tx<'_>) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<WriteError> + Send + 'static,
    {
        let turn = tokio::time::timeout(TURN_WAIT_MAX, Arc::clone(&self.turn).lock_owned());
        let Ok(turn) = turn.await else { return Err(WriteError::Busy.into()) };
        let ledger = Arc::clone(self);
        let written = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            ledger.write_now(decide)
        });
        match written.await {
            Ok(result) => result,
            Err(e) => std::panic::resume_unwind(e.into_panic()),
        }
    }

    fn write_now<T, E: From<WriteError>>(
        &self,
        decide: impl Fn(&mut Tx<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        for _ in 0..ATTEMPTS_MAX {
            let mut tx = Tx::new(&*self.store, self.retention_rows);
            let decided = decide(&mut tx)?;
            let (batch, next_seqs) = tx.finish();
            if batch.writes.is_empty() {
                return Ok(decided);
            }
            match self.store.commit(&batch) {
                Ok(()) => {
                    for (sender, next) in self.next_seqs.iter().zip(next_seqs) {
                        if let Some(next) = next {
                            sender.send_replace(next);
                        }
                    }
                    return Ok(decided);
                }
                Err(CommitError::Conflict) => {}
                Err(CommitError::Store(e)) => return Err(WriteError::Store(e).into()),
            }
        }
        Err(WriteError::Busy.into())
    }

    /// Tells the next sequence of a feed, now and after every change.
    pub fn watch(&self, feed: Feed) -> watch::Receiver<u64> {
        self.next_seqs[feed as usize].subscribe()
    }
}

/// Rows as one decision sees and leaves them.
pub struct Tx<'a> {
    store: &'a dyn Store,
    expect: BTreeMap<Key, Expect>,
    writes: BTreeMap<Key, Option<Arc<[u8]>>>,
    next_seqs: [Option<u64>; Feed::ALL.len()],
    retention_rows: u64,
}

impl<'a> Tx<'a> {
    fn new(store: &'a dyn Store, retention_rows: u64) -> Tx<'a> {
        let (expect, writes) = (BTreeMap::new(), BTreeMap::new());
        Tx { store, expect, writes, next_seqs: [None; Feed::ALL.len()], retention_rows }
    }

    /// One row, own writes included. The write fails and is decided anew if the row changes meanwhile.
    pub fn get<T: DeserializeOwned>(&mut self, key: &Key) -> Result<Option<T>, StoreError> {
        if let Some(written) = self.writes.get(key) {
            return written.as_deref().map(|value| parse_value(value)).transpose();
        }
        let rows = self.store.read(&[Want::one(key.clone())])?;
        let found = rows.into_iter().flatten().next().map(|(_, row)| row);
        let expect = found.as_ref().map_or(Expect::Absent, |row| Expect::Version(row.version));
        self.expect.insert(key.clone(), expect);
        found.map(|row| parse(&row)).transpose()
    }

    /// Every committed row under a prefix, with its key. Own writes are not seen.
    pub fn list<T: DeserializeOwned>(&self, prefix: &[u8]) -> Result<Vec<(Key, T)>, StoreError> {
        let rows = self.store.read(&[Want::under(prefix, usize::MAX)])?.into_iter().flatten();
        rows.map(|(key, row)| Ok((key, parse(&row)?))).collect()
    }

    /// Keys of the committed rows in a range.
    pub fn keys(&self, want: Want) -> Result<Vec<Key>, StoreError> {
        Ok(self.store.read(&[want])?.into_iter().flatten().map(|(key, _)| key).collect())
    }

    pub fn put<T: Serialize>(&mut self, key: Key, value: &T) {
        let value = serde_json::to_vec(value).expect("documents have string keys only");
        self.writes.insert(key, Some(value.into()));
    }

    pub fn delete(&mut self, key: Key) {
        self.writes.insert(key, None);
    }

    /// The counter's value; 0 if it was never set.
    pub fn counter(&mut self, counter: Counter) -> Result<u64, StoreError> {
        Ok(self.get(&counter.key())?.unwrap_or(0))
    }

    /// Sets a counter, which may only rise.
    pub fn raise(&mut self, counter: Counter, to: u64) -> Result<(), StoreError> {
        let now = self.counter(counter)?;
        assert!(to >= now, "a counter never falls");
        if to > now {
            self.put(counter.key(), &to);
        }
        Ok(())
    }

    /// Appends to a feed the change that `make` builds for its sequence, and drops what is past the feed's bound.
    pub fn append<T: Serialize>(
        &mut self,
        feed: Feed,
        make: impl FnOnce(u64) -> T,
    ) -> Result<(), StoreError> {
        let seq: u64 = self.get(&feed::seq_key(feed))?.expect("opening the store sets every sequence");
        self.put(row::change(feed, seq), &make(seq));
        if let Some(evicted) = seq.checked_sub(self.retention_rows) {
            self.delete(row::change(feed, evicted));
        }
        self.put(feed::seq_key(feed), &(seq + 1));
        self.next_seqs[feed as usize] = Some(seq + 1);
        Ok(())
    }

    /// Entries a feed keeps.
    pub fn retention_rows(&self) -> u64 {
        self.retention_rows
    }

    fn finish(self) -> (Batch, [Option<u64>; Feed::ALL.len()]) {
        let batch =
            Batch { expect: self.expect.into_iter().collect(), writes: self.writes.into_iter().collect() };
        (batch, self.next_seqs)
    }
}

/// The document in a row.
pub fn parse<T: DeserializeOwned>(row: &Row) -> Result<T, StoreError> {
    parse_value(&row.value)
}

fn parse_value<T: DeserializeOwned>(value: &[u8]) -> Result<T, StoreError> {
    serde_json::from_slice(value).map_err(|e| StoreError::Damaged(format!("a row does not parse: {e}")))
}

#[cfg(test)]
mod tests;
