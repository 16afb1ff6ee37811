//! A pipelining load for a Redis server. Scope: one run, on the calling thread.
//! Owns: a connection for each publishing stream of the shape, the batches under way on it.
//! Invariants: at most `inflight` batches of a connection are unanswered; a batch is answered when each of its commands is;
//! each answer is the right one for its command, an error counts as refused, anything else fails the run; every wait has a
//! deadline.
//! Not here: starting the server (`server`), what a reply is (`replies`).

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use felix_runtime::{Clock, Tick};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::replies::{Replies, Reply};
use crate::load::LoadError;
use crate::load::window::Window;
use crate::measure::LoadReport;
use crate::peers::report::{Sent, count, of_window};
use crate::shape::Shape;

/// For connecting, for filling a key, and until everything sent is answered.
const DEADLINE: Duration = Duration::from_secs(15);
/// Bytes written and read at once.
const IO_BYTES: usize = 64 << 10;
/// Bytes a stream keeps, about, and entries at least: what the broker keeps of a shard in memory.
const KEPT_BYTES: u64 = 64 << 20;
const KEPT_ENTRIES: u64 = 1_024;
/// A wait looks around this often.
const WAIT_MAX: Duration = Duration::from_millis(100);

/// What is asked again and again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RedisCommand {
    /// An entry of a stream with one field, and the oldest entries go.
    Xadd,
    /// A value over the last one.
    Set,
    /// The value, which is set before the run.
    Get,
}

impl RedisCommand {
    /// The command for a value of `bytes`, in the protocol's form.
    fn encode(self, key: &str, value: &[u8]) -> Vec<u8> {
        let entries = (KEPT_BYTES / value.len().max(1) as u64).max(KEPT_ENTRIES).to_string();
        match self {
            RedisCommand::Xadd => {
                let words: [&[u8]; 8] =
                    [b"XADD", key.as_bytes(), b"MAXLEN", b"~", entries.as_bytes(), b"*", b"f", value];
                command(&words)
            }
            RedisCommand::Set => command(&[b"SET", key.as_bytes(), value]),
            RedisCommand::Get => command(&[b"GET", key.as_bytes()]),
        }
    }

    /// Whether the command was done; the error when it was refused.
    fn check(self, reply: &Reply, record_bytes: u32) -> Result<bool, LoadError> {
        match (self, reply) {
            (_, Reply::Error(_)) => Ok(false),
            (RedisCommand::Xadd, Reply::Value(Some(_))) => Ok(true),
            (RedisCommand::Set, Reply::Status(status)) if status == "OK" => Ok(true),
            (RedisCommand::Get, Reply::Value(Some(bytes))) if *bytes == u64::from(record_bytes) => Ok(true),
            (_, other) => Err(LoadError::Protocol(format!("{other:?} in answer to {self:?}"))),
        }
    }
}

/// An array of strings.
fn command(words: &[&[u8]]) -> Vec<u8> {
    let mut out = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        out.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
    out
}

/// Sends `what` to the server at `address`, process `pid`, as `shape` says: a batch is as many commands as it has records,
/// each with a record's bytes.
///
/// # Errors
/// The server cannot be reached, went away or answered wrongly. Refused commands are no errors: the report counts them.
pub fn run(
    name: &str,
    (address, pid): (SocketAddr, Option<u32>),
    shape: &Shape,
    what: RedisCommand,
) -> Result<LoadReport, LoadError> {
    shape.check()?;
    let lanes: Result<Vec<Lane>, LoadError> =
        (0..shape.lanes()).map(|number| Lane::open(address, shape, what, number)).collect();
    let clock = Clock::start();
    let window = Window::new(clock.now(), shape.warmup(), shape.duration(), pid);
    let mut run =
        Run { shape, what, lanes: lanes?, clock, window, sent: Sent::default(), buffer: vec![0; IO_BYTES] };
    run.finish()?;
    run.sent.unanswered = run.lanes.iter().map(|lane| lane.waiting.len() as u64).sum();
    of_window(name, shape, &run.window, run.sent)
        .ok_or(LoadError::TimedOut { what: "the steady window", waited_s: 0 })
}

/// A batch without its answers.
#[derive(Debug)]
struct Batch {
    begun: Tick,
    answers_left: u32,
    refused: bool,
}

/// One connection.
struct Lane {
    socket: TcpStream,
    /// Batches one behind the other, as many as one write takes, at least one.
    batches: Vec<u8>,
    batch_bytes: usize,
    /// Where the next write begins in `batches`, and the bytes of begun batches that were not written.
    at: usize,
    unwritten: usize,
    waiting: VecDeque<Batch>,
    replies: Replies,
}

impl Lane {
    fn open(address: SocketAddr, shape: &Shape, what: RedisCommand, number: u32) -> Result<Lane, LoadError> {
        let mut socket = TcpStream::connect_timeout(&address, DEADLINE)?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(DEADLINE))?;
        let key = format!("bench:{number}");
        let value = noise(shape.record_bytes);
        if what == RedisCommand::Get {
            set(&mut socket, &key, &value)?;
        }
        socket.set_nonblocking(true)?;
        let batch = what.encode(&key, &value).repeat(shape.batch_records as usize);
        Ok(Lane {
            socket,
            batch_bytes: batch.len(),
            batches: batch.repeat(IO_BYTES.div_ceil(batch.len())),
            at: 0,
            unwritten: 0,
            waiting: VecDeque::new(),
            replies: Replies::default(),
        })
    }

    /// Writes until everything begun is written or the socket is full.
    fn write(&mut self) -> Result<(), LoadError> {
        while self.unwritten > 0 {
            let end = (self.at + self.unwritten).min(self.batches.len());
            match self.socket.write(&self.batches[self.at..end]) {
                Ok(0) => return Err(LoadError::Closed("a write of nothing".to_owned())),
                Ok(count) => {
                    self.unwritten -= count;
                    self.at = (self.at + count) % self.batches.len();
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(LoadError::Closed(error.to_string())),
            }
        }
        Ok(())
    }
}

/// Fills a key before the run.
fn set(socket: &mut TcpStream, key: &str, value: &[u8]) -> Result<(), LoadError> {
    socket.write_all(&RedisCommand::Set.encode(key, value))?;
    let (mut replies, mut buffer) = (Replies::default(), [0; 1_024]);
    loop {
        let count = socket.read(&mut buffer)?;
        if count == 0 {
            return Err(LoadError::Closed("before a key was filled".to_owned()));
        }
        let mut bytes = &buffer[..count];
        let reply = replies.next(&mut bytes).map_err(|error| LoadError::Protocol(error.to_string()))?;
        match reply {
            None => {}
            Some(Reply::Status(status)) if status == "OK" => return Ok(()),
            Some(other) => {
                return Err(LoadError::Refused { what: "filling a key", message: format!("{other:?}") });
            }
        }
    }
}

/// Bytes without a pattern, the same ones every time.
fn noise(bytes: u32) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 56) as u8
    };
    (0..bytes).map(|_| next()).collect()
}

struct Run<'s> {
    shape: &'s Shape,
    what: RedisCommand,
    lanes: Vec<Lane>,
    clock: Clock,
    window: Window,
    sent: Sent,
    buffer: Vec<u8>,
}

impl Run<'_> {
    fn finish(&mut self) -> Result<(), LoadError> {
        let mut give_up = None;
        loop {
            let now = self.clock.now();
            let over = self.window.advance(now);
            if !over {
                self.begin(now);
            }
            for lane in &mut self.lanes {
                lane.write()?;
            }
            if over {
                let until = *give_up.get_or_insert(now + DEADLINE);
                if now >= until || self.lanes.iter().all(|lane| lane.waiting.is_empty()) {
                    return Ok(());
                }
            }
            for index in self.wait(now)? {
                self.read(index)?;
            }
        }
    }

    /// Begins every batch that may be begun.
    fn begin(&mut self, now: Tick) {
        for lane in &mut self.lanes {
            while lane.waiting.len() < self.shape.inflight as usize {
                let answers_left = self.shape.batch_records;
                lane.waiting.push_back(Batch { begun: now, answers_left, refused: false });
                lane.unwritten += lane.batch_bytes;
                self.sent.batches += 1;
            }
        }
    }

    /// Lanes with something to read, once there are some or it is time to look at the window.
    fn wait(&self, now: Tick) -> Result<Vec<usize>, LoadError> {
        let due = self.window.next_change().map_or(WAIT_MAX, |at| at.saturating_since(now)).min(WAIT_MAX);
        let timeout = Timespec { tv_sec: 0, tv_nsec: due.subsec_nanos().into() };
        let mut fds: Vec<PollFd<'_>> = self
            .lanes
            .iter()
            .map(|lane| {
                let blocked = lane.unwritten > 0;
                PollFd::new(
                    &lane.socket,
                    if blocked { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN },
                )
            })
            .collect();
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok(Vec::new()),
            Err(error) => return Err(io::Error::from(error).into()),
        }
        let something = PollFlags::IN | PollFlags::ERR | PollFlags::HUP;
        let ready = fds.iter().enumerate().filter(|(_, fd)| fd.revents().intersects(something));
        Ok(ready.map(|(index, _)| index).collect())
    }

    fn read(&mut self, index: usize) -> Result<(), LoadError> {
        let lane = &mut self.lanes[index];
        let read = match lane.socket.read(&mut self.buffer) {
            Ok(0) => return Err(LoadError::Closed("the server closed a connection".to_owned())),
            Ok(read) => read,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                return Ok(());
            }
            Err(error) => return Err(LoadError::Closed(error.to_string())),
        };
        let now = self.clock.now();
        let mut bytes = &self.buffer[..read];
        loop {
            let reply =
                lane.replies.next(&mut bytes).map_err(|error| LoadError::Protocol(error.to_string()))?;
            let Some(reply) = reply else { return Ok(()) };
            let Some(batch) = lane.waiting.front_mut() else {
                return Err(LoadError::Protocol(format!("{reply:?} in answer to nothing")));
            };
            batch.refused |= !self.what.check(&reply, self.shape.record_bytes)?;
            batch.answers_left -= 1;
            if batch.answers_left > 0 {
                continue;
            }
            if batch.refused {
                self.sent.refused += 1;
            } else {
                count(&mut self.window, self.shape.batch_bytes(), now.saturating_since(batch.begun));
            }
            lane.waiting.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    fn shape() -> Shape {
        Shape {
            record_bytes: 100,
            batch_records: 3,
            inflight: 4,
            warmup_s: 0.05,
            duration_s: 0.15,
            ..Shape::canonical()
        }
    }

    /// A server that answers each command with the next of `answers`, round and round, and tells how many it answered.
    fn server(answers: &'static [&'static str]) -> (SocketAddr, Arc<AtomicU64>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let answered = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&answered);
        std::thread::spawn(move || {
            for socket in listener.incoming() {
                let count = Arc::clone(&count);
                std::thread::spawn(move || answer(socket.unwrap(), answers, &count));
            }
        });
        (address, answered)
    }

    /// Commands of these tests are all of one length once their key is filled.
    fn answer(mut socket: TcpStream, answers: &[&str], count: &AtomicU64) {
        let length = RedisCommand::Xadd.encode("bench:0", &noise(shape().record_bytes)).len();
        let (mut buffer, mut have) = (vec![0; 64 << 10], 0);
        while let Ok(read @ 1..) = socket.read(&mut buffer) {
            have += read;
            let mut out = String::new();
            while have >= length {
                have -= length;
                let number = count.fetch_add(1, Ordering::SeqCst) as usize;
                out.push_str(answers[number % answers.len()]);
            }
            if socket.write_all(out.as_bytes()).is_err() {
                return;
            }
        }
    }

    fn loaded(answers: &'static [&'static str]) -> (Result<LoadReport, LoadError>, u64) {
        let (address, answered) = server(answers);
        let outcome = run("redis", (address, None), &shape(), RedisCommand::Xadd);
        (outcome, answered.load(Ordering::SeqCst))
    }

    #[test]
    fn every_batch_is_answered_by_as_many_replies_as_it_has_records() {
        let (report, answered) = loaded(&["$3\r\n1-0\r\n"]);
        let report = report.unwrap();
        assert!(report.is_clean() && report.batches > 0, "{report}");
        assert_eq!(answered, 3 * report.sent_batches);
        assert_eq!(report.payload_bytes, 300 * report.batches);
        assert_eq!(report.ack_latency.count, report.batches);
    }

    #[test]
    fn a_batch_with_one_refused_command_is_refused() {
        let (report, answered) = loaded(&["$3\r\n1-0\r\n", "$3\r\n1-0\r\n", "-OOM no\r\n"]);
        let report = report.unwrap();
        assert!(!report.is_clean());
        assert_eq!((report.refused_batches, report.batches), (report.sent_batches, 0));
        assert_eq!(answered, 3 * report.sent_batches);
    }

    #[test]
    fn an_answer_to_nothing_fails_the_run() {
        let (outcome, _) = loaded(&["$3\r\n1-0\r\n+OK\r\n"]);
        assert!(matches!(outcome.unwrap_err(), LoadError::Protocol(_)));
    }

    #[test]
    fn a_command_is_an_array_of_strings() {
        assert_eq!(RedisCommand::Set.encode("k", b"v\r\n"), b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$3\r\nv\r\n\r\n");
        let text = String::from_utf8(RedisCommand::Xadd.encode("k", &[b'x'; 256])).unwrap();
        assert!(text.starts_with(
            "*8\r\n$4\r\nXADD\r\n$1\r\nk\r\n$6\r\nMAXLEN\r\n$1\r\n~\r\n$6\r\n262144\r\n$1\r\n*\r\n"
        ));
    }

    #[test]
    fn replies_that_do_not_fit_their_command_fail_the_run() {
        let check = RedisCommand::check;
        assert!(check(RedisCommand::Xadd, &Reply::Value(Some(15)), 1).unwrap());
        assert!(check(RedisCommand::Set, &Reply::Status("OK".to_owned()), 1).unwrap());
        assert!(!check(RedisCommand::Set, &Reply::Error("OOM".to_owned()), 1).unwrap());
        assert!(check(RedisCommand::Get, &Reply::Value(Some(9)), 9).unwrap());
        assert!(check(RedisCommand::Get, &Reply::Value(Some(8)), 9).is_err());
        assert!(check(RedisCommand::Get, &Reply::Value(None), 9).is_err());
        assert!(check(RedisCommand::Set, &Reply::Status("QUEUED".to_owned()), 9).is_err());
    }

    #[test]
    fn a_server_that_is_not_there_is_an_error() {
        let address = crate::peers::programs::free_port().unwrap();
        let outcome = run("redis", (address, None), &shape(), RedisCommand::Set);
        assert!(matches!(outcome.unwrap_err(), LoadError::Io(_)));
    }
}
