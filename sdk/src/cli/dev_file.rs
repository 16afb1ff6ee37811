//! What `felix dev` tells others about what it runs: its ready file, which is also the context it saves. Scope: a value.
//! Invariants: every path in it is absolute; the file is complete or absent, mode 0600.
//! Not here: when it is written (`dev`), how commands use it (`settings`).

use std::fs::{File, TryLockError};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::failure::{Failure, Outcome};
use super::private_file;

/// Folder of saved contexts.
pub const CONTEXT_DIR_ENV: &str = "FELIX_CONTEXT_DIR";
/// The context used when none is named: the one `felix dev` saves.
pub const DEFAULT_CONTEXT: &str = "dev";

/// Folder beside the saved context: one file for each `felix dev`, since the context is of the last one only.
const RUNNING: &str = "running";
/// File in the data folder that a `felix dev` holds locked.
pub const LOCK: &str = "lock";

/// Process ids of the two servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pids {
    pub ctrl: u32,
    pub broker: u32,
}

/// See the module. Members that are not known are ignored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DevFile {
    /// Client address, `ip:port`.
    pub broker_addr: String,
    pub controlplane_url: String,
    /// Base of the broker's `/metrics`, `/live` and `/ready`.
    pub metrics_url: String,
    /// What clients of the broker have to trust (PEM).
    pub ca_file: PathBuf,
    /// Token for brokers, rewritten before it expires.
    pub token_file: PathBuf,
    /// Token for the control plane, rewritten before it expires.
    pub controlplane_token_file: PathBuf,
    pub tenant: String,
    pub namespace: String,
    /// The stream that is there from the start.
    pub stream: String,
    /// Where development tokens are minted, and with what secret.
    pub bootstrap_url: String,
    pub bootstrap_token_file: PathBuf,
    pub data_dir: PathBuf,
    pub pids: Pids,
}

impl DevFile {
    /// # Errors
    /// `Usage` when the file cannot be read or is not such a document.
    pub fn read(path: &Path) -> Outcome<DevFile> {
        let text =
            std::fs::read(path).map_err(|error| Failure::usage(format!("{}: {error}", path.display())))?;
        serde_json::from_slice(&text)
            .map_err(|error| Failure::usage(format!("{} is no file of `felix dev`: {error}", path.display())))
    }

    /// Whether its `felix dev` runs, whatever its servers do: it holds the lock of its data folder.
    pub fn runs(&self) -> bool {
        let Ok(lock) = File::open(self.data_dir.join(LOCK)) else { return false };
        matches!(lock.try_lock_shared(), Err(TryLockError::WouldBlock))
    }

    /// # Errors
    /// Any failure of writing.
    pub fn write(&self, path: &Path) -> std::io::Result<()> {
        let mut text = serde_json::to_vec_pretty(self)?;
        text.push(b'\n');
        private_file::write(path, &text)
    }
}

/// Where the context of that name is saved; `None` when no folder for it is known. `variable` reads the environment.
pub fn context_path(name: &str, variable: &dyn Fn(&str) -> Option<String>) -> Option<PathBuf> {
    let set = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let folder = set(CONTEXT_DIR_ENV)
        .or_else(|| set("XDG_CONFIG_HOME").map(|folder| folder.join("felix")))
        .or_else(|| set("HOME").map(|home| home.join(".config/felix")))?;
    Some(folder.join(format!("{name}.json")))
}

/// Where the `felix dev` over that data folder tells what it runs, beside the `context` that the last one saves. Makes the
/// folder, and takes away what those left behind that were killed.
///
/// # Errors
/// The folder cannot be made.
pub fn running_path(context: &Path, data_dir: &Path) -> std::io::Result<PathBuf> {
    let folder = running_folder(context);
    private_file::make_folder(&folder)?;
    for (path, _) in files_in(&folder) {
        if DevFile::read(&path).is_ok_and(|file| !file.runs()) {
            // Somebody else may have taken it away.
            let _ = std::fs::remove_file(path);
        }
    }
    let mut hasher = DefaultHasher::new();
    data_dir.hash(&mut hasher);
    Ok(folder.join(format!("{:016x}.json", hasher.finish())))
}

/// What the context at `path` says, if its `felix dev` runs; else what the one that was started last says of those that
/// run. `None` when nothing is saved.
///
/// # Errors
/// As `DevFile::read`, of the context.
pub fn find_context(path: &Path) -> Outcome<Option<DevFile>> {
    let saved = path.exists().then(|| DevFile::read(path)).transpose()?;
    if saved.as_ref().is_some_and(DevFile::runs) {
        return Ok(saved);
    }
    let mut others = files_in(&running_folder(path));
    others.sort_by_key(|(_, written)| std::cmp::Reverse(*written));
    let mut others = others.into_iter().filter_map(|(path, _)| DevFile::read(&path).ok());
    Ok(others.find(DevFile::runs).or(saved))
}

fn running_folder(context: &Path) -> PathBuf {
    context.parent().unwrap_or(Path::new("")).join(RUNNING)
}

/// The files of a folder and when they were written; none when there is no such folder.
fn files_in(folder: &Path) -> Vec<(PathBuf, std::time::SystemTime)> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| Some((entry.path(), entry.metadata().ok()?.modified().ok()?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contexts_are_found_in_the_first_folder_that_is_named() {
        let all = |name: &str| match name {
            CONTEXT_DIR_ENV => Some("/c".to_owned()),
            "XDG_CONFIG_HOME" => Some("/x".to_owned()),
            "HOME" => Some("/h".to_owned()),
            _ => None,
        };
        let path = |variable: &dyn Fn(&str) -> Option<String>| {
            context_path("dev", variable).map(|path| path.display().to_string())
        };
        assert_eq!(path(&all).as_deref(), Some("/c/dev.json"));
        assert_eq!(
            path(&|name| all(name).filter(|_| name != CONTEXT_DIR_ENV)).as_deref(),
            Some("/x/felix/dev.json")
        );
        assert_eq!(
            path(&|name| all(name).filter(|_| name == "HOME")).as_deref(),
            Some("/h/.config/felix/dev.json")
        );
        assert_eq!(path(&|_| None), None);
    }
}
