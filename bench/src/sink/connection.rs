//! One stream of a client of the sink. Scope: one per stream that a client opened.
//! Owns: its frames under way, its unwritten answers.
//! Invariants: a publish before `auth` loses the stream; each acked publish is answered once, in the order read; answers
//! that are not read stop the stream from being read.
//! Not here: when a stream is read (`serve`).

use bytes::{Bytes, BytesMut};
use felix_runtime::quic::{ConnKey, Quic, StreamId, VarInt, WriteState};
use felix_wire::client::{AuthOk, BinaryPublish, Message, encode_ok};
use felix_wire::features::Features;
use felix_wire::flags::Flags;
use felix_wire::frame::{DecodeError, FrameReader};
use felix_wire::limits::FRAME_PAYLOAD_MAX;

use super::Framing;
use super::serve::SinkCounts;
use super::split::{Discard, Ended, Splitter};

/// Answers that may wait to be read, bytes; the broker's bound.
pub const OUT_BYTES_MAX: usize = 256 << 10;
/// Acked publishes a stream may have unanswered; the broker's default.
const PUBLISH_WINDOW: u32 = 256;
/// Flag bits announced.
const FLAGS: Flags = Flags(0x1eff);
/// Feature bits announced: acks in order, and nothing that would make a client ask further.
const FEATURES: Features = Features::PUBLISH_PIPELINE.union(Features::STREAM_PUBLISH_WINDOW);

#[derive(Debug)]
enum Frames {
    Stream(Splitter),
    Whole(FrameReader),
}

/// See the module.
#[derive(Debug)]
pub struct SinkStream {
    key: ConnKey,
    id: StreamId,
    frames: Frames,
    authenticated: bool,
    out: BytesMut,
    front: Bytes,
    gone: bool,
}

impl SinkStream {
    #[must_use]
    pub fn new(key: ConnKey, id: StreamId, framing: Framing) -> SinkStream {
        let frames = match framing {
            Framing::Stream => Frames::Stream(Splitter::default()),
            Framing::Whole => Frames::Whole(FrameReader::new(FRAME_PAYLOAD_MAX)),
        };
        SinkStream {
            key,
            id,
            frames,
            authenticated: false,
            out: BytesMut::new(),
            front: Bytes::new(),
            gone: false,
        }
    }

    /// Too many answers wait to be read.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.out.len() + self.front.len() >= OUT_BYTES_MAX
    }

    /// Takes the next bytes. True when the stream has just authenticated.
    ///
    /// # Errors
    /// Bytes a client must not send. The stream is lost.
    pub fn take(
        &mut self,
        chunk: Bytes,
        discard: &mut Discard,
        counts: &mut SinkCounts,
    ) -> Result<bool, DecodeError> {
        let SinkStream { frames, authenticated, out, .. } = self;
        let before = *authenticated;
        let mut outcome = Ok(());
        match frames {
            Frames::Stream(splitter) => {
                splitter.push(&chunk, discard, |ended| {
                    if outcome.is_ok() {
                        outcome = handle(ended, authenticated, out, counts);
                    }
                })?;
            }
            Frames::Whole(reader) => {
                reader.push(chunk);
                while let Some(frame) = reader.next()? {
                    let ended = if frame.flags == 0 {
                        Ended::Json(frame.payload.to_vec())
                    } else {
                        let publish = BinaryPublish::decode(frame.flags, &frame.payload)
                            .map_err(|broken| broken.error)?;
                        discard.take(publish.records.bytes());
                        Ended::Publish(publish.acked.map(|(request, _)| request))
                    };
                    handle(ended, authenticated, out, counts)?;
                }
            }
        }
        outcome.map(|()| *authenticated && !before)
    }

    /// Writes answers as far as QUIC takes them.
    pub fn flush(&mut self, quic: &mut Quic) {
        loop {
            if self.front.is_empty() {
                if self.out.is_empty() || self.gone {
                    return;
                }
                self.front = self.out.split().freeze();
            }
            match quic.write(self.key, self.id, &mut self.front).state {
                WriteState::All => {}
                WriteState::Blocked => return,
                WriteState::Stopped(_) | WriteState::Gone => {
                    self.gone = true;
                    self.front = Bytes::new();
                }
            }
        }
    }

    /// The client sent what it must not: it is told so by resets.
    pub fn give_up(&mut self, quic: &mut Quic) {
        quic.stop_sending(self.key, self.id, VarInt::from_u32(1));
        quic.reset(self.key, self.id, VarInt::from_u32(1));
    }
}

/// The answer to a token, behind `out`.
pub fn hello(out: &mut BytesMut) {
    let (lo, hi) = FEATURES.words(true);
    Message::AuthOk(AuthOk {
        server_flags: FLAGS,
        server_features: Some(lo),
        server_features_hi: hi,
        publish_window: Some(PUBLISH_WINDOW),
        ..AuthOk::default()
    })
    .encode_frame(out);
}

/// What is answered to a frame, behind `out`.
///
/// # Errors
/// A frame a client must not send now. The stream is lost.
pub fn handle(
    ended: Ended,
    authenticated: &mut bool,
    out: &mut BytesMut,
    counts: &mut SinkCounts,
) -> Result<(), DecodeError> {
    match ended {
        Ended::Publish(_) if !*authenticated => Err(DecodeError::Malformed("a publish before auth")),
        Ended::Publish(request) => {
            counts.publishes += 1;
            if let Some(request) = request {
                counts.answered += 1;
                encode_ok(request, None, out);
            }
            Ok(())
        }
        Ended::Json(text) => match Message::decode(&text)? {
            Message::Auth(_) if !*authenticated => {
                *authenticated = true;
                hello(out);
                Ok(())
            }
            _ => Err(DecodeError::Malformed("a request the sink does not serve")),
        },
    }
}
