//! How much of a CPU a thread really gets: it spins and looks at the clock. Scope: one CPU at a time.
//! Invariants: the spin ends after its time, however little of the CPU it got.
//! Not here: what is too much (the parent).

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::machine::try_pin;

/// Two looks at the clock that lie further apart were not made by one undisturbed loop.
const GAP: Duration = Duration::from_micros(10);

/// What others did to a spinning thread.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CpuNoise {
    pub cpu: usize,
    /// The thread could be kept there.
    pub pinned: bool,
    pub seconds: f64,
    /// The share of the time that lay in gaps, percent.
    pub lost_percent: f64,
    pub worst_gap_us: f64,
}

/// Spins on `cpu` for `length`.
#[must_use]
pub fn spin(cpu: usize, length: Duration) -> CpuNoise {
    let thread = std::thread::spawn(move || {
        let pinned = try_pin(cpu);
        let begun = Instant::now();
        let (mut last, mut lost, mut worst) = (begun, Duration::ZERO, Duration::ZERO);
        while last.duration_since(begun) < length {
            let now = Instant::now();
            let gap = now.duration_since(last);
            if gap > GAP {
                lost += gap;
                worst = worst.max(gap);
            }
            last = now;
        }
        let seconds = last.duration_since(begun).as_secs_f64();
        CpuNoise {
            cpu,
            pinned,
            seconds,
            lost_percent: 100.0 * lost.as_secs_f64() / seconds.max(f64::MIN_POSITIVE),
            worst_gap_us: worst.as_secs_f64() * 1e6,
        }
    });
    let unknown = CpuNoise { cpu, pinned: false, seconds: 0.0, lost_percent: 100.0, worst_gap_us: 0.0 };
    thread.join().unwrap_or(unknown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spin_ends_and_shares_are_shares() {
        let noise = spin(0, Duration::from_millis(20));
        assert!(noise.seconds >= 0.02 && (0.0..=100.0).contains(&noise.lost_percent), "{noise:?}");
    }

    #[test]
    fn a_cpu_that_is_not_there_is_told() {
        assert!(!spin(100_000, Duration::from_millis(1)).pinned);
    }
}
