//! The whole agent over HTTP against a small control plane in the process.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::{get, post};
use axum::{Json, Router};
use felix_runtime::Clock;
use felix_runtime::mailbox::{CoreReceiver, lane_to_core};
use felix_runtime::waker::CoreWaker;
use felix_wire::control::{AssignmentChange, AssignmentOp, Jwk, RegisterNode};
use felix_wire::id::NodeId;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::*;
use crate::node::agent::{Agent, AgentSettings, ControlPlane, Credential};
use crate::node::links::Links;
use crate::node::status::NodeStatus;
use crate::node::storage::LogBook;
use crate::snapshot::{Keys, Owner, Routes, ToCore};

const DEADLINE: Duration = Duration::from_secs(20);

#[derive(Default)]
struct Plane {
    streams: Vec<Stream>,
    assignments: Vec<Assignment>,
    changes: Vec<AssignmentChange>,
    registrations: u64,
    heartbeats: u64,
    key_fetches: u64,
    /// Every route answers 503.
    down: bool,
    /// The token that is taken.
    token: String,
}

type Shared = Arc<Mutex<Plane>>;
type Answer = Result<Json<Value>, StatusCode>;

impl Plane {
    fn check(&self, headers: &HeaderMap) -> Result<(), StatusCode> {
        let bearer = headers.get("authorization").and_then(|h| h.to_str().ok()).unwrap_or_default();
        match (self.down, bearer == format!("Bearer {}", self.token)) {
            (true, _) => Err(StatusCode::SERVICE_UNAVAILABLE),
            (_, false) => Err(StatusCode::UNAUTHORIZED),
            _ => Ok(()),
        }
    }

    fn assign(&mut self, assignment: Assignment) {
        self.changes.push(AssignmentChange {
            seq: 1 + self.changes.len() as u64,
            op: AssignmentOp::Assigned,
            key: assignment.key.clone(),
            generation: assignment.generation,
            incarnation: assignment.incarnation,
            assignment: Some(assignment.clone()),
        });
        self.assignments.push(assignment);
    }
}

async fn snapshot_of(State(plane): State<Shared>, Path(kind): Path<String>, headers: HeaderMap) -> Answer {
    let plane = plane.lock().unwrap();
    plane.check(&headers)?;
    Ok(Json(match kind.as_str() {
        "tenants" => json!({"items": [tenant("t")], "next_seq": 1}),
        "streams" => json!({"items": plane.streams, "next_seq": 1}),
        "shard-assignments" => json!({"items": plane.assignments, "next_seq": 1 + plane.changes.len()}),
        _ => json!({"items": [], "next_seq": 1}),
    }))
}

async fn changes_of(
    State(plane): State<Shared>,
    Path(kind): Path<String>,
    Query(query): Query<BTreeMap<String, u64>>,
    headers: HeaderMap,
) -> Answer {
    let plane = plane.lock().unwrap();
    plane.check(&headers)?;
    if kind != "shard-assignments" {
        return Ok(Json(json!({"items": [], "next_seq": 1})));
    }
    let items: Vec<_> = plane.changes.iter().filter(|c| c.seq >= query["since"]).collect();
    Ok(Json(json!({"items": items, "next_seq": 1 + plane.changes.len()})))
}

async fn nodes(State(plane): State<Shared>, headers: HeaderMap) -> Answer {
    plane.lock().unwrap().check(&headers)?;
    Ok(Json(json!({"items": []})))
}

async fn register(State(plane): State<Shared>, headers: HeaderMap, Json(body): Json<RegisterNode>) -> Answer {
    let mut plane = plane.lock().unwrap();
    plane.check(&headers)?;
    plane.registrations += 1;
    let status = json!({"lifecycle": "live", "last_heartbeat_at_millis": 0, "registered_at_millis": 0,
        "incarnation": plane.registrations});
    Ok(Json(json!({"node": {"node_id": body.node_id, "spec": body.spec, "status": status},
        "heartbeat_interval_ms": 50, "expiry_timeout_ms": 15_000})))
}

async fn heartbeat(
    State(plane): State<Shared>,
    Path(id): Path<String>,
    headers: HeaderMap,
    Json(body): Json<Value>,
) -> Answer {
    let mut plane = plane.lock().unwrap();
    plane.check(&headers)?;
    if body["incarnation"] != plane.registrations {
        return Err(StatusCode::CONFLICT);
    }
    plane.heartbeats += 1;
    Ok(Json(
        json!({"node_id": id, "lifecycle": "live", "heartbeat_interval_ms": 50, "expiry_timeout_ms": 15_000}),
    ))
}

async fn jwks(State(plane): State<Shared>, Path(_tenant): Path<String>) -> Answer {
    let mut plane = plane.lock().unwrap();
    if plane.down {
        return Err(StatusCode::SERVICE_UNAVAILABLE);
    }
    plane.key_fetches += 1;
    let x = "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo".to_owned();
    Ok(Json(json!({"keys": [Jwk::ed25519("k1".to_owned(), x)]})))
}

/// One core's view, an agent, and the control plane it talks to.
struct World {
    plane: Shared,
    agent: Agent,
    links: Links,
    logs: LogBook,
    core: CoreReceiver<ToCore>,
    status: Arc<NodeStatus>,
    routes: Option<Arc<Routes>>,
    keys: Option<Arc<Keys>>,
    server: tokio::task::JoinHandle<()>,
}

impl Drop for World {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl World {
    async fn start(credential: Credential, plane: Plane) -> World {
        let plane: Shared = Arc::new(Mutex::new(plane));
        let app = Router::new()
            .route("/v1/{kind}/snapshot", get(snapshot_of))
            .route("/v1/{kind}/changes", get(changes_of))
            .route("/v1/nodes", get(nodes).post(register))
            .route("/v1/nodes/{id}/heartbeat", post(heartbeat))
            .route("/v1/tenants/{tenant}/.well-known/jwks.json", get(jwks))
            .with_state(Arc::clone(&plane));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let server = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        let status = Arc::new(NodeStatus::new(1));
        let settings = AgentSettings {
            node: NodeId::new("me").unwrap(),
            cores: 1,
            shards_per_core: 0,
            sync_interval: Duration::from_millis(20),
            registration: serde_json::from_value(json!({"node_id": "me", "advertise_addr": "127.0.0.1:1"}))
                .unwrap(),
        };
        let api = ControlPlane::new(&url, None, credential).unwrap();
        let agent = Agent::new(settings, api, Clock::start(), Arc::clone(&status));
        let (lane, core) = lane_to_core(16, &CoreWaker::new());
        let logs = LogBook::new(Vec::new(), [0; 16]);
        World {
            plane,
            agent,
            links: Links::new(vec![lane]),
            logs,
            core,
            status,
            routes: None,
            keys: None,
            server,
        }
    }

    /// Runs the agent as the admin loop does until `wanted` holds.
    async fn until(&mut self, what: &str, wanted: impl Fn(&World) -> bool) {
        let run = async {
            loop {
                self.agent.ask();
                self.agent.tell(&mut self.links, &mut self.logs);
                self.links.flush();
                while let Some(message) = self.core.try_recv() {
                    match message {
                        ToCore::Routes(routes) => self.routes = Some(routes),
                        ToCore::Keys(keys) => self.keys = Some(keys),
                        ToCore::Tls(_)
                        | ToCore::Volumes(_)
                        | ToCore::Log(_)
                        | ToCore::Drain
                        | ToCore::Stop => {}
                    }
                }
                if wanted(self) {
                    return;
                }
                tokio::select! {
                    done = self.agent.done() => self.agent.take(done),
                    () = tokio::time::sleep(Duration::from_millis(10)) => {}
                }
            }
        };
        tokio::time::timeout(DEADLINE, run).await.unwrap_or_else(|_| panic!("never: {what}"));
    }

    fn serves(&self, stream: &str) -> bool {
        let route = self.routes.as_ref().and_then(|r| r.stream(("t", "n", stream), &mut String::new()));
        route.is_some_and(|route| matches!(route.owners[0], Owner::Here { .. }))
    }
}

fn plane(token: &str) -> Plane {
    let mut plane = Plane { token: token.to_owned(), streams: vec![stream("s", 1, 1)], ..Plane::default() };
    plane.assign(assignment("s", 0, "me", 1, 1));
    plane
}

fn fixed(token: &str) -> Credential {
    Credential::Fixed(token.to_owned())
}

#[tokio::test]
async fn a_node_registers_beats_and_serves_what_is_assigned_to_it() {
    let mut world = World::start(fixed("a"), plane("a")).await;
    world.until("serving and beating", |w| w.serves("s") && w.plane.lock().unwrap().heartbeats >= 2).await;
    assert!(world.status.member_live.load(Relaxed));
    let later = assignment("s", 0, "other", 2, 1);
    world.plane.lock().unwrap().assign(later);
    world.until("handed over", |w| !w.serves("s")).await;
}

#[tokio::test]
async fn an_outage_leaves_everything_served_and_heartbeats_come_back_by_a_new_registration() {
    let mut world = World::start(fixed("a"), plane("a")).await;
    world.until("serving", |w| w.serves("s") && w.status.heartbeats.load(Relaxed) > 0).await;
    let version = world.routes.as_ref().unwrap().version;
    world.plane.lock().unwrap().down = true;
    world.until("failures", |w| w.status.fetch_failures[3].load(Relaxed) >= 3).await;
    assert!(world.serves("s"));
    assert_eq!(world.routes.as_ref().unwrap().version, version);
    {
        let mut plane = world.plane.lock().unwrap();
        plane.down = false;
        plane.registrations += 1;
        plane.heartbeats = 0;
    }
    world.until("beating again", |w| w.plane.lock().unwrap().heartbeats > 0).await;
    assert!(world.plane.lock().unwrap().registrations >= 3);
    assert!(world.serves("s"));
}

#[tokio::test]
async fn an_unknown_key_is_fetched_once_for_all_and_strangers_are_answered_without_asking() {
    let mut world = World::start(fixed("a"), plane("a")).await;
    world.until("synced", |w| w.serves("s")).await;
    let tenant: Arc<str> = "t".into();
    for _ in 0..100 {
        world.agent.request_keys(&tenant, &"k1".into());
    }
    world.until("keys", |w| w.keys.as_ref().is_some_and(|k| k.tenants["t"].keys.len() == 1)).await;
    assert_eq!(world.plane.lock().unwrap().key_fetches, 1);
    let version = world.keys.as_ref().unwrap().version;
    world.agent.request_keys(&"stranger".into(), &"k1".into());
    world.until("an answer", |w| w.keys.as_ref().is_some_and(|k| k.version > version)).await;
    assert_eq!(world.plane.lock().unwrap().key_fetches, 1);
}

#[tokio::test]
async fn a_request_from_before_the_first_reading_is_answered_after_it() {
    let mut world = World::start(fixed("a"), plane("a")).await;
    world.agent.request_keys(&"t".into(), &"k1".into());
    world.until("keys", |w| w.keys.as_ref().is_some_and(|k| k.tenants["t"].keys.len() == 1)).await;
    assert!(world.serves("s"));
}

#[tokio::test]
async fn a_renewed_token_file_is_taken_without_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("token");
    std::fs::write(&path, "old").unwrap();
    let mut world = World::start(Credential::File(path.clone()), plane("new")).await;
    world.until("refusals", |w| w.status.heartbeat_failures[2].load(Relaxed) > 0).await;
    assert!(!world.serves("s"));
    std::fs::write(&path, "new").unwrap();
    world.until("serving", |w| w.serves("s")).await;
}
