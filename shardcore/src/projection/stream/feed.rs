//! Reads one shard for all subscribers of one core. Sans-io.
//! Scope: one per core and generation of a shard with subscribers there. Owns: how far the core has read, and whether a pull is out.
//! Invariants: frames come once and in offset order; no pull is out while a Block subscriber's queue is full, so the owner
//! keeps what was not read and its claims stop at its bound.
//! Not here: the subscribers' queues (`subscription`), the ring (`shard`).

use std::sync::Arc;

use felix_wire::id::{CoreId, Offset};

use super::frame::{Frame, FrameLimits, cut};
use crate::shard::mail::SubToken;
use crate::shard::ring::Page;

/// Bytes asked for with one pull.
pub const PULL_BYTES: usize = 4 << 20;

/// See the module.
#[derive(Debug)]
pub struct Feed {
    pub owner: CoreId,
    /// Every subscription of the core on this shard.
    pub subscribers: Vec<SubToken>,
    /// One past the newest offset read; unknown until the first subscription is confirmed.
    end: Option<Offset>,
    pulling: bool,
    /// The subscription that was last found to keep the feed from reading on.
    blocked_by: Option<SubToken>,
}

impl Feed {
    /// A feed that has read nothing.
    pub fn new(owner: CoreId) -> Feed {
        Feed { owner, subscribers: Vec::new(), end: None, pulling: false, blocked_by: None }
    }

    /// How far it has read.
    pub fn end(&self) -> Offset {
        self.end.unwrap_or(Offset(0))
    }

    /// A subscription was confirmed when the shard ended at `end`: the first one fixes where the feed begins.
    pub fn confirmed(&mut self, end: Offset) {
        self.end.get_or_insert(end);
    }

    /// The offset to pull from, when a pull should go out now; the caller sends it. `blocks` says of a subscription
    /// whether the feed must wait for it. With a pull out nobody is asked, and otherwise the one that was in the way last
    /// time first: this is called for every write to every subscription.
    pub fn wants_pull(&mut self, blocks: impl Fn(SubToken) -> bool) -> Option<Offset> {
        let from = self.end?;
        if self.pulling || self.blocked_by.is_some_and(&blocks) {
            return None;
        }
        self.blocked_by = self.subscribers.iter().copied().find(|token| blocks(*token));
        if self.blocked_by.is_some() {
            return None;
        }
        self.pulling = true;
        Some(from)
    }

    /// The answer to the pull, cut into frames.
    pub fn take_page(&mut self, page: &Page, limits: FrameLimits, each: impl FnMut(Arc<Frame>)) {
        if std::mem::take(&mut self.pulling) {
            self.take_rest(page, limits, each);
        } // else it is for an earlier feed of this core
    }

    /// What the shard still had when it ended, cut into frames.
    pub fn take_rest(&mut self, page: &Page, limits: FrameLimits, mut each: impl FnMut(Arc<Frame>)) {
        let from = self.end();
        for slot in page.slots.iter().filter(|s| s.end() > from) {
            cut(slot, from, limits, &mut each);
        }
        self.end = Some(from.max(page.next));
    }
}
