//! This node's place in the control plane's registry: registration, then heartbeats. Sans-io. Scope: per process.
//! Owns: the registration's incarnation and when to speak next.
//! Invariants: at most one question at a time; a refused heartbeat leads to a new registration, never to silence; after
//! `leave` nothing is asked any more.
//! Not here: HTTP (`api`), what is served meanwhile (a node keeps serving while the control plane is away).

use std::time::Duration;

use felix_runtime::Tick;
use felix_wire::control::{HeartbeatAnswer, Lifecycle, RegisterAnswer};

use super::backoff::Backoff;

/// Bounds on the interval the control plane may ask for.
const INTERVAL: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(60));

/// What to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Say {
    Register,
    Heartbeat { incarnation: u64 },
}

/// How it went.
#[derive(Debug)]
pub enum Said {
    Registered(Box<RegisterAnswer>),
    Heard(HeartbeatAnswer),
    /// The control plane does not take this heartbeat (unknown node, or a newer registration of the same name).
    Unknown,
    /// No answer, or another error.
    Failed,
}

/// The registration.
#[derive(Debug, Default)]
pub struct Membership {
    /// Incarnation of the registration, once there is one.
    incarnation: Option<u64>,
    in_flight: bool,
    due: Tick,
    left: bool,
    backoff: Backoff,
    sent_at: Tick,
    /// When the last heartbeat (or registration) that was answered had been sent.
    heard_at: Option<Tick>,
    lifecycle: Option<Lifecycle>,
}

impl Membership {
    /// What is due, if anything. It counts as said until `answered`.
    pub fn next(&mut self, now: Tick) -> Option<Say> {
        if self.in_flight || self.left || self.due > now {
            return None;
        }
        self.in_flight = true;
        self.sent_at = now;
        Some(match self.incarnation {
            Some(incarnation) => Say::Heartbeat { incarnation },
            None => Say::Register,
        })
    }

    /// When `next` may have something, if no answer comes before.
    pub fn next_due(&self) -> Option<Tick> {
        (!self.in_flight && !self.left).then_some(self.due)
    }

    /// Takes the outcome of the last `Say`.
    pub fn answered(&mut self, said: Said, now: Tick) {
        self.in_flight = false;
        let interval_ms = match said {
            Said::Registered(answer) => {
                self.incarnation = Some(answer.node.status.incarnation);
                self.lifecycle = Some(answer.node.status.lifecycle);
                answer.heartbeat_interval_ms
            }
            Said::Heard(answer) => {
                self.lifecycle = Some(answer.lifecycle);
                if matches!(answer.lifecycle, Lifecycle::Down | Lifecycle::Left) {
                    self.incarnation = None;
                    self.due = now;
                    return;
                }
                answer.heartbeat_interval_ms
            }
            Said::Unknown => {
                self.incarnation = None;
                self.due = now + self.backoff.failed();
                return;
            }
            Said::Failed => {
                self.due = now + self.backoff.failed();
                return;
            }
        };
        self.backoff.succeeded();
        self.heard_at = Some(self.sent_at);
        self.due = self.sent_at + Duration::from_millis(interval_ms).clamp(INTERVAL.0, INTERVAL.1);
    }

    /// The node ends: no more heartbeats.
    pub fn leave(&mut self) {
        self.left = true;
    }

    /// Whether the control plane counts this node as serving.
    pub fn is_live(&self) -> bool {
        self.incarnation.is_some() && matches!(self.lifecycle, Some(Lifecycle::Live | Lifecycle::Draining))
    }

    /// When the last answered heartbeat was sent.
    pub fn heard_at(&self) -> Option<Tick> {
        self.heard_at
    }
}

#[cfg(test)]
mod tests {
    use felix_wire::control::{Node, NodeSpec, NodeStatus};

    use super::*;

    fn registered(incarnation: u64) -> Said {
        let spec = NodeSpec {
            advertise_addr: "127.0.0.1:1".to_owned(),
            client_addr: None,
            kafka_addr: None,
            region: "local".to_owned(),
            zone: None,
            labels: Default::default(),
            capacity: Default::default(),
        };
        let status = NodeStatus {
            lifecycle: Lifecycle::Live,
            last_heartbeat_at_millis: 0,
            registered_at_millis: 0,
            incarnation,
            features: Vec::new(),
        };
        Said::Registered(Box::new(RegisterAnswer {
            node: Node { node_id: "n".to_owned(), spec, status },
            heartbeat_interval_ms: 5_000,
            expiry_timeout_ms: 15_000,
            fleet_features: Vec::new(),
        }))
    }

    fn heard(lifecycle: Lifecycle) -> Said {
        Said::Heard(HeartbeatAnswer {
            node_id: "n".to_owned(),
            lifecycle,
            heartbeat_interval_ms: 5_000,
            expiry_timeout_ms: 15_000,
            fleet_features: Vec::new(),
        })
    }

    fn seconds(s: u64) -> Tick {
        Tick::ZERO + Duration::from_secs(s)
    }

    #[test]
    fn heartbeats_follow_the_registration_at_the_interval_counted_from_sending() {
        let mut member = Membership::default();
        assert_eq!(member.next(seconds(0)), Some(Say::Register));
        assert_eq!(member.next(seconds(0)), None);
        member.answered(registered(3), seconds(2));
        assert!(member.is_live());
        assert_eq!((member.next(seconds(4)), member.next_due()), (None, Some(seconds(5))));
        assert_eq!(member.next(seconds(5)), Some(Say::Heartbeat { incarnation: 3 }));
        member.answered(heard(Lifecycle::Live), seconds(6));
        assert_eq!((member.next_due(), member.heard_at()), (Some(seconds(10)), Some(seconds(5))));
    }

    #[test]
    fn a_node_that_is_down_or_unknown_registers_again() {
        for refusal in [heard(Lifecycle::Down), heard(Lifecycle::Left), Said::Unknown] {
            let mut member = Membership::default();
            member.next(seconds(0));
            member.answered(registered(1), seconds(0));
            member.next(seconds(5));
            member.answered(refusal, seconds(5));
            assert!(!member.is_live());
            assert_eq!(member.next(seconds(6)), Some(Say::Register));
        }
    }

    #[test]
    fn a_silent_control_plane_is_asked_again_with_growing_pauses() {
        let mut member = Membership::default();
        let mut now = seconds(0);
        let mut last = Duration::ZERO;
        for _ in 0..4 {
            assert_eq!(member.next(now), Some(Say::Register));
            member.answered(Said::Failed, now);
            let due = member.next_due().unwrap();
            assert!(due.saturating_since(now) > last);
            last = due.saturating_since(now);
            now = due;
        }
    }

    #[test]
    fn nothing_is_said_after_leaving() {
        let mut member = Membership::default();
        member.leave();
        assert_eq!((member.next(seconds(9)), member.next_due()), (None, None));
    }
}
