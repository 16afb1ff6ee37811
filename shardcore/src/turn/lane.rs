//! Keeps the order of one core's publishes to one shard while they are refused and sent again. Sans-io.
//! Scope: one per sending core and shard. Owns: the publishes not sent yet and those that came back.
//! Invariants: publishes are sent in submit order; after a bounce nothing is sent until everything of that epoch has come
//! back, and then the returned ones go first, so the shard sees them in submit order.
//! Not here: credit of the pair of cores, deadlines (`turn::core`).

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::Duration;

use felix_runtime::clock::Tick;
use felix_wire::id::{CoreId, Generation};

use crate::shard::mail::{Bounce, Job, JobToken, LanePos};

/// A lane that was told `Moved` tries the same route again after this long, if no newer route came.
const MOVED_RETRY: Duration = Duration::from_millis(5);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    /// Something bounced; the rest of the epoch is still out. `room`: the owner has already called for more.
    Returning {
        why: Bounce,
        room: bool,
    },
    /// All is back; waits for room, or for a route.
    Waiting {
        why: Bounce,
        retry_at: Tick,
    },
}

/// See the module.
#[derive(Debug)]
pub struct Lane {
    pub owner: CoreId,
    pub generation: Generation,
    /// Of the next publish sent.
    at: LanePos,
    state: State,
    queue: VecDeque<Job>,
    returned: VecDeque<Job>,
    outstanding: u32,
    /// In the core's list of lanes that hold something back.
    pub listed: bool,
    /// In the core's queue for credit of the owner.
    pub queued_for_credit: bool,
}

impl Lane {
    /// An open lane to `owner`.
    pub fn new(owner: CoreId, generation: Generation) -> Lane {
        Lane {
            owner,
            generation,
            at: LanePos { epoch: 0, seq: 0 },
            state: State::Open,
            queue: VecDeque::new(),
            returned: VecDeque::new(),
            outstanding: 0,
            listed: false,
            queued_for_credit: false,
        }
    }

    /// Queues a publish behind all earlier ones.
    pub fn submit(&mut self, job: Job) {
        self.queue.push_back(job);
    }

    /// Whether a publish submitted now would be sent at once, credit allowing.
    pub fn is_open(&self) -> bool {
        self.state == State::Open && self.queue.is_empty()
    }

    /// The position of the first of a run of publishes that are answered before anything else happens: nothing goes ahead
    /// of them, and they never are outstanding. `passed` follows when they were appended.
    pub fn at_once(&self) -> Option<LanePos> {
        self.is_open().then_some(self.at)
    }

    /// So many publishes from the position on that `at_once` gave were appended.
    pub fn passed(&mut self, publishes: u32) {
        self.at = self.at.behind(publishes);
    }

    /// Bytes of the publish that would be sent next, if one may be sent.
    pub fn next_bytes(&self) -> Option<usize> {
        (self.state == State::Open).then(|| self.queue.front().map(|j| j.records.encoded_len())).flatten()
    }

    /// The next publish to send, with its position. Afterwards it is outstanding.
    pub fn send(&mut self) -> Option<(LanePos, Job)> {
        if self.state != State::Open {
            return None;
        }
        let job = self.queue.pop_front()?;
        self.outstanding += 1;
        let at = self.at;
        self.passed(1);
        Some((at, job))
    }

    /// One outstanding publish was appended.
    pub fn published(&mut self, now: Tick) {
        self.outstanding = self.outstanding.saturating_sub(1);
        self.settle_epoch(now);
    }

    /// One outstanding publish came back.
    pub fn bounced(&mut self, job: Job, why: Bounce, now: Tick) {
        self.outstanding = self.outstanding.saturating_sub(1);
        self.returned.push_back(job);
        if self.state == State::Open {
            self.state = State::Returning { why, room: false };
        }
        self.settle_epoch(now);
    }

    /// The owner can take more.
    pub fn room(&mut self) {
        match self.state {
            State::Returning { why: Bounce::Full, .. } => {
                self.state = State::Returning { why: Bounce::Full, room: true };
            }
            State::Waiting { why: Bounce::Full, .. } => self.state = State::Open,
            _ => {}
        }
    }

    /// Newer routes name this owner. What is outstanding at the old one will bounce or be settled there.
    pub fn reroute(&mut self, owner: CoreId, generation: Generation) {
        if (owner, generation) == (self.owner, self.generation) {
            return;
        }
        self.owner = owner;
        self.generation = generation;
        match self.state {
            State::Waiting { .. } => self.state = State::Open,
            // The old owner's call for more, if any, says nothing about the new one: it is simply tried.
            State::Returning { .. } => self.state = State::Returning { why: Bounce::Moved, room: true },
            State::Open if self.outstanding > 0 => {
                self.state = State::Returning { why: Bounce::Moved, room: true };
            }
            State::Open => self.begin_run(),
        }
    }

    /// When it wants `retry`.
    pub fn next_timeout(&self) -> Option<Tick> {
        match self.state {
            State::Waiting { why: Bounce::Moved, retry_at } => Some(retry_at),
            _ => None,
        }
    }

    /// Opens a lane that waits for a route that did not come.
    pub fn handle_timeout(&mut self, now: Tick) {
        if self.next_timeout().is_some_and(|at| at <= now) {
            self.state = State::Open;
        }
    }

    /// Nothing queued, returned or outstanding.
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.returned.is_empty() && self.outstanding == 0
    }

    /// Publishes not sent (returned ones included once the epoch has settled).
    pub fn queued(&self) -> usize {
        self.queue.len() + self.returned.len()
    }

    /// Takes out the queued publishes for which `expired` holds; nothing of them was claimed.
    pub fn expire(&mut self, mut expired: impl FnMut(JobToken) -> bool) -> Vec<Job> {
        let mut out = Vec::new();
        for queue in [&mut self.returned, &mut self.queue] {
            let mut keep = VecDeque::with_capacity(queue.len());
            for job in queue.drain(..) {
                if expired(job.token) { out.push(job) } else { keep.push_back(job) }
            }
            *queue = keep;
        }
        out
    }

    /// Nothing is outstanding: what is sent next begins a run that the owner can tell from the one before.
    fn begin_run(&mut self) {
        self.at = LanePos { epoch: self.at.epoch.wrapping_add(1), seq: 0 };
    }

    fn settle_epoch(&mut self, now: Tick) {
        let State::Returning { why, room } = self.state else { return };
        if self.outstanding > 0 {
            return;
        }
        self.begin_run();
        for job in self.returned.drain(..).rev() {
            self.queue.push_front(job);
        }
        self.state = if room { State::Open } else { State::Waiting { why, retry_at: now + MOVED_RETRY } };
    }
}
