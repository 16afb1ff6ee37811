//! The result of a run of the table, and how it is shown. Scope: plain values.
//! Invariants: one line a row, every row of the run.
//! Not here: judging (`verdict`).

use std::fmt;
use std::path::PathBuf;

use serde::Serialize;

use super::arm::Figures;
use super::run::GatePlan;
use super::verdict::{Judged, Outcome};
use crate::machine::Machine;
use crate::volume::FileSystem;

/// How everything was set.
#[derive(Debug, Clone, Serialize)]
pub struct Settings {
    pub quick: bool,
    pub limit_s: u64,
    pub warmup_s: f64,
    pub duration_s: f64,
    pub kept_bytes: u64,
    pub dir: PathBuf,
    pub server_cpu: usize,
    pub client_cpu: usize,
    pub mtu: u16,
    /// Feature `peers` is part of the build.
    pub peers: bool,
}

impl Settings {
    #[must_use]
    pub fn of(plan: &GatePlan) -> Settings {
        Settings {
            quick: plan.quick,
            limit_s: plan.limit.as_secs(),
            warmup_s: plan.warmup_s,
            duration_s: plan.duration_s,
            kept_bytes: plan.kept_bytes,
            dir: plan.dir.clone(),
            server_cpu: plan.server_cpu,
            client_cpu: plan.client_cpu,
            mtu: plan.mtu(),
            peers: cfg!(feature = "peers"),
        }
    }
}

/// An arm with its figures, one for each round that counts.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Side {
    pub arm: String,
    pub trials: Vec<Figures>,
}

/// One row.
#[derive(Debug, Clone, Serialize)]
pub struct RowReport {
    pub name: &'static str,
    pub about: &'static str,
    pub figure: &'static str,
    pub must: String,
    pub aim: String,
    pub of: Option<Side>,
    pub against: Option<Side>,
    #[serde(flatten)]
    pub judged: Judged,
}

/// The outcome.
#[derive(Debug, Clone, Serialize)]
pub struct GateReport {
    pub kind: &'static str,
    pub machine: Machine,
    pub file_system: FileSystem,
    pub settings: Settings,
    /// Of the last minute, before and after.
    pub load_average: (f64, f64),
    pub seconds: f64,
    pub rows: Vec<RowReport>,
}

impl GateReport {
    fn count(&self, outcome: Outcome) -> usize {
        self.rows.iter().filter(|row| row.judged.outcome == outcome).count()
    }

    /// No must fell short and nothing failed. Rows that were not judged are no failure, and no proof.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.count(Outcome::FallsShort) == 0 && self.count(Outcome::Failed) == 0
    }
}

impl fmt::Display for RowReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let judged = &self.judged;
        let figure = match judged.median {
            Some(value) if value.abs() >= 1_000.0 => format!("{value:.0}"),
            Some(value) => format!("{value:.3}"),
            None => "-".to_owned(),
        };
        let spread = judged.spread_percent.map_or("-".to_owned(), |percent| format!("+- {percent:.1} %"));
        write!(
            f,
            "{:<24} {figure:>8} {spread:>10}  must {:<10} aim {:<9} {}",
            self.name,
            self.must,
            self.aim,
            judged.outcome.name()
        )?;
        if let Some(reached) = judged.aim_reached {
            f.write_str(if reached { ", aim reached" } else { ", aim not reached" })?;
        }
        if judged.median.is_some() {
            match judged.core_busy_percent {
                (of, Some(against)) => write!(f, "; cores {of:.0} %, {against:.0} % busy")?,
                (of, None) => write!(f, "; core {of:.0} % busy")?,
            }
        }
        if let Some(why) = &judged.why {
            write!(f, "; {why}")?;
        }
        Ok(())
    }
}

impl fmt::Display for GateReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (machine, settings) = (&self.machine, &self.settings);
        writeln!(
            f,
            "gate{}: {} CPUs of {}, kernel {}, commit {}, {} build, files on {} ({}), windows of {} s, parked unless a row \
             says otherwise, load average {:.1} to {:.1}, {:.0} s",
            if settings.quick { ", quick" } else { "" },
            machine.cpus,
            machine.cpu,
            machine.kernel,
            machine.commit,
            machine.build,
            self.file_system.kind,
            self.file_system.source,
            settings.duration_s,
            self.load_average.0,
            self.load_average.1,
            self.seconds,
        )?;
        for row in &self.rows {
            writeln!(f, "{row}")?;
        }
        writeln!(
            f,
            "{} hold, {} fall short, {} failed, {} not judged, {} stated, {} not run",
            self.count(Outcome::Holds),
            self.count(Outcome::FallsShort),
            self.count(Outcome::Failed),
            self.count(Outcome::NotJudged),
            self.count(Outcome::Stated),
            self.count(Outcome::NotRun),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(outcome: Outcome) -> RowReport {
        let judged = Judged {
            outcome,
            rounds: vec![1.1, 1.13, 1.2],
            median: Some(1.13),
            spread_percent: Some(4.4),
            aim_reached: Some(false),
            core_busy_percent: (98.0, Some(95.0)),
            why: None,
        };
        let (must, aim) = ("<= 1.20".to_owned(), "<= 1.08".to_owned());
        RowReport {
            name: "bulk",
            about: "",
            figure: "CPU per byte",
            must,
            aim,
            of: None,
            against: None,
            judged,
        }
    }

    fn report(rows: Vec<RowReport>) -> GateReport {
        let kind = "ext4".to_owned();
        GateReport {
            kind: "gate",
            machine: Machine::look(),
            file_system: FileSystem { kind, source: "/dev/x".to_owned(), mount: "/".into() },
            settings: Settings {
                quick: true,
                limit_s: 180,
                warmup_s: 0.1,
                duration_s: 0.5,
                kept_bytes: 1,
                dir: ".".into(),
                server_cpu: 0,
                client_cpu: 1,
                mtu: 3_872,
                peers: false,
            },
            load_average: (0.0, 0.0),
            seconds: 1.0,
            rows,
        }
    }

    #[test]
    fn a_row_is_one_line_with_its_bounds_and_its_outcome() {
        let line = row(Outcome::Holds).to_string();
        assert_eq!(line.lines().count(), 1);
        for part in [
            "bulk",
            "1.130",
            "+- 4.4 %",
            "must <= 1.20",
            "aim <= 1.08",
            "holds, aim not reached",
            "98 %, 95 %",
        ] {
            assert!(line.contains(part), "{part} in {line}");
        }
        let without = Judged::without(Outcome::NotRun, "no sender".to_owned());
        let line = RowReport { judged: without, ..row(Outcome::Holds) }.to_string();
        assert!(line.contains("not run; no sender"), "{line}");
    }

    #[test]
    fn what_falls_short_or_failed_does_not_pass_and_what_was_not_judged_does() {
        let of = |outcomes: &[Outcome]| report(outcomes.iter().map(|outcome| row(*outcome)).collect());
        assert!(of(&[Outcome::Holds, Outcome::NotJudged, Outcome::NotRun, Outcome::Stated]).passed());
        assert!(!of(&[Outcome::Holds, Outcome::FallsShort]).passed());
        assert!(!of(&[Outcome::Failed]).passed());
        let text = of(&[Outcome::Holds, Outcome::FallsShort, Outcome::NotJudged]).to_string();
        assert!(
            text.ends_with("1 hold, 1 fall short, 0 failed, 1 not judged, 0 stated, 0 not run\n"),
            "{text}"
        );
        let line = serde_json::to_value(of(&[Outcome::FallsShort])).unwrap();
        assert_eq!(
            (&line["rows"][0]["outcome"], &line["rows"][0]["name"]),
            (&"falls_short".into(), &"bulk".into())
        );
    }
}
