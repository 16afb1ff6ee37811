//! The stream projection: cursors of subscribers over a shard. Sans-io.
//! Scope: one `Feed` per core and shard that has subscribers there, one `Subscription` per subscriber.
//! Not here: the shard's ring (`shard::ring`), QUIC streams (`turn`).

pub mod feed;
pub mod frame;
pub mod subscription;
#[cfg(test)]
mod tests;
