//! Whatever can be said is read back as it was said.

use std::borrow::Cow;

use bytes::{Bytes, BytesMut};
use felix_wire::client::{
    AckCode, AckMode, AckOutcome, AckOwner, AckRequest, Auth, BinaryPublish, CacheValue, Error, EventBatch,
    GroupRecord, GroupRecords, Message, PublishAck, PublishBatch, PublishHead, Records, Subscribed,
    encode_publish, publish_frame_len,
};
use felix_wire::{
    ErrorCode, ErrorDetail, Flags, Frame, FrameReader, Generation, HEADER_LEN, Offset, ProducerId, RequestId,
    RetryClass, Sequence, ShardIndex, SubscriptionId, limits,
};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

/// Takes the one frame that `bytes` is, pushed in pieces of `piece` bytes.
fn frame_of(bytes: &[u8], piece: usize) -> Frame {
    let mut reader = FrameReader::new(limits::FRAME_PAYLOAD_MAX);
    let mut frames = Vec::new();
    for part in bytes.chunks(piece) {
        reader.push(Bytes::copy_from_slice(part));
        frames.extend(reader.next().expect("no error"));
    }
    assert_eq!((frames.len(), reader.buffered_bytes()), (1, 0));
    frames.remove(0)
}

fn assert_json_survives(message: &Message<'_>) {
    let mut out = BytesMut::new();
    let length = message.encode_frame(&mut out);
    assert_eq!(out.len(), HEADER_LEN + length);
    let frame = frame_of(&out, out.len());
    assert_eq!(frame.flags, Flags::JSON.bits());
    assert_eq!(Message::decode(&frame.payload).as_ref(), Ok(message));
}

fn payloads() -> impl Strategy<Value = Vec<Vec<u8>>> {
    vec(vec(any::<u8>(), 0..80), 0..20)
}

fn blob() -> impl Strategy<Value = Bytes> {
    vec(any::<u8>(), 0..80).prop_map(Bytes::from)
}

fn ack_mode() -> impl Strategy<Value = AckMode> {
    prop_oneof![Just(AckMode::PerMessage), Just(AckMode::PerBatch)]
}

fn code() -> impl Strategy<Value = AckCode> {
    let retry = (1_u8..=5).prop_map(RetryClass::from_number);
    // In the binary form an empty reason and a wait of 0 are none.
    let detail = (option::of("[a-zß]{1,9}"), option::of(1..u64::MAX))
        .prop_map(|(reason, retry_after_ms)| ErrorDetail { reason: reason.map(Cow::Owned), retry_after_ms });
    (any::<u16>().prop_map(ErrorCode::from_number), retry, option::of(detail))
        .prop_map(|(code, retry, detail)| AckCode { code, retry, detail })
}

fn ack() -> impl Strategy<Value = PublishAck<'static>> {
    let owner =
        (".{0,20}", option::of(".{1,20}"), any::<u64>()).prop_map(|(node_id, addr, generation)| AckOwner {
            node_id: Cow::Owned(node_id),
            addr: addr.map(Cow::Owned),
            generation: Generation(generation),
        });
    let outcome = prop_oneof![
        option::of(any::<u64>().prop_map(Offset)).prop_map(|offset| AckOutcome::Ok { offset }),
        (".{0,40}", option::of(code()))
            .prop_map(|(message, code)| AckOutcome::Error { message: Cow::Owned(message), code }),
    ];
    (any::<u64>(), outcome, option::of(owner)).prop_map(|(id, outcome, owner)| PublishAck {
        request_id: RequestId(id),
        outcome,
        owner,
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_binary_publish_survives_its_bytes(
        names in [".{0,20}", ".{0,20}", ".{0,20}"],
        key in option::of(vec(any::<u8>(), 0..40)),
        acked in option::of((any::<u64>().prop_map(RequestId), ack_mode())),
        producer in option::of((any::<u64>().prop_map(ProducerId), any::<u64>().prop_map(Sequence))),
        payloads in payloads(),
        piece in 1_usize..500,
    ) {
        let [tenant, namespace, stream] = &names;
        let producer = producer.filter(|_| acked.is_some());
        let head = PublishHead { tenant, namespace, stream, key: key.as_deref(), acked, producer };
        let mut out = BytesMut::new();
        encode_publish(&head, payloads.iter().map(Vec::as_slice), &mut out).expect("encodes");
        let sum = payloads.iter().map(Vec::len).sum();
        prop_assert_eq!(out.len(), publish_frame_len(&head, payloads.len() as u32, sum));
        let frame = frame_of(&out, piece);
        let publish = BinaryPublish::decode(frame.flags, &frame.payload).expect("a publish");
        prop_assert_eq!(publish.head(), head);
        prop_assert_eq!(publish.records.iter().collect::<Vec<_>>(), payloads);
        for end in 0..frame.payload.len() {
            let cut = frame.payload.slice(..end);
            prop_assert!(BinaryPublish::decode(frame.flags, &cut).is_err(), "truncated to {}", end);
        }
    }

    #[test]
    fn a_publish_ack_survives_its_bytes(ack in ack()) {
        let mut out = BytesMut::new();
        ack.encode_frame(&mut out);
        let frame = frame_of(&out, out.len());
        prop_assert_eq!(frame.flags, ack.flags().bits());
        prop_assert_eq!(PublishAck::decode(frame.flags, &frame.payload), Ok(ack));
        for end in 0..frame.payload.len() {
            prop_assert!(PublishAck::decode(frame.flags, &frame.payload[..end]).is_err());
        }
    }

    #[test]
    fn an_event_frame_survives_its_bytes(
        payloads in payloads(),
        times in option::of(any::<u64>()),
        id in option::of(any::<u64>().prop_map(SubscriptionId)),
        base in option::of((0..u64::MAX / 2).prop_map(Offset)),
        skipped in any::<u64>(),
        publisher in option::of(vec(any::<u8>(), 0..256).prop_map(Bytes::from)),
    ) {
        let mut batch = match times {
            Some(at) => EventBatch::timestamped(payloads.iter().map(|payload| (at, payload.as_slice()))),
            None => EventBatch::new(Records::from_payloads(&payloads)),
        };
        (batch.subscription_id, batch.base_offset, batch.publisher) = (id, base, publisher);
        batch.skipped_before = if base.is_some() { skipped } else { 0 };
        let mut out = BytesMut::new();
        batch.encode_frame(&mut out);
        let frame = frame_of(&out, 100);
        let read = EventBatch::decode(frame.flags, &frame.payload).expect("events");
        prop_assert_eq!(&read, &batch);
        let events: Vec<_> = read.iter().collect();
        prop_assert_eq!(events.len(), payloads.len());
        for (index, (event, payload)) in events.iter().zip(&payloads).enumerate() {
            prop_assert_eq!(&event.payload, payload);
            prop_assert_eq!(event.timestamp_micros, times);
            prop_assert_eq!(event.offset, base.map(|base| Offset(base.get() + index as u64)));
        }
        for end in 0..frame.payload.len() {
            prop_assert!(EventBatch::decode(frame.flags, &frame.payload.slice(..end)).is_err());
        }
    }

    #[test]
    fn a_json_publish_survives_its_bytes(
        names in [".{0,20}", ".{0,20}", ".{0,20}"],
        payloads in payloads(),
        key in option::of(blob()),
        shard in option::of(any::<u32>().prop_map(ShardIndex)),
        request_id in option::of(any::<u64>().prop_map(RequestId)),
    ) {
        let [tenant_id, namespace, stream] = names.map(Cow::Owned);
        let payloads = Records::from_payloads(&payloads);
        let ack = Some(AckRequest::PerBatch);
        let batch = PublishBatch { tenant_id, namespace, stream, payloads, key, shard, request_id, ack };
        assert_json_survives(&Message::PublishBatch(batch));
    }

    #[test]
    fn other_json_survives_its_bytes(
        texts in [any::<String>(), any::<String>(), any::<String>(), any::<String>()],
        value in option::of(blob()),
        numbers in option::of((any::<u16>(), any::<u32>(), any::<u64>())),
        offset in option::of(any::<u64>().prop_map(Offset)),
    ) {
        let [a, b, c, d]: [Cow<'static, str>; 4] = texts.map(Cow::Owned);
        assert_json_survives(&Message::Auth(Auth {
            tenant_id: a.clone(),
            token: b.clone(),
            client_flags: numbers.map(|(flags, ..)| Flags(flags)),
            client_features: numbers.map(|(_, features, _)| features),
            client_features_hi: None,
        }));
        assert_json_survives(&Message::Error(Error::coded(ErrorCode::from_name(&b), a.clone())));
        assert_json_survives(&Message::Subscribed(Subscribed {
            subscription_id: SubscriptionId(numbers.map_or(0, |(.., id)| id)),
            start_offset: offset,
            live_offset: offset,
            queue_capacity: None,
            boot: numbers.map(|(.., boot)| boot),
        }));
        let record = GroupRecord {
            offset: offset.unwrap_or_default(),
            payload: value.clone().unwrap_or_default(),
            attempts: 1,
            skipped_before: numbers.map(|(.., skipped)| skipped),
            publisher: Some(d.clone()),
            timestamp_micros: None,
        };
        assert_json_survives(&Message::GroupRecords(GroupRecords {
            records: vec![record.clone(), record],
            request_id: RequestId(u64::MAX),
        }));
        assert_json_survives(&Message::CacheValue(CacheValue {
            tenant_id: a,
            namespace: b,
            cache: c,
            key: d,
            value,
            request_id: None,
            version: numbers.map(|(.., version)| version),
        }));
    }
}
