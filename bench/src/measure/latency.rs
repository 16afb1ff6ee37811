//! Latencies with bounded error and memory. Scope: one histogram per kind of latency and run.
//! Invariants: three significant digits from 1 us to a minute; what is longer counts as a minute.
//! Not here: which moments a latency lies between (`load`).

use std::time::Duration;

use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Deserializer, Serializer as _, V2Serializer};
use serde::{Deserialize, Serialize};

const HIGHEST_NANOS: u64 = 60_000_000_000;
/// Quantiles that a curve of latencies is drawn through.
const CURVE: [f64; 13] =
    [0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.995, 0.999, 0.999_5, 0.999_9, 0.999_99];

/// Why bytes are no latencies.
#[derive(Debug, thiserror::Error)]
pub enum HistogramError {
    #[error("not a histogram in V2 encoding: {0}")]
    Encoding(String),
    #[error("a histogram of other bounds")]
    Bounds,
}

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
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct LatencySummary {
    pub count: u64,
    pub mean_us: f64,
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

    /// Adds everything of `other`.
    pub fn merge(&mut self, other: &Latency) {
        // Both have the bounds of `default`.
        let _ = self.0.add(&other.0);
    }

    /// The histogram in HdrHistogram's V2 encoding, values in nanoseconds.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        // Writing into memory fails for counts beyond 2^63 alone.
        let _ = V2Serializer::new().serialize(&self.0, &mut bytes);
        bytes
    }

    /// What `encode` made.
    ///
    /// # Errors
    /// The bytes are no such histogram, or one of other bounds.
    pub fn decode(bytes: &[u8]) -> Result<Latency, HistogramError> {
        let found: Histogram<u64> = Deserializer::new()
            .deserialize(&mut &bytes[..])
            .map_err(|error| HistogramError::Encoding(format!("{error:?}")))?;
        let mut latency = Latency::default();
        let same = found.sigfig() == latency.0.sigfig() && found.high() <= latency.0.high();
        if !same {
            return Err(HistogramError::Bounds);
        }
        latency.0.add(&found).map_err(|_| HistogramError::Bounds)?;
        Ok(latency)
    }

    /// Quantiles and their values in microseconds, as far as there are enough values for them; empty without any.
    #[must_use]
    pub fn curve(&self) -> Vec<(f64, f64)> {
        let enough = |quantile: f64| self.0.len() as f64 * (1.0 - quantile) >= 1.0;
        let at = |quantile: f64| (quantile, self.0.value_at_quantile(quantile) as f64 / 1e3);
        CURVE.into_iter().filter(|quantile| enough(*quantile)).map(at).collect()
    }

    #[must_use]
    pub fn summary(&self) -> LatencySummary {
        let at = |quantile| self.0.value_at_quantile(quantile) as f64 / 1e3;
        LatencySummary {
            count: self.0.len(),
            mean_us: if self.0.is_empty() { 0.0 } else { self.0.mean() / 1e3 },
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
    fn latencies_come_back_from_their_encoding_and_add_up() {
        let mut latency = Latency::default();
        (1..=2_000).for_each(|micros| latency.record(Duration::from_micros(micros)));
        let decoded = Latency::decode(&latency.encode()).unwrap();
        assert_eq!(decoded.summary(), latency.summary());
        assert_eq!(Latency::decode(&Latency::default().encode()).unwrap().summary().count, 0);
        latency.merge(&decoded);
        assert_eq!(latency.summary().count, 4_000);
        assert!((latency.summary().mean_us - 1_000.5).abs() < 2.0);
    }

    #[test]
    fn bytes_that_are_no_histogram_are_refused() {
        let whole = {
            let mut latency = Latency::default();
            latency.record(Duration::from_millis(3));
            latency.encode()
        };
        for end in 0..whole.len() {
            assert!(Latency::decode(&whole[..end]).is_err(), "{end} of {} bytes", whole.len());
        }
        assert!(Latency::decode(b"a histogram? no").is_err());
        let other = Histogram::<u64>::new_with_bounds(1, 1_000, 2).unwrap();
        let mut bytes = Vec::new();
        V2Serializer::new().serialize(&other, &mut bytes).unwrap();
        assert!(matches!(Latency::decode(&bytes), Err(HistogramError::Bounds)));
    }

    #[test]
    fn a_curve_ends_where_too_few_values_are_left() {
        let mut latency = Latency::default();
        assert!(latency.curve().is_empty());
        (1..=1_000).for_each(|micros| latency.record(Duration::from_micros(micros)));
        let curve = latency.curve();
        assert_eq!(curve.last().map(|(quantile, _)| *quantile), Some(0.999));
        assert!(curve.windows(2).all(|pair| pair[0].1 <= pair[1].1));
    }

    #[test]
    fn what_is_out_of_range_counts_at_the_edge() {
        let mut latency = Latency::default();
        latency.record(Duration::from_secs(3_600));
        assert_eq!(latency.summary().count, 1);
        assert!(latency.summary().max_us >= 59e6);
    }
}
