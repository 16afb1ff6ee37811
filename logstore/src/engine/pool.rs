//! Segment files that wait for their next use: retired ones, and ones that were written with zeros ahead of time.
//! Scope: part of [`Engine`].
//! Owns: the files of the pool, the one that is being filled, and what a log of full size keeps for its own next segment.
//! Invariants: every block of a file of the pool was written before, so writing it again changes neither size nor extents;
//! filling takes one small write at a time and leaves the disk to rounds and direct writes, but for a small share; a
//! segment with readers is unlinked, not used again.
//! Not here: which segments are retired (`log`), when one is made (`tend`).

use std::time::Duration;

use felix_runtime::clock::Tick;
use felix_runtime::file::{DiskError, DiskPath, SharedBuf};

use super::scripts::{self, Ended};
use super::stop::Closing;
use super::{Engine, LogId};
use crate::log::Sealed;
use crate::names;
use crate::script::{Desk, Handles};

/// Segments from here on may be larger than asked for, if such a file was written before.
const LARGE_BYTES: u64 = 1 << 20;
/// Bytes of one write of a fill.
const FILL_BYTES: u64 = 256 << 10;
/// While rounds or direct writes are in flight a fill makes one write in this time: 25 MB/s.
const FILL_EVERY: Duration = Duration::from_millis(10);
/// How long a fill that failed is not tried again.
const FILL_AGAIN: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub(super) struct Pool {
    files: Vec<(u64, DiskPath)>,
    next: u64,
    /// On their way into it.
    coming: usize,
    /// Its files are being removed, or the volume was not asked since.
    emptying: bool,
    /// They are removed.
    emptied: bool,
    /// A log was large enough for the files that a fill makes: before that nothing is filled.
    wanted: bool,
    fill: Option<Fill>,
    /// Files that are filled and being synced.
    filled: usize,
    not_before: Option<Tick>,
}

/// A file that is being filled.
#[derive(Debug)]
struct Fill {
    path: DiskPath,
    files: Option<Handles>,
    /// Up to here it is written.
    at: u64,
    /// An operation is under way.
    busy: bool,
    /// When the next write is due even if others are in flight.
    next: Tick,
    zeros: Option<SharedBuf>,
}

/// The last segment that a log gave up. It stays where it is, below the log's start, and becomes the next segment by one
/// change of its name, where the way through the pool takes two and three directories that have to be synced.
#[derive(Debug)]
pub(super) enum Kept {
    None,
    /// Its handles are being closed.
    Coming,
    /// With its size.
    There(u64, DiskPath),
}

impl Kept {
    /// The file, which is somebody else's from now on.
    pub fn take(&mut self) -> Option<(u64, DiskPath)> {
        match std::mem::replace(self, Kept::None) {
            Kept::There(size_bytes, path) => Some((size_bytes, path)),
            Kept::Coming => {
                *self = Kept::Coming;
                None
            }
            Kept::None => None,
        }
    }

    pub fn bytes(&self) -> Option<u64> {
        match self {
            Kept::There(size_bytes, _) => Some(*size_bytes),
            Kept::None | Kept::Coming => None,
        }
    }
}

impl Pool {
    pub fn len(&self) -> usize {
        self.files.len()
    }

    /// Bytes of its files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|(size, _)| size).sum()
    }

    /// A file of that size; for a large one also a larger one, up to `max` bytes, or the largest of at least half the size.
    /// Gives its size too.
    pub fn take(&mut self, size_bytes: u64, need: u64, max: u64) -> Option<(u64, DiskPath)> {
        let large = size_bytes >= LARGE_BYTES;
        let most = if large { max.max(size_bytes) } else { size_bytes };
        let files = || self.files.iter().enumerate().map(|(at, (size, _))| (at, *size));
        let fits =
            files().filter(|(_, size)| (size_bytes..=most).contains(size)).min_by_key(|(_, size)| *size);
        let half = || {
            let above = (size_bytes / 2).max(need).max(LARGE_BYTES);
            files().filter(|(_, size)| large && *size >= above).max_by_key(|(_, size)| *size)
        };
        let (at, _) = fits.or_else(half)?;
        Some(self.files.swap_remove(at))
    }

    /// Makes room for a file of that size in a full pool by giving up the smallest, if that is smaller: what small logs left
    /// behind as they grew is of no use to large ones, and must not be what the pool is full of.
    fn give_up_smaller(&mut self, size_bytes: u64) -> Option<DiskPath> {
        let (at, (smallest, _)) = self.files.iter().enumerate().min_by_key(|(_, (size, _))| *size)?;
        (*smallest < size_bytes).then(|| self.files.swap_remove(at).1)
    }

    /// The volume is asked how much is free. True when its answer counts what was removed.
    pub fn asked(&self) -> bool {
        self.emptied
    }

    /// It has said so.
    pub fn told(&mut self) {
        (self.emptying, self.emptied) = (false, false);
    }

    /// When the fill is due, if there is one that waits.
    pub fn next_timeout(&self) -> Option<Tick> {
        self.fill.as_ref().filter(|fill| !fill.busy).map(|fill| fill.next)
    }
}

impl Engine {
    /// A segment file for a log that wants one of `size_bytes` and has at once `need` to write.
    pub(super) fn take_pooled(&mut self, size_bytes: u64, need: usize, max: u64) -> Option<(u64, DiskPath)> {
        self.pool.wanted |= size_bytes >= LARGE_BYTES.min(self.config.pool_fill_bytes);
        // A head, and the padding before and behind a batch.
        let need = need as u64 + 4 * crate::limits::BLOCK;
        self.pool.take(size_bytes, need, max)
    }

    /// The file that a log keeps for its next segment, if that is to have `size_bytes`, or up to `max`. One of another size is
    /// of no use any more.
    pub(super) fn take_kept(&mut self, log: LogId, size_bytes: u64, max: u64) -> Option<(u64, DiskPath)> {
        let (kept_bytes, path) = self.logs.get_mut(&log)?.kept.take()?;
        if (size_bytes..=max.max(size_bytes)).contains(&kept_bytes) {
            return Some((kept_bytes, path));
        }
        self.tidy(path);
        None
    }

    /// Removes a file without making that durable: when it is found again it is removed again.
    fn tidy(&mut self, path: DiskPath) {
        let desk = self.desk.clone();
        self.scripts.start(async move {
            let _ = desk.unlink(path).await;
            Ended::Tidied
        });
    }

    pub(super) fn kept(&mut self, log: LogId, path: DiskPath, size_bytes: u64) {
        match self.logs.get_mut(&log) {
            Some(shard) if self.closing == Closing::No => shard.kept = Kept::There(size_bytes, path),
            Some(shard) => shard.kept = Kept::None,
            // Deleted meanwhile, with its directory, or gone to another core, which knows nothing of it.
            None => self.tidy(path),
        }
        self.ask_again();
    }

    pub(super) fn retire(&mut self, log: LogId, sealed: &Sealed) {
        let Some(shard) = self.logs.get(&log) else { return };
        // One that still grows has no use for what it leaves behind.
        let grown = sealed.size_bytes >= shard.log.config().segment_bytes_max;
        let keeps = grown && matches!(shard.kept, Kept::None) && shard.log.open().next().is_some();
        self.counts.retired += 1;
        self.counts.retired_bytes += sealed.size_bytes;
        let from = names::segment(self.config.volume, shard.log.key(), sealed.seq);
        let mut files = Vec::new();
        let read = self.reads.is_read(log, sealed.seq);
        if !read {
            self.reads.forget(log, sealed.seq, &mut files);
        }
        // One that is being read keeps its bytes, without a name, until the last handle is closed. On a volume that is nearly
        // full others want the space more.
        // Logs that are written evenly come to their next segments at the same time, and retire one each.
        let most = self.config.pool_files_max.max(self.logs.len());
        let useful = !read && self.is_roomy();
        let keeps = useful && keeps;
        let full = self.pool.files.len() + self.pool.coming >= most;
        let replaces = useful && !keeps && full;
        let given_up = if replaces { self.pool.give_up_smaller(sealed.size_bytes) } else { None };
        let pooled = useful && !keeps && (!full || given_up.is_some());
        if keeps && let Some(shard) = self.logs.get_mut(&log) {
            shard.kept = Kept::Coming;
        }
        let to = self.next_pooled();
        let (desk, size_bytes) = (self.desk.clone(), sealed.size_bytes);
        self.pool.coming += usize::from(pooled);
        let handles = sealed.files;
        self.scripts.start(async move {
            for file in files {
                desk.close(file).await;
            }
            if let Some(handles) = handles {
                desk.close_both(handles).await;
            }
            if keeps {
                return Ended::Kept { log, path: from, size_bytes };
            }
            if let Some(path) = given_up {
                let _ = desk.unlink(path).await;
            }
            if pooled {
                let result = scripts::pool_segment(&desk, from, to.clone()).await;
                return Ended::Pooled { path: to, size_bytes, result };
            }
            let _ = desk.unlink(from.clone()).await;
            let _ = desk.sync_dir(from.parent()).await;
            Ended::Tidied
        });
    }

    fn next_pooled(&mut self) -> DiskPath {
        let number = self.pool.next;
        self.pool.next += 1;
        names::pooled(self.config.volume, self.config.run, self.config.core, number)
    }

    pub(super) fn pooled(&mut self, path: DiskPath, size_bytes: u64, result: Result<(), DiskError>) {
        self.pool.coming -= 1;
        if result.is_ok() {
            self.pool.files.push((size_bytes, path));
        }
        self.ask_again();
    }

    /// Something of the pool came to rest: when a log waits for what the pool gives back, it goes on.
    fn ask_again(&mut self) {
        if self.space.is_waited_for() {
            self.next_space = self.now;
        }
    }

    /// Begins to fill a file for the pool, or writes a little more of it.
    pub(super) fn tend_fill(&mut self, now: Tick) {
        if self.closing != Closing::No {
            self.drop_fill();
            return;
        }
        let busy = self.round.is_some() || !self.directs.is_empty();
        let bytes = self.config.pool_fill_bytes;
        match &mut self.pool.fill {
            None => self.begin_fill(now),
            Some(fill) if fill.busy || (busy && now < fill.next) => {}
            Some(fill) => {
                fill.next = now + FILL_EVERY;
                let Some(files) = fill.files else { return };
                if fill.at >= bytes {
                    self.end_fill();
                    return;
                }
                if fill.zeros.is_none() {
                    // No buffer now: the next try is a moment later.
                    let Ok(mut buffer) = self.desk.pool().take(FILL_BYTES.min(bytes) as usize) else {
                        return;
                    };
                    buffer.push_zeros(buffer.capacity());
                    fill.zeros = Some(buffer.freeze());
                }
                let Some(zeros) = fill.zeros.clone() else { return };
                // The last write may go over one before: what is there are zeros.
                let at = fill.at.min(bytes - zeros.len() as u64);
                fill.at = at + zeros.len() as u64;
                fill.busy = true;
                let desk = self.desk.clone();
                self.scripts.start(async move {
                    let result = desk.write(files.plain, at, zeros).await;
                    Ended::FillWritten { result }
                });
            }
        }
    }

    fn begin_fill(&mut self, now: Tick) {
        let (config, pool) = (&self.config, &self.pool);
        let bytes = config.pool_fill_bytes;
        let there = pool.files.iter().filter(|(size, _)| *size >= bytes).count();
        let early = pool.not_before.is_some_and(|at| now < at);
        if !pool.wanted || early || there + pool.filled >= config.pool_fill || !self.is_roomy() {
            return;
        }
        // What is filled ahead must not be what makes the volume full.
        let kept = config.space_high_bytes.saturating_add(3 * bytes);
        if self.space.above(0).is_none() || !self.space.try_take(bytes, kept) {
            return;
        }
        self.pool.coming += 1;
        let path = self.next_pooled();
        let desk = self.desk.clone();
        self.pool.fill =
            Some(Fill { path: path.clone(), files: None, at: 0, busy: true, next: now, zeros: None });
        self.scripts
            .start(async move { Ended::FillBegun { result: scripts::begin_fill(&desk, path, bytes).await } });
    }

    pub(super) fn fill_begun(&mut self, result: Result<Handles, DiskError>, now: Tick) {
        self.space.settle(self.config.pool_fill_bytes);
        if let (Some(fill), Ok(files)) = (&mut self.pool.fill, &result) {
            fill.files = Some(*files);
        }
        self.fill_written(result.map(|_| ()), now);
    }

    pub(super) fn fill_written(&mut self, result: Result<(), DiskError>, now: Tick) {
        let Some(fill) = &mut self.pool.fill else { return };
        fill.busy = false;
        self.ask_again();
        if let Err(error) = result {
            self.trouble("filling a file ahead", error);
            self.pool.not_before = Some(now + FILL_AGAIN);
            self.drop_fill();
        }
    }

    fn end_fill(&mut self) {
        let Some(Fill { path, files: Some(files), .. }) = self.pool.fill.take() else { return };
        let (desk, size_bytes) = (self.desk.clone(), self.config.pool_fill_bytes);
        self.pool.filled += 1;
        self.scripts.start(async move {
            let result = desk.sync(files.plain).await;
            desk.close_both(files).await;
            Ended::Filled { path, size_bytes, result }
        });
    }

    pub(super) fn filled(&mut self, path: DiskPath, size_bytes: u64, result: Result<(), DiskError>) {
        self.pool.filled -= 1;
        self.pooled(path, size_bytes, result);
    }

    /// What was in the pool is removed: how much that is, the volume says.
    pub(super) fn pool_emptied(&mut self) {
        self.pool.emptied = true;
        self.next_space = self.now;
    }

    /// The volume comes near its marks: what waits for its next use is given back. True when there is any of that, now or on its
    /// way: the volume is asked again when it is gone.
    pub(super) fn empty_pool(&mut self) -> bool {
        if self.pool.emptying {
            return true;
        }
        let filling = self.pool.fill.as_ref().is_some_and(|fill| !fill.busy);
        let mut paths: Vec<DiskPath> = self.pool.files.drain(..).map(|(_, path)| path).collect();
        paths.extend(self.logs.values_mut().filter_map(|shard| shard.kept.take()).map(|(_, path)| path));
        if paths.is_empty() && !filling {
            // What is under way is given back after the next answer of the volume.
            let keeping = self.logs.values().any(|shard| matches!(shard.kept, Kept::Coming));
            return self.pool.fill.is_some() || self.pool.coming > 0 || keeping;
        }
        let fill = if filling { self.pool.fill.take() } else { None };
        self.pool.coming -= usize::from(filling);
        let desk = self.desk.clone();
        self.pool.emptying = true;
        self.scripts.start(async move {
            if let Some(fill) = fill {
                drop_filling(&desk, fill).await;
            }
            for path in paths {
                let _ = desk.unlink(path).await;
            }
            Ended::PoolEmptied
        });
        true
    }

    /// Gives up the file that is being filled, if nothing is under way on it.
    fn drop_fill(&mut self) {
        if self.pool.fill.as_ref().is_none_or(|fill| fill.busy) {
            return;
        }
        let Some(fill) = self.pool.fill.take() else { return };
        self.pool.coming -= 1;
        let desk = self.desk.clone();
        self.scripts.start(async move {
            drop_filling(&desk, fill).await;
            Ended::Tidied
        });
    }

    /// Whether a file is still being filled.
    pub(super) fn is_filling(&self) -> bool {
        self.pool.fill.is_some() || self.pool.filled > 0
    }
}

async fn drop_filling(desk: &Desk, fill: Fill) {
    if let Some(files) = fill.files {
        desk.close_both(files).await;
    }
    let _ = desk.unlink(fill.path).await;
}
