//! Handshakes: ALPN, certificates, cores, limits.

use super::*;

#[test]
fn a_client_that_offers_no_alpn_is_served() {
    let mut pair = Pair::new();
    let ours = pair.connect(&[]);
    let theirs = pair.wait(SECOND, |pair| pair.server.connected());
    assert_eq!(pair.wait(SECOND, |pair| pair.client.connected()), ours);
    assert_eq!((pair.client.quic.connection_count(), pair.server.quic.connection_count()), (1, 1));
    assert_eq!(pair.server.quic.remote_address(theirs), Some(pair.client.addr));
    assert_eq!(pair.client.quic.peer_certificates(ours), Some(pair.identity.chain.clone()));
    assert_eq!(pair.server.quic.peer_certificates(theirs), None);
}

#[test]
fn a_client_that_offers_our_alpn_among_others_is_served_with_it() {
    let mut pair = Pair::new();
    // A TLS client over QUIC gives up when it offered protocols and none was selected.
    pair.connect(&[b"h3", CLIENT_ALPN]);
    pair.wait(SECOND, |pair| pair.client.connected());
    pair.wait(SECOND, |pair| pair.server.connected());
}

#[test]
fn a_client_that_offers_only_other_protocols_gets_alert_120() {
    let mut pair = Pair::new();
    pair.connect(&[b"h3"]);
    let (_, reason) = pair.wait(SECOND, |pair| pair.client.closed());
    assert_eq!(reason.tls_alert(), Some(120), "{reason:?}");
    pair.run_for(SECOND);
    assert_eq!(pair.server.take_events(), [], "nobody hears of a failed handshake");
    assert_eq!(pair.server.quic.refused().failed, 1);
}

#[test]
fn a_hello_over_several_packets_is_understood() {
    let long = [b'x'; 200];
    let mut offers: Vec<&[u8]> = vec![&long; 20];
    offers.push(CLIENT_ALPN);
    let mut pair = Pair::new();
    pair.connect(&offers);
    pair.wait(SECOND, |pair| pair.client.connected());
    // And one whose packets arrive in any order, with losses.
    let mut pair = Pair::with(settings(), settings(), 11, Faults::rough(MS));
    pair.connect(&offers);
    pair.wait(20 * SECOND, |pair| pair.client.connected());
}

#[test]
fn a_certificate_nobody_trusts_ends_the_handshake_on_both_sides() {
    let mut pair = Pair::new();
    let stranger = Identity::new().client(&[]);
    pair.connect_with(stranger, None);
    let (_, reason) = pair.wait(SECOND, |pair| pair.client.closed());
    assert!(reason.tls_alert().is_some(), "{reason:?}");
    pair.run_for(SECOND);
    assert_eq!(pair.server.take_events(), []);
    assert_eq!(pair.server.quic.refused().failed, 1);
    assert_eq!(pair.server.quic.connection_count(), 0);
}

#[test]
fn every_datagram_of_a_connection_maps_to_the_core_it_asked_for() {
    let server = QuicSettings { core: 5, cores: 8, ..settings() };
    let client = QuicSettings { core: 1, cores: 3, ..settings() };
    let mut pair = Pair::with(client, server, 1, Faults::none(MS));
    pair.trace = Some(Vec::new());
    let tls = pair.identity.client(&[]);
    let ours = pair.connect_with(tls, Some(5));
    pair.wait(SECOND, |pair| pair.server.connected());
    let stream = pair.client.quic.open_uni(ours).unwrap();
    pair.client.quic.write(ours, stream, &mut pattern(1, 100_000));
    pair.run_for(SECOND);
    let trace = pair.trace.take().unwrap();
    assert!(trace.len() > 50);
    for (_, from, datagram) in trace {
        let (core, cores) = if from == pair.client.addr { (5, 8) } else { (1, 3) };
        assert_eq!(Quic::core_of_datagram(&datagram, cores), Some(core));
    }
}

#[test]
fn a_core_that_does_not_fit_one_byte_is_refused() {
    let mut pair = Pair::new();
    let (now, server, tls) = (pair.now(), pair.server.addr, pair.identity.client(&[]));
    let error = pair.client.quic.connect(now, tls, server, "localhost", Some(256)).unwrap_err();
    assert!(matches!(error, ConnectError::NoSuchCore(256)), "{error}");
}

#[test]
fn new_certificates_are_for_new_connections_only() {
    let mut pair = Pair::new();
    let (ours, _) = pair.connected();
    let second = Identity::new();
    pair.server.quic.set_server_tls(&second.server()).unwrap();

    let old_client = pair.connect(&[]);
    let (failed, _) = pair.wait(SECOND, |pair| pair.client.closed());
    assert_eq!(failed, old_client, "a client that trusts the old certificate only");

    let new_client = pair.connect_with(second.client(&[]), None);
    assert_eq!(pair.wait(SECOND, |pair| pair.client.connected()), new_client);

    let stream = pair.client.quic.open_uni(ours).unwrap();
    pair.client.quic.write(ours, stream, &mut Bytes::from_static(b"still here"));
    pair.wait(SECOND, |pair| pair.server.opened());
}

#[test]
fn a_machine_that_refuses_new_connections_says_so_and_keeps_the_old_ones() {
    let mut pair = Pair::new();
    let (ours, _) = pair.connected();
    pair.server.quic.refuse_new(true);
    let refused = pair.connect(&[]);
    let (key, reason) = pair.wait(SECOND, |pair| pair.client.closed());
    assert_eq!(key, refused);
    assert!(matches!(reason, CloseReason::PeerTransport { code: CloseReason::REFUSED, .. }), "{reason:?}");
    assert_eq!(pair.server.quic.refused().closing, 1);
    assert!(pair.client.quic.open_uni(ours).is_some());
    pair.server.quic.refuse_new(false);
    pair.connect(&[]);
    pair.wait(SECOND, |pair| pair.client.connected());
}

#[test]
fn connections_over_the_limits_are_refused_and_counted_by_reason() {
    let server = QuicSettings { max_connections: 2, ..settings() };
    let mut pair = Pair::with(settings(), server, 1, Faults::none(MS));
    for _ in 0..2 {
        pair.connected();
    }
    pair.connect(&[]);
    pair.wait(SECOND, |pair| pair.client.closed());
    assert_eq!(pair.server.quic.refused().full, 1);

    let server = QuicSettings { max_connections_per_ip: Some(1), ..settings() };
    let mut pair = Pair::with(settings(), server, 1, Faults::none(MS));
    let (first, _) = pair.connected();
    pair.connect(&[]);
    pair.wait(SECOND, |pair| pair.client.closed());
    assert_eq!(pair.server.quic.refused().per_ip, 1);
    // The place of a closed connection is free again once it drained.
    let now = pair.now();
    pair.client.quic.close(now, first, VarInt::from_u32(0), Bytes::new());
    pair.run_for(5 * SECOND);
    pair.client.take_events();
    pair.connect(&[]);
    pair.wait(SECOND, |pair| pair.client.connected());
}

#[test]
fn a_crowded_server_asks_newcomers_to_prove_their_address() {
    let server = QuicSettings { retry_above_handshakes: 0, ..settings() };
    let mut pair = Pair::with(settings(), server, 1, Faults::none(MS));
    pair.connect(&[]);
    pair.wait(SECOND, |pair| pair.client.connected());
    pair.wait(SECOND, |pair| pair.server.connected());
    assert_eq!(pair.server.quic.refused().retried, 1);
}

#[test]
fn a_retry_token_of_one_core_is_good_on_another_and_useless_under_another_key() {
    for (token_key, served) in [([2; KEY_BYTES], true), ([3; KEY_BYTES], false)] {
        let crowded = QuicSettings { retry_above_handshakes: 0, ..settings() };
        let mut pair = Pair::with(settings(), crowded.clone(), 1, Faults::none(MS));
        pair.connect(&[]);
        pair.settle();
        // The first core answers with a Retry, then another one takes over.
        pair.step();
        assert_eq!(pair.server.quic.refused().retried, 1);
        let other = QuicSettings { token_key, seed: Some([6; 32]), ..crowded };
        let tls = Some(pair.identity.server());
        pair.server.quic = Quic::new(other, tls, pair.server.quic.zero).unwrap();
        let connected = pair.wait(60 * SECOND, |pair| {
            let closed = pair.client.closed().map(|_| false);
            pair.client.connected().map(|_| true).or(closed)
        });
        assert_eq!(connected, served);
    }
}

#[test]
fn one_seed_gives_one_history_of_sizes_and_times() {
    let history = |seed: u64| {
        let mut pair = Pair::with(settings(), settings(), seed, Faults::rough(MS));
        // Nothing but the TLS bytes may differ, and their sizes do not.
        pair.trace = Some(Vec::new());
        let ours = pair.connect(&[]);
        pair.wait(20 * SECOND, |pair| pair.server.connected());
        pair.wait(20 * SECOND, |pair| pair.client.connected());
        let stream = pair.client.quic.open_uni(ours).unwrap();
        pair.client.quic.write(ours, stream, &mut pattern(1, 200_000));
        pair.run_for(5 * SECOND);
        let trace = pair.trace.take().unwrap();
        trace.into_iter().map(|(at, from, datagram)| (at, from, datagram.len())).collect::<Vec<_>>()
    };
    let first = history(21);
    assert!(first.len() > 40);
    assert_eq!(first, history(21));
    assert_ne!(first, history(22));
}
