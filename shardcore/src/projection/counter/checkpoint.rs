//! Making the log of counters shorter: counters whose newest record lies in the oldest segments get a checkpoint at its
//! end, then those segments go. Sans-io. Scope: one [`Checkpointing`] per counter shard with a log.
//! Invariants: nothing goes before every counter has a record elsewhere on the device, and so have the producers.
//! Not here: removing segments (`shard`).

use felix_runtime::clock::Tick;
use felix_wire::id::Offset;

use super::{Change, CounterCore, Draft, RECORD_OVERHEAD_BYTES, add_len};
use crate::projection::cache::compact::{CompactSettings, LogShape, Threshold};

/// Counters looked at, and checkpoints made, in one step.
const STEP_SLOTS: u32 = 16_384;
const STEP_DRAFTS: usize = 4_096;

/// What is to be done.
#[derive(Debug, PartialEq, Eq)]
pub enum CounterStep {
    /// Nothing, until the log has grown.
    Idle,
    /// Nothing before then.
    WaitUntil(Tick),
    /// Nothing until the log's durable end has reached this.
    WaitDurable(Offset),
    /// Claim all of these before anything else, or none; then ask again.
    Append(Vec<Draft>),
    /// Let the log begin here, then say [`CounterCore::log_starts`].
    Trim { start: Offset },
}

#[derive(Debug, Clone, Copy)]
struct Run {
    end: Offset,
    next_slot: u32,
    producers_done: bool,
    /// Everything claimed when the last of them was, once it was.
    durable: Option<Offset>,
}

impl Run {
    fn new(end: Offset) -> Run {
        Run { end, next_slot: 0, producers_done: false, durable: None }
    }
}

/// See the module.
#[derive(Debug, Default)]
pub struct Checkpointing {
    run: Option<Run>,
    threshold: Threshold,
    next_at: Tick,
}

impl CounterCore {
    /// What is to be done now. Slots whose drafts were not claimed are looked at again, so a step may be put off by not
    /// claiming anything and saying [`Self::checkpoints_put_off`].
    pub fn checkpoint(&mut self, now: Tick, shape: LogShape, settings: CompactSettings) -> CounterStep {
        let live_bytes = self.live_bytes();
        let mut run = match (self.checkpointing.run, shape.oldest_sealed_end) {
            (Some(run), _) => run,
            (None, Some(end)) if self.checkpointing.threshold.exceeded(shape, live_bytes, settings) => {
                Run::new(end)
            }
            _ => return CounterStep::Idle,
        };
        if now < self.checkpointing.next_at {
            return CounterStep::WaitUntil(self.checkpointing.next_at);
        }
        let (mut drafts, mut bytes) = (Vec::new(), 0_u64);
        let last = self.table.slots().min(run.next_slot.saturating_add(STEP_SLOTS));
        while run.next_slot < last && drafts.len() < STEP_DRAFTS {
            if let Some((key, sum)) = self.table.at(run.next_slot).filter(|(_, sum)| sum.record < run.end) {
                bytes += add_len(key.len()) as u64 + RECORD_OVERHEAD_BYTES;
                let change = Change::Checkpoint { key: key.into(), sum: sum.claimed };
                drafts.push(Draft { change, number: None });
            }
            run.next_slot += 1;
        }
        let slots_done = run.next_slot >= self.table.slots();
        if drafts.is_empty() && slots_done && !run.producers_done {
            run.producers_done = true;
            if self.producers.producers() > 0 {
                let mut snapshot = Vec::new();
                self.producers.encode(self.claimed_end, &mut snapshot);
                bytes = snapshot.len() as u64;
                drafts.push(Draft { change: Change::Producers { snapshot }, number: None });
            }
        }
        if drafts.is_empty() && slots_done {
            run.durable.get_or_insert(self.claimed_end);
        }
        self.checkpointing.run = Some(run);
        if !drafts.is_empty() {
            let nanos = bytes.saturating_mul(1_000_000_000) / settings.bytes_per_sec.max(1);
            self.checkpointing.next_at = now + std::time::Duration::from_nanos(nanos);
            return CounterStep::Append(drafts);
        }
        match run.durable {
            None => CounterStep::WaitUntil(now),
            Some(end) if end > shape.durable_end => CounterStep::WaitDurable(end),
            Some(_) => CounterStep::Trim { start: run.end },
        }
    }

    /// There was no room for the drafts of the last step.
    pub fn checkpoints_put_off(&mut self) {
        if let Some(run) = &mut self.checkpointing.run {
            *run = Run::new(run.end);
        }
    }

    /// The log begins at `start` now.
    pub fn log_starts(&mut self, start: Offset) {
        if self.checkpointing.run.is_some_and(|run| run.end <= start) {
            self.checkpointing.run = None;
        }
    }
}
