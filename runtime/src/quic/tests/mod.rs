//! Two machines joined by the simulated network, in virtual time.

mod chaos;
mod handshake;
mod hostile;
mod lifecycle;
mod mtu;
mod transfer;

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::*;
use crate::clock::Tick;
use crate::sim::{Faults, SimClock, SimNet};

pub(super) const MS: Duration = Duration::from_millis(1);
pub(super) const SECOND: Duration = Duration::from_secs(1);

/// A certificate for `localhost` that is its own root.
pub(super) struct Identity {
    pub(super) chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

impl Identity {
    pub(super) fn new() -> Identity {
        let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
        let params = rcgen::CertificateParams::new(vec!["localhost".to_string()]).unwrap();
        let certificate = params.self_signed(&key).unwrap();
        Identity {
            chain: vec![certificate.der().clone()],
            key: PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
        }
    }

    pub(super) fn server(&self) -> Arc<rustls::ServerConfig> {
        Arc::new(server_tls(self.chain.clone(), self.key.clone_key()).unwrap())
    }

    pub(super) fn client(&self, alpn: &[&[u8]]) -> Arc<rustls::ClientConfig> {
        Arc::new(client_tls(&self.chain, alpn).unwrap())
    }
}

pub(super) fn settings() -> QuicSettings {
    QuicSettings { seed: Some([5; 32]), ..QuicSettings::new([1; KEY_BYTES], [2; KEY_BYTES]) }
}

/// One machine with its address and what it said.
pub(super) struct Node {
    pub(super) quic: Quic,
    pub(super) addr: SocketAddr,
    pub(super) events: VecDeque<(ConnKey, QuicEvent)>,
    batch: Transmits,
}

impl Node {
    fn new(quic: Quic, addr: SocketAddr) -> Node {
        Node { quic, addr, events: VecDeque::new(), batch: Transmits::new(4) }
    }

    /// One pass: timers, events, datagrams out, until nothing is left.
    pub(super) fn pass(&mut self, now: Tick, net: &mut SimNet, mut tap: impl FnMut(SocketAddr, &[u8])) {
        self.quic.handle_timeouts(now);
        loop {
            while let Some(event) = self.quic.poll_event() {
                self.events.push_back(event);
            }
            self.quic.poll_transmit(now, &mut self.batch);
            for transmit in self.batch.iter() {
                for datagram in transmit.datagrams() {
                    net.send(now, self.addr, transmit.remote, datagram);
                    tap(self.addr, datagram);
                }
            }
            self.batch.clear();
            if !self.quic.has_work() {
                break;
            }
        }
    }

    /// Takes the events seen so far.
    pub(super) fn take_events(&mut self) -> Vec<(ConnKey, QuicEvent)> {
        self.events.drain(..).collect()
    }

    /// Takes the first event that `pick` likes, and leaves the others.
    pub(super) fn find<T>(&mut self, pick: impl Fn(ConnKey, &QuicEvent) -> Option<T>) -> Option<T> {
        let (at, found) = self
            .events
            .iter()
            .enumerate()
            .find_map(|(at, (key, event))| pick(*key, event).map(|found| (at, found)))?;
        self.events.remove(at);
        Some(found)
    }

    pub(super) fn connected(&mut self) -> Option<ConnKey> {
        self.find(|key, event| (*event == QuicEvent::Connected).then_some(key))
    }

    pub(super) fn closed(&mut self) -> Option<(ConnKey, CloseReason)> {
        self.find(|key, event| match event {
            QuicEvent::Closed { reason } => Some((key, reason.clone())),
            _ => None,
        })
    }

    pub(super) fn opened(&mut self) -> Option<StreamId> {
        self.find(|_, event| match event {
            QuicEvent::StreamOpened { stream, .. } => Some(*stream),
            _ => None,
        })
    }

    /// Reads a stream as far as it goes now; the end of it when it was reached.
    pub(super) fn read_all(
        &mut self,
        key: ConnKey,
        stream: StreamId,
        out: &mut Vec<u8>,
    ) -> Option<ReadOutcome> {
        let mut chunks = Vec::new();
        let (_, end) = self.quic.read_into(key, stream, usize::MAX, &mut chunks);
        for chunk in chunks {
            out.extend_from_slice(&chunk);
        }
        end.filter(|end| *end != ReadOutcome::Blocked)
    }
}

/// A client, a server, a network and a clock.
pub(super) struct Pair {
    pub(super) client: Node,
    pub(super) server: Node,
    pub(super) net: SimNet,
    pub(super) clock: SimClock,
    pub(super) identity: Identity,
    /// Every datagram sent: when, by whom, what. Kept only when asked for.
    pub(super) trace: Option<Vec<(Tick, SocketAddr, Vec<u8>)>>,
}

impl Pair {
    pub(super) fn new() -> Pair {
        Pair::with(settings(), settings(), 1, Faults::none(MS))
    }

    pub(super) fn with(client: QuicSettings, server: QuicSettings, seed: u64, faults: Faults) -> Pair {
        let identity = Identity::new();
        let zero = Instant::now();
        let server = Quic::new(server, Some(identity.server()), zero).unwrap();
        let client = Quic::new(client, None, zero).unwrap();
        Pair::join(client, server, identity, SimNet::new(seed, faults))
    }

    pub(super) fn join(client: Quic, server: Quic, identity: Identity, net: SimNet) -> Pair {
        Pair {
            client: Node::new(client, SocketAddr::from(([10, 0, 0, 1], 40_000))),
            server: Node::new(server, SocketAddr::from(([10, 0, 0, 2], 5_000))),
            net,
            clock: SimClock::new(0),
            identity,
            trace: None,
        }
    }

    pub(super) fn now(&self) -> Tick {
        self.clock.now()
    }

    pub(super) fn connect(&mut self, alpn: &[&[u8]]) -> ConnKey {
        let tls = self.identity.client(alpn);
        self.connect_with(tls, None)
    }

    pub(super) fn connect_with(&mut self, tls: Arc<rustls::ClientConfig>, core: Option<u16>) -> ConnKey {
        let (now, server) = (self.now(), self.server.addr);
        self.client.quic.connect(now, tls, server, "localhost", core).unwrap()
    }

    /// A connection both sides know of.
    pub(super) fn connected(&mut self) -> (ConnKey, ConnKey) {
        let ours = self.connect(&[]);
        let theirs = self
            .wait(SECOND, |pair| pair.server.connected().filter(|_| pair.client.quic.stats(ours).is_some()));
        self.wait(SECOND, |pair| pair.client.connected());
        (ours, theirs)
    }

    /// Lets both sides do what they can do now.
    pub(super) fn settle(&mut self) {
        let now = self.clock.now();
        let mut trace = self.trace.take();
        for node in [&mut self.client, &mut self.server] {
            node.pass(now, &mut self.net, |from, datagram| {
                if let Some(trace) = &mut trace {
                    trace.push((now, from, datagram.to_vec()));
                }
            });
        }
        self.trace = trace;
    }

    /// The next moment at which anything happens.
    pub(super) fn next(&mut self) -> Option<Tick> {
        let timeouts = [self.client.quic.next_timeout(), self.server.quic.next_timeout()];
        timeouts.into_iter().flatten().chain(self.net.next_delivery()).min()
    }

    /// Moves time to the next thing that happens and lets it happen. False: nothing ever will.
    pub(super) fn step(&mut self) -> bool {
        self.settle();
        let Some(at) = self.next() else { return false };
        self.clock.advance_to(at);
        let now = self.clock.now();
        while let Some(delivery) = self.net.poll(now) {
            let node = if delivery.to == self.client.addr { &mut self.client } else { &mut self.server };
            if delivery.to == node.addr {
                let local: Option<IpAddr> = Some(delivery.to.ip());
                node.quic.handle_datagram(now, delivery.from, local, None, delivery.bytes);
            }
        }
        self.settle();
        true
    }

    /// Steps until `done` gives something; fails when that takes longer than `limit` of virtual time.
    pub(super) fn wait<T>(&mut self, limit: Duration, mut done: impl FnMut(&mut Pair) -> Option<T>) -> T {
        let deadline = self.now() + limit;
        loop {
            self.settle();
            if let Some(value) = done(self) {
                // What `done` wrote is sent before the next thing happens.
                self.settle();
                return value;
            }
            assert!(self.step(), "nothing will ever happen again, at {}", self.now());
            assert!(self.now() <= deadline, "not done after {limit:?}");
        }
    }

    /// Lets everything happen that happens within `time`.
    pub(super) fn run_for(&mut self, time: Duration) {
        let deadline = self.now() + time;
        self.settle();
        while self.next().is_some_and(|at| at <= deadline) {
            self.step();
        }
        self.clock.advance_to(deadline);
    }
}

/// `len` bytes that differ from place to place and from `salt` to `salt`.
pub(super) fn pattern(salt: u64, len: usize) -> Bytes {
    let mut bytes = BytesMut::zeroed(len);
    crate::sim::SimRng::new(salt).fill(&mut bytes);
    bytes.freeze()
}
