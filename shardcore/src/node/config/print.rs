//! `config print`: the settings in use as a file that could be read again. Scope: pure function.
//! Invariants: what is printed parses to the same settings, except secrets, which are masked.
//! Not here: writing it anywhere.

use std::fmt::Write;

use figment::value::Value;

use super::{Config, Origin, SETTINGS, Setting};

/// Settings whose value is not shown.
const SECRETS: &[&str] = &["node_token"];

impl Config {
    /// TOML with one line for each setting; unset ones are comments. `with_origin` adds where each came from.
    pub fn print(&self, with_origin: bool) -> String {
        let values = Value::serialize(&self.settings).ok().and_then(Value::into_dict).unwrap_or_default();
        let mut text = String::new();
        for (setting, origin) in SETTINGS.iter().zip(&self.origins) {
            let line = match values.get(setting.key) {
                None | Some(Value::Empty(..)) => format!("# {} is not set", setting.key),
                Some(_) if SECRETS.contains(&setting.key) => format!("# {} = \"***\"", setting.key),
                Some(value) => format!("{} = {}", setting.key, literal(value)),
            };
            if with_origin {
                let _ = writeln!(text, "{line:<58} # {}", describe(origin, setting));
            } else {
                let _ = writeln!(text, "{line}");
            }
        }
        text
    }
}

fn literal(value: &Value) -> String {
    match value {
        Value::String(_, text) => toml::Value::String(text.clone()).to_string(),
        Value::Bool(_, on) => on.to_string(),
        other => other.to_u128().map_or_else(|| "\"\"".to_owned(), |number| number.to_string()),
    }
}

fn describe(origin: &Origin, setting: &Setting) -> String {
    match origin {
        Origin::Default => "default".to_owned(),
        Origin::File(path) => format!("file {path}"),
        Origin::Environment => format!("environment {}", setting.env),
        Origin::Flag => format!("flag {}", setting.flag()),
    }
}
