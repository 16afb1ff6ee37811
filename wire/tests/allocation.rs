//! What the decoders allocate, counted by the allocator. One test, so that no other thread allocates beside it.

use std::alloc::System;

use bytes::{Bytes, BytesMut};
use felix_wire::client::{
    BinaryPublish, CachePut, EventBatch, Form, Message, PublishHead, Records, encode_publish,
};
use felix_wire::limits::{FRAME_PAYLOAD_MAX, FRAME_TRUST_BYTES};
use felix_wire::{Flags, FrameHeader, FrameReader, HEADER_LEN, Offset, RequestId};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Allocations and bytes (first and grown) of `work`.
fn cost<T>(work: impl FnOnce() -> T) -> (usize, usize) {
    let region = Region::new(ALLOCATOR);
    let kept = work();
    let change = region.change();
    drop(kept);
    let grown = usize::try_from(change.bytes_reallocated).unwrap_or(0);
    (change.allocations + change.reallocations, change.bytes_allocated + grown)
}

/// A payload whose `Bytes` is already shared, so that slicing it allocates nothing of its own.
fn shared(bytes: Vec<u8>) -> Bytes {
    let bytes = Bytes::from(bytes);
    drop(bytes.clone());
    bytes
}

#[test]
fn decoding_costs_no_more_memory_than_the_input_is_worth() {
    a_batch_is_decoded_without_allocating();
    a_binary_message_is_decoded_without_allocating();
    a_count_nobody_can_hold_reserves_nothing();
    a_header_alone_reserves_nothing();
    a_frame_under_way_costs_a_small_multiple_of_what_arrived();
    a_json_batch_costs_a_small_multiple_of_its_text();
}

fn a_batch_is_decoded_without_allocating() {
    let head = PublishHead {
        tenant: "t1",
        namespace: "default",
        stream: "orders",
        key: Some(b"k"),
        acked: None,
        producer: None,
    };
    let mut out = BytesMut::new();
    encode_publish(&head, std::iter::repeat_n(&b"record"[..], 1_000), &mut out).expect("encodes");
    let payload = shared(out[HEADER_LEN..].to_vec());
    let flags = head.flags().bits();
    let decode = || {
        let publish = BinaryPublish::decode(flags, &payload).expect("a publish");
        publish.records.iter().map(<[u8]>::len).sum::<usize>()
    };
    assert_eq!(decode(), 6_000);
    assert_eq!(cost(decode).0, 0, "a publish of 1,000 records");
    let records = Records::from_payloads(std::iter::repeat_n("record", 1_000));
    let mut batch = EventBatch::new(records);
    batch.base_offset = Some(Offset(5));
    let mut out = BytesMut::new();
    batch.encode_frame(&mut out);
    let (flags, payload) = (batch.flags().bits(), shared(out[HEADER_LEN..].to_vec()));
    let events =
        || EventBatch::decode(flags, &payload).expect("events").iter().map(|event| event.payload.len()).sum();
    let sum: usize = events();
    assert_eq!(sum, 6_000);
    assert_eq!(cost(events).0, 0, "an event frame of 1,000 records");
}

fn a_binary_message_is_decoded_without_allocating() {
    let put = Message::CachePut(CachePut {
        tenant_id: "t1".into(),
        namespace: "default".into(),
        cache: "sessions".into(),
        key: "user:1".into(),
        value: Bytes::from(vec![7; 100_000]),
        request_id: Some(RequestId(1)),
        ttl_ms: Some(60_000),
    });
    let mut out = BytesMut::new();
    put.encode_frame_as(Form::Binary, &mut out);
    let payload = shared(out[HEADER_LEN..].to_vec());
    let decode = || Message::decode_binary(&payload).map(drop).expect("a put");
    decode();
    assert_eq!(cost(decode).0, 0, "a put of 100,000 bytes");
}

fn a_count_nobody_can_hold_reserves_nothing() {
    let mut payload = vec![0, 1, b't', 0, 1, b'n', 0, 1, b's'];
    payload.extend_from_slice(&u32::MAX.to_be_bytes());
    let payload = shared(payload);
    let flags = Flags::PUBLISH_BATCH.bits();
    assert!(BinaryPublish::decode(flags, &payload).is_err());
    assert_eq!(cost(|| BinaryPublish::decode(flags, &payload).map(drop)).0, 0);
}

fn a_header_alone_reserves_nothing() {
    let header = FrameHeader { flags: 1, length: FRAME_PAYLOAD_MAX }.encode().to_vec();
    let header = shared(header);
    let (_, bytes) = cost(|| {
        let mut reader = FrameReader::new(FRAME_PAYLOAD_MAX);
        reader.push(header.clone());
        assert_eq!(reader.next(), Ok(None));
        reader
    });
    assert!(bytes <= 1_024, "{bytes} bytes for twelve");
}

fn a_frame_under_way_costs_a_small_multiple_of_what_arrived() {
    let chunks: Vec<Bytes> = (0..400).map(|_| shared(vec![7; 3_800])).collect();
    let header = shared(FrameHeader { flags: 1, length: FRAME_PAYLOAD_MAX }.encode().to_vec());
    let received = 400 * 3_800;
    let (_, bytes) = cost(|| {
        let mut reader = FrameReader::new(FRAME_PAYLOAD_MAX);
        reader.push(header.clone());
        for chunk in &chunks {
            reader.push(chunk.clone());
            assert_eq!(reader.next(), Ok(None));
        }
        assert!(reader.buffered_bytes() <= 2 * received);
        reader
    });
    assert!(bytes <= 4 * received + FRAME_TRUST_BYTES, "{bytes} bytes in all, copies while growing included");
}

fn a_json_batch_costs_a_small_multiple_of_its_text() {
    let head = r#"{"type":"publish_batch","tenant_id":"t","namespace":"n","stream":"s","payloads":["#;
    let many = vec!["\"\""; 100_000].join(",");
    let large = format!("\"{}\"", "QUJD".repeat(100_000));
    for payloads in [many, large] {
        let text = format!("{head}{payloads}]}}");
        let (count, bytes) = cost(|| Message::decode(text.as_bytes()).map(drop).expect("a batch"));
        assert!(count < 64, "{count} allocations");
        assert!(bytes <= 8 * text.len(), "{bytes} bytes for {}", text.len());
    }
}
