//! The seeded twin of clock and network. Scope: one simulation, single-threaded.
//! Owns: a random stream, virtual time, a network with faults.
//! Invariants: everything here follows from one `u64` and the calls made; nothing reads a clock or the system's
//! randomness. QUIC over it repeats its timing, sizes and losses when `QuicSettings::seed` is fixed; what does not
//! repeat are the bytes TLS makes up itself (key shares, nonces, hence all ciphertext) and, with ECDSA keys, the
//! length of the signature by a byte or two. Ed25519 keys keep every length the same.
//! Not here: a disk, the order in which a simulated node does its work.

mod clock;
mod net;
mod rng;

pub use clock::SimClock;
pub use net::{Delivery, Faults, NetCounts, SimNet};
pub use rng::SimRng;
