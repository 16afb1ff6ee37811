//! Single requests: many on their way over one connection, each answered once. Scope: per client.
//! Owns: the way of a request from a handle of the application to the shard's owner and back.
//! Invariants: a request is told exactly what may have become of it; nothing waits without a deadline; what waits, waits
//! with its caller.
//! Not here: what is asked (`cache`, `counter`, `group`, `state`, `log`), publishing and subscribing, which have streams
//! of their own.

mod error;
mod exchange;
mod lane;
mod numbers;
mod pipe;
mod place;
mod plan;
mod pool;

pub use error::{ConditionError, ReadError, RequestError};
pub(crate) use exchange::{Said, owner_of};
pub(crate) use numbers::{Numbers, Written};
pub(crate) use place::{Ask, Place};
pub(crate) use plan::Repeat;
pub(crate) use pool::Pools;
