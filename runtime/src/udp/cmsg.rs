//! Control messages of `recvmsg` and `sendmsg`, laid out by hand in byte slices.
//! Scope: pure functions over buffers. Owns nothing.
//! Invariants: parsing stops at the first message whose length does not fit; building never exceeds the buffer.
//! Not here: the system calls.

#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Room for every message asked for on receive (packet info, TOS, GRO size) or used on send.
const CONTROL_BYTES: usize = 128;
const HEADER_BYTES: usize = 16;
const ALIGN: usize = 8;
const _: () =
    assert!(size_of::<libc::cmsghdr>() == HEADER_BYTES, "cmsghdr is laid out here for 64-bit Linux");
const _: () = assert!(align_of::<libc::cmsghdr>() == ALIGN);

/// An aligned, always initialised buffer that `recvmsg` writes into.
#[repr(align(8))]
pub(super) struct ControlBuffer {
    bytes: [MaybeUninit<u8>; CONTROL_BYTES],
}

impl ControlBuffer {
    pub(super) fn new() -> ControlBuffer {
        ControlBuffer { bytes: [MaybeUninit::new(0); CONTROL_BYTES] }
    }

    pub(super) fn as_mut(&mut self) -> &mut [MaybeUninit<u8>] {
        &mut self.bytes
    }

    /// The first `len` bytes, `len` being what the kernel reported.
    pub(super) fn filled(&self, len: usize) -> &[u8] {
        let len = len.min(CONTROL_BYTES);
        // SAFETY: every byte was initialised in `new`, and the kernel only writes initialised bytes over them; `len` is
        // inside the array.
        unsafe { std::slice::from_raw_parts(self.bytes.as_ptr().cast::<u8>(), len) }
    }
}

/// What the kernel said about a received buffer.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct RecvControl {
    pub(super) local_ip: Option<IpAddr>,
    pub(super) ecn: Option<u8>,
    /// Size of each datagram in the buffer, when the kernel joined several.
    pub(super) segment_size: Option<usize>,
}

pub(super) fn parse(mut control: &[u8]) -> RecvControl {
    let mut found = RecvControl::default();
    while let Some((level, kind, data)) = next(&mut control) {
        match (level, kind) {
            (libc::IPPROTO_IP, libc::IP_TOS) => found.ecn = data.first().and_then(|tos| ecn_bits(*tos)),
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                found.ecn = int(data).and_then(|class| ecn_bits((class & 0xff) as u8));
            }
            // struct in_pktinfo { int ifindex; in_addr spec_dst; in_addr addr; }
            (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                if let Some(octets) = data.get(8..12).and_then(|b| <[u8; 4]>::try_from(b).ok()) {
                    found.local_ip = Some(IpAddr::V4(Ipv4Addr::from(octets)));
                }
            }
            // struct in6_pktinfo { in6_addr addr; unsigned ifindex; }
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                if let Some(octets) = data.get(..16).and_then(|b| <[u8; 16]>::try_from(b).ok()) {
                    found.local_ip = Some(IpAddr::V6(Ipv6Addr::from(octets)).to_canonical());
                }
            }
            (libc::SOL_UDP, libc::UDP_GRO) => {
                found.segment_size =
                    int(data).and_then(|size| usize::try_from(size).ok()).filter(|size| *size > 0);
            }
            _ => {}
        }
    }
    found
}

fn ecn_bits(traffic_class: u8) -> Option<u8> {
    Some(traffic_class & 0b11).filter(|bits| *bits != 0)
}

fn int(data: &[u8]) -> Option<i32> {
    data.get(..4).and_then(|b| b.try_into().ok()).map(i32::from_ne_bytes)
}

fn next<'a>(control: &mut &'a [u8]) -> Option<(i32, i32, &'a [u8])> {
    let header = control.get(..HEADER_BYTES)?;
    let len = usize::from_ne_bytes(header.get(..8)?.try_into().ok()?);
    let level = int(header.get(8..)?)?;
    let kind = int(header.get(12..)?)?;
    let data = control.get(HEADER_BYTES..len)?;
    let step = len.checked_next_multiple_of(ALIGN)?;
    *control = control.get(step..).unwrap_or_default();
    Some((level, kind, data))
}

/// Builds the control part of one send.
#[repr(align(8))]
pub(super) struct SendControl {
    bytes: [u8; CONTROL_BYTES],
    len: usize,
}

impl SendControl {
    pub(super) fn new() -> SendControl {
        SendControl { bytes: [0; CONTROL_BYTES], len: 0 }
    }

    pub(super) fn as_slice(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }

    /// ECN bits for a peer that is reached over IPv4 (also IPv4-mapped) or IPv6.
    pub(super) fn ecn(&mut self, over_ipv4: bool, bits: u8) {
        let value = i32::from(bits & 0b11).to_ne_bytes();
        match over_ipv4 {
            true => self.push(libc::IPPROTO_IP, libc::IP_TOS, &value),
            false => self.push(libc::IPPROTO_IPV6, libc::IPV6_TCLASS, &value),
        }
    }

    pub(super) fn segment_size(&mut self, bytes: u16) {
        self.push(libc::SOL_UDP, libc::UDP_SEGMENT, &bytes.to_ne_bytes());
    }

    /// The source address. `over_ipv4` as in [`SendControl::ecn`]; an address of the other family is left out.
    pub(super) fn source(&mut self, over_ipv4: bool, ip: IpAddr) {
        match ip.to_canonical() {
            IpAddr::V4(v4) if over_ipv4 => {
                let mut info = [0u8; 12];
                if let Some(spec_dst) = info.get_mut(4..8) {
                    spec_dst.copy_from_slice(&v4.octets());
                }
                self.push(libc::IPPROTO_IP, libc::IP_PKTINFO, &info);
            }
            IpAddr::V6(v6) if !over_ipv4 => {
                let mut info = [0u8; 20];
                if let Some(addr) = info.get_mut(..16) {
                    addr.copy_from_slice(&v6.octets());
                }
                self.push(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &info);
            }
            IpAddr::V4(_) | IpAddr::V6(_) => {}
        }
    }

    fn push(&mut self, level: i32, kind: i32, data: &[u8]) {
        let len = HEADER_BYTES + data.len();
        let end = self.len + len.next_multiple_of(ALIGN);
        let Some(slot) = self.bytes.get_mut(self.len..end) else {
            debug_assert!(false, "the control buffer holds one message of each kind");
            return;
        };
        let parts = [&len.to_ne_bytes()[..], &level.to_ne_bytes()[..], &kind.to_ne_bytes()[..], data];
        for (to, from) in slot.iter_mut().zip(parts.into_iter().flatten()) {
            *to = *from;
        }
        self.len = end;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
mod tests {
    use super::*;

    #[test]
    fn what_is_built_parses_back() {
        for ip in ["10.1.2.3", "2001:db8::7"] {
            let ip: IpAddr = ip.parse().unwrap();
            let mut out = SendControl::new();
            out.ecn(ip.is_ipv4(), 0b10);
            out.source(ip.is_ipv4(), ip);
            let back = parse(out.as_slice());
            assert_eq!(back.ecn, Some(0b10));
            // On send the IPv4 source is in spec_dst, on receive the destination is in addr.
            assert_eq!(back.local_ip, Some(if ip.is_ipv4() { "0.0.0.0".parse().unwrap() } else { ip }));
        }
    }

    #[test]
    fn every_message_fits_together() {
        let mut out = SendControl::new();
        out.ecn(false, 1);
        out.segment_size(1200);
        out.source(false, "::1".parse().unwrap());
        assert_eq!(out.as_slice().len(), 24 + 24 + 40);
    }

    #[test]
    fn a_source_of_the_other_family_is_left_out() {
        let mut out = SendControl::new();
        out.source(true, "::1".parse().unwrap());
        out.source(false, "127.0.0.1".parse().unwrap());
        assert!(out.as_slice().is_empty());
    }

    #[test]
    fn lengths_that_do_not_fit_end_the_walk() {
        let mut out = SendControl::new();
        out.ecn(false, 3);
        let good = out.as_slice().to_vec();
        for cut in 0..good.len() {
            let expected = if cut >= 20 { Some(3) } else { None };
            assert_eq!(parse(&good[..cut]).ecn, expected, "cut at {cut}");
        }
        for bad in [0usize, 1, 15, 400, usize::MAX] {
            let mut bytes = good.clone();
            bytes[..8].copy_from_slice(&bad.to_ne_bytes());
            assert_eq!(parse(&bytes), RecvControl::default(), "length {bad}");
        }
    }
}
