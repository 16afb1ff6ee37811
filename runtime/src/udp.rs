//! Datagrams of one core: receive a batch, send a batch, nothing else.
//! Scope: one [`UdpIo`] per core over one [`PortSocket`]; the sockets of all cores are bound together by
//! [`ReusePortGroup`].
//! Owns: the socket, the receive chunks, the knowledge whether this host takes segmented sends.
//! Invariants: a datagram handed to a sink is a slice of a receive chunk (no copy) unless the chunks held by others
//! exceed the budget; a send never waits; an error that concerns one datagram never stops the others.
//! Not here: QUIC, waiting for readability (executor), forwarding of strays (they are only told apart in `quic`).

mod bind;
mod chunk;
mod cmsg;
mod recv;
mod send;
#[cfg(test)]
mod tests;

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};

use bytes::BytesMut;
use socket2::Socket;

pub use crate::quic::Transmit;
pub(crate) use bind::grantable;
pub use bind::{BindError, BufferSizes, PortSocket, ReusePortGroup, Steering, host_has_ipv6};
pub use chunk::{DEFAULT_PINNED_BYTES, RECV_CHUNK_BYTES};
pub use recv::RecvOutcome;
pub use send::SendOutcome;

use chunk::Chunks;
use send::Trains;

/// One datagram as it came from the socket.
#[derive(Debug)]
pub struct RecvDatagram {
    /// Who sent it. IPv4 peers of a dual-stack socket appear as IPv4.
    pub remote: SocketAddr,
    /// Our address it was sent to, where the kernel told it.
    pub local_ip: Option<IpAddr>,
    /// The two ECN bits, when they are not zero.
    pub ecn: Option<u8>,
    /// The payload. Shares its memory with other datagrams of the same chunk.
    pub data: BytesMut,
}

/// What a core counts about its socket. Plain numbers; they only grow.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct UdpCounts {
    /// `recvmsg` calls that returned data.
    pub recv_calls: u64,
    pub recv_datagrams: u64,
    pub recv_bytes: u64,
    /// Datagrams thrown away on receipt: truncated, or from a port nobody can answer.
    pub recv_dropped: u64,
    /// Errors the socket reported on receive that concern some earlier datagram.
    pub recv_errors: u64,
    /// Datagrams copied out because too many chunks were held by others.
    pub recv_copied: u64,
    pub send_calls: u64,
    pub send_datagrams: u64,
    pub send_bytes: u64,
    /// Datagrams the kernel refused for a reason of their own (unreachable, too big, bad address).
    pub send_failed: u64,
    /// Sends put off because the socket buffer was full.
    pub send_blocked: u64,
    /// Trains of datagrams the kernel refused as such; they were then tried one by one.
    pub trains_refused: u64,
}

/// Reads and writes the datagrams of one core.
pub struct UdpIo {
    socket: Socket,
    /// Held so that no socket of the group closes before this core is done with its own.
    _group: Option<bind::GroupHold>,
    local: SocketAddr,
    ipv6: bool,
    chunks: Chunks,
    control: cmsg::ControlBuffer,
    trains: Trains,
    blocked: bool,
    counts: UdpCounts,
}

impl UdpIo {
    /// Takes the socket over. `pinned_bytes` bounds the receive memory that may be held by datagrams others keep;
    /// beyond it datagrams are copied into memory of their own size.
    pub fn new(socket: PortSocket, pinned_bytes: usize) -> UdpIo {
        let (socket, local, group) = socket.into_parts();
        UdpIo {
            socket,
            _group: group,
            local,
            ipv6: local.is_ipv6(),
            chunks: Chunks::new(pinned_bytes),
            control: cmsg::ControlBuffer::new(),
            trains: Trains::new(),
            blocked: false,
            counts: UdpCounts::default(),
        }
    }

    /// The address the socket is bound to, with the port the kernel gave.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    pub fn counts(&self) -> UdpCounts {
        self.counts
    }
}

impl AsFd for UdpIo {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
