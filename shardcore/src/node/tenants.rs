//! The tenants' numbers of all cores together. Scope: per process, on the admin thread.
//! Owns: the newest report of each core, and which tenants have a label of their own.
//! Invariants: at most `labels_max` own labels, given at first sight and kept, so every series only grows; nothing is
//! counted twice, also when a tenant has a row on one core and shares one on another.
//! Not here: counting (`turn::tenants`), the text (`metrics`).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::turn::tenants::{SHARED_LABEL, TENANT_COUNTS, TenantReport};

/// What is exported for one label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantTotal {
    pub tenant: Arc<str>,
    pub counts: [u64; TENANT_COUNTS],
}

/// The totals, held by the admin loop and the metrics listener, which run on one thread: the lock is never waited for.
#[derive(Clone, Debug)]
pub struct SharedTenants(Arc<Mutex<TenantTotals>>);

impl SharedTenants {
    /// Of a node with `cores` cores.
    pub fn new(cores: u16, labels_max: u32) -> SharedTenants {
        SharedTenants(Arc::new(Mutex::new(TenantTotals::new(cores, labels_max))))
    }

    /// A newer report of a core.
    pub fn take(&self, report: TenantReport) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take(report);
    }

    /// The sums over all cores, the shared label first, and how often that one was used for want of another.
    pub fn totals(&self) -> (Vec<TenantTotal>, u64) {
        let totals = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        (totals.totals(), totals.overflowed())
    }
}

/// See the module.
#[derive(Debug)]
pub struct TenantTotals {
    labels_max: usize,
    /// By core.
    reports: Vec<Option<TenantReport>>,
    /// Label to its place in `labels`; the shared label is not among them.
    own: HashMap<Arc<str>, usize>,
    labels: Vec<Arc<str>>,
    /// Rows of cores that found no label left.
    folded: u64,
    /// Rows of each core that have been looked at for a label.
    seen: Vec<usize>,
}

impl TenantTotals {
    /// Of a node with `cores` cores.
    pub fn new(cores: u16, labels_max: u32) -> TenantTotals {
        let cores = usize::from(cores);
        TenantTotals {
            labels_max: labels_max as usize,
            reports: std::iter::repeat_with(|| None).take(cores).collect(),
            own: HashMap::new(),
            labels: Vec::new(),
            folded: 0,
            seen: vec![0; cores],
        }
    }

    /// A newer report of a core.
    pub fn take(&mut self, report: TenantReport) {
        let core = usize::from(report.core.0);
        let (Some(held), Some(seen)) = (self.reports.get_mut(core), self.seen.get_mut(core)) else { return };
        for row in report.rows.iter().skip(*seen) {
            if *row.tenant == *SHARED_LABEL || self.own.contains_key(&row.tenant) {
                continue;
            }
            if self.labels.len() < self.labels_max {
                self.own.insert(Arc::clone(&row.tenant), self.labels.len());
                self.labels.push(Arc::clone(&row.tenant));
            } else {
                self.folded += 1;
            }
        }
        *seen = report.rows.len();
        *held = Some(report);
    }

    /// The sums over all cores, the shared label first.
    pub fn totals(&self) -> Vec<TenantTotal> {
        let labels = std::iter::once(Arc::from(SHARED_LABEL)).chain(self.labels.iter().map(Arc::clone));
        let mut totals: Vec<TenantTotal> =
            labels.map(|tenant| TenantTotal { tenant, counts: [0; TENANT_COUNTS] }).collect();
        for row in self.reports.iter().flatten().flat_map(|report| &report.rows) {
            let at = self.own.get(&row.tenant).map_or(0, |own| own + 1);
            for (sum, count) in totals[at].counts.iter_mut().zip(row.counts) {
                *sum += count;
            }
        }
        totals
    }

    /// How often a tenant was counted under the shared label for want of its own: identities on cores, and rows of cores.
    pub fn overflowed(&self) -> u64 {
        self.folded + self.reports.iter().flatten().map(|report| report.overflowed).sum::<u64>()
    }
}

#[cfg(test)]
mod tests {
    use felix_wire::id::CoreId;

    use super::*;
    use crate::turn::tenants::TenantRow;

    fn report(core: u16, rows: &[(&str, u64)]) -> TenantReport {
        let row = |(tenant, count): &(&str, u64)| {
            let mut counts = [0; TENANT_COUNTS];
            counts[0] = *count;
            TenantRow { tenant: Arc::from(*tenant), counts }
        };
        TenantReport { core: CoreId(core), rows: rows.iter().map(row).collect(), overflowed: 2 }
    }

    fn told(totals: &TenantTotals) -> Vec<(String, u64)> {
        totals.totals().into_iter().map(|t| (t.tenant.to_string(), t.counts[0])).collect()
    }

    #[test]
    fn cores_are_added_up_and_a_newer_report_replaces_the_older_one() {
        let mut totals = TenantTotals::new(2, 10);
        totals.take(report(0, &[("_overflow", 1), ("a", 5)]));
        totals.take(report(1, &[("_overflow", 2), ("b", 7), ("a", 1)]));
        totals.take(report(0, &[("_overflow", 1), ("a", 9)]));
        assert_eq!(told(&totals), [("_overflow".into(), 3), ("a".into(), 10), ("b".into(), 7)]);
        assert_eq!(totals.overflowed(), 4);
    }

    #[test]
    fn labels_stay_within_the_bound_whatever_the_cores_name_and_no_series_shrinks() {
        let mut totals = TenantTotals::new(2, 2);
        totals.take(report(0, &[("_overflow", 0), ("a", 5), ("b", 6)]));
        totals.take(report(1, &[("_overflow", 0), ("c", 7), ("b", 1)]));
        assert_eq!(told(&totals), [("_overflow".into(), 7), ("a".into(), 5), ("b".into(), 7)]);
        totals.take(report(1, &[("_overflow", 1), ("c", 8), ("b", 1)]));
        assert_eq!(told(&totals), [("_overflow".into(), 9), ("a".into(), 5), ("b".into(), 7)]);
        assert_eq!(totals.overflowed(), 1 + 4);
    }

    #[test]
    fn a_report_of_a_core_that_does_not_exist_is_nothing() {
        let mut totals = TenantTotals::new(1, 2);
        totals.take(report(1, &[("_overflow", 9)]));
        assert_eq!(told(&totals), [("_overflow".into(), 0)]);
    }
}
