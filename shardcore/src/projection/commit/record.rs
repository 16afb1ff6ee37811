//! What a record of an atomic commit says. Scope: values.
//! Owns: the layout (`docs/log-format.md`): version 1, kind 1, length of the event (4), number of changes (4), the event,
//! then each change: code (1 put, 2 delete), length of the key (2), of a put length of the value (4), key, value. Such
//! records are in batches of kind 3 (commit) of a stream's log.
//! Invariants: no bytes panic; what is decoded encodes to the same bytes.
//! Not here: what the changes do (`super`).
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use bytes::Bytes;

use crate::projection::record::{Fields, KEY_BYTES_MAX, RECORD_VERSION, RecordFault};

const COMMIT: u8 = 1;
const PUT: u8 = 1;
const DELETE: u8 = 2;
const HEAD_BYTES: usize = 10;
/// Bytes of the shortest change.
const CHANGE_BYTES_MIN: usize = 3;

/// One change of the state of a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StateChange<'a> {
    Put { key: &'a [u8], value: &'a [u8] },
    Delete { key: &'a [u8] },
}

impl<'a> StateChange<'a> {
    /// The key it is of.
    pub fn key(&self) -> &'a [u8] {
        match self {
            StateChange::Put { key, .. } | StateChange::Delete { key } => key,
        }
    }

    /// The value it puts.
    pub fn value(&self) -> Option<&'a [u8]> {
        match self {
            StateChange::Put { value, .. } => Some(value),
            StateChange::Delete { .. } => None,
        }
    }

    fn read(fields: &mut Fields<'a>) -> Result<StateChange<'a>, RecordFault> {
        let (code, key_len) = (fields.u8()?, usize::from(fields.u16()?));
        match code {
            PUT => {
                let value_len = fields.u32()? as usize;
                Ok(StateChange::Put { key: fields.bytes(key_len)?, value: fields.bytes(value_len)? })
            }
            DELETE => Ok(StateChange::Delete { key: fields.bytes(key_len)? }),
            other => Err(RecordFault::Kind(other)),
        }
    }
}

/// A commit: an event and the changes that go with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommitRecord<'a> {
    pub event: &'a [u8],
    /// In the order in which they apply.
    pub changes: Vec<StateChange<'a>>,
}

/// Why a commit cannot be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CommitRefused {
    #[error("a key has at most {KEY_BYTES_MAX} bytes")]
    KeyTooLong,
    #[error("a commit has at most {bytes_max} bytes")]
    TooLarge { bytes_max: usize },
}

impl<'a> CommitRecord<'a> {
    /// Reads the payload of a record.
    ///
    /// # Errors
    /// What is wrong with it first.
    pub fn decode(payload: &'a [u8]) -> Result<CommitRecord<'a>, RecordFault> {
        let (event, count, mut fields) = open(payload)?;
        // The count is believed as far as there are bytes for it.
        if count > fields.left() / CHANGE_BYTES_MIN {
            return Err(RecordFault::Short);
        }
        let mut changes = Vec::with_capacity(count);
        for _ in 0..count {
            changes.push(StateChange::read(&mut fields)?);
        }
        fields.end()?;
        Ok(CommitRecord { event, changes })
    }

    /// Bytes it encodes to.
    pub fn encoded_len(&self) -> usize {
        let change = |change: &StateChange<'_>| match change {
            StateChange::Put { key, value } => 7 + key.len() + value.len(),
            StateChange::Delete { key } => 3 + key.len(),
        };
        HEAD_BYTES + self.event.len() + self.changes.iter().map(change).sum::<usize>()
    }

    /// Its bytes.
    ///
    /// # Errors
    /// When a key is too long, or all of it is longer than `bytes_max`, which is at most 4 GiB.
    pub fn encode(&self, bytes_max: usize) -> Result<Bytes, CommitRefused> {
        let len = self.encoded_len();
        if len > bytes_max || u32::try_from(len).is_err() {
            return Err(CommitRefused::TooLarge { bytes_max });
        }
        if self.changes.iter().any(|change| change.key().len() > KEY_BYTES_MAX) {
            return Err(CommitRefused::KeyTooLong);
        }
        let mut out = Vec::with_capacity(len);
        out.extend_from_slice(&[RECORD_VERSION, COMMIT]);
        out.extend_from_slice(&(self.event.len() as u32).to_le_bytes());
        out.extend_from_slice(&(self.changes.len() as u32).to_le_bytes());
        out.extend_from_slice(self.event);
        for change in &self.changes {
            out.push(if change.value().is_some() { PUT } else { DELETE });
            out.extend_from_slice(&(change.key().len() as u16).to_le_bytes());
            if let Some(value) = change.value() {
                out.extend_from_slice(&(value.len() as u32).to_le_bytes());
            }
            out.extend_from_slice(change.key());
            out.extend_from_slice(change.value().unwrap_or_default());
        }
        Ok(Bytes::from(out))
    }
}

/// The event of a commit, which is what subscribers and groups see of it; shares the payload's memory.
///
/// # Errors
/// When the payload does not reach to the end of the event.
pub fn event_of(payload: &Bytes) -> Result<Bytes, RecordFault> {
    let (event, _, _) = open(payload)?;
    Ok(payload.slice_ref(event))
}

/// The event, the number of changes, and the changes.
fn open(payload: &[u8]) -> Result<(&[u8], usize, Fields<'_>), RecordFault> {
    let (kind, mut fields) = Fields::open(payload)?;
    if kind != COMMIT {
        return Err(RecordFault::Kind(kind));
    }
    let (event_len, count) = (fields.u32()? as usize, fields.u32()? as usize);
    Ok((fields.bytes(event_len)?, count, fields))
}
