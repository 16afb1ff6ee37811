//! `/v1/tenants/{t}/namespaces` (control-plane-api 4.1).

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use felix_wire::control::{Action, Namespace, NamespaceCreate, Object, ObjectKind, Page};

use super::auth::TenantCaller;
use super::error::ApiError;
use super::page::Params;
use super::request::Document;
use crate::catalog;
use crate::plane::Plane;
use crate::row;

pub async fn list(
    State(plane): State<Arc<Plane>>,
    TenantCaller(caller): TenantCaller,
    Path(tenant): Path<String>,
    params: Params,
) -> Result<Json<Page<Namespace>>, ApiError> {
    caller.require_any(Action::NsManage, ObjectKind::Namespace)?;
    let visible = |item: &Namespace| {
        let object = Object::Namespace { tenant: &tenant, namespace: &item.namespace };
        caller.allows(Action::NsManage, object)
    };
    Ok(Json(params.page()?.read(&plane.ledger, &row::namespaces_of(&tenant), visible)?))
}

pub async fn create(
    State(plane): State<Arc<Plane>>,
    TenantCaller(caller): TenantCaller,
    Path(tenant): Path<String>,
    Document(body): Document<NamespaceCreate>,
) -> Result<(StatusCode, Json<Namespace>), ApiError> {
    caller.require(Action::NsManage, Object::Namespace { tenant: &tenant, namespace: &body.namespace })?;
    let namespace = plane.ledger.write(move |tx| catalog::create_namespace(tx, &tenant, &body)).await?;
    Ok((StatusCode::CREATED, Json(namespace)))
}

pub async fn delete(
    State(plane): State<Arc<Plane>>,
    TenantCaller(caller): TenantCaller,
    Path((tenant, namespace)): Path<(String, String)>,
) -> Result<StatusCode, ApiError> {
    caller.require(Action::NsManage, Object::Namespace { tenant: &tenant, namespace: &namespace })?;
    plane.ledger.write(move |tx| catalog::delete_namespace(tx, &tenant, &namespace)).await?;
    Ok(StatusCode::NO_CONTENT)
}
