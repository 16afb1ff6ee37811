//! Frames taken off a stream while they arrive. Scope: one per receiving stream of the sink.
//! Owns: the header and the first bytes of the frame under way; the bytes of a JSON message.
//! Invariants: payload bytes of publishes and requests go to the discard buffer once and are kept nowhere else; bytes from the network
//! never panic; a JSON message is bounded.
//! Not here: what a frame is answered (`connection`).
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing))]

use felix_wire::flags::Flags;
use felix_wire::frame::{DecodeError, FrameHeader, HEADER_LEN};
use felix_wire::id::RequestId;
use felix_wire::limits::{FRAME_PAYLOAD_MAX, PRE_AUTH_PAYLOAD_MAX};

/// Size of the buffer that payloads are copied into.
const DISCARD_BYTES: usize = 1 << 20;
/// Request id of an acked publish.
const REQUEST_LEN: usize = 8;

/// Where payloads go: copied, and overwritten by the next ones.
#[derive(Debug)]
pub struct Discard {
    buffer: Vec<u8>,
    at: usize,
    pub bytes: u64,
}

impl Default for Discard {
    fn default() -> Discard {
        Discard { buffer: vec![0; DISCARD_BYTES], at: 0, bytes: 0 }
    }
}

impl Discard {
    /// Copies `bytes` behind the last ones, from the front again at the end.
    pub fn take(&mut self, mut bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        while !bytes.is_empty() {
            let Some(room) = self.buffer.get_mut(self.at..).filter(|room| !room.is_empty()) else {
                self.at = 0;
                continue;
            };
            let (room, _) = room.split_at_mut(room.len().min(bytes.len()));
            let (now, later) = bytes.split_at(room.len());
            room.copy_from_slice(now);
            self.at += now.len();
            bytes = later;
        }
    }
}

/// The end of a frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// A JSON message, whole.
    Json(Vec<u8>),
    /// A publish, with the id to answer when it is acked.
    Publish(Option<RequestId>),
    /// A request in its binary form.
    Request,
}

#[derive(Debug)]
enum State {
    Header { bytes: [u8; HEADER_LEN], have: usize },
    Json { text: Vec<u8>, left: usize },
    Request { bytes: [u8; REQUEST_LEN], have: usize, left: usize },
    Payload { request: Option<RequestId>, left: usize },
    Message { left: usize },
}

const AT_HEADER: State = State::Header { bytes: [0; HEADER_LEN], have: 0 };

/// See the module.
#[derive(Debug)]
pub struct Splitter {
    state: State,
}

impl Default for Splitter {
    fn default() -> Splitter {
        Splitter { state: AT_HEADER }
    }
}

impl Splitter {
    /// Takes the next bytes of the stream; calls `ended` at the end of each frame.
    ///
    /// # Errors
    /// What is not a publish or a short JSON message. The stream is lost then.
    pub fn push(
        &mut self,
        mut bytes: &[u8],
        discard: &mut Discard,
        mut ended: impl FnMut(Ended),
    ) -> Result<(), DecodeError> {
        loop {
            // A frame may end with the chunk, or be empty, so the state is looked at before the bytes.
            let next = match &mut self.state {
                State::Header { bytes: header, have } => {
                    fill(header, have, &mut bytes);
                    if *have < HEADER_LEN {
                        return Ok(());
                    }
                    begin(*header)?
                }
                State::Json { text, left } => {
                    text.extend_from_slice(split_front(&mut bytes, left));
                    if *left > 0 {
                        return Ok(());
                    }
                    ended(Ended::Json(std::mem::take(text)));
                    AT_HEADER
                }
                State::Request { bytes: id, have, left } => {
                    fill(id, have, &mut bytes);
                    if *have < REQUEST_LEN {
                        return Ok(());
                    }
                    State::Payload { request: Some(RequestId(u64::from_be_bytes(*id))), left: *left }
                }
                State::Message { left } => {
                    discard.take(split_front(&mut bytes, left));
                    if *left > 0 {
                        return Ok(());
                    }
                    ended(Ended::Request);
                    AT_HEADER
                }
                State::Payload { request, left } => {
                    discard.take(split_front(&mut bytes, left));
                    if *left > 0 {
                        return Ok(());
                    }
                    ended(Ended::Publish(*request));
                    AT_HEADER
                }
            };
            self.state = next;
        }
    }
}

/// What follows a header.
fn begin(header: [u8; HEADER_LEN]) -> Result<State, DecodeError> {
    // The one private layout is no flag of the protocol, which the decoder insists on.
    let header = match FrameHeader::decode(&header) {
        Err(DecodeError::UnknownFlags(flags)) if Flags(flags) == Flags::BINARY_MESSAGE => {
            let [.., l0, l1, l2, l3] = header;
            FrameHeader { flags, length: u32::from_be_bytes([l0, l1, l2, l3]) }
        }
        decoded => decoded?,
    };
    let flags = Flags(header.flags);
    let left = header.length as usize;
    let limit = if flags == Flags::JSON { PRE_AUTH_PAYLOAD_MAX } else { FRAME_PAYLOAD_MAX };
    if header.length > limit {
        return Err(DecodeError::TooLarge { length: header.length, limit });
    }
    if flags == Flags::JSON {
        return Ok(State::Json { text: Vec::new(), left });
    }
    if flags == Flags::BINARY_MESSAGE {
        return Ok(State::Message { left });
    }
    if !flags.contains(Flags::PUBLISH_BATCH) {
        return Err(DecodeError::UnknownFlags(header.flags));
    }
    if !flags.contains(Flags::PUBLISH_ACKED) {
        return Ok(State::Payload { request: None, left });
    }
    let left = left.checked_sub(REQUEST_LEN).ok_or(DecodeError::Incomplete)?;
    Ok(State::Request { bytes: [0; REQUEST_LEN], have: 0, left })
}

/// Moves bytes into what `target` lacks.
fn fill(target: &mut [u8], have: &mut usize, bytes: &mut &[u8]) {
    let room = target.get_mut(*have..).unwrap_or_default();
    let (now, later) = bytes.split_at(room.len().min(bytes.len()));
    let (room, _) = room.split_at_mut(now.len());
    room.copy_from_slice(now);
    *have += now.len();
    *bytes = later;
}

/// Takes up to `left` bytes off the front.
fn split_front<'a>(bytes: &mut &'a [u8], left: &mut usize) -> &'a [u8] {
    let (now, later) = bytes.split_at((*left).min(bytes.len()));
    *left -= now.len();
    *bytes = later;
    now
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use felix_wire::client::{AckMode, Message, PublishHead, encode_publish};

    use super::*;

    fn publish(request: Option<u64>, record: &[u8], out: &mut BytesMut) {
        let head = PublishHead {
            tenant: "t",
            namespace: "n",
            stream: "s",
            key: None,
            acked: request.map(|id| (RequestId(id), AckMode::PerBatch)),
            producer: None,
        };
        encode_publish(&head, [record], out).unwrap();
    }

    #[test]
    fn frames_end_at_the_same_places_however_they_are_cut() {
        let mut stream = BytesMut::new();
        Message::Topology.encode_frame(&mut stream);
        publish(Some(7), &[1; 300], &mut stream);
        publish(None, &[], &mut stream);
        publish(Some(8), &[2; 10], &mut stream);
        for piece in [1, 2, 3, 7, 11, 12, 13, 64, stream.len()] {
            let (mut splitter, mut discard, mut ended) =
                (Splitter::default(), Discard::default(), Vec::new());
            for chunk in stream.chunks(piece) {
                splitter.push(chunk, &mut discard, |end| ended.push(end)).unwrap();
            }
            assert_eq!(ended[0], Ended::Json(br#"{"type":"topology"}"#.to_vec()), "pieces of {piece}");
            let requests: Vec<_> = ended[1..].to_vec();
            let wanted = [Some(7), None, Some(8)].map(|id| Ended::Publish(id.map(RequestId)));
            assert_eq!(requests, wanted, "pieces of {piece}");
            assert!(discard.bytes > 310 && discard.bytes < stream.len() as u64);
        }
    }

    #[test]
    fn requests_end_like_publishes_and_are_kept_nowhere() {
        let mut stream = BytesMut::new();
        for id in 1..=3 {
            let ok = felix_wire::client::CacheOk { request_id: RequestId(id) };
            Message::CacheOk(ok).encode_frame_as(felix_wire::client::Form::Binary, &mut stream);
        }
        for piece in [1, 5, 12, stream.len()] {
            let (mut splitter, mut discard, mut ended) =
                (Splitter::default(), Discard::default(), Vec::new());
            for chunk in stream.chunks(piece) {
                splitter.push(chunk, &mut discard, |end| ended.push(end)).unwrap();
            }
            assert_eq!(ended, [Ended::Request, Ended::Request, Ended::Request]);
            assert_eq!(discard.bytes as usize, stream.len() - 3 * HEADER_LEN);
        }
    }

    #[test]
    fn what_is_no_publish_loses_the_stream() {
        let push = |bytes: &[u8]| Splitter::default().push(bytes, &mut Discard::default(), |_| {});
        assert_eq!(push(b"GET / HTTP/1"), Err(DecodeError::InvalidMagic));
        let header = |flags: Flags, length: u32| FrameHeader { flags: flags.bits(), length }.encode();
        assert!(matches!(push(&header(Flags::JSON, 70_000)), Err(DecodeError::TooLarge { .. })));
        assert!(matches!(push(&header(Flags::PUBLISH_ACK, 3)), Err(DecodeError::UnknownFlags(_))));
        let acked = Flags::PUBLISH_BATCH | Flags::PUBLISH_ACKED;
        assert_eq!(push(&header(acked, 7)), Err(DecodeError::Incomplete));
    }

    #[test]
    fn the_buffer_is_used_from_the_front_again() {
        let mut discard = Discard::default();
        discard.take(&vec![1; DISCARD_BYTES - 3]);
        discard.take(&[2; 8]);
        assert_eq!((discard.at, discard.bytes), (5, DISCARD_BYTES as u64 + 5));
        assert_eq!(discard.buffer[..6], [2, 2, 2, 2, 2, 1]);
    }
}
