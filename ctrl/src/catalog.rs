//! Tenants, namespaces, streams and caches: what may be created, changed and deleted (control-plane-api 4).
//! Scope: decisions over rows, no state of its own. Owns: validation, incarnations, and what a deletion takes along.
//! Invariants: each creation of a stream or cache gets an incarnation above all earlier ones; a deletion removes every
//! row of the resource and tells every feed of it, in one batch.
//! Not here: rights (`api`), where shards go (`placement`).

mod cache;
mod stream;

pub use cache::{create_cache, delete_cache, patch_cache};
pub use stream::{create_stream, delete_stream, patch_stream};

use felix_wire::control::{
    AssignmentChange, AssignmentOp, CatalogOp, NameError, NameKind, Namespace, NamespaceChange,
    NamespaceCreate, NamespaceKey, ResourceKind, Stream, Tenant, TenantChange, TenantCreate, check_name,
};

use crate::feed::Feed;
use crate::ledger::{Counter, Tx, WriteError};
use crate::limits::{REPLICATION_MAX, SHARDS_MAX, TEXT_BYTES_MAX};
use crate::row;
use crate::store::StoreError;
use crate::tokens::SigningKeys;

/// Tenant ids whose `/v1/tenants/{t}` would be the route of a feed.
const RESERVED_TENANTS: [&str; 2] = ["snapshot", "changes"];

/// Why the catalog is as it was.
#[derive(Debug, thiserror::Error)]
pub enum CatalogError {
    #[error(transparent)]
    Name(#[from] NameError),
    #[error("{0}")]
    Invalid(&'static str),
    #[error("{0} does not exist")]
    NotFound(&'static str),
    #[error("{0} exists already")]
    Exists(&'static str),
    #[error("{0} exists with other settings")]
    Differs(&'static str),
    #[error(transparent)]
    Write(#[from] WriteError),
}

impl From<StoreError> for CatalogError {
    fn from(e: StoreError) -> CatalogError {
        CatalogError::Write(e.into())
    }
}

/// Outcome of a creation that may be repeated (control-plane-api 1.4).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Creation<T> {
    Created(T),
    /// It was there with the same settings.
    Unchanged(T),
}

/// Creates a tenant that is not there, with `keys` to sign its tokens.
pub fn create_tenant(
    tx: &mut Tx<'_>,
    body: &TenantCreate,
    keys: &SigningKeys,
) -> Result<Tenant, CatalogError> {
    check_name(NameKind::Tenant, &body.tenant_id)?;
    if RESERVED_TENANTS.contains(&body.tenant_id.as_str()) {
        return Err(CatalogError::Invalid("this tenant id is the name of a route"));
    }
    check_text(&body.display_name)?;
    if tx.get::<Tenant>(&row::tenant(&body.tenant_id))?.is_some() {
        return Err(CatalogError::Exists("the tenant"));
    }
    put_tenant(tx, body, keys)?;
    Ok(body.clone())
}

/// Writes a tenant that is known not to be there.
pub fn put_tenant(tx: &mut Tx<'_>, tenant: &Tenant, keys: &SigningKeys) -> Result<(), CatalogError> {
    tx.put(row::tenant(&tenant.tenant_id), tenant);
    tx.put(row::signing_keys(&tenant.tenant_id), keys);
    tx.append(Feed::Tenants, |seq| TenantChange {
        seq,
        op: CatalogOp::Created,
        tenant_id: tenant.tenant_id.clone(),
        tenant: Some(tenant.clone()),
    })?;
    Ok(())
}

/// Deletes a tenant with its namespaces, streams, caches, keys and rules.
pub fn delete_tenant(tx: &mut Tx<'_>, tenant: &str) -> Result<(), CatalogError> {
    if tx.get::<Tenant>(&row::tenant(tenant))?.is_none() {
        return Err(CatalogError::NotFound("the tenant"));
    }
    for (_, namespace) in tx.list::<Namespace>(&row::namespaces_of(tenant))? {
        delete_namespace(tx, tenant, &namespace.namespace)?;
    }
    tx.delete(row::tenant(tenant));
    tx.delete(row::signing_keys(tenant));
    tx.delete(row::bootstrap(tenant));
    tx.append(Feed::Tenants, |seq| TenantChange {
        seq,
        op: CatalogOp::Deleted,
        tenant_id: tenant.to_owned(),
        tenant: None,
    })?;
    Ok(())
}

/// Creates a namespace that is not there.
pub fn create_namespace(
    tx: &mut Tx<'_>,
    tenant: &str,
    body: &NamespaceCreate,
) -> Result<Namespace, CatalogError> {
    check_name(NameKind::Namespace, &body.namespace)?;
    check_text(&body.display_name)?;
    if tx.get::<Tenant>(&row::tenant(tenant))?.is_none() {
        return Err(CatalogError::NotFound("the tenant"));
    }
    let key = row::namespace(tenant, &body.namespace);
    if tx.get::<Namespace>(&key)?.is_some() {
        return Err(CatalogError::Exists("the namespace"));
    }
    let namespace = Namespace {
        tenant_id: tenant.to_owned(),
        namespace: body.namespace.clone(),
        display_name: body.display_name.clone(),
    };
    tx.put(key, &namespace);
    tx.append(Feed::Namespaces, |seq| NamespaceChange {
        seq,
        op: CatalogOp::Created,
        key: NamespaceKey { tenant_id: tenant.to_owned(), namespace: body.namespace.clone() },
        namespace: Some(namespace.clone()),
    })?;
    Ok(namespace)
}

/// Deletes a namespace with its streams and caches.
pub fn delete_namespace(tx: &mut Tx<'_>, tenant: &str, namespace: &str) -> Result<(), CatalogError> {
    require_namespace(tx, tenant, namespace)?;
    for (_, stream) in tx.list::<Stream>(&row::streams_in(tenant, namespace))? {
        delete_stream(tx, tenant, namespace, &stream.stream)?;
    }
    for (_, cache) in tx.list::<felix_wire::control::Cache>(&row::caches_in(tenant, namespace))? {
        delete_cache(tx, tenant, namespace, &cache.cache)?;
    }
    tx.delete(row::namespace(tenant, namespace));
    tx.append(Feed::Namespaces, |seq| NamespaceChange {
        seq,
        op: CatalogOp::Deleted,
        key: NamespaceKey { tenant_id: tenant.to_owned(), namespace: namespace.to_owned() },
        namespace: None,
    })?;
    Ok(())
}

/// Refuses when the namespace is not there.
pub fn require_namespace(tx: &mut Tx<'_>, tenant: &str, namespace: &str) -> Result<(), CatalogError> {
    match tx.get::<Namespace>(&row::namespace(tenant, namespace))? {
        Some(_) => Ok(()),
        None => Err(CatalogError::NotFound("the namespace")),
    }
}

/// The next incarnation, never given before.
fn next_incarnation(tx: &mut Tx<'_>) -> Result<u64, CatalogError> {
    let next = tx.counter(Counter::Incarnation)?;
    tx.raise(Counter::Incarnation, next + 1)?;
    Ok(next)
}

/// Deletes the assignments of one stream or cache and tells their feed. Later assignments of any name get generations
/// above those that end here.
fn release_shards(
    tx: &mut Tx<'_>,
    tenant: &str,
    namespace: &str,
    kind: ResourceKind,
    name: &str,
) -> Result<(), CatalogError> {
    let rows =
        tx.list::<felix_wire::control::Assignment>(&row::assignments_of(tenant, namespace, kind, name))?;
    let mut floor = tx.counter(Counter::GenerationFloor)?;
    for (key, assignment) in rows {
        floor = floor.max(assignment.generation);
        tx.delete(key);
        tx.append(Feed::Assignments, |seq| AssignmentChange {
            seq,
            op: AssignmentOp::Unassigned,
            generation: assignment.generation,
            incarnation: assignment.incarnation,
            key: assignment.key,
            assignment: None,
        })?;
    }
    tx.raise(Counter::GenerationFloor, floor)?;
    Ok(())
}

fn check_text(text: &str) -> Result<(), CatalogError> {
    match text.len() <= TEXT_BYTES_MAX {
        true => Ok(()),
        false => Err(CatalogError::Invalid("a display name or region is longer than 512 bytes")),
    }
}

fn check_shape(shards: u32, replication_factor: u32) -> Result<(), CatalogError> {
    if shards == 0 || shards > SHARDS_MAX {
        return Err(CatalogError::Invalid("shards must be 1 to 16384"));
    }
    if replication_factor == 0 || replication_factor > REPLICATION_MAX {
        return Err(CatalogError::Invalid("replication_factor must be 1 to 16"));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
