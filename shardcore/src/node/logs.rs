//! Logging of the process: text or JSON lines on standard error, written by a thread of its own. Scope: per process.
//! Invariants: a full log queue drops lines instead of holding a core (the writer counts them); installed once.
//! Not here: what is logged.

use tracing_appender::non_blocking::WorkerGuard;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::util::SubscriberInitExt;

use super::config::LogFormat;

/// Why logging could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    #[error("log_level `{level}`: {reason}")]
    Level { level: String, reason: String },
    #[error("logging is already set up")]
    Installed,
}

/// Installs the process's logger. What is still queued is written when the guard is dropped.
///
/// # Errors
/// A level that does not parse, or a logger that is already there.
pub fn install(format: LogFormat, level: &str) -> Result<WorkerGuard, LogError> {
    let filter = EnvFilter::try_new(level)
        .map_err(|error| LogError::Level { level: level.to_owned(), reason: error.to_string() })?;
    let (writer, guard) = tracing_appender::non_blocking(std::io::stderr());
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer).with_ansi(false);
    match format {
        LogFormat::Text => lines.finish().try_init(),
        LogFormat::Json => lines.json().flatten_event(true).finish().try_init(),
    }
    .map_err(|_| LogError::Installed)?;
    Ok(guard)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_that_does_not_parse_is_named() {
        let error = install(LogFormat::Text, "felix=loudly").unwrap_err().to_string();
        assert!(error.contains("felix=loudly"), "{error}");
    }
}
