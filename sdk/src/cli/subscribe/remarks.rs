//! What `felix sub` says on standard error about the way of the records. Scope: per command.
//! Owns: which shards have no broker now, and whether records are missing.
//! Invariants: a broker that takes many shards with it is told once, and once when the last of them is back.

use std::collections::BTreeSet;

use crate::cli::output::remark;
use crate::subscribe::{Gap, Notice};

/// See the module.
#[derive(Debug, Default)]
pub struct Remarks {
    away: BTreeSet<u32>,
    /// Records are known to be missing.
    pub missing: bool,
}

impl Remarks {
    pub fn note(&mut self, notice: &Notice) {
        if let Some(line) = self.line(notice) {
            remark(&line);
        }
    }

    pub fn gap(&mut self, gap: &Gap) {
        remark(&self.gap_line(gap));
    }

    fn line(&mut self, notice: &Notice) -> Option<String> {
        match notice {
            Notice::Away { shard, error } => {
                let first = self.away.is_empty();
                self.away.insert(*shard);
                first.then(|| format!("the broker is away ({error}), looking for it"))
            }
            Notice::Back { shard, away, .. } => {
                self.away.remove(shard);
                let seconds = away.as_secs_f64();
                self.away.is_empty().then(|| {
                    format!("the broker is back after {seconds:.1} s, every shard goes on where it was")
                })
            }
            Notice::Lagged { shard, from } => {
                Some(format!("shard {shard}: too slow for the broker, reading on from offset {from}"))
            }
            Notice::Moved { shard } => Some(format!("shard {shard}: served elsewhere now, following")),
        }
    }

    fn gap_line(&mut self, gap: &Gap) -> String {
        match (gap.from, gap.to) {
            (Some(from), Some(to)) if to > from => {
                self.missing = true;
                let last = to.get() - 1;
                format!("shard {}: records {from} to {last} are missing", gap.shard)
            }
            _ => format!("shard {}: the broker was lost; records may be missing", gap.shard),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use felix_wire::id::Offset;

    use super::*;
    use crate::error::Error;

    fn away(shard: u32) -> Notice {
        Notice::Away { shard, error: Error::Lost { message: "reset".to_owned() } }
    }

    fn back(shard: u32) -> Notice {
        let (next, away) = (Some(Offset(7)), Duration::from_millis(2_300));
        Notice::Back { shard, next, live: Some(Offset(9)), away }
    }

    #[test]
    fn a_broker_with_many_shards_goes_once_and_comes_back_once() {
        let mut remarks = Remarks::default();
        let gone = "the broker is away (connection lost: reset), looking for it";
        assert_eq!(remarks.line(&away(0)).as_deref(), Some(gone));
        assert_eq!(remarks.line(&away(1)), None);
        assert_eq!(remarks.line(&back(0)), None);
        let again = "the broker is back after 2.3 s, every shard goes on where it was";
        assert_eq!(remarks.line(&back(1)).as_deref(), Some(again));
        assert!(remarks.line(&away(1)).is_some());
        assert!(remarks.line(&Notice::Lagged { shard: 2, from: Offset(4) }).unwrap().contains("offset 4"));
    }

    #[test]
    fn only_gaps_of_known_size_make_records_missing() {
        let gap =
            |from: Option<u64>, to: Option<u64>| Gap { shard: 1, from: from.map(Offset), to: to.map(Offset) };
        let mut remarks = Remarks::default();
        for unknown in [gap(None, None), gap(Some(8), None), gap(Some(8), Some(8))] {
            assert!(remarks.gap_line(&unknown).contains("may be missing"));
        }
        assert!(!remarks.missing);
        assert_eq!(remarks.gap_line(&gap(Some(3), Some(5))), "shard 1: records 3 to 4 are missing");
        assert!(remarks.missing);
    }
}
