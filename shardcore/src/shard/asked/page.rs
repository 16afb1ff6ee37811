//! A page of the log for somebody who reads it without a subscription (semantics 4.3). Sans-io. Scope: one per request.
//! Invariants: records are whole and in order, as many as were asked for and as fit one answer, one at least unless there is
//! none up to the end; the next page begins behind the last record that was looked at; of a commit its event is told.

use bytes::Bytes;
use felix_logstore::record::{Batch, BatchKind};
use felix_wire::id::Offset;

use super::Step;
use crate::projection::commit::record::event_of;
use crate::shard::ask::{AskRefused, ReadRecord, Reply};
use crate::shard::mail::PageLoss;

/// Payload bytes of an answer, unless a single record has more.
pub const ANSWER_BYTES_MAX: usize = 4 << 20;
/// Records of an answer.
pub const ANSWER_RECORDS_MAX: usize = 8_192;
/// Bytes of the log that are read beyond those that were asked for, for what is around payloads.
const AROUND_BYTES: usize = 64 << 10;
/// A record that no answer could hold as base64.
const RECORD_BYTES_MAX: usize = 11 << 20;

/// See the module.
#[derive(Debug)]
pub(super) struct PageRead {
    at: Offset,
    until: Offset,
    /// Where the next damage begins, as far as is known.
    sound_until: Offset,
    records_max: usize,
    bytes_max: usize,
}

impl PageRead {
    /// Of what is in `from..until`. A bound of 0 is that of an answer.
    pub(super) fn new((from, until): (Offset, Offset), records_max: usize, bytes_max: usize) -> PageRead {
        let bound = |asked: usize, max: usize| if asked == 0 { max } else { asked.min(max) };
        PageRead {
            at: from,
            until,
            sound_until: until,
            records_max: bound(records_max, ANSWER_RECORDS_MAX),
            bytes_max: bound(bytes_max, ANSWER_BYTES_MAX),
        }
    }

    pub(super) fn step(&self) -> Step {
        if self.at >= self.until {
            return Step::Done(Reply::Records { records: Vec::new(), next: self.at });
        }
        let until = self.sound_until.min(self.until);
        Step::Read { from: self.at, until, bytes_max: self.bytes_max + AROUND_BYTES }
    }

    pub(super) fn take(&mut self, read: Result<&[Batch], PageLoss>) -> Step {
        let batches = match read {
            Ok(batches) => batches,
            Err(PageLoss::Damaged { from, .. }) if from > self.at => {
                self.sound_until = from;
                return self.step();
            }
            Err(PageLoss::Damaged { from, next }) => {
                return Step::Done(Reply::Refused(AskRefused::Damaged { from, next }));
            }
            Err(PageLoss::TooOld(start)) => {
                let (requested, available) = (self.at, start);
                return Step::Done(Reply::Cursor { too_old: true, requested, available });
            }
            Err(PageLoss::Unreadable) => return Step::Done(Reply::Refused(AskRefused::Unreadable)),
        };
        let mut records = Vec::new();
        match self.collect(batches, &mut records) {
            Ok(next) if records.is_empty() => {
                // Only offsets without records so far.
                self.at = next;
                if self.at >= self.sound_until {
                    self.sound_until = self.until;
                }
                self.step()
            }
            Ok(next) => Step::Done(Reply::Records { records, next }),
            Err(at) if records.is_empty() => {
                let why = format!("the record at offset {at} is too large for an answer");
                Step::Done(Reply::Refused(AskRefused::Limit(why.into())))
            }
            Err(next) => Step::Done(Reply::Records { records, next }),
        }
    }

    /// Takes out what belongs to the answer; gives where the next page begins.
    ///
    /// # Errors
    /// The offset of a record that no answer can hold.
    fn collect(&self, batches: &[Batch], records: &mut Vec<ReadRecord>) -> Result<Offset, Offset> {
        let mut bytes = 0;
        for batch in batches {
            let kind = batch.head().kind;
            if !matches!(kind, BatchKind::Data | BatchKind::Commit) {
                continue;
            }
            for record in batch.records().filter(|record| record.offset >= self.at) {
                if record.offset >= self.until {
                    return Ok(self.until);
                }
                let payload = match kind {
                    BatchKind::Commit => event_of(&record.payload).unwrap_or_default(),
                    _ => record.payload,
                };
                if payload.len() > RECORD_BYTES_MAX {
                    return Err(record.offset);
                }
                bytes += payload.len();
                let full = records.len() >= self.records_max || bytes > self.bytes_max;
                if full && !records.is_empty() {
                    return Ok(record.offset);
                }
                // It must not hold on to the batch.
                let payload = Bytes::copy_from_slice(&payload);
                records.push(ReadRecord {
                    offset: record.offset,
                    payload,
                    timestamp_ms: record.timestamp_ms,
                });
            }
        }
        // No batch at all: there is none up to the end, where offsets without records may follow.
        let read_to = batches.last().map_or(self.sound_until, |batch| batch.head().end());
        Ok(read_to.min(self.until).max(self.at))
    }
}
