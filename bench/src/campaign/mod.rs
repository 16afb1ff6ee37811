//! A matrix of runs with everything that makes their figures worth keeping. Scope: one campaign per call.
//! Owns: the campaign file (`file`), what a cell may be (`cell`), the order of trials (`run`), one trial (`trial`), the
//! generators on other machines (`crew`), the result (`result`) and its folder (`folder`).
//! Invariants: trials of different cells alternate, so a machine that drifts drifts for all; each trial has a server and a
//! data directory of its own; a result is written with its preflight or not at all.
//! Not here: one load (`load`), pictures (`report`), comparing two runs (`judge`).

pub mod cell;
pub mod crew;
pub mod file;
pub mod folder;
pub mod result;
pub mod run;
mod server;
mod trial;

use std::path::PathBuf;

use crate::cluster::ClusterError;
use crate::load::LoadError;
use crate::preflight::PreflightError;
use crate::target::TargetError;

pub use cell::{Cell, CellError, Kind, System};
pub use crew::{Crew, CrewError};
pub use file::{Campaign, Distributed, FileError};
pub use folder::{FolderError, RunFolder};
pub use result::{CellResult, CountedAt, Ledger, RunResult, Trial};
pub use run::{Plan, run};

/// Why a campaign came to nothing.
#[derive(Debug, thiserror::Error)]
pub enum CampaignError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Preflight(#[from] PreflightError),
    #[error(transparent)]
    Folder(#[from] FolderError),
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    #[error(transparent)]
    Target(#[from] TargetError),
    #[error(transparent)]
    Crew(#[from] CrewError),
    #[error("cell {cell}, trial {trial}: {error}")]
    Load { cell: String, trial: u32, error: LoadError },
    #[error("{path}: {error}")]
    Io { path: PathBuf, error: std::io::Error },
    #[error("the load thread panicked")]
    LoadThread,
    #[error("cell {cell}, trial {trial}: the windows of the generators have no second in common")]
    NoCommonWindow { cell: String, trial: u32 },
}
