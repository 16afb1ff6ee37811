//! What is measured: CPU time of processes, latencies, and the result that is printed. Scope: plain values.
//! Not here: when a window begins and ends (`load`).

pub mod cpu;
pub mod latency;
pub mod report;

pub use cpu::{CpuSample, CpuUse, ThreadUse};
pub use latency::{Latency, LatencySummary};
pub use report::{LoadReport, ReadReport};

/// Bytes of the GB and MB that results speak of.
pub const GB: f64 = 1e9;
pub const MB: f64 = 1e6;
