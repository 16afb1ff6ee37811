use std::collections::BTreeMap;

use felix_wire::control::{AssignmentChange, AssignmentOp, CatalogOp, TenantChange};

use super::*;
use crate::node::agent::feed::Feed;

fn created(seq: u64, id: &str) -> TenantChange {
    TenantChange { seq, op: CatalogOp::Created, tenant_id: id.to_owned(), tenant: Some(tenant(id)) }
}

fn deleted(seq: u64, id: &str) -> TenantChange {
    TenantChange { seq, op: CatalogOp::Deleted, tenant_id: id.to_owned(), tenant: None }
}

fn names(feed: &Feed<Tenant>) -> Vec<String> {
    feed.items().map(|t| t.tenant_id.clone()).collect()
}

fn synced(ids: &[&str], next_seq: u64) -> Feed<Tenant> {
    let mut feed = Feed::default();
    feed.take_snapshot(snapshot(ids.iter().map(|id| tenant(id)).collect(), next_seq));
    feed
}

#[test]
fn changes_follow_a_snapshot_without_gap_or_repeat() {
    let mut feed = synced(&["a", "b"], 5);
    assert_eq!(feed.since(), Some(5));
    let taken = feed.take_changes(5, changes(vec![created(5, "c"), deleted(6, "a")], 7));
    assert!(taken.changed && taken.more);
    assert_eq!((names(&feed), feed.since()), (vec!["b".to_owned(), "c".to_owned()], Some(7)));
    let taken = feed.take_changes(7, changes(vec![], 7));
    assert!(!taken.changed && !taken.more);
}

#[test]
fn every_sign_of_missing_changes_asks_for_a_snapshot_and_removes_nothing() {
    let pages = [
        changes(vec![deleted(9, "a")], 10),
        changes(vec![], 9),
        changes(vec![], 3),
        changes(vec![deleted(5, "a"), deleted(5, "b")], 7),
        changes(vec![deleted(5, "a")], 5),
        changes(vec![TenantChange { tenant: None, ..created(5, "a") }], 6),
    ];
    for page in pages {
        let mut feed = synced(&["a", "b"], 5);
        assert!(!feed.take_changes(5, page.clone()).changed, "{page:?}");
        assert_eq!((feed.since(), names(&feed).len()), (None, 2), "{page:?}");
    }
}

#[test]
fn an_answer_to_an_older_question_is_ignored() {
    let mut feed = synced(&["a"], 5);
    feed.take_changes(5, changes(vec![created(5, "b")], 6));
    assert!(!feed.take_changes(5, changes(vec![deleted(5, "a")], 9)).changed);
    assert_eq!((feed.since(), names(&feed).len()), (Some(6), 2));
}

#[test]
fn a_snapshot_removes_only_above_everything_ever_held() {
    let mut feed = synced(&["a", "b"], 5);
    assert!(!feed.take_snapshot(snapshot(vec![], 5)).changed);
    assert!(!feed.take_snapshot(snapshot(vec![], 0)).changed);
    assert_eq!(names(&feed).len(), 2);
    assert!(feed.take_snapshot(snapshot(vec![tenant("b")], 6)).changed);
    assert_eq!(names(&feed), ["b"]);
}

#[test]
fn a_reset_control_plane_is_followed_and_cleans_up_once_it_has_passed_the_old_sequence() {
    let mut feed = synced(&["a", "b"], 5);
    assert!(feed.take_changes(5, changes(vec![], 1)).more);
    feed.take_snapshot(snapshot(vec![tenant("c")], 1));
    assert_eq!((names(&feed).len(), feed.since()), (3, Some(1)));
    feed.take_changes(1, changes(vec![created(1, "d"), created(2, "e"), created(3, "f")], 4));
    assert_eq!((names(&feed).len(), feed.since()), (6, Some(4)));
    feed.take_changes(4, changes(vec![created(4, "g"), created(5, "h")], 6));
    assert_eq!((names(&feed).len(), feed.since()), (8, None));
    feed.take_snapshot(snapshot("cdefgh".chars().map(|c| tenant(&c.to_string())).collect(), 6));
    assert_eq!(names(&feed), ["c", "d", "e", "f", "g", "h"]);
}

fn put(seq: u64, generation: u64) -> AssignmentChange {
    AssignmentChange {
        seq,
        op: AssignmentOp::Updated,
        key: assignment_key("s", 0),
        assignment: Some(assignment("s", 0, &format!("node-{generation}"), generation, 1)),
        generation,
        incarnation: 1,
    }
}

fn taken_away(seq: u64, generation: u64) -> AssignmentChange {
    AssignmentChange {
        seq,
        op: AssignmentOp::Unassigned,
        key: assignment_key("s", 0),
        assignment: None,
        generation,
        incarnation: 1,
    }
}

#[test]
fn an_assignment_at_or_below_the_held_generation_is_dropped() {
    let mut feed: Feed<Assignment> = Feed::default();
    feed.take_snapshot(snapshot(vec![assignment("s", 0, "a", 7, 1)], 1));
    assert!(!feed.take_changes(1, changes(vec![put(1, 6), put(2, 7), taken_away(3, 6)], 4)).changed);
    assert_eq!(feed.get(&assignment_key("s", 0)).map(|a| a.leader.as_str()), Some("a"));
    assert!(feed.take_changes(4, changes(vec![put(4, 8)], 5)).changed);
    assert!(!feed.take_snapshot(snapshot(vec![assignment("s", 0, "old", 3, 1)], 9)).changed);
    assert_eq!(feed.get(&assignment_key("s", 0)).map(|a| a.generation), Some(8));
    assert!(feed.take_changes(9, changes(vec![taken_away(9, 8)], 10)).changed);
    assert!(feed.get(&assignment_key("s", 0)).is_none());
}

/// A control plane that remembers its changes, may forget the oldest, and answers late, twice or not at all.
struct Model {
    tenants: BTreeMap<String, Tenant>,
    log: Vec<TenantChange>,
    first: u64,
    next: u64,
}

impl Model {
    fn write(&mut self, rng: &mut Rng) {
        let id = format!("t{}", rng.below(6));
        let change = if self.tenants.remove(&id).is_some() {
            deleted(self.next, &id)
        } else {
            self.tenants.insert(id.clone(), tenant(&id));
            created(self.next, &id)
        };
        self.log.push(change);
        self.next += 1;
    }

    fn changes(&self, since: u64, limit: usize) -> Changes<TenantChange> {
        let kept = self.log.iter().filter(|c| c.seq >= since.max(self.first));
        let items: Vec<_> = kept.take(limit).cloned().collect();
        let next_seq = items.last().map_or(self.next, |c| c.seq + 1);
        changes(items, next_seq)
    }
}

#[test]
fn whatever_the_network_does_the_feed_ends_equal_to_the_control_plane_and_removes_only_what_was_deleted() {
    for seed in 0..400 {
        let mut rng = Rng(seed);
        let mut model = Model { tenants: BTreeMap::new(), log: Vec::new(), first: 0, next: 0 };
        let mut feed: Feed<Tenant> = Feed::default();
        let mut late: Vec<(u64, Changes<TenantChange>)> = Vec::new();
        for step in 0..200 {
            let faults = step < 150;
            if faults && rng.below(3) == 0 {
                model.write(&mut rng);
            }
            if faults && rng.below(10) == 0 {
                model.first = model.next.saturating_sub(rng.below(3));
            }
            let held = names(&feed);
            match feed.since() {
                None => {
                    let items = model.tenants.values().cloned().collect();
                    feed.take_snapshot(snapshot(items, model.next));
                }
                Some(since) => {
                    let answer = model.changes(since, 1 + rng.below(3) as usize);
                    match rng.below(4) {
                        0 if faults => late.push((since, answer)),
                        1 if faults && !late.is_empty() => {
                            let (since, answer) = late.swap_remove(rng.below(late.len() as u64) as usize);
                            feed.take_changes(since, answer);
                        }
                        _ => {
                            feed.take_changes(since, answer);
                        }
                    }
                }
            }
            for gone in held.iter().filter(|id| !names(&feed).contains(id)) {
                let was_deleted = model.log.iter().any(|c| c.tenant.is_none() && c.tenant_id == *gone);
                assert!(was_deleted, "seed {seed}: {gone} vanished");
            }
        }
        let wanted: Vec<String> = model.tenants.keys().cloned().collect();
        assert_eq!(names(&feed), wanted, "seed {seed}");
    }
}
