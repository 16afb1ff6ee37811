//! The consumer groups of one shard of a durable stream, with their log. Sans-io.
//! Scope: one per shard whose groups were asked for, beside its [`super::Shard`] and on the same core. Owns: the machine of
//! the groups, its log, the polls that wait and the records being read for them.
//! Invariants: an answer leaves when every change it tells of is settled in the log of groups; what is handed out was
//! settled in the log of the stream; while changes find no room in the log nothing else is taken on.
//! Not here: what a request does (`projection::group`), who asks (`turn::groups`).

mod ahead;
mod compact;
mod fetch;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use felix_logstore::record::Batch;
use felix_runtime::clock::Tick;
use felix_wire::id::{CoreId, Generation, LeaseId, Offset};
use slab::Slab;

use super::ShardCx;
use super::ask::{Ask, AskRefused, AskToken, Asker, GroupAsk, GroupWhat, Parked, Reply};
use super::journal::{Journal, NoClaim};
use super::mail::{Doubt, Ending, FromShard, NotWritten, PageLoss, ShardOutput};
use crate::projection::group::{Draft, GroupOutput, GroupRefused, GroupSettings, GroupsCore, Poll, PollId};
use crate::snapshot::{LogRole, ShardId};
use crate::store::{LogAt, Store};
use ahead::Ahead;
use fetch::Fetching;

/// Dead letters in one answer.
const DEAD_LETTERS_MAX: usize = 65_536;

/// A poll that is not answered.
#[derive(Debug)]
struct OpenPoll {
    asker: Asker,
    group: Box<str>,
}

/// Where the records of a shard are, and which there are.
#[derive(Debug, Clone, Copy)]
pub struct RecordsAt {
    pub at: LogAt,
    pub start: Offset,
    /// One past the last that can be read.
    pub end: Offset,
}

/// See the module.
#[derive(Debug)]
pub struct GroupShard {
    id: ShardId,
    generation: Generation,
    life: u64,
    groups: GroupsCore,
    log: Journal,
    settled_end: Offset,
    records: LogAt,
    polls: BTreeMap<PollId, OpenPoll>,
    poll_of: BTreeMap<(CoreId, AskToken), PollId>,
    next_poll: u64,
    fetches: Slab<Fetching>,
    ahead: Ahead,
    /// Changes that found no room in the log yet, and answers that wait for them.
    drafts: Vec<Draft>,
    answers: Vec<(Asker, Reply)>,
    outputs: Vec<GroupOutput>,
    broken: Option<Arc<str>>,
}

impl GroupShard {
    /// The groups of a shard over their log; none while something of it is in flight. `life` is another one each time.
    /// Afterwards `read_on`.
    pub fn open(
        (id, generation, life): (ShardId, Generation, u64),
        settings: GroupSettings,
        store: &Store,
        log: LogAt,
        records: RecordsAt,
    ) -> Option<GroupShard> {
        let (log, _) = Journal::open((id, generation, life), LogRole::Groups, store, log)?;
        let mut groups = GroupsCore::new(settings, records.start, records.end);
        if !log.is_replaying() {
            groups.replayed();
        }
        Some(GroupShard {
            id,
            generation,
            life,
            groups,
            settled_end: log.found_end(),
            log,
            records: records.at,
            polls: BTreeMap::new(),
            poll_of: BTreeMap::new(),
            next_poll: 0,
            fetches: Slab::new(),
            ahead: Ahead::default(),
            drafts: Vec::new(),
            answers: Vec::new(),
            outputs: Vec::new(),
            broken: None,
        })
    }

    /// The generation it serves.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// What tells it from earlier ones over the same log.
    pub fn life(&self) -> u64 {
        self.life
    }

    /// Where the log of the groups is.
    pub fn log(&self) -> LogAt {
        self.log.at()
    }

    /// How many groups there are, and how many polls wait.
    pub fn counts(&self) -> (usize, usize) {
        (self.groups.len(), self.polls.len())
    }

    /// Whether they are not served because of a log that cannot be read, or takes no more.
    pub fn is_unread(&self) -> bool {
        self.broken.is_some() || self.log.is_unread()
    }

    /// Whether nothing waits.
    #[cfg(any(test, feature = "sim"))]
    pub fn is_idle(&self) -> bool {
        self.polls.is_empty() && self.drafts.is_empty() && self.answers.is_empty() && self.log.is_idle()
    }

    /// Has the first page of its log read.
    pub fn read_on(&self, cx: &mut ShardCx<'_>) {
        self.log.read_on(cx);
    }

    /// A request.
    pub fn ask(&mut self, asker: Asker, ask: GroupAsk, cx: &mut ShardCx<'_>) {
        if let Some(why) = &self.broken {
            let reply = Reply::Refused(AskRefused::Broken(Arc::clone(why)));
            return self.answer(asker, reply, cx);
        }
        let ask = Ask::Group(Box::new(ask));
        if self.log.is_replaying() {
            return self.give_back(asker, ask, cx);
        }
        if self.log.is_backed_up() || !self.drafts.is_empty() {
            return self.log.park(asker, ask, cx);
        }
        self.carry_out(asker, ask, cx);
        self.flush(cx);
    }

    fn carry_out(&mut self, asker: Asker, ask: Ask, cx: &mut ShardCx<'_>) {
        let Ask::Group(ask) = ask else { return };
        let GroupAsk { group, lease, what } = *ask;
        if let Err(why) = self.groups.check_lease(&group, lease) {
            return self.answers.push((asker, Reply::Refused(AskRefused::Group(why))));
        }
        let (now, out) = (cx.now, &mut self.outputs);
        let done = |done: Result<(), GroupRefused>| done.map(|()| Reply::Written);
        let reply = match what {
            GroupWhat::Poll { .. } => return self.poll(asker, (group, lease), what, cx),
            GroupWhat::Ack { offset, count } => done(self.groups.ack(&group, (offset, count), now, out)),
            GroupWhat::Nack { offset, attempts, delay } => {
                done(self.groups.nack(&group, (offset, attempts), delay, now, out))
            }
            GroupWhat::Extend { offset, attempts, by } => {
                self.groups.extend(&group, (offset, attempts), by, now, out).map(Reply::Extended)
            }
            GroupWhat::DeadLetter { offset } => done(self.groups.dead_letter(&group, offset, now, out)),
            GroupWhat::DeadLetters => {
                self.groups.dead_letters(&group, DEAD_LETTERS_MAX).map(Reply::DeadLetters)
            }
            GroupWhat::Discard { offset } => done(self.groups.discard(&group, offset, now, out)),
            GroupWhat::Redrive { offset } => done(self.groups.redrive(&group, offset, now, out)),
            GroupWhat::Seek { to, if_new } => self
                .groups
                .seek(&group, (to, if_new), now, out)
                .map(|(offset, moved)| Reply::Position { offset, moved }),
            GroupWhat::Describe => self.groups.describe(&group).map(Reply::Group),
            GroupWhat::Delete => self.groups.delete(&group, now, out).map(Reply::Existed),
        };
        let reply = reply.unwrap_or_else(|why| Reply::Refused(AskRefused::Group(why)));
        self.answers.push((asker, reply));
    }

    fn poll(
        &mut self,
        asker: Asker,
        (group, lease): (Box<str>, Option<LeaseId>),
        what: GroupWhat,
        cx: &mut ShardCx<'_>,
    ) {
        let GroupWhat::Poll { connection, max_records, wait, visibility, member, reclaim } = what else {
            return;
        };
        let id = PollId(self.next_poll);
        self.next_poll += 1;
        let wait_until = (wait > Duration::ZERO).then(|| cx.now + wait);
        let poll = Poll { id, connection, max_records, visibility, wait_until, member, reclaim, lease };
        match self.groups.poll(&group, poll, cx.now, &mut self.outputs) {
            Ok(()) => {
                self.polls.insert(id, OpenPoll { asker, group });
                self.poll_of.insert((asker.core, asker.token), id);
            }
            Err(why) => self.answers.push((asker, Reply::Refused(AskRefused::Group(why)))),
        }
    }

    /// Nobody waits for a poll any more: it is answered without records, and claims none.
    pub fn cancel(&mut self, asker: Asker, cx: &mut ShardCx<'_>) {
        let Some(poll) = self.poll_of.get(&(asker.core, asker.token)).copied() else {
            if self.log.take_parked_of(asker).is_some() {
                self.answer(asker, Reply::Polled(Vec::new()), cx);
            }
            return;
        };
        self.groups.cancel(poll, cx.now, &mut self.outputs);
        self.end_poll(poll, Reply::Polled(Vec::new()));
        self.flush(cx);
    }

    /// All polls are answered without records.
    pub fn cancel_all(&mut self, cx: &mut ShardCx<'_>) {
        let polls: Vec<PollId> = self.polls.keys().copied().collect();
        for poll in polls {
            self.groups.cancel(poll, cx.now, &mut self.outputs);
            self.end_poll(poll, Reply::Polled(Vec::new()));
        }
        self.flush(cx);
    }

    fn end_poll(&mut self, poll: PollId, reply: Reply) {
        let Some(OpenPoll { asker, .. }) = self.polls.remove(&poll) else { return };
        self.poll_of.remove(&(asker.core, asker.token));
        self.answers.push((asker, reply));
    }

    /// Starts what the groups want, writes what changed, and owes the answers.
    fn flush(&mut self, cx: &mut ShardCx<'_>) {
        // What was read ahead answers a poll at once, which may let another one go.
        while !self.outputs.is_empty() {
            for output in std::mem::take(&mut self.outputs) {
                match output {
                    GroupOutput::Fetch(fetch) => self.fetch(fetch, cx),
                    GroupOutput::Empty(poll) => self.end_poll(poll, Reply::Polled(Vec::new())),
                }
            }
        }
        self.drafts.extend(self.groups.take_drafts());
        if !self.drafts.is_empty() && !self.write_drafts(cx) {
            return;
        }
        let after = self.groups.claimed_end();
        for (asker, reply) in std::mem::take(&mut self.answers) {
            self.log.owe((after, self.settled_end), asker, reply, cx);
        }
    }

    /// False when the log did not take them.
    fn write_drafts(&mut self, cx: &mut ShardCx<'_>) -> bool {
        let records: Vec<Vec<u8>> = self
            .drafts
            .iter()
            .map(|draft| {
                let mut record = Vec::new();
                draft.encode(&mut record);
                record
            })
            .collect();
        let records: Vec<&[u8]> = records.iter().map(Vec::as_slice).collect();
        match self.log.append_all(&records, cx) {
            Ok(base) => {
                self.groups.claimed(Offset(base.0 + records.len() as u64));
                self.drafts.clear();
                true
            }
            Err(NoClaim::Full) => false,
            // What changed is written when the log takes it again, or forgotten with it.
            Err(NoClaim::Gone) => self.doubt(Doubt::Moved, cx),
            Err(NoClaim::Refused(NotWritten::Stopped)) => self.doubt(Doubt::LogFailed, cx),
            Err(NoClaim::Refused(_)) => self.doubt(Doubt::Unconfirmed, cx),
        }
    }

    fn doubt(&mut self, why: Doubt, cx: &mut ShardCx<'_>) -> bool {
        for (asker, _) in std::mem::take(&mut self.answers) {
            self.answer(asker, Reply::Refused(AskRefused::Unknown(why)), cx);
        }
        false
    }

    /// A page of its log, from the start on.
    pub fn replay_page(&mut self, read: Result<&[Batch], &PageLoss>, cx: &mut ShardCx<'_>) {
        let batches = match read {
            Ok(batches) => batches,
            Err(PageLoss::TooOld(start)) => {
                self.log.skip_to(*start);
                return self.went_on(cx);
            }
            Err(PageLoss::Damaged { from, next }) => {
                return self.break_down(format!("offsets {from} to {next} of the groups' log are damaged"));
            }
            Err(PageLoss::Unreadable) => {
                let pause = self.log.read_failed(cx.now);
                tracing::error!(?pause, "groups are not served: their log is read again after a pause");
                return;
            }
        };
        for batch in batches {
            if let Err(error) = self.groups.replay(batch) {
                return self.break_down(error.to_string());
            }
        }
        self.log.took_page(batches);
        self.went_on(cx);
    }

    fn went_on(&mut self, cx: &mut ShardCx<'_>) {
        match self.log.is_replaying() {
            true => self.log.read_on(cx),
            false => self.groups.replayed(),
        }
    }

    fn break_down(&mut self, why: String) {
        tracing::error!(why, "the consumer groups of a shard are not served");
        self.broken.get_or_insert(why.into());
    }

    /// The log of the groups has settled everything below `end`.
    pub fn settled(&mut self, end: Offset, cx: &mut ShardCx<'_>) {
        self.settled_end = self.settled_end.max(end);
        self.log.settled(end, cx);
    }

    /// It has room again.
    pub fn log_has_room(&mut self, cx: &mut ShardCx<'_>) {
        self.log.has_room();
        self.go_on(cx);
    }

    /// What waits for room is tried.
    fn go_on(&mut self, cx: &mut ShardCx<'_>) {
        self.flush(cx);
        while self.drafts.is_empty()
            && let Some(Parked { asker, ask, .. }) = self.log.unpark()
        {
            self.carry_out(asker, ask, cx);
            self.flush(cx);
        }
    }

    /// It takes no more: nothing of the groups is served until the next start.
    pub fn log_stopped(&mut self, cx: &mut ShardCx<'_>) {
        self.log.stop(cx);
        self.doubt(Doubt::LogFailed, cx);
        self.broken.get_or_insert("the groups' log has failed and takes no writes".into());
        // A poll that was not answered has claimed nothing.
        self.poll_of.clear();
        for (_, OpenPoll { asker, .. }) in std::mem::take(&mut self.polls) {
            self.answer(asker, Reply::Polled(Vec::new()), cx);
        }
    }

    /// Records up to `end` can be read.
    pub fn shard_ends(&mut self, end: Offset, cx: &mut ShardCx<'_>) {
        if !self.log.is_replaying() && self.drafts.is_empty() {
            self.groups.shard_ends(end, cx.now, &mut self.outputs);
            self.flush(cx);
        }
    }

    /// The records begin at `start` now.
    pub fn shard_starts(&mut self, start: Offset, cx: &mut ShardCx<'_>) {
        self.groups.shard_starts(start, cx.now, &mut self.outputs);
        self.flush(cx);
    }

    /// When `handle_deadline` wants to be called.
    pub fn next_deadline(&self) -> Option<Tick> {
        self.groups.next_deadline().filter(|_| !self.log.is_replaying() && self.drafts.is_empty())
    }

    /// Claims, delays and waits whose time has come end.
    pub fn handle_deadline(&mut self, cx: &mut ShardCx<'_>) {
        if self.next_deadline().is_some_and(|due| due <= cx.now) {
            self.groups.tick(cx.now, &mut self.outputs);
            self.flush(cx);
        }
    }

    /// What has waited too long: for room `room`, for the disk `confirm`. `end`: where the records end.
    pub fn handle_timeout(
        &mut self,
        (room, confirm): (Duration, Duration),
        end: Offset,
        cx: &mut ShardCx<'_>,
    ) {
        self.ahead.rest();
        self.log.retry_read(cx);
        self.log.expire_parked(room, cx);
        self.log.give_up_late(confirm, cx);
        if self.broken.is_none() && !self.log.is_replaying() {
            if !self.drafts.is_empty() && !self.log.is_full() {
                self.go_on(cx);
            }
            self.shard_ends(end, cx);
            self.groups.rest(cx.now);
        }
    }

    /// Answers everything; it is dropped afterwards.
    pub fn close(&mut self, why: Ending, cx: &mut ShardCx<'_>) {
        let answer = match why {
            Ending::Deleted => AskRefused::NotWritten(NotWritten::Deleted),
            Ending::Moved => AskRefused::Unknown(Doubt::Moved),
        };
        self.log.end(&answer, cx);
        for (asker, _) in std::mem::take(&mut self.answers) {
            self.answer(asker, Reply::Refused(answer.clone()), cx);
        }
        // A poll that was not answered has claimed nothing.
        for (_, OpenPoll { asker, .. }) in std::mem::take(&mut self.polls) {
            self.answer(asker, Reply::Polled(Vec::new()), cx);
        }
        for Parked { asker, ask, .. } in self.log.take_parked() {
            self.give_back(asker, ask, cx);
        }
    }

    fn give_back(&self, asker: Asker, ask: Ask, cx: &mut ShardCx<'_>) {
        self.send(asker, ShardOutput::AskBack { token: asker.token, ask }, cx);
    }

    fn answer(&self, asker: Asker, reply: Reply, cx: &mut ShardCx<'_>) {
        self.send(asker, ShardOutput::Answered { token: asker.token, reply }, cx);
    }

    fn send(&self, asker: Asker, what: ShardOutput, cx: &mut ShardCx<'_>) {
        cx.out.push((asker.core, FromShard { shard: self.id, generation: self.generation, what }));
    }
}
