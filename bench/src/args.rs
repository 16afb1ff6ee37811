//! The command line. Scope: read once at start.
//! Invariants: a flag that was not given leaves the shape as it is.
//! Not here: what the commands do (`main`).

pub mod runs;

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};
use felix_bench::compare_disk::{Bounds, Cases, DiskComparison};
use felix_bench::requests::{RequestKind, usual_shape};
use felix_bench::shape::{Acks, Shape, ShapeError};
use felix_bench::sink::Framing;
use felix_bench::target::{Target, TargetError, read, read_roots};

use crate::request_commands::{FormArg, RequestArgs};

/// Measures Felix. Without a command: throughput and server CPU cost of the canonical shape, two numbers.
#[derive(Debug, Parser)]
#[command(name = "felix-bench", version)]
pub struct Args {
    #[command(subcommand)]
    pub command: Option<Command>,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Publish to a broker or to a sink, and read back when asked to; or make single requests.
    Load(LoadArgs),
    /// Take publishes as a broker does and keep nothing.
    Sink(SinkArgs),
    /// Compare the CPU cost of a broker with that of a sink, in alternating rounds.
    CompareSink(CompareArgs),
    /// Compare the durable path of a broker with the raw disk below it, in alternating rounds.
    CompareDisk(CompareDiskArgs),
    /// Compare single requests at a broker (caches, counters, groups) with a sink, an echo and a subscription, in alternating
    /// rounds; status 4 when a bound is not kept.
    CompareRequests(crate::request_commands::CompareRequestsArgs),
    /// Fill a durable cache with many keys, and say how long it takes until it is served again after a stop and after a kill,
    /// and what a key takes of memory; status 4 when that takes too long.
    Restart(crate::request_commands::RestartArgs),
    #[command(flatten)]
    Peer(crate::peer_commands::PeerCommand),
    /// Measure every row of the table of what the data path must reach, and say which hold; status 1 when one falls short.
    Gate(crate::gate_command::GateArgs),
    /// Load a broker for 20 minutes, and say whether the last minute has the rate and the memory of the third.
    Drift(crate::gate_command::DriftArgs),
    /// Use a broker hard in equal cycles, and say whether it loses, leaks or keeps anything; status 4 when a rule is broken.
    Soak(crate::soak_command::SoakArgs),
    /// Run one shape several times, and keep everything in a folder with a report.
    Run(runs::RunArgs),
    /// Run a matrix of shapes, trials interleaved, and keep everything in a folder with a report.
    Campaign(runs::CampaignArgs),
    /// Say whether the run in folder B is better or worse than the one in folder A; status 4 when it is worse.
    Compare(runs::CompareRunsArgs),
    /// Try several values of one setting, and print the best as a line of configuration.
    Sweep(runs::SweepArgs),
    /// Look at what this machine gives before anything is measured.
    Preflight(runs::PreflightArgs),
    /// Generate load for a driver on another machine.
    Agent(runs::AgentArgs),
}

/// What a load is sent to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum To {
    /// The broker of --dev or --addr, or one that is started for the run.
    #[default]
    Broker,
    /// A sink that is started for the run.
    Sink,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum FramingArg {
    /// As bytes arrive: one copy.
    #[default]
    Stream,
    /// Whole validated frames: two copies.
    Whole,
}

impl FramingArg {
    pub fn name(self) -> &'static str {
        match self {
            FramingArg::Stream => "stream",
            FramingArg::Whole => "whole",
        }
    }
}

impl From<FramingArg> for Framing {
    fn from(framing: FramingArg) -> Framing {
        match framing {
            FramingArg::Stream => Framing::Stream,
            FramingArg::Whole => Framing::Whole,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum DriverArg {
    /// The broker's driver.
    #[default]
    Felix,
    /// tokio and quinn (feature `peers`); it parks at once and takes frames as bytes arrive.
    Quinn,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum AcksArg {
    /// Every batch is answered.
    Batch,
    /// Nothing is answered.
    None,
}

/// The shape without a name.
const CANONICAL: &str = "canonical";

/// The workload: a named shape, changed by what is given.
#[derive(Debug, Clone, clap::Args)]
pub struct ShapeArgs {
    /// A built-in shape (canonical, unacked, small, fanout, connections) or a file of one.
    #[arg(long, default_value = CANONICAL)]
    shape: String,
    /// Bytes of a record.
    #[arg(long, value_name = "BYTES")]
    size: Option<u32>,
    /// Records of a publish.
    #[arg(long, value_name = "RECORDS")]
    batch: Option<u32>,
    /// Whether publishes are answered.
    #[arg(long, value_enum)]
    acks: Option<AcksArg>,
    /// Unanswered batches of one stream.
    #[arg(long, value_name = "BATCHES")]
    inflight: Option<u32>,
    #[arg(long, value_name = "COUNT")]
    connections: Option<u32>,
    /// Publishing streams of each connection.
    #[arg(long, value_name = "COUNT")]
    streams: Option<u32>,
    /// Shards to write to, by keys that route there.
    #[arg(long, value_name = "COUNT")]
    shards: Option<u32>,
    /// Readers that count and check what arrives.
    #[arg(long, value_name = "COUNT")]
    subscribers: Option<u32>,
    /// Batches per second at fixed moments (open loop) instead of as fast as answers come.
    #[arg(long, value_name = "BATCHES_PER_S")]
    rate: Option<f64>,
    /// Seconds before anything is counted.
    #[arg(long, value_name = "SECONDS")]
    warmup: Option<f64>,
    /// Seconds that are counted.
    #[arg(long, value_name = "SECONDS")]
    duration: Option<f64>,
    /// Largest datagram that path discovery tries, bytes of UDP payload.
    #[arg(long, value_name = "BYTES")]
    mtu: Option<u16>,
}

impl Default for ShapeArgs {
    fn default() -> ShapeArgs {
        ShapeArgs {
            shape: CANONICAL.to_owned(),
            size: None,
            batch: None,
            acks: None,
            inflight: None,
            connections: None,
            streams: None,
            shards: None,
            subscribers: None,
            rate: None,
            warmup: None,
            duration: None,
            mtu: None,
        }
    }
}

impl ShapeArgs {
    pub fn shape(&self) -> Result<Shape, ShapeError> {
        self.changed(Shape::named(&self.shape)?)
    }

    /// That shape with what was given.
    fn changed(&self, named: Shape) -> Result<Shape, ShapeError> {
        let mut shape = Shape {
            record_bytes: self.size.unwrap_or(named.record_bytes),
            batch_records: self.batch.unwrap_or(named.batch_records),
            acks: match self.acks {
                Some(AcksArg::Batch) => Acks::Batch,
                Some(AcksArg::None) => Acks::None,
                None => named.acks,
            },
            inflight: self.inflight.unwrap_or(named.inflight),
            connections: self.connections.unwrap_or(named.connections),
            streams: self.streams.unwrap_or(named.streams),
            shards: self.shards.unwrap_or(named.shards),
            subscribers: self.subscribers.unwrap_or(named.subscribers),
            rate: self.rate.or(named.rate),
            warmup_s: self.warmup.unwrap_or(named.warmup_s),
            duration_s: self.duration.unwrap_or(named.duration_s),
            mtu: self.mtu.unwrap_or(named.mtu),
            ..named.clone()
        };
        if shape != named {
            shape.name.push_str(" (changed)");
        }
        Ok(shape)
    }
}

#[derive(Debug, Clone, clap::Args)]
pub struct LoadArgs {
    #[command(flatten)]
    workload: ShapeArgs,
    #[command(flatten)]
    pub requests: RequestArgs,
    /// How single requests are written.
    #[arg(long, value_enum, default_value_t = FormArg::Binary)]
    pub form: FormArg,
    #[arg(long, value_enum, default_value_t = To::Broker)]
    pub to: To,
    /// Ready file of a running `felix dev` or sink.
    #[arg(long, value_name = "FILE", conflicts_with = "addr")]
    pub dev: Option<PathBuf>,
    /// Address of a running broker; needs --ca and --token-file.
    #[arg(long, value_name = "IP:PORT", requires_all = ["ca", "token_file"])]
    addr: Option<SocketAddr>,
    /// Certificates to trust (PEM).
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// File with the token.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// What the broker's certificate must be good for [default: localhost].
    #[arg(long, value_name = "NAME")]
    server_name: Option<String>,
    /// Process whose CPU time is counted, when no ready file names it.
    #[arg(long, value_name = "PID")]
    server_pid: Option<u32>,
    #[arg(long)]
    tenant: Option<String>,
    #[arg(long)]
    namespace: Option<String>,
    #[arg(long, default_value = "bench")]
    pub stream: String,
    /// CPU of the load.
    #[arg(long, default_value_t = 1)]
    pub cpu: usize,
    /// CPU of a server that is started for the run.
    #[arg(long, default_value_t = 0)]
    pub server_cpu: usize,
    /// Framing of a sink that is started for the run.
    #[arg(long, value_enum, default_value_t = FramingArg::Stream)]
    framing: FramingArg,
    /// Run in a session of its own with the greatest scheduling weight.
    #[arg(long)]
    pub setsid: bool,
    /// Print one line of JSON.
    #[arg(long)]
    pub json: bool,
}

impl Default for LoadArgs {
    /// What no argument at all means.
    fn default() -> LoadArgs {
        LoadArgs {
            workload: ShapeArgs::default(),
            requests: RequestArgs::default(),
            form: FormArg::Binary,
            to: To::Broker,
            dev: None,
            addr: None,
            ca: None,
            token_file: None,
            server_name: None,
            server_pid: None,
            tenant: None,
            namespace: None,
            stream: "bench".to_owned(),
            cpu: 1,
            server_cpu: 0,
            framing: FramingArg::Stream,
            setsid: false,
            json: false,
        }
    }
}

impl LoadArgs {
    /// Single requests have a usual shape of their own, which the same flags change.
    pub fn shape(&self) -> Result<Shape, ShapeError> {
        let usual = self.requests.kind().map(|_| usual_shape());
        self.workload.changed(match usual.filter(|_| self.workload.shape == CANONICAL) {
            Some(usual) => usual,
            None => Shape::named(&self.workload.shape)?,
        })
    }

    /// Arguments of a sink for this load.
    pub fn sink_args(&self, shape: &Shape) -> Vec<String> {
        let mut args = vec![
            ("--cpu", self.server_cpu.to_string()),
            ("--mtu", shape.mtu.to_string()),
            ("--spin-us", "0".to_owned()),
            ("--framing", self.framing.name().to_owned()),
        ];
        match self.requests.kind() {
            Some(RequestKind::CacheGet) => args.push(("--value-bytes", shape.record_bytes.to_string())),
            Some(_) => args.push(("--value-bytes", "0".to_owned())),
            None => {}
        }
        args.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]).collect()
    }

    /// The target of --addr, if it was given.
    pub fn named_target(&self) -> Result<Option<Target>, TargetError> {
        let (Some(address), Some(ca), Some(token)) = (self.addr, &self.ca, &self.token_file) else {
            return Ok(None);
        };
        Ok(Some(Target {
            address,
            server_name: "localhost".to_owned(),
            roots: read_roots(ca)?,
            token: read(token)?.trim().to_owned(),
            tenant: "demo".to_owned(),
            namespace: "default".to_owned(),
            stream: self.stream.clone(),
            server_pid: None,
        }))
    }

    /// The target with what was given beside a ready file or an address.
    pub fn corrected(&self, target: Target) -> Target {
        Target {
            server_name: self.server_name.clone().unwrap_or(target.server_name),
            tenant: self.tenant.clone().unwrap_or(target.tenant),
            namespace: self.namespace.clone().unwrap_or(target.namespace),
            server_pid: self.server_pid.or(target.server_pid),
            ..target
        }
    }
}

#[derive(Debug, Clone, clap::Args)]
pub struct SinkArgs {
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:0")]
    pub bind: SocketAddr,
    /// CPU to stay on.
    #[arg(long)]
    pub cpu: Option<usize>,
    /// Largest datagram that path discovery tries, bytes of UDP payload.
    #[arg(long, default_value_t = 8_900)]
    pub mtu: u16,
    /// How long to look for work before parking, microseconds.
    #[arg(long, default_value_t = 50)]
    pub spin_us: u64,
    #[arg(long, value_enum, default_value_t = FramingArg::Stream)]
    pub framing: FramingArg,
    /// Hand publishes on to whoever subscribed, instead of throwing them away.
    #[arg(long, conflicts_with_all = ["framing", "driver"])]
    pub relay: bool,
    /// Answer single requests in their binary form with a value of so many bytes, for 0 with none.
    #[arg(long, value_name = "BYTES", conflicts_with_all = ["relay", "driver"])]
    pub value_bytes: Option<u32>,
    /// What carries the bytes.
    #[arg(long, value_enum, default_value_t = DriverArg::Felix)]
    pub driver: DriverArg,
    /// File to write once serving; certificate and token go beside it.
    #[arg(long, value_name = "FILE")]
    pub ready_file: Option<PathBuf>,
}

#[derive(Debug, Clone, clap::Args)]
pub struct CompareArgs {
    #[command(flatten)]
    workload: ShapeArgs,
    /// Runs of each, alternating.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// Ready file of a running broker; without one, `felix dev` is started for each round.
    #[arg(long, value_name = "FILE")]
    pub dev: Option<PathBuf>,
    #[arg(long, default_value = "bench")]
    pub stream: String,
    /// CPU of the load.
    #[arg(long, default_value_t = 1)]
    pub cpu: usize,
    /// CPU of both servers.
    #[arg(long, default_value_t = 0)]
    pub server_cpu: usize,
    /// Framing of the sink.
    #[arg(long, value_enum, default_value_t = FramingArg::Stream)]
    pub framing: FramingArg,
    /// Leave with status 4 when the broker costs more than this many times the sink.
    #[arg(long, value_name = "RATIO")]
    pub max_ratio: Option<f64>,
}

impl CompareArgs {
    pub fn shape(&self) -> Result<Shape, ShapeError> {
        self.workload.shape()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum CaseArg {
    /// Bulk writes to one shard against the raw disk.
    Write,
    /// Small batches over 48 shards against one.
    Shards,
    /// Reading a shard from its oldest record on against raw reads, beside a live publisher.
    History,
    All,
}

#[derive(Debug, Clone, clap::Args)]
pub struct CompareDiskArgs {
    /// What is compared.
    #[arg(long, value_enum, default_value_t = CaseArg::All)]
    case: CaseArg,
    /// Runs of each, alternating.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Seconds of each run that are counted.
    #[arg(long, default_value_t = 4.0, value_parser = seconds)]
    seconds: f64,
    /// Folder on the disk; what is made in it is removed.
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// Unanswered batches of each publishing stream, and operations in flight at the raw disk.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=64))]
    inflight: u32,
    /// MiB of a history, and of the file that is read beside it.
    #[arg(long, default_value_t = 2_048, value_parser = clap::value_parser!(u64).range(1..=1_048_576))]
    history_mib: u64,
    /// MiB that the logs of the write cases keep of each shard, and of the file that is written beside them.
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u64).range(1..=1_048_576))]
    keep_mib: u64,
    /// Batches per second of the live publisher beside the history.
    #[arg(long, default_value_t = 400.0, value_parser = rate)]
    live_rate: f64,
    /// Largest datagram that path discovery tries, bytes of UDP payload.
    #[arg(long, default_value_t = 3_872)]
    mtu: u16,
    /// CPU of the load.
    #[arg(long, default_value_t = 1)]
    cpu: usize,
    /// CPU of the broker and of what asks the raw disk.
    #[arg(long, default_value_t = 0)]
    server_cpu: usize,
    /// Least durable payload over raw disk [default: 0.85]; a busier core than 95 % passes too.
    #[arg(long, value_name = "RATIO")]
    min_write_ratio: Option<f64>,
    /// Least rate over 48 shards over the rate over one [default: 0.80].
    #[arg(long, value_name = "RATIO")]
    min_shards_ratio: Option<f64>,
    /// Least history over raw reads [default: 0.70]; 1000 MB/s pass too.
    #[arg(long, value_name = "RATIO")]
    min_history_ratio: Option<f64>,
    /// Least rate of the live publisher beside the history over its rate alone [default: 0.90].
    #[arg(long, value_name = "RATIO")]
    min_live_ratio: Option<f64>,
    /// Print one line of JSON.
    #[arg(long)]
    pub json: bool,
}

/// A length that CPU time can be read for, and that ends.
pub fn seconds(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if (0.1..=3_600.0).contains(&value) { Ok(value) } else { Err("0.1 to 3600 are allowed".to_owned()) }
}

fn rate(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if value.is_finite() && value > 0.0 { Ok(value) } else { Err("it must be above 0".to_owned()) }
}

impl CompareDiskArgs {
    pub fn comparison(&self) -> DiskComparison {
        let is = |case| self.case == CaseArg::All || self.case == case;
        let usual = Bounds::default();
        DiskComparison {
            cases: Cases {
                write: is(CaseArg::Write),
                shards: is(CaseArg::Shards),
                history: is(CaseArg::History),
            },
            rounds: self.rounds,
            seconds: self.seconds,
            dir: self.dir.clone(),
            server_cpu: self.server_cpu,
            client_cpu: self.cpu,
            depth: self.inflight,
            history_bytes: self.history_mib << 20,
            kept_bytes: self.keep_mib << 20,
            live_rate: self.live_rate,
            mtu: self.mtu,
            bounds: Bounds {
                write_ratio_min: self.min_write_ratio.unwrap_or(usual.write_ratio_min),
                shards_ratio_min: self.min_shards_ratio.unwrap_or(usual.shards_ratio_min),
                history_ratio_min: self.min_history_ratio.unwrap_or(usual.history_ratio_min),
                live_ratio_min: self.min_live_ratio.unwrap_or(usual.live_ratio_min),
                ..usual
            },
        }
    }
}
