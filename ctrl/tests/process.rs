//! The real binary: ready file, configuration, signals, connections that misbehave.

mod program;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

use program::{BINARY, Program, Start, wait_for};
use serde_json::json;

#[test]
fn it_starts_on_free_ports_and_tells_where() {
    let folder = tempfile::tempdir().unwrap();
    let mut program = Program::start(folder.path(), Start::default());
    let ready_file = folder.path().join("ready.json");
    let mode = {
        use std::os::unix::fs::PermissionsExt;
        ready_file.metadata().unwrap().permissions().mode()
    };
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(program.ready["pid"], program.pid());
    for (base, path) in [
        ("controlplane_url", "/v1/system/health"),
        ("controlplane_url", "/v1/system/ready"),
        ("metrics_url", "/live"),
        ("metrics_url", "/ready"),
        ("metrics_url", "/metrics"),
    ] {
        assert_eq!(program.get(base, path, "").unwrap().0, 200, "{path}");
    }
    let info = program.get("controlplane_url", "/v1/system/info", "").unwrap().1;
    assert_eq!(info["features"]["durable_storage"], true);
    assert!(program.terminate(Duration::from_secs(5)).success());
    assert!(!ready_file.exists(), "the addresses are nobody's any more");
}

#[test]
fn a_catalog_is_found_again_and_a_second_process_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut first = Program::start(folder.path(), Start::default());
    let token = first.bootstrap_and_token("t");
    let made = first.post("/v1/tenants/t/namespaces", &token, json!({"namespace": "n"})).unwrap();
    assert_eq!(made.0, 201);
    let second = Command::new(BINARY)
        .args(["--dev", "--bind", "127.0.0.1:0", "--metrics-bind", "127.0.0.1:0", "--data-dir"])
        .arg(folder.path().join("data"))
        .output()
        .unwrap();
    assert!(!second.status.success());
    assert!(String::from_utf8_lossy(&second.stderr).contains("in use"), "{second:?}");
    assert!(first.terminate(Duration::from_secs(5)).success());
    let again = Program::start(folder.path(), Start::default());
    let found = again.get("controlplane_url", "/v1/tenants/t/namespaces", &token).unwrap();
    assert_eq!((found.0, &found.1["items"][0]["namespace"]), (200, &json!("n")));
}

#[test]
fn a_signal_answers_waiting_polls_and_ends_within_the_budget() {
    let folder = tempfile::tempdir().unwrap();
    let mut program = Program::start(folder.path(), Start::default());
    let token = program.bootstrap_and_token("t");
    let snapshot = program.get("controlplane_url", "/v1/shard-assignments/snapshot", &token).unwrap().1;
    let since = snapshot["next_seq"].as_u64().unwrap();
    // Sent whole before the signal; the answer must still come.
    let mut polling = TcpStream::connect(program.address("controlplane_url")).unwrap();
    polling.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let path = format!("/v1/shard-assignments/changes?since={since}&wait_ms=25000");
    write!(polling, "GET {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n\r\n").unwrap();
    // A connection that says nothing must not hold the end up.
    let _silent = TcpStream::connect(program.address("controlplane_url")).unwrap();
    wait_for("the poll to be inside", || {
        let mut metrics = program.raw("metrics_url", "/metrics");
        metrics.retain(|c| c != '\r');
        // The request for the metrics is one of the two.
        metrics.lines().any(|line| line == "felix_inflight_requests 2")
    });
    let began = Instant::now();
    assert!(program.terminate(Duration::from_secs(10)).success());
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
    let mut answer = String::new();
    polling.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(answer.ends_with(&json!({"items": [], "next_seq": since}).to_string()), "{answer}");
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let slow = Start { environment: &[("FELIX_SHUTDOWN_PREDRAIN_MS", "600000")] };
    let mut program = Program::start(folder.path(), slow);
    program.signal("TERM");
    wait_for("readiness to go", || {
        program.get("metrics_url", "/ready", "").is_ok_and(|(status, _)| status == 503)
    });
    assert_eq!(program.get("controlplane_url", "/v1/system/live", "").unwrap().0, 200, "it still serves");
    assert!(program.terminate(Duration::from_secs(5)).success());
}

#[test]
fn hostile_bytes_close_their_own_connection_only() {
    let folder = tempfile::tempdir().unwrap();
    let program = Program::start(folder.path(), Start::default());
    let long_head = format!("GET / HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(1 << 20));
    for bytes in [&b"\x00\xff\x80garbage\r\n\r\n"[..], b"GET / HTTP/9.9\r\n\r\n", long_head.as_bytes()] {
        let mut stream = TcpStream::connect(program.address("controlplane_url")).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        // The other side may close while this is still writing.
        let _ = stream.write_all(bytes);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let head = String::from_utf8_lossy(&answer[..answer.len().min(12)]).into_owned();
        assert!(answer.is_empty() || head.starts_with("HTTP/1.1 4"), "{head}");
        assert_eq!(program.get("controlplane_url", "/v1/system/live", "").unwrap().0, 200);
    }
}

#[test]
fn settings_are_printed_with_their_origin_and_bad_ones_refused() {
    let run = |arguments: &[&str]| {
        let output = Command::new(BINARY).args(arguments).env("FELIX_REGION_ID", "eu").output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.success(), text(&output.stdout), text(&output.stderr))
    };
    let (ok, out, _) = run(&["config", "print", "--origin", "--data-dir", "d", "--bind", "127.0.0.1:1"]);
    assert!(ok);
    assert!(out.contains("region_id = \"eu\"  # environment FELIX_REGION_ID"), "{out}");
    assert!(out.contains("bind = \"127.0.0.1:1\"  # flag --bind"), "{out}");
    let (ok, _, err) = run(&[]);
    assert!(!ok && err.contains("data_dir"), "{err}");
    let (ok, _, err) = run(&["--dev", "--data-dir", "d"]);
    assert!(!ok && err.contains("loopback"), "{err}");
    let (ok, _, err) = run(&["--data-dri", "d"]);
    assert!(!ok && err.contains("--data-dir"), "{err}");
}

#[test]
fn a_failure_is_one_line_with_status_2_for_configuration_and_1_otherwise_also_with_backtraces_on() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ctrl.toml");
    std::fs::write(&file, "bindd = 1\n").unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let config = ["--config", file.to_str().unwrap()];
    let log_level = ["--storage-backend", "memory", "--log-level", "=="];
    let bind = ["--storage-backend", "memory", "--metrics-bind", "127.0.0.1:0", "--bind", &taken];
    let bad_value = ["--storage-backend", "memory", "--bind", "127.0.0.1:0", "--metrics-bind", "127.0.0.1:0"];
    let cases: [(&[&str], i32, &str); 5] = [
        (&[], 2, "data_dir"),
        (&config, 2, "did you mean `bind`?"),
        (&log_level, 2, "log_level"),
        (&bad_value, 2, "expiry_timeout_ms"),
        (&bind, 1, &taken),
    ];
    for (arguments, status, words) in cases {
        let mut command = Command::new(BINARY);
        command.env_clear().env("RUST_BACKTRACE", "1").args(arguments);
        if arguments == bad_value {
            command.env("FELIX_NODE_EXPIRY_TIMEOUT_MS", "soon");
        }
        let output = command.output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        let own: Vec<&str> = errors.lines().filter(|line| line.starts_with("felix-ctrl: ")).collect();
        assert_eq!((output.status.code(), own.len()), (Some(status), 1), "{arguments:?}: {errors}");
        assert!(own[0].contains(words) && !errors.contains("backtrace"), "{errors}");
        assert_eq!(errors.lines().last(), Some(own[0]), "{errors}");
    }
}
