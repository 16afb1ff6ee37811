//! kill -9 during writes: nothing acknowledged is lost, nothing is there by half, and the same folder opens every time.
//!
//! Several writers create, patch and delete streams of their own names, one request at a time, and keep a model: what
//! was acknowledged, and at most one request whose outcome is not known. The process is killed at random times, started
//! again over the same folder, and everything it then says is compared with the models. `SEED=n` replays the times.

mod program;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use program::{Program, Start};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

const KILLS: u32 = 200;
const WRITERS: u32 = 4;
const NAMES: u32 = 5;
const LIFE_MS: std::ops::RangeInclusive<u64> = 1..=160;

/// A stream's life as its writer knows it.
#[derive(Clone, Debug, PartialEq)]
enum State {
    Absent,
    Present { incarnation: u64, shards: u64 },
}

/// The one request that was on its way when the process died.
#[derive(Clone, Copy, Debug)]
enum Doubt {
    Create { shards: u64 },
    Delete,
}

#[derive(Default)]
struct Model {
    streams: BTreeMap<String, State>,
    doubt: Option<(String, Doubt)>,
    /// Highest incarnation ever seen by this writer.
    incarnation: u64,
    acknowledged: u64,
}

const STREAMS: &str = "/v1/tenants/t/namespaces/n/streams";

/// Writes until told to stop or until the process is gone.
fn write(
    program: &Program,
    token: &str,
    writer: u32,
    mut model: Model,
    mut rng: StdRng,
    stop: &AtomicBool,
) -> Model {
    while !stop.load(Ordering::Relaxed) {
        let name = format!("w{writer}-{}", rng.random_range(0..NAMES));
        let path = format!("{STREAMS}/{name}");
        match model.streams.get(&name).cloned().unwrap_or(State::Absent) {
            State::Absent => {
                let shards = rng.random_range(1..6);
                let body = json!({"stream": name, "kind": "Stream", "shards": shards, "retention": {},
                    "consistency": "Leader", "delivery": "AtLeastOnce", "durable": true});
                model.doubt = Some((name.clone(), Doubt::Create { shards }));
                let Ok((status, answer)) = program.post(STREAMS, token, body) else { return model };
                assert_eq!(status, 201, "{answer}");
                let incarnation = answer["incarnation"].as_u64().unwrap();
                assert!(incarnation > model.incarnation, "an incarnation was given twice");
                model.incarnation = incarnation;
                model.streams.insert(name, State::Present { incarnation, shards });
            }
            State::Present { .. } => {
                model.doubt = Some((name.clone(), Doubt::Delete));
                let Ok((status, answer)) = program.delete(&path, token) else { return model };
                assert_eq!(status, 204, "{answer}");
                model.streams.insert(name, State::Absent);
            }
        }
        model.doubt = None;
        model.acknowledged += 1;
    }
    model
}

/// Compares what the restarted process says with what its writer knows; settles the doubt by what is there.
fn check(model: &mut Model, found: &BTreeMap<String, State>, life: u32) {
    let doubt = model.doubt.take();
    if let Some((name, doubt)) = &doubt {
        let before = model.streams.get(name).cloned().unwrap_or(State::Absent);
        let now = found.get(name).cloned().unwrap_or(State::Absent);
        match (doubt, &now) {
            (Doubt::Create { .. }, State::Absent) | (Doubt::Delete, State::Absent) => {}
            (Doubt::Create { shards: wanted }, State::Present { incarnation, shards }) => {
                assert_eq!(shards, wanted, "life {life}: {name} is there by half");
                assert!(*incarnation > model.incarnation, "life {life}: {name} has an old incarnation");
                model.incarnation = *incarnation;
            }
            (Doubt::Delete, State::Present { .. }) => assert_eq!(now, before, "life {life}: {name}"),
        }
        model.streams.insert(name.clone(), now);
    }
    for (name, state) in &model.streams {
        let now = found.get(name).cloned().unwrap_or(State::Absent);
        assert_eq!(&now, state, "life {life}: {name} is not what was acknowledged (doubt {doubt:?})");
    }
}

fn items(program: &Program, path: &str, token: &str) -> (Vec<Value>, u64) {
    let (status, body) = program.get("controlplane_url", path, token).unwrap();
    assert_eq!(status, 200, "{body}");
    (body["items"].as_array().unwrap().clone(), body["next_seq"].as_u64().unwrap_or(0))
}

/// Streams by name, after checking that rows, changes and assignments agree with each other.
fn consistent_streams(program: &Program, token: &str, life: u32) -> BTreeMap<String, State> {
    let (rows, next_seq) = items(program, "/v1/streams/snapshot", token);
    let mut found = BTreeMap::new();
    for row in &rows {
        let (incarnation, shards) = (row["incarnation"].as_u64().unwrap(), row["shards"].as_u64().unwrap());
        found.insert(row["stream"].as_str().unwrap().to_owned(), State::Present { incarnation, shards });
    }
    // The newest change of each name in the feed says what the row says, and sequences have no hole.
    let (changes, told_next) =
        items(program, &format!("/v1/streams/changes?since={}", next_seq - 100), token);
    assert_eq!(told_next, next_seq);
    let mut newest = BTreeMap::new();
    for (n, change) in changes.iter().rev().enumerate() {
        assert_eq!(change["seq"].as_u64(), Some(next_seq - 1 - n as u64), "life {life}: a hole in the feed");
        newest.entry(change["key"]["stream"].as_str().unwrap().to_owned()).or_insert(change.clone());
    }
    for (name, change) in newest {
        let told = match change["stream"]["shards"].as_u64() {
            Some(shards) => {
                let incarnation = change["incarnation"].as_u64().unwrap();
                Some(State::Present { incarnation, shards })
            }
            None => None,
        };
        assert_eq!(told.as_ref(), found.get(&name), "life {life}: row and feed of {name} differ");
    }
    found
}

/// Each assignment names a live shard of a stream at its incarnation; generations per shard only rise over all lives.
fn check_assignments(program: &Program, token: &str, generations: &mut BTreeMap<(String, u64), (u64, u64)>) {
    let (assignments, _) = items(program, "/v1/shard-assignments/snapshot", token);
    for item in &assignments {
        let key = (item["stream"].as_str().unwrap().to_owned(), item["shard"].as_u64().unwrap());
        let now = (item["incarnation"].as_u64().unwrap(), item["generation"].as_u64().unwrap());
        let before = generations.insert(key.clone(), now).unwrap_or_default();
        let same = now == before;
        let later = now.0 > before.0 && now.1 > before.1;
        assert!(same || later, "{key:?} went from {before:?} to {now:?}");
    }
}

#[test]
fn two_hundred_kills_during_writes_lose_nothing_acknowledged() {
    let seed = std::env::var("SEED").ok().and_then(|s| s.parse().ok()).unwrap_or_else(rand::random::<u64>);
    eprintln!("SEED={seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let folder = tempfile::tempdir().unwrap();
    let mut program = Program::start(folder.path(), Start::default());
    let token = program.bootstrap_and_token("t");
    assert_eq!(program.post("/v1/tenants/t/namespaces", &token, json!({"namespace": "n"})).unwrap().0, 201);
    let node = json!({"node_id": "b", "advertise_addr": "127.0.0.1:1"});
    assert_eq!(program.post("/v1/nodes", &token, node).unwrap().0, 200);

    let mut models: Vec<Model> = (0..WRITERS).map(|_| Model::default()).collect();
    let mut generations = BTreeMap::new();
    let in_doubt = AtomicU64::new(0);
    for life in 0..KILLS {
        let running = Arc::new(program);
        let stop = Arc::new(AtomicBool::new(false));
        let writers: Vec<_> = (0..WRITERS)
            .zip(models.drain(..))
            .map(|(writer, model)| {
                let (running, stop, token) = (Arc::clone(&running), Arc::clone(&stop), token.clone());
                let rng = StdRng::seed_from_u64(rng.random());
                thread::spawn(move || write(&running, &token, writer, model, rng, &stop))
            })
            .collect();
        // The time of death is what is random here.
        thread::sleep(Duration::from_millis(rng.random_range(LIFE_MS)));
        running.signal("KILL");
        stop.store(true, Ordering::Relaxed);
        models = writers.into_iter().map(|writer| writer.join().unwrap()).collect();
        program = Arc::into_inner(running).expect("the writers are gone");
        program.kill();
        drop(program);

        program = Program::start(folder.path(), Start::default());
        let found = consistent_streams(&program, &token, life);
        for model in &mut models {
            in_doubt.fetch_add(u64::from(model.doubt.is_some()), Ordering::Relaxed);
            check(model, &found, life);
        }
        check_assignments(&program, &token, &mut generations);
    }
    let acknowledged: u64 = models.iter().map(|model| model.acknowledged).sum();
    let in_doubt = in_doubt.into_inner();
    eprintln!("{acknowledged} writes acknowledged, {in_doubt} in doubt at {KILLS} kills");
    assert!(in_doubt > u64::from(KILLS), "the kills did not fall into writes");
    assert!(acknowledged > u64::from(KILLS) * 5, "hardly anything was written between the kills");
}
