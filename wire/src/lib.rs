//! Placeholder.
pub mod control;
