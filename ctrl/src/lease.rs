//! Who was heard of, and when. Scope: one per process, behind its lock.
//! Owns: the time of each broker's last heartbeat on our own clock. Invariants: a broker is condemned only after a whole
//! lease and margin of silence seen by this process; a condemned registration is never renewed again, so a heartbeat
//! that crosses the sweep is told so; times written by anybody else count for nothing here (control-plane-api 6.3).
//! Not here: the node rows (`registry`), clocks (time is an argument).

use std::collections::HashMap;
use std::time::Duration;

use felix_wire::control::{Lifecycle, Node};

/// Lengths that decide about a silent broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseRules {
    /// Length of a lease.
    pub expiry: Duration,
    /// Added before anything of a silent broker is handed on; at least a quarter of `expiry`.
    pub margin: Duration,
}

impl LeaseRules {
    /// Silence after which a broker is down.
    pub fn window(&self) -> Duration {
        self.expiry + self.margin
    }
}

/// Outcome of a heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    Renewed,
    /// This registration was given up; the broker must register anew.
    Condemned,
}

#[derive(Debug)]
struct Entry {
    incarnation: u64,
    at: Duration,
    wall_millis: u64,
    condemned: bool,
}

/// Times are since boot unless they say otherwise.
#[derive(Debug)]
pub struct Leases {
    rules: LeaseRules,
    /// When this process began to listen: silence before that is not silence.
    since: Duration,
    entries: HashMap<String, Entry>,
}

impl Leases {
    pub fn new(rules: LeaseRules, now: Duration) -> Leases {
        Leases { rules, since: now, entries: HashMap::new() }
    }

    /// A broker registered: its lease begins, whatever was before.
    pub fn registered(&mut self, node_id: &str, incarnation: u64, now: Duration, wall_millis: u64) {
        let entry = Entry { incarnation, at: now, wall_millis, condemned: false };
        self.entries.insert(node_id.to_owned(), entry);
    }

    /// A heartbeat of the node's current registration came in.
    pub fn heard(&mut self, node_id: &str, incarnation: u64, now: Duration, wall_millis: u64) -> Heard {
        match self.entries.get_mut(node_id) {
            Some(entry) if entry.incarnation == incarnation => {
                if entry.condemned {
                    return Heard::Condemned;
                }
                entry.at = entry.at.max(now);
                entry.wall_millis = wall_millis;
            }
            _ => self.registered(node_id, incarnation, now, wall_millis),
        }
        Heard::Renewed
    }

    /// How long the node's registration has been silent, as far as this process knows.
    pub fn silence(&self, node: &Node, now: Duration) -> Duration {
        let last = match self.entry_of(node) {
            Some(entry) => entry.at,
            None => self.since,
        };
        now.saturating_sub(last)
    }

    /// Wall time of the last heartbeat of the node's registration, if this process heard one.
    pub fn last_wall_millis(&self, node: &Node) -> Option<u64> {
        self.entry_of(node).map(|entry| entry.wall_millis)
    }

    /// Whether the silence is past the lease itself (the broker stopped serving before that).
    pub fn is_late(&self, node: &Node, now: Duration) -> bool {
        self.silence(node, now) > self.rules.expiry
    }

    /// Whether the silence is past lease and margin.
    pub fn is_over(&self, node: &Node, now: Duration) -> bool {
        self.silence(node, now) >= self.rules.window()
    }

    /// Gives up the registration of a serving node whose silence is over; false leaves it as it is. A node read before
    /// it registered anew is left alone.
    pub fn condemn(&mut self, node: &Node, now: Duration) -> bool {
        let serving = matches!(node.status.lifecycle, Lifecycle::Live | Lifecycle::Draining);
        let newer = self.entries.get(&node.node_id).is_some_and(|e| e.incarnation > node.status.incarnation);
        if !serving || newer || !self.is_over(node, now) {
            return false;
        }
        let entry = self.entries.entry(node.node_id.clone()).or_insert(Entry {
            incarnation: node.status.incarnation,
            at: Duration::ZERO,
            wall_millis: node.status.last_heartbeat_at_millis,
            condemned: false,
        });
        entry.incarnation = node.status.incarnation;
        entry.condemned = true;
        true
    }

    /// A node was deleted.
    pub fn forget(&mut self, node_id: &str) {
        self.entries.remove(node_id);
    }

    fn entry_of(&self, node: &Node) -> Option<&Entry> {
        self.entries.get(&node.node_id).filter(|entry| entry.incarnation == node.status.incarnation)
    }
}

#[cfg(test)]
mod tests;
