//! A campaign from its preflight to its folder. Scope: one campaign per call.
//! Owns: the order of trials, what is told while they run, the result.
//! Invariants: every cell has its first trial before any has its second; each round runs the other way around, so no cell
//! is always after the same one; nothing is measured before the preflight is written.
//! Not here: one trial (`trial`).

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_lc_rs::digest;

use super::cell::Cell;
use super::crew::Crew;
use super::file::Campaign;
use super::folder::RunFolder;
use super::result::{CellResult, Program, RESULT_VERSION, RunResult, Trial};
use super::{CampaignError, trial};
use crate::cluster;
use crate::machine::commit_of;
use crate::preflight::{Preflight, PreflightPlan};
use crate::report;

/// Seconds a trial takes beside its windows, for telling how long it will be.
const TRIAL_OVERHEAD_S: f64 = 2.0;
/// Programs whose identity is kept.
const PROGRAMS: [&str; 3] = ["felix", "felix-broker", "felix-ctrl"];

/// What is run, and where its folder goes.
#[derive(Debug, Clone)]
pub struct Plan {
    pub campaign: Campaign,
    /// The campaign as text, kept beside the result.
    pub text: String,
    pub out: PathBuf,
    /// This program, to start as a sink.
    pub program: PathBuf,
    /// How long the preflight spins on each CPU, and measures each row of the disk's table.
    pub spin: Duration,
    pub disk_row: Duration,
}

impl Plan {
    /// The campaign with the usual preflight.
    ///
    /// # Errors
    /// This program's own path is not known.
    pub fn new(campaign: Campaign, text: String, out: PathBuf) -> Result<Plan, CampaignError> {
        let program = std::env::current_exe()
            .map_err(|error| CampaignError::Io { path: PathBuf::from("this program"), error })?;
        let (spin, disk_row) = (Duration::from_millis(300), Duration::from_millis(300));
        Ok(Plan { campaign, text, out, program, spin, disk_row })
    }
}

/// What every trial needs.
pub struct Place<'c> {
    pub campaign: &'c Campaign,
    pub program: PathBuf,
    pub crew: Option<Crew>,
}

/// Runs the campaign. Each trial is told on standard error when it ends.
///
/// # Errors
/// The machine is not fit, a server could not be started, or a load could not be run. Everything started is ended; the
/// folder then holds what was written so far, without a result.
pub fn run(plan: &Plan) -> Result<(RunFolder, RunResult), CampaignError> {
    let campaign = &plan.campaign;
    let trials = campaign.trials as usize * campaign.cells.len();
    let minutes = (campaign.load_seconds() + TRIAL_OVERHEAD_S * trials as f64) / 60.0;
    eprintln!(
        "{}: {} cells, {trials} trials, about {minutes:.0} minutes",
        campaign.name,
        campaign.cells.len()
    );
    let preflight = Preflight::take(&preflight_plan(plan))?;
    for remark in &preflight.remarks {
        eprintln!("{:?}: {}", remark.weight, remark.line());
    }
    let folder = RunFolder::create(&plan.out, &campaign.name, &preflight, &plan.text)?;
    let crew = campaign.distributed.as_ref().map(Crew::gather).transpose()?;
    let agents = crew.as_ref().map(Crew::facts).unwrap_or_default();
    let mut place = Place { campaign, program: plan.program.clone(), crew };
    let mut cells: Vec<CellResult> =
        campaign.cells.iter().map(|cell| CellResult { cell: cell.clone(), trials: Vec::new() }).collect();
    for (number, index) in order(campaign.trials, cells.len()) {
        let cell = &campaign.cells[index];
        let measured = trial::run(&mut place, cell, number)?;
        eprintln!("{}", line(cell, &measured.trial));
        folder.write_trial(&cell.name, number, &measured.histograms, &measured.intervals)?;
        cells[index].trials.push(measured.trial);
    }
    let result = RunResult {
        version: RESULT_VERSION,
        name: campaign.name.clone(),
        started_unix_s: preflight.taken_unix_s,
        ended_unix_s: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64(),
        preflight,
        programs: programs(&plan.program),
        trials: campaign.trials,
        client_cpu: campaign.client_cpu,
        agents,
        cells,
    };
    let page = report::page(&folder, &result)?;
    folder.finish(&result, &page)?;
    Ok((folder, result))
}

/// Trial and cell, in the order they run.
fn order(trials: u32, cells: usize) -> Vec<(u32, usize)> {
    let round = |trial: u32| -> Vec<(u32, usize)> {
        let forth = (0..cells).map(|cell| (trial, cell));
        if trial.is_multiple_of(2) { forth.rev().collect() } else { forth.collect() }
    };
    (1..=trials).flat_map(round).collect()
}

fn preflight_plan(plan: &Plan) -> PreflightPlan {
    let campaign = &plan.campaign;
    let mut cpus: Vec<usize> = campaign.cells.iter().flat_map(Cell::cores).collect();
    let server_cores = campaign.cells.iter().map(|cell| cell.cores().len()).max().unwrap_or(1);
    if campaign.distributed.is_none() {
        cpus.push(campaign.client_cpu);
    }
    let mut seen = std::collections::BTreeSet::new();
    cpus.retain(|cpu| seen.insert(*cpu));
    PreflightPlan {
        cpus,
        server_cores: u16::try_from(server_cores).unwrap_or(u16::MAX),
        mtu: campaign.cells.iter().map(|cell| cell.shape.mtu).max().unwrap_or(1_200),
        address: std::net::Ipv4Addr::LOCALHOST.into(),
        disk: campaign.needs_disk().then(|| campaign.data_dir.clone()),
        spin: plan.spin,
        disk_row: plan.disk_row,
    }
}

fn line(cell: &Cell, trial: &Trial) -> String {
    let cost = trial.server_s_per_gb.map_or(String::new(), |cost| format!(", {cost:.3} s/GB"));
    let busy = trial.server.as_ref().map_or(0.0, |server| server.core_busy_percent);
    let ack = if trial.ack.count > 0 {
        format!(", ack p50 {:.0} us p99 {:.0} us", trial.ack.p50_us, trial.ack.p99_us)
    } else {
        String::new()
    };
    let clean = if trial.ledger.is_clean() { "" } else { ", NOT CLEAN" };
    format!(
        "{} trial {}: {:.1} MB/s, {:.0} messages/s{cost}, core {busy:.0} % busy{ack}{clean}",
        cell.name, trial.number, trial.mb_per_s, trial.messages_per_s
    )
}

/// Identities of the programs, as far as they can be read.
fn programs(bench: &Path) -> Vec<Program> {
    let others = PROGRAMS.into_iter().filter_map(|name| cluster::binary(name).ok());
    std::iter::once(bench.to_owned()).chain(others).filter_map(|path| program(&path)).collect()
}

fn program(path: &Path) -> Option<Program> {
    let bytes = std::fs::read(path).ok()?;
    let version = Command::new(path).arg("--version").output().ok();
    let version = version.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    let hex = |byte: &u8| format!("{byte:02x}");
    Some(Program {
        name: path.file_name()?.to_string_lossy().into_owned(),
        version: version.unwrap_or_default(),
        bytes: bytes.len() as u64,
        sha256: digest::digest(&digest::SHA256, &bytes).as_ref().iter().map(hex).collect(),
        commit: path.parent().and_then(commit_of),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trials_of_all_cells_alternate_and_turn_around() {
        assert_eq!(order(3, 2), [(1, 0), (1, 1), (2, 1), (2, 0), (3, 0), (3, 1)]);
        assert!(order(0, 2).is_empty());
    }

    #[test]
    fn a_program_is_known_by_its_digest() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tool");
        std::fs::write(&path, "abc").unwrap();
        let found = program(&path).unwrap();
        assert_eq!((found.name.as_str(), found.bytes), ("tool", 3));
        assert!(found.sha256.starts_with("ba7816bf8f01cfea"), "{}", found.sha256);
        assert_eq!(program(&folder.path().join("none")), None);
    }
}
