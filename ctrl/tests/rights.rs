//! Who may call what: every route of control-plane-api 3.4 with each kind of credential.

mod harness;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use harness::{ADMIN, World, stream};
use serde_json::{Value, json};

struct Route {
    method: &'static str,
    path: &'static str,
    body: Option<Value>,
    /// Any one of these suffices.
    rights: &'static [&'static str],
    /// Valid rights that are not enough.
    others: &'static [&'static str],
}

fn route(
    method: &'static str,
    path: &'static str,
    body: Option<Value>,
    rights: &'static [&'static str],
    others: &'static [&'static str],
) -> Route {
    Route { method, path, body, rights, others }
}

const CLUSTER_TENANTS: &[&str] = &["tenant.manage:cluster:*"];
const NO_CLUSTER: &[&str] = &["tenant.manage:tenant:t", "node.manage:cluster:*", "node.view:cluster:*"];
const VIEW: &[&str] = &["node.view:cluster:*"];
const NO_VIEW: &[&str] = &["node.manage:cluster:*", "tenant.manage:cluster:*", "tenant.manage:tenant:t"];
const NODE: &[&str] = &["node.manage:node:b", "node.manage:cluster:*"];
const NO_NODE: &[&str] = &["node.manage:node:c", "node.view:cluster:*", "tenant.manage:tenant:t"];
const NS: &[&str] = &["ns.manage:namespace:t/m", "ns.manage:namespace:t/*", "tenant.manage:tenant:t"];
const NO_NS: &[&str] = &["stream.manage:stream:t/m/*", "tenant.manage:cluster:*", "ns.manage:namespace:t/k"];
const STREAM: &[&str] = &[
    "stream.manage:stream:t/n/s",
    "stream.manage:stream:t/n/*",
    "stream.manage:stream:t/*/*",
    "ns.manage:namespace:t/n",
];
const NO_STREAM: &[&str] = &[
    "stream.publish:stream:t/n/s",
    "cache.manage:cache:t/n/*",
    "stream.manage:stream:t/n/other",
    "tenant.manage:cluster:*",
];
const CACHE: &[&str] = &["cache.manage:cache:t/n/c", "cache.manage:cache:t/*/*", "ns.manage:namespace:t/n"];
const NO_CACHE: &[&str] =
    &["cache.write:cache:t/n/c", "stream.manage:stream:t/n/*", "cache.manage:cache:t/n/other"];
const ANY_STREAM: &[&str] = &["stream.manage:stream:t/other/x", "tenant.manage:tenant:t"];
const ANY_CACHE: &[&str] = &["cache.manage:cache:t/other/x", "tenant.manage:tenant:t"];
const ANY_NS: &[&str] = &["ns.manage:namespace:t/x", "tenant.manage:tenant:t"];

/// Routes whose token must be of tenant `t`.
fn tenant_routes() -> Vec<Route> {
    let s = "/v1/tenants/t/namespaces/n/streams/s";
    let c = "/v1/tenants/t/namespaces/n/caches/c";
    let no_streams: &[&str] = &["stream.publish:stream:t/n/s", "cache.manage:cache:t/n/c"];
    let no_caches: &[&str] = &["cache.read:cache:t/n/c", "stream.manage:stream:t/n/s"];
    let no_namespaces: &[&str] = &["stream.manage:stream:t/n/s", "tenant.manage:cluster:*"];
    vec![
        route("GET", "/v1/tenants/t/namespaces", None, ANY_NS, no_namespaces),
        route("POST", "/v1/tenants/t/namespaces", Some(json!({"namespace": "m"})), NS, NO_NS),
        route("DELETE", "/v1/tenants/t/namespaces/m", None, NS, NO_NS),
        route("GET", "/v1/tenants/t/namespaces/n/streams", None, ANY_STREAM, no_streams),
        route("POST", "/v1/tenants/t/namespaces/n/streams", Some(stream("s")), STREAM, NO_STREAM),
        route("GET", s, None, STREAM, NO_STREAM),
        route("PATCH", s, Some(json!({})), STREAM, NO_STREAM),
        route("DELETE", s, None, STREAM, NO_STREAM),
        route("GET", "/v1/tenants/t/namespaces/n/caches", None, ANY_CACHE, no_caches),
        route("POST", "/v1/tenants/t/namespaces/n/caches", Some(json!({"cache": "c"})), CACHE, NO_CACHE),
        route("GET", c, None, CACHE, NO_CACHE),
        route("PATCH", c, Some(json!({})), CACHE, NO_CACHE),
        route("DELETE", c, None, CACHE, NO_CACHE),
        route(
            "POST",
            "/v1/tenants/t/namespaces/n/resources",
            Some(json!({"streams": [stream("s")]})),
            STREAM,
            NO_STREAM,
        ),
    ]
}

/// Routes that take a token of any tenant.
fn cluster_routes() -> Vec<Route> {
    let tenant = json!({"tenant_id": "z", "display_name": ""});
    let node = json!({"node_id": "b", "advertise_addr": "127.0.0.1:7"});
    let mut routes = vec![
        route("GET", "/v1/tenants", None, CLUSTER_TENANTS, NO_CLUSTER),
        route("POST", "/v1/tenants", Some(tenant), CLUSTER_TENANTS, NO_CLUSTER),
        route("DELETE", "/v1/tenants/z", None, CLUSTER_TENANTS, NO_CLUSTER),
        route("GET", "/v1/nodes", None, VIEW, NO_VIEW),
        route("GET", "/v1/nodes/b", None, VIEW, NO_VIEW),
        route("GET", "/v1/shard-assignments", None, VIEW, NO_VIEW),
        route("GET", "/v1/shard-assignments/snapshot", None, VIEW, NO_VIEW),
        route("GET", "/v1/shard-assignments/changes?since=0", None, VIEW, NO_VIEW),
        route("POST", "/v1/nodes", Some(node), NODE, NO_NODE),
        route("POST", "/v1/nodes/b/heartbeat", Some(json!({"incarnation": 1})), NODE, NO_NODE),
        route("POST", "/v1/nodes/b/drain", None, NODE, NO_NODE),
        route("PATCH", "/v1/nodes/b", Some(json!({})), NODE, NO_NODE),
        route("POST", "/v1/nodes/b/deregister", None, NODE, NO_NODE),
        route("DELETE", "/v1/nodes/b", None, &["node.manage:cluster:*"], &["node.manage:node:b"]),
    ];
    for path in [
        "/v1/tenants/snapshot",
        "/v1/namespaces/snapshot",
        "/v1/streams/snapshot",
        "/v1/caches/snapshot",
        "/v1/tenants/changes?since=0",
        "/v1/namespaces/changes?since=0",
        "/v1/streams/changes?since=0",
        "/v1/caches/changes?since=0",
    ] {
        routes.push(route("GET", path, None, VIEW, NO_VIEW));
    }
    routes
}

async fn ask(world: &World, route: &Route, token: Option<&str>) -> (u16, String) {
    world.send(route.method, route.path, token, route.body.clone()).await.outcome()
}

#[tokio::test]
async fn each_right_of_the_table_opens_its_routes_and_no_other_does() {
    let world = World::new().await;
    for route in tenant_routes().iter().chain(&cluster_routes()) {
        let name = format!("{} {}", route.method, route.path);
        for &other in route.others {
            let token = world.token("t", &[other]).await;
            assert_eq!(
                ask(&world, route, Some(&token)).await,
                (403, "forbidden".into()),
                "{name} with {other}"
            );
        }
        let nothing = world.token("t", &[]).await;
        assert_eq!(
            ask(&world, route, Some(&nothing)).await,
            (403, "forbidden".into()),
            "{name} with nothing"
        );
        for &right in route.rights {
            let token = world.token("t", &[right]).await;
            let (status, _) = ask(&world, route, Some(&token)).await;
            assert!(!matches!(status, 401 | 403 | 400 | 405 | 500), "{name} with {right}: {status}");
        }
    }
}

/// Credentials that are never valid, with the reason they are in the list for.
async fn bad_tokens(world: &World) -> Vec<(&'static str, String)> {
    let good = world.admin.clone();
    let parts: Vec<&str> = good.split('.').collect();
    let unsigned = URL_SAFE_NO_PAD.encode(json!({"alg": "none", "typ": "JWT"}).to_string());
    let body = json!({"audience": "felix-broker", "permissions": ADMIN});
    vec![
        ("garbage", "garbage".into()),
        ("empty signature", format!("{}.{}.", parts[0], parts[1])),
        ("alg none", format!("{unsigned}.{}.", parts[1])),
        ("changed payload", format!("{}.{}x.{}", parts[0], parts[1], parts[2])),
        ("broker audience", world.dev_token("t", body).await),
    ]
}

#[tokio::test]
async fn without_a_valid_token_every_route_answers_alike() {
    let world = World::new().await;
    let bad = bad_tokens(&world).await;
    for route in tenant_routes().iter().chain(&cluster_routes()) {
        let name = format!("{} {}", route.method, route.path);
        let missing = world.send(route.method, route.path, None, route.body.clone()).await;
        assert_eq!(missing.outcome(), (401, "unauthorized".into()), "{name}");
        assert_eq!(missing.headers["www-authenticate"], "Bearer");
        for (what, token) in &bad {
            let refused = world.send(route.method, route.path, Some(token), route.body.clone()).await;
            assert_eq!(refused.outcome(), (401, "unauthorized".into()), "{name} with {what}");
            assert_eq!(refused.json()["message"], missing.json()["message"], "{name} with {what}");
        }
    }
}

#[tokio::test]
async fn a_token_of_another_tenant_opens_cluster_routes_only() {
    let world = World::new().await;
    world.bootstrap_tenant("u").await;
    let all =
        ["tenant.manage:tenant:u", "tenant.manage:cluster:*", "node.view:cluster:*", "node.manage:cluster:*"];
    let other = world.token("u", &all).await;
    for route in tenant_routes() {
        assert_eq!(ask(&world, &route, Some(&other)).await, (401, "unauthorized".into()), "{}", route.path);
    }
    for route in cluster_routes() {
        let (status, _) = ask(&world, &route, Some(&other)).await;
        assert!(!matches!(status, 401 | 403), "{} {}: {status}", route.method, route.path);
    }
}

#[tokio::test]
async fn a_tenant_that_does_not_exist_answers_like_a_bad_token() {
    let world = World::new().await;
    let absent = world.get("/v1/tenants/nobody/namespaces").await;
    let present = world.send("GET", "/v1/tenants/t/namespaces", Some("garbage"), None).await;
    assert_eq!(absent.outcome(), (401, "unauthorized".into()));
    assert_eq!(absent.json()["message"], present.json()["message"]);
}

#[tokio::test]
async fn the_right_is_checked_before_existence() {
    let world = World::new().await;
    let token = world.token("t", &["stream.manage:stream:t/n/s"]).await;
    for path in ["/v1/tenants/t/namespaces/n/streams/secret", "/v1/tenants/t/namespaces/gone/streams/x"] {
        let refused = world.send("GET", path, Some(&token), None).await;
        assert_eq!(refused.outcome(), (403, "forbidden".into()), "{path}");
    }
    let unknown = world.token("t", &["node.manage:node:b"]).await;
    let drained = world.send("POST", "/v1/nodes/zzz/drain", Some(&unknown), None).await;
    assert_eq!(drained.outcome(), (403, "forbidden".into()));
}

#[tokio::test]
async fn open_routes_need_no_token() {
    let world = World::new().await;
    for path in [
        "/v1/tenants/t/.well-known/jwks.json",
        "/v1/system/info",
        "/v1/system/health",
        "/v1/system/live",
        "/v1/system/ready",
    ] {
        assert_eq!(world.send("GET", path, None, None).await.status, 200, "{path}");
    }
    let none = world.send("GET", "/v1/tenants/nobody/.well-known/jwks.json", None, None).await;
    assert_eq!(none.outcome(), (404, "not_found".into()));
}

#[tokio::test]
async fn routes_that_are_not_built_are_not_found() {
    let world = World::new().await;
    for (method, path) in [
        ("POST", "/v1/tenants/t/token/exchange"),
        ("POST", "/v1/tenants/t/token/refresh"),
        ("POST", "/v1/tenants/t/token/delegate"),
        ("GET", "/v1/tenants/t/signing-keys"),
        ("GET", "/v1/tenants/t/rbac/policies"),
        ("GET", "/v1/shard-moves"),
        ("POST", "/v1/placement/pause"),
        ("POST", "/v1/nodes/b/replica-status"),
        ("GET", "/v1/fleet/features"),
        ("GET", "/v1/openapi.json"),
    ] {
        let answer = world.send(method, path, Some(&world.admin), None).await;
        assert_eq!(answer.outcome(), (404, "not_found".into()), "{method} {path}");
    }
}
