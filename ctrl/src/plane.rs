//! The running control plane: everything its routes and loops share. Scope: one per process.
//! Owns: the ledger, the leases, the metrics, and the two signals "something to place" and "draining".
//! Not here: routes (`api`), sockets and loops (`service`, `reconcile`).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};

use crate::clock;
use crate::lease::{LeaseRules, Leases};
use crate::ledger::Ledger;
use crate::metrics::Metrics;
use crate::store::{Store, StoreError};

/// Settings that routes and loops read.
#[derive(Clone, Debug)]
pub struct Settings {
    pub region_id: String,
    /// Whether the store outlives the process; told by `/v1/system/info`.
    pub durable_storage: bool,
    pub heartbeat_interval: Duration,
    pub lease: LeaseRules,
    pub sweep_interval: Duration,
    pub reconcile_interval: Duration,
    /// Changes in one answer.
    pub changes_limit: usize,
    /// Changes a feed keeps.
    pub change_retention_rows: u64,
    /// Life of a token that names none.
    pub token_ttl: Duration,
    pub bootstrap: Option<BootstrapSettings>,
}

/// Settings of the bootstrap listener.
#[derive(Clone)]
pub struct BootstrapSettings {
    pub token: String,
    /// Accepted during a rotation.
    pub token_previous: Option<String>,
    /// Whether development tokens are minted.
    pub dev_tokens: bool,
}

impl std::fmt::Debug for BootstrapSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BootstrapSettings").field("dev_tokens", &self.dev_tokens).finish_non_exhaustive()
    }
}

impl Default for Settings {
    /// The defaults of control-plane-api 12, without bootstrap.
    fn default() -> Settings {
        Settings {
            region_id: "local".to_owned(),
            durable_storage: false,
            heartbeat_interval: Duration::from_millis(5_000),
            lease: LeaseRules { expiry: Duration::from_millis(15_000), margin: Duration::from_millis(3_750) },
            sweep_interval: Duration::from_millis(2_000),
            reconcile_interval: Duration::from_millis(5_000),
            changes_limit: 1_000,
            change_retention_rows: 10_000,
            token_ttl: Duration::from_secs(900),
            bootstrap: None,
        }
    }
}

/// What routes and loops share.
pub struct Plane {
    pub ledger: Arc<Ledger>,
    pub settings: Settings,
    pub metrics: Metrics,
    leases: Mutex<Leases>,
    to_place: Notify,
    drain: watch::Sender<bool>,
    store_failed: AtomicBool,
}

impl Plane {
    /// Takes over a store.
    pub fn open(store: Arc<dyn Store>, settings: Settings) -> Result<Arc<Plane>, StoreError> {
        let birth = u64::try_from(clock::wall().as_micros()).unwrap_or(0);
        let ledger = Arc::new(Ledger::open(store, settings.change_retention_rows, birth)?);
        Ok(Arc::new(Plane {
            ledger,
            leases: Mutex::new(Leases::new(settings.lease, clock::since_boot())),
            settings,
            metrics: Metrics::new(),
            to_place: Notify::new(),
            drain: watch::Sender::new(false),
            store_failed: AtomicBool::new(false),
        }))
    }

    pub fn leases(&self) -> MutexGuard<'_, Leases> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for a placement pass soon. Asking again before it runs changes nothing.
    pub fn wake_placement(&self) {
        self.to_place.notify_one();
    }

    /// Returns when a pass was asked for since the last call.
    pub async fn placement_wanted(&self) {
        self.to_place.notified().await;
    }

    /// Readiness off; waiting polls are answered at once. Cannot be undone.
    pub fn begin_drain(&self) {
        self.drain.send_replace(true);
    }

    pub fn is_draining(&self) -> bool {
        *self.drain.borrow()
    }

    /// Becomes true once draining begins.
    pub fn drain_signal(&self) -> watch::Receiver<bool> {
        self.drain.subscribe()
    }

    /// A store call failed: not ready until a restart.
    pub fn note_store_failure(&self, error: &StoreError) {
        if !self.store_failed.swap(true, Ordering::AcqRel) {
            tracing::error!(%error, "the store failed; not ready until a restart");
        }
    }

    /// The store works and the process is not draining.
    pub fn is_ready(&self) -> bool {
        !self.is_draining() && self.store_works()
    }

    /// No store call has failed so far.
    pub fn store_works(&self) -> bool {
        !self.store_failed.load(Ordering::Acquire)
    }
}
