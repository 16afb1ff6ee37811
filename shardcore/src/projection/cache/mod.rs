//! The cache projection: key to newest value (semantics 6.1, client-protocol 12 and 13). Sans-io.
//! Scope: one [`CacheCore`] per shard of a cache, on the core that owns it; with a log, or in memory only.
//! Owns: the index, the values held in memory, writes that are claimed and not settled, the watches.
//! Invariants: reads see what is settled, conditions see what is claimed; a version is the offset of the write, which
//! compaction keeps; a value that was deleted, overwritten or seen expired never returns; what is settled is the same
//! whether it was claimed here or replayed from the log (`tests/model.rs`).
//! Not here: claiming offsets and answering (`shard`), reading a value that only the log holds, JSON.

mod claimed;
pub mod compact;
pub mod delivery;
pub mod event;
pub mod expiry;
pub mod interest;
pub mod record;
mod retain;
#[cfg(test)]
mod tests;
pub mod values;
pub mod watch;

use std::collections::VecDeque;

use bytes::Bytes;
use felix_logstore::record::{Batch, BatchKind};
use felix_runtime::planted::{self, Defect};
use felix_wire::id::Offset;

use crate::projection::keys::{KEY_OVERHEAD_BYTES, KEYS_MAX, KeyTable, Slot};
use crate::projection::record::{BadRecord, KEY_BYTES_MAX};
pub use claimed::Newest;
use claimed::{Claimed, Pending};
use compact::Compaction;
use expiry::{Clock, Expiry};
use record::{CacheRecord, put_len};
use retain::Collecting;
use values::{VALUE_OVERHEAD_BYTES, ValueId, Values};
use watch::Watches;

/// Longest value, bytes: it must fit one JSON answer of 16 MiB as base64, beside its key with every byte escaped.
pub const VALUE_BYTES_MAX: usize = 11 << 20;
const _: () = assert!(VALUE_BYTES_MAX / 3 * 4 + 6 * KEY_BYTES_MAX + 65_536 < 16 << 20);

/// What a key costs in memory beside its bytes: [`KEY_OVERHEAD_BYTES`] and its entry.
pub const ENTRY_BYTES: usize = KEY_OVERHEAD_BYTES + size_of::<Entry>();
/// Bytes of the log per record beside its payload.
const RECORD_OVERHEAD_BYTES: u64 = 12;
/// Slots looked at for expired values with each write, so that they go at least as fast as new ones come.
const SWEEP_PER_WRITE: u32 = 4;
/// Slots looked at when the time for it has come.
const SWEEP_SLOTS: u32 = 4_096;
/// From one such time to the next, milliseconds.
const SWEEP_EVERY_MS: u64 = 100;

/// Where the values of a cache are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keeping {
    /// In its log; so many bytes of those that are read stay in memory too.
    Logged { hot_bytes_max: usize },
    /// In memory only, all of the cache in so many bytes; what is read least makes room.
    Memory { bytes_max: usize },
}

/// What is known of a key.
#[derive(Debug, Clone, Copy)]
struct Entry {
    /// Offset of the record that holds the value: the write or its newest copy.
    at: Offset,
    /// Offset of the write.
    version: Offset,
    expiry: Expiry,
    value_len: u32,
    held: ValueId,
}

const _: () = assert!(size_of::<Entry>() == 32, "the cost of a key is stated");

/// What a get finds.
#[derive(Debug, PartialEq, Eq)]
pub enum Found<'a> {
    /// Never written, deleted or expired.
    Absent,
    /// What is settled has expired, and a write is in flight that may have been decided while it lived: to be answered with what
    /// is claimed, when that is settled. Else one would see the value gone that a later answer says was there.
    Claimed(Newest),
    Here {
        value: &'a Bytes,
        version: Offset,
        expiry: Expiry,
    },
    /// Read the record at `at` and give it to [`CacheCore::read_back`]. When the log does not have it any more, look again.
    InLog {
        at: Offset,
        version: Offset,
        expiry: Expiry,
    },
}

/// When a write applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Condition {
    Always,
    /// The key has no value.
    Absent,
    /// The value has this version.
    Version(Offset),
}

/// A write that was decided and has no offset yet. Append what it encodes to, then say [`CacheCore::claimed`]; dropping
/// it changes nothing.
#[must_use = "a write that is not claimed never happens"]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Draft {
    key: Box<[u8]>,
    change: Change,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Change {
    Put { value: Bytes, expiry: Expiry },
    Delete,
    Copy { value: Bytes, expiry: Expiry, version: Offset },
}

impl Draft {
    /// Appends the payload of its record to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        self.record().encode(out);
    }

    /// Bytes of that payload.
    pub fn encoded_len(&self) -> usize {
        self.record().encoded_len()
    }

    /// The key, and the value of a put.
    pub fn into_parts(self) -> (Box<[u8]>, Option<Bytes>) {
        let value = match self.change {
            Change::Put { value, .. } | Change::Copy { value, .. } => Some(value),
            Change::Delete => None,
        };
        (self.key, value)
    }

    fn record(&self) -> CacheRecord<'_> {
        let key = &*self.key;
        match &self.change {
            Change::Put { value, expiry } => CacheRecord::Put { key, value, expiry: *expiry },
            Change::Delete => CacheRecord::Delete { key },
            Change::Copy { value, expiry, version } => {
                CacheRecord::Copy { key, value, expiry: *expiry, version: *version }
            }
        }
    }
}

/// A condition that does not hold. It may be told when the settled end has reached `after`: what contradicts it may
/// not be settled yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unmet {
    /// Of the value there is.
    pub version: Option<Offset>,
    pub after: Offset,
}

/// What to do with a put.
#[derive(Debug, PartialEq, Eq)]
pub enum Put {
    Append(Draft),
    Unmet(Unmet),
}

/// What to do with a delete.
#[derive(Debug, PartialEq, Eq)]
pub enum Delete {
    /// Append it. `removed` is the answer, when the value was asked for.
    Append {
        draft: Draft,
        removed: Option<Bytes>,
    },
    /// There is no value; nothing is appended. Answer when the settled end has reached `after`.
    Absent {
        after: Offset,
    },
    Unmet(Unmet),
    /// The value that goes is in the log only: read it first, then ask again with it.
    Read {
        at: Offset,
        version: Offset,
    },
}

/// Why a write is not taken, whatever the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WriteRefused {
    #[error("a key has at most {KEY_BYTES_MAX} bytes")]
    KeyTooLong,
    #[error("a value has at most {bytes_max} bytes here")]
    ValueTooLarge { bytes_max: usize },
    #[error("the shard has as many keys as it can have")]
    TooManyKeys,
}

/// See the module.
///
/// Memory: a key costs its bytes and [`ENTRY_BYTES`]; values in memory are bounded by [`Keeping`]; writes in flight are
/// bounded by the log, watches by [`watch::WatchLimits`]. `get` allocates nothing.
#[derive(Debug)]
pub struct CacheCore {
    keeping: Keeping,
    table: KeyTable<Entry>,
    values: Values,
    claimed: Claimed,
    watches: Watches,
    collecting: VecDeque<Collecting>,
    compaction: Compaction,
    clock: Clock,
    /// Everything below is settled and in the table.
    settled_end: Offset,
    /// Where the log begins; everything else is in copies.
    log_start: Offset,
    /// Bytes of the log that hold values.
    live_bytes: u64,
    /// Keys whose value has an end.
    expiring: usize,
    sweep_at: u32,
    swept_ms: u64,
    /// Values that made room in memory.
    evicted: u64,
}

impl CacheCore {
    /// An empty cache whose first offset is `start`.
    pub fn new(keeping: Keeping, start: Offset) -> CacheCore {
        CacheCore {
            keeping,
            table: KeyTable::new(),
            values: Values::default(),
            claimed: Claimed::new(start),
            watches: Watches::new(matches!(keeping, Keeping::Memory { .. }), start),
            collecting: VecDeque::new(),
            compaction: Compaction::default(),
            clock: Clock::default(),
            settled_end: start,
            log_start: start,
            live_bytes: 0,
            expiring: 0,
            sweep_at: 0,
            swept_ms: 0,
            evicted: 0,
        }
    }

    /// The bound of what is in memory from now on; what is over it goes with the next value that comes in.
    pub fn set_bytes_max(&mut self, bytes: usize) {
        match &mut self.keeping {
            Keeping::Logged { hot_bytes_max } => *hot_bytes_max = bytes,
            Keeping::Memory { bytes_max } => *bytes_max = bytes,
        }
    }

    /// Everything below is settled.
    pub fn settled_end(&self) -> Offset {
        self.settled_end
    }

    /// Keys with a value, expired ones included that nobody has met yet.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Bytes of the log that hold values.
    pub fn live_bytes(&self) -> u64 {
        self.live_bytes
    }

    /// Bytes of memory that keys and values take; writes in flight and watches not counted.
    pub fn memory_bytes(&self) -> usize {
        self.table.len() * ENTRY_BYTES + self.table.key_bytes() + self.values.bytes()
    }

    /// Values that made room for others so far, in memory only.
    pub fn evicted(&self) -> u64 {
        self.evicted
    }

    /// What is settled of a key. Allocates nothing.
    pub fn get(&mut self, key: &[u8], now_ms: u64) -> Found<'_> {
        let now_ms = self.clock.at(now_ms);
        let Some(slot) = self.table.find(key) else { return Found::Absent };
        let Entry { at, version, expiry, held, .. } = *self.table.value(slot);
        if expiry.is_past(now_ms) {
            if let Some(newest) = self.claimed.newest(key, now_ms) {
                return Found::Claimed(newest);
            }
            self.forget(slot);
            return Found::Absent;
        }
        match self.values.read(held) {
            Some(value) => Found::Here { value, version, expiry },
            None => Found::InLog { at, version, expiry },
        }
    }

    /// The record that [`Found::InLog`] or [`Delete::Read`] named was read. Gives its value, and keeps it in memory when
    /// the key still has it.
    ///
    /// # Errors
    /// When it is not the record of a value of that key.
    pub fn read_back(&mut self, key: &[u8], at: Offset, payload: &Bytes) -> Result<Bytes, BadRecord> {
        let bad = |fault| BadRecord { offset: at, fault };
        let value = match CacheRecord::decode(payload).map_err(bad)? {
            CacheRecord::Put { key: found, value, .. } | CacheRecord::Copy { key: found, value, .. }
                if found == key =>
            {
                payload.slice_ref(value)
            }
            _ => {
                return Err(bad(crate::projection::record::RecordFault::Malformed(
                    "the value of another key",
                )));
            }
        };
        if let Some(slot) = self.table.find(key).filter(|slot| self.table.value(*slot).at == at) {
            self.hold(slot, value.len(), || Bytes::copy_from_slice(&value));
        }
        Ok(value)
    }

    /// Decides a put. The value has memory of its own, so that one that is kept pins no more.
    ///
    /// # Errors
    /// When it could not be kept, whatever the state.
    pub fn put(
        &mut self,
        key: impl AsRef<[u8]> + Into<Vec<u8>>,
        value: Bytes,
        expiry: Expiry,
        condition: Condition,
        now_ms: u64,
    ) -> Result<Put, WriteRefused> {
        self.check_size(key.as_ref(), value.len())?;
        self.clock.at(now_ms);
        // Without a condition nobody has to look.
        if condition != Condition::Always
            && let Some(unmet) = self.newest(key.as_ref(), now_ms).unmet(condition)
        {
            return Ok(Put::Unmet(unmet));
        }
        let key = key.into().into_boxed_slice();
        Ok(Put::Append(Draft { key, change: Change::Put { value, expiry } }))
    }

    /// Decides a delete. `wanted`: the answer tells the value; `known`: the version and value that were read for that.
    ///
    /// # Errors
    /// `KeyTooLong`.
    pub fn delete(
        &mut self,
        key: &[u8],
        condition: Condition,
        (wanted, known): (bool, Option<(Offset, Bytes)>),
        now_ms: u64,
    ) -> Result<Delete, WriteRefused> {
        self.check_size(key, 0)?;
        let newest = self.newest(key, now_ms);
        if let Some(unmet) = newest.unmet(condition) {
            return Ok(Delete::Unmet(unmet));
        }
        let Newest { version: Some(version), value, at, .. } = newest else {
            return Ok(Delete::Absent { after: newest.after });
        };
        let known = known.filter(|(of, _)| *of == version).map(|(_, value)| value);
        match value.or(known) {
            None if wanted => Ok(Delete::Read { at, version }),
            value => Ok(Delete::Append {
                draft: Draft { key: key.into(), change: Change::Delete },
                removed: value.filter(|_| wanted),
            }),
        }
    }

    /// A draft has the offset `at`. It counts for conditions at once, for reads when it is settled.
    ///
    /// # Panics
    /// When offsets do not rise.
    pub fn claimed(&mut self, draft: Draft, at: Offset) {
        self.claimed.push(draft, at);
    }

    /// In memory a draft is settled as it is claimed. Gives its offset.
    ///
    /// # Panics
    /// When the cache has a log.
    pub fn apply(&mut self, draft: Draft, now_ms: u64) -> Offset {
        assert!(matches!(self.keeping, Keeping::Memory { .. }), "a log gives the offsets of its cache");
        self.clock.at(now_ms);
        let at = self.claimed.end();
        self.settle_one(at, draft);
        self.settled_to(Offset(at.0 + 1));
        at
    }

    /// Everything below `end` is settled: it can be read, and watches are told.
    pub fn settle(&mut self, end: Offset, now_ms: u64) {
        self.clock.at(now_ms);
        while let Some(Pending { at, draft }) = self.claimed.pop_below(end) {
            self.settle_one(at, draft);
        }
        self.settled_to(end);
    }

    fn settle_one(&mut self, at: Offset, draft: Draft) {
        let Draft { key, change } = draft;
        match change {
            Change::Put { value, expiry } => {
                self.watches.tell(&key, Some(&value), at, expiry);
                let slot = self.store_entry(key, Entry::new(at, at, expiry, value.len()));
                self.hold(slot, value.len(), || value);
            }
            Change::Delete => {
                self.watches.tell(&key, None, at, Expiry::NEVER);
                if let Some(slot) = self.table.find(&key) {
                    self.forget(slot);
                }
            }
            Change::Copy { version, .. } => self.moved(&key, version, at),
        }
        self.sweep_slots(SWEEP_PER_WRITE);
    }

    fn settled_to(&mut self, end: Offset) {
        self.settled_end = self.settled_end.max(end);
        self.claimed.reach(self.settled_end);
        self.watches.settled(self.settled_end);
    }

    /// The log has failed, or leaves: what is claimed and not settled is not known to be there. Gives how many writes.
    pub fn stop(&mut self) -> usize {
        self.claimed.clear()
    }

    /// Takes what a batch of the log says, in offset order. Nothing may be claimed meanwhile.
    ///
    /// # Errors
    /// The first record that cannot be read; what is before it was taken.
    pub fn replay(&mut self, batch: &Batch) -> Result<(), BadRecord> {
        let head = batch.head();
        self.clock.at(head.timestamp_ms);
        if head.kind == BatchKind::Data {
            let known_end = self.settled_end;
            for record in batch.record_refs().filter(|record| record.offset >= known_end) {
                let found = CacheRecord::decode(record.payload)
                    .map_err(|fault| BadRecord { offset: record.offset, fault })?;
                self.replay_record(found, record.offset);
            }
        }
        self.settled_end = self.settled_end.max(head.end());
        self.claimed.reach(self.settled_end);
        self.watches.settled(self.settled_end);
        Ok(())
    }

    fn replay_record(&mut self, record: CacheRecord<'_>, at: Offset) {
        let (key, value, entry) = match record {
            CacheRecord::Put { key, value, expiry } => {
                let forgotten = planted::is(Defect::LifeForgotten);
                let expiry = if forgotten { Expiry::NEVER } else { expiry };
                (key, value, Entry::new(at, at, expiry, value.len()))
            }
            CacheRecord::Copy { key, value, expiry, version } => {
                (key, value, Entry::new(at, version, expiry, value.len()))
            }
            CacheRecord::Delete { key } => {
                if let Some(slot) = self.table.find(key).filter(|_| !planted::is(Defect::DeleteForgotten)) {
                    self.forget(slot);
                }
                return;
            }
        };
        let slot = self.store_entry(key, entry);
        // Values come in while there is room, and push none out: most of what is replayed is overwritten later.
        let room = match self.keeping {
            Keeping::Logged { hot_bytes_max } => hot_bytes_max,
            Keeping::Memory { bytes_max } => bytes_max,
        };
        if self.values.bytes() + value.len() + VALUE_OVERHEAD_BYTES <= room {
            self.hold(slot, value.len(), || Bytes::copy_from_slice(value));
        }
        self.sweep_slots(SWEEP_PER_WRITE);
    }

    /// When [`Self::sweep`] wants to be called, milliseconds since 1970; none when nothing ends.
    pub fn next_sweep_ms(&self) -> Option<u64> {
        (self.expiring > 0).then(|| self.swept_ms.saturating_add(SWEEP_EVERY_MS))
    }

    /// Looks at some keys and forgets those that have expired.
    pub fn sweep(&mut self, now_ms: u64) {
        self.swept_ms = self.clock.at(now_ms);
        self.sweep_slots(SWEEP_SLOTS);
    }

    fn sweep_slots(&mut self, slots: u32) {
        if self.expiring == 0 {
            return;
        }
        let now_ms = self.clock.last();
        for _ in 0..slots.min(self.table.slots()) {
            if self.sweep_at >= self.table.slots() {
                self.sweep_at = 0;
            }
            let past = self
                .table
                .at(self.sweep_at)
                .is_some_and(|(key, entry)| entry.expiry.is_past(now_ms) && !self.claimed.has(key));
            if let Some(slot) = self.table.slot_at(self.sweep_at).filter(|_| past) {
                self.forget(slot);
            }
            self.sweep_at += 1;
        }
    }

    fn check_size(&self, key: &[u8], value_len: usize) -> Result<(), WriteRefused> {
        if key.len() > KEY_BYTES_MAX {
            return Err(WriteRefused::KeyTooLong);
        }
        let own = ENTRY_BYTES + key.len() + VALUE_OVERHEAD_BYTES;
        let bytes_max = match self.keeping {
            Keeping::Logged { .. } => VALUE_BYTES_MAX,
            Keeping::Memory { bytes_max } => VALUE_BYTES_MAX.min(bytes_max.saturating_sub(own)),
        };
        if value_len > bytes_max {
            return Err(WriteRefused::ValueTooLarge { bytes_max });
        }
        // Writes in flight may each bring a key.
        if self.table.len() + self.claimed.len() >= KEYS_MAX {
            return Err(WriteRefused::TooManyKeys);
        }
        Ok(())
    }

    /// The newest claimed or settled state of a key.
    fn newest(&mut self, key: &[u8], now_ms: u64) -> Newest {
        let now_ms = self.clock.at(now_ms);
        if let Some(newest) = self.claimed.newest(key, now_ms) {
            return newest;
        }
        let entry = self.table.find(key).map(|slot| *self.table.value(slot));
        match entry.filter(|entry| !entry.expiry.is_past(now_ms)) {
            None => Newest::absent(Offset(0)),
            Some(entry) => Newest {
                version: Some(entry.version),
                value: self.values.peek(entry.held).cloned(),
                at: entry.at,
                after: Offset(0),
            },
        }
    }

    /// Puts an entry in, whatever was there of its key.
    fn store_entry<K: AsRef<[u8]> + Into<Box<[u8]>>>(&mut self, key: K, entry: Entry) -> Slot {
        let key_len = key.as_ref().len();
        self.live_bytes += live_len(key_len, entry.value_len);
        self.expiring += usize::from(entry.expiry != Expiry::NEVER);
        let (slot, old) = self.table.put(key, entry);
        if let Some(old) = old {
            self.values.remove(old.held);
            self.live_bytes -= live_len(key_len, old.value_len);
            self.expiring -= usize::from(old.expiry != Expiry::NEVER);
        }
        slot
    }

    fn moved(&mut self, key: &[u8], version: Offset, at: Offset) {
        if let Some(slot) = self.table.find(key).filter(|slot| self.table.value(*slot).version == version) {
            self.table.value_mut(slot).at = at;
        }
    }

    fn forget(&mut self, slot: Slot) {
        let (key, entry) = self.table.remove(slot);
        self.values.remove(entry.held);
        self.live_bytes -= live_len(key.len(), entry.value_len);
        self.expiring -= usize::from(entry.expiry != Expiry::NEVER);
    }

    /// Keeps the value of a key in memory. What is read least makes room for it first, so it is not the one that goes.
    /// `value` gives it, with memory of its own.
    fn hold(&mut self, slot: Slot, len: usize, value: impl FnOnce() -> Bytes) {
        if self.values.peek(self.table.value(slot).held).is_some() {
            return;
        }
        let cost = len + VALUE_OVERHEAD_BYTES;
        match self.keeping {
            Keeping::Logged { hot_bytes_max } if cost > hot_bytes_max => return,
            Keeping::Logged { hot_bytes_max } => {
                while self.values.bytes() + cost > hot_bytes_max {
                    let Some(out) = self.values.evict() else { break };
                    self.table.value_mut(out).held = ValueId::NONE;
                }
            }
            Keeping::Memory { bytes_max } => {
                while self.memory_bytes() + cost > bytes_max {
                    let Some(out) = self.values.evict() else { break };
                    self.forget(out);
                    self.evicted += 1;
                }
            }
        }
        self.table.value_mut(slot).held = self.values.insert(slot, value());
    }
}

impl Entry {
    fn new(at: Offset, version: Offset, expiry: Expiry, value_len: usize) -> Entry {
        // A record has at most 16 MiB.
        Entry { at, version, expiry, value_len: value_len as u32, held: ValueId::NONE }
    }
}

/// What a value takes in the log.
fn live_len(key: usize, value: u32) -> u64 {
    put_len(key, value as usize) as u64 + RECORD_OVERHEAD_BYTES
}
