//! The time to the broker's answer against that of an echo, in one run. Scope: one comparison.
//! Owns: the order of rounds, the medians, the ratios.
//! Invariants: rounds alternate; both answer one request at a time of the same size, on the same CPUs, from the same kind of
//! client; both spin, or both park, or both park and write one block that survives a power cut.
//! Not here: the echo (`echo`), the broker's load (`load`).

use std::fmt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::{PeerError, echo, on_cpu};
use crate::cluster::{DevBroker, SinkProcess};
use crate::compare_disk::Series;
use crate::load::{self, LoadPlan};
use crate::machine::{Machine, load_average};
use crate::measure::LoadReport;
use crate::shape::{Shape, Storage};
use crate::target::Target;

const STREAM: &str = "echo";
/// How long a spinning server looks for work before it parks; the broker's default.
const SPIN_US: u32 = 50;

/// A way to wait and to answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EchoMode {
    /// In memory, both servers spin before they park.
    Spinning,
    /// In memory, both park at once.
    Parked,
    /// Both park, and write one block that survives a power cut before they answer.
    OnCommit,
}

impl EchoMode {
    /// Every one, in the order they run.
    pub const ALL: [EchoMode; 3] = [EchoMode::Spinning, EchoMode::Parked, EchoMode::OnCommit];

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            EchoMode::Spinning => "spinning",
            EchoMode::Parked => "parked",
            EchoMode::OnCommit => "on-commit",
        }
    }

    /// What the two answers promise.
    #[must_use]
    pub fn promise(self) -> &'static str {
        match self {
            EchoMode::Spinning | EchoMode::Parked => {
                "echo: the request was read; broker: the record is in the stream's memory, readers see it"
            }
            EchoMode::OnCommit => {
                "echo: a block was written with O_DSYNC to a file of written blocks; broker: the record is in the log, synced"
            }
        }
    }

    fn spin_us(self) -> u32 {
        if self == EchoMode::Spinning { SPIN_US } else { 0 }
    }
}

/// What is compared, and where.
#[derive(Debug, Clone)]
pub struct EchoComparison {
    pub modes: Vec<EchoMode>,
    /// Runs of each.
    pub rounds: u32,
    /// Bytes of a request and of a record.
    pub record_bytes: u32,
    /// Seconds before anything is counted, and seconds that are counted.
    pub warmup_s: f64,
    pub seconds: f64,
    /// Where servers keep their files; on a disk when something is committed.
    pub dir: PathBuf,
    pub mtu: u16,
    pub server_cpu: usize,
    pub client_cpu: usize,
    /// This program, to start as an echo.
    pub program: PathBuf,
}

impl EchoComparison {
    fn shape(&self) -> Shape {
        Shape {
            name: format!("{} B, one in flight", self.record_bytes),
            record_bytes: self.record_bytes,
            batch_records: 1,
            inflight: 1,
            warmup_s: self.warmup_s,
            duration_s: self.seconds,
            mtu: self.mtu,
            ..Shape::canonical()
        }
    }
}

/// Times to an answer over all rounds, microseconds.
#[derive(Debug, Clone, Serialize)]
pub struct Times {
    pub p50_us: Series,
    pub p99_us: Series,
    pub p999_us: Series,
    /// How long the server's core was ready to run while others had its CPU, percent.
    pub core_waited_percent: Series,
    pub clean: bool,
}

impl Times {
    fn of(reports: &[LoadReport]) -> Times {
        let waited =
            |report: &LoadReport| report.server.as_ref().map_or(0.0, |used| used.core_waited_percent);
        Times {
            p50_us: Series::each(reports, |report| report.ack_latency.p50_us),
            p99_us: Series::each(reports, |report| report.ack_latency.p99_us),
            p999_us: Series::each(reports, |report| report.ack_latency.p999_us),
            core_waited_percent: Series::each(reports, waited),
            clean: reports.iter().all(|report| report.is_clean() && report.batches > 0),
        }
    }
}

/// One mode.
#[derive(Debug, Clone, Serialize)]
pub struct EchoCase {
    pub mode: EchoMode,
    pub promise: &'static str,
    pub echo: Times,
    pub broker: Times,
    /// The broker's median over the echo's, of each round, and their median.
    pub p50_ratio: Series,
    pub p99_ratio: Series,
    /// What the broker's median takes longer, microseconds.
    pub p50_more_us: f64,
}

impl EchoCase {
    fn of(mode: EchoMode, echoes: &[LoadReport], brokers: &[LoadReport]) -> EchoCase {
        let ratios = |of: fn(&LoadReport) -> f64| {
            let rounds = brokers.iter().zip(echoes);
            Series::of(rounds.map(|(broker, echo)| of(broker) / of(echo).max(f64::MIN_POSITIVE)).collect())
        };
        let (echo, broker) = (Times::of(echoes), Times::of(brokers));
        EchoCase {
            mode,
            promise: mode.promise(),
            p50_ratio: ratios(|report| report.ack_latency.p50_us),
            p99_ratio: ratios(|report| report.ack_latency.p99_us),
            p50_more_us: broker.p50_us.median - echo.p50_us.median,
            echo,
            broker,
        }
    }
}

/// The outcome.
#[derive(Debug, Clone, Serialize)]
pub struct EchoReport {
    pub kind: &'static str,
    pub shape: Shape,
    pub machine: Machine,
    pub server_cpu: usize,
    pub client_cpu: usize,
    /// Of the last minute, before and after.
    pub load_average: (f64, f64),
    pub cases: Vec<EchoCase>,
}

/// Compares.
///
/// # Errors
/// A server could not be started or a load could not be run, or something is to be committed to memory. Everything started
/// is ended.
pub fn run(comparison: &EchoComparison) -> Result<EchoReport, PeerError> {
    if comparison.modes.contains(&EchoMode::OnCommit) {
        super::on_a_disk(&comparison.dir)?;
    }
    let before = load_average();
    let mut cases = Vec::new();
    for mode in &comparison.modes {
        let (mut echoes, mut brokers) = (Vec::new(), Vec::new());
        for round in 1..=comparison.rounds {
            let folder = super::folder(&comparison.dir)?;
            let echo = echo_round(comparison, *mode, folder.path())?;
            let broker = broker_round(comparison, *mode, folder.path())?;
            eprintln!(
                "{}, round {round}: echo {}; broker {}",
                mode.name(),
                echo.ack_latency,
                broker.ack_latency
            );
            echoes.push(echo);
            brokers.push(broker);
        }
        cases.push(EchoCase::of(*mode, &echoes, &brokers));
    }
    Ok(EchoReport {
        kind: "compare-echo",
        shape: comparison.shape(),
        machine: Machine::look(),
        server_cpu: comparison.server_cpu,
        client_cpu: comparison.client_cpu,
        load_average: (before, load_average()),
        cases,
    })
}

fn echo_round(comparison: &EchoComparison, mode: EchoMode, folder: &Path) -> Result<LoadReport, PeerError> {
    let mut args = vec![
        "--cpu".to_owned(),
        comparison.server_cpu.to_string(),
        "--mtu".to_owned(),
        comparison.mtu.to_string(),
        "--spin-us".to_owned(),
        mode.spin_us().to_string(),
    ];
    if mode == EchoMode::OnCommit {
        args.extend(["--commit-dir".to_owned(), folder.to_string_lossy().into_owned()]);
    }
    let server = SinkProcess::start_as("echo", &comparison.program, folder, &args)?;
    let target = Target::from_ready(server.ready(), STREAM)?;
    let shape = comparison.shape();
    on_cpu(comparison.client_cpu, "echo", move || echo::run("echo", &target, &shape))
}

fn broker_round(comparison: &EchoComparison, mode: EchoMode, folder: &Path) -> Result<LoadReport, PeerError> {
    let mut settings =
        vec![format!("spin_us={}", mode.spin_us()), format!("mtu_upper_bound={}", comparison.mtu)];
    if mode == EchoMode::OnCommit {
        settings.push("fsync=on_commit".to_owned());
    }
    let args: Vec<&str> = settings.iter().flat_map(|setting| ["--set", setting]).collect();
    let broker = DevBroker::start(folder, &comparison.server_cpu.to_string(), &args)?;
    if mode == EchoMode::OnCommit {
        broker.create_durable_stream(STREAM, 1)?;
    } else {
        broker.create_stream(STREAM, 1)?;
    }
    let storage = if mode == EchoMode::OnCommit { Storage::FsyncOnCommit } else { Storage::Memory };
    let plan = LoadPlan {
        name: "broker".to_owned(),
        target: Target::from_ready(broker.ready(), STREAM)?,
        shape: Shape { storage, ..comparison.shape() },
    };
    on_cpu(comparison.client_cpu, "broker", move || load::run(&plan))
}

impl EchoReport {
    /// Every request of both was answered.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.cases.iter().all(|case| case.echo.clean && case.broker.clean)
    }
}

impl fmt::Display for EchoReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<10} {:>9} {:>9} {:>10} {:>10} {:>7} {:>7}",
            "us", "echo p50", "echo p99", "broker p50", "broker p99", "p50 x", "p99 x"
        )?;
        for case in &self.cases {
            let spread = |series: &Series| {
                let (least, most) =
                    series.rounds.iter().fold((f64::INFINITY, 0.0_f64), |(least, most), value| {
                        (least.min(*value), most.max(*value))
                    });
                format!("{least:.2}-{most:.2}")
            };
            writeln!(
                f,
                "{:<10} {:>9.1} {:>9.1} {:>10.1} {:>10.1} {:>7.2} {:>7.2}  (rounds {}, {}){}",
                case.mode.name(),
                case.echo.p50_us.median,
                case.echo.p99_us.median,
                case.broker.p50_us.median,
                case.broker.p99_us.median,
                case.p50_ratio.median,
                case.p99_ratio.median,
                spread(&case.p50_ratio),
                spread(&case.p99_ratio),
                if case.echo.clean && case.broker.clean { "" } else { "  NOT CLEAN" },
            )?;
            writeln!(f, "  {}", case.promise)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::LatencySummary;

    fn report(p50_us: f64, p99_us: f64) -> LoadReport {
        let shape = Shape { batch_records: 1, inflight: 1, ..Shape::canonical() };
        let window = {
            let mut window = crate::load::window::Window::new(
                felix_runtime::Tick::ZERO,
                std::time::Duration::ZERO,
                shape.duration(),
                None,
            );
            window.advance(felix_runtime::Tick::ZERO);
            window.advance(felix_runtime::Tick::ZERO + shape.duration());
            window
        };
        let mut report =
            super::super::report::of_window("x", &shape, &window, super::super::report::Sent::default())
                .unwrap();
        report.batches = 1;
        report.ack_latency = LatencySummary { p50_us, p99_us, ..LatencySummary::default() };
        report
    }

    #[test]
    fn ratios_are_those_of_each_round() {
        let echoes = [report(20.0, 40.0), report(40.0, 50.0), report(30.0, 30.0)];
        let brokers = [report(30.0, 40.0), report(48.0, 100.0), report(60.0, 45.0)];
        let case = EchoCase::of(EchoMode::Parked, &echoes, &brokers);
        assert_eq!(case.p50_ratio.rounds, [1.5, 1.2, 2.0]);
        assert_eq!((case.p50_ratio.median, case.p99_ratio.median), (1.5, 1.5));
        assert!((case.p50_more_us - 18.0).abs() < 1e-9 && case.echo.clean);
    }

    #[test]
    fn a_commit_to_memory_is_refused() {
        let comparison = EchoComparison {
            modes: vec![EchoMode::OnCommit],
            rounds: 1,
            record_bytes: 256,
            warmup_s: 0.1,
            seconds: 0.1,
            dir: PathBuf::from("/proc/nowhere"),
            mtu: 3_872,
            server_cpu: 0,
            client_cpu: 1,
            program: PathBuf::from("felix-bench"),
        };
        assert!(matches!(run(&comparison).unwrap_err(), PeerError::Folder { .. }));
        let memory = EchoComparison { dir: PathBuf::from("/dev/shm"), ..comparison };
        // A machine may have no such folder, or a disk behind it.
        if crate::volume::FileSystem::of(&memory.dir).is_ok_and(|system| system.is_in_memory()) {
            assert!(matches!(run(&memory).unwrap_err(), PeerError::InMemory { .. }));
        }
    }
}
