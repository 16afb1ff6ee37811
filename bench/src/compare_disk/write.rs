//! Bulk writes to one shard against the raw disk. Scope: one case.
//! Invariants: both use blocks that were written before, with the same number of operations or batches in flight.
//! Not here: the bound (`verdict`).

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use super::report::{Busy, Series, ending};
use super::syncs::{LogTotals, Syncs};
use super::verdict::{Verdict, ratio};
use super::{DiskCompareError, LAPS_BEFORE, Place, brokers};
use crate::measure::LoadReport;
use crate::raw_disk::{RawFile, RawKind, RawPlan};
use crate::shape::Shape;

const STREAM: &str = "disk-write";
/// What a log adds to a batch at most: its head, and a head for each record.
const HEAD_BYTES: u64 = 128;
const RECORD_HEAD_BYTES: u64 = 16;
const BLOCK_BYTES: u64 = felix_runtime::file::BLOCK_BYTES as u64;

/// The outcome of the case. Rates are megabytes (10^6) per second: of payload for the broker, of everything written for
/// the disk.
#[derive(Debug, Clone, Serialize)]
pub struct WriteCase {
    pub shape: Shape,
    /// Bytes of one write of the raw disk: what a batch takes in a log.
    pub raw_bytes: u64,
    /// As many writes as batches are in flight, then one sync.
    pub raw_group: Series,
    /// As many writes in flight, each synced.
    pub raw_each: Series,
    /// One such write at a time.
    pub raw_single: Series,
    pub broker: Series,
    pub busy: Busy,
    /// CPU seconds of the broker per gigabyte (10^9) of payload.
    pub broker_s_per_gb: Series,
    pub ack_p50_us: Series,
    pub ack_p99_us: Series,
    /// Of all rounds together.
    pub syncs: Option<Syncs>,
    pub ratio_to_group: f64,
    pub ratio_to_each: f64,
    /// Against the faster of the two.
    pub ratio: f64,
    pub verdict: Verdict,
    pub clean: bool,
}

/// What a batch of the shape takes in a log, in whole blocks.
pub(crate) fn logged_bytes(shape: &Shape) -> u64 {
    let records = u64::from(shape.batch_records) * RECORD_HEAD_BYTES;
    (shape.batch_bytes() + records + HEAD_BYTES).next_multiple_of(BLOCK_BYTES)
}

/// Runs the case.
pub(super) fn run(place: &Place<'_>) -> Result<WriteCase, DiskCompareError> {
    let comparison = place.comparison;
    let shape = comparison.bulk();
    let raw_bytes = logged_bytes(&shape);
    let depth = comparison.depth as usize;
    let file_bytes = comparison.kept_bytes.max(2 * raw_bytes * depth as u64);
    let file = RawFile::make(place.folder, "raw-writes", file_bytes, comparison.server_cpu)?;
    let broker = brokers::start(place, "write", Some(comparison.kept_bytes))?;
    broker.create_durable_stream(STREAM, 1)?;
    let laps = LAPS_BEFORE * comparison.kept_bytes;
    brokers::preload(comparison.client_cpu, &broker, STREAM, &comparison.bulk(), laps)?;
    let before = LogTotals::read(broker.ready()).ok();
    let (mut group, mut each, mut single, mut loads) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for round in 1..=comparison.rounds {
        let raw = |kind, depth, duration: Duration| {
            let plan = RawPlan { kind, depth, op_bytes: raw_bytes as usize, duration };
            Ok::<_, DiskCompareError>(file.run(&plan)?.mb_per_s())
        };
        let duration = comparison.duration();
        group.push(raw(RawKind::GroupSynced, depth, duration)?);
        each.push(raw(RawKind::EachSynced, depth, duration)?);
        single.push(raw(RawKind::EachSynced, 1, duration.min(Duration::from_secs(1)))?);
        let load = brokers::load(comparison.client_cpu, &broker, STREAM, &shape)?;
        let last = |series: &[f64]| series.last().copied().unwrap_or_default();
        eprintln!(
            "write, round {round}: raw {:.0} MB/s with one sync per group, {:.0} each synced; broker {:.0} MB/s",
            last(&group),
            last(&each),
            load.mb_per_s()
        );
        loads.push(load);
    }
    let after = LogTotals::read(broker.ready()).ok();
    let batches = loads.iter().map(|load| load.sent_batches).sum();
    let syncs = after.zip(before).and_then(|(after, before)| after.since(&before, batches));
    let raw = [Series::of(group), Series::of(each), Series::of(single)];
    Ok(case(place, shape, raw, &loads, syncs))
}

fn case(
    place: &Place<'_>,
    shape: Shape,
    [raw_group, raw_each, raw_single]: [Series; 3],
    loads: &[LoadReport],
    syncs: Option<Syncs>,
) -> WriteCase {
    let broker = Series::each(loads, LoadReport::mb_per_s);
    let busy = Busy::of(loads);
    let against = |raw: &Series| ratio(broker.median, raw.median);
    let (ratio_to_group, ratio_to_each) = (against(&raw_group), against(&raw_each));
    let ratio = ratio_to_group.min(ratio_to_each);
    WriteCase {
        raw_bytes: logged_bytes(&shape),
        verdict: place.comparison.bounds.of_write(ratio, busy.broker_core.median),
        broker_s_per_gb: Series::each(loads, |load| load.server_s_per_gb().unwrap_or_default()),
        ack_p50_us: Series::each(loads, |load| load.ack_latency.p50_us),
        ack_p99_us: Series::each(loads, |load| load.ack_latency.p99_us),
        clean: loads.iter().all(LoadReport::is_clean),
        shape,
        raw_group,
        raw_each,
        raw_single,
        broker,
        busy,
        syncs,
        ratio_to_group,
        ratio_to_each,
        ratio,
    }
}

impl fmt::Display for WriteCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let depth = self.shape.inflight;
        writeln!(f, "write: {} acked after the sync, {depth} in flight, MB/s", self.shape.name)?;
        writeln!(f, "  raw, {depth} writes of {} B and one sync  {}", self.raw_bytes, self.raw_group)?;
        writeln!(f, "  raw, {depth} in flight, each synced        {}", self.raw_each)?;
        writeln!(f, "  raw, one synced write at a time     {}", self.raw_single)?;
        writeln!(f, "  broker, payload                     {}", self.broker)?;
        writeln!(
            f,
            "  {}, {:.3} s/GB, ack p50 {:.0} us, p99 {:.0} us",
            self.busy, self.broker_s_per_gb.median, self.ack_p50_us.median, self.ack_p99_us.median
        )?;
        if let Some(syncs) = &self.syncs {
            writeln!(f, "  {syncs}")?;
        }
        writeln!(f, "{}", ending(&self.verdict, self.clean))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_takes_whole_blocks_with_its_heads() {
        // 262,144 B of payload and 1,152 B of heads: one block more than the payload.
        assert_eq!(logged_bytes(&Shape::canonical()), 65 * 4_096);
    }
}
