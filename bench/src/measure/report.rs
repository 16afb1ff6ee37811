//! The result of one load run. Scope: plain values, made once at the end.
//! Owns: what is derived from counts and times, and how it is shown.
//! Invariants: rates and costs are those of the steady window alone; losses are those of the whole run.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{CpuUse, GB, Latency, LatencySummary, MB};
use crate::machine::Machine;
use crate::shape::Shape;

/// Every latency of the steady window, for adding up over generators and trials.
#[derive(Debug, Clone, Default)]
pub struct Histograms {
    /// From due (open loop) or written (closed loop) to answered: what a user waits.
    pub ack: Latency,
    /// From written to answered: what the server, the path and the client's machine take.
    pub service: Latency,
    /// From due to written: what a batch waits in the generator, because earlier ones were not answered.
    pub queueing: Latency,
    /// From due or written to delivered to a reader.
    pub delivery: Latency,
}

impl Histograms {
    /// Each with the name of its file and of its row in results.
    #[must_use]
    pub fn named(&self) -> [(&'static str, &Latency); 4] {
        [
            ("ack", &self.ack),
            ("service", &self.service),
            ("queueing", &self.queueing),
            ("delivery", &self.delivery),
        ]
    }

    /// Adds everything of `other`.
    pub fn merge(&mut self, other: &Histograms) {
        self.ack.merge(&other.ack);
        self.service.merge(&other.service);
        self.queueing.merge(&other.queueing);
        self.delivery.merge(&other.delivery);
    }
}

/// What one run showed.
#[derive(Debug, Clone, Serialize)]
pub struct LoadReport {
    /// `broker` or `sink`.
    pub target: String,
    pub shape: Shape,
    pub machine: Machine,
    /// Length of the steady window, seconds.
    pub seconds: f64,
    /// When the window began and ended, seconds since 1970 by this machine's clock.
    pub window_unix_s: (f64, f64),
    /// Batches of the steady window: answered ones, or those given to the transport when nothing is answered.
    pub batches: u64,
    /// Their payload bytes.
    pub payload_bytes: u64,
    /// From the moment a batch was due (open loop) or written (closed loop) to its answer.
    pub ack_latency: LatencySummary,
    /// From the moment a batch was written; differs from the above in open loop only.
    pub service_latency: LatencySummary,
    /// From the moment a batch was due to the moment it was written: open loop only.
    pub queueing_latency: LatencySummary,
    /// Time of the server in the window; absent when its process is not known.
    pub server: Option<CpuUse>,
    /// Time of the load generator in the window, seconds.
    pub client_seconds: f64,
    /// Datagram size that the path was found to take, bytes.
    pub mtu: u16,
    /// Packets sent and lost by the publishing connections in the whole run.
    pub packets: (u64, u64),
    /// Batches of the whole run, and how many of them were refused or never answered.
    pub sent_batches: u64,
    pub refused_batches: u64,
    pub unanswered_batches: u64,
    /// What the readers saw; absent without readers.
    pub read: Option<ReadReport>,
    /// What the server's resident memory grew by for an idle connection; absent without such connections.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_connection_bytes: Option<f64>,
    #[serde(skip)]
    pub histograms: Histograms,
}

/// What the readers saw in the whole run, all together.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct ReadReport {
    pub expected_records: u64,
    pub delivered_records: u64,
    /// Records that were passed over, by their numbers.
    pub missing_records: u64,
    /// Records that came again or after a later one.
    pub repeated_records: u64,
    /// Subscriptions that ended before the run did.
    pub ended: u64,
    /// From the moment a batch was due or written to the delivery of its records, in the steady window.
    pub delivery_latency: LatencySummary,
}

impl LoadReport {
    /// Payload megabytes (10^6) per second.
    #[must_use]
    pub fn mb_per_s(&self) -> f64 {
        self.payload_bytes as f64 / MB / self.seconds
    }

    #[must_use]
    pub fn batches_per_s(&self) -> f64 {
        self.batches as f64 / self.seconds
    }

    /// CPU seconds of the server per gigabyte (10^9) of payload; also nanoseconds per byte.
    #[must_use]
    pub fn server_s_per_gb(&self) -> Option<f64> {
        let server = self.server.as_ref()?;
        (self.payload_bytes > 0).then(|| server.seconds / (self.payload_bytes as f64 / GB))
    }

    /// The same for the load generator.
    #[must_use]
    pub fn client_s_per_gb(&self) -> f64 {
        self.client_seconds / (self.payload_bytes.max(1) as f64 / GB)
    }

    /// Nothing was refused, lost, repeated or left unanswered.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        let read = self.read.as_ref().is_none_or(|read| {
            read.missing_records == 0
                && read.repeated_records == 0
                && read.ended == 0
                && read.delivered_records == read.expected_records
        });
        self.refused_batches == 0 && self.unanswered_batches == 0 && read
    }

    /// One line of JSON with the derived figures beside the counted ones.
    #[must_use]
    pub fn json(&self) -> serde_json::Value {
        let mut value = serde_json::to_value(self).unwrap_or_default();
        if let Some(members) = value.as_object_mut() {
            members.insert("mb_per_s".to_owned(), self.mb_per_s().into());
            members.insert("batches_per_s".to_owned(), self.batches_per_s().into());
            members.insert("server_s_per_gb".to_owned(), self.server_s_per_gb().into());
            members.insert("client_s_per_gb".to_owned(), self.client_s_per_gb().into());
            members.insert("clean".to_owned(), self.is_clean().into());
        }
        value
    }
}

impl fmt::Display for LoadReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let loop_kind =
            self.shape.rate.map_or("closed loop".to_owned(), |rate| format!("{rate} batches/s offered"));
        writeln!(
            f,
            "{} of {}, {loop_kind}, {:.1} s, datagrams of {} B",
            self.shape.name, self.target, self.seconds, self.mtu
        )?;
        writeln!(f, "  throughput   {:.1} MB/s, {:.0} batches/s", self.mb_per_s(), self.batches_per_s())?;
        if let (Some(server), Some(cost)) = (&self.server, self.server_s_per_gb()) {
            writeln!(f, "  server       {cost:.3} s/GB, core {:.0} % busy", server.core_busy_percent)?;
        }
        writeln!(f, "  client       {:.3} s/GB", self.client_s_per_gb())?;
        if self.ack_latency.count > 0 {
            writeln!(f, "  ack          {}", self.ack_latency)?;
        }
        if self.shape.rate.is_some() && self.service_latency.count > 0 {
            writeln!(f, "  of it service {}", self.service_latency)?;
            writeln!(f, "  and queueing {}", self.queueing_latency)?;
        }
        if self.refused_batches + self.unanswered_batches > 0 {
            writeln!(
                f,
                "  NOT CLEAN    {} refused, {} unanswered of {} batches",
                self.refused_batches, self.unanswered_batches, self.sent_batches
            )?;
        }
        if let Some(read) = &self.read {
            writeln!(
                f,
                "  read         {} of {} records, {} missing, {} repeated, {} ended early",
                read.delivered_records,
                read.expected_records,
                read.missing_records,
                read.repeated_records,
                read.ended
            )?;
            writeln!(f, "  delivery     {}", read.delivery_latency)?;
        }
        Ok(())
    }
}

impl fmt::Display for LatencySummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "p50 {:.0} us, p99 {:.0} us, p99.9 {:.0} us, max {:.0} us",
            self.p50_us, self.p99_us, self.p999_us, self.max_us
        )
    }
}
