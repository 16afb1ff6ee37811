//! `felix-bench compare-requests` as a person starts it. Nothing is demanded of the figures but that they are there and clean.

use std::process::Command;

use serde_json::Value;

#[test]
fn requests_of_a_broker_and_of_a_sink_are_compared_from_the_command_line() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_felix-bench"));
    command.args(["compare-requests", "--rounds", "1", "--seconds", "0.3", "--warmup", "0.1", "--dir"]);
    let output = command.arg(folder.path()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    // 4: a bound was not kept, which says nothing here.
    assert!(matches!(output.status.code(), Some(0 | 4)), "{:?}\n{said}", output.status);
    let line: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(line["clean"], true, "{line}\n{said}");
}

#[test]
fn a_cache_of_many_keys_is_served_again_after_a_stop_and_after_a_kill() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_felix-bench"));
    command.args(["restart", "--keys", "3000", "--json", "--dir"]).arg(folder.path());
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(matches!(output.status.code(), Some(0 | 4)), "{:?}\n{said}", output.status);
    let line: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&line["clean"], &line["keys"]), (&true.into(), &3_000.into()), "{line}\n{said}");
    for seconds in ["after_stop_s", "after_kill_s"] {
        assert!(line[seconds].as_f64().unwrap() > 0.0, "{line}");
    }
    assert!(line["file_bytes"].as_u64().unwrap() > 3_000 * 256, "{line}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "what was made is removed");
}
