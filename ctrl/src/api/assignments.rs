//! `/v1/shard-assignments`: page, snapshot, long-polled changes (control-plane-api 7).
//! Snapshot and changes are JSON, or FlatBuffers when `Accept` names `application/x-flatbuffers`.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use felix_wire::control::binary::{self, MEDIA_TYPE};
use felix_wire::control::{Action, Assignment, AssignmentChange, Object, Page};

use super::auth::Caller;
use super::error::ApiError;
use super::feeds::{changes_of, snapshot_of};
use super::page::Params;
use crate::feed::Feed;
use crate::plane::Plane;
use crate::row;

pub async fn list(
    State(plane): State<Arc<Plane>>,
    caller: Caller,
    params: Params,
) -> Result<Json<Page<Assignment>>, ApiError> {
    caller.require(Action::NodeView, Object::Cluster)?;
    let leader = params.get("leader");
    let wanted = |item: &Assignment| leader.is_none_or(|leader| item.leader == leader);
    Ok(Json(params.page()?.read(&plane.ledger, &row::assignments(), wanted)?))
}

pub async fn snapshot(
    State(plane): State<Arc<Plane>>,
    caller: Caller,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    caller.require(Action::NodeView, Object::Cluster)?;
    let snapshot = snapshot_of::<Assignment>(plane, Feed::Assignments).await?;
    Ok(match wants_binary(&headers) {
        true => binary_response(binary::encode_snapshot(&snapshot)),
        false => Json(snapshot).into_response(),
    })
}

pub async fn changes(
    State(plane): State<Arc<Plane>>,
    caller: Caller,
    headers: HeaderMap,
    params: Params,
) -> Result<Response, ApiError> {
    caller.require(Action::NodeView, Object::Cluster)?;
    let changes = changes_of::<AssignmentChange>(plane, Feed::Assignments, &params).await?;
    Ok(match wants_binary(&headers) {
        true => binary_response(binary::encode_changes(&changes)),
        false => Json(changes).into_response(),
    })
}

fn wants_binary(headers: &HeaderMap) -> bool {
    let named = |value: &str| {
        value.split(',').any(|part| part.split(';').next().is_some_and(|media| media.trim() == MEDIA_TYPE))
    };
    headers.get_all(ACCEPT).iter().any(|value| value.to_str().is_ok_and(named))
}

fn binary_response(bytes: Vec<u8>) -> Response {
    ([(CONTENT_TYPE, MEDIA_TYPE)], bytes).into_response()
}
