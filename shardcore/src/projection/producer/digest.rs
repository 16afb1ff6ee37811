//! What tells a re-send from another batch under the same number. Scope: values.
//! Invariants: the digest of the same payloads is the same in every build and on every machine; it is kept in snapshots,
//! so another algorithm is another version of the snapshot.
//! Not here: integrity of stored bytes, which is the log's checksum.

/// Odd, its bits evenly spread: 2^64 divided by the golden ratio.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
/// Any number but 0, so that empty payloads count: the first digits of pi.
const START: u64 = 0x243f_6a88_85a3_08d3;

/// 64 bits over the lengths and bytes of the payloads of a batch, in order.
///
/// The words (length, then the payload in little-endian groups of 8 bytes, the last filled with zeros) of every payload,
/// then their number, go one by one through a 64 x 64 -> 128 bit multiplication whose halves are combined. Two
/// CRC-32C of the same bytes would not do: for payloads of equal length the one follows from the other, whatever
/// their seeds, so they are worth 32 bits.
///
/// Two batches that differ collide with a chance of about 2^-64. That only matters when both were sent under one
/// sequence, which is a mistake of the producer: it is then answered with the offset of the first one instead of being
/// refused as reused, and nothing is appended. It does not resist somebody who looks for collisions; they could fool
/// their own producer only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Digest(pub u64);

impl Digest {
    /// The digest of `payloads`; reads each byte once and allocates nothing.
    pub fn of<P: AsRef<[u8]>>(payloads: impl IntoIterator<Item = P>) -> Digest {
        let mut state = START;
        let mut count = 0_u64;
        for payload in payloads {
            let payload = payload.as_ref();
            state = mix(state ^ payload.len() as u64);
            let (words, rest) = payload.as_chunks::<8>();
            for word in words {
                state = mix(state ^ u64::from_le_bytes(*word));
            }
            if !rest.is_empty() {
                let mut word = [0; 8];
                word[..rest.len()].copy_from_slice(rest);
                state = mix(state ^ u64::from_le_bytes(word));
            }
            count += 1;
        }
        Digest(mix(state ^ count))
    }
}

fn mix(word: u64) -> u64 {
    let product = u128::from(word) * u128::from(FACTOR);
    (product as u64) ^ ((product >> 64) as u64)
}
