//! Publishes that are taken in place are decided as those that are not.

use felix_wire::client::{CacheGet, Records, StartPosition, Subscribe};
use felix_wire::id::ShardIndex;
use proptest::prelude::*;

use super::*;

/// What a client may put in a frame.
#[derive(Clone, Debug)]
enum Sent {
    Publish {
        stream: &'static str,
        key: Option<Vec<u8>>,
        records: Vec<usize>,
        acked: bool,
    },
    /// A publish whose payload was cut or had a byte changed.
    Broken {
        at: usize,
        cut: bool,
    },
    Width {
        shards: u32,
    },
    Cached,
}

fn sent() -> impl Strategy<Value = Sent> {
    let stream = prop_oneof![12 => Just("s"), 1 => Just("t"), 1 => Just("")];
    let key = prop::option::of(prop::collection::vec(any::<u8>(), 0..6));
    let records = prop::collection::vec(prop_oneof![8 => 0_usize..300, 1 => 2_000..4_000_usize], 0..4);
    let publish = (stream, key, records, any::<bool>())
        .prop_map(|(stream, key, records, acked)| Sent::Publish { stream, key, records, acked });
    prop_oneof![
        16 => publish,
        1 => (0_usize..60, any::<bool>()).prop_map(|(at, cut)| Sent::Broken { at, cut }),
        1 => (1_u32..4).prop_map(|shards| Sent::Width { shards }),
        1 => Just(Sent::Cached),
    ]
}

fn encode(number: u64, sent: &Sent) -> BytesMut {
    let head = |stream, key, acked: bool| PublishHead {
        tenant: TENANT,
        namespace: NAMESPACE,
        stream,
        key,
        acked: acked.then_some((RequestId(number), AckMode::PerBatch)),
        producer: None,
    };
    let mut out = BytesMut::new();
    match sent {
        Sent::Publish { stream, key, records, acked } => {
            let payloads: Vec<Vec<u8>> = records.iter().map(|len| vec![number as u8; *len]).collect();
            let payloads: Vec<&[u8]> = payloads.iter().map(Vec::as_slice).collect();
            encode_publish(&head(stream, key.as_deref(), *acked), payloads, &mut out).unwrap();
        }
        Sent::Broken { at, cut } => {
            let mut whole = publish(number, Some(b"k"), 20);
            if *cut {
                let payload = whole.split_off(12);
                let flags = u16::from_be_bytes([whole[6], whole[7]]);
                return frame(flags, &payload[..payload.len().saturating_sub(1 + at)]);
            }
            let place = 12 + at % (whole.len() - 12);
            whole[place] ^= 0x11;
            return whole;
        }
        Sent::Width { shards } => {
            let width = PublishWidth {
                tenant_id: TENANT.into(),
                namespace: NAMESPACE.into(),
                stream: "s".into(),
                shards: *shards,
                routing: KeyMapping::JumpHash,
            };
            Message::PublishWidth(width).encode_frame(&mut out);
        }
        Sent::Cached => {
            let get = CacheGet {
                tenant_id: TENANT.into(),
                namespace: NAMESPACE.into(),
                cache: "s".into(),
                key: "k".into(),
                request_id: Some(RequestId(number)),
            };
            Message::CacheGet(get).encode_frame(&mut out);
        }
    }
    out
}

/// The answers to publishes of one stream, the others, which may leave before or behind them, and what both shards hold.
fn outcome(pieces: &[Bytes]) -> ([Vec<Frame>; 2], Vec<Vec<Frame>>) {
    let mut pair = Pair::new(CoreLimits::default(), true);
    let stream = pair.publisher();
    for piece in pieces {
        pair.write(stream, piece);
    }
    let mut answers = [Vec::new(), Vec::new()];
    while let Some(frame) = pair.next(stream) {
        answers[usize::from(frame.flags == 0)].push(frame);
    }
    let reader = pair.publisher();
    let held = [0, 1].map(|shard| {
        let subscribe = Subscribe {
            tenant_id: TENANT.into(),
            namespace: NAMESPACE.into(),
            stream: "s".into(),
            subscription_id: None,
            queue_capacity: None,
            start: Some(StartPosition::Earliest),
            shard: Some(ShardIndex(shard)),
        };
        pair.event_streams.clear();
        pair.send(reader, &Message::Subscribe(subscribe));
        pair.run(MS * 50);
        let events = pair.event_streams[0];
        let mut frames = Vec::new();
        while let Some(frame) = pair.next(events) {
            frames.push(frame);
        }
        frames.split_off(1)
    });
    (answers, held.to_vec())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(debug_assertions) { 60 } else { 200 }))]

    /// Frames that arrive together are taken in place; of frames that are cut in two none can be.
    #[test]
    fn frames_in_one_piece_are_decided_as_frames_that_are_cut(frames in prop::collection::vec(sent(), 1..40), cut in 1_usize..12) {
        // Eight violations end a connection, wherever it is then.
        let mut violations = 0..6;
        let mut frames = frames;
        frames.retain(|sent| !matches!(sent, Sent::Broken { .. }) || violations.next().is_some());
        let encoded: Vec<BytesMut> = frames.iter().enumerate().map(|(at, sent)| encode(at as u64, sent)).collect();
        let together = Bytes::from(encoded.concat());
        let cut = cut_in_two(encoded, cut);
        prop_assert_eq!(outcome(&[together]), outcome(&cut));
    }
}

#[test]
fn records_taken_in_place_do_not_keep_the_piece_they_came_in() {
    let payload = vec![3_u8; 100];
    let run = Records::from_payloads([&payload]);
    let copied = Records::copied(1, run.bytes()).unwrap();
    let place = copied.bytes().as_ptr();
    assert_eq!(copied.into_detached().bytes().as_ptr(), place, "and are not copied again");
    assert_ne!(run.clone().into_detached().bytes().as_ptr(), run.bytes().as_ptr());
}
