//! Making the log of the groups of a shard shorter. Scope: part of [`GroupShard`].
//! Invariants: a group is written as it is when every change of it has an offset.
//! Not here: what is written (`projection::group`), the pace (`turn::compacting`).

use felix_wire::id::Offset;

use super::GroupShard;
use crate::projection::group::GroupStep;
use crate::shard::ShardCx;
use crate::shard::journal::shorten::{LOG_BYTES_MIN, ShortenFigures, Shortened};

impl GroupShard {
    /// To be called from time to time: whether its log may be too long.
    pub fn look_at_log(&mut self, cx: &mut ShardCx<'_>) -> bool {
        self.broken.is_none() && self.log.look(self.groups.live_bytes(), cx)
    }

    /// One step towards a shorter log.
    pub fn shorten(&mut self, cx: &mut ShardCx<'_>) -> Shortened {
        if self.broken.is_some() {
            return Shortened::Done;
        }
        self.flush(cx);
        if !self.drafts.is_empty() || self.log.is_backed_up() {
            return Shortened::Waits;
        }
        let Some(shape) = self.log.shape(true, cx) else { return Shortened::Waits };
        let haste = shape.haste(self.groups.live_bytes(), LOG_BYTES_MIN);
        match self.groups.compact(shape, LOG_BYTES_MIN) {
            GroupStep::Idle => Shortened::Done,
            GroupStep::WaitDurable(_) => {
                self.log.hurry(haste, cx);
                Shortened::Waits
            }
            GroupStep::Append(drafts) => {
                let encode = |draft: &crate::projection::group::Draft| {
                    let mut record = Vec::new();
                    draft.encode(&mut record);
                    record
                };
                let records: Vec<Vec<u8>> = drafts.iter().map(encode).collect();
                let Some(base) = self.log.append_copies(&records, cx) else {
                    self.groups.compaction_put_off();
                    return Shortened::Waits;
                };
                self.groups.claimed(Offset(base.0 + records.len() as u64));
                let bytes = records.iter().map(|record| record.len() as u64).sum::<u64>();
                Shortened::Moved { bytes: bytes / haste }
            }
            GroupStep::Trim { start } => {
                self.log.trim(start, cx);
                Shortened::Moved { bytes: 0 }
            }
        }
    }

    /// Its log begins at `start` now.
    pub fn log_starts(&mut self, start: Offset) {
        self.groups.log_starts(start);
        self.log.start_moved();
    }

    /// What was done to its log since the last call.
    pub fn take_shortened(&mut self) -> ShortenFigures {
        self.log.take_figures()
    }
}
