//! Keys and values as people give them: text, `@FILE`, or standard input. Scope: per command.
//! Invariants: what is too large for one request is not read to its end; a text that begins with `@` is given as `@@`.

use std::fs::File;
use std::io::{self, Read};

use bytes::Bytes;
use felix_wire::limits::FRAME_PAYLOAD_MAX;

use super::failure::{Failure, Outcome};

/// A value: text, `@FILE` for the bytes of a file, `-` or nothing for those of standard input.
///
/// # Errors
/// `Usage` for a file that cannot be read, and for more than fits in one request.
pub fn value(given: Option<&str>) -> Outcome<Bytes> {
    match given {
        None | Some("-") => read("standard input", io::stdin()),
        Some(text) => text_or_file(text),
    }
}

/// A key: text, or `@FILE` for the text in a file without the newline at its end.
///
/// # Errors
/// As [`value`], and for bytes that are no text.
pub fn key(given: &str) -> Outcome<String> {
    let bytes = text_or_file(given)?;
    let text = std::str::from_utf8(&bytes)
        .map_err(|error| Failure::usage(format!("{given}: a key is UTF-8 text: {error}")))?;
    if !given.starts_with('@') || given.starts_with("@@") {
        return Ok(text.to_owned());
    }
    let text = text.strip_suffix('\n').unwrap_or(text);
    Ok(text.strip_suffix('\r').unwrap_or(text).to_owned())
}

fn text_or_file(given: &str) -> Outcome<Bytes> {
    match given.strip_prefix('@') {
        None => Ok(Bytes::copy_from_slice(given.as_bytes())),
        Some(rest) if rest.starts_with('@') => Ok(Bytes::copy_from_slice(rest.as_bytes())),
        Some(path) => {
            let file = File::open(path).map_err(|error| Failure::usage(format!("{path}: {error}")))?;
            read(path, file)
        }
    }
}

fn read(name: &str, source: impl Read) -> Outcome<Bytes> {
    let most = u64::from(FRAME_PAYLOAD_MAX);
    let mut bytes = Vec::new();
    source
        .take(most + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| Failure::usage(format!("{name}: {error}")))?;
    if bytes.len() as u64 > most {
        return Err(Failure::usage(format!("{name}: more than the {most} bytes that fit in one request")));
    }
    Ok(bytes.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_files_and_an_at_sign_are_told_apart() {
        let folder = tempfile::tempdir().unwrap();
        let file = |bytes: &[u8]| {
            let path = folder.path().join("f");
            std::fs::write(&path, bytes).unwrap();
            format!("@{}", path.display())
        };
        assert_eq!(value(Some("text")).unwrap(), "text");
        assert_eq!(value(Some("")).unwrap(), "");
        assert_eq!(value(Some("@@home")).unwrap(), "@home");
        assert_eq!(value(Some(&file(b"a\xff\n"))).unwrap(), &b"a\xff\n"[..]);
        assert_eq!(key("k\n").unwrap(), "k\n");
        assert_eq!(key("@@k").unwrap(), "@k");
        assert_eq!(key(&file(b"k\r\n")).unwrap(), "k");
        assert_eq!(key(&file(b"")).unwrap(), "");
        for failure in [key(&file(b"\xff")).unwrap_err(), value(Some("@/nowhere/f")).unwrap_err()] {
            assert_eq!(failure.kind.status(), 2, "{failure}");
        }
    }

    #[test]
    fn what_does_not_fit_in_one_request_is_refused() {
        let failure = read("x", io::repeat(b'x')).unwrap_err();
        assert_eq!(failure.kind.status(), 2, "{failure}");
        assert_eq!(read("x", io::repeat(b'x').take(u64::from(FRAME_PAYLOAD_MAX))).unwrap().len(), 16 << 20);
    }
}
