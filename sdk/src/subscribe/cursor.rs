//! Where one shard of a subscription is, and what every answer and frame means for that. Scope: per subscribed shard.
//! Owns: the next undelivered offset and the life of an in-memory stream it belongs to.
//! Invariants: an event below the next offset is never handed on twice; a jump over events nobody declared empty is
//! either read again or told as a gap, never passed over; offsets of two lives are never compared.
//! Not here: streams, waiting, and the reader's queue (`reader`).

use felix_wire::client::{CursorErrorReason, StartPosition, SubscribeCursorError, Subscribed};
use felix_wire::id::Offset;

use crate::subscribe::{Gap, Position};

/// See the module.
#[derive(Debug)]
pub(crate) struct Cursor {
    shard: u32,
    /// What to ask for while no offset is known.
    start: StartPosition,
    next: Option<Offset>,
    /// Set for a stream in memory: which life of it the offsets belong to.
    boot: Option<u64>,
    /// Was answered `subscribed` before: what comes after is a continuation.
    resumed: bool,
    /// No batch has come since the last answer: a jump now cannot be read again.
    fresh: bool,
}

/// What to do after `subscribed`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Joined {
    /// Read the events; a gap is told first.
    Read { gap: Option<Gap> },
    /// The stream has begun a new life: subscribe again, from what it holds.
    Again { gap: Gap },
}

/// What to do after a cursor error.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Missed {
    /// The shard ends.
    Fail,
    /// Subscribe again, from what the stream holds.
    Again,
}

/// What to do with a batch.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Take {
    /// Hand on all events but the first `duplicates`; a gap is told first.
    Deliver { duplicates: u32, gap: Option<Gap> },
    /// Events are missing that the log still has: drop the batch and subscribe again.
    ReadAgain,
}

impl Cursor {
    pub(crate) fn new(shard: u32, start: StartPosition) -> Self {
        Self { shard, start, next: None, boot: None, resumed: false, fresh: true }
    }

    /// Continues at a position taken from an earlier subscription.
    pub(crate) fn at(shard: u32, position: Position) -> Self {
        let mut cursor = Self::new(shard, StartPosition::Offset(position.next));
        cursor.next = Some(position.next);
        cursor.boot = position.boot;
        cursor
    }

    /// What to subscribe from now.
    pub(crate) fn request(&self) -> StartPosition {
        self.next.map_or(self.start, StartPosition::Offset)
    }

    /// Where the next event to hand on is, when that is known.
    pub(crate) fn position(&self) -> Option<Position> {
        self.next.map(|next| Position { next, boot: self.boot })
    }

    /// The broker has registered the subscription.
    pub(crate) fn subscribed(&mut self, answer: &Subscribed) -> Joined {
        let continued = self.resumed;
        self.resumed = true;
        self.fresh = true;
        let other_life = self.next.is_some() && answer.boot != self.boot;
        self.boot = answer.boot;
        if other_life {
            // The offset asked for belongs to a life that is over; what the new one holds is all there is.
            self.next = None;
            self.start = StartPosition::Earliest;
            return Joined::Again { gap: self.unknown_gap() };
        }
        let Some(next) = self.next else {
            self.next = answer.start_offset;
            // Nothing numbered was ever seen: what happened while the connection was away is not known.
            let gap = (continued && self.start == StartPosition::Latest).then(|| self.unknown_gap());
            return Joined::Read { gap };
        };
        let gap = answer.start_offset.filter(|start| *start > next).map(|start| self.gap_to(start));
        self.next = answer.start_offset.filter(|start| *start > next).or(Some(next));
        Joined::Read { gap }
    }

    /// The broker does not have the offset asked for.
    pub(crate) fn missed(&mut self, error: &SubscribeCursorError) -> Missed {
        // Of a stream in memory this is no surprise: it holds little, and starts over with its broker.
        if self.boot.is_none() {
            return Missed::Fail;
        }
        self.start = StartPosition::Earliest;
        match error.reason {
            // The same life as far as can be known: the answer to the next attempt tells from where.
            CursorErrorReason::TooOld => self.next = Some(error.available),
            CursorErrorReason::InFuture => self.next = None,
        }
        Missed::Again
    }

    /// The gap to tell after [`Missed::Again`].
    pub(crate) fn missed_gap(&self, asked: StartPosition) -> Gap {
        let from = match asked {
            StartPosition::Offset(offset) => Some(offset),
            StartPosition::Latest | StartPosition::Earliest => None,
        };
        Gap { shard: self.shard, from, to: self.next }
    }

    /// A batch of `count` events, the first at `base`, `skipped` offsets before it known to be empty.
    pub(crate) fn batch(&mut self, base: Option<Offset>, skipped: u64, count: u32) -> Take {
        let fresh = std::mem::replace(&mut self.fresh, false);
        let Some(base) = base else { return Take::Deliver { duplicates: 0, gap: None } };
        let end = Offset(base.get().saturating_add(u64::from(count)));
        let Some(next) = self.next else {
            self.next = Some(end);
            return Take::Deliver { duplicates: 0, gap: None };
        };
        let covered_from = base.get().saturating_sub(skipped);
        let mut gap = None;
        if covered_from > next.get() {
            if self.boot.is_none() && !fresh {
                return Take::ReadAgain;
            }
            gap = Some(self.gap_to(Offset(covered_from)));
        }
        let duplicates = next.get().saturating_sub(base.get()).min(u64::from(count));
        self.next = Some(end.max(next));
        // `count` is 32 bits, and so is anything at most as large.
        Take::Deliver { duplicates: duplicates as u32, gap }
    }

    /// The broker ended the subscription and named an offset to go on from; used when none is known here.
    pub(crate) fn resume_from(&mut self, offset: Option<Offset>) {
        if self.next.is_none() {
            self.next = offset;
        }
    }

    /// The subscription was lost. Without numbers nobody can tell what is missed from here on, so it goes on with
    /// what comes.
    pub(crate) fn lost(&mut self) {
        if self.next.is_none() && self.resumed {
            self.start = StartPosition::Latest;
        }
    }

    fn unknown_gap(&self) -> Gap {
        Gap { shard: self.shard, from: None, to: None }
    }

    fn gap_to(&self, to: Offset) -> Gap {
        Gap { shard: self.shard, from: self.next, to: Some(to) }
    }
}

#[cfg(test)]
mod tests;
