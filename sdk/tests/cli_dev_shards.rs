//! `felix cache`, `felix counter` and `felix group` with the real servers of `felix dev`, which are beside `felix`.
#![cfg(feature = "cli")]

mod cli;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};

use cli::{Dev, Done, Place, wait_for};
use serde_json::{Value, json};

/// Kills the broker and waits until another one is there.
fn kill_broker(dev: &Dev<'_>) {
    let killed = dev.pid("broker");
    cli::signal(killed, "KILL");
    wait_for("a new process in the ready file", || (dev.pid("broker") != killed).then_some(()));
}

/// The objects of a command that writes one a line.
fn objects(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The sum of a member over the shards that `felix group describe` shows.
fn described(place: &Place, group: &str, member: &str) -> u64 {
    let shown = place.run(&["group", "describe", "orders", group, "--output", "json"]).json();
    let shards = shown.as_array().unwrap();
    assert_eq!(shards.len(), 4, "{shown}");
    shards.iter().map(|shard| shard[member].as_u64().unwrap()).sum()
}

#[test]
fn values_have_lives_and_conditions_and_outlive_a_killed_broker() {
    let place = Place::new();
    let dev = place.start(&[]);
    let made = place.run(&["cache", "create", "sessions", "--shards", "3"]);
    assert!(made.stderr.contains("created"), "{made:?}");
    // At once: nothing here waits for anything.
    place.run(&["cache", "put", "sessions", "k", "one"]).ok();
    place.run(&["cache", "create", "sessions", "--shards", "2"]).fails(4, "other settings");
    place.run(&["cache", "get", "sessions", "nothing"]).fails(5, "`nothing` has no value");
    place.run(&["cache", "get", "nowhere", "k"]).fails(5, "unknown cache");
    let got = |key: &str| place.run(&["cache", "get", "sessions", key, "--output", "json"]).json();
    let first = got("k")["version"].as_u64().unwrap();
    let put_at = |version: u64, value: &str| {
        let version = version.to_string();
        let put = ["cache", "put", "sessions", "k", value, "--if-version", &version, "--output", "json"];
        place.run(&put)
    };
    let second = put_at(first, "two").json()["version"].as_u64().unwrap();
    put_at(first, "three").fails(4, &format!("the version is {second}"));
    place.run(&["cache", "put", "sessions", "k", "v", "--if-absent"]).fails(4, "nothing was changed");
    place.run(&["cache", "put", "sessions", "new", "v", "--if-absent"]).ok();
    let bytes = place.data().join("value");
    std::fs::write(&bytes, b"\x00\xff").unwrap();
    let file = format!("@{}", bytes.to_str().unwrap());
    place.run(&["cache", "put", "sessions", "bytes", &file, "--ttl", "1h"]).ok();
    place.run(&["cache", "put", "sessions", "brief", "v", "--ttl", "700ms"]).ok();
    wait_for("the end of a life", || {
        let done = place.run(&["cache", "get", "sessions", "brief"]);
        (done.status == 5 && done.stderr.contains("has no value")).then_some(())
    });
    let gone = place.run(&["cache", "delete", "sessions", "new", "--output", "json"]).json();
    assert_eq!(gone, json!({ "key": "new", "value": "v" }));
    kill_broker(&dev);
    assert_eq!(got("k"), json!({ "key": "k", "value": "two", "version": second }));
    assert_eq!(got("bytes")["value_base64"], "AP8=");
    place.run(&["cache", "delete", "sessions", "new"]).fails(5, "has no value");
    place.run(&["cache", "get", "sessions", "brief"]).fails(5, "has no value");
    place.run(&["cache", "delete", "sessions", "k", "--if-version", &first.to_string()]).fails(4, "version");
    place.run(&["cache", "delete", "sessions", "k", "--if-version", &second.to_string()]).ok();
    place.run(&["cache", "rm", "sessions", "--yes"]).ok();
    wait_for("the end of the cache", || {
        (place.run(&["cache", "get", "sessions", "bytes"]).status == 5).then_some(())
    });
    dev.stop();
}

#[test]
fn counters_count_every_add_once_also_over_a_killed_broker() {
    let place = Place::new();
    let dev = place.start(&[]);
    place.run(&["cache", "create", "visits", "--shards", "2"]).ok();
    place.run(&["counter", "get", "visits", "home"]).fails(5, "nothing was ever added");
    assert_eq!(place.run(&["counter", "add", "visits", "home"]).ok(), "1\n");
    assert_eq!(place.run(&["counter", "add", "visits", "home", "41"]).ok(), "42\n");
    place.run(&["counter", "add", "visits", "other", "0"]).ok();
    let least = i64::MIN.to_string();
    place.run(&["counter", "add", "visits", "below", "-1"]).ok();
    place.run(&["counter", "add", "visits", "below", &least]).fails(4, "does not fit");
    kill_broker(&dev);
    let sum = |key: &str| place.run(&["counter", "get", "visits", key, "--output", "json"]).json();
    assert_eq!(sum("home"), json!({ "key": "home", "value": 42 }));
    assert_eq!(sum("other"), json!({ "key": "other", "value": 0 }));
    assert_eq!(sum("below"), json!({ "key": "below", "value": -1 }));
    let added = place.run(&["counter", "add", "visits", "home", "-2", "--output", "json"]).json();
    assert_eq!(added, json!({ "key": "home", "value": 40 }));
    // Killed while adds are made: each is made once, or certainly not at all.
    let adds = || (0..8).map(|_| place.run(&["counter", "add", "visits", "busy"])).collect::<Vec<Done>>();
    let done: Vec<Done> = std::thread::scope(|scope| {
        let adders: Vec<_> = (0..3).map(|_| scope.spawn(adds)).collect();
        wait_for("adds", || (place.run(&["counter", "get", "visits", "busy"]).status == 0).then_some(()));
        kill_broker(&dev);
        adders.into_iter().flat_map(|adder| adder.join().unwrap()).collect()
    });
    assert!(done.iter().all(|add| [0, 3].contains(&add.status)), "{done:?}");
    let made = done.iter().filter(|add| add.status == 0).count();
    assert_eq!(sum("busy")["value"], made, "{done:?}");
    dev.stop();
}

#[test]
fn records_of_a_group_are_acked_given_back_and_given_up_and_stay_so_over_a_killed_broker() {
    let place = Place::new();
    let dev = place.start(&[]);
    place.run_with_input(&["pub", "orders"], b"a\nb\nc\nd\n").ok();
    place.run(&["group", "poll", "events", "g"]).fails(4, "durable");
    place.run(&["group", "poll", "nowhere", "g"]).fails(5, "unknown stream");
    let made = place.run(&["group", "create", "orders", "g", "--output", "json"]).json();
    assert_eq!(made[0], json!({ "shard": 0, "offset": 0, "moved": true }));
    assert_eq!(made.as_array().unwrap().len(), 4);
    let again = place.run(&["group", "create", "orders", "g", "--at", "latest", "--output", "json"]).json();
    assert_eq!(again[0], json!({ "shard": 0, "offset": 0, "moved": false }));
    // Without keys they are all in the first shard.
    let poll = ["group", "poll", "orders", "g", "--shard", "0", "--wait", "10ms"];
    assert_eq!(place.run(&poll).ok(), "0/0/1\ta\n0/1/1\tb\n0/2/1\tc\n0/3/1\td\n");
    assert_eq!(place.run(&poll).ok(), "", "all are claimed");
    place.run(&["group", "ack", "orders", "g", "0/0/1"]).ok();
    place.run(&["group", "ack", "orders", "g", "0/9"]).fails(4, "0/9: refused");
    place.run(&["group", "nack", "orders", "g", "0/1/1"]).ok();
    place.run(&["group", "dead", "add", "orders", "g", "0/2", "0/3"]).ok();
    place.run(&["group", "dead", "discard", "orders", "g", "0/3"]).ok();
    place.run(&["group", "dead", "discard", "orders", "g", "0/3"]).fails(5, "0/3: refused");
    kill_broker(&dev);
    let json = |arguments: &[&str]| place.run(&[arguments, &["--output", "json"]].concat());
    let listed = json(&["group", "dead", "ls", "orders", "g"]).json();
    assert_eq!(listed, json!([{ "shard": 0, "offset": 2 }]));
    let got = objects(&json(&poll).ok());
    assert_eq!(got, [json!({ "shard": 0, "offset": 1, "attempts": 2, "value": "b" })]);
    place.run(&["group", "nack", "orders", "g", "0/1/1"]).fails(4, "0/1: refused");
    let held = place.run(&["group", "extend", "orders", "g", "0/1/2", "--by", "5m"]);
    assert!(held.status == 0 && held.stderr.contains("held for 300000 ms"), "{held:?}");
    place.run(&["group", "ack", "orders", "g", "0/1/2"]).ok();
    let redriven = place.run(&["group", "dead", "redrive", "orders", "g", "--all"]);
    assert!(redriven.status == 0 && redriven.stderr.contains("1 to be handed out again"), "{redriven:?}");
    let all = [&poll[..], &["--ack", "--until-empty"]].concat();
    assert_eq!(place.run(&all).ok(), "c\n");
    let info = json(&["group", "describe", "orders", "g"]).json();
    let finished = json!({ "shard": 0, "committed": 4, "tail": 4, "lag": 0, "in_flight": 0, "owed": 0,
                           "dead_letters": 0 });
    assert_eq!(info[0], finished);
    json(&["group", "seek", "orders", "g", "--to", "3", "--shard", "0"]).ok();
    assert_eq!(place.run(&poll).ok(), "0/3/1\td\n");
    place.run(&["group", "delete", "orders", "g", "--yes"]).ok();
    dev.stop();
}

#[test]
fn a_consumer_with_ack_goes_on_through_a_killed_broker_and_misses_nothing() {
    const RECORDS: u32 = 2_000;
    let place = Place::new();
    let dev = place.start(&[]);
    let lines: Vec<String> = (0..RECORDS).map(|line| format!("key-{},{line}", line % 101)).collect();
    let publish = ["pub", "orders", "--key-column", "1", "--key-separator", ","];
    place.run_with_input(&publish, (lines.join("\n") + "\n").as_bytes()).ok();
    // What a poll has claimed whose answer is lost comes again when the new broker has it.
    let consume = ["group", "poll", "orders", "g", "--ack", "--wait", "500ms", "--until-empty"];
    let mut child = cli::felix(&place.contexts(), &consume).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut printed = Vec::new();
    while printed.len() < RECORDS as usize / 4 {
        let mut line = String::new();
        assert!(out.read_line(&mut line).unwrap() > 0, "it ended: {printed:?}");
        printed.push(line.trim_end().to_owned());
    }
    kill_broker(&dev);
    printed.extend(out.lines().map(Result::unwrap));
    let done = Done::from(child.wait_with_output().unwrap());
    assert_eq!(done.status, 0, "{done:?}");
    let mut times: BTreeMap<&str, u32> = BTreeMap::new();
    printed.iter().for_each(|line| *times.entry(line).or_default() += 1);
    assert_eq!(times.len(), lines.len());
    assert!(lines.iter().all(|line| times.contains_key(line.as_str())));
    // Only what was printed when its claim was lost comes twice: fewer than are written before they are finished.
    assert!(printed.len() - lines.len() <= 256 + 32, "{} lines", printed.len());
    assert_eq!((described(&place, "g", "lag"), described(&place, "g", "in_flight")), (0, 0));
    kill_broker(&dev);
    assert_eq!(described(&place, "g", "lag"), 0);
    assert_eq!(place.run(&consume).ok(), "", "what was finished does not come again");
    dev.stop();
}

#[test]
fn members_of_a_group_share_its_shards_and_the_rest_gets_those_of_one_that_is_killed() {
    const RECORDS: u32 = 400;
    let place = Place::new();
    let dev = place.start(&[]);
    let publish = |numbers: std::ops::Range<u32>| {
        let lines: Vec<String> = numbers.map(|line| format!("key-{},{line}\n", line % 101)).collect();
        let publish = ["pub", "orders", "--key-column", "1", "--key-separator", ","];
        place.run_with_input(&publish, lines.concat().as_bytes()).ok();
    };
    let consume = |member: &str, term: &str| {
        let poll = ["group", "poll", "orders", "g", "--ack", "--wait", "200ms", "--member", member];
        let mut child =
            cli::felix(&place.contexts(), &[&poll[..], &["--term", term]].concat()).spawn().unwrap();
        let out = child.stdout.take().unwrap();
        let lines = std::thread::spawn(move || {
            BufReader::new(out).lines().map(Result::unwrap).collect::<Vec<String>>()
        });
        (cli::Ended(child), lines)
    };
    let described = || {
        let shown = place.run(&["group", "describe", "orders", "g", "--output", "json"]);
        let member = |shard: &Value| shard["member"].as_str().unwrap_or("-").to_owned();
        shown.json().as_array().unwrap().iter().map(member).collect::<Vec<String>>()
    };
    let held_by = |members: &[&str]| {
        wait_for("the shards of these members", || (described() == members).then_some(()));
    };
    let poll = ["group", "poll", "orders", "g"];
    place.run(&[&poll[..], &["--ack", "--term", "5s"]].concat()).fails(2, "--member");
    place.run(&[&poll[..], &["--ack", "--member", "m", "--term", "1ms"]].concat()).fails(2, "1000");
    assert_eq!(described(), ["-"; 4]);
    let (mut first, first_lines) = consume("first", "60s");
    held_by(&["first"; 4]);
    let (second, second_lines) = consume("second", "2s");
    held_by(&["first", "first", "second", "second"]);
    publish(0..RECORDS / 2);
    let shown = place.run(&["group", "describe", "orders", "g"]);
    assert!(shown.stderr.contains("first (2), second (2)") && shown.stdout.contains("MEMBER"), "{shown:?}");
    let finished = |records: u64| {
        let shown = place.run(&["group", "describe", "orders", "g", "--output", "json"]).json();
        let committed = |shard: &Value| shard["committed"].as_u64().unwrap_or(0);
        (shown.as_array().unwrap().iter().map(committed).sum::<u64>() == records).then_some(())
    };
    wait_for("half of the records", || finished(u64::from(RECORDS) / 2));
    second.signal("KILL");
    held_by(&["first"; 4]);
    publish(RECORDS / 2..RECORDS);
    wait_for("all records", || finished(u64::from(RECORDS)));
    first.signal("INT");
    assert_eq!(first.status(), 0);
    assert_eq!(described(), ["-"; 4], "it has left");
    drop(second);
    let mut printed = first_lines.join().unwrap();
    let of_second = second_lines.join().unwrap();
    assert!(!of_second.is_empty() && printed.len() > RECORDS as usize / 2);
    printed.extend(of_second);
    let mut numbers: Vec<u32> =
        printed.iter().map(|line| line.rsplit(',').next().unwrap().parse().unwrap()).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..RECORDS).collect::<Vec<_>>(), "each was printed once");
    dev.stop();
}
