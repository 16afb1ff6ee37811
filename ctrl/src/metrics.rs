//! What the control plane counts. Scope: one per process; handles are fields, so nothing is looked up by name.
//! Invariants: no label carries a node id, a name given by a client, or anything else without a bound.

use std::sync::atomic::AtomicI64;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct NodeLabels {
    pub lifecycle: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ReasonLabel {
    pub reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct OutcomeLabels {
    pub outcome: &'static str,
    pub reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct StatusLabel {
    pub status: u16,
}

/// Every metric of the process.
pub struct Metrics {
    registry: Registry,
    pub requests: Family<StatusLabel, Counter>,
    pub inflight_requests: Gauge,
    pub auth_rejected: Family<ReasonLabel, Counter>,
    pub bootstrap_attempts: Family<OutcomeLabels, Counter>,
    pub node_count: Family<NodeLabels, Gauge>,
    pub node_registrations: Counter,
    pub node_transitions: Counter,
    pub node_expiry: Counter,
    pub shards_unplaceable: Gauge,
    pub shards_under_replicated: Gauge,
    pub placement_lease_held: Gauge,
    pub placement_writes_fenced: Counter,
    pub ready_state: Gauge,
}

impl Metrics {
    pub fn new() -> Metrics {
        let mut registry = Registry::with_prefix("felix");
        let m = Metrics {
            requests: Family::default(),
            inflight_requests: Gauge::<i64, AtomicI64>::default(),
            auth_rejected: Family::default(),
            bootstrap_attempts: Family::default(),
            node_count: Family::default(),
            node_registrations: Counter::default(),
            node_transitions: Counter::default(),
            node_expiry: Counter::default(),
            shards_unplaceable: Gauge::default(),
            shards_under_replicated: Gauge::default(),
            placement_lease_held: Gauge::default(),
            placement_writes_fenced: Counter::default(),
            ready_state: Gauge::default(),
            registry: Registry::default(),
        };
        registry.register("controlplane_requests", "Requests by status", m.requests.clone());
        registry.register("inflight_requests", "Requests being answered", m.inflight_requests.clone());
        let help = "Requests without a valid token, by reason";
        registry.register("controlplane_auth_rejected", help, m.auth_rejected.clone());
        registry.register(
            "bootstrap_attempts",
            "Bootstrap requests by outcome",
            m.bootstrap_attempts.clone(),
        );
        registry.register("node_count", "Brokers by lifecycle", m.node_count.clone());
        registry.register("node_registrations", "Registrations of brokers", m.node_registrations.clone());
        registry.register("node_transitions", "Lifecycle changes of brokers", m.node_transitions.clone());
        registry.register("node_expiry", "Brokers marked down by silence", m.node_expiry.clone());
        let help = "Shards without a leader that could serve";
        registry.register("shards_unplaceable", help, m.shards_unplaceable.clone());
        let help = "Shards with fewer copies than wanted";
        registry.register("shards_under_replicated", help, m.shards_under_replicated.clone());
        let help = "Whether this instance places shards";
        registry.register("placement_lease_held", help, m.placement_lease_held.clone());
        let help = "Placement writes refused because another instance took over";
        registry.register("placement_writes_fenced", help, m.placement_writes_fenced.clone());
        registry.register("ready_state", "1 when ready", m.ready_state.clone());
        Metrics { registry, ..m }
    }

    /// The text of `/metrics`.
    pub fn render(&self) -> String {
        let mut text = String::new();
        encode(&mut text, &self.registry).expect("writing to a string does not fail");
        text
    }
}

impl Default for Metrics {
    fn default() -> Metrics {
        Metrics::new()
    }
}
