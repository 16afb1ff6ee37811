//! One simulated broker: its cores, the mail between them, and what the admin thread would do. Scope: one per simulation.
//! Owns: the cores, mail under way, routes and key sets. Invariants: mail of one pair of cores keeps its order; a full
//! mailbox is an answer; a core that is told something runs at that moment unless it is paused.
//! Not here: clients, the network, when faults happen (`world`).

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use felix_runtime::clock::Tick;
use felix_runtime::counters::counters;
use felix_runtime::quic::{KEY_BYTES, Quic, QuicSettings, Transmits};
use felix_runtime::sim::{Delivery, SimNet, SimRng};
use felix_wire::id::{CoreId, Generation, Incarnation};
use felix_wire::routing::KeyMapping;

use super::credentials::{Credentials, NAMESPACE, TENANT};
use super::plan::Plan;
use super::trace::Trace;
use crate::snapshot::{CoreLimits, FromCore, Owner, Routes, StreamName, StreamRoute, StreamUid, ToCore};
use crate::turn::core::{Core, CoreParts, Datagram, Mail};
use crate::turn::counters::{CoreCounters, Counter};

/// Random per process in a real broker.
pub const BOOT: u64 = 0xfe11_0b00_7000_0000;
/// Seconds since 1970 when the simulation begins.
pub const UNIX_S: u64 = 1_800_000_000;
/// A core with mail that found no room tries again after this.
const MAIL_RETRY: Duration = Duration::from_micros(200);
/// Turns at one moment before a core counts as spinning.
const TURNS_MAX: u32 = 20_000;

struct Node {
    core: Core,
    admin: VecDeque<(Tick, ToCore)>,
    datagrams: VecDeque<Delivery>,
    /// When it runs next, if nothing arrives.
    wake: Option<Tick>,
    paused_until: Tick,
    drained: bool,
    /// Version of the routes it has.
    heard: u64,
}

/// See the module.
pub struct Broker {
    pub addr: SocketAddr,
    nodes: Vec<Node>,
    /// Mail from core to core, in order: `mail[from * cores + to]`.
    mail: Vec<VecDeque<(Tick, Mail)>>,
    mail_delay: Duration,
    mail_slots: usize,
    keys_delay: Duration,
    stray_ppm: u32,
    rng: SimRng,
    batch: Transmits,
    streams: Vec<Option<Vec<(u16, u64)>>>,
    version: u64,
    routes_version: u64,
}

impl Broker {
    /// A broker that serves every shard of the plan.
    pub fn new(plan: &Plan, zero: Instant, rng: &mut SimRng) -> Broker {
        let addr = SocketAddr::from(([10, 0, 0, 1], 5_000));
        let limits = Arc::new(plan.limits.clone());
        let mut rng = rng.fork();
        let nodes = (0..plan.cores).map(|id| node(plan, &limits, id, zero, &mut rng)).collect();
        let cores = u64::from(plan.cores);
        let place = |rng: &mut SimRng| (rng.below(cores) as u16, 1);
        let streams = plan.shards.iter().map(|n| Some((0..*n).map(|_| place(&mut rng)).collect())).collect();
        let mut broker = Broker {
            addr,
            nodes,
            mail: std::iter::repeat_with(VecDeque::new).take(usize::from(plan.cores).pow(2)).collect(),
            mail_delay: plan.mail_delay,
            mail_slots: plan.mail_slots,
            keys_delay: plan.keys_delay,
            stray_ppm: plan.stray_ppm,
            rng,
            batch: Transmits::new(16),
            streams,
            version: 0,
            routes_version: 0,
        };
        broker.tell_routes(Tick::ZERO);
        let filled = plan.keys_delay.is_zero();
        broker.tell_all(Tick::ZERO, |_| ToCore::Keys(Credentials::get().keys(1, filled)));
        broker
    }

    /// How many cores.
    pub fn cores(&self) -> u16 {
        self.nodes.len() as u16
    }

    /// The core of a shard and its generation, while its stream is there.
    pub fn place(&self, stream: usize, shard: u32) -> Option<(u16, u64)> {
        self.streams[stream].as_ref().map(|owners| owners[shard as usize])
    }

    /// Gives a shard to a core, at the next generation.
    pub fn move_shard(&mut self, now: Tick, (stream, shard): (usize, u32), core: u16) {
        if let Some(owners) = &mut self.streams[stream] {
            let owner = &mut owners[shard as usize];
            *owner = (core, owner.1 + 1);
            self.tell_routes(now);
        }
    }

    /// Takes a stream away.
    pub fn delete(&mut self, now: Tick, stream: usize) {
        self.streams[stream] = None;
        self.tell_routes(now);
    }

    /// The core hears and does nothing until then.
    pub fn pause(&mut self, core: u16, until: Tick) {
        let node = &mut self.nodes[usize::from(core)];
        node.paused_until = node.paused_until.max(until);
    }

    /// Whether every core has the newest routes. Until then two cores may both serve a shard that has moved.
    pub fn agrees(&self) -> bool {
        self.nodes.iter().all(|n| n.heard == self.routes_version)
    }

    /// Begins an orderly end.
    pub fn drain(&mut self, now: Tick) {
        self.tell_all(now, |_| ToCore::Drain);
    }

    /// Every core has ended its connections after a drain.
    pub fn is_drained(&self) -> bool {
        self.nodes.iter().all(|n| n.drained)
    }

    /// A counter or gauge over all cores.
    pub fn count(&self, counter: Counter) -> u64 {
        self.nodes.iter().map(|n| n.core.count(counter)).sum()
    }

    /// What is held beyond what an idle broker holds, by name; empty when nothing is. `connections`: whether those and
    /// what belongs to them counts.
    pub fn held(&self, connections: bool) -> Vec<(u16, &'static str, u64)> {
        let mail = self.mail.iter().map(VecDeque::len).sum::<usize>() as u64;
        let of_core = |(id, node): (usize, &Node)| {
            let held = node.core.held(connections);
            held.into_iter()
                .filter(|(_, n)| *n > 0)
                .map(move |(name, n)| (id as u16, name, n))
                .collect::<Vec<_>>()
        };
        let mut all: Vec<_> = self.nodes.iter().enumerate().flat_map(of_core).collect();
        if mail > 0 {
            all.push((0, "mail", mail));
        }
        all
    }

    /// Takes a datagram, at the core that the socket program would pick or, as a stray, at another.
    pub fn receive(&mut self, delivery: Delivery) {
        let cores = self.cores();
        let mut core = Quic::core_of_datagram(&delivery.bytes, cores).unwrap_or(0);
        if self.rng.chance(self.stray_ppm) {
            core = self.rng.below(u64::from(cores)) as u16;
        }
        self.nodes[usize::from(core)].datagrams.push_back(delivery);
    }

    /// The next moment at which something happens in it.
    pub fn next(&self) -> Option<Tick> {
        let mail = |to: usize| {
            let cores = self.nodes.len();
            (0..cores).filter_map(move |from| self.mail[from * cores + to].front().map(|(at, _)| *at)).min()
        };
        let due = |(id, node): (usize, &Node)| {
            let datagram = node.datagrams.front().map(|_| Tick::ZERO);
            let admin = node.admin.front().map(|(at, _)| *at);
            let first = [datagram, admin, mail(id), node.wake].into_iter().flatten().min()?;
            Some(first.max(node.paused_until))
        };
        self.nodes.iter().enumerate().filter_map(due).min()
    }

    /// Runs every core that has something to do.
    ///
    /// # Errors
    /// A core that never comes to rest.
    pub fn run(&mut self, now: Tick, net: &mut SimNet, trace: &mut Trace) -> Result<(), String> {
        for id in 0..self.nodes.len() {
            if self.nodes[id].paused_until <= now && self.input(now, id, trace) {
                self.turns(now, id, net, trace)?;
            }
        }
        Ok(())
    }

    /// Hands a core what has arrived. True when it must run.
    fn input(&mut self, now: Tick, id: usize, trace: &mut Trace) -> bool {
        let cores = self.nodes.len();
        let node = &mut self.nodes[id];
        let mut any = node.wake.is_some_and(|at| at <= now);
        while node.admin.front().is_some_and(|(at, _)| *at <= now) {
            let Some((_, message)) = node.admin.pop_front() else { break };
            if let ToCore::Routes(routes) = &message {
                node.heard = routes.version;
            }
            node.core.handle_admin(now, message);
            trace.note(now, "admin", [id as u64, 0, 0]);
            any = true;
        }
        while let Some(Delivery { from, to, bytes, .. }) = node.datagrams.pop_front() {
            trace.note(now, "net to core", [id as u64, u64::from(from.port()), bytes.len() as u64]);
            node.core.handle_datagram(
                now,
                Datagram { remote: from, local_ip: Some(to.ip()), ecn: None, data: bytes },
            );
            any = true;
        }
        for from in 0..cores {
            let lane = &mut self.mail[from * cores + id];
            while lane.front().is_some_and(|(at, _)| *at <= now) {
                let Some((_, mail)) = lane.pop_front() else { break };
                trace.note(now, "mail", [from as u64, id as u64, kind_of(&mail)]);
                self.nodes[id].core.handle_mail(now, CoreId(from as u16), mail);
                any = true;
            }
        }
        any
    }

    fn turns(&mut self, now: Tick, id: usize, net: &mut SimNet, trace: &mut Trace) -> Result<(), String> {
        let unix_s = UNIX_S + now.as_micros() / 1_000_000;
        let mut more = true;
        let mut count = 0;
        while more {
            count += 1;
            if count > TURNS_MAX {
                return Err(format!("core {id} does not come to rest"));
            }
            more = self.nodes[id].core.turn(now, unix_s * 1_000);
            self.transmit(now, id, net, trace);
            self.post(now, id);
            self.answer_admin(now, id);
        }
        let node = &mut self.nodes[id];
        node.wake = node.core.next_timeout().map(|at| at.max(now + Duration::from_nanos(1)));
        if node.core.has_mail() {
            let retry = now + MAIL_RETRY;
            node.wake = Some(node.wake.map_or(retry, |at| at.min(retry)));
        }
        Ok(())
    }

    fn transmit(&mut self, now: Tick, id: usize, net: &mut SimNet, trace: &mut Trace) {
        let node = &mut self.nodes[id];
        loop {
            node.core.poll_transmit(now, &mut self.batch);
            if self.batch.is_empty() {
                return;
            }
            for transmit in self.batch.iter() {
                for datagram in transmit.datagrams() {
                    trace.note(
                        now,
                        "net from core",
                        [id as u64, u64::from(transmit.remote.port()), datagram.len() as u64],
                    );
                    net.send(now, self.addr, transmit.remote, datagram);
                }
            }
            self.batch.clear();
        }
    }

    fn post(&mut self, now: Tick, id: usize) {
        let cores = self.nodes.len();
        for to in 0..cores {
            let lane = &mut self.mail[id * cores + to];
            while let Some(mail) = self.nodes[id].core.poll_mail(CoreId(to as u16)) {
                if lane.len() >= self.mail_slots {
                    self.nodes[id].core.give_back(CoreId(to as u16), mail);
                    break;
                }
                let at = now + self.rng.duration(self.mail_delay);
                let at = lane.back().map_or(at, |(last, _)| at.max(*last));
                lane.push_back((at, mail));
            }
        }
    }

    fn answer_admin(&mut self, now: Tick, id: usize) {
        while let Some(message) = self.nodes[id].core.poll_admin() {
            match message {
                FromCore::NeedKeys { .. } => {
                    self.version += 1;
                    let keys = Credentials::get().keys(self.version, true);
                    let at = now + self.keys_delay;
                    self.nodes[id].admin.push_back((at, ToCore::Keys(keys)));
                }
                FromCore::Drained { .. } => self.nodes[id].drained = true,
                FromCore::Ready { .. } | FromCore::Tenants(_) => {}
                // The plan has no disks yet.
                FromCore::Recovered(_)
                | FromCore::StoreFailed { .. }
                | FromCore::LogReleased { .. }
                | FromCore::Space { .. }
                | FromCore::LogDeleted { .. } => {}
            }
        }
    }

    fn tell_routes(&mut self, now: Tick) {
        self.version += 1;
        self.routes_version = self.version;
        let known = self.streams.iter().enumerate().filter_map(|(i, owners)| Some((i, owners.as_ref()?)));
        let routes = known.map(|(i, owners)| Arc::new(route(i, owners)));
        let routes = Arc::new(Routes::new(self.version, routes, [Arc::from(TENANT)]));
        self.tell_all(now, |_| ToCore::Routes(Arc::clone(&routes)));
    }

    /// Each core hears at its own time, in order.
    fn tell_all(&mut self, now: Tick, message: impl Fn(usize) -> ToCore) {
        for (id, node) in self.nodes.iter_mut().enumerate() {
            // A broker says that it is ready once its cores have heard.
            let late = if now == Tick::ZERO { Duration::ZERO } else { self.rng.duration(self.mail_delay) };
            let at = now + late;
            let at = node.admin.back().map_or(at, |(last, _)| at.max(*last));
            node.admin.push_back((at, message(id)));
        }
    }
}

/// The life of a shard's offsets, from what `subscribed` says.
pub fn generation_of(boot: u64, stream: usize) -> u64 {
    boot ^ BOOT ^ ((stream as u64 + 1) << 32)
}

/// The name of a stream.
pub fn stream_name(stream: usize) -> String {
    format!("s{stream}")
}

fn node(plan: &Plan, limits: &Arc<CoreLimits>, id: u16, zero: Instant, rng: &mut SimRng) -> Node {
    let settings = QuicSettings {
        core: id,
        cores: plan.cores,
        stream_window: u64::from(limits.stream_window),
        conn_window_before_auth: u64::from(limits.conn_window_before_auth),
        send_window: plan.send_window,
        idle_timeout: Duration::from_secs(10),
        unix_micros_at_zero: UNIX_S * 1_000_000,
        seed: Some(rng.seed_bytes()),
        ..QuicSettings::new([1; KEY_BYTES], [2; KEY_BYTES])
    };
    let tls = Arc::clone(&Credentials::get().server);
    let quic = Quic::new(settings, Some(tls), zero).expect("settings of the plan");
    let (writer, _) = counters(Counter::ALL.len());
    let parts = CoreParts {
        id: CoreId(id),
        cores: plan.cores,
        boot: BOOT,
        limits: Arc::clone(limits),
        counters: CoreCounters::new(writer),
        quic,
    };
    Node {
        core: Core::new(parts),
        admin: VecDeque::new(),
        datagrams: VecDeque::new(),
        wake: Some(Tick::ZERO),
        paused_until: Tick::ZERO,
        drained: false,
        heard: 0,
    }
}

fn route(stream: usize, owners: &[(u16, u64)]) -> StreamRoute {
    let here = |(core, generation): &(u16, u64)| Owner::Here {
        core: CoreId(*core),
        generation: Generation(*generation),
    };
    StreamRoute {
        uid: StreamUid(stream as u64 + 1),
        name: StreamName {
            tenant: TENANT.into(),
            namespace: NAMESPACE.into(),
            stream: stream_name(stream).into(),
        },
        incarnation: Incarnation(1),
        mapping: KeyMapping::JumpHash,
        log: None,
        owners: owners.iter().map(here).collect(),
    }
}

fn kind_of(mail: &Mail) -> u64 {
    match mail {
        Mail::ToShard(to) => 1_000 + u64::from(to.shard.shard.0),
        Mail::FromShard(from) => 2_000 + u64::from(from.shard.shard.0),
        Mail::Stray(datagram) => 3_000 + datagram.data.len() as u64,
    }
}
