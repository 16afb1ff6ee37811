//! The commands that keep what they measure. Scope: one command per process.
//! Not here: their arguments (`args::runs`), measuring (`felix_bench`).

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use felix_bench::agent::{Agent, read_token};
use felix_bench::campaign::cell::parse_cores;
use felix_bench::campaign::{self, Campaign, Cell, Kind, Plan, RunFolder, RunResult, System};
use felix_bench::judge::judge;
use felix_bench::machine::raise_priority;
use felix_bench::preflight::{Preflight, PreflightPlan};
use felix_bench::shape::Shape;
use felix_bench::sweep;

use crate::args::runs::{
    AgentArgs, CampaignArgs, CompareRunsArgs, PlaceArgs, PreflightArgs, RunArgs, SweepArgs,
};

/// B is worse than A.
const WORSE: u8 = 4;
/// Nothing was compared, or trials do not tell.
const UNCLEAR: u8 = 5;

pub fn one(args: &RunArgs) -> anyhow::Result<ExitCode> {
    let cell = cell(&args.shape, &args.place)?;
    let place = &args.place;
    let text = toml::to_string(&cell.shape).unwrap_or_default();
    let campaign = Campaign::of_one(cell, place.trials, place.cpu, place.data_dir.clone())?;
    kept(campaign, text, &place.out)
}

pub fn campaign(args: &CampaignArgs) -> anyhow::Result<ExitCode> {
    let campaign = Campaign::read(&args.file)?;
    if args.list {
        campaign.cells.iter().for_each(|cell| println!("{}", cell.name));
        return Ok(ExitCode::SUCCESS);
    }
    let text = std::fs::read_to_string(&args.file).with_context(|| args.file.display().to_string())?;
    kept(campaign, text, &args.out)
}

pub fn compare(args: &CompareRunsArgs) -> anyhow::Result<ExitCode> {
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

pub fn sweep(args: &SweepArgs) -> anyhow::Result<ExitCode> {
    let place = &args.place;
    let mut first = cell(&args.shape, place)?;
    let cpus = parse_cores(&place.server_cores).context("--server-cores is no list of CPUs")?;
    if args.knob == crate::args::runs::KnobArg::Cores {
        anyhow::ensure!(cpus.len() > 1, "a sweep of cores needs two of them at least in --server-cores");
        anyhow::ensure!(!cpus.contains(&place.cpu), "the load would run on a CPU of the server; see --cpu");
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

pub fn preflight(args: &PreflightArgs) -> anyhow::Result<ExitCode> {
    let cpus = parse_cores(&args.cpus).context("--cpus is no list of CPUs")?;
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

pub fn agent(args: &AgentArgs) -> anyhow::Result<ExitCode> {
    let agent = Agent::bind(args.listen, read_token(&args.token_file)?, args.cpu)?;
    // Whoever starts it on a free port reads which.
    println!("{}", agent.address()?);
    agent.serve();
    Ok(ExitCode::SUCCESS)
}

/// A shape as a cell of its own.
fn cell(shape: &str, place: &PlaceArgs) -> anyhow::Result<Cell> {
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

fn measured(campaign: Campaign, text: String, out: &Path) -> anyhow::Result<(RunFolder, RunResult)> {
    raise_priority();
    Ok(campaign::run(&Plan::new(campaign, text, out.to_owned())?)?)
}

fn kept(campaign: Campaign, text: String, out: &Path) -> anyhow::Result<ExitCode> {
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
