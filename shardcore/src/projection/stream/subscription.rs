//! One subscriber: what it was sent, what waits for it, what it lost. Sans-io.
//! Scope: one per subscription, on the core of its connection. Owns: its queue of shared frames and the bytes on their way.
//! Invariants: frames leave in offset order, no offset twice; the queue stays within its bound, which one pull (policy
//! Block) may exceed, or a page of history that is one batch (others are asked for at a quarter of it); every record
//! that is skipped is counted in `dropped`, and of a durable stream none is: one that does not keep up reads from the log.
//! Not here: when the shard is read (`feed`), the QUIC stream (`turn`).

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use felix_runtime::planted::{self, Defect};
use felix_wire::id::Offset;

use super::frame::{Frame, FrameLimits, cut};
use crate::shard::ring::Page;
use crate::snapshot::SlowSubscriber;

/// Bound of a subscriber's queue.
#[derive(Clone, Copy, Debug)]
pub struct QueueLimits {
    pub frames_max: usize,
    pub bytes_max: usize,
}

/// The largest page asked for. Two of them, one leaving and one being read, keep the disk and the network busy.
const PAGE_BYTES_MAX: usize = 2 << 20;

/// What a subscription is like.
#[derive(Clone, Copy, Debug)]
pub struct SubscriptionKind {
    pub limits: QueueLimits,
    pub policy: SlowSubscriber,
    /// The stream is durable: what does not fit the queue is read from its log later.
    pub logged: bool,
    /// The client gets offsets.
    pub offsets: bool,
    /// And is told of offsets without records.
    pub skips: bool,
}

/// Sizes of frames below and above the end that the shard had when the subscription began.
#[derive(Clone, Copy, Debug)]
pub struct PageLimits {
    pub history: FrameLimits,
    pub live: FrameLimits,
}

/// Where it stands against the shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Reads pages below its feed. `asked` while one is on its way.
    CatchUp { asked: bool },
    /// Gets the feed's frames.
    Live,
}

/// What went to the stream of a subscription.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delivered {
    pub frames: u64,
    pub records: u64,
    pub payload_bytes: u64,
}

/// See the module.
#[derive(Debug)]
pub struct Subscription {
    phase: Phase,
    /// Next offset it has not been given (queued counts as given).
    next: Offset,
    queue: VecDeque<Arc<Frame>>,
    queue_bytes: usize,
    kind: SubscriptionKind,
    /// End of the shard when it began.
    live_from: Offset,
    /// Offsets without records right before the next frame.
    gap: u64,
    /// DropNew: skipping until half of the queue is free.
    skipping: bool,
    /// Chunks of the frame on its way to the stream.
    staged: VecDeque<Bytes>,
    /// Lowest offset of what has not been staged yet.
    undelivered: Offset,
    ending: Option<Bytes>,
    ended: bool,
    dropped: u64,
    /// What `take_dropped` has told of them.
    dropped_told: u64,
    /// Since it was last taken.
    delivered: Delivered,
}

impl Subscription {
    /// A subscription whose first record is `start`; live from the beginning when `start` is the shard's `end`. `hello`
    /// goes out before everything else.
    pub fn new(start: Offset, end: Offset, kind: SubscriptionKind, hello: Bytes) -> Subscription {
        let phase = if start >= end { Phase::Live } else { Phase::CatchUp { asked: false } };
        Subscription {
            phase,
            next: start,
            queue: VecDeque::new(),
            queue_bytes: 0,
            kind,
            live_from: end,
            gap: 0,
            skipping: false,
            staged: VecDeque::from([hello]),
            undelivered: start,
            ending: None,
            ended: false,
            dropped: 0,
            dropped_told: 0,
            delivered: Delivered::default(),
        }
    }

    /// Records it will never get, so far.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// What went to the stream since the last call.
    pub fn take_delivered(&mut self) -> Delivered {
        std::mem::take(&mut self.delivered)
    }

    /// Of those, the ones since the last call.
    pub fn take_dropped(&mut self) -> u64 {
        self.dropped - std::mem::replace(&mut self.dropped_told, self.dropped)
    }

    /// Frames queued.
    pub fn depth(&self) -> usize {
        self.queue.len()
    }

    /// Bytes queued; subscriptions of one shard hold the same frames.
    pub fn queue_bytes(&self) -> usize {
        self.queue_bytes
    }

    /// Changes the bound of the queue. What is over it already stays until it is written, or dropped as the policy says.
    pub fn set_queue_bytes_max(&mut self, bytes_max: usize) {
        self.kind.limits.bytes_max = bytes_max;
    }

    /// The first offset that has not gone to the stream.
    pub fn undelivered(&self) -> Offset {
        self.undelivered
    }

    /// Whether a log holds what it reads.
    pub fn is_logged(&self) -> bool {
        self.kind.logged
    }

    /// The first offset that is neither on its way nor queued.
    pub fn next(&self) -> Offset {
        self.next
    }

    /// Bytes queued and on their way.
    pub fn held_bytes(&self) -> usize {
        self.queue_bytes + self.staged.iter().map(Bytes::len).sum::<usize>()
    }

    /// Offset and bytes of the page to ask the owner for, when it wants one; the caller sends the pull. It is asked for
    /// while the one before leaves, so that reading and sending overlap.
    pub fn wants_page(&mut self) -> Option<(Offset, usize)> {
        let bytes_max = (self.kind.limits.bytes_max / 4).clamp(1, PAGE_BYTES_MAX);
        let frames_max = self.kind.limits.frames_max / 2;
        let room = self.queue.is_empty() || (self.queue_bytes <= bytes_max && self.queue.len() <= frames_max);
        match self.phase {
            Phase::CatchUp { asked: false } if room && self.ending.is_none() => {
                self.phase = Phase::CatchUp { asked: true };
                Some((self.next, bytes_max))
            }
            _ => None,
        }
    }

    /// The page asked for. True when it reached `feed_end`: the subscription is live from here on.
    pub fn take_page(&mut self, page: &Page, feed_end: Offset, limits: PageLimits) -> bool {
        if self.phase != (Phase::CatchUp { asked: true }) || self.ending.is_some() {
            return false;
        }
        for slot in &page.slots {
            if slot.end() <= self.next {
                continue; // for another subscription of the core
            }
            self.pass(slot.base);
            let from = self.next.max(slot.base);
            self.next = slot.end();
            let limits = if from < self.live_from { limits.history } else { limits.live };
            cut(slot, from, limits, |frame| self.push(frame));
        }
        self.pass(page.next);
        let live = self.next >= feed_end;
        self.phase = if live { Phase::Live } else { Phase::CatchUp { asked: false } };
        live
    }

    /// Goes on at `offset` when that lies above: in a log nothing was there, from a ring it is lost.
    fn pass(&mut self, offset: Offset) {
        let passed = offset.0.saturating_sub(self.next.0);
        if passed == 0 {
            return;
        }
        self.next = offset;
        if self.kind.logged {
            self.gap += passed;
        } else {
            self.lose(passed);
        }
    }

    /// The page asked for is not to be had; it goes on with what the log still holds, from `oldest` on.
    pub fn lose_until(&mut self, oldest: Offset) {
        self.lose(oldest.0.saturating_sub(self.next.0));
        self.next = self.next.max(oldest);
        if self.queue.is_empty() {
            self.undelivered = self.undelivered.max(oldest);
        }
        self.phase = Phase::CatchUp { asked: false };
    }

    /// What the shard still had when it ended, for one that reads below its feed.
    pub fn take_rest(&mut self, rest: &Page, limits: PageLimits) {
        if let Phase::CatchUp { asked } = &mut self.phase {
            *asked = true;
            self.take_page(rest, rest.next, limits);
        }
    }

    /// A frame of the feed. True when there is something to do for the subscription that there was not.
    pub fn offer(&mut self, frame: &Arc<Frame>) -> bool {
        if self.phase != Phase::Live || self.ending.is_some() || frame.end() <= self.next {
            return false;
        }
        if self.kind.logged {
            return self.offer_logged(frame);
        }
        if frame.base > self.next {
            self.lose(frame.base.0 - self.next.0);
        }
        let partial = frame.base < self.next;
        let frame = if partial { Arc::new(frame.from_offset(self.next)) } else { Arc::clone(frame) };
        self.next = frame.end();
        match self.kind.policy {
            SlowSubscriber::Block => {}
            SlowSubscriber::DropNew => {
                let frames_max = self.kind.limits.frames_max;
                let keep = if self.skipping { frames_max / 2 } else { frames_max };
                self.skipping = self.is_over(frame.cost(), keep);
                if self.skipping {
                    self.lose(u64::from(frame.count));
                    return false;
                }
            }
            SlowSubscriber::DropOld => {
                while self.is_over(frame.cost(), self.kind.limits.frames_max) && self.drop_oldest() {}
            }
        }
        self.push(frame);
        true
    }

    /// Nothing is dropped: what does not fit, or lies behind something the feed did not see, is read from the log.
    fn offer_logged(&mut self, frame: &Arc<Frame>) -> bool {
        let gap = frame.base > self.next;
        if gap || self.is_over(frame.cost(), self.kind.limits.frames_max) {
            self.phase = Phase::CatchUp { asked: false };
            return gap;
        }
        let partial = frame.base < self.next;
        let frame = if partial { Arc::new(frame.from_offset(self.next)) } else { Arc::clone(frame) };
        self.next = frame.end();
        self.push(frame);
        true
    }

    /// Nothing is queued or on its way, so nobody will come back to it by itself.
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.staged.iter().all(Bytes::is_empty)
    }

    /// Whether its feed must not read on: policy Block, the queue is full, and no log holds the rest.
    pub fn blocks(&self) -> bool {
        self.kind.policy == SlowSubscriber::Block
            && !self.kind.logged
            && self.is_over(0, self.kind.limits.frames_max)
    }

    /// Ends it after what is queued (`after_queue`) or after the frame on its way. `last` is the closing frame, may be empty.
    /// The first end counts, unless it was to leave behind something that is dropped now: of a log the later one counts then,
    /// since the first says to go on behind what never left. In memory the first may name offsets of another life, and what
    /// is dropped is lost.
    pub fn end(&mut self, last: Bytes, after_queue: bool) {
        if after_queue || self.queue.is_empty() {
            self.ending.get_or_insert(last);
            return;
        }
        if self.ending.is_none() || self.kind.logged {
            self.ending = Some(last);
        } else {
            self.lose(self.queue.iter().map(|frame| u64::from(frame.count)).sum());
        }
        self.queue.clear();
        self.queue_bytes = 0;
    }

    /// The chunk to write now, in `staged` order. None when nothing is ready.
    pub fn chunk(&mut self) -> Option<&mut Bytes> {
        while self.staged.front().is_some_and(Bytes::is_empty) {
            self.staged.pop_front();
        }
        if self.staged.is_empty() {
            self.stage();
        }
        self.staged.front_mut()
    }

    /// Everything is written and the stream is to be finished.
    pub fn is_done(&self) -> bool {
        self.ended && self.staged.iter().all(Bytes::is_empty)
    }

    fn stage(&mut self) {
        if let Some(frame) = self.queue.pop_front() {
            self.queue_bytes -= frame.cost();
            self.undelivered = frame.end();
            self.delivered.frames += 1;
            self.delivered.records += u64::from(frame.count);
            self.delivered.payload_bytes += frame.payload_bytes() as u64;
            self.staged.push_back(frame.head(self.kind.offsets));
            self.staged.push_back(frame.body());
        } else if let Some(last) = self.ending.as_mut().filter(|_| !self.ended) {
            self.ended = true;
            let last = std::mem::take(last);
            if !last.is_empty() {
                self.staged.push_back(last);
            }
        }
    }

    fn push(&mut self, frame: Arc<Frame>) {
        let gap = std::mem::take(&mut self.gap);
        let told = gap > 0 && self.kind.offsets && self.kind.skips && !planted::is(Defect::GapUntold);
        let frame = if told { Arc::new(frame.behind_gap(gap)) } else { frame };
        self.queue_bytes += frame.cost();
        self.queue.push_back(frame);
    }

    fn is_over(&self, more_bytes: usize, frames_max: usize) -> bool {
        let bytes_over = self.queue_bytes + more_bytes > self.kind.limits.bytes_max;
        self.queue.len() >= frames_max.max(1) || (bytes_over && !self.queue.is_empty())
    }

    fn drop_oldest(&mut self) -> bool {
        let Some(frame) = self.queue.pop_front() else { return false };
        self.queue_bytes -= frame.cost();
        self.undelivered = frame.end();
        self.lose(u64::from(frame.count));
        true
    }

    fn lose(&mut self, records: u64) {
        self.dropped += records;
    }
}
