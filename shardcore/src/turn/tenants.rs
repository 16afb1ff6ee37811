//! What a core counts for each tenant. Sans-io. Scope: one per core.
//! Owns: the names that have a row of their own, and the numbers of every row.
//! Invariants: there are never more rows than `labels_max` and the shared one; a slot names the same row for the life of
//! the process, so numbers only grow; who counts holds a slot, so no name is looked up per record.
//! Not here: adding up the cores and serving the sum (`node::tenants`).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use felix_runtime::clock::Tick;
use felix_wire::id::CoreId;

use crate::hash::HashState;

/// Shortest time between two reports.
const REPORT_EVERY: Duration = Duration::from_secs(1);
/// Label of the row that tenants without one of their own share (semantics 10).
pub const SHARED_LABEL: &str = "_overflow";

/// One number of a tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum TenantCount {
    /// Records appended, and their payload bytes.
    PublishedRecords,
    PublishedBytes,
    /// Records handed to the event streams of subscribers, and their payload bytes.
    DeliveredRecords,
    DeliveredBytes,
    /// Publishes refused with nothing written, for any reason.
    Refused,
    /// Unacknowledged publishes of a full shard dropped, with shedding on.
    Shed,
    /// Publishes given up because their shard had no room in time.
    Expired,
}

/// How many numbers a tenant has.
pub const TENANT_COUNTS: usize = TenantCount::Expired as usize + 1;

/// The row of a tenant on this core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TenantSlot(u32);

impl TenantSlot {
    /// The row of the tenants that have none of their own.
    pub const SHARED: TenantSlot = TenantSlot(0);
}

/// The numbers of one row, by `TenantCount`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantRow {
    pub tenant: Arc<str>,
    pub counts: [u64; TENANT_COUNTS],
}

/// All rows of a core since its start: a later report includes an earlier one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantReport {
    pub core: CoreId,
    /// By slot; a row keeps its place.
    pub rows: Box<[TenantRow]>,
    /// Identities that were given the shared row for want of one.
    pub overflowed: u64,
}

/// See the module.
#[derive(Debug)]
pub struct Tenants {
    labels_max: usize,
    slots: HashMap<Arc<str>, TenantSlot, HashState>,
    rows: Vec<TenantRow>,
    overflowed: u64,
    /// Something was counted that no report has told.
    untold: bool,
    next_report: Tick,
    due: bool,
}

impl Tenants {
    /// At most `labels_max` tenants get a row of their own; with 0 all share one.
    pub fn new(labels_max: u32) -> Tenants {
        let shared = TenantRow { tenant: Arc::from(SHARED_LABEL), counts: [0; TENANT_COUNTS] };
        Tenants {
            labels_max: labels_max as usize,
            slots: HashMap::default(),
            rows: vec![shared],
            overflowed: 0,
            untold: false,
            next_report: Tick::ZERO,
            due: false,
        }
    }

    /// The row of a tenant, its own if there is one left. Called once per identity.
    pub fn slot(&mut self, tenant: &Arc<str>) -> TenantSlot {
        if let Some(slot) = self.slots.get(tenant) {
            return *slot;
        }
        if self.slots.len() >= self.labels_max || **tenant == *SHARED_LABEL {
            self.overflowed += 1;
            self.untold = true;
            return TenantSlot::SHARED;
        }
        let slot = TenantSlot(u32::try_from(self.rows.len()).unwrap_or(0));
        self.rows.push(TenantRow { tenant: Arc::clone(tenant), counts: [0; TENANT_COUNTS] });
        self.slots.insert(Arc::clone(tenant), slot);
        slot
    }

    /// Adds to one number of a row.
    pub fn add(&mut self, slot: TenantSlot, count: TenantCount, by: u64) {
        if let Some(row) = self.rows.get_mut(slot.0 as usize) {
            row.counts[count as usize] += by;
            self.untold |= by > 0;
        }
    }

    /// Every row as it is now, by slot.
    #[cfg(test)]
    pub fn rows(&self) -> &[TenantRow] {
        &self.rows
    }

    /// Whether something was counted that has not been told: `handle_timeout` wants to be called.
    pub fn is_untold(&self) -> bool {
        self.untold
    }

    /// Makes a report due, if there is something to tell and the last one is old enough.
    pub fn handle_timeout(&mut self, now: Tick) {
        if self.untold && now >= self.next_report {
            self.next_report = now + REPORT_EVERY;
            self.due = true;
        }
    }

    /// The report that is due. Afterwards everything counted so far is told.
    pub fn poll_report(&mut self, core: CoreId) -> Option<TenantReport> {
        if !std::mem::take(&mut self.due) {
            return None;
        }
        self.untold = false;
        Some(TenantReport { core, rows: self.rows.as_slice().into(), overflowed: self.overflowed })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(i: usize) -> Arc<str> {
        format!("t{i}").into()
    }

    #[test]
    fn tenants_over_the_bound_share_one_row_and_the_others_keep_theirs() {
        let mut tenants = Tenants::new(2);
        let slots: Vec<TenantSlot> = (0..5).map(|i| tenants.slot(&name(i))).collect();
        assert_eq!(slots[2..], [TenantSlot::SHARED; 3]);
        assert_eq!(tenants.slot(&name(1)), slots[1]);
        for (i, slot) in slots.iter().enumerate() {
            tenants.add(*slot, TenantCount::PublishedRecords, 10 + i as u64);
        }
        tenants.handle_timeout(Tick::ZERO);
        let report = tenants.poll_report(CoreId(3)).unwrap();
        let told: Vec<(&str, u64)> = report.rows.iter().map(|r| (&*r.tenant, r.counts[0])).collect();
        assert_eq!(told, [("_overflow", 12 + 13 + 14), ("t0", 10), ("t1", 11)]);
        assert_eq!((report.core, report.overflowed), (CoreId(3), 3));
    }

    #[test]
    fn a_tenant_called_like_the_shared_row_and_a_bound_of_0_use_the_shared_row() {
        let mut tenants = Tenants::new(5);
        assert_eq!(tenants.slot(&Arc::from(SHARED_LABEL)), TenantSlot::SHARED);
        let mut none = Tenants::new(0);
        assert_eq!(none.slot(&name(0)), TenantSlot::SHARED);
    }

    #[test]
    fn reports_come_at_most_once_a_second_and_only_when_there_is_something_new() {
        let mut tenants = Tenants::new(5);
        let slot = tenants.slot(&name(0));
        tenants.handle_timeout(Tick::ZERO);
        assert_eq!(tenants.poll_report(CoreId(0)), None);
        let mut reports = 0;
        let mut last = None;
        for step in 0..100 {
            let now = Tick::ZERO + Duration::from_millis(50 * step);
            tenants.add(slot, TenantCount::Shed, 1);
            tenants.handle_timeout(now);
            while let Some(report) = tenants.poll_report(CoreId(0)) {
                reports += 1;
                last = Some(report);
            }
        }
        assert_eq!(reports, 5);
        assert!(tenants.is_untold());
        tenants.handle_timeout(Tick::ZERO + Duration::from_secs(10));
        let report = tenants.poll_report(CoreId(0)).unwrap();
        assert_eq!(report.rows[1].counts[TenantCount::Shed as usize], 100);
        assert!(!tenants.is_untold() && last.is_some_and(|l| l.rows[1].counts < report.rows[1].counts));
    }
}
