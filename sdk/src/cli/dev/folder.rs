//! The data folder: what is where in it, and that only one `felix dev` uses it. Scope: per `felix dev`.
//! Invariants: the lock is held as long as the value lives, and falls with the process however it ends.

use std::fs::{File, TryLockError};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::cli::dev_file::LOCK;
use crate::cli::failure::{Failure, Outcome};
use crate::cli::private_file;

/// How often, and how far apart, a lock is tried that somebody holds.
const LOCK_TRIES: u32 = 10;
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// A locked data folder.
pub struct Folder {
    root: PathBuf,
    _lock: File,
}

impl Folder {
    /// Makes the folder where needed and locks it.
    ///
    /// # Errors
    /// `Other`: it cannot be made, or another `felix dev` uses it.
    pub fn open(root: &Path) -> Outcome<Folder> {
        let failed =
            |path: &Path, error: std::io::Error| Failure::other(format!("{}: {error}", path.display()));
        for folder in
            [root.to_owned(), root.join("run"), root.join("log"), root.join("tls"), root.join("tokens")]
        {
            private_file::make_folder(&folder).map_err(|error| failed(&folder, error))?;
        }
        let path = root.join(LOCK);
        let mut options = File::options();
        let mut lock = options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(|error| failed(&path, error))?;
        match lock_soon(&lock) {
            Ok(()) => {}
            Err(TryLockError::Error(error)) => return Err(failed(&path, error)),
            Err(TryLockError::WouldBlock) => {
                let mut holder = String::new();
                // Only for the message.
                let _ = lock.read_to_string(&mut holder);
                return Err(Failure::other(format!(
                    "another `felix dev` (process {}) uses {}: end it, or choose another folder with --data-dir",
                    holder.trim(),
                    root.display()
                )));
            }
        }
        let written = lock.set_len(0).and_then(|()| writeln!(lock, "{}", std::process::id()));
        written.map_err(|error| failed(&path, error))?;
        Ok(Folder { root: root.to_owned(), _lock: lock })
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The ready file of a server.
    pub fn ready_file(&self, server: &str) -> PathBuf {
        self.root.join("run").join(format!("{server}.json"))
    }

    /// The log of a server.
    pub fn log_file(&self, server: &str) -> PathBuf {
        self.root.join("log").join(format!("{server}.log"))
    }

    /// The data of a server.
    pub fn data_folder(&self, server: &str) -> PathBuf {
        self.root.join(server)
    }

    pub fn tls_file(&self, name: &str) -> PathBuf {
        self.root.join("tls").join(name)
    }

    pub fn token_file(&self, name: &str) -> PathBuf {
        self.root.join("tokens").join(name)
    }

    /// The secret of the bootstrap listener.
    pub fn bootstrap_secret(&self) -> PathBuf {
        self.root.join("run/bootstrap.token")
    }
}

/// Locks the file. Whoever only looks whether it is locked holds it for a moment.
fn lock_soon(file: &File) -> Result<(), TryLockError> {
    for _ in 0..LOCK_TRIES {
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => std::thread::sleep(LOCK_PAUSE),
            outcome => return outcome,
        }
    }
    file.try_lock()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_in_use_is_refused_with_the_process_that_uses_it() {
        let folder = tempfile::tempdir().unwrap();
        let held = Folder::open(folder.path()).unwrap();
        let message = Folder::open(folder.path()).map(|_| ()).unwrap_err().message;
        assert!(message.contains(&std::process::id().to_string()), "{message}");
        drop(held);
        assert!(Folder::open(folder.path()).is_ok());
    }
}
