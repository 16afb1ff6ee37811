//! The broker's configuration: one typed value, and where each part of it came from.
//! Scope: per process, made once at start and then only read.
//! Owns: the merged settings, their origins, and what `config print` shows.
//! Invariants: a value comes from the first of flag, environment, file and default that names it; `check` has passed
//! before anything is bound.
//! Not here: reading arguments and files (`args`).

mod check;
mod load;
mod nearest;
mod print;
mod settings;
#[cfg(test)]
mod tests;
mod values;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use felix_logstore::limits::SEGMENT_BYTES_MIN;
use felix_logstore::retention::Retention;
use felix_runtime::file::FilesSettings;

pub use self::load::{FileText, Sources, load};
pub use self::settings::{SETTINGS, Setting, Settings};
pub use self::values::{CORES_MAX, CoreList, FsyncMode, Kind, LogFormat, QueuePolicy, Size};

use crate::projection::group::GroupSettings;
use crate::snapshot::CoreLimits;
use crate::store::StoreSettings;

/// Names the configuration file when no flag does.
pub const CONFIG_ENV: &str = "FELIX_BROKER_CONFIG";

/// Why there is no usable configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read, is not TOML, or has unknown keys.
    #[error("configuration file {path}: {reason}")]
    File { path: String, reason: String },
    /// A value has the wrong type or does not parse; `origin` is the flag, variable or file that holds it.
    #[error("{origin}: {reason}")]
    Value { origin: String, reason: String },
    /// Values that do not go together, or required ones that are missing; one line each.
    #[error("the configuration cannot be used:\n  {}", .0.join("\n  "))]
    Refused(Vec<String>),
}

impl ConfigError {
    fn invalid(origin: &str, reason: &dyn std::fmt::Display) -> ConfigError {
        ConfigError::Value { origin: origin.to_owned(), reason: reason.to_string() }
    }
}

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    Default,
    /// Path of the file.
    File(String),
    Environment,
    Flag,
}

/// The merged settings.
#[derive(Clone, Debug)]
pub struct Config {
    pub settings: Settings,
    /// One per row of `SETTINGS`, in its order.
    pub origins: Vec<Origin>,
    /// What to log once logging is up (unknown variables).
    pub warnings: Vec<String>,
}

/// Share of a core's memory for the receive windows of its connections, in percent.
const WINDOW_MEMORY_PERCENT: u64 = 25;
/// Share of a core's memory for the queues of its subscribers, in percent.
const QUEUE_MEMORY_PERCENT: u64 = 15;
/// Share of a core's memory that one other core's unanswered requests may hold, divided by the cores, in percent.
const PAIR_MEMORY_PERCENT: u64 = 10;
/// Smallest and largest byte credit of a pair of cores: at least one largest frame must fit.
const PAIR_BYTES: (u64, u64) = (16 << 20, 64 << 20);

/// Buffers for rounds, headers and reads beside what is on its way to the disk.
const POOL_EXTRA_BYTES: usize = 32 << 20;

impl Settings {
    /// Time to spin before parking.
    pub fn spin(&self) -> Duration {
        Duration::from_micros(self.spin_us)
    }

    /// Budget for the whole drain.
    pub fn drain_timeout(&self) -> Duration {
        Duration::from_millis(self.shutdown_drain_timeout_ms)
    }

    /// Whether only this machine can reach the client address.
    pub fn is_loopback(&self) -> bool {
        is_loopback(self.quic_bind)
    }

    /// The folders of the volumes; none without a data folder.
    pub fn storage_dirs(&self) -> Vec<PathBuf> {
        match (&self.storage_dir, &self.data_dir) {
            (Some(dirs), _) => dirs.split(',').map(|dir| PathBuf::from(dir.trim())).collect(),
            (None, Some(data)) => vec![PathBuf::from(data).join("log")],
            (None, None) => Vec::new(),
        }
    }

    /// What the logs of a core are to be like.
    pub fn store_settings(&self) -> StoreSettings {
        StoreSettings {
            policy: self.fsync.into(),
            flush_every: Duration::from_millis(self.fsync_interval_ms),
            segment_bytes_first: SEGMENT_BYTES_MIN.min(self.segment_bytes.0),
            segment_bytes_max: self.segment_bytes.0,
            slot_bytes: self.commit_slot_bytes.0,
            memory_bytes_max: self.log_memory.get(),
            space_low_bytes: self.disk_low.0,
            space_high_bytes: self.disk_low.0.saturating_mul(2),
            retention: Retention {
                bytes: Some(self.retention_bytes.0).filter(|bytes| *bytes > 0),
                age_ms: Some(self.retention_seconds.saturating_mul(1_000)).filter(|ms| *ms > 0),
            },
            retain_every: Duration::from_millis(self.retention_check_ms),
            compact_bytes_per_sec: self.compaction_bytes_per_sec.0,
        }
    }

    /// How much a core asks of its disks at once.
    pub fn files_settings(&self) -> FilesSettings {
        FilesSettings {
            pool_bytes: self.log_memory.get().saturating_add(POOL_EXTRA_BYTES),
            ..FilesSettings::default()
        }
    }

    /// The bounds of one of `cores` cores, when the broker may plan with `memory_bytes` in all.
    /// Bounds of the whole broker are divided by the cores and rounded up, so each core can always take one.
    pub fn core_limits(&self, cores: u16, memory_bytes: u64) -> CoreLimits {
        let cores = u64::from(cores.max(1));
        let planned = if self.memory.0 == 0 { memory_bytes / 4 * 3 } else { self.memory.0 };
        let share = planned / cores;
        let rings =
            if self.ring_memory.0 == 0 { share / 100 * self.ring_memory_percent } else { self.ring_memory.0 };
        let pair = (share / 100 * PAIR_MEMORY_PERCENT / cores).clamp(PAIR_BYTES.0, PAIR_BYTES.1);
        CoreLimits {
            frame_bytes_max: count(self.max_frame_bytes.0),
            preauth_frame_bytes_max: count(self.preauth_max_frame_bytes.0),
            preauth_streams_max: count(self.preauth_max_streams_per_conn),
            streams_max: count(self.max_streams_per_conn),
            auth_timeout: Duration::from_millis(self.auth_timeout_ms),
            connections_max: count(self.max_client_connections.div_ceil(cores)),
            connections_per_ip_max: count(self.max_connections_per_ip),
            parked_bytes_per_stream: self.stream_recv_window.get(),
            publish_window: count(self.publish_window),
            publish_queue_wait: Duration::from_millis(self.publish_queue_wait_ms),
            publish_confirm_wait: Duration::from_millis(self.publish_confirm_wait_ms),
            live_frame_records: count(self.event_batch_max_events),
            live_frame_bytes: self.event_batch_max_bytes.get(),
            subscriber_queue_frames: count(self.subscriber_queue_capacity),
            subscriber_queue_frames_max: count(self.subscriber_queue_max),
            subscriber_queues_bytes_max: Size(share / 100 * QUEUE_MEMORY_PERCENT).get(),
            slow_subscriber: self.sub_queue_policy.into(),
            subscriptions_per_connection: count(self.max_subscriptions_per_conn),
            subscriptions_max: count(self.max_subscriptions_total.div_ceil(cores)),
            ring_records_max: count(self.replay_ring_max_records),
            ring_bytes_max: self.replay_ring_max_bytes.get(),
            rings_bytes_max: Size(rings).get(),
            pair_credit_bytes: Size(pair).get(),
            stream_window: count(self.stream_recv_window.0),
            conn_window: count(self.conn_recv_window.0),
            windows_bytes_max: Size(share / 100 * WINDOW_MEMORY_PERCENT).get(),
            cache_bytes_max: Size(share / 100 * self.cache_memory_percent).get(),
            groups: GroupSettings {
                visibility: Duration::from_millis(self.group_visibility_timeout_ms),
                visibility_max: Duration::from_millis(self.group_max_visibility_ms),
                attempts_max: count(self.group_max_attempts),
                in_flight_max: count(self.group_max_in_flight) as usize,
            },
            group_wait_max: Duration::from_millis(self.group_max_wait_ms),
            has_logs: !self.storage_dirs().is_empty(),
            shed: self.shed,
            tenant_labels_max: count(self.tenant_metrics_max),
            drain_timeout: self.drain_timeout(),
            ..CoreLimits::default()
        }
    }
}

/// Whether only this machine can reach `addr`.
pub fn is_loopback(addr: SocketAddr) -> bool {
    addr.ip().to_canonical().is_loopback()
}

/// `check` keeps every such setting below `u32::MAX`.
fn count(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}
