//! What a core gets from the machine: a thread that is its own, time, datagrams, QUIC over them, and rings to the
//! other cores. Scope: everything here belongs to one core unless its header says otherwise.
//! Invariants: this is the only crate with `glommio` and with our `unsafe`; nothing here knows a frame, a shard or a log.
//! Not here: the client protocol (`felix-wire`), what a core does in a turn (`felix-shardcore`).

pub mod clock;
pub mod counters;
pub mod executor;
pub mod failpoint;
pub mod file;
pub mod mailbox;
pub mod planted;
pub mod probe;
pub mod quic;
#[cfg(any(test, feature = "sim"))]
pub mod sim;
pub mod udp;
pub mod waker;

pub use clock::{Clock, Tick};
