//! The table of what the data path must reach, measured in one run and judged. Scope: one run of the table.
//! Owns: the rows (`rows`), what they are measured on (`arm`), the servers of the run (`servers`), the order of trials
//! (`run`), the judgement (`verdict`), how it is shown (`report`).
//! Invariants: a row is a ratio of two arms measured in the same rounds; every row of the table is in the result, with its
//! figure or with the reason why there is none; a run ends within its time.
//! Not here: one load (`load`), the drift over minutes (`drift`).

pub mod arm;
pub mod report;
pub mod rows;
pub mod run;
mod servers;
mod trial;
pub mod verdict;

use std::path::PathBuf;

use crate::cluster::ClusterError;
use crate::compare_disk::DiskCompareError;
use crate::load::LoadError;
use crate::peers::PeerError;
use crate::raw_disk::RawError;
use crate::target::TargetError;

pub use report::GateReport;
pub use run::{GatePlan, run};

/// Why a trial, or the whole run, came to nothing.
#[derive(Debug, thiserror::Error)]
pub enum GateError {
    #[error("{dir} lies on {kind}, which keeps its bytes in memory: name a folder on a disk with --dir")]
    InMemory { dir: PathBuf, kind: String },
    #[error("{dir}: {error}")]
    Folder { dir: PathBuf, error: std::io::Error },
    #[error("no row is called {name}; there are {}", .known.join(", "))]
    NoRow { name: String, known: Vec<&'static str> },
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    #[error(transparent)]
    Target(#[from] TargetError),
    #[error(transparent)]
    Disk(#[from] DiskCompareError),
    #[error("raw disk: {0}")]
    Raw(#[from] RawError),
    #[error(transparent)]
    Peer(#[from] PeerError),
    #[error("{what}: {error}")]
    Load { what: String, error: LoadError },
    #[error("the load thread panicked")]
    LoadThread,
    #[error("{0} has no CPU time to be read, so a half of it is not known")]
    NoCost(&'static str),
}

impl GateError {
    /// Something is not on this machine or not in this build, rather than broken.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        matches!(self, GateError::Peer(PeerError::NoProgram { .. } | PeerError::NoFeature { .. }))
    }
}
