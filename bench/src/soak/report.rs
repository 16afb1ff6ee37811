//! What a soak came to, as a table and as JSON. Scope: plain values.
//! Not here: the rules (`judge`).

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use super::SoakPlan;
use super::judge::{OF_TIME, Outcome, Run, Verdict, judge, ledger, passed};
use crate::machine::{Machine, load_average};

/// See the module.
#[derive(Debug, Clone, Serialize)]
pub struct SoakReport {
    pub kind: &'static str,
    pub cycles_asked: u32,
    pub seconds: f64,
    /// Seconds of all cycles with their rests.
    pub took_s: f64,
    pub machine: Machine,
    pub load_average: f64,
    pub verdicts: Vec<Verdict>,
    /// With which status the broker ended at the end; `None` when it had to be killed.
    pub end_status: Option<i32>,
    /// What was contradicted or failed, the first of it.
    pub words: Vec<String>,
    #[serde(flatten)]
    pub run: Run,
}

impl SoakReport {
    /// Judges a run.
    #[must_use]
    pub fn new(plan: &SoakPlan, took: Duration, run: Run, end_status: Option<i32>) -> SoakReport {
        let mut verdicts = judge(&run);
        verdicts.push(ended(end_status));
        let stated = |verdict: &&mut Verdict| {
            !plan.judges_times && OF_TIME.contains(&&*verdict.rule) && verdict.outcome != Outcome::Kept
        };
        verdicts.iter_mut().filter(stated).for_each(|verdict| verdict.outcome = Outcome::Stated);
        SoakReport {
            kind: "soak",
            cycles_asked: plan.cycles,
            seconds: plan.seconds,
            took_s: took.as_secs_f64(),
            machine: Machine::look(),
            load_average: load_average(),
            verdicts,
            end_status,
            words: ledger(&run).words,
            run,
        }
    }

    /// All rules are kept.
    #[must_use]
    pub fn passed(&self) -> bool {
        passed(&self.verdicts)
    }
}

fn ended(status: Option<i32>) -> Verdict {
    let measured = status.map_or("killed".to_owned(), |status| format!("status {status}"));
    let outcome = if status == Some(0) { Outcome::Kept } else { Outcome::Broken };
    Verdict { rule: "the end in order".to_owned(), measured, bound: "status 0".to_owned(), outcome }
}

impl fmt::Display for SoakReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "soak: {} cycles of {:.0} s in {:.0} s",
            self.run.cycles.len(),
            self.seconds,
            self.took_s
        )?;
        let width = self.verdicts.iter().map(|verdict| verdict.rule.len()).max().unwrap_or(0);
        for verdict in &self.verdicts {
            let word = match verdict.outcome {
                Outcome::Kept => "kept",
                Outcome::Broken => "BROKEN",
                Outcome::NotJudged => "NOT JUDGED",
                Outcome::Stated => "stated",
            };
            let Verdict { rule, measured, bound, .. } = verdict;
            writeln!(f, "{word:<10}  {rule:<width$}  {measured}  ({bound})")?;
        }
        for words in &self.words {
            writeln!(f, "  {words}")?;
        }
        Ok(())
    }
}
