//! Free bytes of the volume, and what is asked from time to time. Scope: part of [`Engine`].
//! Owns: how much space there is, as far as is known, and whether claims may go on.
//! Invariants: a file is made only when the volume stays above the lower mark with it and with all that other cores are
//! making, so claims are refused before the disk is full; what was claimed has its space already.
//! Not here: making files (`tend`, `slots`), the pool (`pool`).

use felix_runtime::clock::Tick;
use felix_runtime::file::{DiskError, Op, Outcome};

use super::reserve::Reservations;
use super::scripts::Ended;
use super::{Engine, Event, LogId};
use crate::segment::size_class;

/// What is known of the volume.
#[derive(Debug)]
pub(super) struct Space {
    reservations: Reservations,
    free: Free,
    asking: bool,
    /// Logs that want a segment wait for the next answer.
    waiting: bool,
    /// The pool was emptied before the volume was asked.
    without_pool: bool,
}

/// What the volume said last.
#[derive(Debug, Clone, Copy)]
enum Free {
    /// It was not asked yet.
    Unasked,
    /// It does not say.
    Unknown,
    /// Bytes that were free, and what had been made before that was asked.
    Bytes { free: u64, made: u64 },
}

/// What there is for a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SegmentSpace {
    /// So many bytes, which are taken.
    Taken(u64),
    /// It is not known yet.
    Wait,
    /// Not enough.
    Nothing,
}

impl Space {
    pub fn new(reservations: Reservations) -> Space {
        Space { reservations, free: Free::Unasked, asking: false, waiting: false, without_pool: false }
    }

    /// Whether logs wait for the next answer.
    pub fn is_waited_for(&self) -> bool {
        self.waiting
    }

    /// Whether an answer is on its way: until then there is no time at which to ask.
    pub fn is_asking(&self) -> bool {
        self.asking
    }

    /// Bytes left above `kept`, as far as is known.
    pub fn above(&self, kept: u64) -> Option<u64> {
        let Free::Bytes { free, made } = self.free else { return None };
        Some(free.saturating_sub(self.reservations.unseen(made)).saturating_sub(kept))
    }

    /// Takes `bytes` for a file, if the volume keeps `kept` with them. [`Space::settle`] must follow.
    pub fn try_take(&self, bytes: u64, kept: u64) -> bool {
        match self.free {
            Free::Bytes { free, made } => {
                let fits = |unseen: u64| unseen.saturating_add(kept) <= free;
                self.reservations.try_take(bytes, made, fits)
            }
            Free::Unasked | Free::Unknown => {
                self.reservations.take(bytes);
                true
            }
        }
    }

    /// Takes `bytes` for a file that must be made. [`Space::settle`] must follow.
    pub fn take(&self, bytes: u64) {
        self.reservations.take(bytes);
    }

    /// The file for which `bytes` were taken is there, or was given up.
    pub fn settle(&self, bytes: u64) {
        self.reservations.settle(bytes);
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
        self.space.without_pool = self.pool.asked();
        let made = self.space.reservations.made();
        let (desk, volume) = (self.desk.clone(), self.config.volume);
        self.scripts.start(async move {
            let free_bytes = match desk.ask(Op::Space { volume }).await {
                Ok(Outcome::Space(space)) => Ok(space.free_bytes),
                Ok(_) => Err(DiskError::Io { errno: 0 }),
                Err(error) => Err(error),
            };
            Ended::Space { free_bytes, made }
        });
        let old: Vec<LogId> = self.logs.keys().copied().collect();
        self.due.extend(old);
    }

    pub(super) fn space_told(&mut self, free_bytes: Result<u64, DiskError>, made: u64) {
        self.space.asking = false;
        if std::mem::take(&mut self.space.without_pool) {
            self.pool.told();
        }
        if std::mem::take(&mut self.space.waiting) {
            self.due.extend(self.logs.keys().copied());
        }
        let Ok(free) = free_bytes else {
            if matches!(self.space.free, Free::Unasked) {
                self.space.free = Free::Unknown;
            }
            return;
        };
        self.counts.space_asked += 1;
        self.counts.free_bytes = free;
        self.space.free = Free::Bytes { free, made };
        let left = free.saturating_sub(self.space.reservations.unseen(made));
        if left < self.config.space_low_bytes {
            self.set_space(false);
        } else if left >= self.config.space_high_bytes {
            self.set_space(true);
        }
        self.slots_retry();
        if self.space_ok {
            for (log, shard) in &mut self.logs {
                if std::mem::take(&mut shard.starved) {
                    self.due.insert(*log);
                }
            }
        }
        // Below the upper mark nothing is kept for later: other cores may need it before they refuse.
        if !self.is_roomy() {
            self.empty_pool();
        }
    }

    /// Whether the volume has so much space that files may be kept for their next use.
    pub(super) fn is_roomy(&self) -> bool {
        self.space_ok && self.space.above(self.config.space_high_bytes).is_none_or(|above| above > 0)
    }

    fn set_space(&mut self, writes: bool) {
        if std::mem::replace(&mut self.space_ok, writes) != writes {
            self.events.push_back(Event::Space { writes });
        }
    }

    /// Takes space for a segment of `wanted` bytes, or for the smallest that holds `need`. When neither leaves the volume
    /// above its lower mark, the pool is given back; when there is nothing in it, claims are refused until the volume has its
    /// upper mark again. One that `frees` others may then be the smallest, out of half of what is kept free.
    pub(super) fn space_for_segment(
        &mut self,
        wanted: u64,
        need: usize,
        max: u64,
        frees: bool,
    ) -> SegmentSpace {
        if matches!(self.space.free, Free::Unasked) {
            self.space.waiting = true;
            return SegmentSpace::Wait;
        }
        let least = size_class(0, need as u64, max);
        let kept = self.config.space_low_bytes;
        if let Some(size) = [wanted, least].into_iter().find(|size| self.space.try_take(*size, kept)) {
            return SegmentSpace::Taken(size);
        }
        if self.empty_pool() {
            self.space.waiting = true;
            return SegmentSpace::Wait;
        }
        self.set_space(false);
        if frees && self.space.try_take(least, kept / 2) {
            return SegmentSpace::Taken(least);
        }
        SegmentSpace::Nothing
    }

    /// No segment could be made for the log: its claims are refused as for want of space until the next try.
    pub(super) fn starve(&mut self, log: LogId) {
        if let Some(shard) = self.logs.get_mut(&log) {
            shard.starved = true;
        }
    }
}
