//! Keys and values of one cache. Scope: per handle.
//! Owns: what each cache request asks and what its answer means.
//! Invariants: a write is sent again only when nothing of it was applied, since a second put could undo another client's,
//! and a second delete would answer another value.
//! Not here: how a request gets there (`request`), following changes (`watch`).

pub(crate) mod watch;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use felix_wire::client::{
    CacheCondition, CacheDelete, CacheDeleteIf, CacheGet, CachePut, CachePutIf, Message, ShardKind,
};
use felix_wire::features::Features;
use felix_wire::limits::KEY_LEN_MAX;

use crate::cache::watch::{WatchBuilder, Watched};
use crate::client::Client;
use crate::error::Error;
use crate::limits::ZERO_COPY_BYTES;
use crate::name::StreamName;
use crate::request::{Ask, Place, Repeat, RequestError};

/// A value and which write it is of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The value.
    pub value: Bytes,
    /// Changes with every write of the key; `None` when the broker does not tell.
    pub version: Option<u64>,
}

/// When a conditional put applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Condition {
    /// The key has no value.
    Absent,
    /// The value has this version.
    Version(u64),
}

/// What came of a conditional write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Conditional {
    /// The condition held and the change was made.
    pub applied: bool,
    /// The version of the value now, when there is one.
    pub version: Option<u64>,
}

/// One cache. Clones share everything.
#[derive(Clone)]
pub struct Cache {
    place: Arc<Place>,
}

impl Client {
    /// A cache of the tenant, named as streams are: `"cache"` in the client's namespace, `"namespace/cache"`, or a pair.
    /// Nothing is asked yet.
    ///
    /// # Errors
    /// [`Error::Config`] when the name has no namespace and the client no default.
    pub fn cache(&self, name: impl Into<StreamName>) -> Result<Cache, Error> {
        let place = Place::new(self.shared.clone(), name.into(), ShardKind::Cache)?;
        Ok(Cache { place })
    }
}

impl Cache {
    /// The value of a key that has one and is not expired.
    ///
    /// # Errors
    /// As [`RequestError`] says; a key over 65,535 bytes is `Invalid`.
    pub async fn get(&self, key: &str) -> Result<Option<Entry>, RequestError> {
        let ask = self.ask("cache_get", Features::NONE, key, Repeat::Read).await?;
        let message = |id| {
            let (tenant_id, namespace, cache, key) = self.names(key);
            Message::CacheGet(CacheGet { tenant_id, namespace, cache, key, request_id: Some(id) })
        };
        self.place
            .answer(ask, message, |answer| match answer {
                Message::CacheValue(value) => {
                    let version = value.version;
                    Some((
                        value.request_id,
                        value.value.as_ref().map(|value| Entry { value: kept(value), version }),
                    ))
                }
                _ => None,
            })
            .await
    }

    /// Sets a key. Its value ends after `ttl`, which is counted from now at the broker in milliseconds, rounded up; none
    /// never ends. Zero is over at once.
    ///
    /// # Errors
    /// As [`RequestError`] says; a key over 65,535 bytes and a time over 64 bits of milliseconds are `Invalid`.
    pub async fn put(
        &self,
        key: &str,
        value: impl Into<Bytes>,
        ttl: impl Into<Option<Duration>>,
    ) -> Result<(), RequestError> {
        let (value, ttl_ms) = (value.into(), ttl_ms(ttl.into())?);
        let ask = self.ask("cache_put", Features::NONE, key, Repeat::Twice).await?;
        let message = |id| {
            let (tenant_id, namespace, cache, key) = self.names(key);
            let (value, request_id) = (value.clone(), Some(id));
            Message::CachePut(CachePut { tenant_id, namespace, cache, key, value, request_id, ttl_ms })
        };
        self.place
            .answer(ask, message, |answer| match answer {
                Message::CacheOk(ok) => Some((Some(ok.request_id), ())),
                _ => None,
            })
            .await
    }

    /// Sets a key when `condition` holds.
    ///
    /// # Errors
    /// As [`Cache::put`]. A condition that does not hold is an answer.
    pub async fn put_if(
        &self,
        key: &str,
        value: impl Into<Bytes>,
        ttl: impl Into<Option<Duration>>,
        condition: Condition,
    ) -> Result<Conditional, RequestError> {
        let (value, ttl_ms) = (value.into(), ttl_ms(ttl.into())?);
        let ask = self.ask("cache_put_if", Features::CACHE_CONDITIONAL, key, Repeat::Twice).await?;
        let condition = match condition {
            Condition::Absent => CacheCondition::Absent,
            Condition::Version(version) => CacheCondition::Version(version),
        };
        let message = |request_id| {
            let (tenant_id, namespace, cache, key) = self.names(key);
            let value = value.clone();
            Message::CachePutIf(CachePutIf {
                tenant_id,
                namespace,
                cache,
                key,
                value,
                ttl_ms,
                condition,
                request_id,
            })
        };
        self.place.answer(ask, message, conditional).await
    }

    /// Removes a key and answers the value it had.
    ///
    /// # Errors
    /// As [`Cache::get`].
    pub async fn delete(&self, key: &str) -> Result<Option<Bytes>, RequestError> {
        let ask = self.ask("cache_delete", Features::CACHE_DELETE, key, Repeat::Twice).await?;
        let message = |id| {
            let (tenant_id, namespace, cache, key) = self.names(key);
            Message::CacheDelete(CacheDelete { tenant_id, namespace, cache, key, request_id: Some(id) })
        };
        self.place
            .answer(ask, message, |answer| match answer {
                Message::CacheValue(value) => Some((value.request_id, value.value.as_ref().map(kept))),
                _ => None,
            })
            .await
    }

    /// Removes a key whose value has this version.
    ///
    /// # Errors
    /// As [`Cache::put_if`].
    pub async fn delete_if(&self, key: &str, version: u64) -> Result<Conditional, RequestError> {
        let ask = self.ask("cache_delete_if", Features::CACHE_CONDITIONAL, key, Repeat::Twice).await?;
        let message = |request_id| {
            let (tenant_id, namespace, cache, key) = self.names(key);
            Message::CacheDeleteIf(CacheDeleteIf { tenant_id, namespace, cache, key, version, request_id })
        };
        self.place.answer(ask, message, conditional).await
    }

    /// Following one key.
    pub fn watch(&self, key: impl Into<String>) -> WatchBuilder {
        WatchBuilder::new(self.place.clone(), Watched::Key(key.into()))
    }

    /// Following every key that begins with `prefix`; the empty prefix is every key.
    pub fn watch_prefix(&self, prefix: impl Into<String>) -> WatchBuilder {
        WatchBuilder::new(self.place.clone(), Watched::Prefix(prefix.into()))
    }

    /// How many shards the cache has.
    ///
    /// # Errors
    /// `not_found` for a cache that is not known, else what asking said.
    pub async fn shard_count(&self) -> Result<u32, RequestError> {
        self.place.shard_count().await
    }

    async fn ask(
        &self,
        what: &'static str,
        needs: Features,
        key: &str,
        repeat: Repeat,
    ) -> Result<Ask, RequestError> {
        check_key(key)?;
        Ok(Ask::new(what, needs, self.place.shard_of(key.as_bytes()).await?, repeat))
    }

    fn names<'a>(&'a self, key: &'a str) -> (Cow<'a, str>, Cow<'a, str>, Cow<'a, str>, Cow<'a, str>) {
        names(&self.place, key)
    }
}

/// A value as the application may keep it: a small one may be a slice of a receive buffer many times its size.
fn kept(value: &Bytes) -> Bytes {
    if value.len() < ZERO_COPY_BYTES { Bytes::copy_from_slice(value) } else { value.clone() }
}

/// Tenant, namespace, cache and key.
pub(crate) fn names<'a>(
    place: &'a Place,
    key: &'a str,
) -> (Cow<'a, str>, Cow<'a, str>, Cow<'a, str>, Cow<'a, str>) {
    let name = place.name();
    (place.tenant().into(), name.namespace().into(), name.stream().into(), key.into())
}

/// # Errors
/// `Invalid` for a key that no shard takes.
pub(crate) fn check_key(key: &str) -> Result<(), RequestError> {
    if key.len() > KEY_LEN_MAX {
        return Err(RequestError::invalid(format!(
            "a key of {} bytes is longer than {KEY_LEN_MAX}",
            key.len()
        )));
    }
    Ok(())
}

fn conditional(answer: &Message<'_>) -> Option<(Option<felix_wire::id::RequestId>, Conditional)> {
    match answer {
        Message::CacheConditionResult(result) => {
            let (applied, version) = (result.applied, result.version);
            Some((Some(result.request_id), Conditional { applied, version }))
        }
        _ => None,
    }
}

/// Whole milliseconds, rounded up: a value does not end early.
///
/// # Errors
/// `Invalid` for more than 64 bits.
fn ttl_ms(ttl: Option<Duration>) -> Result<Option<u64>, RequestError> {
    let Some(ttl) = ttl else { return Ok(None) };
    let millis = u64::try_from(ttl.as_nanos().div_ceil(1_000_000));
    millis.map(Some).map_err(|_| RequestError::invalid("the time to live is longer than can be said"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_to_live_is_rounded_up_and_has_a_bound() {
        assert_eq!(ttl_ms(None), Ok(None));
        assert_eq!(ttl_ms(Some(Duration::ZERO)), Ok(Some(0)));
        assert_eq!(ttl_ms(Some(Duration::from_nanos(1))), Ok(Some(1)));
        assert_eq!(ttl_ms(Some(Duration::from_micros(1_500))), Ok(Some(2)));
        assert!(ttl_ms(Some(Duration::MAX)).is_err());
    }
}
