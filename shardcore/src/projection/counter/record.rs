//! What a record of a counter log says. Scope: values.
//! Owns: the layout (`docs/log-format.md`): version 1, kind (1 add, 2 checkpoint, 3 producers, 4 answers); of an add the
//! length of the key (2), delta (8), sum (8), key; of a checkpoint length of the key (2), sum (8), key; of producers their
//! snapshot; of each answer the offset of its add (8) and the sum (8).
//! Invariants: no bytes panic; what is decoded encodes to the same bytes.
//! Not here: the snapshot of producers (`producer::snapshot`).
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use felix_wire::id::Offset;

use crate::projection::producer::Digest;
use crate::projection::record::{Fields, KEY_BYTES_MAX, RECORD_VERSION, RecordFault};

const ADD: u8 = 1;
const CHECKPOINT: u8 = 2;
const PRODUCERS: u8 = 3;
const ANSWERS: u8 = 4;

/// Bytes of one answer.
pub const ANSWER_BYTES: usize = 16;
/// An answer as it is stored: the offset of its add, and the sum.
pub type AnswerBytes = [u8; ANSWER_BYTES];

/// One record of a counter log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CounterRecord<'a> {
    /// `delta` was added, which gave `sum`. The sum is kept so that every add can be answered again, and so that a log
    /// whose beginning is gone still says it.
    Add { key: &'a [u8], delta: i64, sum: i64 },
    /// The counter stands at `sum`: nothing was added.
    Checkpoint { key: &'a [u8], sum: i64 },
    /// What is remembered of producers, as of this record.
    Producers { snapshot: &'a [u8] },
    /// What numbered adds were answered that may be gone from the log.
    Answers { answers: &'a [AnswerBytes] },
}

impl<'a> CounterRecord<'a> {
    /// Reads the payload of a record.
    ///
    /// # Errors
    /// What is wrong with it first.
    pub fn decode(payload: &'a [u8]) -> Result<CounterRecord<'a>, RecordFault> {
        let (kind, mut fields) = Fields::open(payload)?;
        if kind == PRODUCERS {
            return Ok(CounterRecord::Producers { snapshot: fields.rest() });
        }
        if kind == ANSWERS {
            let (answers, rest) = fields.rest().as_chunks();
            return if rest.is_empty() {
                Ok(CounterRecord::Answers { answers })
            } else {
                Err(RecordFault::Short)
            };
        }
        if !matches!(kind, ADD | CHECKPOINT) {
            return Err(RecordFault::Kind(kind));
        }
        let key_len = usize::from(fields.u16()?);
        let delta = if kind == ADD { Some(fields.i64()?) } else { None };
        let sum = fields.i64()?;
        let key = fields.bytes(key_len)?;
        fields.end()?;
        Ok(match delta {
            Some(delta) => CounterRecord::Add { key, delta, sum },
            None => CounterRecord::Checkpoint { key, sum },
        })
    }

    /// Appends it to `out`.
    ///
    /// # Panics
    /// When the key is longer than [`KEY_BYTES_MAX`].
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            CounterRecord::Add { key, delta, sum } => {
                head(out, ADD, key);
                out.extend_from_slice(&delta.to_le_bytes());
                out.extend_from_slice(&sum.to_le_bytes());
                out.extend_from_slice(key);
            }
            CounterRecord::Checkpoint { key, sum } => {
                head(out, CHECKPOINT, key);
                out.extend_from_slice(&sum.to_le_bytes());
                out.extend_from_slice(key);
            }
            CounterRecord::Producers { snapshot } => {
                out.extend_from_slice(&[RECORD_VERSION, PRODUCERS]);
                out.extend_from_slice(snapshot);
            }
            CounterRecord::Answers { answers } => {
                out.extend_from_slice(&[RECORD_VERSION, ANSWERS]);
                out.extend_from_slice(answers.as_flattened());
            }
        }
    }
}

fn head(out: &mut Vec<u8>, kind: u8, key: &[u8]) {
    assert!(key.len() <= KEY_BYTES_MAX, "a key of {} bytes", key.len());
    out.extend_from_slice(&[RECORD_VERSION, kind]);
    out.extend_from_slice(&(key.len() as u16).to_le_bytes());
}

/// An answer as it is stored.
pub fn answer_bytes(at: Offset, sum: i64) -> AnswerBytes {
    (u128::from(at.0) | u128::from(sum.cast_unsigned()) << u64::BITS).to_le_bytes()
}

/// The offset of its add, and the sum.
pub fn answer_of(bytes: &AnswerBytes) -> (Offset, i64) {
    let both = u128::from_le_bytes(*bytes);
    (Offset(both as u64), (both >> u64::BITS) as i64)
}

/// Bytes of the record of an add.
pub fn add_len(key: usize) -> usize {
    20 + key
}

/// What tells an add that is sent again from another one: key and delta, not the sum, which the sender does not know.
pub fn digest(key: &[u8], delta: i64) -> Digest {
    Digest::of([key, &delta.to_le_bytes()])
}
