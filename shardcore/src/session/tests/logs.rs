//! Requests about logs that are refused before a shard sees them, and what operators are told.

use felix_wire::client::inspect::{SubscriptionCursor, SubscriptionFilter, SubscriptionsList};
use felix_wire::client::{
    Commit, OffsetForTime, PublishIf, Records, ShardInspect, ShardKind, StateGet, StreamRead, Subscribe,
};
use felix_wire::id::{Offset, ProducerId, ShardIndex};

use super::*;

fn requests(stream: &str) -> [Message<'static>; 5] {
    let (tenant_id, namespace) = (TENANT.into(), NAMESPACE.into());
    let stream: std::borrow::Cow<'static, str> = stream.to_owned().into();
    let request_id = RequestId(1);
    let entity_key = Bytes::from_static(b"e");
    [
        Message::Commit(Commit {
            tenant_id,
            namespace,
            stream: stream.clone(),
            entity_key: entity_key.clone(),
            event: Bytes::new(),
            changes: Vec::new(),
            request_id,
            expected_offset: None,
            shard: None,
            producer_id: None,
            sequence: None,
        }),
        Message::StateGet(StateGet {
            tenant_id: TENANT.into(),
            namespace: NAMESPACE.into(),
            stream: stream.clone(),
            entity_key,
            key: "k".into(),
            request_id,
            shard: None,
        }),
        Message::PublishIf(PublishIf {
            tenant_id: TENANT.into(),
            namespace: NAMESPACE.into(),
            stream: stream.clone(),
            payloads: Records::from_payloads([b"x"]),
            key: None,
            shard: None,
            expected_offset: Offset(0),
            request_id,
        }),
        Message::StreamRead(StreamRead {
            tenant_id: TENANT.into(),
            namespace: NAMESPACE.into(),
            stream: stream.clone(),
            shard: ShardIndex(0),
            from: Offset(0),
            end: None,
            max_records: 0,
            max_bytes: 0,
            request_id,
        }),
        Message::OffsetForTime(OffsetForTime {
            tenant_id: TENANT.into(),
            namespace: NAMESPACE.into(),
            stream,
            shard: ShardIndex(0),
            at_micros: 0,
            request_id,
        }),
    ]
}

fn refusal(pair: &mut Pair, stream: StreamId, message: &Message<'_>) -> ErrorCode {
    pair.send(stream, message);
    let frame = pair.next(stream).expect("an answer");
    match Message::decode(&frame.payload).expect("a message") {
        Message::Error(error) => error.code.expect("a code"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_is_asked_of_a_log_needs_the_right_of_its_kind_and_a_durable_stream() {
    let mut pair = Pair::new(CoreLimits::default(), true);
    let both = pair.publisher();
    let writes = pair.authed(&token("w", &["stream.publish"]));
    let reads = pair.authed(&token("r", &["stream.subscribe"]));
    for message in requests("s") {
        let writer = matches!(message, Message::Commit(_) | Message::PublishIf(_));
        let (may, may_not) = if writer { (writes, reads) } else { (reads, writes) };
        assert_eq!(refusal(&mut pair, may_not, &message), ErrorCode::Forbidden, "{message:?}");
        assert_eq!(
            refusal(&mut pair, may, &message),
            ErrorCode::InvalidRequest,
            "it is in memory: {message:?}"
        );
    }
    for message in requests("nowhere") {
        assert_eq!(refusal(&mut pair, both, &message), ErrorCode::NotFound, "{message:?}");
    }
}

/// Stream `s` has logs from now on, and none is there.
fn durable(pair: &mut Pair) {
    let mut routes = Pair::streams().to_vec();
    let owners = vec![Owner::Here { core: CoreId(0), generation: Generation(2) }];
    routes[0] = Arc::new(StreamRoute { log: Some(Default::default()), owners, ..(*routes[0]).clone() });
    let routes = Arc::new(Routes::new(2, routes, [Arc::from(TENANT)]));
    pair.core.handle_admin(pair.now, ToCore::Routes(routes));
}

#[test]
fn requests_that_make_no_sense_are_refused_and_a_log_that_is_not_there_is_told_in_time() {
    let mut pair = Pair::new(CoreLimits::default(), true);
    let stream = pair.publisher();
    durable(&mut pair);
    let [commit, _, publish_if, read, _] = requests("s");
    let Message::Commit(commit) = commit else { panic!() };
    let half = Message::Commit(Commit { producer_id: Some(ProducerId(1)), ..commit.clone() });
    assert_eq!(refusal(&mut pair, stream, &half), ErrorCode::InvalidRequest);
    let elsewhere = Message::Commit(Commit { shard: Some(ShardIndex(1)), ..commit.clone() });
    assert_eq!(refusal(&mut pair, stream, &elsewhere), ErrorCode::InvalidRequest, "there is one shard");
    let large = Message::Commit(Commit { event: Bytes::from(vec![0; 11 << 20]), ..commit });
    let mut frame = BytesMut::new();
    large.encode_frame(&mut frame);
    let mut rest = frame.freeze();
    while !rest.is_empty() {
        let sent = rest.split_to(rest.len().min(32 << 10));
        pair.write(stream, &sent);
    }
    let told = pair.next(stream).expect("an answer");
    let Ok(Message::Error(error)) = Message::decode(&told.payload) else { panic!("{told:?}") };
    assert_eq!(error.code, Some(ErrorCode::LimitExceeded));
    let Message::PublishIf(publish_if) = publish_if else { panic!() };
    let payloads = Records::from_payloads([] as [&[u8]; 0]);
    let empty = Message::PublishIf(PublishIf { payloads, ..publish_if });
    assert_eq!(refusal(&mut pair, stream, &empty), ErrorCode::InvalidRequest);
    pair.send(stream, &read);
    assert!(pair.next(stream).is_none(), "its log may come");
    pair.run(MS * 2_500);
    let told = pair.next(stream).expect("an answer");
    let Ok(Message::Error(error)) = Message::decode(&told.payload) else { panic!("{told:?}") };
    assert_eq!(error.code, Some(ErrorCode::ShardUnavailable));
    assert!(pair.core.held(false).iter().all(|(_, held)| *held == 0), "{:?}", pair.core.held(false));
}

fn inspect(kind: ShardKind, shard: u32) -> Message<'static> {
    Message::ShardInspect(ShardInspect {
        tenant_id: TENANT.into(),
        namespace: NAMESPACE.into(),
        name: "s".into(),
        kind,
        shard: ShardIndex(shard),
        request_id: RequestId(9),
    })
}

#[test]
fn a_shard_is_shown_to_whoever_manages_it() {
    let mut pair = Pair::new(CoreLimits::default(), true);
    let publisher = pair.publisher();
    pair.write(publisher, &publish(1, None, 10));
    assert!(pair.next(publisher).is_some());
    let managed = pair.authed(&token("m", &["stream.manage", "cache.manage"]));
    for (kind, tail) in [(ShardKind::Stream, Some(Offset(1))), (ShardKind::Cache, None)] {
        assert_eq!(refusal(&mut pair, publisher, &inspect(kind, 0)), ErrorCode::Forbidden);
        assert_eq!(refusal(&mut pair, managed, &inspect(kind, 7)), ErrorCode::InvalidRequest);
        pair.send(managed, &inspect(kind, 0));
        let told = pair.next(managed).expect("an answer");
        let Ok(Message::ShardInspectInfo(info)) = Message::decode(&told.payload) else { panic!("{told:?}") };
        let view = info.view;
        assert_eq!((info.request_id, view.shards, view.serving), (RequestId(9), 2, true));
        assert_eq!((&*view.role, view.generation, view.tail), ("leader", Some(Generation(1)), tail));
    }
}

fn list(filter: SubscriptionFilter<'static>, after: Option<SubscriptionCursor<'static>>) -> Message<'static> {
    Message::SubscriptionsList(Box::new(SubscriptionsList {
        filter,
        limit: Some(2),
        cursor: after,
        request_id: RequestId(3),
    }))
}

#[test]
fn subscriptions_are_listed_page_by_page_to_whoever_manages_their_stream() {
    let mut pair = Pair::new(CoreLimits::default(), true);
    let reader = pair.publisher();
    let shards = [0, 1, 0];
    for shard in shards {
        let subscribe = Message::Subscribe(Subscribe {
            tenant_id: TENANT.into(),
            namespace: NAMESPACE.into(),
            stream: "s".into(),
            subscription_id: None,
            queue_capacity: None,
            start: None,
            shard: Some(ShardIndex(shard)),
        });
        pair.send(reader, &subscribe);
        let told = pair.next(reader).expect("an answer");
        assert!(matches!(Message::decode(&told.payload), Ok(Message::Subscribed(_))), "{told:?}");
    }
    let listed = |pair: &mut Pair, stream, message: &Message<'_>| {
        pair.send(stream, message);
        let told = pair.next(stream).expect("an answer");
        let Ok(Message::SubscriptionsListInfo(info)) = Message::decode(&told.payload) else {
            panic!("{told:?}")
        };
        let rows = info.subscriptions.iter().map(|row| {
            assert_eq!((&*row.tenant_id, &*row.stream, row.principal.as_deref()), (TENANT, "s", Some("p")));
            assert!(row.peer.is_some() && row.connection.is_some() && row.subscription_id.is_some());
            (row.shard.0, row.subscriber_id)
        });
        let cursor = info.next_cursor.map(|at| SubscriptionCursor {
            tenant_id: at.tenant_id.into_owned().into(),
            namespace: at.namespace.into_owned().into(),
            stream: at.stream.into_owned().into(),
            shard: at.shard,
            subscriber_id: at.subscriber_id,
        });
        (rows.collect::<Vec<_>>(), cursor)
    };
    let manager = pair.authed(&token("m", &["stream.manage"]));
    let (first, cursor) = listed(&mut pair, manager, &list(SubscriptionFilter::default(), None));
    assert!(cursor.is_some());
    let (second, none) = listed(&mut pair, manager, &list(SubscriptionFilter::default(), cursor));
    assert_eq!(none, None);
    let all = [first, second].concat();
    assert_eq!(all.iter().map(|(shard, _)| *shard).collect::<Vec<_>>(), [0, 0, 1]);
    assert!(all.is_sorted() && all[0] != all[1]);
    let of_one = SubscriptionFilter { shard: Some(ShardIndex(1)), ..SubscriptionFilter::default() };
    assert_eq!(listed(&mut pair, manager, &list(of_one, None)).0, all[2..]);
    let dropping = SubscriptionFilter { dropping: Some(true), ..SubscriptionFilter::default() };
    assert_eq!(listed(&mut pair, manager, &list(dropping, None)).0, []);
    assert_eq!(listed(&mut pair, reader, &list(SubscriptionFilter::default(), None)).0, [], "not theirs");
}
