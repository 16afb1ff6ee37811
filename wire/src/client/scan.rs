//! One pass over a JSON message before it is parsed.
//! Owns: finding `type` and `request_id`, and the rules a typed parser does not check in members it ignores:
//! nesting depth, repeated members, lone surrogates.
//! Invariants: accepts every message the protocol accepts; what it lets through may still not be JSON (the
//! parser that follows decides), but never nests deeper than `JSON_DEPTH_MAX`.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::borrow::Cow;

use crate::frame::DecodeError;
use crate::limits::JSON_DEPTH_MAX;

/// What is known of a message before its members are read.
#[derive(Debug)]
pub(super) struct Envelope<'a> {
    pub(super) type_name: Cow<'a, str>,
    /// The member `request_id` when it is a plain u64.
    pub(super) request_id: Option<u64>,
}

/// Objects with more members than this are sorted to find a repeated one; below it, comparing each pair is
/// quicker.
const PAIRWISE_MAX: usize = 16;

const NOT_JSON: DecodeError = DecodeError::Malformed("not JSON");

/// Scans a payload.
///
/// # Errors
/// `Malformed` when the text is not an object with one string member `type`, or breaks a rule above.
pub(super) fn scan(text: &str) -> Result<Envelope<'_>, DecodeError> {
    let mut scanner = Scanner { text, at: 0, keys: Vec::new(), type_value: None, request_id_value: None };
    scanner.skip_space();
    if scanner.peek() != Some(b'{') {
        return Err(DecodeError::Malformed("a message must be a JSON object"));
    }
    scanner.object(1)?;
    scanner.skip_space();
    if scanner.peek().is_some() {
        return Err(DecodeError::Malformed("bytes after the JSON object"));
    }
    let value = scanner.type_value.ok_or(DecodeError::Malformed("a message needs a type"))?;
    let type_name = unquote(value).ok_or(DecodeError::Malformed("the type must be a string"))?;
    let request_id = scanner.request_id_value.and_then(|value| value.parse().ok());
    Ok(Envelope { type_name, request_id })
}

struct Scanner<'a> {
    text: &'a str,
    at: usize,
    /// Member names of all objects that are open, innermost last; quoted, as written.
    keys: Vec<&'a str>,
    type_value: Option<&'a str>,
    request_id_value: Option<&'a str>,
}

impl<'a> Scanner<'a> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    /// Skips one byte that must be there, and the space around it.
    fn expect(&mut self, byte: u8) -> Result<(), DecodeError> {
        self.skip_space();
        if self.peek() != Some(byte) {
            return Err(NOT_JSON);
        }
        self.at += 1;
        self.skip_space();
        Ok(())
    }

    fn value(&mut self, depth: usize) -> Result<&'a str, DecodeError> {
        let start = self.at;
        match self.peek() {
            Some(b'{') => self.object(depth + 1)?,
            Some(b'[') => self.array(depth + 1)?,
            Some(b'"') => {
                self.string()?;
            }
            Some(_) => self.scalar(),
            None => return Err(NOT_JSON),
        }
        self.text.get(start..self.at).filter(|value| !value.is_empty()).ok_or(NOT_JSON)
    }

    fn object(&mut self, depth: usize) -> Result<(), DecodeError> {
        check_depth(depth)?;
        let first_key = self.keys.len();
        self.expect(b'{')?;
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Ok(());
        }
        loop {
            let key = self.string()?;
            self.keys.push(key);
            self.expect(b':')?;
            let value = self.value(depth)?;
            if depth == 1 {
                match key {
                    "\"type\"" => self.type_value = Some(value),
                    "\"request_id\"" => self.request_id_value = Some(value),
                    _ => {}
                }
            }
            self.skip_space();
            match self.peek() {
                Some(b',') => self.expect(b',')?,
                Some(b'}') => break,
                _ => return Err(NOT_JSON),
            }
        }
        self.at += 1;
        check_unique(self.keys.get_mut(first_key..).unwrap_or_default())?;
        self.keys.truncate(first_key);
        Ok(())
    }

    fn array(&mut self, depth: usize) -> Result<(), DecodeError> {
        check_depth(depth)?;
        self.expect(b'[')?;
        if self.peek() == Some(b']') {
            self.at += 1;
            return Ok(());
        }
        loop {
            self.value(depth)?;
            self.skip_space();
            match self.peek() {
                Some(b',') => self.expect(b',')?,
                Some(b']') => break,
                _ => return Err(NOT_JSON),
            }
        }
        self.at += 1;
        Ok(())
    }

    /// A number or word: everything up to the next structural byte. The parser that follows reads it.
    fn scalar(&mut self) {
        let rest = self.text.as_bytes().get(self.at..).unwrap_or_default();
        let ends =
            |byte: &u8| matches!(byte, b',' | b'}' | b']' | b' ' | b'\t' | b'\n' | b'\r' | b'"' | b':');
        self.at += rest.iter().position(ends).unwrap_or(rest.len());
    }

    /// A string with its quotes.
    fn string(&mut self) -> Result<&'a str, DecodeError> {
        let start = self.at;
        if self.peek() != Some(b'"') {
            return Err(NOT_JSON);
        }
        self.at += 1;
        let mut escaped = false;
        loop {
            let rest = self.text.as_bytes().get(self.at..).unwrap_or_default();
            let stop = rest.iter().position(|byte| matches!(byte, b'"' | b'\\')).ok_or(NOT_JSON)?;
            self.at += stop + 1;
            if rest.get(stop) == Some(&b'"') {
                break;
            }
            escaped = true;
            self.at += 1;
        }
        let quoted = self.text.get(start..self.at).ok_or(NOT_JSON)?;
        if escaped && unquote(quoted).is_none() {
            return Err(DecodeError::Malformed("a bad escape in a string"));
        }
        Ok(quoted)
    }
}

fn check_depth(depth: usize) -> Result<(), DecodeError> {
    if depth > JSON_DEPTH_MAX { Err(DecodeError::Malformed("the JSON nests too deeply")) } else { Ok(()) }
}

/// The text of a quoted string.
fn unquote(quoted: &str) -> Option<Cow<'_, str>> {
    let inner = quoted.strip_prefix('"')?.strip_suffix('"')?;
    if inner.contains('\\') {
        serde_json::from_str(quoted).ok().map(Cow::Owned)
    } else {
        Some(Cow::Borrowed(inner))
    }
}

/// Refuses two equal names in one object, however they are escaped.
fn check_unique(keys: &mut [&str]) -> Result<(), DecodeError> {
    if keys.iter().any(|key| key.contains('\\')) {
        let mut names: Vec<_> = keys.iter().map(|key| unquote(key)).collect();
        names.sort_unstable();
        return if has_equal_neighbours(&names) { Err(REPEATED) } else { Ok(()) };
    }
    let repeated = if keys.len() > PAIRWISE_MAX {
        keys.sort_unstable();
        has_equal_neighbours(keys)
    } else {
        keys.iter().enumerate().any(|(at, key)| keys.iter().skip(at + 1).any(|other| other == key))
    };
    if repeated { Err(REPEATED) } else { Ok(()) }
}

const REPEATED: DecodeError = DecodeError::Malformed("a member is repeated");

fn has_equal_neighbours<T: PartialEq>(sorted: &[T]) -> bool {
    sorted.iter().zip(sorted.iter().skip(1)).any(|(a, b)| a == b)
}
