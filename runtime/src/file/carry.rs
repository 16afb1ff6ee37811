//! Carries out one operation. Scope: one task per operation.
//! Invariants: nothing here blocks the core: what the ring cannot do is done by the executor's thread for blocking calls.
//! Not here: how many may run, who is told.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use glommio::io::DmaFile;
use glommio::timer::Timer;

use super::volume::{Opened, error_of, open_by_name, open_direct};
use super::{
    BLOCK_BYTES, DiskError, DiskPath, Entry, EntryKind, LockKind, Op, OpenFlags, OpenMode, Outcome, ReadRoom,
    SharedBuf, Space,
};
use crate::clock::Clock;

/// How often a lock that somebody else holds is tried.
const LOCK_EVERY: Duration = Duration::from_millis(2);
/// How often a write that was stored in part is tried again: it either works or tells why it does not.
const WRITE_TRIES: u32 = 3;

/// What a task found.
pub(super) enum Answer {
    Told(Result<Outcome, DiskError>),
    /// The file has no id yet.
    Opened {
        opened: Opened,
        flags: OpenFlags,
        len: u64,
    },
}

/// Operations on an open file, closing excepted.
pub(super) async fn on_file(opened: Opened, op: Op, clock: Clock) -> Answer {
    let result = match (opened, op) {
        (opened, Op::Lock { kind, wait, .. }) => lock(opened, kind, wait, clock).await,
        (Opened::File(file), Op::Write { at, data, .. }) => write(&file, at, &data).await,
        (Opened::File(file), Op::Read { at, room, .. }) => return Answer::Told(read(&file, at, room).await),
        (Opened::File(file), Op::Sync { .. }) => file.fdatasync().await.map_err(error_of),
        (Opened::File(file), Op::Presize { len, .. }) => {
            file.pre_allocate(len, false).await.map_err(error_of)
        }
        (Opened::File(file), Op::SetLen { len, .. }) => file.truncate(len).await.map_err(error_of),
        (Opened::File(file), Op::Len { .. }) => {
            return Answer::Told(len_of(file.as_raw_fd()).map(Outcome::Len));
        }
        _ => Err(DiskError::WrongMode),
    };
    Answer::Told(result.map(|()| Outcome::Done))
}

async fn write(file: &DmaFile, at: u64, data: &SharedBuf) -> Result<(), DiskError> {
    if data.is_empty() || !data.len().is_multiple_of(BLOCK_BYTES) || !at.is_multiple_of(BLOCK_BYTES as u64) {
        return Err(DiskError::Misaligned);
    }
    let mut written = 0;
    for _ in 0..WRITE_TRIES {
        written = file.write_rc_at(data.ring_memory(), at).await.map_err(error_of)?;
        if written == data.len() {
            return Ok(());
        }
    }
    Err(DiskError::ShortWrite { written: written as u64 })
}

async fn read(file: &DmaFile, at: u64, room: ReadRoom) -> Result<Outcome, DiskError> {
    if !at.is_multiple_of(BLOCK_BYTES as u64) {
        return Err(DiskError::Misaligned);
    }
    let read = file.read_at_aligned(at, room.bytes()).await.map_err(error_of)?;
    Ok(Outcome::Read(room.filled_by_ring(read)))
}

fn len_of(fd: RawFd) -> Result<u64, DiskError> {
    let mut stat = std::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the pointer is to a stat that lives through the call.
    if unsafe { libc::fstat(fd, stat.as_mut_ptr()) } != 0 {
        return Err(DiskError::from_io(&io::Error::last_os_error()));
    }
    // SAFETY: the call worked, so it filled the struct.
    let stat = unsafe { stat.assume_init() };
    Ok(u64::try_from(stat.st_size).unwrap_or_default())
}

/// Locks by open file description: such a lock ends when the last operation on it has, even after its process.
async fn lock(opened: Opened, kind: LockKind, wait: Duration, clock: Clock) -> Result<(), DiskError> {
    let fd = match &opened {
        Opened::File(file) => file.as_raw_fd(),
        Opened::Directory(directory) => directory.as_raw_fd(),
    };
    let kind = match kind {
        LockKind::Shared => libc::LOCK_SH,
        LockKind::Exclusive => libc::LOCK_EX,
    };
    let until = clock.now() + wait;
    loop {
        // SAFETY: no pointers are involved; `opened` keeps the descriptor open.
        if unsafe { libc::flock(fd, kind | libc::LOCK_NB) } == 0 {
            return Ok(());
        }
        let error = DiskError::from_io(&io::Error::last_os_error());
        if error != DiskError::Locked || clock.now() >= until {
            return Err(error);
        }
        Timer::new(LOCK_EVERY).await;
    }
}

/// Closes a file on which nothing is in flight.
pub(super) async fn close(opened: Opened) -> Result<(), DiskError> {
    match opened {
        Opened::File(file) => match Rc::try_unwrap(file) {
            Ok(file) => file.close().await.map_err(error_of),
            Err(_) => unreachable!("a file is closed after its operations"),
        },
        Opened::Directory(_) => Ok(()),
    }
}

/// Operations by name.
pub(super) async fn on_volume(root: Arc<Path>, op: Op) -> Answer {
    // A `DiskPath` cannot lead out of the root.
    let below = |path: &DiskPath| root.join(path.as_str());
    let done = match op {
        Op::Open { path, flags } => {
            return match open(below(&path), flags).await {
                Ok((opened, len)) => Answer::Opened { opened, flags, len },
                Err(error) => Answer::Told(Err(error)),
            };
        }
        Op::List { dir } => {
            let dir = below(&dir);
            return Answer::Told(blocking(move || list(&dir)).await.map(Outcome::Listed));
        }
        Op::Space { .. } => return Answer::Told(blocking(move || space(&root)).await.map(Outcome::Space)),
        // Not the ring's fdatasync: for a directory it need not cover the names.
        Op::SyncDir { dir } => {
            let dir = below(&dir);
            blocking(move || File::open(dir)?.sync_all()).await
        }
        Op::MakeDir { path } => {
            let path = below(&path);
            blocking(move || fs::DirBuilder::new().mode(0o700).create(path)).await
        }
        Op::RemoveDir { path } => {
            let path = below(&path);
            blocking(move || fs::remove_dir(path)).await
        }
        Op::Rename { from, to } => {
            let (from, to) = (below(&from), below(&to));
            blocking(move || fs::rename(from, to)).await
        }
        Op::Unlink { path } => {
            let path = below(&path);
            blocking(move || fs::remove_file(path)).await
        }
        _ => Err(DiskError::WrongMode),
    };
    Answer::Told(done.map(|()| Outcome::Done))
}

/// Lets the executor's thread for blocking calls do `work`.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, DiskError> {
    glommio::executor().spawn_blocking(work).await.map_err(|error| DiskError::from_io(&error))
}

async fn open(path: PathBuf, flags: OpenFlags) -> Result<(Opened, u64), DiskError> {
    let (file, len) = blocking(move || open_by_name(&path, flags)).await?;
    if flags.mode == OpenMode::Directory {
        return Ok((Opened::Directory(Arc::new(file)), 0));
    }
    Ok((Opened::File(Rc::new(open_direct(file, flags).await?)), len))
}

fn list(dir: &Path) -> io::Result<Vec<Entry>> {
    let mut entries = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        let kind = match (kind.is_file(), kind.is_dir()) {
            (true, _) => EntryKind::File,
            (_, true) => EntryKind::Directory,
            _ => EntryKind::Other,
        };
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.starts_with('.') {
            entries.push(Entry { name, kind });
        }
    }
    entries.sort();
    Ok(entries)
}

fn space(root: &Path) -> io::Result<Space> {
    let path = std::ffi::CString::new(root.as_os_str().as_bytes())?;
    let mut stat = std::mem::MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: the pointers are to a string with its end and to a statvfs, which live through the call.
    if unsafe { libc::statvfs(path.as_ptr(), stat.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call worked, so it filled the struct.
    let stat = unsafe { stat.assume_init() };
    let bytes = |blocks: libc::fsblkcnt_t| blocks.saturating_mul(stat.f_frsize);
    Ok(Space { free_bytes: bytes(stat.f_bavail), total_bytes: bytes(stat.f_blocks) })
}
