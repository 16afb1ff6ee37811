//! Requests about the records of a durable shard: atomic commits, conditional publishes, the state that commits have put,
//! pages of the log, offsets by time. Sans-io. Scope: one per shard that was asked, beside its records. Owns: writes that
//! wait for room, answers that wait for what they tell of, reads under way, the state.
//! Invariants: a condition is decided against everything claimed before, and what it says is answered when that is settled;
//! a read is of what is settled; writes that wait keep their order; what waits is bounded in number and bytes.
//! Not here: publishes of lanes (`super`), what a commit does to keys (`projection::commit`), who asks (`turn::asking`).

mod page;
mod state;
mod time;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use felix_logstore::record::Batch;
use felix_runtime::clock::Tick;
use felix_wire::client::Records;
use felix_wire::id::Offset;
use slab::Slab;

use super::ask::{Ask, AskRefused, Asker, Reply, StreamAsk};
use super::claimer::Claimer;
use super::journal::NoClaim;
use super::logged::Write;
use super::mail::{Ending, FromShard, NotWritten, PageLoss, ShardOutput};
use super::numbers::{Content, Numbering, Sent};
use super::{Outputs, Shard, ShardCx};
use crate::projection::commit::record::event_of;
use crate::projection::producer::Numbered;
use crate::store::{PageFor, PageReader};
use page::PageRead;
use state::{Looked, ShardState, StateRead};
use time::TimeRead;

/// Writes and answers that wait, and their bytes.
const WAITING_MAX: usize = 4_096;
const WAITING_BYTES_MAX: usize = 32 << 20;
/// Reads under way; more are refused.
const READS_MAX: usize = 1_024;

/// A request that waits.
#[derive(Debug)]
struct Waiting {
    asker: Asker,
    ask: Box<StreamAsk>,
    since: Tick,
}

/// A read under way, and for whom.
#[derive(Debug)]
struct Reading {
    asker: Asker,
    ask: Box<StreamAsk>,
    what: What,
}

#[derive(Debug)]
enum What {
    Page(PageRead),
    Time(TimeRead),
    State(StateRead),
}

/// What comes of a page that was read.
#[derive(Debug)]
enum Step {
    /// A page of so many bytes is needed: from here, of what is below.
    Read {
        from: Offset,
        until: Offset,
        bytes_max: usize,
    },
    Done(Reply),
}

/// See the module.
#[derive(Debug)]
pub(super) struct Asked {
    /// Another one for each life of the shard, so that pages of an earlier one are not taken.
    life: u64,
    parked: VecDeque<Waiting>,
    /// Conditions that did not hold, and the end they met, which is not settled yet.
    mismatched: VecDeque<(Offset, Waiting)>,
    waiting_bytes: usize,
    reads: Slab<Reading>,
    state: ShardState,
}

impl Asked {
    fn new(life: u64) -> Asked {
        Asked {
            life,
            parked: VecDeque::new(),
            mismatched: VecDeque::new(),
            waiting_bytes: 0,
            reads: Slab::new(),
            state: ShardState::default(),
        }
    }

    /// A commit is settled.
    pub(super) fn committed(&mut self, record: &Bytes, at: Offset) {
        self.state.committed(record, at);
    }

    /// Nothing below `start` is held any more.
    pub(super) fn log_starts(&mut self, start: Offset) {
        self.state.log_starts(start);
    }

    fn has_room_for(&self, ask: &StreamAsk) -> bool {
        self.parked.len() + self.mismatched.len() < WAITING_MAX
            && self.waiting_bytes + ask.held_bytes() <= WAITING_BYTES_MAX
    }

    fn pop_parked(&mut self, may: impl FnOnce(&mut Waiting) -> bool) -> Option<Waiting> {
        let waiting = self.parked.pop_front_if(may)?;
        self.waiting_bytes -= waiting.ask.held_bytes();
        Some(waiting)
    }

    fn pop_mismatched(
        &mut self,
        may: impl FnOnce(&mut (Offset, Waiting)) -> bool,
    ) -> Option<(Offset, Waiting)> {
        let mismatched = self.mismatched.pop_front_if(may)?;
        self.waiting_bytes -= mismatched.1.ask.held_bytes();
        Some(mismatched)
    }

    fn take_waiting(&mut self) -> impl Iterator<Item = (Asker, Box<StreamAsk>)> + use<> {
        self.waiting_bytes = 0;
        let parked = std::mem::take(&mut self.parked);
        let mismatched = std::mem::take(&mut self.mismatched).into_iter().map(|(_, waiting)| waiting);
        parked.into_iter().chain(mismatched).map(|waiting| (waiting.asker, waiting.ask))
    }
}

impl Shard {
    /// A request. `life`: a number that was not given before. Afterwards `flush` must run.
    pub fn ask(&mut self, asker: Asker, ask: Box<StreamAsk>, life: u64, cx: &mut ShardCx<'_>) {
        if *ask == StreamAsk::Ends {
            let (start, end) = (self.start(cx.store.as_deref()), self.records_end());
            return self.answer(asker, Reply::Ends { start, end }, cx.out);
        }
        if self.logged.is_none() || cx.store.is_none() {
            let why = Arc::from("that needs a durable stream");
            return self.answer(asker, Reply::Refused(AskRefused::Invalid(why)), cx.out);
        }
        let asked = self.asked.get_or_insert_with(|| Box::new(Asked::new(life)));
        match &*ask {
            StreamAsk::Commit { .. } | StreamAsk::PublishIf { .. } => {
                let waiting = Waiting { asker, ask, since: cx.now };
                let waits = if asked.parked.is_empty() { self.try_write(waiting, cx) } else { Some(waiting) };
                if let Some(waiting) = waits {
                    self.wait_for_room(waiting, cx);
                }
            }
            StreamAsk::State { .. } => self.ask_state(asker, ask, cx),
            StreamAsk::Read { .. } => self.ask_page(asker, ask, cx),
            StreamAsk::TimeOf { .. } => self.ask_time(asker, ask, cx),
            StreamAsk::Ends => {}
        }
    }

    fn wait_for_room(&mut self, waiting: Waiting, cx: &mut ShardCx<'_>) {
        let Some(asked) = &mut self.asked else { return };
        if !asked.has_room_for(&waiting.ask) {
            return self.answer(waiting.asker, Reply::Refused(AskRefused::Overloaded), cx.out);
        }
        asked.waiting_bytes += waiting.ask.held_bytes();
        asked.parked.push_back(waiting);
    }

    /// Claims a write, or answers it. Gives it back when it has to wait for room, or for what the log says of producers.
    fn try_write(&mut self, waiting: Waiting, cx: &mut ShardCx<'_>) -> Option<Waiting> {
        let (asker, claimer) = (waiting.asker, Claimer::Ask(waiting.asker.token));
        let (expected, producer, write) = match &*waiting.ask {
            StreamAsk::Commit { record, expected, number } => {
                let event = event_of(record).unwrap_or_default();
                let (records, commit) = (Records::from_payloads([event]), Some(record.clone()));
                (*expected, *number, Write { records, commit, producer: *number })
            }
            StreamAsk::PublishIf { records, expected } => {
                (Some(*expected), None, Write { records: records.clone(), commit: None, producer: None })
            }
            _ => return None,
        };
        let mut numbered: Option<Numbered> = None;
        if producer.is_some() {
            let content = match &write.commit {
                Some(record) => Content::Commit(record),
                None => Content::Records(&write.records),
            };
            let held = (self.start(cx.store.as_deref()), self.ring.end());
            match self.numbers.check((asker.core, cx.now), Sent { claimer, producer, content }, held) {
                Numbering::Append(sent) => numbered = Some(sent),
                Numbering::Read(start, end) => {
                    self.read_numbers(start, end, cx);
                    return Some(waiting);
                }
                Numbering::Wait => {
                    self.logged.iter_mut().for_each(|logged| logged.full = true);
                    return Some(waiting);
                }
                Numbering::WithFirst => return None,
                Numbering::Settled(base) => {
                    self.send(asker.core, claimer.written(base, true), cx.out);
                    return None;
                }
                Numbering::Refused(why) => {
                    self.send(asker.core, claimer.refused(why), cx.out);
                    return None;
                }
            }
        }
        let waiting = match expected {
            Some(expected) => self.decide(expected, waiting, cx)?,
            None => waiting,
        };
        self.claim_asked(waiting, write, numbered, cx)
    }

    /// Gives the write back when the next offset is the one it expects; else answers it, when that is settled.
    fn decide(&mut self, expected: Offset, waiting: Waiting, cx: &mut ShardCx<'_>) -> Option<Waiting> {
        let (logged, store) = self.logged.as_ref().zip(cx.store.as_deref())?;
        if logged.is_stopped() {
            let why = Reply::Refused(AskRefused::NotWritten(NotWritten::Stopped));
            self.answer(waiting.asker, why, cx.out);
            return None;
        }
        let tail = logged.next(store);
        if expected == tail {
            return Some(waiting);
        }
        let settled = self.ring.end() >= tail;
        let asked = self.asked.as_mut().filter(|asked| !settled && asked.has_room_for(&waiting.ask));
        match asked {
            Some(asked) => {
                asked.waiting_bytes += waiting.ask.held_bytes();
                asked.mismatched.push_back((tail, waiting));
            }
            None if settled => self.answer(waiting.asker, Reply::OffsetMismatch { tail }, cx.out),
            None => self.answer(waiting.asker, Reply::Refused(AskRefused::Overloaded), cx.out),
        }
        None
    }

    fn claim_asked(
        &mut self,
        waiting: Waiting,
        write: Write,
        numbered: Option<Numbered>,
        cx: &mut ShardCx<'_>,
    ) -> Option<Waiting> {
        let (logged, store) = self.logged.as_mut().zip(cx.store.as_deref_mut())?;
        let asker = waiting.asker;
        let claimer = Claimer::Ask(asker.token);
        let when = (self.generation, cx.unix_ms, cx.now);
        match logged.write(store, (asker.core, claimer), write, when) {
            Ok(base) => {
                if let Some(numbered) = numbered {
                    self.numbers.claimed(&numbered, base);
                }
            }
            Err((NoClaim::Full, _)) => return Some(waiting),
            Err((NoClaim::Gone, _)) => self.give_back(asker, waiting.ask, cx.out),
            Err((NoClaim::Refused(why), _)) => self.send(asker.core, claimer.refused(why), cx.out),
        }
        None
    }

    /// Writes that wait for room are tried, in their order.
    pub(super) fn ask_parked(&mut self, cx: &mut ShardCx<'_>) {
        let is_full = |shard: &Shard| shard.logged.as_ref().is_none_or(|logged| logged.full);
        while !is_full(self)
            && let Some(waiting) = self.asked.as_mut().and_then(|asked| asked.pop_parked(|_| true))
        {
            if let Some(waiting) = self.try_write(waiting, cx)
                && let Some(asked) = &mut self.asked
            {
                asked.waiting_bytes += waiting.ask.held_bytes();
                asked.parked.push_front(waiting);
                return;
            }
        }
    }

    /// Conditions that did not hold are answered as far as what they met is settled.
    pub(super) fn tell_mismatched(&mut self, cx: &mut ShardCx<'_>) {
        let end = self.ring.end();
        while let Some((tail, waiting)) =
            self.asked.as_mut().and_then(|asked| asked.pop_mismatched(|(tail, _)| *tail <= end))
        {
            self.answer(waiting.asker, Reply::OffsetMismatch { tail }, cx.out);
        }
    }

    /// What has waited for room, or for what it met to be settled, for at least `wait` is refused: nothing of it was written.
    pub fn expire_asked(&mut self, now: Tick, wait: Duration, out: &mut Outputs) {
        let Some(asked) = &mut self.asked else { return };
        asked.state.rest(now);
        let late = |waiting: &Waiting| waiting.since + wait <= now;
        let mut expired = Vec::new();
        while let Some(waiting) = asked.pop_parked(|waiting| late(waiting)) {
            expired.push(waiting.asker);
        }
        while let Some((_, waiting)) = asked.pop_mismatched(|(_, waiting)| late(waiting)) {
            expired.push(waiting.asker);
        }
        for asker in expired {
            self.answer(asker, Reply::Refused(AskRefused::Overloaded), out);
        }
    }

    /// Nothing is written any more: what waits to be is refused.
    pub(super) fn refuse_waiting(&mut self, why: NotWritten, out: &mut Outputs) {
        let Some(asked) = &mut self.asked else { return };
        for (asker, _) in asked.take_waiting() {
            self.answer(asker, Reply::Refused(AskRefused::NotWritten(why)), out);
        }
    }

    /// The shard ends: what is not claimed is asked again elsewhere, or is of no use any more.
    pub(super) fn end_asked(&mut self, why: Ending, out: &mut Outputs) {
        let Some(mut asked) = self.asked.take() else { return };
        let reads = std::mem::take(&mut asked.reads).into_iter().map(|(_, read)| (read.asker, read.ask));
        for (asker, ask) in asked.take_waiting().chain(reads) {
            match why {
                Ending::Moved => self.give_back(asker, ask, out),
                Ending::Deleted => {
                    let reply = Reply::Refused(AskRefused::NotWritten(NotWritten::Deleted));
                    self.answer(asker, reply, out);
                }
            }
        }
    }

    /// Begins a read, or refuses it when there are too many.
    fn begin_read(&mut self, reading: Reading, step: Step, cx: &mut ShardCx<'_>) {
        let Some(asked) = self.asked.as_mut().filter(|asked| asked.reads.len() < READS_MAX) else {
            return self.answer(reading.asker, Reply::Refused(AskRefused::Overloaded), cx.out);
        };
        let slot = asked.reads.insert(reading);
        self.go_on(slot, step, cx);
    }

    fn go_on(&mut self, slot: usize, step: Step, cx: &mut ShardCx<'_>) {
        match step {
            Step::Read { from, until, bytes_max } => {
                self.read_page(PageReader::Asked { slot }, (from, until), bytes_max, cx);
            }
            Step::Done(reply) => {
                let reading = self.asked.as_mut().and_then(|asked| asked.reads.try_remove(slot));
                if let Some(reading) = reading {
                    self.answer(reading.asker, reply, cx.out);
                }
            }
        }
    }

    fn read_page(
        &mut self,
        reader: PageReader,
        (from, until): (Offset, Offset),
        bytes_max: usize,
        cx: &mut ShardCx<'_>,
    ) {
        let life = self.asked.as_ref().map_or(0, |asked| asked.life);
        if let Some((logged, store)) = self.logged.as_ref().zip(cx.store.as_deref_mut()) {
            store.read(logged.at(), PageFor { shard: self.id, reader, from, life }, until, bytes_max);
        }
    }

    /// A page that a request needs was read, or cannot be. Afterwards `flush` must run.
    pub fn asked_page(&mut self, page: PageFor, read: Result<&[Batch], PageLoss>, cx: &mut ShardCx<'_>) {
        let end = self.ring.end();
        let Some(asked) = self.asked.as_mut().filter(|asked| asked.life == page.life) else { return };
        let slot = match page.reader {
            PageReader::Asked { slot } => slot,
            _ => {
                if let Some((from, until)) = asked.state.take_page(read, end, cx.now) {
                    self.read_page(PageReader::State, (from, until), state::PAGE_BYTES, cx);
                }
                return;
            }
        };
        let Some(reading) = asked.reads.get_mut(slot) else { return };
        let step = match &mut reading.what {
            What::Page(page) => page.take(read),
            What::Time(time) => time.take(read, end),
            What::State(key) => key.take(read, &mut asked.state),
        };
        self.go_on(slot, step, cx);
    }

    fn ask_state(&mut self, asker: Asker, ask: Box<StreamAsk>, cx: &mut ShardCx<'_>) {
        let held = (self.start(cx.store.as_deref()), self.ring.end());
        let (Some(asked), StreamAsk::State { key }) = (&mut self.asked, &*ask) else { return };
        match asked.state.get(key, held, cx.now) {
            Looked::Done(reply) => self.answer(asker, reply, cx.out),
            // It is asked again in a moment.
            Looked::Wait => self.give_back(asker, ask, cx.out),
            Looked::Begin { from, until } => {
                self.read_page(PageReader::State, (from, until), state::PAGE_BYTES, cx);
                self.give_back(asker, ask, cx.out);
            }
            Looked::InLog(read) => {
                let step = read.step();
                self.begin_read(Reading { asker, ask, what: What::State(read) }, step, cx);
            }
        }
    }

    fn ask_page(&mut self, asker: Asker, ask: Box<StreamAsk>, cx: &mut ShardCx<'_>) {
        let StreamAsk::Read { from, end, records_max, bytes_max } = &*ask else { return };
        let (start, held_end) = (self.start(cx.store.as_deref()), self.ring.end());
        if *from < start || *from > held_end {
            let too_old = *from < start;
            let available = if too_old { start } else { held_end };
            let reply = Reply::Cursor { too_old, requested: *from, available };
            return self.answer(asker, reply, cx.out);
        }
        let from = self.logged.as_ref().and_then(|logged| logged.behind_gap(*from)).unwrap_or(*from);
        let until = end.map_or(held_end, |end| end.min(held_end));
        let page = PageRead::new((from, until), *records_max, *bytes_max);
        match page.step() {
            Step::Done(reply) => self.answer(asker, reply, cx.out),
            step => self.begin_read(Reading { asker, ask, what: What::Page(page) }, step, cx),
        }
    }

    fn ask_time(&mut self, asker: Asker, ask: Box<StreamAsk>, cx: &mut ShardCx<'_>) {
        let StreamAsk::TimeOf { at_ms } = &*ask else { return };
        let log =
            self.logged.as_ref().zip(cx.store.as_deref()).and_then(|(logged, store)| store.log(logged.at()));
        let Some(log) = log else { return };
        let time = TimeRead::new(*at_ms, log, self.ring.end());
        match time.step() {
            Step::Done(reply) => self.answer(asker, reply, cx.out),
            step => self.begin_read(Reading { asker, ask, what: What::Time(time) }, step, cx),
        }
    }

    fn give_back(&self, asker: Asker, ask: Box<StreamAsk>, out: &mut Outputs) {
        self.send(asker.core, ShardOutput::AskBack { token: asker.token, ask: Ask::Stream(ask) }, out);
    }

    fn answer(&self, asker: Asker, reply: Reply, out: &mut Outputs) {
        let what = ShardOutput::Answered { token: asker.token, reply };
        out.push((asker.core, FromShard { shard: self.id, generation: self.generation, what }));
    }
}
