//! A sink with readers: it hands every publish on to every subscription and keeps nothing, the least that a server can do on
//! this driver for those who read. Scope: one per sink, on its core's thread.
//! Owns: the machine, the streams, the subscriptions and what waits to be written to them.
//! Invariants: payload is not copied for a subscription; no publish is read while too much waits for one of them; any token,
//! stream name and start is accepted, and a subscription begins with the next publish.
//! Not here: the loop around it (`serve`).

use std::collections::{HashMap, VecDeque};

use bytes::{Bytes, BytesMut};
use felix_runtime::Tick;
use felix_runtime::quic::{ConnKey, Dir, Quic, QuicEvent, ReadOutcome, StreamId, VarInt, WriteState};
use felix_wire::client::{
    BinaryPublish, EventStreamHello, Message, Records, Subscribed, encode_ok, encode_shared_head,
};
use felix_wire::frame::{DecodeError, Frame, FrameReader};
use felix_wire::id::SubscriptionId;
use felix_wire::limits::FRAME_PAYLOAD_MAX;

use super::connection::{FEATURES, OUT_BYTES_MAX, hello};
use super::serve::{CONN_WINDOW, READ_BYTES, Serves, SinkCounts, StreamKey, TURN_BYTES};

/// Pieces that wait for one subscription before no publish is read: a head and a run for each batch.
const WAITING_MAX: usize = 64;
/// Subscriptions of one sink.
const SUBSCRIPTIONS_MAX: usize = 16_384;

/// A stream that a client opened.
#[derive(Debug)]
struct Asking {
    frames: FrameReader,
    authenticated: bool,
    /// Answers, and those under way.
    out: BytesMut,
    front: Bytes,
}

#[derive(Debug)]
struct Subscription {
    key: ConnKey,
    /// Absent while the client allows no more.
    stream: Option<StreamId>,
    waiting: VecDeque<Bytes>,
}

/// See the module.
pub struct Relay {
    quic: Quic,
    streams: HashMap<StreamKey, Asking, foldhash::fast::RandomState>,
    /// Streams with something to read, and those that wait until nothing is full.
    ready: VecDeque<StreamKey>,
    held: VecDeque<StreamKey>,
    subscriptions: Vec<Subscription>,
    by_stream: HashMap<StreamKey, usize, foldhash::fast::RandomState>,
    /// Subscriptions for which too much waits.
    full: usize,
    counts: SinkCounts,
}

impl Relay {
    #[must_use]
    pub fn new(quic: Quic) -> Relay {
        Relay {
            quic,
            streams: HashMap::default(),
            ready: VecDeque::new(),
            held: VecDeque::new(),
            subscriptions: Vec::new(),
            by_stream: HashMap::default(),
            full: 0,
            counts: SinkCounts::default(),
        }
    }

    fn handle(&mut self, key: ConnKey, event: QuicEvent) {
        match event {
            QuicEvent::Connected => self.counts.connections += 1,
            QuicEvent::StreamOpened { stream, dir: Dir::Bi } => {
                let frames = FrameReader::new(FRAME_PAYLOAD_MAX);
                let asking =
                    Asking { frames, authenticated: false, out: BytesMut::new(), front: Bytes::new() };
                self.streams.insert((key, stream), asking);
            }
            QuicEvent::StreamOpened { stream, dir: Dir::Uni } => {
                self.quic.stop_sending(key, stream, VarInt::from_u32(1));
            }
            QuicEvent::Readable { stream } => self.ready.push_back((key, stream)),
            QuicEvent::Writable { stream } => {
                if let Some(index) = self.by_stream.get(&(key, stream)).copied() {
                    self.flush(index);
                } else if let Some(asking) = self.streams.get_mut(&(key, stream)) {
                    asking.flush(&mut self.quic, (key, stream));
                }
            }
            QuicEvent::Stopped { stream, .. } => {
                self.streams.remove(&(key, stream));
                self.forget(|at| at == (key, Some(stream)));
            }
            QuicEvent::Closed { .. } => {
                self.streams.retain(|(conn, _), _| *conn != key);
                self.forget(|(conn, _)| conn == key);
            }
            QuicEvent::StreamsAvailable { dir: Dir::Uni } => {
                for index in 0..self.subscriptions.len() {
                    if self.subscriptions[index].key == key {
                        self.open(index);
                        self.flush(index);
                    }
                }
            }
            QuicEvent::Finished { .. } | QuicEvent::StreamsAvailable { dir: Dir::Bi } => {}
        }
    }

    /// Reads one stream up to its share.
    fn read(&mut self, at: StreamKey) -> usize {
        let mut bytes = 0;
        loop {
            if self.full > 0 {
                self.held.push_back(at);
                return bytes;
            }
            if bytes >= TURN_BYTES {
                self.ready.push_back(at);
                return bytes;
            }
            match self.quic.read(at.0, at.1, READ_BYTES) {
                ReadOutcome::Data(chunk) => {
                    bytes += chunk.len();
                    if self.take(at, chunk).is_err() {
                        self.counts.broken_streams += 1;
                        self.quic.stop_sending(at.0, at.1, VarInt::from_u32(1));
                        self.quic.reset(at.0, at.1, VarInt::from_u32(1));
                        self.streams.remove(&at);
                        return bytes;
                    }
                }
                ReadOutcome::Blocked => return bytes,
                ReadOutcome::Finished => {
                    self.quic.finish(at.0, at.1);
                    self.streams.remove(&at);
                    return bytes;
                }
                ReadOutcome::Reset(_) | ReadOutcome::Gone => {
                    self.streams.remove(&at);
                    return bytes;
                }
            }
        }
    }

    fn take(&mut self, at: StreamKey, chunk: Bytes) -> Result<(), DecodeError> {
        let Some(asking) = self.streams.get_mut(&at) else { return Ok(()) };
        asking.frames.push(chunk);
        while let Some(asking) = self.streams.get_mut(&at) {
            let Some(frame) = asking.frames.next()? else { break };
            self.answer(at, &frame)?;
        }
        if let Some(asking) = self.streams.get_mut(&at) {
            asking.flush(&mut self.quic, at);
        }
        Ok(())
    }

    fn answer(&mut self, at: StreamKey, frame: &Frame) -> Result<(), DecodeError> {
        let Some(asking) = self.streams.get_mut(&at) else { return Ok(()) };
        if frame.flags != 0 {
            if !asking.authenticated {
                return Err(DecodeError::Malformed("a publish before auth"));
            }
            let publish =
                BinaryPublish::decode(frame.flags, &frame.payload).map_err(|broken| broken.error)?;
            if asking.out.len() + asking.front.len() >= OUT_BYTES_MAX {
                return Err(DecodeError::Malformed("answers that nobody reads"));
            }
            self.counts.publishes += 1;
            if let Some((request, _)) = publish.acked {
                self.counts.answered += 1;
                encode_ok(request, None, &mut asking.out);
            }
            self.hand_on(publish.records);
            return Ok(());
        }
        match Message::decode(&frame.payload)? {
            Message::Auth(_) if !asking.authenticated => {
                asking.authenticated = true;
                hello(&mut asking.out, FEATURES);
                self.quic.set_receive_window(at.0, CONN_WINDOW);
                Ok(())
            }
            Message::Subscribe(_) if asking.authenticated && self.subscriptions.len() < SUBSCRIPTIONS_MAX => {
                let subscription_id = SubscriptionId(self.subscriptions.len() as u64);
                let mut hello = BytesMut::new();
                Message::EventStreamHello(EventStreamHello { subscription_id }).encode_frame(&mut hello);
                let subscribed = Subscribed {
                    subscription_id,
                    start_offset: None,
                    live_offset: None,
                    queue_capacity: None,
                    boot: None,
                };
                Message::Subscribed(subscribed).encode_frame(&mut asking.out);
                let waiting = VecDeque::from([hello.freeze()]);
                self.subscriptions.push(Subscription { key: at.0, stream: None, waiting });
                self.open(self.subscriptions.len() - 1);
                self.flush(self.subscriptions.len() - 1);
                Ok(())
            }
            _ => Err(DecodeError::Malformed("a request the sink does not serve")),
        }
    }

    /// Opens the stream of a subscription that has none, if the client allows it.
    fn open(&mut self, index: usize) {
        let subscription = &mut self.subscriptions[index];
        if subscription.stream.is_none() {
            subscription.stream = self.quic.open_uni(subscription.key);
            if let Some(stream) = subscription.stream {
                self.by_stream.insert((subscription.key, stream), index);
            }
        }
    }

    fn hand_on(&mut self, records: Records) {
        let mut head = BytesMut::new();
        encode_shared_head(&mut head, records.count(), records.encoded_len(), None, 0);
        let (head, run) = (head.freeze(), records.into_bytes());
        self.counts.bytes += run.len() as u64;
        for index in 0..self.subscriptions.len() {
            let waiting = &mut self.subscriptions[index].waiting;
            let was_full = waiting.len() > WAITING_MAX;
            waiting.extend([head.clone(), run.clone()]);
            self.full += usize::from(waiting.len() > WAITING_MAX && !was_full);
            self.flush(index);
        }
    }

    /// Writes what waits as far as QUIC takes it.
    fn flush(&mut self, index: usize) {
        let subscription = &mut self.subscriptions[index];
        let Some(stream) = subscription.stream else { return };
        let was_full = subscription.waiting.len() > WAITING_MAX;
        let chunks = subscription.waiting.make_contiguous();
        match self.quic.write_chunks(subscription.key, stream, chunks).state {
            WriteState::All | WriteState::Blocked => {
                while subscription.waiting.front().is_some_and(Bytes::is_empty) {
                    subscription.waiting.pop_front();
                }
            }
            WriteState::Stopped(_) | WriteState::Gone => subscription.waiting.clear(),
        }
        self.full -= usize::from(was_full && subscription.waiting.len() <= WAITING_MAX);
        if self.full == 0 {
            self.ready.append(&mut self.held);
        }
    }

    /// Lets go of subscriptions.
    fn forget(&mut self, gone: impl Fn((ConnKey, Option<StreamId>)) -> bool) {
        self.subscriptions.retain(|subscription| !gone((subscription.key, subscription.stream)));
        let named = self.subscriptions.iter().enumerate();
        self.by_stream = named
            .filter_map(|(index, subscription)| Some(((subscription.key, subscription.stream?), index)))
            .collect();
        let is_full = |subscription: &&Subscription| subscription.waiting.len() > WAITING_MAX;
        self.full = self.subscriptions.iter().filter(is_full).count();
        if self.full == 0 {
            self.ready.append(&mut self.held);
        }
    }
}

impl Asking {
    /// Writes answers as far as QUIC takes them. Few are under way: a client asks one thing after the other, or has a window
    /// of publishes.
    fn flush(&mut self, quic: &mut Quic, (key, stream): StreamKey) {
        loop {
            if self.front.is_empty() {
                if self.out.is_empty() {
                    return;
                }
                self.front = self.out.split().freeze();
            }
            match quic.write(key, stream, &mut self.front).state {
                WriteState::All => {}
                WriteState::Blocked => return,
                WriteState::Stopped(_) | WriteState::Gone => {
                    self.front = Bytes::new();
                    self.out.clear();
                }
            }
        }
    }
}

impl Serves for Relay {
    fn quic(&mut self) -> &mut Quic {
        &mut self.quic
    }

    fn turn(&mut self, now: Tick) -> bool {
        self.quic.handle_timeouts(now);
        while let Some((key, event)) = self.quic.poll_event() {
            self.handle(key, event);
        }
        let mut bytes = 0;
        while bytes < TURN_BYTES {
            let Some(at) = self.ready.pop_front() else { break };
            bytes += self.read(at).max(1_024);
        }
        !self.ready.is_empty()
    }

    fn counts(&self) -> SinkCounts {
        self.counts
    }
}
