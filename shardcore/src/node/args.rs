//! The command line of `felix-broker`: one flag per setting, made from the table. Scope: per process, once at start.
//! Owns: reading arguments, the environment and the configuration file.
//! Invariants: nothing is bound, written or logged here.
//! Not here: what the settings mean (`config`).

use std::ffi::OsString;

use clap::{Arg, ArgAction, ArgMatches, Command};

use super::config::{self, CONFIG_ENV, Config, ConfigError, FileText, Kind, SETTINGS, Sources};
use super::inspect::InspectLog;

/// What the arguments ask for.
#[derive(Debug)]
pub enum Invocation {
    /// Serve.
    Run(Config),
    /// Show the configuration, with or without where each value came from, and end.
    PrintConfig { config: Config, with_origin: bool },
    /// Look at a log directory, and end.
    InspectLog(InspectLog),
}

/// Why the arguments lead nowhere.
#[derive(Debug, thiserror::Error)]
pub enum ArgsError {
    /// Wrong usage, or `--help`, or `--version`: `exit()` prints it and ends with the right status.
    #[error("{0}")]
    Usage(#[from] clap::Error),
    #[error(transparent)]
    Config(#[from] ConfigError),
}

/// Reads the arguments of the process (the first is the program), the given environment and, if one is named, the file.
///
/// # Errors
/// Wrong usage, an unreadable file, or a value that does not parse. Values are not yet checked against each other.
pub fn parse(
    arguments: impl IntoIterator<Item = impl Into<OsString> + Clone>,
    environment: Vec<(String, String)>,
) -> Result<Invocation, ArgsError> {
    let matches = command().try_get_matches_from(arguments)?;
    match matches.subcommand() {
        Some(("config", config)) => match config.subcommand() {
            Some((_, print)) => Ok(Invocation::PrintConfig {
                config: load(print, environment)?,
                with_origin: print.get_flag("origin"),
            }),
            None => Err(command()
                .error(clap::error::ErrorKind::MissingSubcommand, "config print [--origin]")
                .into()),
        },
        Some(("inspect", inspect)) => match inspect.subcommand() {
            Some((_, log)) => Ok(Invocation::InspectLog(InspectLog::of(log))),
            None => {
                Err(command().error(clap::error::ErrorKind::MissingSubcommand, "inspect log <DIR>").into())
            }
        },
        _ => Ok(Invocation::Run(load(&matches, environment)?)),
    }
}

fn command() -> Command {
    let print = with_settings(Command::new("print").about("Show the configuration in use")).arg(
        Arg::new("origin")
            .long("origin")
            .action(ArgAction::SetTrue)
            .help("Also show where each value came from"),
    );
    with_settings(Command::new("felix-broker"))
        .version(env!("CARGO_PKG_VERSION"))
        .about("Serves Felix streams on pinned cores")
        .subcommand(
            Command::new("config")
                .about("The broker's configuration")
                .subcommand_required(true)
                .subcommand(print),
        )
        .subcommand(InspectLog::command())
        .args_conflicts_with_subcommands(true)
}

fn with_settings(command: Command) -> Command {
    let file = Arg::new("config").long("config").value_name("FILE").help("Configuration file (TOML)");
    command.arg(file).args(SETTINGS.iter().map(|setting| {
        let arg = Arg::new(setting.key)
            .long(setting.key.replace('_', "-"))
            .value_name(match setting.kind {
                Kind::Switch => "BOOL",
                Kind::Number => "NUMBER",
                Kind::Text => "VALUE",
            })
            .help(format!("{} [env: {}]", setting.help.trim(), setting.env));
        match setting.kind {
            Kind::Switch => arg.num_args(0..=1).require_equals(true).default_missing_value("true"),
            Kind::Number | Kind::Text => arg,
        }
    }))
}

fn load(matches: &ArgMatches, environment: Vec<(String, String)>) -> Result<Config, ConfigError> {
    let named = environment.iter().find(|(name, value)| name == CONFIG_ENV && !value.is_empty());
    let path = matches.get_one::<String>("config").cloned().or_else(|| named.map(|(_, value)| value.clone()));
    let text = match &path {
        Some(path) => Some(
            std::fs::read_to_string(path)
                .map_err(|error| ConfigError::File { path: path.clone(), reason: error.to_string() })?,
        ),
        None => None,
    };
    let flags = SETTINGS
        .iter()
        .filter_map(|s| matches.get_one::<String>(s.key).map(|value| (s.key, value.clone())))
        .collect();
    let file = path.as_deref().zip(text.as_deref()).map(|(path, text)| FileText { path, text });
    config::load(Sources { file, environment, flags })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(arguments: &[&str]) -> Config {
        match parse(["felix-broker"].iter().chain(arguments).copied(), Vec::new()) {
            Ok(Invocation::Run(config)) => config,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn every_setting_is_a_flag() {
        command().debug_assert();
        let config = run(&["--cores", "0", "--shed", "--pin=false", "--quic-bind", "127.0.0.1:0"]);
        assert_eq!(config.settings.cores.to_string(), "0");
        assert!(config.settings.shed && !config.settings.pin);
    }

    #[test]
    fn a_named_file_is_read_and_a_missing_one_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("broker.toml");
        std::fs::write(&path, "spin_us = 12\n").unwrap();
        let path = path.to_str().unwrap();
        assert_eq!(run(&["--config", path]).settings.spin_us, 12);
        let environment = vec![(CONFIG_ENV.to_owned(), path.to_owned())];
        let Ok(Invocation::Run(config)) = parse(["felix-broker"], environment) else { panic!("no run") };
        assert_eq!(config.settings.spin_us, 12);
        let missing = parse(["felix-broker", "--config", "/nowhere/broker.toml"], Vec::new());
        assert!(matches!(missing, Err(ArgsError::Config(ConfigError::File { .. }))));
    }

    #[test]
    fn config_print_takes_the_same_flags() {
        let parsed = parse(["felix-broker", "config", "print", "--origin", "--spin-us", "4"], Vec::new());
        let Ok(Invocation::PrintConfig { config, with_origin: true }) = parsed else { panic!("{parsed:?}") };
        assert_eq!(config.settings.spin_us, 4);
    }

    #[test]
    fn a_log_to_inspect_needs_a_directory_and_batches_a_limit_in_range() {
        let asked =
            |more: &[&str]| parse(["felix-broker", "inspect", "log"].iter().chain(more).copied(), Vec::new());
        let all = ["d", "--shard", "0f", "--segments", "--batches", "--from", "7", "--limit", "9", "--json"];
        assert!(matches!(asked(&all), Ok(Invocation::InspectLog(_))));
        for wrong in [&[][..], &["d", "--limit", "9"], &["d", "--batches", "--limit", "0"], &["d", "e"]] {
            assert!(matches!(asked(wrong), Err(ArgsError::Usage(_))), "{wrong:?}");
        }
    }

    #[test]
    fn an_unknown_flag_is_wrong_usage() {
        assert!(matches!(parse(["felix-broker", "--spin"], Vec::new()), Err(ArgsError::Usage(_))));
    }
}
