//! `felix-bench`: arguments -> one run -> its result. Bare, it prints two numbers for the canonical shape.
//! Exit status: 0 done and clean, 1 failed or not clean, 2 wrong usage, 4 a bound is not kept or a run is worse than
//! another, 5 two runs cannot be told apart by their trials.

mod args;
mod gate_command;
mod peer_commands;
mod request_commands;
mod runs;
mod soak_command;

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Parser;
use felix_bench::cluster::{DevBroker, SinkProcess};
use felix_bench::compare::{self, Comparison};
use felix_bench::compare_disk;
use felix_bench::load::{self, LoadPlan};
use felix_bench::machine::{pin_thread, raise_priority};
use felix_bench::measure::LoadReport;
use felix_bench::requests::{self, RequestKind, RequestPlan};
use felix_bench::shape::Shape;
use felix_bench::sink::{Sink, SinkOptions};
use felix_bench::target::{Ready, Target};

use args::{Command, CompareArgs, CompareDiskArgs, DriverArg, LoadArgs, SinkArgs, To};

/// The broker's allocator, so that the sink has the same.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A bound is not kept.
const EXCEEDED: u8 = 4;
/// What a build without the feature says.
const NO_PEERS: &str =
    "this felix-bench was built without the feature `peers`; build it with `--features felix-bench/peers`";

fn main() -> ExitCode {
    let outcome = match args::Args::parse().command {
        None => two_numbers(),
        Some(Command::Load(args)) => run_load(&args),
        Some(Command::Sink(args)) => run_sink(&args),
        Some(Command::CompareSink(args)) => run_compare(&args),
        Some(Command::CompareDisk(args)) => run_compare_disk(&args),
        Some(Command::CompareRequests(args)) => args.run().map_err(anyhow::Error::from),
        Some(Command::Restart(args)) => args.run().map_err(anyhow::Error::from),
        Some(Command::Peer(command)) => command.run().map_err(anyhow::Error::from),
        Some(Command::Gate(args)) => gate_command::run(&args).map_err(Into::into),
        Some(Command::Drift(args)) => gate_command::run_drift(&args).map_err(Into::into),
        Some(Command::Soak(args)) => soak_command::run(&args).map_err(Into::into),
        Some(Command::Run(args)) => runs::one(&args).map_err(Into::into),
        Some(Command::Campaign(args)) => runs::campaign(&args).map_err(Into::into),
        Some(Command::Compare(args)) => runs::compare(&args).map_err(Into::into),
        Some(Command::Sweep(args)) => runs::sweep(&args).map_err(Into::into),
        Some(Command::Preflight(args)) => runs::preflight(&args).map_err(Into::into),
        Some(Command::Agent(args)) => runs::agent(&args).map_err(Into::into),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("felix-bench: {error:#}");
        ExitCode::FAILURE
    })
}

/// Throughput and cost of the canonical shape on a broker of its own.
fn two_numbers() -> anyhow::Result<ExitCode> {
    raise_priority();
    let report = measured(&LoadArgs::default())?;
    println!("{:.0} MB/s", report.mb_per_s());
    println!(
        "{:.3} server CPU s/GB",
        report.server_s_per_gb().context("the CPU time of the server is not known")?
    );
    Ok(if report.is_clean() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn run_load(args: &LoadArgs) -> anyhow::Result<ExitCode> {
    if args.setsid {
        raise_priority();
    }
    let report = measured(args)?;
    if args.json {
        println!("{}", report.json());
    } else {
        print!("{report}");
    }
    Ok(if report.is_clean() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// One load run against what the arguments name, started first if nothing runs.
fn measured(args: &LoadArgs) -> anyhow::Result<LoadReport> {
    let shape = args.shape()?;
    shape.check()?;
    let started = args.to == To::Broker && args.dev.is_none() && args.named_target()?.is_none();
    if shape.storage.is_durable() && !started {
        anyhow::bail!("a shape with storage needs a broker that is started for the run");
    }
    let folder = tempfile::tempdir()?;
    let mut started = Started::Nothing;
    let target = if args.to == To::Sink {
        let sink_args = args.sink_args(&shape);
        let sink = SinkProcess::start(&std::env::current_exe()?, folder.path(), &sink_args)?;
        let target = Target::from_ready(sink.ready(), &args.stream)?;
        started = Started::Sink(sink);
        target
    } else if let Some(file) = &args.dev {
        Target::from_ready(&Ready::read(file)?, &args.stream)?
    } else if let Some(target) = args.named_target()? {
        target
    } else {
        let broker = start_broker(folder.path(), args, &shape)?;
        let target = Target::from_ready(broker.ready(), &args.stream)?;
        started = Started::Broker(broker);
        target
    };
    pin_thread(args.cpu);
    let target = args.corrected(target);
    let name = if args.to == To::Sink { "sink" } else { "broker" };
    let name = name.to_owned();
    let report = match args.requests.kind() {
        Some(kind) => {
            let (keys, form) = (args.requests.keys, args.form.into());
            let plan = RequestPlan { name, target, kind, keys, form, shape };
            let sink = args.to == To::Sink;
            if sink { requests::run_unprepared(&plan)? } else { requests::run(&plan)? }
        }
        None => load::run(&LoadPlan { name, target, shape })?,
    };
    drop(started);
    Ok(report)
}

/// What lives as long as the run.
#[allow(dead_code, reason = "held for its end")]
enum Started {
    Nothing,
    Sink(SinkProcess),
    Broker(DevBroker),
}

fn start_broker(folder: &Path, args: &LoadArgs, shape: &Shape) -> anyhow::Result<DevBroker> {
    let broker = compare::start_broker(folder, args.server_cpu, shape)
        .context("no broker was named (--dev, --addr) and none could be started")?;
    match args.requests.kind() {
        Some(RequestKind::GroupPage) => {
            anyhow::bail!("a group needs a broker that runs, with records in its stream (--dev, --addr)")
        }
        Some(_) => broker.create_cache(&args.stream, 1)?,
        None => compare::create_stream(&broker, &args.stream, shape)?,
    }
    Ok(broker)
}

fn run_sink(args: &SinkArgs) -> anyhow::Result<ExitCode> {
    let options = SinkOptions {
        cpu: args.cpu,
        address: args.bind,
        mtu: args.mtu,
        spin: Duration::from_micros(args.spin_us),
        framing: args.framing.into(),
        relay: args.relay,
        value_bytes: args.value_bytes,
    };
    if args.driver == DriverArg::Quinn {
        return run_quinn_sink(args, &options);
    }
    let sink = Sink::start(&options)?;
    follow_parent();
    match &args.ready_file {
        Some(file) => write_ready(file, |folder| sink.describe(folder).map_err(anyhow::Error::from))?,
        None => println!("{}", sink.address()),
    }
    sink.run()?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(feature = "peers")]
fn run_quinn_sink(args: &SinkArgs, options: &SinkOptions) -> anyhow::Result<ExitCode> {
    let sink = felix_bench::peers::quinn_sink::QuinnSink::start(options)?;
    follow_parent();
    match &args.ready_file {
        Some(file) => write_ready(file, |folder| sink.describe(folder).map_err(anyhow::Error::from))?,
        None => println!("{}", sink.address()),
    }
    sink.run()?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(not(feature = "peers"))]
fn run_quinn_sink(_: &SinkArgs, _: &SinkOptions) -> anyhow::Result<ExitCode> {
    anyhow::bail!(NO_PEERS)
}

/// Whoever started a server reads its ready file; nobody is left to end it when they go.
fn follow_parent() {
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM));
}

/// Writes a ready file, complete or not at all; what it names goes beside it.
fn write_ready<E: From<std::io::Error>>(
    file: &Path,
    describe: impl FnOnce(&Path) -> Result<Ready, E>,
) -> Result<(), E> {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let text = serde_json::to_string_pretty(&describe(folder)?).map_err(std::io::Error::from)?;
    let beside = file.with_extension("tmp");
    std::fs::write(&beside, text)?;
    std::fs::rename(&beside, file)?;
    Ok(())
}

fn run_compare(args: &CompareArgs) -> anyhow::Result<ExitCode> {
    let shape = args.shape()?;
    shape.check()?;
    raise_priority();
    let report = compare::run(&Comparison {
        shape,
        rounds: args.rounds,
        server_cpu: args.server_cpu,
        client_cpu: args.cpu,
        dev: args.dev.clone(),
        stream: args.stream.clone(),
        program: std::env::current_exe()?,
        framing: args.framing.name().to_owned(),
    })?;
    eprint!("{report}");
    let mut line = serde_json::to_value(&report)?;
    line["max_ratio"] = args.max_ratio.into();
    println!("{line}");
    if !(report.sink.clean && report.broker.clean) {
        return Ok(ExitCode::FAILURE);
    }
    let exceeded = args.max_ratio.is_some_and(|max| report.ratio > max);
    Ok(if exceeded { ExitCode::from(EXCEEDED) } else { ExitCode::SUCCESS })
}

fn run_compare_disk(args: &CompareDiskArgs) -> anyhow::Result<ExitCode> {
    let comparison = args.comparison();
    let system = compare_disk::preflight(&comparison)?;
    eprintln!("felix-bench: {} is on {} ({})", comparison.dir.display(), system.kind, system.source);
    raise_priority();
    let report = compare_disk::run(&comparison)?;
    if args.json {
        let mut line = serde_json::to_value(&report)?;
        line["passed"] = report.passed().into();
        line["clean"] = report.is_clean().into();
        println!("{line}");
    } else {
        print!("{report}");
    }
    if !report.is_clean() {
        return Ok(ExitCode::FAILURE);
    }
    Ok(if report.passed() { ExitCode::SUCCESS } else { ExitCode::from(EXCEEDED) })
}
