//! Our sink against one on tokio and quinn, in one run. Scope: one comparison.
//! Owns: the order of rounds, the medians, the ratio.
//! Invariants: rounds alternate; both take the same frames from the same load, on the same CPUs, without spinning.
//! Not here: the sinks (`sink`, `quinn_sink`), starting them (`cluster`).

use std::fmt;
use std::path::PathBuf;

use serde::Serialize;

use super::{PeerError, on_cpu};
use crate::cluster::SinkProcess;
use crate::compare::{Costs, costs, write_costs};
use crate::load::{self, LoadPlan};
use crate::machine::{Machine, load_average};
use crate::measure::LoadReport;
use crate::shape::Shape;
use crate::target::Target;

/// What is compared, and where.
#[derive(Debug, Clone)]
pub struct SinksComparison {
    pub shape: Shape,
    /// Runs of each.
    pub rounds: u32,
    pub server_cpu: usize,
    pub client_cpu: usize,
    /// This program, to start as both sinks. It must have been built with the feature `peers`.
    pub program: PathBuf,
}

/// The outcome.
#[derive(Debug, Clone, Serialize)]
pub struct SinksReport {
    pub kind: &'static str,
    pub shape: Shape,
    pub machine: Machine,
    pub server_cpu: usize,
    pub client_cpu: usize,
    /// Of the last minute, before and after.
    pub load_average: (f64, f64),
    pub ours: Costs,
    pub quinn: Costs,
    /// Median of ours over median of the other.
    pub ratio: f64,
}

/// Compares.
///
/// # Errors
/// A sink could not be started or a load could not be run. Everything started is ended.
pub fn run(comparison: &SinksComparison) -> Result<SinksReport, PeerError> {
    let before = load_average();
    let (mut ours, mut quinn) = (Vec::new(), Vec::new());
    for round in 1..=comparison.rounds {
        for (driver, reports) in [("felix", &mut ours), ("quinn", &mut quinn)] {
            let report = sink_round(comparison, driver)?;
            eprint!("round {round}: {report}");
            reports.push(report);
        }
    }
    let (ours, quinn) = (costs("our sink", &ours)?, costs("the quinn sink", &quinn)?);
    Ok(SinksReport {
        kind: "compare-sinks",
        shape: comparison.shape.clone(),
        machine: Machine::look(),
        server_cpu: comparison.server_cpu,
        client_cpu: comparison.client_cpu,
        load_average: (before, load_average()),
        ratio: ours.median / quinn.median,
        ours,
        quinn,
    })
}

fn sink_round(comparison: &SinksComparison, driver: &str) -> Result<LoadReport, PeerError> {
    let folder = super::folder(&std::env::temp_dir())?;
    let args = [
        ("--driver", driver.to_owned()),
        ("--cpu", comparison.server_cpu.to_string()),
        ("--mtu", comparison.shape.mtu.to_string()),
        ("--spin-us", "0".to_owned()),
    ];
    let args: Vec<String> = args.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]).collect();
    let sink = SinkProcess::start(&comparison.program, folder.path(), &args)?;
    let name = format!("{driver} sink");
    let plan = LoadPlan {
        name: name.clone(),
        target: Target::from_ready(sink.ready(), "discard")?,
        shape: comparison.shape.clone(),
    };
    on_cpu(comparison.client_cpu, &name, move || load::run(&plan))
}

impl SinksReport {
    /// Nothing was refused or left unanswered.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.ours.clean && self.quinn.clean
    }
}

impl fmt::Display for SinksReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_costs(f, [("ours", &self.ours), ("quinn", &self.quinn)], self.ratio)
    }
}
