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
use crate::turn::counters::{Counter, Kind};

/// Media type of the text that `Metrics::text` makes.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Everything that is exported.
pub struct Metrics {
    registry: Registry,
}

impl Metrics {
    /// Over the blocks of all cores, in core order, and the node's status.
    pub fn new(cores: Vec<CounterReader>, status: Arc<NodeStatus>) -> Metrics {
        let mut registry = Registry::with_prefix("felix");
        registry.register_collector(Box::new(CoreCollector { cores }));
        registry.register_collector(Box::new(StatusCollector { status }));
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
        let age_ms = load(&status.now_ms).saturating_sub(load(&status.heartbeat_sent_ms));
        let gauges = [
            (
                "ready_state",
                "1 while the node takes traffic.",
                i64::from(status.readiness() == Readiness::Ready),
            ),
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
                "drain_duration_ms",
                "How long the drain took, once it ended.",
                signed(load(&status.drain_duration_ms)),
            ),
        ];
        for (name, help, value) in gauges {
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

    use super::*;

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
        let text = Metrics::new(vec![first_read, second_read], status).text().unwrap();
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
}
