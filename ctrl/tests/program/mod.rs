//! The real `felix-ctrl`, started as a process and always ended.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

pub const BINARY: &str = env!("CARGO_BIN_EXE_felix-ctrl");
const BOOTSTRAP_TOKEN: &str = "a-bootstrap-token-for-tests";
/// A loaded machine may take long to start a process.
const START_WAIT: Duration = Duration::from_secs(20);

/// Status and body of an answer.
pub type Answer = (u16, Value);

#[derive(Clone, Copy, Default)]
pub struct Start<'a> {
    pub environment: &'a [(&'a str, &'a str)],
}

pub struct Program {
    child: Child,
    pub ready: Value,
    agent: ureq::Agent,
}

impl Program {
    /// Starts it over `folder`/data and waits for the ready file.
    pub fn start(folder: &Path, start: Start<'_>) -> Program {
        let ready_file = folder.join("ready.json");
        // What an earlier process left behind says nothing about this one.
        let _ = std::fs::remove_file(&ready_file);
        let log = std::fs::OpenOptions::new().create(true).append(true).open(folder.join("log")).unwrap();
        let mut child = Command::new(BINARY)
            .args(["--dev", "--bind", "127.0.0.1:0", "--metrics-bind", "127.0.0.1:0"])
            .args(["--bootstrap-enabled", "--bootstrap-dev-tokens", "--bootstrap-bind", "127.0.0.1:0"])
            .arg("--data-dir")
            .arg(folder.join("data"))
            .arg("--ready-file")
            .arg(&ready_file)
            .env("FELIX_BOOTSTRAP_TOKEN", BOOTSTRAP_TOKEN)
            .envs(start.environment.iter().copied())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let ready = wait_for_file(&ready_file, &mut child);
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(Duration::from_secs(10)))
            .build();
        Program { child, ready, agent: config.into() }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn address(&self, base: &str) -> &str {
        self.ready[base].as_str().unwrap().strip_prefix("http://").unwrap()
    }

    fn url(&self, base: &str, path: &str) -> String {
        format!("{}{path}", self.ready[base].as_str().unwrap())
    }

    pub fn get(&self, base: &str, path: &str, token: &str) -> Result<Answer, ureq::Error> {
        let bearer = format!("Bearer {token}");
        read(self.agent.get(self.url(base, path)).header("authorization", bearer).call()?)
    }

    pub fn raw(&self, base: &str, path: &str) -> String {
        self.agent.get(self.url(base, path)).call().unwrap().body_mut().read_to_string().unwrap()
    }

    pub fn post(&self, path: &str, token: &str, body: Value) -> Result<Answer, ureq::Error> {
        let request = self.agent.post(self.url("controlplane_url", path));
        read(request.header("authorization", format!("Bearer {token}")).send(body.to_string())?)
    }

    pub fn delete(&self, path: &str, token: &str) -> Result<Answer, ureq::Error> {
        let request = self.agent.delete(self.url("controlplane_url", path));
        read(request.header("authorization", format!("Bearer {token}")).call()?)
    }

    /// A bootstrapped tenant and a long token for everything.
    pub fn bootstrap_and_token(&self, tenant: &str) -> String {
        let base = self.url("bootstrap_url", &format!("/internal/bootstrap/tenants/{tenant}"));
        let post = |path: &str, body: Value| {
            let request = self.agent.post(format!("{base}/{path}"));
            read(request.header("x-felix-bootstrap-token", BOOTSTRAP_TOKEN).send(body.to_string()).unwrap())
                .unwrap()
        };
        assert_eq!(post("initialize", json!({})).0, 200);
        let permissions = [
            format!("tenant.manage:tenant:{tenant}"),
            "tenant.manage:cluster:*".into(),
            "node.view:cluster:*".into(),
            "node.manage:cluster:*".into(),
        ];
        let body = json!({"principal": "p", "permissions": permissions, "audience": "felix-controlplane",
            "ttl_seconds": 3600});
        post("dev-token", body).1["felix_token"].as_str().unwrap().to_owned()
    }

    /// Sends a signal by name.
    pub fn signal(&self, name: &str) {
        let sent = Command::new("kill").arg(format!("-{name}")).arg(self.pid().to_string()).status();
        assert!(sent.unwrap().success());
    }

    /// Asks it to end and waits, at most as long as said.
    pub fn terminate(&mut self, within: Duration) -> ExitStatus {
        self.signal("TERM");
        let deadline = Instant::now() + within;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < deadline, "it did not end in {within:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Kills it without a chance to do anything, and waits until it is gone.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn read(mut response: ureq::http::Response<ureq::Body>) -> Result<Answer, ureq::Error> {
    let status = response.status().as_u16();
    let text = response.body_mut().read_to_string()?;
    Ok((status, serde_json::from_str(&text).unwrap_or(Value::Null)))
}

fn wait_for_file(path: &PathBuf, child: &mut Child) -> Value {
    let deadline = Instant::now() + START_WAIT;
    loop {
        if let Ok(text) = std::fs::read_to_string(path) {
            return serde_json::from_str(&text).expect("it is complete or absent");
        }
        if let Some(status) = child.try_wait().unwrap() {
            let log = std::fs::read_to_string(path.with_file_name("log")).unwrap_or_default();
            panic!("it ended before it was ready: {status}\n{log}");
        }
        assert!(Instant::now() < deadline, "it was not ready in {START_WAIT:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Waits until something holds, at most ten seconds.
pub fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !holds() {
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
