//! What a disk takes and gives without a broker: writes over blocks that were written before, sequential reads.
//! Scope: one file in one folder, one core that asks. Owns: that file's contents.
//! Invariants: operations go past the page cache, like the broker's; places are used again in a circle, so no write
//! changes the file's length or extents; what is counted was answered within the window, durable if it was written.
//! Not here: what it is compared with (`compare_disk`).

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use felix_runtime::executor::{CoreIo, CoreSpec, ExecutorError, spawn_core};
use felix_runtime::file::{
    Disk, DiskError, DiskPath, Done, FileId, Files, FilesSettings, Op, OpenFlags, OpenMode, Outcome,
    SharedBuf, Token, VolumeId,
};
use felix_runtime::udp::{BufferSizes, DEFAULT_PINNED_BYTES, ReusePortGroup};
use felix_runtime::waker::CoreWaker;
use felix_runtime::{Clock, Tick};
use serde::{Deserialize, Serialize};

use crate::measure::{CpuSample, Latency, LatencySummary, MB};

/// Memory for what is in flight.
const POOL_BYTES: usize = 64 << 20;
/// Operations of a run at once.
const DEPTH_MAX: usize = 128;
/// How long an answer may take before the disk counts as dead.
const ANSWER_DEADLINE: Duration = Duration::from_secs(60);
/// The file is filled in pieces of this size.
const FILL_BYTES: usize = 1 << 20;

/// How the disk is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RawKind {
    /// `depth` writes, then one sync of them all, and again.
    GroupSynced,
    /// `depth` writes in flight, each durable when it is answered.
    EachSynced,
    /// `depth` reads in flight, one behind the other.
    Read,
}

/// One run.
#[derive(Debug, Clone)]
pub struct RawPlan {
    pub kind: RawKind,
    pub depth: usize,
    /// Bytes of an operation, whole blocks.
    pub op_bytes: usize,
    pub duration: Duration,
}

/// What a run showed.
#[derive(Debug, Clone, Serialize)]
pub struct RawRate {
    pub seconds: f64,
    pub operations: u64,
    pub bytes: u64,
    /// From asking to the answer; of a group, to the end of its sync.
    pub latency: LatencySummary,
    /// CPU time of this process, which only asks, in percent of one CPU.
    pub core_busy_percent: f64,
}

impl RawRate {
    /// Megabytes (10^6) per second.
    #[must_use]
    pub fn mb_per_s(&self) -> f64 {
        self.bytes as f64 / MB / self.seconds
    }
}

/// Why a run came to nothing.
#[derive(Debug, thiserror::Error)]
pub enum RawError {
    #[error("a core for the disk: {0}")]
    Core(#[from] ExecutorError),
    #[error("a ring for the disk: {0}")]
    Ring(String),
    #[error("a socket for the core: {0}")]
    Socket(String),
    #[error("{dir}: {why}")]
    Volume { dir: PathBuf, why: String },
    #[error("{what}: {error}")]
    Disk { what: &'static str, error: DiskError },
    #[error("{0}")]
    Plan(&'static str),
    #[error("the disk gave no answer within {} s", ANSWER_DEADLINE.as_secs())]
    NoAnswer,
}

/// A file to run on.
#[derive(Debug, Clone)]
pub struct RawFile {
    dir: PathBuf,
    name: &'static str,
    bytes: u64,
    cpu: usize,
    /// Its blocks were written before.
    recycled: bool,
}

impl RawFile {
    /// Makes `name` in `dir` as `make` does, with its space taken and nothing written. A write run on it ends with the
    /// file, and what comes after it is no run on a fresh file any more.
    ///
    /// # Errors
    /// As `make`.
    pub fn fresh(dir: &Path, name: &'static str, bytes: u64, cpu: usize) -> Result<RawFile, RawError> {
        let bytes = (bytes - bytes % FILL_BYTES as u64).max(FILL_BYTES as u64);
        let file = RawFile { dir: dir.to_owned(), name, bytes, cpu, recycled: false };
        file.on_core(async move |core| {
            let (file, _) = core.open(name, OpenFlags::plain(OpenMode::Create)).await?;
            core.one("taking space", Op::Presize { file, len: bytes }).await?;
            core.one("taking space", Op::Sync { file }).await?;
            Ok(())
        })?;
        Ok(file)
    }

    /// Makes `name` (letters and dashes) in `dir` with `bytes` rounded down to MiB, at least one, and writes all of it.
    /// Runs on it are asked from `cpu`.
    ///
    /// # Errors
    /// The folder is not good for direct I/O, or the disk failed.
    pub fn make(dir: &Path, name: &'static str, bytes: u64, cpu: usize) -> Result<RawFile, RawError> {
        let bytes = (bytes - bytes % FILL_BYTES as u64).max(FILL_BYTES as u64);
        let file = RawFile { dir: dir.to_owned(), name, bytes, cpu, recycled: true };
        file.on_core(async move |core| {
            let (file, _) = core.open(name, OpenFlags::plain(OpenMode::Create)).await?;
            core.one("taking space", Op::Presize { file, len: bytes }).await?;
            let data = core.noise(FILL_BYTES)?;
            for at in (0..bytes).step_by(FILL_BYTES) {
                core.one("filling", Op::Write { file, at, data: data.clone() }).await?;
            }
            core.one("filling", Op::Sync { file }).await?;
            Ok(())
        })?;
        Ok(file)
    }

    /// # Errors
    /// The plan cannot be run on this file, or the disk failed.
    pub fn run(&self, plan: &RawPlan) -> Result<RawRate, RawError> {
        if plan.depth == 0 || plan.depth > DEPTH_MAX || plan.depth * plan.op_bytes > POOL_BYTES / 2 {
            return Err(RawError::Plan("the depth is nothing, or more than memory is kept for"));
        }
        let places = self.bytes / plan.op_bytes.max(1) as u64;
        if places < plan.depth as u64 {
            return Err(RawError::Plan("the file is shorter than what is in flight"));
        }
        let (plan, name) = (plan.clone(), self.name);
        let once = !self.recycled && plan.kind != RawKind::Read;
        self.on_core(async move |core| {
            let dsync = plan.kind == RawKind::EachSynced;
            let flags =
                if dsync { OpenFlags::dsync(OpenMode::Write) } else { OpenFlags::plain(OpenMode::Write) };
            let (file, _) = core.open(name, flags).await?;
            let data = core.noise(plan.op_bytes)?;
            let asked = HashMap::default();
            let latency = Latency::default();
            let mut round = Round { plan: &plan, file, data, places, next: 0, once, asked, latency };
            round.run(core).await
        })
    }

    fn on_core<T: Send + 'static>(
        &self,
        work: impl AsyncFnOnce(&mut RawCore) -> Result<T, RawError> + Send + 'static,
    ) -> Result<T, RawError> {
        let local = ([127, 0, 0, 1], 0).into();
        let group = ReusePortGroup::bind(local, 1, BufferSizes::default())
            .map_err(|error| RawError::Socket(error.to_string()))?;
        let Some(socket) = group.sockets.into_iter().next() else {
            return Err(RawError::Socket("none".to_owned()));
        };
        let settings = FilesSettings { ops_max: DEPTH_MAX, pool_bytes: POOL_BYTES };
        let spec = CoreSpec {
            index: 0,
            cpu: Some(self.cpu),
            spin: Duration::ZERO,
            name: "raw-disk".to_owned(),
            pinned_bytes: DEFAULT_PINNED_BYTES,
            clock: Clock::start(),
            waker: CoreWaker::new(),
        };
        let dir = self.dir.clone();
        spawn_core(spec, socket, move |io| run_on(io, settings, dir, work))?.join()?
    }
}

async fn run_on<T>(
    mut io: CoreIo,
    settings: FilesSettings,
    dir: PathBuf,
    work: impl AsyncFnOnce(&mut RawCore) -> Result<T, RawError>,
) -> Result<T, RawError> {
    let mut files = Files::new(&mut io, settings).map_err(|error| RawError::Ring(error.to_string()))?;
    let opened = files.open_volume(&dir);
    let volume = opened.map_err(|error| RawError::Volume { dir, why: error.to_string() })?;
    let mut core = RawCore { io, files, volume };
    let outcome = work(&mut core).await;
    core.files.close();
    outcome
}

/// The asking thread.
struct RawCore {
    io: CoreIo,
    files: Files,
    volume: VolumeId,
}

impl RawCore {
    async fn done(&mut self) -> Result<Done, RawError> {
        let until = self.io.now() + ANSWER_DEADLINE;
        loop {
            if let Some(done) = self.files.poll_done() {
                return Ok(done);
            }
            if self.io.now() >= until {
                return Err(RawError::NoAnswer);
            }
            self.files.hand_over();
            self.io.wait(Some(until));
        }
    }

    fn start(&mut self, token: u64, op: Op) -> Result<(), RawError> {
        self.files.submit(Token(token), op).map_err(|_| RawError::Plan("more operations than allowed"))
    }

    /// One operation with nothing beside it.
    async fn one(&mut self, what: &'static str, op: Op) -> Result<Outcome, RawError> {
        self.start(0, op)?;
        self.done().await?.result.map_err(|error| RawError::Disk { what, error })
    }

    async fn open(&mut self, name: &str, flags: OpenFlags) -> Result<(FileId, u64), RawError> {
        let path = DiskPath::new(self.volume, name).map_err(|_| RawError::Plan("not a file name"))?;
        match self.one("opening", Op::Open { path, flags }).await? {
            Outcome::Opened { file, len } => Ok((file, len)),
            _ => Err(RawError::Plan("opened nothing")),
        }
    }

    /// Bytes that no disk finds easy.
    fn noise(&self, bytes: usize) -> Result<SharedBuf, RawError> {
        let mut buffer =
            self.files.pool().take(bytes).map_err(|_| RawError::Plan("no memory for the bytes"))?;
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        for part in buffer.push_zeros(bytes).chunks_mut(8) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            part.copy_from_slice(&state.to_le_bytes()[..part.len()]);
        }
        Ok(buffer.freeze())
    }
}

/// A run under way.
struct Round<'p> {
    plan: &'p RawPlan,
    file: FileId,
    data: SharedBuf,
    places: u64,
    next: u64,
    /// No place is used twice: the run ends with the file.
    once: bool,
    /// When operations were asked for, by their tokens.
    asked: HashMap<u64, Tick, foldhash::fast::RandomState>,
    latency: Latency,
}

impl Round<'_> {
    /// There are places for `depth` more operations.
    fn has_room(&self) -> bool {
        !self.once || self.next + self.plan.depth as u64 <= self.places
    }

    async fn run(&mut self, core: &mut RawCore) -> Result<RawRate, RawError> {
        let cpu = || CpuSample::of(std::process::id()).unwrap_or_default();
        let (before, begun) = (cpu(), core.io.now());
        let ends = begun + self.plan.duration;
        let mut operations = 0;
        // Lengths of reads, which may be short.
        let mut bytes = 0;
        if self.plan.kind != RawKind::GroupSynced {
            for _ in 0..self.plan.depth {
                self.ask(core)?;
            }
        }
        while core.io.now() < ends && self.has_room() {
            if self.plan.kind == RawKind::GroupSynced {
                let asked = core.io.now();
                for _ in 0..self.plan.depth {
                    self.ask(core)?;
                }
                for _ in 0..self.plan.depth {
                    bytes += self.answer(core).await?;
                    operations += 1;
                }
                core.one("a sync", Op::Sync { file: self.file }).await?;
                self.latency.record(core.io.now().saturating_since(asked));
            } else {
                bytes += self.answer(core).await?;
                operations += 1;
                self.ask(core)?;
            }
        }
        let length = core.io.now().saturating_since(begun);
        let used = cpu().since(&before, length);
        let core_busy_percent = 100.0 * used.seconds / length.as_secs_f64();
        while core.files.in_flight() > 0 {
            self.answer(core).await?;
        }
        Ok(RawRate {
            seconds: length.as_secs_f64(),
            operations,
            bytes,
            latency: self.latency.summary(),
            core_busy_percent,
        })
    }

    fn ask(&mut self, core: &mut RawCore) -> Result<(), RawError> {
        let at = (self.next % self.places) * self.plan.op_bytes as u64;
        self.next += 1;
        let op = match self.plan.kind {
            RawKind::Read => {
                let room = core.files.pool().read_room(self.plan.op_bytes);
                Op::Read { file: self.file, at, room: room.map_err(|_| RawError::Plan("no memory to read"))? }
            }
            RawKind::GroupSynced | RawKind::EachSynced => {
                Op::Write { file: self.file, at, data: self.data.clone() }
            }
        };
        self.asked.insert(self.next, core.io.now());
        core.start(self.next, op)
    }

    /// Bytes of the next operation that ends.
    async fn answer(&mut self, core: &mut RawCore) -> Result<u64, RawError> {
        let done = core.done().await?;
        let asked = self.asked.remove(&done.token.0);
        if let (Some(asked), true) = (asked, self.plan.kind != RawKind::GroupSynced) {
            self.latency.record(core.io.now().saturating_since(asked));
        }
        match done.result.map_err(|error| RawError::Disk { what: "an operation", error })? {
            Outcome::Read(read) => Ok(read.len() as u64),
            _ => Ok(self.plan.op_bytes as u64),
        }
    }
}
