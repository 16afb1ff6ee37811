//! Which rules a run keeps. Scope: a function of what was seen.
//! Owns: the rules with their bounds, and the table of verdicts.
//! Invariants: a rule that cannot be judged is named and is not kept; nothing but what was seen decides.
//! Not here: how it was seen (`sample`, `tally`), what the load was (`steady`, `churn`, `slow`, `overload`).

use serde::Serialize;

use super::sample::Held;
use super::tally::{Ledger, Part};

/// Cycles that later ones are compared with, the first ones: they fill what a broker keeps.
pub const REFERENCE: usize = 3;
/// The fewest cycles that have two after them: a rule is broken by what both show.
pub const CYCLES_MIN: u32 = REFERENCE as u32 + 2;
/// How much more than the most of the first cycles a later one may take.
pub const GROWTH_MAX: f64 = 0.01;
/// Memory that is no growth, bytes: see "Soak" in docs/performance.md.
pub const SLACK_BYTES: u64 = 8 << 20;
/// What overload may leave of the goodput.
pub const GOODPUT_MIN: f64 = 0.8;
/// How late a refusal may be, milliseconds beyond what the broker is set to wait.
pub const REFUSAL_MAX_MS: u64 = 100;
/// How long after overload the latency of a quiet broker may take to come back, milliseconds.
pub const QUIET_MAX_MS: u64 = 5_000;

/// Rules about time and rates, which what others do on the machine may break.
pub const OF_TIME: [&str; 3] = ["goodput under overload", "refusals in time", "quiet p99 back"];

/// What was seen of one cycle.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Cycle {
    /// At rest before it and after it.
    pub before: Held,
    pub after: Held,
    /// From the end of the last phase to rest, milliseconds; `None` when the broker did not come to rest in time.
    pub rest_ms: Option<u64>,
    /// The most memory in it, bytes.
    pub peak_bytes: u64,
    pub ledger: Ledger,
    pub overload: Option<Overload>,
    pub quiet: Option<Quiet>,
}

/// What the broker did under more load than it takes.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Overload {
    /// Records taken in a second when each batch waits for an answer before it.
    pub capacity: f64,
    /// Times of that which were offered, and records taken in a second.
    pub offered: Vec<(u32, f64)>,
    /// Refusals, and how late the slowest was, milliseconds beyond what the broker is set to wait.
    pub refusals: u64,
    pub latest_ms: u64,
}

impl Overload {
    /// The least goodput over the capacity.
    #[must_use]
    pub fn goodput(&self) -> f64 {
        let least = self.offered.iter().map(|(_, taken)| *taken).fold(f64::INFINITY, f64::min);
        if self.capacity > 0.0 && least.is_finite() { least / self.capacity } else { 0.0 }
    }
}

/// How soon single requests were as fast as before.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Quiet {
    /// The 99th percentile before the cycle's load, and below which it is back, microseconds.
    pub before_us: u64,
    pub bound_us: u64,
    /// Until it was back, milliseconds; `None` when it was not within the time.
    pub back_ms: Option<u64>,
}

/// Everything that was seen.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Run {
    pub cycles: Vec<Cycle>,
    /// Records that the broker counted as appended since the first cycle began.
    pub appended_at_broker: u64,
}

/// What became of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Kept,
    Broken,
    /// What it is about was not seen.
    NotJudged,
    /// It would be broken, and was not to be judged: others use the machine.
    Stated,
}

/// One line of the table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Verdict {
    pub rule: String,
    pub measured: String,
    pub bound: String,
    pub outcome: Outcome,
}

/// Judges all rules, in the order of the table.
#[must_use]
pub fn judge(run: &Run) -> Vec<Verdict> {
    let mut table = vec![
        memory(run, "peak of memory", |cycle| cycle.peak_bytes),
        memory(run, "memory at rest", |cycle| cycle.after.resident_bytes),
        at_rest(run),
        no_more(run, "file descriptors", |held| {
            held.open.by_kind.iter().map(|(kind, count)| (kind.clone(), *count)).collect()
        }),
        data_files(run),
        no_more(run, "threads", |held| vec![("threads".to_owned(), held.threads)]),
        same(run, "locked memory", |held| {
            vec![
                ("locked bytes".to_owned(), held.locked_bytes),
                ("pinned bytes".to_owned(), held.pinned_bytes),
            ]
        }),
        same(run, "gauges", |held| {
            held.gauges.iter().map(|(name, value)| (name.clone(), value.to_bits())).collect()
        }),
    ];
    let whole = ledger(run);
    table.extend(whole.parts.keys().map(|part| counted(*part, &whole)));
    table.push(appended(run, &whole));
    table.extend([goodput(run), refusals(run), quiet(run)]);
    table
}

/// All rules are kept.
#[must_use]
pub fn passed(table: &[Verdict]) -> bool {
    table.iter().all(|verdict| matches!(verdict.outcome, Outcome::Kept | Outcome::Stated))
}

/// The counts of all cycles together.
#[must_use]
pub fn ledger(run: &Run) -> Ledger {
    let mut whole = Ledger::default();
    run.cycles.iter().for_each(|cycle| whole.add(cycle.ledger.clone()));
    whole
}

fn verdict(rule: &str, measured: String, bound: String, kept: bool) -> Verdict {
    let outcome = if kept { Outcome::Kept } else { Outcome::Broken };
    Verdict { rule: rule.to_owned(), measured, bound, outcome }
}

fn not_judged(rule: &str, why: &str) -> Verdict {
    let outcome = Outcome::NotJudged;
    Verdict { rule: rule.to_owned(), measured: why.to_owned(), bound: String::new(), outcome }
}

/// The cycles that fill what a broker keeps and come up to the reference, and the last two behind it: one figure of one cycle
/// is an accident of the moment (what was parked when it was looked at), what two have is not.
fn early_and_late(run: &Run) -> Option<(&[Cycle], &[Cycle])> {
    let late = run.cycles.get(REFERENCE..).filter(|late| !late.is_empty())?;
    Some((&run.cycles[..REFERENCE], &late[late.len().saturating_sub(2)..]))
}

/// Late cycles take no more than early ones.
fn memory(run: &Run, rule: &str, of: impl Fn(&Cycle) -> u64) -> Verdict {
    let Some((early, late)) = early_and_late(run) else { return not_judged(rule, "too few cycles") };
    let before = early.iter().map(&of).max().unwrap_or(0);
    let after = late.iter().map(&of).min().unwrap_or(0);
    if before == 0 || after == 0 {
        return not_judged(rule, "memory was not read");
    }
    let most = (before as f64 * (1.0 + GROWTH_MAX)) as u64 + SLACK_BYTES;
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    verdict(
        rule,
        format!("{:.1} MiB at the end, {:.1} MiB before", mib(after), mib(before)),
        format!("{:.1} MiB", mib(most)),
        after <= most,
    )
}

/// What is open or runs at rest is no more in the late cycles than it was in an early one: connections to the control plane and
/// threads of the disks come and go by themselves.
fn no_more(run: &Run, rule: &str, of: impl Fn(&Held) -> Vec<(String, u64)>) -> Verdict {
    let Some((early, late)) = early_and_late(run) else { return not_judged(rule, "too few cycles") };
    let early: Vec<_> = early.iter().map(|cycle| of(&cycle.after)).collect();
    let late: Vec<_> = late.iter().map(|cycle| of(&cycle.after)).collect();
    let count = |held: &[(String, u64)], name: &str| {
        held.iter().find(|(of, _)| of == name).map_or(0, |(_, count)| *count)
    };
    let Some(last) = late.last().filter(|last| !last.is_empty()) else {
        return not_judged(rule, "nothing was read");
    };
    let mut words = Vec::new();
    for (name, _) in last {
        let before = early.iter().map(|held| count(held, name)).max().unwrap_or(0);
        let after = late.iter().map(|held| count(held, name)).min().unwrap_or(0);
        if after > before {
            words.push(format!("{name} {before} -> {after}"));
        }
    }
    let kept = words.is_empty();
    let sum: u64 = last.iter().map(|(_, count)| *count).sum();
    let measured = if kept { sum.to_string() } else { words.join("; ") };
    verdict(rule, measured, "no more than after an early cycle".to_owned(), kept)
}

/// Nobody is there and nothing waits, within the time.
fn at_rest(run: &Run) -> Verdict {
    const RULE: &str = "rest after each cycle";
    let mut words = Vec::new();
    for (number, cycle) in (1..).zip(&run.cycles) {
        for (name, value) in cycle.after.busy() {
            words.push(format!("cycle {number}: {name} is {value}"));
        }
        if cycle.rest_ms.is_none() && cycle.after.busy().is_empty() {
            words.push(format!("cycle {number}: late"));
        }
    }
    let slowest = run.cycles.iter().filter_map(|cycle| cycle.rest_ms).max();
    match slowest {
        None if run.cycles.is_empty() => not_judged(RULE, "no cycle"),
        _ if words.is_empty() => verdict(
            RULE,
            format!("after {} ms at most", slowest.unwrap_or(0)),
            "all gauges at 0".to_owned(),
            true,
        ),
        _ => verdict(RULE, words.join("; "), "all gauges at 0".to_owned(), false),
    }
}

/// Numbers at rest are after each cycle as before it. The first cycle makes what is made once and kept.
fn same(run: &Run, rule: &str, of: impl Fn(&Held) -> Vec<(String, u64)>) -> Verdict {
    let Some(later) = run.cycles.get(1..).filter(|later| !later.is_empty()) else {
        return not_judged(rule, "too few cycles");
    };
    let mut words = Vec::new();
    for (number, cycle) in (2..).zip(later) {
        let (before, after) = (of(&cycle.before), of(&cycle.after));
        let was = |name: &str| before.iter().find(|(of, _)| of == name).map(|(_, value)| *value);
        let is = |name: &str| after.iter().find(|(of, _)| of == name).map(|(_, value)| *value);
        let gone = before.iter().filter(|(name, _)| is(name).is_none());
        for (name, _) in after.iter().chain(gone) {
            if was(name) != is(name) {
                let shown = |value: Option<u64>| value.map_or("none".to_owned(), |value| show(rule, value));
                words.push(format!("cycle {number}: {name} {} -> {}", shown(was(name)), shown(is(name))));
            }
        }
    }
    let bound = "as before each cycle".to_owned();
    let kept = words.is_empty();
    let last = later.last().map(|cycle| of(&cycle.after)).unwrap_or_default();
    if last.is_empty() {
        return not_judged(rule, "nothing was read");
    }
    let measured = match rule {
        // Their values are bits of floating point.
        "gauges" => format!("{} the same", last.len()),
        _ => last.iter().map(|(_, value)| *value).sum::<u64>().to_string(),
    };
    verdict(rule, if kept { measured } else { words.join("; ") }, bound, kept)
}

fn show(rule: &str, value: u64) -> String {
    if rule == "gauges" { f64::from_bits(value).to_string() } else { value.to_string() }
}

/// A file of data is open twice at most, for writes that sync and for others, and not at all when it is gone.
fn data_files(run: &Run) -> Verdict {
    const RULE: &str = "open data files";
    let Some(last) = run.cycles.last() else { return not_judged(RULE, "no cycle") };
    let deleted: u64 = run.cycles.iter().map(|cycle| cycle.after.open.data_deleted).sum();
    let again = run.cycles.iter().all(|cycle| cycle.after.open.data_again <= cycle.after.open.data_files);
    let open = &last.after.open;
    verdict(
        RULE,
        format!("{} open, {} of them again, {deleted} deleted", open.data_files, open.data_again),
        "each twice at most, none deleted".to_owned(),
        deleted == 0 && again,
    )
}

/// What was asked is answered, what was answered is told, each once.
fn counted(part: Part, whole: &Ledger) -> Verdict {
    let tally = whole.parts.get(&part).copied().unwrap_or_default();
    let mut measured = format!("{} asked, {} done", tally.asked, tally.done);
    for (count, word) in [(tally.refused, "refused"), (tally.unknown, "unknown"), (tally.told, "told")] {
        if count > 0 {
            measured.push_str(&format!(", {count} {word}"));
        }
    }
    for (count, word) in [(tally.missing, "MISSING"), (tally.repeated, "REPEATED"), (tally.wrong, "WRONG")] {
        if count > 0 {
            measured.push_str(&format!(", {count} {word}"));
        }
    }
    let lost = tally.missing + tally.repeated + tally.wrong;
    let told = match part {
        Part::Cache | Part::Counter | Part::Churn | Part::Flood => true,
        _ => tally.told > 0,
    };
    let rule = format!("{}: nothing lost", part.name());
    let kept = lost == 0 && tally.balances() && tally.done > 0 && told;
    verdict(&rule, measured, "each once".to_owned(), kept)
}

/// The broker has appended what it said it has.
fn appended(run: &Run, whole: &Ledger) -> Verdict {
    let (least, most) = (whole.appended, whole.appended + whole.maybe_appended);
    let bound = if least == most { least.to_string() } else { format!("{least} to {most}") };
    let kept = least > 0 && (least..=most).contains(&run.appended_at_broker);
    verdict("records appended", run.appended_at_broker.to_string(), bound, kept)
}

/// Goodput under overload, of the best cycle: what other work on the machine takes away differs from cycle to cycle, what
/// overload takes away does not.
fn goodput(run: &Run) -> Verdict {
    const RULE: &str = "goodput under overload";
    let seen: Vec<f64> =
        run.cycles.iter().filter_map(|cycle| cycle.overload.as_ref()).map(Overload::goodput).collect();
    let Some(best) = seen.iter().copied().reduce(f64::max) else { return not_judged(RULE, "no overload") };
    let least = seen.iter().copied().fold(best, f64::min);
    let measured = format!("{best:.2} of the capacity in the best cycle, {least:.2} in the worst");
    verdict(RULE, measured, format!("{GOODPUT_MIN:.2}"), best >= GOODPUT_MIN)
}

/// Refusals in time, of the best cycle for the same reason.
fn refusals(run: &Run) -> Verdict {
    const RULE: &str = "refusals in time";
    let overloads = run.cycles.iter().filter_map(|cycle| cycle.overload.as_ref());
    let refusing: Vec<&Overload> = overloads.filter(|overload| overload.refusals > 0).collect();
    let Some(best) = refusing.iter().map(|overload| overload.latest_ms).min() else {
        return not_judged(RULE, "nothing was refused");
    };
    let count: u64 = refusing.iter().map(|overload| overload.refusals).sum();
    let worst = refusing.iter().map(|overload| overload.latest_ms).max().unwrap_or(best);
    let measured = format!("{count}, the last {best} ms late in the best cycle, {worst} ms in the worst");
    verdict(RULE, measured, format!("{REFUSAL_MAX_MS} ms"), best <= REFUSAL_MAX_MS)
}

/// The latency of a quiet broker is back, in the best cycle for the same reason.
fn quiet(run: &Run) -> Verdict {
    const RULE: &str = "quiet p99 back";
    let seen: Vec<Quiet> = run.cycles.iter().filter_map(|cycle| cycle.quiet).collect();
    if seen.is_empty() {
        return not_judged(RULE, "the machine was never quiet");
    }
    let back: Vec<u64> = seen.iter().filter_map(|quiet| quiet.back_ms).collect();
    let bound = format!("{QUIET_MAX_MS} ms");
    match back.iter().min() {
        Some(best) => {
            let late = seen.len() - back.len();
            let worst = back.iter().max().unwrap_or(best);
            let never = if late > 0 { format!(", not in {late}") } else { String::new() };
            let measured = format!("{best} ms in the best cycle, {worst} ms in the worst{never}");
            verdict(RULE, measured, bound, *best <= QUIET_MAX_MS)
        }
        None => verdict(RULE, "in no cycle".to_owned(), bound, false),
    }
}

#[cfg(test)]
mod tests;
