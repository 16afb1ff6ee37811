//! Makes the routing snapshot that cores serve by. Scope: per process, on the admin thread.
//! Owns: the number of each life of a stream or cache, the core of each shard led here, the last snapshot's parts.
//! Invariants: a number is never used for two lives; a shard is here only if the assignment names this node and the
//! stream's own incarnation; the version rises with every snapshot.
//! Not here: what the control plane said (`catalog`), which core (`cores`).

use std::collections::BTreeMap;
use std::sync::Arc;

use felix_logstore::retention::Retention;
use felix_wire::control::{Assignment, AssignmentState, Cache, KeyRouting, Stream, StreamKey};
use felix_wire::id::{Generation, Incarnation, NodeId, ShardIndex};
use felix_wire::routing::KeyMapping;

use super::catalog::Catalog;
use super::cores::{CorePlan, Led};
use crate::node::storage::LogBook;
use crate::snapshot::{
    LogRole, Owner, Resource, Routes, ShardId, StreamName, StreamRoute, StreamUid, log_key,
};

/// Widest stream or cache that is served; wider ones are a mistake of the control plane and get no route.
const SHARDS_MAX: u32 = 65_536;

/// A stream or cache of the catalog, as far as its route goes.
struct Spec {
    key: LifeKey,
    shards: u32,
    incarnation: u64,
    mapping: KeyMapping,
    log: Option<Retention>,
}

type LifeKey = (Resource, StreamKey);

impl Spec {
    fn of_stream(stream: &Stream) -> Spec {
        let retention = Retention {
            bytes: stream.retention.max_size_bytes,
            age_ms: stream.retention.max_age_seconds.map(|seconds| seconds.saturating_mul(1_000)),
        };
        let key = StreamKey {
            tenant_id: stream.tenant_id.clone(),
            namespace: stream.namespace.clone(),
            stream: stream.stream.clone(),
        };
        Spec {
            key: (Resource::Stream, key),
            shards: stream.shards,
            incarnation: stream.incarnation,
            mapping: match stream.routing {
                Some(KeyRouting::JumpHash) => KeyMapping::JumpHash,
                Some(KeyRouting::Modulo) | None => KeyMapping::Modulo,
            },
            log: stream.durable.then_some(retention),
        }
    }

    /// A cache has a log wherever there is a folder for one (semantics 6.1).
    fn of_cache(cache: &Cache, logs: &LogBook) -> Spec {
        let key = StreamKey {
            tenant_id: cache.tenant_id.clone(),
            namespace: cache.namespace.clone(),
            stream: cache.cache.clone(),
        };
        Spec {
            key: (Resource::Cache, key),
            shards: cache.shards,
            incarnation: cache.incarnation,
            mapping: KeyMapping::Modulo,
            log: (!logs.roots().is_empty()).then(Retention::default),
        }
    }
}

/// One life of one stream or cache.
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
    lives: BTreeMap<LifeKey, Life>,
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
        let streams = catalog.streams().map(Spec::of_stream);
        let caches = catalog.caches().map(|cache| Spec::of_cache(cache, logs));
        let specs: Vec<Spec> =
            streams.chain(caches).filter(|spec| (1..=SHARDS_MAX).contains(&spec.shards)).collect();
        self.follow_lives(&specs);
        self.follow_plan(catalog, &specs);
        let mut shared = Vec::with_capacity(specs.len());
        for spec in specs {
            let Some(life) = self.lives.get(&spec.key) else { continue };
            let route = self.route((catalog, logs), &spec, life);
            let Some(life) = self.lives.get_mut(&spec.key) else { continue };
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

    fn follow_lives(&mut self, specs: &[Spec]) {
        let named: BTreeMap<&LifeKey, u64> = specs.iter().map(|s| (&s.key, s.incarnation)).collect();
        self.lives.retain(|key, life| named.get(key) == Some(&life.incarnation));
        for spec in specs {
            let next_uid = &mut self.next_uid;
            self.lives.entry(spec.key.clone()).or_insert_with(|| {
                let uid = StreamUid(*next_uid);
                *next_uid += 1;
                let name = StreamName {
                    tenant: spec.key.1.tenant_id.as_str().into(),
                    namespace: spec.key.1.namespace.as_str().into(),
                    stream: spec.key.1.stream.as_str().into(),
                };
                Life { incarnation: spec.incarnation, uid, name, route: None }
            });
        }
    }

    fn follow_plan(&mut self, catalog: &Catalog, specs: &[Spec]) {
        let node = self.node.as_str();
        let led: Vec<Led<'_>> = specs
            .iter()
            .filter_map(|spec| {
                let life = self.lives.get(&spec.key)?;
                let led_here = |shard: &u32| current(catalog, spec, *shard).is_some_and(|a| a.leader == node);
                let shards = (0..spec.shards).filter(led_here).map(ShardIndex).collect();
                Some(Led { uid: life.uid, name: &life.name, shards })
            })
            .collect();
        self.plan.lead(&led);
    }

    fn route(&self, (catalog, logs): (&Catalog, &LogBook), spec: &Spec, life: &Life) -> StreamRoute {
        let incarnation = Incarnation(spec.incarnation);
        let resource = spec.key.0;
        let owners = (0..spec.shards)
            .map(|shard| {
                let id = ShardId { stream: life.uid, shard: ShardIndex(shard) };
                let owner = self.owner(catalog, current(catalog, spec, shard), id);
                if spec.log.is_none() || !matches!(owner, Owner::Here { .. }) {
                    return owner;
                }
                // Without its logs a durable shard is not served at all: an ack would promise what is not kept.
                let obstacle = LogRole::of(resource)
                    .iter()
                    .filter(|role| role.is_vital())
                    .find_map(|role| logs.obstacle(log_key(*role, &life.name, incarnation, id.shard)));
                obstacle.map_or(owner, |why| Owner::NoLog { why: why.into() })
            })
            .collect();
        StreamRoute {
            resource,
            uid: life.uid,
            name: life.name.clone(),
            incarnation,
            mapping: spec.mapping,
            log: spec.log,
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

/// The assignment of the shard, if it is about this life of its stream or cache.
fn current<'a>(catalog: &'a Catalog, spec: &Spec, shard: u32) -> Option<&'a Assignment> {
    catalog.assignment(spec.key.0, &spec.key.1, shard).filter(|a| a.incarnation == spec.incarnation)
}
