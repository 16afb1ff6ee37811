//! The broker and its peers in alternating rounds. Scope: one comparison.
//! Owns: the order of rounds, the servers of a round, which rows may be shown.
//! Invariants: one server runs at a time, on the same CPU, in a folder of its own that was empty; the load runs on the other
//! CPU; a row with a run that was not clean is refused, and so is one that did not run, with the reason.
//! Not here: what an answer promises (`system`), how the table looks (`table`).

use std::path::{Path, PathBuf};

use super::nats::{Keeps, NatsServer};
use super::programs::{NATS_SERVER, REDIS_BENCHMARK, REDIS_SERVER};
use super::redis::{self, Aof, RedisCommand, RedisServer};
use super::system::{Promise, System};
use super::table::{PeersReport, Refused, Row};
use super::{PeerError, on_cpu};
use crate::cluster::{DevBroker, SinkProcess};
use crate::load::{self, LoadPlan};
use crate::machine::{Machine, load_average};
use crate::measure::LoadReport;
use crate::shape::{Acks, Shape, ShapeError};
use crate::target::{Ready, Target};
use crate::volume::FileSystem;

const STREAM: &str = "peers";

/// What is compared, and where.
#[derive(Debug, Clone)]
pub struct PeersComparison {
    pub systems: Vec<System>,
    /// A system that cannot be started ends the comparison; otherwise its row says so.
    pub all_must_run: bool,
    pub shape: Shape,
    /// Runs of each.
    pub rounds: u32,
    /// Where servers keep their files: on a disk.
    pub dir: PathBuf,
    pub server_cpu: usize,
    pub client_cpu: usize,
    /// This program, to start as a sink.
    pub program: PathBuf,
}

impl PeersComparison {
    /// # Errors
    /// The shape cannot be sent to every peer, or the folder is not on a disk.
    pub fn check(&self) -> Result<FileSystem, PeerError> {
        let shape = &self.shape;
        shape.check().map_err(PeerError::Shape)?;
        let broken = |rule: &str| {
            PeerError::Shape(ShapeError::Rule { shape: shape.name.clone(), rule: rule.to_owned() })
        };
        if shape.acks != Acks::Batch {
            return Err(broken("peers are compared by what they answer: every batch must be acked"));
        }
        if shape.subscribers > 0 || shape.shards > 1 || shape.rate.is_some() {
            return Err(broken("peers are compared in a closed loop on one shard without subscribers"));
        }
        super::on_a_disk(&self.dir)?;
        FileSystem::of(&self.dir).map_err(|error| PeerError::Folder { dir: self.dir.clone(), error })
    }
}

/// Compares.
///
/// # Errors
/// As `check`, or a system that must run could not be started. Everything started is ended.
pub fn run(comparison: &PeersComparison) -> Result<PeersReport, PeerError> {
    let file_system = comparison.check()?;
    let before = load_average();
    let mut runs: Vec<(System, Vec<LoadReport>, Option<Refused>)> = Vec::new();
    for system in &comparison.systems {
        match missing(*system) {
            Err(error) if comparison.all_must_run => return Err(error),
            outcome => runs.push((
                *system,
                Vec::new(),
                outcome.err().map(|error| Refused::Missing(error.to_string())),
            )),
        }
    }
    for round in 1..=comparison.rounds {
        for (system, reports, refused) in &mut runs {
            if refused.is_some() {
                continue;
            }
            match one(comparison, *system) {
                Ok(report) => {
                    let per_s = report.batches_per_s() * f64::from(report.shape.batch_records);
                    eprintln!(
                        "round {round}: {}: {per_s:.0} records/s, ack {}",
                        system.name(),
                        report.ack_latency
                    );
                    reports.push(report);
                }
                Err(error) if comparison.all_must_run => return Err(error),
                Err(error) => *refused = Some(Refused::Failed(error.to_string())),
            }
        }
    }
    Ok(PeersReport {
        kind: "peers",
        shape: comparison.shape.clone(),
        machine: Machine::look(),
        file_system,
        server_cpu: comparison.server_cpu,
        client_cpu: comparison.client_cpu,
        load_average: (before, load_average()),
        rows: Row::all(runs),
    })
}

/// What a system needs and this machine does not have.
///
/// # Errors
/// That.
pub fn missing(system: System) -> Result<(), PeerError> {
    match system {
        System::FelixMemory | System::FelixPeriodic | System::FelixOnCommit | System::Sink => Ok(()),
        System::NatsCore | System::NatsMemory | System::NatsFile | System::NatsAlways => {
            if !cfg!(feature = "peers") {
                return Err(PeerError::NoFeature { name: system.name() });
            }
            NATS_SERVER.find().map(|_| ())
        }
        System::RedisBenchmarkSetAlways => REDIS_SERVER.find().and(REDIS_BENCHMARK.find()).map(|_| ()),
        System::RedisXadd
        | System::RedisXaddEverysec
        | System::RedisXaddAlways
        | System::RedisSet
        | System::RedisSetAlways
        | System::RedisGet => REDIS_SERVER.find().map(|_| ()),
    }
}

/// One run of one system.
///
/// # Errors
/// It is not there or could not be started, or its load could not be run. Everything started is ended.
pub fn one(comparison: &PeersComparison, system: System) -> Result<LoadReport, PeerError> {
    let folder = super::folder(&comparison.dir)?;
    let folder = folder.path();
    match system {
        System::FelixMemory | System::FelixPeriodic | System::FelixOnCommit => {
            felix(comparison, system, folder)
        }
        System::Sink => {
            let args = [
                "--cpu",
                &comparison.server_cpu.to_string(),
                "--mtu",
                &comparison.shape.mtu.to_string(),
                "--spin-us",
                "0",
            ];
            let args: Vec<String> = args.into_iter().map(str::to_owned).collect();
            let sink = SinkProcess::start(&comparison.program, folder, &args)?;
            publish(comparison, system, sink.ready())
        }
        System::NatsCore => nats(comparison, system, Keeps::Nothing, folder),
        System::NatsMemory => nats(comparison, system, Keeps::Memory, folder),
        System::NatsFile => nats(comparison, system, Keeps::File, folder),
        System::NatsAlways => nats(comparison, system, Keeps::FileAlways, folder),
        System::RedisXadd => redis(comparison, system, (Aof::Off, RedisCommand::Xadd), folder),
        System::RedisXaddEverysec => redis(comparison, system, (Aof::Everysec, RedisCommand::Xadd), folder),
        System::RedisXaddAlways => redis(comparison, system, (Aof::Always, RedisCommand::Xadd), folder),
        System::RedisSet => redis(comparison, system, (Aof::Off, RedisCommand::Set), folder),
        System::RedisSetAlways => redis(comparison, system, (Aof::Always, RedisCommand::Set), folder),
        System::RedisGet => redis(comparison, system, (Aof::Off, RedisCommand::Get), folder),
        System::RedisBenchmarkSetAlways => {
            let server = RedisServer::start(Aof::Always, comparison.server_cpu, folder)?;
            let at = (server.address(), server.pid());
            redis::benchmark::run(system.name(), at, &comparison.shape, comparison.client_cpu)
        }
    }
}

fn felix(comparison: &PeersComparison, system: System, folder: &Path) -> Result<LoadReport, PeerError> {
    let mut settings = vec!["spin_us=0".to_owned(), format!("mtu_upper_bound={}", comparison.shape.mtu)];
    let promise = system.about().promise;
    match promise {
        Promise::Read | Promise::Memory => {}
        Promise::Written => settings.push("fsync=periodic".to_owned()),
        Promise::Synced => settings.push("fsync=on_commit".to_owned()),
    }
    let args: Vec<&str> = settings.iter().flat_map(|setting| ["--set", setting]).collect();
    let broker = DevBroker::start(folder, &comparison.server_cpu.to_string(), &args)?;
    if promise == Promise::Memory {
        broker.create_stream(STREAM, 1)?;
    } else {
        broker.create_durable_stream(STREAM, 1)?;
    }
    publish(comparison, system, broker.ready())
}

/// A load over the client protocol.
fn publish(comparison: &PeersComparison, system: System, ready: &Ready) -> Result<LoadReport, PeerError> {
    let plan = LoadPlan {
        name: system.name().to_owned(),
        target: Target::from_ready(ready, STREAM)?,
        shape: comparison.shape.clone(),
    };
    on_cpu(comparison.client_cpu, system.name(), move || load::run(&plan))
}

#[cfg(feature = "peers")]
fn nats(
    comparison: &PeersComparison,
    system: System,
    keeps: Keeps,
    folder: &Path,
) -> Result<LoadReport, PeerError> {
    let server = NatsServer::start(keeps, comparison.server_cpu, folder)?;
    let (at, shape) = ((server.address(), Some(server.pid())), comparison.shape.clone());
    on_cpu(comparison.client_cpu, system.name(), move || super::nats::run(system.name(), at, &shape, keeps))
}

#[cfg(not(feature = "peers"))]
fn nats(
    comparison: &PeersComparison,
    system: System,
    keeps: Keeps,
    folder: &Path,
) -> Result<LoadReport, PeerError> {
    // Its server can be started; its client is not built in.
    let _ = NatsServer::start(keeps, comparison.server_cpu, folder)?;
    Err(PeerError::NoFeature { name: system.name() })
}

fn redis(
    comparison: &PeersComparison,
    system: System,
    (aof, command): (Aof, RedisCommand),
    folder: &Path,
) -> Result<LoadReport, PeerError> {
    let server = RedisServer::start(aof, comparison.server_cpu, folder)?;
    let (at, shape) = ((server.address(), Some(server.pid())), comparison.shape.clone());
    on_cpu(comparison.client_cpu, system.name(), move || redis::run(system.name(), at, &shape, command))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn comparison(change: impl FnOnce(&mut Shape)) -> PeersComparison {
        let mut shape = Shape::canonical();
        change(&mut shape);
        PeersComparison {
            systems: vec![System::FelixMemory],
            all_must_run: true,
            shape,
            rounds: 1,
            dir: std::env::temp_dir(),
            server_cpu: 0,
            client_cpu: 1,
            program: PathBuf::from("felix-bench"),
        }
    }

    #[test]
    fn a_shape_that_peers_cannot_answer_is_refused_before_anything_runs() {
        let changes: [fn(&mut Shape); 5] = [
            |shape| shape.acks = Acks::None,
            |shape| shape.subscribers = 1,
            |shape| shape.shards = 2,
            |shape| shape.rate = Some(10.0),
            |shape| shape.inflight = 0,
        ];
        for change in changes {
            assert!(matches!(comparison(change).check(), Err(PeerError::Shape(_))));
        }
    }

    #[test]
    fn a_folder_that_is_not_there_is_refused() {
        let comparison = PeersComparison { dir: PathBuf::from("/nowhere/at/all"), ..comparison(|_| {}) };
        assert!(matches!(run(&comparison).unwrap_err(), PeerError::Folder { .. }));
    }

    #[cfg(not(feature = "peers"))]
    #[test]
    fn a_build_without_clients_says_so() {
        assert!(matches!(missing(System::NatsCore), Err(PeerError::NoFeature { name: "nats-core" })));
        let comparison = PeersComparison { systems: vec![System::NatsCore], ..comparison(|_| {}) };
        // On a disk or not, nothing is started.
        assert!(matches!(
            run(&comparison).unwrap_err(),
            PeerError::NoFeature { .. } | PeerError::InMemory { .. }
        ));
    }
}
