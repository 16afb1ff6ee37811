//! Making the log of counters shorter: counters whose newest record lies in its sealed segments get a checkpoint at its
//! end, then those segments go. Sans-io. Scope: one [`Checkpointing`] per counter shard with a log.
//! Invariants: nothing goes before every counter has a record elsewhere on the device, and so have the producers and the
//! answers of their adds.
//! Not here: the pace (`turn::compacting`), removing segments (`shard`).

use felix_wire::id::Offset;

use super::{ANSWER_BYTES, Change, CounterCore, Draft, RECORD_OVERHEAD_BYTES, add_len};
use crate::projection::cache::compact::{LogShape, Threshold};

/// Counters looked at in one step, and checkpoints made.
const STEP_SLOTS: u32 = 16_384;
const STEP_DRAFTS: usize = 4_096;
/// Bytes of the checkpoints of one step, at which it ends: no add waits long behind them.
const STEP_BYTES: u64 = 256 << 10;
const STEP_ANSWERS: usize = STEP_BYTES as usize / ANSWER_BYTES;

/// What is to be done.
#[derive(Debug, PartialEq, Eq)]
pub enum CounterStep {
    /// Nothing, until the log has grown.
    Idle,
    /// Ask again: counters were looked at that need nothing.
    Again,
    /// Nothing until the log's durable end has reached this.
    WaitDurable(Offset),
    /// Claim all of these before anything else, or none; then ask again.
    Append(Vec<Draft>),
    /// Let the log begin here, then say [`CounterCore::log_starts`].
    Trim { start: Offset },
}

/// How far it is: counters first, then producers, then answers.
#[derive(Debug, Clone, Copy, Default)]
struct Place {
    slot: u32,
    producers_done: bool,
    answer: Offset,
}

#[derive(Debug, Clone, Copy)]
struct Run {
    end: Offset,
    /// Where the last step began, and where the next does.
    step: Place,
    next: Place,
    /// Of the checkpoints of the last step.
    step_bytes: u64,
    /// Everything claimed when the last of them was, once it was.
    durable: Option<Offset>,
}

impl Run {
    fn new(end: Offset) -> Run {
        Run { end, step: Place::default(), next: Place::default(), step_bytes: 0, durable: None }
    }
}

/// See the module.
#[derive(Debug, Default)]
pub struct Checkpointing {
    run: Option<Run>,
    threshold: Threshold,
}

impl CounterCore {
    /// What is to be done now. `shape` names the end of the newest sealed segment: what is known of producers is written once
    /// for all that go. A step may be put off by not claiming anything and saying [`Self::checkpoints_put_off`].
    pub fn checkpoint(&mut self, shape: LogShape, log_bytes_min: u64) -> CounterStep {
        let live_bytes = self.live_bytes();
        let mut run = match (self.checkpointing.run, shape.sealed_end) {
            (Some(run), _) => run,
            (None, Some(end)) if self.checkpointing.threshold.exceeded(shape, live_bytes, log_bytes_min) => {
                Run::new(end)
            }
            _ => return CounterStep::Idle,
        };
        // What the last step gave was claimed, or it was taken back.
        self.checkpointing.threshold.copied(std::mem::take(&mut run.step_bytes));
        let drafts = self.next_checkpoints(&mut run);
        let step = match run.durable {
            _ if !drafts.is_empty() => CounterStep::Append(drafts),
            None => CounterStep::Again,
            Some(end) if end > shape.durable_end => CounterStep::WaitDurable(end),
            Some(_) => CounterStep::Trim { start: run.end },
        };
        self.checkpointing.run = Some(run);
        step
    }

    fn next_checkpoints(&self, run: &mut Run) -> Vec<Draft> {
        let mut drafts = Vec::new();
        run.step = run.next;
        let last = self.table.slots().min(run.next.slot.saturating_add(STEP_SLOTS));
        while run.next.slot < last && drafts.len() < STEP_DRAFTS && run.step_bytes < STEP_BYTES {
            if let Some((key, sum)) = self.table.at(run.next.slot).filter(|(_, sum)| sum.record < run.end) {
                run.step_bytes += add_len(key.len()) as u64 + RECORD_OVERHEAD_BYTES;
                let change = Change::Checkpoint { key: key.into(), sum: sum.claimed };
                drafts.push(Draft { change, number: None });
            }
            run.next.slot += 1;
        }
        if !drafts.is_empty() || run.next.slot < self.table.slots() {
            return drafts;
        }
        if !run.next.producers_done {
            run.next.producers_done = true;
            if self.producers.producers() > 0 {
                let mut snapshot = Vec::new();
                self.producers.encode(self.claimed_end, &mut snapshot);
                run.step_bytes = snapshot.len() as u64;
                drafts.push(Draft { change: Change::Producers { snapshot }, number: None });
                return drafts;
            }
        }
        // Behind the producers: what they say decides which answers are kept. The record of a later add has its own.
        let (answers, next) = self.answers.page(run.next.answer, run.end, STEP_ANSWERS);
        run.next.answer = next;
        if !answers.is_empty() {
            run.step_bytes = (answers.len() * ANSWER_BYTES) as u64;
            drafts.push(Draft { change: Change::Answers { answers }, number: None });
            return drafts;
        }
        run.durable.get_or_insert(self.claimed_end);
        drafts
    }

    /// There was no room for the drafts of the last step.
    pub fn checkpoints_put_off(&mut self) {
        if let Some(run) = &mut self.checkpointing.run {
            (run.next, run.step_bytes) = (run.step, 0);
        }
    }

    /// The log begins at `start` now.
    pub fn log_starts(&mut self, start: Offset) {
        if self.checkpointing.run.is_some_and(|run| run.end <= start) {
            self.checkpointing.run = None;
        }
    }
}
