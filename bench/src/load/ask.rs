//! What a run has to know of the server before it begins: how wide the stream is and which core has which shard.
//! Scope: one short connection before a run. Owns: nothing afterwards.
//! Invariants: a server that does not announce the questions is not asked them; every wait has a deadline.
//! Not here: publishing (`lane`), reading (`reader`).

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use felix_runtime::Tick;
use felix_runtime::quic::{
    CLIENT_ALPN, ConnKey, QuicEvent, ReadOutcome, StreamId, VarInt, WriteState, client_tls,
};
use felix_wire::client::{AuthOk, Message, ShardKind, ShardOwners, StreamShards};
use felix_wire::features::Features;
use felix_wire::frame::{Frame, FrameReader};
use felix_wire::id::RequestId;
use felix_wire::limits::FRAME_PAYLOAD_MAX;
use felix_wire::routing::{KeyMapping, shard_for};

use super::{LoadError, auth_frame};
use crate::endpoint::Endpoint;
use crate::target::Target;

/// For the whole conversation.
const DEADLINE: Duration = Duration::from_secs(10);
/// A stream that was just made is not served at once: it is asked for again and again for this long.
const UNKNOWN_PATIENCE: Duration = Duration::from_secs(5);
const UNKNOWN_PAUSE: Duration = Duration::from_millis(50);
/// Keys tried per shard of the stream before its key is given up; the hash spreads, so a few suffice.
const KEY_TRIES: u64 = 1_000;

/// What the server said about a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// Width of the stream; 1 where it cannot be asked.
    pub width: u32,
    pub mapping: KeyMapping,
    /// By shard, where the server tells.
    pub cores: Vec<Option<u16>>,
}

impl Layout {
    /// The core of the server that owns a shard.
    #[must_use]
    pub fn core_of(&self, shard: u32) -> Option<u16> {
        self.cores.get(shard as usize).copied().flatten()
    }

    /// A core of the server that has other shards, but not this one.
    #[must_use]
    pub fn core_without(&self, shard: u32) -> Option<u16> {
        let right = self.core_of(shard)?;
        self.cores.iter().flatten().copied().find(|core| *core != right)
    }

    /// A key whose records go to `shard`, below the width. None is needed when there is one shard only.
    #[must_use]
    pub fn key_for(&self, shard: u32) -> Option<Vec<u8>> {
        if self.width <= 1 {
            return None;
        }
        (0..KEY_TRIES * u64::from(self.width))
            .map(|number| format!("k{number}").into_bytes())
            .find(|key| shard_for(Some(key), self.width, self.mapping).get() == shard)
    }
}

/// Asks the server.
///
/// # Errors
/// It cannot be reached, refuses the token, or does not know the stream.
pub fn layout(endpoint: &mut Endpoint, target: &Target) -> Result<Layout, LoadError> {
    let tls =
        client_tls(&target.roots, &[CLIENT_ALPN]).map_err(|error| LoadError::Connect(error.to_string()))?;
    let begun = endpoint.now();
    let key = endpoint
        .quic
        .connect(begun, Arc::new(tls), target.address, &target.server_name, None)
        .map_err(|error| LoadError::Connect(error.to_string()))?;
    let deadline = begun + DEADLINE;
    let mut talk =
        Talk { endpoint, key, stream: None, reader: FrameReader::new(FRAME_PAYLOAD_MAX), deadline };
    let outcome = talk.layout(target);
    let now = endpoint.now();
    endpoint.quic.close(now, key, VarInt::from_u32(0), Bytes::new());
    endpoint.transmit();
    outcome
}

/// Questions and answers on one stream.
struct Talk<'e> {
    endpoint: &'e mut Endpoint,
    key: ConnKey,
    stream: Option<StreamId>,
    reader: FrameReader,
    deadline: Tick,
}

impl Talk<'_> {
    fn layout(&mut self, target: &Target) -> Result<Layout, LoadError> {
        let hello = self.authenticate(target)?;
        if !hello.features().contains(Features::STREAM_SHARDS | Features::SHARD_OWNERS) {
            let cores = vec![hello.core.map(|core| core.0)];
            return Ok(Layout { width: 1, mapping: KeyMapping::Modulo, cores });
        }
        let patience = self.endpoint.now() + UNKNOWN_PATIENCE;
        let mut request = 0;
        loop {
            request += 2;
            if let Some((width, mapping)) = self.width(target, RequestId(request))?
                && let Some(cores) = self.cores(target, RequestId(request + 1))?
            {
                return Ok(Layout { width, mapping, cores });
            }
            let now = self.endpoint.now();
            if now >= patience {
                let message = format!("nobody serves {} yet, or it does not exist", target.stream);
                return Err(LoadError::Refused { what: "the stream", message });
            }
            let again = now + UNKNOWN_PAUSE;
            self.until("a pause", again, |_, now| Ok((now >= again).then_some(())))?;
        }
    }

    /// Width and mapping; `None` while the server does not know the stream.
    fn width(
        &mut self,
        target: &Target,
        request_id: RequestId,
    ) -> Result<Option<(u32, KeyMapping)>, LoadError> {
        self.send(&Message::StreamShards(StreamShards {
            tenant_id: target.tenant.as_str().into(),
            namespace: target.namespace.as_str().into(),
            stream: target.stream.as_str().into(),
            request_id,
        }))?;
        let frame = self.receive()?;
        match decode(&frame)? {
            Message::StreamShardsView(view) => Ok((view.shards > 0).then_some((view.shards, view.routing))),
            other => Err(unexpected("stream_shards", &other)),
        }
    }

    /// The core of each shard, where it is told; `None` while one of them is served by nobody.
    fn cores(
        &mut self,
        target: &Target,
        request_id: RequestId,
    ) -> Result<Option<Vec<Option<u16>>>, LoadError> {
        self.send(&Message::ShardOwners(ShardOwners {
            tenant_id: target.tenant.as_str().into(),
            namespace: target.namespace.as_str().into(),
            name: target.stream.as_str().into(),
            kind: ShardKind::Stream,
            request_id,
        }))?;
        let frame = self.receive()?;
        match decode(&frame)? {
            Message::ShardOwnersView(view) if view.owners.iter().any(|owner| owner.unavailable.is_some()) => {
                Ok(None)
            }
            Message::ShardOwnersView(view) => {
                Ok(Some(view.owners.iter().map(|owner| owner.core.map(|core| core.0)).collect()))
            }
            other => Err(unexpected("shard_owners", &other)),
        }
    }

    fn authenticate(&mut self, target: &Target) -> Result<AuthOk, LoadError> {
        self.until("connecting", self.deadline, |talk, _| Ok(talk.stream.map(|_| ())))?;
        self.write(auth_frame(target))?;
        let frame = self.receive()?;
        match decode(&frame)? {
            Message::AuthOk(hello) => Ok(hello),
            Message::Ok => Ok(AuthOk::default()),
            other => Err(unexpected("auth", &other)),
        }
    }

    fn send(&mut self, message: &Message<'_>) -> Result<(), LoadError> {
        let mut out = BytesMut::new();
        message.encode_frame(&mut out);
        self.write(out.freeze())
    }

    /// The few bytes of a question always fit the window of a fresh stream.
    fn write(&mut self, mut bytes: Bytes) -> Result<(), LoadError> {
        let Some(stream) = self.stream else {
            return Err(LoadError::Closed("before it was open".to_owned()));
        };
        match self.endpoint.quic.write(self.key, stream, &mut bytes).state {
            WriteState::All => Ok(()),
            state => Err(LoadError::Closed(format!("a question could not be sent: {state:?}"))),
        }
    }

    fn receive(&mut self) -> Result<Frame, LoadError> {
        self.until("an answer", self.deadline, |talk, _| {
            let Some(stream) = talk.stream else { return Ok(None) };
            loop {
                if let Some(frame) =
                    talk.reader.next().map_err(|error| LoadError::Protocol(error.to_string()))?
                {
                    return Ok(Some(frame));
                }
                match talk.endpoint.quic.read(talk.key, stream, usize::MAX) {
                    ReadOutcome::Data(chunk) => talk.reader.push(chunk),
                    ReadOutcome::Blocked => return Ok(None),
                    end => return Err(LoadError::Closed(format!("instead of an answer: {end:?}"))),
                }
            }
        })
    }

    /// Drives the connection until `done` gives something; looks again when something came and at `look`.
    fn until<T>(
        &mut self,
        what: &'static str,
        look: Tick,
        mut done: impl FnMut(&mut Self, Tick) -> Result<Option<T>, LoadError>,
    ) -> Result<T, LoadError> {
        loop {
            let now = self.endpoint.receive()?;
            while let Some((key, event)) = self.endpoint.quic.poll_event() {
                match event {
                    QuicEvent::Connected if key == self.key => self.stream = self.endpoint.quic.open_bi(key),
                    QuicEvent::Closed { reason } if key == self.key => {
                        return Err(LoadError::Closed(format!("{reason:?}")));
                    }
                    _ => {}
                }
            }
            if let Some(value) = done(self, now)? {
                return Ok(value);
            }
            if now >= self.deadline {
                return Err(LoadError::TimedOut { what, waited_s: DEADLINE.as_secs() });
            }
            self.endpoint.transmit();
            self.endpoint.wait(Some(look))?;
        }
    }
}

fn decode(frame: &Frame) -> Result<Message<'_>, LoadError> {
    if frame.flags != 0 {
        return Err(LoadError::Protocol(format!("flags {:#06x} where JSON was due", frame.flags)));
    }
    Message::decode(&frame.payload).map_err(|error| LoadError::Protocol(error.to_string()))
}

/// The error for an answer that is none.
pub fn unexpected(what: &'static str, message: &Message<'_>) -> LoadError {
    match message {
        Message::Error(error) => LoadError::Refused { what, message: error.message.to_string() },
        other => LoadError::Protocol(format!("{} in answer to {what}", other.type_name())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_leads_to_the_shard_it_was_asked_for() {
        for mapping in [KeyMapping::Modulo, KeyMapping::JumpHash] {
            let layout = Layout { width: 48, mapping, cores: Vec::new() };
            for shard in 0..48 {
                let key = layout.key_for(shard).unwrap();
                assert_eq!(shard_for(Some(&key), 48, mapping).get(), shard);
            }
        }
        assert_eq!(Layout { width: 1, mapping: KeyMapping::Modulo, cores: Vec::new() }.key_for(0), None);
    }
}
