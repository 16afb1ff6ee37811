//! Puts the layers of the configuration together: flag over environment over file over default.
//! Scope: per process, once at start. The environment and the file's text are arguments: nothing here reads the process.
//! Invariants: an unknown key in the file is an error; an unknown `FELIX_*` variable is a warning; an empty variable
//! counts as unset.
//! Not here: which values go together (`check`).

use figment::value::{Dict, Map, Value};
use figment::{Figment, Metadata, Profile, Provider};

use super::nearest::{is_slip, nearest};
use super::settings::{SETTINGS, Setting, Settings};
use super::values::Kind;
use super::{Config, ConfigError, Origin};

/// The file that was read, if any.
pub struct FileText<'a> {
    pub path: &'a str,
    pub text: &'a str,
}

/// Where `load` takes values from.
#[derive(Default)]
pub struct Sources<'a> {
    pub file: Option<FileText<'a>>,
    /// Variables of the process; those not starting with `FELIX_` are ignored.
    pub environment: Vec<(String, String)>,
    /// (key, value) of each flag given.
    pub flags: Vec<(&'static str, String)>,
}

/// Variables with our prefix that are not settings: they say where the file is, or set the log filter of other programs.
const KNOWN_OTHERS: &[&str] = &[
    super::CONFIG_ENV,
    "FELIX_AUTH_TENANT",
    "FELIX_AUTH_TOKEN",
    "FELIX_AUTH_TOKEN_FILE",
    "FELIX_BIN_DIR",
    "FELIX_BROKERS",
    "FELIX_CA_FILE",
    "FELIX_CONTEXT",
    "FELIX_CONTEXT_DIR",
    "FELIX_DEV_FILE",
    "FELIX_EXCHANGE_TOKEN_TTL_SECONDS",
    "FELIX_NAMESPACE",
    "FELIX_SERVER_NAME",
];
/// And those whose names begin so: the control plane's, and how others reach it.
const FAMILIES_OF_OTHERS: &[&str] =
    &["FELIX_BOOTSTRAP_", "FELIX_CONTROLPLANE_", "FELIX_NODE_EXPIRY_", "FELIX_SHARD_"];

/// Name of the layer of defaults in `Origin` look-ups.
const DEFAULTS: &str = "default";
const ENVIRONMENT: &str = "environment";
const FLAGS: &str = "flag";

/// Merges the sources.
///
/// # Errors
/// A file that is not TOML, has an unknown key, or any value of the wrong type. All problems of the kind are named.
pub fn load(sources: Sources<'_>) -> Result<Config, ConfigError> {
    let mut warnings = Vec::new();
    let mut figment = Figment::from(Layer {
        name: DEFAULTS.to_owned(),
        values: Value::serialize(Settings::default()).map_err(|e| ConfigError::invalid(DEFAULTS, &e))?,
    });
    if let Some(file) = &sources.file {
        figment = figment.merge(file_layer(file)?);
    }
    figment = figment.merge(environment_layer(&sources.environment, &mut warnings)?);
    figment = figment.merge(flag_layer(&sources.flags)?);
    let settings: Settings = figment.extract().map_err(|e| wrong_value(&e))?;
    let origins = SETTINGS.iter().map(|s| origin(&figment, s)).collect();
    Ok(Config { settings, origins, warnings })
}

fn file_layer(file: &FileText<'_>) -> Result<Layer, ConfigError> {
    let bad = |reason: String| ConfigError::File { path: file.path.to_owned(), reason };
    let table: toml::Table = file.text.parse().map_err(|e: toml::de::Error| bad(e.to_string()))?;
    let mut unknown = Vec::new();
    for key in table.keys() {
        if !SETTINGS.iter().any(|s| s.key == key) {
            unknown.push(match nearest(key, SETTINGS.iter().map(|s| s.key)) {
                Some(near) => format!("unknown key `{key}`; did you mean `{near}`?"),
                None => format!("unknown key `{key}`"),
            });
        }
    }
    if !unknown.is_empty() {
        return Err(bad(unknown.join("; ")));
    }
    let values = Value::serialize(&table).map_err(|e| bad(e.to_string()))?;
    Ok(Layer { name: format!("file {}", file.path), values })
}

/// A variable of another program, and no slip for one of ours.
fn is_of_others(name: &str) -> bool {
    FAMILIES_OF_OTHERS.iter().any(|family| name.starts_with(family))
        && !is_slip(name, SETTINGS.iter().map(|s| s.env))
}

fn environment_layer(
    variables: &[(String, String)],
    warnings: &mut Vec<String>,
) -> Result<Layer, ConfigError> {
    let mut values = Dict::new();
    for (name, text) in variables.iter().filter(|(name, _)| name.starts_with("FELIX_")) {
        match SETTINGS.iter().find(|s| s.env == name) {
            Some(_) if text.is_empty() => {}
            Some(setting) => {
                values.insert(setting.key.to_owned(), value_of(setting, text, name)?);
            }
            None if KNOWN_OTHERS.contains(&name.as_str()) => {}
            None if is_of_others(name) => {}
            None => warnings.push(match nearest(name, SETTINGS.iter().map(|s| s.env)) {
                Some(near) => format!("environment variable {name} is not known; did you mean {near}?"),
                None => format!("environment variable {name} is not known"),
            }),
        }
    }
    Ok(Layer { name: ENVIRONMENT.to_owned(), values: values.into() })
}

fn flag_layer(flags: &[(&'static str, String)]) -> Result<Layer, ConfigError> {
    let mut values = Dict::new();
    for (key, text) in flags {
        let setting = SETTINGS.iter().find(|s| s.key == *key).ok_or_else(|| ConfigError::Value {
            origin: FLAGS.to_owned(),
            reason: format!("`{key}` is not a setting"),
        })?;
        values.insert((*key).to_owned(), value_of(setting, text, &setting.flag())?);
    }
    Ok(Layer { name: FLAGS.to_owned(), values: values.into() })
}

/// Reads a string by the setting's kind, so that a node called `7` stays a name.
fn value_of(setting: &Setting, text: &str, origin: &str) -> Result<Value, ConfigError> {
    let bad = |reason: String| ConfigError::Value { origin: origin.to_owned(), reason };
    match setting.kind {
        Kind::Text => Ok(Value::from(text)),
        Kind::Number => text
            .trim()
            .parse::<u64>()
            .map(Value::from)
            .map_err(|_| bad(format!("`{text}` is not a whole number"))),
        Kind::Switch => match text.trim().to_ascii_lowercase().as_str() {
            "true" | "1" | "yes" | "on" => Ok(Value::from(true)),
            "false" | "0" | "no" | "off" => Ok(Value::from(false)),
            _ => Err(bad(format!("`{text}` is neither true nor false"))),
        },
    }
}

fn origin(figment: &Figment, setting: &Setting) -> Origin {
    match figment.find_metadata(setting.key).map(|m| m.name.as_ref()) {
        Some(FLAGS) => Origin::Flag,
        Some(ENVIRONMENT) => Origin::Environment,
        Some(name) if name != DEFAULTS => Origin::File(name.trim_start_matches("file ").to_owned()),
        _ => Origin::Default,
    }
}

fn wrong_value(error: &figment::Error) -> ConfigError {
    let key = error.path.join(".");
    let setting = SETTINGS.iter().find(|s| s.key == key);
    let origin = match (error.metadata.as_ref().map(|m| m.name.as_ref()), setting) {
        (Some(FLAGS), Some(s)) => s.flag(),
        (Some(ENVIRONMENT), Some(s)) => s.env.to_owned(),
        (Some(name), _) => format!("{name}: {key}"),
        (None, _) => key,
    };
    ConfigError::Value { origin, reason: error.kind.to_string() }
}

impl Setting {
    /// Its flag, with the dashes.
    pub fn flag(&self) -> String {
        format!("--{}", self.key.replace('_', "-"))
    }
}

/// One source of values, by the name that `origin` recognises.
struct Layer {
    name: String,
    values: Value,
}

impl Provider for Layer {
    fn metadata(&self) -> Metadata {
        Metadata::named(self.name.clone())
    }

    fn data(&self) -> Result<Map<Profile, Dict>, figment::Error> {
        let values = self.values.clone().into_dict().unwrap_or_default();
        Ok(Map::from([(Profile::Default, values)]))
    }
}
