//! Says when watched files may have changed: on a change in their folders, on SIGHUP, and every half minute.
//! Scope: per process, on the admin thread.
//! Invariants: no change is missed for longer than the poll interval, also where the system cannot watch.
//! Not here: what changed; the caller compares contents.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use notify::{RecursiveMode, Watcher};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

/// Upper bound on how long a change stays unseen where the system reports nothing.
const POLL: Duration = Duration::from_secs(30);
/// Files of a pair are written one after the other; wait for the second.
const SETTLE: Duration = Duration::from_millis(100);

/// Watches folders.
pub struct FileWatch {
    changed: Arc<Notify>,
    hangup: Option<Signal>,
    /// When to look next whatever was reported.
    look_at: Instant,
    /// Reports only while it lives. None where watching is not possible: then polling has to do.
    _watcher: Option<notify::RecommendedWatcher>,
}

impl FileWatch {
    /// Starts watching. A folder that cannot be watched is polled.
    pub fn start(folders: &[PathBuf]) -> FileWatch {
        let changed = Arc::new(Notify::new());
        let tell = Arc::clone(&changed);
        let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            // Reading the files is an event too; answering it would never end.
            if event.map_or(true, |event| !event.kind.is_access()) {
                tell.notify_one();
            }
        });
        let watcher = watcher.and_then(|mut watcher| {
            for folder in folders {
                watcher.watch(folder, RecursiveMode::NonRecursive)?;
            }
            Ok(watcher)
        });
        if let Err(error) = &watcher {
            tracing::warn!(%error, poll_s = POLL.as_secs(), "certificate folders cannot be watched; polling");
        }
        FileWatch {
            changed,
            hangup: signal(SignalKind::hangup()).ok(),
            look_at: Instant::now() + POLL,
            _watcher: watcher.ok(),
        }
    }

    /// Returns when the files should be looked at again. Cancelling it loses nothing.
    pub async fn wait(&mut self) {
        loop {
            let hangup = async {
                match &mut self.hangup {
                    Some(signal) => signal.recv().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.changed.notified() => self.look_at = self.look_at.min(Instant::now() + SETTLE),
                _ = hangup => self.look_at = Instant::now(),
                () = sleep_until(self.look_at) => {
                    self.look_at = Instant::now() + POLL;
                    return;
                }
            }
        }
    }
}
