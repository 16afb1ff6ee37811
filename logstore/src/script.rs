//! Work that takes several disk operations in turn, written as one function. Scope: one [`Desk`] and [`Scripts`] per engine
//! or recovery.
//! Owns: the operations that scripts asked for, and which script waits for which answer.
//! Invariants: a script does nothing but ask for operations, get answers and compute; it reads no clock and opens nothing, so
//! it is a state machine whose states the compiler names. Scripts run only inside [`Scripts::start`] and
//! [`Scripts::answer`], in an order that follows from the answers alone.
//! Not here: carrying operations out. Desk and scripts share state by `Rc`, because a script outlives the call that began it.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use felix_runtime::file::{
    AlignedBuf, BufPool, DiskError, DiskPath, Done, Entry, FileId, LockKind, Op, OpenFlags, OpenMode,
    Outcome, ReadBuf, ReadRoom, SharedBuf, Token,
};

use crate::engine::Reservations;

/// What a name gets that a failed sync of another one may have taken along.
const EIO: i32 = 5;
/// The most that is read at once.
const READ_BYTES_MAX: usize = 2 << 20;

/// Where scripts hand in operations. Clones are the same desk.
///
/// Shared by reference count, because every script keeps its desk while it waits and the engine hands in answers
/// meanwhile; all are on one thread, and no borrow is held while a script is resumed.
#[derive(Clone)]
pub struct Desk {
    inner: Rc<RefCell<Inner>>,
    pool: BufPool,
    volume: Reservations,
}

/// A moment before a name was made; see [`Desk::sync_name`].
#[derive(Debug, Clone, Copy)]
pub struct NameSince(u64);

struct Inner {
    next_token: u64,
    /// The script that is running.
    current: u64,
    handed_in: VecDeque<(Token, Op)>,
    asked: BTreeMap<u64, Asked>,
    /// Scripts that wait for memory.
    starved: Vec<(u64, Waker)>,
}

struct Asked {
    script: u64,
    answer: Option<Result<Outcome, DiskError>>,
    waker: Option<Waker>,
}

/// The answer to one operation, some day.
struct Ask {
    inner: Rc<RefCell<Inner>>,
    state: AskState,
}

enum AskState {
    New(Op),
    Waiting(u64),
    Over,
}

impl Future for Ask {
    type Output = Result<Outcome, DiskError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let inner = self.inner.clone();
        let mut inner = inner.borrow_mut();
        match std::mem::replace(&mut self.state, AskState::Over) {
            AskState::New(op) => {
                let token = inner.next_token;
                inner.next_token += 1;
                let script = inner.current;
                inner.asked.insert(token, Asked { script, answer: None, waker: Some(cx.waker().clone()) });
                inner.handed_in.push_back((Token(token), op));
                self.state = AskState::Waiting(token);
                Poll::Pending
            }
            AskState::Waiting(token) => {
                let Some(asked) = inner.asked.get_mut(&token) else { return Poll::Pending };
                let Some(answer) = asked.answer.take() else {
                    asked.waker = Some(cx.waker().clone());
                    self.state = AskState::Waiting(token);
                    return Poll::Pending;
                };
                inner.asked.remove(&token);
                Poll::Ready(answer)
            }
            AskState::Over => Poll::Pending,
        }
    }
}

/// An answer of a kind that does not belong to the question: a disk that breaks its contract.
fn mismatch() -> DiskError {
    DiskError::Io { errno: 0 }
}

fn done(outcome: Outcome) -> Result<(), DiskError> {
    match outcome {
        Outcome::Done => Ok(()),
        _ => Err(mismatch()),
    }
}

impl Desk {
    /// A desk whose tokens begin at `first_token`, taking memory from `pool`. Desks of one volume share `volume`.
    #[must_use]
    pub fn new(first_token: u64, pool: BufPool, volume: Reservations) -> Desk {
        let inner = Inner {
            next_token: first_token,
            current: 0,
            handed_in: VecDeque::new(),
            asked: BTreeMap::new(),
            starved: Vec::new(),
        };
        Desk { inner: Rc::new(RefCell::new(inner)), pool, volume }
    }

    /// The next operation to carry out.
    pub fn poll_op(&self) -> Option<(Token, Op)> {
        self.inner.borrow_mut().handed_in.pop_front()
    }

    /// The memory that scripts and rounds share.
    #[must_use]
    pub fn pool(&self) -> &BufPool {
        &self.pool
    }

    /// Hands in `op`; resolves with its answer.
    pub async fn ask(&self, op: Op) -> Result<Outcome, DiskError> {
        Ask { inner: self.inner.clone(), state: AskState::New(op) }.await
    }

    /// A buffer, as soon as the pool has it. Never resolves for more than the pool's bound.
    pub async fn buffer(&self, bytes: usize) -> AlignedBuf {
        self.memory(|pool| pool.take(bytes).ok()).await
    }

    async fn read_room(&self, bytes: usize) -> ReadRoom {
        self.memory(|pool| pool.read_room(bytes).ok()).await
    }

    async fn memory<T>(&self, take: impl Fn(&BufPool) -> Option<T>) -> T {
        std::future::poll_fn(|cx| {
            if let Some(taken) = take(&self.pool) {
                return Poll::Ready(taken);
            }
            let mut inner = self.inner.borrow_mut();
            let script = inner.current;
            inner.starved.push((script, cx.waker().clone()));
            Poll::Pending
        })
        .await
    }

    /// Opens `path`; gives the file and its length in bytes.
    pub async fn open(&self, path: DiskPath, flags: OpenFlags) -> Result<(FileId, u64), DiskError> {
        match self.ask(Op::Open { path, flags }).await? {
            Outcome::Opened { file, len } => Ok((file, len)),
            _ => Err(mismatch()),
        }
    }

    /// Opens `path` twice, plain and with a sync in each write, and locks both against recovery.
    pub async fn open_writer(&self, path: DiskPath, mode: OpenMode) -> Result<Handles, DiskError> {
        let (plain, _) = self.open(path.clone(), OpenFlags::plain(mode)).await?;
        let second = self.open(path, OpenFlags::dsync(OpenMode::Write)).await;
        let dsync = match second {
            Ok((dsync, _)) => dsync,
            Err(error) => {
                self.close(plain).await;
                return Err(error);
            }
        };
        let handles = Handles { plain, dsync };
        for file in [plain, dsync] {
            let locked = self.lock(file, LockKind::Shared, Duration::ZERO).await;
            if let Err(error) = locked {
                self.close_both(handles).await;
                return Err(error);
            }
        }
        Ok(handles)
    }

    /// Gives a file back. What a close fails with changes nothing for what was synced.
    pub async fn close(&self, file: FileId) {
        let _ = self.ask(Op::Close { file }).await;
    }

    pub async fn close_both(&self, handles: Handles) {
        self.close(handles.dsync).await;
        self.close(handles.plain).await;
    }

    pub async fn lock(&self, file: FileId, kind: LockKind, wait: Duration) -> Result<(), DiskError> {
        self.ask(Op::Lock { file, kind, wait }).await.and_then(done)
    }

    /// Stores whole blocks.
    pub async fn write(&self, file: FileId, at: u64, data: SharedBuf) -> Result<(), DiskError> {
        self.ask(Op::Write { file, at, data }).await.and_then(done)
    }

    /// Stores `bytes`, padded to whole blocks with zeros.
    pub async fn write_bytes(&self, file: FileId, at: u64, bytes: &[u8]) -> Result<(), DiskError> {
        let mut buffer = self.buffer(bytes.len()).await;
        buffer.push(bytes);
        self.write(file, at, buffer.freeze()).await
    }

    /// Up to `bytes` from `at`; fewer only at the end of the file or when the disk gives fewer.
    pub async fn read(&self, file: FileId, at: u64, bytes: usize) -> Result<ReadBuf, DiskError> {
        let room = self.read_room(bytes).await;
        match self.ask(Op::Read { file, at, room }).await? {
            Outcome::Read(read) => Ok(read),
            _ => Err(mismatch()),
        }
    }

    /// `bytes` (whole blocks) from `at` (a block's beginning), or all there are up to the end of the file.
    pub async fn read_all(&self, file: FileId, at: u64, bytes: usize) -> Result<Vec<u8>, DiskError> {
        let mut out: Vec<u8> = Vec::with_capacity(bytes);
        while out.len() < bytes {
            // A short read that ended inside a block is asked for again from that block's beginning.
            let whole = out.len() - out.len() % felix_runtime::file::BLOCK_BYTES;
            let read = self.read(file, at + whole as u64, (bytes - whole).min(READ_BYTES_MAX)).await?;
            if read.is_empty()
                || (whole + read.len() <= out.len() && self.ends_at(file, at + out.len() as u64).await?)
            {
                break;
            }
            if whole + read.len() <= out.len() {
                continue;
            }
            out.truncate(whole);
            out.extend_from_slice(&read);
        }
        out.truncate(bytes);
        Ok(out)
    }

    /// Whether a file has nothing from byte `at` on.
    async fn ends_at(&self, file: FileId, at: u64) -> Result<bool, DiskError> {
        match self.ask(Op::Len { file }).await? {
            Outcome::Len(len) => Ok(len <= at),
            _ => Err(mismatch()),
        }
    }

    pub async fn sync(&self, file: FileId) -> Result<(), DiskError> {
        self.ask(Op::Sync { file }).await.and_then(done)
    }

    pub async fn presize(&self, file: FileId, len: u64) -> Result<(), DiskError> {
        self.ask(Op::Presize { file, len }).await.and_then(done)
    }

    pub async fn sync_dir(&self, dir: DiskPath) -> Result<(), DiskError> {
        let result = self.ask(Op::SyncDir { dir }).await.and_then(done);
        // One that is gone, with the log it was of, has nothing to store.
        if !matches!(result, Ok(()) | Err(DiskError::Missing)) {
            self.volume.dir_failed();
        }
        result
    }

    /// To be asked before a name is made that [`Desk::sync_name`] makes durable.
    #[must_use]
    pub fn before_name(&self) -> NameSince {
        NameSince(self.volume.dirs_failed())
    }

    /// Makes the names in `dir` durable that were made since `since`.
    ///
    /// # Errors
    /// Also when the sync ends well and another one has failed meanwhile: that one may have been the one that had to store the
    /// name, and no later one will.
    pub async fn sync_name(&self, dir: DiskPath, since: NameSince) -> Result<(), DiskError> {
        self.sync_dir(dir).await?;
        if self.before_name().0 == since.0 { Ok(()) } else { Err(DiskError::Io { errno: EIO }) }
    }

    /// Makes a directory, or finds that it is there.
    pub async fn make_dir(&self, path: DiskPath) -> Result<(), DiskError> {
        match self.ask(Op::MakeDir { path }).await {
            Ok(outcome) => done(outcome),
            Err(DiskError::Exists) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Makes a directory, or makes it again when it is there and empty: the sync that had to store its name may have failed,
    /// and no later one would.
    pub async fn make_dir_again(&self, path: DiskPath) -> Result<(), DiskError> {
        match self.ask(Op::MakeDir { path: path.clone() }).await {
            Err(DiskError::Exists) => {}
            made => return made.and_then(done),
        }
        match self.remove_dir(path.clone()).await {
            Ok(()) => self.make_dir(path).await,
            Err(DiskError::NotEmpty) => Ok(()),
            Err(error) => Err(error),
        }
    }

    pub async fn remove_dir(&self, path: DiskPath) -> Result<(), DiskError> {
        self.ask(Op::RemoveDir { path }).await.and_then(done)
    }

    pub async fn rename(&self, from: DiskPath, to: DiskPath) -> Result<(), DiskError> {
        self.ask(Op::Rename { from, to }).await.and_then(done)
    }

    /// Removes a name, or finds that it is gone.
    pub async fn unlink(&self, path: DiskPath) -> Result<(), DiskError> {
        match self.ask(Op::Unlink { path }).await {
            Ok(outcome) => done(outcome),
            Err(DiskError::Missing) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// What is in a directory, by name; nothing if it is missing.
    pub async fn list(&self, dir: DiskPath) -> Result<Vec<Entry>, DiskError> {
        match self.ask(Op::List { dir }).await {
            Ok(Outcome::Listed(entries)) => Ok(entries),
            Ok(_) => Err(mismatch()),
            Err(DiskError::Missing) => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }
}

/// Both ways to write one file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Handles {
    pub plain: FileId,
    pub dsync: FileId,
}

type Running<T> = Pin<Box<dyn Future<Output = T>>>;

/// The scripts of one engine that are not over yet. `T` is what a script ends with.
pub struct Scripts<T> {
    desk: Desk,
    next: u64,
    running: BTreeMap<u64, Running<T>>,
    ended: VecDeque<T>,
}

impl<T> Scripts<T> {
    #[must_use]
    pub fn new(desk: Desk) -> Scripts<T> {
        Scripts { desk, next: 1, running: BTreeMap::new(), ended: VecDeque::new() }
    }

    /// Begins a script and runs it up to its first operations.
    pub fn start(&mut self, script: impl Future<Output = T> + 'static) {
        let id = self.next;
        self.next += 1;
        self.running.insert(id, Box::pin(script));
        self.run(id);
    }

    /// Hands an answer to the script that waits for it. False when the token is not of this desk.
    pub fn answer(&mut self, answer: Done) -> bool {
        let script = {
            let mut inner = self.desk.inner.borrow_mut();
            let Some(asked) = inner.asked.get_mut(&answer.token.0) else { return false };
            asked.answer = Some(answer.result);
            if let Some(waker) = asked.waker.take() {
                waker.wake();
            }
            asked.script
        };
        self.run(script);
        self.retry_starved();
        true
    }

    /// Runs the scripts that wait for memory: some may have been given back since the last answer.
    pub fn retry_starved(&mut self) {
        let starved = std::mem::take(&mut self.desk.inner.borrow_mut().starved);
        let due: BTreeSet<u64> = starved.iter().map(|(script, _)| *script).collect();
        for (_, waker) in starved {
            waker.wake();
        }
        for id in due {
            self.run(id);
        }
    }

    /// What the next script that is over ended with.
    pub fn poll_ended(&mut self) -> Option<T> {
        self.ended.pop_front()
    }

    /// Scripts that are not over.
    #[must_use]
    pub fn len(&self) -> usize {
        self.running.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.running.is_empty()
    }

    fn run(&mut self, id: u64) {
        let Some(script) = self.running.get_mut(&id) else { return };
        self.desk.inner.borrow_mut().current = id;
        if let Poll::Ready(end) = script.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            self.running.remove(&id);
            self.ended.push_back(end);
        }
    }
}
