//! One shard: claims offsets in arrival order, appends, settles, feeds the cores that read it. Sans-io.
//! Scope: one per shard and generation, on the core that owns it. Owns: its ring and one link per reading core.
//! Invariants: a publish is answered once, from an `Appended`; nothing a linked core has not been sent is evicted; what
//! a lane sends is appended as an unbroken run from the beginning of an epoch, so a lane's order holds.
//! Not here: which core asks for what (`turn`), subscribers (`projection::stream`).

pub mod mail;
pub mod ring;
#[cfg(test)]
mod tests;

use std::num::NonZeroU32;

use felix_wire::id::{CoreId, Generation, Offset};
use smallvec::SmallVec;

use crate::snapshot::ShardId;
use mail::{Bounce, Ending, FromShard, Job, LanePos, Reader, ShardInput, ShardOutput, Start, SubToken};
use ring::{Page, Ring, RingLimits, SLOT_OVERHEAD_BYTES};

/// What one reading core was sent.
#[derive(Debug)]
struct Link {
    core: CoreId,
    /// First offset not sent yet; everything from here on is pinned.
    next: Offset,
    /// Bytes it has asked for and not got; 0 when it has not asked.
    wanted_bytes: usize,
    /// Subscriptions below `next` that must not lose anything, each with the first offset it was not sent.
    holds: SmallVec<[(SubToken, Offset); 2]>,
}

impl Link {
    fn pin(&self) -> Offset {
        self.holds.iter().map(|(_, offset)| *offset).fold(self.next, Offset::min)
    }
}

/// What is known of one publishing core.
#[derive(Debug)]
struct Sender {
    core: CoreId,
    /// The next publish of its run; none after a bounce, until a new run begins.
    next: Option<LanePos>,
    /// Waits for `Room`; the bytes its first bounced publish needs.
    starved_bytes: Option<usize>,
}

/// Outputs of a turn, each with the core it goes to.
pub type Outputs = Vec<(CoreId, FromShard)>;

/// See the module.
#[derive(Debug)]
pub struct Shard {
    id: ShardId,
    generation: Generation,
    ring: Ring,
    links: SmallVec<[Link; 4]>,
    senders: SmallVec<[Sender; 4]>,
}

impl Shard {
    /// A shard that begins empty at offset 0.
    pub fn open(id: ShardId, generation: Generation, limits: RingLimits) -> Shard {
        let ring = Ring::new(Offset(0), limits);
        Shard { id, generation, ring, links: SmallVec::new(), senders: SmallVec::new() }
    }

    /// The generation it serves.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// Bytes its ring holds.
    pub fn ring_bytes(&self) -> usize {
        self.ring.bytes()
    }

    /// Cores that read it.
    #[cfg(any(test, feature = "sim"))]
    pub fn links(&self) -> usize {
        self.links.len()
    }

    /// The next offset.
    pub fn end(&self) -> Offset {
        self.ring.end()
    }

    /// Gives up its oldest slot for the sake of the core's budget; the bytes freed, 0 when it is pinned or empty.
    pub fn shrink(&mut self) -> usize {
        let pin = self.pin();
        self.ring.evict_oldest(pin)
    }

    /// Takes a batch, or bounces it. `free_bytes`: what the core's budget for rings has left. Adds exactly one output.
    pub fn publish(&mut self, from: CoreId, at: LanePos, job: Job, free_bytes: usize, out: &mut Outputs) {
        let pin = self.pin();
        let generation = self.generation;
        let id = self.id;
        let needed = job.records.encoded_len();
        let room = self.fits_core(needed, free_bytes);
        let sender = sender_of(&mut self.senders, from);
        let in_order = at.seq == 0 || sender.next == Some(at);
        let count = NonZeroU32::new(job.records.count());
        let (Some(count), true, true) = (count, in_order, room && self.ring.make_room(needed, pin)) else {
            sender.next = None;
            sender.starved_bytes.get_or_insert(needed);
            let what = ShardOutput::Bounced { job, why: Bounce::Full };
            out.push((from, FromShard { shard: id, generation, what }));
            return;
        };
        sender.next = Some(LanePos { seq: at.seq.wrapping_add(1), ..at });
        let claim = self.ring.claim(count);
        let appended = self.ring.append(claim, job.records, pin);
        let what = ShardOutput::Published { token: job.token, base: appended.base() };
        out.push((from, FromShard { shard: id, generation, what }));
    }

    /// Everything but a publish. Afterwards `flush` must run.
    pub fn handle(&mut self, from: CoreId, input: ShardInput, out: &mut Outputs) {
        match input {
            ShardInput::Publish { at, job } => self.publish(from, at, job, usize::MAX, out),
            ShardInput::Subscribe { token, start, hold } => self.subscribe(from, (token, hold), start, out),
            ShardInput::Pull { reader: Reader::Live, from: next, bytes_max } => {
                if let Some(link) = self.links.iter_mut().find(|l| l.core == from) {
                    link.next = link.next.max(next);
                    link.wanted_bytes = bytes_max;
                }
            }
            ShardInput::Pull { reader: Reader::CatchUp(token), from: next, bytes_max } => {
                let page = self.ring.page(next, bytes_max);
                let holds = self.links.iter_mut().filter(|l| l.core == from).flat_map(|l| &mut l.holds);
                for (_, held) in holds.filter(|(t, _)| *t == token) {
                    *held = page.next;
                }
                self.send(from, ShardOutput::Page { reader: Reader::CatchUp(token), page }, out);
            }
            ShardInput::Release { token } => {
                if let Some(link) = self.links.iter_mut().find(|l| l.core == from) {
                    link.holds.retain(|(t, _)| *t != token);
                }
            }
            ShardInput::Unlink => self.links.retain(|l| l.core != from),
        }
    }

    /// Answers the pulls that can be answered and, as far as the core's ring budget has `free_bytes`, tells starved
    /// senders of room. Called once per turn.
    pub fn flush(&mut self, free_bytes: usize, out: &mut Outputs) {
        let end = self.ring.end();
        for link in self.links.iter_mut().filter(|l| l.wanted_bytes > 0 && l.next < end) {
            let page = self.ring.page(link.next, link.wanted_bytes);
            link.next = page.next;
            link.wanted_bytes = 0;
            let what = ShardOutput::Page { reader: Reader::Live, page };
            out.push((link.core, FromShard { shard: self.id, generation: self.generation, what }));
        }
        self.wake_starved(free_bytes, out);
    }

    /// Ends every subscription, after what the linked cores were not sent when the shard only moves. It is dropped
    /// afterwards.
    pub fn close(&mut self, why: Ending, out: &mut Outputs) {
        for link in std::mem::take(&mut self.links) {
            let rest = match why {
                Ending::Moved => self.ring.page(link.pin(), usize::MAX),
                Ending::Deleted => Page::default(),
            };
            self.send(link.core, ShardOutput::Ended { why, rest }, out);
        }
    }

    /// The most bytes a sender waits for, if any does; then `flush` must run whenever the core's rings give up bytes.
    pub fn starved_bytes(&self) -> Option<usize> {
        self.senders.iter().filter_map(|s| s.starved_bytes).max()
    }

    fn subscribe(&mut self, from: CoreId, (token, hold): (SubToken, bool), start: Start, out: &mut Outputs) {
        let (oldest, end) = (self.ring.start(), self.ring.end());
        let begin = match start {
            Start::Latest => end,
            Start::Earliest => oldest,
            Start::At(offset) if offset < oldest || offset > end => {
                let too_old = offset < oldest;
                let available = if too_old { oldest } else { end };
                let what = ShardOutput::SubscribeRefused { token, too_old, requested: offset, available };
                return self.send(from, what, out);
            }
            Start::At(offset) => offset,
        };
        let known = self.links.iter().position(|l| l.core == from);
        let at = known.unwrap_or_else(|| {
            self.links.push(Link { core: from, next: end, wanted_bytes: 0, holds: SmallVec::new() });
            self.links.len() - 1
        });
        if hold && begin < end {
            self.links[at].holds.push((token, begin));
        }
        self.send(from, ShardOutput::Subscribed { token, start: begin, end }, out);
    }

    fn wake_starved(&mut self, free_bytes: usize, out: &mut Outputs) {
        let pin = self.pin();
        for i in 0..self.senders.len() {
            let Some(bytes) = self.senders[i].starved_bytes else { continue };
            if !self.fits_core(bytes, free_bytes) || !self.ring.make_room(bytes, pin) {
                continue;
            }
            self.senders[i].starved_bytes = None;
            let core = self.senders[i].core;
            self.send(core, ShardOutput::Room, out);
        }
    }

    /// Nothing at or above this offset may be evicted.
    fn pin(&self) -> Offset {
        self.links.iter().map(Link::pin).min().unwrap_or(Offset(u64::MAX))
    }

    /// Whether the core's budget has room for a batch; an empty ring may always take one.
    fn fits_core(&self, bytes: usize, free_bytes: usize) -> bool {
        bytes + SLOT_OVERHEAD_BYTES <= free_bytes || self.ring.bytes() == 0
    }

    fn send(&self, to: CoreId, what: ShardOutput, out: &mut Outputs) {
        out.push((to, FromShard { shard: self.id, generation: self.generation, what }));
    }
}

fn sender_of(senders: &mut SmallVec<[Sender; 4]>, core: CoreId) -> &mut Sender {
    let at = senders.iter().position(|s| s.core == core).unwrap_or_else(|| {
        senders.push(Sender { core, next: None, starved_bytes: None });
        senders.len() - 1
    });
    &mut senders[at]
}
