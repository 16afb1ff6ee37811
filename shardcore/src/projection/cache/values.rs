//! Values held in memory, bounded by bytes. Scope: one per cache shard.
//! Owns: the values and the order in which they give way (SIEVE: first in goes first, unless it was read since the hand
//! last passed it).
//! Invariants: `bytes` is what the values cost; one eviction looks at `EVICT_STEPS_MAX` values at most.
//! Not here: which key has a value (`super`), what is left of a key without one.

use bytes::Bytes;
use slab::Slab;

use crate::projection::keys::Slot;

/// What a value costs beside its bytes: its place in the list, the handle, the allocation.
pub const VALUE_OVERHEAD_BYTES: usize = 96;
/// Values that one eviction may pass because they were read; the next one goes, read or not.
const EVICT_STEPS_MAX: usize = 64;

/// Where a value is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ValueId(u32);

impl ValueId {
    /// No value.
    pub const NONE: ValueId = ValueId(u32::MAX);
}

#[derive(Debug)]
struct Held {
    bytes: Bytes,
    owner: Slot,
    read: bool,
    newer: u32,
    older: u32,
}

const END: u32 = u32::MAX;

/// See the module.
#[derive(Debug)]
pub struct Values {
    held: Slab<Held>,
    newest: u32,
    oldest: u32,
    /// Where the next eviction begins to look; the oldest when there is none.
    hand: u32,
    bytes: usize,
}

impl Default for Values {
    fn default() -> Values {
        Values { held: Slab::new(), newest: END, oldest: END, hand: END, bytes: 0 }
    }
}

impl Values {
    /// What the values cost, overhead included.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// How many values.
    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// Whether there is no value.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Takes a value in, which has memory of its own: it is to pin no more than its length.
    pub fn insert(&mut self, owner: Slot, bytes: Bytes) -> ValueId {
        self.bytes += bytes.len() + VALUE_OVERHEAD_BYTES;
        let id = self.held.insert(Held { bytes, owner, read: false, newer: END, older: self.newest }) as u32;
        match self.newest {
            END => self.oldest = id,
            newest => self.held[newest as usize].newer = id,
        }
        self.newest = id;
        ValueId(id)
    }

    /// The value, which counts as read.
    pub fn read(&mut self, id: ValueId) -> Option<&Bytes> {
        let held = self.held.get_mut(id.0 as usize)?;
        held.read = true;
        Some(&held.bytes)
    }

    /// The value, which does not count as read.
    pub fn peek(&self, id: ValueId) -> Option<&Bytes> {
        self.held.get(id.0 as usize).map(|held| &held.bytes)
    }

    /// Lets a value go, if it is there.
    pub fn remove(&mut self, id: ValueId) {
        if id == ValueId::NONE || !self.held.contains(id.0 as usize) {
            return;
        }
        let held = self.held.remove(id.0 as usize);
        self.bytes -= held.bytes.len() + VALUE_OVERHEAD_BYTES;
        if self.hand == id.0 {
            self.hand = held.newer;
        }
        match held.newer {
            END => self.newest = held.older,
            newer => self.held[newer as usize].older = held.older,
        }
        match held.older {
            END => self.oldest = held.newer,
            older => self.held[older as usize].newer = held.newer,
        }
    }

    /// Lets the value go that is worth least. Gives the key that had it.
    pub fn evict(&mut self) -> Option<Slot> {
        let mut at = if self.hand == END { self.oldest } else { self.hand };
        for _ in 0..EVICT_STEPS_MAX {
            let held = self.held.get_mut(at as usize)?;
            if !held.read {
                break;
            }
            held.read = false;
            at = if held.newer == END { self.oldest } else { held.newer };
        }
        let owner = self.held.get(at as usize)?.owner;
        self.hand = at;
        self.remove(ValueId(at));
        Some(owner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::projection::keys::KeyTable;

    fn slots(count: u8) -> Vec<Slot> {
        let mut table = KeyTable::new();
        (0..count).map(|number| table.insert(Box::new([number]), ())).collect()
    }

    #[test]
    fn what_was_read_stays_and_what_came_first_goes() {
        let (owners, mut values) = (slots(4), Values::default());
        let ids: Vec<ValueId> =
            owners.iter().map(|owner| values.insert(*owner, Bytes::from_static(b"value"))).collect();
        assert_eq!(values.bytes(), 4 * (5 + VALUE_OVERHEAD_BYTES));
        values.read(ids[0]);
        values.read(ids[2]);
        let order: Vec<Slot> = std::iter::from_fn(|| values.evict()).collect();
        assert_eq!(order, [owners[1], owners[3], owners[0], owners[2]]);
        assert_eq!((values.bytes(), values.len()), (0, 0));
    }

    #[test]
    fn values_leave_from_any_place_and_an_eviction_ends_though_all_were_read() {
        let (owners, mut values) = (slots(200), Values::default());
        let ids: Vec<ValueId> = owners.iter().map(|owner| values.insert(*owner, Bytes::new())).collect();
        for id in &ids {
            values.read(*id);
        }
        assert_eq!(values.evict(), Some(owners[EVICT_STEPS_MAX]));
        for at in [0, 199, 7, EVICT_STEPS_MAX + 1] {
            values.remove(ids[at]);
            values.remove(ids[at]);
        }
        assert_eq!(values.evict(), Some(owners[EVICT_STEPS_MAX + 2 + EVICT_STEPS_MAX]));
        assert_eq!(std::iter::from_fn(|| values.evict()).count(), 194);
        assert_eq!(values.evict(), None);
        values.remove(ValueId::NONE);
        assert!(values.is_empty());
    }
}
