//! A run of records as publish and event frames carry it: `count` times (u32 length, bytes).
//! Owns: the one walk that validates a run, and cutting it at record borders.
//! Invariants: a `Records` always holds exactly `count` whole records and nothing after them.
//! The same bytes leave in a shared event frame, so a broker delivers what it received without touching it.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use bytes::{BufMut, Bytes, BytesMut};

use crate::cursor::Cursor;
use crate::frame::DecodeError;

/// Bytes in front of each record.
pub const RECORD_PREFIX_LEN: usize = 4;

/// A validated run of records. Cloning and cutting share the bytes.
#[derive(Debug, Default, Clone)]
pub struct Records {
    marks: Marks,
    bytes: Bytes,
}

/// How many records, and whether the buffer was made for the run and is as long. In one word: a small record is moved several
/// times right after it was made, and two narrow writes before a wide read cost more than the rest of the move.
#[derive(Debug, Default, Clone, Copy)]
struct Marks(u64);

impl Marks {
    const DETACHED: u64 = 1 << 32;

    const fn shared(count: u32) -> Self {
        Self(count as u64)
    }

    const fn detached(count: u32) -> Self {
        Self(count as u64 | Self::DETACHED)
    }

    const fn count(self) -> u32 {
        self.0 as u32
    }

    const fn is_detached(self) -> bool {
        self.0 & Self::DETACHED != 0
    }
}

impl PartialEq for Records {
    fn eq(&self, other: &Self) -> bool {
        (self.count(), &self.bytes) == (other.count(), &other.bytes)
    }
}

impl Eq for Records {}

impl Records {
    /// Validates that `bytes` begins with `count` records, in one walk and without allocating. What follows the
    /// last record is left out (client-protocol 10.2 tolerates it).
    ///
    /// # Errors
    /// `Incomplete` when the count or a length reaches past the end.
    pub fn decode(count: u32, bytes: &Bytes) -> Result<Self, DecodeError> {
        Self::decode_at(count, bytes, 0)
    }

    /// Like `decode`, of the bytes from `start` on; with fewer bytes than that there are none.
    pub(crate) fn decode_at(count: u32, bytes: &Bytes, start: usize) -> Result<Self, DecodeError> {
        let len = run_len(count, bytes.get(start..).unwrap_or_default())?;
        let start = start.min(bytes.len());
        Ok(Self { marks: Marks::shared(count), bytes: bytes.slice(start..start + len) })
    }

    /// Like `decode`, of a buffer that is given away.
    ///
    /// # Errors
    /// As `decode`.
    pub fn taken(count: u32, mut bytes: Bytes) -> Result<Self, DecodeError> {
        bytes.truncate(run_len(count, &bytes)?);
        Ok(Self { marks: Marks::shared(count), bytes })
    }

    /// Like `decode`, with the records copied into a buffer of their own.
    ///
    /// # Errors
    /// As `decode`.
    pub fn copied(count: u32, bytes: &[u8]) -> Result<Self, DecodeError> {
        let run = bytes.get(..run_len(count, bytes)?).unwrap_or_default();
        Ok(Self { marks: Marks::detached(count), bytes: Bytes::copy_from_slice(run) })
    }

    /// Copies the payloads into a new run. At most `u32::MAX` payloads of at most `u32::MAX` bytes.
    pub fn from_payloads<I>(payloads: I) -> Self
    where
        I: IntoIterator,
        I::Item: AsRef<[u8]>,
    {
        let mut builder = RecordsBuilder::default();
        for payload in payloads {
            builder.push(payload.as_ref());
        }
        builder.finish()
    }

    /// The same records in a buffer of their own, as long as the run: for one that is a small slice of a large buffer.
    #[must_use]
    pub fn into_detached(self) -> Self {
        if self.marks.is_detached() {
            return self;
        }
        Self { marks: Marks::detached(self.count()), bytes: Bytes::copy_from_slice(&self.bytes) }
    }

    /// How many records.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.marks.count()
    }

    /// True without records.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count() == 0
    }

    /// The run itself, lengths included.
    #[must_use]
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Gives the run away, lengths included.
    #[must_use]
    pub fn into_bytes(self) -> Bytes {
        self.bytes
    }

    /// Bytes of the run, lengths included.
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        self.bytes.len()
    }

    /// Bytes of the payloads alone.
    #[must_use]
    pub fn payload_bytes(&self) -> usize {
        self.bytes.len() - self.count() as usize * RECORD_PREFIX_LEN
    }

    /// The payloads in order.
    #[must_use]
    pub fn iter(&self) -> RecordsIter<'_> {
        RecordsIter { rest: &self.bytes, left: self.count() }
    }

    /// The payloads in order, each sharing the run's memory.
    pub fn shared(&self) -> impl Iterator<Item = Bytes> + '_ {
        self.iter().map(|payload| self.bytes.slice_ref(payload))
    }

    /// Cuts the run after its first `n` records (all of them when there are fewer) without copying.
    #[must_use]
    pub fn split_at_record(&self, n: u32) -> (Self, Self) {
        let mut head = self.iter();
        for _ in 0..n.min(self.count()) {
            head.next();
        }
        let at = self.bytes.len() - head.rest.len();
        let part = |count, bytes| Self { marks: Marks::shared(count), bytes };
        let first = part(self.count() - head.left, self.bytes.slice(..at));
        (first, part(head.left, self.bytes.slice(at..)))
    }
}

impl<'a> IntoIterator for &'a Records {
    type Item = &'a [u8];
    type IntoIter = RecordsIter<'a>;

    fn into_iter(self) -> RecordsIter<'a> {
        self.iter()
    }
}

/// Walks the payloads of a run.
#[derive(Debug, Clone)]
pub struct RecordsIter<'a> {
    rest: &'a [u8],
    left: u32,
}

impl<'a> Iterator for RecordsIter<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        if self.left == 0 {
            return None;
        }
        let (len, rest) = self.rest.split_first_chunk::<RECORD_PREFIX_LEN>()?;
        let (payload, rest) = rest.split_at_checked(u32::from_be_bytes(*len) as usize)?;
        self.rest = rest;
        self.left -= 1;
        Some(payload)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left as usize, Some(self.left as usize))
    }
}

impl ExactSizeIterator for RecordsIter<'_> {}

/// Collects payloads into a run.
#[derive(Debug, Default)]
pub struct RecordsBuilder {
    count: u32,
    bytes: BytesMut,
}

impl RecordsBuilder {
    /// A builder with room for a run of `bytes` bytes, lengths included.
    #[must_use]
    pub fn with_capacity(bytes: usize) -> Self {
        Self { count: 0, bytes: BytesMut::with_capacity(bytes) }
    }

    /// Copies one payload to the end.
    ///
    /// # Panics
    /// When the payload is longer than `u32::MAX` bytes, which no frame could carry.
    pub fn push(&mut self, payload: &[u8]) {
        put_record(&mut self.bytes, payload);
        self.count += 1;
    }

    /// How many records so far.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Bytes of the run so far, lengths included.
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        self.bytes.len()
    }

    /// The run.
    #[must_use]
    pub fn finish(self) -> Records {
        Records { marks: Marks::shared(self.count), bytes: self.bytes.freeze() }
    }

    /// Appends a record whose bytes `fill` writes behind what it is given; its length is set afterwards.
    pub(crate) fn push_with<E>(
        &mut self,
        fill: impl FnOnce(&mut BytesMut) -> Result<(), E>,
    ) -> Result<(), E> {
        let start = self.bytes.len();
        self.bytes.put_u32(0);
        fill(&mut self.bytes)?;
        let len = (self.bytes.len() - start - RECORD_PREFIX_LEN) as u32;
        if let Some(prefix) = self.bytes.get_mut(start..start + RECORD_PREFIX_LEN) {
            prefix.copy_from_slice(&len.to_be_bytes());
        }
        self.count += 1;
        Ok(())
    }
}

/// Bytes of the run of `count` records that `bytes` begins with.
fn run_len(count: u32, bytes: &[u8]) -> Result<usize, DecodeError> {
    let mut cursor = Cursor::new(bytes);
    check_count(count, cursor.remaining(), RECORD_PREFIX_LEN)?;
    for _ in 0..count {
        let len = cursor.u32()?;
        cursor.take(len as usize)?;
    }
    Ok(bytes.len() - cursor.remaining())
}

/// Writes one record: length, bytes.
pub(crate) fn put_record(out: &mut BytesMut, payload: &[u8]) {
    assert!(payload.len() <= u32::MAX as usize, "a record longer than its length field");
    out.put_u32(payload.len() as u32);
    out.extend_from_slice(payload);
}

/// Refuses a record count that the remaining bytes cannot hold, before anything is reserved for it.
pub(crate) fn check_count(count: u32, remaining: usize, least: usize) -> Result<(), DecodeError> {
    if count as usize > remaining / least { Err(DecodeError::Incomplete) } else { Ok(()) }
}
