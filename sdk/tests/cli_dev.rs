//! `felix dev` with the real servers: start, service, failures, end. The server programs are beside `felix`.
#![cfg(feature = "cli")]

mod cli;

use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use cli::{Done, Ended, Place, lives, wait_for};

/// Lines whose first column is one of 101 keys.
fn keyed(numbers: std::ops::Range<u32>) -> Vec<String> {
    numbers.map(|line| format!("key-{},{line}", line * 7 % 101)).collect()
}

fn publish_keyed(stream: &str) -> [&str; 6] {
    ["pub", stream, "--key-column", "1", "--key-separator", ","]
}

/// Every line that was sent was read, once, none else, and those of each key in the order of sending.
#[track_caller]
fn in_order_per_key(sent: &[String], read: &str) {
    fn by_key<'a>(lines: impl Iterator<Item = &'a str>) -> BTreeMap<&'a str, Vec<&'a str>> {
        let mut keys: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for line in lines {
            keys.entry(line.split(',').next().unwrap_or_default()).or_default().push(line);
        }
        keys
    }
    assert_eq!(read.lines().count(), sent.len());
    let (sent, read) = (by_key(sent.iter().map(String::as_str)), by_key(read.lines()));
    for (key, lines) in &sent {
        assert_eq!(read.get(key), Some(lines), "{key}");
    }
}

#[test]
fn the_ready_file_says_everything_is_private_and_is_gone_after_an_ordered_end() {
    let place = Place::new();
    let dev = place.start(&[]);
    let file = dev.file();
    for member in ["broker_addr", "controlplane_url", "metrics_url", "tenant", "namespace"] {
        assert!(file[member].is_string(), "{member} in {file}");
    }
    for member in ["token_file", "controlplane_token_file", "bootstrap_token_file", "ca_file"] {
        let path = file[member].as_str().unwrap();
        let mode = std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{path}");
    }
    let mode = std::fs::metadata(place.ready_file()).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o600);
    let (ctrl, broker) = (dev.pid("ctrl"), dev.pid("broker"));
    assert!(lives(ctrl) && lives(broker));
    let context = place.contexts().join("dev.json");
    let saved = std::fs::read(&context).unwrap();
    // A demonstration beside it takes nothing from those that use this cluster.
    let beside = Place::new();
    let mut demo = beside.dev(&["--demo"]);
    Done::from(demo.env("FELIX_CONTEXT_DIR", place.contexts()).output().unwrap()).ok();
    assert_eq!(std::fs::read(&context).unwrap(), saved);
    dev.stop();
    assert!(!place.ready_file().exists() && !context.exists());
    assert!(!lives(ctrl) && !lives(broker));
}

#[test]
fn with_two_clusters_commands_find_the_last_one_and_then_the_one_that_still_runs() {
    let (first, second) = (Place::new(), Place::new());
    let contexts = first.contexts();
    let publish = |line: &str| drop(cli::run_with_input(&contexts, &["pub", "orders"], line.as_bytes()).ok());
    let in_first = || {
        let ready = first.ready_file();
        let all = ["sub", "orders", "--from", "earliest", "--until-end", "--dev", ready.to_str().unwrap()];
        cli::run(&contexts, &all).ok()
    };
    let dev_1 = first.start(&[]);
    let dev_2 = second.start_in(&contexts, &[]);
    publish("to the second\n");
    // A server of the first one that comes back takes nothing from the second.
    let killed = dev_1.pid("broker");
    cli::signal(killed, "KILL");
    wait_for("another broker", || (dev_1.pid("broker") != killed).then_some(()));
    publish("to the second\n");
    assert_eq!(in_first(), "");
    dev_2.stop();
    publish("to the first\n");
    assert_eq!(in_first(), "to the first\n");
    // One that was killed leaves its context behind.
    drop(second.start_in(&contexts, &[]));
    publish("again\n");
    assert_eq!(in_first(), "to the first\nagain\n");
    dev_1.stop();
    let running = contexts.join("running");
    assert_eq!(std::fs::read_dir(&running).unwrap().count(), 1, "what the killed one left");
    first.start(&[]).stop();
    assert_eq!(std::fs::read_dir(&running).unwrap().count(), 0);
    cli::run(&contexts, &["stream", "ls"]).fails(2, "no control plane is known");
    // The broker left the names of streams beside their logs.
    let log = first.data().join("broker/log");
    let shown = cli::run(&contexts, &["inspect", "log", log.to_str().unwrap()]).ok();
    assert!(shown.contains("  demo/default/orders/0\n"), "{shown}");
}

#[test]
fn a_stream_is_served_when_its_creation_returns() {
    let place = Place::new();
    let dev = place.start(&[]);
    for number in 0..10 {
        let name = format!("made-{number}");
        let shards = (1 + number * 7).to_string();
        place.run(&["stream", "create", &name, "--shards", &shards]).ok();
        // Asked once: nothing here waits for anything.
        let shown = place.run(&["shard", "ls", "--name", &name, "--cores", "--output", "json"]).json();
        let shown = shown.as_array().unwrap();
        assert_eq!(shown.len().to_string(), shards);
        assert!(shown.iter().all(|shard| shard["core"].is_u64()), "{shown:?}");
    }
    // A broker that does not answer: the stream is there, and what is not known is said.
    let broker = dev.pid("broker");
    cli::signal(broker, "STOP");
    let create = ["stream", "create", "later"];
    let done = place.run(&create);
    let quick = place.run(&[&create[..], &["--no-wait"]].concat());
    cli::signal(broker, "CONT");
    assert!(done.stderr.contains("it may not be served yet: after 5 s no broker has answered"), "{done:?}");
    done.ok();
    assert!(quick.stderr.contains("exists already") && !quick.stderr.contains("served"), "{quick:?}");
    dev.stop();
}

#[test]
fn records_go_through_in_every_framing_and_rendering() {
    let place = Place::new();
    let dev = place.start(&[]);
    place.run_with_input(&["pub", "events"], b"one\n\nthree").ok();
    let sub = ["sub", "events", "--from", "earliest", "--count"];
    assert_eq!(place.run(&[&sub[..], &["3"]].concat()).ok(), "one\n\nthree\n");
    let json = place.run(&[&sub[..], &["1", "--output", "json"]].concat()).json();
    assert_eq!(json, serde_json::json!({ "shard": 0, "offset": 0, "payload": "one" }));
    let raw = place.run(&[&sub[..], &["3", "--output", "raw"]].concat()).ok();
    assert_eq!(raw, "\0\0\0\x03one\0\0\0\0\0\0\0\x05three");
    for ack in ["none", "message", "batch"] {
        let counted = ["pub", "events", "--framing", "length", "--ack", ack, "--output", "json"];
        let summary = place.run_with_input(&counted, raw.as_bytes()).json();
        assert_eq!((summary["sent"].as_u64(), summary["acknowledged"].as_u64()), (Some(3), Some(3)));
    }
    let whole = place.data().join("whole");
    std::fs::write(&whole, b"a\nb\n").unwrap();
    place.run(&["pub", "events", "--framing", "whole", whole.to_str().unwrap()]).ok();
    let all = place.run(&[&sub[..], &["13"]].concat()).ok();
    assert_eq!(all, format!("{}a\nb\n\n", "one\n\nthree\n".repeat(4)));
    let later = place.run(&["sub", "events", "--from", "11", "--count", "2", "--shard", "0"]).ok();
    assert_eq!(later, "three\na\nb\n\n");
    dev.stop();
}

#[test]
fn keyed_lines_over_four_shards_arrive_complete_and_in_order_per_key() {
    let place = Place::new();
    let dev = place.start(&[]);
    place.run(&["stream", "create", "parcels", "--shards", "4"]).ok();
    let lines = keyed(0..20_000);
    let count = lines.len().to_string();
    let reader = place.subscribe(&["parcels", "--count", &count]);
    place.run_with_input(&publish_keyed("parcels"), (lines.join("\n") + "\n").as_bytes()).ok();
    let read = Done::from(reader.wait_with_output().unwrap()).ok();
    in_order_per_key(&lines, &read);
    dev.stop();
}

#[test]
fn a_second_start_finds_its_catalog_and_its_authority_again() {
    let place = Place::new();
    let dev = place.start(&[]);
    let authority = std::fs::read(dev.file()["ca_file"].as_str().unwrap()).unwrap();
    place.run(&["stream", "create", "parcels", "--shards", "3"]).ok();
    dev.stop();
    let dev = place.start(&[]);
    assert_eq!(std::fs::read(dev.file()["ca_file"].as_str().unwrap()).unwrap(), authority);
    assert_eq!(place.run(&["stream", "info", "parcels", "--output", "json"]).json()["shards"], 3);
    place.run_with_input(&["pub", "parcels"], b"still here\n").ok();
    dev.stop();
}

#[test]
fn a_server_that_is_killed_is_back_on_the_same_ports_and_the_file_says_so() {
    let place = Place::new();
    let dev = place.start(&[]);
    let before = dev.file();
    for server in ["broker", "ctrl"] {
        let killed = dev.pid(server);
        cli::signal(killed, "KILL");
        wait_for("a new process in the ready file", || (dev.pid(server) != killed).then_some(()));
        let after = dev.file();
        for member in ["broker_addr", "controlplane_url", "metrics_url", "bootstrap_url"] {
            assert_eq!(after[member], before[member], "{member} after {server}");
        }
        place.run_with_input(&["pub", "events"], b"again\n").ok();
        place.run(&["stream", "ls"]).ok();
    }
    dev.stop();
}

#[test]
fn a_durable_stream_keeps_its_records_over_a_stop_and_a_killed_broker() {
    let place = Place::new();
    let dev = place.start(&[]);
    let lines = keyed(0..6_000);
    let publish = publish_keyed("orders");
    let text = |from: usize, to: usize| lines[from..to].join("\n") + "\n";
    let read = || place.run(&["sub", "orders", "--from", "earliest", "--until-end"]).ok();
    place.run_with_input(&publish, text(0, 2_000).as_bytes()).ok();
    dev.stop();
    let dev = place.start(&[]);
    in_order_per_key(&lines[..2_000], &read());
    // Killed when everything is acknowledged.
    place.run_with_input(&publish, text(2_000, 4_000).as_bytes()).ok();
    let killed = dev.pid("broker");
    cli::signal(killed, "KILL");
    wait_for("a new process in the ready file", || (dev.pid("broker") != killed).then_some(()));
    in_order_per_key(&lines[..4_000], &read());
    // Killed while a publisher is in the middle.
    let mut publisher = cli::felix(&place.contexts(), &publish).stdin(Stdio::piped()).spawn().unwrap();
    let mut input = publisher.stdin.take().unwrap();
    input.write_all(text(4_000, 5_000).as_bytes()).unwrap();
    wait_for("records of that publisher", || (read().lines().count() > 4_000).then_some(()));
    let killed = dev.pid("broker");
    cli::signal(killed, "KILL");
    input.write_all(text(5_000, 6_000).as_bytes()).unwrap();
    drop(input);
    Done::from(publisher.wait_with_output().unwrap()).ok();
    in_order_per_key(&lines, &read());
    dev.stop();
}

#[test]
fn no_server_outlives_a_felix_dev_that_is_killed() {
    let place = Place::new();
    let mut dev = place.start(&[]);
    let (ctrl, broker) = (dev.pid("ctrl"), dev.pid("broker"));
    dev.process.0.kill().unwrap();
    dev.process.0.wait().unwrap();
    wait_for("the end of both servers", || (!lives(ctrl) && !lives(broker)).then_some(()));
    // And nothing keeps the folder.
    place.start(&[]).stop();
}

#[test]
fn a_second_signal_ends_at_once_what_does_not_drain() {
    let place = Place::new();
    let mut dev = place.start(&[]);
    let broker = dev.pid("broker");
    cli::signal(broker, "STOP");
    dev.process.signal("INT");
    wait_for("the beginning of the end", || (!place.ready_file().exists()).then_some(()));
    dev.process.signal("INT");
    assert_eq!(dev.process.status(), 1);
    wait_for("the end of the broker", || (!lives(broker)).then_some(()));
}

#[test]
fn a_folder_in_use_and_a_taken_port_are_said_clearly() {
    let place = Place::new();
    let dev = place.start(&[]);
    Done::from(place.dev(&[]).output().unwrap()).fails(1, "another `felix dev`");
    dev.stop();
    let taken = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let done = Done::from(place.dev(&["--port", &port]).output().unwrap());
    done.fails(1, &format!("UDP port {port}"));
}

#[test]
fn a_broker_that_does_not_start_is_told_with_the_end_of_its_log() {
    let place = Place::new();
    let done = Done::from(place.dev(&["--set", "max_frame_bytes=64GiB"]).output().unwrap());
    done.fails(1, "max_frame_bytes");
    assert!(!place.ready_file().exists());
}

#[test]
fn token_files_are_rewritten_in_time_and_a_subscription_lives_through_it() {
    let place = Place::new();
    let dev = place.start(&["--token-ttl", "3s"]);
    let token = || std::fs::read_to_string(dev.file()["token_file"].as_str().unwrap()).unwrap();
    let reader = place.subscribe(&["events", "--count", "5"]);
    for line in 0..5 {
        let held = token();
        place.run_with_input(&["pub", "events"], format!("{line}\n").as_bytes()).ok();
        wait_for("a new token", || (token() != held).then_some(()));
    }
    assert_eq!(Done::from(reader.wait_with_output().unwrap()).ok(), "0\n1\n2\n3\n4\n");
    dev.stop();
}

#[test]
fn the_demonstration_checks_every_byte_and_leaves_nothing_running() {
    let place = Place::new();
    let done = Done::from(place.dev(&["--demo"]).output().unwrap());
    // It killed its broker, which came back.
    assert!(done.stderr.contains("felix-broker ended (signal 9), starting it again"), "{done:?}");
    let report = done.ok();
    assert!(report.contains("every byte arrived once"), "{report}");
    assert!(report.contains("nothing acknowledged is missing"), "{report}");
    let records = |words: &str| -> u64 {
        let line =
            report.lines().find(|line| line.contains(words)).unwrap_or_else(|| panic!("{words}: {report}"));
        line.split_whitespace().rev().nth(1).unwrap().parse().unwrap()
    };
    let all = records("acknowledged in the end");
    let (acknowledged, unknown) = (records("kill -9"), records("outcome unknown"));
    assert!(all / 2 <= acknowledged && acknowledged < all && acknowledged + unknown <= all, "{report}");
    assert_eq!(records("read back"), all, "{report}");
    assert!(!place.ready_file().exists());
    // Again over the same folder, with streams of the first time.
    let file = place.data().join("small");
    std::fs::write(&file, b"x").unwrap();
    let done = place.dev(&["--demo", "--demo-file", file.to_str().unwrap()]).output().unwrap();
    let report = Done::from(done).ok();
    assert!(report.contains("1 records") && report.contains("nothing acknowledged is missing"), "{report}");
}

#[test]
fn nouns_and_verbs_have_the_statuses_that_scripts_expect() {
    let place = Place::new();
    let dev = place.start(&[]);
    let create = ["stream", "create", "parcels", "--shards", "2"];
    let made = place.run(&create);
    assert!(made.stderr.contains("created"), "{made:?}");
    let again = place.run(&create);
    assert!(again.status == 0 && again.stderr.contains("exists already"), "{again:?}");
    place.run(&["stream", "create", "parcels", "--shards", "3"]).fails(4, "other settings");
    place.run(&["stream", "create", "or ders"]).fails(4, "");
    place.run(&["stream", "info", "nothing"]).fails(5, "does not exist");
    place.run(&["namespace", "info", "nothing"]).fails(5, "nothing");
    place.run(&["pub", "nothing"]).fails(5, "unknown stream");
    place.run(&["sub", "nothing"]).fails(5, "unknown stream");
    place.run(&["sub", "parcels", "--shard", "9"]).fails(5, "no shard 9");
    place.run(&["sub", "parcels", "--from", "12"]).fails(4, "offset 12");
    let set = place.run(&["stream", "set", "parcels", "--retention-age", "1h", "--output", "json"]).json();
    assert_eq!(set["retention"]["max_age_seconds"], 3_600);
    place.run(&["stream", "set", "parcels"]).fails(2, "nothing to set");
    let names = |noun: &str, member: &str| -> Vec<String> {
        let items = place.run(&[noun, "ls", "--output", "json"]).json();
        items.as_array().unwrap().iter().map(|item| item[member].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names("stream", "stream"), ["events", "orders", "parcels"]);
    assert_eq!(names("tenant", "tenant_id"), ["demo"]);
    assert_eq!(names("shard", "leader"), ["dev-0"; 7]);
    assert_eq!(place.run(&["shard", "info", "parcels", "1", "--output", "json"]).json()["shard"], 1);
    let cores = place.run(&["shard", "ls", "--cores", "--name", "parcels", "--output", "json"]).json();
    assert!(cores.as_array().unwrap().iter().all(|shard| shard["core"] == 0), "{cores}");
    place.run(&["shard", "info", "parcels", "7"]).fails(5, "not assigned");
    let node = place.run(&["node", "info", "dev-0", "--output", "json"]).json();
    assert_eq!(node["node"]["status"]["lifecycle"], "live");
    let table = place.run(&["stream", "ls"]).ok();
    let heads: Vec<&str> = table.split_whitespace().take(2).collect();
    assert_eq!(heads, ["STREAM", "SHARDS"], "{table}");
    place.run(&["namespace", "create", "other"]).ok();
    place.run(&["-n", "other", "stream", "create", "s"]).ok();
    place.run(&["namespace", "rm", "other", "--yes"]).ok();
    place.run(&["-n", "other", "stream", "ls"]).fails(5, "");
    place.run(&["stream", "rm", "parcels", "--yes"]).ok();
    place.run(&["stream", "rm", "parcels", "--yes"]).fails(5, "");
    dev.stop();
}

#[test]
fn a_minted_token_may_what_it_says_and_nothing_else() {
    let place = Place::new();
    let dev = place.start(&[]);
    let mint = ["token", "create", "--permission", "stream.publish:stream:demo/default/*", "--ttl", "1h"];
    let token = place.run(&mint).ok();
    let token = token.trim();
    place.run_with_input(&["--token", token, "pub", "events"], b"x\n").ok();
    place.run(&["--token", token, "sub", "events"]).fails(4, "");
    place.run(&["--token", "garbage", "pub", "events"]).fails(4, "");
    place.run(&["--controlplane-token", "garbage", "stream", "ls"]).fails(4, "token");
    place.run(&["--controlplane-token", token, "stream", "ls"]).fails(4, "");
    dev.stop();
}

#[test]
fn a_reader_that_goes_away_and_an_interrupt_end_sub_quietly() {
    let place = Place::new();
    let dev = place.start(&[]);
    let mut reader = Ended(place.subscribe(&["events"]));
    drop(reader.0.stdout.take());
    // Although no record comes that could fail to be written.
    assert_eq!(reader.status(), 0);
    let reader = place.subscribe(&["events"]);
    cli::signal(u64::from(reader.id()), "INT");
    let done = Done::from(reader.wait_with_output().unwrap());
    assert_eq!((done.status, done.stdout.as_str(), done.stderr.as_str()), (0, "", ""));
    dev.stop();
}

#[test]
fn an_interrupted_pub_settles_what_it_has_sent() {
    let place = Place::new();
    let dev = place.start(&[]);
    let reader = place.subscribe(&["events", "--count", "1"]);
    let mut publisher =
        Ended(cli::felix(&place.contexts(), &["pub", "events"]).stdin(Stdio::piped()).spawn().unwrap());
    let mut input = publisher.0.stdin.take().unwrap();
    std::io::Write::write_all(&mut input, b"typed\n").unwrap();
    assert_eq!(Done::from(reader.wait_with_output().unwrap()).ok(), "typed\n");
    publisher.signal("INT");
    assert_eq!(publisher.status(), 1);
    drop(input);
    dev.stop();
}
