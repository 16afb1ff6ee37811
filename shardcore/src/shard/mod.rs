//! One shard: claims offsets in arrival order, appends, settles, feeds the cores that read it. Sans-io.
//! Scope: one per shard and generation, on the core that owns it. Owns: its ring and one link per reading core.
//! Invariants: a publish is answered once, from an `Appended` (which a durable shard makes only of what its log has
//! settled); nothing a linked core has not been sent is evicted, unless a log holds it; what a lane sends is appended as
//! an unbroken run from the beginning of an epoch, so a lane's order holds.
//! Not here: which core asks for what (`turn`), subscribers (`projection::stream`).

pub mod ask;
mod asked;
pub mod cache;
mod claimer;
pub mod group;
pub mod journal;
pub mod logged;
pub mod mail;
mod numbers;
pub mod ring;
#[cfg(test)]
mod tests;

use std::num::NonZeroU32;
use std::time::Duration;

use felix_logstore::record::Batch;
use felix_runtime::clock::Tick;
use felix_wire::client::Records;
use felix_wire::id::{CoreId, Generation, Offset};
use smallvec::SmallVec;

use crate::projection::producer::{Numbered, OwnIds};
use crate::snapshot::ShardId;
use crate::store::{LogAt, PageFor, PageReader, Store};
use asked::Asked;
use claimer::Claimer;
use group::RecordsAt;
use journal::NoClaim;
use logged::{Logged, Write};
use mail::{
    Bounce, Doubt, Ending, FromShard, Job, LanePos, NotWritten, PageLoss, Reader, ShardInput, ShardOutput,
    Start, SubToken,
};
use numbers::{Content, Numbering, Numbers, Sent};
use ring::{Page, Ring, RingLimits, SLOT_OVERHEAD_BYTES};

/// Bytes of a log read at once for the sake of its producers.
const NUMBERS_PAGE_BYTES: usize = 4 << 20;

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

/// What came of looking at the number of a publish.
enum Checked {
    Append(Numbered),
    /// What the log says of its producer is not known yet.
    Wait,
    Answered,
}

/// Outputs of a turn, each with the core it goes to.
pub type Outputs = Vec<(CoreId, FromShard)>;

/// What a shard sees of its core.
pub struct ShardCx<'a> {
    /// What the core's budget for rings has left.
    pub free_bytes: usize,
    /// The logs of the core, if it has any.
    pub store: Option<&'a mut Store>,
    /// Milliseconds since 1970.
    pub unix_ms: u64,
    pub now: Tick,
    pub out: &'a mut Outputs,
}

/// See the module.
#[derive(Debug)]
pub struct Shard {
    id: ShardId,
    generation: Generation,
    ring: Ring,
    links: SmallVec<[Link; 4]>,
    senders: SmallVec<[Sender; 4]>,
    /// The shard of a durable stream; its ring holds the newest of what was settled while somebody reads.
    logged: Option<Logged>,
    numbers: Numbers,
    /// Requests about its records, once there was one.
    asked: Option<Box<Asked>>,
}

impl Shard {
    /// A shard that begins empty at offset 0.
    pub fn open(id: ShardId, generation: Generation, limits: RingLimits) -> Shard {
        let ring = Ring::new(Offset(0), limits);
        let (links, senders) = (SmallVec::new(), SmallVec::new());
        Shard {
            id,
            generation,
            ring,
            links,
            senders,
            logged: None,
            numbers: Numbers::in_memory(),
            asked: None,
        }
    }

    /// The shard of a durable stream. None while something of its log is in flight.
    pub fn open_logged(
        id: ShardId,
        generation: Generation,
        limits: RingLimits,
        (store, at): (&Store, LogAt),
        own_ids: OwnIds,
    ) -> Option<Shard> {
        let (logged, next) = Logged::open(store, at)?;
        let found_end = store.log(at).map_or(next, |log| log.found_end());
        let ring = Ring::new(next, limits);
        let (links, senders) = (SmallVec::new(), SmallVec::new());
        Some(Shard {
            id,
            generation,
            ring,
            links,
            senders,
            logged: Some(logged),
            numbers: Numbers::in_log(found_end, own_ids),
            asked: None,
        })
    }

    /// Where its log is, if it has one.
    pub fn log(&self) -> Option<LogAt> {
        self.logged.as_ref().map(Logged::at)
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

    /// Where its records are and which can be read, when it has a log.
    pub fn records(&self, store: &Store) -> Option<RecordsAt> {
        let logged = self.logged.as_ref()?;
        Some(RecordsAt { at: logged.at(), start: logged.start(store), end: self.records_end() })
    }

    /// One past the last record: offsets at the end that no record will have are not counted.
    pub fn records_end(&self) -> Offset {
        let end = self.ring.end();
        self.logged.as_ref().map_or(end, |logged| logged.records_end(end))
    }

    /// Gives up its oldest slot for the sake of the core's budget; the bytes freed, 0 when it is pinned or empty.
    pub fn shrink(&mut self) -> usize {
        let pin = self.pin();
        self.ring.evict_oldest(pin)
    }

    /// Takes a batch, or bounces it. In memory exactly one output is added; with a log at most one, and none when the
    /// answer comes with what is settled.
    pub fn publish(&mut self, from: CoreId, at: LanePos, job: Job, cx: &mut ShardCx<'_>) {
        let sender = sender_of(&mut self.senders, from);
        let in_order = at.seq == 0 || sender.next == Some(at);
        if !in_order {
            return self.bounce(from, job, cx.out);
        }
        // A bounce takes it back.
        sender_of(&mut self.senders, from).next = Some(at.behind(1));
        let numbered = match job.producer {
            None => None,
            Some(_) => match self.check_number(from, &job, cx) {
                Checked::Append(numbered) => Some(numbered),
                Checked::Wait => return self.bounce(from, job, cx.out),
                Checked::Answered => return,
            },
        };
        let base = match self.logged.is_some() {
            true => self.append_logged(from, job, cx),
            false => self.append(from, job, cx),
        };
        if let Some((numbered, base)) = numbered.zip(base) {
            self.numbers.claimed(&numbered, base);
        }
    }

    /// Whether a run of publishes without numbers that begins at `at` can be appended at once: the shard is in memory, and they
    /// are what it expects of the sender. Each is given to `append_records` then, and `appended_at_once` ends the run.
    pub fn takes_at_once(&mut self, from: CoreId, at: LanePos) -> bool {
        self.logged.is_none() && (at.seq == 0 || sender_of(&mut self.senders, from).next == Some(at))
    }

    /// What the sender sends next begins at `next`.
    pub fn appended_at_once(&mut self, from: CoreId, next: LanePos) {
        sender_of(&mut self.senders, from).next = Some(next);
    }

    /// Appends to the ring of a shard in memory, and gives the first offset. When there is no room the records come back, and
    /// nothing has changed but what may go from the ring anyway.
    ///
    /// # Errors
    /// There is no room.
    pub fn append_records(&mut self, records: Records, free_bytes: usize) -> Result<Offset, Records> {
        let pin = self.pin();
        let needed = records.encoded_len();
        let room = self.fits_core(needed, free_bytes);
        let count = NonZeroU32::new(records.count());
        let (Some(count), true) = (count, room && self.ring.make_room(needed, pin)) else {
            return Err(records);
        };
        let claim = self.ring.claim(count);
        Ok(self.ring.append(claim, records, pin).base())
    }

    /// Decides a numbered publish.
    fn check_number(&mut self, from: CoreId, job: &Job, cx: &mut ShardCx<'_>) -> Checked {
        let held = (self.start(cx.store.as_deref()), self.ring.end());
        let claimer = Claimer::Publish(job.token);
        let sent = Sent { claimer, producer: job.producer, content: Content::Records(&job.records) };
        let what = match self.numbers.check((from, cx.now), sent, held) {
            Numbering::Append(numbered) => return Checked::Append(numbered),
            Numbering::Read(start, end) => {
                self.read_numbers(start, end, cx);
                return Checked::Wait;
            }
            Numbering::Wait => {
                if let Some(logged) = &mut self.logged {
                    logged.full = true;
                }
                return Checked::Wait;
            }
            Numbering::WithFirst => return Checked::Answered,
            Numbering::Settled(base) => claimer.written(base, self.logged.is_some()),
            Numbering::Refused(why) => claimer.refused(why),
        };
        self.send(from, what, cx.out);
        Checked::Answered
    }

    /// Appends to the ring. Gives the first offset, if there was room.
    fn append(&mut self, from: CoreId, job: Job, cx: &mut ShardCx<'_>) -> Option<Offset> {
        let Job { token, records, producer } = job;
        match self.append_records(records, cx.free_bytes) {
            Ok(base) => {
                self.send(from, ShardOutput::Published { token, base, logged: false }, cx.out);
                Some(base)
            }
            Err(records) => {
                self.bounce(from, Job { token, records, producer }, cx.out);
                None
            }
        }
    }

    /// Claims and appends in the log. Gives the first offset, if it was claimed; it is answered when it is settled.
    fn append_logged(&mut self, from: CoreId, job: Job, cx: &mut ShardCx<'_>) -> Option<Offset> {
        let (Some(logged), Some(store)) = (&mut self.logged, cx.store.as_deref_mut()) else {
            self.bounce(from, job, cx.out);
            return None;
        };
        let Job { token, records, producer } = job;
        let claimer = Claimer::Publish(token);
        let write = Write { records, commit: None, producer };
        let when = (self.generation, cx.unix_ms, cx.now);
        let (why, write) = match logged.write(store, (from, claimer), write, when) {
            Ok(base) => return Some(base),
            Err(not) => not,
        };
        let job = Job { token, records: write.records, producer };
        let what = match why {
            NoClaim::Full => {
                self.bounce(from, job, cx.out);
                return None;
            }
            NoClaim::Gone => {
                sender_of(&mut self.senders, from).next = None;
                ShardOutput::Bounced { job, why: Bounce::Moved }
            }
            NoClaim::Refused(why) => claimer.refused(why),
        };
        self.send(from, what, cx.out);
        None
    }

    /// Has what the log says of producers read; numbered publishes wait until then.
    fn read_numbers(&mut self, from: Offset, until: Offset, cx: &mut ShardCx<'_>) {
        if let Some((logged, store)) = self.logged.as_mut().zip(cx.store.as_deref_mut()) {
            logged.full = true;
            let page = PageFor { shard: self.id, reader: PageReader::Numbers, from, life: 0 };
            store.read(logged.at(), page, until, NUMBERS_PAGE_BYTES);
        }
    }

    /// A page of the log that was read for the sake of its producers. Afterwards `flush` must run.
    pub fn numbers_page(&mut self, batches: &[Batch], cx: &mut ShardCx<'_>) {
        // No batch at all: there is none up to the end, where offsets without records may follow.
        let next = batches.last().map_or(Offset(u64::MAX), |batch| batch.head().end());
        match self.numbers.take_page(batches, next) {
            Some((from, until)) => self.read_numbers(from, until, cx),
            None => self.log_has_room(cx),
        }
    }

    /// There is no such page.
    pub fn numbers_lost(&mut self, why: PageLoss, cx: &mut ShardCx<'_>) {
        match why {
            PageLoss::TooOld(start) => match self.numbers.lost_until(start) {
                Some((from, until)) => self.read_numbers(from, until, cx),
                None => self.log_has_room(cx),
            },
            PageLoss::Damaged { next, .. } => match self.numbers.damaged_until(next) {
                Some((from, until)) => self.read_numbers(from, until, cx),
                None => self.log_has_room(cx),
            },
            PageLoss::Unreadable => {
                self.numbers.reading_failed(cx.now);
                self.log_has_room(cx);
            }
        }
    }

    /// Retention moved the start of its log.
    pub fn log_start_moved(&mut self, start: Offset) {
        self.numbers.forget_below(start);
        if let Some(asked) = &mut self.asked {
            asked.log_starts(start);
        }
    }

    /// The first offset that can be read.
    fn start(&self, store: Option<&Store>) -> Offset {
        match self.logged.as_ref().zip(store) {
            Some((logged, store)) => logged.start(store),
            None => self.ring.start(),
        }
    }

    /// Sends a publish back; its sender is told when there is room.
    fn bounce(&mut self, from: CoreId, job: Job, out: &mut Outputs) {
        let sender = sender_of(&mut self.senders, from);
        sender.next = None;
        sender.starved_bytes.get_or_insert(job.records.encoded_len());
        self.send(from, ShardOutput::Bounced { job, why: Bounce::Full }, out);
    }

    /// Its log has settled everything below `end`: it can be read, and is answered. Afterwards `flush` must run.
    pub fn settled(&mut self, end: Offset, cx: &mut ShardCx<'_>) {
        let free_bytes = cx.free_bytes + self.ring.bytes();
        let Some(logged) = &mut self.logged else { return };
        while let Some(claimed) = logged.pop_settled(end) {
            let Some(count) = NonZeroU32::new(claimed.records.count()) else { continue };
            if self.links.is_empty() {
                // Whoever comes to read it begins in the log.
                assert_eq!(self.ring.pass(count), claimed.base, "the ring goes on where the log does");
            } else {
                // What does not fit is read from the log.
                let bytes = claimed.records.encoded_len();
                self.ring.make_room(bytes, Offset(u64::MAX));
                while self.ring.bytes() + bytes > free_bytes && self.ring.evict_oldest(Offset(u64::MAX)) > 0 {
                }
                let claim = self.ring.claim(count);
                let appended = self.ring.append(claim, claimed.records, Offset(u64::MAX));
                assert_eq!(appended.base(), claimed.base, "the ring goes on where the log does");
            }
            if let Some((commit, asked)) = claimed.commit.as_ref().zip(self.asked.as_mut()) {
                asked.committed(commit, claimed.base);
            }
            if claimed.given_up {
                continue;
            }
            let what = claimed.claimer.written(claimed.base, true);
            let answer = FromShard { shard: self.id, generation: self.generation, what };
            cx.out.push((claimed.to, answer));
        }
        for (to, claimer, base) in self.numbers.settled(end) {
            self.send(to, claimer.written(base, true), cx.out);
        }
        self.tell_mismatched(cx);
    }

    /// Its log has room again. Afterwards `flush` must run.
    pub fn log_has_room(&mut self, cx: &mut ShardCx<'_>) {
        if let Some(logged) = &mut self.logged {
            logged.full = false;
        }
        self.ask_parked(cx);
    }

    /// Its log takes no more: what is claimed is answered "not known".
    pub fn log_stopped(&mut self, out: &mut Outputs) {
        self.end_claims(|claimer| claimer.unknown(Doubt::LogFailed), out);
        self.refuse_waiting(NotWritten::Stopped, out);
    }

    /// What the disk has not confirmed for `wait` is answered "not known"; it is settled when the disk answers.
    pub fn give_up_late(&mut self, now: Tick, wait: Duration, out: &mut Outputs) {
        let (shard, generation) = (self.id, self.generation);
        let claims = self.logged.iter_mut().flat_map(|logged| logged.give_up(now, wait));
        for (to, claimer) in claims.chain(self.numbers.give_up(now, wait)) {
            let what = claimer.unknown(Doubt::Unconfirmed);
            out.push((to, FromShard { shard, generation, what }));
        }
    }

    /// Nothing that is claimed will be settled: it is answered with `answer`.
    fn end_claims(&mut self, answer: impl Fn(Claimer) -> ShardOutput, out: &mut Outputs) {
        let (shard, generation) = (self.id, self.generation);
        let claims =
            self.logged.iter_mut().flat_map(Logged::stop).map(|claimed| (claimed.to, claimed.claimer));
        for (to, claimer) in claims.chain(self.numbers.stop()) {
            out.push((to, FromShard { shard, generation, what: answer(claimer) }));
        }
    }

    /// Everything but a publish. Afterwards `flush` must run.
    pub fn handle(&mut self, from: CoreId, input: ShardInput, cx: &mut ShardCx<'_>) {
        match input {
            ShardInput::Publish { at, job } => self.publish(from, at, job, cx),
            ShardInput::Subscribe { token, start, hold } => self.subscribe(from, (token, hold), start, cx),
            ShardInput::Pull { reader: Reader::Live, from: next, bytes_max } => {
                if let Some(link) = self.links.iter_mut().find(|l| l.core == from) {
                    link.next = link.next.max(next);
                    link.wanted_bytes = bytes_max;
                }
            }
            ShardInput::Pull { reader: Reader::CatchUp(token), from: next, bytes_max } => {
                self.catch_up((from, token), next, bytes_max, cx);
            }
            ShardInput::Release { token } => {
                if let Some(link) = self.links.iter_mut().find(|l| l.core == from) {
                    link.holds.retain(|(t, _)| *t != token);
                }
            }
            ShardInput::Unlink => self.links.retain(|l| l.core != from),
            // It is handed on by the core (`Shard::ask`).
            ShardInput::Ask { token, ask } => self.send(from, ShardOutput::AskBack { token, ask }, cx.out),
            ShardInput::Cancel { .. } | ShardInput::Watch { .. } => {}
        }
    }

    fn catch_up(
        &mut self,
        (to, token): (CoreId, SubToken),
        from: Offset,
        bytes_max: usize,
        cx: &mut ShardCx<'_>,
    ) {
        let reader = Reader::CatchUp(token);
        if let Some(logged) = &self.logged {
            if let Some(next) = logged.behind_gap(from) {
                let page = Page { slots: Vec::new(), next };
                return self.send(to, ShardOutput::Page { reader, page }, cx.out);
            }
            let below_ring = from < self.ring.start();
            if let Some(store) = cx.store.as_deref_mut().filter(|_| below_ring) {
                let reader = PageReader::Subscription { to, token };
                let page = PageFor { shard: self.id, reader, from, life: 0 };
                return store.read(logged.at(), page, self.ring.end(), bytes_max);
            }
        }
        let page = self.ring.page(from, bytes_max);
        let holds = self.links.iter_mut().filter(|l| l.core == to).flat_map(|l| &mut l.holds);
        for (_, held) in holds.filter(|(t, _)| *t == token) {
            *held = page.next;
        }
        self.send(to, ShardOutput::Page { reader, page }, cx.out);
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
        let answer = |claimer: Claimer| match why {
            Ending::Deleted => claimer.refused(NotWritten::Deleted),
            Ending::Moved => claimer.unknown(Doubt::Moved),
        };
        self.end_claims(answer, out);
        self.end_asked(why, out);
        for link in std::mem::take(&mut self.links) {
            let rest = match why {
                // What a log holds is read from there.
                Ending::Moved if self.logged.is_none() => self.ring.page(link.pin(), usize::MAX),
                Ending::Moved | Ending::Deleted => Page::default(),
            };
            self.send(link.core, ShardOutput::Ended { why, rest }, out);
        }
    }

    /// The most bytes a sender waits for, if any does; then `flush` must run whenever the core's rings give up bytes.
    pub fn starved_bytes(&self) -> Option<usize> {
        self.senders.iter().filter_map(|s| s.starved_bytes).max()
    }

    fn subscribe(
        &mut self,
        from: CoreId,
        (token, hold): (SubToken, bool),
        start: Start,
        cx: &mut ShardCx<'_>,
    ) {
        let out = &mut *cx.out;
        let logged = self.logged.is_some();
        let (oldest, end) = (self.start(cx.store.as_deref()), self.ring.end());
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
        if hold && begin < end && !logged {
            self.links[at].holds.push((token, begin));
        }
        let live = self.records_end().max(begin);
        self.send(from, ShardOutput::Subscribed { token, start: begin, end, live, logged }, out);
    }

    fn wake_starved(&mut self, free_bytes: usize, out: &mut Outputs) {
        let pin = self.pin();
        for i in 0..self.senders.len() {
            let Some(bytes) = self.senders[i].starved_bytes else { continue };
            let room = match &self.logged {
                Some(logged) => !logged.full,
                None => self.fits_core(bytes, free_bytes) && self.ring.make_room(bytes, pin),
            };
            if !room {
                continue;
            }
            self.senders[i].starved_bytes = None;
            let core = self.senders[i].core;
            self.send(core, ShardOutput::Room, out);
        }
    }

    /// Nothing at or above this offset may be evicted.
    fn pin(&self) -> Offset {
        if self.logged.is_some() {
            return Offset(u64::MAX);
        }
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
