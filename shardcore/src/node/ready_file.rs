//! The ready file: where the broker can be reached, for scripts. Scope: per process, written once serving.
//! Invariants: the file is complete or absent, mode 0600, and gone again before an orderly end.
//! Not here: when the broker counts as serving (`node`).

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::Serialize;

/// What the file says.
#[derive(Debug, Serialize)]
pub struct Ready<'a> {
    /// Client address, `ip:port`.
    pub broker_addr: String,
    /// Base of `/metrics`, `/live` and `/ready`.
    pub metrics_url: String,
    pub node_id: &'a str,
    pub pid: u32,
}

/// A ready file that was written; `remove` takes it away.
#[derive(Debug)]
pub struct ReadyFile(PathBuf);

impl ReadyFile {
    /// Writes beside `path`, syncs and renames.
    ///
    /// # Errors
    /// Any failure of those steps; then nothing is left behind at `path`, or what was there before.
    pub fn write(path: &Path, ready: &Ready<'_>) -> io::Result<ReadyFile> {
        let mut text = serde_json::to_vec_pretty(ready)?;
        text.push(b'\n');
        write_private(path, &text)?;
        Ok(ReadyFile(path.to_owned()))
    }

    /// Takes the file away; one that is already gone is fine.
    pub fn remove(self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Puts `bytes` at `path` whole, readable by the owner only, through a file beside it.
///
/// # Errors
/// Any failure of writing, syncing or renaming.
pub fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}.tmp", std::process::id()));
    let beside = PathBuf::from(name);
    let written = (|| {
        let mut file =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&beside)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&beside, path)
    })();
    if written.is_err() {
        let _ = fs::remove_file(&beside);
    }
    written
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_file_is_whole_private_and_alone_and_goes_away() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ready.json");
        let ready = Ready {
            broker_addr: "127.0.0.1:5000".to_owned(),
            metrics_url: "http://127.0.0.1:8080".to_owned(),
            node_id: "broker-0",
            pid: 7,
        };
        let file = ReadyFile::write(&path, &ready).unwrap();
        let read: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        assert_eq!((read["broker_addr"].as_str(), read["pid"].as_u64()), (Some("127.0.0.1:5000"), Some(7)));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        file.remove();
        assert!(!path.exists());
    }

    #[test]
    fn a_folder_that_is_not_there_is_an_error() {
        assert!(write_private(Path::new("/nowhere/at/all"), b"x").is_err());
    }
}
