//! One stream of a connection: bytes in to frames, answers out. Sans-io.
//! Scope: one per stream that the client opened. Owns: its reassembly, its unwritten answers, its unanswered publishes.
//! Invariants: answers are bounded (`OUT_BYTES_MAX`), because a stream whose answers are not read is not read either;
//! our half is finished once the client's is and everything is answered.
//! Not here: what a frame means (`session`).

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use felix_runtime::clock::Tick;
use felix_runtime::quic::{ConnKey, Dir, Quic, StreamId, WriteState};
use felix_wire::client::KeyRequest;
use felix_wire::features::Features;
use felix_wire::flags::Flags;
use felix_wire::frame::FrameReader;
use felix_wire::routing::KeyMapping;

use super::acks::{AckDialect, AckRing};
use super::answers::{AnswerRing, AnswerSlot};
use crate::access::{Granted, Principal};
use crate::route::Place;
use crate::snapshot::StreamRoute;

/// Answers that may wait for the client to read them, per stream.
pub const OUT_BYTES_MAX: usize = 256 << 10;

/// Room for answers that a stream keeps when it has none: acks fit, large answers go with their buffer.
const KEPT_BYTES: usize = 4 << 10;

/// Answers are gathered in pieces of about so many bytes: a longer one would be copied each time it grows.
const PIECE_BYTES: usize = 64 << 10;

/// How far the stream has come.
#[derive(Debug)]
pub enum Phase {
    /// Nothing but `auth` is accepted.
    Silent,
    /// `auth` was read; its signature waits for a key set.
    WaitingKeys { tenant: Arc<str>, token: Box<str>, client: ClientWords, since: Tick },
    /// Requests are served under the identity with this index.
    Open { identity: usize },
    /// Refused or broken: nothing is read any more.
    Over,
}

/// What the client announced in `auth`. Absent flags: it knows no negotiation.
#[derive(Clone, Copy, Debug, Default)]
pub struct ClientWords {
    pub flags: Option<Flags>,
    pub features: Features,
    /// The client set the marker of the second word.
    pub extended: bool,
}

/// The width a client said it routes by (client-protocol 10.6).
#[derive(Debug)]
pub struct Declared {
    pub namespace: Box<str>,
    pub stream: Box<str>,
    pub width: (u32, KeyMapping),
}

/// The stream last published to, so that the next publish to it needs no look-up.
#[derive(Debug)]
pub struct Memo {
    pub routes_version: u64,
    /// Whose right was found. Held, so that no other principal can take its address.
    pub principal: Arc<Principal>,
    pub granted: Granted<Arc<StreamRoute>>,
    /// The stream's names as a binary publish carries them.
    pub names: Box<[u8]>,
    /// Where publishes without a key go, when they can go anywhere.
    pub unkeyed: Option<Granted<Place>>,
}

/// The cache last asked about, so that the next request about it needs no look-up.
#[derive(Debug)]
pub struct CacheMemo {
    pub routes_version: u64,
    /// Whose rights were found. Held, so that no other principal can take its address.
    pub principal: Arc<Principal>,
    pub route: Arc<StreamRoute>,
    /// To read and to write every key of it.
    pub reads: Option<Granted<()>>,
    pub writes: Option<Granted<()>>,
}

impl CacheMemo {
    /// Whether it is what would be looked up for `principal`.
    pub fn holds(&self, principal: &Arc<Principal>, routes_version: u64) -> bool {
        self.routes_version == routes_version && Arc::ptr_eq(&self.principal, principal)
    }

    /// Whether a request is about this cache.
    pub fn is_named(&self, request: &KeyRequest<'_>) -> bool {
        let own = &self.route.name;
        (&*own.stream, &*own.namespace, &*own.tenant) == (request.cache, request.namespace, request.tenant)
    }

    /// The right to what a request asks, if there is one to ask it of every key.
    pub fn granted(&self, request: &KeyRequest<'_>) -> Option<Granted<()>> {
        if request.what.is_read() { self.reads } else { self.writes }
    }
}

/// State of our sending half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sending {
    Open,
    /// Finished, stopped by the peer, or never there (unidirectional).
    Closed,
}

/// See the module.
#[derive(Debug)]
pub struct Stream {
    pub id: StreamId,
    pub reader: FrameReader,
    pub phase: Phase,
    pub dialect: AckDialect,
    pub features: Features,
    pub acks: AckRing,
    pub declared: Option<Declared>,
    pub memo: Option<Memo>,
    pub cache_memo: Option<CacheMemo>,
    /// Publishes handed on and not settled.
    pub unsettled: usize,
    pub unsettled_bytes: usize,
    /// Requests whose answer comes from elsewhere, in their order.
    pub asked: AnswerRing,
    /// Subscriptions that are not answered.
    pub awaiting: u32,
    /// A publish was read here: bare errors are not written any more (client-protocol 10.4).
    pub publishes: bool,
    /// The client's half has ended.
    pub read_done: bool,
    /// Reading stopped because something of this stream is not settled, answered or read.
    pub held: bool,
    /// Since when a frame is incomplete, and what has arrived since.
    pub frame_since: Option<Tick>,
    pub frame_bytes: u64,
    /// What the session has counted of its unread answers.
    pub unread_counted: usize,
    sending: Sending,
    /// Pieces that are full, and their bytes; the one that grows; the one that QUIC is taking.
    full: VecDeque<Bytes>,
    full_bytes: usize,
    out: BytesMut,
    front: Bytes,
    /// Bytes of the piece that left last.
    written_last: usize,
}

impl Stream {
    /// A stream the client opened.
    pub fn new(id: StreamId, dir: Dir, frame_max: u32) -> Stream {
        Stream {
            id,
            reader: FrameReader::new(frame_max),
            phase: Phase::Silent,
            dialect: AckDialect { flags: Flags::UNANNOUNCED, ..AckDialect::default() },
            features: Features::NONE,
            acks: AckRing::default(),
            declared: None,
            memo: None,
            cache_memo: None,
            unsettled: 0,
            unsettled_bytes: 0,
            asked: AnswerRing::default(),
            awaiting: 0,
            publishes: false,
            read_done: false,
            held: false,
            frame_since: None,
            frame_bytes: 0,
            unread_counted: 0,
            sending: if dir == Dir::Bi { Sending::Open } else { Sending::Closed },
            full: VecDeque::new(),
            full_bytes: 0,
            out: BytesMut::new(),
            front: Bytes::new(),
            written_last: 0,
        }
    }

    /// The width the client said it routes the stream of the memo by, if it did.
    pub fn declared_width(&self, memo: &Memo) -> Option<(u32, KeyMapping)> {
        let name = &memo.granted.get().name;
        let declared = self.declared.as_ref();
        declared.filter(|d| *d.namespace == *name.namespace && *d.stream == *name.stream).map(|d| d.width)
    }

    /// A frame is incomplete; its time begins at `now`, unless it has begun.
    pub fn begin_frame(&mut self, now: Tick) {
        if self.frame_since.is_none() {
            self.frame_since = Some(now);
            self.frame_bytes = 0;
        }
    }

    /// The time so far was not the client's: an incomplete frame begins again at `now`.
    pub fn restart_frame(&mut self, now: Tick) {
        if self.frame_since.take().is_some() {
            self.begin_frame(now);
        }
    }

    /// Where answers are written; they leave with `flush`. Dropped when nobody can read them.
    pub fn answers(&mut self) -> &mut BytesMut {
        &mut self.out
    }

    /// Whether an answer can still reach the client.
    pub fn can_answer(&self) -> bool {
        self.sending == Sending::Open
    }

    /// Bytes of answers not taken by QUIC yet.
    pub fn out_bytes(&self) -> usize {
        self.out.len() + self.full_bytes + self.front.len() + self.asked.bytes()
    }

    /// Writes the answer of a request that was carried out elsewhere.
    pub fn answer(&mut self, slot: AnswerSlot, write: impl FnOnce(&mut BytesMut)) {
        if !self.can_answer() {
            return self.asked.clear();
        }
        if self.out.len() >= PIECE_BYTES {
            self.full_bytes += self.out.len();
            let next = BytesMut::with_capacity(PIECE_BYTES + PIECE_BYTES / 2);
            self.full.push_back(std::mem::replace(&mut self.out, next).freeze());
        } else if self.out.capacity() == 0 {
            // About as much as last time.
            self.out.reserve(self.written_last.min(PIECE_BYTES));
        }
        self.asked.answer(slot, &mut self.out, write);
    }

    /// What was written from byte `from` on answers the newest request: it waits for the answers of those before it.
    pub fn keep_order(&mut self, from: usize) {
        if !self.asked.is_empty() && self.out.len() > from {
            let answer = self.out.split_off(from);
            self.asked.push(answer);
        }
    }

    /// Bytes of answers that may leave and have not been taken out.
    pub fn written(&self) -> usize {
        self.out.len()
    }

    /// The client does not want answers any more.
    pub fn stopped(&mut self) {
        self.sending = Sending::Closed;
        self.drop_answers();
        self.front = Bytes::new();
        self.asked.clear();
    }

    /// Writes settled acks and answers as far as QUIC takes them, and finishes our half when it is due.
    pub fn flush(&mut self, quic: &mut Quic, conn: ConnKey) {
        self.acks.flush(self.dialect, &mut self.out);
        if self.sending == Sending::Closed {
            return self.drop_answers();
        }
        loop {
            if self.front.is_empty() {
                let Some(next) = self.next_piece() else { break };
                self.front = next;
            }
            let outcome = quic.write(conn, self.id, &mut self.front);
            if matches!(outcome.state, WriteState::Stopped(_) | WriteState::Gone) {
                return self.stopped();
            }
            if outcome.state == WriteState::Blocked {
                return;
            }
        }
        // One that is broken still owes the answers of what was read before.
        let over = matches!(self.phase, Phase::Over) && self.asked.is_empty();
        if over || (self.read_done && self.is_settled() && self.unsettled == 0) {
            quic.finish(conn, self.id);
            self.sending = Sending::Closed;
            self.asked.clear();
        }
    }

    /// The answers that leave next.
    fn next_piece(&mut self) -> Option<Bytes> {
        if let Some(piece) = self.full.pop_front() {
            self.full_bytes -= piece.len();
            return Some(piece);
        }
        let large = self.out.capacity() > KEPT_BYTES;
        if self.out.is_empty() {
            if large {
                // Room that was made for an answer that waits for others.
                self.out = BytesMut::new();
            }
            return None;
        }
        self.written_last = self.out.len();
        let taken = if large { std::mem::take(&mut self.out) } else { self.out.split() };
        Some(taken.freeze())
    }

    fn drop_answers(&mut self) {
        self.out = BytesMut::new();
        self.full.clear();
        self.full_bytes = 0;
    }

    /// Nothing is owed to the client.
    pub fn is_settled(&self) -> bool {
        self.acks.unanswered() == 0
            && self.awaiting == 0
            && self.asked.is_empty()
            && !matches!(self.phase, Phase::WaitingKeys { .. })
    }

    /// Both halves have ended and nothing refers to it.
    pub fn is_finished(&self) -> bool {
        let over = matches!(self.phase, Phase::Over);
        (self.read_done || over)
            && self.sending == Sending::Closed
            && self.unsettled == 0
            && self.awaiting == 0
    }
}

#[cfg(test)]
mod tests {
    use felix_runtime::quic::Side;

    use super::*;

    #[test]
    fn answers_leave_in_pieces_in_their_order_and_no_room_is_kept_for_them() {
        let mut stream = Stream::new(StreamId::new(Side::Client, Dir::Bi, 0), Dir::Bi, 1_024);
        let slots: Vec<AnswerSlot> = (0..6).map(|_| stream.asked.open()).collect();
        let answer = |stream: &mut Stream, at: usize| {
            stream.answer(slots[at], |out| out.extend_from_slice(&vec![at as u8; 40 << 10]));
        };
        let mut left = Vec::new();
        let mut leave = |stream: &mut Stream| {
            while let Some(piece) = stream.next_piece() {
                left.push(piece);
            }
        };
        (0..4).for_each(|at| answer(&mut stream, at));
        // It makes room, and waits for the one before it.
        answer(&mut stream, 5);
        assert_eq!(stream.out_bytes(), 5 * (40 << 10));
        leave(&mut stream);
        assert_eq!((stream.out_bytes(), stream.out.capacity()), (40 << 10, 0));
        answer(&mut stream, 4);
        leave(&mut stream);
        assert_eq!((stream.out_bytes(), stream.out.capacity()), (0, 0));
        let told: Vec<u8> = left.iter().flat_map(|piece| piece.iter().copied()).collect();
        let wanted: Vec<u8> = (0..6).flat_map(|at| vec![at; 40 << 10]).collect();
        assert!(told == wanted && left.len() == 3, "{} pieces", left.len());
    }
}
