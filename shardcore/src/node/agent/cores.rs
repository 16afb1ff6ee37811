//! Which core of this node serves a shard. Scope: per process, on the admin thread.
//! Owns: the core of every shard that is led here.
//! Invariants: a shard keeps its core as long as it is led here (its ring lives there); the same shards given at once
//! to the same number of cores land on the same cores.
//! Not here: which node leads (the control plane).

use std::collections::{BTreeMap, BTreeSet};

use felix_wire::id::{CoreId, ShardIndex};
use felix_wire::routing::key_hash;

use crate::snapshot::{ShardId, StreamName, StreamUid};

/// The shards of one stream that are led here.
pub struct Led<'a> {
    pub uid: StreamUid,
    pub name: &'a StreamName,
    pub shards: Vec<ShardIndex>,
}

/// Gives shards to cores by rendezvous hashing, under a cap for each core and an even spread of each stream.
pub struct CorePlan {
    cores: u16,
    /// Most shards of a core while others have room; 0: an even share.
    cap: u32,
    held: BTreeMap<ShardId, CoreId>,
}

impl CorePlan {
    /// A plan for `cores` cores, at least one. `cap` 0 spreads evenly.
    pub fn new(cores: u16, cap: u32) -> CorePlan {
        CorePlan { cores: cores.max(1), cap, held: BTreeMap::new() }
    }

    /// The core of a shard, if it is led here.
    pub fn core_of(&self, shard: ShardId) -> Option<CoreId> {
        self.held.get(&shard).copied()
    }

    /// Replaces the set of shards that are led here. Those held before keep their core.
    pub fn lead(&mut self, led: &[Led<'_>]) {
        let wanted: BTreeSet<ShardId> = led
            .iter()
            .flat_map(|l| l.shards.iter().map(|shard| ShardId { stream: l.uid, shard: *shard }))
            .collect();
        self.held.retain(|shard, _| wanted.contains(shard));
        let even = u32::try_from(wanted.len().div_ceil(usize::from(self.cores))).unwrap_or(u32::MAX);
        let cap = if self.cap == 0 { even } else { self.cap };
        let mut load = vec![0u32; usize::from(self.cores)];
        for core in self.held.values() {
            load[usize::from(core.0)] += 1;
        }
        for stream in led {
            self.place(stream, cap, &mut load);
        }
    }

    fn place(&mut self, stream: &Led<'_>, cap: u32, load: &mut [u32]) {
        let id = |shard: &ShardIndex| ShardId { stream: stream.uid, shard: *shard };
        let stream_cap = u32::try_from(stream.shards.len().div_ceil(load.len())).unwrap_or(u32::MAX);
        let mut of_stream = vec![0u32; load.len()];
        for core in stream.shards.iter().filter_map(|shard| self.held.get(&id(shard))) {
            of_stream[usize::from(core.0)] += 1;
        }
        let seed = name_hash(stream.name);
        for shard in &stream.shards {
            if self.held.contains_key(&id(shard)) {
                continue;
            }
            let mut order: Vec<usize> = (0..load.len()).collect();
            order.sort_by_key(|core| std::cmp::Reverse(rank(seed, *shard, *core)));
            let core = order
                .iter()
                .find(|core| load[**core] < cap && of_stream[**core] < stream_cap)
                .or_else(|| order.iter().find(|core| load[**core] < cap))
                .or_else(|| order.iter().min_by_key(|core| load[**core]))
                .copied()
                .unwrap_or(0);
            load[core] += 1;
            of_stream[core] += 1;
            self.held.insert(id(shard), CoreId(u16::try_from(core).unwrap_or(0)));
        }
    }
}

/// Names are hashed, not uids, so that a restart finds the same cores.
fn name_hash(name: &StreamName) -> u64 {
    let text = format!("{}/{}/{}", name.tenant, name.namespace, name.stream);
    key_hash(text.as_bytes())
}

/// Rendezvous weight of a core for a shard: integers only, the same on every machine.
fn rank(seed: u64, shard: ShardIndex, core: usize) -> u64 {
    let mut key = [0u8; 20];
    key[..8].copy_from_slice(&seed.to_le_bytes());
    key[8..12].copy_from_slice(&shard.0.to_le_bytes());
    key[12..].copy_from_slice(&(core as u64).to_le_bytes());
    key_hash(&key)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(stream: &str) -> StreamName {
        StreamName { tenant: "t".into(), namespace: "n".into(), stream: stream.into() }
    }

    fn led<'a>(uid: u64, name: &'a StreamName, shards: u32) -> Led<'a> {
        Led { uid: StreamUid(uid), name, shards: (0..shards).map(ShardIndex).collect() }
    }

    fn loads(plan: &CorePlan) -> Vec<usize> {
        (0..plan.cores).map(|core| plan.held.values().filter(|c| c.0 == core).count()).collect()
    }

    #[test]
    fn shards_of_each_stream_and_of_all_spread_evenly() {
        let names: Vec<StreamName> = (0..10).map(|i| name(&format!("s{i}"))).collect();
        let mut plan = CorePlan::new(4, 0);
        let all: Vec<Led<'_>> = names.iter().enumerate().map(|(i, n)| led(i as u64, n, 8)).collect();
        plan.lead(&all);
        assert_eq!(loads(&plan), [20, 20, 20, 20]);
        for stream in &all {
            for core in 0..4 {
                let here = plan.held.iter().filter(|(s, c)| s.stream == stream.uid && c.0 == core).count();
                assert!((1..=3).contains(&here), "{here} shards of one stream on core {core}");
            }
        }
    }

    #[test]
    fn a_shard_keeps_its_core_when_others_come_and_go() {
        let (a, b) = (name("a"), name("b"));
        let mut plan = CorePlan::new(3, 0);
        plan.lead(&[led(1, &a, 7)]);
        let before = plan.held.clone();
        plan.lead(&[led(1, &a, 7), led(2, &b, 50)]);
        assert!(before.iter().all(|(shard, core)| plan.held.get(shard) == Some(core)));
        plan.lead(&[led(1, &a, 7)]);
        assert_eq!(plan.held, before);
    }

    #[test]
    fn a_restart_with_the_same_shards_finds_the_same_cores() {
        let a = name("a");
        let placed = |uid: u64| {
            let mut plan = CorePlan::new(4, 0);
            plan.lead(&[led(uid, &a, 64)]);
            plan.held.into_values().collect::<Vec<_>>()
        };
        assert_eq!(placed(1), placed(99));
    }

    #[test]
    fn a_cap_holds_while_others_have_room_and_never_refuses() {
        let a = name("a");
        let mut plan = CorePlan::new(2, 3);
        plan.lead(&[led(1, &a, 9)]);
        let loads = loads(&plan);
        assert_eq!(loads.iter().sum::<usize>(), 9);
        assert!(loads.iter().all(|load| *load >= 4), "{loads:?}");
    }

    #[test]
    fn one_core_takes_everything() {
        let a = name("a");
        let mut plan = CorePlan::new(1, 0);
        plan.lead(&[led(1, &a, 100)]);
        assert_eq!(loads(&plan), [100]);
    }
}
