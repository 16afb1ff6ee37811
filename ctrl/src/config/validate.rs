//! Settings that do not go together, and their conversion into what the running process uses.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::{Config, StorageBackend};
use crate::lease::LeaseRules;
use crate::plane::{BootstrapSettings, Settings};

/// Shortest bootstrap token: below it, guessing is a matter of patience.
const BOOTSTRAP_TOKEN_BYTES_MIN: usize = 16;
/// Pause between a signal and draining, for load balancers to notice.
const PREDRAIN_MS: u64 = 5_000;

/// Why the process does not start.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot read {}: {error}", path.display())]
    File { path: PathBuf, error: String },
    #[error("{}: unknown key `{key}`{}", path.display(), suggestion(*nearest))]
    UnknownKey { path: PathBuf, key: String, nearest: Option<&'static str> },
    #[error("invalid setting: {0}")]
    Value(Box<figment::Error>),
    #[error("{0}")]
    Pair(String),
}

fn suggestion(nearest: Option<&str>) -> String {
    nearest.map(|name| format!(" (did you mean `{name}`?)")).unwrap_or_default()
}

/// Refuses settings that do not go together.
pub(super) fn check(config: &Config) -> Result<(), ConfigError> {
    let refuse = |why: String| Err(ConfigError::Pair(why));
    if config.dev {
        let binds = [("bind", config.bind), ("metrics_bind", config.metrics_bind)];
        for (name, addr) in binds.into_iter().chain([("bootstrap_bind", config.bootstrap_bind)]) {
            if !addr.ip().is_loopback() {
                return refuse(format!("dev allows loopback addresses only, and {name} is {addr}"));
            }
        }
    }
    if config.bootstrap_enabled {
        let tokens = [&config.bootstrap_token, &config.bootstrap_token_previous];
        if config.bootstrap_token.is_none() {
            return refuse("bootstrap_enabled needs a bootstrap_token (FELIX_BOOTSTRAP_TOKEN)".to_owned());
        }
        if tokens.into_iter().flatten().any(|token| token.len() < BOOTSTRAP_TOKEN_BYTES_MIN) {
            return refuse(format!(
                "a bootstrap token needs at least {BOOTSTRAP_TOKEN_BYTES_MIN} characters"
            ));
        }
    }
    if config.bootstrap_dev_tokens && !config.bootstrap_bind.ip().is_loopback() {
        return refuse("bootstrap_dev_tokens needs a loopback bootstrap_bind".to_owned());
    }
    match (config.storage_backend, &config.data_dir) {
        (None | Some(StorageBackend::Sled), None) => {
            return refuse("give a data_dir, or ask for storage_backend = \"memory\"".to_owned());
        }
        (Some(StorageBackend::Memory), Some(_)) => {
            return refuse("storage_backend = \"memory\" uses no data_dir; give one of them".to_owned());
        }
        _ => {}
    }
    check_numbers(config)
}

fn check_numbers(config: &Config) -> Result<(), ConfigError> {
    let refuse = |why: String| Err(ConfigError::Pair(why));
    let positive = [
        ("token_ttl_seconds", config.token_ttl_seconds),
        ("heartbeat_interval_ms", config.heartbeat_interval_ms),
        ("expiry_timeout_ms", config.expiry_timeout_ms),
        ("expiry_sweep_interval_ms", config.expiry_sweep_interval_ms),
        ("reconcile_interval_ms", config.reconcile_interval_ms),
        ("changes_limit", config.changes_limit),
        ("change_retention_rows", config.change_retention_rows),
    ];
    if let Some((name, _)) = positive.into_iter().find(|(_, value)| *value == 0) {
        return refuse(format!("{name} must be above 0"));
    }
    // The broker stops serving a quarter of the lease before its end.
    if config.heartbeat_interval_ms.saturating_mul(2) > config.expiry_timeout_ms {
        return refuse("expiry_timeout_ms must be at least twice heartbeat_interval_ms".to_owned());
    }
    if config.regrant_margin_ms.is_some_and(|margin| margin < config.expiry_timeout_ms.div_ceil(4)) {
        return refuse("regrant_margin_ms must be at least a quarter of expiry_timeout_ms".to_owned());
    }
    if config.region_id.is_empty() {
        return refuse("region_id must not be empty".to_owned());
    }
    Ok(())
}

impl Config {
    /// Where rows are kept: the folder of the durable store, or None for memory.
    pub fn store_folder(&self) -> Option<PathBuf> {
        match self.storage_backend {
            Some(StorageBackend::Memory) => None,
            _ => self.data_dir.clone(),
        }
    }

    /// From the signal to draining.
    pub fn predrain(&self) -> Duration {
        let default = if self.dev { 0 } else { PREDRAIN_MS };
        Duration::from_millis(self.shutdown_predrain_ms.unwrap_or(default))
    }

    /// For requests that run when draining begins.
    pub fn drain_timeout(&self) -> Duration {
        Duration::from_millis(self.shutdown_drain_timeout_ms)
    }

    /// Address of the bootstrap listener, if there is one.
    pub fn bootstrap_listener(&self) -> Option<SocketAddr> {
        self.bootstrap_enabled.then_some(self.bootstrap_bind)
    }

    /// What routes and loops read.
    pub fn settings(&self) -> Settings {
        let margin = self.regrant_margin_ms.unwrap_or(self.expiry_timeout_ms.div_ceil(4));
        let bootstrap = self.bootstrap_token.clone().filter(|_| self.bootstrap_enabled);
        Settings {
            region_id: self.region_id.clone(),
            durable_storage: self.store_folder().is_some(),
            heartbeat_interval: Duration::from_millis(self.heartbeat_interval_ms),
            lease: LeaseRules {
                expiry: Duration::from_millis(self.expiry_timeout_ms),
                margin: Duration::from_millis(margin),
            },
            sweep_interval: Duration::from_millis(self.expiry_sweep_interval_ms),
            reconcile_interval: Duration::from_millis(self.reconcile_interval_ms),
            changes_limit: usize::try_from(self.changes_limit).unwrap_or(usize::MAX),
            change_retention_rows: self.change_retention_rows,
            token_ttl: Duration::from_secs(self.token_ttl_seconds),
            bootstrap: bootstrap.map(|token| BootstrapSettings {
                token,
                token_previous: self.bootstrap_token_previous.clone(),
                dev_tokens: self.bootstrap_dev_tokens,
            }),
        }
    }
}
