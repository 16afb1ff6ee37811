//! What one engine promises, on a disk without faults other than delay.

mod support;

use felix_logstore::engine::Event;
use felix_logstore::id::Fsync;
use felix_runtime::sim::SimRng;
use felix_wire::id::Offset;
use support::*;

#[test]
fn what_was_published_is_read_back_from_memory_and_from_segments() {
    let mut world = World::empty(1);
    let mut rng = SimRng::new(1);
    let log = world.create(key(1, 1), Fsync::OnCommit);
    let mut model = Vec::new();
    for round in 0..300 {
        let len = [100, 3_000, 70_000][round % 3];
        let payloads: Vec<Vec<u8>> = (0..1 + round % 4).map(|_| payload(&mut rng, len)).collect();
        let base = world.publish(log, &payloads);
        assert_eq!(base, Offset(model.len() as u64));
        model.extend(payloads);
    }
    world.settle(log);
    let read = world.read_log(log).expect("readable");
    assert_eq!(read.len(), model.len());
    for (offset, record) in read {
        assert!(record.as_ref() == Some(&model[offset as usize]), "offset {offset}");
    }
    assert!(world.engine.log(log).expect("there").sealed().count() > 10, "it rolled");
    assert!(
        !world.events.iter().any(|event| matches!(event, Event::DiskTrouble { .. } | Event::Stopped { .. }))
    );
}

#[test]
fn a_clean_stop_and_start_gives_the_same_log() {
    let mut world = World::empty(2);
    let mut rng = SimRng::new(2);
    let mut logs = Vec::new();
    for (index, policy) in [Fsync::OnCommit, Fsync::Periodic, Fsync::None].into_iter().enumerate() {
        let key = key(index as u128, 1);
        let log = world.create(key, policy);
        for _ in 0..50 {
            world.publish(log, &[payload(&mut rng, 2_000), payload(&mut rng, 10)]);
        }
        world.settle(log);
        logs.push((key, world.read_log(log).expect("readable")));
    }
    let disk = world.close();
    // Another boot id: an unclean stop would skip offsets.
    let mut world = World::start(disk, 2);
    assert!(world.recovered.refused.is_empty() && world.recovered.torn.is_empty());
    for (key, before) in logs {
        let log = world.engine.find(key).expect("it is there");
        assert_eq!(world.engine.log(log).expect("there").claimed_end(), Offset(100));
        assert!(world.read_log(log).expect("readable") == before);
        assert_eq!(world.publish(log, &[vec![1]]), Offset(100));
        world.settle(log);
    }
}
