//! Creating, changing and deleting one stream.

use felix_wire::control::{
    CatalogOp, KeyRouting, NameKind, ResourceKind, Retention, Stream, StreamChange, StreamCreate, StreamKey,
    StreamPatch, check_name,
};

use super::{
    CatalogError, Creation, check_shape, check_text, next_incarnation, release_shards, require_namespace,
};
use crate::feed::Feed;
use crate::ledger::Tx;
use crate::row;

/// Creates the stream, or finds it there with the same settings. Without a `routing` in the request a new stream hashes
/// by `jump_hash`, and an existing one is the same whatever its routing is.
pub fn create_stream(
    tx: &mut Tx<'_>,
    tenant: &str,
    namespace: &str,
    body: &StreamCreate,
) -> Result<Creation<Stream>, CatalogError> {
    check_name(NameKind::Stream, &body.stream)?;
    check_shape(body.shards, body.replication_factor)?;
    check_retention(body.retention)?;
    match body.region.as_deref() {
        Some("") => return Err(CatalogError::Invalid("region must not be empty")),
        region => check_text(region.unwrap_or_default())?,
    }
    require_namespace(tx, tenant, namespace)?;
    let key = row::stream(tenant, namespace, &body.stream);
    if let Some(found) = tx.get::<Stream>(&key)? {
        let routing = body.routing.map_or(found.routing, stored_routing);
        let wanted = stream_of(tenant, namespace, body, routing, found.incarnation);
        return match wanted == found {
            true => Ok(Creation::Unchanged(found)),
            false => Err(CatalogError::Differs("the stream")),
        };
    }
    let routing = stored_routing(body.routing.unwrap_or(KeyRouting::JumpHash));
    let stream = stream_of(tenant, namespace, body, routing, next_incarnation(tx)?);
    tx.put(key, &stream);
    announce(tx, CatalogOp::Created, &stream)?;
    Ok(Creation::Created(stream))
}

/// Changes what the request names and leaves the rest.
pub fn patch_stream(
    tx: &mut Tx<'_>,
    tenant: &str,
    namespace: &str,
    name: &str,
    patch: &StreamPatch,
) -> Result<Stream, CatalogError> {
    if let Some(retention) = patch.retention {
        check_retention(retention)?;
    }
    let key = row::stream(tenant, namespace, name);
    let found: Stream = tx.get(&key)?.ok_or(CatalogError::NotFound("the stream"))?;
    let patched = Stream {
        retention: patch.retention.unwrap_or(found.retention),
        consistency: patch.consistency.unwrap_or(found.consistency),
        delivery: patch.delivery.unwrap_or(found.delivery),
        durable: patch.durable.unwrap_or(found.durable),
        ..found.clone()
    };
    if patched != found {
        tx.put(key, &patched);
        announce(tx, CatalogOp::Updated, &patched)?;
    }
    Ok(patched)
}

/// Deletes the stream and its assignments.
pub fn delete_stream(tx: &mut Tx<'_>, tenant: &str, namespace: &str, name: &str) -> Result<(), CatalogError> {
    let key = row::stream(tenant, namespace, name);
    let found: Stream = tx.get(&key)?.ok_or(CatalogError::NotFound("the stream"))?;
    tx.delete(key);
    release_shards(tx, tenant, namespace, ResourceKind::Stream, name)?;
    announce(tx, CatalogOp::Deleted, &found)
}

fn announce(tx: &mut Tx<'_>, op: CatalogOp, stream: &Stream) -> Result<(), CatalogError> {
    tx.append(Feed::Streams, |seq| StreamChange {
        seq,
        op,
        key: StreamKey {
            tenant_id: stream.tenant_id.clone(),
            namespace: stream.namespace.clone(),
            stream: stream.stream.clone(),
        },
        stream: (op != CatalogOp::Deleted).then(|| stream.clone()),
        incarnation: stream.incarnation,
    })?;
    Ok(())
}

fn stream_of(
    tenant: &str,
    namespace: &str,
    body: &StreamCreate,
    routing: Option<KeyRouting>,
    incarnation: u64,
) -> Stream {
    Stream {
        tenant_id: tenant.to_owned(),
        namespace: namespace.to_owned(),
        stream: body.stream.clone(),
        kind: body.kind,
        shards: body.shards,
        replication_factor: body.replication_factor,
        retention: body.retention,
        consistency: body.consistency,
        delivery: body.delivery,
        durable: body.durable,
        region: body.region.clone(),
        routing,
        incarnation,
    }
}

/// Modulo is stored as nothing, as answers leave it out.
fn stored_routing(routing: KeyRouting) -> Option<KeyRouting> {
    (routing != KeyRouting::Modulo).then_some(routing)
}

fn check_retention(retention: Retention) -> Result<(), CatalogError> {
    match retention.max_age_seconds == Some(0) || retention.max_size_bytes == Some(0) {
        true => Err(CatalogError::Invalid("a retention bound must be above 0; leave it out for the default")),
        false => Ok(()),
    }
}
