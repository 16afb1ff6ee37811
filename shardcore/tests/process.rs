//! The broker as a process: its start, its listeners, its end. The control plane is a small one in the test.

use std::io::Read;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use axum::routing::{get, post};
use axum::{Json, Router};
use rcgen::{CertificateParams, KeyPair};
use serde_json::{Value, json};
use tempfile::TempDir;

const DEADLINE: Duration = Duration::from_secs(30);

/// A control plane that knows one tenant and takes any node.
async fn control_plane() -> SocketAddr {
    async fn register(Json(body): Json<Value>) -> Json<Value> {
        let spec = json!({"advertise_addr": body["advertise_addr"]});
        let status = json!({"lifecycle": "live", "last_heartbeat_at_millis": 0, "registered_at_millis": 0,
            "incarnation": 1});
        Json(json!({"node": {"node_id": body["node_id"], "spec": spec, "status": status},
            "heartbeat_interval_ms": 200, "expiry_timeout_ms": 15_000}))
    }
    async fn heartbeat() -> Json<Value> {
        Json(
            json!({"node_id": "b", "lifecycle": "live", "heartbeat_interval_ms": 200, "expiry_timeout_ms": 15_000}),
        )
    }
    let nothing = || async { Json(json!({"items": [], "next_seq": 1})) };
    let app = Router::new()
        .route("/v1/{kind}/snapshot", get(nothing))
        .route("/v1/{kind}/changes", get(nothing))
        .route("/v1/nodes", get(nothing).post(register))
        .route("/v1/nodes/{id}/heartbeat", post(heartbeat));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    addr
}

/// A broker under test; killed if the test ends before it does.
struct Broker {
    child: Child,
    folder: TempDir,
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_felix-broker"));
    command.env_clear().args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

impl Broker {
    fn start(plane: SocketAddr, more: &[&str]) -> Broker {
        let folder = tempfile::tempdir().unwrap();
        let token = folder.path().join("token");
        std::fs::write(&token, "token").unwrap();
        let url = format!("http://{plane}");
        let ready = folder.path().join("ready.json");
        let data = folder.path().join("data");
        let mut arguments = vec![
            "--cores=0",
            "--pin=false",
            "--spin-us=0",
            "--metrics-bind=127.0.0.1:0",
            "--node-id=b",
            "--controlplane-url",
            &url,
            "--node-token-file",
            text(&token),
            "--ready-file",
            text(&ready),
            "--data-dir",
            text(&data),
        ];
        if !more.iter().any(|flag| flag.starts_with("--quic-bind")) {
            arguments.push("--quic-bind=127.0.0.1:0");
        }
        arguments.extend(more);
        Broker { child: command(&arguments).spawn().unwrap(), folder }
    }

    fn ready_file(&self) -> PathBuf {
        self.folder.path().join("ready.json")
    }

    /// Waits until it serves; the content of its ready file.
    async fn ready(&mut self) -> Value {
        let path = self.ready_file();
        until("ready", async || {
            std::fs::read(&path).ok().map(|bytes| serde_json::from_slice(&bytes).unwrap())
        })
        .await
    }

    fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
    }

    async fn ended(&mut self) -> ExitStatus {
        let child = &mut self.child;
        let mut ended = || child.try_wait().unwrap();
        until("ended", async || ended()).await
    }

    /// What it wrote to standard error; it must have ended.
    fn errors(&mut self) -> String {
        let mut text = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
        text
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let end = Instant::now() + DEADLINE;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(Instant::now() < end, "never {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn fetch(ready: &Value, path: &str) -> Option<(u16, String)> {
    let client = reqwest::Client::builder().no_proxy().tls_certs_only([]).build().unwrap();
    let url = format!("{}{path}", ready["metrics_url"].as_str().unwrap());
    let answer = client.get(url).send().await.ok()?;
    Some((answer.status().as_u16(), answer.text().await.ok()?))
}

#[tokio::test]
async fn a_broker_becomes_ready_is_measured_and_ends_in_order() {
    let mut broker = Broker::start(control_plane().await, &[]);
    let ready = broker.ready().await;
    assert_eq!(
        (ready["node_id"].as_str(), ready["pid"].as_u64()),
        (Some("b"), Some(broker.child.id().into()))
    );
    assert!(ready["broker_addr"].as_str().unwrap().parse::<SocketAddr>().unwrap().port() != 0);
    assert_eq!(fetch(&ready, "/live").await.unwrap().0, 200);
    assert_eq!(fetch(&ready, "/ready").await.unwrap().0, 200);
    let metrics = fetch(&ready, "/metrics").await.unwrap().1;
    assert!(
        metrics.contains("felix_broker_membership_live 1\n") && metrics.ends_with("# EOF\n"),
        "{metrics}"
    );
    broker.signal("-TERM");
    assert!(broker.ended().await.success(), "{}", broker.errors());
    assert!(!broker.ready_file().exists());
}

#[tokio::test]
async fn readiness_goes_off_before_the_end_and_a_second_signal_does_not_wait() {
    let mut broker = Broker::start(control_plane().await, &["--shutdown-predrain-ms=60000"]);
    let ready = broker.ready().await;
    broker.signal("-INT");
    until("draining", async || fetch(&ready, "/ready").await.filter(|(status, _)| *status == 503)).await;
    assert_eq!(fetch(&ready, "/ready").await.unwrap().1, "draining\n");
    broker.signal("-TERM");
    assert!(broker.ended().await.success(), "{}", broker.errors());
}

#[tokio::test]
async fn a_second_broker_on_the_port_is_refused_by_name() {
    let plane = control_plane().await;
    let mut first = Broker::start(plane, &[]);
    let ready = first.ready().await;
    let bind = format!("--quic-bind={}", ready["broker_addr"].as_str().unwrap());
    let mut second = Broker::start(plane, &[&bind]);
    assert_eq!(second.ended().await.code(), Some(1));
    let errors = second.errors();
    assert!(errors.contains("quic_bind") && errors.contains("in use"), "{errors}");
    assert!(!second.ready_file().exists());
}

#[tokio::test]
async fn a_replaced_certificate_is_taken_while_running() {
    let folder = tempfile::tempdir().unwrap();
    let (cert, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
    let renew = || {
        let pair = KeyPair::generate().unwrap();
        let made = CertificateParams::new(vec!["localhost".to_owned()]).unwrap().self_signed(&pair).unwrap();
        std::fs::write(&cert, made.pem()).unwrap();
        std::fs::write(&key, pair.serialize_pem()).unwrap();
    };
    renew();
    let flags = ["--tls-cert", text(&cert), "--tls-key", text(&key)];
    let mut broker = Broker::start(control_plane().await, &flags);
    let ready = broker.ready().await;
    renew();
    let taken = async || {
        let metrics = fetch(&ready, "/metrics").await?.1;
        metrics.contains("felix_broker_certificate_reloads_total 1\n").then_some(())
    };
    until("certificate taken", taken).await;
    broker.signal("-TERM");
    assert!(broker.ended().await.success(), "{}", broker.errors());
}

#[test]
fn a_wrong_configuration_ends_with_status_two_and_names_every_problem() {
    let output = command(&["--keepalive-ms=9000"]).env("RUST_BACKTRACE", "1").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(errors.starts_with("felix-broker: ") && !errors.contains("backtrace"), "{errors}");
    for named in ["keepalive_ms", "node_id", "controlplane_url", "node_token_file", "tls_cert"] {
        assert!(errors.contains(named), "{named} in {errors}");
    }
}

#[test]
fn the_configuration_is_printed_with_where_each_value_came_from() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("broker.toml");
    std::fs::write(&file, "keepalive_ms = 1000\n").unwrap();
    let mut command = command(&["config", "print", "--origin", "--config", text(&file), "--spin-us", "7"]);
    let output = command.stdout(Stdio::piped()).env("FELIX_PIN", "false").output().unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    let line = |key: &str| printed.lines().find(|line| line.starts_with(key)).unwrap_or_default().to_owned();
    assert!(line("spin_us").ends_with("# flag --spin-us"), "{printed}");
    assert!(line("pin").ends_with("# environment FELIX_PIN"), "{printed}");
    assert!(line("keepalive_ms").ends_with(&format!("# file {}", file.display())), "{printed}");
    assert!(line("shed").ends_with("# default"), "{printed}");
}
