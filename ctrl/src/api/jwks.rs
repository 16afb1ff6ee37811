//! `/v1/tenants/{t}/.well-known/jwks.json`: the keys brokers verify tokens with (control-plane-api 2.2). No credential.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use felix_wire::control::Jwks;

use super::error::ApiError;
use crate::plane::Plane;
use crate::row;
use crate::tokens::SigningKeys;

pub async fn key_set(
    State(plane): State<Arc<Plane>>,
    Path(tenant): Path<String>,
) -> Result<Json<Jwks>, ApiError> {
    let keys: Option<SigningKeys> = plane.ledger.get(row::signing_keys(&tenant))?;
    keys.map(|keys| Json(keys.jwks())).ok_or_else(|| ApiError::not_found("the tenant does not exist"))
}
