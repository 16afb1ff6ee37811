//! Operations and their answers. Scope: values; an operation owns the memory it needs.
//! Invariants: an operation can be handed on, delayed or recorded without looking into it; its answer says which
//! operation it is by the token alone.
//! Not here: carrying them out.

use std::time::Duration;

use super::{DiskError, DiskPath, ReadBuf, ReadRoom, SharedBuf, VolumeId};

/// The caller's name for one operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

/// An open file. Never given twice by one disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId(pub u64);

/// What is to be opened, and for what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenMode {
    /// A file that is there, for reading.
    Read,
    /// A file that is there, for reading and writing.
    Write,
    /// For reading and writing; made if it is missing.
    Create,
    /// For reading and writing; it must be missing.
    CreateNew,
    /// A directory that is there, to lock it.
    Directory,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenFlags {
    pub mode: OpenMode,
    /// Each write is durable when it is answered, as if a sync came with it. The property of this [`FileId`], not of the
    /// file: open it twice to have both kinds of writes.
    pub dsync: bool,
}

impl OpenFlags {
    /// Writes become durable by [`Op::Sync`].
    pub const fn plain(mode: OpenMode) -> OpenFlags {
        OpenFlags { mode, dsync: false }
    }

    /// Writes are durable when they are answered.
    pub const fn dsync(mode: OpenMode) -> OpenFlags {
        OpenFlags { mode, dsync: true }
    }
}

/// A lock belongs to one [`FileId`] and to the operations in flight on it, also after the process has died. It excludes
/// other [`FileId`]s, of this process or another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockKind {
    /// Beside other shared ones: what both handles of a writer hold.
    Shared,
    /// Alone: what recovery takes, to know that every earlier writer is gone.
    Exclusive,
}

/// One thing to do.
#[derive(Debug)]
pub enum Op {
    /// Answers `Opened`. A new name is durable after [`Op::SyncDir`] of its directory.
    Open { path: DiskPath, flags: OpenFlags },
    /// Answers `Done` when every other operation on the file has been answered. No operation on it may follow. Gives up
    /// its locks; makes nothing durable.
    Close { file: FileId },
    /// Locks the file or directory, or changes the kind of the lock that is held. Tried again for up to `wait`, then
    /// refused as `Locked`. Answers `Done`.
    Lock { file: FileId, kind: LockKind, wait: Duration },
    /// Stores `data`, whole blocks, from byte `at`. Answers `Done` when all of it is stored: durable with
    /// [`OpenFlags::dsync`], otherwise after a later [`Op::Sync`]. After an error any part of it may be stored.
    Write { file: FileId, at: u64, data: SharedBuf },
    /// Answers `Read` with at most as many bytes as there is room for. Fewer mean nothing but "ask again from there";
    /// none at all mean that `at` is at or behind the end of the file.
    Read { file: FileId, at: u64, room: ReadRoom },
    /// Makes durable what was answered before this was asked: data, and the length needed to read it. Answers `Done`.
    Sync { file: FileId },
    /// Takes the space for bytes up to `len` and makes the file at least that long; new bytes read as zero. Answers `Done`.
    Presize { file: FileId, len: u64 },
    /// Cuts the file, or lengthens it with zeros without taking space. Answers `Done`.
    SetLen { file: FileId, len: u64 },
    /// Answers `Len`, in bytes.
    Len { file: FileId },
    /// Makes the names in a directory durable: made, removed, renamed to or from it. Answers `Done`.
    SyncDir { dir: DiskPath },
    /// Answers `Done`; `Exists` if it is there.
    MakeDir { path: DiskPath },
    /// Removes an empty directory. Answers `Done`.
    RemoveDir { path: DiskPath },
    /// Puts a file under another name on its volume, in place of one that had it. Open files stay open. Answers `Done`.
    /// Durable after the sync of both directories; until then the file may be found under either name, or both.
    Rename { from: DiskPath, to: DiskPath },
    /// Removes a name; the bytes stay while the file is open. Answers `Done`.
    Unlink { path: DiskPath },
    /// Answers `Listed`; hidden names (with a dot first) are left out.
    List { dir: DiskPath },
    /// Answers `Space`.
    Space { volume: VolumeId },
}

impl Op {
    /// What it does, in a word for people.
    #[must_use]
    pub fn what(&self) -> &'static str {
        match self {
            Op::Open { .. } => "open",
            Op::Close { .. } => "close",
            Op::Lock { .. } => "lock",
            Op::Write { .. } => "write",
            Op::Read { .. } => "read",
            Op::Sync { .. } => "sync",
            Op::Presize { .. } => "presize",
            Op::SetLen { .. } => "set-len",
            Op::Len { .. } => "length",
            Op::SyncDir { .. } => "sync-dir",
            Op::MakeDir { .. } => "make-dir",
            Op::RemoveDir { .. } => "remove-dir",
            Op::Rename { .. } => "rename",
            Op::Unlink { .. } => "unlink",
            Op::List { .. } => "list",
            Op::Space { .. } => "free-space",
        }
    }
}

/// What an operation gave.
#[derive(Debug, Clone)]
pub enum Outcome {
    /// It happened, and there is nothing more to say.
    Done,
    /// `len` is the length of the file in bytes.
    Opened {
        file: FileId,
        len: u64,
    },
    Read(ReadBuf),
    Len(u64),
    /// By name.
    Listed(Vec<Entry>),
    Space(Space),
}

/// Something in a directory.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// Whatever is there, also what no [`DiskPath`] could name.
    pub name: String,
    pub kind: EntryKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum EntryKind {
    File,
    Directory,
    /// A link, a socket or the like: nothing of ours.
    Other,
}

/// Bytes of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// What this process may still take.
    pub free_bytes: u64,
    pub total_bytes: u64,
}

/// An answer.
#[derive(Debug, Clone)]
pub struct Done {
    pub token: Token,
    pub result: Result<Outcome, DiskError>,
}
