//! Reading a shard's history against raw sequential reads, beside a live publisher of the same shard. Scope: one case.
//! Invariants: the live publisher is due at fixed moments, alone and beside the reader alike; reader and publisher share
//! the client's CPU; raw reads have the disk to themselves.
//! Not here: the bound (`verdict`), reading (`load::history`).

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use super::report::{Series, ending};
use super::verdict::{Verdict, ratio};
use super::{DiskCompareError, Place, brokers};
use crate::cluster::DevBroker;
use crate::load::{self, HistoryPlan, HistoryReport};
use crate::measure::{GB, LoadReport};
use crate::raw_disk::{RawFile, RawKind, RawPlan};
use crate::shape::Shape;

const STREAM: &str = "disk-history";
/// Raw reads: sequential, so large, and so many in flight.
const RAW_BYTES: usize = 1 << 20;
const RAW_DEPTH: usize = 4;
/// The publisher begins this long before anything is counted, for the reader to get going.
const WARMUP_S: f64 = 1.0;

/// The outcome of the case. Rates are megabytes (10^6) per second, of payload for the broker.
#[derive(Debug, Clone, Serialize)]
pub struct HistoryCase {
    /// Payload of the history when the last reader began; the live publisher adds to it.
    pub history_bytes: u64,
    /// What is published meanwhile.
    pub live_shape: Shape,
    pub raw_reads: Series,
    pub history: Series,
    /// Of the broker's core with both, percent.
    pub core_busy_percent: Series,
    /// How long it waited for its CPU because others had it, percent.
    pub core_waited_percent: Series,
    /// CPU seconds of the broker, for both, per gigabyte (10^9) of history.
    pub broker_s_per_gb: Series,
    /// Times the whole history was read.
    pub laps: u64,
    /// Acked batches per second of the live publisher.
    pub live_alone: Series,
    pub live_beside: Series,
    pub live_ack_p99_us_alone: Series,
    pub live_ack_p99_us_beside: Series,
    pub ratio: f64,
    pub live_ratio: f64,
    pub verdict: Verdict,
    pub clean: bool,
}

/// One round.
struct Round {
    raw: f64,
    alone: LoadReport,
    beside: LoadReport,
    history: HistoryReport,
}

/// Runs the case.
pub(super) fn run(place: &Place<'_>) -> Result<HistoryCase, DiskCompareError> {
    let comparison = place.comparison;
    let bytes = comparison.history_bytes;
    let file = RawFile::make(
        place.folder,
        "raw-reads",
        bytes.max((RAW_BYTES * RAW_DEPTH) as u64),
        comparison.server_cpu,
    )?;
    let broker = brokers::start(place, "history", None)?;
    broker.create_durable_stream(STREAM, 1)?;
    brokers::preload(comparison.client_cpu, &broker, STREAM, &comparison.bulk(), bytes)?;
    let live = Shape {
        name: "4 KiB x 64, live".to_owned(),
        rate: Some(comparison.live_rate),
        warmup_s: WARMUP_S,
        ..comparison.bulk()
    };
    let mut rounds = Vec::new();
    for round in 1..=comparison.rounds {
        let plan = RawPlan {
            kind: RawKind::Read,
            depth: RAW_DEPTH,
            op_bytes: RAW_BYTES,
            duration: comparison.duration(),
        };
        let raw = file.run(&plan)?.mb_per_s();
        let alone = brokers::load(comparison.client_cpu, &broker, STREAM, &live)?;
        let (beside, history) = read_beside(place, &broker, &live)?;
        eprintln!(
            "history, round {round}: raw {raw:.0} MB/s, history {:.0} MB/s, live {:.0} then {:.0} batches/s",
            history.mb_per_s(),
            alone.batches_per_s(),
            beside.batches_per_s()
        );
        rounds.push(Round { raw, alone, beside, history });
    }
    Ok(case(place, live, &rounds))
}

/// The live publisher and the reader at the same time, each on a thread of the client's CPU.
fn read_beside(
    place: &Place<'_>,
    broker: &DevBroker,
    live: &Shape,
) -> Result<(LoadReport, HistoryReport), DiskCompareError> {
    let comparison = place.comparison;
    let plan = HistoryPlan {
        target: brokers::target(broker, STREAM)?,
        shard: 0,
        warmup: Duration::from_secs_f64(WARMUP_S / 2.0),
        duration: comparison.duration(),
        mtu: comparison.mtu,
    };
    std::thread::scope(|scope| {
        let publisher = scope.spawn(|| brokers::load(comparison.client_cpu, broker, STREAM, live));
        let reader = brokers::on_cpu(comparison.client_cpu, STREAM, move || load::read_history(&plan));
        let beside = publisher.join().map_err(|_| DiskCompareError::Thread("the live publisher"))?;
        Ok((beside?, reader?))
    })
}

fn case(place: &Place<'_>, live_shape: Shape, rounds: &[Round]) -> HistoryCase {
    let server = |round: &Round| round.history.server.clone().unwrap_or_default();
    let raw_reads = Series::each(rounds, |round| round.raw);
    let history = Series::each(rounds, |round| round.history.mb_per_s());
    let live_alone = Series::each(rounds, |round| round.alone.batches_per_s());
    let live_beside = Series::each(rounds, |round| round.beside.batches_per_s());
    let of_raw = ratio(history.median, raw_reads.median);
    let of_live = ratio(live_beside.median, live_alone.median);
    let clean = |round: &Round| {
        round.alone.is_clean() && round.beside.is_clean() && round.history.missing_records == 0
    };
    HistoryCase {
        history_bytes: rounds.last().map_or(0, |round| round.history.records)
            * u64::from(live_shape.record_bytes),
        live_shape,
        core_busy_percent: Series::each(rounds, |round| server(round).core_busy_percent),
        core_waited_percent: Series::each(rounds, |round| server(round).core_waited_percent),
        broker_s_per_gb: Series::each(rounds, |round| {
            ratio(server(round).seconds, round.history.payload_bytes as f64 / GB)
        }),
        laps: rounds.iter().map(|round| round.history.laps).sum(),
        live_ack_p99_us_alone: Series::each(rounds, |round| round.alone.ack_latency.p99_us),
        live_ack_p99_us_beside: Series::each(rounds, |round| round.beside.ack_latency.p99_us),
        verdict: place.comparison.bounds.of_history(history.median, of_raw, of_live),
        ratio: of_raw,
        live_ratio: of_live,
        clean: rounds.iter().all(clean),
        raw_reads,
        history,
        live_alone,
        live_beside,
    }
}

impl fmt::Display for HistoryCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "history: {:.0} MB of one shard from the earliest record, beside {:.0} batches/s of {}, MB/s",
            self.history_bytes as f64 / crate::measure::MB,
            self.live_shape.rate.unwrap_or_default(),
            self.live_shape.name
        )?;
        writeln!(f, "  raw, {RAW_DEPTH} reads of {RAW_BYTES} B in flight  {}", self.raw_reads)?;
        writeln!(f, "  history, payload                  {}", self.history)?;
        writeln!(
            f,
            "  core {:.0} % busy and {:.0} % waiting for its CPU, {:.3} s/GB, the whole read {} times",
            self.core_busy_percent.median,
            self.core_waited_percent.median,
            self.broker_s_per_gb.median,
            self.laps
        )?;
        writeln!(
            f,
            "  live publisher, batches/s         alone {}, beside {}",
            self.live_alone, self.live_beside
        )?;
        writeln!(
            f,
            "  its acks, p99                     alone {:.0} us, beside {:.0} us",
            self.live_ack_p99_us_alone.median, self.live_ack_p99_us_beside.median
        )?;
        writeln!(f, "{}", ending(&self.verdict, self.clean))
    }
}
