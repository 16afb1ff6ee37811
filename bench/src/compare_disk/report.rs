//! How a comparison is shown. Scope: plain values.
//! Not here: the figures of a case (`write`, `shards`, `history`).

use std::fmt;

use serde::Serialize;

use super::DiskReport;
use crate::measure::{LoadReport, median};

/// One figure over all rounds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Series {
    pub rounds: Vec<f64>,
    pub median: f64,
}

impl Series {
    /// `rounds` is not empty.
    #[must_use]
    pub fn of(rounds: Vec<f64>) -> Series {
        Series { median: median(&rounds), rounds }
    }

    /// The figure of each report.
    #[must_use]
    pub fn each<R>(reports: &[R], figure: impl Fn(&R) -> f64) -> Series {
        Series::of(reports.iter().map(figure).collect())
    }
}

impl fmt::Display for Series {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = if self.median < 10.0 { 2 } else { 0 };
        let rounds: Vec<String> = self.rounds.iter().map(|round| format!("{round:.digits$}")).collect();
        write!(f, "{:.digits$} ({})", self.median, rounds.join(", "))
    }
}

/// How busy the two sides were, percent of a CPU.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Busy {
    /// The broker's busiest thread: its core.
    pub broker_core: Series,
    /// How long that thread waited for its CPU because others had it.
    pub broker_core_waited: Series,
    /// All of the broker's process, kernel threads of its writes included.
    pub broker: Series,
    pub client: Series,
}

impl Busy {
    /// Of load runs.
    #[must_use]
    pub fn of(reports: &[LoadReport]) -> Busy {
        let server = |report: &LoadReport| report.server.as_ref().map_or(0.0, |used| used.seconds);
        let core = |report: &LoadReport| report.server.as_ref().map_or(0.0, |used| used.core_busy_percent);
        let waited =
            |report: &LoadReport| report.server.as_ref().map_or(0.0, |used| used.core_waited_percent);
        Busy {
            broker_core_waited: Series::each(reports, waited),
            broker_core: Series::each(reports, core),
            broker: Series::each(reports, |report| 100.0 * server(report) / report.seconds),
            client: Series::each(reports, |report| 100.0 * report.client_seconds / report.seconds),
        }
    }
}

impl fmt::Display for Busy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "core {:.0} % busy and {:.0} % waiting for its CPU, broker {:.0} %, client {:.0} %",
            self.broker_core.median, self.broker_core_waited.median, self.broker.median, self.client.median
        )
    }
}

/// The end of a case: its verdict, and whether it may be believed.
pub(super) fn ending(verdict: &super::Verdict, clean: bool) -> String {
    let word = if verdict.passed { "passed" } else { "NOT REACHED" };
    format!("  {word}: {}{}", verdict.because, if clean { "" } else { "; NOT CLEAN" })
}

impl fmt::Display for DiskReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (machine, system) = (&self.machine, &self.file_system);
        writeln!(
            f,
            "compare-disk: {} on {} ({}), {} CPUs of {}, kernel {}, commit {}, {} build, load average {:.1} to {:.1}",
            self.settings.dir.display(),
            system.kind,
            system.source,
            machine.cpus,
            machine.cpu,
            machine.kernel,
            machine.commit,
            machine.build,
            self.load_average.0,
            self.load_average.1,
        )?;
        if let Some(case) = &self.write {
            write!(f, "{case}")?;
        }
        if let Some(case) = &self.shards {
            write!(f, "{case}")?;
        }
        if let Some(case) = &self.history {
            write!(f, "{case}")?;
        }
        Ok(())
    }
}
