//! The keys of one shard, each with a small value. Scope: one table per cache, counter or state shard.
//! Owns: the keys' bytes and the hash index over them.
//! Invariants: a key is there once; a slot names the same key until it is removed; a lookup allocates nothing; no insert
//! moves more than one part of the index (`PART_KEYS_MAX` keys), however many keys there are.
//! Not here: what the values mean.

use std::hash::BuildHasher;

use hashbrown::HashTable;

use crate::hash::HashState;

/// Keys of one part of the index; a full part is split in two.
const PART_KEYS_MAX: usize = 14_336;
/// Parts are split by so many bits of the hash at most; behind that they grow.
const DEPTH_MAX: u32 = 20;
/// Slots that are allocated together, once the first so many have grown one by one.
const CHUNK_SLOTS: usize = 1_024;
/// Keys a table may hold.
pub const KEYS_MAX: usize = 1 << 31;

/// What a key costs beside its bytes and its value: a slot holds a pointer and a length, the index 9 bytes at a load of
/// 7/16 to 7/8, and the allocator rounds the key up.
pub const KEY_OVERHEAD_BYTES: usize = 16 + 21 + 8;

/// Where a key is, until it is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(u32);

impl Slot {
    /// Its number: slots are numbered from 0 without gaps, used or not.
    pub fn number(self) -> u32 {
        self.0
    }
}

/// An entry of the index. The hash is kept so that growing reads no keys.
#[derive(Debug, Clone, Copy)]
struct Ref {
    hash: u32,
    slot: u32,
}

/// The keys whose hashes begin with the same `depth` bits.
#[derive(Debug)]
struct Part {
    depth: u32,
    table: HashTable<Ref>,
}

#[derive(Debug)]
enum Place<V> {
    Used { key: Box<[u8]>, value: V },
    Free { next: u32 },
}

const NONE: u32 = u32::MAX;

/// See the module.
#[derive(Debug)]
pub struct KeyTable<V> {
    hasher: HashState,
    /// The part of each beginning of `depth` bits.
    directory: Vec<u32>,
    depth: u32,
    parts: Vec<Part>,
    chunks: Vec<Vec<Place<V>>>,
    /// First of the slots that are free.
    free: u32,
    slots: u32,
    len: usize,
    key_bytes: usize,
}

impl<V> Default for KeyTable<V> {
    fn default() -> KeyTable<V> {
        KeyTable::new()
    }
}

/// All 64 bits that a table wants, out of the 32 that are kept.
fn spread(hash: u32) -> u64 {
    u64::from(hash).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

impl<V> KeyTable<V> {
    /// A table without keys.
    pub fn new() -> KeyTable<V> {
        KeyTable {
            hasher: HashState::default(),
            directory: vec![0],
            depth: 0,
            parts: vec![Part { depth: 0, table: HashTable::new() }],
            chunks: Vec::new(),
            free: NONE,
            slots: 0,
            len: 0,
            key_bytes: 0,
        }
    }

    /// How many keys.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of all keys.
    pub fn key_bytes(&self) -> usize {
        self.key_bytes
    }

    /// Slots there are, free ones included; [`Self::at`] walks them.
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// Bytes of the index and the slots, keys not counted.
    pub fn table_bytes(&self) -> usize {
        let parts: usize =
            self.parts.iter().map(|part| part.table.allocation_size() + size_of::<Part>()).sum();
        let chunks: usize = self.chunks.iter().map(|chunk| chunk.capacity() * size_of::<Place<V>>()).sum();
        parts + chunks + self.directory.capacity() * size_of::<u32>()
    }

    /// Where the key is. Allocates nothing.
    pub fn find(&self, key: &[u8]) -> Option<Slot> {
        self.find_hashed(self.hash(key), key)
    }

    fn find_hashed(&self, hash: u32, key: &[u8]) -> Option<Slot> {
        let found = self.parts[self.part_of(hash)].table.find(spread(hash), |entry| {
            entry.hash == hash && self.place(entry.slot).is_some_and(|(known, _)| known == key)
        });
        found.map(|entry| Slot(entry.slot))
    }

    /// What is in the slot with this number.
    pub fn at(&self, number: u32) -> Option<(&[u8], &V)> {
        self.place(number)
    }

    /// The slot with this number, when a key is in it.
    pub fn slot_at(&self, number: u32) -> Option<Slot> {
        self.place(number).map(|_| Slot(number))
    }

    /// The key in a slot.
    ///
    /// # Panics
    /// When it was removed.
    pub fn key(&self, slot: Slot) -> &[u8] {
        self.place(slot.0).expect("a slot names a key until it is removed").0
    }

    /// What is known of the key in a slot.
    ///
    /// # Panics
    /// When it was removed.
    pub fn value(&self, slot: Slot) -> &V {
        self.place(slot.0).expect("a slot names a key until it is removed").1
    }

    /// The same, to be changed.
    ///
    /// # Panics
    /// When it was removed.
    pub fn value_mut(&mut self, slot: Slot) -> &mut V {
        let (chunk, at) = position(slot.0);
        match self.chunks.get_mut(chunk).and_then(|chunk| chunk.get_mut(at)) {
            Some(Place::Used { value, .. }) => value,
            _ => panic!("a slot names a key until it is removed"),
        }
    }

    /// Adds a key.
    ///
    /// # Panics
    /// When it is there, or [`KEYS_MAX`] keys are.
    pub fn insert(&mut self, key: Box<[u8]>, value: V) -> Slot {
        debug_assert!(self.find(&key).is_none(), "a key is there once");
        self.insert_hashed(self.hash(&key), key, value)
    }

    /// Adds a key or gives it another value. Gives the one it had, too.
    ///
    /// # Panics
    /// When the key is new and [`KEYS_MAX`] keys are there.
    pub fn put<K: AsRef<[u8]> + Into<Box<[u8]>>>(&mut self, key: K, value: V) -> (Slot, Option<V>) {
        let hash = self.hash(key.as_ref());
        match self.find_hashed(hash, key.as_ref()) {
            Some(slot) => (slot, Some(std::mem::replace(self.value_mut(slot), value))),
            None => (self.insert_hashed(hash, key.into(), value), None),
        }
    }

    fn insert_hashed(&mut self, hash: u32, key: Box<[u8]>, value: V) -> Slot {
        assert!(self.len < KEYS_MAX, "whoever adds keys asks for room");
        self.key_bytes += key.len();
        self.len += 1;
        let slot = self.take_slot(Place::Used { key, value });
        let mut part = self.part_of(hash);
        while self.parts[part].table.len() >= PART_KEYS_MAX && self.parts[part].depth < DEPTH_MAX {
            self.split(part, hash);
            part = self.part_of(hash);
        }
        self.parts[part].table.insert_unique(spread(hash), Ref { hash, slot }, |entry| spread(entry.hash));
        Slot(slot)
    }

    /// Removes a key.
    ///
    /// # Panics
    /// When it was removed before.
    pub fn remove(&mut self, slot: Slot) -> (Box<[u8]>, V) {
        let hash = self.hash(self.key(slot));
        let part = self.part_of(hash);
        if let Ok(entry) = self.parts[part].table.find_entry(spread(hash), |entry| entry.slot == slot.0) {
            entry.remove();
        }
        let (chunk, at) = position(slot.0);
        let place = std::mem::replace(&mut self.chunks[chunk][at], Place::Free { next: self.free });
        self.free = slot.0;
        self.len -= 1;
        match place {
            Place::Used { key, value } => {
                self.key_bytes -= key.len();
                (key, value)
            }
            Place::Free { .. } => panic!("a slot names a key until it is removed"),
        }
    }

    fn hash(&self, key: &[u8]) -> u32 {
        (self.hasher.hash_one(key) >> 32) as u32
    }

    fn part_of(&self, hash: u32) -> usize {
        // Shifting by all 32 bits would overflow: without a depth everything is in the first part.
        let at = u64::from(hash) >> (u32::BITS - self.depth);
        self.directory[at as usize] as usize
    }

    fn place(&self, number: u32) -> Option<(&[u8], &V)> {
        let (chunk, at) = position(number);
        match self.chunks.get(chunk)?.get(at)? {
            Place::Used { key, value } => Some((key, value)),
            Place::Free { .. } => None,
        }
    }

    fn take_slot(&mut self, place: Place<V>) -> u32 {
        if self.free != NONE {
            let slot = self.free;
            let (chunk, at) = position(slot);
            let free = std::mem::replace(&mut self.chunks[chunk][at], place);
            if let Place::Free { next } = free {
                self.free = next;
            }
            return slot;
        }
        let slot = self.slots;
        self.slots += 1;
        let (chunk, _) = position(slot);
        if chunk == self.chunks.len() {
            let room = if chunk == 0 { 0 } else { CHUNK_SLOTS };
            self.chunks.push(Vec::with_capacity(room));
        }
        self.chunks[chunk].push(place);
        slot
    }

    /// Moves half of the hashes of `part`, to which `hash` belongs, to a new one.
    fn split(&mut self, part: usize, hash: u32) {
        let depth = self.parts[part].depth;
        if depth == self.depth {
            self.directory = self.directory.iter().flat_map(|part| [*part, *part]).collect();
            self.depth += 1;
        }
        let bit = 1_u32 << (u32::BITS - 1 - depth);
        let old = std::mem::take(&mut self.parts[part].table);
        let (mut low, mut high) =
            (HashTable::with_capacity(PART_KEYS_MAX / 2), HashTable::with_capacity(PART_KEYS_MAX / 2));
        for entry in old {
            let table = if entry.hash & bit == 0 { &mut low } else { &mut high };
            table.insert_unique(spread(entry.hash), entry, |entry| spread(entry.hash));
        }
        let new = self.parts.len();
        self.parts[part] = Part { depth: depth + 1, table: low };
        self.parts.push(Part { depth: depth + 1, table: high });
        // All beginnings that the two share lie together; the upper half has the bit.
        let width = 1_usize << (self.depth - depth);
        let first = ((u64::from(hash) >> (u32::BITS - self.depth)) as usize) & !(width - 1);
        self.directory[first + width / 2..first + width].fill(new as u32);
    }
}

fn position(slot: u32) -> (usize, usize) {
    (slot as usize / CHUNK_SLOTS, slot as usize % CHUNK_SLOTS)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use felix_runtime::sim::SimRng;

    use super::*;

    fn key(number: u64) -> Box<[u8]> {
        format!("key-{number}").into_bytes().into()
    }

    #[test]
    fn keys_are_found_after_any_inserts_and_removals_and_slots_are_used_again() {
        let mut rng = SimRng::new(1);
        let (mut table, mut model) = (KeyTable::new(), BTreeMap::new());
        for step in 0..300_000_u64 {
            let name = key(rng.below(60_000));
            match table.find(&name) {
                Some(slot) if rng.below(3) == 0 => {
                    assert_eq!(table.remove(slot), (name.clone(), model.remove(&name).unwrap()));
                }
                Some(slot) => {
                    let old = model.insert(name.clone(), step);
                    assert_eq!(table.put(name, step), (slot, old));
                }
                None => {
                    assert!(model.insert(name.clone(), step).is_none());
                    let slot = match rng.below(2) {
                        0 => table.insert(name.clone(), step),
                        _ => {
                            let (slot, old) = table.put(&*name, step);
                            assert_eq!(old, None);
                            slot
                        }
                    };
                    assert_eq!(table.key(slot), &*name);
                }
            }
            assert_eq!(table.len(), model.len());
        }
        assert!(table.parts.len() > 2, "parts were split");
        assert!(table.slots() as usize <= 60_000, "free slots are used again");
        assert_eq!(table.key_bytes(), model.keys().map(|name| name.len()).sum::<usize>());
        for (name, value) in &model {
            assert_eq!(table.find(name).map(|slot| *table.value(slot)), Some(*value));
        }
        let walked: BTreeMap<Box<[u8]>, u64> = (0..table.slots())
            .filter_map(|number| table.at(number).map(|(name, value)| (name.into(), *value)))
            .collect();
        assert_eq!(walked, model);
    }

    #[test]
    fn no_part_of_the_index_is_larger_than_its_bound() {
        let mut table = KeyTable::new();
        for number in 0..200_000 {
            table.insert(key(number), ());
        }
        assert!(table.parts.iter().all(|part| part.table.len() <= PART_KEYS_MAX));
        assert!((0..200_000).all(|number| table.find(&key(number)).is_some()));
        assert!(table.find(b"key-200000").is_none() && table.find(b"").is_none());
        let per_key = table.table_bytes() / table.len();
        assert!(per_key <= 16 + 21 + 4, "{per_key} bytes of index and slots per key");
    }

    #[test]
    fn the_empty_key_and_the_longest_one_are_keys() {
        let mut table = KeyTable::new();
        let long = vec![0xff; usize::from(u16::MAX)];
        table.insert(Box::default(), 1);
        table.insert(long.clone().into(), 2);
        assert_eq!(table.find(b"").map(|slot| *table.value(slot)), Some(1));
        assert_eq!(table.find(&long).map(|slot| *table.value(slot)), Some(2));
        assert_eq!(table.find(&long[1..]), None);
    }
}
