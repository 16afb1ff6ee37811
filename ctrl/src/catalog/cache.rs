//! Creating, changing and deleting one cache.

use felix_wire::control::{
    Cache, CacheChange, CacheCreate, CacheKey, CachePatch, CatalogOp, NameKind, ResourceKind, check_name,
};

use super::{
    CatalogError, Creation, check_shape, check_text, next_incarnation, release_shards, require_namespace,
};
use crate::feed::Feed;
use crate::ledger::Tx;
use crate::row;

/// Creates the cache, or finds it there with the same settings.
pub fn create_cache(
    tx: &mut Tx<'_>,
    tenant: &str,
    namespace: &str,
    body: &CacheCreate,
) -> Result<Creation<Cache>, CatalogError> {
    check_name(NameKind::Cache, &body.cache)?;
    check_shape(body.shards, body.replication_factor)?;
    check_text(&body.display_name)?;
    require_namespace(tx, tenant, namespace)?;
    let key = row::cache(tenant, namespace, &body.cache);
    if let Some(found) = tx.get::<Cache>(&key)? {
        return match cache_of(tenant, namespace, body, found.incarnation) == found {
            true => Ok(Creation::Unchanged(found)),
            false => Err(CatalogError::Differs("the cache")),
        };
    }
    let cache = cache_of(tenant, namespace, body, next_incarnation(tx)?);
    tx.put(key, &cache);
    announce(tx, CatalogOp::Created, &cache)?;
    Ok(Creation::Created(cache))
}

/// Changes the display name if the request names one.
pub fn patch_cache(
    tx: &mut Tx<'_>,
    tenant: &str,
    namespace: &str,
    name: &str,
    patch: &CachePatch,
) -> Result<Cache, CatalogError> {
    let key = row::cache(tenant, namespace, name);
    let mut cache: Cache = tx.get(&key)?.ok_or(CatalogError::NotFound("the cache"))?;
    if let Some(display_name) = &patch.display_name {
        check_text(display_name)?;
        if *display_name != cache.display_name {
            cache.display_name.clone_from(display_name);
            tx.put(key, &cache);
            announce(tx, CatalogOp::Updated, &cache)?;
        }
    }
    Ok(cache)
}

/// Deletes the cache and its assignments.
pub fn delete_cache(tx: &mut Tx<'_>, tenant: &str, namespace: &str, name: &str) -> Result<(), CatalogError> {
    let key = row::cache(tenant, namespace, name);
    let found: Cache = tx.get(&key)?.ok_or(CatalogError::NotFound("the cache"))?;
    tx.delete(key);
    release_shards(tx, tenant, namespace, ResourceKind::Cache, name)?;
    announce(tx, CatalogOp::Deleted, &found)
}

fn announce(tx: &mut Tx<'_>, op: CatalogOp, cache: &Cache) -> Result<(), CatalogError> {
    tx.append(Feed::Caches, |seq| CacheChange {
        seq,
        op,
        key: CacheKey {
            tenant_id: cache.tenant_id.clone(),
            namespace: cache.namespace.clone(),
            cache: cache.cache.clone(),
        },
        cache: (op != CatalogOp::Deleted).then(|| cache.clone()),
        incarnation: cache.incarnation,
    })?;
    Ok(())
}

fn cache_of(tenant: &str, namespace: &str, body: &CacheCreate, incarnation: u64) -> Cache {
    Cache {
        tenant_id: tenant.to_owned(),
        namespace: namespace.to_owned(),
        cache: body.cache.clone(),
        display_name: body.display_name.clone(),
        shards: body.shards,
        replication_factor: body.replication_factor,
        consistency: body.consistency,
        incarnation,
    }
}
