//! `.../namespaces/{ns}/resources`: many streams and caches in one write (control-plane-api 4.4).

use std::collections::HashSet;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use felix_wire::control::{Action, Cache, CacheCreate, Object, Stream, StreamCreate};
use serde::{Deserialize, Serialize};

use super::auth::TenantCaller;
use super::error::ApiError;
use super::request::Document;
use crate::catalog::{self, CatalogError, Creation};
use crate::ledger::Tx;
use crate::limits::BATCH_ITEMS_MAX;
use crate::plane::Plane;

#[derive(Deserialize)]
pub struct Resources {
    #[serde(default)]
    streams: Vec<StreamCreate>,
    #[serde(default)]
    caches: Vec<CacheCreate>,
}

#[derive(Serialize)]
pub struct Outcomes {
    streams: Vec<Outcome<Stream>>,
    caches: Vec<Outcome<Cache>>,
}

#[derive(Serialize)]
struct Outcome<T> {
    status: &'static str,
    #[serde(flatten)]
    resource: T,
}

pub async fn create(
    State(plane): State<Arc<Plane>>,
    TenantCaller(caller): TenantCaller,
    Path((tenant, namespace)): Path<(String, String)>,
    Document(body): Document<Resources>,
) -> Result<(StatusCode, Json<Outcomes>), ApiError> {
    check(&body)?;
    let (t, ns) = (tenant.as_str(), namespace.as_str());
    for item in &body.streams {
        let object = Object::Stream { tenant: t, namespace: ns, stream: &item.stream };
        caller.require(Action::StreamManage, object)?;
    }
    for item in &body.caches {
        let object = Object::Cache { tenant: t, namespace: ns, cache: &item.cache };
        caller.require(Action::CacheManage, object)?;
    }
    let outcomes = plane.ledger.write(move |tx| create_all(tx, &tenant, &namespace, &body)).await?;
    let created = outcomes.streams.iter().any(|o| o.status == "created")
        || outcomes.caches.iter().any(|o| o.status == "created");
    if created {
        plane.wake_placement();
    }
    Ok((if created { StatusCode::CREATED } else { StatusCode::OK }, Json(outcomes)))
}

fn check(body: &Resources) -> Result<(), ApiError> {
    let count = body.streams.len() + body.caches.len();
    if !(1..=BATCH_ITEMS_MAX).contains(&count) {
        return Err(ApiError::invalid("1 to 256 resources can be created at once"));
    }
    let streams: HashSet<_> = body.streams.iter().map(|s| &s.stream).collect();
    let caches: HashSet<_> = body.caches.iter().map(|c| &c.cache).collect();
    if streams.len() + caches.len() != count {
        return Err(ApiError::invalid("a name is repeated"));
    }
    Ok(())
}

fn create_all(
    tx: &mut Tx<'_>,
    tenant: &str,
    namespace: &str,
    body: &Resources,
) -> Result<Outcomes, CatalogError> {
    let streams = body.streams.iter().map(|s| catalog::create_stream(tx, tenant, namespace, s).map(outcome));
    let streams = streams.collect::<Result<_, _>>()?;
    let caches = body.caches.iter().map(|c| catalog::create_cache(tx, tenant, namespace, c).map(outcome));
    Ok(Outcomes { streams, caches: caches.collect::<Result<_, _>>()? })
}

fn outcome<T>(creation: Creation<T>) -> Outcome<T> {
    match creation {
        Creation::Created(resource) => Outcome { status: "created", resource },
        Creation::Unchanged(resource) => Outcome { status: "unchanged", resource },
    }
}
