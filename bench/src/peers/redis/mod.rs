//! Redis as a peer: its server, a pipelining load, and its own load program. Scope: one server and one load at a time.
//! Not here: the table its figures go into (`runs`).

pub mod benchmark;
mod load;
mod replies;
mod server;

pub use load::{RedisCommand, run};
pub use server::{Aof, RedisServer};
