//! Two runs beside each other. Scope: two results.
//! Owns: when a difference is one, the words of the verdict.
//! Invariants: nothing is called better or worse whose trials overlap, or whose difference is within what the trials of one
//! run differ by; cells are compared only when they had the same load; a run that is not clean is not compared.
//! Not here: reading runs (`campaign::folder`).

use std::fmt;

use serde::Serialize;

use crate::campaign::{CellResult, RunResult, Trial};
use crate::measure::Spread;

/// Smaller differences are never told, percent: machines drift by as much.
const FLOOR_PERCENT: f64 = 5.0;
/// Trials that spread further than this say nothing about each other, percent.
const SPREAD_PERCENT_MAX: f64 = 25.0;
/// With fewer trials a side has no range.
const TRIALS_MIN: usize = 3;

/// What a figure came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Better,
    Worse,
    /// No difference beyond the noise.
    Same,
    /// Too few trials, or they spread too far.
    Unclear,
}

impl Verdict {
    fn word(self) -> &'static str {
        match self {
            Verdict::Better => "better",
            Verdict::Worse => "WORSE",
            Verdict::Same => "same",
            Verdict::Unclear => "cannot tell",
        }
    }
}

/// One figure of one cell in both runs.
#[derive(Debug, Clone, Serialize)]
pub struct Line {
    pub cell: String,
    pub figure: &'static str,
    pub a: f64,
    pub b: f64,
    /// How much B is above A, percent of A.
    pub change_percent: f64,
    /// What a difference must exceed to be told, percent.
    pub noise_percent: f64,
    pub verdict: Verdict,
}

/// The comparison.
#[derive(Debug, Clone, Serialize)]
pub struct Judgement {
    pub lines: Vec<Line>,
    /// What could not be compared, and why.
    pub left_out: Vec<String>,
    /// What makes all of it doubtful, such as another machine.
    pub doubts: Vec<String>,
}

impl Judgement {
    /// Some figure is worse.
    #[must_use]
    pub fn is_worse(&self) -> bool {
        self.lines.iter().any(|line| line.verdict == Verdict::Worse)
    }

    /// Something was compared, and nothing of it was unclear.
    #[must_use]
    pub fn is_clear(&self) -> bool {
        !self.lines.is_empty() && self.lines.iter().all(|line| line.verdict != Verdict::Unclear)
    }
}

/// A figure of a trial, and whether more of it is better.
struct Figure {
    name: &'static str,
    more_is_better: bool,
    of: fn(&Trial) -> Option<f64>,
}

const FIGURES: [Figure; 5] = [
    Figure { name: "throughput, MB/s", more_is_better: true, of: |trial| Some(trial.mb_per_s) },
    Figure { name: "server s/GB", more_is_better: false, of: |trial| trial.server_s_per_gb },
    Figure {
        name: "ack p50, us",
        more_is_better: false,
        of: |trial| (trial.ack.count > 0).then_some(trial.ack.p50_us),
    },
    Figure {
        name: "ack p99, us",
        more_is_better: false,
        of: |trial| (trial.ack.count > 0).then_some(trial.ack.p99_us),
    },
    Figure {
        name: "delivery p99, us",
        more_is_better: false,
        of: |trial| (trial.delivery.count > 0).then_some(trial.delivery.p99_us),
    },
];

/// What B is beside A.
#[must_use]
pub fn judge(a: &RunResult, b: &RunResult) -> Judgement {
    let mut judgement = Judgement { lines: Vec::new(), left_out: Vec::new(), doubts: doubts(a, b) };
    // What others had of the CPUs while the preflight spun is noise too.
    let floor = FLOOR_PERCENT.max(a.preflight.noise_percent()).max(b.preflight.noise_percent());
    for first in &a.cells {
        let name = &first.cell.name;
        match b.cells.iter().find(|cell| cell.cell.name == *name) {
            None => judgement.left_out.push(format!("{name} is in A alone")),
            Some(second) => match comparable(first, second) {
                Ok(()) => judgement.lines.extend(lines(first, second, floor)),
                Err(why) => judgement.left_out.push(format!("{name}: {why}")),
            },
        }
    }
    let known = |name: &str| a.cells.iter().any(|cell| cell.cell.name == name);
    let only_b = b.cells.iter().filter(|cell| !known(&cell.cell.name));
    judgement.left_out.extend(only_b.map(|cell| format!("{} is in B alone", cell.cell.name)));
    judgement
}

fn doubts(a: &RunResult, b: &RunResult) -> Vec<String> {
    let (first, second) = (&a.preflight.machine, &b.preflight.machine);
    let mut doubts = Vec::new();
    for (what, one, other) in [
        ("CPU", &first.cpu, &second.cpu),
        ("kernel", &first.kernel, &second.kernel),
        ("build of the bench", &first.build, &second.build),
    ] {
        if one != other {
            doubts.push(format!("another {what}: {one} and {other}"));
        }
    }
    if first.cpus != second.cpus {
        doubts.push(format!("{} and {} CPUs", first.cpus, second.cpus));
    }
    doubts
}

fn comparable(a: &CellResult, b: &CellResult) -> Result<(), &'static str> {
    let load = |cell: &CellResult| {
        let mut shape = cell.cell.shape.clone();
        // How long was measured changes no figure.
        (shape.warmup_s, shape.duration_s) = (0.0, 1.0);
        (cell.cell.system, cell.cell.kind, shape)
    };
    if load(a) != load(b) {
        return Err("the loads differ");
    }
    if !a.is_clean() {
        return Err("A is not clean");
    }
    if !b.is_clean() {
        return Err("B is not clean");
    }
    Ok(())
}

fn lines(a: &CellResult, b: &CellResult, floor_percent: f64) -> Vec<Line> {
    let line = |figure: &Figure| {
        let (first, second) = (a.spread(figure.of)?, b.spread(figure.of)?);
        let noise_percent = floor_percent.max(first.percent()).max(second.percent());
        let change_percent =
            if first.median == 0.0 { 0.0 } else { 100.0 * (second.median / first.median - 1.0) };
        Some(Line {
            cell: a.cell.name.clone(),
            figure: figure.name,
            a: first.median,
            b: second.median,
            change_percent,
            noise_percent,
            verdict: decide(&first, &second, noise_percent, figure.more_is_better),
        })
    };
    FIGURES.iter().filter_map(line).collect()
}

fn decide(a: &Spread, b: &Spread, noise_percent: f64, more_is_better: bool) -> Verdict {
    if a.trials < TRIALS_MIN || b.trials < TRIALS_MIN || a.percent().max(b.percent()) > SPREAD_PERCENT_MAX {
        return Verdict::Unclear;
    }
    let apart = a.max < b.min || b.max < a.min;
    let change = if a.median == 0.0 { 0.0 } else { 100.0 * (b.median / a.median - 1.0) };
    if !apart || change.abs() <= noise_percent {
        return Verdict::Same;
    }
    if (change > 0.0) == more_is_better { Verdict::Better } else { Verdict::Worse }
}

impl fmt::Display for Judgement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for doubt in &self.doubts {
            writeln!(f, "doubtful: {doubt}")?;
        }
        for line in &self.lines {
            writeln!(
                f,
                "{:<12} {} {}: {:.3} -> {:.3} ({:+.1} %, noise {:.1} %)",
                line.verdict.word(),
                line.cell,
                line.figure,
                line.a,
                line.b,
                line.change_percent,
                line.noise_percent
            )?;
        }
        self.left_out.iter().try_for_each(|why| writeln!(f, "not compared: {why}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spread(values: &[f64]) -> Spread {
        Spread::of(values.iter().copied()).unwrap()
    }

    fn verdict(a: &[f64], b: &[f64], more_is_better: bool) -> Verdict {
        let (a, b) = (spread(a), spread(b));
        let noise = FLOOR_PERCENT.max(a.percent()).max(b.percent());
        decide(&a, &b, noise, more_is_better)
    }

    #[test]
    fn a_difference_beyond_the_noise_has_a_direction() {
        let (low, high) = ([100.0, 101.0, 102.0], [120.0, 121.0, 122.0]);
        assert_eq!(verdict(&low, &high, true), Verdict::Better);
        assert_eq!(verdict(&high, &low, true), Verdict::Worse);
        assert_eq!(verdict(&low, &high, false), Verdict::Worse);
        assert_eq!(verdict(&high, &low, false), Verdict::Better);
    }

    #[test]
    fn a_difference_within_the_noise_is_none() {
        // Four percent: trials apart, but a machine drifts by as much.
        assert_eq!(verdict(&[100.0, 100.5, 101.0], &[104.0, 104.5, 105.0], true), Verdict::Same);
        // Twelve percent: more than the floor, but trials overlap.
        assert_eq!(verdict(&[100.0, 101.0, 115.0], &[112.0, 113.0, 114.0], true), Verdict::Same);
        // Trials apart, but each run differs within itself by as much as they do.
        assert_eq!(verdict(&[80.0, 100.0, 110.0], &[111.0, 114.0, 140.0], true), Verdict::Same);
        assert_eq!(verdict(&[0.0, 0.0, 0.0], &[0.0, 0.0, 0.0], true), Verdict::Same);
    }

    #[test]
    fn too_few_trials_or_too_far_apart_say_nothing() {
        assert_eq!(verdict(&[100.0, 101.0], &[200.0, 201.0, 202.0], true), Verdict::Unclear);
        assert_eq!(verdict(&[100.0, 101.0, 200.0], &[300.0, 301.0, 302.0], true), Verdict::Unclear);
    }
}
