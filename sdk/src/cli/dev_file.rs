//! What `felix dev` tells others about what it runs: its ready file, which is also the context it saves. Scope: a value.
//! Invariants: every path in it is absolute; the file is complete or absent, mode 0600.
//! Not here: when it is written (`dev`), how commands use it (`settings`).

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::failure::{Failure, Outcome};
use super::private_file;

/// Folder of saved contexts.
pub const CONTEXT_DIR_ENV: &str = "FELIX_CONTEXT_DIR";
/// The context used when none is named: the one `felix dev` saves.
pub const DEFAULT_CONTEXT: &str = "dev";

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
