//! The two loops of the control plane: placing shards, and giving silent brokers up. Scope: one each per process.
//! Owns: when to act. The decisions are `placement`, `assignment`, `lease` and `registry`.

use std::sync::Arc;
use std::time::Duration;

use felix_wire::control::{Assignment, Cache, Lifecycle, Node, ResourceKind, Stream};
use tokio::time::{MissedTickBehavior, interval};

use crate::assignment::{self, Applied, ApplyError, PlacementToken, SEATS_PER_WRITE_MAX};
use crate::clock;
use crate::ledger::{Ledger, WriteError, parse};
use crate::metrics::NodeLabels;
use crate::placement::{self, NodeFacts, Plan, Seat, ShardFacts, Standing};
use crate::plane::Plane;
use crate::registry::{self, RegistryError};
use crate::row;
use crate::store::{StoreError, Want};

/// Shortest pause between two passes, so that a burst of creations is placed together.
const PASS_PAUSE_MIN: Duration = Duration::from_millis(5);

/// Places shards until the process drains: at once when woken, and on a timer.
pub async fn place_shards(plane: Arc<Plane>) {
    let token = match plane.ledger.write(assignment::take_over).await {
        Ok(token) => token,
        Err(error) => {
            tracing::error!(%error, "placement does not run");
            if let WriteError::Store(error) = &error {
                plane.note_store_failure(error);
            }
            return;
        }
    };
    plane.metrics.placement_lease_held.set(1);
    let mut timer = interval(plane.settings.reconcile_interval);
    timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut drain = plane.drain_signal();
    loop {
        tokio::select! {
            _ = timer.tick() => {}
            () = plane.placement_wanted() => {}
            _ = drain.wait_for(|draining| *draining) => return,
        }
        let began = clock::since_boot();
        match run_pass(&plane, token).await {
            Ok(Applied { stale: 0, .. }) => {}
            Ok(_) => plane.wake_placement(),
            Err(ApplyError::Fenced) => {
                tracing::warn!("another instance took over placement");
                plane.metrics.placement_lease_held.set(0);
                plane.metrics.placement_writes_fenced.inc();
                return;
            }
            Err(ApplyError::Write(WriteError::Busy)) => plane.wake_placement(),
            Err(ApplyError::Write(WriteError::Store(error))) => plane.note_store_failure(&error),
        }
        // As long again as the pass took: at most half of a core goes to placing.
        let took = clock::since_boot().saturating_sub(began);
        tokio::time::sleep(took.max(PASS_PAUSE_MIN)).await;
    }
}

/// One pass: reads the facts, plans, writes.
pub async fn run_pass(plane: &Arc<Plane>, token: PlacementToken) -> Result<Applied, ApplyError> {
    let reading = Arc::clone(plane);
    let planned = tokio::task::spawn_blocking(move || plan_pass(&reading)).await;
    let plan = match planned {
        Ok(plan) => plan.map_err(WriteError::Store)?,
        Err(e) => std::panic::resume_unwind(e.into_panic()),
    };
    let count = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
    plane.metrics.shards_unplaceable.set(count(plan.unplaceable.len()));
    plane.metrics.shards_under_replicated.set(count(plan.under_replicated));
    let mut total = Applied::default();
    for seats in plan.seats.chunks(SEATS_PER_WRITE_MAX) {
        let seats = seats.to_vec();
        let applied = plane.ledger.write(move |tx| assignment::apply(tx, token, &seats)).await?;
        total.written += applied.written;
        total.stale += applied.stale;
    }
    if total != Applied::default() {
        tracing::info!(written = total.written, stale = total.stale, "placed shards");
    }
    Ok(total)
}

fn plan_pass(plane: &Plane) -> Result<Plan, StoreError> {
    let everything = |prefix: Vec<u8>| Want::under(&prefix, usize::MAX);
    let wants = [row::nodes(), row::streams(), row::caches(), row::assignments()].map(everything);
    let [nodes, streams, caches, assignments] = <[_; 4]>::try_from(plane.ledger.read(&wants)?)
        .map_err(|_| StoreError::Damaged("a read answered another number of ranges".to_owned()))?;
    let nodes: Vec<Node> = nodes.iter().map(|(_, row)| parse(row)).collect::<Result<_, _>>()?;
    count_nodes(plane, &nodes);
    let now = clock::since_boot();
    let facts: Vec<NodeFacts> = {
        let leases = plane.leases();
        nodes
            .into_iter()
            .map(|node| facts_of(&node, leases.is_late(&node, now), leases.is_over(&node, now)))
            .collect()
    };
    // Both sides are in the order of keys.
    let seats: Vec<Assignment> = assignments.iter().map(|(_, row)| parse(row)).collect::<Result<_, _>>()?;
    let mut shards = Vec::with_capacity(seats.len());
    for (_, row) in &caches {
        shards.extend(shards_of_cache(&parse(row)?));
    }
    for (_, row) in &streams {
        shards.extend(shards_of_stream(&parse(row)?));
    }
    shards.sort_by(|a, b| a.key.cmp(&b.key));
    let mut seats = seats.into_iter().peekable();
    for shard in &mut shards {
        while seats.next_if(|seat| seat.key < shard.key).is_some() {}
        if let Some(seat) = seats.next_if(|seat| seat.key == shard.key) {
            let Assignment { leader, replicas, generation, .. } = seat;
            shard.seat = Some(Seat { leader, replicas, generation });
        }
    }
    Ok(placement::plan(&facts, &shards))
}

fn facts_of(node: &Node, late: bool, over: bool) -> NodeFacts {
    let standing = match node.status.lifecycle {
        Lifecycle::Live if !late => Standing::Eligible,
        Lifecycle::Live | Lifecycle::Draining => Standing::Serving,
        Lifecycle::Left if !over => Standing::Serving,
        Lifecycle::Left | Lifecycle::Down => Standing::Gone,
    };
    NodeFacts {
        node_id: node.node_id.clone(),
        region: node.spec.region.clone(),
        zone: node.spec.zone.clone(),
        shards_max: node.spec.capacity.max_shards,
        standing,
    }
}

fn shards_of_stream(stream: &Stream) -> impl Iterator<Item = ShardFacts> {
    let fact = |shard| ShardFacts {
        key: felix_wire::control::AssignmentKey {
            tenant_id: stream.tenant_id.clone(),
            namespace: stream.namespace.clone(),
            kind: ResourceKind::Stream,
            stream: stream.stream.clone(),
            shard,
        },
        incarnation: stream.incarnation,
        replication_factor: stream.replication_factor,
        region: stream.region.clone(),
        routing: stream.routing,
        has_log: stream.durable,
        seat: None,
    };
    (0..stream.shards).map(fact).collect::<Vec<_>>().into_iter()
}

fn shards_of_cache(cache: &Cache) -> impl Iterator<Item = ShardFacts> {
    let fact = |shard| ShardFacts {
        key: felix_wire::control::AssignmentKey {
            tenant_id: cache.tenant_id.clone(),
            namespace: cache.namespace.clone(),
            kind: ResourceKind::Cache,
            stream: cache.cache.clone(),
            shard,
        },
        incarnation: cache.incarnation,
        replication_factor: cache.replication_factor,
        region: None,
        routing: None,
        // Whether a cache is kept in a log is the broker's setting; the safe answer holds for both.
        has_log: true,
        seat: None,
    };
    (0..cache.shards).map(fact).collect::<Vec<_>>().into_iter()
}

fn count_nodes(plane: &Plane, nodes: &[Node]) {
    for lifecycle in [Lifecycle::Live, Lifecycle::Draining, Lifecycle::Down, Lifecycle::Left] {
        let count = nodes.iter().filter(|node| node.status.lifecycle == lifecycle).count();
        let labels = NodeLabels { lifecycle: lifecycle.as_str().to_owned() };
        plane.metrics.node_count.get_or_create(&labels).set(i64::try_from(count).unwrap_or(i64::MAX));
    }
}

/// Marks silent brokers down until the process drains.
pub async fn sweep_leases(plane: Arc<Plane>) {
    let mut timer = interval(plane.settings.sweep_interval);
    timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut drain = plane.drain_signal();
    loop {
        tokio::select! {
            _ = timer.tick() => {}
            _ = drain.wait_for(|draining| *draining) => return,
        }
        if let Err(RegistryError::Write(WriteError::Store(error))) = sweep(&plane, clock::since_boot()).await
        {
            plane.note_store_failure(&error);
        }
    }
}

/// Marks down every broker whose silence is over at `now` (since boot); answers how many.
pub async fn sweep(plane: &Arc<Plane>, now: Duration) -> Result<usize, RegistryError> {
    let nodes: Vec<Node> = list_nodes(&plane.ledger)?;
    let mut count = 0;
    for node in nodes {
        if !plane.leases().condemn(&node, now) {
            continue;
        }
        let incarnation = node.status.incarnation;
        let node_id = node.node_id.clone();
        let marked = plane.ledger.write(move |tx| registry::mark_down(tx, &node_id, incarnation)).await?;
        if marked {
            tracing::warn!(
                node = node.node_id,
                incarnation,
                "a broker was silent past its lease and is down"
            );
            plane.metrics.node_expiry.inc();
            plane.metrics.node_transitions.inc();
            plane.wake_placement();
            count += 1;
        }
    }
    Ok(count)
}

fn list_nodes(ledger: &Ledger) -> Result<Vec<Node>, StoreError> {
    ledger.list(&row::nodes())
}
