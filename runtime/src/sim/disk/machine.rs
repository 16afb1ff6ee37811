//! The disks of one simulated machine without time and chance: what operations change, and what is left after a crash.
//! Scope: all volumes of one machine; the same code runs behind `SimDisk` and behind the replay of a trace.
//! Owns: names, files, open handles, the space of volumes.
//! Invariants: a change is visible from its beginning and counts as stored from its answer; a sync covers exactly what
//! was answered before it began.
//! Not here: when an answer comes, injected errors, locks.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::data::{Change, FileData, State};
use super::names::{Inode, NameChange, Names, Node, Place};
use crate::file::{DiskError, DiskPath, Entry, EntryKind, FileId, OpenFlags, OpenMode, Space, VolumeId};
use crate::sim::SimRng;

/// An operation that may change something.
#[derive(Debug, Clone)]
pub(super) enum Action {
    Open { file: FileId, path: DiskPath, flags: OpenFlags },
    Close { file: FileId },
    Write { file: FileId, at: u64, bytes: Arc<[u8]> },
    Grow { file: FileId, len: u64 },
    SetLen { file: FileId, len: u64 },
    Sync { file: FileId },
    SyncDir { dir: DiskPath },
    MakeDir { path: DiskPath },
    RemoveDir { path: DiskPath },
    Rename { from: DiskPath, to: DiskPath },
    Unlink { path: DiskPath },
}

/// An operation that began, and what its answer will settle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ticket {
    /// Nothing hangs on its answer.
    Nothing,
    Data {
        inode: Inode,
        number: u64,
        dsync: bool,
    },
    Sync {
        inode: Inode,
        upto: u64,
    },
    Names {
        number: u64,
    },
    SyncDir {
        dir: Inode,
        upto: u64,
    },
}

#[derive(Debug, Clone)]
struct Handle {
    inode: Inode,
    path: DiskPath,
    flags: OpenFlags,
}

#[derive(Debug, Clone)]
pub(super) struct Machine {
    names: Names,
    files: BTreeMap<Inode, (VolumeId, FileData)>,
    handles: BTreeMap<FileId, Handle>,
    /// Root and size in bytes, by volume.
    volumes: Vec<(Inode, u64)>,
    inodes: u64,
    numbers: u64,
    answers: u64,
}

impl Machine {
    /// Empty volumes of these sizes in bytes.
    pub(super) fn new(volume_bytes: &[u64]) -> Machine {
        let volumes: Vec<_> = (0..).map(Inode).zip(volume_bytes.iter().copied()).collect();
        Machine {
            names: Names::default(),
            files: BTreeMap::new(),
            handles: BTreeMap::new(),
            inodes: volumes.len() as u64,
            volumes,
            numbers: 0,
            answers: 0,
        }
    }

    /// Begins an action. Nothing happened after an error.
    pub(super) fn begin(&mut self, action: Action) -> Result<Ticket, DiskError> {
        match action {
            Action::Open { file, path, flags } => self.open(file, path, flags),
            Action::Close { file } => {
                self.handles.remove(&file).ok_or(DiskError::StaleFile)?;
                Ok(Ticket::Nothing)
            }
            Action::Write { file, at, bytes } => self.change(file, Change::Write { at, bytes }),
            Action::Grow { file, len } => self.change(file, Change::Grow(len)),
            Action::SetLen { file, len } => self.change(file, Change::SetLen(len)),
            Action::Sync { file } => {
                let handle = self.handle(file)?;
                if handle.flags.mode == OpenMode::Directory {
                    return Err(DiskError::WrongMode);
                }
                Ok(Ticket::Sync { inode: handle.inode, upto: self.answers })
            }
            Action::SyncDir { dir } => Ok(Ticket::SyncDir { dir: self.dir(&dir)?, upto: self.answers }),
            Action::MakeDir { path } => {
                let place = self.free_place(&path)?;
                let node = Node::Dir(self.new_inode());
                Ok(self.rename(NameChange::Put { place, node }))
            }
            Action::RemoveDir { path } => self.remove_dir(&path),
            Action::Rename { from, to } => self.rename_path(&from, &to),
            Action::Unlink { path } => {
                let place = self.place(&path)?;
                match self.names.get(&place).ok_or(DiskError::Missing)? {
                    node @ Node::File(_) => Ok(self.rename(NameChange::Drop { place, node })),
                    Node::Dir(_) => Err(DiskError::Io { errno: libc::EISDIR }),
                }
            }
        }
    }

    /// The action was answered as done.
    pub(super) fn finish(&mut self, ticket: Ticket) {
        self.answers += 1;
        let stored = State::Stored { nth: self.answers };
        match ticket {
            Ticket::Nothing => {}
            Ticket::Data { inode, number, dsync } => {
                let state = if dsync { State::Durable } else { stored };
                self.file_mut(inode, |file| file.set_state(number, state));
            }
            Ticket::Sync { inode, upto } => self.file_mut(inode, |file| file.synced(upto, State::Durable)),
            Ticket::Names { number } => self.names.set_state(number, stored),
            Ticket::SyncDir { dir, upto } => {
                self.names.synced(dir, upto);
                self.forget_unused();
            }
        }
    }

    /// The action was answered with an error after it had begun: what it did is in doubt for ever.
    pub(super) fn fail(&mut self, ticket: Ticket) {
        self.answers += 1;
        match ticket {
            Ticket::Nothing => {}
            Ticket::Data { inode, number, .. } => {
                self.file_mut(inode, |file| file.set_state(number, State::Doubtful));
            }
            Ticket::Sync { inode, upto } => self.file_mut(inode, |file| file.synced(upto, State::Doubtful)),
            Ticket::Names { number } => self.names.set_state(number, State::Doubtful),
            Ticket::SyncDir { dir, upto } => self.names.sync_failed(dir, upto),
        }
    }

    fn file_mut(&mut self, inode: Inode, change: impl FnOnce(&mut FileData)) {
        if let Some((_, file)) = self.files.get_mut(&inode) {
            change(file);
        }
    }

    fn open(&mut self, file: FileId, path: DiskPath, flags: OpenFlags) -> Result<Ticket, DiskError> {
        let (inode, ticket) = if flags.mode == OpenMode::Directory {
            (self.dir(&path)?, Ticket::Nothing)
        } else {
            let place = self.place(&path)?;
            match (self.names.get(&place), flags.mode) {
                (Some(_), OpenMode::CreateNew) => return Err(DiskError::Exists),
                (Some(Node::Dir(_)), _) => return Err(DiskError::Io { errno: libc::EISDIR }),
                (Some(Node::File(inode)), _) => (inode, Ticket::Nothing),
                (None, OpenMode::Create | OpenMode::CreateNew) => {
                    let inode = self.new_inode();
                    self.files.insert(inode, (path.volume(), FileData::default()));
                    let node = Node::File(inode);
                    (inode, self.rename(NameChange::Put { place, node }))
                }
                (None, _) => return Err(DiskError::Missing),
            }
        };
        let before = self.handles.insert(file, Handle { inode, path, flags });
        assert!(before.is_none(), "a file id is given once");
        Ok(ticket)
    }

    fn change(&mut self, file: FileId, change: Change) -> Result<Ticket, DiskError> {
        let Handle { inode, flags, .. } = *self.handle(file)?;
        if matches!(flags.mode, OpenMode::Read | OpenMode::Directory) {
            return Err(DiskError::WrongMode);
        }
        let Some((volume, data)) = self.files.get(&inode) else { return Err(DiskError::StaleFile) };
        let more = data.space_after(&change).saturating_sub(data.space_bytes());
        if more > 0 && more > self.space(*volume)?.free_bytes {
            return Err(DiskError::NoSpace);
        }
        let number = self.next_number();
        let dsync = flags.dsync && matches!(change, Change::Write { .. });
        self.file_mut(inode, |data| data.begin(number, change));
        Ok(Ticket::Data { inode, number, dsync })
    }

    fn rename(&mut self, change: NameChange) -> Ticket {
        let number = self.next_number();
        self.names.begin(number, change);
        Ticket::Names { number }
    }

    fn remove_dir(&mut self, path: &DiskPath) -> Result<Ticket, DiskError> {
        let place = self.place(path)?;
        match self.names.get(&place).ok_or(DiskError::Missing)? {
            Node::File(_) => Err(DiskError::Missing),
            Node::Dir(dir) if self.names.list(dir).next().is_some() => Err(DiskError::NotEmpty),
            node @ Node::Dir(_) => Ok(self.rename(NameChange::Drop { place, node })),
        }
    }

    fn rename_path(&mut self, from: &DiskPath, to: &DiskPath) -> Result<Ticket, DiskError> {
        if from.volume() != to.volume() {
            return Err(DiskError::Io { errno: libc::EXDEV });
        }
        if to.as_str().strip_prefix(from.as_str()).is_some_and(|below| below.starts_with('/')) {
            return Err(DiskError::Io { errno: libc::EINVAL });
        }
        let (from, to) = (self.place(from)?, self.place(to)?);
        let node = self.names.get(&from).ok_or(DiskError::Missing)?;
        match (node, self.names.get(&to)) {
            (_, Some(other)) if other == node => Ok(Ticket::Nothing),
            (Node::File(_), Some(Node::Dir(_))) => Err(DiskError::Io { errno: libc::EISDIR }),
            (Node::Dir(_), Some(Node::File(_))) => Err(DiskError::Io { errno: libc::ENOTDIR }),
            (Node::Dir(_), Some(Node::Dir(dir))) if self.names.list(dir).next().is_some() => {
                Err(DiskError::NotEmpty)
            }
            _ => Ok(self.rename(NameChange::Move { from, to, node })),
        }
    }

    fn new_inode(&mut self) -> Inode {
        self.inodes += 1;
        Inode(self.inodes - 1)
    }

    fn next_number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    fn dir(&self, path: &DiskPath) -> Result<Inode, DiskError> {
        let (mut at, _) =
            self.volumes.get(usize::from(path.volume().0)).copied().ok_or(DiskError::NoVolume)?;
        for part in path.as_str().split('/').filter(|part| !part.is_empty()) {
            match self.names.get(&(at, Box::from(part))) {
                Some(Node::Dir(inner)) => at = inner,
                _ => return Err(DiskError::Missing),
            }
        }
        Ok(at)
    }

    fn place(&self, path: &DiskPath) -> Result<Place, DiskError> {
        if path.is_root() {
            return Err(DiskError::Io { errno: libc::EISDIR });
        }
        Ok((self.dir(&path.parent())?, Box::from(path.name())))
    }

    fn free_place(&self, path: &DiskPath) -> Result<Place, DiskError> {
        if path.is_root() {
            return Err(DiskError::Exists);
        }
        let place = self.place(path)?;
        if self.names.get(&place).is_some() { Err(DiskError::Exists) } else { Ok(place) }
    }

    fn handle(&self, file: FileId) -> Result<&Handle, DiskError> {
        self.handles.get(&file).ok_or(DiskError::StaleFile)
    }

    /// What `file` is open on, and the path it was opened by.
    pub(super) fn opened(&self, file: FileId) -> Option<(Inode, &DiskPath)> {
        self.handles.get(&file).map(|handle| (handle.inode, &handle.path))
    }

    pub(super) fn len(&self, file: FileId) -> Result<u64, DiskError> {
        let handle = self.handle(file)?;
        Ok(self.files.get(&handle.inode).map_or(0, |(_, data)| data.visible().len()))
    }

    pub(super) fn read(&self, file: FileId, at: u64, max: usize) -> Result<Vec<u8>, DiskError> {
        let handle = self.handle(file)?;
        let (_, data) = self.files.get(&handle.inode).ok_or(DiskError::WrongMode)?;
        Ok(data.visible().read(at, max))
    }

    pub(super) fn read_path(&self, path: &DiskPath, at: u64, max: usize) -> Result<Vec<u8>, DiskError> {
        Ok(self.data(path)?.visible().read(at, max))
    }

    pub(super) fn len_path(&self, path: &DiskPath) -> Result<u64, DiskError> {
        Ok(self.data(path)?.visible().len())
    }

    fn data(&self, path: &DiskPath) -> Result<&FileData, DiskError> {
        match self.names.get(&self.place(path)?) {
            Some(Node::File(inode)) => self.files.get(&inode).map(|(_, data)| data).ok_or(DiskError::Missing),
            _ => Err(DiskError::Missing),
        }
    }

    /// Changes bytes at rest, durable and visible alike.
    pub(super) fn damage(&mut self, path: &DiskPath, at: u64, bytes: &[u8]) -> Result<(), DiskError> {
        let Some(Node::File(inode)) = self.names.get(&self.place(path)?) else {
            return Err(DiskError::Missing);
        };
        self.file_mut(inode, |data| data.damage(at, bytes));
        Ok(())
    }

    pub(super) fn list(&self, dir: &DiskPath) -> Result<Vec<Entry>, DiskError> {
        let entry = |(name, node): (&str, Node)| Entry {
            name: name.to_owned(),
            kind: if matches!(node, Node::Dir(_)) { EntryKind::Directory } else { EntryKind::File },
        };
        Ok(self.names.list(self.dir(dir)?).map(entry).collect())
    }

    pub(super) fn space(&self, volume: VolumeId) -> Result<Space, DiskError> {
        let (_, total_bytes) = *self.volumes.get(usize::from(volume.0)).ok_or(DiskError::NoVolume)?;
        let named = self.names.visible_nodes().filter_map(|node| match node {
            Node::File(inode) => Some(inode),
            Node::Dir(_) => None,
        });
        let mut held: Vec<Inode> = named.chain(self.handles.values().map(|handle| handle.inode)).collect();
        held.sort_unstable();
        held.dedup();
        let used = held.iter().filter_map(|inode| self.files.get(inode));
        let used: u64 = used.filter(|(at, _)| *at == volume).map(|(_, data)| data.space_bytes()).sum();
        Ok(Space { free_bytes: total_bytes.saturating_sub(used), total_bytes })
    }

    pub(super) fn set_volume_bytes(&mut self, volume: VolumeId, bytes: u64) {
        if let Some(entry) = self.volumes.get_mut(usize::from(volume.0)) {
            entry.1 = bytes;
        }
    }

    pub(super) fn volumes(&self) -> impl Iterator<Item = VolumeId> {
        (0..self.volumes.len()).map(|index| VolumeId(u16::try_from(index).unwrap_or(u16::MAX)))
    }

    /// Whether a power loss now could take anything away.
    pub(super) fn is_durable(&self) -> bool {
        self.names.is_durable() && self.files.values().all(|(_, data)| data.is_durable())
    }

    /// Closes every file but `kept`.
    pub(super) fn close_all_but(&mut self, kept: impl Fn(FileId) -> bool) {
        self.handles.retain(|file, _| kept(*file));
    }

    /// The machine after a power loss: what was not durable is there or not, as `rng` says.
    pub(super) fn after_power_loss(&self, rng: &mut SimRng) -> Machine {
        let names = self.names.after_power_loss(rng);
        // Every file draws, also one that will not be found, so that names do not shift the chance of data.
        let files: BTreeMap<_, _> = self
            .files
            .iter()
            .map(|(inode, (volume, data))| (*inode, (*volume, data.after_power_loss(rng))))
            .collect();
        self.restarted(names, files)
    }

    /// The machine with everything visible durable.
    pub(super) fn at_rest(&self) -> Machine {
        let files =
            self.files.iter().map(|(inode, (volume, data))| (*inode, (*volume, data.at_rest()))).collect();
        self.restarted(self.names.at_rest(), files)
    }

    fn restarted(&self, mut names: Names, files: BTreeMap<Inode, (VolumeId, FileData)>) -> Machine {
        let roots: Vec<Inode> = self.volumes.iter().map(|(root, _)| *root).collect();
        names.prune(&roots);
        let mut machine = Machine {
            names,
            files,
            handles: BTreeMap::new(),
            volumes: self.volumes.clone(),
            inodes: self.inodes,
            numbers: self.numbers,
            answers: self.answers,
        };
        machine.forget_unused();
        machine
    }

    /// Forgets files that nothing can bring back.
    fn forget_unused(&mut self) {
        let used = self.names.in_use();
        let open = |inode: &Inode| self.handles.values().any(|handle| handle.inode == *inode);
        self.files.retain(|inode, _| used.contains(&Node::File(*inode)) || open(inode));
    }
}
