//! What the whole-system tests stand on: a control plane and a broker as processes, and clients that speak raw frames.
//! Scope: one `World` per test. Owns: the processes it started; they end with it.
//! Invariants: nothing listens but on loopback, port 0; a broker that died or panicked fails the test that ran it.
//! Not here: what is asserted.
#![allow(dead_code, reason = "each test program uses its own part")]

pub mod good;
pub mod issuer;
pub mod plane;
pub mod raw;
pub mod world;

use std::time::{Duration, Instant};

/// Longest any wait of a test may take.
pub const DEADLINE: Duration = Duration::from_secs(30);

/// Looks every few milliseconds until there is something.
pub async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let end = Instant::now() + DEADLINE;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(Instant::now() < end, "never {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A future that must end in time.
pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(DEADLINE, future).await {
        Ok(value) => value,
        Err(_) => panic!("{what} took over {DEADLINE:?}"),
    }
}
