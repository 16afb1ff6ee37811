//! One trial of one arm. Scope: from a target to figures.
//! Invariants: the load runs on a thread of the load's CPU; its windows are those of the plan, whatever the arm.
//! Not here: starting servers (`servers`), the order of trials (`run`).

use std::time::Duration;

use super::GateError;
use super::arm::{Arm, Figures, Server};
use super::rows::{bulk, small};
use super::run::GatePlan;
use super::servers::Servers;
use crate::compare_disk::write::logged_bytes;
use crate::load::{self, LoadError, LoadPlan};
use crate::machine::pin_thread;
use crate::measure::LoadReport;
use crate::peers::echo;
use crate::peers::runs::{self, PeersComparison};
use crate::peers::system::System;
use crate::raw_disk::{RawKind, RawPlan};
use crate::scrape::Page;
use crate::shape::{Acks, Shape};
use crate::target::Target;

/// How long a load beside another one runs before and after it.
const BESIDE_LEAD: Duration = Duration::from_millis(400);

/// Runs one trial of `arm`.
pub fn run(plan: &GatePlan, servers: &mut Servers<'_>, arm: &Arm) -> Result<Figures, GateError> {
    match arm {
        Arm::Load { server, shape } => {
            let shape = plan.timed(shape);
            if *server == Server::QuinnSink {
                has_peers()?;
            }
            let outcome = loaded(plan, servers, *server, shape);
            if *server == Server::FreshMemory {
                servers.end(*server);
            }
            outcome
        }
        Arm::Echo(mode) => {
            let (target, shape) = (servers.echo(*mode)?, plan.timed(&small(1)));
            let report = on_cpu(plan.client_cpu, "echo", move || echo::run("echo", &target, &shape))?;
            Ok(Figures::of(&report))
        }
        Arm::Raw(shape) => raw(plan, servers, shape),
        Arm::Peer { system, shape } => peer(plan, servers, *system, shape),
        Arm::Beside(server) => beside(plan, servers, *server),
    }
}

fn loaded(
    plan: &GatePlan,
    servers: &mut Servers<'_>,
    server: Server,
    shape: Shape,
) -> Result<Figures, GateError> {
    let target = servers.target(server, &shape)?;
    let (unacked, before) = (shape.acks == Acks::None, servers.counted(server));
    let mut figures = Figures::of(&published(plan, target, shape)?);
    // Nobody is told when a publish without an answer is thrown away.
    if let (true, Some(before), Some(after)) = (unacked, before, servers.counted(server)) {
        figures.clean &= !thrown_away(&before, &after);
    }
    Ok(figures)
}

/// The broker refused, shed or dropped publishes between two readings.
fn thrown_away(before: &Page, after: &Page) -> bool {
    let names = ["publish_shed_total", "publish_dropped_total", "publish_refused_total"];
    names.into_iter().any(|name| after.total(name) > before.total(name))
}

/// A sink on tokio and quinn is part of a build with that feature alone.
fn has_peers() -> Result<(), GateError> {
    if cfg!(feature = "peers") {
        return Ok(());
    }
    Err(crate::peers::PeerError::NoFeature { name: "the sink on tokio and quinn" }.into())
}

fn published(plan: &GatePlan, target: Target, shape: Shape) -> Result<LoadReport, GateError> {
    let load = LoadPlan { name: "gate".to_owned(), target, shape };
    on_cpu(plan.client_cpu, "load", move || load::run(&load))
}

/// Runs `work` on a thread that stays on `cpu`.
fn on_cpu<T: Send + 'static>(
    cpu: usize,
    what: &str,
    work: impl FnOnce() -> Result<T, LoadError> + Send + 'static,
) -> Result<T, GateError> {
    let thread = std::thread::spawn(move || {
        pin_thread(cpu);
        work()
    });
    let outcome = thread.join().map_err(|_| GateError::LoadThread)?;
    outcome.map_err(|error| GateError::Load { what: what.to_owned(), error })
}

fn raw(plan: &GatePlan, servers: &mut Servers<'_>, shape: &Shape) -> Result<Figures, GateError> {
    let raw = RawPlan {
        kind: RawKind::GroupSynced,
        depth: shape.inflight as usize,
        op_bytes: logged_bytes(shape) as usize,
        duration: plan.window(),
    };
    let rate = servers.raw()?.run(&raw)?;
    Ok(Figures {
        mb_per_s: rate.mb_per_s(),
        p50_us: rate.latency.p50_us,
        p99_us: rate.latency.p99_us,
        core_busy_percent: rate.core_busy_percent,
        clean: rate.operations > 0,
        ..Figures::default()
    })
}

fn peer(plan: &GatePlan, servers: &Servers<'_>, system: System, shape: &Shape) -> Result<Figures, GateError> {
    runs::missing(system)?;
    let comparison = PeersComparison {
        systems: vec![system],
        all_must_run: true,
        shape: plan.timed(shape),
        rounds: 1,
        dir: servers.folder().to_owned(),
        server_cpu: plan.server_cpu,
        client_cpu: plan.client_cpu,
        program: plan.program.clone(),
    };
    Ok(Figures::of(&runs::one(&comparison, system)?))
}

/// One in flight while a bulk load keeps half of the broker's core busy.
fn beside(plan: &GatePlan, servers: &mut Servers<'_>, server: Server) -> Result<Figures, GateError> {
    let rate = Some(half_rate(plan, servers)?);
    let probe = plan.timed(&small(1));
    let all = probe.warmup() + probe.duration() + 2 * BESIDE_LEAD;
    let load = Shape { rate, warmup_s: 0.1, duration_s: all.as_secs_f64(), ..bulk(8) };
    let (beside, target) = (servers.target_beside(server)?, servers.target(server, &probe)?);
    std::thread::scope(|scope| {
        let background = scope.spawn(|| published(plan, beside, load));
        std::thread::sleep(BESIDE_LEAD);
        let probed = published(plan, target, probe);
        let background = background.join().map_err(|_| GateError::LoadThread)??;
        let mut figures = Figures::of(&probed?);
        figures.clean &= background.is_clean();
        Ok(figures)
    })
}

/// Measured once: what a closed loop reaches, at the busyness it reaches it with.
fn half_rate(plan: &GatePlan, servers: &mut Servers<'_>) -> Result<f64, GateError> {
    if let Some(rate) = servers.half_rate {
        return Ok(rate);
    }
    let shape = plan.timed(&bulk(8));
    let target = servers.target(Server::Memory, &shape)?;
    let report = published(plan, target, shape)?;
    let busy = report.server.as_ref().map_or(0.0, |used| used.core_busy_percent);
    if busy <= 0.0 {
        return Err(GateError::NoCost("the broker"));
    }
    let rate = report.batches_per_s() * 50.0 / busy;
    servers.half_rate = Some(rate);
    Ok(rate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_broker_throws_away_is_seen_in_its_counters() {
        let page = |shed: u32| {
            Page::parse(&format!(
                "felix_publish_shed_total{{core=\"0\"}} {shed}\nfelix_publish_written_total{{core=\"0\"}} {}\n",
                100 * shed
            ))
        };
        assert!(thrown_away(&page(3), &page(4)));
        assert!(!thrown_away(&page(3), &page(3)));
    }
}
