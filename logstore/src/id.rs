//! Who and where: a shard's log, a segment, a place in it. Scope: values.
//! Invariants: a segment number is used once in the life of a log; a place is given once.
//! Not here: paths (`names`).

use std::fmt;

use felix_wire::id::Incarnation;

/// One log: a shard of one life of a stream. `name` is a hash, so that no text of a client reaches the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardKey {
    pub name: u128,
    pub incarnation: Incarnation,
}

impl fmt::Display for ShardKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}-{:016x}", self.name, self.incarnation.0)
    }
}

/// Number of a segment in its log, from 1. Rises; never used again, also not after a truncation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentSeq(pub u64);

/// Which stretch of a log's life bytes belong to: rises at every open, move and truncation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lineage(pub u64);

/// Number of a process's use of a volume. Rises.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Run(pub u64);

/// Number of a commit round of one core in one run, from 1, without gaps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RoundNumber(pub u64);

/// A byte of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    pub segment: SegmentSeq,
    pub byte: u64,
}

/// What "acknowledged" means for a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Fsync {
    /// Durable.
    #[default]
    OnCommit,
    /// Written; durable within the engine's interval.
    Periodic,
    /// Written; durable when the engine has another reason to sync.
    None,
}

impl Fsync {
    pub(crate) fn code(self) -> u8 {
        match self {
            Fsync::OnCommit => 0,
            Fsync::Periodic => 1,
            Fsync::None => 2,
        }
    }

    pub(crate) fn from_code(code: u8) -> Option<Fsync> {
        match code {
            0 => Some(Fsync::OnCommit),
            1 => Some(Fsync::Periodic),
            2 => Some(Fsync::None),
            _ => None,
        }
    }
}
