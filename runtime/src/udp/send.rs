//! Sends datagrams without waiting, many segments per system call where the kernel takes them.
//! Scope: the send half of [`UdpIo`]. Owns: the gate that says whether segmented sends work, and how far into a
//! transmit an interrupted series of single sends got.
//! Invariants: transmits go out in order; what does not fit the socket buffer stays with the caller; an error that is
//! one datagram's own is counted and the next one is sent; one odd refusal never turns segmentation off for everybody.
//! Not here: which connection may send (`quic`), waiting for room (executor).

#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::io::{self, IoSlice};
use std::net::SocketAddr;

use socket2::{MsgHdr, SockAddr};

use super::{Transmit, UdpIo, cmsg};

/// Segments the kernel takes in one send.
pub const MAX_GSO_SEGMENTS: usize = 64;
/// Bytes the kernel takes in one send: what fits an IPv4 datagram.
pub const MAX_GSO_BYTES: usize = 65_507;
/// Refused segmented sends in a row, each with its pieces accepted one by one, after which segmentation is off.
const STRIKES_MAX: u32 = 16;

/// Segments of this size that one send may carry.
pub(super) fn segments_that_fit(segment_size: usize) -> usize {
    (MAX_GSO_BYTES / segment_size.max(1)).clamp(1, MAX_GSO_SEGMENTS)
}

/// What one [`UdpIo::send`] did.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct SendOutcome {
    /// Transmits dealt with (sent or refused), from the first. The others are still the caller's.
    pub taken: usize,
    pub datagrams: usize,
    pub bytes: usize,
    /// Datagrams of the taken transmits that the kernel refused for good.
    pub failed: usize,
    /// The socket buffer is full: call again with the rest in a while. Nothing wakes a core for it, so bound the wait.
    pub blocked: bool,
}

/// How far a series of single sends had come when the socket buffer was full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Resume {
    remote: SocketAddr,
    len: usize,
    sent: usize,
}

/// Whether segmented sends are worth trying.
#[derive(Debug)]
pub(super) struct GsoGate {
    open: bool,
    strikes: u32,
}

impl GsoGate {
    pub(super) fn new() -> GsoGate {
        GsoGate { open: true, strikes: 0 }
    }

    pub(super) fn open(&self) -> bool {
        self.open
    }

    fn accepted(&mut self) {
        self.strikes = 0;
    }

    /// A segmented send was refused and its pieces went out one by one. `EIO` means the device cannot do it at all; other
    /// errors may be the peer's doing (an address or a size), so only a long run of them counts.
    fn refused(&mut self, errno: i32) {
        self.strikes += 1;
        if errno == libc::EIO || self.strikes >= STRIKES_MAX {
            self.open = false;
        }
    }
}

enum Sent {
    Yes,
    Blocked,
    Refused(i32),
}

impl UdpIo {
    /// Sends the transmits in order until all are dealt with or the socket buffer is full. Never waits. After a blocked
    /// send the next call should start with the first transmit that was not taken; a transmit that went out in part
    /// is then continued, not repeated.
    pub fn send<'a>(&mut self, transmits: impl IntoIterator<Item = Transmit<'a>>) -> SendOutcome {
        let mut outcome = SendOutcome::default();
        for transmit in transmits {
            if !self.send_transmit(&transmit, &mut outcome) {
                outcome.blocked = true;
                self.counts.send_blocked += 1;
                break;
            }
            outcome.taken += 1;
        }
        self.blocked = outcome.blocked;
        self.counts.send_datagrams += outcome.datagrams as u64;
        self.counts.send_bytes += outcome.bytes as u64;
        self.counts.send_failed += outcome.failed as u64;
        outcome
    }

    /// Whether the last send left something with the caller.
    pub(crate) fn send_is_blocked(&self) -> bool {
        self.blocked
    }

    /// False when the socket buffer is full.
    fn send_transmit(&mut self, transmit: &Transmit<'_>, outcome: &mut SendOutcome) -> bool {
        let len = transmit.contents.len();
        let size = transmit.segment_size.unwrap_or(len).clamp(1, len.max(1));
        let resumed =
            self.resume.take().filter(|resume| resume.remote == transmit.remote && resume.len == len);
        let mut sent = resumed.map_or(0, |resume| resume.sent);
        if transmit.remote.port() == 0 {
            outcome.failed += len.div_ceil(size).max(1);
            return true;
        }
        let mut per_send = self.max_segments(size);
        let mut refusal = None;
        loop {
            let rest = transmit.contents.get(sent..).unwrap_or_default();
            let part = rest.get(..size.saturating_mul(per_send)).unwrap_or(rest);
            let segments = part.len().div_ceil(size).max(1);
            match self.send_part(transmit, part, size) {
                Sent::Yes => {
                    outcome.datagrams += segments;
                    outcome.bytes += part.len();
                    if segments > 1 {
                        self.gso.accepted();
                    } else if let Some(errno) = refusal.take() {
                        self.gso.refused(errno);
                    }
                }
                Sent::Blocked => {
                    self.resume = Some(Resume { remote: transmit.remote, len, sent });
                    return false;
                }
                Sent::Refused(errno) if segments > 1 => {
                    self.counts.gso_refused += 1;
                    per_send = 1;
                    refusal = Some(errno);
                    continue;
                }
                Sent::Refused(_) => outcome.failed += 1,
            }
            sent += part.len();
            if sent >= len {
                return true;
            }
        }
    }

    /// One `sendmsg`.
    fn send_part(&mut self, transmit: &Transmit<'_>, part: &[u8], size: usize) -> Sent {
        let over_ipv4 = transmit.remote.ip().to_canonical().is_ipv4();
        let mut control = cmsg::SendControl::new();
        if let Some(bits) = transmit.ecn {
            control.ecn(over_ipv4, bits);
        }
        if let Some(ip) = transmit.local_ip {
            control.source(over_ipv4, ip);
        }
        if part.len() > size {
            control.segment_size(u16::try_from(size).unwrap_or(u16::MAX));
        }
        let remote = SockAddr::from(self.as_sent(transmit.remote));
        let buffers = [IoSlice::new(part)];
        let mut header = MsgHdr::new().with_addr(&remote).with_buffers(&buffers);
        if !control.as_slice().is_empty() {
            header = header.with_control(control.as_slice());
        }
        loop {
            self.counts.send_calls += 1;
            match self.socket.sendmsg(&header, libc::MSG_DONTWAIT) {
                Ok(_) => return Sent::Yes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Sent::Blocked,
                Err(error) => return Sent::Refused(error.raw_os_error().unwrap_or(0)),
            }
        }
    }

    /// IPv4 peers of a dual-stack socket are reached by their mapped address.
    fn as_sent(&self, remote: SocketAddr) -> SocketAddr {
        match remote {
            SocketAddr::V4(v4) if self.ipv6 => SocketAddr::from((v4.ip().to_ipv6_mapped(), v4.port())),
            SocketAddr::V4(_) | SocketAddr::V6(_) => remote,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_cannot_segment_closes_the_gate_at_once() {
        let mut gate = GsoGate::new();
        gate.refused(libc::EIO);
        assert!(!gate.open());
    }

    #[test]
    fn refusals_of_single_peers_never_close_the_gate() {
        let mut gate = GsoGate::new();
        for _ in 0..1_000 {
            for _ in 1..STRIKES_MAX {
                gate.refused(libc::EINVAL);
            }
            gate.accepted();
        }
        assert!(gate.open());
    }

    #[test]
    fn refusals_without_an_end_close_the_gate() {
        let mut gate = GsoGate::new();
        for _ in 0..STRIKES_MAX {
            assert!(gate.open());
            gate.refused(libc::EINVAL);
        }
        assert!(!gate.open());
    }

    #[test]
    fn segments_of_one_send_fit_an_ipv4_datagram() {
        for size in 1..=70_000 {
            let fit = segments_that_fit(size);
            assert!((1..=MAX_GSO_SEGMENTS).contains(&fit));
            assert!(fit == 1 || fit * size <= MAX_GSO_BYTES);
        }
    }
}
