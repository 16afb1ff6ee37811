//! The append-only log of a shard. Not built yet: streams are held in memory by `shardcore::shard::ring`.
//! Its place in the dependency order is fixed: it knows offsets and bytes, and nothing of streams, queues or caches.
