//! Finding ALPN in a TLS ClientHello. Scope: pure functions over bytes from the network.
//! Invariants: never panics, never reads past the hello, answers `NeedMore` only while bytes are missing.
//! Not here: what follows from the answer (alpn), every other part of the hello (rustls).

#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

/// TLS handshake message type of a ClientHello (RFC 8446 4).
const CLIENT_HELLO: u8 = 1;
/// TLS extension type of application_layer_protocol_negotiation (RFC 7301 3.1).
const ALPN_EXTENSION: u16 = 16;
/// Largest hello we collect. Real ones are a few hundred bytes to about 2 KiB (post-quantum key shares).
pub(super) const HELLO_MAX_BYTES: usize = 16 * 1024;

/// What the first handshake bytes of a client say about ALPN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hello {
    /// The hello is not complete yet.
    NeedMore,
    /// A whole hello. `alpn`: whether it carries the ALPN extension.
    Whole { alpn: bool },
    /// Not a hello, larger than `HELLO_MAX_BYTES`, or its lengths contradict each other.
    Malformed,
}

/// Looks at the handshake bytes received so far, which may be cut anywhere.
pub(super) fn inspect(bytes: &[u8]) -> Hello {
    let Some((&kind, rest)) = bytes.split_first() else { return Hello::NeedMore };
    if kind != CLIENT_HELLO {
        return Hello::Malformed;
    }
    let Some((length, rest)) = rest.split_first_chunk::<3>() else { return Hello::NeedMore };
    let [high, middle, low] = *length;
    let length = u32::from_be_bytes([0, high, middle, low]) as usize;
    if length > HELLO_MAX_BYTES {
        return Hello::Malformed;
    }
    match rest.get(..length) {
        None => Hello::NeedMore,
        Some(body) => match carries_alpn(body) {
            Some(alpn) => Hello::Whole { alpn },
            None => Hello::Malformed,
        },
    }
}

/// `None` when the body breaks its own lengths. A hello without extensions has no ALPN.
fn carries_alpn(body: &[u8]) -> Option<bool> {
    let mut cursor = Cursor(body);
    cursor.take(2 + 32)?; // version, random
    cursor.vec_u8()?; // session id
    cursor.vec_u16()?; // cipher suites
    cursor.vec_u8()?; // compression methods
    if cursor.0.is_empty() {
        return Some(false);
    }
    let mut extensions = Cursor(cursor.vec_u16()?);
    let mut found = false;
    while !extensions.0.is_empty() {
        let kind = extensions.u16()?;
        extensions.vec_u16()?;
        found |= kind == ALPN_EXTENSION;
    }
    Some(found)
}

struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn u16(&mut self) -> Option<u16> {
        let (taken, rest) = self.0.split_first_chunk::<2>()?;
        self.0 = rest;
        Some(u16::from_be_bytes(*taken))
    }

    fn vec_u8(&mut self) -> Option<&'a [u8]> {
        let (&count, rest) = self.0.split_first()?;
        self.0 = rest;
        self.take(usize::from(count))
    }

    fn vec_u16(&mut self) -> Option<&'a [u8]> {
        let count = self.u16()?;
        self.take(usize::from(count))
    }
}

#[cfg(test)]
#[allow(clippy::indexing_slicing)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A hello with the given extensions, correct in its lengths.
    fn hello(extensions: &[(u16, &[u8])]) -> Vec<u8> {
        let mut list = Vec::new();
        for (kind, value) in extensions {
            list.extend_from_slice(&kind.to_be_bytes());
            list.extend_from_slice(&(value.len() as u16).to_be_bytes());
            list.extend_from_slice(value);
        }
        let mut body = vec![3, 3];
        body.extend_from_slice(&[7; 32]);
        body.extend_from_slice(&[4, 1, 2, 3, 4]);
        body.extend_from_slice(&[0, 2, 0x13, 0x01]);
        body.extend_from_slice(&[1, 0]);
        body.extend_from_slice(&(list.len() as u16).to_be_bytes());
        body.extend_from_slice(&list);
        let mut out = vec![CLIENT_HELLO];
        out.extend_from_slice(&(body.len() as u32).to_be_bytes()[1..]);
        out.extend_from_slice(&body);
        out
    }

    #[test]
    fn a_hello_tells_whether_it_offers_alpn() {
        assert_eq!(inspect(&hello(&[(43, &[2, 3, 4])])), Hello::Whole { alpn: false });
        assert_eq!(inspect(&hello(&[])), Hello::Whole { alpn: false });
        let with = hello(&[(43, &[2, 3, 4]), (16, b"\x00\x08\x07felix/1"), (51, &[0; 40])]);
        assert_eq!(inspect(&with), Hello::Whole { alpn: true });
    }

    #[test]
    fn every_cut_of_a_hello_needs_more() {
        let whole = hello(&[(43, &[2, 3, 4]), (16, b"\x00\x08\x07felix/1")]);
        for end in 0..whole.len() {
            assert_eq!(inspect(&whole[..end]), Hello::NeedMore, "cut at {end}");
        }
    }

    #[test]
    fn bytes_after_the_hello_do_not_matter() {
        let mut bytes = hello(&[(16, b"\x00\x08\x07felix/1")]);
        bytes.extend_from_slice(&[0xff; 10]);
        assert_eq!(inspect(&bytes), Hello::Whole { alpn: true });
    }

    #[test]
    fn contradicting_lengths_are_malformed() {
        let mut bytes = hello(&[(16, b"\x00\x08\x07felix/1")]);
        let at = 4 + 2 + 32; // session id length
        bytes[at] = 250;
        assert_eq!(inspect(&bytes), Hello::Malformed);
        assert_eq!(inspect(&[2, 0, 0, 0]), Hello::Malformed, "a ServerHello is no ClientHello");
        assert_eq!(inspect(&[1, 0xff, 0, 0]), Hello::Malformed, "16 MiB is no hello");
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            inspect(&bytes);
        }

        #[test]
        fn a_damaged_hello_never_panics(at in 0usize..80, value: u8, cut in 0usize..90) {
            let mut bytes = hello(&[(43, &[2, 3, 4]), (16, b"\x00\x08\x07felix/1")]);
            let at = at.min(bytes.len() - 1);
            bytes[at] = value;
            bytes.truncate(cut);
            inspect(&bytes);
        }
    }
}
