//! Latencies with bounded error and memory. Scope: one histogram per kind of latency and run.
//! Invariants: three significant digits from 1 us to a minute; what is longer counts as a minute.
//! Not here: which moments a latency lies between (`load`).

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

const HIGHEST_NANOS: u64 = 60_000_000_000;

/// A growing set of latencies.
#[derive(Debug, Clone)]
pub struct Latency(Histogram<u64>);

impl Default for Latency {
    fn default() -> Latency {
        Latency(
            Histogram::new_with_bounds(1_000, HIGHEST_NANOS, 3).expect("1 us to 60 s with 3 digits is valid"),
        )
    }
}

/// What is told of a set of latencies, in microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct LatencySummary {
    pub count: u64,
    pub p50_us: f64,
    pub p90_us: f64,
    pub p99_us: f64,
    pub p999_us: f64,
    pub max_us: f64,
}

impl Latency {
    pub fn record(&mut self, latency: Duration) {
        self.0.saturating_record(u64::try_from(latency.as_nanos()).unwrap_or(HIGHEST_NANOS));
    }

    #[must_use]
    pub fn summary(&self) -> LatencySummary {
        let at = |quantile| self.0.value_at_quantile(quantile) as f64 / 1e3;
        LatencySummary {
            count: self.0.len(),
            p50_us: at(0.5),
            p90_us: at(0.9),
            p99_us: at(0.99),
            p999_us: at(0.999),
            max_us: if self.0.is_empty() { 0.0 } else { self.0.max() as f64 / 1e3 },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_what_was_recorded() {
        let mut latency = Latency::default();
        for micros in 1..=1_000 {
            latency.record(Duration::from_micros(micros));
        }
        let summary = latency.summary();
        assert_eq!(summary.count, 1_000);
        for (found, wanted) in [(summary.p50_us, 500.0), (summary.p99_us, 990.0), (summary.max_us, 1_000.0)] {
            assert!((found - wanted).abs() / wanted < 0.002, "{found} is not {wanted}");
        }
    }

    #[test]
    fn what_is_out_of_range_counts_at_the_edge() {
        let mut latency = Latency::default();
        latency.record(Duration::from_secs(3_600));
        assert_eq!(latency.summary().count, 1);
        assert!(latency.summary().max_us >= 59e6);
    }
}
