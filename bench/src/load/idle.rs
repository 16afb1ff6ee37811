//! A connection that authenticates and then says nothing. Scope: one per connection.
//! Owns: its one stream.
//! Invariants: it is there once the server has taken its token; what a run publishes never goes over it.
//! Not here: when it is opened (`run`).

use bytes::Bytes;
use felix_runtime::quic::{ConnKey, Quic, ReadOutcome, StreamId};
use felix_wire::client::Message;
use felix_wire::frame::FrameReader;
use felix_wire::limits::FRAME_PAYLOAD_MAX;

use super::LoadError;
use super::ask::unexpected;

/// Answers are small frames.
const READ_BYTES: usize = 4 << 10;

/// See the module.
#[derive(Debug)]
pub struct Idle {
    key: ConnKey,
    stream: Option<StreamId>,
    /// Until the answer to the token is read.
    answer: Option<Box<FrameReader>>,
}

impl Idle {
    #[must_use]
    pub fn new(key: ConnKey) -> Idle {
        Idle { key, stream: None, answer: None }
    }

    /// Opens its stream as soon as the server allows one.
    pub fn open(&mut self, quic: &mut Quic, auth: &Bytes) {
        if self.stream.is_some() {
            return;
        }
        let Some(stream) = quic.open_bi(self.key) else { return };
        let mut auth = auth.clone();
        // A fresh stream has room for one small frame.
        quic.write(self.key, stream, &mut auth);
        self.stream = Some(stream);
        self.answer = Some(Box::new(FrameReader::new(FRAME_PAYLOAD_MAX)));
    }

    /// Reads what the server says. True when this is what makes it ready.
    ///
    /// # Errors
    /// The token was refused, or the stream ended.
    pub fn read(&mut self, stream: StreamId, quic: &mut Quic) -> Result<bool, LoadError> {
        if self.stream != Some(stream) {
            return Ok(false);
        }
        loop {
            match quic.read(self.key, stream, READ_BYTES) {
                ReadOutcome::Data(chunk) => {
                    let Some(reader) = &mut self.answer else { continue };
                    reader.push(chunk);
                    let frame = reader.next().map_err(|error| LoadError::Protocol(error.to_string()))?;
                    let Some(frame) = frame else { continue };
                    match Message::decode(&frame.payload)
                        .map_err(|error| LoadError::Protocol(error.to_string()))?
                    {
                        Message::AuthOk(_) | Message::Ok => {
                            self.answer = None;
                            return Ok(true);
                        }
                        other => return Err(unexpected("auth", &other)),
                    }
                }
                ReadOutcome::Blocked => return Ok(false),
                end => return Err(LoadError::Closed(format!("an idle stream ended: {end:?}"))),
            }
        }
    }
}
