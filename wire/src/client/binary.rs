//! The binary form of cache, counter and group messages, behind the private bit `Features::BINARY_MESSAGES`.
//! A frame with the flags `Flags::BINARY_MESSAGE`: u32 length of the head, the head (FlatBuffers, `schema/request.fbs`), the
//! tail. The tail is a value or the payloads of records as they are, so neither is copied into a builder nor out of one.
//! Owns: which messages have this form, and both directions of it. `Message` stays the only type others see.
//! Invariants: a head is verified before it is read, with limits that follow its size; a frame has no byte that belongs to
//! neither part; what is read is written as something that reads the same.
//! Not here: who may be sent this form (the session and the client negotiate it).
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod answer;
mod decode;
mod encode;
mod key_request;
mod page;

use bytes::{BufMut, Bytes, BytesMut};
use flatbuffers::{FlatBufferBuilder, VerifierOptions};

use super::Message;
use super::group::GroupRecord;
use super::key_request::KeyRequest;
use crate::cursor::Cursor;
use crate::flags::Flags;
use crate::frame::{DecodeError, Frame, FrameHeader, HEADER_LEN};
use crate::generated::request::felix::request as fb;

pub use answer::encode_value;
pub use page::{PageRecord, encode_page};

/// Bytes that say how long the head is.
const HEAD_PREFIX_LEN: usize = 4;
/// Tables inside one another: head, body, key or group.
const DEPTH_MAX: usize = 3;
/// Room for a head with names of ordinary length, bytes; a longer one grows.
const HEAD_ROOM: usize = 256;
/// A value up to this, bytes, has its room reserved behind the head; a longer one is rather sent as it is.
const VALUE_ROOM_MAX: usize = 32 << 10;
/// What a record of a poll adds to its head, bytes.
const RECORD_HEAD_LEN: usize = size_of::<fb::Record>();

const DAMAGED: DecodeError = DecodeError::Malformed("the head is damaged");

/// How a message is written.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// One JSON object, which every peer reads.
    #[default]
    Json,
    /// This one, for peers that negotiated it. A message without it is written as JSON all the same.
    Binary,
}

/// What stands behind a head.
enum Tail<'m> {
    Nothing,
    Value(&'m Bytes),
    Payloads(&'m [GroupRecord<'m>]),
}

impl Tail<'_> {
    fn len(&self) -> usize {
        match self {
            Tail::Nothing => 0,
            Tail::Value(value) => value.len(),
            Tail::Payloads(records) => records.iter().map(|record| record.payload.len()).sum(),
        }
    }

    /// What is to be reserved for it: nothing when it is rather sent as it is.
    fn room(&self) -> usize {
        match self {
            Tail::Value(value) if value.len() > VALUE_ROOM_MAX => 0,
            other => other.len(),
        }
    }
}

impl<'a> Message<'a> {
    /// Reads the message of a frame in the form that its flags say.
    ///
    /// # Errors
    /// `UnknownFlags` for a frame that is no message, else as [`Message::decode`] and [`Message::decode_binary`].
    pub fn decode_frame(frame: &'a Frame) -> Result<Self, DecodeError> {
        match Flags(frame.flags) {
            Flags::JSON => Self::decode(&frame.payload),
            Flags::BINARY_MESSAGE => Self::decode_binary(&frame.payload),
            other => Err(DecodeError::UnknownFlags(other.bits())),
        }
    }

    /// Reads the payload of a frame with the flags `BINARY_MESSAGE`. Values and payloads of records are slices of it, texts
    /// borrow from it. The names of a `cache_value` are not written in this form and read as empty.
    ///
    /// # Errors
    /// `Incomplete` when the payload ends before the head does; `Malformed` for a head that is none, one of a kind or with
    /// a choice this build does not know, and a tail that is not what the head says.
    pub fn decode_binary(payload: &'a Bytes) -> Result<Self, DecodeError> {
        if let Some(request) = KeyRequest::read(payload) {
            return request.map(|request| request.into_message(payload.slice_ref(request.value)));
        }
        let mut cursor = Cursor::new(payload);
        let head_len = cursor.u32()? as usize;
        let head = cursor.take(head_len)?;
        let tail = payload.slice(payload.len() - cursor.remaining()..);
        decode::message(&verified(head)?, tail)
    }

    /// Appends the whole frame in that form, or as JSON when the message has no other, and returns its payload length in
    /// bytes, which the caller compares with what the peer takes.
    ///
    /// # Panics
    /// As [`Message::encode_frame`].
    pub fn encode_frame_as(&self, form: Form, out: &mut BytesMut) -> usize {
        let (from, tail) = match form {
            Form::Binary => (out.len(), self.encode_binary(out)),
            Form::Json => return self.encode_frame(out),
        };
        let Some(tail) = tail else { return self.encode_frame(out) };
        out.extend_from_slice(&tail);
        out.len() - from - HEADER_LEN
    }

    /// Appends the frame in the binary form up to a tail that is one value, which is returned instead, to be sent behind it
    /// without a copy; any other tail is written. `None`, with nothing appended, for a message without this form: of another
    /// family, without a request id, with a publisher, with append times for some of its records, or with an error code
    /// that has no number.
    ///
    /// # Panics
    /// When the payload is longer than 32 bits can say.
    pub fn encode_binary(&self, out: &mut BytesMut) -> Option<Bytes> {
        if let Some(tail) = answer::write(self, out) {
            return Some(tail);
        }
        let room = match self {
            Message::GroupRecords(page) => HEAD_ROOM + page.records.len() * RECORD_HEAD_LEN,
            _ => HEAD_ROOM,
        };
        let mut builder = FlatBufferBuilder::with_capacity(room);
        let tail = encode::head(self, &mut builder)?;
        begin_frame(out, builder.finished_data(), (tail.len(), tail.room()));
        match tail {
            Tail::Value(value) => return Some(value.clone()),
            Tail::Payloads(records) => records.iter().for_each(|r| out.extend_from_slice(&r.payload)),
            Tail::Nothing => {}
        }
        Some(Bytes::new())
    }
}

/// Appends a frame up to its tail of so many bytes, and makes room for so many. Gives where the head is.
///
/// # Panics
/// When the payload is longer than 32 bits can say.
fn begin_frame(out: &mut BytesMut, head: &[u8], (tail_len, room): (usize, usize)) -> usize {
    let length = u32::try_from(HEAD_PREFIX_LEN + head.len() + tail_len);
    assert!(length.is_ok(), "a frame over 32 bits");
    let header = FrameHeader { flags: Flags::BINARY_MESSAGE.bits(), length: length.unwrap_or(u32::MAX) };
    out.reserve(HEADER_LEN + HEAD_PREFIX_LEN + head.len() + room);
    out.extend_from_slice(&header.encode());
    out.put_u32(head.len() as u32);
    let from = out.len();
    out.extend_from_slice(head);
    from
}

fn verified(head: &[u8]) -> Result<fb::Head<'_>, DecodeError> {
    let limits = VerifierOptions {
        max_depth: DEPTH_MAX,
        max_tables: DEPTH_MAX,
        max_apparent_size: apparent_size_max(head),
        ignore_missing_null_terminator: false,
    };
    fb::root_as_head_with_opts(&limits, head).map_err(|_| DAMAGED)
}

/// What the tables of a head may show: our encoder shares no bytes but vtables, so that is a small multiple of it.
fn apparent_size_max(head: &[u8]) -> usize {
    head.len().saturating_mul(2)
}
