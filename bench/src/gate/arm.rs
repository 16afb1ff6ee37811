//! What a row is measured on: one server with one load, or what stands in for a server. Scope: plain values.
//! Owns: the arms and what a trial of one shows.
//! Invariants: two rows that name the same arm share its trials.
//! Not here: running one (`trial`).

use serde::Serialize;

use crate::measure::LoadReport;
use crate::peers::compare_echo::EchoMode;
use crate::peers::system::System;
use crate::shape::{Acks, Keys, Landing, Shape};

/// A server of the run. Those of our own are started once and idle while others are measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Server {
    /// Our sink, parked.
    Sink,
    /// The sink on tokio and quinn.
    QuinnSink,
    /// Our sink, which hands every publish on to every subscription.
    Relay,
    /// A broker in memory, parked.
    Memory,
    /// The same, started anew for each trial: its memory is not that of an earlier one.
    FreshMemory,
    /// A broker in memory that spins before it parks.
    MemorySpinning,
    /// A broker in memory on the server's CPU and the load's.
    TwoCores,
    /// A broker that syncs before it answers, one shard a stream.
    OnCommit,
    /// The same with logs so short that 48 of them use their blocks again.
    OnCommitShards,
}

impl Server {
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Server::Sink => "sink",
            Server::QuinnSink => "quinn sink",
            Server::Relay => "relay",
            Server::Memory => "broker",
            Server::FreshMemory => "broker, started anew",
            Server::MemorySpinning => "broker, spinning",
            Server::TwoCores => "broker on two cores",
            Server::OnCommit => "broker, on commit",
            Server::OnCommitShards => "broker, on commit, short logs",
        }
    }
}

/// See the module.
#[derive(Debug, Clone, PartialEq)]
pub enum Arm {
    Load {
        server: Server,
        shape: Shape,
    },
    /// An echo, asked one request at a time.
    Echo(EchoMode),
    /// The disk: as many writes as batches are in flight, each as long as a batch in the log, then one sync of them all.
    Raw(Shape),
    /// A server of others, started for each trial.
    Peer {
        system: System,
        shape: Shape,
    },
    /// One small record in flight, while a bulk load keeps the broker's core half busy; the same two loads to any server.
    Beside(Server),
}

impl Arm {
    /// In words.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Arm::Load { server, shape } => format!("{}: {}", server.name(), words(shape)),
            Arm::Echo(mode) => format!("echo, {}", mode.name()),
            Arm::Raw(shape) => format!("raw disk, {} writes of {} and a sync", shape.inflight, shape.name),
            Arm::Peer { system, shape } => format!("{}: {}", system.name(), words(shape)),
            Arm::Beside(server) => format!("{}: one in flight beside a load", server.name()),
        }
    }
}

/// A shape with what it does not share with the others.
fn words(shape: &Shape) -> String {
    let mut out = format!("{}, {} in flight", shape.name, shape.inflight);
    let mut add = |condition: bool, text: String| {
        if condition {
            out.push_str(", ");
            out.push_str(&text);
        }
    };
    add(shape.acks == Acks::None, "unacked".to_owned());
    add(shape.connections > 1, format!("{} connections", shape.connections));
    add(shape.streams > 1, format!("{} streams", shape.streams));
    add(shape.shards > 1, format!("{} shards", shape.shards));
    add(shape.keys == Keys::Hot, "90 % to one".to_owned());
    add(shape.subscribers > 0, format!("{} readers x {}", shape.subscribers, shape.subscriptions));
    add(shape.idle > 0, format!("{} idle connections", shape.idle));
    add(shape.landing == Landing::Wrong, "on the wrong core".to_owned());
    add(shape.rate.is_some(), format!("{} batches/s", shape.rate.unwrap_or_default()));
    out
}

/// What one trial of an arm showed. What an arm does not have is 0 or absent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Figures {
    pub records_per_s: f64,
    /// Payload, 10^6 bytes a second; of the raw disk, all it wrote.
    pub mb_per_s: f64,
    /// CPU seconds of the server for 10^9 bytes of payload, 10^6 records, 10^9 bytes delivered.
    pub s_per_gb: Option<f64>,
    pub s_per_million: Option<f64>,
    pub s_per_delivered_gb: Option<f64>,
    /// The server's busiest thread, percent of a CPU, and how long it waited for one that others had.
    pub core_busy_percent: f64,
    pub core_waited_percent: f64,
    /// The load's CPU time, percent of a CPU.
    pub load_busy_percent: f64,
    /// From writing a batch to its answer, microseconds.
    pub p50_us: f64,
    pub p99_us: f64,
    pub p999_us: f64,
    /// Resident memory of the server for an idle connection, bytes.
    pub idle_connection_bytes: Option<f64>,
    /// Nothing was refused, lost, repeated or left unanswered.
    pub clean: bool,
}

impl Figures {
    #[must_use]
    pub fn of(report: &LoadReport) -> Figures {
        let shape = &report.shape;
        let records = report.batches as f64 * f64::from(shape.batch_records);
        let server = report.server.as_ref();
        let readers = f64::from(shape.subscribers) * f64::from(shape.subscriptions);
        let s_per_gb = report.server_s_per_gb().filter(|cost| *cost > 0.0);
        Figures {
            records_per_s: records / report.seconds,
            mb_per_s: report.mb_per_s(),
            s_per_gb,
            s_per_million: server
                .filter(|used| used.seconds > 0.0 && records > 0.0)
                .map(|used| used.seconds / (records / 1e6)),
            s_per_delivered_gb: s_per_gb.filter(|_| readers > 0.0).map(|cost| cost / readers),
            core_busy_percent: server.map_or(0.0, |used| used.core_busy_percent),
            core_waited_percent: server.map_or(0.0, |used| used.core_waited_percent),
            load_busy_percent: 100.0 * report.client_seconds / report.seconds,
            p50_us: report.ack_latency.p50_us,
            p99_us: report.ack_latency.p99_us,
            p999_us: report.ack_latency.p999_us,
            idle_connection_bytes: report.idle_connection_bytes,
            clean: report.is_clean(),
        }
    }
}

/// The figure of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Figure {
    CostPerByte,
    CostPerRecord,
    CostPerDeliveredByte,
    RecordsPerSecond,
    BytesPerSecond,
    P50,
    P99,
    P999,
    IdleConnectionBytes,
}

impl Figure {
    /// Of one trial, where the trial has it.
    #[must_use]
    pub fn of(self, figures: &Figures) -> Option<f64> {
        let value = match self {
            Figure::CostPerByte => figures.s_per_gb?,
            Figure::CostPerRecord => figures.s_per_million?,
            Figure::CostPerDeliveredByte => figures.s_per_delivered_gb?,
            Figure::RecordsPerSecond => figures.records_per_s,
            Figure::BytesPerSecond => figures.mb_per_s,
            Figure::P50 => figures.p50_us,
            Figure::P99 => figures.p99_us,
            Figure::P999 => figures.p999_us,
            Figure::IdleConnectionBytes => figures.idle_connection_bytes?,
        };
        (value.is_finite() && value > 0.0).then_some(value)
    }

    /// More is better, and a load that cannot send more hides it.
    #[must_use]
    pub fn is_rate(self) -> bool {
        matches!(self, Figure::RecordsPerSecond | Figure::BytesPerSecond)
    }

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Figure::CostPerByte => "CPU per byte",
            Figure::CostPerRecord => "CPU per message",
            Figure::CostPerDeliveredByte => "CPU per delivered byte",
            Figure::RecordsPerSecond => "messages/s",
            Figure::BytesPerSecond => "payload MB/s",
            Figure::P50 => "ack p50",
            Figure::P99 => "ack p99",
            Figure::P999 => "ack p99.9",
            Figure::IdleConnectionBytes => "bytes per idle connection",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_arm_says_what_makes_it_different() {
        let shape = Shape { name: "4 KiB x 64".to_owned(), ..Shape::canonical() };
        let plain = Arm::Load { server: Server::Memory, shape: shape.clone() };
        assert_eq!(plain.name(), "broker: 4 KiB x 64, 8 in flight");
        let many = Shape { connections: 16, landing: Landing::Wrong, shards: 2, rate: Some(9.0), ..shape };
        let many = Arm::Load { server: Server::Sink, shape: many };
        assert_eq!(
            many.name(),
            "sink: 4 KiB x 64, 8 in flight, 16 connections, 2 shards, on the wrong core, 9 batches/s"
        );
    }

    #[test]
    fn a_figure_that_is_nothing_is_none() {
        let figures = Figures { p50_us: 12.0, s_per_gb: Some(0.5), ..Figures::default() };
        assert_eq!((Figure::P50.of(&figures), Figure::CostPerByte.of(&figures)), (Some(12.0), Some(0.5)));
        assert_eq!((Figure::P99.of(&figures), Figure::CostPerRecord.of(&figures)), (None, None));
    }
}
