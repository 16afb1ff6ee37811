//! Making the log of groups shorter: every group is written to its end as it is, then the sealed segments go. Sans-io.
//! Scope: one [`Compacting`] per log of groups. Invariants: nothing goes before every group lies behind it on the device.
//! Not here: the pace (`turn::compacting`), removing segments (`shard`).

use felix_wire::id::Offset;

use super::{Draft, GroupsCore};
use crate::projection::cache::compact::{LogShape, Threshold};
use crate::projection::group::durable::Durable;
use crate::projection::group::record::CHANGE_BYTES;

/// Changes in the drafts of one step, about.
const STEP_CHANGES: usize = 16_384;

/// What is to be done.
#[derive(Debug, PartialEq, Eq)]
pub enum GroupStep {
    /// Nothing, until the log has grown.
    Idle,
    /// Nothing until the log's durable end has reached this.
    WaitDurable(Offset),
    /// Claim these before anything else and say [`GroupsCore::claimed`], then ask again; or say
    /// [`GroupsCore::compaction_put_off`].
    Append(Vec<Draft>),
    /// Let the log begin here, then say [`GroupsCore::log_starts`].
    Trim { start: Offset },
}

#[derive(Debug)]
struct Run {
    end: Offset,
    /// The last group that was written, and the one before the last step.
    written: Option<Box<str>>,
    written_before: Option<Box<str>>,
    /// Of the last step.
    step_bytes: u64,
    /// Everything claimed when the last group was written.
    durable: Option<Offset>,
}

impl Run {
    fn new(end: Offset) -> Run {
        Run { end, written: None, written_before: None, step_bytes: 0, durable: None }
    }
}

/// See the module.
#[derive(Debug, Default)]
pub struct Compacting {
    run: Option<Run>,
    threshold: Threshold,
}

impl GroupsCore {
    /// Bytes of the log that every group takes, written once.
    pub fn live_bytes(&self) -> u64 {
        self.groups.iter().map(|(_, (name, group))| bytes_of(&group.durable, name)).sum()
    }

    /// What is to be done now. All drafts of [`Self::take_drafts`] must have been claimed. `shape` names the end of the newest
    /// sealed segment: every group is written once for all that go.
    pub fn compact(&mut self, shape: LogShape, log_bytes_min: u64) -> GroupStep {
        if self.compacting.run.is_none() {
            if shape.bytes <= log_bytes_min {
                return GroupStep::Idle;
            }
            let live_bytes = self.live_bytes();
            match shape.sealed_end {
                Some(end) if self.compacting.threshold.exceeded(shape, live_bytes, log_bytes_min) => {
                    self.compacting.run = Some(Run::new(end));
                }
                _ => return GroupStep::Idle,
            }
        }
        let Some(run) = &mut self.compacting.run else { return GroupStep::Idle };
        // What the last step gave was claimed, or it was taken back.
        self.compacting.threshold.copied(std::mem::take(&mut run.step_bytes));
        if let Some(end) = run.durable {
            return if end > shape.durable_end {
                GroupStep::WaitDurable(end)
            } else {
                GroupStep::Trim { start: run.end }
            };
        }
        let (mut drafts, mut changes) = (Vec::new(), 0);
        let behind = match &run.written {
            Some(name) => (std::ops::Bound::Excluded(name.clone()), std::ops::Bound::Unbounded),
            None => (std::ops::Bound::Unbounded, std::ops::Bound::Unbounded),
        };
        run.written_before.clone_from(&run.written);
        for (name, at) in self.names.range::<Box<str>, _>(behind) {
            if changes >= STEP_CHANGES {
                break;
            }
            run.written = Some(name.clone());
            let Some((_, group)) =
                self.groups.get(*at).filter(|(_, group)| group.durable != Durable::default())
            else {
                continue;
            };
            let snapshot = group.durable.snapshot();
            changes += snapshot.len();
            run.step_bytes += bytes_of(&group.durable, name);
            drafts.push(Draft { group: name.clone(), changes: snapshot });
        }
        if drafts.is_empty() {
            run.durable = Some(self.claimed_end);
            return GroupStep::WaitDurable(self.claimed_end);
        }
        GroupStep::Append(drafts)
    }

    /// There was no room for the drafts of the last step.
    pub fn compaction_put_off(&mut self) {
        if let Some(run) = &mut self.compacting.run {
            run.written.clone_from(&run.written_before);
            run.step_bytes = 0;
        }
    }

    /// The log of groups begins at `start` now.
    pub fn log_starts(&mut self, start: Offset) {
        if self.compacting.run.as_ref().is_some_and(|run| run.end <= start) {
            self.compacting.run = None;
        }
    }
}

fn bytes_of(durable: &Durable, name: &str) -> u64 {
    (durable.changes() * CHANGE_BYTES + name.len() + 15) as u64
}
