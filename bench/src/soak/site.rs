//! The broker of a soak, as its clients see it. Scope: one per run.
//! Owns: the broker's settings, the names of what is made on it, and how a client of it is made.
//! Invariants: what is kept is bounded, so a run of hours takes no more disk than a short one.
//! Not here: what the clients do.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use felix_sdk::{Client, Deadlines, Error};

use crate::cluster::{ClusterError, DevBroker, noun_command};
use crate::scrape;
use crate::target::{Ready, Target, TargetError};

/// Streams, caches and their shards.
pub const DURABLE: &str = "soak-durable";
pub const MEMORY: &str = "soak-memory";
pub const JOBS: &str = "soak-jobs";
pub const CACHE: &str = "soak-cache";
/// For readers that do not read.
pub const SLOW_DURABLE: &str = "soak-slow-durable";
pub const SLOW_MEMORY: &str = "soak-slow-memory";
pub const SLOW_JOBS: &str = "soak-slow-jobs";
pub const SLOW_CACHE: &str = "soak-slow-cache";
/// For more than the broker takes.
pub const FLOOD_DURABLE: &str = "soak-flood-durable";
pub const FLOOD_MEMORY: &str = "soak-flood-memory";
/// A stream in memory that nobody reads though somebody subscribed.
pub const BLOCKED: &str = "soak-blocked";
/// What latencies are asked with.
pub const PROBE: &str = "soak-probe";

/// Shards of the streams and the cache of the steady load.
pub const SHARDS: u32 = 2;
/// How often a record is handed out before it is a dead letter.
pub const ATTEMPTS_MAX: u32 = 3;
/// How long the broker holds an acked publish of a full shard.
pub const QUEUE_WAIT: Duration = Duration::from_millis(500);
/// After this much silence a connection is gone. Clients that live are heard far more often.
pub const IDLE: Duration = Duration::from_secs(4);
/// Bytes that each shard of a durable stream keeps.
const KEPT: &str = "16MiB";

const SETTINGS: &[&str] = &[
    "pin=false",
    "spin_us=0",
    "memory=512MiB",
    "segment_bytes=4MiB",
    "retention_check_ms=200",
    "log_memory=32MiB",
    "disk_low=64MiB",
    "replay_ring_max_bytes=4MiB",
    "group_max_attempts=3",
    "publish_queue_wait_ms=500",
    "max_idle_timeout_ms=4000",
    "keepalive_ms=1000",
    "auth_timeout_ms=2000",
];

/// See the module.
#[derive(Debug, Clone)]
pub struct Site {
    ready: Ready,
    metrics: SocketAddr,
}

/// Starts the broker with its files in `dir`.
///
/// # Errors
/// It could not be started; nothing is left running then.
pub fn start(dir: &Path, cores: &str) -> Result<(DevBroker, Site), ClusterError> {
    let mut args: Vec<&str> = SETTINGS.iter().flat_map(|setting| ["--set", setting]).collect();
    // Its clients renew their tokens.
    args.extend(["--token-ttl", "15m"]);
    let broker = DevBroker::start(dir, cores, &args)?;
    let shards = SHARDS.to_string();
    for name in [DURABLE, JOBS, SLOW_DURABLE, SLOW_JOBS, FLOOD_DURABLE] {
        let args = ["create", name, "--shards", &shards, "--durable", "--retention-bytes", KEPT];
        noun_command("stream", broker.ready_file(), &args)?;
    }
    for name in [MEMORY, FLOOD_MEMORY] {
        broker.create_stream(name, SHARDS)?;
    }
    for name in [SLOW_MEMORY, BLOCKED, PROBE] {
        broker.create_stream(name, 1)?;
    }
    for name in [CACHE, SLOW_CACHE] {
        broker.create_cache(name, SHARDS)?;
    }
    let metrics = scrape::address(broker.ready())
        .map_err(|error| ClusterError::Io { what: "the metrics of the broker".to_owned(), error })?;
    let site = Site { ready: broker.ready().clone(), metrics };
    Ok((broker, site))
}

impl Site {
    /// Process id of the broker.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.ready.pids.broker
    }

    /// Where its metrics are.
    #[must_use]
    pub fn metrics(&self) -> SocketAddr {
        self.metrics
    }

    /// A client with connections of its own.
    ///
    /// # Errors
    /// The broker cannot be reached.
    pub async fn client(&self) -> Result<Client, Error> {
        let builder = Client::builder().token_file(&self.ready.token_file);
        self.connect(builder).await
    }

    /// A client with a token that is none.
    ///
    /// # Errors
    /// Always, when the broker does what it should.
    pub async fn stranger(&self) -> Result<Client, Error> {
        self.connect(Client::builder().token("no token of anybody")).await
    }

    async fn connect(&self, builder: felix_sdk::ClientBuilder) -> Result<Client, Error> {
        builder
            .broker(self.ready.broker_addr.to_string())
            .ca_file(&self.ready.ca_file)
            .tenant(self.ready.tenant.clone())
            .namespace(self.ready.namespace.clone())
            .deadlines(Deadlines { request: Duration::from_secs(30), ..Deadlines::default() })
            .connect()
            .await
    }

    /// The same for clients that speak frames.
    ///
    /// # Errors
    /// Certificate or token cannot be read.
    pub fn target(&self, stream: &str) -> Result<Target, TargetError> {
        Target::from_ready(&self.ready, stream)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_settings_are_those_that_the_load_counts_on() {
        let is = |setting: String| assert!(SETTINGS.contains(&setting.as_str()), "{setting}");
        is(format!("group_max_attempts={ATTEMPTS_MAX}"));
        is(format!("publish_queue_wait_ms={}", QUEUE_WAIT.as_millis()));
        is(format!("max_idle_timeout_ms={}", IDLE.as_millis()));
    }
}
