//! One accepted send on its way. Scope: from acceptance to its settlement.
//! Owns: the records, the caller's receipt, and the part of the byte budget they use.
//! Invariants: settled at most once; an item that is dropped unsettled reads as an unknown outcome; the budget
//! is given back when the item is gone.

use bytes::Bytes;
use felix_wire::id::Offset;
use felix_wire::limits::{BATCH_RECORDS_MAX, FRAME_PAYLOAD_MAX, KEY_LEN_MAX, RECORD_LEN_MAX};
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio::time::Instant;

use crate::error::PublishError;
use crate::publish::{Published, Receipt};

/// Bytes of a publish frame besides names, key and records: request id, mode, producer and
/// sequence, lengths, count.
const FRAME_OVERHEAD: usize = 8 + 1 + 16 + 2 + 6 + 4;
/// Bytes in front of each record.
const RECORD_PREFIX: usize = 4;

/// The records of one send.
#[derive(Debug)]
pub(crate) enum Payloads {
    One(Bytes),
    Many(Vec<Bytes>),
}

impl Payloads {
    pub(crate) fn as_slice(&self) -> &[Bytes] {
        match self {
            Self::One(record) => std::slice::from_ref(record),
            Self::Many(records) => records,
        }
    }

    /// Bytes of the encoded record run.
    pub(crate) fn run_len(&self) -> usize {
        self.as_slice().iter().map(|record| RECORD_PREFIX + record.len()).sum()
    }

    /// # Errors
    /// What cannot be sent at all, whoever the broker is. `names` are the bytes of tenant, namespace and stream.
    pub(crate) fn check(&self, key: Option<&Bytes>, names: usize) -> Result<(), PublishError> {
        let records = self.as_slice();
        let limit = BATCH_RECORDS_MAX as usize;
        if records.is_empty() || records.len() > limit {
            return Err(PublishError::RecordCount { records: records.len(), limit });
        }
        let key_len = key.map_or(0, Bytes::len);
        if key_len > KEY_LEN_MAX {
            return Err(PublishError::KeyTooLong { bytes: key_len });
        }
        if let Some(record) = records.iter().find(|record| record.len() > RECORD_LEN_MAX) {
            return Err(PublishError::TooLarge { bytes: record.len(), limit: RECORD_LEN_MAX });
        }
        let frame = FRAME_OVERHEAD + names + key_len + self.run_len();
        let limit = FRAME_PAYLOAD_MAX as usize;
        if frame > limit {
            return Err(PublishError::TooLarge { bytes: frame, limit });
        }
        Ok(())
    }
}

/// One accepted send.
#[derive(Debug)]
pub(crate) struct Item {
    pub(crate) key: Option<Bytes>,
    pub(crate) payloads: Payloads,
    /// Bytes of the encoded record run.
    pub(crate) run_len: usize,
    pub(crate) accepted: Instant,
    /// Times it came back because its route or its stream's identity was outdated.
    pub(crate) returns: u32,
    done: Option<oneshot::Sender<Result<Published, PublishError>>>,
    _budget: Option<OwnedSemaphorePermit>,
}

impl Item {
    /// An item and the receipt its sender waits on; without `answered` nobody will settle the receipt, and it
    /// is ready at once.
    pub(crate) fn new(
        key: Option<Bytes>,
        payloads: Payloads,
        answered: bool,
        accepted: Instant,
        budget: Option<OwnedSemaphorePermit>,
    ) -> (Self, Receipt) {
        let (done, receipt) = if answered {
            let (done, wait) = oneshot::channel();
            (Some(done), Receipt::waiting(wait))
        } else {
            (None, Receipt::accepted())
        };
        let run_len = payloads.run_len();
        let item = Self { key, payloads, run_len, accepted, returns: 0, done, _budget: budget };
        (item, receipt)
    }

    pub(crate) fn records(&self) -> usize {
        self.payloads.as_slice().len()
    }

    /// Tells the sender; a receipt nobody waits on is no error.
    pub(crate) fn settle(self, outcome: Result<Published, PublishError>) {
        if let Some(done) = self.done {
            drop(done.send(outcome));
        }
    }
}

/// The items of one frame.
#[derive(Debug)]
pub(crate) enum Items {
    One(Item),
    Many(Vec<Item>),
}

impl Items {
    pub(crate) fn as_slice(&self) -> &[Item] {
        match self {
            Self::One(item) => std::slice::from_ref(item),
            Self::Many(items) => items,
        }
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [Item] {
        match self {
            Self::One(item) => std::slice::from_mut(item),
            Self::Many(items) => items,
        }
    }

    /// When the oldest of them was accepted.
    pub(crate) fn accepted(&self) -> Option<Instant> {
        self.as_slice().first().map(|item| item.accepted)
    }

    pub(crate) fn records(&self) -> u64 {
        self.as_slice().iter().map(|item| item.records() as u64).sum()
    }

    pub(crate) fn into_vec(self) -> Vec<Item> {
        match self {
            Self::One(item) => vec![item],
            Self::Many(items) => items,
        }
    }

    /// Every item was stored; `base` is the offset of the frame's first record.
    pub(crate) fn settle_stored(self, shard: u32, base: Option<Offset>) {
        let mut next = base;
        let mut stored = |item: Item| {
            let records = item.records() as u64;
            item.settle(Ok(Published { shard, offset: next }));
            next = next.map(|offset| Offset(offset.get() + records));
        };
        match self {
            Self::One(item) => stored(item),
            Self::Many(items) => items.into_iter().for_each(stored),
        }
    }

    /// Every item failed the same way.
    pub(crate) fn settle_failed(self, error: &PublishError) {
        match self {
            Self::One(item) => item.settle(Err(error.clone())),
            Self::Many(items) => items.into_iter().for_each(|item| item.settle(Err(error.clone()))),
        }
    }
}
