//! A directory on the machine's disks, and how files below it are opened for direct I/O. Scope: one volume on one core.
//! Owns: the probe file, which shows that the volume can be written and does direct I/O.
//! Invariants: a file is opened once by name, without following links, and from then on by its descriptor, so that
//! renaming it meanwhile does no harm.
//! Not here: operations on open files.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::{DiskError, OpenFlags, OpenMode};

/// Hidden, so that no [`super::DiskPath`] is called so.
const PROBE: &str = ".felix-probe";
const PROBE_BYTES: usize = super::BLOCK_BYTES;

#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: io::Error },
    /// See [`DiskError::DirectRefused`] and the others.
    #[error("{path}: {source}")]
    Unusable { path: PathBuf, source: DiskError },
    #[error("more volumes than there are numbers")]
    TooMany,
}

pub(super) struct Volume {
    root: PathBuf,
}

impl Volume {
    /// Blocks.
    pub(super) fn open(root: &Path) -> Result<Volume, VolumeError> {
        let failed = |source| VolumeError::Io { path: root.to_owned(), source };
        let unusable = |source| VolumeError::Unusable { path: root.to_owned(), source };
        let real = fs::canonicalize(root).map_err(failed)?;
        let probe = write_probe(&real).map_err(failed)?;
        open_direct(&probe, OpenFlags::plain(OpenMode::Write)).map_err(unusable)?;
        Ok(Volume { root: real })
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }
}

/// Makes sure that the probe file is there and not empty. Cores of one process may do so at the same time.
fn write_probe(root: &Path) -> io::Result<File> {
    let path = root.join(PROBE);
    let mut file = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .custom_flags(libc::O_NOFOLLOW)
        .mode(0o600)
        .open(path)?;
    if file.metadata()?.len() < PROBE_BYTES as u64 {
        file.write_all(&[1; PROBE_BYTES])?;
        file.sync_all()?;
    }
    Ok(file)
}

/// Opens a file by name. Blocks; links are not followed, and what is neither file nor directory is not opened.
pub(super) fn open_by_name(path: &Path, flags: OpenFlags) -> io::Result<(File, u64)> {
    let mut options = fs::OpenOptions::new();
    options.read(true).mode(0o600);
    let mut custom = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    match flags.mode {
        OpenMode::Read => {}
        OpenMode::Write => _ = options.write(true),
        OpenMode::Create => _ = options.write(true).create(true),
        OpenMode::CreateNew => _ = options.write(true).create_new(true),
        OpenMode::Directory => custom |= libc::O_DIRECTORY,
    }
    let file = options.custom_flags(custom).open(path)?;
    let metadata = file.metadata()?;
    if metadata.is_file() || (metadata.is_dir() && flags.mode == OpenMode::Directory) {
        return Ok((file, metadata.len()));
    }
    Err(io::Error::from_raw_os_error(if metadata.is_dir() { libc::EISDIR } else { libc::ENOENT }))
}

/// Opens what `file` is open on once more, for direct I/O. Blocks.
pub(super) fn open_direct(file: &File, flags: OpenFlags) -> Result<File, DiskError> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let mut options = fs::OpenOptions::new();
    options.read(true).write(flags.mode != OpenMode::Read);
    let dsync = if flags.dsync { libc::O_DSYNC } else { 0 };
    options.custom_flags(libc::O_DIRECT | dsync);
    options.open(path).map_err(|error| match DiskError::from_io(&error) {
        DiskError::Io { errno: libc::EINVAL } => DiskError::DirectRefused,
        error => error,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_without_direct_io_is_named() {
        let file = File::open("/proc/version").expect("procfs is there");
        let error = open_direct(&file, OpenFlags::plain(OpenMode::Read)).expect_err("procfs has none");
        assert_eq!(error, DiskError::DirectRefused);
    }

    #[test]
    fn a_volume_that_is_not_there_is_named() {
        let error = Volume::open(Path::new("/nowhere/at/all")).err().expect("no such directory");
        assert!(matches!(error, VolumeError::Io { .. }), "{error}");
    }
}
