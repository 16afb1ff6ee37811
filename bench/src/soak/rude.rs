//! Clients that break off where they like. Scope: one connection each, on the calling thread.
//! Owns: the connection's socket, which is closed without a word when it is dropped.
//! Invariants: every wait has a deadline; nothing is said to the broker at the end.
//! Not here: how many there are, and when (`churn`, `slow`).

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use felix_runtime::quic::{CLIENT_ALPN, ConnKey, QuicEvent, ReadOutcome, StreamId, WriteState, client_tls};
use felix_wire::client::{Message, StartPosition, Subscribe};
use felix_wire::frame::FrameReader;
use felix_wire::limits::FRAME_PAYLOAD_MAX;

use crate::endpoint::Endpoint;
use crate::load::{LoadError, auth_frame};
use crate::target::Target;

/// For each step.
const DEADLINE: Duration = Duration::from_secs(20);
const MTU: u16 = 1_452;
const READ_BYTES: usize = 16 << 10;

/// How far it goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    /// The first datagram is sent.
    Hello,
    /// The handshake is done; nothing authenticates.
    Connected,
    /// A token was taken, and half of a frame is written behind it.
    HalfFrame,
    /// It has subscribed, and reads nothing.
    Subscribed,
}

/// See the module.
pub struct Rude {
    endpoint: Endpoint,
    key: ConnKey,
    stream: Option<StreamId>,
    reader: FrameReader,
}

impl Rude {
    /// Goes as far as `until` with the stream of `target`.
    ///
    /// # Errors
    /// It did not get there in time, or was refused.
    pub fn start(target: &Target, until: Until) -> Result<Rude, LoadError> {
        let mut endpoint = Endpoint::open(target.address, MTU)?;
        let failed = |error: &dyn std::fmt::Display| LoadError::Connect(error.to_string());
        let tls = client_tls(&target.roots, &[CLIENT_ALPN]).map_err(|error| failed(&error))?;
        let now = endpoint.now();
        let key = endpoint
            .quic
            .connect(now, Arc::new(tls), target.address, &target.server_name, None)
            .map_err(|error| failed(&error))?;
        let mut rude = Rude { endpoint, key, stream: None, reader: FrameReader::new(FRAME_PAYLOAD_MAX) };
        rude.endpoint.transmit();
        if until == Until::Hello {
            return Ok(rude);
        }
        rude.connect()?;
        if until == Until::Connected {
            return Ok(rude);
        }
        rude.say(auth_frame(target))?;
        rude.listen("the token", |message| matches!(message, Message::AuthOk(_) | Message::Ok))?;
        let subscribe = subscribe_frame(target);
        if until == Until::HalfFrame {
            rude.say(subscribe.slice(..subscribe.len() / 2))?;
            return Ok(rude);
        }
        rude.say(subscribe)?;
        rude.listen("the subscription", |message| matches!(message, Message::Subscribed(_)))?;
        Ok(rude)
    }

    fn connect(&mut self) -> Result<(), LoadError> {
        let deadline = self.endpoint.now() + DEADLINE;
        loop {
            self.endpoint.receive()?;
            while let Some((_, event)) = self.endpoint.quic.poll_event() {
                match event {
                    QuicEvent::Connected => {
                        self.stream = self.endpoint.quic.open_bi(self.key);
                        self.endpoint.transmit();
                        return Ok(());
                    }
                    QuicEvent::Closed { reason } => return Err(LoadError::Closed(format!("{reason:?}"))),
                    _ => {}
                }
            }
            self.step(deadline, "a handshake")?;
        }
    }

    fn say(&mut self, mut bytes: Bytes) -> Result<(), LoadError> {
        let deadline = self.endpoint.now() + DEADLINE;
        loop {
            self.endpoint.receive()?;
            while self.endpoint.quic.poll_event().is_some() {}
            if self.stream.is_none() {
                self.stream = self.endpoint.quic.open_bi(self.key);
            }
            if let Some(stream) = self.stream {
                match self.endpoint.quic.write(self.key, stream, &mut bytes).state {
                    WriteState::All => {
                        self.endpoint.transmit();
                        return Ok(());
                    }
                    WriteState::Blocked => {}
                    state => return Err(LoadError::Closed(format!("a stream: {state:?}"))),
                }
            }
            self.step(deadline, "room on a stream")?;
        }
    }

    /// Reads until an answer that is `wanted`.
    fn listen(&mut self, what: &'static str, wanted: impl Fn(&Message<'_>) -> bool) -> Result<(), LoadError> {
        let deadline = self.endpoint.now() + DEADLINE;
        loop {
            self.endpoint.receive()?;
            while self.endpoint.quic.poll_event().is_some() {}
            if let Some(stream) = self.stream {
                match self.endpoint.quic.read(self.key, stream, READ_BYTES) {
                    ReadOutcome::Data(chunk) => {
                        self.reader.push(chunk);
                        continue;
                    }
                    ReadOutcome::Blocked => {}
                    end => return Err(LoadError::Closed(format!("{what}: {end:?}"))),
                }
            }
            let protocol = |error: &dyn std::fmt::Display| LoadError::Protocol(error.to_string());
            while let Some(frame) = self.reader.next().map_err(|error| protocol(&error))? {
                let message = Message::decode_frame(&frame).map_err(|error| protocol(&error))?;
                if wanted(&message) {
                    return Ok(());
                }
                if let Message::Error(error) = message {
                    return Err(LoadError::Refused { what, message: error.message.to_string() });
                }
            }
            self.step(deadline, what)?;
        }
    }

    fn step(&mut self, deadline: felix_runtime::Tick, what: &'static str) -> Result<(), LoadError> {
        self.endpoint.transmit();
        if self.endpoint.now() >= deadline {
            return Err(LoadError::TimedOut { what, waited_s: DEADLINE.as_secs() });
        }
        self.endpoint.wait(Some(deadline))?;
        Ok(())
    }
}

fn subscribe_frame(target: &Target) -> Bytes {
    let mut out = bytes::BytesMut::new();
    Message::Subscribe(Subscribe {
        tenant_id: target.tenant.as_str().into(),
        namespace: target.namespace.as_str().into(),
        stream: target.stream.as_str().into(),
        subscription_id: None,
        start: Some(StartPosition::Latest),
        shard: None,
        queue_capacity: None,
    })
    .encode_frame(&mut out);
    out.freeze()
}
