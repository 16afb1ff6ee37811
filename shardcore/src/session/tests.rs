//! Sessions of a core as a client that writes raw frames sees them, in virtual time.

mod again;
mod asked;
mod caches;
mod forms;
mod leases;
mod logs;
mod watches;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{BufMut, Bytes, BytesMut};
use felix_runtime::clock::Tick;
use felix_runtime::counters::counters;
use felix_runtime::quic::{
    CloseReason, ConnKey, Dir, KEY_BYTES, Quic, QuicEvent, QuicSettings, ReadOutcome, StreamId, Transmits,
};
use felix_runtime::sim::{Faults, SimNet};
use felix_wire::client::{
    AckMode, AckOutcome, Auth, Message, PublishAck, PublishHead, PublishWidth, encode_publish,
};
use felix_wire::error_code::{ErrorCode, RetryClass};
use felix_wire::flags::Flags;
use felix_wire::frame::{Frame, FrameHeader, FrameReader};
use felix_wire::id::{CoreId, Generation, Incarnation, RequestId};
use felix_wire::routing::KeyMapping;

use super::{CLOSE_AUTH, CLOSE_PROTOCOL, HELD_CREDIT_STREAMS_MAX, window_with_held};
use crate::sim::credentials::{Credentials, NAMESPACE, TENANT};
use crate::snapshot::{
    CoreLimits, FromCore, Keys, Owner, Resource, Routes, StreamName, StreamRoute, StreamUid, TenantKeys,
    ToCore,
};
use crate::turn::core::{Core, CoreParts, Datagram};
use crate::turn::counters::{CoreCounters, Counter};

const MS: Duration = Duration::from_millis(1);
const UNIX_S: u64 = 1_800_000_000;
const BOTH: [&str; 2] = ["stream.publish", "stream.subscribe"];

/// One core and one client, and a network between them that loses nothing.
struct Pair {
    core: Core,
    quic: Quic,
    conn: ConnKey,
    net: SimNet,
    now: Tick,
    /// Frames read and not looked at yet, by stream; and which streams the broker has ended.
    inbox: BTreeMap<StreamId, (FrameReader, bool)>,
    closed: Option<CloseReason>,
    stopped: Vec<StreamId>,
    /// It does not read event streams.
    deaf: bool,
    event_streams: Vec<StreamId>,
}

fn addr(host: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, host], 5_000))
}

fn quic(seed: u8, tls: Option<Arc<rustls::ServerConfig>>, limits: &CoreLimits) -> Quic {
    let settings = QuicSettings {
        conn_window_before_auth: u64::from(limits.conn_window_before_auth),
        seed: Some([seed; 32]),
        idle_timeout: Duration::from_secs(60),
        ..QuicSettings::new([1; KEY_BYTES], [2; KEY_BYTES])
    };
    Quic::new(settings, tls, Instant::now()).unwrap()
}

impl Pair {
    /// A connection to a core that knows the tenant, a stream `s` of two shards and, with `keys`, its keys.
    fn new(limits: CoreLimits, keys: bool) -> Pair {
        let mut pair = Pair::unread(limits);
        pair.read_catalog(keys);
        pair
    }

    /// A connection to a core that has been told nothing yet.
    fn unread(limits: CoreLimits) -> Pair {
        let held = Credentials::get();
        let limits = Arc::new(limits);
        let core = Core::new(CoreParts {
            id: CoreId(0),
            cores: 1,
            boot: 1,
            counters: CoreCounters::new(counters(Counter::ALL.len()).0),
            quic: quic(1, Some(Arc::clone(&held.server)), &limits),
            limits: Arc::clone(&limits),
        });
        let mut client = quic(2, None, &limits);
        let tls = Arc::clone(&held.client);
        let conn = client.connect(Tick::ZERO, tls, addr(1), "localhost", None).unwrap();
        Pair {
            core,
            quic: client,
            conn,
            net: SimNet::new(1, Faults::none(MS)),
            now: Tick::ZERO,
            inbox: BTreeMap::new(),
            closed: None,
            stopped: Vec::new(),
            deaf: false,
            event_streams: Vec::new(),
        }
    }

    fn read_catalog(&mut self, keys: bool) {
        let routes = Arc::new(Routes::new(1, Pair::streams(), [Arc::from(TENANT)]));
        self.core.handle_admin(self.now, ToCore::Routes(routes));
        self.core.handle_admin(self.now, ToCore::Keys(Credentials::get().keys(1, self.now, keys)));
        self.run(MS * 20);
    }

    /// Stream `s` and cache `s`, both in memory.
    fn streams() -> [Arc<StreamRoute>; 2] {
        let here = Owner::Here { core: CoreId(0), generation: Generation(1) };
        let name = StreamName { tenant: TENANT.into(), namespace: NAMESPACE.into(), stream: "s".into() };
        let route = StreamRoute {
            resource: Resource::Stream,
            uid: StreamUid(1),
            name,
            incarnation: Incarnation(1),
            mapping: KeyMapping::JumpHash,
            log: None,
            owners: vec![here.clone(), here],
        };
        let cache = StreamRoute {
            resource: Resource::Cache,
            uid: StreamUid(2),
            mapping: KeyMapping::Modulo,
            ..route.clone()
        };
        [Arc::new(route), Arc::new(cache)]
    }

    /// Lets time pass.
    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            self.settle();
            let next = [self.net.next_delivery(), self.quic.next_timeout(), self.core.next_timeout()];
            let next =
                next.into_iter().flatten().min().unwrap_or(Tick::MAX).max(self.now + Duration::from_nanos(1));
            if next > end {
                self.now = end;
                return;
            }
            self.now = next;
        }
    }

    fn settle(&mut self) {
        let now = self.now;
        while let Some(delivery) = self.net.poll(now) {
            let local = Some(delivery.to.ip());
            if delivery.to == addr(1) {
                let (remote, data) = (delivery.from, delivery.bytes);
                self.core.handle_datagram(now, Datagram { remote, local_ip: local, ecn: None, data });
            } else {
                self.quic.handle_datagram(now, delivery.from, local, None, delivery.bytes);
            }
        }
        let unix_s = UNIX_S + now.as_micros() / 1_000_000;
        let mut turns = 0;
        while self.core.turn(now, unix_s * 1_000) {
            turns += 1;
            assert!(turns < 1_000, "the core does not come to rest");
        }
        let mut batch = Transmits::new(16);
        while self.core.poll_transmit(now, &mut batch) > 0 {
            for transmit in batch.iter() {
                transmit.datagrams().for_each(|d| self.net.send(now, addr(1), addr(2), d));
            }
            batch.clear();
        }
        self.quic.handle_timeouts(now);
        self.client_events();
        while self.quic.poll_transmit(now, &mut batch) > 0 {
            for transmit in batch.iter() {
                transmit.datagrams().for_each(|d| self.net.send(now, addr(2), addr(1), d));
            }
            batch.clear();
        }
    }

    fn client_events(&mut self) {
        while let Some((_, event)) = self.quic.poll_event() {
            match event {
                QuicEvent::Readable { stream } if self.deaf && stream.dir() == Dir::Uni => {}
                QuicEvent::Readable { stream } => self.read(stream),
                QuicEvent::StreamOpened { stream, .. } => self.event_streams.push(stream),
                QuicEvent::Stopped { stream, .. } => self.stopped.push(stream),
                QuicEvent::Closed { reason } => self.closed = Some(reason),
                _ => {}
            }
        }
    }

    fn read(&mut self, stream: StreamId) {
        let (reader, ended) = self.inbox.entry(stream).or_insert_with(|| {
            let mut reader = FrameReader::new(16 << 20);
            reader.take_binary_messages();
            (reader, false)
        });
        loop {
            match self.quic.read(self.conn, stream, usize::MAX) {
                ReadOutcome::Data(bytes) => reader.push(bytes),
                ReadOutcome::Finished => *ended = true,
                _ => return,
            }
        }
    }

    /// Event streams are read from now on. Gives all that there were.
    fn hear(&mut self) -> Vec<StreamId> {
        self.deaf = false;
        let opened = self.event_streams.clone();
        opened.iter().for_each(|stream| self.read(*stream));
        opened
    }

    fn open(&mut self) -> StreamId {
        self.quic.open_bi(self.conn).unwrap()
    }

    fn write(&mut self, stream: StreamId, bytes: &[u8]) {
        let mut bytes = Bytes::copy_from_slice(bytes);
        self.quic.write(self.conn, stream, &mut bytes);
        assert!(bytes.is_empty(), "the window of the test is large enough");
        self.run(MS * 10);
    }

    fn send(&mut self, stream: StreamId, message: &Message<'_>) {
        let mut out = BytesMut::new();
        message.encode_frame(&mut out);
        self.write(stream, &out);
    }

    /// A stream that has authenticated with the token.
    fn authed(&mut self, token: &str) -> StreamId {
        let stream = self.open();
        self.send(stream, &auth(token));
        let answer = self.next(stream).expect("an answer to auth");
        assert!(matches!(Message::decode(&answer.payload), Ok(Message::AuthOk(_))), "{answer:?}");
        stream
    }

    fn publisher(&mut self) -> StreamId {
        let token = token("p", &BOTH);
        self.authed(&token)
    }

    fn next(&mut self, stream: StreamId) -> Option<Frame> {
        self.inbox.get_mut(&stream)?.0.next().unwrap()
    }

    /// Code and class of the next frame, which is an `error`.
    fn error(&mut self, stream: StreamId) -> (ErrorCode, RetryClass) {
        let frame = self.next(stream).expect("an error");
        match Message::decode(&frame.payload).unwrap() {
            Message::Error(error) => (error.code.unwrap(), error.retry.unwrap()),
            other => panic!("{other:?}"),
        }
    }

    /// The next frame, which answers a publish: its request and the code if it was refused.
    fn ack(&mut self, stream: StreamId) -> (u64, Option<ErrorCode>) {
        let frame = self.next(stream).expect("an ack");
        let ack = PublishAck::decode(frame.flags, &frame.payload).unwrap();
        let code = match ack.outcome {
            AckOutcome::Ok { .. } => None,
            AckOutcome::Error { code, .. } => Some(code.unwrap().code),
        };
        (ack.request_id.0, code)
    }

    fn is_ended(&self, stream: StreamId) -> bool {
        self.inbox.get(&stream).is_some_and(|(_, ended)| *ended)
    }
}

fn token(subject: &str, actions: &[&str]) -> String {
    Credentials::get().token_for(subject, UNIX_S + 3_600, actions)
}

fn auth(token: &str) -> Message<'_> {
    Message::Auth(Auth {
        tenant_id: TENANT.into(),
        token: token.into(),
        client_flags: Some(Flags(8_191)),
        client_features: Some(4_218_945_535),
        client_features_hi: Some(15),
    })
}

fn publish(request: u64, key: Option<&[u8]>, len: usize) -> BytesMut {
    let head = PublishHead {
        tenant: TENANT,
        namespace: NAMESPACE,
        stream: "s",
        key,
        acked: Some((RequestId(request), AckMode::PerBatch)),
        producer: None,
    };
    let mut out = BytesMut::new();
    encode_publish(&head, [&vec![7; len][..]], &mut out).unwrap();
    out
}

/// Each frame in two pieces, the first of `at` bytes.
fn cut_in_two(frames: Vec<BytesMut>, at: usize) -> Vec<Bytes> {
    let halves = |mut frame: BytesMut| [frame.split_to(at).freeze(), frame.freeze()];
    frames.into_iter().flat_map(halves).collect()
}

fn frame(flags: u16, payload: &[u8]) -> BytesMut {
    let mut out = BytesMut::from(&header(flags, payload.len() as u32)[..]);
    out.extend_from_slice(payload);
    out
}

fn header(flags: u16, length: u32) -> [u8; 12] {
    FrameHeader { flags, length }.encode()
}

#[test]
fn what_comes_before_auth_is_refused_and_ends_its_stream_only() {
    let mut pair = Pair::new(CoreLimits::default(), true);
    for bytes in [publish(1, None, 10), frame(0, b"{}"), frame(0x4, b"")] {
        let stream = pair.open();
        pair.write(stream, &bytes);
        let frame = pair.next(stream).expect("an error");
        assert!(matches!(Message::decode(&frame.payload), Ok(Message::Error(_))));
        assert!(pair.is_ended(stream));
    }
    let stream = pair.publisher();
    pair.write(stream, &publish(1, None, 10));
    assert_eq!(pair.ack(stream), (1, None));
}

#[test]
fn an_unauthenticated_frame_over_its_bound_is_refused_on_its_header() {
    let mut pair = Pair::new(CoreLimits::default(), true);
    let stream = pair.open();
    pair.write(stream, &header(0, (64 << 10) + 1));
    assert!(pair.is_ended(stream) && pair.next(stream).is_some());
}

#[test]
fn an_unknown_flag_is_refused_and_the_stream_goes_on() {
    let mut pair = Pair::new(CoreLimits::default(), true);
    let stream = pair.publisher();
    pair.write(stream, &frame(0x8000, b"12345"));
    assert_eq!(pair.error(stream), (ErrorCode::InvalidRequest, RetryClass::Fatal));
    pair.send(stream, &Message::Topology);
    let frame = pair.next(stream).expect("the stream goes on");
    assert!(matches!(Message::decode(&frame.payload), Ok(Message::TopologyView(_))));
}

#[test]
fn a_second_auth_is_an_invalid_request() {
    let mut pair = Pair::new(CoreLimits::default(), true);
    let stream = pair.publisher();
    pair.send(stream, &auth("again"));
    assert_eq!(pair.error(stream).0, ErrorCode::InvalidRequest);
}

#[test]
fn no_bare_error_is_written_where_publishes_are_answered() {
    let mut pair = Pair::new(CoreLimits::default(), true);
    let stream = pair.publisher();
    pair.write(stream, &publish(1, None, 10));
    assert_eq!(pair.ack(stream), (1, None));
    pair.write(stream, &frame(0, b"x"));
    pair.write(stream, &publish(2, None, 10));
    assert_eq!(pair.ack(stream), (2, None), "and nothing before it");
}

#[test]
fn a_publish_that_does_not_decode_is_refused_by_its_request_id() {
    let mut pair = Pair::new(CoreLimits::default(), true);
    let stream = pair.publisher();
    let mut bytes = publish(9, None, 10);
    let last = bytes.len() - 15;
    bytes[last..last + 4].copy_from_slice(&u32::MAX.to_be_bytes());
    pair.write(stream, &bytes);
    assert_eq!(pair.ack(stream), (9, Some(ErrorCode::InvalidRequest)));
}

#[test]
fn eight_violations_close_the_connection_and_seven_do_not() {
    let mut pair = Pair::new(CoreLimits::default(), true);
    let stream = pair.publisher();
    for round in 0..8 {
        assert_eq!(pair.closed, None, "after {round}");
        pair.write(stream, &header(0x8000, 0));
    }
    match &pair.closed {
        Some(CloseReason::Peer { code, .. }) => assert_eq!(code.into_inner(), u64::from(CLOSE_PROTOCOL)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_connection_on_which_nothing_authenticates_is_closed_in_time() {
    let mut pair = Pair::new(CoreLimits::default(), true);
    pair.run(Duration::from_secs(9));
    assert_eq!(pair.closed, None);
    pair.run(Duration::from_millis(1_200));
    match &pair.closed {
        Some(CloseReason::Peer { code, .. }) => assert_eq!(code.into_inner(), u64::from(CLOSE_AUTH)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_frame_cut_off_behind_a_whole_one_is_given_up_like_any_other() {
    let mut pair = Pair::new(CoreLimits::default(), true);
    let stream = pair.publisher();
    let mut bytes = publish(1, None, 10);
    bytes.extend_from_slice(&header(Flags::PUBLISH_BATCH.bits(), 1_000));
    bytes.put_u8(0);
    pair.write(stream, &bytes);
    assert_eq!(pair.ack(stream), (1, None));
    pair.run(Duration::from_secs(9));
    assert!(!pair.is_ended(stream));
    pair.run(Duration::from_secs(4));
    assert!(pair.is_ended(stream), "its bytes would be held for ever");
    let other = pair.publisher();
    pair.write(other, &publish(1, None, 10));
    assert_eq!(pair.ack(other), (1, None), "the connection lives");
}

#[test]
fn before_the_catalog_is_read_nobody_is_refused_for_what_is_not_known_yet() {
    let mut pair = Pair::unread(CoreLimits::default());
    pair.run(MS * 20);
    let early = pair.open();
    pair.send(early, &auth(&token("p", &BOTH)));
    assert!(pair.next(early).is_none(), "a start must not look like a wrong token");
    pair.core.handle_admin(pair.now, ToCore::Keys(Credentials::get().keys(1, pair.now, true)));
    pair.run(MS * 20);
    let answer = pair.next(early).expect("an answer");
    assert!(matches!(Message::decode(&answer.payload), Ok(Message::AuthOk(_))), "{answer:?}");
    pair.write(early, &publish(1, None, 10));
    assert_eq!(
        pair.ack(early),
        (1, Some(ErrorCode::ShardUnavailable)),
        "nor like a stream that is not there"
    );
    pair.read_catalog(true);
    pair.write(early, &publish(2, None, 10));
    assert_eq!(pair.ack(early), (2, None));
}

#[test]
fn a_stream_that_waits_for_keys_is_asked_for_once_and_costs_no_turns() {
    let mut pair = Pair::new(CoreLimits::default(), false);
    let stream = pair.open();
    pair.send(stream, &auth(&token("p", &BOTH)));
    assert!(pair.next(stream).is_none());
    assert!(matches!(pair.core.poll_admin(), Some(FromCore::NeedKeys { .. })));
    assert!(pair.core.poll_admin().is_none_or(|m| !matches!(m, FromCore::NeedKeys { .. })));
    pair.core.handle_admin(pair.now, ToCore::Keys(Credentials::get().keys(2, pair.now, true)));
    pair.run(MS * 10);
    let answer = pair.next(stream).expect("an answer");
    assert!(matches!(Message::decode(&answer.payload), Ok(Message::AuthOk(_))));
}

#[test]
fn a_stream_that_waits_for_keys_is_decided_by_the_answer_to_its_own_question() {
    let mut pair = Pair::new(CoreLimits::default(), false);
    let stream = pair.open();
    pair.send(stream, &auth(&token("p", &BOTH)));
    // Made before the question came, or because of another tenant's.
    pair.core.handle_admin(pair.now, ToCore::Keys(Credentials::get().keys(2, pair.now, false)));
    pair.run(MS * 10);
    assert!(pair.next(stream).is_none(), "its key may exist");
    let asked = std::iter::from_fn(|| pair.core.poll_admin());
    assert_eq!(asked.filter(|m| matches!(m, FromCore::NeedKeys { .. })).count(), 1);
    let now = pair.now;
    let none = |version, fetched_at| {
        let mut keys = Keys { version, ..Keys::default() };
        keys.tenants.insert(TENANT.into(), TenantKeys { fetched_at, ..TenantKeys::default() });
        ToCore::Keys(Arc::new(keys))
    };
    pair.core.handle_admin(now, none(3, None));
    pair.run(MS * 10);
    assert!(pair.next(stream).is_none(), "the question failed, which says nothing of the key");
    pair.core.handle_admin(now, none(4, Some(now)));
    pair.run(MS * 10);
    assert_eq!(pair.error(stream).0, ErrorCode::Unauthenticated, "the tenant has no such key");
}

#[test]
fn a_stream_that_waits_for_keys_is_refused_once_its_tenant_is_known_not_to_be_there() {
    let mut pair = Pair::unread(CoreLimits::default());
    pair.run(MS * 20);
    let stream = pair.open();
    pair.send(stream, &auth(&token("p", &BOTH)));
    assert!(pair.next(stream).is_none());
    pair.core.handle_admin(pair.now, ToCore::Routes(Arc::new(Routes::new(1, [], []))));
    pair.run(MS * 10);
    assert_eq!(pair.error(stream).0, ErrorCode::Unauthenticated);
}

#[test]
fn keys_that_do_not_come_are_not_the_tokens_fault() {
    let mut pair = Pair::new(CoreLimits::default(), false);
    let stream = pair.open();
    pair.send(stream, &auth(&token("p", &BOTH)));
    pair.run(Duration::from_secs(6));
    assert_eq!(pair.error(stream), (ErrorCode::Internal, RetryClass::Retry));
    assert!(pair.is_ended(stream));
}

#[test]
fn a_newer_token_replaces_the_rights_of_every_stream_of_its_subject() {
    let mut pair = Pair::new(CoreLimits::default(), true);
    let stream = pair.publisher();
    let (allowed, denied) = ((1, None), (2, Some(ErrorCode::Forbidden)));
    pair.write(stream, &publish(1, None, 10));
    assert_eq!(pair.ack(stream), allowed);
    let narrower = Credentials::get().token_for("p", UNIX_S + 7_200, &["stream.subscribe"]);
    pair.authed(&narrower);
    pair.write(stream, &publish(2, None, 10));
    assert_eq!(pair.ack(stream), denied, "the open stream too");
    let other = token("q", &BOTH);
    let other = pair.authed(&other);
    pair.write(other, &publish(1, None, 10));
    assert_eq!(pair.ack(other), allowed, "another subject keeps its own");
}

#[test]
fn nothing_is_published_under_a_token_that_ran_out() {
    let mut pair = Pair::new(CoreLimits::default(), true);
    let short = Credentials::get().token("p", UNIX_S + 2);
    let stream = pair.authed(&short);
    pair.run(Duration::from_millis(6_800));
    pair.write(stream, &publish(1, None, 10));
    assert_eq!(pair.ack(stream), (1, None), "within the leeway");
    pair.run(Duration::from_millis(300));
    pair.write(stream, &publish(2, None, 10));
    assert_eq!(pair.ack(stream), (2, Some(ErrorCode::Unauthenticated)));
    pair.run(Duration::from_secs(3));
    assert!(matches!(&pair.closed, Some(CloseReason::Peer { .. })), "nobody is left on it");
}

#[test]
fn a_keyed_publish_routed_by_another_width_is_refused_until_the_declaration_is_right() {
    let mut pair = Pair::new(CoreLimits::default(), true);
    let stream = pair.publisher();
    let declare = |shards, routing| {
        let width = PublishWidth {
            tenant_id: TENANT.into(),
            namespace: NAMESPACE.into(),
            stream: "s".into(),
            shards,
            routing,
        };
        Message::PublishWidth(width)
    };
    for (request, shards, routing, code) in [
        (1, 3, KeyMapping::JumpHash, Some(ErrorCode::StaleWidth)),
        (2, 2, KeyMapping::Modulo, Some(ErrorCode::StaleWidth)),
        (3, 2, KeyMapping::JumpHash, None),
    ] {
        pair.send(stream, &declare(shards, routing));
        pair.write(stream, &publish(request, Some(b"k"), 10));
        assert_eq!(pair.ack(stream), (request, code));
    }
    pair.send(stream, &declare(9, KeyMapping::Modulo));
    pair.write(stream, &publish(4, None, 10));
    assert_eq!(pair.ack(stream), (4, None), "without a key there is nothing to route");
}

#[test]
fn an_unfinished_frame_over_the_bound_waits_for_the_one_that_may_finish() {
    let limits = CoreLimits { partial_frame_bytes_max: 40_000, ..CoreLimits::default() };
    let mut pair = Pair::new(limits, true);
    let streams: Vec<StreamId> = (0..3).map(|_| pair.publisher()).collect();
    let frames: Vec<BytesMut> = (0..3).map(|_| publish(1, None, 60_000)).collect();
    for (stream, frame) in streams.iter().zip(&frames) {
        pair.write(*stream, &frame[..30_000]);
    }
    for (stream, frame) in streams.iter().zip(&frames) {
        pair.write(*stream, &frame[30_000..]);
    }
    for stream in &streams {
        assert_eq!(pair.ack(*stream), (1, None), "every one of them finishes");
    }
}

#[test]
fn a_quiet_stream_does_not_keep_the_turn_to_finish_from_the_others() {
    let limits = CoreLimits { partial_frame_bytes_max: 40_000, ..CoreLimits::default() };
    let mut pair = Pair::new(limits, true);
    let quiet = pair.publisher();
    let (first, second) = (pair.publisher(), pair.publisher());
    let large = publish(1, None, 60_000);
    pair.write(first, &large[..50_000]);
    // Over the bound now: whoever is read next has the turn, and has nothing more to say.
    pair.write(quiet, &publish(1, None, 1));
    pair.write(second, &large);
    pair.write(first, &large[50_000..]);
    for stream in [quiet, first, second] {
        assert_eq!(pair.ack(stream), (1, None));
    }
}

#[test]
fn credit_for_held_streams_is_bounded_and_leaves_half_of_the_budget_to_new_connections() {
    const MIB: usize = 1 << 20;
    let limits = CoreLimits { windows_bytes_max: 400 * MIB, ..CoreLimits::default() };
    let (base, stream) = (limits.conn_window as usize, limits.stream_window as usize);
    assert_eq!(window_with_held(0, 0, &limits), base);
    assert_eq!(window_with_held(3, 0, &limits), base + 3 * stream);
    assert_eq!(window_with_held(1_000, 0, &limits), base + HELD_CREDIT_STREAMS_MAX * stream);
    assert_eq!(window_with_held(12, 180 * MIB, &limits), 20 * MIB);
    assert_eq!(window_with_held(12, 390 * MIB, &limits), base, "what it was granted stays");
}
