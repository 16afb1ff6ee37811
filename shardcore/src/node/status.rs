//! What the admin thread knows about the node: readiness and the numbers that are not a core's. Scope: per process.
//! Owns: the cells. Written by the admin thread; the metrics listener reads them at any time.
//! Invariants: ready means that every core serves, the control plane was read and took this node, and no drain began.
//! Not here: the cores' counters (`turn::counters`), how it is shown (`metrics`, `http`).

use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering::Relaxed};

/// Kinds of failure that are counted apart, as `ApiError::kind` names them.
pub const FAILURE_KINDS: [&str; 5] = ["credential", "unreachable", "unauthorized", "refused", "answer"];

/// Whether traffic may come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    Ready,
    /// What is still missing.
    Starting(&'static str),
    Draining,
}

/// The node's state.
#[derive(Debug, Default)]
pub struct NodeStatus {
    cores: u16,
    cores_ready: AtomicU16,
    synced: AtomicBool,
    registered: AtomicBool,
    draining: AtomicBool,
    /// The control plane counts this node as serving.
    pub member_live: AtomicBool,
    pub heartbeats: AtomicU64,
    /// By kind, in the order of `FAILURE_KINDS`.
    pub heartbeat_failures: [AtomicU64; FAILURE_KINDS.len()],
    pub fetch_failures: [AtomicU64; FAILURE_KINDS.len()],
    /// Milliseconds of the process's clock when the last answered heartbeat was sent; 0 before the first.
    pub heartbeat_sent_ms: AtomicU64,
    /// Milliseconds of the process's clock now, as of the admin thread's last turn.
    pub now_ms: AtomicU64,
    /// Seconds since 1970 when the node's credential ends; 0 if it does not say.
    pub credential_ends_at: AtomicU64,
    /// Seconds since 1970 as of the admin thread's last turn.
    pub unix_s: AtomicU64,
    /// Nodes with a client address.
    pub nodes: AtomicU64,
    /// Version of the newest routes.
    pub routes_version: AtomicU64,
    /// Logs that recovery refused.
    pub logs_refused: AtomicU64,
    /// Logs that no stream of the catalog names.
    pub logs_unclaimed: AtomicU64,
    /// Times the certificate was replaced.
    pub certificate_reloads: AtomicU64,
    /// How long the drain took, once it ended.
    pub drain_duration_ms: AtomicU64,
    /// Cores that did not settle within the drain budget.
    pub drain_forced: AtomicU64,
}

impl NodeStatus {
    /// A node of `cores` cores, none of which serves yet.
    pub fn new(cores: u16) -> NodeStatus {
        NodeStatus { cores, ..NodeStatus::default() }
    }

    /// Cores of the node.
    pub fn cores(&self) -> u16 {
        self.cores
    }

    /// One more core serves.
    pub fn core_ready(&self) {
        self.cores_ready.fetch_add(1, Relaxed);
    }

    /// The first full reading of the control plane is in.
    pub fn set_synced(&self) {
        self.synced.store(true, Relaxed);
    }

    /// The control plane took this node.
    pub fn set_registered(&self) {
        self.registered.store(true, Relaxed);
    }

    /// From now on this node is on its way out.
    pub fn set_draining(&self) {
        self.draining.store(true, Relaxed);
    }

    /// Whether traffic may come.
    pub fn readiness(&self) -> Readiness {
        if self.draining.load(Relaxed) {
            Readiness::Draining
        } else if self.cores_ready.load(Relaxed) < self.cores {
            Readiness::Starting("cores are starting")
        } else if !self.synced.load(Relaxed) {
            Readiness::Starting("the control plane has not been read yet")
        } else if !self.registered.load(Relaxed) {
            Readiness::Starting("the control plane has not taken this node yet")
        } else {
            Readiness::Ready
        }
    }

    /// Counts a failure by the word of `ApiError::kind`.
    pub fn count_failure(cells: &[AtomicU64; FAILURE_KINDS.len()], kind: &str) {
        if let Some(cell) = FAILURE_KINDS.iter().position(|known| *known == kind).and_then(|at| cells.get(at))
        {
            cell.fetch_add(1, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_ready_only_between_its_last_start_step_and_its_drain() {
        let status = NodeStatus::new(2);
        status.set_synced();
        status.set_registered();
        status.core_ready();
        assert!(matches!(status.readiness(), Readiness::Starting(_)));
        status.core_ready();
        assert_eq!(status.readiness(), Readiness::Ready);
        status.set_draining();
        assert_eq!(status.readiness(), Readiness::Draining);
    }

    #[test]
    fn a_node_that_nobody_registered_is_not_ready() {
        let status = NodeStatus::new(1);
        status.core_ready();
        assert!(matches!(status.readiness(), Readiness::Starting(_)));
        status.set_synced();
        assert!(matches!(status.readiness(), Readiness::Starting(_)));
        status.set_registered();
        assert_eq!(status.readiness(), Readiness::Ready);
    }
}
