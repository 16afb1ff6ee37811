//! The command line without a server: usage, settings, exit statuses.
#![cfg(feature = "cli")]

mod cli;

use std::path::Path;

use cli::{Place, felix, run, run_with_input};

/// An address where nobody listens: bound, and closed again.
fn closed_url() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}

#[test]
fn wrong_usage_is_status_2_and_help_is_0() {
    let nowhere = Path::new("/nowhere");
    run(nowhere, &["--help"]).ok();
    run(nowhere, &["stream", "create", "--help"]).ok();
    run(nowhere, &["--version"]).ok();
    for arguments in [
        &["pub"][..],
        &["stream"],
        &["frobnicate"],
        &["stream", "create", "s", "--shards", "0"],
        &["sub", "s", "--from", "yesterday"],
        &["sub", "s", "--output", "table"],
        &["sub", "s", "--show-offsets", "--output", "yaml"],
        &["stream", "create", "s", "--retention-bytes", "10GB"],
        &["stream", "create", "s", "--retention-seconds", "0"],
        &["pub", "s", "--retry-for", "soon"],
        &["pub", "s", "--rate", "0"],
        &["pub", "s", "--key", "k", "--key-column", "1"],
        &["pub", "s", "--ack", "maybe"],
        &["token", "create", "--permission", "stream.eat:stream:a/b/c"],
        &["cache", "get", "c"],
        &["cache", "put", "c", "k", "v", "--ttl", "0"],
        &["cache", "put", "c", "k", "v", "--ttl", "-1s"],
        &["cache", "put", "c", "k", "v", "--ttl", "18446744073709551615d"],
        &["cache", "put", "c", "k", "v", "--if-absent", "--if-version", "1"],
        &["cache", "watch", "c"],
        &["cache", "watch", "c", "k", "--prefix", "p"],
        &["cache", "watch", "c", "k", "--shard", "1"],
        &["cache", "watch", "c", "k", "--from", "now"],
        &["cache", "create", "c", "--shards", "0"],
        &["group", "poll", "s"],
        &["group", "poll", "s", "g", "--max", "0"],
        &["group", "poll", "s", "g", "--max", "1001"],
        &["group", "poll", "s", "g", "--count", "1"],
        &["group", "ack", "s", "g"],
        &["group", "ack", "s", "g", "0"],
        &["group", "nack", "s", "g", "0/1/0"],
        &["group", "seek", "s", "g", "--to", "middle"],
        &["group", "dead", "redrive", "s", "g"],
        &["group", "dead", "redrive", "s", "g", "0/1", "--all"],
        &["commit", "s"],
        &["state", "get", "s", "e"],
        &["counter", "add", "c", "n", "1.5"],
        &["counter", "add", "c", "n", "9223372036854775808"],
        &["dev", "--set", "quic_bind=0.0.0.0:1"],
        &["dev", "--token-ttl", "soon"],
    ] {
        run(nowhere, arguments).fails(2, "");
    }
}

#[test]
fn missing_settings_are_status_2_and_name_the_flag() {
    let nowhere = Path::new("/nowhere");
    run(nowhere, &["stream", "ls"]).fails(2, "--controlplane-url");
    run(nowhere, &["sub", "s"]).fails(2, "--tenant");
    run(nowhere, &["--tenant", "t", "sub", "s"]).fails(2, "--brokers");
    run(nowhere, &["--tenant", "t", "sub", "s", "--show-offsets", "--output", "json"]).fails(2, "json has");
    run(nowhere, &["--dev", "/nowhere/f.json", "stream", "ls"]).fails(2, "/nowhere/f.json");
    run(nowhere, &["--context", "other", "stream", "ls"]).fails(2, "other.json");
    run(nowhere, &["token", "create", "--permission", "node.view:cluster:*"]).fails(2, "felix dev");
    run(nowhere, &["--controlplane-url", "https://x", "tenant", "ls"]).fails(2, "http://");
}

#[test]
fn nobody_listening_is_status_3_also_as_json() {
    let (nowhere, url) = (Path::new("/nowhere"), closed_url());
    run(nowhere, &["--controlplane-url", &url, "tenant", "ls"]).fails(3, "no answer");
    let done = run(nowhere, &["--controlplane-url", &url, "tenant", "ls", "--output", "json"]);
    assert_eq!((done.status, done.stdout.as_str()), (3, ""));
    let error: serde_json::Value = serde_json::from_str(&done.stderr).unwrap();
    assert_eq!(error["error"]["kind"], "unreachable");
    assert_eq!(error["error"]["status"], 3);
}

#[test]
fn a_failure_is_one_line_also_with_backtraces_on() {
    let (nowhere, url) = (Path::new("/nowhere"), closed_url());
    for (arguments, status) in [
        (&["--dev", "/nowhere/f.json", "stream", "ls"][..], 2),
        (&["--controlplane-url", &url, "tenant", "ls"], 3),
        (&["dev", "--data-dir", "/proc/none", "--port", "0"], 1),
    ] {
        let output = felix(nowhere, arguments).env("RUST_BACKTRACE", "1").output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(status), "{errors}");
        assert!(errors.starts_with("felix: ") && errors.lines().count() == 1, "{errors}");
    }
}

#[test]
fn a_destructive_command_off_a_terminal_needs_yes() {
    let (nowhere, url) = (Path::new("/nowhere"), closed_url());
    let remove = ["--controlplane-url", &url, "--tenant", "t", "stream", "rm", "s"];
    run(nowhere, &remove).fails(2, "--yes");
    run(nowhere, &[&remove[..], &["--yes"]].concat()).fails(3, "no answer");
}

#[test]
fn a_token_is_shown_from_standard_input() {
    // {"iss":"felix-auth","aud":"felix-broker","sub":"me","tid":"t","iat":1,"exp":2,"perms":[]}
    let claims = "eyJpc3MiOiJmZWxpeC1hdXRoIiwiYXVkIjoiZmVsaXgtYnJva2VyIiwic3ViIjoibWUiLCJ0aWQiOiJ0IiwiaWF0IjoxLCJl\
                  eHAiOjIsInBlcm1zIjpbXX0";
    let token = format!("e30.{claims}.c2ln\n");
    let place = Place::new();
    let shown = place.run_with_input(&["token", "info", "--output", "json"], token.as_bytes()).json();
    assert_eq!(shown["sub"], "me");
    let table = place.run_with_input(&["token", "info"], token.as_bytes()).ok();
    assert!(table.lines().any(|line| line.split_whitespace().eq(["tid", "t"])), "{table}");
    run_with_input(&place.contexts(), &["token", "info", "-"], b"garbage").fails(2, "no token");
}

#[test]
fn a_server_program_that_is_missing_is_named() {
    let place = Place::new();
    let done = place.dev(&[]).env("FELIX_BIN_DIR", place.contexts()).output().unwrap();
    cli::Done::from(done).fails(1, "felix-ctrl");
    assert!(!place.ready_file().exists());
}

#[test]
fn inspect_is_the_brokers_with_its_arguments_streams_and_status() {
    use std::os::unix::fs::PermissionsExt;

    let folder = tempfile::tempdir().unwrap();
    let inspect = |arguments: &[&str]| {
        let arguments = [&["inspect"], arguments].concat();
        let output = felix(folder.path(), &arguments).env("FELIX_BIN_DIR", folder.path()).output().unwrap();
        cli::Done::from(output)
    };
    inspect(&["log", "/nowhere"]).fails(2, "there is no felix-broker in");
    let program = folder.path().join("felix-broker");
    std::fs::write(&program, "#!/bin/sh\nfor a in \"$@\"; do echo \"$a\"; done\necho said >&2\nexit 1\n")
        .unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    for arguments in [
        &["log", "/a folder", "--json", "--shard", "0f", "--tenant"][..],
        &["log", "--help"],
        &["--help"],
        &["-h"],
    ] {
        let done = inspect(arguments);
        assert_eq!((done.status, done.stderr.as_str()), (1, "said\n"), "{done:?}");
        let passed: Vec<&str> = done.stdout.lines().collect();
        assert_eq!(passed, [&["inspect"], arguments].concat());
    }
}
