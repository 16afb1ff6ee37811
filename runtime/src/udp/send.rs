//! Sends datagrams without waiting, many segments per system call where the kernel takes them.
//! Scope: the send half of [`UdpIo`]. Owns: whether segmented sends work here, and how far into a
//! transmit a blocked send got.
//! Invariants: transmits go out in order; what does not fit the socket buffer stays with the caller; an error that is
//! one datagram's own is counted and the next one is sent; one odd refusal never turns segmentation off for everybody.
//! Not here: which connection may send (`quic`), waiting for room (executor).

#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::io::{self, IoSlice};
use std::net::SocketAddr;

use socket2::{MsgHdr, SockAddr, Socket};

use super::{Transmit, UdpIo, cmsg};
use crate::quic::{SEGMENTS_MAX, TRAIN_BYTES_MAX};

/// Refused segmented sends in a row, each with its pieces accepted one by one, after which segmentation is off.
const STRIKES_MAX: u32 = 16;

/// What one [`UdpIo::send`] did.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct SendOutcome {
    /// Transmits dealt with (sent or refused), from the first. The others are still the caller's.
    pub taken: usize,
    pub datagrams: usize,
    pub bytes: usize,
    /// Datagrams of the taken transmits that the kernel refused for good.
    pub failed: usize,
    /// Trains the kernel refused as such; their datagrams were then sent one by one.
    pub trains_refused: usize,
    /// The socket buffer is full: call again with the rest in a while. Nothing wakes a core for it, so bound the wait.
    pub blocked: bool,
}

/// What became of one `sendmsg`.
enum Sent {
    Yes,
    Blocked,
    /// The errno.
    Refused(i32),
}

/// How far a transmit had come when the socket buffer was full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Resume {
    remote: SocketAddr,
    len: usize,
    sent: usize,
}

/// Cuts transmits into what the kernel takes at once, and learns from what it refuses.
#[derive(Debug)]
pub(super) struct Trains {
    segmented: bool,
    strikes: u32,
    resume: Option<Resume>,
}

impl Trains {
    pub(super) fn new() -> Trains {
        Trains { segmented: true, strikes: 0, resume: None }
    }

    /// Sends all of a transmit by calling `put` with one train (and its segment size) after the other. False when the
    /// socket buffer is full.
    fn send(
        &mut self,
        transmit: &Transmit<'_>,
        outcome: &mut SendOutcome,
        mut put: impl FnMut(&[u8], usize) -> Sent,
    ) -> bool {
        let len = transmit.contents.len();
        let size = transmit.segment_size.unwrap_or(len).clamp(1, len.max(1));
        let resumed =
            self.resume.take().filter(|resume| resume.remote == transmit.remote && resume.len == len);
        let mut sent = resumed.map_or(0, |resume| resume.sent);
        let mut per_send = if self.segmented { (TRAIN_BYTES_MAX / size).clamp(1, SEGMENTS_MAX) } else { 1 };
        let mut refusal = None;
        loop {
            let rest = transmit.contents.get(sent..).unwrap_or_default();
            let part = rest.get(..size.saturating_mul(per_send)).unwrap_or(rest);
            let segments = part.len().div_ceil(size).max(1);
            match put(part, size) {
                Sent::Yes => {
                    outcome.datagrams += segments;
                    outcome.bytes += part.len();
                    if segments > 1 {
                        self.strikes = 0;
                    } else if let Some(errno) = refusal.take() {
                        self.strike(errno);
                    }
                }
                Sent::Blocked => {
                    self.resume = Some(Resume { remote: transmit.remote, len, sent });
                    return false;
                }
                Sent::Refused(errno) if segments > 1 => {
                    outcome.trains_refused += 1;
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

    /// A train was refused and a piece of it accepted alone. `EIO` means the device cannot segment at all; other errors
    /// may be the peer's doing (an address, a size), so only a long run of them counts.
    fn strike(&mut self, errno: i32) {
        self.strikes += 1;
        if errno == libc::EIO || self.strikes >= STRIKES_MAX {
            tracing::warn!(errno, "segmented sends are refused: datagrams go out one by one");
            self.segmented = false;
        }
    }
}

impl UdpIo {
    /// Sends the transmits in order until all are dealt with or the socket buffer is full. Never waits. After a blocked
    /// send the next call should start with the first transmit that was not taken; a transmit that went out in part
    /// is then continued, not repeated.
    pub fn send<'a>(&mut self, transmits: impl IntoIterator<Item = Transmit<'a>>) -> SendOutcome {
        let UdpIo { socket, trains, ipv6, counts, .. } = self;
        let mut outcome = SendOutcome::default();
        for transmit in transmits {
            if transmit.remote.port() == 0 {
                outcome.failed += transmit.datagrams().count().max(1);
                outcome.taken += 1;
                continue;
            }
            let done = trains.send(&transmit, &mut outcome, |part, size| {
                counts.send_calls += 1;
                send_train(socket, *ipv6, &transmit, part, size)
            });
            if !done {
                outcome.blocked = true;
                counts.send_blocked += 1;
                break;
            }
            outcome.taken += 1;
        }
        self.blocked = outcome.blocked;
        self.counts.send_datagrams += outcome.datagrams as u64;
        self.counts.send_bytes += outcome.bytes as u64;
        self.counts.send_failed += outcome.failed as u64;
        self.counts.trains_refused += outcome.trains_refused as u64;
        outcome
    }

    /// Whether the last send left something with the caller.
    pub(crate) fn send_is_blocked(&self) -> bool {
        self.blocked
    }

    #[cfg(test)]
    pub(crate) fn pretend_blocked(&mut self) {
        self.blocked = true;
    }
}

/// One `sendmsg` of one datagram, or of several of `size` bytes.
fn send_train(
    socket: &Socket,
    socket_is_ipv6: bool,
    transmit: &Transmit<'_>,
    part: &[u8],
    size: usize,
) -> Sent {
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
    let remote = SockAddr::from(match transmit.remote {
        // IPv4 peers of a dual-stack socket are reached by their mapped address.
        SocketAddr::V4(v4) if socket_is_ipv6 => SocketAddr::from((v4.ip().to_ipv6_mapped(), v4.port())),
        other => other,
    });
    let buffers = [IoSlice::new(part)];
    let mut header = MsgHdr::new().with_addr(&remote).with_buffers(&buffers);
    if !control.as_slice().is_empty() {
        header = header.with_control(control.as_slice());
    }
    loop {
        match socket.sendmsg(&header, libc::MSG_DONTWAIT) {
            Ok(_) => return Sent::Yes,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Sent::Blocked,
            Err(error) => return Sent::Refused(error.raw_os_error().unwrap_or(0)),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
mod tests {
    use super::*;

    const REMOTE: ([u8; 4], u16) = ([192, 0, 2, 1], 4433);

    fn transmit(contents: &[u8], segment_size: Option<usize>) -> Transmit<'_> {
        Transmit { remote: SocketAddr::from(REMOTE), local_ip: None, ecn: None, segment_size, contents }
    }

    /// Sends one transmit and records the trains; `answer` plays the kernel.
    fn run(
        trains: &mut Trains,
        len: usize,
        size: usize,
        mut answer: impl FnMut(usize) -> Sent,
    ) -> (bool, SendOutcome, Vec<usize>) {
        let contents = vec![1; len];
        let (mut outcome, mut seen) = (SendOutcome::default(), Vec::new());
        let done = trains.send(&transmit(&contents, Some(size)), &mut outcome, |part, _| {
            let sent = answer(part.len());
            if matches!(sent, Sent::Yes) {
                seen.push(part.len());
            }
            sent
        });
        (done, outcome, seen)
    }

    #[test]
    fn a_train_is_cut_to_what_the_kernel_takes() {
        for (len, size) in [(1, 1), (100_000, 1_200), (65_507, 65_507), (1_000, 3), (200_000, 65_000)] {
            let (done, outcome, seen) = run(&mut Trains::new(), len, size, |_| Sent::Yes);
            assert!(done);
            assert_eq!(seen.iter().sum::<usize>(), len);
            assert_eq!(outcome.datagrams, len.div_ceil(size));
            let (_, whole) = seen.split_last().unwrap();
            assert!(whole.iter().all(|part| part % size == 0), "only the last datagram may be short");
            assert!(seen.iter().all(|part| *part <= TRAIN_BYTES_MAX && part.div_ceil(size) <= SEGMENTS_MAX));
        }
    }

    #[test]
    fn a_refused_train_goes_out_one_by_one() {
        let mut trains = Trains::new();
        let (done, outcome, seen) =
            run(
                &mut trains,
                1_050,
                100,
                |len| if len > 100 { Sent::Refused(libc::EINVAL) } else { Sent::Yes },
            );
        assert!(done && trains.segmented);
        assert_eq!(seen, [100, 100, 100, 100, 100, 100, 100, 100, 100, 100, 50]);
        assert_eq!((outcome.datagrams, outcome.failed, outcome.trains_refused), (11, 0, 1));
    }

    #[test]
    fn what_was_sent_before_the_buffer_filled_is_not_sent_again() {
        let mut trains = Trains::new();
        trains.segmented = false;
        let mut room = 3;
        let mut take = |_| {
            room -= 1;
            if room >= 0 { Sent::Yes } else { Sent::Blocked }
        };
        let (done, outcome, seen) = run(&mut trains, 700, 100, &mut take);
        assert!(!done);
        assert_eq!((outcome.datagrams, seen.len()), (3, 3));
        let (done, outcome, seen) = run(&mut trains, 700, 100, |_| Sent::Yes);
        assert!(done);
        assert_eq!((outcome.datagrams, seen.len()), (4, 4));
        let (_, outcome, _) = run(&mut trains, 700, 100, |_| Sent::Yes);
        assert_eq!(outcome.datagrams, 7, "the next transmit starts at its beginning");
    }

    #[test]
    fn an_error_of_one_datagram_does_not_stop_the_next() {
        let mut trains = Trains::new();
        trains.segmented = false;
        let mut n = 0;
        let (done, outcome, _) = run(&mut trains, 500, 100, |_| {
            n += 1;
            if n == 2 { Sent::Refused(libc::ENETUNREACH) } else { Sent::Yes }
        });
        assert!(done);
        assert_eq!((outcome.datagrams, outcome.failed), (4, 1));
    }

    #[test]
    fn a_device_that_cannot_segment_is_believed_at_once() {
        let mut trains = Trains::new();
        run(&mut trains, 200, 100, |len| if len > 100 { Sent::Refused(libc::EIO) } else { Sent::Yes });
        assert!(!trains.segmented);
    }

    #[test]
    fn peers_that_cannot_be_reached_never_turn_segmentation_off() {
        let mut trains = Trains::new();
        for _ in 0..1_000 {
            let (done, outcome, _) = run(&mut trains, 200, 100, |_| Sent::Refused(libc::EINVAL));
            assert!(done);
            assert_eq!(outcome.failed, 2);
        }
        for _ in 0..1_000 {
            for _ in 1..STRIKES_MAX {
                run(
                    &mut trains,
                    200,
                    100,
                    |len| if len > 100 { Sent::Refused(libc::EINVAL) } else { Sent::Yes },
                );
            }
            run(&mut trains, 200, 100, |_| Sent::Yes);
        }
        assert!(trains.segmented);
    }

    #[test]
    fn refusals_without_an_end_turn_segmentation_off() {
        let mut trains = Trains::new();
        for _ in 0..STRIKES_MAX {
            assert!(trains.segmented);
            run(&mut trains, 200, 100, |len| if len > 100 { Sent::Refused(libc::EINVAL) } else { Sent::Yes });
        }
        let (_, outcome, _) = run(&mut trains, 200, 100, |_| Sent::Yes);
        assert_eq!((trains.segmented, outcome.datagrams), (false, 2));
    }
}
