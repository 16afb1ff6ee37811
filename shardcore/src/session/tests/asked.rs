//! Requests about keys that are taken in place are decided as those that are not.

use felix_wire::client::{CacheGet, CachePut, CounterAdd, CounterGet, Form};
use felix_wire::features::Features;
use felix_wire::frame::HEADER_LEN;
use felix_wire::id::ProducerId;
use proptest::prelude::*;

use super::forms::{answers, stream_of};
use super::*;

/// What a client may put in a frame.
#[derive(Clone, Debug)]
enum Sent {
    Get,
    Put {
        bytes: usize,
    },
    Add {
        half_a_number: bool,
    },
    Sum,
    /// A get whose payload was cut or had a byte changed.
    Broken {
        at: usize,
        cut: bool,
    },
}

#[derive(Clone, Debug)]
struct Asked {
    sent: Sent,
    form: Form,
    cache: &'static str,
    key: &'static str,
}

fn asked() -> impl Strategy<Value = Asked> {
    let sent = prop_oneof![
        8 => Just(Sent::Get),
        8 => prop_oneof![6 => 0_usize..300, 1 => 30_000..40_000_usize].prop_map(|bytes| Sent::Put { bytes }),
        4 => (0_u8..6).prop_map(|draw| Sent::Add { half_a_number: draw == 0 }),
        2 => Just(Sent::Sum),
        1 => (0_usize..60, any::<bool>()).prop_map(|(at, cut)| Sent::Broken { at, cut }),
    ];
    let form = prop_oneof![8 => Just(Form::Binary), 1 => Just(Form::Json)];
    let cache = prop_oneof![10 => Just("s"), 1 => Just("nowhere"), 1 => Just("")];
    let key = prop_oneof![Just("open/a"), Just("open/b"), Just("shut/a"), Just("")];
    (sent, form, cache, key).prop_map(|(sent, form, cache, key)| Asked { sent, form, cache, key })
}

fn encode(number: u64, asked: &Asked) -> BytesMut {
    let (tenant_id, namespace) = (TENANT.into(), NAMESPACE.into());
    let (cache, key) = (asked.cache.into(), asked.key.into());
    let request_id = RequestId(number);
    let named = Some(request_id);
    let message = match asked.sent {
        Sent::Get | Sent::Broken { .. } => {
            Message::CacheGet(CacheGet { tenant_id, namespace, cache, key, request_id: named })
        }
        Sent::Put { bytes } => {
            let (value, ttl_ms) = (vec![number as u8; bytes].into(), None);
            Message::CachePut(CachePut { tenant_id, namespace, cache, key, value, request_id: named, ttl_ms })
        }
        Sent::Add { half_a_number } => {
            let (delta, producer_id) = (number as i64, half_a_number.then_some(ProducerId(1)));
            let sequence = None;
            let add =
                CounterAdd { tenant_id, namespace, cache, key, delta, request_id, producer_id, sequence };
            Message::CounterAdd(add)
        }
        Sent::Sum => Message::CounterGet(CounterGet { tenant_id, namespace, cache, key, request_id }),
    };
    let mut out = BytesMut::new();
    message.encode_frame_as(asked.form, &mut out);
    if let Sent::Broken { at, cut } = asked.sent {
        if cut {
            let payload = out.split_off(HEADER_LEN);
            let flags = u16::from_be_bytes([out[6], out[7]]);
            return frame(flags, &payload[..payload.len().saturating_sub(1 + at)]);
        }
        let place = HEADER_LEN + at % (out.len() - HEADER_LEN);
        out[place] ^= 0x11;
    }
    out
}

/// The answers of a stream whose token may do so, and those to a get of each key by one who may do all.
fn outcome(pieces: &[Bytes], actions: &[&str]) -> (Vec<String>, Vec<String>) {
    let mut pair = Pair::new(CoreLimits::default(), true);
    let (stream, _) = stream_of(&mut pair, Features::BINARY_MESSAGES, actions);
    for piece in pieces {
        pair.write(stream, piece);
        pair.run(MS * 50);
    }
    let told = answers(&mut pair, stream);
    let (reader, _) = stream_of(&mut pair, Features::BINARY_MESSAGES, &["cache.read", "cache.write"]);
    for key in ["open/a", "open/b", "shut/a", ""] {
        for sent in [Sent::Get, Sent::Sum] {
            pair.write(reader, &encode(1, &Asked { sent, form: Form::Binary, cache: "s", key }));
        }
    }
    (told, answers(&mut pair, reader))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(debug_assertions) { 60 } else { 200 }))]

    /// Frames that arrive together are taken in place; of frames that are cut in two none can be.
    #[test]
    fn requests_in_one_piece_are_decided_as_requests_that_are_cut(
        asked in prop::collection::vec(asked(), 1..40),
        cut in 1_usize..12,
        rights in prop_oneof![
            4 => Just(&["cache.read", "cache.write"][..]),
            1 => Just(&["cache.read"][..]),
            2 => Just(&["cache.read", "cache.write:cache:acme/sim/s/open/*"][..]),
        ],
    ) {
        // Eight violations end a connection, wherever it is then.
        let mut violations = 0..6;
        let mut asked = asked;
        asked.retain(|asked| !matches!(asked.sent, Sent::Broken { .. }) || violations.next().is_some());
        let encoded: Vec<BytesMut> =
            asked.iter().enumerate().map(|(at, asked)| encode(at as u64, asked)).collect();
        let together = Bytes::from(encoded.concat());
        let cut = cut_in_two(encoded, cut);
        prop_assert_eq!(outcome(&[together], rights), outcome(&cut, rights));
    }
}
