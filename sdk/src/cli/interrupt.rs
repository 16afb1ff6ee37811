//! The wish to end: Ctrl-C or SIGTERM. Scope: per command that runs until then.
//! Invariants: the first one is for the command to act on; a second one, or a command that does not act for
//! `PATIENCE` (it is stuck in a write that nobody reads), ends the process.

use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use super::failure::{Failure, Outcome};

/// From the first wish to the end of the process at the latest.
const PATIENCE: Duration = Duration::from_secs(15);
/// Exit status of a process that had to be ended (128 + SIGINT).
const FORCED_STATUS: i32 = 130;

/// Tells of the first wish.
pub struct Interrupt {
    happened: watch::Receiver<bool>,
}

impl Interrupt {
    /// Returns once it happened.
    pub async fn wait(&mut self) {
        // The sender lives in a task that ends with the process.
        let _ = self.happened.wait_for(|happened| *happened).await;
    }

    pub fn happened(&self) -> bool {
        *self.happened.borrow()
    }
}

/// Watches from now on, on the runtime of the caller.
///
/// # Errors
/// When signals cannot be handled.
pub fn first() -> Outcome<Interrupt> {
    let mut signals = Signals::listen()?;
    let (happening, happened) = watch::channel(false);
    tokio::spawn(async move {
        signals.next().await;
        happening.send_replace(true);
        // A second one, or the patience, whichever is first.
        let _ = tokio::time::timeout(PATIENCE, signals.next()).await;
        std::process::exit(FORCED_STATUS);
    });
    Ok(Interrupt { happened })
}

/// SIGINT and SIGTERM.
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    /// # Errors
    /// When signals cannot be handled.
    pub fn listen() -> Outcome<Signals> {
        let listen =
            |kind| signal(kind).map_err(|error| Failure::other(format!("cannot handle signals: {error}")));
        Ok(Signals {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
        })
    }

    /// The next of them. Can be cancelled.
    pub async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
