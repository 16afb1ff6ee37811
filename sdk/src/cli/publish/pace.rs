//! When the next record may go, for `--rate`. Sans-io. Scope: per publish.
//! Invariants: over any time the records sent are at most the rate times that time, plus what the burst allows.

use std::time::Duration;

/// Time that may be caught up after a delay; also what is sent without a timer in between.
const BURST: Duration = Duration::from_millis(20);

/// A rate in records per second.
#[derive(Debug)]
pub struct Pace {
    each: Duration,
    /// Due time of the next record.
    next: Duration,
}

impl Pace {
    /// `per_second` is above 0.
    pub fn new(per_second: f64) -> Pace {
        Pace { each: Duration::from_secs_f64(1.0 / per_second), next: Duration::ZERO }
    }

    /// Counts one record at `now` (since the start), and tells how long to wait before it is sent.
    pub fn wait(&mut self, now: Duration) -> Duration {
        self.next = self.next.max(now.saturating_sub(BURST));
        let due = self.next;
        self.next += self.each;
        due.saturating_sub(now)
    }
}

/// A rate as people type it: `5000`, `5k`, `1.5M`, records per second.
///
/// # Errors
/// A text for the person who typed it.
pub fn parse_rate(text: &str) -> Result<f64, String> {
    let (digits, factor) = match text.strip_suffix(['k', 'K']) {
        Some(digits) => (digits, 1e3),
        None => text.strip_suffix('M').map_or((text, 1.0), |digits| (digits, 1e6)),
    };
    match digits.parse::<f64>().map(|number| number * factor) {
        Ok(rate) if (0.001..=1e9).contains(&rate) => Ok(rate),
        _ => Err(format!("`{text}` is not a rate such as 500, 20k or 1.5M records per second")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_spread_over_time_and_a_pause_is_not_caught_up() {
        let mut pace = Pace::new(100.0);
        let mut now = Duration::ZERO;
        for _ in 0..100 {
            now += pace.wait(now);
        }
        assert_eq!(now, Duration::from_millis(990));
        now += Duration::from_secs(60);
        let mut at_once = 0;
        while pace.wait(now).is_zero() {
            at_once += 1;
        }
        assert_eq!(at_once, 3, "the burst of 20 ms at 100 records per second");
    }

    #[test]
    fn rates_are_understood() {
        assert_eq!(parse_rate("500"), Ok(500.0));
        assert_eq!(parse_rate("20k"), Ok(20_000.0));
        assert_eq!(parse_rate("1.5M"), Ok(1_500_000.0));
        for text in ["", "0", "-1", "k", "inf", "nan", "1G"] {
            assert!(parse_rate(text).is_err(), "{text}");
        }
    }
}
