//! One run of one cell. Scope: from a new server to its figures.
//! Owns: the order of its steps, and how counts become figures.
//! Invariants: throughput and CPU cost are over the same looks at the server; with several generators only the time in
//! which all had their steady window counts; the broker's counts are read until they have come to rest.
//! Not here: starting servers (`server`), generating load (`load`, `crew`).

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::CampaignError;
use super::cell::Cell;
use super::crew::Crew;
use super::file::Campaign;
use super::result::{CountedAt, Law, Ledger, Outcome, Trial};
use super::run::Place;
use super::server::Server;
use crate::load::{self, LoadPlan};
use crate::machine::{load_average, pin_thread};
use crate::measure::{GB, Histograms, MB};
use crate::preflight::{self, Qualification};
use crate::scrape::Page;
use crate::target::Target;
use crate::watch::{APPENDED, Interval, Steady, Watch, Watched};

/// The broker's totals of tenants follow within about a second; so long they are waited for.
const REST_DEADLINE: Duration = Duration::from_secs(5);
const REST_PAUSE: Duration = Duration::from_millis(100);
/// Each row of the short look at the disk before a durable trial.
const DISK_ROW: Duration = Duration::from_millis(200);
/// Looks at the server per window at least, and their distance at most.
const LOOKS_MIN: u32 = 5;
const LOOK_MAX: Duration = Duration::from_secs(1);

/// A trial with what is written beside its figures.
pub struct Measured {
    pub trial: Trial,
    pub histograms: Histograms,
    pub intervals: Vec<Interval>,
}

/// Runs one trial.
pub fn run(place: &mut Place<'_>, cell: &Cell, number: u32) -> Result<Measured, CampaignError> {
    let campaign = place.campaign;
    let durable = cell.shape.storage.is_durable();
    let disk = durable.then(|| disk(campaign, cell)).transpose()?;
    let started_unix_s = unix_now();
    let load_before = load_average();
    let generators = place.crew.as_ref().map_or(1, Crew::len);
    let server = Server::start(campaign, cell, &place.program, generators)?;
    let before = server.metrics().and_then(|address| Page::read(address).ok());
    let watch = Watch::start(Watched {
        metrics: server.metrics(),
        pid: Some(server.ready().pids.broker),
        every: (cell.shape.duration() / LOOKS_MIN).min(LOOK_MAX),
    });
    let loads = match &mut place.crew {
        None => vec![here(campaign, cell, number, &server)?],
        Some(crew) => crew.run(&cell.shape, server.ready(), &|index| server.stream(index).to_owned())?,
    };
    let seen = watch.stop();
    let (outcomes, parts): (Vec<Outcome>, Vec<Histograms>) = loads.into_iter().unzip();
    let mut histograms = Histograms::default();
    parts.iter().for_each(|part| histograms.merge(part));
    let window = common_window(&outcomes)
        .ok_or_else(|| CampaignError::NoCommonWindow { cell: cell.name.clone(), trial: number })?;
    let ledger = ledger(cell, &outcomes, &server, before.as_ref());
    let counted = Counted::of(&outcomes, &seen.within(window));
    let trial = counted.trial(cell, number, &histograms, ledger);
    let trial = Trial { started_unix_s, disk, load_average: load_before, generators: outcomes, ..trial };
    drop(server);
    Ok(Measured { trial, histograms, intervals: seen.intervals() })
}

fn unix_now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

fn disk(campaign: &Campaign, cell: &Cell) -> Result<Qualification, CampaignError> {
    Ok(preflight::requalify(&campaign.data_dir, cell.cores().first().copied(), DISK_ROW)?)
}

/// The load from a thread of this process.
fn here(
    campaign: &Campaign,
    cell: &Cell,
    number: u32,
    server: &Server,
) -> Result<(Outcome, Histograms), CampaignError> {
    let target = Target::from_ready(server.ready(), server.stream(0))?;
    let plan = LoadPlan { name: cell.name.clone(), target, shape: cell.shape.clone() };
    let cpu = campaign.client_cpu;
    let thread = std::thread::spawn(move || {
        pin_thread(cpu);
        load::run(&plan)
    });
    let report = thread
        .join()
        .map_err(|_| CampaignError::LoadThread)?
        .map_err(|error| CampaignError::Load { cell: cell.name.clone(), trial: number, error })?;
    Ok((Outcome::of("here", &report), report.histograms))
}

/// The time in which every generator had its window.
fn common_window(outcomes: &[Outcome]) -> Option<(f64, f64)> {
    let begins = outcomes.iter().map(|outcome| outcome.window_unix_s.0).fold(f64::NEG_INFINITY, f64::max);
    let ends = outcomes.iter().map(|outcome| outcome.window_unix_s.1).fold(f64::INFINITY, f64::min);
    (begins.is_finite() && begins < ends).then_some((begins, ends))
}

fn ledger(cell: &Cell, outcomes: &[Outcome], server: &Server, before: Option<&Page>) -> Ledger {
    let records = u64::from(cell.shape.batch_records);
    let sum = |of: fn(&Outcome) -> u64| outcomes.iter().map(of).sum::<u64>();
    let reads = outcomes.iter().filter_map(|outcome| outcome.read.as_ref());
    let mut ledger = Ledger {
        sent: records * sum(|outcome| outcome.sent_batches),
        refused: records * sum(|outcome| outcome.refused_batches),
        unanswered: records * sum(|outcome| outcome.unanswered_batches),
        ..Ledger::default()
    };
    for read in reads {
        ledger.expected += read.expected_records;
        ledger.delivered += read.delivered_records;
        ledger.missing += read.missing_records;
        ledger.repeated += read.repeated_records;
    }
    let (Some(address), Some(before)) = (server.metrics(), before) else { return ledger };
    let grown = |page: &Page, name: &str| (page.total(name) - before.total(name)).max(0.0) as u64;
    let begun = Instant::now();
    loop {
        if let Ok(page) = Page::read(address) {
            ledger.accepted = Some(grown(&page, "tenant_published_messages_total"));
            ledger.broker_delivered = Some(grown(&page, "tenant_delivered_messages_total"));
        }
        if ledger.is_balanced() || begun.elapsed() > REST_DEADLINE {
            return ledger;
        }
        std::thread::sleep(REST_PAUSE);
    }
}

/// Rates and costs of the steady window.
struct Counted {
    at: CountedAt,
    intervals: usize,
    batches_per_s: f64,
    /// Of the generators, over their own windows.
    answered_per_s: f64,
    server: Option<crate::measure::CpuUse>,
    /// Batches over which the server's time is.
    server_batches: f64,
    client_s_per_gb: Option<f64>,
    appended_by_core: std::collections::BTreeMap<u32, f64>,
}

impl Counted {
    fn of(outcomes: &[Outcome], steady: &Steady) -> Counted {
        let answered_per_s: f64 =
            outcomes.iter().map(|outcome| outcome.batches as f64 / outcome.seconds).sum();
        let rate = steady.rate(APPENDED);
        let whole = steady.whole.as_ref();
        let appended = whole.and_then(|whole| whole.counters.get(APPENDED)).copied();
        let local = outcomes.first().and_then(|outcome| outcome.server.clone());
        // A server without counters: the generator's batches of its window, and the time of the server in it.
        let (server, server_batches) = match (whole, appended) {
            (Some(whole), Some(appended)) => (whole.cpu.clone(), appended),
            _ => (local, outcomes.iter().map(|outcome| outcome.batches as f64).sum()),
        };
        let payload: u64 = outcomes.iter().map(|outcome| outcome.payload_bytes).sum();
        let client: f64 = outcomes.iter().map(|outcome| outcome.client_seconds).sum();
        Counted {
            at: if rate.is_some() { CountedAt::Broker } else { CountedAt::Generator },
            intervals: if rate.is_some() { steady.intervals.len() } else { 1 },
            batches_per_s: rate.unwrap_or(answered_per_s),
            answered_per_s,
            server,
            server_batches,
            client_s_per_gb: (payload > 0).then(|| client / (payload as f64 / GB)),
            appended_by_core: whole.map(|whole| whole.appended_by_core.clone()).unwrap_or_default(),
        }
    }

    fn trial(self, cell: &Cell, number: u32, histograms: &Histograms, ledger: Ledger) -> Trial {
        let shape = &cell.shape;
        let (batch_bytes, records) = (shape.batch_bytes() as f64, f64::from(shape.batch_records));
        let per = |seconds: f64, amount: f64| (amount > 0.0).then(|| seconds / amount);
        let cost = |unit: f64| {
            self.server.as_ref().and_then(|server| per(server.seconds, self.server_batches * unit))
        };
        let (ack, service) = (histograms.ack.summary(), histograms.service.summary());
        let law = Law {
            in_flight: self.answered_per_s * service.mean_us / 1e6,
            allowed: f64::from(shape.inflight) * f64::from(shape.lanes()),
            in_system: self.answered_per_s * ack.mean_us / 1e6,
        };
        Trial {
            number,
            started_unix_s: 0.0,
            counted_at: self.at,
            intervals: self.intervals,
            batches_per_s: self.batches_per_s,
            messages_per_s: self.batches_per_s * records,
            mb_per_s: self.batches_per_s * batch_bytes / MB,
            server_s_per_gb: cost(batch_bytes / GB),
            server_s_per_million: cost(records / 1e6),
            client_s_per_gb: self.client_s_per_gb,
            server: self.server,
            appended_by_core: self.appended_by_core,
            ack,
            service,
            queueing: histograms.queueing.summary(),
            delivery: histograms.delivery.summary(),
            law,
            ledger,
            disk: None,
            load_average: 0.0,
            generators: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(window_unix_s: (f64, f64)) -> Outcome {
        Outcome {
            generator: "here".to_owned(),
            window_unix_s,
            seconds: 2.0,
            batches: 100,
            payload_bytes: 26_214_400,
            sent_batches: 150,
            refused_batches: 0,
            unanswered_batches: 0,
            client_seconds: 1.0,
            mtu: 1_452,
            sent_packets: 0,
            lost_packets: 0,
            read: None,
            server: None,
        }
    }

    #[test]
    fn only_the_time_that_all_windows_share_counts() {
        assert_eq!(common_window(&[outcome((1.0, 5.0)), outcome((2.0, 6.0))]), Some((2.0, 5.0)));
        assert_eq!(common_window(&[outcome((1.0, 2.0)), outcome((2.0, 6.0))]), None);
        assert_eq!(common_window(&[]), None);
    }

    #[test]
    fn without_counters_the_generators_count() {
        let cell = Cell {
            name: "a".to_owned(),
            system: super::super::System::Sink,
            kind: super::super::Kind::Publish,
            shape: crate::shape::Shape::canonical(),
            server_cores: "0".to_owned(),
            broker: std::collections::BTreeMap::new(),
        };
        let outcomes = [outcome((0.0, 2.0)), outcome((0.0, 2.0))];
        let counted = Counted::of(&outcomes, &Steady::default());
        let trial = counted.trial(&cell, 1, &Histograms::default(), Ledger::default());
        assert_eq!((trial.counted_at, trial.batches_per_s), (CountedAt::Generator, 100.0));
        assert!((trial.mb_per_s - 26.214_4).abs() < 1e-9 && trial.messages_per_s == 6_400.0);
        assert_eq!((trial.server_s_per_gb, trial.law.allowed), (None, 8.0));
        assert!((trial.client_s_per_gb.unwrap() - 2.0 / 0.052_428_8).abs() < 1e-9);
    }
}
