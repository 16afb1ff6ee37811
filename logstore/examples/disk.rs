//! What the engine makes of a disk, beside the disk itself: `disk [directory] [seconds per cell] [rounds]`.
//!
//! One core. Each round runs every cell once, in turn, so that a slow minute of the machine meets all of them: raw writes
//! (O_DIRECT and O_DSYNC, over blocks that were written before), the engine with the same sizes and depth, many logs and
//! one, and reads of a log's history beside raw sequential reads. Medians over rounds and their ratios come at the end.

use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::time::Duration;

use felix_logstore::driver::Driver;
use felix_logstore::engine::{Engine, EngineConfig, Event, LogId, ReadId};
use felix_logstore::id::{Fsync, ShardKey};
use felix_logstore::log::{AppendMeta, ClaimError, LogConfig};
use felix_logstore::record::BatchKind;
use felix_logstore::recovery::{LOCK_WAIT, Recovery, RecoveryConfig};
use felix_logstore::retention::Retention;
use felix_runtime::clock::{Clock, Tick};
use felix_runtime::executor::{CoreIo, CoreSpec, spawn_core};
use felix_runtime::file::{
    Disk, DiskPath, FileId, Files, FilesSettings, Op, OpenFlags, OpenMode, Outcome, SharedBuf, Token,
    VolumeId,
};
use felix_runtime::udp::{BufferSizes, DEFAULT_PINNED_BYTES, ReusePortGroup};
use felix_runtime::waker::CoreWaker;
use felix_wire::id::{CoreId, Generation, Incarnation, Offset};

const SETTINGS: FilesSettings = FilesSettings { ops_max: 256, pool_bytes: 192 << 20 };
/// Length of the file of raw writes and reads.
const RAW_BYTES: u64 = 512 << 20;
const SEGMENT_BYTES: u64 = 64 << 20;
/// What a log keeps; older segments are used again.
const KEPT_BYTES: u64 = 96 << 20;

/// A batch as a producer sends it.
#[derive(Clone, Copy)]
struct Shape {
    record_bytes: usize,
    records: usize,
    depth: usize,
}

impl Shape {
    fn bytes(&self) -> usize {
        self.record_bytes * self.records
    }
}

const BIG: Shape = Shape { record_bytes: 4_096, records: 64, depth: 8 };
const SMALL: Shape = Shape { record_bytes: 256, records: 64, depth: 8 };

struct Bench {
    io: CoreIo,
    files: Files,
    volume: VolumeId,
    engine: Engine,
    driver: Driver,
    raw: FileId,
    others: VecDeque<felix_runtime::file::Done>,
    token: u64,
    cell: Duration,
    next_key: u128,
    payload: Vec<u8>,
    results: BTreeMap<&'static str, Vec<f64>>,
}

fn clock_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/stat").unwrap_or_default();
    let fields: Vec<&str> = text.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|text| text.parse::<f64>().ok()).unwrap_or(0.0);
    (ticks(11) + ticks(12)) / 100.0
}

impl Bench {
    fn now(&self) -> Tick {
        self.io.now()
    }

    async fn wait(&mut self, timeout: Option<Tick>) {
        let most = self.now() + Duration::from_secs(20);
        self.files.hand_over();
        self.io.wait(Some(timeout.map_or(most, |timeout| timeout.min(most))));
    }

    fn turn(&mut self) {
        let now = self.io.now();
        self.others.extend(self.driver.turn(&mut self.files, &mut self.engine, now));
    }

    /// One operation outside of the engine.
    fn ask(&mut self, op: Op) -> Token {
        self.token += 1;
        let token = Token(self.token);
        self.files.submit(token, op).expect("room for an operation");
        token
    }

    async fn answer(&mut self) -> (Token, Outcome) {
        loop {
            if let Some(done) = self.others.pop_front() {
                return (done.token, done.result.expect("the disk works"));
            }
            self.turn();
            if self.others.is_empty() {
                let timeout = self.engine.next_timeout();
                self.wait(timeout).await;
            }
        }
    }

    async fn make_raw(&mut self) {
        let path = DiskPath::new(self.volume, "raw").expect("a name");
        let flags = OpenFlags::dsync(OpenMode::Create);
        self.ask(Op::Open { path, flags });
        let (_, Outcome::Opened { file, .. }) = self.answer().await else { panic!("it opens") };
        self.raw = file;
        let data = self.buffer(1 << 20);
        for at in (0..RAW_BYTES).step_by(1 << 20) {
            self.ask(Op::Write { file, at, data: data.clone() });
            self.answer().await;
        }
    }

    fn buffer(&self, bytes: usize) -> SharedBuf {
        let mut buffer = self.files.pool().take(bytes).expect("memory");
        buffer.push(&self.payload[..bytes]);
        buffer.freeze()
    }

    fn note(&mut self, name: &'static str, bytes: u64, from: Tick, cpu: f64) {
        let took = self.now().saturating_since(from).as_secs_f64();
        let rate = bytes as f64 / took / 1e6;
        let cpu = (clock_seconds() - cpu) / (bytes as f64 / 1e9);
        println!("{name:<34} {rate:>8.0} MB/s   {cpu:.3} CPU s/GB of this thread");
        self.results.entry(name).or_default().push(rate);
    }

    async fn raw_writes(&mut self, name: &'static str, bytes: usize, depth: usize) {
        let data = self.buffer(bytes);
        let (from, cpu) = (self.now(), clock_seconds());
        let until = from + self.cell;
        let (mut at, mut flying, mut done) = (0, 0, 0);
        loop {
            let go_on = self.now() < until;
            while go_on && flying < depth {
                let (file, data) = (self.raw, data.clone());
                self.ask(Op::Write { file, at, data });
                at = if at + 2 * bytes as u64 > RAW_BYTES { 0 } else { at + bytes as u64 };
                flying += 1;
            }
            if flying == 0 {
                break;
            }
            self.answer().await;
            flying -= 1;
            done += bytes as u64;
        }
        self.note(name, done, from, cpu);
    }

    async fn raw_reads(&mut self, name: &'static str, depth: usize) {
        const READ: usize = 1 << 20;
        let (from, cpu) = (self.now(), clock_seconds());
        let until = from + self.cell;
        let (mut at, mut flying, mut done) = (0, 0, 0);
        loop {
            let go_on = self.now() < until;
            while go_on && flying < depth {
                let room = self.files.pool().read_room(READ).expect("memory");
                let file = self.raw;
                self.ask(Op::Read { file, at, room });
                at = (at + READ as u64) % RAW_BYTES;
                flying += 1;
            }
            if flying == 0 {
                break;
            }
            let (_, outcome) = self.answer().await;
            flying -= 1;
            if let Outcome::Read(read) = outcome {
                done += read.len() as u64;
            }
        }
        self.note(name, done, from, cpu);
    }

    async fn create(&mut self) -> LogId {
        let config = LogConfig {
            policy: Fsync::OnCommit,
            segment_bytes_first: SEGMENT_BYTES,
            segment_bytes_max: SEGMENT_BYTES,
            retention: Retention { bytes: Some(KEPT_BYTES), age_ms: None },
            ..LogConfig::default()
        };
        self.next_key += 1;
        let key = ShardKey { name: self.next_key, incarnation: Incarnation(1) };
        let log = self.engine.create(key, config).expect("room for a log");
        loop {
            self.turn();
            while let Some(event) = self.engine.poll_event() {
                if matches!(event, Event::Created { .. }) {
                    return log;
                }
            }
            let timeout = self.engine.next_timeout();
            self.wait(timeout).await;
        }
    }

    /// One batch. False when there is no room.
    fn publish(&mut self, log: LogId, shape: Shape) -> bool {
        let count = NonZeroU32::new(shape.records as u32).expect("records");
        match self.engine.claim(log, BatchKind::Data, count, shape.bytes()) {
            Ok(claim) => {
                let meta = AppendMeta { generation: Generation(1), timestamp_ms: 1, producer: None };
                let records = self.payload[..shape.bytes()].chunks(shape.record_bytes);
                self.engine.append(log, claim, meta, records.map(|record| (1, record)));
                true
            }
            Err(ClaimError::NoRoom) => false,
            Err(error) => panic!("{error}"),
        }
    }

    /// Keeps `depth` batches of each log in flight for a cell, or until `bytes`.
    async fn publish_all(&mut self, logs: &[LogId], shape: Shape, bytes: Option<u64>) -> u64 {
        let until = self.now() + self.cell;
        let mut flying: BTreeMap<LogId, usize> = logs.iter().map(|log| (*log, 0)).collect();
        let records = shape.records as u64;
        let first: BTreeMap<LogId, u64> = logs.iter().map(|log| (*log, self.settled(*log))).collect();
        let mut sent: BTreeMap<LogId, u64> = first.clone();
        let mut turns = 0u64;
        loop {
            let done: u64 = logs.iter().map(|log| self.settled(*log) - first[log]).sum();
            let done = done / records * shape.bytes() as u64;
            let go_on = bytes.map_or(self.now() < until, |bytes| done < bytes);
            for log in logs {
                let settled = self.settled(*log);
                let count = flying.get_mut(log).expect("a log of ours");
                *count = ((sent[log] - settled) / records) as usize;
                while go_on && *count < shape.depth && self.publish(*log, shape) {
                    *count += 1;
                    *sent.get_mut(log).expect("a log of ours") += records;
                }
            }
            if !go_on && flying.values().all(|count| *count == 0) {
                return done;
            }
            self.turn();
            let mut any = false;
            while let Some(event) = self.engine.poll_event() {
                any |= matches!(event, Event::Settled { .. } | Event::Room { .. });
                assert!(!matches!(event, Event::Stopped { .. } | Event::DiskTrouble { .. }), "{event:?}");
            }
            turns += 1;
            if turns.is_multiple_of(64) && bytes.is_none() {
                for log in logs {
                    self.engine.retain(*log, 0, Offset(u64::MAX));
                }
            }
            if !any {
                let timeout = self.engine.next_timeout();
                self.wait(timeout).await;
            }
        }
    }

    fn settled(&self, log: LogId) -> u64 {
        self.engine.log(log).map_or(0, |log| log.settled_end().0)
    }

    async fn writes(&mut self, name: &'static str, logs: &[LogId], shape: Shape) {
        let (from, cpu) = (self.now(), clock_seconds());
        let before = self.engine.counts();
        let bytes = self.publish_all(logs, shape, None).await;
        self.note(name, bytes, from, cpu);
        let now = self.engine.counts();
        println!(
            "    {} direct writes of {} KB, {} rounds of {} KB with {} pieces, pool {}",
            now.direct - before.direct,
            (now.direct_bytes - before.direct_bytes) / 1_000 / (now.direct - before.direct).max(1),
            now.rounds - before.rounds,
            (now.round_bytes - before.round_bytes) / 1_000 / (now.rounds - before.rounds).max(1),
            (now.round_pieces - before.round_pieces) / (now.rounds - before.rounds).max(1),
            self.engine.gauges().pooled,
        );
    }

    async fn history(&mut self, name: &'static str, log: LogId) {
        let end = self.engine.log(log).expect("there").settled_end();
        let start = self.engine.log(log).expect("there").start();
        let (from, cpu) = (self.now(), clock_seconds());
        let until = from + self.cell;
        let (mut at, mut bytes, mut read) = (start, 0u64, 0);
        while self.now() < until {
            read += 1;
            self.engine.read(ReadId(read), log, at, end, 1 << 20);
            'page: loop {
                self.turn();
                while let Some(event) = self.engine.poll_event() {
                    match event {
                        Event::Page { batches, .. } => {
                            bytes += batches.iter().map(|batch| batch.bytes().len() as u64).sum::<u64>();
                            at = batches.last().map_or(start, |batch| batch.head().end());
                            at = if at >= end { start } else { at };
                            break 'page;
                        }
                        Event::ReadFailed { error, .. } => panic!("{error}"),
                        _ => {}
                    }
                }
                let timeout = self.engine.next_timeout();
                self.wait(timeout).await;
            }
        }
        self.note(name, bytes, from, cpu);
    }

    async fn run(&mut self, rounds: usize) {
        self.make_raw().await;
        let one = self.create().await;
        let small = self.create().await;
        let past = self.create().await;
        let mut many = Vec::new();
        for _ in 0..48 {
            many.push(self.create().await);
        }
        self.publish_all(&[past], BIG, Some(400 << 20)).await;
        // Segments of these come round to their second use.
        for _ in 0..3 {
            self.publish_all(&[one], BIG, None).await;
            self.publish_all(&[small], SMALL, None).await;
        }
        self.publish_all(&many, SMALL, None).await;
        for round in 0..rounds {
            println!("-- round {round}");
            self.raw_writes("raw 256 KiB x 8", 256 << 10, 8).await;
            self.writes("engine 4 KiB x 64, 8 in flight", &[one], BIG).await;
            self.writes("engine 256 B x 64, one log", &[small], SMALL).await;
            self.writes("engine 256 B x 64, 48 logs", &many.clone(), SMALL).await;
            self.raw_writes("raw 16 KiB x 8", 16 << 10, 8).await;
            self.raw_reads("raw reads 1 MiB x 1", 1).await;
            self.raw_reads("raw reads 1 MiB x 4", 4).await;
            self.history("engine history of one log", past).await;
        }
        println!("-- medians of {rounds}");
        let medians: BTreeMap<&str, f64> =
            self.results.iter().map(|(name, all)| (*name, median(all))).collect();
        for (name, rate) in &medians {
            println!("{name:<34} {rate:>8.0} MB/s");
        }
        let ratio = |what: &str, one: &str, other: &str| {
            println!("{what}: {:.2}", medians[one] / medians[other]);
        };
        ratio("engine to raw writes", "engine 4 KiB x 64, 8 in flight", "raw 256 KiB x 8");
        ratio("48 logs to one", "engine 256 B x 64, 48 logs", "engine 256 B x 64, one log");
        ratio("history to raw reads", "engine history of one log", "raw reads 1 MiB x 1");
    }
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

async fn recover(io: &mut CoreIo, files: &mut Files, volume: VolumeId) -> felix_logstore::id::Run {
    let config = RecoveryConfig {
        volume,
        boot: [1; 16],
        entropy: u64::from(std::process::id()),
        first_token: 1 << 40,
        lock_wait: LOCK_WAIT,
    };
    let mut recovery = Recovery::new(config, files.pool().clone());
    let mut driver = Driver::default();
    loop {
        if let Some(result) = driver.recover(files, &mut recovery) {
            return result.expect("an empty volume").run;
        }
        files.hand_over();
        let until = io.now() + Duration::from_secs(10);
        io.wait(Some(until));
    }
}

async fn bench(mut io: CoreIo, root: PathBuf, cell: Duration, rounds: usize) {
    let mut files = Files::new(&mut io, SETTINGS).expect("a ring");
    let volume = files.open_volume(&root).expect("a usable volume");
    let run = recover(&mut io, &mut files, volume).await;
    let config = EngineConfig::new(volume, CoreId(0), run, [1; 16], 7);
    let engine = Engine::new(config, files.pool().clone(), io.now()).expect("a sound configuration");
    let mut bench = Bench {
        io,
        files,
        volume,
        engine,
        driver: Driver::default(),
        raw: FileId(0),
        others: VecDeque::new(),
        token: 1 << 50,
        cell,
        next_key: 0,
        payload: (0..1 << 20).map(|at: usize| (at * 31 + at / 251) as u8).collect(),
        results: BTreeMap::new(),
    };
    bench.run(rounds).await;
    bench.engine.close();
    while !matches!(bench.engine.poll_event(), Some(Event::Closed)) {
        bench.turn();
        let timeout = bench.engine.next_timeout();
        bench.files.hand_over();
        let soon = bench.io.now() + Duration::from_millis(50);
        bench.io.wait(Some(timeout.map_or(soon, |timeout| timeout.min(soon))));
    }
    bench.files.close();
}

fn main() {
    let mut args = std::env::args().skip(1);
    let root = args.next().unwrap_or_else(|| "target/felix-disk".to_owned());
    let seconds: f64 = args.next().and_then(|text| text.parse().ok()).unwrap_or(0.7);
    let rounds = args.next().and_then(|text| text.parse().ok()).unwrap_or(5);
    let root = Path::new(&root).join(format!("run-{}", std::process::id()));
    std::fs::create_dir_all(&root).expect("a directory");
    let group =
        ReusePortGroup::bind(([127, 0, 0, 1], 0).into(), 1, BufferSizes::default()).expect("a free port");
    let spec = CoreSpec {
        index: 0,
        cpu: Some(0),
        spin: Duration::ZERO,
        name: "disk".to_owned(),
        pinned_bytes: DEFAULT_PINNED_BYTES,
        clock: Clock::start(),
        waker: CoreWaker::new(),
    };
    let socket = group.sockets.into_iter().next().expect("one socket");
    let dir = root.clone();
    let join = spawn_core(spec, socket, move |io| bench(io, dir, Duration::from_secs_f64(seconds), rounds));
    join.expect("the core starts").join().expect("the core ends");
    std::fs::remove_dir_all(&root).expect("its own directory");
}
