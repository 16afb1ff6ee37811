//! One request at a time, and how long its answer takes. Scope: one run, on the calling thread.
//! Owns: the endpoint, the connection, the request under way.
//! Invariants: the next request is written when the answer to the last one was read; each answer carries the number of its
//! request, or the run fails; every wait has a deadline.
//! Not here: answering (`serve`).

use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use felix_runtime::Tick;
use felix_runtime::quic::{
    CLIENT_ALPN, ConnKey, QuicEvent, ReadOutcome, StreamId, VarInt, WriteState, client_tls,
};

use super::requests::{Answers, HEAD_BYTES, REQUEST_BYTES_MAX};
use crate::endpoint::Endpoint;
use crate::load::LoadError;
use crate::load::window::Window;
use crate::measure::LoadReport;
use crate::peers::report::{Sent, count, of_window};
use crate::shape::{Shape, ShapeError};
use crate::target::Target;

/// Until the connection is there, and then for each answer.
const DEADLINE: Duration = Duration::from_secs(10);
const READ_BYTES: usize = 64 << 10;

/// Asks an echo one request after the other, each as long as a record of `shape`, for its warm-up and its window. The
/// calling thread should stay on a CPU of its own.
///
/// # Errors
/// The shape has more than one request in flight or too long ones, or the echo cannot be reached, went away or answered
/// wrongly.
pub fn run(name: &str, target: &Target, shape: &Shape) -> Result<LoadReport, LoadError> {
    shape.check()?;
    let rule = |rule: &str| ShapeError::Rule { shape: shape.name.clone(), rule: rule.to_owned() };
    if shape.lanes() != 1 || shape.inflight != 1 || shape.batch_records != 1 {
        return Err(rule("an echo is asked one request at a time on one stream").into());
    }
    if shape.record_bytes > REQUEST_BYTES_MAX {
        return Err(rule("a request to an echo has at most 1 MiB").into());
    }
    let mut endpoint = Endpoint::open(target.address, shape.mtu)?;
    let tls =
        client_tls(&target.roots, &[CLIENT_ALPN]).map_err(|error| LoadError::Connect(error.to_string()))?;
    let now = endpoint.now();
    let key = endpoint
        .quic
        .connect(now, Arc::new(tls), target.address, &target.server_name, None)
        .map_err(|error| LoadError::Connect(error.to_string()))?;
    let mut run = Run {
        endpoint,
        key,
        stream: None,
        request: request(shape.record_bytes),
        writing: Bytes::new(),
        begun: now,
        deadline: now + DEADLINE,
        asked: 0,
        answers: Answers::default(),
        window: Window::new(now, shape.warmup(), shape.duration(), target.server_pid),
    };
    run.finish(target, shape)?;
    let now = run.endpoint.now();
    run.endpoint.quic.close(now, key, VarInt::from_u32(0), Bytes::new());
    run.endpoint.transmit();
    of_window(name, shape, &run.window, Sent { batches: run.asked, ..Sent::default() })
        .ok_or(LoadError::TimedOut { what: "the steady window", waited_s: 0 })
}

/// A length and as many bytes without a pattern.
fn request(bytes: u32) -> Bytes {
    let mut out = BytesMut::with_capacity(HEAD_BYTES + bytes as usize);
    out.put_u32(bytes);
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for _ in 0..bytes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        out.put_u8((state >> 56) as u8);
    }
    out.freeze()
}

struct Run {
    endpoint: Endpoint,
    key: ConnKey,
    stream: Option<StreamId>,
    request: Bytes,
    writing: Bytes,
    /// When the request under way was written.
    begun: Tick,
    deadline: Tick,
    asked: u64,
    answers: Answers,
    window: Window,
}

impl Run {
    /// Until the window is over and everything asked is answered.
    fn finish(&mut self, target: &Target, shape: &Shape) -> Result<(), LoadError> {
        loop {
            let now = self.endpoint.receive()?;
            let mut readable = false;
            while let Some((key, event)) = self.endpoint.quic.poll_event() {
                match event {
                    QuicEvent::Connected if key == self.key => {
                        self.stream = self.endpoint.quic.open_bi(key);
                        self.window = Window::new(now, shape.warmup(), shape.duration(), target.server_pid);
                        self.ask(now);
                    }
                    QuicEvent::Readable { .. } => readable = true,
                    QuicEvent::Stopped { .. } => {
                        return Err(LoadError::Closed("the echo stopped the stream".to_owned()));
                    }
                    QuicEvent::Closed { reason } => return Err(LoadError::Closed(format!("{reason:?}"))),
                    _ => {}
                }
            }
            if readable && self.read(now)? {
                if self.window.advance(now) {
                    return Ok(());
                }
                self.ask(self.endpoint.now());
            }
            if now >= self.deadline {
                return Err(LoadError::TimedOut { what: "an answer", waited_s: DEADLINE.as_secs() });
            }
            self.write()?;
            self.endpoint.transmit();
            self.endpoint.wait(Some(self.deadline))?;
        }
    }

    fn ask(&mut self, now: Tick) {
        (self.begun, self.deadline) = (now, now + DEADLINE);
        self.asked += 1;
        self.writing = self.request.clone();
    }

    fn write(&mut self) -> Result<(), LoadError> {
        let Some(stream) = self.stream.filter(|_| !self.writing.is_empty()) else { return Ok(()) };
        match self.endpoint.quic.write(self.key, stream, &mut self.writing).state {
            WriteState::All | WriteState::Blocked => Ok(()),
            state => Err(LoadError::Closed(format!("a request: {state:?}"))),
        }
    }

    /// True when the answer has come.
    fn read(&mut self, now: Tick) -> Result<bool, LoadError> {
        let Some(stream) = self.stream else { return Ok(false) };
        let mut answered = false;
        loop {
            match self.endpoint.quic.read(self.key, stream, READ_BYTES) {
                ReadOutcome::Data(chunk) => {
                    let mut bytes = &chunk[..];
                    while let Some(number) = self.answers.next(&mut bytes) {
                        if answered || number != self.asked {
                            let asked = self.asked;
                            let what = format!("answer {number} to request {asked}");
                            return Err(LoadError::Protocol(what));
                        }
                        answered = true;
                        let latency = now.saturating_since(self.begun);
                        count(&mut self.window, (self.request.len() - HEAD_BYTES) as u64, latency);
                    }
                }
                ReadOutcome::Blocked => return Ok(answered),
                end => return Err(LoadError::Closed(format!("instead of an answer: {end:?}"))),
            }
        }
    }
}
