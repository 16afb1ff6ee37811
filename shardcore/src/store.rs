//! The log engines of one core, one per volume. Sans-io: operations out, answers in.
//! Scope: one per core that has volumes. Owns: the engines, which shard each open log serves, the reads under way.
//! Invariants: a log is open in one engine only; a log is made only when the admin thread said that it never was; every
//! operation of an engine is handed out once, in order.
//! Not here: what a shard does with what is settled (`shard::logged`), carrying out operations (`turn::run`).

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use felix_logstore::engine::{Engine, EngineConfig, Event, LogId, ReadId, Reservations};
use felix_logstore::id::{Fsync, Run, ShardKey};
use felix_logstore::limits::DEEP_BYTES;
use felix_logstore::log::{Log, LogConfig, LogState};
use felix_logstore::retention::Retention;
use felix_logstore::segment::size_class;
use felix_runtime::clock::Tick;
use felix_runtime::file::{BufPool, DiskError, Done, Op, Token, VolumeId};
use felix_wire::id::{CoreId, Offset};
use slab::Slab;

use crate::projection::cache::watch::WatchId;
use crate::shard::mail::{NotWritten, SubToken};
use crate::snapshot::{LogRole, ShardId};

/// Tokens of one engine; a process never asks that many operations.
const TOKENS_PER_VOLUME: u64 = 1 << 56;
/// Reads one engine does at once: each holds buffers of the core's pool.
const READS_MAX: usize = 16;

/// Segments of logs that fit what lives in them are not smaller, once they have grown: each costs a sync of its head.
const FITTED_BYTES_MIN: u64 = 256 << 10;

/// What the logs of a core are to be like.
#[derive(Clone, Debug)]
pub struct StoreSettings {
    pub policy: Fsync,
    /// From one flush to the next under `Fsync::Periodic`.
    pub flush_every: Duration,
    pub segment_bytes_first: u64,
    pub segment_bytes_max: u64,
    pub slot_bytes: u64,
    /// Bytes on their way to the disk, per core and volume; at the bound publishes wait.
    pub memory_bytes_max: usize,
    /// Writes are refused below the first and go on above the second.
    pub space_low_bytes: u64,
    pub space_high_bytes: u64,
    /// For streams that say nothing.
    pub retention: Retention,
    pub retain_every: Duration,
    /// Bytes of logs of caches, counters and groups that a core reads or copies in a second to make them shorter; 0 leaves
    /// them as they are.
    pub compact_bytes_per_sec: u64,
}

/// One volume as it is when recovery has ended.
#[derive(Clone, Debug)]
pub struct VolumeStart {
    pub run: Run,
    /// The kernel's boot id.
    pub boot: [u8; 16],
    /// Random; another one for every core and start.
    pub entropy: u64,
    /// The same for every core.
    pub reservations: Reservations,
}

/// Where a log is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LogAt {
    pub volume: u16,
    pub log: LogId,
}

/// Where a log comes from.
#[derive(Debug)]
pub enum LogSource {
    /// It never was on this node.
    New,
    Recovered(Box<LogState>),
    /// Another core gave it away.
    Moved(Box<Log>),
}

/// Who asked for a page.
#[derive(Clone, Copy, Debug)]
pub struct PageFor {
    pub shard: ShardId,
    pub reader: PageReader,
    pub from: Offset,
    /// Of which life of a machine, so that what an earlier one asked for is not taken for its own.
    pub life: u64,
}

/// What a page is read for.
#[derive(Clone, Copy, Debug)]
pub enum PageReader {
    /// A subscription that is below its feed.
    Subscription { to: CoreId, token: SubToken },
    /// The shard, which learns what its producers have sent.
    Numbers,
    /// A machine that is made again from its log.
    Replay(LogRole),
    /// A request that needs the value of a cache key.
    Value { slot: usize },
    /// What lives in it is copied to the end of its log.
    Compact,
    /// A poll of a consumer group; none: those that will come.
    Poll { slot: Option<usize> },
    /// A watch of a cache, up to `until`.
    Watch { watch: WatchId, until: Offset },
    /// A request about the records of a shard.
    Asked { slot: usize },
    /// The state that commits have put, which is made again from the log.
    State,
}

struct PageWanted {
    at: LogAt,
    page: PageFor,
    until: Offset,
    bytes_max: usize,
}

/// See the module.
pub struct Store {
    settings: StoreSettings,
    engines: Vec<Engine>,
    serving: BTreeMap<LogAt, (ShardId, LogRole)>,
    reads: Slab<PageFor>,
    /// Reads that wait until others have ended.
    waiting: VecDeque<PageWanted>,
    /// Bytes of the batch that came last.
    batch_bytes: usize,
    /// Reads were started since `poll`: what is in memory is answered already.
    asked: bool,
    closed: usize,
    /// What the last operation of each volume said that failed.
    troubles: Vec<Option<DiskError>>,
}

impl Store {
    /// Engines without logs, one per volume.
    ///
    /// # Errors
    /// Says which bound does not fit the others.
    pub fn open(
        settings: StoreSettings,
        core: CoreId,
        volumes: &[VolumeStart],
        pool: &BufPool,
        now: Tick,
    ) -> Result<Store, &'static str> {
        let mut engines = Vec::with_capacity(volumes.len());
        for (index, volume) in volumes.iter().enumerate() {
            let number = u16::try_from(index).map_err(|_| "too many volumes")?;
            let config = EngineConfig {
                first_token: TOKENS_PER_VOLUME * u64::from(number),
                slot_bytes: settings.slot_bytes,
                memory_bytes_max: settings.memory_bytes_max,
                flush_every: settings.flush_every,
                space_low_bytes: settings.space_low_bytes,
                space_high_bytes: settings.space_high_bytes,
                reads_max: READS_MAX,
                pool_fill_bytes: settings.segment_bytes_max.min(64 << 20),
                reservations: volume.reservations.clone(),
                ..EngineConfig::new(VolumeId(number), core, volume.run, volume.boot, volume.entropy)
            };
            engines.push(Engine::new(config, pool.clone(), now)?);
        }
        Ok(Store {
            settings,
            troubles: vec![None; engines.len()],
            engines,
            serving: BTreeMap::new(),
            reads: Slab::new(),
            waiting: VecDeque::new(),
            batch_bytes: 0,
            asked: false,
            closed: 0,
        })
    }

    /// What it was opened with.
    pub fn settings(&self) -> &StoreSettings {
        &self.settings
    }

    /// What a log with this retention is to be like. The open segment is rolled often enough that age is kept to.
    pub fn log_config(&self, retention: Retention) -> LogConfig {
        let retention = Retention {
            bytes: retention.bytes.or(self.settings.retention.bytes),
            age_ms: retention.age_ms.or(self.settings.retention.age_ms),
        };
        LogConfig {
            policy: self.settings.policy,
            segment_bytes_first: self.settings.segment_bytes_first,
            segment_bytes_max: self.settings.segment_bytes_max,
            roll_after: retention.age_ms.map(|ms| Duration::from_millis((ms / 4).clamp(1_000, 3_600_000))),
            retention,
        }
    }

    /// The log with that key, when it is open here.
    pub fn find(&self, key: ShardKey) -> Option<LogAt> {
        self.engines
            .iter()
            .zip(0..)
            .find_map(|(engine, volume)| engine.find(key).map(|log| LogAt { volume, log }))
    }

    /// A log as it stands.
    pub fn log(&self, at: LogAt) -> Option<&Log> {
        self.engines.get(usize::from(at.volume))?.log(at.log)
    }

    /// A log that a shard may begin over: nothing of it is in flight, and it does not leave this core. One that is being given away
    /// is served only when it has come back, however quiet it is: its shard would end when it goes.
    pub fn at_rest(&self, at: LogAt) -> Option<&Log> {
        let engine = self.engines.get(usize::from(at.volume)).filter(|engine| !engine.is_leaving(at.log))?;
        engine.log(at.log).filter(|log| log.is_settled())
    }

    /// The engine a log is open in.
    pub fn engine(&mut self, at: LogAt) -> Option<&mut Engine> {
        self.engines.get_mut(usize::from(at.volume))
    }

    /// Takes a log over, or makes it. None when the volume is not there, has no room for more logs, or has the key.
    pub fn bring(
        &mut self,
        volume: u16,
        key: ShardKey,
        source: LogSource,
        config: LogConfig,
    ) -> Option<LogAt> {
        let engine = self.engines.get_mut(usize::from(volume))?;
        let log = match source {
            LogSource::New => engine.create(key, config)?,
            LogSource::Recovered(state) => engine.adopt(Log::from_state(*state, config))?,
            LogSource::Moved(log) => engine.adopt(*log)?,
        };
        Some(LogAt { volume, log })
    }

    /// What a log that is kept whole is to be like: one that only its own shard makes shorter.
    pub fn whole_config(&self) -> LogConfig {
        LogConfig {
            roll_after: None,
            retention: Retention::default(),
            ..self.log_config(Retention::default())
        }
    }

    /// The next segments of a log that is kept whole are to have about `bytes`, within the sizes there are.
    pub fn fit_segments(&mut self, at: LogAt, bytes: u64) {
        let most = self.settings.segment_bytes_max;
        let size = size_class(bytes, 0, most).max(FITTED_BYTES_MIN.min(most));
        let config = LogConfig {
            segment_bytes_first: self.settings.segment_bytes_first.min(size),
            segment_bytes_max: size,
            ..self.whole_config()
        };
        if self.log(at).is_some_and(|log| log.config().segment_bytes_max != size)
            && let Some(engine) = self.engine(at)
        {
            engine.configure(at.log, config);
        }
    }

    /// Has a log begin a new segment when the one that serves holds more than segments are to have now.
    pub fn roll_large(&mut self, at: LogAt) {
        if self.log(at).is_some_and(|log| log.open_bytes() > log.config().segment_bytes_max)
            && let Some(engine) = self.engine(at)
        {
            engine.roll(at.log);
        }
    }

    /// The log serves the shard from now on.
    pub fn serve(&mut self, at: LogAt, shard: ShardId, role: LogRole) {
        self.serving.insert(at, (shard, role));
    }

    /// It serves nobody; it stays open.
    pub fn unserve(&mut self, at: LogAt) {
        self.serving.remove(&at);
    }

    /// An operation of a volume failed.
    pub fn note_trouble(&mut self, volume: u16, error: DiskError) {
        if let Some(last) = self.troubles.get_mut(usize::from(volume)) {
            *last = Some(error);
        }
    }

    /// What keeps a log of the volume from growing.
    pub fn why_no_space(&self, volume: u16) -> NotWritten {
        let volume = usize::from(volume);
        if self.engines.get(volume).is_none_or(|engine| !engine.has_space()) {
            return NotWritten::NoSpace;
        }
        match self.troubles.get(volume).copied().flatten() {
            Some(DiskError::Missing | DiskError::NoVolume) => NotWritten::VolumeGone,
            Some(DiskError::NoSpace) => NotWritten::NoSpace,
            _ => NotWritten::NoFile,
        }
    }

    /// The shard a log serves, and what for.
    pub fn served_by(&self, at: LogAt) -> Option<(ShardId, LogRole)> {
        self.serving.get(&at).copied()
    }

    /// A batch of so many bytes was appended.
    pub fn note_batch(&mut self, bytes: usize) {
        self.batch_bytes = bytes;
    }

    /// Whether batches come that are worth a write each.
    pub fn takes_large_batches(&self) -> bool {
        self.batch_bytes >= DEEP_BYTES
    }

    /// Reads a page of what is settled below `until`; an event answers.
    pub fn read(&mut self, at: LogAt, page: PageFor, until: Offset, bytes_max: usize) {
        self.waiting.push_back(PageWanted { at, page, until, bytes_max });
        self.start_reads();
    }

    fn start_reads(&mut self) {
        while self.reads.len() < READS_MAX
            && let Some(PageWanted { at, page, until, bytes_max }) = self.waiting.pop_front()
        {
            let read = ReadId(self.reads.insert(page) as u64);
            if let Some(engine) = self.engines.get_mut(usize::from(at.volume)) {
                engine.read(read, at.log, page.from, until, bytes_max);
                self.asked = true;
            }
        }
    }

    /// Who asked for the page that was read.
    pub fn take_read(&mut self, read: ReadId) -> Option<PageFor> {
        let page = self.reads.try_remove(usize::try_from(read.0).ok()?)?;
        self.start_reads();
        Some(page)
    }

    /// Lets retention move the starts of all logs that serve a shard.
    pub fn retain(&mut self, now_ms: u64) {
        for at in self.serving.keys() {
            let Some(engine) = self.engines.get_mut(usize::from(at.volume)) else { continue };
            let Some(end) = engine.log(at.log).map(Log::settled_end) else { continue };
            engine.retain(at.log, now_ms, end);
        }
    }

    /// Does what can be done now.
    pub fn poll(&mut self, now: Tick) {
        self.asked = false;
        for engine in &mut self.engines {
            engine.poll(now);
        }
    }

    /// Whether `poll` is due now.
    pub fn is_asked(&self) -> bool {
        self.asked
    }

    /// The next thing an engine has to tell.
    pub fn poll_event(&mut self) -> Option<(u16, Event)> {
        let mut engines = self.engines.iter_mut().zip(0..);
        let told = engines.find_map(|(engine, volume)| engine.poll_event().map(|event| (volume, event)));
        if let Some((_, Event::Closed)) = told {
            self.closed += 1;
        }
        told
    }

    /// The next operation to carry out.
    pub fn poll_op(&mut self) -> Option<(Token, Op)> {
        self.engines.iter_mut().find_map(Engine::poll_op)
    }

    /// Takes an answer; `poll` is due afterwards.
    pub fn complete(&mut self, now: Tick, done: Done) {
        let volume = usize::try_from(done.token.0 / TOKENS_PER_VOLUME).unwrap_or(usize::MAX);
        if let Some(engine) = self.engines.get_mut(volume) {
            engine.complete(now, done);
        }
    }

    /// When `poll` is due if no answer comes.
    pub fn next_timeout(&self) -> Option<Tick> {
        self.engines.iter().filter_map(Engine::next_timeout).min()
    }

    /// Writes down every end and closes everything; `is_closed` follows.
    pub fn close(&mut self) {
        for engine in &mut self.engines {
            engine.close();
        }
    }

    /// Whether everything is written and closed.
    pub fn is_closed(&self) -> bool {
        self.closed >= self.engines.len()
    }

    /// The engines, in the order of their volumes, for their figures.
    pub fn engines(&self) -> impl Iterator<Item = &Engine> {
        self.engines.iter()
    }
}
