//! The commands that keep what they measure. Scope: one command per process.
//! Not here: their arguments (`args::runs`), measuring (`felix_bench`).

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use felix_bench::agent::{Agent, AgentError, read_token};
use felix_bench::campaign::cell::parse_cores;
use felix_bench::campaign::{
    self, Campaign, CampaignError, Cell, FileError, FolderError, Kind, Plan, RunFolder, RunResult, System,
};
use felix_bench::judge::judge;
use felix_bench::machine::raise_priority;
use felix_bench::preflight::{Preflight, PreflightError, PreflightPlan};
use felix_bench::shape::{Shape, ShapeError};
use felix_bench::sweep::{self, SweepError};

use crate::args::runs::{
    AgentArgs, CampaignArgs, CompareRunsArgs, PlaceArgs, PreflightArgs, RunArgs, SweepArgs,
};

/// B is worse than A.
const WORSE: u8 = 4;
/// Nothing was compared, or trials do not tell.
const UNCLEAR: u8 = 5;

/// Why a command came to nothing.
#[derive(Debug, thiserror::Error)]
pub enum RunsError {
    #[error(transparent)]
    Campaign(#[from] CampaignError),
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Folder(#[from] FolderError),
    #[error(transparent)]
    Shape(#[from] ShapeError),
    #[error(transparent)]
    Sweep(#[from] SweepError),
    #[error(transparent)]
    Preflight(#[from] PreflightError),
    #[error(transparent)]
    Agent(#[from] AgentError),
    #[error("{what}: {error}")]
    Io { what: String, error: std::io::Error },
    #[error("a result cannot be written as JSON: {0}")]
    Json(#[from] serde_json::Error),
    #[error("{0}")]
    Usage(&'static str),
}

pub fn one(args: &RunArgs) -> Result<ExitCode, RunsError> {
    let cell = cell(&args.shape, &args.place)?;
    let place = &args.place;
    let text = toml::to_string(&cell.shape).unwrap_or_default();
    let campaign = Campaign::of_one(cell, place.trials, place.cpu, place.data_dir.clone())?;
    kept(campaign, text, &place.out)
}

pub fn campaign(args: &CampaignArgs) -> Result<ExitCode, RunsError> {
    let campaign = Campaign::read(&args.file)?;
    if args.list {
        campaign.cells.iter().for_each(|cell| println!("{}", cell.name));
        return Ok(ExitCode::SUCCESS);
    }
    let text = std::fs::read_to_string(&args.file)
        .map_err(|error| RunsError::Io { what: args.file.display().to_string(), error })?;
    kept(campaign, text, &args.out)
}

pub fn compare(args: &CompareRunsArgs) -> Result<ExitCode, RunsError> {
    let (_, a) = RunFolder::open(&args.a)?;
    let (_, b) = RunFolder::open(&args.b)?;
    let judgement = judge(&a, &b);
    if args.json {
        println!("{}", serde_json::to_string(&judgement)?);
    } else {
        print!("{judgement}");
    }
    Ok(match (judgement.is_worse(), judgement.is_clear()) {
        (true, _) => ExitCode::from(WORSE),
        (false, true) => ExitCode::SUCCESS,
        (false, false) => ExitCode::from(UNCLEAR),
    })
}

pub fn sweep(args: &SweepArgs) -> Result<ExitCode, RunsError> {
    let place = &args.place;
    let mut first = cell(&args.shape, place)?;
    let cpus =
        parse_cores(&place.server_cores).ok_or(RunsError::Usage("--server-cores is no list of CPUs"))?;
    if args.knob == crate::args::runs::KnobArg::Cores {
        if cpus.len() < 2 {
            return Err(RunsError::Usage("a sweep of cores needs two of them at least in --server-cores"));
        }
        if cpus.contains(&place.cpu) {
            return Err(RunsError::Usage("the load would run on a CPU of the server; see --cpu"));
        }
        first.server_cores = cpus[0].to_string();
    }
    let tries = sweep::tries(args.knob.into(), &first, &cpus)?;
    let campaign = Campaign {
        name: format!("sweep-{}", first.name),
        trials: place.trials,
        client_cpu: place.cpu,
        data_dir: place.data_dir.clone(),
        cells: tries.iter().map(|each| each.cell.clone()).collect(),
        distributed: None,
    };
    campaign.check()?;
    let (folder, result) = measured(campaign, String::new(), &place.out)?;
    eprintln!("{}", folder.report().display());
    println!("{}", sweep::best(&tries, &result)?.line);
    Ok(status(&result))
}

pub fn preflight(args: &PreflightArgs) -> Result<ExitCode, RunsError> {
    let cpus = parse_cores(&args.cpus).ok_or(RunsError::Usage("--cpus is no list of CPUs"))?;
    raise_priority();
    let found = Preflight::take(&PreflightPlan {
        server_cores: u16::try_from(cpus.len()).unwrap_or(u16::MAX),
        cpus,
        mtu: args.mtu,
        address: std::net::Ipv4Addr::LOCALHOST.into(),
        disk: args.data_dir.clone(),
        spin: Duration::from_millis(500),
        disk_row: Duration::from_millis(500),
    })?;
    if args.json {
        println!("{}", serde_json::to_string(&found)?);
    } else {
        print!("{found}");
    }
    Ok(ExitCode::SUCCESS)
}

pub fn agent(args: &AgentArgs) -> Result<ExitCode, RunsError> {
    let agent = Agent::bind(args.listen, read_token(&args.token_file)?, args.cpu)?;
    // Whoever starts it on a free port reads which.
    let address =
        agent.address().map_err(|error| RunsError::Io { what: "the listener".to_owned(), error })?;
    println!("{address}");
    agent.serve();
    Ok(ExitCode::SUCCESS)
}

/// A shape as a cell of its own.
fn cell(shape: &str, place: &PlaceArgs) -> Result<Cell, RunsError> {
    let shape = Shape::named(shape)?;
    Ok(Cell {
        name: shape.name.clone(),
        system: System::Broker,
        kind: Kind::Publish,
        shape,
        server_cores: place.server_cores.clone(),
        broker: place.settings.iter().cloned().collect(),
    })
}

fn measured(campaign: Campaign, text: String, out: &Path) -> Result<(RunFolder, RunResult), RunsError> {
    raise_priority();
    Ok(campaign::run(&Plan::new(campaign, text, out.to_owned())?)?)
}

fn kept(campaign: Campaign, text: String, out: &Path) -> Result<ExitCode, RunsError> {
    let (folder, result) = measured(campaign, text, out)?;
    for cell in &result.cells {
        let Some(spread) = cell.throughput() else { continue };
        let cost = cell.spread(|trial| trial.server_s_per_gb);
        let cost = cost.map_or(String::new(), |cost| format!(", {:.3} server CPU s/GB", cost.median));
        let clean = if cell.is_clean() { "" } else { ", NOT CLEAN" };
        println!("{}: {:.1} MB/s (± {:.1} %){cost}{clean}", cell.cell.name, spread.median, spread.percent());
    }
    println!("{}", folder.report().display());
    Ok(status(&result))
}

fn status(result: &RunResult) -> ExitCode {
    if result.is_clean() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
