//! The real disk of one core. Scope: one per core.
//! Owns: the core's volumes and open files, how many operations each file has in flight, the answers not yet taken.
//! Invariants: at most `ops_max` operations are without an answer; a file is closed only when nothing is in flight on it;
//! nothing here blocks the core but opening volumes and [`Files::close`].
//! Not here: writes, reads and syncs under way (`ring`), what threads do for it (`threads`, `carry`).

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::fs::File;
use std::io;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use foldhash::fast::FixedState;

use super::carry::{self, Answer};
use super::ring::{Answering, Finished, Ring, Work};
use super::threads::Threads;
use super::volume::{Volume, VolumeError};
use super::{
    BLOCK_BYTES, BufPool, Disk, DiskError, Done, FileId, Full, LockKind, Op, OpenFlags, OpenMode, Outcome,
    Token, VolumeId,
};
use crate::clock::{Clock, Tick};
use crate::executor::CoreIo;
use crate::waker::CoreWaker;

/// How often an operation is tried that was done in part, or not at all for no reason of its own.
const TRIES: u32 = 3;
/// Operations that a ring takes at most.
const RING_MAX: usize = 16_384;

/// How much one core may ask of its disks at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FilesSettings {
    /// Operations without an answer, at most 16,384.
    pub ops_max: usize,
    /// Bound of the buffers of writes and reads.
    pub pool_bytes: usize,
}

impl Default for FilesSettings {
    /// 256 operations, 64 MiB.
    fn default() -> FilesSettings {
        FilesSettings { ops_max: 256, pool_bytes: 64 << 20 }
    }
}

struct Handle {
    file: Arc<File>,
    flags: OpenFlags,
    /// Operations in flight on it.
    busy: u32,
    closing: Option<Token>,
}

/// Whose work the ring has.
#[derive(Debug, Clone, Copy)]
struct Note {
    token: Token,
    file: FileId,
    tries: u32,
}

/// What a thread says.
struct Reply {
    token: Token,
    /// The open file it was about.
    file: Option<FileId>,
    says: Says,
}

enum Says {
    Answer(Result<Answer, DiskError>),
    /// Somebody else holds the lock.
    Held(LockTry),
}

struct LockTry {
    file: Arc<File>,
    kind: LockKind,
    until: Tick,
}

/// The disks as one core sees them.
pub struct Files {
    settings: FilesSettings,
    pool: BufPool,
    clock: Clock,
    ring: Rc<Ring<Note>>,
    threads: Threads<Reply>,
    bell: CoreWaker,
    /// Answers that were there at once.
    ready: VecDeque<Done>,
    volumes: Vec<Volume>,
    handles: HashMap<FileId, Handle, FixedState>,
    files: u64,
    in_flight: usize,
    #[cfg(debug_assertions)]
    watch: super::watch::Watch,
}

impl Files {
    /// No volumes yet. To be made by the core's task, on its thread; the core's waits end from now on also when one of
    /// these disks has answered. One per core.
    ///
    /// # Errors
    /// When there is no ring to be had.
    pub fn new(io: &mut CoreIo, settings: FilesSettings) -> io::Result<Files> {
        let settings = FilesSettings { ops_max: settings.ops_max.clamp(1, RING_MAX), ..settings };
        let ring = Rc::new(Ring::open(settings.ops_max)?);
        io.hear(ring.clone());
        Ok(Files {
            settings,
            pool: BufPool::new(settings.pool_bytes),
            clock: io.clock(),
            ring,
            threads: Threads::new(io.waker().clone()),
            bell: io.waker().clone(),
            ready: VecDeque::new(),
            volumes: Vec::new(),
            handles: HashMap::default(),
            files: 0,
            in_flight: 0,
            #[cfg(debug_assertions)]
            watch: super::watch::Watch::default(),
        })
    }

    /// Adds the directory `root` as the next volume. It must be there; a file `.felix-probe` is put into it. Blocks.
    ///
    /// # Errors
    /// When it cannot be used for direct I/O.
    pub fn open_volume(&mut self, root: &Path) -> Result<VolumeId, VolumeError> {
        let number = u16::try_from(self.volumes.len()).map_err(|_| VolumeError::TooMany)?;
        self.volumes.push(Volume::open(root)?);
        Ok(VolumeId(number))
    }

    /// Where buffers for these disks come from.
    pub fn pool(&self) -> &BufPool {
        &self.pool
    }

    /// Hands what was asked to the kernel. Call it after operations were asked, before the core waits: the kernel knows of
    /// none before. The wait ends at once when an answer is there already.
    pub fn hand_over(&mut self) {
        self.ring.hand_over();
        if !self.ready.is_empty() {
            // What was answered when it was asked: neither the kernel nor a thread tells the core of it.
            self.bell.wake();
        }
    }

    /// Waits for everything in flight, then closes every file. Answers nobody took are dropped. Blocks for as long as the
    /// slowest operation takes.
    pub fn close(mut self) {
        loop {
            while self.poll_done().is_some() {}
            if self.in_flight == 0 {
                return;
            }
            if self.ring.is_busy() {
                self.ring.wait();
            } else if let Some(reply) = self.threads.wait() {
                self.take_reply(reply);
            }
        }
    }

    /// An answer that is there at once.
    fn answer_now(&mut self, token: Token, result: Result<Outcome, DiskError>) {
        self.ready.push_back(Done { token, result });
    }

    /// Has a thread do `job`.
    fn help(&mut self, token: Token, file: Option<FileId>, job: impl FnOnce() -> Says + Send + 'static) {
        let job = move || Reply { token, file, says: job() };
        if let Err(error) = self.threads.start(job) {
            self.finished_on(file);
            self.answer_now(token, Err(DiskError::from_io(&error)));
        }
    }

    /// Starts an operation on an open file.
    fn start_on_file(&mut self, token: Token, id: FileId, op: Op) -> Result<(), DiskError> {
        let handle = self.handles.get_mut(&id).filter(|handle| handle.closing.is_none());
        let handle = handle.ok_or(DiskError::StaleFile)?;
        allowed(&op, handle.flags.mode)?;
        if let Op::Len { .. } = op {
            let len = carry::len_of(&handle.file);
            self.answer_now(token, len.map(Outcome::Len));
            return Ok(());
        }
        if matches!(op, Op::Close { .. }) {
            handle.closing = Some(token);
            self.close_if_idle(id);
            return Ok(());
        }
        let file = handle.file.clone();
        let note = Note { token, file: id, tries: 1 };
        match op {
            Op::Write { at, data, .. } => {
                let whole = !data.is_empty() && data.len().is_multiple_of(BLOCK_BYTES);
                if !whole || !at.is_multiple_of(BLOCK_BYTES as u64) {
                    return Err(DiskError::Misaligned);
                }
                handle.busy += 1;
                self.ring.ask(note, Work::Write { file, at, data });
            }
            Op::Read { at, room, .. } => {
                if !at.is_multiple_of(BLOCK_BYTES as u64) {
                    return Err(DiskError::Misaligned);
                }
                handle.busy += 1;
                self.ring.ask(note, Work::Read { file, at, into: room.into_memory() });
            }
            Op::Sync { .. } => {
                handle.busy += 1;
                self.ring.ask(note, Work::Sync { file });
            }
            Op::Presize { len, .. } => {
                handle.busy += 1;
                self.help(token, Some(id), move || Says::Answer(carry::presize(&file, len)));
            }
            Op::SetLen { len, .. } => {
                handle.busy += 1;
                self.help(token, Some(id), move || Says::Answer(carry::set_len(&file, len)));
            }
            Op::Lock { kind, wait, .. } => {
                handle.busy += 1;
                let until = self.clock.now() + wait;
                self.lock(token, id, LockTry { file, kind, until });
            }
            _ => return Err(DiskError::WrongMode),
        }
        Ok(())
    }

    fn lock(&mut self, token: Token, id: FileId, lock: LockTry) {
        self.help(token, Some(id), move || match carry::lock(&lock.file, lock.kind) {
            Err(DiskError::Locked) => Says::Held(lock),
            result => Says::Answer(result),
        });
    }

    fn start_on_volume(&mut self, token: Token, volume: VolumeId, op: Op) -> Result<(), DiskError> {
        let volume = self.volumes.get(usize::from(volume.0)).ok_or(DiskError::NoVolume)?;
        let job = carry::by_name(volume.root(), op).ok_or(DiskError::WrongMode)?;
        self.help(token, None, move || Says::Answer(job()));
        Ok(())
    }

    fn close_if_idle(&mut self, id: FileId) {
        let idle = |handle: &Handle| handle.busy == 0 && handle.closing.is_some();
        if !self.handles.get(&id).is_some_and(idle) {
            return;
        }
        if let Some(Handle { file, closing: Some(token), .. }) = self.handles.remove(&id) {
            // The last use of a file that has no name any more gives back its space, which takes a while.
            self.help(token, None, move || {
                drop(file);
                Says::Answer(Ok(Answer::Done))
            });
        }
    }

    /// One operation less is in flight on a file.
    fn finished_on(&mut self, file: Option<FileId>) {
        let Some(id) = file else { return };
        if let Some(handle) = self.handles.get_mut(&id) {
            handle.busy -= 1;
        }
        self.close_if_idle(id);
    }

    /// Takes what the kernel has finished; it asks again for what was done in part.
    fn take_finished(&mut self, finished: Finished<Note>) {
        let Finished { note, work, result } = finished;
        let again = match (&work, result) {
            (_, result) if result == -libc::EINTR || result == -libc::EAGAIN => true,
            (Work::Write { data, .. }, 0..) => result.unsigned_abs() as usize != data.len(),
            _ => false,
        };
        if again && note.tries < TRIES {
            self.ring.ask(Note { tries: note.tries + 1, ..note }, work);
            self.ring.hand_over();
            return;
        }
        let result = match (work, u32::try_from(result)) {
            (_, Err(_)) => Err(DiskError::from_errno(result.wrapping_neg())),
            (Work::Write { .. }, Ok(written)) if again => {
                Err(DiskError::ShortWrite { written: written.into() })
            }
            // SAFETY: the kernel says that it wrote so many bytes, and has done with the memory.
            (Work::Read { into, .. }, Ok(read)) => Ok(Outcome::Read(unsafe { into.filled(read as usize) })),
            _ => Ok(Outcome::Done),
        };
        self.finished_on(Some(note.file));
        self.answer_now(note.token, result);
    }

    fn take_reply(&mut self, reply: Reply) {
        let Reply { token, file, says } = reply;
        let answer = match (says, file) {
            (Says::Held(lock), Some(id)) if self.clock.now() < lock.until => {
                return self.lock(token, id, lock);
            }
            (Says::Held(_), _) => Err(DiskError::Locked),
            (Says::Answer(answer), _) => answer,
        };
        self.finished_on(file);
        let result = answer.map(|answer| match answer {
            Answer::Done => Outcome::Done,
            Answer::Listed(entries) => Outcome::Listed(entries),
            Answer::Space(space) => Outcome::Space(space),
            Answer::Opened { file, flags, len } => {
                self.files += 1;
                let id = FileId(self.files);
                self.handles.insert(id, Handle { file: Arc::new(file), flags, busy: 0, closing: None });
                Outcome::Opened { file: id, len }
            }
        });
        self.answer_now(token, result);
    }

    /// Makes the next answer ready, if one is there.
    fn look(&mut self) {
        while self.ready.is_empty() {
            if let Some(finished) = self.ring.next() {
                self.take_finished(finished);
            } else if let Some(reply) = self.threads.next() {
                self.take_reply(reply);
            } else {
                return;
            }
        }
    }
}

impl Disk for Files {
    fn submit(&mut self, token: Token, op: Op) -> Result<(), Full> {
        if self.in_flight >= self.settings.ops_max {
            return Err(Full { token, op });
        }
        #[cfg(debug_assertions)]
        self.watch.before(token, &op);
        self.in_flight += 1;
        let started = match &op {
            Op::Close { file }
            | Op::Lock { file, .. }
            | Op::Write { file, .. }
            | Op::Read { file, .. }
            | Op::Sync { file }
            | Op::Presize { file, .. }
            | Op::SetLen { file, .. }
            | Op::Len { file } => self.start_on_file(token, *file, op),
            Op::Rename { from, to } if from.volume() != to.volume() => {
                Err(DiskError::Io { errno: libc::EXDEV })
            }
            Op::Open { path, .. }
            | Op::MakeDir { path }
            | Op::RemoveDir { path }
            | Op::Unlink { path }
            | Op::SyncDir { dir: path }
            | Op::List { dir: path }
            | Op::Rename { from: path, .. } => self.start_on_volume(token, path.volume(), op),
            Op::Space { volume } => self.start_on_volume(token, *volume, op),
        };
        if let Err(error) = started {
            self.answer_now(token, Err(error));
        }
        Ok(())
    }

    fn poll_done(&mut self) -> Option<Done> {
        self.look();
        let done = self.ready.pop_front()?;
        self.in_flight -= 1;
        #[cfg(debug_assertions)]
        self.watch.after(&done);
        Some(done)
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }
}

impl fmt::Debug for Files {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Files")
            .field("volumes", &self.volumes.len())
            .field("open", &self.handles.len())
            .field("in_flight", &self.in_flight)
            .field("pool", &self.pool)
            .finish_non_exhaustive()
    }
}

/// Whether a file opened for `mode` takes `op`.
fn allowed(op: &Op, mode: OpenMode) -> Result<(), DiskError> {
    let takes = match op {
        Op::Close { .. } | Op::Lock { .. } => true,
        Op::Write { .. } | Op::Presize { .. } | Op::SetLen { .. } => {
            !matches!(mode, OpenMode::Read | OpenMode::Directory)
        }
        _ => mode != OpenMode::Directory,
    };
    if takes { Ok(()) } else { Err(DiskError::WrongMode) }
}
