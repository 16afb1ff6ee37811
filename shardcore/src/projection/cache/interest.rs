//! Who watches which keys. Scope: one per cache shard.
//! Owns: the watched keys and prefixes, and the watches of each.
//! Invariants: a watch is there once; looking a key up costs one hash and the length of the chain of watched prefixes that
//! lie in one another, and allocates nothing.
//! Not here: what the watches are sent (`watch`).

use smallvec::SmallVec;

use super::watch::WatchId;
use crate::projection::keys::KeyTable;

/// What a watch follows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Interest {
    Key(Box<[u8]>),
    /// Every key that begins so; the empty one is every key of the shard.
    Prefix(Box<[u8]>),
}

impl Interest {
    /// Whether a key belongs to it.
    pub fn covers(&self, key: &[u8]) -> bool {
        match self {
            Interest::Key(own) => **own == *key,
            Interest::Prefix(prefix) => key.starts_with(prefix),
        }
    }

    /// Bytes of the key or prefix.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Interest::Key(bytes) | Interest::Prefix(bytes) => bytes,
        }
    }
}

type Ids = SmallVec<[WatchId; 2]>;

#[derive(Debug)]
struct Prefix {
    bytes: Box<[u8]>,
    /// The longest other prefix that this one begins with.
    within: Option<u32>,
    ids: Ids,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Interests {
    keys: KeyTable<Ids>,
    /// Sorted. Of those a key begins with, the last one at or before the key is the longest or lies in the longest, and the
    /// others follow by `within`.
    prefixes: Vec<Prefix>,
}

impl Interests {
    /// Adds a watch. O(prefixes) for one of a prefix.
    pub fn add(&mut self, interest: &Interest, id: WatchId) {
        match interest {
            Interest::Key(key) => match self.keys.find(key) {
                Some(slot) => self.keys.value_mut(slot).push(id),
                None => {
                    self.keys.insert(key.clone(), Ids::from_slice(&[id]));
                }
            },
            Interest::Prefix(prefix) => {
                match self.prefixes.binary_search_by(|known| known.bytes.as_ref().cmp(prefix)) {
                    Ok(at) => self.prefixes[at].ids.push(id),
                    Err(at) => {
                        let (bytes, ids) = (prefix.clone(), Ids::from_slice(&[id]));
                        self.prefixes.insert(at, Prefix { bytes, within: None, ids });
                        self.link();
                    }
                }
            }
        }
    }

    /// Removes a watch. O(prefixes) for one of a prefix.
    pub fn remove(&mut self, interest: &Interest, id: WatchId) {
        match interest {
            Interest::Key(key) => {
                let Some(slot) = self.keys.find(key) else { return };
                let ids = self.keys.value_mut(slot);
                ids.retain(|known| *known != id);
                if ids.is_empty() {
                    self.keys.remove(slot);
                }
            }
            Interest::Prefix(prefix) => {
                let found = self.prefixes.binary_search_by(|known| known.bytes.as_ref().cmp(prefix));
                let Ok(at) = found else { return };
                let ids = &mut self.prefixes[at].ids;
                ids.retain(|known| *known != id);
                if ids.is_empty() {
                    self.prefixes.remove(at);
                    self.link();
                }
            }
        }
    }

    /// Whether nobody watches anything.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty() && self.prefixes.is_empty()
    }

    /// The watches that follow `key`.
    pub fn of(&self, key: &[u8], mut each: impl FnMut(WatchId)) {
        if let Some(slot) = self.keys.find(key) {
            self.keys.value(slot).iter().copied().for_each(&mut each);
        }
        let behind = self.prefixes.partition_point(|prefix| *prefix.bytes <= *key);
        let Some(nearest) = behind.checked_sub(1) else { return };
        let shared = self.prefixes[nearest].bytes.iter().zip(key).take_while(|(a, b)| a == b).count();
        let mut at = Some(nearest as u32);
        while let Some(number) = at {
            let prefix = &self.prefixes[number as usize];
            // All of the chain begin like the nearest one, so its length says whether the key does too.
            if prefix.bytes.len() <= shared {
                prefix.ids.iter().copied().for_each(&mut each);
            }
            at = prefix.within;
        }
    }

    /// Finds out which prefix lies in which.
    fn link(&mut self) {
        let mut chain: Vec<u32> = Vec::new();
        for at in 0..self.prefixes.len() {
            let bytes = &self.prefixes[at].bytes;
            while chain.last().is_some_and(|outer| !bytes.starts_with(&self.prefixes[*outer as usize].bytes))
            {
                chain.pop();
            }
            self.prefixes[at].within = chain.last().copied();
            chain.push(at as u32);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use felix_runtime::sim::SimRng;

    use super::*;

    #[test]
    fn the_watches_of_a_key_are_those_whose_key_or_prefix_it_has() {
        let mut rng = SimRng::new(2);
        let text = |rng: &mut SimRng| -> Box<[u8]> {
            (0..rng.below(6)).map(|_| [0, b'a', 0xff][rng.below(3) as usize]).collect()
        };
        let (mut interests, mut all) = (Interests::default(), Vec::new());
        for id in 0..3_000 {
            let interest = match rng.below(2) {
                0 => Interest::Key(text(&mut rng)),
                _ => Interest::Prefix(text(&mut rng)),
            };
            interests.add(&interest, WatchId(id));
            all.push((interest, WatchId(id)));
            if rng.below(3) > 0 {
                let (interest, id) = all.swap_remove(rng.below(all.len() as u64) as usize);
                interests.remove(&interest, id);
                interests.remove(&interest, id);
            }
            let key = text(&mut rng);
            let mut found = Vec::new();
            interests.of(&key, |id| found.push(id));
            let unique: BTreeSet<WatchId> = found.iter().copied().collect();
            assert_eq!(unique.len(), found.len(), "each once");
            let wanted =
                all.iter().filter(|(interest, _)| interest.covers(&key)).map(|(_, id)| *id).collect();
            assert_eq!(unique, wanted, "{key:?}");
        }
        for (interest, id) in &all {
            interests.remove(interest, *id);
        }
        assert!(interests.is_empty());
    }
}
