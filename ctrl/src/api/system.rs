//! Probes, metrics and what this deployment is (control-plane-api 11). No credential.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use felix_wire::control::{SystemFeatures, SystemHealth, SystemInfo};

use super::error::ApiError;
use crate::plane::Plane;

pub async fn info(State(plane): State<Arc<Plane>>) -> Json<SystemInfo> {
    Json(SystemInfo {
        region_id: plane.settings.region_id.clone(),
        api_version: "v1".to_owned(),
        features: SystemFeatures {
            durable_storage: plane.settings.durable_storage,
            ..SystemFeatures::default()
        },
    })
}

pub async fn health(State(plane): State<Arc<Plane>>) -> Result<Json<SystemHealth>, ApiError> {
    match plane.store_works() {
        true => Ok(ok()),
        false => Err(ApiError::internal()),
    }
}

/// The process runs: nothing else is looked at.
pub async fn live() -> Json<SystemHealth> {
    ok()
}

pub async fn ready(State(plane): State<Arc<Plane>>) -> Result<Json<SystemHealth>, ApiError> {
    let ready = plane.is_ready();
    plane.metrics.ready_state.set(i64::from(ready));
    match ready {
        true => Ok(ok()),
        false if plane.is_draining() => Err(ApiError::not_ready("draining")),
        false => Err(ApiError::not_ready("the store does not work")),
    }
}

pub async fn metrics(State(plane): State<Arc<Plane>>) -> impl IntoResponse {
    plane.metrics.ready_state.set(i64::from(plane.is_ready()));
    let media = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(CONTENT_TYPE, media)], plane.metrics.render())
}

fn ok() -> Json<SystemHealth> {
    Json(SystemHealth { status: "ok".to_owned() })
}
