//! Connection ids that carry the core. Scope: one generator per core.
//! Owns: how an id is made and how a core is read from a datagram.
//! Invariants: byte 0 of every id we issue is congruent to our core modulo the number of cores, so the socket
//! filter, the stray forwarding and the endpoint agree on who owns a datagram; ids are unpredictable to those
//! who do not know the key.
//! Not here: the socket filter itself (udp).

#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::time::Duration;

use aws_lc_rs::hmac;
use quinn_proto::{ConnectionId, ConnectionIdGenerator, InvalidCid};

/// Length of the ids we issue.
pub(super) const CID_LEN: usize = 8;
/// Length of the first destination id a client of ours makes up. RFC 9000 7.2 asks for at least 8.
const FIRST_CID_LEN: usize = 16;

/// The core that owns a datagram: its destination id's first byte, modulo `cores`.
///
/// A long header (first bit set) has the id at byte 6, a short one at byte 1; the same rule as the socket
/// filter's. `None` when the datagram is too short to say or `cores` is zero.
pub fn core_of_datagram(data: &[u8], cores: u16) -> Option<u16> {
    let long = data.first()? & 0x80 != 0;
    let byte = data.get(if long { 6 } else { 1 })?;
    u16::from(*byte).checked_rem(cores)
}

/// Makes ids by a keyed hash of a counter: as hard to guess as the key, and repeatable from a seed.
#[derive(Clone)]
pub(super) struct CidSource {
    key: hmac::Key,
    /// Keeps sources of one key apart.
    purpose: u8,
    made: u64,
    core: u16,
    cores: u16,
}

impl CidSource {
    /// `core` is below `cores`, `cores` at most 256: checked by the settings.
    pub(super) fn new(secret: &[u8; 32], purpose: u8, core: u16, cores: u16) -> CidSource {
        CidSource { key: hmac::Key::new(hmac::HMAC_SHA256, secret), purpose, made: 0, core, cores }
    }

    fn next_random(&mut self) -> [u8; 32] {
        let mut input = [0u8; 9];
        let (purpose, counter) = input.split_at_mut(1);
        purpose.fill(self.purpose);
        counter.copy_from_slice(&self.made.to_be_bytes());
        self.made += 1;
        let mut out = [0u8; 32];
        out.copy_from_slice(hmac::sign(&self.key, &input).as_ref());
        out
    }

    /// A first destination id for a connection we start. `core` picks the server's core by its number,
    /// `None` leaves it to chance.
    pub(super) fn first_destination(&mut self, core: Option<u8>) -> ConnectionId {
        let mut bytes = self.next_random();
        if let (Some(core), Some(first)) = (core, bytes.first_mut()) {
            *first = core;
        }
        ConnectionId::new(bytes.get(..FIRST_CID_LEN).unwrap_or(&[]))
    }
}

impl ConnectionIdGenerator for CidSource {
    fn generate_cid(&mut self) -> ConnectionId {
        let mut bytes = self.next_random();
        if let Some(first) = bytes.first_mut() {
            // Of the 256 values, those that are `core` modulo `cores`.
            let choices = (255 - self.core) / self.cores + 1;
            let byte = self.core + self.cores * (u16::from(*first) % choices);
            *first = u8::try_from(byte).unwrap_or(u8::MAX);
        }
        ConnectionId::new(bytes.get(..CID_LEN).unwrap_or(&[]))
    }

    /// Refusing ids of other cores keeps this endpoint from answering a stray with a valid stateless reset.
    fn validate(&self, cid: &ConnectionId) -> Result<(), InvalidCid> {
        match cid.first() {
            Some(byte) if u16::from(*byte) % self.cores == self.core => Ok(()),
            _ => Err(InvalidCid),
        }
    }

    fn cid_len(&self) -> usize {
        CID_LEN
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

#[cfg(test)]
#[allow(clippy::indexing_slicing)]
mod tests {
    use super::*;

    #[test]
    fn every_id_maps_to_its_core() {
        for cores in [1u16, 2, 3, 7, 8, 255, 256] {
            for core in [0, cores / 2, cores - 1] {
                let mut source = CidSource::new(&[9; 32], 0, core, cores);
                for _ in 0..200 {
                    let cid = source.generate_cid();
                    assert_eq!(cid.len(), CID_LEN);
                    assert_eq!(u16::from(cid[0]) % cores, core);
                    assert!(source.validate(&cid).is_ok());
                    let mut short = vec![0x40];
                    short.extend_from_slice(&cid);
                    assert_eq!(core_of_datagram(&short, cores), Some(core));
                    let mut long = vec![0xc0, 0, 0, 0, 1, 8];
                    long.extend_from_slice(&cid);
                    assert_eq!(core_of_datagram(&long, cores), Some(core));
                }
            }
        }
    }

    #[test]
    fn an_id_of_another_core_is_not_ours() {
        let mut other = CidSource::new(&[9; 32], 0, 1, 4);
        let ours = CidSource::new(&[9; 32], 0, 2, 4);
        assert!(ours.validate(&other.generate_cid()).is_err());
    }

    #[test]
    fn ids_repeat_from_a_secret_and_differ_by_purpose_and_count() {
        let mut first = CidSource::new(&[1; 32], 0, 0, 1);
        let mut again = CidSource::new(&[1; 32], 0, 0, 1);
        let mut other = CidSource::new(&[1; 32], 1, 0, 1);
        let id = first.generate_cid();
        assert_eq!(id, again.generate_cid());
        assert_ne!(id, other.generate_cid());
        assert_ne!(id, first.generate_cid());
    }

    #[test]
    fn a_chosen_core_is_the_first_byte_of_a_first_destination() {
        let mut source = CidSource::new(&[1; 32], 1, 0, 1);
        let id = source.first_destination(Some(5));
        assert_eq!(id[0], 5);
        assert!(id.len() >= 8, "RFC 9000 7.2");
        assert_ne!(id, source.first_destination(Some(5)));
    }

    #[test]
    fn a_datagram_too_short_has_no_core() {
        assert_eq!(core_of_datagram(&[], 4), None);
        assert_eq!(core_of_datagram(&[0x40], 4), None);
        assert_eq!(core_of_datagram(&[0xc0, 0, 0, 0, 1, 8], 4), None);
        assert_eq!(core_of_datagram(&[0x40, 7], 0), None);
        assert_eq!(core_of_datagram(&[0x40, 7], 4), Some(3));
    }
}
