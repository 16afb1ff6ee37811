//! Where the servers are and who we are: flag over environment over saved context, per setting (control-plane-api 13.1).
//! Scope: per process, once at start.
//! Owns: the names of the flags and variables, and the precedence.
//! Invariants: `--dev F` counts as flags; a token text and a token file are one setting, so the nearer of them wins.
//! Not here: using the settings (`api`, `connect`).

use std::path::PathBuf;

use clap::Args;

use super::dev_file::{DEFAULT_CONTEXT, DevFile, context_path, find_context};
use super::failure::{Failure, Outcome};

/// Namespace when none is named (control-plane-api 13.1).
const DEFAULT_NAMESPACE: &str = "default";

/// Flags that every command takes.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Connection")]
pub struct TargetArgs {
    /// Use what the `felix dev` that wrote this ready file runs [env: FELIX_DEV_FILE]
    #[arg(long, global = true, value_name = "FILE")]
    pub dev: Option<PathBuf>,
    /// Saved context to use, `dev` by default [env: FELIX_CONTEXT]
    #[arg(long, global = true, value_name = "NAME")]
    pub context: Option<String>,
    /// Brokers, `host:port`, several with commas [env: FELIX_BROKERS]
    #[arg(long, global = true, value_name = "LIST", value_delimiter = ',')]
    pub brokers: Option<Vec<String>>,
    /// Base URL of the control plane [env: FELIX_CONTROLPLANE_URL]
    #[arg(long, global = true, value_name = "URL")]
    pub controlplane_url: Option<String>,
    /// Tenant [env: FELIX_AUTH_TENANT]
    #[arg(long, global = true)]
    pub tenant: Option<String>,
    /// Namespace, `default` by default [env: FELIX_NAMESPACE]
    #[arg(short, long, global = true)]
    pub namespace: Option<String>,
    /// Token for brokers [env: FELIX_AUTH_TOKEN]
    #[arg(long, global = true, conflicts_with = "token_file")]
    pub token: Option<String>,
    /// File with that token, read again as needed [env: FELIX_AUTH_TOKEN_FILE]
    #[arg(long, global = true, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Token for the control plane [env: FELIX_CONTROLPLANE_TOKEN]
    #[arg(long, global = true, value_name = "TOKEN", conflicts_with = "controlplane_token_file")]
    pub controlplane_token: Option<String>,
    /// File with that token [env: FELIX_CONTROLPLANE_TOKEN_FILE]
    #[arg(long, global = true, value_name = "FILE")]
    pub controlplane_token_file: Option<PathBuf>,
    /// Certificates to trust for brokers (PEM) instead of the system's [env: FELIX_CA_FILE]
    #[arg(long, global = true, value_name = "FILE")]
    pub ca_file: Option<PathBuf>,
    /// Name the broker's certificate must have [env: FELIX_SERVER_NAME]
    #[arg(long, global = true, value_name = "NAME")]
    pub server_name: Option<String>,
}

/// A secret given as text or as a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Secret {
    Text(String),
    File(PathBuf),
}

impl Secret {
    fn of(text: Option<String>, file: Option<PathBuf>) -> Option<Secret> {
        text.map(Secret::Text).or(file.map(Secret::File))
    }

    /// The secret now.
    ///
    /// # Errors
    /// `Usage` when the file cannot be read or is empty.
    pub fn read(&self) -> Outcome<String> {
        let text = match self {
            Secret::Text(text) => text.clone(),
            Secret::File(path) => std::fs::read_to_string(path)
                .map_err(|error| Failure::usage(format!("{}: {error}", path.display())))?,
        };
        match text.trim() {
            "" => Err(Failure::usage("the token is empty")),
            token => Ok(token.to_owned()),
        }
    }
}

/// The settings in use. What is absent was given nowhere.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    brokers: Option<Vec<String>>,
    controlplane_url: Option<String>,
    tenant: Option<String>,
    namespace: Option<String>,
    token: Option<Secret>,
    controlplane_token: Option<Secret>,
    ca_file: Option<PathBuf>,
    server_name: Option<String>,
    bootstrap_url: Option<String>,
    bootstrap_token: Option<Secret>,
}

impl Settings {
    /// Reads the environment through `variable`, and the files that are named.
    ///
    /// # Errors
    /// `Usage` for a file that was named and cannot be read. A context that nobody named may be absent.
    pub fn resolve(flags: TargetArgs, variable: &dyn Fn(&str) -> Option<String>) -> Outcome<Settings> {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        let named_by_flag = flags.dev.as_deref().map(DevFile::read).transpose()?;
        let named_context = flags.context.clone();
        let mut settings = Settings::from_flags(flags);
        if let Some(file) = named_by_flag {
            settings = settings.over(Settings::from_dev_file(file));
        } else if let Some(name) = named_context {
            settings = settings.over(Settings::from_context(&name, variable)?);
        }
        settings = settings.over(Settings::from_environment(&set));
        if let Some(path) = set("FELIX_DEV_FILE") {
            return Ok(settings.over(Settings::from_dev_file(DevFile::read(path.as_ref())?)));
        }
        let saved = match set("FELIX_CONTEXT") {
            Some(name) => Settings::from_context(&name, variable)?,
            None => {
                let path = context_path(DEFAULT_CONTEXT, variable);
                let found = path.map(|path| find_context(&path)).transpose()?.flatten();
                found.map(Settings::from_dev_file).unwrap_or_default()
            }
        };
        Ok(settings.over(saved))
    }

    fn from_flags(flags: TargetArgs) -> Settings {
        Settings {
            brokers: flags.brokers,
            controlplane_url: flags.controlplane_url,
            tenant: flags.tenant,
            namespace: flags.namespace,
            token: Secret::of(flags.token, flags.token_file),
            controlplane_token: Secret::of(flags.controlplane_token, flags.controlplane_token_file),
            ca_file: flags.ca_file,
            server_name: flags.server_name,
            bootstrap_url: None,
            bootstrap_token: None,
        }
    }

    fn from_environment(set: &dyn Fn(&str) -> Option<String>) -> Settings {
        let file = |name: &str| set(name).map(PathBuf::from);
        let brokers = set("FELIX_BROKERS").map(|list| {
            list.split(',').map(str::trim).filter(|item| !item.is_empty()).map(str::to_owned).collect()
        });
        Settings {
            brokers,
            controlplane_url: set("FELIX_CONTROLPLANE_URL"),
            tenant: set("FELIX_AUTH_TENANT"),
            namespace: set("FELIX_NAMESPACE"),
            token: Secret::of(set("FELIX_AUTH_TOKEN"), file("FELIX_AUTH_TOKEN_FILE")),
            controlplane_token: Secret::of(
                set("FELIX_CONTROLPLANE_TOKEN"),
                file("FELIX_CONTROLPLANE_TOKEN_FILE"),
            ),
            ca_file: file("FELIX_CA_FILE"),
            server_name: set("FELIX_SERVER_NAME"),
            bootstrap_url: None,
            bootstrap_token: None,
        }
    }

    fn from_context(name: &str, variable: &dyn Fn(&str) -> Option<String>) -> Outcome<Settings> {
        let path = context_path(name, variable)
            .ok_or_else(|| Failure::usage("no folder for contexts: set FELIX_CONTEXT_DIR or HOME"))?;
        let found = if name == DEFAULT_CONTEXT { find_context(&path)? } else { None };
        found.map_or_else(|| DevFile::read(&path), Ok).map(Settings::from_dev_file)
    }

    fn from_dev_file(file: DevFile) -> Settings {
        Settings {
            brokers: Some(vec![file.broker_addr]),
            controlplane_url: Some(file.controlplane_url),
            tenant: Some(file.tenant),
            namespace: Some(file.namespace),
            token: Some(Secret::File(file.token_file)),
            controlplane_token: Some(Secret::File(file.controlplane_token_file)),
            ca_file: Some(file.ca_file),
            server_name: None,
            bootstrap_url: Some(file.bootstrap_url),
            bootstrap_token: Some(Secret::File(file.bootstrap_token_file)),
        }
    }

    /// Each setting from here, or else from `below`.
    fn over(self, below: Settings) -> Settings {
        Settings {
            brokers: self.brokers.or(below.brokers),
            controlplane_url: self.controlplane_url.or(below.controlplane_url),
            tenant: self.tenant.or(below.tenant),
            namespace: self.namespace.or(below.namespace),
            token: self.token.or(below.token),
            controlplane_token: self.controlplane_token.or(below.controlplane_token),
            ca_file: self.ca_file.or(below.ca_file),
            server_name: self.server_name.or(below.server_name),
            bootstrap_url: self.bootstrap_url.or(below.bootstrap_url),
            bootstrap_token: self.bootstrap_token.or(below.bootstrap_token),
        }
    }

    /// Brokers to try, at least one.
    ///
    /// # Errors
    /// `Usage` when none was given.
    pub fn brokers(&self) -> Outcome<&[String]> {
        match self.brokers.as_deref() {
            Some(brokers) if !brokers.is_empty() => Ok(brokers),
            _ => Err(missing("broker", "--brokers")),
        }
    }

    /// # Errors
    /// `Usage` when none was given.
    pub fn controlplane_url(&self) -> Outcome<&str> {
        self.controlplane_url.as_deref().ok_or_else(|| missing("control plane", "--controlplane-url"))
    }

    /// # Errors
    /// `Usage` when none was given.
    pub fn tenant(&self) -> Outcome<&str> {
        self.tenant.as_deref().ok_or_else(|| missing("tenant", "--tenant"))
    }

    pub fn namespace(&self) -> &str {
        self.namespace.as_deref().unwrap_or(DEFAULT_NAMESPACE)
    }

    /// The token for brokers.
    ///
    /// # Errors
    /// `Usage` when none was given.
    pub fn token(&self) -> Outcome<&Secret> {
        self.token.as_ref().ok_or_else(|| missing("token", "--token-file"))
    }

    /// The token for the control plane; without one, requests go without.
    pub fn controlplane_token(&self) -> Option<&Secret> {
        self.controlplane_token.as_ref()
    }

    pub fn ca_file(&self) -> Option<&PathBuf> {
        self.ca_file.as_ref()
    }

    pub fn server_name(&self) -> Option<&str> {
        self.server_name.as_deref()
    }

    /// Where development tokens are minted, and the secret for it.
    ///
    /// # Errors
    /// `Usage` without a `felix dev`.
    pub fn bootstrap(&self) -> Outcome<(&str, &Secret)> {
        self.bootstrap_url.as_deref().zip(self.bootstrap_token.as_ref()).ok_or_else(|| {
            Failure::usage(
                "tokens are minted by a `felix dev` only: start one, or name its ready file with --dev",
            )
        })
    }
}

fn missing(what: &str, flag: &str) -> Failure {
    Failure::usage(format!("no {what} is known: start `felix dev`, or give {flag}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::dev_file::Pids;

    fn dev_file(tenant: &str) -> DevFile {
        DevFile {
            broker_addr: "127.0.0.1:5000".to_owned(),
            controlplane_url: "http://127.0.0.1:5000".to_owned(),
            metrics_url: "http://127.0.0.1:5001".to_owned(),
            ca_file: "/d/ca.pem".into(),
            token_file: "/d/broker.token".into(),
            controlplane_token_file: "/d/ctrl.token".into(),
            tenant: tenant.to_owned(),
            namespace: "default".to_owned(),
            stream: "events".to_owned(),
            bootstrap_url: "http://127.0.0.1:5002".to_owned(),
            bootstrap_token_file: "/d/bootstrap.token".into(),
            data_dir: "/d".into(),
            pids: Pids { ctrl: 1, broker: 2 },
        }
    }

    #[test]
    fn a_flag_beats_the_dev_file_which_beats_the_environment_which_beats_the_context() {
        let folder = tempfile::tempdir().unwrap();
        let named = folder.path().join("named.json");
        dev_file("from-file").write(&named).unwrap();
        dev_file("from-context").write(&folder.path().join("dev.json")).unwrap();
        let contexts = folder.path().display().to_string();
        let variable = |name: &str| match name {
            "FELIX_CONTEXT_DIR" => Some(contexts.clone()),
            "FELIX_AUTH_TENANT" => Some("from-environment".to_owned()),
            "FELIX_AUTH_TOKEN" => Some("text".to_owned()),
            _ => None,
        };
        let tenant = |flags: TargetArgs| {
            Settings::resolve(flags, &variable).unwrap().tenant().map(str::to_owned).unwrap()
        };
        let by_flag = TargetArgs {
            tenant: Some("from-flag".to_owned()),
            dev: Some(named.clone()),
            ..TargetArgs::default()
        };
        assert_eq!(tenant(by_flag), "from-flag");
        assert_eq!(tenant(TargetArgs { dev: Some(named), ..TargetArgs::default() }), "from-file");
        assert_eq!(tenant(TargetArgs::default()), "from-environment");
        let settings = Settings::resolve(TargetArgs::default(), &variable).unwrap();
        assert_eq!(settings.brokers().unwrap(), ["127.0.0.1:5000"]);
        assert_eq!(settings.token().unwrap(), &Secret::Text("text".to_owned()));
        assert_eq!(settings.controlplane_token(), Some(&Secret::File("/d/ctrl.token".into())));
    }

    #[test]
    fn what_is_missing_is_a_usage_error_that_names_the_flag() {
        let settings = Settings::resolve(TargetArgs::default(), &|_| None).unwrap();
        let failure = settings.brokers().unwrap_err();
        assert_eq!(failure.kind.status(), 2);
        assert!(failure.message.contains("--brokers"));
        assert_eq!(settings.namespace(), "default");
        assert!(settings.bootstrap().is_err());
    }

    #[test]
    fn a_file_that_was_named_must_be_readable() {
        let flags = TargetArgs { dev: Some("/nowhere/f.json".into()), ..TargetArgs::default() };
        assert_eq!(Settings::resolve(flags, &|_| None).unwrap_err().kind.status(), 2);
        let flags = TargetArgs { context: Some("other".to_owned()), ..TargetArgs::default() };
        let variable = |name: &str| (name == "FELIX_CONTEXT_DIR").then(|| "/nowhere".to_owned());
        assert_eq!(Settings::resolve(flags, &variable).unwrap_err().kind.status(), 2);
    }
}
