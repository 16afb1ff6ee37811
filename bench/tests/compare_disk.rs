//! `felix-bench compare-disk` as a person starts it: what it refuses, and a small run of each case on the disk below the
//! target folder. Nothing is demanded of the figures but that they are there and clean.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

/// One round of a second with little to write.
const SMALL: [&str; 8] = ["--rounds", "1", "--seconds", "1", "--history-mib", "8", "--keep-mib", "16"];
/// Every bound at nothing.
const NO_BOUNDS: [&str; 8] = [
    "--min-write-ratio",
    "0",
    "--min-shards-ratio",
    "0",
    "--min-history-ratio",
    "0",
    "--min-live-ratio",
    "0",
];

fn compare_disk(dir: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_felix-bench"));
    command.arg("compare-disk").arg("--dir").arg(dir).args(args);
    command.output().unwrap()
}

/// A folder that is not in memory.
fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// The report of one small run of `case`, which must be clean and passed.
fn small(case: &str) -> Value {
    let folder = folder();
    let args = [&SMALL[..], &NO_BOUNDS, &["--case", case, "--json"]].concat();
    let output = compare_disk(folder.path(), &args);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{}: {said}", output.status);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&report["kind"], &report["passed"], &report["clean"]),
        (&"compare-disk".into(), &true.into(), &true.into())
    );
    assert!(report["file_system"]["kind"].is_string() && report["machine"]["commit"].is_string());
    let cases = ["write", "shards", "history"];
    let there: Vec<&str> = cases.into_iter().filter(|case| report[*case].is_object()).collect();
    assert_eq!(there, [case]);
    let left = std::fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(left, 0, "what was made is removed");
    report[case].clone()
}

/// A figure that is above nothing.
fn above_nothing(value: &Value) -> f64 {
    let number = value.as_f64().unwrap_or_else(|| panic!("{value} is no number"));
    assert!(number > 0.0, "{number}");
    number
}

#[test]
fn a_write_case_has_all_its_figures() {
    let case = small("write");
    for series in ["raw_group", "raw_each", "raw_single", "broker", "broker_s_per_gb", "ack_p50_us"] {
        above_nothing(&case[series]["median"]);
        assert_eq!(case[series]["rounds"].as_array().map(Vec::len), Some(1), "{series}");
    }
    let syncs = &case["syncs"];
    above_nothing(&syncs["syncs"]);
    // Bulk batches are larger than what goes through the commit file.
    assert!(above_nothing(&syncs["bytes_per_sync"]) > 64.0 * 1_024.0, "{syncs}");
    let (group, each, broker) = (&case["raw_group"], &case["raw_each"], &case["broker"]);
    let best = above_nothing(&group["median"]).max(above_nothing(&each["median"]));
    let ratio = above_nothing(&broker["median"]) / best;
    assert!((above_nothing(&case["ratio"]) - ratio).abs() < 1e-9);
}

#[test]
fn a_shards_case_has_both_sides() {
    let case = small("shards");
    assert_eq!((&case["one"]["shards"], &case["many"]["shards"]), (&1.into(), &48.into()));
    let rate = |side: &str| above_nothing(&case[side]["batches_per_s"]["median"]);
    assert!((above_nothing(&case["ratio"]) - rate("many") / rate("one")).abs() < 1e-9);
    above_nothing(&case["many"]["syncs"]["batches_per_sync"]);
}

#[test]
fn a_history_case_reads_what_was_preloaded_beside_a_publisher() {
    let case = small("history");
    for series in ["raw_reads", "history", "live_alone", "live_beside"] {
        above_nothing(&case[series]["median"]);
    }
    assert!(above_nothing(&case["history_bytes"]) >= 8.0 * 1024.0 * 1024.0);
}

#[test]
fn a_bound_that_is_not_kept_is_a_status_of_its_own() {
    let folder = folder();
    let args = [&SMALL[..], &["--min-shards-ratio", "1000", "--case", "shards"]].concat();
    let output = compare_disk(folder.path(), &args);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(4), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("NOT REACHED"), "{said}");
}

#[test]
fn a_folder_in_memory_is_refused_before_anything_is_started() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let output = compare_disk(folder.path(), &[]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("tmpfs") && said.contains("--dir"), "{said}");
}

#[test]
fn arguments_out_of_their_bounds_are_wrong_usage() {
    let folder = folder();
    for args in [
        ["--case", "everything"],
        ["--rounds", "0"],
        ["--seconds", "0"],
        ["--seconds", "nan"],
        ["--inflight", "65"],
        ["--live-rate", "-1"],
        ["--history-mib", "0"],
    ] {
        let output = compare_disk(folder.path(), &args);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    let missing = compare_disk(&folder.path().join("nothing"), &[]);
    assert_eq!(missing.status.code(), Some(1));
}
