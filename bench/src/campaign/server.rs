//! The server of one trial. Scope: from its start to its end.
//! Owns: its process and folder, or the streams made for the trial on a broker that runs already.
//! Invariants: the folder is new and is removed with everything in it; a started server is ended, whatever happens.
//! Not here: loading it (`trial`).

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use tempfile::TempDir;

use super::CampaignError;
use super::cell::{Cell, System};
use super::file::Campaign;
use crate::cluster::{self, ClusterError, DevBroker, SinkProcess};
use crate::scrape;
use crate::target::Ready;

/// See the module.
pub struct Server {
    ready: Ready,
    /// Names of the streams of this trial.
    pub streams: Vec<String>,
    held: Held,
}

/// What ends with the trial. The server goes before its folder.
enum Held {
    Broker { _broker: DevBroker, _folder: TempDir },
    Sink { _sink: SinkProcess, _folder: TempDir },
    Running { ready_file: PathBuf },
}

impl Server {
    /// Starts what the cell asks for, with `streams` streams.
    pub fn start(
        campaign: &Campaign,
        cell: &Cell,
        program: &Path,
        streams: usize,
    ) -> Result<Server, CampaignError> {
        let running = campaign.distributed.as_ref().and_then(|distributed| distributed.ready_file.as_deref());
        match (cell.system, running) {
            (System::Sink, _) => Server::sink(cell, program),
            (System::Broker, Some(ready_file)) => Server::running(ready_file, cell, streams),
            (System::Broker, None) => Server::broker(campaign, cell, streams),
        }
    }

    fn broker(campaign: &Campaign, cell: &Cell, streams: usize) -> Result<Server, CampaignError> {
        let folder = if cell.shape.storage.is_durable() {
            in_folder(&campaign.data_dir)?
        } else {
            in_folder(&std::env::temp_dir())?
        };
        let settings = cell.settings();
        let args: Vec<&str> = settings.iter().flat_map(|setting| ["--set", setting]).collect();
        let broker = DevBroker::start(folder.path(), &cell.server_cores, &args)?;
        let ready = broker.ready().clone();
        let streams: Vec<String> = (0..streams).map(|number| format!("bench-{number}")).collect();
        for name in &streams {
            make(broker.ready_file(), cell, name)?;
        }
        Ok(Server { ready, streams, held: Held::Broker { _broker: broker, _folder: folder } })
    }

    fn sink(cell: &Cell, program: &Path) -> Result<Server, CampaignError> {
        let folder = in_folder(&std::env::temp_dir())?;
        let cpu = cell.cores().first().copied().unwrap_or(0);
        let args = [
            ("--cpu", cpu.to_string()),
            ("--mtu", cell.shape.mtu.to_string()),
            ("--spin-us", cell.spin_us().to_owned()),
        ];
        let args: Vec<String> = args.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]).collect();
        let sink = SinkProcess::start(program, folder.path(), &args)?;
        let ready = sink.ready().clone();
        Ok(Server { ready, streams: Vec::new(), held: Held::Sink { _sink: sink, _folder: folder } })
    }

    fn running(ready_file: &Path, cell: &Cell, streams: usize) -> Result<Server, CampaignError> {
        let ready = Ready::read(ready_file)?;
        let mut server =
            Server { ready, streams: Vec::new(), held: Held::Running { ready_file: ready_file.to_owned() } };
        for number in 0..streams {
            // A name that no earlier trial had: removing a stream may take a while.
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let name = format!("bench-{}-{number}", now.as_millis());
            make(ready_file, cell, &name)?;
            server.streams.push(name);
        }
        Ok(server)
    }

    #[must_use]
    pub fn ready(&self) -> &Ready {
        &self.ready
    }

    /// The stream of one generator; a sink takes any name.
    #[must_use]
    pub fn stream(&self, generator: usize) -> &str {
        self.streams.get(generator).map_or("bench-0", String::as_str)
    }

    /// Where its counters are, if it has any.
    #[must_use]
    pub fn metrics(&self) -> Option<SocketAddr> {
        scrape::address(&self.ready).ok()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Held::Running { ready_file } = &self.held {
            for name in &self.streams {
                // What was made for the trial goes; a refusal leaves it and the next trial has another process.
                if let Err(error) = cluster::stream_command(ready_file, &["rm", name, "--yes"]) {
                    eprintln!("felix-bench: {name} is left behind: {error}");
                }
            }
        }
    }
}

fn make(ready_file: &Path, cell: &Cell, name: &str) -> Result<(), ClusterError> {
    let shards = cell.shape.shards.to_string();
    let durable: &[&str] = if cell.shape.storage.is_durable() { &["--durable"] } else { &[] };
    cluster::stream_command(ready_file, &[&["create", name, "--shards", &shards], durable].concat())
}

fn in_folder(parent: &Path) -> Result<TempDir, CampaignError> {
    let made = tempfile::Builder::new().prefix("felix-campaign-").tempdir_in(parent);
    made.map_err(|error| CampaignError::Io { path: parent.to_owned(), error })
}
