//! Requests about caches and counters of one stream.

use felix_wire::client::{
    CacheCondition, CacheConditionResult, CacheDelete, CacheGet, CachePut, CachePutIf, CacheShards,
    CacheShardsView, CacheValue, CounterAdd, CounterValue, RefusalReason, ShardKind, ShardOwners, Subscribe,
};
use felix_wire::id::{ProducerId, Sequence};

use super::*;

fn client(pair: &mut Pair) -> StreamId {
    let token = token("c", &["cache.read", "cache.write"]);
    pair.authed(&token)
}

fn put(request: u64, key: &str, value: &[u8]) -> BytesMut {
    encoded(&Message::CachePut(CachePut {
        tenant_id: TENANT.into(),
        namespace: NAMESPACE.into(),
        cache: "s".into(),
        key: key.to_owned().into(),
        value: Bytes::copy_from_slice(value),
        request_id: Some(RequestId(request)),
        ttl_ms: None,
    }))
}

fn get(request: u64, cache: &str, key: &str) -> BytesMut {
    encoded(&Message::CacheGet(CacheGet {
        tenant_id: TENANT.into(),
        namespace: NAMESPACE.into(),
        cache: cache.to_owned().into(),
        key: key.to_owned().into(),
        request_id: Some(RequestId(request)),
    }))
}

fn encoded(message: &Message<'_>) -> BytesMut {
    let mut out = BytesMut::new();
    message.encode_frame(&mut out);
    out
}

/// One word for each answer that has come.
fn answers(pair: &mut Pair, stream: StreamId) -> Vec<String> {
    let mut found = Vec::new();
    while let Some(frame) = pair.next(stream) {
        found.push(match Message::decode(&frame.payload).expect("a message") {
            Message::CacheOk(ok) => format!("ok {}", ok.request_id.0),
            Message::CacheValue(CacheValue { key, value, request_id: Some(id), version, .. }) => {
                let value = value.map_or("none".into(), |v| String::from_utf8_lossy(&v).into_owned());
                format!("{} {key}={value} {version:?}", id.0)
            }
            Message::CacheConditionResult(CacheConditionResult { applied, version, request_id }) => {
                format!("{} {applied} {version:?}", request_id.0)
            }
            Message::CounterValue(CounterValue { value, request_id }) => {
                format!("{} {value:?}", request_id.0)
            }
            Message::Subscribed(_) => "subscribed".to_owned(),
            Message::CacheShardsView(CacheShardsView { shards, .. }) => format!("width {shards}"),
            Message::ShardOwnersView(view) => format!("{} owners", view.owners.len()),
            Message::PublishRefused(refused) => format!("{} {:?}", refused.request_id.0, refused.reason),
            Message::Error(error) => format!("{:?}", error.code.expect("a code")),
            other => panic!("{other:?}"),
        });
    }
    found
}

#[test]
fn requests_sent_at_once_are_answered_in_their_order_and_errors_keep_their_place() {
    let mut pair = Pair::new(CoreLimits::default(), true);
    let stream = client(&mut pair);
    let mut sent = BytesMut::new();
    for part in [
        put(1, "a", b"x"),
        get(2, "nowhere", "a"),
        get(3, "s", "a"),
        get(4, "s", "b"),
        encoded(&Message::CacheDelete(CacheDelete {
            tenant_id: TENANT.into(),
            namespace: NAMESPACE.into(),
            cache: "s".into(),
            key: "a".into(),
            request_id: Some(RequestId(5)),
        })),
        get(6, "s", "a"),
    ] {
        sent.extend_from_slice(&part);
    }
    pair.write(stream, &sent);
    let told = answers(&mut pair, stream);
    assert_eq!(told, ["ok 1", "NotFound", "3 a=x Some(0)", "4 b=none None", "5 a=x None", "6 a=none None"]);
}

#[test]
fn conditions_counters_widths_and_owners_are_answered() {
    let mut pair = Pair::new(CoreLimits::default(), true);
    let stream = client(&mut pair);
    let put_if = |condition, request| {
        encoded(&Message::CachePutIf(CachePutIf {
            tenant_id: TENANT.into(),
            namespace: NAMESPACE.into(),
            cache: "s".into(),
            key: "k".into(),
            value: Bytes::from_static(b"v"),
            ttl_ms: None,
            condition,
            request_id: RequestId(request),
        }))
    };
    let add = |delta, request| {
        encoded(&Message::CounterAdd(CounterAdd {
            tenant_id: TENANT.into(),
            namespace: NAMESPACE.into(),
            cache: "s".into(),
            key: "k".into(),
            delta,
            producer_id: None,
            sequence: None,
            request_id: RequestId(request),
        }))
    };
    for part in [
        put_if(CacheCondition::Version(7), 1),
        put_if(CacheCondition::Absent, 2),
        put_if(CacheCondition::Absent, 3),
        put_if(CacheCondition::Version(0), 4),
        add(i64::MAX, 5),
        add(1, 6),
        add(-1, 7),
        encoded(&Message::CacheShards(CacheShards {
            tenant_id: TENANT.into(),
            namespace: NAMESPACE.into(),
            cache: "s".into(),
            request_id: RequestId(8),
        })),
        encoded(&Message::ShardOwners(ShardOwners {
            tenant_id: TENANT.into(),
            namespace: NAMESPACE.into(),
            name: "s".into(),
            kind: ShardKind::Cache,
            request_id: RequestId(9),
        })),
    ] {
        pair.write(stream, &part);
    }
    let told = answers(&mut pair, stream);
    let max = format!("5 Some({})", i64::MAX);
    let less = format!("7 Some({})", i64::MAX - 1);
    assert_eq!(
        told,
        [
            "1 false None",
            "2 true Some(0)",
            "3 false Some(0)",
            "4 true Some(1)",
            &max,
            "InvalidRequest",
            &less,
            "width 2",
            "2 owners"
        ]
    );
}

#[test]
fn more_than_may_be_unanswered_is_refused_and_a_shard_that_is_not_served_is_told_in_time() {
    let limits = CoreLimits { asks_max: 2, ..CoreLimits::default() };
    let mut pair = Pair::new(limits, true);
    let stream = client(&mut pair);
    without_log(&mut pair);
    let mut sent = BytesMut::new();
    (1..=4).for_each(|request| sent.extend_from_slice(&put(request, "a", b"x")));
    pair.write(stream, &sent);
    pair.run(MS * 1_000);
    assert_eq!(answers(&mut pair, stream), [] as [&str; 0], "answers keep their order");
    pair.run(MS * 1_500);
    let told = answers(&mut pair, stream);
    assert_eq!(told, ["ShardUnavailable", "ShardUnavailable", "Overloaded", "Overloaded"]);
    assert!(pair.core.held(false).iter().all(|(_, held)| *held == 0), "{:?}", pair.core.held(false));
}

#[test]
fn a_stream_with_as_many_unanswered_as_it_may_have_is_read_on_when_they_are_answered() {
    let limits = CoreLimits { asks_per_stream: 2, ..CoreLimits::default() };
    let mut pair = Pair::new(limits, true);
    let stream = client(&mut pair);
    let mut sent = BytesMut::new();
    (1..=50).for_each(|request| sent.extend_from_slice(&put(request, "a", b"x")));
    pair.write(stream, &sent);
    pair.run(MS * 100);
    let told = answers(&mut pair, stream);
    assert_eq!(told, (1..=50).map(|request| format!("ok {request}")).collect::<Vec<_>>());
}

/// A cache whose shard has no log: what is asked of it waits until its time is over.
pub(super) fn without_log(pair: &mut Pair) {
    let mut routes = Pair::streams().to_vec();
    let owners = vec![Owner::Here { core: CoreId(0), generation: Generation(2) }];
    routes[1] = Arc::new(StreamRoute { log: Some(Default::default()), owners, ..(*routes[1]).clone() });
    let routes = Arc::new(Routes::new(2, routes, [Arc::from(TENANT)]));
    pair.core.handle_admin(pair.now, ToCore::Routes(routes));
}

#[test]
fn a_broken_frame_and_a_subscription_are_answered_after_the_requests_before_them() {
    let mut pair = Pair::new(CoreLimits::default(), true);
    let token = token("c", &["cache.read", "cache.write", "stream.subscribe"]);
    let stream = pair.authed(&token);
    without_log(&mut pair);
    let subscribe = Message::Subscribe(Subscribe {
        tenant_id: TENANT.into(),
        namespace: NAMESPACE.into(),
        stream: "s".into(),
        subscription_id: None,
        queue_capacity: None,
        start: None,
        shard: None,
    });
    let mut sent = BytesMut::new();
    sent.extend_from_slice(&put(1, "a", b"x"));
    sent.extend_from_slice(&encoded(&subscribe));
    let width = CacheShards {
        tenant_id: TENANT.into(),
        namespace: NAMESPACE.into(),
        cache: "s".into(),
        request_id: RequestId(2),
    };
    sent.extend_from_slice(&encoded(&Message::CacheShards(width)));
    // One that is no message costs the frame; one that is no frame costs the stream.
    let mut nonsense = encoded(&Message::Topology);
    let last = nonsense.len() - 1;
    nonsense[last] = b'!';
    sent.extend_from_slice(&nonsense);
    sent.extend_from_slice(&put(3, "a", b"x"));
    sent.extend_from_slice(b"this is no frame at all");
    pair.write(stream, &sent);
    pair.run(MS * 1_000);
    assert_eq!(answers(&mut pair, stream), [] as [&str; 0], "nothing overtakes the first request");
    pair.run(MS * 1_500);
    let told = answers(&mut pair, stream);
    let expected =
        ["ShardUnavailable", "subscribed", "width 1", "InvalidRequest", "ShardUnavailable", "InvalidRequest"];
    assert_eq!(told, expected);
    assert!(pair.inbox[&stream].1, "the stream has ended");
}

#[test]
fn a_numbered_add_is_answered_as_the_first_time_and_a_number_that_does_not_fit_by_its_reason() {
    let mut pair = Pair::new(CoreLimits::default(), true);
    let stream = client(&mut pair);
    let add = |request, producer: Option<u64>, sequence: Option<u64>| {
        encoded(&Message::CounterAdd(CounterAdd {
            tenant_id: TENANT.into(),
            namespace: NAMESPACE.into(),
            cache: "s".into(),
            key: "k".into(),
            delta: 5,
            producer_id: producer.map(ProducerId),
            sequence: sequence.map(Sequence),
            request_id: RequestId(request),
        }))
    };
    for part in [
        add(1, Some(7), Some(0)),
        add(2, None, None),
        add(3, Some(7), Some(0)),
        add(4, Some(7), Some(2)),
        add(5, Some(8), Some(1)),
        add(6, Some(7), None),
        add(7, Some(7), Some(1)),
    ] {
        pair.write(stream, &part);
    }
    let gap = format!("4 {:?}", RefusalReason::SequenceGap { expected: Sequence(1) });
    let unknown = format!("5 {:?}", RefusalReason::UnknownProducer);
    let told = answers(&mut pair, stream);
    assert_eq!(
        told,
        ["1 Some(5)", "2 Some(10)", "3 Some(5)", &gap, &unknown, "InvalidRequest", "7 Some(15)"]
    );
}
