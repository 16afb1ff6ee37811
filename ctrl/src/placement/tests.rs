use proptest::prelude::*;

use super::*;

fn node(id: &str) -> NodeFacts {
    NodeFacts {
        node_id: id.into(),
        region: "local".into(),
        zone: None,
        shards_max: None,
        standing: Standing::Eligible,
    }
}

fn nodes(count: usize) -> Vec<NodeFacts> {
    (0..count).map(|n| node(&format!("broker-{n}"))).collect()
}

fn shard(stream: &str, index: u32) -> ShardFacts {
    ShardFacts {
        key: AssignmentKey {
            tenant_id: "t".into(),
            namespace: "n".into(),
            kind: ResourceKind::Stream,
            stream: stream.into(),
            shard: index,
        },
        incarnation: 1,
        replication_factor: 1,
        region: None,
        routing: None,
        has_log: false,
        seat: None,
    }
}

fn shards(stream: &str, count: u32) -> Vec<ShardFacts> {
    (0..count).map(|n| shard(stream, n)).collect()
}

fn seat(leader: &str, replicas: &[&str], generation: u64) -> Option<Seat> {
    let replicas = replicas.iter().map(|id| (*id).to_owned()).collect();
    Some(Seat { leader: leader.into(), replicas, generation })
}

fn leaders(plan: &Plan) -> HashMap<String, usize> {
    let mut count = HashMap::new();
    for seat in &plan.seats {
        *count.entry(seat.leader.clone()).or_default() += 1;
    }
    count
}

#[test]
fn with_one_node_every_shard_goes_there() {
    let shards: Vec<_> = shards("a", 7).into_iter().chain(shards("b", 1)).collect();
    let plan = plan(&nodes(1), &shards);
    assert_eq!(plan.seats.len(), 8);
    assert!(plan.seats.iter().all(|s| s.leader == "broker-0" && s.replicas.is_empty()));
    assert!(plan.seats.iter().all(|s| s.state == AssignmentState::Active && s.replaces.is_none()));
    assert_eq!((plan.unplaceable.len(), plan.under_replicated), (0, 0));
}

#[test]
fn without_an_eligible_node_nothing_is_placed() {
    assert_eq!(plan(&[], &shards("a", 1)).unplaceable[0].1, Unplaceable::NoNode);
    for standing in [Standing::Serving, Standing::Gone] {
        let only = NodeFacts { standing, ..node("b") };
        let plan = plan(&[only], &shards("a", 2));
        assert_eq!((plan.seats.len(), plan.unplaceable.len()), (0, 2));
    }
}

#[test]
fn leaderships_are_spread_per_stream_and_over_the_cluster() {
    let mut all = Vec::new();
    for stream in 0..30 {
        all.extend(shards(&format!("stream-{stream}"), 4));
    }
    let plan = plan(&nodes(4), &all);
    assert!(leaders(&plan).values().all(|&count| count == 30), "{:?}", leaders(&plan));
    for stream in 0..30 {
        let of = |s: &&PlannedSeat| s.key.stream == format!("stream-{stream}");
        let mut used: Vec<_> = plan.seats.iter().filter(of).map(|s| &s.leader).collect();
        used.sort();
        used.dedup();
        assert_eq!(used.len(), 4, "stream {stream}");
    }
    let singles: Vec<_> = (0..40).flat_map(|n| shards(&format!("s{n}"), 1)).collect();
    let spread = leaders(&super::plan(&nodes(4), &singles));
    assert!(spread.values().all(|&count| count == 10), "{spread:?}");
}

#[test]
fn a_seat_with_a_serving_leader_stays() {
    for standing in [Standing::Eligible, Standing::Serving] {
        let facts = [NodeFacts { standing, ..node("old") }, node("new")];
        let held = ShardFacts { seat: seat("old", &[], 3), ..shard("a", 0) };
        assert_eq!(plan(&facts, &[held]), Plan::default());
    }
}

#[test]
fn a_shard_without_a_log_fails_over_and_one_with_a_log_waits() {
    for gone in [Some(NodeFacts { standing: Standing::Gone, ..node("old") }), None] {
        let facts: Vec<_> = gone.into_iter().chain([node("new")]).collect();
        let volatile = ShardFacts { seat: seat("old", &[], 3), ..shard("a", 0) };
        let durable = ShardFacts { seat: seat("old", &[], 5), has_log: true, ..shard("d", 0) };
        let plan = plan(&facts, &[volatile, durable.clone()]);
        assert_eq!(plan.seats.len(), 1);
        let moved = &plan.seats[0];
        assert_eq!((moved.leader.as_str(), moved.replaces), ("new", Some(3)));
        assert_eq!(moved.state, AssignmentState::Assigning);
        assert_eq!(plan.unplaceable, [(durable.key, Unplaceable::LeaderGone)]);
    }
}

#[test]
fn at_most_64_shards_fail_over_in_one_plan() {
    let volatile: Vec<_> =
        shards("a", 100).into_iter().map(|s| ShardFacts { seat: seat("old", &[], 1), ..s }).collect();
    assert_eq!(plan(&[node("new")], &volatile).seats.len(), FAILOVERS_PER_PLAN_MAX);
}

#[test]
fn a_cap_is_never_passed() {
    let mut facts = nodes(2);
    for facts in &mut facts {
        facts.shards_max = Some(3);
    }
    let plan = plan(&facts, &shards("a", 10));
    assert_eq!(plan.seats.len(), 6);
    assert!(plan.unplaceable.iter().all(|(_, why)| *why == Unplaceable::NoRoom));
    assert!(leaders(&plan).values().all(|&count| count == 3));
}

#[test]
fn regions_are_kept() {
    let facts = [node("here"), NodeFacts { region: "eu".into(), ..node("there") }];
    let european: Vec<_> =
        shards("a", 5).into_iter().map(|s| ShardFacts { region: Some("eu".into()), ..s }).collect();
    assert!(plan(&facts, &european).seats.iter().all(|s| s.leader == "there"));
    assert_eq!(plan(&facts[..1], &european).unplaceable.len(), 5);
}

#[test]
fn followers_go_to_other_zones_first_and_a_missing_copy_is_counted() {
    let zoned = |id: &str, zone: &str| NodeFacts { zone: Some(zone.into()), ..node(id) };
    let facts = [zoned("a1", "a"), zoned("a2", "a"), zoned("a3", "a"), zoned("b1", "b"), zoned("c1", "c")];
    let wanted: Vec<_> =
        shards("s", 40).into_iter().map(|s| ShardFacts { replication_factor: 3, ..s }).collect();
    let spread = plan(&facts, &wanted);
    assert_eq!(spread.under_replicated, 0);
    for seat in &spread.seats {
        let mut zones: Vec<_> = seat.replicas.iter().chain([&seat.leader]).map(|id| &id[..1]).collect();
        zones.sort_unstable();
        assert_eq!(zones, ["a", "b", "c"], "{seat:?}");
    }
    let short = plan(&facts[..2], &wanted);
    assert_eq!((short.seats.len(), short.under_replicated), (40, 40));
    assert!(short.seats.iter().all(|s| s.replicas.len() == 1));
}

#[test]
fn a_new_node_changes_few_ranks() {
    let key = shard("s", 0).key;
    let best = |count: usize, shard: u32| {
        let hash = hash_shard(&AssignmentKey { shard, ..key.clone() });
        (0..count).max_by_key(|n| mix(hash, hash_parts(&[&format!("broker-{n}")]))).unwrap()
    };
    let moved = (0..4_000).filter(|&shard| best(4, shard) != best(5, shard)).count();
    assert!((600..1_000).contains(&moved), "a fifth would be 800, {moved} moved");
    assert!((0..4_000).all(|shard| best(5, shard) == 4 || best(5, shard) == best(4, shard)));
}

#[test]
fn hashes_are_the_same_on_every_build() {
    assert_eq!(hash_parts(&["a"]), 0x089b_e207_b544_f1e4);
    assert_eq!(hash_shard(&shard("orders", 3).key), 0x2434_c8ba_5f9e_126f);
    assert_eq!(mix(1, 2), 0xc72c_0d73_624b_3f8e);
    assert_ne!(hash_parts(&["ab", "c"]), hash_parts(&["a", "bc"]));
}

fn arbitrary_nodes() -> impl Strategy<Value = Vec<NodeFacts>> {
    let standing = prop_oneof![Just(Standing::Eligible), Just(Standing::Serving), Just(Standing::Gone)];
    let facts = (standing, prop::option::of(0_u8..3), prop::option::of(0_u32..6)).prop_map(
        |(standing, zone, shards_max)| {
            let zone = zone.map(|zone| zone.to_string());
            NodeFacts { zone, shards_max, standing, ..node("") }
        },
    );
    prop::collection::vec(facts, 0..6).prop_map(|mut nodes| {
        for (n, node) in nodes.iter_mut().enumerate() {
            node.node_id = format!("broker-{n}");
        }
        nodes
    })
}

fn arbitrary_shards() -> impl Strategy<Value = Vec<ShardFacts>> {
    let held = prop::option::of((0_usize..7, 1_u64..9));
    let facts = (0_u32..3, 1_u32..4, any::<bool>(), held).prop_map(|(stream, rf, has_log, held)| {
        let seat = held.and_then(|(leader, generation)| seat(&format!("broker-{leader}"), &[], generation));
        ShardFacts { replication_factor: rf, has_log, seat, ..shard(&format!("s{stream}"), 0) }
    });
    prop::collection::vec(facts, 0..20).prop_map(|mut shards| {
        for (n, shard) in (0..).zip(&mut shards) {
            shard.key.shard = n;
        }
        shards
    })
}

proptest! {
    #[test]
    fn every_plan_keeps_the_rules(nodes in arbitrary_nodes(), shards in arbitrary_shards()) {
        let plan = plan(&nodes, &shards);
        prop_assert_eq!(&plan, &super::plan(&nodes, &shards), "same facts, same plan");
        let of = |id: &str| nodes.iter().find(|n| n.node_id == id);
        let mut held: HashMap<String, u32> = HashMap::new();
        for seat in shards.iter().filter_map(|s| s.seat.as_ref()) {
            *held.entry(seat.leader.clone()).or_default() += 1;
        }
        for seat in &plan.seats {
            let facts = shards.iter().find(|s| s.key == seat.key).unwrap();
            let everyone: Vec<&String> = seat.replicas.iter().chain([&seat.leader]).collect();
            for id in &everyone {
                prop_assert_eq!(of(id).unwrap().standing, Standing::Eligible);
                *held.entry((*id).clone()).or_default() += 1;
                let cap = of(id).unwrap().shards_max.unwrap_or(u32::MAX);
                prop_assert!(held[*id] <= cap, "{} is over its cap", id);
            }
            let mut distinct = everyone.clone();
            distinct.sort();
            distinct.dedup();
            prop_assert_eq!(distinct.len(), everyone.len());
            prop_assert!(everyone.len() <= facts.replication_factor as usize);
            if let Some(old) = &facts.seat {
                prop_assert!(!facts.has_log, "a shard with a log was moved");
                prop_assert!(of(&old.leader).is_none_or(|n| n.standing == Standing::Gone));
                prop_assert_eq!(seat.replaces, Some(old.generation));
            }
        }
    }
}
