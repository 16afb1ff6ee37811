//! How far a subscription has come, and what happens to it besides its events. Scope: per subscribed shard.
//! Owns: the counts of what was not delivered.
//! Not here: deciding any of it (`cursor`, `reader`).

use std::time::Duration;

use felix_wire::id::Offset;

use crate::error::{Error, SubscribeError};
use crate::subscribe::{Event, Position};

/// Everything a subscription tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Item {
    /// A record.
    Event(Event),
    /// Something that loses nothing by itself.
    Notice(Notice),
    /// Missing records, or the end of a shard.
    Error(SubscribeError),
}

/// What happens to a shard and is no error.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notice {
    /// The connection to its broker was lost, or the broker ended the reading. It is looked for.
    Away {
        /// The shard.
        shard: u32,
        /// What was seen.
        error: Error,
    },
    /// Reading goes on after [`Notice::Away`].
    Back {
        /// The shard.
        shard: u32,
        /// The next record to be delivered, when offsets are known.
        next: Option<Offset>,
        /// The shard's end when reading went on, when the broker told.
        live: Option<Offset>,
        /// How long it was away.
        away: Duration,
    },
    /// The broker stopped because this reader was too slow. A shard on disk is read again from this offset; one in memory
    /// may have a [`crate::Gap`] next.
    Lagged {
        /// The shard.
        shard: u32,
        /// The first record the broker did not send.
        from: Offset,
    },
    /// The shard is served elsewhere now and is followed.
    Moved {
        /// The shard.
        shard: u32,
    },
}

/// How far one shard has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShardProgress {
    /// The shard.
    pub shard: u32,
    /// Nothing below it was going to be delivered, as the broker said first; `None` without offsets.
    pub start_offset: Option<Offset>,
    /// The shard's end when it was subscribed to: what is below was there before. `None` without offsets.
    pub live_offset: Option<Offset>,
    /// Where to go on after the events handed out.
    pub next: Option<Position>,
    /// Offsets passed over that hold no record.
    pub skipped: u64,
    /// Records that are known to be missing from what was handed out. Gaps of unknown size are not in it.
    pub missing: u64,
    /// Times the broker stopped because this reader was too slow.
    pub lagged: u64,
    /// Times the broker was lost and found again.
    pub resumed: u64,
}

impl ShardProgress {
    pub(crate) fn new(
        shard: u32,
        start_offset: Option<Offset>,
        live_offset: Option<Offset>,
        next: Option<Position>,
    ) -> Self {
        Self { shard, start_offset, live_offset, next, skipped: 0, missing: 0, lagged: 0, resumed: 0 }
    }

    /// Everything that was there when the shard was subscribed to has been handed out, or is known to be missing. `None`
    /// without offsets.
    pub fn is_caught_up(&self) -> Option<bool> {
        let live = self.live_offset?;
        Some(self.next.is_some_and(|position| position.next >= live) || self.start_offset == Some(live))
    }

    pub(crate) fn note(&mut self, notice: &Notice) {
        match notice {
            Notice::Back { .. } => self.resumed += 1,
            Notice::Lagged { .. } => self.lagged += 1,
            Notice::Away { .. } | Notice::Moved { .. } => {}
        }
    }

    pub(crate) fn failed(&mut self, error: &SubscribeError) {
        let SubscribeError::Gap(gap) = error else { return };
        if let Some((from, to)) = gap.from.zip(gap.to) {
            self.missing += to.get().saturating_sub(from.get());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::subscribe::Gap;

    fn at(next: u64) -> Option<Position> {
        Some(Position { next: Offset(next), boot: None })
    }

    #[test]
    fn a_shard_has_caught_up_when_it_is_where_the_end_was() {
        let mut progress = ShardProgress::new(1, Some(Offset(3)), Some(Offset(5)), at(3));
        assert_eq!(progress.is_caught_up(), Some(false));
        progress.next = at(4);
        assert_eq!(progress.is_caught_up(), Some(false));
        progress.next = at(5);
        assert_eq!(progress.is_caught_up(), Some(true));
        let empty = ShardProgress::new(1, Some(Offset(5)), Some(Offset(5)), at(5));
        assert_eq!(empty.is_caught_up(), Some(true));
        assert_eq!(ShardProgress::new(1, None, None, None).is_caught_up(), None);
    }

    #[test]
    fn gaps_of_known_size_are_counted() {
        let mut progress = ShardProgress::new(1, None, None, None);
        let gap = |from: Option<u64>, to: Option<u64>| {
            SubscribeError::Gap(Gap { shard: 1, from: from.map(Offset), to: to.map(Offset) })
        };
        progress.failed(&gap(Some(3), Some(7)));
        progress.failed(&gap(None, None));
        progress.failed(&gap(Some(9), None));
        progress.failed(&gap(Some(9), Some(2)));
        assert_eq!(progress.missing, 4);
    }
}
