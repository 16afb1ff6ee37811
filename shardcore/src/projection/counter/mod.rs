//! The counter projection: sums of signed adds (semantics 6.3, client-protocol 12). Sans-io.
//! Scope: one [`CounterCore`] per shard of a cache, beside its [`super::cache::CacheCore`]; it has a log of its own, or is
//! in memory only.
//! Owns: the sums, settled and claimed; what numbered adds were answered; how far checkpoints are.
//! Invariants: a sum never wraps; an add that is refused changes nothing; a numbered add counts once, and sent again gets
//! the answer of the first time; what is settled is the same whether it was claimed here or replayed (`tests.rs`).
//! Not here: claiming offsets and answering (`shard`).

mod answers;
mod checkpoint;
pub mod record;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::num::NonZeroU32;

use felix_logstore::record::{Batch, BatchKind};
use felix_runtime::planted::{self, Defect};
use felix_wire::id::{Offset, ProducerId, Sequence};

use crate::projection::keys::{KEY_OVERHEAD_BYTES, KEYS_MAX, KeyTable, Slot};
use crate::projection::producer::{Numbered, PRODUCER_BYTES_MAX, ProducerCore, Verdict};
use crate::projection::record::{BadRecord, KEY_BYTES_MAX, RecordFault};
use answers::Answers;
use checkpoint::Checkpointing;
pub use checkpoint::CounterStep;
use record::{ANSWER_BYTES, AnswerBytes, CounterRecord, add_len, digest};

/// What a counter costs in memory beside its key.
pub const COUNTER_BYTES: usize = KEY_OVERHEAD_BYTES + size_of::<Sum>();
/// Bytes of the log per record beside its payload.
const RECORD_OVERHEAD_BYTES: u64 = 12;

/// Where the counters are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keeping {
    Logged,
    /// In memory only. A counter cannot be let go: beyond so many bytes new ones are refused.
    Memory {
        bytes_max: usize,
    },
}

/// What is known of a counter.
#[derive(Debug, Clone, Copy)]
struct Sum {
    /// With everything that is settled; none when nothing is.
    settled: Option<i64>,
    /// With everything that is claimed.
    claimed: i64,
    /// Its newest record.
    record: Offset,
}

const _: () = assert!(size_of::<Sum>() == 32, "the cost of a counter is stated");

/// An add or a checkpoint that was decided and has no offset yet.
#[must_use = "an add that is not claimed never happens"]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Draft {
    change: Change,
    number: Option<Numbered>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Change {
    Add { key: Box<[u8]>, delta: i64, sum: i64 },
    Checkpoint { key: Box<[u8]>, sum: i64 },
    Producers { snapshot: Vec<u8> },
    Answers { answers: Vec<AnswerBytes> },
}

impl Draft {
    /// Appends the payload of its record to `out`. A numbered draft goes into a batch of its own that names
    /// [`Self::producer`].
    pub fn encode(&self, out: &mut Vec<u8>) {
        match &self.change {
            Change::Add { key, delta, sum } => {
                CounterRecord::Add { key, delta: *delta, sum: *sum }.encode(out)
            }
            Change::Checkpoint { key, sum } => CounterRecord::Checkpoint { key, sum: *sum }.encode(out),
            Change::Producers { snapshot } => CounterRecord::Producers { snapshot }.encode(out),
            Change::Answers { answers } => CounterRecord::Answers { answers }.encode(out),
        }
    }

    /// What the head of its batch names.
    pub fn producer(&self) -> Option<(ProducerId, Sequence)> {
        self.number.map(|number| (number.producer, number.sequence))
    }

    /// The sum with this add: the answer, when it is settled.
    pub fn sum(&self) -> i64 {
        match self.change {
            Change::Add { sum, .. } | Change::Checkpoint { sum, .. } => sum,
            Change::Producers { .. } | Change::Answers { .. } => 0,
        }
    }
}

/// Why an add is not taken. Nothing changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AddRefused {
    /// The sum would not fit. It may be told when the settled end has reached `after`.
    #[error("{sum} and {delta} do not fit 64 bits")]
    Overflow { sum: i64, delta: i64, after: Offset },
    #[error("a key has at most {KEY_BYTES_MAX} bytes")]
    KeyTooLong,
    #[error("the shard has as many counters as it can have")]
    TooManyCounters,
    #[error("counters in memory have at most {bytes_max} bytes")]
    NoRoom { bytes_max: usize },
    /// Of a numbered add, by the rules of producers (semantics 2.5). Never `Append` or `Duplicate`.
    #[error("the number of the add is refused: {0:?}")]
    Number(Verdict),
}

/// What to do with a numbered add.
#[derive(Debug, PartialEq, Eq)]
pub enum NumberedAdd {
    Append(Draft),
    /// It counts already, and was answered `sum`. Answer when the settled end has reached `after`. Without a sum refuse it as
    /// expired: the log was compacted by a version that let go of answers.
    Again {
        sum: Option<i64>,
        after: Offset,
    },
}

/// See the module.
///
/// Memory: a counter costs its key and [`COUNTER_BYTES`], producers what [`ProducerCore`] says, and an answer less than 40
/// bytes for each of their batches: less than 10 MiB when there are as many as it remembers.
#[derive(Debug)]
pub struct CounterCore {
    keeping: Keeping,
    table: KeyTable<Sum>,
    /// Sums by the offset at which they become settled.
    pending: VecDeque<(Offset, Slot, i64)>,
    producers: ProducerCore,
    answers: Answers,
    checkpointing: Checkpointing,
    settled_end: Offset,
    claimed_end: Offset,
}

impl CounterCore {
    /// Without counters; its first offset is `start`.
    pub fn new(keeping: Keeping, start: Offset) -> CounterCore {
        CounterCore {
            keeping,
            table: KeyTable::new(),
            pending: VecDeque::new(),
            producers: ProducerCore::new(),
            answers: Answers::default(),
            checkpointing: Checkpointing::default(),
            settled_end: start,
            claimed_end: start,
        }
    }

    /// The bound of counters in memory from now on; those there are stay.
    pub fn set_bytes_max(&mut self, bytes: usize) {
        if let Keeping::Memory { bytes_max } = &mut self.keeping {
            *bytes_max = bytes;
        }
    }

    /// Counters there are.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Everything below is settled.
    pub fn settled_end(&self) -> Offset {
        self.settled_end
    }

    /// Bytes of the log that the newest record of every counter takes, what is known of producers at most, and answers.
    pub fn live_bytes(&self) -> u64 {
        let each = add_len(0) as u64 + RECORD_OVERHEAD_BYTES;
        let producers = self.producers.producers() as u64 * PRODUCER_BYTES_MAX;
        let answers = (self.answers.len() * ANSWER_BYTES) as u64;
        self.table.len() as u64 * each + self.table.key_bytes() as u64 + producers + answers
    }

    /// Bytes of memory that the counters take.
    pub fn memory_bytes(&self) -> usize {
        self.table.len() * COUNTER_BYTES + self.table.key_bytes()
    }

    /// The settled sum; none when nothing was ever added. Allocates nothing.
    pub fn get(&self, key: &[u8]) -> Option<i64> {
        self.table.find(key).and_then(|slot| self.table.value(slot).settled)
    }

    /// Decides an add.
    ///
    /// # Errors
    /// See [`AddRefused`].
    pub fn add(&self, key: &[u8], delta: i64) -> Result<Draft, AddRefused> {
        if key.len() > KEY_BYTES_MAX {
            return Err(AddRefused::KeyTooLong);
        }
        let before = match self.table.find(key) {
            Some(slot) => self.table.value(slot).claimed,
            None => {
                self.check_room(key.len())?;
                0
            }
        };
        let overflow = AddRefused::Overflow { sum: before, delta, after: self.claimed_end };
        let sum = before.checked_add(delta).ok_or(overflow)?;
        Ok(Draft { change: Change::Add { key: key.into(), delta, sum }, number: None })
    }

    /// Decides a numbered add.
    ///
    /// # Errors
    /// See [`AddRefused`].
    pub fn add_numbered(
        &self,
        (producer, sequence): (ProducerId, Sequence),
        key: &[u8],
        delta: i64,
    ) -> Result<NumberedAdd, AddRefused> {
        let number = Numbered { producer, sequence, count: NonZeroU32::MIN, digest: digest(key, delta) };
        match self.producers.check(&number, self.settled_end) {
            Verdict::Append => {
                let draft = self.add(key, delta)?;
                Ok(NumberedAdd::Append(Draft { number: Some(number), ..draft }))
            }
            Verdict::Duplicate { .. } if planted::is(Defect::AddCountedTwice) => {
                self.add(key, delta).map(NumberedAdd::Append)
            }
            Verdict::Duplicate { base, end, .. } => {
                Ok(NumberedAdd::Again { sum: self.answers.get(base), after: end })
            }
            refused => Err(AddRefused::Number(refused)),
        }
    }

    fn check_room(&self, key_len: usize) -> Result<(), AddRefused> {
        if self.table.len() >= KEYS_MAX {
            return Err(AddRefused::TooManyCounters);
        }
        match self.keeping {
            Keeping::Memory { bytes_max } if self.memory_bytes() + COUNTER_BYTES + key_len > bytes_max => {
                Err(AddRefused::NoRoom { bytes_max })
            }
            _ => Ok(()),
        }
    }

    /// A draft has the offset `at`. It counts for further adds at once, for reads when it is settled.
    ///
    /// # Panics
    /// When offsets do not rise, or the draft is not of the newest sum.
    pub fn claimed(&mut self, draft: Draft, at: Offset) {
        assert!(at >= self.claimed_end, "adds are claimed in offset order");
        self.claimed_end = Offset(at.0 + 1);
        let draft_sum = draft.sum();
        let Draft { change, number } = draft;
        if let Some(number) = number {
            self.answers.claimed(&mut self.producers, &number, (at, draft_sum));
        }
        match change {
            Change::Add { key, delta, sum } => {
                let slot = match self.table.find(&key) {
                    Some(slot) => slot,
                    None => self.table.insert(key, Sum { settled: None, claimed: 0, record: at }),
                };
                let known = self.table.value_mut(slot);
                assert_eq!(known.claimed.checked_add(delta), Some(sum), "a draft is claimed before the next");
                (known.claimed, known.record) = (sum, at);
                self.pending.push_back((at, slot, sum));
            }
            Change::Checkpoint { key, sum } => {
                let slot = self.table.find(&key).expect("a counter is never removed");
                let known = self.table.value_mut(slot);
                assert_eq!(known.claimed, sum, "a draft is claimed before the next");
                known.record = at;
            }
            Change::Producers { .. } | Change::Answers { .. } => {}
        }
    }

    /// In memory a draft is settled as it is claimed. Gives the sum.
    ///
    /// # Panics
    /// When the counters have a log.
    pub fn apply(&mut self, draft: Draft) -> i64 {
        assert!(self.keeping != Keeping::Logged, "a log gives the offsets of its counters");
        let (sum, at) = (draft.sum(), self.claimed_end);
        self.claimed(draft, at);
        self.settle(self.claimed_end);
        sum
    }

    /// Everything below `end` is settled.
    pub fn settle(&mut self, end: Offset) {
        while let Some((_, slot, sum)) = self.pending.pop_front_if(|(at, _, _)| *at < end) {
            self.table.value_mut(slot).settled = Some(sum);
        }
        self.settled_end = self.settled_end.max(end);
        self.claimed_end = self.claimed_end.max(end);
    }

    /// The log has failed, or leaves: what is claimed and not settled is not known to be there. Only reads are allowed
    /// from here on. Gives how many adds.
    pub fn stop(&mut self) -> usize {
        std::mem::take(&mut self.pending).len()
    }

    /// Takes what a batch of the log says, in offset order. Nothing may be claimed meanwhile.
    ///
    /// # Errors
    /// The first record that cannot be read, or contradicts what was before; what is before it was taken.
    pub fn replay(&mut self, batch: &Batch) -> Result<(), BadRecord> {
        let head = batch.head();
        if head.kind == BatchKind::Data {
            let known_end = self.settled_end;
            for record in batch.records().filter(|record| record.offset >= known_end) {
                let taken = CounterRecord::decode(&record.payload)
                    .and_then(|found| self.replay_record(found, record.offset, head.producer));
                taken.map_err(|fault| BadRecord { offset: record.offset, fault })?;
            }
        }
        self.settle(head.end());
        Ok(())
    }

    fn replay_record(
        &mut self,
        record: CounterRecord<'_>,
        at: Offset,
        producer: Option<(ProducerId, Sequence)>,
    ) -> Result<(), RecordFault> {
        let (key, delta, sum) = match record {
            CounterRecord::Add { key, delta, sum } => (key, delta, sum),
            CounterRecord::Checkpoint { key, sum } => (key, 0, sum),
            CounterRecord::Producers { snapshot } => {
                let decoded = ProducerCore::decode(snapshot);
                let (producers, _) = decoded.map_err(|_| RecordFault::Malformed("producers"))?;
                self.producers = producers;
                self.answers.replay_producers(&self.producers);
                return Ok(());
            }
            CounterRecord::Answers { answers } => {
                self.answers.replay_answers(answers);
                return Ok(());
            }
        };
        let known = Sum { settled: Some(sum), claimed: sum, record: at };
        match self.table.find(key) {
            Some(slot) => {
                let before = self.table.value_mut(slot);
                if before.claimed.checked_add(delta) != Some(sum) {
                    return Err(RecordFault::Malformed("a sum that does not follow from the one before"));
                }
                *before = known;
            }
            None => {
                self.table.insert(key.into(), known);
            }
        }
        if let Some((producer, sequence)) = producer {
            let digest = digest(key, delta);
            let number = Numbered { producer, sequence, count: NonZeroU32::MIN, digest };
            self.answers.replay(&mut self.producers, &number, (at, sum));
        }
        Ok(())
    }
}
