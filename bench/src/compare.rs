//! Broker against sink, in one run. Scope: one comparison.
//! Owns: the order of rounds, the medians, the verdict.
//! Invariants: rounds alternate, so a machine that drifts drifts for both; one server runs at a time on the same CPU; the
//! same load on the same other CPU measures both.
//! Not here: one load run (`load`), starting processes (`cluster`).

use std::fmt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::cluster::{ClusterError, DevBroker, SinkProcess};
use crate::load::{self, LoadError, LoadPlan};
use crate::machine::{Machine, pin_thread};
use crate::measure::{LoadReport, median};
use crate::shape::Shape;
use crate::target::{Ready, Target, TargetError};

/// What is compared, and where.
#[derive(Debug, Clone)]
pub struct Comparison {
    pub shape: Shape,
    /// Runs of each.
    pub rounds: u32,
    pub server_cpu: usize,
    pub client_cpu: usize,
    /// A broker that runs already; it idles while the sink is measured. Absent: one is started for each round.
    pub dev: Option<PathBuf>,
    pub stream: String,
    /// This program, to start as a sink.
    pub program: PathBuf,
    /// `--framing` of the sink.
    pub framing: String,
}

/// Why nothing was compared.
#[derive(Debug, thiserror::Error)]
pub enum CompareError {
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    #[error(transparent)]
    Target(#[from] TargetError),
    #[error("{target}: {error}")]
    Load { target: &'static str, error: LoadError },
    #[error("a folder for the servers' files: {0}")]
    Folder(#[from] std::io::Error),
    #[error("the load thread panicked")]
    LoadThread,
    /// Without the server's CPU time there is nothing to compare.
    #[error("{0}: nothing was published, or the CPU time of its process cannot be read")]
    NoCost(&'static str),
}

/// Costs of one server over all rounds, CPU seconds per GB of payload.
#[derive(Debug, Clone, Serialize)]
pub struct Costs {
    pub rounds: Vec<f64>,
    pub median: f64,
    pub median_mb_per_s: f64,
    /// The least busy round of the server's core, percent.
    pub core_busy_percent_min: f64,
    pub clean: bool,
}

/// The outcome.
#[derive(Debug, Clone, Serialize)]
pub struct CompareReport {
    pub kind: &'static str,
    pub shape: Shape,
    pub load: String,
    pub settings: Settings,
    pub machine: Machine,
    pub sink: Costs,
    pub broker: Costs,
    /// Median of the broker over median of the sink.
    pub ratio: f64,
}

/// How the servers were set.
#[derive(Debug, Clone, Serialize)]
pub struct Settings {
    pub mtu: u16,
    pub spin_us: u32,
    pub server_cpu: usize,
    pub client_cpu: usize,
    pub sink_framing: String,
}

/// Compares.
///
/// # Errors
/// A server could not be started or a load could not be run. Everything started is ended.
pub fn run(comparison: &Comparison) -> Result<CompareReport, CompareError> {
    let (mut sinks, mut brokers) = (Vec::new(), Vec::new());
    for round in 1..=comparison.rounds {
        let sink = sink_round(comparison)?;
        eprint!("round {round}: {sink}");
        sinks.push(sink);
        let broker = broker_round(comparison)?;
        eprint!("round {round}: {broker}");
        brokers.push(broker);
    }
    let sink = costs("sink", &sinks)?;
    let broker = costs("broker", &brokers)?;
    let shape = comparison.shape.clone();
    Ok(CompareReport {
        kind: "compare-sink",
        load: shape.rate.map_or("closed loop".to_owned(), |rate| format!("{rate} batches/s")),
        settings: Settings {
            mtu: shape.mtu,
            spin_us: 0,
            server_cpu: comparison.server_cpu,
            client_cpu: comparison.client_cpu,
            sink_framing: comparison.framing.clone(),
        },
        shape,
        machine: Machine::look(),
        ratio: broker.median / sink.median,
        sink,
        broker,
    })
}

fn sink_round(comparison: &Comparison) -> Result<LoadReport, CompareError> {
    let folder = tempfile::tempdir()?;
    let args = [
        ("--cpu", comparison.server_cpu.to_string()),
        ("--mtu", comparison.shape.mtu.to_string()),
        ("--spin-us", "0".to_owned()),
        ("--framing", comparison.framing.clone()),
    ];
    let args: Vec<String> = args.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]).collect();
    let sink = SinkProcess::start(&comparison.program, folder.path(), &args)?;
    measure(comparison, "sink", sink.ready())
}

fn broker_round(comparison: &Comparison) -> Result<LoadReport, CompareError> {
    if let Some(file) = &comparison.dev {
        return measure(comparison, "broker", &Ready::read(file)?);
    }
    let folder = tempfile::tempdir()?;
    let broker = start_broker(folder.path(), comparison.server_cpu, &comparison.shape)?;
    create_stream(&broker, &comparison.stream, &comparison.shape)?;
    measure(comparison, "broker", broker.ready())
}

/// A broker under `felix dev` on one CPU with the settings of a measurement: the shape's MTU bound, no spinning.
///
/// # Errors
/// As `DevBroker::start`.
pub fn start_broker(folder: &Path, cpu: usize, shape: &Shape) -> Result<DevBroker, ClusterError> {
    let cores = cpu.to_string();
    let mtu = format!("mtu_upper_bound={}", shape.mtu);
    let mut args = vec!["--set", "spin_us=0", "--set", &mtu];
    let fsync = shape.storage.fsync().map(|mode| format!("fsync={mode}"));
    if let Some(fsync) = &fsync {
        args.extend(["--set", fsync]);
    }
    DevBroker::start(folder, &cores, &args)
}

/// The stream that the shape publishes to.
///
/// # Errors
/// As `DevBroker::create_stream`.
pub fn create_stream(broker: &DevBroker, name: &str, shape: &Shape) -> Result<(), ClusterError> {
    if shape.storage.is_durable() {
        broker.create_durable_stream(name, shape.shards)
    } else {
        broker.create_stream(name, shape.shards)
    }
}

/// One load run on a thread that stays on the client's CPU.
fn measure(comparison: &Comparison, name: &'static str, ready: &Ready) -> Result<LoadReport, CompareError> {
    let plan = LoadPlan {
        name: name.to_owned(),
        target: Target::from_ready(ready, &comparison.stream)?,
        shape: comparison.shape.clone(),
    };
    let cpu = comparison.client_cpu;
    let run = std::thread::spawn(move || {
        pin_thread(cpu);
        load::run(&plan)
    });
    let outcome = run.join().map_err(|_| CompareError::LoadThread)?;
    outcome.map_err(|error| CompareError::Load { target: name, error })
}

/// The costs of one server's runs.
///
/// # Errors
/// The CPU time of one of them is not known.
pub(crate) fn costs(name: &'static str, reports: &[LoadReport]) -> Result<Costs, CompareError> {
    let rounds: Vec<f64> = reports.iter().filter_map(LoadReport::server_s_per_gb).collect();
    if rounds.len() < reports.len() || rounds.is_empty() || rounds.contains(&0.0) {
        return Err(CompareError::NoCost(name));
    }
    let busy = |report: &LoadReport| report.server.as_ref().map_or(0.0, |server| server.core_busy_percent);
    Ok(Costs {
        median: median(&rounds),
        median_mb_per_s: median(&reports.iter().map(LoadReport::mb_per_s).collect::<Vec<_>>()),
        core_busy_percent_min: reports.iter().map(busy).fold(f64::INFINITY, f64::min),
        clean: reports.iter().all(LoadReport::is_clean),
        rounds,
    })
}

/// The costs of two servers and their ratio, as text.
pub(crate) fn write_costs(f: &mut fmt::Formatter<'_>, both: [(&str, &Costs); 2], ratio: f64) -> fmt::Result {
    for (name, costs) in both {
        let rounds: Vec<String> = costs.rounds.iter().map(|cost| format!("{cost:.3}")).collect();
        writeln!(
            f,
            "{name:<7} {:.3} s/GB (rounds {}), {:.0} MB/s, core at least {:.0} % busy{}",
            costs.median,
            rounds.join(", "),
            costs.median_mb_per_s,
            costs.core_busy_percent_min,
            if costs.clean { "" } else { ", NOT CLEAN" },
        )?;
    }
    writeln!(f, "ratio   {ratio:.2}")
}

impl fmt::Display for CompareReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_costs(f, [("sink", &self.sink), ("broker", &self.broker)], self.ratio)
    }
}
