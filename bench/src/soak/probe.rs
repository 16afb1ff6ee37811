//! Single publishes on a quiet broker, and whether the machine was quiet too. Scope: one per run.
//! Owns: the windows, the thread that notices when this process is not run.
//! Invariants: a window in which this process was held up by others says nothing, neither way.
//! Not here: what follows from it (`judge`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

use felix_sdk::Publisher;
use tokio::time::Instant;

use super::SoakError;
use super::judge::{QUIET_MAX_MS, Quiet};
use super::site::{self, Site};
use super::steady::record;
use super::tally::Ledger;

const WINDOW: Duration = Duration::from_millis(500);
/// From one publish to the next.
const PACE: Duration = Duration::from_millis(5);
/// How many times as long as before is as fast as before, and what always is.
const TIMES: u64 = 3;
const FLOOR_US: u64 = 20_000;
/// From one look of the thread to the next, and how late it may be.
const LOOK: Duration = Duration::from_millis(5);
const LATE_MAX: Duration = Duration::from_millis(15);
/// Windows that are looked at, disturbed ones too.
const WINDOWS_MAX: u64 = 60;

/// A thread that sees how late it runs. Dropped, it ends.
#[derive(Debug)]
pub struct Punctual {
    late_us: Arc<AtomicU64>,
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Punctual {
    /// Looks from now on.
    #[must_use]
    pub fn start() -> Punctual {
        let (late_us, ended) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (seen, stopped) = (Arc::clone(&late_us), Arc::clone(&ended));
        let thread = std::thread::spawn(move || {
            while !stopped.load(Relaxed) {
                let begun = std::time::Instant::now();
                std::thread::sleep(LOOK);
                let late = begun.elapsed().saturating_sub(LOOK);
                seen.fetch_max(u64::try_from(late.as_micros()).unwrap_or(u64::MAX), Relaxed);
            }
        });
        Punctual { late_us, ended, thread: Some(thread) }
    }

    /// The latest since the last time this was asked.
    #[must_use]
    pub fn take(&self) -> Duration {
        Duration::from_micros(self.late_us.swap(0, Relaxed))
    }
}

impl Drop for Punctual {
    fn drop(&mut self) {
        self.ended.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// See the module.
pub struct Probe {
    punctual: Punctual,
    pub ledger: Ledger,
}

impl Probe {
    /// Ready to ask.
    #[must_use]
    pub fn start() -> Probe {
        Probe { punctual: Punctual::start(), ledger: Ledger::default() }
    }

    /// The 99th percentile before the load, microseconds; `None` when no window of a few was quiet on this machine.
    ///
    /// # Errors
    /// A client could not be made.
    pub async fn before(&mut self, site: &Site) -> Result<Option<u64>, SoakError> {
        let client = site.client().await?;
        let publisher = client.publisher(site::PROBE).open().await?;
        let mut least = None;
        for _ in 0..2 {
            let seen = self.window(&publisher).await?;
            least = least.into_iter().chain(seen).min();
        }
        publisher.close().await?;
        client.close().await;
        Ok(least)
    }

    /// How long it takes until the percentile is again as it was. `None` when the machine was not quiet enough to tell.
    ///
    /// # Errors
    /// A client could not be made.
    pub async fn after(&mut self, site: &Site, before_us: u64) -> Result<Option<Quiet>, SoakError> {
        let client = site.client().await?;
        let publisher = client.publisher(site::PROBE).open().await?;
        let bound_us = (TIMES * before_us).max(FLOOR_US);
        let mut quiet = Quiet { before_us, bound_us, back_ms: None };
        let mut waited_ms = 0;
        let mut told = None;
        for _ in 0..WINDOWS_MAX {
            let Some(seen) = self.window(&publisher).await? else { continue };
            if seen <= bound_us {
                quiet.back_ms = Some(waited_ms);
                told = Some(quiet);
                break;
            }
            waited_ms += WINDOW.as_millis() as u64;
            if waited_ms > QUIET_MAX_MS {
                told = Some(quiet);
                break;
            }
        }
        publisher.close().await?;
        client.close().await;
        Ok(told)
    }

    /// The percentile of one window, microseconds; `None` when this process was held up in it.
    async fn window(&mut self, publisher: &Publisher) -> Result<Option<u64>, SoakError> {
        let _ = self.punctual.take();
        let end = Instant::now() + WINDOW;
        let mut ticks = tokio::time::interval(PACE);
        let mut took = Vec::new();
        while Instant::now() < end {
            ticks.tick().await;
            let begun = Instant::now();
            publisher.send(record(0, 0, 0, 64), None).await?.await?;
            self.ledger.appended += 1;
            took.push(begun.elapsed().as_micros() as u64);
        }
        Ok(percentile(took).filter(|_| self.punctual.take() <= LATE_MAX))
    }
}

/// 99 of 100 are at most this.
fn percentile(mut took: Vec<u64>) -> Option<u64> {
    took.sort_unstable();
    let at = (took.len() * 99).div_ceil(100);
    took.get(at.checked_sub(1)?).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_percentile_leaves_out_one_of_a_hundred() {
        assert_eq!(percentile((1..=100).collect()), Some(99));
        assert_eq!(percentile((1..=50).rev().collect()), Some(50));
        assert_eq!((percentile(vec![7]), percentile(Vec::new())), (Some(7), None));
    }
}
