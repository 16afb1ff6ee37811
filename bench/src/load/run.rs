//! A run from the first connection to the report. Scope: one per call of `load::run`, on its thread.
//! Owns: the endpoint, the publishing streams, the readers, the order of phases.
//! Invariants: publishing begins when every stream is authenticated and every reader subscribed; it ends with the steady
//! window; then everything sent has until a deadline to be answered and delivered; what was not is counted.
//! Not here: what one stream does (`lane`, `reader`), what is counted when (`window`).

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use felix_runtime::Tick;
use felix_runtime::quic::{CLIENT_ALPN, ConnKey, Dir, QuicEvent, StreamId, VarInt, client_tls};

use super::ask::{self, Layout};
use super::frames::{FrameSpec, Frames};
use super::idle::Idle;
use super::lane::{Lane, LaneSpec, Pumped};
use super::pace::Schedule;
use super::reader::Reader;
use super::window::Window;
use super::{LoadError, LoadPlan, auth_frame};
use crate::endpoint::Endpoint;
use crate::machine::Machine;
use crate::measure::{LoadReport, ReadReport};
use crate::proc;
use crate::shape::{Acks, Keys, Landing, Shape};

/// Until every stream is authenticated and every reader subscribed.
const SETUP_DEADLINE: Duration = Duration::from_secs(30);
/// Until everything that was sent is answered.
const SETTLE_DEADLINE: Duration = Duration::from_secs(15);
/// Readers that get nothing for this long after publishing ended will get nothing more.
const READ_PATIENCE: Duration = Duration::from_secs(1);

type Map<K, V> = HashMap<K, V, foldhash::fast::RandomState>;

/// Where a run is.
#[derive(Debug, Clone, Copy)]
enum Phase {
    SettingUp { until: Tick },
    Publishing,
    Settling { until: Tick, quiet_since: Tick, accounted: u64 },
    Done,
}

/// A connection of the run.
enum Conn {
    /// Lanes without a stream yet, and whether one stream has authenticated.
    Publisher {
        unopened: VecDeque<usize>,
        opened: bool,
        authenticated: bool,
    },
    Reader(usize),
    Idle(Idle),
}

/// Idle connections that are opened at once; each one that is there makes room for the next.
const IDLE_AT_ONCE: u32 = 32;

/// See the module.
pub struct Run<'p> {
    plan: &'p LoadPlan,
    /// Not before this moment; whoever is not ready then fails.
    start: Option<Tick>,
    endpoint: Endpoint,
    auth: Bytes,
    conns: Map<ConnKey, Conn>,
    lanes: Vec<Lane>,
    lane_of: Map<(ConnKey, StreamId), usize>,
    readers: Vec<Reader>,
    /// Idle connections that were begun, and those that are there.
    idle: (u32, u32),
    /// Of the server's process before the first connection, and when all was ready; only with idle connections.
    memory_bytes: (Option<u64>, Option<u64>),
    /// Lanes with something to write, each once.
    ready: VecDeque<usize>,
    queued: Vec<bool>,
    window: Window,
    schedule: Option<Schedule>,
    phase: Phase,
}

impl<'p> Run<'p> {
    /// Asks the server what it must know and starts every connection. Publishing begins at `start`, or as soon as
    /// everything is ready.
    pub fn begin(plan: &'p LoadPlan, start: Option<SystemTime>) -> Result<Run<'p>, LoadError> {
        let LoadPlan { target, shape, .. } = plan;
        let mut endpoint = Endpoint::open(target.address, shape.mtu)?;
        let layout = ask::layout(&mut endpoint, target)?;
        if layout.width < shape.shards {
            let stream = target.stream.clone();
            return Err(LoadError::TooFewShards { stream, width: layout.width, wanted: shape.shards });
        }
        let now = endpoint.now();
        let start = start.map(|at| now + at.duration_since(SystemTime::now()).unwrap_or_default());
        let mut run = Run {
            plan,
            start,
            endpoint,
            auth: auth_frame(target),
            conns: Map::default(),
            lanes: Vec::new(),
            lane_of: Map::default(),
            readers: Vec::new(),
            idle: (0, 0),
            memory_bytes: (None, None),
            ready: VecDeque::new(),
            queued: vec![false; shape.lanes() as usize],
            window: Window::new(now, shape.warmup(), shape.duration(), target.server_pid),
            schedule: None,
            phase: Phase::SettingUp { until: now + SETUP_DEADLINE },
        };
        run.memory_bytes.0 = run.server_memory();
        run.connect(&layout)?;
        for _ in 0..IDLE_AT_ONCE {
            run.connect_idle()?;
        }
        Ok(run)
    }

    fn server_memory(&self) -> Option<u64> {
        let pid = self.plan.target.server_pid.filter(|_| self.plan.shape.idle > 0)?;
        proc::resident_bytes(pid).ok()
    }

    /// The next idle connection, if one is missing.
    fn connect_idle(&mut self) -> Result<(), LoadError> {
        let target = &self.plan.target;
        if self.idle.0 == self.plan.shape.idle {
            return Ok(());
        }
        self.idle.0 += 1;
        let refused = |error: &dyn std::fmt::Display| LoadError::Connect(error.to_string());
        let tls = Arc::new(client_tls(&target.roots, &[CLIENT_ALPN]).map_err(|error| refused(&error))?);
        let now = self.endpoint.now();
        let key = self
            .endpoint
            .quic
            .connect(now, tls, target.address, &target.server_name, None)
            .map_err(|error| refused(&error))?;
        self.conns.insert(key, Conn::Idle(Idle::new(key)));
        Ok(())
    }

    /// Drives the run to its end.
    pub fn finish(mut self) -> Result<LoadReport, LoadError> {
        loop {
            let now = self.endpoint.receive()?;
            while let Some((key, event)) = self.endpoint.quic.poll_event() {
                self.handle(now, key, event)?;
            }
            self.advance(now)?;
            self.pump()?;
            self.endpoint.transmit();
            if matches!(self.phase, Phase::Done) {
                return self.end();
            }
            if self.ready.is_empty() {
                let until = self.next_deadline();
                self.endpoint.wait(until)?;
            }
        }
    }

    fn connect(&mut self, layout: &Layout) -> Result<(), LoadError> {
        let target = &self.plan.target;
        let shape = &self.plan.shape;
        let refused = |error: &dyn std::fmt::Display| LoadError::Connect(error.to_string());
        let tls = Arc::new(client_tls(&target.roots, &[CLIENT_ALPN]).map_err(|error| refused(&error))?);
        let now = self.endpoint.now();
        let start = |endpoint: &mut Endpoint, core| {
            let tls = Arc::clone(&tls);
            endpoint
                .quic
                .connect(now, tls, target.address, &target.server_name, core)
                .map_err(|error| refused(&error))
        };
        for index in 0..shape.subscribers {
            let key = start(&mut self.endpoint, layout.core_of(index % shape.shards))?;
            self.conns.insert(key, Conn::Reader(self.readers.len()));
            self.readers.push(Reader::new(key, shape.shards, shape.subscriptions, shape.lanes()));
        }
        for connection in 0..shape.connections {
            let first = self.lanes.len();
            let key = start(&mut self.endpoint, landing(shape, layout, connection)?)?;
            for stream in 0..shape.streams {
                let number = self.lanes.len() as u32;
                let keyed = shape.keys != Keys::Plain;
                let routing_key =
                    keyed.then(|| layout.key_for(shard_of(shape, connection, stream))).flatten();
                let frames = Frames::new(&FrameSpec {
                    tenant: &target.tenant,
                    namespace: &target.namespace,
                    stream: &target.stream,
                    key: routing_key.as_deref(),
                    acked: shape.acks == Acks::Batch,
                    record_bytes: shape.record_bytes,
                    batch_records: shape.batch_records,
                    stamp_lane: (shape.subscribers > 0).then_some(number),
                })
                .map_err(|error| LoadError::Protocol(error.to_string()))?;
                self.lanes.push(Lane::new(lane_spec(shape, key, frames)));
            }
            let unopened = (first..self.lanes.len()).collect();
            self.conns.insert(key, Conn::Publisher { unopened, opened: false, authenticated: false });
        }
        Ok(())
    }

    fn handle(&mut self, now: Tick, key: ConnKey, event: QuicEvent) -> Result<(), LoadError> {
        let Some(conn) = self.conns.get_mut(&key) else { return Ok(()) };
        match event {
            QuicEvent::Connected | QuicEvent::StreamsAvailable { dir: Dir::Bi } => match conn {
                Conn::Reader(index) => self.readers[*index].ask_next(&mut self.endpoint.quic, &self.auth),
                Conn::Publisher { .. } => self.open_lanes(key),
                Conn::Idle(idle) => idle.open(&mut self.endpoint.quic, &self.auth),
            },
            QuicEvent::Readable { stream } => match conn {
                Conn::Reader(index) => {
                    let io = (&mut self.endpoint.quic, now);
                    let who = (&self.plan.target, &self.auth);
                    self.readers[*index].read(stream, io, who, &mut self.window)?;
                }
                Conn::Publisher { .. } => self.read_lane(now, key, stream)?,
                Conn::Idle(idle) => {
                    if idle.read(stream, &mut self.endpoint.quic)? {
                        self.idle.1 += 1;
                        self.connect_idle()?;
                    }
                }
            },
            QuicEvent::Writable { stream } => {
                if let Some(lane) = self.lane_of.get(&(key, stream)) {
                    enqueue(&mut self.ready, &mut self.queued, *lane);
                }
            }
            QuicEvent::Stopped { .. } => {
                return Err(LoadError::Closed("the server stopped a stream".to_owned()));
            }
            QuicEvent::Closed { reason } => return Err(LoadError::Closed(format!("{reason:?}"))),
            QuicEvent::StreamOpened { .. }
            | QuicEvent::Finished { .. }
            | QuicEvent::StreamsAvailable { dir: Dir::Uni } => {}
        }
        Ok(())
    }

    /// Opens streams as far as the server allows: one until it has authenticated, because strangers get few.
    fn open_lanes(&mut self, key: ConnKey) {
        let Some(Conn::Publisher { unopened, opened, authenticated }) = self.conns.get_mut(&key) else {
            return;
        };
        while *authenticated || !*opened {
            let Some(lane) = unopened.front().copied() else { return };
            let Some(stream) = self.endpoint.quic.open_bi(key) else { return };
            unopened.pop_front();
            *opened = true;
            self.lane_of.insert((key, stream), lane);
            self.lanes[lane].opened(stream, self.auth.clone(), &mut self.endpoint.quic);
        }
    }

    fn read_lane(&mut self, now: Tick, key: ConnKey, stream: StreamId) -> Result<(), LoadError> {
        let Some(index) = self.lane_of.get(&(key, stream)).copied() else { return Ok(()) };
        let lane = &mut self.lanes[index];
        if lane.read(&mut self.endpoint.quic, now, &mut self.window)? {
            enqueue(&mut self.ready, &mut self.queued, index);
        }
        if lane.is_ready()
            && let Some(Conn::Publisher { authenticated, .. }) = self.conns.get_mut(&key)
            && !std::mem::replace(authenticated, true)
        {
            self.open_lanes(key);
        }
        Ok(())
    }

    /// Goes on to the next phase when it is time.
    fn advance(&mut self, now: Tick) -> Result<(), LoadError> {
        match self.phase {
            Phase::SettingUp { until } => {
                let ready = self.lanes.iter().all(Lane::is_ready)
                    && self.readers.iter().all(Reader::is_subscribed)
                    && self.idle.1 == self.plan.shape.idle;
                let due = self.start.is_none_or(|start| start <= now);
                if ready && due {
                    self.start_publishing(now);
                } else if self.start.is_some() && due {
                    return Err(LoadError::Late);
                } else if !ready && until <= now {
                    let waited_s = SETUP_DEADLINE.as_secs();
                    return Err(LoadError::TimedOut { what: "authenticating and subscribing", waited_s });
                }
            }
            Phase::Publishing => {
                self.offer_due(now);
                if self.window.advance(now) {
                    for index in 0..self.lanes.len() {
                        self.lanes[index].stop();
                        enqueue(&mut self.ready, &mut self.queued, index);
                    }
                    self.phase =
                        Phase::Settling { until: now + SETTLE_DEADLINE, quiet_since: now, accounted: 0 };
                }
            }
            Phase::Settling { until, quiet_since, accounted } => {
                let seen = self.readers.iter().map(Reader::accounted).sum();
                let quiet_since = if seen > accounted { now } else { quiet_since };
                let settled = self.lanes.iter().all(Lane::is_settled);
                let read = seen >= self.expected() || quiet_since + READ_PATIENCE <= now;
                self.phase = if until <= now || (settled && read) {
                    Phase::Done
                } else {
                    Phase::Settling { until, quiet_since, accounted: seen }
                };
            }
            Phase::Done => {}
        }
        Ok(())
    }

    fn start_publishing(&mut self, now: Tick) {
        let shape = &self.plan.shape;
        self.memory_bytes.1 = self.server_memory();
        self.window = Window::new(now, shape.warmup(), shape.duration(), self.plan.target.server_pid);
        self.schedule = shape.rate.map(|rate| Schedule::new(now, rate));
        self.phase = Phase::Publishing;
        for index in 0..self.lanes.len() {
            enqueue(&mut self.ready, &mut self.queued, index);
        }
    }

    fn offer_due(&mut self, now: Tick) {
        let Some(schedule) = &mut self.schedule else { return };
        while let Some((number, due)) = schedule.take(now) {
            let index = (number % self.lanes.len() as u64) as usize;
            self.lanes[index].offer(due);
            enqueue(&mut self.ready, &mut self.queued, index);
        }
    }

    fn pump(&mut self) -> Result<(), LoadError> {
        if matches!(self.phase, Phase::SettingUp { .. }) {
            return Ok(());
        }
        for _ in 0..self.ready.len() {
            let Some(index) = self.ready.pop_front() else { break };
            self.queued[index] = false;
            let now = self.endpoint.now();
            let pumped = self.lanes[index].pump(&mut self.endpoint.quic, now, &mut self.window)?;
            if pumped == Pumped::Again {
                enqueue(&mut self.ready, &mut self.queued, index);
            }
        }
        Ok(())
    }

    fn next_deadline(&self) -> Option<Tick> {
        match self.phase {
            Phase::SettingUp { until } => Some(self.start.map_or(until, |start| start.min(until))),
            Phase::Publishing => {
                let due = self.schedule.as_ref().map(Schedule::next_due);
                self.window.next_change().into_iter().chain(due).min()
            }
            Phase::Settling { until, quiet_since, .. } => Some(until.min(quiet_since + READ_PATIENCE)),
            Phase::Done => None,
        }
    }

    /// Records that all readers together must see.
    fn expected(&self) -> u64 {
        let subscriptions = self.readers.len() as u64 * u64::from(self.plan.shape.subscriptions);
        self.lanes.iter().map(Lane::records).sum::<u64>() * subscriptions
    }

    fn end(mut self) -> Result<LoadReport, LoadError> {
        let report = self.report()?;
        let now = self.endpoint.now();
        self.endpoint.quic.close_all(now, VarInt::from_u32(0), &Bytes::new());
        self.endpoint.transmit();
        Ok(report)
    }

    fn report(&self) -> Result<LoadReport, LoadError> {
        let Some(measured) = self.window.measured() else {
            return Err(LoadError::TimedOut { what: "the steady window", waited_s: 0 });
        };
        let paths: Vec<_> = self
            .conns
            .iter()
            .filter(|(_, conn)| matches!(conn, Conn::Publisher { .. }))
            .filter_map(|(key, _)| self.endpoint.quic.stats(*key))
            .collect();
        let refused = |lane: &Lane| lane.counts.refused + lane.counts.forgotten;
        Ok(LoadReport {
            target: self.plan.name.clone(),
            shape: self.plan.shape.clone(),
            machine: Machine::look(),
            seconds: measured.length.as_secs_f64(),
            batches: self.window.batches,
            payload_bytes: self.window.payload_bytes,
            window_unix_s: measured.unix_s(),
            ack_latency: self.window.latencies.ack.summary(),
            service_latency: self.window.latencies.service.summary(),
            queueing_latency: self.window.latencies.queueing.summary(),
            server: measured.server.clone(),
            client_seconds: measured.client.seconds,
            mtu: paths.iter().map(|path| path.mtu).min().unwrap_or(0),
            packets: paths
                .iter()
                .fold((0, 0), |sum, path| (sum.0 + path.sent_packets, sum.1 + path.lost_packets)),
            sent_batches: self.lanes.iter().map(|lane| lane.counts.sent).sum(),
            refused_batches: self.lanes.iter().map(refused).sum(),
            unanswered_batches: self.lanes.iter().map(Lane::unanswered).sum(),
            read: (!self.readers.is_empty()).then(|| self.read_report()),
            histograms: self.window.latencies.clone(),
            idle_connection_bytes: self.idle_connection_bytes(),
        })
    }

    fn idle_connection_bytes(&self) -> Option<f64> {
        let (before, after) = (self.memory_bytes.0?, self.memory_bytes.1?);
        Some(after.saturating_sub(before) as f64 / f64::from(self.plan.shape.idle))
    }

    fn read_report(&self) -> ReadReport {
        let sum = |of: fn(&Reader) -> u64| self.readers.iter().map(of).sum();
        ReadReport {
            expected_records: self.expected(),
            delivered_records: sum(|reader| reader.counts.delivered),
            missing_records: sum(|reader| reader.counts.missing),
            repeated_records: sum(|reader| reader.counts.repeated),
            ended: sum(|reader| reader.counts.ended),
            delivery_latency: self.window.latencies.delivery.summary(),
        }
    }
}

fn enqueue(ready: &mut VecDeque<usize>, queued: &mut [bool], lane: usize) {
    if !std::mem::replace(&mut queued[lane], true) {
        ready.push_back(lane);
    }
}

/// With enough connections all streams of one write to one shard, so that it can land on the core of that shard.
fn shard_of(shape: &Shape, connection: u32, stream: u32) -> u32 {
    let lane = connection * shape.streams + stream;
    if shape.keys == Keys::Hot && !lane.is_multiple_of(10) {
        return 0;
    }
    let number = match shape.keys {
        Keys::Hot => lane / 10,
        Keys::Spread | Keys::Plain if shape.connections >= shape.shards => connection,
        Keys::Spread | Keys::Plain => lane,
    };
    number % shape.shards
}

/// The core that a publishing connection is to land on, where the server tells.
fn landing(shape: &Shape, layout: &Layout, connection: u32) -> Result<Option<u16>, LoadError> {
    let shard = shard_of(shape, connection, 0);
    match shape.landing {
        Landing::Right => Ok(layout.core_of(shard)),
        Landing::Wrong => layout.core_without(shard).map(Some).ok_or(LoadError::OneCore),
    }
}

fn lane_spec(shape: &Shape, key: ConnKey, frames: Frames) -> LaneSpec {
    LaneSpec {
        key,
        frames,
        acked: shape.acks == Acks::Batch,
        inflight: shape.inflight as usize,
        scheduled: shape.rate.is_some(),
        batch_bytes: shape.batch_bytes(),
        batch_records: u64::from(shape.batch_records),
    }
}

#[cfg(test)]
mod tests {
    use felix_wire::routing::KeyMapping;

    use super::*;

    #[test]
    fn a_connection_lands_where_its_shard_is_or_where_it_is_not() {
        let layout =
            |cores: &[Option<u16>]| Layout { width: 2, mapping: KeyMapping::Modulo, cores: cores.to_vec() };
        let right = Shape { connections: 2, shards: 2, ..Shape::canonical() };
        let wrong = Shape { landing: Landing::Wrong, ..right.clone() };
        let two = layout(&[Some(4), Some(7)]);
        let of = |shape, connection| landing(shape, &two, connection).unwrap();
        assert_eq!((of(&right, 0), of(&right, 1)), (Some(4), Some(7)));
        assert_eq!((of(&wrong, 0), of(&wrong, 1)), (Some(7), Some(4)));
        for cores in [[Some(4), Some(4)], [None, Some(4)]] {
            assert!(matches!(landing(&wrong, &layout(&cores), 0), Err(LoadError::OneCore)));
        }
    }

    #[test]
    fn streams_are_spread_over_shards_or_nine_of_ten_go_to_one() {
        let shape = |keys| Shape { keys, streams: 50, shards: 5, ..Shape::canonical() };
        let counts = |shape: &Shape| {
            let mut counts = [0; 5];
            (0..50).for_each(|stream| counts[shard_of(shape, 0, stream) as usize] += 1);
            counts
        };
        assert_eq!(counts(&shape(Keys::Spread)), [10; 5]);
        assert_eq!(counts(&shape(Keys::Hot)), [46, 1, 1, 1, 1]);
        let many = Shape { connections: 10, streams: 1, ..shape(Keys::Spread) };
        assert_eq!((shard_of(&many, 7, 0), shard_of(&many, 3, 0)), (2, 3), "one connection to one shard");
    }
}
