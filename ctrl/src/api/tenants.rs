//! `/v1/tenants`: for operators of the whole cluster (control-plane-api 4.1).

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use felix_wire::control::{Action, Object, Page, Tenant, TenantCreate};

use super::auth::Caller;
use super::error::ApiError;
use super::page::Params;
use super::request::Document;
use crate::catalog;
use crate::plane::Plane;
use crate::row;
use crate::tokens::SigningKeys;

pub async fn list(
    State(plane): State<Arc<Plane>>,
    caller: Caller,
    params: Params,
) -> Result<Json<Page<Tenant>>, ApiError> {
    caller.require(Action::TenantManage, Object::Cluster)?;
    Ok(Json(params.page()?.read(&plane.ledger, &row::tenants(), |_| true)?))
}

pub async fn create(
    State(plane): State<Arc<Plane>>,
    caller: Caller,
    Document(body): Document<TenantCreate>,
) -> Result<(StatusCode, Json<Tenant>), ApiError> {
    caller.require(Action::TenantManage, Object::Cluster)?;
    let keys = SigningKeys::generate()?;
    let tenant = plane.ledger.write(move |tx| catalog::create_tenant(tx, &body, &keys)).await?;
    Ok((StatusCode::CREATED, Json(tenant)))
}

pub async fn delete(
    State(plane): State<Arc<Plane>>,
    caller: Caller,
    Path(tenant): Path<String>,
) -> Result<StatusCode, ApiError> {
    caller.require(Action::TenantManage, Object::Cluster)?;
    plane.ledger.write(move |tx| catalog::delete_tenant(tx, &tenant)).await?;
    Ok(StatusCode::NO_CONTENT)
}
