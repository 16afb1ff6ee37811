//! What a record of a cache log says. Scope: values.
//! Owns: the layout (`docs/log-format.md`): version 1, kind (1 put, 2 delete, 3 copy), length of the key (2), then of a put
//! the expiry (8), of a copy expiry (8) and version (8), then the key, then the value up to the end.
//! Invariants: no bytes panic; what is decoded encodes to the same bytes.
//! Not here: what a record does to the cache (`super`).
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use felix_wire::id::Offset;

use super::expiry::Expiry;
use crate::projection::record::{Fields, KEY_BYTES_MAX, RECORD_VERSION, RecordFault};

const PUT: u8 = 1;
const DELETE: u8 = 2;
const COPY: u8 = 3;

/// One record of a cache log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheRecord<'a> {
    /// The key has this value from here on; its version is the record's offset.
    Put { key: &'a [u8], value: &'a [u8], expiry: Expiry },
    /// The key has no value from here on.
    Delete { key: &'a [u8] },
    /// The value that the key has anyway, moved here by compaction: nothing changed.
    Copy { key: &'a [u8], value: &'a [u8], expiry: Expiry, version: Offset },
}

impl<'a> CacheRecord<'a> {
    /// Reads the payload of a record.
    ///
    /// # Errors
    /// What is wrong with it first.
    pub fn decode(payload: &'a [u8]) -> Result<CacheRecord<'a>, RecordFault> {
        let (kind, mut fields) = Fields::open(payload)?;
        let key_len = usize::from(fields.u16()?);
        match kind {
            PUT => {
                let expiry = Expiry::from_millis(fields.u64()?);
                Ok(CacheRecord::Put { expiry, key: fields.bytes(key_len)?, value: fields.rest() })
            }
            DELETE => {
                let key = fields.bytes(key_len)?;
                fields.end()?;
                Ok(CacheRecord::Delete { key })
            }
            COPY => {
                let expiry = Expiry::from_millis(fields.u64()?);
                let version = Offset(fields.u64()?);
                Ok(CacheRecord::Copy { expiry, version, key: fields.bytes(key_len)?, value: fields.rest() })
            }
            other => Err(RecordFault::Kind(other)),
        }
    }

    /// Appends it to `out`.
    ///
    /// # Panics
    /// When the key is longer than [`KEY_BYTES_MAX`].
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.reserve(self.encoded_len());
        let (kind, key) = match self {
            CacheRecord::Put { key, .. } => (PUT, key),
            CacheRecord::Delete { key } => (DELETE, key),
            CacheRecord::Copy { key, .. } => (COPY, key),
        };
        assert!(key.len() <= KEY_BYTES_MAX, "a key of {} bytes", key.len());
        out.extend_from_slice(&[RECORD_VERSION, kind]);
        out.extend_from_slice(&(key.len() as u16).to_le_bytes());
        match self {
            CacheRecord::Put { key, value, expiry } => {
                out.extend_from_slice(&expiry.millis().to_le_bytes());
                out.extend_from_slice(key);
                out.extend_from_slice(value);
            }
            CacheRecord::Delete { key } => out.extend_from_slice(key),
            CacheRecord::Copy { key, value, expiry, version } => {
                out.extend_from_slice(&expiry.millis().to_le_bytes());
                out.extend_from_slice(&version.0.to_le_bytes());
                out.extend_from_slice(key);
                out.extend_from_slice(value);
            }
        }
    }

    /// Bytes it encodes to.
    pub fn encoded_len(&self) -> usize {
        match self {
            CacheRecord::Put { key, value, .. } => put_len(key.len(), value.len()),
            CacheRecord::Delete { key } => 4 + key.len(),
            CacheRecord::Copy { key, value, .. } => put_len(key.len(), value.len()) + 8,
        }
    }
}

/// Bytes of the record of a put.
pub fn put_len(key: usize, value: usize) -> usize {
    12 + key + value
}
