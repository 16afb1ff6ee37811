//! Datagrams nobody honest sends.

use super::*;
use crate::sim::SimRng;

/// Gives `bytes` to both sides as if the other had sent them.
fn inject(pair: &mut Pair, bytes: &[u8]) {
    let now = pair.now();
    let (a, b) = (pair.client.addr, pair.server.addr);
    pair.server.quic.handle_datagram(now, a, None, Some(1), BytesMut::from(bytes));
    pair.client.quic.handle_datagram(now, b, None, None, BytesMut::from(bytes));
    pair.settle();
}

/// The connection still carries bytes.
fn works(pair: &mut Pair, ours: ConnKey, theirs: ConnKey) {
    let stream = pair.client.quic.open_uni(ours).expect("the connection is alive");
    pair.client.quic.write(ours, stream, &mut Bytes::from_static(b"alive"));
    pair.client.quic.finish(ours, stream);
    let mut got = Vec::new();
    pair.wait(30 * SECOND, |pair| {
        pair.server.read_all(theirs, stream, &mut got);
        (got == b"alive").then_some(())
    });
}

#[test]
fn random_datagrams_change_nothing() {
    let mut pair = Pair::new();
    let (ours, theirs) = pair.connected();
    let mut rng = SimRng::new(99);
    for round in 0..3_000u64 {
        let mut bytes = vec![0; rng.below(1_500) as usize];
        rng.fill(&mut bytes);
        if round % 3 == 0 && bytes.len() > 6 {
            // A long header of a version we speak, so that it gets past the first look.
            bytes[0] |= 0xc0;
            bytes[1..5].copy_from_slice(&[0, 0, 0, 1]);
            bytes[5] = 8;
        }
        inject(&mut pair, &bytes);
    }
    works(&mut pair, ours, theirs);
    assert_eq!(pair.server.quic.connection_count(), 1);
}

#[test]
fn real_datagrams_cut_short_or_damaged_change_nothing() {
    let mut pair = Pair::new();
    pair.trace = Some(Vec::new());
    let (ours, theirs) = pair.connected();
    let stream = pair.client.quic.open_bi(ours).unwrap();
    pair.client.quic.write(ours, stream, &mut pattern(1, 5_000));
    pair.run_for(SECOND);
    let trace = pair.trace.take().unwrap();
    let mut rng = SimRng::new(7);
    for (_, _, datagram) in &trace {
        for _ in 0..20 {
            let cut = rng.below(datagram.len() as u64) as usize;
            inject(&mut pair, &datagram[..cut]);
            let mut damaged = datagram.clone();
            for _ in 0..=rng.below(3) {
                let at = rng.below(damaged.len() as u64) as usize;
                damaged[at] ^= 1 << rng.below(8);
            }
            inject(&mut pair, &damaged);
        }
    }
    works(&mut pair, ours, theirs);
}

#[test]
fn datagrams_played_back_later_change_nothing() {
    let mut pair = Pair::new();
    pair.trace = Some(Vec::new());
    let (ours, theirs) = pair.connected();
    let stream = pair.client.quic.open_uni(ours).unwrap();
    pair.client.quic.write(ours, stream, &mut pattern(1, 50_000));
    pair.run_for(SECOND);
    let trace = pair.trace.take().unwrap();
    for (_, _, datagram) in trace.iter().chain(trace.iter().rev()) {
        inject(&mut pair, datagram);
    }
    works(&mut pair, ours, theirs);
    let mut got = Vec::new();
    pair.server.read_all(theirs, stream, &mut got);
    assert!(got == pattern(1, 50_000), "each byte once");
}

#[test]
fn a_flood_of_first_packets_is_bounded_and_forgotten() {
    let server = QuicSettings { max_connections: 50, retry_above_handshakes: 20, ..settings() };
    let mut pair = Pair::with(settings(), server, 1, Faults::none(MS));
    // Hellos from addresses that never answer.
    let mut hellos = Vec::new();
    pair.trace = Some(Vec::new());
    let (a, b) = (pair.client.addr, pair.server.addr);
    pair.net.cut(a, b);
    for _ in 0..300 {
        pair.connect(&[]);
    }
    pair.settle();
    for (_, _, datagram) in pair.trace.take().unwrap() {
        hellos.push(datagram);
    }
    assert!(hellos.len() >= 300);
    let now = pair.now();
    for (number, hello) in hellos.iter().enumerate() {
        let from = SocketAddr::from(([192, 0, 2, 1], 1_000 + number as u16));
        pair.server.quic.handle_datagram(now, from, None, None, BytesMut::from(&hello[..]));
    }
    let used = |node: &Node| node.quic.slots.iter().filter(|slot| slot.is_some()).count();
    assert_eq!(used(&pair.server), 20, "the others must prove their address first");
    assert_eq!(pair.server.quic.refused().retried, hellos.len() as u64 - 20);
    pair.run_for(60 * SECOND);
    assert_eq!(used(&pair.server), 0, "handshakes nobody finishes time out");
    assert_eq!(pair.server.take_events(), []);
}

#[test]
fn an_unknown_version_is_answered_with_ours_only_when_padded() {
    let mut pair = Pair::new();
    let mut probe = vec![0xc0, 0x1a, 0x2a, 0x3a, 0x4a, 8];
    probe.extend_from_slice(&[1; 8]);
    probe.push(8);
    probe.extend_from_slice(&[2; 8]);
    let mut batch = Transmits::new(4);
    let (now, from) = (pair.now(), pair.client.addr);
    pair.server.quic.handle_datagram(now, from, None, None, BytesMut::from(&probe[..]));
    assert_eq!(pair.server.quic.poll_transmit(now, &mut batch), 0, "a small probe gets no answer");
    probe.resize(1_200, 0);
    pair.server.quic.handle_datagram(now, from, None, None, BytesMut::from(&probe[..]));
    assert_eq!(pair.server.quic.poll_transmit(now, &mut batch), 1);
    let answer = batch.front().unwrap();
    assert_eq!((answer.remote, &answer.contents[1..5]), (from, &[0u8; 4][..]));
}
