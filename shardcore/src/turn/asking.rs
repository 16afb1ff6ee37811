//! Requests on their way from a session to the shard that carries them out, and their answers back. Scope: functions of a
//! core. Owns: nothing beside the core's table of unanswered requests.
//! Invariants: a request is answered once, from what its shard said, or refused with nothing done; how many are
//! unanswered is bounded, with their bytes, so messages between cores are too.
//! Not here: what a request does (`shard::cache`), how an answer is written (`session::cache`).

use std::mem;

use felix_runtime::clock::Tick;
use felix_runtime::quic::{ConnKey, StreamId};
use felix_wire::id::{CoreId, Generation};

use super::core::Core;
use super::counters::Counter;
use crate::session::AskAction;
use crate::session::answers::AnswerSlot;
use crate::session::cache::Answering;
use crate::session::refusal::Refusal;
use crate::shard::ask::{Ask, AskToken, Reply};
use crate::shard::mail::{ShardInput, ToShard};
use crate::snapshot::{Owner, ShardId};

/// A request that is not answered.
#[derive(Debug)]
pub struct AskJob {
    conn: ConnKey,
    stream: StreamId,
    slot: AnswerSlot,
    answering: Answering,
    shard: ShardId,
    bytes: usize,
    /// While its shard is not served it is asked again until then.
    deadline: Tick,
}

/// A request whose shard was not served where it was asked.
#[derive(Debug)]
pub struct AskedAgain {
    token: AskToken,
    ask: Ask,
}

impl Core {
    /// Hands a granted request to its shard.
    pub(super) fn ask(&mut self, now: Tick, conn: ConnKey, action: AskAction) {
        let AskAction { stream, place, slot, ask, answering } = action;
        let place = *place.get();
        self.counters.add(Counter::Asks, 1);
        let bytes = ask.bytes();
        let full = self.asks.len() >= self.limits.asks_max as usize
            || self.asks_bytes + bytes > self.limits.asks_bytes_max;
        if full {
            self.counters.add(Counter::AsksRefused, 1);
            let refusal = Refusal::too_many_asks();
            return self.answer_session((conn, stream), slot, &answering, Err(&refusal));
        }
        self.asks_bytes += bytes;
        let deadline = now + self.limits.publish_queue_wait;
        let job = AskJob { conn, stream, slot, answering, shard: place.shard, bytes, deadline };
        let token = AskToken(self.asks.insert(job) as u64);
        self.ask_owner(now, (place.core, place.generation), place.shard, AskedAgain { token, ask });
    }

    fn ask_owner(
        &mut self,
        now: Tick,
        (owner, generation): (CoreId, Generation),
        shard: ShardId,
        AskedAgain { token, ask }: AskedAgain,
    ) {
        let what = ShardInput::Ask { token, ask };
        self.ask_shard(now, owner, ToShard { shard, generation, what });
    }

    /// The answer of a shard.
    pub(super) fn ask_answered(&mut self, token: AskToken, reply: &Reply) {
        let Some(job) = self.take_ask(token) else { return };
        if matches!(reply, Reply::Refused(_)) {
            self.counters.add(Counter::AsksRefused, 1);
        }
        self.answer_session((job.conn, job.stream), job.slot, &job.answering, Ok(reply));
    }

    /// The client of a stream, or of all of a connection, waits for nothing any more. Only polls wait for long.
    pub(super) fn cancel_asks(&mut self, now: Tick, conn: ConnKey, stream: Option<StreamId>) {
        let of_stream = |job: &AskJob| job.conn == conn && stream.is_none_or(|stream| job.stream == stream);
        let polls = self.asks.iter().filter(|(_, job)| of_stream(job) && job.answering.is_poll());
        let polls: Vec<(u64, ShardId)> = polls.map(|(token, job)| (token as u64, job.shard)).collect();
        for (token, shard) in polls {
            if let Some(job) = self.asks.get_mut(token as usize) {
                // If it came back it is not asked again.
                job.deadline = now;
            }
            let Some(Owner::Here { core, generation }) = self.routes.owner(shard) else { continue };
            let (core, generation) = (*core, *generation);
            let what = ShardInput::Cancel { token: AskToken(token) };
            self.ask_shard(now, core, ToShard { shard, generation, what });
        }
    }

    /// A request came back with nothing done: it is asked again, where the routes say then.
    pub(super) fn ask_came_back(&mut self, token: AskToken, ask: Ask) {
        self.asks_back.push(AskedAgain { token, ask });
    }

    fn refuse_ask(&mut self, token: AskToken, refusal: &Refusal) {
        let Some(job) = self.take_ask(token) else { return };
        self.counters.add(Counter::AsksRefused, 1);
        self.answer_session((job.conn, job.stream), job.slot, &job.answering, Err(refusal));
    }

    fn take_ask(&mut self, token: AskToken) -> Option<AskJob> {
        let job = self.asks.try_remove(usize::try_from(token.0).ok()?)?;
        self.asks_bytes -= job.bytes;
        Some(job)
    }

    fn answer_session(
        &mut self,
        (conn, stream): (ConnKey, StreamId),
        slot: AnswerSlot,
        answering: &Answering,
        answer: Result<&Reply, &Refusal>,
    ) {
        let Some(session) = self.sessions.get_mut(&conn) else { return };
        session.answer_ask(stream, (slot, answering), answer);
        if self.touched.last() != Some(&(conn, stream)) {
            self.touched.push((conn, stream));
        }
    }

    /// Asks again what came back, or refuses it when its shard has not been served in time.
    pub(super) fn sweep_asks(&mut self, now: Tick) {
        for again in mem::take(&mut self.asks_back) {
            let token = again.token;
            let Some(job) = self.asks.get(token.0 as usize) else { continue };
            let (shard, late) = (job.shard, job.deadline <= now || !self.sessions.contains_key(&job.conn));
            let refusal = match self.routes.owner(shard) {
                Some(Owner::Here { core, generation }) if !late => {
                    let owner = (*core, *generation);
                    self.ask_owner(now, owner, shard, again);
                    continue;
                }
                Some(Owner::Here { .. }) => Refusal::unavailable("not_ready"),
                Some(Owner::Node { .. }) => Refusal::other_node(),
                Some(Owner::Nobody { reason }) => Refusal::unavailable(reason),
                Some(Owner::NoLog { why }) => Refusal::no_log(why),
                None if again.ask.is_of_stream() => Refusal::unknown_stream(),
                None => Refusal::unknown_cache(),
            };
            self.refuse_ask(token, &refusal);
        }
    }
}
