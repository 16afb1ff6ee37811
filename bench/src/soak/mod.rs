//! Whether a broker that is used hard for long stays as it was. Scope: one run against a broker of its own.
//! Owns: the cycles and their phases, what is seen of the broker between them.
//! Invariants: every cycle does the same; a phase is bounded in time, also when the broker answers nothing; what was started is
//! ended, and what was made is removed.
//! Not here: the phases (`steady`, `churn`, `slow`, `overload`, `probe`), the rules (`judge`).

pub mod judge;
pub mod sample;
pub mod site;
pub mod tally;

mod churn;
mod overload;
mod probe;
mod report;
mod rude;
mod slow;
mod steady;

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use felix_sdk::{Error, PublishError, RequestError, SubscribeError, WatchError};
use tokio::time::Instant;

use crate::cluster::ClusterError;
use crate::load::LoadError;
use crate::scrape::Page;
use crate::target::TargetError;
use judge::{CYCLES_MIN, Cycle, Run};
use probe::Probe;
pub use report::SoakReport;
use sample::{Held, Peak};
use site::Site;
use steady::Known;

/// How a cycle is shared out, before it comes to rest.
const STEADY: f64 = 0.45;
const CHURN: f64 = 0.15;
const SLOW: f64 = 0.15;
const OVERLOAD: f64 = 0.20;
/// A broker has so long to come to rest; connections that ended without a word need the idle timeout of it.
const REST: Duration = Duration::from_secs(60);
/// Between two looks while it comes to rest.
const LOOK: Duration = Duration::from_millis(100);
/// So many looks one after the other must find the same rest: what frees memory runs a little later.
const SAME_LOOKS: u32 = 5;
/// No phase takes longer than its time and this.
const PHASE_SLACK: Duration = Duration::from_secs(180);
/// Records appended, of all tenants, which the broker tells every second.
const TOLD: Duration = Duration::from_millis(2_500);
const TENANT_PUBLISHED: &str = "tenant_published_messages_total";

/// What is run, and where.
#[derive(Debug, Clone)]
pub struct SoakPlan {
    pub cycles: u32,
    /// Whether rules of time and rates decide; else they are told.
    pub judges_times: bool,
    /// Seconds of load in each cycle; rest comes on top.
    pub seconds: f64,
    /// Folder for the broker's files; what is made in it is removed.
    pub dir: PathBuf,
    /// CPUs of the broker.
    pub cores: String,
}

/// Why nothing was judged.
#[derive(Debug, thiserror::Error)]
pub enum SoakError {
    #[error("{found} cycles, {CYCLES_MIN} are needed: the last two are compared with the first three")]
    Cycles { found: u32 },
    #[error("{dir}: {error}")]
    Folder { dir: PathBuf, error: io::Error },
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    #[error(transparent)]
    Target(#[from] TargetError),
    #[error("the broker cannot be looked at: {0}")]
    Look(#[from] io::Error),
    #[error("cycle {cycle}, {phase}: {error}")]
    Phase { cycle: u32, phase: &'static str, error: Box<SoakError> },
    #[error("it is not over after {0} s")]
    Late(u64),
    #[error("a client: {0}")]
    Client(#[from] Error),
    #[error("a publish: {0}")]
    Publish(#[from] PublishError),
    #[error("a subscription: {0}")]
    Subscribe(#[from] SubscribeError),
    #[error("a request: {0}")]
    Request(#[from] RequestError),
    #[error("a watch: {0}")]
    Watch(#[from] WatchError),
    #[error("a connection: {0}")]
    Load(#[from] LoadError),
    #[error("a task ended early: {0}")]
    Task(tokio::task::JoinError),
    #[error("the broker was started again in between: process {before}, now {now}\n{log}")]
    Restarted { before: u32, now: u32, log: String },
}

/// Runs all cycles, and says after each of them how it went by `told`.
///
/// # Errors
/// The broker could not be started, looked at or used at all. Everything started is ended then too.
pub fn run(plan: &SoakPlan, told: &mut dyn FnMut(u32, &Cycle)) -> Result<SoakReport, SoakError> {
    if plan.cycles < CYCLES_MIN {
        return Err(SoakError::Cycles { found: plan.cycles });
    }
    let folder_error = |error| SoakError::Folder { dir: plan.dir.clone(), error };
    let folder =
        tempfile::Builder::new().prefix("felix-soak-").tempdir_in(&plan.dir).map_err(folder_error)?;
    // As the kernel names it where descriptors are read.
    let data = folder.path().canonicalize().map_err(folder_error)?;
    let (mut broker, site) = site::start(folder.path(), &plan.cores)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let began = Instant::now();
    let outcome = runtime.block_on(cycles(plan, &site, &data, told));
    runtime.shutdown_timeout(Duration::from_secs(5));
    let now = broker.reread()?.pids.broker;
    if now != site.pid() {
        return Err(SoakError::Restarted { before: site.pid(), now, log: broker.log() });
    }
    let run = outcome?;
    let status = broker.stop();
    Ok(SoakReport::new(plan, began.elapsed(), run, status))
}

async fn cycles(
    plan: &SoakPlan,
    site: &Site,
    data: &Path,
    told: &mut dyn FnMut(u32, &Cycle),
) -> Result<Run, SoakError> {
    let peak = Peak::start(site.pid());
    let mut known = Known::default();
    let mut run = Run::default();
    let appended = Page::read(site.metrics())?.total(TENANT_PUBLISHED);
    let mut before = rest(site, data).await?.0;
    for number in 1..=plan.cycles {
        let mut cycle = Cycle { before, ..Cycle::default() };
        let _ = peak.take();
        phases(plan, site, number, &mut known, &mut cycle).await?;
        let (after, rest_ms) = rest(site, data).await?;
        (cycle.after, cycle.rest_ms, cycle.peak_bytes) = (after, rest_ms, peak.take());
        told(number, &cycle);
        before = cycle.after.clone();
        run.cycles.push(cycle);
    }
    tokio::time::sleep(TOLD).await;
    run.appended_at_broker = (Page::read(site.metrics())?.total(TENANT_PUBLISHED) - appended) as u64;
    Ok(run)
}

/// The load of one cycle.
async fn phases(
    plan: &SoakPlan,
    site: &Site,
    number: u32,
    known: &mut Known,
    cycle: &mut Cycle,
) -> Result<(), SoakError> {
    let part = |share: f64| Duration::from_secs_f64(plan.seconds * share);
    let until = |share: f64| Instant::now() + part(share);
    let mut probe = Probe::start();
    let before_us = bounded(number, "quiet before it", Duration::ZERO, probe.before(site)).await?;
    let steady = steady::run(site, number, until(STEADY), known);
    cycle.ledger.add(bounded(number, "steady load", part(STEADY), steady).await?);
    let churn = churn::run(site, until(CHURN));
    cycle.ledger.add(bounded(number, "churn", part(CHURN), churn).await?);
    let slow = slow::run(site, number, until(SLOW));
    cycle.ledger.add(bounded(number, "slow readers", part(SLOW), slow).await?);
    let overload = overload::run(site, until(OVERLOAD));
    let (ledger, overload) = bounded(number, "overload", part(OVERLOAD), overload).await?;
    cycle.ledger.add(ledger);
    cycle.overload = Some(overload);
    if let Some(before_us) = before_us {
        let after = probe.after(site, before_us);
        cycle.quiet = bounded(number, "quiet after it", Duration::ZERO, after).await?;
    }
    cycle.ledger.add(std::mem::take(&mut probe.ledger));
    Ok(())
}

/// A phase with its bound in time and its name in an error.
async fn bounded<T>(
    cycle: u32,
    phase: &'static str,
    time: Duration,
    work: impl Future<Output = Result<T, SoakError>>,
) -> Result<T, SoakError> {
    let most = time + PHASE_SLACK;
    let outcome = tokio::time::timeout(most, work).await;
    let outcome = outcome.unwrap_or(Err(SoakError::Late(most.as_secs())));
    outcome.map_err(|error| SoakError::Phase { cycle, phase, error: Box::new(error) })
}

/// Waits until nobody is there, nothing waits, and what is held has stopped changing. What is held then, and how long it took;
/// `None` when that took too long.
async fn rest(site: &Site, data: &Path) -> Result<(Held, Option<u64>), SoakError> {
    let begun = Instant::now();
    let mut held = Held::look(site.pid(), site.metrics(), data)?;
    let mut same = 0;
    loop {
        tokio::time::sleep(LOOK).await;
        let next = Held::look(site.pid(), site.metrics(), data)?;
        same = if next.busy().is_empty() && next.is_as(&held) { same + 1 } else { 0 };
        held = next;
        if same >= SAME_LOOKS {
            return Ok((held, Some(begun.elapsed().as_millis() as u64)));
        }
        if begun.elapsed() >= REST {
            return Ok((held, None));
        }
    }
}
