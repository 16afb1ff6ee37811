//! What must hold for any bytes at all, one function per decoder: no panic, what is read can be written and read
//! again, and where a stream is cut changes nothing. The seeded tests and the coverage-guided targets in `fuzz/` both
//! call these.
//! An input for a binary layout is two bytes of flags, then the payload.

use bytes::{Bytes, BytesMut};
use felix_wire::client::{BinaryPublish, EventBatch, Form, Message, PublishAck, encode_publish_head};
use felix_wire::limits::{FRAME_TRUST_BYTES, PRE_AUTH_PAYLOAD_MAX};
use felix_wire::{DecodeError, Flags, Frame, FrameHeader, FrameReader, HEADER_LEN};

/// Flags and payload of an input for a binary layout.
fn split_flags(data: &[u8]) -> Option<(u16, Bytes)> {
    let (flags, payload) = data.split_first_chunk()?;
    Some((u16::from_be_bytes(*flags), Bytes::copy_from_slice(payload)))
}

/// Takes frames until the reader wants more or refuses.
fn drain(reader: &mut FrameReader, frames: &mut Vec<Frame>) -> Option<DecodeError> {
    loop {
        match reader.next() {
            Ok(Some(frame)) => frames.push(frame),
            Ok(None) => return None,
            Err(error) => return Some(error),
        }
    }
}

/// A header and a reader over one whole chunk: the frames that come out are the bytes that went in.
pub fn frame_stream(data: &[u8]) {
    if let Some(bytes) = data.first_chunk::<HEADER_LEN>()
        && let Ok(header) = FrameHeader::decode(bytes)
    {
        assert_eq!(header.encode(), *bytes);
    }
    let mut reader = FrameReader::new(PRE_AUTH_PAYLOAD_MAX);
    reader.push(Bytes::copy_from_slice(data));
    let mut frames = Vec::new();
    let refused = drain(&mut reader, &mut frames);
    assert!(!matches!(refused, Some(DecodeError::UnknownFlags(_) | DecodeError::Incomplete)), "not fatal");
    let mut rest = data;
    for frame in frames.iter().take_while(|frame| !frame.unknown_flags()) {
        let header = FrameHeader { flags: frame.flags, length: frame.payload.len() as u32 };
        let (head, tail) = rest.split_at(HEADER_LEN);
        assert_eq!(head, header.encode());
        let (payload, tail) = tail.split_at(frame.payload.len());
        assert_eq!(payload, frame.payload);
        rest = tail;
    }
}

/// The same stream whole and in pieces gives the same frames, the same refusal and the same ending, and never
/// holds more than was received allows.
pub fn split_or_whole(data: &[u8]) {
    let mut whole = FrameReader::new(PRE_AUTH_PAYLOAD_MAX);
    whole.push(Bytes::copy_from_slice(data));
    let mut expected = Vec::new();
    let expected_end = drain(&mut whole, &mut expected);

    let mut pieces = FrameReader::new(PRE_AUTH_PAYLOAD_MAX);
    let mut frames = Vec::new();
    let mut end = None;
    let mut rest = data;
    let mut cut = data.iter().fold(data.len() as u64 + 1, |mix, byte| mix.rotate_left(7) ^ u64::from(*byte));
    while !rest.is_empty() {
        cut = cut.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let longest = if cut & 1 == 0 { 4 } else { 400 };
        let take = ((cut >> 33) as usize % longest + 1).min(rest.len());
        let (piece, tail) = rest.split_at(take);
        pieces.push(Bytes::copy_from_slice(piece));
        rest = tail;
        end = drain(&mut pieces, &mut frames);
        let received = data.len() - rest.len();
        assert!(pieces.buffered_bytes() <= FRAME_TRUST_BYTES.max(2 * received));
    }
    assert_eq!(frames, expected);
    assert_eq!(end, expected_end);
    assert_eq!(pieces.is_mid_frame(), whole.is_mid_frame());
}

/// A JSON message: what is read is written as something that reads the same, and is then stable.
pub fn json_message(data: &[u8]) {
    let Ok(message) = Message::decode(data) else { return };
    let mut first = BytesMut::new();
    message.encode_frame(&mut first);
    let again = Message::decode(&first[HEADER_LEN..]).expect("what we write is read");
    assert_eq!(again, message);
    let mut second = BytesMut::new();
    again.encode_frame(&mut second);
    assert_eq!(first, second);
}

/// A message in its binary form: what is read is written as something that reads the same, in this form and, names of a
/// value aside, as JSON; and is then stable.
pub fn binary_message(data: &[u8]) {
    let payload = Bytes::copy_from_slice(data);
    let Ok(message) = Message::decode_binary(&payload) else { return };
    let mut first = BytesMut::new();
    let length = message.encode_frame_as(Form::Binary, &mut first);
    assert_eq!(first.len(), HEADER_LEN + length);
    let header = FrameHeader { flags: Flags::BINARY_MESSAGE.bits(), length: length as u32 };
    assert_eq!(first[..HEADER_LEN], header.encode(), "what was read in this form has it");
    let written = first.split_off(HEADER_LEN).freeze();
    let again = Message::decode_binary(&written).expect("what we write is read");
    assert_eq!(again, message);
    let mut second = BytesMut::new();
    again.encode_frame_as(Form::Binary, &mut second);
    assert_eq!(second[HEADER_LEN..], written);
    let mut json = BytesMut::new();
    message.encode_frame(&mut json);
    // A code that has only a number has another name in JSON.
    if !matches!(message, Message::Error(_)) {
        assert_eq!(Message::decode(&json[HEADER_LEN..]), Ok(message));
    }
}

/// A binary publish: what is read is written as the same bytes.
pub fn binary_publish(data: &[u8]) {
    let Some((flags, payload)) = split_flags(data) else { return };
    let Ok(publish) = BinaryPublish::decode(flags, &payload) else { return };
    let records = &publish.records;
    assert_eq!(records.iter().count(), records.count() as usize);
    assert_eq!(records.iter().map(<[u8]>::len).sum::<usize>(), records.payload_bytes());
    let mut out = BytesMut::new();
    encode_publish_head(&publish.head(), records.count(), records.encoded_len(), &mut out).expect("encodes");
    out.extend_from_slice(records.bytes());
    let written = &out[HEADER_LEN..];
    assert_eq!(written, &payload[..written.len()]);
    assert_eq!(publish.head().flags().bits(), flags);
}

/// A publish ack: what is read is written as something that reads the same.
pub fn publish_ack(data: &[u8]) {
    let Some((flags, payload)) = split_flags(data) else { return };
    let Ok(ack) = PublishAck::decode(flags, &payload) else { return };
    let mut out = BytesMut::new();
    ack.encode_frame(&mut out);
    let (header, payload) = out.split_at(HEADER_LEN);
    let header = FrameHeader::decode(header.first_chunk().expect("a header")).expect("a header");
    assert_eq!(header.length as usize, payload.len());
    assert_eq!(PublishAck::decode(header.flags, payload), Ok(ack));
}

/// An event frame: what is read is written as something that reads the same.
pub fn events(data: &[u8]) {
    let Some((flags, payload)) = split_flags(data) else { return };
    let Ok(batch) = EventBatch::decode(flags, &payload) else { return };
    assert_eq!(batch.iter().count(), batch.count() as usize);
    let mut out = BytesMut::new();
    batch.encode_frame(&mut out);
    let written = out.freeze().split_off(HEADER_LEN);
    assert_eq!(EventBatch::decode(batch.flags().bits(), &written), Ok(batch));
}
