//! When a server that ended is started again. Sans-io. Scope: per server.
//! Invariants: a server that keeps ending is given up after `ATTEMPTS_MAX` starts in a row; one that ran for
//! `SETTLED` starts at once and counts from the beginning.

use std::time::Duration;

/// A server that ran this long is taken to work.
const SETTLED: Duration = Duration::from_secs(30);
const PAUSE_FIRST: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);
const ATTEMPTS_MAX: u32 = 10;

/// See the module.
#[derive(Debug, Default)]
pub struct Restarts {
    in_a_row: u32,
}

impl Restarts {
    /// The server ended after it ran for `ran`: how long to wait before it is started again; `None` to give up.
    pub fn ended(&mut self, ran: Duration) -> Option<Duration> {
        if ran >= SETTLED {
            self.in_a_row = 0;
        }
        let earlier = self.in_a_row;
        self.in_a_row += 1;
        match earlier {
            0 => Some(Duration::ZERO),
            1..ATTEMPTS_MAX => Some((PAUSE_FIRST * (1 << (earlier - 1))).min(PAUSE_MAX)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_restart_is_at_once_later_ones_wait_and_at_last_it_is_given_up() {
        let mut restarts = Restarts::default();
        let pauses: Vec<_> = std::iter::from_fn(|| restarts.ended(Duration::from_secs(1)))
            .map(|pause| pause.as_millis())
            .collect();
        assert_eq!(pauses, [0, 100, 200, 400, 800, 1_600, 3_200, 5_000, 5_000, 5_000]);
    }

    #[test]
    fn a_server_that_ran_for_long_starts_from_the_beginning() {
        let mut restarts = Restarts::default();
        for _ in 0..100 {
            assert_eq!(restarts.ended(SETTLED), Some(Duration::ZERO));
        }
    }
}
