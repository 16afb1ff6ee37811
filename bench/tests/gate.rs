//! The table and the drift from the command line. Scope: real processes on loopback; the figures of such short windows are
//! not looked at.

use std::os::unix::process::CommandExt;
use std::process::{Command, Output};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use felix_bench::cluster::DevBroker;
use serde_json::Value;

fn on_disk() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// It leads a process group, so it gets no scheduling weight of its own: other tests run beside it.
fn bench(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_felix-bench"));
    command.args(args).process_group(0).output().unwrap()
}

fn line(output: &Output) -> Value {
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}\n{}", errors(output)))
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn rows_of_the_table_are_measured_and_judged() {
    let folder = on_disk();
    let dir = folder.path().to_str().unwrap();
    let rows =
        ["bulk", "idle-memory", "wrong-core", "readers-10", "latency-beside", "commit-latency", "drift"];
    let mut args = vec!["gate", "--quick", "--seconds", "0.2", "--output", "json", "--dir", dir];
    rows.iter().for_each(|row| args.extend(["--row", row]));
    let output = bench(&args);
    let report = line(&output);
    let of = |name: &str| {
        let rows = report["rows"].as_array().unwrap();
        rows.iter().find(|row| row["name"] == name).unwrap_or_else(|| panic!("no {name}")).clone()
    };
    for name in &rows[..6] {
        let row = of(name);
        assert_ne!(row["outcome"], "failed", "{row}\n{}", errors(&output));
        assert!(row["median"].as_f64().unwrap() > 0.0, "{row}");
        // A busy machine may have windows in which nothing was answered, and more rounds are run where they differ.
        let rounds = row["rounds"].as_array().unwrap().len();
        assert!((1..=5).contains(&rounds), "{row}");
        for trial in row["of"]["trials"].as_array().unwrap() {
            assert_eq!(trial["clean"], true, "{row}");
        }
    }
    assert_eq!(of("drift")["outcome"], "not_run");
    assert_eq!(of("idle-memory")["outcome"], "stated", "it has an aim alone");
    // Whether figures are good is not asked here; that the status says so is.
    let bad = |row: &Value| row["outcome"] == "falls_short" || row["outcome"] == "failed";
    let fell_short = report["rows"].as_array().unwrap().iter().any(bad);
    assert_eq!(output.status.code(), Some(i32::from(fell_short)));
    assert_eq!(report["passed"], !fell_short);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "what was made is removed");
}

#[test]
fn a_row_that_is_not_in_the_table_is_refused_with_those_that_are() {
    let output = bench(&["gate", "--row", "bulky"]);
    assert_eq!(output.status.code(), Some(1));
    let errors = errors(&output);
    assert!(errors.contains("no row is called bulky") && errors.contains("commit-bulk"), "{errors}");
}

#[test]
fn a_drift_is_told_over_equal_windows() {
    let folder = on_disk();
    let dir = folder.path().to_str().unwrap();
    let args =
        ["drift", "--windows", "4", "--seconds", "0.4", "--size", "256", "--output", "json", "--dir", dir];
    let output = bench(&args);
    let report = line(&output);
    let windows = report["windows"].as_array().unwrap();
    assert_eq!(windows.len(), 4);
    for window in windows {
        assert!(window["batches_per_s"].as_f64().unwrap() > 0.0, "{window}");
        assert!(window["resident_bytes"].as_u64().unwrap() > 1 << 20, "{window}");
        assert!((0.3..0.8).contains(&window["seconds"].as_f64().unwrap()), "{window}");
    }
    assert_eq!(report["clean"], true, "{report}");
    assert_eq!(output.status.code(), Some(i32::from(report["holds"] == false)));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "what was made is removed");
    let output = bench(&["drift", "--windows", "3"]);
    assert_eq!(output.status.code(), Some(2), "the last would be the third");
}

#[test]
fn a_broker_of_the_bench_gives_tokens_that_outlast_its_longest_load() {
    let folder = on_disk();
    let broker = DevBroker::start(folder.path(), "0", &[]).unwrap();
    let token = std::fs::read_to_string(&broker.ready().token_file).unwrap();
    let claims = token.split('.').nth(1).unwrap();
    let claims: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims).unwrap()).unwrap();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let left = claims["exp"].as_u64().unwrap().saturating_sub(now);
    assert!(left > 12 * 3_600, "{left} s, and a drift alone takes 20 minutes");
}
