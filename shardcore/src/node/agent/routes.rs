//! Makes the routing snapshot that cores serve by. Scope: per process, on the admin thread.
//! Owns: the number of each life of a stream, the core of each shard led here, the last snapshot's parts.
//! Invariants: a number is never used for two lives; a shard is here only if the assignment names this node and the
//! stream's own incarnation; the version rises with every snapshot.
//! Not here: what the control plane said (`catalog`), which core (`cores`).

use std::collections::BTreeMap;
use std::sync::Arc;

use felix_logstore::retention::Retention;
use felix_wire::control::{Assignment, AssignmentState, KeyRouting, Stream, StreamKey};
use felix_wire::id::{Generation, Incarnation, NodeId, ShardIndex};
use felix_wire::routing::KeyMapping;

use super::catalog::Catalog;
use super::cores::{CorePlan, Led};
use super::feed::FeedItem;
use crate::node::storage::LogBook;
use crate::snapshot::{Owner, Routes, ShardId, StreamName, StreamRoute, StreamUid, log_key};

/// Widest stream that is served; wider ones are a mistake of the control plane and get no route.
const SHARDS_MAX: u32 = 65_536;

/// One life of one stream.
struct Life {
    incarnation: u64,
    uid: StreamUid,
    name: StreamName,
    /// The route of the last snapshot, shared with it.
    route: Option<Arc<StreamRoute>>,
}

/// Turns the catalog into snapshots.
pub struct RouteMaker {
    node: NodeId,
    plan: CorePlan,
    lives: BTreeMap<StreamKey, Life>,
    next_uid: u64,
    version: u64,
}

impl RouteMaker {
    /// For this node with `cores` cores; `shards_per_core` as in `CorePlan`.
    pub fn new(node: NodeId, cores: u16, shards_per_core: u32) -> RouteMaker {
        RouteMaker {
            node,
            plan: CorePlan::new(cores, shards_per_core),
            lives: BTreeMap::new(),
            next_uid: 1,
            version: 0,
        }
    }

    /// A snapshot of what the catalog holds now. Parts that did not change are shared with the one before.
    pub fn make(&mut self, catalog: &Catalog, logs: &LogBook) -> Routes {
        let streams: Vec<&Stream> =
            catalog.streams().filter(|s| (1..=SHARDS_MAX).contains(&s.shards)).collect();
        self.follow_lives(&streams);
        self.follow_plan(catalog, &streams);
        let mut routes = Vec::with_capacity(streams.len());
        for stream in streams {
            let Some(life) = self.lives.get(&stream.key()) else { continue };
            let route = self.route((catalog, logs), stream, life);
            routes.push((stream.key(), route));
        }
        let mut shared = Vec::with_capacity(routes.len());
        for (key, route) in routes {
            let Some(life) = self.lives.get_mut(&key) else { continue };
            let route = match &life.route {
                Some(held) if **held == route => Arc::clone(held),
                _ => Arc::new(route),
            };
            life.route = Some(Arc::clone(&route));
            shared.push(route);
        }
        self.version += 1;
        Routes::new(self.version, shared, catalog.tenants().map(|t| Arc::from(t.tenant_id.as_str())))
    }

    fn follow_lives(&mut self, streams: &[&Stream]) {
        let named: BTreeMap<StreamKey, u64> = streams.iter().map(|s| (s.key(), s.incarnation)).collect();
        self.lives.retain(|key, life| named.get(key) == Some(&life.incarnation));
        for stream in streams {
            let next_uid = &mut self.next_uid;
            self.lives.entry(stream.key()).or_insert_with(|| {
                let uid = StreamUid(*next_uid);
                *next_uid += 1;
                let name = StreamName {
                    tenant: stream.tenant_id.as_str().into(),
                    namespace: stream.namespace.as_str().into(),
                    stream: stream.stream.as_str().into(),
                };
                Life { incarnation: stream.incarnation, uid, name, route: None }
            });
        }
    }

    fn follow_plan(&mut self, catalog: &Catalog, streams: &[&Stream]) {
        let node = self.node.as_str();
        let led: Vec<Led<'_>> = streams
            .iter()
            .filter_map(|stream| {
                let life = self.lives.get(&stream.key())?;
                let led_here =
                    |shard: &u32| current(catalog, stream, *shard).is_some_and(|a| a.leader == node);
                let shards = (0..stream.shards).filter(led_here).map(ShardIndex).collect();
                Some(Led { uid: life.uid, name: &life.name, shards })
            })
            .collect();
        self.plan.lead(&led);
    }

    fn route(&self, (catalog, logs): (&Catalog, &LogBook), stream: &Stream, life: &Life) -> StreamRoute {
        let incarnation = Incarnation(stream.incarnation);
        let owners = (0..stream.shards)
            .map(|shard| {
                let id = ShardId { stream: life.uid, shard: ShardIndex(shard) };
                let owner = self.owner(catalog, current(catalog, stream, shard), id);
                if !stream.durable || !matches!(owner, Owner::Here { .. }) {
                    return owner;
                }
                // A durable stream whose log cannot be had is not served at all: an ack would promise what is not kept.
                let obstacle = logs.obstacle(log_key(&life.name, incarnation, id.shard));
                obstacle.map_or(owner, |why| Owner::NoLog { why: why.into() })
            })
            .collect();
        let retention = Retention {
            bytes: stream.retention.max_size_bytes,
            age_ms: stream.retention.max_age_seconds.map(|seconds| seconds.saturating_mul(1_000)),
        };
        StreamRoute {
            uid: life.uid,
            name: life.name.clone(),
            incarnation,
            mapping: match stream.routing {
                Some(KeyRouting::JumpHash) => KeyMapping::JumpHash,
                Some(KeyRouting::Modulo) | None => KeyMapping::Modulo,
            },
            log: stream.durable.then_some(retention),
            owners,
        }
    }

    fn owner(&self, catalog: &Catalog, assignment: Option<&Assignment>, id: ShardId) -> Owner {
        let Some(assignment) = assignment else { return Owner::Nobody { reason: "not_assigned" } };
        if assignment.state == AssignmentState::Draining {
            return Owner::Nobody { reason: "moving" };
        }
        let generation = Generation(assignment.generation);
        if assignment.leader == self.node.as_str() {
            return match self.plan.core_of(id) {
                Some(core) => Owner::Here { core, generation },
                None => Owner::Nobody { reason: "not_ready" },
            };
        }
        match NodeId::new(&assignment.leader) {
            Ok(node) => Owner::Node { node, addr: catalog.address(&assignment.leader).cloned(), generation },
            Err(_) => Owner::Nobody { reason: "owner_unavailable" },
        }
    }
}

/// The assignment of the shard, if it is about this life of the stream.
fn current<'a>(catalog: &'a Catalog, stream: &Stream, shard: u32) -> Option<&'a Assignment> {
    catalog.assignment(stream, shard).filter(|a| a.incarnation == stream.incarnation)
}
