//! Carries out what the ring does not do. Scope: one job at a time, on one of the `threads`.
//! Invariants: only what is asked is done: no name leads out of the volume, no link is followed.
//! Not here: writes, reads and syncs (`ring`), who is told.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::thread;
use std::time::Duration;

use super::volume::{open_by_name, open_direct};
use super::{DiskError, DiskPath, Entry, EntryKind, LockKind, Op, OpenFlags, OpenMode, Space};

/// How often a lock that somebody else holds is tried.
const LOCK_EVERY: Duration = Duration::from_millis(2);

/// What a job gave.
#[derive(Debug)]
pub(super) enum Answer {
    Done,
    /// The file has no id yet.
    Opened {
        file: File,
        flags: OpenFlags,
        len: u64,
    },
    Listed(Vec<Entry>),
    Space(Space),
}

/// Something to do on a thread.
pub(super) type Job = Box<dyn FnOnce() -> Result<Answer, DiskError> + Send>;

/// A job that gives nothing but that it was done.
fn done(work: impl FnOnce() -> io::Result<()> + Send + 'static) -> Job {
    Box::new(|| work().map(|()| Answer::Done).map_err(|error| DiskError::from_io(&error)))
}

/// Takes the space for the first `len` bytes.
pub(super) fn presize(file: &File, len: u64) -> Result<Answer, DiskError> {
    let len = libc::off_t::try_from(len).map_err(|_| DiskError::Io { errno: libc::EFBIG })?;
    loop {
        // SAFETY: no pointers are involved.
        if unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, len) } == 0 {
            return Ok(Answer::Done);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(DiskError::from_io(&error));
        }
    }
}

/// Cuts or lengthens the file.
pub(super) fn set_len(file: &File, len: u64) -> Result<Answer, DiskError> {
    file.set_len(len).map(|()| Answer::Done).map_err(|error| DiskError::from_io(&error))
}

/// The length of an open file. Does not wait.
pub(super) fn len_of(file: &File) -> Result<u64, DiskError> {
    let mut stat = std::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the pointer is to a stat that lives through the call.
    if unsafe { libc::fstat(file.as_raw_fd(), stat.as_mut_ptr()) } != 0 {
        return Err(DiskError::from_io(&io::Error::last_os_error()));
    }
    // SAFETY: the call worked, so it filled the struct.
    let stat = unsafe { stat.assume_init() };
    Ok(u64::try_from(stat.st_size).unwrap_or_default())
}

/// Tries once to lock by open file description: such a lock ends when the last operation on it has, even after its process.
///
/// # Errors
/// `Locked` when somebody else holds it; a moment has passed then, and it is worth another try.
pub(super) fn lock(file: &File, kind: LockKind) -> Result<Answer, DiskError> {
    let kind = match kind {
        LockKind::Shared => libc::LOCK_SH,
        LockKind::Exclusive => libc::LOCK_EX,
    };
    // SAFETY: no pointers are involved.
    if unsafe { libc::flock(file.as_raw_fd(), kind | libc::LOCK_NB) } == 0 {
        return Ok(Answer::Done);
    }
    let error = io::Error::last_os_error();
    // The same number elsewhere says that there was not enough of something just then, a thread for instance.
    if error.kind() == io::ErrorKind::WouldBlock {
        thread::sleep(LOCK_EVERY);
        return Err(DiskError::Locked);
    }
    Err(DiskError::from_io(&error))
}

/// What an operation by name, below `root`, has done. None when it is not one.
pub(super) fn by_name(root: &Path, op: Op) -> Option<Job> {
    // A `DiskPath` cannot lead out of the root.
    let below = |path: &DiskPath| root.join(path.as_str());
    Some(match op {
        Op::Open { path, flags } => {
            let path = below(&path);
            Box::new(move || open(&path, flags).map(|(file, len)| Answer::Opened { file, flags, len }))
        }
        Op::List { dir } => {
            let dir = below(&dir);
            Box::new(move || list(&dir).map(Answer::Listed).map_err(|error| DiskError::from_io(&error)))
        }
        Op::Space { .. } => {
            let root = root.to_owned();
            Box::new(move || space(&root).map(Answer::Space).map_err(|error| DiskError::from_io(&error)))
        }
        Op::SyncDir { dir } => {
            let dir = below(&dir);
            done(move || File::open(dir)?.sync_all())
        }
        Op::MakeDir { path } => {
            let path = below(&path);
            done(move || fs::DirBuilder::new().mode(0o700).create(path))
        }
        Op::RemoveDir { path } => {
            let path = below(&path);
            done(move || fs::remove_dir(path))
        }
        Op::Rename { from, to } => {
            let (from, to) = (below(&from), below(&to));
            done(move || fs::rename(from, to))
        }
        Op::Unlink { path } => {
            let path = below(&path);
            done(move || fs::remove_file(path))
        }
        _ => return None,
    })
}

fn open(path: &Path, flags: OpenFlags) -> Result<(File, u64), DiskError> {
    let (file, len) = open_by_name(path, flags).map_err(|error| DiskError::from_io(&error))?;
    if flags.mode == OpenMode::Directory {
        return Ok((file, 0));
    }
    Ok((open_direct(&file, flags)?, len))
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
