//! The `felix` program beside a scripted broker.
#![allow(dead_code, reason = "each test program uses its part")]

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Stdio};

use felix_sdk::Bytes;
use tempfile::TempDir;

use crate::cli::{self, Done};
use crate::fake::{FakeBroker, State, TENANT, TOKEN};

/// A broker with a durable stream, and what `felix` needs to reach it.
pub struct Rig {
    pub broker: FakeBroker,
    folder: TempDir,
}

impl Rig {
    pub async fn start(shards: u32) -> Rig {
        let broker = FakeBroker::start(shards).await;
        broker.state.change(State::serve_durable);
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("ca.pem"), broker.ca_pem()).unwrap();
        Rig { broker, folder }
    }

    /// `felix` with all pipes.
    pub fn felix(&self, arguments: &[&str]) -> Child {
        let ca = self.folder.path().join("ca.pem");
        let broker = self.broker.addr.to_string();
        let target = ["--brokers", &broker, "--tenant", TENANT, "--token", TOKEN, "--namespace", "ns"];
        let all = [&target[..], &["--ca-file", ca.to_str().unwrap()], arguments].concat();
        cli::felix(self.folder.path(), &all).stdin(Stdio::piped()).spawn().unwrap()
    }

    /// Runs `felix` to its end without an input.
    pub async fn run(&self, arguments: &[&str]) -> Done {
        self.run_with_input(arguments, b"").await
    }

    /// Runs `felix` to its end.
    pub async fn run_with_input(&self, arguments: &[&str], input: &[u8]) -> Done {
        let mut child = self.felix(arguments);
        let mut stdin = child.stdin.take().unwrap();
        // A command that does not read its input may have ended.
        let _ = stdin.write_all(input);
        drop(stdin);
        ended(child).await
    }

    /// A file in the folder.
    pub fn file(&self, name: &str, bytes: &[u8]) -> String {
        let path = self.folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// Runs `felix pub s` with these lines as its input.
    pub async fn publish(&self, more: &[&str], input: &str) -> Done {
        let mut child = self.felix(&[&["pub", "s", "--batch", "1"], more].concat());
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(input.as_bytes()).unwrap();
        drop(stdin);
        ended(child).await
    }

    pub fn log(&self) -> Vec<String> {
        let state = self.broker.state.lock();
        state.records[0].iter().map(|record| String::from_utf8(record.to_vec()).unwrap()).collect()
    }

    pub fn put(&self, numbers: std::ops::Range<u32>) {
        self.broker.state.change(|s| s.records[0].extend(numbers.map(|n| Bytes::from(n.to_string()))));
    }
}

/// Waits while the broker's tasks go on.
pub async fn ended(child: Child) -> Done {
    let waiting = tokio::task::spawn_blocking(move || child.wait_with_output().unwrap());
    tokio::time::timeout(cli::DEADLINE, waiting).await.expect("ends in time").unwrap().into()
}

/// The next line of a pipe.
pub async fn line<R: Read + Send + 'static>(mut from: BufReader<R>) -> (BufReader<R>, String) {
    let reading = tokio::task::spawn_blocking(move || {
        let mut line = String::new();
        from.read_line(&mut line).unwrap();
        (from, line)
    });
    tokio::time::timeout(cli::DEADLINE, reading).await.expect("a line in time").unwrap()
}

pub fn lines(numbers: std::ops::Range<u32>) -> String {
    numbers.map(|number| format!("{number}\n")).collect()
}
