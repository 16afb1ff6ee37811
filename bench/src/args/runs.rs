//! Arguments of the commands that keep what they measure. Scope: read once at start.
//! Not here: what the commands do (`runs`).

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::ValueEnum;
use felix_bench::sweep::Knob;

/// Where a run happens and where its folder goes.
#[derive(Debug, Clone, clap::Args)]
pub struct PlaceArgs {
    /// Runs of each cell.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub trials: u32,
    /// CPUs of the server, such as 0,2-3.
    #[arg(long, value_name = "LIST", default_value = "0")]
    pub server_cores: String,
    /// CPU of the load.
    #[arg(long, default_value_t = 1)]
    pub cpu: usize,
    /// Folder on the disk that durable streams are kept in; what is made in it is removed.
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub data_dir: PathBuf,
    /// Folder that the folder of the run is made in.
    #[arg(long, value_name = "DIR", default_value = "felix-bench-runs")]
    pub out: PathBuf,
    /// Setting of the broker, key=value; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = setting)]
    pub settings: Vec<(String, String)>,
}

fn setting(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("not key=value")?;
    if key.is_empty() { Err("no key".to_owned()) } else { Ok((key.to_owned(), value.to_owned())) }
}

#[derive(Debug, Clone, clap::Args)]
pub struct RunArgs {
    /// A built-in shape (canonical, unacked, small, fanout, connections) or a file of one.
    pub shape: String,
    #[command(flatten)]
    pub place: PlaceArgs,
}

#[derive(Debug, Clone, clap::Args)]
pub struct CampaignArgs {
    /// The campaign, TOML.
    pub file: PathBuf,
    /// Folder that the folder of the run is made in.
    #[arg(long, value_name = "DIR", default_value = "felix-bench-runs")]
    pub out: PathBuf,
    /// Only check the file and list its cells.
    #[arg(long)]
    pub list: bool,
}

#[derive(Debug, Clone, clap::Args)]
pub struct CompareRunsArgs {
    /// Folder of the run that is compared with.
    pub a: PathBuf,
    /// Folder of the run that is judged.
    pub b: PathBuf,
    /// Print one line of JSON.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum KnobArg {
    Shards,
    Cores,
    Mtu,
    Batch,
}

impl From<KnobArg> for Knob {
    fn from(knob: KnobArg) -> Knob {
        match knob {
            KnobArg::Shards => Knob::Shards,
            KnobArg::Cores => Knob::Cores,
            KnobArg::Mtu => Knob::Mtu,
            KnobArg::Batch => Knob::Batch,
        }
    }
}

#[derive(Debug, Clone, clap::Args)]
pub struct SweepArgs {
    /// What is varied. The server may use --server-cores, for `cores` the first one, two and so on of them.
    #[arg(value_enum)]
    pub knob: KnobArg,
    /// A built-in shape or a file of one.
    #[arg(long, default_value = "canonical")]
    pub shape: String,
    #[command(flatten)]
    pub place: PlaceArgs,
}

#[derive(Debug, Clone, clap::Args)]
pub struct PreflightArgs {
    /// CPUs that servers and load are going to use.
    #[arg(long, value_name = "LIST", default_value = "0-1")]
    pub cpus: String,
    /// The largest datagram that is going to be tried, bytes of UDP payload.
    #[arg(long, default_value_t = 8_900)]
    pub mtu: u16,
    /// Folder on the disk that is to be qualified; without it no disk is looked at.
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Print one line of JSON.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Clone, clap::Args)]
pub struct AgentArgs {
    /// Address to wait for drivers at.
    #[arg(long, value_name = "IP:PORT")]
    pub listen: SocketAddr,
    /// File with the words that a driver must know, 16 characters or more.
    #[arg(long, value_name = "FILE")]
    pub token_file: PathBuf,
    /// CPU of the load.
    #[arg(long, default_value_t = 0)]
    pub cpu: usize,
}
