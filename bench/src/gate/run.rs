//! A run of the table: which trial comes when. Scope: one run.
//! Owns: the plan, the order of rounds, what has been measured so far.
//! Invariants: each round runs every arm once, every second one the other way around, so that both arms of a row are
//! measured close together; after the rounds that rows need, only unsettled rows go on; nothing begins that would not end
//! within the time.
//! Not here: one trial (`trial`), judging (`verdict`).

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::GateError;
use super::arm::{Arm, Figures};
use super::report::{GateReport, RowReport, Settings, Side};
use super::rows::{Entry, Row, table};
use super::servers::Servers;
use super::trial;
use super::verdict::{Judged, Lacking, Outcome, Round, is_unsettled, judge};
use crate::machine::{Machine, load_average};
use crate::shape::Shape;
use crate::volume::FileSystem;

/// Rows whose rounds spread further get more of them, up to so many. Percent.
const UNSETTLED_PERCENT: f64 = 5.0;
const ROUNDS_MAX: u32 = 5;
/// What a trial may take beside its windows: starting a server, waiting for what is under way.
const TRIAL_SLACK: Duration = Duration::from_secs(2);

/// What is run, and where.
#[derive(Debug, Clone)]
pub struct GatePlan {
    /// Names of rows; none: all of them.
    pub only: Vec<String>,
    /// Rows that are not part of a quick run are left to a whole one.
    pub quick: bool,
    /// The run ends within it.
    pub limit: Duration,
    /// Seconds of each trial before anything is counted, and that are counted.
    pub warmup_s: f64,
    pub duration_s: f64,
    /// Bytes that a log keeps of a stream of one shard.
    pub kept_bytes: u64,
    /// On a disk: what servers and logs are kept in; it is removed.
    pub dir: PathBuf,
    pub server_cpu: usize,
    pub client_cpu: usize,
    /// This program, to start as a sink and as an echo.
    pub program: PathBuf,
}

impl GatePlan {
    /// The shape with the windows of the plan.
    #[must_use]
    pub fn timed(&self, shape: &Shape) -> Shape {
        Shape { warmup_s: self.warmup_s, duration_s: self.duration_s, ..shape.clone() }
    }

    #[must_use]
    pub fn window(&self) -> Duration {
        Duration::from_secs_f64(self.duration_s)
    }

    /// Largest datagram of every shape of the table, bytes.
    #[must_use]
    pub fn mtu(&self) -> u16 {
        Shape::canonical().mtu
    }

    /// The rows that were asked for.
    fn entries(&self) -> Result<Vec<Entry>, GateError> {
        let table = table();
        let known: Vec<&'static str> = table.iter().map(Entry::name).collect();
        if let Some(name) = self.only.iter().find(|name| !known.contains(&name.as_str())) {
            return Err(GateError::NoRow { name: name.clone(), known });
        }
        let asked = |entry: &Entry| self.only.is_empty() || self.only.iter().any(|name| name == entry.name());
        Ok(table.into_iter().filter(asked).collect())
    }

    /// A quick run is a whole one of what it names.
    fn includes(&self, row: &Row) -> bool {
        row.quick || !self.quick || !self.only.is_empty()
    }
}

/// What is known of an arm.
#[derive(Debug, Default)]
struct Known {
    /// By round, from 1.
    rounds: BTreeMap<u32, Figures>,
    lacking: Option<Lacking>,
    /// How long its last trial took.
    took: Duration,
}

/// Every arm of the run with what is known of it.
#[derive(Debug, Default)]
struct Arms(Vec<(Arm, Known)>);

impl Arms {
    fn of(rows: &[&Row]) -> Arms {
        let mut arms = Arms::default();
        for arm in rows.iter().flat_map(|row| std::iter::once(&row.of).chain(&row.against)) {
            if arms.known(arm).is_none() {
                arms.0.push((arm.clone(), Known::default()));
            }
        }
        arms
    }

    fn known(&self, arm: &Arm) -> Option<&Known> {
        self.0.iter().find(|(known, _)| known == arm).map(|(_, known)| known)
    }

    /// Rounds in which both arms of the row have figures.
    fn rounds(&self, row: &Row) -> Vec<Round> {
        let Some(of) = self.known(&row.of) else { return Vec::new() };
        let against = row.against.as_ref().map(|arm| self.known(arm));
        let pair = |(round, figures): (&u32, &Figures)| match against {
            None => Some((*figures, None)),
            Some(known) => Some((*figures, Some(*known?.rounds.get(round)?))),
        };
        of.rounds.iter().filter_map(pair).collect()
    }

    fn lacking(&self, row: &Row) -> Option<&Lacking> {
        let arms = std::iter::once(&row.of).chain(&row.against);
        arms.filter_map(|arm| self.known(arm)).find_map(|known| known.lacking.as_ref())
    }

    /// The row wants one more round after `done` of them.
    fn wants(&self, row: &Row, done: u32) -> bool {
        if self.lacking(row).is_some() {
            return false;
        }
        let needed = row.asked.rounds as u32;
        done < needed
            || (done < needed.max(ROUNDS_MAX)
                && is_unsettled(&row.asked, &self.rounds(row), UNSETTLED_PERCENT))
    }
}

/// Runs the table. Every trial is told on standard error when it ends.
///
/// # Errors
/// A row is not known, or the folder is no good. What fails for one arm is in the rows of that arm.
pub fn run(plan: &GatePlan) -> Result<GateReport, GateError> {
    let entries = plan.entries()?;
    let file_system = on_a_disk(plan)?;
    let (begun, load_before) = (Instant::now(), load_average());
    let rows: Vec<&Row> = entries
        .iter()
        .filter_map(|entry| match entry {
            Entry::Measured(row) => plan.includes(row).then_some(row.as_ref()),
            Entry::NotRun { .. } => None,
        })
        .collect();
    let mut arms = Arms::of(&rows);
    eprintln!("gate: {} rows, {} arms, at most {} s", rows.len(), arms.0.len(), plan.limit.as_secs());
    let mut servers = Servers::new(plan)?;
    let deadline = begun + plan.limit;
    for round in 1.. {
        let wanted: Vec<&Row> = rows.iter().copied().filter(|row| arms.wants(row, round - 1)).collect();
        if wanted.is_empty() || !one_round(plan, &mut servers, &mut arms, (round, &wanted, deadline)) {
            break;
        }
    }
    drop(servers);
    let reports = entries.iter().map(|entry| row_report(plan, entry, &arms)).collect();
    Ok(GateReport {
        kind: "gate",
        machine: Machine::look(),
        file_system,
        settings: Settings::of(plan),
        load_average: (load_before, load_average()),
        seconds: begun.elapsed().as_secs_f64(),
        rows: reports,
    })
}

fn on_a_disk(plan: &GatePlan) -> Result<FileSystem, GateError> {
    let dir = plan.dir.clone();
    let system = FileSystem::of(&dir).map_err(|error| GateError::Folder { dir: dir.clone(), error })?;
    if system.is_in_memory() {
        return Err(GateError::InMemory { dir, kind: system.kind });
    }
    Ok(system)
}

/// Every arm of `wanted` once. False when the time was over first.
fn one_round(
    plan: &GatePlan,
    servers: &mut Servers<'_>,
    arms: &mut Arms,
    (round, wanted, deadline): (u32, &[&Row], Instant),
) -> bool {
    let used = |arm: &Arm| wanted.iter().any(|row| row.of == *arm || row.against.as_ref() == Some(arm));
    let mut order: Vec<usize> = (0..arms.0.len()).filter(|index| used(&arms.0[*index].0)).collect();
    if round.is_multiple_of(2) {
        order.reverse();
    }
    for index in order {
        let (arm, known) = &mut arms.0[index];
        if known.lacking.is_some() {
            continue;
        }
        let expected = known.took.max(Duration::from_secs_f64(plan.warmup_s + plan.duration_s) + TRIAL_SLACK);
        if Instant::now() + expected > deadline {
            eprintln!("gate: the time is over in round {round}");
            return false;
        }
        let begun = Instant::now();
        match trial::run(plan, servers, arm) {
            Ok(figures) => {
                eprintln!("round {round}, {}: {}", arm.name(), line(&figures));
                known.rounds.insert(round, figures);
            }
            Err(error) => {
                eprintln!("round {round}, {}: {error}", arm.name());
                let why = format!("{}: {error}", arm.name());
                let missing = error.is_missing();
                known.lacking = Some(if missing { Lacking::Missing(why) } else { Lacking::Failed(why) });
            }
        }
        known.took = begun.elapsed();
    }
    true
}

fn line(figures: &Figures) -> String {
    let cost = figures.s_per_gb.map_or(String::new(), |cost| format!(", {cost:.3} s/GB"));
    format!(
        "{:.1} MB/s, {:.0} records/s{cost}, core {:.0} %, load {:.0} %, p50 {:.0} us, p99 {:.0} us{}",
        figures.mb_per_s,
        figures.records_per_s,
        figures.core_busy_percent,
        figures.load_busy_percent,
        figures.p50_us,
        figures.p99_us,
        if figures.clean { "" } else { ", NOT CLEAN" },
    )
}

fn row_report(plan: &GatePlan, entry: &Entry, arms: &Arms) -> RowReport {
    match entry {
        Entry::NotRun { name, about, must, aim, why } => RowReport {
            name,
            about,
            figure: "-",
            must: (*must).to_owned(),
            aim: (*aim).to_owned(),
            of: None,
            against: None,
            judged: Judged::without(Outcome::NotRun, (*why).to_owned()),
        },
        Entry::Measured(row) => {
            let rounds = arms.rounds(row);
            let judged = if plan.includes(row) {
                judge(&row.asked, &rounds, arms.lacking(row))
            } else {
                Judged::without(Outcome::NotRun, "not part of a quick run".to_owned())
            };
            let bound = |bound: Option<super::verdict::Bound>| {
                bound.map_or_else(|| "-".to_owned(), |bound| bound.to_string())
            };
            let must = match row.asked.or_busy_s_per_gb {
                Some(cost) => format!("{} or core > 95 % at {cost:.2} s/GB", bound(row.asked.must)),
                None => bound(row.asked.must),
            };
            let side = |arm: &Arm, trials: Vec<Figures>| Side { arm: arm.name(), trials };
            RowReport {
                name: row.name,
                about: row.about,
                figure: row.asked.figure.name(),
                must,
                aim: bound(row.asked.aim),
                of: Some(side(&row.of, rounds.iter().map(|(of, _)| *of).collect())),
                against: row
                    .against
                    .as_ref()
                    .map(|arm| side(arm, rounds.iter().filter_map(|(_, against)| *against).collect())),
                judged,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(only: &[&str], quick: bool) -> GatePlan {
        GatePlan {
            only: only.iter().map(|name| (*name).to_owned()).collect(),
            quick,
            limit: Duration::from_secs(60),
            warmup_s: 0.1,
            duration_s: 0.2,
            kept_bytes: 64 << 20,
            dir: PathBuf::from("."),
            server_cpu: 0,
            client_cpu: 1,
            program: PathBuf::from("felix-bench"),
        }
    }

    fn row(name: &str) -> Row {
        let found = table().into_iter().find_map(|entry| match entry {
            Entry::Measured(row) if row.name == name => Some(*row),
            _ => None,
        });
        found.unwrap()
    }

    fn fill(arms: &mut Arms, arm: &Arm, costs: &[f64]) {
        let (_, known) = arms.0.iter_mut().find(|(found, _)| found == arm).unwrap();
        known.rounds = (1..)
            .zip(costs)
            .map(|(round, cost)| {
                (round, Figures { s_per_gb: Some(*cost), clean: true, ..Figures::default() })
            })
            .collect();
    }

    #[test]
    fn rows_are_chosen_by_name_and_unknown_ones_refused() {
        let names =
            |plan: &GatePlan| -> Vec<&str> { plan.entries().unwrap().iter().map(Entry::name).collect() };
        assert_eq!(names(&plan(&["sink", "bulk"], false)), ["bulk", "sink"]);
        assert_eq!(names(&plan(&[], true)).len(), table().len(), "what is not run is still in the result");
        let error = plan(&["bulky"], false).entries().unwrap_err().to_string();
        assert!(error.contains("bulky") && error.contains("small-batched"), "{error}");
        assert!(!plan(&[], true).includes(&row("bulk-64")) && plan(&[], false).includes(&row("bulk-64")));
        assert!(plan(&["bulk-64"], true).includes(&row("bulk-64")), "it was asked for by name");
    }

    #[test]
    fn rows_share_their_arms_and_are_paired_by_round() {
        let (bulk, unacked) = (row("bulk"), row("unacked"));
        let mut arms = Arms::of(&[&bulk, &unacked]);
        assert_eq!(arms.0.len(), 3, "the acked broker is measured once");
        fill(&mut arms, &bulk.of, &[0.30, 0.31, 0.32]);
        fill(&mut arms, bulk.against.as_ref().unwrap(), &[0.20, 0.21]);
        let rounds = arms.rounds(&bulk);
        let costs: Vec<_> = rounds.iter().map(|(of, to)| (of.s_per_gb, to.unwrap().s_per_gb)).collect();
        assert_eq!(costs, [(Some(0.30), Some(0.20)), (Some(0.31), Some(0.21))]);
        assert!(arms.rounds(&unacked).is_empty());
    }

    #[test]
    fn only_unsettled_rows_go_on_and_not_for_ever() {
        let (bulk, keys) = (row("bulk"), row("keys"));
        let mut arms = Arms::of(&[&bulk, &keys]);
        assert!(arms.wants(&bulk, 0) && arms.wants(&bulk, 2) && arms.wants(&keys, 6));
        fill(&mut arms, &bulk.of, &[0.30, 0.30, 0.30]);
        fill(&mut arms, bulk.against.as_ref().unwrap(), &[0.30, 0.30, 0.30]);
        assert!(!arms.wants(&bulk, 3));
        fill(&mut arms, &bulk.of, &[0.30, 0.40, 0.30, 0.3, 0.3]);
        fill(&mut arms, bulk.against.as_ref().unwrap(), &[0.30; 5]);
        assert!(arms.wants(&bulk, 4) && !arms.wants(&bulk, 5));
        arms.0[0].1.lacking = Some(Lacking::Failed("it ended".to_owned()));
        assert!(!arms.wants(&bulk, 0));
    }

    #[test]
    fn a_row_that_is_not_part_of_a_quick_run_says_so() {
        let entry = Entry::Measured(Box::new(row("keys")));
        let report = row_report(&plan(&[], true), &entry, &Arms::default());
        assert_eq!(report.judged.outcome, Outcome::NotRun);
        assert_eq!(report.must, "1 +- 0.10");
    }
}
