use super::*;
use crate::limits::{FRAME_PAYLOAD_MAX, PRE_AUTH_PAYLOAD_MAX};

fn frame_bytes(flags: u16, payload: &[u8]) -> Vec<u8> {
    let mut bytes = FrameHeader { flags, length: payload.len() as u32 }.encode().to_vec();
    bytes.extend_from_slice(payload);
    bytes
}

fn drain(reader: &mut FrameReader) -> Vec<Frame> {
    let mut frames = Vec::new();
    while let Some(frame) = reader.next().expect("no error") {
        frames.push(frame);
    }
    frames
}

#[test]
fn a_frame_in_one_chunk_is_a_slice_of_it() {
    let chunk = Bytes::from([frame_bytes(1, b"one"), frame_bytes(0, b"two")].concat());
    let mut reader = FrameReader::new(PRE_AUTH_PAYLOAD_MAX);
    reader.push(chunk.clone());
    let frames = drain(&mut reader);
    assert_eq!(frames.len(), 2);
    assert_eq!(frames[0].payload.as_ptr(), chunk[HEADER_LEN..].as_ptr());
    assert_eq!(frames[1].payload, &b"two"[..]);
    assert_eq!(frames[1].payload.as_ptr(), chunk[2 * HEADER_LEN + 3..].as_ptr());
}

#[test]
fn a_payload_in_one_chunk_is_a_slice_even_when_its_header_was_split() {
    let bytes = frame_bytes(1, b"payload");
    let mut reader = FrameReader::new(PRE_AUTH_PAYLOAD_MAX);
    reader.push(Bytes::copy_from_slice(&bytes[..5]));
    assert_eq!(reader.next(), Ok(None));
    let rest = Bytes::copy_from_slice(&bytes[5..]);
    reader.push(rest.clone());
    let frame = reader.next().expect("no error").expect("a frame");
    assert_eq!(frame.payload.as_ptr(), rest[HEADER_LEN - 5..].as_ptr());
}

#[test]
fn frames_are_the_same_wherever_the_stream_is_cut() {
    let stream =
        [frame_bytes(1, b"abcdef"), frame_bytes(0, b""), frame_bytes(0x8000, b"skip"), frame_bytes(4, b"z")]
            .concat();
    let mut whole = FrameReader::new(PRE_AUTH_PAYLOAD_MAX);
    whole.push(Bytes::from(stream.clone()));
    let expected = drain(&mut whole);
    assert_eq!(expected.len(), 4);
    for first in 0..=stream.len() {
        for second in first..=stream.len() {
            let mut reader = FrameReader::new(PRE_AUTH_PAYLOAD_MAX);
            let mut frames = Vec::new();
            for part in [&stream[..first], &stream[first..second], &stream[second..]] {
                reader.push(Bytes::copy_from_slice(part));
                frames.extend(drain(&mut reader));
            }
            assert_eq!(frames, expected, "cut at {first} and {second}");
            assert_eq!(reader.buffered_bytes(), 0);
        }
    }
}

#[test]
fn chunks_may_pile_up_before_they_are_taken() {
    let stream = [frame_bytes(1, &[7; 100]), frame_bytes(1, &[8; 100])].concat();
    let mut reader = FrameReader::new(PRE_AUTH_PAYLOAD_MAX);
    for part in stream.chunks(30) {
        reader.push(Bytes::copy_from_slice(part));
    }
    assert_eq!(reader.buffered_bytes(), stream.len());
    let frames = drain(&mut reader);
    assert_eq!(frames.iter().map(|frame| frame.payload[0]).collect::<Vec<_>>(), [7, 8]);
}

#[test]
fn memory_follows_what_arrived_not_what_was_announced() {
    let payload = vec![5_u8; 1_000_003];
    let bytes = frame_bytes(1, &payload);
    let mut reader = FrameReader::new(FRAME_PAYLOAD_MAX);
    let mut received = 0_usize;
    let mut frame = None;
    for part in bytes.chunks(3_800) {
        assert!(frame.is_none());
        reader.push(Bytes::copy_from_slice(part));
        received += part.len();
        frame = reader.next().expect("no error");
        let bound = payload.len().min(FRAME_TRUST_BYTES.max(2 * received));
        assert!(reader.buffered_bytes() <= bound, "{} held of {received}", reader.buffered_bytes());
    }
    assert_eq!(frame.expect("a frame").payload, payload);
}

#[test]
fn a_header_alone_holds_next_to_nothing() {
    let mut reader = FrameReader::new(FRAME_PAYLOAD_MAX);
    reader.push(Bytes::copy_from_slice(&FrameHeader { flags: 1, length: FRAME_PAYLOAD_MAX }.encode()));
    assert_eq!(reader.next(), Ok(None));
    assert_eq!(reader.buffered_bytes(), 0);
    reader.push(Bytes::from_static(b"x"));
    assert_eq!(reader.next(), Ok(None));
    assert!(reader.buffered_bytes() <= FRAME_TRUST_BYTES);
}

#[test]
fn a_trusted_payload_is_put_together_in_one_place() {
    let trusted = 300_000;
    for len in [trusted - 1, trusted, trusted + 2, 4 * trusted] {
        let bytes = frame_bytes(1, &vec![1; len]);
        let mut reader = FrameReader::new(FRAME_PAYLOAD_MAX);
        reader.trust(trusted);
        let mut places = Vec::new();
        for part in bytes[..bytes.len() - 1].chunks(3_800) {
            reader.push(Bytes::copy_from_slice(part));
            assert_eq!(reader.next(), Ok(None));
            let State::Payload { gathered, .. } = &reader.state else { panic!("a payload is under way") };
            places.push((gathered.as_ptr(), gathered.capacity()));
        }
        let (_, first) = places[0];
        assert_eq!(first, len.min(trusted), "what a header may claim");
        places.dedup();
        assert_eq!(places.len() == 1, len <= trusted, "{len}");
    }
}

#[test]
fn a_gathered_payload_is_held_in_exactly_its_own_size() {
    for len in [2, FRAME_TRUST_BYTES - 1, FRAME_TRUST_BYTES + 1, 262_144, 300_001] {
        let bytes = frame_bytes(1, &vec![1; len]);
        let mut reader = FrameReader::new(FRAME_PAYLOAD_MAX);
        reader.push(Bytes::copy_from_slice(&bytes[..bytes.len() - 1]));
        assert_eq!(reader.next(), Ok(None));
        reader.push(Bytes::copy_from_slice(&bytes[bytes.len() - 1..]));
        let State::Payload { gathered, .. } = &reader.state else { panic!("a payload is under way") };
        let capacity = gathered.capacity();
        let frame = reader.next().expect("no error").expect("a frame");
        assert!(frame.payload.len() == len && capacity <= len, "{capacity} for {len}");
    }
}

#[test]
fn a_length_over_the_limit_is_fatal_on_the_header_alone() {
    let mut reader = FrameReader::new(PRE_AUTH_PAYLOAD_MAX);
    let length = PRE_AUTH_PAYLOAD_MAX + 1;
    reader.push(Bytes::copy_from_slice(&FrameHeader { flags: 0, length }.encode()));
    let refused = Err(DecodeError::TooLarge { length, limit: PRE_AUTH_PAYLOAD_MAX });
    assert_eq!(reader.next(), refused);
    reader.push(Bytes::from(frame_bytes(0, b"{}")));
    assert_eq!(reader.next(), refused, "nothing comes out any more");
    assert_eq!(reader.buffered_bytes(), 0, "and nothing is kept");
    assert!(!reader.is_mid_frame());
}

#[test]
fn a_frame_of_exactly_the_limit_is_taken() {
    let mut reader = FrameReader::new(PRE_AUTH_PAYLOAD_MAX);
    reader.push(Bytes::from(frame_bytes(0, &vec![b' '; PRE_AUTH_PAYLOAD_MAX as usize])));
    assert_eq!(drain(&mut reader).len(), 1);
}

#[test]
fn a_raised_limit_counts_from_the_next_header_on() {
    let mut reader = FrameReader::new(4);
    reader.push(Bytes::from([frame_bytes(0, b"auth"), frame_bytes(0, b"longer")].concat()));
    assert_eq!(reader.next().expect("no error").expect("a frame").payload, &b"auth"[..]);
    reader.set_max_payload(6);
    assert_eq!(reader.next().expect("no error").expect("a frame").payload, &b"longer"[..]);
}

#[test]
fn wrong_magic_and_version_are_fatal() {
    for (at, error) in [(3, DecodeError::InvalidMagic), (5, DecodeError::UnsupportedVersion(0x99))] {
        let mut bytes = frame_bytes(0, b"{}");
        bytes[at] = 0x99;
        let mut reader = FrameReader::new(FRAME_PAYLOAD_MAX);
        reader.push(Bytes::copy_from_slice(&bytes[..HEADER_LEN - 1]));
        assert_eq!(reader.next(), Ok(None), "not judged before the header is whole");
        reader.push(Bytes::copy_from_slice(&bytes[HEADER_LEN - 1..]));
        assert_eq!(reader.next(), Err(error));
        assert_eq!(reader.next(), Err(error));
    }
}

#[test]
fn an_unknown_flag_is_read_past_and_the_stream_goes_on() {
    let stream = [frame_bytes(0x8001, &[1; 200_000]), frame_bytes(0, b"{}")].concat();
    let mut reader = FrameReader::new(FRAME_PAYLOAD_MAX);
    let mut frames = Vec::new();
    for part in stream.chunks(4_000) {
        reader.push(Bytes::copy_from_slice(part));
        frames.extend(drain(&mut reader));
        assert_eq!(reader.buffered_bytes(), 0, "a body nobody can read is not kept");
    }
    assert_eq!(frames.len(), 2);
    assert!(frames[0].unknown_flags() && frames[0].payload.is_empty());
    assert_eq!(frames[0].flags, 0x8001);
    assert!(!frames[1].unknown_flags());
}

#[test]
fn only_an_end_inside_a_payload_is_in_mid_frame() {
    for flags in [0, 0x8000] {
        let bytes = frame_bytes(flags, b"abc");
        for cut in 0..=bytes.len() {
            let mut reader = FrameReader::new(FRAME_PAYLOAD_MAX);
            reader.push(Bytes::copy_from_slice(&bytes[..cut]));
            drain(&mut reader);
            assert_eq!(reader.is_mid_frame(), (HEADER_LEN..bytes.len()).contains(&cut), "cut at {cut}");
        }
    }
}

#[test]
fn a_header_survives_its_bytes() {
    for (flags, length) in [(0, 0), (0x7fff, u32::MAX), (0x0024, 7)] {
        let header = FrameHeader { flags, length };
        assert_eq!(FrameHeader::decode(&header.encode()), Ok(header));
    }
}
