use std::sync::Arc;
use std::time::Duration;

use felix_logstore::id::Run;
use felix_runtime::Tick;
use felix_wire::control::{
    Capacity, KeyRouting, Lifecycle, Node, NodePlacement, NodeSpec, NodeStatus, NodeView,
};
use felix_wire::id::{Generation, Incarnation, NodeId, ShardIndex};
use felix_wire::routing::KeyMapping;

use super::*;
use crate::node::agent::catalog::{Answer, Catalog, FeedAnswer};
use crate::node::agent::routes::RouteMaker;
use crate::node::storage::LogBook;
use crate::snapshot::{LogRole, Owner, RecoveredVolume, Routes, StreamName, StreamRoute, log_key};

struct World {
    catalog: Catalog,
    maker: RouteMaker,
    logs: LogBook,
    seq: u64,
}

impl World {
    fn new(cores: u16) -> World {
        let catalog = Catalog::new(Duration::from_secs(2));
        let logs = LogBook::new(Vec::new(), [0; 16]);
        World { catalog, maker: RouteMaker::new(NodeId::new("me").unwrap(), cores, 0), logs, seq: 0 }
    }

    /// What the control plane says now, as complete snapshots of a later sequence.
    fn say(&mut self, streams: Vec<Stream>, assignments: Vec<Assignment>) -> Routes {
        self.seq += 1;
        let answers = [
            Answer::Tenants(FeedAnswer::Snapshot(snapshot(vec![tenant("t"), tenant("bare")], self.seq))),
            Answer::Streams(FeedAnswer::Snapshot(snapshot(streams, self.seq))),
            Answer::Assignments(FeedAnswer::Snapshot(snapshot(assignments, self.seq))),
        ];
        for answer in answers {
            self.catalog.answered(answer, Tick::ZERO);
        }
        self.maker.make(&self.catalog, &self.logs)
    }
}

fn route(routes: &Routes, name: &str) -> Arc<StreamRoute> {
    Arc::clone(routes.stream(("t", "n", name), &mut String::new()).unwrap())
}

fn node(id: &str, addr: &str) -> NodeView {
    NodeView {
        node: Node {
            node_id: id.to_owned(),
            spec: NodeSpec {
                advertise_addr: addr.to_owned(),
                client_addr: Some(addr.to_owned()),
                kafka_addr: None,
                region: "local".to_owned(),
                zone: None,
                labels: Default::default(),
                capacity: Capacity::default(),
            },
            status: NodeStatus {
                lifecycle: Lifecycle::Live,
                last_heartbeat_at_millis: 0,
                registered_at_millis: 0,
                incarnation: 1,
                features: Vec::new(),
            },
        },
        placement: NodePlacement { eligible: true, routable: true, reasons: Vec::new(), heartbeat_age_ms: 0 },
    }
}

#[test]
fn a_shard_is_here_elsewhere_or_nowhere_as_its_assignment_says() {
    let mut world = World::new(2);
    world.catalog.answered(Answer::Nodes(vec![node("other", "10.0.0.2:5000")]), Tick::ZERO);
    let mut moving = assignment("s", 2, "me", 4, 1);
    moving.state = AssignmentState::Draining;
    let assignments = vec![
        assignment("s", 0, "me", 3, 1),
        assignment("s", 1, "other", 5, 1),
        moving,
        assignment("s", 3, "stranger", 6, 1),
    ];
    let routes = world.say(vec![stream("s", 5, 1)], assignments);
    let route = route(&routes, "s");
    assert!(matches!(route.owners[0], Owner::Here { generation: Generation(3), .. }));
    let Owner::Node { node, addr, generation } = &route.owners[1] else { panic!("{:?}", route.owners[1]) };
    assert_eq!(
        (node.as_str(), addr.as_deref(), *generation),
        ("other", Some("10.0.0.2:5000"), Generation(5))
    );
    assert_eq!(route.owners[2], Owner::Nobody { reason: "moving" });
    assert!(matches!(&route.owners[3], Owner::Node { addr: None, .. }));
    assert_eq!(route.owners[4], Owner::Nobody { reason: "not_assigned" });
    assert!(routes.has_tenant("bare") && !routes.has_tenant("nobody"));
}

#[test]
fn an_assignment_of_another_life_of_the_name_does_not_count() {
    let mut world = World::new(1);
    let routes = world.say(vec![stream("s", 1, 2)], vec![assignment("s", 0, "me", 9, 1)]);
    assert_eq!(route(&routes, "s").owners, [Owner::Nobody { reason: "not_assigned" }]);
}

#[test]
fn a_recreated_stream_has_a_number_of_its_own_and_an_unchanged_one_keeps_it() {
    let mut world = World::new(1);
    let both = |incarnation, generation| {
        let streams = vec![stream("keeps", 1, 1), stream("again", 1, incarnation)];
        let assignments =
            vec![assignment("keeps", 0, "me", 1, 1), assignment("again", 0, "me", generation, incarnation)];
        (streams, assignments)
    };
    let (streams, assignments) = both(1, 1);
    let first = world.say(streams, assignments);
    let (streams, assignments) = both(2, 2);
    let second = world.say(streams, assignments);
    assert!(Arc::ptr_eq(&route(&first, "keeps"), &route(&second, "keeps")));
    assert_ne!(route(&first, "again").uid, route(&second, "again").uid);
    assert!(second.version > first.version);
    let third = world.say(vec![stream("keeps", 1, 1)], vec![assignment("keeps", 0, "me", 1, 1)]);
    assert_eq!(third.iter().count(), 1);
}

#[test]
fn a_new_generation_keeps_the_core_and_a_shard_that_went_away_may_come_back() {
    let mut world = World::new(4);
    let core = |routes: &Routes| match route(routes, "s").owners[0] {
        Owner::Here { core, .. } => Some(core),
        Owner::Node { .. } | Owner::Nobody { .. } | Owner::NoLog { .. } => None,
    };
    let first = core(&world.say(vec![stream("s", 1, 1)], vec![assignment("s", 0, "me", 1, 1)]));
    let second = core(&world.say(vec![stream("s", 1, 1)], vec![assignment("s", 0, "me", 2, 1)]));
    assert!(first.is_some() && first == second);
    assert_eq!(core(&world.say(vec![stream("s", 1, 1)], vec![assignment("s", 0, "other", 3, 1)])), None);
    assert!(core(&world.say(vec![stream("s", 1, 1)], vec![assignment("s", 0, "me", 4, 1)])).is_some());
}

#[test]
fn four_thousand_shards_spread_over_all_cores_and_absurd_widths_get_no_route() {
    let mut world = World::new(4);
    let mut wide = stream("wide", 4_096, 1);
    wide.routing = Some(KeyRouting::JumpHash);
    let assignments = (0..4_096).map(|shard| assignment("wide", shard, "me", 1, 1)).collect();
    let routes = world.say(vec![wide, stream("absurd", u32::MAX, 1), stream("none", 0, 1)], assignments);
    assert_eq!(routes.iter().count(), 1);
    let route = route(&routes, "wide");
    assert_eq!((route.mapping, route.shards()), (KeyMapping::JumpHash, 4_096));
    let mut load = [0; 4];
    for owner in &route.owners {
        let Owner::Here { core, .. } = owner else { panic!("{owner:?}") };
        load[usize::from(core.0)] += 1;
    }
    assert_eq!(load, [1_024; 4]);
}

#[test]
fn a_durable_stream_is_not_served_from_memory() {
    let mut world = World::new(1);
    let durable = Stream { durable: true, ..stream("d", 1, 1) };
    let routes = world.say(vec![durable], vec![assignment("d", 0, "me", 1, 1)]);
    let owners = &route(&routes, "d").owners;
    assert!(matches!(&owners[..], [Owner::NoLog { why }] if why.contains("storage_dir")), "{owners:?}");
}

#[test]
fn a_durable_shard_of_another_node_is_there_whatever_became_of_our_logs() {
    let mut world = World::new(1);
    let durable = Stream { durable: true, ..stream("d", 1, 1) };
    let routes = world.say(vec![durable], vec![assignment("d", 0, "other", 1, 1)]);
    let owners = &route(&routes, "d").owners;
    assert!(matches!(&owners[..], [Owner::Node { .. }]), "{owners:?}");
}

#[test]
fn a_shard_whose_log_was_refused_says_so_and_what_is_wrong_with_it() {
    let mut world = World::new(1);
    world.logs = LogBook::new(vec!["/v".into()], [0; 16]);
    let name = StreamName { tenant: "t".into(), namespace: "n".into(), stream: "d".into() };
    let key = log_key(LogRole::Records, &name, Incarnation(1), ShardIndex(0));
    let found = RecoveredVolume {
        run: Run(1),
        logs: Vec::new(),
        refused: vec![(key, "the segment is missing".to_owned())],
        torn: 0,
    };
    world.logs.recovered(vec![found], 1, || 7);
    let durable = Stream { durable: true, ..stream("d", 2, 1) };
    let assignments = vec![assignment("d", 0, "me", 1, 1), assignment("d", 1, "me", 1, 1)];
    let routes = world.say(vec![durable], assignments);
    let owners = &route(&routes, "d").owners;
    assert!(
        matches!(
            &owners[..],
            [Owner::NoLog { why }, Owner::Here { .. }]
                if why.contains("the segment is missing") && why.contains("felix-broker inspect log")
        ),
        "{owners:?}"
    );
}
