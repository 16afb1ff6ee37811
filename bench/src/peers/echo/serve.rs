//! The echo's core: the loop a broker's core has, without shards. Scope: one per echo, on its core's thread.
//! Owns: the machine, the streams, the answers they are owed.
//! Invariants: receive, run, read, send, in this order, with the broker's budgets; a request is answered once; a stream
//! that does not read its answers is not read.
//! Not here: what a request is (`requests`), writing blocks (`commits`).

use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::{BufMut, Bytes, BytesMut};
use felix_runtime::Tick;
use felix_runtime::executor::CoreIo;
use felix_runtime::quic::{Dir, Quic, QuicEvent, ReadOutcome, Transmits, VarInt, WriteState};

use super::EchoError;
use super::commits::Commits;
use super::requests::Requests;
use crate::sink::serve::{READ_BYTES, RECV_BYTES, StreamKey, TRANSMITS, transmit};

/// Bytes of answers of a stream that may wait to be read.
const OUT_BYTES_MAX: usize = 64 << 10;
/// Requests of a stream that may wait for their write before more are read.
const OWED_MAX: u64 = 64;

/// What an echo answered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EchoCounts {
    pub connections: u64,
    pub answered: u64,
    /// Of those, after a block was written.
    pub committed: u64,
    /// Streams given up because of what came on them.
    pub broken_streams: u64,
}

#[derive(Default)]
struct EchoStream {
    requests: Requests,
    /// Requests that wait for their write.
    owed: u64,
    answered: u64,
    out: BytesMut,
    front: Bytes,
    /// The client sends nothing more.
    finished: bool,
}

impl EchoStream {
    fn is_full(&self) -> bool {
        self.out.len() + self.front.len() >= OUT_BYTES_MAX || self.owed >= OWED_MAX
    }

    fn is_over(&self) -> bool {
        self.finished && self.owed == 0 && self.out.is_empty() && self.front.is_empty()
    }

    fn answer(&mut self, counts: &mut EchoCounts) {
        self.answered += 1;
        counts.answered += 1;
        self.out.put_u64(self.answered);
    }

    fn flush(&mut self, quic: &mut Quic, (key, id): StreamKey) {
        loop {
            if self.front.is_empty() {
                if self.out.is_empty() {
                    return;
                }
                self.front = self.out.split().freeze();
            }
            match quic.write(key, id, &mut self.front).state {
                WriteState::All => {}
                WriteState::Blocked => return,
                WriteState::Stopped(_) | WriteState::Gone => self.front = Bytes::new(),
            }
        }
    }
}

struct Server {
    quic: Quic,
    streams: HashMap<StreamKey, EchoStream, foldhash::fast::RandomState>,
    ready: VecDeque<StreamKey>,
    commits: Option<Commits>,
    /// Whose requests wait until there is room for a write, in the order they came.
    unasked: VecDeque<StreamKey>,
    counts: EchoCounts,
}

/// Serves until `ending` is set and the core is woken.
///
/// # Errors
/// The disk failed.
pub async fn serve(
    mut io: CoreIo,
    quic: Quic,
    dir: Option<PathBuf>,
    ending: Arc<AtomicBool>,
) -> Result<EchoCounts, EchoError> {
    let commits = match dir {
        Some(dir) => Some(Commits::open(&mut io, &dir)?),
        None => None,
    };
    let mut server = Server {
        quic,
        streams: HashMap::default(),
        ready: VecDeque::new(),
        commits,
        unasked: VecDeque::new(),
        counts: EchoCounts::default(),
    };
    let mut batch = Transmits::new(TRANSMITS);
    loop {
        let now = io.now();
        let quic = &mut server.quic;
        let received = io.udp.recv(RECV_BYTES, |datagram| {
            quic.handle_datagram(now, datagram.remote, datagram.local_ip, datagram.ecn, datagram.data);
        });
        let drained = received.map_or(true, |received| received.drained);
        let ends = ending.load(Ordering::Acquire);
        server.turn(now)?;
        if ends {
            server.quic.close_all(now, VarInt::from_u32(0), &Bytes::new());
        }
        transmit(&mut server.quic, &mut io, &mut batch);
        if ends {
            if let Some(commits) = server.commits {
                commits.close();
            }
            return Ok(server.counts);
        }
        if let Some(commits) = &mut server.commits {
            commits.hand_over();
        }
        if !drained {
            continue;
        }
        let until = server.quic.next_timeout();
        io.wait(until);
    }
}

impl Server {
    fn turn(&mut self, now: Tick) -> Result<(), EchoError> {
        self.quic.handle_timeouts(now);
        while let Some((key, event)) = self.quic.poll_event() {
            match event {
                QuicEvent::Connected => {
                    self.counts.connections += 1;
                    self.quic.set_receive_window(key, crate::sink::serve::CONN_WINDOW);
                }
                QuicEvent::StreamOpened { stream, dir: Dir::Bi } => {
                    self.streams.insert((key, stream), EchoStream::default());
                }
                QuicEvent::StreamOpened { stream, dir: Dir::Uni } => {
                    self.quic.stop_sending(key, stream, VarInt::from_u32(1));
                }
                // One that has room again may be read again.
                QuicEvent::Readable { stream } | QuicEvent::Writable { stream } => {
                    self.ready.push_back((key, stream));
                }
                QuicEvent::Stopped { stream, .. } => {
                    self.streams.remove(&(key, stream));
                }
                QuicEvent::Closed { .. } => self.streams.retain(|(conn, _), _| *conn != key),
                QuicEvent::Finished { .. } | QuicEvent::StreamsAvailable { .. } => {}
            }
        }
        self.take_committed()?;
        while let Some(stream) = self.ready.pop_front() {
            self.read(stream);
        }
        self.ask_commits()
    }

    /// Answers what is written.
    fn take_committed(&mut self) -> Result<(), EchoError> {
        let Some(commits) = &mut self.commits else { return Ok(()) };
        while let Some(stream_key) = commits.poll()? {
            self.counts.committed += 1;
            if let Some(stream) = self.streams.get_mut(&stream_key) {
                stream.owed -= 1;
                stream.answer(&mut self.counts);
                self.ready.push_back(stream_key);
            }
        }
        Ok(())
    }

    /// Asks for the writes that there is room for.
    fn ask_commits(&mut self) -> Result<(), EchoError> {
        let Some(commits) = &mut self.commits else { return Ok(()) };
        while commits.has_room() {
            let Some(stream_key) = self.unasked.pop_front() else { break };
            commits.ask(stream_key)?;
        }
        Ok(())
    }

    /// Reads one stream as far as it may be, and writes what it is owed.
    fn read(&mut self, stream_key: StreamKey) {
        let (key, id) = stream_key;
        let Some(stream) = self.streams.get_mut(&stream_key) else { return };
        loop {
            stream.flush(&mut self.quic, stream_key);
            if stream.is_full() || stream.finished {
                break;
            }
            match self.quic.read(key, id, READ_BYTES) {
                ReadOutcome::Data(chunk) => match stream.requests.push(&chunk) {
                    Ok(ended) if self.commits.is_some() => {
                        stream.owed += ended;
                        self.unasked.extend((0..ended).map(|_| stream_key));
                    }
                    Ok(ended) => (0..ended).for_each(|_| stream.answer(&mut self.counts)),
                    Err(_) => {
                        self.counts.broken_streams += 1;
                        self.quic.stop_sending(key, id, VarInt::from_u32(1));
                        self.quic.reset(key, id, VarInt::from_u32(1));
                        self.streams.remove(&stream_key);
                        return;
                    }
                },
                ReadOutcome::Blocked => break,
                ReadOutcome::Finished => stream.finished = true,
                ReadOutcome::Reset(_) | ReadOutcome::Gone => {
                    self.streams.remove(&stream_key);
                    return;
                }
            }
        }
        if stream.is_over() {
            self.quic.finish(key, id);
            self.streams.remove(&stream_key);
        }
    }
}
