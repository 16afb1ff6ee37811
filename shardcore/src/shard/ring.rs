//! The newest records of one in-memory shard. Scope: one per shard, on the core that owns it.
//! Owns: the batches, in offset order, and how many bytes they hold.
//! Invariants: offsets are dense from `start` to `end`; nothing at or above the pin is evicted; every offset is
//! appended once, because a `Claim` is consumed by its append.
//! Not here: who waits for the records (`shard`), who reads them (`projection::stream`).

use std::collections::VecDeque;
use std::num::NonZeroU32;

use felix_wire::client::Records;
use felix_wire::id::Offset;

/// What a slot costs besides its bytes.
pub const SLOT_OVERHEAD_BYTES: usize = 128;
/// Batches below this are copied to a buffer of their own: they may be a slice of a 64 KiB receive buffer.
const COPY_BELOW_BYTES: usize = 32 << 10;

/// Offsets taken and not yet written. Not Clone: one claim, one append.
#[must_use = "a dropped claim is a hole in the log"]
#[derive(Debug)]
pub struct Claim {
    base: Offset,
    count: NonZeroU32,
}

/// Proof that a claim was appended: the only thing an ack can be made from.
#[must_use = "an append that is not settled is never acknowledged"]
#[derive(Debug)]
pub struct Appended {
    base: Offset,
}

impl Appended {
    /// Offset of the first record of the append.
    pub fn base(&self) -> Offset {
        self.base
    }
}

/// One batch as it lies in the ring. Cheap to clone: the bytes are shared.
#[derive(Clone, Debug)]
pub struct Slot {
    pub base: Offset,
    pub records: Records,
}

impl Slot {
    /// One past the last offset.
    pub fn end(&self) -> Offset {
        Offset(self.base.0 + u64::from(self.records.count()))
    }

    /// What the slot counts in a budget.
    pub fn cost(&self) -> usize {
        self.records.encoded_len() + SLOT_OVERHEAD_BYTES
    }
}

/// Bounds of one ring. At least the newest batch is always held.
#[derive(Clone, Copy, Debug)]
pub struct RingLimits {
    pub records_max: u64,
    pub bytes_max: usize,
}

/// A run of slots that covers `from`, and where to go on.
#[derive(Debug, Default)]
pub struct Page {
    pub slots: Vec<Slot>,
    /// Offset to ask for next; equal to the shard's end when nothing follows.
    pub next: Offset,
}

/// See the module.
#[derive(Debug)]
pub struct Ring {
    slots: VecDeque<Slot>,
    end: Offset,
    records: u64,
    bytes: usize,
    limits: RingLimits,
}

impl Ring {
    /// An empty ring whose next offset is `end`.
    pub fn new(end: Offset, limits: RingLimits) -> Ring {
        Ring { slots: VecDeque::new(), end, records: 0, bytes: 0, limits }
    }

    /// Oldest offset held; the end when nothing is.
    pub fn start(&self) -> Offset {
        self.slots.front().map_or(self.end, |s| s.base)
    }

    /// The next offset to be claimed.
    pub fn end(&self) -> Offset {
        self.end
    }

    /// Bytes held, overhead included.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Makes room for `bytes` more by evicting what lies wholly below `pin`. False, and only what may go anyway has
    /// gone, when the pinned part leaves no room; an empty ring takes a batch of any size.
    pub fn make_room(&mut self, bytes: usize, pin: Offset) -> bool {
        let cost = bytes + SLOT_OVERHEAD_BYTES;
        while self.bytes + cost > self.limits.bytes_max && self.evict_oldest(pin) > 0 {}
        self.slots.is_empty() || self.bytes + cost <= self.limits.bytes_max
    }

    /// Takes the next `count` offsets.
    pub fn claim(&mut self, count: NonZeroU32) -> Claim {
        let base = self.end;
        self.end = Offset(base.0 + u64::from(count.get()));
        Claim { base, count }
    }

    /// Writes a claim. Afterwards the records are readable, and older ones below `pin` may be gone.
    pub fn append(&mut self, claim: Claim, records: Records, pin: Offset) -> Appended {
        assert_eq!(claim.count.get(), records.count(), "a claim is for exactly the records appended");
        let tail = self.slots.back().map_or(claim.base, Slot::end);
        assert_eq!(tail, claim.base, "appends happen in claim order");
        let records =
            if records.encoded_len() < COPY_BELOW_BYTES { records.into_detached() } else { records };
        let slot = Slot { base: claim.base, records };
        self.bytes += slot.cost();
        self.records += u64::from(claim.count.get());
        self.slots.push_back(slot);
        while self.records > self.limits.records_max && self.slots.len() > 1 && self.evict_oldest(pin) > 0 {}
        Appended { base: claim.base }
    }

    /// Lets the next `count` offsets pass without their records, and everything before them go. Gives the first.
    pub fn pass(&mut self, count: NonZeroU32) -> Offset {
        self.slots.clear();
        (self.bytes, self.records) = (0, 0);
        let base = self.end;
        self.end = Offset(base.0 + u64::from(count.get()));
        base
    }

    /// Evicts the oldest slot if it lies wholly below `pin`; the bytes that gave, 0 for none.
    pub fn evict_oldest(&mut self, pin: Offset) -> usize {
        match self.slots.front() {
            Some(slot) if slot.end() <= pin => {
                let cost = slot.cost();
                self.records -= u64::from(slot.records.count());
                self.bytes -= cost;
                self.slots.pop_front();
                cost
            }
            _ => 0,
        }
    }

    /// Bytes at or above `pin`, which `make_room` cannot free.
    pub fn pinned_bytes(&self, pin: Offset) -> usize {
        let first = self.slots.partition_point(|s| s.end() <= pin);
        self.slots.iter().skip(first).map(Slot::cost).sum()
    }

    /// Slots from the one that holds `from` (or the oldest, when `from` is gone) up to `bytes_max` bytes, at least one.
    pub fn page(&self, from: Offset, bytes_max: usize) -> Page {
        let first = self.slots.partition_point(|s| s.end() <= from);
        let mut page = Page { slots: Vec::new(), next: from.max(self.start()).min(self.end) };
        let mut bytes = 0;
        for slot in self.slots.iter().skip(first) {
            if bytes > 0 && bytes + slot.cost() > bytes_max {
                break;
            }
            bytes += slot.cost();
            page.next = slot.end();
            page.slots.push(slot.clone());
        }
        page
    }
}
