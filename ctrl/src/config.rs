//! The settings of the process: flag over environment over file over default, each value with its origin.
//! Owns: names, defaults, validation. Invariants: an unknown key in the file is an error that names the nearest one; an
//! unknown `FELIX_*` variable is a warning, since brokers read theirs from the same environment.
//! Not here: what the settings do.

mod validate;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::Args;
use figment::providers::{Format, Serialized, Toml};
use figment::value::{Dict, Map, Value};
use figment::{Figment, Metadata, Profile, Provider};
use serde::{Deserialize, Serialize};

pub use validate::ConfigError;

/// Where rows are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum StorageBackend {
    /// Lost with the process; only when asked for.
    Memory,
    /// Under `data_dir`.
    Sled,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    Text,
    Json,
}

/// Every setting. Durations are milliseconds or seconds as the name says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    pub bind: SocketAddr,
    pub metrics_bind: SocketAddr,
    /// Folder of the sled store; needed unless the backend is memory.
    pub data_dir: Option<PathBuf>,
    /// Absent: sled when there is a `data_dir`.
    pub storage_backend: Option<StorageBackend>,
    /// Written once everything listens, with the real addresses.
    pub ready_file: Option<PathBuf>,
    /// Development: only loopback binds are allowed.
    pub dev: bool,
    pub region_id: String,
    pub log_format: LogFormat,
    /// A tracing filter: `info`, `felix_ctrl=debug`, ...
    pub log_level: String,
    pub bootstrap_enabled: bool,
    pub bootstrap_bind: SocketAddr,
    pub bootstrap_token: Option<String>,
    pub bootstrap_token_previous: Option<String>,
    /// Development tokens; loopback bind only.
    pub bootstrap_dev_tokens: bool,
    pub token_ttl_seconds: u64,
    pub heartbeat_interval_ms: u64,
    pub expiry_timeout_ms: u64,
    /// Absent: a quarter of the expiry, which is also the least.
    pub regrant_margin_ms: Option<u64>,
    pub expiry_sweep_interval_ms: u64,
    pub reconcile_interval_ms: u64,
    pub changes_limit: u64,
    pub change_retention_rows: u64,
    /// After a signal: not ready, and still serving. Absent: 5000, in development 0.
    pub shutdown_predrain_ms: Option<u64>,
    /// After that: for requests that run.
    pub shutdown_drain_timeout_ms: u64,
}

/// Key in the file and its environment variable. The file key is also the flag, with dashes.
const SETTINGS: [(&str, &str); 25] = [
    ("bind", "FELIX_CONTROLPLANE_BIND"),
    ("metrics_bind", "FELIX_CONTROLPLANE_METRICS_BIND"),
    ("data_dir", "FELIX_CONTROLPLANE_DATA_DIR"),
    ("storage_backend", "FELIX_CONTROLPLANE_STORAGE_BACKEND"),
    ("ready_file", "FELIX_CONTROLPLANE_READY_FILE"),
    ("dev", "FELIX_CONTROLPLANE_DEV"),
    ("region_id", "FELIX_REGION_ID"),
    ("log_format", "FELIX_LOG_FORMAT"),
    ("log_level", "FELIX_LOG_LEVEL"),
    ("bootstrap_enabled", "FELIX_BOOTSTRAP_ENABLED"),
    ("bootstrap_bind", "FELIX_BOOTSTRAP_BIND_ADDR"),
    ("bootstrap_token", "FELIX_BOOTSTRAP_TOKEN"),
    ("bootstrap_token_previous", "FELIX_BOOTSTRAP_TOKEN_PREVIOUS"),
    ("bootstrap_dev_tokens", "FELIX_BOOTSTRAP_DEV_TOKENS"),
    ("token_ttl_seconds", "FELIX_EXCHANGE_TOKEN_TTL_SECONDS"),
    ("heartbeat_interval_ms", "FELIX_NODE_HEARTBEAT_INTERVAL_MS"),
    ("expiry_timeout_ms", "FELIX_NODE_EXPIRY_TIMEOUT_MS"),
    ("regrant_margin_ms", "FELIX_NODE_REGRANT_MARGIN_MS"),
    ("expiry_sweep_interval_ms", "FELIX_NODE_EXPIRY_SWEEP_INTERVAL_MS"),
    ("reconcile_interval_ms", "FELIX_SHARD_RECONCILE_INTERVAL_MS"),
    ("changes_limit", "FELIX_CONTROLPLANE_CHANGES_LIMIT"),
    ("change_retention_rows", "FELIX_CONTROLPLANE_CHANGE_RETENTION_MAX_ROWS"),
    ("shutdown_predrain_ms", "FELIX_SHUTDOWN_PREDRAIN_MS"),
    ("shutdown_drain_timeout_ms", "FELIX_SHUTDOWN_DRAIN_TIMEOUT_MS"),
    ("config", "FELIX_CONTROLPLANE_CONFIG"),
];
/// Keys whose values are never printed.
const SECRETS: [&str; 2] = ["bootstrap_token", "bootstrap_token_previous"];

impl Default for Config {
    fn default() -> Config {
        Config {
            bind: SocketAddr::from(([0, 0, 0, 0], 8443)),
            metrics_bind: SocketAddr::from(([0, 0, 0, 0], 8080)),
            data_dir: None,
            storage_backend: None,
            ready_file: None,
            dev: false,
            region_id: "local".to_owned(),
            log_format: LogFormat::Text,
            log_level: "info".to_owned(),
            bootstrap_enabled: false,
            bootstrap_bind: SocketAddr::from(([127, 0, 0, 1], 9095)),
            bootstrap_token: None,
            bootstrap_token_previous: None,
            bootstrap_dev_tokens: false,
            token_ttl_seconds: 900,
            heartbeat_interval_ms: 5_000,
            expiry_timeout_ms: 15_000,
            regrant_margin_ms: None,
            expiry_sweep_interval_ms: 2_000,
            reconcile_interval_ms: 5_000,
            changes_limit: 1_000,
            change_retention_rows: 10_000,
            shutdown_predrain_ms: None,
            shutdown_drain_timeout_ms: 25_000,
        }
    }
}

/// Flags. Secrets have none: an argument is visible to every process of the machine.
#[derive(Clone, Debug, Default, Args, Serialize)]
pub struct Flags {
    /// Settings file (TOML)
    #[arg(long, global = true, value_name = "FILE")]
    #[serde(skip)]
    pub config: Option<PathBuf>,
    /// Address of the API
    #[arg(long, global = true, value_name = "IP:PORT")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bind: Option<SocketAddr>,
    /// Address of metrics and probes
    #[arg(long, global = true, value_name = "IP:PORT")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metrics_bind: Option<SocketAddr>,
    /// Folder of the store
    #[arg(long, global = true, value_name = "DIR")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_dir: Option<PathBuf>,
    /// Where rows are kept
    #[arg(long, global = true, value_enum)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage_backend: Option<StorageBackend>,
    /// Written with the real addresses once everything listens
    #[arg(long, global = true, value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready_file: Option<PathBuf>,
    /// Development: loopback binds only, no pause before draining
    #[arg(long, global = true)]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub dev: bool,
    /// Region of this control plane
    #[arg(long, global = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub region_id: Option<String>,
    /// Form of log lines
    #[arg(long, global = true, value_enum)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_format: Option<LogFormat>,
    /// Filter of log lines
    #[arg(long, global = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_level: Option<String>,
    /// Serve the bootstrap listener
    #[arg(long, global = true)]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub bootstrap_enabled: bool,
    /// Address of the bootstrap listener
    #[arg(long, global = true, value_name = "IP:PORT")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bootstrap_bind: Option<SocketAddr>,
    /// Mint development tokens
    #[arg(long, global = true)]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub bootstrap_dev_tokens: bool,
}

/// The settings, and where each came from.
#[derive(Debug)]
pub struct Loaded {
    pub config: Config,
    /// Things worth a warning, one line each.
    pub warnings: Vec<String>,
    origins: BTreeMap<&'static str, String>,
}

/// Reads all sources. `environment` is what `std::env::vars` gives.
pub fn load(
    flags: &Flags,
    environment: impl IntoIterator<Item = (String, String)>,
) -> Result<Loaded, ConfigError> {
    let environment: BTreeMap<String, String> =
        environment.into_iter().filter(|(name, _)| name.starts_with("FELIX_")).collect();
    let file =
        flags.config.clone().or_else(|| environment.get("FELIX_CONTROLPLANE_CONFIG").map(PathBuf::from));
    let mut figment = Figment::from(Serialized::defaults(Config::default()));
    if let Some(path) = &file {
        check_file(path)?;
        figment = figment.merge(Toml::file_exact(path));
    }
    figment = figment.merge(Environment(&environment)).merge(FlagSource(flags));
    let config: Config = figment.extract().map_err(|e| ConfigError::Value(Box::new(e)))?;
    validate::check(&config)?;
    let origins = keys().map(|key| (key, origin(&figment, key, file.as_deref()))).collect();
    Ok(Loaded { config, warnings: unknown_variables(&environment), origins })
}

impl Loaded {
    /// One `key = value` line per setting, with its origin when asked for. Secrets are shown as `"***"`.
    pub fn print(&self, with_origin: bool) -> String {
        let Ok(toml::Value::Table(values)) = toml::Value::try_from(&self.config) else {
            unreachable!("the settings are a flat table");
        };
        let mut text = String::new();
        for key in keys() {
            let value = match values.get(key) {
                Some(_) if SECRETS.contains(&key) => "\"***\"".to_owned(),
                Some(value) => value.to_string(),
                None => "# unset".to_owned(),
            };
            let line = match (value.starts_with('#'), with_origin) {
                (true, _) => format!("# {key} is unset"),
                (false, false) => format!("{key} = {value}"),
                (false, true) => format!("{key} = {value}  # {}", self.origins[key]),
            };
            text.push_str(&line);
            text.push('\n');
        }
        text
    }
}

fn keys() -> impl Iterator<Item = &'static str> {
    SETTINGS.iter().map(|(key, _)| *key).filter(|key| *key != "config")
}

/// Refuses keys that are no settings, before their values are looked at.
fn check_file(path: &Path) -> Result<(), ConfigError> {
    let read = |e: std::io::Error| ConfigError::File { path: path.to_owned(), error: e.to_string() };
    let text = std::fs::read_to_string(path).map_err(read)?;
    let table: toml::Table = text
        .parse()
        .map_err(|e: toml::de::Error| ConfigError::File { path: path.to_owned(), error: e.to_string() })?;
    for key in table.keys() {
        if !keys().any(|known| known == key) {
            let nearest = nearest(key, keys());
            return Err(ConfigError::UnknownKey { path: path.to_owned(), key: key.clone(), nearest });
        }
    }
    Ok(())
}

/// Variables of other programs that begin like ours.
const OF_OTHERS: [&str; 5] = [
    "FELIX_CONTROLPLANE_URL",
    "FELIX_CONTROLPLANE_CA",
    "FELIX_CONTROLPLANE_SYNC_INTERVAL_MS",
    "FELIX_CONTROLPLANE_TOKEN",
    "FELIX_CONTROLPLANE_TOKEN_FILE",
];

/// Variables of the control plane's own families that name no setting.
fn unknown_variables(environment: &BTreeMap<String, String>) -> Vec<String> {
    let known = || SETTINGS.iter().map(|(_, variable)| *variable);
    let ours = ["FELIX_CONTROLPLANE_", "FELIX_BOOTSTRAP_"];
    environment
        .keys()
        .filter(|name| ours.iter().any(|family| name.starts_with(family)) && !known().any(|k| k == *name))
        // How brokers and the command line reach the control plane.
        .filter(|name| !OF_OTHERS.contains(&name.as_str()))
        .map(|name| match nearest(name, known()) {
            Some(nearest) => format!("{name} is not a setting; did you mean {nearest}?"),
            None => format!("{name} is not a setting"),
        })
        .collect()
}

/// The known name with the fewest edits, if it is close enough to be meant.
fn nearest(given: &str, known: impl Iterator<Item = &'static str>) -> Option<&'static str> {
    let scored = known.map(|name| (edits(given.as_bytes(), name.as_bytes()), name));
    let (edits, name) = scored.min()?;
    (edits <= name.len() / 2).then_some(name)
}

/// Insertions, deletions and replacements that make one of the other.
fn edits(a: &[u8], b: &[u8]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

fn origin(figment: &Figment, key: &str, file: Option<&Path>) -> String {
    let Some(metadata) = figment.find_metadata(key) else { return "default".to_owned() };
    match (&*metadata.name, file) {
        ("flag", _) => format!("flag --{}", key.replace('_', "-")),
        ("environment", _) => {
            let variable = SETTINGS.iter().find(|(k, _)| *k == key).map(|(_, variable)| *variable);
            format!("environment {}", variable.unwrap_or_default())
        }
        (name, Some(path)) if name.starts_with("TOML") => format!("file {}", path.display()),
        _ => "default".to_owned(),
    }
}

/// The environment as a source: values are read as TOML would read them, or else as text.
struct Environment<'a>(&'a BTreeMap<String, String>);

impl Provider for Environment<'_> {
    fn metadata(&self) -> Metadata {
        Metadata::named("environment")
    }

    fn data(&self) -> Result<Map<Profile, Dict>, figment::Error> {
        let mut dict = Dict::new();
        for (key, variable) in SETTINGS.iter().filter(|(key, _)| *key != "config") {
            let Some(text) = self.0.get(*variable).filter(|text| !text.is_empty()) else { continue };
            let number = text.parse::<u64>().ok().map(Value::from);
            let boolean = || text.to_ascii_lowercase().parse::<bool>().ok().map(Value::from);
            // A secret or a name may look like a number.
            let is_text = SECRETS.contains(key) || matches!(*key, "region_id" | "data_dir" | "ready_file");
            let value = if is_text { None } else { number.or_else(boolean) };
            dict.insert((*key).to_owned(), value.unwrap_or_else(|| Value::from(text.as_str())));
        }
        Ok(Map::from([(Profile::Default, dict)]))
    }
}

/// Flags as a source: those that were given.
struct FlagSource<'a>(&'a Flags);

impl Provider for FlagSource<'_> {
    fn metadata(&self) -> Metadata {
        Metadata::named("flag")
    }

    fn data(&self) -> Result<Map<Profile, Dict>, figment::Error> {
        Serialized::defaults(self.0).data()
    }
}

#[cfg(test)]
mod tests;
