//! Event frames, encoded once per core for all its subscribers. Scope: values.
//! Invariants: a frame holds 1 to the asked number of records, and more bytes than asked only when it is one record; only
//! offsets that no record will ever have are told as skipped.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use felix_wire::client::{Records, encode_shared_head};
use felix_wire::id::Offset;

use crate::shard::ring::Slot;

/// Records and bytes a frame may hold.
#[derive(Clone, Copy, Debug)]
pub struct FrameLimits {
    pub records_max: u32,
    pub bytes_max: usize,
}

/// One event frame: the record run, and its head for clients with and without offsets.
#[derive(Debug)]
pub struct Frame {
    pub base: Offset,
    pub count: u32,
    /// The record run as it was published.
    run: Records,
    plain_head: Bytes,
    offset_head: Bytes,
}

impl Frame {
    fn new(base: Offset, run: Records) -> Frame {
        let mut buf = BytesMut::with_capacity(64);
        encode_shared_head(&mut buf, run.count(), run.encoded_len(), None, 0);
        let plain_head = buf.split().freeze();
        encode_shared_head(&mut buf, run.count(), run.encoded_len(), Some(base), 0);
        Frame { base, count: run.count(), run, plain_head, offset_head: buf.freeze() }
    }

    /// One past the last offset.
    pub fn end(&self) -> Offset {
        Offset(self.base.0 + u64::from(self.count))
    }

    /// What it counts in a subscriber's queue.
    pub fn cost(&self) -> usize {
        self.run.encoded_len() + 64
    }

    /// Bytes of the records alone.
    pub fn payload_bytes(&self) -> usize {
        self.run.payload_bytes()
    }

    /// The record run as it was published.
    pub fn body(&self) -> Bytes {
        self.run.bytes().clone()
    }

    /// The bytes before the record run.
    pub fn head(&self, offsets: bool) -> Bytes {
        if offsets { self.offset_head.clone() } else { self.plain_head.clone() }
    }

    /// The same frame behind `skipped` offsets that hold no record.
    pub fn behind_gap(&self, skipped: u64) -> Frame {
        let mut buf = BytesMut::with_capacity(64);
        encode_shared_head(&mut buf, self.count, self.run.encoded_len(), Some(self.base), skipped);
        let (run, plain_head) = (self.run.clone(), self.plain_head.clone());
        Frame { base: self.base, count: self.count, run, plain_head, offset_head: buf.freeze() }
    }

    /// The part from `offset` on, when only that part is wanted. `offset` lies inside the frame.
    pub fn from_offset(&self, offset: Offset) -> Frame {
        let skip = u32::try_from(offset.0 - self.base.0).unwrap_or(self.count);
        let (_, rest) = self.run.split_at_record(skip);
        Frame::new(offset, rest)
    }
}

/// Cuts a slot into frames, beginning at `from` if the slot begins below it.
pub fn cut(slot: &Slot, from: Offset, limits: FrameLimits, mut each: impl FnMut(Arc<Frame>)) {
    let mut rest = slot.records.clone();
    let mut base = slot.base;
    if from > base {
        let skip = u32::try_from(from.0 - base.0).unwrap_or(u32::MAX).min(rest.count());
        rest = rest.split_at_record(skip).1;
        base = from;
    }
    while rest.count() > 0 {
        let take = records_that_fit(&rest, limits);
        let (head, tail) =
            if take == rest.count() { (rest, Records::default()) } else { rest.split_at_record(take) };
        each(Arc::new(Frame::new(base, head)));
        base = Offset(base.0 + u64::from(take));
        rest = tail;
    }
}

/// How many records of the run go in one frame: at least one.
fn records_that_fit(run: &Records, limits: FrameLimits) -> u32 {
    if run.count() <= limits.records_max && run.encoded_len() <= limits.bytes_max {
        return run.count();
    }
    let mut bytes = 0;
    let mut count = 0;
    for record in run.iter() {
        bytes += 4 + record.len();
        if count > 0 && (bytes > limits.bytes_max || count >= limits.records_max) {
            break;
        }
        count += 1;
    }
    count.max(1)
}
