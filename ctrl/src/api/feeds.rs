//! `/v1/{tenants,namespaces,streams,caches}/{snapshot,changes}`: what brokers follow (control-plane-api 5).
//! `changes` also takes `wait_ms`, as the assignment feed does.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::routing::get;
use axum::{Json, Router};
use felix_wire::control::{
    Action, Cache, CacheChange, Changes, Namespace, NamespaceChange, Object, Snapshot, Stream, StreamChange,
    Tenant, TenantChange,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::auth::Caller;
use super::error::ApiError;
use super::page::Params;
use crate::feed::{self, Feed};
use crate::plane::Plane;

/// Both routes of each catalog feed.
pub fn routes() -> Router<Arc<Plane>> {
    Router::new()
        .merge(feed_routes::<Tenant, TenantChange>(Feed::Tenants))
        .merge(feed_routes::<Namespace, NamespaceChange>(Feed::Namespaces))
        .merge(feed_routes::<Stream, StreamChange>(Feed::Streams))
        .merge(feed_routes::<Cache, CacheChange>(Feed::Caches))
}

fn feed_routes<T, C>(feed: Feed) -> Router<Arc<Plane>>
where
    T: Serialize + DeserializeOwned + Send + 'static,
    C: Serialize + DeserializeOwned + Send + 'static,
{
    let snapshot = move |State(plane): State<Arc<Plane>>, caller: Caller| async move {
        caller.require(Action::NodeView, Object::Cluster)?;
        snapshot_of::<T>(plane, feed).await.map(Json)
    };
    let changes = move |State(plane): State<Arc<Plane>>, caller: Caller, params: Params| async move {
        caller.require(Action::NodeView, Object::Cluster)?;
        changes_of::<C>(plane, feed, &params).await.map(Json)
    };
    Router::new()
        .route(&format!("/v1/{}/snapshot", feed.name()), get(snapshot))
        .route(&format!("/v1/{}/changes", feed.name()), get(changes))
}

/// Reads the whole feed on a blocking thread: it may be long.
pub async fn snapshot_of<T: DeserializeOwned + Send + 'static>(
    plane: Arc<Plane>,
    feed: Feed,
) -> Result<Snapshot<T>, ApiError> {
    let read = tokio::task::spawn_blocking(move || feed::snapshot(&plane.ledger, feed)).await;
    match read {
        Ok(snapshot) => Ok(snapshot?),
        Err(e) => std::panic::resume_unwind(e.into_panic()),
    }
}

/// `since`, and `wait_ms`: with it an empty answer at an unchanged sequence waits for the next change.
pub async fn changes_of<C: DeserializeOwned>(
    plane: Arc<Plane>,
    feed: Feed,
    params: &Params,
) -> Result<Changes<C>, ApiError> {
    let since = params.number("since")?.ok_or_else(|| ApiError::invalid("since is required"))?;
    let wait = Duration::from_millis(params.number("wait_ms")?.unwrap_or(0));
    let limit = plane.settings.changes_limit;
    let changes: Changes<C> = feed::changes(&plane.ledger, feed, since, limit)?;
    if wait.is_zero() || !changes.items.is_empty() || changes.next_seq != since {
        return Ok(changes);
    }
    feed::wait_past(&plane.ledger, feed, since, wait, plane.drain_signal()).await;
    Ok(feed::changes(&plane.ledger, feed, since, limit)?)
}
