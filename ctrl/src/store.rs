//! Where the control plane keeps its rows. Scope: one store per process.
//! Owns: versioned rows under byte-string keys, read at one point and written in atomic batches.
//! Invariants: a batch is there whole or not at all; `commit` returns Ok only when the batch survives the death of the
//! process (and, for a durable store, of the machine); a reader sees only committed rows.
//! Not here: what the rows mean (`row`), who may write when (`ledger`).

mod memory;
mod sled;

use std::sync::Arc;

pub use self::memory::MemoryStore;
pub use self::sled::SledStore;

/// A key: a family and its parts, joined so that byte order is the order of listings.
pub type Key = Vec<u8>;

/// One stored value and the commit that wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Number of the commit that wrote the row; rises over the life of the store and is never used twice.
    pub version: u64,
    pub value: Arc<[u8]>,
}

/// Keys from `from` (inclusive) to `until` (exclusive), at most `limit` of them, ascending.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Want {
    pub from: Key,
    pub until: Key,
    pub limit: usize,
}

impl Want {
    /// Exactly one key.
    pub fn one(key: Key) -> Want {
        let mut until = key.clone();
        until.push(0);
        Want { from: key, until, limit: 1 }
    }

    /// Every key that starts with `prefix`, which must not end in 0xff.
    pub fn under(prefix: &[u8], limit: usize) -> Want {
        Want { from: prefix.to_vec(), until: past(prefix), limit }
    }
}

/// The first key after all that start with `prefix`.
pub fn past(prefix: &[u8]) -> Key {
    let mut until = prefix.to_vec();
    match until.last_mut() {
        Some(last) => *last = last.checked_add(1).expect("prefixes end in a separator"),
        None => unreachable!("every prefix names a family"),
    }
    until
}

/// What must hold when a batch is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// The row is there at this version.
    Version(u64),
    Absent,
}

/// Conditions and writes that are applied together or not at all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    pub expect: Vec<(Key, Expect)>,
    /// None deletes.
    pub writes: Vec<(Key, Option<Arc<[u8]>>)>,
}

/// The store cannot serve. The text is for the log, never for a client.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("the store was written by a newer version (format {found}, this program knows {known})")]
    NewerFormat { found: u32, known: u32 },
    #[error("the store is damaged: {0}")]
    Damaged(String),
    #[error("the store is in use by another process or cannot be opened: {0}")]
    Open(String),
    #[error("an earlier write failed, and nothing is written until a restart")]
    Poisoned,
    #[error("input or output failed: {0}")]
    Io(String),
}

/// Why a batch was not (knowingly) applied.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// A condition did not hold; nothing was written.
    #[error("a condition of the write no longer holds")]
    Conflict,
    /// The batch may or may not be there after a restart.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Rows behind one small surface. Calls may block on the disk: async code runs them on a blocking thread.
pub trait Store: Send + Sync {
    /// All ranges, read at one point between two commits.
    fn read(&self, wants: &[Want]) -> Result<Vec<Vec<(Key, Row)>>, StoreError>;

    /// Applies the batch if all of its conditions hold. On return it is durable.
    fn commit(&self, batch: &Batch) -> Result<(), CommitError>;
}

#[cfg(test)]
mod tests;
