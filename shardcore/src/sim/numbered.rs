//! The batches of a numbered publisher that are not known to be there. Scope: one per numbered publishing stream, over its
//! reconnections. Owns: its producer, the next number of each shard, what has to be sent again.
//! Invariants: batches of a shard are sent in the order of their numbers, again after an outcome that is not known or a
//! refusal, and then in the same order; one that may have been stored is never taken for refused.
//! Not here: frames and answers (`publisher`).

use std::collections::{BTreeMap, VecDeque};

use felix_wire::id::{ProducerId, Sequence};

use super::check::{Fate, Model, RecordId, ShardKey};

/// Batches that may be open: fewer than a shard remembers.
const OPEN_MAX: usize = 48;

/// One batch.
#[derive(Clone, Debug)]
pub struct Batch {
    pub shard: ShardKey,
    pub sequence: Sequence,
    pub first: RecordId,
    /// Lengths of its records.
    pub lens: Vec<usize>,
    pub json: bool,
    /// A copy was sent whose outcome nobody knows.
    maybe: bool,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Numbered {
    pub producer: Option<ProducerId>,
    next: BTreeMap<ShardKey, u64>,
    open: VecDeque<Batch>,
    /// Of `open`, so many were sent on the stream of now.
    sent: usize,
    /// Nothing is sent until everything is answered; then all of it again.
    halted: bool,
    /// The producer is at its end: what is open is given up.
    over: bool,
}

impl Numbered {
    /// Whether nothing is open.
    pub fn is_settled(&self) -> bool {
        self.open.is_empty() && !self.halted
    }

    /// Whether a batch waits to be sent again.
    pub fn has_unsent(&self) -> bool {
        !self.halted && self.sent < self.open.len()
    }

    /// Whether a new batch may be made.
    pub fn has_room(&self) -> bool {
        !self.halted && self.sent == self.open.len() && self.open.len() < OPEN_MAX
    }

    /// The next batch to send again.
    pub fn resend(&mut self, model: &mut Model) -> Option<Batch> {
        let batch = self.open.get(self.sent)?;
        self.sent += 1;
        model.resend(batch.shard, batch.first, batch.lens.len() as u64);
        Some(batch.clone())
    }

    /// A new batch, which is sent now.
    pub fn push(&mut self, shard: ShardKey, first: RecordId, lens: Vec<usize>, json: bool) -> Batch {
        let next = self.next.entry(shard).or_insert(0);
        let batch = Batch { shard, sequence: Sequence(*next), first, lens, json, maybe: false };
        *next += 1;
        self.open.push_back(batch.clone());
        self.sent += 1;
        batch
    }

    fn find(&self, shard: ShardKey, sequence: Sequence) -> Option<usize> {
        self.open.iter().position(|batch| batch.shard == shard && batch.sequence == sequence)
    }

    /// The batch is there.
    pub fn acked(&mut self, shard: ShardKey, sequence: Sequence) {
        if let Some(at) = self.find(shard, sequence) {
            self.open.remove(at);
            self.sent -= 1;
        }
    }

    /// Nobody knows whether this copy of the batch is there.
    pub fn unknown(&mut self, shard: ShardKey, sequence: Sequence) {
        if let Some(at) = self.find(shard, sequence) {
            self.open[at].maybe = true;
        }
        self.halted = true;
    }

    /// This copy of the batch is not there. Gives what is known of the batch then.
    pub fn refused(&mut self, shard: ShardKey, sequence: Sequence) -> Fate {
        self.halted = true;
        match self.find(shard, sequence) {
            Some(at) if self.open[at].maybe => Fate::Unknown,
            _ => Fate::Refused,
        }
    }

    /// Whether the shard's expecting `expected` is explained by what is open.
    pub fn is_open(&self, shard: ShardKey, expected: Sequence) -> bool {
        self.find(shard, expected).is_some()
    }

    /// The producer can go on with nothing it has open.
    pub fn give_up(&mut self) {
        (self.halted, self.over) = (true, true);
    }

    /// Everything sent on the stream was answered: what is open can be sent again, or is forgotten. True when there was a
    /// halt.
    pub fn answered(&mut self) -> bool {
        if !self.halted {
            return false;
        }
        self.sent = 0;
        self.halted = false;
        if std::mem::take(&mut self.over) {
            *self = Numbered::default();
        }
        true
    }

    /// Its stream is gone: of what was sent nobody knows anything.
    pub fn lost(&mut self) {
        for batch in self.open.iter_mut().take(self.sent) {
            batch.maybe = true;
        }
        self.sent = 0;
        self.halted = false;
        if std::mem::take(&mut self.over) {
            *self = Numbered::default();
        }
    }

    /// It will not be sent again.
    pub fn forget(&mut self) {
        *self = Numbered::default();
    }
}
