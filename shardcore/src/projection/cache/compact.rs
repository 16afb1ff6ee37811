//! Making the log of a cache shorter: what lives in its oldest segments is copied to its end, then they go. Sans-io.
//! Scope: one [`Compaction`] per cache shard with a log. Owns: how far the copying is.
//! Invariants: nothing goes before all that lived in it is on the device elsewhere; only what is neither overwritten nor
//! deleted by anything claimed is copied, so a copy never lies behind the write that ended its value; a copy keeps the
//! version; oldest first, so the delete of a key goes after every older value of it.
//! Not here: the pace (`turn::compacting`); reading, appending and removing (`shard`); which segments there are
//! (`felix_logstore`).

use felix_logstore::record::{Batch, BatchKind};
use felix_wire::id::Offset;

use super::record::CacheRecord;
use super::{CacheCore, Change, Draft};
use crate::projection::record::BadRecord;

/// The log may be this many times as long as what lives in it.
const LOG_PER_LIVE: u64 = 2;
/// A log that is so many times longer than it may be is compacted so many times as fast, and one that is longer still no
/// faster: that leaves the core to its clients.
const HASTE_MAX: u64 = 4;
/// A pass over the whole log must shorten it by one part of so many, else it is left alone until it has grown by half.
const GAIN_PART: u64 = 8;
/// Bytes read at once, so that no write waits long behind the copies of a page.
const PAGE_BYTES: usize = 256 << 10;

/// The log as it is.
#[derive(Debug, Clone, Copy)]
pub struct LogShape {
    pub start: Offset,
    /// Where the sealed segments end that are to go together; none when only the open one is left.
    pub sealed_end: Option<Offset>,
    pub bytes: u64,
    /// Everything below is on the device.
    pub durable_end: Offset,
}

impl LogShape {
    /// How much faster than usual a log in which `live_bytes` are in use should get shorter: 1 for one that is hardly longer
    /// than it may be.
    pub fn haste(&self, live_bytes: u64, log_bytes_min: u64) -> u64 {
        (self.bytes / may_have(live_bytes, log_bytes_min).max(1)).clamp(1, HASTE_MAX)
    }
}

/// Bytes up to which a log is left alone.
pub fn may_have(live_bytes: u64, log_bytes_min: u64) -> u64 {
    log_bytes_min.max(live_bytes.saturating_mul(LOG_PER_LIVE))
}

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CompactStep {
    /// Nothing, until the log has grown.
    Idle,
    /// Nothing until the log's durable end has reached this.
    WaitDurable(Offset),
    /// Read a page and give it to [`CacheCore::compact_page`].
    Read { from: Offset, until: Offset, bytes_max: usize },
    /// A page is being read.
    Reading,
    /// Let the log begin here, then say [`CacheCore::log_starts`].
    Trim { start: Offset },
}

/// Decides whether a log is too long. Scope: one per compacted log.
#[derive(Debug, Default)]
pub struct Threshold {
    pass: Option<Pass>,
    /// The last pass gained next to nothing: what is there is in use, or small batches take more than was reckoned.
    quiet_below: u64,
}

/// Going once over everything that was there at its beginning.
#[derive(Debug, Clone, Copy)]
struct Pass {
    end: Offset,
    /// How long the log was.
    bytes: u64,
    copied_bytes: u64,
}

impl Threshold {
    /// Whether sealed segments of a log in which `live_bytes` are in use should go. A log shorter than `log_bytes_min` is left
    /// alone.
    pub fn exceeded(&mut self, shape: LogShape, live_bytes: u64, log_bytes_min: u64) -> bool {
        if shape.bytes <= may_have(live_bytes, log_bytes_min) {
            *self = Threshold::default();
            return false;
        }
        match self.pass {
            _ if shape.bytes < self.quiet_below => false,
            Some(pass) if shape.start < pass.end => true,
            Some(pass) if pass.copied_bytes > pass.bytes - pass.bytes / GAIN_PART => {
                *self = Threshold { pass: None, quiet_below: shape.bytes + shape.bytes / 2 };
                false
            }
            _ => {
                self.pass = Some(Pass { end: shape.durable_end, bytes: shape.bytes, copied_bytes: 0 });
                true
            }
        }
    }

    /// So many bytes of what was there were written to the end.
    pub fn copied(&mut self, bytes: u64) {
        if let Some(pass) = &mut self.pass {
            pass.copied_bytes += bytes;
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Run {
    next: Offset,
    end: Offset,
    reading: bool,
    /// What has to be durable before the segment goes.
    durable: Offset,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Compaction {
    run: Option<Run>,
    threshold: Threshold,
    /// Something could not be read; nothing is removed any more.
    stopped: bool,
}

impl CacheCore {
    /// What compaction is to do now.
    pub fn compact(&mut self, shape: LogShape, log_bytes_min: u64) -> CompactStep {
        let live_bytes = self.live_bytes();
        let compaction = &mut self.compaction;
        if compaction.stopped {
            return CompactStep::Idle;
        }
        let run = match &mut compaction.run {
            Some(run) => run,
            None => match shape.sealed_end {
                Some(end) if compaction.threshold.exceeded(shape, live_bytes, log_bytes_min) => {
                    compaction.run.insert(Run { next: shape.start, end, reading: false, durable: Offset(0) })
                }
                _ => return CompactStep::Idle,
            },
        };
        if run.reading {
            return CompactStep::Reading;
        }
        if run.next >= run.end {
            return match run.durable {
                durable if durable > shape.durable_end => CompactStep::WaitDurable(durable),
                _ => CompactStep::Trim { start: run.end },
            };
        }
        run.reading = true;
        CompactStep::Read { from: run.next, until: run.end, bytes_max: PAGE_BYTES }
    }

    /// The page that was wanted, read up to `end`: gives the copies to append. Claim them all, then say
    /// [`Self::copies_claimed`]; or none, then say [`Self::copies_put_off`].
    ///
    /// # Errors
    /// A record that cannot be read: nothing is removed from this log any more.
    pub fn compact_page(
        &mut self,
        batches: &[Batch],
        end: Offset,
        now_ms: u64,
    ) -> Result<Vec<Draft>, BadRecord> {
        let Some(run) = self.compaction.run else { return Ok(Vec::new()) };
        let now_ms = self.clock.at(now_ms);
        let mut copies = Vec::new();
        for batch in batches.iter().filter(|batch| batch.head().kind == BatchKind::Data) {
            for record in batch.records().filter(|record| (run.next..run.end).contains(&record.offset)) {
                match CacheRecord::decode(&record.payload) {
                    Ok(found) => copies.extend(self.copy_of(found, &record, now_ms)),
                    Err(fault) => {
                        self.compaction.stopped = true;
                        return Err(BadRecord { offset: record.offset, fault });
                    }
                }
            }
        }
        if let Some(run) = &mut self.compaction.run {
            run.next = run.next.max(end);
        }
        Ok(copies)
    }

    /// The value of a record, if it lives there and nothing claimed ends it.
    fn copy_of(
        &mut self,
        found: CacheRecord<'_>,
        record: &felix_logstore::record::Record,
        now_ms: u64,
    ) -> Option<Draft> {
        let (CacheRecord::Put { key, value, .. } | CacheRecord::Copy { key, value, .. }) = found else {
            return None;
        };
        let slot = self.table.find(key)?;
        let entry = *self.table.value(slot);
        if entry.at != record.offset || self.claimed.has(key) {
            return None;
        }
        if entry.expiry.is_past(now_ms) {
            // Its record goes, so the key must.
            self.forget(slot);
            return None;
        }
        let value = record.payload.slice_ref(value);
        let change = Change::Copy { value, expiry: entry.expiry, version: entry.version };
        Some(Draft { key: key.into(), change })
    }

    /// All copies of the page have offsets; they take `bytes` of the log.
    pub fn copies_claimed(&mut self, bytes: u64) {
        let end = self.claimed.end();
        self.compaction.threshold.copied(bytes);
        if let Some(run) = &mut self.compaction.run {
            // What was not copied because of a claim must be durable too.
            run.durable = end;
            run.reading = false;
        }
    }

    /// There was no room for all of the copies: the page beginning at `from` is read again later. Copies that were claimed may
    /// be made once more.
    pub fn copies_put_off(&mut self, from: Offset) {
        if let Some(run) = &mut self.compaction.run {
            (run.next, run.reading) = (from, false);
        }
    }

    /// The page could not be read. Nothing is removed from this log any more: what it holds may be all there is.
    pub fn compaction_failed(&mut self) {
        self.compaction = Compaction { stopped: true, ..Compaction::default() };
    }

    /// The log begins at `start` now.
    pub fn log_starts(&mut self, start: Offset) {
        self.log_start = self.log_start.max(start);
        if self.compaction.run.is_some_and(|run| run.end <= start) {
            self.compaction.run = None;
        }
    }
}
