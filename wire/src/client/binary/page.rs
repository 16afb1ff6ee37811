//! A page of a poll, written from where its records are. Scope: functions of `binary`.
//! Invariants: what is written is what the message of the same records is written as.
//! Not here: reading one (`decode`).
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use bytes::BytesMut;
use flatbuffers::FlatBufferBuilder;

use super::{HEAD_ROOM, RECORD_HEAD_LEN, begin_frame, encode, fb};
use crate::id::{Offset, RequestId};

/// A record of a page (client-protocol 14); see `GroupRecord`.
#[derive(Debug, Clone, Copy)]
pub struct PageRecord<'a> {
    pub offset: Offset,
    pub attempts: u32,
    /// 0 is not told.
    pub skipped_before: u64,
    /// 0 for a page without times.
    pub timestamp_micros: u64,
    /// Shorter than 4 GiB.
    pub payload: &'a [u8],
}

/// Appends the whole frame of `group_records` in the binary form; `times`: the records tell theirs.
///
/// # Panics
/// When it is longer than 32 bits can say.
pub fn encode_page<'r>(
    (request_id, times): (RequestId, bool),
    records: impl ExactSizeIterator<Item = PageRecord<'r>> + DoubleEndedIterator + Clone,
    out: &mut BytesMut,
) {
    let entry = |record: PageRecord<'_>| {
        let PageRecord { offset, attempts, skipped_before, timestamp_micros, payload } = record;
        fb::Record::new(offset.0, skipped_before, timestamp_micros, payload.len() as u32, attempts)
    };
    let mut builder = FlatBufferBuilder::with_capacity(HEAD_ROOM + records.len() * RECORD_HEAD_LEN);
    encode::page_head((request_id, times), records.clone().map(entry), &mut builder);
    let payload_bytes = records.clone().map(|record| record.payload.len()).sum();
    begin_frame(out, builder.finished_data(), (payload_bytes, payload_bytes));
    records.for_each(|record| out.extend_from_slice(record.payload));
}
