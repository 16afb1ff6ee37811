//! Tests of the agent's machines against small models, and of the whole agent against a control plane in the process.

mod carrier;
mod catalog;
mod feed;
mod keys;
mod routes;

use felix_wire::control::{
    Assignment, AssignmentKey, AssignmentState, Changes, Consistency, Delivery, ResourceKind, Retention,
    Snapshot, Stream, StreamKind, Tenant,
};

fn tenant(id: &str) -> Tenant {
    Tenant { tenant_id: id.to_owned(), display_name: String::new() }
}

fn stream(name: &str, shards: u32, incarnation: u64) -> Stream {
    Stream {
        tenant_id: "t".to_owned(),
        namespace: "n".to_owned(),
        stream: name.to_owned(),
        kind: StreamKind::Stream,
        shards,
        replication_factor: 1,
        retention: Retention::default(),
        consistency: Consistency::Leader,
        delivery: Delivery::AtLeastOnce,
        durable: false,
        region: None,
        routing: None,
        incarnation,
    }
}

fn assignment_key(stream: &str, shard: u32) -> AssignmentKey {
    AssignmentKey {
        tenant_id: "t".to_owned(),
        namespace: "n".to_owned(),
        kind: ResourceKind::Stream,
        stream: stream.to_owned(),
        shard,
    }
}

fn assignment(stream: &str, shard: u32, leader: &str, generation: u64, incarnation: u64) -> Assignment {
    Assignment {
        key: assignment_key(stream, shard),
        leader: leader.to_owned(),
        replicas: Vec::new(),
        generation,
        state: AssignmentState::Active,
        successor: None,
        joining: None,
        move_started_at_millis: None,
        move_reason: None,
        routing: None,
        incarnation,
    }
}

fn snapshot<T>(items: Vec<T>, next_seq: u64) -> Snapshot<T> {
    Snapshot { items, next_seq }
}

fn changes<T>(items: Vec<T>, next_seq: u64) -> Changes<T> {
    Changes { items, next_seq }
}

/// A small generator, so that a failing seed can be run again.
struct Rng(u64);

impl Rng {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}
