//! The seeded twin of clock, network and disks. Scope: one simulation, single-threaded.
//! Owns: a random stream, virtual time, a network and disks with faults.
//! Invariants: everything here follows from one `u64` and the calls made; nothing reads a clock or the system's
//! randomness. QUIC over it repeats its timing, sizes and losses when `QuicSettings::seed` is fixed; what does not
//! repeat are the bytes TLS makes up itself (key shares, nonces, hence all ciphertext) and, with ECDSA keys, the
//! length of the signature by a byte or two. Ed25519 keys keep every length the same.
//! Not here: the order in which a simulated node does its work.

mod clock;
mod disk;
mod net;
mod rng;

pub use clock::SimClock;
pub use disk::{
    Asked, DiskCounts, DiskFaults, DiskImage, Fault, OpKind, Replay, SECTOR_BYTES, SimDisk, Trace, TraceDisk,
};
pub use net::{Delivery, Faults, NetCounts, SimNet};
pub use rng::SimRng;
