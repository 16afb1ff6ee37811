//! The sink's core: the loop a broker's core has, without shards. Scope: one per sink, on its core's thread.
//! Owns: the machine, the streams, the buffer that payloads are copied into.
//! Invariants: receive, run, read, send, in this order, with the broker's budgets; nothing waits inside a turn.
//! Not here: what a stream answers (`connection`).

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use felix_runtime::Tick;
use felix_runtime::executor::CoreIo;
use felix_runtime::quic::{ConnKey, Dir, Quic, QuicEvent, ReadOutcome, StreamId, Transmits, VarInt};

use super::Framing;
use super::connection::{Answer, SinkStream};
use super::split::Discard;

/// The broker's windows (architecture 7).
pub const STREAM_WINDOW: u64 = 4 << 20;
pub const CONN_WINDOW_BEFORE_AUTH: u64 = 256 << 10;
pub const CONN_WINDOW: u64 = 16 << 20;
pub const SEND_WINDOW: u64 = 1 << 20;
/// The broker's budgets of a turn: bytes received, bytes read from streams, bytes of one read.
pub const RECV_BYTES: usize = 1 << 20;
pub const TURN_BYTES: usize = 4 << 20;
pub const READ_BYTES: usize = 64 << 10;
/// Bytes of one stream before the next one is read.
const STREAM_BYTES: usize = 1 << 20;
/// Trains in one send batch.
pub const TRANSMITS: usize = 64;

/// What a sink took.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SinkCounts {
    pub connections: u64,
    pub publishes: u64,
    /// Of those, acked ones, which were all answered.
    pub answered: u64,
    /// Requests in the binary form, which were all answered.
    pub requests: u64,
    /// Bytes copied into the buffer.
    pub bytes: u64,
    /// Streams given up because of what came on them.
    pub broken_streams: u64,
}

pub type StreamKey = (ConnKey, StreamId);

struct Server {
    quic: Quic,
    framing: Framing,
    answer: Option<Answer>,
    streams: HashMap<StreamKey, SinkStream, foldhash::fast::RandomState>,
    /// Streams with something to read.
    ready: VecDeque<StreamKey>,
    /// Streams that are not read until their answers are.
    held: VecDeque<StreamKey>,
    discard: Discard,
    counts: SinkCounts,
}

/// What a core of a sink does between receiving and sending.
pub trait Serves {
    fn quic(&mut self) -> &mut Quic;
    /// True when there is more to do at once.
    fn turn(&mut self, now: Tick) -> bool;
    fn counts(&self) -> SinkCounts;
}

/// Takes publishes until `ending` is set and the core is woken.
pub async fn serve(
    io: CoreIo,
    quic: Quic,
    (framing, answer): (Framing, Option<Answer>),
    ending: Arc<AtomicBool>,
) -> SinkCounts {
    let server = Server {
        quic,
        framing,
        answer,
        streams: HashMap::default(),
        ready: VecDeque::new(),
        held: VecDeque::new(),
        discard: Discard::default(),
        counts: SinkCounts::default(),
    };
    run(io, server, ending).await
}

/// Serves until `ending` is set and the core is woken.
pub async fn run(mut io: CoreIo, mut server: impl Serves, ending: Arc<AtomicBool>) -> SinkCounts {
    let mut batch = Transmits::new(TRANSMITS);
    loop {
        let now = io.now();
        let quic = server.quic();
        let received = io.udp.recv(RECV_BYTES, |datagram| {
            quic.handle_datagram(now, datagram.remote, datagram.local_ip, datagram.ecn, datagram.data);
        });
        let drained = received.map_or(true, |received| received.drained);
        let ends = ending.load(Ordering::Acquire);
        let more = server.turn(now);
        if ends {
            server.quic().close_all(now, VarInt::from_u32(0), &Bytes::new());
        }
        transmit(server.quic(), &mut io, &mut batch);
        if ends {
            return server.counts();
        }
        if more || !drained {
            continue;
        }
        // With datagrams left over, the wait comes back soon by itself.
        let until = server.quic().next_timeout();
        io.wait(until);
    }
}

impl Serves for Server {
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
            let Some(stream) = self.ready.pop_front() else { break };
            bytes += self.read(stream).max(1_024);
        }
        !self.ready.is_empty()
    }

    fn counts(&self) -> SinkCounts {
        SinkCounts { bytes: self.discard.bytes, ..self.counts }
    }
}

impl Server {
    fn handle(&mut self, key: ConnKey, event: QuicEvent) {
        match event {
            QuicEvent::Connected => self.counts.connections += 1,
            QuicEvent::StreamOpened { stream, dir: Dir::Bi } => {
                self.streams
                    .insert((key, stream), SinkStream::new(key, stream, self.framing, self.answer.clone()));
            }
            QuicEvent::StreamOpened { stream, dir: Dir::Uni } => {
                self.quic.stop_sending(key, stream, VarInt::from_u32(1));
            }
            QuicEvent::Readable { stream } => self.ready.push_back((key, stream)),
            QuicEvent::Writable { stream } => {
                if let Some(found) = self.streams.get_mut(&(key, stream)) {
                    found.flush(&mut self.quic);
                }
                if let Some(at) = self.held.iter().position(|held| *held == (key, stream)) {
                    self.held.remove(at);
                    self.ready.push_back((key, stream));
                }
            }
            QuicEvent::Stopped { stream, .. } => {
                self.streams.remove(&(key, stream));
            }
            QuicEvent::Closed { .. } => self.streams.retain(|(conn, _), _| *conn != key),
            QuicEvent::Finished { .. } | QuicEvent::StreamsAvailable { .. } => {}
        }
    }

    /// Reads one stream up to its share and writes what it is owed.
    fn read(&mut self, stream_key: StreamKey) -> usize {
        let (key, id) = stream_key;
        let Some(stream) = self.streams.get_mut(&stream_key) else { return 0 };
        let mut bytes = 0;
        let ended = loop {
            if stream.is_full() {
                stream.flush(&mut self.quic);
            }
            if stream.is_full() {
                self.held.push_back(stream_key);
                break false;
            }
            if bytes >= STREAM_BYTES {
                self.ready.push_back(stream_key);
                break false;
            }
            match self.quic.read(key, id, READ_BYTES) {
                ReadOutcome::Data(chunk) => {
                    bytes += chunk.len();
                    match stream.take(chunk, &mut self.discard, &mut self.counts) {
                        Ok(true) => self.quic.set_receive_window(key, CONN_WINDOW),
                        Ok(false) => {}
                        Err(_) => {
                            self.counts.broken_streams += 1;
                            stream.give_up(&mut self.quic);
                            break true;
                        }
                    }
                }
                ReadOutcome::Blocked => break false,
                ReadOutcome::Finished => {
                    stream.flush(&mut self.quic);
                    self.quic.finish(key, id);
                    break true;
                }
                ReadOutcome::Reset(_) | ReadOutcome::Gone => break true,
            }
        };
        if ended {
            self.streams.remove(&stream_key);
        } else {
            stream.flush(&mut self.quic);
        }
        bytes
    }
}

/// Sends until nothing is left or the socket is full.
pub fn transmit(quic: &mut Quic, io: &mut CoreIo, batch: &mut Transmits) {
    loop {
        if batch.is_empty() {
            quic.poll_transmit(io.now(), batch);
        }
        if batch.is_empty() {
            return;
        }
        let outcome = io.udp.send(batch.iter());
        batch.advance(outcome.taken);
        if outcome.blocked {
            return;
        }
    }
}
