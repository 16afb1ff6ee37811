//! The order of an end: readiness off, predrain, drain of the cores, stop, and the budgets of each. Sans-io.
//! Scope: per process, on the admin thread.
//! Owns: which step it is and when it has to be over.
//! Invariants: steps only go forward; every step has a deadline, so an end is bounded; a second signal skips to the stop
//! (semantics 8.2).
//! Not here: doing the steps (`admin`).

use std::time::Duration;

use felix_runtime::Tick;

/// How long cores that were told to stop may take: logs are closed then.
const STOP_BUDGET: Duration = Duration::from_secs(12);
/// Bound on the first signal to the last step, beside the drain budget and the predrain: what the steps around cost.
const SLACK: Duration = Duration::from_secs(1);

/// Where the end is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// Serving.
    Run,
    /// Readiness is off; connections are still taken, so that a balancer can see it.
    Predrain,
    /// No new connections; open ones settle.
    Drain,
    /// Cores end.
    Stop,
    /// Everything has ended, or had its time.
    Done,
}

/// See the module.
#[derive(Debug)]
pub struct Shutdown {
    step: Step,
    predrain: Duration,
    drain: Duration,
    deadline: Tick,
    began: Tick,
    /// Cores that have not said that they are drained.
    undrained: u16,
    forced: u16,
}

impl Shutdown {
    /// For `cores` cores with these budgets.
    pub fn new(cores: u16, predrain: Duration, drain: Duration) -> Shutdown {
        Shutdown {
            step: Step::Run,
            predrain,
            drain,
            deadline: Tick::MAX,
            began: Tick::ZERO,
            undrained: cores,
            forced: 0,
        }
    }

    /// Where it is.
    pub fn step(&self) -> Step {
        self.step
    }

    /// When the step is over at the latest; `Tick::MAX` while serving.
    pub fn deadline(&self) -> Tick {
        self.deadline
    }

    /// The process was asked to end.
    pub fn signal(&mut self, now: Tick) {
        match self.step {
            Step::Run => {
                self.began = now;
                self.enter(Step::Predrain, now + self.predrain);
            }
            Step::Predrain | Step::Drain => self.stop(now),
            Step::Stop | Step::Done => {}
        }
        self.advance(now);
    }

    /// A core has no connections any more.
    pub fn core_drained(&mut self, now: Tick) {
        self.undrained = self.undrained.saturating_sub(1);
        self.advance(now);
    }

    /// Every core has ended.
    pub fn cores_ended(&mut self) {
        self.enter(Step::Done, Tick::MAX);
    }

    /// Time has passed.
    pub fn advance(&mut self, now: Tick) {
        if self.step == Step::Predrain && now >= self.deadline {
            self.enter(Step::Drain, now + self.drain);
        }
        if self.step == Step::Drain && (self.undrained == 0 || now >= self.deadline) {
            self.stop(now);
        }
        if self.step == Step::Stop && now >= self.deadline {
            self.enter(Step::Done, Tick::MAX);
        }
    }

    /// Time since the first signal, and cores that did not settle.
    pub fn outcome(&self, now: Tick) -> (Duration, u16) {
        (now.saturating_since(self.began), self.forced)
    }

    /// The longest an end can take.
    pub fn bound(&self) -> Duration {
        self.predrain + self.drain + STOP_BUDGET + SLACK
    }

    fn stop(&mut self, now: Tick) {
        self.forced = self.undrained;
        self.enter(Step::Stop, now + STOP_BUDGET);
    }

    fn enter(&mut self, step: Step, deadline: Tick) {
        if step > self.step {
            self.step = step;
            self.deadline = deadline;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(s: u64) -> Tick {
        Tick::ZERO + Duration::from_secs(s)
    }

    fn shutdown(predrain: u64) -> Shutdown {
        Shutdown::new(2, Duration::from_secs(predrain), Duration::from_secs(25))
    }

    #[test]
    fn cores_that_settle_end_the_drain_early() {
        let mut end = shutdown(5);
        assert_eq!((end.step(), end.deadline()), (Step::Run, Tick::MAX));
        end.signal(seconds(10));
        assert_eq!((end.step(), end.deadline()), (Step::Predrain, seconds(15)));
        end.advance(seconds(14));
        assert_eq!(end.step(), Step::Predrain);
        end.advance(seconds(15));
        assert_eq!((end.step(), end.deadline()), (Step::Drain, seconds(40)));
        end.core_drained(seconds(16));
        assert_eq!(end.step(), Step::Drain);
        end.core_drained(seconds(17));
        assert_eq!((end.step(), end.deadline()), (Step::Stop, seconds(29)));
        end.cores_ended();
        assert_eq!((end.step(), end.outcome(seconds(18))), (Step::Done, (Duration::from_secs(8), 0)));
    }

    #[test]
    fn a_drain_that_never_ends_is_cut_off_and_counted() {
        let mut end = shutdown(0);
        end.signal(seconds(0));
        assert_eq!(end.step(), Step::Drain);
        end.core_drained(seconds(1));
        end.advance(seconds(25));
        assert_eq!(end.step(), Step::Stop);
        end.advance(seconds(37));
        assert_eq!((end.step(), end.outcome(seconds(37)).1), (Step::Done, 1));
        assert!(end.bound() >= Duration::from_secs(37));
    }

    #[test]
    fn a_second_signal_stops_at_once_and_nothing_goes_back() {
        for predrain in [0, 5] {
            let mut end = shutdown(predrain);
            end.signal(seconds(0));
            end.signal(seconds(1));
            assert_eq!(end.step(), Step::Stop);
            end.signal(seconds(2));
            end.core_drained(seconds(2));
            assert_eq!((end.step(), end.deadline()), (Step::Stop, seconds(13)));
        }
    }
}
