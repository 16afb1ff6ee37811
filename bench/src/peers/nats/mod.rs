//! NATS as a peer: its server, and a load through its own client. Scope: one server and one load at a time.
//! Not here: the table its figures go into (`runs`).

#[cfg(feature = "peers")]
mod load;
mod server;

#[cfg(feature = "peers")]
pub use load::run;
pub use server::{Keeps, NatsServer};
