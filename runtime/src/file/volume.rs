//! A directory on the machine's disks, and how files below it are opened for direct I/O. Scope: one volume on one core.
//! Owns: the probe file, which keeps the executor of glommio 0.9.0 from choosing its polling ring.
//! Invariants: no write of ours ever goes through the polling ring; a file is opened once by name, without following
//! links, and from then on by its descriptor, so that renaming it meanwhile does no harm.
//! Not here: operations on open files.
//!
//! The first file that an executor opens on a device decides how it waits for that device: it is read through the
//! polling ring, and when that works all files are. On an empty file it always "works"; every later write then takes
//! milliseconds and all of the processor. So the first file opened is one that is not empty, and the choice is checked.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use glommio::GlommioError;
use glommio::io::DmaFile;

use super::{DiskError, OpenFlags, OpenMode};

/// Hidden, so that no [`super::DiskPath`] is called so.
const PROBE: &str = ".felix-probe";
const PROBE_BYTES: usize = 64 * 1024;

#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: io::Error },
    /// See [`DiskError::DirectRefused`], [`DiskError::Polled`] and the others.
    #[error("{path}: {source}")]
    Unusable { path: PathBuf, source: DiskError },
    #[error("more volumes than there are numbers")]
    TooMany,
}

/// An open file or directory; clones are the same.
#[derive(Clone)]
pub(super) enum Opened {
    File(Rc<DmaFile>),
    Directory(Arc<File>),
}

pub(super) struct Volume {
    root: Arc<Path>,
    /// Stays open, so that the executor remembers the device.
    probe: Opened,
}

impl Volume {
    pub(super) async fn open(root: &Path) -> Result<Volume, VolumeError> {
        let failed = |source| VolumeError::Io { path: root.to_owned(), source };
        let unusable = |source| VolumeError::Unusable { path: root.to_owned(), source };
        let real = fs::canonicalize(root).map_err(failed)?;
        let probe = glommio::executor().spawn_blocking(move || write_probe(&real).map(|probe| (real, probe)));
        let (real, probe) = probe.await.map_err(failed)?;
        let probe = open_direct(probe, OpenFlags::plain(OpenMode::Read)).await.map_err(unusable)?;
        // The only place where the executor shows its choice.
        if !format!("{probe:?}").contains("NonPollable") {
            return Err(unusable(DiskError::Polled));
        }
        Ok(Volume { root: Arc::from(real), probe: Opened::File(Rc::new(probe)) })
    }

    pub(super) fn root(&self) -> Arc<Path> {
        self.root.clone()
    }

    pub(super) fn into_probe(self) -> Opened {
        self.probe
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

/// Opens what `file` is open on once more, for direct I/O.
pub(super) async fn open_direct(file: File, flags: OpenFlags) -> Result<DmaFile, DiskError> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let mut options = glommio::io::OpenOptions::new();
    options.read(true).write(flags.mode != OpenMode::Read);
    if flags.dsync {
        options.custom_flags(libc::O_DSYNC);
    }
    options.dma_open(path).await.map_err(|error| match error_of(error) {
        DiskError::Io { errno: libc::EINVAL } => DiskError::DirectRefused,
        error => error,
    })
}

/// The name for what the executor's files say.
pub(super) fn error_of(error: GlommioError<()>) -> DiskError {
    match error {
        GlommioError::IoError(source) | GlommioError::EnhancedIoError { source, .. } => {
            DiskError::from_io(&source)
        }
        _ => DiskError::Io { errno: libc::EIO },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run<T>(work: impl Future<Output = T>) -> T {
        glommio::LocalExecutor::default().run(work)
    }

    #[test]
    fn a_file_system_without_direct_io_is_named() {
        let open = async {
            let file = File::open("/proc/version").expect("procfs is there");
            open_direct(file, OpenFlags::plain(OpenMode::Read)).await
        };
        assert_eq!(run(open).expect_err("procfs has none"), DiskError::DirectRefused);
    }

    #[test]
    fn a_volume_that_is_not_there_is_named() {
        let error = run(Volume::open(Path::new("/nowhere/at/all"))).err().expect("no such directory");
        assert!(matches!(error, VolumeError::Io { .. }), "{error}");
    }
}
