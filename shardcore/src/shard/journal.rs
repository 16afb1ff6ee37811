//! A log that a machine of a shard is kept in: reading it at the start, claiming, answers that wait for what is settled.
//! Sans-io. Scope: one per machine and log. Owns: the answers owed, the requests that wait for room.
//! Invariants: an answer leaves only when the log has settled what it tells of; answers leave in the order in which they
//! were owed; what waits is bounded in number and bytes; a read that fails is tried again, with longer and longer pauses.
//! Not here: making it shorter (`shorten`), what records mean (`projection`), the bytes on their way to the disk (`felix_logstore`).

pub mod shorten;

use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::time::Duration;

use felix_logstore::engine::{Engine, LogId};
use felix_logstore::log::{AppendMeta, ClaimError};
use felix_logstore::record::{Batch, BatchKind};
use felix_runtime::clock::Tick;
use felix_runtime::planted::{self, Defect};
use felix_wire::id::{Generation, Offset, ProducerId, Sequence};

use super::ShardCx;
use super::ask::{Ask, AskRefused, Asker, Parked, Reply};
use super::mail::{Doubt, FromShard, NotWritten, ShardOutput};
use crate::snapshot::{LogRole, ShardId};
use crate::store::{LogAt, PageFor, PageReader, Store};

/// Bytes of a log read at once when it is read from its start.
const REPLAY_PAGE_BYTES: usize = 4 << 20;
/// Requests that wait for room in the log, and their bytes.
const PARKED_MAX: usize = 4_096;
const PARKED_BYTES_MAX: usize = 32 << 20;

/// Before a page that could not be read is asked for again; each time twice as long, up to
const READ_PAUSE: Duration = Duration::from_millis(250);
const READ_PAUSE_MAX: Duration = Duration::from_secs(10);

/// Why nothing was claimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoClaim {
    /// No room for the moment; the log says when there is.
    Full,
    /// The log is not here any more.
    Gone,
    Refused(NotWritten),
}

#[derive(Debug)]
struct Owed {
    after: Offset,
    asker: Asker,
    reply: Reply,
    since: Tick,
    /// It was answered "not known": nobody waits any more.
    given_up: bool,
}

/// How far reading from the start has come.
#[derive(Debug, Clone, Copy)]
struct Replay {
    next: Offset,
    end: Offset,
    /// How often in a row the next page could not be read, and when it is asked for again.
    failed: u32,
    again: Option<Tick>,
}

/// See the module.
#[derive(Debug)]
pub struct Journal {
    shard: ShardId,
    generation: Generation,
    life: u64,
    at: LogAt,
    role: LogRole,
    replay: Option<Replay>,
    found_end: Offset,
    owed: VecDeque<Owed>,
    parked: VecDeque<Parked>,
    parked_bytes: usize,
    full: bool,
    stopped: bool,
    shortening: shorten::Shortening,
}

impl Journal {
    /// Over a log in which nothing is in flight; none while something is, and when it leaves this core. `life` is another one each time. Gives where the
    /// log begins too.
    pub fn open(
        (shard, generation, life): (ShardId, Generation, u64),
        role: LogRole,
        store: &Store,
        at: LogAt,
    ) -> Option<(Journal, Offset)> {
        let log = store.at_rest(at)?;
        let (start, end) = (log.start(), log.settled_end());
        let journal = Journal {
            shard,
            generation,
            life,
            at,
            role,
            replay: (start < end).then_some(Replay { next: start, end, failed: 0, again: None }),
            found_end: end,
            owed: VecDeque::new(),
            parked: VecDeque::new(),
            parked_bytes: 0,
            full: false,
            stopped: log.stopped().is_some(),
            shortening: shorten::Shortening::default(),
        };
        Some((journal, start))
    }

    /// Where its log is.
    pub fn at(&self) -> LogAt {
        self.at
    }

    /// Whether its log is still being read.
    pub fn is_replaying(&self) -> bool {
        self.replay.is_some()
    }

    /// One past the last offset that was read at the start.
    pub fn found_end(&self) -> Offset {
        self.found_end
    }

    /// Whether nothing waits.
    #[cfg(any(test, feature = "sim"))]
    pub fn is_idle(&self) -> bool {
        self.owed.is_empty() && self.parked.is_empty()
    }

    /// Has the next page read, while there is one.
    pub fn read_on(&self, cx: &mut ShardCx<'_>) {
        let Some((replay, store)) = self.replay.zip(cx.store.as_deref_mut()) else { return };
        let (reader, life) = (PageReader::Replay(self.role), self.life);
        let page = PageFor { shard: self.shard, reader, from: replay.next, life };
        store.read(self.at, page, replay.end, REPLAY_PAGE_BYTES);
    }

    /// The page asked for could not be read. It is asked for again after a pause, which is given: see [`Self::retry_read`].
    pub fn read_failed(&mut self, now: Tick) -> Duration {
        let Some(replay) = &mut self.replay else { return Duration::ZERO };
        let pause = READ_PAUSE.saturating_mul(1 << replay.failed.min(16)).min(READ_PAUSE_MAX);
        (replay.failed, replay.again) = (replay.failed + 1, Some(now + pause));
        pause
    }

    /// Has a page that could not be read read again, when its pause is over.
    pub fn retry_read(&mut self, cx: &mut ShardCx<'_>) {
        if let Some(replay) = &mut self.replay
            && replay.again.take_if(|again| *again <= cx.now).is_some()
        {
            self.read_on(cx);
        }
    }

    /// Whether it is not served because a page of it could not be read.
    pub fn is_unread(&self) -> bool {
        self.replay.is_some_and(|replay| replay.failed > 0)
    }

    /// A page was taken. Afterwards `read_on`, or everything was read.
    pub fn took_page(&mut self, batches: &[Batch]) {
        let Some(replay) = &mut self.replay else { return };
        replay.failed = 0;
        match batches.last() {
            Some(batch) => replay.next = batch.head().end(),
            None => replay.next = replay.end,
        }
        if replay.next >= replay.end {
            self.replay = None;
        }
    }

    /// Reading goes on at `next`: what was below is gone from the log.
    pub fn skip_to(&mut self, next: Offset) {
        if let Some(replay) = &mut self.replay {
            replay.next = replay.next.max(next);
        }
        self.replay = self.replay.filter(|replay| replay.next < replay.end);
    }

    /// Appends a record. Gives its offset; others may share its batch, unless it names a producer: that is of the batch.
    ///
    /// # Errors
    /// Nothing was appended.
    pub fn append(
        &mut self,
        producer: Option<(ProducerId, Sequence)>,
        record: &[u8],
        cx: &mut ShardCx<'_>,
    ) -> Result<Offset, NoClaim> {
        let meta = self.meta(producer, cx);
        self.write(record.len(), cx, |engine, log| engine.write(log, meta, record))
    }

    /// Appends records, one at least, as one batch. Gives the first offset.
    ///
    /// # Errors
    /// Nothing was appended.
    pub fn append_all(&mut self, records: &[&[u8]], cx: &mut ShardCx<'_>) -> Result<Offset, NoClaim> {
        let bytes = records.iter().map(|record| record.len()).sum();
        let count = u32::try_from(records.len()).ok().and_then(NonZeroU32::new);
        let Some(count) = count else { return Err(NoClaim::Refused(NotWritten::TooLarge)) };
        let (meta, unix_ms) = (self.meta(None, cx), cx.unix_ms);
        self.write(bytes, cx, |engine, log| {
            let claim = engine.claim(log, BatchKind::Data, count, bytes)?;
            let base = claim.base();
            let batch = engine.append(log, claim, meta, records.iter().map(|record| (unix_ms, *record)));
            assert!(batch.is_some(), "a log that gave a claim is there for its append");
            Ok(base)
        })
    }

    fn meta(&self, producer: Option<(ProducerId, Sequence)>, cx: &ShardCx<'_>) -> AppendMeta {
        AppendMeta { generation: self.generation, timestamp_ms: cx.unix_ms, producer }
    }

    /// Has `append` append `bytes` to the log.
    fn write(
        &mut self,
        bytes: usize,
        cx: &mut ShardCx<'_>,
        append: impl FnOnce(&mut Engine, LogId) -> Result<Offset, ClaimError>,
    ) -> Result<Offset, NoClaim> {
        if self.stopped {
            return Err(NoClaim::Refused(NotWritten::Stopped));
        }
        let Some(store) = cx.store.as_deref_mut() else { return Err(NoClaim::Gone) };
        let Some(engine) = store.engine(self.at) else { return Err(NoClaim::Gone) };
        match append(engine, self.at.log) {
            Ok(base) => {
                store.note_batch(bytes);
                self.shortening.note_append(bytes);
                Ok(base)
            }
            Err(ClaimError::NoRoom) => {
                self.full = true;
                Err(NoClaim::Full)
            }
            Err(ClaimError::Unknown) => Err(NoClaim::Gone),
            Err(ClaimError::NoSpace) => Err(NoClaim::Refused(store.why_no_space(self.at.volume))),
            Err(ClaimError::Stopped(_)) => Err(NoClaim::Refused(NotWritten::Stopped)),
            Err(ClaimError::TooLarge) => Err(NoClaim::Refused(NotWritten::TooLarge)),
        }
    }

    /// Answers when everything below `after` is settled; `settled` is what is now.
    pub fn owe(
        &mut self,
        (after, settled): (Offset, Offset),
        asker: Asker,
        reply: Reply,
        cx: &mut ShardCx<'_>,
    ) {
        if after <= settled || planted::is(Defect::AnswerBeforeSettled) {
            return self.answer(asker, reply, cx);
        }
        if self.stopped {
            // It will never be settled.
            return self.answer(asker, Reply::Refused(AskRefused::Unknown(Doubt::LogFailed)), cx);
        }
        self.owed.push_back(Owed { after, asker, reply, since: cx.now, given_up: false });
    }

    /// Everything below `end` is settled: what was owed until then is answered.
    pub fn settled(&mut self, end: Offset, cx: &mut ShardCx<'_>) {
        while let Some(owed) = self.owed.pop_front_if(|owed| owed.after <= end) {
            if !owed.given_up {
                self.answer(owed.asker, owed.reply, cx);
            }
        }
    }

    /// What the disk has not confirmed for `wait` is answered "not known".
    pub fn give_up_late(&mut self, wait: Duration, cx: &mut ShardCx<'_>) {
        let mut late = Vec::new();
        for owed in self.owed.iter_mut().take_while(|owed| owed.since + wait <= cx.now) {
            if !std::mem::replace(&mut owed.given_up, true) {
                late.push(owed.asker);
            }
        }
        for asker in late {
            self.answer(asker, Reply::Refused(AskRefused::Unknown(Doubt::Unconfirmed)), cx);
        }
    }

    /// Nothing more of what is claimed will be settled: it is answered with `reply`.
    pub fn end(&mut self, reply: &AskRefused, cx: &mut ShardCx<'_>) {
        for owed in std::mem::take(&mut self.owed).into_iter().filter(|owed| !owed.given_up) {
            self.answer(owed.asker, Reply::Refused(reply.clone()), cx);
        }
    }

    /// The log takes no more.
    pub fn stop(&mut self, cx: &mut ShardCx<'_>) {
        self.stopped = true;
        self.end(&AskRefused::Unknown(Doubt::LogFailed), cx);
        for parked in self.take_parked() {
            let reply = Reply::Refused(AskRefused::NotWritten(NotWritten::Stopped));
            self.answer(parked.asker, reply, cx);
        }
    }

    /// Whether it waits to be told of room.
    pub fn is_full(&self) -> bool {
        self.full
    }

    /// Whether writes have to wait for those before them.
    pub fn is_backed_up(&self) -> bool {
        self.full || !self.parked.is_empty()
    }

    /// A write waits until there is room. It is refused when too many do.
    pub fn park(&mut self, asker: Asker, ask: Ask, cx: &mut ShardCx<'_>) {
        let bytes = ask.bytes();
        if self.parked.len() >= PARKED_MAX || self.parked_bytes + bytes > PARKED_BYTES_MAX {
            return self.answer(asker, Reply::Refused(AskRefused::Overloaded), cx);
        }
        self.parked_bytes += bytes;
        self.parked.push_back(Parked { asker, ask, since: cx.now });
    }

    /// There is room again: what waited may be tried, one after the other, while it finds room.
    pub fn has_room(&mut self) {
        self.full = false;
    }

    /// The next write that may be tried.
    pub fn unpark(&mut self) -> Option<Parked> {
        let parked = if self.full { None } else { self.parked.pop_front() }?;
        self.parked_bytes -= parked.ask.bytes();
        Some(parked)
    }

    /// It found no room: it stays first.
    pub fn park_first(&mut self, parked: Parked) {
        self.parked_bytes += parked.ask.bytes();
        self.parked.push_front(parked);
    }

    /// Takes out a request that waits for room.
    pub fn take_parked_of(&mut self, asker: Asker) -> Option<Parked> {
        let at = self.parked.iter().position(|parked| parked.asker == asker)?;
        let parked = self.parked.remove(at)?;
        self.parked_bytes -= parked.ask.bytes();
        Some(parked)
    }

    /// Writes that have waited for room for `wait` are refused.
    pub fn expire_parked(&mut self, wait: Duration, cx: &mut ShardCx<'_>) {
        while let Some(parked) = self.parked.pop_front_if(|parked| parked.since + wait <= cx.now) {
            self.parked_bytes -= parked.ask.bytes();
            self.answer(parked.asker, Reply::Refused(AskRefused::Overloaded), cx);
        }
    }

    /// All that wait for room.
    pub fn take_parked(&mut self) -> VecDeque<Parked> {
        self.parked_bytes = 0;
        std::mem::take(&mut self.parked)
    }

    fn answer(&self, asker: Asker, reply: Reply, cx: &mut ShardCx<'_>) {
        let what = ShardOutput::Answered { token: asker.token, reply };
        cx.out.push((asker.core, FromShard { shard: self.shard, generation: self.generation, what }));
    }
}
