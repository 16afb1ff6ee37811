//! The frame envelope: magic, version, flags, length (client-protocol 2), and reassembly of frames from stream chunks.
//! Scope: one `FrameReader` per receiving stream direction. No I/O: bytes are pushed in, frames are taken out.
//! Invariants: a header is judged before a byte of its payload is kept; memory held for a payload never exceeds
//! max(64 KiB or what the reader was told to trust, twice what arrived) nor the payload's own length; after a fatal error
//! nothing more comes out.
//! Not here: what a payload means (`client`).
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing))]

use std::collections::VecDeque;

use bytes::{Buf, Bytes};

use crate::flags::Flags;
use crate::limits::FRAME_TRUST_BYTES;

/// `FLX1`.
pub const MAGIC: [u8; 4] = *b"FLX1";
/// The only version there is.
pub const VERSION: u16 = 1;
/// Bytes before the payload.
pub const HEADER_LEN: usize = 12;
/// ALPN id of the client protocol (client-protocol 1.2).
pub const ALPN: &[u8] = b"felix/1";

/// Why bytes are not what the protocol allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The first four bytes are not `FLX1`. The stream is lost.
    #[error("not a frame: wrong magic")]
    InvalidMagic,
    /// A version other than 1. The stream is lost.
    #[error("frame version {0} is not supported")]
    UnsupportedVersion(u16),
    /// Flag bits without a meaning, alone or in this combination. The stream can go on after the body.
    #[error("flags {0:#06x} have no meaning")]
    UnknownFlags(u16),
    /// The input ends before the layout does.
    #[error("the input ends too early")]
    Incomplete,
    /// The bytes break a rule of their layout.
    #[error("malformed: {0}")]
    Malformed(&'static str),
    /// The header announces more than this stream may carry. The stream is lost.
    #[error("a frame of {length} bytes is over the limit of {limit}")]
    TooLarge {
        /// Announced payload length, bytes.
        length: u32,
        /// Largest payload this reader takes, bytes.
        limit: u32,
    },
}

impl DecodeError {
    /// The class of refusal, one word, as logs and counters name it.
    #[must_use]
    pub const fn class(&self) -> &'static str {
        match self {
            Self::InvalidMagic => "invalid_magic",
            Self::UnsupportedVersion(_) => "unsupported_version",
            Self::UnknownFlags(_) => "unknown_flags",
            Self::Incomplete => "incomplete",
            Self::Malformed(_) => "malformed",
            Self::TooLarge { .. } => "too_large",
        }
    }
}

/// What the 12 bytes in front of a payload say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameHeader {
    /// Flag bits; 0 is JSON.
    pub flags: u16,
    /// Payload bytes that follow.
    pub length: u32,
}

impl FrameHeader {
    /// Reads a header and requires every flag bit to be known.
    ///
    /// # Errors
    /// `InvalidMagic`, `UnsupportedVersion`, `UnknownFlags`, checked in that order.
    pub fn decode(bytes: &[u8; HEADER_LEN]) -> Result<Self, DecodeError> {
        let header = Self::read(bytes)?;
        if Flags(header.flags).unknown() != Flags(0) {
            return Err(DecodeError::UnknownFlags(header.flags));
        }
        Ok(header)
    }

    /// The 12 bytes of this header.
    #[must_use]
    pub const fn encode(self) -> [u8; HEADER_LEN] {
        let [m0, m1, m2, m3] = MAGIC;
        let [v0, v1] = VERSION.to_be_bytes();
        let [f0, f1] = self.flags.to_be_bytes();
        let [l0, l1, l2, l3] = self.length.to_be_bytes();
        [m0, m1, m2, m3, v0, v1, f0, f1, l0, l1, l2, l3]
    }

    /// Like `decode`, with the flags left to the caller: a reader needs the length to skip the body.
    fn read(bytes: &[u8; HEADER_LEN]) -> Result<Self, DecodeError> {
        let [m0, m1, m2, m3, v0, v1, f0, f1, l0, l1, l2, l3] = *bytes;
        if [m0, m1, m2, m3] != MAGIC {
            return Err(DecodeError::InvalidMagic);
        }
        let version = u16::from_be_bytes([v0, v1]);
        if version != VERSION {
            return Err(DecodeError::UnsupportedVersion(version));
        }
        Ok(Self { flags: u16::from_be_bytes([f0, f1]), length: u32::from_be_bytes([l0, l1, l2, l3]) })
    }
}

/// The frame that `bytes` begins with, if all of it is there and the flags and the payload of up to `max` bytes are what the
/// protocol allows or those of a binary message: its flags and its payload, not copied. It takes `HEADER_LEN` and the
/// payload's bytes.
#[must_use]
pub fn whole_frame(bytes: &[u8], max: usize) -> Option<(u16, &[u8])> {
    let (header, rest) = bytes.split_first_chunk::<HEADER_LEN>()?;
    let FrameHeader { flags, length } = FrameHeader::read(header).ok()?;
    let allowed = Flags(flags).unknown() == Flags(0) || Flags(flags) == Flags::BINARY_MESSAGE;
    let payload = rest.get(..length as usize)?;
    (allowed && payload.len() <= max).then_some((flags, payload))
}

/// One frame taken off a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// Flag bits as received.
    pub flags: u16,
    /// The payload; empty when its reader does not know a flag bit, whatever its length was on the wire.
    pub payload: Bytes,
}

impl Frame {
    /// True when a flag bit is not known to the protocol. The body was read and dropped, unless the reader takes binary
    /// messages and this is one; a broker answers `invalid_request` and goes on, a client gives the stream up
    /// (client-protocol 2).
    #[must_use]
    pub fn unknown_flags(&self) -> bool {
        Flags(self.flags).unknown() != Flags(0)
    }
}

#[derive(Debug)]
enum State {
    Header { bytes: [u8; HEADER_LEN], have: usize },
    Payload { header: FrameHeader, gathered: Vec<u8> },
    Discard { flags: u16, remaining: usize },
    Failed(DecodeError),
}

const EMPTY_HEADER: State = State::Header { bytes: [0; HEADER_LEN], have: 0 };

/// Puts the frames of one stream together again.
///
/// Push a chunk, then call `next` until it answers `Ok(None)`; only then are all pushed bytes accounted to a
/// frame under way. A frame that lies in one chunk is a slice of it (and keeps that chunk alive); one that
/// spans chunks is copied once into a buffer of its own, which ends up exactly as long as the payload.
#[derive(Debug)]
pub struct FrameReader {
    max_payload: u32,
    binary_messages: bool,
    /// Bytes of memory that a header alone may claim.
    trusted_bytes: usize,
    chunks: VecDeque<Bytes>,
    chunk_bytes: usize,
    state: State,
}

impl FrameReader {
    /// A reader at the start of a stream that takes payloads of up to `max_payload` bytes.
    #[must_use]
    pub fn new(max_payload: u32) -> Self {
        Self {
            max_payload,
            binary_messages: false,
            trusted_bytes: FRAME_TRUST_BYTES,
            chunks: VecDeque::new(),
            chunk_bytes: 0,
            state: EMPTY_HEADER,
        }
    }

    /// Changes the limit for frames whose header has not been judged yet.
    pub fn set_max_payload(&mut self, max_payload: u32) {
        self.max_payload = max_payload;
    }

    /// The limit, bytes: a caller who takes frames in place keeps to it too.
    #[must_use]
    pub fn max_payload(&self) -> usize {
        self.max_payload as usize
    }

    /// From now on the buffer of a payload of up to `bytes` bytes (64 KiB at first) is made in its full length at once, so
    /// that what has arrived need not be moved while it grows. For peers whose unfinished frames are bounded together: see
    /// `buffered_bytes`, which counts the whole buffer.
    pub fn trust(&mut self, bytes: usize) {
        self.trusted_bytes = bytes;
    }

    /// Frames with the flags `Flags::BINARY_MESSAGE` and no other come out whole from now on, for peers that negotiated
    /// them. Holds for frames whose header has not been judged yet.
    pub fn take_binary_messages(&mut self) {
        self.binary_messages = true;
    }

    /// Whether frames with these flags come out whole; of others only the flags do.
    #[must_use]
    pub fn knows(&self, flags: Flags) -> bool {
        flags.unknown() == Flags(0) || (self.binary_messages && flags == Flags::BINARY_MESSAGE)
    }

    /// Takes the next bytes of the stream. After a fatal error they are dropped.
    pub fn push(&mut self, chunk: Bytes) {
        if chunk.is_empty() || matches!(self.state, State::Failed(_)) {
            return;
        }
        self.chunk_bytes += chunk.len();
        self.chunks.push_back(chunk);
    }

    /// Gives away the bytes that come next when a frame begins with them, for a caller who takes whole frames off them in
    /// place (`whole_frame`) and returns the rest with `give_back` before anything else.
    pub fn lend(&mut self) -> Option<Bytes> {
        if !matches!(self.state, State::Header { have: 0, .. }) {
            return None;
        }
        let chunk = self.chunks.pop_front()?;
        self.chunk_bytes -= chunk.len();
        Some(chunk)
    }

    /// Takes back what is left of lent bytes.
    pub fn give_back(&mut self, rest: Bytes) {
        if !rest.is_empty() {
            self.chunk_bytes += rest.len();
            self.chunks.push_front(rest);
        }
    }

    /// The next whole frame, or `None` until more bytes are pushed.
    ///
    /// # Errors
    /// `InvalidMagic`, `UnsupportedVersion` and `TooLarge` are fatal: the same error comes back from then on and
    /// everything held is let go. An unknown flag bit is no error here, see `Frame::unknown_flags`.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<Option<Frame>, DecodeError> {
        loop {
            match &mut self.state {
                State::Failed(error) => return Err(*error),
                State::Header { .. } => {
                    if !self.read_header() {
                        return Ok(None);
                    }
                }
                State::Payload { .. } => return Ok(self.read_payload()),
                State::Discard { .. } => return Ok(self.discard()),
            }
        }
    }

    /// Bytes of memory held for this stream: chunks not yet taken plus the buffer of a frame under way. Memory
    /// that a chunk shares with other chunks is not known here.
    #[must_use]
    pub fn buffered_bytes(&self) -> usize {
        let under_way = match &self.state {
            State::Header { have, .. } => *have,
            State::Payload { gathered, .. } => gathered.capacity(),
            State::Discard { .. } | State::Failed(_) => 0,
        };
        self.chunk_bytes + under_way
    }

    /// True when a header was read and its payload has not all come: an end of stream here is an error, an end
    /// anywhere else is quiet (client-protocol 2). Meaningful once `next` answered `Ok(None)`.
    #[must_use]
    pub fn is_mid_frame(&self) -> bool {
        matches!(self.state, State::Payload { .. } | State::Discard { .. })
    }

    /// Moves bytes into the header; true once the state has changed.
    fn read_header(&mut self) -> bool {
        let State::Header { bytes, have } = &mut self.state else { return true };
        while *have < HEADER_LEN {
            let Some(chunk) = self.chunks.front_mut() else { return false };
            let rest = bytes.get_mut(*have..).unwrap_or_default();
            let take = rest.len().min(chunk.len());
            let Some(target) = rest.get_mut(..take) else { return false };
            chunk.copy_to_slice(target);
            *have += take;
            self.chunk_bytes -= take;
            if chunk.is_empty() {
                self.chunks.pop_front();
            }
        }
        let judged = match FrameHeader::read(bytes) {
            Ok(header) if header.length > self.max_payload => {
                Err(DecodeError::TooLarge { length: header.length, limit: self.max_payload })
            }
            other => other,
        };
        match judged {
            Ok(header) if !self.knows(Flags(header.flags)) => {
                self.state = State::Discard { flags: header.flags, remaining: header.length as usize };
            }
            Ok(header) => self.state = State::Payload { header, gathered: Vec::new() },
            Err(error) => self.fail(error),
        }
        true
    }

    fn fail(&mut self, error: DecodeError) {
        self.chunks = VecDeque::new();
        self.chunk_bytes = 0;
        self.state = State::Failed(error);
    }

    /// Moves bytes into the payload; the frame once it is whole.
    fn read_payload(&mut self) -> Option<Frame> {
        let trusted = self.trusted_bytes;
        let State::Payload { header, gathered } = &mut self.state else { return None };
        let length = header.length as usize;
        let payload = loop {
            let missing = length - gathered.len();
            if missing == 0 {
                break Bytes::from(std::mem::take(gathered));
            }
            let chunk = self.chunks.front_mut()?;
            let take = missing.min(chunk.len());
            let part = chunk.split_to(take);
            self.chunk_bytes -= take;
            if chunk.is_empty() {
                self.chunks.pop_front();
            }
            if take == length {
                break part;
            }
            grow(gathered, take, length, trusted);
            gathered.extend_from_slice(&part);
        };
        let frame = Frame { flags: header.flags, payload };
        self.state = EMPTY_HEADER;
        Some(frame)
    }

    /// Drops bytes of a body nobody can read; the bare frame once it is all gone.
    fn discard(&mut self) -> Option<Frame> {
        let State::Discard { flags, remaining } = &mut self.state else { return None };
        while *remaining > 0 {
            let chunk = self.chunks.front_mut()?;
            let take = chunk.len().min(*remaining);
            chunk.advance(take);
            *remaining -= take;
            self.chunk_bytes -= take;
            if chunk.is_empty() {
                self.chunks.pop_front();
            }
        }
        let frame = Frame { flags: *flags, payload: Bytes::new() };
        self.state = EMPTY_HEADER;
        Some(frame)
    }
}

/// Makes room for `more` bytes: at most max(`trusted`, twice what will then have arrived), never more than `length`.
fn grow(gathered: &mut Vec<u8>, more: usize, length: usize, trusted: usize) {
    let received = gathered.len() + more;
    if received > gathered.capacity() {
        let capacity = length.min(trusted.max(2 * received));
        gathered.reserve_exact(capacity - gathered.len());
    }
}

#[cfg(test)]
mod tests;
