//! Which records that were claimed under a lease are not settled. Scope: per group of the application, shared by its clones.
//! Owns: their offsets, by lease.
//! Invariants: a record is here from the answer that claims it until its settlement was answered, or its lease is forgotten.
//! Not here: leases themselves (`holdings`).

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError};

use felix_wire::id::{LeaseId, Offset};
use tokio::sync::watch;

use crate::group::Claim;

/// See the module.
#[derive(Debug)]
pub(crate) struct Unsettled {
    leases: Mutex<HashMap<LeaseId, HashSet<Offset>>>,
    settled: watch::Sender<()>,
}

impl Default for Unsettled {
    fn default() -> Self {
        Self { leases: Mutex::default(), settled: watch::Sender::new(()) }
    }
}

impl Unsettled {
    /// A shard was leased: its records count from now on.
    pub(crate) fn begin(&self, lease: LeaseId) {
        self.lock().entry(lease).or_default();
    }

    /// A record was claimed. One of a lease that is not known counts for nothing.
    pub(crate) fn claimed(&self, claim: Claim) {
        let Some(lease) = claim.lease else { return };
        if let Some(held) = self.lock().get_mut(&lease) {
            held.insert(claim.offset);
        }
    }

    /// A record's settlement was answered, one way or the other.
    pub(crate) fn settled(&self, claim: Claim) {
        let Some(lease) = claim.lease else { return };
        if self.lock().get_mut(&lease).is_some_and(|held| held.remove(&claim.offset) && held.is_empty()) {
            self.settled.send_replace(());
        }
    }

    /// Whether every record of a lease is settled.
    pub(crate) fn is_empty(&self, lease: LeaseId) -> bool {
        self.lock().get(&lease).is_none_or(HashSet::is_empty)
    }

    /// The lease has ended.
    pub(crate) fn end(&self, lease: LeaseId) {
        self.lock().remove(&lease);
    }

    /// Changes whenever all records of some lease have been settled.
    pub(crate) fn watch(&self) -> watch::Receiver<()> {
        self.settled.subscribe()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<LeaseId, HashSet<Offset>>> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
