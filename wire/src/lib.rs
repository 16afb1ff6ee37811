//! Placeholder.
pub mod control;
#[cfg(feature = "peer")]
pub mod generated;
