use felix_wire::control::{Capacity, NodeSpec, NodeStatus};

use super::*;

const RULES: LeaseRules = LeaseRules { expiry: secs(15), margin: secs(4) };

const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn node(incarnation: u64, lifecycle: Lifecycle) -> Node {
    Node {
        node_id: "n".into(),
        spec: NodeSpec {
            advertise_addr: "127.0.0.1:1".into(),
            client_addr: None,
            kafka_addr: None,
            region: "local".into(),
            zone: None,
            labels: Default::default(),
            capacity: Capacity::default(),
        },
        status: NodeStatus {
            lifecycle,
            last_heartbeat_at_millis: 0,
            registered_at_millis: 0,
            incarnation,
            features: Vec::new(),
        },
    }
}

#[test]
fn a_node_is_condemned_only_after_lease_and_margin_of_silence() {
    let mut leases = Leases::new(RULES, secs(100));
    let live = node(1, Lifecycle::Live);
    leases.registered("n", 1, secs(100), 7);
    assert_eq!(leases.heard("n", 1, secs(110), 8), Heard::Renewed);
    assert!(!leases.condemn(&live, secs(128)));
    assert!(leases.is_late(&live, secs(126)));
    assert!(!leases.is_late(&live, secs(125)));
    assert!(leases.condemn(&live, secs(129)));
    assert_eq!(leases.last_wall_millis(&live), Some(8));
}

#[test]
fn a_heartbeat_that_crosses_the_sweep_is_told_to_register_anew() {
    let mut leases = Leases::new(RULES, secs(0));
    leases.registered("n", 1, secs(0), 0);
    assert!(leases.condemn(&node(1, Lifecycle::Live), secs(19)));
    assert_eq!(leases.heard("n", 1, secs(19), 0), Heard::Condemned);
    assert_eq!(leases.heard("n", 1, secs(20), 0), Heard::Condemned);
    leases.registered("n", 2, secs(21), 0);
    assert_eq!(leases.heard("n", 2, secs(22), 0), Heard::Renewed);
}

#[test]
fn a_fresh_process_waits_a_whole_window_for_nodes_it_never_heard() {
    let mut leases = Leases::new(RULES, secs(1_000));
    let live = node(4, Lifecycle::Live);
    assert!(!leases.condemn(&live, secs(1_018)));
    assert!(leases.condemn(&live, secs(1_019)));
    assert_eq!(leases.heard("n", 4, secs(1_019), 0), Heard::Condemned);
}

#[test]
fn a_fresh_process_takes_the_first_heartbeat_of_a_known_registration() {
    let mut leases = Leases::new(RULES, secs(1_000));
    assert_eq!(leases.heard("n", 4, secs(1_010), 5), Heard::Renewed);
    assert!(!leases.condemn(&node(4, Lifecycle::Draining), secs(1_028)));
    assert!(leases.condemn(&node(4, Lifecycle::Draining), secs(1_029)));
}

#[test]
fn nodes_that_do_not_serve_are_never_condemned() {
    let mut leases = Leases::new(RULES, secs(0));
    for lifecycle in [Lifecycle::Down, Lifecycle::Left] {
        assert!(!leases.condemn(&node(1, lifecycle), secs(1_000)));
    }
}

#[test]
fn a_late_heartbeat_never_moves_time_back() {
    let mut leases = Leases::new(RULES, secs(0));
    leases.registered("n", 1, secs(50), 0);
    leases.heard("n", 1, secs(40), 0);
    assert_eq!(leases.silence(&node(1, Lifecycle::Live), secs(60)), secs(10));
}

#[test]
fn a_forgotten_node_counts_as_never_heard() {
    let mut leases = Leases::new(RULES, secs(0));
    leases.registered("n", 1, secs(50), 3);
    leases.forget("n");
    assert_eq!(leases.last_wall_millis(&node(1, Lifecycle::Live)), None);
    assert_eq!(leases.silence(&node(1, Lifecycle::Live), secs(60)), secs(60));
}

#[test]
fn a_node_read_before_it_registered_anew_is_left_alone() {
    let mut leases = Leases::new(RULES, secs(0));
    leases.registered("n", 2, secs(100), 0);
    assert!(!leases.condemn(&node(1, Lifecycle::Live), secs(101)));
    assert!(!leases.condemn(&node(2, Lifecycle::Live), secs(118)));
    assert!(leases.condemn(&node(2, Lifecycle::Live), secs(119)));
}
