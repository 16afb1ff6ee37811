//! One publishing stream. Scope: one per stream, in the generator's thread.
//! Owns: the batch that is being written, the batches that wait for an answer, the batches that are due and not begun.
//! Invariants: at most `inflight` batches are unanswered; a batch that is due is sent with the moment it was due, however
//! late; each answer belongs to a batch that waits for it, or the run fails.
//! Not here: when a batch is due (`pace`), what is done with the counts (`run`).

use std::collections::VecDeque;

use bytes::Bytes;
use felix_runtime::Tick;
use felix_runtime::quic::{ConnKey, Quic, ReadOutcome, StreamId, WriteState};
use felix_wire::client::{AckOutcome, Message, PublishAck};
use felix_wire::flags::Flags;
use felix_wire::frame::{Frame, FrameReader};
use felix_wire::id::RequestId;
use felix_wire::limits::FRAME_PAYLOAD_MAX;

use super::LoadError;
use super::ask::unexpected;
use super::frames::Frames;
use super::window::Window;

/// Bytes of answers taken at once.
const READ_BYTES: usize = 64 << 10;
/// Bytes written in one pump before the socket is looked at again.
const PUMP_BYTES: usize = 256 << 10;
/// Batches that may be due and not begun: an open loop that is this far behind its schedule has shown what it can.
const DUE_MAX: usize = 1 << 20;

/// How far the stream is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Authenticating,
    Publishing,
    /// Nothing new is begun; a stream without answers still sends one batch that is answered.
    Stopping,
}

/// A batch without its answer.
#[derive(Debug, Clone, Copy)]
struct Unanswered {
    request: RequestId,
    due: Tick,
    begun: Tick,
}

/// What a lane did in the whole run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LaneCounts {
    pub sent: u64,
    pub refused: u64,
    /// Batches that were due when there was no room to remember them.
    pub forgotten: u64,
}

/// What a pump came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pumped {
    /// Nothing more until an answer, a `Writable` or the next due batch.
    Idle,
    /// There is more to write at once.
    Again,
}

/// What a lane is made of.
#[derive(Debug)]
pub struct LaneSpec {
    pub key: ConnKey,
    pub frames: Frames,
    pub acked: bool,
    pub inflight: usize,
    /// Batches come from a schedule, not one after the other.
    pub scheduled: bool,
    /// Payload bytes of a batch and records in it.
    pub batch_bytes: u64,
    pub batch_records: u64,
}

/// See the module.
#[derive(Debug)]
pub struct Lane {
    spec: LaneSpec,
    stream: Option<StreamId>,
    state: State,
    reader: FrameReader,
    writing: [Bytes; 2],
    unanswered: VecDeque<Unanswered>,
    due: VecDeque<Tick>,
    requests: u64,
    /// The last batch of a stream without answers was sent.
    closed_off: bool,
    pub counts: LaneCounts,
}

impl Lane {
    #[must_use]
    pub fn new(spec: LaneSpec) -> Lane {
        Lane {
            spec,
            stream: None,
            state: State::Authenticating,
            reader: FrameReader::new(FRAME_PAYLOAD_MAX),
            writing: [Bytes::new(), Bytes::new()],
            unanswered: VecDeque::new(),
            due: VecDeque::new(),
            requests: 0,
            closed_off: false,
            counts: LaneCounts::default(),
        }
    }

    /// The stream is open: authenticates on it.
    pub fn opened(&mut self, stream: StreamId, auth: Bytes, quic: &mut Quic) {
        self.stream = Some(stream);
        self.writing = [auth, Bytes::new()];
        self.write(quic);
    }

    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.state != State::Authenticating
    }

    /// A batch is due.
    pub fn offer(&mut self, due: Tick) {
        if self.due.len() < DUE_MAX {
            self.due.push_back(due);
        } else {
            self.counts.forgotten += 1;
        }
    }

    /// Begins no more batches.
    pub fn stop(&mut self) {
        self.state = State::Stopping;
        self.due.clear();
    }

    /// Everything is written and answered.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.is_written() && self.unanswered.is_empty() && (self.spec.acked || self.closed_off)
    }

    /// Batches that wait for an answer.
    #[must_use]
    pub fn unanswered(&self) -> u64 {
        self.unanswered.len() as u64
    }

    /// Records of batches that were sent and not refused.
    #[must_use]
    pub fn records(&self) -> u64 {
        (self.counts.sent - self.counts.refused) * self.spec.batch_records
    }

    /// Reads answers. True when the stream may write again or has just authenticated.
    ///
    /// # Errors
    /// The stream ended, or what came is no answer to anything.
    pub fn read(&mut self, quic: &mut Quic, now: Tick, window: &mut Window) -> Result<bool, LoadError> {
        let Some(stream) = self.stream else { return Ok(false) };
        let mut progress = false;
        loop {
            while let Some(frame) =
                self.reader.next().map_err(|error| LoadError::Protocol(error.to_string()))?
            {
                self.take(&frame, now, window)?;
                progress = true;
            }
            match quic.read(self.spec.key, stream, READ_BYTES) {
                ReadOutcome::Data(chunk) => self.reader.push(chunk),
                ReadOutcome::Blocked => return Ok(progress),
                end => return Err(LoadError::Closed(format!("a publishing stream: {end:?}"))),
            }
        }
    }

    /// Begins and writes what may be begun and written.
    ///
    /// # Errors
    /// The server does not want the stream any more.
    pub fn pump(&mut self, quic: &mut Quic, now: Tick, window: &mut Window) -> Result<Pumped, LoadError> {
        let mut written = 0;
        loop {
            if !self.is_written() {
                match self.write(quic) {
                    WriteState::All if self.is_ready() => self.finish_batch(window),
                    WriteState::All => {}
                    WriteState::Blocked => return Ok(Pumped::Idle),
                    state => return Err(LoadError::Closed(format!("a publishing stream: {state:?}"))),
                }
            }
            if written >= PUMP_BYTES {
                return Ok(Pumped::Again);
            }
            let Some((due, answered)) = self.next_batch(now) else { return Ok(Pumped::Idle) };
            self.begin_batch(due, answered, now);
            written += self.writing.iter().map(Bytes::len).sum::<usize>();
        }
    }

    /// When the next batch was due, and whether it is to be answered.
    fn next_batch(&mut self, now: Tick) -> Option<(Tick, bool)> {
        if self.unanswered.len() >= self.spec.inflight {
            return None;
        }
        match self.state {
            State::Authenticating => None,
            State::Publishing if self.spec.scheduled => Some((self.due.pop_front()?, self.spec.acked)),
            State::Publishing => Some((now, self.spec.acked)),
            State::Stopping if self.spec.acked || self.closed_off => None,
            State::Stopping => {
                self.closed_off = true;
                Some((now, true))
            }
        }
    }

    fn begin_batch(&mut self, due: Tick, answered: bool, now: Tick) {
        let first = self.counts.sent * self.spec.batch_records;
        let request = answered.then(|| {
            self.requests += 1;
            RequestId(self.requests)
        });
        self.writing = self.spec.frames.batch(request, first, due);
        self.counts.sent += 1;
        if let Some(request) = request {
            self.unanswered.push_back(Unanswered { request, due, begun: now });
        }
    }

    /// A batch was given to the transport whole. Without answers, this is all that is known of it.
    fn finish_batch(&mut self, window: &mut Window) {
        if !self.spec.acked && window.is_open() {
            window.batches += 1;
            window.payload_bytes += self.spec.batch_bytes;
        }
    }

    fn is_written(&self) -> bool {
        self.writing.iter().all(Bytes::is_empty)
    }

    fn write(&mut self, quic: &mut Quic) -> WriteState {
        let Some(stream) = self.stream else { return WriteState::Gone };
        quic.write_chunks(self.spec.key, stream, &mut self.writing).state
    }

    fn take(&mut self, frame: &Frame, now: Tick, window: &mut Window) -> Result<(), LoadError> {
        if self.state == State::Authenticating || frame.flags == 0 {
            let message =
                Message::decode(&frame.payload).map_err(|error| LoadError::Protocol(error.to_string()))?;
            return match message {
                Message::AuthOk(hello) if self.state == State::Authenticating => {
                    if let Some(granted) = hello.publish_window {
                        self.spec.inflight = self.spec.inflight.min(granted.max(1) as usize);
                    }
                    self.state = State::Publishing;
                    Ok(())
                }
                Message::Ok if self.state == State::Authenticating => {
                    self.state = State::Publishing;
                    Ok(())
                }
                other => Err(unexpected("publishing", &other)),
            };
        }
        if !Flags(frame.flags).contains(Flags::PUBLISH_ACK) {
            return Err(LoadError::Protocol(format!("flags {:#06x} on a publishing stream", frame.flags)));
        }
        let ack = PublishAck::decode(frame.flags, &frame.payload)
            .map_err(|error| LoadError::Protocol(error.to_string()))?;
        self.answered(&ack, now, window)
    }

    fn answered(&mut self, ack: &PublishAck<'_>, now: Tick, window: &mut Window) -> Result<(), LoadError> {
        let at = self.unanswered.iter().position(|waiting| waiting.request == ack.request_id);
        let Some(waiting) = at.and_then(|at| self.unanswered.remove(at)) else {
            return Err(LoadError::Protocol(format!(
                "an answer to request {}, which waits for none",
                ack.request_id
            )));
        };
        match &ack.outcome {
            AckOutcome::Error { .. } => self.counts.refused += 1,
            AckOutcome::Ok { .. } if self.spec.acked && window.is_open() => {
                window.batches += 1;
                window.payload_bytes += self.spec.batch_bytes;
                window.latencies.ack.record(now.saturating_since(waiting.due));
                window.latencies.service.record(now.saturating_since(waiting.begun));
                if self.spec.scheduled {
                    window.latencies.queueing.record(waiting.begun.saturating_since(waiting.due));
                }
            }
            AckOutcome::Ok { .. } => {}
        }
        Ok(())
    }
}
