//! Bytes of a volume that engines have taken for files, and failures that concern them all. Scope: one per volume, shared by
//! the engines of all cores.
//! Owns: counts that only rise.
//! Invariants: what was free when an engine asked, less everything taken that was not surely on the disk by then, is never
//! more than what is free; two engines never take the same bytes.
//! Not here: asking the volume, what is done when there is too little (`space`).
//!
//! It is shared memory, which cores else have none of: the free space of a volume is shared by them whatever we do, and a
//! core that had to ask another one before it makes a file would wait for it inside a turn.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// See the module. Clones are the same.
#[derive(Debug, Clone, Default)]
pub struct Reservations(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    /// Bytes taken, ever.
    taken: AtomicU64,
    /// Of those, bytes whose file was made, or given up.
    made: AtomicU64,
    /// Syncs of directories that failed, ever.
    dirs_failed: AtomicU64,
}

impl Reservations {
    /// What was made before now: an answer of the volume to a question asked later counts it.
    pub(super) fn made(&self) -> u64 {
        self.0.made.load(SeqCst)
    }

    /// Bytes that an answer may not count, when `made` had been made before it was asked for.
    pub(super) fn unseen(&self, made: u64) -> u64 {
        self.0.taken.load(SeqCst).wrapping_sub(made)
    }

    /// Takes `bytes` if `fits` says so of the bytes unseen with them.
    pub(super) fn try_take(&self, bytes: u64, made: u64, fits: impl Fn(u64) -> bool) -> bool {
        let with = |taken: u64| {
            let taken = taken.wrapping_add(bytes);
            fits(taken.wrapping_sub(made)).then_some(taken)
        };
        self.0.taken.fetch_update(SeqCst, SeqCst, with).is_ok()
    }

    /// Takes `bytes` that must be had.
    pub(super) fn take(&self, bytes: u64) {
        self.0.taken.fetch_add(bytes, SeqCst);
    }

    /// Syncs of directories that failed so far. When one fails, what others have made in that directory may be forgotten
    /// although a later sync ends well.
    pub(crate) fn dirs_failed(&self) -> u64 {
        self.0.dirs_failed.load(SeqCst)
    }

    /// A sync of a directory failed.
    pub(crate) fn dir_failed(&self) {
        self.0.dirs_failed.fetch_add(1, SeqCst);
    }

    /// A file of `bytes` that were taken is there, or will never be.
    pub(super) fn settle(&self, bytes: u64) {
        self.0.made.fetch_add(bytes, SeqCst);
    }
}
