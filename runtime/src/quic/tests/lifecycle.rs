//! How connections end: closes, silence, reused slots.

use super::*;

fn code(value: u32) -> VarInt {
    VarInt::from_u32(value)
}

#[test]
fn a_close_reaches_the_peer_with_code_and_reason_and_is_the_last_event() {
    let mut pair = Pair::new();
    let (ours, theirs) = pair.connected();
    let now = pair.now();
    pair.server.quic.close(now, theirs, code(3), Bytes::from_static(b"over"));
    pair.server.quic.close(now, theirs, code(4), Bytes::new());
    let (key, reason) = pair.wait(SECOND, |pair| pair.client.closed());
    assert_eq!(key, ours);
    assert_eq!(reason, CloseReason::Peer { code: code(3), reason: Bytes::from_static(b"over") });
    pair.run_for(10 * SECOND);
    assert_eq!(pair.server.take_events(), [(theirs, QuicEvent::Closed { reason: CloseReason::Local })]);
    assert_eq!(pair.client.take_events(), []);
    assert_eq!((pair.client.quic.connection_count(), pair.server.quic.connection_count()), (0, 0));
    assert_eq!(pair.client.quic.next_timeout(), None, "nothing is left of it");
    assert_eq!(pair.server.quic.next_timeout(), None);
}

#[test]
fn bytes_that_came_before_a_close_can_still_be_read() {
    let mut pair = Pair::new();
    let (ours, theirs) = pair.connected();
    let stream = pair.client.quic.open_uni(ours).unwrap();
    pair.client.quic.write(ours, stream, &mut Bytes::from_static(b"last words"));
    pair.settle();
    let now = pair.now();
    pair.client.quic.close(now, ours, code(0), Bytes::new());
    pair.settle();
    // Both arrive together; the events are taken one by one.
    let at = pair.net.next_delivery().unwrap();
    pair.clock.advance_to(at);
    while let Some(delivery) = pair.net.poll(at) {
        pair.server.quic.handle_datagram(at, delivery.from, None, None, delivery.bytes);
    }
    let mut events = Vec::new();
    let mut read = None;
    while let Some((key, event)) = pair.server.quic.poll_event() {
        if event == (QuicEvent::Readable { stream }) {
            read = Some(pair.server.quic.read(key, stream, 100));
        }
        events.push(event);
    }
    assert_eq!(read, Some(ReadOutcome::Data(Bytes::from_static(b"last words"))));
    assert!(matches!(events.last(), Some(QuicEvent::Closed { .. })), "{events:?}");
    assert_eq!(pair.server.quic.read(theirs, stream, 100), ReadOutcome::Gone);
}

#[test]
fn no_event_follows_a_close_whatever_still_arrives() {
    let mut pair = Pair::with(settings(), settings(), 5, Faults::rough(MS));
    let ours = pair.connect(&[]);
    let theirs = pair.wait(20 * SECOND, |pair| pair.server.connected());
    for _ in 0..50 {
        let Some(stream) = pair.client.quic.open_bi(ours) else { break };
        pair.client.quic.write(ours, stream, &mut pattern(1, 20_000));
    }
    pair.run_for(3 * MS);
    let now = pair.now();
    pair.server.quic.close(now, theirs, code(1), Bytes::new());
    pair.run_for(60 * SECOND);
    let events = pair.server.take_events();
    let closes = events.iter().filter(|(_, event)| matches!(event, QuicEvent::Closed { .. })).count();
    assert_eq!(closes, 1);
    assert!(matches!(events.last(), Some((_, QuicEvent::Closed { reason: CloseReason::Local }))));
}

#[test]
fn a_silent_connection_ends_when_its_timeout_is_due() {
    let server = QuicSettings { idle_timeout: 7 * SECOND, ..settings() };
    let client = QuicSettings { idle_timeout: 20 * SECOND, ..settings() };
    let mut pair = Pair::with(client, server, 1, Faults::none(MS));
    let (ours, theirs) = pair.connected();
    pair.run_for(SECOND);
    // From here on nothing arrives.
    let (a, b) = (pair.client.addr, pair.server.addr);
    pair.net.cut(a, b);
    pair.net.cut(b, a);
    let start = pair.now();
    let (key, reason) = pair.wait(10 * SECOND, |pair| pair.server.closed());
    assert_eq!((key, reason), (theirs, CloseReason::TimedOut));
    // The last datagram came at some moment within the second before the cut.
    let after = pair.now().saturating_since(start);
    assert!(after > 6 * SECOND && after <= 7 * SECOND, "after {after:?}");
    assert_eq!(pair.wait(10 * SECOND, |pair| pair.client.closed()), (ours, CloseReason::TimedOut));
}

#[test]
fn the_idle_timeout_is_exact_to_the_nanosecond() {
    let quiet = QuicSettings { idle_timeout: 5 * SECOND, mtu_upper_bound: 1_200, ..settings() };
    let mut pair = Pair::with(quiet.clone(), quiet, 1, Faults::none(MS));
    pair.trace = Some(Vec::new());
    pair.connected();
    let server = pair.server.addr;
    let limit = 10 * SECOND;
    pair.wait(limit, |pair| pair.server.closed());
    let trace = pair.trace.take().unwrap();
    // The idle timer restarts with a datagram received and with the first one sent after that.
    let last = |from_server: bool| {
        let sent = trace.iter().filter(|(_, from, _)| (*from == server) == from_server);
        sent.map(|(at, ..)| *at).max().unwrap()
    };
    let received = last(false) + MS;
    let expected = received.max(last(true)) + 5 * SECOND;
    assert!(pair.now() == expected || pair.now() == received + 5 * SECOND, "{} {expected}", pair.now());
}

#[test]
fn keep_alives_hold_a_silent_connection() {
    let client = QuicSettings { keep_alive: Some(2 * SECOND), ..settings() };
    let server = QuicSettings { idle_timeout: 6 * SECOND, ..settings() };
    let mut pair = Pair::with(client, server, 1, Faults::none(MS));
    let (ours, _) = pair.connected();
    pair.run_for(600 * SECOND);
    assert_eq!((pair.client.closed(), pair.server.closed()), (None, None));
    assert!(pair.client.quic.stats(ours).is_some());
}

#[test]
fn a_connection_to_nobody_ends_by_its_timeout() {
    let mut pair = Pair::new();
    let (a, b) = (pair.client.addr, pair.server.addr);
    pair.net.cut(a, b);
    let ours = pair.connect(&[]);
    let closed = pair.wait(60 * SECOND, |pair| pair.client.closed());
    assert_eq!(closed, (ours, CloseReason::TimedOut));
    assert_eq!(pair.client.quic.connection_count(), 0);
}

#[test]
fn a_reused_slot_is_another_key() {
    let mut pair = Pair::new();
    let (old_ours, old_theirs) = pair.connected();
    let now = pair.now();
    pair.client.quic.close(now, old_ours, code(0), Bytes::new());
    pair.run_for(10 * SECOND);
    pair.client.take_events();
    pair.server.take_events();
    let (ours, theirs) = pair.connected();
    assert_eq!((ours.slot(), theirs.slot()), (old_ours.slot(), old_theirs.slot()), "slots are reused");
    assert_ne!(ours, old_ours);
    assert_ne!(theirs, old_theirs);
    assert_eq!(pair.client.quic.open_uni(old_ours), None);
    assert_eq!(pair.client.quic.remote_address(old_ours), None);
    let now = pair.now();
    pair.client.quic.close(now, old_ours, code(0), Bytes::new());
    assert!(pair.client.quic.open_uni(ours).is_some(), "the old key closed nothing");
}

#[test]
fn a_thousand_short_connections_leave_nothing_behind() {
    let mut pair = Pair::with(settings(), settings(), 3, Faults::none(MS / 10));
    for round in 0..100 {
        let mut keys: Vec<_> = (0..10).map(|_| pair.connect(&[])).collect();
        pair.wait(SECOND, |pair| {
            while let Some(key) = pair.client.connected() {
                let now = pair.now();
                pair.client.quic.close(now, key, code(round), Bytes::new());
                keys.retain(|other| *other != key);
            }
            keys.is_empty().then_some(())
        });
        pair.run_for(SECOND);
    }
    pair.run_for(10 * SECOND);
    assert_eq!((pair.client.quic.connection_count(), pair.server.quic.connection_count()), (0, 0));
    let used = |node: &Node| node.quic.slots.iter().filter(|slot| slot.is_some()).count();
    assert_eq!((used(&pair.client), used(&pair.server)), (0, 0));
    assert!(pair.server.quic.slots.len() <= 20, "slots are reused: {}", pair.server.quic.slots.len());
    assert!(!pair.client.quic.has_work() && !pair.server.quic.has_work());
}

#[test]
fn a_restarted_server_resets_the_connections_it_forgot() {
    let mut pair = Pair::new();
    let (ours, _) = pair.connected();
    let restarted = QuicSettings { seed: Some([77; 32]), ..settings() };
    let tls = Some(pair.identity.server());
    pair.server.quic = Quic::new(restarted, tls, pair.server.quic.zero).unwrap();
    let stream = pair.client.quic.open_uni(ours).unwrap();
    pair.client.quic.write(ours, stream, &mut pattern(1, 10_000));
    assert_eq!(pair.wait(SECOND, |pair| pair.client.closed()), (ours, CloseReason::Reset));
}
