//! `/metrics`: the cores' counters and the node's status, read at the moment they are asked for. Scope: per process.
//! Owns: the registry. Invariants: a scrape takes no lock a core could wait for; names are those of semantics 11 where
//! they exist there, and no label carries a node id.
//! Not here: counting (`turn::counters`, `status`), HTTP (`http`).

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use felix_runtime::counters::CounterReader;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use super::status::{FAILURE_KINDS, NodeStatus, Readiness};
use super::tenants::SharedTenants;
use crate::turn::counters::{Counter, Kind};
use crate::turn::tenants::TenantCount;

/// Media type of the text that `Metrics::text` makes.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Everything that is exported.
pub struct Metrics {
    registry: Registry,
}

impl Metrics {
    /// Over the blocks of all cores, in core order, the node's status and the tenants' totals.
    pub fn new(cores: Vec<CounterReader>, status: Arc<NodeStatus>, tenants: SharedTenants) -> Metrics {
        let mut registry = Registry::with_prefix("felix");
        registry.register_collector(Box::new(CoreCollector { cores }));
        registry.register_collector(Box::new(StatusCollector { status }));
        registry.register_collector(Box::new(TenantCollector { tenants }));
        Metrics { registry }
    }

    /// The exposition text, as of now.
    ///
    /// # Errors
    /// Only what formatting into a string can fail with.
    pub fn text(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

/// One series per counter and core.
#[derive(Debug)]
struct CoreCollector {
    cores: Vec<CounterReader>,
}

impl Collector for CoreCollector {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        for counter in Counter::ALL {
            let read = |core: &CounterReader| core.get(*counter as usize);
            match counter.kind() {
                Kind::Counter => {
                    let series = self.cores.iter().map(|core| ConstCounter::new(read(core)));
                    family(&mut encoder, counter.name(), counter.help(), "core", series.enumerate())?;
                }
                Kind::Gauge => {
                    let series = self.cores.iter().map(|core| ConstGauge::new(signed(read(core))));
                    family(&mut encoder, counter.name(), counter.help(), "core", series.enumerate())?;
                }
            }
        }
        Ok(())
    }
}

/// The node's own numbers.
#[derive(Debug)]
struct StatusCollector {
    status: Arc<NodeStatus>,
}

impl Collector for StatusCollector {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let status = &*self.status;
        let load = |cell: &AtomicU64| cell.load(Relaxed);
        for (name, help, value) in gauges(status) {
            single(&mut encoder, name, help, &ConstGauge::new(value))?;
        }
        if let ends_at @ 1.. = load(&status.credential_ends_at) {
            let left = signed(ends_at) - signed(load(&status.unix_s));
            let help = "Time until the node's credential ends; negative once it has.";
            single(&mut encoder, "broker_credential_expires_in_seconds", help, &ConstGauge::new(left))?;
        }
        let counters = [
            ("broker_heartbeats", "Heartbeats answered.", load(&status.heartbeats)),
            (
                "broker_certificate_reloads",
                "Times the certificate was replaced.",
                load(&status.certificate_reloads),
            ),
            (
                "drain_forced",
                "Cores that did not settle within the drain budget.",
                load(&status.drain_forced),
            ),
        ];
        for (name, help, value) in counters {
            single(&mut encoder, name, help, &ConstCounter::new(value))?;
        }
        for (name, help, cells) in [
            (
                "broker_heartbeat_failures",
                "Heartbeats and registrations that failed.",
                &status.heartbeat_failures,
            ),
            ("broker_sync_failures", "Readings of the control plane that failed.", &status.fetch_failures),
        ] {
            let series =
                FAILURE_KINDS.iter().zip(cells).map(|(kind, cell)| (*kind, ConstCounter::new(load(cell))));
            family(&mut encoder, name, help, "kind", series)?;
        }
        Ok(())
    }
}

/// What is set and not counted.
fn gauges(status: &NodeStatus) -> [(&'static str, &'static str, i64); 8] {
    let load = |cell: &AtomicU64| cell.load(Relaxed);
    let age_ms = load(&status.now_ms).saturating_sub(load(&status.heartbeat_sent_ms));
    [
        ("ready_state", "1 while the node takes traffic.", i64::from(status.readiness() == Readiness::Ready)),
        (
            "broker_membership_live",
            "1 while the control plane counts this node as serving.",
            i64::from(status.member_live.load(Relaxed)),
        ),
        (
            "broker_heartbeat_age_seconds",
            "Time since the last answered heartbeat was sent.",
            signed(age_ms / 1_000),
        ),
        ("broker_node_catalog_nodes", "Nodes with a client address.", signed(load(&status.nodes))),
        ("broker_routes_version", "Version of the newest routes.", signed(load(&status.routes_version))),
        (
            "log_refused",
            "Logs that were refused when the broker started; as of then. Their shards are not served before it is started again.",
            signed(load(&status.logs_refused)),
        ),
        ("log_unclaimed", "Logs that no stream of the catalog names.", signed(load(&status.logs_unclaimed))),
        (
            "drain_duration_ms",
            "How long the drain took, once it ended.",
            signed(load(&status.drain_duration_ms)),
        ),
    ]
}

/// One series per tenant; those without a label of their own share one.
#[derive(Debug)]
struct TenantCollector {
    tenants: SharedTenants,
}

const TENANT_FAMILIES: [(&str, &str, TenantCount); 5] = [
    ("tenant_published_messages", "Records appended.", TenantCount::PublishedRecords),
    ("tenant_published_bytes", "Payload bytes of the records appended.", TenantCount::PublishedBytes),
    ("tenant_delivered_messages", "Records written to event streams.", TenantCount::DeliveredRecords),
    ("tenant_delivered_bytes", "Payload bytes of those records.", TenantCount::DeliveredBytes),
    ("tenant_publish_refused", "Publishes refused with nothing written.", TenantCount::Refused),
];

/// What a publish to a full shard came to, by the label `action`.
const QUEUE_FULL: [(&str, TenantCount); 2] = [("shed", TenantCount::Shed), ("expired", TenantCount::Expired)];

impl Collector for TenantCollector {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let (totals, overflowed) = self.tenants.totals();
        for (name, help, count) in TENANT_FAMILIES {
            let series = totals.iter().map(|t| (&t.tenant, ConstCounter::new(t.counts[count as usize])));
            family(&mut encoder, name, help, "tenant", series)?;
        }
        let help = "Publishes of a full shard dropped at once (with shed on) or given up after their wait.";
        let zero = ConstCounter::new(0u64);
        let kind = zero.metric_type();
        let mut full = encoder.encode_descriptor("tenant_publish_queue_full", help, None, kind)?;
        for total in &totals {
            for (action, count) in QUEUE_FULL {
                let labels = [("tenant", &*total.tenant), ("action", action)];
                let value = ConstCounter::new(total.counts[count as usize]);
                value.encode(full.encode_family(&labels)?)?;
            }
        }
        let help = "Times a tenant was counted under `_overflow` for want of a label.";
        single(&mut encoder, "tenant_metrics_overflow", help, &ConstCounter::new(overflowed))
    }
}

fn single(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    metric: &impl EncodeMetric,
) -> Result<(), fmt::Error> {
    metric.encode(encoder.encode_descriptor(name, help, None, metric.metric_type())?)
}

/// One metric with a series for each value of one label.
fn family<M: EncodeMetric, L: fmt::Display>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    label: &str,
    series: impl Iterator<Item = (L, M)>,
) -> Result<(), fmt::Error> {
    let mut series = series.peekable();
    let Some((_, first)) = series.peek() else { return Ok(()) };
    let mut metric = encoder.encode_descriptor(name, help, None, first.metric_type())?;
    for (value, one) in series {
        one.encode(metric.encode_family(&[(label, value.to_string())])?)?;
    }
    Ok(())
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use felix_runtime::counters::counters;
    use felix_wire::id::CoreId;

    use super::*;
    use crate::turn::tenants::{TENANT_COUNTS, TenantReport, TenantRow};

    #[test]
    fn every_counter_of_every_core_is_exported_under_its_name() {
        let (first, first_read) = counters(Counter::ALL.len());
        let (_second, second_read) = counters(Counter::ALL.len());
        first.add(Counter::PublishRequests as usize, 7);
        let status = Arc::new(NodeStatus::new(2));
        status.heartbeats.store(3, Relaxed);
        status.credential_ends_at.store(100, Relaxed);
        status.unix_s.store(105, Relaxed);
        NodeStatus::count_failure(&status.heartbeat_failures, "unreachable");
        let tenants = SharedTenants::new(2, 1);
        let text = Metrics::new(vec![first_read, second_read], status, tenants).text().unwrap();
        assert!(text.contains("felix_publish_requests_total{core=\"0\"} 7\n"), "{text}");
        assert!(text.contains("felix_publish_requests_total{core=\"1\"} 0\n"), "{text}");
        assert!(text.contains("felix_broker_heartbeats_total 3\n"), "{text}");
        assert!(text.contains("felix_broker_heartbeat_failures_total{kind=\"unreachable\"} 1\n"), "{text}");
        assert!(text.contains("felix_ready_state 0\n"), "{text}");
        assert!(text.contains("felix_broker_credential_expires_in_seconds -5\n"), "{text}");
        for counter in Counter::ALL {
            assert!(text.contains(&format!("# TYPE felix_{} ", counter.name())), "{}", counter.name());
        }
    }

    #[test]
    fn every_tenant_number_is_exported_and_the_rest_share_a_label() {
        let row = |tenant: &str, counts| TenantRow { tenant: tenant.into(), counts };
        let tenants = SharedTenants::new(1, 1);
        let rows = [
            row("_overflow", [0; TENANT_COUNTS]),
            row("acme", [1, 2, 3, 4, 5, 6, 7]),
            row("late", [10, 20, 30, 40, 50, 60, 70]),
        ];
        tenants.take(TenantReport { core: CoreId(0), rows: rows.into(), overflowed: 4 });
        let text = Metrics::new(Vec::new(), Arc::new(NodeStatus::new(1)), tenants).text().unwrap();
        for line in [
            "felix_tenant_published_messages_total{tenant=\"acme\"} 1\n",
            "felix_tenant_published_bytes_total{tenant=\"acme\"} 2\n",
            "felix_tenant_delivered_messages_total{tenant=\"acme\"} 3\n",
            "felix_tenant_delivered_bytes_total{tenant=\"acme\"} 4\n",
            "felix_tenant_publish_refused_total{tenant=\"acme\"} 5\n",
            "felix_tenant_publish_queue_full_total{tenant=\"acme\",action=\"shed\"} 6\n",
            "felix_tenant_publish_queue_full_total{tenant=\"acme\",action=\"expired\"} 7\n",
            "felix_tenant_published_messages_total{tenant=\"_overflow\"} 10\n",
            "felix_tenant_publish_queue_full_total{tenant=\"_overflow\",action=\"shed\"} 60\n",
            "felix_tenant_metrics_overflow_total 5\n",
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
        assert!(!text.contains("late"));
    }
}
