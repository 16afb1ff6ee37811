//! One core: connections, sessions, the shards it owns and the feeds it reads. Sans-io: datagrams, messages and time in,
//! datagrams and messages out. The real loop (`run`) and the simulator drive the same value.
//! Scope: one per core. Owns: everything that is not a socket or a clock.
//! Invariants: a core touches its own shards only; what goes to another core's shard is a message that carries credit;
//! every publish handed on is settled once, also when its connection is gone.
//! Not here: what a frame means (`session`), what a shard does (`shard`).

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use felix_logstore::id::ShardKey;
use felix_runtime::clock::Tick;
use felix_runtime::mailbox::Credit;
use felix_runtime::quic::{ConnKey, Dir, Quic, QuicEvent, StreamId, Transmits, VarInt};
use felix_wire::id::{CoreId, Generation, Offset, ShardIndex};
use slab::Slab;

use super::asking::{AskJob, AskedAgain};
use super::caches::{CacheWanted, CachesLed};
use super::compacting::Compacting;
use super::counters::{CoreCounters, Counter};
use super::lane::Lane;
use super::listing::{ListMail, Listing};
use super::publishing::{Job, Origin};
use super::ready::Ready;
use super::storage::Wanted;
use super::subscribing::{FeedKey, Sub};
use super::tenants::Tenants;
use super::watching::Watching;
use crate::access::Access;
use crate::hash::HashState;
use crate::lease::Leases;
use crate::projection::group::ConnectionId;
use crate::projection::producer::ProducerIds;
use crate::projection::stream::feed::Feed;
use crate::session::acks::AckSlot;
use crate::session::{Action, CLOSE_SHUTDOWN, Cx, Session};
use crate::shard::cache::CacheShard;
use crate::shard::group::GroupShard;
use crate::shard::mail::{Ending, FromShard, SubToken, ToShard};
use crate::shard::ring::RingLimits;
use crate::shard::{Outputs, Shard};
use crate::snapshot::{CoreLimits, FromCore, Keys, LogRole, Owner, Resource, Routes, ShardId, ToCore};
use crate::store::{LogSource, Store};

/// Bytes read from streams in one turn before datagrams are looked at again.
const TURN_BYTES: usize = 4 << 20;
/// How often session deadlines, parked publishes and budgets are looked at.
const SWEEP: Duration = Duration::from_millis(50);

type Map<K, V> = HashMap<K, V, HashState>;

/// One datagram as received.
#[derive(Debug)]
pub struct Datagram {
    pub remote: SocketAddr,
    pub local_ip: Option<IpAddr>,
    pub ecn: Option<u8>,
    pub data: BytesMut,
}

/// From one core to another.
#[derive(Debug)]
pub enum Mail {
    ToShard(ToShard),
    FromShard(FromShard),
    /// A datagram of a connection that the receiver owns.
    Stray(Datagram),
    List(ListMail),
}

/// How far a shutdown has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Drain {
    No,
    /// No new connections or streams; what was read is being settled.
    Settling {
        until: Tick,
    },
    /// Everything is answered; the answers are on their way.
    Leaving {
        until: Tick,
    },
    /// CONNECTION_CLOSE was sent.
    Closing {
        until: Tick,
    },
    Done,
}

/// See the module.
pub struct Core {
    pub(super) id: CoreId,
    pub(super) cores: u16,
    /// Random per process; in-memory positions of another boot mean nothing.
    pub(super) boot: u64,
    pub(super) limits: Arc<CoreLimits>,
    pub(super) counters: CoreCounters,
    pub(super) tenants: Tenants,
    pub(super) quic: Quic,
    access: Access,
    keys: Arc<Keys>,
    pub(super) routes: Arc<Routes>,
    producer_ids: ProducerIds,
    scratch: String,
    pub(super) windows_bytes: usize,
    pub(super) sessions: Map<ConnKey, Session>,
    /// Connections there ever were.
    connections: u64,
    pub(super) shards: Map<ShardId, Shard>,
    /// The logs of this core, once recovery has ended.
    pub(super) store: Option<Store>,
    /// Where logs come from that are not open yet.
    pub(super) granted: BTreeMap<ShardKey, (u16, LogSource)>,
    /// Durable shards of this core that are not served yet.
    pub(super) wanted: Vec<(ShardId, Wanted)>,
    /// Those whose log could not be made; they are wanted again in a while.
    pub(super) unmade: Vec<(ShardId, Wanted)>,
    pub(super) caches: Map<ShardId, CacheShard>,
    /// Durable shards of caches of this core that are not served yet, and those whose log could not be made.
    pub(super) caches_wanted: Vec<(ShardId, CacheWanted)>,
    pub(super) caches_unmade: Vec<(ShardId, CacheWanted)>,
    /// Those that have read more of their logs than they have taken.
    pub(super) caches_replaying: Vec<ShardId>,
    /// Consumer groups by their shard, and when the first of them has something to do.
    pub(super) groups: Map<ShardId, GroupShard>,
    pub(super) groups_due: Option<Tick>,
    /// Members of the groups of streams whose shard 0 is here.
    pub(super) leases: Leases,
    pub(super) compacting: Compacting,
    /// Machines opened over logs so far.
    pub(super) lives: u64,
    pub(super) next_retain: Tick,
    pub(super) next_log_figures: Tick,
    pub(super) rings_bytes: usize,
    /// Shards that turned a sender away for want of room.
    pub(super) starved: Vec<ShardId>,
    /// Something was unpinned or freed since they were last tried.
    pub(super) rings_moved: bool,
    pub(super) lanes: Map<ShardId, Lane>,
    /// Lanes that hold publishes back.
    pub(super) blocked: Vec<ShardId>,
    pub(super) jobs: Slab<Job>,
    /// Requests that are not answered, and their bytes.
    pub(super) asks: Slab<AskJob>,
    pub(super) asks_bytes: usize,
    /// Those that came back.
    pub(super) asks_back: Vec<AskedAgain>,
    /// Questions about subscriptions that other cores have not answered.
    pub(super) listings: Slab<Listing>,
    pub(super) credits: Vec<Credit>,
    /// Lanes that wait for credit, by the core they send to.
    pub(super) credit_queues: Vec<VecDeque<ShardId>>,
    pub(super) feeds: Map<FeedKey, Feed>,
    pub(super) subs: Slab<Sub>,
    pub(super) next_sub: u64,
    pub(super) watches: Watching,
    pub(super) event_streams: Map<(ConnKey, StreamId), SubToken>,
    pub(super) active: VecDeque<SubToken>,
    pub(super) ready: Ready,
    /// Streams with answers to write.
    pub(super) touched: Vec<(ConnKey, StreamId)>,
    /// Answers of publishes that were appended at once, until their session is told.
    pub(super) answers: Vec<(AckSlot, Offset)>,
    actions: Vec<Action>,
    pub(super) shard_out: Outputs,
    /// Shards with something to answer at the end of the turn.
    pub(super) dirty: Vec<ShardId>,
    pub(super) outbox: Vec<VecDeque<Mail>>,
    admin_out: Vec<FromCore>,
    next_sweep: Option<Tick>,
    drain: Drain,
    unix_s: u64,
    pub(super) unix_ms: u64,
}

/// What a core is made of.
pub struct CoreParts {
    pub id: CoreId,
    pub cores: u16,
    pub boot: u64,
    pub limits: Arc<CoreLimits>,
    pub counters: CoreCounters,
    pub quic: Quic,
}

impl Core {
    /// A core that knows no stream and no key.
    pub fn new(parts: CoreParts) -> Core {
        let CoreParts { id, cores, boot, limits, counters, quic } = parts;
        let credit = || Credit::new(limits.pair_credit_items, limits.pair_credit_bytes as u64);
        Core {
            id,
            cores,
            boot,
            credits: std::iter::repeat_with(credit).take(usize::from(cores)).collect(),
            credit_queues: std::iter::repeat_with(VecDeque::new).take(usize::from(cores)).collect(),
            outbox: std::iter::repeat_with(VecDeque::new).take(usize::from(cores)).collect(),
            tenants: Tenants::new(limits.tenant_labels_max),
            limits,
            counters,
            quic,
            access: Access::default(),
            keys: Arc::default(),
            routes: Arc::default(),
            producer_ids: ProducerIds::new(boot, id),
            scratch: String::new(),
            windows_bytes: 0,
            sessions: Map::default(),
            connections: 0,
            shards: Map::default(),
            store: None,
            granted: BTreeMap::new(),
            wanted: Vec::new(),
            unmade: Vec::new(),
            caches: Map::default(),
            caches_wanted: Vec::new(),
            caches_unmade: Vec::new(),
            caches_replaying: Vec::new(),
            groups: Map::default(),
            groups_due: None,
            leases: Leases::default(),
            compacting: Compacting::default(),
            lives: 0,
            next_retain: Tick::ZERO,
            next_log_figures: Tick::ZERO,
            rings_bytes: 0,
            starved: Vec::new(),
            rings_moved: false,
            lanes: Map::default(),
            blocked: Vec::new(),
            jobs: Slab::new(),
            asks: Slab::new(),
            asks_bytes: 0,
            asks_back: Vec::new(),
            listings: Slab::new(),
            feeds: Map::default(),
            subs: Slab::new(),
            next_sub: 0,
            watches: Watching::default(),
            event_streams: Map::default(),
            active: VecDeque::new(),
            ready: Ready::default(),
            touched: Vec::new(),
            answers: Vec::new(),
            actions: Vec::new(),
            shard_out: Vec::new(),
            dirty: Vec::new(),
            admin_out: Vec::new(),
            next_sweep: None,
            drain: Drain::No,
            unix_s: 0,
            unix_ms: 0,
        }
    }

    /// A received datagram. One that belongs to another core goes there untouched.
    pub fn handle_datagram(&mut self, now: Tick, datagram: Datagram) {
        self.counters.add(Counter::Datagrams, 1);
        let owner = Quic::core_of_datagram(&datagram.data, self.cores);
        match owner {
            Some(core) if core != self.id.0 => {
                self.counters.add(Counter::StrayDatagrams, 1);
                if let Some(outbox) = self.outbox.get_mut(usize::from(core)) {
                    // Bounded like the network it stands for: a full box loses the datagram.
                    if outbox.len() < felix_runtime::mailbox::MAILBOX_SLOTS as usize {
                        outbox.push_back(Mail::Stray(datagram));
                    }
                }
            }
            _ => {
                let Datagram { remote, local_ip, ecn, data } = datagram;
                self.quic.handle_datagram(now, remote, local_ip, ecn, data);
            }
        }
    }

    /// A message of another core.
    pub fn handle_mail(&mut self, now: Tick, from: CoreId, mail: Mail) {
        match mail {
            Mail::Stray(Datagram { remote, local_ip, ecn, data }) => {
                self.quic.handle_datagram(now, remote, local_ip, ecn, data);
            }
            Mail::ToShard(to) => {
                self.handle_ask(now, from, to);
                self.route_outputs(now);
            }
            Mail::FromShard(answer) => self.handle_answer(now, answer),
            Mail::List(list) => self.handle_list(now, from, list),
        }
    }

    /// A message of the admin thread. False when the core is to end.
    pub fn handle_admin(&mut self, now: Tick, message: ToCore) -> bool {
        match message {
            ToCore::Routes(routes) => self.take_routes(now, routes),
            ToCore::Keys(keys) => self.take_keys(now, keys),
            ToCore::Log(order) => self.handle_log_order(now, order),
            // The loop has the disk and opens the store.
            ToCore::Volumes(_) => {}
            ToCore::Tls(tls) => {
                if let Err(error) = self.quic.set_server_tls(&tls) {
                    tracing::error!(%error, "the new certificate cannot be used; the old one stays");
                }
            }
            ToCore::Drain if self.drain == Drain::No => {
                self.quic.refuse_new(true);
                self.drain = Drain::Settling { until: now + self.limits.drain_timeout / 2 };
                self.end_polls(now);
            }
            ToCore::Drain => {}
            ToCore::Stop => {
                self.close_all(now);
                return false;
            }
        }
        true
    }

    /// It is `unix_ms` milliseconds since 1970. To be called before messages are taken that came while the core slept: what
    /// they ask for happens now, not at the time of the last turn.
    pub fn set_time(&mut self, unix_ms: u64) {
        self.unix_s = unix_ms / 1_000;
        self.unix_ms = unix_ms;
    }

    /// Runs everything that is due, within the turn's budget. True when there is more to do at once. `unix_ms`:
    /// milliseconds since 1970.
    pub fn turn(&mut self, now: Tick, unix_ms: u64) -> bool {
        self.set_time(unix_ms);
        self.leases.begin(now, unix_ms);
        self.counters.add(Counter::Turns, 1);
        self.quic.handle_timeouts(now);
        self.handle_events(now);
        self.serve_credit(now);
        let mut bytes = 0;
        while bytes < TURN_BYTES {
            let Some(((conn, stream), budget)) = self.ready.pop() else { break };
            bytes += self.pump(now, conn, stream, budget);
        }
        self.run_store(now);
        self.run_groups(now);
        self.run_leases(now);
        self.collect_for_watches(now);
        self.replay_caches(now);
        self.run_compaction(now);
        self.flush_shards(now);
        self.flush_touched(now);
        self.pump_subscriptions(now);
        self.retry_starved();
        self.flush_shards(now);
        if self.next_sweep.is_none_or(|at| at <= now) {
            self.sweep(now);
        }
        self.advance_drain(now);
        let asked = self.store.as_ref().is_some_and(Store::is_asked);
        asked
            || self.watches.is_collecting()
            || !self.caches_replaying.is_empty()
            || !self.ready.is_empty()
            || !self.active.is_empty()
            || !self.touched.is_empty()
    }

    /// Datagrams to send.
    pub fn poll_transmit(&mut self, now: Tick, batch: &mut Transmits) -> usize {
        self.quic.poll_transmit(now, batch)
    }

    /// The next message to another core; `give_back` returns it when there is no room.
    pub fn poll_mail(&mut self, to: CoreId) -> Option<Mail> {
        self.outbox.get_mut(usize::from(to.0))?.pop_front()
    }

    /// The message found no room; it stays first.
    pub fn give_back(&mut self, to: CoreId, mail: Mail) {
        if let Some(outbox) = self.outbox.get_mut(usize::from(to.0)) {
            outbox.push_front(mail);
        }
    }

    /// Whether messages wait for room in a mailbox.
    pub fn has_mail(&self) -> bool {
        self.outbox.iter().any(|o| !o.is_empty())
    }

    /// What the admin thread is to be told.
    pub fn poll_admin(&mut self) -> Option<FromCore> {
        self.admin_out.pop().or_else(|| self.tenants.poll_report(self.id).map(FromCore::Tenants))
    }

    /// When `turn` must run next if nothing arrives.
    pub fn next_timeout(&mut self) -> Option<Tick> {
        // Gauges that are not up to date count as work: nothing else may ever come to a core without connections.
        let told = self.gauges().into_iter().all(|(gauge, now)| self.counters.get(gauge) == now);
        let quiet = self.sessions.is_empty()
            && self.jobs.is_empty()
            && self.asks.is_empty()
            && self.caches.is_empty()
            && self.starved.is_empty()
            && self.wanted.is_empty()
            && self.store.is_none();
        let idle = quiet && told && !self.tenants.is_untold() && self.drain == Drain::No;
        let sweep = self.next_sweep.filter(|_| !idle);
        let store = self.store.as_ref().and_then(Store::next_timeout);
        let due = [sweep, store, self.groups_due, self.leases.next_deadline(), self.compacting.due()];
        self.quic.next_timeout().into_iter().chain(due.into_iter().flatten()).min()
    }

    /// Whether a drain has ended.
    pub fn is_drained(&self) -> bool {
        self.drain == Drain::Done
    }

    /// A view for a session call.
    pub(super) fn with_session<R>(
        &mut self,
        now: Tick,
        conn: ConnKey,
        f: impl FnOnce(&mut Session, &mut Cx<'_>) -> R,
    ) -> Option<R> {
        let session = self.sessions.get_mut(&conn)?;
        let mut cx = Cx {
            now,
            now_s: self.unix_s,
            core: self.id,
            cores: self.cores,
            draining: self.drain != Drain::No,
            quic: &mut self.quic,
            limits: &self.limits,
            access: &mut self.access,
            keys: &self.keys,
            routes: &self.routes,
            counters: &self.counters,
            tenants: &mut self.tenants,
            windows_bytes: &mut self.windows_bytes,
            producer_ids: &mut self.producer_ids,
            scratch: &mut self.scratch,
            actions: &mut self.actions,
        };
        Some(f(session, &mut cx))
    }

    fn handle_events(&mut self, now: Tick) {
        while let Some((conn, event)) = self.quic.poll_event() {
            match event {
                QuicEvent::Connected => {
                    self.connections += 1;
                    let number = ConnectionId(u64::from(self.id.0) << 48 | self.connections);
                    self.sessions.insert(conn, Session::new(conn, number, now));
                    self.next_sweep.get_or_insert(now + SWEEP);
                }
                QuicEvent::StreamOpened { stream, dir } => {
                    self.with_session(now, conn, |s, cx| s.opened(stream, dir, cx));
                    self.run_actions(now, conn);
                }
                QuicEvent::Readable { stream } => self.make_ready(conn, stream),
                QuicEvent::Writable { stream } => match self.event_streams.get(&(conn, stream)) {
                    Some(token) => self.active.push_back(*token),
                    None => self.touched.push((conn, stream)),
                },
                QuicEvent::Stopped { stream, .. } => match self.event_streams.get(&(conn, stream)).copied() {
                    Some(token) => self.end_subscription(now, token),
                    None => {
                        if self.with_session(now, conn, |s, cx| s.stopped(stream, cx)) == Some(true) {
                            self.cancel_asks(now, conn, Some(stream));
                        }
                    }
                },
                QuicEvent::Closed { .. } => self.forget_connection(now, conn),
                QuicEvent::Finished { .. } | QuicEvent::StreamsAvailable { dir: Dir::Bi | Dir::Uni } => {}
            }
        }
    }

    fn forget_connection(&mut self, now: Tick, conn: ConnKey) {
        let Some(session) = self.sessions.remove(&conn) else {
            self.counters.add(Counter::HandshakeFailures, 1);
            return;
        };
        self.windows_bytes -= session.window_bytes;
        let ended: Vec<SubToken> =
            self.subs.iter().filter(|(_, s)| s.conn == conn).map(|(_, s)| s.token).collect();
        for token in ended.into_iter().chain(self.watches.of(conn)) {
            self.end_subscription(now, token);
        }
        self.cancel_asks(now, conn, None);
    }

    pub(super) fn make_ready(&mut self, conn: ConnKey, stream: StreamId) {
        if let Some(session) = self.sessions.get(&conn) {
            self.ready.push(session.tenant_of(stream), (conn, stream));
        }
    }

    fn pump(&mut self, now: Tick, conn: ConnKey, stream: StreamId, budget: usize) -> usize {
        if matches!(self.drain, Drain::Leaving { .. } | Drain::Closing { .. } | Drain::Done) {
            return 0;
        }
        let pumped = self.with_session(now, conn, |s, cx| s.pump(stream, budget, cx));
        let Some(pumped) = pumped else { return 0 };
        let tenant = self.sessions.get(&conn).and_then(|s| s.tenant_of(stream));
        self.ready.charge(tenant, pumped.bytes);
        self.run_actions(now, conn);
        self.flush_stream(now, conn, stream);
        if pumped.again {
            self.make_ready(conn, stream);
        }
        self.resume_partial(now, conn);
        pumped.bytes.max(1_024)
    }

    /// Streams of the connection that waited for room in reassembly go on when there is some.
    fn resume_partial(&mut self, now: Tick, conn: ConnKey) {
        let limits = &self.limits;
        let waiting = self.sessions.get_mut(&conn).map(|s| s.take_waiting(limits, now));
        for other in waiting.unwrap_or_default() {
            self.make_ready(conn, other);
        }
    }

    /// Carries out what a session asked for.
    pub(super) fn run_actions(&mut self, now: Tick, conn: ConnKey) {
        let mut actions = std::mem::take(&mut self.actions);
        let mut rest = actions.drain(..);
        while let Some(action) = rest.next() {
            match action {
                Action::Publish(publish) => {
                    let origin = Origin { conn, stream: publish.stream, tenant: publish.tenant };
                    self.publish(now, origin, publish, &mut rest);
                }
                Action::Subscribe(ask) => self.subscribe(now, conn, *ask),
                Action::Ask(ask) => self.ask(now, conn, *ask),
                Action::Watch(ask) => self.watch(now, conn, *ask),
                Action::List(ask) => self.list(now, conn, *ask),
                Action::NeedKeys { tenant, kid } => self.admin_out.push(FromCore::NeedKeys { tenant, kid }),
                Action::Close { code, reason } => {
                    let reason = Bytes::from_static(reason.as_bytes());
                    self.quic.close(now, conn, VarInt::from_u32(code), reason);
                }
            }
        }
        drop(rest);
        self.actions = actions;
    }

    fn flush_touched(&mut self, now: Tick) {
        let mut touched = std::mem::take(&mut self.touched);
        touched.dedup();
        for (conn, stream) in touched.drain(..) {
            self.flush_stream(now, conn, stream);
        }
        if self.touched.is_empty() {
            self.touched = touched;
        }
    }

    fn flush_stream(&mut self, now: Tick, conn: ConnKey, stream: StreamId) {
        if self.with_session(now, conn, |s, cx| s.flush(stream, cx)) == Some(true) {
            self.make_ready(conn, stream);
        }
    }

    /// Answers what the shards owe, until nothing more comes of it.
    fn flush_shards(&mut self, now: Tick) {
        while let Some(id) = self.dirty.pop() {
            let free_bytes = self.limits.rings_bytes_max.saturating_sub(self.rings_bytes);
            let Some(shard) = self.shards.get_mut(&id) else { continue };
            let before = shard.ring_bytes();
            shard.flush(free_bytes, &mut self.shard_out);
            self.rings_bytes = self.rings_bytes + shard.ring_bytes() - before;
            self.rings_moved |= !self.shard_out.is_empty();
            self.route_outputs(now);
        }
    }

    /// Sends what the shards said to whom it is for.
    pub(super) fn route_outputs(&mut self, now: Tick) {
        let mut outputs = std::mem::take(&mut self.shard_out);
        for (core, answer) in outputs.drain(..) {
            if core == self.id {
                self.handle_answer(now, answer);
            } else if let Some(outbox) = self.outbox.get_mut(usize::from(core.0)) {
                outbox.push_back(Mail::FromShard(answer));
            }
        }
        if self.shard_out.is_empty() {
            self.shard_out = outputs;
        } else {
            self.route_outputs(now);
        }
    }

    /// Sends to the owner of a shard, which may be this core.
    pub(super) fn ask_shard(&mut self, now: Tick, owner: CoreId, to: ToShard) {
        if owner == self.id {
            self.handle_ask(now, owner, to);
            self.route_outputs(now);
        } else if let Some(outbox) = self.outbox.get_mut(usize::from(owner.0)) {
            outbox.push_back(Mail::ToShard(to));
        }
    }

    /// What the numbers that are not counted as things happen should say.
    fn gauges(&self) -> [(Counter, u64); 7] {
        let refused = self.quic.refused();
        [
            (Counter::ConnectionsRefused, refused.closing + refused.full + refused.per_ip),
            (Counter::Connections, self.sessions.len() as u64),
            (Counter::RingBytes, self.rings_bytes as u64),
            (Counter::Shards, self.shards.len() as u64),
            (Counter::Subscriptions, self.subs.len() as u64),
            (Counter::Watches, self.watches.len() as u64),
            (Counter::AsksWaiting, self.asks.len() as u64),
        ]
    }

    fn sweep(&mut self, now: Tick) {
        self.next_sweep = Some(now + SWEEP);
        let conns: Vec<ConnKey> = self.sessions.keys().copied().collect();
        for conn in conns {
            let limits = Arc::clone(&self.limits);
            let due = self.sessions.get(&conn).and_then(|s| s.next_timeout(&limits, self.unix_s, now));
            if due.is_some_and(|at| at <= now) {
                let ended = self.with_session(now, conn, |s, cx| s.handle_timeout(cx)).unwrap_or_default();
                self.run_actions(now, conn);
                for identity in ended {
                    self.expire_subscriptions(now, conn, identity);
                }
            }
            self.resume_partial(now, conn);
        }
        self.give_up_partials(now);
        self.bound_queues();
        self.sweep_store(now);
        self.sweep_lanes(now);
        self.sweep_caches(now);
        self.sweep_groups(now);
        self.sweep_compaction(now);
        self.sweep_asks(now);
        self.sweep_watches(now);
        for (gauge, now) in self.gauges() {
            self.counters.set(gauge, now);
        }
        self.count_dropped();
        self.tenants.handle_timeout(now);
        self.counters.set(Counter::MailDepth, self.outbox.iter().map(VecDeque::len).sum::<usize>() as u64);
    }

    /// Unfinished frames over the core's budget: those that have been under way longest go.
    fn give_up_partials(&mut self, now: Tick) {
        let max = self.limits.windows_bytes_max.max(2 * self.limits.partial_frame_bytes_max);
        let mut held: usize = self.sessions.values().map(Session::partial_bytes).sum();
        if held <= max {
            return;
        }
        let of_session =
            |(conn, s): (&ConnKey, &Session)| s.partials().map(|p| (*conn, p)).collect::<Vec<_>>();
        let mut partials: Vec<_> = self.sessions.iter().flat_map(of_session).collect();
        partials.sort_unstable_by_key(|(_, (since, ..))| *since);
        for (conn, (_, stream, bytes)) in partials {
            if held <= max {
                break;
            }
            held -= bytes;
            self.counters.add(Counter::FramesGivenUp, 1);
            self.with_session(now, conn, |s, cx| s.give_up(stream, cx));
            self.run_actions(now, conn);
            self.resume_partial(now, conn);
        }
    }

    fn take_keys(&mut self, now: Tick, keys: Arc<Keys>) {
        self.keys = keys;
        self.access.forget_all();
        self.decide_waiting(now);
    }

    /// Lets streams that wait for keys be decided by the keys and routes there are now.
    fn decide_waiting(&mut self, now: Tick) {
        let waiting: Vec<ConnKey> =
            self.sessions.iter().filter(|(_, s)| s.waits_for_keys()).map(|(conn, _)| *conn).collect();
        for conn in waiting {
            let streams = self.with_session(now, conn, |s, cx| s.keys_changed(cx)).unwrap_or_default();
            self.run_actions(now, conn);
            for stream in streams {
                self.make_ready(conn, stream);
            }
        }
    }

    fn take_routes(&mut self, now: Tick, routes: Arc<Routes>) {
        if routes.version < self.routes.version {
            return;
        }
        self.routes = routes;
        self.decide_waiting(now);
        let routes = Arc::clone(&self.routes);
        let mut served: Map<ShardId, Generation> = Map::default();
        let mut wanted: Vec<(ShardId, Wanted)> = Vec::new();
        let mut caches = CachesLed::default();
        for route in routes.iter() {
            for (index, owner) in (0..).map(ShardIndex).zip(&route.owners) {
                let Owner::Here { core, generation } = owner else { continue };
                if *core != self.id {
                    continue;
                }
                let (id, generation) = (ShardId { stream: route.uid, shard: index }, *generation);
                match (route.resource, route.log) {
                    (Resource::Cache, None) => caches.in_memory.push((id, generation)),
                    (Resource::Cache, Some(_)) => {
                        let keys = [LogRole::Cache, LogRole::Counters].map(|role| route.log_key(role, index));
                        caches.logged.push((id, CacheWanted { generation, keys }));
                    }
                    (Resource::Stream, retention) => {
                        served.insert(id, generation);
                        if let Some(retention) = retention {
                            let key = route.log_key(LogRole::Records, index);
                            wanted.push((id, Wanted { generation, key, retention }));
                        }
                    }
                }
            }
        }
        let gone: Vec<ShardId> = self
            .shards
            .iter()
            .filter(|(id, s)| served.get(id) != Some(&s.generation()))
            .map(|(id, _)| *id)
            .collect();
        for id in gone {
            let why = if routes.route(id.stream).is_some() { Ending::Moved } else { Ending::Deleted };
            self.close_shard(now, id, why);
        }
        let ring = self.ring_limits();
        for (id, _) in &wanted {
            served.remove(id);
        }
        for (id, generation) in served {
            self.shards.entry(id).or_insert_with(|| Shard::open(id, generation, ring));
        }
        self.want_logged(now, wanted);
        self.lead_caches(now, caches, |id| routes.route(id.stream).is_some());
        self.reroute_lanes(now);
        self.sweep_asks(now);
        self.watch_again(now);
    }

    /// Bounds of the ring of a shard.
    pub(super) fn ring_limits(&self) -> RingLimits {
        RingLimits {
            records_max: u64::from(self.limits.ring_records_max),
            bytes_max: self.limits.ring_bytes_max,
        }
    }

    /// Has the admin thread told.
    pub(super) fn tell_admin(&mut self, message: FromCore) {
        self.admin_out.push(message);
    }

    fn advance_drain(&mut self, now: Tick) {
        match self.drain {
            Drain::Settling { until } => {
                let settled = self.jobs.is_empty() && self.sessions.values().all(Session::is_settled);
                if settled || now >= until {
                    let wait = self
                        .limits
                        .close_wait
                        .min(Duration::from_millis(if self.sessions.is_empty() { 0 } else { 250 }));
                    self.drain = Drain::Leaving { until: now + wait };
                }
            }
            Drain::Leaving { until } if now >= until => {
                self.close_all(now);
                self.drain = Drain::Closing { until: now + self.limits.close_wait };
            }
            Drain::Closing { until } if now >= until || self.quic.connection_count() == 0 => {
                self.drain = Drain::Done;
                self.admin_out.push(FromCore::Drained { core: self.id });
            }
            _ => {}
        }
    }

    fn close_all(&mut self, now: Tick) {
        let conns: Vec<ConnKey> = self.sessions.keys().copied().collect();
        for conn in conns {
            let code = VarInt::from_u32(CLOSE_SHUTDOWN);
            self.quic.close(now, conn, code, Bytes::from_static(b"shutting down"));
        }
    }
}
