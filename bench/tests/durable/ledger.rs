//! What was published to one stream, and what a reader may find of it. Scope: one per stream.
//! Owns: the fate of every send, and where the acknowledged ones are.
//! Invariants: a record says which it is, and its bytes follow from that; whatever is read is compared with them.
//! Not here: sending and reading.

use std::collections::{BTreeMap, BTreeSet};

use felix_sdk::{Bytes, KeyMapping, PublishError, Published, shard_for};

/// Keys of the records; they fall on all shards.
pub const KEYS: u32 = 24;

/// One record: the how-many-th of which key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name {
    pub key: u32,
    pub number: u64,
}

/// Records of one key that were sent as one batch.
#[derive(Debug, Clone, Copy)]
pub struct Send {
    pub key: u32,
    pub first: u64,
    pub count: u32,
}

/// What a reader found, shard by shard, offset by offset from the first one.
pub type Content = BTreeMap<u32, BTreeMap<u64, Name>>;

/// See the module.
#[derive(Debug)]
pub struct Ledger {
    life: u64,
    pub shards: u32,
    next: BTreeMap<u32, u64>,
    acked: BTreeMap<(u32, u64), Name>,
    not_written: BTreeSet<Name>,
    unknown: BTreeSet<Name>,
    /// Why the first of them is.
    pub why_unknown: Option<String>,
}

impl Ledger {
    /// Nothing yet; `life` makes its records differ from those of other streams.
    pub fn new(life: u64, shards: u32) -> Ledger {
        let empty = BTreeMap::new();
        Ledger {
            life,
            shards,
            next: BTreeMap::new(),
            acked: empty,
            not_written: BTreeSet::new(),
            unknown: BTreeSet::new(),
            why_unknown: None,
        }
    }

    /// The next `count` records of a key, to be sent as one batch.
    pub fn make(&mut self, key: u32, count: u32) -> (Send, Vec<Bytes>) {
        let next = self.next.entry(key).or_default();
        let send = Send { key, first: *next, count };
        *next += u64::from(count);
        (send, names(send).map(|name| payload(self.life, name)).collect())
    }

    /// A send has got its answer.
    ///
    /// # Errors
    /// The answer cannot be.
    pub fn settle(&mut self, send: Send, outcome: &Result<Published, PublishError>) -> Result<(), String> {
        match outcome {
            Ok(Published { shard, offset: Some(offset) }) => {
                if *shard != shard_of(send.key, self.shards) {
                    return Err(format!("{send:?} went to shard {shard}"));
                }
                for (at, name) in (offset.get()..).zip(names(send)) {
                    if let Some(other) = self.acked.insert((*shard, at), name) {
                        return Err(format!("shard {shard}: offset {at} is {other:?} and {name:?}"));
                    }
                }
            }
            Ok(told) => return Err(format!("{send:?} was answered {told:?}")),
            Err(error) if error.is_outcome_unknown() => {
                self.why_unknown.get_or_insert_with(|| format!("{send:?}: {error}"));
                self.unknown.extend(names(send));
            }
            Err(_) => self.not_written.extend(names(send)),
        }
        Ok(())
    }

    /// Records that were acknowledged.
    pub fn acked(&self) -> usize {
        self.acked.len()
    }

    /// Records of which nobody knows whether they were written.
    pub fn unknown(&self) -> usize {
        self.unknown.len()
    }

    /// Records that are said not to have been written.
    pub fn not_written(&self) -> usize {
        self.not_written.len()
    }

    /// Which record these bytes are.
    ///
    /// # Errors
    /// They are none of this stream's.
    pub fn recognize(&self, shard: u32, offset: u64, bytes: &[u8]) -> Result<Name, String> {
        let at = || format!("shard {shard}, offset {offset}");
        let mut parts = bytes.splitn(4, |byte| *byte == b' ');
        let mut part = || std::str::from_utf8(parts.next()?).ok()?.parse::<u64>().ok();
        let (Some(life), Some(key), Some(number)) = (part(), part(), part()) else {
            return Err(format!("{}: no record of ours: {:?}", at(), &bytes[..bytes.len().min(40)]));
        };
        let name = Name { key: u32::try_from(key).unwrap_or(u32::MAX), number };
        if life != self.life || self.next.get(&name.key).is_none_or(|next| number >= *next) {
            return Err(format!("{}: {name:?} of {life} was never sent to {}", at(), self.life));
        }
        if payload(life, name) != bytes {
            return Err(format!("{}: {name:?} has other bytes", at()));
        }
        Ok(name)
    }

    /// Every acknowledged record is where it was said to be; nothing is doubled, missing between others or out of order.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn check(&self, content: &Content) -> Result<(), String> {
        for ((shard, offset), name) in &self.acked {
            let found = content.get(shard).and_then(|held| held.get(offset));
            if found != Some(name) {
                return Err(format!(
                    "shard {shard}, offset {offset}: {name:?} was acknowledged, {found:?} found"
                ));
            }
        }
        let mut last: BTreeMap<u32, u64> = BTreeMap::new();
        for (shard, held) in content {
            for (expected, (offset, name)) in (0..).zip(held) {
                if *offset != expected {
                    return Err(format!("shard {shard}: {expected} is missing before {offset}"));
                }
                if shard_of(name.key, self.shards) != *shard {
                    return Err(format!("shard {shard}, offset {offset}: {name:?} belongs elsewhere"));
                }
                if self.not_written.contains(name) {
                    return Err(format!(
                        "shard {shard}, offset {offset}: {name:?} was said not to be written"
                    ));
                }
                let before = last.insert(name.key, name.number);
                if before.is_some_and(|before| before >= name.number) {
                    return Err(format!("shard {shard}, offset {offset}: {name:?} after {before:?}"));
                }
            }
        }
        let found: usize = content.values().map(BTreeMap::len).sum();
        if found > self.acked.len() + self.unknown.len() {
            return Err(format!(
                "{found} records, {} acked, {} unknown",
                self.acked.len(),
                self.unknown.len()
            ));
        }
        Ok(())
    }
}

fn names(send: Send) -> impl Iterator<Item = Name> {
    (send.first..).take(send.count as usize).map(move |number| Name { key: send.key, number })
}

/// The routing key of a key.
pub fn key_bytes(key: u32) -> Bytes {
    format!("key-{key}").into()
}

/// Where a key's records go.
pub fn shard_of(key: u32, shards: u32) -> u32 {
    shard_for(Some(&key_bytes(key)), shards, KeyMapping::JumpHash).0
}

/// The bytes of a record: mostly some hundred, now and then many more.
pub fn payload(life: u64, name: Name) -> Bytes {
    let mut state = (life << 40) ^ (u64::from(name.key) << 32) ^ name.number;
    let mut draw = || {
        // splitmix64
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    };
    let len = match draw() % 100 {
        0 => 20_000 + draw() % 80_000,
        1..=9 => 1_000 + draw() % 4_000,
        10..=14 => 0,
        _ => draw() % 500,
    };
    let mut bytes = format!("{life} {} {} ", name.key, name.number).into_bytes();
    let end = bytes.len() + len as usize;
    while bytes.len() < end {
        bytes.extend_from_slice(&draw().to_le_bytes());
    }
    bytes.truncate(end);
    bytes.into()
}
