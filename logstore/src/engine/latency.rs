//! How long things take and how much goes together. Scope: plain numbers, one set per engine.
//! Invariants: totals only rise; nothing is allocated to count.
//! Not here: totals of other things (`counts`), where they are shown.

use std::time::Duration;

/// Buckets of a [`Histogram`].
pub const BUCKETS: usize = 40;

/// Values by their power of two: bucket 0 counts zeros, bucket `n` the values from 2^(n-1) up to below 2^n, the last one
/// everything above as well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Histogram {
    pub buckets: [u64; BUCKETS],
    /// Of all values.
    pub count: u64,
    pub sum: u64,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram { buckets: [0; BUCKETS], count: 0, sum: 0 }
    }
}

impl Histogram {
    /// Counts `value` so many times.
    pub fn add(&mut self, value: u64, times: u64) {
        let bucket = (u64::BITS - value.leading_zeros()) as usize;
        self.buckets[bucket.min(BUCKETS - 1)] += times;
        self.count += times;
        self.sum = self.sum.saturating_add(value.saturating_mul(times));
    }

    /// One past the largest value of a bucket. The last bucket has none.
    #[must_use]
    pub fn bound(bucket: usize) -> Option<u64> {
        (bucket + 1 < BUCKETS).then(|| 1 << bucket)
    }

    /// A value that `part` of the values (0 to 1) are below, at most twice too large. 0 without values.
    #[must_use]
    pub fn quantile(&self, part: f64) -> u64 {
        let rank = (part.clamp(0.0, 1.0) * self.count as f64).ceil() as u64;
        let mut seen = 0;
        for (bucket, count) in self.buckets.iter().enumerate() {
            seen += count;
            if *count > 0 && seen >= rank {
                return Histogram::bound(bucket).unwrap_or(u64::MAX);
            }
        }
        0
    }
}

/// Histograms of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Latencies {
    /// Microseconds from the turn that appended a batch to its settling, per batch.
    pub settle_us: Histogram,
    /// Microseconds of a write that is durable when it is answered, or of a sync.
    pub sync_us: Histogram,
    /// Batches that became settled by one write: a round, or a piece straight to its segment.
    pub write_batches: Histogram,
    /// Bytes of such a write.
    pub write_bytes: Histogram,
}

impl Latencies {
    pub(super) fn settled(&mut self, took: Duration, batches: u64) {
        self.settle_us.add(micros(took), batches);
    }

    pub(super) fn synced(&mut self, took: Duration) {
        self.sync_us.add(micros(took), 1);
    }

    pub(super) fn written(&mut self, batches: usize, bytes: usize) {
        self.write_batches.add(batches as u64, 1);
        self.write_bytes.add(bytes as u64, 1);
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_counted_below_the_next_power_of_two() {
        let mut histogram = Histogram::default();
        for (value, bucket) in [(0, 0), (1, 1), (2, 2), (3, 2), (4, 3), (1_000, 10), (u64::MAX, BUCKETS - 1)]
        {
            let before = histogram.buckets[bucket];
            histogram.add(value, 2);
            assert_eq!(histogram.buckets[bucket], before + 2, "{value}");
            assert!(Histogram::bound(bucket).is_none_or(|bound| value < bound));
        }
        assert_eq!((histogram.count, histogram.sum), (14, u64::MAX));
        let mut even = Histogram::default();
        even.add(100, 99);
        even.add(5_000, 1);
        assert_eq!(
            (even.quantile(0.5), even.quantile(1.0), Histogram::default().quantile(0.5)),
            (128, 8_192, 0)
        );
    }
}
