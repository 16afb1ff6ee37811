//! Single requests at the broker beside the least a server can do, in one run. Scope: one comparison.
//! Owns: the order of rounds, the ratios, the bounds.
//! Invariants: rounds alternate; sink, echo and broker are on one CPU and their loads on another; a sink takes requests and
//! gives answers as long as the broker's, on the same driver; groups have logs, and caches have them where a row says so.
//! Not here: one run (`super`), the servers (`sink`, `peers::echo`).

use std::fmt;
use std::path::{Path, PathBuf};

use felix_wire::client::Form;
use serde::Serialize;

use super::{KEYS, RequestKind, RequestPlan, usual_shape};
use crate::cluster::{DevBroker, SinkProcess};
use crate::compare_disk::Series;
use crate::load::{self, HistoryPlan, LoadPlan};
use crate::machine::{Machine, load_average};
use crate::measure::LoadReport;
use crate::peers::{PeerError, echo, on_cpu};
use crate::shape::Shape;
use crate::target::{Ready, Target};

const CACHE: &str = "bench-cache";
const STREAM: &str = "bench-pages";
/// CPU of a request at the broker over that at the sink, at most.
pub const COST_RATIO_MAX: f64 = 1.5;
/// Median time to the broker's answer over that of an echo, at most, one request at a time.
pub const TIME_RATIO_MAX: f64 = 1.2;
/// Records a group takes and finishes over those of a plain subscription, at least.
pub const GROUP_RATIO_MIN: f64 = 0.5;
/// Seconds of publishing the records that are read.
const PUBLISH_S: f64 = 1.0;

/// What is compared, and where.
#[derive(Debug, Clone)]
pub struct RequestComparison {
    /// Runs of each.
    pub rounds: u32,
    /// Bytes of a value and of a record.
    pub value_bytes: u32,
    /// Unanswered requests where CPU is compared.
    pub inflight: u32,
    /// Seconds before anything is counted, and seconds that are counted.
    pub warmup_s: f64,
    pub seconds: f64,
    /// Where servers keep their files.
    pub dir: PathBuf,
    pub mtu: u16,
    pub server_cpu: usize,
    pub client_cpu: usize,
    /// How the broker is asked; the sink reads the binary form only.
    pub form: Form,
    /// This program, to start as a sink and an echo.
    pub program: PathBuf,
}

impl RequestComparison {
    fn shape(&self, inflight: u32) -> Shape {
        Shape {
            name: format!("{} B, {inflight} in flight", self.value_bytes),
            record_bytes: self.value_bytes,
            inflight,
            warmup_s: self.warmup_s,
            duration_s: self.seconds,
            mtu: self.mtu,
            ..usual_shape()
        }
    }
}

/// Where the cache keeps what it is asked about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Keeping {
    /// In a log on a disk: a write is answered when it is durable, and neither sink nor echo write anything.
    Log,
    Memory,
}

/// What is asked where.
type Asked = (RequestKind, Keeping);

/// CPU of one kind of request, microseconds each, and answered requests per second.
#[derive(Debug, Clone, Serialize)]
pub struct CostCase {
    pub kind: RequestKind,
    pub keeping: Keeping,
    pub sink_us: Series,
    pub broker_us: Series,
    pub sink_per_s: Series,
    pub broker_per_s: Series,
    /// The broker's over the sink's, of each round.
    pub ratio: Series,
}

/// Median times to an answer, one request at a time, microseconds.
#[derive(Debug, Clone, Serialize)]
pub struct TimeCase {
    pub kind: RequestKind,
    pub keeping: Keeping,
    pub echo_p50_us: Series,
    pub broker_p50_us: Series,
    pub broker_p99_us: Series,
    /// The broker's over the echo's, of each round.
    pub ratio: Series,
}

/// Records per second of one shard, from its first one on.
#[derive(Debug, Clone, Serialize)]
pub struct GroupCase {
    pub subscription_per_s: Series,
    pub group_per_s: Series,
    /// CPU of a record that was polled and finished, microseconds.
    pub group_us: Series,
    pub ratio: Series,
}

/// The outcome.
#[derive(Debug, Clone, Serialize)]
pub struct RequestReport {
    pub kind: &'static str,
    pub machine: Machine,
    pub server_cpu: usize,
    pub client_cpu: usize,
    pub mtu: u16,
    pub form: &'static str,
    /// Of the last minute, before and after.
    pub load_average: (f64, f64),
    pub costs: Vec<CostCase>,
    pub times: Vec<TimeCase>,
    pub group: GroupCase,
    pub clean: bool,
}

/// Reports of all rounds of one kind: of the one it is measured against, and of the broker.
type Pairs = Vec<(LoadReport, LoadReport)>;

/// Compares.
///
/// # Errors
/// A server could not be started or a load could not be run. Everything started is ended.
pub fn run(comparison: &RequestComparison) -> Result<RequestReport, PeerError> {
    const COSTS: [Asked; 4] = [
        (RequestKind::CacheGet, Keeping::Log),
        (RequestKind::CachePut, Keeping::Memory),
        (RequestKind::CachePut, Keeping::Log),
        (RequestKind::CounterAdd, Keeping::Log),
    ];
    const TIMES: [Asked; 3] = [
        (RequestKind::CacheGet, Keeping::Log),
        (RequestKind::CachePut, Keeping::Memory),
        (RequestKind::CachePut, Keeping::Log),
    ];
    let before = load_average();
    let folder = |prefix| {
        let made = tempfile::Builder::new().prefix(prefix).tempdir_in(&comparison.dir);
        made.map_err(|error| PeerError::Folder { dir: comparison.dir.clone(), error })
    };
    let (folder, memory_folder) = (folder("felix-requests-")?, folder("felix-requests-")?);
    let broker = start_broker(comparison, folder.path())?;
    let in_memory = start_in_memory(comparison, memory_folder.path())?;
    let of = |keeping| if keeping == Keeping::Log { broker.ready() } else { in_memory.ready() };
    let mut costs: [Pairs; COSTS.len()] = Default::default();
    let mut times: [Pairs; TIMES.len()] = Default::default();
    let mut pages = Vec::new();
    for round in 1..=comparison.rounds {
        for ((kind, keeping), pairs) in COSTS.into_iter().zip(&mut costs) {
            let sink = sink_round(comparison, kind, folder.path())?;
            let ours = broker_round(comparison, kind, comparison.inflight, of(keeping))?;
            let name = name_of(kind, keeping);
            eprintln!("round {round}, {name}: sink {:.2} us, broker {:.2} us", us(&sink), us(&ours));
            pairs.push((sink, ours));
        }
        for ((kind, keeping), pairs) in TIMES.into_iter().zip(&mut times) {
            let echo = echo_round(comparison, folder.path())?;
            let ours = broker_round(comparison, kind, 1, of(keeping))?;
            let (name, answers) = (name_of(kind, keeping), (&echo.ack_latency, &ours.ack_latency));
            eprintln!("round {round}, {name}: echo {}; broker {}", answers.0, answers.1);
            pairs.push((echo, ours));
        }
        let subscription = subscription_round(comparison, broker.ready())?;
        let ours = broker_round(comparison, RequestKind::GroupPage, 4 * super::PAGE_RECORDS, broker.ready())?;
        eprintln!("round {round}: subscription {subscription:.0}/s, group {:.0}/s", ours.batches_per_s());
        pages.push((subscription, ours));
    }
    let clean = costs.iter().chain(&times).flatten().all(|(other, ours)| other.is_clean() && ours.is_clean())
        && pages.iter().all(|(_, ours)| ours.is_clean());
    Ok(RequestReport {
        kind: "compare-requests",
        machine: Machine::look(),
        server_cpu: comparison.server_cpu,
        client_cpu: comparison.client_cpu,
        mtu: comparison.mtu,
        form: if comparison.form == Form::Binary { "binary" } else { "json" },
        load_average: (before, load_average()),
        costs: COSTS.into_iter().zip(&costs).map(|(asked, pairs)| CostCase::of(asked, pairs)).collect(),
        times: TIMES.into_iter().zip(&times).map(|(asked, pairs)| TimeCase::of(asked, pairs)).collect(),
        group: GroupCase::of(&pages),
        clean,
    })
}

/// What a row is called.
fn name_of(kind: RequestKind, keeping: Keeping) -> String {
    let keeping = if keeping == Keeping::Log { "in a log" } else { "in memory" };
    format!("{} ({keeping})", kind.name())
}

/// With a cache that is in memory.
fn start_in_memory(comparison: &RequestComparison, folder: &Path) -> Result<DevBroker, PeerError> {
    let mtu = format!("mtu_upper_bound={}", comparison.mtu);
    let args = ["--memory", "--set", "spin_us=0", "--set", &mtu];
    let broker = DevBroker::start(folder, &comparison.server_cpu.to_string(), &args)?;
    broker.create_cache(CACHE, 1)?;
    Ok(broker)
}

/// With a cache that has a log, and with records to read.
fn start_broker(comparison: &RequestComparison, folder: &Path) -> Result<DevBroker, PeerError> {
    let mtu = format!("mtu_upper_bound={}", comparison.mtu);
    let args = ["--set", "spin_us=0", "--set", &mtu];
    let broker = DevBroker::start(folder, &comparison.server_cpu.to_string(), &args)?;
    broker.create_cache(CACHE, 1)?;
    broker.create_durable_stream(STREAM, 1)?;
    let shape = Shape {
        name: "records to read".to_owned(),
        batch_records: super::PAGE_RECORDS,
        inflight: 8,
        warmup_s: 0.0,
        duration_s: PUBLISH_S,
        ..comparison.shape(1)
    };
    let target = Target::from_ready(broker.ready(), STREAM)?;
    let plan = LoadPlan { name: "broker".to_owned(), target, shape };
    on_cpu(comparison.client_cpu, "publishing", move || load::run(&plan))?;
    Ok(broker)
}

fn sink_round(
    comparison: &RequestComparison,
    kind: RequestKind,
    folder: &Path,
) -> Result<LoadReport, PeerError> {
    // A sum is as good as no value: eight bytes in the head.
    let value_bytes = if kind == RequestKind::CacheGet { comparison.value_bytes } else { 0 };
    let args = [
        ("--cpu", comparison.server_cpu.to_string()),
        ("--mtu", comparison.mtu.to_string()),
        ("--spin-us", "0".to_owned()),
        ("--value-bytes", value_bytes.to_string()),
    ];
    let args: Vec<String> = args.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]).collect();
    let sink = SinkProcess::start(&comparison.program, folder, &args)?;
    let shape = comparison.shape(comparison.inflight);
    let target = Target::from_ready(sink.ready(), CACHE)?;
    let (keys, form) = (KEYS, Form::Binary);
    let plan = RequestPlan { name: "sink".to_owned(), target, kind, keys, form, shape };
    on_cpu(comparison.client_cpu, "sink", move || super::run_unprepared(&plan))
}

fn broker_round(
    comparison: &RequestComparison,
    kind: RequestKind,
    inflight: u32,
    ready: &Ready,
) -> Result<LoadReport, PeerError> {
    let name = if kind == RequestKind::GroupPage { STREAM } else { CACHE };
    let (target, shape) = (Target::from_ready(ready, name)?, comparison.shape(inflight));
    let (keys, form) = (KEYS, comparison.form);
    let plan = RequestPlan { name: "broker".to_owned(), target, kind, keys, form, shape };
    on_cpu(comparison.client_cpu, "broker", move || super::run(&plan))
}

fn echo_round(comparison: &RequestComparison, folder: &Path) -> Result<LoadReport, PeerError> {
    let args = [
        ("--cpu", comparison.server_cpu.to_string()),
        ("--mtu", comparison.mtu.to_string()),
        ("--spin-us", "0".to_owned()),
    ];
    let args: Vec<String> = args.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]).collect();
    let server = SinkProcess::start_as("echo", &comparison.program, folder, &args)?;
    let target = Target::from_ready(server.ready(), CACHE)?;
    let shape = comparison.shape(1);
    on_cpu(comparison.client_cpu, "echo", move || echo::run("echo", &target, &shape))
}

/// Records per second.
fn subscription_round(comparison: &RequestComparison, ready: &Ready) -> Result<f64, PeerError> {
    let shape = comparison.shape(1);
    let plan = HistoryPlan {
        target: Target::from_ready(ready, STREAM)?,
        shard: 0,
        warmup: shape.warmup(),
        duration: shape.duration(),
        mtu: comparison.mtu,
    };
    let report = on_cpu(comparison.client_cpu, "subscription", move || load::read_history(&plan))?;
    Ok(report.payload_bytes as f64 / f64::from(comparison.value_bytes.max(1)) / report.seconds)
}

/// CPU of the server for a request, microseconds; 0 when it is not known.
fn us(report: &LoadReport) -> f64 {
    report.server.as_ref().map_or(0.0, |server| server.seconds * 1e6 / report.batches.max(1) as f64)
}

fn ratio(ours: f64, other: f64) -> f64 {
    ours / other.max(f64::MIN_POSITIVE)
}

impl CostCase {
    fn of((kind, keeping): Asked, pairs: &Pairs) -> CostCase {
        CostCase {
            kind,
            keeping,
            sink_us: Series::each(pairs, |(sink, _)| us(sink)),
            broker_us: Series::each(pairs, |(_, broker)| us(broker)),
            sink_per_s: Series::each(pairs, |(sink, _)| sink.batches_per_s()),
            broker_per_s: Series::each(pairs, |(_, broker)| broker.batches_per_s()),
            ratio: Series::each(pairs, |(sink, broker)| ratio(us(broker), us(sink))),
        }
    }
}

impl TimeCase {
    fn of((kind, keeping): Asked, pairs: &Pairs) -> TimeCase {
        let p50 = |report: &LoadReport| report.ack_latency.p50_us;
        TimeCase {
            kind,
            keeping,
            echo_p50_us: Series::each(pairs, |(echo, _)| p50(echo)),
            broker_p50_us: Series::each(pairs, |(_, broker)| p50(broker)),
            broker_p99_us: Series::each(pairs, |(_, broker)| broker.ack_latency.p99_us),
            ratio: Series::each(pairs, |(echo, broker)| ratio(p50(broker), p50(echo))),
        }
    }
}

impl GroupCase {
    fn of(rounds: &[(f64, LoadReport)]) -> GroupCase {
        GroupCase {
            subscription_per_s: Series::each(rounds, |(subscription, _)| *subscription),
            group_per_s: Series::each(rounds, |(_, group)| group.batches_per_s()),
            group_us: Series::each(rounds, |(_, group)| us(group)),
            ratio: Series::each(rounds, |(subscription, group)| ratio(group.batches_per_s(), *subscription)),
        }
    }
}

impl RequestReport {
    /// Whether every bound is kept. Counters have none: they are beside caches to be compared with them.
    #[must_use]
    pub fn passed(&self) -> bool {
        let costs = self.costs.iter().filter(|case| case.kind != RequestKind::CounterAdd);
        costs.into_iter().all(|case| case.ratio.median <= COST_RATIO_MAX)
            && self.times.iter().all(|case| case.ratio.median <= TIME_RATIO_MAX)
            && self.group.ratio.median >= GROUP_RATIO_MIN
    }
}

impl fmt::Display for RequestReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for case in &self.costs {
            writeln!(
                f,
                "{}: sink {} us, broker {} us, ratio {} (at most {COST_RATIO_MAX}); {:.0} and {:.0} requests/s",
                name_of(case.kind, case.keeping),
                case.sink_us,
                case.broker_us,
                case.ratio,
                case.sink_per_s.median,
                case.broker_per_s.median,
            )?;
        }
        for case in &self.times {
            writeln!(
                f,
                "{}, one at a time: echo p50 {} us, broker p50 {} us, p99 {} us, ratio {} (at most {TIME_RATIO_MAX})",
                name_of(case.kind, case.keeping),
                case.echo_p50_us,
                case.broker_p50_us,
                case.broker_p99_us,
                case.ratio,
            )?;
        }
        writeln!(
            f,
            "group: subscription {} records/s, poll and ack {} records/s ({} us each), ratio {} (at least {GROUP_RATIO_MIN})",
            self.group.subscription_per_s, self.group.group_per_s, self.group.group_us, self.group.ratio,
        )?;
        if !self.clean {
            writeln!(f, "NOT CLEAN: requests were refused or not answered")?;
        }
        Ok(())
    }
}
