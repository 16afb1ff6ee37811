//! Datagrams on their way out. Scope: one batch per core, reused for ever.
//! Owns: one buffer per transmit; buffers keep their capacity, so a busy core stops allocating.
//! Invariants: transmits leave in the order they came; `advance` never skips one; each is one datagram, or a train
//! of datagrams of one size (the last may be shorter) for one GSO send, at most 65,507 bytes and 64 segments.
//! Not here: sending (udp), deciding what to send (machine).

use std::net::{IpAddr, SocketAddr};

use quinn_proto::EcnCodepoint;

/// Largest number of segments the kernel takes in one send.
pub const SEGMENTS_MAX: usize = 64;
/// Largest sum of one send: what a UDP datagram may carry over IPv4.
pub const TRAIN_BYTES_MAX: usize = 65_507;
/// A batch with this many bytes is full. More would keep the receiver waiting while it is encrypted, and would have left
/// the cache when it is sent.
pub const BATCH_BYTES: usize = 256 << 10;

/// How many datagrams of `mtu` bytes fit one send.
pub(super) fn segments_for(mtu: u16) -> usize {
    (TRAIN_BYTES_MAX / usize::from(mtu).max(1)).clamp(1, SEGMENTS_MAX)
}

/// One send: a datagram or a train of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transmit<'a> {
    pub remote: SocketAddr,
    /// The address to send from, where the socket is bound to all of them.
    pub local_ip: Option<IpAddr>,
    /// The two ECN bits.
    pub ecn: Option<u8>,
    /// Bytes per datagram of a train; `None` for a single datagram.
    pub segment_size: Option<usize>,
    pub contents: &'a [u8],
}

impl<'a> Transmit<'a> {
    /// The datagrams of this transmit, one by one.
    pub fn datagrams(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let size = self.segment_size.unwrap_or(self.contents.len()).max(1);
        self.contents.chunks(size)
    }
}

struct Slot {
    remote: SocketAddr,
    local_ip: Option<IpAddr>,
    ecn: Option<u8>,
    segment_size: Option<usize>,
    buffer: Vec<u8>,
}

/// A bounded batch of transmits. Filled by `Quic::poll_transmit`, emptied from the front as sends succeed.
pub struct Transmits {
    slots: Vec<Slot>,
    sent: usize,
    filled: usize,
    bytes: usize,
}

impl Transmits {
    /// Room for `capacity` transmits (at least 1), each up to 64 KiB once it was used for a full train, and for
    /// `BATCH_BYTES` in all, which the last one may pass.
    pub fn new(capacity: usize) -> Transmits {
        let empty = || Slot {
            remote: SocketAddr::from(([0, 0, 0, 0], 0)),
            local_ip: None,
            ecn: None,
            segment_size: None,
            buffer: Vec::new(),
        };
        let slots = std::iter::repeat_with(empty).take(capacity.max(1)).collect();
        Transmits { slots, sent: 0, filled: 0, bytes: 0 }
    }

    /// Transmits not sent yet, in order.
    pub fn iter(&self) -> impl Iterator<Item = Transmit<'_>> {
        self.slots[self.sent..self.filled].iter().map(|slot| Transmit {
            remote: slot.remote,
            local_ip: slot.local_ip,
            ecn: slot.ecn,
            segment_size: slot.segment_size,
            contents: &slot.buffer,
        })
    }

    /// The next transmit to send.
    pub fn front(&self) -> Option<Transmit<'_>> {
        self.iter().next()
    }

    /// Transmits not sent yet.
    pub fn len(&self) -> usize {
        self.filled - self.sent
    }

    pub fn is_empty(&self) -> bool {
        self.sent == self.filled
    }

    /// Whether another transmit fits. Room comes back when everything was sent.
    pub fn is_full(&self) -> bool {
        self.filled == self.slots.len() || self.bytes >= BATCH_BYTES
    }

    /// The first `count` transmits were sent, or are given up.
    pub fn advance(&mut self, count: usize) {
        self.sent = (self.sent + count).min(self.filled);
        if self.sent == self.filled {
            self.clear();
        }
    }

    /// Gives up whatever is unsent; for QUIC a lost datagram like any other.
    pub fn clear(&mut self) {
        self.sent = 0;
        self.filled = 0;
        self.bytes = 0;
    }

    /// The buffer of the next transmit, emptied; `None` when the batch is full. Becomes a transmit by `commit`.
    pub(super) fn buffer(&mut self) -> Option<&mut Vec<u8>> {
        if self.is_full() {
            return None;
        }
        let slot = self.slots.get_mut(self.filled)?;
        slot.buffer.clear();
        Some(&mut slot.buffer)
    }

    /// Makes the buffer a transmit.
    pub(super) fn commit(&mut self, meta: &quinn_proto::Transmit) {
        let slot = &mut self.slots[self.filled];
        debug_assert_eq!(slot.buffer.len(), meta.size, "a transmit is its whole buffer");
        slot.remote = meta.destination;
        slot.local_ip = meta.src_ip;
        slot.ecn = meta.ecn.map(|codepoint: EcnCodepoint| codepoint as u8);
        slot.segment_size = meta.segment_size;
        self.bytes += slot.buffer.len();
        self.filled += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta(size: usize, segment_size: Option<usize>) -> quinn_proto::Transmit {
        let destination = SocketAddr::from(([127, 0, 0, 1], 7));
        quinn_proto::Transmit { destination, ecn: None, size, segment_size, src_ip: None }
    }

    #[test]
    fn a_train_fits_one_send_at_every_mtu() {
        for mtu in [1_200, 1_452, 8_900, 40_000, 65_507] {
            let count = segments_for(mtu);
            assert!((1..=SEGMENTS_MAX).contains(&count));
            assert!(count * usize::from(mtu) <= TRAIN_BYTES_MAX, "{count} of {mtu}");
        }
        assert_eq!(segments_for(1_200), 54);
    }

    #[test]
    fn transmits_leave_in_order_and_room_comes_back_when_all_are_sent() {
        let mut batch = Transmits::new(2);
        for byte in [1u8, 2] {
            batch.buffer().unwrap().extend_from_slice(&[byte; 3]);
            batch.commit(&meta(3, None));
        }
        assert!(batch.is_full() && batch.buffer().is_none());
        batch.advance(1);
        assert_eq!(batch.front().unwrap().contents, &[2, 2, 2]);
        assert!(batch.is_full(), "buffers are taken in order");
        batch.advance(1);
        assert!(batch.is_empty() && !batch.is_full());
    }

    #[test]
    fn a_batch_is_full_at_its_bytes_too_and_has_room_when_all_are_sent() {
        let mut batch = Transmits::new(64);
        let train = BATCH_BYTES / 4;
        for _ in 0..4 {
            assert!(!batch.is_full());
            batch.buffer().unwrap().resize(train, 7);
            batch.commit(&meta(train, Some(train / 50)));
        }
        assert!(batch.is_full() && batch.buffer().is_none());
        batch.advance(3);
        assert!(batch.is_full(), "what is not sent counts");
        batch.advance(1);
        assert!(batch.buffer().is_some());
    }

    #[test]
    fn a_train_splits_into_its_datagrams() {
        let mut batch = Transmits::new(1);
        batch.buffer().unwrap().extend_from_slice(&[1, 1, 1, 2, 2, 2, 3]);
        batch.commit(&meta(7, Some(3)));
        let datagrams: Vec<_> = batch.front().unwrap().datagrams().collect();
        assert_eq!(datagrams, [&[1u8, 1, 1][..], &[2, 2, 2], &[3]]);
    }
}
