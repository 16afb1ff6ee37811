//! What the broker says of its syncs, from its metrics. Scope: two readings of one broker.
//! Invariants: a broker that does not count them gives nothing instead of zeros.
//! Not here: serving them (`felix-broker`).

use std::collections::BTreeMap;
use std::fmt;
use std::io;

use serde::Serialize;

use crate::scrape;
use crate::target::Ready;

/// Totals of the logs of all cores, by name without the prefix `felix_log_`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LogTotals(BTreeMap<String, f64>);

/// Durable writes of one or several runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Syncs {
    /// Rounds of the commit file and direct writes to segments: each is one write with its sync.
    pub syncs: f64,
    /// Those of them that went to segments directly.
    pub direct: f64,
    pub bytes_per_sync: f64,
    /// Publishes per sync.
    pub batches_per_sync: f64,
}

impl Syncs {
    /// All of them together; `None` when one is not known.
    #[must_use]
    pub fn sum(parts: &[Option<Syncs>]) -> Option<Syncs> {
        let mut sum = Syncs::default();
        let (mut bytes, mut batches) = (0.0, 0.0);
        for part in parts {
            let part = part.as_ref()?;
            sum.syncs += part.syncs;
            sum.direct += part.direct;
            bytes += part.bytes_per_sync * part.syncs;
            batches += part.batches_per_sync * part.syncs;
        }
        if sum.syncs > 0.0 {
            sum.bytes_per_sync = bytes / sum.syncs;
            sum.batches_per_sync = batches / sum.syncs;
        }
        Some(sum)
    }
}

impl fmt::Display for Syncs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:.0} syncs ({:.0} direct), {:.1} KiB and {:.1} batches each",
            self.syncs,
            self.direct,
            self.bytes_per_sync / 1_024.0,
            self.batches_per_sync
        )
    }
}

impl LogTotals {
    /// Reads the metrics of the broker.
    ///
    /// # Errors
    /// It has no metrics, or they cannot be read.
    pub fn read(ready: &Ready) -> io::Result<LogTotals> {
        let page = scrape::text(scrape::address(ready)?)?;
        Ok(LogTotals::parse(&page))
    }

    fn parse(page: &str) -> LogTotals {
        let mut totals = BTreeMap::new();
        for line in page.lines() {
            let Some((name, value)) = line.strip_prefix("felix_log_").and_then(|line| line.rsplit_once(' '))
            else {
                continue;
            };
            let name = name.split('{').next().unwrap_or(name);
            if let Ok(value) = value.parse::<f64>() {
                *totals.entry(name.to_owned()).or_default() += value;
            }
        }
        LogTotals(totals)
    }

    /// What happened since `earlier` while `batches` were published; `None` when the broker does not count it.
    #[must_use]
    pub fn since(&self, earlier: &LogTotals, batches: u64) -> Option<Syncs> {
        let grown = |name: &str| Some(self.0.get(name)? - earlier.0.get(name).copied().unwrap_or(0.0));
        let (rounds, direct) = (grown("rounds_total")?, grown("direct_writes_total")?);
        let bytes = grown("round_bytes_total")? + grown("direct_bytes_total")?;
        let syncs = rounds + direct;
        let per_sync = |amount: f64| if syncs > 0.0 { amount / syncs } else { 0.0 };
        Some(Syncs {
            syncs,
            direct,
            bytes_per_sync: per_sync(bytes),
            batches_per_sync: per_sync(batches as f64),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "HTTP/1.1 200 OK\r\n\r\n# TYPE felix_log_rounds counter
felix_log_rounds_total{core=\"0\"} 10
felix_log_rounds_total{core=\"1\"} 5
felix_log_round_bytes_total{core=\"0\"} 1000
felix_log_direct_writes_total{core=\"0\"} 5
felix_log_direct_bytes_total{core=\"0\"} 3000
felix_turns_total{core=\"0\"} 99
";

    #[test]
    fn cores_are_added_up_and_divided_by_the_syncs() {
        let totals = LogTotals::parse(PAGE);
        let syncs = totals.since(&LogTotals::default(), 60).unwrap();
        assert_eq!(syncs, Syncs { syncs: 20.0, direct: 5.0, bytes_per_sync: 200.0, batches_per_sync: 3.0 });
        let none = totals.since(&totals, 0).unwrap();
        assert_eq!(none.bytes_per_sync, 0.0, "nothing over nothing");
    }

    #[test]
    fn rounds_are_added_up_by_their_weight() {
        let part = |syncs, batches_per_sync| {
            Some(Syncs { syncs, direct: 1.0, bytes_per_sync: 100.0, batches_per_sync })
        };
        let sum = Syncs::sum(&[part(1.0, 1.0), part(3.0, 5.0)]).unwrap();
        assert_eq!(sum, Syncs { syncs: 4.0, direct: 2.0, bytes_per_sync: 100.0, batches_per_sync: 4.0 });
        assert_eq!(Syncs::sum(&[part(1.0, 1.0), None]), None);
    }

    #[test]
    fn a_broker_without_these_numbers_gives_none() {
        assert_eq!(LogTotals::parse("felix_log_read_errors_total 1\n").since(&LogTotals::default(), 1), None);
    }
}
