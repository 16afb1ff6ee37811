use std::net::{Ipv4Addr, Ipv6Addr, UdpSocket};
use std::time::{Duration, Instant};

use super::*;

const V4: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const V6: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);
const ANY: IpAddr = IpAddr::V6(Ipv6Addr::UNSPECIFIED);

fn bind(ip: IpAddr, cores: u16) -> ReusePortGroup {
    ReusePortGroup::bind(SocketAddr::new(ip, 0), cores, BufferSizes::default()).expect("a free port")
}

fn single(ip: IpAddr) -> UdpIo {
    let group = bind(ip, 1);
    UdpIo::new(group.sockets.into_iter().next().expect("one socket"), DEFAULT_PINNED_BYTES)
}

fn families() -> Vec<IpAddr> {
    if host_has_ipv6() { vec![V4, V6] } else { vec![V4] }
}

/// Receives until `count` datagrams have come.
fn receive(io: &mut UdpIo, count: usize) -> Vec<RecvDatagram> {
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut got = Vec::new();
    while got.len() < count {
        assert!(Instant::now() < deadline, "{} of {count} datagrams came", got.len());
        io.recv(usize::MAX, |datagram| got.push(datagram)).expect("the socket works");
    }
    got
}

fn transmit(remote: SocketAddr, contents: &[u8], segment_size: Option<usize>) -> Transmit<'_> {
    Transmit { remote, local_ip: None, ecn: None, segment_size, contents }
}

fn patterned(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
}

/// `long` decides where the destination connection id starts.
fn datagram_for(cid_byte: u8, long: bool) -> Vec<u8> {
    let mut data = vec![0x40; 32];
    if long {
        data[0] = 0xc0;
    }
    data[if long { 6 } else { 1 }] = cid_byte;
    data
}

#[test]
fn a_datagram_lands_on_the_core_its_connection_id_names() {
    const CORES: u16 = 4;
    let listeners =
        if host_has_ipv6() { vec![(V4, V4), (V6, V6), (ANY, V6), (ANY, V4)] } else { vec![(V4, V4)] };
    for (listen, client) in listeners {
        let group = bind(listen, CORES);
        assert_eq!(group.steering, Steering::Bpf);
        let to = SocketAddr::new(client, group.local_addr.port());
        let mut cores: Vec<UdpIo> =
            group.sockets.into_iter().map(|socket| UdpIo::new(socket, DEFAULT_PINNED_BYTES)).collect();
        for round in 0..3 {
            let sender = UdpSocket::bind((client, 0)).expect("a client port");
            for cid_byte in 0..=255u8 {
                sender.send_to(&datagram_for(cid_byte, cid_byte % 2 == round % 2), to).expect("sent");
            }
            for (core, io) in cores.iter_mut().enumerate() {
                for datagram in receive(io, 64) {
                    let named = crate::quic::Quic::core_of_datagram(&datagram.data, CORES);
                    assert_eq!(named, Some(core as u16), "{listen} round {round}");
                }
            }
        }
        for io in &mut cores {
            let left = io.recv(usize::MAX, |_| ()).expect("the socket works");
            assert_eq!((left.datagrams, left.drained), (0, true));
        }
    }
}

#[test]
fn a_core_that_ends_does_not_move_the_datagrams_of_the_others() {
    let group = bind(V4, 4);
    let to = group.local_addr;
    let mut cores: Vec<UdpIo> =
        group.sockets.into_iter().map(|socket| UdpIo::new(socket, DEFAULT_PINNED_BYTES)).collect();
    drop(cores.remove(0));
    let sender = UdpSocket::bind((V4, 0)).expect("a client port");
    for cid_byte in 0..=255u8 {
        sender.send_to(&datagram_for(cid_byte, false), to).expect("sent");
    }
    for (core, io) in (1..4).zip(&mut cores) {
        assert!(receive(io, 64).iter().all(|datagram| datagram.data[1] % 4 == core));
    }
    drop(cores);
    assert!(ReusePortGroup::bind(to, 1, BufferSizes::default()).is_ok(), "the last core frees the port");
}

#[test]
fn a_datagram_without_a_connection_id_goes_to_core_0() {
    let group = bind(V4, 4);
    let sender = UdpSocket::bind((V4, 0)).expect("a client port");
    sender.send_to(&[0x40], group.local_addr).expect("sent");
    sender.send_to(&[0xc0, 0, 0, 0, 1, 8], group.local_addr).expect("sent");
    let mut first = UdpIo::new(group.sockets.into_iter().next().expect("core 0"), DEFAULT_PINNED_BYTES);
    assert_eq!(receive(&mut first, 2).len(), 2);
}

#[test]
fn trains_of_1_to_64_segments_arrive_as_they_were_cut() {
    for family in families() {
        let (mut from, mut to) = (single(family), single(family));
        let remote = to.local_addr();
        for segments in 1..=64usize {
            for short in [0, 300] {
                let contents = patterned(segments * 1_000 - short);
                let sent = from.send([transmit(remote, &contents, Some(1_000))]);
                assert_eq!((sent.taken, sent.datagrams, sent.failed), (1, segments, 0), "{family}");
                let got = receive(&mut to, segments);
                let (last, whole) = got.split_last().expect("at least one");
                assert!(whole.iter().all(|datagram| datagram.data.len() == 1_000));
                assert_eq!(last.data.len(), 1_000 - short);
                let joined: Vec<u8> = got.iter().flat_map(|datagram| datagram.data.iter().copied()).collect();
                assert_eq!(joined, contents);
                assert!(got.iter().all(|d| d.remote == from.local_addr() && d.local_ip == Some(family)));
            }
        }
        assert!(from.counts().send_calls < 200, "trains go out in one call: {:?}", from.counts());
        assert!(
            to.counts().recv_calls < to.counts().recv_datagrams / 2,
            "trains come in joined: {:?}",
            to.counts()
        );
    }
}

#[test]
fn an_empty_datagram_and_one_of_the_largest_size_arrive() {
    let (mut from, mut to) = (single(V4), single(V4));
    let largest = patterned(65_507);
    for contents in [&[][..], &[1][..], &largest] {
        assert_eq!(from.send([transmit(to.local_addr(), contents, None)]).datagrams, 1);
        assert_eq!(receive(&mut to, 1)[0].data, contents);
    }
}

#[test]
fn a_port_somebody_has_is_an_error_that_names_it() {
    let group = bind(V4, 4);
    let taken = group.local_addr;
    for cores in [1, 4] {
        match ReusePortGroup::bind(taken, cores, BufferSizes::default()) {
            Err(BindError::AddrInUse { ip, port }) => assert_eq!((ip, port), (V4, taken.port())),
            other => panic!("a shared group let somebody else in: {other:?}"),
        }
    }
    let single = bind(V4, 1);
    assert!(matches!(
        ReusePortGroup::bind(single.local_addr, 2, BufferSizes::default()),
        Err(BindError::AddrInUse { .. })
    ));
    drop(group);
    assert!(ReusePortGroup::bind(taken, 4, BufferSizes::default()).is_ok(), "the port is free again");
}

#[test]
fn a_sharing_socket_of_somebody_else_keeps_the_port_from_us() {
    let foreign = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::DGRAM, None).expect("a socket");
    foreign.set_reuse_port(true).expect("SO_REUSEPORT");
    foreign.bind(&SocketAddr::new(V4, 0).into()).expect("a free port");
    let taken = foreign.local_addr().expect("bound").as_socket().expect("IPv4");
    assert!(matches!(
        ReusePortGroup::bind(taken, 4, BufferSizes::default()),
        Err(BindError::AddrInUse { .. })
    ));
}

#[test]
fn all_cores_share_the_port_the_kernel_chose() {
    let group = bind(ANY, 4);
    assert_eq!(group.dual_stack, host_has_ipv6());
    assert_ne!(group.local_addr.port(), 0);
    assert!(group.sockets.iter().all(|socket| socket.local_addr() == group.local_addr));
    assert!(group.granted.recv_bytes > 0 && group.granted.send_bytes > 0);
}

#[test]
fn without_steering_every_core_has_its_own_port() {
    let group =
        ReusePortGroup::bind_per_core(SocketAddr::new(V4, 0), 3, BufferSizes::default()).expect("free ports");
    assert_eq!(group.steering, Steering::PerCorePorts);
    let mut ports: Vec<u16> = group.sockets.iter().map(|socket| socket.local_addr().port()).collect();
    ports.sort_unstable();
    ports.dedup();
    assert_eq!(ports.len(), 3);
    let beyond = ReusePortGroup::bind_per_core(SocketAddr::new(V4, 65_534), 3, BufferSizes::default());
    assert!(matches!(beyond, Err(BindError::NoPorts { port: 65_534, cores: 3 })));
    assert!(matches!(
        ReusePortGroup::bind(SocketAddr::new(V4, 0), 0, BufferSizes::default()),
        Err(BindError::NoCores)
    ));
}

#[test]
fn an_answer_leaves_from_the_address_that_was_called() {
    let called = IpAddr::from([127, 0, 0, 2]);
    let mut server = single(ANY);
    let mut client = single(V4);
    let to = SocketAddr::new(called, server.local_addr().port());
    client.send([transmit(to, b"hello", None)]);
    let got = receive(&mut server, 1).remove(0);
    assert_eq!((got.remote, got.local_ip), (client.local_addr(), Some(called)));
    let answer = Transmit { local_ip: got.local_ip, ..transmit(got.remote, b"hello yourself", None) };
    assert_eq!(server.send([answer]).datagrams, 1);
    assert_eq!(receive(&mut client, 1)[0].remote, to);
}

#[test]
fn ecn_bits_arrive_over_both_families_and_the_dual_stack() {
    let mut pairs = vec![(single(V4), single(V4), V4)];
    if host_has_ipv6() {
        pairs.push((single(V6), single(V6), V6));
        pairs.push((single(ANY), single(ANY), V4));
        pairs.push((single(ANY), single(ANY), V6));
    }
    for (mut from, mut to, ip) in pairs {
        let remote = SocketAddr::new(ip, to.local_addr().port());
        for ecn in [None, Some(1), Some(2), Some(3)] {
            let sent = from.send([Transmit { ecn, ..transmit(remote, &[7; 2_500], Some(1_000)) }]);
            assert_eq!((sent.datagrams, sent.failed), (3, 0));
            assert!(receive(&mut to, 3).iter().all(|datagram| datagram.ecn == ecn), "{ip} {ecn:?}");
        }
    }
}

#[test]
fn datagrams_that_cannot_be_sent_are_counted_and_the_others_go_out() {
    let (mut from, mut to) = (single(V4), single(V4));
    let good = to.local_addr();
    let broadcast = SocketAddr::from(([255, 255, 255, 255], 9));
    let other_family = SocketAddr::new(V6, 9);
    let transmits = [
        transmit(good, b"1", None),
        transmit(SocketAddr::new(V4, 0), b"x", None),
        transmit(good, b"2", None),
        transmit(broadcast, &[0; 300], Some(100)),
        transmit(other_family, b"x", None),
        transmit(good, b"3", None),
    ];
    let outcome = from.send(transmits);
    assert_eq!((outcome.taken, outcome.datagrams, outcome.failed), (6, 3, 5));
    assert!(!outcome.blocked);
    let got: Vec<_> = receive(&mut to, 3).into_iter().map(|datagram| datagram.data).collect();
    assert_eq!(got, [&b"1"[..], b"2", b"3"]);
    let sent = from.send([transmit(good, &[1; 3_000], Some(1_000))]);
    assert_eq!((sent.datagrams, sent.trains_refused), (3, 0), "bad peers did not turn segmentation off");
}

#[test]
fn a_closed_peer_port_does_not_break_the_socket() {
    let mut from = single(V4);
    let gone = single(V4).local_addr();
    for _ in 0..20 {
        from.send([transmit(gone, b"anybody?", None)]);
        from.recv(usize::MAX, |_| ()).expect("an unreachable peer is not an error of the socket");
    }
}

#[test]
fn a_receive_stops_near_its_byte_limit() {
    let (mut from, mut to) = (single(V4), single(V4));
    for _ in 0..20 {
        assert_eq!(from.send([transmit(to.local_addr(), &[1; 50_000], None)]).datagrams, 1);
    }
    let first = to.recv(100_000, |_| ()).expect("the socket works");
    assert_eq!((first.datagrams, first.bytes, first.drained), (2, 100_000, false));
    let rest = to.recv(usize::MAX, |_| ()).expect("the socket works");
    assert_eq!((rest.datagrams, rest.drained), (18, true));
}

#[test]
fn datagrams_others_keep_stay_as_they_are_and_memory_stays_bounded() {
    let group = bind(V4, 1);
    let socket = group.sockets.into_iter().next().expect("one socket");
    let mut to = UdpIo::new(socket, 2 * RECV_CHUNK_BYTES);
    let mut from = single(V4);
    let mut kept = Vec::new();
    for round in 0..200usize {
        let contents = vec![round as u8; 9_000];
        from.send([transmit(to.local_addr(), &contents, Some(1_000))]);
        let mut got = receive(&mut to, 9);
        kept.push(got.swap_remove(round % 9));
    }
    assert!(
        kept.iter()
            .enumerate()
            .all(|(round, d)| d.data.len() == 1_000 && d.data.iter().all(|b| *b == round as u8))
    );
    let copied = to.counts().recv_copied;
    assert!(copied > 0, "200 rounds of 9 kB fill two chunks: {:?}", to.counts());
    kept.clear();
    from.send([transmit(to.local_addr(), &[1; 9_000], Some(1_000))]);
    receive(&mut to, 9);
    assert_eq!(to.counts().recv_copied, copied, "with the chunks free again nothing is copied");
}
