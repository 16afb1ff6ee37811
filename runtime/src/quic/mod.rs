//! QUIC without sockets: datagrams in, stream bytes out, over quinn-proto driven by hand. Scope: one machine per core.
//! Owns: the endpoint, its connections and timers; connection ids that carry the core; the ALPN rule.
//! Invariants: no I/O and no clock; no scan over all connections; after `Closed` a key is never heard of again.
//! Not here: sockets and the socket filter (udp), frames (wire), authentication (the broker's sessions).

mod admission;
mod alpn;
mod cid;
mod event;
mod hello;
mod machine;
mod settings;
mod streams;
mod timers;
mod tls;
mod transmit;

pub use admission::{ConnectError, QuicError};
pub use event::{
    CloseReason, ConnKey, PathReport, QuicEvent, ReadOutcome, RefusedCounts, WriteOutcome, WriteState,
};
pub use machine::Quic;
pub use quinn_proto::{Dir, Side, StreamId, VarInt};
pub use settings::{
    CORES_MAX, INITIAL_MTU_MAX, KEY_BYTES, MTU_MIN, QuicSettings, STREAMS_MAX, SettingsError, UDP_PAYLOAD_MAX,
};
pub use tls::{CLIENT_ALPN, client_tls, crypto_provider, harden_server, server_tls};
pub use transmit::{SEGMENTS_MAX, TRAIN_BYTES_MAX, Transmit, Transmits};

#[cfg(test)]
mod tests;
