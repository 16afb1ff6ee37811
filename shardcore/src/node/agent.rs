//! The control plane's client: registers the node, keeps its heartbeat, follows the catalog and the assignments, fetches
//! keys. Scope: per process, on the admin thread.
//! Owns: the machines that decide (`catalog`, `membership`, `keys`, `routes`) and the calls in flight.
//! Invariants: this file only carries: what is due becomes a call, an answer goes to its machine, what changed goes to
//! the cores. A failed call changes nothing that is served.
//! Not here: the loop that drives it (`admin`).

mod api;
mod backoff;
mod catalog;
mod cores;
mod credential;
mod feed;
mod keys;
mod membership;
mod routes;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use felix_runtime::{Clock, Tick};
use felix_wire::control::{Heartbeat, Jwks, RegisterNode};
use felix_wire::id::{Incarnation, NodeId};
use tokio::task::JoinSet;

pub use self::api::{ApiError, ControlPlane};
pub use self::credential::Credential;

use self::catalog::{Answer, Catalog, Kind};
use self::keys::{KeyCache, Request};
use self::membership::{Membership, Said, Say};
use self::routes::RouteMaker;
use super::links::Links;
use super::log_names::LogNames;
use super::status::NodeStatus;
use super::storage::LogBook;
use crate::snapshot::{Resource, StreamName};

/// Least time between two key snapshots: tokens with made-up key ids must not cost a snapshot each.
const KEYS_GAP: Duration = Duration::from_millis(20);
/// Requests for keys that may wait for the first reading; more are answered with nothing.
const EARLY_MAX: usize = 1_024;

/// What the agent is for.
pub struct AgentSettings {
    pub node: NodeId,
    pub cores: u16,
    /// See `shards_per_core` in the configuration.
    pub shards_per_core: u32,
    /// Time between two readings of the catalog.
    pub sync_interval: Duration,
    /// How the node presents itself.
    pub registration: RegisterNode,
}

/// A call that ended.
pub enum Done {
    Catalog(Kind, Result<Answer, ApiError>),
    Membership(Result<Said, ApiError>),
    Keys(Arc<str>, Result<Jwks, ApiError>),
}

/// See the module.
pub struct Agent {
    api: Arc<ControlPlane>,
    clock: Clock,
    status: Arc<NodeStatus>,
    registration: Arc<RegisterNode>,
    catalog: Catalog,
    membership: Membership,
    keys: KeyCache,
    routes: RouteMaker,
    calls: JoinSet<Done>,
    /// Requests from before the first reading: which tenants exist is not known yet.
    early: BTreeSet<(Arc<str>, Arc<str>)>,
    /// A core waits for a key snapshot that no call will bring.
    answer_keys: bool,
    keys_told_at: Tick,
    catalog_trouble: Trouble,
    membership_trouble: Trouble,
    keys_trouble: Trouble,
    names: LogNames,
}

impl Agent {
    /// Asks nothing before `ask`.
    pub fn new(settings: AgentSettings, api: ControlPlane, clock: Clock, status: Arc<NodeStatus>) -> Agent {
        Agent {
            api: Arc::new(api),
            clock,
            status,
            registration: Arc::new(settings.registration),
            catalog: Catalog::new(settings.sync_interval),
            membership: Membership::default(),
            keys: KeyCache::default(),
            routes: RouteMaker::new(settings.node, settings.cores, settings.shards_per_core),
            calls: JoinSet::new(),
            early: BTreeSet::new(),
            answer_keys: false,
            keys_told_at: Tick::ZERO,
            catalog_trouble: Trouble::new("reading the control plane"),
            membership_trouble: Trouble::new("registration and heartbeat"),
            keys_trouble: Trouble::new("fetching verification keys"),
            names: LogNames::new(Vec::new()),
        }
    }

    /// The names of durable streams are written down beside their logs from now on.
    pub fn name_logs(&mut self, names: LogNames) {
        self.names = names;
    }

    /// Starts every call that is due.
    pub fn ask(&mut self) {
        let now = self.clock.now();
        while let Some(say) = self.membership.next(now) {
            let (api, node) = (Arc::clone(&self.api), Arc::clone(&self.registration));
            self.calls.spawn(async move { Done::Membership(speak(&api, &node, say).await) });
        }
        while let Some(fetch) = self.catalog.next_fetch(now) {
            let api = Arc::clone(&self.api);
            self.calls.spawn(async move { Done::Catalog(fetch.kind(), api.fetch(fetch).await) });
        }
        while let Some(tenant) = self.keys.next_fetch(now) {
            let api = Arc::clone(&self.api);
            self.calls.spawn(async move {
                let jwks = api.jwks(&tenant).await;
                Done::Keys(tenant, jwks)
            });
        }
    }

    /// The next call that ends; never when none is in flight. Dropping the future loses nothing.
    pub async fn done(&mut self) -> Done {
        match self.calls.join_next().await {
            Some(Ok(done)) => done,
            Some(Err(error)) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Some(Err(_)) | None => std::future::pending().await,
        }
    }

    /// Takes the outcome of a call.
    pub fn take(&mut self, done: Done) {
        let now = self.clock.now();
        match done {
            Done::Catalog(kind, Ok(answer)) => {
                let was_synced = self.catalog.is_synced();
                self.catalog.answered(answer, now);
                self.catalog_trouble.over();
                self.status.nodes.store(self.catalog.node_count() as u64, Relaxed);
                if self.catalog.is_synced() && !was_synced {
                    tracing::info!("the control plane has been read");
                    self.status.set_synced();
                    for (tenant, kid) in std::mem::take(&mut self.early) {
                        self.request_keys(&tenant, &kid);
                    }
                }
                if kind == Kind::Tenants {
                    let catalog = &self.catalog;
                    self.keys.retain(|tenant| catalog.has_tenant(tenant));
                }
            }
            Done::Catalog(kind, Err(error)) => {
                NodeStatus::count_failure(&self.status.fetch_failures, error.kind());
                self.catalog_trouble.note(&error);
                self.catalog.answered(Answer::Failed(kind), now);
            }
            Done::Membership(outcome) => self.take_membership(outcome, now),
            Done::Keys(tenant, Ok(jwks)) => {
                self.keys_trouble.over();
                self.keys.fetched(&tenant, Some(&jwks), now);
            }
            Done::Keys(tenant, Err(error)) => {
                self.keys_trouble.note(&error);
                self.keys.fetched(&tenant, None, now);
            }
        }
    }

    fn take_membership(&mut self, outcome: Result<Said, ApiError>, now: Tick) {
        let was_live = self.membership.is_live();
        let said = match outcome {
            Ok(said) => {
                self.membership_trouble.over();
                said
            }
            Err(error) => {
                NodeStatus::count_failure(&self.status.heartbeat_failures, error.kind());
                self.membership_trouble.note(&error);
                Said::Failed
            }
        };
        match &said {
            Said::Registered(_) => self.status.set_registered(),
            Said::Heard(_) => {
                self.status.heartbeats.fetch_add(1, Relaxed);
            }
            Said::Unknown => {
                tracing::warn!("the control plane does not know this registration; registering again")
            }
            Said::Failed => {}
        }
        self.membership.answered(said, now);
        let live = self.membership.is_live();
        if live && !was_live {
            tracing::info!(node = %self.registration.node_id, "the control plane counts this node as serving");
        }
        self.status.member_live.store(live, Relaxed);
        if let Some(at) = self.membership.heard_at() {
            self.status.heartbeat_sent_ms.store(at.as_micros() / 1_000, Relaxed);
        }
        self.status.credential_ends_at.store(self.api.credential_expires_at().unwrap_or(0), Relaxed);
    }

    /// A core met a token whose key it does not have. Before the first reading nobody is refused for want of keys: the
    /// request waits for it.
    pub fn request_keys(&mut self, tenant: &Arc<str>, kid: &Arc<str>) {
        if !self.catalog.is_synced() && self.early.len() < EARLY_MAX {
            self.early.insert((Arc::clone(tenant), Arc::clone(kid)));
            return;
        }
        let known = self.catalog.has_tenant(tenant);
        if self.keys.request(tenant, kid, known, self.clock.now()) == Request::Answer {
            self.answer_keys = true;
        }
    }

    /// Sends the cores what changed. Routes are sent only once everything was read, so a core never takes an early
    /// snapshot for the whole truth.
    pub fn tell(&mut self, links: &mut Links, logs: &mut LogBook) {
        let now = self.clock.now();
        if self.catalog.is_synced() && logs.is_up() && self.catalog.take_changed() {
            let routes = Arc::new(self.routes.make(&self.catalog, logs));
            logs.follow(&routes, links);
            for stream in self.catalog.take_ended_streams().iter().filter(|stream| stream.durable) {
                let name = (&*stream.tenant_id, &*stream.namespace, &*stream.stream);
                let life = (Incarnation(stream.incarnation), stream.shards);
                logs.ended(Resource::Stream, &stream_name(name), life, links);
            }
            for cache in self.catalog.take_ended_caches() {
                let name = (&*cache.tenant_id, &*cache.namespace, &*cache.cache);
                let life = (Incarnation(cache.incarnation), cache.shards);
                logs.ended(Resource::Cache, &stream_name(name), life, links);
            }
            self.status.routes_version.store(routes.version, Relaxed);
            links.routes(&routes);
            self.names.learn(&routes);
        }
        self.names.write();
        self.answer_keys |= self.keys.take_changed();
        if self.answer_keys && now >= self.keys_told_at + KEYS_GAP {
            self.answer_keys = false;
            self.keys_told_at = now;
            links.keys(&Arc::new(self.keys.snapshot()));
        }
    }

    /// When `ask` or `tell` has something to do, if no call ends before.
    pub fn next_due(&self) -> Option<Tick> {
        let told = self.answer_keys.then(|| self.keys_told_at + KEYS_GAP);
        [self.catalog.next_due(), self.membership.next_due(), self.keys.next_due(), told]
            .into_iter()
            .flatten()
            .min()
    }

    /// Ends all calls; nothing is asked any more.
    pub fn stop(&mut self) {
        self.membership.leave();
        self.calls.abort_all();
    }
}

fn stream_name((tenant, namespace, stream): (&str, &str, &str)) -> StreamName {
    StreamName { tenant: tenant.into(), namespace: namespace.into(), stream: stream.into() }
}

async fn speak(api: &ControlPlane, node: &RegisterNode, say: Say) -> Result<Said, ApiError> {
    match say {
        Say::Register => Ok(Said::Registered(Box::new(api.register(node).await?))),
        Say::Heartbeat { incarnation } => {
            let heartbeat = Heartbeat { incarnation, suspects: Vec::new() };
            match api.heartbeat(&node.node_id, &heartbeat).await {
                Ok(answer) => Ok(Said::Heard(answer)),
                Err(ApiError::Refused { status: 404 | 409, .. }) => Ok(Said::Unknown),
                Err(error) => Err(error),
            }
        }
    }
}

/// Logs the first failure of a row and its end, not each one.
struct Trouble {
    what: &'static str,
    since_failing: bool,
}

impl Trouble {
    fn new(what: &'static str) -> Trouble {
        Trouble { what, since_failing: false }
    }

    fn note(&mut self, error: &ApiError) {
        if std::mem::replace(&mut self.since_failing, true) {
            tracing::debug!(%error, "{} still fails", self.what);
        } else {
            tracing::warn!(%error, "{} fails; what is served stays as it is", self.what);
        }
    }

    fn over(&mut self) {
        if std::mem::take(&mut self.since_failing) {
            tracing::info!("{} works again", self.what);
        }
    }
}
