//! What a QUIC machine says. Scope: plain values.
//! Invariants: a `ConnKey` names one connection for ever: a reused slot has another epoch.
//! Not here: how events come about (machine), what reads and writes do (streams).

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use quinn_proto::{ConnectionError, Dir, StreamId, VarInt};

/// Names one connection of one machine. Stale keys are harmless: every call answers "gone" or does nothing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnKey {
    pub(super) slot: u32,
    pub(super) epoch: u32,
}

impl ConnKey {
    /// The slot: dense, below the number of connections held at once, reused. For indexing; compare keys, not slots.
    pub fn slot(self) -> usize {
        self.slot as usize
    }
}

impl fmt::Debug for ConnKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "conn {}#{}", self.slot, self.epoch)
    }
}

/// What happened on a connection. On an accepted connection the first event is `Connected`; `Closed` is the last
/// event of every connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QuicEvent {
    /// The handshake is done.
    Connected,
    /// The peer opened a stream. `Readable` for it follows at once.
    StreamOpened { stream: StreamId, dir: Dir },
    /// There may be something to read. Not repeated until a read of the stream answered `Blocked`, so keep
    /// reading until then, also when the end of the stream is near: the end is something to read too.
    Readable { stream: StreamId },
    /// A write that was blocked may go on.
    Writable { stream: StreamId },
    /// Everything we wrote to this stream, its end included, arrived.
    Finished { stream: StreamId },
    /// The peer wants no more of this stream; it was reset with the peer's code. No `Finished` follows.
    Stopped { stream: StreamId, code: VarInt },
    /// The peer allows more streams than before.
    StreamsAvailable { dir: Dir },
    /// The connection is over; its key is gone from here on.
    Closed { reason: CloseReason },
}

/// Why a connection ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CloseReason {
    /// We closed it.
    Local,
    /// The peer's application closed it.
    Peer { code: VarInt, reason: Bytes },
    /// The peer's transport closed it: a protocol error, a refused connection, a failed handshake.
    PeerTransport { code: u64, reason: Bytes },
    /// We gave it up because of what the peer sent. Codes 0x100 + n are TLS alert n.
    Transport { code: u64, reason: String },
    /// Silence for longer than the idle timeout.
    TimedOut,
    /// The peer has lost its state: it restarted.
    Reset,
    /// No QUIC version in common.
    VersionMismatch,
}

impl CloseReason {
    /// The transport code for a connection turned away (RFC 9000 20.1, CONNECTION_REFUSED).
    pub const REFUSED: u64 = 2;

    /// TLS alert number of a failed handshake, whichever side raised it.
    pub fn tls_alert(&self) -> Option<u8> {
        match self {
            CloseReason::PeerTransport { code, .. } | CloseReason::Transport { code, .. } => {
                u8::try_from(code.checked_sub(0x100)?).ok()
            }
            _ => None,
        }
    }
}

impl From<ConnectionError> for CloseReason {
    fn from(error: ConnectionError) -> CloseReason {
        match error {
            ConnectionError::VersionMismatch => CloseReason::VersionMismatch,
            ConnectionError::TransportError(error) => {
                CloseReason::Transport { code: error.code.into(), reason: error.reason }
            }
            ConnectionError::ConnectionClosed(close) => {
                CloseReason::PeerTransport { code: close.error_code.into(), reason: close.reason }
            }
            ConnectionError::ApplicationClosed(close) => {
                CloseReason::Peer { code: close.error_code, reason: close.reason }
            }
            ConnectionError::Reset => CloseReason::Reset,
            ConnectionError::TimedOut => CloseReason::TimedOut,
            ConnectionError::LocallyClosed | ConnectionError::CidsExhausted => CloseReason::Local,
        }
    }
}

/// What a read of one chunk gave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReadOutcome {
    /// The next bytes, in order, at least one. Their credit is on its way back to the peer.
    Data(Bytes),
    /// Nothing now; `Readable` will say when.
    Blocked,
    /// The peer ended the stream and everything was read. Said once; `Gone` after that.
    Finished,
    /// The peer abandoned the stream; what was unread is lost. Said once; `Gone` after that.
    Reset(VarInt),
    /// No such connection or no such stream to read.
    Gone,
}

/// How a write went. Bytes taken are split off the front of what was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteOutcome {
    /// Bytes taken.
    pub written: usize,
    pub state: WriteState,
}

/// Why a write took what it took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteState {
    /// Everything was taken.
    All,
    /// A window is full: the stream's, the connection's or our send window. `Writable` will say when.
    Blocked,
    /// The peer wants no more of it.
    Stopped(VarInt),
    /// No such connection, or the stream was finished, reset or never ours to write.
    Gone,
}

/// A path as the transport sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathReport {
    /// Smoothed round-trip time.
    pub rtt: Duration,
    /// Largest datagram known to pass, bytes of UDP payload.
    pub mtu: u16,
    /// Congestion window in bytes.
    pub congestion_window: u64,
    pub sent_packets: u64,
    pub lost_packets: u64,
    /// Datagrams received.
    pub received_datagrams: u64,
}

/// Connections that did not come to be, by reason, since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RefusedCounts {
    /// `refuse_new(true)` was in force.
    pub closing: u64,
    /// `max_connections` were held.
    pub full: u64,
    /// `max_connections_per_ip` were held for that address.
    pub per_ip: u64,
    /// The first packets were bad or the handshake failed.
    pub failed: u64,
    /// Asked to prove their address first. Those that come back are not counted again.
    pub retried: u64,
}
