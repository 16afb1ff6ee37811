//! The command that measures single requests, and the flags that make a load one of them. Scope: read once at start.
//! Invariants: the scheduling weight is raised before anything is measured; the table goes to standard error and one line of
//! JSON to standard output.
//! Not here: what is compared (`felix_bench::requests`).

use std::path::PathBuf;
use std::process::ExitCode;

use clap::ValueEnum;
use felix_bench::machine::raise_priority;
use felix_bench::requests::compare::{self, RequestComparison};
use felix_bench::requests::restart::{self, RestartPlan};
use felix_bench::requests::{KEYS, RequestKind};
use felix_wire::client::Form;

use crate::EXCEEDED;
use crate::args::seconds;
use crate::peer_commands::CommandError;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum CacheArg {
    Get,
    Put,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum CounterArg {
    Add,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum FormArg {
    /// With raw values, as our own clients write.
    #[default]
    Binary,
    /// As published clients write.
    Json,
}

impl From<FormArg> for Form {
    fn from(form: FormArg) -> Form {
        match form {
            FormArg::Binary => Form::Binary,
            FormArg::Json => Form::Json,
        }
    }
}

/// Single requests instead of publishes.
#[derive(Debug, Clone, Default, clap::Args)]
#[group(multiple = false)]
pub struct RequestArgs {
    /// Read or write keys of a cache (--stream names it) instead of publishing; values have --size bytes.
    #[arg(long, value_enum, value_name = "WHAT")]
    cache: Option<CacheArg>,
    /// Add to counters beside a cache (--stream names it) instead of publishing.
    #[arg(long, value_enum, value_name = "WHAT")]
    counter: Option<CounterArg>,
    /// Poll a consumer group of a durable stream that holds records of --size bytes, and finish each of them, instead of
    /// publishing; needs a broker that runs.
    #[arg(long)]
    group: bool,
    /// Keys that are read or written in turn; those that are read are written first.
    #[arg(long, value_name = "COUNT", default_value_t = KEYS, value_parser = keys)]
    pub keys: usize,
}

/// From one key to a hundred million.
fn keys(text: &str) -> Result<usize, String> {
    let count: usize = text.parse().map_err(|_| "not a number".to_owned())?;
    let fits = (1..=100_000_000).contains(&count);
    if fits { Ok(count) } else { Err("1 to 100000000 keys".to_owned()) }
}

impl RequestArgs {
    /// What is asked, when it is not to publish.
    pub fn kind(&self) -> Option<RequestKind> {
        match (self.cache, self.counter, self.group) {
            (Some(CacheArg::Get), ..) => Some(RequestKind::CacheGet),
            (Some(CacheArg::Put), ..) => Some(RequestKind::CachePut),
            (_, Some(CounterArg::Add), _) => Some(RequestKind::CounterAdd),
            (.., true) => Some(RequestKind::GroupPage),
            _ => None,
        }
    }
}

#[derive(Debug, Clone, clap::Args)]
pub struct CompareRequestsArgs {
    /// Runs of each, alternating.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Bytes of a value and of a record.
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    size: u32,
    /// Unanswered requests where CPU is compared.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=256))]
    inflight: u32,
    /// How the broker is asked; the sink is always asked in the binary form.
    #[arg(long, value_enum, default_value_t = FormArg::Binary)]
    form: FormArg,
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
    /// CPU of the servers.
    #[arg(long, default_value_t = 0)]
    server_cpu: usize,
}

impl CompareRequestsArgs {
    pub fn run(&self) -> Result<ExitCode, CommandError> {
        raise_priority();
        let report = compare::run(&RequestComparison {
            rounds: self.rounds,
            value_bytes: self.size,
            inflight: self.inflight,
            warmup_s: self.warmup,
            seconds: self.seconds,
            dir: self.dir.clone(),
            mtu: self.mtu,
            server_cpu: self.server_cpu,
            client_cpu: self.cpu,
            form: self.form.into(),
            program: std::env::current_exe()?,
        })?;
        eprint!("{report}");
        let mut line = serde_json::to_value(&report)?;
        line["passed"] = report.passed().into();
        println!("{line}");
        if !report.clean {
            return Ok(ExitCode::FAILURE);
        }
        Ok(if report.passed() { ExitCode::SUCCESS } else { ExitCode::from(EXCEEDED) })
    }
}

#[derive(Debug, Clone, clap::Args)]
pub struct RestartArgs {
    /// Keys.
    #[arg(long, default_value_t = 10_000_000, value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    keys: u32,
    /// Bytes of a value.
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    size: u32,
    /// Folder for the broker's files, on a disk; what is made in it is removed.
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// Largest datagram that path discovery tries, bytes of UDP payload.
    #[arg(long, default_value_t = 3_872)]
    mtu: u16,
    /// CPU of the load.
    #[arg(long, default_value_t = 1)]
    cpu: usize,
    /// CPU of the broker.
    #[arg(long, default_value_t = 0)]
    server_cpu: usize,
    /// Print one line of JSON as well.
    #[arg(long)]
    json: bool,
}

impl RestartArgs {
    pub fn run(&self) -> Result<ExitCode, CommandError> {
        raise_priority();
        let report = restart::run(&RestartPlan {
            keys: self.keys,
            value_bytes: self.size,
            dir: self.dir.clone(),
            mtu: self.mtu,
            server_cpu: self.server_cpu,
            client_cpu: self.cpu,
        })?;
        if self.json {
            let mut line = serde_json::to_value(&report)?;
            line["passed"] = report.passed().into();
            line["bytes_per_key"] = report.bytes_per_key().into();
            eprint!("{report}");
            println!("{line}");
        } else {
            print!("{report}");
        }
        if !report.clean {
            return Ok(ExitCode::FAILURE);
        }
        Ok(if report.passed() { ExitCode::SUCCESS } else { ExitCode::from(EXCEEDED) })
    }
}
