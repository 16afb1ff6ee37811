//! The QUIC machine of one core. Scope: one per core, on that core.
//! Owns: the endpoint, all its connections, their timers, which of them have something to say or to send.
//! Invariants: a connection that was touched is settled (endpoint and connection exchange their events) before its
//! next event or transmit is given out; a connection with something to send stays marked until it says it has
//! nothing left, and only then its next deadline is read; nothing scans all connections.
//! Not here: streams (streams), accepting and closing (admission), sockets (udp).

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use foldhash::fast::RandomState;
use quinn_proto::{
    Connection, ConnectionHandle, DatagramEvent, EcnCodepoint, Endpoint, Event, StreamEvent, StreamId,
    TransportConfig,
};

use super::admission::{Admission, Wall};
use super::cid::{self, CidSource};
use super::event::{CloseReason, ConnKey, QuicEvent, RefusedCounts};
use super::settings::QuicSettings;
use super::timers::Timers;
use super::transmit::{Transmits, segments_for};
use crate::clock::Tick;

type Set<T> = std::collections::HashSet<T, RandomState>;

/// Answers that belong to no connection (refusals, retries, version negotiation, stateless resets) held until the
/// next `poll_transmit`. More are dropped: they are best effort and a flood causes most of them.
const ANSWERS_MAX: usize = 256;

/// One connection.
pub(super) struct Conn {
    pub(super) inner: Connection,
    pub(super) key: ConnKey,
    /// Who it counts for in the limit per address.
    pub(super) ip: IpAddr,
    /// In the queue of those to settle.
    touched: bool,
    /// In the queue of those to send.
    dirty: bool,
    pub(super) phase: Phase,
    /// Nothing of it is left in the transport; the slot goes as soon as `Closed` was given out.
    drained: bool,
    /// Streams announced as readable and not read to their end since.
    pub(super) readable: Set<StreamId>,
}

/// How far a connection is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Not `Connected` yet.
    Handshake,
    Open,
    /// `Closed` is queued; events before it may still be read.
    Closing,
    /// `Closed` was given out, or nobody ever heard of it. Only the transport still cares.
    Gone,
}

/// The QUIC machine of one core: datagrams and time in, events and datagrams out.
///
/// One pass: `handle_datagram` for everything received, `handle_timeouts`, `poll_event` until `None` with the
/// reads and writes that follow from it, `poll_transmit` until it reports nothing; then wait for a datagram or
/// `next_timeout`. Waiting while `has_work` loses nothing but time.
pub struct Quic {
    pub(super) endpoint: Endpoint,
    pub(super) settings: QuicSettings,
    pub(super) transport: Arc<TransportConfig>,
    pub(super) zero: Instant,
    pub(super) wall: Arc<Wall>,
    pub(super) first_cids: CidSource,
    /// By slot, which is also the endpoint's handle.
    pub(super) slots: Vec<Option<Box<Conn>>>,
    pub(super) next_epoch: u32,
    pub(super) admission: Admission,
    timers: Timers,
    events: VecDeque<(ConnKey, QuicEvent)>,
    touched: VecDeque<u32>,
    dirty: VecDeque<u32>,
    answers: VecDeque<(quinn_proto::Transmit, Vec<u8>)>,
    /// The endpoint writes its answers here.
    pub(super) scratch: Vec<u8>,
}

impl Quic {
    pub(super) fn assemble(
        settings: QuicSettings,
        transport: Arc<TransportConfig>,
        endpoint: Endpoint,
        wall: Arc<Wall>,
        first_cids: CidSource,
        zero: Instant,
    ) -> Quic {
        Quic {
            endpoint,
            settings,
            transport,
            zero,
            wall,
            first_cids,
            slots: Vec::new(),
            next_epoch: 0,
            admission: Admission::default(),
            timers: Timers::default(),
            events: VecDeque::new(),
            touched: VecDeque::new(),
            dirty: VecDeque::new(),
            answers: VecDeque::new(),
            scratch: Vec::new(),
        }
    }

    /// The core that owns a datagram, of `cores` that share the port: byte 6 of a long header, byte 1 of a short
    /// one, modulo `cores`. `None` for a datagram too short to tell. Ask before any endpoint sees the datagram.
    pub fn core_of_datagram(data: &[u8], cores: u16) -> Option<u16> {
        cid::core_of_datagram(data, cores)
    }

    /// Takes one received datagram, already split from a GRO train. `ecn` are the two ECN bits. Never fails:
    /// whatever makes no sense is dropped or answered as QUIC says.
    pub fn handle_datagram(
        &mut self,
        now: Tick,
        remote: SocketAddr,
        local_ip: Option<IpAddr>,
        ecn: Option<u8>,
        data: BytesMut,
    ) {
        let at = self.instant(now);
        let ecn = ecn.and_then(EcnCodepoint::from_bits);
        self.wall.set(now);
        self.scratch.clear();
        match self.endpoint.handle(at, remote, local_ip, ecn, data, &mut self.scratch) {
            None => {}
            Some(DatagramEvent::ConnectionEvent(handle, event)) => {
                if let Some(conn) = self.slots.get_mut(handle.0).and_then(Option::as_mut) {
                    conn.inner.handle_event(event);
                    self.touch(conn_slot(handle));
                }
            }
            Some(DatagramEvent::NewConnection(incoming)) => self.admit(at, incoming),
            Some(DatagramEvent::Response(meta)) => self.queue_answer(meta),
        }
    }

    /// The next moment at which `handle_timeouts` has something to do; may be early, never late. Valid after
    /// `poll_transmit` has given everything.
    pub fn next_timeout(&mut self) -> Option<Tick> {
        self.timers.next()
    }

    /// Fires every timer that is due.
    pub fn handle_timeouts(&mut self, now: Tick) {
        let at = self.instant(now);
        while let Some(slot) = self.timers.pop_due(now) {
            let Some(conn) = self.slots[slot as usize].as_mut() else { continue };
            match conn.inner.poll_timeout() {
                Some(due) if due <= at => {
                    conn.inner.handle_timeout(at);
                    self.touch(slot);
                }
                Some(later) => {
                    let later = self.tick(later);
                    self.timers.arm(slot, later);
                }
                None => {}
            }
        }
    }

    /// The next event, in order for each connection.
    pub fn poll_event(&mut self) -> Option<(ConnKey, QuicEvent)> {
        loop {
            if let Some((key, event)) = self.events.pop_front() {
                if matches!(event, QuicEvent::Closed { .. }) {
                    self.forget(key);
                }
                return Some((key, event));
            }
            let slot = self.touched.pop_front()?;
            self.settle(slot);
        }
    }

    /// Appends datagrams to `batch` until it is full or nothing is left to send; returns how many transmits were
    /// added. Connections take turns, one train each; those left over when the batch is full are first next time.
    pub fn poll_transmit(&mut self, now: Tick, batch: &mut Transmits) -> usize {
        let before = batch.len();
        while let Some((_, answer)) = self.answers.front_mut() {
            let Some(buffer) = batch.buffer() else { return batch.len() - before };
            std::mem::swap(buffer, answer);
            if let Some((meta, _)) = self.answers.pop_front() {
                batch.commit(&meta);
            }
        }
        let at = self.instant(now);
        while let Some(slot) = self.dirty.front().copied() {
            let Some(buffer) = batch.buffer() else { break };
            self.dirty.pop_front();
            self.settle_if_touched(slot);
            let Some(conn) = self.slots[slot as usize].as_mut().filter(|conn| conn.dirty) else { continue };
            let train = segments_for(conn.inner.current_mtu());
            match conn.inner.poll_transmit(at, train, buffer) {
                Some(meta) => {
                    batch.commit(&meta);
                    self.dirty.push_back(slot);
                }
                None => self.nothing_to_send(slot),
            }
        }
        batch.len() - before
    }

    /// Whether `poll_event` or `poll_transmit` may have something to give.
    pub fn has_work(&self) -> bool {
        !(self.events.is_empty()
            && self.touched.is_empty()
            && self.dirty.is_empty()
            && self.answers.is_empty())
    }

    /// Connections turned away since the start.
    pub fn refused(&self) -> RefusedCounts {
        self.admission.refused
    }

    /// The connection said it has nothing to send: its deadline is now final.
    fn nothing_to_send(&mut self, slot: u32) {
        let Some(conn) = self.slots[slot as usize].as_mut() else { return };
        conn.dirty = false;
        let lost_while_sending =
            conn.inner.is_closed() && matches!(conn.phase, Phase::Handshake | Phase::Open);
        match conn.inner.poll_timeout() {
            Some(due) => {
                let due = self.tick(due);
                self.timers.arm(slot, due);
            }
            None => self.timers.disarm(slot),
        }
        if lost_while_sending {
            self.touch(slot);
        }
    }

    /// Something happened to the connection: it may have events and something to send.
    pub(super) fn touch(&mut self, slot: u32) {
        if let Some(conn) = self.slots[slot as usize].as_mut()
            && !std::mem::replace(&mut conn.touched, true)
        {
            self.touched.push_back(slot);
        }
        self.mark_dirty(slot);
    }

    /// The connection may have something to send.
    pub(super) fn mark_dirty(&mut self, slot: u32) {
        if let Some(conn) = self.slots[slot as usize].as_mut()
            && !std::mem::replace(&mut conn.dirty, true)
        {
            self.dirty.push_back(slot);
        }
    }

    fn settle_if_touched(&mut self, slot: u32) {
        if self.slots[slot as usize].as_ref().is_some_and(|conn| conn.touched) {
            self.settle(slot);
        }
    }

    /// Lets endpoint and connection exchange their events, and turns the connection's into ours. A no-op for a
    /// connection that was settled since it was touched.
    fn settle(&mut self, slot: u32) {
        let Some(conn) = self.slots[slot as usize].as_mut() else { return };
        if !std::mem::replace(&mut conn.touched, false) {
            return;
        }
        while let Some(event) = conn.inner.poll_endpoint_events() {
            if event.is_drained() {
                // The endpoint hears of it when the slot goes: until then its handle must not be reused.
                conn.drained = true;
            } else if let Some(reply) = self.endpoint.handle_event(ConnectionHandle(slot as usize), event) {
                conn.inner.handle_event(reply);
            }
        }
        while let Some(event) = conn.inner.poll() {
            match event {
                Event::Connected => self.admission.connected(conn, &mut self.events),
                Event::ConnectionLost { reason } => {
                    self.admission.closed(conn, CloseReason::from(reason), &mut self.events);
                }
                Event::Stream(event) if conn.phase == Phase::Open => {
                    stream_event(conn, event, &mut self.events);
                }
                Event::Stream(_) => {}
                Event::HandshakeDataReady | Event::DatagramReceived | Event::DatagramsUnblocked => {}
            }
        }
        if conn.drained && conn.phase == Phase::Gone {
            self.free(slot);
        }
    }

    /// `Closed` was given out.
    fn forget(&mut self, key: ConnKey) {
        let Some(conn) = self.slots[key.slot()].as_mut().filter(|conn| conn.key == key) else { return };
        conn.phase = Phase::Gone;
        conn.readable = Set::default();
        if conn.drained {
            self.free(key.slot);
        }
    }

    fn free(&mut self, slot: u32) {
        let Some(conn) = self.slots[slot as usize].take() else { return };
        assert!(conn.drained, "a slot goes when the transport is done with it");
        self.timers.disarm(slot);
        self.admission.freed(conn.ip);
        let reply = self
            .endpoint
            .handle_event(ConnectionHandle(slot as usize), quinn_proto::EndpointEvent::drained());
        debug_assert!(reply.is_none(), "a drained connection gets no reply");
        // Entries left in the queues are harmless: whoever takes one looks at the flags of the slot's tenant.
    }

    /// Puts a new connection into the slot of its handle.
    pub(super) fn insert(&mut self, handle: ConnectionHandle, inner: Connection) -> ConnKey {
        let slot = conn_slot(handle);
        if handle.0 >= self.slots.len() {
            self.slots.resize_with(handle.0 + 1, || None);
        }
        assert!(self.slots[handle.0].is_none(), "the endpoint reuses a handle only after we gave it back");
        let key = ConnKey { slot, epoch: self.next_epoch };
        self.next_epoch = self.next_epoch.wrapping_add(1);
        let ip = inner.remote_address().ip();
        self.admission.held(ip);
        self.slots[handle.0] = Some(Box::new(Conn {
            inner,
            key,
            ip,
            touched: false,
            dirty: false,
            phase: Phase::Handshake,
            drained: false,
            readable: Set::default(),
        }));
        self.touch(slot);
        key
    }

    /// The queue of what is to be told; `Closed` goes through `admission`.
    pub(super) fn close_locally(&mut self, key: ConnKey) {
        if let Some(conn) = self.slots[key.slot()].as_mut().filter(|conn| conn.key == key) {
            self.admission.closed(conn, CloseReason::Local, &mut self.events);
        }
    }

    pub(super) fn queue_answer(&mut self, meta: quinn_proto::Transmit) {
        if self.answers.len() < ANSWERS_MAX {
            self.answers.push_back((meta, std::mem::take(&mut self.scratch)));
        }
    }

    /// A connection whose `Closed` was not given out yet.
    pub(super) fn conn(&self, key: ConnKey) -> Option<&Conn> {
        let conn = self.slots.get(key.slot())?.as_deref()?;
        (conn.key == key && conn.phase != Phase::Gone).then_some(conn)
    }

    pub(super) fn conn_mut(&mut self, key: ConnKey) -> Option<&mut Conn> {
        let conn = self.slots.get_mut(key.slot())?.as_deref_mut()?;
        (conn.key == key && conn.phase != Phase::Gone).then_some(conn)
    }

    /// A connection that is not over.
    pub(super) fn open_conn_mut(&mut self, key: ConnKey) -> Option<&mut Conn> {
        self.conn_mut(key).filter(|conn| conn.phase != Phase::Closing)
    }

    pub(super) fn instant(&self, at: Tick) -> Instant {
        self.zero + Duration::from_nanos(at.as_nanos())
    }

    /// Exact: both count nanoseconds.
    fn tick(&self, at: Instant) -> Tick {
        Tick::ZERO + at.saturating_duration_since(self.zero)
    }
}

fn conn_slot(handle: ConnectionHandle) -> u32 {
    u32::try_from(handle.0).expect("max_connections fits 32 bits")
}

fn stream_event(conn: &mut Conn, event: StreamEvent, events: &mut VecDeque<(ConnKey, QuicEvent)>) {
    let key = conn.key;
    match event {
        StreamEvent::Opened { dir } => {
            while let Some(stream) = conn.inner.streams().accept(dir) {
                events.push_back((key, QuicEvent::StreamOpened { stream, dir }));
                // The frame that opened it is not announced separately.
                conn.readable.insert(stream);
                events.push_back((key, QuicEvent::Readable { stream }));
            }
        }
        StreamEvent::Readable { id } => {
            if conn.readable.insert(id) {
                events.push_back((key, QuicEvent::Readable { stream: id }));
            }
        }
        StreamEvent::Writable { id } => events.push_back((key, QuicEvent::Writable { stream: id })),
        StreamEvent::Finished { id } => events.push_back((key, QuicEvent::Finished { stream: id })),
        StreamEvent::Stopped { id, error_code } => {
            // RFC 9000 3.5: STOP_SENDING is answered by RESET_STREAM. An error means it was reset already.
            let _already_reset = conn.inner.send_stream(id).reset(error_code);
            events.push_back((key, QuicEvent::Stopped { stream: id, code: error_code }));
        }
        StreamEvent::Available { dir } => {
            events.push_back((key, QuicEvent::StreamsAvailable { dir }));
        }
    }
}
