//! The HTTP surface: one file per resource under `/v1`, and the bootstrap and operations listeners. Scope: per process.
//! Owns: the order of checks. Invariants: the credential is checked before anything is looked up, the right before
//! existence; every answer that is not a success carries an `ErrorBody` and a request id.
//! Not here: decisions (`catalog`, `registry`, `assignment`), sockets (`service`).
//!
//! Not served yet, and answered 404: token exchange, refresh and delegation, signing-key rotation, RBAC rules, replica
//! reports, shard moves, fleet features, regions, the OpenAPI document.

mod assignments;
mod auth;
mod bootstrap;
mod caches;
mod error;
mod feeds;
mod jwks;
mod namespaces;
mod nodes;
mod page;
mod request;
mod resources;
mod streams;
mod system;
mod tenants;

use std::sync::Arc;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::middleware::from_fn_with_state;
use axum::routing::{any, delete, get, post};

use crate::limits::BODY_BYTES_MAX;
use crate::plane::Plane;

/// The public listener: everything under `/v1`.
pub fn public(plane: Arc<Plane>) -> Router {
    let namespace = "/v1/tenants/{tenant_id}/namespaces/{namespace}";
    let streams = format!("{namespace}/streams");
    let caches = format!("{namespace}/caches");
    let router = Router::new()
        .route("/v1/tenants", get(tenants::list).post(tenants::create))
        .route("/v1/tenants/{tenant_id}", delete(tenants::delete))
        .route("/v1/tenants/{tenant_id}/.well-known/jwks.json", get(jwks::key_set))
        .route("/v1/tenants/{tenant_id}/namespaces", get(namespaces::list).post(namespaces::create))
        .route(namespace, delete(namespaces::delete))
        .route(&format!("{namespace}/resources"), post(resources::create))
        .route(&streams, get(streams::list).post(streams::create))
        .route(
            &format!("{streams}/{{stream}}"),
            get(streams::get).patch(streams::patch).delete(streams::delete),
        )
        .route(&caches, get(caches::list).post(caches::create))
        .route(&format!("{caches}/{{cache}}"), get(caches::get).patch(caches::patch).delete(caches::delete))
        .route("/v1/nodes", get(nodes::list).post(nodes::register))
        .route("/v1/nodes/{node_id}", get(nodes::get).patch(nodes::patch).delete(nodes::delete))
        .route("/v1/nodes/{node_id}/heartbeat", post(nodes::heartbeat))
        .route("/v1/nodes/{node_id}/drain", post(nodes::drain))
        .route("/v1/nodes/{node_id}/deregister", post(nodes::deregister))
        .route("/v1/shard-assignments", get(assignments::list))
        .route("/v1/shard-assignments/snapshot", get(assignments::snapshot))
        .route("/v1/shard-assignments/changes", get(assignments::changes))
        .route("/v1/system/info", get(system::info))
        .route("/v1/system/health", get(system::health))
        .route("/v1/system/live", get(system::live))
        .route("/v1/system/ready", get(system::ready))
        .route("/internal/bootstrap/{*path}", any(bootstrap::not_here))
        .merge(feeds::routes());
    finished(router, plane)
}

/// The bootstrap listener. Answers `not_enabled` to everything when bootstrap is off.
pub fn bootstrap(plane: Arc<Plane>) -> Router {
    let tenant = "/internal/bootstrap/tenants/{tenant_id}";
    let router = Router::new()
        .route(&format!("{tenant}/initialize"), post(bootstrap::initialize))
        .route(&format!("{tenant}/dev-token"), post(bootstrap::dev_token));
    finished(router, plane)
}

/// The operations listener: metrics and probes, no credentials.
pub fn operations(plane: Arc<Plane>) -> Router {
    let router = Router::new()
        .route("/metrics", get(system::metrics))
        .route("/live", get(system::live))
        .route("/ready", get(system::ready));
    finished(router, plane)
}

fn finished(router: Router<Arc<Plane>>, plane: Arc<Plane>) -> Router {
    router
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .layer(from_fn_with_state(Arc::clone(&plane), request::finish))
        .with_state(plane)
}
