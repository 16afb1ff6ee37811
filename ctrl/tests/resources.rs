//! Tenants, namespaces, streams and caches over HTTP: what a command line relies on (control-plane-api 4, 13.4).

mod harness;

use harness::{World, call, stream};
use serde_json::{Value, json};

const STREAMS: &str = "/v1/tenants/t/namespaces/n/streams";
const CACHES: &str = "/v1/tenants/t/namespaces/n/caches";

#[tokio::test]
async fn a_repeated_create_is_200_and_a_differing_one_409() {
    let world = World::new().await;
    let first = world.create_stream(stream("s")).await;
    assert_eq!(first.outcome(), (201, String::new()));
    let second = world.create_stream(stream("s")).await;
    assert_eq!(second.outcome(), (200, String::new()));
    assert_eq!(first.json(), second.json());
    let mut differing = stream("s");
    differing["shards"] = json!(2);
    assert_eq!(world.create_stream(differing).await.outcome(), (409, "conflict".into()));

    let cache = json!({"cache": "c", "display_name": "C"});
    let first = world.post(CACHES, cache.clone()).await;
    assert_eq!(first.outcome().0, 201);
    let defaults = first.json();
    assert_eq!((&defaults["shards"], &defaults["replication_factor"]), (&json!(1), &json!(1)));
    assert_eq!(defaults["consistency"], "Leader");
    assert_eq!(world.post(CACHES, cache).await.outcome().0, 200);
    let differing = json!({"cache": "c", "display_name": "D"});
    assert_eq!(world.post(CACHES, differing).await.outcome(), (409, "conflict".into()));
}

#[tokio::test]
async fn a_tenant_or_namespace_that_exists_is_409() {
    let world = World::new().await;
    let tenant = json!({"tenant_id": "u", "display_name": "U"});
    let made = world.post("/v1/tenants", tenant.clone()).await;
    assert_eq!((made.outcome().0, made.json()), (201, tenant.clone()));
    assert_eq!(world.post("/v1/tenants", tenant).await.outcome(), (409, "conflict".into()));
    let namespace = json!({"namespace": "m"});
    assert_eq!(world.post("/v1/tenants/t/namespaces", namespace.clone()).await.outcome().0, 201);
    assert_eq!(world.post("/v1/tenants/t/namespaces", namespace).await.outcome(), (409, "conflict".into()));
}

#[tokio::test]
async fn what_is_missing_is_404_and_what_is_wrong_400() {
    let world = World::new().await;
    let missing = [
        ("GET", format!("{STREAMS}/none")),
        ("DELETE", format!("{STREAMS}/none")),
        ("GET", format!("{CACHES}/none")),
        ("DELETE", format!("{CACHES}/none")),
        ("GET", "/v1/nodes/none".into()),
        ("POST", "/v1/nodes/none/drain".into()),
        ("GET", "/v1/tenants/t/namespaces/none/streams".into()),
        ("DELETE", "/v1/tenants/t/namespaces/none".into()),
        ("DELETE", "/v1/tenants/none".into()),
        ("GET", "/v1/nothing/like/this".into()),
    ];
    for (method, path) in missing {
        let answer = world.send(method, &path, Some(&world.admin), None).await;
        assert_eq!(answer.outcome(), (404, "not_found".into()), "{method} {path}");
    }
    let patched = world.patch(&format!("{STREAMS}/none"), json!({"durable": false})).await;
    assert_eq!(patched.outcome(), (404, "not_found".into()));
    let mut bad: Vec<Value> = ["a/b", "", ".a", &"x".repeat(129)].map(stream).into();
    for (member, value) in [
        ("shards", json!(0)),
        ("shards", json!(-1)),
        ("kind", json!("Topic")),
        ("retention", json!({"max_age_seconds": 0})),
        ("retention", Value::Null),
        ("region", json!("")),
        ("durable", json!("yes")),
    ] {
        let mut body = stream("s");
        body[member] = value;
        bad.push(body);
    }
    bad.push(json!({"stream": "s"}));
    bad.push(json!([]));
    for body in bad {
        assert_eq!(
            world.create_stream(body.clone()).await.outcome(),
            (400, "validation_error".into()),
            "{body}"
        );
    }
    let none: Vec<Value> = world.get(STREAMS).await.json()["items"].as_array().unwrap().clone();
    assert_eq!(none, Vec::<Value>::new());
}

#[tokio::test]
async fn unknown_members_are_ignored_and_defaults_are_told() {
    let world = World::new().await;
    let mut body = stream("s");
    body["a_later_member"] = json!({"deep": [1, 2]});
    body["retention"] = json!({"max_age_seconds": 60, "unit": "s"});
    let made = world.create_stream(body).await;
    assert_eq!(made.outcome().0, 201);
    let made = made.json();
    assert_eq!((&made["replication_factor"], &made["routing"]), (&json!(1), &json!("jump_hash")));
    assert_eq!(made["retention"], json!({"max_age_seconds": 60, "max_size_bytes": null}));
    assert!(made.get("region").is_none(), "unset members are left out");
    let mut modulo = stream("m");
    modulo["routing"] = json!("modulo");
    assert!(world.create_stream(modulo).await.json().get("routing").is_none());
}

#[tokio::test]
async fn a_patch_answers_the_whole_resource() {
    let world = World::new().await;
    world.create_stream(stream("s")).await;
    let body = json!({"retention": {"max_size_bytes": 5}, "consistency": "Quorum", "durable": false});
    let patched = world.patch(&format!("{STREAMS}/s"), body).await;
    assert_eq!(patched.status, 200);
    let patched = patched.json();
    assert_eq!(patched, world.get(&format!("{STREAMS}/s")).await.json());
    assert_eq!((&patched["consistency"], &patched["durable"]), (&json!("Quorum"), &json!(false)));
    assert_eq!((&patched["delivery"], &patched["shards"]), (&json!("AtLeastOnce"), &json!(1)));
    let refused = world.patch(&format!("{STREAMS}/s"), json!({"retention": {"max_age_seconds": 0}})).await;
    assert_eq!(refused.outcome(), (400, "validation_error".into()));
    world.post(CACHES, json!({"cache": "c"})).await;
    let patched = world.patch(&format!("{CACHES}/c"), json!({"display_name": "new"})).await;
    assert_eq!((patched.outcome().0, &patched.json()["display_name"]), (200, &json!("new")));
}

#[tokio::test]
async fn a_delete_takes_a_json_body_and_answers_an_empty_one() {
    let world = World::new().await;
    world.create_stream(stream("s")).await;
    let path = format!("{STREAMS}/s");
    let deleted = world.send("DELETE", &path, Some(&world.admin), Some(json!({"why": "test"}))).await;
    assert_eq!((deleted.status.as_u16(), deleted.bytes.len()), (204, 0));
    assert_eq!(world.delete(&path).await.outcome(), (404, "not_found".into()));
}

#[tokio::test]
async fn a_reused_name_is_created_anew_with_a_greater_incarnation() {
    let world = World::new().await;
    let first = world.create_stream(stream("s")).await.json()["incarnation"].as_u64().unwrap();
    world.delete(&format!("{STREAMS}/s")).await;
    let again = world.create_stream(stream("s")).await;
    assert_eq!(again.outcome().0, 201);
    assert!(again.json()["incarnation"].as_u64().unwrap() > first);
}

#[tokio::test]
async fn pages_are_full_until_the_last_and_hold_every_entry_once() {
    let world = World::new().await;
    let mut names: Vec<String> = (0..25).map(|n| format!("s{n}")).collect();
    for name in &names {
        world.create_stream(stream(name)).await;
    }
    names.sort();
    let mut seen = Vec::new();
    let mut sizes = Vec::new();
    let mut cursor = String::new();
    loop {
        let page = world.get(&format!("{STREAMS}?limit=10&cursor={cursor}")).await.json();
        let items = page["items"].as_array().unwrap();
        seen.extend(items.iter().map(|item| item["stream"].as_str().unwrap().to_owned()));
        sizes.push(items.len());
        // An insert and a deletion behind the cursor move nothing that is still to come.
        world.create_stream(stream("a0")).await;
        world.delete(&format!("{STREAMS}/a0")).await;
        match page.get("next_cursor") {
            Some(next) => cursor = next.as_str().unwrap().to_owned(),
            None => break,
        }
    }
    assert_eq!(seen, names);
    assert_eq!(sizes, [10, 10, 5]);
    let exact = world.get(&format!("{STREAMS}?limit=25")).await.json();
    assert!(exact.get("next_cursor").is_none(), "a full last page is the last");
    let all = world.get(&format!("{STREAMS}?limit=1000")).await.json();
    assert_eq!(all["items"].as_array().unwrap().len(), 25);
    for bad in ["limit=0", "limit=10001", "limit=x", "limit=-1", "cursor=%25%25"] {
        let refused = world.get(&format!("{STREAMS}?{bad}")).await;
        assert_eq!(refused.outcome(), (400, "validation_error".into()), "{bad}");
    }
}

#[tokio::test]
async fn every_listing_takes_the_limit_a_command_line_sends() {
    let world = World::new().await;
    for path in
        ["/v1/tenants", "/v1/tenants/t/namespaces", STREAMS, CACHES, "/v1/nodes", "/v1/shard-assignments"]
    {
        let page = world.get(&format!("{path}?limit=1000")).await;
        assert_eq!(page.status, 200, "{path}");
        let page = page.json();
        assert!(page["items"].is_array() && page.get("next_cursor").is_none(), "{path}");
    }
}

#[tokio::test]
async fn a_listing_shows_what_the_caller_could_manage_and_fills_its_pages() {
    let world = World::new().await;
    for n in 0..6 {
        world.create_stream(stream(&format!("s{n}"))).await;
    }
    let token = world.token("t", &["stream.manage:stream:t/n/s1", "stream.manage:stream:t/n/s4"]).await;
    let page = world.send("GET", &format!("{STREAMS}?limit=1"), Some(&token), None).await.json();
    assert_eq!(page["items"][0]["stream"], "s1");
    let cursor = page["next_cursor"].as_str().unwrap();
    let page =
        world.send("GET", &format!("{STREAMS}?limit=1&cursor={cursor}"), Some(&token), None).await.json();
    assert_eq!(page["items"][0]["stream"], "s4");
    assert!(page.get("next_cursor").is_none());
}

#[tokio::test]
async fn a_batch_is_created_whole_or_not_at_all() {
    let world = World::new().await;
    let path = "/v1/tenants/t/namespaces/n/resources";
    let both = json!({"streams": [stream("a"), stream("b")], "caches": [{"cache": "a"}]});
    let made = world.post(path, both.clone()).await;
    assert_eq!(made.outcome().0, 201);
    let body = made.json();
    assert_eq!(
        (&body["streams"][1]["status"], &body["streams"][1]["stream"]),
        (&json!("created"), &json!("b"))
    );
    assert_eq!(body["caches"][0]["status"], "created");
    let again = world.post(path, both).await;
    assert_eq!((again.outcome().0, &again.json()["streams"][0]["status"]), (200, &json!("unchanged")));

    let mut differing = stream("a");
    differing["shards"] = json!(7);
    let refused = world.post(path, json!({"streams": [stream("new"), differing]})).await;
    assert_eq!(refused.outcome(), (409, "conflict".into()));
    assert_eq!(world.get(&format!("{STREAMS}/new")).await.status, 404, "nothing of it was written");
    let many: Vec<Value> = (0..257).map(|n| stream(&format!("m{n}"))).collect();
    for bad in [json!({}), json!({"streams": many}), json!({"streams": [stream("x"), stream("x")]})] {
        assert_eq!(world.post(path, bad).await.outcome(), (400, "validation_error".into()));
    }
    let token = world.token("t", &["stream.manage:stream:t/n/x"]).await;
    let partly = json!({"streams": [stream("x"), stream("y")]});
    let refused = world.send("POST", path, Some(&token), Some(partly)).await;
    assert_eq!(refused.outcome(), (403, "forbidden".into()));
}

#[tokio::test]
async fn a_deleted_tenant_takes_its_tokens_along() {
    let world = World::new().await;
    world.bootstrap_tenant("u").await;
    let token = world.token("u", &["ns.manage:namespace:u/*"]).await;
    let list = || world.send("GET", "/v1/tenants/u/namespaces", Some(&token), None);
    assert_eq!(list().await.status, 200);
    assert_eq!(world.delete("/v1/tenants/u").await.status, 204);
    assert_eq!(list().await.outcome(), (401, "unauthorized".into()));
    assert_eq!(world.bootstrap_tenant("u").await.outcome().0, 200, "the id can be bootstrapped anew");
    assert_eq!(list().await.outcome().0, 401, "and an old token stays refused");
}

#[tokio::test]
async fn bodies_and_methods_outside_the_rules_get_the_same_form_of_refusal() {
    use axum::body::Body;
    use axum::http::Request;
    let world = World::new().await;
    let bearer = format!("Bearer {}", world.admin);
    let post = |bytes: Vec<u8>| {
        Request::post(STREAMS).header("authorization", &bearer).body(Body::from(bytes)).unwrap()
    };
    let large = call(&world.public, post(vec![b' '; (1 << 20) + 1])).await;
    assert_eq!(large.outcome(), (413, "validation_error".into()));
    for garbage in [&b"\xff\xfe"[..], b"{", b"nonsense", b""] {
        assert_eq!(call(&world.public, post(garbage.to_vec())).await.outcome().0, 400);
    }
    let deep = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
    let mut nested = stream("s").to_string();
    nested.truncate(nested.len() - 1);
    nested.push_str(&format!(",\"x\":{deep}}}"));
    assert_eq!(call(&world.public, post(nested.into_bytes())).await.outcome().0, 400);
    let method = world.send("PUT", STREAMS, Some(&world.admin), None).await;
    assert_eq!(method.outcome(), (405, "validation_error".into()));
    let bad_path = world.get("/v1/tenants/t/namespaces/n/streams/%ff").await;
    assert_eq!(bad_path.outcome().0, 401, "a path that is no text names no tenant of the token");
}

#[tokio::test]
async fn a_request_id_is_taken_over_and_comes_back() {
    use axum::body::Body;
    use axum::http::Request;
    let world = World::new().await;
    let request = Request::get("/v1/tenants").header("x-request-id", "my-id-7").body(Body::empty()).unwrap();
    let answer = call(&world.public, request).await;
    assert_eq!(answer.headers["x-request-id"], "my-id-7");
    assert_eq!(answer.json()["request_id"], "my-id-7");
}
