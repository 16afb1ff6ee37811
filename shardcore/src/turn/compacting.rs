//! The pace at which the logs of caches, counters and groups become shorter. Scope: functions of a core, and [`Compacting`],
//! one per core. Owns: which logs may be too long, and when the next of them may go on.
//! Invariants: all logs of a core together move no more bytes in a second than is set, four times as many when one is far
//! too long; a turn makes one step that moves something, after what clients asked for.
//! Not here: what a step does (`shard`).

use std::collections::BTreeSet;
use std::time::Duration;

use felix_logstore::record::Batch;
use felix_runtime::clock::Tick;
use felix_wire::id::Offset;

use super::core::Core;
use super::counters::Counter;
use crate::shard::journal::shorten::{ShortenFigures, Shortened};
use crate::shard::mail::PageLoss;
use crate::snapshot::{LogRole, ShardId};
use crate::store::{LogAt, PageFor, Store};

/// How often the logs are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How long all of them wait when none could go on.
const WAIT: Duration = Duration::from_millis(5);
/// Logs that are asked in one turn for one that can go on.
const ASKED_MAX: usize = 16;
/// What a step costs at least, bytes: looking at what needs nothing takes time too.
const STEP_BYTES_MIN: u64 = 16 << 10;

/// A log that may be too long.
type LogOf = (ShardId, LogRole);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Compacting {
    too_long: BTreeSet<LogOf>,
    /// The one that was asked last.
    last: Option<LogOf>,
    next_look: Tick,
    due: Option<Tick>,
    /// None of them could go on.
    waits: bool,
    /// The logs are being closed.
    ended: bool,
}

impl Compacting {
    /// When a log may go on.
    pub fn due(&self) -> Option<Tick> {
        self.due
    }

    /// Nothing more is asked of any log.
    pub fn end(&mut self) {
        *self = Compacting { ended: true, ..Compacting::default() };
    }

    fn add(&mut self, log: LogOf, now: Tick) {
        self.too_long.insert(log);
        self.due.get_or_insert(now);
    }

    /// The log after the one that was asked last.
    fn next_log(&mut self) -> Option<LogOf> {
        let behind = self.last.and_then(|last| {
            let behind = (std::ops::Bound::Excluded(last), std::ops::Bound::Unbounded);
            self.too_long.range(behind).next().copied()
        });
        self.last = behind.or_else(|| self.too_long.first().copied());
        self.last
    }
}

/// The time that moving so many bytes may take.
fn time_for(bytes: u64, bytes_per_sec: u64) -> Duration {
    let nanos = u128::from(bytes.max(STEP_BYTES_MIN)) * 1_000_000_000 / u128::from(bytes_per_sec.max(1));
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

impl Core {
    fn compact_bytes_per_sec(&self) -> u64 {
        self.store.as_ref().map_or(0, |store| store.settings().compact_bytes_per_sec)
    }

    /// Looks for logs that may be too long.
    pub(super) fn sweep_compaction(&mut self, now: Tick) {
        let ended = self.compacting.ended || self.compact_bytes_per_sec() == 0;
        if ended || now < self.compacting.next_look {
            return;
        }
        self.compacting.next_look = now + LOOK_EVERY;
        let caches: Vec<ShardId> = self.caches.keys().copied().collect();
        for id in caches {
            let roles = self.with_cache(now, id, |cache, cx| cache.look_at_logs(cx));
            for role in roles.into_iter().flatten().flatten() {
                self.compacting.add((id, role), now);
            }
        }
        let groups: Vec<ShardId> = self.groups.keys().copied().collect();
        for id in groups {
            if self.with_groups(now, id, |groups, cx| groups.look_at_log(cx)) == Some(true) {
                self.compacting.add((id, LogRole::Groups), now);
            }
        }
        self.counters.set(Counter::LogsCompacting, self.compacting.too_long.len() as u64);
    }

    /// Lets one of the logs that are too long become a little shorter, when it is time.
    pub(super) fn run_compaction(&mut self, now: Tick) {
        if self.compacting.due.is_none_or(|due| due > now) {
            return;
        }
        self.compacting.due = None;
        self.compacting.waits = false;
        for _ in 0..self.compacting.too_long.len().min(ASKED_MAX) {
            let Some(log) = self.compacting.next_log() else { break };
            match self.shorten(now, log) {
                Shortened::Done => {
                    self.compacting.too_long.remove(&log);
                }
                Shortened::Waits => {}
                Shortened::Moved { bytes } => {
                    self.compacting.due = Some(now + time_for(bytes, self.compact_bytes_per_sec()));
                    break;
                }
            }
        }
        if !self.compacting.too_long.is_empty() && self.compacting.due.is_none() {
            self.compacting.due = Some(now + WAIT);
            self.compacting.waits = true;
        }
        if !self.shard_out.is_empty() {
            self.route_outputs(now);
        }
    }

    fn shorten(&mut self, now: Tick, (id, role): LogOf) -> Shortened {
        let (step, figures) = match role {
            LogRole::Groups => {
                self.with_groups(now, id, |groups, cx| (groups.shorten(cx), groups.take_shortened()))
            }
            _ => self.with_cache(now, id, |cache, cx| (cache.shorten(role, cx), cache.take_shortened(role))),
        }
        // It is gone.
        .unwrap_or((Shortened::Done, ShortenFigures::default()));
        self.count_shortened(figures);
        step
    }

    fn count_shortened(&self, figures: ShortenFigures) {
        self.counters.add(Counter::LogCompactedBytes, figures.copied_bytes);
        self.counters.add(Counter::LogCompactedSegments, figures.segments);
    }

    /// A page of the log of a cache was read that is to be copied, or it cannot be.
    pub(super) fn compaction_page(&mut self, now: Tick, page: PageFor, read: Result<&[Batch], &PageLoss>) {
        if self.caches.get(&page.shard).is_none_or(|cache| cache.life() != page.life) {
            return;
        }
        let figures = self.with_cache(now, page.shard, |cache, cx| {
            cache.compact_page(page.from, read, cx);
            cache.take_shortened(LogRole::Cache)
        });
        self.count_shortened(figures.unwrap_or_default());
        if std::mem::take(&mut self.compacting.waits) {
            self.compacting.due = Some(now);
        }
    }

    /// A log that is no stream's begins at `start` now.
    pub(super) fn log_beside_starts(&mut self, now: Tick, at: LogAt, start: Offset) {
        match self.store.as_ref().and_then(|store: &Store| store.served_by(at)) {
            Some((id, LogRole::Groups)) => {
                self.with_groups(now, id, |groups, _| groups.log_starts(start));
            }
            Some((id, role @ (LogRole::Cache | LogRole::Counters))) => {
                self.with_cache(now, id, |cache, _| cache.log_starts(role, start));
            }
            Some((_, LogRole::Records)) | None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use felix_wire::id::ShardIndex;

    use super::*;
    use crate::snapshot::StreamUid;

    #[test]
    fn logs_take_turns_and_a_step_takes_its_time() {
        let log = |uid| (ShardId { stream: StreamUid(uid), shard: ShardIndex(0) }, LogRole::Cache);
        let mut compacting = Compacting::default();
        assert_eq!((compacting.next_log(), compacting.due()), (None, None));
        for uid in 1..=3 {
            compacting.add(log(uid), Tick::ZERO);
        }
        assert_eq!(compacting.due(), Some(Tick::ZERO));
        let asked: Vec<_> = (0..4).filter_map(|_| compacting.next_log()).collect();
        assert_eq!(asked, [log(1), log(2), log(3), log(1)]);
        compacting.too_long.remove(&log(2));
        assert_eq!(compacting.next_log(), Some(log(3)));
        assert_eq!(time_for(1 << 20, 64 << 20), Duration::from_micros(15_625));
        assert!(time_for(0, 1 << 20) > Duration::from_millis(10), "no step is for nothing");
        assert!(time_for(1, 0) > Duration::ZERO);
    }
}
