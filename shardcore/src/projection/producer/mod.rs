//! The producer projection: which numbered batches a shard has (semantics 2.5, client-protocol 10.8). Sans-io.
//! Scope: one [`ProducerCore`] per shard, on the core that owns it.
//! Owns: offsets, counts and payload digests of the last batches of the most recent producers.
//! Invariants: a remembered producer has at least one batch; its batches have consecutive sequences and rising offsets.
//! What is remembered follows from the producers' batches in the log alone, from the log's start on: it is the same
//! whether they were claimed, replayed, or replayed behind a snapshot (`tests/model.rs`).
//! Not here: answering who sent a batch (`session`), claiming and settling (`shard`), keeping snapshots.

mod digest;
mod history;
mod snapshot;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use felix_logstore::record::{Batch, BatchKind};
use felix_wire::id::{CoreId, Offset, ProducerId, Sequence};

pub use digest::Digest;
use history::{History, Remembered};
pub use snapshot::{PRODUCER_BYTES_MAX, SnapshotError};

/// Producers a shard remembers (semantics 2.5).
pub const PRODUCERS_MAX: usize = 4_096;
/// Batches it remembers of each (semantics 2.5).
pub const BATCHES_PER_PRODUCER_MAX: usize = 64;

/// Makes the ids of producers. Scope: one per core.
#[derive(Debug)]
pub struct ProducerIds(u64);

impl ProducerIds {
    /// `boot`: random per process, so that no two processes give the same ids.
    pub fn new(boot: u64, core: CoreId) -> ProducerIds {
        ProducerIds(mix(boot ^ mix(u64::from(core.0) + 1)))
    }

    /// One that was not given before.
    pub fn take(&mut self) -> ProducerId {
        self.0 = self.0.wrapping_add(STEP);
        ProducerId(mix(self.0))
    }
}

/// Tells ids that this process gave from those of earlier ones: an id of another process is taken for one of this in fewer
/// than one of 2^32 cases, as two ids may be the same by chance. Scope: one per core; plain values.
#[derive(Debug, Clone, Copy)]
pub struct OwnIds {
    boot: u64,
    cores: u16,
}

impl OwnIds {
    /// `boot` as in [`ProducerIds::new`]; `cores`: those that give ids are numbered below it.
    pub fn new(boot: u64, cores: u16) -> OwnIds {
        OwnIds { boot, cores }
    }

    /// Whether it is one of the first 2^24 that a core gives.
    pub fn has(&self, id: ProducerId) -> bool {
        let at = unmix(id.0);
        (0..self.cores).any(|core| {
            let first = ProducerIds::new(self.boot, CoreId(core)).0;
            let number = at.wrapping_sub(first).wrapping_mul(inverse(STEP));
            (1..=OWN_IDS_MAX).contains(&number)
        })
    }
}

/// Ids of one core that are known as its own.
const OWN_IDS_MAX: u64 = 1 << 24;
/// From one id to the next, before mixing.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
const FACTORS: [u64; 2] = [0xbf58_476d_1ce4_e5b9, 0x94d0_49bb_1331_11eb];

/// The finalizer of splitmix64: one to one, and every bit depends on all.
fn mix(mut word: u64) -> u64 {
    word = (word ^ (word >> 30)).wrapping_mul(FACTORS[0]);
    word = (word ^ (word >> 27)).wrapping_mul(FACTORS[1]);
    word ^ (word >> 31)
}

/// What [`mix`] made a word of.
fn unmix(mut word: u64) -> u64 {
    word = (word ^ (word >> 31) ^ (word >> 62)).wrapping_mul(inverse(FACTORS[1]));
    word = (word ^ (word >> 27) ^ (word >> 54)).wrapping_mul(inverse(FACTORS[0]));
    word ^ (word >> 30) ^ (word >> 60)
}

/// What an odd number is to be multiplied by to give 1: each step doubles the bits that fit, and three do at first.
const fn inverse(odd: u64) -> u64 {
    let mut inverse = odd;
    let mut bits = 3;
    while bits < u64::BITS {
        inverse = inverse.wrapping_mul(2_u64.wrapping_sub(odd.wrapping_mul(inverse)));
        bits *= 2;
    }
    inverse
}

/// A batch as its producer numbered it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Numbered {
    pub producer: ProducerId,
    /// Counted from 0 per producer and shard.
    pub sequence: Sequence,
    /// Records in it.
    pub count: NonZeroU32,
    /// Of its payloads.
    pub digest: Digest,
}

impl Numbered {
    /// What `batch` of a log says, with its base offset; none when no producer is named. Reads every payload.
    pub fn from_log(batch: &Batch) -> Option<(Numbered, Offset)> {
        let head = batch.head();
        let ours = matches!(head.kind, BatchKind::Data | BatchKind::Commit);
        let (producer, sequence) = head.producer.filter(|_| ours)?;
        let count = NonZeroU32::new(head.count)?;
        let digest = Digest::of(batch.records().map(|record| record.payload));
        Some((Numbered { producer, sequence, count, digest }, head.base))
    }
}

/// What to do with a numbered batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The next of its producer: claim it, then say [`ProducerCore::claimed`].
    Append,
    /// The shard has it. Nothing is appended; it is answered like the first copy.
    Duplicate {
        /// First offset of the first copy.
        base: Offset,
        /// Its records.
        count: NonZeroU32,
        /// One past its last offset.
        end: Offset,
        /// False while the first copy is in flight: answer when the shard's settled end has reached `end`.
        settled: bool,
    },
    /// Batches are missing before it; refuse.
    Gap {
        /// The next sequence of the producer.
        expected: Sequence,
    },
    /// Older than what is remembered; refuse.
    Expired,
    /// Remembered with other payloads; refuse.
    Reused,
    /// Not sequence 0, and nothing of its producer is remembered; refuse.
    Unknown,
}

/// What a cut left behind.
#[must_use = "after `Rebuild` the machine may not answer before it is rebuilt"]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// What a rebuild from the log as it is now would remember.
    Exact,
    /// Less than that: what was cut had pushed older batches or producers out. Rebuild from the log before the next
    /// check, or a producer whose every batch is missing would be taken for a new one.
    Rebuild,
}

/// See the module.
///
/// Memory: O(producers + batches): 24 bytes a batch, in buffers of 4 to 64 of them, and up to 190 a producer; less than
/// 7 MiB for [`PRODUCERS_MAX`] producers of [`BATCHES_PER_PRODUCER_MAX`] batches (`shardcore/tests/producer.rs`). A
/// check takes O(log producers) and allocates nothing.
///
/// Two machines are equal when they remember the same.
#[derive(Debug, Clone, Default)]
pub struct ProducerCore {
    producers: BTreeMap<ProducerId, History>,
    /// By the base of its newest batch, so that whoever appended least recently comes first.
    recency: BTreeMap<Offset, ProducerId>,
    /// End of the newest batch that pushed something older out; a cut below it cannot bring that back.
    displaced_by: Offset,
}

impl PartialEq for ProducerCore {
    fn eq(&self, other: &ProducerCore) -> bool {
        self.producers == other.producers && self.recency == other.recency
    }
}

impl Eq for ProducerCore {}

impl ProducerCore {
    /// A machine that remembers nothing.
    pub fn new() -> ProducerCore {
        ProducerCore::default()
    }

    /// Producers remembered.
    pub fn producers(&self) -> usize {
        self.producers.len()
    }

    /// First offset of the newest batch remembered of a producer.
    pub fn newest_of(&self, producer: ProducerId) -> Option<Offset> {
        self.producers.get(&producer).map(|history| history.newest().base)
    }

    /// One past the last offset of what is remembered; 0 when nothing is.
    pub fn end(&self) -> Offset {
        self.newest().map_or(Offset(0), |newest| newest.end())
    }

    /// What to do with `sent` when everything below `settled_end` is settled. Batches that were claimed count, settled
    /// or not. Changes nothing.
    pub fn check(&self, sent: &Numbered, settled_end: Offset) -> Verdict {
        let Some(history) = self.producers.get(&sent.producer) else {
            return if sent.sequence == Sequence(0) { Verdict::Append } else { Verdict::Unknown };
        };
        if sent.sequence > history.last() {
            // Something is greater, so adding one does not overflow.
            let expected = Sequence(history.last().0 + 1);
            return if sent.sequence == expected { Verdict::Append } else { Verdict::Gap { expected } };
        }
        match history.find(sent.sequence) {
            None => Verdict::Expired,
            Some(first) if first.digest != sent.digest || first.count != sent.count => Verdict::Reused,
            Some(first) => {
                let end = first.end();
                Verdict::Duplicate { base: first.base, count: first.count, end, settled: end <= settled_end }
            }
        }
    }

    /// Remembers that the offsets from `base` were claimed for `sent`. Afterwards the next sequence of the producer is
    /// expected; the oldest of its batches, or the producer that appended least recently, makes room where needed.
    ///
    /// # Panics
    /// When `check` does not say `Append`, or `base` is below the end of a batch claimed before.
    pub fn claimed(&mut self, sent: &Numbered, base: Offset) {
        self.claimed_for(sent, base, |_| {});
    }

    /// The same; `forgets` is told the first offset of every batch that made room.
    ///
    /// # Panics
    /// As [`Self::claimed`].
    pub fn claimed_for(&mut self, sent: &Numbered, base: Offset, forgets: impl FnMut(Offset)) {
        let next = match self.producers.get(&sent.producer) {
            Some(history) => history.is_next(sent.sequence),
            None => sent.sequence == Sequence(0),
        };
        assert!(next, "only the expected sequence is claimed");
        let fits = base.0.checked_add(u64::from(sent.count.get())).is_some();
        assert!(fits && base >= self.end(), "batches are claimed in offset order");
        self.remember(sent, base, forgets);
    }

    /// Remembers a batch that the log has at `base`, in offset order from any place of the log on. The log is believed: the
    /// first batch seen of a producer is accepted whatever its sequence, and one that does not follow the one before
    /// begins the producer anew. A batch below [`Self::end`] is known and ignored, so a replay may begin below the offset
    /// of the snapshot it goes on from.
    pub fn replay(&mut self, sent: &Numbered, base: Offset) {
        self.replay_for(sent, base, |_| {});
    }

    /// The same; `forgets` is told the first offset of every batch that made room. False when it was known and ignored.
    pub fn replay_for(&mut self, sent: &Numbered, base: Offset, forgets: impl FnMut(Offset)) -> bool {
        let fits = base.0.checked_add(u64::from(sent.count.get())).is_some();
        let new = fits && base >= self.end();
        if new {
            self.remember(sent, base, forgets);
        }
        new
    }

    /// First offsets of all batches that are remembered, in no order.
    pub fn bases(&self) -> impl Iterator<Item = Offset> {
        self.producers.values().flat_map(|history| history.iter().map(|batch| batch.base))
    }

    /// Forgets batches that lie wholly below `start`, the log's start, and producers without another batch. O(producers):
    /// for retention, not for every append.
    pub fn forget_below(&mut self, start: Offset) {
        let recency = &mut self.recency;
        self.producers.retain(|_, history| {
            let newest = history.newest();
            history.forget_below(start);
            let kept = newest.end() > start;
            if !kept {
                recency.remove(&newest.base);
            }
            kept
        });
    }

    /// Forgets claims that reach above `end`, where the log ends now: they will never be written. Afterwards the sequence
    /// of the first of them is expected again; a producer without another batch is forgotten.
    pub fn cut(&mut self, end: Offset) -> Cut {
        while let Some(newest) = self.recency.last_entry() {
            let producer = *newest.get();
            let Some(history) = self.producers.get_mut(&producer) else { break };
            if history.newest().end() <= end {
                break;
            }
            newest.remove();
            if history.cut(end) {
                self.recency.insert(history.newest().base, producer);
            } else {
                self.producers.remove(&producer);
            }
        }
        if self.displaced_by > end { Cut::Rebuild } else { Cut::Exact }
    }

    fn newest(&self) -> Option<Remembered> {
        let (_, producer) = self.recency.last_key_value()?;
        self.producers.get(producer).map(History::newest)
    }

    fn remember(&mut self, sent: &Numbered, base: Offset, forgets: impl FnMut(Offset)) {
        let batch = Remembered { base, digest: sent.digest, count: sent.count };
        let displaces = match self.producers.get_mut(&sent.producer) {
            Some(history) => {
                self.recency.remove(&history.newest().base);
                history.push(sent.sequence, batch, forgets)
            }
            None => {
                let evicts = self.producers.len() >= PRODUCERS_MAX && self.evict(forgets);
                self.producers.insert(sent.producer, History::new(sent.sequence, batch));
                evicts
            }
        };
        self.recency.insert(base, sent.producer);
        if displaces {
            // After a cut that said `Rebuild` it stays where it was until then.
            self.displaced_by = self.displaced_by.max(batch.end());
        }
    }

    /// Forgets the producer that appended least recently.
    fn evict(&mut self, forgets: impl FnMut(Offset)) -> bool {
        let Some((_, oldest)) = self.recency.pop_first() else { return false };
        let evicted = self.producers.remove(&oldest);
        evicted.iter().flat_map(History::iter).map(|batch| batch.base).for_each(forgets);
        evicted.is_some()
    }
}
