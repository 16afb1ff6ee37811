//! Rows in an embedded sled tree under one folder, with an image of the durable rows for reading.
//! Owns: the folder. Invariants: what a reader sees is on the disk; a failed write ends writing until a restart; a
//! folder of a newer format is refused untouched.
//!
//! sled's own `flush` asks the kernel to write but not the device to keep: after it the data file is synced through a
//! second descriptor (and the files of values too large for it one by one). Its timed background flush is off, since
//! every commit flushes.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use super::memory::Image;
use super::{Batch, CommitError, Key, Row, Store, StoreError, Want};

/// Format of the rows this program writes; a greater one is refused.
const FORMAT: u32 = 1;
/// Keys of our own bookkeeping; no row starts with a zero byte.
const FORMAT_KEY: &[u8] = b"\0format";
const COMMIT_KEY: &[u8] = b"\0commit";
/// First byte of a stored value: what follows is the version (8 bytes, big endian) and the value.
const ROW_TAG: u8 = 1;
/// Pages sled may keep; reads are served from the image, so only writing needs them.
const PAGE_CACHE_BYTES: u64 = 16 << 20;

/// A durable store.
pub struct SledStore {
    disk: Mutex<Disk>,
    image: RwLock<Image>,
}

struct Disk {
    db: ::sled::Db,
    data: File,
    blobs: PathBuf,
    poisoned: bool,
}

impl SledStore {
    /// Opens the folder, or makes it. Fails when another process has it open, when it is damaged, and when its format
    /// is newer than this program knows.
    pub fn open(folder: &Path) -> Result<SledStore, StoreError> {
        fs::create_dir_all(folder).map_err(|e| StoreError::Open(e.to_string()))?;
        restrict(folder).map_err(|e| StoreError::Open(e.to_string()))?;
        let db = ::sled::Config::new()
            .path(folder)
            .cache_capacity(PAGE_CACHE_BYTES)
            .flush_every_ms(None)
            .open()
            .map_err(|e| match e {
                ::sled::Error::Corruption { .. } => StoreError::Damaged(e.to_string()),
                other => StoreError::Open(other.to_string()),
            })?;
        let data = File::open(folder.join("db")).map_err(|e| StoreError::Open(e.to_string()))?;
        let mut disk = Disk { db, data, blobs: folder.join("blobs"), poisoned: false };
        let image = disk.load()?;
        if image.is_none() {
            disk.begin()?;
        }
        sync_folder(folder).map_err(|e| StoreError::Io(e.to_string()))?;
        let image = RwLock::new(image.unwrap_or_default());
        Ok(SledStore { disk: Mutex::new(disk), image })
    }
}

impl Store for SledStore {
    fn read(&self, wants: &[Want]) -> Result<Vec<Vec<(Key, Row)>>, StoreError> {
        Ok(self.image.read().unwrap_or_else(PoisonError::into_inner).read(wants))
    }

    fn commit(&self, batch: &Batch) -> Result<(), CommitError> {
        // The disk's lock is held from the check to the application, so commits are one after the other.
        let mut disk = self.disk.lock().unwrap_or_else(PoisonError::into_inner);
        let version = {
            let image = self.image.read().unwrap_or_else(PoisonError::into_inner);
            if !image.holds(batch) {
                return Err(CommitError::Conflict);
            }
            image.version + 1
        };
        disk.write(batch, version)?;
        self.image.write().unwrap_or_else(PoisonError::into_inner).apply(batch);
        Ok(())
    }
}

impl Disk {
    /// Every row, or None for a folder that was just made.
    fn load(&self) -> Result<Option<Image>, StoreError> {
        let get = |key| self.db.get(key).map_err(|e| StoreError::Damaged(e.to_string()));
        let Some(format) = get(FORMAT_KEY)? else {
            return match self.db.is_empty() {
                true => Ok(None),
                false => Err(StoreError::Damaged("it holds rows and no format".to_owned())),
            };
        };
        let found = u32::from_be_bytes(fixed(&format, "format")?);
        if found > FORMAT {
            return Err(StoreError::NewerFormat { found, known: FORMAT });
        }
        let mut image = Image::default();
        let commit = get(COMMIT_KEY)?
            .ok_or_else(|| StoreError::Damaged("it holds a format and no commit number".to_owned()))?;
        image.version = u64::from_be_bytes(fixed(&commit, "commit number")?);
        for entry in self.db.range::<&[u8], _>(&[1_u8][..]..) {
            let (key, stored) = entry.map_err(|e| StoreError::Damaged(e.to_string()))?;
            let row = decode_row(&stored)?;
            if row.version > image.version {
                return Err(StoreError::Damaged("a row is newer than the newest commit".to_owned()));
            }
            image.restore(key.to_vec(), row);
        }
        Ok(Some(image))
    }

    fn begin(&mut self) -> Result<(), StoreError> {
        let mut first = ::sled::Batch::default();
        first.insert(FORMAT_KEY, &FORMAT.to_be_bytes());
        first.insert(COMMIT_KEY, &0_u64.to_be_bytes());
        self.apply(first)
    }

    fn write(&mut self, batch: &Batch, version: u64) -> Result<(), StoreError> {
        let mut writes = ::sled::Batch::default();
        writes.insert(COMMIT_KEY, &version.to_be_bytes());
        for (key, value) in &batch.writes {
            assert!(key.first().is_some_and(|b| *b != 0), "a row's key names its family");
            match value {
                Some(value) => writes.insert(key.as_slice(), encode_row(version, value)),
                None => writes.remove(key.as_slice()),
            }
        }
        self.apply(writes)
    }

    /// Applies and makes durable. After a failure nothing is written any more: what is on the disk is not known.
    fn apply(&mut self, writes: ::sled::Batch) -> Result<(), StoreError> {
        if self.poisoned {
            return Err(StoreError::Poisoned);
        }
        self.poisoned = true;
        self.db.apply_batch(writes).map_err(|e| StoreError::Io(e.to_string()))?;
        self.db.flush().map_err(|e| StoreError::Io(e.to_string()))?;
        self.data.sync_data().map_err(|e| StoreError::Io(e.to_string()))?;
        sync_files(&self.blobs).map_err(|e| StoreError::Io(e.to_string()))?;
        self.poisoned = false;
        Ok(())
    }
}

fn encode_row(version: u64, value: &[u8]) -> Vec<u8> {
    let mut stored = Vec::with_capacity(9 + value.len());
    stored.push(ROW_TAG);
    stored.extend_from_slice(&version.to_be_bytes());
    stored.extend_from_slice(value);
    stored
}

fn decode_row(stored: &[u8]) -> Result<Row, StoreError> {
    let (head, value) = stored
        .split_first_chunk::<9>()
        .filter(|(head, _)| head[0] == ROW_TAG)
        .ok_or_else(|| StoreError::Damaged("a row has no known form".to_owned()))?;
    let [_, version @ ..] = *head;
    Ok(Row { version: u64::from_be_bytes(version), value: Arc::from(value) })
}

fn fixed<const N: usize>(bytes: &[u8], what: &str) -> Result<[u8; N], StoreError> {
    bytes.try_into().map_err(|_| StoreError::Damaged(format!("its {what} has the wrong size")))
}

/// Syncs every file of a folder that usually is empty or absent.
fn sync_files(folder: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(e),
    };
    let mut any = false;
    for entry in entries {
        match File::open(entry?.path()) {
            Ok(file) => file.sync_data()?,
            // sled removes a value's file once nothing refers to it.
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            Err(e) => return Err(e),
        }
        any = true;
    }
    if any {
        File::open(folder)?.sync_all()?;
    }
    Ok(())
}

/// Makes the names of the store's files, and of the folder itself, durable.
fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()?;
    match folder.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => File::open(parent)?.sync_all(),
        _ => File::open(".")?.sync_all(),
    }
}

/// The folder holds signing keys: nobody but its owner may enter.
fn restrict(folder: &Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(folder, fs::Permissions::from_mode(0o700))
}
