//! What a run showed, as it is written and read again. Scope: plain values.
//! Owns: the form of `result.json`, what is derived from counts.
//! Invariants: a result holds its preflight; throughput says where it was counted; a trial's ledger accounts for every
//! record that was sent.
//! Not here: measuring (`trial`), files (`folder`), pictures (`report`).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::cell::Cell;
use crate::measure::{CpuUse, LatencySummary, LoadReport, ReadReport, Spread};
use crate::preflight::{CpuNoise, Host, Preflight, Qualification, SizeProbe};

/// The form of `result.json`.
pub const RESULT_VERSION: u32 = 1;

/// A whole run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RunResult {
    pub version: u32,
    pub name: String,
    pub started_unix_s: f64,
    pub ended_unix_s: f64,
    pub preflight: Preflight,
    pub programs: Vec<Program>,
    pub trials: u32,
    pub client_cpu: usize,
    /// Generators on other machines; empty when the load was made here.
    pub agents: Vec<AgentFacts>,
    pub cells: Vec<CellResult>,
}

/// A program that took part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    pub name: String,
    /// What it says of itself.
    pub version: String,
    pub bytes: u64,
    pub sha256: String,
    /// Of the folder it lies in, when that is in a repository.
    pub commit: Option<String>,
}

/// A generator on another machine.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct AgentFacts {
    pub address: String,
    /// Its clock minus ours, seconds; starts and windows are corrected by it.
    pub clock_offset_s: f64,
    /// The shortest question and answer that the offset was taken from: it is good to half of that.
    pub round_trip_s: f64,
    pub host: Host,
    pub noise: CpuNoise,
    /// Datagrams from there to the driver's machine and back.
    pub path: Vec<SizeProbe>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CellResult {
    pub cell: Cell,
    pub trials: Vec<Trial>,
}

/// Where batches were counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CountedAt {
    /// By the broker's own counters, each second.
    Broker,
    /// By the generator, over the window: the server has no counters.
    Generator,
}

/// One run of one cell.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Trial {
    pub number: u32,
    pub started_unix_s: f64,
    pub counted_at: CountedAt,
    /// Intervals that the median rate is of.
    pub intervals: usize,
    pub batches_per_s: f64,
    pub messages_per_s: f64,
    /// Payload, 10^6 bytes a second.
    pub mb_per_s: f64,
    /// CPU time of the server.
    pub server: Option<CpuUse>,
    /// Over what it appended in the same time: CPU seconds for 10^9 bytes of payload, and for 10^6 records.
    pub server_s_per_gb: Option<f64>,
    pub server_s_per_million: Option<f64>,
    pub client_s_per_gb: Option<f64>,
    /// Publishes appended, by core of the broker.
    pub appended_by_core: BTreeMap<u32, f64>,
    pub ack: LatencySummary,
    pub service: LatencySummary,
    pub queueing: LatencySummary,
    pub delivery: LatencySummary,
    pub law: Law,
    pub ledger: Ledger,
    /// The disk just before, for durable cells.
    pub disk: Option<Qualification>,
    pub load_average: f64,
    pub generators: Vec<Outcome>,
}

/// Little's law: what is in flight is the rate times the time each takes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Law {
    /// Batches in flight by the law, from the measured rate and the mean service time.
    pub in_flight: f64,
    /// Batches that may be in flight by the shape, all streams together.
    pub allowed: f64,
    /// Open loop: batches in flight and waiting to be sent, from the rate and the mean of the whole wait.
    pub in_system: f64,
}

/// Where the records went.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ledger {
    pub sent: u64,
    pub refused: u64,
    /// Sent, and neither acknowledged nor refused by the end.
    pub unanswered: u64,
    /// Appended, as the broker counts; absent when it does not.
    pub accepted: Option<u64>,
    /// Given to event streams, as the broker counts.
    pub broker_delivered: Option<u64>,
    /// Records that all readers together had to see, and what they saw.
    pub expected: u64,
    pub delivered: u64,
    pub missing: u64,
    pub repeated: u64,
}

impl Ledger {
    /// Every record sent is accounted for: appended, or refused, or without an answer; and every reader saw all.
    #[must_use]
    pub fn is_balanced(&self) -> bool {
        let most = self.sent.saturating_sub(self.refused);
        let least = most.saturating_sub(self.unanswered);
        let appended = self.accepted.is_none_or(|accepted| (least..=most).contains(&accepted));
        appended && self.delivered == self.expected && self.missing == 0 && self.repeated == 0
    }

    /// Balanced, and nothing refused or left unanswered.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.is_balanced() && self.refused == 0 && self.unanswered == 0
    }
}

/// What one generator did.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Outcome {
    /// `here`, or the address of an agent.
    pub generator: String,
    /// By the clock of the machine that started the run.
    pub window_unix_s: (f64, f64),
    pub seconds: f64,
    pub batches: u64,
    pub payload_bytes: u64,
    pub sent_batches: u64,
    pub refused_batches: u64,
    pub unanswered_batches: u64,
    /// CPU time in the window.
    pub client_seconds: f64,
    /// Datagram size that the connections found, bytes.
    pub mtu: u16,
    pub sent_packets: u64,
    pub lost_packets: u64,
    pub read: Option<ReadReport>,
    /// CPU time of the server over the generator's own window, where its process is here.
    pub server: Option<CpuUse>,
}

impl Outcome {
    #[must_use]
    pub fn of(generator: &str, report: &LoadReport) -> Outcome {
        Outcome {
            generator: generator.to_owned(),
            window_unix_s: report.window_unix_s,
            seconds: report.seconds,
            batches: report.batches,
            payload_bytes: report.payload_bytes,
            sent_batches: report.sent_batches,
            refused_batches: report.refused_batches,
            unanswered_batches: report.unanswered_batches,
            client_seconds: report.client_seconds,
            mtu: report.mtu,
            sent_packets: report.packets.0,
            lost_packets: report.packets.1,
            read: report.read.clone(),
            server: report.server.clone(),
        }
    }
}

impl CellResult {
    /// One figure over the trials that have it.
    #[must_use]
    pub fn spread(&self, figure: impl Fn(&Trial) -> Option<f64>) -> Option<Spread> {
        Spread::of(self.trials.iter().filter_map(figure))
    }

    /// Payload throughput, MB/s.
    #[must_use]
    pub fn throughput(&self) -> Option<Spread> {
        self.spread(|trial| Some(trial.mb_per_s))
    }

    #[must_use]
    pub fn is_clean(&self) -> bool {
        !self.trials.is_empty() && self.trials.iter().all(|trial| trial.ledger.is_clean())
    }
}

impl RunResult {
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.cells.iter().all(CellResult::is_clean)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ledger_balances_when_every_record_is_accounted_for() {
        let whole =
            Ledger { sent: 100, accepted: Some(100), expected: 200, delivered: 200, ..Ledger::default() };
        assert!(whole.is_balanced() && whole.is_clean());
        let refused = Ledger { refused: 10, accepted: Some(90), ..whole };
        assert!(refused.is_balanced() && !refused.is_clean());
        assert!(!Ledger { accepted: Some(100), ..refused }.is_balanced(), "refused and appended");
        let open = Ledger { unanswered: 10, accepted: Some(95), ..whole };
        assert!(open.is_balanced() && !open.is_clean());
        assert!(!Ledger { accepted: Some(89), ..open }.is_balanced(), "acknowledged and not appended");
        assert!(!Ledger { accepted: Some(99), ..whole }.is_balanced());
        assert!(!Ledger { delivered: 199, missing: 1, ..whole }.is_balanced());
        assert!(!Ledger { repeated: 1, ..whole }.is_balanced());
        assert!(Ledger { accepted: None, ..whole }.is_clean(), "a server that does not count");
    }
}
