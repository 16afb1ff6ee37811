//! Where one shard of a watch is, and what every answer and event means for that, without any I/O. Scope: per watched
//! shard.
//! Owns: the next change that was not handed on, and what is left of the current values.
//! Invariants: a change below the next one is never handed on twice; when history is gone, that is said before anything
//! that comes after it; while current values are incomplete they are asked for again, not passed over.
//! Not here: streams and waiting (`reader`).

use felix_wire::client::{CacheWatchStarted, CursorErrorReason};
use felix_wire::id::Offset;

use crate::cache::watch::WatchStart;

/// What comes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Changes in order of their offsets.
    Changes,
    /// So many current values, then changes from `live` on.
    Current { left: u64, live: Offset },
    /// Current values, nobody says how many, then changes from `live` on.
    Snapshot { live: Offset },
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Cursor {
    start: WatchStart,
    /// The first change that was not handed on; `None` while nothing can be gone on from.
    next: Option<Offset>,
    phase: Phase,
    /// Was answered before: what comes after is a continuation.
    resumed: bool,
}

/// What to ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) from: Option<Offset>,
    pub(crate) current: bool,
}

/// What an answer means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Begun {
    /// History is gone: the current values follow.
    pub(crate) anew: bool,
    /// How many current values follow, when that is known.
    pub(crate) values: Option<u64>,
}

/// What to do after a cursor error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Missed {
    /// The shard ends.
    Fail,
    /// The cache has begun a new life: ask again, for its current values.
    Again,
}

/// What to do with an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Take {
    Deliver { current: bool },
    Drop,
}

impl Cursor {
    pub(crate) fn new(start: WatchStart) -> Self {
        let next = match start {
            WatchStart::Offset(offset) => Some(offset),
            WatchStart::Live | WatchStart::Current => None,
        };
        Self { start, next, phase: Phase::Changes, resumed: false }
    }

    pub(crate) fn wanted(&self) -> Wanted {
        Wanted { from: self.next, current: self.next.is_none() && self.start != WatchStart::Live }
    }

    /// The broker has registered the watch that was asked for.
    pub(crate) fn started(&mut self, answer: &CacheWatchStarted) -> Begun {
        let continued = std::mem::replace(&mut self.resumed, true);
        let live = answer.resume_offset;
        if self.wanted().current {
            let left = answer.retained_count.unwrap_or(0);
            self.phase = Phase::Current { left, live };
            self.finish_current();
            return Begun { anew: continued, values: Some(left) };
        }
        if answer.resnapshot {
            self.phase = Phase::Snapshot { live };
            // What came before is void now: should these values be cut off, all of them are needed again, whatever the
            // next broker still has of the history.
            self.next = None;
            self.start = WatchStart::Current;
            return Begun { anew: true, values: None };
        }
        self.phase = Phase::Changes;
        self.next = self.next.or(Some(live));
        Begun { anew: false, values: None }
    }

    /// The offset asked for is not there.
    pub(crate) fn missed(&mut self, reason: CursorErrorReason) -> Missed {
        if !self.resumed || reason != CursorErrorReason::InFuture {
            return Missed::Fail;
        }
        // It was there: this is another life of a cache in memory, and all there is are its values.
        self.next = None;
        self.start = WatchStart::Current;
        Missed::Again
    }

    pub(crate) fn event(&mut self, offset: Offset) -> Take {
        match &mut self.phase {
            Phase::Current { left, .. } => {
                *left -= 1;
                self.finish_current();
                Take::Deliver { current: true }
            }
            Phase::Snapshot { live } if offset < *live => Take::Deliver { current: true },
            Phase::Snapshot { .. } => {
                self.phase = Phase::Changes;
                self.next = Some(after(offset));
                Take::Deliver { current: false }
            }
            Phase::Changes if self.next.is_some_and(|next| offset < next) => Take::Drop,
            Phase::Changes => {
                self.next = Some(after(offset));
                Take::Deliver { current: false }
            }
        }
    }

    /// The broker ended the watch and named the first change it did not deliver.
    pub(crate) fn resume_from(&mut self, offset: Offset) {
        if self.phase == Phase::Changes {
            self.next = Some(self.next.map_or(offset, |next| next.max(offset)));
        }
    }

    fn finish_current(&mut self) {
        if let Phase::Current { left: 0, live } = self.phase {
            self.phase = Phase::Changes;
            self.next = Some(live);
        }
    }
}

fn after(offset: Offset) -> Offset {
    Offset(offset.get().saturating_add(1))
}

#[cfg(test)]
mod tests;
