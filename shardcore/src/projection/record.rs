//! What the records of caches, counters, groups and commits have in common. Scope: values.
//! Owns: the first two bytes of such a record (version, kind), reading numbers out of bytes nobody vouches for.
//! Invariants: reading past the end is a fault, never a panic; a record has one encoding, and bytes behind it are a fault.
//! Not here: what the records mean (each projection), the batches that hold them (`felix_logstore::record`).
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use felix_wire::id::Offset;

/// Version of all record layouts of this build (`docs/log-format.md`).
pub const RECORD_VERSION: u8 = 1;

/// Longest key of a cache, counter or state, bytes: its length is stored in 16 bits.
pub const KEY_BYTES_MAX: usize = u16::MAX as usize;

/// Why bytes are not a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RecordFault {
    /// It ends inside a field.
    #[error("the record is too short")]
    Short,
    /// Written by a later version of this program.
    #[error("version {0} of the record is not known")]
    Version(u8),
    /// A kind of a later version.
    #[error("the kind {0} of the record is not known")]
    Kind(u8),
    /// A field says what cannot be.
    #[error("malformed record: {0}")]
    Malformed(&'static str),
}

/// A record of a log that cannot be read, and where it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("record {offset}: {fault}")]
pub struct BadRecord {
    pub offset: Offset,
    pub fault: RecordFault,
}

/// Reads fields one after the other.
#[derive(Debug, Clone, Copy)]
pub struct Fields<'a> {
    left: &'a [u8],
}

impl<'a> Fields<'a> {
    /// Checks the version of a record and gives its kind and the rest.
    ///
    /// # Errors
    /// `Short` and `Version`.
    pub fn open(payload: &'a [u8]) -> Result<(u8, Fields<'a>), RecordFault> {
        let mut fields = Fields { left: payload };
        match fields.u8()? {
            RECORD_VERSION => Ok((fields.u8()?, fields)),
            later => Err(RecordFault::Version(later)),
        }
    }

    /// Bytes not read yet.
    pub fn left(&self) -> usize {
        self.left.len()
    }

    /// The next `count` bytes.
    pub fn bytes(&mut self, count: usize) -> Result<&'a [u8], RecordFault> {
        let (head, left) = self.left.split_at_checked(count).ok_or(RecordFault::Short)?;
        self.left = left;
        Ok(head)
    }

    /// All that is left.
    pub fn rest(self) -> &'a [u8] {
        self.left
    }

    /// Nothing may be left.
    pub fn end(self) -> Result<(), RecordFault> {
        if self.left.is_empty() { Ok(()) } else { Err(RecordFault::Malformed("bytes behind the record")) }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], RecordFault> {
        let (head, left) = self.left.split_first_chunk().ok_or(RecordFault::Short)?;
        self.left = left;
        Ok(*head)
    }

    pub fn u8(&mut self) -> Result<u8, RecordFault> {
        self.array().map(u8::from_le_bytes)
    }

    pub fn u16(&mut self) -> Result<u16, RecordFault> {
        self.array().map(u16::from_le_bytes)
    }

    pub fn u32(&mut self) -> Result<u32, RecordFault> {
        self.array().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Result<u64, RecordFault> {
        self.array().map(u64::from_le_bytes)
    }

    pub fn i64(&mut self) -> Result<i64, RecordFault> {
        self.array().map(i64::from_le_bytes)
    }
}
