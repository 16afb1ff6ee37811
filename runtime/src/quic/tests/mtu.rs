//! Path MTU: discovery, black holes, and first guesses that are large for the initial window.

use super::*;

/// Transport settings no checked setting can ask for: a first guess of `initial_mtu`.
fn unchecked(initial_mtu: u16, upper_bound: u16) -> Arc<quinn_proto::TransportConfig> {
    let mut discovery = quinn_proto::MtuDiscoveryConfig::default();
    discovery.upper_bound(upper_bound);
    let mut transport = settings().transport();
    transport.initial_mtu(initial_mtu).mtu_discovery_config(Some(discovery));
    Arc::new(transport)
}

/// A pair in which both sides guess `initial_mtu`. The congestion window starts at 12,000 bytes.
fn guessing(initial_mtu: u16, upper_bound: u16, faults: Faults) -> Pair {
    let identity = Identity::new();
    let zero = Instant::now();
    let settings = QuicSettings { max_udp_payload: UDP_PAYLOAD_MAX, ..settings() };
    let transport = unchecked(initial_mtu, upper_bound);
    let tls = Some(identity.server());
    let server = Quic::with_transport(settings.clone(), Arc::clone(&transport), tls, zero).unwrap();
    let client = Quic::with_transport(settings, transport, None, zero).unwrap();
    Pair::join(client, server, identity, SimNet::new(1, faults))
}

/// 8 MiB from client to server, one 8-byte answer per 256 KiB, as the measurements did.
fn upload(pair: &mut Pair, limit: Duration) -> Duration {
    let (ours, theirs) = pair.connected();
    pair.server.quic.set_receive_window(theirs, 16 << 20);
    let stream = pair.client.quic.open_bi(ours).unwrap();
    let start = pair.now();
    let mut left = pattern(1, 8 << 20);
    let (mut got, mut answered, mut answers) = (0, 0, Vec::new());
    pair.wait(limit, |pair| {
        pair.client.quic.write(ours, stream, &mut left);
        let mut chunks = Vec::new();
        got += pair.server.quic.read_into(theirs, stream, usize::MAX, &mut chunks).0;
        while answered < got / (256 << 10) {
            answered += 1;
            pair.server.quic.write(theirs, stream, &mut Bytes::from_static(b"8 bytes."));
        }
        pair.client.read_all(ours, stream, &mut answers);
        (answers.len() == 32 * 8).then_some(())
    });
    pair.now().saturating_since(start)
}

#[test]
fn a_first_guess_of_8900_with_a_12000_byte_window_does_not_stall() {
    // One packet fills the window, so the first one waits for the peer's acknowledgement delay of 25 ms: it has
    // seen one packet and is allowed to wait for a second. After that the window grows. Path probes, where there
    // are any, are that second packet.
    for initial in [1_200, 5_000, 8_900, 11_000] {
        for upper_bound in [initial, 16_000, 65_507] {
            for delay in [Duration::from_micros(15), MS] {
                let mut pair = guessing(initial, upper_bound, Faults::none(delay));
                let took = upload(&mut pair, 30 * SECOND);
                assert!(took < 50 * MS, "{initial} to {upper_bound} over {delay:?}: took {took:?}");
            }
        }
    }
}

#[test]
fn a_first_guess_of_8900_survives_a_rough_network() {
    let mut pair = guessing(8_900, 8_900, Faults::rough(MS));
    upload(&mut pair, 600 * SECOND);
}

#[test]
fn discovery_reaches_the_upper_bound_on_a_path_that_carries_it() {
    let large = QuicSettings { mtu_upper_bound: 8_900, max_udp_payload: 8_900, ..settings() };
    let mut pair = Pair::with(large.clone(), large, 1, Faults::none(MS));
    let (ours, theirs) = pair.connected();
    pair.run_for(5 * SECOND);
    for mtu in [pair.client.quic.stats(ours).unwrap().mtu, pair.server.quic.stats(theirs).unwrap().mtu] {
        assert!((8_860..=8_900).contains(&mtu), "{mtu}");
    }
}

#[test]
fn discovery_stops_below_what_the_path_carries() {
    let large = QuicSettings { mtu_upper_bound: 8_900, ..settings() };
    let mut pair = Pair::with(large.clone(), large, 1, Faults { mtu: 1_452, ..Faults::none(MS) });
    let (ours, _) = pair.connected();
    pair.run_for(10 * SECOND);
    let stats = pair.client.quic.stats(ours);
    let mtu = stats.map(|stats| stats.mtu);
    assert!(mtu.is_some_and(|mtu| (1_400..=1_452).contains(&mtu)), "{stats:?}");
}

#[test]
fn trains_never_exceed_what_one_send_takes() {
    for upper_bound in [1_200, 8_900, 65_507] {
        let large = QuicSettings { mtu_upper_bound: upper_bound, max_udp_payload: 65_507, ..settings() };
        let mut pair = Pair::with(large.clone(), large, 1, Faults::none(MS));
        let (ours, theirs) = pair.connected();
        pair.server.quic.set_receive_window(theirs, 64 << 20);
        let stream = pair.client.quic.open_uni(ours).unwrap();
        let (mut batch, mut largest) = (Transmits::new(64), 0);
        for _ in 0..200 {
            pair.client.quic.write(ours, stream, &mut pattern(1, 1 << 20));
            let now = pair.now();
            pair.client.quic.poll_transmit(now, &mut batch);
            for transmit in batch.iter() {
                assert!(transmit.contents.len() <= TRAIN_BYTES_MAX, "{}", transmit.contents.len());
                assert!(transmit.datagrams().count() <= SEGMENTS_MAX);
                largest = largest.max(transmit.contents.len());
                for datagram in transmit.datagrams() {
                    pair.net.send(now, pair.client.addr, transmit.remote, datagram);
                }
            }
            batch.clear();
            pair.step();
            let mut chunks = Vec::new();
            pair.server.quic.read_into(theirs, stream, usize::MAX, &mut chunks);
        }
        assert!(largest > 60_000, "trains are long: {largest} at {upper_bound}");
    }
}
