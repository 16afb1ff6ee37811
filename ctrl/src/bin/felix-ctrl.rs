//! `felix-ctrl`: arguments, configuration, logs, then the service.

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

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let loaded = config::load(&arguments.flags, std::env::vars())?;
    if let Some(Command::Config { command: ConfigCommand::Print { origin } }) = arguments.command {
        for warning in &loaded.warnings {
            eprintln!("warning: {warning}");
        }
        print!("{}", loaded.print(origin));
        return Ok(());
    }
    let _flushed_at_the_end = start_logs(&loaded.config)?;
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(service::run(&loaded.config))?;
    // Blocking calls that still run belong to requests nobody waits for.
    runtime.shutdown_timeout(std::time::Duration::from_secs(1));
    Ok(())
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
