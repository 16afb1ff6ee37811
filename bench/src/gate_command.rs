//! The commands that measure and judge the table: their flags, and running them. Scope: read once at start.
//! Invariants: the scheduling weight is raised before anything is measured.
//! Not here: the rows and their judgement (`felix_bench::gate`, `felix_bench::drift`).

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::ValueEnum;
use felix_bench::drift::{self, DriftError, DriftPlan};
use felix_bench::gate::{self, GateError, GatePlan};
use felix_bench::machine::raise_priority;

use felix_bench::shape::ShapeError;

use crate::args::{ShapeArgs, seconds};

/// A whole run and a quick one: time, windows, what a log keeps.
const WHOLE: Lengths = Lengths { limit_s: 14 * 60, warmup_s: 0.4, duration_s: 2.0, kept_bytes: 512 << 20 };
const QUICK: Lengths = Lengths { limit_s: 170, warmup_s: 0.2, duration_s: 0.5, kept_bytes: 128 << 20 };

struct Lengths {
    limit_s: u64,
    warmup_s: f64,
    duration_s: f64,
    kept_bytes: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OutputArg {
    Text,
    Json,
}

#[derive(Debug, Clone, clap::Args)]
pub struct GateArgs {
    /// At most 3 minutes: shorter windows, and rows of many connections and the deepest ones are left out.
    #[arg(long)]
    quick: bool,
    /// Only this row; may be repeated.
    #[arg(long = "row", value_name = "NAME")]
    rows: Vec<String>,
    /// Seconds of each trial that are counted [default: 2, quick: 0.5].
    #[arg(long, value_parser = seconds)]
    seconds: Option<f64>,
    /// Folder on the disk; what is made in it, some GiB, is removed.
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// CPU of the load.
    #[arg(long, default_value_t = 1)]
    cpu: usize,
    /// CPU of all servers.
    #[arg(long, default_value_t = 0)]
    server_cpu: usize,
    #[arg(long, value_enum, default_value_t = OutputArg::Text)]
    output: OutputArg,
}

/// Why the command came to nothing.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    #[error(transparent)]
    Gate(#[from] GateError),
    #[error(transparent)]
    Drift(#[from] DriftError),
    #[error(transparent)]
    Shape(#[from] ShapeError),
    #[error("this program's own path: {0}")]
    Program(#[from] std::io::Error),
    #[error("the result cannot be written: {0}")]
    Json(#[from] serde_json::Error),
}

impl GateArgs {
    fn plan(&self, program: PathBuf) -> GatePlan {
        let lengths = if self.quick { &QUICK } else { &WHOLE };
        GatePlan {
            only: self.rows.clone(),
            quick: self.quick,
            limit: Duration::from_secs(lengths.limit_s),
            warmup_s: lengths.warmup_s,
            duration_s: self.seconds.unwrap_or(lengths.duration_s),
            kept_bytes: lengths.kept_bytes,
            dir: self.dir.clone(),
            server_cpu: self.server_cpu,
            client_cpu: self.cpu,
            program,
        }
    }
}

/// Status 1 when a must falls short or a load failed.
pub fn run(args: &GateArgs) -> Result<ExitCode, CommandError> {
    let plan = args.plan(std::env::current_exe()?);
    raise_priority();
    let report = gate::run(&plan)?;
    match args.output {
        OutputArg::Text => print!("{report}"),
        OutputArg::Json => {
            let mut line = serde_json::to_value(&report)?;
            line["passed"] = report.passed().into();
            println!("{line}");
        }
    }
    Ok(if report.passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

#[derive(Debug, Clone, clap::Args)]
pub struct DriftArgs {
    #[command(flatten)]
    workload: ShapeArgs,
    /// Windows; the last is compared with the third.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(i64::from(drift::WINDOWS_MIN)..=1_000))]
    windows: u32,
    /// Seconds of each window.
    #[arg(long, default_value_t = 60.0, value_parser = seconds)]
    seconds: f64,
    /// Folder for the broker's files, on a disk when the shape is durable; what is made in it is removed.
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// CPU of the load.
    #[arg(long, default_value_t = 1)]
    cpu: usize,
    /// CPU of the broker.
    #[arg(long, default_value_t = 0)]
    server_cpu: usize,
    #[arg(long, value_enum, default_value_t = OutputArg::Text)]
    output: OutputArg,
}

/// Status 1 when rate or memory drift, or the load was not clean.
pub fn run_drift(args: &DriftArgs) -> Result<ExitCode, CommandError> {
    let plan = DriftPlan {
        shape: args.workload.shape()?,
        windows: args.windows,
        seconds: args.seconds,
        dir: args.dir.clone(),
        server_cpu: args.server_cpu,
        client_cpu: args.cpu,
    };
    raise_priority();
    let report = drift::run(&plan)?;
    match args.output {
        OutputArg::Text => print!("{report}"),
        OutputArg::Json => println!("{}", serde_json::to_string(&report)?),
    }
    Ok(if report.drift.holds && report.clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
