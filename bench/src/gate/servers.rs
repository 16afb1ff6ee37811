//! The servers of a run. Scope: one run.
//! Owns: their processes and folders; they end with this value.
//! Invariants: a server is started when it is first asked for and then kept, so a round does not measure its start; the logs
//! of durable streams use their blocks again before anything is measured.
//! Not here: what is sent to them (`trial`).

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::GateError;
use super::arm::Server;
use super::rows::bulk;
use super::run::GatePlan;
use crate::cluster::{DevBroker, SinkProcess};
use crate::compare_disk::brokers;
use crate::peers::compare_echo::EchoMode;
use crate::raw_disk::RawFile;
use crate::scrape::{self, Page};
use crate::shape::{Shape, Storage};
use crate::target::{Ready, Target};

/// What is written before writes are counted: so many times what a log keeps.
const LAPS_BEFORE: u64 = 2;
/// A log keeps two of its shortest segments at least.
const KEPT_BYTES_MIN: u64 = 32 << 20;
/// A shard of 48 keeps this part of what a log alone keeps.
const KEPT_PART: u64 = 16;
/// The stream that a load beside another one writes to.
const BESIDE: &str = "gate-beside";
/// Connections of one address where idle ones are measured.
const ONE_ADDRESS_CONNECTIONS: u32 = 4_096;
/// How long a spinning server looks for work before it parks; the broker's default.
const SPIN_US: u32 = 50;

enum Held {
    Broker(DevBroker),
    Sink(SinkProcess),
}

impl Held {
    fn ready(&self) -> &Ready {
        match self {
            Held::Broker(broker) => broker.ready(),
            Held::Sink(sink) => sink.ready(),
        }
    }
}

/// See the module.
pub struct Servers<'p> {
    plan: &'p GatePlan,
    /// On the disk; removed with everything in it at the end, after the servers have ended.
    held: Vec<(Server, Held)>,
    echoes: Vec<(EchoMode, SinkProcess)>,
    streams: Vec<(Server, &'static str)>,
    raw: Option<RawFile>,
    /// Bulk batches per second that keep half a core of the broker in memory busy.
    pub half_rate: Option<f64>,
    folders: u32,
    folder: TempDir,
}

/// The stream for a width. Widths are those of the table.
fn stream_of(shards: u32) -> &'static str {
    match shards {
        1 => "gate-1",
        2 => "gate-2",
        _ => "gate-48",
    }
}

impl<'p> Servers<'p> {
    pub fn new(plan: &'p GatePlan) -> Result<Servers<'p>, GateError> {
        let folder = tempfile::Builder::new()
            .prefix("felix-gate-")
            .tempdir_in(&plan.dir)
            .map_err(|error| GateError::Folder { dir: plan.dir.clone(), error })?;
        Ok(Servers {
            plan,
            held: Vec::new(),
            echoes: Vec::new(),
            streams: Vec::new(),
            raw: None,
            half_rate: None,
            folders: 0,
            folder,
        })
    }

    /// Where a load of `shape` to `server` goes.
    pub fn target(&mut self, server: Server, shape: &Shape) -> Result<Target, GateError> {
        self.stream_target(server, stream_of(shape.shards), shape.shards)
    }

    /// Where the bulk load beside another one goes: another stream, another shard of the same core.
    pub fn target_beside(&mut self, server: Server) -> Result<Target, GateError> {
        self.stream_target(server, BESIDE, 1)
    }

    fn stream_target(
        &mut self,
        server: Server,
        stream: &'static str,
        shards: u32,
    ) -> Result<Target, GateError> {
        let index = self.started(server)?;
        let (_, held) = &self.held[index];
        if let Held::Broker(broker) = held
            && !self.streams.contains(&(server, stream))
        {
            make_stream(self.plan, server, broker, stream, shards)?;
            self.streams.push((server, stream));
        }
        Ok(Target::from_ready(held.ready(), stream)?)
    }

    /// What a server that was started counts, where it counts anything.
    pub fn counted(&self, server: Server) -> Option<Page> {
        let (_, held) = self.held.iter().find(|(held, _)| *held == server)?;
        Page::read(scrape::address(held.ready()).ok()?).ok()
    }

    /// Ends a server; the next one asked for is another process.
    pub fn end(&mut self, server: Server) {
        self.held.retain(|(held, _)| *held != server);
        self.streams.retain(|(held, _)| *held != server);
    }

    /// Where requests to the echo go.
    pub fn echo(&mut self, mode: EchoMode) -> Result<Target, GateError> {
        if let Some((_, echo)) = self.echoes.iter().find(|(held, _)| *held == mode) {
            return Ok(Target::from_ready(echo.ready(), "")?);
        }
        let dir = self.new_folder()?;
        let spin_us = if mode == EchoMode::Spinning { SPIN_US } else { 0 };
        let mut args = self.sink_args(spin_us);
        if mode == EchoMode::OnCommit {
            args.extend(["--commit-dir".to_owned(), dir.to_string_lossy().into_owned()]);
        }
        let echo = SinkProcess::start_as("echo", &self.plan.program, &dir, &args)?;
        let target = Target::from_ready(echo.ready(), "")?;
        self.echoes.push((mode, echo));
        Ok(target)
    }

    /// The file that the raw disk is asked with, as long as the log of a broker.
    pub fn raw(&mut self) -> Result<RawFile, GateError> {
        if let Some(file) = &self.raw {
            return Ok(file.clone());
        }
        let file = RawFile::make(self.folder.path(), "raw", self.plan.kept_bytes, self.plan.server_cpu)?;
        self.raw = Some(file.clone());
        Ok(file)
    }

    /// Where servers of others keep their files.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    fn new_folder(&mut self) -> Result<PathBuf, GateError> {
        self.folders += 1;
        let dir = self.folder.path().join(format!("server-{}", self.folders));
        fs::create_dir(&dir).map_err(|error| GateError::Folder { dir: dir.clone(), error })?;
        Ok(dir)
    }

    fn started(&mut self, server: Server) -> Result<usize, GateError> {
        if let Some(index) = self.held.iter().position(|(held, _)| *held == server) {
            return Ok(index);
        }
        let dir = self.new_folder()?;
        let plan = self.plan;
        let held = match server {
            Server::Sink => Held::Sink(SinkProcess::start(&plan.program, &dir, &self.sink_args(0))?),
            Server::QuinnSink => {
                let args = [self.sink_args(0), vec!["--driver".to_owned(), "quinn".to_owned()]].concat();
                Held::Sink(SinkProcess::start(&plan.program, &dir, &args)?)
            }
            Server::Relay => {
                let args = [self.sink_args(0), vec!["--relay".to_owned()]].concat();
                Held::Sink(SinkProcess::start(&plan.program, &dir, &args)?)
            }
            _ => Held::Broker(start_broker(plan, server, &dir)?),
        };
        self.held.push((server, held));
        Ok(self.held.len() - 1)
    }

    fn sink_args(&self, spin_us: u32) -> Vec<String> {
        let plan = self.plan;
        let args = [
            ("--cpu", plan.server_cpu.to_string()),
            ("--mtu", plan.mtu().to_string()),
            ("--spin-us", spin_us.to_string()),
        ];
        args.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]).collect()
    }
}

/// What a log of the server keeps of a shard, bytes; `None` in memory.
fn kept_bytes(plan: &GatePlan, server: Server) -> Option<u64> {
    match server {
        Server::OnCommit => Some(plan.kept_bytes.max(KEPT_BYTES_MIN)),
        Server::OnCommitShards => Some((plan.kept_bytes / KEPT_PART).max(KEPT_BYTES_MIN)),
        _ => None,
    }
}

fn start_broker(plan: &GatePlan, server: Server, dir: &Path) -> Result<DevBroker, GateError> {
    let kept = kept_bytes(plan, server);
    let mut settings = brokers::settings(plan.mtu(), kept);
    if kept.is_none() {
        settings.retain(|setting| !setting.starts_with("fsync="));
    }
    if server == Server::MemorySpinning {
        settings.retain(|setting| !setting.starts_with("spin_us="));
        settings.push(format!("spin_us={SPIN_US}"));
    }
    if server == Server::FreshMemory {
        // All idle connections are of one address.
        settings.push(format!("max_connections_per_ip={ONE_ADDRESS_CONNECTIONS}"));
    }
    let cores = if server == Server::TwoCores {
        format!("{},{}", plan.server_cpu, plan.client_cpu)
    } else {
        plan.server_cpu.to_string()
    };
    let args: Vec<&str> = settings.iter().flat_map(|setting| ["--set", setting]).collect();
    Ok(DevBroker::start(dir, &cores, &args)?)
}

fn make_stream(
    plan: &GatePlan,
    server: Server,
    broker: &DevBroker,
    stream: &'static str,
    shards: u32,
) -> Result<(), GateError> {
    let Some(kept) = kept_bytes(plan, server) else {
        return Ok(broker.create_stream(stream, shards)?);
    };
    broker.create_durable_stream(stream, shards)?;
    let shape = Shape { storage: Storage::FsyncOnCommit, streams: shards, shards, ..bulk(8) };
    let bytes = LAPS_BEFORE * kept * u64::from(shards);
    Ok(brokers::preload(plan.client_cpu, broker, stream, &shape, bytes)?)
}
