//! What runs on a core. `core` is the state machine, `run` the one loop around it.

mod asking;
mod caches;
mod compacting;
pub mod core;
pub mod counters;
pub(crate) mod disks;
mod groups;
#[cfg(any(test, feature = "sim"))]
mod held;
pub mod lane;
mod leases;
pub mod listing;
mod publishing;
mod ready;
mod run;
mod storage;
mod streams;
mod subscribing;
pub mod tenants;
#[cfg(test)]
mod tests;
mod watching;

pub use self::disks::CoreStorage;
pub use self::run::{CoreArgs, CoreStart, run_core};
