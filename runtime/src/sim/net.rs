//! A network of datagrams with faults. Scope: one per simulation.
//! Owns: datagrams in flight, which links are cut, the chance behind every fault.
//! Invariants: what is delivered, when and in which order follows from the seed and the sends alone; without
//! `reorder_ppm` the datagrams of one direction arrive in the order they were sent; at most `IN_FLIGHT_MAX`
//! datagrams are under way.
//! Not here: sockets; whoever owns an address takes its deliveries.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap};
use std::net::SocketAddr;
use std::time::Duration;

use bytes::BytesMut;
use foldhash::fast::FixedState;

use super::rng::SimRng;
use crate::clock::Tick;

/// Datagrams under way at once; more are lost, as in a full router queue.
pub const IN_FLIGHT_MAX: usize = 1 << 20;

/// What the network does to datagrams. Parts per million are per datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Faults {
    pub loss_ppm: u32,
    pub duplicate_ppm: u32,
    /// Datagrams that may be overtaken; the others keep their order per direction.
    pub reorder_ppm: u32,
    /// Every datagram takes at least this long.
    pub delay: Duration,
    /// And up to this much longer, evenly spread.
    pub jitter: Duration,
    /// Datagrams that take a long-tailed time on top.
    pub tail_ppm: u32,
    /// Median of that time; the longest is 20 times it.
    pub tail: Duration,
    /// Datagrams larger than this are lost: the path's MTU in bytes of UDP payload.
    pub mtu: usize,
}

impl Faults {
    /// A perfect network in which everything takes `delay`.
    pub const fn none(delay: Duration) -> Faults {
        Faults {
            loss_ppm: 0,
            duplicate_ppm: 0,
            reorder_ppm: 0,
            delay,
            jitter: Duration::ZERO,
            tail_ppm: 0,
            tail: Duration::ZERO,
            mtu: usize::MAX,
        }
    }

    /// A bad but working network: 2 % loss, 1 % duplicates, 5 % reordering, 1 % late by up to 20 times `delay`.
    pub const fn rough(delay: Duration) -> Faults {
        Faults {
            loss_ppm: 20_000,
            duplicate_ppm: 10_000,
            reorder_ppm: 50_000,
            delay,
            jitter: delay,
            tail_ppm: 10_000,
            tail: delay,
            mtu: usize::MAX,
        }
    }
}

/// A datagram that arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    pub at: Tick,
    pub from: SocketAddr,
    pub to: SocketAddr,
    pub bytes: BytesMut,
}

/// What became of the datagrams so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NetCounts {
    pub sent: u64,
    pub delivered: u64,
    /// By chance, size or a full network.
    pub lost: u64,
    pub duplicated: u64,
    /// On a link that was cut, when sent or when due.
    pub cut: u64,
}

/// In flight, ordered by arrival and, at the same moment, by sending.
#[derive(PartialEq, Eq)]
struct InFlight {
    at: Tick,
    number: u64,
    from: SocketAddr,
    to: SocketAddr,
    bytes: BytesMut,
}

impl Ord for InFlight {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

impl PartialOrd for InFlight {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// The network.
pub struct SimNet {
    rng: SimRng,
    faults: Faults,
    queue: BinaryHeap<Reverse<InFlight>>,
    sent: u64,
    /// When the last datagram that keeps its order arrives, by direction.
    last: HashMap<(SocketAddr, SocketAddr), Tick, FixedState>,
    cut: BTreeSet<(SocketAddr, SocketAddr)>,
    counts: NetCounts,
}

impl SimNet {
    pub fn new(seed: u64, faults: Faults) -> SimNet {
        SimNet {
            rng: SimRng::new(seed),
            faults,
            queue: BinaryHeap::new(),
            sent: 0,
            last: HashMap::default(),
            cut: BTreeSet::new(),
            counts: NetCounts::default(),
        }
    }

    /// Changes the weather for datagrams sent from here on.
    pub fn set_faults(&mut self, faults: Faults) {
        self.faults = faults;
    }

    /// Nothing passes from `from` to `to` any more, also not what is under way. The other direction is its own.
    pub fn cut(&mut self, from: SocketAddr, to: SocketAddr) {
        self.cut.insert((from, to));
    }

    /// Undoes `cut`.
    pub fn heal(&mut self, from: SocketAddr, to: SocketAddr) {
        self.cut.remove(&(from, to));
    }

    /// Sends a datagram; the network decides what becomes of it.
    pub fn send(&mut self, now: Tick, from: SocketAddr, to: SocketAddr, bytes: &[u8]) {
        self.counts.sent += 1;
        if self.cut.contains(&(from, to)) {
            self.counts.cut += 1;
            return;
        }
        if bytes.len() > self.faults.mtu || self.rng.chance(self.faults.loss_ppm) {
            self.counts.lost += 1;
            return;
        }
        self.launch(now, from, to, bytes);
        if self.rng.chance(self.faults.duplicate_ppm) {
            self.counts.duplicated += 1;
            self.launch(now, from, to, bytes);
        }
    }

    fn launch(&mut self, now: Tick, from: SocketAddr, to: SocketAddr, bytes: &[u8]) {
        if self.queue.len() >= IN_FLIGHT_MAX {
            self.counts.lost += 1;
            return;
        }
        let mut at = now + self.faults.delay + self.rng.duration(self.faults.jitter);
        if self.rng.chance(self.faults.tail_ppm) {
            at += self.rng.long_tail(self.faults.tail);
        }
        if !self.rng.chance(self.faults.reorder_ppm) {
            let last = self.last.entry((from, to)).or_default();
            at = at.max(*last);
            *last = at;
        }
        let number = self.sent;
        self.sent += 1;
        self.queue.push(Reverse(InFlight { at, number, from, to, bytes: BytesMut::from(bytes) }));
    }

    /// When the next datagram arrives.
    pub fn next_delivery(&self) -> Option<Tick> {
        self.queue.peek().map(|Reverse(next)| next.at)
    }

    /// Takes the next datagram that arrived by `now`.
    pub fn poll(&mut self, now: Tick) -> Option<Delivery> {
        while self.next_delivery()? <= now {
            let Reverse(InFlight { at, from, to, bytes, .. }) = self.queue.pop()?;
            if self.cut.contains(&(from, to)) {
                self.counts.cut += 1;
                continue;
            }
            self.counts.delivered += 1;
            return Some(Delivery { at, from, to, bytes });
        }
        None
    }

    pub fn counts(&self) -> NetCounts {
        self.counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn addr(port: u16) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, 1], port))
    }

    /// Sends 2,000 numbered datagrams, one per 10 us, and gives back what arrived.
    fn run(seed: u64, faults: Faults) -> (Vec<(Tick, u32)>, NetCounts) {
        let mut net = SimNet::new(seed, faults);
        for number in 0..2_000u32 {
            net.send(Tick(u64::from(number) * 10_000), addr(1), addr(2), &number.to_be_bytes());
        }
        let mut arrived = Vec::new();
        while let Some(at) = net.next_delivery() {
            while let Some(delivery) = net.poll(at) {
                let number = u32::from_be_bytes(delivery.bytes[..].try_into().unwrap());
                arrived.push((delivery.at, number));
            }
        }
        (arrived, net.counts())
    }

    #[test]
    fn one_seed_is_one_history() {
        let first = run(7, Faults::rough(MS));
        assert_eq!(first, run(7, Faults::rough(MS)));
        assert_ne!(first.0, run(8, Faults::rough(MS)).0);
    }

    #[test]
    fn a_perfect_network_delivers_all_in_order_after_its_delay() {
        let (arrived, counts) = run(1, Faults::none(MS));
        let expected: Vec<_> = (0..2_000u32).map(|n| (Tick(u64::from(n) * 10_000 + 1_000_000), n)).collect();
        assert_eq!(arrived, expected);
        assert_eq!(counts.delivered, 2_000);
    }

    #[test]
    fn a_rough_network_loses_duplicates_and_reorders() {
        let (arrived, counts) = run(3, Faults::rough(MS));
        assert!((10..100).contains(&counts.lost), "{counts:?}");
        assert!((5..60).contains(&counts.duplicated), "{counts:?}");
        assert_eq!(counts.delivered, 2_000 - counts.lost + counts.duplicated);
        assert!(arrived.windows(2).any(|pair| pair[0].1 > pair[1].1), "nothing was overtaken");
        assert!(arrived.windows(2).all(|pair| pair[0].0 <= pair[1].0), "time went back");
    }

    #[test]
    fn jitter_alone_keeps_the_order() {
        let (arrived, _) = run(4, Faults { jitter: MS * 5, ..Faults::none(MS) });
        assert!(arrived.windows(2).all(|pair| pair[0].1 < pair[1].1));
    }

    #[test]
    fn a_cut_stops_one_direction_until_healed() {
        let mut net = SimNet::new(1, Faults::none(MS));
        net.send(Tick(0), addr(1), addr(2), b"under way");
        net.cut(addr(1), addr(2));
        net.send(Tick(0), addr(1), addr(2), b"cut");
        net.send(Tick(0), addr(2), addr(1), b"back");
        assert_eq!(&net.poll(Tick(u64::MAX)).unwrap().bytes[..], b"back");
        assert_eq!(net.poll(Tick(u64::MAX)), None);
        net.heal(addr(1), addr(2));
        net.send(Tick(0), addr(1), addr(2), b"again");
        assert_eq!(&net.poll(Tick(u64::MAX)).unwrap().bytes[..], b"again");
        assert_eq!(net.counts().cut, 2);
    }

    #[test]
    fn a_datagram_over_the_path_mtu_is_lost() {
        let mut net = SimNet::new(1, Faults { mtu: 1_500, ..Faults::none(MS) });
        net.send(Tick(0), addr(1), addr(2), &[0; 1_501]);
        net.send(Tick(0), addr(1), addr(2), &[0; 1_500]);
        assert_eq!(net.poll(Tick(u64::MAX)).map(|delivery| delivery.bytes.len()), Some(1_500));
        assert_eq!(net.poll(Tick(u64::MAX)), None);
    }
}
