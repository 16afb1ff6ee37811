//! Figures of the broker and its peers, side by side. Scope: plain values.
//! Invariants: a row says what an answer promises and what differs; a row that was refused has no figures but a reason; a
//! peer stands beside the broker that promises as much, or the nearest that promises more.
//! Not here: where the figures come from (`runs`).

use std::fmt;

use serde::Serialize;

use super::system::{Promise, System};
use crate::compare_disk::Series;
use crate::machine::Machine;
use crate::measure::LoadReport;
use crate::shape::Shape;
use crate::volume::FileSystem;

/// What one system showed over all rounds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Figures {
    pub records_per_s: Series,
    /// Megabytes (10^6) of payload.
    pub mb_per_s: Series,
    /// CPU seconds of the server's process for a million records, and for a gigabyte (10^9) of payload.
    pub server_s_per_million: Series,
    pub server_s_per_gb: Series,
    /// CPU time of the process, percent of one CPU. 0 for a load that is not ours.
    pub server_busy_percent: Series,
    pub client_busy_percent: Series,
    /// From the beginning of a batch to its answer, microseconds.
    pub p50_us: Series,
    pub p99_us: Series,
}

impl Figures {
    fn of(reports: &[LoadReport]) -> Figures {
        let records = |report: &LoadReport| report.batches as f64 * f64::from(report.shape.batch_records);
        let server = |report: &LoadReport| report.server.as_ref().map_or(0.0, |used| used.seconds);
        Figures {
            records_per_s: Series::each(reports, |report| records(report) / report.seconds),
            mb_per_s: Series::each(reports, LoadReport::mb_per_s),
            server_s_per_million: Series::each(reports, |report| server(report) / (records(report) / 1e6)),
            server_s_per_gb: Series::each(reports, |report| report.server_s_per_gb().unwrap_or_default()),
            server_busy_percent: Series::each(reports, |report| 100.0 * server(report) / report.seconds),
            client_busy_percent: Series::each(reports, |report| {
                100.0 * report.client_seconds / report.seconds
            }),
            p50_us: Series::each(reports, |report| report.ack_latency.p50_us),
            p99_us: Series::each(reports, |report| report.ack_latency.p99_us),
        }
    }
}

/// A peer beside the broker, medians of the ratios of each round.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Beside {
    pub broker: System,
    /// The broker's records per second over the peer's.
    pub rate_ratio: Series,
    /// The broker's CPU time for a record over the peer's.
    pub cost_ratio: Series,
    /// The broker's median time to an answer over the peer's.
    pub p50_ratio: Series,
}

impl Beside {
    fn of(broker: System, ours: &Figures, theirs: &Figures) -> Beside {
        let ratio = |of: fn(&Figures) -> &Series| {
            let rounds = of(ours).rounds.iter().zip(&of(theirs).rounds);
            Series::of(rounds.map(|(ours, theirs)| ours / theirs.max(f64::MIN_POSITIVE)).collect())
        };
        Beside {
            broker,
            rate_ratio: ratio(|figures| &figures.records_per_s),
            cost_ratio: ratio(|figures| &figures.server_s_per_million),
            p50_ratio: ratio(|figures| &figures.p50_us),
        }
    }
}

/// One system.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    pub name: &'static str,
    pub promise: Promise,
    pub says: &'static str,
    pub differs: &'static str,
    /// Absent when the row was refused.
    pub figures: Option<Figures>,
    /// Absent for the broker, for what stands beside no publish, and when one of the two was refused.
    pub beside: Option<Beside>,
    /// Why there are no figures.
    pub refused: Option<Refused>,
}

/// Why a row has no figures.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Refused {
    /// It was not on this machine, or is not part of this build.
    Missing(String),
    /// It failed, or its load was not clean.
    Failed(String),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::Missing(why) => write!(f, "missing: {why}"),
            Refused::Failed(why) => write!(f, "refused: {why}"),
        }
    }
}

impl Row {
    /// Rows of what ran, each with the reason why it did not.
    pub(super) fn all(runs: Vec<(System, Vec<LoadReport>, Option<Refused>)>) -> Vec<Row> {
        let counterparts: Vec<Option<System>> =
            runs.iter().map(|(system, _, _)| system.counterpart()).collect();
        let mut rows: Vec<Row> =
            runs.into_iter().map(|(system, reports, refused)| Row::of(system, &reports, refused)).collect();
        let brokers: Vec<(&'static str, Option<Figures>)> =
            rows.iter().map(|row| (row.name, row.figures.clone())).collect();
        for (row, broker) in rows.iter_mut().zip(counterparts) {
            let ours = brokers.iter().find(|(name, _)| broker.is_some_and(|broker| *name == broker.name()));
            let ours = ours.and_then(|(_, figures)| figures.as_ref());
            if let (Some(broker), Some(ours), Some(theirs)) = (broker, ours, &row.figures) {
                row.beside = Some(Beside::of(broker, ours, theirs));
            }
        }
        rows
    }

    fn of(system: System, reports: &[LoadReport], refused: Option<Refused>) -> Row {
        let about = system.about();
        let refused = refused.or_else(|| why_not(reports).map(Refused::Failed));
        Row {
            name: about.name,
            promise: about.promise,
            says: about.says,
            differs: about.differs,
            figures: refused.is_none().then(|| Figures::of(reports)),
            beside: None,
            refused,
        }
    }
}

/// Why runs are worth no figures.
fn why_not(reports: &[LoadReport]) -> Option<String> {
    if reports.is_empty() {
        return Some("it did not run".to_owned());
    }
    for (index, report) in reports.iter().enumerate() {
        let round = index + 1;
        if !report.is_clean() {
            let (refused, unanswered) = (report.refused_batches, report.unanswered_batches);
            return Some(format!(
                "round {round} was not clean: {refused} batches refused, {unanswered} unanswered of {}",
                report.sent_batches
            ));
        }
        if report.batches == 0 {
            return Some(format!("round {round} had no answer within its window"));
        }
        if report.server.as_ref().is_none_or(|server| server.seconds == 0.0) {
            return Some(format!("round {round}: the CPU time of the server is not known"));
        }
    }
    None
}

/// The outcome.
#[derive(Debug, Clone, Serialize)]
pub struct PeersReport {
    pub kind: &'static str,
    pub shape: Shape,
    pub machine: Machine,
    pub file_system: FileSystem,
    pub server_cpu: usize,
    pub client_cpu: usize,
    /// Of the last minute, before and after.
    pub load_average: (f64, f64),
    pub rows: Vec<Row>,
}

impl PeersReport {
    /// No row of what could run was refused, and something ran.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.rows.iter().all(|row| !matches!(row.refused, Some(Refused::Failed(_))))
            && self.rows.iter().any(|row| row.refused.is_none())
    }
}

impl fmt::Display for PeersReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (shape, machine) = (&self.shape, &self.machine);
        writeln!(
            f,
            "{} x {} B, {} in flight, {} connections; {}, kernel {}, commit {}, {} build, files on {} ({}), load average {:.1} to {:.1}",
            shape.batch_records,
            shape.record_bytes,
            shape.inflight,
            shape.connections,
            machine.cpu,
            machine.kernel,
            machine.commit,
            machine.build,
            self.file_system.kind,
            self.file_system.source,
            self.load_average.0,
            self.load_average.1,
        )?;
        writeln!(
            f,
            "{:<27} {:<8} {:>10} {:>8} {:>8} {:>7} {:>6} {:>6} {:>9} {:>9}  broker: rate, cost, p50",
            "", "promise", "records/s", "MB/s", "s/M rec", "s/GB", "server", "client", "p50 us", "p99 us"
        )?;
        for row in &self.rows {
            write!(f, "{:<27} {:<8}", row.name, row.promise.name())?;
            match (&row.figures, &row.refused) {
                (Some(figures), _) => figures.fmt(f)?,
                (None, Some(refused)) => write!(f, " {refused}")?,
                (None, None) => {}
            }
            if let Some(beside) = &row.beside {
                write!(
                    f,
                    "  {} {:.2}x, {:.2}x, {:.2}x",
                    beside.broker.name(),
                    beside.rate_ratio.median,
                    beside.cost_ratio.median,
                    beside.p50_ratio.median
                )?;
            }
            writeln!(f)?;
        }
        writeln!(f, "an answer says:")?;
        for row in &self.rows {
            writeln!(f, "  {:<27} {}; differs: {}", row.name, row.says, row.differs)?;
        }
        Ok(())
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            " {:>10.0} {:>8.1} {:>8.3} {:>7.3} {:>4.0} % {:>4.0} % {:>9.0} {:>9.0}",
            self.records_per_s.median,
            self.mb_per_s.median,
            self.server_s_per_million.median,
            self.server_s_per_gb.median,
            self.server_busy_percent.median,
            self.client_busy_percent.median,
            self.p50_us.median,
            self.p99_us.median,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::{CpuUse, LatencySummary};

    fn report(batches: u64, cpu_s: f64) -> LoadReport {
        let shape = Shape { record_bytes: 250, batch_records: 4, ..Shape::canonical() };
        LoadReport {
            target: String::new(),
            machine: Machine::look(),
            seconds: 2.0,
            batches,
            payload_bytes: batches * shape.batch_bytes(),
            ack_latency: LatencySummary { p50_us: cpu_s * 100.0, p99_us: 9.0, ..LatencySummary::default() },
            service_latency: LatencySummary::default(),
            window_unix_s: (0.0, 0.0),
            queueing_latency: LatencySummary::default(),
            histograms: crate::measure::Histograms::default(),
            server: Some(CpuUse { seconds: cpu_s, ..CpuUse::default() }),
            client_seconds: 1.0,
            mtu: 0,
            packets: (0, 0),
            sent_batches: batches + 1,
            refused_batches: 0,
            unanswered_batches: 0,
            read: None,
            idle_connection_bytes: None,
            shape,
        }
    }

    #[test]
    fn a_peer_stands_beside_the_broker_that_promises_as_much() {
        let rows = Row::all(vec![
            (System::FelixMemory, vec![report(3_000_000, 2.0)], None),
            (System::FelixOnCommit, vec![report(1_000_000, 2.0)], None),
            (System::RedisXadd, vec![report(1_000_000, 1.0)], None),
            (System::NatsAlways, vec![report(10_000, 1.0)], None),
        ]);
        let memory = rows[0].figures.as_ref().unwrap();
        assert_eq!((memory.records_per_s.median, memory.mb_per_s.median), (6e6, 1_500.0));
        assert!((memory.server_s_per_million.median - 2.0 / 12.0).abs() < 1e-9);
        assert!((memory.server_s_per_gb.median - 2.0 / 3.0).abs() < 1e-9);
        assert_eq!((memory.server_busy_percent.median, memory.client_busy_percent.median), (100.0, 50.0));
        assert!(rows[0].beside.is_none() && rows[1].beside.is_none());
        let xadd = rows[2].beside.as_ref().unwrap();
        assert_eq!((xadd.broker, xadd.rate_ratio.median), (System::FelixMemory, 3.0));
        assert!(
            (xadd.cost_ratio.median - 2.0 / 3.0).abs() < 1e-9 && (xadd.p50_ratio.median - 2.0).abs() < 1e-9
        );
        let always = rows[3].beside.as_ref().unwrap();
        assert_eq!((always.broker, always.rate_ratio.median), (System::FelixOnCommit, 100.0));
    }

    #[test]
    fn a_run_that_was_not_clean_has_no_figures_and_no_ratio() {
        let dirty = [
            LoadReport { refused_batches: 2, ..report(10, 1.0) },
            LoadReport { unanswered_batches: 1, ..report(10, 1.0) },
            LoadReport { server: None, ..report(10, 1.0) },
            report(0, 1.0),
        ];
        for bad in dirty {
            let rows = Row::all(vec![
                (System::FelixMemory, vec![report(10, 1.0), bad], None),
                (System::RedisXadd, vec![report(10, 1.0), report(10, 1.0)], None),
            ]);
            assert!(rows[0].figures.is_none() && rows[1].beside.is_none() && rows[1].figures.is_some());
            assert!(
                rows[0].refused.as_ref().unwrap().to_string().starts_with("refused: round 2"),
                "{:?}",
                rows[0].refused
            );
        }
        let rows = Row::all(vec![(System::NatsCore, Vec::new(), None)]);
        assert_eq!(rows[0].refused, Some(Refused::Failed("it did not run".to_owned())));
    }

    #[test]
    fn the_table_says_what_each_answer_promises() {
        let report = PeersReport {
            kind: "peers",
            shape: Shape::canonical(),
            machine: Machine::look(),
            file_system: FileSystem {
                kind: "ext4".to_owned(),
                source: "/dev/x".to_owned(),
                mount: "/".into(),
            },
            server_cpu: 0,
            client_cpu: 1,
            load_average: (0.0, 0.0),
            rows: Row::all(vec![
                (System::FelixMemory, vec![report(10, 1.0)], None),
                (System::NatsCore, Vec::new(), Some(Refused::Missing("no server".to_owned()))),
            ]),
        };
        let text = report.to_string();
        assert!(text.contains("missing: no server") && text.contains(System::NatsCore.about().says));
        assert!(report.is_whole(), "what is not there spoils nothing");
        let line = serde_json::to_value(&report).unwrap();
        assert_eq!(line["rows"][0]["says"], System::FelixMemory.about().says);
        assert_eq!(line["rows"][1]["promise"], "read");
        assert_eq!(line["rows"][1]["refused"]["missing"], "no server");
        assert!(line["rows"][1]["differs"].as_str().unwrap().contains("TCP without TLS"));
    }
}
