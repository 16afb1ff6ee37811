//! Free bytes of the volume, and what is asked from time to time. Scope: part of [`Engine`].
//! Owns: how much space there is, as far as is known, and whether claims may go on.
//! Invariants: a segment is made only when the volume stays above the lower mark with it, so claims are refused before the
//! disk is full; what was claimed has its space already.
//! Not here: making files (`tend`, `slots`), the pool (`pool`).

use felix_runtime::clock::Tick;
use felix_runtime::file::{DiskError, Op, Outcome};

use super::scripts::Ended;
use super::{Engine, Event, LogId};
use crate::segment::size_class;

/// What is known of the volume.
#[derive(Debug, Default)]
pub(super) struct Space {
    /// Bytes that were free when the volume was last asked, less what was taken since. None before the first answer.
    left: Option<u64>,
    asking: bool,
    /// Bytes of segments that are being made: whether an answer counts them is unknown, so they are counted.
    pub making_bytes: u64,
}

impl Space {
    /// Whether the volume was asked and has not answered.
    pub fn is_asking(&self) -> bool {
        self.asking
    }

    /// Bytes left above `kept`, as far as is known.
    pub fn above(&self, kept: u64) -> Option<u64> {
        self.left.map(|left| left.saturating_sub(kept))
    }

    pub fn take(&mut self, bytes: u64) {
        self.left = self.left.map(|left| left.saturating_sub(bytes));
    }
}

impl Engine {
    pub(super) fn tend_timers(&mut self, now: Tick) {
        self.tend_flush_timer(now);
        if now < self.next_space || self.space.asking {
            return;
        }
        self.next_space = now + self.config.space_every;
        self.space.asking = true;
        let (desk, volume) = (self.desk.clone(), self.config.volume);
        self.scripts.start(async move {
            let free_bytes = match desk.ask(Op::Space { volume }).await {
                Ok(Outcome::Space(space)) => Ok(space.free_bytes),
                Ok(_) => Err(DiskError::Io { errno: 0 }),
                Err(error) => Err(error),
            };
            Ended::Space { free_bytes }
        });
        let old: Vec<LogId> = self.logs.keys().copied().collect();
        self.due.extend(old);
    }

    pub(super) fn space_told(&mut self, free_bytes: Result<u64, DiskError>) {
        self.space.asking = false;
        let Ok(free) = free_bytes else { return };
        self.counts.space_asked += 1;
        self.counts.free_bytes = free;
        let left = free.saturating_sub(self.space.making_bytes);
        self.space.left = Some(left);
        if left < self.config.space_low_bytes {
            self.set_space(false);
        } else if left >= self.config.space_high_bytes {
            self.set_space(true);
        }
        if self.space_ok {
            self.slots_retry();
            for (log, shard) in &mut self.logs {
                if std::mem::take(&mut shard.starved) {
                    self.due.insert(*log);
                }
            }
        } else {
            self.empty_pool();
        }
    }

    fn set_space(&mut self, writes: bool) {
        if std::mem::replace(&mut self.space_ok, writes) != writes {
            self.events.push_back(Event::Space { writes });
        }
    }

    /// Takes space for a segment of `wanted` bytes, or for the smallest that holds `need`. None when neither leaves the
    /// volume above its lower mark: then claims are refused until it has its upper one again.
    pub(super) fn space_for_segment(&mut self, wanted: u64, need: usize, max: u64) -> Option<u64> {
        let Some(above) = self.space.above(self.config.space_low_bytes) else { return Some(wanted) };
        let least = size_class(0, need as u64, max);
        let size = [wanted, least].into_iter().find(|size| *size <= above);
        match size {
            Some(size) => self.space.take(size),
            None => self.set_space(false),
        }
        size
    }

    /// No segment could be made for the log: its claims are refused as for want of space until the next try.
    pub(super) fn starve(&mut self, log: LogId) {
        if let Some(shard) = self.logs.get_mut(&log) {
            shard.starved = true;
        }
    }
}
