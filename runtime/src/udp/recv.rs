//! Receives datagrams without waiting and without copying them.
//! Scope: the receive half of [`UdpIo`].
//! Invariants: at most one full buffer more than `max_bytes` is taken per call; datagrams the kernel joined are split
//! again at the size it names; a reported error of an earlier datagram does not end the call.
//! Not here: where the memory comes from (`chunk`).

#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddr;

use bytes::BytesMut;
use socket2::{MaybeUninitSlice, MsgHdrMut, SockAddr};

use super::chunk::{RECV_ROOM_BYTES, Room};
use super::{RecvDatagram, UdpIo, cmsg};

/// What every call is charged at least, so that a flood of tiny datagrams ends a call as a flood of bytes does.
const CHARGE_MIN_BYTES: usize = 2_048;

/// What one [`UdpIo::recv`] did.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct RecvOutcome {
    pub datagrams: usize,
    pub bytes: usize,
    /// The socket was empty at the end. When false there is probably more: do not wait, come back.
    pub drained: bool,
}

impl UdpIo {
    /// Hands every datagram that is there to `sink`, until the socket is empty or about `max_bytes` were taken.
    /// Never waits.
    ///
    /// # Errors
    /// Only what says that the socket itself is unusable; datagrams handed out before stay valid.
    pub fn recv(&mut self, max_bytes: usize, mut sink: impl FnMut(RecvDatagram)) -> io::Result<RecvOutcome> {
        let mut outcome = RecvOutcome::default();
        let mut charged = 0;
        self.chunks.rewind();
        while charged < max_bytes {
            match self.recv_once(&mut sink) {
                Ok(Some((datagrams, bytes))) => {
                    outcome.datagrams += datagrams;
                    outcome.bytes += bytes;
                    charged += bytes.max(CHARGE_MIN_BYTES);
                }
                Ok(None) => charged += CHARGE_MIN_BYTES,
                Err(error) => match fate(&error) {
                    Fate::Empty => {
                        outcome.drained = true;
                        break;
                    }
                    Fate::Again => {}
                    Fate::OfOneDatagram => {
                        self.counts.recv_errors += 1;
                        charged += CHARGE_MIN_BYTES;
                    }
                    Fate::Fatal => return Err(error),
                },
            }
        }
        Ok(outcome)
    }

    /// Whether a receive would find something, an error included.
    pub(crate) fn is_readable(&self) -> bool {
        let mut byte = [MaybeUninit::uninit(); 1];
        let peeked = self.socket.recv_with_flags(&mut byte, libc::MSG_PEEK | libc::MSG_DONTWAIT);
        !peeked.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }

    /// One `recvmsg`: datagrams and bytes handed out, or `None` when what came was thrown away.
    fn recv_once(&mut self, sink: &mut impl FnMut(RecvDatagram)) -> io::Result<Option<(usize, usize)>> {
        let UdpIo { socket, chunks, control, counts, .. } = self;
        let Room { buffer, copy } = chunks.room();
        let mut remote = empty_address();
        let spare = buffer.spare_capacity_mut();
        let room = spare.len().min(RECV_ROOM_BYTES);
        let mut slices = [MaybeUninitSlice::new(spare.split_at_mut(room).0)];
        let mut header =
            MsgHdrMut::new().with_addr(&mut remote).with_buffers(&mut slices).with_control(control.as_mut());
        let len = socket.recvmsg(&mut header, libc::MSG_DONTWAIT)?;
        let truncated = header.flags().is_truncated();
        let control_len = header.control_len();
        let found = cmsg::parse(control.filled(control_len));
        counts.recv_calls += 1;

        let remote = remote.as_socket().map(canonical).filter(|remote| remote.port() != 0);
        let Some(remote) = remote.filter(|_| !truncated) else {
            counts.recv_dropped += 1;
            return Ok(None);
        };
        // SAFETY: recvmsg initialised the first `len` bytes of the spare capacity, and `len` is at most `room`; the buffer
        // was empty before.
        unsafe { buffer.set_len(len) };
        let mut data = buffer.split_to(len);
        let stride = found.segment_size.unwrap_or(len).max(1);
        let mut datagrams = 0;
        loop {
            let piece = data.split_to(stride.min(data.len()));
            let data_of_one = if copy { BytesMut::from(&piece[..]) } else { piece };
            sink(RecvDatagram { remote, local_ip: found.local_ip, ecn: found.ecn, data: data_of_one });
            datagrams += 1;
            if data.is_empty() {
                break;
            }
        }
        counts.recv_datagrams += datagrams as u64;
        counts.recv_bytes += len as u64;
        counts.recv_copied += if copy { datagrams as u64 } else { 0 };
        Ok(Some((datagrams, len)))
    }
}

fn empty_address() -> SockAddr {
    SockAddr::from(SocketAddr::from((std::net::Ipv6Addr::UNSPECIFIED, 0)))
}

/// IPv4 peers of a dual-stack socket under their IPv4 address.
fn canonical(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V6(v6) => match v6.ip().to_ipv4_mapped() {
            Some(v4) => SocketAddr::from((v4, v6.port())),
            None => address,
        },
        SocketAddr::V4(_) => address,
    }
}

enum Fate {
    Empty,
    Again,
    OfOneDatagram,
    Fatal,
}

fn fate(error: &io::Error) -> Fate {
    match error.raw_os_error() {
        Some(libc::EAGAIN) => Fate::Empty,
        Some(libc::EINTR) => Fate::Again,
        Some(
            libc::ECONNREFUSED
            | libc::EHOSTUNREACH
            | libc::ENETUNREACH
            | libc::EHOSTDOWN
            | libc::ENETDOWN
            | libc::EMSGSIZE
            | libc::ENOPROTOOPT
            | libc::EPROTO
            | libc::EACCES
            | libc::EPERM
            | libc::ENOMEM
            | libc::ENOBUFS,
        ) => Fate::OfOneDatagram,
        _ => Fate::Fatal,
    }
}
