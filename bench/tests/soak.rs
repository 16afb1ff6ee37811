//! The soak from the command line. Scope: real processes on loopback, cycles of seconds; rules of time are told and not asked
//! for, since other tests run beside it.

use std::os::unix::process::CommandExt;
use std::process::{Command, Output};

use serde_json::Value;

/// Rules that a busy machine may break.
const OF_TIME: [&str; 3] = ["goodput under overload", "refusals in time", "quiet p99 back"];
/// Every other rule of the table.
const RULES: [&str; 18] = [
    "peak of memory",
    "memory at rest",
    "rest after each cycle",
    "file descriptors",
    "open data files",
    "threads",
    "locked memory",
    "gauges",
    "durable stream: nothing lost",
    "stream in memory: nothing lost",
    "cache: nothing lost",
    "watch: nothing lost",
    "counter: nothing lost",
    "group: nothing lost",
    "connections: nothing lost",
    "slow readers: nothing lost",
    "overload: nothing lost",
    "records appended",
];

/// It leads a process group, so it gets no scheduling weight of its own: other tests run beside it.
fn soak(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_felix-bench"));
    command.arg("soak").args(args).process_group(0).output().unwrap()
}

#[test]
fn a_short_soak_keeps_its_rules_and_leaves_nothing_behind() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let dir = folder.path().to_str().unwrap();
    let output = soak(&["--cycles", "5", "--seconds", "4", "--json", "--dir", dir]);
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let report: Value =
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}\n{errors}"));
    let verdicts = report["verdicts"].as_array().unwrap();
    let of = |rule: &str| {
        let found = verdicts.iter().find(|verdict| verdict["rule"] == rule);
        found.unwrap_or_else(|| panic!("no rule {rule}: {text}")).clone()
    };
    for rule in RULES.into_iter().chain(["the end in order"]) {
        let verdict = of(rule);
        assert_eq!(verdict["outcome"], "kept", "{verdict}: {}\n{errors}", report["words"]);
    }
    let kept = OF_TIME.map(|rule| of(rule)["outcome"] == "kept");
    assert_eq!(verdicts.len(), RULES.len() + 1 + OF_TIME.len(), "every rule is named here: {verdicts:?}");
    let passed = kept.into_iter().all(|kept| kept);
    assert_eq!(report["passed"], passed);
    assert_eq!(output.status.code(), Some(if passed { 0 } else { 4 }), "{errors}");
    let cycles = report["cycles"].as_array().unwrap();
    assert_eq!(cycles.len(), 5);
    for cycle in cycles {
        let parts = &cycle["ledger"]["parts"];
        for part in ["durable", "memory", "cache", "watch", "counter", "group", "churn", "slow", "flood"] {
            assert!(parts[part]["done"].as_u64().unwrap() > 0, "{part}: {parts}");
        }
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "what was made is removed");
}

#[test]
fn a_soak_that_cannot_begin_says_why() {
    let too_few = soak(&["--cycles", "3"]);
    assert_eq!(too_few.status.code(), Some(2), "there is no cycle after the third");
    let nowhere = soak(&["--dir", "/nowhere/at/all"]);
    assert_eq!(nowhere.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&nowhere.stderr).contains("/nowhere/at/all"));
}
