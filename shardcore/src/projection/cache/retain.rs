//! Beginning a watch, and collecting the current values that come before its changes. Scope: methods of [`CacheCore`].
//! Owns: collections under way; each walks the table a bounded number of slots at a time.
//! Invariants: a current value was settled before the offset at which the changes of its watch begin; what changed since
//! comes as a change only.
//! Not here: telling events (`watch`).

use std::sync::Arc;

use bytes::Bytes;
use felix_logstore::record::Batch;
use felix_runtime::planted::{self, Defect};
use felix_wire::id::Offset;

use super::event::{KeyEvent, event_cost};
use super::interest::Interest;
use super::watch::{Next, Started, Stored, WatchFrom, WatchId, WatchLimits, WatchRefused};
use super::{CacheCore, Keeping};

/// Current values of a logged cache that go into the queue at once when they are in memory, bytes.
const HELD_AT_ONCE_BYTES: usize = 64 << 10;
/// Current values of a cache in memory that all watches of a shard may hold together, bytes of events: of large values
/// about 64 MiB.
pub const RETAINED_BYTES_MAX: usize = 152 << 20;
/// Current values that all watches of a shard may have left to read, 24 bytes each.
pub const RETAINED_RECORDS_MAX: usize = 4 << 20;

/// A watch whose current values are being collected.
#[derive(Debug)]
pub struct Collecting {
    id: WatchId,
    next_slot: u32,
    held: Vec<Arc<KeyEvent>>,
    held_bytes: usize,
    stored: Vec<Stored>,
    /// The client is told how many there are.
    counted: bool,
}

impl CacheCore {
    /// Begins a watch. Ask [`Self::take_started`] what to tell first: at once, unless current values have to be collected
    /// by [`Self::collect`].
    ///
    /// # Errors
    /// `InFuture` and `TooMany`.
    pub fn watch(
        &mut self,
        interest: Interest,
        from: WatchFrom,
        limits: WatchLimits,
    ) -> Result<WatchId, WatchRefused> {
        let tail = self.settled_end();
        let oldest = match self.keeping {
            Keeping::Logged { .. } => self.log_start,
            Keeping::Memory { .. } => self.watches.recent_start(),
        };
        let (resume, collect, counted) = match from {
            WatchFrom::Now => (tail, false, false),
            WatchFrom::Retained => (tail, true, true),
            WatchFrom::Offset(offset) if offset > tail => return Err(WatchRefused::InFuture { tail }),
            WatchFrom::Offset(offset) if offset < oldest => (tail, true, false),
            WatchFrom::Offset(offset) => (offset, false, false),
        };
        let only_key = matches!(interest, Interest::Key(_));
        let id = self.watches.add(interest, limits, resume, collect)?;
        if collect {
            let (held, stored) = (Vec::new(), Vec::new());
            self.collecting.push_back(Collecting { id, next_slot: 0, held, held_bytes: 0, stored, counted });
            if only_key {
                self.collect_last();
            }
        }
        Ok(id)
    }

    /// Whether [`Self::collect`] has something to do.
    pub fn is_collecting(&self) -> bool {
        !self.collecting.is_empty()
    }

    /// Goes on collecting current values, looking at `slots` keys.
    pub fn collect(&mut self, mut slots: u32) {
        while slots > 0 {
            let Some(mut work) = self.collecting.pop_front() else { return };
            let end = self.table.slots().min(work.next_slot.saturating_add(slots));
            slots -= (end - work.next_slot).max(1);
            for number in work.next_slot..end {
                if let Err(why) = self.collect_slot(&mut work, number) {
                    self.watches.refuse(work.id, why);
                    work.next_slot = u32::MAX;
                    break;
                }
            }
            if work.next_slot == u32::MAX || self.watches.of(work.id).is_none() {
                continue;
            }
            work.next_slot = end;
            if end < self.table.slots() {
                self.collecting.push_front(work);
            } else {
                self.watches.collected(work.id, work.held, work.stored, work.counted);
            }
        }
    }

    /// Collects for the watch that was added last and follows one key.
    fn collect_last(&mut self) {
        let Some(mut work) = self.collecting.pop_back() else { return };
        let slot = match self.watches.of(work.id) {
            Some((Interest::Key(key), _)) => self.table.find(key),
            _ => None,
        };
        match slot.map_or(Ok(()), |slot| self.collect_slot(&mut work, slot.number())) {
            Ok(()) => self.watches.collected(work.id, work.held, work.stored, work.counted),
            Err(why) => self.watches.refuse(work.id, why),
        }
    }

    fn collect_slot(&self, work: &mut Collecting, number: u32) -> Result<(), WatchRefused> {
        let (Some((interest, resume)), Some((key, entry))) =
            (self.watches.of(work.id), self.table.at(number))
        else {
            return Ok(());
        };
        if !interest.covers(key) || entry.version >= resume || entry.expiry.is_past(self.clock.last()) {
            return Ok(());
        }
        if planted::is(Defect::ValueNotListed) && number == 0 {
            return Ok(());
        }
        let in_memory = matches!(self.keeping, Keeping::Memory { .. });
        let held = self.values.peek(entry.held).filter(|value| {
            in_memory || work.held_bytes + event_cost(key.len(), value.len()) <= HELD_AT_ONCE_BYTES
        });
        match held {
            Some(value) => {
                let event = KeyEvent::new(key.into(), Some(Bytes::clone(value)), entry.version, entry.expiry);
                work.held_bytes += event.cost();
                work.held.push(Arc::new(event));
            }
            None => work.stored.push(Stored { at: entry.at, version: entry.version, slot: number }),
        }
        // Asking for all watches costs too much for every key.
        let step = (work.held.len() + work.stored.len()).is_multiple_of(1_024);
        if (step && self.watches.queued_bytes() + work.held_bytes > RETAINED_BYTES_MAX)
            || work.held_bytes > RETAINED_BYTES_MAX
            || (step && self.watches.stored() + work.stored.len() > RETAINED_RECORDS_MAX)
        {
            return Err(WatchRefused::TooMuch);
        }
        Ok(())
    }

    /// What to tell a watch before its first event, once. A refused watch is to be removed.
    pub fn take_started(&mut self, id: WatchId) -> Option<Result<Started, WatchRefused>> {
        self.watches.take_started(id)
    }

    /// The watches with something for them that there was not when this was asked last.
    pub fn take_ready(&mut self) -> impl Iterator<Item = WatchId> + use<> {
        self.watches.take_ready().into_iter()
    }

    /// The next thing for a watch; nothing more comes behind an end.
    pub fn next_event(&mut self, id: WatchId) -> Next {
        self.watches.next(id)
    }

    /// Whether [`Self::wants_page`] would give something.
    pub fn needs_page(&self, id: WatchId) -> bool {
        self.watches.needs_page(id)
    }

    /// Where a watch wants its log to be read. Answer with [`Self::take_page`], or [`Self::no_page`] when the log does not
    /// have that any more.
    pub fn wants_page(&mut self, id: WatchId) -> Option<Offset> {
        self.watches.wants_page(id)
    }

    /// The page a watch wanted: batches from there on, read up to `end`.
    pub fn take_page(&mut self, id: WatchId, batches: &[Batch], end: Offset) {
        self.watches.take_page(id, batches, end);
    }

    /// The log begins at `start`, behind what a watch wanted.
    pub fn no_page(&mut self, id: WatchId, start: Offset) {
        let table = &self.table;
        // A slot names the same key until it is removed, so what has that version in it is the value that is looked for.
        let find = |stored: Stored| {
            let entry = table.at(stored.slot).map(|(_, entry)| entry);
            entry.filter(|entry| entry.version == stored.version).map(|entry| entry.at)
        };
        self.watches.no_page(id, start, find);
    }

    /// Ends a watch; its client is gone.
    pub fn unwatch(&mut self, id: WatchId) {
        self.watches.remove(id);
    }

    /// Changes the bounds of the queues of all watches.
    pub fn set_watch_limits(&mut self, limits: WatchLimits) {
        self.watches.set_limits(limits);
    }

    /// Bytes in the queues of all watches.
    pub fn watch_bytes(&self) -> usize {
        self.watches.queued_bytes()
    }

    /// What each of them holds.
    pub fn watch_sizes(&self) -> impl Iterator<Item = (WatchId, usize)> {
        self.watches.sizes()
    }

    /// Ends a watch that holds what others need, with where another one goes on.
    pub fn lag_watch(&mut self, id: WatchId) {
        self.watches.lag(id);
    }

    /// Whether [`Self::take_ready`] has something.
    pub fn is_watch_ready(&self) -> bool {
        self.watches.is_ready()
    }

    /// How many watches there are.
    pub fn watches(&self) -> usize {
        self.watches.len()
    }
}
