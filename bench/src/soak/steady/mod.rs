//! Load over all four semantics at a fixed moderate rate, every answer checked. Scope: one phase of each cycle.
//! Owns: what is known of keys and counters from cycle to cycle.
//! Invariants: a phase ends when everything it asked is answered and told, or after a deadline, and then says what is not;
//! each phase leaves the same keys, counters and groups.
//! Not here: what follows from the counts (`judge`).

mod caches;
mod counters;
mod groups;
mod streams;

use std::time::Duration;

use felix_sdk::RequestError;
use tokio::time::Instant;

use super::SoakError;
use super::site::{self, Site};
use super::tally::{Ledger, Part, Tally};
pub use caches::Keys;
pub use counters::Sums;
pub use streams::{Checked, published, record};

/// For what is still on its way when the phase is over, on a machine that is busy with other things too.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// What is known from cycle to cycle.
#[derive(Debug, Default)]
pub struct Known {
    keys: Keys,
    sums: Sums,
}

/// Runs until `until` and a little longer. `cycle` is part of what records say, so that none of another cycle is taken for one
/// of this.
///
/// # Errors
/// A client could not be made, or what was made at the start is not there.
pub async fn run(site: &Site, cycle: u32, until: Instant, known: &mut Known) -> Result<Ledger, SoakError> {
    let (durable, memory, caches, counters, groups) = tokio::join!(
        streams::run(site, site::DURABLE, Part::Durable, cycle, until),
        streams::run(site, site::MEMORY, Part::Memory, cycle, until),
        caches::run(site, until, &mut known.keys),
        counters::run(site, until, &mut known.sums),
        groups::run(site, cycle, until),
    );
    let mut whole = Ledger::default();
    for part in [durable?, memory?, caches?, counters?, groups?] {
        whole.add(part);
    }
    Ok(whole)
}

/// Counts the outcome of a request. True when it was done.
pub fn count<T>(tally: &mut Tally, outcome: &Result<T, RequestError>) -> bool {
    tally.asked += 1;
    match outcome {
        Ok(_) => tally.done += 1,
        Err(error) if error.is_outcome_unknown() => tally.unknown += 1,
        Err(_) => tally.refused += 1,
    }
    outcome.is_ok()
}
