//! What can go wrong on a simulated disk. Scope: values, and the chance behind them.
//! Invariants: with the same seed and the same operations the same things go wrong.
//! Not here: power loss and damage at rest.

use std::time::Duration;

use crate::file::{DiskError, DiskPath, Op};
use crate::sim::SimRng;

/// What happens to operations by chance. Parts per million are per operation of the kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskFaults {
    /// Every operation takes at least this long,
    pub latency: Duration,
    /// and up to this much longer, evenly spread.
    pub jitter: Duration,
    /// Operations that take `stall` on top.
    pub stall_ppm: u32,
    pub stall: Duration,
    /// Writes that fail and leave any part of their sectors.
    pub write_error_ppm: u32,
    /// Syncs, of files and directories, that fail.
    pub sync_error_ppm: u32,
    pub read_error_ppm: u32,
    /// Everything else that fails, without having happened.
    pub other_error_ppm: u32,
    /// Reads that bring less than they could.
    pub short_read_ppm: u32,
    /// Reads that bring one wrong bit; the bytes on the disk stay right.
    pub flip_ppm: u32,
}

impl DiskFaults {
    /// A perfect disk on which everything takes `latency`.
    pub const fn none(latency: Duration) -> DiskFaults {
        DiskFaults {
            latency,
            jitter: Duration::ZERO,
            stall_ppm: 0,
            stall: Duration::ZERO,
            write_error_ppm: 0,
            sync_error_ppm: 0,
            read_error_ppm: 0,
            other_error_ppm: 0,
            short_read_ppm: 0,
            flip_ppm: 0,
        }
    }

    /// A slow but honest disk: answers in any order, one in a hundred late by 100 times, one read in twenty short.
    pub const fn slow(latency: Duration) -> DiskFaults {
        DiskFaults {
            jitter: latency.saturating_mul(4),
            stall_ppm: 10_000,
            stall: latency.saturating_mul(100),
            short_read_ppm: 50_000,
            ..DiskFaults::none(latency)
        }
    }

    pub(super) fn draw(&self, kind: OpKind, rng: &mut SimRng) -> Option<Fault> {
        let error_ppm = match kind {
            OpKind::Write => self.write_error_ppm,
            OpKind::Sync | OpKind::SyncDir => self.sync_error_ppm,
            OpKind::Read => self.read_error_ppm,
            OpKind::Close | OpKind::Lock => 0,
            _ => self.other_error_ppm,
        };
        if rng.chance(error_ppm) {
            return Some(Fault::Error(DiskError::Io { errno: libc::EIO }));
        }
        if rng.chance(self.stall_ppm) {
            return Some(Fault::Stall(self.stall));
        }
        if kind == OpKind::Read {
            if rng.chance(self.short_read_ppm) {
                return Some(Fault::ShortRead);
            }
            if rng.chance(self.flip_ppm) {
                return Some(Fault::FlippedBit);
            }
        }
        None
    }
}

/// What goes wrong with one operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It is answered so. A write leaves any part of its sectors, a sync leaves in doubt for ever what it was to cover;
    /// nothing else has happened.
    Error(DiskError),
    /// It takes this much longer, and then works.
    Stall(Duration),
    /// A read brings less than it could, at least one sector.
    ShortRead,
    /// A read brings one wrong bit.
    FlippedBit,
}

/// The kind of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OpKind {
    Open,
    Close,
    Lock,
    Write,
    Read,
    Sync,
    Presize,
    SetLen,
    Len,
    SyncDir,
    MakeDir,
    RemoveDir,
    Rename,
    Unlink,
    List,
    Space,
}

impl OpKind {
    pub fn of(op: &Op) -> OpKind {
        match op {
            Op::Open { .. } => OpKind::Open,
            Op::Close { .. } => OpKind::Close,
            Op::Lock { .. } => OpKind::Lock,
            Op::Write { .. } => OpKind::Write,
            Op::Read { .. } => OpKind::Read,
            Op::Sync { .. } => OpKind::Sync,
            Op::Presize { .. } => OpKind::Presize,
            Op::SetLen { .. } => OpKind::SetLen,
            Op::Len { .. } => OpKind::Len,
            Op::SyncDir { .. } => OpKind::SyncDir,
            Op::MakeDir { .. } => OpKind::MakeDir,
            Op::RemoveDir { .. } => OpKind::RemoveDir,
            Op::Rename { .. } => OpKind::Rename,
            Op::Unlink { .. } => OpKind::Unlink,
            Op::List { .. } => OpKind::List,
            Op::Space { .. } => OpKind::Space,
        }
    }
}

/// An operation as the chooser of faults sees it.
#[derive(Debug, Clone, Copy)]
pub struct Asked<'a> {
    /// Operations before it on this disk: with the same seed it is the same operation in every run.
    pub number: u64,
    pub kind: OpKind,
    /// The path it names, or by which its file was opened; of a rename the old one.
    pub path: Option<&'a DiskPath>,
}
