//! Every entry of `tests/vectors/` against the codec: what it must write, read, tolerate and refuse.

use std::borrow::Cow;

use bytes::{Bytes, BytesMut};
use felix_wire::client::{
    AckCode, AckMode, AckOutcome, AckOwner, BinaryPublish, EventBatch, Message, PublishAck, PublishHead,
    Records, encode_ok, encode_publish, encode_publish_head, encode_shared_head, publish_frame_len,
};
use felix_wire::{
    DecodeError, ErrorCode, ErrorDetail, Features, Flags, Frame, FrameHeader, FrameReader, Generation,
    HEADER_LEN, KeyMapping, Offset, ProducerId, RequestId, RetryClass, Sequence, SubscriptionId, frame,
    key_hash, limits, shard_for,
};
use serde_json::Value;

macro_rules! vectors {
    ($file:literal) => {
        serde_json::from_str::<Value>(include_str!(concat!("vectors/", $file)))
            .expect("a vector file is JSON")
    };
}

fn entries(file: &Value) -> &Vec<Value> {
    let entries = file["vectors"].as_array().expect("vectors");
    assert_eq!(Some(entries.len() as u64), file["count"].as_u64(), "the file says how many there are");
    entries
}

fn text<'v>(entry: &'v Value, member: &str) -> &'v str {
    entry[member].as_str().unwrap_or_else(|| panic!("{member} of {entry}"))
}

fn unhex(entry: &Value, member: &str) -> Vec<u8> {
    hex::decode(text(entry, member)).expect("hex")
}

fn opt_unhex(entry: &Value, member: &str) -> Option<Vec<u8>> {
    entry[member].as_str().map(|digits| hex::decode(digits).expect("hex"))
}

fn payloads(entry: &Value) -> Vec<Vec<u8>> {
    let list = entry["payloads_hex"].as_array().expect("payloads_hex");
    list.iter().map(|digits| hex::decode(digits.as_str().expect("hex")).expect("hex")).collect()
}

fn flags(entry: &Value) -> u16 {
    u16::from_str_radix(text(entry, "flags").trim_start_matches("0x"), 16).expect("flags")
}

/// The only frame in `bytes`; `Incomplete` when it does not end there.
fn one_frame(bytes: &[u8]) -> Result<Frame, DecodeError> {
    let mut reader = FrameReader::new(limits::FRAME_PAYLOAD_MAX);
    reader.push(Bytes::copy_from_slice(bytes));
    let frame = reader.next()?.ok_or(DecodeError::Incomplete)?;
    if frame.unknown_flags() {
        return Err(DecodeError::UnknownFlags(frame.flags));
    }
    assert_eq!(reader.next(), Ok(None));
    assert_eq!(reader.buffered_bytes(), 0, "nothing behind the frame");
    Ok(frame)
}

#[test]
fn constants_are_those_of_the_protocol() {
    let file = vectors!("constants.json");
    assert_eq!(format!("0x{}", hex::encode(frame::MAGIC)), text(&file, "magic"));
    assert_eq!(Some(u64::from(frame::VERSION)), file["version"].as_u64());
    assert_eq!(Some(HEADER_LEN as u64), file["header_len"].as_u64());
    assert_eq!(frame::ALPN, text(&file, "alpn").as_bytes());
    assert_eq!(Flags::KNOWN.to_string(), text(&file, "known_flags"));
    assert_eq!(Flags::UNANNOUNCED.to_string(), text(&file, "original_v1_flags"));
    assert_eq!(format!("{:#010x}", Features::KNOWN.lo), text(&file, "known_features"));
    assert_eq!(format!("{:#010x}", Features::KNOWN.hi), text(&file, "known_features_hi"));
}

#[test]
fn every_flag_has_its_bit() {
    let ours = [
        ("binary_publish_batch", Flags::PUBLISH_BATCH),
        ("binary_event_batch", Flags::EVENT_BATCH),
        ("binary_event_batch_shared", Flags::EVENT_BATCH_SHARED),
        ("binary_publish_acked", Flags::PUBLISH_ACKED),
        ("binary_publish_ack", Flags::PUBLISH_ACK),
        ("event_batch_offsets", Flags::EVENT_OFFSETS),
        ("binary_publish_keyed", Flags::PUBLISH_KEYED),
        ("binary_publish_ack_owner", Flags::ACK_OWNER),
        ("binary_publish_idempotent", Flags::PUBLISH_IDEMPOTENT),
        ("binary_publish_ack_code", Flags::ACK_CODE),
        ("binary_publish_ack_detail", Flags::ACK_DETAIL),
        ("event_batch_skipped", Flags::EVENT_SKIPPED),
        ("binary_publish_ack_offset", Flags::ACK_OFFSET),
        ("event_batch_publisher", Flags::EVENT_PUBLISHER),
        ("event_batch_timestamps", Flags::EVENT_TIMESTAMPS),
    ];
    let file = vectors!("constants.json");
    let theirs = file["flags"].as_object().expect("flags");
    assert_eq!(theirs.len(), ours.len());
    for (name, bit) in ours {
        assert_eq!(theirs[name].as_u64(), Some(u64::from(bit.bits())), "{name}");
    }
}

#[test]
fn every_feature_has_its_bit() {
    macro_rules! pairs {
        ($($name:ident)*) => { [$((stringify!($name).to_lowercase(), Features::$name)),*] };
    }
    let lo = pairs! {
        TOPOLOGY REDIRECT CACHE_DELETE CONSUMER_GROUP GROUP_DEAD_LETTERS STREAM_SHARDS CACHE_WATCH
        CACHE_WATCH_RETAINED COUNTERS IDEMPOTENT_PRODUCER CACHE_SHARDS ERROR_CODES SHARD_MOVED UNSUPPORTED
        SEQUENCE_REUSED PUBLISH_PIPELINE ATOMIC_COMMIT STREAM_PUBLISH_WINDOW SHARD_OWNERS ACK_ON_COMMIT
        GROUP_CONSUMER SUBSCRIPTION_LAGGED GROUP_SKIPPED GROUP_PUBLISHER GROUP_ADMIN CACHE_CONDITIONAL
        RECORD_TIMESTAMPS GROUP_CLAIM_CONTROL PUBLISH_CONDITIONAL STREAM_READ SUBSCRIBE_QUEUE EXTENDED
    };
    let hi = pairs! { INSPECT STREAM_DELETED PUBLISH_WIDTH EXPLICIT_SHARD };
    let file = vectors!("constants.json");
    let (their_lo, their_hi) = (&file["features"], &file["features_hi"]);
    assert_eq!(their_lo.as_object().expect("features").len(), lo.len());
    assert_eq!(their_hi.as_object().expect("features_hi").len(), hi.len());
    for (name, bit) in lo {
        assert_eq!((their_lo[&name].as_u64(), 0), (Some(u64::from(bit.lo)), bit.hi), "{name}");
    }
    for (name, bit) in hi {
        assert_eq!((their_hi[&name].as_u64(), 0), (Some(u64::from(bit.hi)), bit.lo), "{name}");
    }
}

#[test]
fn every_error_code_has_its_number_and_class() {
    let file = vectors!("constants.json");
    let codes = file["error_codes"].as_array().expect("error_codes");
    assert_eq!(codes.len(), ErrorCode::ALL.len());
    for entry in codes {
        let code = ErrorCode::from_name(text(entry, "name"));
        assert_eq!(Some(u64::from(code.number())), entry["number"].as_u64(), "{entry}");
        assert_eq!(code.default_retry().name(), text(entry, "default_retry"));
        assert_eq!(ErrorCode::from_number(code.number()), code);
    }
    let classes = file["retry_classes"].as_array().expect("retry_classes");
    assert_eq!(classes.len(), RetryClass::ALL.len());
    for entry in classes {
        let class = RetryClass::from_name(text(entry, "name"));
        assert_eq!(Some(u64::from(class.number())), entry["number"].as_u64(), "{entry}");
        assert_eq!(RetryClass::from_number(class.number()), class);
    }
}

#[test]
fn a_header_is_read_and_written_byte_for_byte() {
    let file = vectors!("frame-header.json");
    for entry in entries(&file) {
        if entry["stream_hex"].is_string() {
            let stream = Bytes::from(unhex(entry, "stream_hex"));
            let mut reader = FrameReader::new(limits::FRAME_PAYLOAD_MAX);
            reader.push(stream.clone());
            for member in ["first_frame_len", "second_frame_len"] {
                let frame = reader.next().expect("a frame").expect("a whole frame");
                assert_eq!(Some((HEADER_LEN + frame.payload.len()) as u64), entry[member].as_u64());
            }
            assert_eq!(reader.next(), Ok(None));
            continue;
        }
        let bytes = unhex(entry, "frame_hex");
        let header = FrameHeader::decode(bytes.first_chunk().expect("a header")).expect("a header");
        assert_eq!(header.flags, flags(entry));
        assert_eq!(Some(u64::from(header.length)), entry["length"].as_u64());
        assert_eq!(header.encode(), bytes[..HEADER_LEN]);
        assert_eq!(one_frame(&bytes).expect("a frame").payload, unhex(entry, "payload_hex"));
    }
}

#[test]
fn every_json_message_is_read_and_written_byte_for_byte() {
    let file = vectors!("json-messages.json");
    for entry in entries(&file) {
        let bytes = unhex(entry, "frame_hex");
        let frame = one_frame(&bytes).expect("a frame");
        assert_eq!(frame.payload, text(entry, "payload_json").as_bytes());
        let message = Message::decode(&frame.payload).unwrap_or_else(|error| panic!("{entry}: {error}"));
        assert!(!matches!(message, Message::Unknown(_)), "{entry}");
        let mut out = BytesMut::from(&b"before"[..]);
        assert_eq!(message.encode_frame(&mut out), frame.payload.len());
        assert_eq!(&out[6..], &bytes[..], "{}", text(entry, "name"));
    }
}

#[test]
fn json_that_another_encoder_would_write_is_accepted() {
    let file = vectors!("json-accepted.json");
    for entry in entries(&file) {
        let frame = one_frame(&unhex(entry, "input_frame_hex")).expect("a frame");
        assert_eq!(frame.payload, text(entry, "input_json").as_bytes());
        let message = Message::decode(&frame.payload).unwrap_or_else(|error| panic!("{entry}: {error}"));
        if let Some(expected) = entry["reencodes_as"].as_str() {
            let mut out = BytesMut::new();
            message.encode_frame(&mut out);
            assert_eq!(std::str::from_utf8(&out[HEADER_LEN..]).expect("UTF-8"), expected);
        } else {
            let Message::Unknown(unknown) = message else { panic!("{entry} is of unknown type") };
            assert_eq!(
                (unknown.type_name, unknown.request_id),
                (Cow::Borrowed("shiny_new"), Some(RequestId(5)))
            );
        }
    }
}

#[test]
fn every_binary_publish_is_read_and_written_byte_for_byte() {
    let file = vectors!("binary-publish.json");
    for entry in entries(&file) {
        let bytes = unhex(entry, "frame_hex");
        let frame = one_frame(&bytes).expect("a frame");
        assert_eq!(frame.flags, flags(entry));
        let publish = BinaryPublish::decode(frame.flags, &frame.payload).expect("a publish");
        let (key, payloads) = (opt_unhex(entry, "key_hex"), payloads(entry));
        let acked = entry["request_id"].as_u64().map(|id| {
            let per_message = entry["ack_mode"].as_u64() == Some(1);
            (RequestId(id), if per_message { AckMode::PerMessage } else { AckMode::PerBatch })
        });
        let producer = entry["producer_id"]
            .as_u64()
            .map(|id| (ProducerId(id), Sequence(entry["sequence"].as_u64().expect("sequence"))));
        let head = PublishHead {
            tenant: text(entry, "tenant_id"),
            namespace: text(entry, "namespace"),
            stream: text(entry, "stream"),
            key: key.as_deref(),
            acked,
            producer,
        };
        assert_eq!(publish.head(), head);
        assert_eq!(publish.records.iter().collect::<Vec<_>>(), payloads);
        let mut out = BytesMut::new();
        encode_publish(&head, payloads.iter().map(Vec::as_slice), &mut out).expect("encodes");
        assert_eq!(out, bytes);
        let sum = payloads.iter().map(Vec::len).sum();
        assert_eq!(publish_frame_len(&head, payloads.len() as u32, sum), bytes.len());
        let mut parts = BytesMut::new();
        encode_publish_head(&head, publish.records.count(), publish.records.encoded_len(), &mut parts)
            .expect("encodes");
        parts.extend_from_slice(publish.records.bytes());
        assert_eq!(parts, bytes, "head and run make the frame");
    }
}

fn expected_ack(entry: &Value) -> PublishAck<'_> {
    let outcome = if entry["status"].as_u64() == Some(0) {
        AckOutcome::Ok { offset: entry["offset"].as_u64().map(Offset) }
    } else {
        let code = entry["code"]["number"].as_u64().map(|number| AckCode {
            code: ErrorCode::from_number(number as u16),
            retry: RetryClass::from_name(text(&entry["retry"], "name")),
            detail: entry["detail"].as_object().map(|detail| ErrorDetail {
                reason: detail["reason"].as_str().map(|reason| Cow::Owned(reason.to_owned())),
                retry_after_ms: detail["retry_after_ms"].as_u64(),
            }),
        });
        AckOutcome::Error { message: Cow::Borrowed(text(entry, "message")), code }
    };
    let owner = entry["owner"].is_object().then(|| AckOwner {
        node_id: Cow::Borrowed(text(&entry["owner"], "node_id")),
        addr: entry["owner"]["addr"].as_str().map(Cow::Borrowed),
        generation: Generation(entry["owner"]["generation"].as_u64().expect("generation")),
    });
    PublishAck { request_id: RequestId(entry["request_id"].as_u64().expect("request_id")), outcome, owner }
}

#[test]
fn every_publish_ack_is_read_and_written_byte_for_byte() {
    let file = vectors!("binary-publish-ack.json");
    for entry in entries(&file) {
        let bytes = unhex(entry, "frame_hex");
        let frame = one_frame(&bytes).expect("a frame");
        assert_eq!(frame.flags, flags(entry));
        let expected = expected_ack(entry);
        assert_eq!(PublishAck::decode(frame.flags, &frame.payload).as_ref(), Ok(&expected));
        let mut out = BytesMut::new();
        expected.encode_frame(&mut out);
        assert_eq!(out, bytes, "{}", text(entry, "name"));
        if let (AckOutcome::Ok { offset }, None) = (&expected.outcome, &expected.owner) {
            out.clear();
            encode_ok(expected.request_id, *offset, &mut out);
            assert_eq!(out, bytes, "the short way writes the same");
        }
    }
}

#[test]
fn every_event_frame_is_read_and_written_byte_for_byte() {
    let file = vectors!("binary-events.json");
    for entry in entries(&file) {
        let bytes = unhex(entry, "frame_hex");
        let frame = one_frame(&bytes).expect("a frame");
        assert_eq!(frame.flags, flags(entry));
        let payloads = payloads(entry);
        let times: Option<Vec<u64>> = entry["timestamps"]
            .as_array()
            .map(|times| times.iter().map(|at| at.as_u64().expect("a time")).collect());
        let mut expected = match &times {
            Some(times) => {
                EventBatch::timestamped(times.iter().copied().zip(payloads.iter().map(Vec::as_slice)))
            }
            None => EventBatch::new(Records::from_payloads(&payloads)),
        };
        expected.subscription_id = entry["subscription_id"].as_u64().map(SubscriptionId);
        expected.base_offset = entry["base_offset"].as_u64().map(Offset);
        expected.skipped_before = entry["skipped_before"].as_u64().unwrap_or(0);
        expected.publisher = opt_unhex(entry, "publisher_hex").map(Bytes::from);
        let batch = EventBatch::decode(frame.flags, &frame.payload).expect("events");
        assert_eq!(batch, expected);
        for (index, event) in batch.iter().enumerate() {
            assert_eq!(event.payload, payloads[index]);
            assert_eq!(event.timestamp_micros, times.as_ref().map(|times| times[index]));
            let offset = entry["base_offset"].as_u64().map(|base| Offset(base + index as u64));
            assert_eq!(event.offset, offset);
        }
        let mut out = BytesMut::new();
        expected.encode_frame(&mut out);
        assert_eq!(out, bytes, "{}", text(entry, "name"));
        if expected.subscription_id.is_none() && expected.publisher.is_none() && times.is_none() {
            let run = Records::from_payloads(&payloads);
            out.clear();
            let (base, skipped) = (expected.base_offset, expected.skipped_before);
            encode_shared_head(&mut out, run.count(), run.encoded_len(), base, skipped);
            out.extend_from_slice(run.bytes());
            assert_eq!(out, bytes, "head and run make the frame");
        }
    }
}

#[test]
fn every_key_goes_to_its_shard() {
    let mappings = [("modulo", KeyMapping::Modulo), ("jump_hash", KeyMapping::JumpHash)];
    let file = vectors!("routing.json");
    for entry in entries(&file) {
        if let Some(counts) = entry["counts"].as_array() {
            let mapping =
                mappings.iter().find(|(name, _)| *name == text(entry, "mapping")).expect("mapping").1;
            let mut ours = vec![0_u64; counts.len()];
            for n in 0..10_000 {
                let key = format!("key-{n}");
                ours[shard_for(Some(key.as_bytes()), counts.len() as u32, mapping).get() as usize] += 1;
            }
            let theirs: Vec<u64> = counts.iter().map(|count| count.as_u64().expect("count")).collect();
            assert_eq!(ours, theirs, "{}", text(entry, "name"));
            continue;
        }
        let key = opt_unhex(entry, "key_hex");
        if let Some(key) = &key {
            assert_eq!(format!("{:016x}", key_hash(key)), text(entry, "mixed"));
        }
        for (width, shards) in entry["shard_for"].as_object().expect("shard_for") {
            for (name, mapping) in mappings {
                let shard = shard_for(key.as_deref(), width.parse().expect("width"), mapping);
                assert_eq!(Some(u64::from(shard.get())), shards[name].as_u64(), "{entry} {width} {name}");
            }
        }
    }
}

/// What the decoder that an entry means makes of it. `Incomplete` from a frame means an end of stream there.
fn read_as(reader: &str, input: &[u8]) -> Result<(), DecodeError> {
    let frame = one_frame(input)?;
    match reader {
        "frame" => Ok(()),
        "json" => Message::decode(&frame.payload).map(drop),
        "publish" => BinaryPublish::decode_unacked(frame.flags, &frame.payload)
            .map(drop)
            .map_err(|refused| refused.error),
        "acked_publish" => {
            BinaryPublish::decode(frame.flags, &frame.payload).map(drop).map_err(|refused| refused.error)
        }
        "publish_ack" => PublishAck::decode(frame.flags, &frame.payload).map(drop),
        "events" | "shared_events" => EventBatch::decode(frame.flags, &frame.payload).map(drop),
        other => panic!("no reader {other}"),
    }
}

#[test]
fn malformed_input_is_refused_with_its_class() {
    let file = vectors!("malformed.json");
    let mut tolerated = 0;
    for entry in entries(&file) {
        let verdict = read_as(text(entry, "reader"), &unhex(entry, "input_hex"));
        if entry["accepted"].as_bool() == Some(true) {
            assert_eq!(verdict, Ok(()), "{entry}");
            tolerated += 1;
        } else {
            let class = verdict.map_err(|error| error.class());
            assert_eq!(class, Err(text(entry, "rejected_as")), "{entry}");
        }
    }
    assert_eq!(tolerated, 3);
}

#[test]
fn a_refused_acked_publish_names_its_request_once_the_prefix_is_there() {
    let file = vectors!("malformed.json");
    let mut seen = 0;
    for entry in entries(&file).iter().filter(|entry| entry["reader"] == "acked_publish") {
        let frame = one_frame(&unhex(entry, "input_hex")).expect("a frame");
        let refused = BinaryPublish::decode(frame.flags, &frame.payload).expect_err("malformed");
        let expected = if frame.payload.len() < 9 { None } else { Some(RequestId(7)) };
        assert_eq!(refused.request_id, expected, "{entry}");
        seen += 1;
    }
    assert!(seen >= 4, "the vectors have both kinds");
}
