//! What is derived from a shard's records. Scope: modules. Streams (cursors of subscribers) are here; queues, caches
//! and counters are not built yet (docs/status.md).

pub mod producer;
pub mod stream;
