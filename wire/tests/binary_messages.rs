//! Messages in their binary form: the vectors, what is refused, and that nothing is copied that need not be.

#[expect(dead_code, reason = "what holds of other decoders is checked in `fuzz_seeded`")]
mod checks;

use std::borrow::Cow;

use bytes::{Bytes, BytesMut};
use felix_wire::client::{
    CacheConditionResult, CacheGet, CacheOk, CachePut, CacheValue, CounterValue, Error, Form, GroupRecord,
    GroupRecords, Message, PageRecord, encode_page, encode_value,
};
use felix_wire::generated::request::felix::request as fb;
use felix_wire::{
    DecodeError, ErrorCode, Flags, Frame, FrameHeader, FrameReader, HEADER_LEN, Offset, RequestId, limits,
};
use flatbuffers::{FlatBufferBuilder, VerifierOptions};
use serde_json::Value;

struct Vector {
    name: String,
    json: String,
    frame: Bytes,
}

impl Vector {
    fn payload(&self) -> Bytes {
        self.frame.slice(HEADER_LEN..)
    }

    /// Where the tail begins in the payload.
    fn tail_at(&self) -> usize {
        4 + u32::from_be_bytes(*self.payload().first_chunk().expect("a length")) as usize
    }
}

fn vectors() -> Vec<Vector> {
    let file: Value = serde_json::from_str(include_str!("vectors/binary-messages.json")).expect("JSON");
    let entries = file["vectors"].as_array().expect("vectors");
    assert_eq!(Some(entries.len() as u64), file["count"].as_u64());
    let text = |entry: &Value, member: &str| entry[member].as_str().expect(member).to_owned();
    let vector = |entry: &Value| Vector {
        name: text(entry, "name"),
        json: text(entry, "payload_json"),
        frame: hex::decode(text(entry, "frame_hex")).expect("hex").into(),
    };
    entries.iter().map(vector).collect()
}

fn written(message: &Message<'_>) -> BytesMut {
    let mut out = BytesMut::new();
    let length = message.encode_frame_as(Form::Binary, &mut out);
    assert_eq!(out.len(), HEADER_LEN + length);
    out
}

fn payload_of(message: &Message<'_>) -> Bytes {
    let frame = written(message);
    assert_eq!(frame[6..8], Flags::BINARY_MESSAGE.bits().to_be_bytes());
    frame.freeze().slice(HEADER_LEN..)
}

fn put(value: Bytes) -> Message<'static> {
    Message::CachePut(CachePut {
        tenant_id: "t".into(),
        namespace: "n".into(),
        cache: "c".into(),
        key: "k".into(),
        value,
        request_id: Some(RequestId(1)),
        ttl_ms: None,
    })
}

fn record(offset: u64, payload: &[u8]) -> GroupRecord<'static> {
    GroupRecord {
        offset: Offset(offset),
        payload: Bytes::copy_from_slice(payload),
        attempts: 1,
        skipped_before: None,
        publisher: None,
        timestamp_micros: None,
    }
}

#[test]
fn every_vector_is_read_and_written_byte_for_byte() {
    for vector in vectors() {
        let message = Message::decode(vector.json.as_bytes()).expect("the JSON form");
        assert_eq!(written(&message), vector.frame, "{}", vector.name);
        assert_eq!(Message::decode_binary(&vector.payload()), Ok(message), "{}", vector.name);
    }
}

#[test]
fn every_kind_of_the_schema_has_a_vector() {
    let mut missing: Vec<fb::Body> = (1..=fb::Body::ENUM_MAX).map(fb::Body).collect();
    for vector in vectors() {
        let (payload, tail) = (vector.payload(), vector.tail_at());
        let kind = fb::root_as_head(&payload[4..tail]).expect("a head").body_type();
        missing.retain(|body| *body != kind);
    }
    assert_eq!(missing, []);
}

#[test]
fn a_head_cut_short_is_refused_and_a_tail_cut_short_is_refused_where_its_length_is_told() {
    for vector in vectors() {
        let (payload, tail) = (vector.payload(), vector.tail_at());
        for end in 0..tail {
            let verdict = Message::decode_binary(&payload.slice(..end)).map(drop);
            assert_eq!(verdict, Err(DecodeError::Incomplete), "{} cut to {end}", vector.name);
            // The same bytes under a length that fits them.
            if let Some(head) = end.checked_sub(4) {
                let mut lying = payload[..end].to_vec();
                lying[..4].copy_from_slice(&(head as u32).to_be_bytes());
                checks::binary_message(&lying);
            }
        }
        for end in tail..payload.len() {
            checks::binary_message(&payload[..end]);
            let told = vector.json.contains("group_records");
            assert_eq!(Message::decode_binary(&payload.slice(..end)).is_err(), told, "{}", vector.name);
        }
    }
}

#[test]
fn no_flipped_bit_panics_or_reads_as_what_cannot_be_written() {
    for vector in vectors() {
        let mut payload = vector.payload().to_vec();
        for bit in 0..payload.len() * 8 {
            payload[bit / 8] ^= 1 << (bit % 8);
            checks::binary_message(&payload);
            payload[bit / 8] ^= 1 << (bit % 8);
        }
    }
}

/// Requests about keys are read without the verifier of `flatbuffers`: what is read and what is refused are the same.
#[test]
fn a_damaged_request_about_a_key_is_refused_when_the_verifier_refuses_it() {
    let is_of_a_key = |body: fb::Body| (fb::Body::CachePut.0..=fb::Body::CounterGet.0).contains(&body.0);
    let mut verdicts = [0, 0];
    let mut agree = |payload: &[u8], tail: usize, what: &str| {
        let head = &payload[4..tail];
        let limits = VerifierOptions {
            max_depth: 3,
            max_tables: 3,
            max_apparent_size: 2 * head.len(),
            ignore_missing_null_terminator: false,
        };
        let verified = fb::root_as_head_with_opts(&limits, head);
        let Some(sound) = verified.map_or(Some(false), |head| is_of_a_key(head.body_type()).then_some(true))
        else {
            return;
        };
        // A head that was a put's may be that of a request that has no tail.
        let payload = Bytes::copy_from_slice(&payload[..tail]);
        assert_eq!(Message::decode_binary(&payload).is_ok(), sound, "{what}");
        verdicts[usize::from(sound)] += 1;
    };
    for vector in vectors() {
        let (mut payload, tail) = (vector.payload().to_vec(), vector.tail_at());
        if !is_of_a_key(fb::root_as_head(&payload[4..tail]).expect("a head").body_type()) {
            continue;
        }
        for at in 4..tail {
            let byte = payload[at];
            for other in 0..=u8::MAX {
                payload[at] = other;
                agree(&payload, tail, &format!("{}, byte {at} is {other}", vector.name));
            }
            payload[at] = byte;
        }
        // Two at once: an offset and what it leads to.
        for first in 4..tail {
            for second in first + 1..tail {
                let bytes = (payload[first], payload[second]);
                (payload[first], payload[second]) = (bytes.0 ^ 4, bytes.1.wrapping_add(8));
                agree(&payload, tail, &format!("{}, bytes {first} and {second}", vector.name));
                (payload[first], payload[second]) = bytes;
            }
        }
    }
    assert!(verdicts.iter().all(|count| *count > 10_000), "both happen: {verdicts:?}");
}

/// Answers about keys are written into heads that are built once.
#[test]
fn an_answer_about_a_key_is_written_as_the_builder_writes_it() {
    let numbers = [0, 1, 255, u64::MAX, 0x5265_7175_6573_7421, 0x4e75_6d62_6572_2121, 1 << 63];
    let value = |value: Option<&'static [u8]>, version, request_id| {
        let [tenant_id, namespace, cache, key] = [const { Cow::Borrowed("") }; 4];
        let (value, request_id) = (value.map(Bytes::from_static), Some(request_id));
        Message::CacheValue(CacheValue { tenant_id, namespace, cache, key, value, request_id, version })
    };
    for (request_id, number) in
        numbers.into_iter().flat_map(|id| numbers.map(|number| (RequestId(id), number)))
    {
        let some = Some(number);
        let check =
            |message: Message<'_>, tail: &[u8], fill: &dyn Fn(&mut FlatBufferBuilder<'_>) -> Filled| {
                let wanted = built_of(request_id.0, |b| fill(b), tail);
                assert_eq!(payload_of(&message), wanted, "{message:?}");
                assert_eq!(Message::decode_binary(&wanted), Ok(message));
            };
        check(Message::CacheOk(CacheOk { request_id }), b"", &|b| {
            (fb::Body::Done, Some(fb::Done::create(b, &fb::DoneArgs {}).as_union_value()))
        });
        for (found, version) in [(None, None), (Some(&b"value"[..]), None), (Some(b"v"), some), (None, some)]
        {
            let mut out = BytesMut::new();
            encode_value((request_id, version), found, &mut out);
            assert_eq!(out, written(&value(found, version, request_id)));
            check(value(found, version, request_id), found.unwrap_or(b""), &|b| {
                let args = fb::CacheValueArgs { found: found.is_some(), version };
                (fb::Body::CacheValue, Some(fb::CacheValue::create(b, &args).as_union_value()))
            });
        }
        for (applied, version) in [(true, some), (false, some), (false, None), (true, None)] {
            let message = CacheConditionResult { applied, version, request_id };
            check(Message::CacheConditionResult(message), b"", &|b| {
                let args = fb::CacheConditionArgs { applied, version };
                (fb::Body::CacheCondition, Some(fb::CacheCondition::create(b, &args).as_union_value()))
            });
        }
        for value in [None, some.map(u64::cast_signed)] {
            check(Message::CounterValue(CounterValue { value, request_id }), b"", &|b| {
                let args = fb::CounterValueArgs { value };
                (fb::Body::CounterValue, Some(fb::CounterValue::create(b, &args).as_union_value()))
            });
        }
    }
}

/// A broker writes a page from where its records are.
#[test]
fn a_page_is_written_as_the_message_of_its_records() {
    for (records, times) in [(0_u64, false), (1, true), (3, false), (200, true)] {
        let payload = |at: u64| vec![at as u8; at as usize % 40 * 7];
        let payloads: Vec<Vec<u8>> = (0..records).map(payload).collect();
        let entries = payloads.iter().enumerate().map(|(at, payload)| (payload, at as u64 + 5)).map(
            |(payload, offset)| PageRecord {
                offset: Offset(offset),
                attempts: offset as u32 % 3,
                skipped_before: offset % 2,
                timestamp_micros: if times { offset * 1_000 } else { 0 },
                payload,
            },
        );
        let of_message = entries.clone().map(|entry| GroupRecord {
            attempts: entry.attempts,
            skipped_before: Some(entry.skipped_before).filter(|skipped| *skipped > 0),
            timestamp_micros: times.then_some(entry.timestamp_micros),
            ..record(entry.offset.0, entry.payload)
        });
        let request_id = RequestId(9);
        let message = Message::GroupRecords(GroupRecords { records: of_message.collect(), request_id });
        let mut out = BytesMut::new();
        encode_page((request_id, times), entries, &mut out);
        assert_eq!(out, written(&message), "{records} records");
    }
}

/// The kind of a body and where it is.
type Filled = (fb::Body, Option<flatbuffers::WIPOffset<flatbuffers::UnionWIPOffset>>);

/// A payload around a head that `fill` builds.
fn built(fill: impl FnOnce(&mut FlatBufferBuilder<'_>) -> Filled, tail: &[u8]) -> Bytes {
    built_of(1, fill, tail)
}

fn built_of(request_id: u64, fill: impl FnOnce(&mut FlatBufferBuilder<'_>) -> Filled, tail: &[u8]) -> Bytes {
    let mut b = FlatBufferBuilder::new();
    let (body_type, body) = fill(&mut b);
    let head = fb::Head::create(&mut b, &fb::HeadArgs { request_id, body_type, body });
    fb::finish_head_buffer(&mut b, head);
    let head = b.finished_data();
    [&(head.len() as u32).to_be_bytes(), head, tail].concat().into()
}

#[test]
fn what_no_encoder_of_ours_writes_is_refused() {
    let done = |b: &mut FlatBufferBuilder<'_>| fb::Done::create(b, &fb::DoneArgs {}).as_union_value();
    let group = |b: &mut FlatBufferBuilder<'_>, what| {
        let name = Some(b.create_string("n"));
        let group = fb::GroupArgs { tenant: name, namespace: name, stream: name, group: name, shard: 0 };
        let group = Some(fb::Group::create(b, &group));
        let settle = fb::GroupSettle::create(
            b,
            &fb::GroupSettleArgs { group, what, offset: 1, lease: None, count: None },
        );
        settle.as_union_value()
    };
    let records = |b: &mut FlatBufferBuilder<'_>, bytes: u32| {
        let records = Some(b.create_vector(&[fb::Record::new(1, 0, 0, bytes, 1)]));
        let args = fb::GroupRecordsArgs { records, timestamps: false };
        fb::GroupRecords::create(b, &args).as_union_value()
    };
    let none = |b: &mut FlatBufferBuilder<'_>| {
        let args = fb::CacheValueArgs { found: false, version: None };
        fb::CacheValue::create(b, &args).as_union_value()
    };
    let leaderless = |b: &mut FlatBufferBuilder<'_>| {
        let message = Some(b.create_string("m"));
        let reason = fb::Reason::NotLeader;
        let args = fb::NumberRefusedArgs { reason, message, ..Default::default() };
        fb::NumberRefused::create(b, &args).as_union_value()
    };
    let refused = [
        ("an unknown kind", built(|b| (fb::Body(200), Some(done(b))), b"")),
        ("a body of no kind", built(|b| (fb::Body::NONE, Some(done(b))), b"")),
        ("a key without names", built(|b| (fb::Body::CacheGet, Some(done(b))), b"")),
        ("a byte that belongs to nothing", built(|b| (fb::Body::Done, Some(done(b))), b"x")),
        ("no value, and one", built(|b| (fb::Body::CacheValue, Some(none(b))), b"x")),
        ("an unknown choice", built(|b| (fb::Body::GroupSettle, Some(group(b, fb::Settle(9)))), b"")),
        ("more records than bytes", built(|b| (fb::Body::GroupRecords, Some(records(b, 4))), b"abc")),
        ("more bytes than records", built(|b| (fb::Body::GroupRecords, Some(records(b, 2))), b"abc")),
        ("a huge record", built(|b| (fb::Body::GroupRecords, Some(records(b, u32::MAX))), b"abc")),
        ("a leader without a name", built(|b| (fb::Body::NumberRefused, Some(leaderless(b))), b"")),
        ("a head of nothing", vec![0; 4].into()),
        ("a head of zeros", [vec![0, 0, 0, 64], vec![0; 64]].concat().into()),
    ];
    for (what, payload) in refused {
        let verdict = Message::decode_binary(&payload);
        assert!(matches!(verdict, Err(DecodeError::Malformed(_))), "{what}: {verdict:?}");
    }
    for payload in [&b""[..], b"\0\0\0", b"\0\0\0\x01", &[0xff; 40]] {
        let verdict = Message::decode_binary(&Bytes::copy_from_slice(payload)).map(drop);
        assert_eq!(verdict, Err(DecodeError::Incomplete), "{payload:?}");
    }
    // The control: what these are built with gives something that is read.
    let good = built(|b| (fb::Body::GroupSettle, Some(group(b, fb::Settle::Ack))), b"");
    assert!(matches!(Message::decode_binary(&good), Ok(Message::GroupAck(_))));
}

#[test]
fn a_message_without_this_form_is_written_as_json() {
    let get = CacheGet {
        tenant_id: "t".into(),
        namespace: "n".into(),
        cache: "c".into(),
        key: "k".into(),
        request_id: None,
    };
    let with_publisher = GroupRecord { publisher: Some("p".into()), ..record(1, b"x") };
    let with_time = GroupRecord { timestamp_micros: Some(5), ..record(2, b"y") };
    let page = |records| Message::GroupRecords(GroupRecords { records, request_id: RequestId(1) });
    let messages = [
        Message::Topology,
        Message::CacheGet(get),
        page(vec![with_publisher]),
        page(vec![record(1, b"x"), with_time.clone()]),
        page(vec![with_time, record(1, b"x")]),
        Message::Error(Error::coded(ErrorCode::from_name("brand_new"), "m")),
    ];
    for message in messages {
        let mut out = BytesMut::from(&b"before"[..]);
        assert_eq!(message.encode_binary(&mut out), None);
        assert_eq!(out, "before", "nothing is left behind");
        let frame = written(&message);
        assert_eq!(frame[6..8], [0, 0]);
        assert_eq!(Message::decode(&frame[HEADER_LEN..]), Ok(message));
    }
}

#[test]
fn the_names_of_a_value_are_left_out() {
    let value = CacheValue {
        tenant_id: "t".into(),
        namespace: "n".into(),
        cache: "c".into(),
        key: "k".into(),
        value: Some(Bytes::from_static(b"v")),
        request_id: Some(RequestId(1)),
        version: Some(3),
    };
    let payload = payload_of(&Message::CacheValue(value.clone()));
    let empty = || Cow::Borrowed("");
    let read = CacheValue { tenant_id: empty(), namespace: empty(), cache: empty(), key: empty(), ..value };
    assert_eq!(Message::decode_binary(&payload), Ok(Message::CacheValue(read)));
}

#[test]
fn values_and_payloads_are_slices_of_the_frame_and_a_value_is_sent_as_it_is() {
    let value = Bytes::from(vec![7; 100_000]);
    let mut out = BytesMut::new();
    let tail = put(value.clone()).encode_binary(&mut out).expect("it has this form");
    assert_eq!((tail.as_ptr(), tail.len()), (value.as_ptr(), value.len()), "not copied");
    let header = FrameHeader::decode(out.first_chunk().expect("a header"));
    assert_eq!(header, Err(DecodeError::UnknownFlags(0x8000)), "not a bit of the protocol");
    assert_eq!(out[8..12], ((out.len() - HEADER_LEN + tail.len()) as u32).to_be_bytes());

    let payload = payload_of(&put(value));
    let inside = |part: &Bytes| payload.as_ptr_range().contains(&part.as_ptr());
    let Ok(Message::CachePut(read)) = Message::decode_binary(&payload) else { panic!("a put") };
    assert!(inside(&read.value) && matches!(read.key, Cow::Borrowed(_)));

    let page = GroupRecords { records: vec![record(1, b"one"), record(2, b"two")], request_id: RequestId(1) };
    let payload = payload_of(&Message::GroupRecords(page));
    let inside = |part: &Bytes| payload.as_ptr_range().contains(&part.as_ptr());
    let Ok(Message::GroupRecords(read)) = Message::decode_binary(&payload) else { panic!("a page") };
    assert!(read.records.iter().all(|record| inside(&record.payload)));
}

#[test]
fn a_reader_takes_such_frames_only_when_told_and_only_with_no_other_flag() {
    let frame = written(&put(Bytes::from_static(b"v"))).freeze();
    let with_flags = |flags: u16| {
        let mut bytes = frame.to_vec();
        bytes[6..8].copy_from_slice(&flags.to_be_bytes());
        Bytes::from(bytes)
    };
    let read = |bytes: Bytes, told: bool| -> Frame {
        let mut reader = FrameReader::new(limits::FRAME_PAYLOAD_MAX);
        if told {
            reader.take_binary_messages();
        }
        reader.push(bytes);
        reader.next().expect("no error").expect("a frame")
    };
    let whole = read(frame.clone(), true);
    assert!(matches!(Message::decode_frame(&whole), Ok(Message::CachePut(_))));
    for (bytes, told) in [(frame.clone(), false), (with_flags(0x8001), true), (with_flags(0xffff), true)] {
        let dropped = read(bytes, told);
        assert!(dropped.unknown_flags() && dropped.payload.is_empty(), "{dropped:?}");
    }
    let publish = read(with_flags(0x0001), true);
    assert_eq!(Message::decode_frame(&publish), Err(DecodeError::UnknownFlags(1)));
}
