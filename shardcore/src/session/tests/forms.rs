//! Requests in their binary form, beside those in JSON.

use felix_wire::client::{
    CacheDelete, CacheGet, CachePut, CacheValue, CounterAdd, Form, GroupPoll, RefusalReason, ShardKind,
    ShardOwners,
};
use felix_wire::features::Features;
use felix_wire::id::{ProducerId, Sequence, ShardIndex};

use super::caches::without_log;
use super::*;

/// `auth` of a client that offers these private bits.
fn auth_with(token: &str, private: Features) -> Message<'_> {
    let features = Features::KNOWN.union(private);
    let (lo, hi) = features.words(true);
    Message::Auth(Auth {
        tenant_id: TENANT.into(),
        token: token.into(),
        client_flags: Some(Flags(8_191)),
        client_features: Some(lo),
        client_features_hi: hi,
    })
}

const BOTH_OF_CACHES: [&str; 2] = ["cache.read", "cache.write"];

/// A stream of such a client, and what it was told.
pub fn stream_of(pair: &mut Pair, private: Features, actions: &[&str]) -> (StreamId, Features) {
    let token = token("c", actions);
    let stream = pair.open();
    pair.send(stream, &auth_with(&token, private));
    let answer = pair.next(stream).expect("an answer to auth");
    let Ok(Message::AuthOk(ok)) = Message::decode(&answer.payload) else { panic!("{answer:?}") };
    (stream, ok.features())
}

fn put(request: u64, value: &[u8]) -> Message<'static> {
    Message::CachePut(CachePut {
        tenant_id: TENANT.into(),
        namespace: NAMESPACE.into(),
        cache: "s".into(),
        key: "a".into(),
        value: Bytes::copy_from_slice(value),
        request_id: Some(RequestId(request)),
        ttl_ms: None,
    })
}

fn get(request: u64, cache: &'static str) -> Message<'static> {
    Message::CacheGet(CacheGet {
        tenant_id: TENANT.into(),
        namespace: NAMESPACE.into(),
        cache: cache.into(),
        key: "a".into(),
        request_id: Some(RequestId(request)),
    })
}

fn delete(request: u64) -> Message<'static> {
    Message::CacheDelete(CacheDelete {
        tenant_id: TENANT.into(),
        namespace: NAMESPACE.into(),
        cache: "s".into(),
        key: "a".into(),
        request_id: Some(RequestId(request)),
    })
}

fn add(request: u64, sequence: Option<u64>) -> Message<'static> {
    Message::CounterAdd(CounterAdd {
        tenant_id: TENANT.into(),
        namespace: NAMESPACE.into(),
        cache: "s".into(),
        key: "n".into(),
        delta: -3,
        request_id: RequestId(request),
        producer_id: sequence.map(|_| ProducerId(9)),
        sequence: sequence.map(Sequence),
    })
}

fn encoded(requests: &[(Form, Message<'_>)]) -> BytesMut {
    let mut out = BytesMut::new();
    for (form, message) in requests {
        message.encode_frame_as(*form, &mut out);
    }
    out
}

/// One word for each answer that has come, with its form.
pub fn answers(pair: &mut Pair, stream: StreamId) -> Vec<String> {
    let mut found = Vec::new();
    while let Some(frame) = pair.next(stream) {
        let form = if frame.flags == Flags::BINARY_MESSAGE.bits() { "binary" } else { "json" };
        let what = match Message::decode_frame(&frame).expect("a message") {
            Message::CacheOk(ok) => format!("ok {}", ok.request_id.0),
            Message::CacheValue(CacheValue { key, value, request_id: Some(id), version, .. }) => {
                let value = value.map_or("none".into(), |v| format!("{} bytes", v.len()));
                format!("{} {key}={value} {version:?}", id.0)
            }
            Message::CounterValue(sum) => format!("{} {:?}", sum.request_id.0, sum.value),
            Message::ShardOwnersView(view) => format!("{} owners", view.owners.len()),
            Message::PublishRefused(refused) => format!("{} {:?}", refused.request_id.0, refused.reason),
            Message::Error(error) => format!("{:?}", error.code.expect("a code")),
            other => format!("{other:?}"),
        };
        found.push(format!("{form} {what}"));
    }
    found
}

#[test]
fn the_bit_is_told_to_those_who_know_private_bits_and_to_nobody_else() {
    let mut pair = Pair::new(CoreLimits::default(), true);
    for (private, told) in
        [(Features::BINARY_MESSAGES, true), (Features::ORDERED_ANSWERS, true), (Features::NONE, false)]
    {
        let (_, features) = stream_of(&mut pair, private, &BOTH_OF_CACHES);
        assert_eq!(features.contains(Features::BINARY_MESSAGES), told, "{private:?}");
    }
}

#[test]
fn each_request_is_answered_in_the_form_it_came_in_and_in_its_order() {
    use Form::{Binary, Json};
    let mut pair = Pair::new(CoreLimits::default(), true);
    let (stream, _) = stream_of(&mut pair, Features::BINARY_MESSAGES, &BOTH_OF_CACHES);
    let large = vec![7; 50_000];
    let sent = encoded(&[
        (Json, put(1, b"x")),
        (Binary, get(2, "s")),
        (Json, get(3, "s")),
        (Binary, put(4, b"")),
        (Binary, get(5, "nowhere")),
        (Json, get(6, "nowhere")),
        (Binary, get(7, "s")),
        (Binary, put(8, &large)),
        (Binary, get(9, "s")),
        (Binary, delete(10)),
        (Binary, delete(11)),
    ]);
    pair.write(stream, &sent);
    // The large value takes several round trips, each way.
    pair.run(MS * 200);
    let told = answers(&mut pair, stream);
    assert_eq!(
        told,
        [
            "json ok 1",
            "binary 2 =1 bytes Some(0)",
            "json 3 a=1 bytes Some(0)",
            "binary ok 4",
            "binary NotFound",
            "json NotFound",
            "binary 7 =0 bytes Some(1)",
            "binary ok 8",
            "binary 9 =50000 bytes Some(2)",
            "binary 10 =50000 bytes None",
            "binary 11 =none None",
        ]
    );
}

#[test]
fn a_frame_over_the_limit_is_refused_also_behind_those_that_are_taken_in_place() {
    let limits = CoreLimits { frame_bytes_max: 2_048, ..CoreLimits::default() };
    let mut pair = Pair::new(limits, true);
    let (stream, _) = stream_of(&mut pair, Features::BINARY_MESSAGES, &BOTH_OF_CACHES);
    pair.write(stream, &encoded(&[(Form::Binary, get(1, "s"))]));
    pair.write(stream, &encoded(&[(Form::Binary, get(2, "s")), (Form::Binary, put(3, &[7; 2_100]))]));
    let told = answers(&mut pair, stream);
    assert_eq!(told, ["binary 1 =none None", "binary 2 =none None", "binary LimitExceeded"]);
}

#[test]
fn refusals_that_come_late_have_the_form_of_their_own_request() {
    use Form::{Binary, Json};
    let mut pair = Pair::new(CoreLimits::default(), true);
    let (stream, _) = stream_of(&mut pair, Features::BINARY_MESSAGES, &BOTH_OF_CACHES);
    without_log(&mut pair);
    let owners = Message::ShardOwners(ShardOwners {
        tenant_id: TENANT.into(),
        namespace: NAMESPACE.into(),
        name: "s".into(),
        kind: ShardKind::Cache,
        request_id: RequestId(3),
    });
    pair.write(stream, &encoded(&[(Binary, put(1, b"x")), (Json, put(2, b"x")), (Json, owners)]));
    pair.run(MS * 2_500);
    let told = answers(&mut pair, stream);
    assert_eq!(told, ["binary ShardUnavailable", "json ShardUnavailable", "json 1 owners"]);
}

#[test]
fn numbers_and_polls_are_refused_in_the_binary_form_too() {
    let mut pair = Pair::new(CoreLimits::default(), true);
    let (stream, _) = stream_of(&mut pair, Features::BINARY_MESSAGES, &BOTH_OF_CACHES);
    let poll = Message::GroupPoll(GroupPoll {
        tenant_id: TENANT.into(),
        namespace: NAMESPACE.into(),
        stream: "s".into(),
        shard: ShardIndex(0),
        group: "g".into(),
        max_records: 1,
        wait_ms: 0,
        request_id: RequestId(4),
        consumer: None,
        reclaim: false,
        visibility_ms: 0,
        lease: None,
    });
    let requests = [add(1, None), add(2, Some(0)), add(3, Some(2)), poll];
    pair.write(stream, &encoded(&requests.map(|request| (Form::Binary, request))));
    let gap = format!("binary 3 {:?}", RefusalReason::SequenceGap { expected: Sequence(1) });
    let told = answers(&mut pair, stream);
    assert_eq!(told, ["binary 1 Some(-3)", "binary 2 Some(-6)", &gap, "binary Forbidden"]);
}

#[test]
fn a_broken_binary_frame_costs_the_frame_and_one_that_nobody_negotiated_too() {
    let mut pair = Pair::new(CoreLimits::default(), true);
    let (stream, _) = stream_of(&mut pair, Features::BINARY_MESSAGES, &BOTH_OF_CACHES);
    let mut broken = encoded(&[(Form::Binary, put(1, b"x"))]);
    broken[20..40].fill(0xff);
    broken.extend_from_slice(&encoded(&[(Form::Binary, put(2, b"x"))]));
    // What only a broker says is no request.
    let answer = Message::CacheOk(felix_wire::client::CacheOk { request_id: RequestId(3) });
    broken.extend_from_slice(&encoded(&[(Form::Binary, answer), (Form::Binary, get(4, "s"))]));
    // Another flag beside it has no meaning.
    broken.extend_from_slice(&frame(0x8001, b"1234"));
    pair.write(stream, &broken);
    let told = answers(&mut pair, stream);
    assert_eq!(
        told,
        [
            "binary InvalidRequest",
            "binary ok 2",
            "binary InvalidRequest",
            "binary 4 =1 bytes Some(0)",
            "json InvalidRequest"
        ]
    );
    let (other, _) = stream_of(&mut pair, Features::ORDERED_ANSWERS, &BOTH_OF_CACHES);
    pair.write(other, &encoded(&[(Form::Binary, get(1, "s")), (Form::Json, get(2, "s"))]));
    assert_eq!(answers(&mut pair, other), ["json InvalidRequest", "json 2 a=1 bytes Some(0)"]);
}
