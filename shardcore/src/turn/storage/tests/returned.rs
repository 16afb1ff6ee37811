//! Logs that are ordered away and are back before they have gone, as another core sees their shards.

use bytes::Bytes;

use super::caches::{ask, cache_route, open};
use super::*;
use crate::projection::cache::Condition;
use crate::shard::ask::{Ask, Reply};

/// The first core has to give the `logs` logs of a shard away while its disk is slow, and leads the shard again before it has.
fn away_and_back(world: &mut World, route: &StreamRoute, logs: usize) {
    let named = |version, owner| {
        let route = Arc::new(StreamRoute { owners: vec![owner], ..route.clone() });
        ToCore::Routes(Arc::new(Routes::new(version, [route], [Arc::from("t")])))
    };
    for key in route.log_keys(ShardIndex(0)) {
        world.cores[0].handle_admin(world.now, ToCore::Log(LogOrder::Release { key }));
    }
    world.disk.choose_faults(|_| Some(Fault::Stall(Duration::from_millis(100))));
    world.cores[0].handle_admin(world.now, named(100, Owner::Nobody { reason: "moving" }));
    world.run(Duration::from_millis(20));
    assert!(world.told.is_empty(), "it has not gone");
    let here = Owner::Here { core: CoreId(0), generation: Generation(1) };
    world.cores[0].handle_admin(world.now, named(101, here));
    let mut came_back = 0;
    for _ in 0..100 {
        world.run(Duration::from_millis(20));
        for told in std::mem::take(&mut world.told) {
            // What the book of logs says then.
            if let FromCore::LogReleased { key, volume, source } = told {
                let order = LogOrder::Open { key, volume, source };
                world.cores[0].handle_admin(world.now, ToCore::Log(order));
                came_back += 1;
            }
        }
    }
    assert_eq!(came_back, logs);
    world.disk.choose_faults(|_| None);
    world.answers.clear();
}

#[test]
fn a_durable_shard_that_is_back_before_its_log_has_gone_is_served() {
    let mut world = World::new(Fsync::OnCommit);
    world.serve(0, LogSource::New);
    assert_eq!(world.stored(0, None), 0);
    let route = world.route(Owner::Nobody { reason: "moving" });
    away_and_back(&mut world, &route, 1);
    assert_eq!(world.stored(1, None), 1);
    assert_eq!(world.read(0, 0), [0, 1]);
}

#[test]
fn a_cache_that_is_back_before_its_logs_have_gone_is_served() {
    let mut world = open(Fsync::OnCommit);
    let put = || Ask::CachePut {
        key: Bytes::from_static(b"key"),
        value: Bytes::from_static(b"value"),
        ttl_ms: None,
        condition: Condition::Always,
    };
    assert_eq!(ask(&mut world, put()), Reply::Written);
    away_and_back(&mut world, &cache_route(), 2);
    assert_eq!(ask(&mut world, put()), Reply::Written);
}
