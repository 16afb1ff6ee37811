//! What the broker is measured beside: a plain echo, a sink on another driver, other servers. Scope: one run.
//! Owns: those servers and the loads that are sent to them.
//! Invariants: servers run on one CPU and loads on another; rounds alternate; what an answer promises is said beside every
//! figure.
//! Not here: the broker's own load (`load`), our sink (`sink`), the raw disk (`raw_disk`).

pub mod compare_echo;
pub mod compare_sinks;
pub mod echo;
pub mod nats;
pub mod programs;
#[cfg(feature = "peers")]
pub mod quinn_sink;
pub mod redis;
pub(crate) mod report;
pub mod runs;
pub mod system;
pub mod table;

use std::path::Path;

use crate::cluster::ClusterError;
use crate::compare::CompareError;
use crate::load::LoadError;
use crate::machine::pin_thread;
use crate::shape::ShapeError;
use crate::target::TargetError;

/// Why nothing was compared.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    #[error(transparent)]
    Target(#[from] TargetError),
    #[error(transparent)]
    Compare(#[from] CompareError),
    #[error("{what}: {error}")]
    Load { what: String, error: LoadError },
    #[error("a folder in {dir}: {error}")]
    Folder { dir: std::path::PathBuf, error: std::io::Error },
    /// A write that survives a power cut has to reach a disk.
    #[error("{dir} is on {kind}, which keeps its bytes in memory; name a folder on a disk")]
    InMemory { dir: std::path::PathBuf, kind: String },
    #[error(transparent)]
    Shape(ShapeError),
    /// A server or a load that is not ours.
    #[error("no program `{name}` {looked}; {how}")]
    NoProgram { name: &'static str, looked: String, how: &'static str },
    #[error("{name}: this felix-bench was built without the feature `peers`")]
    NoFeature { name: &'static str },
    #[error("{name}: {why}")]
    Program { name: String, why: String },
    #[error("no free port on loopback: {0}")]
    Port(std::io::Error),
    #[error("the load thread panicked")]
    LoadThread,
}

/// A folder for the files of one server, in `dir`; it is removed with the value.
fn folder(dir: &Path) -> Result<tempfile::TempDir, PeerError> {
    tempfile::Builder::new()
        .prefix("felix-peers-")
        .tempdir_in(dir)
        .map_err(|error| PeerError::Folder { dir: dir.to_owned(), error })
}

/// Refuses a folder whose file system is in memory.
///
/// # Errors
/// That, or a folder that is not there.
fn on_a_disk(dir: &Path) -> Result<(), PeerError> {
    let system = crate::volume::FileSystem::of(dir)
        .map_err(|error| PeerError::Folder { dir: dir.to_owned(), error })?;
    if system.is_in_memory() {
        return Err(PeerError::InMemory { dir: dir.to_owned(), kind: system.kind });
    }
    Ok(())
}

/// Runs a load on a thread that stays on `cpu`.
pub(crate) fn on_cpu<T: Send + 'static>(
    cpu: usize,
    what: &str,
    work: impl FnOnce() -> Result<T, LoadError> + Send + 'static,
) -> Result<T, PeerError> {
    let thread = std::thread::spawn(move || {
        pin_thread(cpu);
        work()
    });
    let outcome = thread.join().map_err(|_| PeerError::LoadThread)?;
    outcome.map_err(|error| PeerError::Load { what: what.to_owned(), error })
}
