//! Runs recorded, and the disks a power loss at any moment of them could have left. Scope: one machine.
//! Owns: the record of every operation that may change something, in the order of asking and answering.
//! Invariants: a replay knows of an answer exactly when the caller of the recorded run did, so an image never lacks what
//! was durable when an acknowledgement was sent; an image follows from the trace, the position and the seed.
//! Not here: what the images are checked for.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::image::DiskImage;
use super::machine::{Action, Machine, Ticket};
use crate::file::{Disk, DiskError, DiskPath, Done, FileId, Full, Op, OpenFlags, Outcome, Token};
use crate::sim::SimRng;

/// A disk that records what it is asked and hands it on to `inner`. Tokens in flight must differ.
#[derive(Debug)]
pub struct TraceDisk<D> {
    inner: D,
    trace: Trace,
    /// Steps without an answer.
    open: BTreeMap<Token, usize>,
}

/// A recorded run.
#[derive(Debug, Clone)]
pub struct Trace {
    start: DiskImage,
    steps: Vec<Step>,
    events: Vec<Event>,
}

#[derive(Debug, Clone, Copy)]
enum Event {
    Asked(usize),
    Answered(usize),
}

#[derive(Debug, Clone)]
struct Step {
    what: What,
    /// None until it is answered.
    failed: Option<bool>,
}

#[derive(Debug, Clone)]
enum What {
    Action(Action),
    /// The file's id comes with the answer.
    Open {
        path: DiskPath,
        flags: OpenFlags,
        file: Option<FileId>,
    },
}

impl<D: Disk> TraceDisk<D> {
    /// Records from here on. `start` is what is on the disk now.
    pub fn new(inner: D, start: DiskImage) -> TraceDisk<D> {
        TraceDisk {
            inner,
            trace: Trace { start, steps: Vec::new(), events: Vec::new() },
            open: BTreeMap::new(),
        }
    }

    pub fn inner(&mut self) -> &mut D {
        &mut self.inner
    }

    /// The run so far.
    pub fn trace(&self) -> &Trace {
        &self.trace
    }

    /// The moment now, to be compared with the position of an image later: what was acknowledged before it must be there.
    pub fn position(&self) -> usize {
        self.trace.events.len()
    }

    pub fn into_parts(self) -> (D, Trace) {
        (self.inner, self.trace)
    }
}

impl<D: Disk> Disk for TraceDisk<D> {
    fn submit(&mut self, token: Token, op: Op) -> Result<(), Full> {
        let what = what_of(&op);
        self.inner.submit(token, op)?;
        if let Some(what) = what {
            let index = self.trace.steps.len();
            self.trace.steps.push(Step { what, failed: None });
            self.trace.events.push(Event::Asked(index));
            let before = self.open.insert(token, index);
            assert!(before.is_none(), "{token:?} is in flight twice");
        }
        Ok(())
    }

    fn poll_done(&mut self) -> Option<Done> {
        let done = self.inner.poll_done()?;
        if let Some(index) = self.open.remove(&done.token)
            && let Some(step) = self.trace.steps.get_mut(index)
        {
            step.failed = Some(done.result.is_err());
            if let (What::Open { file, .. }, Ok(Outcome::Opened { file: opened, .. })) =
                (&mut step.what, &done.result)
            {
                *file = Some(*opened);
            }
            self.trace.events.push(Event::Answered(index));
        }
        Some(done)
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight()
    }
}

fn what_of(op: &Op) -> Option<What> {
    let action = match op {
        Op::Open { path, flags } => {
            return Some(What::Open { path: path.clone(), flags: *flags, file: None });
        }
        Op::Close { file } => Action::Close { file: *file },
        Op::Write { file, at, data } => Action::Write { file: *file, at: *at, bytes: Arc::from(&data[..]) },
        Op::Sync { file } => Action::Sync { file: *file },
        Op::Presize { file, len } => Action::Grow { file: *file, len: *len },
        Op::SetLen { file, len } => Action::SetLen { file: *file, len: *len },
        Op::SyncDir { dir } => Action::SyncDir { dir: dir.clone() },
        Op::MakeDir { path } => Action::MakeDir { path: path.clone() },
        Op::RemoveDir { path } => Action::RemoveDir { path: path.clone() },
        Op::Rename { from, to } => Action::Rename { from: from.clone(), to: to.clone() },
        Op::Unlink { path } => Action::Unlink { path: path.clone() },
        Op::Lock { .. } | Op::Read { .. } | Op::Len { .. } | Op::List { .. } | Op::Space { .. } => {
            return None;
        }
    };
    Some(What::Action(action))
}

impl Trace {
    /// Positions are `0..=events()`: the moments between which something was asked or answered.
    pub fn events(&self) -> usize {
        self.events.len()
    }

    /// A replay that stands at the beginning.
    pub fn replay(&self) -> Replay<'_> {
        let mut machine = self.start.machine.clone();
        for volume in self.start.machine.volumes() {
            // What the recorded run could store, the replay can.
            machine.set_volume_bytes(volume, u64::MAX);
        }
        Replay { trace: self, machine, position: 0, tickets: BTreeMap::new(), made_up: FileId(u64::MAX) }
    }

    /// What a machine may find when power was lost at `position`. Costs a replay up to there; for many images step one
    /// [`Replay`] forward.
    pub fn image(&self, position: usize, rng: &mut SimRng) -> DiskImage {
        let mut replay = self.replay();
        replay.advance_to(position);
        replay.image_after_power_loss(rng)
    }
}

/// A recorded run, carried out again as far as wanted.
#[derive(Debug, Clone)]
pub struct Replay<'a> {
    trace: &'a Trace,
    machine: Machine,
    position: usize,
    tickets: BTreeMap<usize, Ticket>,
    /// For files whose opening was never answered: ids from the end that no disk gives.
    made_up: FileId,
}

impl Replay<'_> {
    /// How many events have happened.
    pub fn position(&self) -> usize {
        self.position
    }

    /// Lets events happen up to `position`, at most all of them. It cannot go back.
    pub fn advance_to(&mut self, position: usize) {
        while self.position < position.min(self.trace.events.len()) {
            match self.trace.events.get(self.position) {
                Some(Event::Asked(index)) => self.ask(*index),
                Some(Event::Answered(index)) => self.answer(*index),
                None => return,
            }
            self.position += 1;
        }
    }

    /// What a machine may find when power is lost now.
    pub fn image_after_power_loss(&self, rng: &mut SimRng) -> DiskImage {
        DiskImage { machine: self.with_volume_sizes(self.machine.after_power_loss(rng)) }
    }

    /// What a process finds that is started after this one was killed now, with nothing left in flight.
    pub fn image_after_kill(&self) -> DiskImage {
        DiskImage { machine: self.with_volume_sizes(self.machine.at_rest()) }
    }

    fn with_volume_sizes(&self, mut machine: Machine) -> Machine {
        for volume in self.trace.start.machine.volumes() {
            if let Ok(space) = self.trace.start.machine.space(volume) {
                machine.set_volume_bytes(volume, space.total_bytes);
            }
        }
        machine
    }

    fn ask(&mut self, index: usize) {
        let Some(step) = self.trace.steps.get(index) else { return };
        let failed = step.failed == Some(true);
        let action = match &step.what {
            What::Open { path, flags, file } => {
                let file = file.unwrap_or_else(|| {
                    self.made_up.0 -= 1;
                    self.made_up
                });
                Action::Open { file, path: path.clone(), flags: *flags }
            }
            What::Action(action) => action.clone(),
        };
        // Of operations that failed, only writes and syncs leave traces.
        let leaves = matches!(action, Action::Write { .. } | Action::Sync { .. } | Action::SyncDir { .. });
        if failed && !leaves {
            return;
        }
        // A close happens with its answer: until then operations may be in flight on the file.
        if matches!(action, Action::Close { .. }) {
            return;
        }
        match self.machine.begin(action) {
            Ok(ticket) => {
                self.tickets.insert(index, ticket);
            }
            // What the run ended before its answer may have failed there too.
            Err(error) => {
                let done = step.failed == Some(false);
                assert!(!done, "the run did what its replay refuses: {error}, step {index}");
            }
        }
    }

    fn answer(&mut self, index: usize) {
        let Some(step) = self.trace.steps.get(index) else { return };
        if let What::Action(action @ Action::Close { .. }) = &step.what {
            // Files whose opening failed are not open here.
            let _: Result<Ticket, DiskError> = self.machine.begin(action.clone());
        }
        match self.tickets.remove(&index) {
            Some(ticket) if step.failed == Some(true) => self.machine.fail(ticket),
            Some(ticket) => self.machine.finish(ticket),
            None => {}
        }
    }
}
