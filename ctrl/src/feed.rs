//! Snapshot, then changes. Scope: one feed per kind, per process.
//! Owns: the order of changes and how many are kept. Invariants: a snapshot and its `next_seq` are of one point;
//! following from there gives every change once, or a sign that some were dropped (control-plane-api 5).
//! Not here: the documents, who may read them (`api`).

use std::time::Duration;

use felix_wire::control::{Changes, Snapshot};
use serde::de::DeserializeOwned;

use crate::ledger::{Ledger, Tx, parse};
use crate::row;
use crate::store::{Key, Row, StoreError, Want, past};

/// Longest wait for a change that one request may ask for.
pub const WAIT_MAX: Duration = Duration::from_secs(25);

/// What a feed tells of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feed {
    Tenants,
    Namespaces,
    Streams,
    Caches,
    Assignments,
}

impl Feed {
    /// Every feed; `feed as usize` is its place here.
    pub const ALL: [Feed; 5] =
        [Feed::Tenants, Feed::Namespaces, Feed::Streams, Feed::Caches, Feed::Assignments];

    /// The part of keys that names the feed.
    pub fn name(self) -> &'static str {
        match self {
            Feed::Tenants => "tenants",
            Feed::Namespaces => "namespaces",
            Feed::Streams => "streams",
            Feed::Caches => "caches",
            Feed::Assignments => "assignments",
        }
    }

    fn rows(self) -> Key {
        match self {
            Feed::Tenants => row::tenants(),
            Feed::Namespaces => row::namespaces(),
            Feed::Streams => row::streams(),
            Feed::Caches => row::caches(),
            Feed::Assignments => row::assignments(),
        }
    }
}

/// The row that holds a feed's next sequence.
pub fn seq_key(feed: Feed) -> Key {
    row::counter(&format!("seq-{}", feed.name()))
}

/// Everything of one kind, and the sequence from which changes follow.
pub fn snapshot<T: DeserializeOwned>(ledger: &Ledger, feed: Feed) -> Result<Snapshot<T>, StoreError> {
    let wants = [Want::under(&feed.rows(), usize::MAX), Want::one(seq_key(feed))];
    let (items, next_seq) = rows_and_seq(ledger.read(&wants)?)?;
    Ok(Snapshot { items, next_seq })
}

/// Changes from `since` on, at most `limit`. With a page cut short `next_seq` is that of the next change.
pub fn changes<T: DeserializeOwned>(
    ledger: &Ledger,
    feed: Feed,
    since: u64,
    limit: usize,
) -> Result<Changes<T>, StoreError> {
    let until = past(&row::changes(feed));
    // One more than asked tells where the next page begins.
    let range = Want { from: row::change(feed, since), until, limit: limit.saturating_add(1) };
    let mut found = ledger.read(&[range, Want::one(seq_key(feed))])?;
    let cut = match found.first_mut() {
        Some(rows) if rows.len() > limit => rows.pop().and_then(|(key, _)| seq_of(&key)),
        _ => None,
    };
    let (items, next_seq) = rows_and_seq(found)?;
    Ok(Changes { items, next_seq: cut.unwrap_or(next_seq) })
}

/// Returns once the feed's next sequence is not `since` any more, `wait` is over, or `drain` has become true.
pub async fn wait_past(
    ledger: &Ledger,
    feed: Feed,
    since: u64,
    wait: Duration,
    mut drain: tokio::sync::watch::Receiver<bool>,
) {
    let mut next = ledger.watch(feed);
    let changed = next.wait_for(|next| *next != since);
    tokio::select! {
        _ = tokio::time::timeout(wait.min(WAIT_MAX), changed) => {}
        _ = drain.wait_for(|draining| *draining) => {}
    }
}

/// Drops what is past the bound of each feed, which may have been lowered since the entries were written.
pub fn trim_all(tx: &mut Tx<'_>) -> Result<(), StoreError> {
    for feed in Feed::ALL {
        let next: u64 = tx.get(&seq_key(feed))?.unwrap_or(0);
        let first_kept = next.saturating_sub(tx.retention_rows());
        let evicted =
            Want { from: row::changes(feed), until: row::change(feed, first_kept), limit: usize::MAX };
        for key in tx.keys(evicted)? {
            tx.delete(key);
        }
    }
    Ok(())
}

fn seq_of(key: &Key) -> Option<u64> {
    key.last_chunk::<8>().map(|bytes| u64::from_be_bytes(*bytes))
}

fn rows_and_seq<T: DeserializeOwned>(found: Vec<Vec<(Key, Row)>>) -> Result<(Vec<T>, u64), StoreError> {
    let mut found = found.into_iter();
    let rows = found.next().unwrap_or_default();
    let seq = found.next().unwrap_or_default();
    let (_, seq) = seq.first().ok_or_else(|| StoreError::Damaged("a sequence is missing".to_owned()))?;
    let items = rows.iter().map(|(_, row)| parse(row)).collect::<Result<_, _>>()?;
    Ok((items, parse(seq)?))
}
