//! `/v1/nodes`: brokers and their leases (control-plane-api 6).

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use felix_wire::control::{
    Action, Heartbeat, HeartbeatAnswer, Lifecycle, Node, NodePlacement, NodeView, Object, Page,
    RegisterAnswer, RegisterNode,
};

use super::auth::Caller;
use super::error::ApiError;
use super::page::Params;
use super::request::Document;
use crate::clock;
use crate::lease::{Heard, Leases};
use crate::plane::Plane;
use crate::registry::{self, FLEET_FEATURES, NodePatch, RegistryError};
use crate::row;

pub async fn list(
    State(plane): State<Arc<Plane>>,
    caller: Caller,
    params: Params,
) -> Result<Json<Page<NodeView>>, ApiError> {
    caller.require(Action::NodeView, Object::Cluster)?;
    let lifecycle = params.get("lifecycle");
    let region = params.get("region");
    let labels: Option<Vec<(&str, &str)>> = params.all("label").map(|label| label.split_once('=')).collect();
    let labels = labels.ok_or_else(|| ApiError::invalid("label must be key=value"))?;
    let wanted = |node: &Node| {
        lifecycle.is_none_or(|wanted| node.status.lifecycle.as_str() == wanted)
            && region.is_none_or(|wanted| node.spec.region == wanted)
            && labels.iter().all(|(key, value)| node.spec.labels.get(*key).is_some_and(|v| v == value))
    };
    let page = params.page()?.read(&plane.ledger, &row::nodes(), wanted)?;
    let leases = plane.leases();
    let items = page.items.into_iter().map(|node| view(node, &leases)).collect();
    Ok(Json(Page { items, next_cursor: page.next_cursor }))
}

pub async fn get(
    State(plane): State<Arc<Plane>>,
    caller: Caller,
    Path(node_id): Path<String>,
) -> Result<Json<NodeView>, ApiError> {
    caller.require(Action::NodeView, Object::Cluster)?;
    Ok(Json(view(find(&plane, &node_id)?, &plane.leases())))
}

pub async fn register(
    State(plane): State<Arc<Plane>>,
    caller: Caller,
    Document(body): Document<RegisterNode>,
) -> Result<Json<RegisterAnswer>, ApiError> {
    caller.require_node(&body.node_id)?;
    let wall = clock::wall_millis();
    let sharing = Arc::clone(&plane);
    let written = plane.ledger.write(move |tx| {
        let node = registry::register(tx, &body, wall)?;
        // Before the row is there: a sweep must never see the new registration without its lease.
        sharing.leases().registered(&node.node_id, node.status.incarnation, clock::since_boot(), wall);
        Ok::<_, RegistryError>(node)
    });
    let node = written.await?;
    plane.metrics.node_registrations.inc();
    plane.wake_placement();
    tracing::info!(node = node.node_id, incarnation = node.status.incarnation, "a broker registered");
    Ok(Json(RegisterAnswer {
        node,
        heartbeat_interval_ms: millis(plane.settings.heartbeat_interval),
        expiry_timeout_ms: millis(plane.settings.lease.expiry),
        fleet_features: fleet_features(),
    }))
}

pub async fn heartbeat(
    State(plane): State<Arc<Plane>>,
    caller: Caller,
    Path(node_id): Path<String>,
    Document(body): Document<Heartbeat>,
) -> Result<Json<HeartbeatAnswer>, ApiError> {
    caller.require_node(&node_id)?;
    let node = find(&plane, &node_id)?;
    if body.incarnation != node.status.incarnation {
        return Err(ApiError::conflict("the heartbeat is of another registration of this node"));
    }
    let lifecycle = match node.status.lifecycle {
        serving @ (Lifecycle::Live | Lifecycle::Draining) => {
            let now = clock::since_boot();
            match plane.leases().heard(&node_id, body.incarnation, now, clock::wall_millis()) {
                Heard::Renewed => serving,
                Heard::Condemned => Lifecycle::Down,
            }
        }
        ended => ended,
    };
    Ok(Json(HeartbeatAnswer {
        node_id,
        lifecycle,
        heartbeat_interval_ms: millis(plane.settings.heartbeat_interval),
        expiry_timeout_ms: millis(plane.settings.lease.expiry),
        fleet_features: fleet_features(),
    }))
}

pub async fn drain(
    State(plane): State<Arc<Plane>>,
    caller: Caller,
    Path(node_id): Path<String>,
) -> Result<Json<Node>, ApiError> {
    caller.require_node(&node_id)?;
    let node = plane.ledger.write(move |tx| registry::drain(tx, &node_id)).await?;
    Ok(changed(&plane, node))
}

pub async fn deregister(
    State(plane): State<Arc<Plane>>,
    caller: Caller,
    Path(node_id): Path<String>,
) -> Result<Json<Node>, ApiError> {
    caller.require_node(&node_id)?;
    let node = plane.ledger.write(move |tx| registry::deregister(tx, &node_id)).await?;
    Ok(changed(&plane, node))
}

pub async fn patch(
    State(plane): State<Arc<Plane>>,
    caller: Caller,
    Path(node_id): Path<String>,
    Document(body): Document<NodePatch>,
) -> Result<Json<Node>, ApiError> {
    caller.require_node(&node_id)?;
    let node = plane.ledger.write(move |tx| registry::patch(tx, &node_id, &body)).await?;
    Ok(changed(&plane, node))
}

pub async fn delete(
    State(plane): State<Arc<Plane>>,
    caller: Caller,
    Path(node_id): Path<String>,
) -> Result<StatusCode, ApiError> {
    caller.require(Action::NodeManage, Object::Cluster)?;
    let id = node_id.clone();
    plane.ledger.write(move |tx| registry::delete(tx, &id)).await?;
    plane.leases().forget(&node_id);
    Ok(StatusCode::NO_CONTENT)
}

fn find(plane: &Plane, node_id: &str) -> Result<Node, ApiError> {
    let found = plane.ledger.get(row::node(node_id))?;
    found.ok_or_else(|| ApiError::not_found("the node does not exist"))
}

fn changed(plane: &Plane, node: Node) -> Json<Node> {
    plane.metrics.node_transitions.inc();
    plane.wake_placement();
    Json(heard(node, &plane.leases()))
}

/// The node with the last heartbeat this process heard: rows are not written for heartbeats.
fn heard(mut node: Node, leases: &Leases) -> Node {
    if let Some(wall_millis) = leases.last_wall_millis(&node) {
        node.status.last_heartbeat_at_millis = wall_millis;
    }
    node
}

fn view(node: Node, leases: &Leases) -> NodeView {
    let now = clock::since_boot();
    let late = leases.is_late(&node, now);
    let node = heard(node, leases);
    let lifecycle = node.status.lifecycle;
    let mut reasons = Vec::new();
    if lifecycle != Lifecycle::Live {
        reasons.push(lifecycle.as_str().to_owned());
    }
    if late {
        reasons.push("heartbeat_late".to_owned());
    }
    let serving = matches!(lifecycle, Lifecycle::Live | Lifecycle::Draining);
    let heartbeat_age_ms = clock::wall_millis().saturating_sub(node.status.last_heartbeat_at_millis);
    let placement =
        NodePlacement { eligible: reasons.is_empty(), routable: serving && !late, reasons, heartbeat_age_ms };
    NodeView { node, placement }
}

fn fleet_features() -> Vec<String> {
    FLEET_FEATURES.map(str::to_owned).to_vec()
}

fn millis(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
