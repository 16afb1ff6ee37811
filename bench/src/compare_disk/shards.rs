//! Small batches over many shards against one shard. Scope: one case.
//! Invariants: the same streams with the same number of batches in flight write to one shard and to all of them; the log of
//! every shard uses its blocks again before anything is counted.
//! Not here: the bound (`verdict`).

use std::fmt;

use serde::Serialize;

use super::report::{Busy, Series, ending};
use super::syncs::{LogTotals, Syncs};
use super::verdict::{Verdict, ratio};
use super::{DiskCompareError, LAPS_BEFORE, Place, SHARDS, brokers};
use crate::cluster::DevBroker;
use crate::measure::LoadReport;
use crate::shape::Shape;

const ONE: &str = "disk-one";
const MANY: &str = "disk-many";

/// One side of the case. Rates are batches per second.
#[derive(Debug, Clone, Serialize)]
pub struct Side {
    pub shards: u32,
    pub batches_per_s: Series,
    pub mb_per_s: Series,
    pub busy: Busy,
    pub ack_p50_us: Series,
    pub ack_p99_us: Series,
    /// Of all rounds together.
    pub syncs: Option<Syncs>,
}

/// The outcome of the case.
#[derive(Debug, Clone, Serialize)]
pub struct ShardsCase {
    pub shape: Shape,
    pub one: Side,
    pub many: Side,
    pub ratio: f64,
    pub verdict: Verdict,
    pub clean: bool,
}

/// Rounds of one side.
struct Rounds {
    stream: &'static str,
    shape: Shape,
    loads: Vec<LoadReport>,
    syncs: Vec<Option<Syncs>>,
}

impl Rounds {
    fn new(stream: &'static str, shape: Shape) -> Rounds {
        Rounds { stream, shape, loads: Vec::new(), syncs: Vec::new() }
    }

    fn round(&mut self, place: &Place<'_>, broker: &DevBroker) -> Result<f64, DiskCompareError> {
        let before = LogTotals::read(broker.ready()).ok();
        let load = brokers::load(place.comparison.client_cpu, broker, self.stream, &self.shape)?;
        let after = LogTotals::read(broker.ready()).ok();
        let rate = load.batches_per_s();
        self.syncs
            .push(after.zip(before).and_then(|(after, before)| after.since(&before, load.sent_batches)));
        self.loads.push(load);
        Ok(rate)
    }

    fn side(&self) -> Side {
        let loads = &self.loads;
        Side {
            shards: self.shape.shards,
            batches_per_s: Series::each(loads, LoadReport::batches_per_s),
            mb_per_s: Series::each(loads, LoadReport::mb_per_s),
            busy: Busy::of(loads),
            ack_p50_us: Series::each(loads, |load| load.ack_latency.p50_us),
            ack_p99_us: Series::each(loads, |load| load.ack_latency.p99_us),
            syncs: Syncs::sum(&self.syncs),
        }
    }
}

/// Runs the case.
pub(super) fn run(place: &Place<'_>) -> Result<ShardsCase, DiskCompareError> {
    let comparison = place.comparison;
    let broker = brokers::start(place, "shards", Some(comparison.shard_kept_bytes()))?;
    broker.create_durable_stream(ONE, 1)?;
    broker.create_durable_stream(MANY, SHARDS)?;
    let mut one = Rounds::new(ONE, comparison.small(1));
    let mut many = Rounds::new(MANY, comparison.small(SHARDS));
    let laps = LAPS_BEFORE * comparison.shard_kept_bytes();
    brokers::preload(comparison.client_cpu, &broker, ONE, &one.shape, laps)?;
    brokers::preload(comparison.client_cpu, &broker, MANY, &many.shape, laps * u64::from(SHARDS))?;
    for round in 1..=comparison.rounds {
        let (alone, spread) = (one.round(place, &broker)?, many.round(place, &broker)?);
        eprintln!("shards, round {round}: {alone:.0} batches/s over one shard, {spread:.0} over {SHARDS}");
    }
    let clean = one.loads.iter().chain(&many.loads).all(LoadReport::is_clean);
    let shape = many.shape.clone();
    let (one, many) = (one.side(), many.side());
    let ratio = ratio(many.batches_per_s.median, one.batches_per_s.median);
    Ok(ShardsCase { shape, one, many, ratio, verdict: comparison.bounds.of_shards(ratio), clean })
}

impl fmt::Display for ShardsCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shape = &self.shape;
        writeln!(
            f,
            "shards: {} B x {} acked after the sync, {} streams with {} in flight each, batches/s",
            shape.record_bytes, shape.batch_records, shape.streams, shape.inflight
        )?;
        for side in [&self.one, &self.many] {
            writeln!(
                f,
                "  over {:<3} {}, {:.0} MB/s, {}, ack p50 {:.0} us, p99 {:.0} us",
                side.shards,
                side.batches_per_s,
                side.mb_per_s.median,
                side.busy,
                side.ack_p50_us.median,
                side.ack_p99_us.median
            )?;
            if let Some(syncs) = &side.syncs {
                writeln!(f, "           {syncs}")?;
            }
        }
        writeln!(f, "{}", ending(&self.verdict, self.clean))
    }
}
