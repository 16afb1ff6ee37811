//! The bytes of an echo stream: requests are a length (four bytes, big endian) and that many bytes; an answer is the number
//! of the request on its stream from 1 (eight bytes, big endian). Scope: one per stream and side.
//! Invariants: bytes are counted, not kept; bytes from the network never panic; a request is bounded.
//! Not here: when a stream is read or written (`serve`, `load`).
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing))]

/// The length in front of a request.
pub const HEAD_BYTES: usize = 4;
/// The largest request, without its length.
pub const REQUEST_BYTES_MAX: u32 = 1 << 20;
/// An answer.
pub const ANSWER_BYTES: usize = 8;

/// A length beyond the bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a request of {0} bytes, allowed are {REQUEST_BYTES_MAX}")]
pub struct TooLong(pub u32);

/// Finds the ends of requests.
#[derive(Debug, Default)]
pub struct Requests {
    head: [u8; HEAD_BYTES],
    have: usize,
    /// Bytes of the request that have not come, once its length has.
    left: Option<usize>,
}

impl Requests {
    /// Takes the next bytes; says how many requests ended in them.
    ///
    /// # Errors
    /// A request that is too long. The stream is lost then.
    pub fn push(&mut self, mut bytes: &[u8]) -> Result<u64, TooLong> {
        let mut ended = 0;
        loop {
            if let Some(left) = &mut self.left {
                let now = bytes.len().min(*left);
                *left -= now;
                bytes = bytes.get(now..).unwrap_or_default();
                if *left > 0 {
                    return Ok(ended);
                }
                ended += 1;
                (self.left, self.have) = (None, 0);
            }
            fill(&mut self.head, &mut self.have, &mut bytes);
            if self.have < HEAD_BYTES {
                return Ok(ended);
            }
            let length = u32::from_be_bytes(self.head);
            if length > REQUEST_BYTES_MAX {
                return Err(TooLong(length));
            }
            self.left = Some(length as usize);
        }
    }
}

/// Reads answers.
#[derive(Debug, Default)]
pub struct Answers {
    bytes: [u8; ANSWER_BYTES],
    have: usize,
}

impl Answers {
    /// Takes bytes off the front up to the end of the next answer, if that is among them.
    pub fn next(&mut self, bytes: &mut &[u8]) -> Option<u64> {
        fill(&mut self.bytes, &mut self.have, bytes);
        if self.have < ANSWER_BYTES {
            return None;
        }
        self.have = 0;
        Some(u64::from_be_bytes(self.bytes))
    }
}

/// Moves bytes into what `target` lacks.
fn fill(target: &mut [u8], have: &mut usize, bytes: &mut &[u8]) {
    let room = target.get_mut(*have..).unwrap_or_default();
    let (now, later) = bytes.split_at(room.len().min(bytes.len()));
    let (room, _) = room.split_at_mut(now.len());
    room.copy_from_slice(now);
    *have += now.len();
    *bytes = later;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_end_at_the_same_places_however_they_are_cut() {
        let mut stream = Vec::new();
        for length in [300_u32, 0, 1, 256] {
            stream.extend_from_slice(&length.to_be_bytes());
            stream.extend(std::iter::repeat_n(7, length as usize));
        }
        stream.extend_from_slice(&[0, 0]);
        for piece in [1, 2, 3, 5, 64, 304, stream.len()] {
            let mut requests = Requests::default();
            let ended: u64 = stream.chunks(piece).map(|chunk| requests.push(chunk).unwrap()).sum();
            assert_eq!((ended, requests.have), (4, 2), "pieces of {piece}");
        }
    }

    #[test]
    fn a_request_without_bound_loses_the_stream() {
        let length = REQUEST_BYTES_MAX + 1;
        assert_eq!(Requests::default().push(&length.to_be_bytes()), Err(TooLong(length)));
        assert_eq!(Requests::default().push(&REQUEST_BYTES_MAX.to_be_bytes()), Ok(0));
    }

    #[test]
    fn answers_are_read_across_pieces() {
        let stream: Vec<u8> = [1_u64, 2, 3].into_iter().flat_map(u64::to_be_bytes).collect();
        for piece in [1, 3, 8, 11, 24] {
            let (mut answers, mut found) = (Answers::default(), Vec::new());
            for mut chunk in stream.chunks(piece) {
                while let Some(number) = answers.next(&mut chunk) {
                    found.push(number);
                }
                assert!(chunk.is_empty());
            }
            assert_eq!(found, [1, 2, 3], "pieces of {piece}");
        }
    }
}
