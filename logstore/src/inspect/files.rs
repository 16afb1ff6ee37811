//! Reading the files of a volume, blocking, with the pieces of slots laid over segments as recovery would write them.
//! Scope: one [`Tree`] per inspection, one [`Overlay`] per segment.
//! Invariants: nothing is opened for writing; links are not followed; the lock is held as long as the tree; a read is as
//! long as was asked for unless the file ends.
//! Not here: what the bytes mean.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use felix_runtime::file::{DiskPath, Entry, EntryKind, VolumeId};

use super::InspectError;
use crate::commit::PieceHead;
use crate::limits::SEGMENT_BYTES_MAX;
use crate::names;
use crate::recovery::LOCK_WAIT;

/// The volume has no number here; paths need one.
pub(super) const VOLUME: VolumeId = VolumeId(0);

/// Between two looks at a lock.
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// The directory, locked.
pub(super) struct Tree {
    root: PathBuf,
    /// Shared, so that inspections may run side by side; a broker's is exclusive.
    lock: Option<File>,
}

impl Tree {
    pub fn open(root: &Path) -> Result<Tree, InspectError> {
        let io = |source| InspectError::Io { path: root.to_owned(), source };
        if !fs::metadata(root).map_err(io)?.is_dir() {
            return Err(io(io::ErrorKind::NotADirectory.into()));
        }
        let mut tree = Tree { root: root.to_owned(), lock: None };
        let there = |name| fs::symlink_metadata(root.join(name)).is_ok();
        if !there(names::SLOTS) && !there(names::SHARDS) {
            return Err(InspectError::NotALog { path: root.to_owned() });
        }
        if there(names::LOCK) {
            let path = names::top(VOLUME, names::LOCK);
            let (lock, _) = tree.file(&path)?;
            match lock.try_lock_shared() {
                Ok(()) => tree.lock = Some(lock),
                Err(TryLockError::WouldBlock) => {
                    return Err(InspectError::InUse { path: tree.full(&path) });
                }
                Err(TryLockError::Error(source)) => {
                    return Err(InspectError::Io { path: tree.full(&path), source });
                }
            }
        }
        Ok(tree)
    }

    pub fn is_locked(&self) -> bool {
        self.lock.is_some()
    }

    pub fn full(&self, path: &DiskPath) -> PathBuf {
        self.root.join(path.as_str())
    }

    pub fn io(&self, path: &DiskPath) -> impl Fn(io::Error) -> InspectError + use<> {
        let path = self.full(path);
        move |source| InspectError::Io { path: path.clone(), source }
    }

    /// What is in a directory, by name, without hidden names; nothing if it is missing.
    pub fn list(&self, dir: &DiskPath) -> Result<Vec<Entry>, InspectError> {
        let failed = self.io(dir);
        let entries = match fs::read_dir(self.full(dir)) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(failed(error)),
        };
        let mut found = Vec::new();
        for entry in entries {
            let entry = entry.map_err(&failed)?;
            let kind = entry.file_type().map_err(&failed)?;
            let kind = match (kind.is_file(), kind.is_dir()) {
                (true, _) => EntryKind::File,
                (_, true) => EntryKind::Directory,
                _ => EntryKind::Other,
            };
            let name = entry.file_name().to_string_lossy().into_owned();
            if !name.starts_with('.') {
                found.push(Entry { name, kind });
            }
        }
        found.sort();
        Ok(found)
    }

    /// Opens a file; gives its length too.
    pub fn file(&self, path: &DiskPath) -> Result<(File, u64), InspectError> {
        let failed = self.io(path);
        let full = self.full(path);
        if !fs::symlink_metadata(&full).map_err(&failed)?.is_file() {
            return Err(failed(io::Error::other("not a file")));
        }
        let file = File::open(full).map_err(&failed)?;
        let len = file.metadata().map_err(&failed)?.len();
        Ok((file, len))
    }

    /// Waits until no write of a process that is gone is in flight on the file any more, as recovery does.
    pub fn wait_for_writers(&self, file: &File, path: &DiskPath) -> Result<(), InspectError> {
        let until = Instant::now() + LOCK_WAIT;
        loop {
            match file.try_lock() {
                // Nobody new can come: the lock of the volume is ours.
                Ok(()) => return file.unlock().map_err(self.io(path)),
                Err(TryLockError::WouldBlock) if Instant::now() < until => std::thread::sleep(LOCK_PAUSE),
                Err(TryLockError::WouldBlock) => return Err(InspectError::InUse { path: self.full(path) }),
                Err(TryLockError::Error(source)) => return Err(self.io(path)(source)),
            }
        }
    }
}

/// Up to `bytes` from `at`; fewer only at the end of the file.
pub(super) fn read_at(file: &File, at: u64, bytes: usize) -> io::Result<Vec<u8>> {
    let mut out = vec![0; bytes];
    let read = read_into(file, at, &mut out)?;
    out.truncate(read);
    Ok(out)
}

fn read_into(file: &File, at: u64, out: &mut [u8]) -> io::Result<usize> {
    let mut done = 0;
    while let Some(left) = out.get_mut(done..).filter(|left| !left.is_empty()) {
        match file.read_at(left, at + done as u64) {
            Ok(0) => break,
            Ok(read) => done += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

/// A segment as it is after recovery has brought the pieces of slots to it.
pub(super) struct Overlay<'a> {
    tree: &'a Tree,
    file: File,
    len: u64,
    /// By byte of the segment: head, slot, byte of the slot.
    pieces: Vec<(PieceHead, usize, u64)>,
    slots: &'a [DiskPath],
    /// The slot that was read last.
    slot: Option<(usize, File)>,
}

impl<'a> Overlay<'a> {
    pub fn new(
        tree: &'a Tree,
        (file, len): (File, u64),
        pieces: Vec<(PieceHead, usize, u64)>,
        slots: &'a [DiskPath],
    ) -> Overlay<'a> {
        let end = pieces.iter().map(|(piece, _, _)| end_of(piece)).max().unwrap_or(0);
        Overlay { tree, file, len: len.max(end.min(SEGMENT_BYTES_MAX)), pieces, slots, slot: None }
    }

    /// Length, pieces included.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Up to `bytes` from `at`; fewer only at the end.
    pub fn read(&mut self, at: u64, bytes: usize) -> io::Result<Vec<u8>> {
        let left = usize::try_from(self.len.saturating_sub(at)).unwrap_or(usize::MAX);
        let mut out = vec![0; bytes.min(left)];
        // Between the end of a file that was cut and a piece behind it there are zeros.
        read_into(&self.file, at, &mut out)?;
        let end = at + out.len() as u64;
        let first = self.pieces.partition_point(|(piece, _, _)| end_of(piece) <= at);
        for index in first..self.pieces.len() {
            let Some((piece, slot, slot_byte)) = self.pieces.get(index).copied() else { break };
            let (from, to) = (piece.place.byte.max(at), end_of(&piece).min(end));
            if piece.place.byte >= end {
                break;
            }
            let range = usize::try_from(from - at).unwrap_or(usize::MAX)
                ..usize::try_from(to.saturating_sub(at)).unwrap_or(0);
            if let Some(part) = out.get_mut(range) {
                let source = self.slot(slot)?;
                if read_into(source, slot_byte + (from - piece.place.byte), part)? < part.len() {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            }
        }
        Ok(out)
    }

    fn slot(&mut self, index: usize) -> io::Result<&File> {
        if self.slot.as_ref().is_none_or(|(open, _)| *open != index) {
            let path = self.slots.get(index).ok_or(io::ErrorKind::NotFound)?;
            self.slot = Some((index, File::open(self.tree.full(path))?));
        }
        let open = self.slot.as_ref().map(|(_, file)| file);
        open.ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

fn end_of(piece: &PieceHead) -> u64 {
    piece.place.byte.saturating_add(u64::from(piece.len))
}
