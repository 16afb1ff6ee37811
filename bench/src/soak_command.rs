//! The command that soaks a broker: its flags, and running it. Scope: read once at start.
//! Not here: the cycles and the rules (`felix_bench::soak`).

use std::path::PathBuf;
use std::process::ExitCode;

use felix_bench::soak::judge::{CYCLES_MIN, Cycle};
use felix_bench::soak::{self, SoakError, SoakPlan};

use crate::EXCEEDED;
use crate::args::seconds;

#[derive(Debug, Clone, clap::Args)]
pub struct SoakArgs {
    /// Cycles; the last two are compared with the first three.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(i64::from(CYCLES_MIN)..=100_000))]
    cycles: u32,
    /// Seconds of load in each cycle; a few of rest come on top.
    #[arg(long, default_value_t = 30.0, value_parser = seconds)]
    seconds: f64,
    /// Folder for the broker's files, under 1 GiB; what is made in it is removed [default: that of temporary files].
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// CPUs of the broker, such as 0,2-3.
    #[arg(long, value_name = "LIST", default_value = "0,1")]
    cores: String,
    /// Tell of times and rates and judge the other rules alone: for a machine that others use.
    #[arg(long)]
    no_times: bool,
    /// Print one line of JSON with everything that was seen.
    #[arg(long)]
    json: bool,
}

/// Why the command came to nothing.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    #[error(transparent)]
    Soak(Box<SoakError>),
    #[error("the result cannot be written: {0}")]
    Json(#[from] serde_json::Error),
}

impl From<SoakError> for CommandError {
    fn from(error: SoakError) -> CommandError {
        CommandError::Soak(Box::new(error))
    }
}

/// Status 4 when a rule is not kept.
pub fn run(args: &SoakArgs) -> Result<ExitCode, CommandError> {
    let plan = SoakPlan {
        cycles: args.cycles,
        judges_times: !args.no_times,
        seconds: args.seconds,
        dir: args.dir.clone().unwrap_or_else(std::env::temp_dir),
        cores: args.cores.clone(),
    };
    let report = soak::run(&plan, &mut |number, cycle| eprintln!("felix-bench: {}", line(number, cycle)))?;
    if args.json {
        let mut line = serde_json::to_value(&report)?;
        line["passed"] = report.passed().into();
        println!("{line}");
    } else {
        print!("{report}");
    }
    Ok(if report.passed() { ExitCode::SUCCESS } else { ExitCode::from(EXCEEDED) })
}

fn line(number: u32, cycle: &Cycle) -> String {
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let rest = cycle.rest_ms.map_or("NOT AT REST".to_owned(), |ms| format!("at rest after {ms} ms"));
    let descriptors: u64 = cycle.after.open.by_kind.values().sum::<u64>() + cycle.after.open.data_files;
    format!(
        "cycle {number}: peak {:.1} MiB, {:.1} MiB {rest}, {descriptors} descriptors, {} threads",
        mib(cycle.peak_bytes),
        mib(cycle.after.resident_bytes),
        cycle.after.threads
    )
}
