//! Records that are appended one by one. Scope: part of [`Engine`].
//! Invariants: what a claim would be refused for is refused here too; a record that finds a batch of its log still waiting
//! to be submitted joins it, so that many cost little more than one.
//! Not here: taking batches to the disk (`commit`).

use std::num::NonZeroU32;

use felix_wire::id::Offset;

use super::slots::Ways;
use super::{Engine, LOG_MEMORY_SHARE, LogId, stop};
use crate::log::{AppendMeta, ClaimError};
use crate::record::BatchKind;

impl Engine {
    /// Appends one record to `log`, with the batch's own time: to the batch before it while that waits and is small, else as a
    /// batch that others may join. It is on its way after the next [`Engine::poll`]. Gives its offset.
    ///
    /// # Errors
    /// Nothing was appended; as [`Engine::claim`].
    pub fn write(&mut self, log: LogId, meta: AppendMeta, payload: &[u8]) -> Result<Offset, ClaimError> {
        if let Some(at) = self.grow(log, meta, payload) {
            return Ok(at);
        }
        let claim = self.claim(log, BatchKind::Data, NonZeroU32::MIN, payload.len())?;
        let base = claim.base();
        self.with(log, |log| log.append_growing(claim, meta, payload));
        Ok(base)
    }

    fn grow(&mut self, log: LogId, meta: AppendMeta, payload: &[u8]) -> Option<Offset> {
        let shard = self.logs.get(&log)?;
        let growth = shard.log.growth(meta, payload.len())?;
        let max = self.config.memory_bytes_max;
        let fits =
            self.memory_bytes + growth <= max && shard.log.memory_bytes() + growth <= max / LOG_MEMORY_SHARE;
        let open = shard.change.is_none() && !shard.starved && self.closing == stop::Closing::No;
        let way = self.has_space() && self.slots.ways() != Ways::Coming && !self.is_stalled(log);
        if !fits || !open || !way {
            return None;
        }
        let at = self.with(log, |log| log.grow(meta, payload))?;
        self.due.insert(log);
        at
    }
}
