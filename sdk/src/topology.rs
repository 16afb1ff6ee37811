//! Where things are: brokers, the shards of a stream, and who owns each. Scope: per client.
//! Owns: these requests, the one for a producer, and what their answers mean.
//! Invariants: a list of owners that does not name every shard once, in order, is ignored (client-protocol 17.2).
//! Not here: connecting to an owner (`client`).

use std::borrow::Cow;
use std::sync::Arc;

use felix_wire::client::{
    CacheShards as CacheShardsRequest, Message, ProducerInit, ShardKind, ShardOwners as OwnersRequest,
    StreamShards as ShardsRequest,
};
use felix_wire::error_code::{ErrorCode, RetryClass};
use felix_wire::features::Features;
use felix_wire::id::{CoreId, ProducerId, RequestId};
use felix_wire::routing::KeyMapping;

use tokio::time::Instant;

use crate::address::HostPort;
use crate::backoff::{Backoff, jitter_seed};
use crate::client::{Client, Shared};
use crate::connection::{Link, decode, unexpected};
use crate::error::{Error, Refusal};
use crate::name::StreamName;

/// The only request of its stream.
const FIRST_REQUEST: RequestId = RequestId(1);

/// What a broker that does not tell is taken to have.
const ONE_SHARD: StreamShards = StreamShards { shards: 1, mapping: KeyMapping::Modulo };

/// How a stream is split.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamShards {
    /// How many shards; 0 is an unknown stream.
    pub shards: u32,
    /// How a key chooses one.
    pub mapping: KeyMapping,
}

/// Who serves one shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardOwner {
    /// The shard.
    pub shard: u32,
    /// The owner's node id; `None` on a single broker.
    pub node_id: Option<String>,
    /// Where clients reach the owner.
    pub addr: Option<String>,
    /// The owner's core, when the broker told.
    pub core: Option<CoreId>,
    /// Ownership epoch.
    pub generation: u64,
    /// Why nobody serves it now.
    pub unavailable: Option<String>,
}

/// A broker of the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokerInfo {
    /// Its node id.
    pub node_id: String,
    /// Its client listener, `host:port`.
    pub addr: String,
}

/// Everything needed to send a record or a request to its shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) shards: StreamShards,
    /// One per shard in order, or empty.
    pub(crate) owners: Vec<ShardOwner>,
    /// The stream is on disk, when the broker told.
    pub(crate) durable: Option<bool>,
}

impl Route {
    pub(crate) fn owner(&self, shard: u32) -> Option<&ShardOwner> {
        self.owners.get(usize::try_from(shard).ok()?)
    }
}

impl Client {
    /// The brokers the cluster knows; empty when the broker does not tell.
    ///
    /// # Errors
    /// What connecting or the request said.
    pub async fn topology(&self) -> Result<Vec<BrokerInfo>, Error> {
        let link = self.shared.entry().await?;
        if !link.granted().features.contains(Features::TOPOLOGY) {
            return Ok(Vec::new());
        }
        fetch_brokers(&link).await
    }

    /// How many shards a stream has and how keys choose one. An unknown stream has 0.
    ///
    /// # Errors
    /// What connecting or the request said.
    pub async fn stream_shards(&self, stream: impl Into<StreamName>) -> Result<StreamShards, Error> {
        let name = self.shared.resolve(stream.into())?;
        let link = self.shared.entry().await?;
        fetch_shards(&link, self.tenant(), &name).await.map(|(shards, _)| shards.unwrap_or(ONE_SHARD))
    }

    /// Who serves each shard of a stream, in shard order; empty when unknown.
    ///
    /// # Errors
    /// [`Error::NotServed`] when the broker does not tell, else what connecting or the request said.
    pub async fn shard_owners(&self, stream: impl Into<StreamName>) -> Result<Vec<ShardOwner>, Error> {
        let name = self.shared.resolve(stream.into())?;
        let link = self.shared.entry().await?;
        link.granted().require(Features::SHARD_OWNERS, "shard_owners")?;
        fetch_owners(&link, self.tenant(), &name, ShardKind::Stream).await
    }
}

/// Shards and owners of `name` as `link`'s broker sees them. A broker that does not answer one of the questions
/// is a single broker with one shard.
pub(crate) async fn fetch_route(
    link: &Link,
    tenant: &str,
    name: &StreamName,
    kind: ShardKind,
) -> Result<Route, Error> {
    let (shards, durable) = match kind {
        ShardKind::Stream => fetch_shards(link, tenant, name).await?,
        ShardKind::Cache => (fetch_cache_shards(link, tenant, name).await?, None),
    };
    let told = link.granted().features.contains(Features::SHARD_OWNERS);
    let mut owners = match told && shards.is_none_or(|shards| shards.shards > 0) {
        true => fetch_owners(link, tenant, name, kind).await?,
        false => Vec::new(),
    };
    let shards = shards.unwrap_or_else(|| {
        // Only the owners were told: there is one for each shard, and none of a name that is not known.
        let counted = u32::try_from(owners.len()).unwrap_or(0);
        StreamShards { shards: if told { counted } else { 1 }, mapping: KeyMapping::Modulo }
    });
    let complete = owners.len() == shards.shards as usize;
    if !complete || owners.iter().zip(0..).any(|(owner, shard)| owner.shard != shard) {
        owners.clear();
    }
    Ok(Route { shards, owners, durable })
}

/// A new producer's id.
pub(crate) async fn fetch_producer(link: &Link) -> Result<ProducerId, Error> {
    let request = ProducerInit { request_id: FIRST_REQUEST };
    let frame = link.request("producer_init", &Message::ProducerInit(request)).await?;
    match decode(&frame)? {
        Message::ProducerInitOk(ok) if ok.request_id == FIRST_REQUEST => Ok(ok.producer_id),
        other => Err(unexpected("producer_init", &other)),
    }
}

pub(crate) async fn fetch_brokers(link: &Link) -> Result<Vec<BrokerInfo>, Error> {
    let frame = link.request("topology", &Message::Topology).await?;
    match decode(&frame)? {
        Message::TopologyView(view) => Ok(view
            .brokers
            .iter()
            .map(|b| BrokerInfo { node_id: b.node_id.to_string(), addr: b.addr.to_string() })
            .collect()),
        other => Err(unexpected("topology", &other)),
    }
}

/// The stream's shards, and whether it is on disk, when the broker tells.
async fn fetch_shards(
    link: &Link,
    tenant: &str,
    name: &StreamName,
) -> Result<(Option<StreamShards>, Option<bool>), Error> {
    if !link.granted().features.contains(Features::STREAM_SHARDS) {
        return Ok((Some(ONE_SHARD), None));
    }
    let request = ShardsRequest {
        tenant_id: Cow::Borrowed(tenant),
        namespace: Cow::Borrowed(name.namespace()),
        stream: Cow::Borrowed(name.stream()),
        request_id: FIRST_REQUEST,
    };
    let frame = link.request("stream_shards", &Message::StreamShards(request)).await?;
    match decode(&frame)? {
        Message::StreamShardsView(view) if view.request_id == FIRST_REQUEST => {
            Ok((Some(StreamShards { shards: view.shards, mapping: view.routing }), view.durable))
        }
        other => Err(unexpected("stream_shards", &other)),
    }
}

/// The cache's shards; `None` when the broker does not tell. Caches map keys by modulo (client-protocol 9).
async fn fetch_cache_shards(
    link: &Link,
    tenant: &str,
    name: &StreamName,
) -> Result<Option<StreamShards>, Error> {
    if !link.granted().features.contains(Features::CACHE_SHARDS) {
        return Ok(None);
    }
    let request = CacheShardsRequest {
        tenant_id: Cow::Borrowed(tenant),
        namespace: Cow::Borrowed(name.namespace()),
        cache: Cow::Borrowed(name.stream()),
        request_id: FIRST_REQUEST,
    };
    let frame = link.request("cache_shards", &Message::CacheShards(request)).await?;
    match decode(&frame)? {
        Message::CacheShardsView(view) if view.request_id == FIRST_REQUEST => {
            Ok(Some(StreamShards { shards: view.shards, mapping: KeyMapping::Modulo }))
        }
        other => Err(unexpected("cache_shards", &other)),
    }
}

async fn fetch_owners(
    link: &Link,
    tenant: &str,
    name: &StreamName,
    kind: ShardKind,
) -> Result<Vec<ShardOwner>, Error> {
    let request = OwnersRequest {
        tenant_id: Cow::Borrowed(tenant),
        namespace: Cow::Borrowed(name.namespace()),
        name: Cow::Borrowed(name.stream()),
        kind,
        request_id: FIRST_REQUEST,
    };
    let frame = link.request("shard_owners", &Message::ShardOwners(request)).await?;
    match decode(&frame)? {
        Message::ShardOwnersView(view) if view.request_id == FIRST_REQUEST => Ok(view
            .owners
            .iter()
            .map(|owner| ShardOwner {
                shard: owner.shard.get(),
                node_id: owner.node_id.as_ref().map(ToString::to_string),
                addr: owner.addr.as_ref().map(ToString::to_string),
                core: owner.core,
                generation: owner.generation.get(),
                unavailable: owner.unavailable.as_ref().map(ToString::to_string),
            })
            .collect()),
        other => Err(unexpected("shard_owners", &other)),
    }
}

/// The route of a stream or cache, asking again for a while when it is not known or nobody answers.
pub(crate) async fn known_route(
    shared: &Arc<Shared>,
    name: &StreamName,
    kind: ShardKind,
) -> Result<Route, Error> {
    let started = Instant::now();
    let mut backoff = Backoff::default();
    loop {
        let link = shared.entry().await?;
        let (error, patience) = match fetch_route(&link, &shared.identity.tenant, name, kind).await {
            Ok(route) if route.shards.shards > 0 => return Ok(route),
            Ok(_) => (Error::Refused(unknown_name(kind)), shared.identity.deadlines.not_found),
            Err(error) if error.is_code(&ErrorCode::NotFound) => (error, shared.identity.deadlines.not_found),
            Err(error) if error.is_worth_another_read() => (error, shared.identity.deadlines.request),
            Err(error) => return Err(error),
        };
        shared.note(&error, &link);
        if started.elapsed() >= patience {
            return Err(error);
        }
        tokio::time::sleep(backoff.next_delay(jitter_seed())).await;
    }
}

/// The refusal for a stream or cache with no shards.
pub(crate) fn unknown_name(kind: ShardKind) -> Refusal {
    let message = match kind {
        ShardKind::Stream => "unknown stream",
        ShardKind::Cache => "unknown cache",
    };
    Refusal {
        code: Some(ErrorCode::NotFound),
        retry: RetryClass::RetryAfter,
        message: message.to_owned(),
        reason: None,
        retry_after: None,
    }
}

impl ShardOwner {
    /// Where to dial the owner, when it is named completely.
    pub(crate) fn dialable(&self) -> Option<HostPort> {
        self.node_id.as_ref()?;
        HostPort::parse(self.addr.as_deref()?).ok()
    }
}
