//! What can be wrong with an operation. Scope: values.
//! Invariants: everything a caller must tell apart has its own name; the rest keeps the number the kernel gave.
//! Not here: what to do about it.

use std::io;

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DiskError {
    /// The volume is full, or its quota is. A write may have been stored in part.
    #[error("no space left on the volume")]
    NoSpace,
    #[error("no such file or directory")]
    Missing,
    #[error("the name is taken")]
    Exists,
    #[error("the directory is not empty")]
    NotEmpty,
    /// Somebody else still held a lock on it when the wait was over.
    #[error("locked by somebody else")]
    Locked,
    /// The process or the machine has no descriptor left.
    #[error("no file descriptor left")]
    TooManyFiles,
    #[error("not permitted, or the volume is read-only")]
    Denied,
    /// The file system does not do direct I/O.
    #[error("the file system refuses direct I/O")]
    DirectRefused,
    /// Place or length is not a whole number of blocks, or the length is nothing.
    #[error("not whole blocks")]
    Misaligned,
    /// The file was opened for something else.
    #[error("the file is not open for that")]
    WrongMode,
    /// The file is closed, closing, or was never opened.
    #[error("no such open file")]
    StaleFile,
    #[error("no such volume")]
    NoVolume,
    /// Fewer bytes were stored than given, again and again, without a reason.
    #[error("only {written} bytes of a write were stored")]
    ShortWrite { written: u64 },
    /// Anything else. What a failed write or sync left behind is unknown.
    #[error("I/O error {errno}")]
    Io { errno: i32 },
}

impl DiskError {
    /// The name for what the kernel said. An error without a number counts as EIO.
    pub(super) fn from_io(error: &io::Error) -> DiskError {
        DiskError::from_errno(error.raw_os_error().unwrap_or(libc::EIO))
    }

    /// As [`DiskError::from_io`].
    pub(super) fn from_errno(errno: i32) -> DiskError {
        match errno {
            libc::ENOSPC | libc::EDQUOT => DiskError::NoSpace,
            libc::ENOENT | libc::ENOTDIR => DiskError::Missing,
            libc::EEXIST => DiskError::Exists,
            libc::ENOTEMPTY => DiskError::NotEmpty,
            libc::EMFILE | libc::ENFILE => DiskError::TooManyFiles,
            libc::EACCES | libc::EPERM | libc::EROFS => DiskError::Denied,
            errno => DiskError::Io { errno },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortage_is_not_taken_for_a_lock_of_somebody_else() {
        // What the kernel says when no thread can be started, and a ring when it cannot take a write just then.
        let shortage = io::Error::from_raw_os_error(libc::EAGAIN);
        assert_eq!(DiskError::from_io(&shortage), DiskError::Io { errno: libc::EAGAIN });
    }
}
