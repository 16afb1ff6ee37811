//! Counters of one cache. Scope: per handle.
//! Owns: the producers that number adds, so that one that is sent again counts once.
//! Not here: how a request gets there (`request`).

use std::sync::Arc;

use felix_wire::client::{CounterAdd, CounterGet, Message, ShardKind};
use felix_wire::features::Features;
use felix_wire::id::RequestId;

use crate::cache::{check_key, names};
use crate::client::Client;
use crate::error::Error;
use crate::name::StreamName;
use crate::request::{Ask, Numbers, Place, Repeat, RequestError, Written};

/// The counters beside a cache. Clones share everything.
#[derive(Clone)]
pub struct Counters {
    place: Arc<Place>,
    numbers: Arc<Numbers>,
}

impl Client {
    /// The counters beside the cache of that name; their keys have nothing to do with the cache's. Nothing is asked yet.
    ///
    /// # Errors
    /// [`Error::Config`] when the name has no namespace and the client no default.
    pub fn counters(&self, cache: impl Into<StreamName>) -> Result<Counters, Error> {
        let place = Place::new(self.shared.clone(), cache.into(), ShardKind::Cache)?;
        Ok(Counters { place, numbers: Arc::default() })
    }
}

impl Counters {
    /// Adds to a counter, which begins with 0, and answers the sum. At a broker that takes numbered adds one whose answer
    /// is lost is sent again and counts once; elsewhere its outcome is unknown.
    ///
    /// # Errors
    /// As [`RequestError`] says; a sum outside of 64 bits is refused and changes nothing.
    pub async fn add(&self, key: &str, delta: i64) -> Result<i64, RequestError> {
        check_key(key)?;
        let shard = self.place.shard_of(key.as_bytes()).await?;
        let ask = Ask::new("counter_add", Features::COUNTERS, shard, Repeat::Twice);
        let message = |request_id, number: Option<_>| {
            let (tenant_id, namespace, cache, key) = names(&self.place, key);
            let (producer_id, sequence) = number.unzip();
            Message::CounterAdd(CounterAdd {
                tenant_id,
                namespace,
                cache,
                key,
                delta,
                request_id,
                producer_id,
                sequence,
            })
        };
        match self.numbers.write(&self.place, ask, message, value).await? {
            Written::Answer(Some(sum)) => Ok(sum),
            Written::Answer(None) => Err(unknown("counter_add was answered without a sum")),
            Written::OffsetMismatch(_) => Err(unknown("counter_add was answered with an offset")),
        }
    }

    /// The sum; `None` when nothing was ever added.
    ///
    /// # Errors
    /// As [`RequestError`] says.
    pub async fn get(&self, key: &str) -> Result<Option<i64>, RequestError> {
        check_key(key)?;
        let shard = self.place.shard_of(key.as_bytes()).await?;
        let ask = Ask::new("counter_get", Features::COUNTERS, shard, Repeat::Read);
        let message = |request_id| {
            let (tenant_id, namespace, cache, key) = names(&self.place, key);
            Message::CounterGet(CounterGet { tenant_id, namespace, cache, key, request_id })
        };
        self.place.answer(ask, message, value).await
    }
}

fn value(answer: &Message<'_>) -> Option<(Option<RequestId>, Option<i64>)> {
    match answer {
        Message::CounterValue(value) => Some((Some(value.request_id), value.value)),
        _ => None,
    }
}

fn unknown(cause: &str) -> RequestError {
    RequestError::OutcomeUnknown { cause: cause.to_owned(), refusal: None }
}
