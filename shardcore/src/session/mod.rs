//! One connection: its streams, who they speak for, what they may have unanswered. Sans-io.
//! Scope: one per connection, on the core the connection landed on. Owns: the streams and identities of the connection.
//! Invariants: nothing but `auth` is served on a stream that has not authenticated; a stream that is held back holds back
//! no other; bytes of unfinished frames stay within the connection's bound, and one stream may always finish.
//! Not here: where requests go (`turn`), subscriptions (`projection::stream`).

pub mod acks;
pub mod answers;
mod auth;
pub mod cache;
mod frames;
mod group;
mod inspect;
mod lease;
mod log;
mod publish;
pub mod refusal;
mod request;
pub mod stream;
#[cfg(test)]
mod tests;
mod watch;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use felix_runtime::clock::Tick;
use felix_runtime::quic::{ConnKey, Dir, Quic, ReadOutcome, StreamId, VarInt};
use felix_wire::client::{Message, NotLeader, Records};
use felix_wire::frame::FrameReader;
use felix_wire::id::{CoreId, Generation, ProducerId, RequestId, Sequence};

use crate::access::{Access, Granted, Principal};
use crate::hash::HashState;
use crate::projection::cache::interest::Interest;
use crate::projection::cache::watch::WatchFrom;
use crate::projection::group::ConnectionId;
use crate::projection::producer::ProducerIds;
use crate::route::Place;
use crate::shard::ask::{Ask, Reply};
use crate::shard::mail::Start;
use crate::snapshot::{CoreLimits, Keys, Routes};
use crate::turn::counters::{CoreCounters, Counter};
use crate::turn::listing::ListQuery;
use crate::turn::tenants::{TenantSlot, Tenants};
use acks::{AckSlot, Outcome};
use answers::AnswerSlot;
use cache::{Answering, Wording, write_answer};
use refusal::Refusal;
use stream::{OUT_BYTES_MAX, Phase, Stream};

/// A frame may be incomplete this long before its rate counts, and the rate below which its stream is closed.
const TRICKLE_GRACE: Duration = Duration::from_secs(10);
const TRICKLE_BYTES_PER_S: u64 = 1_024;
/// How often incomplete frames are looked at.
const TRICKLE_CHECK: Duration = Duration::from_secs(1);
/// Violations within the window that close the connection.
const VIOLATIONS_MAX: u32 = 8;
const VIOLATIONS_WINDOW: Duration = Duration::from_secs(10);
/// A connection with no valid identity left is closed after this.
const NO_IDENTITY_GRACE: Duration = Duration::from_secs(2);
/// And after this also when it does not take the answers it is owed.
const NO_IDENTITY_MAX: Duration = Duration::from_secs(12);
/// How long a stream waits for a key set before it is refused.
const KEYS_WAIT: Duration = Duration::from_secs(5);
/// Subjects one connection may speak for over its life.
const IDENTITIES_MAX: usize = 1_024;
/// Answers that a connection may leave unread over all its streams before none of them is read on.
const UNREAD_BYTES_MAX: usize = 4 << 20;
/// Unread answers of a connection over which values are not answered with: what is in flight could be many large ones.
const UNREAD_VALUES_MAX: usize = 64 << 20;
/// Held streams of a connection that get credit of their own; the published client has 12 streams that publish.
const HELD_CREDIT_STREAMS_MAX: usize = 12;
/// Largest piece taken from QUIC at once.
const READ_BYTES_MAX: usize = 64 << 10;

/// Application close codes (client-protocol 18); the last two are ours.
pub const CLOSE_SHUTDOWN: u32 = 0;
pub const CLOSE_AUTH: u32 = 1;
pub const CLOSE_PROTOCOL: u32 = 2;

/// What a session sees of its core.
pub struct Cx<'a> {
    pub now: Tick,
    /// Seconds since 1970.
    pub now_s: u64,
    pub core: CoreId,
    pub cores: u16,
    pub draining: bool,
    pub quic: &'a mut Quic,
    pub limits: &'a CoreLimits,
    pub access: &'a mut Access,
    pub keys: &'a Keys,
    pub routes: &'a Routes,
    pub counters: &'a CoreCounters,
    pub tenants: &'a mut Tenants,
    /// Receive windows granted to authenticated connections of the core.
    pub windows_bytes: &'a mut usize,
    pub producer_ids: &'a mut ProducerIds,
    pub scratch: &'a mut String,
    pub actions: &'a mut Vec<Action>,
}

/// What a session asks of its core.
#[derive(Debug)]
pub enum Action {
    /// Settled with `Session::settle`.
    Publish(Publish),
    /// Answered with `Session::answer_ask`.
    Ask(Box<AskAction>),
    /// Answered with `Session::answer_list`.
    List(Box<ListAction>),
    /// Answered with `Session::answer`; counted in `Stream::awaiting` until then.
    Subscribe(Box<SubscribeAction>),
    /// Answered with `Session::answer`, as a subscription is.
    Watch(Box<WatchAction>),
    /// A newer key set is needed; `Session::keys_changed` follows.
    NeedKeys { tenant: Arc<str>, kid: Arc<str> },
    /// The connection is to be closed.
    Close { code: u32, reason: &'static str },
}

impl Action {
    /// Whether it is a publish without a number of the stream to the place.
    pub fn goes_with(&self, stream: StreamId, place: &Place) -> bool {
        matches!(self, Action::Publish(p) if p.producer.is_none() && p.stream == stream && p.place.get() == place)
    }

    /// The publish, if it is one.
    pub fn into_publish(self) -> Option<Publish> {
        match self {
            Action::Publish(publish) => Some(publish),
            _ => None,
        }
    }
}

/// A granted publish.
#[derive(Debug)]
pub struct Publish {
    pub stream: StreamId,
    pub tenant: TenantSlot,
    pub place: Granted<Place>,
    pub records: Records,
    pub producer: Option<(ProducerId, Sequence)>,
    pub ack: Option<AckSlot>,
}

/// A granted request that a shard carries out.
#[derive(Debug)]
pub struct AskAction {
    pub stream: StreamId,
    pub place: Granted<Place>,
    pub slot: AnswerSlot,
    pub ask: Ask,
    pub answering: Answering,
}

/// A question about the subscriptions of all cores.
#[derive(Debug)]
pub struct ListAction {
    pub stream: StreamId,
    pub slot: AnswerSlot,
    pub request_id: RequestId,
    pub query: ListQuery,
}

/// A granted subscription.
#[derive(Debug)]
pub struct SubscribeAction {
    pub stream: StreamId,
    pub slot: AnswerSlot,
    pub place: Granted<Place>,
    pub start: Start,
    /// Events carry offsets.
    pub offsets: bool,
    /// The client is told of offsets that hold no record.
    pub skips: bool,
    pub queue_frames: Option<u32>,
    pub identity: usize,
    /// What the client reads at the end of a subscription.
    pub reads_moved: bool,
    pub reads_deleted: bool,
    pub reads_lagged: bool,
    pub reads_codes: bool,
}

/// A granted watch.
#[derive(Debug)]
pub struct WatchAction {
    pub stream: StreamId,
    pub slot: AnswerSlot,
    pub place: Granted<Place>,
    pub interest: Interest,
    pub from: WatchFrom,
    pub identity: usize,
    /// What the client reads at the end of a watch.
    pub reads_moved: bool,
    pub reads_codes: bool,
}

/// Somebody a stream of the connection speaks for.
#[derive(Debug)]
struct Identity {
    /// The newest token's.
    principal: Arc<Principal>,
    /// Where its tenant is counted.
    tenant: TenantSlot,
    expired: bool,
}

/// What a pump of a stream came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pumped {
    pub bytes: usize,
    /// The budget ended it, not the stream.
    pub again: bool,
}

/// See the module.
#[derive(Debug)]
pub struct Session {
    key: ConnKey,
    /// Of the broker; never used again.
    number: ConnectionId,
    opened: Tick,
    streams: HashMap<StreamId, Stream, HashState>,
    identities: Vec<Identity>,
    /// Bytes in reassembly over all streams, and the one stream that may go over the bound.
    partial_bytes: usize,
    partial_owner: Option<StreamId>,
    /// Streams that wait for partial bytes.
    partial_waiting: Vec<StreamId>,
    /// Unread answers over all streams as of their last flush, and the streams that wait for them to be read.
    unread_bytes: usize,
    crowded_out: Vec<StreamId>,
    violations: u32,
    violations_since: Tick,
    next_check: Option<Tick>,
    no_identity_since: Option<Tick>,
    /// When the first stream has waited for keys for too long.
    keys_due: Option<Tick>,
    closing: bool,
    /// Streams that are not read because of us.
    held_streams: usize,
    /// What it holds of the core's budget for receive windows.
    pub window_bytes: usize,
    /// Subscriptions and watches of the connection; kept by the core.
    pub subscriptions: u32,
    /// Bytes of the keys and prefixes of its watches; kept by the core.
    pub watched_bytes: usize,
}

impl Session {
    /// A connection whose handshake is complete; `number` names no other one of the broker.
    pub fn new(key: ConnKey, number: ConnectionId, now: Tick) -> Session {
        Session {
            key,
            number,
            opened: now,
            streams: HashMap::default(),
            identities: Vec::new(),
            partial_bytes: 0,
            partial_owner: None,
            partial_waiting: Vec::new(),
            unread_bytes: 0,
            crowded_out: Vec::new(),
            violations: 0,
            violations_since: now,
            next_check: None,
            no_identity_since: None,
            keys_due: None,
            closing: false,
            held_streams: 0,
            window_bytes: 0,
            subscriptions: 0,
            watched_bytes: 0,
        }
    }

    /// Whether any stream has authenticated.
    pub fn is_authenticated(&self) -> bool {
        !self.identities.is_empty()
    }

    /// Nothing is unanswered and no answer unwritten.
    pub fn is_settled(&self) -> bool {
        self.streams.values().all(|s| s.is_settled() && s.out_bytes() == 0 && s.unsettled == 0)
    }

    /// The tenant a stream works for, for fairness; empty before authentication.
    pub fn tenant_of(&self, stream: StreamId) -> Option<&Arc<str>> {
        match self.streams.get(&stream)?.phase {
            Phase::Open { identity } => self.identities.get(identity).map(|i| &i.principal.tenant),
            _ => None,
        }
    }

    /// Where the identity's tenant is counted.
    pub fn tenant_slot(&self, identity: usize) -> TenantSlot {
        self.identities.get(identity).map_or(TenantSlot::SHARED, |i| i.tenant)
    }

    /// Whether the identity's tokens have all run out.
    pub fn is_expired(&self, identity: usize) -> bool {
        self.identities.get(identity).is_none_or(|i| i.expired)
    }

    /// The client opened a stream.
    pub fn opened(&mut self, id: StreamId, dir: Dir, cx: &mut Cx<'_>) {
        let over = !self.is_authenticated() && self.streams.len() >= cx.limits.preauth_streams_max as usize;
        if over {
            cx.counters.add(Counter::StreamsRefused, 1);
            cx.quic.stop_sending(self.key, id, VarInt::from_u32(CLOSE_AUTH));
            if dir == Dir::Bi {
                cx.quic.reset(self.key, id, VarInt::from_u32(CLOSE_AUTH));
            }
            return;
        }
        self.streams.insert(id, Stream::new(id, dir, cx.limits.preauth_frame_bytes_max));
    }

    /// Reads a stream: up to about `budget` bytes, frame by frame, as long as it may go on.
    pub fn pump(&mut self, id: StreamId, budget: usize, cx: &mut Cx<'_>) -> Pumped {
        let mut bytes = 0;
        let again = loop {
            if !self.take_frames(id, cx) {
                break false;
            }
            if bytes >= budget {
                break true;
            }
            if !self.may_grow(id, cx) {
                break false;
            }
            match cx.quic.read(self.key, id, READ_BYTES_MAX) {
                ReadOutcome::Data(chunk) => {
                    bytes += chunk.len();
                    self.push_chunk(id, chunk, cx.now);
                }
                ReadOutcome::Blocked => {
                    self.yield_partial(id);
                    break false;
                }
                ReadOutcome::Finished => {
                    self.read_done(id, cx);
                    break false;
                }
                ReadOutcome::Reset(_) | ReadOutcome::Gone => {
                    self.reading_lost(id, cx);
                    break false;
                }
            }
        };
        self.flush(id, cx);
        Pumped { bytes, again }
    }

    /// So many publishes of the stream, of so many bytes together, ended, and how those that are to be answered did. True
    /// when the stream may be read again, or its half of ours ended.
    pub fn settle(
        &mut self,
        id: StreamId,
        (publishes, bytes): (usize, usize),
        answers: impl IntoIterator<Item = (AckSlot, Outcome)>,
    ) -> bool {
        let Some(stream) = self.streams.get_mut(&id) else { return false };
        stream.unsettled -= publishes;
        stream.unsettled_bytes -= bytes;
        for (slot, outcome) in answers {
            stream.acks.settle(slot, outcome);
        }
        stream.held || (stream.read_done && stream.unsettled == 0)
    }

    /// The answer of a subscription.
    pub fn answer(&mut self, (id, slot): (StreamId, AnswerSlot), message: &Message<'_>, cx: &mut Cx<'_>) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.awaiting = stream.awaiting.saturating_sub(1);
            stream.answer(slot, |out| {
                message.encode_frame(out);
            });
        }
        self.flush(id, cx);
    }

    /// The coded refusal of one.
    pub fn answer_refusal(&mut self, (id, slot): (StreamId, AnswerSlot), refusal: &Refusal, cx: &mut Cx<'_>) {
        let codes = self.streams.get(&id).is_some_and(|stream| stream.dialect.codes);
        self.answer((id, slot), &refusal.to_message(codes), cx);
    }

    /// The answer of a request that a shard carried out. Afterwards the stream is to be flushed.
    pub fn answer_ask(
        &mut self,
        id: StreamId,
        (slot, answering): (AnswerSlot, &Answering),
        answer: Result<&Reply, &Refusal>,
    ) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let wording = Wording { codes: stream.dialect.codes, form: slot.form };
        let room = UNREAD_VALUES_MAX.saturating_sub(self.unread_bytes);
        let unread = Refusal::unread_answers();
        let answer = answer.and_then(|reply| match reply.read_bytes() {
            Some(bytes) if bytes > room => Err(&unread),
            _ => Ok(reply),
        });
        stream.answer(slot, |out| match answer {
            Ok(reply) => write_answer(answering, reply, wording, out),
            Err(refusal) => {
                refusal.to_message(wording.codes).encode_frame_as(wording.form, out);
            }
        });
        let now = stream.out_bytes();
        self.unread_bytes = self.unread_bytes + now - std::mem::replace(&mut stream.unread_counted, now);
    }

    /// The client stopped reading our half. Whether requests of it are not answered.
    pub fn stopped(&mut self, id: StreamId, cx: &mut Cx<'_>) -> bool {
        let mut unanswered = false;
        if let Some(stream) = self.streams.get_mut(&id) {
            unanswered = !stream.asked.is_empty();
            stream.stopped();
        }
        self.flush(id, cx);
        unanswered
    }

    /// Writes what can be written and forgets the stream when it is over. True when it was held back and may go on.
    pub fn flush(&mut self, id: StreamId, cx: &mut Cx<'_>) -> bool {
        let may_go_on = self.flush_stream(id, cx);
        self.fit_window(cx);
        may_go_on
    }

    /// Gives the connection credit for what its held streams have unread, so that they do not use up the others'. Out of
    /// the core's budget for windows; without room there the held streams share what the connection has.
    fn fit_window(&mut self, cx: &mut Cx<'_>) {
        let base = cx.limits.conn_window as usize;
        if self.window_bytes < base {
            return;
        }
        let others = *cx.windows_bytes - self.window_bytes;
        let window = window_with_held(self.held_streams, others, cx.limits);
        if window != self.window_bytes {
            *cx.windows_bytes = others + window;
            self.window_bytes = window;
            cx.quic.set_receive_window(self.key, window as u64);
        }
    }

    fn flush_stream(&mut self, id: StreamId, cx: &mut Cx<'_>) -> bool {
        let Some(stream) = self.streams.get_mut(&id) else { return false };
        stream.flush(cx.quic, self.key);
        let unread = stream.out_bytes();
        self.unread_bytes =
            self.unread_bytes + unread - std::mem::replace(&mut stream.unread_counted, unread);
        if stream.is_finished() {
            self.forget(id);
            return false;
        }
        let crowded = self.unread_bytes >= UNREAD_BYTES_MAX;
        stream.held
            && !crowded
            && !is_full(stream, cx.limits)
            && !matches!(stream.phase, Phase::WaitingKeys { .. })
    }

    /// When it wants `handle_timeout`.
    pub fn next_timeout(&self, limits: &CoreLimits, now_s: u64, now: Tick) -> Option<Tick> {
        let auth = (!self.is_authenticated()).then(|| self.opened + limits.auth_timeout);
        let expiry = self.identities.iter().filter(|i| !i.expired).map(|i| {
            let end_s = i.principal.expires_s.saturating_add(limits.token_leeway.as_secs());
            now + Duration::from_secs(end_s.saturating_sub(now_s))
        });
        let closing = self.no_identity_since.filter(|_| !self.closing).map(|t| t + NO_IDENTITY_GRACE);
        auth.into_iter().chain(expiry).chain(self.next_check).chain(self.keys_due).chain(closing).min()
    }

    /// Deadlines. Identities that ran out are returned: their subscriptions must end.
    pub fn handle_timeout(&mut self, cx: &mut Cx<'_>) -> Vec<usize> {
        if !self.is_authenticated() && cx.now >= self.opened + cx.limits.auth_timeout && !self.closing {
            cx.counters.add(Counter::AuthTimeouts, 1);
            self.close(CLOSE_AUTH, "authentication timeout", cx);
        }
        if self.next_check.is_some_and(|at| at <= cx.now) {
            self.check_trickle(cx);
        }
        if self.keys_due.is_some_and(|at| at <= cx.now) {
            self.refuse_waiting(cx);
        }
        let ended = self.expire_identities(cx);
        if let Some(since) = self.no_identity_since {
            let settled = cx.now >= since + NO_IDENTITY_GRACE && self.is_settled();
            if settled || cx.now >= since + NO_IDENTITY_MAX {
                self.close(CLOSE_AUTH, "credentials expired", cx);
            }
        }
        ended
    }

    fn close(&mut self, code: u32, reason: &'static str, cx: &mut Cx<'_>) {
        if !std::mem::replace(&mut self.closing, true) {
            cx.actions.push(Action::Close { code, reason });
        }
    }

    fn forget(&mut self, id: StreamId) {
        if let Some(stream) = self.streams.remove(&id) {
            self.partial_bytes -= stream.reader.buffered_bytes();
            self.unread_bytes -= stream.unread_counted;
            self.held_streams -= usize::from(stream.held);
        }
        if self.partial_owner == Some(id) {
            self.partial_owner = None;
        }
    }

    /// Streams that waited for the others of the connection, for room in reassembly or for answers to be read, and may
    /// try again.
    pub fn take_waiting(&mut self, limits: &CoreLimits, now: Tick) -> Vec<StreamId> {
        let mut ready = Vec::new();
        if self.partial_owner.is_none() || self.partial_bytes < self.partial_bytes_max(limits) {
            ready.append(&mut self.partial_waiting);
        }
        if self.unread_bytes < UNREAD_BYTES_MAX {
            ready.append(&mut self.crowded_out);
        }
        for id in &ready {
            if let Some(stream) = self.streams.get_mut(id) {
                stream.restart_frame(now);
            }
        }
        ready
    }

    /// Bound of unfinished frames: strangers get the one frame that they need.
    fn partial_bytes_max(&self, limits: &CoreLimits) -> usize {
        if self.is_authenticated() {
            limits.partial_frame_bytes_max
        } else {
            limits.partial_frame_bytes_max.min(limits.preauth_frame_bytes_max as usize)
        }
    }

    fn push_chunk(&mut self, id: StreamId, chunk: Bytes, now: Tick) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let before = stream.reader.buffered_bytes();
        stream.begin_frame(now);
        stream.frame_bytes += chunk.len() as u64;
        stream.reader.push(chunk);
        self.partial_bytes += stream.reader.buffered_bytes() - before;
        self.next_check.get_or_insert(now + TRICKLE_CHECK);
    }

    /// A stream with nothing to read is in nobody's way.
    fn yield_partial(&mut self, id: StreamId) {
        let empty = self.streams.get(&id).is_none_or(|s| s.reader.buffered_bytes() == 0);
        if empty && self.partial_owner == Some(id) {
            self.partial_owner = None;
        }
    }

    /// Whether the stream may add to the connection's unfinished frames.
    fn may_grow(&mut self, id: StreamId, cx: &Cx<'_>) -> bool {
        if self.partial_bytes < self.partial_bytes_max(cx.limits) || self.partial_owner == Some(id) {
            return true;
        }
        if self.partial_owner.is_none() {
            self.partial_owner = Some(id);
            return true;
        }
        if !self.partial_waiting.contains(&id) {
            self.partial_waiting.push(id);
        }
        false
    }

    /// Closes streams whose frame has been trickling in. Streams that we hold back ourselves do not count.
    fn check_trickle(&mut self, cx: &mut Cx<'_>) {
        self.next_check = None;
        let mut slow = Vec::new();
        for stream in self.streams.values() {
            let Some(since) = stream.frame_since else { continue };
            let age = cx.now.saturating_since(since);
            let bytes = stream.frame_bytes;
            let ours = stream.held || self.partial_waiting.contains(&stream.id);
            if !ours && age > TRICKLE_GRACE && bytes < age.as_secs() * TRICKLE_BYTES_PER_S {
                slow.push(stream.id);
            } else {
                self.next_check = Some(cx.now + TRICKLE_CHECK);
            }
        }
        for id in slow {
            cx.counters.add(Counter::ProtocolViolations, 1);
            self.break_stream(id, &Refusal::invalid("the frame did not arrive in time"), cx);
        }
    }

    fn violation(&mut self, cx: &mut Cx<'_>) {
        cx.counters.add(Counter::ProtocolViolations, 1);
        if cx.now.saturating_since(self.violations_since) > VIOLATIONS_WINDOW {
            self.violations = 0;
            self.violations_since = cx.now;
        }
        self.violations += 1;
        if self.violations >= VIOLATIONS_MAX {
            self.close(CLOSE_PROTOCOL, "too many protocol violations", cx);
        }
    }

    fn read_done(&mut self, id: StreamId, cx: &mut Cx<'_>) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        stream.read_done = true;
        stream.frame_since = None;
        if stream.reader.is_mid_frame() {
            self.violation(cx);
        }
    }

    fn reading_lost(&mut self, id: StreamId, _cx: &mut Cx<'_>) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.read_done = true;
            stream.frame_since = None;
        }
    }

    /// Answers with the refusal where that is allowed, and reads no more of the stream. It ends with the last answer.
    fn break_stream(&mut self, id: StreamId, refusal: &Refusal, cx: &mut Cx<'_>) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        if !stream.publishes {
            write_error(stream, refusal);
        }
        if !stream.read_done {
            cx.quic.stop_sending(self.key, id, VarInt::from_u32(CLOSE_PROTOCOL));
        }
        self.read_no_more(id);
        self.flush(id, cx);
    }

    /// Lets go of what was read of an unfinished frame: no more of the stream is read, though its end may be far.
    fn read_no_more(&mut self, id: StreamId) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        stream.phase = Phase::Over;
        stream.frame_since = None;
        self.partial_bytes -= stream.reader.buffered_bytes();
        stream.reader = FrameReader::new(0);
        if self.partial_owner == Some(id) {
            self.partial_owner = None;
        }
    }

    /// Bytes held of unfinished frames.
    pub fn partial_bytes(&self) -> usize {
        self.partial_bytes
    }

    /// Unfinished frames that are worth giving up: since when, of which stream, how many bytes are held.
    pub fn partials(&self) -> impl Iterator<Item = (Tick, StreamId, usize)> {
        let held = self.streams.values().map(|s| (s.frame_since, s.id, s.reader.buffered_bytes()));
        held.filter_map(|(since, id, bytes)| Some((since?, id, bytes))).filter(|p| p.2 >= READ_BYTES_MAX)
    }

    /// Ends a stream whose frame the core has no room for.
    pub fn give_up(&mut self, id: StreamId, cx: &mut Cx<'_>) {
        self.break_stream(id, &Refusal::no_room(), cx);
    }
}

/// The window of a connection with so many held streams, when the others of the core have `others` bytes. The extra
/// credit is bounded per connection and comes out of half of the budget: one client cannot take what new connections need.
fn window_with_held(held_streams: usize, others: usize, limits: &CoreLimits) -> usize {
    let base = limits.conn_window as usize;
    let extra = held_streams.min(HELD_CREDIT_STREAMS_MAX) * limits.stream_window as usize;
    (base + extra).min((limits.windows_bytes_max / 2).saturating_sub(others)).max(base)
}

/// Whether the stream must not be read on: its unsettled publishes or unread answers are at their bound.
fn is_full(stream: &Stream, limits: &CoreLimits) -> bool {
    (stream.unsettled > 0 && stream.unsettled_bytes >= limits.parked_bytes_per_stream)
        || stream.unsettled >= limits.publish_window as usize
        || stream.acks.unanswered() >= limits.publish_window as usize
        || stream.asked.len() >= limits.asks_per_stream as usize
        || stream.out_bytes() >= OUT_BYTES_MAX
}

/// Has `take` take whole frames off the piece of the stream that comes next, while it does and the stream may go on; what it
/// takes counts as unfinished no more. Gives how many.
fn take_whole(
    stream: &mut Stream,
    partial_bytes: &mut usize,
    limits: &CoreLimits,
    mut take: impl FnMut(&mut Stream, &mut Bytes) -> bool,
) -> usize {
    let Some(mut piece) = stream.reader.lend() else { return 0 };
    let (held, mut taken) = (piece.len(), 0);
    while !is_full(stream, limits) && take(stream, &mut piece) {
        taken += 1;
    }
    *partial_bytes -= held - piece.len();
    stream.reader.give_back(piece);
    taken
}

/// Writes an `error` with as much as the client reads, in the form of the request that was read last, after the answers of the requests before it.
fn write_error(stream: &mut Stream, refusal: &Refusal) {
    if !stream.can_answer() {
        return;
    }
    let written = stream.written();
    let form = stream.asked.form;
    refusal.to_message(stream.dialect.codes).encode_frame_as(form, stream.answers());
    stream.keep_order(written);
}

/// Says which node serves a shard.
fn not_leader<'a>(node: &'a str, addr: Option<&'a str>, generation: Generation) -> Message<'a> {
    Message::NotLeader(NotLeader { node_id: node.into(), addr: addr.map(Into::into), generation })
}
