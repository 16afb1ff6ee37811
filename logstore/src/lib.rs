//! One append-only log per shard, on disk. Knows offsets and bytes, and nothing of streams, queues or caches.
//! Scope: an engine per core and volume, a log per shard, a recovery per volume and start.
//! Owns: the format of everything on disk (`docs/log-format.md`), the order in which it is written and made durable.
//! Invariants: an acknowledgement is made only from the answer to a disk operation; a batch is there whole or not at all;
//! an offset that was acknowledged or seen is never used twice; damage is told, never cut off as if it had not been there.
//! Not here: carrying out disk operations (`felix_runtime::file`), who may read or write, replication.

pub mod checksum;
pub mod commit;
pub mod driver;
pub mod engine;
mod field;
pub mod id;
pub mod inspect;
pub mod limits;
pub mod log;
pub mod names;
pub mod record;
pub mod recovery;
pub mod retention;
pub mod script;
pub mod segment;
