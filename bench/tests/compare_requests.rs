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
