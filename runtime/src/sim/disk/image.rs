//! Disks at rest: what a machine finds when it starts. Scope: all volumes of one machine at one moment.
//! Invariants: everything in it is durable; clones share what they have in common.
//! Not here: making one from a run (`SimDisk`, `Trace`).

use std::hash::{BuildHasher, Hasher};

use foldhash::fast::FixedState;

use super::data::SECTOR_BYTES;
use super::machine::Machine;
use crate::file::{DiskError, DiskPath, EntryKind, VolumeId};

/// The disks of one machine, switched off.
#[derive(Debug, Clone)]
pub struct DiskImage {
    pub(super) machine: Machine,
}

impl DiskImage {
    /// Empty volumes of these sizes in bytes.
    pub fn empty(volume_bytes: &[u64]) -> DiskImage {
        DiskImage { machine: Machine::new(volume_bytes) }
    }

    /// Every file with its length in bytes, by volume and path.
    pub fn files(&self) -> Vec<(DiskPath, u64)> {
        let mut found = Vec::new();
        for volume in self.machine.volumes() {
            self.collect(&DiskPath::root(volume), &mut found);
        }
        found
    }

    fn collect(&self, dir: &DiskPath, found: &mut Vec<(DiskPath, u64)>) {
        for entry in self.machine.list(dir).unwrap_or_default() {
            let Ok(path) = dir.join(&entry.name) else { continue };
            match entry.kind {
                EntryKind::Directory => self.collect(&path, found),
                _ => found.push((path.clone(), self.machine.len_path(&path).unwrap_or_default())),
            }
        }
    }

    /// All bytes of a file.
    ///
    /// # Errors
    /// `Missing`, `NoVolume`.
    pub fn read(&self, path: &DiskPath) -> Result<Vec<u8>, DiskError> {
        self.machine.read_path(path, 0, usize::MAX)
    }

    /// Turns one bit over. A bit behind the end changes nothing.
    ///
    /// # Errors
    /// As [`DiskImage::read`].
    pub fn flip_bit(&mut self, path: &DiskPath, bit: u64) -> Result<(), DiskError> {
        let mut byte = self.machine.read_path(path, bit / 8, 1)?;
        if let Some(byte) = byte.first_mut() {
            *byte ^= 1 << (bit % 8);
        }
        self.machine.damage(path, bit / 8, &byte)
    }

    /// Makes the 512 bytes of sector `sector` zeros. A sector behind the end changes nothing.
    ///
    /// # Errors
    /// As [`DiskImage::read`].
    pub fn zero_sector(&mut self, path: &DiskPath, sector: u64) -> Result<(), DiskError> {
        self.machine.damage(path, sector.saturating_mul(SECTOR_BYTES as u64), &[0; SECTOR_BYTES])
    }

    /// Changes the size of a volume.
    pub fn set_volume_bytes(&mut self, volume: VolumeId, bytes: u64) {
        self.machine.set_volume_bytes(volume, bytes);
    }

    /// One number for everything that can be read: names, lengths, bytes. Equal images have equal ones in every run.
    pub fn fingerprint(&self) -> u64 {
        let mut hasher = FixedState::with_seed(0).build_hasher();
        for (path, len) in self.files() {
            hasher.write_u16(path.volume().0);
            hasher.write(path.as_str().as_bytes());
            hasher.write_u64(len);
            hasher.write(&self.read(&path).unwrap_or_default());
        }
        hasher.finish()
    }
}
