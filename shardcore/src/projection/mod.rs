//! What is derived from a shard's records. Scope: modules. Streams (cursors of subscribers), producers, caches, counters,
//! consumer groups and atomic commits; each is a machine over log records that its log alone can rebuild.

pub mod cache;
pub mod commit;
pub mod counter;
pub mod group;
pub mod keys;
pub mod producer;
pub mod record;
pub mod stream;
#[cfg(test)]
pub(crate) mod test_log;
