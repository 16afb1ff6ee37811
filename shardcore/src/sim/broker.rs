//! One simulated broker: its cores, the mail between them, and what the admin thread would do. Scope: one per simulation.
//! Owns: the cores, mail under way, routes and key sets, and the disks that outlive its processes. Invariants: mail of one
//! pair of cores keeps its order; a full mailbox is an answer; a core that is told something runs at that moment unless it
//! is paused.
//! Not here: clients, the network, when faults happen (`world`), recovery (`storage`).

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use felix_logstore::retention::Retention;
use felix_runtime::clock::Tick;
use felix_runtime::counters::counters;
use felix_runtime::file::{BufPool, Disk, Full, Op, Token};
use felix_runtime::quic::{KEY_BYTES, Quic, QuicSettings, Transmits};
use felix_runtime::sim::{Delivery, OpKind, SimNet, SimRng};
use felix_wire::id::{CoreId, Generation, Incarnation, ShardIndex};
use felix_wire::routing::KeyMapping;

use super::credentials::{Credentials, NAMESPACE, TENANT};
use super::plan::Plan;
use super::storage::{Phase, Storage};
use super::storage_plan::End;
use super::trace::Trace;
use crate::snapshot::{
    CoreLimits, FromCore, LogRole, Owner, Resource, Routes, StreamName, StreamRoute, StreamUid, ToCore,
};
use crate::turn::core::{Core, CoreParts, Datagram, Mail};
use crate::turn::counters::{CoreCounters, Counter};

/// Random per process in a real broker.
pub const BOOT: u64 = 0xfe11_0b00_7000_0000;
/// Seconds since 1970 when the simulation begins.
pub const UNIX_S: u64 = 1_800_000_000;

/// Milliseconds since 1970 at `now`.
fn unix_ms(now: Tick) -> u64 {
    UNIX_S * 1_000 + now.as_micros() / 1_000
}

/// A core with mail that found no room tries again after this.
const MAIL_RETRY: Duration = Duration::from_micros(200);
/// Turns that a core may want at once in a row; more are a loop that only time ends.
const SPINS_MAX: u32 = 5_000;
/// A process that could not start is started again after this.
const START_AGAIN: Duration = Duration::from_millis(200);
/// How long logs may take to close, as in `turn::run`.
const CLOSE_MAX: Duration = Duration::from_secs(10);
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
    disks: CoreDisks,
    /// Turns in a row after which it wanted another one at once, with nothing new.
    spins: u32,
    /// It was told to end and closes its logs, since then.
    ending: Option<Tick>,
}

/// What a core has of its disks.
struct CoreDisks {
    pool: BufPool,
    /// An operation that the disks had no room for.
    held: Option<(Token, Op)>,
}

/// What every core of every process is made of.
struct Maker {
    cores: u16,
    send_window: u64,
    limits: Arc<CoreLimits>,
    zero: Instant,
}

impl Maker {
    fn node(&self, id: u16, boot: u64, rng: &mut SimRng) -> Node {
        let Maker { cores, limits, send_window, zero } = self;
        let settings = QuicSettings {
            core: id,
            cores: *cores,
            stream_window: u64::from(limits.stream_window),
            conn_window_before_auth: u64::from(limits.conn_window_before_auth),
            send_window: *send_window,
            idle_timeout: Duration::from_secs(10),
            unix_micros_at_zero: UNIX_S * 1_000_000,
            seed: Some(rng.seed_bytes()),
            ..QuicSettings::new([1; KEY_BYTES], [2; KEY_BYTES])
        };
        let tls = Arc::clone(&Credentials::get().server);
        let quic = Quic::new(settings, Some(tls), *zero).expect("settings of the plan");
        let (writer, _) = counters(Counter::ALL.len());
        let parts = CoreParts {
            id: CoreId(id),
            cores: *cores,
            boot,
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
            disks: CoreDisks { pool: Storage::pool(), held: None },
            spins: 0,
            ending: None,
        }
    }
}

/// See the module.
pub struct Broker {
    pub addr: SocketAddr,
    cores: u16,
    maker: Maker,
    /// None while the process is down.
    nodes: Vec<Node>,
    /// Of a durable plan.
    storage: Option<Storage>,
    /// What processes that are gone have counted.
    past: Vec<u64>,
    /// Processes before this one.
    lives: u64,
    /// Mail from core to core, in order: `mail[from * cores + to]`.
    mail: Vec<VecDeque<(Tick, Mail)>>,
    mail_delay: Duration,
    mail_slots: usize,
    keys_delay: Duration,
    stray_ppm: u32,
    rng: SimRng,
    batch: Transmits,
    streams: Vec<Option<Vec<(u16, u64)>>>,
    /// Width of each stream, whether it is there or not.
    shards: Vec<u32>,
    /// The core and generation of each shard of each cache that is there.
    caches: Vec<Option<Vec<(u16, u64)>>>,
    /// Width and life of each.
    cache_lives: Vec<(u32, u64)>,
    /// Of each stream, counted from 1.
    incarnations: Vec<u64>,
    /// Lives of streams and caches that have ended and whose logs nobody was told to delete yet: width and number.
    over: Vec<(Resource, StreamName, (u32, u64))>,
    version: u64,
    routes_version: u64,
}

impl Broker {
    /// A broker that serves every shard of the plan.
    pub fn new(plan: &Plan, zero: Instant, rng: &mut SimRng) -> Broker {
        let addr = SocketAddr::from(([10, 0, 0, 1], 5_000));
        let limits = Arc::new(plan.limits.clone());
        let mut rng = rng.fork();
        let maker = Maker { cores: plan.cores, send_window: plan.send_window, limits, zero };
        let storage = plan.storage.as_ref().map(|storage| Storage::new(storage, plan.cores));
        let nodes = match storage {
            None => (0..plan.cores).map(|id| maker.node(id, BOOT, &mut rng)).collect(),
            Some(_) => Vec::new(),
        };
        let cores = u64::from(plan.cores);
        let place = |rng: &mut SimRng| (rng.below(cores) as u16, 1);
        let streams = plan.shards.iter().map(|n| Some((0..*n).map(|_| place(&mut rng)).collect())).collect();
        let caches = plan.asks.iter().flat_map(|asks| &asks.caches);
        let caches = caches.map(|n| Some((0..*n).map(|_| place(&mut rng)).collect())).collect();
        let widths = plan.asks.iter().flat_map(|asks| &asks.caches);
        let cache_lives = widths.map(|width| (*width, 1)).collect();
        let mut broker = Broker {
            addr,
            cores: plan.cores,
            maker,
            nodes,
            storage,
            past: vec![0; Counter::ALL.len()],
            lives: 0,
            mail: std::iter::repeat_with(VecDeque::new).take(usize::from(plan.cores).pow(2)).collect(),
            mail_delay: plan.mail_delay,
            mail_slots: plan.mail_slots,
            keys_delay: plan.keys_delay,
            stray_ppm: plan.stray_ppm,
            rng,
            batch: Transmits::new(16),
            streams,
            caches,
            cache_lives,
            shards: plan.shards.clone(),
            incarnations: vec![1; plan.shards.len()],
            over: Vec::new(),
            version: 0,
            routes_version: 0,
        };
        if broker.storage.is_some() {
            // The first process starts in its first step.
            return broker;
        }
        broker.tell_routes(Tick::ZERO);
        let filled = plan.keys_delay.is_zero();
        broker.tell_all(Tick::ZERO, |_| ToCore::Keys(Credentials::get().keys(1, Tick::ZERO, filled)));
        broker
    }

    /// How many cores.
    pub fn cores(&self) -> u16 {
        self.cores
    }

    /// The disks of a durable plan.
    pub fn storage_mut(&mut self) -> Option<&mut Storage> {
        self.storage.as_mut()
    }

    /// Which life of its name a stream is in, or was in last.
    pub fn incarnation(&self, stream: usize) -> u64 {
        self.incarnations[stream]
    }

    /// Whether a log has failed, or could not be read at the start: only another process takes writes to it again.
    pub fn has_stopped_log(&self) -> bool {
        if self.storage.as_ref().is_some_and(|storage| storage.is_up() && storage.book.refused() > 0) {
            return true;
        }
        self.nodes.iter().any(|node| node.core.has_stopped_log())
    }

    /// Whether the process serves as far as it can.
    pub fn is_up(&self) -> bool {
        self.storage.as_ref().is_none_or(Storage::is_up)
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

    /// Gives a shard of a cache to a core, at the next generation.
    pub fn move_cache(&mut self, now: Tick, (cache, shard): (usize, u32), core: u16) {
        let owners = self.caches.get_mut(cache).and_then(Option::as_mut);
        if let Some(owner) = owners.and_then(|owners| owners.get_mut(shard as usize)) {
            *owner = (core, owner.1 + 1);
            self.tell_routes(now);
        }
    }

    /// Takes a cache away. True when it was there.
    pub fn delete_cache(&mut self, now: Tick, cache: usize) -> bool {
        let there = self.caches[cache].take().is_some();
        if there {
            self.over.push((Resource::Cache, cache_name_of(cache), self.cache_lives[cache]));
            self.tell_routes(now);
        }
        there
    }

    /// Gives a cache that was deleted back its name, as another life: its number. None when it is there.
    pub fn create_cache(&mut self, now: Tick, cache: usize) -> Option<u64> {
        if self.caches[cache].is_some() {
            return None;
        }
        let (width, life) = &mut self.cache_lives[cache];
        *life += 1;
        let (width, life) = (*width, *life);
        let (cores, rng) = (u64::from(self.cores), &mut self.rng);
        self.caches[cache] = Some((0..width).map(|_| (rng.below(cores) as u16, 1)).collect());
        self.tell_routes(now);
        Some(life)
    }

    /// Takes a stream away.
    pub fn delete(&mut self, now: Tick, stream: usize) {
        if self.streams[stream].take().is_some() {
            let life = (self.shards[stream], self.incarnations[stream]);
            self.over.push((Resource::Stream, name_of(stream), life));
        }
        self.tell_routes(now);
    }

    /// Gives a stream that was deleted back its name, as another life. True when it was.
    pub fn create(&mut self, now: Tick, stream: usize) -> bool {
        if self.streams[stream].is_some() {
            return false;
        }
        self.incarnations[stream] += 1;
        let cores = u64::from(self.cores);
        let rng = &mut self.rng;
        self.streams[stream] = Some((0..self.shards[stream]).map(|_| (rng.below(cores) as u16, 1)).collect());
        self.tell_routes(now);
        true
    }

    /// Ends the process; another one starts `down` later. False when it is not up, or on its way down.
    pub fn end(&mut self, now: Tick, how: End, down: Duration) -> bool {
        let Some(storage) = &mut self.storage else { return false };
        match (storage.phase(), how) {
            (Phase::Down { .. }, _) | (Phase::Recovering(_) | Phase::Stopping { .. }, End::Stop) => false,
            (Phase::Up, End::Stop) => {
                storage.stopping(down);
                self.tell_all(now, |_| ToCore::Stop);
                true
            }
            (_, how) => {
                self.gone(how, now + down);
                true
            }
        }
    }

    /// The process is gone.
    fn gone(&mut self, how: End, until: Tick) {
        for (counter, past) in Counter::ALL.iter().zip(&mut self.past) {
            *past += self.nodes.iter().map(|node| node.core.count(*counter)).sum::<u64>();
        }
        self.nodes.clear();
        self.mail.iter_mut().for_each(VecDeque::clear);
        self.over.clear();
        if let Some(storage) = &mut self.storage {
            storage.ended(how, until);
        }
    }

    /// Starts a process, lets recovery go on, or sees that the cores have closed their logs.
    fn run_process(&mut self, now: Tick, trace: &mut Trace) -> Result<(), String> {
        let Some(storage) = &mut self.storage else { return Ok(()) };
        storage.disks.advance(now);
        match storage.phase() {
            Phase::Down { until } if *until <= now => {
                storage.start();
                trace.note(now, "process starts", [self.lives, 0, 0]);
                let boot = BOOT + (self.lives << 8);
                let rng = &mut self.rng;
                self.nodes = (0..self.cores).map(|id| self.maker.node(id, boot, rng)).collect();
                self.nodes.iter_mut().for_each(|node| node.wake = Some(now));
                self.lives += 1;
                self.version += 1;
                let (version, filled) = (self.version, self.keys_delay.is_zero());
                self.tell_all(now, |_| ToCore::Keys(Credentials::get().keys(version, now, filled)));
            }
            Phase::Stopping { down } if self.nodes.iter().all(|node| node.is_closed(now)) => {
                let until = now + *down;
                if let Some(node) = self.nodes.iter().position(|node| !node.core.is_store_closed()) {
                    trace.note(now, "logs not closed in time", [node as u64, 0, 0]);
                }
                trace.note(now, "process ended", [0; 3]);
                self.gone(End::Stop, until);
            }
            _ => {}
        }
        let Some(storage) = &mut self.storage else { return Ok(()) };
        let recovered = match storage.poll_recovered() {
            Err(why) if storage.fails() => {
                trace.note(now, "process gives up", [why.len() as u64, 0, 0]);
                self.gone(End::Kill, now + START_AGAIN);
                None
            }
            other => other?,
        };
        if let Some(mut starts) = recovered {
            trace.note(now, "recovered", [self.lives, 0, 0]);
            self.tell_all(now, |id| ToCore::Volumes(std::mem::take(&mut starts[id])));
            self.tell_routes(now);
        }
        Ok(())
    }

    /// Whether the first core is still looking at the volumes: then it serves nobody.
    fn is_recovering(&self) -> bool {
        self.storage.as_ref().is_some_and(|storage| matches!(storage.phase(), Phase::Recovering(_)))
    }

    /// The core hears and does nothing until then.
    pub fn pause(&mut self, core: u16, until: Tick) {
        if let Some(node) = self.nodes.get_mut(usize::from(core)) {
            node.paused_until = node.paused_until.max(until);
        }
    }

    /// Whether every core has the newest routes. Until then two cores may both serve a shard that has moved.
    pub fn agrees(&self) -> bool {
        let heard = self.nodes.iter().all(|n| n.heard == self.routes_version);
        heard && !self.nodes.is_empty() && self.is_up()
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
        let past = Counter::ALL.iter().position(|known| *known == counter).map_or(0, |at| self.past[at]);
        past + self.nodes.iter().map(|n| n.core.count(counter)).sum::<u64>()
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
        let deaf = core == 0 && self.is_recovering();
        if let Some(node) =
            self.nodes.get_mut(usize::from(core)).filter(|node| !deaf && node.ending.is_none())
        {
            node.datagrams.push_back(delivery);
        }
    }

    /// The next moment at which something happens in it.
    pub fn next(&self) -> Option<Tick> {
        let mail = |to: usize| {
            let cores = self.nodes.len();
            (0..cores).filter_map(move |from| self.mail[from * cores + to].front().map(|(at, _)| *at)).min()
        };
        let due = |(id, node): (usize, &Node)| {
            // One that closes its logs hears nobody any more.
            let hears = node.ending.is_none();
            let datagram = node.datagrams.front().map(|_| Tick::ZERO).filter(|_| hears);
            let admin = node.admin.front().map(|(at, _)| *at).filter(|_| hears);
            let answer = self.storage.as_ref().filter(|storage| storage.disks.has_answer(id));
            let answer = answer.map(|_| Tick::ZERO);
            let mail = mail(id).filter(|_| hears);
            let first = [datagram, admin, mail, node.wake, answer].into_iter().flatten().min()?;
            Some(first.max(node.paused_until))
        };
        let nodes = self.nodes.iter().enumerate().filter(|(id, _)| *id > 0 || !self.is_recovering());
        let ended = !self.nodes.is_empty()
            && self.nodes.iter().all(|node| node.ending.is_some() && node.core.is_store_closed());
        let ended = ended.then_some(Tick::ZERO);
        nodes.filter_map(due).chain(ended).chain(self.storage.as_ref().and_then(Storage::next)).min()
    }

    /// Runs every core that has something to do.
    ///
    /// # Errors
    /// A core that never comes to rest.
    pub fn run(&mut self, now: Tick, net: &mut SimNet, trace: &mut Trace) -> Result<(), String> {
        self.run_process(now, trace)?;
        for id in 0..self.nodes.len() {
            if id == 0 && self.is_recovering() {
                continue;
            }
            if self.nodes[id].paused_until <= now && self.input(now, id, trace)? {
                self.turns(now, id, net, trace)?;
            }
        }
        Ok(())
    }

    /// Hands a core what has arrived. True when it must run.
    fn input(&mut self, now: Tick, id: usize, trace: &mut Trace) -> Result<bool, String> {
        let cores = self.nodes.len();
        let answered = self.answers(now, id, trace);
        let node = &mut self.nodes[id];
        node.core.set_time(unix_ms(now));
        let mut any = answered || node.wake.is_some_and(|at| at <= now);
        if node.ending.is_some() {
            return Ok(any);
        }
        while node.admin.front().is_some_and(|(at, _)| *at <= now) {
            let Some((_, message)) = node.admin.pop_front() else { break };
            if let ToCore::Routes(routes) = &message {
                node.heard = routes.version;
            }
            match (message, &self.storage) {
                (ToCore::Volumes(volumes), Some(storage)) => {
                    node.core.open_store(storage.settings(), &volumes, &node.disks.pool, now)?;
                }
                (message, _) => {
                    if !node.core.handle_admin(now, message) {
                        node.core.close_store();
                        node.ending = Some(now);
                    }
                }
            }
            trace.note(now, "admin", [id as u64, 0, 0]);
            any = true;
        }
        if node.ending.is_some() {
            return Ok(any);
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
        Ok(any)
    }

    /// Hands a core what its disks have answered. True when there was something.
    fn answers(&mut self, now: Tick, id: usize, trace: &mut Trace) -> bool {
        let Some(storage) = &mut self.storage else { return false };
        let mut seat = storage.disks.seat(id);
        let mut any = false;
        while let Some(done) = seat.poll_done() {
            trace.note(now, "disk answers", [id as u64, done.token.0, u64::from(done.result.is_ok())]);
            self.nodes[id].core.complete_disk(now, done);
            any = true;
        }
        any
    }

    /// Starts what a core asks of its disks, as far as there is room.
    fn ask(&mut self, now: Tick, id: usize, trace: &mut Trace) {
        let Some(storage) = &mut self.storage else { return };
        let mut seat = storage.disks.seat(id);
        let node = &mut self.nodes[id];
        while let Some((token, op)) = node.disks.held.take().or_else(|| node.core.poll_disk()) {
            trace.note(now, "disk is asked", [id as u64, token.0, OpKind::of(&op) as u64]);
            if let Err(Full { token, op }) = seat.submit(token, op) {
                node.disks.held = Some((token, op));
                return;
            }
        }
    }

    fn turns(&mut self, now: Tick, id: usize, net: &mut SimNet, trace: &mut Trace) -> Result<(), String> {
        let mut more = true;
        let mut count = 0;
        while more {
            count += 1;
            if count > TURNS_MAX {
                return Err(format!("core {id} does not come to rest"));
            }
            more = self.nodes[id].core.turn(now, unix_ms(now));
            self.ask(now, id, trace);
            if self.nodes[id].ending.is_some_and(|since| since < now) {
                continue;
            }
            self.transmit(now, id, net, trace);
            self.post(now, id);
            self.answer_admin(now, id)?;
        }
        let node = &mut self.nodes[id];
        let due = node.core.next_timeout().is_some_and(|at| at <= now);
        node.spins = if due { node.spins + 1 } else { 0 };
        if node.spins > SPINS_MAX {
            return Err(format!("core {id} is due again and again and does nothing"));
        }
        node.wake = node.core.next_timeout().map(|at| at.max(now + Duration::from_nanos(1)));
        if let Some(last) = node.ending.map(|since| since + CLOSE_MAX).filter(|at| *at > now) {
            node.wake = Some(node.wake.map_or(last, |at| at.min(last)));
        }
        if node.core.has_mail() || node.disks.held.is_some() {
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

    fn answer_admin(&mut self, now: Tick, id: usize) -> Result<(), String> {
        while let Some(message) = self.nodes[id].core.poll_admin() {
            match message {
                FromCore::NeedKeys { .. } => {
                    self.version += 1;
                    let at = now + self.keys_delay;
                    let keys = Credentials::get().keys(self.version, at, true);
                    self.nodes[id].admin.push_back((at, ToCore::Keys(keys)));
                }
                FromCore::Drained { .. } => self.nodes[id].drained = true,
                FromCore::Ready { .. } | FromCore::Tenants(_) => {}
                FromCore::StoreFailed { why, .. } | FromCore::Recovered(Err(why)) => return Err(why),
                // Recovery is driven by `storage`; whether there is space is only told.
                FromCore::Recovered(Ok(_)) | FromCore::Space { .. } => {}
                FromCore::LogReleased { key, volume, source } => {
                    if let Some(storage) = &mut self.storage {
                        storage.book.released(key, volume, source, &mut storage.orders);
                    }
                    self.tell_orders(now);
                }
                FromCore::LogDeleted { key } => {
                    if let Some(storage) = &mut self.storage {
                        storage.book.deleted(key);
                    }
                }
            }
        }
        Ok(())
    }

    /// Sends the orders about logs on their way.
    fn tell_orders(&mut self, now: Tick) {
        let Some(storage) = &mut self.storage else { return };
        for (core, order) in std::mem::take(&mut storage.orders.0) {
            self.tell(now, usize::from(core.0), ToCore::Log(order));
        }
    }

    fn tell_routes(&mut self, now: Tick) {
        self.version += 1;
        self.routes_version = self.version;
        let known = self.streams.iter().enumerate().filter_map(|(i, owners)| Some((i, owners.as_ref()?)));
        let log = self.storage.as_ref().map(|storage| storage.plan.retention);
        let streams = known.map(|(i, owners)| route((i, self.incarnations[i]), owners, log));
        let caches = self.caches.iter().enumerate().filter_map(|(i, owners)| Some((i, owners.as_ref()?)));
        let caches = caches.map(|(i, owners)| cache_route((i, self.cache_lives[i].1), owners));
        let routes = streams.chain(caches).map(|mut route| {
            self.hide_refused(&mut route);
            Arc::new(route)
        });
        let routes = Arc::new(Routes::new(self.version, routes, [Arc::from(TENANT)]));
        if let Some(storage) = &mut self.storage {
            if !storage.is_up() {
                return;
            }
            storage.book.follow(&routes, &mut storage.orders);
            for (resource, name, (width, life)) in std::mem::take(&mut self.over) {
                storage.book.ended(resource, &name, (Incarnation(life), width), &mut storage.orders);
            }
            self.tell_orders(now);
        }
        self.tell_all(now, |_| ToCore::Routes(Arc::clone(&routes)));
    }

    /// Shards whose logs cannot be opened are served by nobody.
    fn hide_refused(&self, route: &mut StreamRoute) {
        let Some(storage) = &self.storage else { return };
        let refused = |shard: u32| {
            let roles = LogRole::of(route.resource).iter().filter(|role| role.is_vital());
            let mut keys = roles.map(|role| route.log_key(*role, ShardIndex(shard)));
            keys.any(|key| storage.book.obstacle(key).is_some())
        };
        let refused: Vec<bool> = (0..route.shards()).map(refused).collect();
        for (owner, refused) in route.owners.iter_mut().zip(refused) {
            if refused {
                *owner = Owner::Nobody { reason: "not_ready" };
            }
        }
    }

    /// Each core hears at its own time, in order.
    fn tell_all(&mut self, now: Tick, mut message: impl FnMut(usize) -> ToCore) {
        for id in 0..self.nodes.len() {
            self.tell(now, id, message(id));
        }
    }

    fn tell(&mut self, now: Tick, id: usize, message: ToCore) {
        let Some(node) = self.nodes.get_mut(id) else { return };
        // A broker says that it is ready once its cores have heard.
        let late = if now == Tick::ZERO { Duration::ZERO } else { self.rng.duration(self.mail_delay) };
        let at = now + late;
        let at = node.admin.back().map_or(at, |(last, _)| at.max(*last));
        node.admin.push_back((at, message));
    }
}

impl Node {
    /// Whether it has ended: its logs are closed, or had their time.
    fn is_closed(&self, now: Tick) -> bool {
        self.ending.is_some_and(|since| self.core.is_store_closed() || now >= since + CLOSE_MAX)
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

/// The name of a cache.
pub fn cache_name(cache: usize) -> String {
    format!("c{cache}")
}

fn cache_route((cache, life): (usize, u64), owners: &[(u16, u64)]) -> StreamRoute {
    let mut route = route((cache, life), owners, Some(Retention::default()));
    let uid = StreamUid(1 << 40 | (life - 1) << 16 | cache as u64);
    (route.resource, route.uid, route.name) = (Resource::Cache, uid, cache_name_of(cache));
    route
}

fn cache_name_of(cache: usize) -> StreamName {
    StreamName { stream: cache_name(cache).into(), ..name_of(0) }
}

fn name_of(stream: usize) -> StreamName {
    StreamName { tenant: TENANT.into(), namespace: NAMESPACE.into(), stream: stream_name(stream).into() }
}

fn route((stream, incarnation): (usize, u64), owners: &[(u16, u64)], log: Option<Retention>) -> StreamRoute {
    let here = |(core, generation): &(u16, u64)| Owner::Here {
        core: CoreId(*core),
        generation: Generation(*generation),
    };
    StreamRoute {
        resource: Resource::Stream,
        uid: StreamUid(stream as u64 + 1 + ((incarnation - 1) << 16)),
        name: name_of(stream),
        incarnation: Incarnation(incarnation),
        mapping: KeyMapping::JumpHash,
        log,
        owners: owners.iter().map(here).collect(),
    }
}

fn kind_of(mail: &Mail) -> u64 {
    match mail {
        Mail::ToShard(to) => 1_000 + u64::from(to.shard.shard.0),
        Mail::FromShard(from) => 2_000 + u64::from(from.shard.shard.0),
        Mail::Stray(datagram) => 3_000 + datagram.data.len() as u64,
        Mail::List(_) => 4_000,
    }
}
