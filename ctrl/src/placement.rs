//! Which node should serve which shard. Pure: facts in, a plan out; same facts, same plan, on every build.
//! Owns: nothing. Invariants: a shard that has a serving leader stays where it is; a shard with a log is never led from
//! a node that may miss some of it; no node gets more than its cap; hashing is integer arithmetic only.
//! Not here: writing the plan (`assignment`), when to make one (`reconcile`).
//!
//! Nodes are ranked per shard by rendezvous hashing: the shard's key and the node's id are hashed apart and then mixed,
//! so a node that comes or goes moves only its own share. The rank yields to two counts, so that leaderships spread:
//! no node leads more than its even share of one stream, nor of the cluster, while another one could.

use std::collections::HashMap;

use felix_wire::control::{AssignmentKey, AssignmentState, KeyRouting, ResourceKind};

/// Shards without a log that one plan may hand to another node, so that a flapping node does not move everything.
pub const FAILOVERS_PER_PLAN_MAX: usize = 64;

/// What a node may be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Takes new shards and serves its own.
    Eligible,
    /// Serves its own shards, takes no new ones.
    Serving,
    /// Serves nothing.
    Gone,
}

/// A node, as far as placement cares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeFacts {
    pub node_id: String,
    pub region: String,
    /// None counts as a zone of its own.
    pub zone: Option<String>,
    /// Most shards led and followed together; None is no cap.
    pub shards_max: Option<u32>,
    pub standing: Standing,
}

/// Where a shard is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seat {
    pub leader: String,
    pub replicas: Vec<String>,
    pub generation: u64,
}

/// A shard, as far as placement cares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardFacts {
    pub key: AssignmentKey,
    pub incarnation: u64,
    /// Copies wanted, leader included; at least 1.
    pub replication_factor: u32,
    /// Set: only nodes of that region.
    pub region: Option<String>,
    pub routing: Option<KeyRouting>,
    /// Whether its leader holds a log that another node does not.
    pub has_log: bool,
    pub seat: Option<Seat>,
}

/// A seat to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedSeat {
    pub key: AssignmentKey,
    pub incarnation: u64,
    pub leader: String,
    pub replicas: Vec<String>,
    pub state: AssignmentState,
    pub routing: Option<KeyRouting>,
    /// Generation the plan was made on; None for a shard that has no assignment.
    pub replaces: Option<u64>,
}

/// Why a shard has no serving leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unplaceable {
    /// No node is eligible in its region.
    NoNode,
    /// Every eligible node is at its cap.
    NoRoom,
    /// Its leader is gone, and only that one has its log.
    LeaderGone,
}

/// What should be written, and what cannot be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    pub seats: Vec<PlannedSeat>,
    pub unplaceable: Vec<(AssignmentKey, Unplaceable)>,
    /// Shards that have, or would have after this plan, fewer copies than wanted.
    pub under_replicated: usize,
}

/// Plans seats for the shards that need one.
pub fn plan(nodes: &[NodeFacts], shards: &[ShardFacts]) -> Plan {
    let mut planner = Planner::new(nodes, shards);
    let mut plan = Plan::default();
    let mut failovers = 0;
    for shard in shards {
        let wanted = shard.replication_factor.max(1) as usize;
        if let Some(seat) = &shard.seat {
            let leader_gone = planner.is_gone(&seat.leader);
            if leader_gone && shard.has_log {
                plan.unplaceable.push((shard.key.clone(), Unplaceable::LeaderGone));
            }
            let stays = !leader_gone || shard.has_log || failovers == FAILOVERS_PER_PLAN_MAX;
            if stays {
                plan.under_replicated += usize::from(seat.replicas.len() + 1 < wanted);
                continue;
            }
            failovers += 1;
        }
        match planner.seat(shard) {
            Ok(seat) => {
                plan.under_replicated += usize::from(seat.replicas.len() + 1 < wanted);
                plan.seats.push(seat);
            }
            Err(why) => plan.unplaceable.push((shard.key.clone(), why)),
        }
    }
    plan
}

/// Counts that change while seats are planned.
struct Planner<'a> {
    nodes: Vec<Candidate<'a>>,
    index: HashMap<&'a str, usize>,
    leaders_share: u32,
    streams: HashMap<StreamRef<'a>, StreamLoad>,
}

struct Candidate<'a> {
    facts: &'a NodeFacts,
    hash: u64,
    leaders: u32,
    copies: u32,
}

type StreamRef<'a> = (&'a str, &'a str, ResourceKind, &'a str);

#[derive(Default)]
struct StreamLoad {
    shards: u32,
    /// Leaderships per node, by its index.
    leaders: HashMap<usize, u32>,
}

impl<'a> Planner<'a> {
    fn new(nodes: &'a [NodeFacts], shards: &'a [ShardFacts]) -> Planner<'a> {
        let candidate = |facts: &'a NodeFacts| Candidate {
            facts,
            hash: hash_parts(&[&facts.node_id]),
            leaders: 0,
            copies: 0,
        };
        let index = nodes.iter().enumerate().map(|(i, n)| (n.node_id.as_str(), i)).collect();
        let eligible = nodes.iter().filter(|n| n.standing == Standing::Eligible).count();
        let mut planner = Planner {
            nodes: nodes.iter().map(candidate).collect(),
            index,
            leaders_share: share(shards.len(), eligible),
            streams: HashMap::new(),
        };
        for shard in shards {
            let load = planner.streams.entry(stream_ref(&shard.key)).or_default();
            load.shards += 1;
            let Some(seat) = &shard.seat else { continue };
            if let Some(&leader) = planner.index.get(seat.leader.as_str()) {
                *load.leaders.entry(leader).or_default() += 1;
                planner.nodes[leader].leaders += 1;
            }
            for id in &seat.replicas {
                if let Some(&follower) = planner.index.get(id.as_str()) {
                    planner.nodes[follower].copies += 1;
                }
            }
        }
        planner
    }

    fn is_gone(&self, node_id: &str) -> bool {
        let node = self.index.get(node_id).map(|&i| &self.nodes[i]);
        node.is_none_or(|node| node.facts.standing == Standing::Gone)
    }

    fn seat(&mut self, shard: &'a ShardFacts) -> Result<PlannedSeat, Unplaceable> {
        let usable = |node: &Candidate<'_>| {
            node.facts.standing == Standing::Eligible
                && shard.region.as_ref().is_none_or(|region| *region == node.facts.region)
        };
        let allowed: Vec<usize> = (0..self.nodes.len()).filter(|&i| usable(&self.nodes[i])).collect();
        if allowed.is_empty() {
            return Err(Unplaceable::NoNode);
        }
        let roomy: Vec<usize> = allowed.iter().copied().filter(|&i| self.nodes[i].has_room()).collect();
        let shard_hash = hash_shard(&shard.key);
        let load = self.streams.entry(stream_ref(&shard.key)).or_default();
        let stream_share = share(load.shards as usize, allowed.len());
        let leader = roomy
            .iter()
            .copied()
            .min_by_key(|&i| {
                let over_stream = load.leaders.get(&i).copied().unwrap_or(0) >= stream_share;
                let over_cluster = self.nodes[i].leaders >= self.leaders_share;
                (over_stream, over_cluster, std::cmp::Reverse(mix(shard_hash, self.nodes[i].hash)))
            })
            .ok_or(Unplaceable::NoRoom)?;
        *load.leaders.entry(leader).or_default() += 1;
        self.nodes[leader].leaders += 1;
        let replicas = self.followers(shard, shard_hash, leader, roomy);
        Ok(PlannedSeat {
            key: shard.key.clone(),
            incarnation: shard.incarnation,
            leader: self.nodes[leader].facts.node_id.clone(),
            replicas,
            // A first leader has nobody to take over from.
            state: if shard.seat.is_some() { AssignmentState::Assigning } else { AssignmentState::Active },
            routing: shard.routing,
            replaces: shard.seat.as_ref().map(|seat| seat.generation),
        })
    }

    /// The best-ranked followers, in zones the shard lacks as long as there are any.
    fn followers(
        &mut self,
        shard: &ShardFacts,
        shard_hash: u64,
        leader: usize,
        mut left: Vec<usize>,
    ) -> Vec<String> {
        let mut chosen = vec![leader];
        left.retain(|&i| i != leader && self.nodes[i].has_room());
        while chosen.len() < shard.replication_factor.max(1) as usize {
            let next = left.iter().copied().min_by_key(|&i| {
                let zone = &self.nodes[i].facts.zone;
                let taken = zone.is_some() && chosen.iter().any(|&c| self.nodes[c].facts.zone == *zone);
                (taken, std::cmp::Reverse(mix(shard_hash, self.nodes[i].hash)))
            });
            let Some(next) = next else { break };
            left.retain(|&i| i != next);
            self.nodes[next].copies += 1;
            chosen.push(next);
        }
        chosen[1..].iter().map(|&i| self.nodes[i].facts.node_id.clone()).collect()
    }
}

impl Candidate<'_> {
    fn has_room(&self) -> bool {
        self.facts.shards_max.is_none_or(|max| self.leaders + self.copies < max)
    }
}

fn stream_ref(key: &AssignmentKey) -> StreamRef<'_> {
    (&key.tenant_id, &key.namespace, key.kind, &key.stream)
}

/// An even share, rounded up.
fn share(of: usize, among: usize) -> u32 {
    u32::try_from(of.div_ceil(among.max(1))).unwrap_or(u32::MAX)
}

fn hash_shard(key: &AssignmentKey) -> u64 {
    let kind: &[u8] = match key.kind {
        ResourceKind::Stream => b"stream",
        ResourceKind::Cache => b"cache",
    };
    let names = [key.tenant_id.as_bytes(), key.namespace.as_bytes(), kind, key.stream.as_bytes()];
    hash_bytes(names.into_iter().chain([&key.shard.to_be_bytes()[..]]))
}

fn hash_parts(parts: &[&str]) -> u64 {
    hash_bytes(parts.iter().map(|part| part.as_bytes()))
}

/// FNV-1a over the parts, each ended by a zero byte, which no name holds.
fn hash_bytes<'b>(parts: impl Iterator<Item = &'b [u8]>) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for part in parts {
        for byte in part.iter().chain(&[0]) {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
    hash
}

/// Mixes a shard's and a node's hash into the node's rank for the shard (the finalizer of splitmix64).
fn mix(shard: u64, node: u64) -> u64 {
    let mut x = shard ^ node.rotate_left(32);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests;
