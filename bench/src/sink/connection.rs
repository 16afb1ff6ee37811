//! One stream of a client of the sink. Scope: one per stream that a client opened.
//! Owns: its frames under way, its unwritten answers.
//! Invariants: a publish before `auth` loses the stream; each acked publish is answered once, in the order read; answers
//! that are not read stop the stream from being read.
//! Not here: when a stream is read (`serve`).

use bytes::{Bytes, BytesMut};
use felix_runtime::quic::{ConnKey, Quic, StreamId, VarInt, WriteState};
use felix_wire::client::{AuthOk, BinaryPublish, CacheOk, CacheValue, Form, Message, encode_ok};
use felix_wire::features::Features;
use felix_wire::flags::Flags;
use felix_wire::frame::{DecodeError, FrameReader};
use felix_wire::id::RequestId;
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
pub const FEATURES: Features = Features::PUBLISH_PIPELINE.union(Features::STREAM_PUBLISH_WINDOW);
/// And those of a sink that answers requests.
const WITH_REQUESTS: Features = Features::ORDERED_ANSWERS.union(Features::BINARY_MESSAGES);

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
    answer: Option<Answer>,
    /// Requests that were answered.
    requests: u64,
    authenticated: bool,
    out: BytesMut,
    front: Bytes,
    gone: bool,
}

impl SinkStream {
    #[must_use]
    pub fn new(key: ConnKey, id: StreamId, framing: Framing, answer: Option<Answer>) -> SinkStream {
        let frames = match framing {
            Framing::Stream => Frames::Stream(Splitter::default()),
            Framing::Whole => {
                let mut reader = FrameReader::new(FRAME_PAYLOAD_MAX);
                reader.take_binary_messages();
                Frames::Whole(reader)
            }
        };
        SinkStream {
            key,
            id,
            frames,
            answer,
            requests: 0,
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
        let SinkStream { frames, authenticated, out, answer, requests, .. } = self;
        let before = *authenticated;
        let mut outcome = Ok(());
        let features = if answer.is_some() { FEATURES.union(WITH_REQUESTS) } else { FEATURES };
        let mut serve = |ended| match (ended, &*answer) {
            (Ended::Request, Some(answer)) if *authenticated => {
                *requests += 1;
                counts.requests += 1;
                answer.write(RequestId(*requests), out);
                Ok(())
            }
            (ended, _) => handle(ended, authenticated, out, (counts, features)),
        };
        match frames {
            Frames::Stream(splitter) => {
                splitter.push(&chunk, discard, |ended| {
                    if outcome.is_ok() {
                        outcome = serve(ended);
                    }
                })?;
            }
            Frames::Whole(reader) => {
                reader.push(chunk);
                while let Some(frame) = reader.next()? {
                    let ended = if frame.flags == 0 {
                        Ended::Json(frame.payload.to_vec())
                    } else if Flags(frame.flags) == Flags::BINARY_MESSAGE {
                        discard.take(&frame.payload);
                        Ended::Request
                    } else {
                        let publish = BinaryPublish::decode(frame.flags, &frame.payload)
                            .map_err(|broken| broken.error)?;
                        discard.take(publish.records.bytes());
                        Ended::Publish(publish.acked.map(|(request, _)| request))
                    };
                    serve(ended)?;
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

/// What every request is answered with, by its place on the stream: the first one is number 1.
#[derive(Debug, Clone)]
pub struct Answer {
    frame: Bytes,
    /// Where the number is.
    number_at: usize,
}

impl Answer {
    /// A value of so many bytes; for none, that a request was carried out.
    #[must_use]
    pub fn new(value_bytes: u32) -> Answer {
        // A number whose bytes are found again.
        let marker = RequestId(0xf1e2_d3c4_b5a6_9788);
        let message = match value_bytes {
            0 => Message::CacheOk(CacheOk { request_id: marker }),
            bytes => Message::CacheValue(CacheValue {
                tenant_id: "".into(),
                namespace: "".into(),
                cache: "".into(),
                key: "".into(),
                value: Some(vec![0x5a; bytes as usize].into()),
                request_id: Some(marker),
                version: Some(1),
            }),
        };
        let mut frame = BytesMut::new();
        message.encode_frame_as(Form::Binary, &mut frame);
        let bytes = marker.0.to_le_bytes();
        let number_at = frame.windows(bytes.len()).position(|window| window == bytes);
        let number_at = number_at.expect("the test `an_answer_has_the_number_it_is_given`");
        Answer { frame: frame.freeze(), number_at }
    }

    fn write(&self, RequestId(number): RequestId, out: &mut BytesMut) {
        let at = out.len() + self.number_at;
        out.extend_from_slice(&self.frame);
        out[at..at + 8].copy_from_slice(&number.to_le_bytes());
    }
}

/// The answer to a token, behind `out`.
pub fn hello(out: &mut BytesMut, features: Features) {
    let (lo, hi) = features.words(true);
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
    (counts, features): (&mut SinkCounts, Features),
) -> Result<(), DecodeError> {
    match ended {
        Ended::Request => Err(DecodeError::Malformed("a request that is not served")),
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
                hello(out, features);
                Ok(())
            }
            _ => Err(DecodeError::Malformed("a request the sink does not serve")),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_has_the_number_it_is_given() {
        for value_bytes in [0, 1, 256, 100_000] {
            let answer = Answer::new(value_bytes);
            let mut out = BytesMut::new();
            answer.write(RequestId(7), &mut out);
            answer.write(RequestId(u64::MAX), &mut out);
            let mut reader = FrameReader::new(FRAME_PAYLOAD_MAX);
            reader.take_binary_messages();
            reader.push(out.freeze());
            for number in [7, u64::MAX] {
                let frame = reader.next().unwrap().expect("a frame");
                match Message::decode_frame(&frame).unwrap() {
                    Message::CacheOk(ok) => assert_eq!((value_bytes, ok.request_id.0), (0, number)),
                    Message::CacheValue(found) => {
                        assert_eq!(found.value.unwrap().len(), value_bytes as usize);
                        assert_eq!(found.request_id, Some(RequestId(number)));
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
    }
}
