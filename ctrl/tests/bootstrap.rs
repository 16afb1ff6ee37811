//! The bootstrap listener (control-plane-api 2.6), and what its tokens hold.

mod harness;

use std::sync::Arc;

use axum::body::Body;
use axum::http::Request;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use felix_ctrl::api;
use felix_ctrl::plane::{BootstrapSettings, Plane, Settings};
use felix_ctrl::store::MemoryStore;
use felix_wire::control::{Action, Claims, Grants};
use harness::{BOOTSTRAP_TOKEN, World, call};
use serde_json::{Value, json};

const INITIALIZE: &str = "/internal/bootstrap/tenants/new/initialize";
const DEV_TOKEN: &str = "/internal/bootstrap/tenants/t/dev-token";

fn claims_of(token: &str) -> Claims {
    let payload = URL_SAFE_NO_PAD.decode(token.split('.').nth(1).unwrap()).unwrap();
    serde_json::from_slice(&payload).unwrap()
}

#[tokio::test]
async fn a_tenant_is_bootstrapped_once() {
    let world = World::new().await;
    let body = json!({
        "display_name": "New",
        "idp_issuers": [{"issuer": "https://idp.example", "audiences": ["felix"]}],
        "initial_admin_principals": ["p1"],
        "policies": [{"subject": "role:ops", "object": "cluster:*", "action": "node.view"}],
        "groupings": [{"user": "p1", "role": "role:ops"}],
    });
    let first = world.bootstrap_call(INITIALIZE, BOOTSTRAP_TOKEN, body.clone()).await;
    assert_eq!(first.outcome().0, 200);
    let answer = first.json();
    assert_eq!((&answer["tenant_id"], &answer["status"]), (&json!("new"), &json!("initialized")));
    let jwks = world.send("GET", answer["jwks_url"].as_str().unwrap(), None, None).await.json();
    assert_eq!(jwks["keys"][0]["kid"], answer["kid"]);
    assert_eq!((&jwks["keys"][0]["kty"], &jwks["keys"][0]["use"]), (&json!("OKP"), &json!("sig")));
    let second = world.bootstrap_call(INITIALIZE, BOOTSTRAP_TOKEN, body).await;
    assert_eq!(second.outcome(), (409, "already_initialized".into()));
}

#[tokio::test]
async fn a_tenant_made_over_the_api_keeps_its_key_when_bootstrapped() {
    let world = World::new().await;
    world.post("/v1/tenants", json!({"tenant_id": "new", "display_name": ""})).await;
    let jwks = world.send("GET", "/v1/tenants/new/.well-known/jwks.json", None, None).await.json();
    let answer = world.bootstrap_call(INITIALIZE, BOOTSTRAP_TOKEN, json!({})).await.json();
    assert_eq!(answer["kid"], jwks["keys"][0]["kid"]);
}

#[tokio::test]
async fn bad_bootstrap_requests_write_nothing() {
    let world = World::new().await;
    let rule = |object: &str, action: &str| json!({"policies": [{"subject": "r", "object": object, "action": action}]});
    for bad in [
        rule("tenant:new", "tenant.rule"),
        rule("stream:new/*/s", "stream.publish"),
        rule("tenant:other", "tenant.manage"),
        json!({"idp_issuers": [{"issuer": "https://a#b"}]}),
        json!({"initial_admin_principals": [""]}),
        json!({"groupings": vec![json!({"user": "u", "role": "r"}); 1_025]}),
        json!("nothing"),
    ] {
        let refused = world.bootstrap_call(INITIALIZE, BOOTSTRAP_TOKEN, bad.clone()).await;
        assert_eq!(refused.outcome(), (400, "validation_error".into()), "{bad:.60}");
    }
    let message = world.bootstrap_call(INITIALIZE, BOOTSTRAP_TOKEN, rule("tenant:new", "x")).await.json();
    assert!(message["message"].as_str().unwrap().contains("invalid action"));
    let bad_name =
        world.bootstrap_call("/internal/bootstrap/tenants/a%20b/initialize", BOOTSTRAP_TOKEN, json!({}));
    assert_eq!(bad_name.await.outcome(), (400, "validation_error".into()));
    let jwks = world.send("GET", "/v1/tenants/new/.well-known/jwks.json", None, None).await;
    assert_eq!(jwks.status, 404);
}

#[tokio::test]
async fn only_the_current_and_the_previous_bootstrap_token_open_it() {
    let world = World::new().await;
    let ask = async |token: &str| world.bootstrap_call(INITIALIZE, token, json!({})).await.outcome();
    for wrong in ["", "wrong", "a-bootstrap-token-for-testx", "a-bootstrap-token-for-tests "] {
        assert_eq!(ask(wrong).await, (401, "unauthorized".into()), "{wrong:?}");
    }
    let missing = Request::post(INITIALIZE).body(Body::from("{}")).unwrap();
    assert_eq!(call(&world.bootstrap, missing).await.outcome(), (401, "unauthorized".into()));
    assert_eq!(ask("the-token-before-that-one").await.0, 200);
    let admin = Request::post(DEV_TOKEN).header("authorization", format!("Bearer {}", world.admin));
    let admin = call(&world.bootstrap, admin.body(Body::from("{}")).unwrap()).await;
    assert_eq!(admin.outcome(), (401, "unauthorized".into()), "an API token is no bootstrap token");
}

#[tokio::test]
async fn bootstrap_that_is_off_says_not_enabled_and_is_never_on_the_public_listener() {
    let plane = Plane::open(Arc::new(MemoryStore::default()), Settings::default()).unwrap();
    let request = |path: &str| {
        Request::post(path).header("x-felix-bootstrap-token", BOOTSTRAP_TOKEN).body(Body::from("{}")).unwrap()
    };
    let off = call(&api::bootstrap(plane), request(INITIALIZE)).await;
    assert_eq!(off.outcome(), (404, "not_enabled".into()));
    let world = World::new().await;
    assert_eq!(call(&world.public, request(INITIALIZE)).await.outcome(), (404, "not_enabled".into()));
    assert_eq!(call(&world.public, request(DEV_TOKEN)).await.outcome(), (404, "not_enabled".into()));
    let bootstrap =
        BootstrapSettings { token: BOOTSTRAP_TOKEN.into(), token_previous: None, dev_tokens: false };
    let settings = Settings { bootstrap: Some(bootstrap), ..Settings::default() };
    let plane = Plane::open(Arc::new(MemoryStore::default()), settings).unwrap();
    let no_dev = call(&api::bootstrap(plane), request(DEV_TOKEN)).await;
    assert_eq!(no_dev.outcome(), (404, "not_enabled".into()));
}

#[tokio::test]
async fn a_development_token_holds_exactly_what_was_asked_and_implied() {
    let world = World::new().await;
    let body = json!({"permissions": ["stream.publish:stream:t/n/*"], "ttl_seconds": 60});
    let claims = claims_of(&world.dev_token("t", body).await);
    assert_eq!(claims.perms, ["stream.publish:stream:t/n/*"]);
    assert_eq!((claims.iss.as_str(), claims.aud.as_str()), ("felix-auth", "felix-broker"));
    assert_eq!((claims.tid.as_str(), claims.sub.as_str(), claims.exp - claims.iat), ("t", "tester", 60));
    let claims = claims_of(&world.dev_token("t", json!({"permissions": ["ns.manage:namespace:t/n"]})).await);
    assert_eq!(claims.exp - claims.iat, 900);
    let grants = Grants::from_claims(&claims).unwrap();
    assert!(grants.allows_stream(Action::StreamSubscribe, "t", "n", "s"));
    assert!(!grants.allows_stream(Action::StreamSubscribe, "t", "m", "s"));
}

#[tokio::test]
async fn development_tokens_outside_the_rules_are_refused() {
    let world = World::new().await;
    let many: Vec<String> = (0..300).map(|n| format!("stream.publish:stream:t/n/s{n}")).collect();
    let bad: [Value; 8] = [
        json!({"principal": "p", "permissions": ["stream.fly:stream:t/n/s"]}),
        json!({"principal": "p", "permissions": ["stream.publish:stream:u/n/s"]}),
        json!({"principal": "p", "permissions": many}),
        json!({"principal": "p", "ttl_seconds": 0}),
        json!({"principal": "p", "ttl_seconds": 2_592_001}),
        json!({"principal": "p", "audience": "felix"}),
        json!({"principal": ""}),
        json!({}),
    ];
    for body in bad {
        let refused = world.bootstrap_call(DEV_TOKEN, BOOTSTRAP_TOKEN, body.clone()).await;
        assert_eq!(refused.outcome(), (400, "validation_error".into()), "{body:.80}");
    }
    let nobody = "/internal/bootstrap/tenants/nobody/dev-token";
    let absent = world.bootstrap_call(nobody, BOOTSTRAP_TOKEN, json!({"principal": "p"})).await;
    assert_eq!(absent.outcome(), (404, "not_found".into()));
}
