//! A machine's disks in memory, with faults. Scope: one simulated machine; it survives the machine's processes.
//! Owns: what is durable and what only seems so, operations in flight, locks, the chance behind every fault.
//! Invariants: what is answered, when and how, and what a crash leaves, follows from the seed and the calls made;
//! nothing is durable that was not synced; two changes of the same bytes in flight at once are a panic.
//! Not here: how the bytes are organised (`machine`), runs recorded for replay (`trace`).

mod content;
mod data;
mod faults;
mod image;
mod machine;
mod names;
#[cfg(test)]
mod tests;
mod trace;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;

pub use data::SECTOR_BYTES;
pub use faults::{Asked, DiskFaults, Fault, OpKind};
pub use image::DiskImage;
pub use trace::{Replay, Trace, TraceDisk};

use self::machine::{Action, Machine, Ticket};
use self::names::Inode;
use crate::clock::Tick;
use crate::file::{
    BLOCK_BYTES, Disk, DiskError, DiskPath, Done, FileId, Full, LockKind, Op, Outcome, ReadRoom, Token,
    VolumeId,
};
use crate::sim::SimRng;

/// Operations in flight unless said otherwise.
const OPS_MAX: usize = 256;

type FaultChooser = Box<dyn FnMut(Asked<'_>) -> Option<Fault>>;

/// An operation that waits for its time.
struct Running {
    /// None when its process is gone.
    token: Option<Token>,
    file: Option<FileId>,
    tickets: Vec<Ticket>,
    result: Result<Outcome, DiskError>,
}

struct WaitingLock {
    until: Tick,
    token: Token,
    file: FileId,
    kind: LockKind,
}

/// What became of operations so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DiskCounts {
    pub asked: u64,
    pub answered: u64,
    /// Of those answered, with an error.
    pub errors: u64,
    /// Faults by chance or by choice.
    pub faults: u64,
}

/// The disks of one machine.
pub struct SimDisk {
    machine: Machine,
    rng: SimRng,
    faults: DiskFaults,
    chooser: Option<FaultChooser>,
    now: Tick,
    ops_max: usize,
    /// By the moment of their answer and the order of asking.
    running: BTreeMap<(Tick, u64), Running>,
    waiting: Vec<WaitingLock>,
    closing: BTreeMap<FileId, Token>,
    locks: BTreeMap<Inode, Vec<(FileId, LockKind)>>,
    done: VecDeque<Done>,
    files: u64,
    counts: DiskCounts,
}

impl SimDisk {
    /// Empty volumes of these sizes in bytes, numbered from 0.
    pub fn new(seed: u64, volume_bytes: &[u64], faults: DiskFaults) -> SimDisk {
        SimDisk::from_image(seed, DiskImage::empty(volume_bytes), faults)
    }

    /// The disks as `image` has them.
    pub fn from_image(seed: u64, image: DiskImage, faults: DiskFaults) -> SimDisk {
        SimDisk {
            machine: image.machine,
            rng: SimRng::new(seed),
            faults,
            chooser: None,
            now: Tick::ZERO,
            ops_max: OPS_MAX,
            running: BTreeMap::new(),
            waiting: Vec::new(),
            closing: BTreeMap::new(),
            locks: BTreeMap::new(),
            done: VecDeque::new(),
            files: 0,
            counts: DiskCounts::default(),
        }
    }

    /// Changes what goes wrong from here on.
    pub fn set_faults(&mut self, faults: DiskFaults) {
        self.faults = faults;
    }

    /// Asks `chooser` about each operation from here on; where it names no fault, chance decides.
    pub fn choose_faults(&mut self, chooser: impl FnMut(Asked<'_>) -> Option<Fault> + 'static) {
        self.chooser = Some(Box::new(chooser));
    }

    /// How many operations may be in flight; 256 at first.
    pub fn set_ops_max(&mut self, ops_max: usize) {
        self.ops_max = ops_max;
    }

    /// Changes the size of a volume; what is stored stays, also beyond it.
    pub fn set_volume_bytes(&mut self, volume: VolumeId, bytes: u64) {
        self.machine.set_volume_bytes(volume, bytes);
    }

    /// Moves time to `at`, if that is later: operations due by then happen, in order.
    pub fn advance_to(&mut self, at: Tick) {
        loop {
            let next = self.next_due().unwrap_or(Tick::MAX);
            if next > at {
                break;
            }
            self.now = self.now.max(next);
            self.run_due();
        }
        self.now = self.now.max(at);
    }

    /// When the next operation is due. Answers that are there already do not count.
    pub fn next_due(&self) -> Option<Tick> {
        let running = self.running.keys().next().map(|(at, _)| *at);
        running.into_iter().chain(self.waiting.iter().map(|lock| lock.until)).min()
    }

    pub fn now(&self) -> Tick {
        self.now
    }

    pub fn counts(&self) -> DiskCounts {
        self.counts
    }

    /// Whether a power loss now could take anything away.
    pub fn is_durable(&self) -> bool {
        self.machine.is_durable()
    }

    /// The process is gone, the machine is not: nothing asked is answered any more, but what is in flight happens in its
    /// time and keeps its locks until then.
    pub fn kill(&mut self) {
        self.waiting.clear();
        self.closing.clear();
        self.done.clear();
        for running in self.running.values_mut() {
            running.token = None;
        }
        let busy: Vec<FileId> = self.running.values().filter_map(|running| running.file).collect();
        self.machine.close_all_but(|file| busy.contains(&file));
        self.locks.values_mut().for_each(|held| held.retain(|(file, _)| busy.contains(file)));
    }

    /// Power is lost and comes back: of what was not durable, `rng` decides what is there. Nothing asked is answered.
    pub fn crash(&mut self, rng: &mut SimRng) {
        self.machine = self.machine.after_power_loss(rng);
        self.waiting.clear();
        self.closing.clear();
        self.done.clear();
        self.running.clear();
        self.locks.clear();
    }

    /// What a machine would find if power were lost now, while this one goes on.
    pub fn image_after_power_loss(&self, rng: &mut SimRng) -> DiskImage {
        DiskImage { machine: self.machine.after_power_loss(rng) }
    }

    /// The disks after an orderly stop: everything visible is durable.
    pub fn image(&self) -> DiskImage {
        DiskImage { machine: self.machine.at_rest() }
    }

    fn run_due(&mut self) {
        while let Some(entry) = self.running.first_entry() {
            if entry.key().0 > self.now {
                break;
            }
            let Running { token, file, tickets, result } = entry.remove();
            for ticket in tickets {
                if result.is_ok() { self.machine.finish(ticket) } else { self.machine.fail(ticket) }
            }
            match (token, file) {
                (Some(token), _) => self.answer(token, result),
                (None, Some(file)) => self.end_if_idle(file),
                (None, None) => {}
            }
        }
        self.retry_locks();
        self.close_idle();
    }

    fn answer(&mut self, token: Token, result: Result<Outcome, DiskError>) {
        self.counts.answered += 1;
        self.counts.errors += u64::from(result.is_err());
        self.done.push_back(Done { token, result });
    }

    fn is_busy(&self, file: FileId) -> bool {
        self.running.values().any(|running| running.file == Some(file))
            || self.waiting.iter().any(|lock| lock.file == file)
    }

    /// The last operation of a process that is gone also ends its hold on the file.
    fn end_if_idle(&mut self, file: FileId) {
        if !self.is_busy(file) {
            self.close_now(file);
        }
    }

    fn close_idle(&mut self) {
        let idle: Vec<FileId> = self.closing.keys().copied().filter(|file| !self.is_busy(*file)).collect();
        for file in idle {
            if let Some(token) = self.closing.remove(&file) {
                self.answer(token, Ok(Outcome::Done));
                self.close_now(file);
            }
        }
    }

    fn close_now(&mut self, file: FileId) {
        // A file that is not open has nothing to close.
        let _ = self.machine.begin(Action::Close { file });
        self.locks.values_mut().for_each(|held| held.retain(|(holder, _)| *holder != file));
        self.locks.retain(|_, held| !held.is_empty());
        self.retry_locks();
    }

    fn retry_locks(&mut self) {
        for lock in std::mem::take(&mut self.waiting) {
            if self.try_lock(lock.file, lock.kind) {
                self.answer(lock.token, Ok(Outcome::Done));
            } else if lock.until <= self.now {
                self.answer(lock.token, Err(DiskError::Locked));
            } else {
                self.waiting.push(lock);
            }
        }
    }

    fn try_lock(&mut self, file: FileId, kind: LockKind) -> bool {
        let Some((inode, _)) = self.machine.opened(file) else { return false };
        let held = self.locks.entry(inode).or_default();
        let mut others = held.iter().filter(|(holder, _)| *holder != file);
        if others.any(|(_, other)| kind == LockKind::Exclusive || *other == LockKind::Exclusive) {
            return false;
        }
        held.retain(|(holder, _)| *holder != file);
        held.push((file, kind));
        true
    }

    /// When an operation asked now would be answered.
    fn due(&mut self, fault: Option<Fault>) -> Tick {
        let stall = if let Some(Fault::Stall(stall)) = fault { stall } else { std::time::Duration::ZERO };
        self.now + self.faults.latency + self.rng.duration(self.faults.jitter) + stall
    }

    fn fault_of(&mut self, op: &Op) -> Option<Fault> {
        let kind = OpKind::of(op);
        let path = path_of(op).or_else(|| {
            let file = file_of(op)?;
            self.machine.opened(file).map(|(_, path)| path)
        });
        let asked = Asked { number: self.counts.asked, kind, path };
        let chosen = self.chooser.as_mut().and_then(|chooser| chooser(asked));
        let fault = chosen.or_else(|| self.faults.draw(kind, &mut self.rng));
        self.counts.faults += u64::from(fault.is_some());
        fault
    }

    /// Begins everything but closes and locks.
    fn begin(&mut self, op: Op, fault: Option<Fault>) -> (Vec<Ticket>, Result<Outcome, DiskError>) {
        let failed = if let Some(Fault::Error(error)) = fault { Some(error) } else { None };
        let action = match op {
            Op::Read { file, at, room } => return (Vec::new(), self.read(file, at, room, fault)),
            Op::Len { file } => {
                return (Vec::new(), failed.map_or_else(|| self.machine.len(file), Err).map(Outcome::Len));
            }
            Op::List { dir } => {
                return (
                    Vec::new(),
                    failed.map_or_else(|| self.machine.list(&dir), Err).map(Outcome::Listed),
                );
            }
            Op::Space { volume } => {
                return (
                    Vec::new(),
                    failed.map_or_else(|| self.machine.space(volume), Err).map(Outcome::Space),
                );
            }
            Op::Write { file, at, data } => {
                if let Err(error) = whole_blocks(at, data.len()) {
                    return (Vec::new(), Err(error));
                }
                if let Some(error) = failed {
                    return self.write_part(file, at, &data, error);
                }
                Action::Write { file, at, bytes: Arc::from(&data[..]) }
            }
            Op::Open { path, flags } => {
                self.files += 1;
                Action::Open { file: FileId(self.files), path, flags }
            }
            Op::Sync { file } => Action::Sync { file },
            Op::Presize { file, len } => Action::Grow { file, len },
            Op::SetLen { file, len } => Action::SetLen { file, len },
            Op::SyncDir { dir } => Action::SyncDir { dir },
            Op::MakeDir { path } => Action::MakeDir { path },
            Op::RemoveDir { path } => Action::RemoveDir { path },
            Op::Rename { from, to } => Action::Rename { from, to },
            Op::Unlink { path } => Action::Unlink { path },
            Op::Close { .. } | Op::Lock { .. } => return (Vec::new(), Err(DiskError::StaleFile)),
        };
        let opened = if let Action::Open { file, .. } = &action { Some(*file) } else { None };
        let syncs = matches!(action, Action::Sync { .. } | Action::SyncDir { .. });
        if let Some(error) = failed.filter(|_| !syncs) {
            return (Vec::new(), Err(error));
        }
        match (self.machine.begin(action), failed, opened) {
            (Err(error), _, _) => (Vec::new(), Err(error)),
            (Ok(ticket), Some(error), _) => (vec![ticket], Err(error)),
            (Ok(ticket), None, None) => (vec![ticket], Ok(Outcome::Done)),
            (Ok(ticket), None, Some(file)) => {
                let len = self.machine.len(file).unwrap_or_default();
                (vec![ticket], Ok(Outcome::Opened { file, len }))
            }
        }
    }

    fn read(
        &mut self,
        file: FileId,
        at: u64,
        room: ReadRoom,
        fault: Option<Fault>,
    ) -> Result<Outcome, DiskError> {
        whole_blocks(at, room.bytes())?;
        if let Some(Fault::Error(error)) = fault {
            return Err(error);
        }
        let mut bytes = self.machine.read(file, at, room.bytes())?;
        match fault {
            Some(Fault::ShortRead) => {
                let sectors = (bytes.len() / SECTOR_BYTES) as u64;
                let kept = 1 + self.rng.below(sectors.saturating_sub(1)) as usize;
                bytes.truncate(kept * SECTOR_BYTES);
            }
            Some(Fault::FlippedBit) if !bytes.is_empty() => {
                let bit = self.rng.below(bytes.len() as u64 * 8);
                bytes[(bit / 8) as usize] ^= 1 << (bit % 8);
            }
            _ => {}
        }
        Ok(Outcome::Read(room.filled_by(&bytes)))
    }

    /// A write that fails: any part of its sectors is stored.
    fn write_part(
        &mut self,
        file: FileId,
        at: u64,
        data: &[u8],
        error: DiskError,
    ) -> (Vec<Ticket>, Result<Outcome, DiskError>) {
        let mut tickets = Vec::new();
        let mut from = at;
        for sector in data.chunks(SECTOR_BYTES) {
            if self.rng.chance(500_000)
                && let Ok(ticket) =
                    self.machine.begin(Action::Write { file, at: from, bytes: Arc::from(sector) })
            {
                tickets.push(ticket);
            }
            from += sector.len() as u64;
        }
        (tickets, Err(error))
    }
}

impl Disk for SimDisk {
    fn submit(&mut self, token: Token, op: Op) -> Result<(), Full> {
        self.run_due();
        if self.in_flight() >= self.ops_max {
            return Err(Full { token, op });
        }
        let fault = self.fault_of(&op);
        self.counts.asked += 1;
        let due = self.due(fault);
        let file = file_of(&op);
        let open =
            file.is_none_or(|file| self.machine.opened(file).is_some() && !self.closing.contains_key(&file));
        let (tickets, result) = match op {
            _ if !open => (Vec::new(), Err(DiskError::StaleFile)),
            Op::Close { file } => {
                self.closing.insert(file, token);
                self.close_idle();
                return Ok(());
            }
            Op::Lock { file, kind, wait } => {
                if let Some(Fault::Error(error)) = fault {
                    (Vec::new(), Err(error))
                } else if self.try_lock(file, kind) {
                    (Vec::new(), Ok(Outcome::Done))
                } else {
                    self.waiting.push(WaitingLock { until: self.now + wait, token, file, kind });
                    return Ok(());
                }
            }
            op => self.begin(op, fault),
        };
        let running = Running { token: Some(token), file: file.filter(|_| open), tickets, result };
        self.running.insert((due, self.counts.asked), running);
        Ok(())
    }

    fn poll_done(&mut self) -> Option<Done> {
        self.run_due();
        self.done.pop_front()
    }

    fn in_flight(&self) -> usize {
        let running = self.running.values().filter(|running| running.token.is_some()).count();
        running + self.waiting.len() + self.closing.len() + self.done.len()
    }
}

impl fmt::Debug for SimDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimDisk")
            .field("now", &self.now)
            .field("counts", &self.counts)
            .finish_non_exhaustive()
    }
}

fn whole_blocks(at: u64, len: usize) -> Result<(), DiskError> {
    let whole = len > 0 && len.is_multiple_of(BLOCK_BYTES) && at.is_multiple_of(BLOCK_BYTES as u64);
    if whole { Ok(()) } else { Err(DiskError::Misaligned) }
}

fn file_of(op: &Op) -> Option<FileId> {
    match op {
        Op::Close { file }
        | Op::Lock { file, .. }
        | Op::Write { file, .. }
        | Op::Read { file, .. }
        | Op::Sync { file }
        | Op::Presize { file, .. }
        | Op::SetLen { file, .. }
        | Op::Len { file } => Some(*file),
        _ => None,
    }
}

fn path_of(op: &Op) -> Option<&DiskPath> {
    match op {
        Op::Open { path, .. } | Op::MakeDir { path } | Op::RemoveDir { path } | Op::Unlink { path } => {
            Some(path)
        }
        Op::SyncDir { dir } | Op::List { dir } => Some(dir),
        Op::Rename { from, .. } => Some(from),
        _ => None,
    }
}
