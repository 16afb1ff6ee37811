//! When a figure is good enough. Scope: plain values.
//! Not here: where the figures come from.

use serde::Serialize;

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Bounds {
    /// Durable payload over raw disk, bytes per second.
    pub write_ratio_min: f64,
    /// Or the broker's core is busier than this, percent.
    pub core_busy_percent_min: f64,
    /// Rate over many shards over the rate over one.
    pub shards_ratio_min: f64,
    /// History over raw sequential reads, bytes per second.
    pub history_ratio_min: f64,
    /// Or this many megabytes (10^6) per second.
    pub history_mb_per_s_min: f64,
    /// Rate of the live publisher beside the history reader over its rate alone.
    pub live_ratio_min: f64,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds {
            write_ratio_min: 0.85,
            core_busy_percent_min: 95.0,
            shards_ratio_min: 0.80,
            history_ratio_min: 0.70,
            history_mb_per_s_min: 1_000.0,
            live_ratio_min: 0.90,
        }
    }
}

/// Whether a case kept its bounds, and by which figure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Verdict {
    pub passed: bool,
    pub because: String,
}

/// `part` of `whole`; nothing when the whole is nothing, which passes no bound above 0.
pub fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

impl Bounds {
    /// The disk or the core is the limit.
    #[must_use]
    pub fn of_write(&self, ratio: f64, core_busy_percent: f64) -> Verdict {
        let disk = ratio >= self.write_ratio_min;
        let core = core_busy_percent > self.core_busy_percent_min;
        let because = format!(
            "{:.0} % of the raw disk ({:.0} asked), core {core_busy_percent:.0} % busy (or over {:.0})",
            100.0 * ratio,
            100.0 * self.write_ratio_min,
            self.core_busy_percent_min,
        );
        Verdict { passed: disk || core, because }
    }

    /// Spreading costs little.
    #[must_use]
    pub fn of_shards(&self, ratio: f64) -> Verdict {
        let because = format!(
            "{:.0} % of the rate over one shard ({:.0} asked)",
            100.0 * ratio,
            100.0 * self.shards_ratio_min
        );
        Verdict { passed: ratio >= self.shards_ratio_min, because }
    }

    /// The history comes fast, and what is live hardly notices.
    #[must_use]
    pub fn of_history(&self, mb_per_s: f64, ratio: f64, live_ratio: f64) -> Verdict {
        let fast = ratio >= self.history_ratio_min || mb_per_s >= self.history_mb_per_s_min;
        let because = format!(
            "{:.0} % of raw reads ({:.0} asked) at {mb_per_s:.0} MB/s (or {:.0}), the live publisher kept {:.0} % \
             of its rate ({:.0} asked)",
            100.0 * ratio,
            100.0 * self.history_ratio_min,
            self.history_mb_per_s_min,
            100.0 * live_ratio,
            100.0 * self.live_ratio_min,
        );
        Verdict { passed: fast && live_ratio >= self.live_ratio_min, because }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_passes_by_the_disk_or_by_the_core_alone() {
        let bounds = Bounds::default();
        assert!(bounds.of_write(0.85, 10.0).passed);
        assert!(bounds.of_write(0.2, 95.1).passed);
        assert!(!bounds.of_write(0.849, 95.0).passed);
    }

    #[test]
    fn many_shards_pass_at_four_fifths() {
        let bounds = Bounds::default();
        assert!(bounds.of_shards(0.8).passed);
        assert!(!bounds.of_shards(0.799).passed);
    }

    #[test]
    fn a_history_passes_by_either_rate_but_never_at_the_cost_of_the_live_publisher() {
        let bounds = Bounds::default();
        assert!(bounds.of_history(100.0, 0.7, 0.9).passed);
        assert!(bounds.of_history(1_000.0, 0.1, 0.9).passed);
        assert!(!bounds.of_history(999.0, 0.69, 1.0).passed);
        assert!(!bounds.of_history(5_000.0, 1.0, 0.89).passed);
    }

    #[test]
    fn nothing_over_nothing_passes_no_bound() {
        assert_eq!(ratio(1.0, 0.0), 0.0);
        assert_eq!(ratio(3.0, 4.0), 0.75);
        assert!(!Bounds::default().of_shards(ratio(0.0, 0.0)).passed);
    }
}
