//! `.../namespaces/{ns}/caches` (control-plane-api 4.3).

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use felix_wire::control::{Action, Cache, CacheCreate, CachePatch, Namespace, Object, ObjectKind, Page};

use super::auth::{Caller, TenantCaller};
use super::error::ApiError;
use super::page::Params;
use super::request::Document;
use crate::catalog::{self, Creation};
use crate::plane::Plane;
use crate::row;

type CachePath = Path<(String, String, String)>;

pub async fn list(
    State(plane): State<Arc<Plane>>,
    TenantCaller(caller): TenantCaller,
    Path((tenant, namespace)): Path<(String, String)>,
    params: Params,
) -> Result<Json<Page<Cache>>, ApiError> {
    caller.require_any(Action::CacheManage, ObjectKind::Cache)?;
    if plane.ledger.get::<Namespace>(row::namespace(&tenant, &namespace))?.is_none() {
        return Err(ApiError::not_found("the namespace does not exist"));
    }
    let visible = |item: &Cache| may_manage(&caller, &tenant, &namespace, &item.cache).is_ok();
    Ok(Json(params.page()?.read(&plane.ledger, &row::caches_in(&tenant, &namespace), visible)?))
}

pub async fn create(
    State(plane): State<Arc<Plane>>,
    TenantCaller(caller): TenantCaller,
    Path((tenant, namespace)): Path<(String, String)>,
    Document(body): Document<CacheCreate>,
) -> Result<(StatusCode, Json<Cache>), ApiError> {
    may_manage(&caller, &tenant, &namespace, &body.cache)?;
    let creation =
        plane.ledger.write(move |tx| catalog::create_cache(tx, &tenant, &namespace, &body)).await?;
    match creation {
        Creation::Created(cache) => {
            plane.wake_placement();
            Ok((StatusCode::CREATED, Json(cache)))
        }
        Creation::Unchanged(cache) => Ok((StatusCode::OK, Json(cache))),
    }
}

pub async fn get(
    State(plane): State<Arc<Plane>>,
    TenantCaller(caller): TenantCaller,
    Path((tenant, namespace, name)): CachePath,
) -> Result<Json<Cache>, ApiError> {
    may_manage(&caller, &tenant, &namespace, &name)?;
    let found: Option<Cache> = plane.ledger.get(row::cache(&tenant, &namespace, &name))?;
    found.map(Json).ok_or_else(|| ApiError::not_found("the cache does not exist"))
}

pub async fn patch(
    State(plane): State<Arc<Plane>>,
    TenantCaller(caller): TenantCaller,
    Path((tenant, namespace, name)): CachePath,
    Document(body): Document<CachePatch>,
) -> Result<Json<Cache>, ApiError> {
    may_manage(&caller, &tenant, &namespace, &name)?;
    let patched =
        plane.ledger.write(move |tx| catalog::patch_cache(tx, &tenant, &namespace, &name, &body)).await?;
    Ok(Json(patched))
}

pub async fn delete(
    State(plane): State<Arc<Plane>>,
    TenantCaller(caller): TenantCaller,
    Path((tenant, namespace, name)): CachePath,
) -> Result<StatusCode, ApiError> {
    may_manage(&caller, &tenant, &namespace, &name)?;
    plane.ledger.write(move |tx| catalog::delete_cache(tx, &tenant, &namespace, &name)).await?;
    plane.wake_placement();
    Ok(StatusCode::NO_CONTENT)
}

fn may_manage(caller: &Caller, tenant: &str, namespace: &str, cache: &str) -> Result<(), ApiError> {
    caller.require(Action::CacheManage, Object::Cache { tenant, namespace, cache })
}
