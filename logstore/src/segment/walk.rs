//! From one batch to the next through bytes of a segment. Scope: functions; the caller brings the bytes window by window.
//! Invariants: a walk takes a batch only at the offset that is due; the only gap it steps over is the one up to the next
//! block, where writing always may go on. Behind damage a [`Resync`] finds where another walk may begin: no length or offset
//! of what is damaged is trusted.
//! Not here: reading the windows.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use bytes::Bytes;
use felix_wire::id::Offset;

use crate::checksum::Epoch;
use crate::limits::{BATCH_ALIGN, BATCH_BYTES_MAX, BLOCK};
use crate::record::{BATCH_HEAD_BYTES, BATCH_MAGIC, Batch, BatchFault, Found, decode};

/// Where a walk is, and what it has to find next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Walk {
    pub epoch: Epoch,
    /// Byte of the segment where the next batch begins, or the padding before it.
    pub byte: u64,
    /// Offset it must have.
    pub due: Offset,
    /// Nothing from here on is looked at.
    pub limit: u64,
}

/// What a walk came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// The batch that was due, and where it begins.
    Batch { batch: Batch, byte: u64 },
    /// The walk needs this many bytes from `Walk::byte` on in one window.
    Need(usize),
    /// No batch with the offset due is here. `fault` says what stands in its place, at which byte.
    End { byte: u64, fault: BatchFault },
}

impl Walk {
    /// The next batch. `window` holds the bytes of the segment from `window_at` on, which must reach `self.byte`.
    pub fn step(&mut self, window: &Bytes, window_at: u64) -> Step {
        loop {
            if self.byte >= self.limit {
                return Step::End { byte: self.byte, fault: BatchFault::NotABatch };
            }
            let Some(from) = self.byte.checked_sub(window_at).and_then(|at| usize::try_from(at).ok()) else {
                return Step::Need(BATCH_HEAD_BYTES);
            };
            let left = usize::try_from(self.limit - self.byte).unwrap_or(usize::MAX);
            let end = window.len().min(from.saturating_add(left));
            let whole = end == from.saturating_add(left);
            if from >= window.len() {
                return Step::Need(BATCH_HEAD_BYTES.min(left));
            }
            match Batch::from_bytes(&window.slice(from..end), self.epoch) {
                Ok(batch) if batch.head().base == self.due => {
                    let byte = self.byte;
                    self.byte += batch.bytes().len() as u64;
                    self.due = batch.head().end();
                    return Step::Batch { batch, byte };
                }
                Err(BatchFault::Short { need }) if !whole => return Step::Need(need.min(left)),
                Err(fault) if self.byte.is_multiple_of(BLOCK) => {
                    // Fewer bytes than a head could not tell whether one begins here.
                    if !whole && end - from < BATCH_HEAD_BYTES {
                        return Step::Need(BATCH_HEAD_BYTES.min(left));
                    }
                    return Step::End { byte: self.byte, fault };
                }
                Ok(_) if self.byte.is_multiple_of(BLOCK) => {
                    return Step::End {
                        byte: self.byte,
                        fault: BatchFault::Malformed("another offset was due"),
                    };
                }
                Err(fault) if fault != BatchFault::NotABatch => return Step::End { byte: self.byte, fault },
                Ok(_) | Err(_) => {
                    if !whole && end - from < BATCH_HEAD_BYTES {
                        return Step::Need(BATCH_HEAD_BYTES.min(left));
                    }
                    self.byte = self.byte.next_multiple_of(BLOCK);
                }
            }
        }
    }
}

/// The search for the first whole batch behind a place that cannot be read. Every place where one could begin is tried, and
/// only one of this use of the segment with a fitting checksum counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resync {
    pub epoch: Epoch,
    /// Byte of the segment that is tried next.
    pub byte: u64,
    /// The batch begins at this offset or a later one: copies of earlier batches inside the payload of the damaged one do
    /// not count.
    pub due: Offset,
    /// And ends at this offset or an earlier one.
    pub end: Offset,
    /// Nothing from here on is looked at.
    pub limit: u64,
}

/// What a [`Resync`] came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Search {
    /// A whole batch begins at `Resync::byte`.
    Batch(Found),
    /// The search needs this many bytes from `Resync::byte` on in one window.
    Need(usize),
    /// There is none up to the limit.
    Nothing,
}

impl Resync {
    /// Goes on with the search. `window` holds the bytes of the segment from `window_at` on. When a window with the bytes
    /// asked for cannot be had, the file ends, and the search with it.
    pub fn step(&mut self, window: &[u8], window_at: u64) -> Search {
        let Some(first) = self.byte.checked_next_multiple_of(BATCH_ALIGN as u64) else {
            return Search::Nothing;
        };
        self.byte = first;
        loop {
            let left = usize::try_from(self.limit.saturating_sub(self.byte)).unwrap_or(usize::MAX);
            if left < BATCH_HEAD_BYTES {
                return Search::Nothing;
            }
            let skip = self.byte.checked_sub(window_at).and_then(|skip| usize::try_from(skip).ok());
            let bytes = skip.and_then(|skip| window.get(skip..)).unwrap_or_default();
            let bytes = bytes.get(..left).unwrap_or(bytes);
            if bytes.len() < BATCH_HEAD_BYTES {
                return Search::Need(BATCH_HEAD_BYTES);
            }
            let begins = bytes.starts_with(&BATCH_MAGIC);
            let step = match begins.then(|| decode(bytes, self.epoch)) {
                Some(Ok(found)) if found.head.base >= self.due && found.head.end() <= self.end => {
                    return Search::Batch(found);
                }
                Some(Ok(found)) => found.len,
                Some(Err(BatchFault::Short { need })) if need <= left => return Search::Need(need),
                _ => BATCH_ALIGN,
            };
            self.byte += step as u64;
        }
    }
}

/// What is known of batches behind a place where the walk ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Evidence {
    /// The largest durable end that a batch found there names.
    pub durable_end: u64,
}

/// Looks at every place in `window` where a batch of this use could begin, and adds what those say that are whole.
/// `window_at` must be a multiple of [`BATCH_ALIGN`]. Batches that reach past the window are not seen.
pub fn search(window: &[u8], epoch: Epoch, evidence: &mut Evidence) {
    let mut at = 0;
    while let Some(bytes) = window.get(at..) {
        if bytes.len() < BATCH_HEAD_BYTES {
            return;
        }
        let begins = bytes.get(..4) == Some(&BATCH_MAGIC[..]);
        let found = begins.then(|| decode(bytes, epoch)).and_then(Result::ok);
        if let Some(found) = found {
            evidence.durable_end = evidence.durable_end.max(found.head.durable_end.0);
        }
        at += found.map_or(BATCH_ALIGN, |found| found.len);
    }
}

/// Bytes that a window must overlap the next one by for [`search`] to miss no batch.
pub const SEARCH_OVERLAP: u64 = BATCH_BYTES_MAX as u64;
