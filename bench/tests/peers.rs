//! What stands beside the broker, from the command line: an echo, and servers that may not be there. Scope: real processes
//! on loopback; no figure is judged, and no server of others is needed.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn on_disk() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// `felix-bench` with no server of others to be found, except those in `env`.
fn bench(args: &[&str], env: &[(&str, &Path)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_felix-bench"));
    command.args(args);
    for name in ["FELIX_NATS_SERVER", "FELIX_REDIS_SERVER", "FELIX_REDIS_BENCHMARK"] {
        command.env(name, "/nowhere/at/all");
    }
    command.envs(env.iter().copied()).output().unwrap()
}

fn line(output: &Output) -> Value {
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}\n{}", errors(output)))
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn an_echo_and_a_broker_are_compared_from_the_command_line() {
    let folder = on_disk();
    let dir = folder.path().to_str().unwrap();
    let args = ["compare-echo", "--rounds", "1", "--warmup", "0.1", "--seconds", "0.2", "--dir", dir];
    let output = bench(&args, &[]);
    assert!(output.status.success(), "{}", errors(&output));
    let report = line(&output);
    let cases = report["cases"].as_array().unwrap();
    let modes: Vec<&str> = cases.iter().map(|case| case["mode"].as_str().unwrap()).collect();
    assert_eq!(modes, ["spinning", "parked", "on_commit"]);
    for case in cases {
        for side in ["echo", "broker"] {
            assert!(case[side]["p50_us"]["median"].as_f64().unwrap() > 0.0, "{case}");
            assert_eq!(case[side]["clean"], true, "{case}");
        }
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "what was made is removed");
}

#[test]
fn servers_that_are_not_there_are_rows_that_say_so() {
    let folder = on_disk();
    let dir = folder.path().to_str().unwrap();
    let args = ["peers", "--rounds", "1", "--warmup", "0.1", "--duration", "0.4", "--dir", dir];
    let output = bench(&args, &[]);
    assert!(output.status.success(), "{}", errors(&output));
    let report = line(&output);
    for row in report["rows"].as_array().unwrap() {
        let name = row["name"].as_str().unwrap();
        assert!(!row["says"].as_str().unwrap().is_empty() && !row["differs"].as_str().unwrap().is_empty());
        if name.starts_with("felix") || name == "sink" {
            assert!(row["figures"]["records_per_s"]["median"].as_f64().unwrap() > 0.0, "{row}");
        } else {
            assert!(row["refused"]["missing"].is_string() && row["figures"].is_null(), "{row}");
        }
    }
}

#[test]
fn a_server_that_was_asked_for_must_be_there() {
    let folder = on_disk();
    let dir = folder.path().to_str().unwrap();
    let output = bench(&["peers", "--only", "redis-xadd-always", "--dir", dir], &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(errors(&output).contains("no program `redis-server`"), "{}", errors(&output));
    let output = bench(&["peers", "--only", "kafka", "--dir", dir], &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(errors(&output).contains("nothing is called kafka"), "{}", errors(&output));
}

#[cfg(unix)]
#[test]
fn a_server_that_ends_at_once_is_an_error_with_its_words() {
    use std::os::unix::fs::PermissionsExt;
    let folder = on_disk();
    let server = folder.path().join("redis-server");
    std::fs::write(&server, "#!/bin/sh\necho no room for me\nexit 3\n").unwrap();
    std::fs::set_permissions(&server, std::fs::Permissions::from_mode(0o755)).unwrap();
    let dir = folder.path().to_str().unwrap();
    let args = ["peers", "--only", "redis-get", "--rounds", "1", "--dir", dir];
    let output = bench(&args, &[("FELIX_REDIS_SERVER", &server)]);
    assert_eq!(output.status.code(), Some(1));
    assert!(errors(&output).contains("no room for me"), "{}", errors(&output));
}
