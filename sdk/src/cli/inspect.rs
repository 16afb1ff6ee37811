//! `felix inspect`: hands over to `felix-broker inspect`, which knows what is on disk. Scope: per command.
//! Invariants: arguments, streams and the exit status are those of the broker's program, `--help` included.
//! Not here: anything about logs.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

use clap::Args;

use super::dev::find_program;
use super::failure::{Failure, Kind, Outcome};

const PROGRAM: &str = "felix-broker";

#[derive(Clone, Debug, Args)]
#[command(disable_help_flag = true)]
pub struct InspectArgs {
    /// What to look at: `log <DIR> ...`; `--help` says more
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

impl InspectArgs {
    /// Returns only when the program could not be started.
    ///
    /// # Errors
    /// That, with status 2: 1 would say that damage was found.
    pub fn run(self) -> Outcome {
        let no_report = |message: String| Failure::new(Kind::Usage, message);
        let program = find_program(PROGRAM).map_err(|failure| no_report(failure.message))?;
        let error = Command::new(&program).arg("inspect").args(self.arguments).exec();
        Err(no_report(format!("{}: {error}", program.display())))
    }
}
