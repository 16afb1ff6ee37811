//! Reading what a durable shard holds, from its oldest record on, as fast as it comes. Scope: one subscriber on its own
//! connection, one thread.
//! Owns: the connection, the next offset expected.
//! Invariants: only records that were there when the subscription began count as history; at their end it begins again on
//! a new connection; every offset is delivered, told as skipped, or counted as missing; every wait has a deadline.
//! Not here: records that are published meanwhile (`reader`), checking what is in a record.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use felix_runtime::Tick;
use felix_runtime::quic::{CLIENT_ALPN, ConnKey, Dir, QuicEvent, ReadOutcome, StreamId, VarInt, client_tls};
use felix_wire::client::{EventBatch, Message, StartPosition, Subscribed};
use felix_wire::flags::Flags;
use felix_wire::frame::{Frame, FrameReader};
use felix_wire::id::Offset;
use felix_wire::limits::FRAME_PAYLOAD_MAX;

use super::ask::{self, Layout, unexpected};
use super::reader::subscribe_frame;
use super::window::Window;
use super::{LoadError, auth_frame};
use crate::endpoint::Endpoint;
use crate::measure::{CpuUse, MB};
use crate::target::Target;

/// From a connection's start to its first event.
const START_DEADLINE: Duration = Duration::from_secs(30);
/// A history that stops coming for this long has ended too early.
const SILENCE_DEADLINE: Duration = Duration::from_secs(15);
/// Bytes of events taken at once.
const READ_BYTES: usize = 1 << 20;

/// What is read.
#[derive(Debug, Clone)]
pub struct HistoryPlan {
    pub target: Target,
    pub shard: u32,
    /// From the first event to the first that is counted.
    pub warmup: Duration,
    /// How long is counted.
    pub duration: Duration,
    /// Largest datagram that path discovery tries, bytes of UDP payload.
    pub mtu: u16,
}

/// What a reader of history saw.
#[derive(Debug, Clone)]
pub struct HistoryReport {
    /// Length of the steady window, seconds.
    pub seconds: f64,
    /// Payload bytes that arrived in it.
    pub payload_bytes: u64,
    /// Offsets of the history when it was last begun.
    pub records: u64,
    /// Times the whole history was read, in the whole run.
    pub laps: u64,
    /// Offsets that never came and were not told as skipped, in the whole run.
    pub missing_records: u64,
    /// Time of the server in the window.
    pub server: Option<CpuUse>,
}

impl HistoryReport {
    /// Payload megabytes (10^6) per second.
    #[must_use]
    pub fn mb_per_s(&self) -> f64 {
        self.payload_bytes as f64 / MB / self.seconds
    }
}

/// Reads on the calling thread.
///
/// # Errors
/// The server cannot be reached, refuses, breaks the protocol, has no history in that shard, or stops sending it.
pub fn read_history(plan: &HistoryPlan) -> Result<HistoryReport, LoadError> {
    let mut endpoint = Endpoint::open(plan.target.address, plan.mtu)?;
    let layout = ask::layout(&mut endpoint, &plan.target)?;
    let auth = auth_frame(&plan.target);
    let mut history = History {
        plan,
        endpoint,
        layout,
        auth,
        lap: None,
        window: None,
        chunks: Vec::new(),
        records: 0,
        laps: 0,
        missing_records: 0,
        heard: Tick::ZERO,
    };
    history.run()
}

/// One reading of the history.
struct Lap {
    key: ConnKey,
    asking: Option<StreamId>,
    answers: FrameReader,
    /// Set once it is open; read once the server has said where the history ends.
    events_on: Option<StreamId>,
    events: FrameReader,
    progress: Progress,
    deadline: Tick,
}

/// How far a reading is.
#[derive(Debug, Clone, Copy)]
struct Progress {
    next: Offset,
    /// One past the last offset of the history; none until the server has said it.
    until: Option<Offset>,
}

/// See the module.
struct History<'p> {
    plan: &'p HistoryPlan,
    endpoint: Endpoint,
    layout: Layout,
    auth: Bytes,
    lap: Option<Lap>,
    window: Option<Window>,
    chunks: Vec<Bytes>,
    records: u64,
    laps: u64,
    missing_records: u64,
    /// When the last event came.
    heard: Tick,
}

impl History<'_> {
    fn run(&mut self) -> Result<HistoryReport, LoadError> {
        loop {
            let now = self.endpoint.receive()?;
            if self.lap.is_none() {
                self.begin_lap(now)?;
            }
            while let Some((key, event)) = self.endpoint.quic.poll_event() {
                self.handle(now, key, event)?;
            }
            if self.window.as_mut().is_some_and(|window| window.advance(now)) {
                return self.end(now);
            }
            let deadline = match (&self.lap, &self.window) {
                (Some(lap), _) if lap.progress.until.is_none() => lap.deadline,
                (_, Some(_)) => self.heard + SILENCE_DEADLINE,
                (lap, None) => lap.as_ref().map_or(now + START_DEADLINE, |lap| lap.deadline),
            };
            if deadline <= now {
                let waited_s = SILENCE_DEADLINE.as_secs();
                return Err(LoadError::TimedOut { what: "the next record of a history", waited_s });
            }
            self.endpoint.transmit();
            if self.lap.is_none() {
                continue;
            }
            let change = self.window.as_ref().and_then(Window::next_change);
            self.endpoint.wait(change.into_iter().chain([deadline]).min())?;
        }
    }

    fn begin_lap(&mut self, now: Tick) -> Result<(), LoadError> {
        let target = &self.plan.target;
        let refused = |error: &dyn std::fmt::Display| LoadError::Connect(error.to_string());
        let tls = Arc::new(client_tls(&target.roots, &[CLIENT_ALPN]).map_err(|error| refused(&error))?);
        let core = self.layout.core_of(self.plan.shard);
        let quic = &mut self.endpoint.quic;
        let key = quic
            .connect(now, tls, target.address, &target.server_name, core)
            .map_err(|error| refused(&error))?;
        self.lap = Some(Lap::new(key, now + START_DEADLINE));
        Ok(())
    }

    fn handle(&mut self, now: Tick, key: ConnKey, event: QuicEvent) -> Result<(), LoadError> {
        let Some(lap) = self.lap.as_mut().filter(|lap| lap.key == key) else { return Ok(()) };
        match event {
            QuicEvent::Connected if lap.asking.is_none() => {
                let Some(stream) = self.endpoint.quic.open_bi(key) else {
                    return Err(LoadError::Closed("no stream was allowed".to_owned()));
                };
                let mut auth = self.auth.clone();
                self.endpoint.quic.write(key, stream, &mut auth);
                lap.asking = Some(stream);
                Ok(())
            }
            QuicEvent::Readable { stream } if stream.dir() == Dir::Bi => {
                self.read_answers(stream)?;
                self.read_events(now)
            }
            QuicEvent::Readable { stream } => {
                lap.events_on = Some(stream);
                self.read_events(now)
            }
            QuicEvent::Closed { reason } => Err(LoadError::Closed(format!("{reason:?}"))),
            _ => Ok(()),
        }
    }

    fn read_answers(&mut self, stream: StreamId) -> Result<(), LoadError> {
        let Some(lap) = &mut self.lap else { return Ok(()) };
        loop {
            while let Some(frame) =
                lap.answers.next().map_err(|error| LoadError::Protocol(error.to_string()))?
            {
                match Message::decode(&frame.payload)
                    .map_err(|error| LoadError::Protocol(error.to_string()))?
                {
                    Message::AuthOk(_) | Message::Ok => {
                        let mut question =
                            subscribe_frame(&self.plan.target, self.plan.shard, StartPosition::Earliest);
                        self.endpoint.quic.write(lap.key, stream, &mut question);
                        self.endpoint.quic.finish(lap.key, stream);
                    }
                    Message::Subscribed(answer) => self.records = lap.progress.subscribed(&answer)?,
                    other => return Err(unexpected("subscribe", &other)),
                }
            }
            match self.endpoint.quic.read(lap.key, stream, READ_BYTES) {
                ReadOutcome::Data(chunk) => lap.answers.push(chunk),
                _ => return Ok(()),
            }
        }
    }

    fn read_events(&mut self, now: Tick) -> Result<(), LoadError> {
        let ready =
            self.lap.as_ref().filter(|lap| lap.progress.until.is_some()).and_then(|lap| lap.events_on);
        let Some(stream) = ready else { return Ok(()) };
        self.heard = now;
        self.window.get_or_insert_with(|| {
            Window::new(now, self.plan.warmup, self.plan.duration, self.plan.target.server_pid)
        });
        loop {
            let Some(lap) = &mut self.lap else { return Ok(()) };
            let (_, end) = self.endpoint.quic.read_into(lap.key, stream, READ_BYTES, &mut self.chunks);
            self.chunks.drain(..).for_each(|chunk| lap.events.push(chunk));
            while let Some(frame) =
                lap.events.next().map_err(|error| LoadError::Protocol(error.to_string()))?
            {
                let came = lap.progress.take(&frame)?;
                self.missing_records += came.missing;
                if let Some(window) = self.window.as_mut().filter(|window| window.is_open()) {
                    window.payload_bytes += came.payload_bytes;
                }
            }
            if lap.progress.is_done() {
                let key = lap.key;
                self.laps += 1;
                self.lap = None;
                self.endpoint.quic.close(now, key, VarInt::from_u32(0), Bytes::new());
                return Ok(());
            }
            match end {
                None => {}
                Some(ReadOutcome::Blocked) => return Ok(()),
                Some(end) => return Err(LoadError::Closed(format!("an event stream: {end:?}"))),
            }
        }
    }

    fn end(&mut self, now: Tick) -> Result<HistoryReport, LoadError> {
        self.endpoint.quic.close_all(now, VarInt::from_u32(0), &Bytes::new());
        self.endpoint.transmit();
        let window = self.window.as_ref();
        let Some((window, measured)) = window.and_then(|window| Some((window, window.measured()?))) else {
            return Err(LoadError::TimedOut { what: "the steady window", waited_s: 0 });
        };
        Ok(HistoryReport {
            seconds: measured.length.as_secs_f64(),
            payload_bytes: window.payload_bytes,
            records: self.records,
            laps: self.laps,
            missing_records: self.missing_records,
            server: measured.server.clone(),
        })
    }
}

/// What one frame brought.
#[derive(Debug, Default, PartialEq, Eq)]
struct Came {
    payload_bytes: u64,
    missing: u64,
}

impl Lap {
    fn new(key: ConnKey, deadline: Tick) -> Lap {
        Lap {
            key,
            asking: None,
            answers: FrameReader::new(FRAME_PAYLOAD_MAX),
            events_on: None,
            events: FrameReader::new(FRAME_PAYLOAD_MAX),
            progress: Progress { next: Offset(0), until: None },
            deadline,
        }
    }
}

impl Progress {
    fn is_done(self) -> bool {
        self.until.is_some_and(|until| self.next >= until)
    }

    /// Offsets between the beginning and the end of what is to be read.
    fn subscribed(&mut self, answer: &Subscribed) -> Result<u64, LoadError> {
        let (Some(start), Some(end)) = (answer.start_offset, answer.live_offset) else {
            return Err(LoadError::Protocol("no offsets: the stream is not durable".to_owned()));
        };
        if start >= end {
            let message = format!("nothing lies below offset {}", end.0);
            return Err(LoadError::Refused { what: "a history", message });
        }
        self.next = start;
        self.until = Some(end);
        Ok(end.0 - start.0)
    }

    fn take(&mut self, frame: &Frame) -> Result<Came, LoadError> {
        if !Flags(frame.flags).intersects(Flags::EVENT_BATCH | Flags::EVENT_BATCH_SHARED) {
            return match Message::decode(&frame.payload) {
                Ok(Message::EventStreamHello(_)) => Ok(Came::default()),
                Ok(other) => Err(unexpected("reading a history", &other)),
                Err(error) => Err(LoadError::Protocol(error.to_string())),
            };
        }
        let batch = EventBatch::decode(frame.flags, &frame.payload)
            .map_err(|error| LoadError::Protocol(error.to_string()))?;
        let Some(base) = batch.base_offset else {
            return Err(LoadError::Protocol("events without offsets".to_owned()));
        };
        if base < self.next {
            return Err(LoadError::Protocol(format!("offset {} came again", base.0)));
        }
        let missing = (base.0 - self.next.0).saturating_sub(batch.skipped_before);
        let mut came = Came { payload_bytes: 0, missing };
        self.next = base;
        for event in batch.iter() {
            came.payload_bytes += event.payload.len() as u64;
            self.next = Offset(self.next.0 + 1);
        }
        Ok(came)
    }
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use felix_wire::client::Records;
    use felix_wire::id::SubscriptionId;

    use super::*;

    /// A reading that was told where its history begins and ends.
    fn told(start: u64, end: u64) -> Result<Progress, LoadError> {
        let mut progress = Progress { next: Offset(0), until: None };
        let answer = Subscribed {
            subscription_id: SubscriptionId(1),
            start_offset: Some(Offset(start)),
            live_offset: Some(Offset(end)),
            queue_capacity: None,
            boot: None,
        };
        assert!(!progress.is_done());
        assert_eq!(progress.subscribed(&answer)?, end - start);
        Ok(progress)
    }

    /// A frame of three records of ten bytes from `base` on.
    fn frame(base: Option<u64>, skipped_before: u64) -> Frame {
        let mut batch = EventBatch::new(Records::from_payloads([[7; 10]; 3]));
        batch.base_offset = base.map(Offset);
        batch.skipped_before = skipped_before;
        let mut bytes = BytesMut::new();
        batch.encode_frame(&mut bytes);
        let mut reader = FrameReader::new(FRAME_PAYLOAD_MAX);
        reader.push(bytes.freeze());
        reader.next().unwrap().expect("a whole frame")
    }

    #[test]
    fn offsets_that_were_told_as_skipped_are_not_missing() {
        let mut reading = told(5, 23).unwrap();
        let came = |missing| Came { payload_bytes: 30, missing };
        assert_eq!(reading.take(&frame(Some(5), 0)).unwrap(), came(0));
        assert_eq!(reading.take(&frame(Some(10), 2)).unwrap(), came(0));
        assert!(!reading.is_done());
        assert_eq!(reading.take(&frame(Some(20), 3)).unwrap(), came(4));
        assert!(reading.is_done());
    }

    #[test]
    fn what_comes_again_or_without_its_offset_fails_the_run() {
        let mut reading = told(0, 100).unwrap();
        reading.take(&frame(Some(0), 0)).unwrap();
        assert!(reading.take(&frame(Some(2), 0)).is_err());
        assert!(reading.take(&frame(None, 0)).is_err());
    }

    #[test]
    fn a_shard_without_records_has_no_history() {
        assert!(matches!(told(7, 7), Err(LoadError::Refused { .. })));
    }
}
