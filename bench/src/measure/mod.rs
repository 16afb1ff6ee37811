//! What is measured: CPU time of processes, latencies, and the result that is printed. Scope: plain values.
//! Not here: when a window begins and ends (`load`).

pub mod cpu;
pub mod latency;
pub mod report;
pub mod spread;

pub use cpu::{CpuSample, CpuUse, ThreadUse};
pub use latency::{HistogramError, Latency, LatencySummary};
pub use report::{Histograms, LoadReport, ReadReport};
pub use spread::Spread;

/// Bytes of the GB and MB that results speak of.
pub const GB: f64 = 1e9;
pub const MB: f64 = 1e6;

/// The middle of the values, or between the two middle ones.
///
/// # Panics
/// There are no values.
#[must_use]
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[middle] } else { f64::midpoint(sorted[middle - 1], sorted[middle]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_whatever_the_order() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), 2.5);
        assert_eq!(median(&[7.0]), 7.0);
    }
}
