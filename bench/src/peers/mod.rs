//! What the broker is measured beside: a plain echo, a sink on another driver, other servers. Scope: one run.
//! Owns: those servers and the loads that are sent to them.
//! Invariants: servers run on one CPU and loads on another; rounds alternate; what an answer promises is said beside every
//! figure.
//! Not here: the broker's own load (`load`), our sink (`sink`), the raw disk (`raw_disk`).

pub mod echo;
#[cfg(feature = "peers")]
pub mod quinn_sink;
mod report;
