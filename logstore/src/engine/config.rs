//! What an engine is to be like. Scope: values.
//! Invariants: [`EngineConfig::check`] has passed before an engine uses it.
//! Not here: what a log is to be like (`log::LogConfig`).

use std::time::Duration;

use felix_runtime::file::VolumeId;
use felix_wire::id::CoreId;

use super::reserve::Reservations;
use crate::commit::mark::MARK_BYTES;
use crate::id::Run;
use crate::limits::{BATCH_BYTES_MAX, MARKS_SHARE, SEGMENT_BYTES_MIN, SLOT_BYTES_MIN, SLOTS_MIN};

/// Settings of one engine.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    pub volume: VolumeId,
    pub core: CoreId,
    /// From recovery: higher than any before on the volume.
    pub run: Run,
    /// The kernel's boot id.
    pub boot: [u8; 16],
    /// Random; another one at every start.
    pub entropy: u64,
    /// Tokens from here on are the engine's.
    pub first_token: u64,
    /// Files the commit file consists of.
    pub slots: usize,
    pub slot_bytes: u64,
    /// Bytes of all logs that may be in memory on their way to segments.
    pub memory_bytes_max: usize,
    /// Writes to one segment in flight at once; of small ones two, so that those behind them gather.
    pub direct_depth: usize,
    /// From one flush to the next, of logs with `Fsync::Periodic`.
    pub flush_every: Duration,
    /// A core that settled nothing for that long writes down every end.
    pub idle_after: Duration,
    /// Writes are refused when the volume has less space than this.
    pub space_low_bytes: u64,
    /// And go on when it has this much.
    pub space_high_bytes: u64,
    pub space_every: Duration,
    /// The same for all engines of the volume.
    pub reservations: Reservations,
    /// Segment files kept for their next use, or one per log where there are more logs.
    pub pool_files_max: usize,
    /// Of these, so many are made in the background once a log is large enough for them, each `pool_fill_bytes` long and
    /// written with zeros, as long as the volume stays 4 of them above `space_high_bytes`.
    pub pool_fill: usize,
    pub pool_fill_bytes: u64,
    /// Sealed segments open for reading at once.
    pub read_files_max: usize,
    /// Reads at once.
    pub reads_max: usize,
}

impl EngineConfig {
    /// Settings for a core of a volume, with the sizes of a broker.
    #[must_use]
    pub fn new(volume: VolumeId, core: CoreId, run: Run, boot: [u8; 16], entropy: u64) -> EngineConfig {
        EngineConfig {
            volume,
            core,
            run,
            boot,
            entropy,
            first_token: 0,
            slots: SLOTS_MIN,
            slot_bytes: 64 << 20,
            memory_bytes_max: 64 << 20,
            direct_depth: 8,
            flush_every: Duration::from_millis(250),
            idle_after: Duration::from_millis(100),
            space_low_bytes: 1 << 30,
            space_high_bytes: 2 << 30,
            space_every: Duration::from_secs(1),
            reservations: Reservations::default(),
            pool_files_max: 16,
            pool_fill: 2,
            pool_fill_bytes: 64 << 20,
            read_files_max: 256,
            reads_max: 1_024,
        }
    }

    /// Logs one engine can hold: their marks must fit a part of a slot.
    #[must_use]
    pub fn logs_max(&self) -> usize {
        usize::try_from(self.slot_bytes / MARKS_SHARE).unwrap_or(usize::MAX) / MARK_BYTES
    }

    /// Whether the bounds fit each other.
    ///
    /// # Errors
    /// Says which does not.
    pub fn check(&self) -> Result<(), &'static str> {
        if self.slots < SLOTS_MIN || self.slot_bytes < SLOT_BYTES_MIN {
            return Err("an engine needs 4 slots of 1 MiB");
        }
        if self.slot_bytes > u64::from(u32::MAX) || !self.slot_bytes.is_multiple_of(crate::limits::BLOCK) {
            return Err("a slot is whole blocks and below 4 GiB");
        }
        if self.memory_bytes_max < 2 * BATCH_BYTES_MAX as usize {
            return Err("memory for two of the largest batches is needed");
        }
        if self.pool_fill_bytes < SEGMENT_BYTES_MIN
            || !self.pool_fill_bytes.is_multiple_of(crate::limits::BLOCK)
        {
            return Err("a file that is filled ahead is whole blocks and at least 64 KiB");
        }
        if self.space_high_bytes < self.space_low_bytes || self.direct_depth == 0 || self.reads_max == 0 {
            return Err("a bound is upside down or nothing");
        }
        Ok(())
    }
}
