use std::time::Duration;

use felix_runtime::Tick;
use felix_wire::control::{AssignmentChange, AssignmentOp};

use super::*;
use crate::node::agent::catalog::{Answer, Catalog, FeedAnswer, Fetch, Kind, LONG_POLL};

const SYNC: Duration = Duration::from_secs(2);

fn at(ms: u64) -> Tick {
    Tick::ZERO + Duration::from_millis(ms)
}

fn empty_snapshot(kind: Kind) -> Answer {
    match kind {
        Kind::Tenants => Answer::Tenants(FeedAnswer::Snapshot(snapshot(vec![], 1))),
        Kind::Namespaces => Answer::Namespaces(FeedAnswer::Snapshot(snapshot(vec![], 1))),
        Kind::Caches => Answer::Caches(FeedAnswer::Snapshot(snapshot(vec![], 1))),
        Kind::Streams => Answer::Streams(FeedAnswer::Snapshot(snapshot(vec![], 1))),
        Kind::Assignments => Answer::Assignments(FeedAnswer::Snapshot(snapshot(vec![], 1))),
        Kind::Nodes => Answer::Nodes(Vec::new()),
    }
}

fn due(catalog: &mut Catalog, now: Tick) -> Vec<Fetch> {
    std::iter::from_fn(|| catalog.next_fetch(now)).collect()
}

fn synced() -> Catalog {
    let mut catalog = Catalog::new(SYNC);
    while !catalog.is_synced() {
        for fetch in due(&mut catalog, at(0)) {
            catalog.answered(empty_snapshot(fetch.kind()), at(0));
        }
    }
    for fetch in due(&mut catalog, at(0)) {
        catalog.answered(empty_snapshot(fetch.kind()), at(0));
    }
    catalog
}

#[test]
fn first_snapshots_come_one_after_the_other_in_order() {
    let mut catalog = Catalog::new(SYNC);
    let mut order = Vec::new();
    while !catalog.is_synced() {
        let asked = due(&mut catalog, at(0));
        assert_eq!(asked.len(), 1, "{asked:?}");
        assert_eq!(asked[0], Fetch::Snapshot(asked[0].kind()));
        order.push(asked[0].kind());
        catalog.answered(empty_snapshot(asked[0].kind()), at(0));
    }
    assert_eq!(order, [Kind::Tenants, Kind::Namespaces, Kind::Caches, Kind::Streams, Kind::Assignments]);
}

#[test]
fn a_failure_is_tried_again_later_and_syncs_nothing() {
    let mut catalog = Catalog::new(SYNC);
    assert_eq!(due(&mut catalog, at(0)), [Fetch::Snapshot(Kind::Tenants)]);
    assert_eq!(catalog.next_due(), None);
    catalog.answered(Answer::Failed(Kind::Tenants), at(0));
    assert!(due(&mut catalog, at(99)).is_empty());
    assert_eq!(catalog.next_due(), Some(at(100)));
    assert_eq!(due(&mut catalog, at(100)), [Fetch::Snapshot(Kind::Tenants)]);
    assert!(!catalog.is_synced() && !catalog.take_changed());
}

#[test]
fn after_the_first_reading_each_kind_is_asked_once_an_interval_and_assignments_wait_at_the_server() {
    let mut catalog = synced();
    assert!(due(&mut catalog, at(249)).is_empty());
    let poll = Fetch::Changes { kind: Kind::Assignments, since: 1, wait: LONG_POLL };
    assert_eq!(due(&mut catalog, at(250)), [poll]);
    assert_eq!(catalog.next_due(), Some(at(2_000)));
    let asked: Vec<Kind> = due(&mut catalog, at(2_000)).iter().map(Fetch::kind).collect();
    assert_eq!(asked, [Kind::Tenants, Kind::Namespaces, Kind::Caches, Kind::Streams, Kind::Nodes]);
    assert!(due(&mut catalog, at(9_000)).is_empty(), "everything is in flight");
}

#[test]
fn a_new_assignment_makes_the_catalog_be_read_at_once() {
    let mut catalog = synced();
    assert_eq!(due(&mut catalog, at(250)).len(), 1);
    let change = AssignmentChange {
        seq: 1,
        op: AssignmentOp::Assigned,
        key: assignment_key("s", 0),
        assignment: Some(assignment("s", 0, "me", 1, 1)),
        generation: 1,
        incarnation: 1,
    };
    let answer = FeedAnswer::Changes { since: 1, changes: changes(vec![change], 2) };
    catalog.answered(Answer::Assignments(answer), at(300));
    let asked: Vec<Kind> = due(&mut catalog, at(300)).iter().map(Fetch::kind).collect();
    assert_eq!(
        asked,
        [Kind::Tenants, Kind::Namespaces, Kind::Caches, Kind::Streams, Kind::Assignments, Kind::Nodes]
    );
}

#[test]
fn an_answer_that_was_under_way_when_an_assignment_came_is_not_trusted_to_be_new() {
    let mut catalog = synced();
    assert_eq!(due(&mut catalog, at(2_000)).len(), 6);
    let change = AssignmentChange {
        seq: 1,
        op: AssignmentOp::Assigned,
        key: assignment_key("s", 0),
        assignment: Some(assignment("s", 0, "me", 1, 1)),
        generation: 1,
        incarnation: 1,
    };
    let answer = FeedAnswer::Changes { since: 1, changes: changes(vec![change], 2) };
    catalog.answered(Answer::Assignments(answer), at(2_001));
    let old = FeedAnswer::Changes { since: 1, changes: changes(vec![], 1) };
    catalog.answered(Answer::Streams(old), at(2_002));
    let asked: Vec<Kind> = due(&mut catalog, at(2_002)).iter().map(Fetch::kind).collect();
    assert_eq!(asked, [Kind::Streams, Kind::Assignments]);
}

#[test]
fn changed_assignments_count_once_the_streams_were_read_after_them_or_could_not_be() {
    for answer in [None, Some(changes(vec![], 1))] {
        let mut catalog = synced();
        catalog.take_changed();
        assert_eq!(due(&mut catalog, at(2_000)).len(), 6);
        let gone = AssignmentChange {
            seq: 1,
            op: AssignmentOp::Assigned,
            key: assignment_key("s", 0),
            assignment: Some(assignment("s", 0, "me", 1, 1)),
            generation: 1,
            incarnation: 1,
        };
        let change = FeedAnswer::Changes { since: 1, changes: changes(vec![gone], 2) };
        catalog.answered(Answer::Assignments(change), at(2_001));
        let old = FeedAnswer::Changes { since: 1, changes: changes(vec![], 1) };
        catalog.answered(Answer::Streams(old), at(2_002));
        assert!(!catalog.take_changed(), "that answer may be from before");
        assert!(due(&mut catalog, at(2_002)).iter().any(|fetch| fetch.kind() == Kind::Streams));
        catalog.answered(
            Answer::Tenants(FeedAnswer::Changes { since: 1, changes: changes(vec![], 1) }),
            at(2_003),
        );
        assert!(!catalog.take_changed());
        catalog.answered(
            match answer {
                Some(changes) => Answer::Streams(FeedAnswer::Changes { since: 1, changes }),
                None => Answer::Failed(Kind::Streams),
            },
            at(2_004),
        );
        assert!(catalog.take_changed());
    }
}

#[test]
fn an_outage_changes_nothing() {
    let mut catalog = synced();
    catalog.take_changed();
    let mut now = at(0);
    for _ in 0..50 {
        now = now.max(catalog.next_due().unwrap_or(now));
        for fetch in due(&mut catalog, now) {
            catalog.answered(Answer::Failed(fetch.kind()), now);
        }
    }
    assert!(catalog.is_synced() && !catalog.take_changed());
}
