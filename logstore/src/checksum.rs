//! The one checksum of the log: CRC-32C. Scope: functions.
//! Invariants: every checksum of a file starts from the seed of that use of the file, so bytes of an earlier use do not
//! fit.
//! Not here: what is covered (each format says so).

/// Random number of one use of a file. The next use of the same file has another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Epoch(pub u64);

impl Epoch {
    /// What checksums of this use start from.
    #[must_use]
    pub fn seed(self) -> u32 {
        crc32c::crc32c(&self.0.to_le_bytes())
    }
}

/// Continues `crc` over `bytes`.
#[must_use]
pub fn extend(crc: u32, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc, bytes)
}
