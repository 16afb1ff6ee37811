//! The hidden command that `felix dev` starts its servers through: it ties its life to its parent's, then becomes the
//! server. A process can only ask for its own end at its parent's death, and the request outlives the exec.
//! Invariants: when `felix dev` is gone, however it ended, the kernel kills the server.

use std::ffi::OsString;
use std::os::unix::process::{CommandExt, parent_id};
use std::path::PathBuf;
use std::process::Command;

use clap::Args;
use rustix::process::{Signal, set_parent_process_death_signal};

use super::failure::{Failure, Outcome};

/// Name of the command.
pub const COMMAND: &str = "tied-exec";

#[derive(Clone, Debug, Args)]
pub struct TiedArgs {
    /// Process whose end is ours
    parent: u32,
    program: PathBuf,
    /// Arguments of the program, after `--`
    #[arg(last = true)]
    arguments: Vec<OsString>,
}

impl TiedArgs {
    /// Returns only when the program could not be started.
    ///
    /// # Errors
    /// That, or a parent that is gone already.
    pub fn run(self) -> Outcome {
        let shown = self.program.display();
        set_parent_process_death_signal(Some(Signal::KILL))
            .map_err(|error| Failure::other(format!("cannot follow the parent process: {error}")))?;
        if parent_id() != self.parent {
            return Err(Failure::other("the parent process is gone"));
        }
        let error = Command::new(&self.program).args(self.arguments).exec();
        Err(Failure::other(format!("{shown}: {error}")))
    }
}
