//! The commands that measure beside others: their flags, and running them. Scope: read once at start.
//! Invariants: the scheduling weight is raised before anything is measured; the table goes to standard error and one line of
//! JSON to standard output.
//! Not here: what is compared (`felix_bench::peers`).

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Subcommand, ValueEnum};
use felix_bench::machine::raise_priority;
use felix_bench::peers::PeerError;
use felix_bench::peers::compare_echo::{self, EchoComparison, EchoMode};
use felix_bench::peers::compare_sinks::{self, SinksComparison};
use felix_bench::peers::echo::{Echo, EchoError, EchoOptions};
use felix_bench::peers::runs::{self, PeersComparison};
use felix_bench::peers::system::{UnknownSystem, select};
use felix_bench::shape::ShapeError;

use crate::EXCEEDED;
use crate::args::{ShapeArgs, seconds};

#[derive(Debug, Subcommand)]
pub enum PeerCommand {
    /// Answer each request at once and do nothing else.
    Echo(EchoArgs),
    /// Compare the time to a broker's answer with that of an echo, in alternating rounds.
    CompareEcho(CompareEchoArgs),
    /// Compare our sink with one on tokio and quinn, in alternating rounds (feature `peers`).
    CompareSinks(CompareSinksArgs),
    /// Compare the broker with NATS, Redis and the sink, in alternating rounds.
    Peers(PeersArgs),
}

/// Why a command came to nothing.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    #[error(transparent)]
    Shape(#[from] ShapeError),
    #[error(transparent)]
    Name(#[from] UnknownSystem),
    #[error(transparent)]
    Peer(#[from] PeerError),
    #[error(transparent)]
    Echo(#[from] EchoError),
    #[error(transparent)]
    Io(#[from] std::io::Error),
    #[error("the result cannot be written: {0}")]
    Json(#[from] serde_json::Error),
    #[error("{}", crate::NO_PEERS)]
    NoFeature,
}

impl PeerCommand {
    pub fn run(&self) -> Result<ExitCode, CommandError> {
        match self {
            PeerCommand::Echo(args) => args.run(),
            PeerCommand::CompareEcho(args) => args.run(),
            PeerCommand::CompareSinks(args) => args.run(),
            PeerCommand::Peers(args) => args.run(),
        }
    }
}

#[derive(Debug, Clone, clap::Args)]
pub struct EchoArgs {
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:0")]
    bind: SocketAddr,
    /// CPU to stay on.
    #[arg(long)]
    cpu: Option<usize>,
    /// Largest datagram that path discovery tries, bytes of UDP payload.
    #[arg(long, default_value_t = 8_900)]
    mtu: u16,
    /// How long to look for work before parking, microseconds.
    #[arg(long, default_value_t = 50)]
    spin_us: u64,
    /// Folder in which a block is written and synced before each answer.
    #[arg(long, value_name = "FOLDER")]
    commit_dir: Option<PathBuf>,
    /// File to write once serving; the certificate goes beside it.
    #[arg(long, value_name = "FILE")]
    ready_file: Option<PathBuf>,
}

impl EchoArgs {
    fn run(&self) -> Result<ExitCode, CommandError> {
        let echo = Echo::start(&EchoOptions {
            cpu: self.cpu,
            address: self.bind,
            mtu: self.mtu,
            spin: Duration::from_micros(self.spin_us),
            commit_dir: self.commit_dir.clone(),
        })?;
        crate::follow_parent();
        match &self.ready_file {
            Some(file) => {
                crate::write_ready(file, |folder| echo.describe(folder).map_err(CommandError::from))?
            }
            None => println!("{}", echo.address()),
        }
        echo.run()?;
        Ok(ExitCode::SUCCESS)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ModeArg {
    /// In memory, both servers spin before they park.
    Spinning,
    /// In memory, both park at once.
    Parked,
    /// Both write one synced block before they answer.
    OnCommit,
    All,
}

#[derive(Debug, Clone, clap::Args)]
pub struct CompareEchoArgs {
    /// What is compared.
    #[arg(long, value_enum, default_value_t = ModeArg::All)]
    mode: ModeArg,
    /// Runs of each, alternating.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Bytes of a request and of a record.
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(0..=1_048_576))]
    size: u32,
    /// Seconds before anything is counted.
    #[arg(long, default_value_t = 0.5, value_parser = seconds)]
    warmup: f64,
    /// Seconds of each run that are counted.
    #[arg(long, default_value_t = 2.0, value_parser = seconds)]
    seconds: f64,
    /// Folder for the servers' files, on a disk; what is made in it is removed.
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// Largest datagram that path discovery tries, bytes of UDP payload.
    #[arg(long, default_value_t = 3_872)]
    mtu: u16,
    /// CPU of the load.
    #[arg(long, default_value_t = 1)]
    cpu: usize,
    /// CPU of both servers.
    #[arg(long, default_value_t = 0)]
    server_cpu: usize,
}

impl CompareEchoArgs {
    fn run(&self) -> Result<ExitCode, CommandError> {
        let modes = match self.mode {
            ModeArg::All => EchoMode::ALL.to_vec(),
            ModeArg::Spinning => vec![EchoMode::Spinning],
            ModeArg::Parked => vec![EchoMode::Parked],
            ModeArg::OnCommit => vec![EchoMode::OnCommit],
        };
        raise_priority();
        let report = compare_echo::run(&EchoComparison {
            modes,
            rounds: self.rounds,
            record_bytes: self.size,
            warmup_s: self.warmup,
            seconds: self.seconds,
            dir: self.dir.clone(),
            mtu: self.mtu,
            server_cpu: self.server_cpu,
            client_cpu: self.cpu,
            program: std::env::current_exe()?,
        })?;
        eprint!("{report}");
        println!("{}", serde_json::to_string(&report)?);
        Ok(if report.is_clean() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

#[derive(Debug, Clone, clap::Args)]
pub struct CompareSinksArgs {
    #[command(flatten)]
    workload: ShapeArgs,
    /// Runs of each, alternating.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// CPU of the load.
    #[arg(long, default_value_t = 1)]
    cpu: usize,
    /// CPU of both sinks.
    #[arg(long, default_value_t = 0)]
    server_cpu: usize,
    /// Leave with status 4 when our sink costs more than this many times the other.
    #[arg(long, value_name = "RATIO")]
    max_ratio: Option<f64>,
}

impl CompareSinksArgs {
    fn run(&self) -> Result<ExitCode, CommandError> {
        if !cfg!(feature = "peers") {
            return Err(CommandError::NoFeature);
        }
        let shape = self.workload.shape()?;
        shape.check()?;
        raise_priority();
        let report = compare_sinks::run(&SinksComparison {
            shape,
            rounds: self.rounds,
            server_cpu: self.server_cpu,
            client_cpu: self.cpu,
            program: std::env::current_exe()?,
        })?;
        eprint!("{report}");
        let mut line = serde_json::to_value(&report)?;
        line["max_ratio"] = self.max_ratio.into();
        println!("{line}");
        if !report.is_clean() {
            return Ok(ExitCode::FAILURE);
        }
        let exceeded = self.max_ratio.is_some_and(|max| report.ratio > max);
        Ok(if exceeded { ExitCode::from(EXCEEDED) } else { ExitCode::SUCCESS })
    }
}

#[derive(Debug, Clone, clap::Args)]
pub struct PeersArgs {
    #[command(flatten)]
    workload: ShapeArgs,
    /// Names, or kinds such as nats and redis, of what the broker is compared with; then all of it must run. Without it,
    /// what is not on this machine is left out and said.
    #[arg(long, value_delimiter = ',', value_name = "NAME,...")]
    only: Vec<String>,
    /// Runs of each, alternating.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Folder for the servers' files, on a disk; what is made in it is removed.
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// CPU of the load.
    #[arg(long, default_value_t = 1)]
    cpu: usize,
    /// CPU of all servers.
    #[arg(long, default_value_t = 0)]
    server_cpu: usize,
}

impl PeersArgs {
    fn run(&self) -> Result<ExitCode, CommandError> {
        let comparison = PeersComparison {
            systems: select(&self.only)?,
            all_must_run: !self.only.is_empty(),
            shape: self.workload.shape()?,
            rounds: self.rounds,
            dir: self.dir.clone(),
            server_cpu: self.server_cpu,
            client_cpu: self.cpu,
            program: std::env::current_exe()?,
        };
        comparison.check()?;
        raise_priority();
        let report = runs::run(&comparison)?;
        eprint!("{report}");
        println!("{}", serde_json::to_string(&report)?);
        Ok(if report.is_whole() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}
