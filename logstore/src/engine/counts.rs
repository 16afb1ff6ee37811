//! Figures of an engine. Scope: plain numbers, one set per engine.
//! Invariants: totals only rise.
//! Not here: where they are shown.

use std::time::Duration;

use felix_runtime::clock::Tick;

/// What an engine has done and where it stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Rounds of the commit file that were answered well, and their bytes.
    pub rounds: u64,
    pub round_bytes: u64,
    /// Pieces in those rounds.
    pub round_pieces: u64,
    /// Time from the asking for a round to its answer, in all.
    pub round_time: Duration,
    /// The same for pieces written straight to segments.
    pub direct: u64,
    pub direct_bytes: u64,
    pub direct_time: Duration,
    /// Bytes brought from slots to segments.
    pub spilled_bytes: u64,
    /// Flushes of logs that settle before they are durable.
    pub flushes: u64,
    /// Segments that were given up by retention.
    pub retired: u64,
    /// Bytes of their files.
    pub retired_bytes: u64,
    /// Operations that failed.
    pub troubles: u64,
    /// Operations that were not answered within 5 s; they may have been later.
    pub unanswered: u64,
    /// How often the volume has told how many bytes are free.
    pub space_asked: u64,
    /// Bytes free on the volume, when it was last asked.
    pub free_bytes: u64,
}

impl Counts {
    pub(super) fn round(&mut self, bytes: usize, pieces: usize, asked: Tick, now: Tick) {
        self.rounds += 1;
        self.round_bytes += bytes as u64;
        self.round_pieces += pieces as u64;
        self.round_time += now.saturating_since(asked);
    }

    pub(super) fn direct(&mut self, bytes: usize, asked: Tick, now: Tick) {
        self.direct += 1;
        self.direct_bytes += bytes as u64;
        self.direct_time += now.saturating_since(asked);
    }
}

/// Where an engine stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Gauges {
    pub logs: usize,
    /// Bytes in memory on their way to segments.
    pub memory_bytes: usize,
    pub slots: usize,
    /// Slots that rounds could go to next.
    pub slots_ready: usize,
    /// Slots set aside for good.
    pub slots_aside: usize,
    /// Bytes of all slots, and how many of them are in use: rounds that are still needed.
    pub commit_bytes: u64,
    pub commit_used_bytes: u64,
    /// Bytes used of the open slot.
    pub slot_used_bytes: u64,
    /// Files waiting for their next use as segments, and their bytes.
    pub pooled: usize,
    pub pool_bytes: u64,
    /// Reads under way.
    pub reads: usize,
    /// Operations that have not been answered for at least 5 s.
    pub unanswered: usize,
}
