//! Reading a batch. Scope: functions over bytes from disk.
//! Invariants: no input panics; nothing is accepted whose head, records or padding is not what was written.
//! Not here: writing it (`encode`).
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use felix_wire::id::{Generation, Offset, ProducerId, Sequence};

use super::{
    BATCH_HEAD_BYTES, BATCH_MAGIC, BATCH_VERSION, Batch, BatchHead, BatchKind, RECORD_HEAD_BYTES, Record,
    RecordRef, flag,
};
use crate::checksum::{Epoch, extend};
use crate::field::Fields;
use crate::id::Lineage;
use crate::limits::{BATCH_ALIGN, BATCH_BYTES_MAX, BATCH_RECORDS_MAX};

/// Why bytes are not a batch of this use of this segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BatchFault {
    /// Nothing of ours begins here, or something of an earlier use.
    #[error("no batch begins here")]
    NotABatch,
    /// It may be one, but it goes on behind the bytes given.
    #[error("{need} bytes needed")]
    Short { need: usize },
    /// Written by a later version of this program.
    #[error("batch version {0} is not known")]
    Version(u8),
    /// A kind, flag or codec of a later version.
    #[error("the batch uses {0} that is not known")]
    Unsupported(&'static str),
    #[error("checksum of the head does not fit")]
    Checksum,
    #[error("checksum of record {record} does not fit")]
    RecordChecksum { record: u32 },
    #[error("malformed: {0}")]
    Malformed(&'static str),
}

/// A batch that was found in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    pub head: BatchHead,
    /// Bytes it takes.
    pub len: usize,
    pub checksum: u32,
}

/// The head as it stands, unproven.
struct RawHead {
    head: BatchHead,
    total: usize,
    stored: usize,
    checksum: u32,
}

fn raw_head(bytes: &[u8], epoch: Epoch) -> Result<RawHead, BatchFault> {
    let short = BatchFault::Short { need: BATCH_HEAD_BYTES };
    let mut fields = Fields::new(bytes);
    if fields.bytes(4).ok_or(short)? != BATCH_MAGIC {
        return Err(BatchFault::NotABatch);
    }
    let mut late = Fields::new(bytes.get(80..BATCH_HEAD_BYTES).ok_or(short)?);
    if late.u64() != Some(epoch.0) {
        return Err(BatchFault::NotABatch);
    }
    let stored = late.u32().ok_or(short)? as usize;
    let zero = late.u32().ok_or(short)?;
    match fields.u8().ok_or(short)? {
        BATCH_VERSION => {}
        later => return Err(BatchFault::Version(later)),
    }
    let kind = BatchKind::from_code(fields.u8().ok_or(short)?).ok_or(BatchFault::Unsupported("a kind"))?;
    let flags = fields.u16().ok_or(short)?;
    if flags & !flag::KNOWN != 0 {
        return Err(BatchFault::Unsupported("a flag or codec"));
    }
    let total = fields.u32().ok_or(short)? as usize;
    let raw_len = fields.u32().ok_or(short)? as usize;
    let count = fields.u32().ok_or(short)?;
    let checksum = fields.u32().ok_or(short)?;
    let mut number = || fields.u64().ok_or(short);
    let head = BatchHead {
        kind,
        count,
        base: Offset(number()?),
        generation: Generation(number()?),
        lineage: Lineage(number()?),
        durable_end: Offset(number()?),
        timestamp_ms: number()?,
        producer: match (number()?, number()?) {
            (producer, sequence) if flags & flag::PRODUCER != 0 => {
                Some((ProducerId(producer), Sequence(sequence)))
            }
            (0, 0) => None,
            _ => return Err(BatchFault::Malformed("a producer without its flag")),
        },
    };
    if raw_len != stored || zero != 0 {
        return Err(BatchFault::Malformed("lengths"));
    }
    Ok(RawHead { head, total, stored, checksum })
}

fn check_shape(raw: &RawHead) -> Result<(), BatchFault> {
    let RawHead { head, total, stored, .. } = raw;
    let records = if head.kind == BatchKind::Skip { 0 } else { head.count as usize };
    let padded =
        stored.checked_add(BATCH_HEAD_BYTES).and_then(|len| len.checked_next_multiple_of(BATCH_ALIGN));
    if padded != Some(*total) || *total > BATCH_BYTES_MAX as usize {
        return Err(BatchFault::Malformed("total length"));
    }
    if head.count == 0 || (head.kind != BatchKind::Skip && head.count > BATCH_RECORDS_MAX) {
        return Err(BatchFault::Malformed("record count"));
    }
    if records * RECORD_HEAD_BYTES > *stored || (records == 0 && *stored != 0) {
        return Err(BatchFault::Malformed("more records than bytes"));
    }
    if head.base.0.checked_add(u64::from(head.count)).is_none() || head.durable_end > head.base {
        return Err(BatchFault::Malformed("offsets"));
    }
    Ok(())
}

/// Checks the batch at the start of `bytes`, which may go on behind it.
///
/// # Errors
/// The first thing that is wrong; `Short` only when the head could be one and more bytes could make it a batch.
pub fn decode(bytes: &[u8], epoch: Epoch) -> Result<Found, BatchFault> {
    let raw = raw_head(bytes, epoch)?;
    check_shape(&raw)?;
    let body = bytes.get(BATCH_HEAD_BYTES..raw.total).ok_or(BatchFault::Short { need: raw.total })?;
    let head = bytes.get(..BATCH_HEAD_BYTES).ok_or(BatchFault::NotABatch)?;
    let seed = epoch.seed();
    let mut crc = extend(seed, head.get(..20).unwrap_or_default());
    crc = extend(extend(crc, &[0; 4]), head.get(24..).unwrap_or_default());
    let mut fields = Fields::new(body);
    let records = if raw.head.kind == BatchKind::Skip { 0 } else { raw.head.count };
    let mut used = 0;
    for record in 0..records {
        let RawRecord { len, checksum, delta, payload } = record_at(&mut fields)?;
        let own = extend(extend(seed, [len.to_le_bytes(), delta].as_flattened()), payload);
        if own != checksum {
            return Err(BatchFault::RecordChecksum { record });
        }
        crc = extend(crc, &checksum.to_le_bytes());
        used += RECORD_HEAD_BYTES + payload.len();
    }
    if used != raw.stored || !body.get(used..).unwrap_or_default().iter().all(|byte| *byte == 0) {
        return Err(BatchFault::Malformed("bytes behind the last record"));
    }
    if crc != raw.checksum {
        return Err(BatchFault::Checksum);
    }
    Ok(Found { head: raw.head, len: raw.total, checksum: raw.checksum })
}

/// A record as it stands.
struct RawRecord<'a> {
    len: u32,
    checksum: u32,
    delta: [u8; 4],
    payload: &'a [u8],
}

fn record_at<'a>(fields: &mut Fields<'a>) -> Result<RawRecord<'a>, BatchFault> {
    let short = BatchFault::Malformed("a record reaches past the batch");
    let len = fields.u32().ok_or(short)?;
    let checksum = fields.u32().ok_or(short)?;
    let delta = fields.bytes(4).and_then(|delta| delta.try_into().ok()).ok_or(short)?;
    let payload = fields.bytes(len as usize).ok_or(short)?;
    Ok(RawRecord { len, checksum, delta, payload })
}

/// The records of a batch, in order.
#[derive(Debug, Clone)]
pub struct Records<'a>(RecordRefs<'a>);

impl<'a> Records<'a> {
    pub(super) fn new(batch: &'a Batch) -> Records<'a> {
        Records(RecordRefs::new(batch))
    }
}

impl Iterator for Records<'_> {
    type Item = Record;

    fn next(&mut self) -> Option<Record> {
        let RecordRef { offset, timestamp_ms, payload } = self.0.next()?;
        Some(Record { offset, timestamp_ms, payload: self.0.batch.bytes.slice_ref(payload) })
    }
}

/// The records of a batch as they stand in it, in order.
#[derive(Debug, Clone)]
pub struct RecordRefs<'a> {
    batch: &'a Batch,
    next: u32,
    at: usize,
}

impl<'a> RecordRefs<'a> {
    pub(super) fn new(batch: &'a Batch) -> RecordRefs<'a> {
        RecordRefs { batch, next: 0, at: BATCH_HEAD_BYTES }
    }
}

impl<'a> Iterator for RecordRefs<'a> {
    type Item = RecordRef<'a>;

    fn next(&mut self) -> Option<RecordRef<'a>> {
        let head = &self.batch.head;
        if head.kind == BatchKind::Skip || self.next == head.count {
            return None;
        }
        let mut fields = Fields::new(self.batch.bytes.get(self.at..)?);
        let RawRecord { delta, payload, .. } = record_at(&mut fields).ok()?;
        let delta = i64::from(i32::from_le_bytes(delta));
        let record = RecordRef {
            offset: Offset(head.base.0 + u64::from(self.next)),
            timestamp_ms: head.timestamp_ms.saturating_add_signed(delta),
            payload,
        };
        self.at += RECORD_HEAD_BYTES + payload.len();
        self.next += 1;
        Some(record)
    }
}
