//! A control plane in this process, driven through its routers.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, Request, StatusCode};
use felix_ctrl::plane::{BootstrapSettings, Plane, Settings};
use felix_ctrl::store::{MemoryStore, Store};
use felix_ctrl::{api, reconcile};
use serde_json::{Value, json};
use tower::ServiceExt;

pub const BOOTSTRAP_TOKEN: &str = "a-bootstrap-token-for-tests";

/// Everything a caller may need.
pub const ADMIN: [&str; 4] =
    ["tenant.manage:tenant:t", "tenant.manage:cluster:*", "node.view:cluster:*", "node.manage:cluster:*"];

pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub bytes: Vec<u8>,
}

impl Answer {
    pub fn json(&self) -> Value {
        let text = || String::from_utf8_lossy(&self.bytes).into_owned();
        serde_json::from_slice(&self.bytes).unwrap_or_else(|e| panic!("{e}: {}", text()))
    }

    /// The status and, for a refusal, its code. Checks that a refusal has the whole form.
    pub fn outcome(&self) -> (u16, String) {
        if self.status.is_success() {
            return (self.status.as_u16(), String::new());
        }
        let body = self.json();
        assert!(!body["message"].as_str().unwrap().is_empty());
        assert_eq!(body["request_id"].as_str().unwrap(), self.headers["x-request-id"]);
        (self.status.as_u16(), body["code"].as_str().unwrap().to_owned())
    }
}

pub struct World {
    pub plane: Arc<Plane>,
    pub public: Router,
    pub bootstrap: Router,
    pub operations: Router,
    /// Control-plane token of tenant `t` with all of [`ADMIN`].
    pub admin: String,
}

impl World {
    /// A bootstrapped tenant `t` with namespace `n`, no broker, no loop.
    pub async fn new() -> World {
        World::over(Arc::new(MemoryStore::default()), Settings::default()).await
    }

    pub async fn over(store: Arc<dyn Store>, settings: Settings) -> World {
        let bootstrap = BootstrapSettings {
            token: BOOTSTRAP_TOKEN.into(),
            token_previous: Some("the-token-before-that-one".into()),
            dev_tokens: true,
        };
        let plane = Plane::open(store, Settings { bootstrap: Some(bootstrap), ..settings }).unwrap();
        let mut world = World {
            public: api::public(Arc::clone(&plane)),
            bootstrap: api::bootstrap(Arc::clone(&plane)),
            operations: api::operations(Arc::clone(&plane)),
            plane,
            admin: String::new(),
        };
        world.bootstrap_tenant("t").await;
        world.admin = world.token("t", &ADMIN).await;
        let made = world.post("/v1/tenants/t/namespaces", json!({"namespace": "n"})).await;
        assert!(matches!(made.status.as_u16(), 201 | 409));
        world
    }

    /// Starts both loops; they end when the plane drains.
    pub fn start_loops(&self) {
        tokio::spawn(reconcile::place_shards(Arc::clone(&self.plane)));
        tokio::spawn(reconcile::sweep_leases(Arc::clone(&self.plane)));
    }

    pub async fn bootstrap_tenant(&self, tenant: &str) -> Answer {
        let path = format!("/internal/bootstrap/tenants/{tenant}/initialize");
        self.bootstrap_call(&path, BOOTSTRAP_TOKEN, json!({"display_name": "T"})).await
    }

    pub async fn bootstrap_call(&self, path: &str, token: &str, body: Value) -> Answer {
        let request =
            Request::post(path).header("x-felix-bootstrap-token", token).body(Body::from(body.to_string()));
        call(&self.bootstrap, request.unwrap()).await
    }

    /// A control-plane token of the tenant.
    pub async fn token(&self, tenant: &str, permissions: &[&str]) -> String {
        let body = json!({"audience": "felix-controlplane", "permissions": permissions});
        self.dev_token(tenant, body).await
    }

    pub async fn dev_token(&self, tenant: &str, mut body: Value) -> String {
        let path = format!("/internal/bootstrap/tenants/{tenant}/dev-token");
        body["principal"] = json!("tester");
        let answer = self.bootstrap_call(&path, BOOTSTRAP_TOKEN, body).await;
        assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.bytes));
        answer.json()["felix_token"].as_str().unwrap().to_owned()
    }

    pub async fn send(&self, method: &str, path: &str, token: Option<&str>, body: Option<Value>) -> Answer {
        let mut request = Request::builder().method(method).uri(path);
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let body = body.map_or_else(Body::empty, |body| Body::from(body.to_string()));
        call(&self.public, request.body(body).unwrap()).await
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.send("GET", path, Some(&self.admin), None).await
    }

    pub async fn post(&self, path: &str, body: Value) -> Answer {
        self.send("POST", path, Some(&self.admin), Some(body)).await
    }

    pub async fn patch(&self, path: &str, body: Value) -> Answer {
        self.send("PATCH", path, Some(&self.admin), Some(body)).await
    }

    pub async fn delete(&self, path: &str) -> Answer {
        self.send("DELETE", path, Some(&self.admin), None).await
    }

    pub async fn create_stream(&self, body: Value) -> Answer {
        self.post("/v1/tenants/t/namespaces/n/streams", body).await
    }

    pub async fn register(&self, node_id: &str, port: u16) -> Answer {
        let body = json!({"node_id": node_id, "advertise_addr": format!("127.0.0.1:{port}"),
            "client_addr": format!("127.0.0.1:{}", port + 1)});
        self.post("/v1/nodes", body).await
    }

    /// Every assignment, once there are `count` of them.
    pub async fn assignments(&self, count: usize) -> Vec<Value> {
        eventually(async || {
            let items = self.get("/v1/shard-assignments").await.json()["items"].as_array().unwrap().clone();
            (items.len() == count).then_some(items)
        })
        .await
    }
}

pub async fn call(router: &Router, request: Request<Body>) -> Answer {
    let response = router.clone().oneshot(request).await.unwrap();
    let (parts, body) = response.into_parts();
    let bytes = to_bytes(body, 64 << 20).await.unwrap().to_vec();
    Answer { status: parts.status, headers: parts.headers, bytes }
}

/// Asks until there is an answer, for at most ten seconds.
pub async fn eventually<T>(mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let asking = async {
        loop {
            if let Some(answer) = ask().await {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), asking).await.expect("it never came to be")
}

/// A stream as felixctl would create it.
pub fn stream(name: &str) -> Value {
    json!({"stream": name, "kind": "Stream", "shards": 1, "retention": {}, "consistency": "Leader",
        "delivery": "AtLeastOnce", "durable": true})
}
