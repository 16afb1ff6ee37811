//! `felix cache watch` with the real servers of `felix dev`, which are beside `felix`.
#![cfg(feature = "cli")]

mod cli;

use std::io::{BufRead, BufReader, Lines};
use std::process::ChildStdout;

use cli::{Dev, Ended, Place, wait_for};
use serde_json::{Value, json};

/// Kills the broker and waits until another one is there.
fn kill_broker(dev: &Dev<'_>) {
    let killed = dev.pid("broker");
    cli::signal(killed, "KILL");
    wait_for("a new process in the ready file", || (dev.pid("broker") != killed).then_some(()));
}

/// A `felix cache watch` that has begun, and what it prints.
struct Watching {
    process: Ended,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Watching {
    fn begin(place: &Place, arguments: &[&str]) -> Watching {
        let all = [&["cache", "watch"], arguments, &["--output", "json"]].concat();
        let mut child = cli::felix(&place.contexts(), &all).spawn().unwrap();
        let mut said = BufReader::new(child.stderr.take().unwrap()).lines();
        let first = said.next().unwrap().unwrap();
        assert!(first.starts_with("watching"), "{first}");
        // Somebody has to read its remarks, or it would wait.
        std::thread::spawn(move || said.for_each(drop));
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Watching { process: Ended(child), lines }
    }

    fn next(&mut self) -> Value {
        let line = self.lines.next().expect("it goes on").unwrap();
        serde_json::from_str(&line).unwrap()
    }

    /// Key and value of the next changes.
    fn take(&mut self, count: usize) -> Vec<(String, Option<String>)> {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let change = |shown: Value| (text(&shown["key"]).unwrap(), text(&shown["value"]));
        (0..count).map(|_| change(self.next())).collect()
    }

    fn end(mut self) {
        self.process.signal("INT");
        assert_eq!(self.process.status(), 0);
    }
}

fn put(place: &Place, key: &str, value: &str) {
    place.run(&["cache", "put", "sessions", key, value]).ok();
}

fn some(key: &str, value: &str) -> (String, Option<String>) {
    (key.to_owned(), Some(value.to_owned()))
}

#[test]
fn changes_are_printed_live_from_an_offset_and_after_the_current_values() {
    let place = Place::new();
    let dev = place.start(&[]);
    place.run(&["cache", "create", "sessions", "--shards", "3"]);
    place.run(&["cache", "watch", "nowhere", "k"]).fails(5, "unknown cache");
    put(&place, "k1", "old");
    let mut one = Watching::begin(&place, &["sessions", "k1"]);
    let mut all = Watching::begin(&place, &["sessions", "--prefix", "k"]);
    put(&place, "k1", "one");
    put(&place, "k2", "two");
    put(&place, "other", "x");
    place.run(&["cache", "delete", "sessions", "k1"]).ok();
    place.run(&["cache", "put", "sessions", "k1", "brief", "--ttl", "1h"]).ok();
    assert_eq!(one.take(2), [some("k1", "one"), ("k1".to_owned(), None)]);
    let brief = one.next();
    assert!(brief["expires_at_ms"].as_u64().is_some() && brief["current"] == json!(false), "{brief}");
    // Each key is in its order; those of other shards come as they come.
    let mut seen = all.take(4);
    seen.sort_by_key(|(key, _)| key.clone());
    assert_eq!(seen[..2], [some("k1", "one"), ("k1".to_owned(), None)]);
    assert_eq!(seen[3], some("k2", "two"));
    let mut current = Watching::begin(&place, &["sessions", "--prefix", "", "--from", "current"]);
    let mut values: Vec<Value> = (0..3).map(|_| current.next()).collect();
    assert!(values.iter().all(|value| value["current"] == json!(true)), "{values:?}");
    values.sort_by_key(|value| value["key"].as_str().unwrap().to_owned());
    let text: Vec<&str> = values.iter().map(|value| value["value"].as_str().unwrap()).collect();
    assert_eq!(text, ["brief", "two", "x"]);
    put(&place, "new", "y");
    assert_eq!(current.take(1), [some("new", "y")]);
    let at = brief["offset"].as_u64().unwrap();
    let mut from = Watching::begin(&place, &["sessions", "k1", "--from", &(at - 1).to_string()]);
    assert_eq!(from.take(2), [("k1".to_owned(), None), some("k1", "brief")]);
    let future = (at + 1_000).to_string();
    place.run(&["cache", "watch", "sessions", "k1", "--from", &future]).fails(4, "in the future");
    for watching in [one, all, current, from] {
        watching.end();
    }
    dev.stop();
}

/// One line for each change, in which its offset is.
fn places(watching: &mut Watching, until: &[&str]) -> Vec<(u64, u64, String)> {
    let (mut found, mut left): (Vec<_>, Vec<&str>) = (Vec::new(), until.to_vec());
    while !left.is_empty() {
        let shown = watching.next();
        let key = shown["key"].as_str().unwrap().to_owned();
        left.retain(|end| *end != key);
        found.push((shown["shard"].as_u64().unwrap(), shown["offset"].as_u64().unwrap(), key));
    }
    found.sort_unstable();
    found
}

#[test]
fn a_watch_goes_on_through_killed_brokers_and_misses_nothing() {
    const WRITES: usize = 60;
    let place = Place::new();
    let dev = place.start(&[]);
    place.run(&["cache", "create", "sessions", "--shards", "2"]).ok();
    let mut all = Watching::begin(&place, &["sessions", "--prefix", ""]);
    let written: Vec<String> = std::thread::scope(|scope| {
        let place = &place;
        let writing = scope.spawn(move || {
            let write = |number| {
                let key = format!("k{number}");
                let done = place.run(&["cache", "put", "sessions", &key, "v"]);
                assert!([0, 3].contains(&done.status), "{done:?}");
                // One whose outcome is not known may be there or not.
                (done.status == 0).then_some(key)
            };
            (0..WRITES).filter_map(write).collect()
        });
        for part in 1..=2 {
            wait_for("some writes", || {
                let key = format!("k{}", part * WRITES / 3);
                (place.run(&["cache", "get", "sessions", &key]).status == 0).then_some(())
            });
            kill_broker(&dev);
        }
        writing.join().unwrap()
    });
    // One key of each shard at least.
    let ends = ["end 1", "end 2", "end 3", "end 4", "end 5", "end 6", "end 7", "end 8"];
    ends.iter().for_each(|key| put(&place, key, "v"));
    let seen = places(&mut all, &ends);
    let mut from = Watching::begin(&place, &["sessions", "--prefix", "", "--from", "0"]);
    assert_eq!(seen, places(&mut from, &ends), "what the log holds, each once");
    let missing = written.iter().filter(|key| !seen.iter().any(|(_, _, seen)| seen == *key));
    assert_eq!(missing.count(), 0, "{seen:?}");
    all.end();
    from.end();
    dev.stop();
}
