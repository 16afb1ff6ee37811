//! Rows in memory only: lost with the process. Also the image of the durable rows that `SledStore` reads from.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use super::{Batch, CommitError, Expect, Key, Row, Store, StoreError, Want};

/// The rows of a store at one point.
#[derive(Debug, Default)]
pub(super) struct Image {
    rows: BTreeMap<Key, Row>,
    /// Number of the newest commit.
    pub(super) version: u64,
}

impl Image {
    /// Puts a row that was read back from a durable store.
    pub(super) fn restore(&mut self, key: Key, row: Row) {
        self.rows.insert(key, row);
    }

    pub(super) fn read(&self, wants: &[Want]) -> Vec<Vec<(Key, Row)>> {
        wants
            .iter()
            .map(|want| {
                let from = std::ops::Bound::Included(&want.from);
                let until = std::ops::Bound::Excluded(&want.until);
                if want.from >= want.until {
                    return Vec::new();
                }
                let range = self.rows.range::<Key, _>((from, until));
                range.take(want.limit).map(|(key, row)| (key.clone(), row.clone())).collect()
            })
            .collect()
    }

    pub(super) fn holds(&self, batch: &Batch) -> bool {
        batch.expect.iter().all(|(key, expect)| match (self.rows.get(key), expect) {
            (None, Expect::Absent) => true,
            (Some(row), Expect::Version(version)) => row.version == *version,
            _ => false,
        })
    }

    pub(super) fn apply(&mut self, batch: &Batch) {
        self.version += 1;
        for (key, value) in &batch.writes {
            match value {
                Some(value) => {
                    let row = Row { version: self.version, value: Arc::clone(value) };
                    self.rows.insert(key.clone(), row);
                }
                None => {
                    self.rows.remove(key);
                }
            }
        }
    }
}

/// A store that ends with the process.
#[derive(Debug, Default)]
pub struct MemoryStore {
    image: RwLock<Image>,
}

impl Store for MemoryStore {
    fn read(&self, wants: &[Want]) -> Result<Vec<Vec<(Key, Row)>>, StoreError> {
        Ok(self.image.read().unwrap_or_else(PoisonError::into_inner).read(wants))
    }

    fn commit(&self, batch: &Batch) -> Result<(), CommitError> {
        let mut image = self.image.write().unwrap_or_else(PoisonError::into_inner);
        if !image.holds(batch) {
            return Err(CommitError::Conflict);
        }
        image.apply(batch);
        Ok(())
    }
}
