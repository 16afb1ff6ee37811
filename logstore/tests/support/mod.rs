//! An engine over a simulated disk, with a model of what it promised.
#![allow(dead_code, reason = "each test uses a part")]

use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroU32;
use std::time::Duration;

use felix_logstore::driver::Driver;
use felix_logstore::engine::{Engine, EngineConfig, Event, LogId, ReadError, ReadId, Reservations};
use felix_logstore::id::{Fsync, ShardKey};
use felix_logstore::log::{AppendMeta, ClaimError, Log, LogConfig};
use felix_logstore::record::{Batch, BatchKind};
use felix_logstore::recovery::{LOCK_WAIT, Recovered, Recovery, RecoveryConfig, RecoveryError};
use felix_runtime::clock::Tick;
use felix_runtime::file::{BufPool, Disk, Done, Full, Op, Token, VolumeId};
use felix_runtime::sim::{DiskFaults, DiskImage, SimDisk, SimRng, TraceDisk};
use felix_wire::id::{CoreId, Generation, Incarnation, Offset};

pub const VOLUME: VolumeId = VolumeId(0);
pub const VOLUME_BYTES: u64 = 1 << 30;

/// A simulated disk, recorded or not.
#[allow(clippy::large_enum_variant, reason = "there is one per world")]
pub enum AnyDisk {
    Plain(SimDisk),
    Traced(TraceDisk<SimDisk>),
}

impl AnyDisk {
    pub fn sim(&mut self) -> &mut SimDisk {
        match self {
            AnyDisk::Plain(disk) => disk,
            AnyDisk::Traced(disk) => disk.inner(),
        }
    }

    pub fn position(&self) -> usize {
        match self {
            AnyDisk::Plain(_) => 0,
            AnyDisk::Traced(disk) => disk.position(),
        }
    }
}

impl Disk for AnyDisk {
    fn submit(&mut self, token: Token, op: Op) -> Result<(), Full> {
        match self {
            AnyDisk::Plain(disk) => disk.submit(token, op),
            AnyDisk::Traced(disk) => disk.submit(token, op),
        }
    }

    fn poll_done(&mut self) -> Option<Done> {
        match self {
            AnyDisk::Plain(disk) => disk.poll_done(),
            AnyDisk::Traced(disk) => disk.poll_done(),
        }
    }

    fn in_flight(&self) -> usize {
        match self {
            AnyDisk::Plain(disk) => disk.in_flight(),
            AnyDisk::Traced(disk) => disk.in_flight(),
        }
    }
}

pub fn key(name: u128, incarnation: u64) -> ShardKey {
    ShardKey { name, incarnation: Incarnation(incarnation) }
}

pub fn pool() -> BufPool {
    BufPool::new(128 << 20)
}

/// Recovers a volume; `stop_after` operations are answered at most.
pub fn recover_some(
    disk: &mut AnyDisk,
    boot: u8,
    stop_after: Option<u64>,
) -> Option<Result<Recovered, RecoveryError>> {
    let entropy = disk.sim().counts().answered ^ 0x5eed_0000 ^ u64::from(boot);
    let config = RecoveryConfig {
        volume: VOLUME,
        boot: [boot; 16],
        entropy,
        first_token: 1 << 40,
        lock_wait: LOCK_WAIT,
    };
    let mut recovery = Recovery::new(config, pool());
    let mut driver = Driver::default();
    let before = disk.sim().counts().answered;
    loop {
        if let Some(result) = driver.recover(disk, &mut recovery) {
            return Some(result);
        }
        if stop_after.is_some_and(|most| disk.sim().counts().answered - before >= most) {
            return None;
        }
        let due = disk.sim().next_due().expect("recovery waits for the disk only");
        disk.sim().advance_to(due);
    }
}

pub fn recover(disk: &mut AnyDisk, boot: u8) -> Recovered {
    recover_some(disk, boot, None).expect("it runs to its end").expect("the volume can be used")
}

pub fn engine_config(recovered: &Recovered, boot: u8) -> EngineConfig {
    let mut config = EngineConfig::new(VOLUME, CoreId(0), recovered.run, [boot; 16], 77 * recovered.run.0);
    config.slot_bytes = 1 << 20;
    config.space_low_bytes = 1 << 20;
    config.space_high_bytes = 2 << 20;
    config
}

pub fn log_config(policy: Fsync) -> LogConfig {
    LogConfig { policy, segment_bytes_max: 256 << 10, ..LogConfig::default() }
}

/// Records by offset; none for offsets without one.
pub type Records = BTreeMap<u64, Option<Vec<u8>>>;

/// Adds the records of the batch that is due at `at`; gives where the next one is due.
fn take_records(batch: &Batch, at: Offset, records: &mut Records) -> Offset {
    let head = *batch.head();
    assert!(head.base <= at && at < head.end(), "dense at {at}: {head:?}");
    records.insert(at.0, None);
    records.insert(head.end().0 - 1, None);
    for record in batch.records().filter(|record| record.offset >= at) {
        records.insert(record.offset.0, Some(record.payload.to_vec()));
    }
    head.end()
}

/// An engine on a disk, with time.
pub struct World {
    pub disk: AnyDisk,
    pub engine: Engine,
    pub driver: Driver,
    pub recovered: Recovered,
    pub events: VecDeque<Event>,
    pub boot: u8,
    next_read: u64,
}

impl World {
    /// Recovers the disk and gives every log it finds to an engine.
    pub fn start(disk: AnyDisk, boot: u8) -> World {
        World::start_with(disk, boot, |_| {})
    }

    pub fn start_with(mut disk: AnyDisk, boot: u8, change: impl FnOnce(&mut EngineConfig)) -> World {
        let mut recovered = recover(&mut disk, boot);
        let mut config = engine_config(&recovered, boot);
        change(&mut config);
        let now = disk.sim().now();
        let mut engine = Engine::new(config, pool(), now).expect("a sound configuration");
        for state in std::mem::take(&mut recovered.logs) {
            let policy = state.policy;
            engine.adopt(Log::from_state(state, log_config(policy))).expect("room for the log");
        }
        let mut world = World {
            disk,
            engine,
            driver: Driver::default(),
            recovered,
            events: VecDeque::new(),
            boot,
            next_read: 1,
        };
        world.turn();
        world
    }

    pub fn empty(seed: u64) -> World {
        World::start(fresh_disk(seed), 1)
    }

    pub fn now(&mut self) -> Tick {
        self.disk.sim().now()
    }

    pub fn turn(&mut self) {
        let now = self.disk.sim().now();
        let others = self.driver.turn(&mut self.disk, &mut self.engine, now);
        assert!(others.is_empty(), "only the engine asks");
        while let Some(event) = self.engine.poll_event() {
            self.events.push_back(event);
        }
    }

    /// Moves time to whatever is due next, and lets it happen.
    pub fn step(&mut self) {
        self.turn();
        let due = self.disk.sim().next_due();
        let timeout = self.engine.next_timeout();
        let next = [due, timeout].into_iter().flatten().min().expect("something is due");
        let next = next.max(self.disk.sim().now() + Duration::from_nanos(1));
        self.disk.sim().advance_to(next);
        self.turn();
    }

    /// Steps until `until` is true of the events so far; they are kept.
    pub fn run_until(&mut self, mut until: impl FnMut(&World) -> bool) {
        for _ in 0..2_000_000 {
            if until(self) {
                return;
            }
            self.step();
        }
        panic!("nothing came of it; last events {:?}", self.events.iter().rev().take(5).collect::<Vec<_>>());
    }

    pub fn pass(&mut self, time: Duration) {
        let until = self.now() + time;
        while self.now() < until {
            self.step();
        }
    }

    pub fn create(&mut self, key: ShardKey, policy: Fsync) -> LogId {
        let log = self.engine.create(key, log_config(policy)).expect("a new key");
        self.run_until(|world| {
            world.events.iter().any(|event| matches!(event, Event::Created { log: made } if *made == log))
        });
        log
    }

    /// Publishes one batch, waiting for room.
    pub fn publish(&mut self, log: LogId, payloads: &[Vec<u8>]) -> Offset {
        let bytes = payloads.iter().map(Vec::len).sum();
        let count = NonZeroU32::new(payloads.len() as u32).expect("records");
        for _ in 0..100_000 {
            match self.engine.claim(log, BatchKind::Data, count, bytes) {
                Ok(claim) => {
                    let base = claim.base();
                    let meta = AppendMeta { generation: Generation(1), timestamp_ms: 1_000, producer: None };
                    let records = payloads.iter().map(|payload| (1_000, payload.as_slice()));
                    self.engine.append(log, claim, meta, records).expect("the log is there");
                    self.turn();
                    return base;
                }
                Err(ClaimError::NoRoom) => self.step(),
                Err(error) => panic!("refused: {error}"),
            }
        }
        panic!("there was never room");
    }

    pub fn settle(&mut self, log: LogId) {
        self.run_until(|world| world.engine.log(log).is_some_and(|log| log.is_settled()));
    }

    pub fn read(&mut self, log: LogId, from: Offset, bytes_max: usize) -> Result<Vec<Batch>, ReadError> {
        let read = ReadId(self.next_read);
        self.next_read += 1;
        self.engine.read(read, log, from, Offset(u64::MAX), bytes_max);
        loop {
            self.turn();
            let found = self.events.iter().position(|event| match event {
                Event::Page { read: of, .. } | Event::ReadFailed { read: of, .. } => *of == read,
                _ => false,
            });
            match found.and_then(|at| self.events.remove(at)) {
                Some(Event::Page { batches, .. }) => return Ok(batches),
                Some(Event::ReadFailed { error, .. }) => return Err(error),
                _ => self.step(),
            }
        }
    }

    /// Every record from the start on: offset and payload. Of skipped offsets the first and the last are there, without one.
    pub fn read_log(&mut self, log: LogId) -> Result<Records, ReadError> {
        let mut records = Records::new();
        let machine = self.engine.log(log).expect("the log is there");
        let (mut at, end) = (machine.start(), machine.settled_end());
        while at < end {
            let batches = self.read(log, at, 64 << 10)?;
            assert!(!batches.is_empty(), "something is between {at} and {end}");
            for batch in batches {
                at = take_records(&batch, at, &mut records);
            }
        }
        Ok(records)
    }

    /// What [`World::read_log`] gives, but going on behind damage, and the ranges that were told to be damaged.
    pub fn read_around(&mut self, log: LogId) -> (Records, Vec<(u64, u64)>) {
        let (mut records, mut holes) = (Records::new(), Vec::new());
        let machine = self.engine.log(log).expect("the log is there");
        let (mut at, end) = (machine.start(), machine.settled_end());
        while at < end {
            let batches = match self.read(log, at, 64 << 10) {
                Ok(batches) => batches,
                Err(ReadError::Damaged { from, next, .. }) => {
                    assert!(from <= at && at < next && next <= end, "{from}..{next} at {at} of {end}");
                    holes.push((from.0, next.0));
                    at = next;
                    continue;
                }
                Err(error) => panic!("at {at}: {error}"),
            };
            assert!(!batches.is_empty(), "something is between {at} and {end}");
            for batch in batches {
                at = take_records(&batch, at, &mut records);
            }
        }
        (records, holes)
    }

    pub fn close(mut self) -> AnyDisk {
        self.engine.close();
        self.run_until(|world| world.events.iter().any(|event| matches!(event, Event::Closed)));
        // The process ends, and with it the lock of the volume.
        self.disk.sim().kill();
        self.disk
    }
}

pub fn faults() -> DiskFaults {
    DiskFaults::slow(Duration::from_micros(100))
}

pub fn fresh_disk(seed: u64) -> AnyDisk {
    AnyDisk::Plain(SimDisk::new(seed, &[VOLUME_BYTES], faults()))
}

pub fn from_image(seed: u64, image: DiskImage) -> AnyDisk {
    AnyDisk::Plain(SimDisk::from_image(seed, image, faults()))
}

pub fn traced(seed: u64, image: DiskImage) -> AnyDisk {
    AnyDisk::Traced(TraceDisk::new(SimDisk::from_image(seed, image.clone(), faults()), image))
}

pub fn payload(rng: &mut SimRng, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    rng.fill(&mut bytes);
    bytes
}

/// Bytes as text: a line of hex per block that is not all zeros, with its number; zeros at the end of a block left out.
pub fn to_text(bytes: &[u8]) -> String {
    let mut text = format!("{} bytes\n", bytes.len());
    for (number, block) in bytes.chunks(4_096).enumerate() {
        let used = block.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        if used > 0 {
            text += &format!("block {number} {}\n", hex::encode(&block[..used]));
        }
    }
    text
}

pub fn from_text(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            [len, "bytes"] => bytes = vec![0; len.parse().expect("a length")],
            ["block", number, digits] => {
                let at = number.parse::<usize>().expect("a number") * 4_096;
                let block = hex::decode(digits).expect("hex");
                bytes[at..at + block.len()].copy_from_slice(&block);
            }
            _ => panic!("not a line of a dump: {line:?}"),
        }
    }
    bytes
}

pub fn dump_volume(image: &DiskImage) -> String {
    let mut text = String::new();
    for (path, _) in image.files() {
        let bytes = image.read(&path).expect("it is listed");
        text += &format!("file {}\n{}", path.as_str(), to_text(&bytes));
    }
    text
}

/// A disk with the files of a dump.
pub fn load_volume(text: &str) -> AnyDisk {
    use felix_logstore::script::{Desk, Scripts};
    use felix_runtime::file::{DiskPath, OpenFlags, OpenMode};
    let mut disk = fresh_disk(1);
    let desk = Desk::new(1, pool(), Reservations::default());
    let mut scripts: Scripts<()> = Scripts::new(desk.clone());
    for file in text.split("file ").skip(1) {
        let (name, rest) = file.split_once('\n').expect("a name");
        let path = DiskPath::new(VOLUME, name).expect("a path");
        let bytes = from_text(rest);
        let own = desk.clone();
        scripts.start(async move {
            let parent = path.parent();
            if !parent.parent().is_root() {
                own.make_dir(parent.parent()).await.expect("a directory");
            }
            own.make_dir(parent).await.ok();
            let (file, _) = own.open(path, OpenFlags::plain(OpenMode::CreateNew)).await.expect("a file");
            own.presize(file, bytes.len() as u64).await.expect("space");
            for (number, block) in bytes.chunks(4_096).enumerate() {
                if block.iter().any(|byte| *byte != 0) {
                    own.write_bytes(file, number as u64 * 4_096, block).await.expect("a write");
                }
            }
            own.close(file).await;
        });
        while !scripts.is_empty() {
            while let Some((token, op)) = desk.poll_op() {
                disk.submit(token, op).expect("room");
            }
            if let Some(due) = disk.sim().next_due() {
                disk.sim().advance_to(due);
            }
            while let Some(done) = disk.poll_done() {
                scripts.answer(done);
            }
        }
    }
    disk
}
