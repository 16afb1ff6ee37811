//! Adds and gets of counters. Scope: the counters beside one cache for one phase.
//! Owns: between which sums each counter must be, from phase to phase.
//! Invariants: a counter has one writer, which waits for each answer, so every sum follows from those before it.

use std::time::Duration;

use felix_sdk::Counters;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::count;
use crate::soak::SoakError;
use crate::soak::site::{self, Site};
use crate::soak::tally::{Ledger, Part, Sum};

const WRITERS: usize = 2;
const COUNTERS: usize = 8;
const PACE: Duration = Duration::from_millis(5);

/// The sums of all writers.
#[derive(Debug, Default)]
pub struct Sums(Vec<[Sum; COUNTERS]>);

/// Adds and reads until `until`.
///
/// # Errors
/// A client could not be made.
pub async fn run(site: &Site, until: Instant, sums: &mut Sums) -> Result<Ledger, SoakError> {
    let client = site.client().await?;
    sums.0.resize_with(WRITERS, Default::default);
    let mut working = JoinSet::new();
    for (writer, mut known) in sums.0.iter().copied().enumerate() {
        let counters = client.counters(site::CACHE)?;
        working.spawn(async move {
            let ledger = work(&counters, writer, &mut known, until).await;
            (writer, known, ledger)
        });
    }
    let mut whole = Ledger::default();
    while let Some(worked) = working.join_next().await {
        let (writer, known, ledger) = worked.map_err(SoakError::Task)?;
        whole.add(ledger);
        sums.0[writer] = known;
    }
    client.close().await;
    Ok(whole)
}

async fn work(counters: &Counters, writer: usize, known: &mut [Sum; COUNTERS], until: Instant) -> Ledger {
    let mut ledger = Ledger::default();
    let mut ticks = tokio::time::interval(PACE);
    for step in 0_usize.. {
        if Instant::now() >= until {
            break;
        }
        ticks.tick().await;
        let at = step % COUNTERS;
        let key = format!("c/{writer}/{at}");
        let delta = [1, 5, -3, 1_000_000_007, -9][step % 5];
        let outcome = counters.add(&key, delta).await;
        count(ledger.part(Part::Counter), &outcome);
        match outcome {
            Ok(sum) if known[at].added(delta, sum) => {}
            Ok(sum) => ledger.wrong(Part::Counter, || format!("{key} is {sum} after an add of {delta}")),
            Err(error) if error.is_outcome_unknown() => known[at].may_have_added(delta),
            Err(_) => {}
        }
    }
    for (at, sum) in known.iter_mut().enumerate() {
        let key = format!("c/{writer}/{at}");
        let outcome = counters.get(&key).await;
        count(ledger.part(Part::Counter), &outcome);
        if let Ok(found) = outcome
            && !sum.read(found.unwrap_or(0))
        {
            ledger.wrong(Part::Counter, || format!("{key} is read as {found:?}"));
        }
    }
    ledger
}
