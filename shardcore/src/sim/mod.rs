//! The deterministic simulator: cores of one broker, clients and the network in one thread and in virtual time.
//! Scope: a run is one `u64` seed, which decides everything; the same seed has the same history, down to sizes and times.
//! The machines are those of the broker; the driver around them (`broker`) stands in for `turn::run`, the admin thread and
//! the mailboxes, and the clients speak real frames over the real QUIC machine.
//! Not here: sockets, threads, glommio.

mod broker;
mod check;
mod client;
#[cfg(test)]
mod cost;
pub(crate) mod credentials;
mod disks;
mod durable;
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
mod world;

pub use plan::Plan;
pub use world::{Failure, Report, World};

/// Seeds that failed once, with streams in memory and with durable ones. They are run for ever.
const REGRESSIONS: [&str; 2] = [include_str!("regressions.txt"), include_str!("regressions_durable.txt")];

/// Seeds that failed once.
pub fn regressions(durable: bool) -> impl Iterator<Item = u64> {
    let words = REGRESSIONS[usize::from(durable)].lines().filter_map(|line| line.split_whitespace().next());
    words.filter(|word| !word.starts_with('#')).filter_map(|word| word.parse().ok())
}

/// Runs one seed, with durable streams or with streams in memory.
///
/// # Errors
/// The first thing that is not as it must be.
pub fn run(seed: u64, durable: bool) -> Result<Report, Box<Failure>> {
    World::new(Plan::of(seed, durable)).run().map_err(Box::new)
}

/// Runs one seed, and for every 50th looks whether a second run is the same.
///
/// # Errors
/// As `run`, or that the runs differ.
pub fn check(seed: u64, durable: bool) -> Result<Report, Box<Failure>> {
    let report = run(seed, durable)?;
    if seed.is_multiple_of(50) {
        let again = run(seed, durable)?;
        if (again.hash, again.happened) != (report.hash, report.happened) {
            let what = format!("two runs differ: {} and {} things happened", report.happened, again.happened);
            let failure = Failure { seed, at: felix_runtime::clock::Tick::ZERO, what, last: Vec::new() };
            return Err(Box::new(failure));
        }
    }
    Ok(report)
}
