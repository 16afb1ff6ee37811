//! Connections that come and go, in order and not. Scope: one phase of each cycle.
//! Owns: which kinds there are and how many.
//! Invariants: each kind is as frequent as the others; who does nothing wrong gets what it asks for.
//! Not here: how one breaks off (`rude`).

use std::time::Duration;

use felix_sdk::{Error, Publisher, Start};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::SoakError;
use super::rude::{Rude, Until};
use super::site::{self, Site};
use super::steady::record;
use super::tally::{Ledger, Part};

/// From one to the next.
const PACE: Duration = Duration::from_millis(40);

/// What one client does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Asks for a value and closes.
    Asks,
    /// Subscribes, and is dropped.
    Subscribes,
    /// Publishes, waits for the answer, and is dropped.
    Publishes,
    /// Has a token that is none.
    Stranger,
    /// Goes without a word, so far on its way.
    BreaksOff(Until),
}

const KINDS: [Kind; 8] = [
    Kind::Asks,
    Kind::BreaksOff(Until::Hello),
    Kind::Subscribes,
    Kind::BreaksOff(Until::Connected),
    Kind::Publishes,
    Kind::BreaksOff(Until::HalfFrame),
    Kind::Stranger,
    Kind::BreaksOff(Until::Subscribed),
];

/// Begins connections until `until`, and waits for those under way.
///
/// # Errors
/// Something here failed; what the broker does wrong is counted.
pub async fn run(site: &Site, until: Instant) -> Result<Ledger, SoakError> {
    let mut whole = Ledger::default();
    let mut coming = JoinSet::new();
    let mut ticks = tokio::time::interval(PACE);
    for number in 0_u64.. {
        if Instant::now() >= until {
            break;
        }
        ticks.tick().await;
        let (site, kind) = (site.clone(), KINDS[number as usize % KINDS.len()]);
        coming.spawn(async move { (kind, come(&site, kind, number).await) });
        while let Some(gone) = coming.try_join_next() {
            counted(&mut whole, gone.map_err(SoakError::Task)?);
        }
    }
    while let Some(gone) = coming.join_next().await {
        counted(&mut whole, gone.map_err(SoakError::Task)?);
    }
    Ok(whole)
}

fn counted(whole: &mut Ledger, (kind, outcome): (Kind, Result<u64, String>)) {
    whole.part(Part::Churn).asked += 1;
    whole.part(Part::Churn).done += 1;
    match outcome {
        Ok(appended) => whole.appended += appended,
        Err(words) => whole.wrong(Part::Churn, || format!("{kind:?}: {words}")),
    }
}

/// Records that were appended.
async fn come(site: &Site, kind: Kind, number: u64) -> Result<u64, String> {
    let words = |error: &dyn std::fmt::Display| error.to_string();
    match kind {
        Kind::Asks => {
            let client = site.client().await.map_err(|error| words(&error))?;
            let cache = client.cache(site::CACHE).map_err(|error| words(&error))?;
            cache.get("nobody's").await.map_err(|error| words(&error))?;
            client.close().await;
            Ok(0)
        }
        Kind::Subscribes => {
            let client = site.client().await.map_err(|error| words(&error))?;
            let reading = client.subscribe(site::DURABLE).from(Start::Latest).open().await;
            reading.map(|_| 0).map_err(|error| words(&error))
        }
        Kind::Publishes => {
            let client = site.client().await.map_err(|error| words(&error))?;
            let publisher: Publisher =
                client.publisher(site::PROBE).open().await.map_err(|error| words(&error))?;
            let sent = publisher.send(record(0, 0, number, 64), None).await.map_err(|error| words(&error))?;
            sent.await.map(|_| 1).map_err(|error| words(&error))
        }
        Kind::Stranger => match site.stranger().await {
            Err(Error::Auth(_)) => Ok(0),
            Err(other) => Err(format!("a wrong token was told {other}")),
            Ok(_) => Err("a wrong token was taken".to_owned()),
        },
        Kind::BreaksOff(until) => {
            let target = site.target(site::SLOW_DURABLE).map_err(|error| words(&error))?;
            let gone = tokio::task::spawn_blocking(move || Rude::start(&target, until).map(drop));
            gone.await.map_err(|error| words(&error))?.map(|()| 0).map_err(|error| words(&error))
        }
    }
}
