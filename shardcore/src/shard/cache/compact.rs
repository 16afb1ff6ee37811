//! Making the logs of a cache and of its counters shorter. Scope: part of [`CacheShard`].
//! Invariants: what is copied was not overwritten by anything claimed; a page whose copies find no room is read again.
//! Not here: what is copied (`projection`), the pace (`turn::compacting`).

use felix_logstore::limits::BATCH_RECORDS_MAX;
use felix_logstore::record::Batch;
use felix_wire::id::Offset;

use super::CacheShard;
use crate::projection::cache::compact::{CompactStep, LogShape};
use crate::projection::counter::CounterStep;
use crate::shard::ShardCx;
use crate::shard::journal::shorten::{COPY_BATCH_BYTES, LOG_BYTES_MIN, ShortenFigures, Shortened};
use crate::shard::mail::PageLoss;
use crate::snapshot::LogRole;
use crate::store::{PageFor, PageReader};

/// Bytes of the log per record beside its payload.
const RECORD_OVERHEAD_BYTES: u64 = 12;

impl CacheShard {
    /// To be called from time to time: which of its logs may be too long.
    pub fn look_at_logs(&mut self, cx: &mut ShardCx<'_>) -> [Option<LogRole>; 2] {
        let (cache_bytes, counter_bytes) = (self.cache.live_bytes(), self.counters.live_bytes());
        let serves = self.broken.is_none() && !self.is_replaying();
        let Some((cache, counters)) = self.logs.as_mut().filter(|_| serves) else {
            return [None; 2];
        };
        let cache = cache.look(cache_bytes, cx).then_some(LogRole::Cache);
        [cache, counters.look(counter_bytes, cx).then_some(LogRole::Counters)]
    }

    /// One step towards a shorter log.
    pub fn shorten(&mut self, role: LogRole, cx: &mut ShardCx<'_>) -> Shortened {
        if self.broken.is_some() {
            return Shortened::Done;
        }
        if self.is_role_replaying(role) {
            return Shortened::Waits;
        }
        let whole = role == LogRole::Counters;
        let Some(log) = self.journal(role) else { return Shortened::Done };
        let Some(shape) = log.shape(whole, cx) else { return Shortened::Waits };
        match role {
            LogRole::Counters => self.shorten_counters(shape, cx),
            LogRole::Cache | LogRole::Records | LogRole::Groups => self.shorten_cache(shape, cx),
        }
    }

    fn shorten_cache(&mut self, shape: LogShape, cx: &mut ShardCx<'_>) -> Shortened {
        let haste = shape.haste(self.cache.live_bytes(), LOG_BYTES_MIN);
        let step = self.cache.compact(shape, LOG_BYTES_MIN);
        let Some((log, _)) = &mut self.logs else { return Shortened::Done };
        match step {
            CompactStep::Idle => Shortened::Done,
            CompactStep::Reading => Shortened::Waits,
            CompactStep::WaitDurable(_) => {
                log.hurry(haste, cx);
                Shortened::Waits
            }
            CompactStep::Read { from, until, bytes_max } => {
                let Some(store) = cx.store.as_deref_mut() else { return Shortened::Done };
                let page = PageFor { shard: self.id, reader: PageReader::Compact, from, life: self.life };
                store.read(log.at(), page, until, bytes_max);
                Shortened::Moved { bytes: bytes_max as u64 / haste }
            }
            CompactStep::Trim { start } => {
                log.trim(start, cx);
                Shortened::Moved { bytes: 0 }
            }
        }
    }

    /// A page that was to be copied was read from `from` on, or cannot be.
    pub fn compact_page(&mut self, from: Offset, read: Result<&[Batch], &PageLoss>, cx: &mut ShardCx<'_>) {
        let batches = match read {
            Ok(batches) => batches,
            Err(PageLoss::TooOld(start)) => return self.cache.copies_put_off(*start),
            Err(PageLoss::Damaged { .. } | PageLoss::Unreadable) => {
                tracing::error!(%from, "the log of a cache cannot be read and is not compacted any more");
                return self.cache.compaction_failed();
            }
        };
        if self.logs.as_ref().is_none_or(|(log, _)| log.is_backed_up()) {
            return self.cache.copies_put_off(from);
        }
        let end = batches.last().map_or(Offset(u64::MAX), |batch| batch.head().end());
        let copies = match self.cache.compact_page(batches, end, cx.unix_ms) {
            Ok(copies) => copies,
            Err(error) => {
                tracing::error!(%error, "the log of a cache is not compacted any more");
                return;
            }
        };
        let (mut bytes, mut copies) = (0, copies.into_iter().peekable());
        while copies.peek().is_some() {
            let (mut batch, mut records, mut len) = (Vec::new(), Vec::new(), 0);
            while len < COPY_BATCH_BYTES
                && batch.len() < BATCH_RECORDS_MAX as usize
                && let Some(copy) =
                    copies.next_if(|copy| len == 0 || len + copy.encoded_len() <= COPY_BATCH_BYTES)
            {
                let mut record = Vec::with_capacity(copy.encoded_len());
                copy.encode(&mut record);
                len += record.len();
                bytes += record.len() as u64 + RECORD_OVERHEAD_BYTES;
                records.push(record);
                batch.push(copy);
            }
            let base = self.logs.as_mut().and_then(|(log, _)| log.append_copies(&records, cx));
            let Some(base) = base else { return self.cache.copies_put_off(from) };
            batch.into_iter().zip(base.0..).for_each(|(copy, at)| self.cache.claimed(copy, Offset(at)));
        }
        self.cache.copies_claimed(bytes);
    }

    fn shorten_counters(&mut self, shape: LogShape, cx: &mut ShardCx<'_>) -> Shortened {
        let haste = shape.haste(self.counters.live_bytes(), LOG_BYTES_MIN);
        let Some((_, log)) = &mut self.logs else { return Shortened::Done };
        if log.is_backed_up() {
            return Shortened::Waits;
        }
        match self.counters.checkpoint(shape, LOG_BYTES_MIN) {
            CounterStep::Idle => Shortened::Done,
            CounterStep::Again => Shortened::Moved { bytes: 0 },
            CounterStep::WaitDurable(_) => {
                log.hurry(haste, cx);
                Shortened::Waits
            }
            CounterStep::Append(drafts) => {
                let mut bytes = 0;
                let encode = |draft: &crate::projection::counter::Draft| {
                    let mut record = Vec::new();
                    draft.encode(&mut record);
                    bytes += record.len() as u64;
                    record
                };
                let records: Vec<Vec<u8>> = drafts.iter().map(encode).collect();
                let Some(base) = log.append_copies(&records, cx) else {
                    self.counters.checkpoints_put_off();
                    return Shortened::Waits;
                };
                drafts
                    .into_iter()
                    .zip(base.0..)
                    .for_each(|(draft, at)| self.counters.claimed(draft, Offset(at)));
                Shortened::Moved { bytes: bytes / haste }
            }
            CounterStep::Trim { start } => {
                log.trim(start, cx);
                Shortened::Moved { bytes: 0 }
            }
        }
    }

    /// One of its logs begins at `start` now.
    pub fn log_starts(&mut self, role: LogRole, start: Offset) {
        match role {
            LogRole::Counters => self.counters.log_starts(start),
            LogRole::Cache | LogRole::Records | LogRole::Groups => self.cache.log_starts(start),
        }
        if let Some(log) = self.journal(role) {
            log.start_moved();
        }
    }

    /// What was done to its logs since the last call.
    pub fn take_shortened(&mut self, role: LogRole) -> ShortenFigures {
        self.journal(role).map_or_else(ShortenFigures::default, |log| log.take_figures())
    }
}
