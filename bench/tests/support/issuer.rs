//! A control plane whose keys the test holds, so that it can sign what no real one would. Scope: one per test.
//! Knows one tenant with one stream `s` of one shard, led by the one broker.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};
use axum::extract::Path;
use axum::routing::{get, post};
use axum::{Json, Router};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use felix_wire::control::{
    Assignment, AssignmentKey, AssignmentState, Claims, Consistency, Delivery, Jwk, Jwks, RegisterNode,
    ResourceKind, Retention, Stream, StreamKind, TOKEN_ISSUER, Tenant,
};
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::raw::Raw;
use super::world::{Broker, NAMESPACE, NODE, TENANT};

/// A key pair that signs tokens.
pub struct Signer {
    pub kid: String,
    document: Vec<u8>,
    pub public: Vec<u8>,
}

impl Signer {
    pub fn new(kid: &str) -> Signer {
        let pair = Ed25519KeyPair::generate().unwrap();
        let document = pair.to_pkcs8().unwrap().as_ref().to_vec();
        Signer { kid: kid.to_owned(), document, public: pair.public_key().as_ref().to_vec() }
    }

    /// Any claims, signed.
    pub fn sign(&self, claims: &Claims) -> String {
        let header = Header { kid: Some(self.kid.clone()), ..Header::new(Algorithm::EdDSA) };
        jsonwebtoken::encode(&header, claims, &EncodingKey::from_ed_der(&self.document)).unwrap()
    }
}

/// Seconds since 1970.
pub fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

/// Good claims for the next hour that allow everything on the tenant's streams.
pub fn claims(subject: &str) -> Claims {
    let all = format!("stream:{TENANT}/*/*");
    Claims {
        iss: TOKEN_ISSUER.to_owned(),
        aud: "felix-broker".to_owned(),
        sub: subject.to_owned(),
        tid: TENANT.to_owned(),
        iat: now_s(),
        exp: now_s() + 3_600,
        nbf: None,
        perms: vec![format!("stream.publish:{all}"), format!("stream.subscribe:{all}")],
        jti: None,
        act: None,
        may_act: None,
    }
}

/// See the module.
pub struct Issuer {
    pub signer: Signer,
    pub broker: Broker,
    /// How often the tenant's keys were asked for.
    pub key_fetches: Arc<AtomicU64>,
    _folder: TempDir,
}

impl Issuer {
    /// Starts it with a broker that has served the stream.
    pub async fn start() -> Issuer {
        let signer = Signer::new("k1");
        let key_fetches = Arc::new(AtomicU64::new(0));
        let jwks =
            Jwks { keys: vec![Jwk::ed25519(signer.kid.clone(), URL_SAFE_NO_PAD.encode(&signer.public))] };
        let url = serve(jwks, Arc::clone(&key_fetches)).await;
        let folder = tempfile::tempdir().unwrap();
        let (broker, folder) =
            tokio::task::spawn_blocking(move || (Broker::start(&folder, &url, "any", &[]), folder))
                .await
                .unwrap();
        let issuer = Issuer { signer, broker, key_fetches, _folder: folder };
        let token = issuer.signer.sign(&claims("waits"));
        issuer.client().await.until_served(TENANT, &token, NAMESPACE, "s").await;
        issuer
    }

    pub async fn client(&self) -> Raw {
        Raw::connect(self.broker.addr, &self.broker.certificate()).await.expect("a connection")
    }
}

async fn serve(jwks: Jwks, key_fetches: Arc<AtomicU64>) -> String {
    let keys = move || {
        key_fetches.fetch_add(1, Ordering::Relaxed);
        let jwks = jwks.clone();
        async move { Json(jwks) }
    };
    let app = Router::new()
        .route("/v1/{kind}/snapshot", get(snapshot))
        .route("/v1/{kind}/changes", get(async || Json(json!({"items": [], "next_seq": 1}))))
        .route("/v1/nodes", get(async || Json(json!({"items": []}))).post(register))
        .route("/v1/nodes/{id}/heartbeat", post(heartbeat))
        .route("/v1/tenants/{tenant}/.well-known/jwks.json", get(keys));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    url
}

async fn snapshot(Path(kind): Path<String>) -> Json<Value> {
    let tenant = Tenant { tenant_id: TENANT.to_owned(), display_name: String::new() };
    let stream = Stream {
        tenant_id: TENANT.to_owned(),
        namespace: NAMESPACE.to_owned(),
        stream: "s".to_owned(),
        kind: StreamKind::Stream,
        shards: 1,
        replication_factor: 1,
        retention: Retention::default(),
        consistency: Consistency::Leader,
        delivery: Delivery::AtLeastOnce,
        durable: false,
        region: None,
        routing: None,
        incarnation: 1,
    };
    let assignment = Assignment {
        key: AssignmentKey {
            tenant_id: TENANT.to_owned(),
            namespace: NAMESPACE.to_owned(),
            kind: ResourceKind::Stream,
            stream: "s".to_owned(),
            shard: 0,
        },
        leader: NODE.to_owned(),
        replicas: Vec::new(),
        generation: 1,
        state: AssignmentState::Active,
        successor: None,
        joining: None,
        move_started_at_millis: None,
        move_reason: None,
        routing: None,
        incarnation: 1,
    };
    Json(match kind.as_str() {
        "tenants" => json!({"items": [tenant], "next_seq": 1}),
        "streams" => json!({"items": [stream], "next_seq": 1}),
        "shard-assignments" => json!({"items": [assignment], "next_seq": 1}),
        _ => json!({"items": [], "next_seq": 1}),
    })
}

async fn register(Json(body): Json<RegisterNode>) -> Json<Value> {
    let status = json!({"lifecycle": "live", "last_heartbeat_at_millis": 0, "registered_at_millis": 0, "incarnation": 1});
    Json(json!({"node": {"node_id": body.node_id, "spec": body.spec, "status": status},
        "heartbeat_interval_ms": 500, "expiry_timeout_ms": 15_000}))
}

async fn heartbeat(Path(id): Path<String>) -> Json<Value> {
    Json(
        json!({"node_id": id, "lifecycle": "live", "heartbeat_interval_ms": 500, "expiry_timeout_ms": 15_000}),
    )
}
