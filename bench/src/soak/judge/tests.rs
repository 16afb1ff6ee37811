//! Runs with planted leaks: each breaks its own rule and no other.

use super::*;
use crate::soak::sample::{SAME_AT_REST, ZERO_AT_REST};
use crate::soak::tally::Tally;

const MIB: u64 = 1 << 20;
const PARTS: [Part; 9] = [
    Part::Durable,
    Part::Memory,
    Part::Cache,
    Part::Watch,
    Part::Counter,
    Part::Group,
    Part::Churn,
    Part::Slow,
    Part::Flood,
];

fn held() -> Held {
    let zero = ZERO_AT_REST.iter().map(|name| ((*name).to_owned(), 0.0));
    let same = SAME_AT_REST.iter().map(|name| ((*name).to_owned(), 4.0));
    let mut held = Held {
        resident_bytes: 300 * MIB,
        threads: 9,
        locked_bytes: 64 << 10,
        pinned_bytes: 0,
        gauges: zero.chain(same).collect(),
        ..Held::default()
    };
    held.open.by_kind = [("socket".to_owned(), 5), ("anon_inode:[io_uring]".to_owned(), 6)].into();
    held.open.data_files = 20;
    held
}

fn ledger_of_one() -> Ledger {
    let mut ledger = Ledger { appended: 1_000, ..Ledger::default() };
    for part in PARTS {
        *ledger.part(part) = Tally { asked: 500, done: 500, told: 500, ..Tally::default() };
    }
    ledger
}

/// Five cycles that keep every rule.
fn sound() -> Run {
    let cycle = Cycle {
        before: held(),
        after: held(),
        rest_ms: Some(900),
        peak_bytes: 400 * MIB,
        ledger: ledger_of_one(),
        overload: Some(Overload {
            capacity: 1_000.0,
            offered: vec![(2, 990.0), (5, 940.0)],
            refusals: 12,
            latest_ms: 30,
        }),
        quiet: Some(Quiet { before_us: 900, bound_us: 20_000, back_ms: Some(500) }),
    };
    let mut run = Run { cycles: vec![cycle; 5], appended_at_broker: 5_000 };
    // The first cycle makes what is made once and kept.
    run.cycles[0].before.open.by_kind.insert("socket".to_owned(), 3);
    run.cycles[0].before.gauges.insert("cache_keys".to_owned(), 0.0);
    run.cycles[0].peak_bytes = 200 * MIB;
    run
}

/// The rules that are not kept, with what became of them.
fn broken(run: &Run) -> Vec<(String, Outcome)> {
    let table = judge(run).into_iter().filter(|verdict| verdict.outcome != Outcome::Kept);
    table.map(|verdict| (verdict.rule, verdict.outcome)).collect()
}

/// What `spoil` does to a sound run breaks `rule` and no other.
fn breaks(rule: &str, spoil: impl FnOnce(&mut Run)) {
    let mut run = sound();
    spoil(&mut run);
    assert_eq!(broken(&run), [(rule.to_owned(), Outcome::Broken)]);
    assert!(!passed(&judge(&run)));
}

/// Each cycle from the second leaves one more than it found.
fn leak(run: &mut Run, mut one_more: impl FnMut(&mut Held, u64)) {
    for number in 1..run.cycles.len() {
        one_more(&mut run.cycles[number].before, number as u64 - 1);
        one_more(&mut run.cycles[number].after, number as u64);
    }
}

#[test]
fn a_sound_run_keeps_every_rule() {
    assert_eq!(broken(&sound()), []);
    assert!(passed(&judge(&sound())));
}

#[test]
fn memory_that_grows_is_a_leak() {
    let late = |run: &mut Run, grow: fn(&mut Cycle)| run.cycles[REFERENCE..].iter_mut().for_each(grow);
    breaks("peak of memory", |run| late(run, |cycle| cycle.peak_bytes = 404 * MIB + SLACK_BYTES + 1));
    breaks("memory at rest", |run| {
        late(run, |cycle| cycle.after.resident_bytes = 303 * MIB + SLACK_BYTES + 1);
    });
    let mut run = sound();
    run.cycles[4].peak_bytes = 900 * MIB;
    run.cycles[3].after.resident_bytes = 900 * MIB;
    assert_eq!(broken(&run), [], "one cycle alone is no growth");
    let mut run = sound();
    run.cycles[1].peak_bytes = 900 * MIB;
    run.cycles[4].after.resident_bytes = 10 * MIB;
    assert_eq!(broken(&run), [], "less, and more before, is no leak");
}

#[test]
fn a_descriptor_that_stays_is_a_leak() {
    breaks("file descriptors", |run| {
        leak(run, |held, extra| *held.open.by_kind.entry("socket".to_owned()).or_default() += extra);
    });
    breaks("file descriptors", |run| {
        for cycle in &mut run.cycles[REFERENCE..] {
            cycle.after.open.by_kind.insert("/etc/hosts".to_owned(), 1);
        }
    });
    let mut run = sound();
    run.cycles[4].after.open.by_kind.insert("socket".to_owned(), 6);
    run.cycles[2].after.open.by_kind.remove("anon_inode:[io_uring]");
    assert_eq!(broken(&run), [], "one that comes and goes");
}

#[test]
fn a_data_file_is_open_twice_at_most_and_not_when_it_is_gone() {
    breaks("open data files", |run| run.cycles[1].after.open.data_deleted = 1);
    breaks("open data files", |run| run.cycles[4].after.open.data_again = 21);
    let mut run = sound();
    (run.cycles[4].after.open.data_files, run.cycles[4].after.open.data_again) = (25, 25);
    assert_eq!(broken(&run), [], "logs have a segment more or less");
}

#[test]
fn threads_and_locked_memory_come_back() {
    breaks("threads", |run| leak(run, |held, extra| held.threads += extra));
    breaks("locked memory", |run| leak(run, |held, extra| held.locked_bytes += extra << 12));
    breaks("locked memory", |run| leak(run, |held, extra| held.pinned_bytes += extra << 12));
}

#[test]
fn a_gauge_that_stays_up_is_a_leak() {
    breaks("gauges", |run| {
        leak(run, |held, extra| {
            held.gauges.insert("groups".to_owned(), 4.0 + extra as f64);
        });
    });
    for name in ZERO_AT_REST {
        let mut run = sound();
        run.cycles[3].after.gauges.insert((*name).to_owned(), 1.0);
        let rules: Vec<String> = broken(&run).into_iter().map(|(rule, _)| rule).collect();
        assert_eq!(rules, ["rest after each cycle", "gauges"], "{name}");
    }
}

#[test]
fn a_broker_that_does_not_come_to_rest_is_told() {
    breaks("rest after each cycle", |run| run.cycles[0].rest_ms = None);
}

#[test]
fn what_is_lost_told_twice_or_contradicted_is_told() {
    for part in PARTS {
        let rule = format!("{}: nothing lost", part.name());
        breaks(&rule, |run| run.cycles[1].ledger.part(part).missing = 1);
        breaks(&rule, |run| run.cycles[2].ledger.part(part).repeated = 1);
        breaks(&rule, |run| run.cycles[3].ledger.part(part).wrong = 1);
        breaks(&rule, |run| run.cycles[4].ledger.part(part).done -= 1);
    }
    breaks("watch: nothing lost", |run| {
        run.cycles.iter_mut().for_each(|cycle| cycle.ledger.part(Part::Watch).told = 0);
    });
}

#[test]
fn the_broker_must_have_appended_what_it_answered() {
    breaks("records appended", |run| run.appended_at_broker = 4_999);
    breaks("records appended", |run| run.appended_at_broker = 5_001);
    let mut run = sound();
    run.cycles[2].ledger.maybe_appended = 2;
    for (appended, kept) in [(4_999, false), (5_000, true), (5_002, true), (5_003, false)] {
        run.appended_at_broker = appended;
        assert_eq!(broken(&run).is_empty(), kept, "{appended}");
    }
}

#[test]
fn overload_is_judged_by_the_best_cycle() {
    let each = |spoil: fn(&mut Cycle)| move |run: &mut Run| run.cycles.iter_mut().for_each(spoil);
    breaks(
        "goodput under overload",
        each(|cycle| {
            cycle.overload.as_mut().unwrap().offered[1].1 = 700.0;
        }),
    );
    breaks("refusals in time", each(|cycle| cycle.overload.as_mut().unwrap().latest_ms = REFUSAL_MAX_MS + 1));
    breaks("quiet p99 back", each(|cycle| cycle.quiet.as_mut().unwrap().back_ms = None));
    breaks("quiet p99 back", each(|cycle| cycle.quiet.as_mut().unwrap().back_ms = Some(QUIET_MAX_MS + 1)));
    let mut run = sound();
    for cycle in &mut run.cycles[..4] {
        let overload = cycle.overload.as_mut().unwrap();
        (overload.offered[0].1, overload.latest_ms) = (10.0, 9_000);
        cycle.quiet.as_mut().unwrap().back_ms = None;
    }
    assert_eq!(broken(&run), []);
}

#[test]
fn what_was_not_seen_is_not_kept() {
    let mut run = sound();
    run.cycles.truncate(REFERENCE);
    run.appended_at_broker = 3_000;
    let few = |rule: &str| (rule.to_owned(), Outcome::NotJudged);
    let few_cycles = ["peak of memory", "memory at rest", "file descriptors", "threads"];
    assert_eq!(broken(&run), few_cycles.map(few));
    let mut run = sound();
    for cycle in &mut run.cycles {
        (cycle.overload, cycle.quiet) = (None, None);
    }
    assert_eq!(broken(&run), ["goodput under overload", "refusals in time", "quiet p99 back"].map(few));
    assert!(judge(&Run::default()).iter().all(|verdict| verdict.outcome != Outcome::Kept));
}
