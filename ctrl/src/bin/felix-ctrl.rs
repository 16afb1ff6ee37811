//! `felix-ctrl`: arguments, configuration, logs, then the service.
//! Exit status: 0 ended in order, 1 could not start or ended by itself, 2 wrong usage or configuration.

use std::process::ExitCode;

use anyhow::Context;
use clap::{Parser, Subcommand};
use felix_ctrl::config::{self, Config, Flags, LogFormat};
use felix_ctrl::service;
use tracing_subscriber::EnvFilter;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The control plane of Felix: catalog, tokens, brokers, and who owns which shard
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(flatten)]
    flags: Flags,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Look at the configuration
    Config {
        #[command(subcommand)]
        command: ConfigCommand,
    },
}

#[derive(Subcommand)]
enum ConfigCommand {
    /// Print every setting as it would be used
    Print {
        /// Say where each value comes from
        #[arg(long)]
        origin: bool,
    },
}

/// Why there was nothing to run, or it ended by itself.
enum Failure {
    Configuration(anyhow::Error),
    Service(anyhow::Error),
}

fn main() -> ExitCode {
    let (error, status) = match run(Arguments::parse()) {
        Ok(()) => return ExitCode::SUCCESS,
        Err(Failure::Configuration(error)) => (error, 2),
        Err(Failure::Service(error)) => (error, 1),
    };
    // Some parsers explain themselves over several lines.
    eprintln!("felix-ctrl: {}", format!("{error:#}").replace('\n', " "));
    ExitCode::from(status)
}

fn run(arguments: Arguments) -> Result<(), Failure> {
    let configuration = |error| Failure::Configuration(error);
    let environment = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    let loaded = config::load(&arguments.flags, environment).map_err(|error| configuration(error.into()))?;
    if let Some(Command::Config { command: ConfigCommand::Print { origin } }) = arguments.command {
        for warning in &loaded.warnings {
            eprintln!("warning: {warning}");
        }
        print!("{}", loaded.print(origin));
        return Ok(());
    }
    let _flushed_at_the_end = start_logs(&loaded.config).map_err(configuration)?;
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::Service(error.into()))?;
    let ended = runtime.block_on(service::run(&loaded.config));
    // Blocking calls that still run belong to requests nobody waits for.
    runtime.shutdown_timeout(std::time::Duration::from_secs(1));
    ended.map_err(|error| Failure::Service(error.into()))
}

fn start_logs(config: &Config) -> anyhow::Result<tracing_appender::non_blocking::WorkerGuard> {
    let filter = EnvFilter::try_new(&config.log_level).context("log_level is not a filter")?;
    let (writer, guard) = tracing_appender::non_blocking(std::io::stderr());
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer);
    match config.log_format {
        LogFormat::Text => logs.with_ansi(false).init(),
        LogFormat::Json => logs.json().init(),
    }
    Ok(guard)
}
