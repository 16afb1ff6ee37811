//! Stream bytes: flow control, many streams, losses, stops and resets.

use super::*;

/// Sends `total` patterned bytes both ways at once on one bidirectional stream and checks them.
fn both_ways(pair: &mut Pair, total: usize, limit: Duration) {
    let (ours, theirs) = pair.connected();
    pair.server.quic.set_receive_window(theirs, 8 << 20);
    pair.client.quic.set_receive_window(ours, 8 << 20);
    let stream = pair.client.quic.open_bi(ours).unwrap();
    let (up, down) = (pattern(1, total), pattern(2, total));
    let (mut up_left, mut down_left) = (up.clone(), down.clone());
    let (mut up_got, mut down_got) = (Vec::new(), Vec::new());
    let (mut up_done, mut down_done) = (false, false);
    pair.wait(limit, |pair| {
        pair.client.take_events();
        pair.server.take_events();
        if !up_left.is_empty() {
            pair.client.quic.write(ours, stream, &mut up_left);
            if up_left.is_empty() {
                assert!(pair.client.quic.finish(ours, stream));
            }
        }
        if !down_left.is_empty() {
            pair.server.quic.write(theirs, stream, &mut down_left);
            if down_left.is_empty() {
                assert!(pair.server.quic.finish(theirs, stream));
            }
        }
        up_done |= pair.server.read_all(theirs, stream, &mut up_got) == Some(ReadOutcome::Finished);
        down_done |= pair.client.read_all(ours, stream, &mut down_got) == Some(ReadOutcome::Finished);
        (up_done && down_done).then_some(())
    });
    assert!(up_got == up, "the bytes of the client arrived changed");
    assert!(down_got == down, "the bytes of the server arrived changed");
}

#[test]
fn sixty_four_mebibytes_pass_both_ways() {
    both_ways(&mut Pair::new(), 64 << 20, 60 * SECOND);
}

#[test]
fn a_rough_network_delays_but_changes_nothing() {
    for seed in [1, 2, 3] {
        let mut pair = Pair::with(settings(), settings(), seed, Faults::rough(MS));
        both_ways(&mut pair, 4 << 20, 600 * SECOND);
        assert!(pair.net.counts().lost > 5, "seed {seed}: {:?}", pair.net.counts());
    }
}

#[test]
fn a_thousand_streams_arrive_each_with_its_own_bytes() {
    let server = QuicSettings { conn_window_before_auth: 1 << 20, ..settings() };
    let mut pair = Pair::with(settings(), server, 1, Faults::none(MS));
    let (ours, theirs) = pair.connected();
    let mut sent = std::collections::HashMap::new();
    for number in 0..1_000u64 {
        let stream = pair.client.quic.open_uni(ours).unwrap();
        let bytes = pattern(number, 300);
        let outcome = pair.client.quic.write(ours, stream, &mut bytes.clone());
        assert_eq!(outcome, WriteOutcome { written: 300, state: WriteState::All });
        assert!(pair.client.quic.finish(ours, stream));
        sent.insert(stream, bytes);
    }
    let mut got = std::collections::HashMap::<StreamId, Vec<u8>>::new();
    let mut ended = 0;
    pair.wait(10 * SECOND, |pair| {
        while let Some(stream) = pair.server.find(|_, event| match event {
            QuicEvent::Readable { stream } => Some(*stream),
            _ => None,
        }) {
            let end = pair.server.read_all(theirs, stream, got.entry(stream).or_default());
            ended += usize::from(end == Some(ReadOutcome::Finished));
        }
        (ended == 1_000).then_some(())
    });
    for (stream, bytes) in sent {
        assert!(got[&stream] == bytes, "{stream}");
    }
    let finished = |event: &QuicEvent| matches!(event, QuicEvent::Finished { .. });
    let mut count = 0;
    pair.wait(SECOND, |pair| {
        count += pair.client.take_events().iter().filter(|(_, event)| finished(event)).count();
        (count == 1_000).then_some(())
    });
}

#[test]
fn more_streams_than_allowed_wait_for_those_that_end() {
    let server = QuicSettings { max_uni_streams: 2, ..settings() };
    let mut pair = Pair::with(settings(), server, 1, Faults::none(MS));
    let (ours, theirs) = pair.connected();
    let first = pair.client.quic.open_uni(ours).unwrap();
    assert!(pair.client.quic.open_uni(ours).is_some());
    assert_eq!(pair.client.quic.open_uni(ours), None);
    pair.client.quic.write(ours, first, &mut Bytes::from_static(b"x"));
    pair.client.quic.finish(ours, first);
    pair.wait(SECOND, |pair| {
        let opened = pair.server.opened()?;
        (pair.server.read_all(theirs, opened, &mut Vec::new()) == Some(ReadOutcome::Finished)).then_some(())
    });
    pair.wait(SECOND, |pair| {
        pair.client.find(|_, event| (*event == QuicEvent::StreamsAvailable { dir: Dir::Uni }).then_some(()))
    });
    assert!(pair.client.quic.open_uni(ours).is_some());
}

#[test]
fn an_unread_stream_holds_its_own_window_and_blocks_no_other() {
    let server = QuicSettings { stream_window: 64 << 10, conn_window_before_auth: 256 << 10, ..settings() };
    let mut pair = Pair::with(settings(), server, 1, Faults::none(MS));
    let (ours, theirs) = pair.connected();
    let unread = pair.client.quic.open_uni(ours).unwrap();
    let outcome = pair.client.quic.write(ours, unread, &mut pattern(1, 1 << 20));
    assert_eq!(outcome, WriteOutcome { written: 64 << 10, state: WriteState::Blocked });
    let read = pair.client.quic.open_uni(ours).unwrap();
    let mut left = pattern(2, 1 << 20);
    let mut got = Vec::new();
    pair.wait(10 * SECOND, |pair| {
        pair.client.quic.write(ours, read, &mut left);
        pair.server.read_all(theirs, read, &mut got);
        (got.len() == 1 << 20).then_some(())
    });
    assert!(got == pattern(2, 1 << 20));
    // What the unread stream holds is still there, in order.
    let mut held = Vec::new();
    pair.server.read_all(theirs, unread, &mut held);
    assert!(held == pattern(1, 1 << 20)[..64 << 10]);
}

#[test]
fn a_connection_window_that_is_full_opens_when_raised() {
    let server = QuicSettings { conn_window_before_auth: 10_000, ..settings() };
    let mut pair = Pair::with(settings(), server, 1, Faults::none(MS));
    let (ours, theirs) = pair.connected();
    let stream = pair.client.quic.open_uni(ours).unwrap();
    let mut left = pattern(1, 100_000);
    let outcome = pair.client.quic.write(ours, stream, &mut left);
    assert_eq!(outcome, WriteOutcome { written: 10_000, state: WriteState::Blocked });
    pair.run_for(SECOND);
    pair.client.take_events();
    pair.server.quic.set_receive_window(theirs, 1 << 20);
    pair.wait(SECOND, |pair| {
        pair.client.find(|_, event| (*event == QuicEvent::Writable { stream }).then_some(()))
    });
    let outcome = pair.client.quic.write(ours, stream, &mut left);
    assert_eq!(outcome, WriteOutcome { written: 90_000, state: WriteState::All });
}

#[test]
fn readable_is_said_once_until_a_read_was_blocked() {
    let mut pair = Pair::new();
    let (ours, theirs) = pair.connected();
    let stream = pair.client.quic.open_uni(ours).unwrap();
    for _ in 0..5 {
        pair.client.quic.write(ours, stream, &mut Bytes::from_static(b"12345"));
        pair.run_for(10 * MS);
    }
    let opened = QuicEvent::StreamOpened { stream, dir: Dir::Uni };
    let readable = QuicEvent::Readable { stream };
    assert_eq!(pair.server.take_events(), [(theirs, opened), (theirs, readable.clone())]);
    assert_eq!(pair.server.quic.read(theirs, stream, 3), ReadOutcome::Data(Bytes::from_static(b"123")));
    pair.client.quic.write(ours, stream, &mut Bytes::from_static(b"67890"));
    pair.run_for(10 * MS);
    assert_eq!(pair.server.take_events(), [], "not read to its end yet");
    let mut rest = Vec::new();
    assert_eq!(pair.server.read_all(theirs, stream, &mut rest), None);
    assert_eq!(rest.len(), 27);
    assert_eq!(pair.server.quic.read(theirs, stream, 10), ReadOutcome::Blocked);
    pair.client.quic.finish(ours, stream);
    pair.run_for(10 * MS);
    assert_eq!(pair.server.take_events(), [(theirs, readable)]);
    assert_eq!(pair.server.quic.read(theirs, stream, 10), ReadOutcome::Finished);
    assert_eq!(pair.server.quic.read(theirs, stream, 10), ReadOutcome::Gone);
}

#[test]
fn a_stream_the_reader_stops_is_reset_with_its_code_and_returns_its_credit() {
    let server = QuicSettings { conn_window_before_auth: 100_000, ..settings() };
    let mut pair = Pair::with(settings(), server, 1, Faults::none(MS));
    let (ours, theirs) = pair.connected();
    let stream = pair.client.quic.open_uni(ours).unwrap();
    pair.client.quic.write(ours, stream, &mut pattern(1, 200_000));
    pair.wait(SECOND, |pair| pair.server.opened());
    assert!(pair.server.quic.stop_sending(theirs, stream, VarInt::from_u32(7)));
    assert_eq!(pair.server.quic.read(theirs, stream, 10), ReadOutcome::Gone);
    let stopped = QuicEvent::Stopped { stream, code: VarInt::from_u32(7) };
    pair.wait(SECOND, |pair| pair.client.find(|_, event| (*event == stopped).then_some(())));
    let outcome = pair.client.quic.write(ours, stream, &mut pattern(1, 10));
    assert_eq!((outcome.written, outcome.state), (0, WriteState::Stopped(VarInt::from_u32(7))));
    pair.run_for(SECOND);
    assert!(!pair.client.take_events().iter().any(|(_, event)| *event == QuicEvent::Finished { stream }));
    // The whole connection window is there for another stream.
    let next = pair.client.quic.open_uni(ours).unwrap();
    assert_eq!(pair.client.quic.write(ours, next, &mut pattern(1, 100_000)).state, WriteState::All);
}

#[test]
fn a_reset_stream_tells_its_reader_the_code_once() {
    let mut pair = Pair::new();
    let (ours, theirs) = pair.connected();
    let stream = pair.client.quic.open_uni(ours).unwrap();
    pair.client.quic.write(ours, stream, &mut Bytes::from_static(b"half"));
    pair.wait(SECOND, |pair| pair.server.opened());
    assert!(pair.client.quic.reset(ours, stream, VarInt::from_u32(9)));
    assert!(!pair.client.quic.reset(ours, stream, VarInt::from_u32(9)), "already reset");
    assert!(!pair.client.quic.finish(ours, stream), "a reset stream has no end");
    pair.run_for(100 * MS);
    assert_eq!(pair.server.quic.read(theirs, stream, 10), ReadOutcome::Reset(VarInt::from_u32(9)));
    assert_eq!(pair.server.quic.read(theirs, stream, 10), ReadOutcome::Gone);
}

#[test]
fn streams_that_are_not_there_or_not_ours_are_gone_not_a_panic() {
    let mut pair = Pair::new();
    let (ours, theirs) = pair.connected();
    let uni = pair.client.quic.open_uni(ours).unwrap();
    let from_server = StreamId::new(Side::Server, Dir::Uni, 0);
    let far = StreamId::new(Side::Client, Dir::Bi, 1 << 40);
    for (key, stream) in [(ours, uni), (theirs, from_server), (theirs, far)] {
        let node = if stream == uni { &mut pair.client } else { &mut pair.server };
        assert_eq!(node.quic.read(key, stream, 10), ReadOutcome::Gone);
        assert!(!node.quic.stop_sending(key, stream, VarInt::from_u32(0)));
    }
    for (key, stream) in [(ours, from_server), (ours, far), (theirs, uni)] {
        let node = if stream == uni { &mut pair.server } else { &mut pair.client };
        assert_eq!(node.quic.write(key, stream, &mut pattern(1, 1)).state, WriteState::Gone);
        assert!(!node.quic.finish(key, stream));
        assert!(!node.quic.reset(key, stream, VarInt::from_u32(0)));
    }
}

#[test]
fn connections_share_a_small_batch_fairly() {
    let mut pair = Pair::new();
    let conns: Vec<_> = (0..4).map(|_| pair.connected().0).collect();
    // Path probes under way take from the window.
    pair.run_for(SECOND);
    for key in &conns {
        let stream = pair.client.quic.open_uni(*key).unwrap();
        pair.client.quic.write(*key, stream, &mut pattern(1, 200_000));
    }
    let mut batch = Transmits::new(1);
    let now = pair.now();
    let mut order = Vec::new();
    // One transmit at a time: whoever was served goes to the end of the queue.
    while order.len() < 4 && pair.client.quic.poll_transmit(now, &mut batch) > 0 {
        order.push(batch.front().unwrap().contents[1..9].to_vec());
        batch.clear();
    }
    order.sort();
    order.dedup();
    assert_eq!(order.len(), 4, "four connections, four trains");
    assert!(pair.client.quic.has_work(), "the rest is still to be sent");
}
