//! Brokers, assignments and the feeds they follow (control-plane-api 5-7).

mod harness;

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use felix_ctrl::plane::Settings;
use felix_ctrl::store::{MemoryStore, SledStore};
use felix_ctrl::{clock, reconcile};
use felix_wire::control::binary::{self, MEDIA_TYPE};
use felix_wire::control::{Assignment, AssignmentChange, Changes, Snapshot, StreamChange};
use harness::{Answer, World, call, eventually, stream};
use serde_json::{Value, json};

const CHANGES: &str = "/v1/shard-assignments/changes";

async fn next_seq(world: &World, kind: &str) -> u64 {
    world.get(&format!("/v1/{kind}/snapshot")).await.json()["next_seq"].as_u64().unwrap()
}

fn many(name: &str, shards: u32) -> Value {
    let mut body = stream(name);
    body["shards"] = json!(shards);
    body
}

#[tokio::test]
async fn with_one_broker_every_shard_is_assigned_to_it_at_once() {
    let world = World::new().await;
    world.start_loops();
    world.create_stream(many("s", 4)).await;
    world.register("b", 7_000).await;
    world.post("/v1/tenants/t/namespaces/n/caches", json!({"cache": "c", "shards": 2})).await;
    let all = world.assignments(6).await;
    for item in &all {
        assert_eq!(
            (&item["leader"], &item["generation"], &item["state"]),
            (&json!("b"), &json!(1), &json!("active"))
        );
        assert!(item["incarnation"].as_u64().unwrap() > 0);
        assert_eq!(item["replicas"], json!([]));
    }
    // Listed by kind, then shard; the kind is always sent.
    let order: Vec<_> =
        all.iter().map(|a| (a["kind"].as_str().unwrap(), a["shard"].as_u64().unwrap())).collect();
    assert_eq!(
        order,
        [("cache", 0), ("cache", 1), ("stream", 0), ("stream", 1), ("stream", 2), ("stream", 3)]
    );
    assert_eq!((all[2]["routing"].as_str(), all[0].get("routing")), (Some("jump_hash"), None));
    let of = |leader: &str| format!("/v1/shard-assignments?leader={leader}&limit=1000");
    assert_eq!(world.get(&of("b")).await.json()["items"].as_array().unwrap().len(), 6);
    assert_eq!(world.get(&of("x")).await.json()["items"], json!([]));
    // A broker that registers again keeps its shards at their generation.
    world.register("b", 7_100).await;
    world.create_stream(many("later", 1)).await;
    assert!(world.assignments(7).await.iter().all(|a| a["generation"] == 1));
}

#[tokio::test]
async fn a_deleted_stream_is_unassigned_in_the_feed_and_its_namesake_gets_greater_numbers() {
    let world = World::new().await;
    world.start_loops();
    world.register("b", 7_000).await;
    world.create_stream(stream("s")).await;
    let first = world.assignments(1).await.remove(0);
    let since = next_seq(&world, "shard-assignments").await;
    world.delete("/v1/tenants/t/namespaces/n/streams/s").await;
    world.create_stream(stream("s")).await;
    let changes: Changes<AssignmentChange> = eventually(async || {
        let page = world.get(&format!("{CHANGES}?since={since}")).await.json();
        (page["items"].as_array().unwrap().len() == 2).then(|| serde_json::from_value(page).unwrap())
    })
    .await;
    let [gone, new] = &changes.items[..] else { unreachable!() };
    assert!(gone.assignment.is_none() && gone.generation == 1);
    assert_eq!(gone.incarnation, first["incarnation"].as_u64().unwrap());
    let new = new.assignment.as_ref().unwrap();
    assert!(new.incarnation > gone.incarnation && new.generation > gone.generation);
    assert_eq!(changes.next_seq, since + 2);
}

#[tokio::test]
async fn catalog_feeds_give_a_snapshot_and_then_every_change() {
    let world = World::new().await;
    world.create_stream(stream("before")).await;
    let snapshot = world.get("/v1/streams/snapshot").await.json();
    assert_eq!(snapshot["items"][0]["stream"], "before");
    let since = snapshot["next_seq"].as_u64().unwrap();
    world.create_stream(stream("s")).await;
    world.patch("/v1/tenants/t/namespaces/n/streams/s", json!({"durable": false})).await;
    world.delete("/v1/tenants/t/namespaces/n/streams/s").await;
    let page = world.get(&format!("/v1/streams/changes?since={since}")).await.json();
    let ops: Vec<_> = page["items"].as_array().unwrap().iter().map(|c| c["op"].as_str().unwrap()).collect();
    assert_eq!(ops, ["created", "updated", "deleted"]);
    let deleted = &page["items"][2];
    assert_eq!(deleted["key"], json!({"tenant_id": "t", "namespace": "n", "stream": "s"}));
    assert_eq!((&deleted["stream"], &page["items"][1]["stream"]["durable"]), (&Value::Null, &json!(false)));
    assert_eq!(deleted["incarnation"], page["items"][0]["stream"]["incarnation"]);
    let seqs: Vec<_> = page["items"].as_array().unwrap().iter().map(|c| c["seq"].as_u64().unwrap()).collect();
    assert_eq!(seqs, [since, since + 1, since + 2]);

    let tenants = world.get("/v1/tenants/changes?since=0").await.json();
    assert_eq!(
        (&tenants["items"][0]["tenant_id"], &tenants["items"][0]["op"]),
        (&json!("t"), &json!("created"))
    );
    let namespaces = world.get("/v1/namespaces/changes?since=0").await.json();
    assert_eq!(namespaces["items"][0]["key"], json!({"tenant_id": "t", "namespace": "n"}));
    for bad in ["", "?since=x", "?since=1&wait_ms=x"] {
        let refused = world.get(&format!("/v1/caches/changes{bad}")).await;
        assert_eq!(refused.outcome(), (400, "validation_error".into()), "{bad}");
    }
}

#[tokio::test]
async fn a_follower_that_was_away_too_long_is_told_so() {
    let settings = Settings { change_retention_rows: 3, changes_limit: 2, ..Settings::default() };
    let world = World::over(Arc::new(MemoryStore::default()), settings).await;
    let start = next_seq(&world, "streams").await;
    for n in 0..5 {
        world.create_stream(stream(&format!("s{n}"))).await;
    }
    let page: Changes<StreamChange> =
        serde_json::from_value(world.get(&format!("/v1/streams/changes?since={start}")).await.json())
            .unwrap();
    assert_eq!((page.items.len(), page.items[0].seq, page.next_seq), (2, start + 2, start + 4));
    let page = world.get(&format!("/v1/streams/changes?since={}", start + 4)).await.json();
    assert_eq!(page["next_seq"], start + 5);
    let future = world.get(&format!("/v1/streams/changes?since={}&wait_ms=20000", start + 99)).await.json();
    assert_eq!(
        future,
        json!({"items": [], "next_seq": start + 5}),
        "a reset is told at once, whatever the wait"
    );
}

#[tokio::test]
async fn a_waiting_poll_is_answered_by_the_change_and_by_draining() {
    let world = Arc::new(World::new().await);
    world.start_loops();
    world.register("b", 7_000).await;
    let since = next_seq(&world, "shard-assignments").await;
    let poll = |since: u64| {
        let world = Arc::clone(&world);
        tokio::spawn(async move { world.get(&format!("{CHANGES}?since={since}&wait_ms=25000")).await })
    };
    let waiting = poll(since);
    world.create_stream(stream("s")).await;
    let woken = tokio::time::timeout(Duration::from_secs(10), waiting).await.unwrap().unwrap();
    assert_eq!(woken.json()["items"][0]["seq"], since);
    let waiting = poll(since + 1);
    world.plane.begin_drain();
    let drained = tokio::time::timeout(Duration::from_secs(10), waiting).await.unwrap().unwrap();
    assert_eq!(drained.json(), json!({"items": [], "next_seq": since + 1}));
    assert_eq!(world.get("/v1/system/ready").await.outcome(), (503, "unavailable".into()));
    let ready = Request::get("/ready").body(Body::empty()).unwrap();
    let ready = call(&world.operations, ready).await;
    assert_eq!((ready.status.as_u16(), &ready.json()["message"]), (503, &json!("draining")));
    assert_eq!(world.get("/v1/system/live").await.status, 200);
}

async fn binary_answer(world: &World, path: &str) -> Answer {
    let request = Request::get(path)
        .header("authorization", format!("Bearer {}", world.admin))
        .header("accept", format!("{MEDIA_TYPE};q=1, application/json"));
    call(&world.public, request.body(Body::empty()).unwrap()).await
}

#[tokio::test]
async fn both_forms_of_the_assignment_feed_say_the_same() {
    let world = World::new().await;
    world.start_loops();
    world.register("b", 7_000).await;
    world.create_stream(many("s", 3)).await;
    world.assignments(3).await;
    let path = "/v1/shard-assignments/snapshot";
    let answer = binary_answer(&world, path).await;
    assert_eq!(answer.headers["content-type"], MEDIA_TYPE);
    let text: Snapshot<Assignment> = serde_json::from_value(world.get(path).await.json()).unwrap();
    assert_eq!(binary::decode_snapshot(&answer.bytes).unwrap(), text);
    assert_eq!(text.items.len(), 3);
    let path = format!("{CHANGES}?since=0");
    let text: Changes<AssignmentChange> = serde_json::from_value(world.get(&path).await.json()).unwrap();
    assert_eq!(binary::decode_changes(&binary_answer(&world, &path).await.bytes).unwrap(), text);
    assert_eq!(text.items.len(), 3);
}

#[tokio::test]
async fn a_broker_registers_beats_drains_and_leaves() {
    let world = World::new().await;
    let registered = world.register("b", 7_000).await.json();
    assert_eq!(
        (&registered["heartbeat_interval_ms"], &registered["expiry_timeout_ms"]),
        (&json!(5000), &json!(15000))
    );
    assert_eq!(registered["node"]["status"]["incarnation"], 1);
    let beat = async |incarnation: u64| {
        world.post("/v1/nodes/b/heartbeat", json!({"incarnation": incarnation, "suspects": ["c"]})).await
    };
    let answer = beat(1).await;
    assert_eq!((answer.outcome().0, &answer.json()["lifecycle"]), (200, &json!("live")));
    assert_eq!(beat(0).await.outcome(), (409, "conflict".into()));
    let view = world.get("/v1/nodes/b").await.json();
    assert_eq!(
        (&view["placement"]["eligible"], &view["placement"]["routable"]),
        (&json!(true), &json!(true))
    );
    assert!(view["placement"]["heartbeat_age_ms"].as_u64().unwrap() < 5_000);

    let drained = world.send("POST", "/v1/nodes/b/drain", Some(&world.admin), None).await;
    assert_eq!((drained.outcome().0, &drained.json()["status"]["lifecycle"]), (200, &json!("draining")));
    assert_eq!(beat(1).await.json()["lifecycle"], "draining");
    let view = world.get("/v1/nodes/b").await.json();
    assert_eq!(
        (&view["placement"]["eligible"], &view["placement"]["reasons"]),
        (&json!(false), &json!(["draining"]))
    );
    assert_eq!(world.register("b", 7_000).await.json()["node"]["status"]["lifecycle"], "live");
    assert_eq!(beat(1).await.outcome(), (409, "conflict".into()), "a heartbeat of the registration before");
    assert_eq!(world.register("c", 7_000).await.outcome(), (409, "conflict".into()), "the address is taken");

    let left = world.send("POST", "/v1/nodes/b/deregister", Some(&world.admin), None).await;
    assert_eq!((left.outcome().0, &left.json()["status"]["lifecycle"]), (200, &json!("left")));
    assert_eq!(beat(2).await.json()["lifecycle"], "left", "a heartbeat does not undo leaving");
    let drain = world.send("POST", "/v1/nodes/b/drain", Some(&world.admin), None).await;
    assert_eq!(drain.outcome(), (409, "conflict".into()));
    assert_eq!(world.delete("/v1/nodes/b").await.status, 204);
    assert_eq!(world.get("/v1/nodes/b").await.outcome(), (404, "not_found".into()));
}

#[tokio::test]
async fn nodes_are_listed_by_what_is_asked() {
    let world = World::new().await;
    for (id, port, region, zone) in [("a", 1, "eu", "x"), ("b", 2, "us", "x"), ("c", 3, "us", "y")] {
        let body = json!({"node_id": id, "advertise_addr": format!("127.0.0.1:{port}"), "region": region,
            "labels": {"zone": zone, "disk": "nvme"}});
        assert_eq!(world.post("/v1/nodes", body).await.status, 200);
    }
    world.send("POST", "/v1/nodes/c/drain", Some(&world.admin), None).await;
    let ids = async |query: &str| -> Vec<String> {
        let page = world.get(&format!("/v1/nodes?{query}")).await.json();
        let items = page["items"].as_array().unwrap().clone();
        items.iter().map(|item| item["node"]["node_id"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(ids("").await, ["a", "b", "c"]);
    assert_eq!(ids("region=us").await, ["b", "c"]);
    assert_eq!(ids("lifecycle=draining").await, ["c"]);
    assert_eq!(ids("label=disk%3Dnvme&label=zone%3Dx").await, ["a", "b"]);
    assert_eq!(ids("label=zone%3Dx&region=us&limit=1").await, ["b"]);
    assert_eq!(world.get("/v1/nodes?label=zone").await.outcome(), (400, "validation_error".into()));
}

#[tokio::test]
async fn a_silent_broker_goes_down_and_its_shards_without_a_log_go_elsewhere() {
    let world = World::new().await;
    world.register("a", 7_000).await;
    let mut volatile = many("volatile", 2);
    volatile["durable"] = json!(false);
    world.create_stream(volatile).await;
    world.create_stream(stream("durable")).await;
    let token = world.plane.ledger.write(felix_ctrl::assignment::take_over).await.unwrap();
    let placed = reconcile::run_pass(&world.plane, token).await.unwrap();
    assert_eq!(placed.written, 3);

    let window = world.plane.settings.lease.window();
    let soon = clock::since_boot() + window - Duration::from_secs(1);
    assert_eq!(reconcile::sweep(&world.plane, soon).await.unwrap(), 0);
    let later = clock::since_boot() + window;
    assert_eq!(reconcile::sweep(&world.plane, later).await.unwrap(), 1);
    assert_eq!(world.get("/v1/nodes/a").await.json()["node"]["status"]["lifecycle"], "down");
    let beat = world.post("/v1/nodes/a/heartbeat", json!({"incarnation": 1})).await;
    assert_eq!(beat.json()["lifecycle"], "down", "a heartbeat does not revive it");

    let none = reconcile::run_pass(&world.plane, token).await.unwrap();
    assert_eq!(none.written, 0, "nobody else is there");
    world.register("b", 8_000).await;
    assert_eq!(reconcile::run_pass(&world.plane, token).await.unwrap().written, 2);
    for item in world.assignments(3).await {
        let moved = item["stream"] == "volatile";
        assert_eq!(item["leader"], if moved { "b" } else { "a" });
        assert_eq!(item["generation"], if moved { 2 } else { 1 });
    }
    // Back again: it serves its log at the generation it had.
    world.register("a", 7_000).await;
    assert_eq!(reconcile::run_pass(&world.plane, token).await.unwrap().written, 0);
    assert_eq!(world.delete("/v1/nodes/a").await.outcome(), (409, "conflict".into()));
}

#[tokio::test]
async fn a_restarted_control_plane_knows_everything_and_waits_before_it_judges() {
    let folder = tempfile::tempdir().unwrap();
    let open = async || {
        let store = Arc::new(SledStore::open(folder.path()).unwrap());
        World::over(store, Settings::default()).await
    };
    let world = open().await;
    world.register("b", 7_000).await;
    world.create_stream(many("s", 2)).await;
    let token = world.plane.ledger.write(felix_ctrl::assignment::take_over).await.unwrap();
    reconcile::run_pass(&world.plane, token).await.unwrap();
    let paths = [
        "/v1/streams/snapshot",
        "/v1/shard-assignments/snapshot",
        "/v1/streams/changes?since=0",
        "/v1/tenants",
    ];
    let mut before = Vec::new();
    for path in paths {
        before.push(world.get(path).await.json());
    }
    let old_token = world.admin.clone();
    drop(world);
    let world = open().await;
    for (path, before) in paths.iter().zip(before) {
        let now = world.send("GET", path, Some(&old_token), None).await;
        assert_eq!(now.json(), before, "{path}");
    }
    assert_eq!(reconcile::sweep(&world.plane, clock::since_boot()).await.unwrap(), 0);
    let beat = world.post("/v1/nodes/b/heartbeat", json!({"incarnation": 1})).await;
    assert_eq!(beat.json()["lifecycle"], "live");
    let fenced = reconcile::run_pass(&world.plane, token).await.unwrap();
    assert_eq!(fenced.written, 0, "nothing is to be placed");
    world.create_stream(stream("later")).await;
    let newer = world.plane.ledger.write(felix_ctrl::assignment::take_over).await.unwrap();
    assert!(reconcile::run_pass(&world.plane, token).await.is_err(), "the placer before is fenced");
    assert_eq!(reconcile::run_pass(&world.plane, newer).await.unwrap().written, 1);
}

#[tokio::test]
async fn a_stream_of_4096_shards_is_placed_told_and_deleted() {
    let world = World::new().await;
    world.start_loops();
    world.register("b", 7_000).await;
    let since = next_seq(&world, "shard-assignments").await;
    assert_eq!(world.create_stream(many("wide", 4_096)).await.status, 201);
    let snapshot: Snapshot<Assignment> = eventually(async || {
        let bytes = binary_answer(&world, "/v1/shard-assignments/snapshot").await.bytes;
        Some(binary::decode_snapshot(&bytes).unwrap()).filter(|snapshot| snapshot.items.len() == 4_096)
    })
    .await;
    assert_eq!(snapshot.next_seq, since + 4_096);
    assert_eq!(world.delete("/v1/tenants/t/namespaces/n/streams/wide").await.status, 204);
    assert_eq!(next_seq(&world, "shard-assignments").await, since + 8_192);
    world.assignments(0).await;
}

#[tokio::test]
async fn what_happens_is_counted() {
    let world = World::new().await;
    world.start_loops();
    world.register("b", 7_000).await;
    world.send("GET", "/v1/tenants", None, None).await;
    let text = eventually(async || {
        let request = Request::get("/metrics").body(Body::empty()).unwrap();
        let text = String::from_utf8(call(&world.operations, request).await.bytes).unwrap();
        text.contains("felix_node_count{lifecycle=\"live\"} 1").then_some(text)
    })
    .await;
    for line in [
        "felix_node_registrations_total 1",
        "felix_controlplane_auth_rejected_total{reason=\"missing\"} 1",
        "felix_bootstrap_attempts_total{outcome=\"done\",reason=\"none\"} 1",
        "felix_placement_lease_held 1",
        "felix_ready_state 1",
    ] {
        assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
    }
}
