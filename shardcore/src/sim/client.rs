//! A simulated client process: its connections and their streams, frame by frame. Scope: one per client.
//! Owns: its QUIC machine, tokens, and what each stream is for. Invariants: behaves as client-protocol says a 0.6.2 client
//! does (one `auth` per stream, awaited; FIN behind `subscribe`; events read only once the answer is there), or as ours does.
//! Not here: what is published (`publisher`), what subscriptions do (`subscriber`), what is right (`check`).

mod streamless;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use felix_runtime::clock::Tick;
use felix_runtime::quic::{
    CloseReason, ConnKey, Dir, KEY_BYTES, Quic, QuicEvent, QuicSettings, ReadOutcome, StreamId, Transmits,
    VarInt, WriteState,
};
use felix_runtime::sim::{Delivery, SimNet, SimRng};
use felix_wire::client::{Auth, AuthOk, Message};
use felix_wire::features::Features;
use felix_wire::flags::Flags;
use felix_wire::frame::{Frame, FrameReader};

use super::asks::Asker;
use super::broker::UNIX_S;
use super::check::Model;
use super::credentials::{Credentials, TENANT};
use super::durable::Excuses;
use super::history::Histories;
use super::plan::{ClientPlan, Plan};
use super::publisher::Publisher;
use super::subscriber::Subscriber;
use super::trace::Trace;
use super::watcher::Watcher;
use crate::session::{CLOSE_AUTH, CLOSE_SHUTDOWN};

/// What the 0.6.2 Python client announces (client-protocol 4.1).
const PYTHON_FLAGS: u16 = 8_191;
const PYTHON_FEATURES: u32 = 4_218_945_535;
const PYTHON_FEATURES_HI: u32 = 15;
/// Unwritten bytes a stream of ours may hold before its publisher waits.
const OUT_BYTES_MAX: usize = 64 << 10;
/// After a lost connection it dials again this much later.
const REDIAL: Duration = Duration::from_millis(100);

/// Code of a reset of the stream of a watch that does not read.
const RESET_LAGGED: u64 = 3;

/// What a client that asks about caches and groups may do.
const ASKS_RIGHTS: [&str; 5] =
    ["stream.publish", "stream.subscribe", "stream.manage", "cache.read", "cache.write"];

/// What a stream is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Publish(usize),
    Ask(usize),
    /// Requests about a cache, its counters or a group.
    Requests(usize),
    /// A watch of a cache.
    Watch(usize),
    /// Nothing but a newer token.
    Renew,
    /// A unidirectional stream of the broker; the subscription once its hello was read.
    Events(Option<u64>),
}

impl Role {
    fn number(self) -> u64 {
        match self {
            Role::Publish(at) => at as u64,
            Role::Ask(at) => 100 + at as u64,
            Role::Requests(at) => 400 + at as u64,
            Role::Watch(at) => 500 + at as u64,
            Role::Renew => 200,
            Role::Events(_) => 300,
        }
    }
}

/// One stream.
#[derive(Debug)]
pub struct Wire {
    pub role: Role,
    pub reader: FrameReader,
    out: BytesMut,
    front: Bytes,
    /// The broker accepted the token; for events, there is nothing to accept.
    pub ready: bool,
    /// End of the token it was opened with, seconds since 1970.
    expires_s: u64,
    fin: bool,
    done: bool,
}

/// One connection of the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    Dialing(ConnKey),
    Up(ConnKey),
    Down { redial_at: Tick },
}

type WireKey = (ConnKey, StreamId);

/// See the module.
pub struct Client {
    pub index: usize,
    pub addr: SocketAddr,
    pub plan: ClientPlan,
    pub links: Vec<Link>,
    pub wires: BTreeMap<WireKey, Wire>,
    pub publishers: Vec<Publisher>,
    pub subscribers: Vec<Subscriber>,
    pub askers: Vec<Asker>,
    pub watchers: Vec<Watcher>,
    /// Streams of watches that were reset before their hello was read, and of which watch is not known.
    resets_unread: u32,
    pub dead: bool,
    /// The broker is ending or the client is: nothing is begun any more.
    pub closing: bool,
    pub drained: bool,
    /// It is there to look at everything after healing.
    pub probes: bool,
    quic: Quic,
    broker: SocketAddr,
    readable: BTreeSet<WireKey>,
    batch: Transmits,
    token: (u64, Arc<str>),
    renew_at: Option<Tick>,
    auths: u64,
}

/// What a client needs of the world for a step.
pub struct Surroundings<'a> {
    pub now: Tick,
    /// Nothing new is published from here on.
    pub heal_at: Tick,
    pub rng: &'a mut SimRng,
    pub model: &'a mut Model,
    pub histories: &'a mut Histories,
    pub trace: &'a mut Trace,
    pub shards: &'a [u32],
    /// Streams that were deleted, now or before.
    pub deleted: &'a [bool],
    /// Not every core has the newest routes.
    pub moving: bool,
    /// Generations now, by stream and shard.
    pub generations: &'a [Vec<u64>],
    /// Lives of the streams' names now, and which are deleted now.
    pub lives: &'a [u64],
    pub gone: &'a [bool],
    /// The same of caches.
    pub caches_deleted: &'a [bool],
    pub caches_gone: &'a [bool],
    pub cache_lives: &'a [u64],
    /// What has happened that explains refusals and losses.
    pub excuses: &'a Excuses,
}

impl Client {
    /// A client that has not dialed yet.
    pub fn new(index: usize, plan: &Plan, zero: Instant, broker: SocketAddr, rng: &mut SimRng) -> Client {
        let settings = QuicSettings {
            keep_alive: Some(Duration::from_secs(2)),
            idle_timeout: Duration::from_secs(10),
            stream_window: 64 << 10,
            conn_window_before_auth: 1 << 20,
            seed: Some(rng.seed_bytes()),
            ..QuicSettings::new([1; KEY_BYTES], [2; KEY_BYTES])
        };
        let mine = plan.clients[index].clone();
        let links = if mine.ours { usize::from(plan.cores) } else { 1 };
        Client {
            index,
            addr: SocketAddr::from(([10, 0, 1, 1], 40_000 + index as u16)),
            links: vec![Link::Down { redial_at: Tick::ZERO }; links],
            wires: BTreeMap::new(),
            publishers: mine.publishers.iter().map(|p| Publisher::new(p.clone())).collect(),
            subscribers: mine
                .subscribers
                .iter()
                .map(|s| Subscriber::new(*s, mine.ours || plan.storage.is_some()))
                .collect(),
            askers: mine.askers.iter().map(|plan| Asker::new(*plan)).collect(),
            watchers: mine.watchers.iter().map(|plan| Watcher::new(*plan)).collect(),
            resets_unread: 0,
            plan: mine,
            dead: false,
            closing: false,
            drained: false,
            probes: false,
            quic: Quic::new(settings, None, zero).expect("settings of a client"),
            broker,
            readable: BTreeSet::new(),
            batch: Transmits::new(16),
            token: (0, Arc::from("")),
            renew_at: None,
            auths: 0,
        }
    }

    /// A datagram for it.
    pub fn receive(&mut self, now: Tick, delivery: Delivery) {
        if !self.dead {
            let Delivery { from, to, bytes, .. } = delivery;
            self.quic.handle_datagram(now, from, Some(to.ip()), None, bytes);
        }
    }

    /// The next moment at which it does something by itself.
    pub fn next(&mut self, now: Tick) -> Option<Tick> {
        if self.dead {
            return None;
        }
        let redial = self.links.iter().filter_map(|l| match l {
            Link::Down { redial_at } if !self.closing => Some(*redial_at),
            _ => None,
        });
        let renew = self.renew_at.filter(|_| !self.closing);
        let publishers = self.publishers.iter().filter_map(|p| p.next(now));
        let subscribers = self.subscribers.iter().filter_map(|s| s.next(now));
        let askers = self.askers.iter().filter_map(|asker| asker.next(now));
        let watchers = self.watchers.iter().filter_map(|watcher| watcher.next(now));
        let timers = redial.chain(renew).chain(publishers).chain(subscribers).chain(askers).chain(watchers);
        timers.chain(self.quic.next_timeout()).min()
    }

    /// Does everything that can be done now.
    ///
    /// # Errors
    /// What the broker did wrong.
    pub fn step(&mut self, net: &mut SimNet, around: &mut Surroundings<'_>) -> Result<(), String> {
        if self.dead {
            return Ok(());
        }
        self.quic.handle_timeouts(around.now);
        self.dial(around);
        for _ in 0..100 {
            self.events(around)?;
            self.read(around)?;
            self.act(around);
            self.write(around);
            self.transmit(around.now, net, around.trace);
            if !self.quic.has_work() {
                return Ok(());
            }
        }
        Err(format!("client {} does not come to rest", self.index))
    }

    /// Ends it, with a word to the broker or without.
    pub fn end(&mut self, now: Tick, silent: bool, net: &mut SimNet, around: &mut Surroundings<'_>) {
        if !silent {
            self.quic.close_all(now, VarInt::from_u32(0), &Bytes::new());
            self.transmit(now, net, around.trace);
        }
        self.dead = true;
        for publisher in &mut self.publishers {
            publisher.lost(around.model);
        }
        for subscriber in &mut self.subscribers {
            subscriber.broken(around.model);
        }
        self.askers.iter_mut().for_each(|asker| asker.lost(around));
        self.watchers.iter_mut().for_each(|watcher| watcher.end(around));
    }

    /// Closes its connections in order; it goes on answering until they are gone.
    pub fn close(&mut self, now: Tick) {
        self.closing = true;
        self.quic.close_all(now, VarInt::from_u32(0), &Bytes::new());
    }

    /// Whether one of its publishers goes on only with another process.
    pub fn is_stuck(&self) -> bool {
        let publishes = self.publishers.iter().any(Publisher::is_stuck);
        !self.dead && (publishes || self.askers.iter().any(Asker::is_stuck))
    }

    /// Another process begins.
    pub fn unstick(&mut self) {
        self.publishers.iter_mut().for_each(Publisher::unstick);
        self.askers.iter_mut().for_each(Asker::unstick);
    }

    fn up(&self) -> Vec<ConnKey> {
        self.links.iter().filter_map(|l| if let Link::Up(key) = l { Some(*key) } else { None }).collect()
    }

    /// A stream of its own for `role`, with its `auth` on the way. Nothing when no connection is up or it has no credit.
    fn open(&mut self, role: Role, around: &mut Surroundings<'_>) -> Option<WireKey> {
        let up = self.up();
        let conn = *up.get(around.rng.below(up.len() as u64) as usize)?;
        let key = self.open_on(conn, role, around.now)?;
        around.trace.note(around.now, "opened", [self.index as u64, key.1.index(), role.number()]);
        Some(key)
    }

    fn open_on(&mut self, conn: ConnKey, role: Role, now: Tick) -> Option<WireKey> {
        let stream = self.quic.open_bi(conn)?;
        let token = self.token(now);
        let hi = if self.plan.ours {
            PYTHON_FEATURES_HI | Features::CORE_HINTS.hi | Features::POSITIONS.hi
        } else {
            PYTHON_FEATURES_HI
        };
        let auth = Auth {
            tenant_id: TENANT.into(),
            token: (&*token).into(),
            client_flags: Some(Flags(PYTHON_FLAGS)),
            client_features: Some(PYTHON_FEATURES),
            client_features_hi: Some(hi),
        };
        let mut wire = Wire { expires_s: self.token.0, ..Wire::new(role) };
        Message::Auth(auth).encode_frame(&mut wire.out);
        self.wires.insert((conn, stream), wire);
        Some((conn, stream))
    }

    /// Room for more of a publisher's frames.
    pub fn has_room(&self, key: WireKey) -> bool {
        self.wires.get(&key).is_some_and(|w| w.ready && w.out.len() + w.front.len() < OUT_BYTES_MAX)
    }

    /// Appends to what a stream sends.
    pub fn out(&mut self, key: WireKey) -> Option<&mut BytesMut> {
        self.wires.get_mut(&key).map(|w| &mut w.out)
    }

    /// Whether everything it wrote was taken by QUIC.
    pub fn is_written(&self) -> bool {
        self.wires.values().all(|w| w.out.is_empty() && w.front.is_empty())
    }

    /// The token it would use now: renewed at two thirds of its life if it renews.
    fn token(&mut self, now: Tick) -> Arc<str> {
        let now_s = UNIX_S + now.as_micros() / 1_000_000;
        let life = self.plan.token_life_s;
        let fresh = self.token.0 > now_s + life / 3;
        if self.token.0 == 0 || (self.plan.renews && !fresh) {
            let expires = now_s + life;
            let subject = format!("client-{}", self.index);
            self.token = (expires, self.rights(&subject, expires).into());
            self.renew_at = self.plan.renews.then(|| now + Duration::from_millis(life * 600));
        }
        Arc::clone(&self.token.1)
    }

    fn rights(&self, subject: &str, expires_s: u64) -> String {
        match self.askers.is_empty() && self.watchers.is_empty() {
            true => Credentials::get().token(subject, expires_s),
            false => Credentials::get().token_for(subject, expires_s, &ASKS_RIGHTS),
        }
    }

    fn dial(&mut self, around: &mut Surroundings<'_>) {
        for at in 0..self.links.len() {
            let Link::Down { redial_at } = self.links[at] else { continue };
            if self.closing || redial_at > around.now {
                continue;
            }
            let core = self.plan.ours.then_some(at as u16);
            let tls = Arc::clone(&Credentials::get().client);
            let key = self.quic.connect(around.now, tls, self.broker, "localhost", core);
            self.links[at] = Link::Dialing(key.expect("a connection can be begun"));
        }
    }

    fn events(&mut self, around: &mut Surroundings<'_>) -> Result<(), String> {
        while let Some((conn, event)) = self.quic.poll_event() {
            match event {
                QuicEvent::Connected => {
                    for link in self.links.iter_mut().filter(|l| **l == Link::Dialing(conn)) {
                        *link = Link::Up(conn);
                    }
                }
                QuicEvent::StreamOpened { stream, dir: Dir::Uni } => {
                    self.wires.insert((conn, stream), Wire { ready: true, ..Wire::new(Role::Events(None)) });
                }
                QuicEvent::StreamOpened { .. } => {
                    return Err("the broker opened a bidirectional stream".to_owned());
                }
                QuicEvent::Readable { stream } => {
                    self.readable.insert((conn, stream));
                }
                QuicEvent::Closed { reason } => {
                    self.excused(conn, &reason, around.excuses)?;
                    self.lost(conn, around);
                }
                QuicEvent::Writable { .. }
                | QuicEvent::Finished { .. }
                | QuicEvent::Stopped { .. }
                | QuicEvent::StreamsAvailable { .. } => {}
            }
        }
        Ok(())
    }

    /// Whether the connection may have ended for that reason.
    fn excused(&self, conn: ConnKey, reason: &CloseReason, excuses: &Excuses) -> Result<(), String> {
        let ended = self.drained || excuses.restarted;
        let idle = !self.wires.keys().any(|(c, _)| *c == conn);
        let fine = match reason {
            CloseReason::Local => true,
            CloseReason::Peer { code, .. } => match u32::try_from(code.into_inner()) {
                Ok(CLOSE_SHUTDOWN) => ended,
                Ok(CLOSE_AUTH) => !self.plan.renews || idle,
                _ => false,
            },
            CloseReason::PeerTransport { .. } | CloseReason::TimedOut | CloseReason::Reset => ended,
            _ => false,
        };
        if fine { Ok(()) } else { Err(format!("client {} lost {conn:?}: {reason:?}", self.index)) }
    }

    fn lost(&mut self, conn: ConnKey, around: &mut Surroundings<'_>) {
        around.trace.note(around.now, "connection lost", [self.index as u64, 0, 0]);
        let redial_at = if self.drained { Tick::MAX } else { around.now + REDIAL };
        for link in &mut self.links {
            if matches!(link, Link::Dialing(key) | Link::Up(key) if *key == conn) {
                *link = Link::Down { redial_at };
            }
        }
        self.readable.retain(|(c, _)| *c != conn);
        let gone: Vec<WireKey> = self.wires.keys().filter(|(c, _)| *c == conn).copied().collect();
        for key in gone {
            self.wires.remove(&key);
        }
        for publisher in self.publishers.iter_mut().filter(|p| p.wire.is_some_and(|w| w.0 == conn)) {
            publisher.lost(around.model);
        }
        for subscriber in self.subscribers.iter_mut().filter(|s| s.is_of(conn)) {
            subscriber.lost(around.now + REDIAL, around.model);
        }
        for asker in self.askers.iter_mut().filter(|asker| asker.wire.is_some_and(|w| w.0 == conn)) {
            asker.lost(around);
        }
        for watcher in self.watchers.iter_mut().filter(|watcher| watcher.is_of(conn)) {
            watcher.lost(around.now + REDIAL, around);
        }
    }

    /// Reads every stream that may be read.
    fn read(&mut self, around: &mut Surroundings<'_>) -> Result<(), String> {
        let keys: Vec<WireKey> = self.readable.iter().copied().collect();
        for key in keys {
            while self.may_read(key, around.now) {
                match self.quic.read(key.0, key.1, 64 << 10) {
                    ReadOutcome::Data(bytes) => {
                        let Some(wire) = self.wires.get_mut(&key) else { break };
                        wire.reader.push(bytes);
                        self.frames(key, around)?;
                    }
                    ReadOutcome::Blocked => {
                        self.readable.remove(&key);
                    }
                    ReadOutcome::Finished => {
                        self.readable.remove(&key);
                        self.finished(key, around)?;
                    }
                    // It did not read, and its last frame could not say so; perhaps not even its hello was read.
                    ReadOutcome::Reset(code)
                        if code.into_inner() == RESET_LAGGED && self.is_of_watch(key) =>
                    {
                        self.watch_reset(key, around);
                    }
                    ReadOutcome::Reset(code) => return Err(format!("{key:?} was reset with {code}")),
                    ReadOutcome::Gone => {
                        self.readable.remove(&key);
                        self.wires.remove(&key);
                    }
                }
            }
        }
        Ok(())
    }

    fn may_read(&self, key: WireKey, now: Tick) -> bool {
        let Some(wire) = self.wires.get(&key).filter(|_| self.readable.contains(&key)) else { return false };
        match wire.role {
            Role::Publish(p) => !wire.ready || self.publishers[p].reads(now),
            Role::Events(Some(id)) => {
                self.subscribers.iter().any(|s| s.is_called(id) && s.reads(now))
                    || self.watchers.iter().any(|w| w.is_called(id) && w.reads(now))
            }
            Role::Ask(_) | Role::Watch(_) | Role::Requests(_) | Role::Renew | Role::Events(None) => true,
        }
    }

    fn frames(&mut self, key: WireKey, around: &mut Surroundings<'_>) -> Result<(), String> {
        while let Some(wire) = self.wires.get_mut(&key) {
            let called = |id| {
                self.subscribers.iter().any(|s| s.is_called(id))
                    || self.watchers.iter().any(|w| w.is_called(id))
            };
            if matches!(wire.role, Role::Events(Some(id)) if !called(id)) {
                return Ok(()); // until the answer is there
            }
            let next = wire.reader.next().map_err(|error| format!("{key:?}: {error}"))?;
            let Some(frame) = next else { return Ok(()) };
            let kind = u64::from(frame.flags);
            around.trace.note(around.now, "net frame", [self.index as u64, kind, frame.payload.len() as u64]);
            if !wire.ready {
                self.auth_answer(key, &frame, around)?;
                continue;
            }
            match wire.role {
                Role::Publish(p) => self.publishers[p].answer(&frame, around)?,
                Role::Requests(at) => self.askers[at].answer(&frame, around)?,
                Role::Ask(s) => {
                    self.subscribers[s].answer(&frame, around)?;
                    self.early_events(self.subscribers[s].id(), around)?;
                }
                Role::Watch(at) => {
                    self.watchers[at].answer(&frame, around)?;
                    self.early_events(self.watchers[at].id(), around)?;
                    self.lose_streamless(key.0, around);
                }
                Role::Renew => return Err("an answer nobody asked for".to_owned()),
                Role::Events(None) => {
                    let Ok(Message::EventStreamHello(hello)) = Message::decode(&frame.payload) else {
                        let began = String::from_utf8_lossy(&frame.payload);
                        return Err(format!("an event stream that begins with {began}"));
                    };
                    let id = hello.subscription_id.0;
                    wire.role = Role::Events(Some(id));
                }
                Role::Events(Some(id)) => {
                    if let Some(watcher) = self.watchers.iter_mut().find(|w| w.is_called(id)) {
                        watcher.event(&frame, around)?;
                    } else if let Some(subscriber) = self.subscribers.iter_mut().find(|s| s.is_called(id)) {
                        subscriber.event(&frame, around)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Events that were faster than the answer.
    fn early_events(&mut self, called: Option<u64>, around: &mut Surroundings<'_>) -> Result<(), String> {
        let waits = |wire: &Wire| called.is_some() && wire.role == Role::Events(called);
        match self.wires.iter().find(|(_, wire)| waits(wire)).map(|(key, _)| *key) {
            Some(events) => self.frames(events, around),
            None => Ok(()),
        }
    }

    fn auth_answer(
        &mut self,
        key: WireKey,
        frame: &Frame,
        around: &mut Surroundings<'_>,
    ) -> Result<(), String> {
        let message = Message::decode(&frame.payload).map_err(|error| error.to_string())?;
        let Some(wire) = self.wires.get_mut(&key) else { return Ok(()) };
        match message {
            Message::AuthOk(AuthOk { publish_window, cores, .. }) => {
                wire.ready = true;
                self.auths += 1;
                if self.plan.ours != cores.is_some() {
                    return Err("cores are for those who ask".to_owned());
                }
                match wire.role {
                    Role::Publish(p) => {
                        let window = publish_window.ok_or("no publish window")?;
                        self.publishers[p].ready(window as usize, around.model);
                    }
                    Role::Ask(s) => {
                        self.subscribers[s].ask(&mut wire.out, around);
                        wire.fin = true;
                    }
                    Role::Requests(at) => self.askers[at].ready(),
                    Role::Watch(at) => {
                        self.watchers[at].ask(&mut wire.out, around);
                        wire.fin = true;
                    }
                    Role::Renew => wire.fin = true,
                    Role::Events(_) => {}
                }
                Ok(())
            }
            Message::Error(error) => {
                let code = error.code.map(|c| c.name().into_owned()).unwrap_or_default();
                around.trace.note(
                    around.now,
                    "auth refused",
                    [self.index as u64, key.1.index(), wire.role.number()],
                );
                // It may have waited behind large frames of the connection until its token was over.
                let now_s = UNIX_S + around.now.as_micros() / 1_000_000;
                let ran_out = wire.expires_s <= now_s;
                let excused = (code == "unauthenticated" && ran_out)
                    || (code == "draining" && self.drained)
                    || code == "internal";
                if !excused {
                    return Err(format!("auth refused: {code}"));
                }
                wire.done = true;
                let again = code != "unauthenticated" || self.plan.renews;
                let at = again.then(|| around.now + REDIAL * 3);
                match wire.role {
                    Role::Publish(p) => self.publishers[p].refused(at, around.model),
                    Role::Ask(s) => self.subscribers[s].refused(at, around.model),
                    Role::Requests(at) => self.askers[at].lost(around),
                    Role::Watch(w) => self.watchers[w].lost(around.now + REDIAL * 3, around),
                    Role::Renew | Role::Events(_) => {}
                }
                Ok(())
            }
            other => Err(format!("not an answer to auth: {}", other.type_name())),
        }
    }

    /// The broker ended its half.
    fn finished(&mut self, key: WireKey, around: &mut Surroundings<'_>) -> Result<(), String> {
        let watcher = self.watcher_of(key);
        let Some(wire) = self.wires.remove(&key) else { return Ok(()) };
        if wire.reader.is_mid_frame() {
            return Err(format!("{key:?} ends inside a frame"));
        }
        match wire.role {
            Role::Publish(p) if self.publishers[p].wire != Some(key) => Ok(()),
            Role::Publish(p) => self.publishers[p].finished(wire.done),
            Role::Requests(at) if self.askers[at].wire != Some(key) => Ok(()),
            Role::Requests(at) => self.askers[at].finished(wire.done),
            Role::Ask(s) if self.subscribers[s].is_asking(key) => Err("no answer to a subscribe".to_owned()),
            Role::Watch(at) if self.watchers[at].is_asking(key) => Err("no answer to a watch".to_owned()),
            Role::Events(_) if watcher.is_some() => {
                watcher.map_or(Ok(()), |at| self.watchers[at].finished(around))
            }
            Role::Ask(_) | Role::Watch(_) | Role::Renew | Role::Events(None) => Ok(()),
            Role::Events(Some(id)) => match self.subscribers.iter_mut().find(|s| s.is_called(id)) {
                Some(_) => Err("an event stream ends without a last frame".to_owned()),
                None => Ok(()),
            },
        }
    }

    /// Publishes, subscribes and renews as far as it wants to and may.
    fn act(&mut self, around: &mut Surroundings<'_>) {
        if self.closing {
            return;
        }
        if self.renew_at.is_some_and(|at| at <= around.now) {
            self.renew_at = Some(around.now + REDIAL);
            // On every connection: each one has its own identities.
            let authed = |c: &ConnKey| self.wires.iter().any(|(key, wire)| key.0 == *c && wire.ready);
            let conns: Vec<ConnKey> = self.up().into_iter().filter(authed).collect();
            for conn in conns {
                self.open_on(conn, Role::Renew, around.now);
            }
        }
        for at in 0..self.subscribers.len() {
            if self.subscribers[at].wants_stream(around.now)
                && let Some(key) = self.open(Role::Ask(at), around)
            {
                self.subscribers[at].asking(key);
            }
        }
        for at in 0..self.watchers.len() {
            if self.watchers[at].wants_stream(around.now)
                && let Some(key) = self.open(Role::Watch(at), around)
            {
                self.watchers[at].asking(key);
            }
        }
        for at in 0..self.publishers.len() {
            if self.publishers[at].wants_stream(around.now)
                && let Some(key) = self.open(Role::Publish(at), around)
            {
                self.publishers[at].wire = Some(key);
            }
            if let Some(key) = self.publishers[at].wants_end(around)
                && let Some(wire) = self.wires.get_mut(&key)
            {
                wire.fin |= !wire.done;
            }
            while let Some(key) = self.publishers[at].wants_publish(around).filter(|key| self.has_room(*key))
            {
                let shards = around.shards[self.publishers[at].plan.stream];
                let frame = self.publishers[at].request(shards, around);
                if let Some(out) = self.out(key) {
                    out.extend_from_slice(&frame);
                }
            }
        }
        self.ask(around);
    }

    /// Makes requests as far as it wants to and may.
    fn ask(&mut self, around: &mut Surroundings<'_>) {
        for at in 0..self.askers.len() {
            if self.askers[at].wants_stream(around.now)
                && let Some(key) = self.open(Role::Requests(at), around)
            {
                self.askers[at].wire = Some(key);
            }
            if let Some(key) = self.askers[at].wants_end(around)
                && let Some(wire) = self.wires.get_mut(&key)
            {
                wire.fin |= !wire.done;
            }
            while let Some(key) = self.askers[at].wants_request(around.now).filter(|key| self.has_room(*key))
            {
                let frame = self.askers[at].request(around);
                if let Some(out) = self.out(key) {
                    out.extend_from_slice(&frame);
                }
            }
        }
    }

    fn write(&mut self, around: &mut Surroundings<'_>) {
        let mut gone = Vec::new();
        for (key, wire) in &mut self.wires {
            while !(wire.front.is_empty() && wire.out.is_empty()) {
                if wire.front.is_empty() {
                    wire.front = wire.out.split().freeze();
                }
                match self.quic.write(key.0, key.1, &mut wire.front).state {
                    WriteState::All => {}
                    WriteState::Blocked => break,
                    WriteState::Stopped(_) | WriteState::Gone => {
                        wire.front = Bytes::new();
                        wire.out.clear();
                        gone.push(*key);
                    }
                }
            }
            if wire.fin && wire.front.is_empty() && wire.out.is_empty() {
                self.quic.finish(key.0, key.1);
                wire.fin = false;
                wire.done = true;
            }
        }
        for key in gone {
            around.trace.note(around.now, "stopped", [self.index as u64, key.1.index(), 0]);
        }
    }

    fn transmit(&mut self, now: Tick, net: &mut SimNet, trace: &mut Trace) {
        loop {
            self.quic.poll_transmit(now, &mut self.batch);
            if self.batch.is_empty() {
                return;
            }
            for transmit in self.batch.iter() {
                for datagram in transmit.datagrams() {
                    trace.note(now, "net from client", [self.index as u64, datagram.len() as u64, 0]);
                    net.send(now, self.addr, transmit.remote, datagram);
                }
            }
            self.batch.clear();
        }
    }
}

impl Wire {
    fn new(role: Role) -> Wire {
        Wire {
            role,
            reader: FrameReader::new(16 << 20),
            out: BytesMut::new(),
            front: Bytes::new(),
            ready: false,
            expires_s: 0,
            fin: false,
            done: false,
        }
    }
}
