//! `felix-ctrl` as a process, and the few calls the tests make to it. Scope: one per world.

use std::path::Path;
use std::process::Command;

use felix_bench::cluster::{Process, binary};
use felix_wire::control::{Consistency, Delivery, Retention, StreamCreate, StreamKind};
use serde_json::{Value, json};

use super::DEADLINE;

const SECRET: &str = "a-secret-of-the-tests";
/// The tenant that owns the operator's token.
pub const OPERATOR: &str = "operator";

/// See the module.
pub struct Plane {
    process: Process,
    pub url: String,
    bootstrap: String,
    operator_token: String,
}

impl Plane {
    /// Starts one with rows in memory and makes the operator's tenant.
    pub fn start(folder: &Path) -> Plane {
        let ready = folder.join("plane.json");
        let mut command = Command::new(binary("felix-ctrl").unwrap());
        command.env_clear().env("FELIX_BOOTSTRAP_TOKEN", SECRET);
        command
            .env("FELIX_SHARD_RECONCILE_INTERVAL_MS", "100")
            .env("FELIX_NODE_HEARTBEAT_INTERVAL_MS", "500");
        command.args([
            "--dev",
            "--storage-backend",
            "memory",
            "--bootstrap-enabled",
            "--bootstrap-dev-tokens",
        ]);
        for bind in ["--bind", "--metrics-bind", "--bootstrap-bind"] {
            command.args([bind, "127.0.0.1:0"]);
        }
        command.arg("--ready-file").arg(&ready);
        let process = Process::start("felix-ctrl", command, &folder.join("plane.log")).unwrap();
        let said = wait_for_json(&ready, || process.log());
        let text = |name: &str| said[name].as_str().unwrap().to_owned();
        let mut plane = Plane {
            process,
            url: text("controlplane_url"),
            bootstrap: text("bootstrap_url"),
            operator_token: String::new(),
        };
        plane.initialize(OPERATOR);
        plane.operator_token = plane.token(
            OPERATOR,
            "root",
            &[
                "tenant.manage:tenant:operator",
                "tenant.manage:cluster:*",
                "node.view:cluster:*",
                "node.manage:cluster:*",
            ],
            3_600,
            "felix-controlplane",
        );
        plane
    }

    fn initialize(&self, tenant: &str) {
        let path = format!("{}/internal/bootstrap/tenants/{tenant}/initialize", self.bootstrap);
        let (status, body) = call("POST", &path, None, Some(&json!({})));
        assert_eq!(status, 200, "{body}");
    }

    /// A token of `tenant`, good for `ttl_s` seconds.
    pub fn token(
        &self,
        tenant: &str,
        subject: &str,
        permissions: &[&str],
        ttl_s: u64,
        audience: &str,
    ) -> String {
        let path = format!("{}/internal/bootstrap/tenants/{tenant}/dev-token", self.bootstrap);
        let body = json!({"principal": subject, "permissions": permissions, "ttl_seconds": ttl_s, "audience": audience});
        let (status, body) = call("POST", &path, None, Some(&body));
        assert_eq!(status, 200, "{body}");
        body["felix_token"].as_str().unwrap().to_owned()
    }

    /// A tenant with a namespace, and a token that may do everything with its streams.
    pub fn tenant(&self, tenant: &str, namespace: &str) -> String {
        self.initialize(tenant);
        let manage = format!("tenant.manage:tenant:{tenant}");
        let admin = self.token(tenant, "admin", &[&manage], 3_600, "felix-controlplane");
        let path = format!("{}/v1/tenants/{tenant}/namespaces", self.url);
        let (status, body) = call("POST", &path, Some(&admin), Some(&json!({"namespace": namespace})));
        assert!(status < 300, "{status} {body}");
        let all = format!("stream:{tenant}/*/*");
        let rights = [format!("stream.publish:{all}"), format!("stream.subscribe:{all}")];
        self.token(tenant, "app", &[&rights[0], &rights[1]], 3_600, "felix-broker")
    }

    /// Makes a stream in memory. Its status and answer.
    pub fn try_stream(&self, tenant: &str, namespace: &str, stream: &str, shards: u32) -> (u16, Value) {
        self.try_stream_of(tenant, namespace, &stream_row(stream, shards))
    }

    /// Makes a stream. Its status and answer.
    pub fn try_stream_of(&self, tenant: &str, namespace: &str, row: &StreamCreate) -> (u16, Value) {
        let path = format!("{}/v1/tenants/{tenant}/namespaces/{namespace}/streams", self.url);
        let admin = self.admin(tenant);
        call("POST", &path, Some(&admin), Some(&serde_json::to_value(row).unwrap()))
    }

    /// Deletes a stream. Its status and answer.
    pub fn delete_stream(&self, tenant: &str, namespace: &str, stream: &str) -> (u16, Value) {
        let path = format!("{}/v1/tenants/{tenant}/namespaces/{namespace}/streams/{stream}", self.url);
        call("DELETE", &path, Some(&self.admin(tenant)), None)
    }

    /// Changes a stream. Its status and answer.
    pub fn patch_stream(&self, tenant: &str, namespace: &str, stream: &str, patch: &Value) -> (u16, Value) {
        let path = format!("{}/v1/tenants/{tenant}/namespaces/{namespace}/streams/{stream}", self.url);
        call("PATCH", &path, Some(&self.admin(tenant)), Some(patch))
    }

    fn admin(&self, tenant: &str) -> String {
        let manage = format!("tenant.manage:tenant:{tenant}");
        self.token(tenant, "admin", &[&manage], 3_600, "felix-controlplane")
    }

    /// Ends it in order; the status it left with.
    pub fn end(mut self) -> Option<i32> {
        self.process.end(DEADLINE)
    }

    /// A credential for a broker.
    pub fn node_token(&self, node: &str) -> String {
        let manage = format!("node.manage:node:{node}");
        self.token(OPERATOR, node, &[&manage, "node.view:cluster:*"], 3_600, "felix-controlplane")
    }
}

/// A stream in memory, to be made.
pub fn stream_row(stream: &str, shards: u32) -> StreamCreate {
    StreamCreate {
        stream: stream.to_owned(),
        kind: StreamKind::Stream,
        shards,
        replication_factor: 1,
        retention: Retention::default(),
        consistency: Consistency::Leader,
        delivery: Delivery::AtLeastOnce,
        durable: false,
        region: None,
        routing: None,
    }
}

/// One HTTP call: status, and the body as JSON (null when it is none).
pub fn call(method: &str, url: &str, bearer: Option<&str>, body: Option<&Value>) -> (u16, Value) {
    let config =
        ureq::Agent::config_builder().http_status_as_error(false).timeout_global(Some(DEADLINE)).build();
    let agent = ureq::Agent::new_with_config(config);
    let mut request = ureq::http::Request::builder().method(method).uri(url);
    request = request.header("x-felix-bootstrap-token", SECRET);
    if let Some(bearer) = bearer {
        request = request.header("authorization", format!("Bearer {bearer}"));
    }
    let body = body.map_or_else(Vec::new, |b| serde_json::to_vec(b).unwrap());
    let request = request.header("content-type", "application/json").body(body).unwrap();
    let mut response = agent.run(request).unwrap_or_else(|e| panic!("{method} {url}: {e}"));
    let text = response.body_mut().read_to_string().unwrap_or_default();
    (response.status().as_u16(), serde_json::from_str(&text).unwrap_or(Value::String(text)))
}

/// A ready file, once it is there; `log` is shown when it never comes.
pub fn wait_for_json(path: &Path, log: impl Fn() -> String) -> Value {
    let end = std::time::Instant::now() + DEADLINE;
    loop {
        if let Ok(bytes) = std::fs::read(path) {
            return serde_json::from_slice(&bytes).unwrap();
        }
        assert!(std::time::Instant::now() < end, "{} was never written: {}", path.display(), log());
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}
