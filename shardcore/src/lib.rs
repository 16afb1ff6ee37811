//! The broker. One core: sessions of its connections, the shards it owns, the loop that runs them.
//! A request goes down once (`session` -> `access` -> `route` -> `shard`) and its answer comes up once.
//! Read `turn::core` first, then `session`, then `shard`.

pub mod access;
mod hash;
pub mod lease;
pub mod node;
pub mod projection;
pub mod route;
pub mod session;
pub mod shard;
#[cfg(any(test, feature = "sim"))]
pub mod sim;
pub mod snapshot;
pub mod store;
pub mod turn;
