//! Making the log of a cache shorter: what lives in its oldest segments is copied to its end, then they go. Sans-io.
//! Scope: one [`Compaction`] per cache shard with a log. Owns: how far the copying is, and its pace.
//! Invariants: nothing goes before all that lived in it is on the device elsewhere; only what is neither overwritten nor
//! deleted by anything claimed is copied, so a copy never lies behind the write that ended its value; a copy keeps the
//! version; oldest first, so the delete of a key goes after every older value of it.
//! Not here: reading, appending and removing (`shard`); which segments there are (`felix_logstore`).

use felix_logstore::record::{Batch, BatchKind};
use felix_runtime::clock::Tick;
use felix_wire::id::Offset;

use super::record::CacheRecord;
use super::{CacheCore, Change, Draft};
use crate::projection::record::BadRecord;

/// The log may be this many times as long as what lives in it.
const LOG_PER_LIVE: u64 = 2;
/// A whole pass over the log must shorten it by one part of so many, else it is left alone until it has grown by half.
const GAIN_PART: u64 = 8;
/// Bytes read at once, so that a page of copies is one batch and no write waits long behind it.
const PAGE_BYTES: usize = 512 << 10;

/// Pace and threshold.
#[derive(Debug, Clone, Copy)]
pub struct CompactSettings {
    /// Bytes read per second.
    pub bytes_per_sec: u64,
    /// A log shorter than this is left alone.
    pub log_bytes_min: u64,
}

/// The log as it is.
#[derive(Debug, Clone, Copy)]
pub struct LogShape {
    pub start: Offset,
    /// Where its oldest sealed segment ends; none when only the open one is left.
    pub oldest_sealed_end: Option<Offset>,
    pub bytes: u64,
    /// Everything below is on the device.
    pub durable_end: Offset,
}

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CompactStep {
    /// Nothing, until the log has grown.
    Idle,
    /// Nothing before then.
    WaitUntil(Tick),
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
    /// Where the pass ends that is under way, and how long the log was when it began.
    pass: Option<(Offset, u64)>,
    /// The last pass gained next to nothing: what is there is in use, or small batches take more than was reckoned.
    quiet_below: u64,
}

impl Threshold {
    /// Whether the oldest segment of a log in which `live_bytes` are in use should go.
    pub fn exceeded(&mut self, shape: LogShape, live_bytes: u64, settings: CompactSettings) -> bool {
        if shape.bytes <= settings.log_bytes_min.max(live_bytes.saturating_mul(LOG_PER_LIVE)) {
            *self = Threshold::default();
            return false;
        }
        match self.pass {
            _ if shape.bytes < self.quiet_below => false,
            Some((end, _)) if shape.start < end => true,
            Some((_, bytes)) if shape.bytes > bytes - bytes / GAIN_PART => {
                *self = Threshold { pass: None, quiet_below: shape.bytes + shape.bytes / 2 };
                false
            }
            _ => {
                self.pass = Some((shape.durable_end, shape.bytes));
                true
            }
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
    /// When the next page may be read.
    next_at: Tick,
    /// Something could not be read; nothing is removed any more.
    stopped: bool,
}

impl CacheCore {
    /// What compaction is to do now.
    pub fn compact(&mut self, now: Tick, shape: LogShape, settings: CompactSettings) -> CompactStep {
        let live_bytes = self.live_bytes();
        let compaction = &mut self.compaction;
        if compaction.stopped {
            return CompactStep::Idle;
        }
        let run = match &mut compaction.run {
            Some(run) => run,
            None => match shape.oldest_sealed_end {
                Some(end) if compaction.threshold.exceeded(shape, live_bytes, settings) => {
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
        if now < compaction.next_at {
            return CompactStep::WaitUntil(compaction.next_at);
        }
        run.reading = true;
        let nanos = (PAGE_BYTES as u64).saturating_mul(1_000_000_000) / settings.bytes_per_sec.max(1);
        compaction.next_at = now + std::time::Duration::from_nanos(nanos);
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

    /// All copies of the page have offsets.
    pub fn copies_claimed(&mut self) {
        let end = self.claimed.end();
        if let Some(run) = &mut self.compaction.run {
            // What was not copied because of a claim must be durable too.
            run.durable = end;
            run.reading = false;
        }
    }

    /// There was no room for the copies: the page beginning at `from` is read again later.
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
