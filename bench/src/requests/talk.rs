//! One connection with one stream of requests. Scope: one run, on the calling thread.
//! Owns: the endpoint, the connection, the requests that are not answered.
//! Invariants: at most as many requests are unanswered as the shape says; the window begins when everything is prepared;
//! after it nothing is begun, and what was begun has until a deadline.
//! Not here: what is asked and what an answer means (`keyed`, `groups`).

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use felix_runtime::Tick;
use felix_runtime::quic::{
    CLIENT_ALPN, ConnKey, QuicEvent, ReadOutcome, StreamId, VarInt, WriteState, client_tls,
};
use felix_wire::client::{Auth, AuthOk, Form, Message};
use felix_wire::features::Features;
use felix_wire::flags::Flags;
use felix_wire::frame::{Frame, FrameReader};
use felix_wire::id::RequestId;
use felix_wire::limits::FRAME_PAYLOAD_MAX;

use super::{RequestKind, RequestPlan};
use crate::endpoint::Endpoint;
use crate::load::LoadError;
use crate::load::window::Window;
use crate::measure::LoadReport;
use crate::peers::report::{Sent, count, of_window};
use crate::shape::{Shape, ShapeError};

/// Without an answer for this long a run has failed.
const DEADLINE: Duration = Duration::from_secs(10);
const READ_BYTES: usize = 64 << 10;
/// Bytes written before the socket is looked at again.
const PUMP_BYTES: usize = 256 << 10;

/// What an answer came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Done {
    /// So many more of what the run is about, each with so many bytes of payload.
    Counted { times: u32, bytes: u64 },
    /// Something the run needs beside it.
    Aside,
}

/// What is asked.
pub trait Work {
    /// Writes the next request. False while there is none before another answer comes.
    fn ask(&mut self, id: RequestId, form: Form, out: &mut BytesMut) -> bool;

    /// An answer that is none of the general ones, with the number it names. `None` for what does not answer the request.
    fn answered(&mut self, message: &Message<'_>) -> Option<(RequestId, Done)>;

    /// Whether what has to be there is there.
    fn is_prepared(&self) -> bool;
}

/// # Errors
/// More than one stream, or batches.
pub fn check(shape: &Shape) -> Result<(), ShapeError> {
    if shape.lanes() == 1 && shape.batch_records == 1 && shape.rate.is_none() && shape.subscribers == 0 {
        return Ok(());
    }
    let rule = "single requests have one stream, batches of one, and neither readers nor a rate".to_owned();
    Err(ShapeError::Rule { shape: shape.name.clone(), rule })
}

/// Runs the plan with that work.
pub fn run(plan: &RequestPlan, work: impl Work) -> Result<LoadReport, LoadError> {
    let RequestPlan { target, shape, .. } = plan;
    let mut endpoint = Endpoint::open(target.address, shape.mtu)?;
    let refused = |error: &dyn std::fmt::Display| LoadError::Connect(error.to_string());
    let tls = client_tls(&target.roots, &[CLIENT_ALPN]).map_err(|error| refused(&error))?;
    let now = endpoint.now();
    let key = endpoint
        .quic
        .connect(now, Arc::new(tls), target.address, &target.server_name, None)
        .map_err(|error| refused(&error))?;
    let mut talk = Talk {
        plan,
        work,
        endpoint,
        key,
        stream: None,
        authenticated: false,
        reader: FrameReader::new(FRAME_PAYLOAD_MAX),
        out: BytesMut::new(),
        front: Bytes::new(),
        unanswered: VecDeque::new(),
        last: 0,
        refused: 0,
        window: None,
        stopping: false,
        heard: now,
    };
    talk.finish()?;
    let now = talk.endpoint.now();
    talk.endpoint.quic.close(now, key, VarInt::from_u32(0), Bytes::new());
    talk.endpoint.transmit();
    let sent = Sent { batches: talk.last, refused: talk.refused, unanswered: talk.unanswered.len() as u64 };
    let report = talk.window.as_ref().and_then(|window| of_window(&plan.name, shape, window, sent));
    report.ok_or(LoadError::TimedOut { what: "the steady window", waited_s: 0 })
}

/// See the module.
struct Talk<'p, W> {
    plan: &'p RequestPlan,
    work: W,
    endpoint: Endpoint,
    key: ConnKey,
    stream: Option<StreamId>,
    authenticated: bool,
    reader: FrameReader,
    out: BytesMut,
    front: Bytes,
    /// Numbers, and when each was written.
    unanswered: VecDeque<(RequestId, Tick)>,
    last: u64,
    refused: u64,
    /// Begins with the preparation's end.
    window: Option<Window>,
    stopping: bool,
    /// When the last answer came.
    heard: Tick,
}

impl<W: Work> Talk<'_, W> {
    /// Until the window is over and everything asked is answered.
    fn finish(&mut self) -> Result<(), LoadError> {
        loop {
            let now = self.endpoint.receive()?;
            while let Some((key, event)) = self.endpoint.quic.poll_event() {
                match event {
                    QuicEvent::Connected if key == self.key => {
                        self.stream = self.endpoint.quic.open_bi(key);
                        self.out = auth_frame(self.plan);
                    }
                    QuicEvent::Stopped { .. } => {
                        return Err(LoadError::Closed("the server stopped the stream".to_owned()));
                    }
                    QuicEvent::Closed { reason } => return Err(LoadError::Closed(format!("{reason:?}"))),
                    _ => {}
                }
            }
            self.read(now)?;
            self.advance(now);
            if self.stopping && self.unanswered.is_empty() {
                return Ok(());
            }
            if now >= self.heard + DEADLINE {
                return Err(LoadError::TimedOut { what: "an answer", waited_s: DEADLINE.as_secs() });
            }
            let more = self.pump()?;
            self.endpoint.transmit();
            if !more {
                let change = self.window.as_ref().and_then(Window::next_change);
                let until = change.into_iter().chain([self.heard + DEADLINE]).min();
                self.endpoint.wait(until)?;
            }
        }
    }

    fn advance(&mut self, now: Tick) {
        let shape = &self.plan.shape;
        if self.window.is_none() && self.authenticated && self.work.is_prepared() {
            let pid = self.plan.target.server_pid;
            self.window = Some(Window::new(now, shape.warmup(), shape.duration(), pid));
        }
        self.stopping |= self.window.as_mut().is_some_and(|window| window.advance(now));
    }

    /// Asks and writes what may be. True when there is more at once.
    fn pump(&mut self) -> Result<bool, LoadError> {
        let Some(stream) = self.stream else { return Ok(false) };
        let mut written = 0;
        loop {
            let now = self.endpoint.now();
            while self.authenticated
                && !self.stopping
                && self.out.len() < PUMP_BYTES
                && self.unanswered.len() < self.plan.shape.inflight as usize
            {
                let id = RequestId(self.last + 1);
                if !self.work.ask(id, self.plan.form, &mut self.out) {
                    break;
                }
                self.last += 1;
                self.unanswered.push_back((id, now));
            }
            if self.front.is_empty() {
                self.front = self.out.split().freeze();
            }
            if self.front.is_empty() {
                return Ok(false);
            }
            written += self.front.len();
            match self.endpoint.quic.write(self.key, stream, &mut self.front).state {
                WriteState::All if written < PUMP_BYTES => {}
                WriteState::All => return Ok(true),
                WriteState::Blocked => return Ok(false),
                state => return Err(LoadError::Closed(format!("the stream: {state:?}"))),
            }
        }
    }

    fn read(&mut self, now: Tick) -> Result<(), LoadError> {
        let Some(stream) = self.stream else { return Ok(()) };
        loop {
            while let Some(frame) =
                self.reader.next().map_err(|error| LoadError::Protocol(error.to_string()))?
            {
                self.take(&frame, now)?;
            }
            match self.endpoint.quic.read(self.key, stream, READ_BYTES) {
                ReadOutcome::Data(chunk) => self.reader.push(chunk),
                ReadOutcome::Blocked => return Ok(()),
                end => return Err(LoadError::Closed(format!("instead of an answer: {end:?}"))),
            }
        }
    }

    fn take(&mut self, frame: &Frame, now: Tick) -> Result<(), LoadError> {
        let message = Message::decode_frame(frame).map_err(|error| LoadError::Protocol(error.to_string()))?;
        self.heard = now;
        if !self.authenticated {
            return match message {
                Message::AuthOk(hello) => self.welcomed(&hello),
                Message::Error(error) => {
                    Err(LoadError::Refused { what: "auth", message: error.message.to_string() })
                }
                other => Err(LoadError::Protocol(format!("{} in answer to auth", other.type_name()))),
            };
        }
        let Some((asked, at)) = self.unanswered.pop_front() else {
            return Err(LoadError::Protocol("an answer to nothing".to_owned()));
        };
        let kind = self.plan.kind.name();
        if let Message::Error(error) = &message {
            // What it was to prepare is not there, and later requests would be refused too.
            if self.window.is_none() {
                return Err(LoadError::Refused { what: kind, message: error.message.to_string() });
            }
            self.refused += 1;
            return Ok(());
        }
        match self.work.answered(&message) {
            Some((named, done)) if named == asked => {
                if let (Done::Counted { times, bytes }, Some(window)) = (done, &mut self.window) {
                    let took = now.saturating_since(at);
                    (0..times).for_each(|_| count(window, bytes, took));
                }
                Ok(())
            }
            Some((named, _)) => {
                Err(LoadError::Protocol(format!("answer {} to request {}", named.0, asked.0)))
            }
            None => Err(LoadError::Protocol(format!("{} in answer to a {kind}", message.type_name()))),
        }
    }

    fn welcomed(&mut self, hello: &AuthOk) -> Result<(), LoadError> {
        let needed = match self.plan.form {
            Form::Binary => Features::ORDERED_ANSWERS | Features::BINARY_MESSAGES,
            Form::Json => Features::ORDERED_ANSWERS,
        };
        if !hello.features().contains(needed) {
            let message = "it does not answer in order, or not in this form".to_owned();
            return Err(LoadError::Refused { what: "the form of requests", message });
        }
        let ranges =
            self.plan.kind != RequestKind::GroupPage || hello.features().contains(Features::GROUP_RANGES);
        if !ranges {
            let message = "it does not take one ack for many records".to_owned();
            return Err(LoadError::Refused { what: "acks", message });
        }
        if self.plan.form == Form::Binary {
            self.reader.take_binary_messages();
        }
        self.authenticated = true;
        Ok(())
    }
}

fn auth_frame(plan: &RequestPlan) -> BytesMut {
    let features = Features::ERROR_CODES
        .union(Features::COUNTERS)
        .union(Features::CONSUMER_GROUP)
        .union(Features::GROUP_ADMIN)
        .union(Features::GROUP_RANGES)
        .union(Features::ORDERED_ANSWERS);
    let features = match plan.form {
        Form::Binary => features.union(Features::BINARY_MESSAGES),
        Form::Json => features,
    };
    let (lo, hi) = features.words(true);
    let mut out = BytesMut::new();
    Message::Auth(Auth {
        tenant_id: plan.target.tenant.as_str().into(),
        token: plan.target.token.as_str().into(),
        client_flags: Some(Flags::UNANNOUNCED),
        client_features: Some(lo),
        client_features_hi: hi,
    })
    .encode_frame(&mut out);
    out
}
