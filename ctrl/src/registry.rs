//! The brokers: registering, draining, leaving (control-plane-api 6). Scope: decisions over rows, no state of its own.
//! Owns: node rows and their lifecycle. Invariants: each registration has the next incarnation and is live; `down` and
//! `left` end only by registering again; two serving nodes never share an address.
//! Not here: heartbeats and silence (`lease`), rights (`api`).

use std::collections::BTreeMap;
use std::net::SocketAddr;

use felix_wire::control::{
    Assignment, Capacity, Lifecycle, NameError, Node, NodeSpec, NodeStatus, RegisterNode, check_node_id,
};
use serde::Deserialize;

use crate::ledger::{Tx, WriteError};
use crate::limits::{NODE_ITEMS_MAX, TEXT_BYTES_MAX};
use crate::row;
use crate::store::StoreError;

/// Features every broker of this control plane has to know of; what is announced here is served here.
pub const FLEET_FEATURES: [&str; 3] = ["jump_hash_routing", "stream_incarnations", "cache_incarnations"];

/// Why the registry is as it was.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    #[error(transparent)]
    Name(#[from] NameError),
    #[error("{0}")]
    Invalid(&'static str),
    #[error("the node does not exist")]
    NotFound,
    #[error("{0}")]
    Conflict(&'static str),
    #[error(transparent)]
    Write(#[from] WriteError),
}

impl From<StoreError> for RegistryError {
    fn from(e: StoreError) -> RegistryError {
        RegistryError::Write(e.into())
    }
}

/// Body of `PATCH /v1/nodes/{id}`; an absent member stays as it is.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct NodePatch {
    pub region: Option<String>,
    pub labels: Option<BTreeMap<String, String>>,
    pub capacity: Option<Capacity>,
    /// Live or draining only.
    pub lifecycle: Option<Lifecycle>,
}

/// Registers a node, new or known: it is live from now on, with the next incarnation.
pub fn register(tx: &mut Tx<'_>, body: &RegisterNode, now_millis: u64) -> Result<Node, RegistryError> {
    check_node_id(&body.node_id)?;
    check_spec(&body.spec)?;
    check_texts(body.features.iter(), "a feature name is too long, or there are too many")?;
    for (_, other) in tx.list::<Node>(&row::nodes())? {
        let serving = matches!(other.status.lifecycle, Lifecycle::Live | Lifecycle::Draining);
        if serving && other.node_id != body.node_id && other.spec.advertise_addr == body.spec.advertise_addr {
            return Err(RegistryError::Conflict("another serving node has this advertise_addr"));
        }
    }
    let known = tx.get::<Node>(&row::node(&body.node_id))?;
    let node = Node {
        node_id: body.node_id.clone(),
        spec: body.spec.clone(),
        status: NodeStatus {
            lifecycle: Lifecycle::Live,
            last_heartbeat_at_millis: now_millis,
            registered_at_millis: now_millis,
            incarnation: known.map_or(0, |node| node.status.incarnation) + 1,
            features: body.features.clone(),
        },
    };
    tx.put(row::node(&node.node_id), &node);
    Ok(node)
}

/// Marks a serving node as draining.
pub fn drain(tx: &mut Tx<'_>, node_id: &str) -> Result<Node, RegistryError> {
    change(tx, node_id, |node| match node.status.lifecycle {
        Lifecycle::Live | Lifecycle::Draining => {
            node.status.lifecycle = Lifecycle::Draining;
            Ok(())
        }
        Lifecycle::Down | Lifecycle::Left => Err(RegistryError::Conflict("the node is not serving")),
    })
}

/// Marks a node as left, whatever it was.
pub fn deregister(tx: &mut Tx<'_>, node_id: &str) -> Result<Node, RegistryError> {
    change(tx, node_id, |node| {
        node.status.lifecycle = Lifecycle::Left;
        Ok(())
    })
}

/// Marks the registration as down if it still serves; true if it did.
pub fn mark_down(tx: &mut Tx<'_>, node_id: &str, incarnation: u64) -> Result<bool, RegistryError> {
    let Some(mut node) = tx.get::<Node>(&row::node(node_id))? else { return Ok(false) };
    let serving = matches!(node.status.lifecycle, Lifecycle::Live | Lifecycle::Draining);
    if !serving || node.status.incarnation != incarnation {
        return Ok(false);
    }
    node.status.lifecycle = Lifecycle::Down;
    tx.put(row::node(node_id), &node);
    Ok(true)
}

/// Changes what the request names and leaves the rest.
pub fn patch(tx: &mut Tx<'_>, node_id: &str, patch: &NodePatch) -> Result<Node, RegistryError> {
    change(tx, node_id, |node| {
        if let Some(region) = &patch.region {
            node.spec.region.clone_from(region);
        }
        if let Some(labels) = &patch.labels {
            node.spec.labels.clone_from(labels);
        }
        if let Some(capacity) = &patch.capacity {
            node.spec.capacity = capacity.clone();
        }
        check_spec(&node.spec)?;
        let Some(wanted) = patch.lifecycle else { return Ok(()) };
        if !matches!(wanted, Lifecycle::Live | Lifecycle::Draining) {
            return Err(RegistryError::Invalid("lifecycle can be set to live or draining only"));
        }
        if matches!(node.status.lifecycle, Lifecycle::Down | Lifecycle::Left) {
            return Err(RegistryError::Conflict("the node is not serving"));
        }
        node.status.lifecycle = wanted;
        Ok(())
    })
}

/// Removes a node that does not serve and that no assignment names.
pub fn delete(tx: &mut Tx<'_>, node_id: &str) -> Result<(), RegistryError> {
    let node: Node = tx.get(&row::node(node_id))?.ok_or(RegistryError::NotFound)?;
    if matches!(node.status.lifecycle, Lifecycle::Live | Lifecycle::Draining) {
        return Err(RegistryError::Conflict("the node is live or draining"));
    }
    let names_it = |a: &Assignment| a.leader == node_id || a.replicas.iter().any(|id| id == node_id);
    if tx.list::<Assignment>(&row::assignments())?.iter().any(|(_, a)| names_it(a)) {
        return Err(RegistryError::Conflict("the node is named by an assignment"));
    }
    tx.delete(row::node(node_id));
    Ok(())
}

fn change(
    tx: &mut Tx<'_>,
    node_id: &str,
    make: impl FnOnce(&mut Node) -> Result<(), RegistryError>,
) -> Result<Node, RegistryError> {
    let key = row::node(node_id);
    let found: Node = tx.get(&key)?.ok_or(RegistryError::NotFound)?;
    let mut node = found.clone();
    make(&mut node)?;
    if node != found {
        tx.put(key, &node);
    }
    Ok(node)
}

fn check_spec(spec: &NodeSpec) -> Result<(), RegistryError> {
    let addr: Option<SocketAddr> = spec.advertise_addr.parse().ok();
    if !addr.is_some_and(|addr| addr.port() != 0 && !addr.ip().is_unspecified()) {
        return Err(RegistryError::Invalid("advertise_addr must be ip:port with a reachable ip and a port"));
    }
    for addr in [&spec.client_addr, &spec.kafka_addr].into_iter().flatten() {
        let port =
            addr.rsplit_once(':').filter(|(host, _)| !host.is_empty()).map(|(_, port)| port.parse::<u16>());
        if !matches!(port, Some(Ok(1..))) || addr.len() > TEXT_BYTES_MAX {
            return Err(RegistryError::Invalid("client_addr and kafka_addr must be host:port"));
        }
    }
    if spec.region.is_empty() || spec.region.len() > TEXT_BYTES_MAX {
        return Err(RegistryError::Invalid("region must not be empty or longer than 512 bytes"));
    }
    if spec.zone.as_ref().is_some_and(|zone| zone.is_empty() || zone.len() > 253) {
        return Err(RegistryError::Invalid("zone must be 1 to 253 bytes"));
    }
    if spec.capacity.max_shards == Some(0) {
        return Err(RegistryError::Invalid("max_shards must be above 0; leave it out for no cap"));
    }
    check_texts(spec.labels.keys(), "a label is too long, or there are too many")?;
    check_texts(spec.labels.values(), "a label is too long, or there are too many")
}

fn check_texts<'a>(
    texts: impl ExactSizeIterator<Item = &'a String>,
    why: &'static str,
) -> Result<(), RegistryError> {
    if texts.len() > NODE_ITEMS_MAX {
        return Err(RegistryError::Invalid(why));
    }
    match texts.into_iter().all(|text| text.len() <= TEXT_BYTES_MAX) {
        true => Ok(()),
        false => Err(RegistryError::Invalid(why)),
    }
}

#[cfg(test)]
mod tests;
