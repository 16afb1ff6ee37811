//! Bytes in, records out: lines, whole files, or records with their length in front. Sans-io. Scope: per source.
//! Owns: the bytes of the record that is not complete yet.
//! Invariants: what `felix sub` writes as `text` or `raw` comes out as the same records; never more than one record
//! plus one push is held.
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing))]

use bytes::{Buf, Bytes, BytesMut};
use clap::ValueEnum;
use felix_wire::limits::RECORD_LEN_MAX;

/// Bytes of the length in front of a record.
const LENGTH_BYTES: usize = 4;

/// Where a record ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Framing {
    /// At a newline, which is not part of it; a last line may lack it
    #[default]
    Line,
    /// With its file
    Whole,
    /// After as many bytes as the four before it say, most significant first
    Length,
}

/// Why a source cannot be cut into records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FramingError {
    #[error("record {record} is longer than {RECORD_LEN_MAX} bytes")]
    TooLong { record: u64 },
    #[error("the input ends inside record {record}")]
    Truncated { record: u64 },
}

/// Cuts one source.
#[derive(Debug)]
pub struct Framer {
    framing: Framing,
    held: BytesMut,
    /// Bytes of `held` that hold no newline.
    searched: usize,
    /// Number of the next record, from 1.
    record: u64,
}

impl Framer {
    pub fn new(framing: Framing) -> Framer {
        Framer { framing, held: BytesMut::new(), searched: 0, record: 1 }
    }

    /// Takes the next bytes of the source.
    pub fn push(&mut self, bytes: &[u8]) {
        self.held.extend_from_slice(bytes);
    }

    /// The next complete record; `None` until more bytes are pushed.
    ///
    /// # Errors
    /// [`FramingError::TooLong`]; nothing after it can be found.
    pub fn next_record(&mut self) -> Result<Option<Bytes>, FramingError> {
        let found = match self.framing {
            Framing::Line => self.next_line(),
            Framing::Whole => None,
            Framing::Length => self.next_counted()?,
        };
        let longest = found.as_ref().map_or(self.held.len().saturating_sub(LENGTH_BYTES), Bytes::len);
        if longest > RECORD_LEN_MAX {
            return Err(FramingError::TooLong { record: self.record });
        }
        self.record += u64::from(found.is_some());
        Ok(found)
    }

    /// The record that ends with the source, if there is one. Call it when `next_record` gives none.
    ///
    /// # Errors
    /// [`FramingError::Truncated`] when the source ends inside a record.
    pub fn finish(mut self) -> Result<Option<Bytes>, FramingError> {
        let rest = self.held.split().freeze();
        match self.framing {
            Framing::Line => Ok((!rest.is_empty()).then_some(rest)),
            Framing::Whole => Ok(Some(rest)),
            Framing::Length if rest.is_empty() => Ok(None),
            Framing::Length => Err(FramingError::Truncated { record: self.record }),
        }
    }

    fn next_line(&mut self) -> Option<Bytes> {
        let unsearched = self.held.get(self.searched..)?;
        let Some(ahead) = unsearched.iter().position(|byte| *byte == b'\n') else {
            self.searched = self.held.len();
            return None;
        };
        let line = self.held.split_to(self.searched + ahead).freeze();
        self.held.advance(1);
        self.searched = 0;
        Some(line)
    }

    fn next_counted(&mut self) -> Result<Option<Bytes>, FramingError> {
        let Some(length) = self.held.first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
        let length = u32::from_be_bytes(*length) as usize;
        if length > RECORD_LEN_MAX {
            return Err(FramingError::TooLong { record: self.record });
        }
        if self.held.len() - LENGTH_BYTES < length {
            return Ok(None);
        }
        self.held.advance(LENGTH_BYTES);
        Ok(Some(self.held.split_to(length).freeze()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All records of `input`, pushed `step` bytes at a time.
    fn cut(framing: Framing, input: &[u8], step: usize) -> Result<Vec<Vec<u8>>, FramingError> {
        let mut framer = Framer::new(framing);
        let mut records = Vec::new();
        for part in input.chunks(step) {
            framer.push(part);
            while let Some(record) = framer.next_record()? {
                records.push(record.to_vec());
            }
        }
        records.extend(framer.finish()?.map(|record| record.to_vec()));
        Ok(records)
    }

    #[test]
    fn lines_are_records_however_they_arrive() {
        let input = b"one\n\nthree\r\nlast";
        for step in 1..=input.len() {
            let records = cut(Framing::Line, input, step).unwrap();
            assert_eq!(records, [&b"one"[..], b"", b"three\r", b"last"], "step {step}");
        }
        assert_eq!(cut(Framing::Line, b"one\n", 9).unwrap(), [b"one"]);
        assert!(cut(Framing::Line, b"", 1).unwrap().is_empty());
    }

    #[test]
    fn counted_records_are_found_however_they_arrive() {
        let input = b"\0\0\0\x02ab\0\0\0\0\0\0\0\x01\n";
        for step in 1..=input.len() {
            let records = cut(Framing::Length, input, step).unwrap();
            assert_eq!(records, [&b"ab"[..], b"", b"\n"], "step {step}");
        }
    }

    #[test]
    fn an_input_that_ends_inside_a_record_is_an_error_that_names_it() {
        let input = b"\0\0\0\x02ab\0\0\0\x02c";
        for end in [7, 9, input.len()] {
            assert_eq!(cut(Framing::Length, &input[..end], 64), Err(FramingError::Truncated { record: 2 }));
        }
    }

    #[test]
    fn a_whole_file_is_one_record_also_an_empty_one() {
        assert_eq!(cut(Framing::Whole, b"a\nb\n", 3).unwrap(), [b"a\nb\n"]);
        assert_eq!(cut(Framing::Whole, b"", 1).unwrap(), [b""]);
    }

    #[test]
    fn what_no_frame_can_hold_is_refused_before_it_is_collected() {
        let huge = (RECORD_LEN_MAX as u32 + 1).to_be_bytes();
        assert_eq!(cut(Framing::Length, &huge, 4), Err(FramingError::TooLong { record: 1 }));
        let line = vec![b'x'; RECORD_LEN_MAX + 64];
        assert_eq!(cut(Framing::Line, &line, 1 << 20), Err(FramingError::TooLong { record: 1 }));
        assert_eq!(cut(Framing::Whole, &line, 1 << 20), Err(FramingError::TooLong { record: 1 }));
    }
}
