//! The two clocks of the control plane. The only file here that reads one.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Time since boot, suspension included: what silence and leases are measured with.
pub fn since_boot() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    let nanos = u32::try_from(now.tv_nsec).unwrap_or(0);
    Duration::new(seconds, nanos)
}

/// Time since the Unix epoch: for what people and tokens read, never for silence.
pub fn wall() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Milliseconds of [`wall`], as the documents carry them.
pub fn wall_millis() -> u64 {
    u64::try_from(wall().as_millis()).unwrap_or(u64::MAX)
}
