//! How the maps of a core hash. Scope: one alias.
//! Invariants: seeded by chance in a broker, because clients choose some of the keys; the same every time in tests and in
//! the simulator, where one seed must be one history and maps are walked.

#[cfg(not(any(test, feature = "sim")))]
pub type HashState = foldhash::fast::RandomState;
#[cfg(any(test, feature = "sim"))]
pub type HashState = foldhash::fast::FixedState;
