//! `felix commit` and `felix state` with the real servers of `felix dev`, which are beside `felix`.
#![cfg(feature = "cli")]

mod cli;

use cli::{Dev, Done, Place, wait_for};
use serde_json::json;

/// Kills the broker and waits until another one is there.
fn kill_broker(dev: &Dev<'_>) {
    let killed = dev.pid("broker");
    cli::signal(killed, "KILL");
    wait_for("a new process in the ready file", || (dev.pid("broker") != killed).then_some(()));
}

#[test]
fn commits_and_their_state_outlive_a_killed_broker() {
    let place = Place::new();
    let dev = place.start(&[]);
    let json = |arguments: &[&str]| place.run(&[arguments, &["--output", "json"]].concat()).json();
    place.run(&["state", "get", "orders", "order-7", "paid"]).fails(5, "`paid` has no value");
    let first = json(&["commit", "orders", "order-7", "made", "--put", "paid=no", "--put", "items=3"]);
    assert_eq!(first["offset"], 0, "{first}");
    let shard = first["shard"].as_u64().unwrap();
    let second = json(&["commit", "orders", "order-7", "paid", "--put", "paid=yes", "--delete", "items"]);
    assert_eq!(second, json!({ "shard": shard, "offset": 1 }));
    let at = |offset: &str| {
        place.run(&["commit", "orders", "order-7", "sent", "--put", "sent=yes", "--expect-offset", offset])
    };
    at("1").fails(4, "next offset is 2");
    let paid = json!({ "key": "paid", "value": "yes", "version": 1, "as_of": 1 });
    assert_eq!(json(&["state", "get", "orders", "order-7", "paid"]), paid);
    kill_broker(&dev);
    assert_eq!(json(&["state", "get", "orders", "order-7", "paid"]), paid);
    place.run(&["state", "get", "orders", "order-7", "items"]).fails(5, "`items` has no value");
    at("0").fails(4, "next offset is");
    let (offset, made) =
        (2..).map(|next: u64| (next, at(&next.to_string()))).find(|(_, done)| done.status == 0).unwrap();
    assert_eq!(made.ok(), format!("{shard}/{offset}\n"));
    let sent = json!({ "key": "sent", "value": "yes", "version": offset, "as_of": offset });
    assert_eq!(json(&["state", "get", "orders", "order-7", "sent"]), sent);
    assert_eq!(place.run(&["sub", "orders", "--from", "earliest", "--until-end"]).ok(), "made\npaid\nsent\n");
    assert_eq!(
        place.run(&["group", "poll", "orders", "g", "--ack", "--until-empty"]).ok().lines().count(),
        3
    );
    place.run(&["commit", "events", "e", "x"]).fails(4, "durable");
    place.run(&["state", "get", "events", "e", "k"]).fails(4, "durable");
    place.run(&["commit", "nowhere", "e", "x"]).fails(5, "unknown stream");
    dev.stop();
}

#[test]
fn a_commit_is_made_once_or_certainly_not_over_a_killed_broker() {
    let place = Place::new();
    let dev = place.start(&[]);
    let commits = |committer: usize| {
        let commit = |number: usize| {
            let (event, put) = (format!("{committer} {number}"), format!("last-{committer}={number}"));
            (event.clone(), place.run(&["commit", "orders", "one", &event, "--put", &put]))
        };
        (0..8).map(commit).collect::<Vec<(String, Done)>>()
    };
    let done: Vec<(String, Done)> = std::thread::scope(|scope| {
        let committers: Vec<_> = (0..3).map(|committer| scope.spawn(move || commits(committer))).collect();
        wait_for("commits", || {
            (place.run(&["state", "get", "orders", "one", "last-0"]).status == 0).then_some(())
        });
        kill_broker(&dev);
        committers.into_iter().flat_map(|committer| committer.join().unwrap()).collect()
    });
    assert!(done.iter().all(|(_, commit)| [0, 3].contains(&commit.status)), "{done:?}");
    let mut made: Vec<&str> =
        done.iter().filter(|(_, commit)| commit.status == 0).map(|(event, _)| event.as_str()).collect();
    let read = place.run(&["sub", "orders", "--from", "earliest", "--until-end"]).ok();
    let mut there: Vec<&str> = read.lines().collect();
    made.sort_unstable();
    there.sort_unstable();
    assert_eq!(there, made, "{done:?}");
    dev.stop();
}
