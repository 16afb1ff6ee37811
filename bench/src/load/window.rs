//! The steady window of a run: when it begins and ends, and what was counted in it. Scope: one per run.
//! Owns: the counts, the latencies and the CPU samples of the window.
//! Invariants: counts and CPU samples begin and end at the same moments; what is not in the window is not counted.
//! Not here: losses, which are those of the whole run (`lane`, `reader`).

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use felix_runtime::Tick;

use crate::measure::{CpuSample, CpuUse, Histograms};

/// How far the window is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Before { begins: Tick },
    Open { ends: Tick },
    Over,
}

/// See the module.
#[derive(Debug)]
pub struct Window {
    state: State,
    duration: Duration,
    server_pid: Option<u32>,
    opened: Tick,
    first: Samples,
    /// Batches and payload bytes that ended in the window.
    pub batches: u64,
    pub payload_bytes: u64,
    pub latencies: Histograms,
    result: Option<Measured>,
}

#[derive(Debug, Default)]
struct Samples {
    server: Option<CpuSample>,
    client: CpuSample,
}

impl Samples {
    fn take(server_pid: Option<u32>) -> Samples {
        Samples {
            server: server_pid.and_then(|pid| CpuSample::of(pid).ok()),
            client: CpuSample::of(std::process::id()).unwrap_or_default(),
        }
    }
}

/// What was used in the window.
#[derive(Debug, Clone)]
pub struct Measured {
    pub length: Duration,
    /// When the window ended, since 1970.
    pub ended_unix: Duration,
    pub server: Option<CpuUse>,
    pub client: CpuUse,
}

impl Measured {
    /// When it began and ended, seconds since 1970.
    #[must_use]
    pub fn unix_s(&self) -> (f64, f64) {
        let began = self.ended_unix.saturating_sub(self.length);
        (began.as_secs_f64(), self.ended_unix.as_secs_f64())
    }
}

/// Time since 1970 by this machine's clock.
fn unix_now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

impl Window {
    /// A window of `duration` that begins `warmup` after `now`.
    #[must_use]
    pub fn new(now: Tick, warmup: Duration, duration: Duration, server_pid: Option<u32>) -> Window {
        Window {
            state: State::Before { begins: now + warmup },
            duration,
            server_pid,
            opened: now,
            first: Samples::default(),
            batches: 0,
            payload_bytes: 0,
            latencies: Histograms::default(),
            result: None,
        }
    }

    /// Opens or ends the window when that is due. True once it is over.
    pub fn advance(&mut self, now: Tick) -> bool {
        match self.state {
            State::Before { begins } if begins <= now => {
                self.first = Samples::take(self.server_pid);
                self.opened = now;
                self.state = State::Open { ends: now + self.duration };
            }
            State::Open { ends } if ends <= now => {
                let last = Samples::take(self.server_pid);
                let length = now.saturating_since(self.opened);
                let server = last.server.zip(self.first.server.as_ref());
                self.result = Some(Measured {
                    length,
                    ended_unix: unix_now(),
                    server: server.map(|(last, first)| last.since(first, length)),
                    client: last.client.since(&self.first.client, length),
                });
                self.state = State::Over;
            }
            State::Before { .. } | State::Open { .. } | State::Over => {}
        }
        self.state == State::Over
    }

    /// When `advance` has something to do.
    #[must_use]
    pub fn next_change(&self) -> Option<Tick> {
        match self.state {
            State::Before { begins: at } | State::Open { ends: at } => Some(at),
            State::Over => None,
        }
    }

    #[must_use]
    pub fn is_open(&self) -> bool {
        matches!(self.state, State::Open { .. })
    }

    /// The figures, once the window is over.
    #[must_use]
    pub fn measured(&self) -> Option<&Measured> {
        self.result.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_opens_after_the_warm_up_and_ends_once() {
        let second = Duration::from_secs(1);
        let mut window = Window::new(Tick::ZERO, second, second * 2, None);
        assert!(!window.advance(Tick::ZERO) && !window.is_open());
        let opened = Tick::ZERO + second;
        assert!(!window.advance(opened) && window.is_open());
        assert_eq!(window.next_change(), Some(opened + second * 2));
        assert!(window.measured().is_none());
        assert!(window.advance(opened + second * 3) && !window.is_open());
        let measured = window.measured().unwrap();
        assert_eq!(measured.length, second * 3, "the length is what really passed");
        assert!(measured.server.is_none());
    }
}
