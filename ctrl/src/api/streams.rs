//! `.../namespaces/{ns}/streams` (control-plane-api 4.2).

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use felix_wire::control::{Action, Namespace, Object, ObjectKind, Page, Stream, StreamCreate, StreamPatch};

use super::auth::{Caller, TenantCaller};
use super::error::ApiError;
use super::page::Params;
use super::request::Document;
use crate::catalog::{self, Creation};
use crate::plane::Plane;
use crate::row;

type StreamPath = Path<(String, String, String)>;

pub async fn list(
    State(plane): State<Arc<Plane>>,
    TenantCaller(caller): TenantCaller,
    Path((tenant, namespace)): Path<(String, String)>,
    params: Params,
) -> Result<Json<Page<Stream>>, ApiError> {
    caller.require_any(Action::StreamManage, ObjectKind::Stream)?;
    if plane.ledger.get::<Namespace>(row::namespace(&tenant, &namespace))?.is_none() {
        return Err(ApiError::not_found("the namespace does not exist"));
    }
    let visible = |item: &Stream| may_manage(&caller, &tenant, &namespace, &item.stream).is_ok();
    Ok(Json(params.page()?.read(&plane.ledger, &row::streams_in(&tenant, &namespace), visible)?))
}

pub async fn create(
    State(plane): State<Arc<Plane>>,
    TenantCaller(caller): TenantCaller,
    Path((tenant, namespace)): Path<(String, String)>,
    Document(body): Document<StreamCreate>,
) -> Result<(StatusCode, Json<Stream>), ApiError> {
    may_manage(&caller, &tenant, &namespace, &body.stream)?;
    let creation =
        plane.ledger.write(move |tx| catalog::create_stream(tx, &tenant, &namespace, &body)).await?;
    match creation {
        Creation::Created(stream) => {
            plane.wake_placement();
            Ok((StatusCode::CREATED, Json(stream)))
        }
        Creation::Unchanged(stream) => Ok((StatusCode::OK, Json(stream))),
    }
}

pub async fn get(
    State(plane): State<Arc<Plane>>,
    TenantCaller(caller): TenantCaller,
    Path((tenant, namespace, name)): StreamPath,
) -> Result<Json<Stream>, ApiError> {
    may_manage(&caller, &tenant, &namespace, &name)?;
    let found: Option<Stream> = plane.ledger.get(row::stream(&tenant, &namespace, &name))?;
    found.map(Json).ok_or_else(|| ApiError::not_found("the stream does not exist"))
}

pub async fn patch(
    State(plane): State<Arc<Plane>>,
    TenantCaller(caller): TenantCaller,
    Path((tenant, namespace, name)): StreamPath,
    Document(body): Document<StreamPatch>,
) -> Result<Json<Stream>, ApiError> {
    may_manage(&caller, &tenant, &namespace, &name)?;
    let patched =
        plane.ledger.write(move |tx| catalog::patch_stream(tx, &tenant, &namespace, &name, &body)).await?;
    Ok(Json(patched))
}

pub async fn delete(
    State(plane): State<Arc<Plane>>,
    TenantCaller(caller): TenantCaller,
    Path((tenant, namespace, name)): StreamPath,
) -> Result<StatusCode, ApiError> {
    may_manage(&caller, &tenant, &namespace, &name)?;
    plane.ledger.write(move |tx| catalog::delete_stream(tx, &tenant, &namespace, &name)).await?;
    plane.wake_placement();
    Ok(StatusCode::NO_CONTENT)
}

fn may_manage(caller: &Caller, tenant: &str, namespace: &str, stream: &str) -> Result<(), ApiError> {
    caller.require(Action::StreamManage, Object::Stream { tenant, namespace, stream })
}
