//! Where a granted request goes. Sans-io and stateless: everything is in the snapshot.
//! Invariants: a keyed publish whose declared width or mapping is not the stream's is refused before anything is taken.
//! Not here: whether the request is allowed (`access`), what the shard does (`shard`).

use felix_wire::id::{CoreId, Generation, ShardIndex};
use felix_wire::routing::{KeyMapping, shard_for};

use crate::snapshot::{Owner, ShardId, StreamRoute};

/// How a publish names its shard.
#[derive(Clone, Copy, Debug)]
pub enum Placing<'a> {
    /// By key, or shard 0 without one (client-protocol 9). `declared`: the width the client routed by, if it said.
    Key { key: Option<&'a [u8]>, declared: Option<(u32, KeyMapping)> },
    /// By number.
    Shard(ShardIndex),
}

/// Where a shard is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub shard: ShardId,
    pub core: CoreId,
    pub generation: Generation,
}

/// Why a request cannot go to a shard of this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteError<'r> {
    /// The stream has no such shard.
    NoSuchShard { shards: u32 },
    /// The client routed by another width or mapping.
    StaleWidth,
    /// Another node owns it.
    OtherNode { node: &'r str, addr: Option<&'r str>, generation: Generation },
    /// Nobody serves it; a reason of client-protocol 8.
    Unavailable { reason: &'static str },
    /// Its log cannot be had, and trying again does not help.
    NoLog { why: &'r str },
}

/// The shard of a publish or subscription and who serves it.
pub fn place<'r>(route: &'r StreamRoute, by: Placing<'_>) -> Result<Place, RouteError<'r>> {
    let shards = route.shards();
    let index = match by {
        Placing::Shard(index) if index.0 < shards => index,
        Placing::Shard(_) => return Err(RouteError::NoSuchShard { shards }),
        Placing::Key { key: Some(_), declared: Some(declared) } if declared != (shards, route.mapping) => {
            return Err(RouteError::StaleWidth);
        }
        Placing::Key { key, .. } => shard_for(key, shards, route.mapping),
    };
    match route.owners.get(index.0 as usize) {
        Some(Owner::Here { core, generation }) => {
            let shard = ShardId { stream: route.uid, shard: index };
            Ok(Place { shard, core: *core, generation: *generation })
        }
        Some(Owner::Node { node, addr, generation }) => {
            Err(RouteError::OtherNode { node: node.as_str(), addr: addr.as_deref(), generation: *generation })
        }
        Some(Owner::Nobody { reason }) => Err(RouteError::Unavailable { reason }),
        Some(Owner::NoLog { why }) => Err(RouteError::NoLog { why }),
        None => Err(RouteError::NoSuchShard { shards }),
    }
}
