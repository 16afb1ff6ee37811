//! The broker: arguments -> configuration -> `Node::run`.
//! Exit status: 0 ended in order, 1 could not start or ended by itself, 2 wrong usage or configuration. Of `inspect`: 0 sound,
//! 1 damage found, 2 wrong usage, in use, or not readable.

use std::io::Write;
use std::process::ExitCode;

use felix_shardcore::node::{ArgsError, Invocation, Node, parse};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let environment = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    match parse(std::env::args_os(), environment.collect()) {
        Ok(Invocation::Run(config)) => match Node::run(config) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) if error.is_logged() => ExitCode::FAILURE,
            Err(error) => complain(&error, 2),
        },
        Ok(Invocation::PrintConfig { config, with_origin }) => {
            print!("{}", config.print(with_origin));
            for warning in config.warnings.iter().chain(&config.settings.doubts()) {
                eprintln!("warning: {warning}");
            }
            match config.settings.check() {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => complain(&error, 2),
            }
        }
        Ok(Invocation::InspectLog(log)) => match log.run() {
            Ok(shown) => match std::io::stdout().lock().write_all(shown.text.as_bytes()) {
                Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => complain(&error, 2),
                // A reader that went away misses nothing it wanted.
                _ => ExitCode::from(shown.status),
            },
            Err(error) => complain(&error, 2),
        },
        Err(ArgsError::Usage(usage)) => usage.exit(),
        Err(ArgsError::Config(error)) => complain(&error, 2),
    }
}

fn complain(error: &dyn std::fmt::Display, status: u8) -> ExitCode {
    eprintln!("felix-broker: {error}");
    ExitCode::from(status)
}
