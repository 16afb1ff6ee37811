//! What making a log shorter needs of it: how long it is, copies at its end, letting its beginning go, segments of a size
//! that fits what lives in it. Scope: part of [`Journal`].
//! Invariants: only whole segments go; requests that wait for room come before copies; one start is moved at a time.
//! Not here: what is to be copied (`projection`), the pace (`turn::compacting`).

use std::num::NonZeroU32;

use felix_logstore::id::Fsync;
use felix_logstore::log::AppendMeta;
use felix_wire::id::Offset;

use super::Journal;
use crate::projection::cache::compact::{LogShape, may_have};
use crate::shard::ShardCx;

/// A log up to this length is left alone, bytes.
pub const LOG_BYTES_MIN: u64 = 1 << 20;
/// A segment takes one part of so many of what lives in its log, so that what is let go of at once is a small part of it.
const SEGMENTS_PER_LIVE: u64 = 8;
/// Bytes of a batch of copies, unless one copy has more: a log of small segments does not need larger ones for it.
pub const COPY_BATCH_BYTES: usize = 64 << 10;

/// What came of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shortened {
    /// There is nothing to do until the log has grown.
    Done,
    /// A page, a sync or room has to come first.
    Waits,
    /// There is more to do when a core would have moved so many bytes.
    Moved { bytes: u64 },
}

/// What was done since it was asked last.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ShortenFigures {
    pub copied_bytes: u64,
    pub segments: u64,
}

/// How far a log is.
#[derive(Debug, Default)]
pub(super) struct Shortening {
    /// A new start is being made durable.
    moves_start: bool,
    /// Bytes appended since the last look, and at most in one of the looks before, fading.
    appended_bytes: u64,
    lately_bytes: u64,
    figures: ShortenFigures,
}

impl Shortening {
    pub fn note_append(&mut self, bytes: usize) {
        self.appended_bytes += bytes as u64;
    }
}

impl Journal {
    /// The log as it is, when it may become shorter. `whole`: all of its sealed segments go at once, else the oldest.
    pub fn shape(&self, whole: bool, cx: &ShardCx<'_>) -> Option<LogShape> {
        if self.stopped || self.shortening.moves_start || self.is_replaying() {
            return None;
        }
        let log = cx.store.as_deref()?.log(self.at)?;
        let start = log.start();
        let (mut bytes, mut sealed_end) = (log.open_bytes(), None);
        for sealed in log.sealed().filter(|sealed| sealed.end.offset > start) {
            bytes += sealed.end.byte;
            if whole || sealed_end.is_none() {
                sealed_end = Some(sealed.end.offset);
            }
        }
        Some(LogShape { start, sealed_end, bytes, durable_end: log.durable_end() })
    }

    /// To be called from time to time: sees to segments that fit a log in which `live_bytes` are in use. True when the log may
    /// be too long.
    pub fn look(&mut self, live_bytes: u64, cx: &mut ShardCx<'_>) -> bool {
        let appended = std::mem::take(&mut self.shortening.appended_bytes);
        self.shortening.lately_bytes = appended.max(self.shortening.lately_bytes / 2);
        let Some(shape) = self.shape(false, cx) else { return false };
        let fits = (live_bytes / SEGMENTS_PER_LIVE).max(self.shortening.lately_bytes);
        let Some(store) = cx.store.as_deref_mut() else { return false };
        store.fit_segments(self.at, fits);
        let too_long = shape.bytes > may_have(live_bytes, LOG_BYTES_MIN);
        if too_long && shape.sealed_end.is_none() {
            store.roll_large(self.at);
        }
        too_long
    }

    /// Claims offsets for copies, one at least, and appends them as one batch, unless requests wait for room. Gives the first
    /// offset; none when there is no room now.
    pub fn append_copies(&mut self, records: &[Vec<u8>], cx: &mut ShardCx<'_>) -> Option<Offset> {
        if self.stopped || self.is_backed_up() {
            return None;
        }
        let engine = cx.store.as_deref_mut()?.engine(self.at)?;
        let bytes = records.iter().map(Vec::len).sum();
        let count = u32::try_from(records.len()).ok().and_then(NonZeroU32::new)?;
        let claim = engine.claim_freeing(self.at.log, count, bytes).ok()?;
        let base = claim.base();
        let meta = AppendMeta { generation: self.generation, timestamp_ms: cx.unix_ms, producer: None };
        let records = records.iter().map(|record| (cx.unix_ms, &record[..]));
        let batch = engine.append(self.at.log, claim, meta, records);
        assert!(batch.is_some(), "a log that gave a claim is there for its append");
        self.shortening.figures.copied_bytes += bytes as u64;
        Some(base)
    }

    /// What was settled is to become durable. A log that is synced from time to time anyway is only made so at once when it is
    /// far too long.
    pub fn hurry(&self, haste: u64, cx: &mut ShardCx<'_>) {
        let Some(engine) = cx.store.as_deref_mut().and_then(|store| store.engine(self.at)) else { return };
        let policy = engine.log(self.at.log).map(|log| log.config().policy);
        if haste > 1 || policy != Some(Fsync::Periodic) {
            engine.make_durable(self.at.log);
        }
    }

    /// The log is to begin at `start`. It says when it does: [`Self::start_moved`].
    pub fn trim(&mut self, start: Offset, cx: &mut ShardCx<'_>) {
        let Some(engine) = cx.store.as_deref_mut().and_then(|store| store.engine(self.at)) else { return };
        let Some(log) = engine.log(self.at.log) else { return };
        let goes = (log.start().0 + 1)..(start.0 + 1);
        let segments = log.sealed().filter(|sealed| goes.contains(&sealed.end.offset.0)).count();
        self.shortening.figures.segments += segments as u64;
        self.shortening.moves_start = true;
        engine.move_start(self.at.log, start);
    }

    /// The log has said where it begins.
    pub fn start_moved(&mut self) {
        self.shortening.moves_start = false;
    }

    /// What was done since the last call.
    pub fn take_figures(&mut self) -> ShortenFigures {
        std::mem::take(&mut self.shortening.figures)
    }
}
