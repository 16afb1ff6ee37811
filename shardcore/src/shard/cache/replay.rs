//! Reading the logs of a shard of a cache from their beginning. Scope: functions of a shard of a cache, and the pages it holds.
//! Owns: what was read and not taken yet.
//! Invariants: while a page is taken the next one is read, and no more than that; a page is taken in steps, so that nobody else
//! on the core waits for a whole one; nothing is served before everything is taken.
//! Not here: what a record does (`projection`), where reading stands (`journal`).

use std::collections::VecDeque;

use felix_logstore::record::Batch;

use super::{CacheShard, Journal};
use crate::shard::ShardCx;
use crate::shard::mail::PageLoss;
use crate::snapshot::LogRole;

/// Bytes of batches that are taken in one step.
const STEP_BYTES: usize = 512 << 10;
/// Pages of a log that wait, from which on the next is not asked for.
const PAGES_MAX: usize = 2;

/// What was read of the log of the cache and of that of its counters.
#[derive(Debug, Default)]
pub(super) struct Replay {
    cache: Pages,
    counters: Pages,
}

/// What was read of one log and not taken.
#[derive(Debug, Default)]
struct Pages {
    waiting: VecDeque<VecDeque<Batch>>,
    /// The next page is to be asked for when one was taken.
    withheld: bool,
}

impl Replay {
    fn of(&mut self, role: LogRole) -> &mut Pages {
        match role {
            LogRole::Counters => &mut self.counters,
            LogRole::Cache | LogRole::Records | LogRole::Groups => &mut self.cache,
        }
    }

    fn is_empty(&self) -> bool {
        self.cache.waiting.is_empty() && self.counters.waiting.is_empty()
    }
}

impl CacheShard {
    /// Whether its logs are still being read.
    pub(super) fn is_replaying(&self) -> bool {
        let reads = |(cache, counters): &(Journal, Journal)| cache.is_replaying() || counters.is_replaying();
        self.logs.as_ref().is_some_and(reads) || self.has_pages()
    }

    /// Whether one of them is.
    pub(super) fn is_role_replaying(&mut self, role: LogRole) -> bool {
        self.journal(role).is_some_and(|log| log.is_replaying()) || !self.replay.of(role).waiting.is_empty()
    }

    /// Whether pages wait to be taken, by [`Self::replay_on`].
    pub fn has_pages(&self) -> bool {
        !self.replay.is_empty()
    }

    /// A page of one of its logs, from the start on. Afterwards [`Self::replay_on`] while it has pages.
    pub fn replay_page(&mut self, role: LogRole, read: Result<&[Batch], &PageLoss>, cx: &mut ShardCx<'_>) {
        let batches = match read {
            Ok(batches) => batches,
            Err(PageLoss::TooOld(start)) => {
                if let Some(log) = self.journal(role) {
                    log.skip_to(*start);
                    log.read_on(cx);
                }
                return;
            }
            Err(PageLoss::Damaged { from, next }) => {
                return self.break_down(format!("offsets {from} to {next} of its log are damaged"));
            }
            Err(PageLoss::Unreadable) => {
                if let Some(log) = self.journal(role) {
                    let pause = log.read_failed(cx.now);
                    tracing::error!(
                        ?pause,
                        "a shard of a cache is not served: its log is read again after a pause"
                    );
                }
                return;
            }
        };
        if self.broken.is_some() {
            return;
        }
        let pages = self.replay.of(role);
        if !batches.is_empty() {
            pages.waiting.push_back(batches.iter().cloned().collect());
        }
        pages.withheld = pages.waiting.len() >= PAGES_MAX;
        let goes_on = !pages.withheld;
        if let Some(log) = self.journal(role) {
            log.took_page(batches);
            if goes_on {
                log.read_on(cx);
            }
        }
    }

    /// Takes some of what was read.
    pub fn replay_on(&mut self, cx: &mut ShardCx<'_>) {
        for role in [LogRole::Cache, LogRole::Counters] {
            let mut left = STEP_BYTES;
            while left > 0
                && let Some(page) = self.replay.of(role).waiting.front_mut()
            {
                let Some(batch) = page.pop_front() else {
                    self.page_taken(role, cx);
                    continue;
                };
                left = left.saturating_sub(batch.bytes().len());
                let taken = match role {
                    LogRole::Counters => self.counters.replay(&batch),
                    LogRole::Cache | LogRole::Records | LogRole::Groups => self.cache.replay(&batch),
                };
                if let Err(error) = taken {
                    return self.break_down(error.to_string());
                }
            }
        }
    }

    fn page_taken(&mut self, role: LogRole, cx: &mut ShardCx<'_>) {
        let pages = self.replay.of(role);
        pages.waiting.pop_front();
        if std::mem::take(&mut pages.withheld)
            && let Some(log) = self.journal(role)
        {
            log.read_on(cx);
        }
    }

    fn break_down(&mut self, why: String) {
        tracing::error!(why, "a shard of a cache is not served");
        self.broken.get_or_insert(why.into());
        self.replay = Replay::default();
    }
}
