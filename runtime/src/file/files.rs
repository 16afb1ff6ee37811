//! The real disk of one core: each operation is a small task of the core's executor. Scope: one per core.
//! Owns: the core's volumes and open files, how many operations each file has in flight, the answers not yet taken.
//! Invariants: at most `ops_max` operations are without an answer; an answer rings the core's bell; a file is closed
//! only when nothing is in flight on it; while anything is in flight the core has to wait in the executor, which
//! [`Files::tell`] sees to.
//! Not here: what an operation does (`carry`), how a file is opened (`volume`).

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::future::{Future, poll_fn};
use std::path::Path;
use std::rc::Rc;
use std::task::{Poll, Waker};

use foldhash::fast::FixedState;

use super::carry::{self, Answer};
use super::volume::{Opened, Volume, VolumeError};
use super::{
    BufPool, Disk, DiskError, Done, FileId, Full, Op, OpenFlags, OpenMode, Outcome, Token, VolumeId,
};
use crate::clock::Clock;
use crate::executor::CoreIo;
use crate::waker::CoreWaker;

/// How much one core may ask of its disks at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FilesSettings {
    /// Operations without an answer.
    pub ops_max: usize,
    /// Bound of the buffers of writes and reads; the core needs [`BufPool::io_memory_bytes`] for it.
    pub pool_bytes: usize,
}

impl Default for FilesSettings {
    /// 256 operations, 64 MiB.
    fn default() -> FilesSettings {
        FilesSettings { ops_max: 256, pool_bytes: 64 << 20 }
    }
}

/// Where tasks leave what became of their operations.
///
/// Shared by reference count, because a task outlives the call that made it; all are on one thread.
struct Answers {
    queue: RefCell<VecDeque<Finished>>,
    /// Tasks that have not finished.
    tasks: Cell<usize>,
    bell: CoreWaker,
    /// Who waits for the next one to finish, when closing.
    closer: RefCell<Option<Waker>>,
}

struct Finished {
    token: Token,
    file: Option<FileId>,
    answer: Answer,
}

struct Handle {
    opened: Opened,
    flags: OpenFlags,
    /// Operations in flight on it.
    busy: u32,
    closing: Option<Token>,
}

/// The disks as one core sees them.
pub struct Files {
    settings: FilesSettings,
    pool: BufPool,
    clock: Clock,
    answers: Rc<Answers>,
    volumes: Vec<Volume>,
    handles: HashMap<FileId, Handle, FixedState>,
    files: u64,
    in_flight: usize,
    /// Tasks were started since the core was told.
    asked: bool,
    #[cfg(debug_assertions)]
    watch: super::watch::Watch,
}

impl Files {
    /// No volumes yet. To be made by the core's task, on its thread.
    pub fn new(io: &CoreIo, settings: FilesSettings) -> Files {
        let answers = Answers {
            queue: RefCell::default(),
            tasks: Cell::new(0),
            bell: io.waker().clone(),
            closer: RefCell::default(),
        };
        Files {
            settings,
            pool: BufPool::of_core(settings.pool_bytes),
            clock: io.clock(),
            answers: Rc::new(answers),
            volumes: Vec::new(),
            handles: HashMap::default(),
            files: 0,
            in_flight: 0,
            asked: false,
            #[cfg(debug_assertions)]
            watch: super::watch::Watch::default(),
        }
    }

    /// Adds the directory `root` as the next volume. It must be there; a file `.felix-probe` is put into it.
    ///
    /// # Errors
    /// When it cannot be used for direct I/O, or would keep the core busy while it writes.
    pub async fn open_volume(&mut self, root: &Path) -> Result<VolumeId, VolumeError> {
        let number = u16::try_from(self.volumes.len()).map_err(|_| VolumeError::TooMany)?;
        self.volumes.push(Volume::open(root).await?);
        Ok(VolumeId(number))
    }

    /// Where buffers for these disks come from.
    pub fn pool(&self) -> &BufPool {
        &self.pool
    }

    /// Tells the core how to wait. Call it after operations were asked or answers taken, before the core waits.
    pub fn tell(&mut self, io: &mut CoreIo) {
        io.set_disk_in_flight(self.answers.tasks.get() > 0);
        if std::mem::take(&mut self.asked) {
            io.disk_asked();
        }
    }

    /// Waits for everything in flight, then closes every file. Answers nobody took are dropped. Takes as long as the
    /// slowest operation.
    pub async fn close(mut self) {
        loop {
            while self.poll_done().is_some() {}
            if self.answers.tasks.get() == 0 {
                break;
            }
            let Answers { ref queue, ref closer, .. } = *self.answers;
            poll_fn(|context| {
                if !queue.borrow().is_empty() {
                    return Poll::Ready(());
                }
                *closer.borrow_mut() = Some(context.waker().clone());
                Poll::Pending
            })
            .await;
        }
        let files = self.handles.into_values().map(|handle| handle.opened);
        for opened in files.chain(self.volumes.into_iter().map(Volume::into_probe)) {
            // There is nobody left to be told.
            let _ = carry::close(opened).await;
        }
    }

    fn spawn(&mut self, token: Token, file: Option<FileId>, work: impl Future<Output = Answer> + 'static) {
        let answers = self.answers.clone();
        answers.tasks.set(answers.tasks.get() + 1);
        self.asked = true;
        glommio::spawn_local(async move {
            let answer = work.await;
            answers.tasks.set(answers.tasks.get() - 1);
            answers.push(Finished { token, file, answer });
        })
        .detach();
    }

    /// An answer that is there at once.
    fn answer_now(&self, token: Token, answer: Answer) {
        self.answers.push(Finished { token, file: None, answer });
    }

    /// Starts an operation on an open file.
    fn start_on_file(&mut self, token: Token, file: FileId, op: Op) -> Result<(), DiskError> {
        let handle = self.handles.get_mut(&file).filter(|handle| handle.closing.is_none());
        let handle = handle.ok_or(DiskError::StaleFile)?;
        allowed(&op, handle.flags.mode)?;
        if matches!(op, Op::Close { .. }) {
            handle.closing = Some(token);
            self.close_if_idle(file);
            return Ok(());
        }
        handle.busy += 1;
        let opened = handle.opened.clone();
        let clock = self.clock;
        self.spawn(token, Some(file), carry::on_file(opened, op, clock));
        Ok(())
    }

    fn start_on_volume(&mut self, token: Token, volume: VolumeId, op: Op) -> Result<(), DiskError> {
        let volume = self.volumes.get(usize::from(volume.0)).ok_or(DiskError::NoVolume)?;
        let root = volume.root();
        self.spawn(token, None, carry::on_volume(root, op));
        Ok(())
    }

    fn close_if_idle(&mut self, file: FileId) {
        let idle = |handle: &Handle| handle.busy == 0 && handle.closing.is_some();
        if !self.handles.get(&file).is_some_and(idle) {
            return;
        }
        if let Some(Handle { opened, closing: Some(token), .. }) = self.handles.remove(&file) {
            self.spawn(token, None, async {
                Answer::Told(carry::close(opened).await.map(|()| Outcome::Done))
            });
        }
    }

    fn settle(&mut self, answer: Answer) -> Result<Outcome, DiskError> {
        match answer {
            Answer::Told(result) => result,
            Answer::Opened { opened, flags, len } => {
                self.files += 1;
                let file = FileId(self.files);
                self.handles.insert(file, Handle { opened, flags, busy: 0, closing: None });
                Ok(Outcome::Opened { file, len })
            }
        }
    }
}

impl Answers {
    fn push(&self, finished: Finished) {
        self.queue.borrow_mut().push_back(finished);
        self.bell.wake();
        if let Some(closer) = self.closer.borrow_mut().take() {
            closer.wake();
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
            self.answer_now(token, Answer::Told(Err(error)));
        }
        Ok(())
    }

    fn poll_done(&mut self) -> Option<Done> {
        let Finished { token, file, answer } = self.answers.queue.borrow_mut().pop_front()?;
        self.in_flight -= 1;
        if let Some(file) = file {
            if let Some(handle) = self.handles.get_mut(&file) {
                handle.busy -= 1;
            }
            self.close_if_idle(file);
        }
        let result = self.settle(answer);
        let done = Done { token, result };
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
