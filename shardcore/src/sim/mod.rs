//! The deterministic simulator: cores of one broker, clients and the network in one thread and in virtual time.
//! Scope: a run is one `u64` seed, which decides everything; the same seed has the same history, down to sizes and times.
//! The machines are those of the broker; the driver around them (`broker`) stands in for `turn::run`, the admin thread and
//! the mailboxes, and the clients speak real frames over the real QUIC machine.
//! Not here: sockets, threads, glommio.

mod ask_plan;
mod asks;
mod broker;
mod check;
mod client;
#[cfg(test)]
mod cost;
pub(crate) mod credentials;
mod disks;
mod durable;
mod history;
mod log_check;
mod numbered;
mod plan;
mod publisher;
mod storage;
mod storage_plan;
mod subscriber;
#[cfg(test)]
mod tests;
mod trace;
mod watcher;
mod world;

pub use plan::{Kind, Plan};
pub use world::{Failure, Report, World};

/// Seeds that failed once. They are run for ever.
pub fn regressions(kind: Kind) -> impl Iterator<Item = u64> {
    let text = match kind {
        Kind::Memory => include_str!("regressions.txt"),
        Kind::Durable => include_str!("regressions_durable.txt"),
        Kind::Asks => include_str!("regressions_asks.txt"),
    };
    let words = text.lines().filter_map(|line| line.split_whitespace().next());
    words.filter(|word| !word.starts_with('#')).filter_map(|word| word.parse().ok())
}

/// Runs one seed.
///
/// # Errors
/// The first thing that is not as it must be.
pub fn run(seed: u64, kind: Kind) -> Result<Report, Box<Failure>> {
    World::new(Plan::of(seed, kind)).run().map_err(Box::new)
}

/// Runs one durable seed as it was before reads that go wrong were drawn.
///
/// # Errors
/// The first thing that is not as it must be.
pub fn run_with_sound_reads(seed: u64) -> Result<Report, Box<Failure>> {
    World::new(Plan::of(seed, Kind::Durable).with_sound_reads()).run().map_err(Box::new)
}

/// Runs one seed, and for every 50th looks whether a second run is the same.
///
/// # Errors
/// As `run`, or that the runs differ.
pub fn check(seed: u64, kind: Kind) -> Result<Report, Box<Failure>> {
    let report = run(seed, kind)?;
    if seed.is_multiple_of(50) {
        let again = run(seed, kind)?;
        if (again.hash, again.happened) != (report.hash, report.happened) {
            let what = format!("two runs differ: {} and {} things happened", report.happened, again.happened);
            let failure = Failure { seed, at: felix_runtime::clock::Tick::ZERO, what, last: Vec::new() };
            return Err(Box::new(failure));
        }
    }
    Ok(report)
}
